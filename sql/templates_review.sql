-- Templates of the functions that are called: review, scan, and the look-ups by key and by url.

create function gc._owned_pair(c gc._shape, r gc._reference, alias text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when r.to_key then gc._pair(
            r.columns, 'r', array(select gc._queue_column(u) from unnest(r.targets) as u), alias,
            r.operators)
        else gc._inline(format('exists (select from %s as t where %s and %s)', c.target,
            gc._pair(r.targets, 't', r.columns, 'r', r.operators),
            gc._pair(k.names, 't', k.queue_names, alias, k.operators)))
    end || gc._not_itself(c, r, alias)
    from (select (c.key).*) as k
$$;

comment on function gc._owned_pair(gc._shape, gc._reference, text) is
    'The condition that a row r is owned by the target of a queue entry.';


-- A foreign key says nothing about the tables that inherit from its own.
create function gc._only(relation regclass)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._inline(case when c.relkind = 'p' then '' else 'only ' end || relation)
    from pg_class as c
    where c.oid = relation
$$;

comment on function gc._only(regclass) is
    'A table as it has to be written so that no inheriting table is meant.';


-- Owned rows go with their target. A transaction deletes at most as many rows as there is room for;
-- targets are taken whole while they fit. One that alone is too big goes whole and by itself: half
-- empty, it could be referred to again. Only where a condition says that nobody uses it any more is
-- it emptied in steps. A target of which somebody holds an owned row waits, for whoever holds it
-- may wait for the target.
create function gc._owned_count_sql(c gc._shape, locking text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        format('(select count(*) from (select from %s as r where %s limit this.room%s) as o)',
            gc._only(r.referencing), gc._owned_pair(c, r, 'q'), locking),
        E'\n+ ' order by r.owned)
    from unnest(c.refs) as r
    where r.owned is not null
$$;

comment on function gc._owned_count_sql(gc._shape, text) is
    'The expression for how many rows the target of the queue entry q owns.';


create function gc._place(relation regclass)
    returns name[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when c.relkind <> 'p' then array['ctid'::name]
        else coalesce((gc._key(relation)).names, array['tableoid', 'ctid']::name[])
    end
    from pg_class as c
    where c.oid = relation
$$;

comment on function gc._place(regclass) is 'Columns that tell a row of the table from all others.';


create function gc._drain_columns(r gc._reference, out columns name[], out operators text[])
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array_agg(distinct u.name), array_agg(coalesce(k.operator, '=') order by u.name)
    from (
        select distinct w from unnest(gc._place(r.referencing) || r.columns) as w
    ) as u(name)
    left join lateral (
        select f.operator from unnest(r.columns, r.operators) as f(name, operator)
        where f.name = u.name
        union all
        select p.operator from gc._key(r.referencing) as y
        cross join lateral unnest(y.names, y.operators) as p(name, operator)
        where p.name = u.name
        limit 1
    ) as k on true
$$;

comment on function gc._drain_columns(gc._reference) is
    'The columns by which an owned row is found again: its place, and its owner.';


-- A row that got another owner while it was waited for is not deleted: PostgreSQL checks the last
-- condition again, but not the subquery.
create function gc._drain_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        gc._render($template$
delete from {referencing} as r
using (
    select {r_columns}
    from {queue} as q
    join {referencing} as r on {r_is_q}
    where q.ctid = any (this.garbage)
    limit greatest(this.room, 0)
    for update of r skip locked
) as o
where {r_is_o};
get diagnostics this.step = row_count;
this.room := this.room - this.step;
this.owned := this.owned - this.step;
touched := touched + this.step;$template$,
            c.words || jsonb_build_object(
                'referencing', gc._only(r.referencing),
                'r_is_q', gc._owned_pair(c, r, 'q'),
                'r_columns', gc._listed(p.columns, 'r.'),
                'r_is_o', gc._pair(p.columns, 'r', p.columns, 'o', p.operators))),
        E'\n' order by r.owned)
    from unnest(c.refs) as r
    cross join lateral gc._drain_columns(r) as p
    where r.owned is not null
$$;

comment on function gc._drain_sql(gc._shape) is
    'The statements that delete owned rows, in the order of "owned".';


create function gc._owns_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        format('exists (select from %s as r where %s)',
            gc._only(r.referencing), gc._owned_pair(c, r, 'q')),
        E'\nor ' order by r.owned)
    from unnest(c.refs) as r
    where r.owned is not null
