-- Restoring: rows that are kept come back, with what went with them and with what they need.
--
-- gc.restore is an aggregate: however many rows it is given, they come back in one go, in the right
-- order, or none of them does. What is gathered is locked, and the objects must be there; then rows
-- are inserted, parents first, as anybody would insert them: triggers, foreign keys, the admission
-- of their objects, and a review. So the order of locks is everybody's: the row, then its
-- tombstone. What they need besides is added: see gc.complete. At last it is asked whether any of
-- these objects was handed out meanwhile. Restores take turns: what one gathers, another may come
-- to from the other end.
--
-- A heap is a table with the places of rows in gc.trash_rows; fresh are those whose companions
-- have not been looked for yet.

insert into gc.locks values ('restore') on conflict do nothing;


create unlogged table gc.restoring (
    run bigint not null,
    name text,
    key text,
    is_revived boolean not null default false
);

comment on table gc.restoring is 'What a call of gc.restore was given so far. Always empty.';
comment on column gc.restoring.run is 'The call, by a number that no other has.';
comment on column gc.restoring.name is 'The collection, or the table.';
comment on column gc.restoring.key is 'The key of the row.';
comment on column gc.restoring.is_revived is 'It was there, and is no garbage any more.';


create type gc._heap as (relation regclass, places tid[], fresh tid[]);

comment on type gc._heap is 'Rows of one table that are to be restored.';


