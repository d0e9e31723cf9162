-- Suspects: columns that look like references to a collection and are none.
--
-- Names and types come from the catalog. Values come from a sample: of each table at most so many
-- blocks are read, and of each column at most 100 values are looked up in the collection, by an
-- index. Values of more than 2 kB are left out, so nothing is read from beside the table.
--
-- Reading a table can run code of its owner: what its indexes compute, a policy. Only tables that
-- belong to trusted roles, with all that reading them computes, are read, with the rights of the
-- caller and row security off; only columns of built-in types, by built-in operators. What is not
-- read is said.

create table gc.ignored_suspects (
    collection text not null,
    referencing regclass not null,
    keys text not null,
    constraint ignored_suspects_pkey primary key (collection, referencing, keys)
);

comment on table gc.ignored_suspects is
    'What looks like a reference and is none; see gc.ignore_suspect.';
comment on column gc.ignored_suspects.collection is 'The collection.';
comment on column gc.ignored_suspects.referencing is 'The table that does not refer to it.';
comment on column gc.ignored_suspects.keys is 'The column or expression, as gc.suspects writes it.';


create type gc._suspect as (
    relation regclass, attribute name, kind text, type_column name, field text, is_array boolean,
    class text, is_named boolean, handle name, is_key boolean, key_class text, key_type text,
    sampled integer, matching integer, unread text
);

comment on type gc._suspect is
    'A place where keys of a collection may stand: a column, an array, a pair of type and id '
    '(field is the type) or a field of JSON; and of which unique column of the collection.';


create function gc._singular(word text)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select case
            when word ~ '[^aeiou]ies$' then regexp_replace(word, 'ies$', 'y')
            when word ~ '(s|x|z|ch|sh)es$' then regexp_replace(word, 'es$', '')
            when word ~ '[^s]s$' then regexp_replace(word, 's$', '')
            else word
        end
    );
end;
$$;

comment on function gc._singular(text) is 'A noun in the singular, as far as its ending tells.';


create function gc._tokens(name text)
    returns text[]
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select array_agg(gc._singular(lower(m[1])) order by n)
        from regexp_matches(name, '([A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[^A-Za-z0-9_.:/ -]+)', 'g')
            with ordinality as t(m, n)
    );
end;
$$;

comment on function gc._tokens(text) is
    'The words of a name, however it is written: file_ids, fileIds, ActiveStorage::Blob.';


-- Casts and comparisons of these are the server's own, and immutable.
create function gc._class(type oid)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        with recursive base(id) as (
            select type
            union all
            select t.typbasetype from base as b
            join pg_type as t on t.oid = b.id and t.typtype = 'd'
        )
        select case
            when t.oid in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) then 'integer'
            when t.oid in ('text'::regtype, 'varchar'::regtype, 'bpchar'::regtype) then 'text'
            when t.oid in ('uuid'::regtype, 'bytea'::regtype, 'json'::regtype, 'jsonb'::regtype)
                then t.typname
        end
        from base as b
        join pg_type as t on t.oid = b.id and t.typtype <> 'd'
    );
end;
$$;

comment on function gc._class(oid) is
    'The kind of keys that a type can have: integer, text, uuid, bytea; or json, jsonb.';


create type gc._handle as (name name, class text, type text, is_key boolean);

comment on type gc._handle is 'A column by which a row of a collection can be meant.';


create function gc._handles(target regclass)
    returns setof gc._handle
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select a.attname, gc._class(a.atttypid), gc._type_name(a.atttypid), bool_or(i.indisprimary)
    from pg_index as i
    join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
    where i.indrelid = target and i.indisunique and i.indisvalid and i.indnkeyatts = 1
        and i.indpred is null
        and gc._class(a.atttypid) in ('integer', 'text', 'uuid', 'bytea')
    group by a.attname, a.atttypid
$$;

comment on function gc._handles(regclass) is
    'The columns by which a row of the collection can be meant: its key, and what else is unique.';


-- The last word of a table's name is what its rows are. A column is named for them if it has that
-- word (or "uploaded" for "upload") and ends in it, in "id" or the like, or in the handle's word.
create function gc._is_named(tokens text[], nouns text[], endings text[])
    returns boolean
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select tokens && (nouns || array(select u || 'ed' from unnest(nouns) as u))
            and tokens[cardinality(tokens)] = any (nouns || endings || array[
                'id', 'key', 'pk', 'fk', 'ref', 'reference', 'uuid', 'guid', 'oid', 'digest',
                'hash', 'sha', 'sha1', 'sha256', 'checksum'])
    );
