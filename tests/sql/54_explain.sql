-- Explain: why a row is there still, or where it has gone, up to a root.
begin;
set local client_min_messages = error;
select plan(60);

create schema app;
create table app.file (id integer primary key, bytes bigint, state text);
create table app.post (id integer primary key, title text);
create table app.picture (post integer references app.post, file integer references app.file);
create table app.link (id integer primary key, post integer references app.post);
create index on app.picture (post);
create index on app.picture (file);
create index on app.link (post);
update gc.settings set undo = '0', jitter = '0';
select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id$$, size => 'bytes',
    condition => $$state is distinct from 'wait'$$) \g /dev/null
select count(*) from gc.track('app.post', label => 'title', owned => '{picture}') \g /dev/null

create function pg_temp.verdict(name text, key text) returns text language sql as $$
    select e.verdict || ': ' || e.detail from gc.explain(name, key) as e where e.depth = 0
$$;

-- Verdicts of a row that is there.
insert into app.file select n, 10 * n, case n when 3 then 'wait' end from generate_series(1, 5) as n;
insert into app.post select n, 'post ' || n from generate_series(1, 4) as n;
insert into app.picture values (1, 1), (2, 1), (3, 4);
insert into app.link values (1, 1), (2, 2);
select is(pg_temp.verdict('file', '1'), 'kept: kept by 2 pictures', 'it tells what keeps a row');
select is(pg_temp.verdict('post', '1'), 'kept: kept by 1 link', 'one is one');
select is(pg_temp.verdict('file', '2'), 'due: due in 24 h because of file_insert',
    'it tells when a row is due, and why');
update gc.file_review_queue set review_after = now();
select is(pg_temp.verdict('file', '2'), 'due: due now because of file_insert', 'also if it is now');
select is(pg_temp.verdict('file', '3'), 'waiting: waiting: its condition is not met',
    'it tells that a condition is not met');
insert into gc.holds (collection, key, reason, held_until)
values ('file', '5', 'upload', '2999-01-01 00:00+00');
select is(pg_temp.verdict('file', '5'), 'held: held until 2999-01-01 00:00 UTC (upload)',
    'it tells who holds a row');
select is((select e.detail from gc.explain('file', '5') as e where e.kind = 'hold'),
    'until 2999-01-01 00:00 UTC', 'the hold is in a line of its own');
delete from gc.holds;
select gc.pin('file', '5', 'case 7', '2999-01-01 00:00+00', 'legal');
select is(pg_temp.verdict('file', '5'), 'pinned: pinned by legal: case 7 (until 2999-01-01 00:00 UTC)',
    'it tells who has pinned a row');
select is((select e.subject || ': ' || e.detail from gc.explain('file', '5') as e
        where e.kind = 'pin'), 'legal: case 7', 'the pin is in a line of its own');
delete from gc.pins;
delete from gc.file_review_queue where event = 'file_unpin';
update gc.file_review_queue set review_count = 2, last_error = 'trouble',
    review_after = now() + interval '5 hours' where id = 5;
select is(pg_temp.verdict('file', '5'), 'failing: could not be deleted, tried again in 5 h: trouble',
    'it tells what failed');
select is((select e.detail from gc.explain('file', '5') as e where e.kind = 'queue'),
    'due in 5 h; failed 2 times: trouble', 'also in the line of the entry');
update gc.collections set problem = 'something is wrong' where name = 'file';
select is(pg_temp.verdict('file', '2'),
    'blocked: garbage, but nothing of "file" is reviewed: something is wrong',
    'it tells that nothing is reviewed');
update gc.collections set problem = null where name = 'file';
delete from gc.file_review_queue where id = 2;
select is(pg_temp.verdict('file', '2'), 'garbage: garbage, not queued: a scan would find it',
    'it tells what a scan would find');
update gc.collections set scanning = true where name = 'file';
select is(pg_temp.verdict('file', '2'),
    'garbage: garbage, not queued: the scan that is going on will find it', 'or is to find');
