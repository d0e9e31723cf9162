-- Tombstones: whoever takes a row away, or changes its url, leaves one for the object.
begin;
set local client_min_messages = error;
select plan(61);

create schema app;
create table app.blob (id bigint primary key, name text, bytes bigint, version bigint);
create table app.post (id bigint primary key, blob bigint references app.blob);
create index on app.post (blob);
create table app.album (id bigint primary key);
create table app.picture (
    id bigint primary key,
    album bigint references app.album on delete cascade
);
create table app.part (id bigint primary key, name text) partition by range (id);
create table app.part_0 partition of app.part for values from (0) to (100);
create table app.part_1 partition of app.part for values from (100) to (200)
    partition by range (id);
create table app.part_1_0 partition of app.part_1 for values from (100) to (150);
create table app.part_1_1 partition of app.part_1 for values from (150) to (200);
create table app.shared (id bigint primary key, path text);
create index on app.shared (path);
create table app.versioned (id bigint primary key, version bigint);
create table app.slow (id bigint primary key);
create table app.plain (id bigint primary key, title text, bytes bigint);

update gc.settings set jitter = '0', undo = '0';
insert into gc.review_after_defaults
select e, '0' from unnest(array['blob_insert', 'blob_update', 'post_delete', 'plain_insert',
    'shared_insert', 'slow_insert', 'part_insert']) as e;

select count(*) from gc.track('app.blob', url => $$'gs://bucket/' || id || '-' || name$$,
    size => 'bytes', label => 'name', generation => 'version') \g /dev/null
select count(*) from gc.track('app.picture', url => $$'gs://picture/' || id$$,
    condition => 'true') \g /dev/null
select count(*) from gc.track('app.part', url => $$'gs://part/' || id || name$$,
    condition => 'true') \g /dev/null
select count(*) from gc.track('app.shared', url => 'path', condition => 'true') \g /dev/null
select count(*) from gc.track(
    'app.versioned', url => $$'gs://versioned/' || id$$, generation => 'version',
    condition => 'true') \g /dev/null
select count(*) from gc.track(
    'app.slow', url => $$'gs://slow/' || id$$, undo => '2 hours', condition => 'true') \g /dev/null
select count(*) from gc.track('app.plain', label => 'title', size => 'bytes',
    condition => 'true') \g /dev/null

create temporary view tombstone as
select collection, key, label, url, generation, size, event from gc.tombstones order by id;

-- What a runner in another transaction sees: there, every older transaction has ended.
create function pg_temp.claimed(batch integer default 1000)
    returns setof text
    language plpgsql
as $$
begin
    update gc.tombstones as t set wait_for = '0' where t.wait_for is null;
    return query select c.url from gc.claim('worker', batch) as c order by c.url;
end;
$$;
create function pg_temp.forget() returns void language sql as 'delete from gc.tombstones';


-- By a review.
insert into app.blob values (1, 'a', 100, 7);
select is_empty('select * from tombstone', 'an insert leaves no tombstone');
select results_eq(
    $$select deleted, bytes from gc.review() where collection = 'blob'$$,
    $$values (1, 100::bigint)$$,
    'a review deletes a row that nothing keeps');
select results_eq(
    'table tombstone',
    $$values ('blob', '1', 'a', 'gs://bucket/1-a', '7', 100::bigint, 'blob_insert')$$,
    'a review leaves a tombstone with key, label, url, generation, size and event');
select results_eq(
    'select created_at, due_at, worker, failures, last_error from gc.tombstones',
    'select now(), now(), null::text, 0, null::text',
    'a tombstone is due at once, and nobody has it');
select pg_temp.forget();

insert into app.blob values (2, 'b', 200, null);
insert into app.post values (1, 2);
select count(*) from gc.review() \g /dev/null
delete from app.post;
select count(*) from gc.review() \g /dev/null
select results_eq(
    'table tombstone',
    $$values ('blob', '2', 'b', 'gs://bucket/2-b', null, 200::bigint, 'post_delete')$$,
    'the event is the one of the latest entry: the reference that went');
select pg_temp.forget();

insert into app.blob values (2, 'b', 200, null);
insert into app.post values (1, 2);
select count(*) from gc.review() \g /dev/null
delete from app.post;
insert into app.blob values (3, 'c', 300, null), (4, 'd', 400, null);
select results_eq(
    $$select deleted, bytes from gc.review() where collection = 'blob'$$,
    $$values (3, 900::bigint)$$,
    'one review deletes what is garbage for several reasons');
