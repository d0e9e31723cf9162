-- Trust: whose code may run with the rights of blobgc's owner.
--
-- Reading a table computes what stands in its indexes, statistics, domains and constraints, and
-- deleting from it runs triggers and rules. All of that is looked for in the catalog, and every
-- table, type, function and operator that is found has to belong to a role that is trusted. What a
-- function of a trusted role calls in its turn is that role's concern.

-- A role whose rights are everything: what runs with them could do anything to the server.
create function gc._is_mighty()
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from pg_roles as r
        where pg_has_role(current_user, r.oid, 'member') and (
            r.rolsuper or r.rolname in ('pg_execute_server_program', 'pg_write_server_files')
        )
    )
$$;

comment on function gc._is_mighty() is
    'Whether this role is a superuser, can become one, or has the server''s files.';


-- Tracking a table trusts its owner, but not with more than a table: not with a superuser's rights.
create function gc._trusted(target regclass)
    returns setof oid
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select r.oid
        from pg_roles as r
        where r.rolsuper
            or r.rolname = current_user
            or r.rolname in (select unnest(s.trusted_roles) from gc.settings as s)
            or r.oid = (select c.relowner from pg_class as c where c.oid = target)
                and not gc._is_mighty();
end;
$$;

comment on function gc._trusted(regclass) is
    'The roles whose code may run when this table''s rows are read or deleted.';


-- pg_depend leaves out what came with the server; from 16384 on, oids are those of users. Casts and
-- operator classes are found by type: generated code prints, reads, compares and sorts whatever it
-- meets.
create function gc._next_code(class oid, id oid)
    returns table (next_class oid, next_id oid)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    rows 2
as $$
    select d.refclassid, d.refobjid
    from pg_depend as d
    where d.classid = class and d.objid = id and d.refobjid >= 16384
        and d.refclassid in ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass,
            'pg_opclass'::regclass, 'pg_opfamily'::regclass)
    union all
    select 'pg_constraint'::regclass, k.oid from pg_constraint as k
    where class = 'pg_type'::regclass and k.contypid = id
    union all
    select 'pg_type'::regclass, a.atttypid
    from pg_type as t
    join pg_attribute as a on a.attrelid = t.typrelid and a.attnum > 0 and a.atttypid >= 16384
    where class = 'pg_type'::regclass and t.oid = id and t.typrelid <> 0
    union all
    select 'pg_proc'::regclass, c.castfunc from pg_cast as c
    where class = 'pg_type'::regclass and id in (c.castsource, c.casttarget)
        and c.castfunc >= 16384
    union all
    select 'pg_opclass'::regclass, o.oid from pg_opclass as o
    where class = 'pg_type'::regclass and o.opcintype = id
    union all
    select 'pg_operator'::regclass, o.amopopr from pg_amop as o
    where class = 'pg_opfamily'::regclass and o.amopfamily = id and o.amopopr >= 16384
    union all
    select 'pg_proc'::regclass, p.amproc::oid from pg_amproc as p
    where class = 'pg_opfamily'::regclass and p.amprocfamily = id and p.amproc >= 16384
$$;

comment on function gc._next_code(oid, oid) is
    'The functions, operators and types that using this object can call.';


create view gc._owners as
select 'pg_proc'::regclass::oid as class, p.oid as id, p.proowner as owner from pg_proc as p
union all
select 'pg_type'::regclass, t.oid, t.typowner from pg_type as t
union all
select 'pg_operator'::regclass, o.oid, o.oprowner from pg_operator as o
union all
select 'pg_opclass'::regclass, o.oid, o.opcowner from pg_opclass as o
union all
select 'pg_opfamily'::regclass, o.oid, o.opfowner from pg_opfamily as o;

comment on view gc._owners is
    'Whose each function, type and operator is.';
comment on column gc._owners.class is 'The catalog that the object stands in.';
comment on column gc._owners.id is 'Its oid there.';
comment on column gc._owners.owner is 'The oid of the role that it belongs to.';


-- Where a function is reached, its owner answers for what it calls. OFFSET 0: by the object,
-- whatever the statistics say; there are many more functions than a table has objects.
create function gc._untrusted_code(target regclass, classes oid[], ids oid[])
    returns table (what text, owner name)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
