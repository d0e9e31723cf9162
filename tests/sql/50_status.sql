-- Seeing: gc.status says what an operator asks first, gc.next_due when there will be work.
begin;
set local client_min_messages = error;
select plan(51);

create schema app;
create table app.file (id bigint primary key, bytes bigint);
create table app.post (id bigint primary key, file bigint references app.file);
create index on app.post (file);
create table app."A plain one" (id bigint primary key, path text, bytes bigint);
update gc.settings set jitter = '0', undo = '0', max_sleep = '1 hour';

select is_empty('select * from gc.status()', 'without a collection there is no status');
select is(gc.next_due(), now() + interval '1 hour',
    'without a collection, the next work is as far away as a runner may sleep');

select count(*) from gc.track(
    'app.file', url => $$'s3://bucket/' || id$$, size => 'bytes') \g /dev/null
select count(*) from gc.track('app."A plain one"', name => 'plain', size => 'bytes',
    condition => 'true') \g /dev/null

-- The columns of one collection that are asked for, in one line.
create function pg_temp.status_of(name text, variadic columns text[])
    returns text
    language sql
as $$
    select string_agg(coalesce(to_jsonb(s) ->> u.c, '-'), ' ' order by u.n)
    from gc.status() as s
    cross join unnest(columns) with ordinality as u(c, n)
    where s.collection = name
$$;
create function pg_temp.queue(id bigint, after interval, failures integer, error text)
    returns void
    language sql
as $$
    insert into gc.file_review_queue (id, event, review_after, review_count, last_error)
    values (id, 'test', now() + after, failures, error)
$$;
create function pg_temp.bury(
    id bigint, after interval, failures integer, error text, worker text, bytes bigint
)
    returns void
    language sql
as $$
    insert into gc.tombstones
        (collection, key, url, size, due_at, failures, last_error, worker, wait_for)
    values ('file', id, 's3://bucket/' || id, bytes, now() + after, failures, error, worker, '0')
$$;

select results_eq(
    'select collection, target from gc.status()',
    $$values ('file', 'app.file'), ('plain', 'app."A plain one"')$$,
    'the status has one row for each collection, with its table');
select results_eq(
    $$select queued, due, overdue_since, failing, last_error, tombstones_waiting,
        tombstones_claimed, tombstones_failing, tombstones_last_error, bytes_waiting,
        deleted_today, bytes_today, deleted_total, bytes_total, blocked, why
        from gc.status() where collection = 'file'$$,
    $$values (0::bigint, 0::bigint, null::timestamptz, 0::bigint, null::text, 0::bigint, 0::bigint,
        0::bigint, null::text, 0::numeric, 0::numeric, 0::numeric, 0::numeric, 0::numeric, false,
        null::text)$$,
    'of an empty collection everything is zero, not null');

-- The queue.
select pg_temp.queue(1, '-2 hours', 0, null);
select pg_temp.queue(2, '-3 hours', 2, 'old trouble');
select pg_temp.queue(3, '5 hours', 1, 'new trouble');
select pg_temp.queue(4, '1 day', 0, null);
select is(pg_temp.status_of('file', 'queued', 'due', 'failing'), '4 2 2',
    'the status counts what is queued, what of that is due, and what has failed');
select is((select overdue_since from gc.status() where collection = 'file'),
    now() - interval '3 hours', 'it tells since when the longest overdue is due');
select is(pg_temp.status_of('file', 'last_error'), 'new trouble', 'it tells the last error');
select is(pg_temp.status_of('plain', 'queued', 'due', 'failing', 'last_error'), '0 0 0 -',
    'it keeps the collections apart');
delete from gc.file_review_queue;

