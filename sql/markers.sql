-- Markers: a bucket knows its database.
--
-- Under each prefix stands a small object, .blobgc, with an identity, an epoch and a token; the
-- database has the same. Before each batch a runner moves the epoch on, by a write that the store
-- carries out only if nobody has written since; or looks, if it was moved a moment ago. Invariant:
-- objects are handed out only after the marker was found to be the one that this database wrote
-- last. A copy of the database falls behind with the first move that it does not make, and stops.
--
-- A move is prepared here (next_token, committed), then written, then noted (token). Whoever is
-- killed leaves one of two markers, the old one or the one that was prepared; both are ours, and
-- nothing else is.
--
-- A copy that cannot be told from a server that was started again (a snapshot of its disk) watches
-- first: the original moves its marker even when there is nothing to delete. Invariant: what was
-- handed out is under a lease that ends before a watch does that began after the last move. A lease
-- that is longer than any before needs another move first, which every earlier copy sees.
--
-- The runner only reads and writes what gc.compare_marker says.

create table gc.markers (
    prefix text not null
        constraint markers_pkey primary key
        constraint markers_prefix_is_a_folder check (prefix ~ '^[a-z0-9]+://.*/$'),
    identity uuid not null default gen_random_uuid(),
    epoch bigint not null default 0,
    token uuid,
    tag text,
    moved_at timestamptz,
    next_token uuid,
    next_by text,
    next_since timestamptz,
    lost_tokens uuid[] not null default '{}',
    checked_at timestamptz,
    adopting boolean not null default false,
    place jsonb not null,
    server_start timestamptz not null default pg_postmaster_start_time(),
    lease interval not null default '5 minutes',
    above text,
    accepted_above text,
    watched text,
    watched_since timestamptz,
    problem text,
    problem_since timestamptz
);

comment on table gc.markers is
    'What stands in the marker under each prefix where a runner deletes objects.';
comment on column gc.markers.prefix is 'The prefix; the marker is the object .blobgc there.';
comment on column gc.markers.identity is
    'Whose marker it is: another one after each gc.adopt, so that others see that it was taken.';
comment on column gc.markers.epoch is 'How often it was moved on.';
comment on column gc.markers.token is
    'What the last move wrote that is known to be done, different for each; null: none yet.';
comment on column gc.markers.tag is
    'What the store calls this version of the marker: an ETag, a generation; null: not known.';
comment on column gc.markers.moved_at is 'When that move was prepared: it was done after that.';
comment on column gc.markers.next_token is 'What the move that is under way writes.';
comment on column gc.markers.next_by is 'The worker that makes it.';
comment on column gc.markers.next_since is 'When it was prepared.';
comment on column gc.markers.lost_tokens is
    'Moves of which nobody knows whether they were done, and which the store may still carry out.';
comment on column gc.markers.checked_at is
    'When the marker was last found as it should be; objects are handed out for a minute after.';
comment on column gc.markers.adopting is
    'gc.adopt was called: the next comparison replaces whatever stands there.';
comment on column gc.markers.place is 'Where the database was when it last moved the marker.';
comment on column gc.markers.server_start is 'When its server had been started.';
comment on column gc.markers.lease is
    'The longest lease that a worker had here, and 5 minutes at least: a copy watches for longer.';
comment on column gc.markers.above is
    'Which markers of other databases stand in folders above; null: none that a runner has seen.';
comment on column gc.markers.accepted_above is 'What stood there when gc.adopt was called.';
comment on column gc.markers.watched is
    'The marker that is being watched, because the server was started again or has changed.';
comment on column gc.markers.watched_since is 'Since when it has stayed the same.';
comment on column gc.markers.problem is
    'Why nothing is handed out under this prefix; null: nothing is in the way.';
comment on column gc.markers.problem_since is 'Since when.';


-- That of the next record: that of the last checkpoint may lag behind after a promotion. Some
-- managed servers do not tell it.
create function gc._timeline()
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
exception
    when feature_not_supported or insufficient_privilege or internal_error then
        return null;
end;
$$;

comment on function gc._timeline() is 'The timeline of this server; null: it does not tell.';


