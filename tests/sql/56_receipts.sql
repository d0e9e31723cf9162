-- Receipts: a cause travels from a deletion to the last object.
begin;
select plan(60);

create schema app;
create table app.doc (id integer primary key, state text default 'live');
create table app.file (id integer primary key, path text);
create table app.page (doc integer references app.doc, file integer references app.file);
create table app.post (id integer primary key, doc integer references app.doc);
create table app.avatar (file integer references app.file);
create index on app.page (doc);
create index on app.page (file);
create index on app.post (doc);
create index on app.avatar (file);
update gc.settings set jitter = '0', undo = '0';
select count(*) from gc.track('app.doc', owned => '{page}') \g /dev/null
select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id$$, size => '100',
    undo => '1 day') \g /dev/null
insert into gc.review_after_defaults
values ('doc_insert', '0'), ('file_insert', '0'), ('post_delete', '1 hour'), ('page_delete', '1 day'),
    ('avatar_delete', '0');

create function pg_temp.state_of(command text) returns text language plpgsql as $$
begin
    execute command;
    return null;
exception
    when others then
        return sqlstate;
end;
$$;
create function pg_temp.states(cause text) returns text language sql as $$
    select string_agg(concat_ws(' ', r.state, r.collection, r.key, r.why), '; '
        order by r.state, r.collection, r.key::integer)
    from gc.receipt(cause) as r
$$;
create function pg_temp.complete(cause text) returns boolean language sql as $$
    select bool_and(r.complete) from gc.receipt(cause) as r
$$;
-- The transaction of this test is one: a cause ends with it.
create function pg_temp.no_cause() returns void language sql as $$ select gc._carry(null) $$;

-- Five docs with a page each: file 1 is shared by docs 1 and 2, and has an avatar too.
insert into app.doc select generate_series(1, 5);
insert into app.file select n, 'f' || n from generate_series(1, 6) as n;
insert into app.page values (1, 1), (2, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6);
insert into app.post select n, n from generate_series(1, 5) as n;
insert into app.avatar values (1);
do $$ begin perform gc.review(); end $$;

-- What can be a cause.
select is(pg_temp.state_of(format('select gc.because(%L)', bad)), '22023',
    'no cause: ' || coalesce(left(bad, 10), 'null'))
from unnest(array['', '  ', E'two\nlines', repeat('x', 201), null]) as bad;
select is(pg_temp.state_of($$select gc.receipt('nobody')$$), '42704', 'a cause that nobody named');
select is(pg_temp.state_of($$select gc.hurry('nobody')$$), '42704', 'cannot be hurried');

-- Where none is named, there is none.
delete from app.post where id = 5;
select is((select causes from gc.doc_review_queue where id = 5), null, 'no cause is no cause');

-- A setting alone is none.
set local blobgc.cause = '1';
delete from app.post where id = 4;
set local blobgc.cause = 'no number';
select is(pg_temp.state_of('update app.file set path = null'), null, 'a forged setting harms nobody');
select is((select count(*) from gc.doc_review_queue where causes is not null), 0::bigint,
    'a cause cannot be had by a setting');
set local blobgc.cause = '';

select gc.because('ticket 1') \g /dev/null
select is(pg_temp.states('ticket 1'), 'named it has led to nothing that is collected',
    'a cause that has led to nothing');
select is(pg_temp.complete('ticket 1'), true, 'is complete');
delete from app.post where id = 1;
select is(pg_temp.states('ticket 1'), 'queued doc 1 post_delete', 'what a deletion queues');
select is(pg_temp.complete('ticket 1'), false, 'is not complete');
select pg_temp.no_cause() \g /dev/null
delete from app.post where id = 2;
select is((select array_agg(id) from gc.doc_review_queue where causes is not null), '{1}',
    'another transaction has no cause of this one');

-- Through a review: owned rows, and what they referred to.
update gc.doc_review_queue set review_after = now();
select is((select deleted from gc.review() where collection = 'doc'), 4, 'a review deletes four');
select is((select string_agg(key || ' ' || coalesce(causes[1], '-'), ', ' order by key)
    from gc.deletion_log), '1 ticket 1, 2 -, 4 -, 5 -',
    'the log of rows without an object has the cause, each its own');
select is((select string_agg(id || ' ' || coalesce(causes[1], '-'), ', ' order by id, causes)
    from gc.file_review_queue where event = 'page_delete'),
    '1 ticket 1, 1 -, 2 ticket 1, 3 -, 5 -, 6 -',
    'what went with a row is queued for the same cause');
select is(pg_temp.states('ticket 1'),
    'gone doc 1 post_delete; queued file 1 page_delete; queued file 2 page_delete',
    'the receipt follows');
select is(current_setting('blobgc.cause'), '', 'a review leaves no cause behind');

-- Kept, and by what; a later entry takes the causes over.
select is((select count(*) from gc.file_review_queue where id = 1 and causes is null), 1::bigint,
    'a later entry of a key has no cause');
delete from app.avatar;
insert into app.avatar values (1);
update gc.file_review_queue set review_after = now() where id <= 2;
do $$ begin perform gc.review(); end $$;
select is(pg_temp.states('ticket 1'),
    'gone doc 1 post_delete; kept file 1 by app.avatar(file); waiting file 2',
    'what is kept is told with what keeps it');
select is((select causes from gc.tombstones where key = '2'), '{"ticket 1"}',
    'a tombstone has the cause');
select is((select count(*) from gc.tombstones where key = '3' and causes is not null), 0::bigint,
    'the tombstone of another has none');
select is(pg_temp.complete('ticket 1'), false, 'an object that waits is not gone');

