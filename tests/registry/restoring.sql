-- Manifests that are restored: with their links, and known to those that they are about.
savepoint restoring;
update gc.settings set jitter = '0', undo = '1 day';

create function test.key_of(name text) returns text language sql stable as $$
    select t.key from gc.trash as t
    where t.collection = 'manifest' and t.label = test.digest_of(name)
    order by t.deleted_at desc limit 1
$$;
create function test.links(repository text) returns setof text language sql stable as $$
    select test.name_of(l.digest) from registry.repository_blobs as l
    join registry.repositories as r on r.id = l.repository_id
    where r.path = repository
$$;
create function test.referrers() returns setof text language sql stable as $$
    select test.name_of(m.digest) || ' about ' || test.name_of(s.digest)
    from registry.referrers as r
    join registry.manifests as m on m.id = r.manifest_id
    join registry.manifests as s on s.id = r.subject_id
$$;

-- Links: a blob stays, because another repository uses it, and this one has given it up.
select registry.create_repository('acme/app') \g /dev/null
select registry.create_repository('acme/other') \g /dev/null
select test.push('acme/app', 'one', '{base, top}', 'v1') as one \gset
select registry.mount_blob('acme/other', test.digest(c), 'acme/app')
from unnest('{config of one, base, top}'::text[]) as c \g /dev/null
select test.put('acme/other', 'one', '{base, top}', 'v1') \g /dev/null
select registry.delete_manifest('acme/app', :'one') \g /dev/null
select registry.unlink_blob('acme/app', test.digest(c))
from unnest('{config of one, base}'::text[]) as c \g /dev/null
select set_eq($$select test.links('acme/app')$$, '{top}'::text[], 'blobs were unlinked');
select gc.restore('manifest', test.key_of('one')) \g /dev/null
select set_eq($$select test.links('acme/app')$$, '{config of one, base, top}'::text[],
    'a manifest that is restored is linked to its blobs again');
select lives_ok(format('select registry.get_manifest(%L, %L); select registry.get_blob(%1$L, '
    'test.digest(c)) from unnest(%3$L::text[]) as c', 'acme/app', :'one',
    '{config of one, base, top}'), 'and can be pulled');
select lives_ok($$select registry.tag('acme/app', 'v1', test.digest_of('one'))$$,
    'it can be tagged');

-- By way of a tag.
select registry.untag('acme/app', 'v1') \g /dev/null
select gc.set_delay('tag_delete', '0') \g /dev/null
select test.collect() \g /dev/null
select registry.unlink_blob('acme/app', test.digest('top')) \g /dev/null
select gc.restore('tag', (select t.key from gc.trash as t where t.label = 'acme/app:v1'
    order by t.deleted_at desc limit 1)) \g /dev/null
select lives_ok($$select registry.get_blob('acme/app', test.digest('top'))$$,
    'so is one that comes back with its tag');

-- Who is about whom.
select test.call('image', test.digest(test.image('image', '{base}')::text)) as image \gset
select test.push('acme/app', 'signature', '{}', null, :'image') as signature \gset
select registry.delete_manifest('acme/app', :'signature') \g /dev/null
select test.push('acme/app', 'image', '{base}', 'v2') \g /dev/null
select is_empty('select test.referrers()', 'a subject is pushed while its signature is gone');
select gc.restore('manifest', test.key_of('signature')) \g /dev/null
select set_eq('select test.referrers()', '{signature about image}'::text[],
    'a signature that is restored is known to its subject');
select test.push('acme/app', 'second', '{base}', 'v3') as second \gset
select registry.delete_manifest('acme/app', :'second') \g /dev/null
select test.push('acme/app', 'second signature', '{}', null, :'second') \g /dev/null
select gc.restore('manifest', test.key_of('second')) \g /dev/null
select set_eq('select test.referrers()',
    '{signature about image, second signature about second}'::text[],
    'a subject that is restored knows what is about it');

