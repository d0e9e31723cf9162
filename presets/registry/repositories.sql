-- Repositories: their names, their states, and how an operation enters one.

create function is_abandoned(state text, created_at timestamptz, at timestamptz default now())
    returns boolean
    language sql
    stable
    parallel safe
    return state = 'deleting' or state = 'initial' and created_at <= at - interval '2 minutes';

comment on function is_abandoned(text, timestamptz, timestamptz) is
    'Whether a repository is to be emptied: it is deleted, or was not filled within 2 minutes.';


create function _require_name(name text)
    returns void
    language plpgsql
    immutable
as $$
begin
    if (case when octet_length(name) <= 255 then
        name ~ '^[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*)*$' end)
        is not true
    then
        perform registry._refuse('ZR008', 'a repository cannot be called so',
            coalesce(left(name, 300), 'null'),
            'Use parts like acme/app, of lowercase letters, digits, and . _ - between them.');
    end if;
end;
$$;

comment on function _require_name(text) is 'Raises ZR008 for what is not a repository''s name.';


create function _refuse_unknown_repository(repository text)
    returns void
    language sql
    stable
    return _refuse('ZR009', format('there is no repository "%s"', left(repository, 300)),
        'It was never created, or is not filled yet, or has been deleted.',
        format('select create_repository(%L);', split_part(left(repository, 300), '@', 1)));

comment on function _refuse_unknown_repository(text) is 'Raises ZR009.';


-- acme/app is the active repository of that name. acme/app@17 is the one with that id, also while
-- it is being filled: only whoever created it knows its id.
create function find_repository(repository text)
    returns repositories
    language plpgsql
    stable
as $$
declare
    parts text[] := regexp_match(left(repository, 300), '^([^@]*)(?:@([1-9][0-9]{0,17}))?$');
    r registry.repositories;
begin
    perform registry._require_name(coalesce(parts[1], repository));
    select o.* into r
    from registry.repositories as o
    where o.path = parts[1] and o.state <> 'deleting'
        and case
            when parts[2] is null then o.state = 'active'
            else o.id = parts[2]::bigint
                and not registry.is_abandoned(o.state, o.created_at, clock_timestamp())
        end;
    if not found then
        perform registry._refuse_unknown_repository(repository);
    end if;
    return r;
end;
$$;

comment on function find_repository(text) is
    'The active repository of this name; raises ZR009 if there is none. name@id: exactly that one.';


-- With an older snapshot, what was locked a moment ago would not be seen.
create function _require_read_committed()
    returns void
    language plpgsql
    stable
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform registry._refuse('ZR013', 'a registry works in READ COMMITTED only',
            format('The transaction is %s.', current_setting('transaction_isolation')),
            'set transaction isolation level read committed;');
    end if;
end;
$$;

comment on function _require_read_committed() is
    'Raises ZR013 in a transaction of another isolation level.';


create function _enter(repository text)
    returns repositories
    language plpgsql
    volatile
as $$
declare
    r registry.repositories;
begin
    perform registry._require_read_committed();
    loop
        r := registry.find_repository(repository);
        -- Against the collector, which locks it to empty it: that may have begun meanwhile, so the
        -- time is told by the clock and not by when the transaction began.
        perform from registry.repositories as o
        where (o.namespace_id, o.id) = (r.namespace_id, r.id)
            and not registry.is_abandoned(o.state, o.created_at, clock_timestamp())
        for key share;
        exit when found;
    end loop;
    return r;
end;
$$;

comment on function _enter(text) is
    'The repository, as find_repository finds it, locked so that it stays until the commit.';


create function _lock_namespace(name text)
    returns bigint
    language plpgsql
    volatile
as $$
declare
    namespace_id bigint;
begin
    loop
        select n.id into namespace_id from registry.namespaces as n
        where n.name = _lock_namespace.name
        for key share;
        exit when found;
        insert into registry.namespaces (name) values (name) on conflict do nothing;
    end loop;
    return namespace_id;
end;
$$;

comment on function _lock_namespace(text) is
    'The id of a namespace, which is created if it is not there, locked so that it stays.';


create function _give_up(name text)
    returns void
    language sql
    volatile
as $$
    update registry.repositories as r
    set state = 'deleting', unfinished = true
    where r.path = name and r.state = 'initial'
        and registry.is_abandoned(r.state, r.created_at, clock_timestamp())
$$;

comment on function _give_up(text) is
    'Frees a name that one has which was not filled in time.';


create function create_repository(repository text, state text default 'active')
    returns text
    language plpgsql
    volatile
as $$
declare
    created bigint;
