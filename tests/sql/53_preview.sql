-- Preview: what the next review would do, found out by doing it and undoing it.
begin;
set local client_min_messages = error;
select plan(40);

create schema app;
create table app.file (id integer primary key, bytes bigint not null, state text);
create table app.post (id integer primary key, file integer references app.file);
create table app.chunk (file integer references app.file, n integer);
create index on app.post (file);
create index on app.chunk (file);
update gc.settings set undo = '0', jitter = '0';
create function pg_temp.track_file() returns bigint language sql as $f$
    select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id$$, size => 'bytes',
        label => $$'file ' || id$$, owned => '{chunk}',
        condition => $$state is distinct from 'wait'$$)
$f$;
select pg_temp.track_file() \g /dev/null

create function pg_temp.make_due() returns void language sql as $$
    update gc.file_review_queue set review_after = now() - interval '1 minute'
$$;
-- All tables of blobgc and of the application, in one text.
create function pg_temp.all_tables() returns text language plpgsql as $$
declare
    relation regclass;
    line text;
    result text := '';
begin
    for relation in
        select c.oid from pg_class as c
        where c.relnamespace in ('gc'::regnamespace, 'app'::regnamespace) and c.relkind = 'r'
        order by c.oid
    loop
        execute format('select string_agg(o::text, E''\n'' order by o::text) from %s as o', relation)
        into line;
        result := result || relation::oid || E'\n' || coalesce(line, '') || E'\n';
    end loop;
    return result;
end;
$$;

insert into app.file select n, n * 10 from generate_series(1, 5) as n;
insert into app.post values (1, 1), (2, 1);
insert into app.chunk select 2, n from generate_series(1, 3) as n;
update app.file set state = 'wait' where id = 3;
insert into gc.holds (collection, key, reason, held_until)
values ('file', '4', 'upload', now() + interval '1 hour');

-- What is due, and what is queued.
select is_empty('select * from gc.preview()', 'what is not due is not in a preview');
select isnt_empty('select * from gc.preview(due => false)', 'but as if it were due, it is');
select pg_temp.make_due();
create temporary table before as select pg_temp.all_tables() as content;
select results_eq(
    'select collection, key, label, url, size, verdict, with_it from gc.preview() order by key',
    $$values ('file', '1', 'file 1', 's3://bucket/1', 10::bigint, 'kept', null::jsonb),
        ('file', '2', 'file 2', 's3://bucket/2', 20, 'deleted', '{"chunk": 3}'),
        ('file', '3', 'file 3', 's3://bucket/3', 30, 'kept', null),
        ('file', '4', 'file 4', 's3://bucket/4', 40, 'busy', null),
        ('file', '5', 'file 5', 's3://bucket/5', 50, 'deleted', null)$$,
    'a preview tells what is deleted, kept and busy, and what goes with a row');
select results_eq(
    $$select key, detail from gc.preview() where verdict in ('kept', 'deleted') order by key$$,
    $$values ('1', 'kept by 2 posts'), ('2', null), ('3', 'its condition is not met'), ('5', null)$$,
    'it tells by what a row is kept');
select alike((select detail from gc.preview() where key = '4'), 'held until %(upload)',
    'it tells what a row waits for');
select results_eq(
    'select distinct event from gc.preview() order by 1', $$values ('file_insert'), ('file_update')$$,
    'it tells the events; the latest of a row counts');
select is(pg_temp.all_tables(), (select content from before), 'a preview changes no table');
select is((select count(*) from pg_locks as l join pg_class as c on c.oid = l.relation
        where l.pid = pg_backend_pid() and c.relnamespace = 'app'::regnamespace
            and l.mode = 'RowExclusiveLock' and c.relname = 'chunk'), 1::bigint,
    'the lock that the insert has taken is there still');
select is((select count(*) from gc.preview('file', 2)), 2::bigint, 'a batch is a batch');
select is((select count(*) from gc.preview(batch => 2, due => false)), 2::bigint,
    'also of all that is queued');

-- One collection or all.
create table app.other (id integer primary key);
create table app.use (other integer references app.other);
create index on app.use (other);
select count(*) from gc.track('app.other') \g /dev/null
insert into app.other values (7);
update gc.other_review_queue set review_after = now();
select is((select count(*) from gc.preview('file') where collection <> 'file'), 0::bigint,
    'with a name, only that collection is previewed');
select is((select array_agg(key) from gc.preview('other')), array['7'], 'or the other');
select is((select count(distinct collection) from gc.preview()), 2::bigint, 'without, all are');
select throws_ok($$select gc.preview('none')$$, '42704', 'there is no collection "none"',
    'a name that is none is refused');
select throws_ok('select gc.preview(batch => 0)', '22023', 'a batch must have at least one row',
    'so is a batch of none');

-- Rows that fail, that have gone, and that have later entries.
create function app.refuse() returns trigger language plpgsql as $$
begin
    raise 'this one stays';
end;
$$;
create trigger refuse before delete on app.file for each row when (old.id = 5)
    execute function app.refuse();
select results_eq(
    $$select key, verdict, detail from gc.preview('file') where key in ('2', '5') order by key$$,
    $$values ('2', 'deleted', null), ('5', 'failed', 'this one stays')$$,
    'one bad row costs one bad row, and its error is told');
select is((select count(*) from gc.file_review_queue where review_count > 0), 0::bigint,
    'and is not noted');
drop trigger refuse on app.file;
insert into app.file values (6, 60);
update gc.file_review_queue set review_after = now() where id = 6;
insert into app.post values (3, 6);
delete from app.post where id = 3;
select results_eq(
    $$select verdict, detail from gc.preview('file') where key = '6'$$,
    $$values ('put off', 'a later event counts: post_delete, due in 24 h')$$,
    'what has a later entry waits for that');
