-- Generating: make a collection's queue, functions and triggers from definition and catalog.
--
-- Everything that is generated belongs to the owner of blobgc, and is made again, all of it, when
-- the definition or the catalog differs from the fingerprint. Triggers are created where they are
-- missing and stay where they are, because creating one locks a table.

-- What the definition reads, what foreign keys refer by and to, and what tells the rows of a
-- referring table apart. Another column can come and go without anything being made again.
create function gc._used_columns(target regclass, columns name[])
    returns table (relation oid, attnum smallint)
    language plpgsql
    stable
    rows 20
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        with refs as materialized (
            select k.conrelid, k.conkey, k.confrelid, k.confkey from pg_constraint as k
            where k.contype = 'f' and k.conparentid = 0 and k.confrelid = target
        )
        select a.attrelid, a.attnum from pg_attribute as a
        where a.attrelid = target and a.attname = any (columns)
        union
        select r.confrelid, u from refs as r cross join lateral unnest(r.confkey) as u
        union
        select r.conrelid, u from refs as r cross join lateral unnest(r.conkey) as u
        union
        select i.indrelid, u from pg_index as i cross join lateral unnest(i.indkey::smallint[]) as u
        where i.indisprimary and i.indrelid = any (array(select r.conrelid from refs as r))
        union
        select p.partrelid, u
        from pg_partitioned_table as p
        cross join lateral unnest(p.partattrs::smallint[]) as u
        where p.partrelid in (select r.conrelid from refs as r);
end;
$$;

comment on function gc._used_columns(regclass, name[]) is
    'The columns on which the generated code of a collection depends.';


-- Oids and transaction ids are enough: it is compared only with what was computed from this very
-- catalog. After a dump is restored it differs, and the code is made again once. A review, which
-- asks, goes by indexes only: that would be slow here.
create function gc._catalog_facts(target regclass, columns name[], functions name[])
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = on
    set enable_hashjoin = on
    set plan_cache_mode = force_generic_plan
as $$
begin
    return (
        with recursive edges(parent, child, fact) as materialized (
            select i.inhparent, i.inhrelid, '' from pg_inherits as i
            union all
            select k.confrelid, k.conrelid, (k.oid, k.xmin)::text
            from pg_constraint as k where k.contype = 'f' and k.conparentid = 0
        ),
        tables(id) as (
            select target::oid union
            select e.child from tables as t join edges as e on e.parent = t.id
        ),
        facts(fact) as (
            select e.fact from tables as t join edges as e on e.parent = t.id
            union all
            select (r.oid, r.relnamespace::regnamespace, r.relname, r.relkind, r.relowner)::text
            from tables as t join pg_class as r on r.oid = t.id
            union all
            select (a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attcollation)::text
            from gc._used_columns(target, columns) as u
            join pg_attribute as a on a.attrelid = u.relation and a.attnum = u.attnum
            union all
            select (i.indexrelid, i.indkey, i.indisprimary, i.indisvalid)::text
            from pg_index as i where i.indrelid = target
            union all
            select (k.oid, k.xmin)::text
            from pg_constraint as k where k.conrelid = target and k.contype = 'c'
            union all
            select (g.tgrelid, g.tgname, g.tgfoid, g.tgenabled, f.proowner)::text
            from tables as t join pg_trigger as g on g.tgrelid = t.id
                and (not g.tgisinternal or g.tgenabled not in ('O', 'A'))
            join pg_proc as f on f.oid = g.tgfoid
            where f.pronamespace <> 'gc'::regnamespace or f.proname = any (functions)
        )
        select string_agg(f.fact, ' ' order by f.fact) from facts as f
    );
end;
$$;

comment on function gc._catalog_facts(regclass, name[], name[]) is
    'All that the catalog knows of a table, its partitions, and what refers to them; but of the '
    'triggers of blobgc only those with these functions: other collections have some there too.';


create function gc._fingerprint(c gc.collections)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return md5(gc._catalog_facts(c.target, c.columns, c.functions) || (
        gc.version(), c.url, c.size, c.label, c.generation, c.condition, c.owned, c.events,
        extract(epoch from c.undo), c.shared,
        -- Whose functions the expressions may call.
        (select s.trusted_roles from gc.settings as s),
        (select n.nspowner from pg_namespace as n where n.nspname = 'gc'),
        array(select r.oid from pg_roles as r where r.rolsuper order by r.oid)
    )::text);
end;
$$;

