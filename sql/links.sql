-- Links: in which partition of a referring table a key has been seen.
--
-- A foreign key that does not contain the partition key of its table has to be looked up in every
-- partition. A link tells in which one to look first. It is a hint and no more: the first look of a
-- review follows links, and what they lead to keeps its target; before anything is deleted, every
-- partition is asked. A link that is missing, or that leads nowhere, costs time, never a row; the
-- review that notices puts a true one in its place. Whoever refers to a row only ever adds links,
-- one for a key at most.
--
-- Measured with links against without, on 64 partitions and 100,000 blobs: the first look at 1,000
-- blobs that are kept takes 0.23 of the CPU time, and all of gc.review then 0.44; of 300,000 blobs
-- the look reads a tenth of the pages. Inserting layers of new blobs takes 1.14 of the CPU time,
-- pushing an image 1.08 of the time (0.89 to 1.49), and links add 14 % to the registry's space.

-- The longest values of a partition key have no room in an index beside the key: they get no link.
create function gc._has_parts_sql(l gc._link)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._not_null_sql(l.columns, 'r') || coalesce(string_agg(format(
        ' and pg_column_size(r.%I) <= %s', a.attname, 500 / cardinality(l.columns)), ''), '')
    from unnest(l.columns) as u(name)
    join pg_attribute as a on a.attrelid = l.relation and a.attname = u.name and a.attlen < 0
$$;

comment on function gc._has_parts_sql(gc._link) is
    'The condition that a row r has a partition key of which a link can be made.';


create function gc._link_words(c gc._shape, l gc._link)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.words || jsonb_build_object(
        'links', format('gc.%I', l.links),
        'referencing', l.relation::text,
        'link_columns', gc._idents(l.link_columns),
        'r_parts', gc._idents(l.columns, 'r.'),
        'r_in_l', gc._pair(l.columns, 'r', l.link_columns, 'l', l.operators),
        'has_parts', gc._has_parts_sql(l),
        'l_is_q', gc._entry_pair(c.key, 'l', k.queue_names, 'q', k.operators),
        'l_is_t', gc._entry_pair(c.key, 'l', k.names, 't', k.operators))
    from (select (c.key).*) as k
$$;

comment on function gc._link_words(gc._shape, gc._link) is
    'What stands for the words in templates about links.';


-- "offset 0" keeps PostgreSQL from joining in another way: only if the link is at hand when the
-- partitions are to be looked into, all but one of them are left out.
create function gc._linked_sql(c gc._shape, l gc._link, r gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
exists (
    select from {links} as l
    cross join lateral (
        select from {referencing} as r where {r_in_l} and {r_is_q}{not_itself} offset 0
    ) as r
    where {l_is_q}
)$template$,
        gc._link_words(c, l) || jsonb_build_object(
            'r_is_q', gc._key_pair(r),
            'not_itself', gc._not_itself(c, r, 'q')))
$$;

comment on function gc._linked_sql(gc._shape, gc._link, gc._reference) is
    'The condition that a link leads to a row that points at the key of the queue entry q.';


create function gc._links_lead_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(gc._linked_sql(c, l, r), E'\nor ')
    from unnest(c.links) as l
    join unnest(c.refs) as r on r.referencing = l.relation and r.linked
$$;

comment on function gc._links_lead_sql(gc._shape) is
    'The condition that any link leads to what keeps the queue entry q; null: there are no links.';


create function gc._plainly_kept_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select concat_ws(E'\nor ',
        (
            select string_agg(gc._refers_sql(c, r), E'\nor ')
            from unnest(c.refs) as r
            where r.owned is null and not r.linked
        ),
        gc._links_lead_sql(c), gc._timeless_sql(c), gc._pinned_sql(c))
$$;

comment on function gc._plainly_kept_sql(gc._shape) is
    'The condition that the key of the queue entry q is kept, as far as links can tell.';


create function gc._add_links_sql(c gc._shape, l gc._link, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        gc._render($template$
insert into {links} ({queue_keys}, {link_columns})
select distinct on ({lost_keys}) {lost_keys}, {r_parts}
from {source} as r
where {not_null} and {has_parts}
    and (select true from {links} as l where {l_is_r} limit 1) is null;$template$,
            gc._link_words(c, l) || gc._lost_words(c, r) || jsonb_build_object(
                'source', coalesce(source, format(
                    '(select %1$s from %2$s as n except select %1$s from %3$s as o)',
                    gc._idents(array(
                        select distinct u.name
                        from unnest(r.columns || gc._other_columns(r) || l.columns) as u(name)
                        order by u.name)), c.words ->> 'new_rows', c.words ->> 'old_rows')),
                'l_is_r', (
                    select gc._entry_pair(c.key, 'l',
                        array_agg(r.columns[array_position(r.targets, u.name)] order by u.n), 'r',
                        array_agg(r.operators[array_position(r.targets, u.name)] order by u.n))
                    from unnest((c.key).names) with ordinality as u(name, n)
                ))),
        E'\n')
    from unnest(c.refs) as r
    where r.referencing = l.relation and r.linked
