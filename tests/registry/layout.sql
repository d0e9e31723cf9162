-- The layout: what gc.create_registry makes, and what it refuses.
savepoint layout;

select set_eq($$select name from gc.collections$$, '{blob, manifest, repository, tag}'::text[],
    'the collections are blob, manifest, repository and tag');
select has_table('gc', q, q || ' is there')
from unnest('{blob_review_queue, manifest_review_queue, review_after_defaults}'::name[]) as q;
select is_empty($$select c.oid::regclass from pg_class as c
    join pg_depend as d on d.objid = c.oid and d.deptype = 'e'
    where c.relnamespace = 'registry'::regnamespace$$, 'no table is a part of the extension');
select is_empty($$select p.oid::regprocedure from pg_proc as p
    where p.pronamespace = 'registry'::regnamespace and p.prosqlbody is null
        and not coalesce(p.proconfig, '{}') @> array['search_path=pg_catalog, pg_temp']$$,
    'every function looks for names in pg_catalog, and pg_temp last, and nowhere else, or has '
    'looked when it was created');
select is_empty($$select p.oid::regprocedure from pg_proc as p
    cross join lateral regexp_split_to_table(p.prosrc, E'\\n') as line
    where p.pronamespace = 'registry'::regnamespace and p.prosqlbody is null
        and ltrim(line) not like '--%' and strpos(line, chr(92)) > 0$$,
    'no function has a backslash, which standard_conforming_strings would change');
select is_empty($$select p.oid::regprocedure from pg_proc as p
    where p.pronamespace = 'registry'::regnamespace
        and p.prosrc ~ E'\\mnow\\(|current_timestamp|pg_advisory|::text'
        and p.proname not in ('_set_tag', 'put_manifest', 'put_image', 'put_list',
            '_record_blob', '_mark_doomed', '_review_now')$$,
    'no function tells the time by when the transaction began, takes an advisory lock, or prints '
    'a value');
select is_empty($$select p.oid::regprocedure from pg_proc as p
    where p.pronamespace = 'registry'::regnamespace and obj_description(p.oid, 'pg_proc') is null$$,
    'every function has a comment');
select is_empty($$select a.attrelid::regclass, a.attname from pg_attribute as a
    join pg_class as c on c.oid = a.attrelid
    where c.relnamespace = 'registry'::regnamespace and c.relkind in ('r', 'p', 'v')
        and a.attnum > 0 and col_description(c.oid, a.attnum) is null$$,
    'every column of a table or view has a comment');
select is_empty($$select c.oid::regclass from pg_class as c
    where c.relnamespace = 'registry'::regnamespace and c.relkind in ('r', 'p', 'v')
        and obj_description(c.oid, 'pg_class') is null$$, 'every table and view too');
select is_empty($$select conrelid::regclass, conname from pg_constraint
    where connamespace = 'registry'::regnamespace and conparentid = 0
        and (conname like E'%\\_check' or conname like E'%\\_id\\_%fkey%')$$,
    'no constraint has a name that the system made up');
select is((select count(*) from pg_class where relnamespace = 'registry'::regnamespace
    and relkind = 'p'), case :partitions when 0 then 0 else 8 end::bigint,
    'so many tables are partitioned');
select is((select count(*) from pg_inherits where inhparent = 'registry.tags'::regclass),
    :partitions::bigint, 'each into so many');
select results_eq('select collection, blocked, why from gc.status()', $$values
    ('blob', false, null::text), ('manifest', false, null), ('repository', false, null),
    ('tag', false, null)$$, 'all is well');

-- Refused, and nothing is left behind.
select throws_ok($$select gc.create_registry('other', 's3://b')$$, '42710', null,
    'there is one registry in a database');
select gc.untrack(name) from gc.collections order by name \g /dev/null
select throws_ok($$select gc.create_registry('registry', 's3://b')$$, '42P06', null,
    'a schema that is there is left alone');
select throws_ok(format('select gc.create_registry(''other'', %L)', s), '22023', null,
    coalesce(to_json(s)::text, 'null') || ' is no store')
from unnest(array[null, '', 'bucket', '/dir', 's3://', 's3://b/', 's3://b''c', 's3://b$$c',
    's3://b{store}', E's3://b\nc', E's3://b\n', 's3://b''', 's3://b$']) as s;
select throws_ok(format('select gc.create_registry(''other'', ''s3://b'', %s)', n), '22023', null,
    format('%s is no number of partitions', n))
from unnest(array['-1', 'null']) as n;
create role blobgc_registry_other;
set local role blobgc_registry_other;
select throws_ok($$select gc.create_registry('other', 's3://b')$$, '42501', null,
    'nobody but the owner of blobgc can create one');
reset role;
select throws_ok(format('select gc.create_registry(%L, ''s3://b'')', n), '22023', null,
    format('%s is no name of a schema', n))
from unnest(array['a$$b', 'a{store}', E'a\\b', null]) as n;
select hasnt_schema('other', 'none of these has made a schema');
select lives_ok($$select gc.create_registry('My "Registry"', 'file:///srv/images', 2)$$,
    'any name will do for the schema');
select is("My ""Registry""".create_repository('a'), 'a@1', 'and works');

rollback to layout;
