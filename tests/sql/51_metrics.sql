-- Metrics: the numbers of gc.status, named as Prometheus wants them.
begin;
set local client_min_messages = error;
select plan(18);

create schema app;
create table app.file (id bigint primary key, bytes bigint);
create table app.plain (id bigint primary key);
update gc.settings set jitter = '0', undo = '0';
insert into gc.review_after_defaults values ('file_insert', '0'), ('plain_insert', '1 hour');

select is_empty('select * from gc.metrics', 'without a collection there is nothing to count');

select count(*) from gc.track(
    'app.file', url => $$'s3://bucket/' || id$$, size => 'bytes', condition => 'true') \g /dev/null
select count(*) from gc.track('app.plain', name => E'a "b" \\ c', condition => 'true') \g /dev/null

create function pg_temp.metric(wanted text, labels text)
    returns double precision
    language sql
as $$
    select m.value from gc.metrics as m
    where m.name = 'blobgc_' || wanted and m.labels = metric.labels
$$;

select is_empty($$select value from gc.metrics where value is distinct from 0$$,
    'before anything happens every number is zero');
select ok(exists (
    select from gc.metrics where labels = E'collection="a \\"b\\" \\\\ c"'),
    'a name is escaped as Prometheus reads it');

-- Queues.
insert into app.file values (1, 100), (2, 200), (3, 300);
insert into app.plain values (1), (2);
update gc.file_review_queue set review_after = now() - interval '1 minute' where id = 1;
update gc.file_review_queue set review_count = 1, last_error = 'x' where id = 2;
select is(pg_temp.metric('queue_entries', 'collection="file"'), 3::float8, 'queued');
select is(pg_temp.metric('queue_due_entries', 'collection="file"'), 3::float8, 'due');
select is(pg_temp.metric('queue_failing_entries', 'collection="file"'), 1::float8, 'failing');
select ok(pg_temp.metric('queue_overdue_seconds', 'collection="file"') between 60 and 120,
    'for how long the first has been due');
select is(pg_temp.metric('queue_due_entries', E'collection="a \\"b\\" \\\\ c"'), 0::float8,
    'what is not due is not counted as due');

-- Tombstones, by store.
select count(*) from gc.review() \g /dev/null
update gc.tombstones set url = 'gs://other-bucket/x' where key = '2';
update gc.tombstones set failures = 1, last_error = 'x' where key = '3';
insert into gc.tombstones (collection, key, url, due_at)
values ('file', '4', E'gs://"} 1\nevil/x', now()), ('file', '5', 'file:///dir/x', now()),
    ('file', '6', 's3://' || repeat('x', 100) || '/x', now());
select bag_eq(
    $$select labels, value from gc.metrics where name = 'blobgc_tombstones'$$,
    $$values ('collection="file",store="s3://bucket"', 2::float8),
        ('collection="file",store="gs://other-bucket"', 1),
        ('collection="file",store="file://"', 1), ('collection="file",store="other"', 2)$$,
    'objects to be deleted, by store; what is no bucket is not a label');
select is(pg_temp.metric('tombstones_bytes', 'collection="file",store="s3://bucket"'), 400::float8,
    'their bytes');
select is(pg_temp.metric('tombstones_failing', 'collection="file",store="s3://bucket"'), 1::float8,
    'those that failed');
select count(*) from gc.claim('w', 1000) \g /dev/null
select is((select sum(value) from gc.metrics where name = 'blobgc_tombstones_claimed'), 6::float8,
    'those that are claimed');

-- Totals.
select gc.confirm('w', array(select id from gc.tombstones where key in ('1', '3'))) \g /dev/null
select is(pg_temp.metric('rows_deleted_total', 'collection="file"'), 3::float8, 'rows deleted');
select is(pg_temp.metric('objects_deleted_total', 'collection="file"'), 2::float8,
    'objects deleted');
select is(pg_temp.metric('reclaimed_bytes_total', 'collection="file"'), 400::float8,
    'bytes reclaimed');
update gc.collections set problem = 'x' where name = 'file';
select is(pg_temp.metric('collection_blocked', 'collection="file"'), 1::float8,
    'a collection that is not reviewed');

select is_empty(
    $$select name from gc.metrics
        where name !~ '^blobgc_[a-z_]+$' or (type = 'counter') <> (name ~ '_total$')
            or type not in ('counter', 'gauge') or help ~ E'\\n'$$,
    'counters, and nothing else, end in _total');
select is(
    (select array_agg(name) from gc.metrics),
    (select array_agg(name order by name) from gc.metrics),
    'the numbers of one name stand together');

select * from finish();
rollback;
