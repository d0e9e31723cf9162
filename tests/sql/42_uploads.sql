-- Uploads: an object that is written again while its old row is on the way out, and keep_alive.
begin;
set local client_min_messages = error;
select plan(117);

create schema app;
create table app.file (id bigint primary key, path text);
create table app.blob (digest bytea primary key, name text);
create table app.shared (id bigint primary key, path text);
create index on app.shared (path);
create table app.pair (a integer, b text, primary key (a, b));
update gc.settings set jitter = '0', undo = '0';
insert into gc.review_after_defaults
select e, '0'
from unnest(array['file_insert', 'blob_insert', 'shared_insert', 'pair_insert']) as e;
select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id || path$$,
    condition => 'true') \g /dev/null
select count(*) from gc.track(
    'app.blob', url => $$'s3://blob/' || encode(digest, 'hex') || name$$, condition => 'true') \g /dev/null
select count(*) from gc.track('app.shared', url => 'path', condition => 'true') \g /dev/null
select count(*) from gc.track('app.pair', url => $$'s3://pair/' || a || '/' || b$$,
    condition => 'true') \g /dev/null

create function pg_temp.error_of(
    command text, out state text, out message text, out detail text, out hint text
)
    language plpgsql
as $$
begin
    execute command;
exception
    when others then
        get stacked diagnostics state = returned_sqlstate, message = message_text,
            detail = pg_exception_detail, hint = pg_exception_hint;
end;
$$;
create function pg_temp.clean()
    returns void
    language sql
as $$
    delete from gc.holds;
    delete from app.file;
    delete from gc.tombstones;
$$;
create function pg_temp.bury(variadic ids bigint[])
    returns void
    language plpgsql
as $$
begin
    perform pg_temp.clean();
    insert into app.file select i, '' from unnest(ids) as i;
    delete from app.file;
end;
$$;
create function pg_temp.claimed()
    returns setof text
    language plpgsql
as $$
begin
    update gc.tombstones as t set wait_for = '0' where t.wait_for is null;
    return query select c.url from gc.claim('worker') as c order by c.url;
end;
$$;
create function pg_temp.end_leases()
    returns void
    language sql
as $$ update gc.tombstones set due_at = clock_timestamp() where worker is not null $$;
-- As if the time of every hold had passed, and with it that of what waits for it.
create function pg_temp.end_holds()
    returns void
    language sql
as $$
    update gc.holds set held_until = now() - interval '1 second';
    update gc.tombstones set due_at = now() where worker is null;
$$;


-- The same object comes back: before the claim, between claim and delete, before and after confirm.
select pg_temp.bury(1);
select lives_ok($$insert into app.file values (1, '')$$,
    'before the claim, a row whose object is on the way out is accepted');
select is_empty('select pg_temp.claimed()', 'and its object is not handed out');
select is_empty('select pg_temp.claimed()', 'so that its object is never handed out');
select pg_temp.bury(1, 2);
select results_eq('select pg_temp.claimed()', array['s3://bucket/1', 's3://bucket/2'],
    'a worker has two objects');
create temporary table before as select * from gc.tombstones;
create temporary table refused as
select * from pg_temp.error_of($$insert into app.file values (3, ''), (1, ''), (4, '')$$);
select is((select state from refused), 'ZG001',
    'a row whose object is being deleted is refused with ZG001');
select matches((select detail from refused),
    '^s3://bucket/1 is leased to a worker until ',
    'the detail names the object, which the caller has written, and nothing of anybody else');
select matches((select hint from refused), $$gc.begin_upload\('file', …\) .* write .* insert$$,
    'the hint is the next command');
select is_empty('select id from app.file', 'no row of the refused statement is there');
select set_eq('table gc.tombstones', 'table before', 'the refusal changes no tombstone');
select lives_ok($$insert into app.file values (3, '')$$, 'a row with another object is accepted');
select is((select state from pg_temp.error_of($$update app.file set id = 2$$)), 'ZG001',
    'an UPDATE that names an object that is being deleted is refused');
select lives_ok($$update app.file set path = '/x'$$, 'an UPDATE that names another is accepted');
select is((select state from pg_temp.error_of(
    $$insert into app.file values (3, '')
        on conflict (id) do update set id = 2, path = ''$$)), 'ZG001',
    'an upsert that names an object that is being deleted is refused');
