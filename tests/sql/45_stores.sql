-- Stores: a worker gets what is under its prefixes, and what others cannot delete is not its concern.
begin;
set local client_min_messages = error;
select plan(24);

create schema app;
create table app.file (id integer primary key, path text);
create index on app.file (path);
update gc.settings set jitter = '0', undo = '0', max_sleep = '1 hour';
select count(*) from gc.track('app.file', url => 'path', condition => 'false') \g /dev/null
select count(*) from gc.review() \g /dev/null

create function pg_temp.bury(variadic urls text[])
    returns void
    language sql
as $$
    delete from gc.tombstones;
    insert into app.file select n, u from unnest(urls) with ordinality as o(u, n);
    delete from app.file;
$$;
create function pg_temp.claimed(prefixes text[], batch integer default 1000)
    returns text[]
    language plpgsql
as $$
declare
    found_here text[];
begin
    found_here := array(
        select c.url from gc.claim('worker', batch, prefixes => prefixes) as c order by c.url);
    update gc.tombstones set worker = null, due_at = now();
    return found_here;
end;
$$;

select pg_temp.bury('s3://a/x', 's3://a/y/1', 's3://ab/x', 'gs://a/x', 'file:///a/x', 'file:///b/x');
select is(pg_temp.claimed(null), array['file:///a/x', 'file:///b/x', 'gs://a/x', 's3://a/x',
    's3://a/y/1', 's3://ab/x'], 'without prefixes, a worker gets everything');
select is(pg_temp.claimed('{s3://a/}'), array['s3://a/x', 's3://a/y/1'],
    'with a prefix, a worker gets what is under it and not what looks like it');
select is(pg_temp.claimed('{s3://a/y/}'), array['s3://a/y/1'], 'a prefix may be a folder');
select is(pg_temp.claimed('{file:///b/}'), array['file:///b/x'], 'in any store');
select is(pg_temp.claimed('{s3://ab/,gs://a/,s3://a/y/,s3://a/}'),
    array['gs://a/x', 's3://a/x', 's3://a/y/1', 's3://ab/x'],
    'several prefixes may overlap: nothing comes twice');
select is(pg_temp.claimed('{}'), '{}', 'under no prefix there is nothing');
select is(pg_temp.claimed('{s3://none/}'), '{}', 'nor in a store of which there is nothing');
select is(pg_temp.claimed('{s3://a%,s3://_/}'), '{}', 'a prefix is no pattern');

-- When there will be work.
select pg_temp.bury('s3://a/x', 's3://b/x');
update gc.tombstones
set due_at = now() + case url when 's3://a/x' then interval '10 minutes' else '20 minutes' end;
select is(gc.next_due(), now() + interval '10 minutes', 'gc.next_due looks at all stores');
select is(gc.next_due('{s3://b/}'), now() + interval '20 minutes', 'or at those of the prefixes');
select is(gc.next_due('{s3://a/,s3://b/}'), now() + interval '10 minutes', 'at the first of them');
select is(gc.next_due('{s3://c/}'), now() + interval '1 hour', 'where nothing is, it is max_sleep');
select pg_temp.bury('s3://a/x/1', 's3://a/y/1');
update gc.tombstones set due_at = now() + interval '5 minutes' where url = 's3://a/x/1';
select is(gc.next_due('{s3://a/z/}'), now() + interval '1 hour',
    'what is in the same store and under another prefix does not count');
select is(gc.next_due('{s3://a/x/}'), now() + interval '5 minutes', 'what is under it does');
update gc.tombstones set wait_for = '0';
select is(gc.next_due('{s3://a/x/}'), now() + interval '5 minutes', 'also where the key makes the url');
update gc.tombstones set wait_for = '1';
select is(gc.next_due('{s3://a/x/}'), now() + interval '5 minutes', 'or nothing is waited for any more');
update gc.tombstones set wait_for = pg_snapshot_xmax(pg_current_snapshot());
select is(gc.next_due('{s3://a/z/}'), now() + interval '1 hour', 'nor what waits for a transaction');
select ok(gc.next_due('{s3://a/x/}') <= now() + interval '1 second', 'unless it is under it');

-- A backlog that others cannot delete.
select pg_temp.bury('s3://mine/1', 's3://shared/mine/1');
insert into app.file select i, 's3://theirs/' || i from generate_series(1, 300) as i;
insert into app.file select i, 's3://shared/theirs/' || i from generate_series(301, 600) as i;
delete from app.file;
update gc.tombstones
set due_at = now() - interval '1 day', failures = 9, last_error = 'no such bucket'
where url ~ 'theirs';
select is(pg_temp.claimed('{s3://mine/}', 10), array['s3://mine/1'],
    'others'' failures in another store do not matter');
update gc.tombstones set due_at = now() - interval '1 day' where url ~ 'theirs';
select is(pg_temp.claimed('{s3://shared/mine/}', 10), array['s3://shared/mine/1'],
    'nor do those in the same store');
update gc.tombstones set due_at = now() - interval '1 day' where url ~ 'theirs';
select is((select count(*) from gc.tombstones where worker is not null), 0::bigint,
    'and theirs are nobody''s');
select is(cardinality(pg_temp.claimed(null, 10)), 10, 'who takes everything takes theirs as well');


-- Labels.
delete from gc.tombstones;
insert into gc.tombstones (collection, key, url, due_at)
select 'file', i, format('s3://bucket-%s/%s', s, i), now()
from generate_series(1, 60) as s cross join lateral generate_series(1, 61 - s) as i;
select is(
    (select count(distinct labels) from gc.metrics where name = 'blobgc_tombstones'), 21::bigint,
    'of sixty stores, twenty become labels, and the rest is one more');
select results_eq(
    $$select labels, value from gc.metrics where name = 'blobgc_tombstones'
        order by value desc limit 3$$,
    $$values ('collection="file",store="other"', 820::float8),
        ('collection="file",store="s3://bucket-1"', 60), ('collection="file",store="s3://bucket-2"', 59)$$,
    'they are those with the most tombstones, and nothing is left out');

select * from finish();
rollback;
