-- Markers: a bucket knows its database, and a copy of the database deletes nothing.
begin;
set local client_min_messages = error;
select plan(127);

create schema app;
create table app.file (id integer primary key);
update gc.settings set undo = '0', jitter = '0', brake_share = 1;
select count(*) from gc.track('app.file', url => $$'s3://bucket/a/' || id$$, condition => 'true')
\g /dev/null
insert into app.file select generate_series(1, 90);
delete from app.file;

-- What stands in the store, and a runner that does what it is told.
create temporary table store (address text primary key, content text, tag text);
create temporary sequence tags;
create type pg_temp.answer as (
    action text, address text, body text, replaces text, reason text, seconds double precision
);
create function pg_temp.ask(
    worker text, did text default null, content text default null, tag text default null,
    prefix text default 's3://bucket/a/', conditional boolean default true
) returns pg_temp.answer language sql as $$
    select row(c.*)::pg_temp.answer
    from gc.compare_marker(worker, prefix, did, content, tag, conditional) as c
$$;
create function pg_temp.act(
    a pg_temp.answer, conditional boolean, out did text, out content text, out tag text
) language plpgsql as $$
declare
    seen store;
begin
    select s.* into seen from store as s where s.address = a.address;
    if a.action = 'read' then
        did := 'read'; content := seen.content; tag := seen.tag;
    elsif conditional and a.replaces is distinct from seen.tag then
        did := 'refused';
    else
        delete from store as s where s.address = a.address;
        insert into store values (a.address, a.body, nextval('tags'));
        did := 'wrote'; content := a.body; tag := currval('tags');
    end if;
end;
$$;
create function pg_temp.compared(
    worker text, prefix text default 's3://bucket/a/', conditional boolean default true
) returns text language plpgsql as $$
declare
    a pg_temp.answer := pg_temp.ask(worker, prefix => prefix, conditional => conditional);
    deed record;
    steps text := '';
begin
    while a.action in ('read', 'write') loop
        steps := steps || a.action || ' ';
        deed := pg_temp.act(a, conditional);
        a := pg_temp.ask(worker, deed.did, deed.content, deed.tag, prefix, conditional);
        if length(steps) > 60 then
            raise 'no end: %', steps;
        end if;
    end loop;
    return steps || a.action;
end;
$$;
create function pg_temp.claimed(prefix text default 's3://bucket/a/') returns bigint
    language sql as $$
    select count(*) from gc.claim('w', 1, prefixes => array[prefix])
$$;
create function pg_temp.problem() returns text language sql as $$
    select problem from gc.markers where prefix = 's3://bucket/a/'
$$;
-- Time goes by: a comparison is not fresh any more.
create function pg_temp.later(much interval default '10 minutes') returns void language sql as $$
    update gc.markers set checked_at = checked_at - much, moved_at = moved_at - much,
        next_since = next_since - much, watched_since = watched_since - much
$$;

-- The first time, and after it.
select is(pg_temp.claimed(), 1::bigint, 'who knows no markers claims as ever');
select is(pg_temp.compared('w'), 'read write go', 'the first runner writes the marker');
select is(pg_temp.claimed(), 1::bigint, 'then it may claim');
select is(pg_temp.compared('w'), 'read go', 'each batch costs one request: a look');
select is((pg_temp.ask('w', 'start')).action, 'write', 'a runner that starts moves it, however soon');
select pg_temp.later('3 seconds') \g /dev/null
select is(pg_temp.compared('w'), 'read write go', 'or a move, every two seconds');
select is((select epoch from gc.markers), 2::bigint, 'which moves the epoch on');
select is((select (content::jsonb ->> 'epoch')::integer from store), 2, 'in the store as well');
select pg_temp.later() \g /dev/null
select is(pg_temp.claimed(), 0::bigint, 'nothing is handed out to who has not compared lately');
select is((select count(*) from gc.claim('w', 1)), 0::bigint, 'not without prefixes either');
select is(pg_temp.claimed('s3://bucket/'), 0::bigint, 'and not under a wider one');
select is(pg_temp.claimed('s3://bucket/a/b/'), 0::bigint, 'or a narrower one');
select is(pg_temp.compared('w'), 'write go', 'it may compare at any time');
select is(pg_temp.compared('w', 's3://elsewhere/'), 'read write go', 'each prefix has a marker');
select is(pg_temp.compared('w', 's3://elsewhere/'), 'idle', 'no move where nothing is due');
select pg_temp.later('40 seconds') \g /dev/null
select is(pg_temp.compared('w', 's3://elsewhere/'), 'write go',
    'but now and then: a copy is to fall behind');
