-- Finalizers: what has to be done about an object before it is deleted, such as purging it from a
-- CDN. A tombstone carries the names of those that are not finished yet, in order. Each is handed
-- out by gc.claim(…, finalizer => 'name') and finished by gc.confirm; "storage", the deletion of
-- the object itself, is the last. The name of the next one is part of where a tombstone is claimed,
-- so a claim of one step never sees the others, and costs what it costs without any.
--
-- A lease is for one step. Whoever ends a step ends the lease in the same statement, so a worker
-- can never confirm a step that it was not handed.

create table gc.struck_finalizers (
    id bigint generated always as identity
        constraint struck_finalizers_pkey primary key,
    collection text not null,
    key text not null,
    url text not null,
    finalizer text not null,
    reason text not null,
    struck_at timestamptz not null default clock_timestamp(),
    struck_by name not null default session_user
);
create index struck_finalizers_struck_at_idx on gc.struck_finalizers (struck_at);

comment on table gc.struck_finalizers is
    'Finalizers that gc.strike_finalizer has taken off a tombstone: nobody has finished them.';
comment on column gc.struck_finalizers.id is 'The order in which they were struck off.';
comment on column gc.struck_finalizers.collection is 'The collection of the row that went.';
comment on column gc.struck_finalizers.key is 'The row''s primary key, as text.';
comment on column gc.struck_finalizers.url is 'The object''s address.';
comment on column gc.struck_finalizers.finalizer is 'The finalizer.';
comment on column gc.struck_finalizers.reason is 'Why it was struck off.';
comment on column gc.struck_finalizers.struck_at is 'When.';
comment on column gc.struck_finalizers.struck_by is 'By whom.';


create function gc._require_finalizers(finalizers text[])
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    flaw text := (
        select case
            when u.name is null then 'One of them is null.'
            when u.name = 'storage'
                then '"storage" is the deletion of the object itself, and always the last.'
            when u.name !~ '^[a-z0-9][a-z0-9._-]{0,62}$'
                then format('"%s" is no name of a finalizer.', u.name)
            when count(*) > 1 then format('"%s" is there twice.', u.name)
        end as flaw
        from unnest(finalizers) as u(name)
        group by u.name
        order by 1
        limit 1
    );
begin
    if flaw is not null or cardinality(finalizers) > 20 then
        raise 'these cannot be the finalizers of a collection'
            using errcode = 'invalid_parameter_value',
                detail = coalesce(flaw, 'There can be 20 at most.'),
                hint = 'Lowercase letters, digits, and between them . _ - make a name: '
                    'finalizers => ''{cdn-purge, audit}''.';
    end if;
end;
$$;

comment on function gc._require_finalizers(text[]) is
    'Raises for names that cannot be those of finalizers.';


create function gc._finalizer_words(c gc.collections)
    returns jsonb
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object('finalizers', case
        when c.finalizers = '{}' then 'null::text[]'
        else quote_literal(c.finalizers) || '::text[]'
    end)
$$;

comment on function gc._finalizer_words(gc.collections) is
    'What stands in templates for the finalizers of a tombstone.';


-- No finalizer has a slash in its name, and a store that begins with one begins with two.
create function gc._counter(finalizer text, store text)
    returns text
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $$ select case when finalizer = 'storage' then '' else '/' || finalizer || '/' end || store $$;

comment on function gc._counter(text, text) is
    'Where tombstones of a store are claimed for a finalizer.';


create function gc._is_of(counter text, finalizer text)
    returns boolean
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when finalizer = 'storage' then counter !~ '^/[^/]'
        else starts_with(counter, '/' || finalizer || '/')
    end
$$;

comment on function gc._is_of(text, text) is
    'Whether tombstones that are claimed there are claimed for this finalizer.';


create function gc._says_all(o gc.tombstones, t gc.tombstones)
    returns boolean
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(o.finalizers, '{}') @> coalesce(t.finalizers, '{}')
        and coalesce(o.causes, '{}') @> coalesce(t.causes, '{}')
$$;

comment on function gc._says_all(gc.tombstones, gc.tombstones) is
    'Whether the first tombstone has every finalizer and every cause that the second has.';


