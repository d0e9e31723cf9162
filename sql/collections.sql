-- Collections: the tables whose rows can become garbage, as gc.track was told of them.
--
-- The fingerprint is all that the generated code of a collection was made from: its definition, and
-- what the catalog said. A review compares it with the catalog before it trusts the code.

create table gc.collections (
    name text not null
        constraint collections_pkey primary key
        constraint collections_name_length check (length(name) between 1 and 63),
    target regclass not null
        constraint collections_target_key unique,
    url text,
    size text,
    label text,
    generation text,
    condition text,
    collect text not null default 'garbage'
        constraint collections_collect_known check (collect in ('garbage', 'deleted')),
    owned text[] not null default '{}',
    keeping jsonb not null default '[]',
    events jsonb not null default '{}'
        constraint collections_events_object check (jsonb_typeof(events) = 'object'),
    undo interval
        constraint collections_undo_not_negative check (undo >= '0')
        constraint collections_undo_not_endless check (undo <= '10 years'),
    finalizers text[] not null default '{}',
    restored jsonb not null default '{}'
        constraint collections_restored_object check (jsonb_typeof(restored) = 'object'),
    prepare text,
    complete text,
    columns name[] not null default '{}',
    functions name[] not null default '{}',
    links name[] not null default '{}',
    several boolean not null default false,
    shared boolean not null default false,
    proof oid,
    url_prefix text,
    url_printed text,
    url_flaw text,
    fingerprint text,
    scanning boolean not null default false,
    scan_cursor text,
    scan_awaits text[],
    scan_error text,
    problem text,
    problem_since timestamptz,
    tracked_at timestamptz not null default now(),
    careful boolean not null default false
);

comment on table gc.collections is 'The tables whose rows can become garbage; see gc.track.';
comment on column gc.collections.name is 'The name by which functions know the collection.';
comment on column gc.collections.target is 'The table.';
comment on column gc.collections.url is
    'The object''s address, as an expression; null: rows without objects.';
comment on column gc.collections.size is 'The object''s size in bytes, as an expression.';
comment on column gc.collections.label is 'What a person calls the row, as an expression.';
comment on column gc.collections.generation is
    'Which version of the object is meant, as an expression: a generation or a version id.';
comment on column gc.collections.condition is
    'What must hold for a row to be garbage, as an expression; null: nothing more.';
comment on column gc.collections.collect is
    'What is collected: garbage, or only the objects of rows that the application has deleted.';
comment on column gc.collections.owned is
    'The references whose rows go with their target, in the order in which they go.';
comment on column gc.collections.keeping is
    'The references, and their copies on partitions, that kept rows when the code was made.';
comment on column gc.collections.events is 'The names of events that are not the usual ones.';
comment on column gc.collections.undo is
    'For how long a deleted row can be restored, and its object stays; null: as gc.settings says.';
comment on column gc.collections.finalizers is
    'What has to be finished about an object, in this order, before it can be deleted.';
comment on column gc.collections.restored is
    'By the names of columns, what a row gets that was collected and is restored, so that its '
    'condition does not hold any more.';
comment on column gc.collections.prepare is
    'The function that each review calls first; null: none. See gc.prepare.';
comment on column gc.collections.complete is
    'The function that gc.restore calls for rows that come back; null: none. See gc.complete.';
comment on column gc.collections.columns is
    'The columns that the key and the expressions read.';
comment on column gc.collections.functions is 'The functions that were generated for it.';
comment on column gc.collections.links is
    'The tables that tell in which partition to look first for a reference, and which keys went.';
comment on column gc.collections.several is
    'A row may have several objects: its url is an array.';
comment on column gc.collections.shared is
    'Rows may share an object: their url is not surely made of one key column alone.';
comment on column gc.collections.proof is
    'The CHECK constraint by which they cannot; null where none is needed, or there is none.';
comment on column gc.collections.url_prefix is
    'The text with which every url surely begins; null: nobody knows.';
comment on column gc.collections.url_printed is
    'The url as PostgreSQL prints it: what an index on it looks like.';
comment on column gc.collections.url_flaw is
    'Why there can be no index on the url; null: there can.';
