-- Preview: what the next review would do, by doing it and undoing it.
--
-- The review is the real one, in a subtransaction that is rolled back; so it cannot disagree with
-- what follows. What it has found out is carried out of there in variables; what it has locked is
-- given back. Triggers of the application's own fire, and are rolled back as well: one that does
-- something outside of the database does that.

create function gc._last_entries()
    returns jsonb
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(jsonb_object_agg(c.name, coalesce(pg_sequence_last_value(
        pg_get_serial_sequence(format('gc.%I', gc._object_name(c.name, '_review_queue')), 'entry')
        ::regclass), 0)), '{}')
    from gc.collections as c
$$;

comment on function gc._last_entries() is 'The last entry that was made in each queue.';


create type gc._queued as (
    n bigint, entry bigint, queued_key text, row_key text, event text, review_after timestamptz,
    review_count integer
);

comment on type gc._queued is
    'An entry of a queue before a review: the key as the entry writes it, and as its row does; '
    'null: there is no row.';


create type gc._decided as (collection text, key text, event text, verdict text, detail text);

comment on type gc._decided is 'What a review decided about a row.';


create type gc._preview as (
    collection text, key text, label text, url text, size bigint, event text, verdict text,
    detail text, with_it jsonb
);

comment on type gc._preview is 'A line of what gc.preview tells.';


-- A review drops entries that have a later one, and takes on others instead, up to ten times.
create function gc._next_entries_sql(c gc._shape, bare boolean)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
select array_agg((o.n, o.entry, o.queued_key, o.row_key, o.event, o.review_after,
    o.review_count)::gc._queued order by o.n)
from (
    (
        select row_number() over (order by q.review_after) as n, q.entry,
            {q_key_text} as queued_key,
            {row_key} as row_key,
            q.event, q.review_after, q.review_count
        from {queue} as q
        where q.review_after <= now() and q.review_count = 0
        order by q.review_after
        limit 10 * $1::bigint
    )
    union all
    (
        select row_number() over (order by q.review_after), q.entry, {q_key_text},
            {row_key},
            q.event, q.review_after, q.review_count
        from {queue} as q
        where q.review_after <= now() and q.review_count > 0
        order by q.review_after
        limit least($1, 100)
    )
) as o$template$,
        c.words || jsonb_build_object('row_key', case
            when bare then c.words ->> 'q_key_text'
            else gc._render('(select {t_key_text} from {target} as t where {t_is_q})', c.words)
        end))
$$;

comment on function gc._next_entries_sql(gc._shape, boolean) is
    'The query for the entries that the next review may look at; bare: without their rows.';


create function gc._queued(c gc.collections, batch integer, bare boolean)
    returns gc._queued[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    entries gc._queued[];
begin
    execute gc._next_entries_sql(gc._outline(c), bare) into entries using batch;
    return coalesce(entries, '{}');
end;
$$;

comment on function gc._queued(gc.collections, integer, boolean) is
    'The entries that the next review may look at; bare: without their rows.';


-- One line for each key. Where its row is gone, it was deleted; where it is there and no entry is
-- left, it is kept; else the entry that counts says what was done. Entries that came since are of
-- what the review deleted after it had looked at the row.
create function gc._decided_sql(c gc._shape, bare boolean)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
select array_agg(({name}, b.row_key, b.event, v.verdict, v.detail)::gc._decided order by b.n)
from (
    select distinct on (o.queued_key) o.*, min(o.n) over (partition by o.queued_key) as first
    from unnest($1) as o
    order by o.queued_key, o.entry desc
) as b
cross join lateral (select {typed}) as q({queue_keys})
cross join lateral (select {is_there}) as t(is_there)
left join lateral (
    select later.entry, later.review_after, later.review_count, later.last_error, later.event
    from {queue} as later
    where {later_is_q} and later.entry <= $3
    order by later.entry desc
    limit 1
) as l on true
cross join lateral (
    select case
            when not t.is_there then 'deleted'
            when l.entry is null then 'kept'
            when l.entry = b.entry and l.review_after > b.review_after
                then case when l.review_count > b.review_count then 'failed' else 'busy' end
            else 'put off'
        end,
        case when l.review_count > b.review_count then l.last_error
            when l.entry > b.entry then format('a later event counts: %s, due %s', l.event,
                gc._due_in(l.review_after))
        end
) as v(verdict, detail)
where b.row_key is not null and (b.first <= $2 or v.verdict <> 'put off')$template$,
        c.words || jsonb_build_object(
            'typed', gc._parsed_key_sql(c, 'b.queued_key'),
            'is_there', case when bare then 'true'
                else gc._render('exists (select from {target} as t where {t_is_q})', c.words)
            end))
