-- Orphaning: an owner is deleted, and what depends on it stays, pinned.
begin;
set local client_min_messages = error;
select plan(16);

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

-- The owner's key, compared with a key of what it owns, would be that of another row.
create table app.repo (id bigint primary key);
create table app.image (id bigint primary key, repo bigint not null references app.repo);
create index on app.image (repo);
create table app.layer (id bigint primary key, image bigint not null references app.image);
create index on app.layer (image);
select count(*) from gc.track('app.repo', condition => 'false', owned => '{layer, image}')
\g /dev/null
insert into app.repo values (1), (2);
insert into app.image values (10, 1), (1, 2);
insert into app.layer values (200, 1);
select throws_ok($$select gc.orphan('repo', '1')$$, '0A000',
    'rows of "repo" cannot be deleted without what they own',
    'a collection whose rows own others through what they own is refused');
select is((select count(*) from app.layer), 1::bigint, 'and nothing of another owner is deleted');
create table app.mail (id bigint primary key, repo bigint not null);
create index on app.mail (repo);
select count(*) from gc.track('app.repo', condition => 'false') \g /dev/null
select count(*) from gc.declare_reference('repo', 'app.mail', 'repo') \g /dev/null
select count(*) from gc.track('app.repo', condition => 'false', owned => '{mail}') \g /dev/null
select throws_ok($$select gc.orphan('repo', '1')$$, '0A000',
    'rows of "repo" cannot be deleted without what they own',
    'so is one that owns rows by declaration');

select * from finish();
rollback;