create function gc._pile(heaps gc._heap[], relation regclass, places tid[])
    returns gc._heap[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    n integer := (
        select u.n from unnest(heaps) with ordinality as u(relation, places, fresh, n)
        where u.relation = _pile.relation
    );
    added tid[] := array(
        select p from unnest(places) as p
        except
        select p from unnest(heaps) as h cross join lateral unnest(h.places) as p
        where h.relation = _pile.relation
    );
begin
    if cardinality(added) > 0 then
        -- What another session has restored while it was waited for is not there any more.
        added := array(
            select r.ctid from gc.trash_rows as r where r.ctid = any (added) for update
        );
        n := coalesce(n, cardinality(heaps) + 1);
        heaps[n] := (relation, coalesce(heaps[n].places, '{}') || added,
            coalesce(heaps[n].fresh, '{}') || added)::gc._heap;
    end if;
    return heaps;
end;
$$;

comment on function gc._pile(gc._heap[], regclass, tid[]) is
    'Heaps with these rows added, which are locked.';


create function gc._latest(relation regclass, keys text[])
    returns table (key text, place tid, until timestamptz)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
begin
    return query
        select distinct on (r.key) r.key, r.ctid, r.until
        from gc.trash_rows as r
        where r.relation = _latest.relation and r.key = any (keys)
        order by r.key, r.id desc;
end;
$$;

comment on function gc._latest(regclass, text[]) is
    'Of each key, the row that was deleted last.';


create function gc._restorable(name text)
    returns regclass
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    relation regclass := coalesce(
        (select c.target from gc.collections as c where c.name = _restorable.name),
        (
            select r.relation from (select distinct o.relation from gc.trash_rows as o) as r
            where gc._table_name(r.relation) = _restorable.name
        ),
        to_regclass(name));
begin
    if relation is null then
        raise 'there is no collection "%", and no table', name
            using errcode = 'undefined_object',
                hint = 'select distinct collection from gc.trash;';
    end if;
    return relation;
end;
$$;

comment on function gc._restorable(text) is
    'The table of a collection, or the table of that name; raises if there is none.';


create function gc._are_alive(relation regclass, keys text[])
    returns text[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set row_security = off
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    printed text := gc._text_of((gc._key(relation)).names, 't');
    alive text[];
begin
    execute format('select array(select %1$s from %2$s as t where %1$s = any ($1))', printed,
        relation)
    into alive using keys;
    return alive;
end;
$$;

comment on function gc._are_alive(regclass, text[]) is 'Those of the keys of which there is a row.';


-- What is there already need not be restored. A key may have been written differently.
create function gc._refuse_unknown(name text, relation regclass, keys text[])
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    alive text[] := gc._are_alive(relation, keys);
    missing text := (select k from unnest(keys) as k where k <> all (alive) or k is null limit 1);
begin
    if cardinality(keys) > 0 and (missing is not null or null = any (keys)) then
        raise 'there is no row % of "%" to restore', coalesce(missing, 'null'), name
            using errcode = 'ZG010',
                detail = 'Its undo window is over, or it was not deleted while undo was on.',
                hint = format('select * from gc.trash where collection = %L;', name);
    end if;
end;
$$;

comment on function gc._refuse_unknown(text, regclass, text[]) is
    'Raises ZG010 for keys of which there is neither a kept row nor a row.';


create function gc._require_in_time(name text, key text, until timestamptz)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if until <= clock_timestamp() then
        raise 'it is too late to restore row % of "%"', key, name
            using errcode = 'ZG010',
                detail = format('Its undo window ended at %s.', until),
                hint = 'update gc.settings set undo = …; makes later windows longer.';
    end if;
end;
$$;

comment on function gc._require_in_time(text, text, timestamptz) is
    'Raises ZG010 for a row whose undo window is over.';


create function gc._wanted(name text, relation regclass, keys text[])
    returns tid[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections;
    found_keys text[];
    places tid[];
    others text[];
begin
    select array_agg(l.key), array_agg(l.place) into found_keys, places
    from gc._latest(relation, keys) as l;
    others := array(select unnest(keys) except select unnest(found_keys));
    select o.* into c from gc.collections as o where o.target = relation;
    if cardinality(others) > 0 and c.name is not null then
        others := array(select gc._canonical_key(c, k) from unnest(others) as k);
        places := places || array(select l.place from gc._latest(relation, others) as l);
        others := array(
            select k from unnest(others) as k
            where not exists (select from gc._latest(relation, array[k]))
        );
    end if;
    perform gc._refuse_unknown(name, relation, others);
    perform gc._require_in_time(name, r.key, r.until)
    from gc.trash_rows as r where r.ctid = any (places) and r.until <= clock_timestamp();
    return coalesce(places, '{}');
end;
$$;

comment on function gc._wanted(text, regclass, text[]) is
    'The kept rows of these keys; raises ZG010 if there is none, and no row either.';


-- What went with a row went in the same transaction. But where a review empties an owner in steps,
-- what it owns went earlier, in reviews of the same collection. A child that went several times
-- comes back as it was the last time; one without a key went with its owner only. What went with an
-- earlier row of the same key went before that: it is left alone.
create function gc._companions_of(relation regclass, f gc._reference, fresh tid[])
    returns tid[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set enable_nestloop = off
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    xids xid8[] := array(select distinct r.xid from gc.trash_rows as r where r.ctid = any (fresh));
    draining text[] := array(
        select distinct c.name from gc.trash_rows as r
        join gc.collections as c on c.name = r.reviewed and c.condition is not null
        where r.ctid = any (fresh)
    );
    places tid[];
begin
    execute format(
        'select array(select distinct on (coalesce(c."gc key", c."gc id"::text)) c."gc place" '
        'from (%s where k.relation = $4 and (k.xid = any ($2) or k.reviewed = any ($3))) as c '
        'join (%s where k.ctid = any ($1)) as p on %s '
        'where c."gc xid" = p."gc xid" or c."gc reviewed" = p."gc reviewed" and not exists ('
        'select from gc.trash_rows as e where e.relation = $5 and e.key = p."gc key" '
        'and e.id < p."gc id" and e.id > c."gc id") '
        'order by coalesce(c."gc key", c."gc id"::text), c."gc id" desc)',
        gc._typed_rows_sql(f.referencing, f.columns),
        gc._typed_rows_sql(relation, f.targets),
        gc._pair(f.targets, 'p', f.columns, 'c', f.operators))
    into places using fresh, xids, draining, gc._root(f.referencing), relation;
    return places;
end;
$$;

comment on function gc._companions_of(regclass, gc._reference, tid[]) is
    'The kept rows that went with these, by a reference that is owned or cascades.';


create function gc._companions(relation regclass, fresh tid[])
    returns table (other regclass, places tid[])
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    f gc._reference;
begin
    for f in
        select r.* from gc._all_references(relation) as r
        where (r.on_delete = 'c' or exists (
                select from gc.collections as c where r.reference = any (c.owned)
            )) and exists (
                select from gc.trash_rows as k where k.relation = gc._root(r.referencing)
            )
    loop
        return query
            select gc._root(f.referencing), gc._companions_of(relation, f, fresh);
    end loop;
end;
$$;

comment on function gc._companions(regclass, tid[]) is
    'The kept rows that went with these: owned, or by a cascade.';


create function gc._key_from_sql(target regclass, f gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when count(*) = 1 then format('(%s)::text', min(w.value))
        else format('row(%s)::text', string_agg(w.value, ', ' order by w.n)) end
    from gc._key(target) as k
    cross join lateral (
        select format('r.%I::%s', f.columns[array_position(f.targets, u.name)],
            split_part(u.type, ' collate ', 1)), u.n
        from unnest(k.names, k.types) with ordinality as u(name, type, n)
    ) as w(value, n)
$$;

comment on function gc._key_from_sql(regclass, gc._reference) is
    'The expression for the key, as text, of what a row r refers to.';


create function gc._not_null_sql(f gc._reference)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format('r.%I is not null', u), ' and ') from unnest(f.columns) as u
$$;

comment on function gc._not_null_sql(gc._reference) is 'The condition that a row r refers to one.';


-- A foreign key to the primary key: what is kept is found by the index on keys.
create function gc._missing_by_key(
    relation regclass, target regclass, f gc._reference, fresh tid[]
)
    returns tid[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    keys text[];
    places tid[];
    missing text;
begin
    execute format('select array(select distinct %s from (%s where k.ctid = any ($1)) as r '
        'where %s and not exists (select from %s as t where %s))', gc._key_from_sql(target, f),
        gc._typed_rows_sql(relation, f.columns), gc._not_null_sql(f), target,
        gc._pair(f.targets, 't', f.columns, 'r', f.operators))
    into keys using fresh;
    if cardinality(keys) = 0 then
        return array[]::tid[];
    end if;
    perform gc._require_in_time(target::text, l.key, l.until)
    from gc._latest(target, keys) as l where l.until <= clock_timestamp();
    places := array(select l.place from gc._latest(target, keys) as l);
    if cardinality(places) < cardinality(keys) then
        select k into missing from unnest(keys) as k
        where k not in (select l.key from gc._latest(target, keys) as l) limit 1;
        raise 'a row of % refers to row % of %, which is gone', relation, missing, target
            using errcode = 'ZG010',
                detail = 'That row is not kept: it was deleted without an undo window, or this '
                    'is over.',
                hint = format('Insert it into %s, and restore again.', target);
    end if;
    return places;
end;
$$;

comment on function gc._missing_by_key(regclass, regclass, gc._reference, tid[]) is
    'The kept rows that these refer to by a foreign key, where there is no row; raises ZG010 for '
    'one that is not kept either.';


-- A foreign key to other columns: these are compared with those of all kept rows of the table. What
-- is missing then is noticed when the rows are inserted.
create function gc._missing_by_value(
    relation regclass, target regclass, f gc._reference, fresh tid[]
)
    returns tid[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set enable_nestloop = off
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    places tid[];
begin
    execute format('select array(select distinct on (%6$s) p."gc place" '
        'from (%1$s where k.ctid = any ($1)) as r '
        'join (%2$s where k.relation = $2 and k.until > clock_timestamp()) as p on %3$s '
        'where not exists (select from %4$s as t where %5$s) order by %6$s, p."gc id" desc)',
        gc._typed_rows_sql(relation, f.columns), gc._typed_rows_sql(target, f.targets),
        gc._pair(f.targets, 'p', f.columns, 'r', f.operators), target,
        gc._pair(f.targets, 't', f.columns, 'r', f.operators), gc._idents(f.targets, 'p.'))
    into places using fresh, target;
    return places;
end;
$$;

comment on function gc._missing_by_value(regclass, regclass, gc._reference, tid[]) is
    'The same for a foreign key that refers to other columns than the key.';


-- What is mentioned and neither there nor kept is nobody's concern, as when a row is inserted,
-- unless it went a short time ago, or the reference is strict: then the insert is refused.
create function gc._missing_mentioned(
    relation regclass, target regclass, f gc._reference, fresh tid[]
)
    returns tid[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set timezone_abbreviations = 'Default'
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    places tid[];
begin
    execute replace(format('select array(select distinct on (%1$s) p."gc place" '
        'from (%2$s) as m(key) '
        'join (%3$s where k.relation = $2 and k.until > clock_timestamp()) as p on %4$s '
        'where not exists (select from %5$s as t where %6$s) order by %1$s, p."gc id" desc)',
        gc._idents(f.targets, 'p.'),
        gc._mentioned_sql(f, format('(%s where k.ctid = any ($1))',
            gc._typed_rows_sql(relation, (f.mention).columns))),
        gc._typed_rows_sql(target, f.targets),
        gc._compare(f.operators[1], format('p.%I', f.targets[1]), 'm.key'), target,
        gc._compare(f.operators[1], format('t.%I', f.targets[1]), 'm.key')), chr(1), E'\n')
    into places using fresh, target;
    return places;
exception
    when data_exception then
        raise 'nobody knows what rows of % refer to by %', relation, f.reference
            using errcode = 'ZG010', detail = format('It cannot be computed: %s.', sqlerrm),
                hint = 'See gc.drop_reference.';
end;
$$;

comment on function gc._missing_mentioned(regclass, regclass, gc._reference, tid[]) is
    'The same for a reference that was declared.';


create function gc._needs(relation regclass, fresh tid[])
    returns table (other regclass, places tid[])
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    target regclass;
    f gc._reference;
begin
    for target in
        select distinct gc._root(k.confrelid) from pg_constraint as k
        where k.conrelid = relation and k.contype = 'f' and k.conparentid = 0
    loop
        for f in select r.* from gc._foreign_keys(target) as r where r.referencing = relation loop
            other := target;
            places := case when f.to_key then gc._missing_by_key(relation, target, f, fresh)
                else gc._missing_by_value(relation, target, f, fresh) end;
            return next;
        end loop;
    end loop;
    for other, places in
        select c.target, gc._missing_mentioned(relation, c.target, r, fresh)
        from gc.declared_references as d
        join gc.collections as c on c.name = d.collection
        cross join lateral gc._declared(c.target) as r
        where d.referencing = relation and r.reference = gc._declared_place(d)
    loop
        return next;
    end loop;
end;
$$;

comment on function gc._needs(regclass, tid[]) is
    'The kept rows that these refer to, where there is no row.';


create function gc._pile_revived(heaps gc._heap[], run bigint, name text, keys text[])
    returns gc._heap[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    revived text[] := gc._revive(c, keys);
    more record;
begin
    insert into gc.restoring (run, name, key, is_revived)
    select _pile_revived.run, c.name, k, true from unnest(revived) as k;
    for more in select * from gc._drained(c, revived) loop
        heaps := gc._pile(heaps, more.other, more.places);
    end loop;
    return heaps;
end;
$$;

comment on function gc._pile_revived(gc._heap[], bigint, text, text[]) is
    'Revives rows, and adds what reviews have taken from them to the heaps.';


create function gc._gather_wanted(run bigint)
    returns gc._heap[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    heaps gc._heap[] := array[]::gc._heap[];
    more record;
    c gc.collections;
begin
    for more in
        select r.name, gc._restorable(r.name) as relation, array_agg(distinct r.key) as keys
        from gc.restoring as r
        where r.run = _gather_wanted.run and not r.is_revived
        group by r.name
    loop
        select o.* into c from gc.collections as o
        where o.target = more.relation and o.restored <> '{}';
        if found then
            more.keys := array(select gc._canonical_key(c, k) from unnest(more.keys) as k);
            heaps := gc._pile_revived(heaps, run, c.name, more.keys);
        end if;
        heaps := gc._pile(heaps, more.relation, gc._wanted(more.name, more.relation, array(
            select unnest(more.keys)
            except
            select r.key from gc.restoring as r
            where r.run = _gather_wanted.run and r.name = c.name and r.is_revived
        )));
    end loop;
    return heaps;
end;
$$;

comment on function gc._gather_wanted(bigint) is
    'Locks the rows that were asked for, and revives those that are there.';


create function gc._gather(run bigint)
    returns gc._heap[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    begun timestamptz := clock_timestamp();
    heaps gc._heap[] := gc._gather_wanted(run);
    h gc._heap;
    more record;
    n integer;
begin
    loop
        n := (
            select u.n from unnest(heaps) with ordinality as u(relation, places, fresh, n)
            where u.fresh <> '{}' order by u.n limit 1
        );
        exit when n is null;
        h := heaps[n];
        heaps[n] := (h.relation, h.places, array[]::tid[])::gc._heap;
        for more in
            select * from gc._companions(h.relation, h.fresh)
            union all
            select * from gc._needs(h.relation, h.fresh)
        loop
            heaps := gc._pile(heaps, more.other, more.places);
        end loop;
        for more in select * from gc._marked_needs(h.relation, h.fresh) loop
            heaps := gc._pile_revived(heaps, run, more.name, more.keys);
        end loop;
    end loop;
    -- What went with a row is purged when the window is over, which may have been meanwhile.
    perform gc._require_in_time(r.collection, r.key, r.until)
    from unnest(heaps) as o
    join gc.trash_rows as r on r.ctid = any (o.places)
    where r.key is not null and r.until between begun and clock_timestamp();
    return heaps;
end;
$$;

comment on function gc._gather(bigint) is
    'Locks the rows that were asked for, those that went with them, and those they need.';


-- Parents first. Where tables refer to each other in a circle, the constraint has to be deferred.
create function gc._parents_first(heaps gc._heap[])
    returns gc._heap[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    sorted gc._heap[] := array[]::gc._heap[];
    next_one gc._heap;
begin
    while cardinality(sorted) < cardinality(heaps) loop
        select h.relation, h.places, h.fresh into next_one
        from unnest(heaps) with ordinality as h(relation, places, fresh, n)
        where h.relation not in (select s.relation from unnest(sorted) as s)
        order by (
            select count(*) from pg_constraint as k
            where gc._root(k.conrelid) = h.relation and k.contype = 'f'
                and gc._root(k.confrelid) <> h.relation
                and gc._root(k.confrelid) in (select o.relation from unnest(heaps) as o)
                and gc._root(k.confrelid) not in (select s.relation from unnest(sorted) as s)
        ) + (
            select count(*) from gc.declared_references as d
            join gc.collections as c on c.name = d.collection
            where d.referencing = h.relation and c.target <> h.relation
                and c.target in (select o.relation from unnest(heaps) as o)
                and c.target not in (select s.relation from unnest(sorted) as s)
        ), h.n
        limit 1;
        sorted := sorted || next_one;
    end loop;
    return sorted;
end;
$$;

comment on function gc._parents_first(gc._heap[]) is
    'The tables in the order in which rows can be inserted.';


create function gc._objects_of_trash(c gc.collections, places tid[])
    returns table (key text, url text, generation text)
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set timezone_abbreviations = 'Default'
as $$
-- @plpgsql_check_options: security_warnings = off, extra_warnings = off
begin
    return query execute format(
        'select o.* from (select %1$I."gc key", %2$s, nullif((%3$s)::text, %4$L) '
        'from (%5$s where k.ctid = any ($1)) as %1$I) as o(key, url, generation) '
        'where o.url is not null',
        gc._alias(c.target), format(case when c.several then 'unnest(%s)' else '(%s)::text' end,
            c.url), coalesce(c.generation, 'null'), '', gc._typed_rows_sql(c.target, null))
    using places;
end;
$$;

comment on function gc._objects_of_trash(gc.collections, tid[]) is
    'The objects of rows that are kept.';


create function gc._has_live_row(url text)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    name text;
    has_one boolean;
begin
    for name in select o.name from gc.collections as o where o.url is not null loop
        perform gc._require_own(name);
        execute format('select exists (select from gc.%I($1))', gc._object_name(name, '_rows_at'))
        into has_one using url;
        if has_one then
            return true;
        end if;
    end loop;
    return false;
end;
$$;

comment on function gc._has_live_row(text) is 'Whether a row has this object.';


create function gc._refuse_without_object(name text, key text, state text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    raise 'the object of row % of "%" is %', key, name, state
        using errcode = 'ZG010',
            detail = 'A row does not come back without its object.',
            hint = 'Write the object again, and insert the row then: see gc.begin_upload.';
end;
$$;

comment on function gc._refuse_without_object(text, text, text) is
    'Raises ZG010 for a row whose object is gone or is going.';


-- A tombstone that nobody has claimed is a proof that the object is there still; so is a row.
-- Nobody knows what a worker has done whose lease ran out without a word, or whose delete failed.
-- That can be only where a row is kept for the longer window of another collection: inside its own,
-- its object is not handed out, and an earlier row's tombstone tells nothing of what came since.
create function gc._require_objects(c gc.collections, places tid[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    keys text[];
    urls text[];
    generations text[];
    ids bigint[];
    is_longer boolean := exists (
        select from gc.trash_rows as r where r.ctid = any (places) and r.collection <> c.name
    );
begin
    -- Rows that a trigger could not work out have no tombstone before this.
    perform gc._read_rows(c.name, 1000000);
    select array_agg(o.key), array_agg(o.url), array_agg(o.generation)
    into keys, urls, generations
    from gc._objects_of_trash(c, places) as o;
    ids := gc._tombstones_at(urls, generations);
    perform gc._refuse_without_object(c.name, o.key,
        case when t.id is null then 'gone' else 'being deleted' end)
    from unnest(keys, urls) as o(key, url)
    left join (
        select d.* from gc.tombstones as d where d.id = any (ids)
    ) as t on t.url = o.url
    where t.worker is not null and t.due_at > clock_timestamp()
        or is_longer and t.finalizers is null and (t.worker is not null or t.failures > 0)
        or t.id is null and not gc._has_live_row(o.url);
    if gc._strict_uploads() then
        insert into gc.holds (collection, key, url, reason, held_until)
        select c.name, o.key, o.url, 'restore', clock_timestamp() + interval '1 hour'
        from unnest(keys, urls) as o(key, url);
    end if;
end;
$$;

comment on function gc._require_objects(gc.collections, tid[]) is
    'Raises ZG010 for kept rows whose object is gone or is going.';


-- The insert was admitted: from there on no claim gets the object. But one may have had it between
-- the look and the insert, and whoever has announced to write it again need not have done so.
create function gc._require_objects_still(c gc.collections, places tid[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    keys text[];
    urls text[];
    generations text[];
begin
    select array_agg(o.key), array_agg(o.url), array_agg(o.generation)
    into keys, urls, generations
    from gc._objects_of_trash(c, places) as o;
    perform gc._refuse_without_object(c.name, o.key, 'gone')
    from unnest(keys, urls, generations) as o(key, url, generation)
    join gc._deleted_meanwhile(urls, generations) as d on d.url = o.url
        and coalesce(d.generation = o.generation, true);
end;
$$;

comment on function gc._require_objects_still(gc.collections, tid[]) is
    'Raises ZG010 for rows that were inserted again if their object was handed out since the '
    'transaction began.';


create function gc._columns_now(relation regclass, present text[])
    returns name[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    lost text := (
        select p from unnest(present) as p
        where p not in (
            select a.attname from pg_attribute as a
            where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
        )
        limit 1
    );
begin
    if lost is not null then
        raise 'the column "%" of % is gone', lost, relation
            using errcode = 'ZG010',
                detail = 'Rows that are to be restored have a value in it.',
                hint = format('alter table %s add column %I …; restore, and drop it then.',
                    relation, lost);
    end if;
    return array(
        select a.attname from pg_attribute as a
        where a.attrelid = relation and a.attname = any (present) and a.attgenerated = ''
        order by a.attnum
    );
end;
$$;

comment on function gc._columns_now(regclass, text[]) is
    'The columns into which kept values go; raises ZG010 for one that is gone.';


-- Why a row cannot be inserted, in words that are about it. Foreign keys are the caller's.
create function gc._refuse_insert(
    relation regclass, state text, message text, detail text, columned text
)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if state <> 'ZG001' then
        perform gc._raise_if_passing(state, message);
    end if;
    raise '%', case state
            when 'ZG001' then format('the object of a row of %s is being deleted', relation)
            when '23505' then format('another row of %s is in the way', relation)
            when '23502' then format('the column "%s" of %s must have a value now', columned,
                relation)
            else format('rows of %s cannot be restored: %s', relation, message)
        end
        using errcode = 'ZG010', detail = coalesce(nullif(detail, ''), message),
            hint = case state
                when 'ZG001' then 'Write it again, and insert the row then: see gc.begin_upload.'
                when '23505' then 'Delete or rename that one, and restore again.'
                when '23502' then format('alter table %s alter column %I set default …;', relation,
                    columned)
                else 'Mend that, and restore again.'
            end;
end;
$$;

comment on function gc._refuse_insert(regclass, text, text, text, text) is
    'Raises ZG010 and says why, or an error again that may not come another time.';


create function gc._values_again(relation regclass, columns name[])
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(coalesce(
        (
            select format('case when r."gc reviewed" = %L then %s else r.%I end', c.name,
                gc._restored_value(c, u.name), u.name)
            from gc.collections as c
            where c.target = relation and c.restored ? u.name
        ), format('r.%I', u.name)), ', ' order by u.n)
    from unnest(columns) with ordinality as u(name, n)
$$;

comment on function gc._values_again(regclass, name[]) is
    'What the columns of a kept row r get: what they had, or what gc.track was told that rows get '
    'which were collected and are restored.';


create function gc._insert_again(relation regclass, columns name[], places tid[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    command text := format('insert into %s (%s) overriding system value '
        'select %s from (%s where k.ctid = any ($1)) as r order by r."gc id"', relation,
        gc._idents(columns), gc._values_again(relation, columns),
        gc._typed_rows_sql(relation, columns));
    inserted bigint;
    message text;
    detail text;
    columned text;
begin
    perform set_config('search_path', gc._application_path(relation), true);
    execute command using places;
    get diagnostics inserted = row_count;
    if inserted < cardinality(places) then
        raise 'a trigger or a rule kept % rows from being inserted', cardinality(places) - inserted;
    end if;
exception
    when foreign_key_violation then
        raise;
    when others then
        get stacked diagnostics message = message_text, detail = pg_exception_detail,
            columned = column_name;
        perform gc._refuse_insert(relation, sqlstate, message, detail, columned);
end;
$$;

comment on function gc._insert_again(regclass, name[], tid[]) is
    'Inserts kept rows into their table, as far as these columns are concerned.';


create function gc._require_trusted_to_restore(heaps gc._heap[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections;
begin
    for c in
        select o.* from gc.collections as o
        where o.name in (
            select r.collection from unnest(heaps) as h
            cross join lateral unnest(h.places) as p(place)
            join gc.trash_rows as r on r.ctid = p.place
        )
        order by o.name
    loop
        perform gc._lock_touched(c);
        perform gc._require_trusted(c);
    end loop;
end;
$$;

comment on function gc._require_trusted_to_restore(gc._heap[]) is
    'Raises if anything that inserting these rows can make run belongs to a role that is not '
    'trusted.';


-- A row without an object was logged when it went.
create function gc._forget_deletions(places tid[])
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    with forgotten as (
        delete from gc.deletion_log as l
        using gc.trash_rows as r, gc.collections as c
        where r.ctid = any (places) and c.target = r.relation and l.key = r.key
            and l.collection = c.name and l.url is null and l.row_deleted_at = r.deleted_at
        returning l.*
    )
    insert into gc.kept_rows (collection, key, causes, why)
    select f.collection, f.key, f.causes, 'it was restored'
    from forgotten as f
    where f.causes is not null
$$;

comment on function gc._forget_deletions(tid[]) is
    'Takes rows that came back out of the log; those that had a cause are noted as kept.';


create function gc._put_back(heaps gc._heap[])
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    h gc._heap;
    alike record;
begin
    perform gc._require_trusted_to_restore(heaps);
    perform gc._complete(heaps, false);
    perform gc._require_objects(c, o.places)
    from unnest(heaps) as o
    join gc.collections as c on c.target = o.relation and c.url is not null;
    foreach h in array gc._parents_first(heaps) loop
        for alike in
            select array_agg(k.place) as places, k.names
            from (
                select r.ctid, array(select jsonb_object_keys(r.content) order by 1)
                from gc.trash_rows as r where r.ctid = any (h.places)
            ) as k(place, names)
            group by k.names
        loop
            perform gc._insert_again(h.relation, gc._columns_now(h.relation, alike.names),
                alike.places);
        end loop;
    end loop;
    perform gc._complete(heaps, true);
    perform gc._require_objects_still(c, o.places)
    from unnest(heaps) as o
    join gc.collections as c on c.target = o.relation and c.url is not null;
    -- Those of this transaction: nobody ever commits one.
    delete from gc.holds as o where o.reason = 'restore';
    foreach h in array heaps loop
        perform gc._forget_deletions(h.places);
        delete from gc.trash_rows as r where r.ctid = any (h.places);
    end loop;
    return (select coalesce(sum(cardinality(o.places)), 0) from unnest(heaps) as o);
end;
$$;

comment on function gc._put_back(gc._heap[]) is
    'Inserts kept rows, parents first, and forgets that they went.';


create function gc._restore_step(run bigint, name text, key text)
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    this_run bigint := coalesce(run, nextval('gc.trash_rows_id_seq'));
begin
    insert into gc.restoring (run, name, key) values (this_run, name, key);
    return this_run;
end;
$$;

comment on function gc._restore_step(bigint, text, text) is
    'Notes what is to be restored.';


-- A row that these refer to may be collected while they are inserted: then it is kept, too, and is
-- found the next time.
create function gc._restore(run bigint)
    returns bigint
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '2s'
as $$
declare
    restored bigint := 0;
begin
    perform gc._require_owner();
    perform gc._require_read_committed('restore');
    perform gc._limit_lock_waits('1 minute');
    perform gc._lock('restore');
    perform gc._limit_lock_waits();
    for attempt in 1 .. 3 loop
        begin
            restored := gc._put_back(gc._gather(run));
            exit;
        exception
            when foreign_key_violation then
                if attempt = 3 then
                    raise 'a row that others refer to is gone: %', sqlerrm
                        using errcode = 'ZG010', hint = 'Restore that one, or insert it.';
                end if;
        end;
    end loop;
    restored := restored + (
        select count(*) from gc.restoring as r where r.run = _restore.run and r.is_revived
    );
    delete from gc.restoring as r where r.run = _restore.run;
    return restored;
end;
$$;

comment on function gc._restore(bigint) is 'Restores what was noted; returns how many rows.';


create aggregate gc.restore(name text, key text) (
    sfunc = gc._restore_step,
    stype = bigint,
    finalfunc = gc._restore
);
revoke all on function gc.restore(text, text) from public;

comment on aggregate gc.restore(text, text) is
    'Puts a row back that was deleted, with what it owned and with the dead rows that it needs, or '
    'raises ZG010 and changes nothing. Of many rows, all or none: select gc.restore(collection, '
    'key) from gc.trash where …. Returns how many rows came back.';
