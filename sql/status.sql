-- Seeing: what an operator asks first, and when there will be work.

create function gc._queue_status(
    name text, out queued bigint, out due bigint, out overdue_since timestamptz,
    out failing bigint, out last_error text
)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    queue name := gc._object_name(name, '_review_queue');
begin
    execute format(
        'select count(*), count(*) filter (where q.review_after <= now()), '
        'min(q.review_after) filter (where q.review_after <= now()), '
        'count(*) filter (where q.review_count > 0), '
        '(select f.last_error from gc.%1$I as f where f.last_error is not null '
        'order by f.review_after desc limit 1) from gc.%1$I as q', queue)
    into queued, due, overdue_since, failing, last_error;
end;
$$;

comment on function gc._queue_status(text) is 'What gc.status says about one review queue.';


create function gc._tombstone_status(
    name text, out waiting bigint, out claimed bigint, out failing bigint, out bytes numeric,
    out last_error text, out held_up bigint
)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select count(*) filter (where not c.claimed),
        count(*) filter (where c.claimed),
        count(*) filter (where t.failures > 0),
        coalesce(sum(t.size), 0),
        (array_agg(t.last_error order by t.due_at desc) filter (where t.failures > 0))[1],
        count(*) filter (
            where t.worker is null and t.due_at <= clock_timestamp() + interval '2 seconds'
                and (t.wait_for > gc._oldest_other() or gc._is_held(t.collection, t.key, t.url)))
    from gc.tombstones as t
    cross join lateral (
        select t.worker is not null and t.due_at > clock_timestamp()
    ) as c(claimed)
    where t.collection = name
$$;

comment on function gc._tombstone_status(text) is
    'What gc.status says about the tombstones of one collection.';


create function gc.status()
    returns table (
        collection text, target text, queued bigint, due bigint, overdue_since timestamptz,
        failing bigint, last_error text, tombstones_waiting bigint, tombstones_claimed bigint,
        tombstones_failing bigint, tombstones_last_error text, bytes_waiting numeric,
        deleted_today numeric, bytes_today numeric, deleted_total numeric, bytes_total numeric,
        paused boolean, why text, tombstones_held_up bigint, held_up_by text
    )
    language sql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
as $$
    select c.name, c.target::text, q.queued, q.due, q.overdue_since, q.failing, q.last_error,
        t.waiting, t.claimed, t.failing, t.last_error, t.bytes,
        d.deleted_today, d.bytes_today, d.deleted_total, d.bytes_total,
        c.problem is not null, c.problem, t.held_up,
        case when t.held_up > 0 then 'a running transaction or an upload' end
    from gc.collections as c
    cross join lateral gc._queue_status(c.name) as q
    cross join lateral gc._tombstone_status(c.name) as t
    cross join lateral (
        select coalesce(sum(n.deleted) filter (where n.day = current_date), 0),
            coalesce(sum(n.bytes) filter (where n.day = current_date), 0),
            coalesce(sum(n.deleted), 0), coalesce(sum(n.bytes), 0)
        from (
            select o.day, case when c.url is null then o.rows else o.objects end, o.bytes
            from gc.totals as o
            where o.collection = c.name
        ) as n(day, deleted, bytes)
    ) as d(deleted_today, bytes_today, deleted_total, bytes_total)
    order by c.name
$$;
revoke all on function gc.status() from public;

comment on function gc.status() is
    'One row a collection: what is queued, due, failing and waiting, what was deleted, and whether '
    'anything is in the way.';


create function gc._next_review(name text)
    returns timestamptz
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    due timestamptz;
begin
    execute format('select min(q.review_after) from gc.%I as q',
        gc._object_name(name, '_review_queue'))
    into due;
    return due;
end;
$$;

comment on function gc._next_review(text) is 'When the next review of a collection is due.';


-- A tombstone that cannot be handed out yet has stepped back when it was last asked for.
create function gc.next_due(prefixes text[] default null)
    returns timestamptz
    language sql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
as $$
    select least(
        now() + s.max_sleep,
        (select min(gc._next_review(c.name)) from gc.collections as c where c.problem is null),
        (
            select min(t.due_at) from gc.tombstones as t
            where prefixes is null or exists (
                select from unnest(prefixes) as p where starts_with(t.url, p))
        ),
        (
            select now() from gc.collections as c
            where c.problem is null
                and (c.scanning or exists (
                    select from gc.scan_requests as r where r.collection = c.name
                ))
            limit 1
        )
    )
    from gc.settings as s
$$;
revoke all on function gc.next_due(text[]) from public;

comment on function gc.next_due(text[]) is
    'When there will be work: what a runner sleeps until. Never further away than max_sleep.';
