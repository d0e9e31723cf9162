-- References: the foreign keys into a collection, and what was declared to be as good as one. A
-- reference keeps its target, or is owned by it.
--
-- Foreign keys are read here and nowhere else, at every review. Nobody has to register one.

create type gc._mention as (
    written text, condition text, alias text, is_array boolean, type text, key_columns name[],
    columns name[], target_column name, comparison text, is_direct boolean, is_safe boolean,
    is_strict boolean, printed text, printed_condition text, functions oid[]
);

comment on type gc._mention is
    'What a declared reference reads, and how: "written" and "condition" are its expressions, as '
    'PostgreSQL writes them; "key_columns": the column that its keys are, none for an expression; '
    '"is_direct": every key fits into the queue; "is_safe": nothing in it can raise.';


create type gc._passage as (
    owner text, columns name[], targets name[], operators text[], prunes boolean
);

comment on type gc._passage is
    'How a reference gets to the collection through rows that are owned: by "owner", to whose rows '
    'it refers with these columns; "prunes": that tells in which of its partitions its rows are.';


create type gc._reference as (
    referencing regclass, columns name[], targets name[], operators text[], on_delete "char",
    to_key boolean, reference text, owned integer, linked boolean, itself boolean,
    mention gc._mention, depth integer, via text, child boolean, passage gc._passage
);

comment on type gc._reference is
    'A reference into a collection. "owned" is its place in the order, null: it keeps; "linked": '
    'its rows can be in any partition; "itself": its rows are of the collection; "mention": what '
    'was declared, null: it is a foreign key; "depth": 1, or more if it refers to what is owned; '
    '"via": the owned reference to whose rows its columns refer, null: to the collection itself; '
    '"child": its rows have the collection''s own key; "passage": it refers to what is owned, and '
    'has the collection''s key all the same.';


-- A foreign key compares as its operator and the key's collation do, whatever types the columns
-- have: %1$s and %2$s stand for the two sides where that has to be said.
create function gc._comparison(operator oid, key pg_attribute, referring pg_attribute)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select case
            when w.type = '' and w.collated = '' then gc._operator(operator)
            else '%1$s' || w.type || ' ' || gc._operator(operator)
                || ' %2$s' || w.type || w.collated
        end
        from pg_operator as o
        join pg_type as t on t.oid = o.oprleft
        cross join lateral (
            select
                case
                    when o.oprleft = o.oprright and t.typtype <> 'p' and not (
                        key.atttypid in (o.oprleft, 'varchar'::regtype)
                        and referring.atttypid in (o.oprleft, 'varchar'::regtype)
                    )
                        then '::' || gc._type_name(o.oprleft)
                    else ''
                end,
                coalesce((
                    select format(' collate %I.%I', n.nspname, c.collname)
                    from pg_collation as c
                    join pg_namespace as n on n.oid = c.collnamespace
                    where c.oid = key.attcollation and key.attcollation <> referring.attcollation
                ), '')
        ) as w(type, collated)
        where o.oid = operator
    );
end;
$$;

comment on function gc._comparison(oid, pg_attribute, pg_attribute) is
    'How a foreign key compares a column of the key with the one that refers to it.';


create function gc._are_alike(
    relation regclass, columns name[], target regclass, targets name[]
)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return not exists (
        select from unnest(columns, targets) as u(name, target_name)
        join pg_attribute as a on a.attrelid = relation and a.attname = u.name
        join pg_attribute as t on t.attrelid = target and t.attname = u.target_name
        where (a.atttypid, a.attcollation) <> (t.atttypid, t.attcollation)
    );
end;
$$;

comment on function gc._are_alike(regclass, name[], regclass, name[]) is
    'Whether these columns have the types and collations of those.';


-- Multi-table inheritance: the primary key of the child is its foreign key to the parent. Whoever
-- refers to the child then refers to the parent; the types are the same, so that they compare as
-- they do with the child.
create function gc._shares_key(
    relation regclass, columns name[], target regclass, targets name[]
)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return relation <> target and exists (
        select from pg_index as i
        cross join lateral (
            select gc._columns(relation, (i.indkey::smallint[])[0:i.indnkeyatts - 1])
        ) as k(columns)
        where i.indrelid = relation and i.indisprimary
            and i.indnkeyatts = cardinality(_shares_key.columns)
            and k.columns @> _shares_key.columns and _shares_key.columns @> k.columns
    ) and gc._are_alike(relation, _shares_key.columns, target, targets);