update gc.collections set scanning = false where name = 'file';
insert into gc.file_review_queue (id, event, review_after) values
    (2, 'first', now()), (2, 'second', now() + interval '3 days');
select is(pg_temp.verdict('file', '2'), 'due: due in 3 d because of second',
    'the latest entry counts');
select results_eq($$select subject from gc.explain('file', '2') where kind = 'queue'$$,
    $$values ('second'), ('first')$$, 'all entries are told');
select is(pg_temp.verdict('file', ' 02'), pg_temp.verdict('file', '2'),
    'a key may be written in any way');

-- The path to a root.
select results_eq(
    $$select depth, kind, subject, detail, verdict, collection, row_key from gc.explain('file', '1')
        where kind not in ('queue', 'review')$$,
    $$values
        (0, 'verdict', 'file 1', 'kept by 2 pictures', 'kept', 'file', '1'),
        (1, 'reference', 'app.picture(file)', '2 rows', null, null, null),
        (2, 'row', 'picture 1', null, null, null, '1'),
        (3, 'owner', 'post post 1', 'kept by 1 link', 'kept', 'post', '1'),
        (4, 'reference', 'app.link(post)', '1 row', null, null, null),
        (5, 'root', 'link 1', null, null, null, '1'),
        (2, 'row', 'picture 1', null, null, null, '1'),
        (3, 'owner', 'post post 2', 'kept by 1 link', 'kept', 'post', '2'),
        (4, 'reference', 'app.link(post)', '1 row', null, null, null),
        (5, 'root', 'link 2', null, null, null, '2')$$,
    'the rows that keep a row are told, and what they belong to, up to a root');
select results_eq(
    $$select kind, subject, verdict from gc.explain('file', '4') where depth between 1 and 3
        and kind not in ('queue', 'review')$$,
    $$values ('reference', 'app.picture(file)', null), ('row', 'picture 4', null),
        ('owner', 'post post 3', 'due')$$,
    'a path can end at what is garbage itself');
insert into app.picture select 1, 1 from generate_series(1, 1500);
select is(pg_temp.verdict('file', '1'), 'kept: kept by 1000 pictures or more',
    'what is many is not counted to the end');
select is((select count(*) from gc.explain('file', '1') where depth = 2), 3::bigint,
    'and the first are enough');
delete from app.picture where ctid in (
    select ctid from app.picture where post = 1 and file = 1 offset 1);

-- Rows that refer to each other end somewhere.
create table app.node (id integer primary key, next integer references app.node);
create index on app.node (next);
insert into app.node values (1, null), (2, 1);
update app.node set next = 2 where id = 1;
insert into app.node values (3, 3);
select count(*) from gc.track('app.node') \g /dev/null
select results_eq(
    $$select depth, kind, subject from gc.explain('node', '1') where kind not in ('queue', 'review')$$,
    $$values (0, 'verdict', 'node 1'), (1, 'reference', 'app.node(next)'), (2, 'row', 'node 2'),
        (3, 'reference', 'app.node(next)'), (4, 'seen', 'node 1')$$,
    'a circle is told once');
select is(pg_temp.verdict('node', '3'), 'garbage: garbage, not queued: a scan would find it',
    'a row does not keep itself');
insert into app.node select n, n - 1 from generate_series(4, 100) as n;
select cmp_ok((select max(depth) from gc.explain('node', '4')), '<', 25, 'a long path ends');
select is((select count(*) from gc.explain('node', '4') where kind = 'more'), 1::bigint,
    'and it is told that there is more');

-- An owner that goes takes its rows along.
create table app.page (id integer primary key, post integer references app.post);
create table app.reader (page integer references app.page);
create index on app.page (post);
create index on app.reader (page);
select count(*) from gc.track('app.page') \g /dev/null
select count(*) from gc.track('app.post', label => 'title', owned => '{picture,page}') \g /dev/null
insert into app.page values (1, 4), (2, 1);
insert into app.reader values (1), (2);
select is(pg_temp.verdict('page', '1'), 'goes: goes with post post 4: due in 24 h because of post_insert',
    'a row goes with its owner, whatever refers to it');
