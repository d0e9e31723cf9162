-- Pins: do not collect this row until somebody says otherwise, or until then.
--
-- Each holder has its own pin of a row: a release manager, a legal hold, a reporter of what is
-- deployed. Look, lock, look again makes it safe: gc.pin locks the row as a reference would, so a
-- review skips it, or sees the pin at its second look; or the review was first, and gc.pin finds
-- the row gone. A review leaves a pinned row, and what it owns, and does not come back: the end of
-- the pin queues the row again. No review deletes a pinned row, not as an owned row and not by a
-- cascade either. The application itself may; then the object stays as long as the pin does. A row
-- that gets another key is pinned under that, too.

create table gc.pins (
    collection text not null,
    key text not null,
    holder text not null,
    reason text,
    until timestamptz not null,
    pinned_by text not null,
    since timestamptz not null default clock_timestamp()
);
-- By a hash, because a key may be longer than a btree takes.
create unique index pins_one_of_a_holder on gc.pins (md5(key), collection, holder);
create index pins_collection_idx on gc.pins (collection);
create index pins_until_idx on gc.pins (until);

comment on table gc.pins is 'Rows that are not to be collected: see gc.pin.';
comment on column gc.pins.collection is 'The collection of the row.';
comment on column gc.pins.key is 'The row''s primary key, as text.';
comment on column gc.pins.holder is 'Whose pin it is; each holder has one of a row.';
comment on column gc.pins.reason is 'Why, as far as it was told.';
comment on column gc.pins.until is 'When it ends by itself; infinity: never.';
comment on column gc.pins.pinned_by is 'The role that had logged in.';
comment on column gc.pins.since is 'When it began.';


create function gc._has_pins(collection text)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from gc.pins as p where p.collection = _has_pins.collection);
end;
$$;

comment on function gc._has_pins(text) is 'Whether anything of a collection is pinned at all.';


create function gc._pinned_keys(collection text, keys text[])
    returns setof gc.pins
    language sql
    stable
    rows 1
    set search_path = pg_catalog, pg_temp
as $$
    select p.* from gc.pins as p
    join unnest(keys) as k on md5(p.key) = md5(k) and p.key = k
    where p.collection = _pinned_keys.collection and p.until > clock_timestamp()
$$;

comment on function gc._pinned_keys(text, text[]) is 'The pins of these keys that hold.';


-- A trigger asks, when a review deletes rows: its own, owned ones, or those that a cascade reaches.
create function gc._require_unpinned(collection text, keys text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    p gc.pins;
begin
    select o.* into p from gc._pinned_keys(collection, keys) as o limit 1;
    if found then
        raise 'it goes with row % of "%", which "%" has pinned', p.key, p.collection, p.holder
            using errcode = 'ZG008',
                detail = coalesce(p.reason, 'No reason was given.'),
                hint = format('select gc.unpin(%L, %L, %L);', p.collection, p.key, p.holder);
    end if;
end;
$$;

comment on function gc._require_unpinned(text, text[]) is
    'Raises ZG008 if one of the rows that a review deletes is pinned.';


create function gc._spare_pinned_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
if current_setting('blobgc.reviewing', true) <> '' and gc._has_pins({name}) then
    perform gc._require_unpinned({name}, array(select {key_text} from old_rows as {alias}));
end if;$template$, c.words)
$$;

comment on function gc._spare_pinned_sql(gc._shape) is
    'What keeps a review of any collection from deleting pinned rows of this one.';


-- The table has changed, so that keys cannot be compared: when in doubt, keep.
create function gc._spare_blindly_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
if current_setting('blobgc.reviewing', true) <> '' and (gc._has_pins({name}) or exists (
    select from gc.declared_references as d where d.collection = {name}
)) then
    raise 'it goes with rows of "%", whose table has changed', {name}
        using errcode = 'ZG008',
            detail = 'Whether they are pinned, or a declared reference keeps them, is not known.',
            hint = 'select * from gc.status(); says what is to be mended.';
end if;$template$, c.words)
$$;

comment on function gc._spare_blindly_sql(gc._shape) is
    'What keeps a review of another collection from deleting rows that may be pinned or mentioned.';


create function gc._enqueue_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_enqueue', $template$
create or replace function gc.{function}(key text, review_after timestamptz)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
    {settings}
$template$, $template$
    insert into {queue} ({queue_keys}, event, review_after, causes)
    values ({typed}, {event}, $2 + (gc.review_after({event}) - now()), gc._causes())$template$,
        jsonb_build_object(
            'event', quote_literal(gc._event(c.events, c.name || '_unpin')),
            'typed', gc._parsed_key_sql(c, '$1')))
$$;

comment on function gc._enqueue_sql(gc._shape) is
    'The function gc.<name>_enqueue: queues a key whose pin ends, a delay after that.';


create function gc._enqueue(name text, keys text[], after timestamptz)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('select count(gc.%I(k, $2)) from unnest($1) as k',
        gc._object_name(name, '_enqueue'))
    using keys, after;
