-- A CHECK constraint that computes the key back from the url proves that no two rows share one.
begin;
set local client_min_messages = error;
select plan(28);

create schema app;
create function app.address(id integer) returns text immutable return 's3://bucket/' || abs(id);
create function app.number(url text) returns integer immutable return substr(url, 13)::integer;
create function app.stable_number(url text) returns integer stable return substr(url, 13)::integer;
create function app.mixed(url text, id integer) returns integer immutable return id;
create table app.file (id integer primary key, bytes bigint default 1, other integer default 1);
update gc.settings set jitter = '0';
insert into gc.review_after_defaults values ('file_insert', '1 hour'), ('file_update', '1 hour');

-- Whether files can share objects, when their table has this constraint.
create function pg_temp.shares(constraint_text text, url text default 'app.address(id)')
    returns boolean
    language plpgsql
as $$
begin
    execute 'alter table app.file add constraint proof ' || constraint_text;
    perform gc.track('app.file', url => url);
    alter table app.file drop constraint proof;
    return (select c.shared from gc.collections as c);
end;
$$;

-- What is a proof, and what only looks like one.
select ok(not pg_temp.shares(c), c)
from unnest(array[
    'check (id is not distinct from app.number(app.address(id)))',
    'check (id is not distinct from app.number(app.address(id)) + 0 * length(app.address(id)))'
]) as c;
select ok(pg_temp.shares(c), 'no proof: ' || c)
from unnest(array[
    'check (id is not distinct from app.number(app.address(id))) not valid',
    'check (id = app.number(app.address(id)))',
    'check (id is distinct from app.number(app.address(id)))',
    'check (other is not distinct from app.number(app.address(id)))',
    'check (id is not distinct from app.mixed(app.address(id), id))',
    'check (id is not distinct from app.number(app.address(id)) + other)',
    'check (id is not distinct from app.number(app.address(other)))',
    'check (id is not distinct from app.number(app.address(-id)))',
    'check (id is not distinct from substr(app.address(id), 13)::integer)',
    'check (id is not distinct from app.stable_number(app.address(id)))',
    'check (id is not distinct from app.number(app.address(id)) or other = 1)',
    'check (id is not distinct from app.number(''s3://bucket/1''))',
    'check (id::bigint is not distinct from app.number(app.address(id)))'
]) as c;
select ok(pg_temp.shares('check (id is not distinct from app.number(app.address(id)))',
    'app.address(id) || other'), 'the proof of another url is none');
create role changes_functions;
grant create, usage on schema app to changes_functions;
alter function app.number(text) owner to changes_functions;
update gc.settings set trusted_roles = '{changes_functions}';
select ok(pg_temp.shares('check (id is not distinct from app.number(app.address(id)))'),
    'nor is one that somebody else could change');
alter function app.number(text) owner to current_user;

-- With it, a row is found by its key, and no transaction is waited for.
alter table app.file add constraint proof
    check (id is not distinct from app.number(app.address(id)));
select count(*) from gc.track('app.file', url => 'app.address(id)', size => 'bytes') \g /dev/null
select throws_ok('insert into app.file values (-1)', '23514', null, 'rows cannot share a url');
insert into app.file values (1), (2), (3);
delete from app.file where id = 1;
select results_eq('select key, url, wait_for from gc.tombstones',
    $$values ('1', 's3://bucket/1', '0'::xid8)$$, 'a tombstone waits for nobody');
select results_eq($$select url from gc.claim('a')$$, array['s3://bucket/1'],
    'and is handed out at once');
select is(gc.confirm('a', array(select id from gc.tombstones)), 1, 'and confirmed');
select lives_ok($$select gc.begin_upload('file', '1')$$, 'an upload needs no url');
select is((select url from gc.holds), 's3://bucket/1', 'the key tells it');
select gc.end_upload('file', '1') \g /dev/null

-- The constraint goes, and until a review has noticed, nothing is believed that it said.
delete from app.file where id = 2;
alter table app.file drop constraint proof;
insert into app.file values (-2), (-3);
select is_empty('select from gc.tombstones', 'a row that shares the object takes it back');
delete from app.file where id = 3;
select is((select wait_for from gc.tombstones), null, 'a tombstone waits for others again');
update gc.tombstones set wait_for = '0';
select is_empty($$select * from gc.claim('a')$$, 'and is not handed out, for a row has its url');
select is_empty('select from gc.tombstones', 'but dropped');
select count(*) from gc.review() \g /dev/null
select ok(shared, 'a review makes the code again, and files share objects')
from gc.collections;

select * from finish();
rollback;
