-- Checking: all that is wrong, or soon will be, with the command that mends it.
--
-- Nothing is changed. What must be locked to be read is locked in a subtransaction that is undone.
-- The severity is error (something is not collected, or may be lost, until somebody acts), warning
-- (it may become one), or remark.

create type gc._finding as (
    rank integer, severity text, subject text, problem text, command text
);

comment on type gc._finding is 'Something that is wrong; what matters more has a lower rank.';


-- Keys that went and are there again were written again, by an upload.
create function gc._came_again(c gc.collections)
    returns bigint
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select count(*) from gc._facts(c, array(
        select distinct l.key
        from (select o.* from gc.deletion_log as o order by o.id desc limit 1000) as l
        where l.collection = c.name and l.url is not null
        limit 100
    ), 0)
    where c.url is not null and c.generation is null
$$;

comment on function gc._came_again(gc.collections) is
    'Of the rows that were deleted lately, with their objects, how many are there again.';


create function gc._check_inside(c gc.collections)
    returns gc._finding
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    again bigint;
    hint text;
begin
    perform gc._require_own(c.name);
    perform gc._is_current(c.name, c.fingerprint);
    again := gc._came_again(c);
    raise 'that is all' using errcode = 'ZG999';
exception
    when sqlstate 'ZG999' then
        return case when again > 0 and not gc._strict_uploads() then
            (50, 'warning', c.name, format('%s of the last rows that were deleted are there again; '
                'if such an upload is not announced with gc.begin_upload, its object may go',
                again), 'update gc.settings set strict_uploads = true;')::gc._finding end;
    when others then
        get stacked diagnostics hint = pg_exception_hint;
        return (20, 'error', c.name, sqlerrm, nullif(hint, ''))::gc._finding;
end;
$$;

comment on function gc._check_inside(gc.collections) is
    'Whether a collection can be reviewed, and whether rows come again that went; null: all is '
    'well.';


create function gc._check_suspects(c gc.collections)
    returns setof gc._finding
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select 10, 'error', c.name, format('%s(%s) looks like a reference and keeps nothing: rows that '
            'only it refers to are collected', s.relation, q.keys),
        concat_ws(E'\n', gc._suspect_index(s), q.command)
    from gc._suspects(c, 8, clock_timestamp() + interval '1 second') as s
    cross join lateral gc._suspect_sql(c, s) as q
    where gc._strength(s) = 'strong' and c.condition is distinct from 'false'
    order by s.relation::text, q.keys
$$;

comment on function gc._check_suspects(gc.collections) is
    'Columns that very likely refer to a collection and are no references.';


create function gc._check_references(c gc.collections)
    returns setof gc._finding
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select 75, 'warning', c.name, format('%s is deferred: a transaction that refers to a row while '
            'that is being collected fails at its commit', k.conrelid::regclass),
        format('alter table %s alter constraint %I not deferrable;', k.conrelid::regclass,
            k.conname)
    from gc._keepers(c) as f
    join pg_constraint as k on k.oid = f.key
    where not f.is_part and k.condeferred
    order by k.conname
$$;

comment on function gc._check_references(gc.collections) is
    'References that work, and could work better.';


create function gc._check_pauses(c gc.collections)
    returns setof gc._finding
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select b.rank, b.severity, coalesce(p.collection, 'all collections'),
        format('%s are paused by %s until %s%s', p.what, p.paused_by, gc._when(p.until),
            ': ' || p.reason),
        format('select gc.resume(%s);', coalesce(quote_literal(p.collection), ''))
    from gc.pauses as p
    cross join lateral (
        select 25, 'error' where p.paused_by = 'the brake'
        union all
        select 90, 'remark' where p.paused_by <> 'the brake'
    ) as b(rank, severity)
    where p.until > clock_timestamp() and (p.collection = c.name
        or p.collection is null and c.name = (select min(o.name) from gc.collections as o))
$$;

comment on function gc._check_pauses(gc.collections) is
    'What is paused, or was stopped by the brake; that of all collections with the first of them.';


