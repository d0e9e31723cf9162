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
    condition text, collect text, several boolean, turns text,
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
            join pg_class as o on o.oid in (r.referencing, gc._root(r.referencing))
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


-- A cast of a literal was done when it was written down.
create function gc._may_read_times(c gc._shape)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from unnest(array[c.url, c.size, c.label, c.generation]) as e(written)
        where regexp_replace(e.written, $re$'([^']|'')*'(::[a-z ]+)?$re$
            || $re$|::(text|character varying|smallint|integer|bigint|numeric)\M$re$
            || $re$|::(boolean|uuid|bytea)\M$re$, '', 'g') ~ '::|to_timestamp'
    )
$$;

comment on function gc._may_read_times(gc._shape) is
    'Whether an expression about an object may read a time from a text.';


-- How values are printed must not depend on who happens to delete a row.
create function gc._print_settings(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select concat_ws(E'\n', case when not c.is_plain then gc._fixed_settings_sql()
            else string_agg(distinct s.line, E'\n' order by s.line) end,
        case when gc._may_read_times(c) then gc._zone_settings() end)
    from pg_attribute as a
    join pg_type as t on t.oid = a.atttypid
    join (values
        ('bytea', 'set bytea_output = ''hex'''),
        ('D', 'set datestyle = ''ISO'''), ('D', 'set timezone = ''UTC'''),
        ('T', 'set intervalstyle = ''postgres'''),
        ('float', 'set extra_float_digits = 1')
    ) as s(kind, line)
        on s.kind in (t.typname, t.typcategory::text)
            or (s.kind = 'float' and t.typname in ('float4', 'float8'))
            or t.typcategory not in ('B', 'D', 'E', 'I', 'N', 'S', 'T', 'U')
    where a.attrelid = c.target and a.attname = any (c.columns)
$$;

comment on function gc._print_settings(gc._shape) is
    'The settings under which the columns that are used print in one way only.';


-- A store tells A from a, whatever the collation of a column says.
create function gc._collated_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.url || concat(c.generation) ~* '\mcollate\M' or exists (
        select from pg_attribute as a
        join pg_collation as o on o.oid = a.attcollation and o.collname <> 'default'
        where a.attrelid = c.target and a.attname = any (c.columns)
    ) then ' collate pg_catalog."default"' else '' end
$$;

comment on function gc._collated_sql(gc._shape) is
    'What makes a url be compared byte for byte; empty where it is anyway.';


-- A number that is no size, over a pebibyte or not a number at all, must not fail a statement, nor
-- a sum.
create function gc._size_sql(c gc._shape)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select format(
        'case when (%1$s)::numeric between 0 and 1125899906842624 then (%1$s)::bigint end', c.size)
    where c.size is not null
$$;

comment on function gc._size_sql(gc._shape) is 'The expression for an object''s size.';


-- No two rows have one url because no two rows have one key, and perhaps because of a CHECK. A plan
-- ends when one of the constraints goes.
create function gc._proved_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format('gc._has_check(%s)', k.oid), ' and ' order by k.oid)
    from pg_constraint as k
    where k.conrelid = c.target and (k.contype = 'p' or k.oid = c.proof)
$$;

comment on function gc._proved_sql(gc._shape) is
    'The condition that what makes a url a row''s own is still there.';


