-- Logical replication: of a database that publishes its tables, and of one that subscribes.
--
-- A publication of all tables has ours among them. PostgreSQL refuses to change rows of a published
-- table that it cannot name to subscribers: in our tables without a primary key, the whole row is
-- the name. That is written to the log only where wal_level is logical.

create function gc._identify(relation regclass)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._run(format('alter table %s replica identity full', relation));
end;
$$;

comment on function gc._identify(regclass) is
    'Lets rows of a table without a primary key be changed while it is published.';


-- A subscription's worker fires no trigger for a statement, and none of a foreign key: it takes no
-- lock, and what it writes is not seen. The same is true of our own tables.
create function gc._subscribed(c gc.collections)
    returns table (relation regclass, subscription name)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select r.oid::regclass, s.subname
    from pg_subscription_rel as w
    join pg_subscription as s on s.oid = w.srsubid
    join pg_class as r on r.oid = w.srrelid
    where r.relnamespace = 'gc'::regnamespace
        or r.oid in (select t.relation from gc._touched_by(c) as t)
    order by 1, 2
$$;

comment on function gc._subscribed(gc.collections) is
    'The tables of a collection, or of blobgc, that a subscription writes.';


create function gc._require_unsubscribed(c gc.collections)
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    found_one record;
begin
    select s.* into found_one from gc._subscribed(c) as s limit 1;
    if found then
        raise '% is written by the subscription "%"', found_one.relation, found_one.subscription
            using errcode = 'object_not_in_prerequisite_state',
                detail = 'It takes no locks and fires no triggers of blobgc: rows could be deleted '
                    'while somebody refers to them.',
                hint = format('Collect where the rows are written first; here, when this database '
                    'takes its place: drop subscription %I;', found_one.subscription);
    end if;
end;
$$;

comment on function gc._require_unsubscribed(gc.collections) is
    'Raises if a subscription writes what a review of the collection relies on.';


do $$
begin
    perform gc._identify(c.oid)
    from pg_class as c
    where c.relnamespace = 'gc'::regnamespace and c.relkind = 'r' and c.relpersistence = 'p'
        and c.relreplident = 'd'
        and not exists (select from pg_index as i where i.indrelid = c.oid and i.indisprimary);
end;
$$;