as $$
begin
    return query
        with recursive reached(class, id) as (
            select d.refclassid, d.refobjid
            from unnest(classes, ids) as g(class, id)
            cross join lateral (
                select d.* from pg_depend as d where d.classid = g.class and d.objid = g.id offset 0
            ) as d
            where d.refobjid >= 16384 and d.refclassid in (
                'pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass,
                'pg_opclass'::regclass, 'pg_opfamily'::regclass)
            union
            select n.next_class, n.next_id
            from reached as r
            cross join lateral gc._next_code(r.class, r.id) as n
            where r.class <> 'pg_proc'::regclass
        )
        select i.type || ' ' || i.identity, pg_get_userbyid(o.owner)
        from reached as r
        cross join lateral (
            select w.owner from gc._owners as w where w.class = r.class and w.id = r.id offset 0
        ) as o
        cross join lateral pg_identify_object(r.class, r.id, 0) as i
        where o.owner not in (select gc._trusted(target));
end;
$$;

comment on function gc._untrusted_code(regclass, oid[], oid[]) is
    'What using these objects can call, where its owner is not trusted.';


-- Views have one each. They matter only where a table has a rule that leads to them.
create function gc._has_rules()
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (
        select from pg_rewrite as r
        join pg_class as c on c.oid = r.ev_class and c.relkind not in ('v', 'm')
        where r.oid >= 16384
    );
end;
$$;

comment on function gc._has_rules() is 'Whether any table in this database has a rule.';


-- A foreign key with an action ON UPDATE follows only if what it refers to can be changed, as
-- PostgreSQL does by itself where another foreign key has the column.
create function gc._follows_updates(k pg_constraint)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (
            select from pg_constraint as o
            where o.contype = 'f' and o.conrelid = k.confrelid and o.conkey && k.confkey
                and (o.confdeltype in ('n', 'd') or o.confupdtype in ('c', 'n', 'd'))
        )
        -- A partition may have one that its table has not.
        or exists (select from pg_partitioned_table as p where p.partrelid = k.confrelid);
end;
$$;

comment on function gc._follows_updates(pg_constraint) is
    'Whether others can change what the rows of a foreign key refer to, so that these follow.';


-- Foreign keys into the collection are read by its reviews, and those into owned rows that have its
-- key; those that are owned are deleted from.
-- Where a row is deleted, PostgreSQL goes on by itself: to partitions, along ON DELETE CASCADE, SET
-- NULL and SET DEFAULT, and from what these have set along ON UPDATE, into what a rule names; and
-- it checks deferred constraints when it is told to, all of one name in a schema at once. A foreign
-- key into a partitioned table is one into each partition, also where only that one is got to.
create function gc._ways(roots oid[], owned oid[], children oid[])
    returns table (
        parent oid, child oid, kind text, on_read "char", on_delete "char", on_update "char"
    )
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select w.*
        from pg_inherits as i
        join pg_class as p on p.oid = i.inhparent
        cross join lateral (
            select i.inhparent, i.inhrelid, 'part', 'r'::"char", 'd'::"char", 'u'::"char"
            where p.relkind = 'p'
            union all
            select i.inhrelid, i.inhparent, 'above', null, 'd', 'u' where p.relkind = 'p'
            union all
            select i.inhparent, i.inhrelid, 'heir', 'r', 'r', 'r' where p.relkind <> 'p'
        ) as w
        union all
        select k.confrelid, k.conrelid, 'key', w.reads,
            case
                when k.confdeltype = 'c'
                    or k.conrelid = any (owned) and k.confrelid = any (roots || owned) then 'd'
                when k.confdeltype in ('n', 'd') then 'u'
                else w.reads
            end,
            case
                when k.confupdtype in ('c', 'n', 'd') and gc._follows_updates(k) then 'u'
                else w.reads
            end
        from pg_constraint as k
        cross join lateral (
            select case
                when k.condeferrable or k.confrelid = any (roots || children) then 'r'::"char" end
        ) as w(reads)
        where k.contype = 'f' and k.conparentid = 0
        union all
        select r.ev_class, d.refobjid, 'rule', case r.ev_type when '1' then 'r'::"char" end, u, u
        from pg_rewrite as r
        join pg_depend as d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid
            and d.refclassid = 'pg_class'::regclass and d.refobjid <> r.ev_class
        cross join unnest('{d,u}'::"char"[]) as u
        where r.oid >= 16384 and (select gc._has_rules());
