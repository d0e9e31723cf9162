-- Sizes: what is no size, or too big a one, fails nothing and is not known.
begin;
set local client_min_messages = error;
select plan(9);

create schema app;
update gc.settings set jitter = '0', undo = '0';

-- As if the time of every review had come. Returns how many rows of the collection went.
create function pg_temp.review(name text)
    returns integer
    language plpgsql
as $$
begin
    execute format('update gc.%I set review_after = now()', name || '_review_queue');
    return (select r.deleted from gc.review() as r where r.collection = name);
end;
$$;
-- What a runner is told to delete, and deletes.
create function pg_temp.handed_out()
    returns text[]
    language plpgsql
as $$
declare
    ids bigint[];
    urls text[];
begin
    select array_agg(c.id), coalesce(array_agg(c.url order by c.url), '{}') into ids, urls
    from gc.claim('w') as c;
    perform gc.confirm('w', ids);
    return urls;
end;
$$;


create table app.blob (id integer primary key, bytes numeric, approx float8);
select count(*) from gc.track('app.blob', url => $$'gs://blob/' || id$$, size => 'bytes',
    condition => 'true')
\g /dev/null
insert into app.blob (id, bytes)
values (1, 1e30), (2, 'NaN'), (3, 'Infinity'), (4, '-Infinity'), (5, -1), (6, 12),
    (7, 9223372036854775807.4), (8, 9223372036854775807), (9, 0.6), (10, null);
select lives_ok('delete from app.blob', 'a size that is none does not fail a delete');
select results_eq('select key::integer, size from gc.tombstones order by 1',
    $$values (1, null::bigint), (2, null), (3, null), (4, null), (5, null), (6, 12), (7, null),
        (8, null), (9, 1), (10, null)$$, 'and is not known then');
delete from gc.tombstones;
select count(*) from gc.track('app.blob', url => $$'gs://blob/' || id$$, size => 'approx',
    condition => 'true')
\g /dev/null
insert into app.blob (id, approx) values (1, 'NaN'), (2, 1e30), (3, 2.0 ^ 63), (4, 2.0 ^ 50);
select lives_ok('delete from app.blob', 'a size in floating point does not fail a delete');
select results_eq('select key, size from gc.tombstones order by key',
    $$values ('1', null::bigint), ('2', null), ('3', null), ('4', 1125899906842624)$$,
    'a size in floating point is not known when it does not fit');
truncate gc.tombstones;
select gc.untrack('blob');
truncate app.blob;
select count(*) from gc.track('app.blob', url => $$'gs://blob/' || id$$, size => 'bytes',
    condition => 'true')
\g /dev/null
insert into app.blob values (1, 9223372036854775807), (2, 9223372036854775807), (3, 1);
select pg_temp.review('blob') \g /dev/null
select is_empty('table app.blob', 'rows whose sizes are too big together are collected at once');
truncate gc.tombstones;
truncate app.blob;
truncate gc.tombstones;
insert into app.blob values (1, 9223372036854775807), (2, 9223372036854775807);
delete from app.blob;
select lives_ok($$do 'begin perform pg_temp.handed_out(); end'$$,
    'objects whose sizes are too big together can be confirmed');
select is_empty('table gc.tombstones', 'and are done with');
delete from gc.totals;
delete from gc.tombstones;
insert into gc.totals (collection, day, objects, bytes)
select 'blob', current_date - 1, 1, 9223372036854775807 from generate_series(1, 2);
select lives_ok('select * from gc.daily_totals', 'totals that are too big together can be read');
select lives_ok('select * from gc.review()', 'totals that are too big together stop no review');
delete from gc.totals;

select * from finish();
rollback;
