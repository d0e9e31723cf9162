-- The shape of Gitea's (and Forgejo's) packages: no foreign key at all, names in the singular.
create schema gitea;

create table gitea.package (
    id bigserial primary key,
    owner_id bigint not null,
    repo_id bigint,
    type varchar(255) not null,
    name varchar(255) not null,
    lower_name varchar(255) not null,
    semver_compatible boolean not null default false,
    is_internal boolean not null default false,
    unique (owner_id, type, lower_name)
);
create index on gitea.package (repo_id);
create table gitea.package_version (
    id bigserial primary key,
    package_id bigint not null,
    creator_id bigint not null default 0,
    version varchar(255) not null,
    lower_version varchar(255) not null,
    created_unix bigint not null,
    is_internal boolean not null default false,
    metadata_json text,
    download_count bigint not null default 0,
    unique (package_id, lower_version)
);
create table gitea.package_blob (
    id bigserial primary key,
    size bigint not null default 0,
    hash_md5 char(32) not null unique,
    hash_sha1 char(40) not null unique,
    hash_sha256 char(64) not null unique,
    hash_sha512 char(128) not null unique,
    created_unix bigint not null
);
create table gitea.package_file (
    id bigserial primary key,
    version_id bigint not null,
    blob_id bigint not null,
    name varchar(255) not null,
    lower_name varchar(255) not null,
    composite_key varchar(255),
    is_lead boolean not null default false,
    created_unix bigint not null,
    unique (version_id, lower_name, composite_key)
);
create index on gitea.package_file (blob_id);
create table gitea.package_property (
    id bigserial primary key,
    ref_type bigint not null,
    ref_id bigint not null,
    name varchar(255) not null,
    value text not null
);
create index on gitea.package_property (ref_id);
create table gitea.package_blob_upload (
    id varchar(255) primary key,
    bytes_received bigint not null default 0,
    hash_state_bytes bytea,
    created_unix bigint not null,
    updated_unix bigint not null
);
create table gitea.package_cleanup_rule (
    id bigserial primary key,
    enabled boolean not null default false,
    owner_id bigint not null,
    type varchar(255) not null,
    keep_count integer not null default 0,
    keep_pattern varchar(255) not null default '',
    remove_days integer not null default 0,
    unique (owner_id, type)
);
