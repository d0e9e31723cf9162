-- Completing: what a manifest needs when it is restored, beyond what its foreign keys say.
--
-- Those bring the links to its blobs back, and lock them. But what is about another manifest must
-- be known to that one, which may have been pushed since. gc.restore has this done: see
-- gc.complete.

create function _restored(keys text[])
    returns setof manifests
    language sql
    stable
as $$
    select m.*
    from unnest(keys) as k(key)
    cross join lateral string_to_array(btrim(k.key, '()'), ',') as p(part)
    join registry.manifests as m on (m.namespace_id, m.repository_id, m.id)
        = (p.part[1]::bigint, p.part[2]::bigint, p.part[3]::bigint)
$$;

comment on function _restored(text[]) is 'Manifests by their keys, as blobgc has them.';


-- As a push does, before it inserts anything: those who push one of these manifests, its subject or
-- what is about it are waited for, and who comes later waits.
create function _await_restored(keys text[])
    returns void
    language plpgsql
    volatile
as $$
declare
    w record;
begin
    for w in
        select r as repository, array_agg(d.digest) as digests
        from gc.trash_rows as k
        cross join lateral (
            values ((k.content ->> 'digest')::bytea), ((k.content ->> 'subject_digest')::bytea),
                -- After every digest: for one that may close a circle.
                (case when k.content ->> 'subject_digest' is not null then decode('ff', 'hex') end)
        ) as d(digest)
        join registry.repositories as r on (r.namespace_id, r.id)
            = ((k.content ->> 'namespace_id')::bigint, (k.content ->> 'repository_id')::bigint)
        where k.relation = 'registry.manifests'::regclass and k.key = any (keys)
        group by r.namespace_id, r.id
        order by r.id
    loop
        perform registry._await_pushes(w.repository, w.digests);
    end loop;
end;
$$;

comment on function _await_restored(text[]) is
    'Waits for others who push what meets these manifests, and lets those wait who come later.';


create function _meet_again(keys text[])
    returns void
    language plpgsql
    volatile
as $$
declare
    f record;
begin
    for f in
        with met as (
            insert into registry.referrers (namespace_id, repository_id, subject_id, manifest_id)
            select m.namespace_id, m.repository_id, s.id, m.id
            from registry._restored(keys) as m
            join registry.manifests as s on (s.namespace_id, s.repository_id, s.digest)
                = (m.namespace_id, m.repository_id, m.subject_digest)
            union
            select s.namespace_id, s.repository_id, s.id, m.id
            from registry._restored(keys) as s
            join registry.manifests as m on (m.namespace_id, m.repository_id, m.subject_digest)
                = (s.namespace_id, s.repository_id, s.digest)
            on conflict do nothing
            returning *
        )
        select r as repository, met.subject_id, met.manifest_id
        from met
        join registry.repositories as r
            on (r.namespace_id, r.id) = (met.namespace_id, met.repository_id)
    loop
        perform registry._refuse_circle(f.repository, f.subject_id, array[f.manifest_id]);
    end loop;
end;
$$;

comment on function _meet_again(text[]) is
    'Makes these manifests known to those that they are about, and the other way round; raises '
    'ZR006 if they would keep each other for ever.';


create function _complete_manifests(keys text[], are_back boolean)
    returns void
    language plpgsql
    volatile
as $$
begin
    if are_back then
        perform registry._meet_again(keys);
    else
        perform registry._await_restored(keys);
    end if;
end;
$$;

comment on function _complete_manifests(text[], boolean) is
    'What gc.restore calls for manifests: waits for pushes that meet them, and adds what they need '
    'when they are back.';
