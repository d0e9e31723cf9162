-- Reconciling: a listing compared with rows. What is in doubt is no orphan.
begin;
set local client_min_messages = error;
select plan(31);

create schema app;
create table app.file (name text primary key, bytes bigint);
create table app.picture (id integer primary key, path text);
update gc.settings set jitter = '0', undo = '1 hour', orphan_grace = '2 days', brake_share = 1;
select count(*) from gc.track('app.file', url => $$'s3://b/files/' || name$$, size => 'bytes',
    collect => 'deleted') \g /dev/null
select count(*) from gc.track('app.picture', url => $$'s3://b/pictures/' || path$$,
    collect => 'deleted') \g /dev/null
insert into app.file values ('same', 1), ('other size', 1), ('missing', 1), ('a//b', 1);
insert into app.picture values (1, 'shared'), (2, 'shared');

create function pg_temp.list(variadic names text[])
    returns bigint
    language plpgsql
as $$
declare
    made bigint := gc.begin_listing('s3://b/', '2026-01-10 00:00+00', 'inventory');
begin
    perform gc.add_parts(made, '{s3://b/}', '{true}');
    insert into gc.listed_objects (listing, part, url, size, written_at, generation)
    select made, 1, 's3://b/' || n, 1, '2026-01-01 00:00+00', null from unnest(names) as n;
    return made;
end;
$$;
create function pg_temp.compare(listing bigint)
    returns void
    language plpgsql
as $$
begin
    perform gc.note_part(listing, 1, null, true);
    perform gc.end_listing(listing);
    perform gc.compare(listing);
end;
$$;
create function pg_temp.found()
    returns setof text
    language sql
as $$
    select format('%s %s', kind, substr(url, 8)) from gc.discrepancies order by kind, url collate "C"
$$;


-- A listing that is not complete.
create temporary table listing as select pg_temp.list('files/same') as id;
select throws_ok('select gc.compare(id) from listing', '55000', 'the listing is not complete',
    'a listing is not compared before it is complete');
select throws_ok('select gc.end_listing(id) from listing', '55000', 'the listing is not complete',
    'it is not complete while a part is missing');
select throws_ok('select gc.adopt_orphans(id) from listing', '55000',
    'the listing was not compared with rows within a day', 'nothing is adopted before');
select lives_ok('select gc.note_part(id, 1, ''x'', false) from listing', 'a part goes on');
select is((select cursor from gc.open_parts((select id from listing))), 'x',
    'where it has come to is known');
select is((select count(*) from gc.listed_objects), 1::bigint, 'and what there is of it stays');
select lives_ok('select gc.note_part(id, 1, null, false) from listing', 'a part that cannot go on');
select is((select count(*) from gc.open_parts((select id from listing))), 1::bigint,
    'is listed again');
select is((select count(*) from gc.listed_objects), 0::bigint, 'and what there was of it is dropped');
select throws_ok('select gc.note_part(id, 2, null, true) from listing', '55000',
    'this is no part of a listing that is under way', 'another part is none of it');
select is((select gc.begin_listing('s3://b/', now()) > id from listing), true, 'another begins');
select throws_ok('select gc.note_part(id, 1, null, true) from listing', '55000', null,
    'and so the first is over');
select throws_ok('select gc.compare(id) from listing', '42704', null, 'it cannot be compared');
select throws_ok($$select gc.begin_listing('s3://b', now())$$, '23514', null,
    'a prefix ends with a slash');


-- What differs. One marker is ours, and one is not.
insert into gc.markers (prefix, place, token) values ('s3://b/files/', '{}', gen_random_uuid());
select pg_temp.compare(pg_temp.list('files/same', 'files/orphan', 'files/a/b', 'pictures/shared',
    'pictures/orphan', 'elsewhere/x', '.blobgc', 'files/.blobgc', 'files/.blobgc-quarantine/x',
    'files/..', 'files/x/', 'files/theirs/.blobgc', 'files/theirs/x', 'files/theirs/deep/y'))
