-- Listings: what a store has, as the store itself says.
--
-- Whoever lists copies it into gc.listed_objects (COPY), part by part, and notes in the same
-- transaction how far a part has come: so it can go on after a crash. A listing that is not
-- complete is never compared with rows. All of it is unlogged: a crash of the server empties these
-- tables together, and then the store has to be listed again.

create unlogged table gc.listings (
    id bigint generated always as identity
        constraint listings_pkey primary key,
    prefix text not null
        constraint listings_prefix_is_a_folder check (prefix ~ '^[a-z0-9]+://.*/$'),
    source text not null
        constraint listings_source_known check (source in ('store', 'inventory')),
    store_time timestamptz not null,
    begun_at timestamptz not null default clock_timestamp(),
    begun_by name not null default session_user,
    oldest_running xid8 not null default pg_snapshot_xmin(pg_current_snapshot()),
    completed_at timestamptz,
    compared_at timestamptz
);

comment on table gc.listings is 'What a store was found to have: see blobgc reconcile.';
comment on column gc.listings.id is 'The number by which functions know it.';
comment on column gc.listings.prefix is 'Where it was listed; it ends with a slash.';
comment on column gc.listings.source is
    'store: it was asked. inventory: a report that the store had made before.';
comment on column gc.listings.store_time is
    'When it began, or the report was made, by the store''s own clock.';
comment on column gc.listings.begun_at is 'When it began.';
comment on column gc.listings.begun_by is 'The role that had logged in.';
comment on column gc.listings.oldest_running is
    'Rows of older transactions were there when it began.';
comment on column gc.listings.completed_at is 'When all parts were there; null: some are missing.';
comment on column gc.listings.compared_at is 'When it was last compared with rows.';


create unlogged table gc.listing_parts (
    listing bigint not null,
    part integer not null,
    place text not null,
    deep boolean not null,
    cursor text,
    finished boolean not null default false,
    constraint listing_parts_pkey primary key (listing, part)
);

comment on table gc.listing_parts is 'The parts of listings, and how far each has come.';
comment on column gc.listing_parts.listing is 'The listing.';
comment on column gc.listing_parts.part is 'The number of the part.';
comment on column gc.listing_parts.place is 'What is listed: a folder, or a file of an inventory.';
comment on column gc.listing_parts.deep is 'With all folders below it.';
comment on column gc.listing_parts.cursor is
    'Where to go on; null: at the beginning, for nothing is there or the store cannot go on.';
comment on column gc.listing_parts.finished is 'It is there as a whole.';


-- No index: it is written and read as a whole.
create unlogged table gc.listed_objects (
    listing bigint not null,
    part integer not null,
    url text not null,
    size bigint,
    written_at timestamptz,
    generation text
)
with (autovacuum_enabled = off);

comment on table gc.listed_objects is 'The objects of listings.';
comment on column gc.listed_objects.listing is 'The listing.';
comment on column gc.listed_objects.part is 'The part of it.';
comment on column gc.listed_objects.url is 'The object''s address.';
comment on column gc.listed_objects.size is 'Its size in bytes.';
comment on column gc.listed_objects.written_at is
    'When it was last written, by the store''s own clock; null: nobody knows.';
comment on column gc.listed_objects.generation is
    'What tells this upload of it from others, where a delete can be made to depend on that.';


