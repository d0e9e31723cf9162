-- The contract: what every object of the schema gc has, and the interface other programs rely on.
begin;
select plan(59);

-- Names are compared as they are printed.
set local quote_all_identifiers = off;
set local intervalstyle = 'postgres';

-- Something generated, so that the rules are asked of generated code too.
create schema app;
create table app.file (id bigint primary key, path text, bytes bigint, state text);
create table app.post (id bigint primary key, file bigint references app.file);
create index on app.post (file);
create table app.chunk (file bigint references app.file);
create index on app.chunk (file);
select count(*) from gc.track(
    'app.file', url => $$'s3://bucket/' || id$$, size => 'bytes', condition => $$state = 'old'$$,
    owned => '{chunk}'
) \g /dev/null

create temporary view gc_function as
select p.*,
    exists (
        select from pg_depend as d
        where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e'
    ) as of_extension
from pg_proc as p
where p.pronamespace = 'gc'::regnamespace;

create temporary view gc_relation as
select c.*,
    exists (
        select from pg_depend as d
        where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e'
    ) as of_extension
from pg_class as c
where c.relnamespace = 'gc'::regnamespace;

-- The rules below would hold for an empty schema too.
select cmp_ok((select count(*) from gc_function where of_extension), '>', 80::bigint,
    'the extension has its functions');
select set_has(
    $$select proname::text from gc_function where not of_extension$$,
    $$values ('file_review'), ('file_scan'), ('file_used'), ('file_lock'), ('file_key_text'),
        ('file_after_insert'), ('file_after_update'), ('file_after_delete'),
        ('file_before_truncate'), ('file_after_post_delete'), ('file_after_post_update'),
        ('file_before_post_truncate')$$,
    'a tracked table has its generated functions');

-- Comments.
select is_empty(
    $$select oid::regprocedure from gc_function
        where of_extension and obj_description(oid, 'pg_proc') is null$$,
    'every function of the extension has a comment');
select is_empty(
    $$select oid::regclass from gc_relation
        where relkind in ('r', 'v') and obj_description(oid, 'pg_class') is null$$,
    'every table and view has a comment, queues too');
select is_empty(
    $$select c.oid::regclass, a.attname from gc_relation as c
        join pg_attribute as a on a.attrelid = c.oid
        where c.of_extension and c.relkind in ('r', 'v') and a.attnum > 0 and not a.attisdropped
            and col_description(c.oid, a.attnum) is null$$,
    'every column of the extension''s tables and views has a comment');
select is_empty(
    $$select t.oid::regtype from pg_type as t
        join pg_depend as d
            on d.classid = 'pg_type'::regclass and d.objid = t.oid and d.deptype = 'e'
        where t.typnamespace = 'gc'::regnamespace and t.typtype = 'c'
            and exists (
                select from pg_class as c where c.oid = t.typrelid and c.relkind = 'c')
            and obj_description(t.oid, 'pg_type') is null$$,
    'every type of the extension has a comment');
select isnt(obj_description('gc'::regnamespace, 'pg_namespace'), null, 'the schema has a comment');

-- Safety of functions.
select is_empty(
    $$select oid::regprocedure from gc_function
        where prosqlbody is null and prokind = 'f'
            and not replace(coalesce(proconfig, '{}')::text, E'\\"', '')::text[]
                @> array['search_path=pg_catalog, pg_temp']$$,
    'every function, also a generated one, but no procedure, looks for names in pg_catalog, and pg_temp last, or has '
    'looked when it was created');
select is_empty($$select oid::regprocedure from gc_function where prokind <> 'f'
        and oid <> all (array['gc.drop_unused_triggers()'::regprocedure,
            'gc.restore(text, text)'])$$,
    'there is one procedure: it commits, and so it cannot have settings; and one aggregate');
select is_empty(
    $$select f.oid::regprocedure from gc_function as f
        join pg_language as l on l.oid = f.prolang where l.lanname not in ('sql', 'plpgsql')
            and f.prokind <> 'a'$$,
    'every function is SQL or PL/pgSQL');
select is_empty(
    $$select f.oid::regprocedure from gc_function as f
        cross join aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) as a
        where a.grantee = 0$$,
    'PUBLIC can execute no function, also no generated one');
