-- Operations: what each of them does, and what it says when something is missing.
savepoint operations;
select test.empty_queues() \g /dev/null

create function test.refused(command text, code text, what text) returns text language sql as
$$ select is(test.sqlstate_of('select ' || command), code, what) $$;

-- Names and digests.
select lives_ok(format('select registry.create_repository(%L)', n), n || ' is a name')
from unnest('{a, acme/app, a/b/c/d, 0/1.2_3__4--5}'::text[]) as n;
select test.refused(format('registry.create_repository(%L)', n), 'ZR008',
    to_json(left(n, 20)) || ' is no name')
from unnest(array['', '/', 'A', 'a/', '/a', 'a//b', 'a..b', '-a', 'a-', 'a b', 'ä', E'a\n', 'a@1',
    repeat('a', 256), 'a;drop', '../a']) as n;
select test.refused('registry.create_repository(null)', 'ZR008', 'null is no name');
select test.refused(format('registry.has_blob(''acme/app'', %L)', d), 'ZR004',
    to_json(left(d, 20)) || ' is no digest')
from unnest(array['', 'sha256:', 'abc', test.digest('x') || '0', upper(test.digest('x')),
    'md5:d41d8cd98f00b204e9800998ecf8427e', 'sha512:' || substr(test.digest('x'), 8),
    E'\n' || test.digest('x'), test.digest('x') || E'\n', 'sha256:' || repeat('g', 64)]) as d;
select test.refused('registry.has_blob(''acme/app'', null)', 'ZR004', 'null is no digest');

-- What is not there.
select test.refused(c, 'ZR009', split_part(c, '(', 1) || ' of a repository that is not there')
from unnest(array[
    $$registry.begin_blob_upload('no/where', test.digest('x'))$$,
    $$registry.finish_blob_upload('no/where', test.digest('x'), 1)$$,
    $$registry.link_blob('no/where', test.digest('x'))$$,
    $$registry.mount_blob('acme/app', test.digest('x'), 'no/where')$$,
    $$registry.unlink_blob('no/where', test.digest('x'))$$,
    $$registry.has_blob('no/where', test.digest('x'))$$,
    $$registry.get_blob('no/where', test.digest('x'))$$,
    $$registry.put_manifest('no/where', '{}')$$,
    $$registry.get_manifest('no/where', 'v1')$$,
    $$registry.tag('no/where', 'v1', test.digest('x'))$$,
    $$registry.untag('no/where', 'v1')$$,
    $$registry.delete_manifest('no/where', test.digest('x'))$$,
    $$registry.list_tags('no/where')$$,
    $$registry.list_referrers('no/where', test.digest('x'))$$,
    $$registry.activate_repository('no/where')$$,
    $$registry.delete_repository('no/where')$$]) as c;
select test.refused(c, 'ZR001', split_part(c, '(', 1) || ' of a blob that is not there')
from unnest(array[
    $$registry.link_blob('acme/app', test.digest('x'))$$,
    $$registry.mount_blob('acme/app', test.digest('x'), 'a')$$,
    $$registry.unlink_blob('acme/app', test.digest('x'))$$,
    $$registry.get_blob('acme/app', test.digest('x'))$$]) as c;
select test.refused(c, 'ZR007', split_part(c, '(', 1) || ' of a manifest that is not there')
from unnest(array[
    $$registry.get_manifest('acme/app', 'v1')$$,
    $$registry.get_manifest('acme/app', test.digest('x'))$$,
    $$registry.tag('acme/app', 'v1', test.digest('x'))$$,
    $$registry.untag('acme/app', 'v1')$$,
    $$registry.delete_manifest('acme/app', test.digest('x'))$$]) as c;

-- Blobs.
select is(registry.begin_blob_upload('acme/app', test.digest('base')),
    registry.blob_url(registry.digest_bytes(test.digest('base'))),
    'begin_blob_upload tells where to write');
select is(registry.begin_blob_upload('acme/app', 'sha512:' || encode(sha512('x'), 'hex')),
    's3://bucket/images/docker/registry/v2/blobs/sha512/a4/'
        || encode(sha512('x'), 'hex') || '/data', 'a SHA-512 too');
select test.refused($$registry.finish_blob_upload('acme/app', test.digest('never'), 5)$$, 'ZR003',
    'an upload that was not begun cannot be finished');
select test.refused(format($$registry.finish_blob_upload('acme/app', test.digest('base'), %s)$$, n),
    'ZR010', format('%s is no size', n))
from unnest(array['-1', 'null']) as n;
select lives_ok($$select registry.finish_blob_upload('acme/app', test.digest('base'), 4, 'tar')$$,
    'one that was begun can');
