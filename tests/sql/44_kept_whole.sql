-- Kept whole: what a trigger cannot work out, because the table has changed since its code was made
-- or because an expression raises, is written down as it is, and the next review works it out.
begin;
set local client_min_messages = error;
set local standard_conforming_strings = on;
set local quote_all_identifiers = off;
select plan(78);

create schema app;
update gc.settings set jitter = '0', undo = '0';

create function pg_temp.error_of(command text)
    returns text
    language plpgsql
as $$
begin
    execute command;
    return null;
exception
    when others then
        return sqlstate;
end;
$$;
create function pg_temp.tombstones()
    returns setof text
    language sql
as $$ select t.url from gc.tombstones as t order by t.url $$;
create function pg_temp.unread()
    returns bigint
    language sql
as $$ select count(*) from gc.unread_rows $$;
create function pg_temp.review()
    returns void
    language plpgsql
as $$
begin
    perform gc.review();
end;
$$;
create function pg_temp.why(name text)
    returns text
    language sql
as $$ select s.why from gc.status() as s where s.collection = name $$;
create function pg_temp.paths(variadic ids integer[])
    returns text[]
    language sql
as $$ select array_agg('s3://bucket/' || i order by i) from unnest(ids) as i $$;
-- A table that has been reviewed, and so has its code.
create function pg_temp.again(url text default 'path')
    returns void
    language plpgsql
as $$
begin
    if exists (select from gc.collections as c where c.name = 'file') then
        perform gc.untrack('file');
    end if;
    drop table if exists app.file, app.document;
    delete from gc.unread_rows;
    delete from gc.tombstones;
    create table app.file (id integer primary key, path text, bytes text);
    perform gc.track('app.file', url => url, size => 'bytes::bigint', condition => 'false');
    insert into app.file
    select i, 's3://bucket/' || i, '5' from generate_series(1, 3) as i;
    perform gc.review();
end;
$$;


-- A column that the definition reads has got another type.
select pg_temp.again();
alter table app.file alter column path type varchar(200);
select lives_ok('delete from app.file where id < 3', 'rows of a changed table can be deleted');
select is(pg_temp.unread(), 2::bigint, 'they are kept whole');
select results_eq(
    $$select collection, content ->> 'path' from gc.unread_rows order by id$$,
    $$values ('file', 's3://bucket/1'), ('file', 's3://bucket/2')$$,
    'with the collection''s name and all of their columns');
select ok(gc.next_due() <= now(), 'a runner comes for them at once');
select pg_temp.review();
select results_eq('select key, url, size from gc.tombstones order by key',
    $$values ('1', 's3://bucket/1', 5::bigint), ('2', 's3://bucket/2', 5)$$,
    'the next review makes tombstones of them, with key, url and size');
select is(pg_temp.unread(), 0::bigint, 'and takes them away');
select set_eq('select created_at from gc.tombstones', array[now()], 'they went when they went');

select pg_temp.again();
alter table app.file alter column path type varchar(200);
select lives_ok($$update app.file set path = 's3://bucket/9' where id = 1$$,
    'rows of a changed table can be updated');
select pg_temp.review();
select results_eq('select pg_temp.tombstones()', pg_temp.paths(1),
    'the object that the row had gets a tombstone');
select lives_ok($$update app.file set path = path where id = 2$$, 'an update that changes nothing');
select results_eq('select pg_temp.tombstones()', pg_temp.paths(1), 'leaves nothing then');

select pg_temp.again();
alter table app.file alter column path type varchar(200);
select lives_ok('truncate app.file', 'a changed table can be truncated');
select pg_temp.review();
select results_eq('select pg_temp.tombstones()', pg_temp.paths(1, 2, 3),
    'all of its objects get a tombstone');

-- An update that leaves the url what it was: a row still has it.
select pg_temp.again();
alter table app.file alter column path type varchar(200);
update app.file set bytes = '6' where id = 1;
select pg_temp.review();
select is_empty($$select url from gc.claim('worker')$$,
    'an object that a row of the changed table still has is not handed out');


-- Renamed in the transaction that deletes.
select pg_temp.again();
alter table app.file rename column path to place;
delete from app.file where id = 1;
update app.file set place = 's3://bucket/8' where id = 2;
select pg_temp.review();
select is(pg_temp.unread(), 2::bigint,
    'while the definition does not fit, what went after a column was renamed is kept');
