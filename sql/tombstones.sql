-- Tombstones: rows that are gone, whose objects are still in the store. What a runner is handed.
--
-- A trigger on the collection writes them, in the transaction in which the row goes. A tombstone is
-- claimed under a lease, and goes when the worker confirms, or when a row with its url is inserted.
-- Invariant: whoever inserts a row either sees its tombstone, and keeps it from being claimed or is
-- refused; or is seen by the claim, which then drops the tombstone. Four things make that so:
--   * the insert's own check (gc._admit), in READ COMMITTED;
--   * where the snapshot is older, a slot that the claim looks for, and the constraint on claimed
--     objects, which such an insert runs into (gc._probe);
--   * for rows that share urls, a claim waits until every transaction has ended that may have
--     inserted a row before the tombstone could be seen (wait_for);
--   * objects that were deleted a short time ago are remembered: a transaction that is older than
--     the deletion may have read their url from a row that was still there.
-- A tombstone that is not claimed is due at due_at; one that is claimed is due again at due_at.

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
    -- As gc._store computes it.
    store text not null generated always as
        (left(split_part(url, '/', 1) || '//' || split_part(url, '/', 3), 128)) stored,
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
create index tombstones_due_idx on gc.tombstones (store, wait_for, due_at);
-- Hash indexes, because a url or a key may be longer than a btree takes. Where the key makes the
-- url, wait_for is 0 and the url is enough.
create index tombstones_url_idx on gc.tombstones using hash (url);
create index tombstones_key_idx on gc.tombstones using hash (key)
    where wait_for is distinct from '0';

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
comment on column gc.tombstones.held_up is
    'Why it was not handed out when it was last asked for; null: it was, or was never asked for.';
comment on column gc.tombstones.wait_for is
    'Transactions older than this must have ended before it is claimed; null: not yet known; 1: '
    'they have; 0: none, because the url is made of the key and no other row can have it.';
comment on column gc.tombstones.store is 'The store that the url is in.';


-- Unlogged: a crash ends every transaction for which it is kept. Versions are noted when they are
-- leased already: two of one object may be leased at a time, so the constraint on claimed objects
-- does not show them to a row that knows no version (gc._probe).
create unlogged table gc.deleted_objects (
    url text not null,
    generation text,
    deleted_at timestamptz not null default clock_timestamp(),
    deleted_by xid8 not null default pg_current_xact_id(),
    constraint deleted_objects_url_key exclude using hash (url with =)
);
create index deleted_objects_deleted_at_idx on gc.deleted_objects (deleted_at);

comment on table gc.deleted_objects is
    'Objects that were deleted a short time ago, or versions that were leased. A transaction that '
    'is older cannot insert a row with such a url: it may have read it from the row that went.';
comment on column gc.deleted_objects.url is 'The object''s address.';
comment on column gc.deleted_objects.generation is 'Which version it was; null: any.';
comment on column gc.deleted_objects.deleted_at is
    'When a worker confirmed that it is gone, or was told to delete it.';
comment on column gc.deleted_objects.deleted_by is 'The transaction in which that was.';


-- What somebody is writing at this moment: a lock on a row of this table, until the commit. Two
-- writers share a row; a claim sees that it is locked. Two things may have one slot: then a
-- claim waits for an upload of something else, which does no harm.
create table gc.upload_slots (
    slot integer not null
        constraint upload_slots_pkey primary key
);
insert into gc.upload_slots select generate_series(0, 4095);

comment on table gc.upload_slots is 'Rows that are locked while a key or a url is being written.';
comment on column gc.upload_slots.slot is 'The remainder of a hash of the key or url.';


-- A key is a collection's own, a url is everybody's: kind is a collection's name, or url.
create function gc._slot(kind text, thing text)
    returns integer
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $$ select hashtext(kind || ' ' || thing) & 4095 $$;

comment on function gc._slot(text, text) is 'The slot of a key or a url.';


