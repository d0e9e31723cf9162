-- The registry preset: what it queues, keeps and deletes, its operations, its errors and its
-- repositories. Races are in tests/specs/registry; what very many images share, in
-- bench/cases/skew.py. Run with :partitions for both layouts.
begin;
select plan(584);
set local client_min_messages = warning;
update gc.settings set jitter = '1 minute';
select gc.create_registry(store => 's3://bucket/images', partitions => :partitions) \g /dev/null
\ir helpers.sql
-- Makes the code of all collections, which each part would otherwise make anew.
select gc.review() \g /dev/null

\ir tracking.sql
\ir deciding.sql
\ir operations.sql
\ir payloads.sql
\ir attacks.sql
\ir lifecycle.sql
\ir retention.sql
\ir restoring.sql
\ir layout.sql

-- No finish(): what it counts went with the savepoints. The plan above is what is compared.
rollback;
