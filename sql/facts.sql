-- Facts: what people are told about rows: what they are called, what refers to them, what they own.
--
-- Each collection has functions of its own for that, made like all its code, and made again when
-- the catalog has changed. They read tables of the application with the rights of blobgc's owner:
-- gc._require_readable comes first, as before a review, and what it locks, or makes, goes with a
-- subtransaction.

create type gc._fact as (
    key text, label text, url text, size bigint, is_met boolean, error text, relation oid, place tid
);

comment on type gc._fact is
    'A row that is there: its key as it writes it, what its expressions say, and where it is. '
    '"error": why they could not be computed.';


create type gc._count as (key text, found_rows jsonb);

comment on type gc._count is 'For a key, how many rows of which references there are.';


create type gc._referrer as (row_key text, part oid, place tid);

comment on type gc._referrer is 'A row that refers to another: its key, and where it is.';


create type gc._entry as (
    event text, review_after timestamptz, review_count integer, last_error text
);

comment on type gc._entry is 'An entry of a review queue, without its key.';


create function gc._facts_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_facts', $template$
create or replace function gc.{function}(keys text[], known integer)
    returns setof gc._fact
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {by_index}
    {settings}
$template$, $template$
    select {key_text}, case when $2 > 1 then {label} end, case when $2 > 1 then {urls} end,
        case when $2 > 1 then {size} end, case when $2 > 0 then {met} end, null::text,
        {alias}.tableoid, {alias}.ctid
    from unnest($1) as d(key)
    join {target} as {alias} on ({row_keys}) {equals} ({typed})$template$,
        jsonb_build_object(
            'urls', gc._text_sql(c.url),
            'met', coalesce('(' || c.condition || ') is true', 'true'),
            'equals', gc._row_equals(k),
            'row_keys', gc._idents(k.names, c.alias || '.'),
            'typed', gc._parsed_key_sql(c, 'd.key')))
    from (select (c.key).*) as k
$$;

comment on function gc._facts_sql(gc._shape) is
    'The function gc.<name>_facts: what is to be said about rows; with 1 only whether the '
    'condition is met, and with 0 not even that.';


-- A CHECK that proves a url to be the row's own computes the key from it: so the row is found
-- without an index on the url. Both texts are PostgreSQL's.
create function gc._key_from_url_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format(' and (%s) = (%s)', gc._idents((c.key).names, c.alias || '.'),
        replace(e.written, u.url, '$1'))
    from pg_constraint as k
    cross join lateral substring(
        pg_get_expr(k.conbin, k.conrelid) from '^\(NOT \(\S+ IS DISTINCT FROM (.*)\)\)$'
    ) as e(written)
    cross join lateral replace(c.url, c.alias || '.', '') as u(url)
    where k.oid = c.proof and position(u.url in e.written) > 0
$$;

comment on function gc._key_from_url_sql(gc._shape) is
    'The condition by which the row of a url is found by its key; null: nothing tells.';


create function gc._rows_at_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_rows_at', $template$
create or replace function gc.{function}(url text)
    returns setof text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {settings}
$template$, $template$
begin
    {quickly}
    {all_rows}
end;$template$,
        jsonb_build_object('quickly', case when k.by_key is null then '' else gc._render($quickly$
-- By the key that the url tells. One from which none can be told is no row's.
begin
    return query
        select {key_text} from (select $1) as d(url)
        join {target} as {alias} on {same_url}{by_key};
exception
    when data_exception then
        null;
end;$quickly$, c.words || jsonb_build_object('by_key', k.by_key)) end,
            'all_rows', case when k.by_key is not null then '' else gc._render($all$
return query
    select {key_text} from (select $1) as d(url)
    join {target} as {alias} on {same_url}
    limit 100;$all$, c.words) end))
    from gc._key_from_url_sql(c) as k(by_key)
    where c.url is not null
$$;

comment on function gc._rows_at_sql(gc._shape) is
    'The function gc.<name>_rows_at: the keys of rows that have a url; without an index on it, and '
    'where the url does not tell the key, it reads all rows.';


