-- A foreign key with RESTRICT into an owned row, with the collection's key among its columns, keeps
-- the owner. All of its columns count: where one of them is null, it refers to nothing.
begin;
select plan(43);

set local client_min_messages = error;
update gc.settings set undo = '0', jitter = '0', brake_share = 1;

create schema app;
-- Reviews until nothing is left to do, and says what is left.
create function app.left_after_review() returns integer[] language plpgsql as $$
begin
    for i in 1 .. 5 loop
        update gc.file_review_queue set review_after = now();
        perform gc.review();
    end loop;
    return array(select id from app.file order by id);
end;
$$;
create function app.why() returns text language sql as $$
    select problem from gc.collections where name = 'file'
$$;

create table app.file (id integer primary key);
create table app.share (team integer, file_id integer references app.file,
    primary key (team, file_id));
create index on app.share (file_id);
-- Wider than the key: what refers to nothing may have a value that is no key.
create table app.page (id integer primary key, team integer, picture bigint,
    foreign key (team, picture) references app.share on delete restrict);
create index on app.page (picture);
select count(*) from gc.track('app.file', owned => '{share}') \g /dev/null

insert into app.file select generate_series(1, 5);
insert into app.share select t, f from generate_series(1, 2) as t, generate_series(1, 4) as f;
insert into app.page values (1, null, 1), (2, 2, 2), (3, 1, 3), (4, 1, null);
select is(app.left_after_review(), '{2,3}',
    'a page with a null in another column of its foreign key shows no file');
update app.page set team = 1 where id = 2;
select is_empty('select from gc.file_review_queue',
    'a page that takes another share still keeps it');
update app.page set team = null where id = 2;
select is((select array_agg(id || ' ' || event) from gc.file_review_queue), '{"2 page_update"}',
    'a column that becomes null queues the file');
select is(app.left_after_review(), '{3}', 'which goes then');
update app.page set team = null where id = 3;
update app.page set team = 2 where id = 3;
select is(app.left_after_review(), '{3}', 'but not if the column has got a value since');

-- One statement, several pages.
insert into app.page values (5, null, 3);
update app.page set team = case id when 5 then 1 end where id in (3, 5);
select is_empty('select from gc.file_review_queue',
    'a file that another page shows after the same statement is not queued');
update app.page set picture = 4 where id = 1;
delete from app.page where id = 1;
select is_empty('select from gc.file_review_queue', 'nor one to which nothing referred');

select lives_ok('insert into app.page values (6, null, 1000000000000)',
    'what refers to nothing may have a value that no key can have');
select lives_ok('update app.page set picture = picture + 1 where id = 6', 'it can be changed');
select lives_ok('delete from app.page where id = 6', 'and deleted');

-- The trigger reads all columns, so it notices when one of them is not what it was.
alter table app.page rename team to crew;
select lives_ok('update app.page set crew = null where id = 5',
    'a column that was renamed a moment ago fails no statement');
select is(app.left_after_review(), '{}', 'what was missed meanwhile is found by a scan');

-- Another action than RESTRICT is a keeper less.
insert into app.file values (1);
insert into app.share values (1, 1);
insert into app.page values (7, 1, 1);
alter table app.page drop constraint page_team_picture_fkey,
    add constraint again foreign key (crew, picture) references app.share;
select is(app.left_after_review(), '{1}', 'with NO ACTION in place of RESTRICT nothing goes');
select matches(app.why(), 'app.page[(]crew, picture[)] no longer refers to', 'and it is said why');
alter table app.page drop constraint again,
    add constraint again foreign key (crew, picture) references app.share on delete cascade;
select is(app.left_after_review(), '{1}', 'nor with CASCADE');
alter table app.page drop constraint again,
    add constraint again foreign key (crew, picture) references app.share match full
    on delete restrict not valid;
select is(app.left_after_review(), '{1}', 'with RESTRICT it keeps again, also with MATCH FULL');
select is(app.why(), null, 'and nothing is blocked');
set local statement_timeout = '60s';
select throws_ok($$select gc.track('app.file', owned => '{share, page(picture)}')$$, '42704',
    '"page(picture)" does not name one table that refers to "app.file"',
    'it is not named by the columns of the key alone');
