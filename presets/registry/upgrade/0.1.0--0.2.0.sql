-- From 0.1.0 to 0.2.0. It may be run again on what it has made.

drop function if exists _lock_referrers(repositories, bytea);
drop function if exists _require_blob(repositories, bytea);

-- Their arguments have other names now.
drop function if exists _link(repositories, bytea);
drop function if exists _lock_manifest(repositories, bytea);

update gc.collections as c
set condition = $$state = 'deleting'
        or state = 'initial' and created_at <= now() - interval '2 minutes'$$
where c.name = 'repository'
    and c.condition = format('%I.is_abandoned(state, created_at)', current_schema());
