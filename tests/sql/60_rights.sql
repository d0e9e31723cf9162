-- Rights: who may do what. Roles are made here, and go with the transaction.
begin;
set local client_min_messages = error;
select plan(102);

create role rights_app;
create role rights_runner;
create role rights_viewer;
create role rights_uploader;
create role rights_operator;
create role rights_nobody;
create role "rights ""Q"" runner";

create schema app;
grant usage on schema app to rights_app;
create table app.file (id bigint primary key, path text, bytes bigint);
create table app.post (id bigint primary key, file bigint references app.file);
create index on app.post (file);
create table app.plain (id bigint primary key);
grant select, insert, update, delete, truncate on all tables in schema app to rights_app;
update gc.settings set jitter = '0', undo = '0';
insert into gc.review_after_defaults
values ('file_insert', '0'), ('post_delete', '0'), ('post_update', '0'), ('plain_insert', '0');
select count(*) from gc.track(
    'app.file', url => $$'s3://bucket/' || id || path$$, size => 'bytes') \g /dev/null
select count(*) from gc.track('app.plain', condition => 'true') \g /dev/null

create function pg_temp.state_of(command text)
    returns text
    language plpgsql
as $$
declare
    state text;
begin
    execute command;
    return null;
exception
    when others then
        get stacked diagnostics state = returned_sqlstate;
        return state;
end;
$$;


-- An application that has rights on its own tables only.
set local role rights_app;
select lives_ok($$insert into app.file values (1, '', 1), (2, '', 2), (3, '', 3), (4, '', 4)$$,
    'an application without any right on gc inserts into a collection');
select lives_ok('insert into app.post values (1, 1), (2, 2), (3, 3)',
    'it inserts into a table that refers to one');
select lives_ok($$update app.file set path = '/x' where id = 4$$, 'it updates a collection');
select lives_ok('update app.post set file = 4 where id = 3', 'it updates a reference');
select lives_ok('delete from app.post where id = 2', 'it deletes a reference');
select lives_ok('delete from app.file where id = 2', 'it deletes a row of a collection');
select lives_ok('truncate app.post', 'it truncates a table that refers to a collection');
select lives_ok('truncate app.post, app.file', 'it truncates a collection');
select lives_ok('truncate app.plain', 'it truncates one without objects');
select is(pg_temp.state_of('select * from gc.tombstones'), '42501', 'it cannot read gc');
select is(pg_temp.state_of('delete from gc.tombstones'), '42501', 'it cannot write gc');
select is(pg_temp.state_of('select gc.version()'), '42501', 'it cannot call gc');
reset role;
select bag_eq('select url, event from gc.tombstones',
    $$values ('s3://bucket/4', null), ('s3://bucket/2', null), ('s3://bucket/1', null),
        ('s3://bucket/3', null), ('s3://bucket/4/x', null)$$,
    'all that it did has left its tombstones');
select bag_eq('select id, event from gc.file_review_queue',
    $$values (1::bigint, 'file_insert'), (2, 'file_insert'), (3, 'file_insert'),
        (4, 'file_insert'), (3, 'post_update'), (2, 'post_delete')$$,
    'and its entries in the queue');
select is((select count(*) from gc.scan_requests where collection = 'file'), 1::bigint,
    'and the truncated references ask for a scan');
select count(*) from gc.review() \g /dev/null
delete from gc.tombstones;

-- Rights come with nothing but the grant functions.
select is(
    (
        select count(*) from pg_proc as f, pg_roles as r
        where f.pronamespace = 'gc'::regnamespace and r.rolname like 'rights%'
            and has_function_privilege(r.oid, f.oid, 'execute')
    ),
    0::bigint, 'before a grant no role can execute any function');
