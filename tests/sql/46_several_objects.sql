-- Several objects a row: the url is an array, and each element is an object.
begin;
select plan(43);

set local client_min_messages = error;
-- In a literal, NULL is to mean null.
set local array_nulls = on;
create schema app;
update gc.settings set undo = '0', jitter = '0';
create table app.picture (id integer primary key, urls text[], bytes bigint);
create table app.page (id integer primary key, picture integer references app.picture);
create index on app.page (picture);
create function pg_temp.left_behind() returns table (key text, url text, size bigint)
    language sql as $$
    with gone as (delete from gc.tombstones returning *)
    select g.key, g.url, g.size from gone as g order by g.id
$$;
create function pg_temp.review() returns text language plpgsql as $$
begin
    update gc.picture_review_queue set review_after = now();
    return (select format('%s deleted, %s bytes', deleted, bytes) from gc.review()
        where collection = 'picture');
end;
$$;

select is((select count(*) from gc.track('app.picture', url => 'urls', size => 'bytes')), 1::bigint,
    'a url may be an array of text');
select is((select advice from gc.status()),
    'create index concurrently on app.picture using gin ((urls));',
    'rows are found by a GIN index, which status recommends');
create index on app.picture using gin ((urls));
select is((select advice from gc.status()), null, 'until it is there');
select is((select shared from gc.collections), true, 'rows may share objects');
select count(*) from gc.track('app.picture', url => 'urls', size => 'bytes') \g /dev/null
select matches((select prosrc from pg_proc where oid = 'gc.picture_used'::regproc), E'@> array',
    'the index serves claims');

-- Deleting, by a review and by the application.
insert into app.picture values
    (1, array['s3://p/1', null, 's3://p/1-small', 's3://p/1'], 100),
    (2, '{s3://p/2}', 20), (3, null, 30), (4, '{}', 40), (5, '{null}', 50);
insert into app.page values (2, 2);
select is(pg_temp.review(), '4 deleted, 220 bytes', 'a review counts the bytes of rows once');
select results_eq('select * from pg_temp.left_behind()',
    $$values ('1', 's3://p/1', 100::bigint), ('1', 's3://p/1-small', null)$$,
    'each object has a tombstone, null and what is there twice has none; the first has the size');
select is((select array_agg(key order by key) from gc.deletion_log), '{3,4,5}',
    'a row without an object is logged by the review');
delete from app.page;
delete from app.picture where id = 2;
select results_eq('select * from pg_temp.left_behind()', $$values ('2', 's3://p/2', 20::bigint)$$,
    'so does a row that the application deletes');

-- Updating.
insert into app.picture values (6, '{s3://p/6,s3://p/6-small,s3://p/6-large}', 60);
update app.picture set bytes = 61 where id = 6;
select is_empty('select * from pg_temp.left_behind()', 'an update of something else leaves nothing');
update app.picture set urls = array_append(urls, 's3://p/6-huge') where id = 6;
update app.picture set urls = array_append(urls, null) where id = 6;
update app.picture set urls = '{s3://p/6-huge,s3://p/6-large,s3://p/6-small,s3://p/6}' where id = 6;
select is_empty('select * from pg_temp.left_behind()', 'nor what is added, or in another order');
update app.picture set urls = array_remove(urls, 's3://p/6-large') where id = 6;
select results_eq('select * from pg_temp.left_behind()',
    $$values ('6', 's3://p/6-large', null::bigint)$$,
    'what an update takes out leaves a tombstone, of unknown size');
update app.picture set urls = null where id = 6;
select is((select array_agg(url order by url collate "C") from pg_temp.left_behind()),
    '{s3://p/6,s3://p/6-huge,s3://p/6-small}', 'with null all are taken out');
insert into app.picture values (7, '{s3://p/a,s3://p/b}', 1), (8, '{s3://p/c}', 1);
update app.picture set urls = case id when 7 then '{s3://p/c,s3://p/a}'::text[]
    else '{s3://p/b}' end where id in (7, 8);
select is_empty('select * from pg_temp.left_behind()', 'what one row gives to another stays');

-- Sharing.
insert into app.picture values (9, '{s3://p/x,s3://p/y}', 9), (10, '{s3://p/z,s3://p/y}', 10);
delete from app.picture where id = 9;
select is((select array_agg(url) from gc.claim('w')), '{s3://p/x}',
    'an object that is in the array of another row is not handed out');
select is((select count(*) from gc.tombstones), 1::bigint, 'its tombstone goes');
select throws_ok($$insert into app.picture values (11, '{s3://p/new,s3://p/x}')$$, 'ZG001',
    'the object of this row is being deleted', 'an object that is being deleted is refused');
select throws_ok($$update app.picture set urls = urls || 's3://p/x'::text where id = 10$$, 'ZG001',
    'the object of this row is being deleted', 'also where it is added to an array');
select lives_ok($$update app.picture set bytes = 3 where id = 10$$, 'other rows can be changed');
select is(gc.confirm('w', array(select id from gc.tombstones)), 1, 'the worker confirms');
delete from gc.deleted_objects;

-- A tombstone that nobody has claimed.
update app.picture set urls = '{s3://p/z}' where id = 10;
update app.picture set urls = '{s3://p/y,s3://p/z}' where id = 10;
select is((select count(*) from gc.claim('w')), 0::bigint,
    'what was taken out and put back stays');