select is(pg_temp.compared('w', 's3://bucket/a/b/'), 'write go',
    'the marker of a wider prefix stands for a narrower one');
select is((select count(*) from store), 2::bigint, 'which gets none');
select pg_temp.later() \g /dev/null
select is(pg_temp.compared('w', 's3://bucket/'), 'read stop',
    'a wider prefix than one that has a marker');
select matches((select problem from gc.markers where prefix = 's3://bucket/'),
    'under a part of this prefix', 'is not begun while nobody compares that');
savepoint wider;
select is(pg_temp.compared('w'), 'write go', 'when somebody does');
select is(pg_temp.compared('w', 's3://bucket/'), 'read write go', 'it is');
select is(pg_temp.compared('w'), 'read go', 'and stands for both');
rollback to wider;
delete from gc.markers where prefix = 's3://bucket/';
select is(pg_temp.compared('w'), 'write go', 'the narrower one goes on');

-- A row that names the marker.
insert into gc.tombstones (collection, key, url, due_at, wait_for)
values ('file', '0', 's3://bucket/a/.BlobGC', now() - interval '1 day', '0');
select is(pg_temp.claimed(), 0::bigint, 'the address of a marker is never handed out');
select results_eq($$select failures, last_error from gc.tombstones where key = '0'$$,
    $$values (1, 'refused: it is the address of a marker of blobgc')$$, 'it is refused, and said');
delete from gc.tombstones where key = '0';

-- Killed between two steps.
create temporary table under_way (a pg_temp.answer);
create function pg_temp.prepare(worker text, conditional boolean default true) returns text
    language plpgsql as $$
begin
    perform pg_temp.compared(worker, conditional => conditional), pg_temp.later('3 seconds');
    truncate under_way;
    insert into under_way select pg_temp.ask(worker, conditional => conditional);
    return (select (a).action from under_way);
end;
$$;
create function pg_temp.carry_out(conditional boolean default true) returns text language sql as $$
    select (pg_temp.act(a, conditional)).did from under_way
