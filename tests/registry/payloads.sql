-- Payloads: every broken or hostile manifest is refused as such, and leaves nothing behind.
savepoint payloads;
select registry.create_repository('acme/app') \g /dev/null
select test.push('acme/app', 'good', '{base}', 'good') as good \gset

create function test.invalid(payload bytea, what text, media_type text default null)
    returns text language plpgsql as $$
declare
    code text := 'none';
    before bigint := (select count(*) from registry.manifests);
begin
    begin
        perform registry.put_manifest('acme/app', payload, 'evil', media_type);
    exception
        when others then code := sqlstate;
    end;
    return is(format('%s, %s more', code, (select count(*) from registry.manifests) - before),
        'ZR006, 0 more', what || ' is refused');
end;
$$;

-- Not a document at all.
select test.invalid(null, 'null');
select test.invalid('', 'nothing');
select test.invalid('{', 'half a document');
select test.invalid('[]', 'an array');
select test.invalid('2', 'a number');
select test.invalid('null', 'a null');
select test.invalid('{}', 'an empty object');
select test.invalid(E'\\x00', 'a zero byte');
select test.invalid(E'\\xff7b7d', 'what is not UTF-8');
select test.invalid(E'\\xefbbbf7b7d', 'a byte order mark');
select test.invalid(convert_to(E'{"a":"\\u0000"}', 'UTF8'), 'a zero character');
select test.invalid(convert_to(E'{"a":"\\ud800"}', 'UTF8'), 'half a surrogate');
select test.invalid(convert_to(repeat('[', 1000000), 'UTF8'), 'a document that is too deep');
select test.invalid(convert_to(repeat('{"a":', 100000) || '1' || repeat('}', 100000), 'UTF8'),
    'one that is deep and well-formed');
select test.invalid(convert_to('{"a":1e999999}', 'UTF8'), 'a number that is too big');
select test.invalid(convert_to('{"a":"' || repeat('x', 4194304) || '"}', 'UTF8'),
    'more than 4 MiB');
select test.invalid(test.bytes(test.image('good', '{base}')) || E'\\x00'::bytea,
    'a zero at the end');
select test.invalid(test.bytes(test.image('good', '{base}')) || '{}'::bytea, 'two documents');

-- Not a manifest.
create function test.changed(path text[], value jsonb) returns bytea language sql as
$$ select test.bytes(jsonb_set(test.image('good', '{base}'), path, value)) $$;

select test.invalid(test.changed('{schemaVersion}', v::jsonb), format('schema version %s', v))
from unnest(E'{1, 3, 2.5, -2, "\\"2\\"", null, [2], true}'::text[]) as v;
select test.invalid(test.bytes(test.image('good', '{base}') - m), 'a manifest without ' || m)
from unnest('{schemaVersion, config, layers}'::text[]) as m;
select test.invalid(test.changed('{mediaType}', v::jsonb), format('the media type %s', v))
from unnest(array['"text/plain"', '""', '1', '[]', '{}',
    '"application/vnd.oci.image.index.v1+json"',
    '"application/vnd.docker.distribution.manifest.v1+prettyjws"']) as v;
select test.invalid(test.bytes(test.image('good', '{base}')), 'another media type than it was said',
    'application/vnd.docker.distribution.manifest.v2+json');
select test.invalid(test.bytes(test.image('good', '{base}') - 'mediaType'),
    'a media type that is none', 'text/plain');
select test.invalid(test.bytes(test.image('good', '{base}') || '{"manifests": []}'),
    'both an image and a list');
select test.invalid(test.bytes(test.list('{}') || '{"layers": []}'), 'a list with layers');
select test.invalid(test.bytes(test.list('{}') || '{"config": null}'),
    'a list with a configuration of null');
select test.invalid(test.bytes(test.list('{}') || '{"manifests": {}}'), 'a list that is an object');
select test.invalid(test.bytes(test.list('{}') || '{"manifests": null}'), 'a list that is null');
select test.invalid(test.changed(array[m], v::jsonb), format('%s: %s', m, v))
from unnest('{layers, config}'::text[]) as m
cross join unnest(array['1', '"x"', 'null', 'true']) as v;
select test.invalid(test.changed('{layers}', '{}'), 'layers that are an object');
select test.invalid(test.changed('{config}', '[]'), 'a configuration that is an array');
select test.invalid(test.changed('{subject}', v::jsonb), format('subject: %s', v))
from unnest(array['1', '"x"', '{}', '[1]', 'true']) as v;

-- Not a descriptor.
select test.invalid(test.changed('{layers, 0}', v::jsonb), format('the layer %s', v))
from unnest(array['1', '"x"', 'null', '[]', '{}']) as v;
select test.invalid(test.changed(array['layers', '0', m], v::jsonb),
    format('a layer with %s %s', m, left(v, 40)))
