-- Declared references: what refers to a collection without a foreign key. A column, an array, a
-- pair of type and id, a mention in JSON or in text.
--
-- A declared reference is as safe as a foreign key: whoever writes one locks what it refers to, see
-- sql/mentions.sql. So it is a reference like any other from here on, and a keeper like any other.

create table gc.declared_references (
    collection text not null,
    referencing regclass not null,
    keys text not null,
    by_column name,
    condition text,
    is_strict boolean not null default false,
    worked_out jsonb not null default '{}',
    declared_at timestamptz not null default now(),
    constraint declared_references_pkey primary key (collection, referencing, keys)
);

comment on table gc.declared_references is
    'References that are no foreign keys; see gc.declare_reference.';
comment on column gc.declared_references.collection is 'The collection that is referred to.';
comment on column gc.declared_references.referencing is 'The table whose rows refer to it.';
comment on column gc.declared_references.keys is
    'What a row refers to, as an expression: a key, or an array of keys.';
comment on column gc.declared_references.by_column is
    'The column of the collection that keys are values of; null: its primary key.';
comment on column gc.declared_references.condition is
    'Which rows refer to it, as an expression; null: all of them.';
comment on column gc.declared_references.is_strict is 'A key that is not there is refused.';
comment on column gc.declared_references.worked_out is
    'What the expressions read, and how PostgreSQL writes them: what code is made from.';
comment on column gc.declared_references.declared_at is 'When it was first declared.';


create function gc._mention(d gc.declared_references)
    returns gc._mention
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select * from jsonb_populate_record(null::gc._mention, d.worked_out) $$;

comment on function gc._mention(gc.declared_references) is
    'What was worked out about a declared reference.';


create function gc._declared_place(d gc.declared_references)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
as $$ select format('%s(%s)', d.referencing, d.keys) $$;

comment on function gc._declared_place(gc.declared_references) is
    'What a declared reference is called: a table and the expression for its keys.';


-- A table or a column that is gone refers to nothing any more.
create function gc._is_there(d gc.declared_references)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pg_class as r where r.oid = d.referencing) and not exists (
        select from jsonb_array_elements_text(d.worked_out -> 'columns') as u(name)
        where not exists (
            select from pg_attribute as a
            where a.attrelid = d.referencing and a.attname = u.name and not a.attisdropped
        )
    )
$$;

comment on function gc._is_there(gc.declared_references) is
    'Whether the table of a declared reference, and all columns that it reads, are there still.';


create function gc._declared(target regclass)
    returns setof gc._reference
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select d.referencing, m.key_columns, array[m.target_column], array[m.comparison],
            'a'::"char", d.by_column is null, gc._declared_place(d), null::integer, false,
            d.referencing = _declared.target, m, 1, null::text, false, null::gc._passage
        from gc.collections as c
        join gc.declared_references as d on d.collection = c.name
        cross join lateral gc._mention(d) as m
        where c.target = _declared.target and m.written is not null and gc._is_there(d)
        order by 7;
end;
$$;

comment on function gc._declared(regclass) is 'Every declared reference into a table.';


create function gc._declared_keepers(target regclass)
    returns setof gc._keeper
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
as $$
    select 0::oid, p.part::oid, null::smallint[], c.target::oid,
        case when p.part = d.referencing then gc._declared_place(d)
            else format('%s(%s)', p.part, d.keys) end,
        p.part <> d.referencing, gc._declared_place(d), d.keys
    from gc.collections as c
    join gc.declared_references as d on d.collection = c.name
    cross join lateral gc._partitions(d.referencing) as p(part)
    where c.target = _declared_keepers.target and gc._is_there(d)
$$;

comment on function gc._declared_keepers(regclass) is
    'Every declared reference into a table, and the partitions that it is made from.';


create function gc._declared_tables(target regclass)
    returns setof oid
    language plpgsql
    stable
    rows 2
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select d.referencing::oid
        from gc.collections as c
        join gc.declared_references as d on d.collection = c.name
        where c.target = _declared_tables.target;
end;
$$;

comment on function gc._declared_tables(regclass) is
    'The tables that refer to a collection by declaration.';


