-- The shape of Rails' ActiveStorage since 6.1: an attachment is a pair of type and id on one side
-- and a foreign key on the other, and a variant is a record that has an attachment of its own.
create schema rails;

create table rails.active_storage_blobs (
    id bigserial primary key,
    key varchar not null,
    filename varchar not null,
    content_type varchar,
    metadata text,
    service_name varchar not null,
    byte_size bigint not null,
    checksum varchar,
    created_at timestamp(6) not null
);
create unique index on rails.active_storage_blobs (key);
create table rails.active_storage_attachments (
    id bigserial primary key,
    name varchar not null,
    record_type varchar not null,
    record_id bigint not null,
    blob_id bigint not null references rails.active_storage_blobs,
    created_at timestamp(6) not null
);
create index on rails.active_storage_attachments (blob_id);
create unique index on rails.active_storage_attachments (record_type, record_id, name, blob_id);
create table rails.active_storage_variant_records (
    id bigserial primary key,
    blob_id bigint not null references rails.active_storage_blobs,
    variation_digest varchar not null
);
create unique index on rails.active_storage_variant_records (blob_id, variation_digest);
