-- Trust: nothing of an untrusted role runs with the rights of blobgc's owner, wherever it stands.
--
-- The collector belongs to the superuser who runs this test. Whatever mallory's functions do, they
-- count in a sequence, which no rollback hides, if they run as somebody else.
begin;
set local client_min_messages = error;
select plan(100);

create role mallory;
create role shop;
create schema app;
create schema evil authorization mallory;
grant usage on schema app, evil to public;
grant create on schema app to mallory, shop;
update gc.settings set jitter = '0', undo = '0';
insert into gc.review_after_defaults
select e || '_insert', '0' from unnest(array['file', 'word', 'part', 'goods']) as e;

set local role mallory;
create sequence evil.hits;
grant all on sequence evil.hits to public;
create function evil.pwn() returns integer language plpgsql volatile
as $$ begin
    if current_user <> 'mallory' then
        perform nextval('evil.hits');
    end if;
    return 1;
end $$;
create function evil.yes(anyelement) returns boolean immutable language plpgsql
    as 'begin perform evil.pwn(); return true; end';
create function evil.same(bigint) returns bigint immutable language plpgsql
    as 'begin perform evil.pwn(); return $1; end';
create function evil.pwn_trigger() returns trigger language plpgsql
    as 'begin perform evil.pwn(); return coalesce(old, new); end';
create domain evil.checked as bigint check (evil.yes(value));
create type evil.boxed as (inside evil.checked);
create type evil.thing as (x bigint);
reset role;
create function pg_temp.is_untouched(description text) returns text language sql
as $$ select is((select is_called from evil.hits), false, description) $$;

create table app.file (id bigint primary key, size bigint default 1);
create table app.chunk (
    id bigint primary key, file bigint not null references app.file, size bigint default 1
);
create index on app.chunk (file);
create table app.note (chunk bigint references app.chunk on delete cascade, n bigint);
create index on app.note (chunk);
create table app.keeper (file bigint references app.file, n bigint);
create index on app.keeper (file);
select count(*) from gc.track('app.file', owned => '{chunk}') \g /dev/null

-- What a review of app.file says after something was done to its tables, in short.
create function pg_temp.says(undo text, variadic commands text[])
    returns text
    language plpgsql
as $$
declare
    command text;
    answer text;
begin
    foreach command in array commands loop
        execute command;
    end loop;
    insert into app.file values (1);
    insert into app.chunk values (1, 1);
    insert into app.note values (1);
    perform setval('evil.hits', 1, false);
    answer := (select r.deleted from gc.review() as r where r.collection = 'file');
    answer := answer || ' deleted, ' || (
        select coalesce(c.problem, 'no problem') from gc.collections as c where c.name = 'file'
    );
    if (select is_called from evil.hits) then
        answer := answer || ', and it ran';
    end if;
    execute undo;
    delete from app.note;
    delete from app.chunk;
    delete from app.file;
    perform setval('evil.hits', 1, false);
    return answer;
end;
$$;
select is(pg_temp.says('select', 'select'), '1 deleted, no problem', 'as it is, a row goes');


-- Code in the objects of a table, of one that is owned, that a cascade reaches, and that keeps.
create function pg_temp.is_blocked(kind text, undo text, variadic commands text[])
    returns setof text
    language plpgsql
as $$
declare
    answer text := pg_temp.says(undo, variadic commands);
begin
    return next matches(answer, '^0 deleted, .* belongs to mallory',
        kind || ' of an untrusted role: nothing is reviewed');
    return next doesnt_match(answer, 'it ran$', kind || ' of an untrusted role: it does not run');
end;
$$;
select pg_temp.is_blocked('a function in an index predicate', 'drop index app.weapon',
    'create index weapon on app.chunk (id) where evil.yes(1)');
select pg_temp.is_blocked('a function in an index expression', 'drop index app.weapon',
    'create index weapon on app.keeper (evil.same(n))');