-- Part of the fingerprint: a function that was replaced, was dropped or has another owner now makes
-- the code be generated again, or blocks the collection if that is not possible.
create function gc._declared_facts(target regclass)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select string_agg((d.referencing::oid, d.keys, d.by_column, d.condition, d.is_strict,
            d.worked_out, array(
            select (p.oid, p.xmin, p.proowner)::text
            from jsonb_array_elements_text(d.worked_out -> 'functions') as f(id)
            join pg_proc as p on p.oid = f.id::oid
            order by p.oid
        ), array(
            select (a.attnum, a.attname, a.atttypid, a.atttypmod, a.attcollation)::text
            from pg_attribute as a
            where a.attrelid = d.referencing and d.worked_out -> 'columns' ? a.attname::text
            order by a.attnum
        ))::text, ' ' order by d.referencing::oid, d.keys)
        from gc.collections as c
        join gc.declared_references as d on d.collection = c.name
        where c.target = _declared_facts.target
    );
end;
$$;

comment on function gc._declared_facts(regclass) is
    'What the generated code of a collection depends on in its declared references.';


create function gc._raise_declared(message text, detail text, hint text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    raise '%', message
        using errcode = 'invalid_parameter_value', detail = detail, hint = hint;
end;
$$;

comment on function gc._raise_declared(text, text, text) is
    'Raises for a reference that cannot be declared so.';


create function gc._declare_sql(d gc.declared_references)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('select * from gc.declare_reference(%s);', concat_ws(', ',
        quote_literal(d.collection), quote_literal(d.referencing), quote_literal(d.keys),
        'by => ' || quote_literal(d.by_column), 'condition => ' || quote_literal(d.condition),
        case when d.is_strict then 'strict => true' end))
$$;

comment on function gc._declare_sql(gc.declared_references) is
    'The call that declares a reference as it is.';


-- What inherits from a table has triggers of its own.
create function gc._require_referring(d gc.declared_references)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    t pg_class;
    kind text;
begin
    select c.* into t from pg_class as c where c.oid = d.referencing;
    kind := case
        when t.oid is null then 'nothing that exists'
        when t.relpersistence = 't' then 'a temporary table'
        when t.relnamespace in ('gc'::regnamespace, 'pg_catalog'::regnamespace)
            then 'a table of the server or of blobgc'
        when t.relispartition then 'a partition'
        when t.relkind not in ('r', 'p') then 'not a table'
        when t.relkind = 'r' and t.relhassubclass and exists (
            select from pg_inherits as i where i.inhparent = t.oid
        ) then 'a table from which others inherit'
    end;
    if kind is not null then
        if t.relispartition then
            d.referencing := pg_partition_root(d.referencing);
        end if;
        raise '"%" cannot refer to a collection by declaration', t.oid::regclass
            using errcode = 'wrong_object_type',
                detail = format('It is %s, and what is written there cannot be followed.', kind),
                hint = case when t.relispartition then gc._declare_sql(d)
                    else 'Declare it for the table that has the rows.' end;
    end if;
end;
$$;

comment on function gc._require_referring(gc.declared_references) is
    'Raises for what is not a table, or whose rows are elsewhere.';


create type gc._target_column as (
    name name, type oid, is_bare boolean, "collation" oid, operator oid, family oid
);

comment on type gc._target_column is
    'The column of a collection that keys are values of, and the index by which it is found; '
    '"is_bare": every value of its type fits.';


create function gc._find_target(target regclass, by name)
    returns gc._target_column
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
as $$
    select (
        a.attname, gc._base_type(t.oid), a.atttypmod = -1 and t.typtype <> 'd',
        a.attcollation, o.amopopr, c.opcfamily
    )::gc._target_column
    from pg_index as i
    join pg_class as x on x.oid = i.indexrelid
    join pg_am as m on m.oid = x.relam and m.amname = 'btree'
    join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
    join pg_type as t on t.oid = a.atttypid
    join pg_opclass as c on c.oid = i.indclass[0]
    join pg_amop as o on o.amopfamily = c.opcfamily and o.amopstrategy = 3
        and o.amoplefttype = c.opcintype and o.amoprighttype = c.opcintype
    where i.indrelid = target and i.indisvalid
        and (i.indpred is null or pg_get_expr(i.indpred, i.indrelid)
            = format('(%I IS NOT NULL)', a.attname))
        and case when by is null then i.indisprimary and i.indnkeyatts = 1 else a.attname = by end
    order by i.indisunique desc, i.indexrelid
    limit 1
$$;

comment on function gc._find_target(regclass, name) is
    'The column that is referred to: this one, or the primary key; null if no index finds it.';


-- Keys are collected in an array, and taken out of it one by one: unnest would take apart more.
create function gc._require_single(c gc.collections, t gc._target_column)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from pg_type as y where y.oid = t.type and y.typcategory in ('A', 'C')) then
        perform gc._raise_declared(
            format('the values of "%s"(%I) are arrays or rows', c.target, t.name),
            'An array stands for the keys in it, so neither it nor a row can be a key itself.',
            'Make a foreign key, or name another column by which rows are referred to.');
    end if;
