-- Reviewing: all collections, a batch of each, in one transaction.
--
-- A batch is a handful of statements. If it raises, its rows are tried one by one, each in a
-- subtransaction: one bad row costs one bad row. A row that has failed is never in a batch again.

-- One row.
create table gc.turns (
    first_name text not null
);
insert into gc.turns select '' where not exists (select from gc.turns);

comment on table gc.turns is 'With which collection the next review begins.';
comment on column gc.turns.first_name is 'The first that the last review had no time for.';


create type gc._review_result as (
    reviewed integer, kept integer, deleted integer, busy integer, failed integer, bytes bigint,
    touched integer
);

comment on type gc._review_result is 'What a review did; "touched" counts owned rows too.';


create function gc._add(a gc._review_result, b gc._review_result)
    returns gc._review_result
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select (
        a.reviewed + b.reviewed, a.kept + b.kept, a.deleted + b.deleted, a.busy + b.busy,
        a.failed + b.failed, a.bytes + b.bytes, a.touched + b.touched
    )::gc._review_result
$$;

comment on function gc._add(gc._review_result, gc._review_result) is 'Two results as one.';


-- Never "all": that would fire what is pending in the caller's transaction, a trigger on a
-- temporary table of the caller's own for example, with the rights of blobgc's owner. A name stands
-- for every constraint in the schema that has it; gc._untrusted looks at these, too.
create function gc._check_deferred(name text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    named text;
begin
    -- Mostly there is none in the whole database, and no table has to be looked for.
    named := (
        select string_agg(distinct d.named, ', ')
        from gc._deferrable(array(
            select t.relation from gc._touched_by(gc._collection(name)) as t where t.written
        )) as d
    ) where exists (select from pg_constraint as k where k.condeferrable);
    if named is not null then
        perform set_config('search_path',
            gc._application_path((gc._collection(name)).target), true);
        perform gc._run('set constraints ' || named || ' immediate');
    end if;
end;
$$;

comment on function gc._check_deferred(text) is
    'Checks the deferred constraints that a review of this collection can have violated.';


create function gc._review_batch(name text, batch integer, entries tid[], room integer)
    returns gc._review_result
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    reviewed integer;
    kept integer;
    deleted integer;
    busy integer;
    bytes bigint;
    touched integer;
begin
    execute format(
        'select reviewed, kept, deleted, busy, bytes, touched from gc.%I($1, $2, $3, true)',
        gc._object_name(name, '_review'))
    into reviewed, kept, deleted, busy, bytes, touched using batch, entries, room;
    -- What a deferred constraint has to say, it says now, while one row can still be told apart.
    if touched > 0 then
        perform gc._check_deferred(name);
    end if;
    if deleted > 0 then
        insert into gc.totals (collection, rows) values (name, deleted);
    end if;
    return (reviewed, kept, deleted, busy, 0, bytes, touched)::gc._review_result;
end;
$$;

comment on function gc._review_batch(text, integer, tid[], integer) is
    'Calls the review function of a collection, and adds up what it deleted.';


create function gc._review_within(name text, batch integer, entries tid[], room integer)
    returns gc._review_result
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r gc._review_result := gc._review_batch(name, batch, entries, room);
begin
    perform gc._require_left(name, r.deleted);
    return r;
end;
$$;

comment on function gc._review_within(text, integer, tid[], integer) is
    'Reviews a batch; raises ZG007 if more would go than the brake lets through.';


-- What raises is tried again in halves, until the one entry is found that does: that is put off,
-- and the others go on. Each part is taken anew, because reviewing one entry may move another. A
-- lock that could not be obtained twice is not waited for again.
create function gc._review_in_parts(
    name text, batch integer, refused boolean, room integer, until timestamptz
)
    returns gc._review_result
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    total gc._review_result := (0, 0, 0, 0, 0, 0, 0);
    r gc._review_result;
    part integer := case when refused then 1 else (batch + 1) / 2 end;
    locked_out integer := 0;
    failed integer;
    entries tid[];
begin
    for attempt in 1 .. 2 * batch + 20 loop
        exit when total.reviewed >= batch or total.touched >= room or locked_out > 1
            or clock_timestamp() > until or gc._is_paused(name, 'reviews');
        entries := gc._due(name, refused, least(part, batch - total.reviewed));
        exit when cardinality(entries) = 0;
        begin
            r := gc._review_within(name, part, entries, room - total.touched);
            total := gc._add(total, r);
            part := part * 2;
        exception
            when sqlstate 'ZG007' then
                perform gc._pull_brake(name, 'reviews', cardinality(entries));
                exit;
            when query_canceled or others then
                locked_out := locked_out + (sqlstate = '55P03')::integer;
                if part = 1 or sqlstate = '57014' then
                    failed := gc._back_off(name, entries, sqlerrm);
                    total := gc._add(total, (failed, 0, 0, 0, failed, 0, 0)::gc._review_result);
                end if;
                exit when sqlstate = '57014';
                part := greatest(part / 2, 1);
        end;
    end loop;
    return total;
end;
$$;

comment on function gc._review_in_parts(text, integer, boolean, integer, timestamptz) is
    'Reviews what may raise; one entry that does is put off, and the others go on. With refused, '
    'those that have failed before; without, those that have not.';


-- What goes wrong in either is noted, and costs the collection nothing else.
create function gc._catch_up(name text, batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._follow_keys(name);
    perform gc._read_rows(name, batch);
    perform gc._purge_gone(name, batch);
    perform gc._scan_if_requested(name, batch);
exception
    when query_canceled or others then
        perform from gc.collections as c where c.name = _catch_up.name for update skip locked;
        if found then
            update gc.collections as c set scan_error = sqlerrm where c.name = _catch_up.name;
        end if;
end;
$$;

comment on function gc._catch_up(text, integer) is
    'Works out what triggers have missed.';


create function gc._has_work(c gc.collections)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    is_due boolean;
begin
    execute format('select exists (select from gc.%I as q where q.review_after <= now())',
        gc._object_name(c.name, '_review_queue'))
    into is_due;
    return is_due or c.scanning
        or exists (select from gc.scan_requests as r where r.collection = c.name)
        or exists (select from gc.key_changes as k where k.collection = c.name)
        or exists (
            select from gc.unread_rows as u where u.collection = c.name and u.due_at <= now()
        )
        or gc._has_old_gone(c) or gc._is_prepared(c, 0, clock_timestamp());
end;
$$;

comment on function gc._has_work(gc.collections) is
    'Whether a review of this collection would find anything to do.';


-- Where there is nothing to do, nothing is locked and nobody has to be trusted. That the catalog
-- has changed is noticed all the same, so that a problem is known before something is due.
create function gc._is_idle(c gc.collections)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return c.problem is null and not gc._has_work(c)
        and coalesce(gc._fingerprint(c) = c.fingerprint, false);
end;
$$;

comment on function gc._is_idle(gc.collections) is
    'Whether a collection needs no review: nothing is due, and nothing has changed.';


-- The lock comes first, outside of everything that may be undone, and is kept to the end.
create function gc._is_reviewable(name text)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
begin
    perform gc._require_own(name);
    if gc._is_idle(c) then
        return false;
    end if;
    perform gc._is_current(name, c.fingerprint);
    perform gc._note_problem(name, null);
    return true;
exception
    when query_canceled or others then
        perform gc._note_problem(name, sqlerrm);
        return false;
end;
$$;

comment on function gc._is_reviewable(text) is
    'Locks a collection for a review and makes its code fit. False if there is nothing to do or, '
    'with a note, if it cannot be reviewed.';


create function gc._can_begin(name text, batch integer, until timestamptz)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return gc._is_prepared(gc._collection(name), batch, until);
exception
    when query_canceled or others then
        perform gc._note_problem(name, sqlerrm);
        return false;
end;
$$;

comment on function gc._can_begin(text, integer, timestamptz) is
    'Has a review of a collection prepared. False if it is not to be now or, with a note, if that '
    'cannot be done.';


-- As many as are left go; when none is, the brake is pulled. A batch deletes no more rows than it
-- has entries.
create function gc._review_what_is_left(
    name text, batch integer, more integer, room integer, until timestamptz
)
    returns gc._review_result
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    left_over integer := least(gc._left(name, 'reviews'), batch);
begin
    if left_over > 0 then
        return gc._review_in_parts(name, left_over, false, room, until);
    end if;
    perform gc._pull_brake(name, 'reviews', more);
    return (0, 0, 0, 0, 0, 0, 0)::gc._review_result;
end;
$$;

comment on function gc._review_what_is_left(text, integer, integer, integer, timestamptz) is
    'Reviews after a batch that was undone because more would have gone than the brake allows.';


-- Before any row is locked. Whoever waits for a table, because somebody alters it or because code
-- is made again for it, must not have rows for which those wait who are writing that table.
create function gc._reviewable(names text[], until timestamptz)
    returns text[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    reviewable text[] := array[]::text[];
    name text;
begin
    foreach name in array names loop
        exit when clock_timestamp() > until;
        if not gc._is_paused(name, 'reviews') and gc._is_reviewable(name) then
            reviewable := reviewable || name;
        end if;
    end loop;
    return reviewable;
end;
$$;

comment on function gc._reviewable(text[], timestamptz) is
    'Those of the collections that can be reviewed and have something to do, locked for a review.';


create function gc._review_collection(name text, batch integer, room integer, until timestamptz)
    returns gc._review_result
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r gc._review_result := (0, 0, 0, 0, 0, 0, 0);
    more integer;
begin
    if gc._is_paused(name, 'reviews') or not gc._can_begin(name, batch, until) then
        return r;
    end if;
    if (gc._collection(name)).collect = 'deleted' then
        perform gc._catch_up(name, batch);
        return r;
    end if;
    begin
        r := gc._review_within(name, batch, null, room);
    exception
        when sqlstate 'ZG007' then
            get stacked diagnostics more = pg_exception_detail;
            r := gc._review_what_is_left(name, batch, more, room, until);
        when query_canceled or others then
            r := gc._review_in_parts(name, batch, false, room, until);
    end;
    -- What has failed before is looked at one by one, a few in each review.
    r := gc._add(r, gc._review_in_parts(name, least(batch, 100), true,
        room - r.touched, least(until, clock_timestamp() + interval '10 seconds')));
    if not gc._is_paused(name, 'reviews') then
        perform gc._catch_up(name, batch);
    end if;
    return r;
end;
$$;

comment on function gc._review_collection(text, integer, integer, timestamptz) is
    'Reviews a batch of one collection that is locked for that, whatever happens in it.';


create function gc._in_turn()
    returns text[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select coalesce(array_agg(c.name order by c.name < t.first_name, c.name), '{}')
        from gc.collections as c
        cross join (
            select coalesce(max(o.first_name), '') from gc.turns as o
        ) as t(first_name)
    );
end;
$$;

comment on function gc._in_turn() is 'The collections in the order in which they are reviewed.';


create function gc._begin_next_with(name text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform from gc.turns for update skip locked;
    if found then
        update gc.turns set first_name = name;
    end if;
end;
$$;

comment on function gc._begin_next_with(text) is
    'Notes where a review has stopped because its time was over.';


-- What time and room is left is shared out, and a review that runs out of time is followed by one
-- that begins where it stopped, so that no collection can starve the others. lock_timeout is named
-- here so that what is set inside ends with the function. A preview may have made code before.
create function gc.review(batch integer default 1000)
    returns table (
        collection text, reviewed integer, kept integer, deleted integer, busy integer,
        failed integer, bytes bigint
    )
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '2s'
as $$
declare
    names text[] := gc._in_turn();
    reviewable text[];
    room integer := (select s.max_rows from gc.settings as s);
    until timestamptz := clock_timestamp() + (select s.statement_timeout from gc.settings as s);
    results jsonb := jsonb_build_object();
    r gc._review_result;
begin
    perform gc._require_read_committed('review');
    perform gc._require_batch(batch);
    perform gc._limit_lock_waits();
    perform gc._wait_for_no_writer();
    perform gc._note_runner('', null);
    reviewable := gc._reviewable(names, until);
    for i in 1 .. cardinality(names) loop
        if clock_timestamp() > until then
            perform gc._begin_next_with(names[i]);
            exit;
        end if;
        r := case when names[i] = any (reviewable) then gc._review_collection(names[i], batch,
            ceil(room::numeric / (cardinality(names) - i + 1))::integer, clock_timestamp()
                + greatest(until - clock_timestamp(), '0') / (cardinality(names) - i + 1))
            else (0, 0, 0, 0, 0, 0, 0)::gc._review_result end;
        room := greatest(room - r.touched, 0);
        results := results || jsonb_build_object(names[i], r);
    end loop;
    perform gc._purge_log(batch);
    perform gc._purge_trash(batch);
    perform gc._purge_holds(batch);
    perform gc._purge_pins(batch);
    perform gc._purge_runners(batch);
    perform gc._forget_deleted(batch);
    perform gc._tend_gate();
    return query
        select e.key, o.reviewed, o.kept, o.deleted, o.busy, o.failed, o.bytes
        from jsonb_each(results) as e
        cross join lateral jsonb_populate_record(null::gc._review_result, e.value) as o
        order by e.key;
end;
$$;
revoke all on function gc.review(integer) from public;

comment on function gc.review(integer) is
    'Reviews what is due in every collection, a batch of each, and deletes what is garbage.';
