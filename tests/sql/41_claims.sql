-- Claims: who deletes what, until when, and what is known of it afterwards.
begin;
set local client_min_messages = error;
select plan(89);

create schema app;
create table app.file (id bigint primary key, bytes bigint);
update gc.settings set jitter = '0', undo = '0';
select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id$$, size => 'bytes',
    label => $$'file ' || id$$, generation => $$'v' || id$$, condition => 'true') \g /dev/null

-- Days are told in UTC.
create function pg_temp.today() returns date language sql
as $$ select (now() at time zone 'UTC')::date $$;
-- Tombstones of files from "first" to "last", the first the longest overdue.
create function pg_temp.bury(first bigint, last bigint)
    returns void
    language plpgsql
as $$
begin
    insert into app.file select i, i * 10 from generate_series(first, last) as i;
    delete from app.file;
    update gc.tombstones set due_at = now() - interval '1 day' + key::bigint * interval '1 minute'
    where worker is null and due_at = now();
end;
$$;
create function pg_temp.ids(variadic keys text[])
    returns bigint[]
    language sql
as $$ select array_agg(id order by id) from gc.tombstones where key = any (keys) $$;
create function pg_temp.forget() returns void language sql as 'delete from gc.tombstones';
-- As if the time of every lease had passed.
create function pg_temp.end_leases()
    returns void
    language sql
as $$ update gc.tombstones set due_at = clock_timestamp() where worker is not null $$;
-- A tombstone without what time changes.
create temporary view state as
select key, worker, failures, last_error, due_at > clock_timestamp() as not_due
from gc.tombstones order by key::bigint;


-- What a claim gives.
select is_empty($$select * from gc.claim('a')$$, 'there is nothing to claim at first');
select pg_temp.bury(1, 5);
select results_eq(
    $$select collection, key, label, url, generation, size from gc.claim('a', 2)$$,
    $$values
        ('file', '1', 'file 1', 's3://bucket/1', 'v1', 10::bigint),
        ('file', '2', 'file 2', 's3://bucket/2', 'v2', 20)$$,
    'a claim gives the longest overdue, as many as were asked for, with all that is known of them');
select results_eq(
    $$select key, id = any (pg_temp.ids('3', '4', '5')),
        leased_until - clock_timestamp() between interval '59 seconds' and interval '1 minute'
        from gc.claim('b', lease => '1 minute')$$,
    $$values ('3', true, true), ('4', true, true), ('5', true, true)$$,
    'a second worker is given the rest, for as long as it asked');
select is_empty($$select * from gc.claim('c')$$, 'what is leased is not given to a third worker');
select is_empty($$select * from gc.claim('a')$$, 'what is leased is not given to its own worker');
select results_eq('select key, worker from state',
    $$values ('1', 'a'), ('2', 'a'), ('3', 'b'), ('4', 'b'), ('5', 'b')$$,
    'each tombstone knows its worker');

-- A batch of which some fail.
select is(gc.confirm('a', pg_temp.ids('1')), 1, 'a worker confirms one of two');
select is(gc.fail('a', pg_temp.ids('2'), '503 slow down'), 1, 'and reports the other as failed');
select is(gc.confirm('b', pg_temp.ids('3', '4')), 2, 'another worker confirms two of three');
select is(gc.release('b', pg_temp.ids('5')), 1, 'and gives the third back');
select results_eq('select * from state',
    $$values ('2', null, 1, '503 slow down', true), ('5', null, 0, null, false)$$,
    'what failed waits, what was given back is due, and what was confirmed is gone');
select results_eq($$select key from gc.claim('c')$$, array['5'],
    'what was given back is claimed again at once');
select pg_temp.forget();

-- The log and the totals.
select results_eq(
    $$select collection, key, label, url, generation, size, event, row_deleted_at, worker
        from gc.deletion_log order by id$$,
    $$values
        ('file', '1', 'file 1', 's3://bucket/1', 'v1', 10::bigint, null::text, now(), 'a'),
        ('file', '3', 'file 3', 's3://bucket/3', 'v3', 30, null, now(), 'b'),
        ('file', '4', 'file 4', 's3://bucket/4', 'v4', 40, null, now(), 'b')$$,
    'what was confirmed is logged, and nothing else');