\g /dev/null
select results_eq('select * from pg_temp.found()', array[
    'doubtful files/..', 'doubtful files/a/b', 'doubtful files/x/', 'elsewhere elsewhere/x',
    'foreign files/theirs/deep/y', 'foreign files/theirs/x',
    'missing files/a//b', 'missing files/missing', 'missing files/other size',
    'orphan files/orphan', 'orphan pictures/orphan'
], 'objects without a row, and rows without an object');
update gc.listed_objects set size = 7 where url = 's3://b/files/same';
update gc.listed_objects set written_at = '2026-01-08 00:00:01+00' where url like '%orphan';
update gc.listed_objects set written_at = null where url = 's3://b/pictures/orphan';
select gc.compare(max(id)) from gc.listings \g /dev/null
delete from gc.markers;
select is((select string_agg(url, ' ' order by url) from gc.discrepancies where kind = 'young'),
    's3://b/files/orphan s3://b/pictures/orphan',
    'what is younger than the grace, or of an unknown age, is no orphan');
select is((select format('%s %s', size, listed_size) from gc.discrepancies where kind = 'size'),
    '1 7', 'sizes that differ');
select is((select gc.absolve(max(id), '{s3://b/files/missing, s3://b/files/other size}', '{1, 2}')
    from gc.listings), 1::bigint, 'a row whose object was found is in order');
select is((select format('%s %s', kind, listed_size) from gc.discrepancies
    where url = 's3://b/files/other size'), 'size 2', 'and one whose object has another size is not');
select is((select sum(number) from gc.differences((select max(id) from gc.listings))), 11::numeric,
    'they are counted');


-- What is known is no orphan.
select pg_temp.compare(pg_temp.list('files/same', 'files/on its way', 'files/held', 'files/gone',
    'files/orphan')) from (select gc.begin_upload('file', 'held')) as h \g /dev/null
insert into app.file values ('on its way', 1);
delete from app.file where name = 'on its way';
insert into gc.deletion_log (collection, key, url, row_deleted_at)
values ('file', 'gone', 's3://b/files/gone', now());
select gc.compare(max(id)) from gc.listings \g /dev/null
select is((select string_agg(url, ' ') from gc.discrepancies where kind = 'orphan'),
    's3://b/files/orphan', 'what has a tombstone or a hold, or was deleted since, is no orphan');
insert into gc.unread_rows (collection, content, relation, columns)
values ('file', '{}', 'app.file'::regclass, '{}');
select gc.compare(max(id)) from gc.listings \g /dev/null
select is((select kind from gc.discrepancies where url = 's3://b/files/orphan'), 'doubtful',
    'while rows that went cannot be worked out, nothing of their collection is an orphan');
delete from gc.unread_rows;


-- Adopting.
select gc.compare(max(id)) from gc.listings \g /dev/null
select is((select gc.adopt_orphans(max(id)) from gc.listings), 1::bigint, 'an orphan is adopted');
select is((select gc.adopt_orphans(max(id)) from gc.listings), 0::bigint, 'once');
select is((select format('%s %s %s %s', collection, key, event, due_at > now() + interval '59 min')
    from gc.tombstones where url = 's3://b/files/orphan'), 'file s3://b/files/orphan reconcile t',
    'its tombstone waits for the undo window');
select gc.compare(max(id)) from gc.listings \g /dev/null
select is((select count(*) from gc.discrepancies where kind = 'orphan'), 0::bigint,
    'what was adopted is no orphan any more');
update gc.tombstones set due_at = now() - interval '1 second';
select is((select string_agg(url, ' ') from gc.claim('w') where key = url), 's3://b/files/orphan',
    'a worker is handed it');
select is(gc.disown('s3://b/'), 0::bigint, 'what a worker has is not taken back');
select gc.release('w', array(select id from gc.tombstones)) \g /dev/null
insert into app.file values ('orphan', 1);
update gc.tombstones set due_at = now() - interval '1 second';
select is((select count(*) from gc.claim('w') where key = url), 0::bigint,
    'a row that has come meanwhile keeps its object');
select gc.compare(max(id)) from gc.listings \g /dev/null
select is((select count(*) from gc.discrepancies where url like '%/orphan'), 0::bigint,
    'and then they agree');


select is(gc._folded('s3://B/%41%2Fb+c/./Ü'), gc._folded('s3:/b//A/B c/u'),
    'spellings of one name fold to one text');
select * from finish();
rollback;
