-- Tombstones: rows that are gone, whose objects are still in the store. What a runner is handed.
--
-- A trigger on the collection writes them, in the transaction in which the row goes. A tombstone is
-- claimed under a lease, and goes when the worker confirms, or when a row with its url is inserted.
-- Invariant: whoever inserts a row either sees its tombstone, and takes it away or is refused; or
-- is seen by the claim, which then drops the tombstone. Three things make that so:
--   * the insert's own check (gc._admit), in READ COMMITTED;
--   * where the snapshot is older, an advisory lock that the claim looks for, and the unique index
--     over claimed objects, which such an insert runs into (gc._probe);
--   * for rows that share urls, a claim waits until every transaction has ended that may have
--     inserted a row before the tombstone could be seen (wait_for).
-- A tombstone that is not claimed is due at due_at; one that is claimed is due again at due_at.

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
    wait_for xid8
)
with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
create index tombstones_due_at_idx on gc.tombstones (due_at);
-- Hash indexes, because a url or a key may be longer than a btree takes. Where the key makes the
-- url, wait_for is 0 and the url is enough.
create index tombstones_url_idx on gc.tombstones using hash (url);
create index tombstones_key_idx on gc.tombstones using hash (key)
    where wait_for is distinct from '0';
create unique index tombstones_one_deletion on gc.tombstones
    (hashtextextended(url, 0), hashtextextended(coalesce(generation, ''), 0))
    where worker is not null;

comment on table gc.tombstones is 'Objects whose rows are gone and that are still to be deleted.';
comment on column gc.tombstones.id is 'What gc.claim hands out and gc.confirm takes back.';
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
comment on column gc.tombstones.wait_for is
    'Transactions older than this must have ended before it is claimed; null: not yet known; 0: '
    'none, because the url is made of the key and no other row can have it.';


-- A key is a collection's own, a url is everybody's: kind is a collection's name, or url.
create function gc._upload_lock(kind text, thing text)
    returns integer
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $$ select hashtext(kind || ' ' || thing) $$;

comment on function gc._upload_lock(text, text) is
    'The second half of the advisory lock that says: this key or url is being written.';


-- A repeatable read does not see a tombstone that is newer than its snapshot, but a unique index
-- does: PostgreSQL then ends the statement with a serialization failure, and the caller retries.
-- A claim that comes later sees the advisory lock: one for each url, or one for very many.
create function gc._probe(urls text[], generations text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if cardinality(urls) > 100 then
        perform pg_advisory_xact_lock_shared(gc._lock_class(), gc._upload_lock('url', ''));
    else
        perform pg_advisory_xact_lock_shared(gc._lock_class(), gc._upload_lock('url', u))
        from unnest(urls) as u;
    end if;
    begin
        insert into gc.tombstones (collection, key, url, generation, due_at, worker)
        select distinct '', '', o.url, g.generation, 'infinity'::timestamptz, 'probe'
        from unnest(urls, generations) as o(url, generation)
        cross join lateral (values (o.generation), (null)) as g(generation)
        on conflict do nothing;
        raise 'the probe is over' using errcode = 'ZG000';
    exception
        when sqlstate 'ZG000' then
            null;
    end;
end;
$$;

comment on function gc._probe(text[], text[]) is
    'Fails with 40001 if an object is being deleted and the snapshot is too old to see that.';


create function gc._admit(collection text, urls text[], generations text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    left_behind bigint[];
    deleting gc.tombstones;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform gc._probe(urls, generations);
    end if;
    -- One by one through the index, however many tombstones there are.
    left_behind := array(
        select d.id
        from unnest(urls, generations) as o(url, generation)
        cross join lateral (
            select t.id from gc.tombstones as t
            where t.url = o.url and coalesce(t.generation = o.generation, true)
            offset 0
        ) as d
    );
    if cardinality(left_behind) = 0 then
        return;
    end if;

    -- Waits for a claim that has not committed yet, and then finds its lease.
    delete from gc.tombstones as t
    where t.id = any (left_behind) and (t.worker is null or t.due_at <= clock_timestamp());
    select t.* into deleting from gc.tombstones as t where t.id = any (left_behind) limit 1;
    if found then
        raise 'the object of this row is being deleted'
            using errcode = 'ZG001',
                detail = format('%s, which a row of "%s" left behind, is leased to %s until %s.',
                    deleting.url, deleting.collection, deleting.worker, deleting.due_at),
                hint = format('select gc.begin_upload(%L, %L); then upload it again and retry.',
                    collection, deleting.key);
    end if;
end;
$$;

comment on function gc._admit(text, text[], text[]) is
    'For rows that are inserted: takes back their tombstones; raises ZG001 for a claimed one.';
