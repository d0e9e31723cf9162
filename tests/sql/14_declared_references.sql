-- References without a foreign key: declared, they keep, lock and are followed like any other.
begin;
set local client_min_messages = error;
select plan(136);

create schema app;
update gc.settings set undo = '0', jitter = '0';
create table app.file (id bigint primary key, digest text unique, kind text);
create table app.post (
    id integer primary key, file_id integer, file_ids bigint[], ref_type text, ref_id bigint,
    digest varchar, body jsonb, note text
);
create function app.ids(body jsonb) returns bigint[] language sql immutable
    return array(select (e #>> '{}')::bigint from jsonb_array_elements(body -> 'files') as e);

create function pg_temp.review() returns text language plpgsql as $$
begin
    update gc.file_review_queue set review_after = now();
    return (select format('%s kept, %s deleted, %s failed', kept, deleted, failed)
        from gc.review() where collection = 'file');
end;
$$;
create function pg_temp.files() returns bigint[] language sql as $$
    select array(select id from app.file order by id)
$$;
create function pg_temp.queued() returns text language plpgsql as $$
declare
    found text;
begin
    with taken as (delete from gc.file_review_queue returning id, event)
    select string_agg(id || ' ' || event, ', ' order by id, event) into found from taken;
    return found;
end;
$$;
-- The error of a statement, with its hint.
create function pg_temp.said(statement text) returns text language plpgsql as $$
declare
    state text;
    hint text;
    message text;
begin
    execute statement;
    return null;
exception
    when others then
        get stacked diagnostics state = returned_sqlstate, message = message_text,
            hint = pg_exception_hint;
        return concat_ws(' | ', state, message, hint);
end;
$$;
create function pg_temp.why() returns text language sql as $$ select why from gc.status() $$;

-- What bad input gets.
select count(*) from gc.track('app.file') \g /dev/null
select is((select blocked from gc.status()), true, 'nothing keeps a file: the collection is blocked');
select matches(pg_temp.why(), 'gc.declare_reference', 'and status names what would help');
select is(pg_temp.said($$select gc.declare_reference('files', 'app.post', 'file_id')$$),
    '42704 | there is no collection "files" | select * from gc.track(''schema.table'');',
    'a collection that is not there');
select is(pg_temp.said($$select gc.declare_reference('file', 'app.post', 'file_id')$$),
    '42P16 | app.post(file_id) refers to "app.file" without an index | '
    'create index concurrently on app.post (file_id);', 'a column without an index');
select is(pg_temp.said($$select gc.declare_reference('file', 'app.post', 'file_ids')$$),
    '42P16 | app.post(file_ids) refers to "app.file" without an index | '
    'create index concurrently on app.post using gin (file_ids);', 'an array without a GIN index');
create index btree_of_array on app.post (file_ids);
select matches(pg_temp.said($$select gc.declare_reference('file', 'app.post', 'file_ids')$$),
    '^42P16 .*using gin', 'a b-tree does not find elements of an array');
drop index app.btree_of_array;
select is(pg_temp.said($$select gc.declare_reference('file', 'app.post', 'app.ids(body)')$$),
    '42P16 | app.post(app.ids(body)) refers to "app.file" without an index | '
    'create index concurrently on app.post using gin ((app.ids(body)));',
    'a function of the row without an index');
select is(pg_temp.said($$select gc.declare_reference('file', 'app.post', 'note')$$),
    '42804 | keys of type text cannot be compared with "app.file"(id) by an index | select * from '
    'gc.declare_reference(''file'', ''app.post'', ''(note)::bigint'');', 'keys of another type');
select matches(pg_temp.said(
    $$select gc.declare_reference('file', 'app.post', 'array[file_id]')$$),
    '^42804 .*.array.file_id..::bigint..', 'an array of another type, even one that compares');
select matches(pg_temp.said($$select gc.declare_reference('file', 'app.post', 'nonsense')$$),
    '^22023 .*the keys of a reference must be an expression over one row', 'no column of the table');
select matches(pg_temp.said($$select gc.declare_reference('file', 'app.post', 'file.id')$$),
    '^22023 .*the keys of a reference', 'a column of another table');
select matches(pg_temp.said(
    $$select gc.declare_reference('file', 'app.post', '(select max(id) from app.file)')$$),
    '^22023 .*immutable expression over one row', 'a subquery');
select matches(pg_temp.said(
    $$select gc.declare_reference('file', 'app.post', 'file_id + random()::bigint')$$),
    '^22023 .*immutable', 'a volatile function');
select matches(pg_temp.said($$select gc.declare_reference('file', 'app.post',
    'file_id + extract(epoch from now())::bigint')$$), '^22023 .*immutable', 'the time');
select matches(pg_temp.said($$select gc.declare_reference('file', 'app.post', 'file_id',
    condition => $_$note = current_setting('app.note')$_$)$$), '^22023 .*condition of a reference',
    'a condition that reads the session');
select matches(pg_temp.said($$select gc.declare_reference('file', 'app.post', 'file_id',
    condition => 'note')$$), '^22023 .*condition of a reference', 'a condition that is none');
select matches(pg_temp.said($$select gc.declare_reference('file', 'app.post', '7::bigint')$$),
    '^22023 .*immutable', 'a constant');
select matches(pg_temp.said($$select gc.declare_reference('file', 'app.post', '')$$),
    '^22023 .*needs a table and keys', 'no keys');
select matches(pg_temp.said($$select gc.declare_reference('file', null, 'file_id')$$),
    '^22023 .*needs a table and keys', 'no table');
select is(pg_temp.said($$select gc.declare_reference('file', 'app.post', 'digest', by => 'nix')$$),
    '22023 | "app.file" has no column "nix" | Name one of its columns, or leave by out for the '
    'primary key.', 'a column of the collection that is not there');
select is(pg_temp.said($$select gc.declare_reference('file', 'app.post', 'digest', by => 'kind')$$),
    '22023 | nothing finds the rows of "app.file" by kind | create unique index concurrently on '
    'app.file (kind);', 'a column of the collection that has no index');
create view app.posts as select * from app.post;
select matches(pg_temp.said($$select gc.declare_reference('file', 'app.posts', 'file_id')$$),
    '^42809 .*"app.posts" cannot refer', 'a view');
create role gc_test_stranger;
create table app.stolen (file_id bigint);
create index on app.stolen (file_id);
alter table app.stolen owner to gc_test_stranger;
select matches(pg_temp.said($$select gc.declare_reference('file', 'app.stolen', 'file_id')$$),
    '^42501 .*table app.stolen belongs to gc_test_stranger.*trusted_roles',
    'a table of a role that is not trusted');
create function app.theirs(text) returns bigint language sql immutable return 1;
alter function app.theirs(text) owner to gc_test_stranger;
select matches(pg_temp.said($$select gc.declare_reference('file', 'app.post', 'app.theirs(note)')$$),
    '^22023 ', 'a function of a role that is not trusted');
select is_empty('table gc.declared_references', 'none of that has left anything');
select is((select blocked from gc.status()), true, 'and the collection is as it was');
create table app.pair (a integer, b integer, primary key (a, b));
select count(*) from gc.track('app.pair') \g /dev/null
select matches(pg_temp.said($$select gc.declare_reference('pair', 'app.post', 'file_id')$$),
    '^22023 .*primary key of "app.pair" has several columns.*by =>', 'a key of several columns');
select gc.untrack('pair');
create table app.coded (id integer primary key, code char(8) unique);
select count(*) from gc.track('app.coded') \g /dev/null
select matches(pg_temp.said($$select gc.declare_reference('coded', 'app.post', 'note', by => 'code')$$),
    E'^42804 .*\\(note\\)::bpchar', 'the hint for a char does not cut the key off');
select gc.untrack('coded');

-- One key.
create index on app.post (file_id);
select results_eq($$select * from gc.declare_reference('file', 'app.post', 'file_id')$$,
    $$values ('app.post(file_id)', 'keeps', 'declared')$$, 'a column is declared');
select is((select blocked from gc.status()), false, 'it keeps: the collection is no longer blocked');
insert into app.file select i, 'd' || i from generate_series(1, 9) as i;
insert into app.post (id, file_id) values (1, 1), (2, 2), (3, null);
select is(pg_temp.review(), '2 kept, 7 deleted, 0 failed', 'what posts mention is kept');
select is(pg_temp.files(), '{1,2}', 'and nothing else');
select matches(pg_temp.said('insert into app.post (id, file_id) values (4, 9)'),
    '^ZG005 .*app.post.file_id. refers to 9 of app.file, which is gone',
    'a key that went a short time ago is refused');
select matches(pg_temp.said('update app.post set file_id = 8 where id = 3'), '^ZG005',
    'in an update as well');
select is(pg_temp.said('insert into app.post (id, file_id) values (4, 2000000000)'), null,
    'a key that never was there is nobody''s concern');
insert into app.file values (9, 'd9');
select is(pg_temp.said('insert into app.post (id, file_id) values (5, 9)'), null,
    'a key that has come again can be referred to');
select pg_temp.queued() \g /dev/null
update app.post set note = 'other', id = id;
select is(pg_temp.queued(), null, 'an update of other columns queues nothing');
update app.post set file_id = 2 where id = 1;
select is(pg_temp.queued(), '1 post_update', 'an update of the key queues what it was');
delete from app.post where id in (1, 4);
select is(pg_temp.queued(), '2 post_delete', 'a delete queues what was lost');
insert into app.post (id, file_id) values (6, 2) on conflict (id) do nothing;
insert into app.post (id, file_id) values (6, 1) on conflict (id) do update set file_id = 9;
select is(pg_temp.queued(), '2 post_update', 'on conflict do update is an update');
select matches(pg_temp.said($$insert into app.post (id, file_id) values (6, 1)
    on conflict (id) do update set file_id = 7$$), '^ZG005', 'and is refused like one');
select matches(pg_temp.said($$merge into app.post as p using (values (6, 5)) as v(id, file)
    on p.id = v.id when matched then update set file_id = v.file$$), '^ZG005', 'so is a merge');
select is(pg_temp.said($$merge into app.post as p using (values (6, 2)) as v(id, file)
    on p.id = v.id when matched then update set file_id = v.file$$), null, 'unless it is there');
copy app.post (id, file_id) from stdin;
20	1
21	1
\.
delete from gc.file_review_queue;
insert into gc.file_review_queue (id, event, review_after) values (1, 'test', now());
select is(pg_temp.review(), '1 kept, 0 deleted, 0 failed', 'what copy brought keeps');
truncate app.post;
select results_eq('select reason from gc.scan_requests', $$values ('app.post was truncated')$$,
    'a truncate asks for a scan');
delete from gc.scan_requests;
delete from app.file;
select matches(pg_temp.said('insert into app.post (id, file_id) values (1, 1)'), '^ZG005',
    'what the application deleted is gone as well');
insert into app.file select i, 'd' || i from generate_series(1, 9) as i;
update app.file set id = 10 where id = 9;
select matches(pg_temp.said('insert into app.post (id, file_id) values (1, 9)'), '^ZG005',
    'and a key that was changed');
update app.file set id = 9 where id = 10;
truncate app.file;
select matches(pg_temp.said('insert into app.post (id, file_id) values (1, 9)'), '^ZG005',
    'and what was truncated');
select is((select count(*) > 9 from gc.file_gone), true, 'keys that went are kept');
update gc.file_gone set gone_at = now() - interval '1 day 1 hour';
select count(*) from gc.review() \g /dev/null
select is_empty('table gc.file_gone', 'for a day');
select is(pg_temp.said('insert into app.post (id, file_id) values (1, 9)'), null,
    'then they are like any other that is not there');

-- Strict, and declaring again.
select results_eq($$select note from gc.declare_reference('file', 'app.post', 'file_id',
    strict => true)$$, $$values ('declared, strict')$$, 'declaring again changes it');
select matches(pg_temp.said('insert into app.post (id, file_id) values (2, 5)'),
    '^ZG006 .*app.post.file_id. refers to 5 of app.file, which is not there', 'strict refuses');
select is((select count(*) from gc.declared_references), 1::bigint, 'there is one declaration');
select is(pg_temp.said($$update app.post set note = 'x'$$), null,
    'a row that was there before is not asked when something else changes');

-- Arrays, conditions, other columns, functions.
truncate app.post;
create index on app.post using gin (file_ids) where file_ids is not null;
create index on app.post (ref_id) where ref_type = 'File';
create index on app.post (digest);
create index on app.post using gin (app.ids(body));
select count(*) from gc.declare_reference('file', 'app.post', 'file_ids') \g /dev/null
select count(*) from gc.declare_reference('file', 'app.post', 'ref_id',
    condition => $$ref_type = 'File'$$) \g /dev/null
select count(*) from gc.declare_reference('file', 'app.post', 'digest', by => 'digest') \g /dev/null
select results_eq($$select * from gc.declare_reference('file', 'app.post', 'app.ids(body)')$$,
    $$values ('app.post(app.ids(body))', 'keeps', 'declared'),
        ('app.post(digest)', 'keeps', 'declared, by digest'),
        ('app.post(file_id)', 'keeps', 'declared, strict'),
        ('app.post(file_ids)', 'keeps', 'declared'),
        ('app.post(ref_id)', 'keeps',
            'declared, where (post.ref_type = ''File''::text)')$$,
    'references of every kind');
select results_eq($$select reference from gc.track('app.file')$$,
    $$select reference from gc._references(gc._collection('file'))$$, 'gc.track returns them too');
delete from gc.scan_requests;
insert into app.file select i, 'd' || i from generate_series(1, 20) as i;
insert into app.post (id, file_ids) values (1, array[1, 2, null]), (2, '{}');
insert into app.post (id, ref_type, ref_id) values (3, 'File', 3), (4, 'User', 4);
insert into app.post (id, digest) values (5, 'd5');
insert into app.post (id, body) values (6, '{"files": [6, 7]}');
select matches(pg_temp.review(), ' 14 deleted, 0 failed', 'each keeps what it mentions');
select is(pg_temp.files(), '{1,2,3,5,6,7}', 'and nothing else');
select matches(pg_temp.said($$insert into app.post (id, file_ids) values (9, '{1, 11}')$$),
    '^ZG005 .*refers to 11', 'an element that is gone is refused');
select matches(pg_temp.said($$insert into app.post (id, digest) values (9, 'd11')$$),
    '^ZG005 .*refers to d11', 'so is another column''s value');
select matches(pg_temp.said($$insert into app.post (id, body) values (9, '{"files": [11]}')$$),
    '^ZG005 .*refers to 11', 'so is what a function finds');
select matches(pg_temp.said($$update app.post set ref_id = 11 where id = 3$$),
    '^ZG005 .*refers to 11', 'so is a pair of type and id');
select is(pg_temp.said($$update app.post set ref_id = 11 where id = 4$$), null,
    'but not one of another type');
select matches(pg_temp.said($$update app.post set ref_type = 'File' where id = 4$$),
    '^ZG005 .*refers to 11', 'until its type changes');
select pg_temp.queued() \g /dev/null
update app.post set file_ids = '{2, 3}' where id = 1;
select is(pg_temp.queued(), '1 post_update', 'an element that goes is queued, others are not');
update app.post set ref_type = 'User' where id = 3;
select is(pg_temp.queued(), '3 post_update', 'a type that changes is a loss');
update app.post set digest = null, body = '{"files": [7, 6]}' where id in (5, 6);
select is(pg_temp.queued(), '5 post_update', 'another column leads to its row');
delete from app.post;
select is(pg_temp.queued(), '2 post_delete, 3 post_delete, 6 post_delete, 7 post_delete',
    'a delete queues all elements');
update app.file set digest = 'new' where id = 5;
select is(pg_temp.queued(), '5 file_update', 'a row whose column changes may have lost what kept it');
-- The index has raised before the trigger could.
select matches(pg_temp.said($$insert into app.post (id, body) values (9, '{"files": ["x"]}')$$),
    '^22P02', 'keys that cannot be computed fail in the index');
savepoint without_the_index;
drop index app.post_ids_idx;
select is(pg_temp.said($$insert into app.post (id, body) values (9, '{"files": ["x"]}')$$), null,
    'without the index, they fail nobody''s statement');
select matches((select reason from gc.scan_requests), 'app.ids.body.. cannot be computed',
    'a scan is asked for');
insert into gc.file_review_queue (id, event, review_after) values (1, 'test', now());
select is(pg_temp.review(), '0 kept, 0 deleted, 1 failed', 'and nothing is deleted meanwhile');
rollback to without_the_index;

-- Fewer keepers than before.
create table app.spare (file_id bigint);
create index on app.spare (file_id);
select count(*) from gc.declare_reference('file', 'app.spare', 'file_id') \g /dev/null
delete from gc.file_review_queue;
delete from gc.scan_requests;
drop table app.spare;
select is(pg_temp.review(), '0 kept, 0 deleted, 0 failed', 'a table that went takes a keeper along');
select matches(pg_temp.why(), 'app.spare.file_id. no longer refers to "app.file"', 'status says so');
create table app.spare (file_id bigint);
create index on app.spare (file_id);
select count(*) from gc.declare_reference('file', 'app.spare', 'file_id') \g /dev/null
select is(pg_temp.why(), null, 'declared for the new table, it goes on');
select results_eq('select reason from gc.scan_requests',
    $$values ('app.spare(file_id) was made again')$$, 'with a scan');
alter table app.spare rename column file_id to other_id;
select count(*) from gc.review() \g /dev/null
select matches(pg_temp.why(), 'app.spare.file_id. no longer refers', 'so does a column');
select matches(pg_temp.said($$select gc.drop_reference('file', 'app.spare', 'nix')$$),
    '^42704 .*app.spare.nix. is no declared reference to "file"', 'what was never declared');
delete from gc.scan_requests;
select is((select count(*) from gc.drop_reference('file', 'app.spare', 'file_id')), 5::bigint,
    'gc.drop_reference accepts the loss, and returns what is left');
select results_eq('select reason from gc.scan_requests',
    $$values ('app.spare(file_id) no longer refers to it')$$, 'a scan looks for what it kept');
select is(pg_temp.why(), null, 'and the collection is not blocked');
delete from gc.declared_references where keys = 'digest';
select count(*) from gc.review() \g /dev/null
select matches(pg_temp.why(), 'app.post.digest. no longer refers', 'a row deleted by hand is a loss');
select count(*) from gc.track('app.file') \g /dev/null
select is(pg_temp.why(), null, 'which gc.track accepts');
select is((select count(*) from gc.declared_references), 4::bigint, 'and keeps the others');
alter table app.post disable trigger gc_file_after_post_insert;
select count(*) from gc.review() \g /dev/null
select matches(pg_temp.why(), 'gc_file_after_post_insert on app.post is disabled',
    'a trigger that is disabled locks nothing: blocked');
alter table app.post enable trigger gc_file_after_post_insert;
drop trigger gc_file_after_post_insert on app.post;
select count(*) from gc.review() \g /dev/null
select matches(pg_temp.said($$insert into app.post (id, file_ids) values (9, '{1, 11}')$$),
    '^ZG005', 'a trigger that was dropped is made again');
create index on app.post (ref_id);
create function app.other(bigint) returns boolean language sql immutable return true;
select count(*) from gc.declare_reference('file', 'app.post', 'ref_id',
    condition => $$ref_type = 'File' and app.other(ref_id)$$) \g /dev/null
drop function app.other(bigint);
select count(*) from gc.review() \g /dev/null
select matches(pg_temp.why(), 'other', 'a function that is gone blocks the collection');
select is(pg_temp.said($$insert into app.post (id, ref_type, ref_id) values (30, 'File', 1)$$), null,
    'but fails nobody''s statement');
delete from app.post;
select count(*) from gc.declare_reference('file', 'app.post', 'ref_id',
    condition => $$ref_type = 'File'$$) \g /dev/null
select is(pg_temp.why(), null, 'until it is declared without');

-- Owned.
select matches(pg_temp.said($$select gc.track('app.file', owned => '{post(file_ids)}')$$),
    '^22023|^42704', 'an array cannot be owned');
select results_eq(
    $$select reference, role from gc.track('app.file', owned => '{post(ref_id)}') where role = 'owned'$$,
    $$values ('app.post(ref_id)', 'owned')$$, 'a column can');
delete from app.file;
delete from gc.file_gone;
insert into app.file values (1, 'd1'), (2, 'd2');
insert into app.post (id, ref_type, ref_id, file_ids) values
    (1, 'File', 1, null), (2, 'User', 1, null), (3, 'File', 2, '{2}');
select matches(pg_temp.review(), ' 1 deleted, 0 failed', 'what is owned keeps nothing');
select is(array(select id from app.post order by id), '{2,3}',
    'and goes with its target, where the condition holds');
select matches(pg_temp.said($$insert into app.post (id, ref_type, ref_id) values (5, 'File', 1)$$),
    '^ZG005', 'nothing can be owned by what is gone');
select is(pg_temp.said($$select gc.drop_reference('file', 'app.post', 'ref_id')$$), null,
    'an owned reference can be dropped');
select is((select owned from gc.collections), '{}', 'and is no longer owned');

-- A row does not keep itself.
alter table app.file add parts bigint[];
create index on app.file using gin (parts);
select count(*) from gc.declare_reference('file', 'app.file', 'parts') \g /dev/null
delete from app.post;
delete from app.file;
insert into app.file values (51, 'a', null, '{51}'), (52, 'b', null, '{53}'), (53, 'c', null, null);
select is(pg_temp.review(), '1 kept, 2 deleted, 0 failed', 'a row that mentions itself is garbage');
select is(pg_temp.files(), '{53}', 'what another row mentions is not');

-- Partitions.
create table app.event (at date, file_id bigint) partition by range (at);
create table app.event_1 partition of app.event for values from ('2024-01-01') to ('2025-01-01');
create table app.event_2 partition of app.event for values from ('2025-01-01') to ('2026-01-01');
create index on app.event (file_id);
select matches(pg_temp.said($$select gc.declare_reference('file', 'app.event_1', 'file_id')$$),
    '^42809 .*gc.declare_reference.''file'', ''app.event''', 'a partition is no table of its own');
select count(*) from gc.declare_reference('file', 'app.event', 'file_id') \g /dev/null
delete from app.file;
insert into app.file values (61, 'a'), (62, 'b'), (63, 'c');
insert into app.event values ('2024-02-02', 61);
insert into app.event_2 values ('2025-02-02', 62);
select is(pg_temp.review(), '2 kept, 1 deleted, 0 failed', 'what partitions mention is kept');
select matches(pg_temp.said($$insert into app.event_1 values ('2024-02-02', 63)$$), '^ZG005',
    'a partition refuses what is gone');
select matches(pg_temp.said($$insert into app.event values ('2024-02-02', 63)$$), '^ZG005',
    'and so does the table');
update app.event set at = '2025-05-05' where file_id = 61;
select is(pg_temp.review(), '0 kept, 0 deleted, 0 failed',
    'a row that moves to another partition loses nothing');
create table app.event_3 partition of app.event for values from ('2026-01-01') to ('2027-01-01');
select count(*) from gc.review() \g /dev/null
select matches(pg_temp.said($$insert into app.event_3 values ('2026-02-02', 63)$$), '^ZG005',
    'a new partition has the trigger after a review');
delete from gc.scan_requests;
drop table app.event_2;
select count(*) from gc.review() \g /dev/null
select is((select scanning from gc.collections) or exists (select from gc.scan_requests), true,
    'a partition that is dropped is followed by a scan');

-- Untracking.
select gc.untrack('file');
select is_empty('table gc.declared_references', 'gc.untrack forgets declarations');
select is(pg_temp.said('insert into app.post (id, file_id) values (70, 63)'), null,
    'and nothing is refused any more');

-- Chains through type and id, all without foreign keys: variants of Rails' ActiveStorage.
create table app.blobs (id bigint primary key, key text);
create table app.attachments (
    id bigint primary key, record_type text, record_id bigint, blob_id bigint
);
create table app.variant_records (id bigint primary key, blob_id bigint, digest text);
create index on app.attachments (blob_id);
create index on app.attachments (record_id) where record_type = 'VariantRecord';
create index on app.variant_records (blob_id, digest);
insert into gc.review_after_defaults values ('blobs_insert', '0'), ('attachments_delete', '0'),
    ('variant_records_insert', '0'), ('variant_records_delete', '0');
select count(*) from gc.track('app.blobs') \g /dev/null
select count(*) from gc.track('app.variant_records') \g /dev/null
select count(*) from gc.declare_reference('blobs', 'app.attachments', 'blob_id') \g /dev/null
select count(*) from gc.declare_reference('blobs', 'app.variant_records', 'blob_id') \g /dev/null
-- A variant is needed as long as its original is attached to something, and has its own attachment.
select count(*) from gc.declare_reference('variant_records', 'app.attachments', 'blob_id',
    by => 'blob_id') \g /dev/null
select count(*) from gc.declare_reference('variant_records', 'app.attachments', 'record_id',
    condition => $$record_type = 'VariantRecord'$$) \g /dev/null
select count(*) from gc.track('app.variant_records', owned => '{attachments(record_id)}') \g /dev/null
insert into app.blobs select i, 'k' || i from generate_series(1, 30) as i;
insert into app.attachments select i, 'Post', i, i from generate_series(1, 10) as i;
insert into app.variant_records select i, i, 'thumb' from generate_series(1, 10) as i;
insert into app.attachments
select 100 + i, 'VariantRecord', i, 10 + i from generate_series(1, 10) as i;
create function pg_temp.reviews() returns void language plpgsql as $$
begin
    for i in 1 .. 6 loop
        perform gc.review();
    end loop;
end;
$$;
select pg_temp.reviews();
select is(array(select id from app.blobs order by id), array(select generate_series(1, 20)::bigint),
    'blobs that are attached, and their variants, are kept');
delete from app.attachments where record_type = 'Post' and id % 2 = 0;
select pg_temp.reviews();
select is(array(select id from app.blobs order by id),
    array(select i::bigint from generate_series(1, 20) as i where i % 2 = 1),
    'a blob that is detached goes with its variants, through the whole chain');
select is(array(select id from app.variant_records order by id), '{1,3,5,7,9}',
    'and so do the variant records');
select is((select count(*) from app.attachments), 10::bigint, 'and what attached the variants');

-- What is mentioned does not go with its owner, nor by a cascade: a foreign key would not let it.
create table app.shelf (id bigint primary key, old boolean not null default false);
create table app.book (id bigint primary key, shelf bigint references app.shelf);
create index on app.book (shelf);
create table app.reader (id bigint primary key, books bigint[]);
create index on app.reader using gin (books);
select count(*) as ignored from gc.track('app.book', condition => 'false', undo => '0') \gset
select count(*) as ignored from gc.declare_reference('book', 'app.reader', 'books') \gset
select count(*) as ignored from gc.track('app.shelf', condition => 'old', owned => '{book}',
    undo => '0') \gset
insert into app.shelf values (1, true), (2, true);
insert into app.book values (10, 1), (20, 2);
insert into app.reader values (1, '{20}');
update gc.shelf_review_queue set review_after = now();
select is((select format('%s deleted, %s failed', deleted, failed) from gc.review()
    where collection = 'shelf'), '1 deleted, 1 failed', 'an owner of a mentioned row stays');
select results_eq('select id from app.book', 'values (20::bigint)', 'so does what is mentioned');
delete from app.reader;
update gc.shelf_review_queue set review_after = now();
select is((select deleted from gc.review() where collection = 'shelf'), 1,
    'both go when it is mentioned no more');

-- Keys of any type are compared as a whole, and as the collection compares them.
create function pg_temp.reviewed(name text) returns text language plpgsql as $$
begin
    execute format('update gc.%I set review_after = now()', name || '_review_queue');
    return (select format('%s kept, %s deleted, %s failed', kept, deleted, failed)
        from gc.review() where collection = name);
end;
$$;
create table app.seat (id char(4) primary key);
create table app.ticket (id integer primary key, seats char(4)[], seat char(4));
create index on app.ticket using gin (seats);
create index on app.ticket (seat);
select count(*) as ignored from gc.track('app.seat') \gset
select count(*) as ignored from gc.declare_reference('seat', 'app.ticket', 'seats') \gset
insert into app.seat values ('ab'), ('ac');
insert into app.ticket values (1, '{ab}');
select is(pg_temp.reviewed('seat'), '1 kept, 1 deleted, 0 failed',
    'an array of characters keeps what it names, and nothing else');
select results_eq('select id::text from app.seat', array['ab'], 'which is there');
select count(*) as ignored from gc.declare_reference('seat', 'app.ticket', 'seat') \gset
select lives_ok($$insert into app.ticket values (2, '{zz}', 'zy')$$,
    'a key that is not there can be as long as its type allows');
create table app.mask (id bit(3) primary key);
create table app.filter (masks bit(3)[]);
create index on app.filter using gin (masks);
select count(*) as ignored from gc.track('app.mask') \gset
select count(*) as ignored from gc.declare_reference('mask', 'app.filter', 'masks') \gset
insert into app.mask values ('101'), ('100');
insert into app.filter values ('{101}');
select is(pg_temp.reviewed('mask'), '1 kept, 1 deleted, 0 failed', 'nor is a bit left out');

create domain app.number as integer;
create domain app.house as app.number;
create table app.home (id app.house primary key);
create table app.letter (home app.house, homes app.house[]);
create index on app.letter (home);
create index on app.letter using gin ((homes::integer[]));
select count(*) as ignored from gc.track('app.home') \gset
select lives_ok($$select gc.declare_reference('home', 'app.letter', 'home')$$,
    'a domain over a domain is declared');
select is(pg_temp.said($$select gc.declare_reference('home', 'app.letter', 'homes')$$),
    '42804 | keys of type app.house[] cannot be compared with "app.home"(id) by an index | '
    'select * from gc.declare_reference(''home'', ''app.letter'', ''(homes)::integer[]'');',
    'an array of it is refused, with what can be declared');
select lives_ok($$select gc.declare_reference('home', 'app.letter', '(homes)::integer[]')$$,
    'which is then done');
insert into app.home values (1), (2), (3);
insert into app.letter values (1, '{2}');
select is(pg_temp.reviewed('home'), '2 kept, 1 deleted, 0 failed', 'and both keep');

create table app.path (id integer[] primary key);
create table app.walk (path integer[]);
create index on app.walk (path);
select count(*) as ignored from gc.track('app.path') \gset
select is(pg_temp.said($$select gc.declare_reference('path', 'app.walk', 'path')$$),
    '22023 | the values of "app.path"(id) are arrays or rows | '
    'Make a foreign key, or name another column by which rows are referred to.',
    'keys that are arrays are refused: each would be taken for several');
create type app.point as (x integer, y integer);
create table app.town (id app.point primary key);
create table app.flight (towns app.point[]);
create index on app.flight using gin (towns);
select count(*) as ignored from gc.track('app.town') \gset
select is(pg_temp.said($$select gc.declare_reference('town', 'app.flight', 'towns')$$),
    '22023 | the values of "app.town"(id) are arrays or rows | '
    'Make a foreign key, or name another column by which rows are referred to.',
    'so are rows');

create function pg_temp.with_collation()
    returns setof text
    language plpgsql
as $$
begin
    begin
        create collation app.no_case (
            provider = icu, locale = 'und-u-ks-level2', deterministic = false);
    exception
        when feature_not_supported then
            return query select skip('this PostgreSQL has no ICU', 3);
            return;
    end;
    create table app.label (id text collate app.no_case primary key);
    create table app.jar (labels text[] collate "C");
    create index on app.jar using gin (labels);
    perform gc.track('app.label');
    return next lives_ok($l$select gc.declare_reference('label', 'app.jar', 'labels')$l$,
        'an array of another collation than the key is declared');
    insert into app.label values ('a'), ('b');
    insert into app.jar values ('{A}');
    return next is(pg_temp.reviewed('label'), '1 kept, 1 deleted, 0 failed',
        'and keeps what the key takes for the same');
    return next lives_ok($l$select gc.scan('label', 10)$l$, 'a scan compares so as well');
end;
$$;
select pg_temp.with_collation();

-- Names that mean something else in a view, or in what we make of it.
create table app.old (id integer primary key, value bigint);
create index on app.old (value);
create table app.new (id integer primary key, value bigint);
create index on app.new (value);
create table app.page (id bigint primary key);
select count(*) as ignored from gc.track('app.page') \gset
select lives_ok($$select gc.declare_reference('page', 'app.old', '"value"')$$,
    'a table may be called old, and a column value');
select lives_ok($$select gc.declare_reference('page', 'app.new', 'value')$$, 'or new');
insert into app.page values (1), (2), (3);
insert into app.old values (1, 1);
insert into app.new values (1, 2);
select is(pg_temp.reviewed('page'), '2 kept, 1 deleted, 0 failed', 'and both keep');
select results_eq('select id from app.page order by id', array[1, 2]::bigint[], 'what they name');

-- What is partitioned has no unique index but by what it is partitioned by.
create table app.plot (id integer primary key, code text) partition by hash (id);
create table app.plot_0 partition of app.plot for values with (modulus 1, remainder 0);
create table app.deed (plot text);
create index on app.deed (plot);
select count(*) as ignored from gc.track('app.plot') \gset
select is(pg_temp.said($$select gc.declare_reference('plot', 'app.deed', 'plot', by => 'code')$$),
    '22023 | nothing finds the rows of "app.plot" by code | create index on app.plot (code);',
    'the index that is asked for is one that can be made');
create index on app.plot (code);
select lives_ok($$select gc.declare_reference('plot', 'app.deed', 'plot', by => 'code')$$,
    'and with it the reference is declared');

-- by is a name, whatever it begins with.
create table app.field (id integer primary key, " code" text unique);
select count(*) as ignored from gc.track('app.field') \gset
select lives_ok($$select gc.declare_reference('field', 'app.deed', 'plot', by => ' code')$$,
    'a column may have a name that begins with a space');

select * from finish();
rollback;
