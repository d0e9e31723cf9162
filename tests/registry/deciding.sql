-- Deciding: what a review keeps and what it deletes.
savepoint deciding;
select registry.create_repository('acme/app'), registry.create_repository('acme/web'),
    registry.create_repository('other/app') \g /dev/null

-- The longest overdue is next; what is not due is not taken.
select test.push('acme/app', n, '{}') from unnest('{first, second, third}'::text[]) as n \g /dev/null
delete from gc.holds;
update gc.manifest_review_queue as q
set review_after = now() - case test.name_of(m.digest)
    when 'first' then interval '1 minute' when 'second' then '2 minutes' else '-1 minute' end
from registry.manifests as m where m.id = q.id;
select is((select deleted from gc.review(1) where collection = 'manifest'), 1,
    'a batch of one takes one');
select set_eq('select * from test.manifests()', $$values ('acme/app first'), ('acme/app third')$$,
    'the longest overdue');
select is((select deleted from gc.review() where collection = 'manifest'), 1,
    'then the next');
select set_eq('select * from test.manifests()', $$values ('acme/app third')$$,
    'and what is not due is not taken');

-- A blob is kept while a configuration or a layer refers to it, in any repository.
select test.push('acme/app', 'a', '{shared}', 'a'), test.push('other/app', 'b', '{shared}', 'b')
\g /dev/null
select test.upload('acme/web', 'config of c') \g /dev/null
select registry.untag('acme/app', 'a'), test.collect() \g /dev/null
select set_has('select * from test.blobs()', $$values ('shared')$$,
    'a blob is kept while a layer in any repository refers to it');
select registry.mount_blob('acme/web', test.digest('shared'), 'other/app') \g /dev/null
select test.call('c', registry.put_manifest('acme/web', test.bytes(jsonb_set(
    test.image('c', '{}'), '{config}', test.layer('shared'))), 'c')) \g /dev/null
select registry.untag('other/app', 'b'), test.collect() \g /dev/null
select set_eq('select * from test.blobs()', $$values ('shared')$$,
    'or a configuration');
select registry.untag('acme/web', 'c'), test.collect() \g /dev/null
select is_empty('select * from test.blobs()', 'the last one going makes it garbage');
select is_empty('select * from registry.repository_blobs', 'its links go with it');
select set_has('select * from test.tombstones()', $$values ('shared')$$,
    'and leave a tombstone');
select is((select url from gc.tombstones where test.name_of(key::bytea) = 'shared'),
    's3://bucket/images/docker/registry/v2/blobs/sha256/'
        || substr(test.digest('shared'), 8, 2) || '/' || substr(test.digest('shared'), 8) || '/data',
    'whose object stands where the distribution registry puts it');

-- A manifest is kept while a tag or a manifest list refers to it.
select test.push('acme/app', 'child', '{}') as child \gset
select test.push_list('acme/app', 'list', array[:'child']) as list \gset
select test.push_list('acme/app', 'outer', array[:'list'], 'outer') as outer \gset
select registry.tag('acme/app', 'child', :'child'), test.collect() \g /dev/null
select set_eq('select * from test.manifests()',
    $$values ('acme/app child'), ('acme/app list'), ('acme/app outer')$$,
    'tags, lists, and lists in lists keep manifests');
select registry.untag('acme/app', 'child'), test.collect() \g /dev/null
select set_has('select * from test.manifests()', $$values ('acme/app child')$$,
    'a list is enough');
select registry.tag('acme/app', 'child', :'child') \g /dev/null
select registry.untag('acme/app', 'outer'), test.collect() \g /dev/null
select set_eq('select * from test.manifests()', $$values ('acme/app child')$$,
    'a tag is enough, and the lists that nothing keeps go, outer and inner');
select registry.untag('acme/app', 'child'), test.collect() \g /dev/null
select is_empty('select * from test.manifests()', 'with neither it goes');

-- A signature is kept as long as its subject is there, and goes with it.
select test.push('acme/app', 'image', '{base}', 'v1') as image \gset
select test.push('acme/app', 'signature', '{signed}', null, :'image') as signature \gset
select test.push('acme/app', 'sbom', '{parts}', 'sbom', :'image') as sbom \gset
select test.push('acme/app', 'of sbom', '{}', null, :'sbom') \g /dev/null
select test.collect() \g /dev/null
select set_eq('select * from test.manifests()', $$values ('acme/app image'),
    ('acme/app signature'), ('acme/app sbom'), ('acme/app of sbom')$$,
    'what refers to a subject is kept by it, tagged or not, also a referrer of a referrer');
