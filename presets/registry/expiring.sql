-- Expiring: rules are applied by the reviews of tags, which call _expire_tags first: gc.prepare. It
-- marks tags in the transaction in which the review deletes them, and takes back marks that an
-- earlier one has left: no tag ever goes by what rules said at another time. So all that holds for
-- reviews holds for retention: batches, the brake, the undo window, the log, pins and pauses.
--
-- Repositories are gone through in rounds, one an hour at most, a group at a time.

create table retention_round (
    only_one boolean not null default true
        constraint retention_round_pkey primary key
        constraint retention_round_only_one check (only_one),
    due_at timestamptz not null default '-infinity',
    namespace_id bigint not null default 0,
    repository_id bigint not null default 0,
    marked_namespaces bigint[] not null default '{}',
    marked_repositories bigint[] not null default '{}',
    failed text
);
insert into retention_round default values on conflict do nothing;

comment on table retention_round is 'How far retention has come. One row.';
comment on column retention_round.only_one is 'True.';
comment on column retention_round.due_at is 'When the next round begins.';
comment on column retention_round.namespace_id is
    'The repositories up to this one were done in this round: its namespace; 0: none was.';
comment on column retention_round.repository_id is 'The repository.';
comment on column retention_round.marked_namespaces is
    'The repositories in which tags may be marked: their namespaces.';
comment on column retention_round.marked_repositories is 'The repositories.';
comment on column retention_round.failed is
    'The last repository whose tags could not be judged, and why: nothing of it was deleted.';


-- What somebody has locked is being switched, removed or pulled, and is judged again in the next
-- round. The lock is that of a deletion, which others skip: they would wait for a mark otherwise.
create function _lock_doomed(doomed _verdict[])
    returns _verdict[]
    language plpgsql
    volatile
as $$
begin
    return array(
        select d::registry._verdict
        from unnest(doomed) as d
        join registry.tags as t on (t.namespace_id, t.repository_id, t.name)
            = (d.namespace_id, d.repository_id, d.name)
        where t.manifest_id = d.manifest_id and t.updated_at = d.pushed_at
        for update of t skip locked
    );
end;
$$;

comment on function _lock_doomed(_verdict[]) is
    'Locks tags that are to go, if they are what was judged; returns those that could be locked.';


create function _is_pinned(namespace_id bigint, repository_id bigint, manifest_id bigint)
    returns boolean
    language sql
    stable
as $$
    select exists (
        select from gc.pins as p
        where md5(p.key) = md5(k.key) and p.key = k.key and p.collection = 'manifest'
            and p.until > clock_timestamp()
    )
    from (select concat('(', namespace_id, ',', repository_id, ',', manifest_id, ')')) as k(key)
$$;

comment on function _is_pinned(bigint, bigint, bigint) is 'Whether somebody has pinned a manifest.';


-- Look, lock, look again: judging takes seconds where there are many tags. What was pulled or
-- deployed meanwhile stays, and is judged again in the next round. A pin of the tag itself, the
-- review finds.
create function _mark(scope repositories[], room integer)
    returns integer
    language plpgsql
    volatile
as $$
declare
    locked registry._verdict[] := registry._lock_doomed(array(
        select j from registry._judge(scope, clock_timestamp()) as j
        where not j.is_kept
        order by j.pushed_at, j.namespace_id, j.repository_id, j.name
        limit room
    ));
    marked integer;
begin
    update registry.tags as t
    set expired_by = d.rule
    from unnest(locked) as d
    where (t.namespace_id, t.repository_id, t.name) = (d.namespace_id, d.repository_id, d.name)
        and not exists (
            select from registry.pulls as p
            where (p.namespace_id, p.repository_id, p.name)
                    = (t.namespace_id, t.repository_id, t.name)
                and p.pulled_at > d.pulled_at
        ) and not registry._is_pinned(t.namespace_id, t.repository_id, t.manifest_id);
    get diagnostics marked = row_count;
    return marked;
end;
$$;

comment on function _mark(repositories[], integer) is
    'Marks the tags of these repositories that are to go, the oldest first, and counts them.';


-- One that raises costs only itself.
create function _mark_each(scope repositories[], room integer)
    returns integer
    language plpgsql
    volatile
as $$
declare
    r registry.repositories;
    marked integer := 0;
begin
    return registry._mark(scope, room);
exception
    when others then
        if cardinality(scope) = 1 then
            update registry.retention_round
            set failed = format('%s: %s', scope[1].path, sqlerrm);
            return 0;
        end if;
        foreach r in array scope loop
            marked := marked + registry._mark_each(array[r], room - marked);
        end loop;
        return marked;
end;
$$;

comment on function _mark_each(repositories[], integer) is
    'The same; where that raises, repository by repository, without those that raise.';


-- A group has about as many tags as a review can delete. What cannot be marked by one review is
-- judged again by the next, so a group of all tags would be judged once for each batch of them.
create function _next_repositories(s retention_round, most integer)
    returns repositories[]
    language plpgsql
    stable
as $$
declare
    r registry.repositories;
    found_ones registry.repositories[] := '{}';
    tags bigint := 0;