end;
$$;

comment on function gc._require_single(gc.collections, gc._target_column) is
    'Raises for a column to which no declared reference can refer.';


create function gc._require_target(c gc.collections, d gc.declared_references)
    returns gc._target_column
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    found_one gc._target_column := gc._find_target(c.target, d.by_column);
begin
    if found_one.name is not null then
        perform gc._require_single(c, found_one);
        return found_one;
    elsif d.by_column is null then
        d.by_column := '…';
        perform gc._raise_declared(
            format('the primary key of "%s" has several columns', c.target),
            'Keys are values of one column.', gc._declare_sql(d));
    elsif exists (
        select from pg_attribute as a
        where a.attrelid = c.target and a.attname = d.by_column and a.attnum > 0
            and not a.attisdropped
    ) then
        perform gc._raise_declared(
            format('nothing finds the rows of "%s" by %I', c.target, d.by_column),
            'Whoever writes a key would read the whole table to lock its row.',
            format('create %sindex %son %s (%I);',
                case when gc._concurrently(c.target) = '' then '' else 'unique ' end,
                gc._concurrently(c.target), c.target, d.by_column));
    end if;
    perform gc._raise_declared(format('"%s" has no column "%s"', c.target, d.by_column),
        'by is the column of the collection that the keys are values of.',
        'Name one of its columns, or leave by out for the primary key.');
    return null;
end;
$$;

comment on function gc._require_target(gc.collections, gc.declared_references) is
    'The column that is referred to; raises if it is none, or if no index finds it.';


create type gc._inspected as (
    columns name[], type oid, "collation" oid, functions oid[], written text, printed text,
    flaw text
);

comment on type gc._inspected is 'An expression of a declared reference, as PostgreSQL reads it.';


create function gc._mention_flaw(c gc.collections, parsed regclass)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select f.flaw
    from (
        select 1, gc._expression_flaw(c.target, parsed, false)
        union all
        select 2, format('%s is not immutable', p.oid::regprocedure)
        from pg_rewrite as r
        cross join lateral regexp_matches(r.ev_action::text, ':(?:op)?funcid (\d+)', 'g') as m
        join pg_proc as p on p.oid = m[1]::oid
        where r.ev_class = parsed and p.provolatile <> 'i'
        union all
        select 3, 'it reads a row as a whole, or more than its columns' from pg_rewrite as r
        where r.ev_class = parsed and r.ev_action::text ~ ':varattno (0|-\d+) '
        union all
        select 4, gc._unsteady_cast(r.ev_action::text) from pg_rewrite as r
        where r.ev_class = parsed
    ) as f(n, flaw)
    where f.flaw is not null
    order by f.n
    limit 1
$$;

comment on function gc._mention_flaw(gc.collections, regclass) is
    'Why an expression cannot be part of a declared reference; null if it can.';


