-- From 0.1.0 to 0.2.0: what can be done only with the new functions.

-- Runners of 0.1.0 may be deleting objects: the gate is open, as if they had opened it.
do $$
begin
    perform gc._open_gate(max(t.due_at)) from gc.tombstones as t
    where t.worker is not null having max(t.due_at) > clock_timestamp();
end;
$$;

-- Who is running may have been running when these were deleted.
insert into gc.witnesses
select d.deleted_by, gc._running() from gc.deleted_objects as d group by d.deleted_by;

-- Keys of some types had no room in the indexes of queues.
do $$
declare
    n name;
    queue regclass;
    found regclass;
begin
    for n in select c.name from gc.collections as c loop
        queue := to_regclass(format('gc.%I', gc._object_name(n, '_review_queue')));
        for found in
            select i.indexrelid from pg_index as i
            join pg_attribute as a on a.attrelid = i.indexrelid and a.attname = 'entry'
            where i.indrelid = queue
        loop
            execute format('drop index %s', found);
            perform gc._index_keys(gc._shape(gc._collection(n)), queue);
        end loop;
    end loop;
end;
$$;
