-- Definitions: what gc.track is told must fit the table, now and whenever the code is made again.

create function gc._require_table(target regclass)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    t pg_class;
    kind text;
begin
    select c.* into t from pg_class as c where c.oid = target;
    kind := case
        when t.oid is null then 'nothing that exists'
        when t.relpersistence = 't' then 'a temporary table'
        when t.relispartition then 'a partition'
        when t.relkind in ('r', 'p') then null
        when t.relkind = 'v' then 'a view'
        when t.relkind = 'm' then 'a materialized view'
        when t.relkind = 'f' then 'a foreign table'
        else 'not a table'
    end;
    if kind is null and t.relkind = 'r' and t.relhassubclass then
        kind := 'a table from which others inherit';
    end if;
    if kind is not null then
        raise '"%" cannot be a collection', target
            using errcode = 'wrong_object_type',
                detail = format('It is %s, and what refers to it cannot be known.', kind),
                hint = case
                    when t.relispartition then format('select * from gc.track(%L);',
                        pg_partition_root(target))
                    else 'Track the table that has the rows.'
                end;
    end if;
    if (gc._key(target)).names is null then
        raise '"%" has no primary key', target
            using errcode = 'invalid_table_definition',
                detail = 'A review finds a row again by its key.',
                hint = format('alter table %s add primary key (…);', target);
    end if;
end;
$$;

comment on function gc._require_table(regclass) is
    'Raises for what is not a table with a primary key.';


