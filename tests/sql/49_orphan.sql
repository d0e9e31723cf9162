-- Orphaning: an owner is deleted, and what depends on it stays, pinned.
begin;
set local client_min_messages = error;
select plan(24);

create schema app;
create table app.blob (id bigint primary key);
create table app.album (id bigint primary key, cover bigint references app.blob);
create index on app.album (cover);
create table app.picture (
    id bigint primary key, album bigint references app.album, blob bigint references app.blob
);
create index on app.picture (album);
create index on app.picture (blob);
create table app.line (album bigint not null references app.album, blob bigint references app.blob);
create index on app.line (album);
create index on app.line (blob);
create table app.strict (id bigint primary key, picture bigint not null references app.picture);
create index on app.strict (picture);

-- Who is pinned: by gc.pin, or by what stands for it here.
create temporary table pinned (name text, key text);
do $$
begin
    if to_regprocedure('gc.pin(text, text[], text, timestamptz, text)') is null then
        create function gc.pin(name text, keys text[], reason text default null,
            until timestamptz default 'infinity', holder text default session_user)
            returns table (key text, pinned boolean) language sql
        as 'insert into pinned select name, k from unnest(keys) as k returning key, true';
    else
        drop table pinned;
        create temporary view pinned as
        select p.collection as name, p.key from gc.pins as p where p.reason like 'orphaned: %';
    end if;
end;
$$;

update gc.settings set jitter = '0';
select count(*) from gc.track('app.blob', url => $$'s3://bucket/' || id$$) \g /dev/null
select count(*) from gc.track('app.picture', owned => '{strict}', condition => 'false') \g /dev/null
select count(*) from gc.track('app.album', owned => '{picture,line}', condition => 'false')
    \g /dev/null
insert into app.blob select generate_series(1, 5);
insert into app.album values (1, 1), (2, null);
insert into app.picture values (1, 1, 2), (2, 1, 3), (3, 2, 4);
insert into app.line values (1, 5), (1, 5), (2, 5);

select is(gc.orphan('album', ' 1 '), 4::bigint, 'orphaning an owner pins what depends on it');
select results_eq('select id from app.album', array[2::bigint], 'the owner is gone');
select set_eq('select id, album from app.picture',
    'values (1::bigint, null::bigint), (2, null), (3, 2)', 'what it owned is on its own');
select set_eq('select album from app.line', array[2::bigint],
    'but for owned rows that cannot be without it: they are gone');
select set_eq('select name, key from pinned', $$values ('picture', '1'), ('picture', '2'),
    ('blob', '1'), ('blob', '5')$$,
    'owned rows, and what the owner and its lines referred to, are pinned');
select throws_ok($$select gc.orphan('album', '1')$$, 'P0002', 'there is no row 1 of "album"',
    'a row that is not there is told');
select is((select gc.restore('album', '1')), 3::bigint,
    'the owner can be restored, with the rows that went with it');
select is((select count(*) from app.picture where album = 1), 0::bigint,
    'what was orphaned stays so');
insert into app.strict values (1, 3);
select count(*) from gc.track('app.strict', condition => 'false') \g /dev/null
select throws_ok($$select gc.orphan('picture', '3')$$, '55000',
    'rows of "strict" cannot be without their owner',
    'a collection whose rows cannot be without their owner is refused');
select is((select count(*) from app.picture), 3::bigint, 'and nothing is deleted');
select is((select count(*) from pinned), 4::bigint, 'nor pinned');
alter table app.strict alter column picture drop not null;
select is(gc.orphan('picture', '3'), 2::bigint, 'unless the reference can be null');
select is((select picture from app.strict), null::bigint, 'then it is');

-- What is owned through what is owned. An image that can be without its repository keeps what is
-- its own; one that cannot takes it along, but for what can be without the image.
create table app.repo (id bigint primary key);
create table app.image (id bigint primary key, repo bigint not null references app.repo);
create index on app.image (repo);
create table app.layer (id bigint primary key, image bigint not null references app.image,
    blob bigint references app.blob);
