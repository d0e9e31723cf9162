-- Pauses: reviews and deletes stop at their next batch, tracking goes on.
begin;
set local client_min_messages = error;
select plan(48);

create schema app;
create table app.blob (id integer primary key);
create table app.layer (blob integer references app.blob);
create index on app.layer (blob);
create table app.manifest (id integer primary key);
create table app.tag (manifest integer references app.manifest);
create index on app.tag (manifest);
update gc.settings set undo = '0', jitter = '0', max_sleep = '1 hour';
select count(*) from gc.track('app.blob', url => $$'s3://bucket/' || id$$) \g /dev/null
select count(*) from gc.track('app.manifest', url => $$'s3://other/' || id$$) \g /dev/null
select gc.set_delay(e, '0')
from unnest(array['blob_insert', 'layer_delete', 'manifest_insert', 'blob_scan']) as e \g /dev/null

create function pg_temp.paused(name text) returns text language sql as $$
    select paused from gc.status() where collection = name
$$;
create function pg_temp.reviewed() returns text language sql as $$
    select string_agg(collection || ' ' || reviewed, ', ' order by collection) from gc.review()
$$;
create function pg_temp.metric(name text) returns double precision language sql as $$
    select value from gc.metrics as m
    where m.name = 'blobgc_collection_paused' and m.labels = format('collection="%s"', metric.name)
$$;

select is(pg_temp.paused('blob'), null, 'at first nothing is paused');
select is(pg_temp.metric('blob'), 0::float8, 'the metric says so');
insert into app.blob values (1), (2);
insert into app.manifest values (1);

-- Pausing manifests while blobs go on.
select lives_ok($$select gc.pause('manifest', 'a migration')$$, 'a collection is paused');
select is(pg_temp.paused('manifest'), 'reviews, deletes', 'both of what it does is');
select results_eq(
    $$select paused_by, paused_why, paused_until from gc.status() where collection = 'manifest'$$,
    $$select current_setting('session_authorization'), 'a migration', 'infinity'::timestamptz$$,
    'the status says by whom, why, and until when');
select is(pg_temp.metric('manifest'), 1::float8, 'and the metric that it is');
select is(pg_temp.reviewed(), 'blob 2, manifest 0', 'it is not reviewed, and the other is');
select is((select count(*) from app.manifest), 1::bigint, 'its row is there');
insert into app.manifest values (2);
select is((select count(*) from gc.manifest_review_queue), 2::bigint, 'tracking goes on');
select throws_ok('select gc.manifest_review()', '55000',
    'reviews of the collection "manifest" are paused', 'its own review function is refused');
delete from app.manifest where id = 2;
select set_eq($$select key, url from gc.claim('w')$$,
    $$values ('1', 's3://bucket/1'), ('2', 's3://bucket/2')$$, 'objects of others are handed out');
select is_empty($$select * from gc.claim('w')$$, 'those of a paused collection are not');
select is(gc.next_due(), least(now() + interval '1 hour', (select min(due_at) from gc.tombstones
    where collection = 'blob')), 'nobody is woken for what is paused');
select is(gc.resume('manifest'), 2, 'it is resumed');
select is(pg_temp.paused('manifest'), null, 'and is not paused any more');
select results_eq($$select url from gc.claim('w')$$, array['s3://other/2'], 'its object is due');
select is(pg_temp.reviewed(), 'blob 0, manifest 2', 'and its reviews are');

-- One of the two.
insert into app.blob values (3);
select gc.pause('blob', what => 'reviews') \g /dev/null
select is(pg_temp.paused('blob'), 'reviews', 'reviews alone');
delete from app.blob where id = 3;
select is(pg_temp.reviewed(), 'blob 0, manifest 0', 'no row is reviewed');
select is((select count(*) from gc.claim('w', prefixes => '{s3://bucket/}')), 1::bigint,
    'objects are handed out');
