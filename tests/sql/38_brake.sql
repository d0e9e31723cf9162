-- The brake: what would empty a collection in an hour is stopped, and a person may let it go on.
begin;
set local client_min_messages = error;
select plan(47);

create schema app;
create table app.manifest (id integer primary key);
create table app.tag (name text primary key, manifest integer references app.manifest);
create index on app.tag (manifest);
create table app.file (id integer primary key);
create table app.part (id integer, n integer, primary key (id, n)) partition by list (n);
create table app.part_1 partition of app.part for values in (1);
create table app.part_2 partition of app.part for values in (2);
select is(format('%s %s', brake_share, brake_rows), '0.1 1000', 'the brake is on by default')
from gc.settings;
update gc.settings set undo = '0', jitter = '0', brake_rows = 20;
select count(*) from gc.track('app.manifest') \g /dev/null
select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id$$, condition => 'false')
    \g /dev/null
select gc.set_delay(e, '0') from unnest(array['manifest_insert', 'tag_delete']) as e \g /dev/null
create function pg_temp.deleted(batch integer default 1000) returns integer language sql as $$
    select deleted from gc.review(batch) where collection = 'manifest'
$$;
create function pg_temp.paused(name text) returns text language sql as $$
    select paused from gc.status() where collection = name
$$;
create function pg_temp.claimed(batch integer default 1000) returns bigint language sql as $$
    select count(*) from gc.claim('w', batch)
$$;

-- How many rows there are.
select is(gc._rows_of('app.manifest'), 0::bigint, 'an empty table has none');
insert into app.manifest select i from generate_series(1, 1000) as i;
insert into app.tag select i, i from generate_series(1, 1000) as i;
select is(gc._rows_of('app.manifest'), 1000::bigint, 'a table that was just loaded is counted');
insert into app.part select i, 1 + i % 2 from generate_series(1, 50) as i;
select is(gc._rows_of('app.part'), 50::bigint, 'with its partitions');
create table app.big (id integer);
insert into app.big select i from generate_series(1, 150000) as i;
select is(gc._rows_of('app.big'), 100000::bigint, 'as far as a bound');
analyze app.big;
select is(gc._rows_of('app.big'), 150000::bigint, 'beyond that the catalog is asked');
insert into app.big select i from generate_series(1, 150000) as i;
select is(gc._rows_of('app.big'), 150000::bigint, 'what it does not know is not guessed');
truncate app.big;
select is(gc._rows_of('app.big'), 0::bigint, 'nor is what is gone believed');

-- A normal day.
select is(pg_temp.deleted(), 0, 'nothing goes that is kept');
delete from app.tag where manifest <= 20;
select is(pg_temp.deleted(), 20, 'a normal day of 2 % goes');
select is(pg_temp.paused('manifest'), null, 'and nothing is paused');

-- All tags are deleted by a mistake.
delete from app.tag;
select is(pg_temp.deleted(), 80, 'as much as a tenth goes: what is left of the hour''s');
select is((select sum(rows) from gc.daily_totals), 100::numeric, 'a tenth of what was there before');
select is(pg_temp.deleted(), 0, 'and then none');
select is(pg_temp.paused('manifest'), 'reviews', 'reviews are paused');
select is((select paused_by from gc.status() where collection = 'manifest'), 'the brake',
    'by the brake');
select is((select paused_why from gc.status() where collection = 'manifest'),
    'reviews of one hour have deleted 100 rows, and 900 of the next batch were to follow; '
    'the table has about 900 rows; due: 900 because of tag_delete', 'which says what was about to go');
select results_eq($$select operation, collection, what, done_by from gc.operations$$,
    $$values ('brake', 'manifest', 'reviews', 'the brake')$$, 'it is in the log');
select is((select count(*) from gc.manifest_review_queue where review_count > 0), 0::bigint,
    'no review has failed');
select is((select count(*) from app.manifest), 900::bigint, 'the rows are there');

-- A person lets some through, and all.
select is(gc.resume('manifest', allow => 50), 1, 'a person lets fifty through');
select is(pg_temp.deleted(30), 30, 'they go');
select is(pg_temp.deleted(30), 20, 'exactly these');
select is(pg_temp.deleted(30), 0, 'and no more');
select is(pg_temp.paused('manifest'), 'reviews', 'it is paused again');
select is(gc.resume('manifest'), 1, 'without a number');
select is(pg_temp.deleted(), 100, 'it is what may go in an hour');
select is(gc.resume('manifest', allow => 700), 0, 'before the brake is pulled');
select is(pg_temp.deleted(1000), 700, 'more can be allowed, too');
select is(pg_temp.deleted(), 0, 'that is used up');
select gc.resume('manifest', allow => 60) \g /dev/null
update gc.allowances set since = since - interval '25 hours';
select is(pg_temp.deleted(), 0, 'or forgotten after a day');
select gc.resume('manifest') \g /dev/null
update gc.totals set counted_at = counted_at - interval '61 minutes';
update gc.allowances set since = since - interval '25 hours';
select is(pg_temp.deleted(), 20, 'an hour later, as much may go as in any');

-- Off, and for one collection.
select gc.resume('manifest') \g /dev/null
delete from gc.allowances;
select gc.set_brake('manifest', rows => 30) \g /dev/null
select is(pg_temp.deleted(), 10, 'a collection may have its own brake');
select gc.resume('manifest') \g /dev/null
select gc.set_brake('manifest', share => 1) \g /dev/null
select is(pg_temp.deleted(), 20, 'or none');
select throws_ok($$select gc.set_brake('manifest', share => 2)$$, '23514', null,
    'a share is not more than all');
select throws_ok('select gc.resume(allow => 1)', '22023', null,
    'an allowance is for one collection');

-- What the application deletes itself.
insert into app.file select i from generate_series(1, 500) as i;
delete from app.file where id <= 15;
select is(pg_temp.claimed(), 15::bigint, 'objects of a few rows are handed out');
select gc.release('w', array(select id from gc.tombstones)) \g /dev/null
select is(pg_temp.claimed(), 15::bigint, 'also again');
select is((select sum(handed_out) from gc.totals), 15::numeric, 'and are counted once');
truncate app.file;
select is(pg_temp.claimed(), 5::bigint, 'of a TRUNCATE as many as are left');
select is(pg_temp.claimed(), 0::bigint, 'and no more');
select is(pg_temp.paused('file'), 'deletes', 'only deletes are paused');
select matches((select paused_why from gc.status() where collection = 'file'),
    'in one hour, 20 objects .* and 480 of the next batch', 'with the reason');
insert into app.file select i from generate_series(21, 480) as i;
select is((select count(*) from gc.tombstones where worker is null), 20::bigint,
    'rows that come back take their tombstones away');
delete from app.file;
select gc.resume('file', allow => 400) \g /dev/null
select is(pg_temp.claimed(), 400::bigint, 'a person lets some through');
select gc.resume('file', allow => 400) \g /dev/null
select is(pg_temp.claimed(), 80::bigint, 'and the rest');
select is_empty($$select * from gc.tombstones where worker is null and key::integer > 20$$,
    'nothing is left');

select * from finish();
rollback;