$$;

comment on function gc._owns_sql(gc._shape) is
    'The condition that the target of the queue entry q still owns rows.';


-- All of it fits and nobody holds any: that is how it is nearly always, and takes a join to see.
create function gc._lock_owned_sql(c gc._shape, most text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        gc._render($template$
perform from {queue} as q
join {referencing} as r on {r_is_q}
where q.ctid = any (this.garbage)
limit {most}
for update of r nowait;
get diagnostics this.step = row_count;
this.owned := this.owned + this.step;$template$,
            c.words || jsonb_build_object(
                'referencing', gc._only(r.referencing), 'r_is_q', gc._owned_pair(c, r, 'q'),
                'most', most)),
        E'\n' order by r.owned)
    from unnest(c.refs) as r
    where r.owned is not null
$$;

comment on function gc._lock_owned_sql(gc._shape, text) is
    'The statements that lock and count the rows that all targets own, or so many of them.';


create function gc._owned_whole_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.condition is not null then '' else gc._render($template$
-- All of it or nothing, however much it is.
this.owned := 0;
begin
    {lock_owned}
    this.room := greatest(this.room, this.owned + coalesce(cardinality(this.garbage), 0));
    this.fits := true;
exception
    when lock_not_available then
        this.garbage := '{}';
end;$template$, jsonb_build_object('lock_owned', gc._lock_owned_sql(c, 'all'))) end
$$;

comment on function gc._owned_whole_sql(gc._shape) is
    'The statements that lock all that the chosen targets own, where nothing may go in part.';


create function gc._owned_in_part_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
select array_agg(f.place) filter (where not f.held and (f.n = 1 or f.total <= this.room)),
    array_agg(f.place) filter (where not f.held and f.n > 1 and f.total > this.room)
into this.garbage, this.waiting
from (
    select o.place, o.held, count(*) filter (where not o.held) over w,
        sum(1 + o.rows) filter (where not o.held) over w
    from (
        select q.ctid, q.entry, o.rows, o.rows <> o.locked
        from {queue} as q
        cross join lateral (
            select
                {owned_count},
                {locked_count}
        ) as o(rows, locked)
        where q.ctid = any (this.garbage)
    ) as o(place, entry, rows, held)
    window w as (order by o.entry)
) as f(place, held, n, total);$template$,
        c.words || jsonb_build_object(
            'owned_count', gc._owned_count_sql(c, ''),
            'locked_count', gc._owned_count_sql(c, ' for update skip locked')))
$$;

comment on function gc._owned_in_part_sql(gc._shape) is
    'The statements that choose whose owned rows go now, where not all can.';


create function gc._owned_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when gc._owns_sql(c) is null then '' else gc._render($template$
-- What it owns goes first.
this.owned := 0;
begin
    {lock_owned}
    this.fits := this.owned + cardinality(this.garbage) <= this.room;
exception
    when lock_not_available then
        this.fits := false;
end;
if not this.fits then
    -- More than will go now, or that is not known.
    this.owned := this.room + 1;
    {in_part}
    {whole}
end if;
{drain}
if this.owned > 0 or cardinality(this.garbage) > this.room then
    this.emptied := array(
        select q.ctid from {queue} as q
        where q.ctid = any (this.garbage)
            and not (
                {owns}
            )
        limit greatest(this.room, 0)
    );
    if cardinality(this.emptied) < cardinality(this.garbage) and (this.fits or touched = 0) then
        raise 'a trigger or a rule kept owned rows from being deleted';
    end if;
    this.waiting := this.waiting || this.garbage;
    this.garbage := this.emptied;
end if;$template$,
        c.words || jsonb_build_object(
            'lock_owned', gc._lock_owned_sql(c, 'this.room + 1'),
            'in_part', gc._owned_in_part_sql(c),
            'whole', gc._owned_whole_sql(c),
            'drain', gc._drain_sql(c),
            'owns', gc._owns_sql(c))) end
