-- Conditions that become true by time: a row that only such a condition keeps comes back by itself.
begin;
select plan(51);

set local client_min_messages = error;
-- Times are compared as they are printed.
set local intervalstyle = 'postgres';
create schema app;
update gc.settings set undo = '0', jitter = '0';
create table app.file (
    id integer primary key, created_at timestamptz, seen date, closed boolean not null default true,
    wall timestamp, life interval, "now()" text
);
create table app.post (id integer primary key, file integer references app.file);
create index on app.post (file);
create function app.is_old(at timestamptz) returns boolean language sql stable as $$
    select at < now() - interval '1 hour'
$$;

-- What time does to a condition.
create function pg_temp.turns(condition text) returns text language plpgsql as $$
begin
    perform gc.track('app.file', condition => turns.condition);
    return (select gc._turns(c) from gc.collections as c);
end;
$$;
select is(pg_temp.turns(c.condition), c.turns, c.condition)
from (values
    ($$closed$$, null),
    ($$created_at < '2020-01-01 00:00:00+00'$$, null),
    ($$created_at < now()$$, 'up'),
    ($$created_at <= now() - interval '7 days'$$, 'up'),
    ($$now() > created_at$$, 'up'),
    ($$created_at + life < current_timestamp$$, 'up'),
    ($$now() - created_at > interval '1 hour'$$, 'up'),
    ($$created_at - now() < life$$, 'up'),
    ($$seen < current_date - 3$$, 'up'),
    ($$current_date - seen > 3$$, 'up'),
    ($$wall < localtimestamp$$, 'up'),
    ($$wall < now()$$, 'up'),
    ($$coalesce(created_at, 'epoch') < now() and closed or seen < current_date$$, 'up'),
    ($$not (created_at > now())$$, 'up'),
    ($$created_at > now() - interval '1 day'$$, null),
    ($$not (created_at < now())$$, null),
    ($$created_at < now() and created_at > now() - interval '1 day'$$, 'anyhow'),
    ($$extract(hour from now()) < 3$$, 'anyhow'),
    ($$current_time < '03:00'$$, 'anyhow'),
    ($$age(created_at) > interval '1 day'$$, 'anyhow'),
    ($$app.is_old(created_at)$$, 'anyhow'),
    ($$created_at is distinct from now()$$, 'anyhow')
) as c(condition, turns);

-- The moment is exact.
create function pg_temp.wakes(id integer) returns interval language plpgsql as $$
declare
    at timestamptz;
begin
    select gc.file_wakes(file.*, null) into at from app.file where file.id = wakes.id;
    return date_trunc('second', at + interval '0.5 seconds') - date_trunc('second', now());
end;
$$;
create function pg_temp.due() returns interval language sql as $$
    select date_trunc('minute', review_after - now() + interval '30 seconds')
    from gc.file_review_queue
$$;
insert into app.file (id, created_at, seen, life, "now()") values
    (1, now() - interval '1 hour', current_date, '3 hours', 'now()'), (2, null, null, null, ''),
    (3, now() + interval '3 years', current_date, '1 mon', '');
select is(pg_temp.turns($$created_at < now() - interval '2 hours' and "now()" <> 'CURRENT_DATE'$$),
    'up', 'texts and names are not the clock');
select ok(pg_temp.wakes(1) between interval '3599 seconds' and interval '3602 seconds', 'a moment is found to the second');
select is(pg_temp.wakes(2), null, 'what is null never comes true');
select ok(pg_temp.wakes(3) between interval '3 years 1 hour' and interval '1097 days',
    'nor is it too far away');
select is(pg_temp.turns($$current_date - seen > 3$$), 'up', 'dates count in days');
select is((select (gc.file_wakes(f.*, null) at time zone 'UTC')::date from app.file as f where id = 1),
    (select seen + 4 from app.file where id = 1), 'by the day of UTC');

-- Reviews.
select is(pg_temp.turns($$closed and created_at < now() - interval '7 days'$$), 'up', 'a usual one');
create function pg_temp.review() returns text language sql as $$
    select format('%s reviewed, %s kept, %s deleted, %s busy', reviewed, kept, deleted, busy)
    from gc.review()
