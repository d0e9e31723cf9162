-- Moves: a MERGE that takes a row to another partition is followed like an UPDATE that does.
begin;
select plan(35);

set local client_min_messages = error;
create schema app;

-- A collection, partitioned at two levels.
create table app.file (
    id int,
    part int,
    grade numeric,
    name text,
    path text generated always as (name || '!') stored,
    primary key (id, part, grade)
)
partition by list (part);
create table app.file_1 partition of app.file for values in (1);
create table app.file_2 (
    path_of_old text, grade numeric, name text, part int not null, id int not null,
    path text generated always as (name || '!') stored
);
alter table app.file_2 drop column path_of_old;
alter table app.file_2 alter column grade set not null;
alter table app.file attach partition app.file_2 for values in (2);
create table app.file_3 partition of app.file for values in (3) partition by range (grade);
create table app.file_3_0 partition of app.file_3 for values from (0) to (1);
create table app.file_3_1 partition of app.file_3 for values from (1) to (2);
create index on app.file (('s3://b/' || name));
create index on app.file (path);
create table app.uses (id int primary key, file text);
update gc.settings set jitter = '0', undo = '0';
insert into gc.review_after_defaults
select e, '0' from unnest(array['file_insert', 'file_update', 'item_insert', 'item_delete',
    'item_update', 'thing_update', 'thing_insert']) as e;
select count(*) from gc.track('app.file', url => $$'s3://b/' || name$$,
    condition => 'true') \g /dev/null

create function pg_temp.queued()
    returns bigint
    language plpgsql
as $$
declare
    n bigint;
begin
    delete from gc.file_review_queue;
    get diagnostics n = row_count;
    return n;
end;
$$;
create function pg_temp.said(command text)
    returns text
    language plpgsql
as $$
begin
    execute command;
    return 'nothing';
exception
    when others then
        return sqlstate || ' ' || sqlerrm;
end;
$$;
create temporary view tombstone as
select key, url from gc.tombstones order by id;

select is((select count(*) from pg_trigger as t
    where t.tgname = '~gc_file_moves' and t.tgrelid = 'app.file'::regclass), 1::bigint,
    'a partitioned collection has a trigger for rows that move');
select is((select count(*) from pg_trigger as t where t.tgname = '~gc_file_moves'), 6::bigint,
    'and PostgreSQL has copied it to all partitions');

-- A tombstone, a queue entry.
insert into app.file (id, part, grade, name)
values (1, 1, 0, 'a'), (2, 1, 0, 'b'), (3, 1, 0, 'c'), (4, 3, 0, 'd'), (5, 1, 0, 'e');
select pg_temp.queued() \g /dev/null
merge into app.file as f using (values (1)) as v(id) on f.id = v.id
when matched then update set part = 2, name = 'a2';
select results_eq('table tombstone', $$values ('(1,1,0)', 's3://b/a')$$,
    'a row that a MERGE moves leaves a tombstone for the url that it had');
select is((select array_agg((id, part, event)::text) from gc.file_review_queue),
    array['(1,2,file_update)'], 'and is reviewed under its new key');
delete from gc.tombstones;
select pg_temp.queued() \g /dev/null
merge into app.file as f using (values (1)) as v(id) on f.id = v.id
when matched then update set part = 1;
select is_empty('table tombstone', 'a row that is moved with its object leaves no tombstone');
select is(pg_temp.queued(), 1::bigint, 'but it has another key, which is queued');
merge into app.file as f using (values (1)) as v(id) on f.id = v.id
when matched then update set name = 'a3';
select results_eq('table tombstone', $$values ('(1,1,0)', 's3://b/a2')$$,
    'a MERGE inside a partition leaves one tombstone');
delete from gc.tombstones;
merge into app.file as f using (values (4)) as v(id) on f.id = v.id
when matched then update set grade = 1, name = 'd2';
select results_eq('table tombstone', $$values ('(4,3,0)', 's3://b/d')$$,
    'so does one that moves a row between partitions of a partition');
delete from gc.tombstones;
update app.file set part = 2, name = 'e2' where id = 5;
select results_eq('table tombstone', $$values ('(5,1,0)', 's3://b/e')$$,
    'an UPDATE that moves a row leaves one tombstone, and not two');
delete from gc.tombstones;
update app.file_3 set grade = 0, name = 'd3' where id = 4;
select results_eq('table tombstone', $$values ('(4,3,1)', 's3://b/d2')$$,
    'also one that is aimed at a partition');
