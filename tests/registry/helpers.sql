-- What the tests of the registry share: short ways to push, names for digests, and time that passes.
--
-- A blob is called by its content; an image by its name, which makes its configuration.

create schema test;
create table test.things (digest bytea primary key, name text not null);

create function test.digest(content text) returns text language sql immutable as
$$ select 'sha256:' || encode(sha256(convert_to(content, 'UTF8')), 'hex') $$;

create function test.call(name text, digest text) returns text language sql as $$
    insert into test.things values (registry.digest_bytes(digest), name) on conflict do nothing;
    select digest
$$;

create function test.name_of(digest bytea) returns text language sql stable as
$$ select coalesce((select t.name from test.things as t where t.digest = name_of.digest), '?') $$;

create function test.digest_of(name text) returns text language sql stable as
$$ select registry.digest_text(t.digest) from test.things as t where t.name = digest_of.name $$;

-- As a client uploads a blob; what it writes to the store is its content.
create function test.upload(repository text, content text) returns text language plpgsql as $$
begin
    perform registry.begin_blob_upload(repository, test.digest(content));
    perform registry.finish_blob_upload(repository, test.digest(content), length(content));
    return test.call(content, test.digest(content));
end;
$$;

create function test.descriptor(media_type text, digest text, size bigint) returns jsonb
    language sql immutable as
$$ select jsonb_build_object('mediaType', media_type, 'digest', digest, 'size', size) $$;

create function test.layer(content text) returns jsonb language sql immutable as $$
    select test.descriptor('application/vnd.oci.image.layer.v1.tar+gzip', test.digest(content),
        length(content))
$$;

create function test.image(name text, layers text[], subject text default null) returns jsonb
    language sql immutable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'schemaVersion', 2,
        'mediaType', 'application/vnd.oci.image.manifest.v1+json',
        'config', test.descriptor('application/vnd.oci.image.config.v1+json',
            test.digest('config of ' || name), length('config of ' || name)),
        'layers', (select coalesce(jsonb_agg(test.layer(l)), '[]') from unnest(layers) as l),
        'subject', case when subject is not null then
            test.descriptor('application/vnd.oci.image.manifest.v1+json', subject, 1) end))
$$;

create function test.list(children text[]) returns jsonb language sql immutable as $$
    select jsonb_build_object(
        'schemaVersion', 2,
        'mediaType', 'application/vnd.oci.image.index.v1+json',
        'manifests', (
            select coalesce(jsonb_agg(
                test.descriptor('application/vnd.oci.image.manifest.v1+json', c, 1)), '[]')
            from unnest(children) as c))
$$;

create function test.bytes(document jsonb) returns bytea language sql immutable as
$$ select convert_to(document::text, 'UTF8') $$;

create function test.put(
    repository text, name text, layers text[], tag text default null, subject text default null
) returns text language sql as $$
    select test.call(name, registry.put_manifest(
        repository, test.bytes(test.image(name, layers, subject)), tag))
$$;

-- Uploads what is not there, and puts the manifest; without a tag, by digest.
create function test.push(
    repository text, name text, layers text[], tag text default null, subject text default null
) returns text language plpgsql as $$
begin
    perform test.upload(repository, c) from unnest('config of ' || name || layers) as c
    where not registry.has_blob(repository, test.digest(c));
    return test.put(repository, name, layers, tag, subject);
end;
$$;

create function test.push_list(
    repository text, name text, children text[], tag text default null
) returns text language sql as $$
    select test.call(name,
        registry.put_manifest(repository, test.bytes(test.list(children)), tag))
$$;

create function test.blobs() returns setof text language sql stable as
$$ select test.name_of(b.digest) from registry.blobs as b $$;

create function test.manifests() returns setof text language sql stable as
$$ select r.path || ' ' || test.name_of(m.digest) from registry.manifests as m
   join registry.repositories as r on r.id = m.repository_id $$;

create function test.tombstones() returns setof text language sql stable as
$$ select test.name_of(t.key::bytea) from gc.tombstones as t where t.collection = 'blob' $$;

-- What is queued, and why: the latest entry of each key.
create function test.queued() returns setof text language sql stable as $$
    select distinct on (q.digest) test.name_of(q.digest) || ': ' || q.event
    from gc.blob_review_queue as q
    order by q.digest, q.entry desc
$$;

create function test.queued_manifests() returns setof text language sql stable as $$
    select distinct on (q.id)
        case when m.id is null then 'gone' else test.name_of(m.digest) end || ': ' || q.event
    from gc.manifest_review_queue as q
    left join registry.manifests as m on m.id = q.id
    order by q.id, q.entry desc
$$;

create function test.empty_queues() returns void language sql as $$
    delete from gc.blob_review_queue;
    delete from gc.manifest_review_queue;
    delete from gc.repository_review_queue;
    delete from gc.tag_review_queue;
    delete from gc.holds;
$$;

-- Everything that waits is due, and what was held is held no longer.
create function test.pass_time() returns void language sql as $$
    update gc.blob_review_queue set review_after = now();
    update gc.manifest_review_queue set review_after = now();
    update gc.repository_review_queue set review_after = now();
    update gc.tag_review_queue set review_after = now();
    update gc.holds set held_until = now() where held_until <> 'infinity';
$$;

-- Time passes until nothing more happens.
create function test.collect() returns void language plpgsql as $$
begin
    for i in 1 .. 20 loop
        perform test.pass_time();
        exit when (select sum(r.reviewed) from gc.review() as r) = 0
            and not exists (select from gc.scan_requests)
            and not exists (select from gc.collections as c where c.scanning);
    end loop;
end;
$$;

-- The SQLSTATE of what a command raises.
create function test.sqlstate_of(command text) returns text language plpgsql as $$
begin
    execute command;
    return '00000';
exception
    when others then return sqlstate;
end;
$$;

-- All that it says.
create function test.message_of(command text) returns text language plpgsql as $$
declare
    detail text;
    hint text;
begin
    execute command;
    return null;
exception
    when others then
        get stacked diagnostics detail = pg_exception_detail, hint = pg_exception_hint;
        return concat_ws(' ', sqlerrm, detail, hint);
end;
$$;

-- For tests that commit: everything as it was, but for the numbers.
create function test.forget_links() returns void language plpgsql as $$
declare
    links name;
begin
    for links in select unnest(c.links) from gc.collections as c loop
        execute format('delete from gc.%I', links);
    end loop;
end;
$$;

create function test.reset() returns void language sql as $$
    select set_config('session_replication_role', 'replica', true);
    delete from registry.pulls;
    delete from registry.tags;
    delete from registry.retention;
    delete from registry.referrers;
    delete from registry.manifest_references;
    delete from registry.layers;
    delete from registry.manifests;
    delete from registry.repository_blobs;
    delete from registry.blobs;
    delete from registry.repositories;
    delete from registry.namespaces;
    delete from test.things;
    select test.empty_queues();
    select test.forget_links();
    delete from gc.tombstones;
    delete from gc.deletion_log;
    delete from gc.totals;
    delete from gc.scan_requests;
    select set_config('session_replication_role', 'origin', true);
    insert into gc.settings (jitter, undo) values ('0', '0');
$$;
