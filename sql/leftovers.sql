-- What is no longer used: triggers that do nothing, their functions, tables of gone collections.
--
-- Dropping a trigger locks its table against everybody, readers too. So gc.track and gc.untrack
-- only put triggers out of use, and they are dropped here, one table at a time, each in a
-- transaction of its own. Queues and links go last: while a trigger is there, a statement that
-- began before it was put out of use may still be about to write into them.

create table gc.unused_tables (
    name name not null
        constraint unused_tables_pkey primary key,
    since timestamptz not null default now()
);

comment on table gc.unused_tables is
    'Queues and links that no collection has any more; see gc.drop_unused_triggers.';
comment on column gc.unused_tables.name is 'The table, in the schema gc.';
comment on column gc.unused_tables.since is 'Since when.';


create function gc._unused_functions()
    returns setof regprocedure
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select f.oid::regprocedure from pg_proc as f
    where f.pronamespace = 'gc'::regnamespace and f.prorettype = 'trigger'::regtype
        and starts_with(f.proname, '_unused_')
$$;

comment on function gc._unused_functions() is 'Trigger functions that do nothing any more.';


create function gc._tables_with_unused_triggers()
    returns regclass[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array(
        select distinct t.tgrelid::regclass from pg_trigger as t
        where t.tgfoid in (select gc._unused_functions()) and t.tgparentid = 0
        order by 1
    )
$$;

comment on function gc._tables_with_unused_triggers() is
    'The tables that have triggers which do nothing any more.';


-- A right is enough to create a trigger; only the table's owner can drop it. lock_timeout is named
-- so that what is set inside ends with the function.
create function gc._drop_triggers_of(relation regclass)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '2s'
as $$
declare
    command text;
begin
    perform set_config('lock_timeout',
        (extract(epoch from s.lock_timeout) * 1000)::integer || 'ms', true)
    from gc.settings as s;
    for command in
        select format('drop trigger %I on %s', t.tgname, relation)
        from pg_trigger as t
        where t.tgrelid = relation and t.tgparentid = 0
            and t.tgfoid in (select gc._unused_functions())
    loop
        perform gc._run(command);
    end loop;
exception
    when lock_not_available then
        raise warning '% is locked, and keeps triggers that do nothing', relation
            using hint = 'call gc.drop_unused_triggers(); at another time.';
    when insufficient_privilege then
        raise warning '% keeps triggers that do nothing', relation
            using detail = sqlerrm || '.', hint = 'Its owner can drop them.';
end;
$$;

comment on function gc._drop_triggers_of(regclass) is
    'Drops the triggers of one table that do nothing any more, if it can be locked.';


-- Of tables that are gone, for example. No table is locked for that.
create function gc._drop_unattached()
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._drop_function(f) from gc._unused_functions() as f
    where not exists (select from pg_trigger as t where t.tgfoid = f);
end;
$$;

comment on function gc._drop_unattached() is
    'Drops functions that are out of use and that no trigger has any more.';


-- The lock: nobody is just about to use one of the tables again.
create function gc._drop_unused_rest()
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    unused name;
begin
    perform gc._drop_unattached();
    if exists (select from gc._unused_functions()) then
        return;
    end if;
    lock table gc.collections in share mode;
    for unused in
        delete from gc.unused_tables as u returning u.name
    loop
        if not exists (
            select from gc.collections as c
            where unused = gc._object_name(c.name, '_review_queue') or unused = any (c.links)
        ) then
            perform gc._drop_links(array[unused]);
        end if;
    end loop;
end;
$$;

comment on function gc._drop_unused_rest() is
    'Drops functions that no trigger has, and, when there is none left, tables that are not used.';


-- A procedure that commits can have no settings of its own: everything in it is qualified.
create procedure gc.drop_unused_triggers()
    language plpgsql
as $$
declare
    relation pg_catalog.regclass;
begin
    perform gc._require_owner();
    foreach relation in array gc._tables_with_unused_triggers() loop
        perform gc._drop_triggers_of(relation);
        commit;
    end loop;
    perform gc._drop_unused_rest();
end;
$$;
revoke all on procedure gc.drop_unused_triggers() from public;

comment on procedure gc.drop_unused_triggers() is
    'Drops triggers that gc.track or gc.untrack have put out of use, and what belongs to them. '
    'Locks one table at a time, for a moment, and can be called again for those it could not lock.';
