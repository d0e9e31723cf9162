-- The first run: what a person needs to know who has just tracked a table that has rows.
--
-- How many there are, what a scan would find, when the first of them could go, and what to type.
-- It reads a few hundred rows, and locks nothing for longer than that. Whatever fails here is left
-- out: it never fails gc.track.

create type gc._first_look as (seen bigint, found bigint);

comment on type gc._first_look is 'How many rows were looked at, and how many of them are garbage.';


-- From about thirty blocks of the table; null is its beginning.
create function gc._places_to_look(c gc.collections)
    returns text[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set enable_seqscan = on
as $$
declare
    pages bigint := (
        select sum(pg_relation_size(p.part) / current_setting('block_size')::integer)
        from gc._partitions(c.target) as p(part)
    );
    keys text[];
begin
    execute format('select array(select %s from %s as t tablesample system ($1) '
        'order by random() limit 10)', (gc._outline(c)).words ->> 't_key_text', c.target)
    into keys using least(100.0, 3000.0 / greatest(pages, 1));
    return case when cardinality(keys) = 0 then array[null] else keys end;
end;
$$;

comment on function gc._places_to_look(gc.collections) is
    'Keys, spread over a table, after which to look at some rows.';


-- By the scan itself, which is undone. The table was just tracked, so its queue is nearly empty.
create function gc._first_look(c gc.collections, rows bigint)
    returns gc._first_look
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '100ms'
as $$
declare
    places text[] := array[null];
    until timestamptz := clock_timestamp() + interval '500 milliseconds';
    place text;
    seen bigint := 0;
    looked bigint;
    found_ones bigint;
begin
    perform gc._require_readable(c);
    if rows > 300 then
        places := gc._places_to_look(c);
    end if;
    foreach place in array places loop
        exit when clock_timestamp() > until;
        execute format('select s.seen from gc.%I($1, $2) as s', gc._object_name(c.name, '_scan'))
        into looked using 300 / cardinality(places), place;
        seen := seen + looked;
    end loop;
    found_ones := gc._queued(c.name, gc._event(c.events, c.name || '_scan'));
    raise 'that is all' using errcode = 'ZG999';
exception
    when sqlstate 'ZG999' then
        return (seen, found_ones)::gc._first_look;
    when others then
        return null;
end;
$$;

comment on function gc._first_look(gc.collections, bigint) is
    'Looks at a few hundred rows as a scan does; null: that was not possible.';


create function gc._thousands(number numeric)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select to_char(number, 'FM999,999,999,999,990') $$;

comment on function gc._thousands(numeric) is 'A number as people write it.';


create function gc._first_words(c gc.collections, rows bigint, looked gc._first_look)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('"%s" has about %s %s', c.name, gc._thousands(rows),
            case when rows = 1 then 'row' else 'rows' end)
        || case
            when looked.seen = 0 or looked is null then ''
            when looked.found = 0
                then format('; a scan would hardly find garbage (0 of %s rows)', looked.seen)
            else format('; a scan would find about %s that nothing keeps (%s of %s rows)',
                gc._thousands(round(rows * looked.found / looked.seen, case
                    when looked.seen >= rows then 0
                    else 1 - length((rows * looked.found / looked.seen)::text) end)),
                looked.found, looked.seen)
        end
$$;

comment on function gc._first_words(gc.collections, bigint, gc._first_look) is
    'What is said about a table that was just tracked.';


create function gc._when_first(c gc.collections)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('Nothing is deleted before a review, which comes %s after a scan has found a '
            'row', gc._how_long(coalesce(d.value, '1 day')))
        || case when c.url is null then '.'
            when gc._undo(c) = '0' then '; its object goes soon after its row.'
            else format('; its object goes %s after its row.', gc._how_long(gc._undo(c))) end
    from (select gc._event(c.events, c.name || '_scan')) as e(event)
    left join gc.review_after_defaults as d on d.event = e.event
$$;

comment on function gc._when_first(gc.collections) is
    'When the first row of a collection could go, as its delay and undo are now.';


-- A collection that is blocked has been warned of, and one whose condition is false has no garbage.
create function gc._tell_first_run(c gc.collections, suspects bigint)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
as $$
declare
    rows bigint;
begin
    if c.tracked_at < now() or c.collect = 'deleted' or c.condition = 'false'
        or not gc._has_keeper(c)
    then
        return;
    end if;
    rows := gc._rows_of(c.target);
    if rows > 0 then
        raise notice '%; suspects: %', gc._first_words(c, rows, gc._first_look(c, rows)),
            coalesce(suspects, 0)
            using detail = gc._when_first(c),
                hint = format('select gc.scan(%L, 1000); again and again until it is 0, and then: '
                    'blobgc preview --all', c.name);
    end if;
exception
    when others then
        null;
end;
$$;

comment on function gc._tell_first_run(gc.collections, bigint) is
    'Says what to do next to whoever has tracked a table with rows for the first time.';