-- The last keeper goes for another cause: both causes have led to it.
select gc.because('ticket 2') \g /dev/null
delete from app.avatar;
select is(pg_temp.states('ticket 2'), 'queued file 1 avatar_delete', 'a second cause');
select gc.because('ticket 3') \g /dev/null
insert into app.avatar values (1);
delete from app.avatar;
select pg_temp.no_cause() \g /dev/null
do $$ begin perform gc.review(); end $$;
select is((select causes from gc.tombstones where key = '1'), '{"ticket 2","ticket 3"}',
    'an entry that counts instead of an earlier one has the causes of both');
select is(pg_temp.states('ticket 2'), 'waiting file 1', 'the second cause knows of it');
select is(pg_temp.states('ticket 3'), 'waiting file 1', 'and the third');
select ok(pg_temp.states('ticket 1') like '%waiting file 1%', 'and the first, which had kept it');

-- Hurry.
select is((select count(*) from gc.claim('w')), 0::bigint, 'the undo window is not over');
select is(gc.hurry('ticket 1'), 1, 'what is hurried');
select is((select array_agg(key) from gc.claim('w')), '{2}', 'does not wait any longer');
select ok(pg_temp.states('ticket 1') like '%claimed file 2%', 'it is claimed');
select is(gc.confirm('w', array(select id from gc.tombstones where worker = 'w')), 1, 'confirmed');
select is((select causes from gc.deletion_log where key = '2' and collection = 'file'),
    '{"ticket 1"}', 'the log has the cause');
select is(gc.hurry('ticket 2'), 1, 'the other');
select is((select array_agg(key) from gc.claim('w')), '{1}', 'is claimed');
select is(gc.confirm('w', array(select id from gc.tombstones where worker = 'w')), 1, 'confirmed');
select is(pg_temp.states('ticket 1'),
    'gone doc 1 post_delete; gone file 1 for another reason; gone file 2 page_delete',
    'all of it is gone');
select is(pg_temp.complete('ticket 1'), true, 'and the receipt complete');

-- Hurried, what a review queues in turn does not wait either.
select gc.because('ticket 4') \g /dev/null
delete from app.post where id = 3;
select pg_temp.no_cause() \g /dev/null
select is(gc.hurry('ticket 4'), 1, 'one review is hurried');
select ok((select review_after <= now() from gc.doc_review_queue where id = 3), 'it is due');
do $$ begin perform gc.review(); perform gc.review(); end $$;
select is((select array_agg(key) from gc.claim('w')), '{4}', 'and all it leads to at once');
select is(gc.release('w', array(select id from gc.tombstones where worker = 'w')), 1, 'given back');

-- An object that stays.
insert into app.file values (4, 'again');
select is(pg_temp.states('ticket 4'),
    'gone doc 3 post_delete; kept file 4 its row was inserted again', 'a row that is back');
select is(pg_temp.complete('ticket 4'), true, 'is an answer as well');

-- The application's own deletions, a row that was gone already, and one that nobody tracks any more.
select gc.because('ticket 5') \g /dev/null
delete from app.file where id = 4;
select is(pg_temp.states('ticket 5'), 'waiting file 4', 'a deletion of the application''s own');
insert into app.avatar values (5), (6);
delete from app.avatar;
select pg_temp.no_cause() \g /dev/null
delete from app.file where id = 5;
update gc.file_review_queue set review_after = now();
do $$ begin perform gc.review(); end $$;
select ok(pg_temp.states('ticket 5') like '%waiting file 5%', 'a row that was gone is followed');
select is(pg_temp.complete('ticket 5'), false, 'until its object is gone');
insert into app.avatar select 3 where exists (select from app.file where id = 3);

-- Rights.
create role receipts_app;
grant usage on schema app to receipts_app;
grant select, delete on app.file to receipts_app;
set local role receipts_app;
select is(pg_temp.state_of($$select gc.because('mine')$$), '42501', 'nobody names a cause without');
reset role;
select gc.grant_eraser('receipts_app') \g /dev/null
set local role receipts_app;
select is(pg_temp.state_of($$select gc.because('mine')$$), null, 'who was granted it may');
select is(pg_temp.state_of($$select gc.receipt('mine')$$), '42501', 'and reads no receipt');
select is(pg_temp.state_of($$select gc.hurry('mine')$$), '42501', 'and hurries nothing');
select is(pg_temp.state_of('select * from gc.causes'), '42501', 'and reads no cause');
reset role;
select is((select named_by from gc.causes where cause = 'mine'), session_user, 'who it was is known');

-- After a restore.
insert into gc.erasures
select collection, key, label, url, causes, deleted_at from gc.deletion_log where causes is not null;
insert into app.file values (2, 'restored');
select is((select string_agg(concat_ws(' ', collection, key, cause, alive), '; '
        order by collection, key) from gc.replay_erasures()),
    'doc 1 ticket 1 f; doc 3 ticket 4 f; file 1 ticket 2, ticket 3 f; file 2 ticket 1 t',
    'what was erased and is alive again');
select is((select command from gc.replay_erasures() where alive),
    $$begin; select gc.because('ticket 1'); delete from app.file where id = '2'::integer; commit;$$,
    'and what to type');
select is((select count(*) from gc.replay_erasures('infinity')), 0::bigint, 'since then: nothing');

-- Kept as long as the log.
update gc.settings set log_retention = '0';
update gc.causes set named_at = now() - interval '1 second';
update gc.kept_rows set kept_at = now() - interval '1 second';
do $$ begin perform gc.review(); end $$;
select is((select count(*) from gc.causes) + (select count(*) from gc.kept_rows), 0::bigint,
    'causes go with the log');

select * from finish();
rollback;
