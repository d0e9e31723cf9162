-- Sharing: whether two rows can have one object, and how the rows that have a url are found.
--
-- An object is a row's own if its url is made of the key and loses none of it, or if a CHECK
-- computes the key back from the url. Every other url counts as shared: its rows are looked for
-- before the object is handed out. A proof lists what is allowed; whatever is not listed proves
-- nothing.

create function gc._tree(nodes text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select regexp_replace(nodes, ' :(varno|varnosyn|varattnosyn|location) -?\d+', '', 'g')
$$;

comment on function gc._tree(text) is
    'A node tree without what depends on the statement that the expression stands in.';


-- PostgreSQL escapes blanks and brackets in names: no name can look like a part of the tree.
create function gc._expression_tree(target regclass, what text, expression text)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    parsed regclass := gc._parse_expression(target, what, expression);
    tree text := (
        select substring(gc._tree(r.ev_action::text)
            from ':targetList \(\{TARGETENTRY :expr (.*) :resno 1 :resname value ')
        from pg_rewrite as r
        where r.ev_class = parsed
    );
begin
    drop view gc._expression;
    return tree;
end;
$$;

comment on function gc._expression_tree(regclass, text, text) is
    'The node tree of an expression of a collection.';


create function gc._url_tree(c gc.collections)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$ select gc._expression_tree(c.target, 'url', c.url) $$;

comment on function gc._url_tree(gc.collections) is 'The node tree of a collection''s url.';


-- Constants are text or integers (25 and 1043 are text and varchar, 20, 21 and 23 the integers); a
-- key is one of these, a uuid (2950) or a bytea (17). All of them print one way for each value. The
-- key comes in once, and is lost by none of this. What is not listed here stays as it is.
create function gc._reduced_url(tree text, key smallint)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    concatenation text := format(
        '\{(?:OPEXPR :opno \d+ :opfuncid|FUNCEXPR :funcid) (?:%s|%s|%s) [^{}]*:args \(',
        'textcat(text, text)'::regprocedure::oid,
        'textanycat(text, anynonarray)'::regprocedure::oid,
        'anytextcat(anynonarray, text)'::regprocedure::oid);
    rules text[] := array[
        ['\{CONST :consttype (?:25|1043|20|21|23) [^{}]*:constisnull false [^{}]*\}', '@text'],
        [format('\{VAR :varattno %s :vartype (?:25|1043) [^{}]*\}', key), '@key'],
        [format('\{VAR :varattno %s :vartype (?:20|21|23|2950|17) [^{}]*\}', key), '@value'],
        ['\{COERCEVIAIO :arg @value :resulttype (?:25|1043) [^{}]*\}', '@key'],
        ['\{RELABELTYPE :arg (@text|@key) :resulttype (?:25|1043) [^{}]*\}', '\1'],
        [format('\{FUNCEXPR :funcid %s [^{}]*:args \(@value @text\)[^{}]*\}',
            'encode(bytea, text)'::regprocedure::oid), '@key'],
        [concatenation || '@text @text\)[^{}]*\}', '@text'],
        [concatenation || '(?:@text @(?:key|value)|@(?:key|value) @text)\)[^{}]*\}', '@key']
    ];
    rule text[];
    before text;
begin
    loop
        before := tree;
        foreach rule slice 1 in array rules loop
            tree := regexp_replace(tree, rule[1], rule[2], 'g');
        end loop;
        exit when tree = before;
    end loop;
    return tree;
end;
$$;

comment on function gc._reduced_url(text, smallint) is
    'A url''s tree, in which @key stands for what surely has all of the key in it, and @text for '
    'what is always the same.';


create function gc._is_lossless(c gc.collections)
    returns boolean
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(gc._reduced_url(gc._url_tree(c), i.indkey[0]) = '@key', false)
    from pg_index as i
    where i.indrelid = c.target and i.indisprimary and i.indnkeyatts = 1
$$;

comment on function gc._is_lossless(gc.collections) is
    'Whether the url is made of constant text and of the key''s one column, and of nothing that '
    'could lose part of it: then it can be no other row''s.';


-- The leftmost constant of a chain of concatenations. Its bytes stand in the tree as signed
-- numbers, behind four that tell their number.
create function gc._url_prefix(c gc.collections)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select convert_from(string_agg(set_byte('\x00', 0, (b.byte::integer + 256) % 256), ''
        order by b.n), getdatabaseencoding())
    from substring(gc._url_tree(c) from format(
        '^(?:\{OPEXPR :opno \d+ :opfuncid (?:%s|%s) [^{}]*:args \()*'
        '\{CONST :consttype 25 [^{}]*:constisnull false [^{}]*:constvalue \d+ \[ ([-\d ]+) \]\}',
        'textcat(text, text)'::regprocedure::oid,
        'textanycat(text, anynonarray)'::regprocedure::oid)) as m(bytes)
    cross join lateral regexp_split_to_table(m.bytes, ' ') with ordinality as b(byte, n)
    where b.n > 4
$$;

comment on function gc._url_prefix(gc.collections) is
    'The text with which every url of a collection surely begins; null: there is none.';


-- check (key is not distinct from f(url)): where the key can be computed back, two rows of one url
-- are one row. Any f will do, so long as it is made of constants and of immutable functions that
-- nobody can change (a type's own input, for one, may depend on a setting), reads nothing but the
-- url, and the two sides are compared byte for byte. Null would be "distinct": no url is null.
create function gc._url_proof(c gc.collections)
    returns oid
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    url text := gc._url_tree(c);
begin
    return (
        select k.oid
        from pg_constraint as k
        join pg_index as i on i.indrelid = k.conrelid and i.indisprimary and i.indnkeyatts = 1
        cross join lateral regexp_matches(gc._tree(k.conbin::text),
            '^\{BOOLEXPR :boolop not :args \(\{DISTINCTEXPR :opno \d+ :opfuncid (\d+) [^{]*:args '
            '\(\{VAR :varattno (\d+) [^}]*\} (.*)$') as m
        where k.conrelid = c.target and k.contype = 'c' and k.convalidated
            and m[1]::regproc::text in ('byteaeq', 'uuid_eq', 'int2eq', 'int4eq', 'int8eq')
            and m[2]::smallint = i.indkey[0]
            and position(url in m[3]) > 0
            and replace(m[3], url, '') !~ '\{(?!(?:CONST|FUNCEXPR|OPEXPR|RELABELTYPE) )'
            and not exists (
                select
                from regexp_matches(k.conbin::text, ':(?:op)?funcid (\d+)', 'g') as f
                join pg_proc as p on p.oid = f[1]::oid
                join pg_roles as o on o.oid = p.proowner
                where p.provolatile <> 'i' or not o.rolsuper and o.rolname <> current_user
            )
        order by k.oid
        limit 1
    );
end;
$$;

comment on function gc._url_proof(gc.collections) is
    'The CHECK constraint by which no two rows can have one url; null: there is none.';


-- Everything else is looked up by the url itself.
create function gc._shares_objects(c gc.collections)
    returns boolean
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when c.url is null then false
        when c.several then true
        when cardinality(k.names) > 1
            or gc._check_expression(c.target, 'url', c.url, 'S', 'text') <> k.names then true
        else c.proof is null and not gc._is_lossless(c)
    end
    from gc._key(c.target) as k
$$;

comment on function gc._shares_objects(gc.collections) is
    'Whether rows may have one object together.';


-- Said to be immutable for the same reason as gc._has_columns.
create function gc._has_check(check_constraint oid)
    returns boolean
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (
        select from pg_constraint as k where k.oid = check_constraint and k.convalidated
    );
end;
$$;

comment on function gc._has_check(oid) is
    'Whether a CHECK constraint is still there, as a constant in a statement that reads its table.';


-- Both texts are PostgreSQL's own; they differ in parentheses and in the table's name.
create function gc._printed_url(c gc.collections)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
as $$
declare
    alias text := quote_ident(gc._alias(c.target));
    parsed regclass := gc._parse_expression(c.target, 'url', c.url);
    expression text := gc._written(parsed);
begin
    drop view gc._expression;
    return regexp_replace(replace(expression, alias || '.', ''), '[()\s]', '', 'g');
end;
$$;

comment on function gc._printed_url(gc.collections) is
    'A url as PostgreSQL prints it, without blanks and parentheses.';


create function gc._has_url_index(c gc.collections)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
as $$
    select c.url_flaw is null and exists (
        select from pg_index as i
        join pg_class as x on x.oid = i.indexrelid
        join pg_am as m on m.oid = x.relam
        where i.indrelid = c.target and i.indisvalid and i.indpred is null
            and (m.amname = 'gin') = c.several
            and regexp_replace(pg_get_indexdef(i.indexrelid, 1, false), '[()\s]', '', 'g')
                = c.url_printed
    )
$$;

comment on function gc._has_url_index(gc.collections) is
    'Whether an index finds the rows that have a url.';


-- Tried on an empty table that is gone again at once: nobody knows PostgreSQL's rules better. Where
-- these let an index have what depends on a session, it is not asked: see gc._findable.
create function gc._url_index_flaw(c gc.collections)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    tried text := format('gc.%I', gc._alias(c.target));
    unsteady text := gc._unsteady_cast(gc._expression_tree(c.target, 'url', c.url));
begin
    if unsteady is not null or to_regclass(tried) is not null then
        return unsteady;
    end if;
    perform gc._run(format('create table %s (like %s)', tried, c.target));
    perform gc._run(format('create index on %s using %s ((%s))',
        tried, case when c.several then 'gin' else 'btree' end, c.url));
    raise 'that is enough' using errcode = 'ZG999';
exception
    when sqlstate 'ZG999' then
        return null;
    when others then
        return sqlerrm;
end;
$$;

comment on function gc._url_index_flaw(gc.collections) is
    'Why there can be no index on a url that finds all rows; null: there can.';


-- Where both surely begin with a text, and neither text with the other, no object is in both.
create function gc._may_share(c gc.collections, other gc.collections)
    returns boolean
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select c.url is not null and other.url is not null and coalesce(
        starts_with(c.url_prefix, other.url_prefix) or starts_with(other.url_prefix, c.url_prefix),
        true)
$$;

comment on function gc._may_share(gc.collections, gc.collections) is
    'Whether a row of one collection and a row of the other could have one object.';


-- With several collections, a row of another may have the url, unless their addresses differ from
-- the beginning.
create function gc._are_several()
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select
        from gc.collections as a
        join gc.collections as b on a.name < b.name
        where a.url is not null and b.url is not null
            and coalesce(starts_with(a.url_prefix, b.url_prefix)
                or starts_with(b.url_prefix, a.url_prefix), true)
    )
$$;

comment on function gc._are_several() is 'Whether rows of two collections may share an object.';


create function gc._missing_url_index(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when c.url_flaw is null
            then format('create index %son %s%s ((%s));', gc._concurrently(c.target), c.target,
                case when c.several then ' using gin' else '' end, c.url)
        else format('There can be no index on it (%s). Make the url with immutable functions only, '
            'or keep it in a stored column, or make it of the key alone: text, || and the key.',
            c.url_flaw)
    end
    where c.url is not null
        and (c.shared or exists (
            select from gc.collections as o where o.name <> c.name and gc._may_share(c, o)
        ))
        and not gc._has_url_index(c)
$$;

comment on function gc._missing_url_index(gc.collections) is
    'The command that makes the index by which rows are found by url, or what to do where there '
    'can be none; null: it is there, or not needed.';


create function gc._warn_shared(c gc.collections)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    slow regclass;
    command text;
begin
    for slow, command in
        select o.target, gc._missing_url_index(o)
        from gc.collections as o
        where o.name = c.name or gc._may_share(o, c)
        order by o.name <> c.name, o.name
    loop
        if command is not null then
            raise warning 'nothing finds the rows of "%" by their url', slow
                using hint = command,
                    detail = 'Rows may share an object: each deletion looks for a row that has it.';
        end if;
    end loop;
end;
$$;

comment on function gc._warn_shared(gc.collections) is
    'Warns if objects can be shared and looking for their rows is slow, in this collection or in '
    'one that could have the same objects.';
