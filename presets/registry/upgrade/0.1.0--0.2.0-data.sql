-- From 0.1.0 to 0.2.0: what can be done only with the new tables. It may be run again.

do $$
declare
    command text;
begin
    if to_regclass('links_put_aside') is not null then
        insert into repository_blobs (namespace_id, repository_id, digest, created_at)
        select l.namespace_id, l.repository_id, l.digest, l.created_at from links_put_aside as l;
        drop table links_put_aside;
        for command in
            select r ->> 'command'
            from jsonb_array_elements(current_setting('blobgc.link_rights')::jsonb) as r
        loop
            execute command;
        end loop;
    end if;
end;
$$;

-- Nobody can have pushed a manifest without links; but who writes to the tables can.
do $$
begin
    if not exists (
        select from pg_constraint as k
        where k.conrelid = 'layers'::regclass and k.conname = 'layers_link_fkey'
    ) then
        insert into repository_blobs (namespace_id, repository_id, digest)
        select l.namespace_id, l.repository_id, l.digest from layers as l
        union
        select m.namespace_id, m.repository_id, m.configuration_blob_digest from manifests as m
        where m.configuration_blob_digest is not null
        on conflict do nothing;
        alter table manifests add constraint manifests_configuration_fkey
            foreign key (namespace_id, repository_id, configuration_blob_digest)
            references repository_blobs on delete restrict;
        alter table layers add constraint layers_link_fkey
            foreign key (namespace_id, repository_id, digest)
            references repository_blobs on delete restrict;
    end if;
end;
$$;