end;
$$;

comment on function gc._is_named(text[], text[], text[]) is
    'Whether the words of a name say that it stands for what the nouns name.';


-- Foreign keys, a table's own key, and what counts by itself cannot be a reference by convention.
create function gc._free_columns(target regclass)
    returns table (
        relation oid, attnum smallint, name name, class text, is_array boolean, is_own boolean
    )
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with tables as materialized (
        select r.oid from pg_class as r
        join pg_namespace as n on n.oid = r.relnamespace
        where r.relkind in ('r', 'p') and not r.relispartition and r.relpersistence <> 't'
            and n.nspname not in ('pg_catalog', 'information_schema', 'gc')
            and not exists (
                select from pg_depend as d
                where d.classid = 'pg_class'::regclass and d.objid = r.oid and d.deptype = 'e'
            )
    ),
    types as materialized (
        select t.oid, t.typcategory = 'A' as is_array,
            gc._class(case when t.typcategory = 'A' then t.typelem else t.oid end) as class
        from pg_type as t
        where t.oid in (select a.atttypid from tables as r join pg_attribute as a
            on a.attrelid = r.oid and a.attnum > 0)
    )
    select r.oid, a.attnum, a.attname, t.class, t.is_array,
        a.attidentity <> '' or exists (
            select from pg_index as i
            where i.indrelid = r.oid and i.indnkeyatts = 1 and i.indkey[0] = a.attnum
                and (i.indisprimary or i.indisunique and r.oid = target)
        )
    from tables as r
    join pg_attribute as a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
    join types as t on t.oid = a.atttypid and t.class is not null
    where a.attgenerated <> 'v' and not exists (
        select from pg_constraint as f
        where f.conrelid = r.oid and f.contype = 'f' and a.attnum = any (f.conkey)
    )
$$;

comment on function gc._free_columns(regclass) is
    'The columns of all tables that could hold keys of the target and have no foreign key; '
    '"is_own": it is the key of its own table.';


create type gc._sought as (
    collection gc.collections, handles gc._handle[], nouns text[], endings text[], trusted oid[],
    all_trusted boolean
);

comment on type gc._sought is
    'What is looked for: a collection, the columns and words that can mean its rows; and who is '
    'trusted, and whether that is everybody whose code reading could run.';


