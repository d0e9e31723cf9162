-- Keepers: the foreign keys that keep the rows of a collection, as they were when code was made.
--
-- Fewer keepers than before is doubt, and so is none at all, or one that locks nothing: rows would
-- go that somebody still needs. Then nothing of the collection is reviewed until the key is back,
-- or until somebody accepts the loss by calling gc.track again. A keeper is the same if its
-- constraint is, whatever it is called now; or if another one has its table and columns, as after a
-- restore.

create type gc._keeper as (
    key oid, source oid, columns smallint[], target oid, place text, is_part boolean,
    reference text, keys text
);

comment on type gc._keeper is
    'A reference into a collection, or its copy on a partition: the constraint, the two tables '
    'and the columns, their names, and the reference it belongs to. A declared one has no '
    'constraint, but keys.';


create function gc._place(relation regclass, columns smallint[])
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
as $$ select format('%s(%s)', relation, gc._idents(gc._columns(relation, columns))) $$;

comment on function gc._place(regclass, smallint[]) is
    'What a reference is called: a table and its columns.';


create function gc._keepers(target regclass)
    returns setof gc._keeper
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with recursive keys(key, source, columns, target, is_part, root, place) as (
        select k.oid, k.conrelid, k.conkey, k.confrelid, false, k.oid,
            gc._place(k.conrelid, k.conkey)
        from pg_constraint as k
        where k.contype = 'f' and k.conparentid = 0
            and k.confrelid in (select gc._partitions(_keepers.target))
        union all
        select k.oid, k.conrelid, k.conkey, k.confrelid, true, p.root, p.place
        from keys as p
        join pg_constraint as k
            on k.conparentid = p.key and k.contype = 'f' and k.confrelid = p.target
    )
    select k.key, k.source, k.columns, k.target,
        case when k.is_part then gc._place(k.source, k.columns) else k.place end,
        k.is_part, k.place, null::text
    from keys as k
    union all
    select d.* from gc._declared_keepers(_keepers.target) as d
$$;

comment on function gc._keepers(regclass) is
    'Every reference into a table or into one of its partitions, with its copies on partitions.';


create function gc._keepers(c gc.collections)
    returns setof gc._keeper
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select k.* from gc._keepers(c.target) as k
    union
    select k.*
    from gc._owned_tables(c) as o
    cross join lateral gc._keepers(o.relation::regclass) as k
    where o.is_child and k.reference in (
        select r.reference from gc._references(c) as r where r.depth > 1 and r.via is null
    )
$$;

comment on function gc._keepers(gc.collections) is
    'Every foreign key into a collection, or into owned rows that have its key.';


create function gc._known_keepers(c gc.collections)
    returns setof gc._keeper
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select * from jsonb_populate_recordset(null::gc._keeper, c.keeping) $$;

comment on function gc._known_keepers(gc.collections) is
    'The keepers that there were when the code of a collection was made.';


-- A partition that is detached gets a foreign key of its own. It is on its way out, and nobody has
-- to be asked when it goes.
create function gc._keeping(c gc.collections)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(jsonb_agg(to_jsonb(k) || jsonb_build_object('is_part', k.is_part or exists (
            select from gc._known_keepers(c) as o
            where o.is_part and o.key = k.key and o.source = k.source
        )) order by k.place, k.key), '[]')
    from gc._keepers(c) as k
    where c.collect = 'garbage' and k.reference <> all (c.owned)
$$;

comment on function gc._keeping(gc.collections) is 'The keepers of a collection, to be remembered.';


create function gc._lost_keepers(c gc.collections)
    returns setof gc._keeper
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with present as materialized (select k.* from gc._keepers(c) as k)
    select o.*
    from gc._known_keepers(c) as o
    where not exists (
        select from present as k
        where k.key = o.key and k.source = o.source and k.target = o.target
                and k.keys is not distinct from o.keys
            or k.place = o.place
    )
$$;

comment on function gc._lost_keepers(gc.collections) is
    'The keepers that have gone since the code of a collection was made.';


