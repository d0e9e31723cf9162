-- References: every kind of foreign key keeps its target, and is followed when it goes.
begin;
select plan(99);

set local client_min_messages = warning;
create schema app;
update gc.settings set jitter = '0', undo = '0';

-- Everything that is queued becomes due, and one collection's result is told.
create function app.review(name text) returns text language plpgsql as $$
begin
    execute format('update gc.%I set review_after = now()',
        gc._object_name(name, '_review_queue'));
    return (
        select format('%s kept, %s deleted, %s failed', kept, deleted, failed)
        from gc.review() where collection = name
    );
end;
$$;

create table app.file (
    id int primary key,
    code text unique,
    a int,
    b text,
    parent int references app.file,
    unique (a, b)
);
create index on app.file (parent);
create table app.no_action (file int references app.file);
create table app.restricts (file int references app.file on delete restrict);
create table app.cascades (file int references app.file on delete cascade);
create table app.sets_null (file int references app.file on delete set null);
create table app.sets_default (file int default 0 references app.file on delete set default);
create table app.by_code (code varchar(20) references app.file (code) on delete cascade);
create table app.by_pair (
    x text, y int, note text,
    foreign key (y, x) references app.file (a, b) on update cascade
);
create table app.twice (first int references app.file, second bigint references app.file);
create table app.parted (day date, file int references app.file) partition by range (day);
create table app.parted_1 partition of app.parted for values from ('2020-01-01') to ('2021-01-01');
create table app.parted_2 partition of app.parted for values from ('2021-01-01') to ('2022-01-01')
    partition by list (file);
create table app.parted_2_all partition of app.parted_2 default;
create table app.old (file int);
create table app.late (
    file int references app.file deferrable initially deferred
);
create table app.full_match (
    y int, x text, foreign key (y, x) references app.file (a, b) match full
);
create index on app.no_action (file);
create index on app.restricts (file);
create index on app.cascades (file);
create index on app.sets_null (file);
create index on app.sets_default (file);
create index on app.by_code (code);
create index on app.by_pair (x, y);
create index on app.twice (first) where first is not null;
create index on app.twice (second, first);
create index on app.parted (file);
create index on app.old (file);
create index on app.late (file);
create index on app.full_match (y, x);

insert into app.file (id, code, a, b)
select i, 'code ' || i, i / 2, 'b' || i from generate_series(0, 20) as i;
insert into app.old values (10), (999);
alter table app.old add foreign key (file) references app.file not valid;

select results_eq(
    $$select reference, role from gc.track('app.file') order by reference collate "C"$$,
    $$values ('app.by_code(code)', 'keeps'), ('app.by_pair(y, x)', 'keeps'),
        ('app.cascades(file)', 'keeps'), ('app.file(parent)', 'keeps'),
        ('app.full_match(y, x)', 'keeps'), ('app.late(file)', 'keeps'),
        ('app.no_action(file)', 'keeps'), ('app.old(file)', 'keeps'),
        ('app.parted(file)', 'keeps'), ('app.restricts(file)', 'keeps'),
        ('app.sets_default(file)', 'keeps'), ('app.sets_null(file)', 'keeps'),
        ('app.twice(first)', 'keeps'), ('app.twice(second)', 'keeps')$$,
    'track returns every foreign key once, and all of them keep');

insert into app.no_action values (1), (null);
insert into app.restricts values (2);
insert into app.cascades values (3);
insert into app.sets_null values (4);
insert into app.sets_default values (5), (0);
insert into app.by_code values ('code 6');
insert into app.by_pair values ('b7', 3, 'full'), ('b20', null, 'matches nothing');
insert into app.twice values (8, 9), (8, null);
insert into app.late values (11);
insert into app.parted values ('2020-05-05', 12), ('2021-05-05', 13);
insert into app.full_match values (7, 'b14'), (null, null);
update app.file set parent = 15 where id = 16;
update app.file set parent = 16 where id = 1;
update app.file set parent = 17 where id = 17;

select gc.scan('file') as ignored \gset
select is(app.review('file'), '0 kept, 4 deleted, 0 failed',
    'a scan queues only what nothing refers to');
select is(array_agg(id order by id), array[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],
    'no foreign key of any kind loses its target; a row that refers to itself is garbage')
