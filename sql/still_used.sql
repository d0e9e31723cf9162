-- In use: a tombstone is not handed out while a live row has its object.
--
-- The last of the rows that share an object leaves a tombstone of its own, so an earlier one can
-- go. Where it cannot be found out whether a row has the object, nothing is handed out.

create function gc._same_generation_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.generation is null then '' else gc._render(
        ' and coalesce({generation} = d.generation, true)', c.words) end
$$;

comment on function gc._same_generation_sql(gc._shape) is
    'The condition that a row and a tombstone do not mean two versions of an object.';


-- A scalar subquery is looked up for each tombstone, through the index; a join is for where there
-- is none, and the planner decides.
create function gc._found_by_url_sql(c gc._shape)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        case
            when not c.url_index
                then 'exists (select from {target} as {alias} where {same_url}{same_generation})'
            else '(select true from {target} as {alias} where {same_url}{same_generation} '
                'limit 1)'
        end,
        c.words || jsonb_build_object('same_generation', gc._same_generation_sql(c)))
$$;

comment on function gc._found_by_url_sql(gc._shape) is
    'The condition that a row has the url of the tombstone d.';


-- By its key, if the key makes that url: a tombstone from before the definition or the key changed
-- is looked up by the url itself, and so is every one until the next review has noticed that a
-- constraint is gone, and one that never had a key: see sql/reconciling.sql.
create function gc._used_by_key_sql(c gc._shape)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
union all
select d.id
from gc.tombstones as d
where d.id = any ($1)
    and d.collection = {name}
    and case
        when case
            when $2 or d.key = d.url or not ({proved}) then true
            else d.url is distinct from (select {url} from (select {typed}) as {alias}({keys}))
        end then {found}
        else (
            select true from {target} as {alias}
            where ({row_keys}) {equals} ({typed}) and {same_url}{same_generation}
            limit 1
        )
    end$template$,
        c.words || jsonb_build_object(
            'proved', gc._proved_sql(c),
            'found', gc._found_by_url_sql(c),
            'same_generation', gc._same_generation_sql(c),
            'equals', gc._row_equals(k),
            'row_keys', gc._idents(k.names, c.alias || '.'),
            'typed', gc._parsed_key_sql(c, 'd.key')))
    from (select (c.key).*) as k
$$;

comment on function gc._used_by_key_sql(gc._shape) is
    'The part of gc.<name>_used that finds a row by its key.';


-- A url that is built from the key belongs to that key; any other is looked up by itself.
-- Volatile, so that the rows are looked for with a snapshot from after the tables were locked: a
-- table that ALTER TABLE has written anew is empty for every earlier one.
create function gc._used_sql(c gc._shape)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_used', $template$
create or replace function gc.{function}(tombstones bigint[], by_url boolean)
    returns setof bigint
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {settings}
$template$, $template$
    select d.id
    from gc.tombstones as d
    where d.id = any ($1)
        {unless_own}
        {prefix}
        and {found}
    {own}$template$,
        jsonb_build_object(
            'unless_own', case when c.shared then '' else
                format('and (select count(*) > 1 from gc.collections) and d.collection <> %L',
                    c.name) end,
            'prefix', case when c.url_prefix is null then '' else
                format('and starts_with(d.url, %L)', c.url_prefix) end,
            'found', gc._found_by_url_sql(c),
            'own', case when c.shared then '' else gc._used_by_key_sql(c) end))
    where c.url is not null
$$;

comment on function gc._used_sql(gc._shape) is
    'The function gc.<name>_used: which tombstones have an object that a live row has too.';


-- The last of the rows that have the url leaves a tombstone of its own, so this one can go. Every
-- collection is asked: two tables may name one object. One that has no index on it is read whole.
create function gc._is_used(ids bigint[], by_url boolean)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = on
as $$
declare
    used bigint[] := array[]::bigint[];
    found_here bigint[];
    name text;
begin
    for name in
        select c.name from gc.collections as c where c.url is not null
    loop
        perform gc._require_own(name);
        execute format('select array(select gc.%I($1, $2))', gc._object_name(name, '_used'))
        into found_here using ids, by_url;
        used := used || found_here;
    end loop;
    return used;
end;
$$;

comment on function gc._is_used(bigint[], boolean) is
    'Which of the tombstones have an object that a live row has too; by_url: without their keys.';


-- A key that cannot be read is from a time when the table had another key.
create function gc._is_one_used(one bigint)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return gc._is_used(array[one], false);
exception
    when data_exception then
        return gc._is_used(array[one], true);
end;
$$;

comment on function gc._is_one_used(bigint) is
    'gc._is_used for a tombstone by itself, whatever its key is.';


-- gc.track was called again without a url: by mistake perhaps.
create function gc._without_url(ids bigint[])
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from gc.collections as c where c.url is null) then
        return array[]::bigint[];
    end if;
    return array(
        select t.id from gc.tombstones as t
        where t.id = any (ids)
            and t.collection in (select c.name from gc.collections as c where c.url is null)
    );
end;
$$;

comment on function gc._without_url(bigint[]) is
    'Those of the tombstones whose collection has no url any more, so that no row can be found.';


-- Where that cannot be found out, because a column is gone perhaps, nothing is handed out: the
-- tombstones are asked for one by one, so that a bad one holds up only itself. A table that
-- somebody has locked is not waited for again and again.
create function gc._drop_used(leased bigint[], until timestamptz)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    used bigint[];
    one bigint;
begin
    begin
        used := gc._is_used(leased, false);
        perform gc._note_kept(used, 'a row has its object');
        delete from gc.tombstones as t where t.id = any (used);
        return;
    exception
        when lock_not_available then
            perform gc._step_back(leased, sqlerrm);
            return;
        when others then
            null;
    end;
    foreach one in array leased loop
        if clock_timestamp() > until then
            perform gc._step_back(array[one], 'there was no time to look for rows that have it');
            continue;
        end if;
        begin
            used := gc._is_one_used(one);
            perform gc._note_kept(used, 'a row has its object');
            delete from gc.tombstones as t where t.id = any (used);
        exception
            when others then
                update gc.tombstones as t
                set worker = null, due_at = clock_timestamp() + gc._backoff(t.failures),
                    failures = t.failures + 1, last_error = sqlerrm
                where t.id = one;
        end;
    end loop;
end;
$$;

comment on function gc._drop_used(bigint[], timestamptz) is
    'Drops tombstones whose object a live row has.';
