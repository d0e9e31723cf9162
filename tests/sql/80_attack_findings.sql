-- Findings of an attack: each of these once lost an object, ran somebody's code, or stopped work.
-- (REPEATABLE READ needs a transaction of its own: tests/specs/upload-repeatable-read.spec.)
begin;
set local client_min_messages = error;
select plan(176);

create schema app;
update gc.settings set jitter = '0';

-- As if the time of every review had come. Returns how many rows of the collection went.
create function pg_temp.review(name text)
    returns integer
    language plpgsql
as $$
declare
    queue text;
begin
    for queue in
        select q.oid::regclass from pg_class as q
        where q.relnamespace = 'gc'::regnamespace and q.relname like E'%\\_review\\_queue'
            and q.relkind = 'r'
    loop
        execute format('update %s set review_after = now() where review_after > now()', queue);
    end loop;
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
create function pg_temp.track(variadic definition text[])
    returns void
    language plpgsql
as $$
begin
    perform from gc.track(definition[1]::regclass, name => definition[2], url => definition[3],
        condition => 'true');
end;
$$;


-- 1. Rows that share an object although the url is made of the key.
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


-- 2. Two collections that name one object.
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
select gc.untrack(c.name) from gc.collections as c;


-- 3. A key that is written differently.
create table app.price (id numeric primary key);
select pg_temp.track('app.price', 'd');
insert into app.price values (1.0), (2.0);
select ok(gc.keep_alive('d', '1'), 'keep_alive finds the row 1.0 by the key 1');
select is(pg_temp.review('d'), 1, 'a review takes the other row');
select results_eq('select id::text from app.price', array['1.0'], 'and not the one that is held');
delete from gc.holds;
select is(pg_temp.review('d'), 1, 'which goes when nobody holds it any more');
select gc.untrack('d');


-- 4. A table that inherits from an owned one.
create table app.part (doc integer references app.doc, n integer);
create index on app.part (doc);
create table app.part_copy () inherits (app.part);
truncate app.doc cascade;
select count(*) from gc.track('app.doc', owned => '{part}', condition => 'true') \g /dev/null
insert into app.doc values (1), (2);
insert into app.part values (1, 10);
insert into app.part_copy values (1, 20), (2, 30);
select is((select array_agg(ctid::text || n order by n) from app.part where n < 30),
    '{"(0,1)10","(0,1)20"}', 'two rows of two tables are in the same place');
select is(pg_temp.review('doc'), 2, 'a review takes the owners');
select is_empty('select * from only app.part', 'and the owned rows');
select results_eq('select n from app.part_copy order by n', array[20, 30],
    'the rows of a table that inherits are not owned');
select gc.untrack('doc');
drop table app.part_copy, app.part;
delete from app.doc;


-- 5. What is owned is looked up once.
create schema other;
create table app.layer (doc integer references app.doc);
create index on app.layer (doc);
select results_eq($$select reference, role from gc.track('app.doc', owned => '{layer}',
    condition => 'true')$$,
    $$values ('app.layer(doc)', 'owned')$$, 'a name without a schema means the table there is');
create table other.layer (doc integer constraint layer_fkey references app.doc);
create index on other.layer (doc);
insert into app.doc values (1), (2);
insert into app.layer values (1), (2);
insert into other.layer values (1);
select is(pg_temp.review('doc'), 1, 'a review takes what only the owned table refers to');
select results_eq('select id from app.doc', array[1],
    'a table of the same name, made later in another schema, keeps its target');
select results_eq('select doc from other.layer', array[1], 'and its rows survive');
select results_eq('select doc from app.layer', array[1], 'as do those of the owned table');
select throws_ok($$select * from gc.track('app.doc', owned => '{layer}', condition => 'true')$$, '42704',
    '"layer" does not name one table that refers to "app.doc"',
    'a name that could be two tables is refused');
alter table app.layer drop constraint layer_doc_fkey;
delete from other.layer;
select is(pg_temp.review('doc'), 0, 'where the owned foreign key is gone nothing is reviewed');
select matches(pg_temp.why('doc'), E'the owned reference app\\.layer\\(doc\\) is gone',
    'and the status says why');
select is(pg_temp.review('doc'), 0, 'nor the next time');
select results_eq('select id from app.doc', array[1], 'the row is still there');
select results_eq($$select reference, role from gc.track('app.doc', condition => 'true')$$,
    $$values ('other.layer(doc)', 'keeps')$$, 'gc.track is told what holds now');
