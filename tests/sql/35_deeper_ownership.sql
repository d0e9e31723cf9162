-- What is owned may own in its turn, and what refers to an owned row that has the collection's own
-- key keeps the collection's row. Pulp's content is collected completely that way.
begin;
select plan(63);
\ir ../shapes/pulp.sql

set local client_min_messages = error;
update gc.settings set undo = '0', jitter = '0', max_rows = 100000;

create schema app;
-- Reviews until nothing is left to do, and says what was deleted and what failed.
create function app.review(name text, rounds integer default 20) returns text
    language plpgsql as $$
declare
    deleted integer := 0;
    failed integer := 0;
    r record;
begin
    for i in 1 .. rounds loop
        execute format('update gc.%I set review_after = now()', name || '_review_queue');
        select o.* into r from gc.review(10000) as o where o.collection = name;
        deleted := deleted + r.deleted;
        failed := failed + r.failed;
        exit when r.reviewed = 0;
    end loop;
    return format('%s deleted, %s failed', deleted, failed);
end;
$$;

-- Three levels, each with its own key.
create table app.box (id integer primary key, condemned boolean not null default false);
create table app.item (id integer primary key, box_id integer references app.box, note text);
create table app.tool (id integer primary key, item_id integer references app.item);
create table app.mark (id integer primary key, tool_id integer references app.tool, other integer);
create index on app.item (box_id);
create index on app.tool (item_id);
create index on app.mark (tool_id);

select throws_ok($$select gc.track('app.box', owned => '{tool, mark}')$$, '42704',
    '"tool" does not name one table that refers to "app.box"',
    'what refers to nothing owned cannot be owned');
select results_eq(
    $$select reference, role from gc.track('app.box', condition => 'true',
        owned => '{mark, item, tool}')$$,
    $$values ('app.item(box_id)', 'owned'), ('app.tool(item_id)', 'owned'),
        ('app.mark(tool_id)', 'owned')$$,
    'gc.track resolves names over the whole tree, in any order, and reports them');
select is((select owned from gc.collections where name = 'box'),
    '{app.mark(tool_id),app.item(box_id),app.tool(item_id)}', 'and remembers them in full');

insert into app.box select generate_series(1, 10);
insert into app.item select i, nullif(i % 11, 0) from generate_series(1, 100) as i;
insert into app.tool select i, i % 100 + 1 from generate_series(1, 300) as i;
insert into app.mark select i, i % 300 + 1 from generate_series(1, 900) as i;
create temporary table expected as
select count(distinct i.id) as items, count(distinct t.id) as tools, count(m.id) as marks
from app.item as i
left join app.tool as t on t.item_id = i.id
left join app.mark as m on m.tool_id = t.id
where i.box_id is null;
select is(app.review('box'), '10 deleted, 0 failed', 'owners go with what they own');
select is(row(
        (select count(*) from app.item), (select count(*) from app.tool),
        (select count(*) from app.mark))::text,
    (select row(items, tools, marks)::text from expected),
    'at every level, and nothing else goes');

-- In steps, where a condition says that nobody uses it any more.
insert into app.box values (1);
insert into app.item select i, 1 from generate_series(1001, 1010) as i;
insert into app.tool select i, 1001 + i % 10 from generate_series(1001, 1100) as i;
insert into app.mark select i, 1001 + i % 100 from generate_series(1001, 2000) as i;
update gc.settings set max_rows = 300;
update gc.box_review_queue set review_after = now();
select is(
    (select format('%s %s %s', deleted, busy, failed) from gc.review() where collection = 'box'),
    '0 1 0', 'a row that owns more than there is room for is emptied in steps');
select is(row(
        (select count(*) from app.item where id > 1000),
        (select count(*) from app.tool where id > 1000),
        (select count(*) from app.mark where id > 1000))::text,
    '(10,100,700)', 'innermost first');
select is(app.review('box'), '1 deleted, 0 failed', 'until it goes');
select is((select count(*) from app.mark where id > 1000), 0::bigint, 'with everything');
update gc.settings set max_rows = 100000;

-- One that is not named is as before: PostgreSQL decides.
select is((select count(*) from gc.track('app.box', condition => 'true', owned => '{item, tool}')),
    2::bigint, 'a level that is not named is not reported');
insert into app.box values (1), (2);
insert into app.item values (2001, 1), (2002, 2);
insert into app.tool values (2001, 2001), (2002, 2002);
insert into app.mark values (2001, 2001);
select is(app.review('box', 1), '1 deleted, 1 failed',
    'where an unnamed foreign key forbids it, that row alone fails');