-- Tombstones.
select pg_temp.bury(1, '0', 0, null, null, 100);
select pg_temp.bury(2, '1 day', 3, '403', null, 20);
select pg_temp.bury(3, '5 minutes', 0, null, 'worker', 3);
select pg_temp.bury(4, '-1 minute', 1, '503', 'lost', null);
select is(
    pg_temp.status_of('file', 'tombstones_waiting', 'tombstones_claimed', 'tombstones_failing',
        'bytes_waiting', 'tombstones_last_error'),
    '3 1 2 123 403',
    'the status counts tombstones: waiting (a lost lease too), claimed, failing, and their bytes');
select is(pg_temp.status_of('plain', 'tombstones_waiting', 'bytes_waiting'), '0 0',
    'tombstones of one collection are not those of another');
delete from gc.tombstones;

-- What was deleted.
insert into gc.review_after_defaults values ('file_insert', '0'), ('plain_insert', '0');
insert into app.file values (10, 1000), (11, 100), (12, null);
insert into app."A plain one" values (1, 'x', 7), (2, 'y', 8);
select count(*) from gc.review() \g /dev/null
select is(pg_temp.status_of('file', 'deleted_today', 'bytes_today'), '0 0',
    'an object counts as deleted when it is gone, not when its row is');
select gc.confirm('w', array(select id from gc.claim('w', 2))) \g /dev/null
select is(
    pg_temp.status_of('file', 'deleted_today', 'bytes_today', 'deleted_total', 'bytes_total',
        'tombstones_waiting'),
    '2 1100 2 1100 1', 'what was confirmed counts, in objects and bytes');
insert into gc.totals (collection, day, rows, objects, bytes)
values ('file', (now() at time zone 'UTC')::date - 1, 100, 40, 9000);
select is(
    pg_temp.status_of('file', 'deleted_today', 'bytes_today', 'deleted_total', 'bytes_total'),
    '2 1100 42 10100', 'yesterday is in the total, and not in today');
select is(pg_temp.status_of('plain', 'deleted_today', 'deleted_total'), '2 2',
    'of rows without objects the rows count');
delete from gc.tombstones;

-- Why nothing happens.
savepoint whole;
alter table app.file drop column bytes;
select results_eq(
    $$select collection, reviewed, deleted from gc.review() where collection = 'file'$$,
    $$values ('file', 0, 0)$$, 'a collection that does not fit its table is not reviewed');
select is(pg_temp.status_of('file', 'blocked'), 'true', 'the status says that it is blocked');
select alike(pg_temp.status_of('file', 'why'), '%"file" cannot be reviewed%bytes%', 'and why');
select isnt((select problem_since from gc.collections where name = 'file'), null, 'and since when');
select is(pg_temp.status_of('plain', 'blocked', 'why'), 'false -', 'the other goes on');
rollback to whole;
savepoint whole;
alter table app.file drop column bytes;
select count(*) from gc.review() \g /dev/null
alter table app.file add column bytes bigint;
select count(*) from gc.review() \g /dev/null
select is(pg_temp.status_of('file', 'blocked', 'why'), 'false -',
    'when it is mended, the next review goes on');
rollback to whole;
drop table app.post, app.file;
select count(*) from gc.review() \g /dev/null
select is(pg_temp.status_of('file', 'blocked'), 'true', 'a table that is gone is a reason too');
select isnt(pg_temp.status_of('file', 'target'), null, 'and its row of the status is still there');
rollback to whole;

-- When there will be work.
delete from gc.file_review_queue;
select is(gc.next_due(), now() + interval '1 hour', 'nothing to do: as long as a runner may sleep');
update gc.settings set max_sleep = '10 seconds';
select is(gc.next_due(), now() + interval '10 seconds', 'which the settings say');
select pg_temp.queue(1, '20 seconds', 0, null);
select is(gc.next_due(), now() + interval '10 seconds', 'it is never further away than that');
update gc.settings set max_sleep = '1 hour';
select is(gc.next_due(), now() + interval '20 seconds', 'a review that is not due yet');
select pg_temp.queue(2, '15 seconds', 4, 'trouble');
select is(gc.next_due(), now() + interval '15 seconds', 'a review that is tried again');
update gc.collections set problem = 'x' where name = 'file';
select is(gc.next_due(), now() + interval '1 hour',
    'a collection that cannot be reviewed is no work');
