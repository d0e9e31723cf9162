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
        select r.referencing, unnest(r.columns || gc._columns(p.partrelid, p.partattrs))
        from gc._references(c) as r
        left join pg_partitioned_table as p on p.partrelid = r.referencing
    ) as u(id, name)
$$;

comment on function gc._names(gc.collections) is
    'The names that generated code is made of, and how each is changed.';


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


create function gc._concurrently(relation regclass)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select case when c.relkind = 'p' then '' else 'concurrently ' end from pg_class as c
    where c.oid = relation $$;

comment on function gc._concurrently(regclass) is
    'How a hint asks for an index: what is partitioned cannot have one made concurrently.';


-- Without an index, every review would read the whole referring table for every row.
create function gc._require_indexes(target regclass)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    missing text[];
    script text;
begin
    select array_agg(distinct f.reference), string_agg(distinct format('create index %son %s (%s);',
        gc._concurrently(f.referencing), f.referencing, gc._idents(f.columns)), E'\n')
    into missing, script
    from gc._foreign_keys(target) as f
    where not gc._has_index(f.referencing, f.columns);
    if cardinality(missing) = 1 then
        raise '% refers to "%" without an index', missing[1], target
            using errcode = 'invalid_table_definition',
                detail = 'Every review would read that table from end to end.', hint = script;
    elsif missing is not null then
        raise '% references to "%" have no index', cardinality(missing), target
            using errcode = 'invalid_table_definition',
                detail = format('Every review would read these tables from end to end: %s.',
                    array_to_string(missing, ', ')),
                hint = script;
    end if;
end;
$$;

comment on function gc._require_indexes(regclass) is
    'Raises for references whose columns have no index; the hint is the script that makes them.';