select is(pg_temp.why('doc'), null, 'then nothing is in the way');
select is(pg_temp.review('doc'), 1, 'and the row goes');
select results_eq('select doc from app.layer', array[1], 'but what it owned before does not');
select gc.untrack('doc');
drop table app.layer, other.layer;


-- 6. Code of a role that nobody trusts.
create role attack_mallory;
grant usage on schema app to attack_mallory;
create table app.ran (what text, by_role name);
create function app.spy()
    returns trigger
    language plpgsql
as $$
begin
    insert into app.ran values (tg_table_name, current_user);
    return old;
end;
$$;
create table app.item (doc integer primary key references app.doc);
create table app.ref (doc integer references app.doc);
create index on app.ref (doc);
select count(*) from gc.track('app.doc', owned => '{item}', condition => 'true') \g /dev/null
insert into app.doc select generate_series(1, 3);
insert into app.item values (1);
create trigger spy after delete on app.doc for each row execute function app.spy();
create function pg_temp.trust(roles name[])
    returns void
    language sql
as $$ update gc.settings set trusted_roles = roles $$;
-- One row is left to be reviewed.
create function pg_temp.only(wanted integer)
    returns void
    language plpgsql
as $$
begin
    perform pg_temp.review('doc');
    truncate app.ran;
    insert into app.doc values (wanted);
    insert into app.item values (wanted);
end;
$$;
select is(pg_temp.review('doc'), 3, 'a trigger of the owner''s own is no obstacle');
select pg_temp.only(1);
alter function app.spy() owner to attack_mallory;
select is(pg_temp.review('doc'), 0,
    'where a trigger''s function belongs to a role that is not trusted, nothing is reviewed');
select matches(pg_temp.why('doc'), E'trigger spy on app\\.doc belongs to attack_mallory',
    'the status names the trigger');
select is_empty('table app.ran', 'and the function has not run');
select throws_ok($$select * from gc.track('app.doc', owned => '{item}', condition => 'true')$$, '42501',
    'trigger spy on app.doc belongs to attack_mallory, who could run code with the rights of '
    || current_user, 'nor can the table be tracked');
select pg_temp.trust('{attack_mallory}');
select is(pg_temp.review('doc'), 1, 'a role that is trusted is let through');
select results_eq('select what, by_role from app.ran', $$values ('doc', current_user)$$,
    'and its function runs as the owner of blobgc');
select pg_temp.trust('{}');
drop trigger spy on app.doc;

select pg_temp.only(2);
create trigger spy before delete on app.item for each row execute function app.spy();
select is(pg_temp.review('doc'), 0, 'a trigger on an owned table: nothing is reviewed');
select matches(pg_temp.why('doc'), E'trigger spy on app\\.item belongs to attack_mallory',
    'a trigger on an owned table: the status names it');
select is_empty('table app.ran', 'a trigger on an owned table: the function has not run');
select results_eq('select doc from app.item', array[2], 'and the owned row is there');
select pg_temp.trust('{attack_mallory}');
select is(pg_temp.review('doc'), 1, 'a trigger on an owned table: trust lets it through');
select results_eq('select what, by_role from app.ran', $$values ('item', current_user)$$,
    'a trigger on an owned table: then the function runs');
select pg_temp.trust('{}');
drop trigger spy on app.item;

create table app.note (item integer references app.item (doc) on delete cascade);
select pg_temp.only(3);
insert into app.note values (3);
create trigger spy after delete on app.note for each row execute function app.spy();
select is(pg_temp.review('doc'), 0, 'a trigger at the end of a cascade: nothing is reviewed');
select matches(pg_temp.why('doc'), E'trigger spy on app\\.note belongs to attack_mallory',
    'a trigger at the end of a cascade: the status names it');
select is_empty('table app.ran', 'a trigger at the end of a cascade: the function has not run');
select pg_temp.trust('{attack_mallory}');
select is(pg_temp.review('doc'), 1, 'a trigger at the end of a cascade: trust lets it through');
select results_eq('select what, by_role from app.ran', $$values ('note', current_user)$$,
    'a trigger at the end of a cascade: then the function runs');
select pg_temp.trust('{}');
drop table app.note;

select pg_temp.only(4);
alter table app.ref owner to attack_mallory;
select is(pg_temp.review('doc'), 0, 'a referring table of another role: nothing is reviewed');
select matches(pg_temp.why('doc'), E'table app\\.ref belongs to attack_mallory',
    'a referring table of another role: the status names it');
select pg_temp.trust('{attack_mallory}');
select is(pg_temp.review('doc'), 1, 'a referring table of another role: trust lets it through');
select is(pg_temp.why('doc'), null, 'and nothing is in the way any more');
select pg_temp.trust('{}');
select gc.untrack('doc');
drop table app.ref, app.item;
delete from app.doc;


