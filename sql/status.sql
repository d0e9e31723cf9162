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


create function gc._oldest_writer()
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select w.who
    from (
        select format('session %s of %s in %s', a.pid, a.usename, a.datname), age(a.backend_xid)
        from pg_stat_activity as a
        where a.backend_xid is not null and a.pid <> pg_backend_pid()
        union all
        select format('prepared transaction %L in %s', x.gid, x.database), age(x.transaction)
        from pg_prepared_xacts as x
    ) as w(who, age)
    order by w.age desc
    limit 1
$$;

comment on function gc._oldest_writer() is
    'Who has the oldest transaction that has written something; null: nobody.';


create function gc._tombstone_status(
    name text, out waiting bigint, out claimed bigint, out failing bigint, out bytes numeric,
    out last_error text, out held_up bigint, out held_up_by text, out overdue_since timestamptz
)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with stopped as materialized (select s.* from gc._stopped() as s)
    select count(*) filter (where not c.claimed),
        count(*) filter (where c.claimed),
        count(*) filter (where t.failures > 0),
        coalesce(sum(t.size), 0),
        (array_agg(t.last_error order by t.due_at desc) filter (where t.failures > 0))[1],
        count(*) filter (where c.held_up is not null),
        (array_agg(c.held_up order by t.created_at) filter (where c.held_up is not null))[1],
        min(t.due_at) filter (where t.due_at <= clock_timestamp())
    from gc.tombstones as t
    cross join (select gc._has_gate() and gc._awaits_gate()) as g(waits)
    cross join (select gc._why_not_durable(), gc._oldest_writer()) as d(why, writer)
    cross join lateral (
        select t.worker is not null and t.due_at > clock_timestamp(), case
            when t.worker is null and t.due_at <= clock_timestamp()
                and exists (select from stopped as s where t.url ^@ s.prefix)
                then (select s.why from stopped as s where t.url ^@ s.prefix limit 1)
            when t.wait_for > '1' then coalesce(d.why,
                format('a transaction older than %s has not ended%s', t.wait_for,
                    ', perhaps that of ' || d.writer))
            when g.waits and t.worker is null and t.due_at <= clock_timestamp()
                then 'a transaction that was writing when it was first asked for has not ended'
            else t.held_up
        end
    ) as c(claimed, held_up)
    where t.collection = name
$$;

comment on function gc._tombstone_status(text) is
    'What gc.status says about the tombstones of one collection.';


create function gc._total_status(
    c gc.collections, out deleted_today numeric, out bytes_today numeric,
    out deleted_total numeric, out bytes_total numeric, out last_deleted_at timestamptz
)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(sum(n.deleted) filter (where n.day = current_date), 0),
        coalesce(sum(n.bytes) filter (where n.day = current_date), 0),
        coalesce(sum(n.deleted), 0), coalesce(sum(n.bytes), 0),
        max(n.counted_at) filter (where n.deleted > 0)
    from (
        select o.day, case when c.url is null then o.rows else o.objects end, o.bytes, o.counted_at
        from gc.totals as o
        where o.collection = c.name
    ) as n(day, deleted, bytes, counted_at)
$$;

comment on function gc._total_status(gc.collections) is
    'What gc.status says about what was deleted of a collection.';


-- PostgreSQL looks at the table to print an index, and waits for whoever has it locked: there is
-- no advice then.
create function gc._advice(c gc.collections)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '100ms'
as $$
begin
    return gc._missing_url_index(c);
exception
    when lock_not_available then
        return null;
end;
$$;

comment on function gc._advice(gc.collections) is
    'What gc.status recommends for a collection; null: nothing, or it cannot be told now.';


create function gc.status()
    returns table (
        collection text, target text, queued bigint, due bigint, overdue_since timestamptz,
        failing bigint, last_error text, tombstones_waiting bigint, tombstones_claimed bigint,
        tombstones_failing bigint, tombstones_last_error text, bytes_waiting numeric,
        deleted_today numeric, bytes_today numeric, deleted_total numeric, bytes_total numeric,
        blocked boolean, why text, tombstones_held_up bigint, held_up_by text,
        tombstones_overdue_since timestamptz, advice text, paused text, paused_by text,
        paused_why text, paused_until timestamptz, last_deleted_at timestamptz,
        kept_rows bigint, kept_bytes numeric
    )
    language sql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
