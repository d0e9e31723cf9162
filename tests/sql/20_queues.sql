-- Review queues: what is queued, by which event, for when.
begin;
select plan(64);

set local client_min_messages = warning;
create schema app;
create table app.blobs (digest bytea primary key, size bigint not null default 1);
create table app.manifests (
    repo int not null,
    id int not null,
    config bytea references app.blobs,
    subject int,
    note text,
    primary key (repo, id),
    foreign key (repo, subject) references app.manifests on delete cascade
)
partition by hash (repo);
create table app.manifests_0 partition of app.manifests
    for values with (modulus 2, remainder 0);
create table app.manifests_1 partition of app.manifests
    for values with (modulus 2, remainder 1);
create table app.layers (
    repo int not null,
    manifest int not null,
    n int not null,
    digest bytea not null references app.blobs,
    primary key (repo, manifest, n),
    foreign key (repo, manifest) references app.manifests on delete cascade
)
partition by hash (repo);
create table app.layers_0 partition of app.layers for values with (modulus 2, remainder 0);
create table app.layers_1 partition of app.layers for values with (modulus 2, remainder 1);
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

select count(*) as ignored from gc.track('app.blobs', name => 'blob', events => '{
    "blob_insert": "blob_upload", "manifests_delete": "manifest_delete",
    "layers_delete": "layer_delete"}') \gset
select count(*) as ignored from gc.track('app.manifests', name => 'manifest',
    owned => '{manifests, layers, "list_items(repo, list)"}',
    condition => 'subject is null',
    events => '{
        "manifest_insert": "manifest_upload", "tags_delete": "tag_delete",
        "tags_update": "tag_switch", "list_items_delete": "manifest_list_delete"}') \gset
update gc.settings set jitter = '10 seconds';

create function app.blobs_queued() returns table (digest bytea, event text, entries bigint)
language sql as $$
    with gone as (delete from gc.blob_review_queue returning *)
    select digest, event, count(*) from gone group by 1, 2 order by 1, 2
$$;
create function app.manifests_queued()
returns table (repo int, id int, event text, entries bigint)
language sql as $$
    with gone as (delete from gc.manifest_review_queue returning *)
    select repo, id, event, count(*) from gone group by 1, 2, 3 order by 1, 2, 3
$$;

-- A row that is inserted is queued, by its event, for when its delay is over.
insert into gc.review_after_defaults values ('blob_upload', '2 hours');
insert into app.blobs (digest) select decode(lpad(to_hex(i), 2, '0'), 'hex')
from generate_series(1, 16) as i;
select is(count(*), 16::bigint, 'an inserted row is queued once for its statement')
from gc.blob_review_queue;
select is(array_agg(distinct event), '{blob_upload}',
    'an insert is queued under the name that the event was given')
from gc.blob_review_queue;
select is(array_agg(distinct review_count), '{0}', 'a new entry counts no failed review')
from gc.blob_review_queue;
select is_empty(
    $$select review_after - now() from gc.blob_review_queue
        where review_after - now() not between '2 hours' and '2 hours 10 seconds'$$,
    'the delay lies between the value of the event and that value plus jitter');
delete from gc.blob_review_queue;
insert into app.blobs (digest) select digest from app.blobs where false;
select is_empty('select * from app.blobs_queued()', 'a statement without rows queues nothing');
insert into app.blobs (digest) values (E'\\x01'), (E'\\xa0') on conflict do nothing;
select results_eq('select * from app.blobs_queued()',
    $$values (E'\\xa0'::bytea, 'blob_upload', 1::bigint)$$,
    'of an insert on conflict only what was inserted is queued');

-- A manifest that is inserted is queued, and keeps its configuration and its layers.
insert into app.manifests (repo, id, config)
values (1, 1, E'\\x01'), (1, 2, null), (2, 1, E'\\x01');
insert into app.layers values
    (1, 1, 1, E'\\x02'), (1, 1, 2, E'\\x03'), (1, 2, 1, E'\\x03'), (2, 1, 1, E'\\x02');
select results_eq('select * from app.manifests_queued()',
    $$values (1, 1, 'manifest_upload', 1::bigint), (1, 2, 'manifest_upload', 1),
        (2, 1, 'manifest_upload', 1)$$,
    'an inserted manifest is queued');
select is_empty('select * from app.blobs_queued()', 'a new reference queues nothing');
insert into gc.blob_review_queue (digest, event, review_after)
select digest, 'by hand', now() from app.blobs where digest in (E'\\x01', E'\\x02', E'\\x03');
select results_eq('select kept, deleted from gc.review() where collection = ''blob''',
    'values (3, 0)', 'configuration and layers keep their blobs');

