-- Admitting: a row is inserted whose object may be on its way out.
--
-- Invariant: whoever inserts a row either sees its tombstone, and keeps it from being claimed or is
-- refused; or is seen by the claim, which then drops the tombstone. Four things make that so:
--   * the insert's own check (gc._admit), in READ COMMITTED;
--   * where the snapshot is older, a slot that the claim looks for, and the constraint on claimed
--     objects, which such an insert runs into (gc._probe);
--   * for rows that share urls, a claim waits until every transaction has ended that may have
--     inserted a row before the tombstone could be seen (wait_for);
--   * objects that were leased or deleted a short time ago are remembered, with who was running
--     then: such a transaction may have read their url from a row that was still there.

-- Unlogged: a crash ends every transaction for which it is kept. An object is noted when it is
-- leased, because nobody knows what a worker has done whose lease runs out without a word; and
-- again when it is confirmed, for those who began in between and have written it unannounced.
create unlogged table gc.deleted_objects (
    url text not null,
    generation text,
    deleted_at timestamptz not null default clock_timestamp(),
    deleted_by xid8 not null default pg_current_xact_id(),
    constraint deleted_objects_url_key exclude using hash (url with =)
);
create index deleted_objects_deleted_by_idx on gc.deleted_objects (deleted_by);

comment on table gc.deleted_objects is
    'Objects that were leased or deleted a short time ago. A transaction that was running then '
    'cannot insert a row with such a url: it may have read it from the row that went.';
comment on column gc.deleted_objects.url is 'The object''s address.';
comment on column gc.deleted_objects.generation is 'Which version it was; null: any.';
comment on column gc.deleted_objects.deleted_at is
    'When a worker confirmed that it is gone, or was told to delete it.';
comment on column gc.deleted_objects.deleted_by is 'The transaction in which that was.';


-- No clock tells who is older: it may be set back. No snapshot does: a transaction between two
-- statements has none. But each has a virtual id as long as it runs, before it reads anything.
create unlogged table gc.witnesses (
    deleted_by xid8 not null
        constraint witnesses_pkey primary key,
    running text[] not null
);

comment on table gc.witnesses is
    'Which transactions were running when objects were leased or deleted.';
comment on column gc.witnesses.deleted_by is 'The transaction in which that was.';
comment on column gc.witnesses.running is 'The virtual ids of all others that were running then.';


create function gc._running()
    returns text[]
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select array(
        select l.virtualtransaction from pg_locks as l
        where l.locktype = 'virtualxid' and l.granted and l.pid <> pg_backend_pid()
    )
$$;

comment on function gc._running() is
    'The virtual ids of all transactions that are running, apart from this one.';


create function gc._deleted_meanwhile(urls text[], generations text[])
    returns setof gc.deleted_objects
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
    select d.*
    from unnest(urls, generations) as o(url, generation)
    join gc.deleted_objects as d on d.url = o.url
        and coalesce(d.generation = o.generation, true)
    join gc.witnesses as w on w.deleted_by = d.deleted_by
    where w.running && array(
        select l.virtualtransaction from pg_locks as l
        where l.locktype = 'virtualxid' and l.granted and l.pid = pg_backend_pid()
    )
$$;

comment on function gc._deleted_meanwhile(text[], text[]) is
    'Those of the objects that were leased or deleted while this transaction was running.';


-- What somebody is writing at this moment: a lock on a row of this table, until the commit. Two
-- writers share a row; a claim sees that it is locked. Two things may have one slot: then a
-- claim waits for an upload of something else, which does no harm.
create table gc.upload_slots (
    slot integer not null
        constraint upload_slots_pkey primary key
);
insert into gc.upload_slots select generate_series(0, 4095) on conflict do nothing;

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
        raise 'the probe is over' using errcode = 'ZG999';
    exception
        when sqlstate 'ZG999' then
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
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    deleted text;
begin
    select d.url into deleted
    from gc._deleted_meanwhile(urls, generations) as d
    where not exists (
        select from gc.holds as h
        where h.url = d.url and h.reason = 'upload' and h.held_at > d.deleted_at
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
        select t.id from gc.tombstones as t where t.id = any (ids) order by t.id for key share
    );
begin
    if cardinality(locked) < (select count(distinct i) from unnest(ids) as i)
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
    left_behind := gc._tombstones_at(urls, generations);
    perform gc._refuse_leased(collection, left_behind);
    -- A later look: what was confirmed since the first one is remembered by now.
    perform gc._require_undeleted(urls, generations);
    if cardinality(left_behind) = 0 then
        return;
    end if;
    perform gc._lock_tombstones(left_behind, urls);
    with cancelled as (
        delete from gc.tombstones as t
        where t.id = any (left_behind) and t.wait_for = '0' and t.collection = _admit.collection
            and (t.worker is null or t.due_at <= clock_timestamp())
        returning t.*
    )
    insert into gc.kept_rows (collection, key, url, causes, why)
    select d.collection, d.key, d.url, d.causes, 'its row was inserted again'
    from cancelled as d
    where d.causes is not null;
    perform gc._refuse_leased(collection, left_behind);
