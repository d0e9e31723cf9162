-- Claims: which worker deletes which objects, and until when it may.
--
-- A lease is a promise both ways: until due_at nobody else is given the tombstone, and after it the
-- worker must not delete any more. A worker that lost its lease changes nothing here.
--
-- A claim looks at each tombstone once, at most a batch of them, and waits for nobody for long.
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


-- A row that is deleted by a transaction that did not wait for the disk is back after a crash. The
-- commit of a claim comes after all that the claim has seen, so it makes that durable too.
create function gc._commit_durably()
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end;
$$;

comment on function gc._commit_durably() is
    'Makes this transaction wait for the disk when it commits, whatever the session says.';


-- Of all tombstones, by one step of the index for each store; or of the prefixes.
create function gc._stores(prefixes text[])
    returns setof text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with recursive present(store) as (
        select (select t.store from gc.tombstones as t order by t.store limit 1)
        where prefixes is null
        union all
        select (
            select t.store from gc.tombstones as t where t.store > p.store order by t.store limit 1
        )
        from present as p
        where p.store is not null
    )
    select p.store from present as p where p.store is not null
    union
    select gc._store(u) from unnest(prefixes) as u
$$;

comment on function gc._stores(text[]) is 'The stores in which something is to be deleted.';


-- With several collections, a row of another may have the url, unless their addresses differ from
-- the beginning.
create function gc._are_several()
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select
        from gc.collections as a
        join gc.collections as b on a.name < b.name
        where a.url is not null and b.url is not null
            and coalesce(starts_with(a.url_prefix, b.url_prefix)
                or starts_with(b.url_prefix, a.url_prefix), true)
    )
$$;

comment on function gc._are_several() is 'Whether rows of two collections may share an object.';


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


create function gc._unsettled(
    stores text[], prefixes text[], several boolean, moment timestamptz, batch integer
)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select d.id
        from unnest(stores) as s
        cross join lateral (
            select t.id from gc.tombstones as t
            where t.store = s and t.wait_for is null and t.due_at <= moment
                and (prefixes is null or t.url ^@ any (prefixes))
            order by t.due_at
            limit batch
            for update skip locked
        ) as d
        limit batch
    ) || array(
        select d.id
        from unnest(stores) as s
        cross join lateral (
            select t.id from gc.tombstones as t
            where several and t.store = s and t.wait_for = '0' and t.due_at <= moment
                and (prefixes is null or t.url ^@ any (prefixes))
            order by t.due_at
            limit batch
            for update skip locked
        ) as d
        limit batch
    );
end;
$$;

comment on function gc._unsettled(text[], text[], boolean, timestamptz, integer) is
    'Locks tombstones that are due and of which it is not known for which transactions to wait.';


-- Whoever has a transaction id already may have inserted a row before the tombstone could be seen;
-- whoever gets one later sees it. A snapshot knows ids only up to the last that is over, so one is
-- made to be over: then xmax lies beyond all that were given out before.
create function gc._settle(
    stores text[], prefixes text[], several boolean, moment timestamptz, batch integer
)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    taken bigint[] := gc._unsettled(stores, prefixes, several, moment, batch);
    oldest xid8;
    newest xid8;
begin
    if cardinality(taken) = 0 then
        return;
    end if;
    begin
        perform from gc.locks as l where l.name = 'claim' for key share;
        raise 'a transaction id is over' using errcode = 'ZG000';
    exception
        when sqlstate 'ZG000' then
            null;
    end;
    select gc._oldest_other(), pg_snapshot_xmax(pg_current_snapshot()) into oldest, newest;
    update gc.tombstones as t
    set wait_for = case when oldest is null then '1' else newest end
    where t.id = any (taken);
end;
$$;

comment on function gc._settle(text[], text[], boolean, timestamptz, integer) is
    'Notes, for tombstones of objects that may be shared, which transactions a claim waits for.';