select is((select array_agg(id) from app.tool where id > 2000), '{2001}', 'and stays whole');
select gc.untrack('box') \g /dev/null

-- No index, no tracking.
drop index app.mark_tool_id_idx;
select throws_ok($$select gc.track('app.box', owned => '{item, tool, mark}')$$, '42P16',
    'app.mark(tool_id) refers to "app.box" without an index', 'indexes are asked for at each level');
create index on app.mark (tool_id);

-- A table with two foreign keys into what is owned has to be named with its columns.
alter table app.mark add foreign key (other) references app.item;
create index on app.mark (other);
select throws_ok($$select gc.track('app.box', owned => '{item, tool, mark}')$$,
    '42704', '"mark" does not name one table that refers to "app.box"',
    'a table is not enough where two of its foreign keys refer to what is owned');
select is((select count(*) from gc.track('app.box', owned => '{item, tool, mark(tool_id)}')),
    3::bigint, 'columns say which is meant');
alter table app.mark drop constraint mark_other_fkey;
select gc.untrack('box') \g /dev/null

-- A table that is named by itself means its foreign keys into the collection, if it has any.
alter table app.tool add column box_id integer references app.box;
create index on app.tool (box_id);
select results_eq(
    $$select reference, role from gc.track('app.box', owned => '{item, tool}') order by 1$$,
    $$values ('app.item(box_id)', 'owned'), ('app.tool(box_id)', 'owned')$$,
    'and not those into what the collection owns');
select gc.untrack('box') \g /dev/null
alter table app.tool drop column box_id;
drop table app.mark, app.tool, app.item, app.box;

-- Circles end.
create table app.a (id integer primary key);
create table app.b (id integer primary key, a_id integer references app.a);
create table app.c (id integer primary key, b_id integer references app.b);
alter table app.b add column c_id integer references app.c;
create index on app.b (a_id);
create index on app.b (c_id);
create index on app.c (b_id);
select results_eq(
    $$select reference, role from gc.track('app.a', condition => 'true',
        owned => '{b(a_id), c, b(c_id)}')$$,
    $$values ('app.b(a_id)', 'owned'), ('app.c(b_id)', 'owned'), ('app.b(c_id)', 'owned')$$,
    'tables that own each other are followed once');
insert into app.a values (1);
insert into app.b values (1, 1);
insert into app.c values (1, 1);
insert into app.b values (2, null, 1);
select is(app.review('a'), '1 deleted, 0 failed', 'and go');
select is((select count(*) from app.b) + (select count(*) from app.c), 0::bigint, 'all of them');
select gc.untrack('a') \g /dev/null
drop table app.a, app.b, app.c cascade;

-- Multi-table inheritance.
create table app.content (id integer primary key, note text);
create table app.manifest (content_id integer primary key references app.content);
create table app.signed (manifest_id integer primary key references app.manifest, by text);
create table app.tag (name text primary key, manifest_id integer references app.manifest);
create table app.seal (id integer primary key,
    signed_id integer references app.signed on delete cascade);
create index on app.tag (manifest_id);
create index on app.seal (signed_id);
select results_eq(
    $$select reference, role from gc.track('app.content')$$,
    $$values ('app.manifest(content_id)', 'keeps')$$,
    'a child that is not owned keeps its parent');
select results_eq(
    $$select reference, role from gc.track('app.content', owned => '{manifest}')$$,
    $$values ('app.manifest(content_id)', 'owned'), ('app.signed(manifest_id)', 'keeps'),
        ('app.tag(manifest_id)', 'keeps')$$,
    'what refers to a child that is owned keeps the parent');
select results_eq(
    $$select reference, role from gc.track('app.content', owned => '{manifest, signed}')$$,
    $$values ('app.manifest(content_id)', 'owned'), ('app.signed(manifest_id)', 'owned'),
        ('app.tag(manifest_id)', 'keeps'), ('app.seal(signed_id)', 'keeps')$$,
    'also the child of a child, whatever ON DELETE says');
insert into app.content select generate_series(1, 5);
insert into app.manifest select generate_series(1, 4);
insert into app.signed values (2), (3);
insert into app.tag values ('one', 1);
insert into app.seal values (30, 3);
select is(app.review('content'), '3 deleted, 0 failed', 'what nothing refers to goes');
select is((select array_agg(id order by id) from app.content), '{1,3}',
    'with its child, and the child of that; what a tag or a seal refers to stays');
