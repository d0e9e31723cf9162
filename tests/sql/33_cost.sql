-- Cost: a failing row costs a small multiple of a good one, making code grows with the references
-- and not with their square, and only what the code depends on has it made again.
begin;
set local client_min_messages = error;
set local track_functions = 'all';
select plan(32);

create schema app;
update gc.settings set jitter = '0', undo = '0', brake_share = 1;

create temporary table calls_before (name text, calls bigint);
create function pg_temp.count_from_here()
    returns void
    language sql
as $$
    delete from calls_before;
    insert into calls_before
    select f.funcname, sum(f.calls) from pg_stat_xact_user_functions as f
    where f.schemaname = 'gc'
    group by 1;
$$;
create function pg_temp.calls(name text)
    returns bigint
    language sql
as $$
    select coalesce(sum(f.calls), 0)::bigint
        - coalesce((select b.calls from calls_before as b where b.name = calls.name), 0)
    from pg_stat_xact_user_functions as f
    where f.schemaname = 'gc' and f.funcname = calls.name
$$;


-- Rows that fail.
create function app.refuse()
    returns trigger
    language plpgsql
as $$
begin
    if old.bad then
        raise 'row % stays', old.id;
    end if;
    return old;
end;
$$;
create table app.thing (id integer primary key, bad boolean not null default false);
create table app.other (id integer primary key);
create trigger refuse before delete on app.thing for each row execute function app.refuse();
select count(*) from gc.track('app.thing', condition => 'true') \g /dev/null
select count(*) from gc.track('app.other', condition => 'true') \g /dev/null
select gc.set_delay(e, '0') from unnest(array['thing_insert', 'other_insert']) as e \g /dev/null
select count(*) from gc.review() \g /dev/null

insert into app.thing select i, i = 700 from generate_series(1, 1000) as i;
insert into app.other select i from generate_series(1, 10) as i;
select pg_temp.count_from_here();
select results_eq('select collection, deleted, failed from gc.review(1000)',
    $$values ('other', 10, 0), ('thing', 999, 1)$$,
    'one row of a thousand raises: all others are deleted in the same review');
select cmp_ok(pg_temp.calls('thing_review'), '<=', 30::bigint,
    'it is found by halves, not by trying each');
select is(pg_temp.calls('_render'), 0::bigint, 'no code is made for that');
select cmp_ok(pg_temp.calls('_fingerprint'), '<=', 2::bigint,
    'each collection is compared with the catalog once');
select is((select array_agg(id) from app.thing), array[700], 'the row that raises stays');
select results_eq('select id, review_count, last_error from gc.thing_review_queue',
    $$values (700, 1, 'row 700 stays')$$, 'with its error, for later');

delete from gc.thing_review_queue;
update app.thing set bad = false;
delete from app.thing;
insert into app.thing select i, i % 10 = 0 from generate_series(1, 1000) as i;
select pg_temp.count_from_here();
select results_eq($$select deleted, failed from gc.review(1000) where collection = 'thing'$$,
    'values (900, 100)', 'a hundred of a thousand raise: the other nine hundred go');
select cmp_ok(pg_temp.calls('thing_review'), '<=', 1000::bigint, 'in no more calls than rows');
select is(pg_temp.calls('_render'), 0::bigint, 'no code is made for any of them');
select cmp_ok(pg_temp.calls('_fingerprint'), '<=', 2::bigint, 'and the catalog is read no oftener');
update gc.thing_review_queue set review_after = now();
select pg_temp.count_from_here();
select results_eq($$select deleted, failed from gc.review(1000) where collection = 'thing'$$,
    'values (0, 100)', 'they are tried again');
select cmp_ok(pg_temp.calls('thing_review'), '<=', 102::bigint, 'one by one');
select is(pg_temp.calls('_render'), 0::bigint, 'again without making code');
select cmp_ok(pg_temp.calls('_fingerprint'), '<=', 2::bigint, 'or reading the catalog');
select gc.untrack('thing'), gc.untrack('other') \g /dev/null


-- Tables with few and with many references.
create function pg_temp.calls_of_track(number integer)
    returns table (foreign_keys bigint, key bigint, shape bigint, rendered bigint)
    language plpgsql
as $$
begin
    execute format('create table app.target_%s (id integer primary key, path text)', number);
    for i in 1 .. number loop
        execute format('create table app.r_%1$s_%2$s (id integer primary key, '
            'target integer references app.target_%1$s)', number, i);
        execute format('create index on app.r_%1$s_%2$s (target)', number, i);
    end loop;
    perform pg_temp.count_from_here();
    perform gc.track(format('app.target_%s', number)::regclass, url => 'path');
    return query select pg_temp.calls('_foreign_keys'), pg_temp.calls('_key'),
        pg_temp.calls('_shape'), pg_temp.calls('_render');
end;
$$;
create temporary table tracked as
select n, c.* from unnest(array[5, 10, 20]) as n cross join lateral pg_temp.calls_of_track(n) as c;
select is((select count(distinct (foreign_keys, key, shape)) from tracked), 1::bigint,
    'gc.track reads the catalog as often for 20 references as for 5');
select is(
    (select rendered from tracked where n = 20) - (select rendered from tracked where n = 10),
    2 * ((select rendered from tracked where n = 10) - (select rendered from tracked where n = 5)),
    'what it writes grows with their number, not with its square');
select gc.untrack('target_5'), gc.untrack('target_20') \g /dev/null


-- What the code does not depend on.
create function pg_temp.made_again(command text)
    returns boolean
    language plpgsql
as $$
declare
    before text := (select c.fingerprint from gc.collections as c);
begin
    execute command;
    perform pg_temp.count_from_here();
    perform gc.review();
    return (select c.fingerprint is distinct from before from gc.collections as c)
        or pg_temp.calls('_shape') > 0;
end;
$$;
select count(*) from gc.review() \g /dev/null
select ok(not pg_temp.made_again(c), 'the code is not made again after ' || c)
from unnest(array[
    'alter table app.target_10 add column note text',
    'alter table app.r_10_1 add column note text default 7',
    'alter table app.r_10_1 alter column note type varchar(30)',
    'alter table app.r_10_1 rename column note to remark',
    'alter table app.r_10_1 drop column remark',
    'create index on app.r_10_1 (id)',
    'analyze app.target_10',
    'create table app.unrelated (id integer primary key, target integer)',
    $$comment on table app.target_10 is 'a comment'$$
]) as c;
select ok(pg_temp.made_again(c), 'it is made again after ' || c)
from unnest(array[
    'alter table app.target_10 alter column path type varchar(200)',
    'alter table app.r_10_1 rename column target to aim',
    'alter table app.r_10_1 rename to r_10',
    'create table app.another (target integer primary key references app.target_10)',
    'create index on app.target_10 (path)'
]) as c;
select ok(not pg_temp.made_again('select'), 'and only once');

-- Where only another collection has work.
create table app.busy (id integer primary key);
create table app.quiet (id integer primary key);
select count(*) from gc.track('app.busy', condition => 'true') \g /dev/null
select count(*) from gc.track('app.quiet', condition => 'true') \g /dev/null
select gc.set_delay('busy_insert', '0') \g /dev/null
select count(*) from gc.review() \g /dev/null
create temporary table before as select name, fingerprint from gc.collections;
insert into app.busy values (1);
alter table app.quiet add constraint quiet_fine check (id > 0);
select count(*) from gc.review() \g /dev/null
select results_eq(
    'select name from gc.collections natural join before as b(name, was) where fingerprint <> was',
    array['quiet'], 'a review notices a change also where it has nothing to do');

select * from finish();
rollback;