select is(gc.confirm('worker', array(select id from gc.tombstones where key = '1')), 1,
    'the worker confirms');
select lives_ok($$insert into app.file values (1, '')$$,
    'after the confirm, the row is accepted');
select pg_temp.end_leases();
select lives_ok($$insert into app.file values (2, '')$$,
    'when the lease is over, the row is accepted');
select is_empty($$select u from pg_temp.claimed() as u where u = 's3://bucket/2'$$,
    'and its object is not handed out');
select is(gc.confirm('worker', array(select id from before)), 0,
    'the worker that was too late changes nothing');
select results_eq(
    $$select key from gc.deletion_log order by id$$, array['1'],
    'only what was confirmed in time is logged');

-- Announcing an upload.
select pg_temp.clean();
update gc.settings set upload_timeout = '2 hours';
select ok(
    u.until between now() + interval '2 hours' and clock_timestamp() + interval '2 hours',
    'begin_upload tells when the hold ends by itself')
from gc.begin_upload('file', '10') as u(until);
select results_eq('select collection, key, url, reason from gc.holds',
    $$values ('file', '10', null::text, 'upload')$$, 'begin_upload holds the key');
select is_empty('select id from gc.tombstones', 'begin_upload without a url leaves no tombstone');
select ok(
    gc.begin_upload('file', '10', timeout => '1 minute') < clock_timestamp() + interval '1 minute',
    'an upload may have its own timeout');
select is(gc.end_upload('file', '10'), true, 'end_upload ends one of two uploads');
select is((select count(*) from gc.holds where held_until > now() + interval '1 hour'), 0::bigint,
    'it is the one that began first');
select is(gc.end_upload('file', '10'), true, 'end_upload ends the other');
select is(gc.end_upload('file', '10'), false, 'then there is none to end');
select is_empty('select id from gc.holds', 'and nothing is held');
select count(*) from gc.begin_upload('file', '10') \g /dev/null
select pg_temp.end_holds();
select count(*) from gc.begin_upload('file', '10') \g /dev/null
select is(gc.end_upload('file', '10'), false,
    'an upload that timed out does not live off the hold of another');
select is(gc.end_upload('file', '10'), true, 'and the other one is in time');
select is(gc.end_upload('file', '10'), false, 'each of them only once');

-- Uploads that have names.
select count(*) from gc.begin_upload('file', '10', upload => 'slow') \g /dev/null
select pg_temp.end_holds();
select gc.begin_upload('file', '10', upload => u) from unnest('{a,b}'::text[]) as u \g /dev/null
select count(*) from gc.begin_upload('file', '10') \g /dev/null
select is(gc.end_upload('file', '10', 'slow'), false, 'a named upload that timed out is refused');
select is(gc.end_upload('file', '10', 'other'), false, 'so is a name that nobody announced');
select is(gc.end_upload('file', '11', 'b'), false, 'and one of another key');
select is(gc.end_upload('file', '10', 'b'), true, 'an upload is ended by its name');
select is(gc.end_upload('file', '10', 'b'), false, 'once');
select is(gc.end_upload('file', '10'), true, 'one without a name ends one without a name');
select is(gc.end_upload('file', '10'), false, 'and never one that has a name');
select results_eq('select upload from gc.holds', array['a'], 'what nobody has ended is held');
select count(*) from gc.begin_upload('file', '10', upload => 'a', timeout => '1 second') \g /dev/null
select is(gc.end_upload('file', '10', 'a'), true, 'an upload that began twice ends once');
select is_empty('select id from gc.holds', 'and holds nothing afterwards');

select count(*) from gc.begin_upload('file', '10') \g /dev/null
select pg_temp.end_holds();
select count(*) from gc.review() \g /dev/null
select isnt_empty('select id from gc.holds',
    'a review leaves an upload that has just timed out, so that it can be refused');
update gc.holds set held_until = now() - interval '2 hours 1 second';
select count(*) from gc.review() \g /dev/null
select is_empty('select id from gc.holds', 'and drops it after as long as an upload may take');

-- With a tombstone that nobody has claimed.
select pg_temp.bury(20, 21);
select count(*) from gc.begin_upload('file', '20') \g /dev/null
select results_eq('select pg_temp.claimed()', array['s3://bucket/21'],
    'an object whose upload was announced is not handed out');
