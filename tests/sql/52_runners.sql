-- Runners: who is there, and since when nothing has been collected.
begin;
set local client_min_messages = error;
select plan(17);

create schema app;
create table app.file (id integer primary key);
update gc.settings set undo = '0', jitter = '0';
select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id$$, condition => 'true')
    \g /dev/null
select gc.set_delay('file_insert', '0') \g /dev/null

set local application_name = 'blobgc 0.2.0 alpha.example/77';
select is_empty('select * from gc.runners', 'at first nobody is there');
select is((select last_deleted_at from gc.status()), null, 'and nothing was ever deleted');
insert into app.file values (1), (2);
select count(*) from gc.review() \g /dev/null
select results_eq('select worker, host, version, role, last_claim from gc.runners',
    $$select null::text, 'alpha.example', '0.2.0', current_setting('session_authorization'), null::timestamptz$$,
    'a review tells host and version of its runner');
select count(*) from gc.claim('alpha-1', 1, prefixes => '{s3://bucket/}') \g /dev/null
select results_eq('select worker, host, version, prefixes, holds from gc.runners',
    $$values ('alpha-1', 'alpha.example', '0.2.0', '{s3://bucket/}'::text[], 1::bigint)$$,
    'a claim tells its worker and prefixes; both are one runner');
select ok((select last_review <= last_claim and last_call = last_claim and since <= last_review
    and holds_until > now() + interval '4 minutes' from gc.runners), 'with their times');

-- At most once a minute.
create temporary table before as select ctid as place, * from gc.runner_calls;
select count(*) from gc.claim('alpha-1', 1, prefixes => '{s3://bucket/}') \g /dev/null
select count(*) from gc.review() \g /dev/null
select set_eq('select ctid as place, * from gc.runner_calls', 'select * from before', 'calls in a minute write nothing');
update gc.runner_calls set last_call = now() - interval '2 minutes', since = now() - interval '1 h';
select count(*) from gc.claim('alpha-1', 1, prefixes => '{s3://bucket/}') \g /dev/null
select is((select count(*) from gc.runner_calls where last_call > now() - interval '1 minute'),
    1::bigint, 'later ones do');
select is((select count(*) from gc.runner_calls), 2::bigint, 'in the same row');
select ok((select since < now() - interval '59 minutes' and last_call >= now() from gc.runners),
    'so it is known since when');
select count(*) from gc.claim('alpha-1', 1, prefixes => '{s3://bucket/, gs://b/}') \g /dev/null
select is((select prefixes from gc.runners), '{s3://bucket/, gs://b/}', 'other prefixes at once');

-- Others.
set local application_name = 'psql';
select count(*) from gc.claim('by hand') \g /dev/null
select count(*) from gc.claim('by another hand') \g /dev/null
select bag_eq('select worker, host, version from gc.runners',
    $$values ('alpha-1', 'alpha.example', '0.2.0'), ('by hand', null, null),
        ('by another hand', null, null)$$,
    'whoever does not say who it is has only its name');
select gc.confirm('alpha-1', array(select id from gc.tombstones where worker = 'alpha-1'))
    \g /dev/null
select is((select holds from gc.runners where worker = 'alpha-1'), 0::bigint,
    'what was confirmed is not held any more');

-- The last success.
select ok((select last_deleted_at between now() and clock_timestamp() from gc.status()),
    'it is known when something was last deleted');
select is((select value from gc.metrics where name = 'blobgc_last_success_timestamp_seconds'),
    (select extract(epoch from last_deleted_at)::float8 from gc.status()), 'also as a metric');
update gc.totals set day = day - 3, counted_at = counted_at - interval '3 days';
select count(*) from gc.review() \g /dev/null
select ok((select bool_and(folded) from gc.totals), 'when totals are folded');
select ok((select last_deleted_at between now() - interval '3 days' and now() - interval '2 days'
    from gc.status()), 'it stays known');

update gc.runner_calls set last_call = now() - interval '8 days' where worker <> '';
select count(*) from gc.review() \g /dev/null
select set_eq('select worker from gc.runner_calls', array[''], 'who is long gone is forgotten');

select * from finish();
rollback;