create function gc._require_readable(c gc.collections)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._require_own(c.name);
    perform gc._lock_touched(c);
    perform gc._require_trusted(c);
    if gc._fingerprint(c) is distinct from c.fingerprint then
        perform gc._lock_code(c.name);
        perform gc._generate(c.name);
        perform gc._wait_for_no_writer();
    end if;
    perform gc._follow_keys(c.name);
end;
$$;

comment on function gc._require_readable(gc.collections) is
    'Locks what a review would touch, and makes the code fit it; raises if any of it could run '
    'code of a role that is not trusted. To be called in a subtransaction that is rolled back.';


-- One bad collection costs only itself.
create function gc._why_unreadable(c gc.collections)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._require_readable(c);
    return null;
exception
    when others then
        return sqlerrm;
end;
$$;

comment on function gc._why_unreadable(gc.collections) is
    'Why the rows of a collection cannot be looked at; null: they can.';


create function gc._unreadable(but text default null)
    returns jsonb
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(jsonb_object_agg(c.name, u.why) filter (where u.why is not null), '{}')
    from gc.collections as c
    cross join lateral gc._why_unreadable(c) as u(why)
    where c.name is distinct from but
$$;

comment on function gc._unreadable(text) is
    'The collections whose rows cannot be looked at, and why; but one is not asked about.';


-- One bad row costs only itself: then rows are asked for one by one, and at last for less.
create function gc._facts(c gc.collections, keys text[], known integer default 2)
    returns setof gc._fact
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    found_ones gc._fact[];
    why text;
begin
    begin
        execute format('select array(select f from gc.%I($1, $2) as f)',
            gc._object_name(c.name, '_facts'))
        into found_ones using keys, known;
    exception
        when others then
            why := sqlerrm;
    end;
    if why is null then
        return query select f.* from unnest(found_ones) as f;
    elsif cardinality(keys) > 1 then
        return query
            select f.* from unnest(keys) as k cross join lateral gc._facts(c, array[k]) as f;
    elsif known > 0 then
        return query
            select f.key, null, null, null::bigint, f.is_met, why, f.relation, f.place
            from gc._facts(c, keys, known - 1) as f;
    end if;
end;
$$;

comment on function gc._facts(gc.collections, text[], integer) is
    'What is to be said about those of the rows that are there, as far as it can be computed.';


-- Enough for references and keys. Expressions would have to be parsed.
create function gc._outline(c gc.collections)
    returns gc._shape
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._complete_shape(s, null, null, gc._words(s))
    from jsonb_populate_record(null::gc._shape, jsonb_build_object(
        'name', c.name, 'target', c.target::text, 'alias', quote_ident(gc._alias(c.target)),
        'columns', c.columns, 'key', gc._key(c.target),
        'refs', array(select r from gc._references(c) as r))) as s
$$;

comment on function gc._outline(gc.collections) is
    'The shape of a collection without its expressions.';


create function gc._wanted_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        'unnest($1::text[]) with ordinality as d(key, n) '
        'cross join lateral (select {typed}) as q({queue_keys})',
        c.words || jsonb_build_object('typed', gc._parsed_key_sql(c, 'd.key')))
$$;

comment on function gc._wanted_sql(gc._shape) is
    'Keys that are given as texts d.key, as the entries q of a queue would have them.';


create function gc._count_sql(c gc._shape, owned boolean)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
return query
    select d.key, jsonb_agg(f.* order by f.n) filter (where f.rows > 0)
    from {wanted}
    cross join lateral (
        values
            {counts}
    ) as f(n, reference, referencing, relation, rows)
    group by d.key;$template$,
        jsonb_build_object('wanted', gc._wanted_sql(c), 'counts', string_agg(
            format('(%s, %L, %L::regclass, %L, (select count(*) from (%s) as o))',
                n, (u.r).reference, (u.r).referencing, t.relname, case
                    when (u.r).owned is null then gc._referring_sql(c, u.r, '') || ' limit 1001'
                    else format('select from %s where %s limit 100000',
                        gc._owned_rows(c, u.r), gc._owned_pair(c, u.r, 'q'))
                end), E',\n' order by coalesce((u.r).owned, n))))
    from generate_subscripts(c.refs, 1) as n
    cross join lateral (select c.refs[n]) as u(r)
    join pg_class as t on t.oid = (u.r).referencing
    where ((u.r).owned is not null) = _count_sql.owned
    having count(*) > 0
