-- Pins: a row that is pinned is not collected, nor what it owns, nor its owner.
begin;
set local client_min_messages = error;
select plan(84);

create schema app;
create table app.repo (id integer primary key, dead boolean not null default false);
create table app.manifest (id integer primary key, repo integer references app.repo);
create index on app.manifest (repo);
create table app.layer (manifest integer references app.manifest, n integer);
create index on app.layer (manifest);
create table app.tag (manifest integer references app.manifest);
create index on app.tag (manifest);
create table app.file (id numeric primary key, path text);
create table app.post (file numeric references app.file);
create index on app.post (file);
create table app.pair (a integer, b bytea, primary key (a, b));
update gc.settings set undo = '0', jitter = '0';
select count(*) from gc.track('app.manifest', owned => '{layer}') \g /dev/null
select count(*) from gc.track('app.repo', condition => 'dead', owned => '{manifest}') \g /dev/null
select count(*) from gc.track('app.file', url => $$'s3://bucket/' || path$$) \g /dev/null
select count(*) from gc.track('app.pair', condition => 'true') \g /dev/null
select gc.set_delay(e, '0')
from unnest(array['manifest_insert', 'tag_delete', 'manifest_unpin', 'repo_insert', 'repo_update',
    'file_insert', 'file_unpin', 'pair_insert', 'pair_unpin', 'manifest_scan']) as e \g /dev/null
create function pg_temp.reviewed(name text) returns text language sql as $$
    select format('%s %s %s %s', reviewed, kept, deleted, failed) from gc.review()
    where collection = name
$$;

-- A row and what it owns.
insert into app.manifest values (1), (2);
insert into app.layer select 1, i from generate_series(1, 3) as i;
select is(gc.pin('manifest', '1', 'release 1'), true, 'a row is pinned');
select results_eq('select collection, key, holder, reason, until, pinned_by from gc.pins',
    $$select 'manifest', '1', current_setting('session_authorization'), 'release 1', 'infinity'::timestamptz,
        current_setting('session_authorization')$$, 'a pin is a row');
select is(pg_temp.reviewed('manifest'), '2 1 1 0', 'it is kept, and the other goes');
select is((select count(*) from app.layer), 3::bigint, 'what it owns is there');
select is_empty('select * from gc.manifest_review_queue', 'no review comes back for it');
insert into app.tag values (1);
delete from app.tag;
select is(pg_temp.reviewed('manifest'), '1 1 0 0', 'whatever happens to it');
insert into gc.scan_requests (collection, reason) values ('manifest', 'test');
select count(*) from gc.review() \g /dev/null
select is_empty('select * from gc.manifest_review_queue', 'a scan does not queue it');
select is(gc.pin('manifest', '2'), false, 'a row that is gone cannot be pinned');
select is((select count(*) from gc.pins), 1::bigint, 'and leaves no pin');

-- Holders.
select is(gc.pin('manifest', '1', 'a trial', holder => 'legal'), true, 'another holder');
select is(gc.unpin('manifest', '1', 'nobody'), false, 'who has no pin ends none');
select is(gc.unpin('manifest', '1'), true, 'one ends its pin');
select is(pg_temp.reviewed('manifest'), '1 1 0 0', 'the other''s holds');
select is(gc.unpin('manifest', '1', 'legal'), true, 'the other ends, too');
select results_eq('select id, event from gc.manifest_review_queue',
    $$values (1, 'manifest_unpin')$$, 'that queues a review');
select is(pg_temp.reviewed('manifest'), '1 0 1 0', 'and the row goes');
select is_empty('select * from app.layer', 'with what it owns');

-- An end.
insert into app.manifest values (3);
select is(gc.pin('manifest', '3', until => clock_timestamp() + interval '1 hour'), true,
    'a pin with an end');
select is(pg_temp.reviewed('manifest'), '1 1 0 0', 'holds');
select is((select review_after > now() + interval '59 minutes' from gc.manifest_review_queue),
    true, 'it is queued for the end of the pin');
