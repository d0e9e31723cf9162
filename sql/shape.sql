-- The shape of a collection: its definition, and what the catalog says about its table, read once.
--
-- Templates are text over a shape and nothing else: whatever they need to know of the catalog is
-- here. It is made anew for each generation, and kept nowhere.

create type gc._link as (
    relation regclass, links name, columns name[], link_columns name[], types text[],
    operators text[]
);

comment on type gc._link is
    'A partitioned table that refers to a collection: its partition key, and that in its links.';


create type gc._shape as (
    name text, target regclass, alias text, url text, size text, label text, generation text,
    condition text,
    events jsonb, undo interval, columns name[], shared boolean, proof oid, url_index boolean,
    url_prefix text, object_columns name[], is_plain boolean, key gc._key_columns,
    refs gc._reference[], links gc._link[], words jsonb
);

comment on type gc._shape is
    'A collection as templates see it: definition, key, references, links, and words.';


-- What a table is called in the names of functions: without its schema while that is enough. The
-- collections a and a_b could make one name with two tables, b_c and c.
create function gc._short_name(c gc._shape, relation regclass)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when exists (
            select from unnest(c.refs) as r
            join pg_class as o on o.oid = r.referencing
            where o.relname = t.relname and o.oid <> t.oid
        ) or exists (
            select from gc.collections as o
            where starts_with(o.name, c.name || '_') or starts_with(c.name, o.name || '_')
        ) then format('%s_%s_%s', n.nspname, t.relname, substr(md5(relation::text), 1, 6))
        else t.relname
    end
    from pg_class as t
    join pg_namespace as n on n.oid = t.relnamespace
    where t.oid = relation
$$;

comment on function gc._short_name(gc._shape, regclass) is
    'A referring table''s name, with more than that only where it would not be enough.';


create function gc._links(c gc._shape)
    returns setof gc._link
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select l.relation, gc._object_name(c.name, format('_%s_links', l.short_name)), p.columns,
        array(
            select case
                when gc._object_name('in_', u.name) = any ((c.key).queue_names)
                    then gc._object_name('in_partition_', u.name)
                else gc._object_name('in_', u.name)
            end
            from unnest(p.columns) with ordinality as u(name, n) order by u.n
        ),
        p.types, p.operators
    from (
        select distinct r.referencing, gc._short_name(c, r.referencing)
        from unnest(c.refs) as r
        where r.linked
    ) as l(relation, short_name)
    cross join lateral gc._partition_key(l.relation) as p
$$;

comment on function gc._links(gc._shape) is
    'The tables that refer to a collection from partitions, and what their links are called.';


-- As PostgreSQL writes an expression down, it means the same under every setting of a session: all
-- names are in full, and a text with a backslash says so.
create function gc._as_written(target regclass, what text, expression text)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    parsed regclass;
    written text;
begin
    if expression is null then
        return null;
    end if;
    parsed := gc._parse_expression(target, what, expression);
    written := substring(
        pg_get_viewdef(parsed) from '^\s*SELECT (.*) AS value\n   FROM [^\n]*$');
    drop view gc._expression;
    return written;
end;
$$;

comment on function gc._as_written(regclass, text, text) is
    'The expression as PostgreSQL prints it.';


-- PostgreSQL calls the table something else where its own name means another thing in a view.
create function gc._written_alias(target regclass)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    parsed regclass := gc._parse_expression(target, 'name', 'true');
    written text := substring(pg_get_viewdef(parsed) from '\n   FROM ([^\n]*);$');
begin
    drop view gc._expression;
    return coalesce(nullif(substr(written, length(target::text) + 2), ''),
        quote_ident(gc._alias(target)));
end;
$$;

comment on function gc._written_alias(regclass) is
    'What the table is called in expressions as PostgreSQL prints them.';


-- Columns, text and concatenation: nothing in it can raise.
create function gc._is_plain(s gc._shape)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select not exists (
        select from unnest(array[s.url, s.size, s.label, s.generation]) as e(written)
        where regexp_replace(e.written, $re$'([^'\\]|'')*'|"([^"]|"")*"$re$
            || $re$|\mencode\([\w.]+, '(hex|base64)'::text\)$re$
            || $re$|\m[a-z_][a-z0-9_$]*\M(?!\()|::text\M|\|\||[().\s]$re$, '', 'g') <> ''
    ) and not exists (
        select from pg_attribute as a
        where a.attrelid = s.target and a.attname = any (s.columns)
            and a.atttypid <> all (array[
                'int2', 'int4', 'int8', 'text', 'varchar', 'uuid', 'bool', 'bytea'
            ]::regtype[])
    )
$$;

comment on function gc._is_plain(gc._shape) is
    'Whether the expressions about an object can be computed for every row.';


create function gc._object_columns(c gc.collections)
    returns name[]
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select array(
        select distinct u
        from gc._expressions(c) as e
        cross join lateral unnest(gc._check_expression(
            c.target, e.what, e.expression, e.categories, e.wanted)) as u
        where e.what in ('url', 'generation')
        order by 1
    )
$$;

comment on function gc._object_columns(gc.collections) is
    'The columns that tell which object, and which version of it, a row has.';


create function gc._read_shape(c gc.collections)
    returns gc._shape
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select (
        c.name, c.target, gc._written_alias(c.target), gc._as_written(c.target, 'url', c.url),
        gc._as_written(c.target, 'size', c.size), gc._as_written(c.target, 'label', c.label),
        gc._as_written(c.target, 'generation', c.generation),
        gc._as_written(c.target, 'condition', c.condition), c.events, c.undo, c.columns, c.shared,
        c.proof, c.url is not null and gc._has_url_index(c), c.url_prefix,
        gc._object_columns(c), null, gc._key(c.target),
        array(select r from gc._references(c) as r), null, null
    )::gc._shape
$$;

comment on function gc._read_shape(gc.collections) is
    'The shape of a collection, as far as the catalog tells it.';


create function gc._complete_shape(s gc._shape, is_plain boolean, links gc._link[], words jsonb)
    returns gc._shape
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select (
        s.name, s.target, s.alias, s.url, s.size, s.label, s.generation, s.condition, s.events,
        s.undo, s.columns, s.shared, s.proof, s.url_index, s.url_prefix,
        s.object_columns, _complete_shape.is_plain, s.key, s.refs, _complete_shape.links,
        _complete_shape.words
    )::gc._shape
$$;

comment on function gc._complete_shape(gc._shape, boolean, gc._link[], jsonb) is
    'A shape with what can be told from the rest of it.';


create function gc._shape(c gc.collections)
    returns gc._shape
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    s gc._shape := gc._read_shape(c);
begin
    s := gc._complete_shape(s, gc._is_plain(s), array(select l from gc._links(s) as l), null);
    return gc._complete_shape(s, s.is_plain, s.links, gc._words(s));
end;
$$;

comment on function gc._shape(gc.collections) is
    'Reads the catalog for a collection, once.';
