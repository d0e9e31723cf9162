-- Where functions look for names: in pg_catalog, and pg_temp last, and nowhere else. Those with a
-- body without quotes have looked already, and have no settings, so that they can be inlined.

do $$
declare
    signature regprocedure;
begin
    for signature in
        select f.oid
        from pg_proc as f
        where f.pronamespace = quote_ident(current_schema())::regnamespace
            and f.prosqlbody is null
    loop
        execute format('alter function %s set search_path = pg_catalog, pg_temp', signature);
    end loop;
end;
$$;