-- The lock on gc.holds tells claims that there is anything to look for: see gc._return_uploads.
create function gc._lock_slots(slots integer[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    lock table gc.holds in row exclusive mode;
    perform from gc.upload_slots as s where s.slot = any (slots) for key share;
end;
$$;

comment on function gc._lock_slots(integer[]) is
    'Says, until the commit, that something of these slots is being written.';


-- A repeatable read does not see a tombstone, a lease or a deletion newer than its snapshot, but a
-- constraint does: PostgreSQL then ends the statement with a serialization failure, and the
-- caller retries. A claim that comes later sees the slots.
create function gc._probe(urls text[], generations text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._lock_slots(array(select distinct gc._slot('url', u) from unnest(urls) as u));
    begin
        insert into gc.tombstones (collection, key, url, generation, due_at, worker)
        select distinct '', '', o.url, g.generation, 'infinity'::timestamptz, 'probe'
        from unnest(urls, generations) as o(url, generation)
        cross join lateral (values (o.generation), (null)) as g(generation)
        on conflict do nothing;
        insert into gc.deleted_objects (url)
        select distinct u from unnest(urls) as u
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


-- Whoever has announced the upload after the deletion writes the object again.
create function gc._require_undeleted(urls text[], generations text[])
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    deleted text;
begin
    select d.url into deleted
    from unnest(urls, generations) as o(url, generation)
    join gc.deleted_objects as d on d.url = o.url
        and coalesce(d.generation = o.generation, true)
    where d.deleted_at > now()
        and d.deleted_by is distinct from pg_current_xact_id_if_assigned()
        and not exists (
            select from gc.holds as h
            where h.url = o.url and h.reason = 'upload' and h.held_at > d.deleted_at
        )
    limit 1;
    if found then
        raise 'the object of this row was deleted while the transaction was running'
            using errcode = 'serialization_failure',
                detail = format('%s is gone, and the row may have been copied from one that '
                    'this transaction could still see.', deleted),
                hint = 'Try the transaction again.';
    end if;
end;
$$;

comment on function gc._require_undeleted(text[], text[]) is
    'Raises 40001 for objects that were deleted since the transaction began.';


-- One by one through the index, however many tombstones there are.
create function gc._tombstones_at(urls text[], generations text[])
    returns bigint[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
begin
    return array(
        select d.id
        from unnest(urls, generations) as o(url, generation)
        cross join lateral (
            select t.id from gc.tombstones as t
            where t.url = o.url and coalesce(t.generation = o.generation, true)
            offset 0
        ) as d
    );
end;
$$;

comment on function gc._tombstones_at(text[], text[]) is 'The tombstones of these objects.';


create function gc._refuse_leased(collection text, ids bigint[])
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    deleting gc.tombstones;
begin
    select t.* into deleting
    from gc.tombstones as t
    where t.id = any (ids) and t.worker is not null and t.due_at > clock_timestamp()
    limit 1;
    if found then
        raise 'the object of this row is being deleted'
            using errcode = 'ZG001',
                detail = format('%s is leased to a worker until %s.',
                    deleting.url, deleting.due_at),
                hint = format('Call gc.begin_upload(%L, …) for this row, write the object again, '
                    'and insert the row then.', collection);
    end if;
end;
$$;

comment on function gc._refuse_leased(text, bigint[]) is
    'Raises ZG001 if a worker has one of the tombstones under a lease.';


-- Waits for a claim that has one of them at this moment, and keeps later claims away until the
-- commit. Two inserts share the lock, so they never wait for each other. One that is gone then was
-- confirmed, or taken back by another insert.
create function gc._lock_tombstones(ids bigint[], urls text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    locked bigint[] := array(
        select t.id from gc.tombstones as t where t.id = any (ids) for key share
    );
begin
    if not locked @> ids
        and exists (select from gc.deleted_objects as d where d.url = any (urls))
    then
        raise 'the object of this row was deleted at this moment'
            using errcode = 'serialization_failure', hint = 'Try the transaction again.';
    end if;
end;
$$;

comment on function gc._lock_tombstones(bigint[], text[]) is
    'Locks tombstones; raises 40001 if one was confirmed meanwhile.';


-- A tombstone that is this row's own, because the key makes the url, goes at once. One that others
-- may share stays, locked: a claim drops it when it finds the row. Should the row go again before
-- that, the longest wait counts.
create function gc._admit(collection text, urls text[], generations text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    left_behind bigint[];
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform gc._probe(urls, generations);
    end if;
    perform gc._require_undeleted(urls, generations);
    left_behind := gc._tombstones_at(urls, generations);
    if cardinality(left_behind) = 0 then
        return;
    end if;
    perform gc._refuse_leased(collection, left_behind);
    perform gc._lock_tombstones(left_behind, urls);
    delete from gc.tombstones as t
    where t.id = any (left_behind) and t.wait_for = '0' and t.collection = _admit.collection
        and (t.worker is null or t.due_at <= clock_timestamp());
    perform gc._refuse_leased(collection, left_behind);
end;
$$;

comment on function gc._admit(text, text[], text[]) is
    'For rows that are inserted: their tombstones are not claimed; raises ZG001 for a claimed one.';


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


-- What a trigger cannot work out, because the table has changed since its code was made, or because
-- an expression raises, it keeps whole. The next review works it out.
create table gc.unread_rows (
    id bigint generated always as identity
        constraint unread_rows_pkey primary key,
    collection text not null,
    content jsonb not null,
    relation oid not null,
    columns jsonb not null,
    left_at timestamptz not null default now(),
    due_at timestamptz not null default now(),
    failures integer not null default 0,
    last_error text
);
create index unread_rows_due_idx on gc.unread_rows (collection, due_at);

comment on table gc.unread_rows is
    'Rows that went, or changed, when nothing could be worked out about their object.';
comment on column gc.unread_rows.id is 'The order in which they were written.';
comment on column gc.unread_rows.collection is 'The collection of the row.';
comment on column gc.unread_rows.content is 'The whole row, by the names of its columns.';
comment on column gc.unread_rows.relation is 'The table, or the partition, that it was in.';
comment on column gc.unread_rows.columns is 'The numbers that its columns have there.';
comment on column gc.unread_rows.left_at is 'When it went.';
comment on column gc.unread_rows.due_at is 'When it is tried again.';
comment on column gc.unread_rows.failures is 'How often that failed.';
comment on column gc.unread_rows.last_error is 'Why it failed the last time.';


create function gc._column_numbers(relation oid)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_object_agg(a.attname, a.attnum) from pg_attribute as a
    where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
$$;

comment on function gc._column_numbers(oid) is 'The columns of a table with their numbers.';


-- A column that was renamed since has its number still. Where a name has another number than it
-- had, in a restored dump perhaps, numbers tell nothing, and names do if they are all there still.
create function gc._content_now(u gc.unread_rows)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when bool_and(coalesce(o.attnum = n.number, true))
            then jsonb_object_agg(
                coalesce(a.attname, e.key), e.value order by a.attname is null desc)
        when bool_or(o.attname is null and a.attname is not null) then '{}'
        else u.content end
    from jsonb_each(u.content) as e
    cross join lateral (select (u.columns ->> e.key)::smallint) as n(number)
    left join pg_attribute as o on o.attrelid = u.relation and o.attname = e.key
    left join pg_attribute as a on a.attrelid = u.relation and a.attnum = n.number
        and not a.attisdropped
$$;

comment on function gc._content_now(gc.unread_rows) is
    'A row that was kept whole, by the names that its columns have now.';


-- A snapshot that is older than the TRUNCATE does not show all rows that it takes away.
create function gc._require_followable(name text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'a TRUNCATE of the collection "%" cannot be followed in a % transaction', name,
            current_setting('transaction_isolation')
            using errcode = 'ZG004',
                detail = 'Rows that the transaction does not see would go without a trace.',
                hint = 'begin isolation level read committed;';
    end if;
end;
$$;

comment on function gc._require_followable(text) is
    'Raises ZG004 for a TRUNCATE outside READ COMMITTED.';


create function gc._keep_untracked(name text, relation regclass, trigger_name name)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    part regclass;
begin
    for part in
        select p.relid
        from pg_partition_tree(relation) as p
        where p.isleaf and p.relid <> relation and not exists (
            select from pg_trigger as t where t.tgrelid = p.relid and t.tgname = trigger_name
        )
    loop
        execute format('insert into gc.unread_rows (collection, content, relation, columns) '
            'select %L, to_jsonb(o), %L::regclass, gc._column_numbers(%L::regclass) '
            'from only %s as o', name, part, part, part);
    end loop;
end;
$$;

comment on function gc._keep_untracked(text, regclass, name) is
    'Keeps the rows of partitions whole that are about to be truncated and have no trigger yet.';


-- Null where there is none, or where an expression raises for this row; blind: the columns that it
-- needs are not there, and nothing can be said about any row.
create function gc._address(
    c gc.collections, content jsonb, out url text, out generation text, out blind boolean
)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set timezone_abbreviations = 'Default'
as $$
-- @plpgsql_check_options: security_warnings = off
begin
    execute format(
        'select (%s)::text, nullif((%s)::text, %L) from jsonb_populate_record(null::%s, $1) as %I',
        c.url, coalesce(c.generation, 'null'), '', c.target, gc._alias(c.target))
    into url, generation using content;
exception
    when syntax_error_or_access_rule_violation then
        blind := true;
    when others then
        perform gc._raise_if_passing(sqlstate, sqlerrm);
end;
$$;

comment on function gc._address(gc.collections, jsonb) is
    'The address of a row''s object, computed from what the table is now.';


-- A row is inserted into a table that has changed. What cannot be said of it while something is
-- being deleted, could be that very object: such leases are over in minutes, and nothing new is
-- handed out while a claim cannot look into the table.
create function gc._admit_changed(name text, contents jsonb[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    one jsonb;
    found_one record;
begin
    foreach one in array contents loop
        found_one := gc._address(c, one);
        if found_one.url is not null then
            perform gc._admit(name, array[found_one.url], array[found_one.generation]);
        elsif found_one.blind and exists (
            select from gc.tombstones as t
            where t.worker is not null and t.due_at > clock_timestamp()
        ) then
            raise 'it is not known whether the object of this row is being deleted'
                using errcode = 'ZG001',
                    detail = format('%s has changed, and its code does not fit it.', c.target),
                    hint = 'select * from gc.review(); makes it fit, or says why it cannot.';
        end if;
    end loop;
end;
$$;

comment on function gc._admit_changed(text, jsonb[]) is
    'gc._admit for rows of a table that is not what the code was made for.';


-- Everybody who could still see the row that went must have ended: snapshots are as old as their
-- backend_xmin, and a transaction between two statements, which has none, is given an hour.
create function gc._forget_deleted(batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    oldest integer := (
        select max(age(a.backend_xmin)) from pg_stat_activity as a
        where a.backend_xmin is not null and a.pid <> pg_backend_pid()
    );
begin
    delete from gc.deleted_objects as d
    where d.ctid = any (array(
        select o.ctid from gc.deleted_objects as o
        where o.deleted_at < now() - interval '1 hour' and age(o.xmin) > coalesce(oldest, -1)
        order by o.deleted_at
        limit 10::bigint * batch
        for update skip locked
    ));
end;
$$;

comment on function gc._forget_deleted(integer) is
    'Forgets objects that were deleted before every transaction that is running now.';
