-- Generating: make a collection's queue, functions and triggers from definition and catalog.
--
-- Everything that is generated belongs to the owner of blobgc, and is made again, all of it, when
-- the definition or the catalog differs from the fingerprint. Triggers are created where they are
-- missing and stay where they are, because creating one locks a table.

-- What the definition reads, what foreign keys refer by and to, and what tells the rows of a
-- referring table apart. Another column can come and go without anything being made again.
create function gc._used_columns(target regclass, columns name[], owned oid[])
    returns table (relation oid, attnum smallint)
    language plpgsql
    stable
    rows 20
    set search_path = pg_catalog, pg_temp
as $$
declare
    roots oid[] := array(select p::oid from gc._partitions(target) as p);
begin
    return query
        with refs as materialized (
            select k.conrelid, k.conkey, k.confrelid, k.confkey from pg_constraint as k
            where k.contype = 'f' and k.conparentid = 0 and k.confrelid = any (roots || owned)
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

comment on function gc._used_columns(regclass, name[], oid[]) is
    'The columns on which the generated code of a collection depends.';


-- Oids and transaction ids are enough: it is compared only with what was computed from this very
-- catalog. After a dump is restored it differs, and the code is made again once. A review, which
-- asks, goes by indexes only: that would be slow here.
create function gc._catalog_facts(
    target regclass, columns name[], functions name[], owned oid[]
)
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
            select n.parent, n.child, '' from gc._kin() as n
            union all
            select k.confrelid, k.conrelid, (k.oid, k.xmin)::text
            from pg_constraint as k where k.contype = 'f' and k.conparentid = 0
            union all
            select target, d, '' from gc._declared_tables(target) as d
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
            from gc._used_columns(target, columns, owned) as u
            join pg_attribute as a on a.attrelid = u.relation and a.attnum = u.attnum
            union all select gc._computed_facts(t.id) from tables as t
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

comment on function gc._catalog_facts(regclass, name[], name[], oid[]) is
    'All that the catalog knows of a table, its partitions, and what refers to them; but of the '
    'triggers of blobgc only those with these functions: other collections have some there too.';


create function gc._fingerprint(c gc.collections)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return md5(concat(gc._catalog_facts(c.target, c.columns, c.functions,
            array(select o.relation from gc._owned_tables(c) as o order by 1)),
        gc._declared_facts(c.target)) || (
        gc.version(), c.url, c.size, c.label, c.generation, c.condition, c.collect, c.owned,
        c.events, coalesce(gc._undo_facts(), ''), c.several, c.shared, c.finalizers,
        -- Whose functions the expressions may call.
        (select s.trusted_roles from gc.settings as s),
        (select n.nspowner from pg_namespace as n where n.nspname = 'gc'),
        array(select r.oid from pg_roles as r where r.rolsuper order by r.oid),
        array(select s.srrelid from pg_subscription_rel as s order by s.srrelid)
    )::text);
end;
$$;

comment on function gc._fingerprint(gc.collections) is
    'All that the generated code depends on, in one word.';


create function gc._make_function(c gc._shape, suffix text, source text)
    returns name
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    made name := gc._object_name(c.name, suffix);
    known oid := to_regproc(format('gc.%I', made));
begin
    perform gc._run(source);
    -- One that was there has only the rights that were given by name, to an uploader perhaps.
    perform gc._seal('pg_proc'::regclass, f.oid)
    from pg_proc as f
    where f.pronamespace = 'gc'::regnamespace and f.proname = made
        and f.oid is distinct from known;
    return made;
end;
$$;

comment on function gc._make_function(gc._shape, text, text) is
    'Creates or replaces a generated function, which only the owner of blobgc may call.';


-- Each collection has its own, so that the right to announce an upload can be given for one.
create function gc._entry_sql(c gc._shape, suffix text, arguments text, type text, call text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, suffix, $template$
create or replace function gc.{function}({arguments})
    returns {type}
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    {pinned}
$template$, $template$
begin
    return {call};
end;$template$,
        jsonb_build_object(
            'arguments', arguments, 'type', type, 'pinned', gc._fixed_settings_sql(),
            'call', gc._render(call, c.words)))
$$;

comment on function gc._entry_sql(gc._shape, text, text, text, text) is
    'A function that is called for those who may use the collection.';


create function gc._functions_sql(c gc._shape)
    returns table (suffix text, source text)
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select f.*
    from (values
        ('_wakes', gc._wakes_sql(c)),
        ('_due', gc._due_sql(c)), ('_back_off', gc._back_off_sql(c)), ('_scan', gc._scan_sql(c)),
        ('_key_text', gc._key_text_sql(c)), ('_lock', gc._lock_sql(c)), ('_url', gc._url_sql(c)),
        ('_used', gc._used_sql(c)), ('_read', gc._read_sql(c)), ('_enqueue', gc._enqueue_sql(c)),
        ('_facts', gc._facts_sql(c)), ('_kept_by', gc._kept_by_sql(c)),
        ('_rows_at', gc._rows_at_sql(c)), ('_counted', gc._counted_sql(c)),
        ('_referring', gc._referring_rows_sql(c)), ('_owner_of', gc._owner_of_sql(c)),
        ('_entries', gc._entries_sql(c)), ('_objects', gc._objects_sql(c)),
        ('_average_size', gc._average_size_sql(c)),
        ('_begin_upload', gc._entry_sql(c, '_begin_upload',
            'key text, url text, wait interval, timeout interval, upload text', 'timestamptz',
            'gc._begin_uploads({name}, array[$1], array[$2], $3, $4, $5)')),
        ('_begin_uploads', gc._entry_sql(c, '_begin_uploads',
            'keys text[], urls text[], wait interval, timeout interval, upload text',
            'timestamptz', 'gc._begin_uploads({name}, $1, $2, $3, $4, $5)')),
        ('_end_upload', gc._entry_sql(c, '_end_upload',
            'key text, upload text', 'boolean',
            'gc._end_uploads({name}, array[$1], null, $2) > 0')),
        ('_end_uploads', gc._entry_sql(c, '_end_uploads',
            'keys text[], urls text[], upload text', 'integer',
            'gc._end_uploads({name}, $1, $2, $3)')),
        ('_keep_alive', gc._entry_sql(c, '_keep_alive',
            'key text', 'boolean', 'gc._keep_alive({name}, $1)'))
    ) as f(suffix, source)
    where f.source is not null
        and (c.collect = 'garbage' or f.suffix not in ('_due', '_back_off', '_scan'))
$$;

comment on function gc._functions_sql(gc._shape) is
    'The functions of a collection that are called, but for its review.';


-- Dropping a trigger locks its table against everybody. So its function is made to do nothing and
-- gets another name, for which no table is locked, and gc.drop_unused_triggers drops both later.
-- What it returns is the row that is stored, if it comes before a row.
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
        'as $f$begin return new; end;$f$', function));
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