$$;
select is(pg_temp.prepare('dead'), 'write', 'a runner prepares a move, and is killed');
select is(pg_temp.compared('w'), 'go', 'for a few seconds others go by the move before');
select pg_temp.later('4 seconds') \g /dev/null
select is(pg_temp.compared('w'), 'wait', 'then they wait for it');
select pg_temp.later('16 seconds') \g /dev/null
select is(pg_temp.compared('w'), 'read write go', 'and then find the old marker, and go on');
select is(pg_temp.carry_out(), 'refused', 'its write, when it comes late, is refused');
select is(pg_temp.prepare('dead'), 'write', 'another');
select is(pg_temp.carry_out(), 'wrote', 'writes, and is killed before it says so');
select pg_temp.later('16 seconds') \g /dev/null
select is(pg_temp.compared('w'), 'read write go', 'what it has prepared is found, and is ours');
select is(pg_temp.prepare('w'), 'write', 'one more');
select is(pg_temp.carry_out(), 'wrote', 'writes, and is stopped for a while');
select pg_temp.later('2 minutes') \g /dev/null
select is((
    select (pg_temp.ask('w', 'wrote', s.content, s.tag)).action from store as s
    where s.address = 's3://bucket/a/.blobgc'
), 'read', 'what it has written counts from then: it has to look again');
select is(pg_temp.claimed(), 0::bigint, 'and is handed nothing before');
select is(pg_temp.compared('w'), 'write go', 'then it moves it again: a copy may have watched since');
-- A write that comes late, when its successor has looked and before that writes.
select is(pg_temp.prepare('dead'), 'write', 'another is slow');
select pg_temp.later('16 seconds') \g /dev/null
select is((pg_temp.ask('w')).action, 'read', 'its successor reads');
create temporary table successor as
select pg_temp.ask('w', 'read', s.content, s.tag) as a
from store as s where s.address = 's3://bucket/a/.blobgc';
select is(pg_temp.carry_out(), 'wrote', 'then the first one writes');
select is((select (pg_temp.act(a, true)).did from successor), 'refused', 'so the second may not');
select is((pg_temp.ask('w', 'refused')).action, 'read', 'and looks again');
select is((
    select (pg_temp.ask('w', 'read', s.content, s.tag)).action
    from store as s where s.address = 's3://bucket/a/.blobgc'
), 'write', 'what it finds is ours');
select is((pg_temp.ask('dead', 'wrote', (a).body, '0')).action, 'wait', 'who was slow begins anew')
from under_way;
select is((pg_temp.ask('dead', 'read', null)).action, 'wait',
    'and what it says of the past counts for nothing') ;
select pg_temp.later('16 seconds') \g /dev/null
select is(pg_temp.compared('w'), 'read write go', 'it goes on');

-- The clock is set back: all that is known is of a time that is still to come.
select pg_temp.later('-1 day') \g /dev/null
select is(pg_temp.claimed(), 0::bigint, 'what was noted by a clock that was ahead counts for nothing');
select is(pg_temp.compared('w'), 'write go', 'the marker is moved at once: a copy is to fall behind');
select is(pg_temp.prepare('dead'), 'write', 'a runner is killed before a clock is set back');
select pg_temp.later('-1 day') \g /dev/null
select is(pg_temp.compared('w'), 'read write go', 'nobody waits for it until the clock has caught up');
select is(pg_temp.claimed(), 1::bigint, 'and objects are handed out again');

-- A store without conditional writes.
select pg_temp.later('10 seconds') \g /dev/null
select is(pg_temp.compared('w', conditional => false), 'read go',
    'without conditions, a batch is a look for longer');
select is(pg_temp.claimed(), 1::bigint, 'objects are handed out');
select pg_temp.later('40 seconds') \g /dev/null
select is(pg_temp.compared('w', conditional => false), 'read write go', 'and sometimes a move');
select pg_temp.later('40 seconds') \g /dev/null
select is((pg_temp.ask('dead', conditional => false)).action, 'read', 'one is slow');
truncate under_way;
insert into under_way
select pg_temp.ask('dead', 'read', s.content, s.tag, conditional => false)
from store as s where s.address = 's3://bucket/a/.blobgc';
select pg_temp.later('16 seconds') \g /dev/null
select is(pg_temp.compared('w', conditional => false), 'read write go', 'another overtakes it');
select is(pg_temp.carry_out(false), 'wrote', 'and its write comes late');
select is(pg_temp.compared('w', conditional => false), 'read go', 'that is still ours');
select pg_temp.later('40 seconds') \g /dev/null
select is(pg_temp.compared('w'), 'write go', 'what was seen then can be replaced on condition');

-- A copy, and what else stops it. The store is put back each time.
create temporary table before as select * from store;
create function pg_temp.stand(change jsonb) returns void language sql as $$
    delete from store where address = 's3://bucket/a/.blobgc';
    insert into store
    select address, (content::jsonb || change)::text, nextval('tags') from before
    where address = 's3://bucket/a/.blobgc' and change is not null;
    select pg_temp.later();
$$;
create function pg_temp.found(change jsonb) returns text language sql as $$
    select pg_temp.stand(change);
    select regexp_replace(pg_temp.compared('w') || ': ' || pg_temp.problem(),
        '[0-9a-f-]{36}', '…');
