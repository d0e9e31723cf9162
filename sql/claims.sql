-- Claims: which worker deletes which objects, and until when it may.
--
-- A lease is a promise both ways: until due_at nobody else is given the tombstone, and after it the
-- worker must not delete any more. A worker that lost its lease changes nothing here.
--
-- There is nothing to delete most of the time, and a plan that is made then would read the table
-- from end to end in busy times, as long as the session lasts: so what is here goes by indexes.

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


create function gc._claim_lock()
    returns integer
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $$ select hashtext('gc.claim') $$;

comment on function gc._claim_lock() is
    'The second half of the advisory lock that every gc.claim shares while it runs.';


-- Whoever has a transaction id already may have inserted a row before the tombstone could be seen;
-- whoever gets one later sees it. A snapshot knows ids only up to the last that is over, so one is
-- made to be over: then xmax lies beyond all that were given out before. With several collections,
-- a row of another may have the url.
create function gc._settle(taken bigint[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    several boolean := (select count(*) > 1 from gc.collections as c where c.url is not null);
    unsettled bigint[] := array(
        select t.id from gc.tombstones as t
        where t.id = any (taken) and (t.wait_for is null or several and t.wait_for = '0')
    );
begin
    if cardinality(unsettled) = 0 then
        return;
    end if;
    begin
        perform from gc.settings for key share;
        raise 'a transaction id is over' using errcode = 'ZG000';
    exception
        when sqlstate 'ZG000' then
            null;
    end;
    update gc.tombstones as t
    set wait_for = pg_snapshot_xmax(pg_current_snapshot())
    where t.id = any (unsettled);
end;
$$;

comment on function gc._settle(bigint[]) is
    'Notes, for tombstones of shared objects, which transactions a claim has to wait for.';


-- Several tombstones of one object are one deletion: a leased one, or the first, stands for all.
create function gc._drop_duplicates(taken bigint[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_hashjoin = off
    set enable_mergejoin = off
as $$
begin
    delete from gc.tombstones as t
    where t.id = any (taken)
        and exists (
            select from gc.tombstones as o
            where o.url = t.url and coalesce(o.generation, '') = coalesce(t.generation, '')
                and o.id <> t.id
                and (o.worker is not null or t.worker is null and o.id < t.id)
        );
end;
$$;

comment on function gc._drop_duplicates(bigint[]) is
    'Drops tombstones whose object another tombstone stands for.';


create function gc._oldest_other()
    returns xid8
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select running from pg_snapshot_xip(pg_current_snapshot()) as running order by running limit 1
$$;

comment on function gc._oldest_other() is
    'The oldest transaction that is running, apart from this one; null: there is none.';


-- What is due is taken first and judged afterwards, so that the cost is that of the batch. What
-- cannot be handed out now steps back for a moment and lets others through. A wait_for beyond every
-- snapshot of this server came with a dump from another: all of those transactions have ended.
create function gc._lease(worker text, batch integer, lease interval, prefixes text[])
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    until timestamptz := clock_timestamp() + lease;
    oldest xid8;
    taken bigint[];
    leased bigint[];
begin
    loop
        taken := array(
            select t.id from gc.tombstones as t
            where t.due_at <= clock_timestamp() and (prefixes is null or exists (
                select from unnest(prefixes) as p where starts_with(t.url, p)))
            order by t.due_at
            limit batch
            for update skip locked
        );
        exit when cardinality(taken) = 0;
        perform gc._settle(taken);
        perform gc._drop_duplicates(taken);
        oldest := gc._oldest_other();
        update gc.tombstones as t
        set worker = null, due_at = clock_timestamp() + interval '1 second'
        where t.id = any (taken)
            and (t.wait_for > oldest and t.wait_for <= pg_snapshot_xmax(pg_current_snapshot())
                or (select gc._has_holds()) and gc._is_held(t.collection, t.key, t.url));
        with rest as (
            update gc.tombstones as t
            set worker = _lease.worker, due_at = until
            where t.id = any (taken) and t.due_at <= clock_timestamp()
            returning t.id
        )
        select array_agg(r.id) into leased from rest as r;
        exit when leased is not null;
    end loop;
    return leased;
end;
$$;

comment on function gc._lease(text, integer, interval, text[]) is
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
            and l.objid <> gc._claim_lock()::oid
            and l.database = (
                select d.oid from pg_database as d where d.datname = current_database()
            )
    );
begin
    if cardinality(uploading) = 0 and not gc._has_holds() then
        return;
    end if;
    update gc.tombstones as t
    set worker = null, due_at = clock_timestamp() + interval '1 second'
    where t.id = any (leased)
        and (
            gc._is_held(t.collection, t.key, t.url)
            or gc._upload_lock(t.collection, t.key)::oid = any (uploading)
            or gc._upload_lock('url', t.url)::oid = any (uploading)
            or gc._upload_lock('url', '')::oid = any (uploading)
        );
end;
$$;

comment on function gc._return_uploads(bigint[]) is
    'Gives back what somebody has begun to upload meanwhile.';


-- The last of the rows that have the url leaves a tombstone of its own, so this one can go. Every
-- collection is asked: two tables may name one object. One that has no index on it is read whole.
create function gc._is_used(ids bigint[])
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = on
as $$
declare
    used bigint[] := array[]::bigint[];
    found_here bigint[];
    name text;
begin
    for name in
        select c.name from gc.collections as c where c.url is not null
    loop
        execute format('select array(select gc.%I($1))', gc._object_name(name, '_used'))
        into found_here using ids;
        used := used || found_here;
    end loop;
    return used;
end;
$$;

comment on function gc._is_used(bigint[]) is
    'Which of the tombstones have an object that a live row has too.';


-- Where that cannot be found out, because a column is gone perhaps, nothing is handed out: the
-- tombstones are asked for one by one, so that a bad one holds up only itself.
create function gc._drop_used(leased bigint[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    used bigint[];
    one bigint;
begin
    begin
        used := gc._is_used(leased);
        delete from gc.tombstones as t where t.id = any (used);
        return;
    exception
        when others then
            null;
    end;
    foreach one in array leased loop
        begin
            used := gc._is_used(array[one]);
            delete from gc.tombstones as t where t.id = any (used);
        exception
            when others then
                update gc.tombstones as t
                set worker = null, due_at = clock_timestamp() + gc._backoff(t.failures),
                    failures = t.failures + 1, last_error = sqlerrm
                where t.id = one;
        end;
    end loop;
end;
$$;

comment on function gc._drop_used(bigint[]) is
    'Drops tombstones whose object a live row has.';


create function gc.claim(
    worker text, batch integer default 1000, lease interval default '5 minutes',
    prefixes text[] default null
)
    returns table (
        id bigint, collection text, key text, label text, url text, generation text, size bigint,
        leased_until timestamptz
    )
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set jit = off
as $$
declare
    leased bigint[];
begin
    perform gc._require_read_committed('claim');
    perform gc._require_worker(worker);
    perform gc._require_batch(batch);
    perform gc._require_positive('lease', lease);

    perform pg_advisory_xact_lock_shared(gc._lock_class(), gc._claim_lock());
    leased := gc._lease(worker, batch, lease, prefixes);
    if leased is null then
        return;
    end if;
    perform gc._return_uploads(leased);
    perform gc._drop_used(leased);
    return query
        select t.id, t.collection, t.key, t.label, t.url, t.generation, t.size, t.due_at
        from gc.tombstones as t
        where t.id = any (leased) and t.worker = claim.worker
        order by t.id;
end;
$$;
revoke all on function gc.claim(text, integer, interval, text[]) from public;

comment on function gc.claim(text, integer, interval, text[]) is
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
    set enable_seqscan = off
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
    set enable_seqscan = off
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
    set enable_seqscan = off
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
