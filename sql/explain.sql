-- Explain: why a row is there still, or where it has gone, in one line; and then the reasons, and
-- theirs in turn, up to a root.
--
-- Nothing is decided here. A verdict asks what a review asks, in the order in which a review does:
-- what refers to the row, its condition, holds, the queue. It is bounded in depth and width, and
-- what it has locked it gives back at the end.

create type gc._verdict as (word text, line text, label text, at timestamptz);

comment on type gc._verdict is
    'What is to be said about a row: a word for programs, a line for people, what the row is '
    'called, and when something happens to it or has happened.';


create type gc._explanation as (
    depth integer, kind text, subject text, detail text, verdict text, collection text, key text,
    at timestamptz
);

comment on type gc._explanation is 'A line of what gc.explain tells.';


create function gc._how_long(given interval)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when s.seconds >= 171000 then round(s.seconds / 86400) || ' d'
        when s.seconds >= 7170 then round(s.seconds / 3600) || ' h'
        when s.seconds >= 119.5 then round(s.seconds / 60) || ' min'
        else round(s.seconds) || ' s'
    end
    from (select extract(epoch from given)) as s(seconds)
$$;

comment on function gc._how_long(interval) is 'A time as people say it: 4 h.';


create function gc._when(at timestamptz)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when at = 'infinity' then 'further notice'
        else to_char(at at time zone 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC'
    end
$$;

comment on function gc._when(timestamptz) is 'A moment as people write it.';


create function gc._because(event text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select coalesce('because of ' || event, 'by the application') $$;

comment on function gc._because(text) is 'Why a row went; null: no review deleted it.';


create type gc._pinned_by as (holder text, reason text, until timestamptz);

comment on type gc._pinned_by is 'A pin: who holds the row, why, and until when.';


create function gc._pins_of(name text, row_key text)
    returns setof gc._pinned_by
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select p.holder, p.reason, p.until
    from gc.pins as p
    where p.collection = name and md5(p.key) = md5(row_key) and p.key = row_key
        and p.until > clock_timestamp()
$$;

comment on function gc._pins_of(text, text) is 'The pins that hold a row.';


-- What a review would say of a row that nothing refers to.
create function gc._judge_garbage(c gc.collections, key text)
    returns gc._verdict
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    e record;
begin
    select l.* into e from gc._entries(c, key, 1) as l;
    if not found then
        return ('garbage', case when c.scanning
            then 'garbage, not queued: the scan that is going on will find it'
            else 'garbage, not queued: a scan would find it' end, null, null)::gc._verdict;
    elsif c.problem is not null then
        return ('blocked', format('garbage, but nothing of "%s" is reviewed: %s', c.name,
            c.problem), null, e.review_after)::gc._verdict;
    elsif gc._is_paused(c.name, 'reviews') then
        return ('paused', format('garbage, but reviews of "%s" are paused', c.name), null,
            e.review_after)::gc._verdict;
    elsif e.review_count > 0 then
        return ('failing', format('could not be deleted, tried again %s: %s',
            gc._due_in(e.review_after), e.last_error), null, e.review_after)::gc._verdict;
    end if;
    return ('due', format('due %s because of %s', gc._due_in(e.review_after), e.event), null,
        e.review_after)::gc._verdict;
end;
$$;

comment on function gc._judge_garbage(gc.collections, text) is
    'The verdict about a row that nothing keeps.';


create function gc._due_in(at timestamptz)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when at <= clock_timestamp() then 'now'
        else 'in ' || gc._how_long(at - clock_timestamp())
    end
$$;

comment on function gc._due_in(timestamptz) is 'When something is due, seen from now.';


create function gc._judge_held(c gc.collections, row_key text)
    returns gc._verdict
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select ('held', format('held until %s (%s)', gc._when(h.held_until), h.reason), null,
            h.held_until)::gc._verdict
        from gc.holds as h
        where h.collection = c.name and h.key = row_key and h.held_until > clock_timestamp()
        order by h.held_until desc
        limit 1
    );
end;
$$;

comment on function gc._judge_held(gc.collections, text) is
    'The verdict about a row that somebody is using; null: nobody is.';


create function gc._judge_pinned(c gc.collections, row_key text)
    returns gc._verdict
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select ('pinned', concat('pinned by ' || p.holder, ': ' || p.reason,
            ' (until ' || gc._when(p.until) || ')'), null, p.until)::gc._verdict
        from gc._pins_of(c.name, row_key) as p
        order by p.until desc nulls first
        limit 1
    );
end;
$$;

