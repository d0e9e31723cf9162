-- Claims: which worker deletes which objects, and until when it may.
--
-- A lease is a promise both ways: until due_at nobody else is given the tombstone, and after it the
-- worker must not delete any more. A worker that lost its lease changes nothing here.
--
-- A claim looks at each tombstone once, at most a batch of them, and waits for nobody for long.
-- There is nothing to delete most of the time, and a plan that is made then would read the table
-- from end to end in busy times, as long as the session lasts: so what is here goes by indexes.
-- "is null" is no equality to PostgreSQL: without wait_for in the order, all of them are sorted.

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


-- Of all tombstones, by one step of the index for each store; or of the prefixes.
create function gc._stores(prefixes text[], finalizer text)
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
    select p.store from present as p where gc._is_of(p.store, finalizer)
    union
    select gc._counter(finalizer, gc._store(u)) from unnest(prefixes) as u
$$;

comment on function gc._stores(text[], text) is
    'The stores in which something is to be done for a finalizer, as tombstones have them.';


-- What is paused is not among them, so its tombstones cost a claim nothing.
create function gc._groups(prefixes text[], finalizer text)
    returns table (store text, collection text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with recursive present(store, collection) as (
        select f.store, f.collection
        from gc._stores(prefixes, finalizer) as s
        cross join lateral (
            select t.store, t.collection from gc.tombstones as t
            where t.store = s
            order by t.collection
            limit 1
        ) as f
        union all
        select n.store, n.collection
        from present as p
        cross join lateral (
            select t.store, t.collection from gc.tombstones as t
            where t.store = p.store and t.collection > p.collection
            order by t.collection
            limit 1
        ) as n
    )
    select p.store, p.collection from present as p
    where not gc._is_paused(p.collection, 'deletes')
$$;

comment on function gc._groups(text[], text) is
    'The stores in which something is to be done for a finalizer, each with the collections that '
    'have it there.';


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
    stores text[], collections text[], prefixes text[], several boolean, moment timestamptz,
    batch integer
)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select d.id
        from unnest(stores, collections) as s(store, collection)
        cross join lateral (
            select t.id from gc.tombstones as t
            where t.store = s.store and t.collection = s.collection and t.wait_for is null
                and t.due_at <= moment
                and (prefixes is null or t.url ^@ any (prefixes))
            order by t.wait_for, t.due_at
            limit batch
            for update skip locked
        ) as d
        limit batch
    ) || array(
        select d.id
        from unnest(stores, collections) as s(store, collection)
        cross join lateral (
            select t.id from gc.tombstones as t
            where several and t.store = s.store and t.collection = s.collection
                and t.wait_for = '0' and t.due_at <= moment
                and (prefixes is null or t.url ^@ any (prefixes))
            order by t.due_at
            limit batch
            for update skip locked
        ) as d
        limit batch
    );
end;
$$;

comment on function gc._unsettled(
    text[], text[], text[], boolean, timestamptz, integer
) is
    'Locks tombstones that are due and of which it is not known for which transactions to wait.';


-- Whoever has a transaction id already may have inserted a row before the tombstone could be seen;
-- whoever gets one later sees it. A snapshot knows ids only up to the last that is over, so one is
-- made to be over: then xmax lies beyond all that were given out before.
create function gc._settle(
    stores text[], collections text[], prefixes text[], several boolean, moment timestamptz,
    batch integer
)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    taken bigint[] := gc._unsettled(stores, collections, prefixes, several, moment, batch);
    oldest xid8;
    newest xid8;
begin
    if cardinality(taken) = 0 then
        return;
    end if;
    begin
        perform from gc.locks as l where l.name = 'claim' for key share;
        raise 'a transaction id is over' using errcode = 'ZG999';
    exception
        when sqlstate 'ZG999' then
            null;
    end;
    select gc._oldest_other(), pg_snapshot_xmax(pg_current_snapshot()) into oldest, newest;
    update gc.tombstones as t
    set wait_for = case
        when oldest is null and gc._durable_on() is null then '1' else newest
    end
    where t.id = any (taken);
end;
$$;

comment on function gc._settle(
    text[], text[], text[], boolean, timestamptz, integer
) is
    'Notes, for tombstones of objects that may be shared, which transactions a claim waits for.';


-- A wait_for beyond every snapshot of this server came with a dump from another: all of those
-- transactions have ended. Whether they have reached what durable_on names here is not known.
create function gc._end_waits(
    stores text[], collections text[], prefixes text[], batch integer
)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    newest xid8 := pg_snapshot_xmax(pg_current_snapshot());
    horizon xid8 := case when gc._durable_on() is not null then gc._durable_horizon() end;
    oldest xid8 := least(coalesce(gc._oldest_other(), newest), horizon);
