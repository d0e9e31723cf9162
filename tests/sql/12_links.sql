-- Links: where to look first for what refers to a row, if that is a partitioned table.
begin;
create schema app;
select plan(35);

create table app.blob (id integer primary key);
create table app.layer (
    tenant integer, id integer, blob_id integer references app.blob, base_id integer
        references app.blob,
    primary key (tenant, id)
) partition by hash (tenant);
create table app.tag (
    id integer, blob_id integer references app.blob, primary key (id, blob_id)
) partition by list (blob_id);
create table app.tag_all partition of app.tag default;
create table app.note (id integer primary key, blob_id integer references app.blob);
create index on app.layer (blob_id);
create index on app.layer (base_id);
create index on app.tag (blob_id);
create index on app.note (blob_id);
do $$
begin
    for i in 0 .. 7 loop
        execute format('create table app.layer_%s partition of app.layer '
            'for values with (modulus 8, remainder %s)', i, i);
    end loop;
end $$;

update gc.settings set jitter = '0', undo = '0';
insert into gc.review_after_defaults values ('blob_insert', '0'), ('layer_delete', '0');

create function pg_temp.reviewed() returns text language sql as $$
    select format('%s kept, %s deleted', kept, deleted) from gc.review() where collection = 'blob'
$$;

-- How many partitions of app.layer the last review looked into. The lookups of PostgreSQL's own
-- foreign keys are not counted: nothing is deleted where this is asked.
create function pg_temp.probes() returns bigint language sql as $$
    select sum(pg_stat_get_xact_numscans(i.indexrelid))::bigint
    from pg_index as i
    join pg_inherits as p on p.inhrelid = i.indrelid
    where p.inhparent = 'app.layer'::regclass
$$;

insert into app.blob select generate_series(1, 6);
insert into app.layer values (1, 1, 1, 2), (1, 2, 1, null), (2, 1, 3, null);
select count(*) from gc.track('app.blob') \g /dev/null

create function pg_temp.queue(id integer) returns void language sql as $$
    insert into gc.blob_review_queue (id, event, review_after) values (id, 'test', now());
$$;

select results_eq(
    'select id, in_tenant from gc.blob_layer_links order by 1',
    $$values (1, 1), (2, 1), (3, 2)$$,
    'tracking begins with a link for each key that is referred to, through any column');
select hasnt_table('gc', 'blob_note_links', 'a table without partitions has no links');
select hasnt_table('gc', 'blob_tag_links',
    'a foreign key that contains the partition key needs no links');

insert into app.layer values (1, 3, 1, null), (3, 1, 4, 5), (3, 2, 4, null);
select results_eq(
    'select id, in_tenant from gc.blob_layer_links where in_tenant = 3 order by 1',
    $$values (4, 3), (5, 3)$$,
    'a statement adds each link once');
select is((select count(*) from gc.blob_layer_links where id = 1), 1::bigint,
    'a link that is there already is not added again');
update app.layer set base_id = 6 where tenant = 3 and id = 1;
select results_eq(
    'select id, in_tenant from gc.blob_layer_links where id = 6', $$values (6, 3)$$,
    'a column that is changed leads to a link');
delete from gc.blob_layer_links where id = 1;
insert into app.layer_0
select t, 9, 1, null from generate_series(1, 100) as t
where satisfies_hash_partition('app.layer'::regclass, 8, 0, t) limit 1;
select is((select count(*) from gc.blob_layer_links where id = 1), 1::bigint,
    'so does a statement that is aimed at a partition');

-- A blob that is in use is found in one partition.
delete from gc.blob_review_queue;
select pg_temp.queue(3) \g /dev/null
select pg_temp.probes() as before \gset
select is(pg_temp.reviewed(), '1 kept, 0 deleted', 'what a link leads to keeps its target');
select cmp_ok(pg_temp.probes() - :before, '<=', 4::bigint,
    'and only partitions that a link names are looked into, through either column');

-- Whatever the planner knows of the table, the link is followed first.
savepoint filled;
insert into app.blob select generate_series(1001, 5000);
insert into app.layer select id % 50, id, id, null from app.blob where id > 1000;
create index on app.layer (blob_id, tenant, id);
analyze app.layer;
analyze gc.blob_layer_links;
delete from gc.blob_review_queue;
select pg_temp.queue(id) from generate_series(1001, 2000) as id \g /dev/null
select pg_temp.probes() as before \gset
select is(pg_temp.reviewed(), '1000 kept, 0 deleted', 'many are kept');
select cmp_ok(pg_temp.probes() - :before, '<=', 2000::bigint, 'at the cost of one partition each');
rollback to filled;

-- Links that are missing.
delete from gc.blob_layer_links where id = 3;
select pg_temp.queue(3) \g /dev/null
select is(pg_temp.reviewed(), '1 kept, 0 deleted', 'without a link, the row is kept all the same');
select results_eq('select id, in_tenant from gc.blob_layer_links where id = 3',
    $$values (3, 2)$$, 'and it has its link again');
select pg_temp.queue(3) \g /dev/null
select pg_temp.probes() as before \gset
select is(pg_temp.reviewed(), '1 kept, 0 deleted', 'so that it is kept the next time');
select cmp_ok(pg_temp.probes() - :before, '<=', 4::bigint, 'at the cost of one partition');

-- Links that lead nowhere.
update gc.blob_layer_links set in_tenant = 77 where id = 3;
select pg_temp.queue(3) \g /dev/null
select is(pg_temp.reviewed(), '1 kept, 0 deleted', 'a link that leads nowhere costs no row');
select results_eq('select id, in_tenant from gc.blob_layer_links where id = 3',
    $$values (3, 2)$$, 'and a true one takes its place');