select test.refused($$registry.finish_blob_upload('acme/app', test.digest('base'), 4)$$, 'ZR003',
    'but only once');
select results_eq($$select url like 's3://%/data', size, media_type
        from registry.get_blob('acme/app', test.digest('base'))$$,
    $$values (true, 4::bigint, 'tar')$$, 'get_blob tells where to read it, and how big it is');
select registry.begin_blob_upload('acme/app', test.digest('base')) \g /dev/null
select test.refused($$registry.finish_blob_upload('acme/app', test.digest('base'), 5)$$, 'ZR010',
    'the same blob cannot have another size');
select ok(registry.has_blob('acme/app', test.digest('base')), 'the repository has it');
select isnt_empty($$select from gc.holds where collection = 'blob' and reason = 'keep_alive'$$,
    'and the check keeps it alive');
select ok(not registry.has_blob('a', test.digest('base')), 'another repository does not');
select test.refused($$registry.mount_blob('a', test.digest('base'), 'a/b/c/d')$$, 'ZR001',
    'a blob cannot be mounted from a repository that does not have it');
select registry.mount_blob('a', test.digest('base'), 'acme/app') \g /dev/null
select ok(registry.has_blob('a', test.digest('base')), 'from one that has it, it can');
select registry.link_blob('a/b/c/d', test.digest('base')) \g /dev/null
select registry.link_blob('a/b/c/d', test.digest('base')) \g /dev/null
select ok(registry.has_blob('a/b/c/d', test.digest('base')), 'link_blob links, once or twice');
select registry.unlink_blob('a/b/c/d', test.digest('base')) \g /dev/null
select ok(not registry.has_blob('a/b/c/d', test.digest('base')), 'unlink_blob unlinks');

-- Each upload has its own hold, and finishing asks for that one.
select test.empty_queues() \g /dev/null
select registry.begin_blob_upload('acme/app', test.digest('named'), upload => 'slow') \g /dev/null
update gc.holds set held_until = clock_timestamp();
select registry.begin_blob_upload('acme/app', test.digest('named'), upload => 'fast') \g /dev/null
select test.refused($$registry.finish_blob_upload('acme/app', test.digest('named'), 5,
    upload => 'slow')$$, 'ZR003', 'an upload that timed out does not live off that of another');
select test.refused($$registry.finish_blob_upload('acme/app', test.digest('named'), 5)$$, 'ZR003',
    'nor does one without a name');
select test.refused($$registry.finish_blob_upload('acme/app', test.digest('other'), 5,
    upload => 'fast')$$, 'ZR003', 'nor does one of another blob');
select lives_ok($$select registry.finish_blob_upload('acme/app', test.digest('named'), 5, null,
    'fast')$$, 'the one that is in time is finished by its name');
select is((registry.get_blob('acme/app', test.digest('named'))).media_type,
    'application/octet-stream', 'a media type of null is the usual one');
select test.refused($$registry.finish_blob_upload('acme/app', test.digest('named'), 5,
    upload => 'fast')$$, 'ZR003', 'and only once');

-- An upload whose repository is gone when its object is written.
select registry.create_repository('gone/app') \g /dev/null
select registry.begin_blob_upload('gone/app', test.digest('late'), upload => 'late') \g /dev/null
select registry.delete_repository('gone/app') \g /dev/null
select test.refused($$registry.finish_blob_upload('gone/app', test.digest('late'), 4,
    upload => 'late')$$, 'ZR009', 'it cannot be finished');
select test.refused($$registry.abandon_blob_upload(test.digest('late'), 4, 'other')$$, 'ZR003',
    'nor abandoned under another name');
select lives_ok($$select registry.abandon_blob_upload(test.digest('late'), 4, 'late')$$,
    'but it can be abandoned');
select test.refused($$registry.get_blob('acme/app', test.digest('late'))$$, 'ZR001',
    'no repository has it then');
select is((select count(*) from gc.blob_review_queue as q
    where q.digest = registry.digest_bytes(test.digest('late'))), 1::bigint,
    'and it will be reviewed, so its object is not forgotten');
select test.refused($$registry.abandon_blob_upload(test.digest('late'), 4, 'late')$$, 'ZR003',
    'it is abandoned only once');
delete from registry.blobs where digest = registry.digest_bytes(test.digest('late'));

