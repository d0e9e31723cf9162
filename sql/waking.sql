-- Waking: when a condition that reads the clock may become true.
--
-- Time changes no row, so no trigger tells. A row that only such a condition keeps therefore stays
-- in the queue, asleep, until the moment at which the condition will hold: that is computed where
-- time can only make the condition true, and asked for again and again, at growing intervals, where
-- time may do anything. The node tree tells, and what is not listed may do anything.
--   @row      does not change with time      @later, @earlier  a time that only grows, or shrinks
--   @up       once true, it stays true       @down             once false, it stays false
--   @clock    anything

create function gc._flipped(token text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case token
        when '@later' then '@earlier' when '@earlier' then '@later'
        when '@up' then '@down' when '@down' then '@up'
        else token
    end
$$;

comment on function gc._flipped(text) is 'The opposite of what time does to a part of a condition.';


-- Arithmetic with times, and comparisons of them. A cast of a time loses some of it, but never
-- turns it around.
create function gc._timed_call(name text, arguments text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when name in ('now', 'transaction_timestamp', 'statement_timestamp') then '@later'
        when first in ('@later', '@earlier') and coalesce(second, '@row') = '@row' and (
            name ~ '^(timestamptz|timestamp|date)_(pl|mi)_interval$'
            or name in ('date_pli', 'date_mii', 'timestamptz_mi', 'timestamp_mi', 'date_mi',
                'timestamp', 'timestamptz', 'date')) then first
        when first = '@row' and second in ('@later', '@earlier') and name in (
            'interval_pl_timestamptz', 'interval_pl_timestamp', 'interval_pl_date',
            'integer_pl_date') then second
        when first = '@row' and second in ('@later', '@earlier') and name in (
            'timestamptz_mi', 'timestamp_mi', 'date_mi') then gc._flipped(second)
        when operation is null then '@clock'
        when first = '@row' and second in ('@later', '@earlier') then
            case when (operation in ('lt', 'le')) = (second = '@later') then '@up' else '@down' end
        when second = '@row' and first in ('@later', '@earlier') then
            case when (operation in ('gt', 'ge')) = (first = '@later') then '@up' else '@down' end
        else '@clock'
    end
    from (
        select nullif(split_part(arguments, ' ', 1), ''), nullif(split_part(arguments, ' ', 2), ''),
            substring(name from '^(?:(?:timestamptz|timestamp|date|interval)_|int4)(lt|le|gt|ge)'
                '(?:_(?:timestamptz|timestamp|date))?$')
    ) as a(first, second, operation)
$$;

comment on function gc._timed_call(text, text) is
    'What time does to the result of a function that came with the server.';


-- A function of the user''s own that is not immutable may read the clock itself.
create function gc._timed_node(node text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    kind text := substring(node from '^\{([A-Z_]+)');
    called pg_proc;
    tokens text[] := array(
        select distinct m[1] from regexp_matches(node, '@(?!row)[a-z]+', 'g') as m);
begin
    select p.* into called from pg_proc as p
    where p.oid = substring(node from ':(?:op)?funcid (\d+)')::oid;
    return case
        when kind = 'SQLVALUEFUNCTION' then
            case when node ~ ':op [03478] ' then '@later' else '@clock' end
        when called.provolatile <> 'i' and called.pronamespace <> 'pg_catalog'::regnamespace
            then '@clock'
        when called.proname = 'age' and called.pronargs = 1 then '@clock'
        when called.proname in ('now', 'transaction_timestamp', 'statement_timestamp')
                and called.pronamespace = 'pg_catalog'::regnamespace
            or tokens <> '{}' and kind in ('OPEXPR', 'FUNCEXPR')
                and called.pronamespace = 'pg_catalog'::regnamespace
            then gc._timed_call(called.proname, substring(node from ':args \(([^()]*)\)'))
        when tokens = '{}' then '@row'
        when cardinality(tokens) > 1 then '@clock'
        when kind = 'RELABELTYPE' then tokens[1]
        when kind = 'BOOLEXPR' and node ~ ':boolop (and|or) ' then tokens[1]
        when kind = 'BOOLEXPR' then gc._flipped(tokens[1])
        else '@clock'
    end;
end;
$$;

comment on function gc._timed_node(text) is
    'What time does to one node of a tree, whose own parts are tokens already.';


-- From the innermost nodes outwards.
create function gc._turns(c gc.collections)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    tree text := case when c.condition is not null
        then gc._expression_tree(c.target, 'condition', c.condition) end;
    node text;
begin
    loop
        node := substring(tree from '\{[^{}]*\}');
        exit when node is null;
        tree := replace(tree, node, gc._timed_node(node));
    end loop;
    return case tree when '@up' then 'up' when '@row' then null when '@down' then null
        else 'anyhow' end
    where c.condition is not null;
end;
$$;

comment on function gc._turns(gc.collections) is
    'How time alone can make the condition of a collection true: up: once, for good; anyhow: '
    'nobody knows; null: not at all.';


-- Texts and names in quotes are left alone.
create function gc._condition_at_sql(c gc._shape, moment text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(case
            when m[2] is null then coalesce(m[1], m[3])
            when m[2] = 'CURRENT_DATE' then format('(%s)::date', moment)
            when m[2] ~ '^LOCALTIMESTAMP' then format('(%s)::timestamp', moment)
            else moment
        end, '' order by n)
    from regexp_matches(c.condition,
        $re$(E?'(?:[^'\\]|''|\\.)*'|"(?:[^"]|"")*")|(?<![\w.])((?:now|transaction_timestamp|$re$
        || $re$statement_timestamp)\(\)|(?:CURRENT_TIMESTAMP|LOCALTIMESTAMP)(?:\(\d\))?|$re$
        || $re$CURRENT_DATE)(?!\w)|(.)$re$, 'g') with ordinality as r(m, n)
$$;

comment on function gc._condition_at_sql(gc._shape, text) is
    'The condition as it would be at another moment.';


-- At most a tenth later than it need be, and not too often however many rows there are.
create function gc._next_look(asleep_since timestamptz)
    returns timestamptz
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select now() + least(interval '1 day',
        greatest(interval '10 minutes', s.busy_delay, (now() - asleep_since) / 10))
    from gc.settings as s
$$;

comment on function gc._next_look(timestamptz) is
    'When to look again at a row whose condition may become true at any time.';


-- Null: it never will. The row is given as a record, for a function that has the table''s own type
-- would keep the table from being dropped.
create function gc._wakes_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_wakes', $template$
create or replace function gc.{function}(content record, asleep_since timestamptz)
    returns timestamptz
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    {pinned}
$template$, $template$
declare
    {alias} {target} := $1;
    gc_early timestamptz := now();
    gc_late timestamptz := now() + interval '200 years';
    gc_moment timestamptz := gc_late;
begin
    if ({condition}) is not true then
        return null;
    end if;
    while gc_late - gc_early > interval '1 second' loop
        gc_moment := gc_early + (gc_late - gc_early) / 2;
        if ({condition}) then
            gc_late := gc_moment;
        else
            gc_early := gc_moment;
        end if;
    end loop;
    return gc_late;
exception
    when others then
        perform gc._raise_if_passing(sqlstate, sqlerrm);
        return gc._next_look($2);
end;$template$,
        jsonb_build_object(
            'pinned', concat_ws(E'\n', gc._fixed_settings_sql(), gc._zone_settings()),
            'condition', gc._condition_at_sql(c, 'gc_moment')))
    where c.turns = 'up'