-- A manifest that is deleted queues its configuration and its layers.
delete from app.manifests where (repo, id) = (1, 1);
select results_eq('select * from app.blobs_queued()',
    $$values (E'\\x01'::bytea, 'manifest_delete', 1::bigint), (E'\\x02', 'layer_delete', 1),
        (E'\\x03', 'layer_delete', 1)$$,
    'deleting a manifest queues its configuration and its layers');
delete from app.manifests where (repo, id) = (1, 2);
select results_eq('select * from app.blobs_queued()',
    $$values (E'\\x03'::bytea, 'layer_delete', 1::bigint)$$,
    'deleting a manifest without configuration queues none');
update app.manifests set config = E'\\x04' where (repo, id) = (2, 1);
select results_eq('select * from app.blobs_queued()',
    $$values (E'\\x01'::bytea, 'manifests_update', 1::bigint)$$,
    'another configuration queues the old one');
update app.manifests set config = null;
select results_eq('select * from app.blobs_queued()',
    $$values (E'\\x04'::bytea, 'manifests_update', 1::bigint)$$,
    'a configuration set to null queues the old one');

-- A manifest list that is deleted queues its children, and not itself.
insert into app.manifests (repo, id) select 1, i from generate_series(10, 13) as i;
insert into app.list_items values (1, 10, 11), (1, 10, 12), (1, 13, 10);
delete from gc.manifest_review_queue;
delete from app.manifests where (repo, id) = (1, 13);
select results_eq('select * from app.manifests_queued()',
    $$values (1, 10, 'manifest_list_delete', 1::bigint)$$,
    'deleting a list of lists queues the list in it, and not itself');
delete from app.manifests where (repo, id) = (1, 10);
select results_eq('select * from app.manifests_queued()',
    $$values (1, 11, 'manifest_list_delete', 1::bigint), (1, 12, 'manifest_list_delete', 1)$$,
    'deleting a manifest list queues each child, and not the list');

-- A tag that is deleted queues its manifest; two of one manifest lead to one review.
insert into app.tags values (1, 'a', 11), (1, 'b', 11), (1, 'c', 12), (1, 'd', 12);
delete from app.tags where manifest = 11;
select results_eq('select * from app.manifests_queued()',
    $$values (1, 11, 'tag_delete', 1::bigint)$$,
    'two tags of one manifest deleted together queue it once');
delete from app.manifests where (repo, id) = (1, 12);
select is_empty('select * from app.manifests_queued()',
    'a manifest that goes and takes its tags along is not queued');
select is_empty('select * from app.tags', 'its tags went by the application''s own cascade');
insert into app.tags values (1, 'a', 11), (1, 'b', 11);
delete from app.tags where name = 'a';
delete from app.tags where name = 'b';
update gc.manifest_review_queue set review_after = now();
select results_eq(
    'select reviewed, deleted from gc.review() where collection = ''manifest''',
    'values (1, 1)', 'two tags deleted one after the other lead to one review');

-- A tag that is switched queues the old manifest.
insert into app.manifests (repo, id) values (3, 1), (3, 2), (4, 1);
insert into app.tags values (3, 'latest', 1), (3, 'other', 1);
delete from gc.manifest_review_queue;
update app.tags set manifest = manifest;
select is_empty('select * from app.manifests_queued()',
    'a tag set to the manifest that it has queues nothing');
update app.tags set name = name || '!';
select is_empty('select * from app.manifests_queued()', 'a renamed tag queues nothing');
update app.tags set manifest = 2 where name = 'latest!';
select results_eq('select * from app.manifests_queued()',
    $$values (3, 1, 'tag_switch', 1::bigint)$$, 'a switched tag queues the old manifest');
insert into app.tags values (3, 'latest!', 1)
on conflict (repo, name) do update set manifest = excluded.manifest;
select results_eq('select * from app.manifests_queued()',
    $$values (3, 2, 'tag_switch', 1::bigint)$$, 'an upsert that switches a tag queues the old one');
merge into app.tags as t using (values ('latest!', 2), ('other!', null)) as v(name, manifest)
    on t.name = v.name
when matched and v.manifest is null then delete
when matched then update set manifest = v.manifest;
select results_eq('select * from app.manifests_queued()',
    $$values (3, 1, 'tag_delete', 1::bigint), (3, 1, 'tag_switch', 1)$$,
    'a MERGE is followed like the statements that it stands for');

-- A second event for a queued key postpones its review.
insert into gc.review_after_defaults values ('tag_delete', '1 hour'), ('tag_switch', '0');
insert into app.manifests (repo, id) values (5, 1);
delete from gc.manifest_review_queue;
insert into gc.manifest_review_queue (repo, id, event, review_after, review_count, last_error)
values (5, 1, 'by hand', now(), 3, 'it did not work');
insert into app.tags values (5, 'a', 1);
delete from app.tags where name = 'a';
select results_eq(
    'select reviewed, kept, deleted, failed from gc.review() where collection = ''manifest''',
    'values (0, 0, 0, 0)', 'a second event postpones the review');
