-- Bad input: a clear error with SQLSTATE, detail and a hint that is the next action; no change.
begin;
set local client_min_messages = error;
select plan(114);

create schema app;
create table app.file (id bigint primary key, path text, bytes bigint, at timestamptz);
create table app.pair (a integer, b uuid, primary key (a, b));
create table app.blob (digest bytea primary key);
create table app.other (id bigint primary key, path text);
create table app.no_key (id bigint not null unique);
create table app.target (id bigint primary key);
create table app.unindexed (id bigint primary key, "the Target" bigint references app.target);
create table app.hub (id bigint primary key);
create table app.spoke (a bigint references app.hub, b bigint references app.hub);
alter table app.spoke add constraint again foreign key (a) references app.hub;
create table app.wheel (hub bigint references app.hub, n integer) partition by hash (n);
create view app.a_view as select * from app.file;
create materialized view app.a_matview as select * from app.file;
create foreign data wrapper nothing;
create server nowhere foreign data wrapper nothing;
create foreign table app.a_foreign (id bigint) server nowhere;
create temporary table a_temporary (id bigint primary key);
create table app.parted (id bigint primary key) partition by range (id);
create table app.a_partition partition of app.parted default;
create table app.ancestor (id bigint primary key);
create table app.descendant () inherits (app.ancestor);
create sequence app.a_sequence;
create schema app2;
create table app2.file (id bigint primary key);

update gc.settings set jitter = '0', undo = '0';
select count(*) from gc.track('app.file', url => $$'s3://b/' || id$$, size => 'bytes') \g /dev/null
select count(*) from gc.track('app.pair') \g /dev/null
select count(*) from gc.track('app.blob') \g /dev/null
insert into app.file values (1, 'x', 1, now()), (2, 'y', 2, now());
delete from app.file where id = 2;
select gc.confirm('w', array(select id from gc.claim('w'))) \g /dev/null

create function pg_temp.error_of(
    command text, out state text, out message text, out detail text, out hint text
)
    language plpgsql
as $$
begin
    execute command;
    message := 'no error';
exception
    when others then
        get stacked diagnostics state = returned_sqlstate, message = message_text,
            detail = pg_exception_detail, hint = pg_exception_hint;
end;
$$;
-- A test: the command is refused with this SQLSTATE, and its detail and its hint are like these.
create function pg_temp.refuses(
    command text, state text, detail text, hint text, description text
)
    returns text
    language plpgsql
as $$
declare
    e record := pg_temp.error_of(command);
begin
    return ok(
        coalesce(e.state = refuses.state and e.detail ~ refuses.detail and e.hint ~ refuses.hint
            and e.message <> '', false),
        description)
        || case when e.state = refuses.state and e.detail ~ refuses.detail
            and e.hint ~ refuses.hint then ''
            else E'\n' || diag(format('%s: %s | %s | %s', e.state, e.message, e.detail, e.hint))
        end;
end;
$$;
-- Everything that a refusal must leave as it is.
create function pg_temp.everything()
    returns text
    language sql
as $$
    select concat_ws(' ',
        (select md5(string_agg(c::text, ',' order by c.name)) from gc.collections as c),
        (select md5(string_agg(s::text, ',')) from gc.settings as s),
        (select md5(string_agg(d::text, ',' order by d.event)) from gc.review_after_defaults as d),
        (select md5(string_agg(t::text, ',' order by t.id)) from gc.tombstones as t),
        (select md5(string_agg(q::text, ',' order by q.entry)) from gc.file_review_queue as q),
        (select count(*) from gc.holds), (select count(*) from gc.deletion_log),
        (select count(*) from gc.totals), (select count(*) from gc.scan_requests),
        (select count(*) from app.file),
        (select count(*) from pg_class where relnamespace <> pg_my_temp_schema()
            and relnamespace::regnamespace::text !~ '^pg_'),
        (select count(*) from pg_proc), (select count(*) from pg_trigger),
        (select count(*) from pg_type where typnamespace = 'gc'::regnamespace))
$$;
select pg_temp.everything() as before \gset


-- What cannot be a collection.
select pg_temp.refuses($$select gc.track('app.no_key')$$, '42P16', 'by its key',
    '^alter table app.no_key add primary key', 'a table without a primary key is refused');
select pg_temp.refuses($$select gc.track('app.target')$$, '42P16', 'from end to end',
    E'^create index concurrently on app.unindexed \\("the Target"\\);$',
    'a referencing column without an index is refused');
