-- Claims: which worker deletes which objects, and until when it may.
--
-- A lease is a promise both ways: until due_at nobody else is given the tombstone, and after it the
-- worker must not delete any more. A worker that lost its lease changes nothing here.

create function gc._require_worker(worker text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if worker is null or worker = '' then
        raise 'a worker must have a name'
            using errcode = 'invalid_parameter_value',
                detail = 'A lease belongs to the worker of that name.',
                hint = 'Use a name that no other runner has: host and process id, for example.';
    end if;
end;
$$;

comment on function gc._require_worker(text) is 'Raises for a worker without a name.';


create function gc._settle(batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    update gc.tombstones as t
    set wait_for = pg_snapshot_xmax(pg_current_snapshot())
    where t.id in (
        select o.id
        from gc.tombstones as o
        where o.wait_for is null and o.due_at <= clock_timestamp()
        limit batch
        for update skip locked
    );
end;
$$;

comment on function gc._settle(integer) is
    'Notes, for tombstones of shared objects, which transactions a claim has to wait for.';


-- A number beyond every transaction of this server came with a dump from another: all those ended.
create function gc._is_settled(wait_for xid8)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select wait_for <= pg_snapshot_xmin(pg_current_snapshot())
        or wait_for > pg_snapshot_xmax(pg_current_snapshot())
$$;

comment on function gc._is_settled(xid8) is
    'Whether every transaction older than this has ended; null while that is not known.';


-- Of several tombstones of one object only the first is leased, and the others go: one deletion.
create function gc._lease(worker text, batch integer, lease interval)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    until timestamptz := clock_timestamp() + lease;
    leased bigint[];
begin
    with due as (
        select t.id
        from gc.tombstones as t
        where t.due_at <= clock_timestamp()
            and gc._is_settled(t.wait_for)
            and not gc._is_held(t.collection, t.key, t.url)
            and not exists (
                select from gc.tombstones as o
                where o.url = t.url and o.generation is not distinct from t.generation
                    and o.id < t.id
            )
        order by t.due_at
        limit batch
        for update skip locked
    ),
    taken as (
        update gc.tombstones as t
        set worker = _lease.worker, due_at = until
        from due as d
        where t.id = d.id
        returning t.id
    )
    select array_agg(t.id) into leased from taken as t;

    delete from gc.tombstones as o
    using gc.tombstones as t
    where t.id = any (leased) and o.url = t.url and o.id > t.id and o.worker is null
        and o.generation is not distinct from t.generation;
    return leased;
end;
$$;

comment on function gc._lease(text, integer, interval) is
    'Leases what is due, longest overdue first; what another session holds is left to it.';


-- An upload that has not committed yet shows only in its advisory lock, one that has only in its
-- hold: so first the locks are read, then, with a new snapshot, the holds.
create function gc._return_uploads(leased bigint[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    uploading oid[] := array(
        select l.objid from pg_locks as l
        where l.locktype = 'advisory' and l.granted and l.classid = gc._lock_class()::oid
            and l.database = (
                select d.oid from pg_database as d where d.datname = current_database()
            )
    );
begin
    update gc.tombstones as t
    set worker = null, due_at = clock_timestamp() + interval '1 second'
    where t.id = any (leased)
        and (
            gc._is_held(t.collection, t.key, t.url)
            or gc._upload_lock(t.collection, t.key)::oid = any (uploading)
            or gc._upload_lock(t.collection, t.url)::oid = any (uploading)
        );
end;
$$;

comment on function gc._return_uploads(bigint[]) is
    'Gives back what somebody has begun to upload meanwhile.';


-- The last of the rows that have the url leaves a tombstone of its own, so this one can go.
create function gc._drop_used(leased bigint[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    used bigint[];
    name text;
begin
    for name in
        select distinct t.collection from gc.tombstones as t where t.id = any (leased)
    loop
        execute format('select array(select gc.%I($1))', gc._object_name(name, '_used'))
        into used using leased;
        delete from gc.tombstones as t where t.id = any (used);
    end loop;
end;
$$;

comment on function gc._drop_used(bigint[]) is
    'Drops tombstones whose object a live row has.';


create function gc.claim(
    worker text, batch integer default 1000, lease interval default '5 minutes'
)
    returns table (
        id bigint, collection text, key text, label text, url text, generation text, size bigint,
        leased_until timestamptz
    )
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    leased bigint[];
begin
    perform gc._require_read_committed('claim');
    perform gc._require_worker(worker);
    perform gc._require_batch(batch);
    perform gc._require_positive('lease', lease);

    perform gc._settle(batch);
    leased := gc._lease(worker, batch, lease);
    perform gc._return_uploads(leased);
    perform gc._drop_used(leased);
    return query
        select t.id, t.collection, t.key, t.label, t.url, t.generation, t.size, t.due_at
        from gc.tombstones as t
        where t.id = any (leased) and t.worker = claim.worker
        order by t.id;
end;
$$;
revoke all on function gc.claim(text, integer, interval) from public;

comment on function gc.claim(text, integer, interval) is
    'Leases tombstones that are due to a worker, who then deletes their objects and confirms.';


-- Not an error, because the rest of the batch is good: the caller learns it from the count.
create function gc._warn_unleased(worker text, wanted integer, changed integer)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if changed < wanted then
        raise warning '% of % tombstones are not leased to "%"', wanted - changed, wanted, worker
            using errcode = 'object_not_in_prerequisite_state',
                detail = 'Their lease is over, or another worker has them, or they never were.',
                hint = 'Claim again: what is left will be handed out.';
    end if;
    return changed;
end;
$$;

comment on function gc._warn_unleased(text, integer, integer) is
    'Returns how many were changed, with a warning if that is less than was wanted.';


create function gc.confirm(worker text, ids bigint[])
    returns integer
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    changed integer;
begin
    perform gc._require_worker(worker);
    with gone as (
        delete from gc.tombstones as t
        where t.id = any (ids) and t.worker = confirm.worker and t.due_at > clock_timestamp()
        returning t.*
    ),
    logged as (
        insert into gc.deletion_log (
            collection, key, label, url, generation, size, event, row_deleted_at, worker
        )
        select g.collection, g.key, g.label, g.url, g.generation, g.size, g.event, g.created_at,
            g.worker
        from gone as g
    ),
    totalled as (
        insert into gc.totals (collection, objects, bytes)
        select g.collection, count(*), coalesce(sum(g.size), 0)
        from gone as g
        group by g.collection
    )
    select count(*) into changed from gone as g;
    return gc._warn_unleased(worker, (select count(distinct i) from unnest(ids) as i)::integer,
        changed);
end;
$$;
revoke all on function gc.confirm(text, bigint[]) from public;

comment on function gc.confirm(text, bigint[]) is
    'Says that the objects are gone. Returns how many of the tombstones were the worker''s.';


create function gc.fail(worker text, ids bigint[], error text)
    returns integer
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    changed integer;
begin
    perform gc._require_worker(worker);
    update gc.tombstones as t
    set worker = null,
        due_at = clock_timestamp() + gc._backoff(t.failures),
        failures = t.failures + 1,
        last_error = coalesce(error, 'no reason was given')
    where t.id = any (ids) and t.worker = fail.worker and t.due_at > clock_timestamp();
    get diagnostics changed = row_count;
    return gc._warn_unleased(worker, (select count(distinct i) from unnest(ids) as i)::integer,
        changed);
end;
$$;
revoke all on function gc.fail(text, bigint[], text) from public;

comment on function gc.fail(text, bigint[], text) is
    'Says that the objects could not be deleted, and why: they are due again after a backoff.';


create function gc.release(worker text, ids bigint[])
    returns integer
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    changed integer;
begin
    perform gc._require_worker(worker);
    update gc.tombstones as t
    set worker = null, due_at = clock_timestamp()
    where t.id = any (ids) and t.worker = release.worker and t.due_at > clock_timestamp();
    get diagnostics changed = row_count;
    return gc._warn_unleased(worker, (select count(distinct i) from unnest(ids) as i)::integer,
        changed);
end;
$$;
revoke all on function gc.release(text, bigint[]) from public;

comment on function gc.release(text, bigint[]) is
    'Gives back what the worker has not begun to delete: it is due again at once.';