comment on function gc._fingerprint(gc.collections) is
    'All that the generated code depends on, in one word.';


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
            'create table gc.%I (%s, event text not null, review_after timestamptz not null, '
            'review_count integer not null default 0, last_error text, '
            'entry bigint generated always as identity) with (fillfactor = 90, '
            'autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, '
            'autovacuum_vacuum_insert_scale_factor = 0, '
            'autovacuum_vacuum_insert_threshold = 50000, autovacuum_analyze_scale_factor = 0, '
            'autovacuum_analyze_threshold = 50000, autovacuum_vacuum_cost_delay = 0)',
            queue,
            string_agg(format('%I %s not null', u.name, u.type), ', ' order by u.n))
        from (select (c.key).*) as k
        cross join lateral unnest(k.queue_names, k.types) with ordinality as u(name, type, n)
    );
begin
    perform gc._run(command);
    perform gc._seal_table(to_regclass(format('gc.%I', queue)));
    execute format('create index on gc.%I (review_after)', queue);
    execute format('create index on gc.%I (review_after) where review_count > 0', queue);
    perform gc._run(format('create index on gc.%I (%s, entry)', queue, gc._index_columns(c.key)));
    execute format('comment on table gc.%I is %L', queue, format(
        'What of %s is to be reviewed, and when; the latest entry of a key counts.', c.target));
end;
$$;

comment on function gc._make_queue(gc._shape) is 'Creates the review queue of a collection.';


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
    end if;
    perform gc._make_key_type(c);
end;
$$;

comment on function gc._make_storage(gc._shape) is
    'Creates what a collection keeps data in, where it is not there or does not fit the key.';


create function gc._own_triggers(c gc._shape)
    returns setof gc._trigger
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.target, w.suffix, w.timing, w.tables, c.columns, null::name[], true, w.body,
        case when c.url is not null then w.otherwise end
    from (values
        ('_after_insert', 'after insert', 'referencing new table as new_rows',
            gc._after_insert_sql(c), gc._admit_changed_sql(c)),
        ('_after_update', 'after update',
            'referencing old table as old_rows new table as new_rows', gc._after_update_sql(c),
            gc._kept_whole_sql(c, 'old_rows') || E';\n' || gc._admit_changed_sql(c)),
        ('_after_delete', 'after delete', 'referencing old table as old_rows',
            concat_ws(E'\n', case when c.url is not null then gc._after_delete_sql(c) end,
                gc._forget_links_sql(c, 'old_rows')), gc._kept_whole_sql(c, 'old_rows') || ';'),
        ('_before_truncate', 'before truncate', '',
            concat_ws(E'\n', case when c.url is not null then gc._before_truncate_sql(c) end,
                gc._truncated_sql(gc._forget_links_sql(c, null))),
            gc._truncated_sql(gc._kept_whole_sql(c, null)))
    ) as w(suffix, timing, tables, body, otherwise)
    where w.body <> ''
$$;

comment on function gc._own_triggers(gc._shape) is
    'The triggers on a collection''s own table.';


create function gc._reference_triggers(c gc._shape)
    returns setof gc._trigger
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select r.relation,
        format('_%s_%s_%s', o.timing, gc._short_name(c, r.relation), o.operation),
        o.timing || ' ' || o.operation, o.tables, r.columns || l.columns, r.target_columns,
        r.target_columns is not null or l.links is not null, b.body, null
    from (
        select f.referencing, array_agg(distinct u.name),
            array_agg(distinct u.target) filter (where gc._needs_target(f))
        from unnest(c.refs) as f
        cross join lateral unnest(f.columns, f.targets) as u(name, target)
        where f.owned is null
        group by f.referencing
    ) as r(relation, columns, target_columns)
    left join unnest(c.links) as l on l.relation = r.relation
    cross join (values
        ('after', 'insert', 'referencing new table as new_rows'),
        ('after', 'delete', 'referencing old table as old_rows'),
        ('after', 'update', 'referencing old table as old_rows new table as new_rows'),
        ('before', 'truncate', '')
    ) as o(timing, operation, tables)
    cross join lateral (
        select case o.operation
            when 'truncate' then gc._before_loss_sql(c)
            when 'delete' then gc._after_loss_sql(c, r.relation, 'delete')
            when 'insert' then gc._after_link_sql(c, r.relation, 'insert')
            else concat_ws(E'\n', gc._after_loss_sql(c, r.relation, 'update'),
                gc._after_link_sql(c, r.relation, 'update'))
        end
    ) as b(body)
    where b.body is not null
$$;

comment on function gc._reference_triggers(gc._shape) is
    'The triggers on the tables that refer to a collection and keep its rows.';


