-- Finalizers: what must be finished about an object before it can be deleted.
begin;
select plan(60);

create schema app;
create table app.file (id integer primary key, name text);
create table app.plain (id integer primary key, url text);
create index on app.plain (url);
update gc.settings set jitter = '0', undo = '0';

create function pg_temp.state_of(command text) returns text language plpgsql as $$
begin
    execute command;
    return null;
exception
    when others then
        return sqlstate;
end;
$$;
create function pg_temp.claimed(worker text, finalizer text) returns text language sql as $$
    select string_agg(c.key, ' ' order by c.key::integer)
    from gc.claim(worker, finalizer => finalizer) as c
$$;
create function pg_temp.ids(worker text) returns bigint[] language sql as $$
    select array_agg(t.id) from gc.tombstones as t where t.worker = ids.worker
$$;
create function pg_temp.left_to_do() returns text language sql as $$
    select string_agg(t.key || ' ' || coalesce(t.finalizers, '{storage}')::text, ' '
        order by t.key::integer)
    from gc.tombstones as t
$$;

-- What may be named.
select is(pg_temp.state_of(format($$select gc.track('app.file', condition => 'true',
        finalizers => %L)$$, bad)), '22023', format('%s are no finalizers', bad))
from unnest(array['{storage}', '{a,a}', '{""}', '{Upper}', '{a/b}', '{"a b"}']) as bad;
select is(pg_temp.state_of(format($$select gc.track('app.file', condition => 'true',
        finalizers => %L)$$, array(select 'f' || n from generate_series(1, 21) as n))),
    '22023', 'there are no more than 20');
select is(pg_temp.state_of($$select gc.track('app.file', condition => 'true',
        finalizers => array[null]::text[])$$), '22023', 'null is no finalizer');

select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id$$, condition => 'true',
    finalizers => '{cdn-purge, audit}') \g /dev/null
select count(*) from gc.track('app.plain', url => 'url', condition => 'true') \g /dev/null
select is((select finalizers from gc.collections where name = 'file'), '{cdn-purge,audit}',
    'a collection knows its finalizers');
select is(pg_temp.state_of($$select gc.claim('w', finalizer => 'cdn')$$), '42704',
    'a finalizer that no collection has cannot be claimed for');
select is(pg_temp.state_of($$select gc.claim('w', finalizer => null)$$), '42704',
    'null is none');

-- In order.
insert into app.file select n, 'f' || n from generate_series(1, 5) as n;
insert into app.plain values (9, 's3://bucket/plain');
delete from app.file where id <= 2;
delete from app.plain;
select is(pg_temp.left_to_do(), '1 {cdn-purge,audit} 2 {cdn-purge,audit} 9 {storage}',
    'a tombstone carries what is left to do');
select is((select array_agg(distinct store order by store) from gc.tombstones),
    '{/cdn-purge/s3://bucket,s3://bucket}', 'and is claimed apart from others');
select is((select array_agg(distinct store) from
        (select substring(labels from 'store="([^"]*)"') as store from gc.metrics
        where name = 'blobgc_tombstones') as m), '{s3://bucket}',
    'metrics name the store and no finalizer');
select is(pg_temp.claimed('audit', 'audit'), null, 'the second step cannot be claimed first');
select is(pg_temp.claimed('storage', 'storage'), '9', 'storage gets what has no finalizer left');
select is(gc.confirm('storage', pg_temp.ids('storage')), 1, 'and confirms that');
select is(pg_temp.claimed('cdn', 'cdn-purge'), '1 2', 'the first step is claimed');
select is(pg_temp.claimed('cdn 2', 'cdn-purge'), null, 'by one worker');
select is(pg_temp.claimed('storage', 'storage'), null, 'while storage gets nothing of it');
select is((select array[waiting, claimed, failing] from gc.finalizers), '{0,2,0}',
    'gc.finalizers tells what is claimed');
select is(pg_temp.state_of($$insert into app.file values (1)$$), 'ZG001',
    'an insert is refused while a finalizer has the object');

-- Confirm moves on.
create temporary table handed as select t.id, t.key from gc.tombstones as t;
select is(gc.confirm('cdn 2', array(select id from handed)), 0, 'only the worker confirms');
select is(gc.confirm('cdn', array(select id from handed)), 2, 'a step is confirmed');
select is(gc.confirm('cdn', array(select id from handed)), 0,
    'confirmed again, it does not confirm the next one');