end;
$$;

comment on function gc._shares_key(regclass, name[], regclass, name[]) is
    'Whether these columns, which refer to the key of the target, are the table''s own key.';


-- A foreign key on a partitioned table has a copy on every partition; conparentid tells the copies.
create function gc._foreign_keys(target regclass)
    returns setof gc._reference
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    k gc._key_columns := gc._key(target);
    tables regclass[] := array(select gc._partitions(target));
begin
    return query
        select c.conrelid::regclass, f.columns, f.targets,
            array(
                select gc._comparison(u.op, key, referring)
                from unnest(c.conpfeqop, c.confkey, c.conkey) with ordinality as u(op, k, r, n)
                join pg_attribute as key on key.attrelid = c.confrelid and key.attnum = u.k
                join pg_attribute as referring
                    on referring.attrelid = c.conrelid and referring.attnum = u.r
                order by u.n
            ),
            c.confdeltype,
            f.to_key,
            format('%s(%s)', c.conrelid::regclass, gc._idents(f.columns)),
            null::integer, false, c.conrelid = any (tables), null::gc._mention, 1, null::text,
            f.to_key and gc._shares_key(c.conrelid, f.columns, target, f.targets),
            null::gc._passage
        from pg_constraint as c
        cross join lateral (
            select u.columns, u.targets, u.targets @> k.names and k.names @> u.targets
            from (
                select gc._columns(c.conrelid, c.conkey), gc._columns(c.confrelid, c.confkey)
                offset 0
            ) as u(columns, targets)
            offset 0
        ) as f(columns, targets, to_key)
        where c.contype = 'f' and c.conparentid = 0 and c.confrelid = any (tables)
        order by 7, c.oid;
end;
$$;

comment on function gc._foreign_keys(regclass) is
    'Every foreign key into a table or into one of its partitions.';


create function gc._all_references(target regclass)
    returns setof gc._reference
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select * from gc._foreign_keys(target)
        union all
        select * from gc._declared(target);
end;
$$;

comment on function gc._all_references(regclass) is
    'Every reference into a table: foreign keys, and those that were declared.';


-- ON DELETE RESTRICT says that the owned row is not to go, and the foreign key says whose it is: so
-- it keeps the owner. What belongs to the collection by another foreign key does not, nor does a
-- partition of that.
create function gc._keeps_through(c gc.collections, o gc._reference, f gc._reference)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return f.on_delete = 'r' and f.targets @> o.columns and o.to_key and o.via is null
        and not f.itself and not gc._is_mention(o)
        and not exists (
            select from gc._tables_named(c.owned) as w
            where f.referencing in (select gc._partitions(w))
        )
        and gc._are_alike(o.referencing, o.columns, c.target, o.targets);
end;
$$;

comment on function gc._keeps_through(gc.collections, gc._reference, gc._reference) is
    'Whether a foreign key into rows that are owned through o keeps those that own them.';


create function gc._through(o gc._reference, f gc._reference)
    returns gc._reference
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    parts name[] := (gc._partition_key(f.referencing)).columns;
    places integer[] := array(
        select array_position(f.targets, u.name)
        from unnest(o.columns) with ordinality as u(name, n)
        order by u.n
    );
    columns name[] := f.columns;
begin
    f.columns := array(select columns[p] from unnest(places) as p);
    f.passage := (o.reference, columns, f.targets, f.operators,
        parts <@ columns and not parts <@ f.columns)::gc._passage;
    f.targets := o.targets;
    f.operators := array(select ((f.passage).operators)[p] from unnest(places) as p);
    f.to_key := true;
    f.child := false;
    return f;
end;
$$;

comment on function gc._through(gc._reference, gc._reference) is
    'A foreign key into rows that are owned through o, as one to the collection.';


-- Where one column of a foreign key is null, it refers to nothing, whatever stands in the others.
create function gc._other_columns(r gc._reference)
    returns name[]
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select array(
        select distinct u.name from unnest((r.passage).columns) as u(name)
        where u.name <> all (r.columns)
        order by u.name
    )
$$;

comment on function gc._other_columns(gc._reference) is
    'The columns of a foreign key that are not compared with the collection''s key.';