select lives_ok($$insert into app.file values (20, '')$$, 'its row is accepted');
select is_empty($$select u from pg_temp.claimed() as u where u = 's3://bucket/20'$$,
    'and its object is not handed out');
select pg_temp.bury(22);
select count(*) from gc.begin_upload('file', '22') \g /dev/null
select is_empty('select pg_temp.claimed()', 'while the upload runs its object is not handed out');
select results_eq('select t.key, t.worker from gc.tombstones as t',
    $$values ('22', null::text)$$, 'and its tombstone stays');
-- This transaction has the advisory locks of its uploads to its end; so a hold of another one.
select pg_temp.bury(23);
insert into gc.holds (collection, key, reason, held_until)
values ('file', '23', 'upload', clock_timestamp() + interval '1 hour');
select is_empty('select pg_temp.claimed()', 'an upload of another transaction holds as well');
select pg_temp.end_holds();
select results_eq('select pg_temp.claimed()', array['s3://bucket/23'],
    'an upload that never became a row is collected after its timeout');

-- With one that is being deleted.
select pg_temp.bury(30);
select count(*) from pg_temp.claimed() \g /dev/null
truncate before;
insert into before select * from gc.tombstones;
truncate refused;
create temporary table times (at timestamptz);
insert into times values (clock_timestamp());
insert into refused
select * from pg_temp.error_of($$select gc.begin_upload('file', '30', wait => '0')$$);
insert into times values (clock_timestamp());
select is((select state from refused), 'ZG001',
    'begin_upload of an object that is being deleted fails with ZG001');
select matches((select detail from refused), '^It is leased to a worker until ',
    'the detail says until when');
select is((select hint from refused),
    $$Try again in a few seconds: select gc.begin_upload('file', '30');$$,
    'the hint is the next command');
select cmp_ok((select max(at) - min(at) from times), '<', '250 ms'::interval,
    'with a wait of zero it fails at once');
select is_empty('select id from gc.holds', 'and holds nothing');
truncate times;
insert into times values (clock_timestamp());
select is(
    (select state from pg_temp.error_of(
        $$select gc.begin_upload('file', '30', wait => '0.2 seconds')$$)),
    'ZG001', 'it fails as well after a wait');
insert into times values (clock_timestamp());
select cmp_ok((select max(at) - min(at) from times), '>=', '200 ms'::interval,
    'which it has waited');
select set_eq('table gc.tombstones', 'table before', 'the worker keeps its lease');
select lives_ok($$select gc.begin_upload('file', '31', wait => '0')$$,
    'begin_upload of another key does not wait');
select pg_temp.end_leases();
select lives_ok($$select gc.begin_upload('file', '30', wait => '0')$$,
    'begin_upload of an object whose lease is over takes it over');
select is(gc.confirm('worker', array(select id from before)), 0,
    'the worker that was too late changes nothing');
select is_empty('select pg_temp.claimed()', 'and nobody else is given it');
select pg_temp.bury(32);
select count(*) from pg_temp.claimed() \g /dev/null
update gc.tombstones set due_at = clock_timestamp() + interval '0.1 seconds';
select lives_ok($$select gc.begin_upload('file', '32', wait => '2 seconds')$$,
    'begin_upload waits until the lease is over');

-- An upload writes no tombstone: a url that somebody names is not yet an object of theirs.
select pg_temp.clean();
select count(*) from gc.begin_upload('file', '40', 's3://bucket/40') \g /dev/null
select is_empty('select id from gc.tombstones', 'an upload whose url is told has no tombstone');
insert into app.file values (40, '');
select is(gc.end_upload('file', '40'), true, 'the upload becomes a row');
select pg_temp.clean();
insert into app.shared values (1, 's3://shared/1');
delete from app.shared;
select count(*) from gc.begin_upload('shared', '2', 's3://shared/1') \g /dev/null
select is_empty('select pg_temp.claimed()',
    'an announced url is not handed out, whichever row left it');
insert into app.shared values (2, 's3://shared/1');
select pg_temp.end_holds();
select is_empty('select pg_temp.claimed()', 'nor is it when the row is there');

select pg_temp.clean();
insert into app.file values (42, '');
select count(*) from pg_temp.error_of(
    $$select gc.begin_upload('file', '43', 's3://bucket/42')$$) \g /dev/null