delete from gc.tombstones;
merge into app.file as f using (values (1), (2), (9)) as v(id) on f.id = v.id
when matched and f.id = 2 then delete
when matched then update set part = 2, name = 'a4'
when not matched then insert (id, part, grade, name) values (9, 1, 0, 'i');
select bag_eq('table tombstone', $$values ('(1,1,0)', 's3://b/a3'), ('(1,1,0)', 's3://b/a3'),
    ('(2,1,0)', 's3://b/b')$$,
    'a MERGE that deletes rows, too, leaves a second one, for PostgreSQL shows the row as deleted');

-- The object of the new url is being deleted.
delete from gc.tombstones;
delete from app.file where id = 3;
update gc.tombstones as t set wait_for = '0' where t.wait_for is null;
select is((select array_agg(url) from gc.claim('w')), array['s3://b/c'], 'a worker has an object');
select matches(pg_temp.said($$merge into app.file as f using (values (1)) as v(id) on f.id = v.id
    when matched then update set part = 1, name = 'c'$$), '^ZG001',
    'a MERGE that moves a row to the url of an object that is being deleted is refused');
select is((select (part, name)::text from app.file where id = 1), '(2,a4)', 'and changes nothing');
select is(pg_temp.said('update app.file set id = id'), 'nothing',
    'what does not move is not asked');

-- Without current code.
delete from gc.tombstones;
alter table app.file rename column name to title;
merge into app.file as f using (values (1)) as v(id) on f.id = v.id
when matched then update set part = 1, title = 'a5';
select is((select array_agg(content ->> 'title') from gc.unread_rows), array['a4'],
    'after a column was renamed, a row that moves is kept whole');
select is((select count(*) from gc.scan_requests where collection = 'file'), 1::bigint,
    'and a scan is asked for');
alter table app.file rename column title to name;
delete from gc.unread_rows;
alter table app.file rename to files;
merge into app.files as f using (values (1)) as v(id) on f.id = v.id
when matched then update set part = 2, name = 'a6';
select results_eq('table tombstone', $$values ('(1,1,0)', 's3://b/a5')$$,
    'after the table was renamed, it is still followed');
alter table app.files rename to file;
delete from gc.tombstones;

-- A url that PostgreSQL computes, and settings of the collection that change.
select count(*) from gc.track('app.file', url => $$'s3://b/' || path$$,
    condition => 'true') \g /dev/null
merge into app.file as f using (values (1)) as v(id) on f.id = v.id
when matched then update set part = 1, name = 'g';
select results_eq('table tombstone', $$values ('(1,2,0)', 's3://b/a6!')$$,
    'a generated column is known before it is stored');
delete from gc.tombstones;
insert into app.file (id, part, grade, name) values (7, 1, 0, 'h');
delete from app.file where id = 7;
update gc.tombstones as t set wait_for = '0' where t.wait_for is null;
select is((select array_agg(url) from gc.claim('w')), array['s3://b/h!'], 'where it is leased');
select matches(pg_temp.said($$merge into app.file as f using (values (1)) as v(id) on f.id = v.id
    when matched then update set part = 2, name = 'h'$$), '^ZG001', 'the row is refused');
create function app.shout(text) returns text language sql immutable as $$select $1 || '?'$$;
create role mallory;
alter function app.shout(text) owner to mallory;
create table app.loud (
    id int, part int, name text, path text generated always as (app.shout(name)) stored,
    primary key (id, part)
)
partition by list (part);
create table app.loud_1 partition of app.loud default;
select throws_ok($$select gc.track('app.loud', url => $u$'s3://l/' || path$u$,
    condition => 'true')$$, '42501', null, 'code of others computes nothing for a trigger');

-- A trigger that comes before, and a trigger that is disabled.
create function app.rename_file()
    returns trigger
    language plpgsql
as $$
begin
    new.name := new.name || new.part;
    return new;
end;
$$;
create trigger zzz before update on app.file for each row execute function app.rename_file();
delete from gc.tombstones;
merge into app.file as f using (values (1)) as v(id) on f.id = v.id
when matched then update set part = 2;
select results_eq('table tombstone', $$values ('(1,1,0)', 's3://b/g!')$$,
    'a url that another trigger changes is seen as it will be stored');
