-- What an attacker who had read the code tried, one session at a time. See docs/safety.md.

begin;
select plan(30);

create schema app;
update gc.settings set jitter = '0';
set local client_min_messages = error;

create function pg_temp.track(target regclass, url text, undo interval default '0')
    returns void
    language sql
as $$ select from gc.track(target, url => track.url, condition => 'false', undo => track.undo) $$;

create function pg_temp.review(name text)
    returns integer
    language sql
as $$ select r.deleted from gc.review() as r where r.collection = name $$;

create function pg_temp.why(name text)
    returns text
    language sql
as $$ select c.problem from gc.collections as c where c.name = why.name $$;

-- In a test everything is in one transaction, which nobody waits for.
create function pg_temp.handed_out()
    returns text[]
    language plpgsql
as $$
begin
    update gc.tombstones set due_at = now() - interval '1 second', worker = null;
    return array(select c.url from gc.claim('w') as c order by 1);
end;
$$;


-- 1. A tombstone from before the table got another key, or its objects other addresses.
create table app.file (id integer primary key, path text not null);
select pg_temp.track('app.file', $$'gs://b/' || path$$, '1 hour');
insert into app.file values (7, 'p7'), (8, 'p7');
delete from app.file where id = 7;
alter table app.file drop constraint file_pkey, add primary key (path);
select pg_temp.review('file') \g /dev/null
select is(pg_temp.handed_out(), '{}',
    'the key changes while a tombstone waits: the object of a live row is not handed out');
delete from app.file;
select is(pg_temp.handed_out(), '{gs://b/p7}', 'when the row goes, it is');
delete from gc.tombstones;
select gc.untrack('file');

create table app.doc (id integer primary key, path text);
select pg_temp.track('app.doc', $$'gs://b/' || path$$, '1 hour');
insert into app.doc values (7, '42'), (9, '43');
delete from app.doc;
select pg_temp.track('app.doc', $$'gs://b/' || id$$);
insert into app.doc values (42, 'x');
select is(pg_temp.handed_out(), '{gs://b/43}',
    'the url is defined anew: a tombstone with the address of another row is not handed out');
delete from gc.tombstones;
select gc.untrack('doc');

create table app.part (id text primary key);
select pg_temp.track('app.part', $$'gs://b/' || id$$);
insert into app.part values ('abc'), ('7'), ('12');
delete from app.part where id <> '12';
alter table app.part alter id type bigint using id::bigint;
insert into app.part values (7);
select pg_temp.review('part') \g /dev/null
select is(pg_temp.handed_out(), '{gs://b/abc}',
    'a key that the new type cannot read holds no object back, and no live row loses its own');
delete from gc.tombstones;
select gc.untrack('part');

create table app.a (id integer primary key);
create table app.b (id integer primary key);
select pg_temp.track('app.a', $$'gs://b/' || id$$, '1 hour');
insert into app.a values (1), (2);
delete from app.a;
select pg_temp.track('app.a', $$'gs://a/' || id$$);
select pg_temp.track('app.b', $$'gs://b/' || id$$);
insert into app.b values (1);
select is(gc._are_several(), false, 'two collections whose addresses differ from the beginning');
select is(pg_temp.handed_out(), '{gs://b/2}',
    'a tombstone from before that is looked for in the other collection all the same');
delete from gc.tombstones;
select gc.untrack('a');
select gc.untrack('b');


-- 2. What makes a url a row's own is gone before a review has noticed.
create table app.own (id integer primary key, other integer not null);
select pg_temp.track('app.own', $$'gs://b/' || id$$);
insert into app.own values (1, 1), (2, 2);
delete from app.own where id = 1;
select is(wait_for, '0', 'a url that is made of the key: nobody is waited for')
from gc.tombstones;
delete from gc.tombstones;
alter table app.own drop constraint own_pkey, add primary key (other);
insert into app.own values (2, 3);
delete from app.own where other = 2;
select is(wait_for, null, 'with another key, everybody is')
from gc.tombstones;
select is(pg_temp.handed_out(), '{}', 'and a row that has the url is found');
delete from gc.tombstones;
select gc.untrack('own');


-- 3. A hold is for the row, however the key is written by those who refer to it.
create table app.sum (id numeric primary key);
create table app.use (sum numeric references app.sum);
create index on app.use (sum);
select count(*) from gc.track('app.sum') \g /dev/null
select gc.set_delay('use_delete', '0');
insert into app.sum values (1);
insert into app.use values (1.0);
delete from gc.sum_review_queue;
delete from app.use;
select is((select q.id::text from gc.sum_review_queue as q), '1.0', 'the reference wrote 1.0');
select ok(gc.keep_alive('sum', '1'), 'the row says 1, and somebody keeps it');
select is(pg_temp.review('sum'), 0, 'so it is not collected');
delete from gc.holds;
update gc.sum_review_queue set review_after = now();
select is(pg_temp.review('sum'), 1, 'until nobody keeps it any more');
select gc.untrack('sum');