$$;

comment on function gc._owned_sql(gc._shape) is
    'The part of a review that deletes owned rows; empty where nothing is owned.';


-- Rows without an object have nobody to confirm them: the review writes their log. An address that
-- is made of the key is never null.
create function gc._logged_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.url is not null and not c.shared then '' else gc._render($template$
,
logged as (
    insert into gc.deletion_log (collection, key, label, size, event, row_deleted_at)
    select {name}, {key_text}, {label}, {size}, this.event, now()
    from gone as {alias}
    where {url} is null
)$template$, c.words) end
$$;

comment on function gc._logged_sql(gc._shape) is
    'The part of a review that writes the log of rows without an object.';


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
create function gc._look_apart_sql(c gc._shape, entries text, condition text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when not gc._is_spread(c) then '' else gc._render($template$
begin
    this.found := array(
        select q.ctid from {queue} as q
        where q.ctid = any ({entries})
            and (
                {condition}
            )
    );
    -- So that the locks of this part are given back.
    raise sqlstate 'ZG009';
exception
    when sqlstate 'ZG009' then
        null;
end;$template$, c.words || jsonb_build_object('entries', entries, 'condition', condition)) end
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
-- Look: take what is due, longest overdue first, and leave to other reviews what they have taken.
-- An entry whose row is plainly kept leaves the queue. No lock on the row is needed for that: a
-- reference that goes a moment later leaves an entry of its own.
this.taken := coalesce(this.given, array(
    select q.ctid
    from {queue} as q
    where q.review_after <= now() and q.review_count = 0
    order by q.review_after
    limit least(this.wanted, this.room)
    for update skip locked
));
reviewed := cardinality(this.taken);
kept := 0;
if reviewed = 0 then
    return;
end if;
{look_apart}
delete from {queue} as q
where q.ctid = any (this.taken)
    and (
        {plainly_kept}
    );
get diagnostics kept = row_count;$template$,
        c.words || jsonb_build_object(
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
){relinked}
select count(*) into this.step from dropped;
kept := kept + this.step;$template$,
        c.words || jsonb_build_object(
            'kept', gc._found_sql(c, gc._kept_sql(c)), 'relinked', gc._relink_sql(c)))
$$;

comment on function gc._drop_kept_sql(gc._shape) is
    'The statement that takes off the queue what the second look found kept.';


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
-- Look again, with a new snapshot: what is still not kept cannot be referred to any more.
{look_apart}
{drop_kept}
select array_agg(l.place) filter (where not l.superseded and not l.held),
    array_agg(l.place) filter (where l.superseded)