select matches(pg_temp.why('file'), 'place|path', 'gc.status() says what does not fit');
select count(*) from gc.track('app.file', url => 'place', size => 'bytes::bigint',
    condition => 'false') \g /dev/null
select pg_temp.review();
select results_eq('select pg_temp.tombstones()', pg_temp.paths(1, 2),
    'after gc.track, the next review makes tombstones of it');
select is(pg_temp.why('file'), null, 'and all is well');

select pg_temp.again();
alter table app.file rename column path to place;
truncate app.file;
select count(*) from gc.track('app.file', url => 'place', condition => 'false') \g /dev/null
select pg_temp.review();
select results_eq('select pg_temp.tombstones()', pg_temp.paths(1, 2, 3),
    'a TRUNCATE after a column was renamed loses nothing either');

-- Another name later: the row knows only the one in between, but the column has its number still.
select pg_temp.again();
alter table app.file rename column path to place;
delete from app.file where id = 1;
alter table app.file rename column place to address;
select count(*) from gc.track('app.file', url => 'address', condition => 'false') \g /dev/null
select pg_temp.review();
select results_eq('select pg_temp.tombstones()', pg_temp.paths(1),
    'a column that has got yet another name is found by its number');
select pg_temp.again();
alter table app.file rename column path to place;
delete from app.file where id = 1;
alter table app.file drop column place, add column address text;
select count(*) from gc.track('app.file', url => 'address', condition => 'false') \g /dev/null
select pg_temp.review();
select is(pg_temp.unread(), 1::bigint,
    'a row that does not have a column of the definition is not forgotten');
select matches(pg_temp.why('file'), 'cannot be worked out.*address',
    'gc.status() says which column that is');
update gc.unread_rows
set content = content || jsonb_build_object('address', content -> 'place'), due_at = now();
select pg_temp.review();
select results_eq('select pg_temp.tombstones()', pg_temp.paths(1), 'and can be helped');

-- The old name again; a column in the place of another of that name; two that exchange theirs.
select pg_temp.again();
alter table app.file rename column path to place;
delete from app.file where id = 1;
alter table app.file rename column place to path;
select pg_temp.review();
select results_eq('select pg_temp.tombstones()', pg_temp.paths(1),
    'so is one that has its name back');
select pg_temp.again();
alter table app.file alter column bytes type varchar(9);
delete from app.file where id = 1;
alter table app.file drop column path, add column path text default 's3://bucket/new';
select pg_temp.review();
select results_eq('select pg_temp.tombstones()', pg_temp.paths(1),
    'where a column was dropped and added again, the row has its own value');
select pg_temp.again();
alter table app.file rename column path to place;
delete from app.file where id = 1;
alter table app.file rename column bytes to path;
alter table app.file rename column place to bytes;
select count(*) from gc.track('app.file', url => 'bytes', condition => 'false') \g /dev/null
select pg_temp.review();
select is_empty('select pg_temp.tombstones()',
    'where two columns have exchanged their names, no other object takes the place of its own');
select is(pg_temp.unread(), 1::bigint, 'and the row is not forgotten');

-- The key makes the url, and columns have the names of those in which rows are kept.
create table app.own (
    id integer, content text, left_at text, due_at text, columns text, u text,
    primary key (id, content)
);
select count(*) from gc.track('app.own', condition => 'false', label => 'due_at || columns || u',
    url => $$'s3://own/' || id || '/' || content$$, generation => 'left_at') \g /dev/null
insert into app.own
select i, 'c', 'g', 'a', 'b', 'c' from generate_series(1, 3) as i;
select pg_temp.review();
delete from gc.tombstones;
alter table app.own alter column due_at type varchar(200);
delete from app.own where id < 3;
update app.own set columns = 'd';
select pg_temp.review();
select results_eq('select key, url, generation, label from gc.tombstones order by key', $$values
    ('(1,c)', 's3://own/1/c', 'g', 'abc'), ('(2,c)', 's3://own/2/c', 'g', 'abc'),
    ('(3,c)', 's3://own/3/c', 'g', 'abc')$$,
    'rows are worked out, whatever their columns are called');
select set_eq($$select key from gc.claim('worker')$$, array['(1,c)', '(2,c)'],
    'and are handed out, but for one that is still there');
select gc.untrack('own');

