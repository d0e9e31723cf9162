-- From 0.1.0 to 0.2.0. It may be run again on what it has made.

drop function if exists _lock_referrers(repositories, bytea);
drop function if exists _require_blob(repositories, bytea);

-- It lists in pages now.
drop function if exists list_referrers(text, text, text);

-- Their arguments have other names now.
drop function if exists _link(repositories, bytea);
drop function if exists _lock_manifest(repositories, bytea);

alter table tags add column if not exists expired_by bigint;
