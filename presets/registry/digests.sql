-- Digests, as a byte for the algorithm and the bytes, as text, and as the url of a blob.
--
-- The bodies of those that the store needs are inlined into triggers and reviews: they have no
-- settings. That a url tells its digest is what the check of the table blobs says.

create function _algorithm(digest bytea)
    returns text
    language sql
    immutable
    parallel safe
    return case substr(digest, 1, 1) when '\x01' then 'sha256' when '\x02' then 'sha512' end;

comment on function _algorithm(bytea) is 'The name of a digest''s algorithm.';


create function _digest(algorithm text, bytes bytea)
    returns bytea
    language sql
    immutable
    parallel safe
    return case algorithm when 'sha256' then '\x01'::bytea when 'sha512' then '\x02' end || bytes;

comment on function _digest(text, bytea) is 'The digest that has these bytes by that algorithm.';


create function is_digest(digest bytea)
    returns boolean
    language sql
    immutable
    parallel safe
    return (substr(digest, 1, 1), octet_length(digest))
        in (('\x01'::bytea, 33), ('\x02'::bytea, 65));

comment on function is_digest(bytea) is
    'Whether this is a digest: 01 and the 32 bytes of a SHA-256, or 02 and the 64 of a SHA-512.';


create function digest_text(digest bytea)
    returns text
    language sql
    immutable
    parallel safe
    return _algorithm(digest) || ':' || encode(substr(digest, 2), 'hex');

comment on function digest_text(bytea) is 'A digest as people write it: sha256:…';


create function _is_digest_text(digest text)
    returns boolean
    language sql
    immutable
    parallel safe
    return digest ~ '^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$';

comment on function _is_digest_text(text) is
    'Whether a digest is written so. It has lowercase letters only.';


create function digest_bytes(digest text)
    returns bytea
    language plpgsql
    immutable
as $$
begin
    if registry._is_digest_text(digest) then
        return registry._digest(left(digest, 6), decode(substr(digest, 8), 'hex'));
    end if;
    perform registry._refuse('ZR004', 'this is not a digest', coalesce(left(digest, 200), 'null'),
        'Write it as sha256: and 64 hexadecimal digits, or sha512: and 128, in lower case.');
    return null;
end;
$$;

comment on function digest_bytes(text) is 'The digest that is written so; raises ZR004 if none is.';


-- With a digest for a reference, that is what the payload must have.
create function _payload_digest(payload bytea, reference text)
    returns bytea
    language plpgsql
    immutable
as $$
declare
    digest bytea := case
        when starts_with(reference, 'sha512:') then registry._digest('sha512', sha512(payload))
        else registry._digest('sha256', sha256(payload))
    end;
begin
    if (case when reference like '%:%' then registry.digest_bytes(reference) <> digest end) then
        perform registry._refuse('ZR004', 'this is not the digest of the payload',
            format('The digest is %s.', registry.digest_text(digest)),
            'Push what was signed, unchanged.');
    end if;
    return digest;
end;
$$;

comment on function _payload_digest(bytea, text) is
    'The digest of a payload; raises ZR004 if it was pushed under another.';


create function blob_url(digest bytea)
    returns text
    language sql
    immutable
    parallel safe
    return '{store}/docker/registry/v2/blobs/' || _algorithm(digest) || '/'
        || encode(substr(digest, 2, 1), 'hex') || '/' || encode(substr(digest, 2), 'hex')
        || '/data';

comment on function blob_url(bytea) is
    'Where a blob''s object stands: where the distribution registry puts it.';


create function blob_at(url text)
    returns bytea
    language sql
    immutable
    parallel safe
    return _digest(split_part(url, '/', -4), decode(split_part(url, '/', -2), 'hex'));

comment on function blob_at(text) is 'The digest of the blob whose object stands there.';