select pg_temp.again();
alter table app.file rename to document;
delete from app.document where id = 1;
update app.document set path = 's3://bucket/7' where id = 2;
truncate app.document;
select pg_temp.review();
select results_eq('select pg_temp.tombstones()', pg_temp.paths(1, 2, 3, 7),
    'nothing is lost after the table was renamed');

-- The column is gone for good, and what was kept does not have it.
select pg_temp.again();
alter table app.file drop column bytes;
delete from app.file where id = 1;
select count(*) from gc.track('app.file', url => 'path', condition => 'false') \g /dev/null
select pg_temp.review();
select results_eq('select pg_temp.tombstones()', pg_temp.paths(1),
    'a column that the definition reads no longer is not asked for');


-- A partition that has come since the last review has no trigger yet.
create table app.part (id integer, day integer, path text, primary key (id, day))
partition by list (day);
create table app.part_1 partition of app.part for values in (1);
select count(*) from gc.track('app.part', url => 'path', condition => 'false') \g /dev/null
select pg_temp.review();
delete from gc.tombstones;
create table app.part_2 partition of app.part for values in (2);
create table app.part_3 partition of app.part for values in (3, 4) partition by list (day);
create table app.part_4 partition of app.part_3 for values in (4);
insert into app.part values (1, 1, 's3://bucket/1'), (2, 2, 's3://bucket/2'),
    (4, 4, 's3://bucket/4');
truncate app.part;
select pg_temp.review();
select results_eq('select pg_temp.tombstones()', pg_temp.paths(1, 2, 4),
    'a TRUNCATE takes the rows of new partitions into account, at any depth');
insert into app.part values (1, 1, 's3://bucket/11'), (2, 2, 's3://bucket/12');
delete from gc.tombstones;
truncate app.part_2;
select results_eq('select pg_temp.tombstones()', pg_temp.paths(12),
    'after the review, a partition has its own trigger');
delete from app.part;
select gc.untrack('part');


-- Expressions that raise.
create table app.picture (id integer primary key, path text, label text, bytes text);
select count(*) from gc.track('app.picture', url => $$'s3://pictures/' || path::integer$$,
    label => '(1 / length(label))::text', size => 'bytes::bigint', condition => 'false') \g /dev/null
select pg_temp.review();
delete from gc.tombstones;
select lives_ok($$insert into app.picture values (1, '1', '', '1'), (2, '2', 'x', 'many'),
    (3, 'three', 'x', '3'), (4, '4', 'x', '4'), (5, 'five', 'x', '5')$$,
    'rows whose url, label or size raise can be inserted');
select is((select count(*) from gc.picture_review_queue), 5::bigint, 'they are queued all the same');
select lives_ok($$update app.picture set label = ''$$, 'they can be updated');
select lives_ok($$update app.picture set label = 'x' where id <> 1$$, 'and back');
select lives_ok('delete from app.picture where id < 4', 'and deleted');
select lives_ok('truncate app.picture', 'and truncated');
select pg_temp.review();
select bag_eq('select key, url, label, size from gc.tombstones', $$values
    ('1', 's3://pictures/1', null, null::bigint), ('2', 's3://pictures/2', null, null),
    ('4', 's3://pictures/4', '1', 4),
    -- Once more from each of the two updates.
    ('1', 's3://pictures/1', null, null), ('2', 's3://pictures/2', null, null),
    ('4', 's3://pictures/4', '1', 4), ('2', 's3://pictures/2', null, null),
    ('4', 's3://pictures/4', null, null)$$,
    'a label or a size that raises is null in the tombstone');
select set_eq($$select content ->> 'id' from gc.unread_rows$$, array['3', '5'],
    'rows whose url raises are kept');
select matches(pg_temp.why('picture'), 'cannot be worked out: .*(three|five)',
    'gc.status() says why');
select set_eq('select failures, due_at > now() from gc.unread_rows', $$values (1, true)$$,
    'they back off');
select pg_temp.review();
select set_eq('select failures from gc.unread_rows', array[1], 'and are not tried before their time');
select is((select count(*) from gc.claim('worker')), 3::bigint, 'the others are handed out, each once');
select gc.untrack('picture');


-- An insert into a changed table, while a worker has its object.
create function pg_temp.lease(name text)
    returns void
    language plpgsql
