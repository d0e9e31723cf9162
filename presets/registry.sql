-- A container registry: its tables, its operations, and what of it is collected.
--
-- gc.create_registry runs this in a schema of its own, with the search_path set to it. Functions do
-- not have it in theirs: somebody else may be allowed to create things there. They name what is the
-- registry's, as registry.blobs, which stands for the schema that was asked for. {store} and
-- {partitions} stand for what was told, and with partitions the comments "partition by" count.
-- Of garbage collection there is nothing here but three calls of gc.track, at the end.
--
-- Who keeps whom: a tag, a list and a subject keep manifests; manifests and layers keep blobs. All
-- of that is foreign keys. An operation therefore locks what it is about to refer to or to rely on
-- (for key share): a review skips what is locked, and what a review, or another operation, has
-- locked is waited for, and is then there or not. So no foreign key ever fails. Every operation
-- starts from an active repository. The order of locks: the repository, pushes (lower digests
-- first), blobs, then their links, manifests, tags.
--
-- No setting of a session changes what a function does: there is no backslash in a plain literal,
-- and no cast of bytea or of an interval to text. Times that protect are told by the clock.
--
-- Errors have the SQLSTATE class ZR, with the numbers that the OCI distribution specification has:
--   ZR001 blob unknown            ZR006 manifest invalid     ZR010 size invalid
--   ZR003 blob upload unknown     ZR007 manifest unknown     ZR012 denied: still in use
--   ZR004 digest invalid          ZR008 name invalid         ZR020 tag invalid
--   ZR005 manifest blob unknown   ZR009 name unknown         ZR021 name taken
--                                 ZR013 unsupported


-- Digests --------------------------------------------------------------------------------------

create function is_digest(digest bytea)
    returns boolean
    language sql
    immutable
    parallel safe
    return (substr(digest, 1, 1), octet_length(digest))
        in (('\x01'::bytea, 33), ('\x02'::bytea, 65));

comment on function is_digest(bytea) is
    'Whether this is a digest: 01 and the 32 bytes of a SHA-256, or 02 and the 64 of a SHA-512.';


create function digest_text(digest bytea)
    returns text
    language sql
    immutable
    parallel safe
    return case substr(digest, 1, 1) when '\x01' then 'sha256:' when '\x02' then 'sha512:' end
        || encode(substr(digest, 2), 'hex');

comment on function digest_text(bytea) is 'A digest as people write it: sha256:…';


create function blob_url(digest bytea)
    returns text
    language sql
    immutable
    parallel safe
    return '{store}/docker/registry/v2/blobs/'
        || case substr(digest, 1, 1) when '\x01' then 'sha256/' when '\x02' then 'sha512/' end
        || encode(substr(digest, 2, 1), 'hex') || '/' || encode(substr(digest, 2), 'hex')
        || '/data';

comment on function blob_url(bytea) is
    'Where a blob''s object stands: where the distribution registry puts it.';


create function blob_at(url text)
    returns bytea
    language sql
    immutable
    parallel safe
    return case split_part(substr(url, length('{store}/docker/registry/v2/blobs/') + 1), '/', 1)
            when 'sha256' then '\x01'::bytea when 'sha512' then '\x02'::bytea end
        || decode(split_part(substr(url, length('{store}/docker/registry/v2/blobs/') + 1), '/', 3),
            'hex');

comment on function blob_at(text) is 'The digest of the blob whose object stands there.';


-- Tables ---------------------------------------------------------------------------------------
-- All that is in a repository has the repository's key, so that it can be partitioned by namespace
-- and drained by repository.

create table namespaces (
    id bigint generated always as identity
        constraint namespaces_pkey primary key,
    name text collate "C" not null
        constraint namespaces_name_key unique,
    created_at timestamptz not null default now()
);

comment on table namespaces is 'The first parts of repository names: whose repositories they are.';
comment on column namespaces.id is 'By this, what is in its repositories is partitioned.';
comment on column namespaces.name is 'The first part of the names.';
comment on column namespaces.created_at is 'When its first repository was created.';


create table repositories (
    namespace_id bigint not null
        constraint repositories_namespace_fkey references namespaces,
    id bigint generated always as identity,
    path text collate "C" not null,
    state text not null default 'active'
        constraint repositories_state_known check (state in ('initial', 'active', 'deleting')),
    created_at timestamptz not null default clock_timestamp(),
    constraint repositories_pkey primary key (namespace_id, id)
);
create unique index repositories_path_key on repositories (path) where state <> 'deleting';

comment on table repositories is 'Repositories. What is being deleted has given up its name.';
comment on column repositories.namespace_id is 'Whose it is.';
comment on column repositories.id is
    'Tells it from every other, also from an earlier one of the same name.';
comment on column repositories.path is 'Its whole name: acme/app.';
comment on column repositories.state is
    'initial: being filled, and seen by nobody else; active; deleting: the collector empties it.';
comment on column repositories.created_at is 'When it was created.';


create table blobs (
    digest bytea not null
        constraint blobs_digest_valid check (is_digest(digest)),
    size bigint not null
        constraint blobs_size_not_negative check (size >= 0),
    media_type text not null,
    created_at timestamptz not null default now(),
    constraint blobs_pkey primary key (digest),
    -- No two blobs can have one object: blobgc knows by this, and need not look for another.
    constraint blobs_url_own check (digest is not distinct from blob_at(blob_url(digest)))
)
/* partition by hash (digest) */;

comment on table blobs is 'What is in the store: layers and configurations, each only once.';
comment on column blobs.digest is 'A byte for the algorithm, and the digest.';
comment on column blobs.size is 'How big the object is, in bytes.';
comment on column blobs.media_type is 'What it was said to be when it was uploaded.';
comment on column blobs.created_at is 'When it was uploaded first.';


