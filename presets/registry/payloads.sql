-- Reading a manifest. Nothing in it is believed. What is not understood is refused, never skipped.
-- It is read as json, which is text that has been checked: no number is ever converted that is not
-- a size, a value is looked at after its type, and messages do not repeat what is in it. So it
-- costs its length.

create type _descriptor as (position integer, digest bytea, size bigint, media_type text);

comment on type _descriptor is 'What a manifest says about a blob or another manifest.';


create function _refuse_manifest(reason text)
    returns void
    language sql
    stable
    return _refuse('ZR006', 'this manifest is not valid', left(reason, 500),
        'Push an OCI image manifest or index, or a Docker manifest or list of schema version 2.');

comment on function _refuse_manifest(text) is 'Raises ZR006.';


create function _known_members(document json)
    returns json
    language plpgsql
    immutable
as $$
begin
    return (
        select json_object_agg(m.key, m.value)
        from json_each(document) as m
        where m.key in ('schemaVersion', 'mediaType', 'artifactType', 'config', 'layers',
            'manifests', 'subject', 'annotations')
    );
end;
$$;

comment on function _known_members(json) is
    'What of a manifest is looked at. The rest is not read again; null: there is nothing.';


create function _member_flaw(document json)
    returns text
    language plpgsql
    immutable
as $$
begin
    return case
        when document is null then 'it is empty'
        when json_typeof(document -> 'schemaVersion') is distinct from 'number'
            or document ->> 'schemaVersion' <> '2' then 'its schemaVersion is not 2'
        when json_typeof(document -> 'mediaType') not in ('string', 'null')
            or json_typeof(document -> 'artifactType') not in ('string', 'null')
            then 'its media type and artifact type must be strings'
        when json_typeof(document -> 'subject') not in ('object', 'null')
            then 'its subject must be one'
        when json_typeof(document -> 'annotations') not in ('object', 'null')
            then 'its annotations must be an object'
        when json_typeof(document -> 'annotations') = 'object' and exists (
            select from json_each(document -> 'annotations') as a
            where json_typeof(a.value) <> 'string'
        ) then 'its annotations must be strings'
    end;
end;
$$;

comment on function _member_flaw(json) is
    'What is wrong with the types of a manifest''s members; null: nothing.';


create function _listed(document json, member text)
    returns json
    language sql
    immutable
    parallel safe
    return case json_typeof(document -> member)
        when 'array' then document -> member
        when 'object' then json_build_array(document -> member)
        else '[]'
    end;

comment on function _listed(json, text) is
    'A member of a manifest as an array: of one if it is an object, of none if it is neither.';


-- Two readers may disagree about a name that occurs twice, or is one of ours but for its case or
-- for letters that somebody takes for the same: who pulls would get other layers than those that
-- are kept. So the names that matter are written as they are, once, and all others in ASCII.
create function _name_flaw(objects json)
    returns text
    language plpgsql
    immutable
as $$
begin
    return (
        with known(name) as (
            select unnest(array['schemaVersion', 'mediaType', 'artifactType', 'config', 'layers',
                'manifests', 'subject', 'annotations', 'digest', 'size', 'urls', 'data',
                'platform'])
        )
        select 'a name occurs twice in one object, or in letters that are not its own'
        from json_array_elements(objects) with ordinality as o(value, n)
        cross join lateral json_object_keys(o.value) as k
        left join known as f on lower(f.name collate "C") = lower(k collate "C")
        group by o.n, lower(k collate "C")
        having count(*) > 1 or bool_or(k ~ '[^ -~]') or bool_or(f.name <> k)
        limit 1
    );
end;
$$;

comment on function _name_flaw(json) is
    'Whether one of these objects has a name that can be read as another; null: no.';


create function _descriptor_flaw(document json, member text)
    returns text
    language plpgsql
    immutable
as $$
declare
    listed json := registry._listed(document, member);
    wrong bigint;
begin
    select o.n into wrong
    from json_array_elements(listed) with ordinality as o(e, n)
    where not coalesce(
        json_typeof(o.e) = 'object'
        and json_typeof(o.e -> 'mediaType') = 'string'
        and json_typeof(o.e -> 'digest') = 'string'
        and json_typeof(o.e -> 'size') = 'number'
        and registry._is_digest_text(o.e ->> 'digest')
        and o.e ->> 'size' ~ '^(0|[1-9][0-9]{0,14})$',
        false)
    limit 1;
    if wrong is not null then
        return format('%s: number %s lacks a media type, a digest, or a size below 10^15',
            member, wrong);
    end if;
    return registry._name_flaw(listed);
