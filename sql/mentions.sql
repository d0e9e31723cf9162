-- Mentions: what a declared reference says, row by row, and how it is as safe as a foreign key.
--
-- A trigger on the referring table locks the rows that new or changed keys name, as a foreign key
-- would, so that a review skips them, or is waited for. A key that is not there then and went a
-- short time ago is refused: whoever wrote it has just lost a race. So the keys that went are kept
-- for a while. A key that never was there, as far as the transaction can see, is nobody's concern,
-- unless the reference is strict.

create function gc._is_mention(r gc._reference)
    returns boolean
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select (r.mention).written is not null $$;

comment on function gc._is_mention(gc._reference) is 'Whether a reference was declared.';


create function gc._compare(comparison text, left_side text, right_side text)
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select format(comparison, left_side, right_side) $$;

comment on function gc._compare(text, text, text) is
    'The condition that a key is the value of a column.';


create function gc._said_sql(r gc._reference, rows text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('select %s from %s as %s%s', m.written, rows, m.alias,
        coalesce(' where ' || m.condition, ''))
    from (select (r.mention).*) as m
$$;

comment on function gc._said_sql(gc._reference, text) is
    'The query for what some rows of a declared reference say: a key each, or an array of keys.';


create function gc._mentioned_sql(r gc._reference, rows text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        case
            when m.is_array then 'select u.key from ({keys}) as m(keys) '
                'cross join lateral unnest(m.keys) as u(key)'
            else '{keys}'
        end,
        jsonb_build_object('keys', gc._said_sql(r, rows)))
    from (select (r.mention).*) as m
$$;

comment on function gc._mentioned_sql(gc._reference, text) is
    'The query for the keys that some rows of a declared reference mention.';


-- The elements of an array are compared as a single key would be, whatever collation they have.
create function gc._mentions_sql(c gc._shape, r gc._reference, value text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select concat(case
            when m.is_array then format('(%s) @> array[%s]::%s[]%s', m.written, value, m.type,
                substring(r.operators[1] from ' collate .*$'))
            else gc._compare(r.operators[1], value, '(' || m.written || ')')
        end, ' and (' || m.condition || ')', gc._not_itself(c, r, 'q'))
    from (select (r.mention).*) as m
$$;

comment on function gc._mentions_sql(gc._shape, gc._reference, text) is
    'The condition that a row of a declared reference mentions a value.';


create function gc._mentioning_sql(c gc._shape, r gc._reference, wanted text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        case
            when r.to_key then 'select{wanted} from {referencing} as {m} where {mentions_q}'
            else 'select{wanted} from {target} as t join {referencing} as {m} on {mentions_t} '
                'where {t_is_q}'
        end,
        c.words || jsonb_build_object(
            'wanted', wanted, 'target', c.target::text, 'referencing', r.referencing::text,
            'm', (r.mention).alias,
            'mentions_q', gc._mentions_sql(c, r, format('q.%I', gc._queue_column(r.targets[1]))),
            'mentions_t', gc._mentions_sql(c, r, format('t.%I', r.targets[1])),
            't_is_q', gc._pair(k.names, 't', k.queue_names, 'q', k.operators)))
    from (select (c.key).*) as k
$$;

comment on function gc._mentioning_sql(gc._shape, gc._reference, text) is
    'The query for the rows of a declared reference that mention the row of the queue entry q.';


-- Where an owned row is called r, its condition has to be told so.
create function gc._owned_when(r gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when (r.mention).condition is null then '' else format(
        ' and exists (select from (select r.*) as %s where %s)',
        (r.mention).alias, (r.mention).condition) end
$$;

comment on function gc._owned_when(gc._reference) is
    'The condition of a declared reference on a row r; empty where there is none.';


create function gc._mention_words(c gc._shape, r gc._reference)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.words || jsonb_build_object(
        'type', m.type,
        'reference', quote_literal(r.reference),
        'by', quote_literal(r.targets[1]),
        't_is_m', gc._compare(r.operators[1], format('t.%I', r.targets[1]), 'm.key'),
        'gone', format('gc.%I', gc._object_name(c.name, '_gone')),
        'g_is_m', gc._compare(r.operators[1],
            format('g.%I', gc._gone_column(r.targets[1])), 'm.key'),
        'old', gc._mentioned_sql(r, c.words ->> 'old_rows'),
        'new', gc._mentioned_sql(r, c.words ->> 'new_rows'))
    from (select (r.mention).*) as m
$$;

comment on function gc._mention_words(gc._shape, gc._reference) is
    'What stands for the words in templates about declared references.';


-- In the order of the keys, so that two who write the same ones do not wait for each other.
create function gc._lock_mentioned_sql(c gc._shape, r gc._reference, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
from (select m.key from {source} as m(key) where m.key is not null order by 1) as m
left join lateral (
    select true from {target} as t where {t_is_m} for key share
) as t(is_there) on true
where t.is_there is null;$template$,
        gc._mention_words(c, r) || jsonb_build_object('source', source))
$$;

comment on function gc._lock_mentioned_sql(gc._shape, gc._reference, text) is
    'What locks all that is mentioned, and finds the keys that are not there.';


-- A later statement has a new snapshot: it sees what was committed while the lock was waited for.
create function gc._refuse_sql(c gc._shape, r gc._reference, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
perform
{lock}
if found then
    -- It may have come again while its lock was waited for.
    select array_agg(m.key) into this.missing
    {lock}
    select min(m.key::text) into this.gone
    from unnest(this.missing) as m(key)
    where exists (select from {gone} as g where {g_is_m});
    if this.gone is not null then
        raise '% refers to % of %, which is gone', {reference}, this.gone, {table}
            using errcode = 'ZG005',
                detail = 'It was deleted a short time ago, or while this statement waited for it.',
                hint = 'Insert it again first, or refer to another.';
    end if;
    {strict}
end if;$template$,
        gc._mention_words(c, r) || jsonb_build_object(
            'lock', gc._lock_mentioned_sql(c, r, source),
            'strict', case when not (r.mention).is_strict then '' else gc._render($template$
if this.missing is not null then
    raise '% refers to % of %, which is not there', {reference}, this.missing[1], {table}
        using errcode = 'ZG006',
            detail = 'The reference was declared with strict => true.',
            hint = 'Insert it first, or refer to another.';
end if;$template$, gc._mention_words(c, r)) end))
$$;

comment on function gc._refuse_sql(gc._shape, gc._reference, text) is
    'What locks all that is mentioned, and refuses what is not there.';


create function gc._lose_mentioned_sql(c gc._shape, r gc._reference, event text, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
insert into {queue} ({queue_keys}, event, review_after, causes)
select {lost_keys}, {event}, gc.review_after({event}), {causes}
from {source} as m(key)
{joined}
where m.key is not null
group by {lost_keys};$template$,
        w.words || jsonb_build_object('event', quote_literal(event), 'source', source)
            || case when (r.mention).is_direct
                then jsonb_build_object('lost_keys', 'm.key', 'joined', '')
                else jsonb_build_object(
                    'lost_keys', gc._idents((c.key).names, 't.'),
                    'joined', gc._render(
                        'cross join lateral (select {t_keys} from {target} as t where {t_is_m} '
                        'offset 0) as t', w.words)) end)
    from (select gc._mention_words(c, r)) as w(words)
$$;

comment on function gc._lose_mentioned_sql(gc._shape, gc._reference, text, text) is
    'The statement that queues what some keys mention.';


-- What raises is not computed: then nobody knows what the row refers to, and a scan is asked for. A
-- review reads the same row, raises as well, and deletes nothing. The block writes nothing, so it
-- costs no transaction id.
create function gc._collecting_sql(c gc._shape, r gc._reference, collects text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when (r.mention).is_safe then collects else gc._render($template$
begin
    {collects}
exception
    when others then
        perform gc._raise_if_passing(sqlstate, sqlerrm);
        insert into gc.scan_requests (collection, reason)
        values ({name}, {reference} || ' cannot be computed: ' || sqlerrm);
end;$template$, gc._mention_words(c, r) || jsonb_build_object('collects', collects)) end
$$;

comment on function gc._collecting_sql(gc._shape, gc._reference, text) is
    'A statement that computes keys, and what is done where that raises.';


create function gc._mention_block_sql(
    c gc._shape, r gc._reference, keys text[], body text
)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
<<this>>
declare
    {variables}
begin
    {body}
end;$template$,
        jsonb_build_object('body', body, 'variables', (
            select string_agg(format('%s %s;', u, case
                when u = 'gone' then 'text' else (r.mention).type || '[]' end), E'\n')
            from unnest(keys) as u)))
$$;

comment on function gc._mention_block_sql(gc._shape, gc._reference, text[], text) is
    'The frame of what a trigger does for one declared reference.';


create function gc._after_mention_insert_sql(c gc._shape, r gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._mention_block_sql(c, r, case when (r.mention).is_safe
        then '{missing, gone}'::text[] else '{gained, missing, gone}' end, case
        when (r.mention).is_safe then gc._refuse_sql(c, r, gc._render('({new})', w.words))
        else gc._collecting_sql(c, r, gc._render(
                'select array_agg(distinct m.key) into this.gained from ({new}) as m(key) '
                'where m.key is not null;', w.words)) || E'\n' || gc._lock_gained_sql(c, r)
    end)
    from (select gc._mention_words(c, r)) as w(words)
$$;

comment on function gc._after_mention_insert_sql(gc._shape, gc._reference) is
    'What follows an insert of mentions.';


create function gc._lock_gained_sql(c gc._shape, r gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
if this.gained is not null then
    {refuse}
end if;$template$,
        jsonb_build_object('refuse', gc._refuse_sql(c, r, 'unnest(this.gained)')))
$$;

comment on function gc._lock_gained_sql(gc._shape, gc._reference) is
    'What is done about keys that were not mentioned before.';


-- One pass over the rows tells both: what no new row says, and what no old one did. An array that
-- stays as it is is not looked into.
create function gc._changed_sql(c gc._shape, r gc._reference)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render(
        case when (r.mention).is_array then $template$
select u.key, bool_or(m.is_new)
from (
    {values}
) as m(keys, is_new)
cross join lateral unnest(m.keys) as u(key)
where u.key is not null
group by u.key
having bool_or(m.is_new) = bool_and(m.is_new)$template$ else '{values}' end,
        jsonb_build_object('values', gc._render($template$
select m.value, bool_or(m.is_new)
from (
    select m.value, false from ({old}) as m(value)
    union all
    select m.value, true from ({new}) as m(value)
) as m(value, is_new)
where m.value is not null
group by m.value
having bool_or(m.is_new) = bool_and(m.is_new)$template$, jsonb_build_object(
            'old', gc._said_sql(r, c.words ->> 'old_rows'),
            'new', gc._said_sql(r, c.words ->> 'new_rows')))))
$$;

comment on function gc._changed_sql(gc._shape, gc._reference) is
    'The query for the keys that only old rows, or only new rows, of an update mention.';


create function gc._after_mention_update_sql(c gc._shape, r gc._reference, event text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._mention_block_sql(c, r, '{lost, gained, missing, gone}', concat_ws(E'\n',
        gc._collecting_sql(c, r, gc._render($template$
select array_agg(m.key) filter (where not m.is_new), array_agg(m.key) filter (where m.is_new)
into this.lost, this.gained
from (
    {changed}
) as m(key, is_new);$template$, jsonb_build_object('changed', gc._changed_sql(c, r)))),
        gc._render($template$
if this.lost is not null then
    {lose}
end if;$template$, jsonb_build_object('lose', case
            when r.owned is null then gc._lose_mentioned_sql(c, r, event, 'unnest(this.lost)')
            -- Where it is owned, nothing was kept by it.
            else 'null;' end)),
        gc._lock_gained_sql(c, r)))
$$;

comment on function gc._after_mention_update_sql(gc._shape, gc._reference, text) is
    'What follows an update of mentions.';


create function gc._after_mention_delete_sql(c gc._shape, r gc._reference, event text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when (r.mention).is_safe
            then gc._lose_mentioned_sql(c, r, event, gc._render('({old})', w.words))
        else gc._mention_block_sql(c, r, '{lost}', gc._collecting_sql(c, r, gc._render(
                'select array_agg(distinct m.key) into this.lost from ({old}) as m(key) '
                'where m.key is not null;', w.words))
            || E'\n' || gc._lose_mentioned_sql(c, r, event, 'unnest(this.lost)'))
    end
    from (select gc._mention_words(c, r)) as w(words)
$$;

comment on function gc._after_mention_delete_sql(gc._shape, gc._reference, text) is
    'What follows a delete of mentions.';


create function gc._after_mention_sql(c gc._shape, relation regclass, operation text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select string_agg(
        case operation
            when 'insert' then gc._after_mention_insert_sql(c, r)
            when 'update' then gc._after_mention_update_sql(c, r, e.event)
            else gc._after_mention_delete_sql(c, r, e.event)
        end, E'\n')
    from unnest(c.refs) as r
    cross join lateral (
        select gc._event(c.events, gc._table_event(relation, operation))
    ) as e(event)
    where r.referencing = relation and gc._is_mention(r)
        and (r.owned is null or operation <> 'delete')
$$;

comment on function gc._after_mention_sql(gc._shape, regclass, text) is
    'What follows a statement on a table that refers to a collection by declaration; null: '
    'nothing.';


-- A foreign key would keep the row from going with its owner, or by a cascade. The collection's own
-- review has looked already. A later statement has a new snapshot, and whoever is writing a mention
-- has locked the row.
create function gc._spare_mentioned_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
if current_setting('blobgc.reviewing', true) not in ('', {name}) then
    {looks}
end if;$template$, c.words || jsonb_build_object('looks', string_agg(gc._render($template$
perform from old_rows as o
where exists (select from {referencing} as {m} where {mentions});
if found then
    raise 'it goes with a row of "%", to which % refers', {name}, {reference}
        using errcode = 'foreign_key_violation',
            detail = 'A declared reference keeps a row that a review would delete with another.';
end if;$template$, c.words || jsonb_build_object(
        'reference', quote_literal(r.reference), 'referencing', r.referencing::text,
        'm', (r.mention).alias,
        'mentions', gc._mentions_sql(c, r, format('o.%I', r.targets[1])))), E'\n')))
    from unnest(c.refs) as r
    where gc._is_mention(r) and r.owned is null and not r.itself
    having count(*) > 0
$$;

comment on function gc._spare_mentioned_sql(gc._shape) is
    'What keeps a review of another collection from deleting rows that are mentioned; null: '
    'nothing can mention them.';


create function gc._gone_column(name name)
    returns name
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$ select gc._object_name('of_', name) $$;

comment on function gc._gone_column(name) is
    'The name that a column of the collection has among what is gone.';


create function gc._mentioned_columns(c gc._shape)
    returns name[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(array_agg(distinct r.targets[1] order by r.targets[1]), '{}')
    from unnest(c.refs) as r
    where gc._is_mention(r)
$$;

comment on function gc._mentioned_columns(gc._shape) is
    'The columns of a collection that declared references refer to.';


create function gc._note_gone_sql(c gc._shape, source text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render('insert into {gone} ({gone_columns}) select {columns} from {source} as o;',
        gc._source_words(jsonb_build_object(
            'gone', format('gc.%I', gc._object_name(c.name, '_gone')),
            'gone_columns', gc._idents(
                array(select gc._gone_column(u) from unnest(m.columns) as u)),
            'columns', gc._idents(m.columns, 'o.')), source))
    from (select gc._mentioned_columns(c)) as m(columns)
    where m.columns <> '{}'
$$;

comment on function gc._note_gone_sql(gc._shape, text) is
    'The statement that notes the keys of rows that went; null: nobody would ask for them.';


create function gc._note_changed_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._note_gone_sql(c, format(
        '(select %1$s from %2$s as o except select %1$s from %3$s as n)', gc._idents(m.columns),
        c.words ->> 'old_rows', c.words ->> 'new_rows'))
    from (select gc._mentioned_columns(c)) as m(columns)
$$;

comment on function gc._note_changed_sql(gc._shape) is
    'The statement that notes the keys that rows no longer have; null: nobody would ask for them.';


create function gc._gone_definition(c gc._shape)
    returns table (name name, type text, method text)
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._gone_column(a.attname),
        format_type(gc._base_type(a.atttypid), a.atttypmod) || coalesce((
            select format(' collate %I.%I', n.nspname, o.collname)
            from pg_collation as o
            join pg_namespace as n on n.oid = o.collnamespace
            where o.oid = a.attcollation and o.collname <> 'default'
        ), ''),
        case when exists (
            select from pg_opclass as o
            join pg_am as m on m.oid = o.opcmethod and m.amname = 'hash'
            where o.opcdefault and o.opcintype = gc._base_type(a.atttypid)
        ) then 'hash' else 'btree' end
    from unnest(gc._mentioned_columns(c)) as u(name)
    join pg_attribute as a on a.attrelid = c.target and a.attname = u.name
$$;

comment on function gc._gone_definition(gc._shape) is
    'The columns of the table of keys that went, and the index that each has.';


-- What went is remembered when a further column is asked for, or one no longer.
create function gc._gone_fits(c gc._shape, gone regclass)
    returns boolean
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select not exists (
        select from gc._gone_definition(c) as d
        join pg_attribute as a on a.attrelid = gone and a.attname = d.name
        where format_type(a.atttypid, a.atttypmod) <> split_part(d.type, ' collate ', 1)
    )
$$;

comment on function gc._gone_fits(gc._shape, regclass) is
    'Whether the columns that the table of keys that went has are of the types that they should.';


create function gc._create_gone(c gc._shape, gone name)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._run(format(
        'create table gc.%I (gone_at timestamptz not null default now())', gone));
    perform gc._seal_table(to_regclass(format('gc.%I', gone)));
    perform gc._identify(to_regclass(format('gc.%I', gone)));
    perform gc._run(format('create index on gc.%I (gone_at)', gone));
    execute format('comment on table gc.%I is %L', gone, format(
        'The keys of %s that went a short time ago: they are not referred to again.', c.target));
end;
$$;

comment on function gc._create_gone(gc._shape, name) is
    'Creates the table of the keys that went, without a column for any.';


-- Append-only, for a trigger writes it: whoever deletes a row waits for nobody.
create function gc._make_gone(c gc._shape)
    returns name[]
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    gone name := gc._object_name(c.name, '_gone');
    found_one regclass := to_regclass(format('gc.%I', gone));
begin
    if gc._mentioned_columns(c) = '{}' then
        return array[]::name[];
    end if;
    if found_one is not null and not gc._gone_fits(c, found_one) then
        perform gc._put_away(found_one);
        found_one := null;
    end if;
    if found_one is null then
        perform gc._create_gone(c, gone);
    end if;
    perform gc._run(format('alter table gc.%I add %I %s', gone, d.name, d.type)),
        gc._run(format('create index on gc.%I using %s (%I)', gone, d.method, d.name))
    from gc._gone_definition(c) as d
    where not exists (
        select from pg_attribute as a
        where a.attrelid = to_regclass(format('gc.%I', gone)) and a.attname = d.name
    );
    return array[gone];
end;
$$;

comment on function gc._make_gone(gc._shape) is
    'Creates the table of the keys that went, where it is needed; returns its name.';


create function gc._gone_table(c gc.collections)
    returns regclass
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select to_regclass(format('gc.%I', l))
    from unnest(c.links) as l
    where l = gc._object_name(c.name, '_gone')
$$;

comment on function gc._gone_table(gc.collections) is
    'The table of the keys that went from a collection; null: there is none.';


create function gc._has_old_gone(c gc.collections)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    gone regclass := gc._gone_table(c);
    is_old boolean := false;
begin
    if gone is not null then
        execute format('select exists (select from %s as g where g.gone_at < now() - '
            '(select s.gone_retention from gc.settings as s))', gone)
        into is_old;
    end if;
    return is_old;
end;
$$;

comment on function gc._has_old_gone(gc.collections) is
    'Whether there are keys that went longer ago than they are kept.';


create function gc._purge_gone(name text, batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    gone regclass := gc._gone_table(gc._collection(name));
begin
    if gone is not null then
        execute format('delete from %1$s as o where o.ctid = any (array('
            'select g.ctid from %1$s as g '
            'where g.gone_at < now() - (select s.gone_retention from gc.settings as s) '
            'order by g.gone_at limit $1 for update skip locked))', gone)
        using batch;
    end if;
end;
$$;

comment on function gc._purge_gone(text, integer) is
    'Forgets keys that went longer ago than they are kept.';
