-- Judging: what the rules say of each tag. The bodies are resolved when they are created and become
-- part of the caller's plan, which therefore knows how many tags there are. Where it does not, as
-- nobody can know what a pattern matches, it must not matter: everything is looked up by an index,
-- or in one value, or joined in a way that cannot be a nested loop.

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
        n bigint, place bigint, namespace_id bigint, repository_id bigint, path text, name text,
        manifest_id bigint, digest bytea, pushed_at timestamptz, pulled_at timestamptz,
        is_about boolean, has_subject boolean, holder text
    )
    language sql
    stable
begin atomic
    with held as materialized (
        select jsonb_object_agg(p.collection || p.key, p.holder order by p.holder desc) as holders
        from gc.pins as p
        where p.collection in ('tag', 'manifest') and p.until > clock_timestamp()
    )
    select row_number() over (), r.place, t.namespace_id, t.repository_id, r.path, t.name,
        t.manifest_id, m.digest, t.updated_at, greatest(t.updated_at, p.pulled_at),
        a.digest is not null, a.digest is not null and exists (
            select from manifests as o
            where (o.namespace_id, o.repository_id, o.digest)
                = (t.namespace_id, t.repository_id, a.digest)
        ), coalesce(
            (select h.holders from held as h)
                ->> concat('manifest(', t.namespace_id, ',', t.repository_id, ',', m.id, ')'),
            (select h.holders from held as h)
                ->> concat('tag(', t.namespace_id, ',', t.repository_id, ',', t.name, ')')
        )
    from unnest(scope) with ordinality
        as r(namespace_id, id, path, state, created_at, unfinished, place)
    join tags as t on (t.namespace_id, t.repository_id) = (r.namespace_id, r.id)
    join manifests as m on (m.namespace_id, m.repository_id, m.id)
        = (t.namespace_id, t.repository_id, t.manifest_id)
    left join pulls as p on (p.namespace_id, p.repository_id, p.name)
        = (t.namespace_id, t.repository_id, t.name)
    cross join lateral (select _subject_of(t.name, m.subject_digest)) as a(digest);
end;

comment on function _tag_facts(repositories[]) is
    'All that rules ask about the tags of these repositories; a number for each, and the place of '
    'its repository among these.';


-- A name is compared with a pattern once for a repository, not once for each of its tags.
create function _rules(scope repositories[])
    returns table (
        id bigint, action text, newest integer, within interval, by text, tags text,
        tag_regexp text, is_for boolean[]
    )
    language sql
    stable
begin atomic
    select r.id, r.action, r.newest, r.within, r.by, r.tags, r.tag_regexp, array(
            select s.path ~ r.repository_regexp
            from unnest(scope) with ordinality
                as s(namespace_id, id, path, state, created_at, unfinished, place)
            order by s.place
        )
    from retention as r
    where r.enabled and r.action in ('keep', 'delete', 'immutable');
end;

comment on function _rules(repositories[]) is
    'The rules about tags, and for which of these repositories each is, by their places.';


-- Rule by rule, each over all tags: PostgreSQL remembers only a few regular expressions at a time.
-- What is about another manifest takes no place among the newest. Null: a rule does not ask that.
-- Every opinion is about a tag of these; a full join is never a nested loop.
create function _opinions(scope repositories[], at timestamptz)
    returns table (
        namespace_id bigint, repository_id bigint, path text, name text, manifest_id bigint,
        digest bytea, pushed_at timestamptz, pulled_at timestamptz, has_subject boolean,
        holder text, fixed_by bigint, kept_by bigint, deleted_by bigint
    )
    language sql
    stable
begin atomic
    with facts as materialized (
        select * from _tag_facts(scope)
    ),
    matched as (
        select f.n, r.id as rule, r.action, f.counted_at > at - r.within as is_recent,
            case when r.newest is not null then not f.is_about and r.newest >= row_number() over (
                partition by r.id, f.place, f.is_about order by f.counted_at desc, f.name
            ) end as is_newest
        from _rules(scope) as r
        cross join lateral (
            select f.*, case r.by when 'pulled' then f.pulled_at else f.pushed_at end as counted_at
            from facts as f
            where r.is_for[f.place] and (r.tags = '**' or f.name ~ r.tag_regexp)
            offset 0
        ) as f
    ),
    opinions as (
        select m.n, min(m.rule) filter (where m.action = 'immutable') as fixed_by,
            min(m.rule) filter (where m.action = 'keep'
                and m.is_newest is not false and m.is_recent is not false) as kept_by,
            min(m.rule) filter (where m.action = 'delete'
                and m.is_newest is not true and m.is_recent is not true) as deleted_by
        from matched as m
        group by m.n
    )
    select f.namespace_id, f.repository_id, f.path, f.name, f.manifest_id, f.digest, f.pushed_at,
        f.pulled_at, f.has_subject, f.holder, o.fixed_by, o.kept_by, o.deleted_by
    from facts as f full join opinions as o on o.n = f.n;
end;

comment on function _opinions(repositories[], timestamptz) is
    'Each tag with the first rule that makes it immutable, keeps or deletes it.';


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
    select o.namespace_id, o.repository_id, o.path, o.name, o.manifest_id, o.digest, o.pushed_at,
        o.pulled_at, j.is_kept, j.rule, j.reason
    from _opinions(scope, at) as o
    cross join lateral (
        select true, null::bigint, 'pinned by ' || o.holder where o.holder is not null
        union all
        select true, null, 'its subject is there' where o.has_subject
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