update gc.pins set until = now();
update gc.manifest_review_queue set review_after = now();
select is(pg_temp.reviewed('manifest'), '1 0 1 0', 'a pin that is over holds nothing');
select is_empty('select * from gc.pins', 'and is forgotten');
insert into app.manifest values (4);
select gc.pin('manifest', '4', until => clock_timestamp() + interval '1 hour') \g /dev/null
select gc.pin('manifest', '4', 'for good') \g /dev/null
select results_eq('select key, reason, until from gc.pins',
    $$values ('4', 'for good', 'infinity'::timestamptz)$$, 'pinning again changes the pin');
select throws_ok($$select gc.pin('manifest', '4', until => now() - interval '1 hour')$$, '22023',
    null, 'a pin that is over before it begins is refused');
select throws_ok($$select gc.pin('manifest', '4', holder => '')$$, '22023', null,
    'so is one without a holder');
select throws_ok($$select gc.pin('manifest', 'x')$$, '22P02', null, 'and what is no key');
select throws_ok($$select gc.pin('nothing', '1')$$, '42704', null, 'or no collection');

-- Its owner.
insert into app.repo values (1), (2);
update app.manifest set repo = 1;
insert into app.manifest values (5, 1), (6, 2);
insert into app.tag values (5), (6);
delete from gc.repo_review_queue;
update app.repo set dead = true;
delete from app.tag;
delete from gc.manifest_review_queue;
select is(pg_temp.reviewed('repo'), '2 0 1 1', 'the owner of a pinned row stays, others go');
select set_eq('select id from app.manifest', array[4, 5], 'with all that it owns');
select matches((select last_error from gc.repo_review_queue),
    'row 4 of "manifest", which ".*" has pinned', 'and it is known why');
select gc.unpin('manifest', '4') \g /dev/null
update gc.repo_review_queue set review_after = now();
select count(*) from gc.review() \g /dev/null
select is_empty('select id from app.repo', 'when the pin is gone, the owner goes');

-- Keys that are written differently, and keys of several columns.
insert into app.file values (1.0, 'a'), (2, 'b');
select is(gc.pin('file', '1.00'), true, 'a key that is written in another way');
select is((select key from gc.pins where collection = 'file'), '1.0', 'is pinned as the row writes it');
select is(pg_temp.reviewed('file'), '2 1 1 0', 'and is kept');
insert into app.pair values (1, '\x0a'), (1, '\x0b');
select is(gc.pin('pair', E'(1,"\\\\x0A")'), true, 'a key of two columns');
select is(pg_temp.reviewed('pair'), '2 1 1 0', 'is kept');
select is(gc.unpin('pair', E'(1,"\\\\x0a")'), true, 'and let go');
select is(pg_temp.reviewed('pair'), '1 0 1 0', 'and collected');

-- The application deletes a pinned row: its object stays.
delete from gc.tombstones;
delete from app.file;
select is_empty($$select * from gc.claim('w')$$, 'the object of a pinned key is not handed out');
select is((select held_up from gc.tombstones), format('pinned by %s', session_user),
    'it is known why');
select is(gc.next_due() > now() + interval '50 seconds', true, 'and nobody is woken for it');
insert into app.file values (7, 'a');
delete from app.file;
update gc.tombstones set due_at = now() where key = '7';
select is_empty($$select * from gc.claim('w')$$, 'nor is it by another row that had it');
select is(gc.unpin('file', '1.0'), true, 'the pin of a row that is gone is ended');
select results_eq($$select url from gc.claim('w')$$, array['s3://bucket/a'],
    'and its object is handed out');

-- Many at once.
insert into app.manifest select i from generate_series(101, 110) as i;
select is((select count(*) from gc.pin('manifest', array(
    select i::text from generate_series(101, 112) as i), 'deployed') where pinned), 10::bigint,
    'many are pinned at once');
select set_eq($$select key from gc.pin('manifest', '{110, 111}'::text[]) where not pinned$$,
    array['111'], 'and who is not there is told');
select is((select count(*) from gc.unpin('manifest', array(
    select key from gc.pins where collection = 'manifest')) where unpinned), 10::bigint,
    'many are unpinned at once');