$$;
select is(pg_temp.found(null), 'write read stop: the marker is missing: is it another bucket, or '
    'one that is not mounted?', 'a missing marker stops everything');
select is(pg_temp.claimed(), 0::bigint, 'nothing is handed out');
select matches((select held_up_by from gc.status()), '^s3://bucket/a/: the marker is missing',
    'the status says why');
select matches((select why from gc.status()), '^s3://bucket/a/: the marker is missing',
    'also where nothing is due');
select results_eq(
    $$select severity, subject, command from gc.check() where problem ~ 'missing'$$,
    $$values ('error', 's3://bucket/a/',
        'if this database is the one that may delete objects there: '
        'select gc.adopt(''s3://bucket/a/'');')$$, 'and so does gc.check');
select pg_temp.stand('{}') \g /dev/null
select is(pg_temp.compared('w'), 'read write go', 'when the marker is back, all goes on');
truncate before;
insert into before select * from store;
select is(pg_temp.found('{"identity": "11111111-1111-1111-1111-111111111111", "database": "x",
    "token": "11111111-1111-1111-1111-111111111111"}'),
    'write read stop: the marker belongs to another database: "x", identity …',
    'the marker of another database stops it');
select matches(pg_temp.found('{"epoch": 1000, "token": "11111111-1111-1111-1111-111111111111"}'),
    '^read stop: the marker has epoch 1000 and this database [0-9]+: this is a copy',
    'and so does an epoch that others have moved on');
select matches(pg_temp.found('{"epoch": 1, "token": "11111111-1111-1111-1111-111111111111"}'),
    'the bucket, or a copy of it, is older', 'or one from before');
select is(pg_temp.found('{"token": 7}'), 'read stop: what stands there is no marker',
    'or something else');
select is((pg_temp.ask('w', 'read', repeat('[', 100000))).action, 'read', 'out of turn');
select is((pg_temp.ask('w', 'read', repeat('[', 100000))).action, 'stop', 'in turn, whatever it is');
select pg_temp.found('{"token": "22222222-2222-2222-2222-222222222222", "epoch": 7,
    "identity": "11111111-1111-1111-1111-111111111111", "database": "x"}') \g /dev/null
select lives_ok($$select gc.adopt('s3://bucket/a', 'because')$$, 'somebody says that it is ours');
select is(pg_temp.claimed(), 0::bigint, 'nothing is handed out before a runner has replaced it');
select is(pg_temp.compared('w'), 'read write go', 'which it does');
select results_eq($$select operation, what, regexp_replace(reason, '[0-9a-f-]{36}', '…')
        from gc.operations order by id$$,
    $$values ('adopt', 's3://bucket/a/', 'because; the marker belongs to another database: "x", identity …'),
        ('take over', 's3://bucket/a/', 'the marker of "x", identity …, epoch 7')$$,
    'both are in the log');
select isnt((select content::jsonb ->> 'identity' from store where address ~ '/a/'),
    (select content::jsonb ->> 'identity' from before where address ~ '/a/'),
    'with another identity, so that the other database sees it');
select throws_ok($$select gc.adopt('s3://bucket/a/b/')$$, '55000', null,
    'a part of a prefix that has a marker cannot be adopted');
select throws_ok($$select gc.adopt('bucket')$$, '22023', null, 'nor what is no prefix');
select lives_ok($$select gc.adopt('s3://bucket/')$$, 'but a wider one');
select is(pg_temp.compared('w', 's3://bucket/'), 'read write go', 'whose marker');
select is(pg_temp.compared('w', 's3://bucket/a/'), 'read go', 'then stands for both');
select gc.adopt('s3://elsewhere/') \g /dev/null
select is(pg_temp.compared('w', 's3://elsewhere/'), 'read write go', 'two are adopted');