create function gc._nouns(c gc.collections)
    returns text[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array(
        select distinct w.tokens[cardinality(w.tokens)]
        from pg_class as t
        cross join lateral (values (gc._tokens(t.relname)), (gc._tokens(c.name))) as w(tokens)
        where t.oid = c.target and w.tokens is not null
    )
$$;

comment on function gc._nouns(gc.collections) is 'What the rows of a collection are called.';


create function gc._pairs(target regclass)
    returns table (relation oid, attnum smallint, name name, type_column name, class text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with free as materialized (select f.* from gc._free_columns(target) as f where not f.is_array)
    select i.relation, i.attnum, i.name, t.name, i.class
    from free as i
    join free as t on t.relation = i.relation and (
        t.name = regexp_replace(i.name, '_id$', '') || '_type'
        or t.name = regexp_replace(i.name, 'Id$', '') || 'Type'
        or t.name = 'content_type_id' and i.name = 'object_id'
    )
    where i.name ~ '(_id|Id)$' and i.class in ('integer', 'text', 'uuid')
    union all
    -- Django's content type has a foreign key.
    select i.relation, i.attnum, i.name, a.attname, i.class
    from free as i
    join pg_attribute as a on a.attrelid = i.relation and a.attname = 'content_type_id'
    join pg_constraint as k on k.conrelid = i.relation and k.contype = 'f'
        and k.conkey = array[a.attnum]
    where i.name = 'object_id'
$$;

comment on function gc._pairs(regclass) is
    'The pairs of a type and an id in all tables.';


-- Numbers are everywhere: without a name that ends in "id" they say nothing. Those of a pair of
-- type and id are looked at by the pair.
create function gc._candidates(f gc._sought)
    returns setof gc._suspect
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with free as materialized (
        select o.*, w.fits and gc._is_named(t.tokens, f.nouns, f.endings) as is_named,
            w.fits and (o.class <> 'integer' or t.tokens[cardinality(t.tokens)] = 'id') as is_typed
        from gc._free_columns((f.collection).target) as o
        cross join lateral (select gc._tokens(o.name) offset 0) as t(tokens)
        cross join lateral (
            select o.class in (select h.class from unnest(f.handles) as h)
        ) as w(fits)
    ),
    pairs as materialized (select p.* from gc._pairs((f.collection).target) as p)
    select o.relation::regclass, o.name,
        case when o.class in ('json', 'jsonb') then o.class
            when o.is_array then 'array' else 'column' end,
        null::name, null::text, o.is_array, o.class, o.is_named, null::name, null::boolean,
        null::text, null::text, null::integer, null::integer, null::text
    from free as o
    where (o.class in ('json', 'jsonb') and not o.is_array
        or (o.is_named or o.is_typed)
            and (not o.is_own or o.is_named and o.relation <> (f.collection).target))
        and (o.relation, o.attnum) not in (select p.relation, p.attnum from pairs as p)
    union all
    select p.relation::regclass, p.name, 'pair', p.type_column, null, false, p.class, true,
        null, null, null, null, null, null, null
    from pairs as p
$$;

comment on function gc._candidates(gc._sought) is
    'The places that a look at values could show to be references.';


create function gc._untrusted_readers(tables oid[], target regclass)
    returns table (what text, owner name)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select u.*
    from (
        select array_agg(o.class), array_agg(o.id) from gc._objects_of(tables) as o
        where o.class not in ('pg_trigger'::regclass, 'pg_policy'::regclass)
    ) as o(classes, ids)
    cross join lateral gc._untrusted_code(target, o.classes, o.ids) as u
$$;

comment on function gc._untrusted_readers(oid[], regclass) is
    'What reading these tables can call, where its owner is not trusted.';


create function gc._unreadable(relation regclass, f gc._sought)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    tables oid[] := array(select p::oid from gc._partitions(relation) as p);
    who text;
begin
    if not has_schema_privilege((select r.relnamespace from pg_class as r where r.oid = relation),
            'usage') or not has_table_privilege(relation, 'select') then
        return format('%I may not read it', current_user);
    elsif exists (select from unnest(tables) as t where row_security_active(t)) then
        return format('its row security applies to %I', current_user);
    end if;
    select format('%s belongs to %I, who is not trusted', r.oid::regclass,
        pg_get_userbyid(r.relowner))
    into who
    from pg_class as r
    where r.oid = any (tables) and r.relowner <> all (f.trusted)
    limit 1;
    if who is null and not f.all_trusted then
        select format('reading it runs %s of %I, who is not trusted', u.what, u.owner) into who
        from gc._untrusted_readers(tables, (f.collection).target) as u
        limit 1;
    end if;
    return who;
end;
$$;

comment on function gc._unreadable(regclass, gc._sought) is
    'Why no sample of a table is taken; null: it can be.';


-- Most often everybody is trusted, and it need not be asked for each table.
create function gc._sought(c gc.collections)
    returns gc._sought
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select (
            c, h.handles, gc._nouns(c),
            array(select unnest(gc._tokens(o.name)) from unnest(h.handles) as o),
            array(select gc._trusted(c.target)),
            not exists (
                select from gc._untrusted_readers(array(
                    select r.oid from pg_class as r
                    where r.relkind in ('r', 'p') and r.oid >= 16384 and r.relpersistence <> 't'
                ), c.target)
            )
        )::gc._sought
        from (select array(select o from gc._handles(c.target) as o)) as h(handles)
    );
end;
$$;

comment on function gc._sought(gc.collections) is 'What is looked for, read once.';


-- Of a table the first blocks, the last, and two parts in between; of a partitioned one the first
-- blocks of its four biggest partitions.
create function gc._sampled_ranges(relation regclass, blocks integer)
    returns table (part regclass, first bigint, past bigint)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        with parts as materialized (
            select r.oid, ceil(pg_relation_size(r.oid)
                / current_setting('block_size')::numeric)::bigint as size
            from gc._partitions(relation) as p
            join pg_class as r on r.oid = p and r.relkind = 'r'
            order by 2 desc, 1
            limit 4
        ),
        shares as (
            select p.*, greatest(blocks, 4) / 4 as share, count(*) over () as n from parts as p
        )
        select s.oid::regclass, f.first, least(f.first + s.share, s.size)
        from shares as s
        cross join lateral (
            select distinct case
                when s.n > 1 then 0
                else greatest(least((s.size - s.share) * u / 3, s.size - s.share), u * s.share)
            end
            from generate_series(0, case when s.n > 1 then 0 else 3 end) as u
        ) as f(first)
        where f.first < s.size;
end;
$$;

comment on function gc._sampled_ranges(regclass, integer) is
    'The blocks of a table that a sample is taken of: at most so many, at least 4.';


-- What a sample of one place is: its field, whether it stands in an array, its value.
create function gc._sampled_values_sql(s gc._suspect, n bigint)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select format(case s.kind
            when 'array' then 'select %1$s, null::text, true, u.value::text from sample as s '
                'cross join lateral unnest(s.c%1$s) as u(value)'
            when 'column' then 'select %1$s, null::text, false, s.c%1$s::text from sample as s'
            when 'pair' then 'select %1$s, s.t%1$s::text, false, s.c%1$s::text from sample as s'
            else 'select %1$s, e.key, x.in_array, x.value from sample as s '
                'cross join lateral jsonb_each('
                'case when jsonb_typeof(s.c%1$s) = ''object'' then s.c%1$s end) as e '
                'cross join lateral (select false, e.value #>> ''{}'' '
                'where jsonb_typeof(e.value) in (''string'', ''number'') '
                'union all select true, jsonb_array_elements_text('
                'case when jsonb_typeof(e.value) = ''array'' then e.value end)) '
                'as x(in_array, value)'
            end, n)
    );
