-- Templates of the functions that are called: review, scan, and the look-ups by key and by url.

create function gc._owned_pair(c gc.collections, r gc._reference, alias text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when r.to_key then gc._pair(
            r.columns, 'r', array(select gc._queue_column(u) from unnest(r.targets) as u), alias,
            r.operators)
        else format('exists (select from %s as t where %s and %s)', c.target,
            gc._pair(r.targets, 't', r.columns, 'r', r.operators),
            gc._pair(k.names, 't', k.queue_names, alias, k.operators))
    end
    from gc._key(c.target) as k
$$;

comment on function gc._owned_pair(gc.collections, gc._reference, text) is
    'The condition that a row r is owned by the target of a queue entry.';


-- Owned rows go with their target. A transaction deletes at most as many rows as there is room for;
-- targets are taken whole while they fit, and only one that alone is too big is emptied in steps.
create function gc._owned_count_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        format('(select count(*) from (select from %s as r where %s limit this.room) as o)',
            r.referencing, gc._owned_pair(c, r, 'q')),
        E'\n                + ' order by r.owned)
    from gc._references(c) as r
    where r.owned is not null
$$;

comment on function gc._owned_count_sql(gc.collections) is
    'The expression for how many rows the target of the queue entry q owns.';


-- A row's place tells it from all others; in a partitioned table only together with its partition.
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


create function gc._drain_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        gc._render($template$
delete from {referencing} as r
using (
    select {r_place}
    from {queue} as q
    join {referencing} as r on {r_is_q}
    where q.ctid = any (this.garbage)
    limit greatest(this.room, 0)
) as o
where {r_is_o};
get diagnostics this.step = row_count;
this.room := this.room - this.step;
touched := touched + this.step;$template$,
            gc._words(c) || jsonb_build_object(
                'referencing', r.referencing,
                'r_is_q', gc._owned_pair(c, r, 'q'),
                'r_place', gc._idents(p.place, 'r.'),
                'r_is_o', gc._pair(p.place, 'r', p.place, 'o', case
                    when p.place = k.names then k.operators
                    else array_fill('='::text, array[cardinality(p.place)]) end))),
        E'\n' order by r.owned)
    from gc._references(c) as r
    cross join lateral gc._place(r.referencing) as p(place)
    cross join lateral gc._key(r.referencing) as k
    where r.owned is not null
$$;

comment on function gc._drain_sql(gc.collections) is
    'The statements that delete owned rows, in the order of "owned".';


create function gc._owns_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(gc._refers_sql(c, r), E'\n    or ' order by r.owned)
    from gc._references(c) as r
    where r.owned is not null
$$;

comment on function gc._owns_sql(gc.collections) is
    'The condition that the target of the queue entry q still owns rows.';


create function gc._owned_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when gc._owns_sql(c) is null then '' else gc._render($template$
-- What it owns goes first: whole rows while there is room, or the first one in part.
this.waiting := array(
    select f.place
    from (
        select q.ctid, row_number() over w, sum(1 + o.rows) over w
        from {queue} as q
        cross join lateral (
            select {owned_count}
        ) as o(rows)
        where q.ctid = any (this.garbage)
        window w as (order by q.entry)
    ) as f(place, n, total)
    where f.n > 1 and f.total > this.room
);
this.garbage := array(select g from unnest(this.garbage) as g where g <> all (this.waiting));
{drain}
this.emptied := array(
    select q.ctid from {queue} as q
    where q.ctid = any (this.garbage)
        and not (
            {owns}
        )
);
this.waiting := this.waiting || this.garbage;
this.garbage := this.emptied;$template$,
        gc._words(c) || jsonb_build_object(
            'owned_count', gc._owned_count_sql(c),
            'drain', gc._drain_sql(c),
            'owns', gc._owns_sql(c))) end
$$;

comment on function gc._owned_sql(gc.collections) is
    'The part of a review that deletes owned rows; empty where nothing is owned.';


-- Rows without an object have nobody to confirm them: the review writes their log.
create function gc._logged_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.url is not null then '' else gc._render($template$
insert into gc.deletion_log (collection, key, label, size, event, row_deleted_at)
select {name}, {q_key_text}, v.label, v.size, q.event, now()
from {queue} as q
join {target} as t on {t_is_q}
cross join lateral (
    select {label}, {size} from (select t.*) as {alias}
) as v(label, size)
where q.ctid = any (this.garbage);$template$, gc._words(c)) end
$$;

comment on function gc._logged_sql(gc.collections) is
    'The part of a review that writes the log; empty where a runner confirms.';


-- Failures of entries that are superseded; only entries that are reviewed singly have any.
create function gc._inherit_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- The latest entry of a key speaks for it, and knows of the failures that earlier ones had.
if this.given is not null then
    update {queue} as q
    set review_count = greatest(q.review_count, failed.review_count),
        last_error = coalesce(q.last_error, failed.last_error)
    from (
        select later.ctid, q.review_count, q.last_error
        from {queue} as q
        join {queue} as later on {later_is_q} and later.entry > q.entry
        where q.ctid = any (this.given) and q.review_count > 0
        for update of later skip locked
    ) as failed(place, review_count, last_error)
    where q.ctid = failed.place;