$$;

comment on function gc._add_links_sql(gc._shape, gc._link, text) is
    'The statements that add the links of some rows, where they are not there yet; null: of the '
    'rows that an update has changed.';


-- A second look knows the truth: for what is kept, it replaces the links that did not tell.
create function gc._relink_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(string_agg(
        gc._render($template$
,
forgotten_{n} as (
    delete from {links} as l
    using dropped as q
    where {l_is_q}
),
linked_{n} as (
    insert into {links} ({queue_keys}, {link_columns})
    select distinct {q_keys}, {r_parts}
    from dropped as q
    cross join lateral (
        select {r_parts} from {referencing} as r where {r_is_q} and {has_parts} limit 1
    ) as r
)$template$,
            gc._link_words(c, l) || jsonb_build_object(
                'n', row_number, 'r_is_q', gc._key_pair(r))),
        ''), '')
    from (
        select l, r, row_number() over ()
        from unnest(c.links) as l
        join unnest(c.refs) as r on r.referencing = l.relation and r.linked
    ) as o(l, r, row_number)
$$;

comment on function gc._relink_sql(gc._shape) is
    'The part of a second look that mends links; empty where there are none.';


create function gc._forget_links_sql(c gc._shape, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        gc._render($template$
delete from {links} as o
where o.ctid = any (array(
    select l.ctid
    from {source} as t
    cross join lateral (select l.ctid from {links} as l where {l_is_t} offset 0) as l
));$template$,
            gc._source_words(gc._link_words(c, l), source)),
        E'\n')
    from unnest(c.links) as l
$$;

comment on function gc._forget_links_sql(gc._shape, text) is
    'The statements that drop the links of rows that are gone.';


create function gc._after_link_sql(c gc._shape, relation regclass, operation text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._add_links_sql(c, l, case operation when 'insert' then 'new_rows' end)
    from unnest(c.links) as l
    where l.relation = _after_link_sql.relation
$$;

comment on function gc._after_link_sql(gc._shape, regclass, text) is
    'What follows an insert into or an update of a table that has links; null: it has none.';


create function gc._make_link_table(c gc._shape, l gc._link)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    k gc._key_columns := c.key;
begin
    perform gc._run(format('create table gc.%I (%s)', l.links, (
        select string_agg(format('%I %s not null', u.name, u.type), ', ' order by u.n)
        from unnest(k.queue_names || l.link_columns, k.types || l.types)
            with ordinality as u(name, type, n))));
    perform gc._seal_table(to_regclass(format('gc.%I', l.links)));
    perform gc._identify(to_regclass(format('gc.%I', l.links)));
    perform gc._run(format('create index on gc.%I (%s)', l.links, gc._index_columns(
        to_regclass(format('gc.%I', l.links)), k, gc._idents(l.link_columns))));
    execute format('comment on table gc.%I is %L', l.links, format(
        'In which partitions of %s to look first for what refers to %s.', l.relation, c.target));
end;
$$;

comment on function gc._make_link_table(gc._shape, gc._link) is
    'Creates the table for the links of a referring table.';


create function gc._drop_links(names name[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set client_min_messages = warning
as $$
declare
    dropped name;
begin
    foreach dropped in array names loop
        execute format('drop table if exists gc.%I', dropped);
    end loop;
end;
$$;

comment on function gc._drop_links(name[]) is 'Drops tables of links.';


create function gc._link_table_fits(c gc._shape, l gc._link)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array(
            select a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
            from pg_attribute as a
            where a.attrelid = to_regclass(format('gc.%I', l.links)) and a.attnum > 0
            order by a.attnum
        ) = array(
            select u.name || ' ' || split_part(u.type, ' collate ', 1)
            from unnest(k.queue_names || l.link_columns, k.types || l.types)
                with ordinality as u(name, type, n)
            order by u.n
        )
    from (select (c.key).*) as k
$$;

comment on function gc._link_table_fits(gc._shape, gc._link) is
    'Whether the table of links is there, for this key and this partition key.';


-- Before the triggers, which lock the table: what comes in between has no link, and that is all.
create function gc._make_links(c gc._shape, fill boolean)
    returns name[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    l gc._link;
    made name[] := array[]::name[];
begin
    for l in select o.* from unnest(c.links) as o loop
        made := made || l.links;
        if not gc._link_table_fits(c, l) then
            perform gc._put_away(to_regclass(format('gc.%I', l.links)));
            perform gc._make_link_table(c, l);
            if fill then
                perform gc._run(gc._add_links_sql(c, l, l.relation::text));
            end if;
        end if;
    end loop;
    return made;
end;
$$;

comment on function gc._make_links(gc._shape, boolean) is
    'Creates the tables of links that are missing, with what there is to link; returns all names.';