select pg_temp.refuses($$select gc.track('app.hub')$$, '42P16',
    E'these tables from end to end: app.spoke\\(a\\), app.spoke\\(b\\), app.wheel\\(hub\\)\\.',
    E'^create index concurrently on app.spoke \\(a\\);\\n'
    'create index concurrently on app.spoke \\(b\\);\\ncreate index on app.wheel \\(hub\\);$',
    'several are refused at once, and the hint is a script for all of them');
select pg_temp.refuses($$select gc.track('app.a_view')$$, '42809', 'It is a view',
    '^Track the table', 'a view is refused');
select pg_temp.refuses($$select gc.track('app.a_matview')$$, '42809', 'It is a materialized view',
    '^Track the table', 'a materialized view is refused');
select pg_temp.refuses($$select gc.track('app.a_foreign')$$, '42809', 'It is a foreign table',
    '^Track the table', 'a foreign table is refused');
select pg_temp.refuses($$select gc.track('a_temporary')$$, '42809', 'It is a temporary table',
    '^Track the table', 'a temporary table is refused');
select pg_temp.refuses($$select gc.track('app.a_partition')$$, '42809', 'It is a partition',
    $$^select \* from gc.track\('app.parted'\);$$, 'a partition is refused');
select pg_temp.refuses($$select gc.track('app.ancestor')$$, '42809', 'others inherit',
    '^Track the table', 'a table that others inherit from is refused');
select pg_temp.refuses($$select gc.track('app.a_sequence')$$, '42809', 'not a table',
    '^Track the table', 'a sequence is refused');
select pg_temp.refuses($$select gc.track('app.file_pkey')$$, '42809', 'not a table',
    '^Track the table', 'an index is refused');
select pg_temp.refuses('select gc.track(4294967295::oid::regclass)', '42809',
    'nothing that exists', '.', 'an oid of nothing is refused');
select is((select state from pg_temp.error_of($$select gc.track('app.nothing')$$)), '42P01',
    'a table that does not exist is refused');
select isnt((select state from pg_temp.error_of('select gc.track(null)')), null,
    'null is refused as a table');

-- Names.
select pg_temp.refuses($$select gc.track('app2.file')$$, '42710', 'collection of app.file',
    $$^select \* from gc.track\('app2.file', name => 'file_2'\);$$,
    'a name that another table has is refused, also one that was not given');
select pg_temp.refuses($$select gc.track('app.other', name => 'pair')$$, '42710',
    'collection of app.pair', $$name => 'pair_2'$$, 'a name that was given as well');
select pg_temp.refuses($$select gc.track('app.file', name => 'files')$$, '42710',
    'one collection', $$^select gc.untrack\('file'\);$$, 'a second name for a table is refused');