$$;

comment on function gc._count_sql(gc._shape, boolean) is
    'The statement that counts the rows which refer to keys, or which they own; null: no table '
    'does.';


create function gc._counted_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_counted', $template$
create or replace function gc.{function}(keys text[], owned boolean)
    returns setof gc._count
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {by_index}
    {settings}
$template$, $template$
#variable_conflict use_column
begin
    -- Not to the end, where there are very many.
    if $2 then
        {count_owned}
        return;
    end if;
    {count_kept}
    return;
end;$template$,
        jsonb_build_object(
            'count_owned', coalesce(gc._count_sql(c, true), ''),
            'count_kept', coalesce(gc._count_sql(c, false), '')))
    where c.refs <> '{}'
$$;

comment on function gc._counted_sql(gc._shape) is
    'The function gc.<name>_counted: how many rows of each reference keep keys, or are owned; '
    'null: there is no reference.';


create function gc._counted(c gc.collections, keys text[], owned boolean)
    returns setof gc._count
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    function_name name := gc._object_name(c.name, '_counted');
begin
    if function_name = any (c.functions) then
        return query execute format('select * from gc.%I($1, $2)', function_name)
        using keys, owned;
    end if;
end;
$$;

comment on function gc._counted(gc.collections, text[], boolean) is
    'For each key the references with the number of their rows that keep it, or that it owns.';


create function gc._in_number(relation text, number bigint)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when number = 1 then '1 ' || regexp_replace(relation, '([^s])s$', '\1')
        else least(number, 1000) || ' ' || regexp_replace(relation, '([^s])$', '\1s')
    end
    || case when number > 1000 then ' or more' else '' end
$$;

comment on function gc._in_number(text, bigint) is
    'So many rows of a table, as people say it: 1 tag, 3 tags.';


create function gc._in_words(counted jsonb)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(gc._in_number(t.relation, t.rows), case when t.number = 2 then ' and ' else
        ', ' end order by t.n)
    from (
        select f.relation, sum(f.rows)::bigint, min(f.n), count(*) over ()
        from jsonb_to_recordset(counted) as f(n integer, relation text, rows bigint)
        group by f.relation
    ) as t(relation, rows, n, number)
$$;

comment on function gc._in_words(jsonb) is 'Counted rows in a line: 3 tags and 1 layer.';


-- Of all referring tables at once.
create function gc._row_keys(c gc._shape)
    returns table (relation oid, names name[])
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select i.indrelid, array_agg(a.attname order by k.n)
    from pg_index as i
    cross join lateral unnest(i.indkey::smallint[]) with ordinality as k(attnum, n)
    join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum
    where i.indisprimary and k.n <= i.indnkeyatts
        and i.indrelid = any (array(select r.referencing::oid from unnest(c.refs) as r))
    group by i.indrelid
$$;

comment on function gc._row_keys(gc._shape) is
    'The primary keys of the tables that refer to a collection, where they have one.';


create function gc._referring_rows_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_referring', $template$
create or replace function gc.{function}(key text, reference text, most integer)
    returns setof gc._referrer
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {by_index}
    {settings}
$template$, $template$
#variable_conflict use_column
begin
    {queries}
    return;
end;$template$,
        jsonb_build_object('queries', coalesce((
            select string_agg(gc._render($query$
if $2 = {reference} then
    return query
        select o.* from {wanted}
        cross join lateral ({referring}) as o
        limit $3;
end if;$query$, jsonb_build_object(
                'reference', quote_literal(r.reference),
                'wanted', replace(gc._wanted_sql(c), '$1::text[]', 'array[$1]'),
                'referring', gc._referring_sql(c, r, format(' %s, %2$s.tableoid, %2$s.ctid',
                    gc._text_of(coalesce(k.names, r.columns), a.alias), a.alias)))), E'\n')
            from unnest(c.refs) as r
            cross join lateral coalesce((r.mention).alias, 'r') as a(alias)
            left join gc._row_keys(c) as k on k.relation = r.referencing
            where r.owned is null
        ), '')))
    where exists (select from unnest(c.refs) as r where r.owned is null)