select results_eq(
    'select key, event from tombstone order by key',
    $$values ('2', 'post_delete'), ('3', 'blob_insert'), ('4', 'blob_insert')$$,
    'and each tombstone has its own');
select pg_temp.forget();

-- By the application.
insert into app.blob values (3, 'c', 300, 9), (4, 'd', null, null);
delete from app.blob where id in (3, 4);
select results_eq(
    'table tombstone',
    $$values
        ('blob', '3', 'c', 'gs://bucket/3-c', '9', 300::bigint, null),
        ('blob', '4', 'd', 'gs://bucket/4-d', null, null, null)$$,
    'a DELETE leaves a tombstone for each row, without an event');
select pg_temp.forget();

insert into app.blob values (5, 'e', 500, null);
savepoint before_delete;
delete from app.blob;
select is((select count(*) from tombstone), 1::bigint, 'a DELETE shows its tombstone at once');
rollback to before_delete;
select is_empty('table tombstone', 'a DELETE that is rolled back takes its tombstone along');
delete from app.blob where id = 999;
select is_empty('table tombstone', 'a DELETE of no row leaves nothing');

-- By an update of what the url is made of.
update app.blob set bytes = 555 where id = 5;
select is_empty('table tombstone', 'an UPDATE that changes no url leaves nothing');
update app.blob set name = 'ee', bytes = 556 where id = 5;
select results_eq(
    'table tombstone',
    $$values ('blob', '5', 'e', 'gs://bucket/5-e', null, 555::bigint, null)$$,
    'an UPDATE of the url leaves a tombstone for what the row was before');
select pg_temp.forget();
update app.blob set id = 6 where id = 5;
select results_eq(
    'table tombstone',
    $$values ('blob', '5', 'ee', 'gs://bucket/5-ee', null, 556::bigint, null)$$,
    'an UPDATE of the key that is in the url leaves a tombstone for the old key');
select pg_temp.forget();
update app.blob set name = null where id = 6;
select results_eq('select url from tombstone', array['gs://bucket/6-ee'],
    'an UPDATE of the url to null leaves a tombstone');
select pg_temp.forget();
update app.blob set name = 'f' where id = 6;
select is_empty('table tombstone', 'an UPDATE of a null url leaves nothing');
insert into app.blob values (7, 'g', 7, null);
update app.blob set name = upper(name) where id in (6, 7);
select set_eq('select url from tombstone', array['gs://bucket/6-f', 'gs://bucket/7-g'],
    'an UPDATE of several rows leaves a tombstone for each');
select pg_temp.forget();
insert into app.blob values (7, 'x', 8, null)
on conflict (id) do update set name = excluded.name, bytes = excluded.bytes;
select results_eq('select url, size from tombstone', $$values ('gs://bucket/7-G', 7::bigint)$$,
    'an upsert leaves a tombstone for what it replaces');
select pg_temp.forget();

-- By a cascade.
insert into app.album values (1), (2);
insert into app.picture values (11, 1), (12, 1), (13, 2);
delete from app.album where id = 1;
select set_eq('select url from tombstone', array['gs://picture/11', 'gs://picture/12'],
    'rows that go by ON DELETE CASCADE leave tombstones');
select is((select count(event) from tombstone), 0::bigint, 'a cascade is no event of a review');
select pg_temp.forget();
truncate app.album cascade;
select set_eq('select url from tombstone', array['gs://picture/13'],
    'rows that go by TRUNCATE … CASCADE leave tombstones');
select pg_temp.forget();

-- By TRUNCATE.
truncate app.blob cascade;
select results_eq(
    $$select key, label, url, generation, size, event from tombstone order by key$$,
    $$values
        ('6', 'F', 'gs://bucket/6-F', null::text, 556::bigint, null::text),
        ('7', 'x', 'gs://bucket/7-x', null, 8, null)$$,
    'TRUNCATE leaves a tombstone for each row');
select pg_temp.forget();
truncate app.blob cascade;
select is_empty('table tombstone', 'TRUNCATE of an empty table leaves nothing');

insert into app.part values (1, ''), (2, null), (101, ''), (151, 'x'), (152, '');
truncate app.part_0;
select results_eq('select key, url from tombstone', $$values ('1', 'gs://part/1')$$,
    'TRUNCATE of one partition leaves tombstones for its rows, and none for a null url');
