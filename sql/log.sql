-- The log: what was deleted, when, why and how big; and totals for each day.
--
-- Totals are append-only like everything that two sessions write at once: a line for each batch,
-- folded into one line a day afterwards. gc.daily_totals adds them up.

create table gc.deletion_log (
    id bigint generated always as identity
        constraint deletion_log_pkey primary key,
    collection text not null,
    key text not null,
    label text,
    url text,
    generation text,
    size bigint,
    event text,
    row_deleted_at timestamptz not null,
    deleted_at timestamptz not null default clock_timestamp(),
    worker text
);
create index deletion_log_deleted_at_idx on gc.deletion_log (deleted_at);
create index deletion_log_key_idx on gc.deletion_log using hash (key);

comment on table gc.deletion_log is
    'What was deleted for good: objects that a runner confirmed, and rows without an object.';
comment on column gc.deletion_log.id is 'The order in which it was written.';
comment on column gc.deletion_log.collection is 'The collection of the row.';
comment on column gc.deletion_log.key is 'The row''s primary key, as text.';
comment on column gc.deletion_log.label is 'What a person called the row.';
comment on column gc.deletion_log.url is 'The object''s address; null: the row had none.';
comment on column gc.deletion_log.generation is 'Which version of the object it was.';
comment on column gc.deletion_log.size is 'The object''s size in bytes.';
comment on column gc.deletion_log.event is
    'The event that led to the review; null: the application deleted the row itself.';
comment on column gc.deletion_log.row_deleted_at is 'When the row went.';
comment on column gc.deletion_log.deleted_at is 'When the object went, or the row without one.';
comment on column gc.deletion_log.worker is 'Who deleted the object.';


create table gc.totals (
    collection text not null,
    day date not null default (now() at time zone 'UTC')::date,
    rows bigint not null default 0,
    objects bigint not null default 0,
    bytes numeric not null default 0,
    folded boolean not null default false
);
create index totals_unfolded_idx on gc.totals (day) where not folded;

comment on table gc.totals is 'The lines behind gc.daily_totals.';
comment on column gc.totals.collection is 'The collection.';
comment on column gc.totals.day is 'The day, in UTC, whatever the time zone of a session is.';
comment on column gc.totals.rows is 'Rows that reviews deleted.';
comment on column gc.totals.objects is 'Objects that runners confirmed.';
comment on column gc.totals.bytes is 'Bytes of those objects.';
comment on column gc.totals.folded is 'This line stands for all that a day had when it was over.';


create view gc.daily_totals as
select t.collection, t.day,
    sum(t.rows)::bigint as rows, sum(t.objects)::bigint as objects, sum(t.bytes) as bytes
from gc.totals as t
group by t.collection, t.day;

comment on view gc.daily_totals is 'What went on each day: rows, objects, and bytes reclaimed.';
comment on column gc.daily_totals.collection is 'The collection.';
comment on column gc.daily_totals.day is 'The day, in UTC.';
comment on column gc.daily_totals.rows is 'Rows that reviews deleted.';
comment on column gc.daily_totals.objects is 'Objects that runners confirmed as deleted.';
comment on column gc.daily_totals.bytes is 'Bytes of those objects.';


-- Bounded, and without waiting for a session that does the same.
create function gc._purge_log(batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    delete from gc.deletion_log as l
    where l.id = any (array(
        select o.id
        from gc.deletion_log as o
        where o.deleted_at < now() - (select s.log_retention from gc.settings as s)
        order by o.deleted_at
        limit batch
        for update skip locked
    ));

    with folded as (
        delete from gc.totals as t
        where t.ctid = any (array(
            select o.ctid
            from gc.totals as o
            where o.day < (now() at time zone 'UTC')::date and not o.folded
            limit batch
            for update skip locked
        ))
        returning t.collection, t.day, t.rows, t.objects, t.bytes
    )
    insert into gc.totals (collection, day, rows, objects, bytes, folded)
    select f.collection, f.day, sum(f.rows), sum(f.objects), sum(f.bytes), true
    from folded as f
    group by f.collection, f.day;
end;
$$;

comment on function gc._purge_log(integer) is
    'Drops what is older than the retention, and folds the totals of days that are over.';
