-- Sharing: an object that several rows name goes with the last of them.
begin;
set local client_min_messages = error;
select plan(24);

create schema app;
update gc.settings set jitter = '0', undo = '0';

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
create function pg_temp.track(variadic definition text[])
    returns void
    language plpgsql
as $$
begin
    perform from gc.track(definition[1]::regclass, name => definition[2], url => definition[3],
        condition => 'true');
end;
$$;


-- Rows that share an object although the url is made of the key.
create table app.pair (a integer, b integer, primary key (a, b));
select pg_temp.track('app.pair', 'pair', $$'gs://b/' || a || b$$);
insert into app.pair values (1, 11), (11, 1);
delete from app.pair where a = 1;
select is(pg_temp.handed_out(), '{}',
    'two columns that run into each other: the object stays while the other row has it');
select is_empty('table gc.tombstones', 'and its tombstone is dropped');
delete from app.pair;
select is(pg_temp.handed_out(), '{gs://b/111}', 'it goes with the last row');

create table app.doc (id integer primary key, path text);
select pg_temp.track('app.doc', 'doc', $$coalesce(path, 'gs://b/' || id)$$);
insert into app.doc values (1, 'gs://b/x'), (2, 'gs://b/x'), (3, null), (4, 'gs://b/3');
delete from app.doc where id in (1, 3);
select is(pg_temp.handed_out(), '{}', 'a coalesce: the objects stay while other rows have them');
select is_empty('table gc.tombstones', 'and their tombstones are dropped');
delete from app.doc;
select is(pg_temp.handed_out(), '{gs://b/3,gs://b/x}', 'they go with the last rows');

-- Each makes one url of the two keys.
create temporary table lossy (what text, type text, url text, one text, other text);
insert into lossy values
    ('lower', 'text', $$'gs://b/' || lower(id)$$, 'A', 'a'),
    ('case', 'text', $$'gs://b/' || case when id > 'b' then 'b' else id end$$, 'c', 'd'),
    ('nullif', 'text', $$'gs://b/' || coalesce(nullif(id, 'x'), 'y')$$, 'x', 'y'),
    ('greatest', 'text', $$'gs://b/' || greatest(id, 'k')$$, 'a', 'b'),
    ('left', 'text', $$'gs://b/' || left(id, 1)$$, 'a1', 'a2'),
    ('right', 'text', $$'gs://b/' || right(id, 1)$$, '1a', '2a'),
    ('substr', 'text', $$'gs://b/' || substr(id, 2)$$, '1a', '2a'),
    ('substring', 'text', $$'gs://b/' || substring(id from 1 for 1)$$, 'a1', 'a2'),
    ('a shorter type', 'text', $$'gs://b/' || id::varchar(1)$$, 'a1', 'a2'),
    ('a number', 'text', $$'gs://b/' || id::integer$$, '1', '01'),
    ('a rounded number', 'numeric', $$'gs://b/' || id::integer$$, '1.1', '1.2'),
    ('an element', 'integer[]', $$'gs://b/' || id[1]$$, '{1,2}', '{1,3}'),
    ('a test', 'text', $$'gs://b/' || (id is null)$$, 'a', 'b');
create function pg_temp.handed_out_early(l lossy)
    returns text[]
    language plpgsql
as $$
declare
    early text[];
begin
    execute format('create table app.lossy (id %s primary key)', l.type);
    perform pg_temp.track('app.lossy', 'lossy', l.url);
    execute format('insert into app.lossy values (%L), (%L)', l.one, l.other);
    execute format('delete from app.lossy where id = %L', l.one);
    early := pg_temp.handed_out();
    delete from app.lossy;
    early := early || '/'::text || cardinality(pg_temp.handed_out())::text;
    perform gc.untrack('lossy');
    drop table app.lossy;
    return early;
end;
$$;
select is(pg_temp.handed_out_early(l), '{/,1}',
    format('a url that loses part of the key (%s): the object goes with the last row', l.what))
from lossy as l;


-- Two collections that name one object.
create table app.photo (id integer primary key, path text);
create table app.scan (id integer primary key, path text);
create table app.left_half (id integer primary key);
create table app.right_half (id integer primary key);
select pg_temp.track('app.photo', 'photo', 'path'), pg_temp.track('app.scan', 'scan', 'path'),
    pg_temp.track('app.left_half', 'left_half', $$'gs://half/' || id$$),
    pg_temp.track('app.right_half', 'right_half', $$'gs://half/' || id$$);
insert into app.photo values (1, 'gs://b/same');
insert into app.scan values (1, 'gs://b/same');
insert into app.left_half values (7);
insert into app.right_half values (7);
delete from app.photo;
delete from app.left_half;
select is(pg_temp.handed_out(), '{}', 'an object stays while a row of another collection has it');
select is_empty('table gc.tombstones', 'and its tombstones are dropped');
delete from app.scan;
delete from app.right_half;
select is(pg_temp.handed_out(), '{gs://b/same,gs://half/7}',
    'it goes with the last row of the last collection');
delete from gc.tombstones;
select gc.untrack(c.name) from gc.collections as c;


-- A store tells A from a.
create function pg_temp.with_collation()
    returns setof text
    language plpgsql
as $$
begin
    begin
        create collation app.any_case (
            provider = icu, locale = 'und-u-ks-level2', deterministic = false);
    exception
        when feature_not_supported then
            return query select skip('this PostgreSQL has no ICU', 2);
            return;
    end;
    create table app.name (id integer primary key, path text collate app.any_case);
    perform pg_temp.track('app.name', 'name', $u$'gs://b/' || path$u$);
    insert into app.name values (1, 'A'), (2, 'X'), (3, 'x');
    update app.name set path = 'a' where id = 1;
    return next is(array(select t.url from gc.tombstones as t), '{gs://b/A}',
        'a url that differs only by case from the old one is another object');
    delete from app.name where id = 2;
    return next is(pg_temp.handed_out(), '{gs://b/A,gs://b/X}',
        'and a live row with one that differs only by case does not keep it');
    delete from gc.tombstones;
    perform gc.untrack('name');
end;
$$;
select pg_temp.with_collation();

select * from finish();
rollback;
