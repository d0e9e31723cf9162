-- Rendering: how generated code is written.
--
-- A template reads like the statement that it makes; {words} stand for what differs. What it makes
-- is ordinary SQL that \sf shows. Aliases: q an entry of the review queue, t a row of the
-- collection, r a row that refers to it, d a tombstone; the table's own name for expressions.
-- A function that takes more than one statement calls its variables this.…, because a column of
-- the user's tables may have any name.

-- One pass, so that a value is never searched for words. A word alone on its line takes the line's
-- indentation for all its lines, and takes the line away with it when it is empty.
create function gc._render(template text, words jsonb)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select ltrim(string_agg(
        case
            when m[2] is null then m[3]
            when m[1] is not null and words ->> m[2] = '' then ''
            else coalesce(m[1], '') || replace(words ->> m[2], E'\n', coalesce(m[1], E'\n'))
        end,
        '' order by n), E'\n')
    from regexp_matches(
        template, '(\n *)?\{(\w+)\}|([^{\n]+|\n|\{)', 'g'
    ) with ordinality as r(m, n)
$$;

comment on function gc._render(text, jsonb) is 'A template with its words filled in.';


create function gc._pair(
    left_names name[], left_alias text, right_names name[], right_alias text, operators text[]
)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        format(
            case
                when u.operator like '%\%1$s%' then u.operator
                else '%1$s ' || u.operator || ' %2$s'
            end,
            format('%s.%I', left_alias, u.l), format('%s.%I', right_alias, u.r)),
        ' and ' order by u.n)
    from unnest(left_names, right_names, operators) with ordinality as u(l, r, operator, n)
$$;

comment on function gc._pair(name[], text, name[], text, text[]) is
    'The condition that two rows agree in some columns.';


create function gc._not_null_sql(names name[], alias text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format('%s.%I is not null', alias, u.name), ' and ' order by u.n)
    from unnest(names) with ordinality as u(name, n)
$$;

comment on function gc._not_null_sql(name[], text) is
    'The condition that a row has all of these columns; null: there are none.';


-- With the hashes, so that the index on a queue or on links is used: see gc._index_columns.
create function gc._entry_pair(
    k gc._key_columns, left_alias text, right_names name[], right_alias text, operators text[]
)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select concat_ws(' and ',
        string_agg(format(u.hash, format('%s.%I', left_alias, u.l)) || ' = '
            || format(u.hash, format('%s.%I', right_alias, u.r)), ' and ' order by u.n)
            filter (where u.hash is not null),
        gc._pair(k.queue_names, left_alias, right_names, right_alias, operators))
    from unnest(k.queue_names, right_names, k.hashes) with ordinality as u(l, r, hash, n)
$$;

comment on function gc._entry_pair(gc._key_columns, text, name[], text, text[]) is
    'The condition that an entry of a queue, or a link, is for the key of another row.';


create function gc._text_of(names name[], alias text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when cardinality(names) = 1 then format('%s.%I::text', alias, names[1])
        else format('row(%s)::text', gc._idents(names, alias || '.'))
    end
$$;

comment on function gc._text_of(name[], text) is
    'The expression for a key as text: the value, or a row where there are several columns.';


create function gc._text_sql(expression text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select coalesce('(' || expression || ')::text', 'null::text') $$;

comment on function gc._text_sql(text) is 'An expression as text; null where there is none.';


-- A row of several columns is compared by the usual operator of each.
create function gc._row_equals(k gc._key_columns)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select case when cardinality(k.operators) = 1 then k.operators[1] else '=' end $$;

comment on function gc._row_equals(gc._key_columns) is 'The operator that compares two keys.';


-- What EST means is a setting as well. PostgreSQL reads a file each time it is set, which takes
-- longer than a small trigger does: so it is no entry point's, but stands where an expression is
-- read or may turn a text into a time.
create function gc._zone_settings()
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select 'set timezone_abbreviations = ''Default'''::text $$;

comment on function gc._zone_settings() is
    'The setting under which names of time zones mean the same.';


-- A plan is kept as long as the session lasts, and it may be made while a table is empty. Whatever
-- PostgreSQL is told to avoid looks so dear to it that it would also compile it.
create function gc._index_settings()
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select E'set enable_seqscan = off\nset jit = off' $$;

comment on function gc._index_settings() is
    'The settings under which a plan goes by indexes, however small the tables are.';
