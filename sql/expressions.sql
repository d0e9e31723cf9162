-- Expressions: url, size, label, generation and condition are SQL over one row's columns.
--
-- They become part of functions that run with the rights of blobgc's owner, so they are read before
-- they are believed. PostgreSQL parses them into a view that is dropped at once; the view's rule
-- tells the type, the columns, and every function that would be called.

create function gc._raise_expression(what text, expression text, reason text, hint text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    raise 'the % must be an expression over one row',
        case when what ~ ' of ' then what else what || ' of a collection' end
        using errcode = 'invalid_parameter_value',
            detail = format('%s: %s.', expression, reason),
            hint = hint;
end;
$$;

comment on function gc._raise_expression(text, text, text, text) is
    'Raises for an expression that cannot be used.';


create function gc._alias(target regclass)
    returns name
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.relname in ('q', 't', 'r', 'd', 'this', 'object') then c.relname || '_row'
        else c.relname end::name
    from pg_class as c
    where c.oid = target
$$;

comment on function gc._alias(regclass) is
    'The name by which expressions know the table: its own, unless a template uses that.';


-- Nothing is executed, nor planned: that would call functions before they are looked at. Read in
-- two frames, the text cannot be more than one expression. With a second table, PostgreSQL 16 and
-- later print the columns with their table, as 15 does anyway: without, a column could be taken for
-- something else of that name where the expression is put. That table has a name that no other has:
-- control characters are refused in names.
create function gc._parse_expression(target regclass, what text, expression text)
    returns regclass
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set timezone_abbreviations = 'Default'
as $$
declare
    source text := format('from %s as %I, gc.turns as %3$I(%3$I)', target, gc._alias(target),
        chr(2));
begin
    if position(';' in expression) > 0 then
        raise 'it has a semicolon' using errcode = 'syntax_error';
    end if;
    perform gc._run('create view gc._expression as select case when true then '
        || expression || ' end ' || source);
    drop view gc._expression;
    perform gc._run('create view gc._expression as select (' || expression || ') as value '
        || source);
    return to_regclass('gc._expression');
exception
    when syntax_error_or_access_rule_violation or data_exception or feature_not_supported then
        perform gc._raise_expression(what, expression, sqlerrm,
            'Write it with the table''s own columns; functions and operators outside pg_catalog '
            'need their schema.');
        return null;
end;
$$;

comment on function gc._parse_expression(regclass, text, text) is
    'Makes the view gc._expression, whose column "value" is the expression.';


-- What came with the server and is not immutable may read a session, run a query, or worse. Allowed
-- is what depends on the time or on how values are printed, which generated code lays down.
create function gc._unfit_call(nodes text, with_time boolean)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select format('%s reads more than the row', p.oid::regprocedure)
        from regexp_matches(nodes, ':(?:op)?funcid (\d+)', 'g') as m
        join pg_proc as p on p.oid = m[1]::oid
        where p.pronamespace = 'pg_catalog'::regnamespace
            and p.provolatile <> 'i'
            and (p.provolatile = 'v' or p.proname not in (
                'age', 'anytextcat', 'array_to_json', 'array_to_string', 'concat', 'concat_ws',
                'convert', 'convert_from', 'convert_to', 'date', 'date_add', 'date_part',
                'date_subtract', 'date_trunc', 'extract', 'format', 'interval_pl_timestamptz',
                'json_build_array', 'json_build_object', 'jsonb_build_array',
                'jsonb_build_object', 'jsonb_path_exists_tz', 'jsonb_path_match_tz',
                'jsonb_path_query_array_tz', 'jsonb_path_query_first_tz', 'length',
                'make_timestamptz', 'now', 'overlaps', 'quote_literal', 'quote_nullable',
                'row_to_json', 'statement_timestamp', 'textanycat', 'time', 'timestamp',
                'timestamptz', 'timestamptz_mi_interval', 'timestamptz_pl_interval', 'timetz',
                'timezone', 'to_char', 'to_date', 'to_json', 'to_jsonb', 'to_number',
                'to_timestamp', 'transaction_timestamp', 'xml_is_well_formed'
            ) and p.proname !~ '^(date|timestamp|timestamptz)_(cmp|eq|ge|gt|le|lt|ne)_'
            or not with_time and (
                p.proname in ('now', 'statement_timestamp', 'transaction_timestamp')
                or p.proname = 'age' and p.pronargs = 1
            ) or p.proname = 'age' and p.proargtypes[0] = 'xid'::regtype)
        limit 1
    );
