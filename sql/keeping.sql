-- Keeping: the conditions under which a row is no garbage, as SQL over an entry q of its queue.

create function gc._not_itself(c gc._shape, r gc._reference, alias text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when r.itself then
            format(' and not (%s)', gc._pair(
                k.names, coalesce((r.mention).alias, 'r'), k.queue_names, alias, k.operators))
        else ''
    end
    from (select (c.key).*) as k
$$;

comment on function gc._not_itself(gc._shape, gc._reference, text) is
    'The condition that a referring row is not the target itself; empty where it cannot be.';


create function gc._key_pair(r gc._reference, alias text default 'r')
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select concat_ws(' and ',
        gc._pair(
            r.columns, alias, array(select gc._queue_column(u) from unnest(r.targets) as u), 'q',
            r.operators),
        gc._not_null_sql(gc._other_columns(r), alias))
$$;

comment on function gc._key_pair(gc._reference, text) is
    'The condition that a row of a reference to the key points at the queue entry q.';


-- Each owned row tells in which partition to look. offset 0: so that it is at hand then.
create function gc._passing_sql(c gc._shape, r gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        '{owned} as o cross join lateral (select r.*, r.tableoid, r.ctid from {referencing} as r '
        'where {r_is_o} offset 0) as r where {o_is_q}',
        jsonb_build_object(
            'owned', gc._only(o.referencing), 'referencing', r.referencing::text,
            'r_is_o', gc._pair(p.columns, 'r', p.targets, 'o', p.operators),
            'o_is_q', gc._key_pair(o, 'o')))
    from (select (r.passage).*) as p
    join unnest(c.refs) as o on o.reference = p.owner
$$;

comment on function gc._passing_sql(gc._shape, gc._reference) is
    'The rows r of a reference that point at what the target of the queue entry q owns.';


-- A row of the collection that refers to itself does not keep itself.
create function gc._referring_sql(c gc._shape, r gc._reference, wanted text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when gc._is_mention(r) then gc._mentioning_sql(c, r, wanted) else gc._render(
        case
            when (r.passage).prunes then 'select{wanted} from {passing}'
            when r.to_key
                then 'select{wanted} from {referencing} as r where {r_is_q}{not_itself}'
            else 'select{wanted} from {target} as t join {referencing} as r on {t_is_r} '
                'where {t_is_q}{not_itself}'
        end,
        jsonb_build_object(
            'wanted', wanted, 'passing', gc._passing_sql(c, r),
            'target', c.target::text, 'referencing', r.referencing::text,
            'r_is_q', gc._key_pair(r),
            't_is_r', gc._pair(r.targets, 't', r.columns, 'r', r.operators),
            't_is_q', gc._pair(k.names, 't', k.queue_names, 'q', k.operators),
            'not_itself', gc._not_itself(c, r, 'q'))) end
    from (select (c.key).*) as k
$$;

comment on function gc._referring_sql(gc._shape, gc._reference, text) is
    'The query for the rows r of this reference that point at the key of the queue entry q.';


create function gc._refers_sql(c gc._shape, r gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select 'exists (' || gc._referring_sql(c, r, '') || ')' $$;

comment on function gc._refers_sql(gc._shape, gc._reference) is
    'The condition that a row of this reference points at the key of the queue entry q.';


create function gc._excused_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format(
        'exists (select from %s as %s where %s and (%s) is not true)',
        c.target, c.alias,
        gc._pair(k.names, c.alias, k.queue_names, 'q', k.operators),
        c.condition)
    from (select (c.key).*) as k
    where c.condition is not null
$$;

comment on function gc._excused_sql(gc._shape) is
    'The condition that the target of the queue entry q does not meet the collection''s condition.';


create function gc._timeless_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select case when c.turns is null then gc._excused_sql(c) end $$;

comment on function gc._timeless_sql(gc._shape) is
    'gc._excused_sql where time alone cannot change it; null: there is no condition, or it can.';


create function gc._referred_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(gc._refers_sql(c, r), E'\nor ')
    from unnest(c.refs) as r
    where r.owned is null
$$;

comment on function gc._referred_sql(gc._shape) is
    'The condition that any reference keeps the key of the queue entry q; null: there is none.';


-- As the row writes its key: who refers to 1 may have written 1.0.
create function gc._pinned_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        '(select gc._has_pins({name})) and exists (select from {target} as t '
        'join gc.pins as p on md5(p.key) = md5({t_key_text}) and p.key = {t_key_text} '
        'where {t_is_q} and p.collection = {name} and p.until > clock_timestamp())', c.words)
$$;

comment on function gc._pinned_sql(gc._shape) is
    'The condition that the target of the queue entry q is pinned.';


-- Why a row is no garbage, in full: asked after the lock. Before it, links may answer for some of
-- it: see gc._plainly_kept_sql. A condition that time can make true lets nothing leave the queue.
create function gc._kept_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select concat_ws(E'\nor ', gc._referred_sql(c), gc._timeless_sql(c), gc._pinned_sql(c))
$$;

comment on function gc._kept_sql(gc._shape) is
    'The condition that something keeps the key of the queue entry q.';