$$;

comment on function gc._referring_rows_sql(gc._shape) is
    'The function gc.<name>_referring: the first rows of a reference that keep a key: their own '
    'keys, or, where they have none, what they refer by; and where they are.';


create function gc._referring(c gc.collections, key text, reference text, most integer)
    returns setof gc._referrer
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    function_name name := gc._object_name(c.name, '_referring');
begin
    if function_name = any (c.functions) then
        return query execute format('select * from gc.%I($1, $2, $3)', function_name)
        using key, reference, most;
    end if;
end;
$$;

comment on function gc._referring(gc.collections, text, text, integer) is
    'The first rows of a reference that point at a key: their own keys, and where they are.';


create function gc._owner_pair(c gc._shape, r gc._reference, alias text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when r.via is null then gc._pair(r.targets, 't', r.columns, alias, r.operators)
        else gc._owner_pair(c, gc._owner(c, r), alias || '_owner')
    end
$$;

comment on function gc._owner_pair(gc._shape, gc._reference, text) is
    'The condition that a row t of the collection owns a row of gc._owned_rows.';


-- A row is told by its place, because a table that is owned need not have a key.
create function gc._owner_of_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_owner_of', $template$
create or replace function gc.{function}(relation regclass, part oid, place tid)
    returns setof text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {by_index}
    {settings}
$template$, $template$
begin
    {queries}
    return;
end;$template$,
        jsonb_build_object('queries', string_agg(gc._render($query$
if $1 = {table}::regclass then
    return query
        select {t_key_text} from {owned_rows} join {target} as t on {t_is_r}
        where r.ctid = $3 and r.tableoid = $2;
end if;$query$, c.words || jsonb_build_object(
            'table', quote_literal(r.referencing), 'owned_rows', gc._owned_rows(c, r),
            't_is_r', gc._owner_pair(c, r, 'r'))), E'\n')))
    from unnest(c.refs) as r
    where r.owned is not null
    having count(*) > 0
$$;

comment on function gc._owner_of_sql(gc._shape) is
    'The function gc.<name>_owner_of: the key of the row that owns another.';


create function gc._owners(relation regclass, part oid, place tid, unreadable jsonb)
    returns table (owner gc.collections, owner_key text)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    o gc.collections;
    found_key text;
begin
    for o in
        select c.* from gc.collections as c
        where not unreadable ? c.name and gc._object_name(c.name, '_owner_of') = any (c.functions)
        order by c.condition is not null, c.name
    loop
        for found_key in
            execute format('select distinct k from gc.%I($1, $2, $3) as k',
                gc._object_name(o.name, '_owner_of'))
            using relation, part, place
        loop
            return query select o, found_key;
        end loop;
    end loop;
end;
$$;

comment on function gc._owners(regclass, oid, tid, jsonb) is
    'The rows of collections that own a row, and with which it goes; but of those that cannot be '
    'looked at, nothing.';


create function gc._entries_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_entries', $template$
create or replace function gc.{function}(key text, most integer)
    returns setof gc._entry
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    {by_index}
    {settings}
$template$, $template$
#variable_conflict use_column
begin
    return query
        select later.event, later.review_after, later.review_count, later.last_error
        from (select {typed}) as q({queue_keys})
        join {queue} as later on {later_is_q}
        order by later.entry desc
        limit $2;
end;$template$,
        jsonb_build_object('typed', gc._parsed_key_sql(c, '$1')))
$$;

comment on function gc._entries_sql(gc._shape) is
    'The function gc.<name>_entries: the last entries of a key, the one that counts first.';


create function gc._entries(c gc.collections, key text, most integer)
    returns setof gc._entry
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query execute format('select * from gc.%I($1, $2)', gc._object_name(c.name, '_entries'))
    using key, most;
end;
$$;

comment on function gc._entries(gc.collections, text, integer) is
    'The last entries of a key in the queue of its collection, the one that counts first.';
