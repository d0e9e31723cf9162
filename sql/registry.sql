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

comment on function gc._registry_preset() is
    'The text of the files in presets/registry/, but for what is collected.';


create function gc._registry_tracking()
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $registry_tracking$
select $preset$
@REGISTRY_TRACKING@
$preset$
$registry_tracking$;

comment on function gc._registry_tracking() is 'The text of presets/registry/tracking.sql.';


-- Each of them can be run on what it has made.
create function gc._registry_changes()
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $registry_changes$
select $preset$
@REGISTRY_CHANGES@
$preset$
$registry_changes$;

comment on function gc._registry_changes() is
    'The text of the files in presets/registry/upgrade/, but for those that end in -data.sql.';


create function gc._registry_data_changes()
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $registry_data_changes$
select $preset$
@REGISTRY_DATA_CHANGES@
$preset$
$registry_data_changes$;

comment on function gc._registry_data_changes() is
    'The text of the files in presets/registry/upgrade/ that end in -data.sql: they come after '
    'the preset.';


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


-- What stands in the preset for something else.
create function gc._fill_registry(preset text, schema name, store text, partitions integer)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if partitions > 0 then
        preset := regexp_replace(preset, '/\* (partition by [^*]*) \*/', '\1', 'g');
    end if;
    preset := regexp_replace(preset, '\mregistry\.(?=[a-z_])', quote_ident(schema) || '.', 'g');
    preset := replace(preset, '{version}', gc.version());
    return replace(replace(preset, '{store}', store), '{partitions}', partitions::text);
end;
$$;

comment on function gc._fill_registry(text, name, text, integer) is
    'The preset for a schema, a store and a number of partitions.';


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
begin
    perform gc._require_owner();
    perform gc._require_registry(schema, store, partitions);
    execute format('create schema %I', schema);
    perform set_config('search_path', format('%I, pg_catalog, pg_temp', schema), true);
    execute gc._fill_registry(
        gc._registry_preset() || gc._registry_tracking(), schema, store, partitions);
    -- What keeps deleted rows depends on the collections that came later. Until the first review,
    -- whoever asks about a row would have it made again, each time.
    perform gc._generate(c.name)
    from gc.collections as c
    where c.fingerprint is distinct from gc._fingerprint(c);
end;
$$;
revoke all on function gc.create_registry(name, text, integer) from public;

comment on function gc.create_registry(name, text, integer) is
    'Creates a container registry in a new schema: tables, operations and collections. Objects are '
    'under the store. With partitions, its tables are divided into so many.';


create type gc._registry as (schema name, store text, partitions integer, version text);

comment on type gc._registry is
    'A registry: where it is, where its objects are, into how many partitions its tables are '
    'divided, and which version of blobgc has made it or brought it to its own.';


-- It tells its store by its own function, which may be called only if it is the owner's.
create function gc._find_registry()
    returns gc._registry
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    schema name;
    blobs regclass;
    store text;
    version text := '0.1.0';
begin
    select n.nspname, c.target into schema, blobs
    from gc.collections as c
    join pg_class as t on t.oid = c.target and t.relname = 'blobs'
    join pg_namespace as n on n.oid = t.relnamespace
    join pg_proc as f on f.pronamespace = n.oid and f.proname = 'blob_url'
        and f.proowner = (select g.nspowner from pg_namespace as g where g.nspname = 'gc')
    where c.name = 'blob';
    if blobs is null then
        return null;
    end if;
    execute format($f$select split_part(%I.blob_url('\x01'), '/docker/registry/', 1)$f$, schema)
    into store;
    if to_regprocedure(format('%I._version()', schema)) is not null then
        execute format('select %I._version()', schema) into version;
    end if;
    return (schema, store, (select count(*) from pg_inherits as i where i.inhparent = blobs),
        version)::gc._registry;
end;
$$;

comment on function gc._find_registry() is
    'The registry that this database has; null: none.';


-- A type cannot be replaced. One that changes is dropped by a file in presets/registry/upgrade/.
create function gc._replay_registry(preset text, schema name)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    type name;
begin
    for type in
        select c.relname from pg_class as c
        join pg_namespace as n on n.oid = c.relnamespace
        where n.nspname = _replay_registry.schema and c.relkind = 'c'
    loop
        preset := regexp_replace(preset, format('^create type %s as [^;]*;', type), '', 'n');
    end loop;
    preset := regexp_replace(preset,
        '^create (table|unlogged table|index|unique index) ', 'create \1 if not exists ', 'gn');
    return regexp_replace(preset,
        '^create (function|procedure|view|trigger) ', 'create or replace \1 ', 'gn');
end;
$$;

comment on function gc._replay_registry(text, name) is
    'The preset for a schema where it has run before: tables stay, functions are replaced.';


-- Its collections get the definitions of this version, but for what is the operator's to say.
create function gc.upgrade_registry()
    returns name
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
    r gc._registry;
    before jsonb := (
        select jsonb_object_agg(c.name, jsonb_build_object('undo', c.undo, 'f', c.finalizers))
        from gc.collections as c
    );
begin
    perform gc._require_owner();
    perform gc._lock('track');
    r := gc._find_registry();
    if r.schema is null or r.version = gc.version() then
        return null;
    end if;
    perform gc._lock_collection(c.name) from (
        select o.name from gc.collections as o order by o.name
    ) as c;
    perform set_config('search_path', format('%I, pg_catalog, pg_temp', r.schema), true);
    execute gc._fill_registry(
        gc._registry_changes() || gc._replay_registry(gc._registry_preset(), r.schema)
            || gc._registry_data_changes() || gc._registry_tracking(),
        r.schema, r.store, r.partitions);
    update gc.collections as c
    set undo = (b.value ->> 'undo')::interval,
        finalizers = array(select jsonb_array_elements_text(b.value -> 'f'))
    from jsonb_each(before) as b
    where b.key = c.name;
    perform gc._generate(c.name)
    from gc.collections as c
    where c.name in ('blob', 'manifest', 'repository', 'tag');
    return r.schema;
end;
$$;
revoke all on function gc.upgrade_registry() from public;

comment on function gc.upgrade_registry() is
    'Brings the registry that gc.create_registry has made to the version of blobgc. Returns its '
    'schema; null: there is none, or it has that version.';