create function gc._check_rows(c gc.collections)
    returns setof gc._finding
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select 31, 'error', c.name, format('%s rows cannot be deleted: %s', q.failing, q.last_error),
        format('select * from gc.%I where review_count > 0;',
            gc._object_name(c.name, '_review_queue'))
    from gc._queue_status(c.name) as q
    where q.failing > 0
    union all
    select 32, 'error', c.name, 'a scan failed: ' || c.scan_error,
        format('select gc.scan(%L);', c.name)
    where c.scan_error is not null
    union all
    select 33, 'error', c.name, format('%s rows that went cannot be worked out: %s', count(*),
            min(u.last_error)),
        format('select * from gc.unread_rows where collection = %L;', c.name)
    from gc.unread_rows as u
    where u.collection = c.name
    having count(*) > 0
$$;

comment on function gc._check_rows(gc.collections) is 'What fails in reviews of a collection.';


create function gc._check_objects(c gc.collections)
    returns setof gc._finding
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select f.*
    from gc._tombstone_status(c.name) as t
    cross join lateral (
        select 30, 'error', c.name, format('%s objects cannot be deleted: %s', t.failing,
                t.last_error),
            format('select * from gc.tombstones where collection = %L and failures > 0;', c.name)
        where t.failing > 0
        union all
        select 60, 'warning', c.name, format('%s objects are held up: %s', t.held_up,
                t.held_up_by),
            'select pid, usename, application_name, xact_start, query from pg_stat_activity '
                'where xact_start is not null order by xact_start limit 5;'
        where t.held_up > 0 and t.overdue_since < clock_timestamp() - interval '15 minutes'
        union all
        select 70, 'warning', c.name, 'nothing finds its rows by their url, so each deletion reads '
            'them all', a.command
        from gc._advice(c) as a(command)
        where a.command is not null
    ) as f(rank, severity, subject, problem, command)
$$;

comment on function gc._check_objects(gc.collections) is
    'What fails, waits or is slow with the objects of a collection.';


create function gc._check_reviewers()
    returns setof gc._finding
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select 40, 'error', c.name, format('reviews are due since %s, and nobody has reviewed for a '
            'quarter of an hour', gc._when(q.overdue_since)),
        format('blobgc run --store %s', coalesce(c.url_prefix, '…'))
    from gc.collections as c
    cross join lateral gc._queue_status(c.name) as q
    where q.overdue_since < clock_timestamp() - interval '15 minutes'
        and c.problem is null and not gc._is_paused(c.name, 'reviews')
        and not exists (
            select from gc.runners as r
            where r.last_review > clock_timestamp() - interval '15 minutes'
        )
    order by c.name
$$;

comment on function gc._check_reviewers() is 'Collections that nobody reviews.';


create function gc._check_stores()
    returns setof gc._finding
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select 41, 'error', t.store, format('%s objects are due, the first since %s, and no runner '
            'asks for them', count(*), gc._when(min(t.due_at))),
        format('blobgc run --store %s/', t.store)
    from gc.tombstones as t
    where t.due_at < clock_timestamp() - interval '15 minutes' and t.finalizers is null
        and not gc._is_paused(t.collection, 'deletes')
        and not exists (
            select from gc.runners as r
            where r.last_claim > clock_timestamp() - interval '15 minutes'
                and (r.prefixes is null or exists (
                    select from unnest(r.prefixes) as p
                    where starts_with(p, t.store || '/') or p = t.store
                ))
        )
    group by t.store
    order by t.store
$$;

comment on function gc._check_stores() is 'Stores whose objects no runner deletes.';


create function gc._check_markers()
    returns setof gc._finding
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select 15, 'error', m.prefix, coalesce(gc._why_elsewhere(m.prefix), m.problem),
        format('if this database is the one that may delete objects there: select gc.adopt(%L);',
            m.prefix)
    from gc.markers as m
    where coalesce(gc._why_elsewhere(m.prefix), m.problem) is not null
        and gc._marker_of(m.prefix) = m.prefix
    union all
    select 59, 'warning', 'durable_on', w, 'select application_name, state, flush_lsn from '
        'pg_stat_replication; select slot_name, active, restart_lsn from pg_replication_slots;'
    from gc._why_not_durable() as w
    where exists (
        select from gc.durable_points as p
        where p.noted_at < clock_timestamp() - interval '15 minutes'
    )
$$;

comment on function gc._check_markers() is
    'Buckets that belong to another database, or to none; standbys that hold deletions up.';


