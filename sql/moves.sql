-- Moves: an update that takes a row from one partition to another.
--
-- PostgreSQL deletes such a row and inserts it again. After an UPDATE, the transition tables have
-- it all the same; after a MERGE they do not, and no trigger that follows an update sees the row.
-- So there is a trigger for such rows alone, which does for one row what those of statements do for
-- many, and is made of the same templates. After an UPDATE, everything is done twice. That does no
-- harm: a queue may have a key twice, a check that was passed is passed again, and the statement's
-- trigger leaves no tombstone where there is one. One for a row that is kept from moving after all
-- is dropped when it is claimed, because a live row has the object.
--
-- It comes before the row is stored, because what came after would cost every insert and delete.
-- So it goes by the row as the BEFORE triggers of an update have left it, and cannot know what
-- those of the partitions' deletes and inserts will do.

-- The columns of the keys of all levels, also those that are used in expressions: PostgreSQL notes
-- that the table needs them.
create function gc._partitioned_by(relation regclass)
    returns name[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array_agg(distinct a.attname order by a.attname)
    from gc._partitions(relation) as p(part)
    join pg_partitioned_table as k on k.partrelid = p.part
    join pg_depend as d on d.classid = 'pg_class'::regclass and d.objid = p.part
        and d.refclassid = 'pg_class'::regclass and d.refobjid = p.part and d.refobjsubid = 0
        and d.deptype = 'i'
    join pg_attribute as a on a.attrelid = p.part and a.attnum = d.objsubid and a.attnum > 0
$$;

comment on function gc._partitioned_by(regclass) is
    'The columns that tell in which partition a row is; null: the table is not partitioned.';


-- Values that are equal may be different ones, and belong to different partitions: 1.0 and 1.00, or
-- a and A. But not of these types, and for them this is faster.
create function gc._is_one_value(type oid, "collation" oid)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select type = any ('{bool, int2, int4, int8, oid, date, timestamp, timestamptz, uuid, bytea}'
            ::regtype[]::oid[])
        or type = any ('{text, varchar}'::regtype[]::oid[]) and exists (
            select from pg_collation as o where o.oid = "collation" and o.collisdeterministic
        )
$$;

comment on function gc._is_one_value(oid, oid) is
    'Whether equal values of a type are the same, bit by bit.';


create function gc._moves_when(relation regclass)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select concat_ws(' or ',
        string_agg(format('old.%1$I is distinct from new.%1$I', a.attname), ' or '
            order by a.attnum) filter (where o.is_one_value),
        'pg_catalog.record_image_ne(row('
            || string_agg(format('old.%I', a.attname), ', ' order by a.attnum)
                filter (where not o.is_one_value)
            || '), row('
            || string_agg(format('new.%I', a.attname), ', ' order by a.attnum)
                filter (where not o.is_one_value) || '))')
    from unnest(gc._partitioned_by(relation)) as u(name)
    join pg_attribute as a on a.attrelid = relation and a.attname = u.name
    cross join lateral (select gc._is_one_value(a.atttypid, a.attcollation)) as o(is_one_value)
$$;

comment on function gc._moves_when(regclass) is
    'The condition that an update may take a row to another partition. It calls no function of '
    'anybody''s, and no operator, whatever the types of the columns are.';


-- What PostgreSQL computes is not yet computed when a trigger comes before the row: of a new row
-- nothing, and of an old one only what is stored.
create function gc._computed(relation regclass, columns name[])
    returns table (name name, stored boolean, definition oid, expression text, reads name[])
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select a.attname, a.attgenerated = 's', d.oid, pg_get_expr(d.adbin, d.adrelid), array(
            select b.attname from pg_attribute as b
            where b.attrelid = relation and b.attnum in (
                select m[1]::smallint
                from regexp_matches(d.adbin::text, ':varattno (\d+)', 'g') as m
            )
            order by b.attnum
        )
    from pg_attribute as a
    join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where a.attrelid = relation and a.attgenerated <> '' and a.attname = any (columns)
$$;

comment on function gc._computed(regclass, name[]) is
    'Those of the columns that are generated, and the columns that they are computed from.';


create function gc._computed_facts(relation regclass)
    returns setof text
    language plpgsql
    stable
    rows 1
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from pg_partitioned_table as p where p.partrelid = relation) then
        return;
    end if;
    return query
        select (a.attrelid, a.attnum, a.attname, a.atttypid, d.oid, d.xmin)::text
        from pg_attribute as a
        left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where a.attrelid = relation and a.attnum > 0 and not a.attisdropped and exists (
            select from pg_attribute as g where g.attrelid = relation and g.attgenerated <> ''
        );
