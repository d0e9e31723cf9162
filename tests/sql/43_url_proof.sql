-- A CHECK constraint that computes the key back from the url proves that no two rows share one.
begin;
set local client_min_messages = error;
select plan(96);

create schema app;
create function app.address(id integer) returns text immutable return 's3://bucket/' || abs(id);
create function app.number(url text) returns integer immutable return substr(url, 13)::integer;
create function app.stable_number(url text) returns integer stable return substr(url, 13)::integer;
create function app.mixed(url text, id integer) returns integer immutable return id;
create table app.file (id integer primary key, bytes bigint default 1, other integer default 1);
update gc.settings set jitter = '0', undo = '0';
insert into gc.review_after_defaults values ('file_insert', '1 hour'), ('file_update', '1 hour');

-- Whether files can share objects, when their table has this constraint.
create function pg_temp.shares(constraint_text text, url text default 'app.address(id)')
    returns boolean
    language plpgsql
as $$
begin
    execute 'alter table app.file add constraint proof ' || constraint_text;
    perform gc.track('app.file', url => url, condition => 'true');
    alter table app.file drop constraint proof;
    return (select c.shared from gc.collections as c);
end;
$$;

-- What is a proof, and what only looks like one.
select ok(not pg_temp.shares(c), c)
from unnest(array[
    'check (id is not distinct from app.number(app.address(id)))',
    'check (id is not distinct from app.number(app.address(id)) + 0 * length(app.address(id)))'
]) as c;
select ok(pg_temp.shares(c), 'no proof: ' || c)
from unnest(array[
    'check (id is not distinct from app.number(app.address(id))) not valid',
    'check (id = app.number(app.address(id)))',
    'check (id is distinct from app.number(app.address(id)))',
    'check (other is not distinct from app.number(app.address(id)))',
    'check (id is not distinct from app.mixed(app.address(id), id))',
    'check (id is not distinct from app.number(app.address(id)) + other)',
    'check (id is not distinct from app.number(app.address(other)))',
    'check (id is not distinct from app.number(app.address(-id)))',
    'check (id is not distinct from substr(app.address(id), 13)::integer)',
    'check (id is not distinct from app.stable_number(app.address(id)))',
    'check (id is not distinct from app.number(app.address(id)) or other = 1)',
    'check (id is not distinct from app.number(''s3://bucket/1''))',
    'check (id::bigint is not distinct from app.number(app.address(id)))',
    'check (id is not distinct from length(xmlserialize(content xmlpi(name x, app.address(id)) as text)))'
]) as c;
select ok(pg_temp.shares('check (id is not distinct from app.number(app.address(id)))',
    'app.address(id) || other'), 'the proof of another url is none');
create role changes_functions;
grant create, usage on schema app to changes_functions;
alter function app.number(text) owner to changes_functions;
update gc.settings set trusted_roles = '{changes_functions}';
select ok(pg_temp.shares('check (id is not distinct from app.number(app.address(id)))'),
    'nor is one that somebody else could change');
alter function app.number(text) owner to current_user;

-- The url alone, without a constraint: what is on the list is the key's own, all else is shared.
-- One table after the other: making each anew takes most of the time.
create function pg_temp.counts_as_shared(type text, url text) returns boolean language plpgsql as $$
begin
    if obj_description(to_regclass('app.item'), 'pg_class') is distinct from type then
        perform gc.untrack(c.name) from gc.collections as c where c.name = 'item';
        drop table if exists app.item;
        execute format('create table app.item (spare text, id %s primary key)', type);
        execute format('comment on table app.item is %L', type);
    end if;
    perform gc.track('app.item', url => url, condition => 'true');
    return (select c.shared from gc.collections as c where c.name = 'item');
