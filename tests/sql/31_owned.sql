-- Owned rows: they go with their target, in the order of "owned", in bounded steps.
begin;
select plan(69);

set local client_min_messages = warning;
create schema app;
update gc.settings set jitter = '0', undo = '0';

create function app.review(name text) returns text language plpgsql as $$
begin
    execute format('update gc.%I set review_after = now()', name || '_review_queue');
    return (
        select format('%s kept, %s deleted, %s busy, %s failed', kept, deleted, busy, failed)
        from gc.review() where collection = name
    );
end;
$$;

-- A repository is deleted by its state, and owns all that is in it.
create table app.repositories (
    id int primary key,
    name text,
    state text not null default 'active',
    created_at timestamptz not null default now()
);
create unique index on app.repositories (name) where state <> 'deleting';
create table app.blobs (digest int primary key);
create table app.manifests (
    repo int not null references app.repositories,
    id int not null,
    config int references app.blobs,
    primary key (repo, id)
);
create table app.list_items (
    repo int not null references app.repositories,
    list int not null,
    child int not null,
    primary key (repo, list, child),
    foreign key (repo, list) references app.manifests,
    foreign key (repo, child) references app.manifests
);
create table app.tags (
    repo int not null references app.repositories,
    name text not null,
    manifest int not null,
    primary key (repo, name),
    foreign key (repo, manifest) references app.manifests
)
partition by hash (repo);
create table app.tags_0 partition of app.tags for values with (modulus 2, remainder 0);
create table app.tags_1 partition of app.tags for values with (modulus 2, remainder 1);
create index on app.manifests (config);
create index on app.list_items (repo, child);
create index on app.tags (repo, manifest);

select count(*) as ignored from gc.track('app.blobs', name => 'blob') \gset
select count(*) as ignored from gc.track('app.manifests', name => 'manifest',
    owned => '{"list_items(repo, list)"}') \gset
select results_eq(
    $$select reference, role from gc.track('app.repositories', name => 'repository',
        owned => '{tags(repo), list_items(repo), manifests(repo)}',
        condition => 'state = ''deleting'' or state = ''initial'' '
            'and created_at < now() - interval ''2 minutes''')
        order by reference collate "C"$$,
    $$values ('app.list_items(repo)', 'owned'), ('app.manifests(repo)', 'owned'),
        ('app.tags(repo)', 'owned')$$,
    'references are named in owned by their table and columns');
create function app.rows(repo int) returns bigint language sql as $$
    select (select count(*) from app.tags where tags.repo = $1)
        + (select count(*) from app.list_items where list_items.repo = $1)
        + (select count(*) from app.manifests where manifests.repo = $1)
        + (select count(*) from app.repositories where id = $1)
$$;

insert into app.repositories (id, name) select i, 'r' || i from generate_series(1, 4) as i;
insert into app.repositories (id, name, state, created_at) values
    (8, 'half created', 'initial', now() - interval '121 seconds'),
    (9, 'being created', 'initial', now() - interval '119 seconds');
insert into app.blobs select generate_series(1, 40);
-- In each: 10 manifests, of which 1 is a list of 4 others, and 5 tags. 20 rows with itself.
insert into app.manifests
select repo, id, (repo - 1) * 10 + id
from generate_series(1, 4) as repo, generate_series(1, 10) as id;
insert into app.list_items
select repo, 1, child from generate_series(1, 4) as repo, generate_series(2, 5) as child;
insert into app.tags
select repo, 't' || i, i from generate_series(1, 4) as repo, generate_series(1, 5) as i;
delete from gc.manifest_review_queue;
delete from gc.blob_review_queue;

select is(app.review('repository'), '5 kept, 1 deleted, 0 busy, 0 failed',
    'a repository left half created for 2 minutes is cleaned up, and no other');
update app.repositories set state = 'active' where id = 9;
select is(app.review('repository'), '2 kept, 0 deleted, 0 busy, 0 failed',
    'a repository whose creation ends in time is kept: the entry that waited for its end, too');
update app.repositories set state = 'deleting' where id = 1;
select lives_ok($$insert into app.repositories (id, name) values (10, 'r1')$$,
    'the name of a repository that is being deleted is free at once');
