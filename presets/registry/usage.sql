-- Usage: how much of the store each repository and each namespace uses. Asked for one of them, the
-- views read only that one's rows.

create view _used_blobs as
select l.namespace_id, l.repository_id, l.digest, l.size from layers as l
union all
select m.namespace_id, m.repository_id, b.digest, b.size
from manifests as m
join blobs as b on b.digest = m.configuration_blob_digest;

comment on view _used_blobs is 'The layers and configurations of manifests.';
comment on column _used_blobs.namespace_id is 'Whose repository.';
comment on column _used_blobs.repository_id is 'The repository.';
comment on column _used_blobs.digest is 'The blob, once for each use.';
comment on column _used_blobs.size is 'How big it is.';


create view repository_usage as
select r.path as repository, m.manifests, m.logical_bytes, b.deduplicated_bytes
from repositories as r
cross join lateral (
    select count(*), coalesce(sum(m.total_size), 0) from manifests as m
    where (m.namespace_id, m.repository_id) = (r.namespace_id, r.id)
) as m(manifests, logical_bytes)
cross join lateral (
    select coalesce(sum(u.size), 0) from (
        select distinct u.digest, u.size from _used_blobs as u
        where (u.namespace_id, u.repository_id) = (r.namespace_id, r.id)
    ) as u
) as b(deduplicated_bytes)
where r.state = 'active';

comment on view repository_usage is 'How much of the store each active repository uses.';
comment on column repository_usage.repository is 'The repository.';
comment on column repository_usage.manifests is 'How many manifests it has.';
comment on column repository_usage.logical_bytes is
    'What its manifests add up to, each with all its layers.';
comment on column repository_usage.deduplicated_bytes is
    'What it would take in a store of its own: each blob once.';


create view namespace_usage as
select n.name as namespace, r.repositories, m.manifests, m.logical_bytes, b.deduplicated_bytes
from namespaces as n
cross join lateral (
    select count(*), coalesce(array_agg(r.id), '{}') from repositories as r
    where r.namespace_id = n.id and r.state = 'active'
) as r(repositories, ids)
cross join lateral (
    select count(*), coalesce(sum(m.total_size), 0) from manifests as m
    where m.namespace_id = n.id and m.repository_id = any (r.ids)
) as m(manifests, logical_bytes)
cross join lateral (
    select coalesce(sum(u.size), 0) from (
        select distinct u.digest, u.size from _used_blobs as u
        where u.namespace_id = n.id and u.repository_id = any (r.ids)
    ) as u
) as b(deduplicated_bytes);

comment on view namespace_usage is 'How much of the store each namespace uses.';
comment on column namespace_usage.namespace is 'The namespace.';
comment on column namespace_usage.repositories is 'How many active repositories it has.';
comment on column namespace_usage.manifests is 'How many manifests are in them.';
comment on column namespace_usage.logical_bytes is
    'What its manifests add up to, each with all its layers.';
comment on column namespace_usage.deduplicated_bytes is
    'What it would take in a store of its own: each blob once.';