end;
$$;
create domain app.number as integer;
create function app.textcat(text, text) returns text immutable return lower($1 || $2);
create operator app.|| (leftarg = text, rightarg = text, function = app.textcat);
select ok(not pg_temp.counts_as_shared(type, url), format('%s of a %s key is its row''s own', url, type))
from (select * from (values
    ('int2', $$'s3://b/' || id$$), ('int4', $$'s3://b/' || id$$), ('int8', $$'s3://b/' || id$$),
    ('text', $$'s3://b/' || id || '.jpg'$$), ('varchar(9)', $$'s3://b/' || id$$),
    ('uuid', $$'s3://b/' || id$$), ('uuid', $$'s3://b/' || id::text || '.jpg'$$),
    ('bytea', $$'s3://b/' || encode(id, 'hex')$$), ('bytea', $$'s3://b/'::text || id$$),
    ('int4', $$'s3://b/' || id::varchar || '/x'$$), ('text', 'id'), ('varchar', 'id'),
    ('int4', $$id || '/x'$$), ('text', $$('s3://' || ('b/' || (id || '')))$$),
    ('int4', $$('s3://b/' || 7) || id$$), ('text', $$textcat('s3://b/', id)$$)
) as v(type, url) order by type) as v;
select ok(pg_temp.counts_as_shared(type, url), format('%s of a %s key counts as shared', url, type))
from (select * from (values
    ('text', $$'gs://b/' || lower(id)$$), ('text', $$'gs://b/' || id::char(3)$$),
    ('char(3)', $$'gs://b/' || id$$), ('text', $$'gs://b/' || id::varchar(3)$$),
    ('text', $$'gs://b/' || id::name$$), ('text', $$'gs://b/' || id::"char"::text$$),
    ('text', $$'gs://b/' || (case when id = 'a' then 'b' else id end)$$),
    ('text', $$'gs://b/' || coalesce(id, 'a')$$), ('text', $$'gs://b/' || nullif(id, 'a')$$),
    ('text', $$'gs://b/' || greatest(id, 'a')$$), ('text', $$'gs://b/' || (array[id])[1]$$),
    ('text', $$'gs://b/' || (row(id))::text$$), ('text', $$'gs://b/' || (id is null)$$),
    ('text', $$'gs://b/' || (id collate "C")$$), ('text', $$'gs://b/' || id || id$$),
    ('text', $$'gs://b/' || id operator(app.||) ''$$), ('text', $$'gs://b/' || null || id$$),
    ('timestamptz', $$'gs://b/' || id$$), ('float8', $$'gs://b/' || id$$),
    ('numeric', $$'gs://b/' || id$$), ('int8', $$'gs://b/' || id::int4$$),
    ('app.number', $$'gs://b/' || id$$), ('bytea', $$'gs://b/' || encode(sha256(id), 'hex')$$),
    ('text', $$'gs://b/' || id || timestamptz '2020-01-01'$$),
    ('text', $$'gs://b/'$$), ('text', $$to_json(id)::text$$)
) as v(type, url) order by type) as v;
select throws_ok(format('select pg_temp.counts_as_shared(''text'', %L)', url), '22023', null,
    format('%s is not even accepted', url))
from (values
    ($$'gs://b/' || xmlserialize(content xmlpi(name x, id) as text)$$),
    ($$'gs://b/' || xmlelement(name x, id)::text$$), ($$'gs://b/' || current_date || id$$)
) as v(url);

select gc.untrack('item') \g /dev/null

-- What every url of a collection begins with.
create function pg_temp.prefix(url text) returns text language plpgsql as $$
begin
    perform gc.track('app.file', url => url, condition => 'true');
    return (select c.url_prefix from gc.collections as c);
end;
$$;
select is(pg_temp.prefix(url), prefix, format('every %s begins with %s', url, coalesce(prefix, '?')))
from (values
    ($$'s3://bucket/' || id$$, 's3://bucket/'), ($$'s3://a' || 'b/' || id || '.x'$$, 's3://a'),
    ($$'s3://é/𝄞' || abs(id) || other$$, 's3://é/𝄞'), ($$('s3://c/' || (id || 'x'))$$, 's3://c/'),
    ($$'s3://b/fixed'$$, 's3://b/fixed'), ($$'' || id$$, null), ('app.address(id)', null),
    ($$id || 's3://b/'$$, null), ($$lower('s3://b/' || id)$$, null),
    ($$('S3://b/' || id)::varchar(3)$$, null), ($$null::text || 's3://b/'$$, null),
    ($$case when id > 1 then 's3://b/' else '' end || id$$, null), (null, null)
) as v(url, prefix);

-- With it, a row is found by its key, and no transaction is waited for.
alter table app.file add constraint proof
    check (id is not distinct from app.number(app.address(id)));