delete from app.repositories where id in (9, 10);
select is(app.review('repository'), '0 kept, 1 deleted, 0 busy, 0 failed',
    'a repository with lists, children and tags goes in one review when it fits');
select is(app.rows(1), 0::bigint, 'with all that it owns, children of lists included');
select is(app.rows(2) + app.rows(3) + app.rows(4), 60::bigint, 'and with nothing of the others');
select is((select count(*) from gc.blob_review_queue where digest <= 10), 10::bigint,
    'what its rows referred to is queued');
select is((select count(*) from gc.deletion_log where collection = 'repository'
    and key in ('1', '8')), 2::bigint, 'what was deleted without an object is logged');

-- Bounded: a repository has 20 rows. The other queues are empty, so it has all the room.
delete from gc.blob_review_queue;
delete from gc.manifest_review_queue;
update gc.settings set max_rows = 12;
update app.repositories set state = 'deleting' where id = 2;
create table app.steps (step int, touched bigint, left_over bigint);
do $$
declare
    before bigint;
    after bigint;
begin
    for i in 1 .. 5 loop
        delete from gc.blob_review_queue;
        delete from gc.manifest_review_queue;
        before := app.rows(2);
        perform app.review('repository');
        after := app.rows(2);
        insert into app.steps values (i, before - after, after);
        exit when after = 0;
    end loop;
end;
$$;
select is((select max(touched) <= 12 from app.steps), true,
    'a repository that does not fit is drained in steps of at most max_rows');
select is((select count(*) from app.steps), 2::bigint, 'in as few steps as that takes');
select is(app.rows(2), 0::bigint, 'until it is gone');
select is(app.rows(3) + app.rows(4), 40::bigint, 'and the others are as they were');

-- The boundary: the target and what it owns are exactly one row too many.
update gc.settings set max_rows = 19;
update app.repositories set state = 'deleting' where id = 3;
delete from gc.blob_review_queue;
delete from gc.manifest_review_queue;
select is(app.review('repository'), '0 kept, 0 deleted, 1 busy, 0 failed',
    'a repository with one row too many is not deleted in the first review');
select is(app.rows(3), 1::bigint, 'but all that it owns is');
select is((select review_after <= now() from gc.repository_review_queue), true,
    'and it is due at once for the rest');
delete from gc.blob_review_queue;
delete from gc.manifest_review_queue;
select is(app.review('repository'), '0 kept, 1 deleted, 0 busy, 0 failed',
    'the rest goes in the next review');
update gc.settings set max_rows = 20;
update app.repositories set state = 'deleting' where id = 4;
delete from gc.blob_review_queue;
delete from gc.manifest_review_queue;
select is(app.review('repository'), '0 kept, 1 deleted, 0 busy, 0 failed',
    'a repository that fits exactly goes in one review');
select is((select count(*) from app.repositories), 0::bigint, 'and then there is none');
update gc.settings set max_rows = 10000;
select gc.untrack(name) as ignored from gc.collections order by name limit 1 \gset
select gc.untrack(name) as ignored from gc.collections order by name limit 1 \gset
select gc.untrack(name) as ignored from gc.collections order by name limit 1 \gset

-- Several that fit one by one, but not together.
create table app.box (id int primary key, code text unique not null);
create table app.item (
    n int generated always as identity, code text references app.box (code) on delete restrict
);
create index on app.item (code);
create table app.label (box int references app.box on delete set null, n int);
create index on app.label (box);
select results_eq(
    $$select reference, role from gc.track('app.box', owned => '{app.label, item(code)}',
    condition => 'true') order by 1$$,
    $$values ('app.item(code)', 'owned'), ('app.label(box)', 'owned')$$,
    'references to another unique key can be owned, whatever their ON DELETE says');
insert into app.box select i, 'c' || i from generate_series(1, 4) as i;
insert into app.item (code) select 'c' || b from generate_series(1, 4) as b, generate_series(1, 2);
insert into app.label select b, n from generate_series(1, 4) as b, generate_series(1, 2) as n;
create function app.boxes() returns text language sql as $$
    select string_agg(format('%s:%s+%s', id,
        (select count(*) from app.label where box = id),
        (select count(*) from app.item where item.code = b.code)), ' ' order by id)
    from app.box as b
