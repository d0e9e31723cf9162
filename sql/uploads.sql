-- Uploads: say that an object is about to be written, before it is written.
--
-- An object is written outside the database, so no lock of the database covers it. A hold does: no
-- tombstone of the key or url is handed out until the upload ends or times out. The row's insert
-- takes the tombstone away for good; an upload that never becomes a row leaves it, and so its
-- object is collected too. While the caller's transaction is open the hold cannot be seen by
-- others; the advisory lock, taken before anything is looked at, can.

create function gc._upload_lock(collection text, thing text)
    returns integer
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $$ select hashtext(collection || ' ' || thing) $$;

comment on function gc._upload_lock(text, text) is
    'The second half of the advisory lock that an upload of this key or url takes.';


create function gc._is_held(collection text, key text, url text)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from gc.holds as h
        where h.collection = _is_held.collection and h.key = _is_held.key
            and h.held_until > clock_timestamp()
    ) or exists (
        select from gc.holds as h
        where h.collection = _is_held.collection and h.url = _is_held.url
            and h.held_until > clock_timestamp()
    )
$$;

comment on function gc._is_held(text, text, text) is
    'Whether somebody uses the row or is writing its object.';


-- The key's own tombstones wait until the upload would have timed out; a lease that is over ends.
create function gc._postpone_tombstones(collection text, key text, url text, until timestamptz)
    returns gc.tombstones
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    deleting gc.tombstones;
begin
    update gc.tombstones as t
    set worker = null, due_at = greatest(t.due_at, until)
    where t.collection = _postpone_tombstones.collection
        and (t.key = _postpone_tombstones.key or t.url = _postpone_tombstones.url)
        and (t.worker is null or t.due_at <= clock_timestamp());
    select t.* into deleting
    from gc.tombstones as t
    where t.collection = _postpone_tombstones.collection
        and (t.key = _postpone_tombstones.key or t.url = _postpone_tombstones.url)
        and t.worker is not null
    limit 1;
    return deleting;
end;
$$;

comment on function gc._postpone_tombstones(text, text, text, timestamptz) is
    'Postpones what nobody has claimed, and returns one that somebody has.';


create function gc._await_deletion(
    collection text, key text, url text, until timestamptz, wait interval
)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    give_up timestamptz := clock_timestamp() + wait;
    deleting gc.tombstones;
begin
    loop
        deleting := gc._postpone_tombstones(collection, key, url, until);
        exit when deleting.id is null;
        if clock_timestamp() >= give_up then
            raise 'the object is being deleted'
                using errcode = 'ZG001',
                    detail = format('%s is leased to %s until %s.',
                        deleting.url, deleting.worker, deleting.due_at),
                    hint = format('Try again in a few seconds: select gc.begin_upload(%L, %L);',
                        collection, key);
        end if;
        perform pg_sleep(0.05);
    end loop;
end;
$$;

comment on function gc._await_deletion(text, text, text, timestamptz, interval) is
    'Waits until no worker has the object under a lease; raises ZG001 when that takes too long.';


create function gc.begin_upload(
    name text, key text, url text default null, wait interval default '5 seconds',
    timeout interval default null
)
    returns timestamptz
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    canonical text := gc._canonical_key(c, key);
    until timestamptz := clock_timestamp()
        + coalesce(timeout, (select s.upload_timeout from gc.settings as s));
begin
    perform gc._require_read_committed('begin_upload');
    perform gc._require_positive('timeout', coalesce(timeout, '1 hour'));
    if wait is null or wait < '0' then
        perform gc._require_positive('wait', wait);
    end if;

    perform pg_advisory_xact_lock_shared(gc._lock_class(), gc._upload_lock(c.name, canonical));
    if url is not null then
        perform pg_advisory_xact_lock_shared(gc._lock_class(), gc._upload_lock(c.name, url));
    end if;
    insert into gc.holds (collection, key, url, reason, held_until)
    values (c.name, canonical, begin_upload.url, 'upload', until);
    perform gc._await_deletion(c.name, canonical, url, until, wait);

    -- An upload that never becomes a row is garbage: its tombstone is there from the beginning.
    if url is not null then
        insert into gc.tombstones (collection, key, url, event, due_at)
        values (c.name, canonical, begin_upload.url, 'upload', until);
    end if;
    return until;
end;
$$;
revoke all on function gc.begin_upload(text, text, text, interval, interval) from public;

comment on function gc.begin_upload(text, text, text, interval, interval) is
    'Says that an object is about to be written. Waits for one that is being deleted. Returns when '
    'the hold ends by itself; told the url, an upload that does not become a row is collected.';


create function gc.end_upload(name text, key text)
    returns boolean
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    canonical text := gc._canonical_key(c, key);
begin
    delete from gc.holds as h
    where h.id = (
        select o.id from gc.holds as o
        where o.collection = c.name and o.key = canonical and o.reason = 'upload'
            and o.held_until > clock_timestamp()
        order by o.held_until
        limit 1
        for update skip locked
    );
    return found;
end;
$$;
revoke all on function gc.end_upload(text, text) from public;

comment on function gc.end_upload(text, text) is
    'Ends one upload of the key that gc.begin_upload announced; false if there is none.';


create function gc._require_uploads(collection text, keys text[], urls text[])
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    missing text;
begin
    select o.key into missing
    from unnest(keys, urls) as o(key, url)
    where not gc._is_held(collection, o.key, o.url)
    limit 1;
    if found then
        raise 'the object of this row was not announced'
            using errcode = 'ZG002',
                detail = format('Row %s of "%s", and strict_uploads is on.', missing, collection),
                hint = format('select gc.begin_upload(%L, %L); before the object is written.',
                    collection, missing);
    end if;
end;
$$;

comment on function gc._require_uploads(text, text[], text[]) is
    'Raises ZG002 for a row that is inserted although nobody said that its object is written.';