into this.garbage, this.superseded
from (
    select q.ctid,
        exists (select from {queue} as later where {later_is_q} and later.entry > q.entry),
        -- As the row writes its key: who refers to 1 may have written 1.0.
        holds.exist and exists (
            select from {target} as t
            join gc.holds as h on h.key = {t_key_text}
            where {t_is_q} and h.collection = {name} and h.held_until > clock_timestamp()
        )
    from {queue} as q
    cross join (select gc._has_holds()) as holds(exist)
    where q.ctid = any (this.locked)
) as l(place, superseded, held);$template$,
        c.words || jsonb_build_object(
            'look_apart', gc._look_apart_sql(c, 'this.locked', gc._kept_sql(c)),
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


create function gc._superseded_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- A later entry speaks for the row, and is told of failures. It is locked, or else another review
-- might be taking it away at this moment, and neither would be left.
this.step := 0;
if this.superseded is not null then
    with looked as materialized (
        select q.ctid as place, q.review_count, q.last_error,
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
    warned as (
        update {queue} as q
        set review_count = l.review_count, last_error = coalesce(q.last_error, l.last_error)
        from looked as l
        where q.ctid = l.later and l.review_count > q.review_count
    )
    delete from {queue} as q
    using looked as l
    where q.ctid = l.place and l.later is not null;
    get diagnostics this.step = row_count;
    reviewed := reviewed - this.step;
end if;$template$, c.words)
$$;

comment on function gc._superseded_sql(gc._shape) is
    'The part of a review that drops entries which have a later one.';


-- A batch of which every entry has a later one is not the end of the queue.
create function gc._decide_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
select 0, 0, 0, 0 into deleted, busy, bytes, touched;
for round in 1 .. 10 loop
    {look}
    if kept = reviewed then
        return;
    end if;
    {look_again}
    {superseded}
    exit when reviewed > 0 or this.step = 0 or this.given is not null;
end loop;$template$,
        jsonb_build_object(
            'look', gc._look_sql(c),
            'look_again', gc._look_again_sql(c),
            'superseded', gc._superseded_sql(c)))
$$;

comment on function gc._decide_sql(gc._shape) is
    'The part of a review that tells what is garbage.';


create function gc._delete_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- The row goes first, then its object: a trigger leaves the tombstone, and is told the reason.
for this.event in
    select distinct q.event from {queue} as q where q.ctid = any (this.garbage)
loop
    perform set_config('blobgc.reviewing', {name}, true);
    insert into gc.reviewing values (pg_current_xact_id(), {name}, this.event);
    with gone as (
        delete from {only_target} as t
        using {queue} as q
        where q.ctid = any (this.garbage) and q.event = this.event and {t_is_q}
        returning t.*
    ){logged}
    select count(*), coalesce(sum({size}), 0) into this.step, this.freed from gone as {alias};
    deleted := deleted + this.step;
    bytes := bytes + this.freed;
    delete from gc.reviewing as r where r.xid = pg_current_xact_id();
end loop;
perform set_config('blobgc.reviewing', '', true);
if deleted < cardinality(this.garbage) then
    raise 'a trigger or a rule on % kept % rows from being deleted',
        {table}, cardinality(this.garbage) - deleted;
end if;
touched := touched + deleted;
delete from {queue} as q where q.ctid = any (this.garbage);$template$,
        c.words || jsonb_build_object(
            'logged', gc._logged_sql(c), 'only_target', gc._only(c.target)))
$$;

comment on function gc._delete_sql(gc._shape) is 'The part of a review that deletes.';


create function gc._delete_all_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- Triggers of the application's own look for names where they would in the application.
perform set_config('search_path', gc._application_path({table}), true);
{owned}
{delete}
perform set_config('search_path', 'pg_catalog, pg_temp', true);$template$,
        c.words || jsonb_build_object('owned', gc._owned_sql(c), 'delete', gc._delete_sql(c)))
$$;

comment on function gc._delete_all_sql(gc._shape) is
    'The part of a review that deletes, owned rows first.';


create function gc._put_off_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- What is left in the queue is gone, or somebody holds it: that is looked at again in a while.
if deleted < reviewed - kept then
    delete from {queue} as q
    where q.ctid = any (this.taken) and not exists (select from {target} as t where {t_is_q});
    select count(*) into busy from {queue} as q where q.ctid = any (this.taken);
    update {queue} as q
    set review_after = now() + (select s.busy_delay from gc.settings as s)
    where q.ctid = any (this.taken){not_waiting};
end if;$template$,
        c.words || jsonb_build_object('not_waiting', case
            when gc._owns_sql(c) is null then ''
            else ' and q.ctid <> all (coalesce(this.waiting, ''{}''))'
        end))
$$;

comment on function gc._put_off_sql(gc._shape) is
    'The part of a review that puts off what it could not decide.';