select lives_ok($$select gc.grant_runner('rights_runner')$$, 'a role is made a runner');
select lives_ok($$select gc.grant_runner('rights_runner')$$, 'twice is as good as once');
select lives_ok($$select gc.grant_viewer('rights_viewer')$$, 'a role is made a viewer');
select lives_ok($$select gc.grant_uploader('rights_uploader')$$, 'a role is made an uploader');
select lives_ok($$select gc.grant_operator('rights_operator')$$, 'a role is made an operator');
select lives_ok($$select gc.grant_runner('"rights ""Q"" runner"')$$,
    'a role may have any name');
create function pg_temp.may_call(role name)
    returns setof text
    language sql
as $$
    select f.proname::text from pg_proc as f
    where f.pronamespace = 'gc'::regnamespace and has_function_privilege(role, f.oid, 'execute')
$$;
create function pg_temp.may_touch(role name, needed text)
    returns setof text
    language sql
as $$
    select c.relname::text from pg_class as c
    where c.relnamespace = 'gc'::regnamespace and c.relkind in ('r', 'v')
        and has_table_privilege(role, c.oid, needed)
$$;
select set_eq($$select pg_temp.may_call('rights_runner')$$,
    array['version', 'review', 'claim', 'careful', 'confirm', 'spare', 'fail', 'release',
        'next_due', 'status', 'preview', 'forecast', 'compare_marker'],
    'a runner may call exactly what a runner does');
select set_eq($$select pg_temp.may_call('rights "Q" runner')$$,
    $$select pg_temp.may_call('rights_runner')$$, 'also one with a strange name');
select set_eq($$select pg_temp.may_touch('rights_runner', 'select, insert, update, delete')$$,
    array['metrics'], 'a runner reads the metrics, and has no right on any table');
select set_eq($$select pg_temp.may_call('rights_viewer')$$,
    array['version', 'next_due', 'status', 'explain', 'explain_url', 'receipt', '_trash_labels',
        '_table_name'],
    'a viewer may call exactly what changes nothing');
select set_eq($$select pg_temp.may_touch('rights_viewer', 'select')$$,
    array['collections', 'settings', 'review_after_defaults', 'tombstones', 'holds',
        'deletion_log', 'totals', 'daily_totals', 'metrics', 'pauses', 'pins', 'brakes',
        'allowances', 'operations', 'runners', 'causes', 'kept_rows', 'finalizers',
        'struck_finalizers', 'trash', 'markers'],
    'a viewer reads the tables');
select is_empty(
    $$select pg_temp.may_touch('rights_viewer', 'insert, update, delete, truncate, trigger')$$,
    'a viewer writes none');
select set_eq($$select pg_temp.may_call('rights_operator')$$,
    array['version', 'next_due', 'status', 'pause', 'resume', 'pin', 'unpin', 'adopt'],
    'an operator may call exactly what stops and keeps');
select set_eq($$select pg_temp.may_touch('rights_operator', 'select')$$,
    array['pauses', 'pins', 'brakes', 'allowances', 'operations', 'runners', 'metrics',
        'markers'],
    'an operator reads what was stopped and kept');
select is_empty(
    $$select pg_temp.may_touch('rights_operator', 'insert, update, delete, truncate, trigger')$$,
    'an operator writes no table');
select set_eq($$select pg_temp.may_call('rights_uploader')$$,
    array['begin_upload', 'end_upload', 'begin_uploads', 'end_uploads', 'keep_alive',
        '_own_function', '_object_name', 'file_begin_upload', 'file_end_upload',
        'file_begin_uploads', 'file_end_uploads', 'file_keep_alive', 'plain_begin_upload',
        'plain_end_upload', 'plain_begin_uploads', 'plain_end_uploads', 'plain_keep_alive'],
    'an uploader may call exactly what an upload needs');
select is_empty($$select pg_temp.may_touch('rights_uploader', 'select, insert, update, delete')$$,
    'an uploader has no right on any table');
select is_empty(
    $$select r.rolname from pg_roles as r
        where r.rolname like 'rights%' and has_schema_privilege(r.oid, 'gc', 'create')$$,
    'nobody may create anything in gc');
select is_empty($$select pg_temp.may_call('rights_nobody')$$, 'what was granted, others have not');

