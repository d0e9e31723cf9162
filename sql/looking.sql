-- Looking: look, lock, look again. A review drops what is plainly kept without a lock, locks the
-- rest, and asks once more, in a later statement with a new snapshot, before it calls a row
-- garbage.

create function gc._is_spread(c gc._shape)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from pg_class as t
        where t.relkind = 'p' and t.oid = any (c.target::oid || array(
            select r.referencing::oid from unnest(c.refs) as r where r.owned is null
        ))
    )
$$;

comment on function gc._is_spread(gc._shape) is
    'Whether the collection, or what keeps its rows, has partitions.';


-- Asking all partitions locks each of them, and planning that locks all their indexes: thousands.
-- None of these locks is needed after the answer (nobody can detach a partition, for its parent
-- stays locked), so they are given back by undoing the part that asks. Variables keep their values.
create function gc._apart_sql(asks text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
begin
    {asks}
    -- So that the locks of this part are given back.
    raise sqlstate 'ZG999';
exception
    when sqlstate 'ZG999' then
        null;
end;$template$, jsonb_build_object('asks', asks))
$$;

comment on function gc._apart_sql(text) is 'A statement that asks, and leaves no locks.';


create function gc._look_apart_sql(c gc._shape, entries text, condition text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when not gc._is_spread(c) then '' else gc._apart_sql(gc._render($template$
this.found := array(
    select q.ctid from {queue} as q
    where q.ctid = any ({entries})
        and (
            {condition}
        )
);$template$, c.words || jsonb_build_object('entries', entries, 'condition', condition))) end
$$;

comment on function gc._look_apart_sql(gc._shape, text, text) is
    'The statements that note the entries that meet a condition, where the condition is to be '
    'looked at in a part of its own; empty where that is not so.';


create function gc._found_sql(c gc._shape, condition text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when gc._is_spread(c) then 'q.ctid = any (this.found)' else condition end
$$;

comment on function gc._found_sql(gc._shape, text) is
    'The condition, or where it was looked at before, that it was found to be met.';


create function gc._look_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- Look: an entry whose row is plainly kept leaves the queue. No lock on the row is needed for that:
-- a reference that goes a moment later leaves an entry of its own.
this.taken := coalesce(this.given, {due}(least(this.wanted, this.room), false));
-- Once they are locked, because a scan for another definition relies on those that are not.
if not exists (
    select from gc.collections as c where c.name = {name} and c.fingerprint = this.fingerprint
) then
    this.taken := '{}';
end if;
reviewed := cardinality(this.taken);
kept := 0;
if reviewed = 0 then
    return;
end if;
{look_apart}
{follow}
delete from {queue} as q
where q.ctid = any (this.taken)
    and (
        {plainly_kept}
    );
get diagnostics kept = row_count;
{note_followed}
{put_to_sleep}$template$,
        c.words || jsonb_build_object(
            'put_to_sleep', gc._put_to_sleep_sql(c),
            'due', format('gc.%I', gc._object_name(c.name, '_due')),
            'follow', gc._follow_sql(c), 'note_followed', gc._note_followed_sql(c),
            'look_apart', gc._look_apart_sql(c, 'this.taken', p.plainly_kept),
            'plainly_kept', gc._found_sql(c, p.plainly_kept)))
    from (select gc._plainly_kept_sql(c)) as p(plainly_kept)
$$;

comment on function gc._look_sql(gc._shape) is
    'The part of a review that takes entries off the queue and looks a first time.';


create function gc._drop_kept_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
with dropped as (
    delete from {queue} as q
    where q.ctid = any (this.locked)
        and (
            {kept}
        )
    returning q.*
){relinked}{noted}
select count(*) into this.step from dropped;
kept := kept + this.step;$template$,
        c.words || jsonb_build_object(
            'kept', gc._found_sql(c, gc._kept_sql(c)), 'relinked', gc._relink_sql(c),
            'noted', gc._noted_sql(c)))
$$;

comment on function gc._drop_kept_sql(gc._shape) is
    'The statement that takes off the queue what the second look found kept.';


-- A statement of its own, because planning it locks every partition once more: mostly there are no
-- holds. The key is compared as the row writes it: who refers to 1 may have written 1.0.
create function gc._held_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
this.held := '{}';
if gc._has_holds() then
    this.held := array(
        select q.ctid
        from {queue} as q
        join {target} as t on {t_is_q}
        join gc.holds as h on h.key = {t_key_text}
        where q.ctid = any (this.locked)
            and h.collection = {name} and h.held_until > clock_timestamp()
    );
end if;
if exists (select from gc.key_changes as k where k.collection = {name}) then
    this.held := this.held || array(
        select q.ctid
        from {queue} as q
        join {target} as t on {t_is_q}
        where q.ctid = any (this.locked) and gc._is_moving({name}, array[{t_key_text}])
    );
end if;$template$, c.words)
$$;

comment on function gc._held_sql(gc._shape) is
    'The part of a second look that notes what somebody holds, or may have pinned.';