-- One after the other, because each looks at what was found out before.
create function gc._note_definition(c gc.collections)
    returns gc.collections
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    update gc.collections as o
    set columns = gc._check_definition(c), several = gc._has_several(c)
    where o.name = c.name
    returning o.* into c;
    update gc.collections as o
    set proof = case when c.url is not null and not c.several then gc._url_proof(c) end
    where o.name = c.name
    returning o.* into c;
    update gc.collections as o
    set shared = gc._shares_objects(c),
        url_prefix = case when c.url is not null then gc._url_prefix(c) end,
        url_printed = case when c.url is not null then gc._printed_url(c) end,
        url_flaw = case when c.url is not null then gc._url_index_flaw(c) end
    where o.name = c.name
    returning o.* into c;
    return c;
end;
$$;

comment on function gc._note_definition(gc.collections) is
    'Checks a definition, and notes what follows from it; raises if it does not fit the table.';


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
    c := gc._note_definition(c);
    s := gc._shape(c);
    perform gc._make_storage(s);
    linked := gc._make_links(s, fill) || gc._make_gone(s);
    made := gc._make_triggers(s) || array(
        select gc._object_name(c.name, '_review') where c.collect = 'garbage') || array(
        select gc._make_function(s, f.suffix, f.source) from gc._functions_sql(s) as f);
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
    perform gc._make_function(s, '_review', gc._review_sql(s, c.fingerprint))
    where c.collect = 'garbage';
end;
$$;

comment on function gc._generate(text, boolean) is
    'Makes everything that a collection needs; with fill, also links of what is there already.';


create function gc._lock_code(name text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform from gc.locks as l
    join gc.collections as c on c.name = _lock_code.name
    where l.name = 'track'
    for update of l, c skip locked;
    if not found then
        raise 'another session is making code again'
            using errcode = 'lock_not_available', hint = 'Try again in a moment.';
    end if;
end;
$$;

comment on function gc._lock_code(text) is
    'Says, until the commit, that code is made for a collection; raises if anybody else does that.';


-- From the locks on, no foreign key and no trigger can be added; whose code is there is looked at
-- then, and every time: who is trusted may change without a change of the tables. A session that
-- makes code, of whatever collection, locks more, and two of them would wait for each other: the
-- second leaves it to the next review.
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
    perform gc._lock_code(name);
    perform gc._generate(name);
    perform gc._wait_for_no_writer();
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
