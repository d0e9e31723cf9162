-- Queues: what is to be reviewed, and when. Each collection has one, typed by its own key.
--
-- A queue is append-only: a trigger adds an entry for each key that something happened to, and the
-- latest entry of a key counts. So nobody who deletes a reference waits for anybody else.

-- What a queue has beside the key. A queue that an earlier version has made gets what it lacks.
create function gc._queue_columns()
    returns table (name name, definition text)
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    values
        ('event', 'text not null'),
        ('review_after', 'timestamptz not null'),
        ('review_count', 'integer not null default 0'),
        ('last_error', 'text'),
        ('asleep_since', 'timestamptz'),
        ('causes', 'text[]'),
        ('entry', 'bigint generated always as identity')
$$;

comment on function gc._queue_columns() is 'The columns of every review queue, after the key.';


create function gc._index_keys(c gc._shape, queue regclass)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._run(format('create index on %s (%s)', queue,
        gc._index_columns(queue, c.key, 'entry')));
end;
$$;

comment on function gc._index_keys(gc._shape, regclass) is
    'Creates the index by which a review queue is asked for a key.';


-- No primary key: the same key stands in it as often as something happened to its row.
create function gc._make_queue(c gc._shape)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    queue name := gc._object_name(c.name, '_review_queue');
    command text := (
        select format(
            'create table gc.%I (%s, %s) with (fillfactor = 90, '
            'autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, '
            'autovacuum_vacuum_insert_scale_factor = 0, '
            'autovacuum_vacuum_insert_threshold = 50000, autovacuum_analyze_scale_factor = 0, '
            'autovacuum_analyze_threshold = 50000, autovacuum_vacuum_cost_delay = 0)',
            queue,
            string_agg(format('%I %s not null', u.name, u.type), ', ' order by u.n),
            (select string_agg(format('%I %s', q.name, q.definition), ', ')
                from gc._queue_columns() as q))
        from (select (c.key).*) as k
        cross join lateral unnest(k.queue_names, k.types) with ordinality as u(name, type, n)
    );
begin
    perform gc._run(command);
    perform gc._seal_table(to_regclass(format('gc.%I', queue)));
    perform gc._identify(to_regclass(format('gc.%I', queue)));
    execute format('create index on gc.%I (review_after)', queue);
    execute format('create index on gc.%I (review_after) where review_count > 0', queue);
    perform gc._index_keys(c, to_regclass(format('gc.%I', queue)));
    execute format('comment on table gc.%I is %L', queue, format(
        'What of %s is to be reviewed, and when; the latest entry of a key counts.', c.target));
end;
$$;

comment on function gc._make_queue(gc._shape) is 'Creates the review queue of a collection.';


create function gc._complete_queue(queue regclass)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    command text;
begin
    for command in
        select format('alter table %s add column %I %s', queue, q.name, q.definition)
        from gc._queue_columns() as q
        where not exists (
            select from pg_attribute as a where a.attrelid = queue and a.attname = q.name
        )
    loop
        perform gc._run(command);
    end loop;
end;
$$;

comment on function gc._complete_queue(regclass) is
    'Gives a review queue the columns that it lacks, because an earlier version has made it.';


create function gc._make_key_type(c gc._shape)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    type name := gc._object_name(c.name, '_key');
begin
    if to_regtype(format('gc.%I', type)) is not null then
        return;
    end if;
    execute format('create type gc.%I as (%s)', type, (
        select string_agg(format('%I %s', u.name, u.type), ', ' order by u.n)
        from (select (c.key).*) as k
        cross join lateral unnest(k.names, k.types) with ordinality as u(name, type, n)
    ));
    perform gc._seal('pg_type'::regclass, to_regtype(format('gc.%I', type)));
end;
$$;

comment on function gc._make_key_type(gc._shape) is
    'Creates the type that reads the keys of a collection.';


