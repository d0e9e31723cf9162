-- Attacks: a role that may write the tables cannot make the collector run its code.
--
-- Whatever mallory's functions do, they write who they ran as into evil.loot. The collector belongs
-- to the superuser who runs this test, so the loot must never have anybody but mallory.
begin;
set local client_min_messages = error;
-- Relations of pg_temp would otherwise come first, for pgTAP too.
set local search_path = pg_catalog, public, pg_temp;
select plan(68);

create role mallory;
create schema app;
create schema evil authorization mallory;
grant usage on schema app to mallory;
grant create on schema public to mallory;

create table app.file (id bigint primary key, path text, digest bytea, bytes bigint, state text);
create table app.post (id bigint primary key, file bigint references app.file);
create index on app.post (file);
create table app.chunk (id bigint primary key, file bigint not null references app.file);
create index on app.chunk (file);
create table app.shared (id text primary key, path text, title text);
create index on app.shared (path);
grant select, insert, update, delete, truncate on all tables in schema app to mallory;
update gc.settings set jitter = '0';
insert into gc.review_after_defaults
select e, '0' from unnest(array['file_insert', 'file_update', 'file_scan', 'post_delete',
    'post_update', 'shared_insert', 'shared_update']) as e;
select count(*) from gc.track('app.file',
    url => $$'s3://bucket/' || id || '/' || encode(digest, 'hex')$$, size => 'bytes + 1',
    label => 'left(path, 10)', condition => $$state = 'old' or state is null$$,
    owned => '{chunk}') \g /dev/null
select count(*) from gc.track('app.shared', url => 'path', label => 'title') \g /dev/null

create function pg_temp.error_of(
    command text, out state text, out message text, out detail text, out hint text
)
    language plpgsql
as $$
begin
    execute command;
exception
    when others then
        get stacked diagnostics state = returned_sqlstate, message = message_text,
            detail = pg_exception_detail, hint = pg_exception_hint;
end;
$$;
-- Runs statements one after the other; returns the first error, or nothing.
create function pg_temp.attack(variadic commands text[])
    returns text
    language plpgsql
as $$
declare
    command text;
begin
    foreach command in array commands loop
        execute command;
    end loop;
    return '';
exception
    when others then
        return concat_ws(' ', sqlstate, sqlerrm, 'in', command);
end;
$$;
grant execute on all functions in schema gc to postgres;


-- Mallory prepares: tables, views, functions and operators that look like those of others.
set local role mallory;
create table evil.loot (who text, how text);
grant insert on evil.loot to public;
create function evil.pwn(how text)
    returns integer
    language plpgsql
as $$
begin
    insert into evil.loot values (current_user, pwn.how);
    return 1;
end;
$$;
create function pg_temp.arm(target text)
    returns void
    language plpgsql
as $arm$
declare
    type text;
    operator text;
    name text;
begin
    foreach type in array array['bigint', 'text', 'bytea', 'integer', 'timestamptz', 'regclass'] loop
        foreach operator in array array['=', '<>', '<', '<=', '>', '||', '+', '@>'] loop
            execute format(
                'create function %1$s.%2$s(a %3$s, b %3$s) returns boolean language plpgsql as '
                '$f$begin perform evil.pwn(%4$L); return true; end$f$',
                target, quote_ident('op' || operator), type, operator || ' of ' || type);
            execute format(
                'create operator %1$s.%4$s (leftarg = %3$s, rightarg = %3$s, function = %1$s.%2$s)',
                target, quote_ident('op' || operator), type, operator);
        end loop;
    end loop;
    foreach name in array array['now()', 'clock_timestamp()', 'random()', 'pg_current_snapshot()',
        'current_setting(text, boolean)', 'set_config(text, text, boolean)', 'hashtext(text)',
        'quote_ident(text)', 'quote_literal(text)', 'encode(bytea, text)', 'format(text, text)',
        'left(text, integer)', 'md5(text)', 'coalesce(text, text)', 'greatest(integer, integer)',
        'to_regclass(text)', 'count(bigint)', 'array_agg(text)', 'unnest(text[])',
        'cardinality(name[])', 'jsonb_build_object(text, text)', 'pg_sleep(double precision)']
    loop
        continue when name like 'coalesce%' or name like 'greatest%';
        execute format(
            'create function %s.%s returns text language plpgsql as '
            '$f$begin perform evil.pwn(%L); return null; end$f$', target, name, name);
    end loop;
end;
$arm$;
select pg_temp.arm('evil') \g /dev/null
select pg_temp.arm('public') \g /dev/null
do $$
declare
    name text;
