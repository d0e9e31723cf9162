-- Uploads: say that an object is about to be written, before it is written.
--
-- An object is written outside the database, so no lock of the database covers it. A hold does: no
-- tombstone of the key or url is handed out until the upload ends or times out. The row's insert
-- takes the tombstone away for good; an upload that never becomes a row leaves it, and so its
-- object is collected after all. While the caller's transaction is open the hold cannot be seen by
-- others; a locked slot can. It is taken first; then, if there is a tombstone, claims that have it
-- are waited for: what they have leased is seen, and what begins later sees the slot.

-- Whoever has a lock on a tombstone may be leasing it at this moment. It is waited for; the lock
-- that ends the wait goes with the subtransaction.
create function gc._await_claims(ids bigint[], wait interval)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '1ms'
as $$
begin
    perform set_config('lock_timeout',
        greatest(extract(epoch from wait) * 1000, 1)::integer || 'ms', true);
    perform from gc.tombstones as t where t.id = any (ids) order by t.id for share;
    raise 'the wait is over' using errcode = 'ZG999';
exception
    when sqlstate 'ZG999' then
        null;
    when lock_not_available then
        raise 'somebody is claiming the object, or takes it back, and has not committed'
            using errcode = 'ZG001',
                detail = format('Waited for %s.', wait),
                hint = 'Try again in a few seconds.';
end;
$$;

comment on function gc._await_claims(bigint[], interval) is
    'Waits until nobody has a lock on the tombstones; raises ZG001 when that takes too long.';


-- Only where the key alone makes the url: see gc._shares_objects.
create function gc._url_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_url', $template$
create or replace function gc.{function}(key text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    {settings}
$template$, $template$
    select {url} from (select {typed}) as {alias}({keys})$template$,
        jsonb_build_object(
            'typed', gc._parsed_key_sql(c, '$1')))
    where c.url is not null and not c.shared
$$;

comment on function gc._url_sql(gc._shape) is
    'The function gc.<name>_url: the address that the object of a key has or would have.';