-- 7. One bad tombstone.
create table app.sort (kind integer primary key);
select pg_temp.track('app.sort', 'sort', $$'gs://sort/' || kind$$);
insert into app.sort values (1), (2), (3);
delete from app.sort;
update gc.tombstones set key = 'old' where key = '2';
select is(pg_temp.handed_out(), '{gs://sort/1,gs://sort/2,gs://sort/3}',
    'a tombstone whose key cannot be read any more is looked up by its url');
delete from gc.tombstones;
select gc.untrack('sort');


-- 8. A referring table that is dropped.
create table app.ref (doc integer references app.doc);
create index on app.ref (doc);
select pg_temp.track('app.doc', 'doc');
insert into app.doc values (1), (2);
insert into app.ref values (1), (2);
select is(pg_temp.review('doc'), 0, 'the table keeps its targets');
select is_empty('table gc.doc_review_queue', 'and nothing is left to be reviewed');
drop table app.ref;
select is(pg_temp.review('doc'), 0, 'once it is dropped, nothing is reviewed');
select is_empty('table gc.scan_requests', 'nor scanned for');
select pg_temp.track('app.doc', 'doc');
select is(pg_temp.review('doc'), 0, 'the first review after gc.track has accepted it');
select results_eq('select id, event from gc.doc_review_queue order by id',
    $$values (1, 'doc_scan'), (2, 'doc_scan')$$, 'scans for what it kept');
select is(pg_temp.review('doc'), 2, 'and that is collected');
select gc.untrack('doc');


-- 9. What stands in the way of a claim.
create table app.version (id integer primary key, generation text);
select count(*) from gc.track('app.version', url => $$'gs://v/' || (id > 0)$$,
    generation => 'generation', condition => 'true') \g /dev/null
insert into app.version values (1, ''), (2, null), (3, 'g');
delete from app.version;
select results_eq($$select url, generation from gc.claim('w')$$,
    $$values ('gs://v/true', null), ('gs://v/true', 'g')$$,
    'an empty generation is none, and is no second deletion');
delete from gc.tombstones;

create function pg_temp.bury(worker text, due interval, generation text)
    returns void
    language sql
as $$
    insert into gc.tombstones (collection, key, url, generation, due_at, worker, wait_for)
    values ('version', '9', 'gs://v/by-hand', bury.generation, now() + due, bury.worker, '0')
$$;
-- A row that is written by hand is refused, or does no harm.
create function pg_temp.bury_empty_generation()
    returns text[]
    language plpgsql
as $$
begin
    begin
        perform pg_temp.bury(null, '0', '');
    exception
        when check_violation then
            null;
    end;
    perform pg_temp.bury(null, '0', null);
    return pg_temp.handed_out();
end;
$$;
select lives_ok('select pg_temp.bury_empty_generation()',
    'an empty generation that was written by hand does not stop a claim');
delete from gc.tombstones;
select pg_temp.bury(null, '-1 minute', null), pg_temp.bury('x', '-1 hour', null);
select is(pg_temp.handed_out(), '{gs://v/by-hand}',
    'an expired lease and an earlier tombstone are one deletion');
select is_empty('table gc.tombstones', 'and the earlier one is dropped');
select pg_temp.bury('x', '-1 hour', null), pg_temp.bury(null, '-1 minute', null);
select is(pg_temp.handed_out(), '{gs://v/by-hand}',
    'an expired lease and a later tombstone are one deletion');
select is_empty('table gc.tombstones', 'and the later one is dropped');
select pg_temp.bury(null, '1 hour', null), pg_temp.bury('x', '-1 hour', null);
select is(pg_temp.handed_out(), '{}',
    'an expired lease is not handed out before a tombstone of the same object is due');
delete from gc.tombstones;
select gc.untrack('version');


-- 10. Updates.
create table app.pic (id integer primary key, path text, note text);
select pg_temp.track('app.pic', 'pic', 'path');
insert into app.pic select i, 'gs://pic/' || i from generate_series(1, 100) as i;
update app.pic set note = 'seen';
select is_empty('table gc.tombstones', 'an update of many rows that changes no url buries nothing');
update app.pic set path = 'gs://pic/' || 3 - id where id in (1, 2);
select results_eq('select id, path from app.pic where id < 3 order by id',
    $$values (1, 'gs://pic/2'), (2, 'gs://pic/1')$$, 'two rows swap their urls');
