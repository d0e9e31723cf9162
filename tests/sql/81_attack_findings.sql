-- Findings of a second attack: reviews, links, uploads and the registry. (Two sessions:
-- tests/specs/abandoned-repository.spec and tests/specs/owned-row-in-use-of-many.spec.)
begin;
set local client_min_messages = error;
select plan(24);

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


-- 1. PostgreSQL compares a char key and a text that refers to it as char, without the spaces.
create table app.currency (code char(3) primary key);
create table app.price (currency text references app.currency on delete cascade);
create index on app.price (currency);
select from gc.track('app.currency');
insert into app.currency values ('A');
insert into app.price values ('A  ');
select is(pg_temp.review('currency'), 0,
    'a reference of another type than the key is compared as its foreign key compares it');
select isnt_empty('table app.price', 'so nobody loses a row that refers to something');
select gc.untrack('currency');


-- 2. Links: whatever the partition key of a referring table is, its statements go through.
create table app.picture (id integer primary key);
create table app.tag (picture integer references app.picture, region text)
    partition by list (region);
create table app.tag_rest partition of app.tag default;
create index on app.tag (picture);
select from gc.track('app.picture');
insert into app.picture values (1);
select lives_ok($$insert into app.tag values (1, null)$$,
    'a row whose partition key is null can be inserted');
select is(pg_temp.review('picture'), 0, 'and keeps its target');

create table app.file (in_region integer primary key);
create table app.copy (file integer references app.file, region text) partition by list (region);
create index on app.copy (file);
select lives_ok($$select from gc.track('app.file')$$,
    'a key column may be called as a column of the links would be');


-- 3. Two collections whose names, each with a table's, make one name.
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


-- 4. A referring table that is replaced by one with another partition key.
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


-- 5. A partition that is dropped takes its references along.
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


-- 6. References that come and go, each with a partition key of its own.
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


-- 7. Collations that differ between key and reference.
create table app.word (id text collate "C" primary key);
create table app.mention (word text collate "POSIX" references app.word on delete cascade);
create index on app.mention (word);
select from gc.track('app.word');
insert into app.word values ('x');
insert into app.mention values ('x');
select lives_ok('delete from app.mention',
    'a reference of another collation than the key can be deleted');
select is(pg_temp.review('word'), 1, 'and what it referred to is collected');


-- 8. A trigger that keeps owned rows from being deleted.
create table app.box (id integer primary key);
create table app.item (box integer not null references app.box);
create index on app.item (box);
create function app.keep() returns trigger language plpgsql as 'begin return null; end';
create trigger keep before delete on app.item for each row execute function app.keep();
select from gc.track('app.box', owned => array['item'], condition => 'true');
insert into app.box values (1), (2);
insert into app.item values (1);
select is(pg_temp.review('box'), 1, 'the row whose owned row stays, stays; the other goes');
select is_empty('select from gc.box_review_queue where review_after <= now()',
    'it is not due again at once');
select isnt_empty('select from gc.box_review_queue where last_error is not null',
    'and it is told why');


-- 9. An upload whose url is told, but is not written as the collection writes it.
create table app.object (id integer primary key);
select from gc.track('app.object', url => $$'s3://b/' || id$$, condition => 'true');
insert into app.object values (1);
delete from app.object;
select isnt_empty($$select from gc.claim('w')$$, 'an object is being deleted');
select throws_ok(
    $$select gc.begin_upload('object', '1', url => 's3://b/./1', wait => '0')$$,
    'ZG001', null, 'an upload of its key has to wait, whatever url it tells');
select throws_ok(
    $$select gc.begin_upload('object', '1', url => 's3://another/1', wait => '0')$$,
    '22023', null, 'a url that no row of the collection can have is refused');
-- While no url is known, the key is all that there is.
select from gc.track('app.object', condition => 'true');
select throws_ok($$select gc.begin_upload('object', '1', wait => '0')$$, 'ZG001', null,
    'also after the url was taken out of the definition');


-- 10. The registry.
select gc.create_registry(store => 's3://b/p');
select registry.create_repository('acme/app');
select throws_ok(format($$select registry.put_manifest('acme/app', convert_to(%L, 'UTF8'))$$,
        json_build_object('schemaVersion', 2, 'config', d.layer, 'layers',
            array(select d.layer from generate_series(1, 9000)))),
    'ZR006', null, 'layers that add up to more than a number takes are refused as a manifest')
from (
    select json_build_object(
        'mediaType', 'application/vnd.oci.image.layer.nondistributable.v1.tar',
        'digest', 'sha256:' || repeat('0', 64), 'size', 1125899906842624)
) as d(layer);
select throws_ok(format($$select registry.put_manifest('acme/app', convert_to(%L, 'UTF8'))$$,
        json_build_object('schemaVersion', 2, 'manifests', array[]::json[],
            'subject', array[d.subject, d.subject])),
    'ZR006', null, 'a manifest has one subject')
from (
    select json_build_object('mediaType', 'a', 'size', 1, 'digest', 'sha256:' || repeat('a', 64))
) as d(subject);

-- Stands for a manifest that is there, and gone a moment later.
create sequence app.pushed;
create function app.gone_a_moment_later() returns trigger language plpgsql
as 'begin return case when nextval(''app.pushed'') > 1 then new end; end';
create trigger gone before insert on registry.manifests
    for each row execute function app.gone_a_moment_later();
select lives_ok(
    $$select registry.put_manifest('acme/app', '{"schemaVersion": 2, "manifests": []}')$$,
    'a manifest that is collected while it is pushed again is pushed');

select * from finish();
rollback;