delete from app.layer where blob_id = 3;
select is((select count(*) from gc.blob_layer_links where id = 3), 1::bigint,
    'a reference that goes leaves its link');
select is(pg_temp.reviewed(), '0 kept, 1 deleted', 'which keeps nothing');
select is((select count(*) from gc.blob_layer_links where id = 3), 0::bigint,
    'and goes with the row');

-- Rows that go in other ways.
delete from app.layer where blob_id = 6 or base_id = 6;
delete from app.blob where id = 6;
select is((select count(*) from gc.blob_layer_links where id = 6), 0::bigint,
    'a row that the application deletes takes its links along');

-- A scan follows links, and believes only the truth.
delete from gc.blob_review_queue;
delete from gc.blob_layer_links where id = 1;
insert into gc.blob_layer_links values (5, 3);
select is(gc.scan('blob'), 4, 'a scan goes over all rows');
select results_eq('select id, event from gc.blob_review_queue order by 1',
    $$values (5, 'blob_scan')$$, 'it queues what is not referred to, whatever the links say');

select gc.untrack('blob') \g /dev/null
select gc._drop_triggers_of(r) from unnest(gc._tables_with_unused_triggers()) as r \g /dev/null
select gc._drop_unused_rest() \g /dev/null
select hasnt_table('gc', 'blob_layer_links', 'what is unused after untracking is dropped: the links');
select is_empty($$select tgname from pg_trigger where tgname like E'gc\\_blob%'$$,
    'and their triggers');

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

-- Whatever the partition key of a referring table is, its statements go through.
create table app.picture (id integer primary key);
create table app.sticker (picture integer references app.picture, region text)
    partition by list (region);
create table app.sticker_rest partition of app.sticker default;
create index on app.sticker (picture);
select from gc.track('app.picture');
insert into app.picture values (1);
select lives_ok($$insert into app.sticker values (1, null)$$,
    'a row whose partition key is null can be inserted');
select is(pg_temp.review('picture'), 0, 'and keeps its target');

create table app.file (in_region integer primary key);
create table app.copy (file integer references app.file, region text) partition by list (region);
create index on app.copy (file);
select lives_ok($$select from gc.track('app.file')$$,
    'a key column may be called as a column of the links would be');

-- Two collections whose names, each with a table's, make one name.
create table app.a (id integer primary key);
create table app.b_c (a integer references app.a, region integer not null)
    partition by list (region);
create table app.b_c_rest partition of app.b_c default;
create index on app.b_c (a);
create table app.x (id integer primary key);
create table app.c (x integer references app.x, region integer not null)
    partition by list (region);
create table app.c_rest partition of app.c default;
create index on app.c (x);
select from gc.track('app.a', 'a');
select from gc.track('app.x', 'a_b');
select is((select count(distinct l) from gc.collections as o, unnest(o.links) as l
        where o.name in ('a', 'a_b')), 2::bigint, 'every collection has links of its own');
select gc.untrack('a_b');
insert into app.a values (1);
select lives_ok('insert into app.b_c values (1, 1)',
    'and when one is no longer tracked, the tables of the other can still be written');

-- The same with the functions of triggers.
create table app.x_after_b (a integer references app.a);
create index on app.x_after_b (a);
create table app.z (id integer primary key);
create table app.b (z integer references app.z);
create index on app.b (z);
select from gc.track('app.a', 'a');
select from gc.track('app.z', 'a_after_x');
insert into app.x_after_b values (1);
select lives_ok('delete from app.x_after_b', 'nor do trigger functions take each other''s place');

-- A referring table that is replaced by one with another partition key.
create table app.doc (id integer primary key);
create table app.page (doc integer references app.doc, region integer not null)
    partition by list (region);
create index on app.page (doc);
select from gc.track('app.doc');
drop table app.page;
create table app.page (doc integer references app.doc, tenant integer not null)
    partition by list (tenant);
create table app.page_rest partition of app.page default;
create index on app.page (doc);
select pg_temp.review('doc');
select is((select s.why from gc.status() as s where s.collection = 'doc'), null,
    'the collection of a table with another partition key is reviewed as before');
select lives_ok($$select from gc.track('app.doc')$$, 'and can be tracked again');

-- A partition that is dropped takes its references along.
create table app.photo (id integer primary key);
create table app.view (photo integer references app.photo, day date not null)
    partition by range (day);
create table app.view_1 partition of app.view for values from ('2026-01-01') to ('2026-02-01');
create table app.view_2 partition of app.view for values from ('2026-02-01') to ('2026-03-01');
create index on app.view (photo);
insert into gc.review_after_defaults values ('photo_scan', '0');
select from gc.track('app.photo');
insert into app.photo values (1), (2);
insert into app.view values (1, '2026-01-02'), (2, '2026-02-02');
select pg_temp.review('photo');
drop table app.view_1;
select pg_temp.review('photo'), pg_temp.review('photo'), pg_temp.review('photo');
select set_eq('select id from app.photo', '{2}'::integer[],
    'what only a dropped partition referred to is collected');

-- References that come and go, each with a partition key of its own.
create table app.base (id integer primary key);
create table app.use (base integer references app.base, n integer not null)
    partition by range (n);
create table app.use_rest partition of app.use default;
create index on app.use (base);
select from gc.track('app.base');
insert into app.base values (1);
insert into app.use values (1, 0);
do $$
begin
    for i in 1 .. 100 loop
        insert into app.use values (1, i);
        delete from app.use where n = i;
    end loop;
end;
$$;
select pg_temp.review('base'), pg_temp.review('base');
select cmp_ok((select count(*) from gc.base_use_links), '<=', 10::bigint,
    'links of references that are gone do not pile up');

select * from finish();
rollback;