select is_empty('table gc.tombstones', 'and nothing is buried');
update app.pic set path = case when id = 50 then 'gs://pic/new' else path end;
select results_eq('select key, url from gc.tombstones', $$values ('50', 'gs://pic/50')$$,
    'an update of all rows that changes one url buries one object');
select is(pg_temp.handed_out(), '{gs://pic/50}', 'which is handed out');
update app.pic set path = null where id = 51;
select is(pg_temp.handed_out(), '{gs://pic/51}', 'a url that becomes null gives up its object');
select gc.untrack('pic');


-- 11. Sizes that are none.
create table app.blob (id integer primary key, bytes numeric, approx float8);
select count(*) from gc.track('app.blob', url => $$'gs://blob/' || id$$, size => 'bytes',
    condition => 'true')
\g /dev/null
insert into app.blob (id, bytes)
values (1, 1e30), (2, 'NaN'), (3, 'Infinity'), (4, '-Infinity'), (5, -1), (6, 12),
    (7, 9223372036854775807.4), (8, 9223372036854775807), (9, 0.6), (10, null);
select lives_ok('delete from app.blob', 'a size that is none does not fail a delete');
select results_eq('select key::integer, size from gc.tombstones order by 1',
    $$values (1, null::bigint), (2, null), (3, null), (4, null), (5, null), (6, 12), (7, null),
        (8, null), (9, 1), (10, null)$$, 'and is not known then');
delete from gc.tombstones;
select count(*) from gc.track('app.blob', url => $$'gs://blob/' || id$$, size => 'approx',
    condition => 'true')
\g /dev/null
insert into app.blob (id, approx) values (1, 'NaN'), (2, 1e30), (3, 2.0 ^ 63), (4, 2.0 ^ 50);
select lives_ok('delete from app.blob', 'a size in floating point does not fail a delete');
select results_eq('select key, size from gc.tombstones order by key',
    $$values ('1', null::bigint), ('2', null), ('3', null), ('4', 1125899906842624)$$,
    'a size in floating point is not known when it does not fit');
truncate gc.tombstones;
select gc.untrack('blob');
truncate app.blob;
select count(*) from gc.track('app.blob', url => $$'gs://blob/' || id$$, size => 'bytes',
    condition => 'true')
\g /dev/null
insert into app.blob values (1, 9223372036854775807), (2, 9223372036854775807), (3, 1);
select pg_temp.review('blob') \g /dev/null
select is_empty('table app.blob', 'rows whose sizes are too big together are collected at once');
truncate gc.tombstones;
truncate app.blob;
truncate gc.tombstones;
insert into app.blob values (1, 9223372036854775807), (2, 9223372036854775807);
delete from app.blob;
select lives_ok($$do 'begin perform pg_temp.handed_out(); end'$$,
    'objects whose sizes are too big together can be confirmed');
select is_empty('table gc.tombstones', 'and are done with');
delete from gc.totals;
delete from gc.tombstones;
insert into gc.totals (collection, day, objects, bytes)
select 'blob', current_date - 1, 1, 9223372036854775807 from generate_series(1, 2);
select lives_ok('select * from gc.daily_totals', 'totals that are too big together can be read');
select lives_ok('select * from gc.review()', 'totals that are too big together stop no review');
delete from gc.totals;
select gc.untrack('blob');


-- 12. Renaming.
create table app.file (id integer primary key, path text);
create table app.use (id integer primary key, file integer references app.file);
create index on app.use (file);
select pg_temp.track('app.file', 'file', 'path');
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
select gc.untrack('file');
drop table app.usage, app.upload;


-- 13. Scans.
create table app.file (id integer primary key);
create table app.use (file integer references app.file);
create index on app.use (file);
select pg_temp.track('app.file', 'file');
insert into app.file select generate_series(1, 6);
insert into app.use select generate_series(1, 6);
select pg_temp.review('file') \g /dev/null
select is(gc.scan('file', 3), 3, 'a scan by hand is half-way');
truncate app.use;
select is(gc.scan('file', 3), 3, 'goes on after a TRUNCATE');
select is(gc.scan('file', 3), 0, 'and ends');
select results_eq('select id from gc.file_review_queue order by id', array[4, 5, 6],
    'it saw only the second half without references');
select is(pg_temp.review('file'), 3, 'that is collected');
select pg_temp.review('file') \g /dev/null
select is_empty('table app.file', 'and the scan that the TRUNCATE asked for finds the first half');

