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


create function gc._tombstones_of(collection text, keys text[], urls text[])
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
            or t.wait_for is distinct from '0' and t.key = any (keys)
                and t.collection = _tombstones_of.collection
    );
end;
$$;

comment on function gc._tombstones_of(text, text[], text[]) is
    'The tombstones of the objects of keys, whatever addresses these had.';


create function gc._await_deletion(collection text, keys text[], urls text[], wait interval)
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
        left_behind := gc._tombstones_of(collection, keys, urls);
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
                        collection, keys[1]);
        end if;
        perform pg_sleep(0.05);
    end loop;
end;
$$;

comment on function gc._await_deletion(text, text[], text[], interval) is
    'Waits until no worker has one of the objects under a lease; raises ZG001 when that takes too '
    'long.';


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


-- One whose key nobody knows yet is held by its url, which stands for the key as well.
create function gc._announced(c gc.collections, keys text[], urls text[])
    returns table (key text, url text, own_url text)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(cardinality(keys), cardinality(urls)) is distinct from
        coalesce(cardinality(urls), cardinality(keys))
        or exists (
            select from unnest(keys, urls) as o(key, url) where coalesce(o.key, o.url) is null
        )
    then
        raise 'an upload has a key, or a url, or both'
            using errcode = 'invalid_parameter_value',
                detail = format('%s keys and %s urls were given.', coalesce(cardinality(keys), 0),
                    coalesce(cardinality(urls), 0)),
                hint = format('select gc.begin_uploads(%L, urls => array[…]);', c.name);
    end if;
    perform gc._require_own_url(c, u) from unnest(urls) as u;
    return query
        select coalesce(k.canonical, o.url), coalesce(o.url, w.own_url), w.own_url
        from unnest(keys, urls) as o(key, url)
        cross join lateral (
            select case when o.key is not null then gc._canonical_key(c, o.key) end
        ) as k(canonical)
        cross join lateral (
            select case when o.key is not null then gc._url_of(c, k.canonical) end
        ) as w(own_url);
end;
$$;

comment on function gc._announced(gc.collections, text[], text[]) is
    'Keys and urls of uploads, as holds have them; raises for what cannot be announced.';


-- The objects are written after this, so a crash must not take the holds away.
-- Order: the slots, the holds, and only then the tombstones. What has no tombstone yet, no claim
-- that runs can have leased; a later one sees the slots, or the holds.
create function gc._begin_uploads(
    name text, keys text[], urls text[], wait interval, timeout interval, upload text
)
    returns timestamptz
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    until timestamptz := clock_timestamp()
        + coalesce(timeout, (select s.upload_timeout from gc.settings as s));
    held text[];
    objects text[];
    own_urls text[];
begin
    perform gc._require_read_committed('begin_upload');
    perform gc._require_positive('timeout', coalesce(timeout, '1 hour'));
    if wait is distinct from '0' then
        perform gc._require_positive('wait', wait);
    end if;

    select array_agg(a.key), array_agg(a.url), array_agg(a.own_url) into held, objects, own_urls
    from gc._announced(c, keys, urls) as a;
    perform gc._commit_durably();
    perform gc._lock_slots(array(
        select distinct s.slot from unnest(held, objects) as o(key, url)
        cross join lateral (
            values (gc._slot(c.name, o.key)), (gc._slot('url', o.url))
        ) as s(slot)
        where s.slot is not null
    ));
    insert into gc.holds (collection, key, url, reason, upload, held_until)
    select c.name, o.key, o.url, 'upload', _begin_uploads.upload, until
    from unnest(held, objects) as o(key, url);
    perform gc._await_deletion(c.name, held, objects || own_urls, wait);
    return until;
end;
$$;

comment on function gc._begin_uploads(text, text[], text[], interval, interval, text) is
    'What gc.begin_upload and gc.begin_uploads do.';


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


create function gc._end_upload(collection text, held_key text, own_url text, upload text)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    ended gc.holds;
begin
    select h.* into ended
    from gc._take_upload(_end_upload.collection, held_key, upload) as h
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
            _end_upload.collection, array[held_key], array[ended.url, own_url]))
        for update skip locked
    ));
    return true;
end;
$$;

comment on function gc._end_upload(text, text, text, text) is
    'Ends an upload of a key as holds have it. False if there is none, or if it has timed out.';


create function gc._end_uploads(name text, keys text[], urls text[], upload text)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
begin
    return (
        select count(*) filter (where gc._end_upload(c.name, a.key, a.own_url, upload))
        from gc._announced(c, keys, urls) as a
    );
end;
$$;

comment on function gc._end_uploads(text, text[], text[], text) is
    'What gc.end_upload and gc.end_uploads do: returns how many have ended in time.';


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


create function gc.begin_uploads(
    name text, keys text[] default null, urls text[] default null,
    wait interval default '5 seconds', timeout interval default null, upload text default null
)
    returns timestamptz
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    until timestamptz;
begin
    execute format('select %s($1, $2, $3, $4, $5)', gc._own_function(name, '_begin_uploads'))
    into until using keys, urls, wait, timeout, upload;
    return until;
end;
$$;
revoke all on function gc.begin_uploads(
    text, text[], text[], interval, interval, text
) from public;

comment on function gc.begin_uploads(text, text[], text[], interval, interval, text) is
    'gc.begin_upload for many objects at once: by keys, by urls where the keys are not known yet, '
    'or by both.';


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


create function gc.end_uploads(
    name text, keys text[] default null, urls text[] default null, upload text default null
)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    ended integer;
begin
    execute format('select %s($1, $2, $3)', gc._own_function(name, '_end_uploads'))
    into ended using keys, urls, upload;
    return ended;
end;
$$;
revoke all on function gc.end_uploads(text, text[], text[], text) from public;

comment on function gc.end_uploads(text, text[], text[], text) is
    'Ends uploads that gc.begin_uploads announced, by the same keys and urls. Returns how many '
    'have not timed out.';


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
