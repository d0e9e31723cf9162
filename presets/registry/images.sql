-- Images and lists that are made of the digests of their parts.

create function _describe_blob(digest text)
    returns json
    language plpgsql
    stable
as $$
declare
    b registry.blobs;
begin
    select o.* into b from registry.blobs as o
    where o.digest = registry.digest_bytes(_describe_blob.digest);
    if not found then
        perform registry._refuse('ZR005', format('there is no blob %s', digest),
            'The manifest would refer to it.', 'Upload it first.');
    end if;
    return json_build_object('mediaType', b.media_type, 'digest', digest, 'size', b.size);
end;
$$;

comment on function _describe_blob(text) is
    'What a manifest says of a blob; raises ZR005 if there is none such.';


create function _describe_manifest(repository text, digest text)
    returns json
    language sql
    stable
as $$
    select json_build_object('mediaType', m.media_type, 'digest', m.digest,
        'size', octet_length(m.payload))
    from registry.get_manifest(repository, digest) as m
$$;

comment on function _describe_manifest(text, text) is
    'What a list says of a manifest; raises ZR007 if the repository has none such.';


create function put_image(
    repository text, configuration text, layers text[], reference text default null,
    subject text default null
)
    returns text
    language sql
    volatile
as $$
    select registry.put_manifest(repository, convert_to(json_strip_nulls(json_build_object(
        'schemaVersion', 2,
        'mediaType', 'application/vnd.oci.image.manifest.v1+json',
        'config', registry._describe_blob(configuration),
        'layers', array(
            select registry._describe_blob(l)
            from unnest(layers) with ordinality as u(l, n)
            order by n
        ),
        'subject', case when subject is not null then
            registry._describe_manifest(repository, subject) end
    ))::text, 'UTF8'), reference)
$$;

comment on function put_image(text, text, text[], text, text) is
    'Pushes an image manifest that is made of the digests of its parts, and returns its digest.';


create function put_list(repository text, manifests text[], reference text default null)
    returns text
    language sql
    volatile
as $$
    select registry.put_manifest(repository, convert_to(json_build_object(
        'schemaVersion', 2,
        'mediaType', 'application/vnd.oci.image.index.v1+json',
        'manifests', array(
            select registry._describe_manifest(repository, m)
            from unnest(manifests) with ordinality as u(m, n)
            order by n
        )
    )::text, 'UTF8'), reference)
$$;

comment on function put_list(text, text[], text) is
    'Pushes a list of manifests that the repository has, and returns its digest.';
