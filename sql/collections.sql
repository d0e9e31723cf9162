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
    owned text[] not null default '{}',
    keeping jsonb not null default '[]',
    events jsonb not null default '{}'
        constraint collections_events_object check (jsonb_typeof(events) = 'object'),
    undo interval not null default '0'
        constraint collections_undo_not_negative check (undo >= '0')
        constraint collections_undo_not_endless check (undo <= '10 years'),
    columns name[] not null default '{}',
    functions name[] not null default '{}',
    links name[] not null default '{}',
    shared boolean not null default false,
    proof oid,
    url_prefix text,
    url_printed text,
    url_flaw text,
    fingerprint text,
    scanning boolean not null default false,
    scan_cursor text,
    scan_error text,
    problem text,
    problem_since timestamptz,
    tracked_at timestamptz not null default now()
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
comment on column gc.collections.owned is
    'The references whose rows go with their target, in the order in which they go.';
comment on column gc.collections.keeping is
    'The foreign keys, and their copies on partitions, that kept rows when the code was made.';
comment on column gc.collections.events is 'The names of events that are not the usual ones.';
comment on column gc.collections.undo is 'How long a tombstone waits before it can be claimed.';
comment on column gc.collections.columns is
    'The columns that the key and the expressions read.';
comment on column gc.collections.functions is 'The functions that were generated for it.';
comment on column gc.collections.links is
    'The tables that tell in which partition to look first for a reference.';
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
comment on column gc.collections.scan_error is
    'Why the last step of such a scan failed; null: it did not.';
comment on column gc.collections.problem is 'Why nothing of it is reviewed; null: all is well.';
comment on column gc.collections.problem_since is 'Since when nothing is reviewed.';
comment on column gc.collections.tracked_at is 'When gc.track was first called.';


-- One row.
create table gc.turns (
    first_name text not null
);
insert into gc.turns values ('');

comment on table gc.turns is 'With which collection the next review begins.';
comment on column gc.turns.first_name is 'The first that the last review had no time for.';


-- Append-only, for a trigger writes it: a TRUNCATE that nobody could follow row by row.
create table gc.scan_requests (
    collection text not null,
    requested_at timestamptz not null default now(),
    reason text not null
);

comment on table gc.scan_requests is
    'Collections whose events were missed: the next reviews go over all their rows.';
comment on column gc.scan_requests.collection is 'The collection.';
comment on column gc.scan_requests.requested_at is 'Since when.';
comment on column gc.scan_requests.reason is 'What made it necessary.';


create table gc.unused_tables (
    name name not null
        constraint unused_tables_pkey primary key,
    since timestamptz not null default now()
);

comment on table gc.unused_tables is
    'Queues and links that no collection has any more; see gc.drop_unused_triggers.';
comment on column gc.unused_tables.name is 'The table, in the schema gc.';
comment on column gc.unused_tables.since is 'Since when.';


create function gc._note_missed(collection text, relation text)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    insert into gc.scan_requests (collection, reason)
    values (_note_missed.collection, format('%s, or what refers to it, has changed', relation))
$$;

comment on function gc._note_missed(text, text) is
    'Asks for a scan: a statement could not be followed because a table has changed.';


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


-- One event's name: the usual one, unless gc.track was given another for it.
create function gc._event(events jsonb, usual text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$ select coalesce(events ->> usual, usual) $$;

comment on function gc._event(jsonb, text) is
    'What a collection calls the event that is usually called so.';


create function gc._table_event(relation regclass, operation text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.relname || '_' || operation from pg_class as c where c.oid = relation
$$;

comment on function gc._table_event(regclass, text) is
    'The usual name of an event on a table that refers to a collection.';


-- Names of what is generated. A name that is too long keeps its head and gets a hash for a tail.
create function gc._object_name(collection text, suffix text)
    returns name
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when octet_length(collection || suffix) < 64 then collection || suffix
        when octet_length(suffix) >= 40 then 'gc_' || md5(collection || '/' || suffix)
        when octet_length(collection) = length(collection)
            then left(collection, 54 - octet_length(suffix))
                || '_' || substr(md5(collection), 1, 8) || suffix
        else 'gc_' || substr(md5(collection), 1, 16) || suffix
    end::name
$$;

comment on function gc._object_name(text, text) is
    'The name of something generated for a collection: the two parts, if they fit.';


-- All the ways to write a reference in "owned": the table, with or without schema and columns.
create function gc._spellings(referencing regclass, columns name[])
    returns text[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select array_agg(t.spelling || c.spelling)
    from pg_class as r
    join pg_namespace as n on n.oid = r.relnamespace
    cross join lateral (values
        (r.relname::text), (quote_ident(r.relname)),
        (n.nspname || '.' || r.relname), (format('%I.%I', n.nspname, r.relname))
    ) as t(spelling)
    cross join (values
        (''), ('(' || array_to_string(columns, ',') || ')'),
        ('(' || replace(gc._idents(columns), ', ', ',') || ')')
    ) as c(spelling)
    where r.oid = referencing
$$;

comment on function gc._spellings(regclass, name[]) is
    'The texts that name a reference in the argument "owned" of gc.track.';


create function gc._references(c gc.collections)
    returns setof gc._reference
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select f.referencing, f.columns, f.targets, f.operators, f.on_delete, f.to_key, f.reference,
        o.owned,
        o.owned is null and f.to_key
            and coalesce(not (gc._partition_key(f.referencing)).columns <@ f.columns, false),
        f.itself
    from gc._foreign_keys(c.target) as f
    cross join lateral (select array_position(c.owned, f.reference)) as o(owned)
$$;

comment on function gc._references(gc.collections) is
    'The references into a collection, with their place in "owned", and whether links help.';
