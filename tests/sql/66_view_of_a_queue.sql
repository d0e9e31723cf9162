-- A view that somebody has made of a queue must not keep a changed primary key from being followed.
begin;
set local client_min_messages = error;
select plan(2);

create schema app;
create table app.file (id bigint primary key, other text not null unique);
select count(*) from gc.track('app.file', condition => 'true') \g /dev/null
create view app.spy as select * from gc.file_review_queue;
alter table app.file drop constraint file_pkey, add primary key (other);
select count(*) from gc.review() \g /dev/null
select is((select problem from gc.collections where name = 'file'), null,
    'a view of the old queue does not block the collection');
select has_column('gc', 'file_review_queue', 'other', 'the queue has the new key');

select * from finish();
rollback;
