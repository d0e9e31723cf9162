-- Key changes: a row that gets another key is pinned, and held, under that key as well.
--
-- The trigger that follows an update only appends here, whatever is pinned: it waits for no pin
-- that somebody is writing, and no snapshot is too old to see one. Reviews have pins follow. A
-- review locks its rows first, so by then every pin of an earlier key is committed, and so is its
-- change: a row whose change is here still is busy, and nothing goes with it.

create table gc.key_changes (
    id bigint generated always as identity
        constraint key_changes_pkey primary key,
    collection text not null,
    old_keys text[] not null,
    new_keys text[] not null
);
create index key_changes_collection_idx on gc.key_changes (collection);

comment on table gc.key_changes is
    'Keys that have changed, until pins and holds have followed.';
comment on column gc.key_changes.id is
    'The order of the changes: a row is changed again only after the first change is committed.';
comment on column gc.key_changes.collection is 'The collection of the rows.';
comment on column gc.key_changes.old_keys is 'The keys of the updated rows before, as text.';
comment on column gc.key_changes.new_keys is
    'Those after it, in the same order; another number of them: it is not known which is which.';


-- In lines of ten thousand rows, because a statement may change more than one value has room for.
-- Where it is not known which is which, all are one line.
create function gc._key_lines_sql(c gc._shape, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
select r.n / case when s.is_same then 10000 else 9223372036854775807 end,
    array_agg(r.key order by r.n)
from (select row_number() over () - 1, {key_text} from {source} as {alias}) as r(n, key)
cross join (
    select (select count(*) from {old_rows} as o) = (select count(*) from {new_rows} as n)
) as s(is_same)
group by 1$template$, c.words || jsonb_build_object('source', source))
$$;

comment on function gc._key_lines_sql(gc._shape, text) is
    'The query for the keys of updated rows, before or after, in lines.';


-- Not if the rows that are compared would be none: 1.0 and 1.00 are one key to PostgreSQL, and two
-- texts; and rows may exchange their keys, if the primary key is checked at the statement's end.
create function gc._queues_changed_keys(c gc._shape)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.collect <> 'deleted' and bool_and(
        i.indimmediate and gc._is_one_value(a.atttypid, a.attcollation))
    from pg_index as i
    join pg_attribute as a on a.attrelid = i.indrelid
    where i.indrelid = c.target and i.indisprimary and a.attname = any ((c.key).names)
$$;

comment on function gc._queues_changed_keys(gc._shape) is
    'Whether a statement that changes keys queues rows in any case.';


create function gc._note_keys_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        case when gc._queues_changed_keys(c) then E'if found then\n    {noted}\nend if;'
            else '{noted}' end,
        jsonb_build_object('noted', gc._render($template$
insert into gc.key_changes (collection, old_keys, new_keys)
select {name}, coalesce(o.keys, '{}'), coalesce(n.keys, '{}')
from (
    {olds}
) as o(line, keys)
full join (
    {news}
) as n(line, keys) on n.line = o.line
where o.keys is distinct from n.keys;$template$, c.words || jsonb_build_object(
            'olds', gc._key_lines_sql(c, c.words ->> 'old_rows'),
            'news', gc._key_lines_sql(c, c.words ->> 'new_rows')))))
$$;

comment on function gc._note_keys_sql(gc._shape) is
    'The statement that notes keys that an update has changed, right after that which queues.';


-- As PostgreSQL prints a row.
create function gc._row_text(fields text[])
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select '(' || string_agg(
        case
            when f.field = '' or f.field ~ E'[\\s"\\\\(),]'
                then '"' || replace(replace(f.field, E'\\', E'\\\\'), '"', '""') || '"'
            else f.field
        end, ',' order by f.n) || ')'
    from unnest(fields) with ordinality as f(field, n)
$$;

comment on function gc._row_text(text[]) is 'A key of several columns as text.';


create function gc._keys_of(names name[], contents jsonb[])
    returns text[]
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select array_agg(case when cardinality(names) = 1 then o.fields[1]
            else gc._row_text(o.fields) end order by o.n)
    from (
        select c.n, array(select c.content ->> u from unnest(names) as u)
        from unnest(contents) with ordinality as c(content, n)
    ) as o(n, fields)
$$;

comment on function gc._keys_of(name[], jsonb[]) is 'The keys of rows that are given as JSON.';


-- The table has changed a moment ago. Values of some types print the same for everybody, and in
-- JSON; nothing that was made for the table is needed for them.
create function gc._note_keys_now(
    name text, relation regclass, old_rows jsonb[], new_rows jsonb[]
)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    names name[] := (gc._key(relation)).names;
begin
    if (
        select bool_and(a.atttypid = any (
            '{int2, int4, int8, oid, uuid, text, varchar}'::regtype[]::oid[]))
        from pg_attribute as a
        where a.attrelid = relation and a.attname = any (names)
    ) then
        insert into gc.key_changes (collection, old_keys, new_keys)
        select name, o.keys, n.keys
        from gc._keys_of(names, old_rows) as o(keys)
        cross join gc._keys_of(names, new_rows) as n(keys)
        where o.keys <> n.keys;
    end if;