create function gc._review_words(c gc._shape)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.words || jsonb_build_object(
        'function', gc._inline(quote_ident(gc._object_name(c.name, '_review'))),
        'function_name', gc._inline(quote_literal(gc._object_name(c.name, '_review'))),
        'decide', gc._decide_sql(c),
        'variables', concat_ws(E'\n', 'event text;', 'freed bigint;',
            case when gc._is_spread(c) then 'found tid[];' end, case
            when gc._owns_sql(c) is not null
                then E'waiting tid[];\nemptied tid[];\nowned integer;\nfits boolean;'
        end),
        'delete', gc._delete_all_sql(c),
        'put_off', gc._put_off_sql(c),
        'pinned', concat_ws(E'\n', gc._pinned_sql(), gc._zone_settings()))
$$;

comment on function gc._review_words(gc._shape) is
    'What stands for the words in the template of a review.';


create function gc._review_sql(c gc._shape, fingerprint text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(
    batch integer default 1000, entries tid[] default null, most integer default 10000,
    checked boolean default false,
    out reviewed integer, out kept integer, out deleted integer, out busy integer,
    out bytes bigint, out touched integer
)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set plan_cache_mode = force_generic_plan
    {by_index}
    {pinned}
$template$, $template$
#variable_conflict use_column
<<this>>
declare
    wanted integer := batch;
    given tid[] := entries;
    room integer := most;
    taken tid[];
    locked tid[];
    garbage tid[];
    superseded tid[];
    step integer;
    {variables}
begin
    perform gc._require_read_committed({function_name});
    -- Nobody can add a foreign key from here on, and this code knows all that there are.
    if not checked and not gc._is_current({name}, {fingerprint}) then
        select f.* into reviewed, kept, deleted, busy, bytes, touched
        from gc.{function}(wanted, given, room, true) as f;
        return;
    end if;
    {decide}
    {delete}
    {put_off}
end;$template$,
        gc._review_words(c) || jsonb_build_object('fingerprint', quote_literal(fingerprint)))
$$;

comment on function gc._review_sql(gc._shape, text) is 'The function gc.<name>_review.';


-- A row of several columns is compared by the usual operator of each.
create function gc._row_equals(k gc._key_columns)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select case when cardinality(k.operators) = 1 then k.operators[1] else '=' end $$;

comment on function gc._row_equals(gc._key_columns) is 'The operator that compares two keys.';


create function gc._parsed_key_sql(c gc._shape, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when cardinality(k.names) = 1 then format('%s::%s', source, k.types[1])
        else (
            select string_agg(
                gc._inline(format('(%s::gc.%I).%I', source, gc._object_name(c.name, '_key'), u)),
                ', ' order by n)
            from unnest(k.names) with ordinality as n(u, n)
        )
    end
    from (select (c.key).*) as k
$$;

comment on function gc._parsed_key_sql(gc._shape, text) is
    'The columns of a key that is given as text.';


create function gc._scan_statement_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
with seen ({queue_keys}) as materialized (
    (
        select {t_keys} from {target} as t where $2 is null order by {t_keys} limit $1
    )
    union all
    (
        select {t_keys} from {target} as t where ({t_keys}) {greater} ({after})
        order by {t_keys}
        limit $1
    )
),
queued as (
    insert into {queue} ({queue_keys}, event, review_after)
    select {q_keys}, {event}, gc.review_after({event})
    from seen as q
    where not (
            {kept}
        )
        and not exists (select from {queue} as later where {later_is_q})
)
select count(*)::integer, (
    select {q_key_text} from seen as q order by row({q_keys}) desc limit 1
)
from seen$template$,
        c.words || gc._event_words(gc._event(c.events, c.name || '_scan')) || jsonb_build_object(
            'kept', concat_ws(E'\nor ', gc._links_lead_sql(c), gc._kept_sql(c)),
            'greater', replace(gc._row_equals(k), '=', '>'),
            'after', gc._parsed_key_sql(c, '$2')))
    from (select (c.key).*) as k
$$;

