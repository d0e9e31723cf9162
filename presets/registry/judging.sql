-- Judging: what the rules say of each tag. The bodies are resolved when they are created and become
-- part of the caller's plan, which therefore knows how many tags there are.

-- cosign writes what a tag is about into its name: sha256-….sig
create function _subject_of(name text, subject_digest bytea)
    returns bytea
    language sql
    immutable
    parallel safe
    return coalesce(subject_digest, case when name ~ '^sha256-[0-9a-f]{64}([.][a-z]+)?$'
        then _digest('sha256', decode(substr(name, 8, 64), 'hex')) end);

comment on function _subject_of(text, bytea) is
    'The digest of what a tag is about, as its manifest or its name says; null: about nothing.';


create function _tag_facts(scope repositories[])
    returns table (
        namespace_id bigint, repository_id bigint, path text, name text, manifest_id bigint,
        digest bytea, pushed_at timestamptz, pulled_at timestamptz, is_about boolean,
        has_subject boolean, holder text
    )
    language sql
    stable
begin atomic
    with held as materialized (
        select p.collection, p.key, min(p.holder) as holder from gc.pins as p
        where p.collection in ('tag', 'manifest') and p.until > clock_timestamp()
        group by p.collection, p.key
    )
    select t.namespace_id, t.repository_id, r.path, t.name, t.manifest_id, m.digest, t.updated_at,
        greatest(t.updated_at, p.pulled_at), _subject_of(t.name, m.subject_digest) is not null,
        o.id is not null, coalesce(g.holder, h.holder)
    from unnest(scope) as r
    join tags as t on (t.namespace_id, t.repository_id) = (r.namespace_id, r.id)
    join manifests as m on (m.namespace_id, m.repository_id, m.id)
        = (t.namespace_id, t.repository_id, t.manifest_id)
    left join pulls as p on (p.namespace_id, p.repository_id, p.name)
        = (t.namespace_id, t.repository_id, t.name)
    left join manifests as o on (o.namespace_id, o.repository_id, o.digest)
        = (t.namespace_id, t.repository_id, _subject_of(t.name, m.subject_digest))
    left join held as g on g.collection = 'manifest'
        and g.key = '(' || t.namespace_id || ',' || t.repository_id || ',' || t.manifest_id || ')'
    left join held as h on h.collection = 'tag'
        and h.key = '(' || t.namespace_id || ',' || t.repository_id || ',' || t.name || ')';
end;

comment on function _tag_facts(repositories[]) is
    'All that rules ask about the tags of these repositories.';


-- Rule by rule, each over all tags: PostgreSQL remembers only a few regular expressions at a time.
-- What is about another manifest takes no place among the newest.
create function _opinions(scope repositories[], at timestamptz)
    returns table (
        namespace_id bigint, repository_id bigint, name text, fixed_by bigint, kept_by bigint,
        deleted_by bigint
    )
    language sql
    stable
begin atomic
    with facts as materialized (
        select * from _tag_facts(scope)
    ),
    matched as (
        select f.namespace_id, f.repository_id, f.name, r.id as rule, r.action,
            r.newest is null or not f.is_about and r.newest >= row_number() over (
                partition by r.id, f.namespace_id, f.repository_id, f.is_about
                order by f.counted_at desc, f.name
            ) as is_newest,
            r.within is null or f.counted_at > at - r.within as is_recent,
            r.newest is null as any_number, r.within is null as any_time
        from retention as r
        cross join lateral (
            select f.*, case r.by when 'pulled' then f.pulled_at else f.pushed_at end as counted_at
            from facts as f
            where (r.repositories = '**' or f.path ~ r.repository_regexp)
                and (r.tags = '**' or f.name ~ r.tag_regexp)
            offset 0
        ) as f
        where r.enabled and r.action in ('keep', 'delete', 'immutable')
    )
    select m.namespace_id, m.repository_id, m.name,
        min(m.rule) filter (where m.action = 'immutable'),
        min(m.rule) filter (where m.action = 'keep' and m.is_newest and m.is_recent),
        min(m.rule) filter (where m.action = 'delete' and (m.any_number or not m.is_newest)
            and (m.any_time or not m.is_recent))
    from matched as m
    group by m.namespace_id, m.repository_id, m.name;
end;

comment on function _opinions(repositories[], timestamptz) is
    'Of each tag that a rule is for, the first rule that makes it immutable, keeps or deletes it.';


create type _verdict as (
    namespace_id bigint, repository_id bigint, path text, name text, manifest_id bigint,
    digest bytea, pushed_at timestamptz, pulled_at timestamptz, is_kept boolean, rule bigint,
    reason text
);

comment on type _verdict is 'What happens to a tag, by which rule, and why.';


create function _judge(scope repositories[], at timestamptz)
    returns setof _verdict
    language sql
    stable
begin atomic
    select f.namespace_id, f.repository_id, f.path, f.name, f.manifest_id, f.digest, f.pushed_at,
        f.pulled_at, j.is_kept, j.rule, j.reason
    from _tag_facts(scope) as f
    left join _opinions(scope, at) as o on (o.namespace_id, o.repository_id, o.name)
        = (f.namespace_id, f.repository_id, f.name)
    cross join lateral (
        select true, null::bigint, 'pinned by ' || f.holder where f.holder is not null
        union all
        select true, null, 'its subject is there' where f.has_subject
        union all
        select true, o.fixed_by, 'immutable' where o.fixed_by is not null
        union all
        select true, o.kept_by, 'kept by a rule' where o.kept_by is not null
        union all
        select false, o.deleted_by, 'deleted by a rule' where o.deleted_by is not null
        union all
        select true, null, 'no rule deletes it'
        limit 1
    ) as j(is_kept, rule, reason);
end;

comment on function _judge(repositories[], timestamptz) is
    'What happens to each tag of these repositories, and by which rule. Keeping beats deleting.';


create function _active_repositories(pattern text)
    returns repositories[]
    language plpgsql
    stable
as $$
begin
    perform registry._is_pattern(pattern);
    return array(
        select r from registry.repositories as r
        where r.state = 'active' and r.path ~ registry._regexp(pattern)
    );
end;
$$;

comment on function _active_repositories(text) is
    'The active repositories that match a pattern.';