-- A statement aimed at a partition fires the partition's triggers only, one aimed at the table only
-- the table's: both have them.
create function gc._attach(t gc._trigger, function_name name)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    command text;
begin
    for command in
        select format('create or replace trigger %I %s on %s %s for each statement '
            'execute function gc.%I()', n.name, t.timing, p.part, t.tables, function_name)
        from gc._partitions(t.relation) as p(part)
        cross join gc._object_name('gc_', function_name) as n(name)
        where not exists (
            select from pg_trigger as o
            join pg_proc as f on f.oid = o.tgfoid and f.proname = function_name
            where o.tgrelid = p.part and o.tgname = n.name
        )
    loop
        perform gc._run(command);
    end loop;
end;
$$;

comment on function gc._attach(gc._trigger, name) is
    'Creates a trigger on a table and its partitions, wherever it is missing or out of use.';


-- Dropping a trigger locks its table against everybody. So its function is made to do nothing and
-- gets another name, for which no table is locked, and gc.drop_unused_triggers drops both later.
create function gc._drop_function(function regprocedure)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    spare name := '_unused_' || md5(concat(function::oid, clock_timestamp(), random()));
begin
    if not exists (select from pg_trigger as t where t.tgfoid = function) then
        perform gc._run(format('drop function %s', function));
        return;
    end if;
    perform gc._run(format('create or replace function %s returns trigger '
        'language plpgsql set search_path = pg_catalog, pg_temp '
        'as $f$begin return null; end;$f$', function));
    perform gc._run(format('alter function %s rename to %I', function, spare));
end;
$$;

comment on function gc._drop_function(regprocedure) is
    'Drops a generated function, or puts it out of use while triggers have it.';


