-- Causes and finalizers together with pins, pauses, the brake, undo, declared references, and
-- conditions that read the clock.
begin;
set local client_min_messages = error;
select plan(54);

create schema app;
create table app.file (id integer primary key, path text);
create table app.page (id integer primary key, files integer[]);
create index on app.page using gin (files);
create table app.doc (id integer primary key);
create table app.part (doc integer references app.doc, n integer);
create index on app.part (doc);
create table app.draft (id integer primary key, doc integer references app.doc, made timestamptz);
create index on app.draft (doc);
update gc.settings set jitter = '0';
insert into gc.review_after_defaults
select e, '0' from unnest(array['file_insert', 'page_delete', 'page_update', 'doc_insert',
    'draft_insert', 'draft_update', 'draft_delete', 'file_unpin']) as e;
select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id$$, condition => 'true',
    finalizers => '{purge}') \g /dev/null
select from gc.declare_reference('file', 'app.page', keys => 'files') \g /dev/null
select count(*) from gc.track('app.doc', owned => '{part}') \g /dev/null
select count(*) from gc.track('app.draft', undo => '0',
    condition => 'made < now() - interval ''7 days''') \g /dev/null

create function pg_temp.states(cause text) returns text language sql as $$
    select string_agg(concat_ws(' ', r.state, r.collection, r.key, r.why), '; '
        order by r.collection, r.key, r.state)
    from gc.receipt(cause) as r
$$;
create function pg_temp.complete(cause text) returns boolean language sql as $$
    select bool_and(r.complete) from gc.receipt(cause) as r
$$;
create function pg_temp.state_of(command text) returns text language plpgsql as $$
begin
    execute command;
    return null;
exception
    when others then
        return sqlstate;
end;
$$;
create function pg_temp.review() returns void language plpgsql as $$
begin
    perform gc._carry(null);
    perform gc.review();
end;
$$;
create function pg_temp.claimed(finalizer text) returns text language sql as $$
    select string_agg(c.key, ' ' order by c.key::integer)
    from gc.claim('w', finalizer => finalizer) as c
$$;
create function pg_temp.confirmed() returns integer language sql as $$
    select gc.confirm('w', array(select t.id from gc.tombstones as t where t.worker = 'w'))
$$;
create function pg_temp.trash() returns text language sql as $$
    select string_agg(t.collection || ' ' || t.key, ', ' order by t.collection, t.key)
    from gc.trash as t
$$;

-- A definition is repeated with its finalizers.
select ok(gc._track_sql(c) like '%finalizers => ''{purge}''%', 'the call that repeats a definition')
from gc.collections as c where c.name = 'file';

-- A declared reference that goes passes its cause on, and one that stays is named.
insert into app.file select n from generate_series(1, 9) as n;
insert into app.page values (1, '{1,2}'), (2, '{2}'), (3, '{3,4}'), (4, '{5,6,7,8,9}');
delete from gc.file_review_queue;
select gc.because('page 1') \g /dev/null
delete from app.page where id = 1;
select is(pg_temp.states('page 1'), 'queued file 1 page_delete; queued file 2 page_delete',
    'what a declared reference mentioned has the cause');
select gc.because('page 3') \g /dev/null
update app.page set files = '{3}' where id = 3;
select is(pg_temp.states('page 3'), 'queued file 4 page_update', 'and after an update');
select pg_temp.review() \g /dev/null
select is(pg_temp.states('page 1'), 'waiting file 1 for purge; kept file 2 by app.page(files)',
    'what keeps a row is a declared reference');
select is(pg_temp.states('page 3'), 'waiting file 4 for purge', 'the other is on its way');

-- Undo: an object with a cause waits, and can be restored, until it is hurried.
select is(pg_temp.claimed('purge'), null, 'no step is handed out in the undo window');
select is(pg_temp.trash(), 'file 1, file 4', 'their rows are kept');
select is((select gc.restore('file', '4')), 1::bigint, 'one is restored');
select is(pg_temp.states('page 3'), 'kept file 4 its row was inserted again',
    'and the receipt tells');
select is(pg_temp.complete('page 3'), true, 'and is complete');
select is(gc.hurry('page 1'), 1, 'the other is hurried');
select is(pg_temp.trash(), null, 'it is not kept any more');
select is((select count(*) from gc.trash_rows), 0::bigint, 'and nobody can read it');
select is(pg_temp.state_of($$select gc.restore('file', '1')$$), 'ZG010', 'and cannot come back');

-- Steps, and what stops them.
select gc.pause('file', 'a pause', what => 'deletes') \g /dev/null
select is(pg_temp.claimed('purge'), null, 'a pause holds every step');
select is(gc.next_due(null, 'purge') > now() + interval '1 second', true, 'and the worker sleeps');
select gc.resume('file') \g /dev/null
select is(gc.next_due(null, 'purge') <= clock_timestamp(), true, 'after it there is work');
select is(pg_temp.claimed('storage'), null, 'the object has to wait for its step');
select is(pg_temp.claimed('purge'), '1', 'which is handed out');
select is((select sum(t.handed_out) from gc.totals as t where t.collection = 'file'), 0::numeric,
    'what a review has deleted is not counted by the brake of claims');
select is(pg_temp.confirmed(), 1, 'it is finished');
select is(pg_temp.claimed('storage'), '1', 'then the object is deleted');
select is(pg_temp.confirmed(), 1, 'and confirmed');
select is(pg_temp.states('page 1'), 'gone file 1 page_delete; kept file 2 by app.page(files)',
    'the receipt is complete');
select is(pg_temp.complete('page 1'), true, 'and says so');

