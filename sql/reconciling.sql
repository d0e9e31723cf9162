-- Reconciling: a listing of a store, compared with rows, both ways.
--
-- An object is an orphan if no live row, tombstone, hold or upload has it, and if it is older than
-- a grace by the store's own clock. When in doubt it is none: where a row without an object is
-- spelled nearly as the object is, where no collection could have it, where rows that went could
-- not be worked out, where a marker says that it may be another database's. Comparing changes
-- nothing. Adopting makes tombstones of orphans, which then go the way of all others: an undo
-- window, the brake, and a claim that looks for rows again. The key of such a tombstone is its url:
-- it never had a row that anybody knows of.

create unlogged table gc.discrepancies (
    listing bigint not null,
    kind text not null
        constraint discrepancies_kind_known check (kind in (
            'orphan', 'young', 'doubtful', 'elsewhere', 'foreign', 'missing', 'recent', 'size')),
    collection text,
    key text,
    url text not null,
    size bigint,
    listed_size bigint,
    written_at timestamptz,
    generation text
)
with (autovacuum_enabled = off);

comment on table gc.discrepancies is 'Where a listing and the rows do not agree: see gc.compare.';
comment on column gc.discrepancies.listing is 'The listing.';
comment on column gc.discrepancies.kind is
    'Objects without a row: orphan; young: it may still get one; doubtful: a row is spelled nearly '
    'so; elsewhere: no collection has such urls; foreign: under a marker that is not ours. Rows: '
    'missing: without their object; recent: younger than the listing; size: the object has another '
    'size.';
comment on column gc.discrepancies.collection is 'The row''s collection, or that which adopts.';
comment on column gc.discrepancies.key is 'The row''s primary key, as text.';
comment on column gc.discrepancies.url is 'The address.';
comment on column gc.discrepancies.size is 'The size that the row says.';
comment on column gc.discrepancies.listed_size is 'The size that the store says.';
comment on column gc.discrepancies.written_at is 'When the object was last written.';
comment on column gc.discrepancies.generation is 'Which upload of it was listed.';


create function gc._objects_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_objects', $template$
create or replace function gc.{function}()
    returns table (key text, url text, size bigint, inserted_by xid)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set enable_seqscan = on
    {settings}
$template$, $template$
    select {key_text}, {url}, {object_size}, {alias}.xmin
    from {target} as {alias}{each}
    where {url} is not null$template$)
    where c.url is not null
$$;

comment on function gc._objects_sql(gc._shape) is
    'The function gc.<name>_objects: the objects that live rows have.';


create function gc._percent_decoded(url text)
    returns text
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select convert_from(string_agg(case
                when p.m[1] is not null then decode(p.m[1], 'hex')
                else convert_to(p.m[2], 'UTF8')
            end, '' order by p.n), 'UTF8')
        from regexp_matches(url, '%([0-9a-fA-F]{2})|([^%]+|%)', 'g') with ordinality as p(m, n)
    );
exception
    when data_exception or character_not_in_repertoire then
        return url;
end;
$$;

comment on function gc._percent_decoded(text) is
    'An address in which %2F and the like stand for what they mean; as it was, if that is no text.';