select is_empty(
    $$select c.oid::regclass from gc_relation as c
        cross join aclexplode(coalesce(c.relacl, acldefault(
            case c.relkind when 'S' then 's' else 'r' end::"char", c.relowner))) as a
        where c.relkind in ('r', 'v', 'S') and a.grantee = 0
            and not (c.relname = 'deleting_until' and a.privilege_type = 'SELECT')$$,
    'PUBLIC has no right on any table, view or sequence, but to ask for the gate');
select is_empty(
    $$select from pg_namespace as n
        cross join aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) as a
        where n.nspname = 'gc' and a.grantee = 0$$,
    'PUBLIC may not even use the schema');
select set_eq(
    $$select proname::text from gc_function where of_extension and prosecdef$$,
    array['review', 'claim', 'confirm', 'fail', 'release', 'next_due', 'status', '_fold_settings',
        'pause', 'resume', 'pin', 'unpin', 'compare_marker', 'adopt', '_change_durable_on',
        'preview', 'forecast', 'life', 'rest', 'explain', 'explain_url', 'because', 'receipt',
        '_trash_labels',
        'careful', 'spare', 'begin_listing', 'unfinished_listing', 'add_parts', 'open_parts',
        'note_part', 'end_listing', 'compare', 'absolve', 'differences', 'adopt_orphans', 'disown'],
    'exactly these functions of the extension act with the rights of its owner');
select set_eq(
    $$select proname::text from gc_function where not of_extension and prosecdef$$,
    $$select proname::text from gc_function
        where not of_extension and (prorettype = 'trigger'::regtype
            or proname ~ '_(begin_uploads?|end_uploads?|keep_alive)$')$$,
    'of what is generated, exactly triggers and what an uploader may call act as the owner');
select is_empty(
    $$select f.oid::regprocedure, p.name from gc_function as f
        cross join gc._fixed_settings() as p
        where ((f.of_extension and f.proname !~ '^_' or f.prosecdef) and f.prokind not in ('p', 'a')
            and f.prorettype <> 'trigger'::regtype
            or not f.of_extension and f.proname ~ '_review$' or f.proname = '_restore')
            and f.proname not in ('version', 'review_after')
            and not exists (
                select from unnest(f.proconfig) as s where s ilike p.name || '=%'
            )$$,
    'every function that can be called from outside has all pinned settings');
select is_empty(
    $$select oid::regprocedure from gc_function
        where of_extension and prosrc ~ E'[\\\\]'
            and not 'standard_conforming_strings=on' = any (proconfig)$$,
    'in no function does a backslash depend on the session');
select is_empty(
    $$select oid::regprocedure from gc_function
        where proowner <> (select nspowner from pg_namespace where nspname = 'gc')$$,
    'every function belongs to the owner of the schema');

-- Names.
select is_empty(
    $$select conrelid::regclass, conname from pg_constraint
        where connamespace = 'gc'::regnamespace
            and (conname ~ E'_(check|fkey|excl)\\d*$' or (contype in ('p', 'u')
                and conname !~ '^(settings|review_after_defaults|collections|deletion_log|holds)_'
                and conname !~ '^(tombstones|scan_requests|totals|locks|upload_slots)_'
                and conname !~
                    '^(unread_rows|unused_tables|declared_references|ignored_suspects)_'
                and conname !~ '^(operations|pauses|brakes|allowances|markers)_'
                and conname !~ '^(kept_rows|causing|struck_finalizers|witnesses)_'
                and conname !~ '^(listings|listing_parts|key_changes)_'))$$,
    'no constraint has a name that the system made up');
