-- Life: how many rows of each collection are at which stage of their life, and how many bytes.
--
-- What is counted anyway is counted: queues, tombstones, totals. How many rows are live is what the
-- statistics say, and their sizes are those of a sample: the cost does not grow with the tables.

create function gc._average_size_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_average_size', $template$
create or replace function gc.{function}(share real)
    returns numeric
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {settings}
$template$, $template$
    select avg({size}) from {target} as {alias} tablesample system ($1)$template$)
    where c.size is not null
$$;

comment on function gc._average_size_sql(gc._shape) is
    'The function gc.<name>_average_size: of the rows in so many percent of the table.';


-- One bad collection, or row, costs only itself.
create function gc._average_size(c gc.collections, live bigint)
    returns numeric
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    found_size numeric;
begin
    if c.size is null then
        return null;
    end if;
    perform gc._require_readable(c);
    execute format('select gc.%I($1)', gc._object_name(c.name, '_average_size'))
    into found_size using least(100, 100000.0 / greatest(live, 1))::real;
    -- So that the locks are given back.
    raise 'that is all' using errcode = 'ZG999';
exception
    when sqlstate 'ZG999' then
        return found_size;
    when others then
        return null;
end;
$$;

comment on function gc._average_size(gc.collections, bigint) is
    'The average size of the objects of a collection, from about a thousand of its rows; null: it '
    'is not known.';


create function gc._tombstone_life(
    c gc.collections, out deleted bigint, out deleted_bytes numeric, out waiting bigint,
    out waiting_bytes numeric
)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select count(*) filter (where d.is_early), coalesce(sum(t.size) filter (where d.is_early), 0),
        count(*) filter (where not d.is_early),
        coalesce(sum(t.size) filter (where not d.is_early), 0)
    from gc.tombstones as t
    cross join lateral (
        select t.due_at > clock_timestamp() and t.worker is null and t.failures = 0
            and t.held_up is null
    ) as d(is_early)
    where t.collection = c.name
$$;

comment on function gc._tombstone_life(gc.collections) is
    'How many objects wait until an undo is over, and how many for a runner.';


create function gc._life(c gc.collections)
    returns table (stage text, rows bigint, bytes numeric, is_estimate boolean)
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    with live as materialized (
        select r.rows, gc._average_size(c, r.rows) as size from gc._rows_of(c.target) as r(rows)
    )
    select s.*
    from live as l
    cross join lateral gc._queue_status(c.name) as q
    cross join lateral gc._tombstone_life(c) as t
    cross join lateral gc._total_status(c) as d
    cross join lateral (
        select count(*) from gc.trash_rows as r
        where c.url is null and r.collection = c.name and r.relation = c.target
            and r.until > clock_timestamp()
    ) as k(kept)
    cross join lateral (values
        ('live', l.rows, round(l.rows * l.size), true),
        ('queued', q.queued - q.due, round((q.queued - q.due) * l.size), true),
        ('due', q.due, round(q.due * l.size), true),
        ('deleted', t.deleted + k.kept, t.deleted_bytes, false),
        ('waiting', t.waiting, t.waiting_bytes, false),
        ('gone', greatest(d.deleted_total::bigint - k.kept, 0), d.bytes_total, false)
    ) as s(stage, rows, bytes, is_estimate)
$$;

comment on function gc._life(gc.collections) is 'What gc.life tells about one collection.';


create function gc.life()
    returns table (
        collection text, stage text, rows bigint, bytes numeric, is_estimate boolean
    )
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set lock_timeout = '2s'
as $$
begin
    perform gc._limit_lock_waits();
    return query
        select c.name, l.stage, l.rows, l.bytes, l.is_estimate
        from gc.collections as c
        cross join lateral gc._life(c) with ordinality
            as l(stage, rows, bytes, is_estimate, place)
        order by c.name, l.place;
end;
$$;
revoke all on function gc.life() from public;

comment on function gc.life() is
    'For each collection, the stages of a row''s life in their order, with how many are there and '
    'their bytes: live, queued (for later), due (for a review), deleted (an undo is possible, the '
    'object is there), waiting (for a runner to delete the object), gone (for good). Bytes of the '
    'first three are estimates, from the sizes of a sample; null: not known.';