-- Of this prefix there is one at a time, and none is kept for longer than a week.
create function gc._drop_listings(prefix text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    dropped bigint[];
begin
    with gone as (
        delete from gc.listings as l
        where l.prefix = _drop_listings.prefix or l.begun_at < now() - interval '7 days'
        returning l.id
    )
    select array_agg(g.id) into dropped from gone as g;
    delete from gc.listing_parts as p where p.listing = any (dropped);
    if exists (select from gc.listings) then
        delete from gc.listed_objects as o where o.listing = any (dropped);
        delete from gc.discrepancies as d where d.listing = any (dropped);
    elsif dropped is not null then
        truncate gc.listed_objects, gc.discrepancies;
    end if;
end;
$$;

comment on function gc._drop_listings(text) is
    'Drops what was listed of a prefix before, and what is old.';


create function gc.begin_listing(
    prefix text, store_time timestamptz, source text default 'store'
)
    returns bigint
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    made bigint;
begin
    perform gc._lock('listing');
    perform gc._drop_listings(prefix);
    insert into gc.listings (prefix, store_time, source)
    values (begin_listing.prefix, begin_listing.store_time, begin_listing.source)
    returning id into made;
    return made;
end;
$$;
revoke all on function gc.begin_listing(text, timestamptz, text) from public;
insert into gc.locks values ('listing') on conflict do nothing;

comment on function gc.begin_listing(text, timestamptz, text) is
    'Begins a listing of what is under a prefix, and drops the one that there was. store_time is '
    'the store''s own clock; source is store or inventory. Returns the listing''s number.';


create function gc.unfinished_listing(prefix text)
    returns bigint
    language sql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
as $$
    select l.id from gc.listings as l
    where l.prefix = unfinished_listing.prefix and l.completed_at is null and l.source = 'store'
        and l.begun_at > now() - interval '1 day'
        and exists (select from gc.listing_parts as p where p.listing = l.id)
    order by l.id desc
    limit 1
$$;
revoke all on function gc.unfinished_listing(text) from public;

comment on function gc.unfinished_listing(text) is
    'The listing of a prefix that was begun within a day and is not complete; null: there is none.';


create function gc._listing(id bigint)
    returns gc.listings
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    l gc.listings;
begin
    select o.* into l from gc.listings as o where o.id = _listing.id;
    if not found then
        raise 'there is no listing %', id
            using errcode = 'undefined_object',
                detail = 'Another of the same prefix may have begun, or the server has crashed.',
                hint = 'blobgc reconcile --store …';
    end if;
    return l;
end;
$$;

comment on function gc._listing(bigint) is 'The listing of this number; raises if there is none.';


create function gc.add_parts(listing bigint, places text[], deep boolean[])
    returns void
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    l gc.listings := gc._listing(listing);
begin
    insert into gc.listing_parts (listing, part, place, deep)
    select l.id, u.n, u.place, u.deep
    from unnest(places, add_parts.deep) with ordinality as u(place, deep, n);
end;
$$;
revoke all on function gc.add_parts(bigint, text[], boolean[]) from public;

comment on function gc.add_parts(bigint, text[], boolean[]) is
    'Says of which parts a listing consists: folders, with all below them or not, or files.';


-- What is there of a part that cannot go on is dropped; one that has begun at a cursor stays.
create function gc.open_parts(listing bigint)
    returns table (part integer, place text, deep boolean, cursor text)
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    l gc.listings := gc._listing(listing);
    restarted integer[] := array(
        select p.part from gc.listing_parts as p
        where p.listing = l.id and not p.finished and p.cursor is null
    );
begin
    delete from gc.listed_objects as o where o.listing = l.id and o.part = any (restarted);
    return query
        select p.part, p.place, p.deep, p.cursor from gc.listing_parts as p
        where p.listing = l.id and not p.finished
        order by p.part;
end;
$$;
revoke all on function gc.open_parts(bigint) from public;

comment on function gc.open_parts(bigint) is
    'The parts of a listing that are not finished, and where to go on with each.';


create function gc.note_part(
    listing bigint, part integer, cursor text, finished boolean
)
    returns void
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    update gc.listing_parts as p
    set cursor = note_part.cursor, finished = note_part.finished
    where p.listing = note_part.listing and p.part = note_part.part and not p.finished;
    if not found then
        raise 'this is no part of a listing that is under way'
            using errcode = 'object_not_in_prerequisite_state',
                detail = format('Listing %s, part %s. Another of the same prefix may have begun.',
                    listing, part),
                hint = 'blobgc reconcile --store …';
    end if;
end;
$$;
revoke all on function gc.note_part(bigint, integer, text, boolean) from public;

comment on function gc.note_part(bigint, integer, text, boolean) is
    'Notes how far a part of a listing has come, in the transaction that has copied it.';


create function gc.end_listing(listing bigint)
    returns bigint
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    l gc.listings := gc._listing(listing);
    missing text := (
        select format('%s of %s', count(*) filter (where not p.finished), count(*))
        from gc.listing_parts as p
        where p.listing = l.id
        having count(*) = 0 or not bool_and(p.finished)
    );
begin
    if missing is not null then
        raise 'the listing is not complete'
            using errcode = 'object_not_in_prerequisite_state',
                detail = format('Of its parts, %s are missing.', missing),
                hint = format('blobgc reconcile --store %s', l.prefix);
    end if;
    update gc.listings as o set completed_at = clock_timestamp() where o.id = l.id;
    analyze gc.listed_objects;
    return (select count(*) from gc.listed_objects as o where o.listing = l.id);
end;
$$;
revoke all on function gc.end_listing(bigint) from public;

comment on function gc.end_listing(bigint) is
    'Says that a listing is complete; raises if a part of it is not. Returns how many objects it '
    'has.';