end;
$$;

comment on function gc._ways(oid[], oid[], oid[]) is
    'From which table a review gets to which, by itself or by PostgreSQL: what is done to the '
    'child when the parent is read, deleted from or updated (r, d, u); null: nothing.';


create function gc._touched(target regclass, owned oid[], children oid[])
    returns table (relation oid, written boolean, by_parent boolean)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = on
    set enable_hashjoin = on
    set plan_cache_mode = force_generic_plan
as $$
begin
    return query
        with recursive ways as materialized (
            select w.* from gc._ways(
                array(select p::oid from gc._partitions(target) as p), owned, children) as w
            union all
            select target::oid, d, 'declared', w.act,
                case when d = any (owned) then 'd' else w.act end, w.act
            from gc._declared_tables(target) as d cross join (values ('r'::"char")) as w(act)
        ),
        tables(id, act, kind) as (
            select target::oid, 'd'::"char", ''
            union
            select w.child, a.act, w.kind
            from tables as t
            join ways as w on w.parent = t.id and (t.kind <> 'above' or w.kind in ('key', 'above'))
            cross join lateral (
                select case t.act
                    when 'r' then w.on_read when 'd' then w.on_delete else w.on_update end
            ) as a(act)
            where a.act is not null
        )
        select t.id, bool_or(t.act <> 'r'), bool_and(t.kind = 'part')
        from tables as t where t.kind <> 'above' group by t.id;
end;
$$;

comment on function gc._touched(regclass, oid[], oid[]) is
    'The tables that a review of this one reads, and those that it writes; by_parent: that are '
    'only touched as partitions of another.';


create function gc._touched_by(c gc.collections)
    returns table (relation oid, written boolean, by_parent boolean)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    owned oid[];
    children oid[];
begin
    if c.collect = 'deleted' then
        return query
            select p::oid, false, p <> c.target from gc._partitions(c.target) as p;
        return;
    end if;
    select coalesce(array_agg(o.relation), '{}'),
        coalesce(array_agg(o.relation) filter (where o.is_child), '{}')
    into owned, children
    from gc._owned_tables(c) as o;
    return query select t.* from gc._touched(c.target, owned, children) as t;
end;
$$;

comment on function gc._touched_by(gc.collections) is
    'The tables that a review of this collection reads and writes.';


create function gc._above(tables oid[])
    returns setof oid
    language plpgsql
    stable
    rows 1
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        with recursive above(id) as (
            select i.inhparent from pg_inherits as i where i.inhrelid = any (tables)
            union
            select i.inhparent from above as a join pg_inherits as i on i.inhrelid = a.id
        )
        select a.id from above as a
        join pg_class as p on p.oid = a.id and p.relkind = 'p'
        where a.id <> all (tables);
end;
$$;

comment on function gc._above(oid[]) is
    'The partitioned tables of which these are partitions, where they are not among them.';


create function gc._deferrable(tables oid[])
    returns table (id oid, relation oid, named text)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    places oid[] := tables || array(select gc._above(tables));
begin
    return query
        select o.oid, o.conrelid, format('%I.%I', n.nspname, o.conname)
        from pg_constraint as k
        join pg_constraint as o on o.conname = k.conname and o.connamespace = k.connamespace
        join pg_namespace as n on n.oid = o.connamespace
        where k.condeferrable and k.conparentid = 0 and o.condeferrable
            and (k.conrelid = any (places) or k.confrelid = any (places));
end;
$$;

comment on function gc._deferrable(oid[]) is
    'The constraints that can wait for the end of a transaction and that writing these tables can '
    'violate, and all others that SET CONSTRAINTS takes for the same, because they have the name.';