-- 4. A store tells A from a.
create function pg_temp.with_collation()
    returns setof text
    language plpgsql
as $$
begin
    begin
        create collation app.any_case (
            provider = icu, locale = 'und-u-ks-level2', deterministic = false);
    exception
        when feature_not_supported then
            return query select skip('this PostgreSQL has no ICU', 2);
            return;
    end;
    create table app.name (id integer primary key, path text collate app.any_case);
    perform pg_temp.track('app.name', $u$'gs://b/' || path$u$);
    insert into app.name values (1, 'A'), (2, 'X'), (3, 'x');
    update app.name set path = 'a' where id = 1;
    return next is(array(select t.url from gc.tombstones as t), '{gs://b/A}',
        'a url that differs only by case from the old one is another object');
    delete from app.name where id = 2;
    return next is(pg_temp.handed_out(), '{gs://b/A,gs://b/X}',
        'and a live row with one that differs only by case does not keep it');
    delete from gc.tombstones;
    perform gc.untrack('name');
end;
$$;
select pg_temp.with_collation();


-- 5. Rows that are kept whole, and columns that get other names.
create table app.kept (id integer primary key, path text, version text);
select from gc.track('app.kept', url => 'path', generation => 'version', condition => 'false')
\g /dev/null
insert into app.kept values (1, 'gs://k/1', 'v1'), (2, 'gs://k/2', 'v2');
alter table app.kept alter path type varchar(100);
delete from app.kept where id = 1;
select is((select count(*) from gc.unread_rows), 1::bigint, 'a row is kept whole');
alter table app.kept rename path to place;
select from gc.track('app.kept', url => 'place', generation => 'version', condition => 'false')
\g /dev/null
select pg_temp.review('kept') \g /dev/null
select results_eq('select url, generation from gc.tombstones', $$values ('gs://k/1', 'v1')$$,
    'its object is found although the column has another name since');
delete from gc.tombstones;
alter table app.kept alter place type text;
delete from app.kept where id = 2;
alter table app.kept add column address text;
select from gc.track('app.kept', url => 'address', generation => 'version', condition => 'false')
\g /dev/null
select pg_temp.review('kept') \g /dev/null
select is_empty('select from gc.tombstones', 'a row from before there was the column has no url');
select results_eq('select content ->> ''place'', last_error from gc.unread_rows',
    $$values ('gs://k/2', 'the row that went does not have all of the columns {address,version}')$$,
    'and stays, with the reason, instead of being forgotten');
select from gc.track('app.kept', url => 'place', generation => 'version', condition => 'false')
\g /dev/null
update gc.unread_rows set due_at = now();
select pg_temp.review('kept') \g /dev/null
select results_eq('select url, generation from gc.tombstones', $$values ('gs://k/2', 'v2')$$,
    'until the definition fits it');
select is_empty('select from gc.unread_rows', 'nothing is left then');
delete from gc.tombstones;
update app.kept set id = id;
insert into gc.unread_rows (collection, content, relation, columns)
values ('kept', '{"id": 3, "place": "gs://k/3", "version": "v"}', 'app.kept'::regclass,
    '{"id": 1, "place": 3, "version": 2}');
select pg_temp.review('kept') \g /dev/null
select results_eq('select url, generation from gc.tombstones', $$values ('gs://k/3', 'v')$$,
    'in a restored table, where columns have other numbers, their names count');
delete from gc.tombstones;
select gc.untrack('kept');


-- 6. Triggers that are disabled.
create table app.photo (id integer primary key, path text not null);
create table app.post (photo integer references app.photo);
create index on app.post (photo);
select from gc.track('app.photo', url => $$'gs://p/' || id$$) \g /dev/null
select gc.set_delay('photo_insert', '0');
insert into app.photo values (1, 'a');
alter table app.photo disable trigger user;
select is(pg_temp.review('photo'), 0,
    'while a trigger of the collection is disabled, nothing is reviewed');
select matches(pg_temp.why('photo'), 'the trigger gc_photo_after_delete on app\.photo is disabled',
    'and the status says why');
alter table app.photo enable trigger user;
alter table app.post disable trigger user;
select is(pg_temp.review('photo'), 0, 'the same goes for a table that refers to it');
alter table app.post enable replica trigger gc_photo_after_post_delete;
select is(pg_temp.review('photo'), 0, 'and for a trigger that only replication fires');
alter table app.post enable trigger user;
alter table app.post enable always trigger gc_photo_after_post_delete;
select is(pg_temp.review('photo'), 1, 'with all of them enabled, reviews go on');
select is(array(select t.url from gc.tombstones as t), '{gs://p/1}', 'and leave tombstones');

select throws_ok($$select gc.track('app.photo')$$, '55000',
    'the url of "photo" cannot be left out',
    'a collection whose objects are still to be deleted cannot have none from now on');
delete from gc.tombstones;
select lives_ok($$select gc.track('app.photo')$$, 'when all of them are gone it can');

select * from finish();
rollback;