create function gc._names(c gc.collections)
    returns table (kind text, name text, hint text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with tables(id) as (
        select gc._partitions(c.target)
        union
        select gc._partitions(r.referencing) from gc._references(c) as r
    )
    select 'collection', c.name, format('select * from gc.track(%L, name => ''…'');', c.target)
    union all
    select 'table', t.relname, format('alter table %s rename to …;', t.oid::regclass)
    from tables as i join pg_class as t on t.oid = i.id
    union all
    select 'schema', n.nspname, format('alter schema %I rename to …;', n.nspname)
    from tables as i join pg_class as t on t.oid = i.id
    join pg_namespace as n on n.oid = t.relnamespace
    union all
    select 'column', u.name, format('alter table %s rename column %I to …;', u.id, u.name)
    from (
        select c.target, a.attname from pg_attribute as a
        where a.attrelid = c.target and a.attnum > 0 and not a.attisdropped
        union all
        select r.referencing, unnest(
            r.columns || (r.mention).columns || gc._columns(p.partrelid, p.partattrs))
        from gc._references(c) as r
        left join pg_partitioned_table as p on p.partrelid = r.referencing
    ) as u(id, name)
$$;

comment on function gc._names(gc.collections) is
    'The names that generated code is made of, and how each is changed.';


create function gc._expressions(c gc.collections)
    returns table (what text, expression text, categories text, wanted text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select e.*
    from (values
        ('url', c.url, 'SA', 'text or text[], and computed from the row alone'),
        ('size', c.size, 'N', 'a number of bytes, computed from the row alone'),
        ('label', c.label, 'SNU', 'text, computed from the row alone'),
        ('generation', c.generation, 'SN', 'text or a number, computed from the row alone'),
        ('condition', c.condition, 'B', 'true or false, computed from the row and the time')
    ) as e(what, expression, categories, wanted)
    where e.expression is not null
$$;

comment on function gc._expressions(gc.collections) is
    'The expressions of a collection, and of what type they have to be.';


-- Generated code uses them for purposes of its own.
create function gc._require_names(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    found_one record;
begin
    select n.* into found_one from gc._names(c) as n
    where n.name ~ '[\u0001-\u001f\u007f]' order by n.kind, n.name limit 1;
    if found then
        raise 'the name of the % % has a control character', found_one.kind,
            to_json(found_one.name)
            using errcode = 'invalid_name',
                detail = 'Line breaks, tabs and the like in a name are not supported.',
                hint = found_one.hint;
    end if;
    select e.what, e.expression into found_one
    from (
        select x.what, x.expression from gc._expressions(c) as x
        union all
        select 'events', v.value from jsonb_each_text(c.events) as v
    ) as e(what, expression)
    where e.expression ~ '[\u0001-\u0008\u000b\u000c\u000e-\u001f\u007f]'
        or e.what = 'events' and e.expression ~ '[\n\r\t]'
    limit 1;
    if found then
        raise 'the argument % has a control character', found_one.what
            using errcode = 'invalid_parameter_value',
                detail = format('%s is not supported.', to_json(found_one.expression)),
                hint = 'Write chr(…) in its place.';
    end if;
end;
$$;

comment on function gc._require_names(gc.collections) is
    'Raises for a control character in what generated code is made of.';


-- A review acts with the rights of blobgc's owner: what is missing is told now, not at night.
create function gc._require_rights(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    relation regclass;
    needed text;
begin
    select w.relation, w.needed into relation, needed
    from (
        select c.target, case when c.collect = 'garbage' then 'select, update, delete, trigger'
            else 'select, update, trigger' end
        union all
        select r.referencing, concat_ws(', ', 'select',
            case when r.owned is null or gc._is_mention(r) then 'trigger' end,
            case when r.owned is not null then 'delete' end)
        from gc._references(c) as r
    ) as w(relation, needed)
    where exists (
        select from regexp_split_to_table(w.needed, ', ') as p
        where not has_table_privilege(w.relation, p)
    )
    limit 1;
    if found then
        raise '% may not do all that a review of "%" does', current_user, c.name
            using errcode = 'insufficient_privilege',
                detail = format('It needs %s on %s.', needed, relation),
                hint = format('grant %s on %s to %I;', needed, relation, current_user);
    end if;
end;
$$;

comment on function gc._require_rights(gc.collections) is
    'Raises if the owner of blobgc lacks a right on a table that a review touches.';


create function gc._require_undo(undo interval)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if undo < '0' or undo > '10 years' then
        raise 'an undo window is between nothing and ten years'
            using errcode = 'invalid_parameter_value',
                detail = format('undo is %s.', undo),
                hint = 'Leave undo out for that of gc.settings.';
    end if;
end;
$$;

comment on function gc._require_undo(interval) is 'Raises for an undo window that is none.';


create function gc._restored_flaw(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when jsonb_typeof(c.restored) <> 'object' then 'It is not of the form {"column": "value"}.'
        when c.restored <> '{}' and c.condition is null
            then 'Without a condition, no value makes a row garbage.'
        else (
            select format('"%s" is not a column that can be set.', r.key)
            from jsonb_object_keys(c.restored) as r(key)
            where not exists (
                select from pg_attribute as a
                where a.attrelid = c.target and a.attname = r.key and a.attnum > 0
                    and not a.attisdropped and a.attgenerated = ''
                    and a.attname <> all ((gc._key(c.target)).names)
            )
            limit 1
        )
    end
$$;

comment on function gc._restored_flaw(gc.collections) is
    'Why rows that come back cannot get what gc.track was told; null: they can.';


create function gc._restored_value(c gc.collections, name name)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('%L::%s', c.restored ->> name, format_type(a.atttypid, a.atttypmod))
    from pg_attribute as a
    where a.attrelid = c.target and a.attname = name and c.restored ? a.attname
$$;

comment on function gc._restored_value(gc.collections, name) is
    'The expression for what a column gets in a row that was collected and comes back; null: what '
    'it had.';


create function gc._refuse_restored(c gc.collections, flaw text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if flaw is not null then
        raise 'restored rows cannot get %', c.restored
            using errcode = 'invalid_parameter_value', detail = flaw,
                hint = 'condition => ''deleted_at is not null'' goes with '
                    'restored => ''{"deleted_at": null}''.';
    end if;
end;
$$;

comment on function gc._refuse_restored(gc.collections, text) is
    'Raises for values that rows which come back cannot get; nothing where there is no flaw.';


-- As its column would read it, so that no restore fails because of it.
create function gc._require_restored_values(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
begin
    if c.restored <> '{}' then
        execute (
            select 'select ' || string_agg(gc._restored_value(c, r.key), ', ')
            from jsonb_object_keys(c.restored) as r(key)
        );
    end if;
exception
    when data_exception or integrity_constraint_violation then
        perform gc._refuse_restored(c, format('A value does not fit: %s.', sqlerrm));
end;
$$;

comment on function gc._require_restored_values(gc.collections) is
    'Reads each value that rows get which come back; raises for one that does not fit.';


-- A version belongs to one object.
create function gc._has_several(c gc.collections)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    parsed regclass;
    several boolean;
begin
    if c.url is null then
        return false;
    end if;
    parsed := gc._parse_expression(c.target, 'url', c.url);
    several := (
        select t.typcategory = 'A' from pg_attribute as a
        join pg_type as t on t.oid = a.atttypid
        where a.attrelid = parsed and a.attname = 'value'
    );
    drop view gc._expression;
    if several and c.generation is not null then
        raise 'a url that is an array cannot have a generation'
            using errcode = 'feature_not_supported',
                detail = 'Which version of which object is meant, it would not say.',
                hint = 'Leave generation out, or make a table with a row for each object.';
    end if;
    return several;
end;
$$;

comment on function gc._has_several(gc.collections) is
    'Whether the url is an array, so that a row may have several objects.';


create function gc._require_collect(c gc.collections)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if c.collect is null or c.collect not in ('garbage', 'deleted') then
        raise 'a collection cannot collect "%"', coalesce(c.collect, 'null')
            using errcode = 'invalid_parameter_value',
                detail = 'garbage: rows that nothing keeps, and their objects. deleted: only the '
                    'objects of rows that the application deletes.',
                hint = 'Leave collect out for garbage.';
    end if;
    if c.collect = 'deleted' and (c.condition is not null or c.owned <> '{}') then
        raise 'collect => ''deleted'' goes with neither condition nor owned'
            using errcode = 'invalid_parameter_value',
                detail = 'Rows are never garbage then: only the objects of deleted rows go.',
                hint = 'Leave out collect, or condition and owned.';
    end if;
end;
$$;

comment on function gc._require_collect(gc.collections) is
    'Raises for what cannot be collected, or not with the other arguments.';


create function gc._check_definition(c gc.collections)
    returns name[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._require_table(c.target);
    perform gc._require_declared(c);
    perform gc._require_names(c);
    perform gc._require_trusted(c);
    perform gc._require_indexes(c);
    perform gc._require_owned(c);
    perform gc._require_keepers_back(c);
    perform gc._require_locking(c);
    perform gc._require_unsubscribed(c);
    perform gc._require_events(c);
    perform gc._require_rights(c);
    perform gc._require_lockable(c);
    return array(
        select unnest((gc._key(c.target)).names)
        union
        select unnest(r.targets) from gc._all_references(c.target) as r
        union
        select unnest(gc._check_expression(c.target, e.what, e.expression, e.categories, e.wanted))
        from gc._expressions(c) as e
        order by 1
    );
end;
$$;

comment on function gc._check_definition(gc.collections) is
    'Raises if the definition does not fit the table; returns the columns that it uses.';
