-- The brake: a mistake should not empty a collection before anybody looks.
--
-- Reviews of a collection are paused when those of one hour would delete more than a share of its
-- rows, and more than a number of them. What the application deletes itself is gone already; its
-- objects are counted when they are first handed out, and then deletes are paused. Nothing is
-- counted by triggers: the lines of gc.totals, one for each batch, are added up. A batch that would
-- go too far is undone, and what is allowed still goes. Two reviews at one time do not see each
-- other's batch.

create table gc.brakes (
    collection text not null
        constraint brakes_pkey primary key,
    share numeric
        constraint brakes_share_is_a_share check (share > 0 and share <= 1),
    rows bigint
        constraint brakes_rows_not_negative check (rows >= 0)
);

comment on table gc.brakes is
    'Collections for which the brake is not that of gc.settings: see gc.set_brake.';
comment on column gc.brakes.collection is 'The collection.';
comment on column gc.brakes.share is 'Instead of brake_share; null: that; 1: no brake.';
comment on column gc.brakes.rows is 'Instead of brake_rows; null: that.';


create table gc.allowances (
    collection text not null,
    what text not null
        constraint allowances_what_known check (what in ('reviews', 'deletes')),
    allowed bigint not null
        constraint allowances_allowed_not_negative check (allowed >= 0),
    since timestamptz not null default clock_timestamp(),
    constraint allowances_pkey primary key (collection, what)
);

comment on table gc.allowances is
    'How many rows a person has let through the brake; for a day: see gc.resume.';
comment on column gc.allowances.collection is 'The collection.';
comment on column gc.allowances.what is 'reviews, or deletes.';
comment on column gc.allowances.allowed is 'How many rows, or objects, from then on.';
comment on column gc.allowances.since is 'When it was said.';


create function gc._gone(collection text, what text, since timestamptz)
    returns bigint
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
    select coalesce(sum(case _gone.what when 'reviews' then t.rows else t.handed_out end), 0)
    from gc.totals as t
    where t.collection = _gone.collection and t.counted_at > since and not t.folded
$$;

comment on function gc._gone(text, text, timestamptz) is
    'How many rows reviews have deleted since then, or how many objects of rows that the '
    'application has deleted were handed out.';


-- Too low is the safe side: the brake comes too early. So what the last ANALYZE counted is not
-- believed beyond the pages that there are now, nor that a table has grown since; a table that is
-- said to be small, or was never looked at, is counted as far as that, together with the rows that
-- have gone meanwhile.
create function gc._rows_of(target regclass, gone bigint default 0)
    returns bigint
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set enable_seqscan = on
as $$
declare
    bound constant bigint := 100000;
    counted bigint;
    estimate bigint := (
        select sum(least(r.reltuples, r.reltuples / greatest(r.relpages, 1)
            * (pg_relation_size(r.oid) / current_setting('block_size')::integer)))
        from gc._partitions(target) as p(part)
        join pg_class as r on r.oid = p.part and r.relkind = 'r' and r.reltuples > 0
    );
begin
    if estimate >= bound then
        return estimate;
    end if;
    execute format('select count(*) from (select from %s limit $1) as t', target)
    into counted using bound;
    return least(counted + gone, bound);
end;
$$;

comment on function gc._rows_of(regclass, bigint) is
    'About how many rows a table had before so many have gone, and rather too few than too many.';


create function gc._brake_of(name text, out share numeric, out rows bigint)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(b.share, s.brake_share), coalesce(b.rows, s.brake_rows)
    from gc.settings as s
    left join gc.brakes as b on b.collection = name
$$;

comment on function gc._brake_of(text) is 'What the brake of a collection is set to.';


create function gc._quota(name text, gone bigint)
    returns bigint
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select greatest(b.rows, floor(b.share * r)::bigint)
    from gc._brake_of(name) as b
    cross join gc._rows_of((gc._collection(name)).target, gone) as r
$$;

comment on function gc._quota(text, bigint) is
    'How many rows of a collection may go in the hour in which so many have gone.';


-- Most of the time fewer than brake_rows have gone, and nobody has to know how big the table is.
create function gc._left(name text, what text)
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    brake record := gc._brake_of(name);
    gone bigint;
    allowed bigint;
begin
    if brake.share >= 1 then
        return null;
    end if;
    gone := gc._gone(name, what, clock_timestamp() - interval '1 hour');
    if gone < brake.rows then
        return brake.rows - gone;
    end if;
    select a.allowed - gc._gone(name, _left.what, a.since) into allowed
    from gc.allowances as a
    where a.collection = name and a.what = _left.what
        and a.since > clock_timestamp() - interval '1 day';
    if allowed > 0 then
        return allowed;
    end if;
    return greatest(allowed, gc._quota(name, gone) - gone);
end;
$$;

comment on function gc._left(text, text) is
    'How many rows may still go, at least; negative: too many have gone; null: there is no brake.';


