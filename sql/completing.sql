-- Completing: a function that gc.restore calls for the rows of a collection that come back, where
-- they need more than foreign keys say.
--
-- It is called twice, and gets their keys. Before anything is inserted it may lock what others lock
-- first; when all is inserted it adds what is missing. If it raises, nothing comes back.

create function gc._complete_rows(c gc.collections, places tid[], are_back boolean)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    keys text[] := array(
        select r.key from gc.trash_rows as r where r.ctid = any (places) order by r.id
    );
    message text;
    detail text;
begin
    execute format('select %s($1, $2)',
        gc._called(c, c.complete, 'text[], boolean', 'void')::regproc)
    using keys, are_back;
exception
    when foreign_key_violation or sqlstate 'ZG003' then
        raise;
    when others then
        get stacked diagnostics message = message_text, detail = pg_exception_detail;
        perform gc._refuse_insert(c.target, sqlstate, message, detail, null);
end;
$$;

comment on function gc._complete_rows(gc.collections, tid[], boolean) is
    'Calls what completes rows of this collection; raises ZG010 if that raises.';


create function gc._complete(heaps gc._heap[], are_back boolean)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._complete_rows(w.c, w.places, are_back)
    from (
        select c, h.places
        from unnest(heaps) as h
        join gc.collections as c on c.target = h.relation
        where c.complete is not null and h.places <> '{}'
        order by c.name
    ) as w;
end;
$$;

comment on function gc._complete(gc._heap[], boolean) is
    'Calls, before or after rows come back, what completes them.';


create function gc.complete(name text, function regproc)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    called text := gc._full_name(function);
begin
    perform gc._require_owner();
    perform gc._called(c, called, 'text[], boolean', 'void') where called is not null;
    update gc.collections as o set complete = called where o.name = c.name;
end;
$$;
revoke all on function gc.complete(text, regproc) from public;

comment on function gc.complete(text, regproc) is
    'Has gc.restore call a function for the rows of a collection that come back: of their keys '
    '(text[]) and of whether they are back (boolean). Before they are, it may lock what others '
    'lock first; when they are, it adds what they need and no foreign key says. If it raises, '
    'nothing comes back. Null: no function.';
