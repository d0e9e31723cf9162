-- Undo: deleted rows are kept for a time, and come back as they were, or not at all.
begin;
set local client_min_messages = error;
select plan(76);

create schema app;
create type app.mood as enum ('well', 'not so well');
create type app.pair as (a integer, b text);
create domain app.percent as numeric(5, 2) check (value between 0 and 100);
create table app.file (id bigint primary key, bytes bigint, name text constraint file_name_key unique);
create table app.post (id bigint primary key, file bigint references app.file on delete cascade);
create index on app.post (file);
create table app.note (post bigint references app.post on delete cascade, text text);
create index on app.note (post);
create table app.chunk (file bigint references app.file, n integer);
create index on app.chunk (file);
create table app.odd (
    id bigint generated always as identity primary key,
    twice bigint generated always as (id * 2) stored,
    "a column" text, f real, d double precision, n numeric, m app.mood, p app.pair, s app.percent,
    j json, b jsonb, arr integer[], ps app.pair[], raw bytea, day date, at timestamptz,
    span interval, r int4range, c char(5), v varchar(5), bits bit(3), o text, dropped integer
);
alter table app.odd drop column dropped;
create table app.list (id bigint primary key, path text);
create table app.item (id bigint primary key, list bigint references app.list, file bigint
    references app.file);
create index on app.item (list);
create index on app.item (file);
create table app.plain (id bigint primary key);
create table app.part (id bigint, place text, primary key (id, place)) partition by list (place);
create table app.part_a (place text, id bigint not null);
alter table app.part_a add column extra integer;
alter table app.part_a drop column extra;
alter table app.part_a alter place set not null;
alter table app.part attach partition app.part_a for values in ('a', 'a "b", c');

update gc.settings set jitter = '0';
insert into gc.review_after_defaults
select e, '0' from unnest(array['file_insert', 'post_delete', 'list_insert', 'item_delete',
    'odd_insert', 'part_insert', 'chunk_delete']) as e;
select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id$$, size => 'bytes',
    label => $$'file ' || name$$, owned => '{chunk}') \g /dev/null
select count(*) from gc.track('app.list', label => 'path', owned => '{item}', undo => '2 days',
    condition => 'true') \g /dev/null
select count(*) from gc.track('app.odd', condition => 'true') \g /dev/null
select count(*) from gc.track('app.plain', undo => '0', condition => 'true') \g /dev/null
select count(*) from gc.track('app.part', condition => 'true') \g /dev/null

-- All tables as text.
create function pg_temp.state()
    returns text
    language sql
as $$
    select jsonb_build_array(
        (select jsonb_agg(t::text order by t::text) from app.file as t),
        (select jsonb_agg(t::text order by t::text) from app.post as t),
        (select jsonb_agg(t::text order by t::text) from app.note as t),
        (select jsonb_agg(t::text order by t::text) from app.chunk as t),
        (select jsonb_agg(t::text order by t::text) from app.odd as t),
        (select jsonb_agg(t::text order by t::text) from app.list as t),
        (select jsonb_agg(t::text order by t::text) from app.item as t),
        (select jsonb_agg(t::text order by t::text) from app.part as t))::text
$$;
-- What a statement says when it is refused; nothing of it is left.
create function pg_temp.refusal(command text)
    returns text
    language plpgsql
as $$
declare
    told text;
    detail text;
    hint text;
begin
    execute command;
    return 'no error';
exception
    when others then
        get stacked diagnostics told = message_text, detail = pg_exception_detail,
            hint = pg_exception_hint;
        return concat_ws(' | ', sqlstate, told, detail);
end;
$$;
-- As if all that was deleted so far had gone in an earlier transaction.
create function pg_temp.commit() returns void language sql
as $$ update gc.trash_rows set xid = (xid::text::bigint - 1)::text::xid8 $$;
create temporary table before (state text);
create function pg_temp.remember() returns void language sql
as $$ delete from before; insert into before select pg_temp.state() $$;
create function pg_temp.is_as_before(what text) returns text language sql
as $$ select is(pg_temp.state(), (select state from before), what) $$;

insert into app.file select i, i * 10, 'n' || i from generate_series(1, 9) as i;
insert into app.chunk select i, n from generate_series(1, 9) as i, generate_series(1, 2) as n;
insert into app.post select i, i from generate_series(1, 9) as i;
insert into app.note values (1, 'one'), (1, 'two');
insert into app.list values (1, 'a'), (2, 'b');
insert into app.item values (1, 1, 1), (2, 1, 2), (3, 2, 3);
insert into app.part values (1, 'a'), (2, 'a "b", c');
insert into app.odd ("a column", f, d, n, m, p, s, j, b, arr, ps, raw, day, at, span, r, c, v, bits,
    o)
