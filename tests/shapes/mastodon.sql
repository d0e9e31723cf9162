-- The shape of Mastodon's media: a file refers to its status, and statuses and their edits have ids
-- of files in arrays. Addresses are made of the id and the name of the file.
create schema mastodon;

create table mastodon.accounts (
    id bigserial primary key,
    username varchar not null default '',
    domain varchar,
    avatar_file_name varchar,
    avatar_content_type varchar,
    avatar_file_size integer,
    header_file_name varchar,
    header_content_type varchar,
    header_file_size integer,
    created_at timestamp(6) not null default now()
);
create table mastodon.statuses (
    id bigserial primary key,
    account_id bigint not null references mastodon.accounts on delete cascade,
    text text not null default '',
    created_at timestamp(6) not null default now(),
    deleted_at timestamp(6),
    ordered_media_attachment_ids bigint[]
);
create index on mastodon.statuses (account_id, id);
create table mastodon.status_edits (
    id bigserial primary key,
    status_id bigint not null references mastodon.statuses on delete cascade,
    account_id bigint references mastodon.accounts on delete set null,
    text text not null default '',
    created_at timestamp(6) not null default now(),
    ordered_media_attachment_ids bigint[],
    media_descriptions text[]
);
create index on mastodon.status_edits (status_id);
create index on mastodon.status_edits (account_id);
create table mastodon.scheduled_statuses (
    id bigserial primary key,
    account_id bigint references mastodon.accounts on delete cascade,
    scheduled_at timestamp(6),
    params jsonb
);
create index on mastodon.scheduled_statuses (account_id);
create sequence mastodon.media_attachments_id_seq start 109000000000000001;
create table mastodon.media_attachments (
    id bigint primary key default nextval('mastodon.media_attachments_id_seq'),
    status_id bigint references mastodon.statuses on delete set null,
    file_file_name varchar,
    file_content_type varchar,
    file_file_size integer,
    remote_url varchar not null default '',
    created_at timestamp(6) not null default now(),
    shortcode varchar,
    type integer not null default 0,
    file_meta json,
    account_id bigint references mastodon.accounts on delete set null,
    description text,
    scheduled_status_id bigint references mastodon.scheduled_statuses on delete set null,
    blurhash varchar,
    thumbnail_file_name varchar,
    thumbnail_content_type varchar,
    thumbnail_file_size integer
);
create index on mastodon.media_attachments (status_id);
create index on mastodon.media_attachments (account_id, status_id);
create index on mastodon.media_attachments (scheduled_status_id)
    where scheduled_status_id is not null;
create unique index on mastodon.media_attachments (shortcode) where shortcode is not null;