select pg_temp.refuses($$select gc.track('app.other', name => '')$$, '42602', '1 to 63 bytes',
    $$gc.track\('app.other', name => $$, 'an empty name is refused');
select pg_temp.refuses($$select gc.track('app.other', name => '_other')$$, '42602', 'underscore',
    $$gc.track\('app.other', name => $$, 'a name that begins with an underscore is refused');
select pg_temp.refuses(format('select gc.track(''app.other'', name => %L)', repeat('x', 64)),
    '42602', '1 to 63 bytes', $$gc.track\('app.other', name => $$,
    'a name of 64 bytes is refused');

-- Expressions.
select pg_temp.refuses(
    format('select gc.track(''app.other'', %s => %L)', t.argument, t.expression), '22023',
    t.detail, t.hint, format('%s => %s is refused', t.argument, t.expression))
from (values
    ('url', 'path ||', 'syntax error', 'own columns'),
    ('url', 'path path path', 'syntax error', 'own columns'),
    ('condition', ')', 'syntax error', 'own columns'),
    ('url', 'pth', 'column "pth" does not exist', 'own columns'),
    ('url', 'file.path', 'missing FROM-clause', 'own columns'),
    ('label', 'no_such_function(path)', 'does not exist', 'own columns'),
    ('condition', 'path > 1', 'operator does not exist', 'own columns'),
    ('condition', '$1', 'no parameter', 'own columns'),
    ('url', 'id', 'of type bigint', 'has to be text'),
    ('url', 'true', 'of type boolean', 'has to be text'),
    ('url', 'other', 'of type app.other', 'has to be text'),
    ('size', 'path', 'of type text', 'a number of bytes'),
    ('size', 'id::text', 'of type text', 'a number of bytes'),
    ('label', 'array[path]', E'of type text\\[\\]', 'has to be text'),
    ('generation', 'now()', 'reads more than the row', 'text or a number'),
    ('condition', 'id', 'of type bigint', 'true or false'),
    ('condition', 'path', 'of type text', 'true or false'),
    ('url', 'path || random()', 'volatile', 'computed from the row alone'),
    ('condition', 'clock_timestamp() > now()', 'volatile', 'from the row and the time'),
    ('label', '(select path)', 'subquery', 'has to be text')
) as t(argument, expression, detail, hint);

-- References, events, delays.
select pg_temp.refuses($$select gc.track('app.file', owned => '{nothing}')$$, '42704',
    'References: none', 'in owned', 'a name in owned that is no reference is refused');
select pg_temp.refuses($$select gc.track('app.file', events => '{"post_delete": "x"}')$$, '22023',
    'Events: file_insert, file_scan, file_unpin, file_update', '^events => ', 'an unknown event is refused');
select pg_temp.refuses($$select gc.track('app.file', events => '{"file_insert": 1}')$$, '22023',
    'Events: file_insert', '^events => ', 'a number as the name of an event is refused');
select pg_temp.refuses($$select gc.track('app.file', events => '{"file_insert": ""}')$$, '22023',
    'Events: file_insert', '^events => ', 'an empty name of an event is refused');
select is((select state from pg_temp.error_of($$select gc.track('app.file', events => '[]')$$)),
    '23514', 'events that are no object are refused');
select pg_temp.refuses($$select gc.track('app.file', undo => '-1 second')$$, '22023', '-00:00:01',
    'Leave undo out', 'a negative undo window is refused');
select pg_temp.refuses($$select gc.track('app.file', undo => '11 years')$$, '22023', '11 years',
    'Leave undo out', 'an undo window of more than ten years is refused');
select throws_ok($$insert into gc.review_after_defaults values ('x', '-1 second')$$, '23514', null,
    'a negative delay is refused');
select throws_ok($$insert into gc.review_after_defaults values ('x', null)$$, '23502', null,
    'a delay of null is refused');
select throws_ok(format('update gc.settings set %I = %L', s.name, s.value), '23514', null,
    format('%s of %s is refused', s.name, s.value))
from (values
    ('pace', '0'), ('pace', '1.5'), ('undo', '-1 second'), ('jitter', '-1 second'), ('busy_delay', '0'), ('backoff', '0'),
    ('backoff_limit', '1 minute'),
    ('max_rows', '0'), ('lock_timeout', '0'), ('statement_timeout', '0'), ('max_sleep', '0'),
    ('upload_timeout', '0'), ('keep_alive', '-1 hour'), ('log_retention', '-1 day')
) as s(name, value);

-- Collections and keys.
select pg_temp.refuses(c, '42704', 'Collections: blob, file, pair', $$gc.track\('schema.table'\)$$,
    format('an unknown collection is refused: %s', c))
from unnest(array[
    $$select gc.untrack('files')$$, $$select gc.untrack(null)$$, $$select gc.scan('File')$$,
    $$select gc.grant_uploader('postgres', '{File}')$$]) as c;
select pg_temp.refuses(c, '42704', 'Only gc.track makes one', $$gc.track\('schema.table'\)$$,
    format('an unknown collection is refused: %s', c))
from unnest(array[
    $$select gc.keep_alive('app.file', '1')$$, $$select gc.begin_upload('', '1')$$,
    $$select gc.end_upload(null, '1')$$, $$select gc.end_upload('x', '1')$$]) as c;
select pg_temp.refuses(
    format('select gc.%s(%L, %L)', t.called, t.collection, t.key), '22P02', t.detail, t.hint,
    format('a key that does not parse is refused: %s(%L, %L)', t.called, t.collection, t.key))
from (values
    ('keep_alive', 'file', 'abc', '^abc: ', E'\\(bigint\\)'),
    ('keep_alive', 'file', '', 'invalid input', E'\\(bigint\\)'),
    ('keep_alive', 'file', '99999999999999999999', 'out of range', E'\\(bigint\\)'),
    ('keep_alive', 'file', null, '^null: ', E'\\(bigint\\)'),
    ('begin_upload', 'file', '1; drop table app.file', 'invalid input', E'\\(bigint\\)'),
    ('end_upload', 'blob', E'\\xzz', 'invalid hexadecimal', E'\\(bytea\\)'),
    ('begin_upload', 'pair', '1', 'malformed record', E'\\(integer, uuid\\)'),
    ('keep_alive', 'pair', '(1)', 'malformed record', E'\\(integer, uuid\\)'),
    ('keep_alive', 'pair', '(1,x)', 'invalid input', E'\\(integer, uuid\\)')
) as t(called, collection, key, detail, hint);
select pg_temp.refuses($$select gc.begin_upload('pair', '(1,)')$$, '22P02', '.',
    E'\\(integer, uuid\\)', 'a key of which a part is null is refused');

-- Batches, leases, waits, workers.
select pg_temp.refuses(
    format('select %s', replace(c, 'N', b)), '22023', format(E'batch is %s\\.', b),
    'Leave the argument out', format('a batch is refused: %s', replace(c, 'N', b)))
from unnest(array['0', '-1', 'null']) as b,
    unnest(array['gc.review(N)', $$gc.claim('w', N)$$, $$gc.scan('file', N)$$]) as c;
select pg_temp.refuses(
    format($$select gc.claim('w', lease => %s)$$, l), '22023', 'lease is ',
    'Leave the argument out', format('a lease of %s is refused', l))
from unnest(array[$$'0'$$, $$'-1 second'$$, 'null']) as l;
select pg_temp.refuses($$select gc.begin_upload('file', '1', wait => '-1 second')$$, '22023',
    'wait is -00:00:01', 'Leave the argument out', 'a negative wait is refused');
select pg_temp.refuses($$select gc.begin_upload('file', '1', wait => null)$$, '22023',
    'wait is null', 'Leave the argument out', 'a wait of null is refused');
select pg_temp.refuses($$select gc.begin_upload('file', '1', timeout => '-1 second')$$, '22023',
    'timeout is -00:00:01', 'Leave the argument out', 'a negative timeout is refused');
select pg_temp.refuses(format('select %s', replace(c, 'W', w)), '22023', 'belongs to the worker',
    'host and process id', format('a worker without a name is refused: %s', replace(c, 'W', w)))
from unnest(array[$$''$$, 'null']) as w,
    unnest(array['gc.claim(W)', $$gc.confirm(W, '{1}')$$, $$gc.fail(W, '{1}', 'x')$$,
        $$gc.release(W, '{1}')$$]) as c;

-- Ids that are not ours; 41_claims has more of it.
select is(gc.confirm('w', array(select id from gc.tombstones)), 0,
    'a confirm of what nobody claimed changes nothing');
select is(gc.confirm('w', array[123456789]), 0, 'a confirm of what does not exist changes nothing');

select is(pg_temp.everything(), :'before', 'all these refusals have changed nothing');

-- A hint is the next action: doing it helps.
create function pg_temp.follow_hint(command text)
    returns text
    language plpgsql
as $$
declare
    hint text := (pg_temp.error_of(command)).hint;
begin
    -- Not in a transaction; the placeholder is for a person.
    execute replace(replace(hint, ' concurrently', ''), '(…)', '(id)');
    execute case when hint like '%gc.track%' then 'select 1' else command end;
    return 'helped';
exception
    when others then
        return sqlerrm;
end;
$$;
select is(pg_temp.follow_hint(c), 'helped', format('the hint of %s helps', c))
from unnest(array[
    $$select gc.track('app.no_key')$$, $$select gc.track('app.target')$$,
    $$select gc.track('app2.file')$$, $$select gc.track('app.a_partition')$$]) as c;
select set_eq('select name, target from gc.collections',
    $$values ('file', 'app.file'::regclass), ('pair', 'app.pair'), ('blob', 'app.blob'),
        ('no_key', 'app.no_key'), ('target', 'app.target'), ('file_2', 'app2.file'),
        ('parted', 'app.parted')$$,
    'and then there are these collections');

-- Calling again is no bad input.
select lives_ok($$select gc.track('app.file', url => $u$'s3://b/' || id$u$)$$,
    'gc.track may be called again');
select is((select count(*) from gc.collections where target = 'app.file'::regclass), 1::bigint,
    'and there is one definition');

select * from finish();
rollback;