create function gc._due_events(name text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    found_ones text;
begin
    execute format('select string_agg(format(%L, e.n, e.event), %L order by e.n desc, e.event) '
        'from (select q.event, count(*) as n from gc.%I as q where q.review_after <= now() '
        'group by q.event order by 2 desc limit 5) as e', '%s because of %s', ', ',
        gc._object_name(name, '_review_queue'))
    into found_ones;
    return found_ones;
end;
$$;

comment on function gc._due_events(text) is 'What reviews of a collection are due, and why.';


create function gc._braked_why(name text, what text, more bigint)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select format(case what
            when 'reviews' then 'reviews of one hour have deleted %s rows, and %s of the next '
                'batch were to follow; the table has about %s rows'
            else 'in one hour, %s objects were handed out whose rows the application has deleted, '
                'and %s of the next batch were to follow; the table has about %s rows'
        end, gc._gone(name, what, clock_timestamp() - interval '1 hour'), more,
        gc._rows_of((gc._collection(name)).target))
        || case what when 'reviews' then coalesce('; due: ' || gc._due_events(name), '') else '' end
$$;

comment on function gc._braked_why(text, text, bigint) is 'What was about to go.';


-- Another session may be pulling it at this moment: it is not waited for.
create function gc._pull_brake(name text, what text, more bigint)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '10ms'
as $$
declare
    why text := gc._braked_why(name, what, more);
begin
    insert into gc.pauses (collection, what, reason, until, paused_by)
    values (name, _pull_brake.what, why, 'infinity', 'the brake')
    on conflict on constraint pauses_key do update
    set reason = excluded.reason, until = excluded.until, paused_by = excluded.paused_by,
        since = excluded.since;
    perform gc._note_operation('brake', name, _pull_brake.what, null, why, 'the brake');
    raise warning 'the brake has paused % of "%"', _pull_brake.what, name
        using detail = why || '.',
            hint = format('If that is meant: select gc.resume(%L, allow => %s);', name, more);
exception
    when lock_not_available then
        null;
end;
$$;

comment on function gc._pull_brake(text, text, bigint) is
    'Pauses a collection of which too much was about to go.';


-- Undoes, with the block that catches it, a batch that has gone too far.
create function gc._require_left(name text, deleted integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if deleted > 0 and gc._left(name, 'reviews') < 0 then
        raise 'more than the brake lets through'
            using errcode = 'ZG007', detail = deleted;
    end if;
end;
$$;

comment on function gc._require_left(text, integer) is
    'Raises ZG007 for a batch that has gone too far.';


-- Of what the application has deleted, as much as is left. What was counted once, and came back
-- because a store failed or a lease was over, is not counted again.
create function gc._brake_claims(ids bigint[])
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    n record;
    left_over bigint;
    taken bigint[] := ids;
begin
    for n in
        select t.collection, array_agg(t.id order by t.id) as fresh
        from gc.tombstones as t
        where t.id = any (ids) and not t.counted
            and (t.event is null or t.event = 'reconcile')
        group by t.collection
    loop
        left_over := gc._left(n.collection, 'deletes');
        continue when left_over is null;
        if left_over <= 0 then
            perform gc._pull_brake(n.collection, 'deletes', cardinality(n.fresh));
            taken := gc._of_others(taken, n.collection);
            continue;
        end if;
        taken := array(
            select u from unnest(taken) as u where u <> all (n.fresh[left_over + 1 :]));
        insert into gc.totals (collection, handed_out)
        values (n.collection, least(left_over, cardinality(n.fresh)));
    end loop;
    return taken;
end;
$$;

comment on function gc._brake_claims(bigint[]) is
    'Those of the tombstones that may be handed out; pauses a collection of which none may.';


create function gc._of_others(ids bigint[], collection text)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select t.id from gc.tombstones as t
        where t.id = any (ids) and t.collection <> _of_others.collection
    );
end;
$$;

comment on function gc._of_others(bigint[], text) is
    'Those of the tombstones that are not of this collection.';


-- Without a number, what the brake would let through in an hour, if it was the brake.
create function gc._allow(name text, things text[], allow bigint)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if allow is not null and (name is null or allow < 0) then
        raise 'an allowance is a number of rows of one collection'
            using errcode = 'invalid_parameter_value',
                hint = 'select gc.resume(''…'', allow => 1000);';
    end if;
    insert into gc.allowances (collection, what, allowed)
    select name, w, coalesce(allow,
        gc._quota(name, gc._gone(name, w, clock_timestamp() - interval '1 hour')))
    from unnest(things) as w
    where allow is not null or exists (
        select from gc.pauses as p
        where p.collection = name and p.what = w and p.paused_by = 'the brake'
    )
    on conflict on constraint allowances_pkey do update
    set allowed = excluded.allowed, since = excluded.since;
end;
$$;

comment on function gc._allow(text, text[], bigint) is
    'Lets so many rows through the brake, whatever has gone before.';


create function gc.set_brake(name text, share numeric default null, rows bigint default null)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
begin
    perform gc._require_owner();
    delete from gc.brakes as b where b.collection = c.name;
    insert into gc.brakes (collection, share, rows)
    select c.name, set_brake.share, set_brake.rows
    where set_brake.share is not null or set_brake.rows is not null;
end;
$$;
revoke all on function gc.set_brake(text, numeric, bigint) from public;

comment on function gc.set_brake(text, numeric, bigint) is
    'What the brake of a collection lets through in an hour: a share of its rows, and at least so '
    'many; null: as gc.settings says; share => 1: everything.';


create function gc._forget_stops(name text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    delete from gc.pauses as p where p.collection = name;
    delete from gc.pins as p where p.collection = name;
    delete from gc.key_changes as k where k.collection = name;
    delete from gc.brakes as b where b.collection = name;
    delete from gc.allowances as a where a.collection = name;
end;
$$;

comment on function gc._forget_stops(text) is
    'Ends pauses and pins of a collection that is not tracked any more, and forgets its brake.';
