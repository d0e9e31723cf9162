-- Events: why a review was queued. Each has a usual name, <collection>_insert or <table>_delete,
-- unless gc.track was given another for it.

-- One event's name: the usual one, unless gc.track was given another for it.
create function gc._event(events jsonb, usual text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select coalesce(events ->> usual, usual) $$;

comment on function gc._event(jsonb, text) is
    'What a collection calls the event that is usually called so.';


create function gc._table_event(relation regclass, operation text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.relname || '_' || operation from pg_class as c where c.oid = relation
$$;

comment on function gc._table_event(regclass, text) is
    'The usual name of an event on a table that refers to a collection.';


create function gc._usual_events(c gc.collections)
    returns setof text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.name || '_' || o.operation
    from (values ('insert'), ('update'), ('scan'), ('unpin')) as o(operation)
    where c.collect = 'garbage'
    union
    select gc._table_event(r.referencing, o.operation)
    from gc._references(c) as r
    cross join (values ('delete'), ('update')) as o(operation)
    where r.owned is null
$$;

comment on function gc._usual_events(gc.collections) is
    'The events that a collection has, under their usual names.';


create function gc._known_events()
    returns table (event text, collection text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select distinct gc._event(c.events, u.usual), c.name
    from gc.collections as c
    cross join lateral gc._usual_events(c) as u(usual)
$$;

comment on function gc._known_events() is 'The events of all collections, under their names.';


create function gc._require_events(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    unknown text;
begin
    select e.key into unknown
    from jsonb_each(c.events) as e
    where e.key not in (select u from gc._usual_events(c) as u)
        or jsonb_typeof(e.value) <> 'string' or e.value = '""'
    limit 1;
    if found then
        raise 'the event "%" of "%" cannot be named so', unknown, c.name
            using errcode = 'invalid_parameter_value',
                detail = format('Events: %s.', coalesce(
                    (select string_agg(u, ', ' order by u) from gc._usual_events(c) as u),
                    'none')),
                hint = case when c.collect = 'deleted' then 'Leave events out.'
                    else format('events => %L', jsonb_build_object(
                        c.name || '_insert', c.name || '_upload')) end;
    end if;
end;
$$;

comment on function gc._require_events(gc.collections) is
    'Raises for an event that a collection does not have, or that is given no name.';
