-- Reviewing: all collections, a batch of each, in one transaction.
--
-- A batch is a handful of statements. If it raises, its rows are tried one by one, each in a
-- subtransaction: one bad row costs one bad row. A row that has failed is never in a batch again.

create function gc._due(name text, failed boolean, batch integer)
    returns tid[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    entries tid[];
begin
    execute format(
        'select array(select q.ctid from gc.%I as q where q.review_after <= now() and %s '
        'order by q.review_after limit $1 for update skip locked)',
        gc._object_name(name, '_review_queue'),
        case when failed then 'q.review_count > 0' else 'q.review_count = 0' end)
    into entries using batch;
    return entries;
end;
$$;

comment on function gc._due(text, boolean, integer) is
    'Locks entries of a queue that are due: those that failed before, or those that did not.';


-- Counted from now: what was overdue for days is not due again at once. Earlier entries of the key
-- know of earlier failures.
create function gc._back_off(name text, entries tid[], error text)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    changed integer;
begin
    execute gc._render(
        'update {queue} as q '
        'set review_after = now() + gc._backoff(f.failures), review_count = f.failures + 1, '
        'last_error = $2 '
        'from (select q.ctid, max(later.review_count) '
        'from {queue} as q join {queue} as later on {later_is_q} '
        'where q.ctid = any ($1) group by q.ctid) as f(place, failures) '
        'where q.ctid = f.place', gc._words(gc._collection(name)))
    using entries, error;
    get diagnostics changed = row_count;
    return changed;
end;
$$;

comment on function gc._back_off(text, tid[], text) is
    'Puts failed reviews off, longer each time, and keeps the error.';


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
    named text := (
        select string_agg(distinct d.named, ', ')
        from gc._deferrable(array(
            select t.relation from gc._touched_by(gc._collection(name)) as t where t.written
        )) as d
    );
begin
    if named is not null then
        perform gc._run('set constraints ' || named || ' immediate');
    end if;
end;
$$;

comment on function gc._check_deferred(text) is
    'Checks the deferred constraints that a review of this collection can have violated.';


create function gc._review_batch(
    name text, batch integer, entries tid[], room integer,
    out reviewed integer, out kept integer, out deleted integer, out busy integer,
    out bytes bigint, out touched integer
)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._require_own(name);
    execute format(
        'select reviewed, kept, deleted, busy, bytes, touched from gc.%I($1, $2, $3)',
        gc._object_name(name, '_review'))
    into reviewed, kept, deleted, busy, bytes, touched using batch, entries, room;
    -- What a deferred constraint has to say, it says now, while one row can still be told apart.
    if touched > 0 then
        perform gc._check_deferred(name);
    end if;
    if deleted > 0 then
        insert into gc.totals (collection, rows) values (name, deleted);
    end if;
end;
$$;

comment on function gc._review_batch(text, integer, tid[], integer) is
    'Calls the review function of a collection, and adds up what it deleted.';


-- Entries are taken one after the other, because reviewing one may move another.
create function gc._review_singly(
    name text, batch integer, refused boolean, room integer, until timestamptz,
    out reviewed integer, out kept integer, out deleted integer, out busy integer,
    out failed integer, out bytes bigint, out touched integer
)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    entries tid[];
    r record;
begin
    select 0, 0, 0, 0, 0, 0, 0 into reviewed, kept, deleted, busy, failed, bytes, touched;
    for i in 1 .. batch loop
        entries := gc._due(name, refused, 1);
        exit when cardinality(entries) = 0 or clock_timestamp() > until or touched >= room;
        begin
            select b.* into r from gc._review_batch(name, 1, entries, room - touched) as b;
            kept := kept + r.kept;
            deleted := deleted + r.deleted;
            busy := busy + r.busy;
            bytes := bytes + r.bytes;
            touched := touched + r.touched;
            reviewed := reviewed + r.reviewed;
        exception
            when query_canceled or others then
                failed := failed + gc._back_off(name, entries, sqlerrm);
                exit when sqlstate = '57014';
        end;
    end loop;
    reviewed := reviewed + failed;
end;
$$;

comment on function gc._review_singly(text, integer, boolean, integer, timestamptz) is
    'Reviews entries one by one; one that raises is put off, and the others go on. With refused, '
    'those that have failed before; without, those that have not.';


-- The row may be locked by a session that makes the code again: it is not waited for.
create function gc._note_problem(name text, problem text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform from gc.collections as c
    where c.name = _note_problem.name and c.problem is distinct from _note_problem.problem
    for update skip locked;
    if found then
        update gc.collections as c
        set problem = _note_problem.problem,
            problem_since = case
                when _note_problem.problem is null then null else coalesce(c.problem_since, now())
            end
        where c.name = _note_problem.name;
    end if;
end;
$$;

comment on function gc._note_problem(text, text) is
    'Notes why a collection is not reviewed, or with null that it is again.';


create function gc._review_collection(
    name text, batch integer, room integer, until timestamptz,
    out reviewed integer, out kept integer, out deleted integer, out busy integer,
    out failed integer, out bytes bigint, out touched integer
)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    raised boolean := false;
    r record;
begin
    select 0, 0, 0, 0, 0, 0, 0 into reviewed, kept, deleted, busy, failed, bytes, touched;
    begin
        select b.reviewed, b.kept, b.deleted, b.busy, b.bytes, b.touched
        into reviewed, kept, deleted, busy, bytes, touched
        from gc._review_batch(name, batch, null, room) as b;
        perform gc._note_problem(name, null);
    exception
        when sqlstate 'ZG003' then
            perform gc._note_problem(name, sqlerrm);
            return;
        when query_canceled then
            failed := gc._back_off(name, gc._due(name, false, batch), sqlerrm);
            reviewed := failed;
            return;
        when others then
            raised := true;
            select 0, 0, 0, 0, 0, 0 into reviewed, kept, deleted, busy, bytes, touched;
    end;
    for r in
        select s.*
        from unnest(case when raised then array[false, true] else array[true] end) as o(refused)
        cross join lateral gc._review_singly(name, batch, o.refused, room - touched, until) as s
    loop
        kept := kept + r.kept;
        deleted := deleted + r.deleted;
        busy := busy + r.busy;
        failed := failed + r.failed;
        bytes := bytes + r.bytes;
        touched := touched + r.touched;
        reviewed := reviewed + r.reviewed;
    end loop;
    perform gc._scan_if_requested(name, batch);
end;
$$;

comment on function gc._review_collection(text, integer, integer, timestamptz) is
    'Reviews a batch of one collection, whatever happens in it.';


-- lock_timeout is named here so that what is set inside ends with the function.
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
    set jit = off
as $$
declare
    names text[] := array(select c.name from gc.collections as c order by c.name);
    room integer := (select s.max_rows from gc.settings as s);
    until timestamptz := clock_timestamp() + (select s.statement_timeout from gc.settings as s);
    touched integer;
begin
    perform gc._require_read_committed('review');
    perform gc._require_batch(batch);
    perform set_config('lock_timeout',
        (extract(epoch from s.lock_timeout) * 1000)::integer || 'ms', true)
    from gc.settings as s;
    for i in 1 .. cardinality(names) loop
        exit when clock_timestamp() > until;
        -- What is left is shared out, so that one collection cannot starve the others.
        select names[i], r.reviewed, r.kept, r.deleted, r.busy, r.failed, r.bytes, r.touched
        into collection, reviewed, kept, deleted, busy, failed, bytes, touched
        from gc._review_collection(
            names[i], batch, ceil(room::numeric / (cardinality(names) - i + 1))::integer, until
        ) as r;
        room := greatest(room - touched, 0);
        return next;
    end loop;
    perform gc._purge_log(batch);
    perform gc._purge_holds(batch);
end;
$$;
revoke all on function gc.review(integer) from public;

comment on function gc.review(integer) is
    'Reviews what is due in every collection, a batch of each, and deletes what is garbage.';