end;
$$;

comment on function gc._sampled_values_sql(gc._suspect, bigint) is
    'The part of a statement that gives the values that were sampled of one place.';


create function gc._sample_sql(relation regclass, places gc._suspect[], blocks integer)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        -- Null where there is no block.
        select 'with sample as materialized (' || (
                select string_agg(format('(select %s from only %s as r where r.ctid >= %L::tid '
                    'and r.ctid < %L::tid limit 100)', l.list, g.part,
                    format('(%s,0)', g.first), format('(%s,0)', g.past)), ' union all ')
                from gc._sampled_ranges(relation, blocks) as g
            ) || ') select p.n, p.field, bool_or(p.in_array), '
            '(array_agg(distinct p.value))[1:100] from (' || l.parts
            || ') as p(n, field, in_array, value) '
            'where p.value is not null and coalesce(length(p.field), 0) < 200 group by 1, 2'
        from (
            select string_agg(concat_ws(', ',
                    format('case when pg_column_size(r.%1$I) <= 2000 then r.%1$I%2$s end as c%3$s',
                        places[n].attribute,
                        case when places[n].class = 'json' then '::jsonb' else '' end, n),
                    case when places[n].kind = 'pair'
                        then format('r.%I as t%s', places[n].type_column, n) end), ', '),
                string_agg(gc._sampled_values_sql(places[n], n), ' union all ')
            from generate_subscripts(places, 1) as n
        ) as l(list, parts)
    );
end;
$$;

comment on function gc._sample_sql(regclass, gc._suspect[], integer) is
    'The statement that samples the values of some places of a table.';


create function gc._pattern(class text, is_named boolean)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select case class
            when 'integer' then '^-?[0-9]{1,18}$'
            when 'uuid' then '^[0-9A-Fa-f]{8}-?([0-9A-Fa-f]{4}-?){3}[0-9A-Fa-f]{12}$'
            when 'bytea' then '^\\x([0-9a-f]{2})+$'
            -- A short word is the same by chance.
            else case when is_named then '.' else '.{8}' end
        end
    );
end;
$$;

comment on function gc._pattern(text, boolean) is
    'What a value looks like that can be a key of this kind, and says something if it is one.';


create function gc._matching(target regclass, handle name, class text, candidates text[])
    returns integer
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    found_keys integer;
begin
    execute format('select count(*) from unnest($1) as v(value) '
        'where exists (select from %s as t where t.%I = v.value::%s)', target, handle,
        case class when 'integer' then 'bigint' else class end)
    into found_keys using candidates;
    return found_keys;
end;
$$;