select count(*) from gc.track('app.file', url => 'app.address(id)', size => 'bytes',
    condition => 'true') \g /dev/null
select throws_ok('insert into app.file values (-1)', '23514', null, 'rows cannot share a url');
insert into app.file values (1), (2), (3);
delete from app.file where id = 1;
select results_eq('select key, url, wait_for from gc.tombstones',
    $$values ('1', 's3://bucket/1', '0'::xid8)$$, 'a tombstone waits for nobody');
select results_eq($$select url from gc.claim('a')$$, array['s3://bucket/1'],
    'and is handed out at once');
select is(gc.confirm('a', array(select id from gc.tombstones)), 1, 'and confirmed');
select lives_ok($$select gc.begin_upload('file', '1')$$, 'an upload needs no url');
select is((select url from gc.holds), 's3://bucket/1', 'the key tells it');
select gc.end_upload('file', '1') \g /dev/null

-- The constraint goes, and until a review has noticed, nothing is believed that it said.
delete from app.file where id = 2;
alter table app.file drop constraint proof;
insert into app.file values (-2), (-3);
select is_empty('select from gc.tombstones', 'a row that shares the object takes it back');
delete from app.file where id = 3;
select is((select wait_for from gc.tombstones), null, 'a tombstone waits for others again');
update gc.tombstones set wait_for = '0';
select is_empty($$select * from gc.claim('a')$$, 'and is not handed out, for a row has its url');
select is_empty('select from gc.tombstones', 'but dropped');
select count(*) from gc.review() \g /dev/null
select ok(shared, 'a review makes the code again, and files share objects')
from gc.collections;


-- Which index is missing, where urls are looked up.
select gc.untrack('file') \g /dev/null
create function pg_temp.missing(name text) returns text language sql
    set quote_all_identifiers = off as $$
    select gc._missing_url_index(c) from gc.collections as c where c.name = missing.name
$$;
create function pg_temp.track(name text, url text) returns void language plpgsql as $$
begin
    perform gc.track(format('app.%I', name)::regclass, url => url, condition => 'true');
end;
$$;
create function pg_temp.run(command text) returns void language plpgsql as $$
begin
    execute replace(command, 'concurrently ', '');
end;
$$;
create table app.a (id integer primary key, path text);
create table app.b (id integer primary key, path text);
select pg_temp.track('a', $$'s3://a/' || id$$) \g /dev/null
select is(pg_temp.missing('a'), null, 'a collection by itself whose url is its key''s needs none');
select pg_temp.track('b', $$'s3://b/' || path$$) \g /dev/null
select is(pg_temp.missing('b'), $$create index concurrently on app.b (('s3://b/' || path));$$,
    'one whose rows may share objects does, and the hint is the command');
select is(pg_temp.missing('a'), null, 'another collection does not matter whose urls begin otherwise');
select pg_temp.track('b', 'path') \g /dev/null
select is(pg_temp.missing('a'), $$create index concurrently on app.a (('s3://a/' || id));$$,
    'but one does whose urls could be the same');
create table app.c (id integer primary key, at timestamptz);
select pg_temp.track('c', $$'s3://c/' || at$$) \g /dev/null
select matches(pg_temp.missing('c'),
    E'^There can be no index on it \\(functions in index expression '
    'must be marked IMMUTABLE\\)\\. Make the url with immutable functions only',
    'where there can be no index, the hint says so, and what to do');
select pg_temp.track('b', $$'s3://' || path$$) \g /dev/null
select isnt(pg_temp.missing('a'), null, 'a prefix that is the beginning of another excludes nothing');
create index on app.b (('s3://' || path));
select is(pg_temp.missing('b'), null, 'an index that is there is not missed');
select pg_temp.track('a', $$'s3://a/' || path$$) \g /dev/null
select pg_temp.run(pg_temp.missing('a')) \g /dev/null
select is(pg_temp.missing('a'), null, 'nor is one that was made as the hint says');
create table app.settings (id integer primary key, path text);
select pg_temp.track('settings', 'lower(settings.path)') \g /dev/null
select is(pg_temp.missing('settings'),
    'create index concurrently on app.settings ((lower(settings.path)));',
    'a table may be called like one of blobgc''s');

select * from finish();
rollback;
