-- Holds: do not collect this row, and do not hand out its object, until then.
--
-- A hold is taken by somebody who is about to use a row (gc.keep_alive) or to write its object
-- (gc.begin_upload). Each call adds one, so two users of one key do not end each other's hold.
-- Order of locks: the row, or the slot of an upload, comes before the hold is written.

create table gc.holds (
    id bigint generated always as identity
        constraint holds_pkey primary key,
    collection text not null,
    key text not null,
    url text,
    reason text not null,
    upload text,
    held_until timestamptz not null,
    held_at timestamptz not null default clock_timestamp()
);
create index holds_key_idx on gc.holds using hash (key);
create index holds_url_idx on gc.holds using hash (url) where url is not null;
create index holds_held_until_idx on gc.holds (held_until);

comment on table gc.holds is 'Rows and objects that somebody is using or writing.';
comment on column gc.holds.id is 'The order in which holds were taken.';
comment on column gc.holds.collection is 'The collection of the row.';
comment on column gc.holds.key is 'The row''s primary key, as text; it need not exist yet.';
comment on column gc.holds.url is 'The object''s address, where it was told.';
comment on column gc.holds.reason is 'What holds it: keep_alive or upload.';
comment on column gc.holds.upload is
    'The upload''s name, where it has one: only that name ends it.';
comment on column gc.holds.held_until is 'When it ends by itself.';
comment on column gc.holds.held_at is 'When it began.';


-- More than a review looks at: every existence check leaves a hold. An upload that has timed out
-- stays a while, so that whoever ends it is refused instead of ending that of another. The oldest
-- go first: those at which whoever prepared the review has looked, as a registry does.
create function gc._purge_holds(batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    delete from gc.holds as h
    where h.id = any (array(
        select o.id from gc.holds as o
        where o.held_until < now()
            and (o.reason <> 'upload'
                or o.held_until < now() - (select s.upload_timeout from gc.settings as s))
        order by o.held_until, o.id
        limit 10::bigint * batch
        for update skip locked
    ));
end;
$$;

comment on function gc._purge_holds(integer) is 'Drops holds that are over.';


create function gc._has_holds()
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (
        select from gc.holds as h where h.held_until > (select clock_timestamp())
    );
end;
$$;

comment on function gc._has_holds() is 'Whether anything is held at all.';


create function gc._is_held(collection text, key text, url text)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from gc.holds as h
        where h.collection = _is_held.collection and h.key = _is_held.key
            and h.held_until > clock_timestamp()
    ) or exists (
        select from gc.holds as h
        where h.url = _is_held.url and h.held_until > clock_timestamp()
    )
$$;

comment on function gc._is_held(text, text, text) is
    'Whether somebody uses the row or is writing its object.';


create function gc._key_text_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_key_text', $template$
create or replace function gc.{function}(key text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    {settings}
$template$, $template$
    select case when {typed} is not null then ({typed})::text end$template$,
        jsonb_build_object(
            'typed', case
                when cardinality(k.names) = 1 then format('$1::%s', k.types[1])
                else format('$1::gc.%I', gc._object_name(c.name, '_key'))
            end))
    from (select (c.key).*) as k
$$;

comment on function gc._key_text_sql(gc._shape) is
    'The function gc.<name>_key_text: a key as PostgreSQL prints it.';


-- Two spellings of a key, \x0A and \x0a, are one key: PostgreSQL reads it and prints it again.
create function gc._canonical_key(c gc.collections, key text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    canonical text;
begin
    perform gc._require_own(c.name);
    execute format('select gc.%I($1)', gc._object_name(c.name, '_key_text'))
    into canonical using key;
    if canonical is null then
        raise 'a key of "%" must not be null', c.name using errcode = 'null_value_not_allowed';
    end if;
    return canonical;
exception
    when data_exception or null_value_not_allowed then
        raise 'this is not a key of the collection "%"', c.name
            using errcode = 'invalid_text_representation',
                detail = format('%s: %s.', coalesce(key, 'null'), sqlerrm),
                hint = format('A key is (%s), written as PostgreSQL prints it.',
                    array_to_string((gc._key(c.target)).types, ', '));
end;
$$;

comment on function gc._canonical_key(gc.collections, text) is
    'The key as PostgreSQL prints it; raises if it cannot be read.';


create function gc._lock_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_lock', $template$
create or replace function gc.{function}(key text)
    returns text
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {settings}
$template$, $template$
begin
    return (
        select {key_text} from {target} as {alias} where ({row_keys}) {equals} ({typed})
        for key share
    );
end;$template$,
        jsonb_build_object(
            'equals', gc._row_equals(k),
            'row_keys', gc._idents(k.names, c.alias || '.'),
            'typed', gc._parsed_key_sql(c, '$1')))
    from (select (c.key).*) as k
$$;

comment on function gc._lock_sql(gc._shape) is
    'The function gc.<name>_lock: locks a row as a reference would, and tells its key.';


create function gc._keep_alive(name text, key text)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    canonical text := gc._canonical_key(c, key);
    alive text;
begin
    perform gc._require_read_committed('keep_alive');
    -- Locks the row against a review, which waits for nobody, or waits for one to end. Equal keys
    -- may be written differently (1 and 1.0): what is held is the row's own.
    execute format('select gc.%I($1)', gc._object_name(c.name, '_lock')) into alive using canonical;
    if alive is not null then
        insert into gc.holds (collection, key, reason, held_until)
        select c.name, alive, 'keep_alive', clock_timestamp() + s.keep_alive
        from gc.settings as s;
    end if;
    return alive is not null;
end;
$$;

comment on function gc._keep_alive(text, text) is 'What gc.keep_alive does.';


-- The right to announce an upload is that to call the collection's own function, which gc.track has
-- made: nobody can hold, or ask for, rows of a collection that is not theirs.
create function gc._own_function(name text, suffix text)
    returns regproc
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    own regproc := to_regproc(format('gc.%I', gc._object_name(coalesce(name, ''), suffix)));
begin
    if own is null or coalesce(name, '') = '' then
        raise 'there is no collection "%"', name
            using errcode = 'undefined_object',
                detail = 'Only gc.track makes one.',
                hint = 'select * from gc.track(''schema.table'');';
    elsif not has_function_privilege(own, 'execute') then
        raise '% may not announce uploads of "%"', current_user, name
            using errcode = 'insufficient_privilege',
                hint = format('select gc.grant_uploader(%L, array[%L]);', current_user, name);
    end if;
    return own;
end;
$$;

comment on function gc._own_function(text, text) is
    'The function that a collection has for its users; raises if the caller may not use it.';


create function gc.keep_alive(name text, key text)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    alive boolean;
begin
    execute format('select %s($1)', gc._own_function(name, '_keep_alive')) into alive using key;
    return alive;
end;
$$;
revoke all on function gc.keep_alive(text, text) from public;

comment on function gc.keep_alive(text, text) is
    'Whether the row exists; if so, it is not collected for a while (gc.settings.keep_alive).';
