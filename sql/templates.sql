-- Templates: the code that is generated for a collection.
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


-- Templates indent what they are given line by line; a line break in a name must stay what it is.
create function gc._inline(value text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select replace(value, E'\n', chr(1)) $$;

comment on function gc._inline(text) is
    'A text whose line breaks are not a template''s: gc._run puts them back.';


create function gc._listed(names name[], prefix text default '')
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select gc._inline(gc._idents(names, prefix)) $$;

comment on function gc._listed(name[], text) is 'Names as a list for a template.';


create function gc._pair(
    left_names name[], left_alias text, right_names name[], right_alias text, operators text[]
)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        gc._inline(format(
            case
                when u.operator like '%\%1$s%' then u.operator
                else '%1$s ' || u.operator || ' %2$s'
            end,
            format('%s.%I', left_alias, u.l), format('%s.%I', right_alias, u.r))),
        ' and ' order by u.n)
    from unnest(left_names, right_names, operators) with ordinality as u(l, r, operator, n)
$$;

comment on function gc._pair(name[], text, name[], text, text[]) is
    'The condition that two rows agree in some columns.';


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
        string_agg(gc._inline(format(u.hash, format('%s.%I', left_alias, u.l)) || ' = '
            || format(u.hash, format('%s.%I', right_alias, u.r))), ' and ' order by u.n)
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
        when cardinality(names) = 1 then gc._inline(format('%s.%I::text', alias, names[1]))
        else format('row(%s)::text', gc._listed(names, alias || '.'))
    end
$$;

comment on function gc._text_of(name[], text) is
    'The expression for a key as text: the value, or a row where there are several columns.';


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


-- A cast of a literal was done when it was written down.
create function gc._may_read_times(c gc._shape)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from unnest(array[c.url, c.size, c.label, c.generation]) as e(written)
        where regexp_replace(e.written, $re$'([^']|'')*'(::[a-z ]+)?$re$
            || $re$|::(text|character varying|smallint|integer|bigint|numeric)\M$re$
            || $re$|::(boolean|uuid|bytea)\M$re$, '', 'g') ~ '::|to_timestamp'
    )
$$;

comment on function gc._may_read_times(gc._shape) is
    'Whether an expression about an object may read a time from a text.';


