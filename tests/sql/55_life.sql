-- Life: how many rows and bytes of each collection are at which stage.
begin;
set local client_min_messages = error;
select plan(13);

create schema app;
create table app.file (id integer primary key, bytes bigint);
create table app.post (id integer primary key, file integer references app.file);
create table app.note (id integer primary key);
create index on app.post (file);
update gc.settings set jitter = '0', brake_share = 1;
select gc.track('app.file', url => $$'s3://bucket/' || id$$, size => 'bytes') \g /dev/null
select gc.track('app.note', condition => 'true') \g /dev/null

create function pg_temp.life(name text)
    returns text
    language sql
as $$
    select string_agg(concat_ws(' ', stage, rows, bytes), ', ')
    from gc.life() where collection = name
$$;
-- So that what follows is due.
create function pg_temp.review(numbers int4range) returns void language sql as $$
    update gc.file_review_queue set review_after = now() - interval '1 minute' where id <@ numbers;
    select gc.review()
$$;

select is(pg_temp.life('file'), 'live 0, queued 0, due 0, deleted 0 0, waiting 0 0, gone 0 0',
    'of an empty table no sizes are known');
insert into app.file select n, n * 100 from generate_series(1, 9) as n;
insert into app.post values (1, 1);
insert into app.note values (1), (2);
select is(pg_temp.life('file'),
    'live 9 4500, queued 9 4500, due 0 0, deleted 0 0, waiting 0 0, gone 0 0',
    'what is queued for later has about the size of live rows');
select pg_temp.review('[7,9]') \g /dev/null
update gc.file_review_queue set review_after = now() where id < 3;
select is(pg_temp.life('file'),
    'live 6 2100, queued 4 1400, due 2 700, deleted 3 2400, waiting 0 0, gone 0 0',
    'what can be restored is deleted, and its object does not wait for a runner yet');
update gc.tombstones set due_at = now() - interval '1 second' where key in ('7', '8');
select is(pg_temp.life('file'),
    'live 6 2100, queued 4 1400, due 2 700, deleted 1 900, waiting 2 1500, gone 0 0',
    'after that it waits');
select count(*) from gc.claim('worker', 1) \g /dev/null
select gc.fail('worker', array_agg(id), 'no') from gc.tombstones where worker = 'worker'
\g /dev/null
select is(pg_temp.life('file') ~ 'deleted 1 900, waiting 2 1500', true, 'also if it fails');
update gc.tombstones set due_at = now() - interval '1 second' where failures > 0;
select gc.confirm('worker', array(select id from gc.claim('worker'))) \g /dev/null
select is(pg_temp.life('file') ~ 'deleted 1 900, waiting 0 0, gone 2 1500', true,
    'and then it is gone');
select is((select array_agg(stage) from gc.life() where collection = 'file' and is_estimate),
    array['live', 'queued', 'due'], 'only what is not counted anyway is estimated');

update gc.note_review_queue set review_after = now();
select count(*) from gc.review() \g /dev/null
select is(pg_temp.life('note'), 'live 0, queued 0, due 0, deleted 2 0, waiting 0 0, gone 0 0',
    'rows without an object are gone when no undo can bring them back');
update gc.trash_rows set until = now() - interval '1 second';
select is(pg_temp.life('note') ~ 'deleted 0 0, waiting 0 0, gone 2 0', true, 'and not before');

-- Nothing is locked afterwards, and one bad collection costs only itself.
select gc.track('app.file', url => $$'s3://bucket/' || id$$, size => 'bytes / (id - 3)') \g /dev/null
select is(pg_temp.life('file'),
    'live 5, queued 4, due 0, deleted 2 1100, waiting 0 0, gone 2 1500',
    'a size that cannot be computed is not known');
select is(pg_temp.life('note') is not null, true, 'and the others are told of');

create role life_viewer;
select gc.grant_viewer('life_viewer') \g /dev/null
set role life_viewer;
select is((select count(*) from gc.life()), 12::bigint, 'a viewer may ask');
select throws_ok('select gc.file_average_size(100)', '42501', null,
    'but cannot call what reads the table');
reset role;
select * from finish();
rollback;