select set_eq(
    $$select conname::text from pg_constraint as k
        join gc_relation as c on c.oid = k.conrelid and c.of_extension
        where k.contype = 'c'$$,
    array['causes_cause_length', 'settings_jitter_not_negative', 'settings_busy_delay_positive',
        'settings_backoff_positive', 'settings_backoff_limit_not_below_backoff',
        'settings_max_rows_positive', 'settings_lock_timeout_positive',
        'settings_statement_timeout_positive', 'settings_max_sleep_positive', 'settings_pace_is_a_share',
        'settings_upload_timeout_positive', 'settings_keep_alive_positive',
        'settings_log_retention_not_negative', 'settings_gone_retention_not_negative',
        'review_after_defaults_value_not_negative',
        'review_after_defaults_value_not_endless', 'collections_name_length',
        'settings_jitter_not_endless', 'collections_undo_not_endless',
        'collections_restored_object', 'collections_events_object',
        'collections_undo_not_negative', 'collections_collect_known',
        'settings_undo_not_negative', 'settings_undo_not_endless',
        'settings_orphan_grace_not_negative', 'settings_orphan_grace_not_endless',
        'listings_prefix_is_a_folder', 'listings_source_known', 'discrepancies_kind_known',
        'settings_brake_share_is_a_share', 'settings_brake_rows_not_negative',
        'brakes_share_is_a_share', 'brakes_rows_not_negative', 'pauses_what_known',
        'allowances_what_known', 'allowances_allowed_not_negative', 'settings_failover_known',
        'settings_durable_on_named', 'markers_prefix_is_a_folder'],
    'these are the checks, each under a name that says what is wrong');

-- Versions.
select is(gc.version(), (select extversion from pg_extension where extname = 'blobgc'),
    'gc.version is the version of the extension');
select is(
    (
        select e.extname from pg_depend as d
        join pg_extension as e on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid
        where d.classid = 'pg_namespace'::regclass and d.objid = 'gc'::regnamespace
            and d.deptype = 'e'
    ),
    'blobgc', 'the schema gc goes with the extension');
select is_empty(
    $$select oid::regprocedure from gc_function where not of_extension and not exists (
        select from gc.collections as c where gc_function.proname = any (c.functions))$$,
    'every generated function is known to its collection');

-- The interface. More arguments with defaults may follow, so only the beginning is compared.
create function pg_temp.has_signature(name text, arguments text, result text)
    returns text
    language sql
as $$
    select ok(
        (
            select bool_and(
                starts_with(pg_get_function_arguments(f.oid), arguments)
                and pg_get_function_result(f.oid) = result)
            from gc_function as f
            where f.proname = has_signature.name
        ),
        format('gc.%s(%s) is as the design says', name, arguments))
$$;

select pg_temp.has_signature('version', '', 'text');
select pg_temp.has_signature('track',
    'target regclass, name text DEFAULT NULL::text, url text DEFAULT NULL::text, '
    'size text DEFAULT NULL::text, label text DEFAULT NULL::text, '
    'generation text DEFAULT NULL::text, condition text DEFAULT NULL::text, '
    'owned text[] DEFAULT ''{}''::text[], events jsonb DEFAULT ''{}''::jsonb, '
    'undo interval DEFAULT NULL::interval',
    'TABLE(reference text, role text, note text)');
select pg_temp.has_signature('untrack', 'name text', 'void');
select pg_temp.has_signature('scan', 'name text, batch integer', 'integer');
select pg_temp.has_signature('review_after', 'event text', 'timestamp with time zone');
select pg_temp.has_signature('review', 'batch integer DEFAULT 1000',
    'TABLE(collection text, reviewed integer, kept integer, deleted integer, busy integer, '
    'failed integer, bytes bigint)');
select pg_temp.has_signature('claim',
    'worker text, batch integer DEFAULT 1000, lease interval DEFAULT ''00:05:00''::interval',
    'TABLE(id bigint, collection text, key text, label text, url text, generation text, '
    'size bigint, leased_until timestamp with time zone)');
select pg_temp.has_signature('confirm', 'worker text, ids bigint[]', 'integer');
select pg_temp.has_signature('fail', 'worker text, ids bigint[], error text', 'integer');
select pg_temp.has_signature('release', 'worker text, ids bigint[]', 'integer');
select pg_temp.has_signature('next_due', '', 'timestamp with time zone');
select pg_temp.has_signature('rest', 'worked interval, pace numeric DEFAULT NULL::numeric', 'interval');
select pg_temp.has_signature('preview',
    'name text DEFAULT NULL::text, batch integer DEFAULT 1000, due boolean DEFAULT true',
    'TABLE(collection text, key text, label text, url text, size bigint, event text, verdict text, '
    'detail text, with_it jsonb)');
