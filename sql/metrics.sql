-- Metrics: what gc.status tells, a number a row, under the names that Prometheus wants.
--
-- What is waiting is counted, and nothing else is read but the totals, which are a line a day: the
-- cost does not grow with the tables. A url is whatever a row said, so only what looks like a
-- bucket becomes a label, and only the twenty with the most tombstones; all else is "other".

create view gc.metrics as
with collections as (
    select s.*, format('collection="%s"',
            replace(replace(replace(s.collection, E'\\', E'\\\\'), '"', E'\\"'), chr(10),
                E'\\n')) as label
    from gc.status() as s
),
totals as (
    select t.collection, sum(t.rows) as rows, sum(t.objects) as objects, sum(t.bytes) as bytes
    from gc.totals as t
    group by t.collection
),
stores as (
    select t.collection,
        -- As gc._store computes it, which whoever reads this may not call.
        case when t.finalizers is null then t.store
            else left(split_part(t.url, '/', 1) || '//' || split_part(t.url, '/', 3), 128)
        end as store,
        count(*) as tombstones, coalesce(sum(t.size), 0) as bytes,
        count(*) filter (where t.worker is not null and t.due_at > clock_timestamp()) as claimed,
        count(*) filter (where t.failures > 0) as failing,
        extract(epoch from clock_timestamp() - min(t.created_at)) as age
    from gc.tombstones as t
    group by 1, 2
),
named_stores as (
    select s.collection, s.label, sum(s.tombstones) as tombstones, sum(s.bytes) as bytes,
        sum(s.claimed) as claimed, sum(s.failing) as failing, max(s.age) as age
    from (
        select s.*, format('store="%s"', case
                when row_number() over (order by s.tombstones desc, s.store) <= 20
                    and s.store ~ '^(file://|(gs|s3|az)://[a-z0-9][a-z0-9._-]{1,62})$'
                    then s.store
                else 'other'
            end) as label
        from stores as s
    ) as s
    group by 1, 2
)
select m.name, m.type, m.help, c.label as labels, coalesce(m.value, 0)::double precision as value
from collections as c
left join totals as t on t.collection = c.collection
cross join lateral (values
    ('blobgc_queue_entries', 'gauge', 'Reviews that are queued', c.queued),
    ('blobgc_queue_due_entries', 'gauge', 'Reviews that are due', c.due),
    ('blobgc_queue_failing_entries', 'gauge', 'Reviews that failed and are tried again', c.failing),
    ('blobgc_queue_overdue_seconds', 'gauge', 'For how long the first review has been due',
        extract(epoch from clock_timestamp() - c.overdue_since)),
    ('blobgc_collection_blocked', 'gauge', 'Whether nothing is reviewed: gc.status() says why',
        c.blocked::integer),
    ('blobgc_collection_paused', 'gauge',
        'Whether a person or the brake has paused reviews or deletes: gc.status() says why',
        (c.paused is not null)::integer),
    ('blobgc_last_success_timestamp_seconds', 'gauge',
        'When something of it was last deleted for good; 0: never',
        extract(epoch from c.last_deleted_at)),
    ('blobgc_rows_deleted_total', 'counter', 'Rows that reviews deleted', t.rows),
    ('blobgc_objects_deleted_total', 'counter', 'Objects that runners confirmed', t.objects),
    ('blobgc_reclaimed_bytes_total', 'counter', 'Bytes of the objects that are gone', t.bytes)
) as m(name, type, help, value)
union all
select m.name, 'gauge', m.help, c.label || ',' || s.label, m.value::double precision
from collections as c
join named_stores as s on s.collection = c.collection
cross join lateral (values
    ('blobgc_tombstones', 'Objects that are to be deleted', s.tombstones),
    ('blobgc_tombstones_claimed', 'Objects that a runner has under a lease', s.claimed),
    ('blobgc_tombstones_failing', 'Objects that could not be deleted so far', s.failing),
    ('blobgc_tombstones_bytes', 'Bytes of the objects that are to be deleted', s.bytes),
    ('blobgc_tombstones_age_seconds', 'For how long the first of them has waited', s.age)
) as m(name, help, value)
order by 1, 4;

comment on view gc.metrics is 'The numbers that a runner serves to Prometheus.';
comment on column gc.metrics.name is 'The name: counters end in _total, and units are named.';
comment on column gc.metrics.type is 'gauge or counter.';
comment on column gc.metrics.help is 'What is counted.';
comment on column gc.metrics.labels is 'The collection, and the store, as Prometheus writes them.';
comment on column gc.metrics.value is 'The number.';
