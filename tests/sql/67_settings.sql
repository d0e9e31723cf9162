-- Settings: whoever tracks, writes, reviews or claims, with whatever settings, the same is decided
-- and the same is written. Each hostile setting by itself, and all of them.
begin;
set local client_min_messages = error;
\set list `grep -v '^#' tests/hostile.conf`

create schema app;
create table app.setting as
select n.name, s.boot_val as usual, split_part(l.line, ' = ', 2) as hostile
from regexp_split_to_table(:'list', chr(10)) as l(line)
cross join lateral split_part(l.line, ' = ', 1) as n(name)
join pg_settings as s on lower(s.name) = lower(n.name);
select plan(20 + 2 * (1 + count(*)::integer)) from app.setting;

-- The setting of this name, or all of them for "all"; the others are as PostgreSQL comes.
create function app.session(hostile text) returns void language sql as $$
    select count(set_config(s.name, case
        when session.hostile in (s.name, 'all') then s.hostile else s.usual end, true))
    from app.setting as s
$$;
select app.session('none') \g /dev/null

create table app.doc (id bigint primary key, path text, note text, ends date);
create index on app.doc ((E's3://a\\b/' || path));
create table app.page (doc bigint references app.doc);
create index on app.page (doc);
create table app.moment (
    at timestamptz, long interval, raw bytea, weight float8, zone text, "p\at'h" text,
    primary key (at, long, raw, weight)
);
update gc.settings set jitter = '0', undo = '0';
insert into gc.review_after_defaults values ('doc_insert', '0'), ('page_delete', '0');
create function app.track() returns void language plpgsql as $$
begin
    perform gc.track('app.doc', url => $e$E's3://a\\b/' || path$e$, label => $e$concat(note = null)$e$,
        condition => $e$(note = null) is null and ends < timestamptz '2026-03-02 05:00 EST'$e$);
    perform gc.track('app.moment', condition => 'true', undo => '1 day 02:00', url =>
        $e$concat_ws('/', 's3://m', at, long, raw, weight, zone::timestamptz, to_char(at, 'TMDay'),
            "p\at'h", array[null, 'null'], row(at, raw))$e$);
end;
$$;
select app.track() \g /dev/null

create function app.refusal(id bigint, path text) returns text language plpgsql as $$
begin
    insert into app.doc values (id, path);
    return 'accepted';
exception
    when others then return sqlstate;
end;
$$;

-- What an application, an operator and a runner do, in whatever session this is.
create function app.work() returns void language plpgsql as $$
declare
    ids bigint[];
begin
    insert into app.doc select i, 'p' || i, null, date '2026-03-01' from generate_series(1, 6) as i;
    update app.doc set ends = date '2026-03-03' where id = 4;
    insert into app.page values (1), (2), (3);
    delete from app.page where doc = 2;
    insert into app.moment select timestamptz '2026-02-01 12:00+00', interval '1 day -02:00', r,
        0.1::float8 + 0.2, 'Feb 3 2026 10:00 EST', 'x'
    from unnest(array[decode('01ff', 'hex'), decode('5c', 'hex')]) as r;
    perform gc.keep_alive('doc', '6');
    insert into app.seen select format('%s %s', collection, (reviewed, kept, deleted, failed))
    from gc.review() where collection = 'doc';
    delete from app.moment where raw = decode('5c', 'hex');
    update app.doc set path = 'q' where id = 1;
    perform gc.begin_upload('moment', (select key from gc.tombstones where collection = 'moment'));
    truncate app.moment;
    update gc.tombstones set due_at = now() - interval '1 minute', wait_for = '0'
    where collection = 'doc';
    select array_agg(c.id) into ids from gc.claim('worker', 3) as c;
    insert into app.seen select 'an insert is ' || app.refusal(90 + t.id, substr(t.url, 10))
    from gc.tombstones as t where t.worker is not null;
    insert into app.seen select 'confirmed ' || gc.confirm('worker', ids);
end;
$$;

-- What is there afterwards, told in a usual session; then everything is as before.
create table app.seen (line text);
create function app.outcome() returns text language plpgsql as $$
declare
    outcome text;