select is((select count(gc.pin('manifest', id::text)) from app.manifest), 10::bigint,
    'a query pins as well');
select is((select count(*) from gc.operations where operation = 'pin' and key = '110'), 3::bigint,
    'each is in the log');

-- Neither truncate nor untrack minds.
select lives_ok('truncate app.manifest, app.layer, app.tag', 'the application truncates');
select gc.untrack('repo'), gc.untrack('manifest') \g /dev/null
select is_empty($$select * from gc.pins where collection = 'manifest'$$,
    'pins of what is not tracked any more are forgotten');

-- A pinned row whose table has changed, and whose owner is collected.
create schema if not exists late;
create table late.owner (id bigint primary key, old boolean not null default false);
create table late.part (id bigint primary key, owner bigint references late.owner, path text);
create index on late.part (owner);
select count(*) from gc.track('late.part', name => 'late_part', condition => 'path is null',
    url => $$'s3://b/' || path$$) \g /dev/null
select count(*) from gc.track('late.owner', name => 'late_owner', condition => 'old',
    owned => '{part}') \g /dev/null
insert into late.owner values (1, true);
insert into late.part values (10, 1, 'x');
select ok(gc.pin('late_part', '10', 'for the court'), 'a row is pinned');
alter table late.part rename path to way;
update gc.late_owner_review_queue set review_after = now();
select is((select format('%s deleted, %s failed', deleted, failed) from gc.review()
    where collection = 'late_owner'), '0 deleted, 1 failed',
    'where it cannot be told whether a row is pinned, it does not go with its owner');
select is((select count(*) from late.part), 1::bigint, 'so it is there still');
alter table late.part rename way to path;
select ok(gc.unpin('late_part', '10'), 'until somebody says otherwise');

-- Under another key a row is pinned still, also where that changes with the owner's.
create table app.case_ (id integer primary key);
create table app.exhibit (
    case_ integer references app.case_ on update cascade, n integer, primary key (case_, n)
);
select count(*) from gc.track('app.exhibit', condition => 'true', undo => '0') \g /dev/null
insert into app.case_ values (1), (2);
insert into app.exhibit values (1, 1), (1, 2), (1, 3), (2, 1);
select gc.pin('exhibit', '(1,2)'), gc.pin('exhibit', '(2,1)', until => now() + interval '10 days')
\g /dev/null
update app.case_ set id = id + 10;
select gc.review() \g /dev/null
select set_eq($$select key, until from gc.pins
    where collection = 'exhibit' and pinned_as is not null$$,
    $$values ('(11,2)', 'infinity'::timestamptz), ('(12,1)', now() + interval '10 days')$$,
    'a row is pinned under the key that it gets, and no other row');
update gc.exhibit_review_queue set review_after = now() where review_after < now() + interval '2 days';
select gc.review() \g /dev/null
select results_eq('select case_, n from app.exhibit order by 1', 'values (11, 2), (12, 1)',
    'and no review deletes it');
select results_eq($$select case_, n from gc.exhibit_review_queue where case_ = 12$$,
    'values (12, 1)', 'before the pin ends');

-- From key to key, whatever else its holder has pinned there, and until he says otherwise.
create table app.proof (id integer primary key, name text);
select count(*) from gc.track('app.proof', condition => 'true', undo => '0',
    url => $$'s3://proofs/' || name$$) \g /dev/null
create function pg_temp.review_proofs() returns text
    language plpgsql as $$
begin
    update gc.proof_review_queue set review_after = now() - interval '1 second';
    return (select format('%s kept, %s deleted, %s busy', r.kept, r.deleted, r.busy)
        from gc.review() as r where r.collection = 'proof');
end;
$$;
insert into app.proof values (1, 'pinned'), (2, 'other');
select gc.pin('proof', '1', 'legal', holder => 'h'),
    gc.pin('proof', '2', 'sooner', now() + interval '1 hour', 'h') \g /dev/null
