-- Uploads of blobs.

create function begin_blob_upload(
    repository text, digest text, wait interval default '5 seconds', upload text default null
)
    returns text
    language plpgsql
    volatile
as $$
declare
    key bytea := registry.digest_bytes(digest);
    url text := registry.blob_url(key);
begin
    perform registry._enter(repository);
    perform gc.begin_upload('blob', registry._blob_key(key), url, wait, upload => upload);
    return url;
end;
$$;

comment on function begin_blob_upload(text, text, interval, text) is
    'Says that a blob is about to be written, and returns where to. Waits for one that is being '
    'deleted; raises ZG001 when that takes too long. Give each upload a name of its own.';


-- A row that is there may be deleted between the insert and the lock: then there is room for it.
create function _add_blob(digest bytea, size bigint, media_type text)
    returns void
    language plpgsql
    volatile
as $$
declare
    known bigint;
begin
    loop
        insert into registry.blobs (digest, size, media_type) values (digest, size, media_type)
        on conflict do nothing;
        select b.size into known from registry.blobs as b
        where b.digest = _add_blob.digest
        for key share;
        exit when found;
    end loop;
    if known <> size then
        perform registry._refuse('ZR010', 'a blob has one size', format('%s has %s bytes, not %s.',
            registry.digest_text(digest), known, size),
            'Find out which of the two is not that blob.');
    end if;
end;
$$;

comment on function _add_blob(bytea, bigint, text) is
    'Inserts a blob that may be there already; raises ZR010 if that one has another size.';


create function _refuse_upload(digest text, upload text)
    returns void
    language sql
    stable
    return _refuse('ZR003',
        format('no upload %sof %s was begun', quote_literal(left(upload, 100)) || ' ', digest),
        'Or it took longer than gc.settings.upload_timeout, or is finished.',
        'Call begin_blob_upload with a new name for the upload, write the object again, and '
        'finish then, with that name.');

comment on function _refuse_upload(text, text) is 'Raises ZR003.';


-- The order matters: an upload that was not in time may have lost its object, and has no row.
create function _record_blob(digest text, size bigint, media_type text, upload text)
    returns bytea
    language plpgsql
    volatile
as $$
declare
    key bytea := registry.digest_bytes(digest);
begin
    if coalesce(size < 0, true) then
        perform registry._refuse('ZR010', 'a size is a number of bytes',
            coalesce(size::text, 'null'),
            'Count the bytes that were written.');
    end if;
    begin
        perform registry._add_blob(key, size, coalesce(media_type, 'application/octet-stream'));
    exception
        -- Nobody has announced it, and gc.settings.strict_uploads is on.
        when sqlstate 'ZG002' then
            perform registry._refuse_upload(digest, upload);
    end;
    if not gc.end_upload('blob', registry._blob_key(key), upload) then
        perform registry._refuse_upload(digest, upload);
    end if;
    return key;
end;
$$;

comment on function _record_blob(text, bigint, text, text) is
    'Inserts the blob that an upload has written, and ends the upload; raises ZR003 if it was not '
    'begun, or has timed out.';


create function finish_blob_upload(
    repository text, digest text, size bigint,
    media_type text default 'application/octet-stream', upload text default null
)
    returns void
    language plpgsql
    volatile
as $$
declare
    r registry.repositories := registry._enter(repository);
begin
    perform registry._link(r, registry._record_blob(digest, size, media_type, upload));
end;
$$;

comment on function finish_blob_upload(text, text, bigint, text, text) is
    'Says that the blob is written, by the upload of that name. It is linked, and reviewed if no '
    'manifest uses it in a day. Raises ZR003 for an upload that was not begun, or has timed out.';


-- The object is there, and without a row nobody would ever delete it.
create function abandon_blob_upload(digest text, size bigint, upload text default null)
    returns void
    language plpgsql
    volatile
as $$
begin
    perform registry._require_read_committed();
    perform registry._record_blob(digest, size, null, upload);
end;
$$;

comment on function abandon_blob_upload(text, bigint, text) is
    'Says that the blob is written, but that no repository wants it any more, as when that was '
    'deleted meanwhile. It is collected, unless somebody else uses it.';


-- What nobody has finished in time can never be finished. If its server died, the object may be
-- there, and no row ever was. Whoever may announce uploads can announce any key and any url, and as
-- many as they like: so of the holds that are over, only the oldest are looked at.
create function _dead_uploads(most bigint)
    returns table (digest bytea, url text, ended_at timestamptz)
    language sql
    stable
as $$
    select d.digest, d.url, (
            select max(h.held_until) from gc.holds as h
            where h.collection = 'blob' and h.key = d.key
        )
    from (
        select distinct a.digest, h.key, h.url
        from (
            select o.key, o.url from gc.holds as o
            where o.collection = 'blob' and o.reason = 'upload'
                and o.held_until <= (select clock_timestamp())
            order by o.held_until, o.id
            limit most
        ) as h
        cross join lateral (
            select case when h.key ~ '^.x(01[0-9a-f]{64}|02[0-9a-f]{128})$'
                then decode(substr(h.key, 3), 'hex') end
        ) as a(digest)
        where h.url = registry.blob_url(a.digest)
            and not exists (select from registry.blobs as b where b.digest = a.digest)
            and not exists (select from gc.tombstones as t where t.url = h.url)
        offset 0
    ) as d
    where not gc._is_held('blob', d.key, d.url)
$$;

comment on function _dead_uploads(bigint) is
    'Blobs whose uploads have all timed out, without a row and without a tombstone: among so many '
    'holds that are over, the oldest.';


-- A row may be inserted meanwhile, by another upload that does not see the tombstone yet. So that
-- is one of an object that may be shared (wait_for is null): a claim waits for everybody who did
-- not see it, and drops it if there is a row. It is due when the hold is forgotten, or later. A
-- review looks at as many holds as it forgets afterwards, in the same order (gc._purge_holds): it
-- forgets none that was not looked at. For a batch of 0, nobody knows how many that will be.
create function _bury_uploads(batch integer, until timestamptz)
    returns boolean
    language plpgsql
    volatile
as $$
declare
    over bigint := (
        select count(*) from (
            select from gc.holds as h
            where h.collection = 'blob' and h.reason = 'upload'
                and h.held_until <= (select clock_timestamp())
            limit 1001
        ) as h
    );
begin
    -- Mostly there is none, and then no partition of blobs is locked.
    if over = 0 then
        return batch > 0;
    elsif batch = 0 then
        return over > 1000 or exists (select from registry._dead_uploads(1000));
    end if;
    insert into gc.tombstones (collection, key, label, url, event, due_at, finalizers)
    select c.name, registry._blob_key(d.digest), registry.digest_text(d.digest), d.url,
        'blob_upload', greatest(clock_timestamp() + gc._undo(c), d.ended_at + s.upload_timeout),
        nullif(c.finalizers, '{}')
    from registry._dead_uploads(10::bigint * batch) as d
    join gc.collections as c on c.name = 'blob'
    cross join gc.settings as s;
    return true;
end;
$$;

comment on function _bury_uploads(integer, timestamptz) is
    'What each review of blobs calls first: leaves tombstones for uploads that nobody has finished '
    'in time. For a batch of 0: whether there are any.';