create table repository_blobs (
    namespace_id bigint not null,
    repository_id bigint not null,
    digest bytea not null
        constraint repository_blobs_digest_fkey references blobs on delete cascade,
    created_at timestamptz not null default now(),
    constraint repository_blobs_pkey primary key (namespace_id, repository_id, digest),
    constraint repository_blobs_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index repository_blobs_digest_idx on repository_blobs (digest);

comment on table repository_blobs is
    'Links: which blobs a repository may use. A link keeps nothing; it goes with its blob.';
comment on column repository_blobs.namespace_id is 'Whose repository.';
comment on column repository_blobs.repository_id is 'The repository.';
comment on column repository_blobs.digest is 'The blob.';
comment on column repository_blobs.created_at is 'Since when it is linked.';


create table manifests (
    namespace_id bigint not null,
    repository_id bigint not null,
    id bigint generated always as identity,
    digest bytea not null
        constraint manifests_digest_valid check (is_digest(digest)),
    media_type text not null,
    artifact_type text,
    payload bytea not null,
    configuration_blob_digest bytea
        constraint manifests_configuration_fkey references blobs,
    subject_digest bytea
        constraint manifests_subject_valid check (is_digest(subject_digest)),
    total_size bigint not null,
    created_at timestamptz not null default now(),
    constraint manifests_pkey primary key (namespace_id, repository_id, id),
    constraint manifests_digest_key unique (namespace_id, repository_id, digest),
    constraint manifests_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index manifests_configuration_idx on manifests (configuration_blob_digest);
create index manifests_subject_idx on manifests (namespace_id, repository_id, subject_digest)
    where subject_digest is not null;

comment on table manifests is 'Images, lists of images, and what refers to them, by repository.';
comment on column manifests.namespace_id is 'Whose repository.';
comment on column manifests.repository_id is 'The repository.';
comment on column manifests.id is 'Tells it from every other.';
comment on column manifests.digest is 'The digest of the payload.';
comment on column manifests.media_type is 'What kind of manifest it is.';
comment on column manifests.artifact_type is 'What it is for, where it is not a plain image.';
comment on column manifests.payload is 'What was pushed, byte for byte.';
comment on column manifests.configuration_blob_digest is 'Its configuration; a list has none.';
comment on column manifests.subject_digest is
    'What it is about, as it says itself; that may come later, or never: see referrers.';
comment on column manifests.total_size is
    'The bytes of its configuration and layers. A list has none of its own.';
comment on column manifests.created_at is 'When it was pushed.';


create table layers (
    namespace_id bigint not null,
    repository_id bigint not null,
    manifest_id bigint not null,
    position integer not null,
    digest bytea not null
        constraint layers_digest_fkey references blobs,
    size bigint not null,
    media_type text not null,
    constraint layers_pkey primary key (namespace_id, repository_id, manifest_id, position),
    constraint layers_manifest_fkey foreign key (namespace_id, repository_id, manifest_id)
        references manifests on delete cascade,
    constraint layers_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index layers_digest_idx on layers (digest, namespace_id, repository_id);

comment on table layers is 'The layers of manifests. They keep their blobs.';
comment on column layers.namespace_id is 'Whose repository.';
comment on column layers.repository_id is 'The repository.';
comment on column layers.manifest_id is 'The manifest.';
comment on column layers.position is 'Its place in the manifest, from 1: a blob may occur twice.';
comment on column layers.digest is 'The blob.';
comment on column layers.size is 'How big it is, so that nobody has to look into blobs.';
comment on column layers.media_type is 'What the manifest calls it.';


create table manifest_references (
    namespace_id bigint not null,
    repository_id bigint not null,
    parent_id bigint not null,
    child_id bigint not null
        constraint manifest_references_not_itself check (child_id <> parent_id),
    constraint manifest_references_pkey
        primary key (namespace_id, repository_id, parent_id, child_id),
    constraint manifest_references_parent_fkey foreign key (namespace_id, repository_id, parent_id)
        references manifests on delete cascade,
    constraint manifest_references_child_fkey foreign key (namespace_id, repository_id, child_id)
        references manifests,
    constraint manifest_references_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index manifest_references_child_idx
    on manifest_references (namespace_id, repository_id, child_id);

comment on table manifest_references is
    'What manifest lists consist of. A list keeps its children.';
comment on column manifest_references.namespace_id is 'Whose repository.';
comment on column manifest_references.repository_id is 'The repository.';
comment on column manifest_references.parent_id is 'The list.';
comment on column manifest_references.child_id is 'A manifest in it, which may be a list itself.';


create table referrers (
    namespace_id bigint not null,
    repository_id bigint not null,
    subject_id bigint not null,
    manifest_id bigint not null
        constraint referrers_not_itself check (manifest_id <> subject_id),
    constraint referrers_pkey primary key (namespace_id, repository_id, subject_id, manifest_id),
    constraint referrers_subject_fkey foreign key (namespace_id, repository_id, subject_id)
        references manifests on delete cascade,
    constraint referrers_manifest_fkey foreign key (namespace_id, repository_id, manifest_id)
        references manifests on delete cascade,
    constraint referrers_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index referrers_manifest_idx on referrers (namespace_id, repository_id, manifest_id);

comment on table referrers is
    'Signatures, SBOMs and the like, whose subject is there. A subject keeps its referrers.';
comment on column referrers.namespace_id is 'Whose repository.';
comment on column referrers.repository_id is 'The repository.';
comment on column referrers.subject_id is 'What it is about.';
comment on column referrers.manifest_id is 'The manifest that says so.';


create table tags (
    namespace_id bigint not null,
    repository_id bigint not null,
    name text collate "C" not null,
    manifest_id bigint not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    constraint tags_pkey primary key (namespace_id, repository_id, name),
    constraint tags_manifest_fkey foreign key (namespace_id, repository_id, manifest_id)
        references manifests on delete cascade,
    constraint tags_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index tags_manifest_idx on tags (namespace_id, repository_id, manifest_id);

comment on table tags is 'Names of manifests. A tag keeps its manifest.';
comment on column tags.namespace_id is 'Whose repository.';
comment on column tags.repository_id is 'The repository.';
comment on column tags.name is 'The tag.';
comment on column tags.manifest_id is 'What it stands for now.';
comment on column tags.created_at is 'When it was first set.';
comment on column tags.updated_at is 'When it was last set to another manifest.';


-- A manifest and its subject may be pushed at once, neither seeing the other: they meet here. Each
-- inserts its digest and its subject's and deletes them at once. Who inserts the same digest waits
-- for the end of that transaction, as for any unique key, and then sees what it has done.
create unlogged table pushes (
    repository_id bigint not null,
    digest bytea not null,
    constraint pushes_pkey primary key (repository_id, digest)
);

comment on table pushes is
    'Where pushes of a manifest, its subject and its referrers wait for each other. Always empty.';
comment on column pushes.repository_id is 'The repository.';
comment on column pushes.digest is 'What is pushed, or what that is about.';


-- Partitions -----------------------------------------------------------------------------------
-- In a schema of their own, so that \dt shows tables.

do $$
declare
    home name := current_schema() || '_partitions';
    command text;
begin
    for command in
        select format('create schema %I', home) where {partitions} > 0
        union all
        select format('create table %I.%I partition of %I for values with '
            '(modulus {partitions}, remainder %s)', home, t.relname || '_' || n, t.relname, n)
        from generate_series(0, {partitions} - 1) as n
        cross join pg_class as t
        where t.relnamespace = quote_ident(current_schema())::regnamespace and t.relkind = 'p'
    loop
        execute command;
    end loop;
end;
$$;


-- Errors ---------------------------------------------------------------------------------------

create function _refuse(code text, message text, detail text, hint text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    raise '%', message using errcode = code, detail = detail, hint = hint;
end;
$$;

comment on function _refuse(text, text, text, text) is 'Raises one of the errors of a registry.';


-- The algorithm's byte and the bytes; what people write has lowercase letters only.
create function digest_bytes(digest text)
    returns bytea
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if digest ~ '^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$' then
        return decode(case left(digest, 7) when 'sha256:' then '01' else '02' end
            || substr(digest, 8), 'hex');
    end if;
    perform registry._refuse('ZR004', 'this is not a digest', coalesce(left(digest, 200), 'null'),
        'Write it as sha256: and 64 hexadecimal digits, or sha512: and 128, in lower case.');
    return null;
end;
$$;

comment on function digest_bytes(text) is 'The digest that is written so; raises ZR004 if none is.';


-- Repositories ---------------------------------------------------------------------------------

create function is_abandoned(state text, created_at timestamptz, at timestamptz default now())
    returns boolean
    language sql
    stable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select state = 'deleting' or state = 'initial' and created_at <= at - interval '2 minutes'
$$;

comment on function is_abandoned(text, timestamptz, timestamptz) is
    'Whether a repository is to be emptied: it is deleted, or was not filled within 2 minutes.';


create function _require_name(name text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if (case when octet_length(name) <= 255 then
        name ~ '^[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*)*$' end)
    then
        return;
    end if;
    perform registry._refuse('ZR008', 'a repository cannot be called so',
        coalesce(left(name, 300), 'null'),
        'Use parts like acme/app, of lowercase letters, digits, and . _ - between them.');
end;
$$;

comment on function _require_name(text) is 'Raises ZR008 for what is not a repository''s name.';


create function _refuse_unknown_repository(repository text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._refuse('ZR009', format('there is no repository "%s"', left(repository, 300)),
        'It was never created, or is not filled yet, or has been deleted.',
        format('select create_repository(%L);', split_part(left(repository, 300), '@', 1)));
end;
$$;

comment on function _refuse_unknown_repository(text) is 'Raises ZR009.';


-- acme/app is the active repository of that name. acme/app@17 is the one with that id, also while
-- it is being filled: only whoever created it knows its id.
create function find_repository(repository text)
    returns repositories
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
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
    set search_path = pg_catalog, pg_temp
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
    set search_path = pg_catalog, pg_temp
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
        where o.namespace_id = r.namespace_id and o.id = r.id
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
    set search_path = pg_catalog, pg_temp
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


create function create_repository(repository text, state text default 'active')
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    created bigint;
begin
    perform registry._require_name(repository);
    perform registry._require_read_committed();
    update registry.repositories as r
    set state = 'deleting'
    where r.path = repository and r.state = 'initial'
        and registry.is_abandoned(r.state, r.created_at, clock_timestamp());
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
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
begin
    perform from registry.repositories as o
    where o.namespace_id = r.namespace_id and o.id = r.id and o.state <> 'deleting'
    for no key update;
    if not found then
        perform registry._refuse_unknown_repository(repository);
    end if;
    update registry.repositories as o
    set state = 'active'
    where o.namespace_id = r.namespace_id and o.id = r.id and o.state = 'initial';
end;
$$;

comment on function activate_repository(text) is
    'Says that a repository that was created with state initial has all its contents.';


create function delete_repository(repository text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
begin
    update registry.repositories as o
    set state = 'deleting'
    where o.namespace_id = r.namespace_id and o.id = r.id and o.state <> 'deleting';
    if not found then
        perform registry._refuse_unknown_repository(repository);
    end if;
end;
$$;

comment on function delete_repository(text) is
    'Deletes a repository. Its name is free at once; the collector takes its contents away.';


create function list_repositories(n integer default null, last text default null)
    returns setof text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select r.path from registry.repositories as r
    where r.state = 'active' and (last is null or r.path > last)
    order by r.path
    limit case when n < 0 then 0 else n end
$$;

comment on function list_repositories(integer, text) is
    'The names of active repositories in order: the first n that come after the last one seen.';


-- Blobs ----------------------------------------------------------------------------------------

create function _blob_key(digest bytea)
    returns text
    language sql
    immutable
    parallel safe
    return E'\\x' || encode(digest, 'hex');

comment on function _blob_key(bytea) is
    'A blob''s key as blobgc has it, whatever a session''s bytea_output is.';


create function begin_blob_upload(
    repository text, digest text, wait interval default '5 seconds', upload text default null
)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    key bytea := registry.digest_bytes(digest);
    url text := registry.blob_url(key);
begin
    perform registry._enter(repository);
    perform gc.begin_upload('blob', registry._blob_key(key), url, wait, upload => upload);
    return url;
end;
$$;

comment on function begin_blob_upload(text, text, interval, text) is
    'Says that a blob is about to be written, and returns where to. Waits for one that is being '
    'deleted; raises ZG001 when that takes too long. Give each upload a name of its own.';


create function _refuse_unknown_blob(r repositories, digest bytea)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._refuse('ZR001',
        format('"%s" has no blob %s', r.path, registry.digest_text(digest)),
        'It never had it, or the blob has been collected.', 'Upload or mount it.');
end;
$$;

comment on function _refuse_unknown_blob(repositories, bytea) is 'Raises ZR001.';


create function _require_blob(r repositories, digest bytea)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform from registry.repository_blobs as l
    where l.namespace_id = r.namespace_id and l.repository_id = r.id
        and l.digest = _require_blob.digest;
    if not found then
        perform registry._refuse_unknown_blob(r, digest);
    end if;
end;
$$;

comment on function _require_blob(repositories, bytea) is
    'Raises ZR001 for a blob that is not linked to the repository.';


-- A link keeps nothing, but a manifest will follow: until then the blob is kept alive. Waits for a
-- review that has the blob, and may find it gone, and for whoever unlinks it.
create function _link(r repositories, digest bytea)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not gc.keep_alive('blob', registry._blob_key(digest)) then
        perform registry._refuse('ZR001',
            format('there is no blob %s', registry.digest_text(digest)),
            'It was never uploaded, or has been collected.', 'Upload it.');
    end if;
    loop
        insert into registry.repository_blobs (namespace_id, repository_id, digest)
        values (r.namespace_id, r.id, digest)
        on conflict do nothing;
        exit when found;
        perform from registry.repository_blobs as l
        where l.namespace_id = r.namespace_id and l.repository_id = r.id and l.digest = _link.digest
        for key share;
        exit when found;
    end loop;
end;
$$;

comment on function _link(repositories, bytea) is
    'Links a blob to a repository; raises ZR001 if the blob is not there.';


-- A row that is there may be deleted between the insert and the lock: then there is room for it.
create function _add_blob(digest bytea, size bigint, media_type text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    known bigint;
begin
    loop
        insert into registry.blobs (digest, size, media_type) values (digest, size, media_type)
        on conflict do nothing;
        select b.size into known from registry.blobs as b
        where b.digest = _add_blob.digest
        for key share;
        exit when found;
    end loop;
    if known <> size then
        perform registry._refuse('ZR010', 'a blob has one size', format('%s has %s bytes, not %s.',
            registry.digest_text(digest), known, size),
            'Find out which of the two is not that blob.');
    end if;
end;
$$;

comment on function _add_blob(bytea, bigint, text) is
    'Inserts a blob that may be there already; raises ZR010 if that one has another size.';


create function _refuse_upload(digest text, upload text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._refuse('ZR003',
        format('no upload %sof %s was begun', quote_literal(left(upload, 100)) || ' ', digest),
        'Or it took longer than gc.settings.upload_timeout, or is finished.',
        'Call begin_blob_upload with a new name for the upload, write the object again, and '
        'finish then, with that name.');
end;
$$;

comment on function _refuse_upload(text, text) is 'Raises ZR003.';


create function finish_blob_upload(
    repository text, digest text, size bigint,
    media_type text default 'application/octet-stream', upload text default null
)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
    key bytea := registry.digest_bytes(digest);
begin
    if coalesce(size < 0, true) then
        perform registry._refuse('ZR010', 'a size is a number of bytes',
            coalesce(size::text, 'null'),
            'Count the bytes that were written.');
    end if;
    begin
        perform registry._add_blob(key, size, coalesce(media_type, 'application/octet-stream'));
    exception
        -- Nobody has announced it, and gc.settings.strict_uploads is on.
        when sqlstate 'ZG002' then
            perform registry._refuse_upload(digest, upload);
    end;
    perform registry._link(r, key);
    if not gc.end_upload('blob', registry._blob_key(key), upload) then
        perform registry._refuse_upload(digest, upload);
    end if;
end;
$$;

comment on function finish_blob_upload(text, text, bigint, text, text) is
    'Says that the blob is written, by the upload of that name. It is linked, and reviewed if no '
    'manifest uses it in a day. Raises ZR003 for an upload that was not begun, or has timed out.';


create function link_blob(repository text, digest text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._link(registry._enter(repository), registry.digest_bytes(digest));
end;
$$;

comment on function link_blob(text, text) is
    'Lets a repository use a blob that is in the store already.';


create function mount_blob(repository text, digest text, source text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._require_blob(registry.find_repository(source), registry.digest_bytes(digest));
    perform registry._link(registry._enter(repository), registry.digest_bytes(digest));
end;
$$;

comment on function mount_blob(text, text, text) is
    'Lets a repository use a blob that another one uses.';


create function unlink_blob(repository text, digest text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
    key bytea := registry.digest_bytes(digest);
begin
    -- Whoever pushes a manifest locks the links that it needs: it is before this, or too late.
    perform from registry.repository_blobs as l
    where l.namespace_id = r.namespace_id and l.repository_id = r.id and l.digest = key
    for update;
    if not found then
        perform registry._refuse_unknown_blob(r, key);
    end if;
    if exists (
        select from registry.layers as l
        where l.namespace_id = r.namespace_id and l.repository_id = r.id and l.digest = key
    ) or exists (
        select from registry.manifests as m
        where m.namespace_id = r.namespace_id and m.repository_id = r.id
            and m.configuration_blob_digest = key
    ) then
        perform registry._refuse('ZR012', format('a manifest of "%s" uses %s', r.path, digest),
            'It could not be pulled any more.', 'Delete the manifest first.');
    end if;
    delete from registry.repository_blobs as l
    where l.namespace_id = r.namespace_id and l.repository_id = r.id and l.digest = key;
end;
$$;

comment on function unlink_blob(text, text) is
    'Takes a blob away from a repository, none of whose manifests uses it.';


create function has_blob(repository text, digest text)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
    key bytea := registry.digest_bytes(digest);
begin
    return exists (
        select from registry.repository_blobs as l
        where l.namespace_id = r.namespace_id and l.repository_id = r.id and l.digest = key
    ) and gc.keep_alive('blob', registry._blob_key(key));
end;
$$;

comment on function has_blob(text, text) is
    'Whether the repository has the blob. If so, it stays long enough to push a manifest.';


create function get_blob(
    repository text, digest text, out url text, out size bigint, out media_type text
)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    key bytea := registry.digest_bytes(digest);
begin
    perform registry._require_blob(registry.find_repository(repository), key);
    select registry.blob_url(b.digest), b.size, b.media_type into url, size, media_type
    from registry.blobs as b
    where b.digest = key;
end;
$$;

comment on function get_blob(text, text) is
    'Where a blob of the repository is to be read; raises ZR001 if it has none such.';


-- Reading a manifest ---------------------------------------------------------------------------
-- Nothing in it is believed. What is not understood is refused, never skipped. It is read as json,
-- which is text that has been checked: no number is ever converted that is not a size, a value is
-- looked at after its type, and messages do not repeat what is in it. So it costs its length.

create type _descriptor as (position integer, digest bytea, size bigint, media_type text);

comment on type _descriptor is 'What a manifest says about a blob or another manifest.';


create function _refuse_manifest(reason text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._refuse('ZR006', 'this manifest is not valid', left(reason, 500),
        'Push an OCI image manifest or index, or a Docker manifest or list of schema version 2.');
end;
$$;

comment on function _refuse_manifest(text) is 'Raises ZR006.';


create function _known_members(document json)
    returns json
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select json_object_agg(m.key, m.value)
        from json_each(document) as m
        where m.key in ('schemaVersion', 'mediaType', 'artifactType', 'config', 'layers',
            'manifests', 'subject', 'annotations')
    );
end;
$$;

comment on function _known_members(json) is
    'What of a manifest is looked at. The rest is not read again; null: there is nothing.';


create function _member_flaw(document json)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when document is null then 'it is empty'
        when json_typeof(document -> 'schemaVersion') is distinct from 'number'
            or document ->> 'schemaVersion' <> '2' then 'its schemaVersion is not 2'
        when json_typeof(document -> 'mediaType') not in ('string', 'null')
            or json_typeof(document -> 'artifactType') not in ('string', 'null')
            then 'its media type and artifact type must be strings'
        when json_typeof(document -> 'subject') not in ('object', 'null')
            then 'its subject must be one'
        when json_typeof(document -> 'annotations') not in ('object', 'null')
            then 'its annotations must be an object'
        when json_typeof(document -> 'annotations') = 'object' and exists (
            select from json_each(document -> 'annotations') as a
            where json_typeof(a.value) <> 'string'
        ) then 'its annotations must be strings'
    end;
end;
$$;

comment on function _member_flaw(json) is
    'What is wrong with the types of a manifest''s members; null: nothing.';


create function _listed(document json, member text)
    returns json
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return case json_typeof(document -> member)
        when 'array' then document -> member
        when 'object' then json_build_array(document -> member)
        else '[]'
    end;
end;
$$;

comment on function _listed(json, text) is
    'A member of a manifest as an array: of one if it is an object, of none if it is neither.';


-- Two readers may disagree about a name that occurs twice, or is one of ours but for its case or
-- for letters that somebody takes for the same: who pulls would get other layers than those that
-- are kept. So the names that matter are written as they are, once, and all others in ASCII.
create function _name_flaw(objects json)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        with known(name) as (
            select unnest(array['schemaVersion', 'mediaType', 'artifactType', 'config', 'layers',
                'manifests', 'subject', 'annotations', 'digest', 'size', 'urls', 'data',
                'platform'])
        )
        select 'a name occurs twice in one object, or in letters that are not its own'
        from json_array_elements(objects) with ordinality as o(value, n)
        cross join lateral json_object_keys(o.value) as k
        left join known as f on lower(f.name collate "C") = lower(k collate "C")
        group by o.n, lower(k collate "C")
        having count(*) > 1 or bool_or(k ~ '[^ -~]') or bool_or(f.name <> k)
        limit 1
    );
end;
$$;

comment on function _name_flaw(json) is
    'Whether one of these objects has a name that can be read as another; null: no.';


create function _descriptor_flaw(document json, member text)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    listed json := registry._listed(document, member);
    wrong bigint;
begin
    select o.n into wrong
    from json_array_elements(listed) with ordinality as o(e, n)
    where not coalesce(
        json_typeof(o.e) = 'object'
        and json_typeof(o.e -> 'mediaType') = 'string'
        and json_typeof(o.e -> 'digest') = 'string'
        and json_typeof(o.e -> 'size') = 'number'
        and o.e ->> 'digest' ~ '^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$'
        and o.e ->> 'size' ~ '^(0|[1-9][0-9]{0,14})$',
        false)
    limit 1;
    if wrong is not null then
        return format('%s: number %s lacks a media type, a digest, or a size below 10^15',
            member, wrong);
    end if;
    return registry._name_flaw(listed);
end;
$$;

comment on function _descriptor_flaw(json, text) is
    'What is wrong with a member of a manifest that consists of descriptors; null: nothing.';


create function _read_manifest(payload bytea)
    returns json
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    document json;
    flaw text;
begin
    if coalesce(octet_length(payload) > 4194304, true) then
        perform registry._refuse_manifest('it is bigger than 4 MiB, or null');
    end if;
    begin
        document := convert_from(payload, 'UTF8')::json;
        -- The only function of json that reads all escapes: \u0000 and half surrogates are none.
        perform json_strip_nulls(document);
        flaw := registry._name_flaw(json_build_array(document));
        document := registry._known_members(document);
        flaw := coalesce(
            flaw,
            registry._member_flaw(document),
            registry._descriptor_flaw(document, 'config'),
            registry._descriptor_flaw(document, 'layers'),
            registry._descriptor_flaw(document, 'manifests'),
            registry._descriptor_flaw(document, 'subject'));
    exception
        when data_exception or program_limit_exceeded then
            flaw := sqlerrm;
    end;
    if flaw is not null then
        perform registry._refuse_manifest(flaw);
    end if;
    return document;
end;
$$;

comment on function _read_manifest(bytea) is
    'A payload as a document; raises ZR006 if it is not one of schema version 2.';


create function _is_list(media_type text)
    returns boolean
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when media_type in (
            'application/vnd.oci.image.manifest.v1+json',
            'application/vnd.docker.distribution.manifest.v2+json') then false
        when media_type in (
            'application/vnd.oci.image.index.v1+json',
            'application/vnd.docker.distribution.manifest.list.v2+json') then true
    end;
end;
$$;

comment on function _is_list(text) is
    'Whether manifests of this media type list others; null: it is none of a manifest.';


-- A document that looks like both an image and a list means what its media type says to one reader,
-- and the other to the next.
create function _media_type(document json, said text)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    written text := document ->> 'mediaType';
    is_list boolean := document -> 'manifests' is not null;
    media_type text := coalesce(written, said, case
        when is_list then 'application/vnd.oci.image.index.v1+json'
        else 'application/vnd.oci.image.manifest.v1+json'
    end);
begin
    if written <> said then
        perform registry._refuse_manifest(format('it is %s and was said to be %s',
            left(written, 200), left(said, 200)));
    elsif registry._is_list(media_type) is distinct from is_list then
        perform registry._refuse_manifest(
            format('%s does not fit what it contains', left(media_type, 200)));
    elsif is_list and (document -> 'layers' is not null or document -> 'config' is not null)
        or json_typeof(document -> case when is_list then 'manifests' else 'layers' end)
            is distinct from 'array'
        or not is_list and json_typeof(document -> 'config') is distinct from 'object'
    then
        perform registry._refuse_manifest(
            'it must be either a configuration with layers, or a list');
    end if;
    return media_type;
end;
$$;

comment on function _media_type(json, text) is
    'What kind of manifest it is; raises ZR006 if what it says of itself does not fit.';


create function _descriptors(document json, member text)
    returns _descriptor[]
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select row(o.n, registry.digest_bytes(o.e ->> 'digest'), (o.e ->> 'size')::bigint,
            o.e ->> 'mediaType')::registry._descriptor
        from json_array_elements(registry._listed(document, member)) with ordinality as o(e, n)
        order by o.n
    );
end;
$$;

comment on function _descriptors(json, text) is
    'What a member of a manifest refers to.';


create function _annotations(payload bytea)
    returns jsonb
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case when registry._member_flaw(d.document) is null
        then (d.document -> 'annotations')::jsonb end
    from registry._known_members(convert_from(payload, 'UTF8')::json) as d(document)
$$;

comment on function _annotations(bytea) is
    'The annotations of a manifest; null if they are not strings.';


-- Manifests ------------------------------------------------------------------------------------

create function _is_foreign(media_type text)
    returns boolean
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return media_type like 'application/vnd.oci.image.layer.nondistributable.%'
        or media_type like 'application/vnd.docker.image.rootfs.foreign.%';
end;
$$;

comment on function _is_foreign(text) is
    'Whether layers of this media type are pulled from elsewhere, and need not be pushed.';


-- Locks them all, so that a review leaves them alone until their references are committed, and so
-- that nobody unlinks them.
create function _lock_blobs(r repositories, wanted _descriptor[])
    returns _descriptor[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
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
            from registry.blobs as o
            join registry.repository_blobs as l on l.digest = o.digest
            where o.digest = w.digest
                and l.namespace_id = r.namespace_id and l.repository_id = r.id
            for key share of o, l
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
    'Those of the blobs that are in the repository, locked. Raises ZR005 if one is missing that '
    'has to be there, and ZR010 if one has another size.';


create function _lock_children(r repositories, wanted _descriptor[])
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    d record;
    present bigint[] := array[]::bigint[];
begin
    for d in
        select w.digest, m.id
        from unnest(wanted) as w
        left join lateral (
            select o.id from registry.manifests as o
            where o.namespace_id = r.namespace_id and o.repository_id = r.id
                and o.digest = w.digest
            for key share
        ) as m on true
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


create function _lock_manifest(r repositories, digest bytea)
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select m.id from registry.manifests as m
        where m.namespace_id = r.namespace_id and m.repository_id = r.id
            and m.digest = _lock_manifest.digest
        for key share
    );
end;
$$;

comment on function _lock_manifest(repositories, bytea) is
    'The id of a manifest, locked so that a reference to it can be made; null: it is not there.';


create function _refuse_unknown_manifest(r repositories, reference text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._refuse('ZR007',
        format('"%s" has no manifest %s', r.path, left(reference, 200)),
        'It was never pushed there, or has been deleted or collected.', 'Push it.');
end;
$$;

comment on function _refuse_unknown_manifest(repositories, text) is 'Raises ZR007.';


-- The table is empty, but for what others have left for vacuum to clean: not to be read through.
create function _await_pushes(r repositories, digests bytea[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    met bytea;
begin
    for met in select distinct d from unnest(digests) as d where d is not null order by d loop
        insert into registry.pushes (repository_id, digest) values (r.id, met)
        on conflict do nothing;
        delete from registry.pushes as p where p.repository_id = r.id and p.digest = met;
    end loop;
end;
$$;

comment on function _await_pushes(repositories, bytea[]) is
    'Waits for others who push one of these manifests, or one that is about it, and lets those '
    'wait who come later.';


create function _lock_referrers(r repositories, digest bytea)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select m.id from registry.manifests as m
        where m.namespace_id = r.namespace_id and m.repository_id = r.id
            and m.subject_digest = _lock_referrers.digest
        for key share
    );
end;
$$;

comment on function _lock_referrers(repositories, bytea) is
    'The manifests that say they are about this one, locked.';


-- A subject keeps its referrers, and a list its children. One that keeps its own subject, directly
-- or by way of others, would be kept by it in turn, and the two would never be collected.
create function _refuse_circle(r repositories, subject bigint, kept bigint[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    seen bigint;
    closed boolean;
begin
    with recursive reached(id) as (
        select unnest(kept)
        union
        select k.id
        from reached as f
        cross join lateral (
            select l.child_id from registry.manifest_references as l
            where l.namespace_id = r.namespace_id and l.repository_id = r.id and l.parent_id = f.id
            union all
            select o.manifest_id from registry.referrers as o
            where o.namespace_id = r.namespace_id and o.repository_id = r.id
                and o.subject_id = f.id
        ) as k(id)
    )
    select count(*), bool_or(c.id = subject) into seen, closed
    from (select f.id from reached as f limit 10001) as c;
    if closed or seen > 10000 then
        perform registry._refuse_manifest('its subject is among what it lists or what is about it, '
            'or these are more than 10,000');
    end if;
end;
$$;

comment on function _refuse_circle(repositories, bigint, bigint[]) is
    'Raises ZR006 for a manifest whose subject is kept by what it keeps itself.';


-- Two that are about something and keep something could close a circle together: one by one.
create function _await_relatives(r repositories, document json, digest bytea, subject bytea)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._await_pushes(r, array[digest, subject]);
    if subject is not null and (
        json_array_length(registry._listed(document, 'manifests')) > 0
        or exists (
            select from registry.manifests as m
            where m.namespace_id = r.namespace_id and m.repository_id = r.id
                and m.subject_digest = _await_relatives.digest
        )
    ) then
        -- After every digest.
        perform registry._await_pushes(r, array[decode('ff', 'hex')]);
    end if;
end;
$$;

comment on function _await_relatives(repositories, json, bytea, bytea) is
    'Waits for others who push this manifest, its subject or its referrers.';


create function _add_references(
    r repositories, manifest_id bigint, document json, digest bytea, subject bytea
)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
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
    waiting := registry._lock_referrers(r, digest);
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
    set search_path = pg_catalog, pg_temp
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


create function _require_tag(name text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if name ~ '^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$' then
        return;
    end if;
    perform registry._refuse('ZR020', 'a tag cannot be called so',
        coalesce(left(name, 200), 'null'),
        'Use at most 128 letters, digits, and _ . - after the first.');
end;
$$;

comment on function _require_tag(text) is 'Raises ZR020 for what is not a tag.';


create function _set_tag(r repositories, name text, manifest_id bigint)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into registry.tags as t (namespace_id, repository_id, name, manifest_id)
    values (r.namespace_id, r.id, name, manifest_id)
    on conflict on constraint tags_pkey do update
    set manifest_id = excluded.manifest_id, updated_at = now()
    where t.manifest_id <> excluded.manifest_id;
end;
$$;

comment on function _set_tag(repositories, text, bigint) is
    'Creates a tag or sets it to another manifest, which must be locked.';


-- With a digest for a reference, that is what the payload must have.
create function _payload_digest(payload bytea, reference text)
    returns bytea
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    digest bytea := case
        when starts_with(reference, 'sha512:') then decode('02', 'hex') || sha512(payload)
        else decode('01', 'hex') || sha256(payload)
    end;
begin
    if (case when reference like '%:%' then registry.digest_bytes(reference) <> digest end) then
        perform registry._refuse('ZR004', 'this is not the digest of the payload',
            format('The digest is %s.', registry.digest_text(digest)),
            'Push what was signed, unchanged.');
    end if;
    return digest;
end;
$$;

comment on function _payload_digest(bytea, text) is
    'The digest of a payload; raises ZR004 if it was pushed under another.';


create function put_manifest(
    repository text, payload bytea, reference text default null, media_type text default null
)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
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
    -- One that is there may be due for a review, so it is kept alive; or gone a moment later, and
    -- then there is room for it.
    loop
        manifest_id := registry._add_manifest(r, digest, kind, payload, document);
        exit when manifest_id is not null;
        manifest_id := registry._lock_manifest(r, digest);
        exit when manifest_id is not null
            and gc.keep_alive('manifest', row(r.namespace_id, r.id, manifest_id)::text);
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


create function tag(repository text, name text, digest text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
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
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
begin
    perform registry._require_tag(name);
    delete from registry.tags as t
    where t.namespace_id = r.namespace_id and t.repository_id = r.id and t.name = untag.name;
    if not found then
        perform registry._refuse_unknown_manifest(r, name);
    end if;
end;
$$;

comment on function untag(text, text) is
    'Removes a tag. Its manifest is collected unless something else keeps it.';


create function get_manifest(
    repository text, reference text, out digest text, out media_type text, out payload bytea
)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry.find_repository(repository);
    manifest_id bigint;
begin
    if reference like '%:%' then
        select m.id into manifest_id from registry.manifests as m
        where m.namespace_id = r.namespace_id and m.repository_id = r.id
            and m.digest = registry.digest_bytes(reference);
    else
        select t.manifest_id into manifest_id from registry.tags as t
        where t.namespace_id = r.namespace_id and t.repository_id = r.id and t.name = reference;
    end if;
    select registry.digest_text(m.digest), m.media_type, m.payload into digest, media_type, payload
    from registry.manifests as m
    where m.namespace_id = r.namespace_id and m.repository_id = r.id and m.id = manifest_id;
    if not found then
        perform registry._refuse_unknown_manifest(r, reference);
    end if;
end;
$$;

comment on function get_manifest(text, text) is
    'A manifest by its tag or digest, byte for byte; raises ZR007 if there is none.';


create function _describe_blob(digest text)
    returns json
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    b registry.blobs;
begin
    select o.* into b from registry.blobs as o
    where o.digest = registry.digest_bytes(_describe_blob.digest);
    if not found then
        perform registry._refuse('ZR005', format('there is no blob %s', digest),
            'The manifest would refer to it.', 'Upload it first.');
    end if;
    return json_build_object('mediaType', b.media_type, 'digest', digest, 'size', b.size);
end;
$$;

comment on function _describe_blob(text) is
    'What a manifest says of a blob; raises ZR005 if there is none such.';


create function _describe_manifest(repository text, digest text)
    returns json
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select json_build_object('mediaType', m.media_type, 'digest', m.digest,
        'size', octet_length(m.payload))
    from registry.get_manifest(repository, digest) as m
$$;

comment on function _describe_manifest(text, text) is
    'What a list says of a manifest; raises ZR007 if the repository has none such.';


create function put_image(
    repository text, configuration text, layers text[], reference text default null,
    subject text default null
)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select registry.put_manifest(repository, convert_to(json_strip_nulls(json_build_object(
        'schemaVersion', 2,
        'mediaType', 'application/vnd.oci.image.manifest.v1+json',
        'config', registry._describe_blob(configuration),
        'layers', array(
            select registry._describe_blob(l)
            from unnest(layers) with ordinality as u(l, n)
            order by n
        ),
        'subject', case when subject is not null then
            registry._describe_manifest(repository, subject) end
    ))::text, 'UTF8'), reference)
$$;

comment on function put_image(text, text, text[], text, text) is
    'Pushes an image manifest that is made of the digests of its parts, and returns its digest.';


create function put_list(repository text, manifests text[], reference text default null)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select registry.put_manifest(repository, convert_to(json_build_object(
        'schemaVersion', 2,
        'mediaType', 'application/vnd.oci.image.index.v1+json',
        'manifests', array(
            select registry._describe_manifest(repository, m)
            from unnest(manifests) with ordinality as u(m, n)
            order by n
        )
    )::text, 'UTF8'), reference)
$$;

comment on function put_list(text, text[], text) is
    'Pushes a list of manifests that the repository has, and returns its digest.';


create function delete_manifest(repository text, digest text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
    doomed bigint;
begin
    select m.id into doomed from registry.manifests as m
    where m.namespace_id = r.namespace_id and m.repository_id = r.id
        and m.digest = registry.digest_bytes(delete_manifest.digest)
    for update;
    if not found then
        perform registry._refuse_unknown_manifest(r, digest);
    end if;
    if exists (
        select from registry.manifest_references as l
        where l.namespace_id = r.namespace_id and l.repository_id = r.id and l.child_id = doomed
    ) then
        perform registry._refuse('ZR012', format('a list of "%s" has %s', r.path, digest),
            'A list keeps its children.', 'Delete the list first.');
    end if;
    delete from registry.manifests as m
    where m.namespace_id = r.namespace_id and m.repository_id = r.id and m.id = doomed;
end;
$$;

comment on function delete_manifest(text, text) is
    'Deletes a manifest that no list has, with its tags. What refers to it is collected later.';


create function list_tags(repository text, n integer default null, last text default null)
    returns setof text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry.find_repository(repository);
begin
    return query
        select t.name from registry.tags as t
        where t.namespace_id = r.namespace_id and t.repository_id = r.id
            and (last is null or t.name > last)
        order by t.name
        limit case when n < 0 then 0 else n end;
end;
$$;

comment on function list_tags(text, integer, text) is
    'The tags of a repository in order: the first n that come after the last one seen.';


create function list_referrers(repository text, subject text, kind text default null)
    returns table (
        digest text, media_type text, artifact_type text, size bigint, annotations jsonb
    )
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry.find_repository(repository);
begin
    return query
        select registry.digest_text(m.digest), m.media_type, m.artifact_type,
            octet_length(m.payload)::bigint, registry._annotations(m.payload)
        from registry.manifests as m
        where m.namespace_id = r.namespace_id and m.repository_id = r.id
            and m.subject_digest = registry.digest_bytes(subject)
            and (kind is null or m.artifact_type = kind)
        order by m.id;
end;
$$;

comment on function list_referrers(text, text, text) is
    'The manifests that are about another one, which need not be there; those of a kind, or all.';


-- Usage ----------------------------------------------------------------------------------------
-- Asked for one repository or namespace, each reads only that one's rows.

create view repository_usage as
select r.path as repository, m.manifests, m.logical_bytes, b.deduplicated_bytes
from repositories as r
cross join lateral (
    select count(*), coalesce(sum(m.total_size), 0)
    from manifests as m
    where m.namespace_id = r.namespace_id and m.repository_id = r.id
) as m(manifests, logical_bytes)
cross join lateral (
    select coalesce(sum(u.size), 0)
    from (
        select l.digest, l.size from layers as l
        where l.namespace_id = r.namespace_id and l.repository_id = r.id
        union
        select c.digest, c.size
        from manifests as m
        join blobs as c on c.digest = m.configuration_blob_digest
        where m.namespace_id = r.namespace_id and m.repository_id = r.id
    ) as u
) as b(deduplicated_bytes)
where r.state = 'active';

comment on view repository_usage is 'How much of the store each active repository uses.';
comment on column repository_usage.repository is 'The repository.';
comment on column repository_usage.manifests is 'How many manifests it has.';
comment on column repository_usage.logical_bytes is
    'What its manifests add up to, each with all its layers.';
comment on column repository_usage.deduplicated_bytes is
    'What it would take in a store of its own: each blob once.';


create view namespace_usage as
select n.name as namespace, r.repositories, m.manifests, m.logical_bytes, b.deduplicated_bytes
from namespaces as n
cross join lateral (
    select count(*), coalesce(array_agg(r.id), '{}')
    from repositories as r
    where r.namespace_id = n.id and r.state = 'active'
) as r(repositories, ids)
cross join lateral (
    select count(*), coalesce(sum(m.total_size), 0)
    from manifests as m
    where m.namespace_id = n.id and m.repository_id = any (r.ids)
) as m(manifests, logical_bytes)
cross join lateral (
    select coalesce(sum(u.size), 0)
    from (
        select l.digest, l.size from layers as l
        where l.namespace_id = n.id and l.repository_id = any (r.ids)
        union
        select c.digest, c.size
        from manifests as m
        join blobs as c on c.digest = m.configuration_blob_digest
        where m.namespace_id = n.id and m.repository_id = any (r.ids)
    ) as u
) as b(deduplicated_bytes);

comment on view namespace_usage is 'How much of the store each namespace uses.';
comment on column namespace_usage.namespace is 'The namespace.';
comment on column namespace_usage.repositories is 'How many active repositories it has.';
comment on column namespace_usage.manifests is 'How many manifests are in them.';
comment on column namespace_usage.logical_bytes is
    'What its manifests add up to, each with all its layers.';
comment on column namespace_usage.deduplicated_bytes is
    'What it would take in a store of its own: each blob once.';


-- Collections ----------------------------------------------------------------------------------

select gc.track('blobs', name => 'blob',
    url => format('%I.blob_url(digest)', current_schema()),
    size => 'size',
    label => format('%I.digest_text(digest)', current_schema()),
    owned => array['repository_blobs'],
    events => '{
        "blob_insert": "blob_upload",
        "manifests_delete": "manifest_delete",
        "layers_delete": "layer_delete"
    }');

select gc.track('manifests', name => 'manifest',
    label => format('%I.digest_text(digest)', current_schema()),
    owned => array[
        'layers',
        'manifest_references(namespace_id, repository_id, parent_id)',
        'referrers(namespace_id, repository_id, subject_id)'
    ],
    events => '{
        "manifest_insert": "manifest_upload",
        "manifest_references_delete": "manifest_list_delete",
        "referrers_delete": "subject_delete",
        "tags_delete": "tag_delete",
        "tags_update": "tag_switch"
    }');

-- What keeps a manifest goes before it, and links go last.
select gc.track('repositories', name => 'repository',
    label => 'path',
    condition => format('%I.is_abandoned(state, created_at)', current_schema()),
    owned => array[
        'tags', 'manifest_references', 'referrers', 'layers', 'manifests', 'repository_blobs'
    ]);

-- One that is not filled within 2 minutes is reviewed then, one that is deleted at once.
insert into gc.review_after_defaults
values ('repository_insert', '2 minutes'), ('repository_update', '0')
on conflict do nothing;