-- A later statement than the lock of the targets, so that it sees every owned row there is. Nearly
-- always, nobody has one locked; if somebody has, it is not counted the second time.
create function gc._lock_children_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(string_agg(
        gc._render($template$
-- Whoever refers to a row of {child} has that one locked, and not the target.
begin
    perform from {queue} as q
    join {child} as r on {r_is_q}
    where q.ctid = any (this.locked)
    for update of r nowait;
exception
    when lock_not_available then
        this.locked := array(
            select q.ctid from {queue} as q
            where q.ctid = any (this.locked)
                and (select count(*) from {child} as r where {r_is_q}) = (
                    select count(*)
                    from (select from {child} as r where {r_is_q} for update skip locked) as o
                )
        );
end;$template$,
            c.words || jsonb_build_object(
                'child', gc._only(r.referencing), 'r_is_q', gc._key_pair(r))),
        E'\n' order by r.depth, r.owned), '')
    from unnest(c.refs) as r
    where r.owned is not null and r.via is null and exists (
        select from unnest(c.refs) as o
        where o.owned is null
            and (r.child and o.depth > r.depth or (o.passage).owner = r.reference)
    )
$$;

comment on function gc._lock_children_sql(gc._shape) is
    'The statements that lock the owned rows to which others may refer; empty: there are none.';


create function gc._look_again_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- Lock: whoever is inserting a reference has the row locked, so it is skipped and comes later.
this.locked := array(
    select q.ctid
    from {queue} as q
    join {target} as t on {t_is_q}
    where q.ctid = any (this.taken)
    for update of t skip locked
);
{lock_children}
-- Look again, with a new snapshot: what is still not kept cannot be referred to any more.
{look_apart}
{drop_kept}
{held}
select array_agg(l.place)
        filter (where not l.superseded and l.place <> all (this.held){not_excused}),
    array_agg(l.place) filter (where l.superseded)
into this.garbage, this.superseded
from (
    select q.ctid,
        exists (select from {queue} as later where {later_is_q} and later.entry > q.entry){excused}
    from {queue} as q
    where q.ctid = any (this.locked)
) as l(place, superseded{named});$template$,
        c.words || jsonb_build_object(
            'held', gc._held_sql(c),
            'lock_children', gc._lock_children_sql(c),
            'look_apart', gc._look_apart_sql(c, 'this.locked', gc._kept_sql(c)),
            'excused', case when c.turns is null then '' else E',\n' || gc._excused_sql(c) end,
            'not_excused', case when c.turns is null then '' else ' and not l.excused' end,
            'named', case when c.turns is null then '' else ', excused' end,
            'drop_kept', case
                when gc._is_spread(c) then gc._render($template$
if cardinality(this.found) > 0 then
    {drop_kept}
end if;$template$, jsonb_build_object('drop_kept', gc._drop_kept_sql(c)))
                else gc._drop_kept_sql(c)
            end))
$$;

comment on function gc._look_again_sql(gc._shape) is
    'The part of a review that locks, and looks again.';


-- Failures and causes of earlier entries are those of the one that counts.
create function gc._told_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
told(later, review_count, last_error, causes) as (
    select l.later, max(l.review_count), max(l.last_error),
        array_agg(distinct c.cause) filter (where c.cause is not null)
    from looked as l
    left join lateral unnest(l.causes) as c(cause) on true
    where l.later is not null
    group by l.later
),
changed as (
    update {queue} as q
    set review_count = greatest(q.review_count, t.review_count),
        last_error = coalesce(q.last_error, t.last_error),
        causes = gc._all_causes(q.causes, t.causes)
    from told as t
    where q.ctid = t.later
        and (t.review_count > q.review_count or not coalesce(q.causes, '{}') @> t.causes)
    returning t.later as was, q.ctid as place
)$template$, c.words)
$$;

comment on function gc._told_sql(gc._shape) is
    'The part of a statement that tells a later entry what earlier ones knew.';


create function gc._superseded_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- A later entry speaks for the row, and is told of failures and causes. It is locked, or else
-- another review might be taking it away at this moment, and neither would be left.
this.step := 0;
if this.superseded is not null then
    with looked as materialized (
        select q.ctid as place, q.review_count, q.last_error, q.causes,
            (
                select later.ctid from {queue} as later
                where {later_is_q} and later.entry > q.entry
                order by later.entry desc
                limit 1
                for update skip locked
            ) as later
        from {queue} as q
        where q.ctid = any (this.superseded)
    ),
    {told},
    dropped as (
        delete from {queue} as q
        using looked as l
        where q.ctid = l.place and l.later is not null
        returning l.place
    )
    select (select count(*) from dropped), array(select c.was from changed as c),
        array(select c.place from changed as c)
    into this.step, this.was, this.moved;
    reviewed := reviewed - this.step;
    -- An entry that was changed has another place now.
    this.garbage := gc._moved(this.garbage, this.was, this.moved);
    this.taken := gc._moved(this.taken, this.was, this.moved);
end if;$template$, c.words || jsonb_build_object('told', gc._told_sql(c)))
$$;

comment on function gc._superseded_sql(gc._shape) is
    'The part of a review that drops entries which have a later one.';


-- A batch in which every entry has a later one decides nothing, but more may be due behind it.
create function gc._decide_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
select 0, 0, 0, 0 into deleted, busy, bytes, touched;
perform gc._follow_keys({name});
for round in 1 .. 10 loop
    {look}
    if kept = reviewed then
        return;
    end if;
    {look_again}
    {superseded}
    exit when reviewed > 0 or this.step = 0 or this.given is not null;
end loop;$template$,
        c.words || jsonb_build_object(
            'look', gc._look_sql(c),
            'look_again', gc._look_again_sql(c),
            'superseded', gc._superseded_sql(c)))
$$;

comment on function gc._decide_sql(gc._shape) is
    'The part of a review that tells what is garbage.';