delete from app.proof where id = 2;
update gc.pins set until = now() where key = '2';
update app.proof set id = 2;
update app.proof set id = 3;
select is(pg_temp.review_proofs(), '1 kept, 0 deleted, 0 busy',
    'a pin that is over does not stand in the way of one that follows');
select results_eq($$select key, pinned_as from gc.pins where collection = 'proof' order by 1$$,
    $$values ('1', null), ('2', '1'), ('3', '1')$$, 'it tells under which key the row was pinned');
select is((select count(*) from gc.key_changes), 0::bigint, 'a change is forgotten then');
select gc.pin('proof', '3', 'shorter', now() + interval '1 hour', 'h') \g /dev/null
select results_eq($$select key, reason from gc.pins where collection = 'proof' order by 1$$,
    $$values ('1', 'legal'), ('2', 'legal'), ('3', 'shorter')$$, 'its holder may pin the row anew');
update app.proof set id = 4;
select is(pg_temp.review_proofs(), '1 kept, 0 deleted, 0 busy', 'and that follows, too');
update app.proof set id = 3;
update app.proof set id = 4;
select gc.review() \g /dev/null
update app.proof set id = 3;
update app.proof set id = 4;
select matches(pg_temp.review_proofs(), 'kept, 0 deleted, 0 busy', 'a row may come back to a key');
select is((select count(*) from gc.pins where collection = 'proof'), 5::bigint,
    'without a pin for each time');
select ok(gc.unpin('proof', '4', 'h'), 'he ends it under the key that the row has');
select is(pg_temp.review_proofs(), '0 kept, 1 deleted, 0 busy', 'then the row is garbage');

-- Whoever deletes such a row himself keeps its object, as under the key before.
delete from gc.tombstones;
delete from gc.pins;
insert into app.proof values (1, 'pinned');
select gc.pin('proof', '1', 'legal', holder => 'h') \g /dev/null
update app.proof set id = 2;
delete from app.proof;
select is_empty($$select * from gc.claim('worker')$$, 'the object is not handed out');
select gc.review() \g /dev/null
update gc.tombstones set due_at = now();
select is_empty($$select * from gc.claim('worker')$$, 'nor when the pin has followed');
select is((select held_up from gc.tombstones), 'pinned by h', 'and it is told why');

-- What somebody uses, he uses under another key, too.
delete from gc.pins;
insert into app.proof values (1, 'used');
select ok(gc.keep_alive('proof', '1'), 'a row is in use');
update app.proof set id = 5;
select is(pg_temp.review_proofs(), '0 kept, 0 deleted, 1 busy', 'and is so under another key');

-- A row that its new partition refuses is in one transition table only.
delete from gc.holds;
create table app.sheaf (id integer primary key, name text) partition by range (id);
create table app.sheaf_1 partition of app.sheaf for values from (0) to (100);
create table app.sheaf_2 partition of app.sheaf for values from (100) to (200);
create function app.refuse() returns trigger
    language plpgsql as $$
begin
    return case when new.name <> 'refused' then new end;
end;
$$;
create trigger refuse before insert on app.sheaf_2 for each row execute function app.refuse();
select count(*) from gc.track('app.sheaf', condition => 'true', undo => '0') \g /dev/null
insert into app.sheaf values (1, 'refused'), (2, 'pinned'), (3, 'other');
select gc.pin('sheaf', '2', 'legal', holder => 'h') \g /dev/null
update app.sheaf set id = id + 100;
update gc.sheaf_review_queue set review_after = now();
select gc.review() \g /dev/null
select results_eq('select id from app.sheaf order by id', 'values (102), (103)',
    'where it is not known which row is which, all may be the pinned one');

-- Rows exchange their keys in one statement, which a primary key allows that is checked at its end.
create table app.seat (id integer, name text, primary key (id) deferrable);
select count(*) from gc.track('app.seat', condition => 'true', undo => '0') \g /dev/null
insert into app.seat values (1, 'pinned'), (2, 'other'), (3, 'third');
select gc.pin('seat', '1', 'legal', holder => 'h') \g /dev/null
update app.seat set id = 3 - id where id < 3;
update gc.seat_review_queue set review_after = now();
select gc.review() \g /dev/null
select results_eq('select id, name from app.seat', $$values (2, 'pinned'), (1, 'other')$$,
    'a pin follows an exchange of keys; and who got the pinned one is pinned, too');

