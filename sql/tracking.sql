-- Tracking: make a table a collection, and stop doing so.

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


-- What is true of a tombstone under one url need not be so under another. Rows that came while only
-- deleted ones were collected have no entry; nor have those that were kept by another condition, or
-- by a reference that does not keep any more.
create function gc._before_change(changed gc.collections)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections;
begin
    select o.* into c from gc.collections as o where o.name = changed.name;
    if not found then
        return;
    end if;
    perform gc._await_writers(c.name, changed.url);
    update gc.tombstones as d
    set wait_for = null
    where c.url is distinct from changed.url and d.collection = c.name and d.wait_for = '0';
    if c.collect = 'garbage' and changed.collect = 'deleted' then
        perform gc._note_dequeued(c.name, 'only deleted rows are collected any more');
        perform gc._run(format('delete from gc.%I', gc._object_name(c.name, '_review_queue')));
        delete from gc.scan_requests as r where r.collection = c.name;
    elsif changed.collect = 'garbage' and (
        c.collect = 'deleted' or c.condition is distinct from changed.condition
        or not changed.owned <@ c.owned
    ) then
        insert into gc.scan_requests (collection, reason)
        values (c.name, 'more of its rows can be garbage from now on');
    end if;
end;
$$;

comment on function gc._before_change(gc.collections) is
    'What has to be done before a collection gets another url, or collects something else.';


create function gc._define(c gc.collections)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._require_collect(c);
    perform gc._before_change(c);
    insert into gc.collections as o (
        name, target, url, size, label, generation, condition, owned, events, undo, collect,
        finalizers, restored
    )
    values (
        c.name, c.target, c.url, c.size, c.label, c.generation, c.condition, c.owned, c.events,
        c.undo, c.collect, c.finalizers, c.restored
    )
    on conflict (name) do update
    set url = excluded.url, size = excluded.size, label = excluded.label,
        generation = excluded.generation, condition = excluded.condition,
        owned = excluded.owned, events = excluded.events, undo = excluded.undo,
        collect = excluded.collect, finalizers = excluded.finalizers,
        restored = excluded.restored;
end;
$$;

comment on function gc._define(gc.collections) is
    'Writes a definition down, in place of the one that there was.';


create function gc.track(
    target regclass, name text default null, url text default null, size text default null,
    label text default null, generation text default null, condition text default null,
    owned text[] default '{}', events jsonb default '{}', undo interval default null,
    collect text default 'garbage', finalizers text[] default '{}', restored jsonb default '{}'
)
    returns table (reference text, role text, note text)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    c gc.collections;
begin
    perform gc._require_owner();
    perform gc._lock('track');
    perform gc._require_table(track.target);
    perform gc._require_undo(track.undo);
    perform gc._require_finalizers(track.finalizers);
    c := jsonb_populate_record(null::gc.collections, jsonb_build_object(
        'name', gc._choose_name(track.target, track.name), 'target', track.target::oid,
        'url', track.url, 'size', track.size, 'label', track.label,
        'generation', track.generation, 'condition', track.condition, 'collect', track.collect,
        'owned', gc._resolve_owned(track.target, coalesce(track.owned, '{}')),
        'events', coalesce(track.events, '{}'), 'undo', track.undo,
        'finalizers', coalesce(track.finalizers, '{}'),
        'restored', coalesce(track.restored, '{}')));
    perform gc._lock_collection(c.name);
    perform gc._refuse_restored(c, gc._restored_flaw(c));
    perform gc._define(c);
    perform gc._accept_losses(c.name);
    perform gc._generate(c.name, true);
    c := gc._collection(c.name);
    perform gc._require_restored_values(c);
    perform gc._block_without_keeper(c);
    perform gc._warn_shared(c);
    perform gc._tell_first_run(c, case when c.collect = 'garbage' then gc._warn_suspects(c) end);
    return query select l.* from gc._reference_list(c) as l;
end;
$$;
revoke all on function gc.track(
    regclass, text, text, text, text, text, text, text[], jsonb, interval, text, text[],
    jsonb
) from public;

comment on function gc.track(
    regclass, text, text, text, text, text, text, text[], jsonb, interval, text, text[],
    jsonb
) is
    'Makes a table a collection, or changes its definition. Returns each reference into it, '
    'whether it keeps its target, is owned by it, or is ignored because only the objects of '
    'deleted rows are collected (collect => ''deleted''), and what should be known about it.';


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
    perform gc._lock_collection(c.name);
    perform gc._drop_unattached();
    if exists (select from pg_class as t where t.oid = c.target) then
        execute format('lock table %s in share mode', c.target);
    end if;
    perform gc._note_untracked(c);
    perform gc._drop_functions(c.functions);
    execute format('drop type if exists gc.%I', gc._object_name(c.name, '_key'));
    execute format('delete from gc.%I', queue);
    perform gc._set_aside(queue || c.links);
    delete from gc.scan_requests as r where r.collection = c.name;
    delete from gc.declared_references as d where d.collection = c.name;
    delete from gc.holds as h where h.collection = c.name;
    perform gc._forget_stops(c.name);
    delete from gc.trash_rows as r where r.collection = c.name;
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
