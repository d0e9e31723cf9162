-- Attacks: what others may create in the registry's schema, and what a session may set.
savepoint attacks;
select registry.create_repository('acme/app') \g /dev/null

-- Somebody may create things in the schema: functions and operators that look like those of
-- PostgreSQL, or fit better than those, to be called by whoever owns the registry.
create table test.caught (what text);
create role blobgc_registry_evil;
grant usage, create on schema registry to blobgc_registry_evil;
grant usage on schema test to blobgc_registry_evil;
grant insert on test.caught to public;
create function test.lures() returns setof text language sql as $$
    select format('create function registry.%s language plpgsql as ''begin '
        'insert into test.caught values (current_user); return null; end''', l)
    from (
        select format('%I(%s) returns %s', f.proname, pg_get_function_identity_arguments(f.oid),
            pg_get_function_result(f.oid))
        from pg_proc as f
        where f.pronamespace = 'pg_catalog'::regnamespace and f.prokind = 'f'
            and not f.proretset and f.provariadic = 0 and 'internal'::regtype <> all (f.proargtypes)
            and f.proname in ('lower', 'left', 'length', 'octet_length', 'encode', 'decode',
                'substr', 'split_part', 'starts_with', 'convert_from', 'convert_to', 'sha256',
                'sha512', 'now', 'clock_timestamp', 'json_typeof', 'scale', 'regexp_match')
        union all
        select unnest(array[
            'format(text, text) returns text', 'format(text, text, text) returns text',
            'json_build_object(text, text, text, bytea, text, bigint) returns json',
            'unnest(text[]) returns text', 'count(text) returns bigint',
            'trap(bytea, bytea) returns boolean', 'trap(text, text) returns boolean',
            'trap(bigint, bigint) returns boolean', 'trap(text, bigint) returns text'])
    ) as f(l)
    union all
    select format('create operator registry.%s (leftarg = %s, rightarg = %s, '
        'function = registry.trap)', o, l, r)
    from (values ('bytea', 'bytea'), ('text', 'text'), ('bigint', 'bigint')) as t(l, r)
    cross join unnest(array['=', '<>', '<', '~', '~~']) as o
    union all
    select 'create operator registry.|| (leftarg = text, rightarg = bigint, '
        'function = registry.trap)'
$$;
grant execute on function test.lures() to blobgc_registry_evil;
set local role blobgc_registry_evil;
do $$
declare
    lure text;
begin
    for lure in select * from test.lures() loop
        execute lure;
    end loop;
end
$$;
reset role;
create function test.live() returns text language plpgsql as $$
declare
    image text := test.push('acme/app', 'image', '{base, top}', 'v1');
    list text := test.push_list('acme/app', 'list', array[image], 'list');
begin
    perform test.push('acme/app', 'signature', '{base}', null, image);
    perform registry.create_repository('acme/other');
    perform registry.mount_blob('acme/other', test.digest('base'), 'acme/app');
    perform registry.unlink_blob('acme/other', test.digest('base'));
    perform registry.get_manifest('acme/app', 'v1'), registry.list_tags('acme/app'),
        registry.list_repositories(), registry.get_blob('acme/app', test.digest('base'));
    perform registry.untag('acme/app', 'list');
    perform registry.delete_repository('acme/other');
    perform test.collect();
    return concat_ws(', ',
        (select string_agg(m, ', ' order by m) from test.manifests() as m),
        (select string_agg(b, ', ' order by b) from test.blobs() as b),
        (select count(*) from registry.list_referrers('acme/app', image)));
end;
$$;
select is(test.live(), 'acme/app image, acme/app signature, base, config of image, '
    'config of signature, top, 1',
    'whoever may create things in the schema does not change what the registry does');
select is_empty('select * from test.caught', 'and nothing of theirs is ever called');
rollback to attacks;

-- What is left of a push is what it has written.
savepoint attacks;
select registry.create_repository('acme/app'), test.upload('acme/app', 'config of image') \g /dev/null
create table test.locks as
select count(*) as before from pg_locks where locktype = 'advisory' and pid = pg_backend_pid();
select test.put('acme/app', 'image', '{}', 'v1'), test.put('acme/app', 'image', '{}', 'v2') \g /dev/null
select is((select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
    before, 'put_manifest leaves no advisory lock') from test.locks;
select is_empty('select * from registry.pushes', 'and no row where pushes meet');
rollback to attacks;