-- A circle: what is about a manifest lists what that one is about.
select test.push('acme/app', 'about', '{}', null, :'image') as about \gset
select registry.delete_manifest('acme/app', :'about') \g /dev/null
select registry.put_manifest('acme/app', test.bytes(test.list(array[:'image']) || jsonb_build_object(
    'subject', test.descriptor('x/y', :'about', 1))), 'circle') \g /dev/null
select throws_like($$select gc.restore('manifest', test.key_of('about'))$$,
    '%cannot be restored%', 'what would keep itself for ever does not come back');
select is(test.sqlstate_of($$select gc.restore('manifest', test.key_of('about'))$$), 'ZG010',
    'which is a refusal like others');
select is_empty($$select from registry.manifests as m where test.name_of(m.digest) = 'about'$$,
    'and changes nothing');

-- A repository by its id, with tags and manifests in the trash, whose keys are others.
select registry.delete_repository('acme/other') \g /dev/null
select test.collect() \g /dev/null
select cmp_ok((select count(*) from gc.trash where collection in ('tag', 'manifest')), '>', 0::bigint,
    'there is more in the trash');
select lives_ok(format('select registry.restore_repository(''acme/other@%s'')',
    (select (t.key::gc.repository_key).id from gc.trash as t
        where case when t.collection = 'repository' then t.label = 'acme/other' end)),
    'a repository comes back by its id');
select is((select string_agg(t, ' ') from registry.list_tags('acme/other') as t), 'v1',
    'with its tags');
-- Imports that were left half filled, beside a repository of their name that had been in use.
savepoint imports;
create function test.leave(repository text) returns void language sql as $$
    update registry.repositories set created_at = now() - interval '3 minutes'
    where path = repository and state = 'initial'
$$;
select registry.create_repository('acme/used') \g /dev/null
select test.push('acme/used', 'used', '{base}', 'used') \g /dev/null
select registry.delete_repository('acme/used') \g /dev/null
select registry.create_repository('acme/used', 'initial') \g /dev/null
select is(test.sqlstate_of($$select registry.restore_repository('acme/used')$$), 'ZR021',
    'a repository does not come back while one of its name is being filled');
select test.leave('acme/used') \g /dev/null
savepoint restored;
select lives_ok($$select registry.restore_repository('acme/used')$$, 'but when that was given up');
select set_eq($$select registry.list_tags('acme/used')$$, '{used}'::text[],
    'it comes back, and not the import');
rollback to restored;
select test.collect() \g /dev/null
select registry.restore_repository('acme/used') \g /dev/null
select set_eq($$select registry.list_tags('acme/used')$$, '{used}'::text[],
    'also when both were collected');
rollback to restored;
-- The name of the import is taken again, and given up again.
select registry.create_repository('acme/used', 'initial') as second \gset
select test.push(:'second', 'half', '{base}', 'half') \g /dev/null
select test.leave('acme/used') \g /dev/null
savepoint twice;
select registry.restore_repository('acme/used') \g /dev/null
select set_eq($$select registry.list_tags('acme/used')$$, '{used}'::text[],
    'also after several imports');
rollback to twice;
select test.collect() \g /dev/null
select registry.restore_repository('acme/used') \g /dev/null
select set_eq($$select registry.list_tags('acme/used')$$, '{used}'::text[],
    'also when all of them were collected');
rollback to twice;
select test.collect() \g /dev/null
select lives_ok(format('select registry.restore_repository(%L)', :'second'),
    'an import comes back by its id');
select set_eq($$select registry.list_tags('acme/used')$$, '{half}'::text[], 'with what it had');
select registry.delete_repository('acme/used'), test.collect() \g /dev/null
select registry.restore_repository('acme/used') \g /dev/null
select set_eq($$select registry.list_tags('acme/used')$$, '{half}'::text[],
    'and is one that was in use from then on');
rollback to imports;
rollback to restoring;
