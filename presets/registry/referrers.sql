-- Referrers: manifests that are about another one, their subject, and how pushes of the two meet.

-- The table is empty, but for what others have left for vacuum to clean: not to be read through.
create function _await_pushes(r repositories, digests bytea[])
    returns void
    language plpgsql
    volatile
    set enable_seqscan = off
as $$
declare
    met bytea;
begin
    for met in select distinct d from unnest(digests) as d where d is not null order by d loop
        insert into registry.pushes (repository_id, digest) values (r.id, met)
        on conflict do nothing;
        delete from registry.pushes as p where p.repository_id = r.id and p.digest = met;
    end loop;
end;
$$;

comment on function _await_pushes(repositories, bytea[]) is
    'Waits for others who push one of these manifests, or one that is about it, and lets those '
    'wait who come later.';


-- Two that are about something and keep something could close a circle together: one by one.
create function _await_relatives(r repositories, document json, digest bytea, subject bytea)
    returns void
    language plpgsql
    volatile
as $$
begin
    perform registry._await_pushes(r, array[digest, subject]);
    if subject is not null and (
        json_array_length(registry._listed(document, 'manifests')) > 0
        or exists (
            select from registry.manifests as m
            where (m.namespace_id, m.repository_id, m.subject_digest)
                = (r.namespace_id, r.id, _await_relatives.digest)
        )
    ) then
        -- After every digest.
        perform registry._await_pushes(r, array[decode('ff', 'hex')]);
    end if;
end;
$$;

comment on function _await_relatives(repositories, json, bytea, bytea) is
    'Waits for others who push this manifest, its subject or its referrers.';


-- A subject keeps its referrers, and a list its children. One that keeps its own subject, directly
-- or by way of others, would be kept by it in turn, and the two would never be collected.
create function _refuse_circle(r repositories, subject bigint, kept bigint[])
    returns void
    language plpgsql
    volatile
as $$
declare
    seen bigint;
    closed boolean;
begin
    with recursive reached(id) as (
        select unnest(kept)
        union
        select k.id
        from reached as f
        cross join lateral (
            select l.child_id from registry.manifest_references as l
            where (l.namespace_id, l.repository_id, l.parent_id) = (r.namespace_id, r.id, f.id)
            union all
            select o.manifest_id from registry.referrers as o
            where (o.namespace_id, o.repository_id, o.subject_id) = (r.namespace_id, r.id, f.id)
        ) as k(id)
    )
    select count(*), bool_or(c.id = subject) into seen, closed
    from (select f.id from reached as f limit 10001) as c;
    if closed or seen > 10000 then
        perform registry._refuse_manifest('its subject is among what it lists or what is about it, '
            'or these are more than 10,000');
    end if;
end;
$$;

comment on function _refuse_circle(repositories, bigint, bigint[]) is
    'Raises ZR006 for a manifest whose subject is kept by what it keeps itself.';


-- In the order of their digests, so that a page begins where the last one ended, whatever was
-- pushed or deleted between the two.
create function list_referrers(
    repository text, subject text, kind text default null, n integer default null,
    last text default null
)
    returns table (
        digest text, media_type text, artifact_type text, size bigint, annotations jsonb
    )
    language plpgsql
    stable
as $$
declare
    r registry.repositories := registry.find_repository(repository);
    key bytea := registry.digest_bytes(subject);
    seen bytea := case when last is not null then registry.digest_bytes(last) end;
begin
    return query
        select registry.digest_text(m.digest), m.media_type, m.artifact_type,
            octet_length(m.payload)::bigint, registry._annotations(m.payload)
        from registry.manifests as m
        where (m.namespace_id, m.repository_id, m.subject_digest) = (r.namespace_id, r.id, key)
            and (kind is null or m.artifact_type = kind)
            and (seen is null or m.digest > seen)
        order by m.digest
        limit case when n < 0 then 0 else n end;
end;
$$;

comment on function list_referrers(text, text, text, integer, text) is
    'The manifests that are about another one, which need not be there; those of a kind, or all: '
    'the first n that come after the last one seen.';