create function gc._check_finalizers()
    returns setof gc._finding
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select 42, 'error', f.collection, format('%s objects wait for the finalizer "%s", the first '
            'since %s, and no worker asks for them', f.waiting, f.finalizer,
            gc._when(f.overdue_since)),
        format('select * from gc.claim(…, finalizer => %L);', f.finalizer)
    from gc.finalizers as f
    where f.overdue_since < clock_timestamp() - interval '15 minutes'
        and not gc._is_paused(f.collection, 'deletes')
    order by f.collection, f.finalizer
$$;

comment on function gc._check_finalizers() is 'Finalizers that nobody finishes.';


create function gc._check_sessions()
    returns setof gc._finding
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select 61, 'warning', format('session %s of %s in %s', a.pid, a.usename, a.datname),
        format('its transaction is open since %s; claims may wait for it, and VACUUM does',
            gc._when(a.xact_start)),
        format('select pg_terminate_backend(%s);', a.pid)
    from pg_stat_activity as a
    where a.backend_type = 'client backend' and a.pid <> pg_backend_pid()
        and a.xact_start < clock_timestamp() - interval '1 hour'
    union all
    select 62, 'warning', format('prepared transaction %L of %s in %s', x.gid, x.owner, x.database),
        format('it is open since %s; claims may wait for it, and VACUUM does',
            gc._when(x.prepared)),
        format('rollback prepared %1$L; or: commit prepared %1$L;', x.gid)
    from pg_prepared_xacts as x
    where x.prepared < clock_timestamp() - interval '1 hour'
$$;

comment on function gc._check_sessions() is 'Transactions that have been open for an hour.';


create function gc._check_versions()
    returns setof gc._finding
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select 80, 'warning', 'runner ' || coalesce(r.worker, r.application),
        format('its version is %s, and the database has blobgc %s', r.version, gc.version()),
        format('pip install blobgc==%s, on %s', gc.version(), r.host)
    from gc.runners as r
    where r.version <> gc.version() and r.last_call > clock_timestamp() - interval '1 day'
    union all
    select 81, 'remark', 'blobgc', format('the server has the files of blobgc %s, and the database '
            'has %s', a.default_version, gc.version()), 'alter extension blobgc update;'
    from pg_available_extensions as a
    where a.name = 'blobgc' and a.installed_version is not null
        and a.default_version <> a.installed_version
    union all
    select 95, 'remark', 'blobgc', 'no table is tracked',
        'select * from gc.track(''schema.table'');'
    where not exists (select from gc.collections)
$$;

comment on function gc._check_versions() is 'Versions that differ, and what is not there yet.';


create function gc._findings(c gc.collections)
    returns setof gc._finding
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from pg_class as t where t.oid = c.target) then
        return query
            select f.* from gc._check_suspects(c) as f
            union all
            select f.* from gc._check_references(c) as f;
    end if;
    return query
        select f.* from gc._check_inside(c) as f where f.rank is not null
        union all
        select f.* from gc._check_pauses(c) as f
        union all
        select f.* from gc._check_rows(c) as f
        union all
        select f.* from gc._check_objects(c) as f;
end;
$$;

comment on function gc._findings(gc.collections) is 'What is wrong with a collection.';


create function gc.check()
    returns table (severity text, subject text, problem text, command text)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '2s'
as $$
begin
    perform gc._require_owner();
    perform gc._require_read_committed('check');
    perform gc._limit_lock_waits();
    return query
        select f.severity, f.subject, f.problem, f.command
        from (
            select o.* from gc.collections as c cross join lateral gc._findings(c) as o
            union all
            select o.* from gc._check_reviewers() as o
            union all
            select o.* from gc._check_stores() as o
            union all
            select o.* from gc._check_markers() as o
            union all
            select o.* from gc._check_finalizers() as o
            union all
            select o.* from gc._check_sessions() as o
            union all
            select o.* from gc._check_versions() as o
        ) as f
        order by array_position(array['error', 'warning', 'remark'], f.severity), f.rank, f.subject,
            f.problem;
end;
$$;
revoke all on function gc.check() from public;

comment on function gc.check() is
    'What is wrong, the most important first, each with the command that mends it: suspects, '
    'blocked collections, buckets of another database, the brake, failures, work that no runner '
    'does, standbys that are behind, uploads that seem not to be announced, old transactions, '
    'missing indexes, versions, pauses. Changes nothing.';