select is(pg_temp.verdict('page', '2'), 'kept: kept by 1 reader', 'or not, if that stays');
select results_eq(
    $$select depth, kind, subject, verdict from gc.explain('page', '2') where depth = 1
        and collection = 'post'$$,
    $$values (1, 'owner', 'post post 1', 'kept')$$, 'and the owner is told of');

-- What has gone.
update gc.file_review_queue set review_after = now(), review_count = 0;
delete from gc.file_review_queue where event = 'first';
update gc.settings set max_rows = 10000;
select count(*) from gc.review() \g /dev/null
select alike(pg_temp.verdict('file', '2'), 'deleting: deleted on % UTC because of second, its object waits for a runner',
    'a row that is gone has an object still');
select is((select e.subject from gc.explain('file', '2') as e where e.kind = 'tombstone'),
    's3://bucket/2', 'the tombstone is told');
update gc.tombstones set due_at = '2999-01-01 00:00+00' where key = '2';
select alike(pg_temp.verdict('file', '2'), '%, its object waits until 2999-01-01 00:00 UTC',
    'until when it waits');
update gc.tombstones set worker = 'w1' where key = '2';
select alike(pg_temp.verdict('file', '2'), '%is claimed by w1 until 2999-01-01 00:00 UTC',
    'who has claimed it');
update gc.tombstones set worker = null, failures = 1, last_error = '403' where key = '2';
select alike(pg_temp.verdict('file', '2'), '%, its object fails: 403; tried again in % d', 'what failed');
update gc.tombstones set failures = 0, due_at = now(), held_up = 'a long story' where key = '2';
select alike(pg_temp.verdict('file', '2'), '%, its object waits: a long story', 'what holds it up');
update gc.tombstones set worker = 'w1', due_at = now() + interval '1 hour' where key = '2';
select gc.confirm('w1', array(select id from gc.tombstones where key = '2')) \g /dev/null
select alike(pg_temp.verdict('file', '2'),
    'deleted: deleted on % UTC because of second, object confirmed on % UTC by w1',
    'from the log it is known how it went');
delete from app.file where id = 3;
select alike(pg_temp.verdict('file', '3'), 'deleting: deleted on % by the application, its object %',
    'also what the application deleted');
select is(pg_temp.verdict('file', '77'), 'never seen: never seen', 'what never was is not known');
insert into gc.deletion_log (collection, key, event, row_deleted_at)
values ('before', 'x', 'test', '2020-01-02 03:04+00');
select is(pg_temp.verdict('before', 'x'), 'deleted: deleted on 2020-01-02 03:04 UTC because of test',
    'the log is asked for collections that are no more');
select throws_ok($$select gc.explain('before', 'y')$$, '42704', 'there is no collection "before"',
    'if it knows nothing, the collection is missing');
select throws_ok($$select gc.explain('file', 'x')$$, '22P02', null, 'what is no key is refused');

-- By the object.
select results_eq(
    $$select depth, kind, subject, detail from gc.explain_url('s3://bucket/1') where depth < 2$$,
    $$values (0, 'verdict', 's3://bucket/1', 'the object of file 1: kept by 2 pictures'),
        (1, 'row', 'file 1', 'kept by 2 pictures')$$,
    'an object is explained by the row that has it');
select alike((select detail from gc.explain_url('s3://bucket/2') where depth = 0),
    'file 2: deleted on % by w1', 'or by the log');
select is((select verdict from gc.explain_url('s3://bucket/3') where depth = 0), 'deleting',
    'or by its tombstone');
select is((select verdict from gc.explain_url('s3://bucket/99') where depth = 0), 'never seen',
    'or it was never seen');
create table app.copy (id integer primary key, url text);
create table app.copy_use (copy integer references app.copy);
create index on app.copy_use (copy);
create index on app.copy (url);
select count(*) from gc.track('app.copy', url => 'url') \g /dev/null
insert into app.copy values (1, 's3://bucket/1'), (2, 's3://bucket/1');
select results_eq(
    $$select subject from gc.explain_url('s3://bucket/1') where depth = 1 and kind = 'row'$$,
    $$values ('copy 1'), ('copy 2'), ('file 1')$$, 'all rows that have an object are told');

