-- Reviews: what is taken, what is kept, what goes.

-- A plan of tests cannot begin in such a transaction, so the answers are kept for later.
begin isolation level repeatable read;
do $$
begin
    perform gc.review();
    perform set_config('app.repeatable_read', 'it ran', true);
exception
    when others then perform set_config('app.repeatable_read', sqlstate, true);
end;
$$;
select current_setting('app.repeatable_read') as repeatable_read \gset
rollback;
begin isolation level serializable;
do $$
begin
    perform gc.review();
    perform set_config('app.serializable', 'it ran', true);
exception
    when others then perform set_config('app.serializable', sqlstate, true);
end;
$$;
select current_setting('app.serializable') as serializable \gset
rollback;
begin isolation level repeatable read;
create table public.one (id integer primary key);
select count(*) from gc.track('public.one', condition => 'true') \g /dev/null
do $$
begin
    perform gc.one_review();
    perform set_config('app.generated', 'it ran', true);
exception
    when others then perform set_config('app.generated', sqlstate, true);
end;
$$;
select current_setting('app.generated') as generated \gset
rollback;

begin;
select plan(58);
select is(:'repeatable_read'::text, '25001',
    'a review in a repeatable read is refused');
select is(:'generated'::text, '25001', 'so is the review function of one collection');
select is(:'serializable'::text, '25001',
    'a review in a serializable transaction is refused');

set local client_min_messages = warning;
create schema app;
create table app.blobs (digest bytea primary key, size bigint not null default 1);
create table app.manifests (
    repo int not null,
    id int not null,
    config bytea references app.blobs,
    subject int,
    primary key (repo, id),
    foreign key (repo, subject) references app.manifests on delete cascade
)
partition by list (repo);
create table app.manifests_1 partition of app.manifests for values in (1);
create table app.manifests_2 partition of app.manifests for values in (2);
create table app.layers (
    repo int not null,
    manifest int not null,
    n int not null,
    digest bytea not null references app.blobs,
    primary key (repo, manifest, n),
    foreign key (repo, manifest) references app.manifests on delete cascade
)
partition by list (repo);
create table app.layers_1 partition of app.layers for values in (1);
create table app.layers_2 partition of app.layers for values in (2);
create table app.list_items (
    repo int not null,
    list int not null,
    child int not null,
    primary key (repo, list, child),
    foreign key (repo, list) references app.manifests on delete cascade,
    foreign key (repo, child) references app.manifests
);
create table app.tags (
    repo int not null,
    name text not null,
    manifest int not null,
    primary key (repo, name),
    foreign key (repo, manifest) references app.manifests on delete cascade
);
create index on app.manifests (config);
create index on app.manifests (repo, subject);
create index on app.layers (digest);
create index on app.list_items (repo, child);
create index on app.tags (repo, manifest);
select count(*) as ignored from gc.track('app.blobs', name => 'blob',
    url => '''mem://blobs/'' || encode(digest, ''hex'')', size => 'size') \gset
select count(*) as ignored from gc.track('app.manifests', name => 'manifest',
    owned => '{manifests, layers, "list_items(repo, list)"}',
    condition => 'subject is null') \gset

update gc.settings set jitter = '0', undo = '0';
insert into gc.review_after_defaults
select event, '0' from unnest(array[
    'blob_insert', 'layers_delete', 'layers_update', 'manifests_delete', 'manifests_update',
    'manifest_insert', 'manifest_update', 'tags_delete', 'tags_update', 'list_items_delete'
]) as event;
create function app.review(name text, batch int default 1000) returns text language sql as $$
    select format('%s reviewed, %s kept, %s deleted, %s busy, %s failed',
        reviewed, kept, deleted, busy, failed)
    from gc.review(batch) where collection = name
$$;

-- The longest overdue is next; what is not due is not taken.
insert into app.blobs (digest, size)
values (E'\\x01', 10), (E'\\x02', 20), (E'\\x03', 30), (E'\\x04', 40);
update gc.blob_review_queue as q set review_after = now() + v.delay
from (values (E'\\x01'::bytea, interval '-1 hour'), (E'\\x02', '-3 days'), (E'\\x03', '1 second'),
    (E'\\x04', '-2 hours')) as v(digest, delay)
where v.digest = q.digest;
select results_eq('select reviewed, deleted, bytes from gc.review(1) where collection = ''blob''',
    'values (1, 1, 20::bigint)', 'a batch of one takes one row, and tells its bytes');
