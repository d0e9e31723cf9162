-- A peer: online garbage collection of a registry with one queue row a key, written by us from the
-- description of GitLab's registry, on the tables that gc.create_registry makes.
--
-- Triggers run for each row. A key stands in its queue once: what happens again puts its review off
-- by an upsert. Tables of links tell which blobs are used, so that nobody looks into partitions. An
-- entry of the manifest queue and a link go with their manifest or layer, by their foreign key.

create schema peer;

create table peer.delays (event text primary key, delay interval not null);

create table peer.blob_queue (
    digest bytea primary key,
    due_at timestamptz not null default now() + interval '1 day',
    failures integer not null default 0
);
create index on peer.blob_queue (due_at);

create table peer.manifest_queue (
    namespace_id bigint,
    repository_id bigint,
    manifest_id bigint,
    due_at timestamptz not null default now() + interval '1 day',
    failures integer not null default 0,
    primary key (namespace_id, repository_id, manifest_id),
    foreign key (namespace_id, repository_id, manifest_id)
        references registry.manifests on delete cascade
);
create index on peer.manifest_queue (due_at);

create table peer.configuration_links (
    digest bytea,
    namespace_id bigint,
    repository_id bigint,
    manifest_id bigint,
    primary key (digest, namespace_id, repository_id, manifest_id),
    foreign key (namespace_id, repository_id, manifest_id)
        references registry.manifests on delete cascade
);
create index on peer.configuration_links (namespace_id, repository_id, manifest_id);

create table peer.layer_links (
    digest bytea,
    namespace_id bigint,
    repository_id bigint,
    manifest_id bigint,
    position integer,
    primary key (digest, namespace_id, repository_id, manifest_id, position),
    foreign key (namespace_id, repository_id, manifest_id, position)
        references registry.layers on delete cascade
);
create index on peer.layer_links (namespace_id, repository_id, manifest_id, position);


create function peer.due_at(happened text)
    returns timestamptz
    language plpgsql
    volatile
as $$
declare
    delay interval;
begin
    select d.delay into delay from peer.delays as d where d.event = happened;
    return now() + coalesce(delay, '1 day');
end;
$$;


create function peer.blob_inserted()
    returns trigger
    language plpgsql
as $$
begin
    insert into peer.blob_queue (digest, due_at) values (new.digest, peer.due_at('blob_upload'))
    on conflict (digest) do update set due_at = peer.due_at('blob_upload');
    return null;
end;
$$;

create trigger blob_inserted
    after insert on registry.blobs
    for each row execute function peer.blob_inserted();


create function peer.configuration_linked()
    returns trigger
    language plpgsql
as $$
begin
    if new.configuration_blob_digest is not null then
        insert into peer.configuration_links (digest, namespace_id, repository_id, manifest_id)
        values (new.configuration_blob_digest, new.namespace_id, new.repository_id, new.id)
        on conflict do nothing;
    end if;
    return null;
end;
$$;

create trigger configuration_linked
    after insert on registry.manifests
    for each row execute function peer.configuration_linked();


create function peer.layer_linked()
    returns trigger
    language plpgsql
as $$
begin
    insert into peer.layer_links (digest, namespace_id, repository_id, manifest_id, position)
    values (new.digest, new.namespace_id, new.repository_id, new.manifest_id, new.position)
    on conflict do nothing;
    return null;
end;
$$;

create trigger layer_linked
    after insert on registry.layers
    for each row execute function peer.layer_linked();


create function peer.manifest_inserted()
    returns trigger
    language plpgsql
as $$
begin
    insert into peer.manifest_queue (namespace_id, repository_id, manifest_id, due_at)
    values (new.namespace_id, new.repository_id, new.id, peer.due_at('manifest_upload'))
    on conflict (namespace_id, repository_id, manifest_id)
        do update set due_at = peer.due_at('manifest_upload');
    return null;
end;
$$;

create trigger manifest_inserted
    after insert on registry.manifests
    for each row execute function peer.manifest_inserted();


create function peer.manifest_deleted()
    returns trigger
    language plpgsql
as $$
begin
    if old.configuration_blob_digest is not null then
        insert into peer.blob_queue (digest, due_at)
        values (old.configuration_blob_digest, peer.due_at('manifest_delete'))
        on conflict (digest) do update set due_at = peer.due_at('manifest_delete');
    end if;
    return null;
end;
$$;

create trigger manifest_deleted
    after delete on registry.manifests
    for each row execute function peer.manifest_deleted();


create function peer.layer_deleted()
    returns trigger
    language plpgsql
as $$
begin
    insert into peer.blob_queue (digest, due_at) values (old.digest, peer.due_at('layer_delete'))
    on conflict (digest) do update set due_at = peer.due_at('layer_delete');
    return null;
end;
$$;

create trigger layer_deleted
    after delete on registry.layers
    for each row execute function peer.layer_deleted();


create function peer.list_entry_deleted()
    returns trigger
    language plpgsql
as $$
begin
    insert into peer.manifest_queue (namespace_id, repository_id, manifest_id, due_at)
    values (old.namespace_id, old.repository_id, old.child_id, peer.due_at('manifest_list_delete'))
    on conflict (namespace_id, repository_id, manifest_id)
        do update set due_at = peer.due_at('manifest_list_delete');
    return null;
end;
$$;

create trigger list_entry_deleted
    after delete on registry.manifest_references
    for each row execute function peer.list_entry_deleted();


-- A tag that goes with its manifest leaves nothing to review.
create function peer.tag_deleted()
    returns trigger
    language plpgsql
as $$
begin
    if exists (
        select from registry.manifests as m
        where m.namespace_id = old.namespace_id and m.repository_id = old.repository_id
            and m.id = old.manifest_id
    ) then
        insert into peer.manifest_queue (namespace_id, repository_id, manifest_id, due_at)
        values (old.namespace_id, old.repository_id, old.manifest_id, peer.due_at('tag_delete'))
        on conflict (namespace_id, repository_id, manifest_id)
            do update set due_at = peer.due_at('tag_delete');
    end if;
    return null;
end;
$$;

create trigger tag_deleted
    after delete on registry.tags
    for each row execute function peer.tag_deleted();


create function peer.tag_switched()
    returns trigger
    language plpgsql
as $$
begin
    insert into peer.manifest_queue (namespace_id, repository_id, manifest_id, due_at)
    values (old.namespace_id, old.repository_id, old.manifest_id, peer.due_at('tag_switch'))
    on conflict (namespace_id, repository_id, manifest_id)
        do update set due_at = peer.due_at('tag_switch');
    return null;
end;
$$;

create trigger tag_switched
    after update of manifest_id on registry.tags
    for each row execute function peer.tag_switched();
