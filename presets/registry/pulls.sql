-- Pulls: when tags were last pulled. A server gathers pulls and says them a few seconds later, many
-- at once; a tag is written at most once an hour. What is locked at that moment is left out.

create table scanners (
    client text not null
        constraint scanners_pkey primary key
        constraint scanners_client_valid check (_is_pattern(client)),
    note text,
    client_regexp text not null generated always as (_regexp(client)) stored
);

comment on table scanners is 'Clients whose pulls do not count, such as scanners and mirrors.';
comment on column scanners.client is
    'A pattern for what the client calls itself (User-Agent): trivy/**';
comment on column scanners.note is 'Which one that is.';
comment on column scanners.client_regexp is 'The pattern, as a regular expression.';


create function _pulled_tags(repositories text[], refs text[], clients text[])
    returns table (namespace_id bigint, repository_id bigint, name text)
    language sql
    stable
as $$
    with asked as (
        select distinct r.namespace_id, r.id, u.ref
        from unnest(repositories, refs, clients) as u(path, ref, client)
        join registry.repositories as r on r.path = u.path and r.state = 'active'
        where not exists (
            select from registry.scanners as s where left(u.client, 300) ~ s.client_regexp
        )
    )
    select a.namespace_id, a.id, a.ref from asked as a
    where a.ref not like '%:%'
    union
    select t.namespace_id, t.repository_id, t.name
    from asked as a
    join registry.manifests as m on (m.namespace_id, m.repository_id) = (a.namespace_id, a.id)
        and m.digest = case
            when registry._is_digest_text(a.ref) then registry.digest_bytes(a.ref)
        end
    join registry.tags as t on (t.namespace_id, t.repository_id, t.manifest_id)
        = (m.namespace_id, m.repository_id, m.id)
$$;

comment on function _pulled_tags(text[], text[], text[]) is
    'The tags that pulls are about: the tag itself, or those of the digest.';


-- The order is the same for all, so that two that write the same tags wait in one direction only.
create function touch(
    repositories text[], refs text[], clients text[] default null,
    pulled_at timestamptz default now()
)
    returns integer
    language sql
    volatile
as $$
    with stale as (
        select t.namespace_id, t.repository_id, t.name
        from registry._pulled_tags(repositories, refs, clients) as w
        join registry.tags as t on (t.namespace_id, t.repository_id, t.name)
            = (w.namespace_id, w.repository_id, w.name)
        left join registry.pulls as p on (p.namespace_id, p.repository_id, p.name)
            = (w.namespace_id, w.repository_id, w.name)
        where p.pulled_at is null or p.pulled_at <= touch.pulled_at - interval '1 hour'
        order by t.namespace_id, t.repository_id, t.name
        for key share of t skip locked
    ),
    written as (
        insert into registry.pulls as p (namespace_id, repository_id, name, pulled_at)
        select s.namespace_id, s.repository_id, s.name, touch.pulled_at from stale as s
        on conflict on constraint pulls_pkey do update
        set pulled_at = excluded.pulled_at
        where p.pulled_at < excluded.pulled_at
        returning 1
    )
    select count(*)::integer from written
$$;

comment on function touch(text[], text[], text[], timestamptz) is
    'Says what was pulled: element by element a repository, a tag or digest, and the client, which '
    'registry.scanners may leave out. Returns how many tags were written: those that were not in '
    'the last hour. What is unknown or locked is left out.';