-- Coarse on purpose: two addresses that fold to one text may be one object in some store, or to
-- whoever wrote the row. Percent signs are resolved twice, because some write %252F.
create function gc._folded(url text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select translate(lower(case
            when octet_length(u.plain) = length(u.plain) or getdatabaseencoding() <> 'UTF8'
                then u.plain
            else regexp_replace(normalize(u.plain, nfkd), '[^[:alnum:]]', '', 'g')
        end), E'/\\.:;,+-_ ~!?#%&=*@^|"\'`()[]{}<>$', '')
    from (
        select case
            when position('%' in url) = 0 then url
            else gc._percent_decoded(gc._percent_decoded(url))
        end
    ) as u(plain)
$$;

comment on function gc._folded(text) is
    'An address without all in which two spellings of one object might differ.';


create function gc._all_objects_sql()
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(string_agg(format('select %L::text, o.* from gc.%I() as o', c.name,
            gc._object_name(c.name, '_objects')), ' union all ' order by c.name),
        'select null::text, null::text, null::text, null::bigint, null::xid where false')
    from gc.collections as c
    where c.url is not null
$$;

comment on function gc._all_objects_sql() is
    'A query of the objects that live rows of all collections have.';


-- Whose an object without a row could be: of several collections, the one whose addresses begin
-- with most of it.
create function gc._could_have(url text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.name from gc.collections as c
    where c.url is not null and coalesce(starts_with(_could_have.url, c.url_prefix), true)
    order by length(c.url_prefix) desc nulls last, c.name
    limit 1
$$;

comment on function gc._could_have(text) is
    'The collection that could have a row with this url; null: none.';


-- A row does not tell the epoch of its transaction: one of billions of transactions ago would look
-- like one that is still to come. Our own, and parts of it, come after the snapshot.
create function gc._is_since(written_by xid, since xid8)
    returns boolean
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    select (written_by::text::bigint - s.first) & 4294967295
        < pg_snapshot_xmax(pg_current_snapshot())::text::bigint - s.first + 1000000
    from (select since::text::bigint) as s(first)
$$;

comment on function gc._is_since(xid, xid8) is
    'Whether the transaction that wrote a row is that one, or came later.';


-- What begins with .blobgc is our own: the marker of a prefix, quarantines, probes.
create function gc._compare_rows(l gc.listings, oldest_orphan timestamptz)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = on
as $$
-- @plpgsql_check_options: security_warnings = off
begin
    execute format($statement$
        insert into gc.discrepancies (
            listing, kind, collection, key, url, size, listed_size, written_at, generation
        )
        select $1, case
                when o.url is null and w.collection is null then 'elsewhere'
                when o.url is null then case when o.written_at <= $3 then 'orphan' else 'young' end
                when o.listed is null and $4 and gc._is_since(o.inserted_by, $5) then 'recent'
                when o.listed is null then 'missing'
                else 'size'
            end, coalesce(o.collection, w.collection), o.key, coalesce(o.url, o.listed), o.size,
            o.listed_size, o.written_at, o.generation
        from (
            select r.*, s.url, s.size, s.written_at, s.generation
            from (%s) as r(collection, key, url, size, inserted_by)
            full join (select i.* from gc.listed_objects as i where i.listing = $1) as s
                on s.url = r.url
            where r.url is null and position('/.blobgc' in s.url) = 0
                or s.url is null and starts_with(r.url, $2)
                or r.size <> s.size
        ) as o(
            collection, key, url, size, inserted_by, listed, listed_size, written_at, generation
        )
        left join lateral (
            select gc._could_have(o.listed) where o.url is null
        ) as w(collection) on true
        $statement$, gc._all_objects_sql())
    using l.id, l.prefix, oldest_orphan, l.source = 'store', l.oldest_running;
end;
$$;

comment on function gc._compare_rows(gc.listings, timestamptz) is
    'Writes down where a listing and live rows differ.';


-- On their way out, about to be written, or gone since they were listed.
create function gc._drop_known(l gc.listings)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = on
as $$
begin
    delete from gc.discrepancies as d
    using gc.tombstones as t
    where d.listing = l.id and d.key is null and t.url = d.url;
    delete from gc.discrepancies as d
    using gc.holds as h
    where d.listing = l.id and d.key is null and h.url = d.url
        and h.held_until > clock_timestamp();
    delete from gc.discrepancies as d
    using gc.deletion_log as g
    where d.listing = l.id and d.key is null and g.url = d.url
        and g.deleted_at > least(l.begun_at, l.store_time) - interval '1 hour';
end;
$$;

comment on function gc._drop_known(gc.listings) is
    'Takes away objects without a row that have a tombstone or a hold, or are gone by now.';


-- If a live object were listed under another spelling than its row's, that row would be one without
-- an object, or one that is somewhere else: with these, and with no others, orphans are compared.
create function gc._doubt_spellings(l gc.listings)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = on
as $$
-- @plpgsql_check_options: security_warnings = off
begin
    update gc.discrepancies as d
    set kind = 'doubtful'
    where d.listing = l.id and d.kind = 'orphan'
        and (substr(d.url, length(l.prefix) + 1) ~ E'(^|/)\\.{0,2}(/|$)|\\\\|[[:cntrl:]]'
            or exists (select from gc.unread_rows as u where u.collection = d.collection)
            or exists (
                select from gc.holds as h
                where h.collection = d.collection and h.url is null and h.reason = 'upload'
                    and h.held_until > clock_timestamp()
            ));
    if not exists (
        select from gc.discrepancies as d where d.listing = l.id and d.kind = 'orphan'
    ) then
        return;
    end if;
    execute format($statement$
        update gc.discrepancies as d
        set kind = 'doubtful'
        where d.listing = $1 and d.kind = 'orphan' and gc._folded(d.url) in (
            select gc._folded(m.url) from gc.discrepancies as m
            where m.listing = $1 and m.kind in ('missing', 'recent')
            union all
            select gc._folded(o.url) from (%s) as o(collection, key, url, size, inserted_by)
            where not starts_with(o.url, $2)
        )$statement$, gc._all_objects_sql())
    using l.id, l.prefix;
end;
$$;

comment on function gc._doubt_spellings(gc.listings) is
    'Makes objects doubtful that may be the object of a row after all.';


-- A database whose prefix contains that of another one is not stopped by the other's marker, but
-- finds it here.
create function gc._leave_foreign(l gc.listings)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = on
as $$
    with foreign_folders as materialized (
        select left(o.url, -length('.blobgc')) as prefix from gc.listed_objects as o
        where o.listing = l.id and right(o.url, 8) = '/.blobgc' and o.url <> l.prefix || '.blobgc'
            and not exists (
                select from gc.markers as m
                where m.prefix || '.blobgc' = o.url and m.token is not null
            )
    )
    update gc.discrepancies as d
    set kind = 'foreign'
    where d.listing = l.id and d.key is null and exists (
        select from foreign_folders as f where starts_with(d.url, f.prefix)
    )
$$;

comment on function gc._leave_foreign(gc.listings) is
    'Tells objects without a row that are under a marker of another database.';


create function gc.compare(listing bigint)
    returns void
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set work_mem = '64MB'
as $$
declare
    l gc.listings := gc._listing(listing);
begin
    perform gc._require_read_committed('compare');
    if l.completed_at is null then
        raise 'the listing is not complete'
            using errcode = 'object_not_in_prerequisite_state',
                detail = 'What is missing in it would count as missing in the store.',
                hint = format('blobgc reconcile --store %s', l.prefix);
    end if;
    perform gc._require_own(c.name) from gc.collections as c where c.url is not null;
    delete from gc.discrepancies as d where d.listing = l.id;
    perform gc._compare_rows(l, l.store_time - (select s.orphan_grace from gc.settings as s));
    perform gc._drop_known(l);
    perform gc._doubt_spellings(l);
    perform gc._leave_foreign(l);
    delete from gc.discrepancies as d where d.listing = l.id and d.kind = 'recent';
    update gc.listings as o set compared_at = clock_timestamp() where o.id = l.id;
end;
$$;
revoke all on function gc.compare(bigint) from public;

comment on function gc.compare(bigint) is
    'Compares a complete listing with the rows of all collections, and writes what differs into '
    'gc.discrepancies. Changes nothing else.';


-- A listing takes its time: what was written meanwhile is there when one looks.
create function gc.absolve(listing bigint, urls text[], sizes bigint[])
    returns bigint
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = on
as $$
declare
    dropped bigint;
begin
    delete from gc.discrepancies as d
    using unnest(urls, sizes) as f(url, size)
    where d.listing = absolve.listing and d.kind in ('missing', 'size') and d.url = f.url
        and (d.size is null or d.size = f.size);
    get diagnostics dropped = row_count;
    update gc.discrepancies as d
    set kind = 'size', listed_size = f.size
    from unnest(urls, sizes) as f(url, size)
    where d.listing = absolve.listing and d.kind = 'missing' and d.url = f.url;
    return dropped;
end;
$$;
revoke all on function gc.absolve(bigint, text[], bigint[]) from public;

comment on function gc.absolve(bigint, text[], bigint[]) is
    'Says that objects were looked for and found, and how big they are: their rows are not without '
    'an object. Returns how many rows are in order.';


create function gc.differences(listing bigint, samples integer default 5)
    returns table (
        kind text, collection text, number bigint, bytes numeric, examples text[]
    )
    language sql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = on
as $$
    select d.kind, d.collection, count(*), coalesce(sum(coalesce(d.listed_size, d.size)), 0),
        (array_agg(d.url order by d.url) filter (where d.n <= samples))
    from (
        select o.*, row_number() over (partition by o.kind, o.collection) as n
        from gc.discrepancies as o
        where o.listing = differences.listing
    ) as d
    group by d.kind, d.collection
    order by array_position(
        array['missing', 'size', 'orphan', 'doubtful', 'foreign', 'elsewhere', 'young'], d.kind),
        d.collection
$$;
revoke all on function gc.differences(bigint, integer) from public;

comment on function gc.differences(bigint, integer) is
    'What gc.compare has found, by kind and collection: how many, how many bytes, and a few urls.';


create function gc.adopt_orphans(
    listing bigint, batch integer default 50000, quarantine boolean default false
)
    returns bigint
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = on
as $$
declare
    l gc.listings := gc._listing(listing);
    adopted bigint;
begin
    perform gc._require_batch(batch);
    if l.compared_at is null or l.compared_at < clock_timestamp() - interval '1 day' then
        raise 'the listing was not compared with rows within a day'
            using errcode = 'object_not_in_prerequisite_state',
                hint = format('blobgc reconcile --store %s --adopt', l.prefix);
    end if;
    with taken as (
        delete from gc.discrepancies as d
        where d.ctid = any (array(
            select o.ctid from gc.discrepancies as o
            where o.listing = l.id and o.kind = 'orphan'
            limit batch
        ))
        returning d.*
    )
    insert into gc.tombstones (
        collection, key, url, generation, size, event, due_at, finalizers
    )
    select c.name, t.url, t.url, t.generation, t.listed_size, 'reconcile',
        case when quarantine then now() else now() + gc._undo(c) end,
        nullif(case when quarantine then array['blobgc.quarantine'] else '{}' end || c.finalizers,
            '{}')
    from taken as t
    join gc.collections as c on c.name = t.collection;
    get diagnostics adopted = row_count;
    perform gc._note_operation('adopt', null, null, null,
        format('%s objects without a row under %s', adopted, l.prefix))
    where adopted > 0;
    return adopted;
end;
$$;
revoke all on function gc.adopt_orphans(bigint, integer, boolean) from public;

comment on function gc.adopt_orphans(bigint, integer, boolean) is
    'Makes tombstones of objects without a row that gc.compare has found; they are due when the '
    'undo window of their collection is over. With quarantine they are due at once, for the '
    'finalizer blobgc.quarantine, who moves them. Returns how many; 0: there are no more.';


create function gc.disown(prefix text)
    returns bigint
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    disowned bigint;
begin
    delete from gc.tombstones as t
    where t.id = any (array(
        select o.id from gc.tombstones as o
        where o.event = 'reconcile' and o.key = o.url and starts_with(o.url, prefix)
            and (o.worker is null or o.due_at < clock_timestamp())
        for update skip locked
    ));
    get diagnostics disowned = row_count;
    perform gc._note_operation('disown', null, null, null,
        format('%s objects without a row under %s', disowned, prefix))
    where disowned > 0;
    return disowned;
end;
$$;
revoke all on function gc.disown(text) from public;

comment on function gc.disown(text) is
    'Undoes gc.adopt_orphans for what is under a prefix and no worker has: the objects stay. '
    'Returns how many.';