begin
    insert into app.seen
    select concat_ws(' ', 'tombstone', collection, key, label, url, size, event, due_at, store)
    from gc.tombstones
    union all
    select concat_ws(' ', 'log', collection, key, label, url, event) from gc.deletion_log
    union all
    select concat_ws(' ', 'total', collection, day, rows, objects) from gc.totals
    union all
    select concat_ws(' ', 'hold', collection, key, url) from gc.holds
    union all
    select concat_ws(' ', 'queue', id, event, review_after) from gc.doc_review_queue
    union all
    select concat_ws(' ', 'row', d.id, d.path) from app.doc as d
    union all
    select concat_ws(' ', 'problem', c.name, c.problem) from gc.collections as c;
    select string_agg(s.line, chr(10) order by s.line collate "C") into outcome from app.seen as s;
    return outcome;
end;
$$;
create function app.written(hostile text) returns text language plpgsql as $$
declare
    outcome text;
begin
    perform app.session(hostile);
    perform app.work();
    perform app.session('none');
    outcome := app.outcome();
    raise exception using errcode = 'ZZ000', message = outcome;
exception
    when sqlstate 'ZZ000' then
        perform app.session('none');
        return sqlerrm;
end;
$$;
-- All generated code, and what is known of the collections.
create function app.made(hostile text) returns text language plpgsql as $$
begin
    perform app.session(hostile);
    perform app.track();
    perform app.session('none');
    return (select string_agg(concat_ws(' ', p.proname, p.prosrc, p.proconfig), chr(10)
            order by p.proname collate "C")
        from pg_proc as p
        where p.pronamespace = 'gc'::regnamespace and not exists (
            select from pg_depend as d
            where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e'
        ))
        || (select string_agg(to_jsonb(c)::text, chr(10) order by c.name) from gc.collections as c);
end;
$$;

create table app.usual as select app.written('none') as written, app.made('none') as made;
select cmp_ok((select count(*) from app.setting), '>', 20::bigint, 'there are hostile settings');
select matches((select written from app.usual), needle, 'a part of what is compared: ' || needle)
from unnest(array[
    E'an insert is ZG001.*confirmed 3.*\\(6,3,2,0\\)', E'2026-02-03 15:00:00\\+00/Sunday/x'
]) as needle;
select is(app.written(s.name), (select written from app.usual),
    'the same is written with ' || s.name || ' = ' || s.hostile)
from (select name, hostile from app.setting union all select 'all', 'hostile') as s;
select is(app.made(s.name), (select made from app.usual),
    'the same code is made with ' || s.name || ' = ' || s.hostile)
from (select name, hostile from app.setting union all select 'all', 'hostile') as s;

-- What is printed and read, in one session whose settings change.
select app.session('none') \g /dev/null
select gc.untrack(c.name) from gc.collections as c;
delete from gc.tombstones;
delete from gc.deletion_log;
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
-- What a runner is told to delete, and deletes.
create function pg_temp.handed_out()
    returns text[]
    language plpgsql
as $$
declare
    ids bigint[];
    urls text[];
begin
    select array_agg(c.id), coalesce(array_agg(c.url order by c.url), '{}') into ids, urls
    from gc.claim('w') as c;
    perform gc.confirm('w', ids);
    return urls;
end;
$$;
create table app.instant (
    at timestamptz, long interval, raw bytea, weight float8, primary key (at, long, raw, weight)
);
create table app.raw (id bytea primary key);
select count(*) from gc.track('app.instant', undo => '1 day 02:00',
    url => $$'gs://m/' || at || ' ' || long || ' ' || raw::text || ' ' || weight$$,
    condition => 'true') \g /dev/null
select count(*) from gc.track('app.raw', condition => 'true') \g /dev/null
create function pg_temp.keys()
    returns text[]
    language plpgsql
as $$
declare
    keys text[];
begin
    delete from gc.tombstones;
    insert into app.instant values ('2026-02-01 12:00+00', '1 day 2 hours', E'\\x01ff', 0.1);
    delete from app.instant;
    insert into app.instant values ('2026-02-01 12:00+00', '1 day 2 hours', E'\\x01ff', 0.1);
    truncate app.instant;
    select array_agg(distinct array[key, url]) into keys from gc.tombstones;
    return keys;
end;
$$;
create temporary table plain as
select pg_temp.keys() as keys, pg_temp.review('instant') as reviewed,
    array(select proname::text || ctid from pg_proc where pronamespace = 'gc'::regnamespace
        order by 1) as functions,
    array(select gc._fingerprint(c) from gc.collections as c order by c.name) as fingerprints;
