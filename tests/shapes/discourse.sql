-- The shape of Discourse's uploads and of what refers to them. Four of the references are foreign
-- keys; all others are columns that Rails knows of and PostgreSQL does not.
create schema discourse;

create table discourse.uploads (
    id serial primary key,
    user_id integer not null,
    original_filename varchar not null,
    filesize bigint not null,
    width integer,
    height integer,
    url varchar not null,
    created_at timestamp not null default now(),
    updated_at timestamp not null default now(),
    sha1 varchar(40) unique,
    origin varchar(1000),
    retain_hours integer,
    extension varchar(10),
    access_control_post_id bigint,
    original_sha1 varchar,
    secure boolean not null default false,
    etag varchar
);
create table discourse.upload_references (
    id bigserial primary key,
    upload_id bigint not null,
    target_type varchar not null,
    target_id bigint not null,
    created_at timestamp not null default now(),
    unique (upload_id, target_type, target_id)
);
create index on discourse.upload_references (target_type, target_id);
create table discourse.users (
    id serial primary key,
    username varchar(60) not null,
    uploaded_avatar_id integer
);
create table discourse.user_avatars (
    id serial primary key,
    user_id integer not null,
    custom_upload_id integer,
    gravatar_upload_id integer
);
create index on discourse.user_avatars (custom_upload_id);
create index on discourse.user_avatars (gravatar_upload_id);
create table discourse.user_profiles (
    user_id integer primary key,
    bio_raw text,
    profile_background_upload_id integer references discourse.uploads,
    card_background_upload_id integer references discourse.uploads
);
create index on discourse.user_profiles (profile_background_upload_id);
create index on discourse.user_profiles (card_background_upload_id);
create table discourse.user_exports (
    id serial primary key, file_name varchar not null, user_id integer not null, upload_id integer,
    topic_id integer
);
create table discourse.user_uploads (
    id bigserial primary key, upload_id integer not null, user_id integer not null,
    unique (upload_id, user_id)
);
create table discourse.topics (
    id serial primary key,
    title varchar not null,
    user_id integer,
    category_id integer,
    image_upload_id bigint
);
create index on discourse.topics (image_upload_id);
create table discourse.topic_thumbnails (
    id bigserial primary key, upload_id bigint not null, optimized_image_id bigint,
    max_width integer not null, max_height integer not null
);
create index on discourse.topic_thumbnails (upload_id);
create table discourse.posts (
    id serial primary key,
    user_id integer,
    topic_id integer not null,
    raw text not null,
    cooked text not null,
    image_upload_id bigint
);
create index on discourse.posts (image_upload_id);
create table discourse.post_uploads (
    id serial primary key, post_id integer not null, upload_id integer not null,
    unique (post_id, upload_id)
);
create index on discourse.post_uploads (upload_id);
create table discourse.optimized_images (
    id serial primary key, sha1 varchar(40) not null, extension varchar(10) not null,
    width integer not null, height integer not null, upload_id integer not null,
    url varchar not null
);
create index on discourse.optimized_images (upload_id);
create table discourse.categories (
    id serial primary key,
    name varchar(50) not null,
    user_id integer not null,
    topic_id integer,
    uploaded_logo_id integer,
    uploaded_logo_dark_id integer,
    uploaded_background_id integer,
    uploaded_background_dark_id integer
);
create table discourse.badges (
    id serial primary key, name varchar not null, badge_type_id integer not null,
    image_upload_id integer
);
create table discourse.groups (
    id serial primary key, name varchar not null, flair_upload_id integer
);
create table discourse.custom_emojis (
    id serial primary key, name varchar not null, upload_id integer not null, user_id integer
);
create table discourse.theme_fields (
    id serial primary key, theme_id integer not null, name varchar(255) not null,
    value text not null, upload_id integer, type_id integer not null default 0
);
create table discourse.theme_settings (
    id bigserial primary key, name varchar(255) not null, data_type integer not null, value text,
    theme_id integer not null
);
create table discourse.theme_svg_sprites (
    id bigserial primary key, theme_id integer not null,
    upload_id integer not null references discourse.uploads
);
create index on discourse.theme_svg_sprites (upload_id);
create table discourse.site_settings (
    id serial primary key, name varchar not null, data_type integer not null, value text
);
create table discourse.tags (
    id serial primary key, name varchar not null, target_tag_id integer
);
create table discourse.user_custom_fields (
    id serial primary key, user_id integer not null, name varchar(256) not null, value text
);
create table discourse.chat_uploads (
    id bigserial primary key, chat_message_id integer not null,
    upload_id integer references discourse.uploads
);
create index on discourse.chat_uploads (upload_id);
create table discourse.chat_drafts (
    id bigserial primary key, user_id integer not null, data text not null
);
create table discourse.external_upload_stubs (
    id bigserial primary key, key varchar not null unique, original_filename varchar not null,
    status integer not null default 1, external_upload_identifier varchar
);