-- A foreign key into an owned table, as the collection sees it. Where the owned rows have the
-- collection's own key, it is one to the collection, whose rows it keeps unless it is owned too.
create function gc._below(c gc.collections, o gc._reference, f gc._reference)
    returns gc._reference
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    f.owned := array_position(c.owned, f.reference);
    f.itself := f.referencing in (select gc._partitions(c.target));
    f.depth := o.depth + 1;
    if o.child and f.to_key then
        f.targets := array(
            select o.targets[array_position(o.columns, u.name)]
            from unnest(f.targets) with ordinality as u(name, n)
            order by u.n
        );
        f.via := o.via;
        f.to_key := o.to_key;
        f.child := f.child and not f.itself;
    elsif gc._keeps_through(c, o, f) then
        f := gc._through(o, f);
    else
        f.via := o.reference;
        f.child := false;
    end if;
    return f;
end;
$$;

comment on function gc._below(gc.collections, gc._reference, gc._reference) is
    'What a foreign key into a table that is owned through o is to the collection.';


create function gc._at_top(c gc.collections, f gc._reference)
    returns gc._reference
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    f.owned := array_position(c.owned, f.reference);
    return f;
end;
$$;

comment on function gc._at_top(gc.collections, gc._reference) is
    'What a foreign key into a collection is to it.';


-- What is owned may own in its turn. A name that was met is not followed again.
create function gc._reference_tree(c gc.collections)
    returns setof gc._reference
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    level gc._reference[] := array(
        select gc._at_top(c, f) from gc._all_references(c.target) as f
    );
    r gc._reference;
    known text[] := array[]::text[];
begin
    while level <> '{}' loop
        foreach r in array level loop
            known := known || r.reference;
            return next r;
        end loop;
        level := array(
            select gc._below(c, o, f)
            from unnest(level) as o
            cross join lateral gc._foreign_keys(o.referencing) as f
            where o.owned is not null and not o.itself and f.reference <> all (known)
        );
    end loop;
end;
$$;

comment on function gc._reference_tree(gc.collections) is
    'Every foreign key into a collection, and into what it owns, and so on.';


-- A foreign key compares values of several types, and one that is deferred or not valid may have
-- any value: a column that is wider than the key has some that no key can have.
create function gc._fits_key(target regclass, r gc._reference)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(bool_and(
        (a.atttypid, a.atttypmod) = (k.atttypid, k.atttypmod)
        or k.atttypid = 'int4'::regtype and a.atttypid = 'int2'::regtype
        or k.atttypid = 'int8'::regtype and a.atttypid in ('int2'::regtype, 'int4'::regtype)
        or k.atttypid = 'text'::regtype and a.atttypid = 'varchar'::regtype
    ), false)
    from unnest(r.columns, r.targets) as u(name, target_name)
    join pg_attribute as a on a.attrelid = r.referencing and a.attname = u.name
    join pg_attribute as k on k.attrelid = target and k.attname = u.target_name
$$;

comment on function gc._fits_key(regclass, gc._reference) is
    'Whether every value of the columns of a reference can be written as a key of the target.';


create function gc._references(c gc.collections)
    returns setof gc._reference
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select f.referencing, f.columns, f.targets, f.operators, f.on_delete, f.to_key, f.reference,
        f.owned,
        f.owned is null and f.to_key and not gc._is_mention(f)
            and coalesce(not (gc._partition_key(f.referencing)).columns <@ f.columns, false)
            and coalesce(not (f.passage).prunes, true) and gc._fits_key(c.target, f),
        f.itself, f.mention, f.depth, f.via, f.child and f.owned is not null, f.passage
    from gc._reference_tree(c) as f
    where (f.via is null or f.owned is not null) and c.collect = 'garbage'
$$;

comment on function gc._references(gc.collections) is
    'The references into a collection, with their place in "owned", and whether links help; none '
    'where only deleted rows are collected.';


create function gc._has_index(relation regclass, columns name[])
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select
        from pg_index as i
        cross join lateral (
            select gc._columns(relation, (i.indkey::smallint[])[0:cardinality(columns) - 1])
        ) as x(first)
        where i.indrelid = relation
            and i.indisvalid
            and x.first @> columns
            and (
                i.indpred is null
                or pg_get_expr(i.indpred, i.indrelid) in (
                    select format('(%I IS NOT NULL)', u.name) from unnest(columns) as u(name)
                )
            )
    )
$$;

comment on function gc._has_index(regclass, name[]) is
    'Whether an index finds the rows by these columns. One that leaves out nulls is good enough.';