select pg_temp.has_signature('forecast', '',
    'TABLE(collection text, day date, queued bigint, expected_rows bigint, '
    'expected_bytes numeric, sampled bigint)');
select pg_temp.has_signature('life', '',
    'TABLE(collection text, stage text, rows bigint, bytes numeric, is_estimate boolean)');
select pg_temp.has_signature('explain', 'name text, key text',
    'TABLE(depth integer, kind text, subject text, detail text, verdict text, collection text, '
    'row_key text, at timestamp with time zone)');
select pg_temp.has_signature('explain_url', 'url text',
    'TABLE(depth integer, kind text, subject text, detail text, verdict text, collection text, '
    'row_key text, at timestamp with time zone)');
select pg_temp.has_signature('frees', 'name text, key text',
    'TABLE(collection text, rows bigint, bytes numeric, owned_rows bigint, is_complete boolean)');
select pg_temp.has_signature('begin_upload', 'name text, key text', 'timestamp with time zone');
select pg_temp.has_signature('end_upload', 'name text, key text', 'boolean');
select pg_temp.has_signature('keep_alive', 'name text, key text', 'boolean');
select pg_temp.has_signature('grant_runner', 'role regrole', 'void');
select pg_temp.has_signature('grant_operator', 'role regrole', 'void');
select pg_temp.has_signature('pause', 'name text DEFAULT NULL::text, '
    'reason text DEFAULT NULL::text, '
    'until timestamp with time zone DEFAULT ''infinity''::timestamp with time zone, '
    'what text DEFAULT NULL::text', 'void');
select pg_temp.has_signature('resume', 'name text DEFAULT NULL::text, '
    'what text DEFAULT NULL::text, allow bigint DEFAULT NULL::bigint', 'integer');
select set_eq(
    $$select pg_get_function_identity_arguments(oid) from gc_function where proname ~ '^(un)?pin$'$$,
    array['name text, key text, reason text, until timestamp with time zone, holder text',
        'name text, keys text[], reason text, until timestamp with time zone, holder text',
        'name text, key text, holder text', 'name text, keys text[], holder text'],
    'one key, or many, are pinned and unpinned');
select pg_temp.has_signature('grant_viewer', 'role regrole', 'void');
select pg_temp.has_signature('grant_uploader', 'role regrole', 'void');
select alike(
    (select pg_get_function_result(oid) from gc_function where proname = 'status'),
    E'TABLE(collection text, target text, queued bigint, due bigint, overdue\\_since timestamp%, '
    'failing bigint, last\\_error text, tombstones\\_waiting bigint, tombstones\\_claimed bigint, '
    'tombstones\\_failing bigint, %bytes\\_waiting numeric, deleted\\_today numeric, '
    'bytes\\_today numeric, deleted\\_total numeric, bytes\\_total numeric, blocked boolean, '
    'why text%',
    'gc.status tells everything that an operator asks first');
select is(
    (select pg_get_function_arguments(oid) from gc_function where proname = 'file_review'),
    'batch integer DEFAULT 1000, entries tid[] DEFAULT NULL::tid[], most integer DEFAULT 10000, '
    'checked boolean DEFAULT false, OUT reviewed integer, OUT kept integer, OUT deleted integer, OUT busy integer, '
    'OUT bytes bigint, OUT touched integer',
    'a collection''s own review takes a batch');

select columns_are('gc', 'deletion_log', array['id', 'collection', 'key', 'label', 'url',
    'generation', 'size', 'event', 'row_deleted_at', 'deleted_at', 'worker', 'causes'],
    'the log tells what was deleted, when, why, how big, and by whom');
select columns_are('gc', 'daily_totals', array['collection', 'day', 'rows', 'objects', 'bytes'],
    'the daily totals tell rows, objects and bytes');
select columns_are('gc', 'review_after_defaults', array['event', 'value'],
    'a delay is an event and a value');
select has_column('gc', 'file_review_queue', c, format('a queue has the column %s', c))
from unnest(array['event', 'review_after', 'review_count']::name[]) as c;

select * from finish();
rollback;
