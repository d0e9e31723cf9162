-- A collection gets another key, or is defined anew, while its tombstones wait: whatever was true of
-- them is asked again.
begin;
set local client_min_messages = error;
select plan(14);

create schema app;
update gc.settings set jitter = '0', undo = '0';

create function pg_temp.track(target regclass, url text, undo interval default '0')
    returns void
    language sql
as $$ select from gc.track(target, url => track.url, condition => 'false', undo => track.undo) $$;
create function pg_temp.review(name text)
    returns integer
    language sql
as $$ select r.deleted from gc.review() as r where r.collection = name $$;
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


-- One bad tombstone.
create table app.sort (kind integer primary key);
select pg_temp.track('app.sort', $$'gs://sort/' || kind$$);
insert into app.sort values (1), (2), (3);
delete from app.sort;
update gc.tombstones set key = 'old' where key = '2';
select is(pg_temp.handed_out(), '{gs://sort/1,gs://sort/2,gs://sort/3}',
    'a tombstone whose key cannot be read any more is looked up by its url');
delete from gc.tombstones;
select gc.untrack('sort');


-- A tombstone from before the table got another key, or its objects other addresses.
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


-- What makes a url a row's own is gone before a review has noticed.
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


-- The url is left out by mistake.
create table app.sound (id integer primary key, path text);
select pg_temp.track('app.sound', 'path');
insert into app.sound values (1, 'gs://s/1'), (2, 'gs://s/1');
delete from app.sound where id = 1;
select pg_temp.track('app.sound', null);
select is(pg_temp.handed_out() @> '{gs://s/1}', false,
    'the url is left out: what was still to be deleted is not handed out');
select is((select t.held_up from gc.tombstones as t where t.collection = 'sound'),
    'its collection has no url any more', 'and it is told why');
select pg_temp.track('app.sound', 'path');
select is(pg_temp.handed_out() @> '{gs://s/1}', false, 'with the url, the live row is found');
delete from app.sound;
select is(pg_temp.handed_out() @> '{gs://s/1}', true, 'and when that goes, the object goes');

select * from finish();
rollback;
