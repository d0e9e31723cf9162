-- The application's own triggers, fired by a review, look for names where they would in the
-- application; but never where somebody who is not trusted can put something.
begin;
set local client_min_messages = error;
set local standard_conforming_strings = on;
set local quote_all_identifiers = off;
select plan(17);

create role path_app;
create role path_mallory;
create schema app;
create schema tools;
create schema open;
create schema theirs authorization path_mallory;
grant create on schema open to path_mallory;
grant usage on schema app, tools, open to public;
update gc.settings set jitter = '0', undo = '0';
create table app.file (id integer primary key);
create table app.part (id integer primary key, file_id integer references app.file);
create index on app.part (file_id);
create table app.seen (what text, path text);

-- Without its schema, as the application writes it.
create function app.note()
    returns trigger
    language plpgsql
as $$
begin
    insert into seen values (tg_table_name, current_setting('search_path'));
    return old;
end;
$$;
create trigger note before delete on app.file for each row execute function app.note();
create trigger note before delete on app.part for each row execute function app.note();
select count(*) from gc.track('app.file', owned => '{part}', condition => 'true') \g /dev/null
select gc.set_delay('file_insert', '0') \g /dev/null

create function pg_temp.seen()
    returns setof text
    language plpgsql
as $$
begin
    delete from app.seen;
    delete from app.part;
    delete from app.file;
    delete from gc.file_review_queue;
    delete from app.seen;
    insert into app.file values (1);
    insert into app.part values (1, 1);
    if (select r.failed from gc.review() as r) > 0 then
        return query select q.last_error from gc.file_review_queue as q;
    end if;
    return query select s.what || ': ' || s.path from app.seen as s order by s.what desc;
end;
$$;
-- What the application itself does: its session has the path.
set local search_path = app, public;

alter role postgres set search_path = app, tools;
select results_eq('select pg_temp.seen()', array['part: app, tools, pg_temp', 'file: app, tools, pg_temp'],
    'a trigger sees the path of ALTER ROLE … SET, on the collection and on what it owns');
select is(current_setting('search_path'), 'app, public', 'the session has its own path afterwards');
alter role postgres reset search_path;
do $$ begin execute format('alter database %I set search_path = app', current_database()); end $$;
select results_eq('select pg_temp.seen()', array['part: app, pg_temp', 'file: app, pg_temp'],
    'or of ALTER DATABASE … SET');
do $$
begin
    execute format('alter role postgres in database %I set search_path = tools, app', current_database());
end;
$$;
select results_eq('select pg_temp.seen()', array['part: tools, app, pg_temp', 'file: tools, app, pg_temp'],
    'what is said of a role in a database comes before what is said of the database');
update gc.settings set application_path = 'app';
select results_eq('select pg_temp.seen()', array['part: app, pg_temp', 'file: app, pg_temp'],
    'and gc.settings.application_path before both');

-- What is left out.
create function pg_temp.path(given text)
    returns text
    language plpgsql
as $$
begin
    update gc.settings set application_path = given;
    return (select min(s) from pg_temp.seen() as s);
end;
$$;
select is(pg_temp.path('app, nowhere, tools'), 'file: app, tools, pg_temp', 'a schema that is not there');
select is(pg_temp.path('open, app'), 'file: app, pg_temp',
    'a schema in which an untrusted role can create something');
select is(pg_temp.path('theirs, app'), 'file: app, pg_temp', 'a schema of an untrusted role');
revoke create on schema theirs from path_mallory;
select is(pg_temp.path('theirs, app'), 'file: app, pg_temp',
    'also if the role has taken the right to create from itself, after it has used it');
grant create on schema tools to public;
select is(pg_temp.path('tools, app'), 'file: app, pg_temp', 'a schema in which everybody can');
revoke create on schema tools from public;
create temporary table seen (what text, path text);
select is(pg_temp.path('pg_temp, app'), 'file: app, pg_temp',
    'temporary tables, which come last whatever is said');
select is(pg_temp.path('app'), 'file: app, pg_temp', 'and do not hide a table of the application');
select is_empty('select * from pg_temp.seen', 'nothing went there');
drop table pg_temp.seen;
update gc.settings set trusted_roles = '{path_mallory}';
grant create on schema theirs to path_mallory;
select is(pg_temp.path('open, theirs, app'), 'file: open, theirs, app, pg_temp',
    'who is trusted may have schemas in it');
update gc.settings set trusted_roles = '{}';
select is(pg_temp.path('open, app'), 'file: app, pg_temp', 'and who is not any more, may not');

-- "$user" is the owner of the table, not who calls the review.
create schema path_app authorization postgres;
update gc.settings set application_path = '"$user", app';
select is(gc._application_path('app.file'), 'app, pg_temp', '$user: there is no schema of that name');
alter table app.file owner to path_app;
select is(gc._application_path('app.file'), 'path_app, app, pg_temp',
    '$user: the owner of the table');

select * from finish();
rollback;