select ok(
    (select bool_and(deleted_at between now() and clock_timestamp() and deleted_at > now())
        from gc.deletion_log),
    'the log has the time of the confirmation');
select results_eq('select collection, day, rows, objects, bytes from gc.daily_totals',
    $$values ('file', pg_temp.today(), 0::bigint, 3::bigint, 80::numeric)$$,
    'the day''s totals have the objects and bytes that were confirmed');

-- Nobody but the worker, and not after the lease.
select pg_temp.bury(10, 11);
select count(*) from gc.claim('a') \g /dev/null
create temporary table before as select * from gc.tombstones;
select is(gc.confirm('b', pg_temp.ids('10', '11')), 0,
    'a confirm by another worker changes nothing');
select is(gc.fail('b', pg_temp.ids('10'), 'x'), 0, 'a fail by another worker changes nothing');
select is(gc.release('b', pg_temp.ids('10')), 0, 'a release by another worker changes nothing');
select is(gc.confirm('A', pg_temp.ids('10')), 0, 'a worker''s name is compared to the letter');
select is(gc.confirm('a', array[-1, 0, 9223372036854775807]), 0,
    'a confirm of ids that do not exist changes nothing');
select is(gc.confirm('a', '{}'), 0, 'a confirm of no ids changes nothing');
select is(gc.confirm('a', null), 0, 'a confirm of null changes nothing');
select is(gc.confirm('a', array[null]::bigint[]), 0, 'a confirm of a null id changes nothing');
select is(gc.fail('a', null, 'x'), 0, 'a fail of null changes nothing');
select is(gc.release('a', '{}'), 0, 'a release of no ids changes nothing');
select set_eq('table gc.tombstones', 'table before', 'after all that the tombstones are the same');
select is(gc.confirm('a', pg_temp.ids('10') || pg_temp.ids('10') || array[-1]::bigint[]), 1,
    'a confirm of ids of which one is ours, twice, and one is not, confirms the one');
select is((select count(*) from gc.deletion_log where key = '10'), 1::bigint,
    'an id that is given twice is logged once');
select is(gc.confirm('a', array(select id from before)), 1,
    'a second confirm of the batch confirms what is left of it');
select is(gc.confirm('a', array(select id from before)), 0,
    'a third confirm changes nothing');
select is((select sum(objects) from gc.daily_totals), 5::numeric,
    'what is confirmed twice is counted once');

select pg_temp.bury(12, 14);
select count(*) from gc.claim('a') \g /dev/null
select pg_temp.end_leases();
create temporary table expired as select * from gc.tombstones;
select is(gc.confirm('a', pg_temp.ids('12')), 0, 'a confirm after the lease changes nothing');
select is(gc.fail('a', pg_temp.ids('13'), 'x'), 0, 'a fail after the lease changes nothing');
select is(gc.release('a', pg_temp.ids('14')), 0, 'a release after the lease changes nothing');
select set_eq('table gc.tombstones', 'table expired',
    'a worker that has lost its lease has changed nothing');
select is((select count(*) from gc.deletion_log where key in ('12', '13', '14')), 0::bigint,
    'a worker that has lost its lease has logged nothing');
select set_eq(
    $$select key, url from gc.claim('b')$$, 'select key, url from expired',
    'when the lease is over, another worker is given the same tombstones');
select is_empty('select id from gc.tombstones intersect select id from expired',
    'under other ids: nobody can speak about the lease that is over');
select is(gc.confirm('a', pg_temp.ids('12', '13', '14')), 0,
    'the first worker cannot confirm what the second has now');
select is(gc.confirm('b', pg_temp.ids('12', '13', '14')), 3,
    'the second worker confirms, although the first may have deleted the objects');
select is((select array_agg(distinct worker) from gc.deletion_log where key in ('12', '13', '14')),
    array['b'], 'the log has the worker that confirmed');
select pg_temp.bury(15, 15);
select count(*) from gc.claim('a') \g /dev/null
select pg_temp.end_leases();
select results_eq($$select key from gc.claim('a')$$, array['15'],
    'a worker may claim again what it lost');
