-- Uploaders: the right to announce uploads is given for a collection, lasts, and reaches no further.
begin;
set local client_min_messages = error;
select plan(26);

create role uploaders_one;
create role uploaders_all;
create schema app;
create table app.file (id integer primary key, path text);
create table app.secret (id integer primary key, path text);
create table app.loose (id integer primary key, path text);
update gc.settings set jitter = '0', undo = '0';
select count(*) from gc.track('app.file', url => $$'s3://files/' || path$$, condition => 'false')
\g /dev/null
select count(*) from gc.track('app.secret', url => $$'s3://secrets/' || path$$, condition => 'false')
\g /dev/null
insert into app.file values (1, '1');
insert into app.secret values (1, '1');
select gc.grant_uploader('uploaders_one', '{file}') \g /dev/null
select gc.grant_uploader('uploaders_all') \g /dev/null

create function pg_temp.state_of(who text, command text)
    returns text
    language plpgsql
as $$
begin
    execute format('set local role %I', who);
    execute command;
    reset role;
    return 'ok';
exception
    when others then
        reset role;
        return sqlstate;
end;
$$;
create function pg_temp.uses(who text, collection text)
    returns text[]
    language sql
as $$
    select array[
        pg_temp.state_of(who, format('select gc.begin_upload(%L, %L)', collection, '1')),
        pg_temp.state_of(who, format('select gc.end_upload(%L, %L)', collection, '1')),
        pg_temp.state_of(who, format('select gc.keep_alive(%L, %L)', collection, '1'))
    ]
$$;
create function pg_temp.none()
    returns text[]
    language sql
as $$ select array['42501', '42501', '42501'] $$;
create function pg_temp.all()
    returns text[]
    language sql
as $$ select array['ok', 'ok', 'ok'] $$;

select is(pg_temp.uses('uploaders_one', 'file'), pg_temp.all(), 'an uploader uses its collection');
delete from gc.holds;
select is(pg_temp.uses('uploaders_one', 'secret'), pg_temp.none(), 'and no other');
select is_empty('select * from gc.holds', 'nothing is held by that');
select is(pg_temp.state_of('uploaders_one', $$select gc.keep_alive('secret', '99')$$), '42501',
    'nor does it learn which rows another collection has');
select is(pg_temp.state_of('uploaders_one', c), '42501', 'it cannot call ' || c)
from unnest(array[
    $$select gc.secret_begin_upload('1', null, '1 second', null, null)$$,
    $$select gc._begin_uploads('secret', '{1}', null, '1 second', null, null)$$,
    $$select gc.secret_keep_alive('1')$$, $$select gc._keep_alive('secret', '1')$$,
    $$select gc.secret_lock('1')$$, $$select gc.secret_key_text('1')$$,
    $$table gc.holds$$, $$table gc.tombstones$$
]) as c;
select is(pg_temp.uses('uploaders_all', 'file') || pg_temp.uses('uploaders_all', 'secret'),
    pg_temp.all() || pg_temp.all(), 'an uploader of all uses all');
select count(*) from gc.track('app.loose', url => 'path', condition => 'false') \g /dev/null
select is(pg_temp.uses('uploaders_all', 'loose'), pg_temp.none(),
    'but not one that was tracked later');

-- An address that no row of the collection can have.
select is(pg_temp.state_of('uploaders_one', format('select gc.begin_upload(%L, %L, %L)', 'file', '1', u)),
    s, 'the address ' || u)
from (values ('s3://files/2', 'ok'), ('s3://files/', 'ok'), ('s3://secrets/1', '22023'),
    ('s3://file', '22023'), ('', '22023'), ('S3://files/2', '22023')) as a(u, s);

-- The code is made again.
alter table app.file alter column path type varchar(100);
select count(*) from gc.review() \g /dev/null
select is(pg_temp.uses('uploaders_one', 'file'), pg_temp.all(),
    'the right is still there when a review has made the code again');
select count(*) from gc.track('app.file', url => $$'s3://files/' || path$$, label => 'path',
    condition => 'false') \g /dev/null
select is(pg_temp.uses('uploaders_one', 'file'), pg_temp.all(), 'and after gc.track');
alter table app.file rename to document;
select count(*) from gc.review() \g /dev/null
select is(pg_temp.uses('uploaders_one', 'file'), pg_temp.all(), 'and when the table has a new name');
alter table app.document drop constraint file_pkey, add primary key (path);
select count(*) from gc.review() \g /dev/null
select is(pg_temp.uses('uploaders_one', 'file'), pg_temp.all(), 'and when the key is another one');
select is(pg_temp.uses('uploaders_one', 'secret'), pg_temp.none(), 'other collections stay closed');

-- It goes with the collection.
select gc.untrack('file') \g /dev/null
select count(*) from gc.track('app.document', name => 'file', url => $$'s3://files/' || path$$,
    condition => 'false') \g /dev/null
select is(pg_temp.uses('uploaders_one', 'file'), pg_temp.none(),
    'a collection that gets the name of one that was untracked is another one');

select * from finish();
rollback;