-- A runner at work.
insert into app.file values (10, '', 100), (11, '', 110), (12, '', 120);
insert into app.plain values (1);
set local role rights_runner;
select results_eq('select collection, deleted, bytes from gc.review()',
    $$values ('file', 3, 330::bigint), ('plain', 1, 0)$$,
    'a runner without any right on the tables reviews them');
select is(pg_temp.state_of('select gc.version()'), null, 'it asks for the version');
select cmp_ok(gc.next_due(), '<=', clock_timestamp(), 'it asks when there is work');
select results_eq($$select url from gc.claim('r', 1)$$, array['s3://bucket/10'], 'it claims');
reset role;
create function pg_temp.leased() returns bigint[] language sql security definer
as $$ select array_agg(id order by id) from gc.tombstones where worker = 'r' $$;
set local role rights_runner;
select is(gc.confirm('r', pg_temp.leased()), 1, 'it confirms');
select is((select count(*) from gc.claim('r')), 2::bigint, 'it claims the rest');
select is(gc.fail('r', (pg_temp.leased())[1:1], 'x'), 1, 'it reports a failure');
select is(gc.release('r', pg_temp.leased()), 1, 'it gives back');
select is((select tombstones_waiting from gc.status() where collection = 'file'), 2::bigint,
    'it sees the status');
select is(pg_temp.state_of('select * from gc.tombstones'), '42501', 'it reads no table of gc');
select is(pg_temp.state_of('update gc.settings set max_rows = 1'), '42501', 'it sets nothing');
select is(pg_temp.state_of($$insert into gc.tombstones (collection, key, url, due_at)
    values ('file', '1', 's3://bucket/precious', now())$$), '42501', 'it makes no tombstone');
select is(pg_temp.state_of('select * from app.file'), '42501', 'it reads no application table');
select is(pg_temp.state_of($$select gc.track('app.post')$$), '42501', 'it tracks nothing');
select is(pg_temp.state_of($$select gc.untrack('file')$$), '42501', 'it untracks nothing');
select is(pg_temp.state_of($$select gc.scan('file')$$), '42501', 'it scans nothing by itself');
select is(pg_temp.state_of($$select gc.begin_upload('file', '1')$$), '42501', 'it uploads nothing');
select is(pg_temp.state_of($$select gc.grant_runner('rights_nobody')$$), '42501',
    'it grants nothing');
select is(pg_temp.state_of($$select gc.file_review()$$), '42501', 'it calls no generated function');
select is(pg_temp.state_of($$select gc._run('create table app.x ()')$$), '42501',
    'it calls no inner function');
reset role;

-- A viewer looks. What a row is called is computed for it with the owner's rights.
create table app.secret (id bigint primary key, name text, word text);
select count(*) from gc.track('app.secret', condition => 'true', undo => '1 day', label => 'name',
    size => 'length(word)') \g /dev/null
insert into app.secret values (1, 'a name', 'xyzzy');
delete from app.secret;
set local role rights_viewer;
select results_eq($$select key, label, bytes from gc.trash where collection = 'secret'$$,
    $$values ('1', 'a name', 5::bigint)$$, 'a viewer sees what can be restored, as all see it');
select is(pg_temp.state_of('select content from gc.trash_rows'), '42501',
    'it does not see the rows themselves');
select is(pg_temp.state_of($$select gc._labels_of_trash(c) from gc.collections as c$$), '42501',
    'it cannot have anything else computed about them');
select is(pg_temp.state_of($$select gc.restore('secret', '1')$$), '42501', 'it restores nothing');
select is(pg_temp.state_of('delete from gc.trash_rows'), '42501', 'it drops nothing');
reset role;
alter table app.secret owner to rights_nobody;
set local role rights_viewer;
select results_eq($$select key, label from gc.trash where collection = 'secret'$$,
    $$values ('1', null::text)$$, 'no label is computed where that could run code of others');