-- Names are looked up once, when gc.track is called: a table that gets the same name later, in
-- another schema, is not meant.
create function gc._resolve_owned(target regclass, owned text[])
    returns text[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    item text;
    matching gc._reference[];
    resolved text[] := array[]::text[];
begin
    foreach item in array owned loop
        matching := array(
            select f from gc._foreign_keys(target) as f
            where regexp_replace(item, '\s*,\s*', ',', 'g')
                = any (gc._spellings(f.referencing, f.columns))
        );
        if (select count(distinct m.referencing) from unnest(matching) as m) <> 1 then
            raise '"%" does not name one table that refers to "%"', item, target
                using errcode = 'undefined_object',
                    detail = format('References: %s.', coalesce(
                        (select string_agg(f.reference, ', ') from gc._foreign_keys(target) as f),
                        'none')),
                    hint = 'Name one of them in owned, or leave it out.';
        end if;
        resolved := resolved || array(select m.reference from unnest(matching) as m);
    end loop;
    return resolved;
end;
$$;

comment on function gc._resolve_owned(regclass, text[]) is
    'The references that "owned" names, in full; raises for a name that is none.';


create function gc._require_owned(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    missing text := (
        select o from unnest(c.owned) as o
        where o not in (select f.reference from gc._foreign_keys(c.target) as f)
        limit 1
    );
begin
    if missing is not null then
        raise 'the owned reference % is gone', missing
            using errcode = 'undefined_object',
                detail = 'Whether what it was now keeps or is owned, nobody has said.',
                hint = format('select * from gc.track(%L, owned => …);', c.target);
    end if;
end;
$$;

comment on function gc._require_owned(gc.collections) is
    'Raises for an owned reference that has gone since gc.track was called.';


-- Of gc._references, only what is asked here, because every review asks.
create function gc._owned_tables(c gc.collections)
    returns setof oid
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    roots oid[];
begin
    if c.owned = '{}' then
        return;
    end if;
    roots := array(select p::oid from gc._partitions(c.target) as p);
    return query
        select k.conrelid from pg_constraint as k
        where k.contype = 'f' and k.conparentid = 0 and k.confrelid = any (roots)
            and format('%s(%s)', k.conrelid::regclass,
                gc._idents(gc._columns(k.conrelid, k.conkey))) = any (c.owned);
end;
$$;

comment on function gc._owned_tables(gc.collections) is
    'The tables that are deleted from because they are named in "owned".';


create function gc._touched_by(c gc.collections)
    returns table (relation oid, written boolean, by_parent boolean)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select t.* from gc._touched(c.target, array(select gc._owned_tables(c))) as t;
end;
$$;

comment on function gc._touched_by(gc.collections) is
    'The tables that a review of this collection reads and writes.';


-- A trigger can be put on a table by anyone who has the right TRIGGER there. Its function is known
-- by its owner; but its condition may be any call of a function that came with the server, and some
-- of those run what they are given.
create function gc._untrusted(c gc.collections)
    returns table (what text, owner name)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
as $$
declare
    tables oid[];
    written oid[];
    trusted oid[] := array(select gc._trusted(c.target));
begin
    select array_agg(t.relation), array_agg(t.relation) filter (where t.written)
    into tables, written
    from gc._touched_by(c) as t;
    tables := array(
        select unnest(tables)
        union
        select d.relation from gc._deferrable(written) as d
        union
        select r.oid from pg_class as r
        where r.relnamespace = 'gc'::regnamespace
            and r.relname = any (c.links || gc._object_name(c.name, '_review_queue'))
    );
    return query
        with objects as materialized (select * from gc._objects_of(tables))
        select i.type || ' ' || i.identity, pg_get_userbyid(o.owner)
        from objects as o
        cross join lateral pg_identify_object(o.class, o.id, 0) as i
        where o.owner <> all (trusted)
        union all
        select u.*
        from (select array_agg(o.class), array_agg(o.id) from objects as o) as o(classes, ids)
        cross join lateral gc._untrusted_code(c.target, o.classes, o.ids) as u
        union all
        select format('trigger %I on %s', g.tgname, g.tgrelid::regclass), null::name
        from pg_trigger as g
        where g.tgrelid = any (tables) and not g.tgisinternal and case
            when g.tgqual is not null then gc._unfit_call(g.tgqual::text, true) is not null
        end;
end;
$$;

comment on function gc._untrusted(gc.collections) is
    'What a review would touch that belongs to a role nobody has said to trust; the owner is null '
    'where nobody can tell whose it is.';


create function gc._require_trusted(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    what text;
    owner name;
begin
    select u.what, u.owner into what, owner
    from gc._untrusted(c) as u
    order by array_position(array['table', 'trigger'], split_part(u.what, ' ', 1)), 1
    limit 1;
    if found and owner is null then
        raise 'the condition of % could run anything with the rights of %', what, current_user
            using errcode = 'insufficient_privilege',
                detail = 'It calls a function that need not give the same answer every time.',
                hint = format('drop %s;', what);
    elsif found then
        raise '% belongs to %, who could run code with the rights of %', what, owner, current_user
            using errcode = 'insufficient_privilege',
                detail = 'A review reads or deletes rows, and that can make it run.',
                hint = format('update gc.settings set trusted_roles = trusted_roles || %L::name;',
                    owner);
    end if;
end;
$$;

comment on function gc._require_trusted(gc.collections) is
    'Raises if anything that a review can make run belongs to a role that is not trusted.';


create function gc._require_lockable(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    relation regclass := (
        select t.relation from gc._touched_by(c) as t
        join pg_class as r on r.oid = t.relation and r.relkind in ('r', 'p')
        where not t.by_parent and not has_table_privilege(
            t.relation, case when t.written then 'update, delete' else 'select' end)
        order by 1
        limit 1
    );
begin
    if relation is not null then
        raise '% may not lock %', current_user, relation
            using errcode = 'insufficient_privilege',
                detail = 'A review reads it, or deletes from it along a cascade.',
                hint = format('grant select, delete on %s to %I;', relation, current_user);
    end if;
end;
$$;

comment on function gc._require_lockable(gc.collections) is
    'Raises if the owner of blobgc lacks the right to lock a table that a review touches.';


-- From here on nobody can put a trigger on what a review deletes from, nor a foreign key: both need
-- a lock that excludes ROW EXCLUSIVE. They can be aimed at one partition and lock only that, so
-- LOCK TABLE goes down to the partitions; the DELETE would lock all of them in this mode anyway.
-- Tables that are only read are locked as reading locks them: no code of others can get there, for
-- whoever may create an index owns the table. The order is that of the oids, for everybody. A
-- foreign key that came while a lock was waited for is in the fingerprint, which is looked at next.
create function gc._lock_touched(c gc.collections)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    command text;
begin
    for command in
        select format('lock table %s%s in %s mode',
            case when t.written and r.relkind = 'p' then '' else 'only ' end, r.oid::regclass,
            case when t.written then 'row exclusive' else 'access share' end)
        from gc._touched_by(c) as t
        join pg_class as r on r.oid = t.relation and r.relkind in ('r', 'p')
        where not t.by_parent
        order by r.oid
    loop
        perform gc._run(command);
    end loop;
exception
    when insufficient_privilege then
        perform gc._require_lockable(c);
        raise;
end;
$$;

comment on function gc._lock_touched(gc.collections) is
    'Locks all tables that a review touches, so that nobody can add code to them.';


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


create function gc._known_events()
    returns table (event text, collection text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select distinct gc._event(c.events, u.usual), c.name
    from gc.collections as c
    cross join lateral gc._usual_events(c) as u(usual)
$$;

comment on function gc._known_events() is 'The events of all collections, under their names.';


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
    perform gc._require_names(c);
    perform gc._require_trusted(c);
    perform gc._require_indexes(c.target);
    perform gc._require_owned(c);
    perform gc._require_keepers_back(c);
    perform gc._require_locking(c);
    perform gc._require_events(c);
    perform gc._require_rights(c);
    perform gc._require_lockable(c);
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
create function gc._url_tree(c gc.collections)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    parsed regclass := gc._parse_expression(c.target, 'url', c.url);
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
    expression text := regexp_replace(
        pg_get_viewdef(parsed), '^\s*SELECT (.*) AS value\s+FROM.*$', '\1');
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
    select exists (
        select from pg_index as i
        where i.indrelid = c.target and i.indisvalid and i.indpred is null
            and regexp_replace(pg_get_indexdef(i.indexrelid, 1, false), '[()\s]', '', 'g')
                = c.url_printed
    )
$$;

comment on function gc._has_url_index(gc.collections) is
    'Whether an index finds the rows that have a url.';


-- Tried on an empty table that is gone again at once: nobody knows PostgreSQL's rules better.
create function gc._url_index_flaw(c gc.collections)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    tried text := format('gc.%I', gc._alias(c.target));
begin
    if to_regclass(tried) is not null then
        return null;
    end if;
    perform gc._run(format('create table %s (like %s)', tried, c.target));
    perform gc._run(format('create index on %s ((%s))', tried, c.url));
    raise 'that is enough' using errcode = 'ZG000';
exception
    when sqlstate 'ZG000' then
        return null;
    when others then
        return sqlerrm;
end;
$$;

comment on function gc._url_index_flaw(gc.collections) is
    'Why PostgreSQL cannot have an index on a url; null: it can.';


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


create function gc._missing_url_index(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when c.url_flaw is null
            then format('create index %son %s ((%s));', gc._concurrently(c.target), c.target, c.url)
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