create index on app.layer (image);
create index on app.layer (blob);
create table app.note (id bigint primary key, image bigint references app.image, layer bigint
    references app.layer);
create index on app.note (image);
create index on app.note (layer);
select count(*) from gc.track('app.note', condition => 'false') \g /dev/null
select count(*) from gc.track('app.repo', condition => 'false',
    owned => '{layer, image, note(image), note(layer)}') \g /dev/null
delete from gc.pins;
insert into app.blob values (6), (7);
insert into app.repo values (1), (2), (3);
-- The repository's key is that of an image of another one.
insert into app.image values (10, 1), (11, 1), (1, 2), (30, 3);
insert into app.layer values (100, 10, 6), (200, 1, 7), (300, 30, 7);
insert into app.note values (1, 10, null), (2, null, 100), (3, 1, 200), (4, 30, 300);
select is(gc.orphan('repo', '1'), 3::bigint, 'what is owned through what is owned is found');
select set_eq('select id from app.image', array[1, 30]::bigint[],
    'what cannot be without its owner goes with it');
select set_eq('select id from app.layer', array[200, 300]::bigint[],
    'and what cannot be without that; nothing of another owner');
select set_eq('select id, image, layer from app.note', $$values (1::bigint, null::bigint,
    null::bigint), (2, null, null), (3, 1, 200), (4, 30, 300)$$, 'what can stays, by itself');
select set_eq('select name, key from pinned', $$values ('blob', '6'), ('note', '1'), ('note', '2')$$,
    'it is pinned, and so is what those that went have kept');
alter table app.image alter column repo drop not null;
delete from gc.pins;
select is(gc.orphan('repo', '2'), 0::bigint, 'where the images stay');
select set_eq('select i.id, i.repo, l.id as layer, n.id as note from app.image as i
    join app.layer as l on l.image = i.id join app.note as n on n.layer = l.id',
    $$values (1::bigint, null::bigint, 200::bigint, 3::bigint), (30, 3, 300, 4)$$,
    'they keep all that is theirs');

-- What is owned by declaration, and what rows that go refer to by declaration.
create table app.mail (id bigint primary key, kind text, about bigint not null, blobs bigint[]);
create index on app.mail (about);
create index on app.mail using gin (blobs);
create table app.draft (id bigint primary key, about bigint);
create index on app.draft (about);
select count(*) from gc.track('app.draft', condition => 'false') \g /dev/null
select count(*) from gc.declare_reference('blob', 'app.mail', 'blobs') \g /dev/null
select count(*) from gc.track('app.repo', condition => 'false', owned => '{}') \g /dev/null
select count(*) from gc.declare_reference('repo', 'app.mail', 'about',
    condition => $$kind = 'repo'$$) \g /dev/null
select count(*) from gc.declare_reference('repo', 'app.draft', 'about') \g /dev/null
select count(*) from gc.track('app.repo', condition => 'false',
    owned => '{layer, image, note(image), note(layer), mail, draft}') \g /dev/null
insert into app.mail values (1, 'repo', 3, '{6, 7}'), (2, 'user', 3, '{5}'), (3, 'repo', 4, '{4}');
insert into app.draft values (1, 3), (2, 4);
select is(gc.orphan('repo', '3'), 3::bigint, 'what is owned by declaration is found as well');
select set_eq('select id, about from app.mail', 'values (2::bigint, 3::bigint), (3, 4)',
    'it goes where it cannot be without, if it is owned at all');
select set_eq('select id, about from app.draft', 'values (1::bigint, null::bigint), (2, 4)',
    'and stays where it can');
select set_eq('select name, key from pinned', $$values ('blob', '6'), ('blob', '7'),
    ('draft', '1')$$, 'what it refers to by declaration is pinned');

select * from finish();
rollback;
