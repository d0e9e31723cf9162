-- An upgrade, its beginning: everybody waits, rights are noted, and what comes again is dropped.
--
-- An upgrade is one transaction: this file, the files that change tables (0.1.0--0.2.0.sql), all
-- files of sql/ (what is made there is made or replaced; a table that is there is left alone), and
-- end.sql. The Makefile puts them together. @RELEASED@ stands for the names of all functions, views
-- and types that the version had from which it starts.

set local search_path = pg_catalog, pg_temp;
select set_config('blobgc.messages', current_setting('client_min_messages'), true);
set local client_min_messages = warning;

do $$
declare
    owner regrole := (select n.nspowner from pg_namespace as n where n.nspname = 'gc');
begin
    if owner is null then
        raise 'blobgc is not installed here';
    end if;
    if current_user <> pg_get_userbyid(owner) then
        raise 'only the owner of blobgc can upgrade it'
            using errcode = 'insufficient_privilege',
                detail = format('It belongs to %s, and this is %I.', owner, current_user),
                hint = format('set role %s;', owner);
    end if;
    -- What is there is replaced, or is taken for ours.
    if exists (
        select from pg_class as c
        where c.relnamespace = 'gc'::regnamespace and c.relowner <> owner
        union all
        select from pg_proc as f
        where f.pronamespace = 'gc'::regnamespace and f.proowner <> owner
    ) then
        raise 'the schema "gc" has objects of other roles than %', owner
            using errcode = 'object_not_in_prerequisite_state',
                hint = 'See them in pg_class and pg_proc, and drop them or give them to that role.';
    end if;
    if gc.version() <> '@FROM@' then
        raise 'this is the way from blobgc @FROM@, and blobgc % is installed here', gc.version()
            using errcode = 'object_not_in_prerequisite_state',
                hint = 'blobgc upgrade';
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'blobgc cannot be upgraded in a % transaction',
            current_setting('transaction_isolation')
            using errcode = 'active_sql_transaction',
                hint = 'begin isolation level read committed;';
    end if;
end;
$$;

-- Nobody may be in the midst of the old code when it goes: not a trigger on a table of the
-- application, nor a review. All locks or none: who waits for one of them while we wait for one of
-- his gets it back before PostgreSQL would look for a deadlock. After this, nothing is waited for.
do $$
declare
    end_of_patience timestamptz := clock_timestamp() + interval '1 minute';
    before text := current_setting('lock_timeout');
    a_try interval := current_setting('deadlock_timeout')::interval * 0.8;
    end_of_try timestamptz;
    command text;
begin
    loop
        end_of_try := clock_timestamp() + a_try;
        begin
            for command in
                select distinct format('lock table %s in share row exclusive mode',
                    t.tgrelid::regclass)
                from pg_trigger as t
                join pg_proc as f on f.oid = t.tgfoid and f.pronamespace = 'gc'::regnamespace
                join pg_class as c on c.oid = t.tgrelid
                where c.relnamespace <> 'gc'::regnamespace and not t.tgisinternal
                union all
                select format('lock table %s in access exclusive mode', c.oid::regclass)
                from pg_class as c
                where c.relnamespace = 'gc'::regnamespace and c.relkind = 'r'
                union all
                -- A registry whose layers refer to blobs, and not to links, is made again in part.
                select format('lock table %s in access exclusive mode', c.oid::regclass)
                from pg_constraint as k
                join pg_class as c on c.relnamespace = k.connamespace and c.relname in
                    ('repositories', 'blobs', 'repository_blobs', 'manifests', 'layers', 'tags')
                where k.conname = 'layers_digest_fkey' and k.conparentid = 0
                    and k.confrelid in (select o.target from gc.collections as o)
            loop
                perform set_config('lock_timeout', greatest(1,
                    extract(epoch from end_of_try - clock_timestamp()) * 1000)::integer || 'ms',
                    true);
                execute command;
            end loop;
            exit;
        exception
            when lock_not_available then
                if clock_timestamp() > end_of_patience then
                    raise 'blobgc cannot be upgraded now: its tables are in use'
                        using errcode = 'lock_not_available',
                            detail = format('For a minute there was no moment for: %s.', command),
                            hint = 'End transactions that are open for long: see pg_stat_activity.';
                end if;
        end;
        perform pg_sleep(random() * 0.2);
    end loop;
    perform set_config('lock_timeout', before, true);
end;
$$;

-- Rights that were given by name. What is dropped and made again would lose them.
do $$
begin
    perform set_config('blobgc.rights', coalesce(jsonb_agg(to_jsonb(r)), '[]')::text, true)
    from (
        select o.kind, o.name, a.grantee, a.privilege_type as privilege, a.is_grantable
        from (
            select 'schema', n.nspname, n.nspowner, n.nspacl
            from pg_namespace as n where n.nspname = 'gc'
            union all
            select case c.relkind when 'S' then 'sequence' else 'table' end, c.relname, c.relowner,
                c.relacl
            from pg_class as c
            where c.relnamespace = 'gc'::regnamespace and c.relkind in ('r', 'v', 'S')
            union all
            select 'function', f.proname, f.proowner, f.proacl
            from pg_proc as f where f.pronamespace = 'gc'::regnamespace
        ) as o(kind, name, owner, acl)
        cross join lateral aclexplode(o.acl) as a
        where a.grantee <> o.owner
    ) as r;
end;
$$;

-- Private functions, types and views come again, and so does what was generated. But what somebody
-- is about to call, or has made a view or a trigger of, stays in its place, and is replaced: the
-- session that has looked it up finds it.
do $$
declare
    names name[] := array[
@RELEASED@
    ];
    generated name[] := array(select unnest(c.functions) from gc.collections as c);
    command text;
    dropped integer;
begin
    loop
        dropped := 0;
        for command in
            select format('drop view gc.%I', c.relname) from pg_class as c
            where c.relnamespace = 'gc'::regnamespace and c.relkind = 'v'
                and c.relname = any (names)
            union all
            select format('drop routine %s', f.oid::regprocedure) from pg_proc as f
            where f.pronamespace = 'gc'::regnamespace and (
                f.proname = any (names) and (f.prokind = 'a' or f.proname like '!_%' escape '!')
                or f.proname = any (generated) and not f.prosecdef)
            union all
            select format('drop type gc.%I', c.relname) from pg_class as c
            where c.relnamespace = 'gc'::regnamespace and c.relkind = 'c'
                and c.relname = any (names)
        loop
            begin
                execute command;
                dropped := dropped + 1;
            exception
                when dependent_objects_still_exist then
                    null;
            end;
        end loop;
        exit when dropped = 0;
    end loop;
    -- A mark on what was left. What replaces it has a comment of its own; see end.sql.
    for command in
        select format('comment on routine %s is ''old''', f.oid::regprocedure)
        from pg_proc as f
        where f.pronamespace = 'gc'::regnamespace and f.proname = any (names)
    loop
        execute command;
    end loop;
end;
$$;