end if;$template$, gc._words(c))
$$;

comment on function gc._inherit_sql(gc.collections) is
    'The part of a review that hands failures on to the latest entry of a key.';


create function gc._look_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- Look: take what is due, longest overdue first, and leave to other reviews what they have taken.
-- An entry that has a later one, and one whose row is plainly kept, leave the queue. No lock is
-- needed, because a reference that goes a moment later leaves an entry of its own.
loop
    this.taken := coalesce(this.given, array(
        select q.ctid
        from {queue} as q
        where q.review_after <= now() and q.review_count = 0
        order by q.review_after
        limit least(this.wanted, this.room)
        for update skip locked
    ));
    with looked as materialized (
        select q.ctid as place,
            exists (
                select from {queue} as later where {later_is_q} and later.entry > q.entry
            ) as superseded,
            (
                {kept}
            ) as kept
        from {queue} as q
        where q.ctid = any (this.taken)
    ),
    dropped as (
        delete from {queue} as q
        using looked as l
        where q.ctid = l.place and (l.superseded or l.kept)
    )
    select count(*), count(*) filter (where not l.superseded),
        count(*) filter (where l.kept and not l.superseded),
        array_agg(l.place) filter (where not l.kept and not l.superseded)
    into this.step, reviewed, kept, this.taken
    from looked as l;
    exit when reviewed > 0 or this.step = 0 or this.given is not null;
end loop;$template$, gc._words(c))
$$;

comment on function gc._look_sql(gc.collections) is
    'The part of a review that takes entries off the queue and looks a first time.';


create function gc._look_again_sql(c gc.collections)
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
with looked as materialized (
    select q.ctid as place,
        (
            {kept}
        ) as kept,
        exists (
            select from gc.holds as h
            where h.collection = {name} and h.key = {q_key_text} and h.held_until > now()
        ) as held
    from {queue} as q
    where q.ctid = any (this.locked)
)
select array_agg(l.place) filter (where not l.kept and not l.held),
    array_agg(l.place) filter (where l.kept)
into this.garbage, this.saved
from looked as l;
kept := kept + coalesce(cardinality(this.saved), 0);
touched := 0;$template$, gc._words(c))
$$;

comment on function gc._look_again_sql(gc.collections) is
    'The part of a review that locks, and looks again.';


create function gc._delete_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
{logged}
-- The row goes first, then its object: a trigger leaves the tombstone.
perform set_config('blobgc.reviewing', {name}, true);
with gone as (
    delete from {target} as t
    using {queue} as q
    where q.ctid = any (this.garbage) and {t_is_q}
    returning t.*
)
select count(*), coalesce(sum({size}), 0) into deleted, bytes from gone as {alias};
perform set_config('blobgc.reviewing', '', true);
if deleted < cardinality(this.garbage) then
    raise 'a trigger or a rule on % kept % rows from being deleted',
        {table}, cardinality(this.garbage) - deleted;
end if;
touched := touched + deleted;
delete from {queue} as q where q.ctid = any (this.garbage || this.saved);
-- What is left in the queue is gone, or somebody holds it: that is looked at again in a while.
busy := coalesce(cardinality(this.taken), 0) - deleted - coalesce(cardinality(this.saved), 0);
if busy > 0 then
    delete from {queue} as q
    where q.ctid = any (this.taken) and not exists (select from {target} as t where {t_is_q});
    get diagnostics this.step = row_count;
    busy := busy - this.step;
    update {queue} as q
    set review_after = now() + (select s.busy_delay from gc.settings as s)
    where q.ctid = any (this.taken){not_waiting};
end if;$template$,
        gc._words(c) || jsonb_build_object(
            'logged', gc._logged_sql(c),
            'not_waiting', case
                when gc._owns_sql(c) is null then ''
                else ' and q.ctid <> all (this.waiting)'
            end))
$$;

comment on function gc._delete_sql(gc.collections) is
    'The part of a review that deletes, and puts off what it could not decide.';


create function gc._review_words(c gc.collections)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._words(c) || jsonb_build_object(
        'function', quote_ident(gc._object_name(c.name, '_review')),
        'inherit', gc._inherit_sql(c),
        'look', gc._look_sql(c),
        'look_again', gc._look_again_sql(c),
        'owned', gc._owned_sql(c),
        'owned_variables', case
            when gc._owns_sql(c) is null then '' else E'waiting tid[];\nemptied tid[];'
        end,
        'delete', gc._delete_sql(c))
$$;

comment on function gc._review_words(gc.collections) is
    'What stands for the words in the template of a review.';


