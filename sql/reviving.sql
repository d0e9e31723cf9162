-- Reviving: rows that are there still, but are garbage because their condition holds.
--
-- An application marks a row (state = 'deleting', deleted_at is set), and a review takes it away
-- later, perhaps in steps. To restore such a row is to take the mark back: gc.track(…, restored =>
-- …) says what its columns get. What has gone from it already comes back with it. A row that is
-- gone gets the same when it is inserted, or it would be garbage again at once.

create function gc._marked(c gc.collections, keys text[])
    returns text[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    marked text[] := array[]::text[];
begin
    if c.restored <> '{}' and cardinality(keys) > 0 then
        perform gc._require_own(c.name);
        execute format('select array(select f.key from gc.%I($1, 1) as f where f.is_met)',
            gc._object_name(c.name, '_facts'))
        into marked using keys;
    end if;
    return marked;
end;
$$;

comment on function gc._marked(gc.collections, text[]) is
    'Those of the keys whose rows are there and can be revived: their condition holds.';


create function gc._is_of_key_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('(%s) %s (%s)', gc._idents(k.names, 't.'), gc._row_equals(k),
        gc._parsed_key_sql(c.name, k, 'd.key'))
    from gc._key(c.target) as k
$$;

comment on function gc._is_of_key_sql(gc.collections) is
    'The condition that a row t has the key d.';


create function gc._revive_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('update %s as t set %s from unnest($1) as d(key) where %s', c.target, (
            select string_agg(format('%I = %s', r.name, gc._restored_value(c, r.name)), ', ')
            from jsonb_object_keys(c.restored) as r(name)
        ), gc._is_of_key_sql(c))
$$;

comment on function gc._revive_sql(gc.collections) is
    'The statement that takes the mark back from rows of these keys.';


-- A review that is emptying the row is waited for, and who restores it at this moment. Then it is
-- asked again: the row may be gone, and in the trash, or without its mark.
create function gc._revive(c gc.collections, keys text[])
    returns text[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    marked text[] := gc._marked(c, keys);
    message text;
    detail text;
    columned text;
begin
    if marked <> '{}' then
        perform gc._lock_touched(c);
        perform gc._require_trusted(c);
        execute format('select from %s as t join unnest($1) as d(key) on %s for no key update of t',
            c.target, gc._is_of_key_sql(c))
        using marked;
        marked := gc._marked(c, marked);
    end if;
    if marked <> '{}' then
        perform set_config('search_path', gc._application_path(c.target), true);
        execute gc._revive_sql(c) using marked;
    end if;
    return marked;
exception
    when foreign_key_violation then
        raise;
    when others then
        get stacked diagnostics message = message_text, detail = pg_exception_detail,
            columned = column_name;
        perform gc._refuse_insert(c.target, sqlstate, message, detail, columned);
        raise;
end;
$$;

comment on function gc._revive(gc.collections, text[]) is
    'Takes the mark back from those rows of these keys that have one; returns their keys.';


-- Not what went with an earlier row of the same key, which is kept, and went after what it owned.
create function gc._drained(c gc.collections, keys text[])
    returns table (other regclass, places tid[])
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set enable_nestloop = off
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    f gc._reference;
begin
    for f in
        select r.* from gc._all_references(c.target) as r
        where cardinality(keys) > 0 and r.reference = any (c.owned)
    loop
        other := gc._root(f.referencing);
        execute format(
            'select array(select distinct on (coalesce(o."gc key", o."gc id"::text)) o."gc place" '
            'from (%s where k.relation = $2 and k.reviewed = $3) as o join %s as p on %s '
            'join gc.%I($1, 0) as a on (a.relation, a.place) = (p.tableoid, p.ctid) '
            'where not exists (select from gc.trash_rows as e where e.relation = $4 '
            'and e.key = a.key and e.id > o."gc id") '
            'order by coalesce(o."gc key", o."gc id"::text), o."gc id" desc)',
            gc._typed_rows_sql(f.referencing, f.columns), c.target,
            gc._pair(f.targets, 'p', f.columns, 'o', f.operators),
            gc._object_name(c.name, '_facts'))
        into places using keys, other, c.name, gc._root(c.target);
        return next;
    end loop;
end;
$$;

comment on function gc._drained(gc.collections, text[]) is
    'The kept rows that reviews have taken from rows which are there.';


create function gc._marked_needs(relation regclass, fresh tid[])
    returns table (name text, keys text[])
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    c gc.collections;
    f gc._reference;
begin
    for c in select o.* from gc.collections as o where o.restored <> '{}' loop
        for f in
            select r.* from gc._foreign_keys(c.target) as r where r.referencing = relation
        loop
            execute format('select array(select distinct %s from %s as t '
                'join (%s where k.ctid = any ($1)) as r on %s)',
                gc._text_of((gc._key(c.target)).names, 't'), c.target,
                gc._typed_rows_sql(relation, f.columns),
                gc._pair(f.targets, 't', f.columns, 'r', f.operators))
            into keys using fresh;
            name := c.name;
            keys := gc._marked(c, keys);
            return next;
        end loop;
    end loop;
end;
$$;

comment on function gc._marked_needs(regclass, tid[]) is
    'The rows that kept rows refer to and that are there, but garbage: a review would take the '
    'kept rows again with them.';