create function gc._drop_functions(names name[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._drop_function(f.oid::regprocedure)
    from pg_proc as f
    where f.pronamespace = 'gc'::regnamespace and f.proname = any (names);
end;
$$;

comment on function gc._drop_functions(name[]) is
    'Drops generated functions, or puts them out of use.';


-- A statement that is running may still have the old function, and write into them.
create function gc._set_aside(names name[])
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    insert into gc.unused_tables (name) select distinct u from unnest(names) as u
    on conflict do nothing
$$;

comment on function gc._set_aside(name[]) is
    'Leaves tables of gc to gc.drop_unused_triggers.';


create function gc._make_function(name name, source text)
    returns name
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    known oid := to_regproc(format('gc.%I', name));
begin
    perform gc._run(source);
    -- One that was there has only the rights that were given by name, to an uploader perhaps.
    perform gc._seal('pg_proc'::regclass, f.oid)
    from pg_proc as f
    where f.pronamespace = 'gc'::regnamespace and f.proname = _make_function.name
        and f.oid is distinct from known;
    return name;
end;
$$;

comment on function gc._make_function(name, text) is
    'Creates or replaces a generated function, which only the owner of blobgc may call.';


create function gc._make_triggers(c gc._shape)
    returns name[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    t gc._trigger;
    function_name name;
    made name[] := array[]::name[];
begin
    for t in
        select * from gc._own_triggers(c) union all select * from gc._reference_triggers(c)
    loop
        function_name := gc._object_name(c.name, t.suffix);
        made := made || gc._make_function(
            function_name, case
                when t.timing like 'before%' then gc._truncate_trigger_sql(c, function_name, t)
                else gc._trigger_sql(c, function_name, t)
            end);
        perform gc._attach(t, function_name);
    end loop;
    return made;
end;
$$;

comment on function gc._make_triggers(gc._shape) is
    'Makes all triggers of a collection; returns the names of their functions.';


create function gc._make_lookups(c gc._shape)
    returns name[]
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select array[
        gc._make_function(gc._object_name(c.name, '_key_text'), gc._key_text_sql(c)),
        gc._make_function(gc._object_name(c.name, '_lock'), gc._lock_sql(c)),
        gc._make_function(gc._object_name(c.name, '_scan'), gc._scan_sql(c)),
        gc._make_function(gc._object_name(c.name, '_back_off'), gc._back_off_sql(c))
    ] || case
        when c.url is null then '{}'
        else array[
            gc._make_function(gc._object_name(c.name, '_used'), gc._used_sql(c)),
            gc._make_function(gc._object_name(c.name, '_read'), gc._read_sql(c))
        ]
    end || case
        when c.url is null or c.shared then '{}'
        else array[gc._make_function(gc._object_name(c.name, '_url'), gc._url_sql(c))]
    end
$$;

comment on function gc._make_lookups(gc._shape) is
    'Makes the functions that look rows up; returns their names.';


create function gc._make_entries(c gc._shape)
    returns name[]
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select array_agg(gc._make_function(gc._object_name(c.name, e.suffix),
        gc._entry_sql(c, e.suffix, e.arguments, e.type, e.call)))
    from (values
        ('_begin_upload', 'key text, url text, wait interval, timeout interval, upload text',
            'timestamptz', 'gc._begin_upload({name}, $1, $2, $3, $4, $5)'),
        ('_end_upload', 'key text, upload text', 'boolean', 'gc._end_upload({name}, $1, $2)'),
        ('_keep_alive', 'key text', 'boolean', 'gc._keep_alive({name}, $1)')
    ) as e(suffix, arguments, type, call)
$$;

comment on function gc._make_entries(gc._shape) is
    'Makes the functions by which users of a collection hold its rows; returns their names.';


-- A partition that was dropped took its references along, and no trigger saw it; so did a table or
-- a column that was dropped and made again. A restored dump has other tables everywhere, and lost
-- none. What is new needs no scan: a row that only it keeps is queued already, and is reviewed by
-- the new code.
create function gc._scan_what_lost_references(c gc.collections)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    insert into gc.scan_requests (collection, reason)
    select c.name, o.place || ' no longer refers to it'
    from gc._lost_keepers(c) as o
    union
    select c.name, o.place || ' was made again'
    from gc._known_keepers(c) as o
    join gc._keepers(c.target) as k on k.place = o.place and k.target = o.target
    where (k.source, k.columns) <> (o.source, o.columns)
$$;

comment on function gc._scan_what_lost_references(gc.collections) is
    'Asks for a scan where a reference has gone since the code was last made.';


-- The fingerprint comes after the triggers, which it counts, and before the review, which has it.
create function gc._generate(name text, fill boolean default false)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    s gc._shape;
    made name[];
    linked name[];
begin
    update gc.collections as o
    set columns = gc._check_definition(c),
        proof = case when c.url is not null then gc._url_proof(c) end
    where o.name = c.name
    returning o.* into c;
    update gc.collections as o
    set shared = gc._shares_objects(c),
        url_prefix = case when c.url is not null then gc._url_prefix(c) end,
        url_printed = case when c.url is not null then gc._printed_url(c) end,
        url_flaw = case when c.url is not null then gc._url_index_flaw(c) end
    where o.name = c.name
    returning o.* into c;
    s := gc._shape(c);
    perform gc._make_storage(s);
    linked := gc._make_links(s, fill);
    made := gc._make_triggers(s) || gc._make_lookups(s) || gc._make_entries(s)
        || gc._object_name(c.name, '_review');
    perform gc._drop_functions(
        array(select u from unnest(c.functions) as u where not u = any (made)));
    perform gc._set_aside(array(select u from unnest(c.links) as u where not u = any (linked)));
    perform gc._scan_what_lost_references(c);
    update gc.collections as o
    set functions = made, links = linked, problem = null, problem_since = null,
        keeping = gc._keeping(c)
    where o.name = c.name
    returning o.* into c;
    update gc.collections as o
    set fingerprint = gc._fingerprint(c)
    where o.name = c.name
    returning o.* into c;
    perform gc._make_function(gc._object_name(c.name, '_review'), gc._review_sql(s, c.fingerprint));
end;
$$;

comment on function gc._generate(text, boolean) is
    'Makes everything that a collection needs; with fill, also links of what is there already.';


-- From the locks on, no foreign key and no trigger can be added; whose code is there is looked at
-- then, and every time: who is trusted may change without a change of the tables. A session that
-- makes the code again locks more, and two of them would wait for each other: the second leaves it
-- to the first.
create function gc._is_current(name text, fingerprint text)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    message text;
    detail text;
    hint text;
begin
    if not exists (select from pg_class as t where t.oid = c.target) then
        raise 'the table of the collection is gone'
            using hint = format('select gc.untrack(%L);', name);
    end if;
    perform gc._lock_touched(c);
    perform gc._require_trusted(c);
    perform gc._require_keeper(c);
    if gc._fingerprint(c) = _is_current.fingerprint then
        return true;
    end if;
    perform from gc.collections as o where o.name = c.name for update skip locked;
    if not found then
        raise 'another session is making its code again' using errcode = 'lock_not_available';
    end if;
    perform gc._generate(name);
    return false;
exception
    when others then
        get stacked diagnostics message = message_text, detail = pg_exception_detail,
            hint = pg_exception_hint;
        raise 'the collection "%" cannot be reviewed: %', name,
            concat_ws(': ', message, nullif(detail, ''))
            using errcode = 'ZG003',
                detail = 'Nothing of it is deleted until that is mended.',
                hint = coalesce(nullif(hint, ''), 'Mend it, or call gc.track again.');
end;
$$;

comment on function gc._is_current(text, text) is
    'Locks the collection against new foreign keys. True if the code that asks was made from what '
    'the catalog says now; false if it has been made again. Raises ZG003 if it cannot be made.';