-- One bad collection costs only itself, and what cannot be computed is told.
create table app.bad (id integer primary key, n integer);
create table app.bad_use (bad integer references app.bad);
create index on app.bad_use (bad);
select count(*) from gc.track('app.bad', label => $$(1 / n)::text$$,
    condition => 'id / (n - 1) is not null') \g /dev/null
insert into app.bad values (1, 2), (2, 0), (3, 1);
select is(pg_temp.verdict('bad', '1'), 'due: due in 24 h because of bad_insert', 'one row can be told');
select is((select subject || ': ' || detail from gc.explain('bad', '2') where depth = 0),
    'bad 2: due in 24 h because of bad_insert', 'of another there is no label');
select is(pg_temp.verdict('bad', '3'),
    'failing: its condition cannot be computed: division by zero', 'a third cannot be decided');
create role not_trusted;
grant create on schema app to not_trusted;
create table app.theirs (bad integer);
alter table app.theirs owner to not_trusted;
alter table app.theirs add foreign key (bad) references app.bad;
select matches(pg_temp.verdict('bad', '1'),
    '^blocked: nothing of "bad" is reviewed: .* belongs to not_trusted, who could run code',
    'what could run code of a role that is not trusted is not read');
select is(pg_temp.verdict('file', '1'), 'kept: kept by 2 pictures', 'everything else is');
drop table app.theirs;

-- A keeper that has gone. The notes tell what they know.
create table app.lost (id integer primary key);
create table app.keeper (lost integer constraint keeper_lost references app.lost);
create index on app.keeper (lost);
select count(*) from gc.track('app.lost', url => $$'s3://lost/' || id$$) \g /dev/null
insert into app.lost values (1), (2);
insert into app.keeper values (1);
delete from app.lost where id = 2;
select gc.pin('lost', '1', 'case 8', holder => 'legal') \g /dev/null
alter table app.keeper drop constraint keeper_lost;
select is(pg_temp.verdict('lost', '1'), 'blocked: nothing of "lost" is reviewed: '
    'app.keeper(lost) no longer refers to "app.lost"', 'a keeper that has gone is told of');
select results_eq($$select kind, left(detail, 20) from gc.explain('lost', '1') where depth = 1$$,
    $$values ('problem', 'Rows that only this '), ('advice', 'select * from gc.tra'),
        ('pin', 'case 8')$$, 'with what it means, what to type next, and what is noted of the row');
select results_eq($$select verdict, detail from gc.explain_url('s3://lost/1') where depth = 0$$,
    $$values ('blocked', 'lost: app.keeper(lost) no longer refers to "app.lost"')$$,
    'an object that may be of such a row was not "never seen"');
select is((select verdict from gc.explain_url('s3://lost/2') where depth = 0), 'deleting',
    'a tombstone says more');
select is((select verdict from gc.explain_url('s3://elsewhere/1') where depth = 0), 'never seen',
    'an object that cannot be of such a row is not blamed on it');
alter table app.keeper add constraint keeper_lost foreign key (lost) references app.lost;
select is(pg_temp.verdict('lost', '1'), 'kept: kept by 1 keeper', 'when it is back, it keeps');

-- It leaves nothing behind, and not everybody may ask.
select is((select count(*) from gc.holds), 0::bigint, 'nothing is held');
create role stranger;
create role viewer;
select gc.grant_viewer('viewer');
set local role stranger;
select throws_ok($$select gc.explain('file', '1')$$, '42501', null, 'nobody can ask by default');
set local role viewer;
select is((select e.verdict from gc.explain('file', '1') as e where e.depth = 0), 'kept',
    'a viewer can, without rights on the tables');
select is((select e.verdict from gc.explain_url('s3://bucket/1') as e where e.depth = 0), 'kept',
    'also by the object');
reset role;

select * from finish();
rollback;
