-- Runners: who is there, since when, and what it has under a lease.
--
-- A call writes at most once a minute, into a row that no other worker has, and waits for nobody. A
-- runner says its version, host and process in its application_name: blobgc <version> <host>/<pid>.
-- After a crash, or in a dump, it is not there, and soon is again. One that runs while blobgc is
-- upgraded is told so by its next call, and ends; what it has under a lease it can still confirm.

create unlogged table gc.runner_calls (
    application text not null,
    worker text not null,
    role text not null,
    prefixes text[],
    finalizer text,
    since timestamptz not null default clock_timestamp(),
    last_call timestamptz not null default clock_timestamp()
);
create index runner_calls_worker_idx on gc.runner_calls (worker, application);

comment on table gc.runner_calls is 'Who has called gc.review and gc.claim: see gc.runners.';
comment on column gc.runner_calls.application is 'The session''s application_name.';
comment on column gc.runner_calls.worker is 'The worker of a claim; empty: a review.';
comment on column gc.runner_calls.role is 'The role that had logged in.';
comment on column gc.runner_calls.prefixes is 'The prefixes of the last claim; null: any.';
comment on column gc.runner_calls.finalizer is
    'The finalizer for which it claims; null: it deletes objects, or reviews.';
comment on column gc.runner_calls.since is 'The first call.';
comment on column gc.runner_calls.last_call is 'The last call, to within a minute.';


-- Runners of 0.1 have no more than "blobgc" for a name. Whatever else calls, psql perhaps, has
-- another one, and is not asked.
create function gc._require_runner_version()
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    own text := current_setting('application_name');
    speaks text := case
        when own = 'blobgc' then '0.1' else substring(own from '^blobgc ([0-9]+[.][0-9]+)[.]')
    end;
begin
    if speaks <> substring(gc.version() from '^[0-9]+[.][0-9]+') then
        raise 'this database has blobgc % now, and this runner is of version %',
            gc.version(), speaks
            using errcode = 'ZG020',
                hint = format('pip install blobgc==%s', gc.version());
    end if;
end;
$$;

comment on function gc._require_runner_version() is
    'Raises ZG020 for a runner of another minor version, by its application_name.';


-- No unique constraint, because that would make one session wait for another: two that use one name
-- at one time leave two rows, which gc.runners shows as one.
create function gc._note_runner(worker text, prefixes text[], finalizer text default null)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    own text := left(current_setting('application_name'), 200);
    place tid;
begin
    perform gc._require_runner_version();
    if exists (
        select from gc.runner_calls as r
        where r.worker = left(_note_runner.worker, 200) and r.application = own
            and r.prefixes is not distinct from _note_runner.prefixes
            and r.finalizer is not distinct from _note_runner.finalizer
            and r.last_call > clock_timestamp() - interval '1 minute'
    ) then
        return;
    end if;
    select r.ctid into place from gc.runner_calls as r
    where r.worker = left(_note_runner.worker, 200) and r.application = own
        and r.finalizer is not distinct from _note_runner.finalizer
    limit 1
    for update skip locked;
    if found then
        update gc.runner_calls as r
        set prefixes = _note_runner.prefixes, role = session_user, last_call = clock_timestamp()
        where r.ctid = place;
    else
        insert into gc.runner_calls (application, worker, role, prefixes, finalizer)
        values (own, left(_note_runner.worker, 200), session_user, _note_runner.prefixes,
            _note_runner.finalizer);
    end if;
end;
$$;

comment on function gc._note_runner(text, text[], text) is
    'Notes that a runner has called; empty worker: for a review.';


create function gc._purge_runners(batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    delete from gc.runner_calls as r
    where r.ctid = any (array(
        select o.ctid from gc.runner_calls as o
        where o.last_call < now() - interval '7 days'
        limit batch
        for update skip locked
    ));
end;
$$;

comment on function gc._purge_runners(integer) is
    'Forgets runners that have not called for a week.';


create view gc.runners as
with calls as (
    select r.*, r.application ~ '^blobgc [^ ]+ .+/[0-9]+$' as introduced
    from gc.runner_calls as r
),
leases as (
    select t.worker, count(*) as objects, sum(t.size) as bytes, min(t.due_at) as until
    from gc.tombstones as t
    where t.worker is not null and t.due_at > clock_timestamp()
    group by t.worker
),
runners as (
    select c.application, max(nullif(c.worker, '')) as worker, bool_and(c.introduced) as introduced,
        max(c.role) as role,
        max(c.prefixes) filter (where c.worker <> '') as prefixes,
        min(c.since) as since, max(c.last_call) as last_call,
        max(c.last_call) filter (where c.worker = '') as last_review,
        max(c.last_call) filter (where c.worker <> '' and c.finalizer is null) as last_claim,
        max(c.finalizer) as finalizer
    from calls as c
    group by c.application, case when not c.introduced then c.worker end
)
select r.worker, case when r.introduced then regexp_replace(r.application,
        '^blobgc [^ ]+ (.+)/[0-9]+$', E'\\1') end as host,
    case when r.introduced then split_part(r.application, ' ', 2) end as version,
    r.application, r.role, r.prefixes, r.since, r.last_call, r.last_review, r.last_claim,
    coalesce(l.objects, 0) as holds, l.bytes as holds_bytes, l.until as holds_until,
    r.finalizer
from runners as r
left join leases as l on l.worker = r.worker;

comment on view gc.runners is
    'Who calls gc.review and gc.claim; a runner is forgotten a week after its last call.';
comment on column gc.runners.worker is 'The name under which it claims; null: it only reviews.';
comment on column gc.runners.host is 'Its host; null: its application_name does not say.';
comment on column gc.runners.version is 'Its version; null: its application_name does not say.';
comment on column gc.runners.application is 'Its application_name.';
comment on column gc.runners.role is 'The role that had logged in.';
comment on column gc.runners.prefixes is 'Under which prefixes it deletes objects; null: any.';
comment on column gc.runners.since is 'Its first call.';
comment on column gc.runners.last_call is 'Its last call, to within a minute.';
comment on column gc.runners.last_review is 'Its last call of gc.review, to within a minute.';
comment on column gc.runners.last_claim is
    'Its last call of gc.claim to delete objects, to within a minute.';
comment on column gc.runners.holds is 'How many objects it has under a lease.';
comment on column gc.runners.holds_bytes is 'Their bytes.';
comment on column gc.runners.holds_until is 'When the first of these leases ends.';
comment on column gc.runners.finalizer is 'The finalizer for which it claims; null: none.';
