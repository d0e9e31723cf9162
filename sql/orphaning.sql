-- Orphaning: an owner goes, and what depends on it lives on by itself.
--
-- What depends on a row: rows that it owns, and rows of collections that it, or what it owns,
-- refers to: without it, nothing might keep them. Owned rows whose reference can be null lose it.
-- Other owned rows go with their owner, as always, but not if they are a collection of their own:
-- then nothing is done. What stays and is of a collection is pinned, in the same transaction.

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


-- Owned rows are "r", the owner "t".
create function gc._owned_by_sql(s gc._shape, f gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('exists (select from %s as t where %s and (%s) = (%s))', s.target,
        gc._pair(f.targets, 't', f.columns, 'r', f.operators), gc._idents((s.key).names, 't.'),
        gc._parsed_key_sql(s, '$1'))
$$;

comment on function gc._owned_by_sql(gc._shape, gc._reference) is
    'The condition that a row r refers to the owner whose key is given.';


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
    for d in
        select c.* from gc.collections as c
        where c.target in (
            select gc._root(k.confrelid) from pg_constraint as k
            where k.conrelid = relation and k.contype = 'f' and k.confrelid <> s.target
        )
    loop
        for f in
            select r.* from gc._foreign_keys(d.target) as r
            where r.referencing = relation and r.reference <> all (d.owned)
        loop
            execute format('select array(select distinct %s from %s as n join %s as r on %s '
                'where %s)', gc._text_of((gc._key(d.target)).names, 'n'), d.target, relation,
                gc._pair(f.targets, 'n', f.columns, 'r', f.operators), chosen)
            into keys using key;
            pinned := pinned + gc._pin_orphans(d.name, keys,
                format('orphaned: row %s of "%s" was deleted without it', key, s.name));
        end loop;
    end loop;
    return pinned;
end;
$$;

comment on function gc._pin_needed(gc._shape, regclass, text, text) is
    'Pins the rows of other collections to which rows of a table refer.';


create function gc._release_owned(s gc._shape, f gc._reference, key text)
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    owned gc.collections;
    chosen text := gc._owned_by_sql(s, f);
    keys text[];
begin
    select c.* into owned from gc.collections as c where c.target = f.referencing;
    if gc._nullable(f) = '{}' then
        if owned.name is not null then
            raise 'rows of "%" cannot be without their owner', owned.name
                using errcode = 'object_not_in_prerequisite_state',
                    detail = format('%s cannot be null.', f.reference),
                    hint = format('alter table %s alter column %I drop not null;', f.referencing,
                        f.columns[1]);
        end if;
        return gc._pin_needed(s, f.referencing, chosen, key);
    end if;
    if owned.name is not null then
        execute format('select array(select %s from %s as r where %s)',
            gc._text_of((gc._key(f.referencing)).names, 'r'), f.referencing, chosen)
        into keys using key;
    end if;
    execute format('update %s as r set %s where %s', f.referencing, (
            select string_agg(format('%I = null', u), ', ') from unnest(gc._nullable(f)) as u
        ), chosen)
    using key;
    return gc._pin_orphans(owned.name, keys,
        format('orphaned: row %s of "%s", which owned it, was deleted', key, s.name));
end;
$$;

comment on function gc._release_owned(gc._shape, gc._reference, text) is
    'Takes the reference to their owner from rows, and pins them; or, where it cannot be null, '
    'pins what they refer to. Returns how many were pinned.';


-- What is owned through other owned rows, or by declaration, is not found by the owner's key.
create function gc._require_orphanable(s gc._shape)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    f gc._reference;
begin
    select r.* into f from unnest(s.refs) as r
    where r.owned is not null and (r.via is not null or gc._is_mention(r)) limit 1;
    if found then
        raise 'rows of "%" cannot be deleted without what they own', s.name
            using errcode = 'feature_not_supported',
                detail = format('%s is owned %s.', f.reference, case
                    when f.via is null then 'by declaration' else 'through ' || f.via end),
                hint = format('Take %s out of "owned" of gc.track, or orphan no rows of "%s".',
                    f.reference, s.name);
    end if;
end;
$$;

comment on function gc._require_orphanable(gc._shape) is
    'Raises for a collection that owns rows in ways that gc.orphan does not follow.';


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
    chosen text := format('(%s) = (%s)', gc._idents((s.key).names, 'r.'),
        gc._parsed_key_sql(s, '$1'));
    f gc._reference;
    there boolean;
    pinned bigint := 0;
begin
    perform gc._require_owner();
    perform gc._require_read_committed('orphan');
    perform gc._require_orphanable(s);
    perform gc._lock_touched(c);
    perform gc._require_trusted(c);
    execute format('select true from %s as r where %s for update', c.target, chosen)
    into there using canonical;
    if there is null then
        raise 'there is no row % of "%"', canonical, name using errcode = 'no_data_found';
    end if;
    pinned := gc._pin_needed(s, c.target, chosen, canonical);
    for f in
        select r.* from unnest(s.refs) as r where r.owned is not null
        order by r.depth desc, r.owned
    loop
        pinned := pinned + gc._release_owned(s, f, canonical);
        if gc._nullable(f) = '{}' then
            execute format('delete from %s as r where %s', f.referencing, gc._owned_by_sql(s, f))
            using canonical;
        end if;
    end loop;
    execute format('delete from %s as r where %s', c.target, chosen) using canonical;
    return pinned;
end;
$$;
revoke all on function gc.orphan(text, text) from public;

comment on function gc.orphan(text, text) is
    'Deletes a row and leaves what depends on it alive: owned rows whose reference can be null '
    'lose it, and they, and rows of collections that only this one may have kept, are pinned. '
    'Returns how many.';
