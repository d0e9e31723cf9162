-- Operations: who has paused, resumed, pinned, unpinned or adopted what, when and why.
--
-- Append-only. Kept as long as the log of deletions: see gc._purge_log.

create table gc.operations (
    id bigint generated always as identity
        constraint operations_pkey primary key,
    done_at timestamptz not null default clock_timestamp(),
    done_by text not null,
    operation text not null,
    collection text,
    what text,
    key text,
    reason text
);
create index operations_done_at_idx on gc.operations (done_at);

comment on table gc.operations is
    'What people have done, and what the brake has: pause, resume, pin, unpin, brake, adopt, and '
    'take over, when a runner replaced the marker of another database.';
comment on column gc.operations.id is 'The order in which it was written.';
comment on column gc.operations.done_at is 'When.';
comment on column gc.operations.done_by is 'The role that had logged in, or the brake.';
comment on column gc.operations.operation is
    'What was done: pause, resume, pin, unpin, brake, adopt or take over.';
comment on column gc.operations.collection is 'The collection; null: all of them.';
comment on column gc.operations.what is
    'What was paused or resumed: reviews or deletes; the prefix that was adopted.';
comment on column gc.operations.key is 'The key that was pinned or unpinned.';
comment on column gc.operations.reason is 'Why, as far as it was told.';


create function gc._note_operation(
    operation text, collection text, what text, key text, reason text,
    done_by text default session_user
)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    insert into gc.operations (operation, collection, what, key, reason, done_by)
    values (
        _note_operation.operation, _note_operation.collection, _note_operation.what,
        _note_operation.key, _note_operation.reason, _note_operation.done_by
    )
$$;

comment on function gc._note_operation(text, text, text, text, text, text) is
    'Writes down what a person, or the brake, has done.';


-- What a person waits for should not wait for the end of a runner's sleep.
create function gc._wake_runners()
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$ select pg_notify('blobgc', '') $$;

comment on function gc._wake_runners() is
    'Tells runners, when this transaction commits, that there may be work.';


create function gc._require_end(what text, until timestamptz)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if until is null or until <= clock_timestamp() then
        raise 'a % must end in the future', what
            using errcode = 'invalid_parameter_value',
                detail = format('until is %s.', coalesce(until::text, 'null')),
                hint = format('Leave the argument out for a %s without an end.', what);
    end if;
end;
$$;

comment on function gc._require_end(text, timestamptz) is
    'Raises for an end that is over already.';
