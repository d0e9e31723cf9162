-- Collections: track, track again, untrack, scan; and what happens when the tables change.
begin;
select plan(138);

set local client_min_messages = warning;
create schema app;
update gc.settings set jitter = '0', undo = '0';

-- Everything that is queued becomes due, and one collection's result is told.
create function app.review(name text) returns text language plpgsql as $$
begin
    execute format('update gc.%I set review_after = now()', name || '_review_queue');
    return (
        select format('%s kept, %s deleted, %s failed', kept, deleted, failed)
        from gc.review() where collection = name
    );
end;
$$;
create function app.why(name text) returns text language sql as $$
    select why from gc.status() where collection = name
$$;
create function app.triggers(relation text) returns text[] language sql as $$
    select coalesce(array_agg(tgname::text order by tgname), '{}')
    from pg_trigger where tgrelid = relation::regclass and not tgisinternal
$$;
-- What gc.drop_unused_triggers does, in one transaction.
create function app.tidy() returns void language sql as $$
    select gc._drop_triggers_of(r) from unnest(gc._tables_with_unused_triggers()) as r;
    select gc._drop_unused_rest();
$$;
create view app.catalog as
select 'column', attrelid::regclass, attname::text, attnotnull::text, atttypid::text
from pg_attribute join pg_class on pg_class.oid = attrelid
where relnamespace = 'app'::regnamespace and relname <> 'catalog'
union all
select 'constraint', conrelid::regclass, conname, pg_get_constraintdef(oid), ''
from pg_constraint where connamespace = 'app'::regnamespace
union all
select 'index', indrelid::regclass, pg_get_indexdef(indexrelid), '', ''
from pg_index join pg_class on pg_class.oid = indrelid
where relnamespace = 'app'::regnamespace;

create table app.file (
    id int primary key, path text not null, bytes bigint, state text, note text
);
create index on app.file (('mem:///' || path));
create table app.post (
    id int primary key,
    file int references app.file,
    thumb int references app.file on delete cascade
);
create index on app.post (file);
create index on app.post (thumb);
create table app.part (file int references app.file, n int);
create index on app.part (file);
create table app.before as select * from app.catalog;

-- Track.
insert into app.file (id, path) select i, 'old ' || i from generate_series(1, 5) as i;
insert into app.post values (1, 1, 2), (2, 1, null);
select results_eq(
    $$select reference, role from gc.track('app.file', owned => '{part}') order by reference$$,
    $$values ('app.part(file)', 'owned'), ('app.post(file)', 'keeps'),
        ('app.post(thumb)', 'keeps')$$,
    'track returns each reference and whether it keeps or is owned');
select set_eq(
    $$select * from app.catalog where attrelid <> 'app.before'::regclass$$,
    'select * from app.before',
    'track changes no column, constraint or index of the application');
select is(app.triggers('app.part'), '{}', 'a table whose rows are owned gets no trigger');
select is(cardinality(app.triggers('app.post')), 3,
    'a table that refers twice gets one trigger for each kind of statement');
select has_table('gc', 'file_review_queue', 'a collection has a queue named after its table');
select has_function('gc', 'file_review', 'a collection has a review function');
select is_empty('select * from gc.file_review_queue', 'track itself queues nothing');
select throws_ok($$select gc.track('app.file', name => 'files')$$, '42710', null,
    'a table cannot be a second collection');
select throws_ok($$select gc.track('app.post', name => 'file')$$, '42710', null,
    'a name cannot be that of another table''s collection');
select throws_ok($$select gc.track('app.post', owned => '{part}')$$, '42704', null,
    'owned must name foreign keys into the table');
select is_empty($$select * from gc.collections where name <> 'file'$$,
    'a refused track leaves nothing');

