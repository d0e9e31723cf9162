-- Confirming: what a worker says about the objects that it was handed: gone, failed, or not tried.
--
-- A worker that lost its lease changes nothing here. What is gone is remembered for a while, as it
-- was when it was handed out: a transaction that is older may have read its url, or have written
-- the object again without a word (see gc._require_undeleted).

create function gc._per_url(urls text[], generations text[])
    returns table (url text, generation text)
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select o.url, case when count(*) = 1 then min(o.generation) end
    from unnest(urls, generations) as o(url, generation)
    group by o.url
$$;

comment on function gc._per_url(text[], text[]) is
    'Each address with the version of its object; null: any, for there are several.';


-- One row for each url, and where it had another version before, any. In the order of the urls, so
-- that two sessions wait for each other in one direction only; the second round is for what another
-- session has put there meanwhile.
create function gc._remember(urls text[], generations text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    to_do integer := (select count(distinct u) from unnest(urls) as u);
    step integer;
begin
    insert into gc.witnesses as w values (pg_current_xact_id(), gc._running())
    on conflict (deleted_by) do update set running = w.running || excluded.running;
    for attempt in 1 .. 2 loop
        perform from gc.deleted_objects as d where d.url = any (urls) order by d.url for update;
        if found then
            update gc.deleted_objects as d
            set generation = case when d.generation = o.generation then d.generation end,
                deleted_at = clock_timestamp(), deleted_by = pg_current_xact_id()
            from gc._per_url(urls, generations) as o
            where d.url = o.url and (attempt = 1 or d.deleted_by <> pg_current_xact_id());
            get diagnostics step = row_count;
            to_do := to_do - step;
            exit when to_do = 0;
        end if;
        insert into gc.deleted_objects (url, generation)
        select o.url, o.generation from gc._per_url(urls, generations) as o order by o.url
        on conflict do nothing;
        get diagnostics step = row_count;
        to_do := to_do - step;
        exit when to_do = 0;
    end loop;
end;
$$;

comment on function gc._remember(text[], text[]) is
    'Notes that these objects are gone, or that these versions are about to go.';


-- Not an error, because the rest of the batch is good: the caller learns it from the count.
create function gc._warn_unleased(worker text, wanted integer, changed integer)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if changed < wanted then
        raise warning '% of % tombstones are not leased to "%"', wanted - changed, wanted, worker
            using errcode = 'object_not_in_prerequisite_state',
                detail = 'Their lease is over, or another worker has them, or they never were.',
                hint = 'Claim again: what is left will be handed out.';
    end if;
    return changed;
end;
$$;

comment on function gc._warn_unleased(text, integer, integer) is
    'Returns how many were changed, with a warning if that is less than was wanted.';


create function gc.confirm(worker text, ids bigint[])
    returns integer
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    changed integer;
    urls text[];
    generations text[];
    wanted integer := (select count(distinct i) from unnest(ids) as i);
begin
    perform gc._require_worker(worker);
    with gone as (
        delete from gc.tombstones as t
        where t.id = any (ids) and t.finalizers is null
            and t.worker = confirm.worker and t.due_at > clock_timestamp()
        returning t.*
    ),
    logged as (
        insert into gc.deletion_log (
            collection, key, label, url, generation, size, event, row_deleted_at, worker,
            causes
        )
        select g.collection, g.key, g.label, g.url, g.generation, g.size, g.event, g.created_at,
            g.worker, g.causes
        from gone as g
    ),
    totalled as (
        insert into gc.totals (collection, objects, bytes)
        select g.collection, count(*), coalesce(sum(g.size), 0)
        from gone as g
        group by g.collection
    )
    select count(*), array_agg(g.url), array_agg(g.generation) into changed, urls, generations
    from gone as g;
    perform gc._remember(urls, generations) where changed > 0;
    if changed < wanted then
        changed := changed + gc._pass_on(worker, ids);
    end if;
    return gc._warn_unleased(worker, wanted, changed);
end;
$$;
revoke all on function gc.confirm(text, bigint[]) from public;

comment on function gc.confirm(text, bigint[]) is
    'Says that the objects are gone, or that a finalizer is finished. Returns how many of the '
    'tombstones were the worker''s.';


create function gc.fail(worker text, ids bigint[], error text)
    returns integer
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    changed integer;
begin
    perform gc._require_worker(worker);
    update gc.tombstones as t
    set worker = null,
        due_at = clock_timestamp() + gc._backoff(t.failures),
        failures = t.failures + 1,
        last_error = coalesce(error, 'no reason was given')
    where t.id = any (ids) and t.worker = fail.worker and t.due_at > clock_timestamp();
    get diagnostics changed = row_count;
    return gc._warn_unleased(worker, (select count(distinct i) from unnest(ids) as i)::integer,
        changed);
end;
$$;
revoke all on function gc.fail(text, bigint[], text) from public;

comment on function gc.fail(text, bigint[], text) is
    'Says that the objects could not be deleted, and why: they are due again after a backoff.';


create function gc.release(worker text, ids bigint[])
    returns integer
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    changed integer;
begin
    perform gc._require_worker(worker);
    update gc.tombstones as t
    set worker = null, due_at = clock_timestamp()
    where t.id = any (ids) and t.worker = release.worker and t.due_at > clock_timestamp();
    get diagnostics changed = row_count;
    return gc._warn_unleased(worker, (select count(distinct i) from unnest(ids) as i)::integer,
        changed);
end;
$$;
revoke all on function gc.release(text, bigint[]) from public;

comment on function gc.release(text, bigint[]) is
    'Gives back what the worker has not begun to delete: it is due again at once.';