select pg_temp.is_blocked('a function in a statistics object', 'drop statistics app.weapon',
    'create statistics app.weapon on evil.same(n), file from app.keeper');
select pg_temp.is_blocked('a statistics object', 'drop statistics app.weapon',
    'create statistics app.weapon on n, file from app.keeper',
    'alter statistics app.weapon owner to mallory');
select pg_temp.is_blocked('a function in a CHECK', 'alter table app.note drop constraint weapon',
    'alter table app.note add constraint weapon check (evil.yes(n)) not valid');
select pg_temp.is_blocked('a function in a generated column', 'alter table app.note drop weapon',
    'alter table app.note add weapon bigint generated always as (evil.same(n)) stored');
select pg_temp.is_blocked('a function in a default', 'alter table app.note alter n drop default',
    'alter table app.note alter n set default evil.pwn()');
select pg_temp.is_blocked('a function in a policy', 'drop policy weapon on app.keeper',
    'create policy weapon on app.keeper using (evil.yes(n))');
select pg_temp.is_blocked('a function in a rule', 'drop rule weapon on app.note',
    'create rule weapon as on delete to app.note do also select evil.pwn()');
select pg_temp.is_blocked('a view in a rule', 'drop rule weapon on app.note',
    'set local role mallory', 'create view app.weapon as select evil.pwn() as x', 'reset role',
    'create rule weapon as on delete to app.note do also select * from app.weapon');
select pg_temp.is_blocked('a function in a trigger''s condition', 'drop trigger weapon on app.note',
    'create trigger weapon before delete on app.note for each row when (evil.yes(old.n)) '
    'execute function pg_catalog.suppress_redundant_updates_trigger()');
select pg_temp.is_blocked('a domain', 'alter table app.note drop weapon',
    'alter table app.note add weapon evil.checked');
select pg_temp.is_blocked('a domain in an array of a composite type',
    'alter table app.note drop weapon', 'alter table app.note add weapon evil.boxed[]');
select pg_temp.is_blocked('a cast', 'drop cast (app.mine as text); drop type app.mine cascade',
    'create type app.mine as (x bigint)',
    'set local role mallory',
    'create function evil.to_text(app.mine) returns text immutable language plpgsql '
        'as ''begin perform evil.pwn(); return 1; end''',
    'reset role',
    'create cast (app.mine as text) with function evil.to_text(app.mine)',
    'alter table app.keeper add weapon app.mine');
select pg_temp.is_blocked('a cast from text', 'drop cast (text as app.mine); '
    'drop type app.mine cascade',
    'create type app.mine as (x bigint)',
    'set local role mallory',
    'create function evil.from_text(text) returns app.mine immutable language plpgsql '
        'as ''begin perform evil.pwn(); return null; end''',
    'reset role',
    'create cast (text as app.mine) with function evil.from_text(text)',
    'alter table app.keeper add weapon app.mine');
select pg_temp.is_blocked('a range type', 'drop type app.span cascade',
    'create type app.span as range (subtype = bigint)',
    'set local role mallory',
    'create function evil.diff(bigint, bigint) returns double precision immutable '
        'language plpgsql as ''begin perform evil.pwn(); return 1; end''',
    'reset role',
    'drop type app.span', 'create type app.span as range '
        '(subtype = bigint, subtype_diff = evil.diff)',
    'alter table app.keeper add weapon app.span');
select pg_temp.is_blocked('an operator class', 'drop operator class app.weapon using btree cascade',
    'set local role mallory',
    'create function evil.cmp(bigint, bigint) returns integer immutable language plpgsql '
        'as ''begin perform evil.pwn(); return btint8cmp($1, $2); end''',
    'reset role',
    'create operator class app.weapon for type bigint using btree as operator 1 <, '
        'operator 2 <=, operator 3 =, operator 4 >=, operator 5 >, '
        'function 1 evil.cmp(bigint, bigint)',
    'create index on app.note (n app.weapon)');
