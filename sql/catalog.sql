-- The catalog: what PostgreSQL itself knows of a table: its key, its partitions, its columns.

create function gc._table_name(relation regclass)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
as $$ select relation::text $$;

comment on function gc._table_name(regclass) is
    'A table as everybody may call it: with its schema, and the same in every session.';


-- pg_partition_tree would lock every partition. PL/pgSQL, like everything that a review asks of the
-- catalog: an SQL function is planned at each call, which takes longer than finding the answer.
create function gc._partitions(relation regclass)
    returns setof regclass
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        with recursive tree(id) as (
            select relation::oid
            union
            select i.inhrelid
            from tree as t
            join pg_class as p on p.oid = t.id and p.relkind = 'p'
            join pg_inherits as i on i.inhparent = p.oid
        )
        select t.id::regclass from tree as t;
end;
$$;

comment on function gc._partitions(regclass) is
    'A table with all its partitions, itself included.';


-- A partitioned table can matter because a partition of it does. PL/pgSQL, as above.
create function gc._kin()
    returns table (parent oid, child oid)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select i.inhparent, i.inhrelid from pg_inherits as i
        union all
        select i.inhrelid, i.inhparent from pg_inherits as i
        join pg_class as p on p.oid = i.inhparent and p.relkind = 'p';
end;
$$;

comment on function gc._kin() is
    'From which table a change of the catalog may concern which: from one to those that inherit '
    'from it, and from a partition to its table.';


create function gc._operator(operator oid)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select case
            when n.nspname = 'pg_catalog' then o.oprname
            else format('operator(%I.%s)', n.nspname, o.oprname)
        end
        from pg_operator as o
        join pg_namespace as n on n.oid = o.oprnamespace
        where o.oid = operator
    );
end;
$$;

comment on function gc._operator(oid) is
    'An operator as it has to be written where only pg_catalog is searched.';


create function gc._base_type(type oid)
    returns oid
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with recursive base(id, below) as (
        select t.oid, t.typbasetype from pg_type as t where t.oid = type
        union all
        select t.oid, t.typbasetype from base as b join pg_type as t on t.oid = b.below
    )
    select b.id from base as b where b.below = 0
$$;

comment on function gc._base_type(oid) is
    'The type that a domain is made from; or the type itself.';


-- The types character and bit, without a length, would be those of a single one: for -1 they are
-- written in another way.
create function gc._type_name(type oid)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select format_type(type, -1) $$;

comment on function gc._type_name(oid) is
    'A type as it is written in a cast that cuts nothing off.';


-- A queue has columns of its own; a key column of the same name stands beside them as key_<name>,
-- one that is called key_<name> as key_key_<name>, and so on.
create function gc._queue_column(name name)
    returns name
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when regexp_replace(name, '^(key_)*', '') in ('event', 'review_after', 'review_count',
                'last_error', 'asleep_since', 'causes', 'entry')
            then 'key_' || name
        else name
    end::name
$$;

comment on function gc._queue_column(name) is
    'The name that a key column has in a review queue.';


create type gc._key_columns as (
    names name[], queue_names name[], types text[], operators text[], hashes text[]
);

comment on type gc._key_columns is
    'A primary key: its columns, their names in a queue, their types, what compares them, and what '
    'stands for them in an index with more columns, where they could be too long for that.';


-- PL/pgSQL, like gc._columns: every template asks, and a plan is made only once.
create function gc._key(target regclass)
    returns gc._key_columns
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select (
            array_agg(a.attname order by k.n),
            array_agg(gc._queue_column(a.attname) order by k.n),
            array_agg(
                format_type(a.atttypid, a.atttypmod) || case
                    when a.attcollation not in (0, t.typcollation)
                        then format(' collate %I.%I', cn.nspname, co.collname)
                    else ''
                end
                order by k.n),
            array_agg(gc._operator(o.amopopr) order by k.n),
            array_agg(case case t.typtype when 'd' then gc._base_type(t.oid) else t.oid end
                when 'text'::regtype then 'hashtextextended(%s, 0)'
                when 'varchar'::regtype then 'hashtextextended(%s, 0)'
                when 'bpchar'::regtype then 'hashtextextended(%s::text, 0)'
                when 'bytea'::regtype then 'hashtextextended(encode(%s, ''hex''), 0)'
            end order by k.n)
        )::gc._key_columns
        from pg_index as i
        cross join lateral unnest(i.indkey::smallint[], i.indclass::oid[])
            with ordinality as k(attnum, opclass, n)
        join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum
        join pg_type as t on t.oid = a.atttypid
        join pg_opclass as c on c.oid = k.opclass
        join pg_amop as o on o.amopfamily = c.opcfamily and o.amopstrategy = 3
            and o.amoplefttype = c.opcintype and o.amoprighttype = c.opcintype
        left join pg_collation as co on co.oid = a.attcollation
        left join pg_namespace as cn on cn.oid = co.collnamespace
        where i.indrelid = target and i.indisprimary and k.n <= i.indnkeyatts
    );