end;
$$;

comment on function _descriptor_flaw(json, text) is
    'What is wrong with a member of a manifest that consists of descriptors; null: nothing.';


create function _read_manifest(payload bytea)
    returns json
    language plpgsql
    immutable
as $$
declare
    document json;
    flaw text;
begin
    if coalesce(octet_length(payload) > 4194304, true) then
        perform registry._refuse_manifest('it is bigger than 4 MiB, or null');
    end if;
    begin
        document := convert_from(payload, 'UTF8')::json;
        -- The only function of json that reads all escapes: \u0000 and half surrogates are none.
        perform json_strip_nulls(document);
        flaw := registry._name_flaw(json_build_array(document));
        document := registry._known_members(document);
        flaw := coalesce(
            flaw,
            registry._member_flaw(document),
            registry._descriptor_flaw(document, 'config'),
            registry._descriptor_flaw(document, 'layers'),
            registry._descriptor_flaw(document, 'manifests'),
            registry._descriptor_flaw(document, 'subject'));
    exception
        when data_exception or program_limit_exceeded then
            flaw := sqlerrm;
    end;
    if flaw is not null then
        perform registry._refuse_manifest(flaw);
    end if;
    return document;
end;
$$;

comment on function _read_manifest(bytea) is
    'A payload as a document; raises ZR006 if it is not one of schema version 2.';


create function _is_list(media_type text)
    returns boolean
    language sql
    immutable
    parallel safe
    return case
        when media_type in (
            'application/vnd.oci.image.manifest.v1+json',
            'application/vnd.docker.distribution.manifest.v2+json') then false
        when media_type in (
            'application/vnd.oci.image.index.v1+json',
            'application/vnd.docker.distribution.manifest.list.v2+json') then true
    end;

comment on function _is_list(text) is
    'Whether manifests of this media type list others; null: it is none of a manifest.';


-- A document that looks like both an image and a list means what its media type says to one reader,
-- and the other to the next.
create function _media_type(document json, said text)
    returns text
    language plpgsql
    immutable
as $$
declare
    written text := document ->> 'mediaType';
    is_list boolean := document -> 'manifests' is not null;
    media_type text := coalesce(written, said, case
        when is_list then 'application/vnd.oci.image.index.v1+json'
        else 'application/vnd.oci.image.manifest.v1+json'
    end);
begin
    if written <> said then
        perform registry._refuse_manifest(format('it is %s and was said to be %s',
            left(written, 200), left(said, 200)));
    elsif registry._is_list(media_type) is distinct from is_list then
        perform registry._refuse_manifest(
            format('%s does not fit what it contains', left(media_type, 200)));
    elsif is_list and (document -> 'layers' is not null or document -> 'config' is not null)
        or json_typeof(document -> case when is_list then 'manifests' else 'layers' end)
            is distinct from 'array'
        or not is_list and json_typeof(document -> 'config') is distinct from 'object'
    then
        perform registry._refuse_manifest(
            'it must be either a configuration with layers, or a list');
    end if;
    return media_type;
end;
$$;

comment on function _media_type(json, text) is
    'What kind of manifest it is; raises ZR006 if what it says of itself does not fit.';


create function _descriptors(document json, member text)
    returns _descriptor[]
    language plpgsql
    immutable
as $$
begin
    return array(
        select row(o.n, registry.digest_bytes(o.e ->> 'digest'), (o.e ->> 'size')::bigint,
            o.e ->> 'mediaType')::registry._descriptor
        from json_array_elements(registry._listed(document, member)) with ordinality as o(e, n)
        order by o.n
    );
end;
$$;

comment on function _descriptors(json, text) is
    'What a member of a manifest refers to.';


create function _annotations(payload bytea)
    returns jsonb
    language sql
    immutable
as $$
    select case when registry._member_flaw(d.document) is null
        then (d.document -> 'annotations')::jsonb end
    from registry._known_members(convert_from(payload, 'UTF8')::json) as d(document)
$$;

comment on function _annotations(bytea) is
    'The annotations of a manifest; null if they are not strings.';
