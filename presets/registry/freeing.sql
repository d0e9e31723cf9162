-- Freeing: what would go if a tag, a repository or a namespace went, or all tags that the rules
-- delete. A manifest goes that nothing else keeps, and a blob that no other manifest uses. What
-- waits to be collected already keeps what it uses, as it does until then.

create type _tag_key as (
    namespace_id bigint, repository_id bigint, name text, manifest_id bigint, n bigint
);

comment on type _tag_key is 'A tag that would go, its manifest, and which of several it is.';


create type _manifest_key as (namespace_id bigint, repository_id bigint, id bigint, n bigint);

comment on type _manifest_key is 'A manifest, and the first of the tags with which it would go.';


create function _reached(doomed _tag_key[])
    returns setof _manifest_key
    language sql
    stable
begin atomic
    with recursive reached as (
        select d.namespace_id, d.repository_id, d.manifest_id as id, min(d.n) as n
        from unnest(doomed) as d
        group by d.namespace_id, d.repository_id, d.manifest_id
        union
        select f.namespace_id, f.repository_id, k.id, f.n
        from reached as f
        cross join lateral (
            select l.child_id from manifest_references as l
            where (l.namespace_id, l.repository_id, l.parent_id)
                = (f.namespace_id, f.repository_id, f.id)
            union all
            select o.manifest_id from referrers as o
            where (o.namespace_id, o.repository_id, o.subject_id)
                = (f.namespace_id, f.repository_id, f.id)
        ) as k(id)
    )
    select r.namespace_id, r.repository_id, r.id, min(r.n) from reached as r
    group by r.namespace_id, r.repository_id, r.id;
end;

comment on function _reached(_tag_key[]) is
    'The manifests of these tags, what these list, and what is about any of them.';


create function _kept_otherwise(lost _manifest_key[], doomed _tag_key[])
    returns bigint[]
    language sql
    stable
as $$
    select array(
        select l.id from unnest(lost) as l
        where exists (
            select from registry.tags as t
            where (t.namespace_id, t.repository_id, t.manifest_id)
                    = (l.namespace_id, l.repository_id, l.id)
                and (t.repository_id, t.name) not in (
                    select d.repository_id, d.name from unnest(doomed) as d
                )
        ) or exists (
            select from registry.manifest_references as p
            where (p.namespace_id, p.repository_id, p.child_id)
                    = (l.namespace_id, l.repository_id, l.id)
                and p.parent_id not in (select o.id from unnest(lost) as o)
        ) or exists (
            select from registry.referrers as p
            where (p.namespace_id, p.repository_id, p.manifest_id)
                    = (l.namespace_id, l.repository_id, l.id)
                and p.subject_id not in (select o.id from unnest(lost) as o)
        ) or '(' || l.namespace_id || ',' || l.repository_id || ',' || l.id || ')' in (
            select p.key from gc.pins as p
            where p.collection = 'manifest' and p.until > clock_timestamp()
        )
    )
$$;

comment on function _kept_otherwise(_manifest_key[], _tag_key[]) is
    'Those that another tag, a list or subject that stays, or a pin keeps.';


-- What is kept may keep others in turn.
create function _lost(doomed _tag_key[])
    returns _manifest_key[]
    language plpgsql
    stable
as $$
declare
    lost registry._manifest_key[] := array(select r from registry._reached(doomed) as r);
    kept bigint[];
begin
    loop
        kept := registry._kept_otherwise(lost, doomed);
        exit when cardinality(kept) = 0;
        lost := array(
            select l from unnest(lost) as l where l.id not in (select unnest(kept)));
    end loop;
    return lost;
end;
$$;

comment on function _lost(_tag_key[]) is 'The manifests that would go with these tags.';


create function _freed(lost _manifest_key[])
    returns table (n bigint, digest bytea, size bigint)
    language sql
    stable
as $$
    with used as materialized (
        select distinct on (u.digest) l.n, u.digest, u.size
        from unnest(lost) as l
        cross join lateral (
            select y.digest, y.size from registry.layers as y
            where (y.namespace_id, y.repository_id, y.manifest_id)
                = (l.namespace_id, l.repository_id, l.id)
            union all
            select b.digest, b.size from registry.manifests as m
            join registry.blobs as b on b.digest = m.configuration_blob_digest
            where (m.namespace_id, m.repository_id, m.id) = (l.namespace_id, l.repository_id, l.id)
        ) as u
        order by u.digest, l.n
    )
    select u.n, u.digest, u.size
    from used as u
    where not exists (
        select from registry.layers as y
        where y.digest = u.digest and y.manifest_id not in (select l.id from unnest(lost) as l)
    ) and not exists (
        select from registry.manifests as m
        where m.configuration_blob_digest = u.digest
            and m.id not in (select l.id from unnest(lost) as l)
    )