-- A wait_for beyond every snapshot of this server came with a dump from another: all of those
-- transactions have ended.
create function gc._end_waits(stores text[], prefixes text[], batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    newest xid8 := pg_snapshot_xmax(pg_current_snapshot());
    oldest xid8 := coalesce(gc._oldest_other(), newest);
begin
    update gc.tombstones as t
    set wait_for = '1'
    where t.id = any (array(
        select d.id
        from unnest(stores) as s
        cross join (values ('2'::xid8, oldest), (newest, '18446744073709551615')) as w(low, high)
        cross join lateral (
            select t.id from gc.tombstones as t
            where t.store = s and t.wait_for >= w.low and t.wait_for <= w.high
                and (t.wait_for <= oldest or t.wait_for > newest)
                and (prefixes is null or t.url ^@ any (prefixes))
            order by t.wait_for
            limit batch
            for update skip locked
        ) as d
        limit batch
    ));
end;
$$;

comment on function gc._end_waits(text[], text[], integer) is
    'Notes, for tombstones whose transactions have all ended, that nothing is waited for any more.';


-- The store that has waited longest comes first.
create function gc._take(
    stores text[], prefixes text[], several boolean, moment timestamptz, batch integer
)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select d.id
        from (
            select s, r, (
                    select t.due_at from gc.tombstones as t
                    where t.store = s and t.wait_for = r
                    order by t.due_at
                    limit 1
                ) as first
            from unnest(stores) as s
            cross join unnest(case when several then '{1}' else '{0,1}' end::xid8[]) as r
            order by 3
        ) as g
        cross join lateral (
            select t.id from gc.tombstones as t
            where t.store = g.s and t.wait_for = g.r and t.due_at <= moment
                and (prefixes is null or t.url ^@ any (prefixes))
            order by t.due_at
            limit batch
            for update skip locked
        ) as d
        where g.first <= moment
        limit batch
    );
end;
$$;

comment on function gc._take(text[], text[], boolean, timestamptz, integer) is
    'Locks tombstones that can be handed out; what another session holds is left to it.';


-- Several tombstones of one object are one deletion: one that waits longer stands for all, or one
-- that was leased, or the first.
create function gc._drop_duplicates(taken bigint[], moment timestamptz)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    delete from gc.tombstones as t
    where t.id = any (taken)
        and exists (
            select from gc.tombstones as o
            where o.url = t.url and coalesce(o.generation, '') = coalesce(t.generation, '')
                and o.id <> t.id
                and (
                    o.due_at > moment
                    or o.worker is not null and t.worker is null
                    or (o.worker is null) = (t.worker is null) and o.id < t.id
                )
        );
end;
$$;

comment on function gc._drop_duplicates(bigint[], timestamptz) is
    'Drops tombstones whose object another tombstone stands for.';


-- What cannot be handed out now steps back for a moment and lets others through.
create function gc._step_back(ids bigint[], why text)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    update gc.tombstones as t
    set worker = null, due_at = clock_timestamp() + interval '1 second', held_up = why
    where t.id = any (ids)
$$;

comment on function gc._step_back(bigint[], text) is
    'Puts tombstones off for a moment, and notes why.';


create function gc._held(ids bigint[])
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not gc._has_holds() then
        return array[]::bigint[];
    end if;
    return array(
        select t.id from gc.tombstones as t
        where t.id = any (ids) and gc._is_held(t.collection, t.key, t.url)
    );
end;
$$;

comment on function gc._held(bigint[]) is 'Those of the tombstones whose key or url is held.';


-- Another session may be leasing the same object by another tombstone, and may take its time.
create function gc._lease_one(worker text, one bigint, until timestamptz)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '10ms'
as $$
begin
    update gc.tombstones as t
    set worker = _lease_one.worker, due_at = until, held_up = null
    where t.id = one;
    return true;
exception
    when exclusion_violation or lock_not_available then
        perform gc._step_back(array[one], 'another worker has the object');
        return false;
end;
$$;

comment on function gc._lease_one(text, bigint, timestamptz) is
    'Gives a tombstone to a worker, unless another has the object.';


-- Two of one object that two sessions lease at one time: the second waits for the first, and is
-- refused by the constraint. Then they are leased one by one.
create function gc._lease(worker text, ids bigint[], until timestamptz)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    begin
        update gc.tombstones as t
        set worker = _lease.worker, due_at = until, held_up = null
        where t.id = any (ids);
        return ids;
    exception
        when exclusion_violation or lock_not_available then
            null;
    end;
    return array(select u from unnest(ids) as u where gc._lease_one(worker, u, until));