drop trigger zzz on app.file;
alter table app.file_1 disable trigger "~gc_file_moves";
select matches((select message from (select pg_temp.said(
    $$do 'begin perform gc._is_current(''file'', ''''); end'$$)) as s(message)),
    'disabled', 'a collection whose trigger is disabled in a partition is blocked');
alter table app.file_1 enable trigger "~gc_file_moves";

-- What refers: by a foreign key with links, by declaration.
create table app.thing (id bigint primary key, name text);
create table app.item (id int, "new" int, thing bigint, said bigint, grade numeric, at point)
partition by list ("new");
create table app.item_1 partition of app.item for values in (1) partition by list (scale(grade));
create table app.item_1_0 partition of app.item_1 for values in (0);
create table app.item_1_1 partition of app.item_1 for values in (1);
create table app.item_2 partition of app.item for values in (2);
alter table app.item add foreign key (thing) references app.thing;
create index on app.item (thing);
create index on app.item (said);
select count(*) from gc.track('app.thing') \g /dev/null
select count(*) from gc.declare_reference('thing', 'app.item', 'said') \g /dev/null
insert into app.thing values (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd');
insert into app.item values (1, 1, 1, 2, 1);
delete from gc.thing_review_queue;
merge into app.item as i using (values (1)) as v(id) on i.id = v.id
when matched then update set "new" = 2, thing = 3, said = 4;
select results_eq('select id, event from gc.thing_review_queue order by id',
    $$values (1::bigint, 'item_update'), (2, 'item_update')$$,
    'what a row that moves no longer refers to is queued, by foreign key or declared');
select is((select array_agg(to_jsonb(l) order by id) from gc.thing_item_links as l where id = 3),
    array['{"id": 3, "in_new": 2}'::jsonb], 'and the link to where it refers now is there');
delete from app.thing where id = 1;
select matches(pg_temp.said($$merge into app.item as i using (values (1)) as v(id) on i.id = v.id
    when matched then update set "new" = 1, said = 1$$), '^ZG005',
    'a declared reference to what is gone is refused');
select is((select (i.said, c.relname)::text from app.item as i
    join pg_class as c on c.oid = i.tableoid), '(4,item_2)',
    'and the row stays where it was');
update app.item set "new" = 1;
delete from gc.thing_review_queue;
merge into app.item as i using (values (1)) as v(id) on i.id = v.id
when matched then update set grade = 1.0, thing = 4;
select results_eq('select id, event from gc.thing_review_queue order by id',
    $$values (3::bigint, 'item_update')$$,
    'also between partitions that tell values apart which are equal');
create table app.item_3 (like app.item) partition by list ((at[0]));
create table app.item_3_x partition of app.item_3 for values in (1);
create table app.item_3_y partition of app.item_3 for values in (2);
alter table app.item attach partition app.item_3 for values in (3);
select gc._generate('thing') \g /dev/null
select matches(pg_get_triggerdef(t.oid), 'old"?\."?at', 'the trigger is made again')
from pg_trigger as t
where t.tgrelid = 'app.item'::regclass and t.tgname = '~gc_thing_moves_item';
insert into app.item values (2, 3, 2, 2, 1, '(1,1)');
delete from gc.thing_review_queue;
merge into app.item as i using (values (2)) as v(id) on i.id = v.id
when matched then update set at = '(2,1)', thing = null;
select results_eq('select id, event from gc.thing_review_queue order by id',
    $$values (2::bigint, 'item_update')$$,
    'when a partition is partitioned by a column of a type without an equality');

-- No name breaks it.
create schema "new";
create table "new"."old" (
    "new" int, "{url}" int, "old" numeric, "this" text, "is_current" text,
    primary key ("new", "{url}", "old")
)
partition by range ("old", "{url}");
create table "new"."new" partition of "new"."old" for values from (0, 0) to (10, 10);
create table "new"."new_rows" partition of "new"."old" for values from (10, 10) to (20, 20);
select count(*) from gc.track('"new"."old"', name => 'new', url => $$'s3://n/' || "this"$$,
    condition => '"is_current" is not null') \g /dev/null
insert into "new"."old" values (1, 1, 1, '%s {new_rows} $1', 'x');
delete from gc.tombstones;
merge into "new"."old" as o using (values (1)) as v(id) on o."new" = v.id
when matched then update set "old" = 12, "this" = 'y';
select results_eq('table tombstone', $$values ('(1,1,1)', 's3://n/%s {new_rows} $1')$$,
    'tables and columns may be called new, old and {url}');
delete from gc.tombstones;

-- Out of use.
select gc.untrack('new') \g /dev/null
update "new"."old" set "old" = 1;
select is((select count(*) from "new"."new"), 1::bigint,
    'after gc.untrack, a trigger that is still there lets rows move');
select is_empty('table tombstone', 'and does nothing');
select is(count(*), 0::bigint, 'what is not partitioned has no such trigger')
from pg_trigger as t where t.tgrelid = 'app.thing'::regclass and t.tgname like '~%';
select * from finish();
rollback;
