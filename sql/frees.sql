-- What would go: with one row, or in the next week. Found out as by gc.preview, by doing it and
-- undoing it; bounded, because it is for people.

-- Whoever sees a row that is not committed has written it itself. The oldest of our transaction ids
-- is that of the whole transaction; those of its parts come later.
create function gc._is_own(written_by xid)
    returns boolean
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when w.later < 2147483648
            then pg_xact_status((o.first + w.later)::text::xid8) = 'in progress'
        else false
    end
    from (select pg_current_xact_id()::text::bigint) as o(first)
    cross join lateral (
        select (written_by::text::bigint - o.first) & 4294967295
    ) as w(later)
$$;

comment on function gc._is_own(xid) is
    'Whether this transaction has written a row that it sees.';


create function gc._own_entries(name text, after bigint, batch integer)
    returns tid[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    entries tid[];
begin
    execute format('select array(select q.ctid from gc.%I as q '
        'where q.entry > $1 and gc._is_own(q.xmin) order by q.entry limit $2)',
        gc._object_name(name, '_review_queue'))
    into entries using after, batch;
    return entries;
end;
$$;

comment on function gc._own_entries(text, bigint, integer) is
    'Entries of a queue that this transaction has added.';


create function gc._rows_to_force_sql(c gc._shape, r gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when r.owned is not null
            then format('select r.tableoid, r.ctid from %s join %s on %s', gc._wanted_sql(c),
                gc._owned_rows(c, r), gc._owned_pair(c, r, 'q'))
        else format('select r.* from %s cross join lateral (%s) as r', gc._wanted_sql(c),
            gc._referring_sql(c, r, format(' %1$s.tableoid, %1$s.ctid',
                coalesce((r.mention).alias, 'r'))))
    end
$$;

comment on function gc._rows_to_force_sql(gc._shape, gc._reference) is
    'The query for where the rows of a reference are that a key owns, or that keep it.';


-- What keeps the row goes before it: without that, it could not go. But a row that is collected
-- itself is not taken away with what it uses; PostgreSQL refuses then.
create function gc._force_out_sql(c gc._shape)
    returns setof text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select d.command
    from (
        select case when r.owned is null then 1000000 else r.depth end, r.owned, gc._render(
            'delete from {only} as o where o.ctid = any (array(select w.ctid from ({rows}) as w)) '
            'and (o.tableoid, o.ctid) in ({rows})',
            jsonb_build_object(
                'only', gc._only(r.referencing),
                'rows', gc._rows_to_force_sql(c, r)))
        from unnest(c.refs) as r
        where r.owned is not null or not exists (
            select from gc.collections as o where o.target = r.referencing
        )
        union all
        select 0, null, gc._render('delete from {only} as t using {wanted} where {t_is_q}',
            c.words || jsonb_build_object(
                'only', gc._only(c.target), 'wanted', gc._wanted_sql(c)))
    ) as d(depth, n, command)
    order by d.depth desc, d.n
$$;

comment on function gc._force_out_sql(gc._shape) is
    'The statements that delete a row with what it owns and what refers to it.';


create function gc._force_out(c gc.collections, key text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    command text;
    commands text[] := array(select gc._force_out_sql(gc._outline(c)));
begin
    perform set_config('search_path', gc._application_path(c.target), true);
    foreach command in array commands loop
        execute command using array[key];
    end loop;
    perform set_config('search_path', 'pg_catalog, pg_temp', true);
exception
    when foreign_key_violation or restrict_violation then  -- The latter from 18 on.
        raise 'the row % of "%" cannot go while another row has it', key, c.name
            using errcode = 'foreign_key_violation', detail = sqlerrm,
                hint = format('select * from gc.explain(%L, %L);', c.name, key);
end;
$$;

comment on function gc._force_out(gc.collections, text) is
    'Deletes a row, whatever refers to it: only ever in a transaction that is rolled back.';


create type gc._freed as (
    collection text, rows bigint, bytes numeric, owned_rows bigint, is_complete boolean
);

comment on type gc._freed is 'What would go of a collection.';


-- One review of what the last deletions have queued, whenever that would be due. What cannot be
-- reviewed stays, then as now.
create function gc._follow(name text, after jsonb, room integer)
    returns gc._review_result
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    nothing gc._review_result := (0, 0, 0, 0, 0, 0, 0);
    entries tid[] := gc._own_entries(name, (after ->> name)::bigint, 1000);
begin
    if cardinality(entries) = 0 then
        return nothing;
    end if;
    perform gc._is_current(name, c.fingerprint);
    return gc._review_batch(name, 1000, entries, room);
exception
    when sqlstate 'ZG003' then
        return nothing;
end;
$$;

comment on function gc._follow(text, jsonb, integer) is
    'Reviews what this transaction has queued in a collection.';


create function gc._frees(c gc.collections, row_key text)
    returns gc._freed[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    after jsonb := gc._last_entries();
    room integer := (select s.max_rows from gc.settings as s);
    until timestamptz := clock_timestamp() + (select s.statement_timeout from gc.settings as s);
    freed gc._freed[] := array(
        select (c.name, 1, coalesce(f.size, 0), (
            select coalesce(sum(n.rows), 0) from gc._counted(c, array[row_key], true) as o
            cross join lateral jsonb_to_recordset(o.found_rows) as n(rows bigint)), true)::gc._freed
        from gc._facts(c, array[row_key]) as f);
    r gc._review_result;
    name text;
    progress integer;
    is_complete boolean;
begin
    perform gc._force_out(c, row_key);
    loop
        progress := 0;
        is_complete := true;
        for name in select o.name from gc.collections as o order by o.name loop
            r := gc._follow(name, after, greatest(room, 1));
            progress := progress + r.reviewed - r.busy;
            room := room - r.touched;
            is_complete := is_complete and r.busy = 0;
            freed := freed || (name, r.deleted, r.bytes, r.touched - r.deleted, true)::gc._freed;
        end loop;
        exit when progress = 0;
        if room <= 0 or clock_timestamp() > until then
            is_complete := false;
            exit;
        end if;
    end loop;
    return freed || (c.name, 0, 0, 0, is_complete)::gc._freed;
end;
$$;

comment on function gc._frees(gc.collections, text) is
    'Deletes a row and what becomes garbage by that, and tells what that was.';


create function gc.frees(name text, key text)
    returns table (
        collection text, rows bigint, bytes numeric, owned_rows bigint, is_complete boolean
    )
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set lock_timeout = '2s'
as $$
declare
    c gc.collections := gc._collection(name);
    freed gc._freed[];
begin
    perform gc._require_owner();
    perform gc._require_read_committed('frees');
    perform gc._limit_lock_waits();
    begin
        perform gc._require_readable(c);
        -- The others' triggers are to follow what goes.
        perform gc._unreadable();
        freed := gc._frees(c, gc._canonical_key(c, key));
        raise 'that is all' using errcode = 'ZG999';
    exception
        when sqlstate 'ZG999' then
            null;
    end;
    return query
        select f.collection, sum(f.rows)::bigint, sum(f.bytes), sum(f.owned_rows)::bigint,
            (select bool_and(o.is_complete) from unnest(freed) as o)
        from unnest(freed) as f
        group by f.collection
        having sum(f.rows) > 0
        order by f.collection <> c.name, f.collection;
end;
$$;
revoke all on function gc.frees(text, text) from public;

comment on function gc.frees(text, text) is
    'What would go if this row went: rows and bytes of each collection, with what becomes garbage '
    'by that and is shared with nothing else. is_complete: false where there is more than a review '
    'may take, or another session has some of it, so that it is at least that. Found out by doing '
    'it and undoing it; what would keep the row is taken away first.';


-- What raises is looked for in halves: one bad row costs only itself.
create function gc._would_delete(name text, entries tid[], out gone bigint, out bytes numeric)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r gc._review_result;
    half integer := cardinality(entries) / 2;
begin
    select 0, 0 into gone, bytes;
    r := gc._review_batch(name, cardinality(entries), entries, s.max_rows) from gc.settings as s;
    select r.deleted, r.bytes into gone, bytes;
exception
    when others then
        if half > 0 then
            select sum(w.gone), sum(w.bytes) into gone, bytes
            from (values (entries[:half]), (entries[half + 1:])) as e(part)
            cross join lateral gc._would_delete(name, e.part) as w;
        end if;
end;
$$;

comment on function gc._would_delete(text, tid[]) is
    'Reviews entries of a queue, due or not, and tells how many rows that deletes.';


create function gc._sample(
    name text, since timestamptz, until timestamptz, out queued bigint, out entries tid[]
)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    execute format(
        'select count(*), (array_agg(q.ctid order by random()))[:100] from gc.%I as q '
        'where q.review_after >= $1 and q.review_after < $2',
        gc._object_name(name, '_review_queue'))
    into queued, entries using since, until;
end;
$$;

comment on function gc._sample(text, timestamptz, timestamptz) is
    'How many entries are due in a time, and a hundred of them by chance.';


create type gc._forecast as (
    collection text, day date, queued bigint, expected_rows bigint, expected_bytes numeric,
    sampled bigint
);

comment on type gc._forecast is 'A line of what gc.forecast tells.';


create function gc._forecast_day(c gc.collections, day date)
    returns gc._forecast
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    is_first boolean := day = (now() at time zone 'UTC')::date;
    queued bigint;
    entries tid[];
    sampled integer := 0;
    gone bigint := 0;
    bytes numeric := 0;
begin
    select s.queued, s.entries into queued, entries
    from gc._sample(c.name, case when is_first then '-infinity' else day::timestamptz end,
        (day + 1)::timestamptz) as s;
    if queued > 0 then
        perform gc._is_current(c.name, c.fingerprint);
        sampled := cardinality(entries);
        select w.gone, w.bytes into gone, bytes from gc._would_delete(c.name, entries) as w;
    end if;
    raise 'that is all' using errcode = 'ZG999';
exception
    -- ZG003: nothing of it is reviewed, so nothing goes.
    when sqlstate 'ZG999' or sqlstate 'ZG003' then
        return (c.name, day, queued, round(gone::numeric * queued / greatest(sampled, 1)),
            round(bytes * queued / greatest(sampled, 1)), sampled)::gc._forecast;
end;
$$;

comment on function gc._forecast_day(gc.collections, date) is
    'What is queued for a day, and what of that would go.';


create function gc.forecast()
    returns table (
        collection text, day date, queued bigint, expected_rows bigint, expected_bytes numeric,
        sampled bigint
    )
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set lock_timeout = '2s'
as $$
begin
    perform gc._require_read_committed('forecast');
    perform gc._limit_lock_waits();
    return query
        select f.*
        from gc.collections as c
        cross join generate_series(0, 6) as n
        cross join lateral gc._forecast_day(c, (now() at time zone 'UTC')::date + n) as f
        order by 1, 2;
end;
$$;
revoke all on function gc.forecast() from public;

comment on function gc.forecast() is
    'For each collection and each of the next seven days: how many entries are queued for it (what '
    'is overdue counts for today), and how many rows and bytes are likely to go, from a sample of '
    'a hundred that is reviewed, and undone, as by gc.preview.';