select matches(
    pg_temp.says('drop trigger weapon on app.note',
        $c$create trigger weapon before delete on app.note for each row
            when (query_to_xml('select evil.pwn()', true, true, '') is not null)
            execute function pg_catalog.suppress_redundant_updates_trigger()$c$),
    E'^0 deleted, .*condition of trigger weapon on app\\.note could run anything',
    'a trigger''s condition that runs a query: nothing is reviewed');
select pg_temp.is_untouched('a trigger''s condition that runs a query: it does not run');
select is(pg_temp.says('drop index app.fine',
    $$create index fine on app.note (n) where n > 0 and lower('X') = 'x'$$),
    '1 deleted, no problem', 'what came with the server is trusted');
create extension if not exists citext schema public;
select is(pg_temp.says('alter table app.note drop fine', 'alter table app.note add fine citext'),
    '1 deleted, no problem', 'and so is an extension of a superuser''s');


-- A key that is a domain of hers, and one that is partitioned by her function.
create table app.word (id evil.checked primary key);
select throws_ok($$select gc.track('app.word')$$, '42501',
    'function evil.yes(pg_catalog.anyelement) belongs to mallory, who could run code with the '
    'rights of ' || current_user, 'a key of an untrusted domain is refused');
create table app.part (id bigint, k bigint) partition by range (evil.same(k));
create table app.part_1 partition of app.part for values from (1) to (1000);
alter table app.part add constraint part_fkey foreign key (id) references app.file;
create index on app.part (id);
select matches(pg_temp.says('drop table app.part', 'select'),
    E'^0 deleted, .*: function evil\\.same.* belongs to',
    'a function by which a table is partitioned stops the review');
select pg_temp.is_untouched('and neither has run');
create table app.part (id bigint, k bigint) partition by range (evil.same(k));
create table app.part_1 partition of app.part for values from (1) to (1000);
create index on app.part (id);
alter table app.part_1 add constraint part_fkey foreign key (id) references app.file;
select matches(pg_temp.says('drop table app.part', 'select'),
    E'^0 deleted, .*: function evil\\.same.* belongs to',
    'and so it does where only one of the partitions refers to the collection');


-- A table of hers that refers to one partition.
create table app.part (id bigint primary key) partition by range (id);
create table app.part_1 partition of app.part default;
select count(*) from gc.track('app.part', condition => 'true') \g /dev/null
insert into app.part values (1);
grant references on app.part_1 to mallory;
set local role mallory;
create table evil.ref (id bigint primary key references app.part_1);
create index weapon on evil.ref (id) where evil.yes(1);
grant all on evil.ref to public;
reset role;
select setval('evil.hits', 1, false) \g /dev/null
select is((select deleted from gc.review() where collection = 'part'), 0,
    'a table of an untrusted role that refers to one partition stops the review');
select pg_temp.is_untouched('and nothing of it runs');
drop table evil.ref, app.part;
select gc.untrack('part') \g /dev/null


-- What is pending in the caller's transaction.
select gc.grant_runner('mallory') \g /dev/null
alter table app.note add constraint note_later foreign key (n) references app.file
    deferrable initially deferred;
create index on app.note (n);
set local role mallory;
create temporary table trap (x integer);
create constraint trigger spring after insert on trap deferrable initially deferred
    for each row execute function evil.pwn_trigger();
insert into trap values (1);
reset role;
insert into app.file values (1), (2);
set local role mallory;
select deleted as deleted from gc.review() where collection = 'file' \gset
reset role;
select is(:deleted, 2, 'a role reviews in a transaction in which a trigger of its own waits');
select pg_temp.is_untouched('a trigger that waits in the caller''s transaction is not fired');

-- A constraint of the same name in the same schema would be taken along.
set local role mallory;
create table app.trap (x integer);
create constraint trigger note_later after insert on app.trap deferrable initially deferred
    for each row execute function evil.pwn_trigger();
