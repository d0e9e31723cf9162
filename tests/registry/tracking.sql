-- Tracking: what is queued, why, and when.
savepoint tracking;
select registry.create_repository('acme/app') \g /dev/null
select test.empty_queues() \g /dev/null

-- A row that is inserted is queued, by its event, for when its delay is over.
insert into gc.review_after_defaults values ('blob_upload', '2 hours');
insert into registry.blobs (digest, size, media_type)
select E'\\x01'::bytea || sha256(n::text::bytea), 1, 'x' from generate_series(1, 3) as n;
select results_eq(
    $$select event, count(*), min(review_count), max(review_count),
        min(review_after) >= now() + interval '2 hours'
            and max(review_after) <= now() + interval '2 hours 1 minute'
        from gc.blob_review_queue group by event$$,
    $$values ('blob_upload', 3::bigint, 0, 0, true)$$,
    'blobs that are uploaded are queued once each, with their event and its delay');
delete from registry.blobs;
select test.empty_queues() \g /dev/null

-- A manifest that is inserted is queued, and keeps its configuration and its layers.
select test.push('acme/app', 'one', '{base, app}', 'v1') as one \gset
select set_eq('select * from test.queued_manifests()', $$values ('one: manifest_upload')$$,
    'a manifest that is pushed is queued');
select test.collect() \g /dev/null
select set_eq('select * from test.blobs()', $$values ('config of one'), ('base'), ('app')$$,
    'its configuration and layers keep their blobs from that moment');
select test.empty_queues() \g /dev/null

-- A manifest that is deleted queues its configuration and its layers.
select registry.delete_manifest('acme/app', :'one') \g /dev/null
select set_eq('select * from test.queued()',
    $$values ('config of one: manifest_delete'), ('base: layer_delete'), ('app: layer_delete')$$,
    'deleting a manifest queues its configuration and its layers');
select test.empty_queues() \g /dev/null
select test.push_list('acme/app', 'nothing', '{}') as nothing \gset
select test.empty_queues() \g /dev/null
select registry.delete_manifest('acme/app', :'nothing') \g /dev/null
select is_empty('select * from test.queued()', 'a manifest without configuration queues none');

-- A manifest list that is deleted queues its children, and not itself.
select test.push('acme/app', 'amd64', '{base}') as amd64 \gset
select test.push('acme/app', 'arm64', '{base}') as arm64 \gset
select test.push_list('acme/app', 'both', array[:'amd64', :'arm64'], 'multi') as both \gset
select test.empty_queues() \g /dev/null
select registry.delete_manifest('acme/app', :'both') \g /dev/null
select set_eq('select * from test.queued_manifests()',
    $$values ('amd64: manifest_list_delete'), ('arm64: manifest_list_delete')$$,
    'deleting a list queues each child, not the list');
select is_empty('select * from test.queued()', 'and no blob');

-- A tag that is deleted queues its manifest; two of one manifest lead to one review.
select registry.tag('acme/app', 'a', :'amd64'), registry.tag('acme/app', 'b', :'amd64') \g /dev/null
select test.empty_queues() \g /dev/null
delete from registry.tags;
select results_eq('select event, count(*) from gc.manifest_review_queue group by event',
    $$values ('tag_delete', 1::bigint)$$,
    'two tags of one manifest deleted together lead to one review');
select registry.tag('acme/app', 'a', :'amd64') \g /dev/null
select test.empty_queues() \g /dev/null
select registry.delete_manifest('acme/app', :'amd64') \g /dev/null
select is_empty('select * from registry.tags', 'deleting a manifest deletes its tags');
select is_empty('select * from test.queued_manifests()',
    'and queues nothing for the manifest that is gone');

-- A tag that is switched queues the old manifest.
select test.push('acme/app', 'two', '{base}', 'v1') as two \gset
select registry.tag('acme/app', 'v2', :'arm64') \g /dev/null
select test.empty_queues() \g /dev/null
select registry.tag('acme/app', 'v2', :'arm64') \g /dev/null
select is_empty('select * from test.queued_manifests()',
    'setting a tag to the same manifest queues nothing');
select registry.tag('acme/app', 'v2', :'two') \g /dev/null
select set_eq('select * from test.queued_manifests()', $$values ('arm64: tag_switch')$$,
    'switching a tag queues the old manifest');

-- A second event for a queued key postpones its review.
update gc.manifest_review_queue set review_after = now(), review_count = 3, last_error = 'no';
select registry.tag('acme/app', 'v2', :'arm64'), registry.tag('acme/app', 'v2', :'two') \g /dev/null
select is((select reviewed from gc.review() where collection = 'manifest'), 0,
    'a second event postpones the review');
select results_eq(
    format('select q.event, q.review_count, q.last_error from gc.manifest_review_queue as q
        join registry.manifests as m using (id) where registry.digest_text(m.digest) = %L', :'arm64'),
    $$values ('tag_switch', 3, 'no')$$, 'and keeps what is known of failed ones');

-- 10,000 layers that share 3 digests queue 3 keys.
select test.upload('acme/app', 'l' || n) from generate_series(1, 3) as n \g /dev/null
select registry.put_manifest('acme/app', test.bytes(test.image('two', array(
    select 'l' || 1 + n % 3 from generate_series(1, 10000) as n))), 'big') as big \gset
select test.empty_queues() \g /dev/null
select is((select count(*) from registry.layers as l
    join registry.manifests as m on m.id = l.manifest_id
    where registry.digest_text(m.digest) = :'big'), 10000::bigint,
    'a manifest of 10,000 layers is pushed');
delete from registry.layers as l using registry.manifests as m
where m.id = l.manifest_id and registry.digest_text(m.digest) = :'big';
select is((select count(*) from gc.blob_review_queue), 3::bigint,
    'deleting 10,000 layers of 3 blobs in one statement queues 3 keys');

-- TRUNCATE, disabled triggers, partitions: nothing live is lost, and a scan finds the rest.
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
    'a statement aimed at the partition that has the row is followed too');
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
    'what no trigger saw is not collected');
do $$ begin while gc.scan('manifest') > 0 loop end loop; end $$;
select test.collect() \g /dev/null
select set_hasnt('select * from test.manifests()', $$values ('acme/app missed')$$,
    'until a scan finds it');
select set_eq($$select * from test.tombstones() as t
        where t in ('seldom', 'config of missed', 'base')$$,
    $$values ('seldom'), ('config of missed')$$, 'and then its blobs go, and no shared one');
truncate registry.tags, registry.pulls;
select test.collect() \g /dev/null
select is_empty('select * from test.manifests()', 'TRUNCATE of the tags is noticed by itself');

-- Delays, by event, which change at run time.
delete from gc.review_after_defaults where event = 'blob_upload';
select ok(gc.review_after('blob_upload') between now() + interval '1 day'
    and now() + interval '1 day 1 minute', 'an event without a value has 1 day');
insert into gc.review_after_defaults values ('blob_upload', '0');
select test.upload('acme/app', 'at once') \g /dev/null
select is(min(review_after), now(), 'a delay of zero means due at once')
from gc.blob_review_queue;

rollback to tracking;