-- Not dropped: somebody may have made a view of it, and PostgreSQL would refuse.
create function gc._put_away(relation regclass)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    aside name := 'gc_unused_' || relation::oid;
begin
    if relation is not null then
        execute format('alter table %s rename to %I', relation, aside);
        insert into gc.unused_tables (name) values (aside) on conflict do nothing;
    end if;
end;
$$;

comment on function gc._put_away(regclass) is
    'Gives a table that does not fit any more another name, under which it is dropped later.';


-- A key of another type or another number of columns: the entries cannot be carried over.
create function gc._make_storage(c gc._shape)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    queue regclass := to_regclass(format('gc.%I', gc._object_name(c.name, '_review_queue')));
    k gc._key_columns := c.key;
    fits boolean := (
        select array_agg(a.attname order by a.attnum) = k.queue_names
            and array_agg(format_type(a.atttypid, a.atttypmod) order by a.attnum)
                = array(select split_part(u, ' collate ', 1) from unnest(k.types) as u)
        from pg_attribute as a
        where a.attrelid = queue and a.attnum > 0 and a.attnum < (
            select e.attnum from pg_attribute as e where e.attrelid = queue and e.attname = 'event'
        )
    );
begin
    if queue is not null and not fits then
        perform gc._put_away(queue);
        execute format('drop type if exists gc.%I', gc._object_name(c.name, '_key'));
        perform gc._put_away(to_regclass(format('gc.%I', l)))
        from gc.collections as o cross join lateral unnest(o.links) as l
        where o.name = c.name;
        -- Without a fingerprint, it is the queue of a collection that was untracked.
        insert into gc.scan_requests (collection, reason)
        select c.name, 'the primary key changed'
        from gc.collections as o where o.name = c.name and o.fingerprint is not null;
    end if;
    if queue is null or not fits then
        perform gc._make_queue(c);
    else
        perform gc._complete_queue(queue);
    end if;
    perform gc._make_key_type(c);
end;
$$;

comment on function gc._make_storage(gc._shape) is
    'Creates what a collection keeps data in, where it is not there or does not fit the key.';


create function gc._queued_sql(c gc._shape, operation text, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.collect = 'deleted' then '' else gc._render($template$
insert into {queue} ({queue_keys}, event, review_after, causes)
select {keys}, {event}, gc.review_after({event}), {causes}
from {source};$template$,
        c.words || jsonb_build_object(
            'event', quote_literal(gc._event(c.events, c.name || '_' || operation)),
            'source', source)) end
$$;

comment on function gc._queued_sql(gc._shape, text, text) is
    'The statement that queues rows of the collection''s own; none where they are never garbage.';


-- A row whose condition does not hold is queued by the update that changes it. Asked only where the
-- question cannot raise, nor its answer change with time: whether a column is not null.
create function gc._inserted_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when c.condition ~ '^\(?(("([^"]|"")+"|\w+)\.)?("([^"]|"")+"|\w+) IS NOT NULL\)?$'
            then format('new_rows as %s where %s', c.alias, c.condition)
        else 'new_rows'
    end
$$;

comment on function gc._inserted_sql(gc._shape) is
    'The inserted rows that are to be reviewed.';


create function gc._after_insert_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
{queued}
{admit}$template$,
        jsonb_build_object(
            'queued', gc._queued_sql(c, 'insert', gc._inserted_sql(c)),
            'admit', case when c.url is null then '' else gc._computing_sql(c, gc._render(
                    'perform count({url}), count({generation}) from new_rows as {alias}{each};',
                    c.words),
                gc._admit_sql(c, false), gc._admit_changed_sql(c)) end))
$$;

comment on function gc._after_insert_sql(gc._shape) is
    'What follows an insert into a collection: every row that may be garbage is reviewed once.';


