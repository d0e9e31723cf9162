-- Triggers: the functions that follow the application's statements, and how they get to the tables.
--
-- A trigger only inserts, so it waits for nobody; and it never fails the application's statement:
-- where a table is not what the function was made for, it notes that, and keeps rows whole.

create type gc._trigger as (
    relation regclass, suffix text, timing text, tables text, columns name[],
    target_columns name[], looks_up boolean, body text, otherwise text, fires_when text
);

comment on type gc._trigger is
    'A trigger that a collection needs: what it does, and what it does where the tables are not '
    'what they were.';


create function gc._has_columns_sql(relation regclass, columns name[])
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format(
        'gc._has_columns(%L, %L)', relation, gc._typed(relation, columns))
$$;

comment on function gc._has_columns_sql(regclass, name[]) is
    'The condition that a table still has the columns that it has now.';


-- Whether a table is what it was is part of the plan of a statement that reads it, and is found out
-- anew only when the table changes: so the target is read as well, though never a row of it.
create function gc._guard_words(c gc._shape, t gc._trigger)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when t.target_columns is null then jsonb_build_object(
            'target_gone', '', 'target_too', '',
            'has_columns', gc._has_columns_sql(t.relation, t.columns))
        else jsonb_build_object(
            'target_gone', gc._render($template$
if to_regclass({table}) is null then
    perform gc._note_missed({name}, {table});
    return null;
end if;$template$, c.words),
            'target_too', format(' left join %s as t on false', c.target),
            'has_columns', gc._has_columns_sql(t.relation, t.columns) || E'\n        and '
                || gc._has_columns_sql(c.target, t.target_columns))
    end
$$;

comment on function gc._guard_words(gc._shape, gc._trigger) is
    'What stands for the question whether a trigger still fits the tables it was made for.';


-- Settings cost, so only what needs them has them.
create function gc._trigger_settings(c gc._shape, t gc._trigger)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select concat_ws(E'\n',
        case when t.relation = c.target then nullif(gc._print_settings(c), '') end,
        case when exists (
            select from unnest(c.refs) as r where t.relation in (r.referencing, c.target)
                and gc._is_mention(r) and not (r.mention).is_safe
        ) then gc._fixed_settings_sql() end,
        case when t.looks_up then gc._index_settings() end)
$$;

comment on function gc._trigger_settings(gc._shape, gc._trigger) is
    'The settings under which a trigger means and finds the same for everybody.';


-- The frame of a trigger function. Its rights are the owner's: the application needs none on gc.
-- What was dropped or renamed a moment ago must not fail the application's statement.
create function gc._trigger_sql(c gc._shape, t gc._trigger)
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
<<this>>
declare
    is_current boolean;
    {causes_declared}
begin
    {target_gone}
    -- Null: there is no row. False: this is no longer what the function was made for.
    select {has_columns}
    into is_current
    from {rows}{target_too}
    limit 1;
    {causes_read}
    if is_current then
        {body}
    elsif not is_current then
        perform gc._note_missed({name}, {relation});
        {otherwise}
    end if;
    return null;
end;$template$,
        gc._guard_words(c, t) || gc._cause_parts(t) || jsonb_build_object(
            'relation', quote_literal(t.relation),
            'rows', case when t.tables like '%new_rows' then 'new_rows' else 'old_rows' end,
            'settings', gc._trigger_settings(c, t),
            'otherwise', coalesce(t.otherwise, ''),
            'body', t.body))
$$;

comment on function gc._trigger_sql(gc._shape, gc._trigger) is
    'The function of a trigger that follows a statement.';


-- TRUNCATE has no transition tables to look at. It fires for each partition by itself, but one that
-- has come since the code was made has no trigger yet.
create function gc._truncate_trigger_sql(c gc._shape, t gc._trigger)
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
    set quote_all_identifiers = off
    {settings}
$template$, $template$
declare
    is_current boolean := gc._has_columns(tg_relid::regclass::text, {columns});
begin
    {before}
    if is_current then
        {body}
    else
        {otherwise}
    end if;
    return null;
end;$template$,
        jsonb_build_object(
            'columns', quote_literal(gc._typed(t.relation, t.columns)),
            'before', case when t.otherwise is null then '' else gc._render(
                E'perform gc._require_followable({name});\n'
                'perform gc._keep_untracked({name}, tg_relid, tg_name);', c.words) end,
            'otherwise', coalesce(t.otherwise, t.body),
            'body', t.body))
$$;

comment on function gc._truncate_trigger_sql(gc._shape, gc._trigger) is
    'The function of a trigger that comes before a TRUNCATE.';