select is(gc.confirm('a', pg_temp.ids('15')), 1, 'and then confirm it');

-- Failing.
select pg_temp.bury(20, 21);
select count(*) from gc.claim('a') \g /dev/null
select is(gc.fail('a', pg_temp.ids('20', '20'), '403 forbidden'), 1, 'a worker reports a failure');
select results_eq(
    $$select date_trunc('minute', due_at - clock_timestamp() + interval '1 second'), last_error
        from gc.tombstones where key = '20'$$,
    $$values (interval '5 minutes', '403 forbidden')$$,
    'after a first failure it is due in 5 minutes, counted from now');
select is_empty($$select * from gc.claim('b')$$, 'what failed is not given to anybody before');
update gc.tombstones set due_at = now() where key = '20';
select count(*) from gc.claim('b') \g /dev/null
select is(gc.fail('b', pg_temp.ids('20'), null), 1, 'a failure needs no reason');
select results_eq(
    $$select date_trunc('minute', due_at - clock_timestamp() + interval '1 second'), failures,
        last_error from gc.tombstones where key = '20'$$,
    $$values (interval '10 minutes', 2, 'no reason was given')$$,
    'after a second failure it is due in 10 minutes');
update gc.tombstones set due_at = now(), failures = 2000000000 where key = '20';
select count(*) from gc.claim('c') \g /dev/null
select is(gc.fail('c', pg_temp.ids('20'), repeat('e', 10000)), 1,
    'a failure may be the last of very many');
select results_eq(
    $$select date_trunc('hour', due_at - clock_timestamp() + interval '1 second'), failures,
        length(last_error) from gc.tombstones where key = '20'$$,
    $$values (interval '24 hours', 2000000001, 10000)$$,
    'however often it failed, it is kept, and due in a day');
update gc.tombstones set due_at = now() where key = '20';
select count(*) from gc.claim('c') \g /dev/null
select is(gc.confirm('c', pg_temp.ids('20')), 1, 'what failed often can succeed');
select pg_temp.end_leases();
select count(*) from gc.claim('a') \g /dev/null
select is(gc.release('a', pg_temp.ids('21')), 1, 'a worker gives back what it has not begun');
select results_eq('select * from state', $$values ('21', null, 0, null, false)$$,
    'to give back is no failure');
select is(gc.release('a', pg_temp.ids('21')), 0, 'what was given back cannot be given back again');
select is(gc.confirm('a', pg_temp.ids('21')), 0, 'what was given back cannot be confirmed');
select pg_temp.forget();

-- Several tombstones of one object.
insert into gc.tombstones (collection, key, url, due_at, wait_for)
select 'file', i, 's3://bucket/same', now() - i * interval '1 minute', '0'
from generate_series(30, 33) as i;
select is((select count(*) from gc.claim('a')), 1::bigint,
    'several tombstones of one object are claimed as one');
select is((select count(*) from gc.tombstones), 1::bigint, 'and the others are dropped');
select is_empty($$select * from gc.claim('b')$$, 'so that nobody deletes the object twice');
select pg_temp.forget();
insert into gc.tombstones (collection, key, url, generation, due_at, wait_for)
values ('file', '34', 's3://bucket/same', 'v1', now(), '0'),
    ('file', '34', 's3://bucket/same', 'v2', now(), '0');
select results_eq($$select generation from gc.claim('a')$$, array['v1', 'v2'],
    'two generations of one url are two objects');
select pg_temp.forget();

-- A live row.
insert into app.file values (40, 400);
insert into gc.tombstones (collection, key, url, generation, due_at, wait_for)
values ('file', '40', 's3://bucket/40', 'v40', now(), '0'),
    ('file', '41', 's3://bucket/41', 'v41', now(), '0');
select results_eq($$select key from gc.claim('a')$$, array['41'],
    'a tombstone whose url a live row has is not handed out');
select results_eq('select key from state', array['41'], 'and dropped');
delete from app.file;
select pg_temp.forget();

-- Transactions that a shared object waits for: others, not this one. What comes from a dump of
-- another server lies in the future. (tests/specs/shared-url.spec has other transactions.)
do $$
begin
    insert into app.file values (50, 1);
    raise exception 'undo';
