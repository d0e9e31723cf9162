-- The gate: whether anything may be being deleted from a store at this moment.
--
-- Rows of a collection of which only deleted rows count (collect => 'deleted') are inserted without
-- a look at tombstones while the gate is closed: PostgreSQL reads one number, and calls no trigger.
-- A claim opens it before it hands anything out. Invariant: whoever has inserted a row while the
-- gate was closed had a transaction id before it was opened. The claim waits for all of these, and
-- then it sees their rows; whoever comes later finds the gate open, and looks (gc._admit). Reviews
-- close it when no lease is left, and every transaction has ended that was running then: it may
-- have read what has gone since.
--
-- Sequences, because they are read and written outside of transactions, without waiting.

-- Open: it has a last value. Closed: it has none, as nextval has not been called.
create sequence gc.deleting_until minvalue 0 start 0;
create sequence gc.deleting_after minvalue 0 start 0;
-- PUBLIC may ask whether it has a value (see sql/entry_points.sql), by its oid: nobody has a right
-- on the schema.

comment on sequence gc.deleting_until is
    'The gate. It has a last value while something may be being deleted: until when, in seconds '
    'since 1970.';
comment on sequence gc.deleting_after is
    'Transactions older than this must have ended before anything is handed out: they may have '
    'inserted rows while the gate was closed.';

insert into gc.locks values ('gate') on conflict do nothing;


-- One row. Unlogged: a crash ends every transaction, and then another look is taken.
create unlogged table gc.gate_waits (
    until timestamptz not null,
    running text[] not null
);

comment on table gc.gate_waits is 'What must have ended before the gate is closed.';
comment on column gc.gate_waits.until is 'When the gate''s time was over.';
comment on column gc.gate_waits.running is 'The virtual transactions that were running after that.';


create function gc._gate()
    returns timestamptz
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select case when s.is_called then to_timestamp(s.last_value) end from gc.deleting_until as s
$$;

comment on function gc._gate() is 'Until when something may be being deleted; null: it is closed.';


create function gc._set_gate(until timestamptz, open boolean)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select setval('gc.deleting_until', ceil(extract(epoch from until))::bigint, open)
$$;

comment on function gc._set_gate(timestamptz, boolean) is 'Opens or closes the gate, at once.';


create function gc._has_gate()
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from gc.collections as c where c.collect = 'deleted');
end;
$$;

comment on function gc._has_gate() is 'Whether there are inserts that ask for the gate only.';


-- A number beyond every snapshot of this server came with a dump from another.
create function gc._awaits_gate()
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    opened xid8 := (select s.last_value::text::xid8 from gc.deleting_after as s);
begin
    return coalesce(gc._oldest_other() < opened, false)
        and opened <= pg_snapshot_xmax(pg_current_snapshot());
end;
$$;

comment on function gc._awaits_gate() is
    'Whether a transaction is running that may have inserted rows while the gate was closed.';


-- In this order: the gate, then a transaction id that is over, then the snapshot. It knows of all
-- who have found the gate closed. Another session that opens the gate waits for the lock, which
-- goes with the subtransaction, and so it knows of all, too. What a sequence was set to stays: one
-- who is cancelled in between leaves an open gate, and no note (not called) of whom to wait for.
create function gc._open_gate(until timestamptz)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    before timestamptz;
    is_noted boolean;
begin
    perform gc._lock('gate');
    before := gc._gate();
    is_noted := before is not null and (select s.is_called from gc.deleting_after as s);
    if not is_noted then
        perform setval('gc.deleting_after', s.last_value, false) from gc.deleting_after as s;
    end if;
    perform gc._set_gate(greatest(until, before), true);
    if not is_noted then
        begin
            perform from gc.locks as l where l.name = 'claim' for key share;
            raise 'a transaction id is over' using errcode = 'ZG999';
        exception
            when sqlstate 'ZG999' then
                null;
        end;
        perform setval('gc.deleting_after',
            pg_snapshot_xmax(pg_current_snapshot())::text::bigint);
    end if;
    raise 'the gate is open' using errcode = 'ZG999';
exception
    when sqlstate 'ZG999' then
        null;
end;
$$;

comment on function gc._open_gate(timestamptz) is
    'Opens the gate until a time, and notes for which transactions to wait if it was closed.';


-- Unless somebody has opened it for longer meanwhile.
create function gc._change_gate(before timestamptz, until timestamptz, open boolean)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._lock('gate');
    if gc._gate() = before then
        perform gc._set_gate(until, open);
    end if;
    raise 'the gate is changed' using errcode = 'ZG999';
exception
    when sqlstate 'ZG999' then
        null;
end;
$$;

comment on function gc._change_gate(timestamptz, timestamptz, boolean) is
    'Closes the gate, or leaves it open for a shorter time.';


-- The first look after the time is over notes who is running, a later one finds them gone.
create function gc._close_gate(until timestamptz)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    alive text[] := array(
        select l.virtualtransaction from pg_locks as l
        join pg_stat_activity as a on a.pid = l.pid and a.datname = current_database()
        where l.locktype = 'virtualxid' and l.pid <> pg_backend_pid()
    );
begin
    if exists (
        select from gc.gate_waits as w
        where w.until = _close_gate.until and not w.running && alive
    ) then
        perform gc._change_gate(until, until, false);
    elsif not exists (select from gc.gate_waits as w where w.until = _close_gate.until) then
        lock table gc.gate_waits in share row exclusive mode nowait;
        delete from gc.gate_waits;
        insert into gc.gate_waits values (until, alive);
    end if;
exception
    when lock_not_available then
        null;
end;
$$;

comment on function gc._close_gate(timestamptz) is
    'Closes the gate whose time is over, when everybody has ended who was running then.';


-- Strict uploads look at every row, so the gate is never closed. Otherwise it is open for as long
-- as the longest lease at most.
create function gc._tend_gate()
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    until timestamptz := gc._gate();
begin
    if (select s.strict_uploads from gc.settings as s) then
        perform gc._open_gate('2200-01-01 00:00:00+00');
    elsif until > clock_timestamp() + interval '1 day 1 minute' then
        perform gc._change_gate(until, clock_timestamp() + interval '1 day', true);
    elsif until < clock_timestamp() then
        perform gc._close_gate(until);
    end if;
end;
$$;

comment on function gc._tend_gate() is
    'Closes the gate when it is time; keeps it open while strict_uploads is on.';