-- Scan.
select is(gc.scan('file', 2), 2, 'a scan goes over as many rows as the batch');
select is(gc.scan('file', 2), 2, 'the next call goes on behind them');
insert into app.file (id, path) values (0, 'behind the cursor'), (6, 'before the cursor');
select is(gc.scan('file', 2), 2, 'a scan sees rows that came meanwhile, in the order of the key');
select is(gc.scan('file', 2), 0, 'a scan ends with 0');
select results_eq('select id, event from gc.file_review_queue order by 1, 2',
    $$values (0, 'file_insert'), (3, 'file_scan'), (4, 'file_scan'), (5, 'file_scan'),
        (6, 'file_insert')$$,
    'a scan queues what nothing refers to and what is not queued yet');
select is(gc.scan('file', 100), 7, 'after the end a scan begins anew');
select is(gc.scan('file', 100), 0, 'and ends again');
select is(count(*), 5::bigint, 'a second scan queues nothing twice') from gc.file_review_queue;
select is((select array_agg(review_after) from gc.file_review_queue where event = 'file_scan'),
    array_fill(now() + interval '1 day', array[3]), 'a scan has a delay like any event');
select is(app.review('file'), '0 kept, 5 deleted, 0 failed', 'what was scanned is reviewed');
select throws_ok($$select gc.scan('nothing')$$, '42704', null,
    'an unknown collection cannot be scanned');
select throws_ok($$select gc.scan('file', 0)$$, '22023', null, 'a batch of 0 is refused');

-- TRUNCATE of a referring table.
insert into gc.review_after_defaults values ('file_scan', '0');
insert into app.file (id, path) select i, 'new ' || i from generate_series(10, 13) as i;
insert into app.post select i, i from generate_series(10, 13) as i;
delete from gc.file_review_queue;
truncate app.post;
select is_empty('select * from gc.file_review_queue', 'a TRUNCATE queues no row by itself');
select results_eq('select distinct collection from gc.scan_requests', $$values ('file')$$,
    'a TRUNCATE of a referring table asks for a scan');
select isnt(gc.next_due() > now(), true, 'a scan that was asked for is work that is due');
select is(sum(deleted), 0::bigint, 'the first review begins with the scan') from gc.review(4);
select is(count(*), 4::bigint, 'a review scans a batch') from gc.file_review_queue;
select is(sum(deleted), 4::bigint, 'the second reviews what the first found')
from gc.review(4);
select is(sum(deleted), 2::bigint, 'the third reviews the rest') from gc.review(4);
select is_empty('select * from app.file', 'what only the truncated table kept is gone');
select is_empty('select * from gc.scan_requests', 'the request is answered');
select is(sum(reviewed), 0::bigint, 'the end of the scan is found') from gc.review(4);
select is(scanning, false, 'the scan is over') from gc.collections where name = 'file';
truncate app.post;
select is_empty('select * from gc.scan_requests', 'a TRUNCATE of an empty table asks for nothing');

