-- Renaming: the application goes on at once, and with the next review so does tracking.
begin;
set local client_min_messages = error;
select plan(47);

create schema app;
update gc.settings set jitter = '0', undo = '0';

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
create function pg_temp.why(name text)
    returns text
    language sql
as $$ select s.why from gc.status() as s where s.collection = name $$;


create table app.file (id integer primary key, path text);
create table app.use (id integer primary key, file integer references app.file);
create index on app.use (file);
select count(*) from gc.track('app.file', url => 'path', condition => 'true') \g /dev/null
create temporary table step (n integer);
insert into step values (10);
-- The application goes on, and a review later so does tracking. Names change, so they are told.
create function pg_temp.goes_on(what text, file text, uses text, key text, ref text)
    returns setof text
    language plpgsql
as $$
declare
    one integer := (select max(n) + 1 from step);
    two integer := one + 1;
begin
    insert into step values (two);
    return next lives_ok(format(
        $sql$
            insert into %1$s (%3$s, path) values (%5$s, 'gs://file/%5$s'), (%6$s, 'gs://file/%6$s');
            insert into %2$s (id, %4$s) values (%5$s, %5$s), (%6$s, %6$s);
            update %2$s set %4$s = %4$s;
            update %1$s set path = path;
            delete from %2$s where id = %5$s
        $sql$, file, uses, key, ref, one, two), what || ': the application goes on');
    perform pg_temp.review('file');
    perform pg_temp.review('file');
    return next is(pg_temp.why('file'), null, what || ': the code was made again');
    return next is_empty(format('select * from %s where %s = %s', file, key, one),
        what || ': a loss of that moment is made up for');
    return next isnt_empty(format('select * from %s where %s = %s', file, key, two),
        what || ': what is in use is kept');
    execute format('delete from %s where id = %s', uses, two);
    return next results_eq('select id, event from (table gc.file_review_queue) as q(id, event)',
        format('values (%s, %L)', two, split_part(uses, '.', 2) || '_delete'),
        what || ': tracking works again');
    return next is(pg_temp.review('file'), 1, what || ': and the row goes');
    return next is(pg_temp.handed_out(),
        array[format('gs://file/%s', one), format('gs://file/%s', two)],
        what || ': with all objects');
    execute format('truncate %s', uses);
    perform pg_temp.review('file');
end;
$$;
select pg_temp.goes_on('before anything is renamed', 'app.file', 'app.use', 'id', 'file');
alter table app.use rename to usage;
select pg_temp.goes_on('a referring table is renamed', 'app.file', 'app.usage', 'id', 'file');
alter table app.usage rename file to file_id;
select pg_temp.goes_on('a referring column is renamed', 'app.file', 'app.usage', 'id', 'file_id');
alter table app.file rename to upload;
select pg_temp.goes_on('the collection''s table is renamed',
    'app.upload', 'app.usage', 'id', 'file_id');
alter table app.upload rename id to upload_id;
select pg_temp.goes_on('its key is renamed', 'app.upload', 'app.usage', 'upload_id', 'file_id');
alter schema app rename to application;
select pg_temp.goes_on('its schema is renamed',
    'application.upload', 'application.usage', 'upload_id', 'file_id');
alter schema application rename to app;
alter table app.upload rename path to place;
select lives_ok(
    $$insert into app.upload values (1000, 'gs://file/1000');
        update app.upload set place = 'gs://file/1001';
        delete from app.upload;
        insert into app.upload values (1002, 'gs://file/1002')$$,
    'a column that the url reads is renamed: the application goes on');
select is(pg_temp.review('file'), 0, 'and nothing is reviewed');
select matches(pg_temp.why('file'), 'column "path" does not exist', 'and the status says why');
alter table app.upload rename place to path;
select pg_temp.review('file') \g /dev/null
select is(pg_temp.why('file'), null, 'when it has its name back nothing is in the way');
select pg_temp.review('file') \g /dev/null
select is(pg_temp.handed_out(), '{gs://file/1000,gs://file/1001,gs://file/1002}',
    'and what was missed is found, under any name of the column');

select * from finish();
rollback;