end;
$$;

comment on function gc._admit(text, text[], text[]) is
    'For rows that are inserted: their tombstones are not claimed; raises ZG001 for a claimed one.';


-- An object that is on its way out stays because of a new row, or the row has to wait. Two look-ups
-- tell that there is none, as nearly always.
create function gc._admit_sql(c gc._shape, only_changed boolean)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
{announced}
if gc._strict_uploads() then
    perform gc._require_uploads({name}, array_agg(o.key), array_agg(o.url))
    from (
        select {key_text}, {url} from {new_rows} as {alias}{each}
        {except_key}
    ) as o(key, url)
    where o.url is not null;
end if;
if current_setting('transaction_isolation') <> 'read committed'
    or exists (
        select from (select {url} from {new_rows} as {alias}{each}) as o(url)
        where (select true from gc.tombstones as d where d.url = o.url limit 1)
            or (select true from gc.deleted_objects as d where d.url = o.url limit 1)
    )
then
    perform gc._admit({name}, array_agg(o.url), array_agg(o.generation))
    from (
        select {url}, {generation} from {new_rows} as {alias}{each}
        {except_url}
    ) as o(url, generation)
    where o.url is not null;
end if;$template$,
        c.words || jsonb_build_object(
            'announced', gc._announced_move_sql(c),
            'except_key', case when only_changed then gc._render('except '
                'select {key_text}, {url} from {old_rows} as {alias}{each}', c.words) else '' end,
            'except_url', case when only_changed then gc._render('except '
                'select {url}, {generation} from {old_rows} as {alias}{each}', c.words)
                else '' end))
$$;

comment on function gc._admit_sql(gc._shape, boolean) is
    'What a row with an object has to pass.';


-- Null where there is none, or where an expression raises for this row; blind: the columns that it
-- needs are not there, and nothing can be said about any row.
create function gc._address(
    c gc.collections, content jsonb, out urls text[], out generation text, out blind boolean
)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set timezone_abbreviations = 'Default'
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    addresses jsonb;
begin
    execute format(
        'select case when pg_typeof(%1$s) = ''text[]''::regtype then to_jsonb(%1$s) '
        'else jsonb_build_array((%1$s)::text) end, nullif((%2$s)::text, '''') '
        'from jsonb_populate_record(null::%3$s, $1) as %4$I',
        c.url, coalesce(c.generation, 'null'), c.target, gc._alias(c.target))
    into addresses, generation using content;
    -- However many dimensions an array has.
    urls := array(
        select e #>> '{}' from jsonb_path_query(addresses, 'strict $.**') as e
        where jsonb_typeof(e) = 'string'
    );
exception
    when syntax_error_or_access_rule_violation then
        blind := true;
    when others then
        perform gc._raise_if_passing(sqlstate, sqlerrm);
end;
$$;

comment on function gc._address(gc.collections, jsonb) is
    'The addresses of a row''s objects, computed from what the table is now.';


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
        if cardinality(found_one.urls) > 0 then
            perform gc._admit(name, found_one.urls,
                array_fill(found_one.generation, array[cardinality(found_one.urls)]));
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


create function gc._admit_changed_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        'perform gc._admit_changed({name}, {whole_new});', c.words)
$$;

comment on function gc._admit_changed_sql(gc._shape) is
    'What rows have to pass whose object cannot be told.';


-- Everybody who could still know the row that went must have ended. Who has not ended is a witness
-- of all that came later as well: so the first such deletion is the end of what is forgotten.
create function gc._forget_deleted(batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    alive text[] := gc._running();
    first xid8 := (
        select w.deleted_by from gc.witnesses as w
        where w.running && alive
        order by w.deleted_by
        limit 1
    );
    ended xid8[] := array(
        select w.deleted_by from gc.witnesses as w
        where first is null or w.deleted_by < first
        order by w.deleted_by
        limit batch
        for update skip locked
    );
begin
    delete from gc.deleted_objects as d
    where d.ctid = any (array(
        select o.ctid from gc.deleted_objects as o
        where o.deleted_by = any (ended)
        limit 10::bigint * batch
        for update skip locked
    ));
    delete from gc.witnesses as w
    where w.deleted_by = any (ended) and not exists (
        select from gc.deleted_objects as d where d.deleted_by = w.deleted_by
    );
end;
$$;

comment on function gc._forget_deleted(integer) is
    'Forgets objects that were deleted before every transaction that is running now.';