-- Without an index, every review would read the whole referring table for every row.
create function gc._require_indexes(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    missing text[];
    script text;
begin
    select array_agg(distinct f.reference), string_agg(distinct case
        when gc._is_mention(f) then gc._mention_index_sql(f)
        else format('create index %son %s (%s);',
            gc._concurrently(f.referencing), f.referencing, gc._idents(f.columns))
        end, E'\n')
    into missing, script
    from gc._references(c) as f
    where not case when gc._is_mention(f) then gc._has_mention_index(f)
        else gc._has_index(f.referencing, f.columns) end;
    if cardinality(missing) = 1 then
        raise '% refers to "%" without an index', missing[1], c.target
            using errcode = 'invalid_table_definition',
                detail = 'Every review would read that table from end to end.', hint = script;
    elsif missing is not null then
        raise '% references to "%" have no index', cardinality(missing), c.target
            using errcode = 'invalid_table_definition',
                detail = format('Every review would read these tables from end to end: %s.',
                    array_to_string(missing, ', ')),
                hint = script;
    end if;
end;
$$;

comment on function gc._require_indexes(gc.collections) is
    'Raises for references whose columns have no index; the hint is the script that makes them.';


-- All the ways to write a reference in "owned": the table, with or without schema and columns.
create function gc._spellings(referencing regclass, columns name[])
    returns text[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array_agg(t.spelling || c.spelling)
    from pg_class as r
    join pg_namespace as n on n.oid = r.relnamespace
    cross join lateral (values
        (r.relname::text), (quote_ident(r.relname)),
        (n.nspname || '.' || r.relname), (format('%I.%I', n.nspname, r.relname))
    ) as t(spelling)
    cross join (values
        (''), ('(' || array_to_string(columns, ',') || ')'),
        ('(' || replace(gc._idents(columns), ', ', ',') || ')')
    ) as c(spelling)
    where r.oid = referencing
$$;

comment on function gc._spellings(regclass, name[]) is
    'The texts that name a reference in the argument "owned" of gc.track.';


create function gc._require_column(r gc._reference, item text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if r.columns = '{}' then
        raise '"%" cannot be owned', item
            using errcode = 'invalid_parameter_value',
                detail = format('The keys of %s are no column of the table, so a row need not '
                    'belong to one target alone.', r.reference),
                hint = 'Leave it out of owned.';
    end if;
end;
$$;

comment on function gc._require_column(gc._reference, text) is
    'Raises for a declared reference that names more than one key a row, or computes it.';


create function gc._raise_owned(c gc.collections, item text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    raise '"%" does not name one table that refers to "%"', item, c.target
        using errcode = 'undefined_object',
            detail = format('References: %s.', coalesce(
                (select string_agg(distinct f.reference, ', ')
                    from gc._reference_tree(c) as f), 'none')),
            hint = 'Name one of them in owned, or leave it out.';
end;
$$;

comment on function gc._raise_owned(gc.collections, text) is
    'Raises for an item of "owned" that names no reference, or more than one can be meant.';


-- The table alone means all its foreign keys into the collection; of those into what is owned,
-- only the one that there is: a row of a list belongs to the list, not to what stands in it.
create function gc._named(c gc.collections, item text)
    returns setof gc._reference
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with found as materialized (
        select f.*
        from gc._reference_tree(c) as f
        where exists (
            select from unnest(gc._spellings(
                f.referencing, coalesce((f.passage).columns, f.columns))) as s(spelling)
            where regexp_replace(item, '\s*,\s*', ',', 'g')
                = regexp_replace(s.spelling, '\s*,\s*', ',', 'g')
        )
    )
    select f.* from found as f
    where f.depth = 1 or not exists (select from found as o where o.depth = 1)
$$;

comment on function gc._named(gc.collections, text) is
    'The references that an item of "owned" names, as far as the tree is known.';


create function gc._owning(target regclass, owned text[])
    returns gc.collections
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select o.*
    from jsonb_populate_record(null::gc.collections,
        jsonb_build_object('target', target::oid, 'owned', owned)) as o
$$;

comment on function gc._owning(regclass, text[]) is
    'A collection of which no more is known than what it owns.';


-- Names are looked up once, when gc.track is called: a table that gets the same name later, in
-- another schema, is not meant. What is owned leads to more that can be named.
create function gc._resolve_owned(target regclass, owned text[])
    returns text[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    known text[] := array[]::text[];
    c gc.collections := gc._owning(target, known);
    item text;
    matching gc._reference[];
    resolved text[] := array[]::text[];
begin
    loop
        known := array(
            select distinct m.reference
            from unnest(owned) as u(item) cross join lateral gc._named(c, u.item) as m
            order by 1
        );
        exit when known = c.owned;
        c := gc._owning(target, known);
    end loop;
    foreach item in array owned loop
        matching := array(select m from gc._named(c, item) as m);
        if (
            select count(distinct case when m.depth = 1 then m.referencing::text else m.reference
                end) from unnest(matching) as m
        ) <> 1 then
            perform gc._raise_owned(c, item);
        end if;
        perform gc._require_column(m, item) from unnest(matching) as m;
        resolved := resolved || array(select distinct m.reference from unnest(matching) as m);
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
        where o not in (select f.reference from gc._references(c) as f)
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


-- A catalog has no index on what a foreign key refers to, but one on where it is.
create function gc._tables_named(places text[])
    returns setof oid
    language plpgsql
    stable
    rows 10
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select distinct to_regclass(substring(p from '^((?:"[^"]*"|[^("])*)\('))::oid
        from unnest(places) as p;
end;
$$;

comment on function gc._tables_named(text[]) is
    'The tables of these places, each of which is a table and its columns.';


create function gc._is_restricted(relation oid, columns smallint[])
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (
        select from pg_constraint as k
        where k.contype = 'f' and k.conparentid = 0 and k.confdeltype = 'r'
            and k.confrelid in (select gc._partitions(relation))
            and gc._columns(k.confrelid, k.confkey) @> gc._columns(relation, columns)
    );
end;
$$;

comment on function gc._is_restricted(oid, smallint[]) is
    'Whether a foreign key with ON DELETE RESTRICT refers to a table, or to a partition of it, by '
    'these columns and others.';


create function gc._owned_keys(owned text[])
    returns table (source oid, columns smallint[], target oid, targets smallint[])
    language plpgsql
    stable
    rows 10
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select k.conrelid, k.conkey, k.confrelid, k.confkey
        from gc._tables_named(owned) as r
        join pg_constraint as k on k.conrelid = r and k.contype = 'f' and k.conparentid = 0
        where format('%s(%s)', k.conrelid::regclass,
            gc._idents(gc._columns(k.conrelid, k.conkey))) = any (owned);
end;
$$;

comment on function gc._owned_keys(text[]) is 'The foreign keys that are named in "owned".';


-- Of gc._references, only what is asked here, because every review asks. A foreign key may refer to
-- a partition, so that these are told as well.
create function gc._owned_tables(c gc.collections)
    returns table (relation oid, is_child boolean)
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
        with recursive keys as materialized (
            select k.* from gc._owned_keys(c.owned) as k where k.source <> all (roots)
        ),
        tree(id, is_child) as (
            select r, true from unnest(roots) as r
            union
            select n.id, n.is_child
            from tree as t
            cross join lateral (
                select k.source, t.is_child and (
                    gc._shares_key(k.source, gc._columns(k.source, k.columns), k.target,
                        gc._columns(k.target, k.targets))
                    or gc._is_restricted(k.source, k.columns))
                from keys as k where k.target = t.id
                union all
                select i.inhrelid, t.is_child
                from pg_inherits as i
                join pg_class as p on p.oid = i.inhparent and p.relkind = 'p'
                where i.inhparent = t.id
            ) as n(id, is_child)
        )
        select t.id, bool_or(t.is_child) from tree as t where t.id <> all (roots) group by t.id
        union all
        select d.referencing::oid, false from gc.declared_references as d
        where d.collection = c.name and gc._declared_place(d) = any (c.owned);
end;
$$;

comment on function gc._owned_tables(gc.collections) is
    'The tables that are deleted from because they are named in "owned", and their partitions; '
    'is_child: what refers to their rows may have the collection''s own key, and keep.';


create function gc._reference_note(c gc.collections, reference text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format('deferred: a transaction that refers to a row while that is being '
        'collected fails at its commit, not at the statement; '
        'alter table %s alter constraint %I not deferrable;', k.conrelid::regclass, k.conname),
        E'\n' order by k.conname)
    from gc._keepers(c) as f
    join pg_constraint as k on k.oid = f.key
    where f.place = _reference_note.reference and not f.is_part and k.condeferred
$$;

comment on function gc._reference_note(gc.collections, text) is
    'What gc.track says about a reference; null: nothing.';