from (values
    ('digest', '"x"'), ('digest', '1'), ('digest', 'null'), ('digest', '{}'),
    ('digest', '"sha256:"'), ('digest', '"md5:d41d8cd98f00b204e9800998ecf8427e"'),
    ('digest', to_json(upper(test.digest('base')))::text),
    ('digest', to_json(test.digest('base') || '0')::text),
    ('digest', to_json(test.digest('base') || E'\n')::text),
    ('size', '-1'), ('size', '"4"'), ('size', '4.5'), ('size', 'null'), ('size', '1e16'),
    ('size', '99999999999999999999999999'), ('size', '[]'),
    ('mediaType', '1'), ('mediaType', 'null'), ('mediaType', '{}')
) as w(m, v);
select test.invalid(test.changed(array['config', m], 'null'), 'a configuration without ' || m)
from unnest('{digest, size, mediaType}'::text[]) as m;

-- A name that occurs twice means one thing to us and another to somebody else.
create function test.doubled(member text, extra text) returns bytea language sql as $$
    select convert_to(replace(test.image('good', '{base}')::text, format('"%s": ', member),
        format('%s, "%s": ', extra, member)), 'UTF8')
$$;
select test.invalid(test.doubled('layers', '"layers": []'), 'layers twice');
select test.invalid(test.doubled('layers', '"Layers": []'), 'layers and Layers');
select test.invalid(test.doubled('config', '"config": {}'), 'a configuration twice');
select test.invalid(test.doubled('schemaVersion', '"schemaVersion": 1'), 'a version twice');
select test.invalid(test.doubled('digest', '"digest": "x"'), 'a digest twice in one object');

select test.invalid(convert_to(replace(test.image('good', '{base}')::text, '"' || m || '"',
    '"' || n || '"'), 'UTF8'), format('%s for %s', to_json(n), m))
from (values ('layers', 'Layers'), ('layers', E'layer\u017f'), ('mediaType', 'MEDIATYPE'),
    ('digest', 'Digest'), ('config', E'con\ufb01g'), ('size', E'\uff53ize'),
    ('schemaVersion', E'\u017fchemaVersion')) as v(m, n);
select test.invalid(test.doubled('layers', E'"layer\u017f": []'), E'layers and layer\u017f');
select test.invalid(test.doubled('layers', E'"layer\\u0073": []'), E'layers and layer\\u0073');
select test.invalid(test.doubled('layers', E'"layer\\u017f": []'), E'layers and layer\\u017f');
select test.invalid(test.doubled('digest', E'"dige\u017ft": "x"'), E'a digest and a dige\u017ft');

-- What is too big to be looked at: types come before values, and no number is ever written out.
create function test.with(member text, value text) returns bytea language sql as $$
    select convert_to(format('%s, %s: %s}', rtrim((test.image('good', '{base}') - member)::text, '}'),
        to_json(member), value), 'UTF8')
$$;
create function test.many(what text, n integer) returns text language sql as
$$ select '[' || repeat(what || ',', n) || what || ']' $$;
set local statement_timeout = '20s';
select test.invalid(test.with(m, test.many('1e131071', 8000)), format('8,000 big numbers as %s', m))
from unnest('{schemaVersion, mediaType, artifactType, config, layers, manifests, subject,
    annotations}'::text[]) as m;
select test.invalid(test.with('annotations', '{"a": ' || v || '}'),
    format('an annotation that is %s', left(v, 20)))
from unnest(array['1e131071', '1', 'null', '[]', '{"a": "b"}', 'true',
    test.many('1e131071', 8000)]) as v;
select test.invalid(test.with('annotations', v), format('annotations that are %s', v))
from unnest(array['1', '"x"', '[]', 'true']) as v;
select test.invalid(test.with('artifactType', v), format('an artifact type that is %s', v))
from unnest(array['1', '{}', '[]', 'true', E'"\\u0000"']) as v;
select test.invalid(test.with('layers', v), format('layers that are %s', left(v, 20)))
from unnest(array[repeat('[', 5000) || repeat(']', 5000), test.many('{}', 1000000),
    test.many('[]', 1000000), test.many(repeat('[', 2000) || repeat(']', 2000), 500)]) as v;
select test.invalid(test.with('layers', replace(test.many(test.layer('base')::text, 3),
    '"size": 4', '"size": ' || v)), format('layers of size %s', left(v, 20)))
from unnest(array['1e131071', '4.0', '4e0', '0.4e1', '-0', repeat('9', 100000)]) as v;
select test.invalid(test.changed('{mediaType}', to_jsonb(repeat('x', 1000000))), 'a long media type');
select is(test.sqlstate_of(format('select registry.put_manifest(''acme/app'', %L, media_type => %L)',
    test.bytes(test.image('good', '{base}')), repeat('x', 1000000))), 'ZR006',
    'so is one that is said');
select ok(length(message) < 2000, 'no message repeats what is in a payload')
from (select test.message_of(format('select registry.put_manifest(''acme/app'', %L)',
    test.changed('{layers, 0, digest}', to_jsonb(repeat('x', 1000000))))) as message) as m;
select lives_ok(format('select registry.put_manifest(''acme/app'', %L)',
    test.with('x', test.many('1e131071', 400000))), 'what is not looked at costs nothing');
reset statement_timeout;

