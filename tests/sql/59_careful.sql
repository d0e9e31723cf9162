-- Careful deletes: what a worker must look at, and what becomes of what it spares.
begin;
set local client_min_messages = error;
select plan(13);

create schema app;
create table app.file (id integer primary key);
create table app.other (id integer primary key);
update gc.settings set jitter = '0', undo = '0', brake_share = 1, upload_timeout = '10 minutes',
    orphan_grace = '2 days';
select from gc.track('app.file', url => $$'s3://files/' || id$$, collect => 'deleted');
select from gc.track('app.other', url => $$'s3://others/' || id$$, collect => 'deleted');
insert into app.file select generate_series(1, 4);
insert into app.other values (1);
delete from app.file;
delete from app.other;
create temporary table claimed as select id, url from gc.claim('w');
create function pg_temp.id(wanted text) returns bigint language sql
    return (select c.id from claimed as c where c.url = wanted);

select is_empty($$select from gc.careful('w', array(select id from claimed))$$,
    'usually nothing is looked at');
select gc.set_careful('file') \g /dev/null
select results_eq(
    $$select c.url, round(k.untouched_for) from gc.careful('w', array(select id from claimed)) as k
    join claimed as c using (id) order by 1$$,
    $$select 's3://files/' || n, 600::double precision from generate_series(1, 4) as n$$,
    'objects of a careful collection must be untouched for as long as an upload may take');
select is((select count(*) from gc.careful('w', array(select id from claimed), true)), 5::bigint,
    'or all, where the runner says so');
select is_empty($$select from gc.careful('another', array(select id from claimed))$$,
    'nobody is told of what another worker has');
update gc.tombstones set created_at = now() - interval '1 hour' where url = 's3://files/1';
update gc.tombstones set event = 'reconcile' where url = 's3://others/1';
select is((select round(untouched_for / 10) from gc.careful('w', array[pg_temp.id('s3://files/1')])),
    360::double precision, 'or for as long as the row has been gone');
select is((select untouched_for from gc.careful('w', array[pg_temp.id('s3://others/1')])),
    172800::double precision, 'what was adopted, for the grace');

-- One that was written after its row went, one before, and one that another worker has.
update gc.tombstones set worker = 'another' where url = 's3://files/3';
select is(gc.spare('w', array[pg_temp.id('s3://files/1'), pg_temp.id('s3://files/2'),
    pg_temp.id('s3://files/3')], '{60, 60, 60}'), 2, 'objects are spared, if the worker has them');
select is_empty($$select from gc.tombstones where url = 's3://files/1'$$,
    'one that was written after its row went stays for good');
select is((select reason from gc.operations where operation = 'spare'),
    '1 objects were written after their rows went, such as s3://files/1', 'and that is noted');
select is((select worker is null and due_at between now() + interval '8 minutes'
    and clock_timestamp() + interval '9 minutes' from gc.tombstones where url = 's3://files/2'),
    true, 'any other is due when an upload must be over');
select is((select worker from gc.tombstones where url = 's3://files/3'), 'another',
    'what another worker has is left to it');
select throws_ok($$select gc.spare('', '{}', '{}')$$, '22023', null, 'a worker has a name');
select gc.set_careful('file', false) \g /dev/null
select is((select bool_or(careful) from gc.collections), false, 'care can be switched off');
select * from finish();
rollback;