select results_eq(
    'select event, review_count, last_error, review_after > now() from gc.manifest_review_queue',
    $$values ('tag_delete', 3, 'it did not work', true)$$,
    'the later entry takes over what is known of failed reviews');
delete from gc.manifest_review_queue;

-- 10,000 layers that share 3 digests queue 3 keys.
insert into app.manifests (repo, id) values (6, 1);
insert into app.layers
select 6, 1, i, decode('0' || 5 + i % 3, 'hex') from generate_series(1, 10000) as i;
delete from gc.blob_review_queue;
delete from app.layers where repo = 6;
select results_eq('select * from app.blobs_queued()',
    $$values (E'\\x05'::bytea, 'layer_delete', 1::bigint), (E'\\x06', 'layer_delete', 1),
        (E'\\x07', 'layer_delete', 1)$$,
    'deleting 10,000 layers that share 3 digests queues 3 keys');

-- TRUNCATE, disabled triggers, partitions: nothing live is lost, and a scan finds the rest.
insert into app.manifests (repo, id) values (7, 1), (8, 1);
insert into app.layers values (7, 1, 1, E'\\x08'), (8, 1, 1, E'\\x08'), (8, 1, 2, E'\\x09');
delete from gc.blob_review_queue;
delete from app.layers_0 where repo > 6;
delete from app.layers_1 where repo > 6;
select results_eq('select digest, event from app.blobs_queued()',
    $$values (E'\\x08'::bytea, 'layer_delete'), (E'\\x09', 'layer_delete')$$,
    'a delete aimed at a partition is followed');
delete from gc.manifest_review_queue;
insert into app.manifests_0 (repo, id)
select i, 99 from generate_series(1, 100) as i
where satisfies_hash_partition('app.manifests'::regclass, 2, 0, i) limit 1;
select is(count(*), 1::bigint, 'an insert aimed at a partition is followed')
from app.manifests_queued() where id = 99;
insert into app.layers values (7, 1, 1, E'\\x08');
alter table app.layers disable trigger all;
delete from app.layers where repo = 7;
alter table app.layers enable trigger all;
select is_empty('select * from app.blobs_queued()', 'a disabled trigger queues nothing');
insert into gc.review_after_defaults values ('blob_scan', '0');
select gc.scan('blob') as ignored \gset
select is(array_agg(event), '{blob_scan}', 'a scan finds what a disabled trigger missed')
from gc.blob_review_queue where digest = E'\\x08';

-- Delays, by event, which change at run time.
select is(gc.review_after('nobody knows it') - now() >= '1 day'
        and gc.review_after('nobody knows it') - now() <= '1 day 10 seconds', true,
    'an event that has no delay of its own has a day');
update gc.review_after_defaults set value = '0' where event = 'blob_upload';
select is(gc.review_after('blob_upload'), now(), 'a delay of zero has no jitter');
delete from gc.blob_review_queue;
insert into app.blobs values (E'\\xff');
select is(review_after, now(), 'a changed delay counts from the next statement on')
from gc.blob_review_queue;
select results_eq('select reviewed, deleted from gc.review() where collection = ''blob''',
    'values (1, 1)', 'a row with a delay of zero is due at once');
update gc.review_after_defaults set value = '3 days' where event = 'blob_upload';
insert into app.blobs values (E'\\xfe');
select is(date_trunc('day', review_after - now()), '3 days', 'a longer delay counts as well')
from gc.blob_review_queue;
select throws_ok($$insert into gc.review_after_defaults values ('x', '-1 second')$$, '23514',
    null, 'a negative delay is refused');
select throws_ok($$update gc.settings set jitter = '-1 second'$$, '23514', null,
    'a negative jitter is refused');

-- gc.set_delay
select lives_ok($$select gc.set_delay('layer_delete', '5 minutes')$$, 'a delay is set by a call');
select is((select value from gc.review_after_defaults where event = 'layer_delete'), '5 minutes',
    'which writes the table');
select lives_ok($$select gc.set_delay('layer_delete', '7 minutes')$$, 'it can be repeated');
select is((select value from gc.review_after_defaults where event = 'layer_delete'), '7 minutes',
    'and the last one counts');
select lives_ok($$select gc.set_delay('layer_delete', null)$$, 'null takes it back');
select is_empty($$select from gc.review_after_defaults where event = 'layer_delete'$$,
    'so that it has a day again');
create function pg_temp.refused(event text, delay interval) returns text language plpgsql as $$
declare
    detail text;
    hint text;
