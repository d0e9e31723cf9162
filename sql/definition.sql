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


-- Without an index, every review would read the whole referring table for every row.
create function gc._require_indexes(target regclass)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    r gc._reference;
begin
    select f.* into r
    from gc._foreign_keys(target) as f
    where not gc._has_index(f.referencing, f.columns)
    limit 1;
    if found then
        raise '% refers to "%" without an index', r.reference, target
            using errcode = 'invalid_table_definition',
                detail = 'Every review would read that table from end to end.',
                hint = format('create index concurrently on %s (%s);',
                    r.referencing, gc._idents(r.columns));
    end if;
end;
$$;

comment on function gc._require_indexes(regclass) is
    'Raises for a reference whose columns have no index.';


create function gc._require_owned(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    unknown text;
begin
    select o.item into unknown
    from unnest(c.owned) as o(item)
    where not exists (
        select from gc._foreign_keys(c.target) as f
        where regexp_replace(o.item, '\s*,\s*', ',', 'g')
            = any (gc._spellings(f.referencing, f.columns))
    )
    limit 1;
    if found then
        raise 'no foreign key of "%" refers to "%"', unknown, c.target
            using errcode = 'undefined_object',
                detail = format('References: %s.', coalesce(
                    (select string_agg(f.reference, ', ') from gc._foreign_keys(c.target) as f),
                    'none')),
                hint = 'Name one of them in owned, or leave it out.';
    end if;
end;
$$;

comment on function gc._require_owned(gc.collections) is
    'Raises for a name in "owned" that is no foreign key into the table.';


create function gc._usual_events(c gc.collections)
    returns setof text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.name || '_' || o.operation
    from (values ('insert'), ('update'), ('scan')) as o(operation)
    union
    select gc._table_event(r.referencing, o.operation)
    from gc._references(c) as r
    cross join (values ('delete'), ('update')) as o(operation)
    where r.owned is null
$$;

comment on function gc._usual_events(gc.collections) is
    'The events that a collection has, under their usual names.';


create function gc._require_events(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    unknown text;
begin
    select e.key into unknown
    from jsonb_each(c.events) as e
    where e.key not in (select u from gc._usual_events(c) as u)
        or jsonb_typeof(e.value) <> 'string' or e.value = '""'
    limit 1;
    if found then
        raise 'the event "%" of "%" cannot be named so', unknown, c.name
            using errcode = 'invalid_parameter_value',
                detail = format('Events: %s.',
                    (select string_agg(u, ', ' order by u) from gc._usual_events(c) as u)),
                hint = format('events => %L', jsonb_build_object(
                    c.name || '_insert', c.name || '_upload'));
    end if;
end;
$$;

comment on function gc._require_events(gc.collections) is
    'Raises for an event that a collection does not have, or that is given no name.';


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
        select c.target, 'select, update, delete, trigger'
        union all
        select r.referencing, case when r.owned is null then 'select, trigger'
            else 'select, delete' end
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


create function gc._expressions(c gc.collections)
    returns table (what text, expression text, categories text, wanted text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select e.*
    from (values
        ('url', c.url, 'S', 'text, and computed from the row alone'),
        ('size', c.size, 'N', 'a number of bytes, computed from the row alone'),
        ('label', c.label, 'SNU', 'text, computed from the row alone'),
        ('generation', c.generation, 'SN', 'text or a number, computed from the row alone'),
        ('condition', c.condition, 'B', 'true or false, computed from the row and the time')
    ) as e(what, expression, categories, wanted)
    where e.expression is not null
$$;

comment on function gc._expressions(gc.collections) is
    'The expressions of a collection, and of what type they have to be.';


create function gc._check_definition(c gc.collections)
    returns name[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._require_table(c.target);
    perform gc._require_indexes(c.target);
    perform gc._require_owned(c);
    perform gc._require_events(c);
    perform gc._require_rights(c);
    return array(
        select unnest((gc._key(c.target)).names)
        union
        select unnest(gc._check_expression(c.target, e.what, e.expression, e.categories, e.wanted))
        from gc._expressions(c) as e
        order by 1
    );
end;
$$;

comment on function gc._check_definition(gc.collections) is
    'Raises if the definition does not fit the table; returns the columns that it uses.';


create function gc._shares_objects(c gc.collections)
    returns boolean
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select not (gc._key(c.target)).names
        <@ gc._check_expression(c.target, e.what, e.expression, e.categories, e.wanted)
    from gc._expressions(c) as e
    where e.what = 'url'
    union all
    select false
    limit 1
$$;

comment on function gc._shares_objects(gc.collections) is
    'Whether rows may have one object together: their url is not built from the whole key.';


-- Both texts are PostgreSQL's own; they differ in parentheses and in the table's name.
create function gc._has_url_index(c gc.collections)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    alias text := quote_ident(gc._alias(c.target));
    parsed regclass := gc._parse_expression(c.target, 'url', c.url);
    expression text := regexp_replace(
        pg_get_viewdef(parsed), '^\s*SELECT (.*) AS value\s+FROM.*$', '\1');
begin
    drop view gc._expression;
    return exists (
        select from pg_index as i
        where i.indrelid = c.target and i.indisvalid and i.indpred is null
            and regexp_replace(pg_get_indexdef(i.indexrelid, 1, false), '[()\s]', '', 'g')
                = regexp_replace(replace(expression, alias || '.', ''), '[()\s]', '', 'g')
    );
end;
$$;

comment on function gc._has_url_index(gc.collections) is
    'Whether an index finds the rows that have a url.';
