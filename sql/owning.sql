-- Owning: rows that belong to a target go with it, and before it.
--
-- A transaction deletes at most as many rows as there is room for; targets are taken whole while
-- they fit. One that alone is too big goes whole and by itself: half empty, it could be referred to
-- again. Only where a condition says that nobody uses it any more is it emptied in steps. A target
-- of which somebody holds an owned row waits, for whoever holds it may wait for the target.

create function gc._owner(c gc._shape, r gc._reference)
    returns gc._reference
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select o from unnest(c.refs) as o
    where o.reference = r.via and o.owned is not null and o.depth < r.depth
    limit 1
$$;

comment on function gc._owner(gc._shape, gc._reference) is
    'The owned reference to whose rows this one refers.';


-- In parentheses, the names inside a join can be seen from outside.
create function gc._owned_rows(c gc._shape, r gc._reference, alias text default 'r')
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when r.via is null then format('%s as %s', gc._only(r.referencing), alias)
        else format('(%s join %s as %s on %s)',
            gc._owned_rows(c, gc._owner(c, r), alias || '_owner'), gc._only(r.referencing), alias,
            gc._pair(r.columns, alias, r.targets, alias || '_owner', r.operators))
    end
$$;

comment on function gc._owned_rows(gc._shape, gc._reference, text) is
    'The rows r of an owned reference, joined with those of the target''s that they belong to.';


create function gc._owned_pair(
    c gc._shape, r gc._reference, alias text, row_alias text default 'r'
)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when r.via is not null
            then gc._owned_pair(c, gc._owner(c, r), alias, row_alias || '_owner')
        when r.to_key then gc._pair(
            r.columns, row_alias,
            array(select gc._queue_column(u) from unnest(r.targets) as u), alias, r.operators)
        else format('exists (select from %s as t where %s and %s)', c.target,
            gc._pair(r.targets, 't', r.columns, row_alias, r.operators),
            gc._pair(k.names, 't', k.queue_names, alias, k.operators))
    end || gc._not_itself(c, r, alias) || gc._owned_when(r)
    from (select (c.key).*) as k
$$;

comment on function gc._owned_pair(gc._shape, gc._reference, text, text) is
    'The condition that a row r of gc._owned_rows is owned by the target of a queue entry.';


create function gc._owned_count_sql(c gc._shape, locking text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        format('(select count(*) from (select from %s where %s limit this.room%s) as o)',
            gc._owned_rows(c, r), gc._owned_pair(c, r, 'q'), locking),
        E'\n+ ' order by r.depth, r.owned)
    from unnest(c.refs) as r
    where r.owned is not null
$$;

comment on function gc._owned_count_sql(gc._shape, text) is
    'The expression for how many rows the target of the queue entry q owns.';


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
    join {owned_rows} on {r_is_q}
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
                'referencing', gc._only(r.referencing), 'owned_rows', gc._owned_rows(c, r),
                'r_is_q', gc._owned_pair(c, r, 'q'),
                'r_columns', gc._idents(p.columns, 'r.'),
                'r_is_o', gc._pair(p.columns, 'r', p.columns, 'o', p.operators))),
        E'\n' order by r.depth desc, r.owned)
    from unnest(c.refs) as r
    cross join lateral gc._drain_columns(r) as p
    where r.owned is not null
$$;

comment on function gc._drain_sql(gc._shape) is
    'The statements that delete owned rows: innermost first, then in the order of "owned".';


create function gc._owns_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        format('exists (select from %s where %s)',
            gc._owned_rows(c, r), gc._owned_pair(c, r, 'q')),
        E'\nor ' order by r.owned)
    from unnest(c.refs) as r
    where r.owned is not null
$$;

comment on function gc._owns_sql(gc._shape) is
    'The condition that the target of the queue entry q still owns rows.';


-- Nearly always, all owned rows fit and nobody has one locked: one join shows that.
-- Outermost first: whoever adds a row to what is owned has the owned row locked.
create function gc._lock_owned_sql(c gc._shape, most text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        gc._render($template$
perform from {queue} as q
join {owned_rows} on {r_is_q}
where q.ctid = any (this.garbage)
limit {most}
for update of r nowait;
get diagnostics this.step = row_count;
this.owned := this.owned + this.step;$template$,
            c.words || jsonb_build_object(
                'owned_rows', gc._owned_rows(c, r), 'r_is_q', gc._owned_pair(c, r, 'q'),
                'most', most)),
        E'\n' order by r.depth, r.owned)
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