$$;

comment on function _freed(_manifest_key[]) is
    'The blobs that no other manifest uses, each with the first tag that it would go with.';


create function frees_tag(
    repository text, tag text, out manifests bigint, out blobs bigint, out bytes numeric
)
    language plpgsql
    stable
as $$
declare
    r registry.repositories := registry.find_repository(repository);
    lost registry._manifest_key[] := registry._lost(array(
        select (t.namespace_id, t.repository_id, t.name, t.manifest_id, 1)::registry._tag_key
        from registry.tags as t
        where (t.namespace_id, t.repository_id, t.name) = (r.namespace_id, r.id, tag)
    ));
begin
    manifests := cardinality(lost);
    select count(*), coalesce(sum(f.size), 0) into blobs, bytes from registry._freed(lost) as f;
end;
$$;

comment on function frees_tag(text, text) is 'What would be freed if this tag went.';


create function frees_repository(
    repository text, out manifests bigint, out blobs bigint, out bytes numeric
)
    language plpgsql
    stable
as $$
declare
    r registry.repositories := registry.find_repository(repository);
begin
    select count(*) into manifests from registry.manifests as m
    where (m.namespace_id, m.repository_id) = (r.namespace_id, r.id);
    select count(*), coalesce(sum(u.size), 0) into blobs, bytes
    from (
        select distinct o.digest, o.size from registry._used_blobs as o
        where (o.namespace_id, o.repository_id) = (r.namespace_id, r.id)
    ) as u
    where not exists (
        select from registry.layers as l
        where l.digest = u.digest and (l.namespace_id, l.repository_id) <> (r.namespace_id, r.id)
    ) and not exists (
        select from registry.manifests as m
        where m.configuration_blob_digest = u.digest
            and (m.namespace_id, m.repository_id) <> (r.namespace_id, r.id)
    );
end;
$$;

comment on function frees_repository(text) is 'What would be freed if this repository went.';


create function frees_namespace(
    namespace text, out manifests bigint, out blobs bigint, out bytes numeric
)
    language plpgsql
    stable
as $$
declare
    whose bigint := (select n.id from registry.namespaces as n where n.name = namespace);
begin
    select count(*) into manifests from registry.manifests as m where m.namespace_id = whose;
    select count(*), coalesce(sum(u.size), 0) into blobs, bytes
    from (
        select distinct o.digest, o.size from registry._used_blobs as o
        where o.namespace_id = whose
    ) as u
    where not exists (
        select from registry.layers as l where l.digest = u.digest and l.namespace_id <> whose
    ) and not exists (
        select from registry.manifests as m
        where m.configuration_blob_digest = u.digest and m.namespace_id <> whose
    );
end;
$$;

comment on function frees_namespace(text) is
    'What would be freed if all repositories of this namespace went.';


create function preview_retention(
    repositories text default '**', at timestamptz default clock_timestamp()
)
    returns table (
        repository text, tag text, digest text, pushed_at timestamptz, pulled_at timestamptz,
        verdict text, rule bigint, reason text, frees numeric
    )
    language plpgsql
    stable
as $$
declare
    verdicts registry._verdict[] := array(
        select v from registry._judge(registry._active_repositories(repositories), at) as v
        order by v.path, v.is_kept, v.pushed_at, v.name
    );
begin
    return query
        with freed as materialized (
            select f.n, sum(f.size) as bytes
            from registry._freed(registry._lost(array(
                select (v.namespace_id, v.repository_id, v.name, v.manifest_id, v.n)
                    ::registry._tag_key
                from unnest(verdicts) with ordinality as v(namespace_id, repository_id, path, name,
                    manifest_id, digest, pushed_at, pulled_at, is_kept, rule, reason, n)
                where not v.is_kept
            ))) as f
            group by f.n
        )
        select v.path, v.name, registry.digest_text(v.digest), v.pushed_at, v.pulled_at,
            case when v.is_kept then 'keep' else 'delete' end, v.rule, v.reason, case
                when not v.is_kept then coalesce(f.bytes, 0)
            end
        from unnest(verdicts) with ordinality as v(namespace_id, repository_id, path, name,
            manifest_id, digest, pushed_at, pulled_at, is_kept, rule, reason, n)
        left join freed as f on f.n = v.n
        order by v.n;
end;
$$;

comment on function preview_retention(text, timestamptz) is
    'What the rules say now of each tag of the repositories that match: keep or delete, by which '
    'rule, why, and what would be freed. A blob that several tags would free together is counted '
    'with the first of them, so that the sum is right.';