as $$
begin
    delete from gc.tombstones;
    execute format('delete from app.%I where id = 1', name);
    perform gc.claim('worker');
    if not exists (select from gc.tombstones as t where t.worker = 'worker') then
        raise 'nothing was handed out';
    end if;
end;
$$;
select pg_temp.again();
select pg_temp.lease('file');
alter table app.file alter column path type varchar(200);
select is(pg_temp.error_of($$insert into app.file values (1, 's3://bucket/1')$$), 'ZG001',
    'when a column has got another type, a row whose object is being deleted is still refused');
select is(pg_temp.error_of($$update app.file set path = 's3://bucket/1' where id = 2$$), 'ZG001',
    'so is an update');
select is(pg_temp.error_of($$insert into app.file values (4, 's3://bucket/4')$$), null,
    'a row with another object is accepted');
alter table app.file rename to document;
select is(pg_temp.error_of($$insert into app.document values (1, 's3://bucket/1')$$), 'ZG001',
    'when the table has another name, such a row is refused as well');
select pg_temp.review();
select is(pg_temp.error_of($$insert into app.document values (1, 's3://bucket/1')$$), 'ZG001',
    'and by the code that a review has made for it');
update gc.tombstones set due_at = clock_timestamp() where worker is not null;
select is(pg_temp.error_of($$insert into app.document values (1, 's3://bucket/1')$$), null,
    'it is accepted when the lease is over');

select pg_temp.again();
select pg_temp.lease('file');
alter table app.file rename column path to place;
select is(pg_temp.error_of($$insert into app.file values (4, 's3://bucket/4')$$), 'ZG001',
    'when the column is gone, every row is refused while anything is being deleted');
select is(pg_temp.error_of($$update app.file set place = '' where id = 2$$), 'ZG001',
    'so is an update');
select is(pg_temp.error_of('delete from app.file where id = 2'), null, 'a delete is not');
update gc.tombstones set due_at = clock_timestamp() where worker is not null;
select is(pg_temp.error_of($$insert into app.file values (4, 's3://bucket/4')$$), null,
    'rows are accepted when nothing is');
select pg_temp.review();
select is_empty($$select id from gc.claim('worker')$$,
    'and nothing is handed out while nobody can tell which objects the rows have');


-- The wait of another collection.
select pg_temp.again();
create table app.loan (id integer primary key, path text);
select count(*) from gc.track('app.loan', url => 'path', condition => 'false', undo => '14 days')
\g /dev/null
select pg_temp.review();
delete from gc.tombstones;
insert into app.loan values (1, 's3://bucket/20');
delete from app.loan;
select is_empty($$select id from gc.claim('worker')$$, 'an object can be got back for 14 days');
insert into app.file values (20, 's3://bucket/20');
delete from app.file where id = 20;
select is_empty($$select id from gc.claim('worker')$$,
    'a row of another collection that had the object and went does not shorten that');
insert into app.file values (20, 's3://bucket/20');
select is_empty($$select id from gc.claim('worker')$$, 'nor does one that has it');
delete from app.file where id = 20;
select is_empty($$select id from gc.claim('worker')$$, 'and goes');
select results_eq('select url, due_at from gc.tombstones',
    $$values ('s3://bucket/20', now() + interval '14 days')$$, 'the longest wait counts');
update gc.tombstones set due_at = now();
select is((select count(*) from gc.claim('worker')), 1::bigint, 'when it is over, it is handed out');
select gc.untrack('loan');


-- Settings of a session change nothing.
create table app."Odd" (id bytea primary key, "the path" text);
select count(*) from gc.track('app."Odd"', name => 'odd',
    url => $$'s3://odd\n\\/' || encode(id, 'hex') || "the path"$$, size => 'length(id)',
    condition => 'false') \g /dev/null
select pg_temp.review();
create function pg_temp.odd_rows()
    returns text[]
    language plpgsql