create function gc._require_finalizer(finalizer text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    known text[];
begin
    if finalizer in ('storage', 'blobgc.quarantine')
        or exists (select from gc.collections as c where finalizer = any (c.finalizers))
        or exists (select from gc.tombstones as t where finalizer = any (t.finalizers))
    then
        return;
    end if;
    known := array(
        select distinct u from gc.collections as c cross join lateral unnest(c.finalizers) as u
        order by 1
    );
    raise 'no collection has a finalizer "%"', coalesce(finalizer, 'null')
        using errcode = 'undefined_object',
            detail = format('Finalizers: %s.', array_to_string(known || 'storage'::text, ', ')),
            hint = 'select * from gc.track(…, finalizers => ''{…}''); names the finalizers.';
end;
$$;

comment on function gc._require_finalizer(text) is 'Raises for a finalizer that nothing has.';


-- What gc.confirm does with tombstones for which more is left to do. It is due at once, for whoever
-- comes next; what went wrong in a step is forgotten with it.
create function gc._pass_on(worker text, ids bigint[])
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    changed integer;
begin
    update gc.tombstones as t
    set finalizers = nullif(t.finalizers[2:], '{}'), worker = null, due_at = clock_timestamp(),
        failures = 0, last_error = null
    where t.id = any (ids) and t.finalizers is not null
        and t.worker = _pass_on.worker and t.due_at > clock_timestamp();
    get diagnostics changed = row_count;
    return changed;
end;
$$;

comment on function gc._pass_on(text, bigint[]) is
    'Takes the step that a worker has finished off its tombstones; returns how many were its own.';


create function gc.next_due(prefixes text[], finalizer text)
    returns timestamptz
    language plpgsql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._require_finalizer(finalizer);
    if finalizer = 'storage' then
        return gc.next_due(prefixes);
    end if;
    return (
        select least(now() + s.max_sleep, gc._next_claim(prefixes, finalizer))
        from gc.settings as s
    );
end;
$$;
revoke all on function gc.next_due(text[], text) from public;

comment on function gc.next_due(text[], text) is
    'When there will be work for a finalizer: what its worker sleeps until.';


-- A worker that has the very step loses its lease with it: what it confirms then is nothing. One
-- that has an earlier step goes on. In the order of ids, as gc.confirm.
create function gc.strike_finalizer(
    collection text, finalizer text, reason text, keys text[] default null
)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    struck bigint[];
begin
    perform gc._require_owner();
    perform gc._collection(collection);
    perform gc._require_finalizer(finalizer);
    perform gc._require_reason(reason);
    struck := array(
        select t.id from gc.tombstones as t
        where t.collection = strike_finalizer.collection
            and strike_finalizer.finalizer = any (t.finalizers)
            and (keys is null or t.key = any (keys))
        order by t.id
        for update
    );
    insert into gc.struck_finalizers (collection, key, url, finalizer, reason)
    select t.collection, t.key, t.url, strike_finalizer.finalizer, strike_finalizer.reason
    from gc.tombstones as t
    where t.id = any (struck);
    update gc.tombstones as t
    set finalizers = nullif(array_remove(t.finalizers, finalizer), '{}'),
        worker = case when n.is_next then null else t.worker end,
        due_at = case when n.is_next and t.worker is not null then now() else t.due_at end,
        failures = case when n.is_next then 0 else t.failures end,
        last_error = case when n.is_next then null else t.last_error end
    from (
        select o.id, o.finalizers[1] = finalizer from gc.tombstones as o where o.id = any (struck)
    ) as n(id, is_next)
    where t.id = n.id;
    perform pg_notify('blobgc', '');
    return cardinality(struck);
end;
$$;
revoke all on function gc.strike_finalizer(text, text, text, text[]) from public;

comment on function gc.strike_finalizer(text, text, text, text[]) is
    'Takes a finalizer off the tombstones of a collection, or off those of these keys, as if it '
    'had been finished; returns how many there were. gc.struck_finalizers keeps the reason. Rows '
    'that go later have it again, until gc.track is called without it.';


create function gc._require_reason(reason text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(btrim(reason), '') = '' or length(reason) > 1000 then
        raise 'a finalizer is struck off for a reason'
            using errcode = 'invalid_parameter_value',
                detail = 'gc.struck_finalizers keeps it: 1 to 1000 characters.',
                hint = 'select gc.strike_finalizer(…, reason => ''the CDN is no longer used'');';
    end if;
end;
$$;

comment on function gc._require_reason(text) is 'Raises for a reason that says nothing.';


create view gc.finalizers as
select t.collection, t.finalizers[1] as finalizer,
    count(*) filter (where not l.is_leased) as waiting,
    count(*) filter (where l.is_leased) as claimed,
    count(*) filter (where t.failures > 0) as failing,
    min(t.due_at) filter (where not l.is_leased and t.due_at <= now()) as overdue_since,
    max(t.last_error) as last_error
from gc.tombstones as t
cross join lateral (
    select t.worker is not null and t.due_at > now()
) as l(is_leased)
where t.finalizers is not null
group by t.collection, t.finalizers[1];

comment on view gc.finalizers is 'Which finalizers objects wait for at this moment.';
comment on column gc.finalizers.collection is 'The collection.';
comment on column gc.finalizers.finalizer is 'The finalizer that is next.';
comment on column gc.finalizers.waiting is 'Objects that wait for it.';
comment on column gc.finalizers.claimed is 'Objects that a worker has under a lease for it.';
comment on column gc.finalizers.failing is 'Objects for which it failed.';
comment on column gc.finalizers.overdue_since is 'When the first of those that wait was due.';
comment on column gc.finalizers.last_error is 'What one of the failures said.';