create function gc._track_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set intervalstyle = 'postgres'
as $$
    select format('select * from gc.track(%s);', concat_ws(', ', quote_literal(c.target),
        case when c.name <> t.relname then format('name => %L', c.name) end,
        'url => ' || quote_literal(c.url), 'size => ' || quote_literal(c.size),
        'label => ' || quote_literal(c.label), 'generation => ' || quote_literal(c.generation),
        'condition => ' || quote_literal(c.condition),
        case when c.collect <> 'garbage' then format('collect => %L', c.collect) end,
        case when o.owned <> '{}' then format('owned => %L', o.owned) end,
        case when c.events <> '{}' then format('events => %L', c.events) end,
        'undo => ' || quote_literal(c.undo),
        case when c.finalizers <> '{}' then format('finalizers => %L', c.finalizers) end))
    from pg_class as t
    cross join lateral (
        select array(
            select u.name from unnest(c.owned) with ordinality as u(name, n)
            where u.name in (select r.reference from gc._references(c) as r)
            order by u.n
        )
    ) as o(owned)
    where t.oid = c.target
$$;

comment on function gc._track_sql(gc.collections) is
    'The call of gc.track that leaves a collection as it is defined.';


create function gc._require_keepers_back(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    lost text := (
        select string_agg(k.place, ', ' order by k.place)
        from gc._lost_keepers(c) as k where not k.is_part
    );
begin
    if lost is not null then
        raise '% no longer refers to "%"', lost, c.target
            using errcode = 'undefined_object',
                detail = 'Rows that only this kept would be deleted. Reviews go on when the '
                    'foreign key is there again, or when gc.track is called again, which accepts '
                    'the loss.',
                hint = gc._track_sql(c);
    end if;
end;
$$;

comment on function gc._require_keepers_back(gc.collections) is
    'Raises for a keeper that has gone since the code of a collection was made.';


-- PostgreSQL has conenforced from 18 on; before, it is read as null. A copy for each pair of
-- partitions has triggers of its own.
create function gc._unlocking_keepers(c gc.collections)
    returns table (place text, reason text, command text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with recursive keys(key, place) as (
        select k.key, k.place from gc._keepers(c) as k
        where c.collect = 'garbage' and k.reference <> all (c.owned) and not k.is_part
        union all
        select k.oid, p.place from keys as p join pg_constraint as k on k.conparentid = p.key
    )
    select p.place, 'it is not enforced', format('alter table %s alter constraint %I enforced;',
        k.conrelid::regclass, k.conname)
    from keys as p
    join pg_constraint as k on k.oid = p.key and k.conparentid = 0
    where (to_jsonb(k) ->> 'conenforced')::boolean is false
    union all
    select p.place, format('its trigger on %s is disabled', g.tgrelid::regclass),
        format('alter table %s enable trigger %I;', g.tgrelid::regclass, g.tgname)
    from pg_trigger as g
    join keys as p on p.key = g.tgconstraint
    where g.tgconstraint <> 0 and g.tgenabled not in ('O', 'A')
$$;

comment on function gc._unlocking_keepers(gc.collections) is
    'The keepers that do not lock what they refer to, with the command that mends each.';


-- A trigger that is disabled sees nothing: a row would go without a tombstone.
create function gc._disabled_triggers(c gc.collections)
    returns table (trigger text, command text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('%I on %s', g.tgname, g.tgrelid::regclass),
        format('alter table %s enable trigger %I;', g.tgrelid::regclass, g.tgname)
    from pg_trigger as g
    join pg_proc as f on f.oid = g.tgfoid
    where f.pronamespace = 'gc'::regnamespace and f.proname = any (c.functions)
        and g.tgenabled not in ('O', 'A')
$$;

comment on function gc._disabled_triggers(gc.collections) is
    'The triggers of a collection that are disabled, with the command that mends each.';


-- Whoever inserts a reference has to lock its target, or a review would delete it meanwhile.
create function gc._require_locking(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    place text;
    reason text;
    script text;
    disabled text;
    enabling text;
begin
    select min(u.place), min(u.reason), string_agg(u.command, E'\n' order by u.command)
    into place, reason, script
    from gc._unlocking_keepers(c) as u
    group by u.place
    order by u.place
    limit 1;
    select min(d.trigger), string_agg(d.command, E'\n' order by d.command)
    into disabled, enabling
    from gc._disabled_triggers(c) as d;
    if place is not null then
        raise '% refers to "%" without a lock', place, c.target
            using errcode = 'object_not_in_prerequisite_state',
                detail = format('%s: rows could be deleted while somebody refers to them.', reason),
                hint = concat_ws(E'\n', script, enabling);
    elsif disabled is not null then
        raise 'the trigger % is disabled', disabled
            using errcode = 'object_not_in_prerequisite_state',
                detail = 'What happens meanwhile is not seen. A scan will find rows that lost what '
                    'kept them, but rows that go leave no tombstones.',
                hint = enabling;
    end if;
end;
$$;

comment on function gc._require_locking(gc.collections) is
    'Raises for a keeper that does not lock what it refers to, or a trigger that is disabled.';


create function gc._accept_losses(name text, of_reference text default null)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
begin
    insert into gc.scan_requests (collection, reason)
    select c.name, k.place || ' no longer refers to it'
    from gc._lost_keepers(c) as k
    where not k.is_part and k.place = coalesce(of_reference, k.place);
    update gc.collections as o
    set keeping = (
        select coalesce(jsonb_agg(to_jsonb(k)), '[]')
        from gc._known_keepers(c) as k
        where k.is_part or k.place <> coalesce(of_reference, k.place)
            or (k.key, k.place) not in (select l.key, l.place from gc._lost_keepers(c) as l)
    )
    where o.name = c.name;
end;
$$;

comment on function gc._accept_losses(text, text) is
    'Forgets the keepers that have gone, or this one, and asks for a scan that finds what only '
    'they kept.';


-- A partition that was dropped took its references along, and no trigger saw it; so did a table or
-- a column that was dropped and made again. A restored dump has other tables everywhere, and lost
-- none. What is new needs no scan: a row that only it keeps is queued already, and is reviewed by
-- the new code.
create function gc._scan_what_lost_references(c gc.collections)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    insert into gc.scan_requests (collection, reason)
    select c.name, o.place || ' no longer refers to it'
    from gc._lost_keepers(c) as o
    union
    select c.name, o.place || ' was made again'
    from gc._known_keepers(c) as o
    join gc._keepers(c) as k on k.place = o.place and k.target = o.target
    where (k.source, k.columns) <> (o.source, o.columns)
$$;

comment on function gc._scan_what_lost_references(gc.collections) is
    'Asks for a scan where a reference has gone since the code was last made.';


-- Without a keeper every row would be garbage. A condition shows that somebody has thought of that.
create function gc._has_keeper(c gc.collections)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when c.collect = 'deleted' or c.condition is not null or c.keeping <> '[]' then true
        else exists (
            select from gc._keepers(c) as k where k.reference <> all (c.owned)
        )
    end
$$;

comment on function gc._has_keeper(gc.collections) is
    'Whether anything, or a condition, tells the rows of a collection from garbage.';


create function gc._no_keeper(
    c gc.collections, out message text, out detail text, out hint text
)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    message := format('nothing keeps the rows of "%s"', c.target);
    detail := 'No foreign key refers to them, but for owned ones. Add one, or declare with '
        'gc.declare_reference what refers to them without one; or call gc.track again, '
        'with condition => ''true'' if every row is to go a day after its insert, or with '
        'collect => ''deleted'' if only the application deletes rows, and blobgc their objects';
    c.collect := 'deleted';
    c.owned := '{}';
    c.events := '{}';
    hint := gc._track_sql(c);
end;
$$;

comment on function gc._no_keeper(gc.collections) is
    'What there is to say about a collection without a keeper and without a condition.';


create function gc._require_keeper(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    said record;
begin
    if not gc._has_keeper(c) then
        said := gc._no_keeper(c);
        raise '%', said.message
            using errcode = 'object_not_in_prerequisite_state', detail = said.detail,
                hint = said.hint;
    end if;
end;
$$;

comment on function gc._require_keeper(gc.collections) is
    'Raises for a collection in which everything would be garbage.';


-- The row may be locked by a session that makes the code again: it is not waited for.
create function gc._note_problem(name text, problem text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform from gc.collections as c
    where c.name = _note_problem.name and c.problem is distinct from _note_problem.problem
    for update skip locked;
    if found then
        update gc.collections as c
        set problem = _note_problem.problem,
            problem_since = case
                when _note_problem.problem is null then null else coalesce(c.problem_since, now())
            end
        where c.name = _note_problem.name;
    end if;
end;
$$;

comment on function gc._note_problem(text, text) is
    'Notes why a collection is not reviewed, or with null that it is again.';


-- A blocked collection has its triggers all the same: what the application deletes leaves
-- tombstones.
create function gc._block_without_keeper(c gc.collections)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    said record;
begin
    if not gc._has_keeper(c) then
        said := gc._no_keeper(c);
        raise warning '%, so none of them is collected', said.message
            using detail = said.detail || '.', hint = said.hint;
        perform gc._note_problem(c.name, format('the collection "%s" cannot be reviewed: %s: %s',
            c.name, said.message, said.detail));
    end if;
end;
$$;

comment on function gc._block_without_keeper(gc.collections) is
    'Blocks a collection in which everything would be garbage, and says what to do.';
