-- Unread rows: what a trigger cannot work out, because the table has changed since its code was
-- made, or because an expression raises, it keeps whole. The next review works it out.

create table gc.unread_rows (
    id bigint generated always as identity
        constraint unread_rows_pkey primary key,
    collection text not null,
    content jsonb not null,
    relation oid not null,
    columns jsonb not null,
    left_at timestamptz not null default now(),
    due_at timestamptz not null default now(),
    failures integer not null default 0,
    last_error text,
    causes text[]
);
create index unread_rows_due_idx on gc.unread_rows (collection, due_at);

comment on table gc.unread_rows is
    'Rows that went, or changed, when nothing could be worked out about their object.';
comment on column gc.unread_rows.id is 'The order in which they were written.';
comment on column gc.unread_rows.collection is 'The collection of the row.';
comment on column gc.unread_rows.content is 'The whole row, by the names of its columns.';
comment on column gc.unread_rows.relation is 'The table, or the partition, that it was in.';
comment on column gc.unread_rows.columns is 'The numbers that its columns have there.';
comment on column gc.unread_rows.left_at is 'When it went.';
comment on column gc.unread_rows.due_at is 'When it is tried again.';
comment on column gc.unread_rows.failures is 'How often that failed.';
comment on column gc.unread_rows.last_error is 'Why it failed the last time.';
comment on column gc.unread_rows.causes is 'What gc.because was told, if anything was.';


create function gc._column_numbers(relation oid)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_object_agg(a.attname, a.attnum) from pg_attribute as a
    where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
$$;

comment on function gc._column_numbers(oid) is 'The columns of a table with their numbers.';


-- A column that was renamed since has its number still. Where a name has another number than it
-- had, in a restored dump perhaps, numbers tell nothing, and names do if they are all there still.
create function gc._content_now(u gc.unread_rows)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when bool_and(coalesce(o.attnum = n.number, true))
            then jsonb_object_agg(
                coalesce(a.attname, e.key), e.value order by a.attname is null desc)
        when bool_or(o.attname is null and a.attname is not null) then '{}'
        else u.content end
    from jsonb_each(u.content) as e
    cross join lateral (select (u.columns ->> e.key)::smallint) as n(number)
    left join pg_attribute as o on o.attrelid = u.relation and o.attname = e.key
    left join pg_attribute as a on a.attrelid = u.relation and a.attnum = n.number
        and not a.attisdropped
$$;

comment on function gc._content_now(gc.unread_rows) is
    'A row that was kept whole, by the names that its columns have now.';


create function gc._kept_whole_sql(c gc._shape, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        'insert into gc.unread_rows (collection, content, relation, columns, causes) '
        'select {name}, {whole_old}, {id}, (select gc._column_numbers({id})), {causes} '
        'from {source} as o',
        gc._source_words(c.words, source) || jsonb_build_object(
            'id', case when source is null then '%1$L::regclass' else 'tg_relid' end))
$$;

comment on function gc._kept_whole_sql(gc._shape, text) is
    'The statement that keeps rows whole until a review can work them out.';


-- A snapshot that is older than the TRUNCATE does not show all rows that it takes away.
create function gc._require_followable(name text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'a TRUNCATE of the collection "%" cannot be followed in a % transaction', name,
            current_setting('transaction_isolation')
            using errcode = 'ZG004',
                detail = 'Rows that the transaction does not see would go without a trace.',
                hint = 'begin isolation level read committed;';
    end if;
end;
$$;

comment on function gc._require_followable(text) is
    'Raises ZG004 for a TRUNCATE outside READ COMMITTED.';


create function gc._keep_untracked(name text, relation regclass, trigger_name name)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    part regclass;
begin
    for part in
        select p.relid
        from pg_partition_tree(relation) as p
        where p.isleaf and p.relid <> relation and not exists (
            select from pg_trigger as t where t.tgrelid = p.relid and t.tgname = trigger_name
        )
    loop
        execute format(
            'insert into gc.unread_rows (collection, content, relation, columns, causes) '
            'select %L, to_jsonb(o), %L::regclass, gc._column_numbers(%L::regclass), gc._causes() '
            'from only %s as o', name, part, part, part);
    end loop;
end;
$$;

comment on function gc._keep_untracked(text, regclass, name) is
    'Keeps the rows of partitions whole that are about to be truncated and have no trigger yet.';


-- A label or a size that cannot be computed is null, so that the object goes all the same. A row
-- from before there was a column that tells the object would seem to have none.
create function gc._read_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_read', $template$
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
        insert into gc.tombstones (
            collection, key, url, generation, created_at, due_at, finalizers, causes)
        select {name}, {key_text}, {url}, {generation}, u.left_at, {due_at}, {finalizers}, u.causes
        from gc.unread_rows as u
        cross join lateral jsonb_populate_record(
            null::{target}, gc._content_now(u)) as {alias}{each}
        where u.id = any ($1) and {url} is not null;
    else
        insert into gc.tombstones (
            collection, key, label, url, generation, size, created_at, due_at, finalizers, causes)
        select {name}, {key_text}, {label}, {url}, {generation}, {object_size}, u.left_at, {due_at},
            {finalizers}, u.causes
        from gc.unread_rows as u
        cross join lateral jsonb_populate_record(
            null::{target}, gc._content_now(u)) as {alias}{each}
        where u.id = any ($1) and {url} is not null;
    end if;
    delete from gc.unread_rows as u where u.id = any ($1);
end;$template$,
        jsonb_build_object('needed', quote_literal(c.object_columns) || '::text[]'))
    where c.url is not null
$$;

comment on function gc._read_sql(gc._shape) is
    'The function gc.<name>_read: tombstones for rows that were kept whole.';


create function gc._read_row(reader name, id bigint)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    begin
        execute format('select gc.%I($1, false)', reader) using array[id];
        return;
    exception
        when others then
            null;
    end;
    execute format('select gc.%I($1, true)', reader) using array[id];
exception
    when others then
        update gc.unread_rows as u
        set due_at = now() + gc._backoff(u.failures), failures = u.failures + 1,
            last_error = sqlerrm
        where u.id = _read_row.id;
end;
$$;

comment on function gc._read_row(name, bigint) is
    'Writes the tombstone of one row that was kept whole; without label and size if these raise.';


-- Rows that a trigger could not work out: now the code fits the table again.
create function gc._read_rows(name text, batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    reader name := gc._object_name(name, '_read');
    due bigint[] := array(
        select u.id from gc.unread_rows as u
        where u.collection = name and u.due_at <= now()
        order by u.due_at
        limit batch
        for update skip locked
    );
begin
    if cardinality(due) = 0 then
        return;
    end if;
    begin
        execute format('select gc.%I($1, false)', reader) using due;
        return;
    exception
        when others then
            null;
    end;
    perform gc._read_row(reader, u) from unnest(due) as u;
end;
$$;

comment on function gc._read_rows(text, integer) is
    'Writes the tombstones of rows that were kept whole; what still cannot be told comes again.';
