-- Finding garbage with a query, as a cron job does it (seed 001): an anti-join of all blobs with all
-- that can refer to them, for so many rows at a time. Where there is little garbage, it reads
-- everything.
select b.digest
from registry.blobs as b
where not exists (select from registry.layers as l where l.digest = b.digest)
    and not exists (
        select from registry.manifests as m where m.configuration_blob_digest = b.digest
    )
limit 1000