end;
$$;

comment on function gc._computed_facts(regclass) is
    'What the catalog knows of a partitioned table that has generated columns.';


-- Each column by its name, which PL/pgSQL looks up anew when the table has changed.
create function gc._row_sql(relation regclass, columns name[], record text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select '(select ' || string_agg(
        case
            when c.name is null or c.stored and record = 'old'
                then format('%s.%I', record, a.attname)
            else format('(select %s from (select %s) as o) as %I', c.expression,
                coalesce(gc._idents(c.reads, record || '.'), ''), a.attname)
        end, ', ' order by a.attnum) || ')'
    from pg_attribute as a
    left join gc._computed(relation, columns) as c on c.name = a.attname
    where a.attrelid = relation and a.attname = any (columns)
$$;

comment on function gc._row_sql(regclass, name[], text) is
    'The query for the one row, old or new, that a trigger is called for.';


create function gc._shape_of_move(c gc._shape, relation regclass, columns name[])
    returns gc._shape
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._complete_shape(c, c.is_plain, c.links, c.words || jsonb_build_object(
        'old_rows', gc._row_sql(relation, columns, 'old'),
        'new_rows', gc._row_sql(relation, columns, 'new'),
        'whole_rows', '(select)',
        'whole_old', 'to_jsonb(old)', 'whole_new', 'array[to_jsonb(new)]'))
$$;

comment on function gc._shape_of_move(gc._shape, regclass, name[]) is
    'A shape whose templates are about one row, instead of about transition tables.';


create function gc._is_of_move(c gc._shape)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select c.words ->> 'whole_rows' = '(select)' $$;

comment on function gc._is_of_move(gc._shape) is 'Whether templates are about one row.';


-- The row may have to wait for one that has its key and is being deleted, and PostgreSQL makes it
-- wait only when all of this was looked at. The slots tell a claim that comes then.
create function gc._announced_move_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when not gc._is_of_move(c) then '' else gc._render($template$
perform gc._lock_slots(array_agg(gc._slot('url', o.url)))
from (
    select {url} from {new_rows} as {alias}{each}
    except
    select {url} from {old_rows} as {alias}{each}
) as o(url)
where o.url is not null
having count(*) > 0;$template$, c.words) end
$$;

comment on function gc._announced_move_sql(gc._shape) is
    'What keeps an object from being claimed that a row is about to name; empty where it does.';


-- Of the same moment: of this transaction. It cannot have been claimed, for nobody else sees it.
create function gc._unless_buried_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when gc._is_of_move(c) or gc._partitioned_by(c.target) is null then ''
        else gc._render($template$
and not exists (
    select from gc.tombstones as d
    where d.url = o.url and d.generation is not distinct from o.generation and d.key = o.key
        and d.collection = {name} and d.created_at = now() and d.worker is null
)$template$, c.words) end
$$;

comment on function gc._unless_buried_sql(gc._shape) is
    'The condition that a row has not left a tombstone when it was moved; empty where none is.';


-- A generated column is computed with the rights of the owner of blobgc, so only trusted code may
-- be called for it.
create function gc._follows_moves(c gc._shape, relation regclass, columns name[])
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._partitioned_by(relation) is not null and gc._root(relation) = relation
        and not exists (
            select from gc._computed(relation, columns) as d
            cross join lateral gc._untrusted_code(
                c.target, array['pg_attrdef'::regclass::oid], array[d.definition]) as u
        )
$$;

comment on function gc._follows_moves(gc._shape, regclass, name[]) is
    'Whether moves of rows between the partitions of a table are followed row by row.';


create function gc._move_triggers(c gc._shape)
    returns setof gc._trigger
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select w.relation, w.suffix, 'before update', '',
        w.columns || array(select unnest(o.reads) from gc._computed(w.relation, w.columns) as o),
        w.targets, true, b.body,
        case when w.is_own then concat_ws(E'\n', gc._note_keys_now_sql(s),
            case when c.url is not null then
                gc._kept_whole_sql(s, '(select)') || E';\n' || gc._admit_changed_sql(s) end) end,
        gc._moves_when(w.relation)
    from (
        select true, c.target, '_moves', c.columns, null::name[]
        union all
        select false, r.relation, '_moves_' || gc._short_name(c, r.relation),
            r.columns || l.columns, r.targets
        from gc._watched_tables(c) as r
        left join unnest(c.links) as l on l.relation = r.relation
    ) as w(is_own, relation, suffix, columns, targets)
    cross join lateral gc._shape_of_move(c, w.relation, w.columns) as s
    cross join lateral (
        select case when w.is_own then gc._after_update_sql(s)
            else gc._after_reference_sql(s, w.relation, 'update') end
    ) as b(body)
    where gc._follows_moves(c, w.relation, w.columns) and b.body <> ''
$$;

comment on function gc._move_triggers(gc._shape) is
    'The triggers that follow rows from one partition to another.';


-- The table is not read, so nothing would tell a kept plan that it has changed: it is asked at each
-- call. Of the row, only what is there is looked at before that.
create function gc._move_trigger_sql(c gc._shape, t gc._trigger)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, t.suffix, $template$
create or replace function gc.{function}()
    returns trigger
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
    {settings}
$template$, $template$
#variable_conflict use_column
<<this>>
declare
    relation text := tg_relid::regclass;
    target text := {table};
    is_current boolean := gc._has_columns(this.relation, {columns})
        and gc._has_columns(this.target, {target_columns});
    {causes_declared}
begin
    {causes_read}
    if is_current then
        {body}
    else
        perform gc._note_missed({name}, {relation});
        {otherwise}
    end if;
    return new;
end;$template$,
        gc._cause_parts(t) || jsonb_build_object(
            'columns', quote_literal(gc._typed(t.relation, t.columns)),
            'target_columns', quote_literal(coalesce(gc._typed(c.target, t.target_columns), '{}')),
            'relation', quote_literal(t.relation),
            'settings', gc._trigger_settings(c, t),
            'otherwise', coalesce(t.otherwise, ''),
            'body', t.body))
