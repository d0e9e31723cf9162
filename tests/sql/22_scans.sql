-- Scans: whatever is asked for while one is half-way, another one follows and finds the rest.
begin;
set local client_min_messages = error;
select plan(22);

create schema app;
update gc.settings set jitter = '0', undo = '0';

-- As if the time of every review had come. Returns how many rows of the collection went.
create function pg_temp.review(name text)
    returns integer
    language plpgsql
as $$
begin
    execute format('update gc.%I set review_after = now()', name || '_review_queue');
    return (select r.deleted from gc.review() as r where r.collection = name);
end;
$$;


create table app.file (id integer primary key);
create table app.use (file integer references app.file);
create index on app.use (file);
select count(*) from gc.track('app.file', condition => 'true') \g /dev/null
insert into app.file select generate_series(1, 6);
insert into app.use select generate_series(1, 6);
select pg_temp.review('file') \g /dev/null
select is(gc.scan('file', 3), 3, 'a scan by hand is half-way');
truncate app.use;
select is(gc.scan('file', 3), 3, 'goes on after a TRUNCATE');
select is(gc.scan('file', 3), 0, 'and ends');
select results_eq('select id from gc.file_review_queue order by id', array[4, 5, 6],
    'it saw only the second half without references');
select is(pg_temp.review('file'), 3, 'that is collected');
select pg_temp.review('file') \g /dev/null
select is_empty('table app.file', 'and the scan that the TRUNCATE asked for finds the first half');

insert into app.file select generate_series(1, 6);
insert into app.use select generate_series(1, 6);
select pg_temp.review('file') \g /dev/null
insert into gc.scan_requests (collection, reason) values ('file', 'a test');
select count(*) from gc.review(3) \g /dev/null
truncate app.use;
select is((select scan_cursor from gc.collections), '3', 'a scan by reviews is half-way');
select count(pg_temp.review('file')) from generate_series(1, 4) \g /dev/null
select is_empty('table app.file', 'a TRUNCATE meanwhile asks for another one');
select results_eq('select scanning, scan_cursor from gc.collections',
    $$values (false, null::text)$$, 'and then it is over');
select is_empty('table gc.scan_requests', 'and nobody asks for more');

-- What was kept by another definition has no entry.
create table app.note (id integer primary key, draft boolean not null default false);
create table app.line (note integer references app.note);
create table app.link (note integer references app.note);
create index on app.line (note);
create index on app.link (note);
select count(*) from gc.track('app.note', condition => 'draft') \g /dev/null
insert into app.note select generate_series(1, 3);
insert into app.line values (1);
insert into app.link values (2);
select pg_temp.review('note') \g /dev/null
select count(*) from gc.track('app.note', condition => 'draft') \g /dev/null
select is_empty('table gc.scan_requests', 'the same definition asks for nothing');
select count(*) from gc.track('app.note') \g /dev/null
select pg_temp.review('note') \g /dev/null
select is(pg_temp.review('note'), 1, 'without a condition, what it kept is found and collected');
select results_eq('select id from app.note', array[1, 2], 'and nothing else');
select count(*) from gc.track('app.note', owned => '{line}') \g /dev/null
select pg_temp.review('note') \g /dev/null
select is(pg_temp.review('note'), 1, 'and so is what is only owned from now on');
select results_eq('select id from app.note', array[2], 'and nothing else');
select count(*) from gc.track('app.note') \g /dev/null
select is_empty('table gc.scan_requests', 'what keeps again asks for nothing');

-- Nor has what sleeps until another condition would have come true an entry that counts.
create table app.offer (id integer primary key, expires timestamptz, closed boolean not null);
select count(*) from gc.track('app.offer', condition => 'expires < now()') \g /dev/null
insert into app.offer values (1, now() + interval '1 year', true), (2, '2200-01-01', false);
select pg_temp.review('offer') \g /dev/null
select count(*) from gc.scan('offer') \g /dev/null
select is((select count(*) from gc.offer_review_queue), 2::bigint,
    'a scan leaves what sleeps by the same condition alone');
select count(*) from gc.track('app.offer', condition => 'closed') \g /dev/null
select count(*) from gc.review() \g /dev/null
update gc.offer_review_queue set review_after = now() where asleep_since is null;
select count(*) from gc.review() \g /dev/null
select results_eq('select id from app.offer', array[2],
    'by another one, it finds what slept, and only what is garbage goes');

-- A review whose function is still the old one, because it began before gc.track was committed.
insert into app.offer values (3, null, true);
update gc.offer_review_queue set review_after = now();
update gc.collections set fingerprint = 'another' where name = 'offer';
select results_eq('select reviewed, kept, deleted from gc.offer_review(10, null, 100, true)',
    'values (0, 0, 0)', 'code that was made for another definition decides nothing');
select isnt((select count(*) from gc.offer_review_queue where id = 3), 0::bigint,
    'and takes nothing off the queue');

-- A scan begins with no key at all, which is not a value of every type.
create domain app.token as uuid not null;
create table app.badge (id app.token primary key);
select count(*) from gc.track('app.badge', condition => 'true') \g /dev/null
insert into app.badge values (gen_random_uuid()), (gen_random_uuid());
delete from gc.badge_review_queue;
select is(gc.scan('badge', 1) + gc.scan('badge', 1), 2,
    'keys of a domain that is not null are scanned');
select is((select count(*) from gc.badge_review_queue), 2::bigint, 'and found');

select * from finish();
rollback;