-- A reference to another column than the key finds its target by that column's value: a row that
-- gets another value has lost what was to find it, by ON UPDATE SET NULL for one.
create function gc._referred_columns(c gc._shape)
    returns name[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(array_agg(distinct u.name), '{}')
    from unnest(c.refs) as r
    cross join lateral unnest(r.targets) as u(name)
    where r.via is null
$$;

comment on function gc._referred_columns(gc._shape) is
    'The columns of a collection that references refer to.';


-- EXCEPT compares whole rows; a type without an equality is compared by what it prints. A key has
-- one, whatever its type is, and goes into the queue as it is.
create function gc._watched_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        format(
            case
                when a.attname = any (k.names) or exists (
                    select from pg_opclass as o
                    join pg_am as m on m.oid = o.opcmethod and m.amname in ('btree', 'hash')
                    where o.opcdefault and o.opcintype in (a.atttypid, t.typbasetype)
                ) or t.typcategory in ('E', 'S', 'N')
                    then '%s'
                else '%s::text'
            end, quote_ident(a.attname)),
        ', ' order by a.attname = any (k.names) desc, array_position(k.names, a.attname), a.attnum)
    from (select (c.key).*) as k
    join pg_attribute as a on a.attrelid = c.target
    join pg_type as t on t.oid = a.atttypid
    where a.attname = any (k.names || gc._referred_columns(c))
        or (c.condition is not null and a.attname = any (c.columns))
$$;

comment on function gc._watched_sql(gc._shape) is
    'The columns whose change makes a row of the collection worth a review: those of the key, of '
    'the condition, and those that references refer to.';


create function gc._after_update_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
{queued}
{keys}
{gone}
{objects}$template$,
        jsonb_build_object(
            'queued', gc._queued_sql(c, 'update', format(
                '(select %1$s from %2$s as n except select %1$s from %3$s as o) as changed',
                gc._watched_sql(c), c.words ->> 'new_rows', c.words ->> 'old_rows')),
            'gone', coalesce(gc._note_changed_sql(c), ''),
            'keys', gc._note_keys_sql(c),
            'objects', case when c.url is null then '' else gc._computing_sql(c, gc._render(
                    'perform {computed} from (select * from {old_rows} as o '
                    'union all select * from {new_rows} as n) as {alias};', c.words),
                gc._after_url_change_sql(c),
                gc._kept_whole_sql(c, c.words ->> 'whole_rows') || E';\n'
                    || gc._admit_changed_sql(c)) end))
$$;

comment on function gc._after_update_sql(gc._shape) is
    'What follows an update of a collection''s own rows: a new key, another value to which '
    'references refer, or another condition.';


create function gc._needs_target(c gc._shape, r gc._reference)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select not r.to_key or r.on_delete in ('c', 'n', 'd') or not gc._fits_key(c.target, r)
$$;

comment on function gc._needs_target(gc._shape, gc._reference) is
    'Whether the key of a lost target can be told only with the target itself.';


create function gc._lost_words(c gc._shape, r gc._reference)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object(
        'lost_keys', (
            select string_agg(
                format('r.%I', r.columns[array_position(r.targets, u.name)]),
                ', ' order by u.n)
            from unnest(k.names) with ordinality as u(name, n)
            where r.to_key
        ),
        'not_null', gc._not_null_sql(r.columns || gc._other_columns(r), 'r'))
    from (select (c.key).*) as k
$$;

comment on function gc._lost_words(gc._shape, gc._reference) is
    'What stands for the key that a row r points at, and for its being there.';


-- A target that went with its reference, by ON DELETE CASCADE or SET NULL, is not queued; nor is
-- one to which a row refers after the update. offset 0: one by one, for the plan that suits the
-- first statement of a session is kept for all the others.
create function gc._lost_sql(c gc._shape, r gc._reference, event text, operation text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into {queue} ({queue_keys}, event, review_after, causes)
select {lost_keys}, {event}, gc.review_after({event}), {causes}
from (
    select {columns} from {old_rows} as r where {not_null}
    {but}
) as r
{joined}
group by {lost_keys};$template$,
        c.words || w.words || jsonb_build_object(
                'event', quote_literal(event), 'joined', '',
                'but', case operation when 'delete' then '' else gc._render(
                    'except select {columns} from {new_rows} as r where {not_null}',
                    c.words || w.words) end)
            || case when not gc._needs_target(c, r) then '{}' else jsonb_build_object(
                'lost_keys', gc._idents((c.key).names, 't.'),
                'joined', gc._render(
                    'cross join lateral (select {t_keys} from {target} as t where {t_is_r} '
                    'offset 0) as t',
                    c.words || jsonb_build_object(
                        't_is_r', gc._pair(r.targets, 't', r.columns, 'r', r.operators)))) end)
    from (
        select gc._lost_words(c, r) || jsonb_build_object('columns', gc._idents(array(
            select distinct u.name from unnest(r.columns) as u(name) order by u.name), 'r.'))
    ) as w(words)