as $$
begin
    delete from gc.tombstones;
    insert into app."Odd" values ('\x00ff', '\'), ('\x5c', '\\'), ('\x01', 'é');
    delete from app."Odd" where id > '\x00ff' and id <> '\x5c';
    update app."Odd" set "the path" = "the path" || '/' where id = '\x5c';
    truncate app."Odd";
    return array(select row(t.key, t.url, t.size)::text from gc.tombstones as t order by t.url);
end;
$$;
create function pg_temp.hostile(on_purpose boolean)
    returns void
    language plpgsql
as $$
begin
    perform set_config('quote_all_identifiers', case when on_purpose then 'on' else 'off' end, true);
    perform set_config('bytea_output', case when on_purpose then 'escape' else 'hex' end, true);
    perform set_config('escape_string_warning', 'off', true);
    perform set_config('standard_conforming_strings',
        case when on_purpose then 'off' else 'on' end, true);
end;
$$;
create temporary table friendly as select pg_temp.odd_rows() as found;
select is((select cardinality(found) from friendly), 4, 'four objects lose their row');
select ok((select bool_and(starts_with(url, 's3://odd\n\\/')) from gc.tombstones),
    'urls have their backslashes');
-- Another session would make plans of its own: so does this one.
discard plans;
select pg_temp.hostile(true);
select is(pg_temp.odd_rows(), (select found from friendly),
    'under hostile settings, the same statements leave the same tombstones');
select is(pg_temp.unread(), 0::bigint, 'nothing had to be kept whole');
update gc.tombstones set wait_for = '1' where worker is null;
select is((select count(*) from gc.claim('worker')), 4::bigint, 'all of them are handed out');
select is(pg_temp.error_of($$insert into app."Odd" values ('\\x5c', '\\\\')$$), 'ZG001',
    'an insert of what a worker has is refused');
select is(pg_temp.error_of($$insert into app."Odd" values ('\\x5d', '')$$), null,
    'an insert of something else is not');
select pg_temp.review();
select is(pg_temp.why('odd'), null, 'a review finds nothing changed');
select count(*) from gc.track('app."Odd"', name => 'odd',
    url => $$'s3://odd\n\\/' || encode(id, 'hex') || "the path"$$, size => 'length(id)',
    condition => 'false') \g /dev/null
delete from app."Odd";
select pg_temp.hostile(false);
select is(pg_temp.odd_rows(), (select found from friendly),
    'a collection that was tracked under them leaves the same tombstones, too');
select gc.untrack('odd');

-- Rows that are kept whole, and columns that get other names.
create table app.kept (id integer primary key, path text, version text);
select from gc.track('app.kept', url => 'path', generation => 'version', condition => 'false')
\g /dev/null
insert into app.kept values (1, 'gs://k/1', 'v1'), (2, 'gs://k/2', 'v2');
alter table app.kept alter path type varchar(100);
delete from app.kept where id = 1;
select is((select count(*) from gc.unread_rows), 1::bigint, 'a row is kept whole');
alter table app.kept rename path to place;
select from gc.track('app.kept', url => 'place', generation => 'version', condition => 'false')
\g /dev/null
select pg_temp.review();
select results_eq('select url, generation from gc.tombstones', $$values ('gs://k/1', 'v1')$$,
    'its object is found although the column has another name since');
delete from gc.tombstones;
alter table app.kept alter place type text;
delete from app.kept where id = 2;
alter table app.kept add column address text;
select from gc.track('app.kept', url => 'address', generation => 'version', condition => 'false')
\g /dev/null
select pg_temp.review();
select is_empty('select from gc.tombstones', 'a row from before there was the column has no url');
select results_eq('select content ->> ''place'', last_error from gc.unread_rows',
    $$values ('gs://k/2', 'the row that went does not have all of the columns {address,version}')$$,
    'and stays, with the reason, instead of being forgotten');
select from gc.track('app.kept', url => 'place', generation => 'version', condition => 'false')
\g /dev/null
update gc.unread_rows set due_at = now();
select pg_temp.review();
select results_eq('select url, generation from gc.tombstones', $$values ('gs://k/2', 'v2')$$,
    'until the definition fits it');
select is_empty('select from gc.unread_rows', 'nothing is left then');
delete from gc.tombstones;
update app.kept set id = id;
insert into gc.unread_rows (collection, content, relation, columns)
values ('kept', '{"id": 3, "place": "gs://k/3", "version": "v"}', 'app.kept'::regclass,
    '{"id": 1, "place": 3, "version": 2}');
select pg_temp.review();
select results_eq('select url, generation from gc.tombstones', $$values ('gs://k/3', 'v')$$,
    'in a restored table, where columns have other numbers, their names count');
delete from gc.tombstones;
select gc.untrack('kept');

select * from finish();
rollback;
