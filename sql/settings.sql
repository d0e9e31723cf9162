-- Settings: one row, typed columns, read at every call, so a change works from the next call on.

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
    pace numeric not null default 0.05
        constraint settings_pace_is_a_share check (pace > 0 and pace <= 1),
    upload_timeout interval not null default '1 hour'
        constraint settings_upload_timeout_positive check (upload_timeout > '0'),
    keep_alive interval not null default '1 hour'
        constraint settings_keep_alive_positive check (keep_alive > '0'),
    strict_uploads boolean not null default false,
    trusted_roles name[] not null default '{}',
    application_path text,
    log_retention interval not null default '90 days'
        constraint settings_log_retention_not_negative check (log_retention >= '0'),
    gone_retention interval not null default '1 day'
        constraint settings_gone_retention_not_negative check (gone_retention >= '0'),
    brake_share numeric not null default 0.1
        constraint settings_brake_share_is_a_share check (brake_share > 0 and brake_share <= 1),
    brake_rows integer not null default 1000
        constraint settings_brake_rows_not_negative check (brake_rows >= 0),
    undo interval not null default '1 day'
        constraint settings_undo_not_negative check (undo >= '0')
        constraint settings_undo_not_endless check (undo <= '10 years'),
    failover text not null default 'ask'
        constraint settings_failover_known check (failover in ('ask', 'trusted')),
    durable_on text[] not null default '{}'
        constraint settings_durable_on_named check (
            array_position(durable_on, null) is null and array_position(durable_on, '') is null
        ),
    orphan_grace interval not null default '2 days'
        constraint settings_orphan_grace_not_negative check (orphan_grace >= '0')
        constraint settings_orphan_grace_not_endless check (orphan_grace <= '10 years')
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
comment on column gc.settings.pace is
    'The share of its time that a runner reviews, and that it claims and confirms; in the rest of '
    'it the application has the server for itself. 1: all of it. See gc.rest.';
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
    'How long gc.deletion_log and gc.operations are kept. The daily totals are kept for ever.';
comment on column gc.settings.gone_retention is
    'How long the key of a row that went cannot be referred to again by a declared reference. '
    'Longer than any transaction that looks a key up and then writes it.';
comment on column gc.settings.brake_share is
    'A collection is paused before more than this share of its rows goes in an hour; 1: never. See '
    'gc.set_brake for one collection.';
comment on column gc.settings.brake_rows is
    'So many rows of a collection may go in an hour, whatever share of it that is.';
comment on column gc.settings.undo is
    'For how long a deleted row can be restored, and its object stays, where gc.track was not told '
    'otherwise.';
comment on column gc.settings.failover is
    'ask: after a failover nothing is handed out before somebody calls gc.adopt. trusted: a '
    'standby that was promoted goes on by itself, unless another database still moves the marker.';
comment on column gc.settings.durable_on is
    'An object is handed out only when the deletion of its row has reached all of these: names of '
    'standbys (their application_name) or of replication slots, and archive.';
comment on column gc.settings.orphan_grace is
    'An object without a row is left alone until nobody has written it for this long, by the '
    'store''s own clock: see gc.compare.';


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
create function gc._limit_lock_waits(longest interval default null)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select set_config('lock_timeout', ceil(extract(epoch from
        coalesce(longest, (select s.lock_timeout from gc.settings as s))) * 1000) || 'ms', true)
$$;

comment on function gc._limit_lock_waits(interval) is
    'Waits for a lock no longer than that, or else than the setting lock_timeout says.';