select is(
    (
        select count(*) from gc.tombstones as t
        where t.url = 's3://bucket/42' and t.id not in (select gc.file_used(array[t.id], false))
    ),
    0::bigint, 'an upload that names the url of a live row never leads to its deletion');

-- Keys have one spelling.
select count(*) from gc.begin_upload('blob', E'\\x0A0B') \g /dev/null
select is((select key from gc.holds where collection = 'blob'), E'\\x0a0b',
    'a key is held as PostgreSQL prints it');
select is(gc.end_upload('blob', E'\\012\\013'), true, 'and found by any spelling');
select count(*) from gc.begin_upload('pair', '( 1,"x y")') \g /dev/null
select is((select key from gc.holds where collection = 'pair'), '(1,"x y")',
    'so is a key of several columns');
select is(gc.end_upload('file', '1'), false, 'an upload of another collection is another upload');

-- Strict uploads.
select pg_temp.clean();
update gc.settings set strict_uploads = true;
truncate refused;
insert into refused
select * from pg_temp.error_of($$insert into app.file values (50, ''), (51, '')$$);
select is((select state from refused), 'ZG002',
    'strict uploads: a row whose object was not announced is refused with ZG002');
select is((select detail from refused), 'Row 50 of "file", and strict_uploads is on.',
    'the detail names the row');
select is((select hint from refused),
    $$select gc.begin_upload('file', '50'); before the object is written.$$,
    'the hint is the next command');
select count(*) from gc.begin_upload('file', '50') \g /dev/null
select is((select state from pg_temp.error_of($$insert into app.file values (50, ''), (51, '')$$)),
    'ZG002', 'one row that was not announced is enough for a refusal');
select is_empty('select id from app.file', 'of the whole statement');
select lives_ok($$insert into app.file values (50, '')$$, 'a row that was announced is accepted');
select lives_ok($$insert into app.file values (52, null)$$, 'a row without an object is accepted');
select lives_ok($$update app.file set path = null where id = 50$$,
    'an UPDATE that takes the object away is accepted');
select gc.end_upload('file', '50') \g /dev/null
select is((select state from pg_temp.error_of($$update app.file set path = '/y' where id = 50$$)),
    'ZG002', 'an UPDATE that names an object that was not announced is refused');
select count(*) from gc.begin_upload('file', '53') \g /dev/null
select pg_temp.end_holds();
select is((select state from pg_temp.error_of($$insert into app.file values (53, '')$$)), 'ZG002',
    'an upload that timed out is not announced any more');
update gc.settings set strict_uploads = false;
select lives_ok($$insert into app.file values (53, '')$$,
    'without strict uploads nothing need be announced');

-- Keeping alive.
select pg_temp.clean();
delete from app.shared;
delete from gc.file_review_queue;
select is(gc.keep_alive('file', '60'), false, 'keep_alive tells that a row does not exist');
select is_empty('select id from gc.holds', 'and then holds nothing');
update gc.settings set keep_alive = '3 hours';
insert into app.file values (60, ''), (61, '');
select is(gc.keep_alive('file', '60'), true, 'keep_alive tells that a row exists');
select results_eq(
    $$select collection, key, reason,
        held_until - clock_timestamp() between interval '2:59' and interval '3:00' from gc.holds$$,
    $$values ('file', '60', 'keep_alive', true)$$,
    'and holds it for as long as the settings say');
select cmp_ok((select held_until from gc.holds), '>', now() + interval '3 hours',
    'counted from now, and not from the beginning of the transaction');
select results_eq(
    $$select reviewed, kept, deleted, busy from gc.review() where collection = 'file'$$,
    'values (2, 0, 1, 1)', 'a review puts a row off that is kept alive, and deletes the other');
select results_eq('select id from app.file', array[60::bigint], 'the row is still there');
select results_eq('select id, review_after - now(), review_count from gc.file_review_queue',
    $$values (60::bigint, interval '30 seconds', 0)$$, 'and looked at again soon');
update gc.file_review_queue set review_after = now();
select pg_temp.end_holds();
select results_eq(
    $$select reviewed, kept, deleted, busy from gc.review() where collection = 'file'$$,
    'values (1, 0, 1, 0)', 'when the time is over a review lets go of the row');
select is_empty('select id from app.file', 'and deletes it');
insert into app.pair values (1, 'x y');
select is(gc.keep_alive('pair', '(1,"x y")'), true, 'a key of several columns is found');
select is(gc.keep_alive('pair', '(1,"x  y")'), false, 'to the letter');