create function gc._inspect(
    c gc.collections, d gc.declared_references, what text, expression text
)
    returns gc._inspected
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
as $$
declare
    alias text := gc._written_alias(d.referencing) || '.';
    parsed regclass := gc._parse_expression(d.referencing, what, expression);
    tree oid := (select r.oid from pg_rewrite as r where r.ev_class = parsed);
    written text := gc._written(parsed);
    seen gc._inspected := (
        select (
            array(
                select distinct a.attname
                from pg_depend as p
                join pg_attribute as a on a.attrelid = p.refobjid and a.attnum = p.refobjsubid
                where p.classid = 'pg_rewrite'::regclass and p.objid = tree
                    and p.refobjid = d.referencing and a.attnum > 0
                order by 1
            ),
            v.atttypid, v.attcollation,
            array(
                select distinct m[1]::oid from pg_rewrite as r
                cross join lateral
                    regexp_matches(r.ev_action::text, ':(?:op)?funcid (\d+)', 'g') as m
                where r.oid = tree and m[1]::oid >= 16384
                order by 1
            ),
            replace(written, E'\n', chr(1)),
            regexp_replace(replace(written, alias, ''), '[()\s]', '', 'g'),
            gc._mention_flaw(c, parsed)
        )::gc._inspected
        from pg_attribute as v
        where v.attrelid = parsed and v.attname = 'value'
    );
begin
    drop view gc._expression;
    return seen;
end;
$$;

comment on function gc._inspect(gc.collections, gc.declared_references, text, text) is
    'Reads an expression over one row of a table that refers to a collection.';


-- The operator by which an index of the collection compares; varchar has none of its own.
create function gc._key_operator(t gc._target_column, type oid)
    returns oid
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when t.type = key_operator.type then t.operator
        else (
            select o.amopopr from pg_amop as o
            where o.amopfamily = t.family and o.amopstrategy = 3
                and o.amoplefttype = key_operator.left_type
                and o.amoprighttype = key_operator.right_type
        )
    end
    from (
        select _key_operator.type,
            case t.type when 'varchar'::regtype then 'text'::regtype else t.type end,
            case _key_operator.type when 'varchar'::regtype then 'text'::regtype
                else _key_operator.type end
    ) as key_operator(type, left_type, right_type)
$$;

comment on function gc._key_operator(gc._target_column, oid) is
    'The operator that compares a key of this type with the column; null: there is none.';


-- Elements of an array are found by GIN only if they are of the very type, not of a domain over it.
create function gc._element_type(t gc._target_column, type oid)
    returns oid
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._base_type(y.typelem)
    from pg_type as y
    where y.oid = gc._base_type(_element_type.type) and y.typcategory = 'A' and y.typelem <> 0
        and y.oid <> t.type
$$;

comment on function gc._element_type(gc._target_column, oid) is
    'The type of the keys in an array; null: it is no array of keys.';


create function gc._require_types(
    c gc.collections, d gc.declared_references, t gc._target_column, type oid
)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    element oid := gc._element_type(t, type);
    fits boolean := case
        when element is null then gc._key_operator(t, gc._base_type(type)) is not null
        else exists (
                select from pg_type as y
                where y.oid = gc._base_type(_require_types.type) and y.typelem = element
            ) and (element = t.type
                or array[element, t.type] <@ array['text', 'varchar']::regtype[]::oid[])
    end;
begin
    if not fits then
        d.keys := format('(%s)::%s%s', d.keys, gc._type_name(t.type),
            case when element is not null then '[]' else '' end);
        raise 'keys of type % cannot be compared with "%"(%) by an index', format_type(type, null),
            c.target, quote_ident(t.name)
            using errcode = 'datatype_mismatch',
                detail = format('A key has to be of type %s, or an array of them.',
                    format_type(t.type, null)),
                hint = gc._declare_sql(d);
    end if;
end;
$$;

comment on function gc._require_types(
    gc.collections, gc.declared_references, gc._target_column, oid
) is 'Raises for keys of another type.';


