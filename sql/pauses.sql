-- Pauses: a person, or the brake, has said stop.
--
-- Reviews of a collection, or the handing out of its objects, stop at their next batch. Tracking
-- goes on, and what a worker has under a lease may be confirmed. A pause is a row: one for each
-- collection and each of the two things, and one for all collections. It holds while it is there
-- and its end has not come. Pausing again changes it.

create table gc.pauses (
    collection text,
    what text not null
        constraint pauses_what_known check (what in ('reviews', 'deletes')),
    reason text,
    until timestamptz not null,
    paused_by text not null,
    since timestamptz not null default clock_timestamp(),
    constraint pauses_key unique nulls not distinct (collection, what)
);

comment on table gc.pauses is 'What is paused, by whom and why: see gc.pause.';
comment on column gc.pauses.collection is 'The collection; null: all of them.';
comment on column gc.pauses.what is
    'reviews: no row is reviewed. deletes: no object is handed out.';
comment on column gc.pauses.reason is 'Why, as far as it was told.';
comment on column gc.pauses.until is 'When it ends by itself; infinity: never.';
comment on column gc.pauses.paused_by is 'The role that had logged in, or the brake.';
comment on column gc.pauses.since is 'When it began.';


create function gc._is_paused(collection text, what text)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from gc.pauses as p
        where p.what = _is_paused.what and p.until > clock_timestamp()
            and (p.collection = _is_paused.collection or p.collection is null)
    )
$$;

comment on function gc._is_paused(text, text) is
    'Whether reviews, or deletes, of a collection are paused.';


-- The collection's own review function, when it is called by hand.
create function gc._require_not_paused(collection text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if gc._is_paused(collection, 'reviews') then
        raise 'reviews of the collection "%" are paused', collection
            using errcode = 'object_not_in_prerequisite_state',
                detail = (select concat_ws(': ', s.paused_by, s.paused_why)
                    from gc._pause_status(collection) as s),
                hint = format('select gc.resume(%L);', collection);
    end if;
end;
$$;

comment on function gc._require_not_paused(text) is
    'Raises for a collection whose reviews are paused.';


create function gc._pause_status(
    collection text, out paused text, out paused_by text, out paused_why text,
    out paused_until timestamptz
)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(distinct p.what, ', ' order by p.what desc),
        string_agg(distinct p.paused_by, ', '), string_agg(distinct p.reason, '; '), max(p.until)
    from gc.pauses as p
    where p.until > clock_timestamp()
        and (p.collection = _pause_status.collection or p.collection is null)
$$;

comment on function gc._pause_status(text) is 'What gc.status says about pauses.';


-- Null: both.
create function gc._paused_things(what text)
    returns text[]
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if what is null then
        return array['reviews', 'deletes'];
    elsif what in ('reviews', 'deletes') then
        return array[what];
    end if;
    raise '"%" cannot be paused', what
        using errcode = 'invalid_parameter_value',
            detail = 'What can be paused: reviews, deletes.',
            hint = 'Leave the argument out for both.';
end;
$$;

comment on function gc._paused_things(text) is 'What is meant to be paused, or resumed.';


create function gc.pause(
    name text default null, reason text default null, until timestamptz default 'infinity',
    what text default null
)
    returns void
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    chosen text := case when name is not null then (gc._collection(name)).name end;
begin
    perform gc._require_end('pause', until);
    insert into gc.pauses as p (collection, what, reason, until, paused_by)
    select chosen, w, pause.reason, pause.until, session_user
    from unnest(gc._paused_things(what)) as w
    on conflict on constraint pauses_key do update
    set reason = excluded.reason, until = excluded.until, paused_by = excluded.paused_by,
        since = case when p.until > clock_timestamp() then p.since else excluded.since end;
    perform gc._note_operation('pause', chosen, w, null, reason)
    from unnest(gc._paused_things(what)) as w;
end;
$$;
revoke all on function gc.pause(text, text, timestamptz, text) from public;

comment on function gc.pause(text, text, timestamptz, text) is
    'Stops reviews and deletes of a collection, or of all, at their next batch; what: only '
    '''reviews'' or only ''deletes''. Tracking goes on. Pausing again changes reason and end.';


-- Whoever ends a pause should learn that another still holds.
create function gc._tell_paused(collection text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    p gc.pauses;
begin
    for p in
        select o.* from gc.pauses as o
        where o.until > clock_timestamp()
            and (_tell_paused.collection is null or o.collection = _tell_paused.collection
                or o.collection is null)
        order by o.collection nulls first, o.what desc
    loop
        raise notice '% of % are still paused by %', p.what,
            coalesce(format('"%s"', p.collection), 'all collections'), p.paused_by
            using detail = coalesce(p.reason, 'No reason was given.'),
                hint = format('select gc.resume(%s);', coalesce(quote_literal(p.collection), ''));
    end loop;
end;
$$;

comment on function gc._tell_paused(text) is
    'Says what is paused still, for a collection or for any.';


create function gc.resume(
    name text default null, what text default null, allow bigint default null
)
    returns integer
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    chosen text := case when name is not null then (gc._collection(name)).name end;
    things text[] := gc._paused_things(what);
    ended integer;
begin
    perform gc._allow(chosen, things, allow);
    with gone as (
        delete from gc.pauses as p
        where p.collection is not distinct from chosen and p.what = any (things)
        returning p.what, p.until
    ),
    noted as (
        insert into gc.operations (operation, collection, what, reason, done_by)
        select 'resume', chosen, g.what, 'allow => ' || allow, session_user from gone as g
    )
    select count(*) filter (where g.until > clock_timestamp()) into ended from gone as g;
    perform gc._tell_paused(chosen);
    perform gc._wake_runners();
    return ended;
end;
$$;
revoke all on function gc.resume(text, text, bigint) from public;

comment on function gc.resume(text, text, bigint) is
    'Ends the pause of a collection or, without a name, the pause of all; what: only of reviews or '
    'of deletes. allow: how many more rows the brake lets through within a day. Returns how many '
    'pauses have ended.';