-- How values are printed must not depend on who happens to delete a row.
create function gc._print_settings(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select concat_ws(E'\n', case when not c.is_plain then gc._pinned_sql()
            else string_agg(distinct s.line, E'\n' order by s.line) end,
        case when gc._may_read_times(c) then gc._zone_settings() end)
    from pg_attribute as a
    join pg_type as t on t.oid = a.atttypid
    join (values
        ('bytea', 'set bytea_output = ''hex'''),
        ('D', 'set datestyle = ''ISO'''), ('D', 'set timezone = ''UTC'''),
        ('T', 'set intervalstyle = ''postgres'''),
        ('float', 'set extra_float_digits = 1')
    ) as s(kind, line)
        on s.kind in (t.typname, t.typcategory::text)
            or (s.kind = 'float' and t.typname in ('float4', 'float8'))
            or t.typcategory not in ('B', 'D', 'E', 'I', 'N', 'S', 'T', 'U')
    where a.attrelid = c.target and a.attname = any (c.columns)
$$;

comment on function gc._print_settings(gc._shape) is
    'The settings under which the columns that are used print in one way only.';


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


create function gc._not_itself(c gc._shape, r gc._reference, alias text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when r.itself then
            format(' and not (%s)', gc._pair(k.names, 'r', k.queue_names, alias, k.operators))
        else ''
    end
    from (select (c.key).*) as k
$$;

comment on function gc._not_itself(gc._shape, gc._reference, text) is
    'The condition that a referring row is not the target itself; empty where it cannot be.';


create function gc._key_pair(r gc._reference)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._pair(
        r.columns, 'r', array(select gc._queue_column(u) from unnest(r.targets) as u), 'q',
        r.operators)
$$;

comment on function gc._key_pair(gc._reference) is
    'The condition that a row r of a reference to the key points at the queue entry q.';


-- A condition on the queue entry q: a row of this reference points at its key. A row of the
-- collection that refers to itself does not keep itself.
create function gc._refers_sql(c gc._shape, r gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        case
            when r.to_key
                then 'exists (select from {referencing} as r where {r_is_q}{not_itself})'
            else 'exists (select from {target} as t join {referencing} as r on {t_is_r} '
                'where {t_is_q}{not_itself})'
        end,
        jsonb_build_object(
            'target', gc._inline(c.target::text), 'referencing', gc._inline(r.referencing::text),
            'r_is_q', gc._key_pair(r),
            't_is_r', gc._pair(r.targets, 't', r.columns, 'r', r.operators),
            't_is_q', gc._pair(k.names, 't', k.queue_names, 'q', k.operators),
            'not_itself', gc._not_itself(c, r, 'q')))
    from (select (c.key).*) as k
$$;

comment on function gc._refers_sql(gc._shape, gc._reference) is
    'The condition that a row of this reference points at the key of the queue entry q.';


create function gc._excused_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._inline(format(
        'exists (select from %s as %s where %s and (%s) is not true)',
        c.target, c.alias,
        gc._pair(k.names, c.alias, k.queue_names, 'q', k.operators),
        c.condition))
    from (select (c.key).*) as k
    where c.condition is not null
$$;

comment on function gc._excused_sql(gc._shape) is
    'The condition that the target of the queue entry q does not meet the collection''s condition.';


create function gc._referred_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(gc._refers_sql(c, r), E'\nor ')
    from unnest(c.refs) as r
    where r.owned is null
$$;

comment on function gc._referred_sql(gc._shape) is
    'The condition that any reference keeps the key of the queue entry q; null: there is none.';


-- Why a row is no garbage, in full: asked after the lock. Before it, links may answer for some of
-- it: see gc._plainly_kept_sql.
create function gc._kept_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(
        nullif(concat_ws(E'\nor ', gc._referred_sql(c), gc._excused_sql(c)), ''), 'false')
$$;

comment on function gc._kept_sql(gc._shape) is
    'The condition that something keeps the key of the queue entry q.';


create function gc._text_sql(expression text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select coalesce(gc._inline('(' || expression || ')::text'), 'null::text') $$;

comment on function gc._text_sql(text) is 'An expression as text; null where there is none.';


-- A store tells A from a, whatever the collation of a column says.
create function gc._collated_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.url || concat(c.generation) ~* '\mcollate\M' or exists (
        select from pg_attribute as a
        join pg_collation as o on o.oid = a.attcollation and o.collname <> 'default'
        where a.attrelid = c.target and a.attname = any (c.columns)
    ) then ' collate pg_catalog."default"' else '' end
$$;

comment on function gc._collated_sql(gc._shape) is
    'What makes a url be compared byte for byte; empty where it is anyway.';


-- A number that is no size, over a pebibyte or not a number at all, must not fail a statement, nor
-- a sum.
create function gc._size_sql(c gc._shape)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select format(
        'case when (%1$s)::numeric between 0 and 1125899906842624 then (%1$s)::bigint end', c.size)
    where c.size is not null
$$;

comment on function gc._size_sql(gc._shape) is 'The expression for an object''s size.';


-- No two rows have one url because no two rows have one key, and perhaps because of a CHECK. A plan
-- ends when one of the constraints goes.
create function gc._proved_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format('gc._has_check(%s)', k.oid), ' and ' order by k.oid)
    from pg_constraint as k
    where k.conrelid = c.target and (k.contype = 'p' or k.oid = c.proof)
$$;

comment on function gc._proved_sql(gc._shape) is
    'The condition that what makes a url a row''s own is still there.';


create function gc._words(c gc._shape)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object(
        'name', gc._inline(quote_literal(c.name)),
        'target', gc._inline(c.target::text),
        'table', gc._inline(quote_literal(c.target)),
        'alias', gc._inline(c.alias),
        'queue', gc._inline(format('gc.%I', gc._object_name(c.name, '_review_queue'))),
        'keys', gc._listed(k.names),
        't_keys', gc._listed(k.names, 't.'),
        'queue_keys', gc._listed(k.queue_names),
        'q_keys', gc._listed(k.queue_names, 'q.'),
        't_is_q', gc._pair(k.names, 't', k.queue_names, 'q', k.operators),
        'later_is_q', gc._entry_pair(c.key, 'later', k.queue_names, 'q', k.operators),
        'key_text', gc._text_of(k.names, c.alias),
        'q_key_text', gc._text_of(k.queue_names, 'q'),
        't_key_text', gc._text_of(k.names, 't'),
        'url', gc._text_sql(c.url) || u.collated, 'label', gc._text_sql(c.label),
        -- The first finds it by an index, the second compares.
        'same_url', concat_ws(' and ', gc._text_sql(c.url) || ' = d.url',
            case when u.collated <> '' then gc._text_sql(c.url) || u.collated || ' = d.url' end),
        'size', coalesce(gc._inline(gc._size_sql(c)), 'null::bigint'),
        'generation', coalesce(
            gc._inline('nullif((' || c.generation || ')::text, '''')') || u.collated,
            'null::text'),
        'computed', (
            select string_agg(gc._inline(format('count(%s)', e)), ', ')
            from unnest(array[c.url, c.generation, c.label, gc._size_sql(c)]) as e
            where e is not null
        ),
        'due_at', case when c.undo = '0' then 'now()'
            else format('now() + interval %L', c.undo) end,
        'wait_for', case
            when c.shared then 'null::xid8'
            else format('case when %s then ''0''::xid8 end', gc._proved_sql(c))
        end,
        'settings', gc._print_settings(c),
        'by_index', gc._index_settings()
            || E'\nset enable_hashjoin = off\nset enable_mergejoin = off'
    )
    from (select (c.key).*) as k
    cross join lateral coalesce(gc._collated_sql(c), '') as u(collated)
$$;

comment on function gc._words(gc._shape) is 'What stands for the words in templates.';


create function gc._event_words(event text)
    returns jsonb
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object('event', gc._inline(quote_literal(event)))
$$;

comment on function gc._event_words(text) is 'What stands for an event.';


-- The body is quoted like any other text: a name in it may contain what it likes.
create function gc._function_sql(header text, body text, words jsonb)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(header, words)
        || E'\nas ' || quote_literal(E'\n' || gc._render(body, words) || E'\n')
$$;

comment on function gc._function_sql(text, text, jsonb) is
    'The statement that creates a function.';


create type gc._trigger as (
    relation regclass, suffix text, timing text, tables text, columns name[],
    target_columns name[], looks_up boolean, body text, otherwise text
);

comment on type gc._trigger is
    'A trigger that a collection needs: what it does, and what it does where the tables are not '
    'what they were.';


create function gc._has_columns_sql(relation regclass, columns name[])
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._inline(format(
        'gc._has_columns(%L, %L)', relation, gc._typed(relation, columns)))
$$;

comment on function gc._has_columns_sql(regclass, name[]) is
    'The condition that a table still has the columns that it has now.';


-- Whether a table is what it was is part of the plan of a statement that reads it, and is found out
-- anew only when the table changes: so the target is read as well, though never a row of it.
create function gc._guard_words(c gc._shape, t gc._trigger)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when t.target_columns is null then jsonb_build_object(
            'target_gone', '', 'target_too', '',
            'has_columns', gc._has_columns_sql(t.relation, t.columns))
        else jsonb_build_object(
            'target_gone', gc._render($template$
if to_regclass({table}) is null then
    perform gc._note_missed({name}, {table});
    return null;
end if;$template$, c.words),
            'target_too', gc._inline(format(' left join %s as t on false', c.target)),
            'has_columns', gc._has_columns_sql(t.relation, t.columns) || E'\n        and '
                || gc._has_columns_sql(c.target, t.target_columns))
    end
$$;

comment on function gc._guard_words(gc._shape, gc._trigger) is
    'What stands for the question whether a trigger still fits the tables it was made for.';


-- The frame of a trigger function. Its rights are the owner's: the application needs none on gc.
-- What was dropped or renamed a moment ago must not fail the application's statement.
create function gc._trigger_sql(c gc._shape, function_name name, t gc._trigger)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}()
    returns trigger
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    {settings}
$template$, $template$
#variable_conflict use_column
declare
    is_current boolean;
begin
    {target_gone}
    -- Null: there is no row. False: this is no longer what the function was made for.
    select {has_columns}
    into is_current
    from {rows}{target_too}
    limit 1;
    if is_current then
        {body}
    elsif not is_current then
        perform gc._note_missed({name}, {relation});
        {otherwise}
    end if;
    return null;
end;$template$,
        c.words || gc._guard_words(c, t) || jsonb_build_object(
            'function', gc._inline(quote_ident(function_name)),
            'relation', gc._inline(quote_literal(t.relation)),
            'rows', case when t.tables like '%new_rows' then 'new_rows' else 'old_rows' end,
            -- Settings cost, so only what needs them has them.
            'settings', concat_ws(E'\n',
                case when t.relation = c.target then nullif(gc._print_settings(c), '') end,
                case when t.looks_up then gc._index_settings() end),
            'otherwise', coalesce(t.otherwise, ''),
            'body', t.body))
$$;

comment on function gc._trigger_sql(gc._shape, name, gc._trigger) is
    'The function of a trigger that follows a statement.';


-- TRUNCATE has no transition tables to look at. It fires for each partition by itself, but one that
-- has come since the code was made has no trigger yet.
create function gc._truncate_trigger_sql(c gc._shape, function_name name, t gc._trigger)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql($template$
create or replace function gc.{function}()
    returns trigger
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set quote_all_identifiers = off
    {settings}
$template$, $template$
declare
    is_current boolean := gc._has_columns(tg_relid::regclass::text, {columns});
begin
    {before}
    if is_current then
        {body}
    else
        {otherwise}
    end if;
    return null;
end;$template$,
        c.words || jsonb_build_object(
            'function', gc._inline(quote_ident(function_name)),
            'columns', gc._inline(quote_literal(gc._typed(t.relation, t.columns))),
            'before', case when t.otherwise is null then '' else gc._render(
                E'perform gc._require_followable({name});\n'
                'perform gc._keep_untracked({name}, tg_relid, tg_name);', c.words) end,
            'otherwise', coalesce(t.otherwise, t.body),
            'body', t.body))
$$;

comment on function gc._truncate_trigger_sql(gc._shape, name, gc._trigger) is
    'The function of a trigger that comes before a TRUNCATE.';


-- An object that is on its way out stays because of a new row, or the row has to wait. One look-up
-- tells that there is none, as nearly always.
create function gc._admit_sql(c gc._shape, only_changed boolean)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
if gc._strict_uploads() then
    perform gc._require_uploads({name}, array_agg(o.key), array_agg(o.url))
    from (
        select {key_text}, {url} from new_rows as {alias}
        {except_key}
    ) as o(key, url)
    where o.url is not null;
end if;
if current_setting('transaction_isolation') <> 'read committed'
    or exists (select from gc.deleted_objects as d where d.deleted_at > now())
    or exists (
        select from (select {url} from new_rows as {alias}) as o(url)
        where (select true from gc.tombstones as d where d.url = o.url limit 1)
    )
then
    perform gc._admit({name}, array_agg(o.url), array_agg(o.generation))
    from (
        select {url}, {generation} from new_rows as {alias}
        {except_url}
    ) as o(url, generation)
    where o.url is not null;
end if;$template$,
        c.words || jsonb_build_object(
            'except_key', case when only_changed then gc._render(
                'except select {key_text}, {url} from old_rows as {alias}', c.words) else '' end,
            'except_url', case when only_changed then gc._render(
                'except select {url}, {generation} from old_rows as {alias}', c.words) else '' end))
$$;

comment on function gc._admit_sql(gc._shape, boolean) is
    'What a row with an object has to pass.';


-- TRUNCATE fires for each partition by itself, and has no transition table. Which one is meant is
-- filled in when the statement is executed, by format: so no other text may look like its signs.
create function gc._source_words(words jsonb, source text)
    returns jsonb
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_object_agg(w.key, case when source is null then replace(w.value, '%', '%%')
            else w.value end) || jsonb_build_object('source', coalesce(source, 'only %1$s'))
    from jsonb_each_text(words) as w
$$;

comment on function gc._source_words(jsonb, text) is
    'Words, and where the rows are; null: in the table that is about to be truncated.';


create function gc._kept_whole_sql(c gc._shape, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        'insert into gc.unread_rows (collection, content, relation, columns) '
        'select {name}, to_jsonb(o), {id}, (select gc._column_numbers({id})) from {source} as o',
        gc._source_words(c.words, source) || jsonb_build_object(
            'id', case when source is null then '%1$L::regclass' else 'tg_relid' end))
$$;

comment on function gc._kept_whole_sql(gc._shape, text) is
    'The statement that keeps rows whole until a review can work them out.';


create function gc._admit_changed_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        'perform gc._admit_changed({name}, array(select to_jsonb(n) from new_rows as n));', c.words)
$$;

comment on function gc._admit_changed_sql(gc._shape) is
    'What rows have to pass whose object cannot be told.';


-- An expression that may raise is computed once before anything is written. The block writes
-- nothing, so it costs no transaction id.
create function gc._computing_sql(c gc._shape, computes text, body text, otherwise text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.is_plain then body else gc._render($template$
begin
    {computes}
exception
    when others then
        perform gc._raise_if_passing(sqlstate, sqlerrm);
        is_current := false;
end;
if is_current then
    {body}
else
    {otherwise}
end if;$template$,
        jsonb_build_object('computes', computes, 'body', body, 'otherwise', otherwise)) end
$$;

comment on function gc._computing_sql(gc._shape, text, text, text) is
    'A part of a trigger that is done only if what it needs can be computed, or else the other.';


create function gc._after_insert_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into {queue} ({queue_keys}, event, review_after)
select {keys}, {event}, gc.review_after({event})
from new_rows;
{admit}$template$,
        c.words || gc._event_words(gc._event(c.events, c.name || '_insert')) || jsonb_build_object(
            'admit', case when c.url is null then '' else gc._computing_sql(c, gc._render(
                    'perform count({url}), count({generation}) from new_rows as {alias};', c.words),
                gc._admit_sql(c, false), gc._admit_changed_sql(c)) end))
$$;

comment on function gc._after_insert_sql(gc._shape) is
    'What follows an insert into a collection: every row is reviewed once.';


-- EXCEPT compares whole rows; a type without an equality is compared by what it prints.
create function gc._watched_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        format(
            case
                when exists (
                    select from pg_opclass as o
                    join pg_am as m on m.oid = o.opcmethod and m.amname in ('btree', 'hash')
                    where o.opcdefault and o.opcintype in (a.atttypid, t.typbasetype)
                ) or t.typcategory in ('E', 'S', 'N')
                    then '%s'
                else '%s::text'
            end, gc._inline(quote_ident(a.attname))),
        ', ' order by a.attname = any (k.names) desc, array_position(k.names, a.attname), a.attnum)
    from (select (c.key).*) as k
    join pg_attribute as a on a.attrelid = c.target
    join pg_type as t on t.oid = a.atttypid
    where a.attname = any (k.names) or (c.condition is not null and a.attname = any (c.columns))
$$;

comment on function gc._watched_sql(gc._shape) is
    'The columns whose change makes a row of the collection worth a review: key and condition.';


create function gc._after_url_change_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into gc.tombstones (
    collection, key, label, url, generation, size, due_at, wait_for
)
select {name}, o.key, o.label, o.url, o.generation, o.size, {due_at}, {wait_for}
from (
    select n.*, bool_or(n.is_new) over (partition by n.url, n.generation)
    from (
        select false, {key_text}, {label}, {url}, {generation}, {size}
        from old_rows as {alias}
        union all
        select true, null, null, {url}, {generation}, null
        from new_rows as {alias}
    ) as n(is_new, key, label, url, generation, size)
) as o(is_new, key, label, url, generation, size, is_named)
where o.url is not null and not o.is_named;
{admit}$template$,
        c.words || jsonb_build_object('admit', gc._admit_sql(c, true)))
$$;

comment on function gc._after_url_change_sql(gc._shape) is
    'An object that no row names any more gets a tombstone; one that is named anew is admitted.';


create function gc._after_update_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into {queue} ({queue_keys}, event, review_after)
select {keys}, {event}, gc.review_after({event})
from (select {watched} from new_rows except select {watched} from old_rows) as changed;
{objects}$template$,
        c.words || gc._event_words(gc._event(c.events, c.name || '_update')) || jsonb_build_object(
            'watched', gc._watched_sql(c),
            'objects', case when c.url is null then '' else gc._computing_sql(c, gc._render(
                    'perform {computed} from (table old_rows union all table new_rows) as {alias};',
                    c.words),
                gc._after_url_change_sql(c),
                gc._kept_whole_sql(c, 'old_rows') || E';\n' || gc._admit_changed_sql(c)) end))
$$;

comment on function gc._after_update_sql(gc._shape) is
    'What follows an update of a collection''s own rows: a new key, or another condition.';


create function gc._buried_sql(c gc._shape, source text, event text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into gc.tombstones (
    collection, key, label, url, generation, size, event, due_at, wait_for
)
select {name}, {key_text}, {label}, {url}, {generation}, {size},
    {event},
    {due_at}, {wait_for}
from {source} as {alias}
where {url} is not null$template$,
        gc._source_words(c.words || jsonb_build_object('event', event), source))
$$;

comment on function gc._buried_sql(gc._shape, text, text) is
    'The statement that writes tombstones for rows.';


-- A review tells why it deletes a row; who else deletes one does not. Anybody can make a setting,
-- but only a review writes to gc.reviewing.
create function gc._after_delete_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._computing_sql(c, gc._render('perform {computed} from old_rows as {alias};', c.words),
        gc._buried_sql(c, 'old_rows', gc._render($event$case
    when current_setting('blobgc.reviewing', true) = {name} then (
        select r.event from gc.reviewing as r
        where r.xid = pg_current_xact_id_if_assigned() and r.collection = {name}
    )
end$event$, c.words)) || ';', gc._kept_whole_sql(c, 'old_rows') || ';')
$$;

comment on function gc._after_delete_sql(gc._shape) is
    'What follows a delete from a collection, whoever deletes: a tombstone for each object.';


create function gc._truncated_sql(statement text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select 'execute format(' || quote_literal(statement) || ', tg_relid::regclass);' $$;

comment on function gc._truncated_sql(text) is
    'What executes a statement for the table that is about to be truncated.';


create function gc._before_truncate_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._computing_sql(c,
        gc._truncated_sql(gc._render('select {computed} from {source} as {alias}',
            gc._source_words(c.words, null))),
        gc._truncated_sql(gc._buried_sql(c, null, 'null')),
        gc._truncated_sql(gc._kept_whole_sql(c, null)))
$$;

comment on function gc._before_truncate_sql(gc._shape) is
    'What comes before a TRUNCATE of a collection: a tombstone for each object.';


create function gc._needs_target(r gc._reference)
    returns boolean
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select not r.to_key or r.on_delete in ('c', 'n', 'd') $$;

comment on function gc._needs_target(gc._reference) is
    'Whether the key of a lost target can be told only with the target itself.';


create function gc._lost_words(c gc._shape, r gc._reference)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object(
        'lost_keys', (
            select string_agg(
                gc._inline(format('r.%I', r.columns[array_position(r.targets, u.name)])),
                ', ' order by u.n)
            from unnest(k.names) with ordinality as u(name, n)
            where r.to_key
        ),
        'not_null', (
            select string_agg(gc._inline(format('r.%I is not null', u.name)), ' and ' order by u.n)
            from unnest(r.columns) with ordinality as u(name, n)
        ))
    from (select (c.key).*) as k
$$;

comment on function gc._lost_words(gc._shape, gc._reference) is
    'What stands for the key that a row r points at, and for its being there.';


-- A target that went with its reference, by ON DELETE CASCADE or SET NULL, is not queued. offset 0:
-- one by one, for the plan that suits the first statement of a session is kept for all the others.
create function gc._lost_sql(c gc._shape, r gc._reference, event text, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into {queue} ({queue_keys}, event, review_after)
select {lost_keys}, {event}, gc.review_after({event})
from {source} as r
{joined}
where {not_null}
group by {lost_keys};$template$,
        c.words || gc._event_words(event) || gc._lost_words(c, r)
            || jsonb_build_object('source', source, 'joined', '')
            || case when not gc._needs_target(r) then '{}' else jsonb_build_object(
                'lost_keys', gc._listed((c.key).names, 't.'),
                'joined', gc._render(
                    'cross join lateral (select {t_keys} from {target} as t where {t_is_r} '
                    'offset 0) as t',
                    c.words || jsonb_build_object(
                        't_is_r', gc._pair(r.targets, 't', r.columns, 'r', r.operators)))) end)
$$;

comment on function gc._lost_sql(gc._shape, gc._reference, text, text) is
    'The statement that queues the targets which rows of a reference have lost.';


create function gc._after_loss_sql(c gc._shape, relation regclass, operation text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        gc._lost_sql(c, r, gc._event(c.events, gc._table_event(relation, operation)),
            case
                when operation = 'delete' then 'old_rows'
                else format('(select %1$s from old_rows except select %1$s from new_rows)',
                    gc._listed(r.columns))
            end),
        E'\n')
    from unnest(c.refs) as r
    where r.owned is null and r.referencing = relation
$$;

comment on function gc._after_loss_sql(gc._shape, regclass, text) is
    'What follows a delete or an update of a table that refers to a collection.';


create function gc._before_loss_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('execute format(%s, tg_relid::regclass, tg_relid::regclass::text);',
        gc._inline(quote_literal(
            'insert into gc.scan_requests (collection, reason) select '
            || replace(quote_literal(c.name), '%', '%%')
            || ', %2$L || '' was truncated'' where exists (select from only %1$s) '
            'or current_setting(''transaction_isolation'') <> ''read committed''')))
$$;

comment on function gc._before_loss_sql(gc._shape) is
    'What comes before a TRUNCATE of a table that refers to a collection: a scan is asked for.';