-- An index that has what the settings of a session made of a url would not find its row.
create function gc._findable(c gc._shape, url text, nothing text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when exists (
        select from gc.collections as o where o.name = c.name and o.url_flaw is not null
    ) then format('((%s) || %s)', url, nothing) else format('(%s)', url) end
$$;

comment on function gc._findable(gc._shape, text, text) is
    'A url as it is looked for: with nothing added where no index is to be asked.';


-- A row of a url that is an array is joined with its objects: each of them once, in their order.
-- Its size is that of all together, so the first has it; what an update took out has none. The
-- first condition on the url finds rows by an index, the second compares.
create function gc._object_words(c gc._shape, collated text)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.several then jsonb_build_object(
        'each', format(' cross join lateral (select o.url, row_number() over (order by min(o.n)) '
            'from (select i.url collate pg_catalog."default", i.n from unnest(%s) '
            'with ordinality as i(url, n)) as o(url, n) where o.url is not null group by o.url) '
            'as object(url, n)', c.url),
        'url', 'object.url',
        'no_object', format('coalesce(cardinality(array_remove(%s, null)), 0) = 0', c.url),
        'object_size', coalesce(
            'case when object.n = 1 then ' || gc._size_sql(c) || ' end', 'null::bigint'),
        'old_size', 'null::bigint',
        'same_url', concat_ws(' and ', gc._findable(c, c.url, '''{}''') || ' @> array[d.url]',
            case when collated <> '' then format('exists (select from unnest(%s) as o(url) '
                'where o.url%s = d.url)', c.url, collated) end))
    else jsonb_build_object(
        'each', '',
        'url', gc._text_sql(c.url) || collated,
        'no_object', gc._text_sql(c.url) || collated || ' is null',
        'object_size', coalesce(gc._size_sql(c), 'null::bigint'),
        'old_size', coalesce(gc._size_sql(c), 'null::bigint'),
        'same_url', concat_ws(' and ',
            gc._findable(c, gc._text_sql(c.url), '''''') || ' = d.url',
            case when collated <> '' then gc._text_sql(c.url) || collated || ' = d.url' end))
    end
$$;

comment on function gc._object_words(gc._shape, text) is
    'What stands for the words about a row''s object, or its objects, in templates.';


create function gc._words(c gc._shape)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object(
        'name', quote_literal(c.name),
        'target', c.target::text,
        'table', quote_literal(c.target),
        'alias', c.alias,
        'queue', format('gc.%I', gc._object_name(c.name, '_review_queue')),
        'keys', gc._idents(k.names),
        't_keys', gc._idents(k.names, 't.'),
        'queue_keys', gc._idents(k.queue_names),
        'q_keys', gc._idents(k.queue_names, 'q.'),
        't_is_q', gc._pair(k.names, 't', k.queue_names, 'q', k.operators),
        'later_is_q', gc._entry_pair(c.key, 'later', k.queue_names, 'q', k.operators),
        'key_text', gc._text_of(k.names, c.alias),
        'q_key_text', gc._text_of(k.queue_names, 'q'),
        't_key_text', gc._text_of(k.names, 't'),
        'label', gc._text_sql(c.label),
        'size', coalesce(gc._size_sql(c), 'null::bigint'),
        'generation', coalesce(
            'nullif((' || c.generation || ')::text, '''')' || u.collated, 'null::text'),
        'computed', (
            select string_agg(format('count(%s)', e), ', ')
            from unnest(array[c.url, c.generation, c.label, gc._size_sql(c)]) as e
            where e is not null
        ),
        'due_at', case when c.undo = '0' then 'now()'
            else format('now() + interval %L', c.undo) end,
        'wait_for', case
            when c.shared then 'null::xid8'
            else format('case when %s then ''0''::xid8 end', gc._proved_sql(c))
        end,
        'old_rows', 'old_rows', 'new_rows', 'new_rows', 'whole_rows', 'old_rows',
        'whole_old', 'to_jsonb(o)', 'whole_new', 'array(select to_jsonb(n) from new_rows as n)',
        'settings', gc._print_settings(c),
        'by_index', gc._index_settings()
            || E'\nset enable_hashjoin = off\nset enable_mergejoin = off'
    ) || gc._object_words(c, u.collated)
    from (select (c.key).*) as k
    cross join lateral coalesce(gc._collated_sql(c), '') as u(collated)
$$;

comment on function gc._words(gc._shape) is 'What stands for the words in templates.';


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
        gc._as_written(c.target, 'condition', c.condition), c.collect, c.several, gc._turns(c),
        c.events, gc._undo(c), c.columns, c.shared,
        c.proof, c.url is not null and gc._has_url_index(c), replace(c.url_prefix, E'\n', chr(1)),
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
        s.name, s.target, s.alias, s.url, s.size, s.label, s.generation, s.condition, s.collect,
        s.several, s.turns, s.events, s.undo, s.columns, s.shared, s.proof, s.url_index,
        s.url_prefix, s.object_columns, _complete_shape.is_plain, s.key, s.refs,
        _complete_shape.links, _complete_shape.words
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
    return gc._complete_shape(s, s.is_plain, s.links,
        gc._words(s) || gc._finalizer_words(c) || '{"causes": "this.causes"}');
end;
$$;

comment on function gc._shape(gc.collections) is
    'Reads the catalog for a collection, once.';


-- The body is quoted like any other text: a name in it may contain what it likes.
create function gc._function_sql(
    c gc._shape, suffix text, header text, body text, words jsonb default '{}'
)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(header, w.words)
        || E'\nas ' || quote_literal(E'\n' || gc._render(body, w.words) || E'\n')
    from (
        select c.words || jsonb_build_object(
            'function', quote_ident(gc._object_name(c.name, suffix))) || _function_sql.words
    ) as w(words)
$$;

comment on function gc._function_sql(gc._shape, text, text, text, jsonb) is
    'The statement that creates a function of a collection.';