begin
    perform gc.set_delay(event, delay);
    return 'accepted';
exception
    when others then
        get stacked diagnostics detail = pg_exception_detail, hint = pg_exception_hint;
        return sqlstate || ' ' || hint || case when detail ~ 'layer_delete' then ' listed' else '' end;
end;
$$;
select is(pg_temp.refused('layr_delete', '1 hour'),
    $$42704 select gc.set_delay('layer_delete', '01:00:00'); listed$$,
    'a typo is refused: the hint is the nearest event, and all are listed');
select is(pg_temp.refused('layers_delete', '0'),
    $$42704 select gc.set_delay('layer_delete', '00:00:00'); listed$$,
    'so is the usual name of an event that has another');
select is(left(pg_temp.refused(null, '0'), 5), '42704', 'null is no event');
select is(left(pg_temp.refused('layer_delete', d), 5), '22023', d || ' is no delay')
from unnest(array['-1 second', '300000 years']::interval[]) as d;
select throws_ok($$insert into gc.review_after_defaults values ('blob_insert', '300000 years')$$,
    '23514', null, 'nor can the table be given one that is beyond all time');
create role blobgc_delays;
grant usage on schema gc to blobgc_delays;
set local role blobgc_delays;
select throws_ok($$select gc.set_delay('layer_delete', '0')$$, '42501', null,
    'only the owner of blobgc may set delays');
reset role;

-- What a queue is made of.
select col_type_is('gc', 'blob_review_queue', 'digest', 'bytea',
    'a queue has the key in its own type');
select results_eq(
    $$select attname::text collate "default", atttypid::regtype
        from pg_attribute where attrelid = 'gc.manifest_review_queue'::regclass and attnum > 0
            and attname in ('repo', 'id', 'event', 'review_after', 'review_count')
        order by attname$$,
    $$values ('event', 'text'::regtype), ('id', 'integer'), ('repo', 'integer'),
        ('review_after', 'timestamp with time zone'), ('review_count', 'integer')$$,
    'a queue has every key column, the event, the time and the count');
select is_empty(
    $$select 'autovacuum_vacuum_scale_factor=0' except
        select unnest(reloptions) from pg_class where oid = 'gc.blob_review_queue'::regclass$$,
    'autovacuum comes to a queue after so many rows, however long the queue was');

-- Keys of types that are no plain ones go into the queue as they are.
create type app.spot as (x integer, y integer);
create table app.tree (id app.spot primary key, dead boolean);
create table app.road (id integer[] primary key, closed boolean);
create table app.span (id int4range primary key, over boolean);
select from gc.track('app.tree', condition => 'dead');
select from gc.track('app.road', condition => 'closed');
select from gc.track('app.span', condition => 'over');
insert into app.tree values ((1, 2), false);
insert into app.road values ('{1,2}', false);
insert into app.span values ('[1,2)', false);
select lives_ok('update app.tree set dead = true',
    'what the condition reads can be updated where the key is a row');
select lives_ok('update app.road set closed = true', 'or an array');
select lives_ok('update app.span set over = true', 'or a range');

-- Columns that are wider than the key they refer to, and have what no key can have.
create table app.small (id integer primary key, name varchar(3) unique);
create table app.wide (id integer primary key, small bigint);
create table app.later (
    id integer primary key,
    small bigint references app.small deferrable initially deferred
);
create table app.parted (part integer, small bigint references app.small) partition by list (part);
create table app.parted_1 partition of app.parted for values in (1);
create index on app.wide (small);
create index on app.later (small);
create index on app.parted (small);
insert into app.wide values (1, 9999999999), (2, 8888888888), (3, 1);
alter table app.wide
    add constraint wide_fkey foreign key (small) references app.small not valid;
select from gc.track('app.small');
insert into app.small values (1), (2);
delete from gc.small_review_queue;
select lives_ok('delete from app.wide where id = 1',
    'a row that was there before its foreign key, and refers to nothing, can be deleted');
select lives_ok('update app.wide set small = 2 where id = 2', 'and updated');
select is_empty('select id from gc.small_review_queue', 'nothing is queued for it');
delete from app.wide;
select set_eq('select id from gc.small_review_queue', '{1, 2}'::integer[],
    'what others like it referred to is queued');
select lives_ok($$insert into app.later values (1, 9999999999); delete from app.later$$,
    'a row whose foreign key is checked later can be deleted before that');
select lives_ok(
    $$insert into app.later values (1, 9999999999); update app.later set small = 1$$,
    'or updated');
select throws_ok('insert into app.parted values (1, 9999999999)', '23503', null,
    'what a partition may not have is refused by the foreign key, and by nothing else');

select * from finish();
rollback;
