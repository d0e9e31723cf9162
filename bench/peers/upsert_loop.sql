-- The review loop of upsert_queues.sql for pgbench: one blob a transaction, each statement a round
-- trip, as a registry's process would do it. It never touches a store, which is in its favour:
-- the description deletes the object before the commit.

begin;
select digest from peer.blob_queue where due_at < now()
order by due_at limit 1
for update skip locked \gset
select not exists (
    select from peer.configuration_links where digest = :digest
    union all
    select from peer.layer_links where digest = :digest
) as garbage \gset
\if :garbage
delete from registry.blobs where digest = :digest;
\endif
delete from peer.blob_queue where digest = :digest;
commit;
