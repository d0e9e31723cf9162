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
    worker text,
    causes text[]
);
create index deletion_log_deleted_at_idx on gc.deletion_log (deleted_at);
create index deletion_log_key_idx on gc.deletion_log using hash (key);
create index deletion_log_url_idx on gc.deletion_log using hash (url) where url is not null;
create index deletion_log_causes_idx on gc.deletion_log using gin (causes)
    where causes is not null;

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
comment on column gc.deletion_log.causes is
    'What gc.because was told by those who began what led to this; null: nobody told anything.';


create table gc.totals (
    collection text not null,
    day date not null default (now() at time zone 'UTC')::date,
    rows bigint not null default 0,
    objects bigint not null default 0,
    bytes numeric not null default 0,
    folded boolean not null default false,
    handed_out bigint not null default 0,
    counted_at timestamptz not null default clock_timestamp()
);
create index totals_unfolded_idx on gc.totals (day) where not folded;
create index totals_counted_at_idx on gc.totals (collection, counted_at) include (rows, handed_out)
    where not folded;

comment on table gc.totals is 'The lines behind gc.daily_totals.';
comment on column gc.totals.collection is 'The collection.';
comment on column gc.totals.day is 'The day, in UTC, whatever the time zone of a session is.';
comment on column gc.totals.rows is 'Rows that reviews deleted.';
comment on column gc.totals.objects is 'Objects that runners confirmed.';
comment on column gc.totals.bytes is 'Bytes of those objects.';
comment on column gc.totals.folded is 'This line stands for all that a day had when it was over.';
comment on column gc.totals.handed_out is
    'Objects of rows that the application deleted itself, when they were first handed out.';
comment on column gc.totals.counted_at is 'When; of a folded line, the last time of that day.';


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


-- The lines of the last day are what the brake counts. Bounded, and without waiting.
create function gc._fold_totals(batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    with folded as (
        delete from gc.totals as t
        where t.ctid = any (array(
            select o.ctid
            from gc.totals as o
            where o.day < (now() at time zone 'UTC')::date - 1 and not o.folded
            limit batch
            for update skip locked
        ))
        returning t.*
    )
    insert into gc.totals (collection, day, rows, objects, bytes, handed_out, counted_at, folded)
    select f.collection, f.day, sum(f.rows), sum(f.objects), sum(f.bytes), sum(f.handed_out),
        max(f.counted_at), true
    from folded as f
    group by f.collection, f.day;
end;
$$;

comment on function gc._fold_totals(integer) is
    'Folds the totals of days before yesterday into one line a day.';


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

    delete from gc.operations as l
    where l.id = any (array(
        select o.id
        from gc.operations as o
        where o.done_at < now() - (select s.log_retention from gc.settings as s)
        order by o.done_at
        limit batch
        for update skip locked
    ));
    perform gc._fold_totals(batch);
    perform gc._purge_causes(batch);
end;
$$;

comment on function gc._purge_log(integer) is
    'Drops what is older than the retention, and folds the totals of days that are over.';