reset role;
alter table app.secret owner to current_user;
select gc.untrack('secret');
set local role rights_viewer;
select is((select count(*) from gc.status()), 2::bigint, 'a viewer sees the status');
select is((select count(*) from gc.tombstones), 2::bigint, 'it sees the tombstones');
select is((select count(*) from gc.deletion_log), 2::bigint, 'it sees the log');
select is((select sum(objects) from gc.daily_totals), 1::numeric, 'it sees the totals');
select is(gc.next_due() is not null, true, 'it sees when there is work');
select is(pg_temp.state_of('select gc.review()'), '42501', 'it reviews nothing');
select is(pg_temp.state_of($$select gc.claim('v')$$), '42501', 'it claims nothing');
select is(pg_temp.state_of($$select gc.keep_alive('file', '1')$$), '42501', 'it holds nothing');
select is(pg_temp.state_of('delete from gc.deletion_log'), '42501', 'it deletes no log');
select is(pg_temp.state_of('update gc.settings set max_rows = 1'), '42501', 'it sets nothing');
reset role;

-- An operator stops and keeps, and no more.
insert into app.file values (30, '', 1);
set local role rights_operator;
select is(pg_temp.state_of($$select gc.pause('file', 'look first')$$), null, 'an operator pauses');
select is((select paused_why from gc.status() where collection = 'file'), 'look first',
    'and sees why');
select is(gc.resume('file'), 2, 'it resumes');
select is(gc.pin('file', '30'), true, 'it pins a row of a table that it may not read');
select results_eq('select key, holder, pinned_by from gc.pins',
    $$select '30', s, s from current_setting('session_authorization') as s$$,
    'the pin has the name of who has logged in');
select is(gc.unpin('file', '30'), true, 'it unpins it');
select is(pg_temp.state_of('select gc.review()'), '42501', 'it reviews nothing');
select is(pg_temp.state_of($$select gc.claim('o')$$), '42501', 'it claims nothing');
select is(pg_temp.state_of($$select gc.track('app.post')$$), '42501', 'it tracks nothing');
select is(pg_temp.state_of($$select gc.set_brake('file', 1)$$), '42501',
    'it cannot take the brake off');
select is(pg_temp.state_of('select * from app.file'), '42501', 'it reads no application table');
reset role;
delete from app.file where id = 30;
delete from gc.tombstones where key = '30';

-- An uploader announces.
insert into app.file values (20, '', 1);
set local role rights_uploader;
select is(gc.keep_alive('file', '20'), true, 'an uploader keeps a row alive');
select ok(gc.begin_upload('file', '21') > clock_timestamp(), 'it announces an upload');
select is(gc.end_upload('file', '21'), true, 'and ends it');
select is(pg_temp.state_of('select * from gc.holds'), '42501', 'it reads no table');
select is(pg_temp.state_of($$select gc.claim('u')$$), '42501', 'it claims nothing');
select is(pg_temp.state_of('select gc.review()'), '42501', 'it reviews nothing');
reset role;

-- Tracking belongs to the owner of blobgc.
alter table app.post owner to rights_app;
grant execute on function gc.track(
    regclass, text, text, text, text, text, text, text[], jsonb, interval, text, text[],
    jsonb
), gc.untrack(text), gc.scan(text, integer) to rights_app;
grant usage on schema gc to rights_app;
grant select on gc.collections to rights_app;
set local role rights_app;
select is(pg_temp.state_of($$select gc.track('app.post')$$), '42501',
    'even who owns a table and may call gc.track cannot track it');
select is(pg_temp.state_of($$select gc.untrack('file')$$), '42501', 'nor untrack');
select is(pg_temp.state_of($$select gc.scan('file')$$), '42501', 'nor scan');
reset role;
-- Nor does it help to be a superuser, or to have every function.
create role rights_admin superuser;
grant execute on all functions in schema gc to rights_app;
create function pg_temp.refusal(role name, command text)
    returns text[]
    language plpgsql
as $$
declare
    code text;
    hint text;
begin
    execute format('set local role %I', role);
    execute command;
    return '{}';
exception
    when others then
        get stacked diagnostics code = returned_sqlstate, hint = pg_exception_hint;
        return array[code, hint];