from app.file;
insert into gc.file_review_queue (id, event, review_after) select id, 'by hand', now()
from app.file;
select is(app.review('file'), '17 kept, 0 deleted, 0 failed',
    'a review comes to the same result as the scan');
set constraints all immediate;
select is((select count(*) from app.cascades), 1::bigint,
    'ON DELETE CASCADE keeps its target, and its rows stay');
select results_eq('select file from app.sets_null', 'values (4)',
    'ON DELETE SET NULL keeps its target, and its rows stay as they are');
select results_eq('select file from app.sets_default order by 1', 'values (0), (5)',
    'ON DELETE SET DEFAULT keeps its target, and its rows stay as they are');
select results_eq('select code from app.by_code', $$values ('code 6'::varchar)$$,
    'a reference to a unique key that is not the primary key keeps its target');
select results_eq('select file from app.old order by 1', 'values (10), (999)',
    'a foreign key that is NOT VALID keeps the targets of its old rows');

-- Now each of them goes.
create function app.queued() returns table (id int, event text) language sql as $$
    with gone as (delete from gc.file_review_queue as q returning q.id, q.event)
    select distinct * from gone order by 1, 2
$$;
create function app.follows(statement text, id int, event text, what text) returns text
language plpgsql as $$
begin
    delete from gc.file_review_queue;
    execute statement;
    return results_eq('select * from app.queued()', format('values (%s, %L)', id, event), what);
end;
$$;
select app.follows('delete from app.restricts', 2, 'restricts_delete', 'RESTRICT is followed');
select app.follows('delete from app.cascades', 3, 'cascades_delete', 'CASCADE is followed');
select app.follows('update app.sets_null set file = null', 4, 'sets_null_update',
    'SET NULL is followed');
select app.follows('delete from app.sets_default where file = 5', 5, 'sets_default_delete',
    'SET DEFAULT is followed');
select app.follows('delete from app.by_code', 6, 'by_code_delete',
    'a reference to another unique key is followed');
select app.follows($$update app.by_pair set note = 'x'; delete from app.by_pair$$, 7,
    'by_pair_delete', 'a composite reference in another order of columns is followed');
select app.follows('update app.twice set first = null', 8, 'twice_update',
    'the first of two references from one table is followed');
select app.follows('delete from app.twice', 9, 'twice_delete',
    'the second of two references from one table is followed, from another integer type too');
select app.follows('delete from app.old where file = 10', 10, 'old_delete',
    'a foreign key that is NOT VALID is followed');
select app.follows('delete from app.late', 11, 'late_delete', 'a deferred one is followed');
select app.follows('delete from app.parted_1', 12, 'parted_delete',
    'a statement aimed at a partition is followed under the name of the table');
select app.follows('delete from app.parted_2_all', 13, 'parted_delete',
    'a statement aimed at a partition of a partition is followed');
select app.follows('delete from app.full_match', 14, 'full_match_delete',
    'a reference with MATCH FULL is followed');
select app.follows('update app.file set parent = null where id = 1', 16, 'file_update',
    'a reference from the table to itself is followed');

insert into gc.file_review_queue (id, event, review_after) select id, 'by hand', now()
from app.file;
select is(app.review('file'), '3 kept, 14 deleted, 0 failed',
    'what was kept only by those references is garbage now');
select is(array_agg(id order by id), array[0, 1, 15], 'what is still referred to is not')
from app.file;
select results_eq('select id, event from gc.file_review_queue',
    $$values (15, 'file_delete')$$,
    'a row that a review deletes queues what it referred to itself');
select is(app.review('file'), '0 kept, 1 deleted, 0 failed', 'and that goes in the next review');
set constraints all immediate;

-- A deferred reference whose target is not there yet.
set constraints all deferred;
insert into app.late values (500);
insert into app.file (id) values (500);
select is(app.review('file'), '1 kept, 0 deleted, 0 failed',
    'a deferred reference that was there before its target keeps it');
set constraints all immediate;
select gc.untrack('file') as ignored \gset
drop table app.old;

