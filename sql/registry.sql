-- The registry preset: a container registry's tables and operations, in a schema of its own.
--
-- They stand, as plain SQL, in presets/registry/; the Makefile puts these files in here. What is
-- made from them belongs to whoever calls gc.create_registry, and is no part of the extension.

create function gc._registry_preset()
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $registry_preset$
select $preset$
@REGISTRY@
$preset$
$registry_preset$;

comment on function gc._registry_preset() is 'The text of the files in presets/registry/.';


-- The schema and the store become parts of functions' texts: no letters that end these.
create function gc._require_registry(schema name, store text, partitions integer)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(store !~ '^[a-z][a-z0-9+.-]*://[A-Za-z0-9._~:/@%+=,-]*[A-Za-z0-9]$', true) then
        raise 'a registry needs a store'
            using errcode = 'invalid_parameter_value',
                detail = format('store is %s.', coalesce(store, 'null')),
                hint = 'select gc.create_registry(store => ''s3://bucket/prefix'');';
    end if;
    if coalesce(schema ~ '[$\\{]', true) then
        raise 'the schema of a registry cannot be called so'
            using errcode = 'invalid_parameter_value',
                detail = format('schema is %s.', coalesce(schema, 'null')),
                hint = 'Use a name without a dollar sign, a backslash and a brace.';
    end if;
    if coalesce(partitions < 0, true) then
        raise 'a registry cannot have % partitions', coalesce(partitions::text, 'null')
            using errcode = 'invalid_parameter_value',
                hint = 'Leave partitions out for none, or try 64.';
    end if;
    if exists (
        select from gc.collections as c where c.name in ('blob', 'manifest', 'repository', 'tag')
    ) then
        raise 'there is a registry in this database already, or a collection of its names'
            using errcode = 'duplicate_object',
                detail = 'A registry''s collections are blob, manifest, repository and tag.',
                hint = 'Create it in another database.';
    end if;
end;
$$;

comment on function gc._require_registry(name, text, integer) is
    'Raises for arguments from which no registry can be made.';


create function gc.create_registry(
    schema name default 'registry', store text default null, partitions integer default 0
)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set client_min_messages = warning
    set standard_conforming_strings = on
    set quote_all_identifiers = off
    set check_function_bodies = on
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    preset text := gc._registry_preset();
begin
    perform gc._require_owner();
    perform gc._require_registry(schema, store, partitions);
    execute format('create schema %I', schema);
    perform set_config('search_path', format('%I, pg_catalog, pg_temp', schema), true);
    if partitions > 0 then
        preset := regexp_replace(preset, '/\* (partition by [^*]*) \*/', '\1', 'g');
    end if;
    preset := regexp_replace(preset, '\mregistry\.(?=[a-z_])', quote_ident(schema) || '.', 'g');
    execute replace(replace(preset, '{store}', store), '{partitions}', partitions::text);
end;
$$;
revoke all on function gc.create_registry(name, text, integer) from public;

comment on function gc.create_registry(name, text, integer) is
    'Creates a container registry in a new schema: tables, operations and collections. Objects are '
    'under the store. With partitions, its tables are divided into so many.';