update gc.collections set problem = null;
select pg_temp.queue(3, '-1 minute', 0, null);
select is(gc.next_due(), now() - interval '1 minute', 'a review that is overdue');
delete from gc.file_review_queue;
select pg_temp.bury(1, '30 seconds', 0, null, null, 1);
select is(gc.next_due(), now() + interval '30 seconds', 'a tombstone that is not due yet');
select pg_temp.bury(2, '25 seconds', 0, null, 'worker', 1);
select is(gc.next_due(), now() + interval '25 seconds', 'a lease that ends');
select pg_temp.bury(3, '-1 day', 0, null, null, 1);
select is(gc.next_due(), now() - interval '1 day', 'a tombstone that is overdue');
select gc.fail('w', array(select id from gc.claim('w')), 'trouble') \g /dev/null
select is(gc.next_due(), now() + interval '25 seconds', 'what has just failed is no work');
delete from gc.tombstones;

-- Due, but no work yet: a claim finds that out, and has it step back.
select pg_temp.bury(4, '-1 minute', 0, null, null, 1);
insert into gc.holds (collection, key, reason, held_until)
values ('file', '4', 'keep_alive', now() + interval '40 seconds');
select is_empty($$select * from gc.claim('w')$$, 'what is held is not handed out');
select cmp_ok(gc.next_due(), '>', now(), 'and steps back for a moment');
select cmp_ok(gc.next_due(), '<', clock_timestamp() + interval '2 seconds',
    'but not for long, because the hold may end at any time');
delete from gc.holds;
delete from gc.tombstones;
-- Two tombstones of one object are one deletion, and the first of them leads.
select pg_temp.bury(7, '50 seconds', 0, null, null, 1);
select pg_temp.bury(8, '-1 minute', 0, null, null, 1);
update gc.tombstones set url = 's3://bucket/same';
select is_empty($$select * from gc.claim('w')$$,
    'a tombstone whose object has an earlier one waits for that');
select is(gc.next_due(), now() + interval '50 seconds', 'so it is no work before that is due');
delete from gc.tombstones;

-- Scans.
select is(gc.next_due(), now() + interval '1 hour', 'nothing to do again');
insert into app.file values (60, 1);
insert into app.post values (1, 60);
delete from gc.file_review_queue;
truncate app.post;
select is(gc.next_due(), now(), 'a scan that a TRUNCATE asked for is work at once');
select count(*) from gc.review() \g /dev/null
select is((select scanning from gc.collections where name = 'file'), true,
    'a review begins the scan that was asked for');
select cmp_ok(gc.next_due(), '<=', now(), 'and while it goes on there is work');
select count(*) from gc.review() \g /dev/null
select count(*) from gc.review() \g /dev/null
select is((select scanning from gc.collections where name = 'file'), false,
    'further reviews end the scan');

-- Rests, so that the application hardly notices.
update gc.settings set pace = 0.2, max_sleep = '1 minute';
select is(gc.rest('1 second'), '4 seconds',
    'if a fifth of the time is work, the rest is four times as long');
select is(gc.rest('1 second', 0.5), '1 second', 'another pace can be asked for');
select is(gc.rest('1 second', 1), '0', 'at full speed there is no rest');
select is(gc.rest('0'), '0', 'nor after nothing');
select is(gc.rest('-3 seconds'), '0', 'nor if the clock was set back');
select is(gc.rest('2 hours'), '1 minute', 'nothing is a reason to rest longer than max_sleep');
select throws_ok('select gc.rest(''1 second'', 0)', '22023', 'a pace of 0 is not possible',
    'a pace that never ends is refused');
select throws_ok('select gc.rest(''1 second'', ''NaN'')', '22023', null, 'and one that is none');

select * from finish();
rollback;