end;
$$;

comment on function gc._enqueue(text, text[], timestamptz) is
    'Queues keys whose pin ends.';


-- For each key, what a function of the collection makes of it. One bad key is named.
create function gc._of_each_key(
    c gc.collections, suffix text, inout keys text[], out results text[]
)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    given text[] := keys;
begin
    perform gc._require_own(c.name);
    execute format('select array_agg(o.k), array_agg(gc.%I(o.k)) '
        'from (select distinct k from unnest($1) as k order by k) as o',
        gc._object_name(c.name, suffix))
    into keys, results using given;
exception
    when data_exception then
        perform gc._canonical_key(c, k) from unnest(given) as k;
        raise;
end;
$$;

comment on function gc._of_each_key(gc.collections, text, text[]) is
    'Calls a function of a collection for each key, in the order of the keys.';


-- The review that the end of the pin needs is queued at once. The latest entry of a key counts, and
-- while the pin is there that is right; whatever happens later to the row adds entries of its own.
-- In the order of the keys, so that two who pin the same wait in one direction only.
create function gc._pin(
    name text, keys text[], reason text, until timestamptz, holder text
)
    returns table (key text, alive text)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    c gc.collections := gc._collection(name);
    locked record;
    live text[];
begin
    perform gc._require_end('pin', until);
    perform gc._require_holder(holder);
    locked := gc._of_each_key(c, '_lock', _pin.keys);
    live := array(select distinct a from unnest(locked.results) as a where a is not null);
    insert into gc.pins (collection, key, holder, reason, until, pinned_by)
    select c.name, a, _pin.holder, _pin.reason, _pin.until, session_user from unnest(live) as a
    on conflict (md5(key), collection, holder) do update
    set reason = excluded.reason, until = excluded.until, pinned_by = excluded.pinned_by;
    if until < 'infinity' then
        perform gc._enqueue(c.name, live, until);
    end if;
    insert into gc.operations (operation, collection, key, reason, done_by)
    select 'pin', c.name, a, _pin.reason, session_user from unnest(live) as a;
    return query select u.k, u.a from unnest(locked.keys, locked.results) as u(k, a);
end;
$$;

comment on function gc._pin(text, text[], text, timestamptz, text) is
    'Locks rows and pins them; returns for each key that of its row, null: it is not there.';


-- Only inserts, as a trigger should: the pin of the old key stays.
create function gc._follow_pins(collection text, old_keys text[], new_keys text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    followed gc.pins;
begin
    for followed in
        insert into gc.pins (collection, key, holder, reason, until, pinned_by)
        select p.collection, u.new_key, p.holder, p.reason, p.until, p.pinned_by
        from unnest(old_keys, new_keys) as u(old_key, new_key)
        join gc._pinned_keys(_follow_pins.collection, old_keys) as p on p.key = u.old_key
        where u.new_key <> u.old_key
        on conflict (md5(key), collection, holder) do nothing
        returning *
    loop
        perform gc._enqueue(followed.collection, array[followed.key], followed.until)
        where followed.until < 'infinity';
    end loop;
end;
$$;

comment on function gc._follow_pins(text, text[], text[]) is
    'Pins rows that have got another key as they were pinned under the one before.';


-- PostgreSQL writes both transition tables row by row, so the same place is the same row.
create function gc._follow_pins_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
if gc._has_pins({name}) then
    perform gc._follow_pins({name}, array(select {key_text} from {old_rows} as {alias}),
        array(select {key_text} from {new_rows} as {alias}));
end if;$template$, c.words)
$$;

comment on function gc._follow_pins_sql(gc._shape) is
    'What has pins follow a row whose key changes.';


create function gc._require_holder(holder text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if holder is null or holder = '' then
        raise 'a pin must have a holder'
            using errcode = 'invalid_parameter_value',
                hint = 'Leave the argument out for the role that has logged in.';
    end if;
end;
$$;

comment on function gc._require_holder(text) is 'Raises for a holder without a name.';


create function gc.pin(
    name text, key text, reason text default null, until timestamptz default 'infinity',
    holder text default session_user
)
    returns boolean
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select p.alive is not null from gc._pin(name, array[pin.key], reason, until, holder) as p
    );
end;
$$;
revoke all on function gc.pin(text, text, text, timestamptz, text) from public;

comment on function gc.pin(text, text, text, timestamptz, text) is
    'Keeps a row, and what it owns, from being collected until its holder unpins it, or until '
    'then. False: there is no such row, and nothing was pinned. Pinning again changes reason and '
    'end.';


create function gc.pin(
    name text, keys text[], reason text default null, until timestamptz default 'infinity',
    holder text default session_user
)
    returns table (key text, pinned boolean)
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select p.key, p.alive is not null from gc._pin(name, keys, reason, until, holder) as p;
end;
$$;
revoke all on function gc.pin(text, text[], text, timestamptz, text) from public;