begin
    for r in
        select o.* from registry.repositories as o
        where (o.namespace_id, o.id) > (s.namespace_id, s.repository_id) and o.state = 'active'
            and exists (
                select from registry.retention as d
                where d.action = 'delete' and d.enabled and o.path ~ d.repository_regexp
            )
        order by o.namespace_id, o.id
        limit 100
    loop
        found_ones := found_ones || r;
        tags := tags + (
            select count(*) from (
                select from registry.tags as t
                where (t.namespace_id, t.repository_id) = (r.namespace_id, r.id)
                limit most
            ) as t
        );
        exit when tags >= most;
    end loop;
    return found_ones;
end;
$$;

comment on function _next_repositories(retention_round, integer) is
    'The next group of repositories of a round in which a rule may delete something: as many as '
    'have so many tags together, and at least one.';


create function _take_back(s retention_round)
    returns void
    language sql
    volatile
as $$
    update registry.tags as t
    set expired_by = null
    from unnest(s.marked_namespaces, s.marked_repositories) as r(namespace_id, id)
    where (t.namespace_id, t.repository_id) = (r.namespace_id, r.id) and t.expired_by is not null
$$;

comment on function _take_back(retention_round) is 'Takes back what earlier reviews have marked.';


-- A tag that comes back, from gc.restore or from a dump, has no mark: that was another review's.
create function _forget_mark()
    returns trigger
    language plpgsql
    volatile
as $$
begin
    new.expired_by := null;
    return new;
end;
$$;

comment on function _forget_mark() is 'Takes the mark off a tag that is inserted.';

create trigger before_insert
    before insert on tags
    for each row when (new.expired_by is not null) execute function _forget_mark();


-- A group with more to mark than there is room for is judged again by the next review.
create function _expire_tags(batch integer, until timestamptz)
    returns boolean
    language plpgsql
    volatile
as $$
declare
    s registry.retention_round;
    scope registry.repositories[];
    room integer := batch;
begin
    if batch = 0 then
        return (select o.due_at <= clock_timestamp() or o.marked_repositories <> '{}'
            from registry.retention_round as o);
    end if;
    select o.* into s from registry.retention_round as o for update skip locked;
    if not found then
        return false;
    end if;
    perform registry._take_back(s) where cardinality(s.marked_repositories) > 0;
    select '{}', '{}' into s.marked_namespaces, s.marked_repositories;
    while s.due_at <= clock_timestamp() and room > 0 and clock_timestamp() < until loop
        scope := registry._next_repositories(s, batch);
        if cardinality(scope) = 0 then
            select clock_timestamp() + interval '1 hour', 0, 0
            into s.due_at, s.namespace_id, s.repository_id;
        else
            room := room - registry._mark_each(scope, room);
            s.marked_namespaces := s.marked_namespaces || array(
                select r.namespace_id from unnest(scope) as r);
            s.marked_repositories := s.marked_repositories || array(
                select r.id from unnest(scope) as r);
            exit when room = 0;
            s.namespace_id := scope[cardinality(scope)].namespace_id;
            s.repository_id := scope[cardinality(scope)].id;
        end if;
    end loop;
    update registry.retention_round as o
    set due_at = s.due_at, namespace_id = s.namespace_id, repository_id = s.repository_id,
        marked_namespaces = s.marked_namespaces, marked_repositories = s.marked_repositories
    where (o.due_at, o.repository_id, o.marked_repositories)
        is distinct from (s.due_at, s.repository_id, s.marked_repositories);
    return true;
end;
$$;

comment on function _expire_tags(integer, timestamptz) is
    'What each review of tags calls first: marks those that are to go. False: another does that. '
    'For a batch of 0: whether there is anything to do.';


create function _begin_round()
    returns trigger
    language plpgsql
    volatile
as $$
begin
    update registry.retention_round
    set due_at = '-infinity', namespace_id = 0, repository_id = 0, failed = null;
    return null;
end;
$$;

comment on function _begin_round() is 'A changed rule is applied from the next review on.';

create trigger after_change
    after insert or update or delete or truncate on retention
    for each statement execute function _begin_round();


-- An entry is put off once, by what the rule adds to the delay of its event: so it counts from the
-- event, as all delays do. What was removed for a cause (gc.because) is not put off.
create function _put_off_untagged(batch integer, until timestamptz)
    returns boolean
    language plpgsql
    volatile
as $$
declare
    moment timestamptz := clock_timestamp();
    most integer := 10 * batch;
    seen integer;
begin
    if batch = 0 or not exists (
        select from registry.retention as r where r.action = 'untagged' and r.enabled
    ) then
        return batch > 0;
    end if;
    with due as (
        select q.ctid as place, w.within - d.delay as more
        from gc.manifest_review_queue as q
        join registry.repositories as p
            on (p.namespace_id, p.id) = (q.namespace_id, q.repository_id)
        cross join lateral (
            select max(r.within) from registry.retention as r
            where r.action = 'untagged' and r.enabled and p.path ~ r.repository_regexp
        ) as w(within)
        cross join lateral (
            select coalesce(max(o.value), interval '1 day') from gc.review_after_defaults as o
            where o.event = q.event
        ) as d(delay)
        where q.review_after <= moment and q.event <> 'manifest_untagged' and q.causes is null
            and w.within > d.delay
        limit most
        for update of q skip locked
    )
    update gc.manifest_review_queue as q
    set event = 'manifest_untagged', review_after = q.review_after + due.more
    from due
    where q.ctid = due.place;
    get diagnostics seen = row_count;
    return seen < most;
end;
$$;

comment on function _put_off_untagged(integer, timestamptz) is
    'What each review of manifests calls first: puts off those that a rule keeps untagged. False: '
    'there are more.';