values
    ('x', 0.1, '-0', 1.10, 'well', (1, 'a "b"'), 12.5, '{"a": 1,  "a": 2}', 'null', '[0:1]={1,2}',
        array[(1, null)::app.pair], E'\\x00ff', '0044-03-15 BC', '2026-02-03 04:05:06.789+00',
        '1 mon 2 days 03:04:05.6', '[1,5)', 'ab', 'cd', '101', 'o'),
    (null, 'NaN', 'Infinity', 'NaN', null, null, null, null, '{"b": [1, null]}', '{}', null, '',
        'infinity', '-infinity', '-1 day', 'empty', '', '', '000', ''),
    (E'line\nand \\ "quote"', 3.4028235e38, 5e-324, 123456789012345678901234567890.5, 'not so well',
        null, 0, 'null', 'true', array[[1, null], [2, 3]], '{}', E'\\x5c', '9999-12-31', 'infinity',
        '0', '(,)', 'abcde', 'é', '111', null);

-- The window.
select is((select undo from gc.settings), '1 day'::interval, 'a day is the default');
select is((select gc._undo(c) from gc.collections as c where name = 'file'), '1 day',
    'a collection has that of the settings');
select is((select gc._undo(c) from gc.collections as c where name = 'list'), '2 days',
    'or its own');

-- A review, and what the application deletes.
delete from app.post where id > 3;
select pg_temp.commit();
select pg_temp.remember();
select is((select sum(deleted) from gc.review()), 13::bigint,
    'a review deletes rows of every collection');
select set_eq($$select collection, key, label, bytes, event from gc.trash where collection = 'file'$$,
    $$select 'file'::text, i::text as k, 'file n' || i as l, i * 10::bigint as b,
            'post_delete'::text as e from generate_series(4, 9) as i$$, 'gc.trash lists what can be restored, and why it went');
select is((select array_agg(distinct until - deleted_at order by until - deleted_at) from gc.trash),
    '{1 day, 2 days}', 'until when');
select is((select min(due_at) - now() from gc.tombstones), '1 day'::interval,
    'no object is handed out before');
select is_empty($$select from gc.claim('worker')$$, 'to nobody');
select is((select count(*) from gc.trash_rows where relation = 'app.chunk'::regclass), 12::bigint,
    'owned rows are kept, without a key as well');
select is((select array_agg(distinct reviewed) from gc.trash_rows
    where relation in ('app.chunk'::regclass, 'app.item'::regclass)), '{file,list}',
    'and it is known whose review took them');
select is((select gc.restore(collection, key) from gc.trash where collection <> 'app.post'),
    (select 6 + 12 + 2 + 3 + 3 + 2)::bigint,
    'gc.restore over gc.trash restores all of it, owned rows too');
select pg_temp.is_as_before('every row is as it was, value by value');
select is((select array_agg(id order by id) from app.odd), '{1,2,3}', 'identities are the same');
select is_empty('select from gc.tombstones', 'their tombstones are cancelled');
select is_empty($$select from gc.trash where collection <> 'app.post'$$, 'nothing of them is kept');
select is_empty($$select from gc.deletion_log$$, 'the log does not say that they went');
select set_has($$select distinct id, event from gc.file_review_queue$$,
    $$select i::bigint as i, 'file_insert'::text as e from generate_series(4, 9) as i$$,
    'each has a review, as if it were inserted');

select is((select gc.restore('file', '4')), 0::bigint, 'what is there already is none');
select is((select gc.restore('file', ' 4 ')), 0::bigint, 'also where a key is written differently');
select is((select gc.restore('file', key) from (values (null::text)) as v(key) where false),
    0::bigint, 'nothing restores nothing');

-- The application's own deletes, with cascades.
delete from app.chunk where file in (1, 2);
select pg_temp.commit();
delete from gc.file_review_queue;
select pg_temp.remember();
delete from app.item where file = 1;
select pg_temp.commit();
delete from app.file where id = 1;
select is((select count(*) from app.note), 0::bigint, 'a cascade goes on and on');
select is((select gc.restore('file', '1')), 4::bigint,
    'what went by a cascade comes back with it: the post, and its notes');
select is((select count(*) from app.item), 2::bigint, 'what went before, by itself, does not');
select is((select gc.restore('app.item', '1')), 1::bigint, 'it comes back by its own key');
select pg_temp.is_as_before('all is as it was');