reset statement_timeout;
create index on app.page (crew, picture);
select results_eq(
    $$select reference, role from gc.track('app.file',
        owned => array['share', 'page(crew, picture)'])$$,
    $$values ('app.share(file_id)', 'owned'), ('app.page(crew, picture)', 'owned')$$,
    'but by all of its columns, and goes along then');
select count(*) from gc.track('app.file', owned => '{share}') \g /dev/null
delete from gc.scan_requests;
truncate app.page;
select is((select count(*) from gc.scan_requests), 1::bigint, 'TRUNCATE asks for a scan');
select gc.untrack('file') \g /dev/null
drop table app.page, app.share;
truncate app.file;

-- The same column twice.
create table app.share (team integer, file_id integer references app.file,
    primary key (team, file_id));
create index on app.share (file_id);
create table app.page (id integer, mine integer,
    foreign key (mine, mine) references app.share on delete restrict);
create index on app.page (mine);
select count(*) from gc.track('app.file', owned => '{share}') \g /dev/null
insert into app.file values (1), (2);
insert into app.share values (1, 1), (2, 2);
insert into app.page values (1, 1), (2, 2);
select lives_ok('delete from app.page where id = 1', 'a foreign key may have a column twice');
select lives_ok('update app.page set mine = null', 'in every statement');
select is(app.left_after_review(), '{}', 'and what it kept goes');
select gc.untrack('file') \g /dev/null
drop table app.page, app.share;

-- Also where it refers to the collection itself.
create table app.pair (a integer, b integer, primary key (a, b));
create table app.equal (id integer, mine integer, foreign key (mine, mine) references app.pair);
create index on app.equal (mine);
select count(*) from gc.track('app.pair') \g /dev/null
insert into app.pair values (1, 1), (2, 2);
insert into app.equal values (1, 1), (2, 2);
delete from gc.pair_review_queue;
select lives_ok($$update app.equal set mine = null where id = 1; delete from app.equal$$,
    'so may one to the collection');
select is((select array_agg(a || ' ' || b || ' ' || event order by a) from gc.pair_review_queue),
    '{"1 1 equal_update","2 2 equal_delete"}', 'whose rows are queued');
select gc.untrack('pair') \g /dev/null

-- In partitions: by a column of the foreign key, which the owned row tells, and by another one.
create table app.share (team integer, file_id integer references app.file,
    primary key (team, file_id)) partition by hash (file_id);
create table app.page (id integer, team integer, picture bigint,
    foreign key (team, picture) references app.share on delete restrict) partition by hash (team);
create table app.note (id integer, team integer, picture integer,
    foreign key (team, picture) references app.share on delete restrict) partition by hash (id);
do $$
begin
    for n in 0 .. 3 loop
        execute format('create table app.share_%s partition of app.share '
            'for values with (modulus 4, remainder %s)', n, n);
        execute format('create table app.page_%s partition of app.page '
            'for values with (modulus 4, remainder %s)', n, n);
        execute format('create table app.note_%s partition of app.note '
            'for values with (modulus 4, remainder %s)', n, n);
    end loop;
end
$$;
create index on app.share (file_id);
create index on app.page (picture);
create index on app.note (picture);
select count(*) from gc.track('app.file', owned => '{share}') \g /dev/null
select is((select links from gc.collections where name = 'file'), '{file_note_links}',
    'only those that the owned row does not tell need links');
insert into app.file select generate_series(1, 9);
insert into app.share select t, f from generate_series(1, 2) as t, generate_series(1, 8) as f;
insert into app.page values (1, 1, 1), (2, null, 2), (3, 2, null);
insert into app.note values (1, 1, 5), (2, null, 6), (3, 2, null);
select is(app.left_after_review(), '{1,5}', 'in partitions, a null refers to nothing as well');
update app.page set team = null where id = 1;
update app.note set team = null where id = 1;
-- A row that an update moves to another partition may be queued twice.
select is((select array_agg(distinct id || ' ' || event) from gc.file_review_queue),
    '{"1 page_update","5 note_update"}', 'a column that becomes null queues the file');
select is(app.left_after_review(), '{}', 'which goes then');
select lives_ok('insert into app.note values (4, null, 1000000000)',
    'what refers to nothing has no link');
