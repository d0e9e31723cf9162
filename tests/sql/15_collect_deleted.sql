-- collect => 'deleted': rows are never garbage; the object of a row that the application deletes goes.
begin;
select plan(55);

set local client_min_messages = error;
create schema app;
update gc.settings set undo = '0', jitter = '0';
create table app.file (id integer primary key, path text not null, bytes bigint);
create table app.post (id integer primary key, file integer references app.file on delete cascade);
create index file_url on app.file (('s3://files/' || path));

-- What is tracked.
select results_eq(
    $$select reference, role, note from gc.track('app.file', url => $u$'s3://files/' || path$u$,
        size => 'bytes', collect => 'deleted')$$,
    $$values ('app.post(file)', 'ignored', null::text)$$,
    'a reference is ignored, and needs no index');
select is((select problem from gc.collections), null, 'nothing has to keep the rows');
select is(
    (select array_agg(t.tgname::text order by t.tgname) from pg_trigger as t
        where t.tgrelid = 'app.file'::regclass and not t.tgisinternal),
    '{gc_file_admits_insert,gc_file_after_delete,gc_file_after_update,gc_file_before_truncate}',
    'the table has its triggers');
select is_empty(
    $$select from pg_trigger as t
        where t.tgrelid = 'app.post'::regclass and not t.tgisinternal$$,
    'what refers to it has none');
