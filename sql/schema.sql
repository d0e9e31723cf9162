-- The schema, and the few checks that every entry point shares.
--
-- Everything lives in gc, and gc belongs to the extension, so dropping the one drops the other.
-- Errors of our own have the SQLSTATE class ZG; callers match that, never the text:
--   ZG001  the object is being deleted at this moment: try again in a few seconds
--   ZG002  the object was not announced with gc.begin_upload (strict_uploads)
--   ZG003  the collection cannot be reviewed: the catalog does not fit its definition
--   ZG004  a TRUNCATE that cannot be followed: its snapshot may be too old to see all rows
--   ZG005  a declared reference to a row that is gone: it was deleted a short time ago
--   ZG006  a declared reference, with strict => true, to a row that is not there
--   ZG007  raised and caught in a review: more rows would go than the brake lets through
--   ZG008  a review would delete a pinned row together with another
--   ZG010  a row cannot be restored; the message says what is missing or in the way
--   ZG020  a runner of another version, which has to be replaced
--   ZG999  raised and caught inside one function, to undo what it has tried. ZG000 would
--          stand for the whole class in an exception clause.

set local search_path = pg_catalog, pg_temp;
create schema gc;
comment on schema gc is
    'blobgc: online garbage collection for whatever rows keep in an object store';

-- Settings that a session can change and that change what a statement means, or how a value is read
-- or printed. It must not matter who calls a function or deletes a row, so every function that can
-- be called from outside has these (see sql/entry_points.sql), and what it calls inherits them.
create function gc._fixed_settings()
    returns table (name text, value text)
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    values
        ('standard_conforming_strings', 'on'), ('transform_null_equals', 'off'),
        ('array_nulls', 'on'), ('quote_all_identifiers', 'off'),
        ('bytea_output', 'hex'), ('xmlbinary', 'base64'), ('xmloption', 'content'),
        ('datestyle', 'ISO, MDY'), ('intervalstyle', 'postgres'), ('timezone', 'UTC'),
        ('extra_float_digits', '1'),
        ('lc_monetary', 'C'), ('lc_numeric', 'C'), ('lc_time', 'C'),
        ('gin_fuzzy_search_limit', '0'), ('jit', 'off')
$$;

comment on function gc._fixed_settings() is
    'The settings that every function which can be called from outside has.';


create function gc._fixed_settings_sql()
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format('set %s = %s', p.name, case
        when p.value ~ ',' then p.value else quote_literal(p.value) end), E'\n')
    from gc._fixed_settings() as p
$$;

comment on function gc._fixed_settings_sql() is
    'The same as clauses of a function that is generated.';


-- The installation has them as well, and at its end, in sql/entry_points.sql, the session's own
-- again: SET LOCAL lasts longer than CREATE EXTENSION. Its text, however, is read before anything
-- of it is done: outside of functions, a text with a backslash has to be written with an E.
do $$
begin
    perform set_config('blobgc.found',
        (
            select jsonb_object_agg(p.name, current_setting(p.name))
            from gc._fixed_settings() as p
        )::text,
        true);
    perform set_config(p.name, p.value, true) from gc._fixed_settings() as p;
end;
$$;


create function gc.version()
    returns text
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $$ select '@VERSION@'::text $$;

comment on function gc.version() is
    'The version of these functions: what a runner compares with what it speaks.';


-- Look, lock, look again needs a new snapshot for each look: a repeatable read sees the same twice.
create function gc._require_read_committed(what text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'gc.% cannot be used in a % transaction', what,
            current_setting('transaction_isolation')
            using errcode = 'active_sql_transaction',
                detail = 'It must see what was committed a moment ago, not what was there '
                    'when the transaction began.',
                hint = 'begin isolation level read committed;';
    end if;
end;
$$;

comment on function gc._require_read_committed(text) is
    'Raises outside READ COMMITTED.';


create function gc._require_batch(batch integer)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if batch is null or batch < 1 then
        raise 'a batch must have at least one row'
            using errcode = 'invalid_parameter_value',
                detail = format('batch is %s.', coalesce(batch::text, 'null')),
                hint = 'Leave the argument out for a batch of 1000.';
    end if;
end;
$$;

comment on function gc._require_batch(integer) is
    'Raises for a batch of none, of less, or of null.';


-- What is held, leased or waited for keeps others from their work, so it has an end within reach.
create function gc._require_positive(what text, given interval)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    most interval := case what
        when 'wait' then interval '1 hour' when 'lease' then '1 day' else '7 days'
    end;
begin
    if given is null or given <= '0' then
        raise 'a % must be longer than nothing', what
            using errcode = 'invalid_parameter_value',
                detail = format('%s is %s.', what, coalesce(given::text, 'null')),
                hint = format('Leave the argument out for the usual %s.', what);
    end if;
    if given > most then
        raise 'a % cannot be longer than %', what, most
            using errcode = 'invalid_parameter_value',
                detail = format('%s is %s.', what, given),
                hint = format('Leave the argument out for the usual %s.', what);
    end if;
end;
$$;

comment on function gc._require_positive(text, interval) is
    'Raises for a time that is zero, negative, null, or too long: more than an hour for a wait, a '
    'day for a lease, 7 days for anything else.';


-- Errors that are about the moment, and not about what was computed, are the caller's: a conflict
-- with another session, a lack of resources, a lock that was waited for long enough, our own.
create function gc._raise_if_passing(state text, message text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if left(state, 2) in ('40', '53', '55', '57', '58', 'ZG') then
        raise '%', message using errcode = state;
    end if;
end;
$$;

comment on function gc._raise_if_passing(text, text) is
    'Raises an error again that trying the same another time may not meet.';


-- What is generated is run here and nowhere else. Its names came through format('%I').
create function gc._run(command text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
begin
    execute replace(command, chr(1), E'\n');
end;
$$;

comment on function gc._run(text) is 'Runs a statement that blobgc has generated.';


-- Locks are rows of a table of our own: an advisory lock could be taken by anybody.
create table gc.locks (
    name text not null
        constraint locks_pkey primary key
);

comment on table gc.locks is 'What only one session at a time may do: it locks the row.';
comment on column gc.locks.name is 'What is done.';

insert into gc.locks values ('track'), ('settings'), ('claim') on conflict do nothing;


create function gc._lock(name text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform from gc.locks as l where l.name = _lock.name for update;
end;
$$;

comment on function gc._lock(text) is 'Waits until no other session does this, until the commit.';
