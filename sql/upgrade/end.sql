-- An upgrade, its end: code of collections is made again, rights are given again.

-- The functions that stand for settings are made again from them.
update gc.settings set jitter = jitter;

-- What still has its mark is no part of this version: another signature has taken its place.
do $$
declare
    command text;
begin
    for command in
        select format('drop routine %s', f.oid::regprocedure) from pg_proc as f
        where f.pronamespace = 'gc'::regnamespace and obj_description(f.oid, 'pg_proc') = 'old'
    loop
        execute command;
    end loop;
end;
$$;

-- While an extension is updated, everything that is made becomes a part of it, and nothing else may
-- be replaced. What is generated for a collection is no part of it: it is one only in here.
do $$
declare
    extension oid := (select e.oid from pg_extension as e where e.extname = 'blobgc');
    own oid[] := array(
        select d.objid from pg_depend as d
        where d.refclassid = 'pg_extension'::regclass and d.refobjid = extension
            and d.deptype = 'e'
    );
    others constant text := $query$
        select format('alter extension blobgc %s %s %s', $1, i.type, i.identity)
        from (
            select 'pg_proc'::regclass, f.oid from pg_proc as f
            where f.pronamespace = 'gc'::regnamespace
            union all
            select 'pg_class', c.oid from pg_class as c
            where c.relnamespace = 'gc'::regnamespace and c.relkind in ('r', 'v', 'S')
            union all
            select 'pg_type', c.reltype from pg_class as c
            where c.relnamespace = 'gc'::regnamespace and c.relkind = 'c'
        ) as o(class, id)
        cross join lateral pg_identify_object(o.class, o.id, 0) as i
        where not o.id = any ($2)
    $query$;
    command text;
begin
    for command in execute others using 'add', own loop
        exit when extension is null;
        execute command;
    end loop;
    perform gc._generate(c.name)
    from gc.collections as c
    join pg_class as t on t.oid = c.target
    order by c.name;
    for command in execute others using 'drop', own loop
        exit when extension is null;
        execute command;
    end loop;
end;
$$;

-- Rights that were given by name. Whoever had what a runner, a viewer or an uploader has gets what
-- such a role has in this version, too.
do $$
declare
    command text;
begin
    for command in
        with rights as (
            select r.*, case when r.grantee = 0 then 'public' else r.grantee::regrole::text end
                as role
            from jsonb_to_recordset(current_setting('blobgc.rights')::jsonb)
                as r(kind text, name text, grantee oid, privilege text, is_grantable boolean)
        ),
        given as (
            select format('grant %s on %s %s to %s%s', r.privilege, o.kind, o.name, r.role,
                case when r.is_grantable then ' with grant option' end)
            from rights as r
            join (
                select 'schema', 'gc', 'schema', 'gc'
                union all
                select case c.relkind when 'S' then 'sequence' else 'table' end, c.relname,
                    case c.relkind when 'S' then 'sequence' else 'table' end, c.oid::regclass::text
                from pg_class as c
                where c.relnamespace = 'gc'::regnamespace and c.relkind in ('r', 'v', 'S')
                union all
                select 'function', f.proname, 'routine', f.oid::regprocedure::text
                from pg_proc as f where f.pronamespace = 'gc'::regnamespace
            ) as o(was, was_called, kind, name) on o.was = r.kind and o.was_called = r.name
            union all
            select format('select gc.%s(%L)', g.giver, r.role)
            from (values
                ('function', 'review', 'grant_runner'), ('table', 'tombstones', 'grant_viewer'),
                ('function', 'pin', 'grant_operator'), ('function', 'because', 'grant_eraser'),
                ('function', 'compare', 'grant_reconciler')
            ) as g(kind, name, giver)
            join rights as r on r.kind = g.kind and r.name = g.name and r.grantee <> 0
            union all
            select format('select gc.grant_uploader(%L, array[%L])', r.role, c.name)
            from gc.collections as c
            join rights as r on r.kind = 'function' and r.grantee <> 0
                and r.name = gc._object_name(c.name, '_begin_upload')
        )
        select * from given
    loop
        execute command;
    end loop;
end;
$$;

select set_config('client_min_messages', current_setting('blobgc.messages'), true);