end;
$$;

comment on function gc._note_keys_now(text, regclass, jsonb[], jsonb[]) is
    'Notes changed keys of a table for which the code has not been made yet.';


create function gc._note_keys_now_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render('perform gc._note_keys_now({name}, tg_relid, {olds}, {whole_new});',
        c.words || jsonb_build_object('olds', format(
            case when gc._is_of_move(c) then 'array[%s]'
                else 'array(select %s from old_rows as o)' end,
            c.words ->> 'whole_old')))
$$;

comment on function gc._note_keys_now_sql(gc._shape) is
    'What notes changed keys where a trigger does not fit its table any more.';


create function gc._is_moving(collection text, keys text[])
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from gc.key_changes as k
        where k.collection = _is_moving.collection and k.new_keys && keys
    )
$$;

comment on function gc._is_moving(text, text[]) is
    'Whether one of these keys is new, and pins have not followed.';


-- In the order of the changes, so that a pin follows from key to key; so one session does it, for
-- all changes that it sees, or nobody. Nobody waits here.
create function gc._lock_key_changes(name text)
    returns bigint[]
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    with locked as materialized (
        select o.id from gc.key_changes as o
        where o.collection = name
        order by o.id
        for update skip locked
    )
    select case when bool_and(l.id is not null) then array_agg(k.id order by k.id) end
    from gc.key_changes as k
    left join locked as l on l.id = k.id
    where k.collection = name
$$;

comment on function gc._lock_key_changes(text) is
    'Locks the changes of a collection; null: there are none, or another session has them.';


-- Reviews have hash joins off, and a statement may change many keys.
create function gc._new_keys(change gc.key_changes, of_keys text[])
    returns table (old_key text, new_key text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_hashjoin = on
as $$
    select u.o, u.n
    from unnest(change.old_keys, change.new_keys) as u(o, n)
    join unnest(of_keys) as k on k = u.o
    where cardinality(change.old_keys) = cardinality(change.new_keys) and u.o <> u.n
    union all
    select o, n from unnest(of_keys) as o cross join unnest(change.new_keys) as n
    where cardinality(change.old_keys) <> cardinality(change.new_keys) and o <> n
$$;

comment on function gc._new_keys(gc.key_changes, text[]) is
    'The keys that rows may have got which had these.';


create function gc._follow_holds(change gc.key_changes)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    with held as materialized (
        select h.key, max(h.held_until) as until
        from gc.holds as h
        where h.collection = change.collection and h.key = any (change.old_keys)
            and h.reason = 'keep_alive' and h.held_until > clock_timestamp()
        group by h.key
    )
    insert into gc.holds (collection, key, reason, held_until)
    select change.collection, u.new_key, 'keep_alive', h.until
    from gc._new_keys(change, array(select o.key from held as o)) as u
    join held as h on h.key = u.old_key
$$;

comment on function gc._follow_holds(gc.key_changes) is
    'Holds under their new keys rows that somebody is using.';


-- A pin that has followed stands beside one that the same holder has of the new key, who may be
-- ending that at this moment. Its end needs a review, as that of any other does.
create function gc._follow_pins(change gc.key_changes)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    followed gc.pins;
begin
    for followed in
        with pinned as materialized (
            select p.* from gc._pinned_keys(change.collection, change.old_keys) as p
        )
        insert into gc.pins (collection, key, holder, reason, until, pinned_by, pinned_as)
        select distinct on (u.new_key, p.holder, o.first) p.collection, u.new_key, p.holder,
            p.reason, p.until, p.pinned_by, o.first
        from gc._new_keys(change, array(select distinct o.key from pinned as o)) as u
        join pinned as p on p.key = u.old_key
        cross join lateral (select coalesce(p.pinned_as, p.key)) as o(first)
        where not exists (
            select from gc._pinned_keys(change.collection, array[u.new_key]) as t
            where t.holder = p.holder and t.pinned_as = o.first and t.until >= p.until
        )
        order by u.new_key, p.holder, o.first, p.until desc
        returning *
    loop
        perform gc._enqueue(followed.collection, array[followed.key], followed.until)
        where followed.until < 'infinity';
    end loop;
end;
$$;

comment on function gc._follow_pins(gc.key_changes) is
    'Pins rows under their new keys as they were pinned under those before.';


create function gc._follow_keys(name text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    locked bigint[];
    change gc.key_changes;
begin
    if exists (select from gc.key_changes as k where k.collection = name) then
        locked := gc._lock_key_changes(name);
        for change in
            select k.* from gc.key_changes as k where k.id = any (locked) order by k.id
        loop
            perform gc._follow_holds(change);
            perform gc._follow_pins(change);
        end loop;
        delete from gc.key_changes as k where k.id = any (locked);
    end if;
end;
$$;

comment on function gc._follow_keys(text) is
    'Has pins and holds follow the keys that have changed.';