create function gc._review_sql(c gc.collections, fingerprint text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
create or replace function gc.{function}(
    batch integer default 1000, entries tid[] default null, most integer default 10000,
    out reviewed integer, out kept integer, out deleted integer, out busy integer,
    out bytes bigint, out touched integer
)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set plan_cache_mode = force_generic_plan
    {settings}
as $review$
#variable_conflict use_column
<<this>>
declare
    wanted integer := batch;
    given tid[] := entries;
    room integer := most;
    taken tid[];
    locked tid[];
    garbage tid[];
    saved tid[];
    {owned_variables}
    step integer;
begin
    -- Nobody can add a foreign key from here on, and this code knows all that there are.
    if not gc._is_current({name}, {fingerprint}) then
        select f.* into reviewed, kept, deleted, busy, bytes, touched
        from gc.{function}(wanted, given, room) as f;
        return;
    end if;
    {inherit}
    {look}
    {look_again}
    {owned}
    {delete}
end;
$review$
$template$, gc._review_words(c) || jsonb_build_object('fingerprint', quote_literal(fingerprint)))
$$;

comment on function gc._review_sql(gc.collections, text) is 'The function gc.<name>_review.';


-- A row of several columns is compared by the usual operator of each.
create function gc._row_equals(k gc._key_columns)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select case when cardinality(k.operators) = 1 then k.operators[1] else '=' end $$;

comment on function gc._row_equals(gc._key_columns) is 'The operator that compares two keys.';


create function gc._parsed_key_sql(c gc.collections, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when cardinality(k.names) = 1 then format('%s::%s', source, k.types[1])
        else (
            select string_agg(format('(%s::gc.%I).%I', source, gc._object_name(c.name, '_key'), u),
                ', ' order by n)
            from unnest(k.names) with ordinality as n(u, n)
        )
    end
    from gc._key(c.target) as k
$$;

comment on function gc._parsed_key_sql(gc.collections, text) is
    'The columns of a key that is given as text.';


create function gc._scan_statement_sql(c gc.collections)
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
    select {q_keys}, {event}, (select gc.review_after({event}))
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
        gc._words(c) || jsonb_build_object(
            'event', quote_literal(gc._event(c, c.name || '_scan')),
            'kept', coalesce((
                select string_agg(gc._refers_sql(c, r), E'\nor ')
                from gc._references(c) as r where r.owned is null), 'false'),
            'greater', replace(gc._row_equals(k), '=', '>'),
            'after', gc._parsed_key_sql(c, '$2')))
    from gc._key(c.target) as k
$$;

comment on function gc._scan_statement_sql(gc.collections) is
    'Goes over rows in the order of their key, and queues those that nothing refers to.';


create function gc._scan_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
create or replace function gc.{function}(
    batch integer, after text, out seen integer, out last text
)
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {settings}
as $scan$
    {statement}
$scan$
$template$,
        gc._words(c) || jsonb_build_object(
            'function', quote_ident(gc._object_name(c.name, '_scan')),
            'statement', gc._scan_statement_sql(c)))
$$;

comment on function gc._scan_sql(gc.collections) is 'The function gc.<name>_scan.';


create function gc._key_text_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
create or replace function gc.{function}(key text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    {settings}
as $key$
    select case when {typed} is not null then ({typed})::text end
$key$
$template$,
        gc._words(c) || jsonb_build_object(
            'function', quote_ident(gc._object_name(c.name, '_key_text')),
            'typed', case
                when cardinality(k.names) = 1 then format('$1::%s', k.types[1])
                else format('$1::gc.%I', gc._object_name(c.name, '_key'))
            end))
    from gc._key(c.target) as k
$$;

comment on function gc._key_text_sql(gc.collections) is
    'The function gc.<name>_key_text: a key as PostgreSQL prints it.';


create function gc._lock_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
create or replace function gc.{function}(key text)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
as $lock$
begin
    perform from {target} as t where ({t_keys}) {equals} ({typed}) for key share;
    return found;
end;
$lock$
$template$,
        gc._words(c) || jsonb_build_object(
            'function', quote_ident(gc._object_name(c.name, '_lock')),
            'equals', gc._row_equals(gc._key(c.target)),
            'typed', gc._parsed_key_sql(c, '$1')))
$$;

comment on function gc._lock_sql(gc.collections) is
    'The function gc.<name>_lock: locks a row as a reference would, and tells whether it exists.';


-- A url that is built from the whole key belongs to that key; any other is looked up by itself.
create function gc._used_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
create or replace function gc.{function}(tombstones bigint[])
    returns setof bigint
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {settings}
as $used$
    select d.id
    from gc.tombstones as d
    where d.id = any ($1)
        and d.collection = {name}
        and exists (
            select from {target} as {alias}
            where {url} = d.url
                {same_key}
                {same_generation}
        )
$used$
$template$,
        gc._words(c) || jsonb_build_object(
            'function', quote_ident(gc._object_name(c.name, '_used')),
            'same_generation', case
                when c.generation is null then ''
                else format('and coalesce((%s)::text = d.generation, true)', c.generation)
            end,
            'same_key', case
                when c.shared then ''
                else format('and (%s) %s (%s)',
                    gc._idents(k.names, quote_ident(gc._alias(c.target)) || '.'),
                    gc._row_equals(k), gc._parsed_key_sql(c, 'd.key'))
            end))
    from gc._key(c.target) as k
$$;

comment on function gc._used_sql(gc.collections) is
    'The function gc.<name>_used: which tombstones have an object that a live row has too.';