end;
$$;

comment on function gc._unfit_call(text, boolean) is
    'A call in a node tree that makes its value depend on more than a row (and the time).';


-- PostgreSQL 16 gave some of the nodes new names.
create function gc._unfit_node(nodes text, with_time boolean)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when m[1] in ('SUBLINK', 'AGGREF', 'WINDOWFUNC', 'GROUPINGFUNC')
            then 'it has a subquery, an aggregate or a window function'
        when m[1] = 'COERCETODOMAIN' then 'it casts to a domain, whose checks could be anything'
        when m[1] = 'SQLVALUEFUNCTION' then 'it reads the session or the time'
        else format('it has a part that is not known to be safe (%s)', lower(m[1]))
    end
    from regexp_matches(nodes, '(?<!\\)\{([A-Z_]+)( :op [0-8] )?', 'g') as m
    where m[1] not in (
            'QUERY', 'ALIAS', 'RTE', 'RANGETBLENTRY', 'RTEPERMISSIONINFO', 'FROMEXPR',
            'RANGETBLREF', 'TARGETENTRY',
            'VAR', 'CONST', 'FUNCEXPR', 'NAMEDARGEXPR', 'OPEXPR', 'DISTINCTEXPR', 'NULLIFEXPR',
            'SCALARARRAYOPEXPR', 'BOOLEXPR', 'BOOLEANTEST', 'NULLTEST', 'FIELDSELECT',
            'RELABELTYPE', 'COERCEVIAIO', 'ARRAYCOERCEEXPR', 'CONVERTROWTYPEEXPR', 'COLLATE',
            'COLLATEEXPR', 'CASE', 'CASEEXPR', 'WHEN', 'CASEWHEN', 'CASETESTEXPR', 'ARRAY',
            'ARRAYEXPR', 'ROW', 'ROWEXPR', 'ROWCOMPARE', 'ROWCOMPAREEXPR', 'COALESCE',
            'COALESCEEXPR', 'MINMAX', 'MINMAXEXPR', 'SUBSCRIPTINGREF'
        )
        -- Of current_date and its like, the first nine are times and the others roles and schemas.
        and not (m[1] = 'SQLVALUEFUNCTION' and m[2] is not null and with_time)
    limit 1
$$;

comment on function gc._unfit_node(text, boolean) is
    'Why a node tree is not an expression over one row (and the time) only; null if it is.';


