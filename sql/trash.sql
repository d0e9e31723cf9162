-- Trash: rows that were deleted, kept as they were until their undo window is over.
--
-- Triggers keep them, whoever deletes: a review, the application, a cascade, TRUNCATE. The tables
-- are the collection, what it owns, and what follows these by ON DELETE CASCADE. A table is kept
-- once, by one collection, though several may own it: see gc._kept_for. A row stands as jsonb, by
-- the names of its columns; where jsonb would lose something (gc._is_lossy), as text inside it.
-- Everything is read again by (content ->> column)::type.

create table gc.trash_rows (
    id bigint generated always as identity,
    xid xid8 not null default pg_current_xact_id(),
    relation regclass not null,
    key text,
    content jsonb not null,
    collection text not null,
    reviewed text,
    event text,
    deleted_at timestamptz not null default now(),
    until timestamptz not null,
    causes text[]
)
with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
create index trash_rows_xid_idx on gc.trash_rows (relation, xid);
create index trash_rows_key_idx on gc.trash_rows using hash (key);
create index trash_rows_causes_idx on gc.trash_rows using gin (causes) where causes is not null;

comment on table gc.trash_rows is
    'Rows that were deleted and can be restored; gc.trash shows them as a person wants them.';
comment on column gc.trash_rows.id is 'The order in which they went.';
comment on column gc.trash_rows.xid is 'The transaction in which they went.';
comment on column gc.trash_rows.relation is 'The table; of a partition, the whole table.';
comment on column gc.trash_rows.key is
    'The primary key as text; null: the row comes back with its owner, because a review took it '
    'with that, or because the table has no key.';
comment on column gc.trash_rows.content is 'The row, by the names of its columns.';
comment on column gc.trash_rows.collection is 'The collection for whose undo window it is kept.';
comment on column gc.trash_rows.reviewed is
    'The collection whose review deleted it; null: somebody else did.';
comment on column gc.trash_rows.event is 'The event that led to that review.';
comment on column gc.trash_rows.deleted_at is 'When it went.';
comment on column gc.trash_rows.until is 'Until when it can be restored.';
comment on column gc.trash_rows.causes is
    'What gc.because was told by those who began what led to this: gc.hurry drops it.';


create function gc._undo(c gc.collections)
    returns interval
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select coalesce(c.undo, (select s.undo from gc.settings as s)) $$;

comment on function gc._undo(gc.collections) is
    'The undo window of a collection: its own, or that of gc.settings.';


create function gc._root(relation oid)
    returns regclass
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select coalesce(pg_partition_root(relation), relation::regclass) $$;

comment on function gc._root(oid) is 'A table itself, or the table that it is a partition of.';


create function gc._kept_tables(c gc.collections)
    returns setof regclass
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        with recursive edges(parent, child) as materialized (
            select gc._root(k.confrelid), gc._root(k.conrelid)
            from pg_constraint as k
            where k.contype = 'f' and k.conparentid = 0 and (
                k.confdeltype = 'c'
                or format('%s(%s)', k.conrelid::regclass,
                    gc._idents(gc._columns(k.conrelid, k.conkey))) = any (c.owned)
            )
            union all
            select c.target, d.referencing from gc.declared_references as d
            where d.collection = c.name and gc._declared_place(d) = any (c.owned)
        ),
        tables(id) as (
            select c.target
            union
            select e.child from tables as t join edges as e on e.parent = t.id
        )
        select t.id from tables as t;
end;
$$;

comment on function gc._kept_tables(gc.collections) is
    'The tables whose rows can go with a row of the collection: itself, what it owns, cascades.';


-- A table that is a collection with a window belongs to itself. Any other is kept for the longest
-- window, or for whoever was there first.
create function gc._kept_for(name text)
    returns setof regclass
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select b.relation
        from (
            select distinct on (t.relation) t.relation, c.name
            from gc.collections as c
            cross join lateral gc._undo(c) as u(undo)
            cross join lateral gc._kept_tables(c) as t(relation)
            where u.undo > '0' and exists (select from pg_class as r where r.oid = c.target)
            order by t.relation, t.relation = c.target desc, u.undo desc, c.tracked_at, c.name
        ) as b
        where b.name = _kept_for.name;