create function gc._require_inspected(what text, expression text, flaw text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if flaw is not null then
        raise 'the % of a reference must be an immutable expression over one row', what
            using errcode = 'invalid_parameter_value',
                detail = format('%s: %s.', expression, flaw),
                hint = case what
                    when 'keys' then 'Name a column, or use immutable functions of the columns '
                        'of the table, which an index can be made of.'
                    else 'Compare columns of the table, with immutable functions if need be.'
                end;
    end if;
end;
$$;

comment on function gc._require_inspected(text, text, text) is
    'Raises for an expression that has a flaw.';


-- Columns and texts, compared: nothing in it can raise.
create function gc._cannot_raise(condition text)
    returns boolean
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(regexp_replace(condition, $re$'([^'\\]|'')*'|"([^"]|"")*"$re$
        || $re$|\m[a-z_][a-z0-9_$]*\M(?!\()|\mANY\M|::(text|character varying)\M(\[\])?$re$
        || $re$|\m(AND|OR|NOT|IS|NULL|ARRAY|IN|TRUE|FALSE)\M|<>|=|[().,\[\]\s\u0001]$re$, '', 'g'),
        '') = ''
$$;

comment on function gc._cannot_raise(text) is
    'Whether a condition can be computed for every row, as far as that can be seen.';


create function gc._comparing(t gc._target_column, i gc._inspected, element oid)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select '%1$s ' || gc._operator(gc._key_operator(t, coalesce(element, gc._base_type(i.type))))
        || ' %2$s' || coalesce((
            select format(' collate %I.%I', n.nspname, o.collname)
            from pg_collation as o
            join pg_namespace as n on n.oid = o.collnamespace
            where o.oid = t."collation" and i."collation" not in (0, t."collation")
        ), '')
$$;

comment on function gc._comparing(gc._target_column, gc._inspected, oid) is
    'How a key is compared with the column: %1$s and %2$s stand for the two sides.';


create function gc._worked_out(c gc.collections, d gc.declared_references)
    returns gc._mention
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    t gc._target_column := gc._require_target(c, d);
    k gc._inspected := gc._inspect(c, d, 'keys of a reference', d.keys);
    w gc._inspected;
    element oid;
    is_column boolean;
begin
    perform gc._require_inspected('keys', d.keys,
        coalesce(k.flaw, case when k.columns = '{}' then 'it reads no column' end));
    perform gc._require_types(c, d, t, k.type);
    if d.condition is not null then
        w := gc._inspect(c, d, 'condition of a reference', d.condition);
        perform gc._require_inspected('condition', d.condition, coalesce(w.flaw,
            case when w.type <> 'boolean'::regtype
                then format('it is of type %s', format_type(w.type, null)) end));
    end if;
    element := gc._element_type(t, k.type);
    is_column := k.printed = quote_ident(k.columns[1]);
    return (
        k.written, w.written, gc._written_alias(d.referencing), element is not null,
        gc._type_name(coalesce(element, gc._base_type(k.type))),
        case when element is null and is_column then k.columns else '{}' end,
        array(select unnest(k.columns) union select unnest(w.columns) order by 1), t.name,
        gc._comparing(t, k, element),
        d.by_column is null and t.is_bare
            and coalesce(element, gc._base_type(k.type)) = t.type,
        is_column and gc._cannot_raise(w.written), d.is_strict, k.printed, w.printed,
        k.functions || coalesce(w.functions, '{}')
    )::gc._mention;
end;
$$;

comment on function gc._worked_out(gc.collections, gc.declared_references) is
    'What the expressions of a declared reference read, and how; raises if they cannot be used.';


create function gc._require_declared(c gc.collections)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    d gc.declared_references;
begin
    for d in
        select o.* from gc.declared_references as o where o.collection = c.name
        order by o.referencing::oid, o.keys
    loop
        if not gc._is_there(d) then
            raise '% no longer refers to "%"', coalesce(
                    d.worked_out ->> 'place', gc._declared_place(d)), c.target
                using errcode = 'undefined_object',
                    detail = 'The table, or a column that the declared reference reads, is gone. '
                        'Rows that only this kept would be deleted. Declare it anew if it has '
                        'another name now, or accept the loss.',
                    hint = format('select * from gc.drop_reference(%L, %L, %L);', d.collection,
                        d.referencing, d.keys);
        end if;
        perform gc._require_referring(d);
        update gc.declared_references as o
        set worked_out = to_jsonb(gc._worked_out(c, d))
            || jsonb_build_object('place', gc._declared_place(d))
        where (o.collection, o.referencing, o.keys) = (d.collection, d.referencing, d.keys);
    end loop;
end;
$$;