-- The brake counts a tombstone once, at its first step.
update app.page set files = '{}' where id = 4;
delete from gc.file_review_queue;
delete from app.file where id in (5, 6);
update gc.tombstones set due_at = now();
select is(pg_temp.claimed('purge'), '5 6', 'the application has deleted two');
select is((select sum(t.handed_out) from gc.totals as t where t.collection = 'file'), 2::numeric,
    'they are counted');
select is(pg_temp.confirmed(), 2, 'the step is finished');
select is(pg_temp.claimed('storage'), '5 6', 'and the next begins');
select is((select sum(t.handed_out) from gc.totals as t where t.collection = 'file'), 2::numeric,
    'they are not counted again');
select is(pg_temp.confirmed(), 2, 'gone');

-- A pin keeps a row, and holds the steps of one that the application deletes.
select gc.pin('file', '7') \g /dev/null
select gc.because('pinned') \g /dev/null
update app.page set files = '{7}' where id = 4;
update app.page set files = '{}' where id = 4;
select pg_temp.review() \g /dev/null
select is(pg_temp.states('pinned'), 'kept file 7 by a pin', 'a pin is named');
select gc.because('deleted') \g /dev/null
delete from app.file where id = 7;
select gc._carry(null) \g /dev/null
select gc.hurry('deleted') \g /dev/null
select is(pg_temp.claimed('purge'), null, 'no step of it is handed out');
select ok(pg_temp.states('deleted') like 'waiting file 7 for purge; pinned by %',
    'and the receipt says why');
select gc.because('unpinned') \g /dev/null
select gc.unpin('file', '7') \g /dev/null
select is(pg_temp.states('unpinned'), 'queued file 7 file_unpin', 'the end of a pin has a cause');
select gc._carry(null) \g /dev/null
select is(pg_temp.claimed('purge'), '7', 'and its steps go on');
select is(pg_temp.confirmed(), 1, 'finished');

-- A row without an object that comes back is not gone.
insert into app.doc values (1), (2);
insert into app.part values (1, 1), (1, 2);
insert into app.draft values (1, 1, now()), (2, 1, now() - interval '8 days');
delete from gc.doc_review_queue;
delete from gc.draft_review_queue;
select gc.because('drafts') \g /dev/null
update app.draft set doc = 1, made = made + interval '1 second';
select gc._carry(null) \g /dev/null
update app.draft set doc = null, made = made + interval '1 second' where id = 1;

-- What only time keeps stays in the queue with its cause, and hands it over.
select pg_temp.review() \g /dev/null
select is(pg_temp.states('drafts'), 'queued doc 1 draft_delete; queued draft 1 draft_update; '
    'gone draft 2 draft_update', 'a row that sleeps is queued');
select is((select string_agg(coalesce(causes[1], '-'), ' ' order by entry)
    from gc.draft_review_queue), 'drafts -', 'the entry that has a cause stays beside a later one');
update app.draft set made = now() - interval '8 days';
update gc.draft_review_queue set review_after = now();
select pg_temp.review() \g /dev/null
select is((select causes from gc.deletion_log where collection = 'draft' and key = '1'), '{drafts}',
    'when it wakes, the later one takes the cause over');

-- It is restored, and owned rows have been deleted for the cause as well.
select pg_temp.review() \g /dev/null
select is(pg_temp.states('drafts'),
    'gone doc 1 draft_delete; gone draft 1 draft_update; gone draft 2 draft_update', 'all gone');
select is((select count(*) from gc.trash_rows where causes = '{drafts}'), 3::bigint,
    'with what was owned');
select is((select gc.restore('doc', '1')), 3::bigint, 'it comes back, with that');
select ok(pg_temp.states('drafts') like 'kept doc 1 it was restored; %', 'and is not gone any more');

-- Work that nobody does.
create function pg_temp.problems() returns text language sql as $$
    select string_agg(c.subject || ' ' || substring(c.problem from '^[0-9]+ objects[^,]*'), '; '
        order by c.subject)
    from gc.check() as c where c.problem like '%asks for them'
$$;
delete from gc.runner_calls;
delete from app.file where id = 2;
update gc.tombstones set due_at = now() - interval '1 hour';
select is(pg_temp.problems(), 'file 1 objects wait for the finalizer "purge"; s3://bucket 1 objects '
    'are due', 'a step that nobody does is told, and an object that nobody deletes');
select is(pg_temp.claimed('purge'), '2', 'a worker comes');
select is(pg_temp.problems(), 's3://bucket 1 objects are due', 'who deletes no object');
select is((select array_agg(worker || ' ' || finalizer) from gc.runners), '{w purge}',
    'what it does is told');
select is(pg_temp.claimed('storage'), '7', 'one that does is another');
update gc.tombstones set worker = null, due_at = 'infinity';

-- From now on, rows are never garbage.
insert into app.page values (9, '{8}');
delete from gc.file_review_queue;
select gc.because('late') \g /dev/null
delete from app.page where id = 9;
select gc._carry(null) \g /dev/null
select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id$$, collect => 'deleted',
    finalizers => '{purge}') \g /dev/null
select is(pg_temp.states('late'), 'kept file 8 only deleted rows are collected any more',
    'a queue that is given up is noted');
select is(gc.hurry('late'), 0, 'and nothing is left to hurry');
select gc.because('by hand') \g /dev/null
delete from app.file where id = 8;
select gc._carry(null) \g /dev/null
select is(gc.hurry('by hand'), 1, 'a row that the application deletes has the cause');
select is(pg_temp.claimed('purge'), '8', 'and the finalizer');
select is(pg_temp.confirmed(), 1, 'finished');

select * from finish();
rollback;