select registry.untag('acme/app', 'sbom'), test.collect() \g /dev/null
select set_has('select * from test.manifests()', $$values ('acme/app sbom')$$,
    'without its tag too');
select set_eq(
    format('select digest, size from registry.list_referrers(''acme/app'', %L)', :'image'),
    format('select %L, octet_length(test.bytes(test.image(''signature'', ''{signed}'', %L)))::bigint
        union all select %L, octet_length(test.bytes(test.image(''sbom'', ''{parts}'', %L)))',
        :'signature', :'image', :'sbom', :'image'),
    'and is listed');
select registry.untag('acme/app', 'v1'), test.collect() \g /dev/null
select is_empty('select * from test.manifests()', 'it goes with its subject');
select set_has('select * from test.tombstones()', $$values ('signed'), ('parts'), ('base')$$,
    'and so do its blobs');
select test.push('acme/app', 'image', '{base}', 'v1') as image \gset
select test.push('acme/app', 'signature', '{signed}', null, :'image') \g /dev/null
select test.empty_queues() \g /dev/null
select registry.delete_manifest('acme/app', :'image') \g /dev/null
select set_eq('select * from test.queued_manifests()', $$values ('signature: subject_delete')$$,
    'deleting a subject that has referrers works, and queues them');
select test.collect() \g /dev/null
select is_empty('select * from test.manifests()', 'and they go');
select test.push('acme/app', 'early', '{}', null, test.digest(test.image('late', '{}')::text))
    as early \gset
select is_empty('select * from registry.referrers', 'a subject may be missing');
select test.push('acme/app', 'late', '{}', 'late'), test.collect() \g /dev/null
select set_eq('select * from test.manifests()', $$values ('acme/app early'), ('acme/app late')$$,
    'it keeps what referred to it from the moment it comes');
select registry.tag('acme/app', 'early', :'early') \g /dev/null
select registry.untag('acme/app', 'late'), test.collect() \g /dev/null
select set_eq('select * from test.manifests()', $$values ('acme/app early')$$,
    'one that has a tag of its own stays when its subject goes');
select registry.untag('acme/app', 'early'), test.collect() \g /dev/null

-- A queued row that is gone leaves the queue without an error.
select test.push('acme/app', 'gone', '{}') as gone \gset
select registry.delete_manifest('acme/app', :'gone'), test.pass_time() \g /dev/null
select results_eq($$select reviewed, deleted, failed from gc.review()
    where collection = 'manifest'$$, $$values (1, 0, 0)$$,
    'a queued manifest that is gone leaves the queue without an error');
select is_empty('select * from gc.manifest_review_queue', 'really');

-- A review that fails is put off, longer each time, and does not stop the others.
select test.push('acme/app', n, '{}') from unnest('{good, bad}'::text[]) as n \g /dev/null
create function test.refuse() returns trigger language plpgsql as $$
begin
    if test.name_of(old.digest) = 'bad' then
        raise 'not this one';
    end if;
    return old;
end;
$$;
create trigger refuse before delete on registry.manifests
for each row execute function test.refuse();
delete from gc.holds;
update gc.manifest_review_queue set review_after = now() - interval '3 days';
select results_eq($$select deleted, failed from gc.review() where collection = 'manifest'$$,
    $$values (1, 1)$$, 'one review that fails does not stop the others');
select results_eq('select review_count, last_error, review_after = now() + interval ''5 minutes''
    from gc.manifest_review_queue', $$values (1, 'not this one', true)$$,
    'it backs off, counted from now, and its error is kept');
select test.pass_time() \g /dev/null
select is((select failed from gc.review() where collection = 'manifest'), 1, 'it fails again');
select is((select review_after from gc.manifest_review_queue), now() + interval '10 minutes',
    'and backs off twice as long');
drop trigger refuse on registry.manifests;
select test.collect() \g /dev/null
select is_empty('select * from test.manifests()', 'until it can go');

rollback to deciding;
