-- Preparing: a function that each review of a collection calls first, to find out by rules of its
-- own which rows are garbage now, and to say so where the collection's condition reads it.
--
-- It runs in the review's transaction, so what it says is never older than that. If it fails, or
-- answers false because another session is at it, nothing of the collection is reviewed this time.

-- Who is asked has the last word on what is deleted or comes back, with the owner's rights.
create function gc._called(c gc.collections, function text, arguments text, result regtype)
    returns regprocedure
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    found_one pg_proc;
begin
    select p.* into found_one from pg_proc as p
    where p.oid = to_regprocedure(format('%s(%s)', function, arguments));
    if not found or found_one.prorettype <> result or found_one.proretset then
        raise 'there is no function %(%) that returns %', function, arguments, result
            using errcode = 'undefined_function',
                detail = format('It is to be called for rows of "%s".', c.name),
                hint = 'Create it, or name none: see gc.prepare and gc.complete.';
    elsif found_one.proowner not in (select gc._trusted(c.target)) then
        raise '% belongs to %, who could run code with the rights of %',
            found_one.oid::regprocedure, pg_get_userbyid(found_one.proowner), current_user
            using errcode = 'ZG003',
                hint = format('alter function %s owner to %I;', found_one.oid::regprocedure,
                    current_user);
    end if;
    return found_one.oid;
end;
$$;

comment on function gc._called(gc.collections, text, text, regtype) is
    'A function that is called for rows of this collection, by its name, its arguments and what it '
    'returns; raises if there is none, or if its owner is not trusted.';


create function gc._full_name(function regproc)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('%I.%I', n.nspname, p.proname)
    from pg_proc as p
    join pg_namespace as n on n.oid = p.pronamespace
    where p.oid = function
$$;

comment on function gc._full_name(regproc) is 'Its name with its schema; null: there is none.';


create function gc._is_prepared(c gc.collections, batch integer, until timestamptz)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    answer boolean := true;
begin
    if c.prepare is not null then
        execute format('select %s($1, $2)', gc._called(c, c.prepare,
            'integer, timestamptz', 'boolean')::regproc)
        into answer using batch, until;
    end if;
    return coalesce(answer, false);
end;
$$;

comment on function gc._is_prepared(gc.collections, integer, timestamptz) is
    'Calls what prepares a review of this collection, if anything does. False: not now.';


create function gc.prepare(name text, function regproc)
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
    perform gc._called(c, called, 'integer, timestamptz', 'boolean') where called is not null;
    update gc.collections as o set prepare = called where o.name = c.name;
end;
$$;
revoke all on function gc.prepare(text, regproc) from public;

comment on function gc.prepare(text, regproc) is
    'Has each review of a collection call a function first: of the batch (integer) and of the time '
    'until which it may work (timestamptz), which it returns before. False: this collection is not '
    'reviewed now. If it fails, it is not either, and gc.status says why. Null: no function.';
