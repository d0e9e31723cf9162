-- Failures: one bad row costs one bad row, and waits longer each time.
begin;
select plan(62);

set local client_min_messages = warning;
create schema app;
update gc.settings set jitter = '0', undo = '0';
insert into gc.review_after_defaults values
    ('file_insert', '0'), ('post_delete', '0'), ('file_scan', '0'), ('folder_insert', '0');
create table app.file (id int primary key, path text);
create table app.post (id int primary key, file int references app.file);
create index on app.post (file);
create table app.part (id int primary key, file int not null references app.file);
create index on app.part (file);
create table app.use (part int references app.part);
select count(*) as ignored from gc.track('app.file', url => '''mem:///'' || id',
    owned => '{part}') \gset
create function app.review(name text default 'file') returns text language sql as $$
    select format('%s reviewed, %s kept, %s deleted, %s failed', reviewed, kept, deleted, failed)
    from gc.review() where collection = name
$$;
-- A trigger of the application's own: how it acts is written in the row.
create function app.act() returns trigger language plpgsql as $$
begin
    if old.path like 'raise %' then
        raise 'the application says no to %', old.id using errcode = substr(old.path, 7);
    elsif old.path = 'divide' then
        perform 1 / (old.id - old.id);
    elsif old.path = 'null' then
        return null;
    end if;
    return old;
end;
$$;
create trigger act before delete on app.file for each row execute function app.act();

-- A user's trigger that raises.
insert into app.file values (1, 'good'), (2, 'raise P0001'), (3, 'good'), (4, 'kept'), (5, 'good');
insert into app.post values (4, 4);
select is(app.review(), '5 reviewed, 1 kept, 3 deleted, 1 failed',
    'a row whose trigger raises fails, and the others are reviewed');
select results_eq('select id from app.file order by 1', 'values (2), (4)',
    'and the others that are garbage are deleted');
select results_eq('select key from gc.tombstones order by 1', $$values ('1'), ('3'), ('5')$$,
    'each with one tombstone');
select results_eq(
    'select id, review_count, review_after - now(), last_error from gc.file_review_queue',
    $$values (2, 1, interval '5 minutes', 'the application says no to 2')$$,
    'what failed waits 5 minutes, and its error is kept');
select results_eq('select queued, due, failing, last_error from gc.status()',
    $$values (1::bigint, 0::bigint, 1::bigint, 'the application says no to 2')$$,
    'status tells of it');
select is(app.review(), '0 reviewed, 0 kept, 0 deleted, 0 failed', 'it is not tried before');
select results_eq('select rows from gc.daily_totals', 'values (3::bigint)',
    'the totals count what was deleted once');

-- Backoff.
create function app.waits(failures int) returns interval language plpgsql as $$
begin
    update gc.file_review_queue
    set review_count = failures, review_after = now() - interval '3 days';
    perform app.review();
    return (
        select review_after - now() from gc.file_review_queue where review_count = failures + 1
    );
end;
$$;
select is(app.waits(0), '5 minutes', 'the first failure costs 5 minutes, counted from now');
select is(app.waits(1), '10 minutes', 'the second 10');
select is(app.waits(2), '20 minutes', 'the third 20');
select is(app.waits(3), '40 minutes', 'the fourth 40');
select is(app.waits(4), '80 minutes', 'the fifth 80');
select is(app.waits(5), '160 minutes', 'the sixth 160');
select is(app.waits(6), '320 minutes', 'the seventh 320');
select is(app.waits(7), '640 minutes', 'the eighth 640');
select is(app.waits(8), '1280 minutes', 'the ninth 1280');
select is(app.waits(9), '24 hours', 'the tenth a day, for that is the most');
select is(app.waits(31), '24 hours', 'and so it stays');
select is(app.waits(100000), '24 hours', 'however often it fails');
update gc.settings set backoff = '1 second', backoff_limit = '3 seconds';
select is(app.waits(1), '2 seconds', 'the first wait can be set');
select is(app.waits(2), '3 seconds', 'the longest wait can be set');
update gc.settings set backoff = '5 minutes', backoff_limit = '24 hours';
select is(app.review(), '0 reviewed, 0 kept, 0 deleted, 0 failed',
    'what was 3 days overdue is not due again at once');
update app.file set path = 'good' where id = 2;
update gc.file_review_queue set review_after = now();
select is(app.review(), '1 reviewed, 0 kept, 1 deleted, 0 failed',
    'what failed before is deleted when its reason is gone');
select is_empty('select * from gc.file_review_queue', 'and leaves the queue');
select results_eq('select failing, last_error from gc.status()', 'values (0::bigint, null::text)',
    'and status has nothing to tell');

-- The same for every way to fail.
insert into app.file values (10, 'good'), (11, 'divide'), (12, 'null'), (13, 'raise 40P01'),
    (14, 'raise 55P03'), (15, 'raise 40001'), (16, 'raise ZG003'), (17, 'owns'), (18, 'good'),
    (19, 'raise 23503');
insert into app.part values (1, 17), (2, 17), (3, 18);
insert into app.use values (2);
select is(app.review(), '10 reviewed, 0 kept, 2 deleted, 8 failed',
    'of a batch that fails in many ways the good rows are deleted');
select results_eq('select id from app.file where path = ''good''', 'select 1 where false',
    'all of them');