end;
$$;
select is(pg_temp.refusal(c.role, c.command),
    array['42501', format('set role %s;', pg_get_userbyid(n.nspowner))],
    format('%s may not, and is told who may: %s', c.role, c.command))
from pg_namespace as n
cross join (values
    ('rights_app'::name, 'select gc.track(''app.post'')'),
    ('rights_admin', 'select gc.track(''app.post'')'),
    ('rights_admin', 'select gc.untrack(''file'')'),
    ('rights_admin', 'select gc.scan(''file'')')
) as c(role, command)
where n.nspname = 'gc';
select is((pg_temp.refusal('rights_app', c.command))[1], '42501', 'rights_app may not: ' || c.command)
from (values ('select gc.untrack(''file'')'), ('select gc.scan(''file'')')) as c(command);
select set_eq('select name from gc.collections', array['file', 'plain'],
    'so the collections are what they were');


-- Default privileges give nobody anything, neither at the installation nor later.
drop extension blobgc cascade;
drop schema app cascade;
alter default privileges grant all on tables to rights_nobody, public;
alter default privileges grant all on sequences to rights_nobody, public;
alter default privileges grant all on functions to rights_nobody, public;
alter default privileges grant all on types to rights_nobody;
alter default privileges grant all on schemas to rights_nobody, public;
create extension blobgc;
create schema app;
create table app.file (id bigint, part bigint, primary key (id, part));
create table app.post (id bigint, file bigint, part bigint, foreign key (file, part)
    references app.file) partition by range (id);
create table app.post_1 partition of app.post default;
create index on app.post (file, part);
create function pg_temp.held(role name)
    returns setof text
    language sql
    set quote_all_identifiers = off
as $$
    select c.oid::regclass::text from pg_class as c
    where c.relnamespace = 'gc'::regnamespace and c.relkind in ('r', 'v')
        and has_table_privilege(role, c.oid,
            'select, insert, update, delete, truncate, references, trigger')
    union all
    select c.oid::regclass::text from pg_class as c
    where c.relnamespace = 'gc'::regnamespace and case
        -- The condition of a trigger reads it, with the rights of whoever inserts a row.
        when c.relkind = 'S' and c.relname = 'deleting_until'
            then has_sequence_privilege(role, c.oid, 'usage, update')
        when c.relkind = 'S' then has_sequence_privilege(role, c.oid, 'select, usage, update')
    end
    union all
    select f.oid::regprocedure::text from pg_proc as f
    where f.pronamespace = 'gc'::regnamespace and has_function_privilege(role, f.oid, 'execute')
    union all
    select t.oid::regtype::text from pg_type as t
    where t.typnamespace = 'gc'::regnamespace and t.typelem = 0
        and has_type_privilege(role, t.oid, 'usage')
    union all
    select 'schema ' || p from unnest(array['usage', 'create']) as p
    where has_schema_privilege(role, 'gc', p)
$$;
select is_empty($$select pg_temp.held('rights_nobody')$$,
    'default privileges give nobody a right on what is installed');
select count(*) from gc.track('app.file', url => $$'s3://b/' || id || part$$) \g /dev/null
select cmp_ok(cardinality(c.links), '>', 0, 'a collection is tracked, with links')
from gc.collections as c;
select is_empty($$select pg_temp.held('rights_nobody')$$, 'nor on what is generated');
select gc.grant_uploader('rights_nobody') \g /dev/null
select bag_eq($$select split_part(h, '(', 1) from pg_temp.held('rights_nobody') as h$$,
    array['schema usage', 'gc.begin_upload', 'gc.end_upload', 'gc.keep_alive',
        'gc._own_function', 'gc._object_name',
        'gc.begin_uploads', 'gc.end_uploads', 'gc.file_begin_uploads', 'gc.file_end_uploads',
        'gc.file_begin_upload', 'gc.file_end_upload', 'gc.file_keep_alive'],
    'an uploader gets exactly what an upload needs');

select * from finish();
rollback;
