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