-- With many partitions there are thousands of objects, so those are left out that can only call
-- what others here tell: keys, whose indexes are here; indexes of columns alone, in the ways of
-- comparing that came with the server; copies of a foreign key, which compare as it does. Of a
-- trigger without a condition, its function's owner is all there is to know. What is in a partition
-- is told by the key of its table, so that this is computed where only the partition is read.
create function gc._objects_of(tables oid[])
    returns table (class oid, id oid, owner oid, calls boolean)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select 'pg_class'::regclass::oid, c.oid, c.relowner, true
        from pg_class as c where c.oid = any (tables)
        union all
        select 'pg_class'::regclass, a, null, true from gc._above(tables) as a
        union all
        select 'pg_class'::regclass, i.indexrelid, null, true
        from pg_index as i
        where i.indrelid = any (tables)
            and (i.indexprs is not null or i.indpred is not null or 16384 <= any (i.indclass))
        union all
        select distinct 'pg_constraint'::regclass::oid,
            case when k.contype = 'f' and k.conparentid <> 0 then k.conparentid else k.oid end,
            null::oid, true
        from pg_constraint as k where k.conrelid = any (tables) and k.contype not in ('p', 'u', 'n')
        union all
        select 'pg_attrdef'::regclass, d.oid, null, true
        from pg_attrdef as d where d.adrelid = any (tables)
        union all
        select 'pg_statistic_ext'::regclass, s.oid, s.stxowner, true
        from pg_statistic_ext as s where s.stxrelid = any (tables)
        union all
        select 'pg_policy'::regclass, p.oid, null, true
        from pg_policy as p where p.polrelid = any (tables)
        union all
        select 'pg_rewrite'::regclass, r.oid, null, true
        from pg_rewrite as r where r.ev_class = any (tables)
        union all
        select 'pg_trigger'::regclass, g.oid, p.proowner, g.tgqual is not null
        from pg_trigger as g join pg_proc as p on p.oid = g.tgfoid
        where g.tgrelid = any (tables) and not g.tgisinternal;
end;
$$;

comment on function gc._objects_of(oid[]) is
    'Tables with all that PostgreSQL computes or runs when they are read or written. What has no '
    'owner here belongs to whoever owns the table. calls: what it can call has to be looked up.';


-- A trigger can be put on a table by anyone who has the right TRIGGER there. Its function is known
-- by its owner; but its condition may be any call of a function that came with the server, and some
-- of those run what they are given. What reads a sequence, as our own condition does, runs nothing.
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
        from (select array_agg(o.class), array_agg(o.id) from objects as o where o.calls)
            as o(classes, ids)
        cross join lateral gc._untrusted_code(c.target, o.classes, o.ids) as u
        union all
        select format('trigger %I on %s', g.tgname, g.tgrelid::regclass), null::name
        from pg_trigger as g
        cross join (
            select format(':funcid %s ', 'pg_sequence_last_value(regclass)'::regprocedure::oid)
        ) as gate(call)
        where g.tgrelid = any (tables) and not g.tgisinternal and case
            when g.tgqual is not null
                then gc._unfit_call(replace(g.tgqual::text, gate.call, ''), true) is not null
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


create function gc._strangers(target regclass, tables name[], functions name[])
    returns table (what text, owner oid)
    language plpgsql
    stable
    rows 1
    set search_path = pg_catalog, pg_temp
as $$
declare
    own oid := quote_ident(current_user)::regrole;
begin
    return query
        select format('table %s', r.oid::regclass), r.relowner from pg_class as r
        where r.oid = target and r.relowner <> own
        union all
        select format('table %s', r.oid::regclass), r.relowner from pg_class as r
        where r.relname = any (tables) and r.relnamespace = 'gc'::regnamespace
            and r.relowner <> own
        union all
        select format('function %s', f.oid::regprocedure), f.proowner from pg_proc as f
        where f.proname = any (functions) and f.pronamespace = 'gc'::regnamespace
            and f.proowner <> own;
end;
$$;

comment on function gc._strangers(regclass, name[], name[]) is
    'A collection, and those of these tables and functions in gc, that do not belong to the '
    'owner of blobgc.';