insert into app.trap values (1);
reset role;
insert into app.file values (3);
set local role mallory;
select deleted as deleted from gc.review() where collection = 'file' \gset
reset role;
select is(:deleted, 0, 'a namesake of a constraint that has to be checked stops the review');
select matches((select problem from gc.collections where name = 'file'),
    E'table app\\.trap belongs to mallory', 'and is named');
select pg_temp.is_untouched('and it is not fired');
alter table app.note drop constraint note_later;
select count(*) from gc.track('app.file', owned => '{chunk}', condition => 'true') \g /dev/null
select is((select deleted from gc.review() where collection = 'file'), 1,
    'where nothing is deferrable, a name does not matter');
select pg_temp.is_untouched('nor is the trigger fired then');


-- A superuser does not trust a role because its table is tracked.
set local role shop;
create table app.goods (id bigint primary key, path text);
create index on app.goods (path);
reset role;
select throws_ok($$select gc.track('app.goods', url => 'path')$$, '42501',
    'table app.goods belongs to shop, who could run code with the rights of ' || current_user,
    'where blobgc belongs to a superuser, a table of another role is not tracked');
update gc.settings set trusted_roles = '{shop}';
select count(*) from gc.track('app.goods', url => 'path', condition => 'true') \g /dev/null
insert into app.goods values (1, 's3://b/1'), (2, 's3://b/2');
select is((select deleted from gc.review(1) where collection = 'goods'), 1,
    'once the role is trusted, it is');
select is((select count(*) from gc.claim('w')), 1::bigint, 'and what was deleted is handed out');
update gc.settings set trusted_roles = '{}';
select is((select deleted from gc.review() where collection = 'goods'), 0,
    'when the role is not trusted any more, nothing is reviewed');
select matches((select problem from gc.collections where name = 'goods'),
    'table app.goods belongs to shop', 'the status says why');
select throws_ok($$select gc.keep_alive('goods', '2')$$, 'ZG003', null, 'no row is looked up');
select throws_ok($$select gc.scan('goods')$$, 'ZG003', null, 'nothing is scanned');
update gc.tombstones set worker = null, due_at = now();
select is_empty($$select * from gc.claim('w')$$, 'and nothing is handed out');

-- As after a dump that was restored by a superuser: what was generated is the old owner's.
alter table app.goods owner to current_user;
alter function gc.goods_review(integer, tid[], integer, boolean) owner to shop;
grant usage on schema gc to shop;
set local role shop;
alter function gc.goods_review(integer, tid[], integer, boolean) set search_path = evil, pg_catalog;
reset role;
select is((select deleted from gc.review() where collection = 'goods'), 0,
    'a generated function that belongs to an untrusted role is not called');
select matches((select problem from gc.collections where name = 'goods'),
    E'function gc\\.goods_review.* belongs to shop', 'and is named');
alter function gc.goods_review(integer, tid[], integer, boolean) owner to current_user;
alter table gc.goods_review_queue owner to shop;
select is((select deleted from gc.review() where collection = 'goods'), 0,
    'nor is a queue used that belongs to one');
alter table gc.goods_review_queue owner to current_user;
select is((select deleted from gc.review() where collection = 'goods'), 1,
    'when all is the owner''s again, it goes on');

-- What an expression calls.
create function app.path_of(bigint) returns text immutable language sql as $$select 's3://b/' || $1$$;
alter function app.path_of(bigint) owner to shop;
update gc.settings set trusted_roles = '{shop}';
select count(*) from gc.track('app.goods', url => 'app.path_of(id)', condition => 'true') \g /dev/null
update gc.settings set trusted_roles = '{}';
insert into app.goods values (3);
select is((select deleted from gc.review() where collection = 'goods'), 0,
    'an expression that calls a function of a role that was trusted stops the review');
select matches((select problem from gc.collections where name = 'goods'),
    'path_of.* belongs to shop', 'and the function is named');

