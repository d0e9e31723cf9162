-- A container registry: its tables, its operations, and what of it is collected.
--
-- gc.create_registry runs these files as one text (PRESET in the Makefile is their order) in a
-- schema of its own, with the search_path set to it. A body in dollar quotes names what is the
-- registry's as registry.blobs, which stands for the schema that was asked for: it runs with a path
-- that does not have that schema, which settings.sql gives it, because somebody else may be allowed
-- to create things there. A body without quotes is resolved here and now. {store} and {partitions}
-- stand for what was told, and with partitions the comments "partition by" count.
-- gc.upgrade_registry runs them again in a schema of an earlier version: a table that is there
-- stays, a new one comes, functions and views are replaced. The rest stands in upgrade/.
--
-- Who keeps whom: a tag, a list and a subject keep manifests; manifests and layers keep blobs, by
-- referring to the links of their repository, which blobs own. All of that is foreign keys. An
-- operation therefore locks what it is about to refer to or to rely on (for key share): a review
-- skips what is locked, and what a review, or another operation, has locked is waited for, and is
-- then there or not. So no foreign key ever fails. Every operation starts from an active
-- repository. The order of locks: the repository, pushes (lower digests first), blobs, then their
-- links, manifests, tags.
--
-- No setting of a session changes what a function does: there is no backslash in a plain literal,
-- and no cast of bytea or of an interval to text. Times that protect are told by the clock.
--
-- Errors have the SQLSTATE class ZR, with the numbers that the OCI distribution specification has:
--   ZR001 blob unknown            ZR006 manifest invalid     ZR010 size invalid
--   ZR003 blob upload unknown     ZR007 manifest unknown     ZR012 denied: still in use
--   ZR004 digest invalid          ZR008 name invalid         ZR020 tag invalid
--   ZR005 manifest blob unknown   ZR009 name unknown         ZR021 name taken
--                                 ZR013 unsupported          ZR022 denied: tag is immutable

create function _version()
    returns text
    language sql
    immutable
    return '{version}';

comment on function _version() is 'The version of blobgc that these operations are of.';


create function _refuse(code text, message text, detail text, hint text)
    returns void
    language plpgsql
    stable
as $$
begin
    raise '%', message using errcode = code, detail = detail, hint = hint;
end;
$$;

comment on function _refuse(text, text, text, text) is 'Raises one of the errors of a registry.';
