-- Rows that are marked as garbage come back without their mark, wherever they are; and what a row
-- refers to by declaration comes back with it.
begin;
set local client_min_messages = error;
select plan(33);

create schema app;
create type app.state as enum ('in use', 'deleted');
create table app.album (
    id bigint primary key, name text constraint album_name_key unique, state app.state not null
    default 'in use', deleted_at timestamptz, deleted_by text, twice bigint generated always
    as (id * 2) stored
);
create table app.picture (id bigint primary key, album bigint not null references app.album);
create index on app.picture (album);
create table app.comment (picture bigint references app.picture on delete cascade, text text);
create index on app.comment (picture);

update gc.settings set jitter = '0';
insert into gc.review_after_defaults values ('album_update', '0');
create function pg_temp.track(restored text, condition text default 'state = ''deleted''')
    returns bigint
    language sql
as $$
    select count(*) from gc.track('app.album', condition => track.condition, label => 'name',
        owned => '{picture}', restored => track.restored::jsonb)
$$;
-- As if all that was deleted so far had gone in an earlier transaction.
create function pg_temp.commit() returns void language sql
as $$ update gc.trash_rows set xid = (xid::text::bigint - 1)::text::xid8 $$;

-- What can be told.
select throws_ok($$select pg_temp.track('{"states": "in use"}')$$, '22023',
    'restored rows cannot get {"states": "in use"}', 'a column that is not there is refused');
select throws_ok($$select pg_temp.track('{"id": 7}')$$, '22023', null, 'so is one of the key');
select throws_ok($$select pg_temp.track('{"twice": 7}')$$, '22023', null, 'a generated one');
select throws_ok($$select pg_temp.track('{"state": "lost"}')$$, '22023', null,
    'a value that the column cannot have');
select throws_ok($$select pg_temp.track('["state"]')$$, '22023', null,
    'what does not name columns');
select throws_ok($$select pg_temp.track('{"state": "in use"}', null)$$, '22023', null,
    'and anything without a condition');
select lives_ok($$select pg_temp.track('{"state": "in use", "deleted_at": null}')$$,
    'a value, and none, are good');
select is((select restored from gc.collections where name = 'album'),
    '{"state": "in use", "deleted_at": null}', 'it is written down');

-- A row that is marked, and was not collected yet.
insert into app.album (id, name) values (1, 'a'), (2, 'b');
insert into app.picture values (10, 1), (11, 1), (20, 2);
insert into app.comment values (10, 'one'), (11, 'two');
update app.album set state = 'deleted', deleted_at = now(), deleted_by = 'ada' where id = 1;
select is(gc.restore('album', '2'), 0::bigint, 'a row without a mark is not touched');
select is(gc.restore('album', ' 1 '), 1::bigint, 'a row with a mark is restored where it is');
select results_eq('select state::text, deleted_at, deleted_by from app.album where id = 1',
    $$values ('in use', null::timestamptz, 'ada')$$, 'the mark is taken back, and nothing else');
update gc.album_review_queue set review_after = now();
select is((select deleted from gc.review() where collection = 'album'), 0,
    'a review leaves it alone then');

-- One that is half empty: what went comes back with it.
update app.album set state = 'deleted' where id = 1;
update gc.settings set max_rows = 1;
select count(*) from gc.review() \g /dev/null
select is((select count(*) from app.picture where album = 1), 1::bigint,
    'a review may empty a row in steps');
select pg_temp.commit();
select is(gc.restore('album', '1'), 3::bigint,
    'what went from it comes back with it, and what went with that');
