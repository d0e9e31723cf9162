-- From 0.1.0 to 0.2.0. It may be run again on what it has made.

drop function if exists _lock_referrers(repositories, bytea);
drop function if exists _require_blob(repositories, bytea);

-- It lists in pages now.
drop function if exists list_referrers(text, text, text);

-- Their arguments have other names now.
drop function if exists _link(repositories, bytea);
drop function if exists _lock_manifest(repositories, bytea);

alter table tags add column if not exists expired_by bigint;
alter table repositories
    add column if not exists unfinished boolean not null default false;

-- Manifests and layers refer to links: before, they referred to blobs themselves. The order is that
-- of operations. Where the extension is upgraded too, begin.sql has these locks.
lock table repositories, blobs, repository_blobs, manifests, layers in access exclusive mode;
do $$
begin
    if exists (
        select from pg_constraint as k
        where k.conrelid = 'layers'::regclass and k.conname = 'layers_digest_fkey'
    ) then
        alter table layers drop constraint layers_digest_fkey;
        alter table manifests drop constraint manifests_configuration_fkey;
        drop index manifests_configuration_idx;
    end if;
end;
$$;

-- Links were partitioned by namespace. They are put aside, and the table is made again; the file of
-- data brings them back.
do $$
declare
    more text := (
        select string_agg(quote_ident(a.attname), ', ') from pg_attribute as a
        where a.attrelid = 'repository_blobs'::regclass and a.attnum > 0 and not a.attisdropped
            and a.attname not in ('namespace_id', 'repository_id', 'digest', 'created_at')
    );
begin
    if pg_get_partkeydef('repository_blobs'::regclass) = 'HASH (namespace_id)' then
        if more is not null then
            raise 'repository_blobs is made again, and would lose: %', more
                using errcode = 'object_not_in_prerequisite_state',
                    hint = 'Move these columns to a table of your own.';
        end if;
        create table links_put_aside as select * from repository_blobs;
        perform set_config('blobgc.link_rights', coalesce(jsonb_agg(jsonb_build_object(
            'command', format('grant %s on repository_blobs to %s%s', a.privilege_type,
                case when a.grantee = 0 then 'public' else a.grantee::regrole::text end,
                case when a.is_grantable then ' with grant option' end))), '[]')::text, true)
        from pg_class as c
        cross join lateral aclexplode(c.relacl) as a
        where c.oid = 'repository_blobs'::regclass and a.grantee <> c.relowner;
        drop table repository_blobs;
    end if;
end;
$$;