-- An expression that may raise is computed once before anything is written. The block writes
-- nothing, so it costs no transaction id.
create function gc._computing_sql(c gc._shape, computes text, body text, otherwise text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.is_plain then body else gc._render($template$
begin
    {computes}
exception
    when others then
        perform gc._raise_if_passing(sqlstate, sqlerrm);
        is_current := false;
end;
if is_current then
    {body}
else
    {otherwise}
end if;$template$,
        jsonb_build_object('computes', computes, 'body', body, 'otherwise', otherwise)) end
$$;

comment on function gc._computing_sql(gc._shape, text, text, text) is
    'A part of a trigger that is done only if what it needs can be computed, or else the other.';


-- TRUNCATE fires for each partition by itself, and has no transition table. Which one is meant is
-- filled in when the statement is executed, by format: so no other text may look like its signs.
create function gc._source_words(words jsonb, source text)
    returns jsonb
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_object_agg(w.key, case when source is null then replace(w.value, '%', '%%')
            else w.value end) || jsonb_build_object('source', coalesce(source, 'only %1$s'))
        || case when source is null then '{"causes": "gc._causes()"}' else '{}' end::jsonb
    from jsonb_each_text(words) as w
$$;

comment on function gc._source_words(jsonb, text) is
    'Words, and where the rows are; null: in the table that is about to be truncated.';


create function gc._truncated_sql(statement text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select 'execute format(' || quote_literal(statement) || ', tg_relid::regclass);' $$;

comment on function gc._truncated_sql(text) is
    'What executes a statement for the table that is about to be truncated.';


-- Most of the time nothing is being deleted: see sql/gate.sql. PostgreSQL asks this by itself, when
-- the rows are there, and calls no function if it is not so. It reads the condition anew for each
-- statement: the shorter, the faster.
create function gc._gate_sql()
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select 'pg_catalog.pg_sequence_last_value(''gc.deleting_until''::pg_catalog.regclass) '
        'is not null'::text
$$;

comment on function gc._gate_sql() is 'The condition that something may be being deleted.';


create function gc._own_triggers(c gc._shape)
    returns setof gc._trigger
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.target, w.suffix, w.timing, w.tables, c.columns, null::name[], true, w.body,
        nullif(concat_ws(E'\n',
            case when w.suffix = '_after_update' then gc._note_keys_now_sql(c) end,
            case when c.url is not null then w.otherwise
                when w.suffix = '_after_delete' then gc._spare_blindly_sql(c) end), ''),
        case when w.suffix = '_admits_insert' then gc._gate_sql() end
    from (values
        (case when c.collect = 'deleted' then '_admits_insert' else '_after_insert' end,
            'after insert', 'referencing new table as new_rows', gc._after_insert_sql(c),
            gc._admit_changed_sql(c)),
        ('_after_update', 'after update',
            'referencing old table as old_rows new table as new_rows', gc._after_update_sql(c),
            gc._kept_whole_sql(c, 'old_rows') || E';\n' || gc._admit_changed_sql(c)),
        ('_after_delete', 'after delete', 'referencing old table as old_rows',
            concat_ws(E'\n', gc._spare_pinned_sql(c), gc._spare_mentioned_sql(c),
                case when c.url is not null then gc._after_delete_sql(c) end,
                gc._forget_links_sql(c, 'old_rows'), gc._note_gone_sql(c, 'old_rows')),
            gc._spare_blindly_sql(c) || E'\n' || gc._kept_whole_sql(c, 'old_rows') || ';'),
        ('_before_truncate', 'before truncate', '',
            concat_ws(E'\n', case when c.url is not null then gc._before_truncate_sql(c) end,
                gc._truncated_sql(gc._forget_links_sql(c, null)),
                gc._truncated_sql(gc._note_gone_sql(c, null))),
            gc._truncated_sql(gc._kept_whole_sql(c, null)))
    ) as w(suffix, timing, tables, body, otherwise)
    where w.body <> ''
$$;

comment on function gc._own_triggers(gc._shape) is
    'The triggers on a collection''s own table.';


-- An owned reference that was declared locks its targets like one that keeps them. A statement
-- aimed at a partitioned table fires no trigger of a partition: where only that has a foreign key,
-- the table is watched as well. What it queues for rows of other partitions is found kept, or gone.
create function gc._watched_tables(c gc._shape)
    returns table (
        relation regclass, columns name[], targets name[], targets_of_lost name[], keeps boolean
    )
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select w.relation, array_agg(distinct u.name) filter (where u.name is not null),
        array_agg(distinct u.target)
            filter (where u.target is not null and (gc._needs_target(c, f) or gc._is_mention(f))),
        array_agg(distinct u.target) filter (where u.target is not null and case
            when gc._is_mention(f) then not (f.mention).is_direct
            else gc._needs_target(c, f) end),
        bool_or(f.owned is null and f.referencing = w.relation)
    from unnest(c.refs) as f
    cross join lateral (select f.referencing union select gc._root(f.referencing)) as w(relation)
    cross join lateral unnest(
        case when gc._is_mention(f) then (f.mention).columns
            else f.columns || gc._other_columns(f) end, f.targets
    ) as u(name, target)
    where f.owned is null or gc._is_mention(f)
    group by w.relation
$$;

comment on function gc._watched_tables(gc._shape) is
    'The tables that have triggers because they refer to a collection, the columns of theirs and '
    'of the collection that these read, and those that only the loss of a reference reads; keeps: '
    'the table refers itself, and not only a partition of it.';


create function gc._after_reference_sql(c gc._shape, relation regclass, operation text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select nullif(concat_ws(E'\n',
        case when operation <> 'insert' then gc._after_loss_sql(c, relation, operation) end,
        case when operation <> 'delete' then gc._after_link_sql(c, relation, operation) end,
        gc._after_mention_sql(c, relation, operation)), '')
$$;

comment on function gc._after_reference_sql(gc._shape, regclass, text) is
    'What follows a statement on a table that refers to a collection; null: nothing.';


create function gc._reference_triggers(c gc._shape)
    returns setof gc._trigger
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select r.relation,
        format('_%s_%s_%s', o.timing, gc._short_name(c, r.relation), o.operation),
        o.timing || ' ' || o.operation, o.tables, r.columns || l.columns, t.columns,
        t.columns is not null or l.links is not null, b.body, null, null
    from gc._watched_tables(c) as r
    left join unnest(c.links) as l on l.relation = r.relation
    cross join (values
        ('after', 'insert', 'referencing new table as new_rows'),
        ('after', 'delete', 'referencing old table as old_rows'),
        ('after', 'update', 'referencing old table as old_rows new table as new_rows'),
        ('before', 'truncate', '')
    ) as o(timing, operation, tables)
    cross join lateral (
        select case when o.operation = 'delete' then r.targets_of_lost else r.targets end
    ) as t(columns)
    cross join lateral (
        select case when o.operation <> 'truncate'
                then gc._after_reference_sql(c, r.relation, o.operation)
            when r.keeps then gc._before_loss_sql(c) end
    ) as b(body)
    where b.body is not null
$$;

comment on function gc._reference_triggers(gc._shape) is
    'The triggers on the tables that refer to a collection.';


create type gc._table_change as (relation regclass, command text);

comment on type gc._table_change is 'A statement that waits for those who write a table.';


-- A statement aimed at a partition fires the partition's triggers only, one aimed at the table only
-- the table's: both have them.
create function gc._attachments(t gc._trigger, function_name name)
    returns gc._table_change[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array(
        select (p.part, format('create or replace trigger %I %s on %s %s for each statement %s'
            'execute function gc.%I()', n.name, t.timing, p.part, t.tables,
            'when (' || t.fires_when || ') ', function_name))::gc._table_change
        from gc._partitions(t.relation) as p(part)
        cross join gc._object_name('gc_', function_name) as n(name)
        where not exists (
            select from pg_trigger as o
            join pg_proc as f on f.oid = o.tgfoid and f.proname = function_name
            where o.tgrelid = p.part and o.tgname = n.name
        )
    )
$$;

comment on function gc._attachments(gc._trigger, name) is
    'What creates a trigger on a table and its partitions, wherever it is missing or out of use.';


-- Whoever has written a key without a lock has to be done before a review can count on locks.
create function gc._await_mentions(referencing regclass)
    returns gc._table_change
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select (
        referencing, format('lock table %s in share row exclusive mode', referencing)
    )::gc._table_change
$$;

comment on function gc._await_mentions(regclass) is
    'What waits for those who are writing a table, and keeps others out until the commit.';


-- A lock_timeout is a wait, however short, and a deadlock may be looked for in it.
create function gc._lock_at_once(relation regclass)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if has_table_privilege(relation, 'update, delete, truncate') and exists (
        select from pg_class as c where c.oid = relation and c.relkind in ('r', 'p')
    ) then
        perform gc._run(
            format('lock table only %s in share row exclusive mode nowait', relation));
    end if;
end;
$$;

comment on function gc._lock_at_once(regclass) is
    'Keeps writers out of a table, or raises at once; but where the right to lock it lacks, it is '
    'left to the next statement.';


create function gc._wait_for_table(relation regclass, longest interval)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if longest <= '1 millisecond' then
        perform gc._lock_at_once(relation);
    end if;
    perform gc._limit_lock_waits(case
        when longest is null then '0' else greatest(longest, '1 millisecond') end);
end;
$$;

comment on function gc._wait_for_table(regclass, interval) is
    'Has the next statement wait no longer than that for a table, if at all; null: for ever.';


-- Each change keeps writers out of its table until the commit. Who writes several tables may have
-- one, and want another that we have: it must not wait for us while we wait for it. So the table
-- that is waited for comes first, when we have none yet. The others must be had before those would
-- look for a deadlock who came to wait behind us since; else everything is given back, and the one
-- that was busy is waited for.
create function gc._change_tables(changes gc._table_change[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    patience constant interval := current_setting('lock_timeout')::interval;
    until constant timestamptz := clock_timestamp() + nullif(patience, '0');
    soon constant interval := current_setting('deadlock_timeout')::interval / 2;
    first_one regclass := (select min(u.relation::oid) from unnest(changes) as u);
    begun_at timestamptz;
    change record;
begin
    loop
        begun_at := clock_timestamp();
        begin
            for change in
                select u.relation, u.command,
                    row_number() over (partition by u.relation order by u.n) = 1 as is_first
                from unnest(changes) with ordinality as u(relation, command, n)
                order by is_first desc, u.relation <> first_one, u.relation, u.n
            loop
                if change.is_first then
                    perform gc._wait_for_table(change.relation, least(until, case
                        when change.relation <> first_one then begun_at + soon
                    end) - clock_timestamp());
                end if;
                perform gc._run(change.command);
            end loop;
            perform gc._limit_lock_waits(patience);
            return;
        exception
            when lock_not_available then
                if clock_timestamp() >= until then
                    raise;
                end if;
                first_one := change.relation;
        end;
    end loop;
end;
$$;

comment on function gc._change_tables(gc._table_change[]) is
    'Makes changes that keep writers out of tables, and lets no writer run into a deadlock; waits '
    'as long as lock_timeout says.';


-- Whoever keeps writers out of a table waits for none of them: one could be waiting for the table,
-- and PostgreSQL would end his statement as one that is in a deadlock.
create function gc._wait_for_no_writer()
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (
        select from pg_locks as l
        where l.pid = pg_backend_pid() and l.mode = 'ShareRowExclusiveLock' and l.granted
    ) then
        perform gc._limit_lock_waits('1 millisecond');
    end if;
end;
$$;

comment on function gc._wait_for_no_writer() is
    'After code was made again: the rest of a review waits for no lock if it keeps writers out.';


create function gc._source(function name)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select f.prosrc from pg_proc as f
    where f.pronamespace = 'gc'::regnamespace and f.proname = function
$$;

comment on function gc._source(name) is 'The body of a generated function; null: it is not there.';


-- The functions first: that locks no table.
create function gc._make_triggers(c gc._shape)
    returns name[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    t gc._trigger;
    made name[] := array[]::name[];
    changes gc._table_change[] := array[]::gc._table_change[];
    before text;
    keeping record;
begin
    for t in
        select * from gc._own_triggers(c) union all select * from gc._reference_triggers(c)
        union all select * from gc._move_triggers(c)
    loop
        before := gc._source(gc._object_name(c.name, t.suffix));
        made := made || gc._make_function(c, t.suffix, case
            when t.timing = 'before update' then gc._move_trigger_sql(c, t)
            when t.timing like 'before%' then gc._truncate_trigger_sql(c, t)
            else gc._trigger_sql(c, t)
        end);
        changes := changes || case when t.timing = 'before update'
            then gc._move_attachments(t, made[cardinality(made)])
            else gc._attachments(t, made[cardinality(made)]) end;
        -- Who wrote a mention as the old code was may have locked nothing.
        if before <> gc._source(made[cardinality(made)]) and exists (
            select from unnest(c.refs) as r
            where r.referencing = t.relation and gc._is_mention(r)
        ) then
            changes := changes || gc._await_mentions(t.relation);
        end if;
    end loop;
    keeping := gc._make_keeping_functions(c);
    perform gc._change_tables(changes || keeping.changes);
    return made || keeping.made;
end;
$$;

comment on function gc._make_triggers(gc._shape) is
    'Makes all triggers of a collection; returns the names of their functions.';