begin
    foreach name in array array['pg_class', 'pg_attribute', 'pg_proc', 'pg_locks', 'pg_database',
        'pg_constraint', 'pg_trigger', 'pg_index', 'pg_namespace', 'pg_roles', 'pg_depend',
        'tombstones', 'settings', 'collections', 'holds', 'scan_requests', 'review_after_defaults',
        'deletion_log', 'totals', 'new_rows', 'old_rows', 'file_review_queue', 'seen', 'gone',
        'due', 'taken', 'garbage', 'xid8', 'text', 'tid']
    loop
        execute format('create temporary view %I as select evil.pwn(%L) as id, now() as due_at',
            name, 'temp ' || name);
    end loop;
end
$$;
reset role;
select gc.grant_runner('mallory'), gc.grant_uploader('mallory') \g /dev/null

-- The weapons are loaded: with this path, mallory's own statements do run them.
savepoint trial;
set local role mallory;
set local search_path = pg_temp, evil, public, pg_catalog;
select 1::bigint = 2::bigint, (select count(*) from pg_class), now() \g /dev/null
set local search_path = pg_catalog, public, pg_temp;
reset role;
select set_eq('select who, how from evil.loot',
    $$values ('mallory', '= of bigint'), ('mallory', 'temp pg_class'), ('mallory', 'now()')$$,
    'mallory''s operators, views and functions come first on her path');
rollback to trial;

-- Writing with a hostile path.
set local role mallory;
set local search_path = pg_temp, evil, public, pg_catalog;
select pg_temp.attack(
    $$insert into app.file (id, path, digest, bytes) select i, 'p', '\x01', 5
        from generate_series(1, 9) as i$$,
    'insert into app.post (id, file) values (1, 1), (2, 2), (3, 3)',
    'insert into app.chunk (id, file) values (1, 4), (2, 5)',
    $$insert into app.shared values ('a', 's3://x/1', 't'), ('b', 's3://x/1', 't')$$,
    $$update app.file set digest = '\x02'$$,
    'update app.post set file = 6',
    'delete from app.post',
    $$delete from app.shared where id operator(pg_catalog.=) 'a'$$,
    'delete from app.file where id operator(pg_catalog.=) 9',
    'truncate app.shared',
    'truncate app.post') as error \gset
set local search_path = pg_catalog, public, pg_temp;
reset role;
select is(:'error', '', 'with a hostile path, insert, update, delete and truncate work');
select is_empty($$select * from evil.loot where who <> 'mallory'$$,
    'and the triggers call nothing of mallory''s');
select is((select count(*) from gc.tombstones), 13::bigint, 'and they do their work');

-- Calling what she may call with a hostile path.
update gc.file_review_queue set review_after = now();
update gc.tombstones set wait_for = '0';
set local role mallory;
set local search_path = pg_temp, evil, public, pg_catalog;
select pg_temp.attack(
    $$select gc.begin_upload('file', '77', 's3://bucket/77')$$,
    $$select gc.end_upload('file', '77')$$,
    $$select gc.keep_alive('file', '8')$$,
    'select * from gc.review()',
    $$select gc.claim('m', 5)$$,
    $$select gc.fail('m', array[1], 'x')$$,
    $$select gc.release('m', array[2])$$,
    $$select gc.confirm('m', array[3, 4])$$,
    'select gc.next_due()',
    'select * from gc.status()',
    'select gc.version()') as error \gset
set local search_path = pg_catalog, public, pg_temp;
reset role;
select is(:'error', '', 'with a hostile path, reviewing, claiming and uploading work');
select is_empty($$select * from evil.loot where who <> 'mallory'$$,
    'and the functions call nothing of mallory''s');
select results_eq('select id from app.file', array[8::bigint],
    'and they do their work: what she keeps alive is left');

-- The code is made again, by a review that mallory calls with a hostile path.
alter table app.file add column extra text;
set local role mallory;
set local search_path = pg_temp, evil, public, pg_catalog;
select pg_temp.attack('set local check_function_bodies = off', 'select * from gc.review()',
    'set local check_function_bodies = on', 'delete from app.file') as error \gset
set local search_path = pg_catalog, public, pg_temp;
reset role;
select is(:'error', '', 'with a hostile path, a review makes the code again');
select is((select problem from gc.collections where name = 'file'), null, 'without a problem');
select is_empty($$select * from evil.loot where who <> 'mallory'$$,
    'and what is made calls nothing of mallory''s');
set local role mallory;
drop schema public_trash cascade;