-- Too much, or too many.
select test.invalid(convert_to(json_build_object('schemaVersion', 2, 'config', d.layer, 'layers',
        array(select d.layer from generate_series(1, 9000)))::text, 'UTF8'),
    'layers that add up to more than a number takes')
from (
    select json_build_object(
        'mediaType', 'application/vnd.oci.image.layer.nondistributable.v1.tar',
        'digest', 'sha256:' || repeat('0', 64), 'size', 1125899906842624)
) as d(layer);
select test.invalid(convert_to(json_build_object('schemaVersion', 2, 'manifests', array[]::json[],
        'subject', array[d.subject, d.subject])::text, 'UTF8'),
    'a manifest of two subjects')
from (
    select json_build_object('mediaType', 'a', 'size', 1, 'digest', 'sha256:' || repeat('a', 64))
) as d(subject);

savepoint circles;
-- A circle: a subject keeps what is about it, a list what it lists.
create function test.about(document jsonb, subject text) returns bytea language sql as $$
    select test.bytes(document || jsonb_build_object('subject',
        test.descriptor('application/vnd.oci.image.manifest.v1+json', subject, 1)))
$$;
select test.invalid(test.about(test.list(array[:'good']), :'good'), 'a list of its own subject');
select test.push_list('acme/app', 'inner', array[:'good']) as inner \gset
select test.invalid(test.about(test.list(array[:'inner']), :'good'),
    'a list of a list of its own subject');
select test.push('acme/app', 'other', '{base}') as other \gset
select registry.put_manifest('acme/app', test.about(test.list(array[:'other']), :'good'))
    as first \gset
select pass('a list may be about something else');
select test.invalid(test.about(test.list(array[:'good']), :'other'),
    'a list whose subject is kept by what is about what it lists');
select test.digest((test.image('good', '{base, base}')
    || jsonb_build_object('subject', test.descriptor('x', :'inner', 1)))::text) as late \gset
select registry.put_manifest('acme/app', test.about(test.list(array[:'inner']), :'late'))
    as early \gset
select test.invalid(test.bytes(test.image('good', '{base, base}')
    || jsonb_build_object('subject', test.descriptor('x', :'inner', 1))),
    'a manifest whose subject is kept by what was waiting for it');
select registry.untag('acme/app', 'good') \g /dev/null
select test.collect() \g /dev/null
select is_empty('select test.name_of(m.digest) from registry.manifests as m',
    'so everything that nothing keeps goes');
rollback to circles;

-- What is well-formed and not there, or not as big as it says.
select is(test.sqlstate_of(format('select registry.put_manifest(''acme/app'', %L)',
    test.changed('{layers, 0, digest}', to_jsonb(test.digest('other'))))), 'ZR005',
    'a layer that is unknown has an error of its own');
select is(test.sqlstate_of(format('select registry.put_manifest(''acme/app'', %L)',
    test.changed('{config, digest}', to_jsonb(test.digest('other'))))), 'ZR005',
    'a configuration that is unknown too');
select is(test.sqlstate_of(format('select registry.put_manifest(''acme/app'', %L)',
    test.changed('{layers, 0, size}', '5'))), 'ZR010', 'and so does a size that is not true');
select is(test.sqlstate_of(format('select registry.put_manifest(''acme/app'', %L)',
    test.changed('{config, size}', '1'))), 'ZR010', 'also of the configuration');

-- What is unusual and good.
create function test.valid(payload bytea, what text, media_type text default null)
    returns text language sql as $$
    select lives_ok(format('select registry.put_manifest(''acme/app'', %L, null, %L)', payload,
        media_type), what || ' is good')
$$;
select test.valid(test.bytes(test.image('good', '{base}') - 'mediaType'),
    'an OCI manifest without a media type');
select test.valid(test.bytes(test.list(array[:'good']) - 'mediaType'),
    'an OCI index without a media type');
select is((select media_type from registry.get_manifest('acme/app',
    test.digest((test.list(array[:'good']) - 'mediaType')::text))),
    'application/vnd.oci.image.index.v1+json', 'and is known for what it is');
select test.valid(test.changed('{mediaType}',
    '"application/vnd.docker.distribution.manifest.v2+json"'), 'a Docker manifest',
    'application/vnd.docker.distribution.manifest.v2+json');
select test.valid(test.bytes(test.list(array[:'good']) || '{"mediaType":
    "application/vnd.docker.distribution.manifest.list.v2+json"}'), 'a Docker list');
select test.valid(test.changed('{layers}', '[]'), 'an image without layers');
select test.valid(test.changed('{subject}', 'null'), 'a subject of null');
select test.valid(test.changed('{annotations}', 'null'), 'annotations of null');
select test.valid(test.changed('{note}', '{"layers": [1.5e3, null, {"digest": 1}]}'),
    'any member that is not ours');
select test.valid(convert_to(E' \n' || test.image('good', '{base}')::text || E'\n ', 'UTF8'),
    'white space around it');
select test.valid(test.changed('{annotations}', '{"ключ": "значение 🙂"}'), 'any language');

select set_eq('select distinct test.name_of(digest) from registry.layers', '{base}'::text[],
    'and no layer but those that were uploaded is anywhere');

rollback to payloads;