-- A server that dies, so that nobody finishes its upload, and what does not look like one.
savepoint dead;
delete from gc.holds;
select registry.begin_blob_upload('acme/app', test.digest('dead'), upload => 'dead'),
    registry.begin_blob_upload('acme/app', test.digest('base'), upload => 'of a blob that is there'),
    gc.begin_upload('blob', E'\\x00', 's3://bucket/images/nonsense'),
    gc.begin_uploads('blob', urls => '{s3://bucket/images/sha256/zz/zz/data}') \g /dev/null
select gc.review() \g /dev/null
select is_empty($$select from gc.tombstones where event = 'blob_upload'$$,
    'as long as it may be finished, nothing is left behind');
update gc.holds set held_until = clock_timestamp();
select gc.review() \g /dev/null
select results_eq($$select label, url, due_at >= clock_timestamp() + interval '59 minutes'
        from gc.tombstones where event = 'blob_upload'$$,
    $$select test.digest('dead'), registry.blob_url(registry.digest_bytes(test.digest('dead'))), true$$,
    'what nobody has finished in time leaves a tombstone');
select is((select s.why from gc.status() as s where s.collection = 'blob'), null,
    'whatever else was announced');
select gc.review() \g /dev/null
select is((select count(*) from gc.tombstones where event = 'blob_upload'), 1::bigint, 'only one');
select lives_ok($$select test.upload('acme/app', 'dead')$$, 'and it can be uploaded again');
rollback to dead;
-- Nobody reviewed for hours, and then in small batches; and somebody has announced very many.
delete from gc.holds;
select registry.begin_blob_upload('acme/app', test.digest('dead ' || n), upload => 'dead')
from generate_series(1, 50) as n \g /dev/null
update gc.holds set held_until = now() - interval '5 hours' + (h.id * 7 % 11) * interval '1 minute'
from (select id from gc.holds) as h where h.id = holds.id;
select gc.review(2) from generate_series(1, 5) \g /dev/null
select is((select count(*) from gc.tombstones where event = 'blob_upload'), 50::bigint,
    'no upload is forgotten before it was looked at');
select is_empty('select from gc.holds', 'and all are forgotten then');
rollback to dead;
delete from gc.holds;
insert into gc.holds (collection, key, url, reason, held_until)
select 'blob', registry._blob_key(d), registry.blob_url(d), 'upload', now() - interval '1 minute'
from generate_series(1, 3000) as n
cross join lateral (select registry.digest_bytes(test.digest('many ' || n))) as o(d);
select gc.review(10) \g /dev/null
select is((select count(*) from gc.tombstones where event = 'blob_upload'), 100::bigint,
    'of very many, a review looks at as many as it may forget');
rollback to dead;
update gc.settings set strict_uploads = true;
select test.refused($$registry.finish_blob_upload('acme/app', test.digest('strict'), 6)$$, 'ZR003',
    'with strict uploads, too, an upload that was not begun is unknown');
update gc.settings set strict_uploads = false;

-- Manifests.
select test.push('acme/app', 'one', '{base, top}', 'v1') as one \gset
select is((select payload from registry.get_manifest('acme/app', 'v1')),
    test.bytes(test.image('one', '{base, top}')), 'a manifest is kept byte for byte');
select is((registry.get_manifest('acme/app', :'one')).digest, (registry.get_manifest('acme/app',
    'v1')).digest, 'its tag and its digest find the same');
select is(:'one', test.digest(test.image('one', '{base, top}')::text),
    'its digest is that of the bytes');
select results_eq($$select total_size, artifact_type from registry.manifests$$,
    $$values (20::bigint, 'application/vnd.oci.image.config.v1+json')$$,
    'it is as big as its configuration and layers');
select is(test.push('acme/app', 'one', '{base, top}', 'v2'), :'one', 'it can be pushed again');
select is((select count(*) from registry.manifests), 1::bigint, 'and is there only once');
select set_eq($$select registry.list_tags('acme/app')$$, '{v1, v2}'::text[], 'with both tags');
select is(registry.put_manifest('acme/app', test.bytes(test.image('one', '{base, top}')), :'one'),
    :'one', 'it can be pushed by its digest');
select test.refused(format('registry.put_manifest(''acme/app'', test.bytes(test.image(''one'',
    ''{base}'')), %L)', :'one'), 'ZR004', 'but not under another');
select is(registry.put_manifest('acme/app', test.bytes(test.image('one', '{base, base}')),
    'sha512:' || encode(sha512(test.bytes(test.image('one', '{base, base}'))), 'hex')),
    'sha512:' || encode(sha512(test.bytes(test.image('one', '{base, base}'))), 'hex'),
    'it may have a SHA-512, and a layer twice');