comment on function gc._require_declared(gc.collections) is
    'Works the declared references of a collection out; raises for one that cannot be used.';


-- Both texts are PostgreSQL's own; they differ in parentheses and in the table's name.
create function gc._has_mention_index(r gc._reference)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
as $$
    select exists (
        select from pg_index as i
        join pg_class as x on x.oid = i.indexrelid
        join pg_am as a on a.oid = x.relam
        join pg_opclass as o on o.oid = i.indclass[0]
        cross join lateral (
            select regexp_replace(pg_get_indexdef(i.indexrelid, 1, false), '[()\s]', '', 'g'),
                regexp_replace(pg_get_expr(i.indpred, i.indrelid), '[()\s]', '', 'g')
        ) as p(printed, condition)
        where i.indrelid = r.referencing and i.indisvalid and p.printed = m.printed
            and case
                when m.is_array then a.amname = 'gin' and o.opcname = 'array_ops'
                else a.amname in ('btree', 'hash')
            end
            and (p.condition is null or p.condition = m.printed_condition
                or p.condition = m.printed || 'ISNOTNULL')
    )
    from (select (r.mention).*) as m
$$;

comment on function gc._has_mention_index(gc._reference) is
    'Whether an index finds the rows of a declared reference by their keys.';


create function gc._mention_index_sql(r gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format(
        case
            when m.is_array then 'create index %son %s using gin (%s);'
            else 'create index %son %s (%s);'
        end,
        gc._concurrently(r.referencing), r.referencing,
        case when k.keys in (select quote_ident(u) from unnest(m.columns) as u) then k.keys
            else '(' || k.keys || ')' end)
    from (select (r.mention).*) as m
    cross join lateral (
        select substr(r.reference, length(r.referencing::text) + 2,
            length(r.reference) - length(r.referencing::text) - 2)
    ) as k(keys)
$$;

comment on function gc._mention_index_sql(gc._reference) is
    'The command that makes the index of a declared reference.';


create function gc._mention_note(r gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select concat_ws(', ', 'declared', case when not r.to_key then 'by ' || r.targets[1] end,
        'where ' || replace(m.condition, chr(1), ' '), case when m.is_strict then 'strict' end)
    from (select (r.mention).*) as m
    where m.written is not null
$$;

comment on function gc._mention_note(gc._reference) is
    'What gc.track says about a declared reference; null: it is a foreign key.';


create function gc._given_keys(referencing regclass, keys text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(
        (
            select quote_ident(a.attname) from pg_attribute as a
            where a.attrelid = referencing and a.attnum > 0 and not a.attisdropped
                and btrim(keys) in (a.attname, quote_ident(a.attname))
            limit 1
        ), btrim(keys))
$$;

comment on function gc._given_keys(regclass, text) is
    'Keys as they are kept: a column as PostgreSQL writes its name, anything else as it was given.';


create function gc._require_given(d gc.declared_references)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if d.referencing is null or coalesce(d.keys, '') = '' then
        perform gc._raise_declared('a reference needs a table and keys',
            'The keys are a column of the table, or an expression over its columns.',
            format('select * from gc.declare_reference(%L, ''schema.table'', ''column'');',
                d.collection));
    elsif concat(d.keys, d.condition) ~ '[\u0001-\u001f\u007f]' then
        perform gc._raise_declared('an expression has a control character',
            'Line breaks, tabs and the like are not supported.', 'Write it in one line.');
    end if;
end;
$$;

comment on function gc._require_given(gc.declared_references) is
    'Raises for a declaration that lacks something, or has what it should not.';


create function gc._reference_list(c gc.collections)
    returns table (reference text, role text, note text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select r.reference, case when r.owned is null then 'keeps' else 'owned' end,
        coalesce(gc._mention_note(r), gc._reference_note(c, r.reference))
    from gc._references(c) as r
    union all
    select f.reference, 'ignored', null
    from gc._all_references(c.target) as f
    where c.collect = 'deleted'
$$;

comment on function gc._reference_list(gc.collections) is
    'Each reference into a collection, its role, and what should be known about it.';


-- What was declared for a table that is gone, and has come again under its name, is meant anew.
create function gc._put_declared(d gc.declared_references)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into gc.scan_requests (collection, reason)
    select o.collection, gc._declared_place(o) || ' was declared in another way'
    from gc.declared_references as o
    where (o.collection, o.referencing, o.keys) = (d.collection, d.referencing, d.keys)
        and (o.by_column, o.condition) is distinct from (d.by_column, d.condition);
    delete from gc.declared_references as o
    where o.collection = d.collection and o.worked_out ->> 'place' = gc._declared_place(d)
        and not exists (select from pg_class as r where r.oid = o.referencing);
    insert into gc.declared_references (
        collection, referencing, keys, by_column, condition, is_strict
    )
    values (d.collection, d.referencing, d.keys, d.by_column, d.condition, d.is_strict)
    on conflict (collection, referencing, keys) do update
    set by_column = excluded.by_column, condition = excluded.condition,
        is_strict = excluded.is_strict;
end;
$$;

comment on function gc._put_declared(gc.declared_references) is
    'Notes a declaration, in the place of an earlier one of the same keys.';


create function gc.declare_reference(
    collection text, referencing regclass, keys text, by text default null,
    condition text default null, strict boolean default false
)
    returns table (reference text, role text, note text)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    c gc.collections := gc._collection(declare_reference.collection);
    d gc.declared_references := (
        c.name, declare_reference.referencing,
        gc._given_keys(declare_reference.referencing, declare_reference.keys),
        nullif(declare_reference."by", ''),
        nullif(btrim(declare_reference.condition), ''),
        coalesce(declare_reference."strict", false), '{}', now()
    );
begin
    perform gc._require_owner();
    perform gc._lock('track');
    perform gc._lock_collection(c.name);
    perform gc._require_given(d);
    perform gc._require_referring(d);
    perform gc._put_declared(d);
    perform gc._generate(c.name, true);
    c := gc._collection(c.name);
    perform gc._block_without_keeper(c);
    return query select l.* from gc._reference_list(c) as l;
end;
$$;
revoke all on function gc.declare_reference(text, regclass, text, text, text, boolean) from public;

comment on function gc.declare_reference(text, regclass, text, text, text, boolean) is
    'Declares that rows of a table refer to a collection without a foreign key, or changes that: '
    'keys is a column or an immutable expression, of one key or an array of keys; by is the column '
    'of the collection that they are values of, if not its primary key; condition says which rows '
    'refer to it; strict refuses keys that are not there. Returns what gc.track returns.';


create function gc.drop_reference(collection text, referencing regclass, keys text)
    returns table (reference text, role text, note text)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    c gc.collections := gc._collection(drop_reference.collection);
    d gc.declared_references;
begin
    perform gc._require_owner();
    perform gc._lock('track');
    perform gc._lock_collection(c.name);
    delete from gc.declared_references as o
    where o.collection = c.name and o.referencing = drop_reference.referencing
        and o.keys in (drop_reference.keys, gc._given_keys(o.referencing, drop_reference.keys))
    returning o.* into d;
    if not found then
        raise '%(%) is no declared reference to "%"', drop_reference.referencing,
            drop_reference.keys, c.name
            using errcode = 'undefined_object',
                detail = format('Declared: %s.', coalesce(
                    (select string_agg(gc._declared_place(o), ', ' order by o.keys)
                    from gc.declared_references as o where o.collection = c.name), 'none')),
                hint = format('select * from gc.declared_references where collection = %L;',
                    c.name);
    end if;
    update gc.collections as o
    set owned = array_remove(o.owned, coalesce(d.worked_out ->> 'place', gc._declared_place(d)))
    where o.name = c.name;
    perform gc._accept_losses(c.name,
        coalesce(d.worked_out ->> 'place', gc._declared_place(d)));
    perform gc._generate(c.name, true);
    c := gc._collection(c.name);
    perform gc._block_without_keeper(c);
    return query select l.* from gc._reference_list(c) as l;
end;
$$;
revoke all on function gc.drop_reference(text, regclass, text) from public;

comment on function gc.drop_reference(text, regclass, text) is
    'Takes a declared reference back. What only it kept is found by a scan, and goes. Returns the '
    'references that are left.';