select results_eq('select digest from app.blobs order by 1',
    $$values (E'\\x01'::bytea), (E'\\x03'), (E'\\x04')$$, 'next is the longest overdue');
select is(app.review('blob', 1), '1 reviewed, 0 kept, 1 deleted, 0 busy, 0 failed',
    'the next batch goes on');
select results_eq('select digest from app.blobs order by 1',
    $$values (E'\\x01'::bytea), (E'\\x03')$$,
    'again the longest overdue was next');
select is(app.review('blob'), '1 reviewed, 0 kept, 1 deleted, 0 busy, 0 failed',
    'what is not due is not taken');
select results_eq('select digest from app.blobs', $$values (E'\\x03'::bytea)$$, 'and stays');
select results_eq('select key, url, size, event from gc.tombstones order by key',
    $$values (E'\\x01', 'mem://blobs/01', 10::bigint, 'blob_insert'),
        (E'\\x02', 'mem://blobs/02', 20, 'blob_insert'),
        (E'\\x04', 'mem://blobs/04', 40, 'blob_insert')$$,
    'every deleted row left a tombstone that says why');
select is(queued || ' ' || due, '1 0', 'status tells what is queued and what of it is due')
from gc.status() where collection = 'blob';
update gc.blob_review_queue set review_after = now() - interval '5 minutes';
select is((due, now() - overdue_since), (1::bigint, interval '5 minutes'),
    'status tells since when it is due')
from gc.status() where collection = 'blob';
select results_eq(
    'select collection, reviewed, kept, deleted, busy, failed, bytes from gc.review()',
    $$values ('blob', 1, 0, 1, 0, 0, 30::bigint), ('manifest', 0, 0, 0, 0, 0, 0)$$,
    'a review has one row for each collection');
select results_eq('select collection, rows from gc.daily_totals', $$values ('blob', 4::bigint)$$,
    'the daily totals count the rows');
select is_empty('select * from gc.blob_review_queue', 'what was reviewed has left the queue');
select throws_ok('select gc.review(0)', '22023', null, 'a batch of 0 is refused');
select throws_ok('select gc.review(-1)', '22023', null, 'a batch of -1 is refused');
select throws_ok('select gc.review(null)', '22023', null, 'a batch of null is refused');

-- A blob is kept while a configuration or a layer refers to it, in any repository.
insert into app.blobs (digest) values (E'\\x01'), (E'\\x02'), (E'\\x03');
insert into app.manifests (repo, id, config)
values (1, 1, E'\\x01'), (2, 1, E'\\x01'), (2, 2, null);
insert into app.layers values (1, 1, 1, E'\\x02'), (2, 2, 1, E'\\x02'), (2, 2, 2, E'\\x03'),
    (2, 2, 3, E'\\x01');
insert into app.tags values (1, 'a', 1), (2, 'a', 1), (2, 'b', 2);
select is(app.review('blob'), '3 reviewed, 3 kept, 0 deleted, 0 busy, 0 failed',
    'a blob is kept by a configuration or by a layer');
select is_empty('select * from gc.blob_review_queue', 'what is kept leaves the queue');
delete from app.layers where repo = 1;
select is(app.review('blob'), '1 reviewed, 1 kept, 0 deleted, 0 busy, 0 failed',
    'a blob is kept by a layer in another repository');
delete from app.layers where (repo, manifest, n) = (2, 2, 3);
select is(app.review('blob'), '1 reviewed, 1 kept, 0 deleted, 0 busy, 0 failed',
    'a blob that lost a layer is kept by a configuration');
update app.manifests set config = null where repo = 1;
select is(app.review('blob'), '1 reviewed, 1 kept, 0 deleted, 0 busy, 0 failed',
    'a blob is kept by a configuration in another repository');
update app.manifests set config = null where repo = 2;
select is(app.review('blob'), '1 reviewed, 0 kept, 1 deleted, 0 busy, 0 failed',
    'the last reference going makes a blob garbage');
select results_eq('select digest from app.blobs order by 1',
    $$values (E'\\x02'::bytea), (E'\\x03')$$,
    'and only that blob went');
