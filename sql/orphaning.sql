-- Orphaning: an owner goes, and what depends on it lives on by itself.
--
-- What depends on a row: rows that it owns, and rows of collections that it, or what it owns,
-- refers to: without it, nothing might keep them. Owned rows whose reference can be null lose it,
-- and what they own in their turn stays theirs. Other owned rows go with their owner, as always,
-- and what they own is asked the same; but if they are a collection of their own, nothing is done.
-- What stays and is of a collection is pinned, in the same transaction.

create function gc._pin_orphans(name text, keys text[], reason text)
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    pinned bigint := 0;
begin
    if cardinality(keys) > 0 then
        execute format('select count(*) from gc.%I($1, $2::text[], $3)', 'pin') into pinned
        using name, keys, reason;
    end if;
    return pinned;
end;
$$;

comment on function gc._pin_orphans(text, text[], text) is 'Pins rows; returns how many.';


create function gc._nullable(f gc._reference)
    returns name[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(array_agg(a.attname order by a.attnum), '{}')
    from pg_attribute as a
    where a.attrelid = f.referencing and a.attname = any (f.columns) and not a.attnotnull
$$;

comment on function gc._nullable(gc._reference) is
    'The columns of a reference that can be null.';


-- An owned row goes if its owner does, and it cannot be without. One with the collection's own key
-- always goes: its reference is its key.
create function gc._goes_with_owner(s gc._shape, f gc._reference)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select f.owned is not null and (f.via is null or gc._goes_with_owner(s, gc._owner(s, f)))
        and gc._nullable(f) = '{}'
$$;

comment on function gc._goes_with_owner(gc._shape, gc._reference) is
    'Whether the rows of an owned reference go with a row that is orphaned.';


create function gc._owner_rows_sql(s gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('from %s as r where (%s) %s (%s)', s.target, gc._idents((s.key).names, 'r.'),
        gc._row_equals(s.key), gc._parsed_key_sql(s, '$1'))
$$;

comment on function gc._owner_rows_sql(gc._shape) is
    'The rest of a query for the row r whose key is given.';


-- A queue entry q is what owned rows are compared with; here it is the key that is given.
create function gc._owned_rows_sql(s gc._shape, f gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('from (select %s) as q(%s) join %s on %s', gc._parsed_key_sql(s, '$1'),
        gc._idents((s.key).queue_names), gc._owned_rows(s, f), gc._owned_pair(s, f, 'q'))
$$;

comment on function gc._owned_rows_sql(gc._shape, gc._reference) is
    'The rest of a query for the rows r that the row whose key is given owns.';


create function gc._needed_sql(d gc.collections, f gc._reference, chosen text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select replace(format('select array(select distinct %s from %s as n join (%s) as r on %s)',
        gc._text_of((gc._key(d.target)).names, 'n'), d.target,
        case when gc._is_mention(f)
            then format('select m.key from (%s) as m(key)',
                gc._mentioned_sql(f, format('(select r.* %s)', chosen)))
            else 'select r.* ' || chosen end,
        case when gc._is_mention(f)
            then gc._compare(f.operators[1], format('n.%I', f.targets[1]), 'r.key')
            else gc._pair(f.targets, 'n', f.columns, 'r', f.operators) end), chr(1), E'\n')
$$;

comment on function gc._needed_sql(gc.collections, gc._reference, text) is
    'The query for the keys of a collection to which chosen rows refer.';


create function gc._pin_needed(s gc._shape, relation regclass, chosen text, key text)
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    d gc.collections;
    f gc._reference;
    keys text[];
    pinned bigint := 0;
begin
    for d in select c.* from gc.collections as c where c.target <> s.target loop
        for f in
            select r.* from gc._all_references(d.target) as r
            where r.referencing = relation and r.reference <> all (d.owned)
        loop
            execute gc._needed_sql(d, f, chosen) into keys using key;
            pinned := pinned + gc._pin_orphans(d.name, keys,
                format('orphaned: row %s of "%s" was deleted without it', key, s.name));
        end loop;
    end loop;
    return pinned;
end;
$$;

comment on function gc._pin_needed(gc._shape, regclass, text, text) is
    'Pins the rows of other collections to which chosen rows of a table refer.';


create function gc._refuse_not_null(f gc._reference)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    name text := (select c.name from gc.collections as c where c.target = f.referencing);
begin
    if name is not null then
        raise 'rows of "%" cannot be without their owner', name
            using errcode = 'object_not_in_prerequisite_state',
                detail = format('%s cannot be null.', f.reference),
                hint = format('alter table %s alter column %I drop not null;', f.referencing,
                    f.columns[1]);
    end if;
end;
$$;

comment on function gc._refuse_not_null(gc._reference) is
    'Raises where owned rows that would go with their owner are a collection.';


create function gc._release_owned(s gc._shape, f gc._reference, key text)
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    chosen text := gc._owned_rows_sql(s, f);
    owned text := (select c.name from gc.collections as c where c.target = f.referencing);
    keys text[];
begin
    if owned is not null then
        execute format('select array(select %s %s)',
            gc._text_of((gc._key(f.referencing)).names, 'r'), chosen)
        into keys using key;
    end if;
    execute format('update %s as u set %s from (select r.tableoid, r.ctid %s) as o(part, place) '
        'where u.tableoid = o.part and u.ctid = o.place', f.referencing, (
            select string_agg(format('%I = null', n), ', ') from unnest(gc._nullable(f)) as n
        ), chosen)
    using key;
    return gc._pin_orphans(owned, keys,
        format('orphaned: row %s of "%s", which owned it, was deleted', key, s.name));
end;
$$;

comment on function gc._release_owned(gc._shape, gc._reference, text) is
    'Takes the reference to their owner from rows, and pins them; returns how many were pinned.';


create function gc._delete_owned(s gc._shape, f gc._reference, key text)
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    chosen text := gc._owned_rows_sql(s, f);
    pinned bigint;
begin
    perform gc._refuse_not_null(f);
    pinned := gc._pin_needed(s, f.referencing, chosen, key);
    execute format('delete from %s as u using (select r.tableoid, r.ctid %s) as o(part, place) '
        'where u.tableoid = o.part and u.ctid = o.place', f.referencing, chosen)
    using key;
    return pinned;
end;
$$;

comment on function gc._delete_owned(gc._shape, gc._reference, text) is
    'Deletes owned rows that cannot be without their owner, and pins what they refer to; returns '
    'how many were pinned.';


-- Outermost first: whoever adds a row to what is owned has the owned row locked, and is waited for.
create function gc._lock_to_orphan(s gc._shape, key text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    there boolean;
    f gc._reference;
begin
    execute format('select true %s for update', gc._owner_rows_sql(s)) into there using key;
    if there is null then
        raise 'there is no row % of "%"', key, s.name using errcode = 'no_data_found';
    end if;
    for f in
        select r.* from unnest(s.refs) as r where r.owned is not null order by r.depth, r.owned
    loop
        execute format('select %s for update of r', gc._owned_rows_sql(s, f)) using key;
    end loop;
end;
$$;

comment on function gc._lock_to_orphan(gc._shape, text) is
    'Locks a row and all that it owns; raises if it is not there.';


create function gc.orphan(name text, key text)
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    c gc.collections := gc._collection(name);
    canonical text := gc._canonical_key(c, key);
    s gc._shape := gc._shape(c);
    f gc._reference;
    pinned bigint := 0;
begin
    perform gc._require_owner();
    perform gc._require_read_committed('orphan');
    perform gc._lock_touched(c);
    perform gc._require_trusted(c);
    perform gc._lock_to_orphan(s, canonical);
    pinned := gc._pin_needed(s, c.target, gc._owner_rows_sql(s), canonical);
    for f in
        select r.* from unnest(s.refs) as r
        where r.owned is not null and (r.via is null or gc._goes_with_owner(s, gc._owner(s, r)))
        order by r.depth desc, r.owned
    loop
        pinned := pinned + case when gc._goes_with_owner(s, f)
            then gc._delete_owned(s, f, canonical)
            else gc._release_owned(s, f, canonical) end;
    end loop;
    execute 'delete from ' || regexp_replace(gc._owner_rows_sql(s), '^from ', '') using canonical;
    return pinned;
end;
$$;
revoke all on function gc.orphan(text, text) from public;

comment on function gc.orphan(text, text) is
    'Deletes a row and leaves what depends on it alive: owned rows whose reference can be null '
    'lose it, and they, and rows of collections that only this one may have kept, are pinned. '
    'Returns how many.';