end;
$$;

comment on function gc._kept_for(text) is 'The tables whose rows this collection keeps.';


-- What a collection's triggers depend on besides its own definition: who else keeps what.
create function gc._undo_facts()
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        (c.name, c.target::oid, extract(epoch from gc._undo(c)), c.owned)::text, ' '
        order by c.name)
    from gc.collections as c
    where gc._undo(c) > '0'
$$;

comment on function gc._undo_facts() is
    'All that decides which collection keeps the rows of which table.';


-- jsonb knows no -0, no bounds of arrays, no JSON null inside a column, no spaces and no double
-- names in json. What is of a user's own making might have a cast to json that loses more.
create function gc._is_lossy(type oid)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when t.typtype = 'd' then gc._is_lossy(t.typbasetype)
        when t.typtype = 'e' then false
        else t.typnamespace <> 'pg_catalog'::regnamespace or t.typtype = 'c'
            or t.typcategory = 'A' or t.typname in ('json', 'jsonb', 'float4', 'float8')
    end
    from pg_type as t
    where t.oid = type
$$;

comment on function gc._is_lossy(oid) is
    'Whether a value of this type is kept as text, because jsonb may not give it back as it was.';


create type gc._kept_columns as (
    key name[], lossy name[], long name[], settings text, by_key boolean
);

comment on type gc._kept_columns is
    'What of a table has to be named to keep its rows: the key, what is kept as text, what may be '
    'too long; the settings under which all of it prints in one way only; and whether a row that a '
    'review took with its owner can be asked for by its key.';


create function gc._kept_columns(relation regclass)
    returns gc._kept_columns
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select (
        coalesce((gc._key(relation)).names, '{}'),
        coalesce(array_agg(a.attname order by a.attnum) filter (where gc._is_lossy(a.atttypid)),
            '{}'),
        coalesce(array_agg(a.attname order by a.attnum) filter (
            where t.typname in ('text', 'varchar', 'bytea') and a.atttypmod < 0), '{}'),
        concat_ws(E'\n',
            case when bool_or(t.typname = 'bytea') then 'set bytea_output = ''hex''' end,
            case when bool_or(t.typcategory = 'T') then 'set intervalstyle = ''postgres''' end,
            case when bool_or(t.typcategory = 'D') then
                E'set datestyle = ''ISO, MDY''\nset timezone = ''UTC''' end,
            case when bool_or(gc._is_lossy(a.atttypid)
                or t.typname not in ('text', 'varchar', 'bytea', 'bool', 'uuid')
                    and t.typcategory not in ('N', 'D', 'T', 'E'))
                then gc._fixed_settings_sql() end),
        exists (select from gc.collections as c where c.target = relation)
            or exists (select from pg_constraint as f where f.confrelid = relation)
    )::gc._kept_columns
    from pg_attribute as a
    join pg_type as t on t.oid = a.atttypid
    where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
$$;

comment on function gc._kept_columns(regclass) is 'Reads them from the catalog.';