comment on function gc._scan_statement_sql(gc._shape) is
    'Goes over rows in the order of their key, and queues those that are garbage.';


create function gc._scan_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(
    batch integer, after text, out seen integer, out last text
)
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {by_index}
    {settings}
$template$, $template$
    {statement}$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, '_scan'))),
            'statement', gc._scan_statement_sql(c)))
$$;

comment on function gc._scan_sql(gc._shape) is 'The function gc.<name>_scan.';


create function gc._key_text_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(key text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    {settings}
$template$, $template$
    select case when {typed} is not null then ({typed})::text end$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, '_key_text'))),
            'typed', case
                when cardinality(k.names) = 1 then format('$1::%s', k.types[1])
                else format('$1::gc.%I', gc._object_name(c.name, '_key'))
            end))
    from (select (c.key).*) as k
$$;

comment on function gc._key_text_sql(gc._shape) is
    'The function gc.<name>_key_text: a key as PostgreSQL prints it.';


-- Only where the key alone makes the url: see gc._shares_objects.
create function gc._url_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(key text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    {settings}
$template$, $template$
    select {url} from (select {typed}) as {alias}({keys})$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, '_url'))),
            'typed', gc._parsed_key_sql(c, '$1')))
$$;

comment on function gc._url_sql(gc._shape) is
    'The function gc.<name>_url: the address that the object of a key has or would have.';


create function gc._lock_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(key text)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {settings}
$template$, $template$
begin
    return (
        select {key_text} from {target} as {alias} where ({row_keys}) {equals} ({typed})
        for key share
    );
end;$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, '_lock'))),
            'equals', gc._row_equals(k),
            'row_keys', gc._listed(k.names, c.alias || '.'),
            'typed', gc._parsed_key_sql(c, '$1')))
    from (select (c.key).*) as k
$$;

comment on function gc._lock_sql(gc._shape) is
    'The function gc.<name>_lock: locks a row as a reference would, and tells its key.';


create function gc._same_generation_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.generation is null then '' else gc._render(
        ' and coalesce({generation} = d.generation, true)', c.words) end
$$;

comment on function gc._same_generation_sql(gc._shape) is
    'The condition that a row and a tombstone do not mean two versions of an object.';


-- A scalar subquery is looked up for each tombstone, through the index; a join is for where there
-- is none, and the planner decides.
create function gc._found_by_url_sql(c gc._shape)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        case
            when not c.url_index
                then 'exists (select from {target} as {alias} where {same_url}{same_generation})'
            else '(select true from {target} as {alias} where {same_url}{same_generation} '
                'limit 1)'
        end,
        c.words || jsonb_build_object('same_generation', gc._same_generation_sql(c)))
$$;

comment on function gc._found_by_url_sql(gc._shape) is
    'The condition that a row has the url of the tombstone d.';


-- By its key, if the key makes that url: a tombstone from before the definition or the key changed
-- is looked up by the url itself, and so is every one until the next review has noticed that a
-- constraint is gone.
create function gc._used_by_key_sql(c gc._shape)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
union all
select d.id
from gc.tombstones as d
where d.id = any ($1)
    and d.collection = {name}
    and case
        when case
            when $2 or not ({proved}) then true
            else d.url is distinct from (select {url} from (select {typed}) as {alias}({keys}))
        end then {found}
        else (
            select true from {target} as {alias}
            where ({row_keys}) {equals} ({typed}) and {same_url}{same_generation}
            limit 1
        )
    end$template$,
        c.words || jsonb_build_object(
            'proved', gc._proved_sql(c),
            'found', gc._found_by_url_sql(c),
            'same_generation', gc._same_generation_sql(c),
            'equals', gc._row_equals(k),
            'row_keys', gc._listed(k.names, c.alias || '.'),
            'typed', gc._parsed_key_sql(c, 'd.key')))
    from (select (c.key).*) as k
$$;

comment on function gc._used_by_key_sql(gc._shape) is
    'The part of gc.<name>_used that finds a row by its key.';