delete from gc.file_review_queue where id = 6;
delete from app.file where id = 6;
insert into gc.file_review_queue (id, event, review_after) values (6, 'test', now());
select is_empty($$select * from gc.preview('file') where key = '6'$$,
    'a row that has gone is not told of');
update gc.settings set max_rows = 4;
select is((select count(*) from gc.preview('file') where verdict = 'deleted'), 1::bigint,
    'a preview has no more room than a review');
select is((select distinct detail from gc.preview('file') where verdict = 'put off'),
    'this review ends before it', 'it tells for what there was none');
update gc.settings set max_rows = 10000;

-- What a review does besides is undone as well.
create table app.gallery (id integer primary key, file integer references app.file);
create index on app.gallery (file);
insert into app.gallery values (1, 2);
select is((select verdict from gc.preview('file') where key = '2'), 'kept',
    'a reference that came a moment ago counts');
select is((select detail from gc.preview('file') where key = '2'), 'kept by 1 gallery',
    'and is told of');
select hasnt_function('gc', 'file_after_gallery_delete', 'the code that was made again is gone');
drop table app.gallery;

create role not_trusted;
grant create on schema app to not_trusted;
create table app.theirs (file integer);
alter table app.theirs owner to not_trusted;
alter table app.theirs add foreign key (file) references app.file;
select is((select count(*) from gc.preview('file') where verdict = 'put off' and detail like
        '%not_trusted, who could run code%'), 6::bigint,
    'where nothing is reviewed, all is put off, and it is told why');
select is((select problem from gc.collections where name = 'file'), null, 'that is not noted');
drop table app.theirs;
select pg_temp.track_file() \g /dev/null

-- It is true.
create temporary table said as select key, verdict from gc.preview();
select count(*) from gc.review() \g /dev/null
select results_eq(
    $$select key from said where verdict = 'deleted' and key <> '7' order by 1$$,
    $$select n::text from generate_series(1, 5) as n
        where not exists (select from app.file where id = n) order by 1$$,
    'the review after it deletes exactly that');
select is((select count(*) from app.other), 0::bigint, 'in all collections');

-- What would go with a row.
insert into app.file values (10, 100);
insert into app.post values (10, 10);
create table app.album (id integer primary key);
create table app.print (album integer references app.album on delete cascade,
    file integer references app.file);
create index on app.print (album);
create index on app.print (file);
create table app.fan (album integer references app.album);
create index on app.fan (album);
select count(*) from gc.track('app.album', owned => '{print}') \g /dev/null
insert into app.file select n, 7 from generate_series(20, 24) as n;
select pg_temp.track_file() \g /dev/null
insert into app.album values (1), (2);
insert into app.print select 1, n from generate_series(20, 23) as n;
insert into app.print values (2, 23), (1, 10);
insert into app.fan values (1);
delete from before;
insert into before select pg_temp.all_tables();
select results_eq($$select collection, rows, bytes, owned_rows, is_complete
        from gc.frees('album', '1')$$,
    $$values ('album', 1::bigint, 0::numeric, 5::bigint, true), ('file', 3, 21, 0, true)$$,
    'what an album alone has goes with it, and what it shares does not');
select results_eq($$select collection, rows, bytes from gc.frees('file', '10')$$,
    $$values ('file', 1::bigint, 100::numeric)$$, 'what keeps a row goes first');
select is(pg_temp.all_tables(), (select content from before), 'gc.frees changes no table');
update gc.settings set max_rows = 2;
select is((select bool_or(is_complete) from gc.frees('album', '1')), false,
    'where there is more than a review may take, it is at least that');
update gc.settings set max_rows = 10000;
select is_empty($$select * from gc.frees('album', '99')$$, 'with a row that is not there goes none');

-- The next week.
insert into app.file values (25, 7);
delete from gc.file_review_queue;
insert into gc.file_review_queue (id, event, review_after)
select n, 'test', now() + interval '3 days' from generate_series(20, 24) as n
union all select 25, 'test', now() - interval '3 days';
select results_eq(
    $$select day - (now() at time zone 'UTC')::date, queued, expected_rows, expected_bytes, sampled
        from gc.forecast() where collection = 'file' order by day$$,
    $$select n, q, r, r * 7::numeric, q from (values (0, 1::bigint, 1::bigint), (1, 0, 0), (2, 0, 0),
        (3, 5, 1), (4, 0, 0), (5, 0, 0), (6, 0, 0)) as v(n, q, r)$$,
    'a forecast tells for a week what is queued and what of it would go');
select is((select count(*) from gc.forecast()), 21::bigint, 'for each collection');
insert into gc.file_review_queue (id, event, review_after)
select 24, 'test', now() + interval '5 days' from generate_series(1, 300) as n;
select results_eq(
    $$select queued, sampled from gc.forecast() where collection = 'file' and queued > 5$$,
    $$values (300::bigint, 100::bigint)$$, 'of many a hundred are looked at');

-- Rights.
create role stranger;
create role runner;
select gc.grant_runner('runner');
set local role stranger;
select throws_ok('select gc.preview()', '42501', null, 'nobody can preview by default');
set local role runner;
select lives_ok('select * from gc.preview(due => false)', 'a runner can preview');
select lives_ok('select * from gc.forecast()', 'and forecast');
select throws_ok($$select gc.frees('file', '24')$$, '42501', null,
    'but not delete and restore a row that is no garbage');
reset role;

select * from finish();
rollback;
