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
    raise 'the % of a collection must be an expression over one row', what
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
    select case when c.relname in ('q', 't', 'r', 'd', 'this') then c.relname || '_row'
        else c.relname end::name
    from pg_class as c
    where c.oid = target
$$;

comment on function gc._alias(regclass) is
    'The name by which expressions know the table: its own, unless a template uses that.';


-- Nothing is executed, nor planned: that would call functions before they are looked at. Read in
-- two frames, the text cannot be more than one expression.
create function gc._parse_expression(target regclass, what text, expression text)
    returns regclass
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    source text := format('from %s as %I', target, gc._alias(target));
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


-- The rule's node tree names each function by its oid, built-in ones too; pg_depend does not.
create function gc._expression_flaw(parsed regclass)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with tree as (
        select r.ev_action::text as nodes from pg_rewrite as r where r.ev_class = parsed
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
    select 'it has a subquery, an aggregate or a window function' from tree as t
    where t.nodes ~ '\{(SUBLINK|AGGREF|WINDOWFUNC|GROUPINGFUNC)'
    union all
    select 'it casts to a domain, whose checks could be anything' from tree as t
    where t.nodes ~ '\{COERCETODOMAIN'
    union all
    select format('%s returns a set', c.oid::regprocedure) from called as c where c.proretset
    union all
    select format('%s is volatile', c.oid::regprocedure) from called as c
    where c.provolatile = 'v'
    union all
    select format('%s belongs to %s, who could change it', c.oid::regprocedure, c.proowner::regrole)
    from called as c
    join pg_roles as r on r.oid = c.proowner
    where not r.rolsuper and r.rolname <> current_user
    limit 1
$$;

comment on function gc._expression_flaw(regclass) is
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
    flaw text := gc._expression_flaw(parsed);
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
    );
    drop view gc._expression;

    if flaw is null and position(category in categories) = 0 then
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