comment on column gc.collections.fingerprint is 'What the generated code was made from.';
comment on column gc.collections.scanning is 'A scan that reviews carry on by themselves.';
comment on column gc.collections.scan_cursor is 'The key up to which a scan has come.';
comment on column gc.collections.scan_awaits is
    'The transactions that must have ended before such a scan begins; null: none.';
comment on column gc.collections.scan_error is
    'Why the last step of such a scan failed; null: it did not.';
comment on column gc.collections.problem is 'Why nothing of it is reviewed; null: all is well.';
comment on column gc.collections.problem_since is 'Since when nothing is reviewed.';
comment on column gc.collections.tracked_at is 'When gc.track was first called.';
comment on column gc.collections.careful is
    'Objects are looked at before they are deleted: see gc.set_careful.';


create function gc._collection(name text)
    returns gc.collections
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    found_one gc.collections;
begin
    select c.* into found_one from gc.collections as c where c.name = _collection.name;
    if not found then
        raise 'there is no collection "%"', name
            using errcode = 'undefined_object',
                detail = format('Collections: %s.', coalesce(
                    (select string_agg(c.name, ', ' order by c.name) from gc.collections as c),
                    'none yet')),
                hint = 'select * from gc.track(''schema.table'');';
    end if;
    return found_one;
end;
$$;

comment on function gc._collection(text) is 'The collection of this name; raises if there is none.';


-- Generated code belongs to the owner of blobgc and acts with that role's rights, so nobody else
-- can have it made.
create function gc._require_owner()
    returns void
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    owner name := (
        select pg_get_userbyid(n.nspowner) from pg_namespace as n where n.nspname = 'gc'
    );
begin
    if current_user <> owner then
        raise 'only the owner of blobgc can do that'
            using errcode = 'insufficient_privilege',
                detail = format('It belongs to %I, and this is %I.', owner, current_user),
                hint = format('set role %I;', owner);
    end if;
end;
$$;

comment on function gc._require_owner() is 'Raises for a role that does not own blobgc.';


-- Names of what is generated. A name that is too long keeps its head and gets a hash for a tail.
create function gc._object_name(collection text, suffix text)
    returns name
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when octet_length(collection || suffix) < 64 then collection || suffix
        when octet_length(suffix) >= 40 then 'gc_' || md5(collection || '/' || suffix)
        when octet_length(collection) = length(collection)
            then left(collection, 54 - octet_length(suffix))
                || '_' || substr(md5(collection), 1, 8) || suffix
        else 'gc_' || substr(md5(collection), 1, 16) || suffix
    end::name;
end;
$$;

comment on function gc._object_name(text, text) is
    'The name of something generated for a collection: the two parts, if they fit.';


-- Who changes a collection has its row before anything else of it, and before any table: a review
-- that makes its code again has the row, and waits for tables.
create function gc._lock_collection(name text)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform from gc.collections as c where c.name = _lock_collection.name for update;
end;
$$;

comment on function gc._lock_collection(text) is
    'Waits until nobody else changes a collection or makes its code, until the commit.';


create function gc._choose_name(target regclass, name text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    known text := (select c.name from gc.collections as c where c.target = _choose_name.target);
    chosen text := coalesce(
        name, known, (select c.relname from pg_class as c where c.oid = _choose_name.target));
    other regclass := (select c.target from gc.collections as c where c.name = chosen);
begin
    if chosen <> known then
        raise '"%" is the collection "%" already', target, known
            using errcode = 'duplicate_object',
                detail = 'A table is one collection.',
                hint = format('select gc.untrack(%L); and track it anew, or use that name.', known);
    end if;
    if other <> target then
        raise 'the name "%" is taken', chosen
            using errcode = 'duplicate_object',
                detail = format('It is the collection of %s.', other),
                hint = format('select * from gc.track(%L, name => %L);', target, chosen || '_2');
    end if;
    if chosen = '' or chosen like '\_%' or octet_length(chosen) > 63 then
        raise 'a collection cannot be called "%"', chosen
            using errcode = 'invalid_name',
                detail = 'A name has 1 to 63 bytes and does not begin with an underscore.',
                hint = format('select * from gc.track(%L, name => ''…'');', target);
    end if;
    return chosen;
end;
$$;

comment on function gc._choose_name(regclass, text) is
    'The name of a collection; raises if it is not free.';