select is(pg_temp.left_to_do(), '1 {audit} 2 {audit}', 'the step is off the list');
select ok(bool_and(due_at <= clock_timestamp() and worker is null), 'the next is due at once')
from gc.tombstones;
select is((select count(*) from gc.deletion_log where collection = 'file'), 0::bigint,
    'nothing is logged as deleted');
select is((select count(*) from gc.deleted_objects where url = 's3://bucket/1'), 0::bigint,
    'nor remembered as deleted');
select is(pg_temp.claimed('cdn', 'cdn-purge'), null, 'it is not handed out for it again');
select is(pg_temp.claimed('storage', 'storage'), null, 'nor for storage yet');

-- Leases and failures as ever.
select is(pg_temp.claimed('audit', 'audit'), '1 2', 'the next step is claimed');
select is(gc.fail('audit', array(select id from handed where key = '1'), 'no paper'), 1, 'it fails');
select is((select (failures, last_error, due_at > clock_timestamp() + interval '4 minutes')::text
    from gc.tombstones where key = '1'), '(1,"no paper",t)', 'and backs off');
select is((select (failing, last_error)::text from gc.finalizers), '(1,"no paper")',
    'which gc.finalizers tells');
select is(gc.release('audit', array(select id from handed where key = '2')), 1, 'it gives back');
select is(pg_temp.claimed('audit 2', 'audit'), '2', 'and another takes over');
update gc.tombstones set due_at = now() - interval '1 second' where key = '2';
select is(gc.confirm('audit 2', array(select id from handed)), 0, 'a lease that is over is over');
select ok(gc.next_due(null, 'audit') <= clock_timestamp(), 'next_due of a finalizer: it is due');
select ok(gc.next_due('{s3://elsewhere/}', 'audit') > clock_timestamp(), 'not elsewhere');
select ok(gc.next_due(null, 'storage') = gc.next_due(), 'that of storage is that of the runner');
select ok(gc.next_due() > now(), 'and does not count what waits for a finalizer');
select is(pg_temp.claimed('audit', 'audit'), '2', 'claimed again');
select is(gc.confirm('audit', array(select id from handed)), 0,
    'what was known of the lease that is over means nothing');
select is(gc.confirm('audit', pg_temp.ids('audit')), 1, 'the new one is finished');
select is(pg_temp.claimed('storage', 'storage'), '2', 'then storage has it');
select is(gc.confirm('storage', pg_temp.ids('storage')), 1, 'and it goes');
select is((select array_agg(key) from gc.deletion_log where collection = 'file'), '{2}',
    'and is logged');

-- Striking one off.
select is(pg_temp.state_of($$select gc.strike_finalizer('file', 'audit', ' ')$$), '22023',
    'a finalizer is struck off for a reason');
delete from app.file where id in (3, 4);
select is(gc.strike_finalizer('file', 'audit', 'no auditor', '{4}'), 1, 'one of a single object');
select is(gc.strike_finalizer('file', 'audit', 'no auditor', '{4}'), 0, 'and not twice');
select is(pg_temp.left_to_do(), '1 {audit} 3 {cdn-purge,audit} 4 {cdn-purge}',
    'the others have it still');
select is(pg_temp.claimed('cdn', 'cdn-purge'), '3 4', 'a worker has them');
select is(gc.strike_finalizer('file', 'cdn-purge', 'no CDN'), 2, 'struck off under its hands');
select is(gc.confirm('cdn', (select array_agg(id) from gc.tombstones)), 0,
    'it confirms neither this step nor the next');
select is(pg_temp.left_to_do(), '1 {audit} 3 {audit} 4 {storage}', 'what is left');
select is((select array_agg(format('%s %s %s', key, finalizer, reason) order by id)
    from gc.struck_finalizers), '{"4 audit no auditor","3 cdn-purge no CDN","4 cdn-purge no CDN"}',
    'it is written down');

-- One object, several tombstones: none is deleted for one that has less to do.
delete from gc.tombstones;
insert into app.plain values (10, 's3://bucket/5');
delete from app.file where id = 5;
delete from app.plain where id = 10;
select is(pg_temp.claimed('storage', 'storage'), null,
    'what another tombstone has a finalizer for is not handed out');
select is(pg_temp.left_to_do(), '5 {cdn-purge,audit}', 'that one stands for both');

-- An object is looked for in every claim, also of a step.
insert into app.plain values (11, 's3://bucket/5');
select is(pg_temp.claimed('cdn', 'cdn-purge'), null, 'an object that a row has is not handed out');

select * from finish();
rollback;