$$;

comment on function gc._move_trigger_sql(gc._shape, gc._trigger) is
    'The function of a trigger that follows a row from one partition to another.';


-- The last of the BEFORE triggers, which come in the order of their names, as far as names can say.
create function gc._move_trigger_name(function_name name)
    returns name
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case when octet_length(function_name) < 60 then '~gc_' || function_name
        else '~gc_' || md5(function_name) end::name
$$;

comment on function gc._move_trigger_name(name) is
    'What a trigger is called that follows rows from one partition to another.';


-- PostgreSQL copies it to every partition, also to those that come later. It is made again when a
-- partition is partitioned itself, by a column that the trigger does not look at.
create function gc._move_attachments(t gc._trigger, function_name name)
    returns gc._table_change[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array(
        select (t.relation, format('create or replace trigger %I before update on %s '
            'for each row when (%s) execute function gc.%I()', n.name, t.relation, t.fires_when,
            function_name))::gc._table_change
        from gc._move_trigger_name(function_name) as n(name)
        where not exists (
            select from pg_trigger as o
            join pg_proc as f on f.oid = o.tgfoid and f.proname = function_name
            where o.tgrelid = t.relation and o.tgname = n.name and gc._partitioned_by(t.relation)
                <@ array(
                    select a.attname from pg_depend as d
                    join pg_attribute as a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
                    where d.classid = 'pg_trigger'::regclass and d.objid = o.oid
                        and d.refclassid = 'pg_class'::regclass and d.refobjid = t.relation
                )
        )
    )
$$;

comment on function gc._move_attachments(gc._trigger, name) is
    'What creates a trigger that follows rows from one partition to another, where it is missing '
    'or looks at too little.';