delete from app.tag;
select is((select array_agg(id || ' ' || event) from gc.content_review_queue), '{"1 tag_delete"}',
    'a tag that goes queues the parent');
update app.seal set signed_id = null;
select is((select array_agg(id || ' ' || event order by id) from gc.content_review_queue),
    '{"1 tag_delete","3 seal_update"}', 'so does one that moves');
insert into app.tag values ('three', 3);
select is(app.review('content'), '1 deleted, 0 failed', 'a tag that came since keeps');
select is((select keeping @> '[{"place": "app.tag(manifest_id)"}]' from gc.collections
    where name = 'content'), true, 'such a keeper is remembered');
alter table app.tag drop constraint tag_manifest_id_fkey;
select is((select count(*) from gc.review()), 1::bigint, 'when it is lost');
select matches((select problem from gc.collections where name = 'content'),
    'app.tag[(]manifest_id[)] no longer refers to', 'the collection is blocked');
alter table app.tag add foreign key (manifest_id) references app.manifest;
alter table app.tag disable trigger all;
select is((select count(*) from gc.review()), 1::bigint, 'when it locks nothing');
select matches((select problem from gc.collections where name = 'content'),
    'app.tag[(]manifest_id[)] refers to .* without a lock', 'it is blocked as well');
alter table app.tag enable trigger all;
create table app.newer (id integer primary key, manifest_id integer references app.manifest);
create index on app.newer (manifest_id);
insert into app.content values (6);
insert into app.manifest values (6);
insert into app.newer values (1, 6);
select is(app.review('content'), '0 deleted, 0 failed', 'a foreign key that is new keeps at once');
select is((select problem from gc.collections where name = 'content'), null,
    'and nothing is blocked any more');
alter table app.tag owner to pg_monitor;
select is((select count(*) from gc.review()), 1::bigint, 'a table of somebody else');
select matches((select problem from gc.collections where name = 'content'),
    'table app.tag belongs to pg_monitor', 'that refers to a child has to be trusted');
select gc.untrack('content') \g /dev/null

-- Another type, or another key, is no child: its rows are owned, and PostgreSQL decides.
create table app.wide (content_id bigint primary key references app.content);
create table app.wide_tag (name text primary key, wide_id bigint references app.wide);
create index on app.wide_tag (wide_id);
drop table app.newer, app.seal, app.signed, app.tag, app.manifest;
select results_eq($$select reference, role from gc.track('app.content', owned => '{wide}',
        condition => 'true')$$,
    $$values ('app.wide(content_id)', 'owned')$$, 'a key of another type is not the parent''s');
select gc.untrack('content') \g /dev/null

-- What refers to an owned row with RESTRICT, and has the collection's key in its foreign key, keeps.
create table app.file (id integer primary key);
create table app.share (team integer, file_id integer references app.file,
    primary key (team, file_id));
create table app.page (id integer primary key, team integer, picture integer,
    foreign key (team, picture) references app.share on delete restrict);
create table app.seen (team integer, file_id integer,
    foreign key (team, file_id) references app.share on delete cascade);
create index on app.share (file_id);
create index on app.page (picture);
create index on app.seen (file_id);
select results_eq(
    $$select reference, role from gc.track('app.file', owned => '{share}')$$,
    $$values ('app.share(file_id)', 'owned'), ('app.page(team, picture)', 'keeps')$$,
    'with RESTRICT it keeps the owner; what goes along does not');
insert into app.file select generate_series(1, 4);
insert into app.share select t, f from generate_series(1, 2) as t, generate_series(1, 3) as f;
insert into app.page values (1, 2, 1);
insert into app.seen values (1, 2), (2, 3);
select is(app.review('file'), '3 deleted, 0 failed', 'a file that no page shows goes');
select is((select array_agg(row(team, file_id)::text order by team) from app.share),
    '{"(1,1)","(2,1)"}', 'with its shares; of one that a page shows, all of them stay');
select is((select count(*) from app.seen), 0::bigint, 'and what goes along has gone');
update app.page set team = 1;
select is_empty('select from gc.file_review_queue', 'a page that takes another share still keeps it');
delete from app.page;
select is((select array_agg(id || ' ' || event) from gc.file_review_queue), '{"1 page_delete"}',
    'a page that goes queues the file');
