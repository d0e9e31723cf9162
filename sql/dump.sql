-- What pg_dump has to save of the extension's own tables. Only an extension script can say so.

select pg_extension_config_dump('gc.settings', '');
select pg_extension_config_dump('gc.review_after_defaults', '');
select pg_extension_config_dump('gc.collections', '');
select pg_extension_config_dump('gc.scan_requests', '');
select pg_extension_config_dump('gc.unread_rows', '');
select pg_extension_config_dump('gc.unread_rows_id_seq', '');
select pg_extension_config_dump('gc.unused_tables', '');
select pg_extension_config_dump('gc.deletion_log', '');
select pg_extension_config_dump('gc.deletion_log_id_seq', '');
select pg_extension_config_dump('gc.totals', '');
select pg_extension_config_dump('gc.holds', '');
select pg_extension_config_dump('gc.holds_id_seq', '');
select pg_extension_config_dump('gc.tombstones', '');
select pg_extension_config_dump('gc.tombstones_id_seq', '');