select pg_temp.forget();
truncate app.part_1_1;
select bag_eq('select url from tombstone', array['gs://part/151x', 'gs://part/152'],
    'TRUNCATE of a partition of a partition leaves one tombstone for each row');
select pg_temp.forget();
insert into app.part values (3, ''), (153, '');
truncate app.part;
select bag_eq('select url from tombstone',
    array['gs://part/3', 'gs://part/101', 'gs://part/153'],
    'TRUNCATE of a partitioned table leaves exactly one tombstone for each row');
select pg_temp.forget();
insert into app.part values (4, ''), (154, ''), (155, ''), (103, '');
delete from app.part where id in (4, 154);
delete from app.part_1_1;
update app.part set id = 5 where id = 103;
select bag_eq('select url from tombstone',
    array['gs://part/4', 'gs://part/154', 'gs://part/155', 'gs://part/103'],
    'DELETE of a table or a partition, and a move between them, leave one tombstone each');
select pg_temp.forget();
savepoint before_truncate;
truncate app.part;
rollback to before_truncate;
select is_empty('table tombstone', 'a TRUNCATE that is rolled back takes its tombstones along');

-- A row without an object.
insert into app.blob values (20, null, 1, null), (21, null, 2, null), (22, null, 3, null);
delete from app.blob where id = 20;
select count(*) from gc.review(1) \g /dev/null
truncate app.blob cascade;
select is_empty('table tombstone',
    'a row whose url is null leaves no tombstone: by DELETE, by review, by TRUNCATE');
insert into app.blob values (23, null, 4, null);
select count(*) from gc.review() \g /dev/null
select results_eq(
    $$select key, url, size, event from gc.deletion_log where key = '23'$$,
    $$values ('23', null::text, 4::bigint, 'blob_insert')$$,
    'a row whose url is null and that a review deletes is logged at once');
insert into app.plain values (1, 'one', 10), (2, 'two', 20);
delete from app.plain where id = 2;
select count(*) from gc.review() \g /dev/null
select is_empty('table tombstone', 'a collection without a url leaves no tombstones');
select results_eq(
    $$select key, label, url, size, event, worker from gc.deletion_log where collection = 'plain'$$,
    $$values ('1', 'one', null::text, 10::bigint, 'plain_insert', null::text)$$,
    'a collection without a url is logged by the review that deletes');

-- Generations.
insert into app.versioned values (1, 10);
update app.versioned set version = 11;
select results_eq('select url, generation from tombstone',
    $$values ('gs://versioned/1', '10')$$,
    'an UPDATE of the generation alone leaves a tombstone for the old one');
select results_eq('select pg_temp.claimed()', array['gs://versioned/1'],
    'the old generation is handed out although a row has the same url in a newer one');
select pg_temp.forget();
delete from app.versioned;
insert into app.versioned values (1, 12);
select results_eq('select generation from tombstone', array['11'],
    'an insert of another generation leaves the tombstone of an older one alone');
delete from app.versioned;
insert into app.versioned values (1, 11);
select results_eq('select generation from tombstone', array['12'],
    'an insert of the same generation takes that tombstone back, and only that');
delete from app.versioned;
insert into app.versioned values (1, null);
select is_empty('table tombstone',
    'an insert without a generation takes every tombstone of the url back');

-- Undo.
insert into app.slow values (1), (2);
delete from app.slow;
select results_eq('select distinct due_at - created_at from gc.tombstones',
    array['2 hours'::interval], 'the undo window delays a tombstone');
select is_empty('select pg_temp.claimed()', 'nothing is claimed inside the undo window');
insert into app.slow values (2);
select results_eq('select key from tombstone', array['1'],
    'an insert inside the undo window takes the tombstone back');
update gc.tombstones set due_at = now();
select results_eq('select pg_temp.claimed()', array['gs://slow/1'],
    'after the undo window the tombstone is claimed');
select pg_temp.forget();

-- Objects that rows share.
insert into app.shared values (1, 'gs://x/1'), (2, 'gs://x/1'), (3, 'gs://x/1');
delete from app.shared where id = 1;
select is_empty('select pg_temp.claimed()', 'an object that two rows still have is not handed out');
select is_empty('table tombstone', 'the claim drops a tombstone whose url a live row has');
delete from app.shared where id = 2;
update app.shared set path = 'gs://x/2' where id = 3;
select results_eq('select pg_temp.claimed()', array['gs://x/1'],
    'the object goes once, with the last row that has it, by an UPDATE too');