$$;

comment on function gc._wakes_sql(gc._shape) is
    'The function gc.<name>_wakes: when the condition of a row becomes true, to the second.';


create function gc._waking_sql(c gc._shape, asleep_since text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case c.turns
        when 'up' then format('gc.%I(%s.*, %s)', gc._object_name(c.name, '_wakes'), c.alias,
            asleep_since)
        else format('gc._next_look(%s)', asleep_since)
    end
$$;

comment on function gc._waking_sql(gc._shape, text) is
    'The expression for when the condition of a row may become true.';


create function gc._asleep_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
select coalesce(array_agg(q.ctid), '{}'), coalesce(array_agg({waking}), '{}')
into this.asleep, this.wakes
from {queue} as q
join {target} as {alias} on {row_is_q}
where q.ctid = any (this.taken) and ({condition}) is not true;$template$,
        c.words || jsonb_build_object(
            'condition', c.condition,
            'waking', gc._waking_sql(c, 'q.asleep_since'),
            'row_is_q', gc._pair((c.key).names, c.alias, (c.key).queue_names, 'q',
                (c.key).operators)))
$$;

comment on function gc._asleep_sql(gc._shape) is
    'The statement that finds the entries whose rows only the condition keeps.';


-- A later entry speaks for the row: it is there, or was dropped by a review that found the row
-- referred to, and that reference leaves an entry when it goes. One that has a cause stays until it
-- can hand the cause over.
create function gc._put_to_sleep_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.turns is null then '' else gc._render($template$
-- Asleep: what only the condition keeps stays, until that may have become true.
{look_apart}
if cardinality(this.asleep) > 0 then
    with dropped as (
        delete from {queue} as q
        using unnest(this.asleep, this.wakes) as w(place, wakes)
        where q.ctid = w.place and (w.wakes is null or q.causes is null and exists (
            select from {queue} as later where {later_is_q} and later.entry > q.entry
        ))
        returning q.*
    ){noted}
    select count(*) into this.step from dropped;
    update {queue} as q
    set review_after = w.wakes, asleep_since = coalesce(q.asleep_since, now())
    from unnest(this.asleep, this.wakes) as w(place, wakes)
    where q.ctid = w.place;
    kept := kept + cardinality(this.asleep);
end if;$template$,
        c.words || jsonb_build_object('noted', gc._noted_sql(c), 'look_apart', case
            when gc._is_spread(c) then gc._apart_sql(gc._asleep_sql(c)) else gc._asleep_sql(c)
        end)) end
$$;

comment on function gc._put_to_sleep_sql(gc._shape) is
    'The part of a first look that puts off what only the condition keeps, and time may change.';