comment on function gc._matching(regclass, name, text, text[]) is
    'How many of these values are in a unique column of the collection.';


-- The best of the collection's unique columns: most values, then the key, then the name.
create function gc._match(f gc._sought, s gc._suspect, candidates text[])
    returns gc._suspect
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    h record;
    pattern text;
    fitting text[];
    matching integer;
begin
    for h in
        select o.* from unnest(f.handles) as o
        where case s.kind
                when 'column' then o.class = s.class
                when 'array' then o.class = s.class
                when 'pair' then o.is_key and s.class in (o.class, 'text')
                else s.is_named or o.class <> 'integer'
            end
        order by o.is_key desc, (gc._tokens(o.name) && gc._tokens(coalesce(s.field, s.attribute)))
            desc, o.name
    loop
        pattern := gc._pattern(h.class, s.is_named);
        fitting := array(select u from unnest(candidates) as u where u ~ pattern);
        matching := gc._matching((f.collection).target, h.name, h.class, fitting);
        if s.handle is null or matching > s.matching then
            s.handle := h.name;
            s.is_key := h.is_key;
            s.key_class := h.class;
            s.key_type := h.type;
            s.sampled := cardinality(fitting);
            s.matching := matching;
        end if;
    end loop;
    return s;
end;
$$;

comment on function gc._match(gc._sought, gc._suspect, text[]) is
    'A place with how many of its values are keys, and of which unique column.';


create function gc._guess_handle(f gc._sought, s gc._suspect, flaw text)
    returns gc._suspect
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    select h.name, h.is_key, h.class, h.type into s.handle, s.is_key, s.key_class, s.key_type
    from unnest(f.handles) as h
    where h.class = s.class
    order by (gc._tokens(s.attribute))[cardinality(gc._tokens(s.attribute))]
        = any (gc._tokens(h.name)) desc, h.is_key desc, h.name
    limit 1;
    s.unread := flaw;
    return s;
end;
$$;

comment on function gc._guess_handle(gc._sought, gc._suspect, text) is
    'A place with the unique column that it refers to, as far as names tell.';


create function gc._django_type(f gc._sought, s gc._suspect)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    types regclass := (
        select r.oid
        from pg_class as r
        join pg_class as o on o.relnamespace = r.relnamespace
        where r.relname = 'django_content_type' and r.relkind = 'r' and o.oid = s.relation
    );
    found_type text;
begin
    if types is not null and gc._unreadable(types, f) is null then
        execute format('select m.app_label || ''_'' || m.model from only %s as m '
            'where m.id::text = $1 limit 1', types)
        into found_type using s.field;
    end if;
    return found_type;
end;
$$;

comment on function gc._django_type(gc._sought, gc._suspect) is
    'The table that a content type of Django stands for.';


-- Rails, and those who do as it does, write a class; Django the number of a row that names it.
create function gc._is_type_of(f gc._sought, s gc._suspect)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    called text := (
        select r.relname::text from pg_class as r where r.oid = (f.collection).target);
    words text[] := gc._tokens(regexp_replace(s.field, '^.*[.:/\\]', ''));
    own text[];
begin
    if s.type_column = 'content_type_id' then
        return coalesce(gc._django_type(f, s) = called, false);
    end if;
    for own in select gc._tokens(u) from unnest(array[(f.collection).name, called]) as u loop
        if gc._tokens(s.field) = own
                or own[cardinality(own) - cardinality(words) + 1:cardinality(own)] = words then
            return true;
        end if;
    end loop;
    return false;
end;
$$;

comment on function gc._is_type_of(gc._sought, gc._suspect) is
    'Whether the type of a pair of type and id means this collection.';


create function gc._looked(
    f gc._sought, places gc._suspect[], looked gc._suspect[], flaw text
)
    returns setof gc._suspect
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    s gc._suspect;
begin
    if flaw is null then
        return query select u.* from unnest(looked) as u;
    else
        return query
            select o.* from jsonb_populate_record(null::gc._suspect, jsonb_build_object(
                'relation', places[1].relation::oid, 'unread', flaw)) as o;
    end if;
    -- No value was found, or none was looked for.
    foreach s in array places loop
        if s.kind in ('column', 'array') and s.is_named and (flaw is not null or not exists (
            select from unnest(looked) as l where l.attribute = s.attribute
        )) then
            return query select * from gc._guess_handle(f, s, flaw);
        end if;
    end loop;
