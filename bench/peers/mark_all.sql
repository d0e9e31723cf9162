-- Finding garbage by the foreign keys alone (seed 004): each blob is deleted on trial. Where that is
-- refused, it is in use; where not, it is put back and marked. Better than described there: what is
-- in use and was not marked is not written again.
do $$
declare
    blob registry.blobs;
begin
    for blob in select * from registry.blobs loop
        begin
            delete from registry.blobs where digest = blob.digest;
            blob.unused_since := coalesce(blob.unused_since, now());
            insert into registry.blobs select blob.*;
        exception
            when foreign_key_violation then
                update registry.blobs set unused_since = null
                where digest = blob.digest and unused_since is not null;
        end;
    end loop;
end;
$$