-- What is needed comes as well.
delete from app.item where list = 1;
select pg_temp.commit();
delete from app.file where id = 1;
select pg_temp.commit();
delete from app.list where id = 1;
select pg_temp.commit();
select is((select gc.restore('app.item', '1')), 6::bigint,
    'a row comes back with the dead rows that it needs, and these with theirs');
select gc.restore('app.item', '2') \g /dev/null
select pg_temp.is_as_before('in the right order');
delete from app.item where file in (1, 2);
select pg_temp.commit();
delete from app.list where id = 1;
delete from app.file where id in (1, 2);
select is((select gc.restore(collection, key) from (select * from gc.trash order by random()) as t
    where collection in ('app.item', 'file')), 9::bigint, 'many come back in any order');
select pg_temp.is_as_before('and are as they were');

-- Refusals. Each changes nothing.
select pg_temp.commit();
create temporary table trashed as select * from gc.trash_rows where false;
delete from app.item where id = 3;
delete from app.chunk where file = 3;
select pg_temp.commit();
delete from app.file where id = 3;
insert into app.file values (33, 0, 'n3');
insert into trashed select * from gc.trash_rows;
select pg_temp.remember();
select alike(pg_temp.refusal($$select gc.restore('file', '3')$$),
    'ZG010 | another row of app.file is in the way | Key (name)=(n3) already exists.',
    'a name that was taken again is told');
select pg_temp.is_as_before('nothing has changed');
select bag_eq('select * from gc.trash_rows', 'select * from trashed', 'and everything is kept');
update app.file set name = 'other' where id = 33;
update gc.tombstones set worker = 'w', due_at = now() + interval '1 hour' where key = '3';
select alike(pg_temp.refusal($$select gc.restore('file', '3')$$),
    'ZG010 | the object of row 3 of "file" is being deleted | %', 'so is an object that is claimed');
update gc.tombstones set worker = null where key = '3';
create temporary table aside as select * from gc.tombstones where false;
alter table aside drop column store;
savepoint gone;
delete from gc.tombstones where key = '3';
select alike(pg_temp.refusal($$select gc.restore('file', '3')$$),
    'ZG010 | the object of row 3 of "file" is gone | %', 'and one that is gone');
rollback to gone;
update gc.trash_rows set until = now() where key = '3' and collection = 'file';
select alike(pg_temp.refusal($$select gc.restore('file', '3')$$),
    'ZG010 | it is too late to restore row 3 of "file" | Its undo window ended at %',
    'a window that is over is told');
select is_empty($$select from gc.trash where collection = 'file' and key = '3'$$,
    'and the row is not listed any more');
update gc.trash_rows set until = now() + interval '1 hour' where key = '3';
select alike(pg_temp.refusal($$select gc.restore('file', '99')$$),
    'ZG010 | there is no row 99 of "file" to restore | %', 'a row that never was is told');
select alike(pg_temp.refusal($$select gc.restore('file', null)$$),
    '22P02 | this is not a key%', 'null is not a key');
select alike(pg_temp.refusal($$select gc.restore('files', '1')$$),
    '42704 | there is no collection "files", and no table%', 'an unknown collection is told');
select alike(pg_temp.refusal($$select gc.restore(c, k) from (values ('file', '3'), ('file', '99'))
    as v(c, k)$$), 'ZG010 | there is no row 99%', 'of many, all or none');
select is((select count(*) from app.file where id = 3), 0::bigint, 'none came back');
alter table app.file drop column bytes cascade;
select alike(pg_temp.refusal($$select gc.restore('file', '3')$$),
    'ZG010 | the column "bytes" of app.file is gone | %', 'a column that is gone is told');
alter table app.file add column bytes text, add column more integer not null default 7;
alter table app.file alter column more drop default;
select alike(pg_temp.refusal($$select gc.restore('file', '3')$$),
    'ZG010 | the column "more" of app.file must have a value now | %',
    'and a new one that has no default');
alter table app.file alter column more set default 8, alter column bytes type boolean using true;
select alike(pg_temp.refusal($$select gc.restore('file', '3')$$),
    'ZG010 | rows of app.file cannot be restored: invalid input syntax for type boolean: "30" | %',
    'and one that has another type, which cannot have the value');
alter table app.file alter column bytes type integer using 1;
select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id$$, size => 'bytes',
    owned => '{chunk}') \g /dev/null
create function app.refuse() returns trigger language plpgsql as 'begin return null; end';
create trigger refuse before insert on app.post for each row execute function app.refuse();
select alike(pg_temp.refusal($$select gc.restore('file', '3')$$),
    'ZG010 | rows of app.post cannot be restored: a trigger or a rule kept 1 rows %',
    'and a trigger that keeps a row out');