select is((select count(*) from gc.tombstones), 0::bigint, 'and has no tombstone any more');

-- Another collection that has one of the objects.
create table app.logo (id integer primary key, url text);
create index on app.logo (url);
select count(*) from gc.track('app.logo', url => 'url', collect => 'deleted') \g /dev/null
insert into app.logo values (1, 's3://p/z'), (2, 's3://p/l');
delete from app.picture where id = 10;
select is((select array_agg(url) from gc.claim('w')), '{s3://p/y}',
    'a row of another collection keeps an object of an array');
insert into app.picture values (12, '{s3://p/l}', 1);
delete from app.logo where id = 2;
select is((select count(*) from gc.claim('w')), 0::bigint, 'and the other way round');
select count(*) from gc.untrack('logo') \g /dev/null
delete from gc.tombstones;

-- TRUNCATE, undo, and rows that are kept whole.
delete from app.picture;
delete from gc.tombstones;
insert into app.picture values (13, '{s3://p/13,s3://p/13-small}', 13);
truncate app.picture cascade;
select results_eq('select * from pg_temp.left_behind()',
    $$values ('13', 's3://p/13', 13::bigint), ('13', 's3://p/13-small', null)$$,
    'a TRUNCATE leaves a tombstone for each');
insert into app.picture values (14, '{s3://p/14,null,s3://p/14-small}', 14);
alter table app.picture rename column urls to addresses;
select lives_ok($$delete from app.picture$$, 'a table that has changed fails no statement');
select is((select count(*) from gc.unread_rows), 1::bigint, 'the row is kept whole');
alter table app.picture rename column addresses to urls;
select count(*) from gc.review() \g /dev/null
select results_eq('select * from pg_temp.left_behind()',
    $$values ('14', 's3://p/14', 14::bigint), ('14', 's3://p/14-small', null)$$,
    'and worked out by the next review');
insert into app.picture values (15, '{s3://p/15}', 1);
delete from app.picture;
select count(*) from gc.claim('w') \g /dev/null
alter table app.picture rename column bytes to size;
select throws_ok($$insert into app.picture values (16, '{s3://p/16,s3://p/15}', 1)$$, 'ZG001',
    'the object of this row is being deleted', 'a table that has changed admits none either');
alter table app.picture rename column size to bytes;
delete from gc.tombstones;
select count(*) from gc.track('app.picture', url => 'urls', undo => '1 day') \g /dev/null
insert into app.picture values (17, '{s3://p/17,s3://p/17-small}', 1);
delete from app.picture;
select is((select count(*) from gc.tombstones where due_at = now() + interval '1 day'), 2::bigint,
    'undo is for each object');
delete from gc.tombstones;
select count(*) from gc.track('app.picture', url => 'urls', size => 'bytes') \g /dev/null

-- Uploads and holds.
insert into app.picture values (18, '{s3://p/18,s3://p/18-small}', 1);
delete from app.picture;
select ok(gc.begin_upload('picture', '18') > now(), 'an upload is announced by the key');
select is((select count(*) from gc.claim('w')), 0::bigint, 'and holds all objects of that key');
select is(gc.end_upload('picture', '18'), true, 'until it ends');
delete from gc.tombstones;
insert into app.picture values (19, '{s3://p/19,s3://p/19-small}', 1);
delete from app.picture;
select ok(gc.begin_upload('picture', '20', url => 's3://p/19-small') > now(), 'or by an url');
update gc.tombstones set due_at = now();
select is((select array_agg(url) from gc.claim('w')), '{s3://p/19}', 'and holds that one');
select is(gc.end_upload('picture', '20'), true, 'until it ends, too');
update gc.settings set strict_uploads = true;
select throws_ok($$insert into app.picture values (21, '{s3://p/21}', 1)$$, 'ZG002',
    'the object of this row was not announced', 'strict uploads want the key');
select count(*) from gc.begin_upload('picture', '21') \g /dev/null
select lives_ok($$insert into app.picture values (21, '{s3://p/21,s3://p/21-small}', 1)$$,
    'and the key is enough');
update gc.settings set strict_uploads = false;
select is(gc.keep_alive('picture', '21'), true, 'a row is kept alive with all its objects');

-- What is refused.
select throws_ok($$select gc.track('app.picture', url => 'urls', generation => 'id')$$, '0A000',
    'a url that is an array cannot have a generation', 'a version belongs to one object');
select throws_matching($$select gc.track('app.picture', url => 'array[id]')$$,
    'must be an expression over one row', 'an array of anything else is no url');
select throws_matching($$select gc.track('app.picture', url => 'urls::varchar[]')$$,
    'must be an expression over one row', 'of varchar, too');

-- A table that has changed, and an array of two dimensions.
create table app.grid (id bigint primary key, urls text[]);
create index on app.grid using gin (urls);
select count(*) as ignored from gc.track('app.grid', url => 'urls', condition => 'false',
    undo => '0') \gset
insert into app.grid values (1, '{{s3://grid/a,s3://grid/b}}');
delete from app.grid;
select count(*) as ignored from gc.claim('w', prefixes => '{s3://grid/}') \gset
alter table app.grid alter column id type integer;
select throws_ok($$insert into app.grid values (2, '{{s3://grid/b,s3://grid/c}}')$$, 'ZG001',
    'the object of this row is being deleted', 'no object of a row may be being deleted');

select * from finish();
rollback;