-- The database finds itself elsewhere.
update gc.markers set place = place || '{"timeline": "0000000F"}', epoch = epoch - 5
where prefix = 's3://bucket/';
select is(pg_temp.compared('w', 's3://bucket/'), 'stop', 'on another timeline it does not even look');
select matches((select held_up_by from gc.status()), 'its timeline was 0000000F and is 00000001',
    'and says what is different');
select is(pg_temp.claimed('s3://bucket/'), 0::bigint, 'nothing is handed out');
select is(pg_temp.compared('w', 's3://new/'), 'stop', 'also where it has never been');
select is(pg_temp.compared('w', 's3://elsewhere/'), 'idle', 'but where it was adopted since');
update gc.settings set failover = 'trusted';
select is(pg_temp.compared('w', 's3://bucket/'), 'read stop', 'a trusted failover is watched');
select is(pg_temp.claimed('s3://bucket/'), 0::bigint, 'and nothing handed out meanwhile');
update store set content = (content::jsonb || jsonb_build_object('token', gen_random_uuid()))::text
where address = 's3://bucket/.blobgc';
select pg_temp.later() \g /dev/null
select is(pg_temp.compared('w', 's3://bucket/'), 'read stop', 'while somebody moves it, it waits');
select pg_temp.later() \g /dev/null
select is(pg_temp.compared('w', 's3://bucket/'), 'read write go', 'when nobody does, it goes on');
select is((select count(*) from gc.operations where operation = 'take over'), 3::bigint,
    'and that is in the log') ;
update gc.markers set place = place || '{"database oid": "1"}' where prefix = 's3://bucket/';
select is(pg_temp.compared('w', 's3://bucket/'), 'stop', 'another database is no failover');
update gc.markers set place = gc._place(), server_start = '2000-01-01', problem = null;
update gc.settings set failover = 'ask';
select is(pg_temp.compared('w', 's3://bucket/'), 'read stop', 'a server that was started again waits');
select pg_temp.later() \g /dev/null
select is(pg_temp.compared('w', 's3://bucket/'), 'read write go', 'and goes on');
select throws_ok($$update gc.settings set failover = 'maybe'$$, '23514', null,
    'there is no third way');

-- A copy of the disk watches for longer than anybody has had a lease.
create function pg_temp.leased(lease interval) returns bigint language sql as $$
    select count(*) from gc.claim('w', 1, lease, '{s3://bucket/}')
$$;
select is(pg_temp.leased('5 minutes'), 1::bigint, 'a lease as ever is given');
select is(pg_temp.leased('1 hour'), 0::bigint, 'one that is longer than any before is not');
select is(pg_temp.compared('w', 's3://bucket/'), 'write go',
    'first the marker is moved, so that copies fall behind that were made before');
select is(pg_temp.leased('1 hour'), 1::bigint, 'then it is given');
select is(pg_temp.leased('1 hour'), 1::bigint, 'and from then on');
select pg_temp.later('3 seconds') \g /dev/null
truncate under_way;
insert into under_way select pg_temp.ask('w', prefix => 's3://bucket/');
select is(pg_temp.leased('2 hours'), 0::bigint, 'the same while a move is under way');
select is(pg_temp.carry_out(), 'wrote', 'which is carried out');
select is((
    select (pg_temp.ask('w', 'wrote', s.content, s.tag, 's3://bucket/')).action from store as s
    where s.address = 's3://bucket/.blobgc'
), 'read', 'but does not count: a copy may know it');
select is(pg_temp.leased('2 hours'), 0::bigint, 'so the lease is not given');
select is(pg_temp.compared('w', 's3://bucket/'), 'write go', 'before the next move');
select is(pg_temp.leased('2 hours'), 1::bigint, 'but then');
update gc.markers set server_start = '2000-01-01';
select is(pg_temp.leased('5 minutes'), 0::bigint,
    'what was compared before the server was started again counts for nothing');