select is((select keys[1][1] from plain),
    E'("2026-02-01 12:00:00+00","1 day 02:00:00","\\\\x01ff",0.1)',
    'a key is printed as PostgreSQL does');
set local intervalstyle = 'iso_8601';
set local datestyle = 'German, DMY';
set local timezone = 'Asia/Tokyo';
set local bytea_output = 'escape';
set local extra_float_digits = -10;
select is(pg_temp.keys(), (select keys from plain),
    'whatever the session has set, keys and urls are printed the same');
select is(gc._canonical_key(gc._collection('instant'), (select keys[1][1] from plain)),
    (select keys[1][1] from plain), 'and read the same');
update gc.tombstones set due_at = now() - interval '1 minute';
select is(pg_temp.handed_out(), array(select keys[1][2] from plain),
    'the session''s settings do not matter to a claim and a confirmation');
select is((select array_agg(distinct array[key, url]) from gc.deletion_log
    where collection = 'instant'), (select keys from plain), 'nor to the log');
insert into app.raw values (E'\\x01ff'), (E'\\x02');
select ok(gc.keep_alive('raw', E'\\x01ff'), 'keep_alive finds a row');
insert into app.instant values ('2026-02-01 12:00+00', '1 day 2 hours', E'\\x01ff', 0.1);
select ok(gc.keep_alive('instant', (select keys[1][1] from plain)),
    'keep_alive finds a row of several columns');
select is(pg_temp.review('raw'), 1, 'a review takes the rows that are not held');
select results_eq('select id from app.raw', array[E'\\x01ff'::bytea],
    'keep_alive holds a row whatever the session has set');
select is((select count(*) from app.instant), 1::bigint,
    'keep_alive holds a row of several columns whatever the session has set');
select is(array(select gc._fingerprint(c) from gc.collections as c order by c.name),
    (select fingerprints from plain), 'the fingerprint does not depend on the session');
select is(array(select proname::text || ctid from pg_proc where pronamespace = 'gc'::regnamespace
    order by 1), (select functions from plain), 'and no review has made the code again');
reset intervalstyle;
reset datestyle;
reset timezone;
reset bytea_output;
reset extra_float_digits;

-- Expressions of references, and indexes, that other sessions write.
create table app.picture (id text primary key);
create table app.page_of (id integer primary key, body text, raw bytea, several bytea[]);
create index on app.page_of (substring(body from '^/p/(\d+)'));
create index on app.page_of ((raw::text));
select count(*) from gc.track('app.picture') \g /dev/null
select count(*) from gc.declare_reference('picture', 'app.page_of',
    $$substring(body from '^/p/(\d+)')$$) \g /dev/null
select throws_ok($$select gc.declare_reference('picture', 'app.page_of', 'raw::text')$$, '22023',
    'the keys of a reference must be an immutable expression over one row',
    'keys that a setting can change are refused');
select throws_ok($$select gc.declare_reference('picture', 'app.page_of', 'several::text[]')$$,
    '22023', 'the keys of a reference must be an immutable expression over one row',
    'in arrays, too');
insert into app.picture values ('1'), ('2');
create table app.scan (id integer primary key, raw bytea);
create index on app.scan (('s3://scan/' || raw::text));
select count(*) from gc.track('app.scan', url => $$'s3://scan/' || raw::text$$,
    collect => 'deleted') \g /dev/null
insert into app.scan select i, decode(to_hex(i + 256 * 255), 'hex') from generate_series(10, 99) as i;
insert into app.scan values (1, 'AB');
delete from gc.picture_review_queue;
set local standard_conforming_strings = off;
set local bytea_output = escape;
insert into app.page_of values (1, '/p/1');
select is((select count(*) from app.picture where xmax = pg_current_xact_id()::xid), 1::bigint,
    'whoever writes a mention locks its target, whatever a backslash means to the session');
delete from app.page_of;
select results_eq('select id from gc.picture_review_queue', $$values ('1'::text)$$,
    'and whoever deletes one queues it');
insert into app.scan values (2, 'AB');
set local standard_conforming_strings = on;
reset bytea_output;
delete from app.scan where id = 1;
update gc.tombstones set due_at = now() - interval '1 minute' where collection = 'scan';
select is_empty($$select url from gc.claim('w') where url ~ 'scan'$$,
    'a live row is found, whatever its session has put into an index');

select * from finish();
rollback;