comment on function gc.pin(text, text[], text, timestamptz, text) is
    'The same for many keys, and faster; returns of each whether it was pinned.';


create function gc._tombstones_of_keys(c gc.collections, keys text[])
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    urls text[];
begin
    if c.url is null then
        return array[]::bigint[];
    elsif not c.shared then
        urls := (gc._of_each_key(c, '_url', keys)).results;
    end if;
    return array(
        select t.id from gc.tombstones as t
        where t.collection = c.name and t.url = any (urls)
        union
        select t.id from gc.tombstones as t
        where t.collection = c.name and t.wait_for is distinct from '0'
            and t.key = any (_tombstones_of_keys.keys)
    );
end;
$$;

comment on function gc._tombstones_of_keys(gc.collections, text[]) is
    'The tombstones of keys whose rows somebody has deleted.';


-- The tombstones are locked first: a claim either has put them off already, or leaves them alone
-- until the pin is gone. Whoever inserts a row with one of these objects shares the lock, and would
-- otherwise wait for us while we wait for it.
create function gc._unpin(name text, keys text[], holder text)
    returns table (key text, unpinned boolean)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    c gc.collections := gc._collection(name);
    asked record := gc._of_each_key(c, '_key_text', _unpin.keys);
    tombstones bigint[] := gc._tombstones_of_keys(c, asked.results);
    ended text[];
begin
    perform from gc.tombstones as t where t.id = any (tombstones) order by t.id
    for no key update;
    with gone as (
        delete from gc.pins as p
        using unnest(asked.results) as k
        where md5(p.key) = md5(k) and p.key = k
            and p.collection = c.name and p.holder = _unpin.holder
        returning p.key
    ),
    noted as (
        insert into gc.operations (operation, collection, key, done_by)
        select 'unpin', c.name, g.key, session_user from gone as g
    )
    select coalesce(array_agg(g.key), '{}') into ended from gone as g;
    perform gc._enqueue(c.name, ended, now());
    update gc.tombstones as t
    set due_at = clock_timestamp()
    where t.id = any (tombstones) and t.worker is null and starts_with(t.held_up, 'pinned by ');
    perform gc._wake_runners();
    return query
        select u.k, e is not null
        from unnest(asked.keys, asked.results) as u(k, r)
        left join unnest(ended) as e on e = u.r;
end;
$$;

comment on function gc._unpin(text, text[], text) is
    'Ends pins, and queues the rows for a review; returns of each whether it was pinned.';


create function gc.unpin(name text, key text, holder text default session_user)
    returns boolean
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (select u.unpinned from gc._unpin(name, array[unpin.key], holder) as u);
end;
$$;
revoke all on function gc.unpin(text, text, text) from public;

comment on function gc.unpin(text, text, text) is
    'Ends a pin; the row is reviewed after the delay of the event <collection>_unpin. False: that '
    'holder had none.';


create function gc.unpin(name text, keys text[], holder text default session_user)
    returns table (key text, unpinned boolean)
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query select u.key, u.unpinned from gc._unpin(name, keys, holder) as u;
end;
$$;
revoke all on function gc.unpin(text, text[], text) from public;

comment on function gc.unpin(text, text[], text) is
    'The same for many keys, and faster; returns of each whether it had been pinned.';


-- The application has deleted a pinned row: its object stays. Somebody may have deleted the pin by
-- hand, so it is looked at again every day.
create function gc._put_off_pinned(ids bigint[])
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    pinned bigint[];
begin
    if not exists (select from gc.pins) then
        return ids;
    end if;
    with found as (
        select t.id, max(p.until) as until, string_agg(distinct p.holder, ', ') as holders
        from gc.tombstones as t
        join gc.pins as p on md5(p.key) = md5(t.key) and p.key = t.key
            and p.collection = t.collection and p.until > clock_timestamp()
        where t.id = any (ids)
        group by t.id
    ),
    moved as (
        update gc.tombstones as t
        set worker = null, due_at = least(f.until, clock_timestamp() + interval '1 day'),
            held_up = 'pinned by ' || f.holders
        from found as f
        where t.id = f.id
        returning t.id
    )
    select array_agg(m.id) into pinned from moved as m;
    return array(select u from unnest(ids) as u where u <> all (coalesce(pinned, '{}')));
end;
$$;

comment on function gc._put_off_pinned(bigint[]) is
    'Puts off the tombstones whose key is pinned; returns the others.';


create function gc._purge_pins(batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    delete from gc.pins as p
    where p.ctid = any (array(
        select o.ctid from gc.pins as o where o.until <= now() limit batch for update skip locked
    ));
    delete from gc.pauses as p
    where p.ctid = any (array(
        select o.ctid from gc.pauses as o where o.until <= now() limit batch for update skip locked
    ));
end;
$$;

comment on function gc._purge_pins(integer) is 'Drops pins and pauses that are over.';