exception
    when raise_exception then
        null;
end
$$;
insert into gc.tombstones (collection, key, url, due_at, wait_for)
values ('file', '51', 's3://bucket/51', now(), null),
    ('file', '52', 's3://bucket/52', now(), '0'),
    ('file', '53', 's3://bucket/53', now(), '9000000000000000000');
select results_eq($$select key from gc.claim('a')$$, array['51', '52', '53'],
    'a tombstone is claimed when every other transaction that may have used its url has ended');
select is((select wait_for from gc.tombstones where key = '51'), '1'::xid8,
    'the claim notes that there is nothing to wait for any more');
select pg_temp.forget();

-- Retention.
update gc.settings set log_retention = '10 days';
update gc.deletion_log set deleted_at = now() - interval '11 days' where key in ('1', '3', '4');
update gc.deletion_log set deleted_at = now() - interval '9 days' where key in ('10', '11');
create temporary table totals_before as table gc.daily_totals;
select count(*) from gc.review(2) \g /dev/null
select set_eq('select key from gc.deletion_log',
    array['4', '10', '11', '12', '13', '14', '15', '20'],
    'a review drops the oldest of the log, not more than its batch');
select count(*) from gc.review() \g /dev/null
select set_eq('select key from gc.deletion_log', array['10', '11', '12', '13', '14', '15', '20'],
    'and only what is older than the retention');
select set_eq('table gc.daily_totals', 'table totals_before', 'the totals stay');

-- Totals of days before yesterday become one line; the brake counts the last day's.
insert into gc.totals (collection, day, rows, objects, bytes)
select c, pg_temp.today() - d, 1, i, i * 10
from generate_series(1, 3) as i, generate_series(2, 3) as d, unnest(array['file', 'gone']) as c;
select is((select count(*) from gc.totals where not folded and day < pg_temp.today()), 12::bigint,
    'every batch of the last days has left a line');
select count(*) from gc.review() \g /dev/null
select set_eq(
    $$select collection, day, rows, objects, bytes, folded from gc.totals
        where day < pg_temp.today()$$,
    $$select c, pg_temp.today() - d as day, v.*
        from generate_series(2, 3) as d, unnest(array['file', 'gone']) as c,
            (values (3::bigint, 6::bigint, 60::bigint, true)) as v(rows, objects, bytes, folded)$$,
    'a review folds the lines of each day and collection that is over');
select cmp_ok((select count(*) from gc.totals where day = pg_temp.today() and not folded), '>',
    1::bigint, 'the lines of today are left alone');
insert into gc.totals (collection, day, objects, bytes)
values ('file', pg_temp.today() - 2, 4, 40);
select count(*) from gc.review() \g /dev/null
select results_eq(
    $$select rows, objects, bytes from gc.daily_totals
        where collection = 'file' and day = pg_temp.today() - 2$$,
    $$values (3::bigint, 10::bigint, 100::numeric)$$,
    'a line that comes late is added to what was folded');

-- A plan that is made while there are few tombstones is kept: it must suit very many.
create function pg_temp.reads_all(command text)
    returns bigint
    language plpgsql
as $$
declare
    before bigint := (
        select seq_scan from pg_stat_xact_user_tables where relid = 'gc.tombstones'::regclass);
begin
    execute command;
    return (select seq_scan from pg_stat_xact_user_tables where relid = 'gc.tombstones'::regclass)
        - before;
end;
$$;
select pg_temp.forget();
insert into app.file select n, 1 from generate_series(1001, 1020) as n;
delete from app.file;
create temporary table held as select id, key from gc.tombstones;
select is(pg_temp.reads_all(c), 0::bigint, 'nothing reads all tombstones: ' || c)
from unnest(array[
    $$select gc.claim('z', 15)$$,
    $$select gc.fail('z', array(select id from held where key between '1001' and '1003'), 'x')$$,
    $$select gc.release('z', array(select id from held where key between '1004' and '1006'))$$,
    $$select gc.confirm('z', array(select id from held where key between '1007' and '1015'))$$,
    $$select gc.begin_upload('file', '1020')$$,
    $$select gc.end_upload('file', '1020')$$,
    $$insert into app.file values (1020, 1)$$,
    $$delete from app.file$$
]) as c;