as $$
    select c.name, c.target::text, q.queued, q.due, q.overdue_since, q.failing, q.last_error,
        t.waiting, t.claimed, t.failing, t.last_error, t.bytes,
        d.deleted_today, d.bytes_today, d.deleted_total, d.bytes_total,
        c.problem is not null, coalesce(c.problem, 'a scan failed: ' || c.scan_error,
            (select 'a row that went cannot be worked out: ' || min(u.last_error)
                from gc.unread_rows as u where u.collection = c.name),
            (select s.why from gc._stopped() as s
                where c.url_prefix ^@ s.prefix or s.prefix ^@ coalesce(c.url_prefix, '') limit 1)),
        t.held_up, t.held_up_by, t.overdue_since, gc._advice(c),
        p.paused, p.paused_by, p.paused_why, p.paused_until, d.last_deleted_at, k.rows, k.bytes
    from gc.collections as c
    cross join lateral gc._queue_status(c.name) as q
    cross join lateral gc._tombstone_status(c.name) as t
    cross join lateral gc._trash_status(c.name) as k
    cross join lateral gc._pause_status(c.name) as p
    cross join lateral gc._total_status(c) as d
    order by c.name
$$;
revoke all on function gc.status() from public;

comment on function gc.status() is
    'One row a collection: what is queued, due, failing and waiting, what was deleted and when '
    'last, whether anything is in the way (blocked, why), what is paused by whom, and how much is '
    'kept for an undo.';


create function gc.next_due(prefixes text[] default null)
    returns timestamptz
    language sql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
as $$
    select least(
        now() + s.max_sleep,
        (
            select min(gc._next_review(c.name)) from gc.collections as c
            where c.problem is null and not gc._is_paused(c.name, 'reviews')
        ),
        (select min(p.until) from gc.pauses as p where p.until > clock_timestamp()),
        gc._next_claim(prefixes, 'storage'),
        (
            select now() from gc.collections as c
            where c.problem is null and not gc._is_paused(c.name, 'reviews')
                and c.scan_error is null
                and (c.scanning or exists (
                    select from gc.scan_requests as r where r.collection = c.name
                ))
                and (c.scan_awaits is null or not c.scan_awaits && gc._writers(c.target))
            limit 1
        ),
        (
            select min(u.due_at) from gc.unread_rows as u
            join gc.collections as c on c.name = u.collection and c.problem is null
            where not gc._is_paused(c.name, 'reviews')
        )
    )
    from gc.settings as s
$$;
revoke all on function gc.next_due(text[]) from public;

comment on function gc.next_due(text[]) is
    'When there will be work: what a runner sleeps until. Never further away than max_sleep. With '
    'prefixes, only objects that are under one of them count.';


create function gc.rest(worked interval, pace numeric default null)
    returns interval
    language plpgsql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    share numeric := coalesce(pace, (select s.pace from gc.settings as s));
begin
    if share <= 0 or share > 1 or share = 'NaN' then
        raise 'a pace of % is not possible', share
            using errcode = 'invalid_parameter_value',
                detail = 'It is a share of the time.',
                hint = 'Pass a number above 0, up to 1.';
    end if;
    -- A clock that was set back has not worked at all; what waited for hours was no work.
    return (
        select least(greatest(worked, '0') * ((1 - share) / share)::double precision, s.max_sleep)
        from gc.settings as s
    );
end;
$$;
revoke all on function gc.rest(interval, numeric) from public;

comment on function gc.rest(interval, numeric) is
    'How long a runner rests after calls of gc.review, or of gc.claim and gc.confirm, that took so '
    'long together: so that these take no greater share of its time than the pace, which is that '
    'of gc.settings unless it is given. Never longer than max_sleep.';
