-- Rights: PUBLIC has none. Roles are not created here; rights are given to roles that exist, by
-- name, and nobody has any other: not even who was to have them by ALTER DEFAULT PRIVILEGES.

create function gc._grant_functions(role regrole, names text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    signature regprocedure;
begin
    execute format('grant usage on schema gc to %s', role);
    for signature in
        select f.oid
        from pg_proc as f
        where f.pronamespace = 'gc'::regnamespace and f.proname = any (names)
    loop
        execute format('grant execute on function %s to %s', signature, role);
    end loop;
end;
$$;
revoke all on function gc._grant_functions(regrole, text[]) from public;

comment on function gc._grant_functions(regrole, text[]) is
    'Lets a role call functions of these names.';


create function gc.grant_runner(role regrole)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._grant_functions(role, array[
        'version', 'review', 'claim', 'careful', 'confirm', 'spare', 'fail', 'release', 'next_due',
        'status', 'preview', 'forecast', 'rest', 'compare_marker'
    ]);
    execute format('grant select on gc.metrics to %s', role);
end;
$$;
revoke all on function gc.grant_runner(regrole) from public;

comment on function gc.grant_runner(regrole) is
    'Lets a role do what a runner does: review, claim, confirm, and see what a review would do. It '
    'needs no right on any table.';


create function gc.grant_viewer(role regrole)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._grant_functions(role, array[
        'version', 'next_due', 'status', 'life', 'explain', 'explain_url', 'receipt',
        '_trash_labels', '_table_name'
    ]);
    execute format(
        'grant select on gc.collections, gc.settings, gc.review_after_defaults, gc.tombstones, '
        'gc.holds, gc.deletion_log, gc.totals, gc.daily_totals, gc.metrics, gc.pauses, gc.pins, '
        'gc.brakes, gc.allowances, gc.operations, gc.runners, gc.causes, gc.kept_rows, '
        'gc.finalizers, gc.struck_finalizers, gc.trash, gc.markers to %s', role);
end;
$$;
revoke all on function gc.grant_viewer(regrole) from public;

comment on function gc.grant_viewer(regrole) is
    'Lets a role see everything and change nothing: by gc.explain and gc.trash also the keys and '
    'labels of rows in collections, and the keys of rows that refer to them or went with them.';


create function gc.grant_operator(role regrole)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._grant_functions(role, array[
        'version', 'status', 'next_due', 'pause', 'resume', 'pin', 'unpin', 'adopt'
    ]);
    execute format('grant select on gc.pauses, gc.pins, gc.brakes, gc.allowances, gc.operations, '
        'gc.runners, gc.metrics, gc.markers to %s', role);
end;
$$;
revoke all on function gc.grant_operator(regrole) from public;

comment on function gc.grant_operator(regrole) is
    'Lets a role pause, resume, pin, unpin and adopt, and see the status. It can neither track nor '
    'delete.';


create function gc.grant_uploader(role regrole, collections text[] default null)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    name text;
begin
    perform gc._grant_functions(role, array[
        'begin_upload', 'end_upload', 'begin_uploads', 'end_uploads', 'keep_alive',
        '_own_function', '_object_name'
    ]);
    foreach name in array coalesce(collections, array(select c.name from gc.collections as c)) loop
        name := (gc._collection(name)).name;
        perform gc._grant_functions(role, array[
            gc._object_name(name, '_begin_upload'), gc._object_name(name, '_end_upload'),
            gc._object_name(name, '_begin_uploads'), gc._object_name(name, '_end_uploads'),
            gc._object_name(name, '_keep_alive')
        ]);
    end loop;
end;
$$;
revoke all on function gc.grant_uploader(regrole, text[]) from public;

comment on function gc.grant_uploader(regrole, text[]) is
    'Lets an application announce uploads and keep rows alive: of these collections, or of all '
    'that there are now. It needs no right for all the rest.';


create function gc.grant_reconciler(role regrole)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._grant_functions(role, array[
        'version', 'status', 'begin_listing', 'unfinished_listing', 'add_parts', 'open_parts',
        'note_part', 'end_listing', 'compare', 'absolve', 'differences', 'adopt_orphans', 'disown',
        'claim', 'confirm', 'fail', 'release', 'compare_marker'
    ]);
    execute format('grant insert on gc.listed_objects to %s', role);
    execute format('grant select on gc.listings, gc.listing_parts, gc.discrepancies to %s', role);
end;
$$;
revoke all on function gc.grant_reconciler(regrole) from public;

comment on function gc.grant_reconciler(regrole) is
    'Lets a role compare stores with rows, and have objects deleted that no row has: it could '
    'invent a listing. A runner cannot. It needs no right on any table of the application.';


create function gc.grant_eraser(role regrole)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._grant_functions(role, array['because']);
end;
$$;
revoke all on function gc.grant_eraser(regrole) from public;

comment on function gc.grant_eraser(regrole) is
    'Lets an application name the cause of what it deletes. It can neither read what others have '
    'named nor delete anything that it could not delete before.';