-- Track again.
insert into app.file (id, path, bytes) values (1, 'one', 10), (2, 'two', 20), (3, 'three', 30);
insert into app.post values (1, 1, null);
insert into app.part values (2, 1);
select results_eq(
    $$select reference, role from gc.track('app.file', url => '''mem:///'' || path', size => 'bytes',
        owned => '{app.post(file)}') order by reference$$,
    $$values ('app.part(file)', 'keeps'), ('app.post(file)', 'owned'),
        ('app.post(thumb)', 'keeps')$$,
    'track called again changes what keeps and what is owned');
select is(count(*), 3::bigint, 'the queue stays when track is called again')
from gc.file_review_queue;
select is(cardinality(app.triggers('app.part')), 3, 'what keeps now has triggers now');
select is(app.review('file'), '1 kept, 2 deleted, 0 failed',
    'the new definition decides what was queued before');
select results_eq('select key, url, size from gc.tombstones order by key',
    $$values ('1', 'mem:///one', 10::bigint), ('3', 'mem:///three', 30)$$,
    'a url that was added leaves tombstones');
select is_empty('select * from app.post', 'what is owned now goes with its row');
delete from gc.tombstones;
select is(count(*), 3::bigint, 'the first call again')
from gc.track('app.file', condition => 'state = ''deleting''', owned => '{part, post}',
    events => '{"file_insert": "upload", "file_update": "change"}');
select is(cardinality(app.triggers('app.part') || app.triggers('app.post')), 6,
    'triggers of what does not keep any more stay');
truncate gc.scan_requests;
select lives_ok('update app.post set file = null; delete from app.post; truncate app.part',
    'and do nothing');
select is((select count(*) from gc.file_review_queue) + (select count(*) from gc.scan_requests),
    (select count(*) from gc.file_review_queue where event !~ 'post|part'), 'at all');
select app.tidy() as ignored \gset
select is(app.triggers('app.part') || app.triggers('app.post'), '{}', 'until they are dropped');
select is((select array_agg(u::text) from app.triggers('app.file') as f(t), unnest(f.t) as u
    where u like '%delete%' or u like '%truncate%'), array['gc_file_after_delete'],
    'triggers that a collection without objects does not need are dropped; pins need one');

-- Condition.
delete from gc.file_review_queue;
insert into app.file (id, path) values (4, 'four');
select is((select array_agg(event) from gc.file_review_queue), '{upload}',
    'an event has the name that the last track gave it');
select is(app.review('file'), '1 kept, 0 deleted, 0 failed',
    'a row whose condition is null is kept');
update app.file set note = 'x';
select is_empty('select * from gc.file_review_queue',
    'an update that has nothing to do with the condition queues nothing');
update app.file set state = 'active';
select results_eq('select id, event from gc.file_review_queue order by 1',
    $$values (2, 'change'), (4, 'change')$$,
    'an update of what the condition reads queues the row');
select is(app.review('file'), '2 kept, 0 deleted, 0 failed',
    'a row whose condition is false is kept');
update app.file set state = 'deleting' where id = 4;
insert into app.post values (4, 4, null);
select is(app.review('file'), '0 kept, 1 deleted, 0 failed',
    'a row is garbage from the update on that makes its condition true');
delete from app.part;
update app.file set id = 7, state = 'deleting' where id = 2;
select is(app.review('file'), '0 kept, 1 deleted, 0 failed',
    'a row that changes its key is queued');
insert into app.file (id, path, state) values (30, 'x', 'active'), (31, 'y', 'deleting'), (32, 'z', null);
delete from gc.file_review_queue;
select is(gc.scan('file'), 3, 'a scan goes over rows whose condition is false');
select results_eq('select id, event from gc.file_review_queue', $$values (31, 'file_scan')$$,
    'but queues only those for which it is true');
select is(gc.scan('file'), 0, 'and comes to its end');
delete from gc.file_review_queue;
delete from app.file;
create table app.spot (id int primary key, place point, data json, parts json[]);
select is(count(*), 0::bigint, 'a condition may read types without an equality')
from gc.track('app.spot',
    condition => 'place[0] > 1 or data ->> ''gone'' = ''yes'' or parts[1] ->> ''a'' = ''b''');
insert into app.spot values (1, '(0,0)', '{}', '{}'), (2, '(0,0)', '{"a": 1}', null);
delete from gc.spot_review_queue;
select lives_ok($$update app.spot set place = '(2,2)' where id = 1$$,
    'an update of a column whose type has no equality is not refused');
select lives_ok($$update app.spot set data = '{"gone": "yes"}' where id = 2$$,
    'an update of a json column is not refused');
select is(app.review('spot'), '0 kept, 2 deleted, 0 failed', 'and both updates are followed');
select gc.untrack('spot') as ignored \gset
drop table app.spot;

-- Untrack.
insert into app.file (id, path) values (1, 'left in the queue');
insert into app.post values (1, 1, 1);
select lives_ok($$select gc.untrack('file')$$, 'a collection can be untracked');
select lives_ok($$insert into app.file (id, path) values (9, 'x'); update app.file set path = 'y';
    update app.post set file = null; delete from app.file where id = 9; truncate app.part$$,
    'the triggers that it leaves do nothing');
select is_empty('select from gc.file_review_queue union all select from gc.tombstones
    union all select from gc.scan_requests', 'and write nothing');
select count(*) as ignored from gc.track('app.file', url => '''mem:///'' || path',
    owned => '{part}') \gset
insert into app.file (id, path) values (9, 'nine');
insert into app.post values (9, 9, null);
delete from app.post where id = 9;
delete from app.file where id = 9;
select results_eq('select id, event from gc.file_review_queue order by entry',
    $$values (9, 'file_insert'), (9, 'post_delete')$$,
    'tracked again before they are dropped, it has its triggers back');
select results_eq('select url from gc.tombstones', array['mem:///nine'], 'all of them');
select app.tidy() as ignored \gset
select has_table('gc', 'file_review_queue', 'what is used again is not dropped');
delete from app.post where id <> 1;
delete from gc.tombstones;
select gc.untrack('file') as ignored \gset
select app.tidy() as ignored \gset
select is(app.triggers('app.file') || app.triggers('app.post') || app.triggers('app.part'), '{}',
    'then untrack leaves no trigger');
select is_empty(
    $$select relname from pg_class where relnamespace = 'gc'::regnamespace
        and relname like 'file%'
    union all
    select proname from pg_proc where pronamespace = 'gc'::regnamespace and proname like 'file%'
    union all
    select typname from pg_type where typnamespace = 'gc'::regnamespace and typname like 'file%'
    union all
    select name from gc.collections$$,
    'untrack leaves no queue, function, type or definition');
select lives_ok($$insert into app.file (id, path) values (2, 'x'); update app.post set file = 2;
    delete from app.post; truncate app.part$$, 'the application goes on after untrack');
select throws_ok($$select gc.untrack('file')$$, '42704', null,
    'what is not a collection cannot be untracked');
select set_eq(
    $$select * from app.catalog where attrelid <> 'app.before'::regclass$$,
    'select * from app.before', 'after untrack the application''s tables are as they were');
select is(count(*), 3::bigint, 'what was untracked can be tracked again')
from gc.track('app.file', name => 'again');
select is(gc.scan('again') || ' ' || app.review('again'), '2 0 kept, 2 deleted, 0 failed',
    'and is collected again');
select gc.untrack('again') as ignored \gset

-- The catalog: foreign keys that come and go.
select count(*) as ignored from gc.track('app.file', url => '''mem:///'' || path') \gset
insert into app.file (id, path) select i, 'f' || i from generate_series(1, 4) as i;
create table app.late (file int);
create index on app.late (file);
insert into app.late values (1);
alter table app.late add foreign key (file) references app.file on delete cascade;
select is(app.review('file'), '1 kept, 3 deleted, 0 failed',
    'a foreign key that was added after track keeps its targets');
select is((select count(*) from app.late), 1::bigint, 'and nothing of it is deleted');
select is(cardinality(app.triggers('app.late')), 3, 'and its table is followed from then on');
delete from app.late;
select results_eq('select id, event from gc.file_review_queue', $$values (1, 'late_delete')$$,
    'a row that goes from it queues its target');
insert into app.late values (1);
create table app.unindexed (file int references app.file);
insert into app.file (id, path) values (5, 'f5');
select is(app.review('file'), '0 kept, 0 deleted, 0 failed',
    'nothing is reviewed while a new foreign key has no index');
select matches(app.why('file'), 'unindexed.*index', 'status says which foreign key that is');
select is(blocked, true, 'status says that the collection is not reviewed')
from gc.status() where collection = 'file';
create index on app.unindexed (file);
select is(app.review('file'), '1 kept, 1 deleted, 0 failed',
    'reviews go on as soon as there is one');
select is(app.why('file'), null, 'and status has nothing to say any more');
alter table app.late drop constraint late_file_fkey;
insert into gc.file_review_queue (id, event, review_after) values (1, 'by hand', now());
select is(app.review('file'), '0 kept, 0 deleted, 0 failed',
    'nothing is reviewed once a foreign key was dropped');
select matches(app.why('file'), E'app.late\\(file\\) no longer refers.*gc.track.*accepts',
    'status says which one, and how to go on');
select is_empty('table gc.scan_requests', 'nor is anything scanned');
select count(*) as ignored from gc.track('app.file', url => '''mem:///'' || path') \gset
select is(app.why('file'), null, 'gc.track called again accepts that');
select results_eq('select reason from gc.scan_requests',
    $$values ('app.late(file) no longer refers to it')$$, 'and asks for a scan');
select is(app.review('file'), '0 kept, 1 deleted, 0 failed',
    'a foreign key that was dropped keeps nothing from then on');

-- The catalog: triggers, partitions, columns of referring tables.
drop trigger gc_file_after_post_delete on app.post;
drop trigger gc_file_after_insert on app.file;
select is(app.review('file'), '0 kept, 0 deleted, 0 failed', 'a dropped trigger is noticed');
insert into app.file (id, path) values (1, 'f1');
insert into app.post values (1, 1);
delete from gc.file_review_queue;
delete from app.post;
insert into app.file (id, path) values (2, 'f2');
select results_eq('select id, event from gc.file_review_queue order by 1',
    $$values (1, 'post_delete'), (2, 'file_insert')$$, 'and is there again after a review');
create table app.log (file int references app.file, day int) partition by list (day);
create index on app.log (file);
create table app.log_1 partition of app.log for values in (1);
select app.review('file') as ignored \gset
create table app.log_2 (file int, day int);
insert into app.file (id, path) values (3, 'f3');
insert into app.log_2 values (3, 2);
alter table app.log attach partition app.log_2 for values in (2);
select is(app.review('file'), '1 kept, 0 deleted, 0 failed',
    'a partition that was attached keeps its targets');
delete from app.log_2;
select results_eq('select id, event from gc.file_review_queue', $$values (3, 'log_delete')$$,
    'and statements aimed at it are followed');
alter table app.log detach partition app.log_2;
select is(app.review('file'), '0 kept, 1 deleted, 0 failed',
    'a partition that was detached is a table of its own');
insert into app.file (id, path) values (3, 'f3');
insert into app.post values (1, 3);
alter table app.post rename column file to attachment;
select lives_ok('delete from app.post',
    'a renamed column of a referring table does not fail the application');
select is(app.review('file'), '0 kept, 1 deleted, 0 failed', 'a renamed reference is reviewed');
insert into app.file (id, path) values (3, 'f3');
insert into app.post values (1, 3);
select is(app.review('file'), '1 kept, 0 deleted, 0 failed',
    'a reference keeps its target under its new name');
alter table app.post drop column attachment;
select lives_ok('delete from app.post; insert into app.post values (1, 3); truncate app.post',
    'a dropped column of a referring table does not fail the application');
select count(*) as ignored from gc.track('app.file', url => '''mem:///'' || path') \gset
delete from gc.scan_requests;
delete from gc.file_review_queue;
alter table app.log rename to log_book;
insert into app.log_book values (3, 1);
select lives_ok('delete from app.log_book; update app.log_book set file = 3',
    'a renamed referring table does not fail the application');
select lives_ok('truncate app.log_book', 'nor does a TRUNCATE of it');
insert into app.log_book values (3, 1);
insert into gc.file_review_queue (id, event, review_after) values (3, 'by hand', now());
select is(app.review('file'), '1 kept, 0 deleted, 0 failed', 'a renamed referring table keeps');

-- The catalog: the collection's own columns and its name.
alter table app.file add column extra text default 'x';
insert into app.file (id, path) values (10, 'f10');
select is(app.review('file'), '0 kept, 1 deleted, 0 failed', 'a new column changes nothing');
alter table app.file rename column path to place;
select lives_ok($$insert into app.file (id, place) values (11, 'f11');
    update app.file set place = 'f12' where id = 11; delete from app.file where id = 11;
    insert into app.file (id, place) values (12, 'f12')$$,
    'a renamed column of a collection does not fail the application');
insert into gc.file_review_queue (id, event, review_after) values (12, 'by hand', now());
select is(app.review('file'), '0 kept, 0 deleted, 0 failed',
    'nothing is reviewed while the url names a column that is not there');
select matches(app.why('file'), '(?i)url', 'status says that it is the url');
select count(*) as ignored from gc.track('app.file', url => '''mem:///'' || place') \gset
select is(app.why('file'), null, 'track with another url mends it');
select is(app.review('file'), '0 kept, 1 deleted, 0 failed', 'and reviews go on');
alter table app.file drop column place;
select lives_ok($$insert into app.file (id) values (13); update app.file set id = 14 where id = 13;
    delete from app.file where id = 14$$,
    'a dropped column of a collection does not fail the application');
select lives_ok('truncate app.file cascade', 'nor does a TRUNCATE of it');
select count(*) as ignored from gc.track('app.file', url => '''mem:///'' || id') \gset
insert into app.file (id) values (20);
alter table app.file rename column id to number;
alter table app.file alter column number type bigint;
select lives_ok('insert into app.file (number) values (3000000000)',
    'a key that is renamed and gets a wider type does not fail the application');
select lives_ok($$select gc.track('app.file', url => '''mem:///'' || number')$$,
    'a collection whose key has another type is made again');
select count(*) as ignored from gc.review() \gset
select is(app.review('file'), '0 kept, 2 deleted, 0 failed',
    'rows whose events were missed because the key changed are found by themselves');
delete from gc.tombstones;
create table app.counter (id int primary key);
insert into gc.review_after_defaults values ('counter_scan', '0');
select count(*) as ignored from gc.track('app.counter', condition => 'true') \gset
alter table app.counter alter column id type bigint;
select lives_ok('insert into app.counter values (3000000000)',
    'a key that gets a wider type does not fail the application');
insert into app.counter values (1);
select count(*) as ignored from gc.review() \gset
select count(*) as ignored from gc.review() \gset
select is((select count(*) from app.counter), 0::bigint,
    'and its rows are found by the scan that follows');
select gc.untrack('counter') as ignored \gset

create table app.narrow (a int, b int, primary key (a, b));
select count(*) as ignored from gc.track('app.narrow', condition => 'true') \gset
alter table app.narrow drop constraint narrow_pkey, add primary key (a);
select count(*) as ignored from gc.track('app.narrow', condition => 'true') \gset
select lives_ok('insert into app.narrow values (1, 1)',
    'a key that loses a column does not fail the application');
select gc.untrack('narrow') as ignored \gset
alter table app.narrow drop constraint narrow_pkey, add primary key (b);
select count(*) as ignored from gc.track('app.narrow', condition => 'true') \gset
select is_empty('table gc.scan_requests', 'the queue that another key has left is not missed');
select lives_ok('insert into app.narrow values (1, 2)', 'nor in the way');
select gc.untrack('narrow') as ignored \gset

-- The catalog: other names for the collection's table, its schema, and what is referred to.
create table app.page (id int primary key, slug text unique, extra int);
create table app.link (slug text references app.page (slug));
create table app.visit (page int references app.page on delete cascade);
create index on app.link (slug);
create index on app.visit (page);
select count(*) as ignored from gc.track('app.page') \gset
insert into app.page select i, 's' || i from generate_series(1, 9) as i;
insert into app.link select 's' || i from generate_series(1, 4) as i;
insert into app.visit select i from generate_series(5, 8) as i;
alter table app.page rename column slug to path;
select lives_ok($$delete from app.link where slug = 's1'$$,
    'a renamed unique column does not fail the statements of those who refer to it');
select is(app.review('page'), '7 kept, 2 deleted, 0 failed',
    'and the reference is reviewed under its new name');
alter table app.page drop column extra;
select lives_ok($$insert into app.page values (10, 's10'); update app.page set path = 's11'
    where id = 10$$, 'a dropped column that nothing uses changes nothing');
alter table app.page rename to pages;
select lives_ok(
    'delete from app.visit where page = 5; update app.visit set page = 7 where page = 6',
    'a renamed collection does not fail the statements of those who refer to it');
select lives_ok($$insert into app.pages values (11, 's12'); update app.pages set path = 's13'
    where id = 11; delete from app.pages where id = 11$$,
    'a renamed collection does not fail its own statements');
select count(*) as ignored from gc.review() \gset
insert into gc.page_review_queue (id, event, review_after) select id, 'by hand', now()
from app.pages;
select is(app.review('page'), '5 kept, 3 deleted, 0 failed',
    'a renamed table is the same collection');
alter schema app rename to application;
select lives_ok('delete from application.visit where page = 8;
    insert into application.pages values (12); delete from application.link where slug = ''s2''',
    'a renamed schema does not fail the application');
alter schema application rename to app;

-- The catalog: tables that are dropped.
select count(*) as ignored from gc.review() \gset
drop table app.link;
insert into gc.page_review_queue (id, event, review_after) select id, 'by hand', now()
from app.pages;
select is(app.review('page'), '0 kept, 0 deleted, 0 failed', 'a dropped table is a keeper less');
select count(*) as ignored from gc.track('app.pages') \gset
select is(app.review('page'), '1 kept, 5 deleted, 0 failed',
    'which keeps nothing once that is accepted');
insert into app.file (number) values (1);
drop table app.pages cascade;
select lives_ok('delete from app.visit',
    'a collection that is dropped does not fail the statements of those who referred to it');
select is(app.review('file'), '0 kept, 1 deleted, 0 failed',
    'a collection whose table is gone does not stop the others');
select matches(app.why('page'), 'gone', 'status says that the table is gone');
select lives_ok('select gc.next_due()', 'next_due does not mind a table that is gone');
select lives_ok($$select gc.untrack('page')$$, 'a collection whose table is gone can be untracked');
select app.tidy() as ignored \gset
select is(app.triggers('app.visit'), '{}', 'and its triggers can be dropped');

-- CASE, which PostgreSQL writes on a line of its own.
create table app.chosen (id integer primary key, kind text, path text);
create table app.choice (id integer primary key, kind text, chosen integer);
create index on app.choice ((case when kind = 'chosen' then chosen end));
select count(*) as ignored from gc.track('app.chosen',
    condition => $$case when kind = 'keep' then false else true end$$,
    url => $$case when kind = 'keep' then 's3://b/k/' else 's3://b/g/' end || path$$) \gset
select count(*) as ignored from gc.declare_reference('chosen', 'app.choice',
    $$case when kind = 'chosen' then chosen end$$) \gset
insert into app.chosen values (1, 'keep', 'a'), (2, 'go', 'b'), (3, 'go', 'c');
insert into app.choice values (1, 'chosen', 3), (2, 'other', 2);
select is(app.review('chosen'), '2 kept, 1 deleted, 0 failed',
    'a condition, and keys of a declared reference, may begin with CASE');
select is((select url from gc.tombstones where collection = 'chosen'), 's3://b/g/b',
    'the row that goes leaves its object');
select count(*) as ignored from gc.track('app.chosen', condition => 'false',
    url => $$case when kind = 'keep' then 's3://b/k/' || path end$$) \gset
delete from app.chosen where id = 1;
select is((select url from gc.tombstones where key = '1' and collection = 'chosen'), 's3://b/k/a',
    'a url may begin with CASE');

-- Names that the view has in which expressions are read.
create table app.gc_other (id integer primary key, gc_other text, value text);
select lives_ok($$select gc.track('app.gc_other', url => 'value', label => 'gc_other',
    condition => 'gc_other.gc_other is null')$$,
    'a table and its columns may be called as our own, and a column value');
insert into app.gc_other values (1, null, 's3://b/1'), (2, 'x', 's3://b/2');
select is(app.review('gc_other'), '1 kept, 1 deleted, 0 failed', 'the condition reads the row');
select is((select url from gc.tombstones where collection = 'gc_other'), 's3://b/1',
    'and the url is its column');

select * from finish();
rollback;
