-- Preparing: a function that each review of a collection calls first, to find out by rules of its
-- own which rows are garbage now, and to say so where the collection's condition reads it.
--
-- It runs in the review's transaction, so what it says is never older than that. If it fails, or
-- answers false because another session is at it, nothing of the collection is reviewed this time.
-- Before, it is asked with a batch of 0 whether there is anything to do for it.

create function gc._preparation(c gc.collections, function text)
    returns regprocedure
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    found_one pg_proc;
begin
    select p.* into found_one from pg_proc as p
    where p.oid = to_regprocedure(function || '(integer, timestamptz)');
    if not found or found_one.prorettype <> 'boolean'::regtype or found_one.proretset then
        raise 'there is no function %(integer, timestamptz) that returns boolean', function
            using errcode = 'undefined_function',
                detail = format('Each review of "%s" is to call it first.', c.name),
                hint = format('Create it, or: select gc.prepare(%L, null);', c.name);
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

comment on function gc._preparation(gc.collections, text) is
    'The function that a review of this collection calls first; raises if that cannot be.';


create function gc._is_prepared(c gc.collections, batch integer, until timestamptz)
    returns boolean
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
-- @plpgsql_check_options: security_warnings = off
declare
    answer boolean := batch > 0;
begin
    if c.prepare is not null then
        execute format('select %s($1, $2)', gc._preparation(c, c.prepare)::regproc)
        into answer using batch, until;
    end if;
    return coalesce(answer, false);
end;
$$;

comment on function gc._is_prepared(gc.collections, integer, timestamptz) is
    'Calls what prepares a review of this collection, if anything does. False: not now; or, for a '
    'batch of 0, that it has nothing to do.';


create function gc.prepare(name text, function regproc)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections := gc._collection(name);
    called text := (
        select format('%I.%I', n.nspname, p.proname)
        from pg_proc as p
        join pg_namespace as n on n.oid = p.pronamespace
        where p.oid = function
    );
begin
    perform gc._require_owner();
    if called is not null then
        perform gc._preparation(c, called);
    end if;
    update gc.collections as o set prepare = called where o.name = c.name;
end;
$$;
revoke all on function gc.prepare(text, regproc) from public;

comment on function gc.prepare(text, regproc) is
    'Has each review of a collection call a function first: of the batch (integer) and of the time '
    'until which it may work (timestamptz), which it returns before. False: this collection is not '
    'reviewed now. If it fails, it is not either, and gc.status says why. For a batch of 0 it '
    'changes nothing, and says whether it has anything to do where nothing is due. Null: no '
    'function.';
