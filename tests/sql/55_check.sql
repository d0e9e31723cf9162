-- Checking: what is wrong, the most important first, with the command that mends it.
begin;
set local client_min_messages = error;
select plan(25);

create schema app;
create table app.file (id integer primary key, name text);
create table app.post (id integer primary key, file_id integer references app.file);
create index on app.post (file_id);
select results_eq('select severity, subject, command from gc.check()',
    $$values ('remark', 'blobgc', 'select * from gc.track(''schema.table'');')$$,
    'without a collection there is a remark');
update gc.settings set jitter = '0';
select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id$$) \g /dev/null
select gc.set_delay('file_insert', '0') \g /dev/null
select is_empty('select * from gc.check()', 'a fresh collection is well');

-- Suspects, and what mends them.
create table app.note (id integer primary key, file_id integer);
select results_eq('select severity, subject from gc.check()', $$values ('error', 'file')$$,
    'a column that looks like a reference is an error');
select matches((select command from gc.check()),
    E'^create index concurrently on app.note \\(file_id\\);\nselect gc.declare_reference', 'with what makes it one');
do $$ begin
    execute (select replace(command, 'concurrently ', '') from gc.check());
end $$;
select is_empty('select * from gc.check()', 'which mends it');

-- Blocked.
alter table app.post drop constraint post_file_id_fkey;
select results_eq($$select severity, problem ~ 'no longer refers to "app.file"' from gc.check()$$,
    $$values ('error', false), ('error', true)$$,
    'a lost reference is found before a review has met it; now its column is suspect as well');
select matches((select command from gc.check() offset 1), '^select . from gc.track', 'with what accepts the loss');
select is((select problem from gc.collections), null, 'and nothing was changed by looking');
do $$ begin execute (select command from gc.check() offset 1); end $$;
select gc.ignore_suspect('file', 'app.post', 'file_id') \g /dev/null
select is_empty('select * from gc.check()', 'which mends it');

-- Pauses and the brake.
select gc.pause(reason => 'an audit') \g /dev/null
select results_eq('select severity, subject, command from gc.check()',
    $$values ('remark', 'all collections', 'select gc.resume();'),
        ('remark', 'all collections', 'select gc.resume();')$$, 'a pause is a remark');
select count(gc.resume()) \g /dev/null
insert into gc.pauses values ('file', 'reviews', 'much was about to go', 'infinity', 'the brake');
select results_eq('select severity, command from gc.check()',
    $$values ('error', 'select gc.resume(''file'');')$$, 'what the brake has stopped is an error');
select count(gc.resume('file')) \g /dev/null

-- Failures.
insert into app.file values (1), (2), (3);
update gc.file_review_queue set review_count = 1, last_error = 'refused' where id = 1;
select matches((select problem from gc.check()), '^1 rows cannot be deleted: refused$',
    'a review that fails is told');
update gc.file_review_queue set review_count = 0, last_error = null;
select count(*) from gc.review() \g /dev/null
update gc.tombstones set failures = 2, last_error = 'no bucket' where key = '1';
select matches((select problem from gc.check()), '^1 objects cannot be deleted: no bucket$',
    'an object that cannot be deleted is told');
update gc.tombstones set failures = 0, last_error = null;
update gc.collections set scan_error = 'no right';
select matches((select problem from gc.check()), 'a scan failed: no right', 'a scan that failed too');
update gc.collections set scan_error = null;

-- Work that nobody does.
update gc.tombstones set due_at = now() - interval '1 hour';
select results_eq('select severity, subject, command from gc.check()',
    $$values ('error', 's3://bucket', 'blobgc run --store s3://bucket/')$$,
    'objects that no runner asks for are an error');
select count(*) from gc.claim('elsewhere', 1, prefixes => '{s3://other/}') \g /dev/null
select is((select count(*) from gc.check()), 1::bigint, 'a runner of another store is none of it');
select count(*) from gc.claim('here', 1, prefixes => '{s3://bucket/}') \g /dev/null
select is_empty('select * from gc.check()', 'with a runner it is a matter of time');
insert into app.file values (4);
update gc.file_review_queue set review_after = now() - interval '1 hour';
update gc.runner_calls set last_call = now() - interval '1 hour' where worker = '';
select matches((select problem from gc.check()), 'nobody has reviewed for a quarter of an hour',
    'reviews that nobody does are an error');
select count(*) from gc.review() \g /dev/null

-- Runners of other versions.
select set_config('application_name', format('blobgc %s.99 alpha/7',
    substring(gc.version() from '^[0-9]+[.][0-9]+')), true) \g /dev/null
select count(*) from gc.review() \g /dev/null
select results_eq('select severity, subject, command from gc.check()', format(
    $$values ('warning', 'runner %s', 'pip install blobgc==%s, on alpha')$$,
    current_setting('application_name'), gc.version()), 'a runner of another version is told');
delete from gc.runner_calls where application ~ 'alpha';

-- Uploads.
insert into gc.deletion_log (collection, key, url, row_deleted_at)
values ('file', '9', 's3://bucket/9', now());
select is_empty('select * from gc.check()', 'what went and stays away is well');
insert into app.file values (9);
select matches((select problem from gc.check()), '^1 of the last rows .* are there again',
    'what went and came again has been uploaded, perhaps without a word');
do $$ begin execute (select command from gc.check()); end $$;
select is_empty('select * from gc.check()', 'with strict_uploads it surely was announced');

-- Indexes, and order.
create table app.picture (id integer primary key, path text, shown integer references app.file);
create index on app.picture (shown);
select count(*) from gc.track('app.picture', url => 'path', condition => 'true') \g /dev/null
update gc.tombstones set failures = 2, last_error = 'no bucket' where key = '1';
select is((select array_agg(severity) from gc.check()), '{error,warning,warning}',
    'errors come first');
select is((select count(*) from gc.check() where command ~ '^create index concurrently on'), 2::bigint,
    'an index on urls is recommended where rows may share objects');

create role check_stranger;
grant usage on schema gc to check_stranger;
grant execute on function gc.check() to check_stranger;
set local role check_stranger;
select throws_ok('select * from gc.check()', '42501', null, 'nobody but the owner may look everywhere');
reset role;
select * from finish();
rollback;