-- PostgreSQL takes such a cast for immutable, and lets an index have it; but what is in the index
-- depends on who wrote the row: bytea_output, extra_float_digits, intervalstyle. From the innermost
-- nodes outwards: each is its type then.
create function gc._unsteady_cast(nodes text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    tree text := regexp_replace(nodes, '\\.', '', 'g');
    node text;
    source oid;
begin
    loop
        node := substring(tree from '\{[^{}]*\}');
        exit when node is null;
        source := nullif(substring(node from '^\{COERCEVIAIO :arg @(\d*) '), '')::oid;
        if node ~ '^\{COERCEVIAIO' and not exists (
            select from pg_type as t
            where t.oid = gc._base_type(source) and (t.typcategory in ('B', 'E', 'I', 'S')
                or t.typname in ('int2', 'int4', 'int8', 'oid', 'numeric', 'uuid', 'json', 'jsonb'))
        ) then
            return format('how %s is written depends on the settings of a session',
                coalesce(format_type(source, null), 'a part of it'));
        end if;
        tree := replace(tree, node, '@' || coalesce(substring(node from ':(?:(?:var|const|'
            'funcresult|opresult|result|coalesce|case|minmax|refres)type|array_typeid|row_typeid|'
            'typeId) (\d+) '), ''));
    end loop;
    return null;
end;
$$;

comment on function gc._unsteady_cast(text) is
    'A cast in a node tree whose result a setting can change; null: there is none.';


-- The rule's node tree names each function by its oid, built-in ones too; pg_depend does not.
create function gc._expression_flaw(target regclass, parsed regclass, with_time boolean)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with tree as (
        select r.oid, r.ev_action::text as nodes from pg_rewrite as r where r.ev_class = parsed
    ),
    called as (
        select p.*
        from tree as t
        cross join lateral regexp_matches(t.nodes, ':(?:op)?funcid (\d+)', 'g') as m
        join pg_proc as p on p.oid = m[1]::oid
    )
    select 'it is more than one column' where (
        select count(*) from pg_attribute as a where a.attrelid = parsed and a.attnum > 0
    ) > 1
    union all
    select gc._unfit_node(t.nodes, with_time) from tree as t
    where gc._unfit_node(t.nodes, with_time) is not null
    union all
    select format('%s returns a set', c.oid::regprocedure) from called as c where c.proretset
    union all
    select format('%s is volatile', c.oid::regprocedure) from called as c
    where c.provolatile = 'v'
    union all
    select gc._unfit_call(t.nodes, with_time) from tree as t
    where gc._unfit_call(t.nodes, with_time) is not null
    union all
    select format('%s belongs to %s, who could change it', u.what, u.owner)
    from tree as t
    cross join lateral gc._untrusted_code(
        target, array['pg_rewrite'::regclass], array[t.oid]
    ) as u
    limit 1
$$;

comment on function gc._expression_flaw(regclass, regclass, boolean) is
    'Why an expression that PostgreSQL understands is not good enough; null if it is.';


create function gc._check_expression(
    target regclass, what text, expression text, categories text, wanted text
)
    returns name[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    parsed regclass := gc._parse_expression(target, what, expression);
    flaw text := gc._expression_flaw(target, parsed, what = 'condition');
    used name[];
    type regtype;
    category text;
begin
    select a.atttypid, t.typcategory into type, category
    from pg_attribute as a
    join pg_type as t on t.oid = a.atttypid
    where a.attrelid = parsed and a.attname = 'value';

    used := array(
        select distinct a.attname
        from pg_rewrite as r
        join pg_depend as d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid
        join pg_attribute as a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
        where r.ev_class = parsed and d.refclassid = 'pg_class'::regclass
            and d.refobjid = target and a.attnum > 0
        union
        -- The whole row.
        select a.attname from pg_rewrite as r
        join pg_attribute as a on a.attrelid = target and a.attnum > 0 and not a.attisdropped
        where r.ev_class = parsed and r.ev_action::text ~ ':varattno 0 '
    );
    drop view gc._expression;

    if flaw is null and (
        position(category in categories) = 0 or category = 'A' and type <> 'text[]'::regtype
    ) then
        flaw := format('it is of type %s', type);
    end if;
    if flaw is not null then
        perform gc._raise_expression(what, expression, flaw, format('It has to be %s.', wanted));
    end if;
    return used;
end;
$$;

comment on function gc._check_expression(regclass, text, text, text, text) is
    'Raises if the expression cannot be trusted; returns the columns that it reads.';


-- CASE begins on a line of its own, and a column that is called value has no name beside its own.
-- What cannot be found there would seem not to be there at all: a condition that is missing lets
-- everything go.
create function gc._written(parsed regclass)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    written text := regexp_replace(substring(
        pg_get_viewdef(parsed) from '^\s*SELECT\s+(\S.*)\n   FROM [^\n]*,\n[^\n]*$'),
        ' AS value$', '');
begin
    if written is null then
        raise 'it is not known where the expression is in: %', pg_get_viewdef(parsed);
    end if;
    return written;
end;
$$;

comment on function gc._written(regclass) is
    'The expression of the view gc._expression, as PostgreSQL writes it.';


-- As PostgreSQL writes an expression down, it means the same under every setting of a session: all
-- names are in full, and a text with a backslash says so. Templates indent what they are given line
-- by line, which must not change a text: its line breaks are chr(1) until gc._run puts them back.
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
    written := gc._written(parsed);
    drop view gc._expression;
    return replace(written, E'\n', chr(1));
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
    written text := substring(pg_get_viewdef(parsed) from '\n   FROM ([^\n]*),\n[^\n]*$');
begin
    drop view gc._expression;
    return coalesce(nullif(substr(written, length(target::text) + 2), ''),
        quote_ident(gc._alias(target)));
end;
$$;

comment on function gc._written_alias(regclass) is
    'What the table is called in expressions as PostgreSQL prints them.';