comment on function gc._judge_pinned(gc.collections, text) is
    'The verdict about a row that is pinned; null: it is not.';


-- With an owner that is about to go, a row goes whatever refers to it.
create function gc._judge_owned(
    c gc.collections, f gc._fact, unreadable jsonb, level integer
)
    returns gc._verdict
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    o record;
    v gc._verdict;
begin
    if level > 5 then
        return null;
    end if;
    for o in
        select w.owner, w.owner_key from gc._owners(c.target, f.relation, f.place, unreadable) as w
        where (w.owner).name <> c.name
    loop
        v := gc._judge(o.owner, o.owner_key, unreadable, level + 1);
        if v.word in ('due', 'goes') then
            return ('goes', format('goes with %s %s: %s', (o.owner).name,
                coalesce(v.label, o.owner_key), v.line), null, v.at)::gc._verdict;
        end if;
    end loop;
    return null;
end;
$$;

comment on function gc._judge_owned(gc.collections, gc._fact, jsonb, integer) is
    'The verdict about a row that goes with its owner; null: it does not.';


create function gc._judge(
    c gc.collections, key text, unreadable jsonb, level integer default 0
)
    returns gc._verdict
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    f gc._fact;
    kept text;
    v gc._verdict;
begin
    select o.* into f from gc._facts(c, array[key]) as o;
    if not found then
        return gc._judge_gone(c.name, key, gc._url_of(c, key));
    end if;
    v := gc._judge_owned(c, f, unreadable, level);
    if v is null then
        select gc._in_words(n.found_rows) into kept from gc._counted(c, array[key], false) as n;
        v := case
            when kept is not null
                then ('kept', 'kept by ' || kept, null, null)::gc._verdict
            when f.is_met is null
                then ('failing', 'its condition cannot be computed: ' || f.error, null,
                    null)::gc._verdict
            when not f.is_met
                then ('waiting', 'waiting: its condition is not met', null, null)::gc._verdict
        end;
    end if;
    if v is null then v := gc._judge_pinned(c, f.key); end if;
    if v is null then v := gc._judge_held(c, f.key); end if;
    if v is null then v := gc._judge_garbage(c, f.key); end if;
    return (v.word, v.line, f.label, v.at)::gc._verdict;
end;
$$;

comment on function gc._judge(gc.collections, text, jsonb, integer) is
    'What is to be said about a row, in one line.';


create function gc._object_line(t gc.tombstones)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('deleted on %s %s, its object %s', gc._when(t.created_at), gc._because(t.event),
        case
            when t.worker is not null and t.due_at > clock_timestamp()
                then format('is claimed by %s until %s', t.worker, gc._when(t.due_at))
            when t.failures > 0
                then format('fails: %s; tried again %s', t.last_error, gc._due_in(t.due_at))
            when t.held_up is not null then 'waits: ' || t.held_up
            when t.due_at > clock_timestamp() then 'waits until ' || gc._when(t.due_at)
            else 'waits for a runner'
        end)
$$;

comment on function gc._object_line(gc.tombstones) is 'What is to be said about a tombstone.';


create function gc._log_line(l gc.deletion_log)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('deleted on %s %s', gc._when(l.row_deleted_at), gc._because(l.event))
        || case when l.url is null then '' else
            format(', object confirmed on %s by %s', gc._when(l.deleted_at), l.worker) end
$$;

comment on function gc._log_line(gc.deletion_log) is 'What is to be said about a deletion.';


create function gc._judge_gone(name text, row_key text, url text)
    returns gc._verdict
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce(
        (
            select ('deleting', gc._object_line(t), t.label, t.created_at)::gc._verdict
            from gc.tombstones as t
            where t.id = any (gc._tombstones_of(name, array[row_key], array[_judge_gone.url]))
                and t.key = row_key
            order by t.id desc
            limit 1
        ),
        (
            select ('deleted', gc._log_line(l), l.label, l.row_deleted_at)::gc._verdict
            from gc.deletion_log as l
            where l.collection = name and l.key = row_key
            order by l.id desc
            limit 1
        ),
        ('never seen', 'never seen', null, null)::gc._verdict);
end;
$$;

comment on function gc._judge_gone(text, text, text) is
    'What is to be said about a row that is not there: its object, or what the log has of it.';


