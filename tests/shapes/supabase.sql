-- The shape of Supabase's storage: tables of a role of their own, with row security, and a trigger
-- that refuses deletes unless a setting allows them. The tables in "app" are an application's.
create schema storage authorization supabase_storage_admin;
set role supabase_storage_admin;

create table storage.buckets (
    id text primary key,
    name text not null unique,
    owner uuid,
    created_at timestamptz default now(),
    updated_at timestamptz default now(),
    public boolean default false,
    file_size_limit bigint,
    allowed_mime_types text[],
    owner_id text
);
create table storage.objects (
    id uuid primary key default gen_random_uuid(),
    bucket_id text references storage.buckets,
    name text,
    owner uuid,
    created_at timestamptz default now(),
    updated_at timestamptz default now(),
    last_accessed_at timestamptz default now(),
    metadata jsonb,
    path_tokens text[] generated always as (string_to_array(name, '/')) stored,
    version text,
    owner_id text,
    user_metadata jsonb
);
create unique index bucketid_objname on storage.objects (bucket_id, name);
create index name_prefix_search on storage.objects (name text_pattern_ops);
alter table storage.buckets enable row level security;
alter table storage.objects enable row level security;

create function storage.protect_delete() returns trigger language plpgsql as $$
begin
    if coalesce(current_setting('storage.allow_delete_query', true), '') <> 'true' then
        raise insufficient_privilege using message = 'rows of the storage cannot be deleted';
    end if;
    return null;
end;
$$;
create trigger protect_objects_delete before delete on storage.objects
    for each statement execute function storage.protect_delete();
create trigger protect_buckets_delete before delete on storage.buckets
    for each statement execute function storage.protect_delete();
reset role;

create schema app;
create table app.profiles (
    id uuid primary key default gen_random_uuid(), username text, avatar_path text
);
create table app.messages (
    id bigint generated always as identity primary key, body text, attachment_ids uuid[]
);
create table app.documents (
    id bigint generated always as identity primary key, title text, object_id uuid
);
alter table app.profiles enable row level security;