select results_eq(
    'select id from gc.file_review_queue where review_count = 1 and last_error is not null
        and review_after = now() + interval ''5 minutes'' order by id',
    'values (11), (12), (13), (14), (15), (16), (17), (19)', 'all others are put off');
create function app.error(id int) returns text language sql as $$
    select last_error from gc.file_review_queue as q where q.id = $1
$$;
select matches(app.error(11), 'division by zero', 'an error inside the trigger is recorded');
select matches(app.error(12), 'kept 1 rows? from being deleted',
    'a trigger that returns null is found out');
select matches(app.error(13), 'says no to 13', 'a deadlock is recorded');
select matches(app.error(14), 'says no to 14', 'a lock timeout is recorded');
select matches(app.error(15), 'says no to 15', 'a serialization failure is recorded');
select matches(app.error(16), 'says no to 16', 'an error that looks like our own is recorded');
select is((select why from gc.status()), null, 'and does not stop the collection');
select matches(app.error(17), 'use_part_fkey',
    'an owned row that something else restricts is recorded');
select results_eq('select id from app.part order by 1', 'values (1), (2)',
    'and of what it owns nothing is deleted');
select is((select count(*) from gc.tombstones
        where key in ('11', '12', '13', '14', '15', '16', '17', '19')), 0::bigint,
    'a row that stays has no tombstone');
delete from app.use;
update app.file set path = 'good';
update gc.file_review_queue set review_after = now();
select is(app.review(), '8 reviewed, 0 kept, 8 deleted, 0 failed',
    'all of them go when their reasons are gone');

-- An aborted statement: a timeout that the server or a person sets.
insert into app.file values (20, 'good'), (21, 'raise 57014'), (22, 'good');
select is(failed > 0, true, 'a review whose statement is cancelled is recorded as failed')
from gc.review();
select matches(app.error(21), 'says no to 21', 'with its error');
update gc.file_review_queue set review_after = now() - interval '1 minute' * id;
select count(*) as ignored from gc.review() \gset
update gc.file_review_queue set review_after = now() where id <> 21;
select count(*) as ignored from gc.review() \gset
select results_eq('select id from app.file order by 1', 'values (4), (21)',
    'the others of its batch are deleted when they are tried again');
alter table app.file disable trigger act;
delete from app.post;
delete from app.file;
delete from gc.file_review_queue;
alter table app.file enable trigger act;

-- What is known of failures is carried on.
insert into app.file values (30, 'raise P0001');
update gc.file_review_queue set review_count = 3, last_error = 'before',
    review_after = now() - interval '1 hour';
insert into gc.file_review_queue (id, event, review_after) values (30, 'later', now());
select is(app.review(), '1 reviewed, 0 kept, 0 deleted, 1 failed',
    'a later entry of a failed row is reviewed once');
select results_eq('select event, review_count, review_after - now() from gc.file_review_queue',
    $$values ('later', 4, interval '40 minutes')$$,
    'and goes on counting where the earlier one was');
insert into app.post values (1, 30);
delete from app.post;
select is(app.review(), '1 reviewed, 0 kept, 0 deleted, 1 failed',
    'a new event of a row that waits after a failure is reviewed when it is due');
select results_eq(
    'select event, review_count, review_after - now() from gc.file_review_queue
        order by entry desc limit 1',
    $$values ('post_delete', 5, interval '80 minutes')$$,
    'and goes on counting too, though the earlier entry was not due');
update app.file set path = 'good';
update gc.file_review_queue set review_after = now();
select is(app.review(), '1 reviewed, 0 kept, 1 deleted, 0 failed', 'it can still be deleted');
select is_empty('select * from gc.file_review_queue', 'and nothing of it is left in the queue');

