-- Tombstones: rows that are gone, whose objects are still in the store. What a runner is handed.
--
-- A trigger on the collection writes them, in the transaction in which the row goes. A tombstone is
-- claimed under a lease, and goes when the worker confirms, or when a row with its url is inserted.
-- One that is not claimed is due at due_at; one that is claimed is due again at due_at.

-- The scheme and the bucket: tombstones are claimed by store.
create function gc._store(url text)
    returns text
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $$ select left(split_part(url, '/', 1) || '//' || split_part(url, '/', 3), 128) $$;

comment on function gc._store(text) is 'The store that an address is in: s3://bucket, file://.';


create table gc.tombstones (
    id bigint generated always as identity
        constraint tombstones_pkey primary key,
    collection text not null,
    key text not null,
    label text,
    url text not null,
    generation text,
    size bigint,
    event text,
    created_at timestamptz not null default now(),
    due_at timestamptz not null,
    worker text,
    failures integer not null default 0,
    last_error text,
    held_up text,
    wait_for xid8,
    finalizers text[],
    causes text[],
    counted boolean not null default false,
    -- As gc._counter computes it.
    store text not null generated always as (
        case when finalizers is null then '' else '/' || finalizers[1] || '/' end
        || left(split_part(url, '/', 1) || '//' || split_part(url, '/', 3), 128)
    ) stored,
    -- Two tombstones of one object are never both claimed. By a hash of the whole text, because it
    -- may be longer than a btree takes.
    constraint tombstones_one_deletion
        exclude using hash ((url || chr(10) || coalesce(generation, '')) with =)
        where (worker is not null)
)
with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
create index tombstones_due_idx on gc.tombstones (store, collection, wait_for, due_at);
-- Hash indexes, because a url or a key may be longer than a btree takes. Where the key makes the
-- url, wait_for is 0 and the url is enough.
create index tombstones_url_idx on gc.tombstones using hash (url);
create index tombstones_key_idx on gc.tombstones using hash (key)
    where wait_for is distinct from '0';

comment on table gc.tombstones is 'Objects whose rows are gone and that are still to be deleted.';
comment on column gc.tombstones.id is
    'What gc.claim hands out and gc.confirm takes back; another one after a lease that ran out.';
comment on column gc.tombstones.collection is 'The collection of the row.';
comment on column gc.tombstones.key is 'The primary key that the row had, as text.';
comment on column gc.tombstones.label is 'What a person called the row.';
comment on column gc.tombstones.url is 'The object''s address.';
comment on column gc.tombstones.generation is 'Which version of the object is meant; null: any.';
comment on column gc.tombstones.size is 'The object''s size in bytes.';
comment on column gc.tombstones.event is
    'The event that led to the review; null: the application deleted the row itself.';
comment on column gc.tombstones.created_at is 'When the row went.';
comment on column gc.tombstones.due_at is
    'When it can be claimed: at first, after a failure, and again when a lease is over.';
comment on column gc.tombstones.worker is 'Who has it under a lease.';
comment on column gc.tombstones.failures is 'How often deleting the object failed.';
comment on column gc.tombstones.last_error is 'What the store said the last time.';
comment on column gc.tombstones.held_up is
    'Why it was not handed out when it was last asked for; null: it was, or was never asked for.';
comment on column gc.tombstones.wait_for is
    'Transactions older than this must have ended before it is claimed; null: not yet known; 1: '
    'they have; 0: none, because the url is made of the key and no other row can have it.';
comment on column gc.tombstones.finalizers is
    'What has to be finished before the object can be deleted, the next first; null: nothing.';
comment on column gc.tombstones.causes is
    'What gc.because was told by those who began what led to this; null: nobody told anything.';
comment on column gc.tombstones.counted is
    'It was handed out once, and counted: see gc.totals.handed_out.';
comment on column gc.tombstones.store is
    'Where it is claimed: the store that the url is in, after the finalizer that is next.';


create unlogged table gc.reviewing (
    xid xid8 not null,
    collection text not null,
    event text not null
);

comment on table gc.reviewing is
    'Which event led to the review that deletes rows at this moment: a trigger asks.';
comment on column gc.reviewing.xid is 'The transaction of the review.';
comment on column gc.reviewing.collection is 'The collection.';
comment on column gc.reviewing.event is 'The event.';


create function gc._buried_sql(c gc._shape, source text, event text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into gc.tombstones (
    collection, key, label, url, generation, size, event, due_at, wait_for, finalizers, causes
)
select {name}, {key_text}, {label}, {url}, {generation}, {object_size},
    {event},
    {due_at}, {wait_for}, {finalizers}, {causes}
from {source} as {alias}{each}
where {url} is not null$template$,
        gc._source_words(c.words || jsonb_build_object('event', event), source))
$$;

comment on function gc._buried_sql(gc._shape, text, text) is
    'The statement that writes tombstones for rows.';


-- A review tells why it deletes a row; who else deletes one does not. Anybody can make a setting,
-- but only a review writes to gc.reviewing.
create function gc._after_delete_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._computing_sql(c, gc._render('perform {computed} from old_rows as {alias};', c.words),
        gc._buried_sql(c, 'old_rows', gc._render($event$case
    when current_setting('blobgc.reviewing', true) = {name} then (
        select r.event from gc.reviewing as r
        where r.xid = pg_current_xact_id_if_assigned() and r.collection = {name}
    )
end$event$, c.words)) || ';', gc._kept_whole_sql(c, 'old_rows') || ';')
$$;

comment on function gc._after_delete_sql(gc._shape) is
    'What follows a delete from a collection, whoever deletes: a tombstone for each object.';


create function gc._before_truncate_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._computing_sql(c,
        gc._truncated_sql(gc._render('select {computed} from {source} as {alias}',
            gc._source_words(c.words, null))),
        gc._truncated_sql(gc._buried_sql(c, null, 'null')),
        gc._truncated_sql(gc._kept_whole_sql(c, null)))
$$;

comment on function gc._before_truncate_sql(gc._shape) is
    'What comes before a TRUNCATE of a collection: a tombstone for each object.';


create function gc._after_url_change_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into gc.tombstones (
    collection, key, label, url, generation, size, due_at, wait_for, finalizers, causes
)
select {name}, o.key, o.label, o.url, o.generation, o.size, {due_at}, {wait_for}, {finalizers},
    {causes}
from (
    select n.*, bool_or(n.is_new) over (partition by n.url, n.generation)
    from (
        select false, {key_text}, {label}, {url}, {generation}, {old_size}
        from {old_rows} as {alias}{each}
        union all
        select true, null, null, {url}, {generation}, null
        from {new_rows} as {alias}{each}
    ) as n(is_new, key, label, url, generation, size)
) as o(is_new, key, label, url, generation, size, is_named)
where o.url is not null and not o.is_named
    {unless_buried};
{admit}$template$,
        c.words || jsonb_build_object(
            'unless_buried', gc._unless_buried_sql(c), 'admit', gc._admit_sql(c, true)))
$$;

comment on function gc._after_url_change_sql(gc._shape) is
    'An object that no row names any more gets a tombstone; one that is named anew is admitted.';
