-- The tables. All that is in a repository has the repository's key, so that it can be drained by
-- repository. Blobs and links are partitioned by digest, the rest by namespace. Every foreign key
-- has the partition key of the table it is in, so that one partition tells who refers to a row; all
-- partitions of links are asked only when a repository goes.

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
    unfinished boolean not null default false,
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
comment on column repositories.unfinished is
    'It was given up before it was active: a restore by name passes over it.';


-- The columns that every table of a repository's contents begins with; dropped below.
create table in_repository (namespace_id bigint not null, repository_id bigint not null);

comment on column in_repository.namespace_id is 'Whose repository.';
comment on column in_repository.repository_id is 'The repository.';


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
    like in_repository including comments,
    digest bytea not null
        constraint repository_blobs_digest_fkey references blobs on delete cascade,
    created_at timestamptz not null default now(),
    constraint repository_blobs_pkey primary key (namespace_id, repository_id, digest),
    constraint repository_blobs_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (digest) */;
create index repository_blobs_digest_idx on repository_blobs (digest);

comment on table repository_blobs is
    'Links: which blobs a repository may use. A link keeps nothing; it goes with its blob.';
comment on column repository_blobs.digest is 'The blob.';
comment on column repository_blobs.created_at is 'Since when it is linked.';


create table manifests (
    like in_repository including comments,
    id bigint generated always as identity,
    digest bytea not null
        constraint manifests_digest_valid check (is_digest(digest)),
    media_type text not null,
    artifact_type text,
    payload bytea not null,
    configuration_blob_digest bytea,
    subject_digest bytea
        constraint manifests_subject_valid check (is_digest(subject_digest)),
    total_size bigint not null,
    created_at timestamptz not null default now(),
    constraint manifests_pkey primary key (namespace_id, repository_id, id),
    constraint manifests_digest_key unique (namespace_id, repository_id, digest),
    constraint manifests_configuration_fkey
        foreign key (namespace_id, repository_id, configuration_blob_digest)
        references repository_blobs on delete restrict,
    constraint manifests_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index manifests_configuration_idx
    on manifests (configuration_blob_digest, namespace_id, repository_id);
create index manifests_subject_idx on manifests (namespace_id, repository_id, subject_digest)
    where subject_digest is not null;

comment on table manifests is 'Images, lists of images, and what refers to them, by repository.';
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
    like in_repository including comments,
    manifest_id bigint not null,
    position integer not null,
    digest bytea not null,
    size bigint not null,
    media_type text not null,
    constraint layers_pkey primary key (namespace_id, repository_id, manifest_id, position),
    constraint layers_manifest_fkey foreign key (namespace_id, repository_id, manifest_id)
        references manifests on delete cascade,
    constraint layers_link_fkey foreign key (namespace_id, repository_id, digest)
        references repository_blobs on delete restrict,
    constraint layers_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index layers_digest_idx on layers (digest, namespace_id, repository_id);

comment on table layers is 'The layers of manifests. They keep their blobs, through links.';
comment on column layers.manifest_id is 'The manifest.';
comment on column layers.position is 'Its place in the manifest, from 1: a blob may occur twice.';
comment on column layers.digest is 'The blob.';
comment on column layers.size is 'How big it is, so that nobody has to look into blobs.';
comment on column layers.media_type is 'What the manifest calls it.';


create table manifest_references (
    like in_repository including comments,
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
comment on column manifest_references.parent_id is 'The list.';
comment on column manifest_references.child_id is 'A manifest in it, which may be a list itself.';


create table referrers (
    like in_repository including comments,
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
comment on column referrers.subject_id is 'What it is about.';
comment on column referrers.manifest_id is 'The manifest that says so.';


create table tags (
    like in_repository including comments,
    name text collate "C" not null,
    manifest_id bigint not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    expired_by bigint,
    constraint tags_pkey primary key (namespace_id, repository_id, name),
    constraint tags_manifest_fkey foreign key (namespace_id, repository_id, manifest_id)
        references manifests on delete cascade,
    constraint tags_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index tags_manifest_idx on tags (namespace_id, repository_id, manifest_id);

comment on table tags is 'Names of manifests. A tag keeps its manifest.';
comment on column tags.name is 'The tag.';
comment on column tags.manifest_id is 'What it stands for now.';
comment on column tags.created_at is 'When it was first set.';
comment on column tags.updated_at is 'When it was last set to another manifest.';
comment on column tags.expired_by is
    'The rule by which the review that is running deletes it; null: none. See expiring.sql.';


-- Apart from tags, so that pulls neither lock nor grow what pushes write. No index but the key: an
-- update is one in place (HOT).
create table pulls (
    like in_repository including comments,
    name text collate "C" not null,
    pulled_at timestamptz not null,
    constraint pulls_pkey primary key (namespace_id, repository_id, name),
    constraint pulls_tag_fkey foreign key (namespace_id, repository_id, name)
        references tags on delete cascade
)
/* partition by hash (namespace_id) */;

comment on table pulls is 'When tags were last pulled, to the hour. It goes with its tag.';
comment on column pulls.name is 'The tag.';
comment on column pulls.pulled_at is 'When it was pulled, at most an hour before the last time.';


drop table in_repository;


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


-- Partitions, in a schema of their own, so that \dt shows tables. Where there are some already, the
-- registry is being upgraded.
do $$
declare
    home name := current_schema() || '_partitions';
    command text;
begin
    for command in
        select format('create schema if not exists %I', home) where {partitions} > 0
        union all
        select format('create table %I.%I partition of %I for values with '
            '(modulus {partitions}, remainder %s)', home, t.relname || '_' || n, t.relname, n)
        from generate_series(0, {partitions} - 1) as n
        cross join pg_class as t
        where t.relnamespace = quote_ident(current_schema())::regnamespace and t.relkind = 'p'
            and not exists (select from pg_inherits as i where i.inhparent = t.oid)
    loop
        execute command;
    end loop;
end;
$$;