$$;
delete from app.file;
delete from gc.file_review_queue;
insert into app.file (id, created_at) values (1, now());
select is(pg_temp.due(), interval '1 day', 'a row is queued as usual');
update gc.file_review_queue set review_after = now();
select is(pg_temp.review(), '1 reviewed, 1 kept, 0 deleted, 0 busy', 'and kept');
select is(pg_temp.due(), interval '7 days', 'but stays in the queue until the condition holds');
update app.file set created_at = now() - interval '8 days';
select is((select count(*) from gc.file_review_queue), 2::bigint, 'an update queues it anew');
update gc.file_review_queue set review_after = now();
select is(pg_temp.review(), '1 reviewed, 0 kept, 1 deleted, 0 busy', 'and the latest entry decides');
select is((select count(*) from gc.file_review_queue), 0::bigint, 'nothing is left');

insert into app.file (id, created_at) values (2, now());
update app.file set created_at = now() - interval '1 day' where id = 2;
update gc.file_review_queue set review_after = now() where event = 'file_insert';
select is(pg_temp.review(), '1 reviewed, 1 kept, 0 deleted, 0 busy', 'an entry with a later one');
select is((select array_agg(event) from gc.file_review_queue), '{file_update}',
    'is dropped: the later one speaks for the row');
update gc.file_review_queue set review_after = now();
select is(pg_temp.review(), '1 reviewed, 1 kept, 0 deleted, 0 busy', 'and does');
select is(pg_temp.due(), interval '6 days', 'at the right time');

insert into app.post values (1, 2);
update gc.file_review_queue set review_after = now();
select is(pg_temp.review(), '1 reviewed, 1 kept, 0 deleted, 0 busy', 'a row that is referred to');
select is((select count(*) from gc.file_review_queue), 0::bigint, 'leaves the queue');
delete from app.post;
update gc.file_review_queue set review_after = now();
select is(pg_temp.review() || pg_temp.due(), '1 reviewed, 1 kept, 0 deleted, 0 busy6 days',
    'and sleeps when it is not any more');
delete from gc.file_review_queue;
update app.file set created_at = null;
update gc.file_review_queue set review_after = now();
select is(pg_temp.review(), '1 reviewed, 1 kept, 0 deleted, 0 busy', 'a row that never comes true');
select is((select count(*) from gc.file_review_queue), 0::bigint, 'leaves the queue, too');

-- Scans.
insert into app.file (id, created_at) values (3, now()), (4, now() - interval '9 days');
insert into app.post values (2, 4);
insert into app.file (id, created_at) values (5, now() - interval '9 days'), (6, now());
update app.file set closed = false where id = 6;
delete from gc.file_review_queue;
select is(gc.scan('file'), 5, 'a scan goes over all rows');
select results_eq(
    $$select id, (extract(epoch from review_after - now()) / 86400)::numeric(9, 3)
        from gc.file_review_queue order by id$$,
    $$values (3, 7.000), (5, 1.000)$$,
    'queues what is garbage, and what will be, for that time');

-- Nobody knows when.
select is(pg_temp.turns($$app.is_old(created_at)$$), 'anyhow', 'where nobody knows when');
delete from gc.file_review_queue;
truncate gc.scan_requests;
insert into app.file (id, created_at) values (7, now());
update gc.file_review_queue set review_after = now();
select is(pg_temp.review() || pg_temp.due(), '1 reviewed, 1 kept, 0 deleted, 0 busy00:10:00',
    'a row is looked at again, not too often');
update gc.file_review_queue set review_after = now(), asleep_since = now() - interval '20 hours';
select is(pg_temp.review() || pg_temp.due(), '1 reviewed, 1 kept, 0 deleted, 0 busy02:00:00',
    'less often the longer it sleeps');
update gc.file_review_queue set review_after = now(), asleep_since = now() - interval '1 year';
select is(pg_temp.review() || pg_temp.due(), '1 reviewed, 1 kept, 0 deleted, 0 busy1 day',
    'and once a day at least');
update app.file set created_at = now() - interval '2 hours' where id = 7;
update gc.file_review_queue set review_after = now();
select is(pg_temp.review(), '1 reviewed, 0 kept, 1 deleted, 0 busy', 'until it goes');

select * from finish();
rollback;