select pg_temp.forget();
insert into app.shared values (4, 'gs://x/3'), (5, 'gs://x/3'), (6, 'gs://x/3');
delete from app.shared where path = 'gs://x/3';
select results_eq('select pg_temp.claimed()', array['gs://x/3'],
    'rows that go in one statement hand their object out once');
select is((select count(*) from tombstone), 1::bigint,
    'of several tombstones of one object one is left');
select pg_temp.forget();
insert into app.shared values (7, 'gs://x/7'), (8, 'gs://x/8');
update app.shared set path = case id when 7 then 'gs://x/8' else 'gs://x/7' end where id in (7, 8);
select is_empty('table tombstone', 'rows that swap their urls leave no tombstone');
truncate app.shared;
select is((select count(*) from pg_temp.claimed()), 3::bigint,
    'TRUNCATE of rows that share objects hands every object out once');
select pg_temp.forget();

-- Objects that rows of two collections share.
create table app.link (id bigint primary key, path text);
create index on app.link (path);
select count(*) from gc.track('app.link', url => 'path', condition => 'true') \g /dev/null
insert into app.shared values (9, 'gs://x/9');
insert into app.link values (1, 'gs://x/9');
delete from app.shared where id = 9;
select is_empty('select pg_temp.claimed()',
    'an object that a row of another collection has is not handed out');
delete from gc.tombstones;
delete from app.link;
select results_eq('select pg_temp.claimed()', array['gs://x/9'],
    'the object goes with the last row of whichever collection');
select pg_temp.forget();

-- Long urls and keys.
truncate app.slow;
select pg_temp.forget();
create table app.long (id text primary key, path text);
create index on app.long using hash (path);
insert into gc.review_after_defaults values ('long_insert', '0');
select count(*) from gc.track('app.long', url => 'path', condition => 'true') \g /dev/null
insert into app.long
select repeat('k', 4096), 'gs://long/' || string_agg(md5(i::text), '')
from generate_series(1, 128) as i;
select count(*) from gc.review() \g /dev/null
select results_eq(
    $$select length(key), length(url), event from tombstone$$,
    $$values (4096, 4106, 'long_insert')$$,
    'a key of 4 kB and a url of 4 kB are queued, reviewed, and buried');
select is(
    (
        select gc.confirm('worker', array_agg(t.id)) from gc.tombstones as t
        where t.url = (select pg_temp.claimed())
    ),
    1, 'a url of 4 kB is claimed and confirmed');
select is((select length(url) from gc.deletion_log where collection = 'long'), 4106,
    'a url of 4 kB is logged whole');


-- A url that changes its nature.
create table app.moved (id integer primary key, folder text not null);
create index on app.moved ((folder || '/' || id));
select count(*) from gc.track('app.moved', url => $$'gs://x/' || id$$, condition => 'true') \g /dev/null
insert into app.moved values (1, 'gs://x');
delete from app.moved;
select is((select wait_for from gc.tombstones where collection = 'moved'), '0'::xid8,
    'a tombstone whose url is made of the key waits for nobody');
select count(*) from gc.track('app.moved', url => $$folder || '/' || id$$, condition => 'true') \g /dev/null
select is((select wait_for from gc.tombstones where collection = 'moved'), null,
    'it waits again once another row could have its url');

-- Updates.
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
create table app.pic (id integer primary key, path text, note text);
select count(*) from gc.track('app.pic', url => 'path', condition => 'true') \g /dev/null
insert into app.pic select i, 'gs://pic/' || i from generate_series(1, 100) as i;
update app.pic set note = 'seen';
select is_empty('table gc.tombstones', 'an update of many rows that changes no url buries nothing');
update app.pic set path = 'gs://pic/' || 3 - id where id in (1, 2);
select results_eq('select id, path from app.pic where id < 3 order by id',
    $$values (1, 'gs://pic/2'), (2, 'gs://pic/1')$$, 'two rows swap their urls');
select is_empty('table gc.tombstones', 'and nothing is buried');
update app.pic set path = case when id = 50 then 'gs://pic/new' else path end;
select results_eq('select key, url from gc.tombstones', $$values ('50', 'gs://pic/50')$$,
    'an update of all rows that changes one url buries one object');
select is(pg_temp.handed_out(), '{gs://pic/50}', 'which is handed out');
update app.pic set path = null where id = 51;
select is(pg_temp.handed_out(), '{gs://pic/51}', 'a url that becomes null gives up its object');

select * from finish();
rollback;