select lives_ok('update app.note set id = 5, picture = picture + 1 where id = 4', 'when it moves');
select lives_ok('delete from app.note where id = 5', 'or goes');
select gc.untrack('file') \g /dev/null
drop table app.page, app.note, app.share;
truncate app.file;

-- Into a partition of what is owned, whose columns are in another order.
create table app.share (team integer, file_id integer references app.file,
    primary key (team, file_id)) partition by list (team);
create table app.share_1 (file_id integer not null, team integer not null);
alter table app.share attach partition app.share_1 for values in (1);
create table app.share_2 partition of app.share for values in (2);
create table app.page (id integer primary key, team integer, picture integer,
    foreign key (team, picture) references app.share_1 (team, file_id) on delete restrict);
create table app.cover (file_id integer primary key references app.file);
create index on app.share (file_id);
create index on app.page (picture);
select results_eq(
    $$select reference, role from gc.track('app.file', owned => '{share}')$$,
    $$values ('app.cover(file_id)', 'keeps'), ('app.share(file_id)', 'owned'),
        ('app.page(team, picture)', 'keeps')$$,
    'a foreign key into a partition of what is owned keeps');
select is((select keeping @> '[{"place": "app.page(team, picture)"}]' from gc.collections
    where name = 'file'), true, 'and is remembered like others');
insert into app.file select generate_series(1, 4);
insert into app.share select t, f from generate_series(1, 2) as t, generate_series(1, 3) as f;
insert into app.page values (1, 1, 1), (2, 1, 2);
select is(app.left_after_review(), '{1,2}', 'what no page shows goes');
alter table app.page rename picture to image;
delete from app.page where id = 2;
insert into app.file values (5) on conflict do nothing;
select is(app.left_after_review(), '{1}', 'when a column is renamed, the code is made again');
alter table app.page owner to pg_monitor;
insert into app.file values (5) on conflict do nothing;
select is(app.left_after_review(), '{1,5}',
    'where the table belongs to somebody else, nothing goes');
select matches(app.why(), 'table app.page belongs to pg_monitor', 'who has to be trusted');
alter table app.page owner to current_user;
alter table app.page drop constraint page_team_picture_fkey;
select is(app.left_after_review(), '{1,5}', 'when the foreign key is lost, nothing goes');
select matches(app.why(), 'app.page[(]team, image[)] no longer refers to', 'and it is said why');
alter table app.page add foreign key (team, image) references app.share_1 (team, file_id)
    on delete restrict;
select is(app.left_after_review(), '{1}', 'until it is back');
select gc.untrack('file') \g /dev/null
drop table app.page, app.share, app.cover;

-- From a partition of what is owned.
create table app.share (team integer, file_id integer references app.file, parent integer,
    primary key (team, file_id)) partition by list (team);
create table app.share_1 partition of app.share for values in (1, 2);
alter table app.share_1 add foreign key (parent, file_id) references app.share_1 (team, file_id)
    on delete restrict;
create table app.cover (file_id integer primary key references app.file);
create index on app.share (file_id);
select count(*) from gc.track('app.file', owned => '{share}') \g /dev/null
delete from app.file;
insert into app.file values (1), (2);
insert into app.share values (1, 1, null), (2, 1, 1);
insert into app.cover values (2);
select is(app.left_after_review(), '{2}', 'a partition of what is owned keeps no owner');
select gc.untrack('file') \g /dev/null
drop table app.share, app.cover;

-- And into a partition of the collection.
create table app.sheet (id integer primary key) partition by list (id);
create table app.sheet_1 partition of app.sheet for values in (1);
create table app.sheet_2 partition of app.sheet for values in (2);
create table app.page (picture integer references app.sheet_1);
create index on app.page (picture);
select count(*) from gc.track('app.sheet') \g /dev/null
insert into app.sheet values (1), (2);
insert into app.page values (1);
alter table app.page rename picture to image;
update gc.sheet_review_queue set review_after = now();
select is((select format('%s kept, %s deleted, %s failed', kept, deleted, failed) from gc.review()
    where collection = 'sheet'), '1 kept, 1 deleted, 0 failed',
    'a column of a foreign key into a partition of the collection can be renamed');

select * from finish();
rollback;