-- Onto a partitioned table; onto one of its partitions alone.
create table app.part (repo int, id int, extra int, primary key (repo, id), unique (repo, extra))
partition by list (repo);
create table app.part_1 partition of app.part for values in (1);
create table app.part_2 partition of app.part for values in (2) partition by hash (repo);
create table app.part_2_0 partition of app.part_2 for values with (modulus 1, remainder 0);
create table app.onto (
    repo int, id int, foreign key (repo, id) references app.part on delete cascade
);
create table app.onto_extra (
    extra int, repo int, foreign key (extra, repo) references app.part (extra, repo)
);
create table app.onto_one (repo int, id int, foreign key (repo, id) references app.part_1);
create table app.parts (
    repo int, id int, foreign key (repo, id) references app.part
) partition by list (repo);
create table app.parts_1 partition of app.parts for values in (1);
create table app.parts_2 partition of app.parts for values in (2);
create index on app.onto (repo, id);
create index on app.onto_extra (repo, extra);
create index on app.onto_one (id, repo);
create index on app.parts (id, repo);
select results_eq($$select reference from gc.track('app.part') order by reference collate "C"$$,
    $$values ('app.onto(repo, id)'), ('app.onto_extra(extra, repo)'), ('app.onto_one(repo, id)'),
        ('app.parts(repo, id)')$$,
    'references onto a partitioned table and onto a partition of it are found once each');
insert into app.part select repo, id, id + 100
from generate_series(1, 2) as repo, generate_series(1, 6) as id;
insert into app.part_1 values (1, 7, 107);
insert into app.part_2_0 values (2, 7, 107);
insert into app.onto values (1, 1), (2, 2);
insert into app.onto_extra values (103, 1), (104, 2);
insert into app.onto_one values (1, 5);
insert into app.parts values (1, 6), (2, 6);
select is(app.review('part'), '7 kept, 7 deleted, 0 failed',
    'rows in every partition are reviewed, wherever they were inserted');
select is(array_agg((repo, id)::text order by repo, id),
    '{"(1,1)","(1,3)","(1,5)","(1,6)","(2,2)","(2,4)","(2,6)"}',
    'references onto a partitioned table keep their targets') from app.part;
delete from app.onto;
delete from app.onto_extra;
delete from app.onto_one;
delete from app.parts_1;
select is(app.review('part'), '0 kept, 6 deleted, 0 failed',
    'references onto a partitioned table are followed');
delete from app.parts;
select is(app.review('part'), '0 kept, 1 deleted, 0 failed',
    'a reference from a partitioned table onto a partitioned table is followed');
insert into app.part values (1, 1, 1);
insert into app.onto values (1, 1);
delete from gc.part_review_queue;
delete from app.part_1;
select is_empty('select * from gc.part_review_queue',
    'a target that takes its references along by cascade is not queued');
select gc.untrack('part') as ignored \gset

-- Names. Each is an identifier with something in it that a careless template would trip over.
create function app.names_work(target text, key text, other text, referring text, refers text)
returns text language plpgsql as $$
declare
    name text := target;
    result text;
