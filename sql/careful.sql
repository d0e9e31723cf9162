-- Careful deletes: for applications that write an object first, unannounced, and then its row.
--
-- The worker looks at an object before it deletes it, and deletes only what it has seen. Two rules
-- say what may go. It was not written after its row went: then somebody is about to insert a row
-- again. And nobody has written it for as long as an upload may take (upload_timeout): the row of
-- whoever wrote it is there by now, or was refused.
--
-- Clocks are never compared with each other: an age by the store's clock is compared with an age
-- by the database's. A store may round times to a second, so two are allowed for; within these, the
-- second rule decides alone.

create function gc._row_gone_for(t gc.tombstones)
    returns interval
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$ select clock_timestamp() - t.created_at - interval '2 seconds' $$;

comment on function gc._row_gone_for(gc.tombstones) is
    'For how long the row has been gone, at least as a store that rounds may see it.';


create function gc._untouched_for(t gc.tombstones)
    returns interval
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select greatest(s.upload_timeout, case when t.event = 'reconcile' then s.orphan_grace end)
    from gc.settings as s
$$;

comment on function gc._untouched_for(gc.tombstones) is
    'For how long nobody must have written an object before it is deleted with care.';


create function gc.set_careful(name text, careful boolean default true)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._require_owner();
    update gc.collections as c
    set careful = coalesce(set_careful.careful, false)
    where c.name = (gc._collection(set_careful.name)).name;
end;
$$;
revoke all on function gc.set_careful(text, boolean) from public;

comment on function gc.set_careful(text, boolean) is
    'Whether objects of a collection are looked at before they are deleted: one that was written '
    'after its row went stays. For applications that write objects first and cannot be changed.';


-- What was adopted is always deleted with care: nobody knows who wrote it, and what for.
create function gc.careful(worker text, ids bigint[], always boolean default false)
    returns table (id bigint, untouched_for double precision)
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
begin
    return query
        select t.id, extract(
            epoch from greatest(gc._row_gone_for(t), gc._untouched_for(t)))::double precision
        from gc.tombstones as t
        left join gc.collections as c on c.name = t.collection
        where t.id = any (careful.ids) and t.worker = careful.worker
            and (always or c.careful or t.event = 'reconcile');
end;
$$;
revoke all on function gc.careful(text, bigint[], boolean) from public;

comment on function gc.careful(text, bigint[], boolean) is
    'Which of the tombstones a worker has claimed it must delete with care (always: all of them): '
    'look at the object; if it was written less than so many seconds before this call, by the '
    'store''s clock, gc.spare; else delete it only if it is still what was seen.';


create function gc._note_spared(spared gc.tombstones[])
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    insert into gc.kept_rows (collection, key, url, causes, why)
    select t.collection, t.key, t.url, t.causes, 'its object was written after the row went'
    from unnest(spared) as t
    where t.causes is not null;
    select gc._note_operation('spare', t.collection, null, null, format(
        '%s objects were written after their rows went, such as %s', count(*), min(t.url)))
    from unnest(spared) as t
    group by t.collection
$$;

comment on function gc._note_spared(gc.tombstones[]) is
    'Writes down that objects stay because they were written after their rows went.';


-- One that was written after its row went is left to whoever wrote it; if that leaves no row, it is
-- found by a listing. Another is only too young.
create function gc.spare(worker text, ids bigint[], ages double precision[])
    returns integer
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    spared gc.tombstones[];
    put_off integer;
begin
    perform gc._require_worker(worker);
    with gone as (
        delete from gc.tombstones as t
        using unnest(ids, ages) as o(id, age)
        where t.id = o.id and t.worker = spare.worker and t.due_at > clock_timestamp()
            and o.age < extract(epoch from gc._row_gone_for(t))
        returning t
    )
    select coalesce(array_agg(g.t), '{}') into spared from gone as g;
    perform gc._note_spared(spared);
    update gc.tombstones as t
    set worker = null, due_at = clock_timestamp() + greatest(
        gc._untouched_for(t) - make_interval(secs => greatest(o.age, 0)), interval '1 second')
    from unnest(ids, ages) as o(id, age)
    where t.id = o.id and t.worker = spare.worker and t.due_at > clock_timestamp();
    get diagnostics put_off = row_count;
    return gc._warn_unleased(worker, (select count(distinct i) from unnest(ids) as i)::integer,
        put_off + cardinality(spared));
end;
$$;
revoke all on function gc.spare(text, bigint[], double precision[]) from public;

comment on function gc.spare(text, bigint[], double precision[]) is
    'Says that objects were written too short a time ago to be deleted with care: so many seconds. '
    'One that was written after its row went stays for good; any other is due again when nobody '
    'has written it for long enough.';