select is(gc.resume('blob', 'deletes'), 0, 'what is not paused cannot be resumed');
select is(gc.resume('blob', 'reviews'), 1, 'what is can');
insert into app.blob values (4);
select gc.pause('blob', what => 'deletes') \g /dev/null
select is(pg_temp.paused('blob'), 'deletes', 'deletes alone');
select is(pg_temp.reviewed(), 'blob 2, manifest 0', 'rows are reviewed');
select is_empty($$select * from gc.claim('w', prefixes => '{s3://bucket/}')$$,
    'no object is handed out');
select gc.resume('blob') \g /dev/null
select is((select count(*) from gc.claim('v', prefixes => '{s3://bucket/}')), 1::bigint,
    'until it is resumed');

-- What is leased may be confirmed, and a scan does not go on.
select gc.pause('blob') \g /dev/null
select is(gc.confirm('v', array(select id from gc.tombstones where worker = 'v')), 1,
    'what was leased before is confirmed');
delete from gc.tombstones;
insert into app.blob values (5);
delete from gc.blob_review_queue;
truncate app.layer;
insert into app.layer values (5);
truncate app.layer;
select count(*) from gc.review() \g /dev/null
select is((select count(*) from gc.blob_review_queue), 0::bigint, 'no scan goes on');
select is(gc.next_due() > now(), true, 'and nobody is woken for it');
select gc.resume('blob') \g /dev/null
select is(gc.next_due() <= now(), true, 'when it is resumed, there is work');
select count(*) from gc.review() \g /dev/null
select is((select count(*) from gc.blob_review_queue), 1::bigint, 'the scan goes on');
select count(*) from gc.review() \g /dev/null

-- An end.
delete from gc.tombstones;
insert into app.blob values (6);
select gc.pause('blob', until => clock_timestamp() + interval '1 day') \g /dev/null
select is(gc.next_due(), now() + interval '1 hour', 'the end is further away than a sleep');
update gc.pauses set until = now() + interval '10 minutes';
select is(gc.next_due(), now() + interval '10 minutes', 'when a pause ends, there is work');
update gc.pauses set until = now();
select is(pg_temp.paused('blob'), null, 'a pause that is over is none');
select is(pg_temp.reviewed(), 'blob 1, manifest 0', 'reviews go on by themselves');
select is_empty('select * from gc.pauses', 'and its rows are gone');
select throws_ok($$select gc.pause(until => now() - interval '1 day')$$, '22023', null,
    'one that is over before it begins is refused');
select throws_ok($$select gc.pause(what => 'everything')$$, '22023', null,
    'so is what cannot be paused');
select throws_ok($$select gc.pause('nothing')$$, '42704', null, 'and an unknown collection');

-- All of them, and one of them beside that.
insert into app.blob values (7);
insert into app.manifest values (7);
select gc.pause(reason => 'the store moves') \g /dev/null
select gc.pause('blob', 'also this', what => 'reviews') \g /dev/null
select is(pg_temp.reviewed(), 'blob 0, manifest 0', 'all are paused');
select is((select paused_why from gc.status() where collection = 'blob'),
    'also this; the store moves', 'the status knows both reasons');
select is(gc.resume('blob'), 1, 'one pause ends');
select is(pg_temp.reviewed(), 'blob 0, manifest 0', 'and the other holds');
select gc.pause('blob', 'for good') \g /dev/null
select is(gc.resume(), 2, 'the pause of all ends');
select is(pg_temp.reviewed(), 'blob 0, manifest 1', 'and that of one collection stays');
select gc.pause('blob', 'a better reason') \g /dev/null
select results_eq('select distinct reason, count(*) over () from gc.pauses',
    $$values ('a better reason', 2::bigint)$$, 'pausing again changes it');

-- The log.
select results_eq(
    $$select operation, collection, what, reason from gc.operations
        where collection = 'manifest' order by id$$,
    $$values ('pause', 'manifest', 'reviews', 'a migration'),
        ('pause', 'manifest', 'deletes', 'a migration'),
        ('resume', 'manifest', 'reviews', null), ('resume', 'manifest', 'deletes', null)$$,
    'all that was done is in the log');
select is_empty($$select * from gc.operations where done_by <> session_user$$, 'with its author');

select * from finish();
rollback;
