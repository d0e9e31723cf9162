-- Scanning: rows that were there before tracking, or whose events were missed, are found by going
-- over the whole collection in the order of its key, a batch at a time.

-- Append-only, for a trigger writes it: a TRUNCATE that nobody could follow row by row.
create table gc.scan_requests (
    collection text not null,
    requested_at timestamptz not null default now(),
    reason text not null
);

comment on table gc.scan_requests is
    'Collections whose events were missed: the next reviews go over all their rows.';
comment on column gc.scan_requests.collection is 'The collection.';
comment on column gc.scan_requests.requested_at is 'Since when.';
comment on column gc.scan_requests.reason is 'What made it necessary.';


create function gc._note_missed(collection text, relation text)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    insert into gc.scan_requests (collection, reason)
    values (_note_missed.collection, format('%s, or what refers to it, has changed', relation))
$$;

comment on function gc._note_missed(text, text) is
    'Asks for a scan: a statement could not be followed because a table has changed.';


create function gc._parsed_key_sql(name text, k gc._key_columns, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when cardinality(k.names) = 1 then format('%s::%s', source, k.types[1])
        else (
            select string_agg(
                format('(%s::gc.%I).%I', source, gc._object_name(name, '_key'), u),
                ', ' order by n)
            from unnest(k.names) with ordinality as n(u, n)
        )
    end
$$;

comment on function gc._parsed_key_sql(text, gc._key_columns, text) is
    'The columns of a key that is given as text, of a collection of this name.';


create function gc._parsed_key_sql(c gc._shape, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select gc._parsed_key_sql(c.name, c.key, source) $$;

comment on function gc._parsed_key_sql(gc._shape, text) is
    'The columns of a key that is given as text.';


-- A row whose condition may become true by time is queued for that time.
create function gc._scan_words(c gc._shape)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object('event', e.event, 'asleep', '', 'wakes', '',
            'review_after', format('gc.review_after(%s)', e.event))
        || case when c.turns is null then '{}' else jsonb_build_object(
            'asleep', gc._render($template$
cross join lateral (
    select ({condition}) is true, case when ({condition}) is not true then {waking} end
    from {target} as {alias}
    where {row_is_q}
) as s(holds, wakes)$template$, c.words || jsonb_build_object(
                'condition', c.condition, 'waking', gc._waking_sql(c, 'null'),
                'row_is_q', gc._pair((c.key).names, c.alias, (c.key).queue_names, 'q',
                    (c.key).operators))),
            'wakes', 'and (s.holds or s.wakes is not null)',
            'review_after', format('greatest(gc.review_after(%s), s.wakes)', e.event)) end
    from (select quote_literal(gc._event(c.events, c.name || '_scan'))) as e(event)
$$;

comment on function gc._scan_words(gc._shape) is
    'What stands for the time at which a row that a scan has found is reviewed.';


-- An entry that somebody has locked is no reason to pass a row over: a review that looked before
-- the scan was asked for, by another definition perhaps, may be about to take it away. Who locks it
-- later looks later. Nobody waits: a review leaves entries that a scan has locked to the next one.
-- Nor is one that sleeps until another condition would have come true; by the same condition, the
-- times differ by a day at most.
create function gc._is_queued_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
exists (
    select from {queue} as later
    where {later_is_q} and (
        later.asleep_since is null
        or later.review_after <= {review_after} + interval '1 day'
    )
    for key share skip locked
)$template$, c.words || gc._scan_words(c))
$$;

comment on function gc._is_queued_sql(gc._shape) is
    'The condition that a scan need not queue a row, because it has an entry.';


create function gc._scan_statement_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
with seen ({queue_keys}) as materialized (
    (
        select {t_keys} from {target} as t where $2 is null order by {t_keys} limit $1
    )
    union all
    (
        select {t_keys} from {target} as t where ({t_keys}) {greater} ({after})
        order by {t_keys}
        limit $1
    )
),
queued as (
    insert into {queue} ({queue_keys}, event, review_after)
    select {q_keys}, {event}, {review_after}
    from seen as q
    {asleep}
    where not (
            {kept}
        )
        and not {is_queued}
        {wakes}
)
select count(*)::integer, (
    select {q_key_text} from seen as q order by row({q_keys}) desc limit 1
)
from seen$template$,
        c.words || gc._scan_words(c) || jsonb_build_object(
            'kept', concat_ws(E'\nor ', gc._links_lead_sql(c), gc._kept_sql(c)),
            'is_queued', gc._is_queued_sql(c),
            'greater', replace(gc._row_equals(k), '=', '>'),
            -- A domain may refuse a null, with which a scan begins.
            'after', format(case
                    when cardinality(k.names) = 1 then 'case when $2 is not null then %s end'
                    else '%s'
                end, gc._parsed_key_sql(c, '$2'))))
    from (select (c.key).*) as k
