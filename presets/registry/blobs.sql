-- Blobs in repositories: links, which let a repository use a blob.

create function _blob_key(digest bytea)
    returns text
    language sql
    immutable
    parallel safe
    return E'\\x' || encode(digest, 'hex');

comment on function _blob_key(bytea) is
    'A blob''s key as blobgc has it, whatever a session''s bytea_output is.';


create function _refuse_unknown_blob(r repositories, digest bytea)
    returns void
    language sql
    stable
    return _refuse('ZR001',
        format('"%s" has no blob %s', r.path, digest_text(digest)),
        'It never had it, or the blob has been collected.', 'Upload or mount it.');

comment on function _refuse_unknown_blob(repositories, bytea) is 'Raises ZR001.';


-- Waits for whoever unlinks it.
create function _have_link(r repositories, key bytea)
    returns void
    language plpgsql
    volatile
as $$
begin
    loop
        insert into registry.repository_blobs (namespace_id, repository_id, digest)
        values (r.namespace_id, r.id, key)
        on conflict do nothing;
        exit when found;
        perform from registry.repository_blobs as l
        where (l.namespace_id, l.repository_id, l.digest) = (r.namespace_id, r.id, key)
        for key share;
        exit when found;
    end loop;
end;
$$;

comment on function _have_link(repositories, bytea) is
    'Links a blob to a repository, unless it is, and locks the link.';


-- A link keeps nothing, but a manifest will follow: until then the blob is kept alive. Waits for a
-- review that has the blob, and may find it gone.
create function _link(r repositories, key bytea)
    returns void
    language plpgsql
    volatile
as $$
begin
    if not gc.keep_alive('blob', registry._blob_key(key)) then
        perform registry._refuse('ZR001',
            format('there is no blob %s', registry.digest_text(key)),
            'It was never uploaded, or has been collected.', 'Upload it.');
    end if;
    perform registry._have_link(r, key);
end;
$$;

comment on function _link(repositories, bytea) is
    'Links a blob to a repository; raises ZR001 if the blob is not there.';


create function link_blob(repository text, digest text)
    returns void
    language plpgsql
    volatile
as $$
begin
    perform registry._link(registry._enter(repository), registry.digest_bytes(digest));
end;
$$;

comment on function link_blob(text, text) is
    'Lets a repository use a blob that is in the store already.';


create function get_blob(
    repository text, digest text, out url text, out size bigint, out media_type text
)
    language plpgsql
    stable
as $$
declare
    r registry.repositories := registry.find_repository(repository);
    key bytea := registry.digest_bytes(digest);
begin
    select registry.blob_url(b.digest), b.size, b.media_type into url, size, media_type
    from registry.repository_blobs as l
    join registry.blobs as b on b.digest = l.digest
    where (l.namespace_id, l.repository_id, l.digest) = (r.namespace_id, r.id, key);
    if not found then
        perform registry._refuse_unknown_blob(r, key);
    end if;
end;
$$;

comment on function get_blob(text, text) is
    'Where a blob of the repository is to be read; raises ZR001 if it has none such.';


create function mount_blob(repository text, digest text, source text)
    returns void
    language plpgsql
    volatile
as $$
declare
    origin registry.repositories := registry.find_repository(source);
    key bytea := registry.digest_bytes(digest);
begin
    perform from registry.repository_blobs as l
    where (l.namespace_id, l.repository_id, l.digest) = (origin.namespace_id, origin.id, key);
    if not found then
        perform registry._refuse_unknown_blob(origin, key);
    end if;
    perform registry._link(registry._enter(repository), key);
end;
$$;

comment on function mount_blob(text, text, text) is
    'Lets a repository use a blob that another one uses.';


create function unlink_blob(repository text, digest text)
    returns void
    language plpgsql
    volatile
as $$
declare
    r registry.repositories := registry._enter(repository);
    key bytea := registry.digest_bytes(digest);
begin
    -- Whoever pushes a manifest locks the links that it needs: it is before this, or too late.
    perform from registry.repository_blobs as l
    where (l.namespace_id, l.repository_id, l.digest) = (r.namespace_id, r.id, key)
    for update;
    if not found then
        perform registry._refuse_unknown_blob(r, key);
    end if;
    if exists (
        select from registry.layers as l
        where (l.namespace_id, l.repository_id, l.digest) = (r.namespace_id, r.id, key)
    ) or exists (
        select from registry.manifests as m
        where (m.namespace_id, m.repository_id, m.configuration_blob_digest)
            = (r.namespace_id, r.id, key)
    ) then
        perform registry._refuse('ZR012', format('a manifest of "%s" uses %s', r.path, digest),
            'It could not be pulled any more.', 'Delete the manifest first.');
    end if;
    delete from registry.repository_blobs as l
    where (l.namespace_id, l.repository_id, l.digest) = (r.namespace_id, r.id, key);
end;
$$;

comment on function unlink_blob(text, text) is
    'Takes a blob away from a repository, none of whose manifests uses it.';


create function has_blob(repository text, digest text)
    returns boolean
    language plpgsql
    volatile
as $$
declare
    r registry.repositories := registry._enter(repository);
    key bytea := registry.digest_bytes(digest);
begin
    return exists (
        select from registry.repository_blobs as l
        where (l.namespace_id, l.repository_id, l.digest) = (r.namespace_id, r.id, key)
    ) and gc.keep_alive('blob', registry._blob_key(key));
end;
$$;

comment on function has_blob(text, text) is
    'Whether the repository has the blob. If so, it stays long enough to push a manifest.';
