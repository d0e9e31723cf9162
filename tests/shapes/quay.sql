-- The shape of Quay's registry: foreign keys from manifests to blobs, and a manifest whose subject
-- is named by its digest.
create schema quay;

create table quay.repository (id serial primary key, name varchar(255) not null);
create table quay.imagestorage (
    id serial primary key,
    uuid varchar(255) not null unique,
    image_size bigint,
    uncompressed_size bigint,
    uploading boolean,
    cas_path boolean not null default true,
    content_checksum varchar(255)
);
create index on quay.imagestorage (content_checksum);
create table quay.imagestoragelocation (id serial primary key, name varchar(255) not null unique);
create table quay.imagestorageplacement (
    id serial primary key,
    storage_id integer not null references quay.imagestorage,
    location_id integer not null references quay.imagestoragelocation
);
create index on quay.imagestorageplacement (location_id);
create index on quay.imagestorageplacement (storage_id);
create unique index on quay.imagestorageplacement (storage_id, location_id);
create table quay.imagestoragesignature (
    id serial primary key,
    storage_id integer not null references quay.imagestorage,
    kind_id integer not null,
    signature text,
    uploading boolean
);
create index on quay.imagestoragesignature (storage_id);
create table quay.uploadedblob (
    id bigserial primary key,
    repository_id integer not null references quay.repository,
    blob_id integer not null references quay.imagestorage,
    uploaded_at timestamp not null default now(),
    expires_at timestamp not null default now()
);
create index on quay.uploadedblob (repository_id);
create index on quay.uploadedblob (blob_id);
create index on quay.uploadedblob (expires_at);
create table quay.manifest (
    id bigserial primary key,
    repository_id integer not null references quay.repository,
    digest varchar(255) not null,
    media_type_id integer not null,
    manifest_bytes text not null,
    config_media_type varchar(255),
    layers_compressed_size bigint,
    subject varchar(255),
    subject_backfilled boolean,
    artifact_type varchar(255)
);
create index on quay.manifest (digest);
create index on quay.manifest (repository_id);
create unique index on quay.manifest (repository_id, digest);
create index on quay.manifest (repository_id, subject);
create table quay.manifestblob (
    id bigserial primary key,
    repository_id integer not null references quay.repository,
    manifest_id bigint not null references quay.manifest,
    blob_id integer not null references quay.imagestorage
);
create index on quay.manifestblob (repository_id);
create index on quay.manifestblob (blob_id);
create unique index on quay.manifestblob (manifest_id, blob_id);
create table quay.manifestchild (
    id bigserial primary key,
    repository_id integer not null references quay.repository,
    manifest_id bigint not null references quay.manifest,
    child_manifest_id bigint not null references quay.manifest
);
create index on quay.manifestchild (repository_id);
create index on quay.manifestchild (child_manifest_id);
create unique index on quay.manifestchild (manifest_id, child_manifest_id);
create table quay.manifestlabel (
    id bigserial primary key,
    repository_id integer not null references quay.repository,
    manifest_id bigint not null references quay.manifest,
    label_id integer not null
);
create unique index on quay.manifestlabel (manifest_id, label_id);
create table quay.manifestsecuritystatus (
    id bigserial primary key,
    manifest_id bigint not null references quay.manifest,
    repository_id integer not null references quay.repository,
    index_status integer not null,
    indexer_hash varchar(128) not null
);
create unique index on quay.manifestsecuritystatus (manifest_id);
create table quay.tag (
    id bigserial primary key,
    name varchar(255) not null,
    repository_id integer not null references quay.repository,
    manifest_id bigint references quay.manifest,
    lifetime_start_ms bigint not null default 0,
    lifetime_end_ms bigint,
    hidden boolean not null default false,
    reversion boolean not null default false,
    tag_kind_id integer not null default 1,
    linked_tag_id bigint references quay.tag
);
create index on quay.tag (repository_id, name);
create index on quay.tag (lifetime_end_ms);
create index on quay.tag (manifest_id);
create index on quay.tag (linked_tag_id);