$$;

comment on function gc._scan_statement_sql(gc._shape) is
    'Goes over rows in the order of their key, and queues those that are garbage.';


create function gc._scan_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_scan', $template$
create or replace function gc.{function}(
    batch integer, after text, out seen integer, out last text
)
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {by_index}
    {settings}
$template$, $template$
    {statement}$template$,
        jsonb_build_object(
            'statement', gc._scan_statement_sql(c)))
$$;

comment on function gc._scan_sql(gc._shape) is 'The function gc.<name>_scan.';


create function gc._scan_step(name text, batch integer)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    cursor text := (select c.scan_cursor from gc.collections as c
        where c.name = _scan_step.name for update);
    seen integer;
    last text;
begin
    perform gc._require_own(name);
    if (gc._collection(name)).collect = 'deleted' then
        update gc.collections as c
        set scanning = false, scan_cursor = null, scan_awaits = null, scan_error = null
        where c.name = _scan_step.name;
        return 0;
    end if;
    execute format('select seen, last from gc.%I($1, $2)', gc._object_name(name, '_scan'))
    into seen, last using batch, cursor;
    update gc.collections as c
    set scan_cursor = last, scan_error = null,
        scanning = scanning and (seen > 0 or scan_awaits is not null)
    where c.name = _scan_step.name;
    return seen;
end;
$$;

comment on function gc._scan_step(text, integer) is
    'Goes over the next rows of a collection and queues those that nothing refers to.';


create function gc.scan(name text, batch integer default 1000)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
begin
    perform gc._require_owner();
    perform gc._require_batch(batch);
    return gc._scan_step(c.name, batch);
end;
$$;
revoke all on function gc.scan(text, integer) from public;

comment on function gc.scan(text, integer) is
    'Queues rows that were there before tracking or whose events were missed. Goes over one batch '
    'a call and returns how many rows that were; 0 at the end, and then it begins anew. Where only '
    'deleted rows are collected there is nothing to queue, and it returns 0.';


-- Their triggers may be those of an earlier definition, which saw no reason to queue what they have
-- written, and nobody else sees it yet. Who locks the table later has the triggers of now.
create function gc._writers(target regclass)
    returns text[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select distinct l.virtualtransaction from pg_locks as l
        where l.locktype = 'relation' and l.granted and l.pid is distinct from pg_backend_pid()
            and l.mode like '%Exclusive%' and l.mode <> 'ShareUpdateExclusiveLock'
            and l.relation in (select gc._partitions(target))
            and l.database = (
                select d.oid from pg_database as d where d.datname = current_database()
            )
    );
end;
$$;

comment on function gc._writers(regclass) is
    'The other transactions that may have written rows of a table.';


-- After a TRUNCATE, for example. A scan that somebody else is at is left to them. The requests come
-- first: who has written when one was committed is awaited.
create function gc._scan_if_requested(name text, batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections;
    awaited text[];
begin
    select o.* into c from gc.collections as o
    where o.name = _scan_if_requested.name
        and (o.scanning or exists (
            select from gc.scan_requests as r where r.collection = o.name
        ))
    for update skip locked;
    if not found then
        return;
    end if;
    awaited := c.scan_awaits;
    if not c.scanning then
        delete from gc.scan_requests as r where r.collection = c.name;
        awaited := gc._writers(c.target);
        update gc.collections as o
        set scanning = true, scan_cursor = null, scan_awaits = awaited
        where o.name = c.name;
    end if;
    if awaited is not null then
        if awaited && gc._writers(c.target) then
            return;
        end if;
        update gc.collections as o set scan_cursor = null, scan_awaits = null
        where o.name = c.name;
    end if;
    perform gc._scan_step(c.name, batch);
end;
$$;

comment on function gc._scan_if_requested(text, integer) is
    'Carries a scan on that missed events have made necessary.';