delete from app.layers;
select is(app.review('blob'), '2 reviewed, 0 kept, 2 deleted, 0 busy, 0 failed',
    'all blobs go in the end');

-- A manifest is kept while a tag or a manifest list refers to it.
delete from app.tags;
select is(app.review('manifest'), '3 reviewed, 0 kept, 3 deleted, 0 busy, 0 failed',
    'a manifest without tags is garbage');
insert into app.manifests (repo, id) select 1, i from generate_series(1, 5) as i;
insert into app.list_items values (1, 5, 4), (1, 4, 3), (1, 4, 2);
insert into app.tags values (1, 'list of lists', 5), (1, 'also in a list', 3), (1, 'tagged', 1);
select is(app.review('manifest'), '5 reviewed, 5 kept, 0 deleted, 0 busy, 0 failed',
    'a manifest is kept by a tag, by a list, by both, and a list by a list');
delete from app.tags where name = 'also in a list';
select is(app.review('manifest'), '1 reviewed, 1 kept, 0 deleted, 0 busy, 0 failed',
    'a manifest that lost its tag is kept by a list');
delete from app.tags where name = 'tagged';
select is(app.review('manifest'), '1 reviewed, 0 kept, 1 deleted, 0 busy, 0 failed',
    'a manifest in no list is not');
insert into app.tags values (1, 'child', 2);
delete from app.tags where name = 'list of lists';
select is(app.review('manifest'), '1 reviewed, 0 kept, 1 deleted, 0 busy, 0 failed',
    'the list of lists goes when its tag goes');
select is(app.review('manifest'), '1 reviewed, 0 kept, 1 deleted, 0 busy, 0 failed',
    'then the list that was in it');
select is(app.review('manifest'), '2 reviewed, 1 kept, 1 deleted, 0 busy, 0 failed',
    'then its children, but for the one that has a tag');
select results_eq('select repo, id from app.manifests', 'values (1, 2)', 'which is the right one');
select is((select count(*) from app.list_items), 0::bigint, 'the lists'' entries went with them');

-- A signature is kept as long as its subject is there, and goes with it.
insert into app.manifests (repo, id, subject) values (1, 20, null), (1, 21, 20), (1, 22, 20);
insert into app.tags values (1, 'subject', 20), (1, 'signature', 22);
select is(app.review('manifest'), '3 reviewed, 3 kept, 0 deleted, 0 busy, 0 failed',
    'a manifest with a subject is kept without a tag');
delete from app.tags where name = 'signature';
select is(app.review('manifest'), '1 reviewed, 1 kept, 0 deleted, 0 busy, 0 failed',
    'also when it loses its tag');
delete from app.tags where name = 'subject';
select is(app.review('manifest'), '1 reviewed, 0 kept, 1 deleted, 0 busy, 0 failed',
    'the subject can go although something refers to it');
select results_eq('select repo, id from app.manifests', 'values (1, 2)',
    'and takes along what was about it');
insert into app.manifests (repo, id, subject) values (1, 20, null), (1, 21, 20), (1, 22, 20);
insert into app.tags values (1, 'subject', 20), (1, 'signature', 22);
delete from app.manifests where id = 20;
select is((select count(*) from app.manifests where id > 20), 0::bigint,
    'the application can delete a subject that has referrers');
select is(app.review('manifest'), '3 reviewed, 0 kept, 0 deleted, 0 busy, 0 failed',
    'whose entries then leave the queue');

-- A queued row that is gone leaves the queue without an error.
insert into app.blobs (digest) values (E'\\x01'), (E'\\x02');
delete from app.blobs where digest = E'\\x01';
delete from gc.tombstones;
select is(app.review('blob'), '2 reviewed, 0 kept, 1 deleted, 0 busy, 0 failed',
    'a queued row that is gone is reviewed without an error');
select is_empty('select * from gc.blob_review_queue', 'and leaves the queue');
select results_eq('select key from gc.tombstones', $$values (E'\\x02')$$,
    'and leaves no second tombstone');

-- The latest entry wins.
insert into app.blobs (digest) values (E'\\x05');
update gc.blob_review_queue set review_after = now() - interval '1 day';
insert into gc.blob_review_queue (digest, event, review_after)
values (E'\\x05', 'later', now() + interval '1 hour');
select is(app.review('blob'), '0 reviewed, 0 kept, 0 deleted, 0 busy, 0 failed',
    'an entry that has a later one is not reviewed');