-- Nor does it read, to sort them, all that wait.
create function pg_temp.fetched(command text)
    returns bigint
    language plpgsql
as $$
declare
    before bigint := (
        select idx_tup_fetch from pg_stat_xact_user_tables where relid = 'gc.tombstones'::regclass);
begin
    execute command;
    return (select idx_tup_fetch from pg_stat_xact_user_tables
        where relid = 'gc.tombstones'::regclass) - before;
end;
$$;
select pg_temp.forget();
insert into gc.tombstones (collection, key, url, wait_for, due_at)
select 'file', n, 's3://many/' || n, w, now() - interval '1 hour'
from generate_series(1, 3000) as n
cross join unnest('{null,0,1}'::xid8[]) as w;
select cmp_ok(pg_temp.fetched(c), '<', 300::bigint, 'of 9,000 tombstones few are read: ' || c)
from unnest(array[
    $$select gc.claim('z', 10, prefixes => '{s3://many/}')$$, $$select gc.claim('z', 10)$$,
    $$select gc.next_due('{s3://many/}')$$, $$select gc.next_due()$$
]) as c;
select pg_temp.forget();

-- What stands in the way of a claim.
select pg_temp.forget();
-- What a runner is told to delete, and deletes.
create function pg_temp.handed_out()
    returns text[]
    language plpgsql
as $$
declare
    ids bigint[];
    urls text[];
begin
    select array_agg(c.id), coalesce(array_agg(c.url order by c.url), '{}') into ids, urls
    from gc.claim('w') as c;
    perform gc.confirm('w', ids);
    return urls;
end;
$$;
create table app.version (id integer primary key, generation text);
select count(*) from gc.track('app.version', url => $$'gs://v/' || (id > 0)$$,
    generation => 'generation', condition => 'true') \g /dev/null
insert into app.version values (1, ''), (2, null), (3, 'g');
delete from app.version;
select results_eq($$select url, generation from gc.claim('w')$$,
    $$values ('gs://v/true', null), ('gs://v/true', 'g')$$,
    'an empty generation is none, and is no second deletion');
delete from gc.tombstones;

create function pg_temp.bury_by_hand(worker text, due interval, generation text)
    returns void
    language sql
as $$
    insert into gc.tombstones (collection, key, url, generation, due_at, worker, wait_for)
    values ('version', '9', 'gs://v/by-hand', bury_by_hand.generation, now() + due, bury_by_hand.worker, '0')
$$;
-- A row that is written by hand is refused, or does no harm.
create function pg_temp.bury_empty_generation()
    returns text[]
    language plpgsql
as $$
begin
    begin
        perform pg_temp.bury_by_hand(null, '0', '');
    exception
        when check_violation then
            null;
    end;
    perform pg_temp.bury_by_hand(null, '0', null);
    return pg_temp.handed_out();
end;
$$;
select lives_ok('select pg_temp.bury_empty_generation()',
    'an empty generation that was written by hand does not stop a claim');
delete from gc.tombstones;
select pg_temp.bury_by_hand(null, '-1 minute', null), pg_temp.bury_by_hand('x', '-1 hour', null);
select is(pg_temp.handed_out(), '{gs://v/by-hand}',
    'an expired lease and an earlier tombstone are one deletion');
select is_empty('table gc.tombstones', 'and the earlier one is dropped');
select pg_temp.bury_by_hand('x', '-1 hour', null), pg_temp.bury_by_hand(null, '-1 minute', null);
select is(pg_temp.handed_out(), '{gs://v/by-hand}',
    'an expired lease and a later tombstone are one deletion');
select is_empty('table gc.tombstones', 'and the later one is dropped');
select pg_temp.bury_by_hand(null, '1 hour', null), pg_temp.bury_by_hand('x', '-1 hour', null);
select is(pg_temp.handed_out(), '{}',
    'an expired lease is not handed out before a tombstone of the same object is due');
delete from gc.tombstones;

select * from finish();
rollback;
