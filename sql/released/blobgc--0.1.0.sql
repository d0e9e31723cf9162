\echo Use "CREATE EXTENSION blobgc" to load this file. \quit
-- The schema, and the few checks that every entry point shares.
--
-- Everything lives in gc, and gc belongs to the extension, so dropping the one drops the other.
-- Errors of our own have the SQLSTATE class ZG; callers match that, never the text:
--   ZG000  raised and caught inside one function, to undo what it has tried
--   ZG001  the object is being deleted at this moment: try again in a few seconds
--   ZG002  the object was not announced with gc.begin_upload (strict_uploads)
--   ZG003  the collection cannot be reviewed: the catalog does not fit its definition
--   ZG004  a TRUNCATE that cannot be followed: its snapshot may be too old to see all rows

set local search_path = pg_catalog, pg_temp;
create schema gc;
comment on schema gc is
    'blobgc: online garbage collection for whatever rows keep in an object store';


-- Settings that a session can change and that change what a statement means, or how a value is read
-- or printed. Whoever enters here, or what is deleted by whom, must not matter: every function that
-- can be called from outside has these (see sql/entry.sql), and what it calls inherits them.
create function gc._pinned()
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

comment on function gc._pinned() is
    'The settings that every function which can be called from outside has.';


create function gc._pinned_sql()
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format('set %s = %s', p.name, case
        when p.value ~ ',' then p.value else quote_literal(p.value) end), E'\n')
    from gc._pinned() as p
$$;

comment on function gc._pinned_sql() is 'The same as clauses of a function that is generated.';


-- The installation has them as well, and at its end, in sql/entry.sql, the session's own again:
-- SET LOCAL lasts longer than CREATE EXTENSION. Its text, however, is read before anything of it is
-- done: outside of functions, a text with a backslash has to be written with an E.
do $$
begin
    perform set_config('blobgc.found',
        (select jsonb_object_agg(p.name, current_setting(p.name)) from gc._pinned() as p)::text,
        true);
    perform set_config(p.name, p.value, true) from gc._pinned() as p;
end;
$$;


create function gc.version()
    returns text
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $$ select '0.1.0'::text $$;

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

insert into gc.locks values ('track'), ('settings'), ('claim');


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
-- Settings: one row, typed columns, read at every call, so a change works from the next call on.
--
-- Delays: how long after an event a row is reviewed. Each event may have its own; 1 day otherwise.
--
-- What every tracked statement has to know is not read from a table each time: it stands in small
-- functions, which PostgreSQL makes part of its plans. A change of a setting replaces the function,
-- and with it the plans.

create table gc.settings (
    jitter interval not null default '1 minute'
        constraint settings_jitter_not_negative check (jitter >= '0')
        constraint settings_jitter_not_endless check (jitter <= '10 years'),
    busy_delay interval not null default '30 seconds'
        constraint settings_busy_delay_positive check (busy_delay > '0'),
    backoff interval not null default '5 minutes'
        constraint settings_backoff_positive check (backoff > '0'),
    backoff_limit interval not null default '24 hours'
        constraint settings_backoff_limit_not_below_backoff check (backoff_limit >= backoff),
    max_rows integer not null default 10000
        constraint settings_max_rows_positive check (max_rows > 0),
    lock_timeout interval not null default '2 seconds'
        constraint settings_lock_timeout_positive check (lock_timeout > '0'),
    statement_timeout interval not null default '1 minute'
        constraint settings_statement_timeout_positive check (statement_timeout > '0'),
    max_sleep interval not null default '1 minute'
        constraint settings_max_sleep_positive check (max_sleep > '0'),
    upload_timeout interval not null default '1 hour'
        constraint settings_upload_timeout_positive check (upload_timeout > '0'),
    keep_alive interval not null default '1 hour'
        constraint settings_keep_alive_positive check (keep_alive > '0'),
    strict_uploads boolean not null default false,
    trusted_roles name[] not null default '{}',
    application_path text,
    log_retention interval not null default '90 days'
        constraint settings_log_retention_not_negative check (log_retention >= '0')
);

-- A unique index on a constant: there is never a second row.
create unique index settings_one_row on gc.settings ((true));


-- A restored dump brings its own row, and CREATE EXTENSION has put one there already.
create function gc._replace_settings()
    returns trigger
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    delete from gc.settings;
    return new;
end;
$$;

comment on function gc._replace_settings() is
    'A new row of settings takes the place of the old one.';

create trigger before_insert
    before insert on gc.settings
    for each row execute function gc._replace_settings();

comment on table gc.settings is 'How blobgc behaves: exactly one row, changed with UPDATE.';
comment on column gc.settings.jitter is
    'At most this much is added at random to every delay that is not zero.';
comment on column gc.settings.busy_delay is
    'A row that somebody else holds locked is looked at again after this time.';
comment on column gc.settings.backoff is
    'The wait after a first failure; it doubles with each further one.';
comment on column gc.settings.backoff_limit is 'The longest wait after a failure.';
comment on column gc.settings.max_rows is
    'The most rows that one review, which is one transaction, deletes, owned rows included.';
comment on column gc.settings.lock_timeout is 'How long a review waits for a lock, at most.';
comment on column gc.settings.statement_timeout is
    'A review that has run this long takes on no further row.';
comment on column gc.settings.max_sleep is 'gc.next_due is never further away than this.';
comment on column gc.settings.upload_timeout is
    'An announced upload holds its object for this long, unless it ends before.';
comment on column gc.settings.keep_alive is 'How long gc.keep_alive holds a row.';
comment on column gc.settings.strict_uploads is
    'Refuse a row whose object was not announced with gc.begin_upload.';
comment on column gc.settings.trusted_roles is
    'Roles whose code may run in a review: who own tables that refer to collections, functions of '
    'triggers, types. Besides them superusers, the owner of blobgc and, unless that is a '
    'superuser, the owner of the collection.';
comment on column gc.settings.application_path is
    'The search_path that triggers of the application''s own see when a review deletes a row; '
    'null: what ALTER ROLE and ALTER DATABASE say for the owner of the table.';
comment on column gc.settings.log_retention is
    'How long gc.deletion_log is kept. The daily totals are kept for ever.';


create table gc.review_after_defaults (
    event text not null
        constraint review_after_defaults_pkey primary key,
    value interval not null
        constraint review_after_defaults_value_not_negative check (value >= '0')
        constraint review_after_defaults_value_not_endless check (value <= '10 years')
);

comment on table gc.review_after_defaults is
    'How long after an event a row is reviewed: see gc.set_delay. An event that is not here has a '
    'day.';
comment on column gc.review_after_defaults.event is
    'An event of a collection: <collection>_insert, <table>_delete, or what gc.track named it.';
comment on column gc.review_after_defaults.value is 'The delay; zero means at once.';


create function gc._after_sql(delay interval, jitter interval)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set intervalstyle = 'postgres'
as $$
    select case
        when delay = '0' then 'now()'
        when jitter = '0' then format('now() + interval %L', delay)
        else format('now() + (interval %L + random() * interval %L)', delay, jitter)
    end
$$;

comment on function gc._after_sql(interval, interval) is
    'The expression for a time so far away, and at random a little further.';


create function gc._fold_settings()
    returns trigger
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    jitter interval;
    strict_uploads boolean;
    delays text;
begin
    -- One change after the other; the second sees what the first has written.
    perform gc._require_read_committed(tg_table_name);
    perform gc._lock('settings');
    select s.jitter, s.strict_uploads into jitter, strict_uploads from gc.settings as s;
    select string_agg(
        format(' when event = %L then %s', d.event, gc._after_sql(d.value, jitter)), ''
        order by d.event)
    into delays
    from gc.review_after_defaults as d;
    perform gc._run(format(
        'create or replace function gc.review_after(event text) returns timestamptz '
        'language sql volatile parallel restricted return case%s else %s end',
        coalesce(delays, ' when false then null'), gc._after_sql('1 day', jitter)));
    perform gc._run(format(
        'create or replace function gc._strict_uploads() returns boolean '
        'language sql stable parallel safe return %L::boolean', strict_uploads));
    return null;
end;
$$;
revoke all on function gc._fold_settings() from public;

comment on function gc._fold_settings() is
    'Writes the functions that stand for settings in plans.';

create trigger after_change
    after insert or update on gc.settings
    for each statement execute function gc._fold_settings();
create trigger after_change
    after insert or update or delete or truncate on gc.review_after_defaults
    for each statement execute function gc._fold_settings();
alter table gc.settings enable always trigger after_change;
alter table gc.review_after_defaults enable always trigger after_change;

insert into gc.settings default values;

comment on function gc.review_after(text) is
    'When a row is to be reviewed for which this event happens now.';
comment on function gc._strict_uploads() is 'The setting strict_uploads.';


create function gc._backoff(failures integer)
    returns interval
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    -- 2^20 times any backoff is beyond any limit; a higher power would overflow the interval.
    select least(s.backoff * power(2, least(failures, 20)), s.backoff_limit)
    from gc.settings as s
$$;

comment on function gc._backoff(integer) is
    'How long to wait after a failure that was preceded by so many others.';


-- The caller's function names lock_timeout, so that what is set here ends with it.
create function gc._limit_lock_waits()
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select set_config('lock_timeout',
        (extract(epoch from s.lock_timeout) * 1000)::integer || 'ms', true)
    from gc.settings as s
$$;

comment on function gc._limit_lock_waits() is
    'Waits for a lock no longer than the setting lock_timeout says.';
-- The catalog: what PostgreSQL itself knows of a table's key, its partitions, and who refers to it.
--
-- Foreign keys are read here and nowhere else, at every review. Nobody has to register a reference.

-- Not by pg_partition_tree, which locks every partition. And not in SQL, like nothing that a review
-- asks of the catalog: that would be planned at each call, which takes longer than the answer.
create function gc._partitions(relation regclass)
    returns setof regclass
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        with recursive tree(id) as (
            select relation::oid
            union
            select i.inhrelid
            from tree as t
            join pg_class as p on p.oid = t.id and p.relkind = 'p'
            join pg_inherits as i on i.inhparent = p.oid
        )
        select t.id::regclass from tree as t;
end;
$$;

comment on function gc._partitions(regclass) is
    'A table with all its partitions, itself included.';


create function gc._operator(operator oid)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when n.nspname = 'pg_catalog' then o.oprname
        else format('operator(%I.%s)', n.nspname, o.oprname)
    end
    from pg_operator as o
    join pg_namespace as n on n.oid = o.oprnamespace
    where o.oid = operator
$$;

comment on function gc._operator(oid) is
    'An operator as it has to be written where only pg_catalog is searched.';


-- A queue has columns of its own; a key column of the same name stands beside them as key_<name>,
-- one that is called key_<name> as key_key_<name>, and so on.
create function gc._queue_column(name name)
    returns name
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when name ~ '^(key_)*(entry|event|review_after|review_count|last_error)$'
            then 'key_' || name
        else name
    end::name
$$;

comment on function gc._queue_column(name) is
    'The name that a key column has in a review queue.';


create type gc._key_columns as (
    names name[], queue_names name[], types text[], operators text[], hashes text[]
);

comment on type gc._key_columns is
    'A primary key: its columns, their names in a queue, their types, what compares them, and what '
    'stands for them in an index with more columns, where they could be too long for that.';


-- PL/pgSQL, like gc._columns: every template asks, and a plan is made only once.
create function gc._key(target regclass)
    returns gc._key_columns
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select (
            array_agg(a.attname order by k.n),
            array_agg(gc._queue_column(a.attname) order by k.n),
            array_agg(
                format_type(a.atttypid, a.atttypmod) || case
                    when a.attcollation not in (0, t.typcollation)
                        then format(' collate %I.%I', cn.nspname, co.collname)
                    else ''
                end
                order by k.n),
            array_agg(gc._operator(o.amopopr) order by k.n),
            array_agg(case
                when a.atttypid in ('text'::regtype, 'varchar'::regtype)
                    then 'hashtextextended(%s, 0)'
                when a.atttypid = 'bytea'::regtype then 'hashtextextended(encode(%s, ''hex''), 0)'
            end order by k.n)
        )::gc._key_columns
        from pg_index as i
        cross join lateral unnest(i.indkey::smallint[], i.indclass::oid[])
            with ordinality as k(attnum, opclass, n)
        join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum
        join pg_type as t on t.oid = a.atttypid
        join pg_opclass as c on c.oid = k.opclass
        join pg_amop as o on o.amopfamily = c.opcfamily and o.amopstrategy = 3
            and o.amoplefttype = c.opcintype and o.amoprighttype = c.opcintype
        left join pg_collation as co on co.oid = a.attcollation
        left join pg_namespace as cn on cn.oid = co.collnamespace
        where i.indrelid = target and i.indisprimary and k.n <= i.indnkeyatts
    );
end;
$$;

comment on function gc._key(regclass) is
    'A table''s primary key; its fields are null where there is none.';


create function gc._columns(relation regclass, numbers smallint[])
    returns name[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select array_agg(a.attname order by u.n)
        from unnest(numbers) with ordinality as u(attnum, n)
        join pg_attribute as a on a.attrelid = relation and a.attnum = u.attnum
    );
end;
$$;

comment on function gc._columns(regclass, smallint[]) is
    'The names of a table''s columns that have these numbers.';


create function gc._idents(names name[], prefix text default '')
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(prefix || quote_ident(u.name), ', ' order by u.n)
    from unnest(names) with ordinality as u(name, n)
$$;

comment on function gc._idents(name[], text) is
    'Names as a list for a statement, each quoted where it has to be, each behind the prefix.';


-- A key as long as PostgreSQL allows has no room left for another column in its index.
create function gc._index_columns(k gc._key_columns)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format(coalesce('(' || u.hash || ')', '%s'), quote_ident(u.name)), ', '
        order by u.n)
    from unnest(k.queue_names, k.hashes) with ordinality as u(name, hash, n)
$$;

comment on function gc._index_columns(gc._key_columns) is
    'A key as the first columns of an index on a queue, or on links.';


-- A foreign key compares as its operator and the key's collation do, whatever types the columns
-- have: %1$s and %2$s stand for the two sides where that has to be said.
create function gc._comparison(operator oid, key pg_attribute, referring pg_attribute)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when w.type = '' and w.collated = '' then gc._operator(operator)
        else '%1$s' || w.type || ' ' || gc._operator(operator) || ' %2$s' || w.type || w.collated
    end
    from pg_operator as o
    join pg_type as t on t.oid = o.oprleft
    cross join lateral (
        select
            case
                when o.oprleft = o.oprright and t.typtype <> 'p' and not (
                    key.atttypid in (o.oprleft, 'varchar'::regtype)
                    and referring.atttypid in (o.oprleft, 'varchar'::regtype)
                )
                    then '::' || format_type(o.oprleft, null)
                else ''
            end,
            coalesce((
                select format(' collate %I.%I', n.nspname, c.collname)
                from pg_collation as c
                join pg_namespace as n on n.oid = c.collnamespace
                where c.oid = key.attcollation and key.attcollation <> referring.attcollation
            ), '')
    ) as w(type, collated)
    where o.oid = operator
$$;

comment on function gc._comparison(oid, pg_attribute, pg_attribute) is
    'How a foreign key compares a column of the key with the one that refers to it.';


create type gc._reference as (
    referencing regclass, columns name[], targets name[], operators text[], on_delete "char",
    to_key boolean, reference text, owned integer, linked boolean, itself boolean
);

comment on type gc._reference is
    'A foreign key into a collection. "owned" is its place in the order, null: it keeps; "linked": '
    'its rows can be in any partition; "itself": its rows are of the collection.';


-- A foreign key on a partitioned table has a copy on every partition; conparentid tells the copies.
create function gc._foreign_keys(target regclass)
    returns setof gc._reference
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    k gc._key_columns := gc._key(target);
    tables regclass[] := array(select gc._partitions(target));
begin
    return query
        select c.conrelid::regclass, f.columns, f.targets,
            array(
                select gc._comparison(u.op, key, referring)
                from unnest(c.conpfeqop, c.confkey, c.conkey) with ordinality as u(op, k, r, n)
                join pg_attribute as key on key.attrelid = c.confrelid and key.attnum = u.k
                join pg_attribute as referring
                    on referring.attrelid = c.conrelid and referring.attnum = u.r
                order by u.n
            ),
            c.confdeltype,
            f.targets @> k.names and k.names @> f.targets,
            format('%s(%s)', c.conrelid::regclass, gc._idents(f.columns)),
            null::integer, false, c.conrelid = any (tables)
        from pg_constraint as c
        cross join lateral (
            select gc._columns(c.conrelid, c.conkey), gc._columns(c.confrelid, c.confkey)
            offset 0
        ) as f(columns, targets)
        where c.contype = 'f' and c.conparentid = 0 and c.confrelid = any (tables)
        order by 7, c.oid;
end;
$$;

comment on function gc._foreign_keys(regclass) is
    'Every foreign key into a table or into one of its partitions.';


create function gc._has_index(relation regclass, columns name[])
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select
        from pg_index as i
        cross join lateral (
            select gc._columns(relation, (i.indkey::smallint[])[0:cardinality(columns) - 1])
        ) as x(first)
        where i.indrelid = relation
            and i.indisvalid
            and x.first @> columns
            and (
                i.indpred is null
                or pg_get_expr(i.indpred, i.indrelid) in (
                    select format('(%I IS NOT NULL)', u.name) from unnest(columns) as u(name)
                )
            )
    )
$$;

comment on function gc._has_index(regclass, name[]) is
    'Whether an index finds the rows by these columns. One that leaves out nulls is good enough.';


create function gc._typed(relation regclass, columns name[])
    returns text[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array_agg(format('%s %s.%s', a.attname, n.nspname, t.typname) order by a.attname)
    from pg_attribute as a
    join pg_type as t on t.oid = a.atttypid
    join pg_namespace as n on n.oid = t.typnamespace
    where a.attrelid = relation and a.attname = any (columns) and not a.attisdropped
$$;

comment on function gc._typed(regclass, name[]) is
    'Columns with their types, as text that no setting of a session changes.';


-- Not immutable at all, but said to be: PostgreSQL then asks it when it plans a statement, and not
-- at each execution. Altering a table drops every plan that reads the table, so in a statement
-- that reads it the answer is never old, and costs nothing.
create function gc._has_columns(relation text, columns text[])
    returns boolean
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return columns <@ array(
        select format('%s %s.%s', a.attname, n.nspname, t.typname)
        from pg_attribute as a
        join pg_type as t on t.oid = a.atttypid
        join pg_namespace as n on n.oid = t.typnamespace
        where a.attrelid = to_regclass(relation) and a.attnum > 0 and not a.attisdropped
    );
end;
$$;

comment on function gc._has_columns(text, text[]) is
    'Whether a table still has these columns, as a constant in a statement that reads it.';


create function gc._partition_key(
    relation regclass, out columns name[], out types text[], out operators text[]
)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array_agg(a.attname order by k.n),
        array_agg(format_type(a.atttypid, a.atttypmod) order by k.n),
        array_agg(gc._operator(o.amopopr) order by k.n)
    from pg_partitioned_table as p
    cross join lateral unnest(p.partattrs::smallint[], p.partclass::oid[])
        with ordinality as k(attnum, opclass, n)
    join pg_attribute as a on a.attrelid = p.partrelid and a.attnum = k.attnum
    join pg_opclass as c on c.oid = k.opclass
    join pg_amop as o on o.amopfamily = c.opcfamily
        and o.amopstrategy = case p.partstrat when 'h' then 1 else 3 end
        and o.amoplefttype = c.opcintype and o.amoprighttype = c.opcintype
    where p.partrelid = relation and p.partexprs is null
$$;

comment on function gc._partition_key(regclass) is
    'The columns by which a table is partitioned; null if it is not, or by an expression.';
-- Trust: whose code may run with the rights of blobgc's owner.
--
-- Reading a table computes what stands in its indexes, statistics, domains and constraints, and
-- deleting from it runs triggers and rules. All of that is looked for in the catalog, and every
-- table, type, function and operator that is found has to belong to a role that is trusted. What a
-- function of a trusted role calls in its turn is that role's concern.

-- A role whose rights are everything: what runs with them could do anything to the server.
create function gc._is_mighty()
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from pg_roles as r
        where pg_has_role(current_user, r.oid, 'member') and (
            r.rolsuper or r.rolname in ('pg_execute_server_program', 'pg_write_server_files')
        )
    )
$$;

comment on function gc._is_mighty() is
    'Whether this role is a superuser, can become one, or has the server''s files.';


-- Tracking a table trusts its owner, but not with more than a table: not with a superuser's rights.
create function gc._trusted(target regclass)
    returns setof oid
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select r.oid
        from pg_roles as r
        where r.rolsuper
            or r.rolname = current_user
            or r.rolname in (select unnest(s.trusted_roles) from gc.settings as s)
            or r.oid = (select c.relowner from pg_class as c where c.oid = target)
                and not gc._is_mighty();
end;
$$;

comment on function gc._trusted(regclass) is
    'The roles whose code may run when this table''s rows are read or deleted.';


-- pg_depend leaves out what came with the server; from 16384 on, oids are those of users. Casts and
-- operator classes are found by type: generated code prints, compares and sorts whatever it reads.
create function gc._next_code(class oid, id oid)
    returns table (next_class oid, next_id oid)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    rows 2
as $$
    select d.refclassid, d.refobjid
    from pg_depend as d
    where d.classid = class and d.objid = id and d.refobjid >= 16384
        and d.refclassid in ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass,
            'pg_opclass'::regclass, 'pg_opfamily'::regclass)
    union all
    select 'pg_constraint'::regclass, k.oid from pg_constraint as k
    where class = 'pg_type'::regclass and k.contypid = id
    union all
    select 'pg_type'::regclass, a.atttypid
    from pg_type as t
    join pg_attribute as a on a.attrelid = t.typrelid and a.attnum > 0 and a.atttypid >= 16384
    where class = 'pg_type'::regclass and t.oid = id and t.typrelid <> 0
    union all
    select 'pg_proc'::regclass, c.castfunc from pg_cast as c
    where class = 'pg_type'::regclass and c.castsource = id and c.castfunc >= 16384
    union all
    select 'pg_opclass'::regclass, o.oid from pg_opclass as o
    where class = 'pg_type'::regclass and o.opcintype = id
    union all
    select 'pg_operator'::regclass, o.amopopr from pg_amop as o
    where class = 'pg_opfamily'::regclass and o.amopfamily = id and o.amopopr >= 16384
    union all
    select 'pg_proc'::regclass, p.amproc::oid from pg_amproc as p
    where class = 'pg_opfamily'::regclass and p.amprocfamily = id and p.amproc >= 16384
$$;

comment on function gc._next_code(oid, oid) is
    'The functions, operators and types that using this object can call.';


create view gc._owners as
select 'pg_proc'::regclass::oid as class, p.oid as id, p.proowner as owner from pg_proc as p
union all
select 'pg_type'::regclass, t.oid, t.typowner from pg_type as t
union all
select 'pg_operator'::regclass, o.oid, o.oprowner from pg_operator as o
union all
select 'pg_opclass'::regclass, o.oid, o.opcowner from pg_opclass as o
union all
select 'pg_opfamily'::regclass, o.oid, o.opfowner from pg_opfamily as o;

comment on view gc._owners is
    'Whose each function, type and operator is.';
comment on column gc._owners.class is 'The catalog that the object stands in.';
comment on column gc._owners.id is 'Its oid there.';
comment on column gc._owners.owner is 'The oid of the role that it belongs to.';


-- Where a function is reached, its owner answers for what it calls.
create function gc._untrusted_code(target regclass, classes oid[], ids oid[])
    returns table (what text, owner name)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
as $$
begin
    return query
        with recursive reached(class, id) as (
            select d.refclassid, d.refobjid
            from unnest(classes, ids) as g(class, id)
            join pg_depend as d on d.classid = g.class and d.objid = g.id
            where d.refobjid >= 16384 and d.refclassid in (
                'pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass,
                'pg_opclass'::regclass, 'pg_opfamily'::regclass)
            union
            select n.next_class, n.next_id
            from reached as r
            cross join lateral gc._next_code(r.class, r.id) as n
            where r.class <> 'pg_proc'::regclass
        )
        select i.type || ' ' || i.identity, pg_get_userbyid(o.owner)
        from reached as r
        cross join lateral (
            select w.owner from gc._owners as w where w.class = r.class and w.id = r.id offset 0
        ) as o
        cross join lateral pg_identify_object(r.class, r.id, 0) as i
        where o.owner not in (select gc._trusted(target));
end;
$$;

comment on function gc._untrusted_code(regclass, oid[], oid[]) is
    'What using these objects can call, where its owner is not trusted.';


-- Views have one each. They matter only where a table has a rule that leads to them.
create function gc._has_rules()
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (
        select from pg_rewrite as r
        join pg_class as c on c.oid = r.ev_class and c.relkind not in ('v', 'm')
        where r.oid >= 16384
    );
end;
$$;

comment on function gc._has_rules() is 'Whether any table in this database has a rule.';


-- Foreign keys into the collection are read by its reviews; those that are owned are deleted from.
-- Where a row is deleted, PostgreSQL goes on by itself: to partitions, along ON DELETE CASCADE, SET
-- NULL and SET DEFAULT, into what a rule names; and it checks deferred constraints when it is told
-- to, all of one name in a schema at once.
create function gc._touched(target regclass, owned oid[])
    returns table (relation oid, written boolean, by_parent boolean)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = on
    set enable_hashjoin = on
    set plan_cache_mode = force_generic_plan
as $$
declare
    roots oid[] := array(select p::oid from gc._partitions(target) as p);
begin
    return query
        with recursive edges(parent, child, writes, reads, is_part) as materialized (
            select i.inhparent, i.inhrelid, p.relkind = 'p', true, p.relkind = 'p'
            from pg_inherits as i join pg_class as p on p.oid = i.inhparent
            union all
            select k.confrelid, k.conrelid, k.confdeltype in ('c', 'n', 'd')
                or k.conrelid = any (owned) and k.confrelid = any (roots),
                k.condeferrable or k.confrelid = any (roots), false
            from pg_constraint as k where k.contype = 'f' and k.conparentid = 0
            union all
            select r.ev_class, d.refobjid, true, r.ev_type = '1', false
            from pg_rewrite as r
            join pg_depend as d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid
                and d.refclassid = 'pg_class'::regclass and d.refobjid <> r.ev_class
            where r.oid >= 16384 and (select gc._has_rules())
        ),
        tables(id, writes, is_part) as (
            select target::oid, true, false
            union
            select e.child, t.writes and e.writes, e.is_part
            from tables as t
            join edges as e on e.parent = t.id and (e.reads or t.writes and e.writes)
        )
        select t.id, bool_or(t.writes), bool_and(t.is_part) from tables as t group by t.id;
end;
$$;

comment on function gc._touched(regclass, oid[]) is
    'The tables that a review of this one reads, and those that it writes; by_parent: that are '
    'only touched as partitions of another.';


create function gc._deferrable(tables oid[])
    returns table (id oid, relation oid, named text)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select o.oid, o.conrelid, format('%I.%I', n.nspname, o.conname)
        from pg_constraint as k
        join pg_constraint as o on o.conname = k.conname and o.connamespace = k.connamespace
        join pg_namespace as n on n.oid = o.connamespace
        where k.condeferrable and k.conparentid = 0 and o.condeferrable
            and (k.conrelid = any (tables) or k.confrelid = any (tables));
end;
$$;

comment on function gc._deferrable(oid[]) is
    'The constraints that can wait for the end of a transaction and that writing these tables can '
    'violate, and all others that SET CONSTRAINTS takes for the same, because they have the name.';


create function gc._objects_of(tables oid[])
    returns table (class oid, id oid, owner oid)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select 'pg_class'::regclass::oid, c.oid, c.relowner
        from pg_class as c where c.oid = any (tables)
        union all
        select 'pg_class'::regclass, i.indexrelid, null
        from pg_index as i where i.indrelid = any (tables)
        union all
        select 'pg_constraint'::regclass, k.oid, null
        from pg_constraint as k where k.conrelid = any (tables) and k.contype <> 'n'
        union all
        select 'pg_attrdef'::regclass, d.oid, null
        from pg_attrdef as d where d.adrelid = any (tables)
        union all
        select 'pg_statistic_ext'::regclass, s.oid, s.stxowner
        from pg_statistic_ext as s where s.stxrelid = any (tables)
        union all
        select 'pg_policy'::regclass, p.oid, null
        from pg_policy as p where p.polrelid = any (tables)
        union all
        select 'pg_rewrite'::regclass, r.oid, null
        from pg_rewrite as r where r.ev_class = any (tables)
        union all
        select 'pg_trigger'::regclass, g.oid, p.proowner
        from pg_trigger as g join pg_proc as p on p.oid = g.tgfoid
        where g.tgrelid = any (tables) and not g.tgisinternal;
end;
$$;

comment on function gc._objects_of(oid[]) is
    'Tables with all that PostgreSQL computes or runs when they are read or written. What has no '
    'owner here belongs to whoever owns the table.';


create function gc._strangers(target regclass, tables name[], functions name[])
    returns table (what text, owner oid)
    language plpgsql
    stable
    rows 1
    set search_path = pg_catalog, pg_temp
as $$
declare
    own oid := quote_ident(current_user)::regrole;
begin
    return query
        select format('table %s', r.oid::regclass), r.relowner from pg_class as r
        where r.oid = target and r.relowner <> own
        union all
        select format('table %s', r.oid::regclass), r.relowner from pg_class as r
        where r.relname = any (tables) and r.relnamespace = 'gc'::regnamespace
            and r.relowner <> own
        union all
        select format('function %s', f.oid::regprocedure), f.proowner from pg_proc as f
        where f.proname = any (functions) and f.pronamespace = 'gc'::regnamespace
            and f.proowner <> own;
end;
$$;

comment on function gc._strangers(regclass, name[], name[]) is
    'A collection, and those of these tables and functions in gc, that do not belong to the '
    'owner of blobgc.';


-- A generated function is called with the rights of blobgc's owner, and its owner can change it:
-- give it another search_path, for example. A dump that somebody else restored has such functions.
-- Asked at each upload, so it is not asked who is trusted where everything is the owner's own.
create function gc._require_own(name text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    what text;
    owner name;
begin
    select w.what, pg_get_userbyid(w.owner) into what, owner
    from gc.collections as c
    cross join lateral gc._strangers(c.target,
        c.links || gc._object_name(c.name, '_review_queue'), c.functions) as w
    where c.name = _require_own.name and w.owner not in (select gc._trusted(c.target))
    limit 1;
    if found then
        raise '% belongs to %, who could run code with the rights of %', what, owner, current_user
            using errcode = 'ZG003',
                detail = format('Nothing is done with the collection "%s" until then.', name),
                hint = format('update gc.settings set trusted_roles = trusted_roles || %L::name;',
                    owner);
    end if;
end;
$$;

comment on function gc._require_own(text) is
    'Raises ZG003 if a collection, or what was generated for it, belongs to a role that is not '
    'trusted. To be called before any generated function is.';


-- By default privileges, others may get rights on whatever the owner of blobgc creates.
create function gc._seal(class oid, id oid)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    command text;
begin
    for command in
        select distinct format('revoke all on %s %s from %s cascade', o.kind, o.name,
            case when a.grantee = 0 then 'public' else a.grantee::regrole::text end)
        from (
            select case c.relkind when 'S' then 'sequence' else 'table' end,
                c.oid::regclass::text, c.relowner, c.relacl
            from pg_class as c where class = 'pg_class'::regclass and c.oid = id
            union all
            select 'routine', f.oid::regprocedure::text, f.proowner,
                coalesce(f.proacl, acldefault('f', f.proowner))
            from pg_proc as f where class = 'pg_proc'::regclass and f.oid = id
            union all
            select 'type', t.oid::regtype::text, t.typowner,
                coalesce(t.typacl, acldefault('T', t.typowner))
            from pg_type as t where class = 'pg_type'::regclass and t.oid = id
        ) as o(kind, name, owner, acl)
        cross join lateral aclexplode(o.acl) as a
        where a.grantee <> o.owner
    loop
        perform gc._run(command);
    end loop;
end;
$$;

comment on function gc._seal(oid, oid) is
    'Takes every right on a table, sequence, function or type from everybody but its owner.';


create function gc._seal_table(relation regclass)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select gc._seal(o.class, o.id)
    from (
        select 'pg_class'::regclass::oid, relation::oid
        union all
        select 'pg_type'::regclass, c.reltype from pg_class as c where c.oid = relation
        union all
        select d.classid, d.objid from pg_depend as d
        join pg_class as s on s.oid = d.objid and s.relkind = 'S'
        where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass
            and d.refobjid = relation
    ) as o(class, id)
$$;

comment on function gc._seal_table(regclass) is
    'Takes every right on a table, its row type and its sequences from everybody but its owner.';


-- What the owner of the table would have after a connect. A session's own setting does not count.
create function gc._configured_path(target regclass)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select replace(coalesce(
        (select s.application_path from gc.settings as s),
        (
            select substr(o.setting, length('search_path=') + 1)
            from pg_db_role_setting as d
            cross join lateral unnest(d.setconfig) as o(setting)
            where o.setting like 'search_path=%' and d.setrole in (0, t.relowner)
                and d.setdatabase in (
                    0, (select b.oid from pg_database as b where b.datname = current_database())
                )
            order by d.setrole = 0, d.setdatabase = 0
            limit 1
        ),
        '"$user", public'), '"$user"', quote_ident(pg_get_userbyid(t.relowner)))
    from pg_class as t
    where t.oid = target
$$;

comment on function gc._configured_path(regclass) is
    'The search_path that the owner of a table has, as far as it is configured.';


-- The application's triggers run with the rights of blobgc's owner here, so a schema in which
-- others can create something is left out, and one that is theirs, and temporary tables come last.
create function gc._application_path(target regclass)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    trusted oid[] := array(
        select t from gc._trusted(target) as t
        union
        select 'pg_database_owner'::regrole from pg_database as d
        where d.datname = current_database() and d.datdba in (select gc._trusted(target))
    );
    schemas name[];
begin
    perform set_config('search_path', gc._configured_path(target), true);
    schemas := current_schemas(false);
    perform set_config('search_path', 'pg_catalog, pg_temp', true);
    return concat_ws(', ', (
        select string_agg(quote_ident(n.nspname), ', ' order by u.n)
        from unnest(schemas) with ordinality as u(name, n)
        join pg_namespace as n on n.nspname = u.name
        where n.oid <> pg_my_temp_schema() and not exists (
            select n.nspowner
            union
            select a.grantee
            from aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) as a
            where a.privilege_type = 'CREATE'
            except
            select u from unnest(trusted) as u
        )
    ), 'pg_temp');
end;
$$;

comment on function gc._application_path(regclass) is
    'The search_path for triggers of the application''s own.';
-- Expressions: url, size, label, generation and condition are SQL over one row's columns.
--
-- They become part of functions that run with the rights of blobgc's owner, so they are read before
-- they are believed. PostgreSQL parses them into a view that is dropped at once; the view's rule
-- tells the type, the columns, and every function that would be called.

create function gc._raise_expression(what text, expression text, reason text, hint text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    raise 'the % of a collection must be an expression over one row', what
        using errcode = 'invalid_parameter_value',
            detail = format('%s: %s.', expression, reason),
            hint = hint;
end;
$$;

comment on function gc._raise_expression(text, text, text, text) is
    'Raises for an expression that cannot be used.';


create function gc._alias(target regclass)
    returns name
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.relname in ('q', 't', 'r', 'd', 'this') then c.relname || '_row'
        else c.relname end::name
    from pg_class as c
    where c.oid = target
$$;

comment on function gc._alias(regclass) is
    'The name by which expressions know the table: its own, unless a template uses that.';


-- Nothing is executed, nor planned: that would call functions before they are looked at. Read in
-- two frames, the text cannot be more than one expression.
create function gc._parse_expression(target regclass, what text, expression text)
    returns regclass
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set timezone_abbreviations = 'Default'
as $$
declare
    source text := format('from %s as %I', target, gc._alias(target));
begin
    if position(';' in expression) > 0 then
        raise 'it has a semicolon' using errcode = 'syntax_error';
    end if;
    perform gc._run('create view gc._expression as select case when true then '
        || expression || ' end ' || source);
    drop view gc._expression;
    perform gc._run('create view gc._expression as select (' || expression || ') as value '
        || source);
    return to_regclass('gc._expression');
exception
    when syntax_error_or_access_rule_violation or data_exception or feature_not_supported then
        perform gc._raise_expression(what, expression, sqlerrm,
            'Write it with the table''s own columns; functions and operators outside pg_catalog '
            'need their schema.');
        return null;
end;
$$;

comment on function gc._parse_expression(regclass, text, text) is
    'Makes the view gc._expression, whose column "value" is the expression.';


-- What came with the server and is not immutable may read a session, run a query, or worse. Allowed
-- is what depends on the time or on how values are printed, which generated code lays down.
create function gc._unfit_call(nodes text, with_time boolean)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('%s reads more than the row', p.oid::regprocedure)
    from regexp_matches(nodes, ':(?:op)?funcid (\d+)', 'g') as m
    join pg_proc as p on p.oid = m[1]::oid
    where p.pronamespace = 'pg_catalog'::regnamespace
        and p.provolatile <> 'i'
        and (p.provolatile = 'v' or p.proname not in (
            'age', 'anytextcat', 'array_to_json', 'array_to_string', 'concat', 'concat_ws',
            'convert', 'convert_from', 'convert_to', 'date', 'date_add', 'date_part',
            'date_subtract', 'date_trunc', 'extract', 'format', 'interval_pl_timestamptz',
            'json_build_array', 'json_build_object', 'jsonb_build_array', 'jsonb_build_object',
            'jsonb_path_exists_tz', 'jsonb_path_match_tz', 'jsonb_path_query_array_tz',
            'jsonb_path_query_first_tz', 'length', 'make_timestamptz', 'now', 'overlaps',
            'quote_literal', 'quote_nullable', 'row_to_json', 'statement_timestamp', 'textanycat',
            'time', 'timestamp', 'timestamptz', 'timestamptz_mi_interval',
            'timestamptz_pl_interval', 'timetz', 'timezone', 'to_char', 'to_date', 'to_json',
            'to_jsonb', 'to_number', 'to_timestamp', 'transaction_timestamp', 'xml_is_well_formed'
        ) and p.proname !~ '^(date|timestamp|timestamptz)_(cmp|eq|ge|gt|le|lt|ne)_'
        or not with_time and (
            p.proname in ('now', 'statement_timestamp', 'transaction_timestamp')
            or p.proname = 'age' and p.pronargs = 1
        ) or p.proname = 'age' and p.proargtypes[0] = 'xid'::regtype)
    limit 1
$$;

comment on function gc._unfit_call(text, boolean) is
    'A call in a node tree that makes its value depend on more than a row (and the time).';


-- PostgreSQL 16 gave some of the nodes new names.
create function gc._unfit_node(nodes text, with_time boolean)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when m[1] in ('SUBLINK', 'AGGREF', 'WINDOWFUNC', 'GROUPINGFUNC')
            then 'it has a subquery, an aggregate or a window function'
        when m[1] = 'COERCETODOMAIN' then 'it casts to a domain, whose checks could be anything'
        when m[1] = 'SQLVALUEFUNCTION' then 'it reads the session or the time'
        else format('it has a part that is not known to be safe (%s)', lower(m[1]))
    end
    from regexp_matches(nodes, '(?<!\\)\{([A-Z_]+)( :op [0-8] )?', 'g') as m
    where m[1] not in (
            'QUERY', 'ALIAS', 'RTE', 'RANGETBLENTRY', 'RTEPERMISSIONINFO', 'FROMEXPR',
            'RANGETBLREF', 'TARGETENTRY',
            'VAR', 'CONST', 'FUNCEXPR', 'NAMEDARGEXPR', 'OPEXPR', 'DISTINCTEXPR', 'NULLIFEXPR',
            'SCALARARRAYOPEXPR', 'BOOLEXPR', 'BOOLEANTEST', 'NULLTEST', 'FIELDSELECT',
            'RELABELTYPE', 'COERCEVIAIO', 'ARRAYCOERCEEXPR', 'CONVERTROWTYPEEXPR', 'COLLATE',
            'COLLATEEXPR', 'CASE', 'CASEEXPR', 'WHEN', 'CASEWHEN', 'CASETESTEXPR', 'ARRAY',
            'ARRAYEXPR', 'ROW', 'ROWEXPR', 'ROWCOMPARE', 'ROWCOMPAREEXPR', 'COALESCE',
            'COALESCEEXPR', 'MINMAX', 'MINMAXEXPR', 'SUBSCRIPTINGREF'
        )
        -- Of current_date and its like, the first nine are times and the others roles and schemas.
        and not (m[1] = 'SQLVALUEFUNCTION' and m[2] is not null and with_time)
    limit 1
$$;

comment on function gc._unfit_node(text, boolean) is
    'Why a node tree is not an expression over one row (and the time) only; null if it is.';


-- The rule's node tree names each function by its oid, built-in ones too; pg_depend does not.
create function gc._expression_flaw(target regclass, parsed regclass, with_time boolean)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with tree as (
        select r.oid, r.ev_action::text as nodes from pg_rewrite as r where r.ev_class = parsed
    ),
    called as (
        select p.*
        from tree as t
        cross join lateral regexp_matches(t.nodes, ':(?:op)?funcid (\d+)', 'g') as m
        join pg_proc as p on p.oid = m[1]::oid
    )
    select 'it is more than one column' where (
        select count(*) from pg_attribute as a where a.attrelid = parsed and a.attnum > 0
    ) > 1
    union all
    select gc._unfit_node(t.nodes, with_time) from tree as t
    where gc._unfit_node(t.nodes, with_time) is not null
    union all
    select format('%s returns a set', c.oid::regprocedure) from called as c where c.proretset
    union all
    select format('%s is volatile', c.oid::regprocedure) from called as c
    where c.provolatile = 'v'
    union all
    select gc._unfit_call(t.nodes, with_time) from tree as t
    where gc._unfit_call(t.nodes, with_time) is not null
    union all
    select format('%s belongs to %s, who could change it', u.what, u.owner)
    from tree as t
    cross join lateral gc._untrusted_code(
        target, array['pg_rewrite'::regclass], array[t.oid]
    ) as u
    limit 1
$$;

comment on function gc._expression_flaw(regclass, regclass, boolean) is
    'Why an expression that PostgreSQL understands is not good enough; null if it is.';


create function gc._check_expression(
    target regclass, what text, expression text, categories text, wanted text
)
    returns name[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    parsed regclass := gc._parse_expression(target, what, expression);
    flaw text := gc._expression_flaw(target, parsed, what = 'condition');
    used name[];
    type regtype;
    category text;
begin
    select a.atttypid, t.typcategory into type, category
    from pg_attribute as a
    join pg_type as t on t.oid = a.atttypid
    where a.attrelid = parsed and a.attname = 'value';

    used := array(
        select distinct a.attname
        from pg_rewrite as r
        join pg_depend as d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid
        join pg_attribute as a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
        where r.ev_class = parsed and d.refclassid = 'pg_class'::regclass
            and d.refobjid = target and a.attnum > 0
        union
        -- The whole row.
        select a.attname from pg_rewrite as r
        join pg_attribute as a on a.attrelid = target and a.attnum > 0 and not a.attisdropped
        where r.ev_class = parsed and r.ev_action::text ~ ':varattno 0 '
    );
    drop view gc._expression;

    if flaw is null and position(category in categories) = 0 then
        flaw := format('it is of type %s', type);
    end if;
    if flaw is not null then
        perform gc._raise_expression(what, expression, flaw, format('It has to be %s.', wanted));
    end if;
    return used;
end;
$$;

comment on function gc._check_expression(regclass, text, text, text, text) is
    'Raises if the expression cannot be trusted; returns the columns that it reads.';
-- Collections: the tables whose rows can become garbage, as gc.track was told of them.
--
-- The fingerprint is all that the generated code of a collection was made from: its definition, and
-- what the catalog said. A review compares it with the catalog before it trusts the code.

create table gc.collections (
    name text not null
        constraint collections_pkey primary key
        constraint collections_name_length check (length(name) between 1 and 63),
    target regclass not null
        constraint collections_target_key unique,
    url text,
    size text,
    label text,
    generation text,
    condition text,
    owned text[] not null default '{}',
    keeping jsonb not null default '[]',
    events jsonb not null default '{}'
        constraint collections_events_object check (jsonb_typeof(events) = 'object'),
    undo interval not null default '0'
        constraint collections_undo_not_negative check (undo >= '0')
        constraint collections_undo_not_endless check (undo <= '10 years'),
    columns name[] not null default '{}',
    functions name[] not null default '{}',
    links name[] not null default '{}',
    shared boolean not null default false,
    proof oid,
    url_prefix text,
    url_printed text,
    url_flaw text,
    fingerprint text,
    scanning boolean not null default false,
    scan_cursor text,
    scan_error text,
    problem text,
    problem_since timestamptz,
    tracked_at timestamptz not null default now()
);

comment on table gc.collections is 'The tables whose rows can become garbage; see gc.track.';
comment on column gc.collections.name is 'The name by which functions know the collection.';
comment on column gc.collections.target is 'The table.';
comment on column gc.collections.url is
    'The object''s address, as an expression; null: rows without objects.';
comment on column gc.collections.size is 'The object''s size in bytes, as an expression.';
comment on column gc.collections.label is 'What a person calls the row, as an expression.';
comment on column gc.collections.generation is
    'Which version of the object is meant, as an expression: a generation or a version id.';
comment on column gc.collections.condition is
    'What must hold for a row to be garbage, as an expression; null: nothing more.';
comment on column gc.collections.owned is
    'The references whose rows go with their target, in the order in which they go.';
comment on column gc.collections.keeping is
    'The foreign keys, and their copies on partitions, that kept rows when the code was made.';
comment on column gc.collections.events is 'The names of events that are not the usual ones.';
comment on column gc.collections.undo is 'How long a tombstone waits before it can be claimed.';
comment on column gc.collections.columns is
    'The columns that the key and the expressions read.';
comment on column gc.collections.functions is 'The functions that were generated for it.';
comment on column gc.collections.links is
    'The tables that tell in which partition to look first for a reference.';
comment on column gc.collections.shared is
    'Rows may share an object: their url is not surely made of one key column alone.';
comment on column gc.collections.proof is
    'The CHECK constraint by which they cannot; null where none is needed, or there is none.';
comment on column gc.collections.url_prefix is
    'The text with which every url surely begins; null: nobody knows.';
comment on column gc.collections.url_printed is
    'The url as PostgreSQL prints it: what an index on it looks like.';
comment on column gc.collections.url_flaw is
    'Why there can be no index on the url; null: there can.';
comment on column gc.collections.fingerprint is 'What the generated code was made from.';
comment on column gc.collections.scanning is 'A scan that reviews carry on by themselves.';
comment on column gc.collections.scan_cursor is 'The key up to which a scan has come.';
comment on column gc.collections.scan_error is
    'Why the last step of such a scan failed; null: it did not.';
comment on column gc.collections.problem is 'Why nothing of it is reviewed; null: all is well.';
comment on column gc.collections.problem_since is 'Since when nothing is reviewed.';
comment on column gc.collections.tracked_at is 'When gc.track was first called.';


-- One row.
create table gc.turns (
    first_name text not null
);
insert into gc.turns values ('');

comment on table gc.turns is 'With which collection the next review begins.';
comment on column gc.turns.first_name is 'The first that the last review had no time for.';


-- Append-only, for a trigger writes it: a TRUNCATE that nobody could follow row by row.
create table gc.scan_requests (
    collection text not null,
    requested_at timestamptz not null default now(),
    reason text not null
);

comment on table gc.scan_requests is
    'Collections whose events were missed: the next reviews go over all their rows.';
comment on column gc.scan_requests.collection is 'The collection.';
comment on column gc.scan_requests.requested_at is 'Since when.';
comment on column gc.scan_requests.reason is 'What made it necessary.';


create table gc.unused_tables (
    name name not null
        constraint unused_tables_pkey primary key,
    since timestamptz not null default now()
);

comment on table gc.unused_tables is
    'Queues and links that no collection has any more; see gc.drop_unused_triggers.';
comment on column gc.unused_tables.name is 'The table, in the schema gc.';
comment on column gc.unused_tables.since is 'Since when.';


create function gc._note_missed(collection text, relation text)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    insert into gc.scan_requests (collection, reason)
    values (_note_missed.collection, format('%s, or what refers to it, has changed', relation))
$$;

comment on function gc._note_missed(text, text) is
    'Asks for a scan: a statement could not be followed because a table has changed.';


create function gc._collection(name text)
    returns gc.collections
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    found_one gc.collections;
begin
    select c.* into found_one from gc.collections as c where c.name = _collection.name;
    if not found then
        raise 'there is no collection "%"', name
            using errcode = 'undefined_object',
                detail = format('Collections: %s.', coalesce(
                    (select string_agg(c.name, ', ' order by c.name) from gc.collections as c),
                    'none yet')),
                hint = 'select * from gc.track(''schema.table'');';
    end if;
    return found_one;
end;
$$;

comment on function gc._collection(text) is 'The collection of this name; raises if there is none.';


-- One event's name: the usual one, unless gc.track was given another for it.
create function gc._event(events jsonb, usual text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select coalesce(events ->> usual, usual) $$;

comment on function gc._event(jsonb, text) is
    'What a collection calls the event that is usually called so.';


create function gc._table_event(relation regclass, operation text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.relname || '_' || operation from pg_class as c where c.oid = relation
$$;

comment on function gc._table_event(regclass, text) is
    'The usual name of an event on a table that refers to a collection.';


-- Names of what is generated. A name that is too long keeps its head and gets a hash for a tail.
create function gc._object_name(collection text, suffix text)
    returns name
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when octet_length(collection || suffix) < 64 then collection || suffix
        when octet_length(suffix) >= 40 then 'gc_' || md5(collection || '/' || suffix)
        when octet_length(collection) = length(collection)
            then left(collection, 54 - octet_length(suffix))
                || '_' || substr(md5(collection), 1, 8) || suffix
        else 'gc_' || substr(md5(collection), 1, 16) || suffix
    end::name;
end;
$$;

comment on function gc._object_name(text, text) is
    'The name of something generated for a collection: the two parts, if they fit.';


-- All the ways to write a reference in "owned": the table, with or without schema and columns.
create function gc._spellings(referencing regclass, columns name[])
    returns text[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array_agg(t.spelling || c.spelling)
    from pg_class as r
    join pg_namespace as n on n.oid = r.relnamespace
    cross join lateral (values
        (r.relname::text), (quote_ident(r.relname)),
        (n.nspname || '.' || r.relname), (format('%I.%I', n.nspname, r.relname))
    ) as t(spelling)
    cross join (values
        (''), ('(' || array_to_string(columns, ',') || ')'),
        ('(' || replace(gc._idents(columns), ', ', ',') || ')')
    ) as c(spelling)
    where r.oid = referencing
$$;

comment on function gc._spellings(regclass, name[]) is
    'The texts that name a reference in the argument "owned" of gc.track.';


create function gc._references(c gc.collections)
    returns setof gc._reference
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select f.referencing, f.columns, f.targets, f.operators, f.on_delete, f.to_key, f.reference,
        o.owned,
        o.owned is null and f.to_key
            and coalesce(not (gc._partition_key(f.referencing)).columns <@ f.columns, false),
        f.itself
    from gc._foreign_keys(c.target) as f
    cross join lateral (select array_position(c.owned, f.reference)) as o(owned)
$$;

comment on function gc._references(gc.collections) is
    'The references into a collection, with their place in "owned", and whether links help.';
-- Keepers: the foreign keys that keep the rows of a collection, as they were when code was made.
--
-- Fewer keepers than before is doubt, and so is none at all, or one that locks nothing: rows would
-- go that somebody still needs. Then nothing of the collection is reviewed until the key is back,
-- or until somebody accepts the loss by calling gc.track again. A keeper is the same if its
-- constraint is, whatever it is called now; or if another one has its table and columns, as after a
-- restore.

create type gc._keeper as (
    key oid, source oid, columns smallint[], target oid, place text, is_part boolean,
    reference text
);

comment on type gc._keeper is
    'A foreign key into a collection, or its copy on a partition: the constraint, the two tables '
    'and the columns, their names, and the reference it belongs to.';


create function gc._place(relation regclass, columns smallint[])
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
as $$ select format('%s(%s)', relation, gc._idents(gc._columns(relation, columns))) $$;

comment on function gc._place(regclass, smallint[]) is
    'What a reference is called: a table and its columns.';


create function gc._keepers(target regclass)
    returns setof gc._keeper
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with recursive keys(key, source, columns, target, is_part, root, place) as (
        select k.oid, k.conrelid, k.conkey, k.confrelid, false, k.oid,
            gc._place(k.conrelid, k.conkey)
        from pg_constraint as k
        where k.contype = 'f' and k.conparentid = 0
            and k.confrelid in (select gc._partitions(_keepers.target))
        union all
        select k.oid, k.conrelid, k.conkey, k.confrelid, true, p.root, p.place
        from keys as p
        join pg_constraint as k
            on k.conparentid = p.key and k.contype = 'f' and k.confrelid = p.target
    )
    select k.key, k.source, k.columns, k.target,
        case when k.is_part then gc._place(k.source, k.columns) else k.place end,
        k.is_part, k.place
    from keys as k
$$;

comment on function gc._keepers(regclass) is
    'Every foreign key into a table or into one of its partitions, with its copies on partitions.';


create function gc._known_keepers(c gc.collections)
    returns setof gc._keeper
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select * from jsonb_populate_recordset(null::gc._keeper, c.keeping) $$;

comment on function gc._known_keepers(gc.collections) is
    'The keepers that there were when the code of a collection was made.';


-- A partition that is detached gets a foreign key of its own. It is on its way out, and nobody has
-- to be asked when it goes.
create function gc._keeping(c gc.collections)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(jsonb_agg(to_jsonb(k) || jsonb_build_object('is_part', k.is_part or exists (
            select from gc._known_keepers(c) as o
            where o.is_part and o.key = k.key and o.source = k.source
        )) order by k.place, k.key), '[]')
    from gc._keepers(c.target) as k
    where k.reference <> all (c.owned)
$$;

comment on function gc._keeping(gc.collections) is 'The keepers of a collection, to be remembered.';


create function gc._lost_keepers(c gc.collections)
    returns setof gc._keeper
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with present as materialized (select k.* from gc._keepers(c.target) as k)
    select o.*
    from gc._known_keepers(c) as o
    where not exists (
        select from present as k
        where k.key = o.key and k.source = o.source and k.target = o.target or k.place = o.place
    )
$$;

comment on function gc._lost_keepers(gc.collections) is
    'The keepers that have gone since the code of a collection was made.';


create function gc._track_sql(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set intervalstyle = 'postgres'
as $$
    select format('select * from gc.track(%s);', concat_ws(', ', quote_literal(c.target),
        case when c.name <> t.relname then format('name => %L', c.name) end,
        'url => ' || quote_literal(c.url), 'size => ' || quote_literal(c.size),
        'label => ' || quote_literal(c.label), 'generation => ' || quote_literal(c.generation),
        'condition => ' || quote_literal(c.condition),
        case when o.owned <> '{}' then format('owned => %L', o.owned) end,
        case when c.events <> '{}' then format('events => %L', c.events) end,
        case when c.undo <> '0' then format('undo => %L', c.undo) end))
    from pg_class as t
    cross join lateral (
        select array(
            select u.name from unnest(c.owned) with ordinality as u(name, n)
            where u.name in (select k.place from gc._keepers(c.target) as k)
            order by u.n
        )
    ) as o(owned)
    where t.oid = c.target
$$;

comment on function gc._track_sql(gc.collections) is
    'The call of gc.track that leaves a collection as it is defined.';


create function gc._require_keepers_back(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    lost text := (
        select string_agg(k.place, ', ' order by k.place)
        from gc._lost_keepers(c) as k where not k.is_part
    );
begin
    if lost is not null then
        raise '% no longer refers to "%"', lost, c.target
            using errcode = 'undefined_object',
                detail = 'Rows that only this kept would be deleted. Reviews go on when the '
                    'foreign key is there again, or when gc.track is called again, which accepts '
                    'the loss.',
                hint = gc._track_sql(c);
    end if;
end;
$$;

comment on function gc._require_keepers_back(gc.collections) is
    'Raises for a keeper that has gone since the code of a collection was made.';


-- PostgreSQL has conenforced from 18 on; before, it is read as null. A copy for each pair of
-- partitions has triggers of its own.
create function gc._unlocking_keepers(c gc.collections)
    returns table (place text, reason text, command text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with recursive keys(key, place) as (
        select k.key, k.place from gc._keepers(c.target) as k
        where k.reference <> all (c.owned) and not k.is_part
        union all
        select k.oid, p.place from keys as p join pg_constraint as k on k.conparentid = p.key
    )
    select p.place, 'it is not enforced', format('alter table %s alter constraint %I enforced;',
        k.conrelid::regclass, k.conname)
    from keys as p
    join pg_constraint as k on k.oid = p.key and k.conparentid = 0
    where (to_jsonb(k) ->> 'conenforced')::boolean is false
    union all
    select p.place, format('its trigger on %s is disabled', g.tgrelid::regclass),
        format('alter table %s enable trigger %I;', g.tgrelid::regclass, g.tgname)
    from pg_trigger as g
    join keys as p on p.key = g.tgconstraint
    where g.tgconstraint <> 0 and g.tgenabled not in ('O', 'A')
$$;

comment on function gc._unlocking_keepers(gc.collections) is
    'The keepers that do not lock what they refer to, with the command that mends each.';


-- A trigger that is disabled sees nothing: a row would go without a tombstone.
create function gc._disabled_triggers(c gc.collections)
    returns table (trigger text, command text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('%I on %s', g.tgname, g.tgrelid::regclass),
        format('alter table %s enable trigger %I;', g.tgrelid::regclass, g.tgname)
    from pg_trigger as g
    join pg_proc as f on f.oid = g.tgfoid
    where f.pronamespace = 'gc'::regnamespace and f.proname = any (c.functions)
        and g.tgenabled not in ('O', 'A')
$$;

comment on function gc._disabled_triggers(gc.collections) is
    'The triggers of a collection that are disabled, with the command that mends each.';


-- Whoever inserts a reference has to lock its target, or a review would delete it meanwhile.
create function gc._require_locking(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    place text;
    reason text;
    script text;
    disabled text;
    enabling text;
begin
    select min(u.place), min(u.reason), string_agg(u.command, E'\n' order by u.command)
    into place, reason, script
    from gc._unlocking_keepers(c) as u
    group by u.place
    order by u.place
    limit 1;
    select min(d.trigger), string_agg(d.command, E'\n' order by d.command)
    into disabled, enabling
    from gc._disabled_triggers(c) as d;
    if place is not null then
        raise '% refers to "%" without a lock', place, c.target
            using errcode = 'object_not_in_prerequisite_state',
                detail = format('%s: rows could be deleted while somebody refers to them.', reason),
                hint = concat_ws(E'\n', script, enabling);
    elsif disabled is not null then
        raise 'the trigger % is disabled', disabled
            using errcode = 'object_not_in_prerequisite_state',
                detail = 'What happens meanwhile is not seen. A scan will find rows that lost what '
                    'kept them, but rows that go leave no tombstones.',
                hint = enabling;
    end if;
end;
$$;

comment on function gc._require_locking(gc.collections) is
    'Raises for a keeper that does not lock what it refers to, or a trigger that is disabled.';


create function gc._accept_losses(name text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
begin
    insert into gc.scan_requests (collection, reason)
    select c.name, k.place || ' no longer refers to it'
    from gc._lost_keepers(c) as k
    where not k.is_part;
    update gc.collections as o
    set keeping = (
        select coalesce(jsonb_agg(to_jsonb(k)), '[]')
        from gc._known_keepers(c) as k
        where k.is_part or k.key not in (select l.key from gc._lost_keepers(c) as l)
    )
    where o.name = c.name;
end;
$$;

comment on function gc._accept_losses(text) is
    'Forgets the keepers that have gone, and asks for a scan that finds what only they kept.';


-- Without a keeper everything is garbage. A condition shows that somebody has thought of that.
create function gc._has_keeper(c gc.collections)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when c.condition is not null or c.keeping <> '[]' then true
        else exists (
            select from gc._keepers(c.target) as k where k.reference <> all (c.owned)
        )
    end
$$;

comment on function gc._has_keeper(gc.collections) is
    'Whether anything, or a condition, tells the rows of a collection from garbage.';


create function gc._no_keeper(
    c gc.collections, out message text, out detail text, out hint text
)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    message := format('nothing keeps the rows of "%s"', c.target);
    detail := 'No foreign key refers to them, but for owned ones. Add one; or call gc.track again, '
        'with condition => ''true'' if every row is to go a day after its insert, or with '
        'condition => ''false'' if only the application deletes rows, and blobgc their objects';
    c.condition := 'false';
    hint := gc._track_sql(c);
end;
$$;

comment on function gc._no_keeper(gc.collections) is
    'What there is to say about a collection without a keeper and without a condition.';


create function gc._require_keeper(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    said record;
begin
    if not gc._has_keeper(c) then
        said := gc._no_keeper(c);
        raise '%', said.message
            using errcode = 'object_not_in_prerequisite_state', detail = said.detail,
                hint = said.hint;
    end if;
end;
$$;

comment on function gc._require_keeper(gc.collections) is
    'Raises for a collection in which everything would be garbage.';


-- Triggers are there nevertheless: what the application deletes leaves tombstones.
create function gc._block_without_keeper(c gc.collections)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    said record;
begin
    if not gc._has_keeper(c) then
        said := gc._no_keeper(c);
        raise warning '%, so none of them is collected', said.message
            using detail = said.detail || '.', hint = said.hint;
        perform gc._note_problem(c.name, format('the collection "%s" cannot be reviewed: %s: %s',
            c.name, said.message, said.detail));
    end if;
end;
$$;

comment on function gc._block_without_keeper(gc.collections) is
    'Blocks a collection in which everything would be garbage, and says what to do.';
-- Definitions: what gc.track is told must fit the table, now and whenever the code is made again.

create function gc._require_table(target regclass)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    t pg_class;
    kind text;
begin
    select c.* into t from pg_class as c where c.oid = target;
    kind := case
        when t.oid is null then 'nothing that exists'
        when t.relpersistence = 't' then 'a temporary table'
        when t.relispartition then 'a partition'
        when t.relkind in ('r', 'p') then null
        when t.relkind = 'v' then 'a view'
        when t.relkind = 'm' then 'a materialized view'
        when t.relkind = 'f' then 'a foreign table'
        else 'not a table'
    end;
    if kind is null and t.relkind = 'r' and t.relhassubclass then
        kind := 'a table from which others inherit';
    end if;
    if kind is not null then
        raise '"%" cannot be a collection', target
            using errcode = 'wrong_object_type',
                detail = format('It is %s, and what refers to it cannot be known.', kind),
                hint = case
                    when t.relispartition then format('select * from gc.track(%L);',
                        pg_partition_root(target))
                    else 'Track the table that has the rows.'
                end;
    end if;
    if (gc._key(target)).names is null then
        raise '"%" has no primary key', target
            using errcode = 'invalid_table_definition',
                detail = 'A review finds a row again by its key.',
                hint = format('alter table %s add primary key (…);', target);
    end if;
end;
$$;

comment on function gc._require_table(regclass) is
    'Raises for what is not a table with a primary key.';


create function gc._names(c gc.collections)
    returns table (kind text, name text, hint text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with tables(id) as (
        select gc._partitions(c.target)
        union
        select gc._partitions(r.referencing) from gc._references(c) as r
    )
    select 'collection', c.name, format('select * from gc.track(%L, name => ''…'');', c.target)
    union all
    select 'table', t.relname, format('alter table %s rename to …;', t.oid::regclass)
    from tables as i join pg_class as t on t.oid = i.id
    union all
    select 'schema', n.nspname, format('alter schema %I rename to …;', n.nspname)
    from tables as i join pg_class as t on t.oid = i.id
    join pg_namespace as n on n.oid = t.relnamespace
    union all
    select 'column', u.name, format('alter table %s rename column %I to …;', u.id, u.name)
    from (
        select c.target, a.attname from pg_attribute as a
        where a.attrelid = c.target and a.attnum > 0 and not a.attisdropped
        union all
        select r.referencing, unnest(r.columns || gc._columns(p.partrelid, p.partattrs))
        from gc._references(c) as r
        left join pg_partitioned_table as p on p.partrelid = r.referencing
    ) as u(id, name)
$$;

comment on function gc._names(gc.collections) is
    'The names that generated code is made of, and how each is changed.';


-- Generated code uses them for purposes of its own.
create function gc._require_names(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    found_one record;
begin
    select n.* into found_one from gc._names(c) as n
    where n.name ~ '[\u0001-\u001f\u007f]' order by n.kind, n.name limit 1;
    if found then
        raise 'the name of the % % has a control character', found_one.kind,
            to_json(found_one.name)
            using errcode = 'invalid_name',
                detail = 'Line breaks, tabs and the like in a name are not supported.',
                hint = found_one.hint;
    end if;
    select e.what, e.expression into found_one
    from (
        select x.what, x.expression from gc._expressions(c) as x
        union all
        select 'events', v.value from jsonb_each_text(c.events) as v
    ) as e(what, expression)
    where e.expression ~ '[\u0001-\u0008\u000b\u000c\u000e-\u001f\u007f]'
    limit 1;
    if found then
        raise 'the argument % has a control character', found_one.what
            using errcode = 'invalid_parameter_value',
                detail = format('%s is not supported.', to_json(found_one.expression)),
                hint = 'Write chr(…) in its place.';
    end if;
end;
$$;

comment on function gc._require_names(gc.collections) is
    'Raises for a control character in what generated code is made of.';


create function gc._concurrently(relation regclass)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select case when c.relkind = 'p' then '' else 'concurrently ' end from pg_class as c
    where c.oid = relation $$;

comment on function gc._concurrently(regclass) is
    'How a hint asks for an index: what is partitioned cannot have one made concurrently.';


-- Without an index, every review would read the whole referring table for every row.
create function gc._require_indexes(target regclass)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    missing text[];
    script text;
begin
    select array_agg(distinct f.reference), string_agg(distinct format('create index %son %s (%s);',
        gc._concurrently(f.referencing), f.referencing, gc._idents(f.columns)), E'\n')
    into missing, script
    from gc._foreign_keys(target) as f
    where not gc._has_index(f.referencing, f.columns);
    if cardinality(missing) = 1 then
        raise '% refers to "%" without an index', missing[1], target
            using errcode = 'invalid_table_definition',
                detail = 'Every review would read that table from end to end.', hint = script;
    elsif missing is not null then
        raise '% references to "%" have no index', cardinality(missing), target
            using errcode = 'invalid_table_definition',
                detail = format('Every review would read these tables from end to end: %s.',
                    array_to_string(missing, ', ')),
                hint = script;
    end if;
end;
$$;

comment on function gc._require_indexes(regclass) is
    'Raises for references whose columns have no index; the hint is the script that makes them.';


-- Names are looked up once, when gc.track is called: a table that gets the same name later, in
-- another schema, is not meant.
create function gc._resolve_owned(target regclass, owned text[])
    returns text[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    item text;
    matching gc._reference[];
    resolved text[] := array[]::text[];
begin
    foreach item in array owned loop
        matching := array(
            select f from gc._foreign_keys(target) as f
            where regexp_replace(item, '\s*,\s*', ',', 'g')
                = any (gc._spellings(f.referencing, f.columns))
        );
        if (select count(distinct m.referencing) from unnest(matching) as m) <> 1 then
            raise '"%" does not name one table that refers to "%"', item, target
                using errcode = 'undefined_object',
                    detail = format('References: %s.', coalesce(
                        (select string_agg(f.reference, ', ') from gc._foreign_keys(target) as f),
                        'none')),
                    hint = 'Name one of them in owned, or leave it out.';
        end if;
        resolved := resolved || array(select m.reference from unnest(matching) as m);
    end loop;
    return resolved;
end;
$$;

comment on function gc._resolve_owned(regclass, text[]) is
    'The references that "owned" names, in full; raises for a name that is none.';


create function gc._require_owned(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    missing text := (
        select o from unnest(c.owned) as o
        where o not in (select f.reference from gc._foreign_keys(c.target) as f)
        limit 1
    );
begin
    if missing is not null then
        raise 'the owned reference % is gone', missing
            using errcode = 'undefined_object',
                detail = 'Whether what it was now keeps or is owned, nobody has said.',
                hint = format('select * from gc.track(%L, owned => …);', c.target);
    end if;
end;
$$;

comment on function gc._require_owned(gc.collections) is
    'Raises for an owned reference that has gone since gc.track was called.';


-- Of gc._references, only what is asked here, because every review asks.
create function gc._owned_tables(c gc.collections)
    returns setof oid
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    roots oid[];
begin
    if c.owned = '{}' then
        return;
    end if;
    roots := array(select p::oid from gc._partitions(c.target) as p);
    return query
        select k.conrelid from pg_constraint as k
        where k.contype = 'f' and k.conparentid = 0 and k.confrelid = any (roots)
            and format('%s(%s)', k.conrelid::regclass,
                gc._idents(gc._columns(k.conrelid, k.conkey))) = any (c.owned);
end;
$$;

comment on function gc._owned_tables(gc.collections) is
    'The tables that are deleted from because they are named in "owned".';


create function gc._touched_by(c gc.collections)
    returns table (relation oid, written boolean, by_parent boolean)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select t.* from gc._touched(c.target, array(select gc._owned_tables(c))) as t;
end;
$$;

comment on function gc._touched_by(gc.collections) is
    'The tables that a review of this collection reads and writes.';


-- A trigger can be put on a table by anyone who has the right TRIGGER there. Its function is known
-- by its owner; but its condition may be any call of a function that came with the server, and some
-- of those run what they are given.
create function gc._untrusted(c gc.collections)
    returns table (what text, owner name)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
as $$
declare
    tables oid[];
    written oid[];
    trusted oid[] := array(select gc._trusted(c.target));
begin
    select array_agg(t.relation), array_agg(t.relation) filter (where t.written)
    into tables, written
    from gc._touched_by(c) as t;
    tables := array(
        select unnest(tables)
        union
        select d.relation from gc._deferrable(written) as d
        union
        select r.oid from pg_class as r
        where r.relnamespace = 'gc'::regnamespace
            and r.relname = any (c.links || gc._object_name(c.name, '_review_queue'))
    );
    return query
        with objects as materialized (select * from gc._objects_of(tables))
        select i.type || ' ' || i.identity, pg_get_userbyid(o.owner)
        from objects as o
        cross join lateral pg_identify_object(o.class, o.id, 0) as i
        where o.owner <> all (trusted)
        union all
        select u.*
        from (select array_agg(o.class), array_agg(o.id) from objects as o) as o(classes, ids)
        cross join lateral gc._untrusted_code(c.target, o.classes, o.ids) as u
        union all
        select format('trigger %I on %s', g.tgname, g.tgrelid::regclass), null::name
        from pg_trigger as g
        where g.tgrelid = any (tables) and not g.tgisinternal and case
            when g.tgqual is not null then gc._unfit_call(g.tgqual::text, true) is not null
        end;
end;
$$;

comment on function gc._untrusted(gc.collections) is
    'What a review would touch that belongs to a role nobody has said to trust; the owner is null '
    'where nobody can tell whose it is.';


create function gc._require_trusted(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    what text;
    owner name;
begin
    select u.what, u.owner into what, owner
    from gc._untrusted(c) as u
    order by array_position(array['table', 'trigger'], split_part(u.what, ' ', 1)), 1
    limit 1;
    if found and owner is null then
        raise 'the condition of % could run anything with the rights of %', what, current_user
            using errcode = 'insufficient_privilege',
                detail = 'It calls a function that need not give the same answer every time.',
                hint = format('drop %s;', what);
    elsif found then
        raise '% belongs to %, who could run code with the rights of %', what, owner, current_user
            using errcode = 'insufficient_privilege',
                detail = 'A review reads or deletes rows, and that can make it run.',
                hint = format('update gc.settings set trusted_roles = trusted_roles || %L::name;',
                    owner);
    end if;
end;
$$;

comment on function gc._require_trusted(gc.collections) is
    'Raises if anything that a review can make run belongs to a role that is not trusted.';


create function gc._require_lockable(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    relation regclass := (
        select t.relation from gc._touched_by(c) as t
        join pg_class as r on r.oid = t.relation and r.relkind in ('r', 'p')
        where not t.by_parent and not has_table_privilege(
            t.relation, case when t.written then 'update, delete' else 'select' end)
        order by 1
        limit 1
    );
begin
    if relation is not null then
        raise '% may not lock %', current_user, relation
            using errcode = 'insufficient_privilege',
                detail = 'A review reads it, or deletes from it along a cascade.',
                hint = format('grant select, delete on %s to %I;', relation, current_user);
    end if;
end;
$$;

comment on function gc._require_lockable(gc.collections) is
    'Raises if the owner of blobgc lacks the right to lock a table that a review touches.';


-- From here on nobody can put a trigger on what a review deletes from, nor a foreign key: both need
-- a lock that excludes ROW EXCLUSIVE. They can be aimed at one partition and lock only that, so
-- LOCK TABLE goes down to the partitions; the DELETE would lock all of them in this mode anyway.
-- Tables that are only read are locked as reading locks them: no code of others can get there, for
-- whoever may create an index owns the table. The order is that of the oids, for everybody. A
-- foreign key that came while a lock was waited for is in the fingerprint, which is looked at next.
create function gc._lock_touched(c gc.collections)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    command text;
begin
    for command in
        select format('lock table %s%s in %s mode',
            case when t.written and r.relkind = 'p' then '' else 'only ' end, r.oid::regclass,
            case when t.written then 'row exclusive' else 'access share' end)
        from gc._touched_by(c) as t
        join pg_class as r on r.oid = t.relation and r.relkind in ('r', 'p')
        where not t.by_parent
        order by r.oid
    loop
        perform gc._run(command);
    end loop;
exception
    when insufficient_privilege then
        perform gc._require_lockable(c);
        raise;
end;
$$;

comment on function gc._lock_touched(gc.collections) is
    'Locks all tables that a review touches, so that nobody can add code to them.';


create function gc._usual_events(c gc.collections)
    returns setof text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.name || '_' || o.operation
    from (values ('insert'), ('update'), ('scan')) as o(operation)
    union
    select gc._table_event(r.referencing, o.operation)
    from gc._references(c) as r
    cross join (values ('delete'), ('update')) as o(operation)
    where r.owned is null
$$;

comment on function gc._usual_events(gc.collections) is
    'The events that a collection has, under their usual names.';


create function gc._known_events()
    returns table (event text, collection text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select distinct gc._event(c.events, u.usual), c.name
    from gc.collections as c
    cross join lateral gc._usual_events(c) as u(usual)
$$;

comment on function gc._known_events() is 'The events of all collections, under their names.';


create function gc._require_events(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    unknown text;
begin
    select e.key into unknown
    from jsonb_each(c.events) as e
    where e.key not in (select u from gc._usual_events(c) as u)
        or jsonb_typeof(e.value) <> 'string' or e.value = '""'
    limit 1;
    if found then
        raise 'the event "%" of "%" cannot be named so', unknown, c.name
            using errcode = 'invalid_parameter_value',
                detail = format('Events: %s.',
                    (select string_agg(u, ', ' order by u) from gc._usual_events(c) as u)),
                hint = format('events => %L', jsonb_build_object(
                    c.name || '_insert', c.name || '_upload'));
    end if;
end;
$$;

comment on function gc._require_events(gc.collections) is
    'Raises for an event that a collection does not have, or that is given no name.';


-- A review acts with the rights of blobgc's owner: what is missing is told now, not at night.
create function gc._require_rights(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    relation regclass;
    needed text;
begin
    select w.relation, w.needed into relation, needed
    from (
        select c.target, 'select, update, delete, trigger'
        union all
        select r.referencing, case when r.owned is null then 'select, trigger'
            else 'select, delete' end
        from gc._references(c) as r
    ) as w(relation, needed)
    where exists (
        select from regexp_split_to_table(w.needed, ', ') as p
        where not has_table_privilege(w.relation, p)
    )
    limit 1;
    if found then
        raise '% may not do all that a review of "%" does', current_user, c.name
            using errcode = 'insufficient_privilege',
                detail = format('It needs %s on %s.', needed, relation),
                hint = format('grant %s on %s to %I;', needed, relation, current_user);
    end if;
end;
$$;

comment on function gc._require_rights(gc.collections) is
    'Raises if the owner of blobgc lacks a right on a table that a review touches.';


create function gc._expressions(c gc.collections)
    returns table (what text, expression text, categories text, wanted text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select e.*
    from (values
        ('url', c.url, 'S', 'text, and computed from the row alone'),
        ('size', c.size, 'N', 'a number of bytes, computed from the row alone'),
        ('label', c.label, 'SNU', 'text, computed from the row alone'),
        ('generation', c.generation, 'SN', 'text or a number, computed from the row alone'),
        ('condition', c.condition, 'B', 'true or false, computed from the row and the time')
    ) as e(what, expression, categories, wanted)
    where e.expression is not null
$$;

comment on function gc._expressions(gc.collections) is
    'The expressions of a collection, and of what type they have to be.';


create function gc._check_definition(c gc.collections)
    returns name[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._require_table(c.target);
    perform gc._require_names(c);
    perform gc._require_trusted(c);
    perform gc._require_indexes(c.target);
    perform gc._require_owned(c);
    perform gc._require_keepers_back(c);
    perform gc._require_locking(c);
    perform gc._require_events(c);
    perform gc._require_rights(c);
    perform gc._require_lockable(c);
    return array(
        select unnest((gc._key(c.target)).names)
        union
        select unnest(gc._check_expression(c.target, e.what, e.expression, e.categories, e.wanted))
        from gc._expressions(c) as e
        order by 1
    );
end;
$$;

comment on function gc._check_definition(gc.collections) is
    'Raises if the definition does not fit the table; returns the columns that it uses.';


create function gc._tree(nodes text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select regexp_replace(nodes, ' :(varno|varnosyn|varattnosyn|location) -?\d+', '', 'g')
$$;

comment on function gc._tree(text) is
    'A node tree without what depends on the statement that the expression stands in.';


-- PostgreSQL escapes blanks and brackets in names: no name can look like a part of the tree.
create function gc._url_tree(c gc.collections)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    parsed regclass := gc._parse_expression(c.target, 'url', c.url);
    tree text := (
        select substring(gc._tree(r.ev_action::text)
            from ':targetList \(\{TARGETENTRY :expr (.*) :resno 1 :resname value ')
        from pg_rewrite as r
        where r.ev_class = parsed
    );
begin
    drop view gc._expression;
    return tree;
end;
$$;

comment on function gc._url_tree(gc.collections) is 'The node tree of a collection''s url.';


-- Constants are text or integers (25 and 1043 are text and varchar, 20, 21 and 23 the integers); a
-- key is one of these, a uuid (2950) or a bytea (17). All of them print one way for each value. The
-- key comes in once, and is lost by none of this. What is not listed here stays as it is.
create function gc._reduced_url(tree text, key smallint)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    concatenation text := format(
        '\{(?:OPEXPR :opno \d+ :opfuncid|FUNCEXPR :funcid) (?:%s|%s|%s) [^{}]*:args \(',
        'textcat(text, text)'::regprocedure::oid,
        'textanycat(text, anynonarray)'::regprocedure::oid,
        'anytextcat(anynonarray, text)'::regprocedure::oid);
    rules text[] := array[
        ['\{CONST :consttype (?:25|1043|20|21|23) [^{}]*:constisnull false [^{}]*\}', '@text'],
        [format('\{VAR :varattno %s :vartype (?:25|1043) [^{}]*\}', key), '@key'],
        [format('\{VAR :varattno %s :vartype (?:20|21|23|2950|17) [^{}]*\}', key), '@value'],
        ['\{COERCEVIAIO :arg @value :resulttype (?:25|1043) [^{}]*\}', '@key'],
        ['\{RELABELTYPE :arg (@text|@key) :resulttype (?:25|1043) [^{}]*\}', '\1'],
        [format('\{FUNCEXPR :funcid %s [^{}]*:args \(@value @text\)[^{}]*\}',
            'encode(bytea, text)'::regprocedure::oid), '@key'],
        [concatenation || '@text @text\)[^{}]*\}', '@text'],
        [concatenation || '(?:@text @(?:key|value)|@(?:key|value) @text)\)[^{}]*\}', '@key']
    ];
    rule text[];
    before text;
begin
    loop
        before := tree;
        foreach rule slice 1 in array rules loop
            tree := regexp_replace(tree, rule[1], rule[2], 'g');
        end loop;
        exit when tree = before;
    end loop;
    return tree;
end;
$$;

comment on function gc._reduced_url(text, smallint) is
    'A url''s tree, in which @key stands for what surely has all of the key in it, and @text for '
    'what is always the same.';


create function gc._is_lossless(c gc.collections)
    returns boolean
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(gc._reduced_url(gc._url_tree(c), i.indkey[0]) = '@key', false)
    from pg_index as i
    where i.indrelid = c.target and i.indisprimary and i.indnkeyatts = 1
$$;

comment on function gc._is_lossless(gc.collections) is
    'Whether the url is made of constant text and of the key''s one column, and of nothing that '
    'could lose part of it: then it can be no other row''s.';


-- The leftmost constant of a chain of concatenations. Its bytes stand in the tree as signed
-- numbers, behind four that tell their number.
create function gc._url_prefix(c gc.collections)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select convert_from(string_agg(set_byte('\x00', 0, (b.byte::integer + 256) % 256), ''
        order by b.n), getdatabaseencoding())
    from substring(gc._url_tree(c) from format(
        '^(?:\{OPEXPR :opno \d+ :opfuncid (?:%s|%s) [^{}]*:args \()*'
        '\{CONST :consttype 25 [^{}]*:constisnull false [^{}]*:constvalue \d+ \[ ([-\d ]+) \]\}',
        'textcat(text, text)'::regprocedure::oid,
        'textanycat(text, anynonarray)'::regprocedure::oid)) as m(bytes)
    cross join lateral regexp_split_to_table(m.bytes, ' ') with ordinality as b(byte, n)
    where b.n > 4
$$;

comment on function gc._url_prefix(gc.collections) is
    'The text with which every url of a collection surely begins; null: there is none.';


-- check (key is not distinct from f(url)): where the key can be computed back, two rows of one url
-- are one row. Any f will do, so long as it is made of constants and of immutable functions that
-- nobody can change (a type's own input, for one, may depend on a setting), reads nothing but the
-- url, and the two sides are compared byte for byte. Null would be "distinct": no url is null.
create function gc._url_proof(c gc.collections)
    returns oid
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    url text := gc._url_tree(c);
begin
    return (
        select k.oid
        from pg_constraint as k
        join pg_index as i on i.indrelid = k.conrelid and i.indisprimary and i.indnkeyatts = 1
        cross join lateral regexp_matches(gc._tree(k.conbin::text),
            '^\{BOOLEXPR :boolop not :args \(\{DISTINCTEXPR :opno \d+ :opfuncid (\d+) [^{]*:args '
            '\(\{VAR :varattno (\d+) [^}]*\} (.*)$') as m
        where k.conrelid = c.target and k.contype = 'c' and k.convalidated
            and m[1]::regproc::text in ('byteaeq', 'uuid_eq', 'int2eq', 'int4eq', 'int8eq')
            and m[2]::smallint = i.indkey[0]
            and position(url in m[3]) > 0
            and replace(m[3], url, '') !~ '\{(?!(?:CONST|FUNCEXPR|OPEXPR|RELABELTYPE) )'
            and not exists (
                select
                from regexp_matches(k.conbin::text, ':(?:op)?funcid (\d+)', 'g') as f
                join pg_proc as p on p.oid = f[1]::oid
                join pg_roles as o on o.oid = p.proowner
                where p.provolatile <> 'i' or not o.rolsuper and o.rolname <> current_user
            )
        order by k.oid
        limit 1
    );
end;
$$;

comment on function gc._url_proof(gc.collections) is
    'The CHECK constraint by which no two rows can have one url; null: there is none.';


-- Everything else is looked up by the url itself.
create function gc._shares_objects(c gc.collections)
    returns boolean
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when c.url is null then false
        when cardinality(k.names) > 1
            or gc._check_expression(c.target, 'url', c.url, 'S', 'text') <> k.names then true
        else c.proof is null and not gc._is_lossless(c)
    end
    from gc._key(c.target) as k
$$;

comment on function gc._shares_objects(gc.collections) is
    'Whether rows may have one object together.';


-- Said to be immutable for the same reason as gc._has_columns.
create function gc._has_check(check_constraint oid)
    returns boolean
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (
        select from pg_constraint as k where k.oid = check_constraint and k.convalidated
    );
end;
$$;

comment on function gc._has_check(oid) is
    'Whether a CHECK constraint is still there, as a constant in a statement that reads its table.';


-- Both texts are PostgreSQL's own; they differ in parentheses and in the table's name.
create function gc._printed_url(c gc.collections)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
as $$
declare
    alias text := quote_ident(gc._alias(c.target));
    parsed regclass := gc._parse_expression(c.target, 'url', c.url);
    expression text := regexp_replace(
        pg_get_viewdef(parsed), '^\s*SELECT (.*) AS value\s+FROM.*$', '\1');
begin
    drop view gc._expression;
    return regexp_replace(replace(expression, alias || '.', ''), '[()\s]', '', 'g');
end;
$$;

comment on function gc._printed_url(gc.collections) is
    'A url as PostgreSQL prints it, without blanks and parentheses.';


create function gc._has_url_index(c gc.collections)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
as $$
    select exists (
        select from pg_index as i
        where i.indrelid = c.target and i.indisvalid and i.indpred is null
            and regexp_replace(pg_get_indexdef(i.indexrelid, 1, false), '[()\s]', '', 'g')
                = c.url_printed
    )
$$;

comment on function gc._has_url_index(gc.collections) is
    'Whether an index finds the rows that have a url.';


-- Tried on an empty table that is gone again at once: nobody knows PostgreSQL's rules better.
create function gc._url_index_flaw(c gc.collections)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    tried text := format('gc.%I', gc._alias(c.target));
begin
    if to_regclass(tried) is not null then
        return null;
    end if;
    perform gc._run(format('create table %s (like %s)', tried, c.target));
    perform gc._run(format('create index on %s ((%s))', tried, c.url));
    raise 'that is enough' using errcode = 'ZG000';
exception
    when sqlstate 'ZG000' then
        return null;
    when others then
        return sqlerrm;
end;
$$;

comment on function gc._url_index_flaw(gc.collections) is
    'Why PostgreSQL cannot have an index on a url; null: it can.';


-- Where both surely begin with a text, and neither text with the other, no object is in both.
create function gc._may_share(c gc.collections, other gc.collections)
    returns boolean
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select c.url is not null and other.url is not null and coalesce(
        starts_with(c.url_prefix, other.url_prefix) or starts_with(other.url_prefix, c.url_prefix),
        true)
$$;

comment on function gc._may_share(gc.collections, gc.collections) is
    'Whether a row of one collection and a row of the other could have one object.';


create function gc._missing_url_index(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when c.url_flaw is null
            then format('create index %son %s ((%s));', gc._concurrently(c.target), c.target, c.url)
        else format('There can be no index on it (%s). Make the url with immutable functions only, '
            'or keep it in a stored column, or make it of the key alone: text, || and the key.',
            c.url_flaw)
    end
    where c.url is not null
        and (c.shared or exists (
            select from gc.collections as o where o.name <> c.name and gc._may_share(c, o)
        ))
        and not gc._has_url_index(c)
$$;

comment on function gc._missing_url_index(gc.collections) is
    'The command that makes the index by which rows are found by url, or what to do where there '
    'can be none; null: it is there, or not needed.';
-- The log: what was deleted, when, why and how big; and totals for each day.
--
-- Totals are append-only like everything that two sessions write at once: a line for each batch,
-- folded into one line a day afterwards. gc.daily_totals adds them up.

create table gc.deletion_log (
    id bigint generated always as identity
        constraint deletion_log_pkey primary key,
    collection text not null,
    key text not null,
    label text,
    url text,
    generation text,
    size bigint,
    event text,
    row_deleted_at timestamptz not null,
    deleted_at timestamptz not null default clock_timestamp(),
    worker text
);
create index deletion_log_deleted_at_idx on gc.deletion_log (deleted_at);
create index deletion_log_key_idx on gc.deletion_log using hash (key);

comment on table gc.deletion_log is
    'What was deleted for good: objects that a runner confirmed, and rows without an object.';
comment on column gc.deletion_log.id is 'The order in which it was written.';
comment on column gc.deletion_log.collection is 'The collection of the row.';
comment on column gc.deletion_log.key is 'The row''s primary key, as text.';
comment on column gc.deletion_log.label is 'What a person called the row.';
comment on column gc.deletion_log.url is 'The object''s address; null: the row had none.';
comment on column gc.deletion_log.generation is 'Which version of the object it was.';
comment on column gc.deletion_log.size is 'The object''s size in bytes.';
comment on column gc.deletion_log.event is
    'The event that led to the review; null: the application deleted the row itself.';
comment on column gc.deletion_log.row_deleted_at is 'When the row went.';
comment on column gc.deletion_log.deleted_at is 'When the object went, or the row without one.';
comment on column gc.deletion_log.worker is 'Who deleted the object.';


create table gc.totals (
    collection text not null,
    day date not null default (now() at time zone 'UTC')::date,
    rows bigint not null default 0,
    objects bigint not null default 0,
    bytes numeric not null default 0,
    folded boolean not null default false
);
create index totals_unfolded_idx on gc.totals (day) where not folded;

comment on table gc.totals is 'The lines behind gc.daily_totals.';
comment on column gc.totals.collection is 'The collection.';
comment on column gc.totals.day is 'The day, in UTC, whatever the time zone of a session is.';
comment on column gc.totals.rows is 'Rows that reviews deleted.';
comment on column gc.totals.objects is 'Objects that runners confirmed.';
comment on column gc.totals.bytes is 'Bytes of those objects.';
comment on column gc.totals.folded is 'This line stands for all that a day had when it was over.';


create view gc.daily_totals as
select t.collection, t.day,
    sum(t.rows)::bigint as rows, sum(t.objects)::bigint as objects, sum(t.bytes) as bytes
from gc.totals as t
group by t.collection, t.day;

comment on view gc.daily_totals is 'What went on each day: rows, objects, and bytes reclaimed.';
comment on column gc.daily_totals.collection is 'The collection.';
comment on column gc.daily_totals.day is 'The day, in UTC.';
comment on column gc.daily_totals.rows is 'Rows that reviews deleted.';
comment on column gc.daily_totals.objects is 'Objects that runners confirmed as deleted.';
comment on column gc.daily_totals.bytes is 'Bytes of those objects.';


-- Bounded, and without waiting for a session that does the same.
create function gc._purge_log(batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    delete from gc.deletion_log as l
    where l.id = any (array(
        select o.id
        from gc.deletion_log as o
        where o.deleted_at < now() - (select s.log_retention from gc.settings as s)
        order by o.deleted_at
        limit batch
        for update skip locked
    ));

    with folded as (
        delete from gc.totals as t
        where t.ctid = any (array(
            select o.ctid
            from gc.totals as o
            where o.day < (now() at time zone 'UTC')::date and not o.folded
            limit batch
            for update skip locked
        ))
        returning t.collection, t.day, t.rows, t.objects, t.bytes
    )
    insert into gc.totals (collection, day, rows, objects, bytes, folded)
    select f.collection, f.day, sum(f.rows), sum(f.objects), sum(f.bytes), true
    from folded as f
    group by f.collection, f.day;
end;
$$;

comment on function gc._purge_log(integer) is
    'Drops what is older than the retention, and folds the totals of days that are over.';
-- Holds: do not collect this row, and do not hand out its object, until then.
--
-- A hold is taken by somebody who is about to use a row (gc.keep_alive) or to write its object
-- (gc.begin_upload). Each call adds one, so two users of one key do not end each other's hold.
-- Order of locks: the row, or the slot of an upload, comes before the hold is written.

create table gc.holds (
    id bigint generated always as identity
        constraint holds_pkey primary key,
    collection text not null,
    key text not null,
    url text,
    reason text not null,
    upload text,
    held_until timestamptz not null,
    held_at timestamptz not null default clock_timestamp()
);
create index holds_key_idx on gc.holds using hash (key);
create index holds_url_idx on gc.holds using hash (url) where url is not null;
create index holds_held_until_idx on gc.holds (held_until);

comment on table gc.holds is 'Rows and objects that somebody is using or writing.';
comment on column gc.holds.id is 'The order in which holds were taken.';
comment on column gc.holds.collection is 'The collection of the row.';
comment on column gc.holds.key is 'The row''s primary key, as text; it need not exist yet.';
comment on column gc.holds.url is 'The object''s address, where it was told.';
comment on column gc.holds.reason is 'What holds it: keep_alive or upload.';
comment on column gc.holds.upload is
    'The upload''s name, where it has one: only that name ends it.';
comment on column gc.holds.held_until is 'When it ends by itself.';
comment on column gc.holds.held_at is 'When it began.';


-- More than a review looks at: every existence check leaves a hold. An upload that has timed out
-- stays a while, so that whoever ends it is refused instead of ending that of another.
create function gc._purge_holds(batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    delete from gc.holds as h
    where h.id = any (array(
        select o.id from gc.holds as o
        where o.held_until < now()
            and (o.reason <> 'upload'
                or o.held_until < now() - (select s.upload_timeout from gc.settings as s))
        limit 10::bigint * batch
        for update skip locked
    ));
end;
$$;

comment on function gc._purge_holds(integer) is 'Drops holds that are over.';


-- Two spellings of a key, \x0A and \x0a, are one key: PostgreSQL reads it and prints it again.
create function gc._canonical_key(c gc.collections, key text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    canonical text;
begin
    perform gc._require_own(c.name);
    execute format('select gc.%I($1)', gc._object_name(c.name, '_key_text'))
    into canonical using key;
    if canonical is null then
        raise 'a key of "%" must not be null', c.name using errcode = 'null_value_not_allowed';
    end if;
    return canonical;
exception
    when data_exception or null_value_not_allowed then
        raise 'this is not a key of the collection "%"', c.name
            using errcode = 'invalid_text_representation',
                detail = format('%s: %s.', coalesce(key, 'null'), sqlerrm),
                hint = format('A key is (%s), written as PostgreSQL prints it.',
                    array_to_string((gc._key(c.target)).types, ', '));
end;
$$;

comment on function gc._canonical_key(gc.collections, text) is
    'The key as PostgreSQL prints it; raises if it cannot be read.';


create function gc._keep_alive(name text, key text)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    canonical text := gc._canonical_key(c, key);
    alive text;
begin
    perform gc._require_read_committed('keep_alive');
    -- Locks the row against a review, which waits for nobody, or waits for one to end. Equal keys
    -- may be written differently (1 and 1.0): what is held is the row's own.
    execute format('select gc.%I($1)', gc._object_name(c.name, '_lock')) into alive using canonical;
    if alive is not null then
        insert into gc.holds (collection, key, reason, held_until)
        select c.name, alive, 'keep_alive', clock_timestamp() + s.keep_alive
        from gc.settings as s;
    end if;
    return alive is not null;
end;
$$;

comment on function gc._keep_alive(text, text) is 'What gc.keep_alive does.';
-- Tombstones: rows that are gone, whose objects are still in the store. What a runner is handed.
--
-- A trigger on the collection writes them, in the transaction in which the row goes. A tombstone is
-- claimed under a lease, and goes when the worker confirms, or when a row with its url is inserted.
-- Invariant: whoever inserts a row either sees its tombstone, and keeps it from being claimed or is
-- refused; or is seen by the claim, which then drops the tombstone. Four things make that so:
--   * the insert's own check (gc._admit), in READ COMMITTED;
--   * where the snapshot is older, a slot that the claim looks for, and the constraint on claimed
--     objects, which such an insert runs into (gc._probe);
--   * for rows that share urls, a claim waits until every transaction has ended that may have
--     inserted a row before the tombstone could be seen (wait_for);
--   * objects that were deleted a short time ago are remembered: a transaction that is older than
--     the deletion may have read their url from a row that was still there.
-- A tombstone that is not claimed is due at due_at; one that is claimed is due again at due_at.

-- The scheme and the bucket: tombstones are claimed by store.
create function gc._store(url text)
    returns text
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $$ select left(split_part(url, '/', 1) || '//' || split_part(url, '/', 3), 128) $$;

comment on function gc._store(text) is 'The store that an address is in: s3://bucket, file://.';


create table gc.tombstones (
    id bigint generated always as identity
        constraint tombstones_pkey primary key,
    collection text not null,
    key text not null,
    label text,
    url text not null,
    generation text,
    size bigint,
    event text,
    created_at timestamptz not null default now(),
    due_at timestamptz not null,
    worker text,
    failures integer not null default 0,
    last_error text,
    held_up text,
    wait_for xid8,
    -- As gc._store computes it.
    store text not null generated always as
        (left(split_part(url, '/', 1) || '//' || split_part(url, '/', 3), 128)) stored,
    -- Two tombstones of one object are never both claimed. By a hash of the whole text, because it
    -- may be longer than a btree takes.
    constraint tombstones_one_deletion
        exclude using hash ((url || chr(10) || coalesce(generation, '')) with =)
        where (worker is not null)
)
with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
create index tombstones_due_idx on gc.tombstones (store, wait_for, due_at);
-- Hash indexes, because a url or a key may be longer than a btree takes. Where the key makes the
-- url, wait_for is 0 and the url is enough.
create index tombstones_url_idx on gc.tombstones using hash (url);
create index tombstones_key_idx on gc.tombstones using hash (key)
    where wait_for is distinct from '0';

comment on table gc.tombstones is 'Objects whose rows are gone and that are still to be deleted.';
comment on column gc.tombstones.id is 'What gc.claim hands out and gc.confirm takes back.';
comment on column gc.tombstones.collection is 'The collection of the row.';
comment on column gc.tombstones.key is 'The primary key that the row had, as text.';
comment on column gc.tombstones.label is 'What a person called the row.';
comment on column gc.tombstones.url is 'The object''s address.';
comment on column gc.tombstones.generation is 'Which version of the object is meant; null: any.';
comment on column gc.tombstones.size is 'The object''s size in bytes.';
comment on column gc.tombstones.event is
    'The event that led to the review; null: the application deleted the row itself.';
comment on column gc.tombstones.created_at is 'When the row went.';
comment on column gc.tombstones.due_at is
    'When it can be claimed: at first, after a failure, and again when a lease is over.';
comment on column gc.tombstones.worker is 'Who has it under a lease.';
comment on column gc.tombstones.failures is 'How often deleting the object failed.';
comment on column gc.tombstones.last_error is 'What the store said the last time.';
comment on column gc.tombstones.held_up is
    'Why it was not handed out when it was last asked for; null: it was, or was never asked for.';
comment on column gc.tombstones.wait_for is
    'Transactions older than this must have ended before it is claimed; null: not yet known; 1: '
    'they have; 0: none, because the url is made of the key and no other row can have it.';
comment on column gc.tombstones.store is 'The store that the url is in.';


-- Unlogged: a crash ends every transaction for which it is kept. Versions are noted when they are
-- leased already: two of one object may be leased at a time, so the constraint on claimed objects
-- does not show them to a row that knows no version (gc._probe).
create unlogged table gc.deleted_objects (
    url text not null,
    generation text,
    deleted_at timestamptz not null default clock_timestamp(),
    deleted_by xid8 not null default pg_current_xact_id(),
    constraint deleted_objects_url_key exclude using hash (url with =)
);
create index deleted_objects_deleted_at_idx on gc.deleted_objects (deleted_at);

comment on table gc.deleted_objects is
    'Objects that were deleted a short time ago, or versions that were leased. A transaction that '
    'is older cannot insert a row with such a url: it may have read it from the row that went.';
comment on column gc.deleted_objects.url is 'The object''s address.';
comment on column gc.deleted_objects.generation is 'Which version it was; null: any.';
comment on column gc.deleted_objects.deleted_at is
    'When a worker confirmed that it is gone, or was told to delete it.';
comment on column gc.deleted_objects.deleted_by is 'The transaction in which that was.';


-- What somebody is writing at this moment: a lock on a row of this table, until the commit. Two
-- writers share a row; a claim sees that it is locked. Two things may have one slot: then a
-- claim waits for an upload of something else, which does no harm.
create table gc.upload_slots (
    slot integer not null
        constraint upload_slots_pkey primary key
);
insert into gc.upload_slots select generate_series(0, 4095);

comment on table gc.upload_slots is 'Rows that are locked while a key or a url is being written.';
comment on column gc.upload_slots.slot is 'The remainder of a hash of the key or url.';


-- A key is a collection's own, a url is everybody's: kind is a collection's name, or url.
create function gc._slot(kind text, thing text)
    returns integer
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $$ select hashtext(kind || ' ' || thing) & 4095 $$;

comment on function gc._slot(text, text) is 'The slot of a key or a url.';


-- The lock on gc.holds tells claims that there is anything to look for: see gc._return_uploads.
create function gc._lock_slots(slots integer[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    lock table gc.holds in row exclusive mode;
    perform from gc.upload_slots as s where s.slot = any (slots) for key share;
end;
$$;

comment on function gc._lock_slots(integer[]) is
    'Says, until the commit, that something of these slots is being written.';


-- A repeatable read does not see a tombstone, a lease or a deletion newer than its snapshot, but a
-- constraint does: PostgreSQL then ends the statement with a serialization failure, and the
-- caller retries. A claim that comes later sees the slots.
create function gc._probe(urls text[], generations text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._lock_slots(array(select distinct gc._slot('url', u) from unnest(urls) as u));
    begin
        insert into gc.tombstones (collection, key, url, generation, due_at, worker)
        select distinct '', '', o.url, g.generation, 'infinity'::timestamptz, 'probe'
        from unnest(urls, generations) as o(url, generation)
        cross join lateral (values (o.generation), (null)) as g(generation)
        on conflict do nothing;
        insert into gc.deleted_objects (url)
        select distinct u from unnest(urls) as u
        on conflict do nothing;
        raise 'the probe is over' using errcode = 'ZG000';
    exception
        when sqlstate 'ZG000' then
            null;
    end;
end;
$$;

comment on function gc._probe(text[], text[]) is
    'Fails with 40001 if an object is being deleted and the snapshot is too old to see that.';


-- Whoever has announced the upload after the deletion writes the object again.
create function gc._require_undeleted(urls text[], generations text[])
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    deleted text;
begin
    select d.url into deleted
    from unnest(urls, generations) as o(url, generation)
    join gc.deleted_objects as d on d.url = o.url
        and coalesce(d.generation = o.generation, true)
    where d.deleted_at > now()
        and d.deleted_by is distinct from pg_current_xact_id_if_assigned()
        and not exists (
            select from gc.holds as h
            where h.url = o.url and h.reason = 'upload' and h.held_at > d.deleted_at
        )
    limit 1;
    if found then
        raise 'the object of this row was deleted while the transaction was running'
            using errcode = 'serialization_failure',
                detail = format('%s is gone, and the row may have been copied from one that '
                    'this transaction could still see.', deleted),
                hint = 'Try the transaction again.';
    end if;
end;
$$;

comment on function gc._require_undeleted(text[], text[]) is
    'Raises 40001 for objects that were deleted since the transaction began.';


-- One by one through the index, however many tombstones there are.
create function gc._tombstones_at(urls text[], generations text[])
    returns bigint[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
begin
    return array(
        select d.id
        from unnest(urls, generations) as o(url, generation)
        cross join lateral (
            select t.id from gc.tombstones as t
            where t.url = o.url and coalesce(t.generation = o.generation, true)
            offset 0
        ) as d
    );
end;
$$;

comment on function gc._tombstones_at(text[], text[]) is 'The tombstones of these objects.';


create function gc._refuse_leased(collection text, ids bigint[])
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    deleting gc.tombstones;
begin
    select t.* into deleting
    from gc.tombstones as t
    where t.id = any (ids) and t.worker is not null and t.due_at > clock_timestamp()
    limit 1;
    if found then
        raise 'the object of this row is being deleted'
            using errcode = 'ZG001',
                detail = format('%s is leased to a worker until %s.',
                    deleting.url, deleting.due_at),
                hint = format('Call gc.begin_upload(%L, …) for this row, write the object again, '
                    'and insert the row then.', collection);
    end if;
end;
$$;

comment on function gc._refuse_leased(text, bigint[]) is
    'Raises ZG001 if a worker has one of the tombstones under a lease.';


-- Waits for a claim that has one of them at this moment, and keeps later claims away until the
-- commit. Two inserts share the lock, so they never wait for each other. One that is gone then was
-- confirmed, or taken back by another insert.
create function gc._lock_tombstones(ids bigint[], urls text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    locked bigint[] := array(
        select t.id from gc.tombstones as t where t.id = any (ids) for key share
    );
begin
    if not locked @> ids
        and exists (select from gc.deleted_objects as d where d.url = any (urls))
    then
        raise 'the object of this row was deleted at this moment'
            using errcode = 'serialization_failure', hint = 'Try the transaction again.';
    end if;
end;
$$;

comment on function gc._lock_tombstones(bigint[], text[]) is
    'Locks tombstones; raises 40001 if one was confirmed meanwhile.';


-- A tombstone that is this row's own, because the key makes the url, goes at once. One that others
-- may share stays, locked: a claim drops it when it finds the row. Should the row go again before
-- that, the longest wait counts.
create function gc._admit(collection text, urls text[], generations text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    left_behind bigint[];
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform gc._probe(urls, generations);
    end if;
    perform gc._require_undeleted(urls, generations);
    left_behind := gc._tombstones_at(urls, generations);
    if cardinality(left_behind) = 0 then
        return;
    end if;
    perform gc._refuse_leased(collection, left_behind);
    perform gc._lock_tombstones(left_behind, urls);
    delete from gc.tombstones as t
    where t.id = any (left_behind) and t.wait_for = '0' and t.collection = _admit.collection
        and (t.worker is null or t.due_at <= clock_timestamp());
    perform gc._refuse_leased(collection, left_behind);
end;
$$;

comment on function gc._admit(text, text[], text[]) is
    'For rows that are inserted: their tombstones are not claimed; raises ZG001 for a claimed one.';


create unlogged table gc.reviewing (
    xid xid8 not null,
    collection text not null,
    event text not null
);

comment on table gc.reviewing is
    'Which event led to the review that deletes rows at this moment: a trigger asks.';
comment on column gc.reviewing.xid is 'The transaction of the review.';
comment on column gc.reviewing.collection is 'The collection.';
comment on column gc.reviewing.event is 'The event.';


-- What a trigger cannot work out, because the table has changed since its code was made, or because
-- an expression raises, it keeps whole. The next review works it out.
create table gc.unread_rows (
    id bigint generated always as identity
        constraint unread_rows_pkey primary key,
    collection text not null,
    content jsonb not null,
    relation oid not null,
    columns jsonb not null,
    left_at timestamptz not null default now(),
    due_at timestamptz not null default now(),
    failures integer not null default 0,
    last_error text
);
create index unread_rows_due_idx on gc.unread_rows (collection, due_at);

comment on table gc.unread_rows is
    'Rows that went, or changed, when nothing could be worked out about their object.';
comment on column gc.unread_rows.id is 'The order in which they were written.';
comment on column gc.unread_rows.collection is 'The collection of the row.';
comment on column gc.unread_rows.content is 'The whole row, by the names of its columns.';
comment on column gc.unread_rows.relation is 'The table, or the partition, that it was in.';
comment on column gc.unread_rows.columns is 'The numbers that its columns have there.';
comment on column gc.unread_rows.left_at is 'When it went.';
comment on column gc.unread_rows.due_at is 'When it is tried again.';
comment on column gc.unread_rows.failures is 'How often that failed.';
comment on column gc.unread_rows.last_error is 'Why it failed the last time.';


create function gc._column_numbers(relation oid)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_object_agg(a.attname, a.attnum) from pg_attribute as a
    where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
$$;

comment on function gc._column_numbers(oid) is 'The columns of a table with their numbers.';


-- A column that was renamed since has its number still. Where a name has another number than it
-- had, in a restored dump perhaps, numbers tell nothing, and names do if they are all there still.
create function gc._content_now(u gc.unread_rows)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when bool_and(coalesce(o.attnum = n.number, true))
            then jsonb_object_agg(
                coalesce(a.attname, e.key), e.value order by a.attname is null desc)
        when bool_or(o.attname is null and a.attname is not null) then '{}'
        else u.content end
    from jsonb_each(u.content) as e
    cross join lateral (select (u.columns ->> e.key)::smallint) as n(number)
    left join pg_attribute as o on o.attrelid = u.relation and o.attname = e.key
    left join pg_attribute as a on a.attrelid = u.relation and a.attnum = n.number
        and not a.attisdropped
$$;

comment on function gc._content_now(gc.unread_rows) is
    'A row that was kept whole, by the names that its columns have now.';


-- A snapshot that is older than the TRUNCATE does not show all rows that it takes away.
create function gc._require_followable(name text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'a TRUNCATE of the collection "%" cannot be followed in a % transaction', name,
            current_setting('transaction_isolation')
            using errcode = 'ZG004',
                detail = 'Rows that the transaction does not see would go without a trace.',
                hint = 'begin isolation level read committed;';
    end if;
end;
$$;

comment on function gc._require_followable(text) is
    'Raises ZG004 for a TRUNCATE outside READ COMMITTED.';


create function gc._keep_untracked(name text, relation regclass, trigger_name name)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    part regclass;
begin
    for part in
        select p.relid
        from pg_partition_tree(relation) as p
        where p.isleaf and p.relid <> relation and not exists (
            select from pg_trigger as t where t.tgrelid = p.relid and t.tgname = trigger_name
        )
    loop
        execute format('insert into gc.unread_rows (collection, content, relation, columns) '
            'select %L, to_jsonb(o), %L::regclass, gc._column_numbers(%L::regclass) '
            'from only %s as o', name, part, part, part);
    end loop;
end;
$$;

comment on function gc._keep_untracked(text, regclass, name) is
    'Keeps the rows of partitions whole that are about to be truncated and have no trigger yet.';


-- Null where there is none, or where an expression raises for this row; blind: the columns that it
-- needs are not there, and nothing can be said about any row.
create function gc._address(
    c gc.collections, content jsonb, out url text, out generation text, out blind boolean
)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set timezone_abbreviations = 'Default'
as $$
-- @plpgsql_check_options: security_warnings = off
begin
    execute format(
        'select (%s)::text, nullif((%s)::text, %L) from jsonb_populate_record(null::%s, $1) as %I',
        c.url, coalesce(c.generation, 'null'), '', c.target, gc._alias(c.target))
    into url, generation using content;
exception
    when syntax_error_or_access_rule_violation then
        blind := true;
    when others then
        perform gc._raise_if_passing(sqlstate, sqlerrm);
end;
$$;

comment on function gc._address(gc.collections, jsonb) is
    'The address of a row''s object, computed from what the table is now.';


-- A row is inserted into a table that has changed. What cannot be said of it while something is
-- being deleted, could be that very object: such leases are over in minutes, and nothing new is
-- handed out while a claim cannot look into the table.
create function gc._admit_changed(name text, contents jsonb[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    one jsonb;
    found_one record;
begin
    foreach one in array contents loop
        found_one := gc._address(c, one);
        if found_one.url is not null then
            perform gc._admit(name, array[found_one.url], array[found_one.generation]);
        elsif found_one.blind and exists (
            select from gc.tombstones as t
            where t.worker is not null and t.due_at > clock_timestamp()
        ) then
            raise 'it is not known whether the object of this row is being deleted'
                using errcode = 'ZG001',
                    detail = format('%s has changed, and its code does not fit it.', c.target),
                    hint = 'select * from gc.review(); makes it fit, or says why it cannot.';
        end if;
    end loop;
end;
$$;

comment on function gc._admit_changed(text, jsonb[]) is
    'gc._admit for rows of a table that is not what the code was made for.';


-- Everybody who could still see the row that went must have ended: snapshots are as old as their
-- backend_xmin, and a transaction between two statements, which has none, is given an hour.
create function gc._forget_deleted(batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    oldest integer := (
        select max(age(a.backend_xmin)) from pg_stat_activity as a
        where a.backend_xmin is not null and a.pid <> pg_backend_pid()
    );
begin
    delete from gc.deleted_objects as d
    where d.ctid = any (array(
        select o.ctid from gc.deleted_objects as o
        where o.deleted_at < now() - interval '1 hour' and age(o.xmin) > coalesce(oldest, -1)
        order by o.deleted_at
        limit 10::bigint * batch
        for update skip locked
    ));
end;
$$;

comment on function gc._forget_deleted(integer) is
    'Forgets objects that were deleted before every transaction that is running now.';
-- Uploads: say that an object is about to be written, before it is written.
--
-- An object is written outside the database, so no lock of the database covers it. A hold does: no
-- tombstone of the key or url is handed out until the upload ends or times out. The row's insert
-- takes the tombstone away for good; an upload that never becomes a row leaves it, and so its
-- object is collected after all. While the caller's transaction is open the hold cannot be seen by
-- others; a locked slot can. It is taken first; then, if there is a tombstone, claims that have it
-- are waited for: what they have leased is seen, and what begins later sees the slot.

create function gc._has_holds()
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (
        select from gc.holds as h where h.held_until > (select clock_timestamp())
    );
end;
$$;

comment on function gc._has_holds() is 'Whether anything is held at all.';


create function gc._is_held(collection text, key text, url text)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from gc.holds as h
        where h.collection = _is_held.collection and h.key = _is_held.key
            and h.held_until > clock_timestamp()
    ) or exists (
        select from gc.holds as h
        where h.url = _is_held.url and h.held_until > clock_timestamp()
    )
$$;

comment on function gc._is_held(text, text, text) is
    'Whether somebody uses the row or is writing its object.';


-- Whoever has a lock on a tombstone may be leasing it at this moment. It is waited for; the lock
-- that ends the wait goes with the subtransaction.
create function gc._await_claims(ids bigint[], wait interval)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '1ms'
as $$
begin
    perform set_config('lock_timeout',
        greatest(extract(epoch from wait) * 1000, 1)::integer || 'ms', true);
    perform from gc.tombstones as t where t.id = any (ids) order by t.id for share;
    raise 'the wait is over' using errcode = 'ZG000';
exception
    when sqlstate 'ZG000' then
        null;
    when lock_not_available then
        raise 'somebody is claiming the object, or takes it back, and has not committed'
            using errcode = 'ZG001',
                detail = format('Waited for %s.', wait),
                hint = 'Try again in a few seconds.';
end;
$$;

comment on function gc._await_claims(bigint[], interval) is
    'Waits until nobody has a lock on the tombstones; raises ZG001 when that takes too long.';


create function gc._url_of(c gc.collections, key text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    url text;
begin
    if c.url is not null and not c.shared then
        perform gc._require_own(c.name);
        execute format('select gc.%I($1)', gc._object_name(c.name, '_url')) into url using key;
    end if;
    return url;
end;
$$;

comment on function gc._url_of(gc.collections, text) is
    'The address that a key''s object has; null if the key alone does not tell.';


create function gc._tombstones_of(collection text, key text, urls text[])
    returns bigint[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
begin
    return array(
        select t.id from gc.tombstones as t
        where t.url = any (urls)
            or t.wait_for is distinct from '0' and t.key = _tombstones_of.key
                and t.collection = _tombstones_of.collection
    );
end;
$$;

comment on function gc._tombstones_of(text, text, text[]) is
    'The tombstones of a key''s objects, whatever address it had.';


create function gc._await_deletion(collection text, key text, urls text[], wait interval)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    give_up timestamptz := clock_timestamp() + wait;
    left_behind bigint[];
    leased_until timestamptz;
begin
    loop
        left_behind := gc._tombstones_of(collection, key, urls);
        exit when cardinality(left_behind) = 0;
        perform gc._await_claims(left_behind, give_up - clock_timestamp());
        select t.due_at into leased_until
        from gc.tombstones as t
        where t.id = any (left_behind) and t.worker is not null and t.due_at > clock_timestamp()
        limit 1;
        exit when not found;
        if clock_timestamp() >= give_up then
            raise 'the object is being deleted'
                using errcode = 'ZG001',
                    detail = format('It is leased to a worker until %s.', leased_until),
                    hint = format('Try again in a few seconds: select gc.begin_upload(%L, %L);',
                        collection, key);
        end if;
        perform pg_sleep(0.05);
    end loop;
end;
$$;

comment on function gc._await_deletion(text, text, text[], interval) is
    'Waits until no worker has the object under a lease; raises ZG001 when that takes too long.';


create function gc._require_own_url(c gc.collections, url text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not starts_with(url, c.url_prefix) then
        raise 'this is not the address of an object of "%"', c.name
            using errcode = 'invalid_parameter_value',
                detail = format('%s does not begin with %s.', url, c.url_prefix),
                hint = 'Leave the url out, or give the one that the row will have.';
    end if;
end;
$$;

comment on function gc._require_own_url(gc.collections, text) is
    'Raises for an address that no row of the collection can have.';


-- The object is written after this, so a crash must not take the hold away.
-- Order: the slots, the hold, and only then the tombstones. What has no tombstone yet, no claim
-- that runs can have leased; a later one sees the slots, or the hold.
create function gc._begin_upload(
    name text, key text, url text, wait interval, timeout interval, upload text
)
    returns timestamptz
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    canonical text := gc._canonical_key(c, key);
    own_url text := gc._url_of(c, canonical);
    object text := coalesce(url, own_url);
    until timestamptz := clock_timestamp()
        + coalesce(timeout, (select s.upload_timeout from gc.settings as s));
begin
    perform gc._require_read_committed('begin_upload');
    perform gc._require_positive('timeout', coalesce(timeout, '1 hour'));
    if wait is distinct from '0' then
        perform gc._require_positive('wait', wait);
    end if;

    perform gc._require_own_url(c, url);
    perform gc._commit_durably();
    perform gc._lock_slots(array_remove(
        array[gc._slot(c.name, canonical), gc._slot('url', object)], null));
    insert into gc.holds (collection, key, url, reason, upload, held_until)
    values (c.name, canonical, object, 'upload', upload, until);
    perform gc._await_deletion(c.name, canonical, array[object, own_url], wait);
    return until;
end;
$$;

comment on function gc._begin_upload(text, text, text, interval, interval, text) is
    'What gc.begin_upload does.';


-- Exactly the upload of that name; of those without one the oldest that nobody is ending: each of
-- them ends one hold, so the one that has timed out must not be left to the next.
create function gc._take_upload(collection text, key text, upload text)
    returns setof gc.holds
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if upload is not null then
        return query
            delete from gc.holds as h
            where h.collection = _take_upload.collection and h.key = _take_upload.key
                and h.reason = 'upload' and h.upload = _take_upload.upload
            returning h.*;
        return;
    end if;
    return query
        delete from gc.holds as h
        where h.id = (
            select o.id from gc.holds as o
            where o.collection = _take_upload.collection and o.key = _take_upload.key
                and o.reason = 'upload' and o.upload is null
            order by o.id
            limit 1
            for update skip locked
        )
        returning h.*;
end;
$$;

comment on function gc._take_upload(text, text, text) is
    'Deletes the hold of an upload, and returns it, whether it is in time or not.';


create function gc._end_upload(name text, key text, upload text)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    canonical text := gc._canonical_key(c, key);
    ended gc.holds;
begin
    select h.* into ended
    from gc._take_upload(c.name, canonical, upload) as h
    order by h.held_until desc
    limit 1;
    if not coalesce(ended.held_until > clock_timestamp(), false) then
        return false;
    end if;
    -- Some insert the row only after this: its tombstone waits as long as an upload may take.
    update gc.tombstones as t
    set due_at = greatest(t.due_at, clock_timestamp() + s.upload_timeout)
    from gc.settings as s
    where t.id = any (array(
        select o.id from gc.tombstones as o
        where o.worker is null and o.id = any (gc._tombstones_of(
            c.name, canonical, array[ended.url, gc._url_of(c, canonical)]))
        for update skip locked
    ));
    return true;
end;
$$;

comment on function gc._end_upload(text, text, text) is 'What gc.end_upload does.';


-- The right to announce an upload is that to call the collection's own function, which gc.track has
-- made: nobody can hold, or ask for, rows of a collection that is not theirs.
create function gc._own_function(name text, suffix text)
    returns regproc
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    own regproc := to_regproc(format('gc.%I', gc._object_name(coalesce(name, ''), suffix)));
begin
    if own is null or coalesce(name, '') = '' then
        raise 'there is no collection "%"', name
            using errcode = 'undefined_object',
                detail = 'Only gc.track makes one.',
                hint = 'select * from gc.track(''schema.table'');';
    elsif not has_function_privilege(own, 'execute') then
        raise '% may not announce uploads of "%"', current_user, name
            using errcode = 'insufficient_privilege',
                hint = format('select gc.grant_uploader(%L, array[%L]);', current_user, name);
    end if;
    return own;
end;
$$;

comment on function gc._own_function(text, text) is
    'The function that a collection has for its users; raises if the caller may not use it.';


create function gc.begin_upload(
    name text, key text, url text default null, wait interval default '5 seconds',
    timeout interval default null, upload text default null
)
    returns timestamptz
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    until timestamptz;
begin
    execute format('select %s($1, $2, $3, $4, $5)', gc._own_function(name, '_begin_upload'))
    into until using key, url, wait, timeout, upload;
    return until;
end;
$$;
revoke all on function gc.begin_upload(text, text, text, interval, interval, text) from public;

comment on function gc.begin_upload(text, text, text, interval, interval, text) is
    'Says that an object is about to be written. Waits for one that is being deleted. Returns when '
    'the hold ends by itself. Where rows share objects, tell the url too. Where several may upload '
    'one object at a time, give each upload a name.';


create function gc.end_upload(name text, key text, upload text default null)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    ended boolean;
begin
    execute format('select %s($1, $2)', gc._own_function(name, '_end_upload'))
    into ended using key, upload;
    return ended;
end;
$$;
revoke all on function gc.end_upload(text, text, text) from public;

comment on function gc.end_upload(text, text, text) is
    'Ends an upload of the key that gc.begin_upload announced: the one of that name, or the oldest '
    'without one. False if there is none, or if it has timed out.';


create function gc.keep_alive(name text, key text)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    alive boolean;
begin
    execute format('select %s($1)', gc._own_function(name, '_keep_alive')) into alive using key;
    return alive;
end;
$$;
revoke all on function gc.keep_alive(text, text) from public;

comment on function gc.keep_alive(text, text) is
    'Whether the row exists; if so, it is not collected for a while (gc.settings.keep_alive).';


create function gc._require_uploads(collection text, keys text[], urls text[])
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    missing text;
begin
    select o.key into missing
    from unnest(keys, urls) as o(key, url)
    where not gc._is_held(collection, o.key, o.url)
    limit 1;
    if found then
        raise 'the object of this row was not announced'
            using errcode = 'ZG002',
                detail = format('Row %s of "%s", and strict_uploads is on.', missing, collection),
                hint = format('select gc.begin_upload(%L, %L); before the object is written.',
                    collection, missing);
    end if;
end;
$$;

comment on function gc._require_uploads(text, text[], text[]) is
    'Raises ZG002 for a row that is inserted although nobody said that its object is written.';
-- Claims: which worker deletes which objects, and until when it may.
--
-- A lease is a promise both ways: until due_at nobody else is given the tombstone, and after it the
-- worker must not delete any more. A worker that lost its lease changes nothing here.
--
-- A claim looks at each tombstone once, at most a batch of them, and waits for nobody for long.
-- There is nothing to delete most of the time, and a plan that is made then would read the table
-- from end to end in busy times, as long as the session lasts: so what is here goes by indexes.

create function gc._require_worker(worker text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if worker is null or worker = '' then
        raise 'a worker must have a name'
            using errcode = 'invalid_parameter_value',
                detail = 'A lease belongs to the worker of that name.',
                hint = 'Use a name that no other runner has: host and process id, for example.';
    end if;
end;
$$;

comment on function gc._require_worker(text) is 'Raises for a worker without a name.';


-- A row that is deleted by a transaction that did not wait for the disk is back after a crash. The
-- commit of a claim comes after all that the claim has seen, so it makes that durable too.
create function gc._commit_durably()
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end;
$$;

comment on function gc._commit_durably() is
    'Makes this transaction wait for the disk when it commits, whatever the session says.';


-- Of all tombstones, by one step of the index for each store; or of the prefixes.
create function gc._stores(prefixes text[])
    returns setof text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with recursive present(store) as (
        select (select t.store from gc.tombstones as t order by t.store limit 1)
        where prefixes is null
        union all
        select (
            select t.store from gc.tombstones as t where t.store > p.store order by t.store limit 1
        )
        from present as p
        where p.store is not null
    )
    select p.store from present as p where p.store is not null
    union
    select gc._store(u) from unnest(prefixes) as u
$$;

comment on function gc._stores(text[]) is 'The stores in which something is to be deleted.';


-- With several collections, a row of another may have the url, unless their addresses differ from
-- the beginning.
create function gc._are_several()
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select
        from gc.collections as a
        join gc.collections as b on a.name < b.name
        where a.url is not null and b.url is not null
            and coalesce(starts_with(a.url_prefix, b.url_prefix)
                or starts_with(b.url_prefix, a.url_prefix), true)
    )
$$;

comment on function gc._are_several() is 'Whether rows of two collections may share an object.';


create function gc._oldest_other()
    returns xid8
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select running from pg_snapshot_xip(pg_current_snapshot()) as running order by running limit 1
$$;

comment on function gc._oldest_other() is
    'The oldest transaction that is running, apart from this one; null: there is none.';


create function gc._unsettled(
    stores text[], prefixes text[], several boolean, moment timestamptz, batch integer
)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select d.id
        from unnest(stores) as s
        cross join lateral (
            select t.id from gc.tombstones as t
            where t.store = s and t.wait_for is null and t.due_at <= moment
                and (prefixes is null or t.url ^@ any (prefixes))
            order by t.due_at
            limit batch
            for update skip locked
        ) as d
        limit batch
    ) || array(
        select d.id
        from unnest(stores) as s
        cross join lateral (
            select t.id from gc.tombstones as t
            where several and t.store = s and t.wait_for = '0' and t.due_at <= moment
                and (prefixes is null or t.url ^@ any (prefixes))
            order by t.due_at
            limit batch
            for update skip locked
        ) as d
        limit batch
    );
end;
$$;

comment on function gc._unsettled(text[], text[], boolean, timestamptz, integer) is
    'Locks tombstones that are due and of which it is not known for which transactions to wait.';


-- Whoever has a transaction id already may have inserted a row before the tombstone could be seen;
-- whoever gets one later sees it. A snapshot knows ids only up to the last that is over, so one is
-- made to be over: then xmax lies beyond all that were given out before.
create function gc._settle(
    stores text[], prefixes text[], several boolean, moment timestamptz, batch integer
)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    taken bigint[] := gc._unsettled(stores, prefixes, several, moment, batch);
    oldest xid8;
    newest xid8;
begin
    if cardinality(taken) = 0 then
        return;
    end if;
    begin
        perform from gc.locks as l where l.name = 'claim' for key share;
        raise 'a transaction id is over' using errcode = 'ZG000';
    exception
        when sqlstate 'ZG000' then
            null;
    end;
    select gc._oldest_other(), pg_snapshot_xmax(pg_current_snapshot()) into oldest, newest;
    update gc.tombstones as t
    set wait_for = case when oldest is null then '1' else newest end
    where t.id = any (taken);
end;
$$;

comment on function gc._settle(text[], text[], boolean, timestamptz, integer) is
    'Notes, for tombstones of objects that may be shared, which transactions a claim waits for.';


-- A wait_for beyond every snapshot of this server came with a dump from another: all of those
-- transactions have ended.
create function gc._end_waits(stores text[], prefixes text[], batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    newest xid8 := pg_snapshot_xmax(pg_current_snapshot());
    oldest xid8 := coalesce(gc._oldest_other(), newest);
begin
    update gc.tombstones as t
    set wait_for = '1'
    where t.id = any (array(
        select d.id
        from unnest(stores) as s
        cross join (values ('2'::xid8, oldest), (newest, '18446744073709551615')) as w(low, high)
        cross join lateral (
            select t.id from gc.tombstones as t
            where t.store = s and t.wait_for >= w.low and t.wait_for <= w.high
                and (t.wait_for <= oldest or t.wait_for > newest)
                and (prefixes is null or t.url ^@ any (prefixes))
            order by t.wait_for
            limit batch
            for update skip locked
        ) as d
        limit batch
    ));
end;
$$;

comment on function gc._end_waits(text[], text[], integer) is
    'Notes, for tombstones whose transactions have all ended, that nothing is waited for any more.';


-- The store that has waited longest comes first.
create function gc._take(
    stores text[], prefixes text[], several boolean, moment timestamptz, batch integer
)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select d.id
        from (
            select s, r, (
                    select t.due_at from gc.tombstones as t
                    where t.store = s and t.wait_for = r
                    order by t.due_at
                    limit 1
                ) as first
            from unnest(stores) as s
            cross join unnest(case when several then '{1}' else '{0,1}' end::xid8[]) as r
            order by 3
        ) as g
        cross join lateral (
            select t.id from gc.tombstones as t
            where t.store = g.s and t.wait_for = g.r and t.due_at <= moment
                and (prefixes is null or t.url ^@ any (prefixes))
            order by t.due_at
            limit batch
            for update skip locked
        ) as d
        where g.first <= moment
        limit batch
    );
end;
$$;

comment on function gc._take(text[], text[], boolean, timestamptz, integer) is
    'Locks tombstones that can be handed out; what another session holds is left to it.';


-- Several tombstones of one object are one deletion: one that waits longer stands for all, or one
-- that was leased, or the first.
create function gc._drop_duplicates(taken bigint[], moment timestamptz)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    delete from gc.tombstones as t
    where t.id = any (taken)
        and exists (
            select from gc.tombstones as o
            where o.url = t.url and coalesce(o.generation, '') = coalesce(t.generation, '')
                and o.id <> t.id
                and (
                    o.due_at > moment
                    or o.worker is not null and t.worker is null
                    or (o.worker is null) = (t.worker is null) and o.id < t.id
                )
        );
end;
$$;

comment on function gc._drop_duplicates(bigint[], timestamptz) is
    'Drops tombstones whose object another tombstone stands for.';


-- What cannot be handed out now steps back for a moment and lets others through.
create function gc._step_back(ids bigint[], why text)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    update gc.tombstones as t
    set worker = null, due_at = clock_timestamp() + interval '1 second', held_up = why
    where t.id = any (ids)
$$;

comment on function gc._step_back(bigint[], text) is
    'Puts tombstones off for a moment, and notes why.';


create function gc._held(ids bigint[])
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not gc._has_holds() then
        return array[]::bigint[];
    end if;
    return array(
        select t.id from gc.tombstones as t
        where t.id = any (ids) and gc._is_held(t.collection, t.key, t.url)
    );
end;
$$;

comment on function gc._held(bigint[]) is 'Those of the tombstones whose key or url is held.';


-- Another session may be leasing the same object by another tombstone, and may take its time.
create function gc._lease_one(worker text, one bigint, until timestamptz)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '10ms'
as $$
begin
    update gc.tombstones as t
    set worker = _lease_one.worker, due_at = until, held_up = null
    where t.id = one;
    return true;
exception
    when exclusion_violation or lock_not_available then
        perform gc._step_back(array[one], 'another worker has the object');
        return false;
end;
$$;

comment on function gc._lease_one(text, bigint, timestamptz) is
    'Gives a tombstone to a worker, unless another has the object.';


-- Two of one object that two sessions lease at one time: the second waits for the first, and is
-- refused by the constraint. Then they are leased one by one.
create function gc._lease(worker text, ids bigint[], until timestamptz)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    begin
        update gc.tombstones as t
        set worker = _lease.worker, due_at = until, held_up = null
        where t.id = any (ids);
        return ids;
    exception
        when exclusion_violation or lock_not_available then
            null;
    end;
    return array(select u from unnest(ids) as u where gc._lease_one(worker, u, until));
end;
$$;

comment on function gc._lease(text, bigint[], timestamptz) is
    'Gives tombstones to a worker; returns which.';


create function gc._per_url(urls text[], generations text[])
    returns table (url text, generation text)
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select o.url, case when count(*) = 1 then min(o.generation) end
    from unnest(urls, generations) as o(url, generation)
    group by o.url
$$;

comment on function gc._per_url(text[], text[]) is
    'Each address with the version of its object; null: any, for there are several.';


-- One row for each url, and where it had another version before, any. In the order of the urls, so
-- that two sessions wait for each other in one direction only; the second round is for what another
-- session has put there meanwhile.
create function gc._remember(urls text[], generations text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    to_do integer := (select count(*) from gc._per_url(urls, generations));
    step integer;
begin
    for attempt in 1 .. 2 loop
        perform from gc.deleted_objects as d where d.url = any (urls) order by d.url for update;
        update gc.deleted_objects as d
        set generation = case when d.generation = o.generation then d.generation end,
            deleted_at = clock_timestamp(), deleted_by = pg_current_xact_id()
        from gc._per_url(urls, generations) as o
        where d.url = o.url and (attempt = 1 or d.deleted_by <> pg_current_xact_id());
        get diagnostics step = row_count;
        to_do := to_do - step;
        exit when to_do = 0;
        insert into gc.deleted_objects (url, generation)
        select o.url, o.generation from gc._per_url(urls, generations) as o order by o.url
        on conflict do nothing;
        get diagnostics step = row_count;
        to_do := to_do - step;
        exit when to_do = 0;
    end loop;
end;
$$;

comment on function gc._remember(text[], text[]) is
    'Notes that these objects are gone, or that these versions are about to go.';


-- A lock in a subtransaction that is undone tells that nobody else has one. Two claims that ask at
-- one time may see each other, for a moment.
create function gc._free_slots(slots integer[])
    returns integer[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    free integer[];
begin
    for attempt in 1 .. 5 loop
        begin
            free := array(
                select s.slot from gc.upload_slots as s where s.slot = any (slots)
                for update skip locked
            );
            raise 'the look is over' using errcode = 'ZG000';
        exception
            when sqlstate 'ZG000' then
                null;
        end;
        exit when cardinality(free) = cardinality(slots);
        perform pg_sleep(0.002);
    end loop;
    return free;
end;
$$;

comment on function gc._free_slots(integer[]) is 'Those of the slots in which nothing is written.';


-- An upload that has not committed yet shows only in its slots, one that has only in its hold: so
-- first the slots are looked at, then, with a new snapshot, the holds. Whoever locks a slot has
-- locked gc.holds before, which only our own functions can do: without that, no slot is locked.
create function gc._return_uploads(leased bigint[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    free integer[];
begin
    if exists (
        select from pg_locks as l
        where l.locktype = 'relation' and l.mode = 'RowExclusiveLock'
            and l.relation = 'gc.holds'::regclass and l.pid is distinct from pg_backend_pid()
            and l.database = (
                select d.oid from pg_database as d where d.datname = current_database()
            )
    ) then
        free := gc._free_slots(array(
            select distinct u
            from gc.tombstones as t
            cross join lateral (
                values (gc._slot(t.collection, t.key)), (gc._slot('url', t.url))
            ) as s(u)
            where t.id = any (leased)
        ));
        perform gc._step_back(array_agg(t.id), 'somebody has begun to upload it')
        from gc.tombstones as t
        where t.id = any (leased)
            and not array[gc._slot(t.collection, t.key), gc._slot('url', t.url)] <@ free;
    end if;
    perform gc._step_back(gc._held(leased), 'somebody has announced its upload, or uses its row');
end;
$$;

comment on function gc._return_uploads(bigint[]) is
    'Gives back what somebody has begun to upload.';


-- The last of the rows that have the url leaves a tombstone of its own, so this one can go. Every
-- collection is asked: two tables may name one object. One that has no index on it is read whole.
create function gc._is_used(ids bigint[], by_url boolean)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = on
as $$
declare
    used bigint[] := array[]::bigint[];
    found_here bigint[];
    name text;
begin
    for name in
        select c.name from gc.collections as c where c.url is not null
    loop
        perform gc._require_own(name);
        execute format('select array(select gc.%I($1, $2))', gc._object_name(name, '_used'))
        into found_here using ids, by_url;
        used := used || found_here;
    end loop;
    return used;
end;
$$;

comment on function gc._is_used(bigint[], boolean) is
    'Which of the tombstones have an object that a live row has too; by_url: without their keys.';


-- A key that cannot be read is from a time when the table had another key.
create function gc._is_one_used(one bigint)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return gc._is_used(array[one], false);
exception
    when data_exception then
        return gc._is_used(array[one], true);
end;
$$;

comment on function gc._is_one_used(bigint) is
    'gc._is_used for a tombstone by itself, whatever its key is.';


-- gc.track was called again without a url: by mistake perhaps.
create function gc._without_url(ids bigint[])
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from gc.collections as c where c.url is null) then
        return array[]::bigint[];
    end if;
    return array(
        select t.id from gc.tombstones as t
        where t.id = any (ids)
            and t.collection in (select c.name from gc.collections as c where c.url is null)
    );
end;
$$;

comment on function gc._without_url(bigint[]) is
    'Those of the tombstones whose collection has no url any more, so that no row can be found.';


-- Where that cannot be found out, because a column is gone perhaps, nothing is handed out: the
-- tombstones are asked for one by one, so that a bad one holds up only itself. A table that
-- somebody has locked is not waited for again and again.
create function gc._drop_used(leased bigint[], until timestamptz)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    used bigint[];
    one bigint;
begin
    begin
        used := gc._is_used(leased, false);
        delete from gc.tombstones as t where t.id = any (used);
        return;
    exception
        when lock_not_available then
            perform gc._step_back(leased, sqlerrm);
            return;
        when others then
            null;
    end;
    foreach one in array leased loop
        if clock_timestamp() > until then
            perform gc._step_back(array[one], 'there was no time to look for rows that have it');
            continue;
        end if;
        begin
            used := gc._is_one_used(one);
            delete from gc.tombstones as t where t.id = any (used);
        exception
            when others then
                update gc.tombstones as t
                set worker = null, due_at = clock_timestamp() + gc._backoff(t.failures),
                    failures = t.failures + 1, last_error = sqlerrm
                where t.id = one;
        end;
    end loop;
end;
$$;

comment on function gc._drop_used(bigint[], timestamptz) is
    'Drops tombstones whose object a live row has.';


create function gc.claim(
    worker text, batch integer default 1000, lease interval default '5 minutes',
    prefixes text[] default null
)
    returns table (
        id bigint, collection text, key text, label text, url text, generation text, size bigint,
        leased_until timestamptz
    )
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '2s'
as $$
declare
    moment timestamptz := clock_timestamp();
    stores text[] := array(select gc._stores(prefixes));
    several boolean := gc._are_several();
    taken bigint[];
begin
    perform gc._require_read_committed('claim');
    perform gc._require_worker(worker);
    perform gc._require_batch(batch);
    perform gc._require_positive('lease', lease);

    perform gc._commit_durably();
    perform gc._limit_lock_waits();
    perform gc._settle(stores, prefixes, several, moment, batch);
    perform gc._end_waits(stores, prefixes, batch);
    taken := gc._take(stores, prefixes, several, moment, batch);
    if cardinality(taken) = 0 then
        return;
    end if;
    perform gc._drop_duplicates(taken, moment);
    taken := gc._lease(worker, taken, clock_timestamp() + lease);
    perform gc._remember(array_agg(t.url), array_agg(t.generation))
    from gc.tombstones as t
    where t.id = any (taken) and t.generation is not null
    having count(*) > 0;
    perform gc._return_uploads(taken);
    perform gc._step_back(gc._without_url(taken), 'its collection has no url any more');
    perform gc._drop_used(taken, moment + (select s.statement_timeout from gc.settings as s));
    return query
        select t.id, t.collection, t.key, t.label, t.url, t.generation, t.size, t.due_at
        from gc.tombstones as t
        where t.id = any (taken) and t.worker = claim.worker
        order by t.id;
end;
$$;
revoke all on function gc.claim(text, integer, interval, text[]) from public;

comment on function gc.claim(text, integer, interval, text[]) is
    'Leases tombstones that are due to a worker, who then deletes their objects and confirms. With '
    'prefixes, each of which ends with a slash, only those whose url begins with one of them.';


-- Not an error, because the rest of the batch is good: the caller learns it from the count.
create function gc._warn_unleased(worker text, wanted integer, changed integer)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if changed < wanted then
        raise warning '% of % tombstones are not leased to "%"', wanted - changed, wanted, worker
            using errcode = 'object_not_in_prerequisite_state',
                detail = 'Their lease is over, or another worker has them, or they never were.',
                hint = 'Claim again: what is left will be handed out.';
    end if;
    return changed;
end;
$$;

comment on function gc._warn_unleased(text, integer, integer) is
    'Returns how many were changed, with a warning if that is less than was wanted.';


create function gc.confirm(worker text, ids bigint[])
    returns integer
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    changed integer;
    urls text[];
    generations text[];
begin
    perform gc._require_worker(worker);
    with gone as (
        delete from gc.tombstones as t
        where t.id = any (ids) and t.worker = confirm.worker and t.due_at > clock_timestamp()
        returning t.*
    ),
    logged as (
        insert into gc.deletion_log (
            collection, key, label, url, generation, size, event, row_deleted_at, worker
        )
        select g.collection, g.key, g.label, g.url, g.generation, g.size, g.event, g.created_at,
            g.worker
        from gone as g
    ),
    totalled as (
        insert into gc.totals (collection, objects, bytes)
        select g.collection, count(*), coalesce(sum(g.size), 0)
        from gone as g
        group by g.collection
    )
    select count(*), array_agg(g.url), array_agg(g.generation) into changed, urls, generations
    from gone as g;
    perform gc._remember(urls, generations) where changed > 0;
    return gc._warn_unleased(worker, (select count(distinct i) from unnest(ids) as i)::integer,
        changed);
end;
$$;
revoke all on function gc.confirm(text, bigint[]) from public;

comment on function gc.confirm(text, bigint[]) is
    'Says that the objects are gone. Returns how many of the tombstones were the worker''s.';


create function gc.fail(worker text, ids bigint[], error text)
    returns integer
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    changed integer;
begin
    perform gc._require_worker(worker);
    update gc.tombstones as t
    set worker = null,
        due_at = clock_timestamp() + gc._backoff(t.failures),
        failures = t.failures + 1,
        last_error = coalesce(error, 'no reason was given')
    where t.id = any (ids) and t.worker = fail.worker and t.due_at > clock_timestamp();
    get diagnostics changed = row_count;
    return gc._warn_unleased(worker, (select count(distinct i) from unnest(ids) as i)::integer,
        changed);
end;
$$;
revoke all on function gc.fail(text, bigint[], text) from public;

comment on function gc.fail(text, bigint[], text) is
    'Says that the objects could not be deleted, and why: they are due again after a backoff.';


create function gc.release(worker text, ids bigint[])
    returns integer
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    changed integer;
begin
    perform gc._require_worker(worker);
    update gc.tombstones as t
    set worker = null, due_at = clock_timestamp()
    where t.id = any (ids) and t.worker = release.worker and t.due_at > clock_timestamp();
    get diagnostics changed = row_count;
    return gc._warn_unleased(worker, (select count(distinct i) from unnest(ids) as i)::integer,
        changed);
end;
$$;
revoke all on function gc.release(text, bigint[]) from public;

comment on function gc.release(text, bigint[]) is
    'Gives back what the worker has not begun to delete: it is due again at once.';
-- The shape of a collection: its definition, and what the catalog says about its table, read once.
--
-- Templates are text over a shape and nothing else: whatever they need to know of the catalog is
-- here. It is made anew for each generation, and kept nowhere.

create type gc._link as (
    relation regclass, links name, columns name[], link_columns name[], types text[],
    operators text[]
);

comment on type gc._link is
    'A partitioned table that refers to a collection: its partition key, and that in its links.';


create type gc._shape as (
    name text, target regclass, alias text, url text, size text, label text, generation text,
    condition text,
    events jsonb, undo interval, columns name[], shared boolean, proof oid, url_index boolean,
    url_prefix text, object_columns name[], is_plain boolean, key gc._key_columns,
    refs gc._reference[], links gc._link[], words jsonb
);

comment on type gc._shape is
    'A collection as templates see it: definition, key, references, links, and words.';


-- What a table is called in the names of functions: without its schema while that is enough. The
-- collections a and a_b could make one name with two tables, b_c and c.
create function gc._short_name(c gc._shape, relation regclass)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when exists (
            select from unnest(c.refs) as r
            join pg_class as o on o.oid = r.referencing
            where o.relname = t.relname and o.oid <> t.oid
        ) or exists (
            select from gc.collections as o
            where starts_with(o.name, c.name || '_') or starts_with(c.name, o.name || '_')
        ) then format('%s_%s_%s', n.nspname, t.relname, substr(md5(relation::text), 1, 6))
        else t.relname
    end
    from pg_class as t
    join pg_namespace as n on n.oid = t.relnamespace
    where t.oid = relation
$$;

comment on function gc._short_name(gc._shape, regclass) is
    'A referring table''s name, with more than that only where it would not be enough.';


create function gc._links(c gc._shape)
    returns setof gc._link
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select l.relation, gc._object_name(c.name, format('_%s_links', l.short_name)), p.columns,
        array(
            select case
                when gc._object_name('in_', u.name) = any ((c.key).queue_names)
                    then gc._object_name('in_partition_', u.name)
                else gc._object_name('in_', u.name)
            end
            from unnest(p.columns) with ordinality as u(name, n) order by u.n
        ),
        p.types, p.operators
    from (
        select distinct r.referencing, gc._short_name(c, r.referencing)
        from unnest(c.refs) as r
        where r.linked
    ) as l(relation, short_name)
    cross join lateral gc._partition_key(l.relation) as p
$$;

comment on function gc._links(gc._shape) is
    'The tables that refer to a collection from partitions, and what their links are called.';


-- As PostgreSQL writes an expression down, it means the same under every setting of a session: all
-- names are in full, and a text with a backslash says so.
create function gc._as_written(target regclass, what text, expression text)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    parsed regclass;
    written text;
begin
    if expression is null then
        return null;
    end if;
    parsed := gc._parse_expression(target, what, expression);
    written := substring(
        pg_get_viewdef(parsed) from '^\s*SELECT (.*) AS value\n   FROM [^\n]*$');
    drop view gc._expression;
    return written;
end;
$$;

comment on function gc._as_written(regclass, text, text) is
    'The expression as PostgreSQL prints it.';


-- PostgreSQL calls the table something else where its own name means another thing in a view.
create function gc._written_alias(target regclass)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    parsed regclass := gc._parse_expression(target, 'name', 'true');
    written text := substring(pg_get_viewdef(parsed) from '\n   FROM ([^\n]*);$');
begin
    drop view gc._expression;
    return coalesce(nullif(substr(written, length(target::text) + 2), ''),
        quote_ident(gc._alias(target)));
end;
$$;

comment on function gc._written_alias(regclass) is
    'What the table is called in expressions as PostgreSQL prints them.';


-- Columns, text and concatenation: nothing in it can raise.
create function gc._is_plain(s gc._shape)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select not exists (
        select from unnest(array[s.url, s.size, s.label, s.generation]) as e(written)
        where regexp_replace(e.written, $re$'([^'\\]|'')*'|"([^"]|"")*"$re$
            || $re$|\mencode\([\w.]+, '(hex|base64)'::text\)$re$
            || $re$|\m[a-z_][a-z0-9_$]*\M(?!\()|::text\M|\|\||[().\s]$re$, '', 'g') <> ''
    ) and not exists (
        select from pg_attribute as a
        where a.attrelid = s.target and a.attname = any (s.columns)
            and a.atttypid <> all (array[
                'int2', 'int4', 'int8', 'text', 'varchar', 'uuid', 'bool', 'bytea'
            ]::regtype[])
    )
$$;

comment on function gc._is_plain(gc._shape) is
    'Whether the expressions about an object can be computed for every row.';


create function gc._object_columns(c gc.collections)
    returns name[]
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select array(
        select distinct u
        from gc._expressions(c) as e
        cross join lateral unnest(gc._check_expression(
            c.target, e.what, e.expression, e.categories, e.wanted)) as u
        where e.what in ('url', 'generation')
        order by 1
    )
$$;

comment on function gc._object_columns(gc.collections) is
    'The columns that tell which object, and which version of it, a row has.';


create function gc._read_shape(c gc.collections)
    returns gc._shape
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select (
        c.name, c.target, gc._written_alias(c.target), gc._as_written(c.target, 'url', c.url),
        gc._as_written(c.target, 'size', c.size), gc._as_written(c.target, 'label', c.label),
        gc._as_written(c.target, 'generation', c.generation),
        gc._as_written(c.target, 'condition', c.condition), c.events, c.undo, c.columns, c.shared,
        c.proof, c.url is not null and gc._has_url_index(c), c.url_prefix,
        gc._object_columns(c), null, gc._key(c.target),
        array(select r from gc._references(c) as r), null, null
    )::gc._shape
$$;

comment on function gc._read_shape(gc.collections) is
    'The shape of a collection, as far as the catalog tells it.';


create function gc._complete_shape(s gc._shape, is_plain boolean, links gc._link[], words jsonb)
    returns gc._shape
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select (
        s.name, s.target, s.alias, s.url, s.size, s.label, s.generation, s.condition, s.events,
        s.undo, s.columns, s.shared, s.proof, s.url_index, s.url_prefix,
        s.object_columns, _complete_shape.is_plain, s.key, s.refs, _complete_shape.links,
        _complete_shape.words
    )::gc._shape
$$;

comment on function gc._complete_shape(gc._shape, boolean, gc._link[], jsonb) is
    'A shape with what can be told from the rest of it.';


create function gc._shape(c gc.collections)
    returns gc._shape
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    s gc._shape := gc._read_shape(c);
begin
    s := gc._complete_shape(s, gc._is_plain(s), array(select l from gc._links(s) as l), null);
    return gc._complete_shape(s, s.is_plain, s.links, gc._words(s));
end;
$$;

comment on function gc._shape(gc.collections) is
    'Reads the catalog for a collection, once.';
-- Templates: the code that is generated for a collection.
--
-- A template reads like the statement that it makes; {words} stand for what differs. What it makes
-- is ordinary SQL that \sf shows. Aliases: q an entry of the review queue, t a row of the
-- collection, r a row that refers to it, d a tombstone; the table's own name for expressions.
-- A function that takes more than one statement calls its variables this.…, because a column of
-- the user's tables may have any name.

-- One pass, so that a value is never searched for words. A word alone on its line takes the line's
-- indentation for all its lines, and takes the line away with it when it is empty.
create function gc._render(template text, words jsonb)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select ltrim(string_agg(
        case
            when m[2] is null then m[3]
            when m[1] is not null and words ->> m[2] = '' then ''
            else coalesce(m[1], '') || replace(words ->> m[2], E'\n', coalesce(m[1], E'\n'))
        end,
        '' order by n), E'\n')
    from regexp_matches(
        template, '(\n *)?\{(\w+)\}|([^{\n]+|\n|\{)', 'g'
    ) with ordinality as r(m, n)
$$;

comment on function gc._render(text, jsonb) is 'A template with its words filled in.';


-- Templates indent what they are given line by line; a line break in a name must stay what it is.
create function gc._inline(value text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select replace(value, E'\n', chr(1)) $$;

comment on function gc._inline(text) is
    'A text whose line breaks are not a template''s: gc._run puts them back.';


create function gc._listed(names name[], prefix text default '')
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select gc._inline(gc._idents(names, prefix)) $$;

comment on function gc._listed(name[], text) is 'Names as a list for a template.';


create function gc._pair(
    left_names name[], left_alias text, right_names name[], right_alias text, operators text[]
)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        gc._inline(format(
            case
                when u.operator like '%\%1$s%' then u.operator
                else '%1$s ' || u.operator || ' %2$s'
            end,
            format('%s.%I', left_alias, u.l), format('%s.%I', right_alias, u.r))),
        ' and ' order by u.n)
    from unnest(left_names, right_names, operators) with ordinality as u(l, r, operator, n)
$$;

comment on function gc._pair(name[], text, name[], text, text[]) is
    'The condition that two rows agree in some columns.';


-- With the hashes, so that the index on a queue or on links is used: see gc._index_columns.
create function gc._entry_pair(
    k gc._key_columns, left_alias text, right_names name[], right_alias text, operators text[]
)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select concat_ws(' and ',
        string_agg(gc._inline(format(u.hash, format('%s.%I', left_alias, u.l)) || ' = '
            || format(u.hash, format('%s.%I', right_alias, u.r))), ' and ' order by u.n)
            filter (where u.hash is not null),
        gc._pair(k.queue_names, left_alias, right_names, right_alias, operators))
    from unnest(k.queue_names, right_names, k.hashes) with ordinality as u(l, r, hash, n)
$$;

comment on function gc._entry_pair(gc._key_columns, text, name[], text, text[]) is
    'The condition that an entry of a queue, or a link, is for the key of another row.';


create function gc._text_of(names name[], alias text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when cardinality(names) = 1 then gc._inline(format('%s.%I::text', alias, names[1]))
        else format('row(%s)::text', gc._listed(names, alias || '.'))
    end
$$;

comment on function gc._text_of(name[], text) is
    'The expression for a key as text: the value, or a row where there are several columns.';


-- What EST means is a setting as well. PostgreSQL reads a file each time it is set, which takes
-- longer than a small trigger does: so it is no entry point's, but stands where an expression is
-- read or may turn a text into a time.
create function gc._zone_settings()
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select 'set timezone_abbreviations = ''Default'''::text $$;

comment on function gc._zone_settings() is
    'The setting under which names of time zones mean the same.';


-- A cast of a literal was done when it was written down.
create function gc._may_read_times(c gc._shape)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from unnest(array[c.url, c.size, c.label, c.generation]) as e(written)
        where regexp_replace(e.written, $re$'([^']|'')*'(::[a-z ]+)?$re$
            || $re$|::(text|character varying|smallint|integer|bigint|numeric)\M$re$
            || $re$|::(boolean|uuid|bytea)\M$re$, '', 'g') ~ '::|to_timestamp'
    )
$$;

comment on function gc._may_read_times(gc._shape) is
    'Whether an expression about an object may read a time from a text.';


-- How values are printed must not depend on who happens to delete a row.
create function gc._print_settings(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select concat_ws(E'\n', case when not c.is_plain then gc._pinned_sql()
            else string_agg(distinct s.line, E'\n' order by s.line) end,
        case when gc._may_read_times(c) then gc._zone_settings() end)
    from pg_attribute as a
    join pg_type as t on t.oid = a.atttypid
    join (values
        ('bytea', 'set bytea_output = ''hex'''),
        ('D', 'set datestyle = ''ISO'''), ('D', 'set timezone = ''UTC'''),
        ('T', 'set intervalstyle = ''postgres'''),
        ('float', 'set extra_float_digits = 1')
    ) as s(kind, line)
        on s.kind in (t.typname, t.typcategory::text)
            or (s.kind = 'float' and t.typname in ('float4', 'float8'))
            or t.typcategory not in ('B', 'D', 'E', 'I', 'N', 'S', 'T', 'U')
    where a.attrelid = c.target and a.attname = any (c.columns)
$$;

comment on function gc._print_settings(gc._shape) is
    'The settings under which the columns that are used print in one way only.';


-- A plan is kept as long as the session lasts, and it may be made while a table is empty. Whatever
-- PostgreSQL is told to avoid looks so dear to it that it would also compile it.
create function gc._index_settings()
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select E'set enable_seqscan = off\nset jit = off' $$;

comment on function gc._index_settings() is
    'The settings under which a plan goes by indexes, however small the tables are.';


create function gc._not_itself(c gc._shape, r gc._reference, alias text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when r.itself then
            format(' and not (%s)', gc._pair(k.names, 'r', k.queue_names, alias, k.operators))
        else ''
    end
    from (select (c.key).*) as k
$$;

comment on function gc._not_itself(gc._shape, gc._reference, text) is
    'The condition that a referring row is not the target itself; empty where it cannot be.';


create function gc._key_pair(r gc._reference)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._pair(
        r.columns, 'r', array(select gc._queue_column(u) from unnest(r.targets) as u), 'q',
        r.operators)
$$;

comment on function gc._key_pair(gc._reference) is
    'The condition that a row r of a reference to the key points at the queue entry q.';


-- A condition on the queue entry q: a row of this reference points at its key. A row of the
-- collection that refers to itself does not keep itself.
create function gc._refers_sql(c gc._shape, r gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        case
            when r.to_key
                then 'exists (select from {referencing} as r where {r_is_q}{not_itself})'
            else 'exists (select from {target} as t join {referencing} as r on {t_is_r} '
                'where {t_is_q}{not_itself})'
        end,
        jsonb_build_object(
            'target', gc._inline(c.target::text), 'referencing', gc._inline(r.referencing::text),
            'r_is_q', gc._key_pair(r),
            't_is_r', gc._pair(r.targets, 't', r.columns, 'r', r.operators),
            't_is_q', gc._pair(k.names, 't', k.queue_names, 'q', k.operators),
            'not_itself', gc._not_itself(c, r, 'q')))
    from (select (c.key).*) as k
$$;

comment on function gc._refers_sql(gc._shape, gc._reference) is
    'The condition that a row of this reference points at the key of the queue entry q.';


create function gc._excused_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._inline(format(
        'exists (select from %s as %s where %s and (%s) is not true)',
        c.target, c.alias,
        gc._pair(k.names, c.alias, k.queue_names, 'q', k.operators),
        c.condition))
    from (select (c.key).*) as k
    where c.condition is not null
$$;

comment on function gc._excused_sql(gc._shape) is
    'The condition that the target of the queue entry q does not meet the collection''s condition.';


create function gc._referred_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(gc._refers_sql(c, r), E'\nor ')
    from unnest(c.refs) as r
    where r.owned is null
$$;

comment on function gc._referred_sql(gc._shape) is
    'The condition that any reference keeps the key of the queue entry q; null: there is none.';


-- Why a row is no garbage, in full: asked after the lock. Before it, links may answer for some of
-- it: see gc._plainly_kept_sql.
create function gc._kept_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(
        nullif(concat_ws(E'\nor ', gc._referred_sql(c), gc._excused_sql(c)), ''), 'false')
$$;

comment on function gc._kept_sql(gc._shape) is
    'The condition that something keeps the key of the queue entry q.';


create function gc._text_sql(expression text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select coalesce(gc._inline('(' || expression || ')::text'), 'null::text') $$;

comment on function gc._text_sql(text) is 'An expression as text; null where there is none.';


-- A store tells A from a, whatever the collation of a column says.
create function gc._collated_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.url || concat(c.generation) ~* '\mcollate\M' or exists (
        select from pg_attribute as a
        join pg_collation as o on o.oid = a.attcollation and o.collname <> 'default'
        where a.attrelid = c.target and a.attname = any (c.columns)
    ) then ' collate pg_catalog."default"' else '' end
$$;

comment on function gc._collated_sql(gc._shape) is
    'What makes a url be compared byte for byte; empty where it is anyway.';


-- A number that is no size, over a pebibyte or not a number at all, must not fail a statement, nor
-- a sum.
create function gc._size_sql(c gc._shape)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select format(
        'case when (%1$s)::numeric between 0 and 1125899906842624 then (%1$s)::bigint end', c.size)
    where c.size is not null
$$;

comment on function gc._size_sql(gc._shape) is 'The expression for an object''s size.';


-- No two rows have one url because no two rows have one key, and perhaps because of a CHECK. A plan
-- ends when one of the constraints goes.
create function gc._proved_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format('gc._has_check(%s)', k.oid), ' and ' order by k.oid)
    from pg_constraint as k
    where k.conrelid = c.target and (k.contype = 'p' or k.oid = c.proof)
$$;

comment on function gc._proved_sql(gc._shape) is
    'The condition that what makes a url a row''s own is still there.';


create function gc._words(c gc._shape)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object(
        'name', gc._inline(quote_literal(c.name)),
        'target', gc._inline(c.target::text),
        'table', gc._inline(quote_literal(c.target)),
        'alias', gc._inline(c.alias),
        'queue', gc._inline(format('gc.%I', gc._object_name(c.name, '_review_queue'))),
        'keys', gc._listed(k.names),
        't_keys', gc._listed(k.names, 't.'),
        'queue_keys', gc._listed(k.queue_names),
        'q_keys', gc._listed(k.queue_names, 'q.'),
        't_is_q', gc._pair(k.names, 't', k.queue_names, 'q', k.operators),
        'later_is_q', gc._entry_pair(c.key, 'later', k.queue_names, 'q', k.operators),
        'key_text', gc._text_of(k.names, c.alias),
        'q_key_text', gc._text_of(k.queue_names, 'q'),
        't_key_text', gc._text_of(k.names, 't'),
        'url', gc._text_sql(c.url) || u.collated, 'label', gc._text_sql(c.label),
        -- The first finds it by an index, the second compares.
        'same_url', concat_ws(' and ', gc._text_sql(c.url) || ' = d.url',
            case when u.collated <> '' then gc._text_sql(c.url) || u.collated || ' = d.url' end),
        'size', coalesce(gc._inline(gc._size_sql(c)), 'null::bigint'),
        'generation', coalesce(
            gc._inline('nullif((' || c.generation || ')::text, '''')') || u.collated,
            'null::text'),
        'computed', (
            select string_agg(gc._inline(format('count(%s)', e)), ', ')
            from unnest(array[c.url, c.generation, c.label, gc._size_sql(c)]) as e
            where e is not null
        ),
        'due_at', case when c.undo = '0' then 'now()'
            else format('now() + interval %L', c.undo) end,
        'wait_for', case
            when c.shared then 'null::xid8'
            else format('case when %s then ''0''::xid8 end', gc._proved_sql(c))
        end,
        'settings', gc._print_settings(c),
        'by_index', gc._index_settings()
            || E'\nset enable_hashjoin = off\nset enable_mergejoin = off'
    )
    from (select (c.key).*) as k
    cross join lateral coalesce(gc._collated_sql(c), '') as u(collated)
$$;

comment on function gc._words(gc._shape) is 'What stands for the words in templates.';


create function gc._event_words(event text)
    returns jsonb
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object('event', gc._inline(quote_literal(event)))
$$;

comment on function gc._event_words(text) is 'What stands for an event.';


-- The body is quoted like any other text: a name in it may contain what it likes.
create function gc._function_sql(header text, body text, words jsonb)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(header, words)
        || E'\nas ' || quote_literal(E'\n' || gc._render(body, words) || E'\n')
$$;

comment on function gc._function_sql(text, text, jsonb) is
    'The statement that creates a function.';


create type gc._trigger as (
    relation regclass, suffix text, timing text, tables text, columns name[],
    target_columns name[], looks_up boolean, body text, otherwise text
);

comment on type gc._trigger is
    'A trigger that a collection needs: what it does, and what it does where the tables are not '
    'what they were.';


create function gc._has_columns_sql(relation regclass, columns name[])
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._inline(format(
        'gc._has_columns(%L, %L)', relation, gc._typed(relation, columns)))
$$;

comment on function gc._has_columns_sql(regclass, name[]) is
    'The condition that a table still has the columns that it has now.';


-- Whether a table is what it was is part of the plan of a statement that reads it, and is found out
-- anew only when the table changes: so the target is read as well, though never a row of it.
create function gc._guard_words(c gc._shape, t gc._trigger)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when t.target_columns is null then jsonb_build_object(
            'target_gone', '', 'target_too', '',
            'has_columns', gc._has_columns_sql(t.relation, t.columns))
        else jsonb_build_object(
            'target_gone', gc._render($template$
if to_regclass({table}) is null then
    perform gc._note_missed({name}, {table});
    return null;
end if;$template$, c.words),
            'target_too', gc._inline(format(' left join %s as t on false', c.target)),
            'has_columns', gc._has_columns_sql(t.relation, t.columns) || E'\n        and '
                || gc._has_columns_sql(c.target, t.target_columns))
    end
$$;

comment on function gc._guard_words(gc._shape, gc._trigger) is
    'What stands for the question whether a trigger still fits the tables it was made for.';


-- The frame of a trigger function. Its rights are the owner's: the application needs none on gc.
-- What was dropped or renamed a moment ago must not fail the application's statement.
create function gc._trigger_sql(c gc._shape, function_name name, t gc._trigger)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}()
    returns trigger
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    {settings}
$template$, $template$
#variable_conflict use_column
declare
    is_current boolean;
begin
    {target_gone}
    -- Null: there is no row. False: this is no longer what the function was made for.
    select {has_columns}
    into is_current
    from {rows}{target_too}
    limit 1;
    if is_current then
        {body}
    elsif not is_current then
        perform gc._note_missed({name}, {relation});
        {otherwise}
    end if;
    return null;
end;$template$,
        c.words || gc._guard_words(c, t) || jsonb_build_object(
            'function', gc._inline(quote_ident(function_name)),
            'relation', gc._inline(quote_literal(t.relation)),
            'rows', case when t.tables like '%new_rows' then 'new_rows' else 'old_rows' end,
            -- Settings cost, so only what needs them has them.
            'settings', concat_ws(E'\n',
                case when t.relation = c.target then nullif(gc._print_settings(c), '') end,
                case when t.looks_up then gc._index_settings() end),
            'otherwise', coalesce(t.otherwise, ''),
            'body', t.body))
$$;

comment on function gc._trigger_sql(gc._shape, name, gc._trigger) is
    'The function of a trigger that follows a statement.';


-- TRUNCATE has no transition tables to look at. It fires for each partition by itself, but one that
-- has come since the code was made has no trigger yet.
create function gc._truncate_trigger_sql(c gc._shape, function_name name, t gc._trigger)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}()
    returns trigger
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
    {settings}
$template$, $template$
declare
    is_current boolean := gc._has_columns(tg_relid::regclass::text, {columns});
begin
    {before}
    if is_current then
        {body}
    else
        {otherwise}
    end if;
    return null;
end;$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(function_name)),
            'columns', gc._inline(quote_literal(gc._typed(t.relation, t.columns))),
            'before', case when t.otherwise is null then '' else gc._render(
                E'perform gc._require_followable({name});\n'
                'perform gc._keep_untracked({name}, tg_relid, tg_name);', c.words) end,
            'otherwise', coalesce(t.otherwise, t.body),
            'body', t.body))
$$;

comment on function gc._truncate_trigger_sql(gc._shape, name, gc._trigger) is
    'The function of a trigger that comes before a TRUNCATE.';


-- An object that is on its way out stays because of a new row, or the row has to wait. One look-up
-- tells that there is none, as nearly always.
create function gc._admit_sql(c gc._shape, only_changed boolean)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
if gc._strict_uploads() then
    perform gc._require_uploads({name}, array_agg(o.key), array_agg(o.url))
    from (
        select {key_text}, {url} from new_rows as {alias}
        {except_key}
    ) as o(key, url)
    where o.url is not null;
end if;
if current_setting('transaction_isolation') <> 'read committed'
    or exists (select from gc.deleted_objects as d where d.deleted_at > now())
    or exists (
        select from (select {url} from new_rows as {alias}) as o(url)
        where (select true from gc.tombstones as d where d.url = o.url limit 1)
    )
then
    perform gc._admit({name}, array_agg(o.url), array_agg(o.generation))
    from (
        select {url}, {generation} from new_rows as {alias}
        {except_url}
    ) as o(url, generation)
    where o.url is not null;
end if;$template$,
        c.words || jsonb_build_object(
            'except_key', case when only_changed then gc._render(
                'except select {key_text}, {url} from old_rows as {alias}', c.words) else '' end,
            'except_url', case when only_changed then gc._render(
                'except select {url}, {generation} from old_rows as {alias}', c.words) else '' end))
$$;

comment on function gc._admit_sql(gc._shape, boolean) is
    'What a row with an object has to pass.';


-- TRUNCATE fires for each partition by itself, and has no transition table. Which one is meant is
-- filled in when the statement is executed, by format: so no other text may look like its signs.
create function gc._source_words(words jsonb, source text)
    returns jsonb
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_object_agg(w.key, case when source is null then replace(w.value, '%', '%%')
            else w.value end) || jsonb_build_object('source', coalesce(source, 'only %1$s'))
    from jsonb_each_text(words) as w
$$;

comment on function gc._source_words(jsonb, text) is
    'Words, and where the rows are; null: in the table that is about to be truncated.';


create function gc._kept_whole_sql(c gc._shape, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        'insert into gc.unread_rows (collection, content, relation, columns) '
        'select {name}, to_jsonb(o), {id}, (select gc._column_numbers({id})) from {source} as o',
        gc._source_words(c.words, source) || jsonb_build_object(
            'id', case when source is null then '%1$L::regclass' else 'tg_relid' end))
$$;

comment on function gc._kept_whole_sql(gc._shape, text) is
    'The statement that keeps rows whole until a review can work them out.';


create function gc._admit_changed_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        'perform gc._admit_changed({name}, array(select to_jsonb(n) from new_rows as n));', c.words)
$$;

comment on function gc._admit_changed_sql(gc._shape) is
    'What rows have to pass whose object cannot be told.';


-- An expression that may raise is computed once before anything is written. The block writes
-- nothing, so it costs no transaction id.
create function gc._computing_sql(c gc._shape, computes text, body text, otherwise text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.is_plain then body else gc._render($template$
begin
    {computes}
exception
    when others then
        perform gc._raise_if_passing(sqlstate, sqlerrm);
        is_current := false;
end;
if is_current then
    {body}
else
    {otherwise}
end if;$template$,
        jsonb_build_object('computes', computes, 'body', body, 'otherwise', otherwise)) end
$$;

comment on function gc._computing_sql(gc._shape, text, text, text) is
    'A part of a trigger that is done only if what it needs can be computed, or else the other.';


create function gc._after_insert_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into {queue} ({queue_keys}, event, review_after)
select {keys}, {event}, gc.review_after({event})
from new_rows;
{admit}$template$,
        c.words || gc._event_words(gc._event(c.events, c.name || '_insert')) || jsonb_build_object(
            'admit', case when c.url is null then '' else gc._computing_sql(c, gc._render(
                    'perform count({url}), count({generation}) from new_rows as {alias};', c.words),
                gc._admit_sql(c, false), gc._admit_changed_sql(c)) end))
$$;

comment on function gc._after_insert_sql(gc._shape) is
    'What follows an insert into a collection: every row is reviewed once.';


-- EXCEPT compares whole rows; a type without an equality is compared by what it prints.
create function gc._watched_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        format(
            case
                when exists (
                    select from pg_opclass as o
                    join pg_am as m on m.oid = o.opcmethod and m.amname in ('btree', 'hash')
                    where o.opcdefault and o.opcintype in (a.atttypid, t.typbasetype)
                ) or t.typcategory in ('E', 'S', 'N')
                    then '%s'
                else '%s::text'
            end, gc._inline(quote_ident(a.attname))),
        ', ' order by a.attname = any (k.names) desc, array_position(k.names, a.attname), a.attnum)
    from (select (c.key).*) as k
    join pg_attribute as a on a.attrelid = c.target
    join pg_type as t on t.oid = a.atttypid
    where a.attname = any (k.names) or (c.condition is not null and a.attname = any (c.columns))
$$;

comment on function gc._watched_sql(gc._shape) is
    'The columns whose change makes a row of the collection worth a review: key and condition.';


create function gc._after_url_change_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into gc.tombstones (
    collection, key, label, url, generation, size, due_at, wait_for
)
select {name}, o.key, o.label, o.url, o.generation, o.size, {due_at}, {wait_for}
from (
    select n.*, bool_or(n.is_new) over (partition by n.url, n.generation)
    from (
        select false, {key_text}, {label}, {url}, {generation}, {size}
        from old_rows as {alias}
        union all
        select true, null, null, {url}, {generation}, null
        from new_rows as {alias}
    ) as n(is_new, key, label, url, generation, size)
) as o(is_new, key, label, url, generation, size, is_named)
where o.url is not null and not o.is_named;
{admit}$template$,
        c.words || jsonb_build_object('admit', gc._admit_sql(c, true)))
$$;

comment on function gc._after_url_change_sql(gc._shape) is
    'An object that no row names any more gets a tombstone; one that is named anew is admitted.';


create function gc._after_update_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into {queue} ({queue_keys}, event, review_after)
select {keys}, {event}, gc.review_after({event})
from (select {watched} from new_rows except select {watched} from old_rows) as changed;
{objects}$template$,
        c.words || gc._event_words(gc._event(c.events, c.name || '_update')) || jsonb_build_object(
            'watched', gc._watched_sql(c),
            'objects', case when c.url is null then '' else gc._computing_sql(c, gc._render(
                    'perform {computed} from (table old_rows union all table new_rows) as {alias};',
                    c.words),
                gc._after_url_change_sql(c),
                gc._kept_whole_sql(c, 'old_rows') || E';\n' || gc._admit_changed_sql(c)) end))
$$;

comment on function gc._after_update_sql(gc._shape) is
    'What follows an update of a collection''s own rows: a new key, or another condition.';


create function gc._buried_sql(c gc._shape, source text, event text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into gc.tombstones (
    collection, key, label, url, generation, size, event, due_at, wait_for
)
select {name}, {key_text}, {label}, {url}, {generation}, {size},
    {event},
    {due_at}, {wait_for}
from {source} as {alias}
where {url} is not null$template$,
        gc._source_words(c.words || jsonb_build_object('event', event), source))
$$;

comment on function gc._buried_sql(gc._shape, text, text) is
    'The statement that writes tombstones for rows.';


-- A review tells why it deletes a row; who else deletes one does not. Anybody can make a setting,
-- but only a review writes to gc.reviewing.
create function gc._after_delete_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._computing_sql(c, gc._render('perform {computed} from old_rows as {alias};', c.words),
        gc._buried_sql(c, 'old_rows', gc._render($event$case
    when current_setting('blobgc.reviewing', true) = {name} then (
        select r.event from gc.reviewing as r
        where r.xid = pg_current_xact_id_if_assigned() and r.collection = {name}
    )
end$event$, c.words)) || ';', gc._kept_whole_sql(c, 'old_rows') || ';')
$$;

comment on function gc._after_delete_sql(gc._shape) is
    'What follows a delete from a collection, whoever deletes: a tombstone for each object.';


create function gc._truncated_sql(statement text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select 'execute format(' || quote_literal(statement) || ', tg_relid::regclass);' $$;

comment on function gc._truncated_sql(text) is
    'What executes a statement for the table that is about to be truncated.';


create function gc._before_truncate_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._computing_sql(c,
        gc._truncated_sql(gc._render('select {computed} from {source} as {alias}',
            gc._source_words(c.words, null))),
        gc._truncated_sql(gc._buried_sql(c, null, 'null')),
        gc._truncated_sql(gc._kept_whole_sql(c, null)))
$$;

comment on function gc._before_truncate_sql(gc._shape) is
    'What comes before a TRUNCATE of a collection: a tombstone for each object.';


create function gc._needs_target(r gc._reference)
    returns boolean
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select not r.to_key or r.on_delete in ('c', 'n', 'd') $$;

comment on function gc._needs_target(gc._reference) is
    'Whether the key of a lost target can be told only with the target itself.';


create function gc._lost_words(c gc._shape, r gc._reference)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object(
        'lost_keys', (
            select string_agg(
                gc._inline(format('r.%I', r.columns[array_position(r.targets, u.name)])),
                ', ' order by u.n)
            from unnest(k.names) with ordinality as u(name, n)
            where r.to_key
        ),
        'not_null', (
            select string_agg(gc._inline(format('r.%I is not null', u.name)), ' and ' order by u.n)
            from unnest(r.columns) with ordinality as u(name, n)
        ))
    from (select (c.key).*) as k
$$;

comment on function gc._lost_words(gc._shape, gc._reference) is
    'What stands for the key that a row r points at, and for its being there.';


-- A target that went with its reference, by ON DELETE CASCADE or SET NULL, is not queued. offset 0:
-- one by one, for the plan that suits the first statement of a session is kept for all the others.
create function gc._lost_sql(c gc._shape, r gc._reference, event text, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into {queue} ({queue_keys}, event, review_after)
select {lost_keys}, {event}, gc.review_after({event})
from {source} as r
{joined}
where {not_null}
group by {lost_keys};$template$,
        c.words || gc._event_words(event) || gc._lost_words(c, r)
            || jsonb_build_object('source', source, 'joined', '')
            || case when not gc._needs_target(r) then '{}' else jsonb_build_object(
                'lost_keys', gc._listed((c.key).names, 't.'),
                'joined', gc._render(
                    'cross join lateral (select {t_keys} from {target} as t where {t_is_r} '
                    'offset 0) as t',
                    c.words || jsonb_build_object(
                        't_is_r', gc._pair(r.targets, 't', r.columns, 'r', r.operators)))) end)
$$;

comment on function gc._lost_sql(gc._shape, gc._reference, text, text) is
    'The statement that queues the targets which rows of a reference have lost.';


create function gc._after_loss_sql(c gc._shape, relation regclass, operation text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        gc._lost_sql(c, r, gc._event(c.events, gc._table_event(relation, operation)),
            case
                when operation = 'delete' then 'old_rows'
                else format('(select %1$s from old_rows except select %1$s from new_rows)',
                    gc._listed(r.columns))
            end),
        E'\n')
    from unnest(c.refs) as r
    where r.owned is null and r.referencing = relation
$$;

comment on function gc._after_loss_sql(gc._shape, regclass, text) is
    'What follows a delete or an update of a table that refers to a collection.';


create function gc._before_loss_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('execute format(%s, tg_relid::regclass, tg_relid::regclass::text);',
        gc._inline(quote_literal(
            'insert into gc.scan_requests (collection, reason) select '
            || replace(quote_literal(c.name), '%', '%%')
            || ', %2$L || '' was truncated'' where exists (select from only %1$s) '
            'or current_setting(''transaction_isolation'') <> ''read committed''')))
$$;

comment on function gc._before_loss_sql(gc._shape) is
    'What comes before a TRUNCATE of a table that refers to a collection: a scan is asked for.';
-- Links: in which partition of a referring table a key has been seen.
--
-- A foreign key that does not contain the partition key of its table has to be looked up in every
-- partition. A link tells in which one to look first. It is a hint and no more: the first look of a
-- review follows links, and what they lead to keeps its target; before anything is deleted, every
-- partition is asked. A link that is missing, or that leads nowhere, costs time, never a row; the
-- review that notices puts a true one in its place. Whoever refers to a row only ever adds links,
-- one for a key at most.

create function gc._link_words(c gc._shape, l gc._link)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.words || jsonb_build_object(
        'links', gc._inline(format('gc.%I', l.links)),
        'referencing', gc._inline(l.relation::text),
        'link_columns', gc._listed(l.link_columns),
        'r_parts', gc._listed(l.columns, 'r.'),
        'r_in_l', gc._pair(l.columns, 'r', l.link_columns, 'l', l.operators),
        'has_parts', (
            select string_agg(gc._inline(format('r.%I is not null', u)), ' and ')
            from unnest(l.columns) as u
        ),
        'l_is_q', gc._entry_pair(c.key, 'l', k.queue_names, 'q', k.operators),
        'l_is_t', gc._entry_pair(c.key, 'l', k.names, 't', k.operators))
    from (select (c.key).*) as k
$$;

comment on function gc._link_words(gc._shape, gc._link) is
    'What stands for the words in templates about links.';


create function gc._linked_sql(c gc._shape, l gc._link, r gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
exists (
    select from {links} as l
    join {referencing} as r on {r_in_l} and {r_is_q}
    where {l_is_q}{not_itself}
)$template$,
        gc._link_words(c, l) || jsonb_build_object(
            'r_is_q', gc._key_pair(r),
            'not_itself', gc._not_itself(c, r, 'q')))
$$;

comment on function gc._linked_sql(gc._shape, gc._link, gc._reference) is
    'The condition that a link leads to a row that points at the key of the queue entry q.';


create function gc._links_lead_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(gc._linked_sql(c, l, r), E'\nor ')
    from unnest(c.links) as l
    join unnest(c.refs) as r on r.referencing = l.relation and r.linked
$$;

comment on function gc._links_lead_sql(gc._shape) is
    'The condition that any link leads to what keeps the queue entry q; null: there are no links.';


create function gc._plainly_kept_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(nullif(concat_ws(E'\nor ',
        (
            select string_agg(gc._refers_sql(c, r), E'\nor ')
            from unnest(c.refs) as r
            where r.owned is null and not r.linked
        ),
        gc._links_lead_sql(c), gc._excused_sql(c)), ''), 'false')
$$;

comment on function gc._plainly_kept_sql(gc._shape) is
    'The condition that the key of the queue entry q is kept, as far as links can tell.';


create function gc._add_links_sql(c gc._shape, l gc._link, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        gc._render($template$
insert into {links} ({queue_keys}, {link_columns})
select distinct on ({lost_keys}) {lost_keys}, {r_parts}
from {source} as r
where {not_null} and {has_parts}
    and (select true from {links} as l where {l_is_r} limit 1) is null;$template$,
            gc._link_words(c, l) || gc._lost_words(c, r) || jsonb_build_object(
                'source', coalesce(source, format(
                    '(select %1$s from new_rows except select %1$s from old_rows)',
                    gc._listed(r.columns || array(
                        select u from unnest(l.columns) as u where u <> all (r.columns))))),
                'l_is_r', (
                    select gc._entry_pair(c.key, 'l',
                        array_agg(r.columns[array_position(r.targets, u.name)] order by u.n), 'r',
                        array_agg(r.operators[array_position(r.targets, u.name)] order by u.n))
                    from unnest((c.key).names) with ordinality as u(name, n)
                ))),
        E'\n')
    from unnest(c.refs) as r
    where r.referencing = l.relation and r.linked
$$;

comment on function gc._add_links_sql(gc._shape, gc._link, text) is
    'The statements that add the links of some rows, where they are not there yet; null: of the '
    'rows that an update has changed.';


-- A second look knows the truth: for what is kept, it replaces the links that did not tell.
create function gc._relink_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(string_agg(
        gc._render($template$
,
forgotten_{n} as (
    delete from {links} as l
    using dropped as q
    where {l_is_q}
),
linked_{n} as (
    insert into {links} ({queue_keys}, {link_columns})
    select distinct {q_keys}, {r_parts}
    from dropped as q
    cross join lateral (
        select {r_parts} from {referencing} as r where {r_is_q} and {has_parts} limit 1
    ) as r
)$template$,
            gc._link_words(c, l) || jsonb_build_object(
                'n', row_number, 'r_is_q', gc._key_pair(r))),
        ''), '')
    from (
        select l, r, row_number() over ()
        from unnest(c.links) as l
        join unnest(c.refs) as r on r.referencing = l.relation and r.linked
    ) as o(l, r, row_number)
$$;

comment on function gc._relink_sql(gc._shape) is
    'The part of a second look that mends links; empty where there are none.';


create function gc._forget_links_sql(c gc._shape, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        gc._render($template$
delete from {links} as o
where o.ctid = any (array(
    select l.ctid
    from {source} as t
    cross join lateral (select l.ctid from {links} as l where {l_is_t} offset 0) as l
));$template$,
            gc._source_words(gc._link_words(c, l), source)),
        E'\n')
    from unnest(c.links) as l
$$;

comment on function gc._forget_links_sql(gc._shape, text) is
    'The statements that drop the links of rows that are gone.';


create function gc._after_link_sql(c gc._shape, relation regclass, operation text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._add_links_sql(c, l, case operation when 'insert' then 'new_rows' end)
    from unnest(c.links) as l
    where l.relation = _after_link_sql.relation
$$;

comment on function gc._after_link_sql(gc._shape, regclass, text) is
    'What follows an insert into or an update of a table that has links; null: it has none.';


create function gc._make_link_table(c gc._shape, l gc._link)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    k gc._key_columns := c.key;
begin
    perform gc._run(format('create table gc.%I (%s)', l.links, (
        select string_agg(format('%I %s not null', u.name, u.type), ', ' order by u.n)
        from unnest(k.queue_names || l.link_columns, k.types || l.types)
            with ordinality as u(name, type, n))));
    perform gc._seal_table(to_regclass(format('gc.%I', l.links)));
    perform gc._run(format('create index on gc.%I (%s, %s)', l.links,
        gc._index_columns(k), gc._idents(l.link_columns)));
    execute format('comment on table gc.%I is %L', l.links, format(
        'In which partitions of %s to look first for what refers to %s.', l.relation, c.target));
end;
$$;

comment on function gc._make_link_table(gc._shape, gc._link) is
    'Creates the table for the links of a referring table.';


create function gc._drop_links(names name[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set client_min_messages = warning
as $$
declare
    dropped name;
begin
    foreach dropped in array names loop
        execute format('drop table if exists gc.%I', dropped);
    end loop;
end;
$$;

comment on function gc._drop_links(name[]) is 'Drops tables of links.';


create function gc._link_table_fits(c gc._shape, l gc._link)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array(
            select a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
            from pg_attribute as a
            where a.attrelid = to_regclass(format('gc.%I', l.links)) and a.attnum > 0
            order by a.attnum
        ) = array(
            select u.name || ' ' || split_part(u.type, ' collate ', 1)
            from unnest(k.queue_names || l.link_columns, k.types || l.types)
                with ordinality as u(name, type, n)
            order by u.n
        )
    from (select (c.key).*) as k
$$;

comment on function gc._link_table_fits(gc._shape, gc._link) is
    'Whether the table of links is there, for this key and this partition key.';


-- Before the triggers, which lock the table: what comes in between has no link, and that is all.
create function gc._make_links(c gc._shape, fill boolean)
    returns name[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    l gc._link;
    made name[] := array[]::name[];
begin
    for l in select o.* from unnest(c.links) as o loop
        made := made || l.links;
        if not gc._link_table_fits(c, l) then
            perform gc._put_away(to_regclass(format('gc.%I', l.links)));
            perform gc._make_link_table(c, l);
            if fill then
                perform gc._run(gc._add_links_sql(c, l, gc._inline(l.relation::text)));
            end if;
        end if;
    end loop;
    return made;
end;
$$;

comment on function gc._make_links(gc._shape, boolean) is
    'Creates the tables of links that are missing, with what there is to link; returns all names.';
-- Templates of the functions that are called: review, scan, and the look-ups by key and by url.

create function gc._owned_pair(c gc._shape, r gc._reference, alias text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when r.to_key then gc._pair(
            r.columns, 'r', array(select gc._queue_column(u) from unnest(r.targets) as u), alias,
            r.operators)
        else gc._inline(format('exists (select from %s as t where %s and %s)', c.target,
            gc._pair(r.targets, 't', r.columns, 'r', r.operators),
            gc._pair(k.names, 't', k.queue_names, alias, k.operators)))
    end || gc._not_itself(c, r, alias)
    from (select (c.key).*) as k
$$;

comment on function gc._owned_pair(gc._shape, gc._reference, text) is
    'The condition that a row r is owned by the target of a queue entry.';


-- A foreign key says nothing about the tables that inherit from its own.
create function gc._only(relation regclass)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._inline(case when c.relkind = 'p' then '' else 'only ' end || relation)
    from pg_class as c
    where c.oid = relation
$$;

comment on function gc._only(regclass) is
    'A table as it has to be written so that no inheriting table is meant.';


-- Owned rows go with their target. A transaction deletes at most as many rows as there is room for;
-- targets are taken whole while they fit. One that alone is too big goes whole and by itself: half
-- empty, it could be referred to again. Only where a condition says that nobody uses it any more is
-- it emptied in steps. A target of which somebody holds an owned row waits, for whoever holds it
-- may wait for the target.
create function gc._owned_count_sql(c gc._shape, locking text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        format('(select count(*) from (select from %s as r where %s limit this.room%s) as o)',
            gc._only(r.referencing), gc._owned_pair(c, r, 'q'), locking),
        E'\n+ ' order by r.owned)
    from unnest(c.refs) as r
    where r.owned is not null
$$;

comment on function gc._owned_count_sql(gc._shape, text) is
    'The expression for how many rows the target of the queue entry q owns.';


create function gc._place(relation regclass)
    returns name[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when c.relkind <> 'p' then array['ctid'::name]
        else coalesce((gc._key(relation)).names, array['tableoid', 'ctid']::name[])
    end
    from pg_class as c
    where c.oid = relation
$$;

comment on function gc._place(regclass) is 'Columns that tell a row of the table from all others.';


create function gc._drain_columns(r gc._reference, out columns name[], out operators text[])
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array_agg(distinct u.name), array_agg(coalesce(k.operator, '=') order by u.name)
    from (
        select distinct w from unnest(gc._place(r.referencing) || r.columns) as w
    ) as u(name)
    left join lateral (
        select f.operator from unnest(r.columns, r.operators) as f(name, operator)
        where f.name = u.name
        union all
        select p.operator from gc._key(r.referencing) as y
        cross join lateral unnest(y.names, y.operators) as p(name, operator)
        where p.name = u.name
        limit 1
    ) as k on true
$$;

comment on function gc._drain_columns(gc._reference) is
    'The columns by which an owned row is found again: its place, and its owner.';


-- A row that got another owner while it was waited for is not deleted: PostgreSQL checks the last
-- condition again, but not the subquery.
create function gc._drain_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        gc._render($template$
delete from {referencing} as r
using (
    select {r_columns}
    from {queue} as q
    join {referencing} as r on {r_is_q}
    where q.ctid = any (this.garbage)
    limit greatest(this.room, 0)
    for update of r skip locked
) as o
where {r_is_o};
get diagnostics this.step = row_count;
this.room := this.room - this.step;
this.owned := this.owned - this.step;
touched := touched + this.step;$template$,
            c.words || jsonb_build_object(
                'referencing', gc._only(r.referencing),
                'r_is_q', gc._owned_pair(c, r, 'q'),
                'r_columns', gc._listed(p.columns, 'r.'),
                'r_is_o', gc._pair(p.columns, 'r', p.columns, 'o', p.operators))),
        E'\n' order by r.owned)
    from unnest(c.refs) as r
    cross join lateral gc._drain_columns(r) as p
    where r.owned is not null
$$;

comment on function gc._drain_sql(gc._shape) is
    'The statements that delete owned rows, in the order of "owned".';


create function gc._owns_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        format('exists (select from %s as r where %s)',
            gc._only(r.referencing), gc._owned_pair(c, r, 'q')),
        E'\nor ' order by r.owned)
    from unnest(c.refs) as r
    where r.owned is not null
$$;

comment on function gc._owns_sql(gc._shape) is
    'The condition that the target of the queue entry q still owns rows.';


-- All of it fits and nobody holds any: that is how it is nearly always, and takes a join to see.
create function gc._lock_owned_sql(c gc._shape, most text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        gc._render($template$
perform from {queue} as q
join {referencing} as r on {r_is_q}
where q.ctid = any (this.garbage)
limit {most}
for update of r nowait;
get diagnostics this.step = row_count;
this.owned := this.owned + this.step;$template$,
            c.words || jsonb_build_object(
                'referencing', gc._only(r.referencing), 'r_is_q', gc._owned_pair(c, r, 'q'),
                'most', most)),
        E'\n' order by r.owned)
    from unnest(c.refs) as r
    where r.owned is not null
$$;

comment on function gc._lock_owned_sql(gc._shape, text) is
    'The statements that lock and count the rows that all targets own, or so many of them.';


create function gc._owned_whole_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.condition is not null then '' else gc._render($template$
-- All of it or nothing, however much it is.
this.owned := 0;
begin
    {lock_owned}
    this.room := greatest(this.room, this.owned + coalesce(cardinality(this.garbage), 0));
    this.fits := true;
exception
    when lock_not_available then
        this.garbage := '{}';
end;$template$, jsonb_build_object('lock_owned', gc._lock_owned_sql(c, 'all'))) end
$$;

comment on function gc._owned_whole_sql(gc._shape) is
    'The statements that lock all that the chosen targets own, where nothing may go in part.';


create function gc._owned_in_part_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
select array_agg(f.place) filter (where not f.held and (f.n = 1 or f.total <= this.room)),
    array_agg(f.place) filter (where not f.held and f.n > 1 and f.total > this.room)
into this.garbage, this.waiting
from (
    select o.place, o.held, count(*) filter (where not o.held) over w,
        sum(1 + o.rows) filter (where not o.held) over w
    from (
        select q.ctid, q.entry, o.rows, o.rows <> o.locked
        from {queue} as q
        cross join lateral (
            select
                {owned_count},
                {locked_count}
        ) as o(rows, locked)
        where q.ctid = any (this.garbage)
    ) as o(place, entry, rows, held)
    window w as (order by o.entry)
) as f(place, held, n, total);$template$,
        c.words || jsonb_build_object(
            'owned_count', gc._owned_count_sql(c, ''),
            'locked_count', gc._owned_count_sql(c, ' for update skip locked')))
$$;

comment on function gc._owned_in_part_sql(gc._shape) is
    'The statements that choose whose owned rows go now, where not all can.';


create function gc._owned_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when gc._owns_sql(c) is null then '' else gc._render($template$
-- What it owns goes first.
this.owned := 0;
begin
    {lock_owned}
    this.fits := this.owned + cardinality(this.garbage) <= this.room;
exception
    when lock_not_available then
        this.fits := false;
end;
if not this.fits then
    -- More than will go now, or that is not known.
    this.owned := this.room + 1;
    {in_part}
    {whole}
end if;
{drain}
if this.owned > 0 or cardinality(this.garbage) > this.room then
    this.emptied := array(
        select q.ctid from {queue} as q
        where q.ctid = any (this.garbage)
            and not (
                {owns}
            )
        limit greatest(this.room, 0)
    );
    if cardinality(this.emptied) < cardinality(this.garbage) and (this.fits or touched = 0) then
        raise 'a trigger or a rule kept owned rows from being deleted';
    end if;
    this.waiting := this.waiting || this.garbage;
    this.garbage := this.emptied;
end if;$template$,
        c.words || jsonb_build_object(
            'lock_owned', gc._lock_owned_sql(c, 'this.room + 1'),
            'in_part', gc._owned_in_part_sql(c),
            'whole', gc._owned_whole_sql(c),
            'drain', gc._drain_sql(c),
            'owns', gc._owns_sql(c))) end
$$;

comment on function gc._owned_sql(gc._shape) is
    'The part of a review that deletes owned rows; empty where nothing is owned.';


-- Rows without an object have nobody to confirm them: the review writes their log. An address that
-- is made of the key is never null.
create function gc._logged_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.url is not null and not c.shared then '' else gc._render($template$
,
logged as (
    insert into gc.deletion_log (collection, key, label, size, event, row_deleted_at)
    select {name}, {key_text}, {label}, {size}, this.event, now()
    from gone as {alias}
    where {url} is null
)$template$, c.words) end
$$;

comment on function gc._logged_sql(gc._shape) is
    'The part of a review that writes the log of rows without an object.';


create function gc._is_spread(c gc._shape)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from pg_class as t
        where t.relkind = 'p' and t.oid = any (c.target::oid || array(
            select r.referencing::oid from unnest(c.refs) as r where r.owned is null
        ))
    )
$$;

comment on function gc._is_spread(gc._shape) is
    'Whether the collection, or what keeps its rows, has partitions.';


-- Asking all partitions locks each of them, and planning that locks all their indexes: thousands.
-- None of these locks is needed after the answer (nobody can detach a partition, for its parent
-- stays locked), so they are given back by undoing the part that asks. Variables keep their values.
create function gc._look_apart_sql(c gc._shape, entries text, condition text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when not gc._is_spread(c) then '' else gc._render($template$
begin
    this.found := array(
        select q.ctid from {queue} as q
        where q.ctid = any ({entries})
            and (
                {condition}
            )
    );
    -- So that the locks of this part are given back.
    raise sqlstate 'ZG009';
exception
    when sqlstate 'ZG009' then
        null;
end;$template$, c.words || jsonb_build_object('entries', entries, 'condition', condition)) end
$$;

comment on function gc._look_apart_sql(gc._shape, text, text) is
    'The statements that note the entries that meet a condition, where the condition is to be '
    'looked at in a part of its own; empty where that is not so.';


create function gc._found_sql(c gc._shape, condition text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when gc._is_spread(c) then 'q.ctid = any (this.found)' else condition end
$$;

comment on function gc._found_sql(gc._shape, text) is
    'The condition, or where it was looked at before, that it was found to be met.';


create function gc._look_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- Look: take what is due, longest overdue first, and leave to other reviews what they have taken.
-- An entry whose row is plainly kept leaves the queue. No lock on the row is needed for that: a
-- reference that goes a moment later leaves an entry of its own.
this.taken := coalesce(this.given, array(
    select q.ctid
    from {queue} as q
    where q.review_after <= now() and q.review_count = 0
    order by q.review_after
    limit least(this.wanted, this.room)
    for update skip locked
));
reviewed := cardinality(this.taken);
kept := 0;
if reviewed = 0 then
    return;
end if;
{look_apart}
delete from {queue} as q
where q.ctid = any (this.taken)
    and (
        {plainly_kept}
    );
get diagnostics kept = row_count;$template$,
        c.words || jsonb_build_object(
            'look_apart', gc._look_apart_sql(c, 'this.taken', p.plainly_kept),
            'plainly_kept', gc._found_sql(c, p.plainly_kept)))
    from (select gc._plainly_kept_sql(c)) as p(plainly_kept)
$$;

comment on function gc._look_sql(gc._shape) is
    'The part of a review that takes entries off the queue and looks a first time.';


create function gc._drop_kept_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
with dropped as (
    delete from {queue} as q
    where q.ctid = any (this.locked)
        and (
            {kept}
        )
    returning q.*
){relinked}
select count(*) into this.step from dropped;
kept := kept + this.step;$template$,
        c.words || jsonb_build_object(
            'kept', gc._found_sql(c, gc._kept_sql(c)), 'relinked', gc._relink_sql(c)))
$$;

comment on function gc._drop_kept_sql(gc._shape) is
    'The statement that takes off the queue what the second look found kept.';


create function gc._look_again_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- Lock: whoever is inserting a reference has the row locked, so it is skipped and comes later.
this.locked := array(
    select q.ctid
    from {queue} as q
    join {target} as t on {t_is_q}
    where q.ctid = any (this.taken)
    for update of t skip locked
);
-- Look again, with a new snapshot: what is still not kept cannot be referred to any more.
{look_apart}
{drop_kept}
select array_agg(l.place) filter (where not l.superseded and not l.held),
    array_agg(l.place) filter (where l.superseded)
into this.garbage, this.superseded
from (
    select q.ctid,
        exists (select from {queue} as later where {later_is_q} and later.entry > q.entry),
        -- As the row writes its key: who refers to 1 may have written 1.0.
        holds.exist and exists (
            select from {target} as t
            join gc.holds as h on h.key = {t_key_text}
            where {t_is_q} and h.collection = {name} and h.held_until > clock_timestamp()
        )
    from {queue} as q
    cross join (select gc._has_holds()) as holds(exist)
    where q.ctid = any (this.locked)
) as l(place, superseded, held);$template$,
        c.words || jsonb_build_object(
            'look_apart', gc._look_apart_sql(c, 'this.locked', gc._kept_sql(c)),
            'drop_kept', case
                when gc._is_spread(c) then gc._render($template$
if cardinality(this.found) > 0 then
    {drop_kept}
end if;$template$, jsonb_build_object('drop_kept', gc._drop_kept_sql(c)))
                else gc._drop_kept_sql(c)
            end))
$$;

comment on function gc._look_again_sql(gc._shape) is
    'The part of a review that locks, and looks again.';


create function gc._superseded_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- A later entry speaks for the row, and is told of failures. It is locked, or else another review
-- might be taking it away at this moment, and neither would be left.
this.step := 0;
if this.superseded is not null then
    with looked as materialized (
        select q.ctid as place, q.review_count, q.last_error,
            (
                select later.ctid from {queue} as later
                where {later_is_q} and later.entry > q.entry
                order by later.entry desc
                limit 1
                for update skip locked
            ) as later
        from {queue} as q
        where q.ctid = any (this.superseded)
    ),
    warned as (
        update {queue} as q
        set review_count = l.review_count, last_error = coalesce(q.last_error, l.last_error)
        from looked as l
        where q.ctid = l.later and l.review_count > q.review_count
    )
    delete from {queue} as q
    using looked as l
    where q.ctid = l.place and l.later is not null;
    get diagnostics this.step = row_count;
    reviewed := reviewed - this.step;
end if;$template$, c.words)
$$;

comment on function gc._superseded_sql(gc._shape) is
    'The part of a review that drops entries which have a later one.';


-- A batch of which every entry has a later one is not the end of the queue.
create function gc._decide_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
select 0, 0, 0, 0 into deleted, busy, bytes, touched;
for round in 1 .. 10 loop
    {look}
    if kept = reviewed then
        return;
    end if;
    {look_again}
    {superseded}
    exit when reviewed > 0 or this.step = 0 or this.given is not null;
end loop;$template$,
        jsonb_build_object(
            'look', gc._look_sql(c),
            'look_again', gc._look_again_sql(c),
            'superseded', gc._superseded_sql(c)))
$$;

comment on function gc._decide_sql(gc._shape) is
    'The part of a review that tells what is garbage.';


create function gc._delete_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- The row goes first, then its object: a trigger leaves the tombstone, and is told the reason.
for this.event in
    select distinct q.event from {queue} as q where q.ctid = any (this.garbage)
loop
    perform set_config('blobgc.reviewing', {name}, true);
    insert into gc.reviewing values (pg_current_xact_id(), {name}, this.event);
    with gone as (
        delete from {only_target} as t
        using {queue} as q
        where q.ctid = any (this.garbage) and q.event = this.event and {t_is_q}
        returning t.*
    ){logged}
    select count(*), coalesce(sum({size}), 0) into this.step, this.freed from gone as {alias};
    deleted := deleted + this.step;
    bytes := bytes + this.freed;
    delete from gc.reviewing as r where r.xid = pg_current_xact_id();
end loop;
perform set_config('blobgc.reviewing', '', true);
if deleted < cardinality(this.garbage) then
    raise 'a trigger or a rule on % kept % rows from being deleted',
        {table}, cardinality(this.garbage) - deleted;
end if;
touched := touched + deleted;
delete from {queue} as q where q.ctid = any (this.garbage);$template$,
        c.words || jsonb_build_object(
            'logged', gc._logged_sql(c), 'only_target', gc._only(c.target)))
$$;

comment on function gc._delete_sql(gc._shape) is 'The part of a review that deletes.';


create function gc._delete_all_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- Triggers of the application's own look for names where they would in the application.
perform set_config('search_path', gc._application_path({table}), true);
{owned}
{delete}
perform set_config('search_path', 'pg_catalog, pg_temp', true);$template$,
        c.words || jsonb_build_object('owned', gc._owned_sql(c), 'delete', gc._delete_sql(c)))
$$;

comment on function gc._delete_all_sql(gc._shape) is
    'The part of a review that deletes, owned rows first.';


create function gc._put_off_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- What is left in the queue is gone, or somebody holds it: that is looked at again in a while.
if deleted < reviewed - kept then
    delete from {queue} as q
    where q.ctid = any (this.taken) and not exists (select from {target} as t where {t_is_q});
    select count(*) into busy from {queue} as q where q.ctid = any (this.taken);
    update {queue} as q
    set review_after = now() + (select s.busy_delay from gc.settings as s)
    where q.ctid = any (this.taken){not_waiting};
end if;$template$,
        c.words || jsonb_build_object('not_waiting', case
            when gc._owns_sql(c) is null then ''
            else ' and q.ctid <> all (coalesce(this.waiting, ''{}''))'
        end))
$$;

comment on function gc._put_off_sql(gc._shape) is
    'The part of a review that puts off what it could not decide.';


create function gc._review_words(c gc._shape)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.words || jsonb_build_object(
        'function', gc._inline(quote_ident(gc._object_name(c.name, '_review'))),
        'function_name', gc._inline(quote_literal(gc._object_name(c.name, '_review'))),
        'decide', gc._decide_sql(c),
        'variables', concat_ws(E'\n', 'event text;', 'freed bigint;',
            case when gc._is_spread(c) then 'found tid[];' end, case
            when gc._owns_sql(c) is not null
                then E'waiting tid[];\nemptied tid[];\nowned integer;\nfits boolean;'
        end),
        'delete', gc._delete_all_sql(c),
        'put_off', gc._put_off_sql(c),
        'pinned', concat_ws(E'\n', gc._pinned_sql(), gc._zone_settings()))
$$;

comment on function gc._review_words(gc._shape) is
    'What stands for the words in the template of a review.';


create function gc._review_sql(c gc._shape, fingerprint text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(
    batch integer default 1000, entries tid[] default null, most integer default 10000,
    checked boolean default false,
    out reviewed integer, out kept integer, out deleted integer, out busy integer,
    out bytes bigint, out touched integer
)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set plan_cache_mode = force_generic_plan
    {by_index}
    {pinned}
$template$, $template$
#variable_conflict use_column
<<this>>
declare
    wanted integer := batch;
    given tid[] := entries;
    room integer := most;
    taken tid[];
    locked tid[];
    garbage tid[];
    superseded tid[];
    step integer;
    {variables}
begin
    perform gc._require_read_committed({function_name});
    -- Nobody can add a foreign key from here on, and this code knows all that there are.
    if not checked and not gc._is_current({name}, {fingerprint}) then
        select f.* into reviewed, kept, deleted, busy, bytes, touched
        from gc.{function}(wanted, given, room, true) as f;
        return;
    end if;
    {decide}
    {delete}
    {put_off}
end;$template$,
        gc._review_words(c) || jsonb_build_object('fingerprint', quote_literal(fingerprint)))
$$;

comment on function gc._review_sql(gc._shape, text) is 'The function gc.<name>_review.';


-- A row of several columns is compared by the usual operator of each.
create function gc._row_equals(k gc._key_columns)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select case when cardinality(k.operators) = 1 then k.operators[1] else '=' end $$;

comment on function gc._row_equals(gc._key_columns) is 'The operator that compares two keys.';


create function gc._parsed_key_sql(c gc._shape, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when cardinality(k.names) = 1 then format('%s::%s', source, k.types[1])
        else (
            select string_agg(
                gc._inline(format('(%s::gc.%I).%I', source, gc._object_name(c.name, '_key'), u)),
                ', ' order by n)
            from unnest(k.names) with ordinality as n(u, n)
        )
    end
    from (select (c.key).*) as k
$$;

comment on function gc._parsed_key_sql(gc._shape, text) is
    'The columns of a key that is given as text.';


create function gc._scan_statement_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
with seen ({queue_keys}) as materialized (
    (
        select {t_keys} from {target} as t where $2 is null order by {t_keys} limit $1
    )
    union all
    (
        select {t_keys} from {target} as t where ({t_keys}) {greater} ({after})
        order by {t_keys}
        limit $1
    )
),
queued as (
    insert into {queue} ({queue_keys}, event, review_after)
    select {q_keys}, {event}, gc.review_after({event})
    from seen as q
    where not (
            {kept}
        )
        and not exists (select from {queue} as later where {later_is_q})
)
select count(*)::integer, (
    select {q_key_text} from seen as q order by row({q_keys}) desc limit 1
)
from seen$template$,
        c.words || gc._event_words(gc._event(c.events, c.name || '_scan')) || jsonb_build_object(
            'kept', concat_ws(E'\nor ', gc._links_lead_sql(c), gc._kept_sql(c)),
            'greater', replace(gc._row_equals(k), '=', '>'),
            'after', gc._parsed_key_sql(c, '$2')))
    from (select (c.key).*) as k
$$;

comment on function gc._scan_statement_sql(gc._shape) is
    'Goes over rows in the order of their key, and queues those that are garbage.';


create function gc._scan_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(
    batch integer, after text, out seen integer, out last text
)
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {by_index}
    {settings}
$template$, $template$
    {statement}$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, '_scan'))),
            'statement', gc._scan_statement_sql(c)))
$$;

comment on function gc._scan_sql(gc._shape) is 'The function gc.<name>_scan.';


create function gc._key_text_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(key text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    {settings}
$template$, $template$
    select case when {typed} is not null then ({typed})::text end$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, '_key_text'))),
            'typed', case
                when cardinality(k.names) = 1 then format('$1::%s', k.types[1])
                else format('$1::gc.%I', gc._object_name(c.name, '_key'))
            end))
    from (select (c.key).*) as k
$$;

comment on function gc._key_text_sql(gc._shape) is
    'The function gc.<name>_key_text: a key as PostgreSQL prints it.';


-- Only where the key alone makes the url: see gc._shares_objects.
create function gc._url_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(key text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    {settings}
$template$, $template$
    select {url} from (select {typed}) as {alias}({keys})$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, '_url'))),
            'typed', gc._parsed_key_sql(c, '$1')))
$$;

comment on function gc._url_sql(gc._shape) is
    'The function gc.<name>_url: the address that the object of a key has or would have.';


create function gc._lock_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(key text)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {settings}
$template$, $template$
begin
    return (
        select {key_text} from {target} as {alias} where ({row_keys}) {equals} ({typed})
        for key share
    );
end;$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, '_lock'))),
            'equals', gc._row_equals(k),
            'row_keys', gc._listed(k.names, c.alias || '.'),
            'typed', gc._parsed_key_sql(c, '$1')))
    from (select (c.key).*) as k
$$;

comment on function gc._lock_sql(gc._shape) is
    'The function gc.<name>_lock: locks a row as a reference would, and tells its key.';


create function gc._same_generation_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.generation is null then '' else gc._render(
        ' and coalesce({generation} = d.generation, true)', c.words) end
$$;

comment on function gc._same_generation_sql(gc._shape) is
    'The condition that a row and a tombstone do not mean two versions of an object.';


-- A scalar subquery is looked up for each tombstone, through the index; a join is for where there
-- is none, and the planner decides.
create function gc._found_by_url_sql(c gc._shape)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        case
            when not c.url_index
                then 'exists (select from {target} as {alias} where {same_url}{same_generation})'
            else '(select true from {target} as {alias} where {same_url}{same_generation} '
                'limit 1)'
        end,
        c.words || jsonb_build_object('same_generation', gc._same_generation_sql(c)))
$$;

comment on function gc._found_by_url_sql(gc._shape) is
    'The condition that a row has the url of the tombstone d.';


-- By its key, if the key makes that url: a tombstone from before the definition or the key changed
-- is looked up by the url itself, and so is every one until the next review has noticed that a
-- constraint is gone.
create function gc._used_by_key_sql(c gc._shape)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
union all
select d.id
from gc.tombstones as d
where d.id = any ($1)
    and d.collection = {name}
    and case
        when case
            when $2 or not ({proved}) then true
            else d.url is distinct from (select {url} from (select {typed}) as {alias}({keys}))
        end then {found}
        else (
            select true from {target} as {alias}
            where ({row_keys}) {equals} ({typed}) and {same_url}{same_generation}
            limit 1
        )
    end$template$,
        c.words || jsonb_build_object(
            'proved', gc._proved_sql(c),
            'found', gc._found_by_url_sql(c),
            'same_generation', gc._same_generation_sql(c),
            'equals', gc._row_equals(k),
            'row_keys', gc._listed(k.names, c.alias || '.'),
            'typed', gc._parsed_key_sql(c, 'd.key')))
    from (select (c.key).*) as k
$$;

comment on function gc._used_by_key_sql(gc._shape) is
    'The part of gc.<name>_used that finds a row by its key.';


-- A url that is built from the key belongs to that key; any other is looked up by itself.
create function gc._used_sql(c gc._shape)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(tombstones bigint[], by_url boolean)
    returns setof bigint
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {settings}
$template$, $template$
    select d.id
    from gc.tombstones as d
    where d.id = any ($1)
        {unless_own}
        {prefix}
        and {found}
    {own}$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, '_used'))),
            'unless_own', case when c.shared then '' else gc._inline(
                format('and (select count(*) > 1 from gc.collections) and d.collection <> %L',
                    c.name)) end,
            'prefix', case when c.url_prefix is null then '' else
                gc._inline(format('and starts_with(d.url, %L)', c.url_prefix)) end,
            'found', gc._found_by_url_sql(c),
            'own', case when c.shared then '' else gc._used_by_key_sql(c) end))
$$;

comment on function gc._used_sql(gc._shape) is
    'The function gc.<name>_used: which tombstones have an object that a live row has too.';


-- A label or a size that cannot be computed is null, so that the object goes all the same. A row
-- from before there was a column that tells the object would seem to have none.
create function gc._read_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(ids bigint[], bare boolean)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    {settings}
$template$, $template$
#variable_conflict use_column
begin
    if exists (
        select from gc.unread_rows as u
        where u.id = any ($1) and not gc._content_now(u) ?& {needed}
    ) then
        raise 'the row that went does not have all of the columns %', {needed}
            using errcode = 'undefined_column';
    end if;
    if bare then
        insert into gc.tombstones (collection, key, url, generation, created_at, due_at)
        select {name}, {key_text}, {url}, {generation}, u.left_at, {due_at}
        from gc.unread_rows as u
        cross join lateral jsonb_populate_record(
            null::{target}, gc._content_now(u)) as {alias}
        where u.id = any ($1) and {url} is not null;
    else
        insert into gc.tombstones (
            collection, key, label, url, generation, size, created_at, due_at
        )
        select {name}, {key_text}, {label}, {url}, {generation}, {size}, u.left_at, {due_at}
        from gc.unread_rows as u
        cross join lateral jsonb_populate_record(
            null::{target}, gc._content_now(u)) as {alias}
        where u.id = any ($1) and {url} is not null;
    end if;
    delete from gc.unread_rows as u where u.id = any ($1);
end;$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, '_read'))),
            'needed', gc._inline(quote_literal(c.object_columns) || '::text[]')))
$$;

comment on function gc._read_sql(gc._shape) is
    'The function gc.<name>_read: tombstones for rows that were kept whole.';


-- Counted from now: what was overdue for days is not due again at once. Earlier entries of the key
-- know of earlier failures.
create function gc._back_off_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}(entries tid[], error text)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    {by_index}
$template$, $template$
declare
    changed integer;
begin
    update {queue} as q
    set review_after = now() + gc._backoff(f.failures), review_count = f.failures + 1,
        last_error = error
    from (
        select q.ctid, max(later.review_count)
        from {queue} as q
        join {queue} as later on {later_is_q}
        where q.ctid = any (entries)
        group by q.ctid
    ) as f(place, failures)
    where q.ctid = f.place;
    get diagnostics changed = row_count;
    return changed;
end;$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, '_back_off')))))
$$;

comment on function gc._back_off_sql(gc._shape) is
    'The function gc.<name>_back_off: puts failed reviews off, longer each time.';


-- Each collection has its own, so that the right to announce an upload can be given for one.
create function gc._entry_sql(c gc._shape, suffix text, arguments text, type text, call text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
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
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(gc._object_name(c.name, suffix))),
            'arguments', arguments, 'type', type, 'pinned', gc._pinned_sql(),
            'call', gc._render(call, c.words)))
$$;

comment on function gc._entry_sql(gc._shape, text, text, text, text) is
    'A function that is called for those who may use the collection.';
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
-- Tracking: make a table a collection, stop doing so, and find what was there before.

-- Generated code belongs to the owner of blobgc and acts with that role's rights, so nobody else
-- can have it made.
create function gc._require_owner()
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    owner name := (
        select pg_get_userbyid(n.nspowner) from pg_namespace as n where n.nspname = 'gc'
    );
begin
    if current_user <> owner then
        raise 'only the owner of blobgc can do that'
            using errcode = 'insufficient_privilege',
                detail = format('It belongs to %I, and this is %I.', owner, current_user),
                hint = format('set role %I;', owner);
    end if;
end;
$$;

comment on function gc._require_owner() is 'Raises for a role that does not own blobgc.';


create function gc._choose_name(target regclass, name text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    known text := (select c.name from gc.collections as c where c.target = _choose_name.target);
    chosen text := coalesce(
        name, known, (select c.relname from pg_class as c where c.oid = _choose_name.target));
    other regclass := (select c.target from gc.collections as c where c.name = chosen);
begin
    if chosen <> known then
        raise '"%" is the collection "%" already', target, known
            using errcode = 'duplicate_object',
                detail = 'A table is one collection.',
                hint = format('select gc.untrack(%L); and track it anew, or use that name.', known);
    end if;
    if other <> target then
        raise 'the name "%" is taken', chosen
            using errcode = 'duplicate_object',
                detail = format('It is the collection of %s.', other),
                hint = format('select * from gc.track(%L, name => %L);', target, chosen || '_2');
    end if;
    if chosen = '' or chosen like '\_%' or octet_length(chosen) > 63 then
        raise 'a collection cannot be called "%"', chosen
            using errcode = 'invalid_name',
                detail = 'A name has 1 to 63 bytes and does not begin with an underscore.',
                hint = format('select * from gc.track(%L, name => ''…'');', target);
    end if;
    return chosen;
end;
$$;

comment on function gc._choose_name(regclass, text) is
    'The name of a collection; raises if it is not free.';


create function gc._require_undo(undo interval)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if undo is null or undo < '0' or undo > '10 years' then
        raise 'an undo window is between nothing and ten years'
            using errcode = 'invalid_parameter_value',
                detail = format('undo is %s.', coalesce(undo::text, 'null')),
                hint = 'Leave undo out for none.';
    end if;
end;
$$;

comment on function gc._require_undo(interval) is 'Raises for an undo window that is none.';


create function gc._warn_shared(c gc.collections)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    slow regclass;
    command text;
begin
    for slow, command in
        select o.target, gc._missing_url_index(o)
        from gc.collections as o
        where o.name = c.name or gc._may_share(o, c)
        order by o.name <> c.name, o.name
    loop
        if command is not null then
            raise warning 'nothing finds the rows of "%" by their url', slow
                using hint = command,
                    detail = 'Rows may share an object: each deletion looks for a row that has it.';
        end if;
    end loop;
end;
$$;

comment on function gc._warn_shared(gc.collections) is
    'Warns if objects can be shared and looking for their rows is slow, in this collection or in '
    'one that could have the same objects.';


create function gc._reference_note(target regclass, reference text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format('deferred: a transaction that refers to a row while that is being '
        'collected fails at its commit, not at the statement; '
        'alter table %s alter constraint %I not deferrable;', k.conrelid::regclass, k.conname),
        E'\n' order by k.conname)
    from gc._keepers(target) as f
    join pg_constraint as k on k.oid = f.key
    where f.place = _reference_note.reference and not f.is_part and k.condeferred
$$;

comment on function gc._reference_note(regclass, text) is
    'What gc.track says about a reference; null: nothing.';


-- Whoever deletes a row at this moment writes a tombstone as the old url has it.
create function gc._await_writers(name text, url text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    target regclass := (
        select c.target from gc.collections as c
        join pg_class as t on t.oid = c.target
        where c.name = _await_writers.name and c.url is distinct from _await_writers.url
    );
begin
    if target is not null then
        perform gc._run(format('lock table %s in share mode', target));
    end if;
end;
$$;

comment on function gc._await_writers(text, text) is
    'Waits for those who are writing rows of a collection whose url changes, and keeps others out.';


create function gc.track(
    target regclass, name text default null, url text default null, size text default null,
    label text default null, generation text default null, condition text default null,
    owned text[] default '{}', events jsonb default '{}', undo interval default '0'
)
    returns table (reference text, role text, note text)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    chosen text;
    c gc.collections;
begin
    perform gc._require_owner();
    perform gc._lock('track');
    perform gc._require_table(track.target);
    chosen := gc._choose_name(track.target, track.name);
    perform gc._require_undo(track.undo);
    perform gc._await_writers(chosen, track.url);
    -- What is true of a tombstone under one url need not be so under another.
    update gc.tombstones as d
    set wait_for = null
    from gc.collections as o
    where o.name = chosen and o.url is distinct from track.url
        and d.collection = chosen and d.wait_for = '0';
    insert into gc.collections as o (
        name, target, url, size, label, generation, condition, owned, events, undo
    )
    values (
        chosen, track.target, track.url, track.size, track.label, track.generation,
        track.condition, gc._resolve_owned(track.target, coalesce(track.owned, '{}')),
        coalesce(track.events, '{}'), track.undo
    )
    on conflict (name) do update
    set url = excluded.url, size = excluded.size, label = excluded.label,
        generation = excluded.generation, condition = excluded.condition,
        owned = excluded.owned, events = excluded.events, undo = excluded.undo;
    perform gc._accept_losses(chosen);
    perform gc._generate(chosen, true);
    c := gc._collection(chosen);
    perform gc._block_without_keeper(c);
    perform gc._warn_shared(c);
    return query
        select r.reference, case when r.owned is null then 'keeps' else 'owned' end,
            gc._reference_note(c.target, r.reference)
        from gc._references(c) as r;
end;
$$;
revoke all on function gc.track(
    regclass, text, text, text, text, text, text, text[], jsonb, interval
) from public;

comment on function gc.track(
    regclass, text, text, text, text, text, text, text[], jsonb, interval
) is
    'Makes a table a collection, or changes its definition. Returns each reference into it, '
    'whether it keeps its target or is owned by it, and what should be known about it.';


-- The lock waits for those who are writing rows of the collection: the tombstone of a row that goes
-- at this moment would be handed out, and nobody would look whether another row has its object.
create function gc.untrack(name text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    queue name := gc._object_name(c.name, '_review_queue');
    waiting bigint;
begin
    perform gc._require_owner();
    perform gc._lock('track');
    perform gc._drop_unattached();
    if exists (select from pg_class as t where t.oid = c.target) then
        execute format('lock table %s in share mode', c.target);
    end if;
    perform gc._drop_functions(c.functions);
    execute format('drop type if exists gc.%I', gc._object_name(c.name, '_key'));
    execute format('delete from gc.%I', queue);
    perform gc._set_aside(queue || c.links);
    delete from gc.scan_requests as r where r.collection = c.name;
    delete from gc.holds as h where h.collection = c.name;
    with unread as (
        delete from gc.unread_rows as u where u.collection = c.name returning u.id
    ),
    left_behind as (
        delete from gc.tombstones as t where t.collection = c.name returning t.id
    )
    select (select count(*) from unread) + (select count(*) from left_behind) into waiting;
    delete from gc.collections as o where o.name = c.name;
    if waiting > 0 then
        raise warning '% objects of "%" stay in the store', waiting, c.name
            using detail = 'Their rows are gone, and nobody will delete them any more.',
                hint = 'Roll back, let a runner delete them, and untrack then.';
    end if;
end;
$$;
revoke all on function gc.untrack(text) from public;

comment on function gc.untrack(text) is
    'Makes a collection an ordinary table again. Its triggers do nothing from then on; '
    'gc.drop_unused_triggers drops them, its queue and its links.';


create function gc._scan_step(name text, batch integer)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    cursor text := (select c.scan_cursor from gc.collections as c
        where c.name = _scan_step.name for update);
    seen integer;
    last text;
begin
    perform gc._require_own(name);
    execute format('select seen, last from gc.%I($1, $2)', gc._object_name(name, '_scan'))
    into seen, last using batch, cursor;
    update gc.collections as c
    set scan_cursor = last, scanning = scanning and seen > 0, scan_error = null
    where c.name = _scan_step.name;
    return seen;
end;
$$;

comment on function gc._scan_step(text, integer) is
    'Goes over the next rows of a collection and queues those that nothing refers to.';


create function gc.scan(name text, batch integer default 1000)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
begin
    perform gc._require_owner();
    perform gc._require_batch(batch);
    return gc._scan_step(c.name, batch);
end;
$$;
revoke all on function gc.scan(text, integer) from public;

comment on function gc.scan(text, integer) is
    'Queues rows that were there before tracking or whose events were missed. Goes over one batch '
    'a call and returns how many rows that were; 0 at the end, and then it begins anew.';


-- After a TRUNCATE, for example. A scan that somebody else is at is left to them.
create function gc._scan_if_requested(name text, batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform from gc.collections as c
    where c.name = _scan_if_requested.name
        and (c.scanning or exists (
            select from gc.scan_requests as r where r.collection = c.name
        ))
    for update skip locked;
    if not found then
        return;
    end if;
    update gc.collections as c
    set scanning = true, scan_cursor = null
    where c.name = _scan_if_requested.name and not c.scanning;
    if found then
        delete from gc.scan_requests as r where r.collection = name;
    end if;
    perform gc._scan_step(name, batch);
end;
$$;

comment on function gc._scan_if_requested(text, integer) is
    'Carries a scan on that missed events have made necessary.';


-- By the pairs of letters that two words have in common.
create function gc._nearest(word text, words text[])
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select w
    from unnest(words) as w
    cross join lateral (
        select count(*)
        from (
            select substr(word, i, 2) from generate_series(1, length(word) - 1) as i
            intersect
            select substr(w, i, 2) from generate_series(1, length(w) - 1) as i
        ) as pairs
    ) as common(pairs)
    order by 2.0 * common.pairs / greatest(length(w) + length(word), 1) desc, w
    limit 1
$$;

comment on function gc._nearest(text, text[]) is 'The one of several words that is most like one.';


create function gc._queued(name text, event text)
    returns bigint
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    number bigint;
begin
    execute format('select count(*) from gc.%I as q where q.event = $1',
        gc._object_name(name, '_review_queue'))
    into number using event;
    return number;
end;
$$;

comment on function gc._queued(text, text) is 'How many entries of an event a queue has.';


create function gc.set_delay(event text, delay interval)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    known text[] := array(select distinct k.event from gc._known_events() as k order by 1);
    queued bigint;
begin
    perform gc._require_owner();
    if event is null or event <> all (known) then
        raise 'no collection has an event "%"', coalesce(event, 'null')
            using errcode = 'undefined_object',
                detail = format('Events: %s.',
                    coalesce(nullif(array_to_string(known, ', '), ''), 'none yet')),
                hint = format('select gc.set_delay(%L, %L);', gc._nearest(event, known), delay);
    end if;
    if delay not between '0' and '10 years' then
        raise 'a delay cannot be negative, nor longer than ten years'
            using errcode = 'invalid_parameter_value', detail = format('delay is %s.', delay),
                hint = format('select gc.set_delay(%L, ''1 day'');', event);
    end if;
    delete from gc.review_after_defaults as d where d.event = set_delay.event and delay is null;
    insert into gc.review_after_defaults as d (event, value)
    select set_delay.event, delay where delay is not null
    on conflict on constraint review_after_defaults_pkey do update set value = excluded.value;
    queued := (select sum(gc._queued(k.collection, k.event)) from gc._known_events() as k
        where k.event = set_delay.event);
    if queued > 0 then
        raise notice '% reviews that "%" has queued already keep their time', queued, event;
    end if;
end;
$$;
revoke all on function gc.set_delay(text, interval) from public;

comment on function gc.set_delay(text, interval) is
    'How long after an event a row is reviewed, from now on; null: a day, as without it.';
-- What is no longer used: triggers that do nothing, their functions, tables of gone collections.
--
-- Dropping a trigger locks its table against everybody, readers too. So gc.track and gc.untrack
-- only put triggers out of use, and they are dropped here, one table at a time, each in a
-- transaction of its own. Queues and links go last: while a trigger is there, a statement that
-- began before it was put out of use may still be about to write into them.

create function gc._unused_functions()
    returns setof regprocedure
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select f.oid::regprocedure from pg_proc as f
    where f.pronamespace = 'gc'::regnamespace and f.prorettype = 'trigger'::regtype
        and starts_with(f.proname, '_unused_')
$$;

comment on function gc._unused_functions() is 'Trigger functions that do nothing any more.';


create function gc._tables_with_unused_triggers()
    returns regclass[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array(
        select distinct t.tgrelid::regclass from pg_trigger as t
        where t.tgfoid in (select gc._unused_functions()) and t.tgparentid = 0
        order by 1
    )
$$;

comment on function gc._tables_with_unused_triggers() is
    'The tables that have triggers which do nothing any more.';


-- A right is enough to create a trigger; only the table's owner can drop it. lock_timeout is named
-- so that what is set inside ends with the function.
create function gc._drop_triggers_of(relation regclass)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '2s'
as $$
declare
    command text;
begin
    perform set_config('lock_timeout',
        (extract(epoch from s.lock_timeout) * 1000)::integer || 'ms', true)
    from gc.settings as s;
    for command in
        select format('drop trigger %I on %s', t.tgname, relation)
        from pg_trigger as t
        where t.tgrelid = relation and t.tgparentid = 0
            and t.tgfoid in (select gc._unused_functions())
    loop
        perform gc._run(command);
    end loop;
exception
    when lock_not_available then
        raise warning '% is locked, and keeps triggers that do nothing', relation
            using hint = 'call gc.drop_unused_triggers(); at another time.';
    when insufficient_privilege then
        raise warning '% keeps triggers that do nothing', relation
            using detail = sqlerrm || '.', hint = 'Its owner can drop them.';
end;
$$;

comment on function gc._drop_triggers_of(regclass) is
    'Drops the triggers of one table that do nothing any more, if it can be locked.';


-- Of tables that are gone, for example. No table is locked for that.
create function gc._drop_unattached()
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._drop_function(f) from gc._unused_functions() as f
    where not exists (select from pg_trigger as t where t.tgfoid = f);
end;
$$;

comment on function gc._drop_unattached() is
    'Drops functions that are out of use and that no trigger has any more.';


-- The lock: nobody is just about to use one of the tables again.
create function gc._drop_unused_rest()
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    unused name;
begin
    perform gc._drop_unattached();
    if exists (select from gc._unused_functions()) then
        return;
    end if;
    lock table gc.collections in share mode;
    for unused in
        delete from gc.unused_tables as u returning u.name
    loop
        if not exists (
            select from gc.collections as c
            where unused = gc._object_name(c.name, '_review_queue') or unused = any (c.links)
        ) then
            perform gc._drop_links(array[unused]);
        end if;
    end loop;
end;
$$;

comment on function gc._drop_unused_rest() is
    'Drops functions that no trigger has, and, when there is none left, tables that are not used.';


-- A procedure that commits can have no settings of its own: everything in it is qualified.
create procedure gc.drop_unused_triggers()
    language plpgsql
as $$
declare
    relation pg_catalog.regclass;
begin
    perform gc._require_owner();
    foreach relation in array gc._tables_with_unused_triggers() loop
        perform gc._drop_triggers_of(relation);
        commit;
    end loop;
    perform gc._drop_unused_rest();
end;
$$;
revoke all on procedure gc.drop_unused_triggers() from public;

comment on procedure gc.drop_unused_triggers() is
    'Drops triggers that gc.track or gc.untrack have put out of use, and what belongs to them. '
    'Locks one table at a time, for a moment, and can be called again for those it could not lock.';
-- Reviewing: all collections, a batch of each, in one transaction.
--
-- A batch is a handful of statements. If it raises, its rows are tried one by one, each in a
-- subtransaction: one bad row costs one bad row. A row that has failed is never in a batch again.

create function gc._due(name text, failed boolean, batch integer)
    returns tid[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    entries tid[];
begin
    execute format(
        'select array(select q.ctid from gc.%I as q where q.review_after <= now() and %s '
        'order by q.review_after limit $1 for update skip locked)',
        gc._object_name(name, '_review_queue'),
        case when failed then 'q.review_count > 0' else 'q.review_count = 0' end)
    into entries using batch;
    return entries;
end;
$$;

comment on function gc._due(text, boolean, integer) is
    'Locks entries of a queue that are due: those that failed before, or those that did not.';


create function gc._back_off(name text, entries tid[], error text)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    changed integer;
begin
    execute format('select gc.%I($1, $2)', gc._object_name(name, '_back_off'))
    into changed using entries, error;
    return changed;
end;
$$;

comment on function gc._back_off(text, tid[], text) is
    'Puts failed reviews off, longer each time, and keeps the error.';


create type gc._review_result as (
    reviewed integer, kept integer, deleted integer, busy integer, failed integer, bytes bigint,
    touched integer
);

comment on type gc._review_result is 'What a review did; "touched" counts owned rows too.';


create function gc._add(a gc._review_result, b gc._review_result)
    returns gc._review_result
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select (
        a.reviewed + b.reviewed, a.kept + b.kept, a.deleted + b.deleted, a.busy + b.busy,
        a.failed + b.failed, a.bytes + b.bytes, a.touched + b.touched
    )::gc._review_result
$$;

comment on function gc._add(gc._review_result, gc._review_result) is 'Two results as one.';


-- Never "all": that would fire what is pending in the caller's transaction, a trigger on a
-- temporary table of the caller's own for example, with the rights of blobgc's owner. A name stands
-- for every constraint in the schema that has it; gc._untrusted looks at these, too.
create function gc._check_deferred(name text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    named text := (
        select string_agg(distinct d.named, ', ')
        from gc._deferrable(array(
            select t.relation from gc._touched_by(gc._collection(name)) as t where t.written
        )) as d
    );
begin
    if named is not null then
        perform set_config('search_path',
            gc._application_path((gc._collection(name)).target), true);
        perform gc._run('set constraints ' || named || ' immediate');
    end if;
end;
$$;

comment on function gc._check_deferred(text) is
    'Checks the deferred constraints that a review of this collection can have violated.';


create function gc._review_batch(name text, batch integer, entries tid[], room integer)
    returns gc._review_result
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    reviewed integer;
    kept integer;
    deleted integer;
    busy integer;
    bytes bigint;
    touched integer;
begin
    execute format(
        'select reviewed, kept, deleted, busy, bytes, touched from gc.%I($1, $2, $3, true)',
        gc._object_name(name, '_review'))
    into reviewed, kept, deleted, busy, bytes, touched using batch, entries, room;
    -- What a deferred constraint has to say, it says now, while one row can still be told apart.
    if touched > 0 then
        perform gc._check_deferred(name);
    end if;
    if deleted > 0 then
        insert into gc.totals (collection, rows) values (name, deleted);
    end if;
    return (reviewed, kept, deleted, busy, 0, bytes, touched)::gc._review_result;
end;
$$;

comment on function gc._review_batch(text, integer, tid[], integer) is
    'Calls the review function of a collection, and adds up what it deleted.';


-- What raises is tried again in halves, until the one entry is found that does: that is put off,
-- and the others go on. Each part is taken anew, because reviewing one entry may move another. A
-- lock that could not be obtained twice is not waited for again.
create function gc._review_in_parts(
    name text, batch integer, refused boolean, room integer, until timestamptz
)
    returns gc._review_result
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    total gc._review_result := (0, 0, 0, 0, 0, 0, 0);
    r gc._review_result;
    part integer := case when refused then 1 else (batch + 1) / 2 end;
    locked_out integer := 0;
    failed integer;
    entries tid[];
begin
    for attempt in 1 .. 2 * batch + 20 loop
        exit when total.reviewed >= batch or total.touched >= room or locked_out > 1
            or clock_timestamp() > until;
        entries := gc._due(name, refused, least(part, batch - total.reviewed));
        exit when cardinality(entries) = 0;
        begin
            r := gc._review_batch(name, part, entries, room - total.touched);
            total := gc._add(total, r);
            part := part * 2;
        exception
            when query_canceled or others then
                locked_out := locked_out + (sqlstate = '55P03')::integer;
                if part = 1 or sqlstate = '57014' then
                    failed := gc._back_off(name, entries, sqlerrm);
                    total := gc._add(total, (failed, 0, 0, 0, failed, 0, 0)::gc._review_result);
                end if;
                exit when sqlstate = '57014';
                part := greatest(part / 2, 1);
        end;
    end loop;
    return total;
end;
$$;

comment on function gc._review_in_parts(text, integer, boolean, integer, timestamptz) is
    'Reviews what may raise; one entry that does is put off, and the others go on. With refused, '
    'those that have failed before; without, those that have not.';


-- The row may be locked by a session that makes the code again: it is not waited for.
create function gc._note_problem(name text, problem text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform from gc.collections as c
    where c.name = _note_problem.name and c.problem is distinct from _note_problem.problem
    for update skip locked;
    if found then
        update gc.collections as c
        set problem = _note_problem.problem,
            problem_since = case
                when _note_problem.problem is null then null else coalesce(c.problem_since, now())
            end
        where c.name = _note_problem.name;
    end if;
end;
$$;

comment on function gc._note_problem(text, text) is
    'Notes why a collection is not reviewed, or with null that it is again.';


create function gc._read_row(reader name, id bigint)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    begin
        execute format('select gc.%I($1, false)', reader) using array[id];
        return;
    exception
        when others then
            null;
    end;
    execute format('select gc.%I($1, true)', reader) using array[id];
exception
    when others then
        update gc.unread_rows as u
        set due_at = now() + gc._backoff(u.failures), failures = u.failures + 1,
            last_error = sqlerrm
        where u.id = _read_row.id;
end;
$$;

comment on function gc._read_row(name, bigint) is
    'Writes the tombstone of one row that was kept whole; without label and size if these raise.';


-- Rows that a trigger could not work out: now the code fits the table again.
create function gc._read_rows(name text, batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    reader name := gc._object_name(name, '_read');
    due bigint[] := array(
        select u.id from gc.unread_rows as u
        where u.collection = name and u.due_at <= now()
        order by u.due_at
        limit batch
        for update skip locked
    );
begin
    if cardinality(due) = 0 then
        return;
    end if;
    begin
        execute format('select gc.%I($1, false)', reader) using due;
        return;
    exception
        when others then
            null;
    end;
    perform gc._read_row(reader, u) from unnest(due) as u;
end;
$$;

comment on function gc._read_rows(text, integer) is
    'Writes the tombstones of rows that were kept whole; what still cannot be told comes again.';


-- What goes wrong in either is noted, and costs the collection nothing else.
create function gc._catch_up(name text, batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._read_rows(name, batch);
    perform gc._scan_if_requested(name, batch);
exception
    when query_canceled or others then
        perform from gc.collections as c where c.name = _catch_up.name for update skip locked;
        if found then
            update gc.collections as c set scan_error = sqlerrm where c.name = _catch_up.name;
        end if;
end;
$$;

comment on function gc._catch_up(text, integer) is
    'Works out what triggers have missed.';


create function gc._has_work(c gc.collections)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    is_due boolean;
begin
    execute format('select exists (select from gc.%I as q where q.review_after <= now())',
        gc._object_name(c.name, '_review_queue'))
    into is_due;
    return is_due or c.scanning
        or exists (select from gc.scan_requests as r where r.collection = c.name)
        or exists (
            select from gc.unread_rows as u where u.collection = c.name and u.due_at <= now()
        );
end;
$$;

comment on function gc._has_work(gc.collections) is
    'Whether a review of this collection would find anything to do.';


-- Where there is nothing to do, nothing is locked and nobody has to be trusted. That the catalog
-- has changed is noticed all the same, so that a problem is known before something is due.
create function gc._is_idle(c gc.collections)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return c.problem is null and not gc._has_work(c)
        and coalesce(gc._fingerprint(c) = c.fingerprint, false);
end;
$$;

comment on function gc._is_idle(gc.collections) is
    'Whether a collection needs no review: nothing is due, and nothing has changed.';


-- The lock comes first, outside of everything that may be undone, and is kept to the end.
create function gc._is_reviewable(name text)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
begin
    perform gc._require_own(name);
    if gc._is_idle(c) then
        return false;
    end if;
    perform gc._is_current(name, c.fingerprint);
    perform gc._note_problem(name, null);
    return true;
exception
    when query_canceled or others then
        perform gc._note_problem(name, sqlerrm);
        return false;
end;
$$;

comment on function gc._is_reviewable(text) is
    'Locks a collection for a review and makes its code fit. False if there is nothing to do or, '
    'with a note, if it cannot be reviewed.';


create function gc._review_collection(name text, batch integer, room integer, until timestamptz)
    returns gc._review_result
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    nothing gc._review_result := (0, 0, 0, 0, 0, 0, 0);
    r gc._review_result := nothing;
begin
    if not gc._is_reviewable(name) then
        return r;
    end if;
    begin
        r := gc._review_batch(name, batch, null, room);
    exception
        when query_canceled or others then
            r := gc._review_in_parts(name, batch, false, room, until);
    end;
    -- What has failed before is looked at one by one, a few in each review.
    r := gc._add(r, gc._review_in_parts(name, least(batch, 100), true,
        room - r.touched, least(until, clock_timestamp() + interval '10 seconds')));
    perform gc._catch_up(name, batch);
    return r;
end;
$$;

comment on function gc._review_collection(text, integer, integer, timestamptz) is
    'Reviews a batch of one collection, whatever happens in it.';


create function gc._in_turn()
    returns text[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select coalesce(array_agg(c.name order by c.name < t.first_name, c.name), '{}')
        from gc.collections as c
        cross join (
            select coalesce(max(o.first_name), '') from gc.turns as o
        ) as t(first_name)
    );
end;
$$;

comment on function gc._in_turn() is 'The collections in the order in which they are reviewed.';


create function gc._begin_next_with(name text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform from gc.turns for update skip locked;
    if found then
        update gc.turns set first_name = name;
    end if;
end;
$$;

comment on function gc._begin_next_with(text) is
    'Notes where a review has stopped because its time was over.';


-- What time and room is left is shared out, and a review that runs out of time is followed by one
-- that begins where it stopped, so that no collection can starve the others. lock_timeout is named
-- here so that what is set inside ends with the function.
create function gc.review(batch integer default 1000)
    returns table (
        collection text, reviewed integer, kept integer, deleted integer, busy integer,
        failed integer, bytes bigint
    )
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '2s'
as $$
declare
    names text[] := gc._in_turn();
    room integer := (select s.max_rows from gc.settings as s);
    time_left interval := (select s.statement_timeout from gc.settings as s);
    until timestamptz := clock_timestamp() + time_left;
    results jsonb := jsonb_build_object();
    r gc._review_result;
begin
    perform gc._require_read_committed('review');
    perform gc._require_batch(batch);
    perform gc._limit_lock_waits();
    for i in 1 .. cardinality(names) loop
        if clock_timestamp() > until then
            perform gc._begin_next_with(names[i]);
            exit;
        end if;
        time_left := greatest(until - clock_timestamp(), '0') / (cardinality(names) - i + 1);
        r := gc._review_collection(names[i], batch,
            ceil(room::numeric / (cardinality(names) - i + 1))::integer,
            clock_timestamp() + time_left);
        room := greatest(room - r.touched, 0);
        results := results || jsonb_build_object(names[i], r);
    end loop;
    perform gc._purge_log(batch);
    perform gc._purge_holds(batch);
    perform gc._forget_deleted(batch);
    return query
        select e.key, o.reviewed, o.kept, o.deleted, o.busy, o.failed, o.bytes
        from jsonb_each(results) as e
        cross join lateral jsonb_populate_record(null::gc._review_result, e.value) as o
        order by e.key;
end;
$$;
revoke all on function gc.review(integer) from public;

comment on function gc.review(integer) is
    'Reviews what is due in every collection, a batch of each, and deletes what is garbage.';
-- Seeing: what an operator asks first, and when there will be work.

create function gc._queue_status(
    name text, out queued bigint, out due bigint, out overdue_since timestamptz,
    out failing bigint, out last_error text
)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    queue name := gc._object_name(name, '_review_queue');
begin
    execute format(
        'select count(*), count(*) filter (where q.review_after <= now()), '
        'min(q.review_after) filter (where q.review_after <= now()), '
        'count(*) filter (where q.review_count > 0), '
        '(select f.last_error from gc.%1$I as f where f.last_error is not null '
        'order by f.review_after desc limit 1) from gc.%1$I as q', queue)
    into queued, due, overdue_since, failing, last_error;
end;
$$;

comment on function gc._queue_status(text) is 'What gc.status says about one review queue.';


create function gc._tombstone_status(
    name text, out waiting bigint, out claimed bigint, out failing bigint, out bytes numeric,
    out last_error text, out held_up bigint, out held_up_by text, out overdue_since timestamptz
)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select count(*) filter (where not c.claimed),
        count(*) filter (where c.claimed),
        count(*) filter (where t.failures > 0),
        coalesce(sum(t.size), 0),
        (array_agg(t.last_error order by t.due_at desc) filter (where t.failures > 0))[1],
        count(*) filter (where c.held_up is not null),
        (array_agg(c.held_up order by t.created_at) filter (where c.held_up is not null))[1],
        min(t.due_at) filter (where t.due_at <= clock_timestamp())
    from gc.tombstones as t
    cross join lateral (
        select t.worker is not null and t.due_at > clock_timestamp(), case
            when t.wait_for > '1'
                then format('a transaction older than %s has not ended', t.wait_for)
            else t.held_up
        end
    ) as c(claimed, held_up)
    where t.collection = name
$$;

comment on function gc._tombstone_status(text) is
    'What gc.status says about the tombstones of one collection.';


-- PostgreSQL looks at the table to print an index, and waits for whoever has it locked: there is
-- no advice then.
create function gc._advice(c gc.collections)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '100ms'
as $$
begin
    return gc._missing_url_index(c);
exception
    when lock_not_available then
        return null;
end;
$$;

comment on function gc._advice(gc.collections) is
    'What gc.status recommends for a collection; null: nothing, or it cannot be told now.';


create function gc.status()
    returns table (
        collection text, target text, queued bigint, due bigint, overdue_since timestamptz,
        failing bigint, last_error text, tombstones_waiting bigint, tombstones_claimed bigint,
        tombstones_failing bigint, tombstones_last_error text, bytes_waiting numeric,
        deleted_today numeric, bytes_today numeric, deleted_total numeric, bytes_total numeric,
        paused boolean, why text, tombstones_held_up bigint, held_up_by text,
        tombstones_overdue_since timestamptz, advice text
    )
    language sql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
as $$
    select c.name, c.target::text, q.queued, q.due, q.overdue_since, q.failing, q.last_error,
        t.waiting, t.claimed, t.failing, t.last_error, t.bytes,
        d.deleted_today, d.bytes_today, d.deleted_total, d.bytes_total,
        c.problem is not null, coalesce(c.problem, 'a scan failed: ' || c.scan_error,
            (select 'a row that went cannot be worked out: ' || min(u.last_error)
                from gc.unread_rows as u where u.collection = c.name)),
        t.held_up, t.held_up_by, t.overdue_since, gc._advice(c)
    from gc.collections as c
    cross join lateral gc._queue_status(c.name) as q
    cross join lateral gc._tombstone_status(c.name) as t
    cross join lateral (
        select coalesce(sum(n.deleted) filter (where n.day = current_date), 0),
            coalesce(sum(n.bytes) filter (where n.day = current_date), 0),
            coalesce(sum(n.deleted), 0), coalesce(sum(n.bytes), 0)
        from (
            select o.day, case when c.url is null then o.rows else o.objects end, o.bytes
            from gc.totals as o
            where o.collection = c.name
        ) as n(day, deleted, bytes)
    ) as d(deleted_today, bytes_today, deleted_total, bytes_total)
    order by c.name
$$;
revoke all on function gc.status() from public;

comment on function gc.status() is
    'One row a collection: what is queued, due, failing and waiting, what was deleted, and whether '
    'anything is in the way.';


create function gc._next_review(name text)
    returns timestamptz
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    due timestamptz;
begin
    execute format('select min(q.review_after) from gc.%I as q',
        gc._object_name(name, '_review_queue'))
    into due;
    return due;
end;
$$;

comment on function gc._next_review(text) is 'When the next review of a collection is due.';


-- One step of the index for each store and each kind of tombstone, and further only over those that
-- are not under a prefix. What waits for a transaction is asked for again in a second.
create function gc._next_claim(prefixes text[])
    returns timestamptz
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select min(d.due_at)
    from gc._stores(prefixes) as s
    cross join lateral (
        (
            select t.due_at from gc.tombstones as t
            where t.store = s and t.wait_for is null
                and (prefixes is null or t.url ^@ any (prefixes))
            order by t.due_at
            limit 1
        )
        union all
        select o.due_at
        from unnest('{0,1}'::xid8[]) as r
        cross join lateral (
            select t.due_at from gc.tombstones as t
            where t.store = s and t.wait_for = r
                and (prefixes is null or t.url ^@ any (prefixes))
            order by t.due_at
            limit 1
        ) as o
        union all
        (
            select now() + interval '1 second' from gc.tombstones as t
            where t.store = s and t.wait_for > '1'
                and (prefixes is null or t.url ^@ any (prefixes))
            limit 1
        )
    ) as d(due_at)
$$;

comment on function gc._next_claim(text[]) is 'When the next tombstone can be claimed.';


create function gc.next_due(prefixes text[] default null)
    returns timestamptz
    language sql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
as $$
    select least(
        now() + s.max_sleep,
        (select min(gc._next_review(c.name)) from gc.collections as c where c.problem is null),
        gc._next_claim(prefixes),
        (
            select now() from gc.collections as c
            where c.problem is null
                and (c.scanning and c.scan_error is null or exists (
                    select from gc.scan_requests as r
                    where r.collection = c.name and c.scan_error is null
                ))
            limit 1
        ),
        (
            select min(u.due_at) from gc.unread_rows as u
            join gc.collections as c on c.name = u.collection and c.problem is null
        )
    )
    from gc.settings as s
$$;
revoke all on function gc.next_due(text[]) from public;

comment on function gc.next_due(text[]) is
    'When there will be work: what a runner sleeps until. Never further away than max_sleep. With '
    'prefixes, only objects that are under one of them count.';
-- Metrics: what gc.status tells, a number a row, under the names that Prometheus wants.
--
-- What is waiting is counted, and nothing else is read but the totals, which are a line a day: the
-- cost does not grow with the tables. A url is whatever a row said, so only what looks like a
-- bucket becomes a label, and only the twenty with the most tombstones; all else is "other".

create view gc.metrics as
with collections as (
    select s.*, format('collection="%s"',
            replace(replace(replace(s.collection, E'\\', E'\\\\'), '"', E'\\"'), chr(10),
                E'\\n')) as label
    from gc.status() as s
),
totals as (
    select t.collection, sum(t.rows) as rows, sum(t.objects) as objects, sum(t.bytes) as bytes
    from gc.totals as t
    group by t.collection
),
stores as (
    select t.collection, t.store, count(*) as tombstones, coalesce(sum(t.size), 0) as bytes,
        count(*) filter (where t.worker is not null and t.due_at > clock_timestamp()) as claimed,
        count(*) filter (where t.failures > 0) as failing,
        extract(epoch from clock_timestamp() - min(t.created_at)) as age
    from gc.tombstones as t
    group by 1, 2
),
named_stores as (
    select s.collection, s.label, sum(s.tombstones) as tombstones, sum(s.bytes) as bytes,
        sum(s.claimed) as claimed, sum(s.failing) as failing, max(s.age) as age
    from (
        select s.*, format('store="%s"', case
                when row_number() over (order by s.tombstones desc, s.store) <= 20
                    and s.store ~ '^(file://|(gs|s3|az)://[a-z0-9][a-z0-9._-]{1,62})$'
                    then s.store
                else 'other'
            end) as label
        from stores as s
    ) as s
    group by 1, 2
)
select m.name, m.type, m.help, c.label as labels, coalesce(m.value, 0)::double precision as value
from collections as c
left join totals as t on t.collection = c.collection
cross join lateral (values
    ('blobgc_queue_entries', 'gauge', 'Reviews that are queued', c.queued),
    ('blobgc_queue_due_entries', 'gauge', 'Reviews that are due', c.due),
    ('blobgc_queue_failing_entries', 'gauge', 'Reviews that failed and are tried again', c.failing),
    ('blobgc_queue_overdue_seconds', 'gauge', 'For how long the first review has been due',
        extract(epoch from clock_timestamp() - c.overdue_since)),
    ('blobgc_collection_paused', 'gauge', 'Whether nothing is reviewed: gc.status() says why',
        c.paused::integer),
    ('blobgc_rows_deleted_total', 'counter', 'Rows that reviews deleted', t.rows),
    ('blobgc_objects_deleted_total', 'counter', 'Objects that runners confirmed', t.objects),
    ('blobgc_reclaimed_bytes_total', 'counter', 'Bytes of the objects that are gone', t.bytes)
) as m(name, type, help, value)
union all
select m.name, 'gauge', m.help, c.label || ',' || s.label, m.value::double precision
from collections as c
join named_stores as s on s.collection = c.collection
cross join lateral (values
    ('blobgc_tombstones', 'Objects that are to be deleted', s.tombstones),
    ('blobgc_tombstones_claimed', 'Objects that a runner has under a lease', s.claimed),
    ('blobgc_tombstones_failing', 'Objects that could not be deleted so far', s.failing),
    ('blobgc_tombstones_bytes', 'Bytes of the objects that are to be deleted', s.bytes),
    ('blobgc_tombstones_age_seconds', 'For how long the first of them has waited', s.age)
) as m(name, help, value)
order by 1, 4;

comment on view gc.metrics is 'The numbers that a runner serves to Prometheus.';
comment on column gc.metrics.name is 'The name: counters end in _total, and units are named.';
comment on column gc.metrics.type is 'gauge or counter.';
comment on column gc.metrics.help is 'What is counted.';
comment on column gc.metrics.labels is 'The collection, and the store, as Prometheus writes them.';
comment on column gc.metrics.value is 'The number.';
-- The registry preset: a container registry's tables and operations, in a schema of its own.
--
-- They stand, as plain SQL, in presets/registry.sql; the Makefile puts that text in here. What is
-- made from it belongs to whoever calls gc.create_registry, and is no part of the extension.

create function gc._registry_preset()
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $registry_preset$
select $preset$
-- A container registry: its tables, its operations, and what of it is collected.
--
-- gc.create_registry runs this in a schema of its own, with the search_path set to it. Functions do
-- not have it in theirs: somebody else may be allowed to create things there. They name what is the
-- registry's, as registry.blobs, which stands for the schema that was asked for. {store} and
-- {partitions} stand for what was told, and with partitions the comments "partition by" count.
-- Of garbage collection there is nothing here but three calls of gc.track, at the end.
--
-- Who keeps whom: a tag, a list and a subject keep manifests; manifests and layers keep blobs. All
-- of that is foreign keys. An operation therefore locks what it is about to refer to or to rely on
-- (for key share): a review skips what is locked, and what a review, or another operation, has
-- locked is waited for, and is then there or not. So no foreign key ever fails. Every operation
-- starts from an active repository. The order of locks: the repository, pushes (lower digests
-- first), blobs, then their links, manifests, tags.
--
-- No setting of a session changes what a function does: there is no backslash in a plain literal,
-- and no cast of bytea or of an interval to text. Times that protect are told by the clock.
--
-- Errors have the SQLSTATE class ZR, with the numbers that the OCI distribution specification has:
--   ZR001 blob unknown            ZR006 manifest invalid     ZR010 size invalid
--   ZR003 blob upload unknown     ZR007 manifest unknown     ZR012 denied: still in use
--   ZR004 digest invalid          ZR008 name invalid         ZR020 tag invalid
--   ZR005 manifest blob unknown   ZR009 name unknown         ZR021 name taken
--                                 ZR013 unsupported


-- Digests --------------------------------------------------------------------------------------

create function is_digest(digest bytea)
    returns boolean
    language sql
    immutable
    parallel safe
    return (substr(digest, 1, 1), octet_length(digest))
        in (('\x01'::bytea, 33), ('\x02'::bytea, 65));

comment on function is_digest(bytea) is
    'Whether this is a digest: 01 and the 32 bytes of a SHA-256, or 02 and the 64 of a SHA-512.';


create function digest_text(digest bytea)
    returns text
    language sql
    immutable
    parallel safe
    return case substr(digest, 1, 1) when '\x01' then 'sha256:' when '\x02' then 'sha512:' end
        || encode(substr(digest, 2), 'hex');

comment on function digest_text(bytea) is 'A digest as people write it: sha256:…';


create function blob_url(digest bytea)
    returns text
    language sql
    immutable
    parallel safe
    return '{store}/docker/registry/v2/blobs/'
        || case substr(digest, 1, 1) when '\x01' then 'sha256/' when '\x02' then 'sha512/' end
        || encode(substr(digest, 2, 1), 'hex') || '/' || encode(substr(digest, 2), 'hex')
        || '/data';

comment on function blob_url(bytea) is
    'Where a blob''s object stands: where the distribution registry puts it.';


create function blob_at(url text)
    returns bytea
    language sql
    immutable
    parallel safe
    return case split_part(substr(url, length('{store}/docker/registry/v2/blobs/') + 1), '/', 1)
            when 'sha256' then '\x01'::bytea when 'sha512' then '\x02'::bytea end
        || decode(split_part(substr(url, length('{store}/docker/registry/v2/blobs/') + 1), '/', 3),
            'hex');

comment on function blob_at(text) is 'The digest of the blob whose object stands there.';


-- Tables ---------------------------------------------------------------------------------------
-- All that is in a repository has the repository's key, so that it can be partitioned by namespace
-- and drained by repository.

create table namespaces (
    id bigint generated always as identity
        constraint namespaces_pkey primary key,
    name text collate "C" not null
        constraint namespaces_name_key unique,
    created_at timestamptz not null default now()
);

comment on table namespaces is 'The first parts of repository names: whose repositories they are.';
comment on column namespaces.id is 'By this, what is in its repositories is partitioned.';
comment on column namespaces.name is 'The first part of the names.';
comment on column namespaces.created_at is 'When its first repository was created.';


create table repositories (
    namespace_id bigint not null
        constraint repositories_namespace_fkey references namespaces,
    id bigint generated always as identity,
    path text collate "C" not null,
    state text not null default 'active'
        constraint repositories_state_known check (state in ('initial', 'active', 'deleting')),
    created_at timestamptz not null default clock_timestamp(),
    constraint repositories_pkey primary key (namespace_id, id)
);
create unique index repositories_path_key on repositories (path) where state <> 'deleting';

comment on table repositories is 'Repositories. What is being deleted has given up its name.';
comment on column repositories.namespace_id is 'Whose it is.';
comment on column repositories.id is
    'Tells it from every other, also from an earlier one of the same name.';
comment on column repositories.path is 'Its whole name: acme/app.';
comment on column repositories.state is
    'initial: being filled, and seen by nobody else; active; deleting: the collector empties it.';
comment on column repositories.created_at is 'When it was created.';


create table blobs (
    digest bytea not null
        constraint blobs_digest_valid check (is_digest(digest)),
    size bigint not null
        constraint blobs_size_not_negative check (size >= 0),
    media_type text not null,
    created_at timestamptz not null default now(),
    constraint blobs_pkey primary key (digest),
    -- No two blobs can have one object: blobgc knows by this, and need not look for another.
    constraint blobs_url_own check (digest is not distinct from blob_at(blob_url(digest)))
)
/* partition by hash (digest) */;

comment on table blobs is 'What is in the store: layers and configurations, each only once.';
comment on column blobs.digest is 'A byte for the algorithm, and the digest.';
comment on column blobs.size is 'How big the object is, in bytes.';
comment on column blobs.media_type is 'What it was said to be when it was uploaded.';
comment on column blobs.created_at is 'When it was uploaded first.';


create table repository_blobs (
    namespace_id bigint not null,
    repository_id bigint not null,
    digest bytea not null
        constraint repository_blobs_digest_fkey references blobs on delete cascade,
    created_at timestamptz not null default now(),
    constraint repository_blobs_pkey primary key (namespace_id, repository_id, digest),
    constraint repository_blobs_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index repository_blobs_digest_idx on repository_blobs (digest);

comment on table repository_blobs is
    'Links: which blobs a repository may use. A link keeps nothing; it goes with its blob.';
comment on column repository_blobs.namespace_id is 'Whose repository.';
comment on column repository_blobs.repository_id is 'The repository.';
comment on column repository_blobs.digest is 'The blob.';
comment on column repository_blobs.created_at is 'Since when it is linked.';


create table manifests (
    namespace_id bigint not null,
    repository_id bigint not null,
    id bigint generated always as identity,
    digest bytea not null
        constraint manifests_digest_valid check (is_digest(digest)),
    media_type text not null,
    artifact_type text,
    payload bytea not null,
    configuration_blob_digest bytea
        constraint manifests_configuration_fkey references blobs,
    subject_digest bytea
        constraint manifests_subject_valid check (is_digest(subject_digest)),
    total_size bigint not null,
    created_at timestamptz not null default now(),
    constraint manifests_pkey primary key (namespace_id, repository_id, id),
    constraint manifests_digest_key unique (namespace_id, repository_id, digest),
    constraint manifests_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index manifests_configuration_idx on manifests (configuration_blob_digest);
create index manifests_subject_idx on manifests (namespace_id, repository_id, subject_digest)
    where subject_digest is not null;

comment on table manifests is 'Images, lists of images, and what refers to them, by repository.';
comment on column manifests.namespace_id is 'Whose repository.';
comment on column manifests.repository_id is 'The repository.';
comment on column manifests.id is 'Tells it from every other.';
comment on column manifests.digest is 'The digest of the payload.';
comment on column manifests.media_type is 'What kind of manifest it is.';
comment on column manifests.artifact_type is 'What it is for, where it is not a plain image.';
comment on column manifests.payload is 'What was pushed, byte for byte.';
comment on column manifests.configuration_blob_digest is 'Its configuration; a list has none.';
comment on column manifests.subject_digest is
    'What it is about, as it says itself; that may come later, or never: see referrers.';
comment on column manifests.total_size is
    'The bytes of its configuration and layers. A list has none of its own.';
comment on column manifests.created_at is 'When it was pushed.';


create table layers (
    namespace_id bigint not null,
    repository_id bigint not null,
    manifest_id bigint not null,
    position integer not null,
    digest bytea not null
        constraint layers_digest_fkey references blobs,
    size bigint not null,
    media_type text not null,
    constraint layers_pkey primary key (namespace_id, repository_id, manifest_id, position),
    constraint layers_manifest_fkey foreign key (namespace_id, repository_id, manifest_id)
        references manifests on delete cascade,
    constraint layers_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index layers_digest_idx on layers (digest, namespace_id, repository_id);

comment on table layers is 'The layers of manifests. They keep their blobs.';
comment on column layers.namespace_id is 'Whose repository.';
comment on column layers.repository_id is 'The repository.';
comment on column layers.manifest_id is 'The manifest.';
comment on column layers.position is 'Its place in the manifest, from 1: a blob may occur twice.';
comment on column layers.digest is 'The blob.';
comment on column layers.size is 'How big it is, so that nobody has to look into blobs.';
comment on column layers.media_type is 'What the manifest calls it.';


create table manifest_references (
    namespace_id bigint not null,
    repository_id bigint not null,
    parent_id bigint not null,
    child_id bigint not null
        constraint manifest_references_not_itself check (child_id <> parent_id),
    constraint manifest_references_pkey
        primary key (namespace_id, repository_id, parent_id, child_id),
    constraint manifest_references_parent_fkey foreign key (namespace_id, repository_id, parent_id)
        references manifests on delete cascade,
    constraint manifest_references_child_fkey foreign key (namespace_id, repository_id, child_id)
        references manifests,
    constraint manifest_references_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index manifest_references_child_idx
    on manifest_references (namespace_id, repository_id, child_id);

comment on table manifest_references is
    'What manifest lists consist of. A list keeps its children.';
comment on column manifest_references.namespace_id is 'Whose repository.';
comment on column manifest_references.repository_id is 'The repository.';
comment on column manifest_references.parent_id is 'The list.';
comment on column manifest_references.child_id is 'A manifest in it, which may be a list itself.';


create table referrers (
    namespace_id bigint not null,
    repository_id bigint not null,
    subject_id bigint not null,
    manifest_id bigint not null
        constraint referrers_not_itself check (manifest_id <> subject_id),
    constraint referrers_pkey primary key (namespace_id, repository_id, subject_id, manifest_id),
    constraint referrers_subject_fkey foreign key (namespace_id, repository_id, subject_id)
        references manifests on delete cascade,
    constraint referrers_manifest_fkey foreign key (namespace_id, repository_id, manifest_id)
        references manifests on delete cascade,
    constraint referrers_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index referrers_manifest_idx on referrers (namespace_id, repository_id, manifest_id);

comment on table referrers is
    'Signatures, SBOMs and the like, whose subject is there. A subject keeps its referrers.';
comment on column referrers.namespace_id is 'Whose repository.';
comment on column referrers.repository_id is 'The repository.';
comment on column referrers.subject_id is 'What it is about.';
comment on column referrers.manifest_id is 'The manifest that says so.';


create table tags (
    namespace_id bigint not null,
    repository_id bigint not null,
    name text collate "C" not null,
    manifest_id bigint not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    constraint tags_pkey primary key (namespace_id, repository_id, name),
    constraint tags_manifest_fkey foreign key (namespace_id, repository_id, manifest_id)
        references manifests on delete cascade,
    constraint tags_repository_fkey
        foreign key (namespace_id, repository_id) references repositories
)
/* partition by hash (namespace_id) */;
create index tags_manifest_idx on tags (namespace_id, repository_id, manifest_id);

comment on table tags is 'Names of manifests. A tag keeps its manifest.';
comment on column tags.namespace_id is 'Whose repository.';
comment on column tags.repository_id is 'The repository.';
comment on column tags.name is 'The tag.';
comment on column tags.manifest_id is 'What it stands for now.';
comment on column tags.created_at is 'When it was first set.';
comment on column tags.updated_at is 'When it was last set to another manifest.';


-- A manifest and its subject may be pushed at once, neither seeing the other: they meet here. Each
-- inserts its digest and its subject's and deletes them at once. Who inserts the same digest waits
-- for the end of that transaction, as for any unique key, and then sees what it has done.
create unlogged table pushes (
    repository_id bigint not null,
    digest bytea not null,
    constraint pushes_pkey primary key (repository_id, digest)
);

comment on table pushes is
    'Where pushes of a manifest, its subject and its referrers wait for each other. Always empty.';
comment on column pushes.repository_id is 'The repository.';
comment on column pushes.digest is 'What is pushed, or what that is about.';


-- Partitions -----------------------------------------------------------------------------------
-- In a schema of their own, so that \dt shows tables.

do $$
declare
    home name := current_schema() || '_partitions';
    command text;
begin
    for command in
        select format('create schema %I', home) where {partitions} > 0
        union all
        select format('create table %I.%I partition of %I for values with '
            '(modulus {partitions}, remainder %s)', home, t.relname || '_' || n, t.relname, n)
        from generate_series(0, {partitions} - 1) as n
        cross join pg_class as t
        where t.relnamespace = quote_ident(current_schema())::regnamespace and t.relkind = 'p'
    loop
        execute command;
    end loop;
end;
$$;


-- Errors ---------------------------------------------------------------------------------------

create function _refuse(code text, message text, detail text, hint text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    raise '%', message using errcode = code, detail = detail, hint = hint;
end;
$$;

comment on function _refuse(text, text, text, text) is 'Raises one of the errors of a registry.';


-- The algorithm's byte and the bytes; what people write has lowercase letters only.
create function digest_bytes(digest text)
    returns bytea
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if digest ~ '^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$' then
        return decode(case left(digest, 7) when 'sha256:' then '01' else '02' end
            || substr(digest, 8), 'hex');
    end if;
    perform registry._refuse('ZR004', 'this is not a digest', coalesce(left(digest, 200), 'null'),
        'Write it as sha256: and 64 hexadecimal digits, or sha512: and 128, in lower case.');
    return null;
end;
$$;

comment on function digest_bytes(text) is 'The digest that is written so; raises ZR004 if none is.';


-- Repositories ---------------------------------------------------------------------------------

create function is_abandoned(state text, created_at timestamptz, at timestamptz default now())
    returns boolean
    language sql
    stable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select state = 'deleting' or state = 'initial' and created_at <= at - interval '2 minutes'
$$;

comment on function is_abandoned(text, timestamptz, timestamptz) is
    'Whether a repository is to be emptied: it is deleted, or was not filled within 2 minutes.';


create function _require_name(name text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if (case when octet_length(name) <= 255 then
        name ~ '^[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*)*$' end)
    then
        return;
    end if;
    perform registry._refuse('ZR008', 'a repository cannot be called so',
        coalesce(left(name, 300), 'null'),
        'Use parts like acme/app, of lowercase letters, digits, and . _ - between them.');
end;
$$;

comment on function _require_name(text) is 'Raises ZR008 for what is not a repository''s name.';


create function _refuse_unknown_repository(repository text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._refuse('ZR009', format('there is no repository "%s"', left(repository, 300)),
        'It was never created, or is not filled yet, or has been deleted.',
        format('select create_repository(%L);', split_part(left(repository, 300), '@', 1)));
end;
$$;

comment on function _refuse_unknown_repository(text) is 'Raises ZR009.';


-- acme/app is the active repository of that name. acme/app@17 is the one with that id, also while
-- it is being filled: only whoever created it knows its id.
create function find_repository(repository text)
    returns repositories
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    parts text[] := regexp_match(left(repository, 300), '^([^@]*)(?:@([1-9][0-9]{0,17}))?$');
    r registry.repositories;
begin
    perform registry._require_name(coalesce(parts[1], repository));
    select o.* into r
    from registry.repositories as o
    where o.path = parts[1] and o.state <> 'deleting'
        and case
            when parts[2] is null then o.state = 'active'
            else o.id = parts[2]::bigint
                and not registry.is_abandoned(o.state, o.created_at, clock_timestamp())
        end;
    if not found then
        perform registry._refuse_unknown_repository(repository);
    end if;
    return r;
end;
$$;

comment on function find_repository(text) is
    'The active repository of this name; raises ZR009 if there is none. name@id: exactly that one.';


-- With an older snapshot, what was locked a moment ago would not be seen.
create function _require_read_committed()
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform registry._refuse('ZR013', 'a registry works in READ COMMITTED only',
            format('The transaction is %s.', current_setting('transaction_isolation')),
            'set transaction isolation level read committed;');
    end if;
end;
$$;

comment on function _require_read_committed() is
    'Raises ZR013 in a transaction of another isolation level.';


create function _enter(repository text)
    returns repositories
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories;
begin
    perform registry._require_read_committed();
    loop
        r := registry.find_repository(repository);
        -- Against the collector, which locks it to empty it: that may have begun meanwhile, so the
        -- time is told by the clock and not by when the transaction began.
        perform from registry.repositories as o
        where o.namespace_id = r.namespace_id and o.id = r.id
            and not registry.is_abandoned(o.state, o.created_at, clock_timestamp())
        for key share;
        exit when found;
    end loop;
    return r;
end;
$$;

comment on function _enter(text) is
    'The repository, as find_repository finds it, locked so that it stays until the commit.';


create function _lock_namespace(name text)
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    namespace_id bigint;
begin
    loop
        select n.id into namespace_id from registry.namespaces as n
        where n.name = _lock_namespace.name
        for key share;
        exit when found;
        insert into registry.namespaces (name) values (name) on conflict do nothing;
    end loop;
    return namespace_id;
end;
$$;

comment on function _lock_namespace(text) is
    'The id of a namespace, which is created if it is not there, locked so that it stays.';


create function create_repository(repository text, state text default 'active')
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    created bigint;
begin
    perform registry._require_name(repository);
    perform registry._require_read_committed();
    update registry.repositories as r
    set state = 'deleting'
    where r.path = repository and r.state = 'initial'
        and registry.is_abandoned(r.state, r.created_at, clock_timestamp());
    insert into registry.repositories (namespace_id, path, state)
    values (registry._lock_namespace(split_part(repository, '/', 1)), repository, state)
    on conflict do nothing
    returning id into created;
    if not found then
        perform registry._refuse('ZR021', format('there is a repository "%s" already', repository),
            'Or one is being filled at this moment.', 'Use it, or delete it first.');
    end if;
    return format('%s@%s', repository, created);
end;
$$;

comment on function create_repository(text, text) is
    'Creates a repository and returns name@id. With state initial it is seen only under that name, '
    'until activate_repository; it has 2 minutes for that.';


-- Another may have found that it was not filled in time, and deleted it.
create function activate_repository(repository text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
begin
    perform from registry.repositories as o
    where o.namespace_id = r.namespace_id and o.id = r.id and o.state <> 'deleting'
    for no key update;
    if not found then
        perform registry._refuse_unknown_repository(repository);
    end if;
    update registry.repositories as o
    set state = 'active'
    where o.namespace_id = r.namespace_id and o.id = r.id and o.state = 'initial';
end;
$$;

comment on function activate_repository(text) is
    'Says that a repository that was created with state initial has all its contents.';


create function delete_repository(repository text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
begin
    update registry.repositories as o
    set state = 'deleting'
    where o.namespace_id = r.namespace_id and o.id = r.id and o.state <> 'deleting';
    if not found then
        perform registry._refuse_unknown_repository(repository);
    end if;
end;
$$;

comment on function delete_repository(text) is
    'Deletes a repository. Its name is free at once; the collector takes its contents away.';


create function list_repositories(n integer default null, last text default null)
    returns setof text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select r.path from registry.repositories as r
    where r.state = 'active' and (last is null or r.path > last)
    order by r.path
    limit case when n < 0 then 0 else n end
$$;

comment on function list_repositories(integer, text) is
    'The names of active repositories in order: the first n that come after the last one seen.';


-- Blobs ----------------------------------------------------------------------------------------

create function _blob_key(digest bytea)
    returns text
    language sql
    immutable
    parallel safe
    return E'\\x' || encode(digest, 'hex');

comment on function _blob_key(bytea) is
    'A blob''s key as blobgc has it, whatever a session''s bytea_output is.';


create function begin_blob_upload(
    repository text, digest text, wait interval default '5 seconds', upload text default null
)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    key bytea := registry.digest_bytes(digest);
    url text := registry.blob_url(key);
begin
    perform registry._enter(repository);
    perform gc.begin_upload('blob', registry._blob_key(key), url, wait, upload => upload);
    return url;
end;
$$;

comment on function begin_blob_upload(text, text, interval, text) is
    'Says that a blob is about to be written, and returns where to. Waits for one that is being '
    'deleted; raises ZG001 when that takes too long. Give each upload a name of its own.';


create function _refuse_unknown_blob(r repositories, digest bytea)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._refuse('ZR001',
        format('"%s" has no blob %s', r.path, registry.digest_text(digest)),
        'It never had it, or the blob has been collected.', 'Upload or mount it.');
end;
$$;

comment on function _refuse_unknown_blob(repositories, bytea) is 'Raises ZR001.';


create function _require_blob(r repositories, digest bytea)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform from registry.repository_blobs as l
    where l.namespace_id = r.namespace_id and l.repository_id = r.id
        and l.digest = _require_blob.digest;
    if not found then
        perform registry._refuse_unknown_blob(r, digest);
    end if;
end;
$$;

comment on function _require_blob(repositories, bytea) is
    'Raises ZR001 for a blob that is not linked to the repository.';


-- A link keeps nothing, but a manifest will follow: until then the blob is kept alive. Waits for a
-- review that has the blob, and may find it gone, and for whoever unlinks it.
create function _link(r repositories, digest bytea)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not gc.keep_alive('blob', registry._blob_key(digest)) then
        perform registry._refuse('ZR001',
            format('there is no blob %s', registry.digest_text(digest)),
            'It was never uploaded, or has been collected.', 'Upload it.');
    end if;
    loop
        insert into registry.repository_blobs (namespace_id, repository_id, digest)
        values (r.namespace_id, r.id, digest)
        on conflict do nothing;
        exit when found;
        perform from registry.repository_blobs as l
        where l.namespace_id = r.namespace_id and l.repository_id = r.id and l.digest = _link.digest
        for key share;
        exit when found;
    end loop;
end;
$$;

comment on function _link(repositories, bytea) is
    'Links a blob to a repository; raises ZR001 if the blob is not there.';


-- A row that is there may be deleted between the insert and the lock: then there is room for it.
create function _add_blob(digest bytea, size bigint, media_type text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    known bigint;
begin
    loop
        insert into registry.blobs (digest, size, media_type) values (digest, size, media_type)
        on conflict do nothing;
        select b.size into known from registry.blobs as b
        where b.digest = _add_blob.digest
        for key share;
        exit when found;
    end loop;
    if known <> size then
        perform registry._refuse('ZR010', 'a blob has one size', format('%s has %s bytes, not %s.',
            registry.digest_text(digest), known, size),
            'Find out which of the two is not that blob.');
    end if;
end;
$$;

comment on function _add_blob(bytea, bigint, text) is
    'Inserts a blob that may be there already; raises ZR010 if that one has another size.';


create function _refuse_upload(digest text, upload text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._refuse('ZR003',
        format('no upload %sof %s was begun', quote_literal(left(upload, 100)) || ' ', digest),
        'Or it took longer than gc.settings.upload_timeout, or is finished.',
        'Call begin_blob_upload with a new name for the upload, write the object again, and '
        'finish then, with that name.');
end;
$$;

comment on function _refuse_upload(text, text) is 'Raises ZR003.';


create function finish_blob_upload(
    repository text, digest text, size bigint,
    media_type text default 'application/octet-stream', upload text default null
)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
    key bytea := registry.digest_bytes(digest);
begin
    if coalesce(size < 0, true) then
        perform registry._refuse('ZR010', 'a size is a number of bytes',
            coalesce(size::text, 'null'),
            'Count the bytes that were written.');
    end if;
    begin
        perform registry._add_blob(key, size, coalesce(media_type, 'application/octet-stream'));
    exception
        -- Nobody has announced it, and gc.settings.strict_uploads is on.
        when sqlstate 'ZG002' then
            perform registry._refuse_upload(digest, upload);
    end;
    perform registry._link(r, key);
    if not gc.end_upload('blob', registry._blob_key(key), upload) then
        perform registry._refuse_upload(digest, upload);
    end if;
end;
$$;

comment on function finish_blob_upload(text, text, bigint, text, text) is
    'Says that the blob is written, by the upload of that name. It is linked, and reviewed if no '
    'manifest uses it in a day. Raises ZR003 for an upload that was not begun, or has timed out.';


create function link_blob(repository text, digest text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._link(registry._enter(repository), registry.digest_bytes(digest));
end;
$$;

comment on function link_blob(text, text) is
    'Lets a repository use a blob that is in the store already.';


create function mount_blob(repository text, digest text, source text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._require_blob(registry.find_repository(source), registry.digest_bytes(digest));
    perform registry._link(registry._enter(repository), registry.digest_bytes(digest));
end;
$$;

comment on function mount_blob(text, text, text) is
    'Lets a repository use a blob that another one uses.';


create function unlink_blob(repository text, digest text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
    key bytea := registry.digest_bytes(digest);
begin
    -- Whoever pushes a manifest locks the links that it needs: it is before this, or too late.
    perform from registry.repository_blobs as l
    where l.namespace_id = r.namespace_id and l.repository_id = r.id and l.digest = key
    for update;
    if not found then
        perform registry._refuse_unknown_blob(r, key);
    end if;
    if exists (
        select from registry.layers as l
        where l.namespace_id = r.namespace_id and l.repository_id = r.id and l.digest = key
    ) or exists (
        select from registry.manifests as m
        where m.namespace_id = r.namespace_id and m.repository_id = r.id
            and m.configuration_blob_digest = key
    ) then
        perform registry._refuse('ZR012', format('a manifest of "%s" uses %s', r.path, digest),
            'It could not be pulled any more.', 'Delete the manifest first.');
    end if;
    delete from registry.repository_blobs as l
    where l.namespace_id = r.namespace_id and l.repository_id = r.id and l.digest = key;
end;
$$;

comment on function unlink_blob(text, text) is
    'Takes a blob away from a repository, none of whose manifests uses it.';


create function has_blob(repository text, digest text)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
    key bytea := registry.digest_bytes(digest);
begin
    return exists (
        select from registry.repository_blobs as l
        where l.namespace_id = r.namespace_id and l.repository_id = r.id and l.digest = key
    ) and gc.keep_alive('blob', registry._blob_key(key));
end;
$$;

comment on function has_blob(text, text) is
    'Whether the repository has the blob. If so, it stays long enough to push a manifest.';


create function get_blob(
    repository text, digest text, out url text, out size bigint, out media_type text
)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    key bytea := registry.digest_bytes(digest);
begin
    perform registry._require_blob(registry.find_repository(repository), key);
    select registry.blob_url(b.digest), b.size, b.media_type into url, size, media_type
    from registry.blobs as b
    where b.digest = key;
end;
$$;

comment on function get_blob(text, text) is
    'Where a blob of the repository is to be read; raises ZR001 if it has none such.';


-- Reading a manifest ---------------------------------------------------------------------------
-- Nothing in it is believed. What is not understood is refused, never skipped. It is read as json,
-- which is text that has been checked: no number is ever converted that is not a size, a value is
-- looked at after its type, and messages do not repeat what is in it. So it costs its length.

create type _descriptor as (position integer, digest bytea, size bigint, media_type text);

comment on type _descriptor is 'What a manifest says about a blob or another manifest.';


create function _refuse_manifest(reason text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._refuse('ZR006', 'this manifest is not valid', left(reason, 500),
        'Push an OCI image manifest or index, or a Docker manifest or list of schema version 2.');
end;
$$;

comment on function _refuse_manifest(text) is 'Raises ZR006.';


create function _known_members(document json)
    returns json
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select json_object_agg(m.key, m.value)
        from json_each(document) as m
        where m.key in ('schemaVersion', 'mediaType', 'artifactType', 'config', 'layers',
            'manifests', 'subject', 'annotations')
    );
end;
$$;

comment on function _known_members(json) is
    'What of a manifest is looked at. The rest is not read again; null: there is nothing.';


create function _member_flaw(document json)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when document is null then 'it is empty'
        when json_typeof(document -> 'schemaVersion') is distinct from 'number'
            or document ->> 'schemaVersion' <> '2' then 'its schemaVersion is not 2'
        when json_typeof(document -> 'mediaType') not in ('string', 'null')
            or json_typeof(document -> 'artifactType') not in ('string', 'null')
            then 'its media type and artifact type must be strings'
        when json_typeof(document -> 'subject') not in ('object', 'null')
            then 'its subject must be one'
        when json_typeof(document -> 'annotations') not in ('object', 'null')
            then 'its annotations must be an object'
        when json_typeof(document -> 'annotations') = 'object' and exists (
            select from json_each(document -> 'annotations') as a
            where json_typeof(a.value) <> 'string'
        ) then 'its annotations must be strings'
    end;
end;
$$;

comment on function _member_flaw(json) is
    'What is wrong with the types of a manifest''s members; null: nothing.';


create function _listed(document json, member text)
    returns json
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return case json_typeof(document -> member)
        when 'array' then document -> member
        when 'object' then json_build_array(document -> member)
        else '[]'
    end;
end;
$$;

comment on function _listed(json, text) is
    'A member of a manifest as an array: of one if it is an object, of none if it is neither.';


-- Two readers may disagree about a name that occurs twice, or is one of ours but for its case or
-- for letters that somebody takes for the same: who pulls would get other layers than those that
-- are kept. So the names that matter are written as they are, once, and all others in ASCII.
create function _name_flaw(objects json)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        with known(name) as (
            select unnest(array['schemaVersion', 'mediaType', 'artifactType', 'config', 'layers',
                'manifests', 'subject', 'annotations', 'digest', 'size', 'urls', 'data',
                'platform'])
        )
        select 'a name occurs twice in one object, or in letters that are not its own'
        from json_array_elements(objects) with ordinality as o(value, n)
        cross join lateral json_object_keys(o.value) as k
        left join known as f on lower(f.name collate "C") = lower(k collate "C")
        group by o.n, lower(k collate "C")
        having count(*) > 1 or bool_or(k ~ '[^ -~]') or bool_or(f.name <> k)
        limit 1
    );
end;
$$;

comment on function _name_flaw(json) is
    'Whether one of these objects has a name that can be read as another; null: no.';


create function _descriptor_flaw(document json, member text)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    listed json := registry._listed(document, member);
    wrong bigint;
begin
    select o.n into wrong
    from json_array_elements(listed) with ordinality as o(e, n)
    where not coalesce(
        json_typeof(o.e) = 'object'
        and json_typeof(o.e -> 'mediaType') = 'string'
        and json_typeof(o.e -> 'digest') = 'string'
        and json_typeof(o.e -> 'size') = 'number'
        and o.e ->> 'digest' ~ '^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$'
        and o.e ->> 'size' ~ '^(0|[1-9][0-9]{0,14})$',
        false)
    limit 1;
    if wrong is not null then
        return format('%s: number %s lacks a media type, a digest, or a size below 10^15',
            member, wrong);
    end if;
    return registry._name_flaw(listed);
end;
$$;

comment on function _descriptor_flaw(json, text) is
    'What is wrong with a member of a manifest that consists of descriptors; null: nothing.';


create function _read_manifest(payload bytea)
    returns json
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    document json;
    flaw text;
begin
    if coalesce(octet_length(payload) > 4194304, true) then
        perform registry._refuse_manifest('it is bigger than 4 MiB, or null');
    end if;
    begin
        document := convert_from(payload, 'UTF8')::json;
        -- The only function of json that reads all escapes: \u0000 and half surrogates are none.
        perform json_strip_nulls(document);
        flaw := registry._name_flaw(json_build_array(document));
        document := registry._known_members(document);
        flaw := coalesce(
            flaw,
            registry._member_flaw(document),
            registry._descriptor_flaw(document, 'config'),
            registry._descriptor_flaw(document, 'layers'),
            registry._descriptor_flaw(document, 'manifests'),
            registry._descriptor_flaw(document, 'subject'));
    exception
        when data_exception or program_limit_exceeded then
            flaw := sqlerrm;
    end;
    if flaw is not null then
        perform registry._refuse_manifest(flaw);
    end if;
    return document;
end;
$$;

comment on function _read_manifest(bytea) is
    'A payload as a document; raises ZR006 if it is not one of schema version 2.';


create function _is_list(media_type text)
    returns boolean
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when media_type in (
            'application/vnd.oci.image.manifest.v1+json',
            'application/vnd.docker.distribution.manifest.v2+json') then false
        when media_type in (
            'application/vnd.oci.image.index.v1+json',
            'application/vnd.docker.distribution.manifest.list.v2+json') then true
    end;
end;
$$;

comment on function _is_list(text) is
    'Whether manifests of this media type list others; null: it is none of a manifest.';


-- A document that looks like both an image and a list means what its media type says to one reader,
-- and the other to the next.
create function _media_type(document json, said text)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    written text := document ->> 'mediaType';
    is_list boolean := document -> 'manifests' is not null;
    media_type text := coalesce(written, said, case
        when is_list then 'application/vnd.oci.image.index.v1+json'
        else 'application/vnd.oci.image.manifest.v1+json'
    end);
begin
    if written <> said then
        perform registry._refuse_manifest(format('it is %s and was said to be %s',
            left(written, 200), left(said, 200)));
    elsif registry._is_list(media_type) is distinct from is_list then
        perform registry._refuse_manifest(
            format('%s does not fit what it contains', left(media_type, 200)));
    elsif is_list and (document -> 'layers' is not null or document -> 'config' is not null)
        or json_typeof(document -> case when is_list then 'manifests' else 'layers' end)
            is distinct from 'array'
        or not is_list and json_typeof(document -> 'config') is distinct from 'object'
    then
        perform registry._refuse_manifest(
            'it must be either a configuration with layers, or a list');
    end if;
    return media_type;
end;
$$;

comment on function _media_type(json, text) is
    'What kind of manifest it is; raises ZR006 if what it says of itself does not fit.';


create function _descriptors(document json, member text)
    returns _descriptor[]
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select row(o.n, registry.digest_bytes(o.e ->> 'digest'), (o.e ->> 'size')::bigint,
            o.e ->> 'mediaType')::registry._descriptor
        from json_array_elements(registry._listed(document, member)) with ordinality as o(e, n)
        order by o.n
    );
end;
$$;

comment on function _descriptors(json, text) is
    'What a member of a manifest refers to.';


create function _annotations(payload bytea)
    returns jsonb
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case when registry._member_flaw(d.document) is null
        then (d.document -> 'annotations')::jsonb end
    from registry._known_members(convert_from(payload, 'UTF8')::json) as d(document)
$$;

comment on function _annotations(bytea) is
    'The annotations of a manifest; null if they are not strings.';


-- Manifests ------------------------------------------------------------------------------------

create function _is_foreign(media_type text)
    returns boolean
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return media_type like 'application/vnd.oci.image.layer.nondistributable.%'
        or media_type like 'application/vnd.docker.image.rootfs.foreign.%';
end;
$$;

comment on function _is_foreign(text) is
    'Whether layers of this media type are pulled from elsewhere, and need not be pushed.';


-- Locks them all, so that a review leaves them alone until their references are committed, and so
-- that nobody unlinks them.
create function _lock_blobs(r repositories, wanted _descriptor[])
    returns _descriptor[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    d record;
    present registry._descriptor[] := array[]::registry._descriptor[];
begin
    for d in
        select w as descriptor, w.digest, w.media_type, w.size, b.size as known
        from unnest(wanted) as w
        left join lateral (
            select o.size
            from registry.blobs as o
            join registry.repository_blobs as l on l.digest = o.digest
            where o.digest = w.digest
                and l.namespace_id = r.namespace_id and l.repository_id = r.id
            for key share of o, l
        ) as b on true
    loop
        if d.known is not null and d.known <> d.size then
            perform registry._refuse('ZR010', 'a blob has one size',
                format('%s has %s bytes, not %s.', registry.digest_text(d.digest), d.known, d.size),
                'Write its true size in the manifest.');
        elsif d.known is not null then
            present := present || d.descriptor;
        elsif not registry._is_foreign(d.media_type) then
            perform registry._refuse('ZR005',
                format('"%s" has no blob %s', r.path, registry.digest_text(d.digest)),
                'The manifest refers to it.', 'Upload or mount it, and push the manifest again.');
        end if;
    end loop;
    return present;
end;
$$;

comment on function _lock_blobs(repositories, _descriptor[]) is
    'Those of the blobs that are in the repository, locked. Raises ZR005 if one is missing that '
    'has to be there, and ZR010 if one has another size.';


create function _lock_children(r repositories, wanted _descriptor[])
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    d record;
    present bigint[] := array[]::bigint[];
begin
    for d in
        select w.digest, m.id
        from unnest(wanted) as w
        left join lateral (
            select o.id from registry.manifests as o
            where o.namespace_id = r.namespace_id and o.repository_id = r.id
                and o.digest = w.digest
            for key share
        ) as m on true
    loop
        if d.id is null then
            perform registry._refuse('ZR005',
                format('"%s" has no manifest %s', r.path, registry.digest_text(d.digest)),
                'The list refers to it.', 'Push it, and push the list again.');
        end if;
        present := present || d.id;
    end loop;
    return present;
end;
$$;

comment on function _lock_children(repositories, _descriptor[]) is
    'The manifests of a list, locked; raises ZR005 if one is missing.';


create function _lock_manifest(r repositories, digest bytea)
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select m.id from registry.manifests as m
        where m.namespace_id = r.namespace_id and m.repository_id = r.id
            and m.digest = _lock_manifest.digest
        for key share
    );
end;
$$;

comment on function _lock_manifest(repositories, bytea) is
    'The id of a manifest, locked so that a reference to it can be made; null: it is not there.';


create function _refuse_unknown_manifest(r repositories, reference text)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._refuse('ZR007',
        format('"%s" has no manifest %s', r.path, left(reference, 200)),
        'It was never pushed there, or has been deleted or collected.', 'Push it.');
end;
$$;

comment on function _refuse_unknown_manifest(repositories, text) is 'Raises ZR007.';


-- The table is empty, but for what others have left for vacuum to clean: not to be read through.
create function _await_pushes(r repositories, digests bytea[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    met bytea;
begin
    for met in select distinct d from unnest(digests) as d where d is not null order by d loop
        insert into registry.pushes (repository_id, digest) values (r.id, met)
        on conflict do nothing;
        delete from registry.pushes as p where p.repository_id = r.id and p.digest = met;
    end loop;
end;
$$;

comment on function _await_pushes(repositories, bytea[]) is
    'Waits for others who push one of these manifests, or one that is about it, and lets those '
    'wait who come later.';


create function _lock_referrers(r repositories, digest bytea)
    returns bigint[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select m.id from registry.manifests as m
        where m.namespace_id = r.namespace_id and m.repository_id = r.id
            and m.subject_digest = _lock_referrers.digest
        for key share
    );
end;
$$;

comment on function _lock_referrers(repositories, bytea) is
    'The manifests that say they are about this one, locked.';


-- A subject keeps its referrers, and a list its children. One that keeps its own subject, directly
-- or by way of others, would be kept by it in turn, and the two would never be collected.
create function _refuse_circle(r repositories, subject bigint, kept bigint[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    seen bigint;
    closed boolean;
begin
    with recursive reached(id) as (
        select unnest(kept)
        union
        select k.id
        from reached as f
        cross join lateral (
            select l.child_id from registry.manifest_references as l
            where l.namespace_id = r.namespace_id and l.repository_id = r.id and l.parent_id = f.id
            union all
            select o.manifest_id from registry.referrers as o
            where o.namespace_id = r.namespace_id and o.repository_id = r.id
                and o.subject_id = f.id
        ) as k(id)
    )
    select count(*), bool_or(c.id = subject) into seen, closed
    from (select f.id from reached as f limit 10001) as c;
    if closed or seen > 10000 then
        perform registry._refuse_manifest('its subject is among what it lists or what is about it, '
            'or these are more than 10,000');
    end if;
end;
$$;

comment on function _refuse_circle(repositories, bigint, bigint[]) is
    'Raises ZR006 for a manifest whose subject is kept by what it keeps itself.';


-- Two that are about something and keep something could close a circle together: one by one.
create function _await_relatives(r repositories, document json, digest bytea, subject bytea)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform registry._await_pushes(r, array[digest, subject]);
    if subject is not null and (
        json_array_length(registry._listed(document, 'manifests')) > 0
        or exists (
            select from registry.manifests as m
            where m.namespace_id = r.namespace_id and m.repository_id = r.id
                and m.subject_digest = _await_relatives.digest
        )
    ) then
        -- After every digest.
        perform registry._await_pushes(r, array[decode('ff', 'hex')]);
    end if;
end;
$$;

comment on function _await_relatives(repositories, json, bytea, bytea) is
    'Waits for others who push this manifest, its subject or its referrers.';


create function _add_references(
    r repositories, manifest_id bigint, document json, digest bytea, subject bytea
)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    children bigint[];
    about bigint;
    waiting bigint[];
begin
    insert into registry.layers (
        namespace_id, repository_id, manifest_id, position, digest, size, media_type
    )
    select r.namespace_id, r.id, manifest_id, d.position, d.digest, d.size, d.media_type
    from unnest(registry._lock_blobs(r, registry._descriptors(document, 'layers'))) as d;

    children := registry._lock_children(r, registry._descriptors(document, 'manifests'));
    about := registry._lock_manifest(r, subject);
    waiting := registry._lock_referrers(r, digest);
    if about is not null and cardinality(children || waiting) > 0 then
        perform registry._refuse_circle(r, about, children || waiting);
    end if;

    insert into registry.manifest_references (namespace_id, repository_id, parent_id, child_id)
    select distinct r.namespace_id, r.id, manifest_id, c
    from unnest(children) as c;

    insert into registry.referrers (namespace_id, repository_id, subject_id, manifest_id)
    select r.namespace_id, r.id, about, manifest_id where about is not null
    union all
    select r.namespace_id, r.id, manifest_id, w from unnest(waiting) as w;
end;
$$;

comment on function _add_references(repositories, bigint, json, bytea, bytea) is
    'Writes down what a manifest refers to, and which manifests were waiting for it.';


-- Null if it is there already.
create function _add_manifest(
    r repositories, digest bytea, media_type text, payload bytea, document json
)
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    subject bytea := ((registry._descriptors(document, 'subject'))[1]).digest;
    config registry._descriptor;
    total numeric;
    added bigint;
begin
    perform registry._await_relatives(r, document, digest, subject);
    config := (registry._lock_blobs(r, registry._descriptors(document, 'config')))[1];
    total := coalesce(config.size, 0) + coalesce(
        (select sum(d.size) from unnest(registry._descriptors(document, 'layers')) as d), 0);
    if total > 1125899906842624 then
        perform registry._refuse_manifest('it is bigger than a pebibyte');
    end if;
    insert into registry.manifests (
        namespace_id, repository_id, digest, media_type, artifact_type, payload,
        configuration_blob_digest, subject_digest, total_size
    )
    values (
        r.namespace_id, r.id, digest, media_type,
        coalesce(document ->> 'artifactType', config.media_type), payload,
        config.digest, subject, total
    )
    on conflict do nothing
    returning id into added;
    if found then
        perform registry._add_references(r, added, document, digest, subject);
    end if;
    return added;
end;
$$;

comment on function _add_manifest(repositories, bytea, text, bytea, json) is
    'Inserts a manifest with all it refers to; returns its id, or null if it is there already.';


create function _require_tag(name text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if name ~ '^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$' then
        return;
    end if;
    perform registry._refuse('ZR020', 'a tag cannot be called so',
        coalesce(left(name, 200), 'null'),
        'Use at most 128 letters, digits, and _ . - after the first.');
end;
$$;

comment on function _require_tag(text) is 'Raises ZR020 for what is not a tag.';


create function _set_tag(r repositories, name text, manifest_id bigint)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into registry.tags as t (namespace_id, repository_id, name, manifest_id)
    values (r.namespace_id, r.id, name, manifest_id)
    on conflict on constraint tags_pkey do update
    set manifest_id = excluded.manifest_id, updated_at = now()
    where t.manifest_id <> excluded.manifest_id;
end;
$$;

comment on function _set_tag(repositories, text, bigint) is
    'Creates a tag or sets it to another manifest, which must be locked.';


-- With a digest for a reference, that is what the payload must have.
create function _payload_digest(payload bytea, reference text)
    returns bytea
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    digest bytea := case
        when starts_with(reference, 'sha512:') then decode('02', 'hex') || sha512(payload)
        else decode('01', 'hex') || sha256(payload)
    end;
begin
    if (case when reference like '%:%' then registry.digest_bytes(reference) <> digest end) then
        perform registry._refuse('ZR004', 'this is not the digest of the payload',
            format('The digest is %s.', registry.digest_text(digest)),
            'Push what was signed, unchanged.');
    end if;
    return digest;
end;
$$;

comment on function _payload_digest(bytea, text) is
    'The digest of a payload; raises ZR004 if it was pushed under another.';


create function put_manifest(
    repository text, payload bytea, reference text default null, media_type text default null
)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
    document json := registry._read_manifest(payload);
    kind text := registry._media_type(document, media_type);
    digest bytea := registry._payload_digest(payload, reference);
    is_tag boolean := coalesce(reference not like '%:%', false);
    manifest_id bigint;
begin
    if is_tag then
        perform registry._require_tag(reference);
    end if;
    -- One that is there may be due for a review, so it is kept alive; or gone a moment later, and
    -- then there is room for it.
    loop
        manifest_id := registry._add_manifest(r, digest, kind, payload, document);
        exit when manifest_id is not null;
        manifest_id := registry._lock_manifest(r, digest);
        exit when manifest_id is not null
            and gc.keep_alive('manifest', row(r.namespace_id, r.id, manifest_id)::text);
    end loop;
    if is_tag then
        perform registry._set_tag(r, reference, manifest_id);
    end if;
    return registry.digest_text(digest);
end;
$$;

comment on function put_manifest(text, bytea, text, text) is
    'Pushes an image manifest or a list, by tag or by digest, and returns its digest. All that it '
    'refers to must be in the repository, but its subject may come later.';


create function tag(repository text, name text, digest text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
    manifest_id bigint := registry._lock_manifest(r, registry.digest_bytes(digest));
begin
    perform registry._require_tag(name);
    if manifest_id is null then
        perform registry._refuse_unknown_manifest(r, digest);
    end if;
    perform registry._set_tag(r, name, manifest_id);
end;
$$;

comment on function tag(text, text, text) is
    'Gives a manifest a tag, or switches the tag to it.';


create function untag(repository text, name text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
begin
    perform registry._require_tag(name);
    delete from registry.tags as t
    where t.namespace_id = r.namespace_id and t.repository_id = r.id and t.name = untag.name;
    if not found then
        perform registry._refuse_unknown_manifest(r, name);
    end if;
end;
$$;

comment on function untag(text, text) is
    'Removes a tag. Its manifest is collected unless something else keeps it.';


create function get_manifest(
    repository text, reference text, out digest text, out media_type text, out payload bytea
)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry.find_repository(repository);
    manifest_id bigint;
begin
    if reference like '%:%' then
        select m.id into manifest_id from registry.manifests as m
        where m.namespace_id = r.namespace_id and m.repository_id = r.id
            and m.digest = registry.digest_bytes(reference);
    else
        select t.manifest_id into manifest_id from registry.tags as t
        where t.namespace_id = r.namespace_id and t.repository_id = r.id and t.name = reference;
    end if;
    select registry.digest_text(m.digest), m.media_type, m.payload into digest, media_type, payload
    from registry.manifests as m
    where m.namespace_id = r.namespace_id and m.repository_id = r.id and m.id = manifest_id;
    if not found then
        perform registry._refuse_unknown_manifest(r, reference);
    end if;
end;
$$;

comment on function get_manifest(text, text) is
    'A manifest by its tag or digest, byte for byte; raises ZR007 if there is none.';


create function _describe_blob(digest text)
    returns json
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    b registry.blobs;
begin
    select o.* into b from registry.blobs as o
    where o.digest = registry.digest_bytes(_describe_blob.digest);
    if not found then
        perform registry._refuse('ZR005', format('there is no blob %s', digest),
            'The manifest would refer to it.', 'Upload it first.');
    end if;
    return json_build_object('mediaType', b.media_type, 'digest', digest, 'size', b.size);
end;
$$;

comment on function _describe_blob(text) is
    'What a manifest says of a blob; raises ZR005 if there is none such.';


create function _describe_manifest(repository text, digest text)
    returns json
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select json_build_object('mediaType', m.media_type, 'digest', m.digest,
        'size', octet_length(m.payload))
    from registry.get_manifest(repository, digest) as m
$$;

comment on function _describe_manifest(text, text) is
    'What a list says of a manifest; raises ZR007 if the repository has none such.';


create function put_image(
    repository text, configuration text, layers text[], reference text default null,
    subject text default null
)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select registry.put_manifest(repository, convert_to(json_strip_nulls(json_build_object(
        'schemaVersion', 2,
        'mediaType', 'application/vnd.oci.image.manifest.v1+json',
        'config', registry._describe_blob(configuration),
        'layers', array(
            select registry._describe_blob(l)
            from unnest(layers) with ordinality as u(l, n)
            order by n
        ),
        'subject', case when subject is not null then
            registry._describe_manifest(repository, subject) end
    ))::text, 'UTF8'), reference)
$$;

comment on function put_image(text, text, text[], text, text) is
    'Pushes an image manifest that is made of the digests of its parts, and returns its digest.';


create function put_list(repository text, manifests text[], reference text default null)
    returns text
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select registry.put_manifest(repository, convert_to(json_build_object(
        'schemaVersion', 2,
        'mediaType', 'application/vnd.oci.image.index.v1+json',
        'manifests', array(
            select registry._describe_manifest(repository, m)
            from unnest(manifests) with ordinality as u(m, n)
            order by n
        )
    )::text, 'UTF8'), reference)
$$;

comment on function put_list(text, text[], text) is
    'Pushes a list of manifests that the repository has, and returns its digest.';


create function delete_manifest(repository text, digest text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry._enter(repository);
    doomed bigint;
begin
    select m.id into doomed from registry.manifests as m
    where m.namespace_id = r.namespace_id and m.repository_id = r.id
        and m.digest = registry.digest_bytes(delete_manifest.digest)
    for update;
    if not found then
        perform registry._refuse_unknown_manifest(r, digest);
    end if;
    if exists (
        select from registry.manifest_references as l
        where l.namespace_id = r.namespace_id and l.repository_id = r.id and l.child_id = doomed
    ) then
        perform registry._refuse('ZR012', format('a list of "%s" has %s', r.path, digest),
            'A list keeps its children.', 'Delete the list first.');
    end if;
    delete from registry.manifests as m
    where m.namespace_id = r.namespace_id and m.repository_id = r.id and m.id = doomed;
end;
$$;

comment on function delete_manifest(text, text) is
    'Deletes a manifest that no list has, with its tags. What refers to it is collected later.';


create function list_tags(repository text, n integer default null, last text default null)
    returns setof text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry.find_repository(repository);
begin
    return query
        select t.name from registry.tags as t
        where t.namespace_id = r.namespace_id and t.repository_id = r.id
            and (last is null or t.name > last)
        order by t.name
        limit case when n < 0 then 0 else n end;
end;
$$;

comment on function list_tags(text, integer, text) is
    'The tags of a repository in order: the first n that come after the last one seen.';


create function list_referrers(repository text, subject text, kind text default null)
    returns table (
        digest text, media_type text, artifact_type text, size bigint, annotations jsonb
    )
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    r registry.repositories := registry.find_repository(repository);
begin
    return query
        select registry.digest_text(m.digest), m.media_type, m.artifact_type,
            octet_length(m.payload)::bigint, registry._annotations(m.payload)
        from registry.manifests as m
        where m.namespace_id = r.namespace_id and m.repository_id = r.id
            and m.subject_digest = registry.digest_bytes(subject)
            and (kind is null or m.artifact_type = kind)
        order by m.id;
end;
$$;

comment on function list_referrers(text, text, text) is
    'The manifests that are about another one, which need not be there; those of a kind, or all.';


-- Usage ----------------------------------------------------------------------------------------
-- Asked for one repository or namespace, each reads only that one's rows.

create view repository_usage as
select r.path as repository, m.manifests, m.logical_bytes, b.deduplicated_bytes
from repositories as r
cross join lateral (
    select count(*), coalesce(sum(m.total_size), 0)
    from manifests as m
    where m.namespace_id = r.namespace_id and m.repository_id = r.id
) as m(manifests, logical_bytes)
cross join lateral (
    select coalesce(sum(u.size), 0)
    from (
        select l.digest, l.size from layers as l
        where l.namespace_id = r.namespace_id and l.repository_id = r.id
        union
        select c.digest, c.size
        from manifests as m
        join blobs as c on c.digest = m.configuration_blob_digest
        where m.namespace_id = r.namespace_id and m.repository_id = r.id
    ) as u
) as b(deduplicated_bytes)
where r.state = 'active';

comment on view repository_usage is 'How much of the store each active repository uses.';
comment on column repository_usage.repository is 'The repository.';
comment on column repository_usage.manifests is 'How many manifests it has.';
comment on column repository_usage.logical_bytes is
    'What its manifests add up to, each with all its layers.';
comment on column repository_usage.deduplicated_bytes is
    'What it would take in a store of its own: each blob once.';


create view namespace_usage as
select n.name as namespace, r.repositories, m.manifests, m.logical_bytes, b.deduplicated_bytes
from namespaces as n
cross join lateral (
    select count(*), coalesce(array_agg(r.id), '{}')
    from repositories as r
    where r.namespace_id = n.id and r.state = 'active'
) as r(repositories, ids)
cross join lateral (
    select count(*), coalesce(sum(m.total_size), 0)
    from manifests as m
    where m.namespace_id = n.id and m.repository_id = any (r.ids)
) as m(manifests, logical_bytes)
cross join lateral (
    select coalesce(sum(u.size), 0)
    from (
        select l.digest, l.size from layers as l
        where l.namespace_id = n.id and l.repository_id = any (r.ids)
        union
        select c.digest, c.size
        from manifests as m
        join blobs as c on c.digest = m.configuration_blob_digest
        where m.namespace_id = n.id and m.repository_id = any (r.ids)
    ) as u
) as b(deduplicated_bytes);

comment on view namespace_usage is 'How much of the store each namespace uses.';
comment on column namespace_usage.namespace is 'The namespace.';
comment on column namespace_usage.repositories is 'How many active repositories it has.';
comment on column namespace_usage.manifests is 'How many manifests are in them.';
comment on column namespace_usage.logical_bytes is
    'What its manifests add up to, each with all its layers.';
comment on column namespace_usage.deduplicated_bytes is
    'What it would take in a store of its own: each blob once.';


-- Collections ----------------------------------------------------------------------------------

select gc.track('blobs', name => 'blob',
    url => format('%I.blob_url(digest)', current_schema()),
    size => 'size',
    label => format('%I.digest_text(digest)', current_schema()),
    owned => array['repository_blobs'],
    events => '{
        "blob_insert": "blob_upload",
        "manifests_delete": "manifest_delete",
        "layers_delete": "layer_delete"
    }');

select gc.track('manifests', name => 'manifest',
    label => format('%I.digest_text(digest)', current_schema()),
    owned => array[
        'layers',
        'manifest_references(namespace_id, repository_id, parent_id)',
        'referrers(namespace_id, repository_id, subject_id)'
    ],
    events => '{
        "manifest_insert": "manifest_upload",
        "manifest_references_delete": "manifest_list_delete",
        "referrers_delete": "subject_delete",
        "tags_delete": "tag_delete",
        "tags_update": "tag_switch"
    }');

-- What keeps a manifest goes before it, and links go last.
select gc.track('repositories', name => 'repository',
    label => 'path',
    condition => format('%I.is_abandoned(state, created_at)', current_schema()),
    owned => array[
        'tags', 'manifest_references', 'referrers', 'layers', 'manifests', 'repository_blobs'
    ]);

-- One that is not filled within 2 minutes is reviewed then, one that is deleted at once.
insert into gc.review_after_defaults
values ('repository_insert', '2 minutes'), ('repository_update', '0')
on conflict do nothing;
$preset$
$registry_preset$;

comment on function gc._registry_preset() is 'The text of presets/registry.sql.';


-- The schema and the store become parts of functions' texts: no letters that end these.
create function gc._require_registry(schema name, store text, partitions integer)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(store !~ '^[a-z][a-z0-9+.-]*://[A-Za-z0-9._~:/@%+=,-]*[A-Za-z0-9]$', true) then
        raise 'a registry needs a store'
            using errcode = 'invalid_parameter_value',
                detail = format('store is %s.', coalesce(store, 'null')),
                hint = 'select gc.create_registry(store => ''s3://bucket/prefix'');';
    end if;
    if coalesce(schema ~ '[$\\{]', true) then
        raise 'the schema of a registry cannot be called so'
            using errcode = 'invalid_parameter_value',
                detail = format('schema is %s.', coalesce(schema, 'null')),
                hint = 'Use a name without a dollar sign, a backslash and a brace.';
    end if;
    if coalesce(partitions < 0, true) then
        raise 'a registry cannot have % partitions', coalesce(partitions::text, 'null')
            using errcode = 'invalid_parameter_value',
                hint = 'Leave partitions out for none, or try 64.';
    end if;
    if exists (
        select from gc.collections as c where c.name in ('blob', 'manifest', 'repository')
    ) then
        raise 'there is a registry in this database already, or a collection of its names'
            using errcode = 'duplicate_object',
                detail = 'A registry''s collections are blob, manifest and repository.',
                hint = 'Create it in another database.';
    end if;
end;
$$;

comment on function gc._require_registry(name, text, integer) is
    'Raises for arguments from which no registry can be made.';


create function gc.create_registry(
    schema name default 'registry', store text default null, partitions integer default 0
)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set client_min_messages = warning
    set standard_conforming_strings = on
    set quote_all_identifiers = off
    set check_function_bodies = on
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    preset text := gc._registry_preset();
begin
    perform gc._require_owner();
    perform gc._require_registry(schema, store, partitions);
    execute format('create schema %I', schema);
    perform set_config('search_path', format('%I, pg_catalog, pg_temp', schema), true);
    if partitions > 0 then
        preset := regexp_replace(preset, '/\* (partition by [^*]*) \*/', '\1', 'g');
    end if;
    preset := regexp_replace(preset, '\mregistry\.(?=[a-z_])', quote_ident(schema) || '.', 'g');
    execute replace(replace(preset, '{store}', store), '{partitions}', partitions::text);
end;
$$;
revoke all on function gc.create_registry(name, text, integer) from public;

comment on function gc.create_registry(name, text, integer) is
    'Creates a container registry in a new schema: tables, operations and collections. Objects are '
    'under the store. With partitions, its tables are divided into so many.';
-- Rights: PUBLIC has none. Roles are not created here; rights are given to roles that exist, by
-- name, and nobody has any other: not even who was to have them by ALTER DEFAULT PRIVILEGES.

create function gc._grant_functions(role regrole, names text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    signature regprocedure;
begin
    execute format('grant usage on schema gc to %s', role);
    for signature in
        select f.oid
        from pg_proc as f
        where f.pronamespace = 'gc'::regnamespace and f.proname = any (names)
    loop
        execute format('grant execute on function %s to %s', signature, role);
    end loop;
end;
$$;
revoke all on function gc._grant_functions(regrole, text[]) from public;

comment on function gc._grant_functions(regrole, text[]) is
    'Lets a role call functions of these names.';


create function gc.grant_runner(role regrole)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._grant_functions(role, array[
        'version', 'review', 'claim', 'confirm', 'fail', 'release', 'next_due', 'status'
    ]);
    execute format('grant select on gc.metrics to %s', role);
end;
$$;
revoke all on function gc.grant_runner(regrole) from public;

comment on function gc.grant_runner(regrole) is
    'Lets a role do what a runner does: review, claim, confirm. It needs no right on any table.';


create function gc.grant_viewer(role regrole)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._grant_functions(role, array['version', 'next_due', 'status']);
    execute format(
        'grant select on gc.collections, gc.settings, gc.review_after_defaults, gc.tombstones, '
        'gc.holds, gc.deletion_log, gc.totals, gc.daily_totals, gc.metrics to %s', role);
end;
$$;
revoke all on function gc.grant_viewer(regrole) from public;

comment on function gc.grant_viewer(regrole) is
    'Lets a role see everything and change nothing.';


create function gc.grant_uploader(role regrole, collections text[] default null)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    name text;
begin
    perform gc._grant_functions(role, array[
        'begin_upload', 'end_upload', 'keep_alive', '_own_function', '_object_name'
    ]);
    foreach name in array coalesce(collections, array(select c.name from gc.collections as c)) loop
        name := (gc._collection(name)).name;
        perform gc._grant_functions(role, array[
            gc._object_name(name, '_begin_upload'), gc._object_name(name, '_end_upload'),
            gc._object_name(name, '_keep_alive')
        ]);
    end loop;
end;
$$;
revoke all on function gc.grant_uploader(regrole, text[]) from public;

comment on function gc.grant_uploader(regrole, text[]) is
    'Lets an application announce uploads and keep rows alive: of these collections, or of all '
    'that there are now. It needs no right for all the rest.';
-- Entry points: what can be called from outside, and under which settings it runs.
--
-- One list for all of them, so that none is forgotten (a test compares). What looks up a few rows
-- goes by indexes as well: there is nothing to do most of the time, and a plan that is made then
-- would read whole tables in busy times, as long as the session lasts.

create function gc._pin(signature regprocedure, by_index boolean)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    clause text;
begin
    for clause in
        select regexp_split_to_table(gc._pinned_sql(), E'\n')
        union all
        select 'set enable_seqscan = off' where by_index
    loop
        execute format('alter function %s %s', signature, clause);
    end loop;
end;
$$;
revoke all on function gc._pin(regprocedure, boolean) from public;

comment on function gc._pin(regprocedure, boolean) is
    'Gives a function the settings of an entry point.';

do $$
begin
    perform gc._pin(f.oid, f.proname = any (array[
        'review', 'scan', 'claim', 'confirm', 'fail', 'release', 'next_due'
    ]))
    from pg_proc as f
    where f.pronamespace = 'gc'::regnamespace and f.prokind = 'f'
        and (f.proname not like '\_%' or f.prosecdef or f.proname = '_address')
        and f.proname not in ('version', 'review_after');
end;
$$;

-- A backslash in the text of a function means itself, whoever calls it and from where.
do $$
declare
    signature regprocedure;
begin
    for signature in
        select f.oid
        from pg_proc as f
        where f.pronamespace = 'gc'::regnamespace and f.prokind = 'f' and f.prosrc ~ '[\\]'
            and not 'standard_conforming_strings=on' = any (f.proconfig)
    loop
        execute format('alter function %s set standard_conforming_strings = on', signature);
    end loop;
end;
$$;


-- Last of all, and at the installation only: later, rights have been given by name.
do $$
declare
    grantee oid;
begin
    perform gc._seal_table(c.oid) from pg_class as c
    where c.relnamespace = 'gc'::regnamespace and c.relkind in ('r', 'v', 'c');
    perform gc._seal('pg_proc'::regclass, f.oid) from pg_proc as f
    where f.pronamespace = 'gc'::regnamespace;
    for grantee in
        select a.grantee
        from pg_namespace as n
        cross join lateral aclexplode(n.nspacl) as a
        where n.nspname = 'gc' and a.grantee <> n.nspowner
    loop
        execute format('revoke all on schema gc from %s cascade',
            case when grantee = 0 then 'public' else grantee::regrole::text end);
    end loop;
end;
$$;

do $$
begin
    perform set_config(f.key, f.value, true)
    from jsonb_each_text(current_setting('blobgc.found')::jsonb) as f;
end;
$$;
-- What pg_dump has to save of the extension's own tables. Only an extension script can say so.

select pg_extension_config_dump('gc.settings', '');
select pg_extension_config_dump('gc.review_after_defaults', '');
select pg_extension_config_dump('gc.collections', '');
select pg_extension_config_dump('gc.scan_requests', '');
select pg_extension_config_dump('gc.unread_rows', '');
select pg_extension_config_dump('gc.unread_rows_id_seq', '');
select pg_extension_config_dump('gc.unused_tables', '');
select pg_extension_config_dump('gc.deletion_log', '');
select pg_extension_config_dump('gc.deletion_log_id_seq', '');
select pg_extension_config_dump('gc.totals', '');
select pg_extension_config_dump('gc.holds', '');
select pg_extension_config_dump('gc.holds_id_seq', '');
select pg_extension_config_dump('gc.tombstones', '');
select pg_extension_config_dump('gc.tombstones_id_seq', '');