-- What the server does not tell, or the owner of blobgc may not see, is one thing less to compare.
create function gc._place()
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'system identifier', case
            when has_function_privilege('pg_catalog.pg_control_system()', 'execute')
                then (select s.system_identifier::text from pg_control_system() as s)
        end,
        'database oid', (
            select d.oid::text from pg_database as d where d.datname = current_database()
        ),
        'timeline', gc._timeline(),
        'port', current_setting('port'),
        'data directory', case
            when pg_has_role('pg_read_all_settings', 'usage') then current_setting('data_directory')
        end))
$$;

comment on function gc._place() is
    'Where this database is: what no copy of it has in common, as far as it can be seen.';


-- What failover = 'trusted' accepts is a standby of the same cluster.
create function gc._changes(was jsonb, trusted boolean)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format('its %s was %s and is %s', w.key, w.value, i.value), ', '
        order by w.key desc)
    from jsonb_each_text(was) as w
    join jsonb_each_text(gc._place()) as i on i.key = w.key and i.value <> w.value
    where not trusted or w.key in ('system identifier', 'database oid')
$$;

comment on function gc._changes(jsonb, boolean) is
    'How this place differs from another; trusted: apart from what a failover changes.';


create function gc._trusts_failover()
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select s.failover = 'trusted' from gc.settings as s $$;

comment on function gc._trusts_failover() is 'Whether a promoted standby may go on by itself.';


