-- Durability: an object is not handed out before the deletion of its row has reached every place
-- from which the database may come back: standbys, replication slots, the archive.
--
-- The same mechanism as waiting for older transactions (gc.tombstones.wait_for). Now and then a
-- claim notes a point: all transactions before xmin are over, so what they wrote stands before lsn.
-- Invariant: a wait is over only when it is older than the xmin of a point that all have reached.

create table gc.durable_points (
    xmin_then xid8 not null,
    lsn pg_lsn not null,
    noted_at timestamptz not null default clock_timestamp()
);

comment on table gc.durable_points is
    'Points of the write-ahead log, for gc.settings.durable_on: what was over when.';
comment on column gc.durable_points.xmin_then is 'All transactions before this one were over,';
comment on column gc.durable_points.lsn is 'and all that they wrote stands before this.';
comment on column gc.durable_points.noted_at is 'When that was.';


create function gc._durable_on()
    returns text[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select nullif(s.durable_on, '{}') from gc.settings as s $$;

comment on function gc._durable_on() is 'What deletions have to reach; null: nothing.';


-- Segments are archived in their order. The end of a timeline (.partial) is not whole, and a
-- .history says nothing about segments.
create function gc._archived()
    returns pg_lsn
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('%s/%s', substr(a.last_archived_wal, 9, 8), to_hex(n.segment * n.size))::pg_lsn
        + n.size
    from pg_stat_archiver as a
    cross join lateral (
        select ('x' || substr(a.last_archived_wal, 17, 8))::bit(32)::bigint,
            pg_size_bytes(current_setting('wal_segment_size'))
        where a.last_archived_wal ~ '^[0-9A-F]{24}($|[.][0-9A-F]{8}[.]backup$)'
    ) as n(segment, size)
$$;

comment on function gc._archived() is
    'Up to where the write-ahead log is archived; null: that is not known.';


create function gc._reached(place text)
    returns pg_lsn
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when place = 'archive' then gc._archived()
        else coalesce(
            (
                select coalesce(s.confirmed_flush_lsn, s.restart_lsn)
                from pg_replication_slots as s
                where s.slot_name = place
            ),
            (select min(r.flush_lsn) from pg_stat_replication as r where r.application_name = place)
        )
    end
$$;

comment on function gc._reached(text) is
    'Up to where a standby, a slot or the archive has the write-ahead log; null: it is not there.';


-- Few points are enough: while nothing is reached there is no use for more. The snapshot of a
-- statement is older than what its functions return, so lsn is not too early.
create function gc._note_point()
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    insert into gc.durable_points (xmin_then, lsn)
    select pg_snapshot_xmin(pg_current_snapshot()), pg_current_wal_insert_lsn()
    from (
        select count(*), max(p.noted_at) from gc.durable_points as p
    ) as p(noted, last_at)
    where p.noted < 32
        and (p.last_at is null or p.last_at not between clock_timestamp() - interval '0.3 seconds'
            and clock_timestamp())
$$;

comment on function gc._note_point() is 'Notes what is over at this moment.';


create function gc._durable_horizon()
    returns xid8
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    reached pg_lsn;
    horizon xid8;
begin
    select case when count(*) = count(n.lsn) then min(n.lsn) end into reached
    from (select gc._reached(d) from unnest(gc._durable_on()) as d) as n(lsn);
    select p.xmin_then into horizon from gc.durable_points as p
    where p.lsn <= reached
    order by p.xmin_then desc
    limit 1;
    delete from gc.durable_points as p
    where p.ctid = any (array(
        select o.ctid from gc.durable_points as o
        where o.xmin_then < horizon
        for update skip locked
    ));
    perform gc._note_point();
    return coalesce(horizon, '0');
end;
$$;

comment on function gc._durable_horizon() is
    'All transactions before this one are over, and have reached what durable_on names.';


create function gc._why_not_durable()
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('"%s" (durable_on) %s what was deleted since %s', d.place,
        case when d.reached is null then 'is not there, so it has not got' else 'has not got' end,
        gc._when(min(p.noted_at)))
    from (select n, gc._reached(n) from unnest(gc._durable_on()) as n) as d(place, reached)
    join gc.durable_points as p on d.reached is null or p.lsn > d.reached
    group by d.place, d.reached
    order by min(p.noted_at), d.place
    limit 1
$$;

comment on function gc._why_not_durable() is
    'What holds deletions up because of durable_on, and since when; null: nothing.';


create function gc._require_readable(place text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if place = 'archive' then
        if current_setting('archive_mode') = 'off' then
            raise 'nothing is archived'
                using errcode = 'object_not_in_prerequisite_state',
                    detail = 'archive_mode is off, so no deletion would ever reach the archive.',
                    hint = 'Set archive_mode and archive_command, or leave archive out.';
        end if;
    elsif gc._reached(place) is null and not pg_has_role('pg_read_all_stats', 'usage') then
        raise 'the position of "%" cannot be seen', place
            using errcode = 'insufficient_privilege',
                detail = 'There is no slot of this name, and the owner of blobgc may not see '
                    'standbys.',
                hint = format('grant pg_read_all_stats to %I;', current_user);
    elsif gc._reached(place) is null then
        raise 'there is no standby and no replication slot "%"', place
            using errcode = 'undefined_object',
                detail = 'Deletions would wait for it for ever.',
                hint = 'select application_name from pg_stat_replication; select slot_name from '
                    'pg_replication_slots;';
    end if;
end;
$$;

comment on function gc._require_readable(text) is
    'Raises for what deletions cannot be seen to reach.';


-- Not for an insert: a dump is restored where the standbys are others. What was settled before has
-- perhaps not reached what is named now.
create function gc._change_durable_on()
    returns trigger
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._require_readable(n)
    from unnest(new.durable_on) as n
    where n is not null and n <> all (old.durable_on);
    if not new.durable_on <@ old.durable_on then
        delete from gc.durable_points;
        update gc.tombstones as t set wait_for = null where t.wait_for > '0' and t.worker is null;
    end if;
    return new;
end;
$$;
revoke all on function gc._change_durable_on() from public;

comment on function gc._change_durable_on() is
    'Refuses names whose position cannot be seen, and lets everything wait for the new ones.';

create trigger before_durable_on
    before update of durable_on on gc.settings
    for each row execute function gc._change_durable_on();
alter table gc.settings enable always trigger before_durable_on;
