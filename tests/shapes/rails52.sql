-- The shape of ActiveStorage in Rails 5.2: no foreign key, no records of variants.
create schema rails52;

create table rails52.active_storage_blobs (
    id bigserial primary key,
    key varchar not null,
    filename varchar not null,
    content_type varchar,
    metadata text,
    byte_size bigint not null,
    checksum varchar not null,
    created_at timestamp not null
);
create unique index on rails52.active_storage_blobs (key);
create table rails52.active_storage_attachments (
    id bigserial primary key,
    name varchar not null,
    record_type varchar not null,
    record_id bigint not null,
    blob_id bigint not null,
    created_at timestamp not null
);
create index on rails52.active_storage_attachments (blob_id);
create unique index on rails52.active_storage_attachments (record_type, record_id, name, blob_id);
