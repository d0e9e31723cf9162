-- Manifests: pushing one with all that it refers to, pulling, deleting.

create function _is_foreign(media_type text)
    returns boolean
    language sql
    immutable
    parallel safe
    return media_type like 'application/vnd.oci.image.layer.nondistributable.%'
        or media_type like 'application/vnd.docker.image.rootfs.foreign.%';

comment on function _is_foreign(text) is
    'Whether layers of this media type are pulled from elsewhere, and need not be pushed.';


-- Locks their links, so that a review leaves the blobs alone until references are committed, and so
-- that nobody unlinks them.
create function _lock_blobs(r repositories, wanted _descriptor[])
    returns _descriptor[]
    language plpgsql
    volatile
as $$
declare
    d record;
    present registry._descriptor[] := array[]::registry._descriptor[];
begin
    for d in
        select w as descriptor, w.digest, w.media_type, w.size, b.size as known
        from unnest(wanted) as w
        left join lateral (
            select o.size
            from registry.repository_blobs as l
            join registry.blobs as o on o.digest = l.digest
            where (l.namespace_id, l.repository_id, l.digest) = (r.namespace_id, r.id, w.digest)
            for key share of l
        ) as b on true
    loop
        if d.known is not null and d.known <> d.size then
            perform registry._refuse('ZR010', 'a blob has one size',
                format('%s has %s bytes, not %s.', registry.digest_text(d.digest), d.known, d.size),
                'Write its true size in the manifest.');
        elsif d.known is not null then
            present := present || d.descriptor;
        elsif not registry._is_foreign(d.media_type) then
            perform registry._refuse('ZR005',
                format('"%s" has no blob %s', r.path, registry.digest_text(d.digest)),
                'The manifest refers to it.', 'Upload or mount it, and push the manifest again.');
        end if;
    end loop;
    return present;
end;
$$;

comment on function _lock_blobs(repositories, _descriptor[]) is
    'Those of the blobs that are in the repository, with their links locked. Raises ZR005 if one '
    'is missing that has to be there, and ZR010 if one has another size.';


create function _lock_children(r repositories, wanted _descriptor[])
    returns bigint[]
    language plpgsql
    volatile
as $$
declare
    d record;
    present bigint[] := array[]::bigint[];
begin
    for d in
        select w.digest, registry._lock_manifest(r, w.digest) as id from unnest(wanted) as w
    loop
        if d.id is null then
            perform registry._refuse('ZR005',
                format('"%s" has no manifest %s', r.path, registry.digest_text(d.digest)),
                'The list refers to it.', 'Push it, and push the list again.');
        end if;
        present := present || d.id;
    end loop;
    return present;
end;
$$;

comment on function _lock_children(repositories, _descriptor[]) is
    'The manifests of a list, locked; raises ZR005 if one is missing.';


create function _lock_manifest(r repositories, wanted bytea)
    returns bigint
    language plpgsql
    volatile
as $$
begin
    return (
        select m.id from registry.manifests as m
        where (m.namespace_id, m.repository_id, m.digest) = (r.namespace_id, r.id, wanted)
        for key share
    );
end;
$$;

comment on function _lock_manifest(repositories, bytea) is
    'The id of a manifest, locked so that a reference to it can be made; null: it is not there.';


create function _refuse_unknown_manifest(r repositories, reference text)
    returns void
    language sql
    stable
    return _refuse('ZR007',
        format('"%s" has no manifest %s', r.path, left(reference, 200)),
        'It was never pushed there, or has been deleted or collected.', 'Push it.');

comment on function _refuse_unknown_manifest(repositories, text) is 'Raises ZR007.';


create function _add_references(
    r repositories, manifest_id bigint, document json, digest bytea, subject bytea
)
    returns void
    language plpgsql
    volatile
as $$
declare
    children bigint[];
    about bigint;
    waiting bigint[];
begin
    insert into registry.layers (
        namespace_id, repository_id, manifest_id, position, digest, size, media_type
    )
    select r.namespace_id, r.id, manifest_id, d.position, d.digest, d.size, d.media_type
    from unnest(registry._lock_blobs(r, registry._descriptors(document, 'layers'))) as d;

    children := registry._lock_children(r, registry._descriptors(document, 'manifests'));
    about := registry._lock_manifest(r, subject);
    waiting := array(
        select m.id from registry.manifests as m
        where (m.namespace_id, m.repository_id, m.subject_digest)
            = (r.namespace_id, r.id, _add_references.digest)
        for key share
    );
    if about is not null and cardinality(children || waiting) > 0 then
        perform registry._refuse_circle(r, about, children || waiting);
    end if;

    insert into registry.manifest_references (namespace_id, repository_id, parent_id, child_id)
    select distinct r.namespace_id, r.id, manifest_id, c
    from unnest(children) as c;

    insert into registry.referrers (namespace_id, repository_id, subject_id, manifest_id)
    select r.namespace_id, r.id, about, manifest_id where about is not null
    union all
    select r.namespace_id, r.id, manifest_id, w from unnest(waiting) as w;
end;
$$;

comment on function _add_references(repositories, bigint, json, bytea, bytea) is
    'Writes down what a manifest refers to, and which manifests were waiting for it.';