end;
$$;

comment on function gc._looked(gc._sought, gc._suspect[], gc._suspect[], text) is
    'What was found, what can be said by names alone, and which table was not looked at.';


create function gc._found(f gc._sought, s gc._suspect, field text, in_array boolean)
    returns gc._suspect
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    s.field := field;
    s.is_array := in_array;
    if s.kind in ('json', 'jsonb') then
        s.is_named := gc._is_named(gc._tokens(field), f.nouns, f.endings);
    end if;
    return s;
end;
$$;

comment on function gc._found(gc._sought, gc._suspect, text, boolean) is
    'A place in which a field or a type was found.';


create function gc._sampled(f gc._sought, places gc._suspect[], blocks integer)
    returns setof gc._suspect
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    statement text := gc._sample_sql(places[1].relation, places, blocks);
    n integer;
    field text;
    in_array boolean;
    candidates text[];
    s gc._suspect;
begin
    if statement is null then
        return;
    end if;
    for n, field, in_array, candidates in execute statement loop
        s := gc._found(f, places[n], field, in_array);
        if s.kind <> 'pair' or gc._is_type_of(f, s) then
            return query select * from gc._match(f, s, candidates);
        end if;
    end loop;
end;
$$;

comment on function gc._sampled(gc._sought, gc._suspect[], integer) is
    'The places of one table for which a sample has values, with how many of these are keys.';


-- The locks of the look are given back by undoing it; variables keep their values.
create function gc._look_at(f gc._sought, places gc._suspect[], blocks integer)
    returns setof gc._suspect
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    looked gc._suspect[];
    flaw text;
begin
    begin
        looked := array(select s from gc._sampled(f, places, blocks) as s);
        raise sqlstate 'ZG999';
    exception
        when sqlstate 'ZG999' then
            null;
        when others then
            flaw := sqlerrm;
    end;
    return query select s.* from gc._looked(f, places, looked, flaw) as s;
end;
$$;

comment on function gc._look_at(gc._sought, gc._suspect[], integer) is
    'The places of one table, with what a sample of their values tells.';


-- An index compares text with varchar, but neither of them with char.
create function gc._suspect_cast(s gc._suspect)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when s.key_class <> 'text' or (s.key_type = 'bpchar')
            <> (t.type in ('bpchar'::regtype, 'bpchar[]'::regtype)) then '::' || s.key_type
        else ''
    end
    from (
        select gc._base_type(a.atttypid) from pg_attribute as a
        where a.attrelid = s.relation and a.attname = s.attribute
    ) as t(type)
$$;

comment on function gc._suspect_cast(gc._suspect) is
    'What makes a value of another type a key that an index can compare; empty: nothing is needed.';