-- A generated function is called with the rights of blobgc's owner, and its owner can change it:
-- give it another search_path, for example. A dump that somebody else restored has such functions.
-- Asked at each upload, so it is not asked who is trusted where everything is the owner's own.
create function gc._require_own(name text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    what text;
    owner name;
begin
    select w.what, pg_get_userbyid(w.owner) into what, owner
    from gc.collections as c
    cross join lateral gc._strangers(c.target,
        c.links || gc._object_name(c.name, '_review_queue'), c.functions) as w
    where c.name = _require_own.name and w.owner not in (select gc._trusted(c.target))
    limit 1;
    if found then
        raise '% belongs to %, who could run code with the rights of %', what, owner, current_user
            using errcode = 'ZG003',
                detail = format('Nothing is done with the collection "%s" until then.', name),
                hint = format('update gc.settings set trusted_roles = trusted_roles || %L::name;',
                    owner);
    end if;
end;
$$;

comment on function gc._require_own(text) is
    'Raises ZG003 if a collection, or what was generated for it, belongs to a role that is not '
    'trusted. To be called before any generated function is.';


-- By default privileges, others may get rights on whatever the owner of blobgc creates.
create function gc._seal(class oid, id oid)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    command text;
begin
    for command in
        select distinct format('revoke all on %s %s from %s cascade', o.kind, o.name,
            case when a.grantee = 0 then 'public' else a.grantee::regrole::text end)
        from (
            select case c.relkind when 'S' then 'sequence' else 'table' end,
                c.oid::regclass::text, c.relowner, c.relacl
            from pg_class as c where class = 'pg_class'::regclass and c.oid = id
            union all
            select 'routine', f.oid::regprocedure::text, f.proowner,
                coalesce(f.proacl, acldefault('f', f.proowner))
            from pg_proc as f where class = 'pg_proc'::regclass and f.oid = id
            union all
            select 'type', t.oid::regtype::text, t.typowner,
                coalesce(t.typacl, acldefault('T', t.typowner))
            from pg_type as t where class = 'pg_type'::regclass and t.oid = id
        ) as o(kind, name, owner, acl)
        cross join lateral aclexplode(o.acl) as a
        where a.grantee <> o.owner
    loop
        perform gc._run(command);
    end loop;
end;
$$;

comment on function gc._seal(oid, oid) is
    'Takes every right on a table, sequence, function or type from everybody but its owner.';


create function gc._seal_table(relation regclass)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select gc._seal(o.class, o.id)
    from (
        select 'pg_class'::regclass::oid, relation::oid
        union all
        select 'pg_type'::regclass, c.reltype from pg_class as c where c.oid = relation
        union all
        select d.classid, d.objid from pg_depend as d
        join pg_class as s on s.oid = d.objid and s.relkind = 'S'
        where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass
            and d.refobjid = relation
    ) as o(class, id)
$$;

comment on function gc._seal_table(regclass) is
    'Takes every right on a table, its row type and its sequences from everybody but its owner.';


-- What the owner of the table would have after a connect. A session's own setting does not count.
create function gc._configured_path(target regclass)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select replace(coalesce(
        (select s.application_path from gc.settings as s),
        (
            select substr(o.setting, length('search_path=') + 1)
            from pg_db_role_setting as d
            cross join lateral unnest(d.setconfig) as o(setting)
            where o.setting like 'search_path=%' and d.setrole in (0, t.relowner)
                and d.setdatabase in (
                    0, (select b.oid from pg_database as b where b.datname = current_database())
                )
            order by d.setrole = 0, d.setdatabase = 0
            limit 1
        ),
        '"$user", public'), '"$user"', quote_ident(pg_get_userbyid(t.relowner)))
    from pg_class as t
    where t.oid = target
$$;

comment on function gc._configured_path(regclass) is
    'The search_path that the owner of a table has, as far as it is configured.';


-- The application's triggers run with the rights of blobgc's owner here, so a schema in which
-- others can create something is left out, and one that is theirs, and temporary tables come last.
create function gc._application_path(target regclass)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    trusted oid[] := array(
        select t from gc._trusted(target) as t
        union
        select 'pg_database_owner'::regrole from pg_database as d
        where d.datname = current_database() and d.datdba in (select gc._trusted(target))
    );
    schemas name[];
begin
    perform set_config('search_path', gc._configured_path(target), true);
    schemas := current_schemas(false);
    perform set_config('search_path', 'pg_catalog, pg_temp', true);
    return concat_ws(', ', (
        select string_agg(quote_ident(n.nspname), ', ' order by u.n)
        from unnest(schemas) with ordinality as u(name, n)
        join pg_namespace as n on n.nspname = u.name
        where n.oid <> pg_my_temp_schema() and not exists (
            select n.nspowner
            union
            select a.grantee
            from aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) as a
            where a.privilege_type = 'CREATE'
            except
            select u from unnest(trusted) as u
        )
    ), 'pg_temp');
end;
$$;

comment on function gc._application_path(regclass) is
    'The search_path for triggers of the application''s own.';