insert into app.file select generate_series(1, 6);
insert into app.use select generate_series(1, 6);
select pg_temp.review('file') \g /dev/null
insert into gc.scan_requests (collection, reason) values ('file', 'a test');
select count(*) from gc.review(3) \g /dev/null
truncate app.use;
select is((select scan_cursor from gc.collections), '3', 'a scan by reviews is half-way');
select count(pg_temp.review('file')) from generate_series(1, 4) \g /dev/null
select is_empty('table app.file', 'a TRUNCATE meanwhile asks for another one');
select results_eq('select scanning, scan_cursor from gc.collections',
    $$values (false, null::text)$$, 'and then it is over');
select is_empty('table gc.scan_requests', 'and nobody asks for more');
select gc.untrack('file');


-- 14. A row that owns itself.
create table app.node (id integer primary key, parent integer references app.node);
create index on app.node (parent);
select count(*) from gc.track('app.node', owned => '{node}', condition => 'true') \g /dev/null
insert into app.node values (1, 1);
select is(pg_temp.review('node'), 1, 'a row that owns itself is collected');
select is_empty('table app.node', 'and gone');
insert into app.node values (2, 2), (3, 2);
select count(pg_temp.review('node')) from generate_series(1, 3) \g /dev/null
select is_empty('table app.node', 'one that owns itself and another is collected with it');
select is((select failing from gc.status()), 0::bigint, 'without a failure');
select gc.untrack('node');


-- 15. Settings of the session.
create table app.moment (
    at timestamptz, long interval, raw bytea, weight float8, primary key (at, long, raw, weight)
);
create table app.raw (id bytea primary key);
select count(*) from gc.track('app.moment', undo => '1 day 02:00',
    url => $$'gs://m/' || at || ' ' || long || ' ' || raw::text || ' ' || weight$$,
    condition => 'true') \g /dev/null
select pg_temp.track('app.raw', 'raw');
create function pg_temp.keys()
    returns text[]
    language plpgsql
as $$
declare
    keys text[];
begin
    delete from gc.tombstones;
    insert into app.moment values ('2026-02-01 12:00+00', '1 day 2 hours', E'\\x01ff', 0.1);
    delete from app.moment;
    insert into app.moment values ('2026-02-01 12:00+00', '1 day 2 hours', E'\\x01ff', 0.1);
    truncate app.moment;
    select array_agg(distinct array[key, url]) into keys from gc.tombstones;
    return keys;
end;
$$;
create temporary table plain as
select pg_temp.keys() as keys, pg_temp.review('moment') as reviewed,
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
select is(gc._canonical_key(gc._collection('moment'), (select keys[1][1] from plain)),
    (select keys[1][1] from plain), 'and read the same');
update gc.tombstones set due_at = now() - interval '1 minute';
select is(pg_temp.handed_out(), array(select keys[1][2] from plain),
    'the session''s settings do not matter to a claim and a confirmation');
select is((select array_agg(distinct array[key, url]) from gc.deletion_log
    where collection = 'moment'), (select keys from plain), 'nor to the log');
insert into app.raw values (E'\\x01ff'), (E'\\x02');
select ok(gc.keep_alive('raw', E'\\x01ff'), 'keep_alive finds a row');
insert into app.moment values ('2026-02-01 12:00+00', '1 day 2 hours', E'\\x01ff', 0.1);
select ok(gc.keep_alive('moment', (select keys[1][1] from plain)),
    'keep_alive finds a row of several columns');
select is(pg_temp.review('raw'), 1, 'a review takes the rows that are not held');
select results_eq('select id from app.raw', array[E'\\x01ff'::bytea],
    'keep_alive holds a row whatever the session has set');
select is((select count(*) from app.moment), 1::bigint,
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


-- 17. Only the owner of blobgc may have code made.
create role attack_admin superuser;
grant usage on schema gc to attack_mallory;
grant execute on all functions in schema gc to attack_mallory;
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
select is(pg_temp.refusal(r.role, c.command),
    array['42501', format('set role %s;', pg_get_userbyid(n.nspowner))],
    format('%s may not: %s', r.role, c.command))
from pg_namespace as n
cross join (values ('attack_mallory'::name), ('attack_admin')) as r(role)
cross join (values
    ('select gc.track(''app.node'')'), ('select gc.untrack(''raw'')'), ('select gc.scan(''raw'')')
) as c(command)
where n.nspname = 'gc' and (r.role = 'attack_admin' or c.command ~ 'gc.track');
select is((pg_temp.refusal('attack_mallory', c.command))[1], '42501',
    'attack_mallory may not: ' || c.command)
from (values ('select gc.untrack(''raw'')'), ('select gc.scan(''raw'')')) as c(command);
select is((select array_agg(name order by name) from gc.collections), '{moment,raw}',
    'and nothing was tracked or untracked');

select * from finish();
rollback;