-- A url that is built from the key belongs to that key; any other is looked up by itself.
create function gc._used_sql(c gc._shape)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(tombstones bigint[], by_url boolean)
    returns setof bigint
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {settings}
$template$, $template$
    select d.id
    from gc.tombstones as d
    where d.id = any ($1)
        {unless_own}
        {prefix}
        and {found}
    {own}$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, '_used'))),
            'unless_own', case when c.shared then '' else gc._inline(
                format('and (select count(*) > 1 from gc.collections) and d.collection <> %L',
                    c.name)) end,
            'prefix', case when c.url_prefix is null then '' else
                gc._inline(format('and starts_with(d.url, %L)', c.url_prefix)) end,
            'found', gc._found_by_url_sql(c),
            'own', case when c.shared then '' else gc._used_by_key_sql(c) end))
$$;

comment on function gc._used_sql(gc._shape) is
    'The function gc.<name>_used: which tombstones have an object that a live row has too.';


-- A label or a size that cannot be computed is null, so that the object goes all the same. A row
-- from before there was a column that tells the object would seem to have none.
create function gc._read_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(ids bigint[], bare boolean)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    {settings}
$template$, $template$
#variable_conflict use_column
begin
    if exists (
        select from gc.unread_rows as u
        where u.id = any ($1) and not gc._content_now(u) ?& {needed}
    ) then
        raise 'the row that went does not have all of the columns %', {needed}
            using errcode = 'undefined_column';
    end if;
    if bare then
        insert into gc.tombstones (collection, key, url, generation, created_at, due_at)
        select {name}, {key_text}, {url}, {generation}, u.left_at, {due_at}
        from gc.unread_rows as u
        cross join lateral jsonb_populate_record(
            null::{target}, gc._content_now(u)) as {alias}
        where u.id = any ($1) and {url} is not null;
    else
        insert into gc.tombstones (
            collection, key, label, url, generation, size, created_at, due_at
        )
        select {name}, {key_text}, {label}, {url}, {generation}, {size}, u.left_at, {due_at}
        from gc.unread_rows as u
        cross join lateral jsonb_populate_record(
            null::{target}, gc._content_now(u)) as {alias}
        where u.id = any ($1) and {url} is not null;
    end if;
    delete from gc.unread_rows as u where u.id = any ($1);
end;$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, '_read'))),
            'needed', gc._inline(quote_literal(c.object_columns) || '::text[]')))
$$;

comment on function gc._read_sql(gc._shape) is
    'The function gc.<name>_read: tombstones for rows that were kept whole.';


-- Counted from now: what was overdue for days is not due again at once. Earlier entries of the key
-- know of earlier failures.
create function gc._back_off_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(entries tid[], error text)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    {by_index}
$template$, $template$
declare
    changed integer;
begin
    update {queue} as q
    set review_after = now() + gc._backoff(f.failures), review_count = f.failures + 1,
        last_error = error
    from (
        select q.ctid, max(later.review_count)
        from {queue} as q
        join {queue} as later on {later_is_q}
        where q.ctid = any (entries)
        group by q.ctid
    ) as f(place, failures)
    where q.ctid = f.place;
    get diagnostics changed = row_count;
    return changed;
end;$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, '_back_off')))))
$$;

comment on function gc._back_off_sql(gc._shape) is
    'The function gc.<name>_back_off: puts failed reviews off, longer each time.';


-- Each collection has its own, so that the right to announce an upload can be given for one.
create function gc._entry_sql(c gc._shape, suffix text, arguments text, type text, call text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}({arguments})
    returns {type}
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    {pinned}
$template$, $template$
begin
    return {call};
end;$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, suffix))),
            'arguments', arguments, 'type', type, 'pinned', gc._pinned_sql(),
            'call', gc._render(call, c.words)))
$$;

comment on function gc._entry_sql(gc._shape, text, text, text, text) is
    'A function that is called for those who may use the collection.';