-- One key to PostgreSQL, and two texts.
create table app.price (id numeric primary key);
select count(*) from gc.track('app.price', condition => 'true', undo => '0') \g /dev/null
insert into app.price values (1.0);
select gc.pin('price', '1.0', 'legal', holder => 'h') \g /dev/null
update app.price set id = 1.00;
update gc.price_review_queue set review_after = now();
select gc.review() \g /dev/null
select is((select id::text from app.price), '1.00', 'a pin follows another way of writing a key');

-- More rows than one line takes.
create table app.grain (id integer primary key);
select count(*) from gc.track('app.grain', condition => 'true', undo => '0') \g /dev/null
insert into app.grain select generate_series(1, 25000);
select gc.pin('grain', '24000', 'legal', holder => 'h') \g /dev/null
update app.grain set id = id + 100000;
select is((select count(*) from gc.key_changes where collection = 'grain'), 3::bigint,
    'changes are noted in lines of a size');
select gc._follow_keys('grain') \g /dev/null
select is((select key from gc.pins where collection = 'grain' and pinned_as = '24000'), '124000',
    'in each, a row is the same one');
truncate app.grain;

-- The table has changed, and nobody has made code for it yet.
create table app.scroll (id integer primary key);
select count(*) from gc.track('app.scroll', condition => 'true', undo => '0') \g /dev/null
insert into app.scroll values (1), (3);
select gc.pin('scroll', '1', 'legal', holder => 'h') \g /dev/null
alter table app.scroll rename id to number;
update app.scroll set number = number + 1;
select gc.review() from generate_series(1, 2) \g /dev/null
update gc.scroll_review_queue set review_after = now();
select gc.review() \g /dev/null
select results_eq('select number from app.scroll', 'values (2)', 'its key is followed all the same');
alter table app.scroll alter number type numeric;
delete from gc.key_changes;
update app.scroll set number = number + 1;
select is_empty('table gc.key_changes',
    'but not where the type may be anybody''s, or print as a session likes');
create table app.couple (a text, b integer, primary key (a, b));
insert into app.couple values (' x', 1), (E'"\\', 2), ('', 3), ('(,)', 4), ('plain', 5);
select is(gc._keys_of('{a,b}', array(select to_jsonb(p) from app.couple as p order by b)),
    array(select row(p.a, p.b)::text from app.couple as p order by b), 'keys are written as rows are');

-- An owned row whose key has just changed does not go with its owner.
create table app.crate (id integer primary key);
create table app.bottle (
    id integer primary key, crate integer references app.crate on delete cascade
);
create index on app.bottle (crate);
select count(*) from gc.track('app.crate', condition => 'true', owned => '{bottle}', undo => '0')
\g /dev/null
select count(*) from gc.track('app.bottle', condition => 'false', undo => '0') \g /dev/null
insert into app.crate values (1);
insert into app.bottle values (1, 1);
select gc.pin('bottle', '1', 'legal', holder => 'h') \g /dev/null
update app.bottle set id = 2;
update gc.crate_review_queue set review_after = now();
savepoint s;
select throws_ok('select * from gc.crate_review(10)', 'ZG008', null,
    'before its pin has followed, it is not known whether it is pinned');
rollback to s;
select gc.bottle_review(10) \g /dev/null
select throws_ok('select * from gc.crate_review(10)', 'ZG008', null, 'then it is');
rollback to s;
delete from gc.pins;
select gc.bottle_review(10), gc.crate_review(10) \g /dev/null
select is_empty('table app.bottle', 'and without a pin it goes');

select gc.untrack('proof') \g /dev/null
select is((select count(*) from gc.key_changes where collection = 'proof'), 0::bigint,
    'an untracked collection leaves no changes');

select * from finish();
rollback;