$$;
select is(app.boxes(), '1:2+2 2:2+2 3:2+2 4:2+2', 'each box has five rows');
update gc.settings set max_rows = 13;
select is(app.review('box'), '0 kept, 2 deleted, 2 busy, 0 failed',
    'as many rows are taken as fit with all that they own');
select is(app.boxes(), '3:2+2 4:2+2', 'and none is taken in part');
select is((select count(*) from gc.box_review_queue where review_after <= now()), 2::bigint,
    'the others stay due');
select is(app.review('box'), '0 kept, 2 deleted, 0 busy, 0 failed', 'and go in the next review');
select is((select count(*) from app.item) + (select count(*) from app.label), 0::bigint,
    'with all that they own');
insert into app.box values (5, 'c5'), (6, 'c6');
insert into app.item (code) select 'c5' from generate_series(1, 30);
insert into app.label select 5, n from generate_series(1, 5) as n;
insert into app.label values (6, 1), (6, 2);
select is(app.review('box'), '0 kept, 0 deleted, 2 busy, 0 failed',
    'one that alone is too big is begun');
select is(app.boxes(), '5:0+22 6:2+0', 'in the order of owned, and the next is not touched');
select is(app.review('box'), '0 kept, 0 deleted, 2 busy, 0 failed', 'it goes on');
select is(app.boxes(), '5:0+9 6:2+0', 'where it was');
insert into app.label values (5, 1);
select is(app.review('box'), '0 kept, 1 deleted, 1 busy, 0 failed',
    'with what came meanwhile, to the end');
select is(app.boxes(), '6:2+0', 'and only then comes the next');
select is(app.review('box'), '0 kept, 1 deleted, 0 busy, 0 failed', 'which goes too');
update gc.settings set max_rows = 10000;

-- What keeps is not touched, however the same table is owned by another column.
create table app.shelf (
    own int references app.box on delete cascade, other int references app.box on delete cascade
);
create index on app.shelf (own);
create index on app.shelf (other);
select results_eq(
    $$select reference, role from gc.track('app.box', owned => '{item, label, shelf(own)}',
    condition => 'true') order by 1$$,
    $$values ('app.item(code)', 'owned'), ('app.label(box)', 'owned'),
        ('app.shelf(other)', 'keeps'), ('app.shelf(own)', 'owned')$$,
    'one table can own by one column and keep by another');
insert into app.box values (1, 'c1'), (2, 'c2');
insert into app.shelf values (1, 2);
insert into app.label values (2, 1);
select is(app.review('box'), '1 kept, 1 deleted, 0 busy, 0 failed',
    'a row that is kept keeps all that it owns');
select is(app.boxes(), '2:1+0', 'and the one that is not takes what it owns');
select is(app.review('box'), '0 kept, 1 deleted, 0 busy, 0 failed',
    'an owned row that goes queues what it kept');
select gc.untrack('box') as ignored \gset

-- A tree: rows of a collection own others of it.
create table app.node (id int primary key, parent int references app.node);
create index on app.node (parent);
select results_eq($$select reference, role from gc.track('app.node', owned => '{node}', condition => 'true')$$,
    $$values ('app.node(parent)', 'owned')$$, 'a table can own its own rows');
insert into app.node values (1, null), (2, 1), (3, 1), (4, 4);
select is(app.review('node'), '0 kept, 2 deleted, 0 busy, 0 failed',
    'a row that owns itself, and one whose children are garbage too, are deleted');
select is((select count(*) from app.node), 0::bigint, 'with all their children');
insert into app.node values (11, null), (12, 11), (13, 12), (14, 13);
delete from gc.node_review_queue where id <> 11;
select is(app.review('node'), '0 kept, 0 deleted, 0 busy, 1 failed',
    'a row whose children have children cannot go by itself');
select is((select count(*) from app.node where id > 10), 4::bigint, 'and nothing of it is deleted');
select matches((select last_error from gc.status()), 'node_parent_fkey', 'status says why');
select gc.scan('node') as ignored \gset
select app.review('node') as ignored \gset
select app.review('node') as ignored \gset
select is((select count(*) from app.node where id > 10), 0::bigint,
    'but a tree of garbage goes from its leaves');