begin
    execute format('create table app.%I (%I int primary key, %I text)', target, key, other);
    execute format('create table app.%I (%I int references app.%I on delete cascade)',
        referring, refers, target);
    execute format('create index on app.%I (%I)', referring, refers);
    perform gc.track(format('app.%I', target)::regclass,
        url => format('''mem://%%s/{queue}/'' || %I', key),
        size => format('length(%I)', other), label => quote_ident(other),
        condition => format('%I is not null', other));
    execute format('insert into app.%I values (1, ''one''), (2, ''two''), (3, null)', target);
    execute format('insert into app.%I values (1)', referring);
    result := app.review(name);
    execute format('update app.%I set %I = ''x'' where %I = 3', target, other, key);
    execute format('update app.%I set %I = null', referring, refers);
    result := result || '; ' || app.review(name);
    execute format('insert into app.%I values (4, ''four'')', target);
    execute format('truncate app.%I cascade', target);
    result := result || '; ' || (
        select string_agg(t.key || ' ' || t.label || ' ' || t.size || ' ' || t.url, ', '
            order by t.key)
        from gc.tombstones as t where t.collection = name
    );
    delete from gc.tombstones;
    perform gc.scan(name);
    perform gc.untrack(name);
    execute format('drop table app.%I, app.%I', target, referring);
    return result;
exception
    when others then
        return sqlerrm;
end;
$$;
create function app.names_ok(
    what text, target text, key text default 'id', other text default 'note',
    referring text default 'refers', refers text default 'target'
)
returns text language sql as $$
    select is(app.names_work(target, key, other, referring, refers),
        '1 kept, 1 deleted, 0 failed; 0 kept, 2 deleted, 0 failed; '
        '1 one 3 mem://%s/{queue}/1, 2 two 3 mem://%s/{queue}/2, '
        '3 x 1 mem://%s/{queue}/3, 4 four 4 mem://%s/{queue}/4',
        'names work: ' || what)
$$;
select app.names_ok('plain ones', 'plain');
select app.names_ok('capitals', 'Blob', 'Digest', 'Media Type', 'Layers', 'Digest');
select app.names_ok('spaces and dots', 'my blob.s', 'the key', ' other ', 'a. b', 'c .d');
select app.names_ok('quotes', 'b"lo''b', 'k''e"y', '"''', '''"r"''', 'x''"');
select app.names_ok('percent signs', '%s %I %L', '%1$s', '100%', '%%', '%s');
select app.names_ok('braces', '{target}', '{queue}', '{the table}', '{kept}', '{');
select app.names_ok('dollar quotes', '$trigger$', '$review$', '$$', '$scan$', '$key$');
select app.names_ok('backslashes', E'a\\n\\', E'k\\\\  y', E'\\r', E'\\', E'r\\');
select app.names_ok('words of the templates', '{url}{columns}', '{columns}', '{source}', '{url}',
    '{columns}');
select is(app.names_work(target, key, other, referring, refers),
    format('the name of the %s "%s" has a control character', kind, shown),
    format('a %s whose name is "%s" is refused', kind, shown))
from (values
    ('collection', E'\\u0002', chr(2), 'id', 'note', 'refers', 'target'),
    ('column', E'\\n', 'plain', E'\n', 'note', 'refers', 'target'),
    ('column', E'a\\tb', 'plain', 'id', E'a\tb', 'refers', 'target'),
    ('table', E'\\u0001', 'plain', 'id', 'note', chr(1), 'target'),
    ('column', E'r\\r', 'plain', 'id', 'note', 'refers', E'r\r')
) as v(kind, shown, target, key, other, referring, refers);
create table app.plain (id integer primary key);
select throws_ok($$select gc.track('app.plain', name => E'a\nb')$$, '42602',
    E'the name of the collection "a\\nb" has a control character',
    'the same goes for a given name');
select throws_ok($$select gc.track('app.plain', url => E'''\001'' || id')$$, '22023',
    'the argument url has a control character', 'and for a character that a line break stands for');
select lives_ok($$select gc.track('app.plain', condition => 'id > 0
    or id < 0')$$, 'but an expression may have several lines');
select gc.untrack('plain') as ignored \gset
drop table app.plain;

-- Partitions whose names look like words of the templates, with links.
create table app."{links}" (id integer primary key);
create table app."{columns}" (file integer references app."{links}", "{url}" integer not null)
    partition by list ("{url}");
create table app."{columns}{r_parts} %s" partition of app."{columns}" for values in (1);
create table app."%1$s" partition of app."{columns}" for values in (2);
create index on app."{columns}" (file);
insert into app."{links}" values (1), (2), (3), (4);
insert into app."{columns}" values (1, 1), (2, 2);
select lives_ok($$select gc.track('app."{links}"', name => '{columns} %s',
    url => '''x://%s/{source}/'' || id')$$, 'a table with links may be called {columns}');
select results_eq('select * from gc."{columns} %s_{columns}_links" order by 1',
    $$values (1, 1), (2, 2)$$, 'its links are filled');
select lives_ok($$update app."{columns}" set file = 3, "{url}" = 2 where file = 1;
    insert into app."{columns}" values (4, 1); delete from app."{columns}" where file = 2$$,
    'its statements are followed');
select gc.scan('{columns} %s') as ignored \gset
select is(app.review('{columns} %s'), '0 kept, 2 deleted, 0 failed', 'and reviewed');
select lives_ok('truncate app."{links}" cascade', 'TRUNCATE is followed as well');
select results_eq($$select url from gc.tombstones where collection = '{columns} %s' order by 1$$,
    $$select 'x://%s/{source}/' || i from generate_series(1, 4) as i$$, 'with its objects');
delete from gc.tombstones;
select gc.untrack('{columns} %s') as ignored \gset

-- Deferred foreign keys.
create table app.model (id integer primary key);
create table app.line (
    a integer constraint a_fkey references app.model deferrable initially deferred,
    b integer references app.model deferrable initially immediate,
    c integer references app.model
);
create index on app.line (a);
create index on app.line (b);
create index on app.line (c);
select results_eq($$select reference, note ~ 'at its commit', substring(note from 'alter table .*')
        from gc.track('app.model') order by 1$$,
    $$values ('app.line(a)', true, 'alter table app.line alter constraint a_fkey not deferrable;'),
        ('app.line(b)', null, null), ('app.line(c)', null, null)$$,
    'gc.track says which references are deferred, and what makes them immediate');
alter table app.line alter constraint a_fkey not deferrable;
select is_empty($$select from gc.track('app.model') where note is not null$$,
    'and no more once they are not');
select gc.untrack('model') as ignored \gset
select app.names_ok('63 characters', repeat('t', 63), repeat('k', 63), repeat('o', 63),
    repeat('r', 63), repeat('f', 63));
select app.names_ok('63 bytes that are not ASCII', repeat('ß', 31), repeat('€', 21),
    repeat('é', 31), repeat('ü', 31), repeat('ж', 31));
select app.names_ok('key words', 'select', 'order', 'user', 'table', 'from');
select app.names_ok('the aliases of the templates', 't', 'q', 'r', 'd', 'this');
select app.names_ok('what a queue has too', 'event', 'entry', 'review_after', 'review_count',
    'last_error');
select app.names_ok('variables of PL/pgSQL', 'new', 'found', 'tg_op', 'old', 'tg_relid');
select app.names_ok('the transition tables', 'new_rows', 'old_rows', 'new_rows', 'old_rows',
    'new_rows');
select app.names_ok('arguments and results of a review', 'batch', 'taken', 'deleted', 'this',
    'entries');

-- Several tables whose generated names must not meet.
create schema other;
create table app.shared (id int primary key);
create table app.post (shared int references app.shared);
create table other.post (shared int references app.shared);
create table other.app_post (shared int references app.shared);
create index on app.post (shared);
create index on other.post (shared);
create index on other.app_post (shared);
select count(*) as ignored from gc.track('app.shared') \gset
insert into app.shared values (1), (2), (3);
insert into app.post values (1);
insert into other.post values (2);
insert into other.app_post values (3);
delete from gc.shared_review_queue;
delete from app.post;
delete from other.post;
delete from other.app_post;
select results_eq('select id, event from gc.shared_review_queue order by 1',
    $$values (1, 'post_delete'), (2, 'post_delete'), (3, 'app_post_delete')$$,
    'tables of one name in two schemas are followed each by itself');
select gc.untrack('shared') as ignored \gset

-- Keys of many types; composite ones with the names that queues and reviews use themselves.
create function app.key_works(columns text, refers text, keys text) returns text
language plpgsql as $$
declare
    result text;
begin
    execute format('create table app.keyed (%s, primary key (%s))', columns, refers);
    execute format('create table app.keyed_ref (%s, foreign key (%s) references app.keyed)',
        columns, refers);
    execute format('create index on app.keyed_ref (%s)', refers);
    perform gc.track('app.keyed');
    execute format('insert into app.keyed values %s', keys);
    execute format('insert into app.keyed_ref select * from app.keyed order by 1 limit 1');
    delete from gc.keyed_review_queue;
    perform set_config('timezone', 'Asia/Kolkata', true), set_config('datestyle', 'German', true);
    result := gc.scan('keyed', 1);
    perform set_config('timezone', 'UTC', true), set_config('datestyle', 'SQL, DMY', true);
    result := result || ' ' || gc.scan('keyed', 1) || ' ' || gc.scan('keyed', 9) || ' '
        || gc.scan('keyed', 9) || '; ' || app.review('keyed');
    delete from app.keyed_ref;
    result := result || '; ' || app.review('keyed');
    result := result || '; '
        || (select string_agg(l.key, ' ' order by l.key collate "C") from gc.deletion_log as l);
    delete from gc.deletion_log;
    perform gc.untrack('keyed');
    drop table app.keyed, app.keyed_ref;
    return result;
exception
    when others then
        return sqlerrm;
end;
$$;
create function app.key_ok(columns text, refers text, keys text, want text, what text)
returns text language sql as $$
    select is(app.key_works(columns, refers, keys),
        '1 1 1 0; 0 kept, 2 deleted, 0 failed; 0 kept, 1 deleted, 0 failed; ' || want,
        'a key works: ' || what)
$$;
delete from gc.deletion_log;
select app.key_ok('digest bytea', 'digest', $$(E'\\x00'), (E'\\x0A'), (E'\\xff')$$,
    E'\\x00 \\x0a \\xff', 'bytea');
select app.key_ok('id uuid', 'id', $$('00000000-0000-0000-0000-000000000001'),
    ('00000000-0000-0000-0000-00000000000A'), ('A0000000-0000-0000-0000-000000000001')$$,
    '00000000-0000-0000-0000-000000000001 00000000-0000-0000-0000-00000000000a '
    'a0000000-0000-0000-0000-000000000001', 'uuid');
select app.key_ok('id text collate "C"', 'id', $$(''), (E'\\x''"'), ('é')$$, E' \\x''" é',
    'text with a collation, the empty one too');
select app.key_ok('at timestamptz', 'at',
    $$('2020-03-04 05:06:07.123456+00'), ('2020-12-11 00:00+00'), ('infinity')$$,
    '2020-03-04 05:06:07.123456+00 2020-12-11 00:00:00+00 infinity', 'timestamptz');
select app.key_ok('a int, b int, c text', 'b, c, a', $$(1, 1, 'x'), (2, 2, ','), (1, 3, '"')$$,
    '(1,x,1) (2,",",2) (3,"""",1)', 'composite, in another order than the columns');
create domain app.digest as text check (value like 'sha256:%');
select app.key_ok('d app.digest', 'd', $$('sha256:a'), ('sha256:b'), ('sha256:c')$$,
    'sha256:a sha256:b sha256:c', 'a domain');
create type app.colour as enum ('red', 'green', 'blue');
select app.key_ok('n numeric(5,2), e app.colour', 'n, e',
    $$(1, 'red'), (1, 'green'), (2.5, 'red')$$,
    '(1.00,green) (1.00,red) (2.50,red)', 'numeric and enum');
select app.key_ok('event int, entry int, id int, taken int, batch int, this int, q int, later int',
    'event, entry, id, taken, batch, this, q, later',
    '(1,1,1,1,1,1,1,1), (1,1,1,1,1,1,1,2), (2,1,1,1,1,1,1,1)',
    '(1,1,1,1,1,1,1,1) (1,1,1,1,1,1,1,2) (2,1,1,1,1,1,1,1)',
    'columns named as those of queues and reviews');
select app.key_ok('found int, new int, old int, tg_op int', 'found, new, old, tg_op',
    '(1,1,1,1), (1,2,1,1), (2,1,1,1)', '(1,1,1,1) (1,2,1,1) (2,1,1,1)',
    'columns named as variables of PL/pgSQL');
select app.key_ok('event int, key_event int', 'event, key_event', '(1,1), (1,2), (2,1)',
    '(1,1) (1,2) (2,1)', 'a column named as another is in the queue');
select is_empty($$select q.name from gc._queue_columns() as q where gc._queue_column(q.name) = q.name$$,
    'no column of a queue can be meant by another');

-- PostgreSQL compares a char key and a text that refers to it as char, without the spaces.
create table app.currency (code char(3) primary key);
create table app.price (currency text references app.currency on delete cascade);
create index on app.price (currency);
select from gc.track('app.currency');
insert into app.currency values ('A');
insert into app.price values ('A  ');
select is(app.review('currency'), '1 kept, 0 deleted, 0 failed',
    'a reference of another type than the key is compared as its foreign key compares it');
select isnt_empty('table app.price', 'so nobody loses a row that refers to something');
select gc.untrack('currency') as ignored \gset

-- Collations that differ between key and reference.
create table app.word (id text collate "C" primary key);
create table app.mention (word text collate "POSIX" references app.word on delete cascade);
create index on app.mention (word);
select from gc.track('app.word');
insert into app.word values ('x');
insert into app.mention values ('x');
select lives_ok('delete from app.mention',
    'a reference of another collation than the key can be deleted');
select is(app.review('word'), '0 kept, 1 deleted, 0 failed', 'and what it referred to is collected');

-- Without a length, the types character and bit would be of one.
create domain app.code as char(4);
create table app.place (id app.code primary key);
create table app.trip (place app.code references app.place);
create index on app.trip (place);
select from gc.track('app.place');
insert into app.place values ('ab'), ('ac');
insert into app.trip values ('ab');
select is(app.review('place'), '1 kept, 1 deleted, 0 failed',
    'keys of a domain over character are compared as a whole');
create domain app.flags as bit(3);
create table app.lamp (id app.flags primary key);
create table app.wire (lamp app.flags references app.lamp);
create index on app.wire (lamp);
select from gc.track('app.lamp');
insert into app.lamp values ('101'), ('100');
insert into app.wire values ('101');
select is(app.review('lamp'), '1 kept, 1 deleted, 0 failed', 'and so are those over bit');

-- From partitions alone, while statements are aimed at the table.
create schema branch;
create table app.book (id integer primary key);
create table app.use (n integer, book integer) partition by list (n);
create table app.use_1 partition of app.use for values in (1);
create table app.use_2 partition of app.use for values in (2);
create table app.use_3 partition of app.use for values in (3);
create index on app.use (book);
alter table app.use_1 add foreign key (book) references app.book;
alter table app.use_2 add foreign key (book) references app.book;
create table branch.use (like app.use) partition by list (n);
create table branch.use_8 partition of branch.use default;
create index on branch.use (book);
alter table branch.use_8 add foreign key (book) references app.book;
select from gc.track('app.book');
insert into app.book select generate_series(1, 4);
insert into app.use values (1, 1), (2, 2), (3, 9);
insert into branch.use values (8, 3);
select is(app.review('book'), '3 kept, 1 deleted, 0 failed', 'partitions alone keep');
update app.use set book = null where n = 1;
delete from app.use;
delete from branch.use;
select results_eq('select id, event from gc.book_review_queue order by id',
    $$values (1, 'use_update'), (2, 'use_delete'), (3, 'use_delete'), (9, 'use_delete')$$,
    'statements aimed at their tables are followed');
select is(app.review('book'), '0 kept, 3 deleted, 0 failed', 'and what they kept goes');
insert into app.book values (1), (2);
insert into app.use values (2, 2);
truncate gc.scan_requests;
truncate app.use_3;
select is_empty('select from gc.scan_requests', 'a TRUNCATE of another partition means nothing');
truncate app.use;
select isnt_empty('select from gc.scan_requests', 'one of the table asks for a scan');
alter table app.use rename to used;
insert into app.used values (2, 2);
select is(app.review('book'), '1 kept, 1 deleted, 0 failed', 'the table can be renamed');
truncate gc.scan_requests;
delete from app.used;
select is_empty('select from gc.scan_requests', 'and is followed as before');
select gc.untrack('book') as ignored \gset

-- A value to which nothing refers any more because it has changed.
create table app.doc (id integer primary key, code text unique, number integer unique);
create table app.cites (doc text references app.doc (code) on update set null);
create table app.lists (doc integer references app.doc (number) deferrable initially deferred);
create index on app.cites (doc);
create index on app.lists (doc);
select from gc.track('app.doc');
insert into app.doc values (1, 'a', 1), (2, 'b', 2), (3, 'c', 3);
insert into app.cites values ('a'), ('c');
insert into app.lists values (2);
select is(app.review('doc'), '3 kept, 0 deleted, 0 failed', 'values of other unique keys keep');
set constraints all deferred;
update app.doc set code = upper(code) where id = 1;
update app.doc set number = 20 where id = 2;
delete from app.lists;
set constraints all immediate;
select results_eq('select id, event from gc.doc_review_queue order by id',
    $$values (1, 'doc_update'), (2, 'doc_update')$$,
    'a row that gets another is reviewed: ON UPDATE SET NULL, or the reference goes after that');
select is(app.review('doc'), '0 kept, 2 deleted, 0 failed', 'and goes');
select gc.untrack('doc') as ignored \gset

-- A comma in a name, as it stands in what gc.track returns.
create table app.basket (id integer primary key);
create table app."eggs, milk" (id integer primary key, "in, of" integer references app.basket);
create index on app."eggs, milk" ("in, of");
select results_eq(format($$select role from gc.track('app.basket', condition => 'true',
    owned => array[%L])$$, spelling), array['owned'], 'it can be owned as ' || spelling)
from unnest(array['eggs, milk', 'app."eggs, milk"("in, of")', 'app.eggs, milk(in, of)',
    '"eggs, milk"']) as spelling;

select * from finish();
rollback;