create function gc._told_of(told gc._explanation[], name text, row_key text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select e.subject from unnest(told) as e
    where e.collection = name and (row_key is null or e.key = row_key)
        and e.kind in ('verdict', 'row', 'owner', 'root')
    limit 1
$$;

comment on function gc._told_of(gc._explanation[], text, text) is
    'What a row, or any of its collection, was called where it was told of; null: it was not.';


-- A collection that cannot be read ends the path there, and costs nothing else.
create function gc._tell_row(
    told gc._explanation[], kind text, c gc.collections, row_key text, unreadable jsonb,
    depth integer
)
    returns gc._explanation[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    v gc._verdict;
begin
    if gc._told_of(told, c.name, row_key) is not null then
        return told || (depth, 'seen', gc._told_of(told, c.name, row_key), 'see above', null,
            c.name, row_key, null)::gc._explanation;
    end if;
    if unreadable ? c.name then
        return told || (depth, 'problem', c.name || ' ' || row_key, unreadable ->> c.name, null,
            c.name, row_key, null)::gc._explanation;
    end if;
    v := gc._judge(c, row_key, unreadable);
    told := told || (depth, case when v.word in ('waiting', 'pinned', 'held') then 'root'
        else kind end, c.name || ' ' || coalesce(v.label, row_key), v.line, v.word, c.name, row_key,
        v.at)::gc._explanation;
    return case when v.word in ('kept', 'goes')
        then gc._tell_reasons(told, c, row_key, unreadable, depth + 1) else told end;
end;
$$;

comment on function
    gc._tell_row(gc._explanation[], text, gc.collections, text, jsonb, integer) is
    'Tells of a row of a collection, and why it is kept.';


-- Of several owners, one that was told of already says nothing new.
create function gc._tell_referring(
    told gc._explanation[], relation regclass, row_key text, part oid, place tid,
    unreadable jsonb, depth integer
)
    returns gc._explanation[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections;
    o record;
    number integer := cardinality(told) + 1;
begin
    select w.* into c from gc.collections as w where w.target = relation;
    if found then
        return gc._tell_row(told, 'row', c, row_key, unreadable, depth);
    end if;
    told := told || (depth, 'root', (select t.relname from pg_class as t where t.oid = relation)
        || ' ' || row_key, null, null, null, row_key, null)::gc._explanation;
    for o in
        select w.owner, w.owner_key from gc._owners(relation, part, place, unreadable) as w
    loop
        told[number].kind := 'row';
        if cardinality(told) = number
            or gc._told_of(told, (o.owner).name, o.owner_key) is null then
            told := gc._tell_row(told, 'owner', o.owner, o.owner_key, unreadable,
                depth + 1);
        end if;
    end loop;
    return told;
end;
$$;

comment on function
    gc._tell_referring(gc._explanation[], regclass, text, oid, tid, jsonb, integer) is
    'Tells of a row that refers to another, and of what it belongs to.';


create function gc._tell_owners(
    told gc._explanation[], c gc.collections, row_key text, unreadable jsonb, depth integer
)
    returns gc._explanation[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    o record;
begin
    for o in
        select w.owner, w.owner_key
        from gc._facts(c, array[_tell_owners.row_key]) as f
        cross join lateral gc._owners(c.target, f.relation, f.place, unreadable) as w
    loop
        if gc._told_of(told, (o.owner).name, o.owner_key) is null then
            told := gc._tell_row(told, 'owner', o.owner, o.owner_key, unreadable, depth);
        end if;
    end loop;
    return told;
end;
$$;

comment on function gc._tell_owners(gc._explanation[], gc.collections, text, jsonb, integer) is
    'Tells of the rows with which a row of a collection goes.';


-- Three rows of each reference, ten steps, a hundred lines: enough to see why.
create function gc._tell_reasons(
    told gc._explanation[], c gc.collections, row_key text, unreadable jsonb, depth integer
)
    returns gc._explanation[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    n record;
    o record;
begin
    if depth > 20 or cardinality(told) >= 100 then
        return told || (depth, 'more', 'there is more', 'gc.explain ends here', null, null, null,
            null)::gc._explanation;
    end if;
    for n in
        select f.reference, f.referencing, f.rows
        from gc._counted(c, array[_tell_reasons.row_key], false) as k
        cross join lateral jsonb_to_recordset(k.found_rows) as f(
            n integer, reference text, referencing regclass, rows bigint)
        order by f.n
    loop
        told := told || (depth, 'reference', n.reference, gc._in_number('row', n.rows),
            null, null, null, null)::gc._explanation;
        for o in
            select g.row_key, g.part, g.place
            from gc._referring(c, _tell_reasons.row_key, n.reference, 3) as g
        loop
            told := gc._tell_referring(told, n.referencing, o.row_key, o.part, o.place, unreadable,
                depth + 1);
        end loop;
    end loop;
    return gc._tell_owners(told, c, _tell_reasons.row_key, unreadable, depth);
end;
$$;

comment on function gc._tell_reasons(gc._explanation[], gc.collections, text, jsonb, integer) is
    'Tells what keeps a row, and what it belongs to.';


create function gc._tell_notes(name text, row_key text, url text)
    returns setof gc._explanation
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select 1, 'pin', p.holder, p.reason, null::text, name, row_key, p.until
        from gc._pins_of(name, row_key) as p;
    return query
        select 1, 'hold', h.reason, concat_ws(' ', 'until', gc._when(h.held_until), h.upload),
            null::text, h.collection, h.key, h.held_until
        from gc.holds as h
        where h.held_until > clock_timestamp()
            and (h.collection = name and h.key = row_key or h.url = _tell_notes.url)
        order by h.id
        limit 10;
    return query
        select 1, 'tombstone', t.url, gc._object_line(t), null::text, t.collection, t.key, t.due_at
        from gc.tombstones as t
        where t.id = any (gc._tombstones_of(name, array[row_key], array[_tell_notes.url]))
        order by t.id desc
        limit 10;
    return query
        select 1, 'log', l.url, gc._log_line(l), null::text, l.collection, l.key, l.deleted_at
        from gc.deletion_log as l
        where l.collection = name and l.key = row_key or l.url = _tell_notes.url
        order by l.id desc
        limit 10;
end;
$$;

comment on function gc._tell_notes(text, text, text) is
    'What blobgc has noted about a row or an object: pins, holds, tombstones, deletions.';


create function gc._tell_queue(c gc.collections, key text)
    returns setof gc._explanation
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select 1, 'queue', e.event, concat('due ' || gc._due_in(e.review_after),
            case when e.review_count > 0
                then format('; failed %s times: %s', e.review_count, e.last_error) end),
        null::text, c.name, key, e.review_after
    from gc._entries(c, key, 5) as e
    union all
    select 1, 'review', c.name, coalesce('not reviewed: ' || c.problem,
        'the next review is due ' || gc._due_in(n.due), 'nothing is queued'), null, c.name, null,
        n.due
    from gc._next_review(c.name) as n(due)
$$;

comment on function gc._tell_queue(gc.collections, text) is
    'The entries of a key, and when the collection is reviewed next.';


-- Nothing of such a collection is read, so only notes can tell more.
create function gc._tell_blocked(name text, key text)
    returns gc._explanation[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    why text;
    more text;
    advice text;
begin
    perform gc._require_readable(c) from gc.collections as c where c.name = _tell_blocked.name;
    return null;
exception
    when lock_not_available then
        raise;
    when others then
        get stacked diagnostics
            why := message_text, more := pg_exception_detail, advice := pg_exception_hint;
        return array(
            select (u.depth, u.kind, u.subject, u.detail, u.verdict, name, key, null)
                ::gc._explanation
            from (values
                (0, 'verdict', name || ' ' || key,
                    format('nothing of "%s" is reviewed: %s', name, why), 'blocked'),
                (1, 'problem', name, more, null),
                (1, 'advice', name, advice, null)
            ) as u(depth, kind, subject, detail, verdict)
            where u.detail <> ''
        ) || array(select n from gc._tell_notes(name, key, null) as n);
end;
$$;

comment on function gc._tell_blocked(text, text) is
    'Why nothing of a collection can be told, and what to do; null: it can.';


create function gc._explain(name text, key text)
    returns gc._explanation[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections;
    row_key text := key;
    unreadable jsonb;
    v gc._verdict;
    url text;
    told gc._explanation[] := gc._tell_blocked(name, key);
begin
    if told is not null then
        return told;
    end if;
    select o.* into c from gc.collections as o where o.name = _explain.name;
    if found then
        unreadable := gc._unreadable(but => c.name);
        row_key := gc._canonical_key(c, key);
        v := gc._judge(c, row_key, unreadable);
        url := coalesce((select f.url from gc._facts(c, array[row_key]) as f),
            gc._url_of(c, row_key));
    else
        v := gc._judge_gone(name, row_key, null);
        if v.word = 'never seen' then
            c := gc._collection(name);
        end if;
    end if;
    told := array[(0, 'verdict', name || ' ' || coalesce(v.label, row_key), v.line, v.word, name,
        row_key, v.at)::gc._explanation];
    if c.name is not null then
        if v.word not in ('deleted', 'deleting', 'never seen') then
            told := gc._tell_reasons(told, c, row_key, unreadable, 1);
        end if;
        told := told || array(select q from gc._tell_queue(c, row_key) as q);
    end if;
    return told || array(select n from gc._tell_notes(name, row_key, url) as n);
end;
$$;

comment on function gc._explain(text, text) is 'What gc.explain tells.';


create function gc.explain(name text, key text)
    returns table (
        depth integer, kind text, subject text, detail text, verdict text, collection text,
        row_key text, at timestamptz
    )
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set lock_timeout = '2s'
as $$
declare
    told gc._explanation[];
begin
    perform gc._limit_lock_waits();
    begin
        told := gc._explain(name, key);
        -- So that the locks are given back.
        raise 'that is all' using errcode = 'ZG999';
    exception
        when sqlstate 'ZG999' then
            null;
    end;
    return query select e.* from unnest(told) as e;
end;
$$;
revoke all on function gc.explain(text, text) from public;

comment on function gc.explain(text, text) is
    'Why a row is, or is not, collected: the verdict first, then the rows that keep it and what '
    'keeps these, up to a root; then queue entries, pins, holds, tombstones and the log. Tells of '
    'rows that are long gone as well.';


create function gc._rows_at(c gc.collections, url text)
    returns text[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    keys text[] := array[]::text[];
begin
    execute format('select array(select gc.%I($1))', gc._object_name(c.name, '_rows_at'))
    into keys using url;
    return keys;
end;
$$;

comment on function gc._rows_at(gc.collections, text) is
    'The keys of the rows of a collection that have a url.';


-- A row that has the object says more than a tombstone, and that more than the log; and of several
-- rows, one that stays. Where nothing else is known, a collection that cannot be read may have it.
create function gc._url_verdict(url text, told gc._explanation[])
    returns gc._explanation
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce((
        select (0, 'verdict', url, case
                when e.verdict is null then concat_ws(' ', e.collection, e.key) || ': ' || e.detail
                else format('the object of %s: %s', e.subject, e.detail)
            end, coalesce(e.verdict, case e.kind when 'tombstone' then 'deleting'
                when 'log' then 'deleted' when 'hold' then 'held' else 'blocked' end),
            e.collection, e.key, e.at)::gc._explanation
        from unnest(told) with ordinality as e(
            depth, kind, subject, detail, verdict, collection, key, at, n)
        where e.depth = 1 and e.kind in ('row', 'root', 'tombstone', 'log', 'hold', 'problem')
        order by array_position(array['tombstone', 'log', 'hold', 'problem'], e.kind) nulls first,
            e.verdict in ('kept', 'pinned', 'held', 'waiting') desc nulls last, e.n
        limit 1
    ), (0, 'verdict', url, 'never seen', 'never seen', null, null, null)::gc._explanation)
$$;

comment on function gc._url_verdict(text, gc._explanation[]) is
    'What is to be said about an object, in one line.';


create function gc._explain_url(url text)
    returns gc._explanation[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections;
    unreadable jsonb := gc._unreadable();
    row_key text;
    told gc._explanation[] := array[]::gc._explanation[];
begin
    for c in select o.* from gc.collections as o where o.url is not null order by o.name loop
        if not coalesce(starts_with(url, c.url_prefix), true) then
            continue;
        elsif unreadable ? c.name then
            told := told || (1, 'problem', c.name, unreadable ->> c.name, null, c.name, null,
                null)::gc._explanation;
            continue;
        end if;
        foreach row_key in array gc._rows_at(c, url) loop
            told := gc._tell_row(told, 'row', c, row_key, unreadable, 1);
        end loop;
    end loop;
    told := told || array(select n from gc._tell_notes(null, null, url) as n);
    return gc._url_verdict(url, told) || told;
end;
$$;

comment on function gc._explain_url(text) is 'What gc.explain_url tells.';


create function gc.explain_url(url text)
    returns table (
        depth integer, kind text, subject text, detail text, verdict text, collection text,
        row_key text, at timestamptz
    )
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set lock_timeout = '2s'
as $$
declare
    told gc._explanation[];
begin
    perform gc._limit_lock_waits();
    begin
        told := gc._explain_url(url);
        -- So that the locks are given back.
        raise 'that is all' using errcode = 'ZG999';
    exception
        when sqlstate 'ZG999' then
            null;
    end;
    return query select e.* from unnest(told) as e;
end;
$$;
revoke all on function gc.explain_url(text) from public;

comment on function gc.explain_url(text) is
    'What is known of an object, by its address: the rows that have it with their reasons, as '
    'gc.explain tells them, tombstones, and the log.';