select test.refused(format('registry.put_manifest(''acme/app'', test.bytes(test.image(''one'',
    ''{base}'')), %L)', t), 'ZR020', to_json(left(t, 20)) || ' is no tag')
from unnest(array['', '-a', '.a', 'a b', 'ä', repeat('a', 129), E'a\n', 'a/b']) as t;
select test.refused($$registry.unlink_blob('acme/app', test.digest('base'))$$, 'ZR012',
    'a layer of a manifest cannot be unlinked');
select test.refused($$registry.unlink_blob('acme/app', test.digest('config of one'))$$, 'ZR012',
    'nor its configuration');
select test.refused($$registry.put_manifest('a/b/c/d', test.bytes(test.image('one', '{base}')))$$,
    'ZR005', 'layers must be in the same repository');
select test.push('acme/app', 'child', '{base}') as child \gset
update gc.manifest_review_queue set review_after = now();
select is((select sum(deleted)::integer from gc.review() where collection = 'manifest'), 0,
    'a manifest that is pushed by digest waits for the list that will have it');
select lives_ok(format('select registry.delete_manifest(''acme/app'', %L)', :'child'),
    'but can be deleted');
select test.push_list('acme/app', 'list', array[:'one', :'one'], 'list') as list \gset
select is((select count(*) from registry.manifest_references), 1::bigint,
    'a list may have a child twice');
select test.refused(format('registry.delete_manifest(''acme/app'', %L)', :'one'), 'ZR012',
    'a manifest that a list has cannot be deleted');
select registry.delete_manifest('acme/app', :'list') \g /dev/null
select lives_ok(format('select registry.delete_manifest(''acme/app'', %L)', :'one'),
    'without the list it can');
select is_empty($$select registry.list_tags('acme/app')$$, 'its tags go with it');
select test.refused($$registry.put_manifest('acme/app',
    test.bytes(test.list(array[test.digest('x')])))$$, 'ZR005',
    'a list cannot have what is not there');

-- Foreign layers are pulled from elsewhere.
select test.push('acme/app', 'windows', '{base}') as windows \gset
select lives_ok($$select registry.put_manifest('acme/app', test.bytes(jsonb_set(
    test.image('windows', '{base, elsewhere}'), '{layers, 1, mediaType}',
    '"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"')), 'foreign')$$,
    'a foreign layer need not be there');
select is((select count(*) from registry.layers as l join registry.tags as t using (manifest_id)
    where t.name = 'foreign'), 1::bigint, 'and keeps nothing');

-- Lists with pages.
select registry.tag('acme/app', t, :'windows')
from unnest('{B, a, c, _, 1}'::text[]) as t \g /dev/null
select results_eq($$select registry.list_tags('acme/app')$$, '{1, B, _, a, c, foreign}'::text[],
    'tags are listed as ASCII orders them');
select results_eq($$select registry.list_tags('acme/app', 2, 'B')$$, '{_, a}'::text[],
    'in pages, each from where the last one ended');
select is_empty($$select registry.list_tags('acme/app', 2, 'foreign')$$, 'until there are no more');
select results_eq($$select registry.list_repositories(3)$$, '{0/1.2_3__4--5, a, a/b/c/d}'::text[],
    'repositories too');
select results_eq($$select registry.list_repositories(last => 'a/b/c/d')$$, '{acme/app}'::text[],
    'and the rest of them');

select is_empty($$select registry.list_tags('acme/app', -1)$$, 'a page of less than nothing is empty');
select is_empty('select registry.list_repositories(-1)', 'of repositories too');
select ok(length(test.message_of(format('select registry.get_manifest(''acme/app'', %L)',
    repeat('x', 1000000)))) < 1000, 'a message does not repeat a reference that is too long');
select ok(length(test.message_of(format('select registry.list_tags(%L)', repeat('a', 1000000))))
    < 1000, 'nor a name');

-- Referrers by kind.
select test.call('sbom', registry.put_manifest('acme/app', test.bytes(
    test.image('windows', '{base}', :'windows')
    || '{"artifactType": "application/spdx", "annotations": {"by": "me"}}'))) \g /dev/null
