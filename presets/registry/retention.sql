-- Retention: which tags go, and how long untagged manifests stay, as rules that are rows.
--
-- A rule is for the tags, in the repositories, that match its patterns. What a rule of action keep
-- or immutable holds, no other rule deletes. A tag that no rule is for stays, and so does one that
-- is pinned, or whose manifest is, and one that is about another manifest (a signature), as long as
-- that one is there.

create table retention (
    id bigint generated always as identity
        constraint retention_pkey primary key,
    action text not null
        constraint retention_action_known
            check (action in ('keep', 'delete', 'immutable', 'untagged')),
    repositories text not null default '**'
        constraint retention_repositories_valid check (_is_pattern(repositories)),
    tags text not null default '**'
        constraint retention_tags_valid check (_is_pattern(tags)),
    newest integer
        constraint retention_newest_not_negative check (newest >= 0),
    within interval
        constraint retention_within_not_negative check (within >= '0')
        constraint retention_within_not_endless check (within <= '10 years'),
    by text not null default 'pushed'
        constraint retention_by_known check (by in ('pushed', 'pulled')),
    enabled boolean not null default true,
    note text,
    repository_regexp text not null generated always as (_regexp(repositories)) stored,
    tag_regexp text not null generated always as (_regexp(tags)) stored,
    constraint retention_immutable_always
        check (action <> 'immutable' or newest is null and within is null),
    constraint retention_untagged_within
        check (action <> 'untagged' or within is not null and newest is null and tags = '**')
);

comment on table retention is 'Rules: which tags are kept and which are deleted, by repository.';
comment on column retention.id is 'By this, registry.preview_retention names it.';
comment on column retention.action is
    'keep: those that meet newest and within stay; delete: all others of those that match go; '
    'immutable: none is switched, removed or deleted; untagged: manifests without a tag stay so '
    'long after the last event about them.';
comment on column retention.repositories is 'The repositories that it is for, as a pattern.';
comment on column retention.tags is 'The tags that it is for, as a pattern.';
comment on column retention.newest is
    'So many of the tags that match, in each repository; null: their number does not matter.';
comment on column retention.within is
    'Those pushed or pulled so long ago or later; null: the time does not matter.';
comment on column retention.by is
    'Whether newest and within count from the push or from the last pull; what was not pulled '
    'since it was pushed counts from its push.';
comment on column retention.enabled is 'False: it does nothing.';
comment on column retention.note is 'Why it is there, for those who wonder later.';
comment on column retention.repository_regexp is 'The first pattern, as a regular expression.';
comment on column retention.tag_regexp is 'The second.';


create function _is_immutable(path text, tag text)
    returns boolean
    language sql
    stable
as $$
    select exists (
        select from registry.retention as r
        where r.action = 'immutable' and r.enabled
            and path ~ r.repository_regexp and tag ~ r.tag_regexp
    )
$$;

comment on function _is_immutable(text, text) is
    'Whether a rule says that this tag is not to be changed.';


create function _refuse_immutable(r repositories, tag text)
    returns void
    language sql
    stable
    return _refuse('ZR022', format('the tag "%s" of "%s" is immutable', left(tag, 200), r.path),
        'A rule of registry.retention says so.', 'Push under another tag, or change the rule.');

comment on function _refuse_immutable(repositories, text) is 'Raises ZR022.';