-- A row that owns itself.
insert into app.node values (1, 1);
select is(app.review('node'), '0 kept, 1 deleted, 0 busy, 0 failed',
    'a row that owns itself is collected');
select is_empty('table app.node', 'and gone');
insert into app.node values (2, 2), (3, 2);
select count(app.review('node')) from generate_series(1, 3) \g /dev/null
select is_empty('table app.node', 'one that owns itself and another is collected with it');
select is((select failing from gc.status()), 0::bigint, 'without a failure');
select gc.untrack('node') as ignored \gset

-- A table that inherits from an owned one.
create table app.doc (id integer primary key);
create table app.part (doc integer references app.doc, n integer);
create index on app.part (doc);
create table app.part_copy () inherits (app.part);
select count(*) from gc.track('app.doc', owned => '{part}', condition => 'true') \g /dev/null
insert into app.doc values (1), (2);
insert into app.part values (1, 10);
insert into app.part_copy values (1, 20), (2, 30);
select is((select array_agg(ctid::text || n order by n) from app.part where n < 30),
    '{"(0,1)10","(0,1)20"}', 'two rows of two tables are in the same place');
select is(app.review('doc'), '0 kept, 2 deleted, 0 busy, 0 failed', 'a review takes the owners');
select is_empty('select * from only app.part', 'and the owned rows');
select results_eq('select n from app.part_copy order by n', array[20, 30],
    'the rows of a table that inherits are not owned');
select gc.untrack('doc') as ignored \gset
drop table app.part_copy, app.part;
delete from app.doc;

-- What is owned is looked up once.
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
select is(app.review('doc'), '1 kept, 1 deleted, 0 busy, 0 failed',
    'a review takes what only the owned table refers to');
select results_eq('select id from app.doc', array[1],
    'a table of the same name, made later in another schema, keeps its target');
select results_eq('select doc from other.layer', array[1], 'and its rows survive');
select results_eq('select doc from app.layer', array[1], 'as do those of the owned table');
select throws_ok($$select * from gc.track('app.doc', owned => '{layer}', condition => 'true')$$, '42704',
    '"layer" does not name one table that refers to "app.doc"',
    'a name that could be two tables is refused');
alter table app.layer drop constraint layer_doc_fkey;
delete from other.layer;
select is(app.review('doc'), '0 kept, 0 deleted, 0 busy, 0 failed',
    'where the owned foreign key is gone nothing is reviewed');
select matches((select why from gc.status() where collection = 'doc'), E'the owned reference app\\.layer\\(doc\\) is gone',
    'and the status says why');
select is(app.review('doc'), '0 kept, 0 deleted, 0 busy, 0 failed', 'nor the next time');
select results_eq('select id from app.doc', array[1], 'the row is still there');
select results_eq($$select reference, role from gc.track('app.doc', condition => 'true')$$,
    $$values ('other.layer(doc)', 'keeps')$$, 'gc.track is told what holds now');
select is((select why from gc.status() where collection = 'doc'), null, 'then nothing is in the way');
select is(app.review('doc'), '0 kept, 1 deleted, 0 busy, 0 failed', 'and the row goes');
select results_eq('select doc from app.layer', array[1], 'but what it owned before does not');
select gc.untrack('doc') as ignored \gset
drop table app.layer, other.layer;

-- A trigger that keeps owned rows from being deleted.
create table app.crate (id integer primary key);
create table app.bottle (crate integer not null references app.crate);
create index on app.bottle (crate);
create function app.keep() returns trigger language plpgsql as 'begin return null; end';
create trigger keep before delete on app.bottle for each row execute function app.keep();
select from gc.track('app.crate', owned => array['bottle'], condition => 'true');
insert into app.crate values (1), (2);
insert into app.bottle values (1);
select is(app.review('crate'), '0 kept, 1 deleted, 0 busy, 1 failed',
    'the row whose owned row stays, stays; the other goes');
select is_empty('select from gc.crate_review_queue where review_after <= now()',
    'it is not due again at once');
select isnt_empty('select from gc.crate_review_queue where last_error is not null',
    'and it is told why');

select * from finish();
rollback;