end;
$$;

comment on function gc._key(regclass) is
    'A table''s primary key; its fields are null where there is none.';


create function gc._columns(relation regclass, numbers smallint[])
    returns name[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select array_agg(a.attname order by u.n)
        from unnest(numbers) with ordinality as u(attnum, n)
        join pg_attribute as a on a.attrelid = relation and a.attnum = u.attnum
    );
end;
$$;

comment on function gc._columns(regclass, smallint[]) is
    'The names of a table''s columns that have these numbers.';


create function gc._idents(names name[], prefix text default '')
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(prefix || quote_ident(u.name), ', ' order by u.n)
    from unnest(names) with ordinality as u(name, n)
$$;

comment on function gc._idents(name[], text) is
    'Names as a list for a statement, each quoted where it has to be, each behind the prefix.';


-- A key as long as PostgreSQL allows has no room left for another column in its index, not even for
-- a hash in place of a shorter column: where one may be long and has no hash, the key stands alone.
create function gc._index_columns(relation regclass, k gc._key_columns, more text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when bool_or(u.hash is null and a.attlen < 0) then gc._idents(k.queue_names)
        else string_agg(
            format(coalesce('(' || u.hash || ')', '%s'), quote_ident(u.name)), ', ' order by u.n)
            || ', ' || more
    end
    from unnest(k.queue_names, k.hashes) with ordinality as u(name, hash, n)
    join pg_attribute as a on a.attrelid = relation and a.attname = u.name
$$;

comment on function gc._index_columns(regclass, gc._key_columns, text) is
    'The columns of an index on a queue, or on links: the key and, if there is room, more.';


create function gc._typed(relation regclass, columns name[])
    returns text[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array_agg(format('%s %s.%s', a.attname, n.nspname, t.typname) order by a.attname)
    from pg_attribute as a
    join pg_type as t on t.oid = a.atttypid
    join pg_namespace as n on n.oid = t.typnamespace
    where a.attrelid = relation and a.attname = any (columns) and not a.attisdropped
$$;

comment on function gc._typed(regclass, name[]) is
    'Columns with their types, as text that no setting of a session changes.';


-- Declared immutable although it is not: PostgreSQL then calls it when it plans a statement, not at
-- each execution. Altering a table drops every plan that reads the table, so in a statement
-- that reads it the answer is never out of date, and costs nothing.
create function gc._has_columns(relation text, columns text[])
    returns boolean
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return columns <@ array(
        select format('%s %s.%s', a.attname, n.nspname, t.typname)
        from pg_attribute as a
        join pg_type as t on t.oid = a.atttypid
        join pg_namespace as n on n.oid = t.typnamespace
        where a.attrelid = to_regclass(relation) and a.attnum > 0 and not a.attisdropped
    );
end;
$$;

comment on function gc._has_columns(text, text[]) is
    'Whether a table still has these columns, as a constant in a statement that reads it.';


create function gc._partition_key(
    relation regclass, out columns name[], out types text[], out operators text[]
)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array_agg(a.attname order by k.n),
        array_agg(format_type(a.atttypid, a.atttypmod) order by k.n),
        array_agg(gc._operator(o.amopopr) order by k.n)
    from pg_partitioned_table as p
    cross join lateral unnest(p.partattrs::smallint[], p.partclass::oid[])
        with ordinality as k(attnum, opclass, n)
    join pg_attribute as a on a.attrelid = p.partrelid and a.attnum = k.attnum
    join pg_opclass as c on c.oid = k.opclass
    join pg_amop as o on o.amopfamily = c.opcfamily
        and o.amopstrategy = case p.partstrat when 'h' then 1 else 3 end
        and o.amoplefttype = c.opcintype and o.amoprighttype = c.opcintype
    where p.partrelid = relation and p.partexprs is null
$$;

comment on function gc._partition_key(regclass) is
    'The columns by which a table is partitioned; null if it is not, or by an expression.';


create function gc._place(relation regclass)
    returns name[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when c.relkind <> 'p' then array['ctid'::name]
        else coalesce((gc._key(relation)).names, array['tableoid', 'ctid']::name[])
    end
    from pg_class as c
    where c.oid = relation
$$;

comment on function gc._place(regclass) is 'Columns that tell a row of the table from all others.';


-- A foreign key says nothing about the tables that inherit from its own.
create function gc._only(relation regclass)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.relkind = 'p' then '' else 'only ' end || relation
    from pg_class as c
    where c.oid = relation
$$;

comment on function gc._only(regclass) is
    'A table as it has to be written so that no inheriting table is meant.';


create function gc._concurrently(relation regclass)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select case when c.relkind = 'p' then '' else 'concurrently ' end from pg_class as c
    where c.oid = relation $$;

comment on function gc._concurrently(regclass) is
    'How a hint asks for an index: what is partitioned cannot have one made concurrently.';