$$;

comment on function gc._decided_sql(gc._shape, boolean) is
    'The query for what a review has done with the entries that it had before it; bare: without '
    'a look at their rows.';


create function gc._decided(
    c gc.collections, entries gc._queued[], batch integer, last bigint, bare boolean
)
    returns gc._decided[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    found_out gc._decided[];
begin
    execute gc._decided_sql(gc._outline(c), bare) into found_out using entries, batch, last;
    if c.problem is not null then
        return array(
            select (d.collection, d.key, d.event, d.verdict, coalesce(d.detail, c.problem))
                ::gc._decided
            from unnest(found_out) as d
        );
    end if;
    return found_out;
end;
$$;

comment on function gc._decided(gc.collections, gc._queued[], integer, bigint, boolean) is
    'What a review has done with the entries that it had before it.';


create function gc._make_due(c gc.collections, batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('update gc.%1$I as q set review_after = now() where q.ctid = any (array('
        'select o.ctid from gc.%1$I as o where o.review_after > now() order by o.review_after '
        'limit $1 for update skip locked))', gc._object_name(c.name, '_review_queue'))
    using batch;
end;
$$;

comment on function gc._make_due(gc.collections, integer) is
    'Makes the next entries of a queue due now: only ever in a transaction that is rolled back.';


-- A collection that is reviewed by itself has all the room and the time.
create function gc._review_one(name text, batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if name is null then
        perform gc.review(batch);
        return;
    end if;
    perform gc._review_collection(r, batch, s.max_rows, clock_timestamp() + s.statement_timeout)
    from gc.settings as s
    cross join unnest(gc._reviewable(array[name], clock_timestamp() + s.statement_timeout)) as r;
end;
$$;

comment on function gc._review_one(text, integer) is
    'The review of one collection, or of all: the one that gc.review is.';


-- What cannot be read, because of a role that is not trusted, is not reviewed either.
create function gc._review_and_undo(name text, batch integer, due boolean)
    returns gc._decided[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections;
    unreadable jsonb;
    last jsonb := gc._last_entries();
    before jsonb := jsonb_build_object();
    found_out gc._decided[] := array[]::gc._decided[];
begin
    unreadable := gc._unreadable();
    for c in
        select o.* from gc.collections as o
        where o.name = coalesce(_review_and_undo.name, o.name) order by o.name
    loop
        if not due then
            perform gc._make_due(c, batch);
        end if;
        before := before || jsonb_build_object(c.name,
            gc._queued(c, batch, unreadable ? c.name));
    end loop;
    perform gc._review_one(name, batch);
    for c in select o.* from gc.collections as o where before ? o.name order by o.name loop
        found_out := found_out || gc._decided(c, array(
            select jsonb_populate_record(null::gc._queued, e)
            from jsonb_array_elements(before -> c.name) as e
        ), batch, (last ->> c.name)::bigint, unreadable ? c.name);
    end loop;
    raise 'that is all' using errcode = 'ZG999';
exception
    when sqlstate 'ZG999' then
        return found_out;
end;
$$;

comment on function gc._review_and_undo(text, integer, boolean) is
    'Does the next review and undoes it; what it decided.';


create function gc._why_busy(c gc.collections, row_key text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce((gc._judge_pinned(c, row_key)).line, (gc._judge_held(c, row_key)).line,
        'another session has it locked, or something that belongs to it')
$$;

comment on function gc._why_busy(gc.collections, text) is
    'Why a review could not decide about a row.';


create function gc._why_kept(c gc.collections, row_key text, counted jsonb)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce('kept by ' || gc._in_words(counted), (gc._judge_pinned(c, row_key)).line,
        'its condition is not met')
$$;

comment on function gc._why_kept(gc.collections, text, jsonb) is
    'Why a review kept a row: what refers to it, or else its condition.';


-- After the review was undone, what it would have deleted is there again, and can be described.
create function gc._described(c gc.collections, decided gc._decided[])
    returns setof gc._preview
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    keys text[] := array(select d.key from unnest(decided) as d);
begin
    return query
        with facts as materialized (select f.* from gc._facts(c, keys) as f),
        keepers as materialized (
            select k.* from gc._counted(c, array(select d.key from unnest(decided) as d
                where d.verdict = 'kept'), false) as k
        ),
        owned as materialized (
            select o.key, (select jsonb_object_agg(n.relation, n.rows) from (
                select w.relation, sum(w.rows) as rows
                from jsonb_to_recordset(o.found_rows) as w(relation text, rows bigint)
                group by w.relation) as n) as by_table
            from gc._counted(c, array(select d.key from unnest(decided) as d
                where d.verdict = 'deleted'), true) as o
        )
        select d.collection, d.key, f.label, f.url, f.size, d.event, d.verdict,
            coalesce(d.detail, case d.verdict
                when 'kept' then gc._why_kept(c, d.key, k.found_rows)
                when 'busy' then gc._why_busy(c, d.key)
                when 'put off' then 'this review ends before it'
            end), o.by_table
        from unnest(decided) with ordinality as d(collection, key, event, verdict, detail, n)
        left join facts as f on f.key = d.key
        left join keepers as k on k.key = d.key
        left join owned as o on o.key = d.key
        order by d.n;
end;
$$;

comment on function gc._described(gc.collections, gc._decided[]) is
    'What was decided about rows, with what is to be said about them.';


-- In a subtransaction, so that the locks are given back; what cannot be read is not described.
create function gc._describe(decided gc._decided[])
    returns gc._preview[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(decided[1].collection);
    described gc._preview[];
begin
    perform gc._require_readable(c);
    described := array(select p from gc._described(c, decided) as p);
    raise 'that is all' using errcode = 'ZG999';
exception
    when sqlstate 'ZG999' then
        return described;
    when others then
        return array(
            select (d.collection, d.key, null, null, null, d.event, d.verdict,
                coalesce(d.detail, sqlerrm), null)::gc._preview
            from unnest(decided) as d
        );
end;
$$;

comment on function gc._describe(gc._decided[]) is
    'Describes rows of one collection, and locks nothing for longer than that takes.';


create function gc.preview(
    name text default null, batch integer default 1000, due boolean default true
)
    returns table (
        collection text, key text, label text, url text, size bigint, event text, verdict text,
        detail text, with_it jsonb
    )
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set lock_timeout = '2s'
as $$
declare
    one text;
    decided gc._decided[];
begin
    perform gc._require_read_committed('preview');
    perform gc._require_batch(batch);
    if name is not null then
        perform gc._collection(name);
    end if;
    perform gc._limit_lock_waits();
    decided := gc._review_and_undo(name, batch, coalesce(due, true));
    -- Who came to wait for a row that the review had goes on waiting, until we end.
    perform gc._limit_lock_waits('1 millisecond');
    for one in select distinct d.collection from unnest(decided) as d order by 1 loop
        return query
            select p.* from unnest(gc._describe(array(
                select d from unnest(decided) as d where d.collection = one
            ))) as p;
    end loop;
end;
$$;
revoke all on function gc.preview(text, integer, boolean) from public;

comment on function gc.preview(text, integer, boolean) is
    'What the next review would do with what is due, row by row, found out by doing it and undoing '
    'it. With due => false, as if what is queued, up to a batch of it, were due now. Verdicts: '
    'deleted, kept, busy, failed, put off. with_it: how many rows of which tables would go with a '
    'row. Triggers of the application fire and are rolled back; effects outside of the database '
    'are not.';