create function gc._url_of(c gc.collections, key text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    url text;
begin
    if c.url is not null and not c.shared then
        perform gc._require_own(c.name);
        execute format('select gc.%I($1)', gc._object_name(c.name, '_url')) into url using key;
    end if;
    return url;
end;
$$;

comment on function gc._url_of(gc.collections, text) is
    'The address that a key''s object has; null if the key alone does not tell.';


create function gc._tombstones_of(collection text, key text, urls text[])
    returns bigint[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
begin
    return array(
        select t.id from gc.tombstones as t
        where t.url = any (urls)
            or t.wait_for is distinct from '0' and t.key = _tombstones_of.key
                and t.collection = _tombstones_of.collection
    );
end;
$$;

comment on function gc._tombstones_of(text, text, text[]) is
    'The tombstones of a key''s objects, whatever address it had.';


create function gc._await_deletion(collection text, key text, urls text[], wait interval)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    give_up timestamptz := clock_timestamp() + wait;
    left_behind bigint[];
    leased_until timestamptz;
begin
    loop
        left_behind := gc._tombstones_of(collection, key, urls);
        exit when cardinality(left_behind) = 0;
        perform gc._await_claims(left_behind, give_up - clock_timestamp());
        select t.due_at into leased_until
        from gc.tombstones as t
        where t.id = any (left_behind) and t.worker is not null and t.due_at > clock_timestamp()
        limit 1;
        exit when not found;
        if clock_timestamp() >= give_up then
            raise 'the object is being deleted'
                using errcode = 'ZG001',
                    detail = format('It is leased to a worker until %s.', leased_until),
                    hint = format('Try again in a few seconds: select gc.begin_upload(%L, %L);',
                        collection, key);
        end if;
        perform pg_sleep(0.05);
    end loop;
end;
$$;

comment on function gc._await_deletion(text, text, text[], interval) is
    'Waits until no worker has the object under a lease; raises ZG001 when that takes too long.';


create function gc._require_own_url(c gc.collections, url text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not starts_with(url, c.url_prefix) then
        raise 'this is not the address of an object of "%"', c.name
            using errcode = 'invalid_parameter_value',
                detail = format('%s does not begin with %s.', url, c.url_prefix),
                hint = 'Leave the url out, or give the one that the row will have.';
    end if;
end;
$$;

comment on function gc._require_own_url(gc.collections, text) is
    'Raises for an address that no row of the collection can have.';


-- A row that is deleted by a transaction that did not wait for the disk is back after a crash. The
-- commit of a claim comes after all that the claim has seen, so it makes that durable too.
create function gc._commit_durably()
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end;
$$;

comment on function gc._commit_durably() is
    'Makes this transaction wait for the disk when it commits, whatever the session says.';


-- The object is written after this, so a crash must not take the hold away.
-- Order: the slots, the hold, and only then the tombstones. What has no tombstone yet, no claim
-- that runs can have leased; a later one sees the slots, or the hold.
create function gc._begin_upload(
    name text, key text, url text, wait interval, timeout interval, upload text
)
    returns timestamptz
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    canonical text := gc._canonical_key(c, key);
    own_url text := gc._url_of(c, canonical);
    object text := coalesce(url, own_url);
    until timestamptz := clock_timestamp()
        + coalesce(timeout, (select s.upload_timeout from gc.settings as s));
begin
    perform gc._require_read_committed('begin_upload');
    perform gc._require_positive('timeout', coalesce(timeout, '1 hour'));
    if wait is distinct from '0' then
        perform gc._require_positive('wait', wait);
    end if;

    perform gc._require_own_url(c, url);
    perform gc._commit_durably();
    perform gc._lock_slots(array_remove(
        array[gc._slot(c.name, canonical), gc._slot('url', object)], null));
    insert into gc.holds (collection, key, url, reason, upload, held_until)
    values (c.name, canonical, object, 'upload', upload, until);
    perform gc._await_deletion(c.name, canonical, array[object, own_url], wait);
    return until;
end;
$$;

comment on function gc._begin_upload(text, text, text, interval, interval, text) is
    'What gc.begin_upload does.';


-- Exactly the upload of that name; of those without one the oldest that nobody is ending: each of
-- them ends one hold, so the one that has timed out must not be left to the next.
create function gc._take_upload(collection text, key text, upload text)
    returns setof gc.holds
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if upload is not null then
        return query
            delete from gc.holds as h
            where h.collection = _take_upload.collection and h.key = _take_upload.key
                and h.reason = 'upload' and h.upload = _take_upload.upload
            returning h.*;
        return;
    end if;
    return query
        delete from gc.holds as h
        where h.id = (
            select o.id from gc.holds as o
            where o.collection = _take_upload.collection and o.key = _take_upload.key
                and o.reason = 'upload' and o.upload is null
            order by o.id
            limit 1
            for update skip locked
        )
        returning h.*;
end;
$$;

comment on function gc._take_upload(text, text, text) is
    'Deletes the hold of an upload, and returns it, whether it is in time or not.';


create function gc._end_upload(name text, key text, upload text)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    canonical text := gc._canonical_key(c, key);
    ended gc.holds;
begin
    select h.* into ended
    from gc._take_upload(c.name, canonical, upload) as h
    order by h.held_until desc
    limit 1;
    if not coalesce(ended.held_until > clock_timestamp(), false) then
        return false;
    end if;
    -- Some insert the row only after this: its tombstone waits as long as an upload may take.
    update gc.tombstones as t
    set due_at = greatest(t.due_at, clock_timestamp() + s.upload_timeout)
    from gc.settings as s
    where t.id = any (array(
        select o.id from gc.tombstones as o
        where o.worker is null and o.id = any (gc._tombstones_of(
            c.name, canonical, array[ended.url, gc._url_of(c, canonical)]))
        for update skip locked
    ));
    return true;
end;
$$;

comment on function gc._end_upload(text, text, text) is 'What gc.end_upload does.';


create function gc.begin_upload(
    name text, key text, url text default null, wait interval default '5 seconds',
    timeout interval default null, upload text default null
)
    returns timestamptz
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    until timestamptz;
begin
    execute format('select %s($1, $2, $3, $4, $5)', gc._own_function(name, '_begin_upload'))
    into until using key, url, wait, timeout, upload;
    return until;
end;
$$;
revoke all on function gc.begin_upload(text, text, text, interval, interval, text) from public;

comment on function gc.begin_upload(text, text, text, interval, interval, text) is
    'Says that an object is about to be written. Waits for one that is being deleted. Returns when '
    'the hold ends by itself. Where rows share objects, tell the url too. Where several may upload '
    'one object at a time, give each upload a name.';


create function gc.end_upload(name text, key text, upload text default null)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    ended boolean;
begin
    execute format('select %s($1, $2)', gc._own_function(name, '_end_upload'))
    into ended using key, upload;
    return ended;
end;
$$;
revoke all on function gc.end_upload(text, text, text) from public;

comment on function gc.end_upload(text, text, text) is
    'Ends an upload of the key that gc.begin_upload announced: the one of that name, or the oldest '
    'without one. False if there is none, or if it has timed out.';


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