select is(app.review('file'), '1 deleted, 0 failed', 'which goes then');
alter table app.page drop constraint page_team_picture_fkey;
select is((select count(*) from gc.review()), 1::bigint, 'when such a keeper is lost');
select matches((select problem from gc.collections where name = 'file'),
    'app.page[(]team, picture[)] no longer refers to', 'the collection is blocked');
select gc.untrack('file') \g /dev/null
alter table app.page add foreign key (team, picture) references app.share;
create index on app.page (team, picture);
select results_eq(
    $$select reference, role from gc.track('app.file', owned => '{share}')$$,
    $$values ('app.share(file_id)', 'owned')$$, 'without RESTRICT, PostgreSQL decides');
select gc.untrack('file') \g /dev/null
select results_eq(
    $$select reference, role from gc.track('app.file', owned => '{share, page}')$$,
    $$values ('app.share(file_id)', 'owned'), ('app.page(team, picture)', 'owned')$$,
    'one that is owned goes along');
select gc.untrack('file') \g /dev/null
alter table app.page add column file_id integer references app.file;
create index on app.page (file_id);
select results_eq(
    $$select reference, role from gc.track('app.file', owned => '{share, page}') order by 1$$,
    $$values ('app.page(file_id)', 'owned'), ('app.share(file_id)', 'owned')$$,
    'also where it is owned by another foreign key');
select gc.untrack('file') \g /dev/null
drop table app.page, app.seen, app.share;

-- The same in partitions: the owned row tells in which one to look.
create table app.share (team integer, file_id integer references app.file,
    primary key (team, file_id)) partition by hash (file_id);
create table app.page (id integer, team integer, picture integer, primary key (team, id),
    foreign key (team, picture) references app.share on delete restrict) partition by hash (team);
do $$
begin
    for n in 0 .. 3 loop
        execute format('create table app.share_%s partition of app.share '
            'for values with (modulus 4, remainder %s)', n, n);
        execute format('create table app.page_%s partition of app.page '
            'for values with (modulus 4, remainder %s)', n, n);
    end loop;
end
$$;
create index on app.share (file_id);
create index on app.page (picture);
select results_eq(
    $$select reference, role from gc.track('app.file', owned => '{share}')$$,
    $$values ('app.share(file_id)', 'owned'), ('app.page(team, picture)', 'keeps')$$,
    'partitions change nothing of that');
select is((select links from gc.collections where name = 'file'), '{}', 'and need no links');
insert into app.file select generate_series(1, 40);
insert into app.share select t, f from generate_series(1, 9) as t, generate_series(1, 39) as f;
insert into app.page select f, 1 + f % 9, f from generate_series(1, 20) as f;
select is(app.review('file'), '20 deleted, 0 failed', 'what no page shows goes');
select is((select count(*) from app.file join app.page on picture = file.id), 20::bigint,
    'and all that pages show stays');
delete from app.page where id > 10;
select is(app.review('file'), '10 deleted, 0 failed', 'until they show it no longer');
select gc.untrack('file') \g /dev/null

-- Pulp: random data, and what an independent query says.
create temporary table numbers as
select i as n, md5('content' || i)::uuid as id,
    case when i <= 150 then 'tag' when i <= 400 then 'manifest' else 'blob' end as kind
from generate_series(1, 1000) as i;
select setseed(0.14);
insert into pulp.core_content (pulp_id, pulp_type) select id, 'container.' || kind from numbers;
insert into pulp.core_repository values (md5('repository')::uuid, 'one');
insert into pulp.core_remote values (md5('remote')::uuid, 'one');
insert into pulp.container_blob select id, 'blob' || n from numbers where kind = 'blob';
insert into pulp.container_manifest
select id, 'manifest' || n, 'application/json', case when random() < 0.7 then
    md5('content' || (401 + floor(random() * 600))::int)::uuid end