-- A row that jsonb has no room for, 256 MB, is not kept: nobody's statement fails because of that.
-- Anybody can make a setting, but only a review writes to gc.reviewing.
create function gc._keep_sql(c gc._shape, k gc._kept_columns, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into gc.trash_rows (
    relation, key, content, collection, reviewed, event, until, causes
)
select (select gc._root({id})), {key}, {content}, {name},
    case when current_setting('blobgc.reviewing', true) <> '' then (
        select r.collection from gc.reviewing as r where r.xid = pg_current_xact_id_if_assigned()
    ) end,
    case when current_setting('blobgc.reviewing', true) <> '' then (
        select r.event from gc.reviewing as r where r.xid = pg_current_xact_id_if_assigned()
    ) end,
    now() + interval {undo},
    case when current_setting('blobgc.cause', true) <> '' then (select gc._causes()) end
from {source} as o
{where}$template$,
        gc._source_words(c.words || jsonb_build_object(
            'undo', quote_literal(c.undo),
            'key', case
                when k.key = '{}' then 'null'
                when k.by_key then gc._text_of(k.key, 'o')
                else format('case when current_setting(''blobgc.reviewing'', true) <> '''' '
                    'and exists (select from gc.reviewing as r '
                    'where r.xid = pg_current_xact_id_if_assigned()) then null else %s end',
                    gc._text_of(k.key, 'o'))
            end,
            'content', 'to_jsonb(o.*)' || case when k.lossy = '{}' then '' else format(
                ' || jsonb_object(array[%s]::text[], array[%s])',
                (select string_agg(quote_literal(u), ', ') from unnest(k.lossy) as u),
                (select string_agg(format('o.%I::text', u), ', ') from unnest(k.lossy) as u)) end,
            'where', coalesce('where ' || (
                select string_agg(format('(octet_length(o.%I) > 50000000) is not true', u),
                    ' and ') from unnest(k.long) as u), '')), source)
        || jsonb_build_object(
            'id', case when source is null then '%1$L::regclass' else 'tg_relid' end))
$$;

comment on function gc._keep_sql(gc._shape, gc._kept_columns, text) is
    'The statement that keeps rows which go.';


create function gc._keep_trigger_sql(c gc._shape, t gc._trigger)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, t.suffix, $template$
create or replace function gc.{function}()
    returns trigger
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    {settings}
$template$, $template$
#variable_conflict use_column
declare
    is_current boolean;
begin
    -- Null: there is no row. False: this is no longer what the function was made for.
    {look}
    if is_current then
        {keep}
    elsif not is_current then
        {otherwise}
    end if;
    return null;
end;$template$,
        jsonb_build_object(
            'settings', t.tables,
            'look', case
                when t.timing like 'after%' then format(
                    'select %s into is_current from old_rows limit 1;', case t.columns
                        when '{}' then 'true'
                        else gc._has_columns_sql(t.relation, t.columns) end)
                when t.columns = '{}' then 'is_current := true;'
                else format('is_current := gc._has_columns(tg_relid::regclass::text, %L);',
                    gc._typed(t.relation, t.columns))
            end,
            'keep', t.body, 'otherwise', t.otherwise))
$$;

comment on function gc._keep_trigger_sql(gc._shape, gc._trigger) is
    'The function of a trigger that keeps rows which go. Of the trigger, "tables" are settings.';


-- The table has changed since the code was made: the key is put together by what it has now.
create function gc._keep_changed(
    relation regclass, contents jsonb[], collection text, undo interval
)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    names name[] := (gc._key(gc._root(relation))).names;
    causes text[] := gc._causes();
begin
    insert into gc.trash_rows (relation, key, content, collection, until, causes)
    select gc._root(_keep_changed.relation), case
            when cardinality(names) = 1 then u.content ->> names[1]
            when names is not null then format('(%s)', (
                select string_agg(case
                    when u.content ->> n ~ '^$|["\\(),\s]' then format('"%s"',
                        regexp_replace(u.content ->> n, '(["\\])', '\1\1', 'g'))
                    else coalesce(u.content ->> n, '') end, ',' order by o)
                from unnest(names) with ordinality as k(n, o)
            ))
        end, u.content, _keep_changed.collection, now() + undo, causes
    from unnest(contents) as u(content);
end;
$$;

comment on function gc._keep_changed(regclass, jsonb[], text, interval) is
    'Keeps rows of a table that is not what the code was made for.';


create function gc._keep_changed_sql(c gc._shape, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        'perform gc._keep_changed({id}, array(select to_jsonb(o.*) from {source} as o), '
        '{name}, {undo});',
        gc._source_words(c.words || jsonb_build_object('undo', quote_literal(c.undo)), source)
        || jsonb_build_object(
            'id', case when source is null then '%1$L::regclass' else 'tg_relid' end))
$$;

comment on function gc._keep_changed_sql(gc._shape, text) is
    'What keeps rows of a table that is not what the code was made for.';


create function gc._keeping_triggers(c gc._shape)
    returns setof gc._trigger
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select t.relation, format('_keep%s%s', n.short, o.suffix), o.timing,
        concat_ws(E'\n', case when o.source is null then 'set quote_all_identifiers = off' end,
            nullif(k.settings, '')),
        k.key || k.lossy || k.long, null::name[], false,
        case when o.source is null then gc._truncated_sql(gc._keep_sql(c, k, o.source))
            else gc._keep_sql(c, k, o.source) || ';' end,
        case when o.source is null then gc._truncated_sql(
                regexp_replace(gc._keep_changed_sql(c, o.source), '^perform (.*);$', 'select \1'))
            else gc._keep_changed_sql(c, o.source) end, null
    from gc._kept_for(c.name) as t(relation)
    cross join lateral gc._kept_columns(t.relation) as k
    cross join lateral (
        select case when t.relation = c.target then '' else format('_%s_%s',
            (select r.relname from pg_class as r where r.oid = t.relation),
            substr(md5(t.relation::text), 1, 6)) end
    ) as n(short)
    cross join (values
        ('', 'after delete', 'old_rows'), ('_truncated', 'before truncate', null)
    ) as o(suffix, timing, source)
    where c.undo > '0'
$$;

comment on function gc._keeping_triggers(gc._shape) is
    'The triggers that keep rows which go; of each, "tables" are the settings of its function.';


create function gc._make_keeping_functions(
    c gc._shape, out made name[], out changes gc._table_change[]
)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    t gc._trigger;
begin
    for t in select * from gc._keeping_triggers(c) loop
        made := made || gc._make_function(c, t.suffix, gc._keep_trigger_sql(c, t));
        changes := changes || gc._attachments((
            t.relation, t.suffix, t.timing,
            case when t.timing like 'after%' then 'referencing old table as old_rows' else '' end,
            t.columns, null, false, '', '', null
        )::gc._trigger, made[cardinality(made)]);
    end loop;
end;
$$;

comment on function gc._make_keeping_functions(gc._shape) is
    'Makes the functions of triggers that keep rows which go; returns their names, and what '
    'attaches them.';


-- The oldest of each table, a batch of each, if the first is over: nothing waits behind a longer
-- window of another table, and where nothing is over, one row of each table is read.
create function gc._over(batch integer)
    returns tid[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
begin
    return array(
        with recursive tables(id) as (
            (select o.relation::oid from gc.trash_rows as o order by o.relation limit 1)
            union all
            select (
                select o.relation::oid from gc.trash_rows as o
                where o.relation > t.id::regclass order by o.relation limit 1
            )
            from tables as t
            where t.id is not null
        )
        select p.place
        from tables as t
        cross join lateral (
            select o.until from gc.trash_rows as o
            where o.relation = t.id::regclass order by o.relation, o.xid limit 1
        ) as first
        cross join lateral (
            select o.ctid, o.until from gc.trash_rows as o
            where o.relation = t.id::regclass and first.until <= now()
            order by o.relation, o.xid
            limit 10::bigint * batch
        ) as p(place, until)
        where p.until <= now()
    );
end;
$$;

comment on function gc._over(integer) is 'The places of rows whose undo window is over, some.';


create function gc._purge_trash(batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    places tid[] := gc._over(batch);
begin
    if cardinality(places) > 0 then
        delete from gc.trash_rows as r
        where r.ctid = any (array(
            select o.ctid from gc.trash_rows as o
            where o.ctid = any (places) and o.until <= now()
            for update skip locked
        ));
    end if;
end;
$$;

comment on function gc._purge_trash(integer) is 'Drops rows whose undo window is over.';


create function gc._trash_status(name text, out rows bigint, out bytes numeric)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select count(*), coalesce(sum(pg_column_size(r.content) + pg_column_size(r.key) + 100), 0)
    from gc.trash_rows as r
    where r.collection = name
$$;

comment on function gc._trash_status(text) is
    'What gc.status says about the rows that are kept for a collection.';


-- Columns are asked for by name, and read from what was kept.
create function gc._typed_rows_sql(relation regclass, names name[])
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('select k.ctid as "gc place", k.id as "gc id", k.xid as "gc xid", '
        'k.key as "gc key", k.reviewed as "gc reviewed"%s from gc.trash_rows as k',
        string_agg(format(', (k.content ->> %L)::%s as %I', a.attname,
            format_type(a.atttypid, -1), a.attname), '' order by a.attnum))
    from pg_attribute as a
    where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
        and (names is null or a.attname = any (names))
$$;

comment on function gc._typed_rows_sql(regclass, name[]) is
    'The query for kept rows of a table, with these of its columns, or all.';


create type gc._trash_label as (place tid, label text, bytes bigint);

comment on type gc._trash_label is
    'What a person called a kept row, and how big its object is.';


create function gc._labels_of_trash(c gc.collections)
    returns gc._trash_label[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set timezone_abbreviations = 'Default'
as $$
-- @plpgsql_check_options: security_warnings = off, extra_warnings = off
declare
    labels gc._trash_label[];
begin
    execute format(
        'select array(select (%1$I."gc place", (%2$s)::text, case when (%3$s)::numeric between 0 '
        'and 1125899906842624 then (%3$s)::bigint end)::gc._trash_label '
        'from (%4$s where k.relation = %5$s) as %1$I)',
        gc._alias(c.target), coalesce(c.label, 'null'), coalesce(c.size, 'null'),
        gc._typed_rows_sql(c.target, null), c.target::oid)
    into labels;
    return labels;
end;
$$;

comment on function gc._labels_of_trash(gc.collections) is
    'What the label and the size of a collection make of its rows that are kept.';


-- They are computed with the rights of blobgc's owner, for a viewer as well, so it is looked first
-- whose code that would run. A collection of which they cannot be told, because the table has
-- changed or somebody is changing it, has none.
create function gc._trash_labels()
    returns table (relation regclass, place tid, label text, bytes bigint)
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '2s'
as $$
declare
    c gc.collections;
    labels gc._trash_label[];
begin
    for c in
        select o.* from gc.collections as o
        where coalesce(o.label, o.size) is not null
            and exists (select from gc.trash_rows as r where r.relation = o.target)
    loop
        labels := null;
        begin
            perform gc._require_readable(c);
            labels := gc._labels_of_trash(c);
            -- So that the locks are given back.
            raise 'that is all' using errcode = 'ZG999';
        exception
            when others then
                return query select c.target, u.* from unnest(labels) as u;
        end;
    end loop;
end;
$$;
revoke all on function gc._trash_labels() from public;

comment on function gc._trash_labels() is
    'What persons called the rows of collections that are kept, and how big their objects are.';


create view gc.trash as
select coalesce(c.name, gc._table_name(r.relation)) as collection, r.key, d.label, d.bytes, r.event,
    r.deleted_at, r.until, r.reviewed
from gc.trash_rows as r
join pg_class as t on t.oid = r.relation
left join gc.collections as c on c.target = r.relation
left join gc._trash_labels() as d on d.relation = r.relation and d.place = r.ctid
where r.until > now() and r.key is not null;

comment on view gc.trash is
    'What can be restored: select gc.restore(collection, key) from gc.trash where …. A row that a '
    'review took with its owner comes back with that, and is not listed.';
comment on column gc.trash.collection is
    'The collection, or the table, where that is not a collection: the first argument of '
    'gc.restore.';
comment on column gc.trash.key is 'The primary key that the row had: the second argument.';
comment on column gc.trash.label is 'What a person called the row.';
comment on column gc.trash.bytes is 'The size of its object.';
comment on column gc.trash.event is
    'The event that led to the review that deleted it; null: somebody else deleted it.';
comment on column gc.trash.deleted_at is 'When it went.';
comment on column gc.trash.until is 'Until when it can be restored.';
comment on column gc.trash.reviewed is
    'The collection whose review deleted it: its own, or that of its owner; null: the application '
    'deleted it, or a cascade.';