-- Triggers of the application, wherever a review would fire them, and tables that refer.
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
create function pg_temp.why(name text)
    returns text
    language sql
as $$ select s.why from gc.status() as s where s.collection = name $$;
create table app.doc (id integer primary key);
create table app.ran (what text, by_role name);
create function app.spy()
    returns trigger
    language plpgsql
as $$
begin
    insert into app.ran values (tg_table_name, current_user);
    return old;
end;
$$;
create table app.item (doc integer primary key references app.doc);
create table app.ref (doc integer references app.doc);
create index on app.ref (doc);
select count(*) from gc.track('app.doc', owned => '{item}', condition => 'true') \g /dev/null
insert into app.doc select generate_series(1, 3);
insert into app.item values (1);
create trigger spy after delete on app.doc for each row execute function app.spy();
create function pg_temp.trust(roles name[])
    returns void
    language sql
as $$ update gc.settings set trusted_roles = roles $$;
-- One row is left to be reviewed.
create function pg_temp.only(wanted integer)
    returns void
    language plpgsql
as $$
begin
    perform pg_temp.review('doc');
    truncate app.ran;
    insert into app.doc values (wanted);
    insert into app.item values (wanted);
end;
$$;
select is(pg_temp.review('doc'), 3, 'a trigger of the owner''s own is no obstacle');
select pg_temp.only(1);
alter function app.spy() owner to mallory;
select is(pg_temp.review('doc'), 0,
    'where a trigger''s function belongs to a role that is not trusted, nothing is reviewed');
select matches(pg_temp.why('doc'), E'trigger spy on app\\.doc belongs to mallory',
    'the status names the trigger');
select is_empty('table app.ran', 'and the function has not run');
select throws_ok($$select * from gc.track('app.doc', owned => '{item}', condition => 'true')$$, '42501',
    'trigger spy on app.doc belongs to mallory, who could run code with the rights of '
    || current_user, 'nor can the table be tracked');
select pg_temp.trust('{mallory}');
select is(pg_temp.review('doc'), 1, 'a role that is trusted is let through');
select results_eq('select what, by_role from app.ran', $$values ('doc', current_user)$$,
    'and its function runs as the owner of blobgc');
select pg_temp.trust('{}');
drop trigger spy on app.doc;

select pg_temp.only(2);
create trigger spy before delete on app.item for each row execute function app.spy();
select is(pg_temp.review('doc'), 0, 'a trigger on an owned table: nothing is reviewed');
select matches(pg_temp.why('doc'), E'trigger spy on app\\.item belongs to mallory',
    'a trigger on an owned table: the status names it');
select is_empty('table app.ran', 'a trigger on an owned table: the function has not run');
select results_eq('select doc from app.item', array[2], 'and the owned row is there');
select pg_temp.trust('{mallory}');
select is(pg_temp.review('doc'), 1, 'a trigger on an owned table: trust lets it through');
select results_eq('select what, by_role from app.ran', $$values ('item', current_user)$$,
    'a trigger on an owned table: then the function runs');
select pg_temp.trust('{}');
drop trigger spy on app.item;

-- Not by the key of the item, which is that of the document: that would keep the document.
alter table app.item add column number integer generated always as identity unique;
create table app.remark (item integer references app.item (number) on delete cascade);
select pg_temp.only(3);
insert into app.remark select number from app.item;
create trigger spy after delete on app.remark for each row execute function app.spy();
select is(pg_temp.review('doc'), 0, 'a trigger at the end of a cascade: nothing is reviewed');
select matches(pg_temp.why('doc'), E'trigger spy on app\\.remark belongs to mallory',
    'a trigger at the end of a cascade: the status names it');
select is_empty('table app.ran', 'a trigger at the end of a cascade: the function has not run');
select pg_temp.trust('{mallory}');
select is(pg_temp.review('doc'), 1, 'a trigger at the end of a cascade: trust lets it through');
select results_eq('select what, by_role from app.ran', $$values ('remark', current_user)$$,
    'a trigger at the end of a cascade: then the function runs');