create function gc._suspect_keys(s gc._suspect)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when s.kind in ('column', 'pair') then quote_ident(s.attribute)
            || case when s.class = s.key_class and s.class <> 'text' then '' else t.type_cast end
        when s.kind = 'array' then quote_ident(s.attribute)
            || case when s.class <> 'text' or t.type_cast = '' then '' else t.type_cast || '[]' end
        when s.is_array then format(
            'string_to_array(translate(%I ->> %L, ''[]" '', ''''), '','')', s.attribute,
            s.field)
            || case when t.type_cast = '' then '' else t.type_cast || '[]' end
        else format('(%I ->> %L)', s.attribute, s.field) || t.type_cast
    end
    from (select gc._suspect_cast(s)) as t(type_cast)
$$;

comment on function gc._suspect_keys(gc._suspect) is
    'The expression over one row that gives the keys.';


create function gc._strength(s gc._suspect)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select case
            when s.handle is null then null
            when s.is_named and (coalesce(s.sampled, 0) = 0 or s.matching > 0) then 'strong'
            when s.key_class <> 'integer' and s.matching > 0 then
                case when 2 * s.matching >= s.sampled then 'strong' else 'weak' end
            when s.is_named or s.sampled >= 3 and s.matching = s.sampled then 'weak'
        end
    );
end;
$$;

comment on function gc._strength(gc._suspect) is
    'How sure it is that a place holds keys: strong, weak; null: nothing speaks for it.';


create function gc._suspect_index(s gc._suspect)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select format('create index %son %s %s(%s);', gc._concurrently(s.relation), s.relation,
            case when s.is_array then 'using gin ' else '' end,
            case when k.keys = quote_ident(s.attribute) then k.keys else '(' || k.keys || ')' end)
        from (select gc._suspect_keys(s)) as k(keys)
        where k.keys <> quote_ident(s.attribute) or not exists (
            select from pg_index as i
            join pg_class as x on x.oid = i.indexrelid
            join pg_am as m on m.oid = x.relam
                and m.amname = case when s.is_array then 'gin' else 'btree' end
            where i.indrelid = s.relation and i.indisvalid and i.indpred is null
                and gc._columns(s.relation, (i.indkey::smallint[])[0:0]) = array[s.attribute]
        )
    );
end;
$$;

comment on function gc._suspect_index(gc._suspect) is
    'The command that makes the index which a reference needs; null: there is one.';


create function gc._is_answered(c gc.collections, s gc._suspect)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select exists (
            select from gc.ignored_suspects as i
            where i.collection = c.name and i.referencing = s.relation
                and i.keys in (gc._suspect_keys(s), s.attribute, quote_ident(s.attribute))
        ) or exists (
            select from gc.declared_references as d
            where d.collection = c.name and d.referencing = s.relation
                and gc._tokens(s.attribute) <@ gc._tokens(d.keys)
                and position(s.attribute in d.keys) > 0
                and (s.kind not in ('json', 'jsonb')
                    or position(quote_literal(s.field) in d.keys) > 0)
                and (s.kind <> 'pair' or position(quote_literal(s.field) in d.condition) > 0)
        )
    );
end;
$$;

comment on function gc._is_answered(gc.collections, gc._suspect) is
    'Whether somebody has said that a place is a reference, or that it is none.';


create function gc._suspects(c gc.collections, blocks integer, until timestamptz)
    returns setof gc._suspect
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set lock_timeout = '200ms'
    set enable_seqscan = off
    set enable_tidscan = on
    set jit = off
    set bytea_output = 'hex'
as $$
declare
    f gc._sought := gc._sought(c);
    places gc._suspect[];
    reason text;
begin
    for places in
        select array_agg(p) from gc._candidates(f) as p
        group by p.relation
        order by bool_or(p.is_named) desc, p.relation
    loop
        reason := case when clock_timestamp() > until then 'there was no time'
            else gc._unreadable(places[1].relation, f) end;
        if reason is null then
            return query
                select s.* from gc._look_at(f, places, blocks) as s
                where s.unread is not null
                    or gc._strength(s) is not null and not gc._is_answered(c, s);
        else
            return query
                select s.* from gc._looked(f, places, array[]::gc._suspect[], reason) as s
                where s.handle is null or not gc._is_answered(c, s);
        end if;
    end loop;
end;
$$;

comment on function gc._suspects(gc.collections, integer, timestamptz) is
    'What looks like a reference to a collection; and tables that were not looked at, which have '
    'no handle. Tables for which there is no time are not read.';


create function gc._why(s gc._suspect)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select concat_ws('; ',
            case when s.kind = 'pair' then 'type and id' when s.is_named then 'name and type' end,
            case when s.matching > 0 then 'values' end,
            'not looked at: ' || s.unread)
    );
end;
$$;

comment on function gc._why(gc._suspect) is 'What makes a place suspect.';


create function gc._suspect_sql(
    c gc.collections, s gc._suspect, out keys text, out condition text, out command text,
    out foreign_key text
)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if s.handle is null then
        return;
    end if;
    select k.keys, k.condition,
        format('select gc.declare_reference(%s);', concat_ws(', ', quote_literal(c.name),
            quote_literal(s.relation), quote_literal(k.keys),
            case when not s.is_key then format('by => %L', s.handle) end,
            'condition => ' || quote_literal(k.condition))),
        case when s.kind = 'column' and k.keys = quote_ident(s.attribute)
            then format('alter table %s add foreign key (%I) references %s (%I)%s;', s.relation,
                s.attribute, c.target, s.handle,
                case when r.relkind = 'r' then ' not valid' else '' end) end
    into keys, condition, command, foreign_key
    from (
        select gc._suspect_keys(s),
            case when s.kind = 'pair' then format('%I = %L', s.type_column, s.field) end
    ) as k(keys, condition)
    join pg_class as r on r.oid = s.relation;
end;
$$;

comment on function gc._suspect_sql(gc.collections, gc._suspect) is
    'How a suspect is made a reference.';


create function gc.suspects(collection text, blocks integer default 32)
    returns table (
        referencing regclass, keys text, by text, condition text, why text, sampled integer,
        matching integer, strength text, index text, command text, foreign_key text
    )
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(collection);
begin
    if blocks is null or blocks not between 4 and 100000 then
        raise 'a sample is of 4 to 100000 blocks of each table'
            using errcode = 'invalid_parameter_value',
                detail = format('blocks is %s.', coalesce(blocks::text, 'null')),
                hint = format('select * from gc.suspects(%L);', collection);
    end if;
    return query
        select s.relation, q.keys, case when not s.is_key then s.handle::text end, q.condition,
            gc._why(s), s.sampled, s.matching, coalesce(gc._strength(s), 'unknown'),
            case when s.handle is not null then gc._suspect_index(s) end, q.command, q.foreign_key
        from gc._suspects(c, blocks, 'infinity') as s
        left join lateral gc._suspect_sql(c, s) as q on true
        order by s.handle is null, gc._strength(s), s.relation::text, q.keys, q.condition;
end;
$$;
revoke all on function gc.suspects(text, integer) from public;

comment on function gc.suspects(text, integer) is
    'Columns that look like references to a collection and are none: by their name and type, or '
    'because sampled values are keys of it. Of the different values that were "sampled", so many '
    'are "matching". What to type: index, if it is not null, and command; or foreign_key; or '
    'gc.ignore_suspect if it is none. At most so many blocks of each table are read. A table that '
    'was not looked at is there with the reason.';


create function gc.ignore_suspect(collection text, referencing regclass, keys text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    c gc.collections := gc._collection(ignore_suspect.collection);
begin
    perform gc._require_owner();
    if ignore_suspect.referencing is null or coalesce(ignore_suspect.keys, '') = '' then
        raise 'a suspect is a table and its keys'
            using errcode = 'invalid_parameter_value',
                detail = 'One of them is null or empty.',
                hint = format('select referencing, keys from gc.suspects(%L);', c.name);
    end if;
    insert into gc.ignored_suspects (collection, referencing, keys)
    values (c.name, ignore_suspect.referencing, ignore_suspect.keys)
    on conflict do nothing;
end;
$$;
revoke all on function gc.ignore_suspect(text, regclass, text) from public;

comment on function gc.ignore_suspect(text, regclass, text) is
    'Remembers that what gc.suspects shows is no reference. The name of a column says it for all '
    'that was found in the column.';


-- A second at most, and a few blocks of each table; tables with the right names come first.
create function gc._warn_suspects(c gc.collections)
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    number bigint;
    places text;
    script text;
    all_of_them text := format('select index, command from gc.suspects(%L) '
        'where strength = ''strong'' \gexec', c.name);
begin
    if c.condition = 'false' then
        -- Nothing of it is ever garbage.
        return 0;
    end if;
    select count(*), string_agg(o.place, ', ' order by o.n) filter (where o.n <= 30),
        string_agg(o.command, E'\n' order by o.n)
    into number, places, script
    from (
        select s.relation || '(' || q.keys || ')',
            concat_ws(E'\n', gc._suspect_index(s), q.command),
            row_number() over (order by s.relation::text, q.keys)
        from gc._suspects(c, 8, clock_timestamp() + interval '1 second') as s
        cross join lateral gc._suspect_sql(c, s) as q
        where gc._strength(s) = 'strong'
    ) as o(place, command, n);
    if number > 0 then
        raise warning '% to "%" and % nothing',
            case when number = 1 then '1 column looks like a reference'
                else number || ' columns look like references' end, c.target,
            case when number = 1 then 'keeps' else 'keep' end
            using detail = format('%s%s. For one that is no reference: select '
                    'gc.ignore_suspect(%L, table, column); what speaks for each: select * from '
                    'gc.suspects(%L);', places, case when number > 30 then ', …' else '' end,
                    c.name, c.name),
                hint = case when number > 3 then 'In psql: ' || all_of_them else script end;
    end if;
    return number;
end;
$$;

comment on function gc._warn_suspects(gc.collections) is
    'Warns of columns that very likely refer to a collection, with what to type; how many.';