begin
    perform registry._require_name(repository);
    perform registry._require_read_committed();
    perform registry._give_up(repository);
    insert into registry.repositories (namespace_id, path, state)
    values (registry._lock_namespace(split_part(repository, '/', 1)), repository, state)
    on conflict do nothing
    returning id into created;
    if not found then
        perform registry._refuse('ZR021', format('there is a repository "%s" already', repository),
            'Or one is being filled at this moment.', 'Use it, or delete it first.');
    end if;
    return format('%s@%s', repository, created);
end;
$$;

comment on function create_repository(text, text) is
    'Creates a repository and returns name@id. With state initial it is seen only under that name, '
    'until activate_repository; it has 2 minutes for that.';


-- Another may have found that it was not filled in time, and deleted it.
create function activate_repository(repository text)
    returns void
    language plpgsql
    volatile
as $$
declare
    r registry.repositories := registry._enter(repository);
begin
    perform from registry.repositories as o
    where (o.namespace_id, o.id) = (r.namespace_id, r.id) and o.state <> 'deleting'
    for no key update;
    if not found then
        perform registry._refuse_unknown_repository(repository);
    end if;
    update registry.repositories as o
    set state = 'active'
    where (o.namespace_id, o.id) = (r.namespace_id, r.id) and o.state = 'initial';
end;
$$;

comment on function activate_repository(text) is
    'Says that a repository that was created with state initial has all its contents.';


create function delete_repository(repository text)
    returns void
    language plpgsql
    volatile
as $$
declare
    r registry.repositories := registry._enter(repository);
begin
    update registry.repositories as o
    set state = 'deleting'
    where (o.namespace_id, o.id) = (r.namespace_id, r.id) and o.state <> 'deleting';
    if not found then
        perform registry._refuse_unknown_repository(repository);
    end if;
end;
$$;

comment on function delete_repository(text) is
    'Deletes a repository. Its name is free at once; the collector takes its contents away.';


-- Of several with that name, the last that was created is the last that was deleted, but for
-- imports that were never in use: in the trash, these are unfinished, or initial still.
create function _deleted_repository(name text, wanted bigint)
    returns text
    language plpgsql
    stable
as $$
begin
    return (
        select d.key
        from (
            select format('(%s,%s)', r.namespace_id, r.id), r.id, r.unfinished
            from registry.repositories as r
            where r.path = name
            union
            select t.key, case
                    -- Only these have such a key, and PostgreSQL may look at it first.
                    when t.collection = 'repository' then (t.key::gc.repository_key).id
                end, exists (
                    select from gc.trash_rows as c
                    where c.relation = 'registry.repositories'::regclass and c.key = t.key and (
                        c.content ->> 'state' = 'initial' or c.content ->> 'unfinished' = 'true')
                )
            from gc.trash as t
            where t.collection = 'repository' and t.label = name
        ) as d(key, id, unfinished)
        where wanted is null or d.id = wanted
        order by d.unfinished, d.id desc
        limit 1
    );
end;
$$;

comment on function _deleted_repository(text, bigint) is
    'The key of the repository of this name that was deleted last, or of the one with this id.';


create function restore_repository(repository text)
    returns bigint
    language plpgsql
    volatile
as $$
declare
    parts text[] := regexp_match(left(repository, 300), '^([^@]*)(?:@([1-9][0-9]{0,17}))?$');
    key text;
begin
    perform registry._require_name(coalesce(parts[1], repository));
    perform registry._require_read_committed();
    perform registry._give_up(parts[1]);
    perform from registry.repositories as r where r.path = parts[1] and r.state <> 'deleting';
    if found then
        perform registry._refuse('ZR021', format('there is a repository "%s" already', parts[1]),
            'It was created after the other was deleted, or nothing was deleted.',
            'Delete it first, or call that one otherwise.');
    end if;
    key := registry._deleted_repository(parts[1], parts[2]::bigint);
    if key is null then
        perform registry._refuse_unknown_repository(repository);
    end if;
    return (select gc.restore('repository', key));
end;
$$;

comment on function restore_repository(text) is
    'Brings a deleted repository back, with all that was in it, as long as gc.settings.undo says; '
    'returns how many rows. name@id: exactly that one. Only the owner of blobgc can do that.';


create function list_repositories(n integer default null, last text default null)
    returns setof text
    language sql
    stable
as $$
    select r.path from registry.repositories as r
    where r.state = 'active' and (last is null or r.path > last)
    order by r.path
    limit case when n < 0 then 0 else n end
$$;

comment on function list_repositories(integer, text) is
    'The names of active repositories in order: the first n that come after the last one seen.';
