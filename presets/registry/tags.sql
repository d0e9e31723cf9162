-- Tags.

create function _require_tag(name text)
    returns void
    language plpgsql
    immutable
as $$
begin
    if (name ~ '^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$') is not true then
        perform registry._refuse('ZR020', 'a tag cannot be called so',
            coalesce(left(name, 200), 'null'),
            'Use at most 128 letters, digits, and _ . - after the first.');
    end if;
end;
$$;

comment on function _require_tag(text) is 'Raises ZR020 for what is not a tag.';


create function _set_tag(r repositories, name text, manifest_id bigint)
    returns void
    language plpgsql
    volatile
as $$
begin
    insert into registry.tags as t (namespace_id, repository_id, name, manifest_id)
    values (r.namespace_id, r.id, name, manifest_id)
    on conflict on constraint tags_pkey do update
    set manifest_id = excluded.manifest_id, updated_at = now(), expired_by = null
    where t.manifest_id <> excluded.manifest_id
        and not registry._is_immutable(r.path, excluded.name);
    -- One that was not written is locked all the same.
    if not found and not exists (
        select from registry.tags as t
        where (t.namespace_id, t.repository_id, t.name, t.manifest_id)
            = (r.namespace_id, r.id, _set_tag.name, _set_tag.manifest_id)
    ) then
        perform registry._refuse_immutable(r, name);
    end if;
end;
$$;

comment on function _set_tag(repositories, text, bigint) is
    'Creates a tag or sets it to another manifest, which must be locked. Raises ZR022 if a rule '
    'forbids that.';


create function tag(repository text, name text, digest text)
    returns void
    language plpgsql
    volatile
as $$
declare
    r registry.repositories := registry._enter(repository);
    manifest_id bigint := registry._lock_manifest(r, registry.digest_bytes(digest));
begin
    perform registry._require_tag(name);
    if manifest_id is null then
        perform registry._refuse_unknown_manifest(r, digest);
    end if;
    perform registry._set_tag(r, name, manifest_id);
end;
$$;

comment on function tag(text, text, text) is
    'Gives a manifest a tag, or switches the tag to it.';


create function untag(repository text, name text)
    returns void
    language plpgsql
    volatile
as $$
declare
    r registry.repositories := registry._enter(repository);
begin
    perform registry._require_tag(name);
    if registry._is_immutable(r.path, name) then
        perform registry._refuse_immutable(r, name);
    end if;
    delete from registry.tags as t
    where (t.namespace_id, t.repository_id, t.name) = (r.namespace_id, r.id, untag.name);
    if not found then
        perform registry._refuse_unknown_manifest(r, name);
    end if;
end;
$$;

comment on function untag(text, text) is
    'Removes a tag. Its manifest is collected unless something else keeps it.';


-- Of a repository that is not there any more, its id.
create function _tag_label(namespace_id bigint, repository_id bigint, name text, rule bigint)
    returns text
    language sql
    stable
as $$
    select concat(coalesce((
            select r.path from registry.repositories as r
            where (r.namespace_id, r.id) = (_tag_label.namespace_id, _tag_label.repository_id)
        ), format('%s', repository_id)), ':', name, ' (rule ' || rule || ')')
$$;

comment on function _tag_label(bigint, bigint, text, bigint) is
    'A tag as people write it: acme/app:v1, and the rule by which it goes.';


create function list_tags(repository text, n integer default null, last text default null)
    returns setof text
    language plpgsql
    stable
as $$
declare
    r registry.repositories := registry.find_repository(repository);
begin
    return query
        select t.name from registry.tags as t
        where (t.namespace_id, t.repository_id) = (r.namespace_id, r.id)
            and (last is null or t.name > last)
        order by t.name
        limit case when n < 0 then 0 else n end;
end;
$$;

comment on function list_tags(text, integer, text) is
    'The tags of a repository in order: the first n that come after the last one seen.';