select results_eq('select event from gc.blob_review_queue', $$values ('later')$$,
    'it leaves the queue, and the later one stays');
update gc.blob_review_queue set review_after = now();
insert into gc.blob_review_queue (digest, event, review_after)
select E'\\x05', 'earlier due ' || i, now() - interval '1 hour' * i from generate_series(1, 3) as i;
select is(app.review('blob'), '1 reviewed, 0 kept, 1 deleted, 0 busy, 0 failed',
    'of several due entries of one key one is reviewed');
select is(event, 'earlier due 3', 'the one that was written last')
from gc.tombstones where key = E'\\x05';
insert into app.blobs (digest) select decode(lpad(to_hex(i), 4, '0'), 'hex')
from generate_series(1, 30) as i;
insert into gc.blob_review_queue (digest, event, review_after)
select digest, 'later', now() + interval '1 hour' from app.blobs limit 25;
select is(app.review('blob', 5), '5 reviewed, 0 kept, 5 deleted, 0 busy, 0 failed',
    'a batch of superseded entries only is not the end of the queue');

-- A digest that very many share costs a review no more than one that two share.
create function app.blocks(query text) returns bigint language plpgsql as $$
declare
    plan jsonb;
begin
    execute 'explain (analyze, buffers, format json) ' || query into plan;
    return (plan #>> '{0,Plan,Shared Hit Blocks}')::bigint
        + (plan #>> '{0,Plan,Shared Read Blocks}')::bigint;
end;
$$;
delete from app.blobs;
insert into app.blobs (digest) values (E'\\xaa'), (E'\\xbb');
insert into app.manifests (repo, id) select 2, i from generate_series(1, 100) as i;
delete from gc.manifest_review_queue;
insert into app.layers select 2, 1, i, E'\\xaa' from generate_series(1, 2) as i;
insert into app.layers
select 2, 2 + i % 99, i, E'\\xbb' from generate_series(1, 100000) as i;
analyze app.layers;
analyze app.manifests;
delete from gc.blob_review_queue;
insert into gc.blob_review_queue (digest, event, review_after) values (E'\\xaa', 'by hand', now());
select count(*) as ignored from gc.blob_review() \gset
insert into gc.blob_review_queue (digest, event, review_after) values (E'\\xaa', 'by hand', now());
select app.blocks('select gc.blob_review()') as two \gset
insert into gc.blob_review_queue (digest, event, review_after) values (E'\\xbb', 'by hand', now());
select app.blocks('select gc.blob_review()') as many \gset
select cmp_ok(:many, '<=', :two + 20,
    'a digest shared by 100,000 layers costs a review no more than one shared by two');
select is_empty('select * from gc.blob_review_queue', 'and both were reviewed');
delete from app.layers where (repo, manifest) = (2, 1);
delete from app.layers where digest = E'\\xbb' and n > 1;
select is(app.review('blob'), '2 reviewed, 1 kept, 1 deleted, 0 busy, 0 failed',
    'one of 100,000 references is enough to keep a blob');

-- Holds, and what limits a review.
insert into app.blobs (digest) values (E'\\xcc'), (E'\\xdd');
select is(gc.keep_alive('blob', E'\\xCC'), true, 'a row can be held');
select is(app.review('blob'), '2 reviewed, 0 kept, 1 deleted, 1 busy, 0 failed',
    'a row that is held is busy');
select results_eq('select digest, review_after - now() from gc.blob_review_queue',
    $$values (E'\\xcc'::bytea, interval '30 seconds')$$, 'and is looked at again a little later');
update gc.settings set max_rows = 3;
insert into app.blobs (digest) select decode(lpad(to_hex(i), 6, '0'), 'hex')
from generate_series(1, 10) as i;
select is((select sum(deleted) from gc.review()) <= 3, true,
    'a review deletes at most as many rows as the settings allow');
update gc.settings set statement_timeout = '1 microsecond', max_rows = 1000;
select is_empty('select * from gc.review()',
    'a review that has run for its time takes on nothing more');

select is(current_setting('lock_timeout'), '0', 'a review leaves the session''s timeouts alone');

select * from finish();
rollback;