-- Null if it is there already.
create function _add_manifest(
    r repositories, digest bytea, media_type text, payload bytea, document json
)
    returns bigint
    language plpgsql
    volatile
as $$
declare
    subject bytea := ((registry._descriptors(document, 'subject'))[1]).digest;
    config registry._descriptor;
    total numeric;
    added bigint;
begin
    perform registry._await_relatives(r, document, digest, subject);
    config := (registry._lock_blobs(r, registry._descriptors(document, 'config')))[1];
    total := coalesce(config.size, 0) + coalesce(
        (select sum(d.size) from unnest(registry._descriptors(document, 'layers')) as d), 0);
    if total > 1125899906842624 then
        perform registry._refuse_manifest('it is bigger than a pebibyte');
    end if;
    insert into registry.manifests (
        namespace_id, repository_id, digest, media_type, artifact_type, payload,
        configuration_blob_digest, subject_digest, total_size
    )
    values (
        r.namespace_id, r.id, digest, media_type,
        coalesce(document ->> 'artifactType', config.media_type), payload,
        config.digest, subject, total
    )
    on conflict do nothing
    returning id into added;
    if found then
        perform registry._add_references(r, added, document, digest, subject);
    end if;
    return added;
end;
$$;

comment on function _add_manifest(repositories, bytea, text, bytea, json) is
    'Inserts a manifest with all it refers to; returns its id, or null if it is there already.';


create function put_manifest(
    repository text, payload bytea, reference text default null, media_type text default null
)
    returns text
    language plpgsql
    volatile
as $$
declare
    r registry.repositories := registry._enter(repository);
    document json := registry._read_manifest(payload);
    kind text := registry._media_type(document, media_type);
    digest bytea := registry._payload_digest(payload, reference);
    is_tag boolean := coalesce(reference not like '%:%', false);
    manifest_id bigint;
begin
    if is_tag then
        perform registry._require_tag(reference);
    end if;
    -- One that is there may be gone a moment later, and then there is room for it. Without a tag,
    -- a list or a tag will follow: like a blob, it is kept alive until then.
    loop
        manifest_id := coalesce(registry._add_manifest(r, digest, kind, payload, document),
            registry._lock_manifest(r, digest));
        exit when manifest_id is not null and (is_tag
            or gc.keep_alive('manifest', row(r.namespace_id, r.id, manifest_id)::text));
    end loop;
    if is_tag then
        perform registry._set_tag(r, reference, manifest_id);
    end if;
    return registry.digest_text(digest);
end;
$$;

comment on function put_manifest(text, bytea, text, text) is
    'Pushes an image manifest or a list, by tag or by digest, and returns its digest. All that it '
    'refers to must be in the repository, but its subject may come later.';


create function get_manifest(
    repository text, reference text, out digest text, out media_type text, out payload bytea
)
    language plpgsql
    stable
as $$
declare
    r registry.repositories := registry.find_repository(repository);
    manifest_id bigint;
begin
    if reference like '%:%' then
        select m.id into manifest_id from registry.manifests as m
        where (m.namespace_id, m.repository_id, m.digest)
            = (r.namespace_id, r.id, registry.digest_bytes(reference));
    else
        select t.manifest_id into manifest_id from registry.tags as t
        where (t.namespace_id, t.repository_id, t.name) = (r.namespace_id, r.id, reference);
    end if;
    select registry.digest_text(m.digest), m.media_type, m.payload into digest, media_type, payload
    from registry.manifests as m
    where (m.namespace_id, m.repository_id, m.id) = (r.namespace_id, r.id, manifest_id);
    if not found then
        perform registry._refuse_unknown_manifest(r, reference);
    end if;
end;
$$;

comment on function get_manifest(text, text) is
    'A manifest by its tag or digest, byte for byte; raises ZR007 if there is none.';


create function delete_manifest(repository text, digest text)
    returns void
    language plpgsql
    volatile
as $$
declare
    r registry.repositories := registry._enter(repository);
    key bytea := registry.digest_bytes(digest);
    doomed bigint;
begin
    select m.id into doomed from registry.manifests as m
    where (m.namespace_id, m.repository_id, m.digest) = (r.namespace_id, r.id, key)
    for update;
    if not found then
        perform registry._refuse_unknown_manifest(r, digest);
    end if;
    if exists (
        select from registry.manifest_references as l
        where (l.namespace_id, l.repository_id, l.child_id) = (r.namespace_id, r.id, doomed)
    ) then
        perform registry._refuse('ZR012', format('a list of "%s" has %s', r.path, digest),
            'A list keeps its children.', 'Delete the list first.');
    end if;
    -- In one order, whoever deletes: a cascade has none.
    perform from registry.tags as t
    where (t.namespace_id, t.repository_id, t.manifest_id) = (r.namespace_id, r.id, doomed)
    order by t.name
    for update;
    perform registry._refuse_immutable(r, t.name)
    from registry.tags as t
    where (t.namespace_id, t.repository_id, t.manifest_id) = (r.namespace_id, r.id, doomed)
        and registry._is_immutable(r.path, t.name);
    delete from registry.manifests as m
    where (m.namespace_id, m.repository_id, m.id) = (r.namespace_id, r.id, doomed);
end;
$$;

comment on function delete_manifest(text, text) is
    'Deletes a manifest that no list has, with its tags. What refers to it is collected later.';
