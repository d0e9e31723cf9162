-- Expiring: rules are applied by the reviews of tags, which call _expire_tags first: gc.prepare. It
-- marks tags in the transaction in which the review deletes them, and takes back marks that an
-- earlier one has left: no tag ever goes by what rules said at another time. So all that holds for
-- reviews holds for retention: batches, the brake, the undo window, the log, pins and pauses.
--
-- Repositories are gone through in rounds, one an hour at most, a group at a time, and their tags
-- in the order of repositories and pushes. A round never goes back: what it has marked and the
-- review could not delete (a reference of the application's own keeps it, it is held, it fails) is
-- judged again in the next round. Only what the review has not come to is marked again by the next
-- review, alone, so that each has less of it.

create table retention_round (
    only_one boolean not null default true
        constraint retention_round_pkey primary key
        constraint retention_round_only_one check (only_one),
    due_at timestamptz not null default '-infinity',
    namespace_id bigint not null default 0,
    repository_id bigint not null default 0,
    pushed_at timestamptz not null default 'infinity',
    name text collate "C" not null default '',
    marked_namespaces bigint[] not null default '{}',
    marked_repositories bigint[] not null default '{}',
    marked_at timestamptz not null default '-infinity',
    has_new_rules boolean not null default false,
    failed text
);
insert into retention_round default values on conflict do nothing;

comment on table retention_round is 'How far retention has come. One row.';
comment on column retention_round.only_one is 'True.';
comment on column retention_round.due_at is 'When the next round begins.';
comment on column retention_round.namespace_id is
    'The repositories up to this one were done in this round: its namespace; 0: none was.';
comment on column retention_round.repository_id is 'The repository.';
comment on column retention_round.pushed_at is
    'Of that repository, the tags up to this one were done: when it was pushed; infinity: all.';
comment on column retention_round.name is 'The tag.';
comment on column retention_round.marked_namespaces is
    'The repositories in which tags may be marked: their namespaces.';
comment on column retention_round.marked_repositories is 'The repositories.';
comment on column retention_round.marked_at is
    'When that was, as the entries of the queue say it; -infinity: by rules of before.';
comment on column retention_round.has_new_rules is
    'A rule has changed, and reviews of untagged manifests may have been put off for too long.';
comment on column retention_round.failed is
    'The last repository whose tags could not be judged, and why: nothing of it was deleted.';


-- What somebody has locked is being switched, removed or pulled, and is judged again in the next
-- round. The lock is that of a deletion, which others skip: they would wait for a mark otherwise.
-- Its manifest comes first, as everywhere: a mark that is taken back and set again in one
-- transaction has PostgreSQL check the foreign key once more, which would wait for it.
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
        join registry.manifests as m on (m.namespace_id, m.repository_id, m.id)
            = (t.namespace_id, t.repository_id, t.manifest_id)
        where t.manifest_id = d.manifest_id and t.updated_at = d.pushed_at
        for key share of m skip locked
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


create function _pass(r repositories)
    returns void
    language sql
    volatile
as $$
    update registry.retention_round
    set namespace_id = r.namespace_id, repository_id = r.id, pushed_at = 'infinity', name = ''
$$;

comment on function _pass(repositories) is 'The round has done all repositories up to this one.';


-- In the order of a round, so that it is known where one has stopped.
create function _doomed(
    scope repositories[], s retention_round, left_over tags[], room integer
)
    returns _verdict[]
    language plpgsql
    stable
as $$
begin
    return array(
        select j from registry._judge(scope, clock_timestamp()) as j
        where not j.is_kept and case
            when left_over is null then
                (j.namespace_id, j.repository_id, j.pushed_at, j.name collate "C")
                    > (s.namespace_id, s.repository_id, s.pushed_at, s.name)
            else (j.namespace_id, j.repository_id, j.name) in (
                select l.namespace_id, l.repository_id, l.name from unnest(left_over) as l
            )
        end
        order by j.namespace_id, j.repository_id, j.pushed_at, j.name collate "C"
        limit room
    );
end;
$$;

comment on function _doomed(repositories[], retention_round, tags[], integer) is
    'The tags of these repositories that are to go: the next ones of a round; or of those that are '
    'left over, if such are given.';


-- The review that marks tags deletes them, or nobody does: however long tag_expiry is to wait. The
-- latest entry of a tag is that of its mark; what has been put off stays so.
create function _review_now(locked _verdict[])
    returns void
    language plpgsql
    volatile
as $$
begin
    update gc.tag_review_queue as q
    set review_after = now()
    from unnest(locked) as l
    join registry.tags as t
        on (t.namespace_id, t.repository_id, t.name) = (l.namespace_id, l.repository_id, l.name)
    where (q.namespace_id, q.repository_id, q.name) = (t.namespace_id, t.repository_id, t.name)
        and t.expired_by is not null and q.review_after > now() and not exists (
            select from gc.tag_review_queue as later
            where (later.namespace_id, later.repository_id, later.name)
                    = (q.namespace_id, q.repository_id, q.name)
                and later.entry > q.entry
        );
end;
$$;

comment on function _review_now(_verdict[]) is
    'Has those of the tags that are marked be due in this review, whatever their delay is.';


-- Look, lock, look again: judging takes seconds where there are many tags. What was pulled or
-- deployed meanwhile stays, and is judged again in the next round. A pin of the tag itself, the
-- review finds.
create function _mark_doomed(doomed _verdict[])
    returns integer
    language plpgsql
    volatile
as $$
declare
    locked registry._verdict[] := registry._lock_doomed(doomed);
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
    perform registry._review_now(locked);
    update registry.retention_round as o
    set marked_namespaces = o.marked_namespaces || r.namespaces,
        marked_repositories = o.marked_repositories || r.ids, marked_at = now()
    from (
        select array_agg(d.namespace_id), array_agg(d.repository_id)
        from (select distinct l.namespace_id, l.repository_id from unnest(locked) as l) as d
    ) as r(namespaces, ids)
    where marked > 0;
    return marked;
end;
$$;

comment on function _mark_doomed(_verdict[]) is
    'Marks tags that are to go, if they still are, and counts them.';


create function _mark(scope repositories[], left_over tags[], room integer)
    returns integer
    language plpgsql
    volatile
as $$
declare
    s registry.retention_round := (select o from registry.retention_round as o);
    doomed registry._verdict[] := registry._doomed(scope, s, left_over, room);
    last_one registry._verdict := doomed[room];
begin
    if left_over is null and cardinality(doomed) < room then
        perform registry._pass(scope[cardinality(scope)]);
    elsif left_over is null then
        update registry.retention_round
        set namespace_id = last_one.namespace_id, repository_id = last_one.repository_id,
            pushed_at = last_one.pushed_at, name = last_one.name;
    end if;
    return registry._mark_doomed(doomed);
end;
$$;

comment on function _mark(repositories[], tags[], integer) is
    'Marks the next tags of these repositories that are to go, the oldest of each first, and '
    'counts them; the round has come to the last one. Or marks those that are left over.';


-- One that raises costs only itself.
create function _mark_each(scope repositories[], left_over tags[], room integer)
    returns integer
    language plpgsql
    volatile
as $$
declare
    r registry.repositories;
    marked integer := 0;
begin
    return registry._mark(scope, left_over, room);
exception
    when others then
        if cardinality(scope) = 1 then
            perform registry._pass(scope[1]) where left_over is null;
            update registry.retention_round
            set failed = format('%s: %s', scope[1].path, sqlerrm);
            return 0;
        end if;
        foreach r in array scope loop
            marked := marked + registry._mark_each(array[r], left_over, room - marked);
            exit when marked = room or left_over is null and (
                select o.pushed_at < 'infinity' from registry.retention_round as o);
        end loop;
        return marked;
end;
$$;

comment on function _mark_each(repositories[], tags[], integer) is
    'The same; where that raises, repository by repository, without those that raise.';


-- A group has about as many tags as a review can delete. What cannot be marked by one review is
-- judged again by the next, so a group of all tags would be judged once for each batch of them. The
-- first may be one of which only a part was done.
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
        where (o.namespace_id, o.id) >= (s.namespace_id, s.repository_id) and o.state = 'active'
            and ((o.namespace_id, o.id) <> (s.namespace_id, s.repository_id)
                or s.pushed_at < 'infinity')
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


create function _marked(s retention_round)
    returns tags[]
    language plpgsql
    stable
as $$
begin
    return array(
        select t
        from (
            select distinct u.* from unnest(s.marked_namespaces, s.marked_repositories) as u
        ) as r(namespace_id, id)
        join registry.tags as t on (t.namespace_id, t.repository_id) = (r.namespace_id, r.id)
        where t.expired_by is not null
    );
end;
$$;

comment on function _marked(retention_round) is 'What earlier reviews have marked and is there.';


create function _left_over(marked tags[], since timestamptz)
    returns tags[]
    language plpgsql
    stable
as $$
begin
    return array(
        select m::registry.tags
        from unnest(marked) as m
        where exists (
            select from gc.tag_review_queue as q
            where (q.namespace_id, q.repository_id, q.name)
                    = (m.namespace_id, m.repository_id, m.name)
                and q.review_after <= since and q.review_count = 0
        )
    );
end;
$$;

comment on function _left_over(tags[], timestamptz) is
    'What the review that marked these at that time has not come to. What it could not delete has '
    'left the queue, or was put off.';


-- What somebody has locked is not waited for: it keeps its mark until a later review.
create function _take_back(marked tags[])
    returns tags[]
    language plpgsql
    volatile
as $$
begin
    with free as materialized (
        select t.namespace_id, t.repository_id, t.name
        from unnest(marked) as m
        join registry.tags as t on (t.namespace_id, t.repository_id, t.name)
            = (m.namespace_id, m.repository_id, m.name)
        for no key update of t skip locked
    )
    update registry.tags as t set expired_by = null from free as f
    where (t.namespace_id, t.repository_id, t.name) = (f.namespace_id, f.repository_id, f.name);
    return array(
        select t
        from unnest(marked) as m
        join registry.tags as t on (t.namespace_id, t.repository_id, t.name)
            = (m.namespace_id, m.repository_id, m.name)
        where t.expired_by is not null
    );
end;
$$;

comment on function _take_back(tags[]) is
    'Takes marks back; returns the tags that have them still, because they are locked.';


-- What loses its mark is queued by that. These entries would come before those of the tags that are
-- marked next, and fill the batch. And nothing is reviewed for a mark of an earlier review.
create function _drop_reviews(marked tags[], still_marked tags[])
    returns void
    language plpgsql
    volatile
as $$
begin
    delete from gc.tag_review_queue as q
    using unnest(marked) as m
    where (q.namespace_id, q.repository_id, q.name) = (m.namespace_id, m.repository_id, m.name)
        and (q.review_after <= clock_timestamp() and q.review_count = 0
            or (m.namespace_id, m.repository_id, m.name) in (
                select o.namespace_id, o.repository_id, o.name from unnest(still_marked) as o
            ));
end;
$$;

comment on function _drop_reviews(tags[], tags[]) is
    'Takes tags that earlier reviews have marked off the queue. Those that failed stay in it, so '
    'that this is known, but for those that are marked still.';


create function _forget_marks(marked tags[])
    returns void
    language plpgsql
    volatile
as $$
declare
    still_marked registry.tags[] := registry._take_back(marked);
begin
    perform registry._drop_reviews(marked, still_marked);
    update registry.retention_round
    set (marked_namespaces, marked_repositories) = (
        select coalesce(array_agg(r.namespace_id), '{}'), coalesce(array_agg(r.repository_id), '{}')
        from (select distinct m.namespace_id, m.repository_id from unnest(still_marked) as m) as r
    );
end;
$$;

comment on function _forget_marks(tags[]) is
    'Takes back what earlier reviews have marked, as far as it is not locked.';


-- Alone: what is left of it is less each time.
create function _mark_left_over(s retention_round, batch integer)
    returns integer
    language plpgsql
    volatile
as $$
declare
    marked registry.tags[] := registry._marked(s);
    left_over registry.tags[] := registry._left_over(marked, s.marked_at);
begin
    perform registry._forget_marks(marked);
    if cardinality(left_over) = 0 then
        return 0;
    end if;
    return registry._mark_each(array(
        select r from registry.repositories as r
        where r.state = 'active' and (r.namespace_id, r.id) in (
            select l.namespace_id, l.repository_id from unnest(left_over) as l
        )
    ), left_over, batch);
end;
$$;

comment on function _mark_left_over(retention_round, integer) is
    'Takes back what the last review has marked, and marks again what it has not come to, as far '
    'as it is still to go; returns how many.';


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


-- A group with more to mark than there is room for is judged again by the next review. Where the
-- round is stands in its row, so that what is undone because it raised does not count as done.
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
    if s.marked_repositories <> '{}' then
        room := case when registry._mark_left_over(s, batch) > 0 then 0 else batch end;
    end if;
    while s.due_at <= clock_timestamp() and room > 0 and clock_timestamp() < until loop
        scope := registry._next_repositories(s, batch);
        if cardinality(scope) > 0 then
            room := room - registry._mark_each(scope, null, room);
        else
            update registry.retention_round
            set due_at = clock_timestamp() + interval '1 hour', namespace_id = 0,
                repository_id = 0, pushed_at = 'infinity', name = '';
        end if;
        select o.* into s from registry.retention_round as o;
    end loop;
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
    set due_at = '-infinity', namespace_id = 0, repository_id = 0, pushed_at = 'infinity',
        name = '', marked_at = '-infinity', has_new_rules = true, failed = null;
    return null;
end;
$$;

comment on function _begin_round() is 'A changed rule is applied from the next review on.';

create trigger after_change
    after insert or update or delete or truncate on retention
    for each statement execute function _begin_round();


-- A repository without a rule has null.
create function _untagged_within(path text)
    returns interval
    language sql
    stable
    return (
        select max(r.within) from retention as r
        where r.action = 'untagged' and r.enabled and path ~ r.repository_regexp
    );

comment on function _untagged_within(text) is
    'How long untagged manifests of this repository stay, as the rules say now.';


-- It counts from the event, as all delays do, and that stands in the entry: what a rule says when
-- the review is due counts, not what one said when it was put off. What was removed for a cause
-- (gc.because) is not put off.
create function _put_off(most integer)
    returns boolean
    language plpgsql
    volatile
as $$
declare
    moment timestamptz := clock_timestamp();
    seen integer;
begin
    with due as (
        select q.ctid as place, e.happened_at, e.happened_at + w.within as wanted
        from gc.manifest_review_queue as q
        join registry.repositories as p
            on (p.namespace_id, p.id) = (q.namespace_id, q.repository_id)
        cross join lateral registry._untagged_within(p.path) as w(within)
        cross join lateral (
            select case
                when q.event = 'manifest_untagged' then q.asleep_since
                else q.review_after - coalesce((
                    select o.value from gc.review_after_defaults as o where o.event = q.event
                ), '1 day')
            end
        ) as e(happened_at)
        where q.review_after <= moment and q.causes is null and e.happened_at + w.within > moment
        limit most
        for update of q skip locked
    )
    update gc.manifest_review_queue as q
    set event = 'manifest_untagged', review_after = due.wanted, asleep_since = due.happened_at
    from due
    where q.ctid = due.place;
    get diagnostics seen = row_count;
    return seen < most;
end;
$$;

comment on function _put_off(integer) is
    'Puts off those that are due and that a rule keeps untagged. False: there are more.';


-- Which event it was is not known any more: it has the longest of their delays. What has failed is
-- left to its backoff, a day at most.
create function _bring_forward(most integer)
    returns boolean
    language plpgsql
    volatile
as $$
declare
    at_least interval := (
        select greatest(max(o.value), '1 day') from gc.review_after_defaults as o
        where o.event in (
            select k.event from gc._known_events() as k where k.collection = 'manifest'
        )
    );
    seen integer;
begin
    with late as (
        select q.ctid as place, q.asleep_since + greatest(w.within, at_least) as wanted
        from gc.manifest_review_queue as q
        join (
            select p.namespace_id, p.id, registry._untagged_within(p.path)
            from registry.repositories as p
            offset 0
        ) as w(namespace_id, id, within)
            on (w.namespace_id, w.id) = (q.namespace_id, q.repository_id)
        where q.event = 'manifest_untagged'
            and q.review_after > greatest(
                q.asleep_since + greatest(w.within, at_least), clock_timestamp())
            and (q.review_count = 0 or q.review_after > clock_timestamp() + interval '1 day')
        limit most
        for update of q skip locked
    )
    update gc.manifest_review_queue as q set review_after = late.wanted from late
    where q.ctid = late.place;
    get diagnostics seen = row_count;
    return seen < most;
end;
$$;

comment on function _bring_forward(integer) is
    'Brings forward what was put off for longer than rules say now. False: there are more.';


create function _put_off_untagged(batch integer, until timestamptz)
    returns boolean
    language plpgsql
    volatile
as $$
begin
    if batch = 0 then
        return (select o.has_new_rules from registry.retention_round as o);
    end if;
    perform from registry.retention_round as o where o.has_new_rules for update skip locked;
    if found and registry._bring_forward(10 * batch) then
        update registry.retention_round set has_new_rules = false;
    end if;
    return not exists (
        select from registry.retention as r where r.action = 'untagged' and r.enabled
    ) or registry._put_off(10 * batch);
end;
$$;

comment on function _put_off_untagged(integer, timestamptz) is
    'What each review of manifests calls first: has their reviews come when the rules say. False: '
    'there are more to put off. For a batch of 0: whether rules have changed.';
