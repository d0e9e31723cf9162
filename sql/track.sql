-- Tracking: make a table a collection, stop doing so, and find what was there before.

-- Generated code belongs to the owner of blobgc and acts with that role's rights, so nobody else
-- can have it made.
create function gc._require_owner()
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    owner name := (
        select pg_get_userbyid(n.nspowner) from pg_namespace as n where n.nspname = 'gc'
    );
begin
    if current_user <> owner then
        raise 'only the owner of blobgc can do that'
            using errcode = 'insufficient_privilege',
                detail = format('It belongs to %I, and this is %I.', owner, current_user),
                hint = format('set role %I;', owner);
    end if;
end;
$$;

comment on function gc._require_owner() is 'Raises for a role that does not own blobgc.';


create function gc._choose_name(target regclass, name text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    known text := (select c.name from gc.collections as c where c.target = _choose_name.target);
    chosen text := coalesce(
        name, known, (select c.relname from pg_class as c where c.oid = _choose_name.target));
    other regclass := (select c.target from gc.collections as c where c.name = chosen);
begin
    if chosen <> known then
        raise '"%" is the collection "%" already', target, known
            using errcode = 'duplicate_object',
                detail = 'A table is one collection.',
                hint = format('select gc.untrack(%L); and track it anew, or use that name.', known);
    end if;
    if other <> target then
        raise 'the name "%" is taken', chosen
            using errcode = 'duplicate_object',
                detail = format('It is the collection of %s.', other),
                hint = format('select * from gc.track(%L, name => %L);', target, chosen || '_2');
    end if;
    if chosen = '' or chosen like '\_%' or octet_length(chosen) > 63 then
        raise 'a collection cannot be called "%"', chosen
            using errcode = 'invalid_name',
                detail = 'A name has 1 to 63 bytes and does not begin with an underscore.',
                hint = format('select * from gc.track(%L, name => ''…'');', target);
    end if;
    return chosen;
end;
$$;

comment on function gc._choose_name(regclass, text) is
    'The name of a collection; raises if it is not free.';


create function gc._require_undo(undo interval)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if undo is null or undo < '0' or undo > '10 years' then
        raise 'an undo window is between nothing and ten years'
            using errcode = 'invalid_parameter_value',
                detail = format('undo is %s.', coalesce(undo::text, 'null')),
                hint = 'Leave undo out for none.';
    end if;
end;
$$;

comment on function gc._require_undo(interval) is 'Raises for an undo window that is none.';


create function gc._warn_shared(c gc.collections)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    slow regclass;
    command text;
begin
    for slow, command in
        select o.target, gc._missing_url_index(o)
        from gc.collections as o
        where o.name = c.name or gc._may_share(o, c)
        order by o.name <> c.name, o.name
    loop
        if command is not null then
            raise warning 'nothing finds the rows of "%" by their url', slow
                using hint = command,
                    detail = 'Rows may share an object: each deletion looks for a row that has it.';
        end if;
    end loop;
end;
$$;

comment on function gc._warn_shared(gc.collections) is
    'Warns if objects can be shared and looking for their rows is slow, in this collection or in '
    'one that could have the same objects.';


create function gc._reference_note(target regclass, reference text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format('deferred: a transaction that refers to a row while that is being '
        'collected fails at its commit, not at the statement; '
        'alter table %s alter constraint %I not deferrable;', k.conrelid::regclass, k.conname),
        E'\n' order by k.conname)
    from gc._keepers(target) as f
    join pg_constraint as k on k.oid = f.key
    where f.place = _reference_note.reference and not f.is_part and k.condeferred
$$;

comment on function gc._reference_note(regclass, text) is
    'What gc.track says about a reference; null: nothing.';


-- Whoever deletes a row at this moment writes a tombstone as the old url has it.
create function gc._await_writers(name text, url text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    target regclass := (
        select c.target from gc.collections as c
        join pg_class as t on t.oid = c.target
        where c.name = _await_writers.name and c.url is distinct from _await_writers.url
    );
begin
    if target is not null then
        perform gc._run(format('lock table %s in share mode', target));
    end if;
end;
$$;

comment on function gc._await_writers(text, text) is
    'Waits for those who are writing rows of a collection whose url changes, and keeps others out.';


create function gc.track(
    target regclass, name text default null, url text default null, size text default null,
    label text default null, generation text default null, condition text default null,
    owned text[] default '{}', events jsonb default '{}', undo interval default '0'
)
    returns table (reference text, role text, note text)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    chosen text;
    c gc.collections;
begin
    perform gc._require_owner();
    perform gc._lock('track');
    perform gc._require_table(track.target);
    chosen := gc._choose_name(track.target, track.name);
    perform gc._require_undo(track.undo);
    perform gc._await_writers(chosen, track.url);
    -- What is true of a tombstone under one url need not be so under another.
    update gc.tombstones as d
    set wait_for = null
    from gc.collections as o
    where o.name = chosen and o.url is distinct from track.url
        and d.collection = chosen and d.wait_for = '0';
    insert into gc.collections as o (
        name, target, url, size, label, generation, condition, owned, events, undo
    )
    values (
        chosen, track.target, track.url, track.size, track.label, track.generation,
        track.condition, gc._resolve_owned(track.target, coalesce(track.owned, '{}')),
        coalesce(track.events, '{}'), track.undo
    )
    on conflict (name) do update
    set url = excluded.url, size = excluded.size, label = excluded.label,
        generation = excluded.generation, condition = excluded.condition,
        owned = excluded.owned, events = excluded.events, undo = excluded.undo;
    perform gc._accept_losses(chosen);
    perform gc._generate(chosen, true);
    c := gc._collection(chosen);
    perform gc._block_without_keeper(c);
    perform gc._warn_shared(c);
    return query
        select r.reference, case when r.owned is null then 'keeps' else 'owned' end,
            gc._reference_note(c.target, r.reference)
        from gc._references(c) as r;
end;
$$;
revoke all on function gc.track(
    regclass, text, text, text, text, text, text, text[], jsonb, interval
) from public;

comment on function gc.track(
    regclass, text, text, text, text, text, text, text[], jsonb, interval
) is
    'Makes a table a collection, or changes its definition. Returns each reference into it, '
    'whether it keeps its target or is owned by it, and what should be known about it.';


-- The lock waits for those who are writing rows of the collection: the tombstone of a row that goes
-- at this moment would be handed out, and nobody would look whether another row has its object.
create function gc.untrack(name text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    queue name := gc._object_name(c.name, '_review_queue');
    waiting bigint;
begin
    perform gc._require_owner();
    perform gc._lock('track');
    perform gc._drop_unattached();
    if exists (select from pg_class as t where t.oid = c.target) then
        execute format('lock table %s in share mode', c.target);
    end if;
    perform gc._drop_functions(c.functions);
    execute format('drop type if exists gc.%I', gc._object_name(c.name, '_key'));
    execute format('delete from gc.%I', queue);
    perform gc._set_aside(queue || c.links);
    delete from gc.scan_requests as r where r.collection = c.name;
    delete from gc.holds as h where h.collection = c.name;
    with unread as (
        delete from gc.unread_rows as u where u.collection = c.name returning u.id
    ),
    left_behind as (
        delete from gc.tombstones as t where t.collection = c.name returning t.id
    )
    select (select count(*) from unread) + (select count(*) from left_behind) into waiting;
    delete from gc.collections as o where o.name = c.name;
    if waiting > 0 then
        raise warning '% objects of "%" stay in the store', waiting, c.name
            using detail = 'Their rows are gone, and nobody will delete them any more.',
                hint = 'Roll back, let a runner delete them, and untrack then.';
    end if;
end;
$$;
revoke all on function gc.untrack(text) from public;

comment on function gc.untrack(text) is
    'Makes a collection an ordinary table again. Its triggers do nothing from then on; '
    'gc.drop_unused_triggers drops them, its queue and its links.';


create function gc._scan_step(name text, batch integer)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    cursor text := (select c.scan_cursor from gc.collections as c
        where c.name = _scan_step.name for update);
    seen integer;
    last text;
begin
    perform gc._require_own(name);
    execute format('select seen, last from gc.%I($1, $2)', gc._object_name(name, '_scan'))
    into seen, last using batch, cursor;
    update gc.collections as c
    set scan_cursor = last, scanning = scanning and seen > 0, scan_error = null
    where c.name = _scan_step.name;
    return seen;
end;
$$;

comment on function gc._scan_step(text, integer) is
    'Goes over the next rows of a collection and queues those that nothing refers to.';


create function gc.scan(name text, batch integer default 1000)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
begin
    perform gc._require_owner();
    perform gc._require_batch(batch);
    return gc._scan_step(c.name, batch);
end;
$$;
revoke all on function gc.scan(text, integer) from public;

comment on function gc.scan(text, integer) is
    'Queues rows that were there before tracking or whose events were missed. Goes over one batch '
    'a call and returns how many rows that were; 0 at the end, and then it begins anew.';


-- After a TRUNCATE, for example. A scan that somebody else is at is left to them.
create function gc._scan_if_requested(name text, batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform from gc.collections as c
    where c.name = _scan_if_requested.name
        and (c.scanning or exists (
            select from gc.scan_requests as r where r.collection = c.name
        ))
    for update skip locked;
    if not found then
        return;
    end if;
    update gc.collections as c
    set scanning = true, scan_cursor = null
    where c.name = _scan_if_requested.name and not c.scanning;
    if found then
        delete from gc.scan_requests as r where r.collection = name;
    end if;
    perform gc._scan_step(name, batch);
end;
$$;

comment on function gc._scan_if_requested(text, integer) is
    'Carries a scan on that missed events have made necessary.';


-- By the pairs of letters that two words have in common.
create function gc._nearest(word text, words text[])
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select w
    from unnest(words) as w
    cross join lateral (
        select count(*)
        from (
            select substr(word, i, 2) from generate_series(1, length(word) - 1) as i
            intersect
            select substr(w, i, 2) from generate_series(1, length(w) - 1) as i
        ) as pairs
    ) as common(pairs)
    order by 2.0 * common.pairs / greatest(length(w) + length(word), 1) desc, w
    limit 1
$$;

comment on function gc._nearest(text, text[]) is 'The one of several words that is most like one.';


create function gc._queued(name text, event text)
    returns bigint
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    number bigint;
begin
    execute format('select count(*) from gc.%I as q where q.event = $1',
        gc._object_name(name, '_review_queue'))
    into number using event;
    return number;
end;
$$;

comment on function gc._queued(text, text) is 'How many entries of an event a queue has.';


create function gc.set_delay(event text, delay interval)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    known text[] := array(select distinct k.event from gc._known_events() as k order by 1);
    queued bigint;
begin
    perform gc._require_owner();
    if event is null or event <> all (known) then
        raise 'no collection has an event "%"', coalesce(event, 'null')
            using errcode = 'undefined_object',
                detail = format('Events: %s.',
                    coalesce(nullif(array_to_string(known, ', '), ''), 'none yet')),
                hint = format('select gc.set_delay(%L, %L);', gc._nearest(event, known), delay);
    end if;
    if delay not between '0' and '10 years' then
        raise 'a delay cannot be negative, nor longer than ten years'
            using errcode = 'invalid_parameter_value', detail = format('delay is %s.', delay),
                hint = format('select gc.set_delay(%L, ''1 day'');', event);
    end if;
    delete from gc.review_after_defaults as d where d.event = set_delay.event and delay is null;
    insert into gc.review_after_defaults as d (event, value)
    select set_delay.event, delay where delay is not null
    on conflict on constraint review_after_defaults_pkey do update set value = excluded.value;
    queued := (select sum(gc._queued(k.collection, k.event)) from gc._known_events() as k
        where k.event = set_delay.event);
    if queued > 0 then
        raise notice '% reviews that "%" has queued already keep their time', queued, event;
    end if;
end;
$$;
revoke all on function gc.set_delay(text, interval) from public;

comment on function gc.set_delay(text, interval) is
    'How long after an event a row is reviewed, from now on; null: a day, as without it.';