$$;

comment on function gc._lost_sql(gc._shape, gc._reference, text, text) is
    'The statement that queues the targets which rows of a reference have lost.';


create function gc._after_loss_sql(c gc._shape, relation regclass, operation text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(distinct
        gc._lost_sql(c, r, gc._event(c.events, gc._table_event(relation, operation)), operation),
        E'\n')
    from unnest(c.refs) as r
    where r.owned is null and relation in (r.referencing, gc._root(r.referencing))
        and not gc._is_mention(r)
$$;

comment on function gc._after_loss_sql(gc._shape, regclass, text) is
    'What follows a delete or an update of a table that refers to a collection, or of which a '
    'partition does.';


create function gc._before_loss_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('execute format(%s, tg_relid::regclass, tg_relid::regclass::text);',
        quote_literal(
            'insert into gc.scan_requests (collection, reason) select '
            || replace(quote_literal(c.name), '%', '%%')
            || ', %2$L || '' was truncated'' where exists (select from only %1$s) '
            'or current_setting(''transaction_isolation'') <> ''read committed'''))
$$;

comment on function gc._before_loss_sql(gc._shape) is
    'What comes before a TRUNCATE of a table that refers to a collection: a scan is asked for.';


create function gc._due_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_due', $template$
create or replace function gc.{function}(batch integer, failed boolean)
    returns tid[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    {by_index}
$template$, $template$
begin
    if $2 then
        return array(
            select q.ctid from {queue} as q
            where q.review_after <= now() and q.review_count > 0
            order by q.review_after
            limit $1
            for update skip locked
        );
    end if;
    return array(
        select q.ctid from {queue} as q
        where q.review_after <= now() and q.review_count = 0
        order by q.review_after
        limit $1
        for update skip locked
    );
end;$template$)
$$;

comment on function gc._due_sql(gc._shape) is
    'The function gc.<name>_due: locks entries that are due, longest overdue first; those that '
    'failed before, or those that did not. What other reviews have taken is left to them.';


create function gc._due(name text, failed boolean, batch integer)
    returns tid[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    entries tid[];
begin
    execute format('select gc.%I($1, $2)', gc._object_name(name, '_due'))
    into entries using batch, failed;
    return entries;
end;
$$;

comment on function gc._due(text, boolean, integer) is
    'Locks entries of a collection''s queue that are due.';


-- Counted from now: what was overdue for days is not due again at once. Earlier entries of the key
-- know of earlier failures.
create function gc._back_off_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_back_off', $template$
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
end;$template$)
$$;

comment on function gc._back_off_sql(gc._shape) is
    'The function gc.<name>_back_off: puts failed reviews off, longer each time.';


create function gc._back_off(name text, entries tid[], error text)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    changed integer;
begin
    execute format('select gc.%I($1, $2)', gc._object_name(name, '_back_off'))
    into changed using entries, error;
    return changed;
end;
$$;

comment on function gc._back_off(text, tid[], text) is
    'Puts failed reviews off, longer each time, and keeps the error.';


create function gc._next_review(name text)
    returns timestamptz
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    due timestamptz;
begin
    execute format('select min(q.review_after) from gc.%I as q',
        gc._object_name(name, '_review_queue'))
    into due;
    return due;
end;
$$;

comment on function gc._next_review(text) is 'When the next review of a collection is due.';