-- keep_alive finds the row however the key is written.
select pg_temp.clean();
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
create table app.price (id numeric primary key);
select count(*) from gc.track('app.price', name => 'd', condition => 'true') \g /dev/null
insert into app.price values (1.0), (2.0);
select ok(gc.keep_alive('d', '1'), 'keep_alive finds the row 1.0 by the key 1');
select is(pg_temp.review('d'), 1, 'a review takes the other row');
select results_eq('select id::text from app.price', array['1.0'], 'and not the one that is held');
delete from gc.holds;
select is(pg_temp.review('d'), 1, 'which goes when nobody holds it any more');
select gc.untrack('d');


-- A hold is for the row, however the key is written by those who refer to it.
create table app.sum (id numeric primary key);
create table app.use (sum numeric references app.sum);
create index on app.use (sum);
select count(*) from gc.track('app.sum') \g /dev/null
select gc.set_delay('use_delete', '0');
insert into app.sum values (1);
insert into app.use values (1.0);
delete from gc.sum_review_queue;
delete from app.use;
select is((select q.id::text from gc.sum_review_queue as q), '1.0', 'the reference wrote 1.0');
select ok(gc.keep_alive('sum', '1'), 'the row says 1, and somebody keeps it');
select is(pg_temp.review('sum'), 0, 'so it is not collected');
delete from gc.holds;
update gc.sum_review_queue set review_after = now();
select is(pg_temp.review('sum'), 1, 'until nobody keeps it any more');
select gc.untrack('sum');


-- An upload whose url is told, but is not written as the collection writes it.
create table app.object (id integer primary key);
select from gc.track('app.object', url => $$'s3://b/' || id$$, condition => 'true');
insert into app.object values (1);
delete from app.object;
select isnt_empty($$select from gc.claim('w')$$, 'an object is being deleted');
select throws_ok(
    $$select gc.begin_upload('object', '1', url => 's3://b/./1', wait => '0')$$,
    'ZG001', null, 'an upload of its key has to wait, whatever url it tells');
select throws_ok(
    $$select gc.begin_upload('object', '1', url => 's3://another/1', wait => '0')$$,
    '22023', null, 'a url that no row of the collection can have is refused');
-- While no url is known, the key is all that there is.
select from gc.track('app.object', condition => 'true');
select throws_ok($$select gc.begin_upload('object', '1', wait => '0')$$, 'ZG001', null,
    'also after the url was taken out of the definition');


-- Many at once, and by url alone.
create table app.item (id integer primary key, path text);
create index on app.item (('s3://items/' || path));
select from gc.track('app.item', url => $$'s3://items/' || path$$, condition => 'true');
insert into app.item select n, 'p' || n from generate_series(1, 4) as n;
delete from app.item;
select ok(gc.begin_uploads('item', urls => '{s3://items/p1, s3://items/p2}') > now(),
    'uploads whose keys are not known yet are announced by their urls');
select ok(gc.begin_uploads('item', '{7, 8}', array['s3://items/p3', null], upload => 'u') > now(),
    'others by keys, and urls where these are known');
select ok(gc.begin_upload('item', null, url => 's3://items/p9') > now(), 'also one');
select results_eq($$select url from gc.claim('w2') order by url$$, array['s3://items/p4'],
    'what is announced is not handed out');
update gc.settings set strict_uploads = true;
select lives_ok($$insert into app.item values (11, 'p1'), (12, 'p2'), (7, 'p3'), (8, 'p8')$$,
    'rows of what was announced can be inserted, whatever their keys are');
select throws_ok($$insert into app.item values (13, 'p5')$$, 'ZG002', null, 'and no others');
update gc.settings set strict_uploads = false;
select is(gc.end_uploads('item', urls => '{s3://items/p1, s3://items/p2}'), 2,
    'they are ended by their urls');
select is(gc.end_uploads('item', '{7, 8}', upload => 'u'), 2, 'or by their keys');
select is(gc.end_uploads('item', '{7}', upload => 'u'), 0, 'once');
select throws_ok($$select gc.begin_uploads('item', '{1, 2}', '{s3://items/p1}')$$, '22023', null,
    'there are as many urls as keys');

select * from finish();
rollback;
