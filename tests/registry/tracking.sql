-- Tracking: what is queued, why, and when. Scenarios 1 to 10.
savepoint tracking;
select registry.create_repository('acme/app') \g /dev/null
select test.empty_queues() \g /dev/null

-- 1
insert into gc.review_after_defaults values ('blob_upload', '2 hours');
insert into registry.blobs (digest, size, media_type)
select E'\\x01'::bytea || sha256(n::text::bytea), 1, 'x' from generate_series(1, 3) as n;
select results_eq(
    $$select event, count(*), min(review_count), max(review_count),
        min(review_after) >= now() + interval '2 hours'
            and max(review_after) <= now() + interval '2 hours 1 minute'
        from gc.blob_review_queue group by event$$,
    $$values ('blob_upload', 3::bigint, 0, 0, true)$$,
    '1: blobs that are uploaded are queued once each, with their event and its delay');
delete from registry.blobs;
select test.empty_queues() \g /dev/null

-- 2
select test.push('acme/app', 'one', '{base, app}', 'v1') as one \gset
select set_eq('select * from test.queued_manifests()', $$values ('one: manifest_upload')$$,
    '2: a manifest that is pushed is queued');
select test.collect() \g /dev/null
select set_eq('select * from test.blobs()', $$values ('config of one'), ('base'), ('app')$$,
    '2: its configuration and layers keep their blobs from that moment');
select test.empty_queues() \g /dev/null

-- 3
select registry.delete_manifest('acme/app', :'one') \g /dev/null
select set_eq('select * from test.queued()',
    $$values ('config of one: manifest_delete'), ('base: layer_delete'), ('app: layer_delete')$$,
    '3: deleting a manifest queues its configuration and its layers');
select test.empty_queues() \g /dev/null
select test.push_list('acme/app', 'nothing', '{}') as nothing \gset
select test.empty_queues() \g /dev/null
select registry.delete_manifest('acme/app', :'nothing') \g /dev/null
select is_empty('select * from test.queued()', '3: a manifest without configuration queues none');

-- 4
select test.push('acme/app', 'amd64', '{base}') as amd64 \gset
select test.push('acme/app', 'arm64', '{base}') as arm64 \gset
select test.push_list('acme/app', 'both', array[:'amd64', :'arm64'], 'multi') as both \gset
select test.empty_queues() \g /dev/null
select registry.delete_manifest('acme/app', :'both') \g /dev/null
select set_eq('select * from test.queued_manifests()',
    $$values ('amd64: manifest_list_delete'), ('arm64: manifest_list_delete')$$,
    '4: deleting a list queues each child, not the list');
select is_empty('select * from test.queued()', '4: and no blob');

-- 5
select registry.tag('acme/app', 'a', :'amd64'), registry.tag('acme/app', 'b', :'amd64') \g /dev/null
select test.empty_queues() \g /dev/null
delete from registry.tags;
select results_eq('select event, count(*) from gc.manifest_review_queue group by event',
    $$values ('tag_delete', 1::bigint)$$,
    '5: two tags of one manifest deleted together lead to one review');
select registry.tag('acme/app', 'a', :'amd64') \g /dev/null
select test.empty_queues() \g /dev/null
select registry.delete_manifest('acme/app', :'amd64') \g /dev/null
select is_empty('select * from registry.tags', '5: deleting a manifest deletes its tags');
select is_empty('select * from test.queued_manifests()',
    '5: and queues nothing for the manifest that is gone');

-- 6
select test.push('acme/app', 'two', '{base}', 'v1') as two \gset
select registry.tag('acme/app', 'v2', :'arm64') \g /dev/null
select test.empty_queues() \g /dev/null
select registry.tag('acme/app', 'v2', :'arm64') \g /dev/null
select is_empty('select * from test.queued_manifests()',
    '6: setting a tag to the same manifest queues nothing');
select registry.tag('acme/app', 'v2', :'two') \g /dev/null
select set_eq('select * from test.queued_manifests()', $$values ('arm64: tag_switch')$$,
    '6: switching a tag queues the old manifest');

-- 7
update gc.manifest_review_queue set review_after = now(), review_count = 3, last_error = 'no';
select registry.tag('acme/app', 'v2', :'arm64'), registry.tag('acme/app', 'v2', :'two') \g /dev/null
select is((select reviewed from gc.review() where collection = 'manifest'), 0,
    '7: a second event postpones the review');
select results_eq(
    format('select q.event, q.review_count, q.last_error from gc.manifest_review_queue as q
        join registry.manifests as m using (id) where registry.digest_text(m.digest) = %L', :'arm64'),
    $$values ('tag_switch', 3, 'no')$$, '7: and keeps what is known of failed ones');

-- 8
select test.upload('acme/app', 'l' || n) from generate_series(1, 3) as n \g /dev/null
select registry.put_manifest('acme/app', test.bytes(test.image('two', array(
    select 'l' || 1 + n % 3 from generate_series(1, 10000) as n))), 'big') as big \gset
select test.empty_queues() \g /dev/null
select is((select count(*) from registry.layers as l
    join registry.manifests as m on m.id = l.manifest_id
    where registry.digest_text(m.digest) = :'big'), 10000::bigint,
    '8: a manifest of 10,000 layers is pushed');
delete from registry.layers as l using registry.manifests as m
where m.id = l.manifest_id and registry.digest_text(m.digest) = :'big';
select is((select count(*) from gc.blob_review_queue), 3::bigint,
    '8: deleting 10,000 layers of 3 blobs in one statement queues 3 keys');

-- 9
select registry.untag('acme/app', 'big'), test.collect() \g /dev/null
select test.empty_queues() \g /dev/null
do $$
declare
    tags regclass := (select t.tableoid from registry.tags as t where t.name = 'v1');
begin
    execute format('delete from %s where name = %L', tags, 'v1');
end
$$;
select results_eq('select event from gc.manifest_review_queue', $$values ('tag_delete')$$,
    '9: a statement aimed at the partition that has the row is followed too');
select test.push('acme/app', 'missed', '{seldom}', 'missed') \g /dev/null
select test.empty_queues() \g /dev/null
do $$
declare
    tags regclass := (select t.tableoid from registry.tags as t where t.name = 'missed');
begin
    alter table registry.tags disable trigger user;
    delete from registry.tags where name = 'missed';
    alter table registry.tags enable trigger user;
end
$$;
select test.collect() \g /dev/null
select set_has('select * from test.manifests()', $$values ('acme/app missed')$$,
    '9: what no trigger saw is not collected');
do $$ begin while gc.scan('manifest') > 0 loop end loop; end $$;
select test.collect() \g /dev/null
select set_hasnt('select * from test.manifests()', $$values ('acme/app missed')$$,
    '9: until a scan finds it');
select set_eq($$select * from test.tombstones() as t
        where t in ('seldom', 'config of missed', 'base')$$,
    $$values ('seldom'), ('config of missed')$$, '9: and then its blobs go, and no shared one');
truncate registry.tags;
select test.collect() \g /dev/null
select is_empty('select * from test.manifests()', '9: TRUNCATE of the tags is noticed by itself');

-- 10
delete from gc.review_after_defaults where event = 'blob_upload';
select ok(gc.review_after('blob_upload') between now() + interval '1 day'
    and now() + interval '1 day 1 minute', '10: an event without a value has 1 day');
insert into gc.review_after_defaults values ('blob_upload', '0');
select test.upload('acme/app', 'at once') \g /dev/null
select is(min(review_after), now(), '10: a delay of zero means due at once')
from gc.blob_review_queue;

rollback to tracking;
