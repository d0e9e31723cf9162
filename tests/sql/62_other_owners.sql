-- Tables of another role: it lets blobgc follow them, and may drop what blobgc cannot.
begin;
select plan(12);
set local client_min_messages = error;

create role blobgc_shop;
create role blobgc_partner;
grant create on database :"DBNAME" to blobgc_shop;
alter schema gc owner to blobgc_shop;
do $$
declare
    command text;
begin
    for command in
        select format('alter %s %s owner to blobgc_shop',
            case c.relkind when 'v' then 'view' else 'table' end, c.oid::regclass)
        from pg_class as c where c.relnamespace = 'gc'::regnamespace and c.relkind in ('r', 'v')
        union all
        select format('alter routine %s owner to blobgc_shop', p.oid::regprocedure)
        from pg_proc as p where p.pronamespace = 'gc'::regnamespace
        union all
        select format('alter type %s owner to blobgc_shop', t.oid::regtype)
        from pg_type as t join pg_class as c on c.oid = t.typrelid and c.relkind = 'c'
        where t.typnamespace = 'gc'::regnamespace
    loop
        execute command;
    end loop;
end $$;
create schema app authorization blobgc_shop;
grant usage, create on schema app to blobgc_partner;

set local role blobgc_shop;
create table app.file (id integer primary key);
grant references on app.file to blobgc_partner;
update gc.settings set jitter = '0', undo = '0', trusted_roles = '{blobgc_partner}';
insert into gc.review_after_defaults values ('file_insert', '0'), ('post_delete', '0');

set local role blobgc_partner;
create table app.post (
    id integer primary key, file_id integer constraint post_file_fkey references app.file
);
create index on app.post (file_id);
grant select, trigger on app.post to blobgc_shop;

set local role blobgc_shop;
select results_eq($$select reference, role from gc.track('app.file')$$,
    $$values ('app.post(file_id)', 'keeps')$$,
    'a table of a trusted role is followed with the rights that it gives');
insert into app.file values (1), (2), (3);
set local role blobgc_partner;
insert into app.post values (1, 1), (2, 2);
delete from app.post where id = 2;
set local role blobgc_shop;
select is((select deleted from gc.review()), 2, 'what that role dropped is collected');

set local role blobgc_partner;
alter table app.post drop constraint post_file_fkey;
set local role blobgc_shop;
select results_eq('select reviewed, deleted from gc.review()', $$values (0, 0)$$,
    'a foreign key that the role takes away is a keeper less');
select matches((select problem from gc.collections), E'app.post\\(file_id\\) no longer refers',
    'and blocks the collection');
select count(*) from gc.track('app.file', condition => 'true') \g /dev/null
select is((select count(*) from gc.review()), 1::bigint, 'until its owner accepts that');
select is((select problem from gc.collections), null, 'although its trigger cannot be dropped');
update gc.file_review_queue set review_after = now();
select is((select deleted from gc.review()), 1, 'what it kept is found by the scan that follows');
set local role blobgc_partner;
select lives_ok('delete from app.post', 'the trigger that stays does nothing');

-- A table that a cascade reaches is deleted from, and so has to be locked.
create table app.extra (file_id integer references app.file on delete cascade);
create index on app.extra (file_id);
grant select, trigger on app.extra to blobgc_shop;
set local role blobgc_shop;
insert into app.file values (4);
select is((select deleted from gc.review()), 0,
    'a table that a cascade reaches, and that cannot be locked, stops the review');
select matches((select problem from gc.collections), E'blobgc_shop may not lock app\\.extra',
    'which says that a right is missing');
set local role blobgc_partner;
grant delete on app.extra to blobgc_shop;
set local role blobgc_shop;
select is((select deleted from gc.review()), 1, 'with the right it goes on');
set local role blobgc_partner;
drop table app.extra;
set local role blobgc_shop;
select lives_ok($$select gc.untrack('file')$$, 'and the table can be untracked');

select * from finish();
rollback;