end;
$$;

comment on function gc._lease(text, bigint[], timestamptz) is
    'Gives tombstones to a worker; returns which.';


create function gc._per_url(urls text[], generations text[])
    returns table (url text, generation text)
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select o.url, case when count(*) = 1 then min(o.generation) end
    from unnest(urls, generations) as o(url, generation)
    group by o.url
$$;

comment on function gc._per_url(text[], text[]) is
    'Each address with the version of its object; null: any, for there are several.';


-- One row for each url, and where it had another version before, any. In the order of the urls, so
-- that two sessions wait for each other in one direction only; the second round is for what another
-- session has put there meanwhile.
create function gc._remember(urls text[], generations text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    to_do integer := (select count(*) from gc._per_url(urls, generations));
    step integer;
begin
    for attempt in 1 .. 2 loop
        perform from gc.deleted_objects as d where d.url = any (urls) order by d.url for update;
        update gc.deleted_objects as d
        set generation = case when d.generation = o.generation then d.generation end,
            deleted_at = clock_timestamp(), deleted_by = pg_current_xact_id()
        from gc._per_url(urls, generations) as o
        where d.url = o.url and (attempt = 1 or d.deleted_by <> pg_current_xact_id());
        get diagnostics step = row_count;
        to_do := to_do - step;
        exit when to_do = 0;
        insert into gc.deleted_objects (url, generation)
        select o.url, o.generation from gc._per_url(urls, generations) as o order by o.url
        on conflict do nothing;
        get diagnostics step = row_count;
        to_do := to_do - step;
        exit when to_do = 0;
    end loop;
end;
$$;

comment on function gc._remember(text[], text[]) is
    'Notes that these objects are gone, or that these versions are about to go.';


-- A lock in a subtransaction that is undone tells that nobody else has one. Two claims that ask at
-- one time may see each other, for a moment.
create function gc._free_slots(slots integer[])
    returns integer[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    free integer[];
begin
    for attempt in 1 .. 5 loop
        begin
            free := array(
                select s.slot from gc.upload_slots as s where s.slot = any (slots)
                for update skip locked
            );
            raise 'the look is over' using errcode = 'ZG000';
        exception
            when sqlstate 'ZG000' then
                null;
        end;
        exit when cardinality(free) = cardinality(slots);
        perform pg_sleep(0.002);
    end loop;
    return free;
end;
$$;

comment on function gc._free_slots(integer[]) is 'Those of the slots in which nothing is written.';


-- An upload that has not committed yet shows only in its slots, one that has only in its hold: so
-- first the slots are looked at, then, with a new snapshot, the holds. Whoever locks a slot has
-- locked gc.holds before, which only our own functions can do: without that, no slot is locked.
create function gc._return_uploads(leased bigint[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    free integer[];
begin
    if exists (
        select from pg_locks as l
        where l.locktype = 'relation' and l.mode = 'RowExclusiveLock'
            and l.relation = 'gc.holds'::regclass and l.pid is distinct from pg_backend_pid()
            and l.database = (
                select d.oid from pg_database as d where d.datname = current_database()
            )
    ) then
        free := gc._free_slots(array(
            select distinct u
            from gc.tombstones as t
            cross join lateral (
                values (gc._slot(t.collection, t.key)), (gc._slot('url', t.url))
            ) as s(u)
            where t.id = any (leased)
        ));
        perform gc._step_back(array_agg(t.id), 'somebody has begun to upload it')
        from gc.tombstones as t
        where t.id = any (leased)
            and not array[gc._slot(t.collection, t.key), gc._slot('url', t.url)] <@ free;
    end if;
    perform gc._step_back(gc._held(leased), 'somebody has announced its upload, or uses its row');
end;
$$;

comment on function gc._return_uploads(bigint[]) is
    'Gives back what somebody has begun to upload.';


-- The last of the rows that have the url leaves a tombstone of its own, so this one can go. Every
-- collection is asked: two tables may name one object. One that has no index on it is read whole.
create function gc._is_used(ids bigint[], by_url boolean)
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
        perform gc._require_own(name);
        execute format('select array(select gc.%I($1, $2))', gc._object_name(name, '_used'))
        into found_here using ids, by_url;
        used := used || found_here;
    end loop;
    return used;
end;
$$;

comment on function gc._is_used(bigint[], boolean) is
    'Which of the tombstones have an object that a live row has too; by_url: without their keys.';


-- A key that cannot be read is from a time when the table had another key.
create function gc._is_one_used(one bigint)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return gc._is_used(array[one], false);
exception
    when data_exception then
        return gc._is_used(array[one], true);
end;
$$;

comment on function gc._is_one_used(bigint) is
    'gc._is_used for a tombstone by itself, whatever its key is.';


-- gc.track was called again without a url: by mistake perhaps.
create function gc._without_url(ids bigint[])
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from gc.collections as c where c.url is null) then
        return array[]::bigint[];
    end if;
    return array(
        select t.id from gc.tombstones as t
        where t.id = any (ids)
            and t.collection in (select c.name from gc.collections as c where c.url is null)
    );
end;
$$;

comment on function gc._without_url(bigint[]) is
    'Those of the tombstones whose collection has no url any more, so that no row can be found.';


-- Where that cannot be found out, because a column is gone perhaps, nothing is handed out: the
-- tombstones are asked for one by one, so that a bad one holds up only itself. A table that
-- somebody has locked is not waited for again and again.
create function gc._drop_used(leased bigint[], until timestamptz)
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
        used := gc._is_used(leased, false);
        delete from gc.tombstones as t where t.id = any (used);
        return;
    exception
        when lock_not_available then
            perform gc._step_back(leased, sqlerrm);
            return;
        when others then
            null;
    end;
    foreach one in array leased loop
        if clock_timestamp() > until then
            perform gc._step_back(array[one], 'there was no time to look for rows that have it');
            continue;
        end if;
        begin
            used := gc._is_one_used(one);
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

comment on function gc._drop_used(bigint[], timestamptz) is
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
    set lock_timeout = '2s'
as $$
declare
    moment timestamptz := clock_timestamp();
    stores text[] := array(select gc._stores(prefixes));
    several boolean := gc._are_several();
    taken bigint[];
begin
    perform gc._require_read_committed('claim');
    perform gc._require_worker(worker);
    perform gc._require_batch(batch);
    perform gc._require_positive('lease', lease);

    perform gc._commit_durably();
    perform gc._limit_lock_waits();
    perform gc._settle(stores, prefixes, several, moment, batch);
    perform gc._end_waits(stores, prefixes, batch);
    taken := gc._take(stores, prefixes, several, moment, batch);
    if cardinality(taken) = 0 then
        return;
    end if;
    perform gc._drop_duplicates(taken, moment);
    taken := gc._lease(worker, taken, clock_timestamp() + lease);
    perform gc._remember(array_agg(t.url), array_agg(t.generation))
    from gc.tombstones as t
    where t.id = any (taken) and t.generation is not null
    having count(*) > 0;
    perform gc._return_uploads(taken);
    perform gc._step_back(gc._without_url(taken), 'its collection has no url any more');
    perform gc._drop_used(taken, moment + (select s.statement_timeout from gc.settings as s));
    return query
        select t.id, t.collection, t.key, t.label, t.url, t.generation, t.size, t.due_at
        from gc.tombstones as t
        where t.id = any (taken) and t.worker = claim.worker
        order by t.id;
end;
$$;
revoke all on function gc.claim(text, integer, interval, text[]) from public;

comment on function gc.claim(text, integer, interval, text[]) is
    'Leases tombstones that are due to a worker, who then deletes their objects and confirms. With '
    'prefixes, each of which ends with a slash, only those whose url begins with one of them.';


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
    urls text[];
    generations text[];
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
    select count(*), array_agg(g.url), array_agg(g.generation) into changed, urls, generations
    from gone as g;
    perform gc._remember(urls, generations) where changed > 0;
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