select test.push('acme/app', 'signature', '{}', null, :'windows') \g /dev/null
select results_eq(format('select test.name_of(registry.digest_bytes(digest)), annotations ->> ''by''
    from registry.list_referrers(''acme/app'', %L, ''application/spdx'')', :'windows'),
    $$values ('sbom', 'me')$$, 'referrers are listed by kind, with their annotations');
select is((select count(*) from registry.list_referrers('acme/app', :'windows')), 2::bigint,
    'or all of them');
select results_eq(
    format('select array_agg(digest order by digest) from registry.list_referrers(''acme/app'', %L)',
        :'windows'),
    format('select array[one.digest, two.digest]
        from registry.list_referrers(''acme/app'', %1$L, n => 1) as one
        cross join registry.list_referrers(''acme/app'', %1$L, n => 1, last => one.digest) as two',
        :'windows'), 'or in pages, each from where the last one ended');
select is_empty(format('select registry.list_referrers(''acme/app'', %L, n => -1)', :'windows'),
    'of which one of less than nothing is empty');
select test.refused(format('registry.list_referrers(''acme/app'', %L, last => ''v1'')', :'windows'),
    'ZR004', 'and the last one seen is a digest');

-- Usage.
select registry.create_repository('use/one'), registry.create_repository('use/two') \g /dev/null
select test.push('use/one', 'a', '{shared, a}', 'a'), test.push('use/one', 'b', '{shared}', 'b'),
    test.push('use/two', 'a', '{shared, a}', 'a') \g /dev/null
select results_eq($$select * from registry.repository_usage where repository like 'use/%'
        order by repository$$,
    $$values ('use/one' collate "C", 2::bigint, 35::numeric, 29::numeric),
        ('use/two', 1, 18, 18)$$, 'a repository uses each blob once');
select results_eq($$select * from registry.namespace_usage where namespace = 'use'$$,
    $$values ('use' collate "C", 2::bigint, 3::bigint, 53::numeric, 29::numeric)$$,
    'a namespace uses each blob once');

-- An application needs no more than rights on the schema, and to announce uploads.
create role blobgc_registry_app;
grant usage on schema registry, test to blobgc_registry_app;
grant select, insert, update, delete on all tables in schema registry, test to blobgc_registry_app;
select gc.grant_uploader('blobgc_registry_app') \g /dev/null
set local role blobgc_registry_app;
select lives_ok($$select test.push('use/two', 'by app', '{shared}', 'app')$$,
    'an application pushes without owning anything');
select lives_ok($$select registry.delete_repository('use/two')$$, 'and deletes');
reset role;

-- Manifests that are made from their parts.
select registry.create_repository('parts/app') \g /dev/null
select test.upload('parts/app', c) from unnest('{a config, base layer, top layer}'::text[]) as c
\g /dev/null
select registry.put_image('parts/app', test.digest('a config'),
    array[test.digest('base layer'), test.digest('top layer')], 'v1') as image \gset
select results_eq(
    $$select l.position, l.digest, l.size
    from registry.layers as l join registry.manifests as m on m.id = l.manifest_id
    join registry.repositories as r on r.id = m.repository_id and r.path = 'parts/app'
    order by 1$$,
    $$values (1, registry.digest_bytes(test.digest('base layer')), 10::bigint),
        (2, registry.digest_bytes(test.digest('top layer')), 9::bigint)$$,
    'an image that is made from its parts has the layers that were named, in their order');
select is((registry.get_manifest('parts/app', 'v1')).digest, :'image', 'and the tag');
select registry.put_image('parts/app', test.digest('a config'), '{}', subject => :'image')
    as signature \gset
select results_eq(
    format('select digest from registry.list_referrers(''parts/app'', %L)', :'image'),
    array[:'signature'], 'an image may be about another one');
select registry.put_list('parts/app', array[:'image', :'signature'], 'all') as list \gset
select results_eq(
    $$select child.digest from registry.manifest_references as o
    join registry.manifests as child on child.id = o.child_id
    join registry.repositories as r on r.id = child.repository_id and r.path = 'parts/app'
    order by child.id$$,
    array[registry.digest_bytes(:'image'), registry.digest_bytes(:'signature')],
    'a list has the manifests that were named');
select test.refused($$registry.put_image('parts/app', test.digest('a config'),
    array[test.digest('nowhere')])$$, 'ZR005', 'a layer that is not there is missed');
select test.refused($$registry.put_list('parts/app', array[test.digest('nowhere')])$$,
    'ZR007', 'so is a manifest of a list');

-- Stands for a manifest that is there, and gone a moment later.
create sequence test.pushed;
create function test.gone_a_moment_later() returns trigger language plpgsql
as 'begin return case when nextval(''test.pushed'') > 1 then new end; end';
create trigger gone before insert on registry.manifests
    for each row execute function test.gone_a_moment_later();
select lives_ok(
    $$select registry.put_manifest('parts/app', '{"schemaVersion": 2, "manifests": []}')$$,
    'a manifest that is collected while it is pushed again is pushed');

rollback to operations;