from numbers where kind = 'manifest';
insert into pulp.container_tag
select id, 'tag' || n, md5('content' || (151 + floor(random() * 250))::int)::uuid
from numbers where kind = 'tag';
insert into pulp.container_blobmanifest (manifest_id, manifest_blob_id)
select m.id, md5('content' || (401 + floor(random() * 600))::int)::uuid
from numbers as m cross join generate_series(1, 4) where m.kind = 'manifest'
on conflict do nothing;
-- A list is made of manifests with higher numbers, so that there are no circles.
insert into pulp.container_manifestlistmanifest (architecture, image_manifest_id, manifest_list_id)
select 'x', md5('content' || (n + 1 + floor(random() * (400 - n)))::int)::uuid, id
from numbers cross join generate_series(1, 3) where n between 151 and 200
on conflict do nothing;
insert into pulp.core_artifact
select md5('artifact' || n)::uuid, 'artifact/' || n, n, 'sha' || n from numbers;
insert into pulp.core_contentartifact
select md5('ca' || n)::uuid, 'path', md5('artifact' || n)::uuid, id from numbers
where kind <> 'tag';
insert into pulp.core_remoteartifact
select md5('ra' || n)::uuid, 'https://x/' || n, md5('ca' || n)::uuid, md5('remote')::uuid
from numbers where kind <> 'tag' and random() < 0.6;
insert into pulp.core_repositorycontent
select md5('rc' || n)::uuid, id, md5('repository')::uuid from numbers where random() < 0.25;

create function app.alive() returns setof uuid language sql stable as $$
    with recursive alive(id) as (
        select content_id from pulp.core_repositorycontent
        union
        select e.child from alive as a
        join (
            select content_ptr_id, tagged_manifest_id from pulp.container_tag
            union all
            select content_ptr_id, config_blob_id from pulp.container_manifest
            union all
            select manifest_id, manifest_blob_id from pulp.container_blobmanifest
            union all
            select manifest_list_id, image_manifest_id from pulp.container_manifestlistmanifest
        ) as e(parent, child) on e.parent = a.id
        where e.child is not null
    )
    select id from alive
$$;
create temporary table alive as select id from app.alive() as id;
create temporary table everything as select pulp_id as id from pulp.core_content;

select is((select count(*) from gc.track('pulp.core_artifact', url => '''s3://pulp/'' || file')),
    1::bigint, 'artifacts are a collection');
select results_eq(
    $$select reference, role from gc.track('pulp.core_content', owned => array[
        'core_contentartifact', 'core_remoteartifact', 'container_tag', 'container_manifest',
        'container_blob',
        'container_blobmanifest(manifest_id)',
        'container_manifestlistmanifest(manifest_list_id)']) order by role, reference$$,
    $$values
        ('pulp.container_blobmanifest(manifest_blob_id)', 'keeps'),
        ('pulp.container_manifest(config_blob_id)', 'keeps'),
        ('pulp.container_manifestlistmanifest(image_manifest_id)', 'keeps'),
        ('pulp.container_tag(tagged_manifest_id)', 'keeps'),
        ('pulp.core_repositorycontent(content_id)', 'keeps'),
        ('pulp.container_blob(content_ptr_id)', 'owned'),
        ('pulp.container_blobmanifest(manifest_id)', 'owned'),
        ('pulp.container_manifest(content_ptr_id)', 'owned'),
        ('pulp.container_manifestlistmanifest(manifest_list_id)', 'owned'),
        ('pulp.container_tag(content_ptr_id)', 'owned'),
        ('pulp.core_contentartifact(content_id)', 'owned'),
        ('pulp.core_remoteartifact(content_artifact_id)', 'owned')$$,
    'Pulp''s content has references at two levels');
do $$
begin
    while gc.scan('core_content', 1000) > 0 loop null; end loop;
end
$$;
select cmp_ok((select count(*) from everything) - (select count(*) from alive), '>', 300::bigint,
    'hundreds of its rows are garbage');
select is(app.review('core_content'),
    (select count(*) || ' deleted, 0 failed' from everything where id not in (table alive)),
    'all of it is collected, and none fails');
select results_eq('select pulp_id from pulp.core_content order by 1',
    'select id from alive order by 1', 'what is left is exactly what an anti-join says');
select is((select count(*) from pulp.core_contentartifact where content_id not in (table alive))
    + (select count(*) from pulp.core_remoteartifact as r
        where content_artifact_id not in (select pulp_id from pulp.core_contentartifact)),
    0::bigint, 'nothing that it owned is left');
select is(app.review('core_artifact'),
    (select count(*) || ' deleted, 0 failed' from numbers
        where kind <> 'tag' and id not in (table alive)),
    'and its artifacts follow');

-- Later: half of what is left leaves the repository.
delete from pulp.core_repositorycontent where random() < 0.5;
truncate alive;
insert into alive select app.alive();
select matches(app.review('core_content'), '^[1-9][0-9]+ deleted, 0 failed$', 'content that leaves');
select results_eq('select pulp_id from pulp.core_content order by 1',
    'select id from alive order by 1', 'goes, with all that only it kept');

select * from finish();
rollback;