begin
    update gc.tombstones as t
    set wait_for = case when t.wait_for <= newest or horizon is null then '1'::xid8 end
    where t.id = any (array(
        select d.id
        from unnest(stores, collections) as s(store, collection)
        cross join (values ('2'::xid8, oldest), (newest, '18446744073709551615')) as w(low, high)
        cross join lateral (
            select t.id from gc.tombstones as t
            where t.store = s.store and t.collection = s.collection
                and t.wait_for >= w.low and t.wait_for <= w.high
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

comment on function gc._end_waits(text[], text[], text[], integer) is
    'Notes, for tombstones whose transactions have all ended, and reached what they have to, that '
    'nothing is waited for any more.';


-- The group that has waited longest comes first.
create function gc._take(
    stores text[], collections text[], prefixes text[], several boolean, moment timestamptz,
    batch integer
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
            select s.store, s.collection, r, (
                    select t.due_at from gc.tombstones as t
                    where t.store = s.store and t.collection = s.collection and t.wait_for = r
                    order by t.due_at
                    limit 1
                ) as first
            from unnest(stores, collections) as s(store, collection)
            cross join unnest(case when several then '{1}' else '{0,1}' end::xid8[]) as r
            order by 4
        ) as g
        cross join lateral (
            select t.id from gc.tombstones as t
            where t.store = g.store and t.collection = g.collection and t.wait_for = g.r
                and t.due_at <= moment
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

comment on function gc._take(
    text[], text[], text[], boolean, timestamptz, integer
) is
    'Locks tombstones that can be handed out; what another session holds is left to it.';


-- A worker that stalled past its lease may claim again and only then speak about what it had: under
-- another id, whatever it says about the lease that is over means nothing.
create function gc._renumber(taken bigint[])
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    old bigint[] := array(
        select t.id from gc.tombstones as t where t.id = any (taken) and t.worker is not null
    );
    new bigint[];
begin
    if old = '{}' then
        return taken;
    end if;
    with renumbered as (
        update gc.tombstones as t set id = default where t.id = any (old) returning t.id
    )
    select array_agg(r.id) into new from renumbered as r;
    return array(select u from unnest(taken) as u where u <> all (old)) || new;
end;
$$;

comment on function gc._renumber(bigint[]) is
    'Gives tombstones whose lease is over another id; returns the ids that all of them have now.';


-- Who knows no version means any: a deletion of one waits as long as a row that may come back with
-- any, and that of any as long as one with a version.
create function gc._put_off_for_longer(taken bigint[], moment timestamptz)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    versions boolean := exists (select from gc.collections as c where c.generation is not null);
    put_off bigint[];
begin
    with longer as (
        update gc.tombstones as t
        set worker = null, due_at = d.due_at
        from (
            select l.id, max(o.due_at) from gc.tombstones as l
            join gc.tombstones as o
                on o.url = l.url and coalesce(o.generation = l.generation, true)
                and o.id <> all (taken)
            where l.id = any (taken)
                and (versions or l.finalizers is not null or l.causes is not null)
                and (o.generation is distinct from l.generation
                    or l.finalizers is not null or l.causes is not null)
            group by l.id
        ) as d(id, due_at)
        where t.id = d.id and d.due_at > moment
        returning t.id
    )
    select array_agg(l.id) into put_off from longer as l;
    return case when put_off is null then taken
        else array(select u from unnest(taken) as u where u <> all (put_off)) end;
end;
$$;

comment on function gc._put_off_for_longer(bigint[], timestamptz) is
    'Puts off tombstones of objects for which another one waits longer; returns the others.';


-- Several tombstones of one object are one deletion: one that waits longer stands for all, or one
-- that was leased, or the first. But one of which more is known, a finalizer or a cause, is never
-- dropped for one that lacks it; if the other waits longer, it waits for as long.
create function gc._without_duplicates(taken bigint[], moment timestamptz)
    returns bigint[]
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
                and o.id <> t.id and gc._says_all(o, t)
                and (
                    not gc._says_all(t, o)
                    or o.due_at > moment
                    or o.worker is not null and t.worker is null
                    or (o.worker is null) = (t.worker is null) and o.id < t.id
                )
        );
    return gc._put_off_for_longer(taken, moment);
end;
$$;

comment on function gc._without_duplicates(bigint[], timestamptz) is
    'Drops tombstones whose object another tombstone stands for; returns those that are left.';


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
    set worker = _lease_one.worker, due_at = until, held_up = null, counted = true
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
        set worker = _lease.worker, due_at = until, held_up = null, counted = true
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
            raise 'the look is over' using errcode = 'ZG999';
        exception
            when sqlstate 'ZG999' then
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


-- The address of a marker is nobody's object. In any case of its letters, because some stores do
-- not tell them apart.
create function gc._refuse_markers(leased bigint[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    update gc.tombstones as t
    set worker = null, due_at = clock_timestamp() + gc._backoff(t.failures),
        failures = t.failures + 1, last_error = 'refused: it is the address of a marker of blobgc'
    where t.id = any (leased) and lower(t.url) like '%/.blobgc';
end;
$$;

comment on function gc._refuse_markers(bigint[]) is
    'Puts off tombstones that name the marker of a prefix: it is never handed out.';


-- One step of the index for each group and each kind of tombstone, and further only over those that
-- are not under a prefix. What waits for a transaction is asked for again in a second.
create function gc._next_claim(prefixes text[], finalizer text)
    returns timestamptz
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select greatest(min(d.due_at), case
            when min(d.due_at) is not null and gc._has_gate() and gc._awaits_gate()
                then now() + interval '1 second'
        end)
    from gc._groups(prefixes, finalizer) as s
    cross join lateral (
        (
            select t.due_at from gc.tombstones as t
            where t.store = s.store and t.collection = s.collection and t.wait_for is null
                and (prefixes is null or t.url ^@ any (prefixes))
            order by t.wait_for, t.due_at
            limit 1
        )
        union all
        select o.due_at
        from unnest('{0,1}'::xid8[]) as r
        cross join lateral (
            select t.due_at from gc.tombstones as t
            where t.store = s.store and t.collection = s.collection and t.wait_for = r
                and (prefixes is null or t.url ^@ any (prefixes))
            order by t.due_at
            limit 1
        ) as o
        union all
        (
            select now() + interval '1 second' from gc.tombstones as t
            where t.store = s.store and t.collection = s.collection and t.wait_for > '1'
                and (prefixes is null or t.url ^@ any (prefixes))
            limit 1
        )
    ) as d(due_at)
$$;

comment on function gc._next_claim(text[], text) is
    'When the next tombstone can be claimed for a finalizer.';


-- What is pinned is put off first, so that of several tombstones of one object it is the one that
-- stays.
create function gc._choose(
    prefixes text[], finalizer text, moment timestamptz, batch integer
)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    several boolean := gc._are_several() or gc._durable_on() is not null;
    stores text[];
    collections text[];
    taken bigint[];
begin
    select array_agg(g.store), array_agg(g.collection) into stores, collections
    from gc._groups(prefixes, finalizer) as g;
    perform gc._settle(stores, collections, prefixes, several, moment, batch);
    perform gc._end_waits(stores, collections, prefixes, batch);
    if not gc._cleared(prefixes, finalizer) then
        return array[]::bigint[];
    end if;
    taken := gc._renumber(gc._take(stores, collections, prefixes, several, moment, batch));
    if cardinality(taken) = 0 then
        return taken;
    end if;
    taken := gc._put_off_pinned(taken);
    return gc._brake_claims(gc._without_duplicates(taken, moment));
end;
$$;

comment on function gc._choose(text[], text, timestamptz, integer) is
    'Locks the tombstones that a claim is to hand out.';


-- Nobody knows what a worker has done whose lease runs out without a word: whoever has read the url
-- before must not use it any more. Versions are noted before it is asked who is writing them: the
-- constraint on claimed objects does not show one to a row that knows no version (gc._probe).
create function gc._remember_leases(ids bigint[], versions boolean)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._remember(array_agg(t.url), array_agg(t.generation))
    from gc.tombstones as t
    where t.id = any (ids) and t.worker is not null and t.finalizers is null
        and (t.generation is not null) = versions
    having count(*) > 0;
end;
$$;

comment on function gc._remember_leases(bigint[], boolean) is
    'Notes objects, or versions, that are about to be deleted.';


create function gc.claim(
    worker text, batch integer default 1000, lease interval default '5 minutes',
    prefixes text[] default null, finalizer text default 'storage'
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
    until timestamptz;
    taken bigint[];
begin
    perform gc._require_read_committed('claim');
    perform gc._require_worker(worker);
    perform gc._require_batch(batch);
    perform gc._require_positive('lease', lease);
    perform gc._require_finalizer(finalizer);

    perform gc._commit_durably();
    perform gc._limit_lock_waits();
    perform gc._note_runner(worker, prefixes, nullif(finalizer, 'storage'));
    perform gc._note_lease(lease);
    taken := gc._choose(prefixes, finalizer, moment, batch);
    if cardinality(taken) = 0 then
        return;
    end if;
    until := clock_timestamp() + lease;
    perform gc._open_gate(until);
    if gc._has_gate() and gc._awaits_gate() then
        return;
    end if;
    taken := gc._lease(worker, taken, until);
    perform gc._remember_leases(taken, true);
    perform gc._return_uploads(taken);
    perform gc._step_back(gc._without_url(taken), 'its collection has no url any more');
    perform gc._refuse_markers(taken);
    perform gc._drop_used(taken, moment + (select s.statement_timeout from gc.settings as s));
    -- A row that was there when duplicates were looked for may have gone since, and may come back.
    taken := gc._without_duplicates(taken, moment);
    perform gc._remember_leases(taken, false);
    return query
        select t.id, t.collection, t.key, t.label, t.url, t.generation, t.size, t.due_at
        from gc.tombstones as t
        where t.id = any (taken) and t.worker = claim.worker
        order by t.id;
end;
$$;
revoke all on function gc.claim(text, integer, interval, text[], text) from public;

comment on function gc.claim(text, integer, interval, text[], text) is
    'Leases tombstones that are due to a worker, who then deletes their objects and confirms. With '
    'prefixes, each of which ends with a slash, only those whose url begins with one of them. '
    'With a finalizer, those for which that is next: its worker does its part, and confirms.';