-- Many bad rows do not stand in the way of good ones.
insert into app.file select i, 'raise P0001' from generate_series(100, 119) as i;
select count(*) as ignored from gc.review() \gset
update gc.file_review_queue set review_after = now() - interval '1 day';
insert into app.file values (200, 'good');
select results_eq('select deleted, failed from gc.review(5)', 'values (1, 5)',
    'what failed before is not in the batch of what did not');
delete from gc.file_review_queue;
alter table app.file disable trigger act;
delete from app.file;
alter table app.file enable trigger act;

-- A collection that fails does not stop another.
create table app.folder (id int primary key);
select count(*) as ignored from gc.track('app.folder', condition => 'true') \gset
insert into app.folder values (1), (2);
insert into app.file values (1, 'raise P0001');
select results_eq('select collection, deleted, failed from gc.review() order by 1',
    $$values ('file', 0, 1), ('folder', 2, 0)$$,
    'a failure in one collection does not stop another');
select is(current_setting('blobgc.reviewing', true) in (select name from gc.collections), false,
    'after a failure nothing is taken for a review''s own deletion');
alter table app.file disable trigger act;
delete from gc.tombstones;
delete from app.file;
select is((select event from gc.tombstones), null,
    'a row that the application deletes has no event');
create rule nothing as on delete to app.folder do instead nothing;
insert into app.folder values (3);
select is(app.review('folder'), '1 reviewed, 0 kept, 0 deleted, 1 failed',
    'a rule that keeps rows from being deleted is found out');
select is_empty($$select * from gc.deletion_log where key = '3'$$, 'and nothing of it is logged');
drop rule nothing on app.folder;

-- A deferred constraint of somebody else.
create table app.drawer (id int primary key);
create table app.sheet (id int primary key, drawer int references app.drawer);
create table app.note (sheet int references app.sheet deferrable initially deferred);
create index on app.sheet (drawer);
select count(*) as ignored from gc.track('app.drawer', owned => '{sheet}', condition => 'true') \gset
insert into gc.review_after_defaults values ('drawer_insert', '0');
insert into app.drawer values (1), (2);
insert into app.sheet values (1, 1), (2, 2);
insert into app.note values (1);
set constraints all immediate;
set constraints all deferred;
select is(app.review('drawer'), '2 reviewed, 0 kept, 1 deleted, 1 failed',
    'an owned row that a deferred constraint restricts fails by itself, not the commit');
select results_eq('select id from app.sheet', 'values (1)', 'and is still there');
select lives_ok('set constraints all immediate', 'so that the transaction can be committed');

-- Row level security must not hide a reference. The owner of blobgc is no superuser here.
drop extension blobgc cascade;
create role blobgc_test_owner;
create role blobgc_test_app;
select format('grant create on database %I to blobgc_test_owner', current_database()) \gexec
grant usage on schema public to blobgc_test_owner;
set local role blobgc_test_owner;
create extension blobgc;
create schema shop;
create table shop.file (id int primary key);
create table shop.post (file int references shop.file, tenant text);
create index on shop.post (file);
select count(*) as ignored from gc.track('shop.file') \gset
update gc.settings set jitter = '0', undo = '0';
insert into gc.review_after_defaults values ('file_insert', '0'), ('file_scan', '0');
insert into shop.file values (1), (2);
insert into shop.post values (1, 'somebody');
alter table shop.post enable row level security;
alter table shop.post force row level security;
create policy tenant on shop.post using (tenant = current_user);
set local row_security = on;
select count(*) as hidden from shop.post \gset
reset row_security;
create temporary table answers as select * from gc.review();
create temporary table states as select * from gc.status();
grant select on answers, states to public;
reset role;
select is(:hidden, 0, 'the owner of blobgc does not see the reference');
select results_eq('select id from shop.file order by 1', 'values (1), (2)',
    'but nothing is deleted while a policy hides rows');
select results_eq('select kept, deleted from answers', 'values (0, 0)', 'and nothing is decided');
select matches(coalesce(why, last_error), 'row-level security|policy', 'and status says why')
from states;
alter table shop.post no force row level security;
set local role blobgc_test_owner;
update gc.file_review_queue set review_after = now();
create temporary table answers_2 as select * from gc.review();
grant select on answers_2 to public;
reset role;
select results_eq('select kept, deleted from answers_2', 'values (1, 1)',
    'reviews go on when the owner of blobgc is not under the policy');

select * from finish();
rollback;