select pg_temp.trust('{}');
drop table app.remark;

-- What SET NULL has changed goes on along ON UPDATE, but not from columns that nothing changes.
create table app.remark (
    id integer primary key, item integer unique references app.item (number) on delete set null
);
create table app.reply (
    item integer references app.remark (item) on update cascade,
    remark integer references app.remark on update cascade
);
create index on app.reply (item);
create trigger spy after update on app.reply for each row execute function app.spy();
select pg_temp.only(5);
insert into app.remark select 1, number from app.item;
insert into app.reply select item from app.remark;
select is(pg_temp.review('doc'), 0, 'a trigger at the end of an ON UPDATE: nothing is reviewed');
select matches(pg_temp.why('doc'), E'trigger spy on app\\.reply belongs to mallory',
    'a trigger at the end of an ON UPDATE: the status names it');
select is_empty('table app.ran', 'a trigger at the end of an ON UPDATE: it has not run');
select pg_temp.trust('{mallory}');
select is(pg_temp.review('doc'), 1, 'a trigger at the end of an ON UPDATE: trust lets it through');
select results_eq('select what, by_role from app.ran', $$values ('reply', current_user)$$,
    'a trigger at the end of an ON UPDATE: then the function runs');
select pg_temp.trust('{}');
alter table app.reply drop column item;
select pg_temp.only(6);
insert into app.remark select 2, number from app.item;
insert into app.reply values (2);
select is(pg_temp.review('doc'), 1, 'ON UPDATE of a column that stays leads to nothing');
drop table app.reply, app.remark;

-- An owned row may be of a partition, and others refer to it through the partitioned table.
create table app.slot (n integer, doc integer, primary key (n, doc)) partition by list (n);
create table app.slot_1 partition of app.slot for values in (1);
create index on app.slot (doc);
alter table app.slot_1 add foreign key (doc) references app.doc;
create table app.remark (n integer, doc integer,
    foreign key (n, doc) references app.slot on delete cascade);
select count(*) from gc.track('app.doc', owned => '{item, slot_1}', condition => 'true')
\g /dev/null
create trigger spy after delete on app.remark for each row execute function app.spy();
select pg_temp.only(7);
insert into app.slot values (1, 7);
insert into app.remark values (1, 7);
select is(pg_temp.review('doc'), 0,
    'a trigger behind a partition that is owned by itself: nothing is reviewed');
select matches(pg_temp.why('doc'), E'trigger spy on app\\.remark belongs to mallory',
    'a trigger behind a partition that is owned by itself: the status names it');
select is_empty('table app.ran', 'a trigger behind a partition that is owned: it has not run');
drop trigger spy on app.remark;
alter table app.remark drop constraint remark_n_doc_fkey, add constraint later
    foreign key (n, doc) references app.slot deferrable initially deferred;
insert into app.doc values (8);
select is(pg_temp.review('doc'), 1, 'what else refers to such a row keeps its owner alone');
select matches((select last_error from gc.doc_review_queue), 'foreign key .* on table "remark"',
    'also if its foreign key is deferred');
select lives_ok('set constraints all immediate', 'and nothing is left to fail at the commit');
set constraints all deferred;

select pg_temp.only(4);
alter table app.ref owner to mallory;
select is(pg_temp.review('doc'), 0, 'a referring table of another role: nothing is reviewed');
select matches(pg_temp.why('doc'), E'table app\\.ref belongs to mallory',
    'a referring table of another role: the status names it');
select pg_temp.trust('{mallory}');
select is(pg_temp.review('doc'), 1, 'a referring table of another role: trust lets it through');
select is(pg_temp.why('doc'), null, 'and nothing is in the way any more');
select pg_temp.trust('{}');

select * from finish();
rollback;