select set_eq('select p.id, c.text from app.picture as p left join app.comment as c
    on c.picture = p.id', $$values (10::bigint, 'one'), (11, 'two'), (20, null)$$, 'as it was');
update app.album set state = 'deleted' where id = 1;
select count(*) from gc.review() \g /dev/null
select pg_temp.commit();
select is((select gc.restore(collection, key) from gc.trash where collection = 'app.picture'),
    3::bigint, 'what went from it brings it back: else it would go with it again');
select is((select state::text from app.album where id = 1), 'in use', 'without the mark');

-- One that is gone.
update app.album set state = 'deleted', deleted_at = now() where id = 1;
update gc.settings set max_rows = 10000;
select is((select deleted from gc.review() where collection = 'album'), 1, 'a review collects it');
select is((select gc.restore(collection, key) from gc.trash where label = 'a'), 5::bigint,
    'it comes back with all that it owned');
select results_eq('select state::text, deleted_at, deleted_by from app.album where id = 1',
    $$values ('in use', null::timestamptz, 'ada')$$, 'and without its mark');
update app.album set state = 'deleted' where id = 1;
delete from app.comment;
delete from app.picture where album = 1;
delete from app.album where id = 1;
select is((select gc.restore('album', '1')), 5::bigint, 'what the application deleted');
select is((select state::text from app.album where id = 1), 'deleted', 'comes back as it was');

-- A key that is used again: what an earlier row of it owned is left alone.
insert into app.album (id, name, state) values (5, 'first', 'deleted');
insert into app.picture values (50, 5);
select count(*) from gc.review() \g /dev/null
update gc.album_review_queue set review_after = now();
select count(*) from gc.review() \g /dev/null
select pg_temp.commit();
insert into app.album (id, name) values (5, 'second');
insert into app.picture values (51, 5);
update app.album set state = 'deleted' where id = 5;
select is(gc.restore('album', '5'), 1::bigint, 'a row of a key that is used again is revived alone');
update app.album set state = 'deleted' where id = 5;
select count(*) from gc.review() \g /dev/null
select is((select count(*) from app.album where id = 5), 0::bigint, 'it goes');
select gc.restore('album', '5') \g /dev/null
select results_eq('select a.name, p.id from app.album as a join app.picture as p on p.album = a.id
    where a.id = 5', $$values ('second', 51::bigint)$$, 'and comes back with what was its own');

-- What is in the way, and what is not there.
insert into app.album (id, name) values (3, 'c');
update app.album set state = 'deleted', name = 'd' where id = 3;
alter table app.album drop constraint album_name_key;
create unique index album_name_key on app.album (name) where state = 'in use';
update app.album set name = 'b' where id = 3;
select throws_ok($$select gc.restore('album', '3')$$, 'ZG010',
    'another row of app.album is in the way', 'a name that is taken again is told');
select is((select state::text from app.album where id = 3), 'deleted', 'and nothing changes');
select throws_ok($$select gc.restore('album', '99')$$, 'ZG010', 'there is no row 99 of "album" to restore',
    'so is a row that is neither there nor kept');
select throws_ok($$select gc.restore('album', null)$$, '22P02', null, 'and no key');

-- References that were declared.
create table app.file (id bigint primary key, name text constraint file_name_key unique);
create table app.mail (id bigint primary key, files bigint[], about text);
create index on app.mail using gin (files);
create index on app.mail ((case when id > 0 then about end));
select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id$$, condition => 'true')
    \g /dev/null
select count(*) from gc.declare_reference('file', 'app.mail', 'files') \g /dev/null
select count(*) from gc.declare_reference('file', 'app.mail', 'case when id > 0 then about end',
    by => 'name', condition => 'about is not null') \g /dev/null
select count(*) from gc.track('app.mail', condition => 'false') \g /dev/null
insert into app.file values (1, 'one'), (2, 'two'), (3, 'three'), (4, 'four');
insert into app.mail values (1, array[1, null, 2, 77], 'three');
delete from app.mail;
update gc.file_review_queue set review_after = now();
select is((select deleted from gc.review() where collection = 'file'), 4,
    'what is mentioned no longer is collected');
select is(gc.restore('mail', '1'), 4::bigint,
    'a row comes back with all that it refers to by declaration');
select set_eq('select id from app.file', array[1, 2, 3]::bigint[],
    'by a key, an array of keys, or another column; what never was there is not missed');
select is_empty($$select from gc.tombstones where key <> '4'$$, 'and the objects stay');

select * from finish();
rollback;