drop trigger refuse on app.post;
select is((select gc.restore('file', '3')), 2::bigint, 'when all that is mended, it comes back');
select is((select (bytes, more)::text from app.file where id = 3), '(30,8)',
    'with its values, and the default of what is new');
update gc.settings set undo = '0';
delete from app.file where id = 33;
insert into app.file values (40, 'forty');
insert into app.post values (40, 40);
select from gc.review();
delete from app.file where id = 40;
select is_empty($$select from gc.trash where key = '40'$$, 'without a window nothing is kept');
insert into app.plain values (1);
delete from app.plain;
select is_empty($$select from gc.trash where collection = 'plain'$$, 'for undo => 0 neither');
update gc.settings set undo = '1 day', strict_uploads = true;
select from gc.review();
select pg_temp.commit();
insert into app.post values (41, 3);
delete from app.file where id = 3;
select is((select gc.restore('file', '3')), 3::bigint,
    'where uploads have to be announced, a restored row needs no upload');
update gc.settings set strict_uploads = false;
select is_empty('select from gc.holds', 'and leaves no hold');

-- TRUNCATE.
delete from gc.trash_rows;
insert into app.part values (1, 'a'), (2, 'a "b", c');
insert into app.list values (1, 'a');
insert into app.item values (1, 1, 1);
select pg_temp.remember();
truncate app.file, app.post, app.note, app.chunk, app.item;
select ok((select gc.restore(collection, key) from gc.trash where deleted_at = now()
    and key is not null) > 10, 'what was truncated comes back');
select pg_temp.is_as_before('as it was');
truncate app.part_a;
select is((select gc.restore('part', '(2,"a ""b"", c")')), 1::bigint,
    'a row of a truncated partition, too');

-- Purging.
update gc.trash_rows set until = now();
select from gc.review(1);
select cmp_ok((select count(*) from gc.trash_rows), '>', 0::bigint, 'what is over goes in steps');
select from gc.review();
select is_empty('select from gc.trash_rows where until <= now()', 'until it is gone');
delete from app.item;
select cmp_ok((select kept_rows from gc.status() where collection = 'list'), '>', 0::bigint,
    'gc.status counts what is kept');
select cmp_ok((select kept_bytes from gc.status() where collection = 'list'), '>', 0::numeric,
    'and its bytes');
select gc.untrack('list');
select is_empty($$select from gc.trash_rows where collection = 'list'$$,
    'what is kept for a collection goes with it');

-- What is owned by declaration comes back with its owner, and after it.
create table app.topic (id bigint primary key, closed boolean not null default false);
create table app.answer (id bigint primary key, topic bigint);
create index on app.answer (topic);
create table app.vote (id bigint primary key, answer bigint references app.answer);
create index on app.vote (answer);
select count(*) from gc.track('app.topic', condition => 'closed') \g /dev/null
select count(*) from gc.declare_reference('topic', 'app.answer', 'topic') \g /dev/null
select count(*) from gc.track('app.topic', condition => 'closed', undo => '1 day',
    owned => '{answer, vote}') \g /dev/null
insert into app.topic values (1), (2);
insert into app.answer values (10, 1), (11, 1), (20, 2);
insert into app.vote values (100, 10);
update app.topic set closed = true where id = 1;
update gc.topic_review_queue set review_after = now();
select is((select deleted from gc.review() where collection = 'topic'), 1, 'a topic is collected');
select is(gc.restore('topic', '1'), 4::bigint,
    'what it owned by declaration comes back with it, and what that owned');
