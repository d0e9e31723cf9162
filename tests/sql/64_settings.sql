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
select plan(3 + 2 * (1 + count(*)::integer)) from app.setting;

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
update gc.settings set jitter = '0';
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

select * from finish();
rollback;