select hasnt_function('gc', 'file_review', 'there is no code that could delete a row');
select hasnt_function('gc', 'file_scan', 'nor code that looks for garbage');
select is(replace(gc._track_sql(c), '"', ''), $$select * from gc.track('app.file', url => '''s3://files/'' || path', $$
    || $$size => 'bytes', collect => 'deleted');$$, 'the definition can be written down')
from gc.collections as c;
select is((select count(*) from gc._known_events()), 0::bigint, 'it has no events');

-- Rows come, and nothing happens to them.
insert into app.file values (1, 'a', 10), (2, 'b', 20), (3, 'c', 30), (4, 'd', 40), (5, 'a', 10);
insert into app.post values (1, 1), (2, 2);
delete from app.post where id = 2;
update app.file set bytes = 21 where id = 2;
select is((select count(*) from gc.file_review_queue), 0::bigint, 'nothing is ever queued');
select is(gc.scan('file'), 0, 'a scan finds nothing, and says that it is at its end');
select is((select count(*) from gc.review() where deleted > 0), 0::bigint, 'a review deletes nothing');
select is((select count(*) from app.file), 5::bigint, 'rows that nothing refers to stay');
select is(gc.next_due() - now(), interval '1 minute', 'nobody has to come for it');

-- Rows go.
delete from app.file where id = 1;
select results_eq('select key, url, size, event from gc.tombstones',
    $$values ('1', 's3://files/a', 10::bigint, null::text)$$,
    'a row that is deleted leaves a tombstone');
select is_empty('select from app.post', 'ON DELETE decides about what refers to it');
update app.file set path = 'c2' where id = 3;
select is((select url from gc.tombstones order by id desc limit 1), 's3://files/c',
    'an url that is changed leaves one for the old url');
select is((select array_agg(url order by url) from gc.claim('w')), '{s3://files/c}',
    'an object that another row has is not handed out');
select throws_ok($$insert into app.file values (6, 'c', 1)$$, 'ZG001',
    'the object of this row is being deleted', 'an object that is being deleted is refused');
select throws_ok($$update app.file set path = 'c' where id = 2$$, 'ZG001',
    'the object of this row is being deleted', 'by an update as well');
select lives_ok($$insert into app.file values (6, 'e', 1)$$, 'another one is not');
select is(gc.confirm('w', array(select id from gc.tombstones where worker = 'w')), 1,
    'the worker confirms');
truncate app.file cascade;
select is((select count(*) from gc.tombstones where worker is null), 5::bigint,
    'a TRUNCATE leaves a tombstone for each object');
select is((select deleted_total || ' ' || bytes_total from gc.status()), '1 30',
    'status counts objects and bytes');
select is((select count(*) from gc.review() where deleted + failed > 0), 0::bigint,
    'reviews have nothing to do with it');

-- The gate.
select ok(gc._gate() > now(), 'a claim has opened the gate');
select ok(gc._gate() < clock_timestamp() + interval '6 minutes', 'for as long as its lease');
create function pg_temp.close() returns void language sql as $$
    select setval('gc.deleting_until', 0, false)
$$;
delete from gc.tombstones;
delete from gc.deleted_objects;
insert into app.file values (1, 'a', 1);
delete from app.file;
select pg_temp.close() \g /dev/null
insert into app.file values (2, 'a', 1);
select is((select count(*) from gc.tombstones), 1::bigint,
    'while it is closed an insert looks at no tombstone');
select is((select count(*) from gc.claim('w')), 0::bigint, 'but the claim finds the row');
select is((select count(*) from gc.tombstones), 0::bigint, 'and drops the tombstone');
select ok(gc._gate() > now(), 'the gate is open before anything is handed out');
select is((select last_value::text::xid8 from gc.deleting_after)
    >= pg_current_xact_id(), true, 'and what was writing then is known');
select setval('gc.deleting_after', 1, false) \g /dev/null
select gc._open_gate(now() + interval '1 minute') \g /dev/null
select is((select last_value::text::xid8 from gc.deleting_after) >= pg_current_xact_id(), true,
    'also where whoever opened it was cancelled before that was noted');
select pg_temp.close() \g /dev/null
select is((select count(*) from gc.claim('w')), 0::bigint, 'a claim that finds nothing');
select is(gc._gate(), null, 'leaves it closed');
select gc._open_gate(now() + interval '3 hours') \g /dev/null
select gc._open_gate(now() + interval '1 hour') \g /dev/null
select ok(gc._gate() > now() + interval '2 hours', 'a shorter lease does not close it earlier');
select gc._tend_gate(), gc._tend_gate() \g /dev/null
select ok(gc._gate() > now() + interval '2 hours', 'nor does anything else');
select pg_temp.close() \g /dev/null
select gc._open_gate(now() - interval '1 minute') \g /dev/null
select gc._tend_gate() \g /dev/null
select ok(gc._gate() < now(), 'when its time is over, who is running is noted first');
update gc.gate_waits set running = '{}';
select gc._tend_gate() \g /dev/null
select is(gc._gate(), null, 'and when they have ended, it is closed');
select pg_temp.close() \g /dev/null
update gc.settings set strict_uploads = true;
select throws_ok($$insert into app.file values (8, 'x', 1)$$, 'ZG002',
    'the object of this row was not announced', 'strict uploads are strict here as well');
update gc.settings set strict_uploads = false;
select lives_ok($$insert into app.file values (8, 'x', 1)$$, 'until they are not any more');
select count(*) from gc.review() \g /dev/null
select ok(gc._gate() between now() + interval '23 hours' and now() + interval '25 hours',
    'and then the gate is not open for ever');

-- A table that has changed.
alter table app.file rename column path to place;
delete from app.file where id = 2;
select is((select count(*) from gc.unread_rows), 1::bigint, 'a row is kept whole');
alter table app.file rename column place to path;
select count(*) from gc.review() \g /dev/null
select is((select array_agg(url) from gc.tombstones), '{s3://files/a}', 'a review works it out');
select is((select count(*) from gc.scan_requests), 0::bigint, 'and forgets the scan');

-- Changing one's mind.
insert into app.file values (9, 'i', 1);
select throws_matching($$select gc.track('app.file', url => 'path')$$, 'without an index',
    'garbage needs an index on what refers to it');
create index on app.post (file);
select is((select role from gc.track('app.file', url => $u$'s3://files/' || path$u$)), 'keeps',
    'then the reference keeps');
select is((select reason from gc.scan_requests), 'more of its rows can be garbage from now on',
    'rows that nobody has queued are looked for');
insert into app.file values (10, 'j', 1);
select is((select count(*) from gc.file_review_queue), 1::bigint, 'new ones are queued');
select is((select role from gc.track('app.file', url => $u$'s3://files/' || path$u$,
    collect => 'deleted')), 'ignored', 'and back');
select is((select count(*) from gc.file_review_queue), 0::bigint, 'no entry is left behind');
insert into app.file values (11, 'k', 1);
select is((select count(*) from gc.file_review_queue), 0::bigint, 'and none comes');

-- What is refused.
select throws_ok($$select gc.track('app.file', collect => 'everything')$$, '22023',
    'a collection cannot collect "everything"', 'only garbage or deleted rows are collected');
select throws_ok(
    $$select gc.track('app.file', url => 'path', condition => 'true', collect => 'deleted')$$,
    '22023', 'collect => ''deleted'' goes with neither condition nor owned',
    'a condition says what is garbage, and nothing is');
select throws_ok(
    $$select gc.track('app.file', url => 'path', owned => '{post}', collect => 'deleted')$$,
    '22023', 'collect => ''deleted'' goes with neither condition nor owned',
    'and nothing is owned');
select throws_ok(
    $$select gc.track('app.file', url => 'path', events => '{"file_insert": "x"}',
        collect => 'deleted')$$,
    '22023', 'the event "file_insert" of "file" cannot be named so', 'there are no events');

select * from finish();
rollback;