select results_eq('select a.id, v.id from app.answer as a left join app.vote as v on v.answer = a.id
    order by 1', 'values (10::bigint, 100::bigint), (11, null), (20, null)', 'as it was');
delete from app.vote;
delete from app.answer where topic = 1;
delete from app.topic where id = 1;
select is((select gc.restore(r.name, r.key)
    from (values ('app.answer', '10'), ('topic', '1')) as r(name, key)), 4::bigint,
    'rows that refer to others by declaration come after them');
select results_eq('select id from app.answer order by 1', 'values (10::bigint), (11), (20)',
    'with all that went in the same transaction');

-- What completes rows that come back.
create table app.called (keys text[], are_back boolean, there bigint);
create function app.complete_topics(keys text[], are_back boolean) returns void language sql as $$
    insert into app.called values (keys, are_back, (select count(*) from app.topic where id = 1))
$$;
select throws_ok($$select gc.complete('topic', 'now')$$, '42883', null,
    'a function that does not fit completes nothing');
select gc.complete('topic', 'app.complete_topics') \g /dev/null
delete from app.vote;
delete from app.answer where topic = 1;
delete from app.topic where id = 1;
select gc.restore('app.answer', '10') \g /dev/null
select results_eq('table app.called', $$values ('{1}'::text[], false, 0::bigint), ('{1}', true, 1)$$,
    'it is called before they are back, and after it, also for a row that others need');
create or replace function app.complete_topics(keys text[], are_back boolean) returns void
    language plpgsql as $$ begin raise 'no room'; end $$;
delete from app.vote;
delete from app.answer where topic = 1;
delete from app.topic where id = 1;
select throws_ok($$select gc.restore('topic', '1')$$, 'ZG010',
    'rows of app.topic cannot be restored: no room', 'if it raises, nothing comes back');
create role complete_mallory;
alter function app.complete_topics owner to complete_mallory;
select throws_ok($$select gc.restore('topic', '1')$$, 'ZG003', null,
    'nor if it belongs to somebody who is not trusted');
select throws_ok($$select gc.complete('topic', 'app.complete_topics')$$, 'ZG003', null,
    'who cannot be named either');
select gc.complete('topic', null) \g /dev/null
select is(gc.restore('topic', '1'), 4::bigint, 'without it they come back');

-- A row that knows no version of its object means any, and has none if one is deleted.
create table app.paper (id integer primary key, path text, version text);
create index on app.paper (path);
select count(*) from gc.track('app.paper', url => 'path', generation => 'version', undo => '1 day',
    collect => 'deleted') \g /dev/null
insert into app.paper values (1, 's3://papers/a', '1'), (2, 's3://papers/a', null),
    (3, 's3://papers/b', null), (4, 's3://papers/b', '1'),
    (5, 's3://papers/c', '1'), (6, 's3://papers/c', '2');
delete from app.paper where id in (1, 3, 5);
update gc.tombstones set due_at = now() where collection = 'paper';
delete from app.paper;
update gc.tombstones set wait_for = '1' where collection = 'paper';
select results_eq($$select url, generation from gc.claim('w') where collection = 'paper'$$,
    $$values ('s3://papers/c', '1')$$,
    'no version goes as long as a row may come back that knows none, nor any one for that of a row');
select is((select gc.restore('paper', k) from unnest('{2,4,6}'::text[]) as k), 3::bigint,
    'and these rows come back');

-- A window that is longer than that of the objects: what went with an album is kept with it.
create table app.album (id integer primary key);
create table app.photo (
    id integer primary key, album integer references app.album on delete cascade
);
create index on app.photo (album);
select count(*) from gc.track('app.album', undo => '1 day', collect => 'deleted') \g /dev/null
select count(*) from gc.track('app.photo', url => $$'s3://photos/' || id$$, undo => '0',
    collect => 'deleted') \g /dev/null
insert into app.album values (1), (2), (3);
insert into app.photo values (1, 1), (2, 2), (3, 3);
delete from app.album;
update gc.tombstones set due_at = due_at - interval '1 minute' where url = 's3://photos/1';
select count(*) from gc.claim('w', 1, '10 milliseconds', '{s3://photos/}') \g /dev/null
select pg_sleep(0.05) \g /dev/null
select throws_ok($$select gc.restore('album', '1')$$, 'ZG010',
    'the object of row 1 of "photo" is being deleted',
    'whether an object is there is not known when a lease has run out without a word');
update gc.tombstones set due_at = due_at - interval '1 minute' where url = 's3://photos/3';
select gc.fail('w', array[c.id], 'timed out')
from gc.claim('w', 1, '1 minute', '{s3://photos/}') as c \g /dev/null
select throws_ok($$select gc.restore('album', '3')$$, 'ZG010',
    'the object of row 3 of "photo" is being deleted', 'nor when a delete has failed');
select is(gc.restore('album', '2'), 2::bigint, 'the others come back');

-- What became of an earlier row's object does not matter: it was written again for this one.
insert into app.paper values (7, 's3://papers/d', null);
delete from app.paper where id = 7;
update gc.tombstones set due_at = now(), wait_for = '1' where url = 's3://papers/d';
select gc.fail('w', array[c.id], 'timed out')
from gc.claim('w', 1, '1 minute', '{s3://papers/}') as c \g /dev/null
insert into app.paper values (7, 's3://papers/d', null);
delete from app.paper where id = 7;
select is((select array_agg(t.failures order by t.id) from gc.tombstones as t
        where t.url = 's3://papers/d')::text || gc.restore('paper', '7'), '{1,0}1',
    'a row comes back though the deletion of an earlier one of its object had failed');

select * from finish();
rollback;