-- A standby hands out nothing anyway, and it has no timeline to tell. A prefix that nobody has used
-- yet is in the same place as all the others.
create function gc._why_elsewhere(prefix text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('the database is not where it was, so it may be a copy: %s',
        (array_agg(c.changes))[1])
    from gc.markers as m
    cross join lateral (
        select gc._changes(m.place, gc._trusts_failover())
        where m.token is not null and not pg_is_in_recovery()
    ) as c(changes)
    where c.changes is not null
        and (m.prefix = _why_elsewhere.prefix or not exists (
            select from gc.markers as o
            where o.prefix = _why_elsewhere.prefix and (o.token is not null or o.adopting)
        ))
    having count(*) > 0
$$;

comment on function gc._why_elsewhere(text) is
    'Why nothing is handed out under a prefix, because the database is elsewhere; null: it is not, '
    'or this prefix was adopted since.';


create function gc._marker_of(prefix text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce((
        select m.prefix from gc.markers as m
        where _marker_of.prefix ^@ m.prefix and (m.token is not null or m.adopting)
        order by length(m.prefix)
        limit 1
    ), _marker_of.prefix)
$$;

comment on function gc._marker_of(text) is
    'The prefix whose marker stands for this one: the widest that has one, or itself.';


-- Whatever a server has noted that was another one, or was another time, a copy has noted as well.
create function gc._is_same_server(m gc.markers)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select m.server_start = pg_postmaster_start_time() and gc._changes(m.place, false) is null
$$;

comment on function gc._is_same_server(gc.markers) is
    'Whether the marker was last moved from this server, since it was started.';


-- A clock that was set back leaves times that are still to come: what was known then is of no use.
create function gc._is_recent(moment timestamptz, span interval)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(moment between clock_timestamp() - span and clock_timestamp(), false)
$$;

comment on function gc._is_recent(timestamptz, interval) is
    'Whether it was within so long; not what lies ahead, or never was.';


create function gc._is_compared(m gc.markers)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(m.problem is null and gc._is_same_server(m), false)
        and gc._is_recent(m.checked_at, '1 minute')
$$;

comment on function gc._is_compared(gc.markers) is
    'Whether this server has found the marker as it should be, a moment ago.';


create function gc._is_cleared(prefix text)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._why_elsewhere(coalesce(gc._marker_of(prefix), '')) is null and not exists (
        select from gc.markers as m
        where (_is_cleared.prefix is null or m.prefix ^@ _is_cleared.prefix
                or m.prefix = gc._marker_of(_is_cleared.prefix))
            and gc._marker_of(m.prefix) = m.prefix and not gc._is_compared(m)
    )
$$;

comment on function gc._is_cleared(text) is
    'Whether objects under a prefix may be handed out; null: under any. All markers there were '
    'compared a moment ago.';


-- Finalizers touch no object, but a copy has no business with them either. Only a quarantine moves
-- objects.
create function gc._cleared(prefixes text[], finalizer text)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from gc.markers) then
        return true;
    elsif finalizer not in ('storage', 'blobgc.quarantine') then
        return not exists (
            select from gc.markers as m where gc._why_elsewhere(m.prefix) is not null
        );
    end if;
    return (
        select coalesce(bool_and(gc._is_cleared(p)), gc._is_cleared(null))
        from unnest(prefixes) as p
    );
end;
$$;

comment on function gc._cleared(text[], text) is
    'Whether a claim may hand out anything under these prefixes.';


-- A copy that was made before may watch for less than this lease: the next comparison has to move
-- the marker, whatever is under way, so that such a copy falls behind.
create function gc._note_lease(lease interval)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    update gc.markers as m
    set lease = _note_lease.lease, checked_at = null, next_since = '-infinity'
    where m.lease < _note_lease.lease
$$;

comment on function gc._note_lease(interval) is
    'Before a claim: notes a lease that is longer than any before, under all prefixes.';


-- The empty prefix stands for every place that nobody has adopted.
create function gc._stopped()
    returns table (prefix text, why text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select m.prefix, format('%s: %s', m.prefix, p.problem)
    from gc.markers as m
    cross join lateral (
        select coalesce(gc._why_elsewhere(m.prefix), m.problem)
        where gc._marker_of(m.prefix) = m.prefix
    ) as p(problem)
    where p.problem is not null
    union all
    select '', e from gc._why_elsewhere('') as e
    where e is not null
    order by 1 desc
$$;

comment on function gc._stopped() is
    'Prefixes under which nothing is handed out because of the marker, and why; the longest first.';


-- What the runner is to do next.
create type gc._instruction as (
    action text, content text, tag text, reason text, seconds double precision
);

comment on type gc._instruction is
    'An answer of gc.compare_marker: read, write, wait, stop, go, or idle.';


create function gc._instruction(
    action text, reason text default null, seconds double precision default null
)
    returns gc._instruction
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select row(action, null, null, reason, seconds)::gc._instruction $$;

comment on function gc._instruction(text, text, double precision) is
    'An instruction that has nothing to be written.';


-- Half of what a runner sleeps at most: so the marker moves also while it claims nothing.
create function gc._go(action text)
    returns gc._instruction
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._instruction(action, null, extract(epoch from s.max_sleep / 2)::double precision)
    from gc.settings as s
$$;

comment on function gc._go(text) is
    'The instruction to go on, and to ask again in so many seconds even if nothing is claimed.';


-- A move that was under way may still arrive where writes have no conditions.
create function gc._prepare_move(m gc.markers, worker text, tag text)
    returns gc._instruction
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    fresh uuid := gen_random_uuid();
begin
    update gc.markers as o
    set next_token = fresh, next_by = worker, next_since = clock_timestamp(),
        lost_tokens = case when o.next_token is null then o.lost_tokens
            else (o.next_token || o.lost_tokens)[1:10] end
    where o.prefix = m.prefix;
    return row('write', jsonb_build_object(
        'what', 'the marker of blobgc: it says which database deletes objects here',
        'identity', m.identity, 'epoch', m.epoch + 1, 'token', fresh,
        'database', current_database(), 'prefix', m.prefix,
        'written_at', to_char(clock_timestamp(), 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))::text,
        tag, null, null)::gc._instruction;
end;
$$;

comment on function gc._prepare_move(gc.markers, text, text) is
    'Notes what the next move writes, and says so; tag: the version that it must replace, null: '
    'none must be there.';


create function gc._stop(m gc.markers, problem text)
    returns gc._instruction
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    update gc.markers as o
    set problem_since = case when o.problem = _stop.problem then o.problem_since
            else clock_timestamp() end,
        problem = _stop.problem, checked_at = null, next_by = null
    where o.prefix = m.prefix;
    return gc._instruction('stop', problem, 10);
end;
$$;

comment on function gc._stop(gc.markers, text) is 'Notes why nothing is handed out, and says so.';


-- A field that cannot be read is null: then it is not ours.
create function gc._read_marker(
    content text, out identity uuid, out epoch bigint, out token uuid, out database text
)
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    fields jsonb;
begin
    fields := left(content, 4000)::jsonb;
    identity := (fields ->> 'identity')::uuid;
    epoch := (fields ->> 'epoch')::bigint;
    token := (fields ->> 'token')::uuid;
    database := left(regexp_replace(fields ->> 'database', '[^[:print:]]', '?', 'g'), 63);
exception
    when data_exception or program_limit_exceeded then
        null;
end;
$$;

comment on function gc._read_marker(text) is 'What stands in a marker.';


create function gc._note_above(m gc.markers, contents text)
    returns gc.markers
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    update gc.markers as o
    set above = (
        select string_agg(format('%s of "%s", identity %s', c.key, s.database, s.identity), ', '
            order by c.key)
        from jsonb_each_text(contents::jsonb) as c
        cross join lateral gc._read_marker(c.value) as s
        where s.token is not null
            and not exists (select from gc.markers as k where k.identity = s.identity)
    )
    where o.prefix = m.prefix
    returning o.* into m;
    return m;
end;
$$;

comment on function gc._note_above(gc.markers, text) is
    'Notes which markers of other databases stand in folders above. contents: what stands in '
    'markers there, as JSON, by their address; null: there are none.';


create function gc._why_not_ours(m gc.markers, content text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when m.adopting then null
        when m.above <> coalesce(m.accepted_above, '') then format(
            'a wider prefix has the marker of another database: %s', m.above)
        when m.token is null and exists (
            select from gc.markers as o
            where o.prefix ^@ m.prefix and o.prefix <> m.prefix and o.token is not null
                and not gc._is_compared(o)
        ) then 'under a part of this prefix stands a marker that was not compared for a while'
        when content is null and m.token is not null
            then 'the marker is missing: is it another bucket, or one that is not mounted?'
        when content is null or s.token = m.token or s.token = m.next_token
            or s.token = any (m.lost_tokens) then null
        when s.token is null then 'what stands there is no marker'
        when s.identity <> m.identity or m.token is null then format(
            'the marker belongs to another database: "%s", identity %s', s.database, s.identity)
        when s.epoch > m.epoch and gc._trusts_failover() and m.place <> gc._place() then null
        when s.epoch > m.epoch then format('the marker has epoch %s and this database %s: this is '
            'a copy of the database that moved it, or was restored from a backup', s.epoch, m.epoch)
        else format('the marker has epoch %s and this database %s: the bucket, or a copy of it, is '
            'older than the database', s.epoch, m.epoch)
    end
    from gc._read_marker(content) as s
$$;

comment on function gc._why_not_ours(gc.markers, text) is
    'Why what stands there is no marker of this database; null: it is one, or none is needed.';


-- Objects are handed out for a minute after a comparison, which may be a look 30 seconds after a
-- move; then they are leased. A runner that is alive moves its marker within its longest sleep.
create function gc._watching_time(m gc.markers)
    returns interval
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select m.lease + greatest(3 * s.max_sleep, interval '2 minutes') from gc.settings as s $$;

comment on function gc._watching_time(gc.markers) is
    'In this time another database either moves the marker, or has no lease any more.';


-- What was read counts from when it was asked for.
create function gc._watch(m gc.markers, content text)
    returns gc._instruction
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    since timestamptz := least(clock_timestamp(),
        case when m.watched = content then m.watched_since end);
    until timestamptz := since + gc._watching_time(m);
begin
    if m.token is null or m.adopting or gc._is_same_server(m) or m.next_since >= until then
        return null;
    end if;
    update gc.markers as o
    set watched = content, watched_since = since
    where o.prefix = m.prefix;
    return gc._stop(m, format('the server was started again, or has changed: until %s it is '
        'watched whether another database moves the marker', gc._when(until)));
end;
$$;

comment on function gc._watch(gc.markers, text) is
    'After another start, or a failover: whether to wait, and see if somebody else moves it; null: '
    'no.';


-- What was prepared and was found there is done.
create function gc._note_done(m gc.markers, seen_epoch bigint, done uuid, its_tag text)
    returns gc.markers
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    update gc.markers as o
    set token = coalesce(done, o.token), epoch = greatest(o.epoch, seen_epoch), tag = its_tag,
        next_token = case when o.next_token = done then null else o.next_token end,
        next_by = null, next_since = null,
        problem = null, problem_since = null, watched = null, watched_since = null
    where o.prefix = m.prefix
    returning o.* into m;
    return m;
end;
$$;

comment on function gc._note_done(gc.markers, bigint, uuid, text) is
    'Notes that a marker of ours stands there.';


-- A store may take no more than one write a second for an object, as Google's does. Without
-- conditions a move is two requests. Where nothing counts any more, a look is not enough.
create function gc._was_moved(m gc.markers, conditional boolean)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select m.checked_at is not null and gc._is_recent(m.moved_at,
        case when conditional then interval '2 seconds' else '30 seconds' end)
$$;

comment on function gc._was_moved(gc.markers, boolean) is
    'Whether a marker was moved a moment ago, so that a look at it is enough.';


-- What was found counts from when it was asked for: a runner that stalled in between knows nothing
-- of what another database has written since.
create function gc._go_if_fresh(m gc.markers, asked_at timestamptz)
    returns gc._instruction
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    update gc.markers as o set checked_at = asked_at where o.prefix = m.prefix;
    return case when gc._is_recent(asked_at, '30 seconds')
        then gc._go('go') else gc._instruction('read') end;
end;
$$;

comment on function gc._go_if_fresh(gc.markers, timestamptz) is
    'Notes when the marker was compared, and lets the runner go on if that was a moment ago.';


create function gc._after_read(
    m gc.markers, worker text, content text, tag text, conditional boolean
)
    returns gc._instruction
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    seen record := gc._read_marker(content);
    problem text := gc._why_not_ours(m, content);
    asked_at timestamptz := m.next_since;
    waiting gc._instruction;
begin
    if problem is not null then
        return gc._stop(m, problem);
    end if;
    waiting := gc._watch(m, content);
    if waiting.action is not null then
        return waiting;
    end if;
    if content is not null and (m.adopting or gc._changes(m.place, false) is not null) then
        perform gc._note_operation('take over', null, m.prefix, null, format('the marker of "%s", '
            'identity %s, epoch %s', seen.database, seen.identity, seen.epoch));
    end if;
    m := gc._note_done(m, seen.epoch, case when not m.adopting then seen.token end, tag);
    if m.token is not null and not m.adopting and gc._was_moved(m, conditional) then
        return gc._go_if_fresh(m, asked_at);
    end if;
    return gc._prepare_move(m, worker, tag);
end;
$$;

comment on function gc._after_read(gc.markers, text, text, text, boolean) is
    'What to do after the marker was read; content is null: there is none.';


-- Where a write has a condition, none that was prepared earlier can be carried out any more.
create function gc._after_write(m gc.markers, content text, tag text, conditional boolean)
    returns gc._instruction
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    written record := gc._read_marker(content);
    asked_at timestamptz := m.next_since;
begin
    m := gc._note_done(m, written.epoch, written.token, tag);
    update gc.markers as o
    set moved_at = asked_at, adopting = false,
        place = gc._place(), server_start = pg_postmaster_start_time(),
        lost_tokens = case when conditional then '{}' else o.lost_tokens end
    where o.prefix = m.prefix;
    return gc._go_if_fresh(m, asked_at);
end;
$$;

comment on function gc._after_write(gc.markers, text, text, boolean) is
    'What to do after the marker was written.';


-- Somebody else's move counts for a few seconds, so that runners do not stand in line. One who has
-- not come back may be dead.
create function gc._begin_comparing(
    m gc.markers, worker text, prefix text, conditional boolean, starts boolean
)
    returns gc._instruction
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    now_at timestamptz := clock_timestamp();
    is_well boolean := m.problem is null and m.token is not null and not m.adopting
        and gc._is_same_server(m) and coalesce(m.above = m.accepted_above, m.above is null);
begin
    if is_well and not starts
        and gc._is_recent(m.checked_at, (select s.max_sleep / 2 from gc.settings as s))
        and coalesce(gc._next_claim(array[prefix], 'storage') > now_at, true)
    then
        return gc._go('idle');
    elsif m.next_by <> worker and gc._is_recent(m.next_since, '10 seconds') then
        return case when is_well and gc._is_recent(m.checked_at, '5 seconds')
            then gc._go('go') else gc._instruction('wait', null, 0.1) end;
    elsif is_well and conditional and m.tag is not null and m.next_token is null
        and (starts or not gc._was_moved(m, conditional))
    then
        return gc._prepare_move(m, worker, m.tag);
    end if;
    update gc.markers as o set next_by = worker, next_since = now_at where o.prefix = m.prefix;
    return gc._instruction('read');
end;
$$;

comment on function gc._begin_comparing(gc.markers, text, text, boolean, boolean) is
    'What to do first, before a batch; starts: a runner that does not stay moves it at least once.';


create function gc._lock_marker(prefix text)
    returns gc.markers
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    m gc.markers;
begin
    if prefix is null or prefix !~ '^[a-z0-9]+://.*/$' then
        raise '"%" is not a prefix', prefix
            using errcode = 'invalid_parameter_value',
                detail = 'A prefix is a folder, such as s3://bucket/images/.',
                hint = 'Write it as runners have it after --store, with a slash at its end.';
    end if;
    loop
        select o.* into m from gc.markers as o
        where o.prefix = gc._marker_of(_lock_marker.prefix)
        for update;
        exit when found;
        insert into gc.markers (prefix, place) values (_lock_marker.prefix, gc._place())
        on conflict do nothing;
    end loop;
    return m;
end;
$$;

comment on function gc._lock_marker(text) is
    'What is known of the marker that stands for a prefix, locked.';


-- What a runner has written counts while nobody has prepared another move, also out of turn; what
-- it has read is of the past then.
create function gc.compare_marker(
    worker text, prefix text, did text default null, content text default null,
    tag text default null, conditional boolean default true
)
    returns table (
        action text, address text, body text, replaces text, reason text, seconds double precision
    )
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '2s'
as $$
declare
    m gc.markers;
    next gc._instruction;
begin
    perform gc._require_read_committed('compare_marker');
    perform gc._require_worker(worker);
    perform gc._commit_durably();
    perform gc._limit_lock_waits();
    m := gc._lock_marker(compare_marker.prefix);
    if did = 'start' then
        m := gc._note_above(m, content);
    end if;
    next := case
        when gc._why_elsewhere(m.prefix) is not null
            then gc._stop(m, gc._why_elsewhere(m.prefix))
        when did = 'wrote' and m.next_token = (gc._read_marker(content)).token
            then gc._after_write(m, content, tag, conditional)
        when did is null or did = 'start' or m.next_by is distinct from worker
            then gc._begin_comparing(m, worker, compare_marker.prefix, conditional,
                coalesce(did = 'start', false))
        when did = 'read' then gc._after_read(m, worker, content, tag, conditional)
        else gc._instruction('read')
    end;
    return query
        select next.action, m.prefix || '.blobgc', next.content, next.tag, next.reason,
            next.seconds;
end;
$$;
revoke all on function gc.compare_marker(text, text, text, text, text, boolean) from public;

comment on function gc.compare_marker(text, text, text, text, text, boolean) is
    'What a runner asks before each batch under a prefix, and after each thing that it was told to '
    'do with the marker. did: start, when the runner was started (content: what stands in markers '
    'of folders above, as JSON, by their address); read (content is null: there was '
    'none), wrote (content, which has this tag now), or refused (it has another tag); null: '
    'nothing yet. conditional: whether the '
    'store writes only over the version that was named. The action: read; write the body (over '
    'the version that it replaces; null: only if there is none); wait so many seconds; stop; go '
    '(claim); idle (nothing is due). After go and idle: ask again in so many seconds, also if '
    'nothing is claimed.';


-- Moves that were under way are forgotten: the database that this is a copy of may have made them.
create function gc.adopt(prefix text, reason text default null)
    returns void
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    folder text := rtrim(prefix, '/') || '/';
    m gc.markers;
    why text;
begin
    m := gc._lock_marker(folder);
    why := concat_ws('; ', reason, coalesce(gc._why_elsewhere(m.prefix), m.problem));
    if m.prefix <> folder then
        raise '"%" has no marker of its own', folder
            using errcode = 'object_not_in_prerequisite_state',
                detail = format('The marker of "%s" stands for it.', m.prefix),
                hint = format('select gc.adopt(%L);', m.prefix);
    end if;
    delete from gc.markers as o where o.prefix ^@ folder and o.prefix <> folder;
    update gc.markers as o
    set adopting = true, identity = gen_random_uuid(), place = gc._place(),
        server_start = pg_postmaster_start_time(), lease = default, checked_at = null,
        accepted_above = o.above, next_by = null, next_token = null, lost_tokens = '{}',
        problem = null, problem_since = null, watched = null, watched_since = null
    where o.prefix = folder;
    perform gc._note_operation('adopt', null, folder, null, nullif(why, ''));
    raise warning 'this database deletes objects under "%" from now on', folder
        using detail = 'Every other database that did stops. What it has rows for and this one has '
            'not, is not known here.';
    perform gc._wake_runners();
end;
$$;
revoke all on function gc.adopt(text, text) from public;

comment on function gc.adopt(text, text) is
    'Says that the bucket, under this prefix, belongs to this database, whatever its marker says: '
    'after a move, a failover or a restore. The next runner replaces the marker, and any other '
    'database that used it stops.';
