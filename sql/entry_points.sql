-- Entry points: what can be called from outside, and under which settings it runs.
--
-- One list for all of them, so that none is forgotten (a test compares). What looks up a few rows
-- goes by indexes as well: there is nothing to do most of the time, and a plan that is made then
-- would read whole tables in busy times, as long as the session lasts.

create function gc._pin(signature regprocedure, by_index boolean)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    clause text;
begin
    for clause in
        select regexp_split_to_table(gc._fixed_settings_sql(), E'\n')
        union all
        select 'set enable_seqscan = off' where by_index
    loop
        execute format('alter function %s %s', signature, clause);
    end loop;
end;
$$;
revoke all on function gc._pin(regprocedure, boolean) from public;

comment on function gc._pin(regprocedure, boolean) is
    'Gives a function the settings of an entry point.';

do $$
begin
    perform gc._pin(f.oid, f.proname = any (array[
        'review', 'scan', 'claim', 'confirm', 'fail', 'release', 'next_due', 'pin', 'unpin',
        'preview', 'explain', 'compare_marker'
    ]))
    from pg_proc as f
    where f.pronamespace = 'gc'::regnamespace and f.prokind = 'f'
        and (f.proname not like '\_%' or f.prosecdef
            or f.proname in ('_address', '_restore'))
        and f.proname not in ('version', 'review_after');
end;
$$;

-- A backslash in the text of a function means itself, whoever calls it and from where.
do $$
declare
    signature regprocedure;
begin
    for signature in
        select f.oid
        from pg_proc as f
        where f.pronamespace = 'gc'::regnamespace and f.prokind = 'f' and f.prosrc ~ '[\\]'
            and not 'standard_conforming_strings=on' = any (f.proconfig)
    loop
        execute format('alter function %s set standard_conforming_strings = on', signature);
    end loop;
end;
$$;


-- Last of all, and at the installation only: later, rights have been given by name.
do $$
declare
    grantee oid;
begin
    perform gc._seal_table(c.oid) from pg_class as c
    where c.relnamespace = 'gc'::regnamespace and c.relkind in ('r', 'v', 'c', 'S');
    perform gc._seal('pg_proc'::regclass, f.oid) from pg_proc as f
    where f.pronamespace = 'gc'::regnamespace;
    for grantee in
        select a.grantee
        from pg_namespace as n
        cross join lateral aclexplode(n.nspacl) as a
        where n.nspname = 'gc' and a.grantee <> n.nspowner
    loop
        execute format('revoke all on schema gc from %s cascade',
            case when grantee = 0 then 'public' else grantee::regrole::text end);
    end loop;
end;
$$;

-- The condition of a trigger reads it, with the rights of whoever inserts a row: see sql/gate.sql.
grant select on sequence gc.deleting_until to public;

do $$
begin
    perform set_config(f.key, f.value, true)
    from jsonb_each_text(current_setting('blobgc.found')::jsonb) as f;
end;
$$;