select is(pg_temp.compared('w', 's3://bucket/'), 'read stop', 'it watches');
select pg_temp.later('122 minutes') \g /dev/null
select is(pg_temp.compared('w', 's3://bucket/'), 'read stop',
    'for as long as a lease, and three times the longest sleep');
select pg_temp.later('2 minutes') \g /dev/null
select is(pg_temp.compared('w', 's3://bucket/'), 'read write go', 'and then goes on');
update gc.settings set failover = 'trusted';
update gc.markers set place = place || '{"timeline": "0000000F"}';
select is(pg_temp.leased('5 minutes'), 0::bigint, 'nor does what a primary has compared');
update gc.markers set place = gc._place(), server_start = pg_postmaster_start_time(), problem = null;
update gc.settings set failover = 'ask';

-- Who claims nothing is told to ask again.
update gc.settings set max_sleep = '20 seconds';
select is((pg_temp.ask('w', 'start', prefix => 's3://elsewhere/')).seconds, null, 'a runner starts');
select pg_temp.later('16 seconds') \g /dev/null
select is(pg_temp.compared('w', 's3://elsewhere/'), 'read write go', 'and moves the marker');
select results_eq($$select a.action, a.seconds from pg_temp.ask('w', prefix => 's3://elsewhere/') as a$$,
    $$values ('idle', 10::double precision)$$, 'it is told when to ask again at the latest');

-- A quarantine moves objects, so it asks as well.
insert into gc.tombstones (collection, key, url, due_at, wait_for, finalizers)
values ('file', 'q', 's3://bucket/q', now() - interval '1 day', '0', '{blobgc.quarantine}');
create function pg_temp.quarantined() returns bigint language sql as $$
    select count(*) from gc.claim('w', 1, prefixes => '{s3://bucket/}',
        finalizer => 'blobgc.quarantine')
$$;
select pg_temp.later() \g /dev/null
select is(pg_temp.quarantined(), 0::bigint, 'nothing is moved before the marker is compared');
select pg_temp.compared('w', 's3://bucket/') \g /dev/null
select is(pg_temp.quarantined(), 1::bigint, 'but then');

-- Prefixes of two databases, one of which contains the other.
create function pg_temp.above(prefix text, marker jsonb) returns text language sql as $$
    select (pg_temp.ask('w', 'start', jsonb_build_object('s3://outer/.blobgc', marker::text)::text,
        prefix => prefix)).action || ' ' || (pg_temp.ask('w', 'read', null, prefix => prefix)).action
$$;
select is(pg_temp.above('s3://outer/inner/', '{"token": "11111111-1111-1111-1111-111111111111",
    "identity": "11111111-1111-1111-1111-111111111111", "database": "x"}'), 'read stop',
    'a runner that finds the marker of another database above its prefix stops');
select is((select problem from gc.markers where prefix = 's3://outer/inner/'), 'a wider prefix has '
    'the marker of another database: s3://outer/.blobgc of "x", identity '
    '11111111-1111-1111-1111-111111111111', 'and says why');
select gc.adopt('s3://outer/inner/', 'we know') \g /dev/null
select is(pg_temp.compared('w', 's3://outer/inner/'), 'read write go', 'unless that was adopted');
select is(pg_temp.above('s3://new/', '"no marker"'), 'read write', 'other files are no markers');
select is(pg_temp.above('s3://newer/', (select jsonb_build_object('identity', identity,
    'token', gen_random_uuid()) from gc.markers where prefix = 's3://bucket/')), 'read write',
    'and markers of this database are no obstacle');

-- Durability: what cannot be seen cannot be waited for.
select throws_ok($$update gc.settings set durable_on = '{archive}'$$, '55000',
    'nothing is archived', 'an archive that is off is refused');
select throws_ok($$update gc.settings set durable_on = '{standby}'$$, '42704',
    'there is no standby and no replication slot "standby"', 'and so is a standby that is not there');
select throws_ok($$update gc.settings set durable_on = array[null]$$, '23514', null, 'and nothing');

select * from finish();
rollback;
