-- Receipts: what became of a deletion, all the way to the last object.
--
-- gc.because names a cause for what the transaction does. What it queues, and what reviews queue in
-- turn, has the cause; so have tombstones and the log. A later entry of a key, which counts instead
-- of an earlier one, takes over its causes, so there may be several. gc.kept_rows notes the rows
-- that left a queue alive. So whatever a cause has led to stands in exactly one place, and a
-- receipt that finds nothing queued, waiting or claimed is complete.
--
-- A setting of the transaction says that there is a cause, and nothing else is looked at where
-- there is none. Anybody can make a setting, so it is only the number of a row of gc.causing, which
-- must be of this transaction, and which only gc.because and reviews write.

create table gc.causes (
    cause text not null
        constraint causes_cause_length check (length(cause) between 1 and 200),
    named_at timestamptz not null default now(),
    named_by name not null default session_user,
    hurried boolean not null default false
);
create index causes_cause_idx on gc.causes (cause);
create index causes_named_at_idx on gc.causes (named_at);

comment on table gc.causes is
    'What gc.because and gc.hurry were told, for as long as the log is kept.';
comment on column gc.causes.cause is 'The cause: a ticket, a request, a person''s name.';
comment on column gc.causes.named_at is 'When.';
comment on column gc.causes.named_by is 'By whom.';
comment on column gc.causes.hurried is 'It was named by gc.hurry: what it leads to does not wait.';


-- Unlogged: a crash ends every transaction for which it is kept.
create unlogged table gc.causing (
    id bigint generated always as identity
        constraint causing_pkey primary key,
    xid xid8 not null default pg_current_xact_id(),
    causes text[] not null
);
create index causing_xid_idx on gc.causing (xid);

comment on table gc.causing is 'The causes of transactions that are running.';
comment on column gc.causing.id is 'What the setting blobgc.cause says.';
comment on column gc.causing.xid is 'The transaction.';
comment on column gc.causing.causes is
    'Its causes; a review has those of the rows that it deletes.';


create table gc.kept_rows (
    id bigint generated always as identity
        constraint kept_rows_pkey primary key,
    collection text not null,
    key text not null,
    url text,
    causes text[] not null,
    why text,
    kept_at timestamptz not null default clock_timestamp()
);
create index kept_rows_causes_idx on gc.kept_rows using gin (causes);
create index kept_rows_kept_at_idx on gc.kept_rows (kept_at);

comment on table gc.kept_rows is
    'Rows and objects that a cause has led to and that were kept, or were gone already.';
comment on column gc.kept_rows.id is 'The order in which they were written.';
comment on column gc.kept_rows.collection is 'The collection of the row.';
comment on column gc.kept_rows.key is 'The row''s primary key, as text.';
comment on column gc.kept_rows.url is 'The object''s address, where it was the object that stayed.';
comment on column gc.kept_rows.causes is 'What gc.because was told.';
comment on column gc.kept_rows.why is 'Why it stayed; null: gc.receipt asks what refers to it.';
comment on column gc.kept_rows.kept_at is 'When.';


create function gc._require_cause(cause text)
    returns void
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if cause is null or cause !~ '\S' or length(cause) > 200 or cause ~ '[[:cntrl:]]' then
        raise 'a cause is a line of 1 to 200 characters'
            using errcode = 'invalid_parameter_value',
                detail = format('It has %s characters%s.', coalesce(length(cause), 0), case
                    when cause ~ '[[:cntrl:]]' then ', and not all can be printed' else '' end),
                hint = 'select gc.because(''ticket 4711'');';
    end if;
end;
$$;

comment on function gc._require_cause(text) is 'Raises for what cannot be a cause.';


create function gc._carry(causes text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    number bigint;
begin
    if causes is not null then
        insert into gc.causing (causes) values (_carry.causes) returning id into number;
    end if;
    perform set_config('blobgc.cause', coalesce(number::text, ''), true);
end;
$$;

comment on function gc._carry(text[]) is
    'What the transaction does from now on has these causes; null: none.';


-- An application may call it, so it tells nothing, and writes no more than what it was told.
create function gc.because(cause text)
    returns void
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._require_cause(cause);
    insert into gc.causes (cause) values (because.cause);
    perform gc._carry(array[cause]);
end;
$$;
revoke all on function gc.because(text) from public;

comment on function gc.because(text) is
    'Names the cause of what this transaction deletes from now on. gc.receipt tells what came of '
    'it; where nobody names a cause, it costs nothing.';


create function gc._causes()
    returns text[]
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select c.causes from gc.causing as c
    where c.xid = pg_current_xact_id_if_assigned()
        and c.id::text = current_setting('blobgc.cause', true)
$$;

comment on function gc._causes() is 'The causes of this transaction; null: none was named.';


-- Asked once for a statement, and only whether there is a setting, for mostly there is none.
create function gc._cause_parts(t gc._trigger)
    returns jsonb
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case when concat(t.body, t.otherwise) not like '%this.causes%'
        then jsonb_build_object('causes_declared', '', 'causes_read', '')
        else jsonb_build_object('causes_declared', 'causes text[];',
            'causes_read', $sql$
if current_setting('blobgc.cause', true) <> '' then
    this.causes := gc._causes();
end if;$sql$)
    end
$$;

comment on function gc._cause_parts(gc._trigger) is
    'The parts of a trigger that find out the causes of the transaction; empty where nothing asks.';


create function gc._all_causes(a text[], b text[])
    returns text[]
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select array_agg(distinct u order by u)
    from unnest(coalesce(a, '{}') || coalesce(b, '{}')) as u
$$;

comment on function gc._all_causes(text[], text[]) is 'The causes of two entries; null: none.';


create function gc._moved(places tid[], was tid[], moved tid[])
    returns tid[]
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when cardinality(was) = 0 or places is null then places
        else array(
            select coalesce(m.place, u.place)
            from unnest(places) as u(place)
            left join unnest(was, moved) as m(was, place) on m.was = u.place
        )
    end
$$;

comment on function gc._moved(tid[], tid[], tid[]) is
    'Places of entries, with the new ones of those that were changed.';


create function gc._noted_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
,
noted as (
    insert into gc.kept_rows (collection, key, causes)
    select {name}, {q_key_text}, q.causes
    from dropped as q
    where q.causes is not null
)$template$, c.words)
$$;

comment on function gc._noted_sql(gc._shape) is
    'The part of a statement that notes which entries with a cause left the queue.';


-- Returning all that a first look drops would cost a tenth of the look. So those entries that have
-- a cause are read before, and what of them is gone then was dropped: nobody else can do that.
create function gc._follow_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
this.followed := null;
if exists (select from gc.causes) then
    select jsonb_agg(jsonb_build_object('place', q.ctid, 'key', {q_key_text}, 'causes', q.causes))
    into this.followed
    from {queue} as q
    where q.ctid = any (this.taken) and q.causes is not null;
end if;$template$, c.words)
$$;

comment on function gc._follow_sql(gc._shape) is
    'The part of a review that reads which of its entries have a cause.';


create function gc._note_followed_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
if this.followed is not null then
    insert into gc.kept_rows (collection, key, causes)
    select {name}, f.key, f.causes
    from jsonb_to_recordset(this.followed) as f(place tid, key text, causes text[])
    where not exists (select from {queue} as q where q.ctid = f.place);
end if;$template$, c.words)
$$;

comment on function gc._note_followed_sql(gc._shape) is
    'The part of a review that notes which entries with a cause the first look has dropped.';


create function gc._cause_variables(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select concat_ws(E'\n', 'named text;', 'causes text[];', 'followed jsonb;', 'was tid[];',
        'moved tid[];', case when gc._owns_sql(c) is not null then 'left_over tid[];' end)
$$;

comment on function gc._cause_variables(gc._shape) is
    'The variables of a review that are about causes.';


-- Entries with other causes are deleted apart, because triggers are told the causes of a statement.
-- Mostly there are none, and it is one round.
create function gc._each_cause_sql(c gc._shape, body text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
this.named := current_setting('blobgc.cause', true);
for this.causes, this.garbage in
    select q.causes, array_agg(q.ctid order by q.entry) from {queue} as q
    where q.ctid = any (this.garbage)
    group by q.causes
    order by min(q.entry)
loop
    {before}
    if this.causes is not null or this.named <> '' then
        perform gc._carry(this.causes);
    end if;
    {body}
    {after}
    if this.causes is not null then
        perform gc._hurry_on(this.causes);
        perform set_config('blobgc.cause', '', true);
        delete from gc.causing as o where o.xid = pg_current_xact_id() and o.causes = this.causes
            and o.id::text is distinct from this.named;
    end if;
end loop;
if this.named <> '' then
    perform set_config('blobgc.cause', this.named, true);
end if;
{at_last}$template$,
        c.words || jsonb_build_object('body', body) || case
            when gc._owns_sql(c) is null
                then jsonb_build_object('before', '', 'after', '', 'at_last', '')
            else jsonb_build_object(
                'before', E'if touched >= most then\n'
                    '    this.left_over := this.left_over || this.garbage;\n'
                    '    continue;\nend if;\nthis.room := most - touched;',
                'after', E'this.left_over := this.left_over || this.waiting;\n'
                    'this.waiting := null;',
                'at_last', 'this.waiting := this.left_over;')
        end)
$$;

comment on function gc._each_cause_sql(gc._shape, text) is
    'The part of a review that deletes what has the same causes, one after the other.';


create function gc._note_kept(ids bigint[], why text)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    insert into gc.kept_rows (collection, key, url, causes, why)
    select t.collection, t.key, t.url, t.causes, _note_kept.why
    from gc.tombstones as t
    where t.id = any (ids) and t.causes is not null
$$;

comment on function gc._note_kept(bigint[], text) is
    'Notes that tombstones go although their objects stay, and why.';


create function gc._note_dequeued(name text, why text)
    returns void
    language sql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
    insert into gc.kept_rows (collection, key, causes, why)
    select _note_dequeued.name, q.key, q.causes, _note_dequeued.why
    from gc._queued_causes(_note_dequeued.name) as q
$$;

comment on function gc._note_dequeued(text, text) is
    'Notes that all entries of a queue go without a review, and why.';


create function gc._note_untracked(c gc.collections)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform gc._note_kept(array(
        select t.id from gc.tombstones as t where t.collection = c.name
    ), 'the collection was untracked, and its object stays');
    perform gc._note_dequeued(c.name, 'the collection was untracked');
end;
$$;

comment on function gc._note_untracked(gc.collections) is
    'Notes what stays because its collection is no longer tracked.';


create function gc._purge_causes(batch integer)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    oldest timestamptz := now() - (select s.log_retention from gc.settings as s);
begin
    delete from gc.causing as c where c.xid < pg_snapshot_xmin(pg_current_snapshot());
    delete from gc.causes as c
    where c.ctid = any (array(
        select o.ctid from gc.causes as o
        where o.named_at < oldest order by o.named_at limit batch for update skip locked
    ));
    delete from gc.kept_rows as k
    where k.id = any (array(
        select o.id from gc.kept_rows as o
        where o.kept_at < oldest order by o.kept_at limit batch for update skip locked
    ));
    delete from gc.struck_finalizers as s
    where s.id = any (array(
        select o.id from gc.struck_finalizers as o
        where o.struck_at < oldest order by o.struck_at limit batch for update skip locked
    ));
end;
$$;

comment on function gc._purge_causes(integer) is
    'Drops what is known about causes and is older than the log.';


create type gc._caused_entry as (
    key text, causes text[], event text, review_after timestamptz, last_error text
);

comment on type gc._caused_entry is 'An entry of a queue that has a cause.';


create function gc._queued_causes(name text, cause text default null)
    returns setof gc._caused_entry
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query execute format(
        'select %s, q.causes, q.event, q.review_after, q.last_error from gc.%I as q '
        'where q.causes is not null and ($1 is null or q.causes @> array[$1])',
        gc._text_of((gc._key((gc._collection(name)).target)).queue_names, 'q'),
        gc._object_name(name, '_review_queue'))
    using cause;
exception
    when undefined_column or undefined_table then
        return;
end;
$$;

comment on function gc._queued_causes(text, text) is
    'The entries of a queue that a cause has led to; null: that any cause has led to.';


-- Null: there is no such row. What a review asks about all references at once is asked here one by
-- one.
create function gc._kept_by_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_kept_by', $template$
create or replace function gc.{function}(key text)
    returns text[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    set row_security = off
    {by_index}
    {settings}
$template$, $template$
begin
    return (
        select array_remove(array[
            {keepers}
        ]::text[], null)
        from (select {typed}) as q({queue_keys})
        where exists (select from {target} as t where {t_is_q})
    );
end;$template$,
        jsonb_build_object(
            'typed', gc._parsed_key_sql(c, '$1'),
            'keepers', concat_ws(E',\n', (
                    select string_agg(format(E'case when %s\n    then %L end',
                        gc._refers_sql(c, r), r.reference), E',\n' order by r.reference)
                    from unnest(c.refs) as r where r.owned is null
                ),
                'case when ' || gc._excused_sql(c)
                    || E'\n    then ''its condition does not hold'' end',
                'case when ' || gc._pinned_sql(c) || E'\n    then ''a pin'' end',
                gc._render('case when gc._is_held({name}, $1, null) then ''a hold'' end',
                    c.words))))
$$;

comment on function gc._kept_by_sql(gc._shape) is
    'The function gc.<name>_kept_by: what keeps a row, one by one.';


create function gc._kept_by(name text, key text, unreadable jsonb)
    returns text[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    keepers text[];
begin
    if not exists (select from gc.collections as c where c.name = _kept_by.name) then
        return array['nobody knows: the collection is not tracked'];
    elsif unreadable ? name then
        return array['nobody knows: ' || (unreadable ->> name)];
    end if;
    execute format('select gc.%I($1)', gc._object_name(name, '_kept_by')) into keepers using key;
    return keepers;
exception
    when data_exception or syntax_error_or_access_rule_violation then
        return array['nobody knows: the table has changed'];
    when others then
        perform gc._raise_if_passing(sqlstate, sqlerrm);
        return array['nobody knows: ' || sqlerrm];
end;
$$;

comment on function gc._kept_by(text, text, jsonb) is
    'What keeps a row at this moment; null: there is no such row. To be asked after '
    'gc._unreadable, and told what that says.';


create type gc._outcome as (
    state text, collection text, key text, label text, url text, size bigint, at timestamptz,
    why text
);

comment on type gc._outcome is 'One line of a receipt.';


create function gc._outcome_of(t gc.tombstones)
    returns gc._outcome
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select (
        case when t.worker is not null and t.due_at > clock_timestamp()
            then 'claimed' else 'waiting' end,
        t.collection, t.key, t.label, t.url, t.size, t.due_at,
        nullif(concat_ws('; ', 'for ' || t.finalizers[1], t.last_error, t.held_up), '')
    )::gc._outcome
$$;

comment on function gc._outcome_of(gc.tombstones) is 'The line of a receipt for a tombstone.';


create function gc._pending(cause text)
    returns setof gc._outcome
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select 'queued', c.name, q.key, null, null, null::bigint, q.review_after,
        concat_ws('; ', q.event, q.last_error)
    from gc.collections as c
    cross join lateral gc._queued_causes(c.name, cause) as q
    union all
    select (gc._outcome_of(t)).* from gc.tombstones as t where t.causes @> array[cause]
    union all
    select 'waiting', u.collection, null, null, null, null, u.due_at,
        concat_ws('; ', 'its object cannot be told yet', u.last_error)
    from gc.unread_rows as u
    where u.causes @> array[cause]
$$;

comment on function gc._pending(text) is
    'What a cause has led to and that is not over: queued, waiting, claimed.';


-- A row that was kept may have gone later, for another reason: then that is what became of it.
create function gc._outcome_of(k gc.kept_rows, unreadable jsonb)
    returns gc._outcome
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    keepers text[] := gc._kept_by(k.collection, k.key, unreadable);
    later gc._outcome;
begin
    if k.why is not null then
        return ('kept', k.collection, k.key, null, k.url, null, k.kept_at,
            k.why)::gc._outcome;
    elsif keepers is not null then
        return ('kept', k.collection, k.key, null, null, null, k.kept_at,
            coalesce('by ' || nullif(array_to_string(keepers, ', '), ''),
                'nothing refers to it any more: a later review decides'))::gc._outcome;
    end if;
    select o.* into later
    from gc.tombstones as t
    cross join lateral gc._outcome_of(t) as o
    where t.collection = k.collection and t.key = k.key
    limit 1;
    if found then
        return later;
    end if;
    select 'gone', l.collection, l.key, l.label, l.url, l.size, l.deleted_at, 'for another reason'
    into later
    from gc.deletion_log as l
    where l.collection = k.collection and l.key = k.key
    order by l.deleted_at desc
    limit 1;
    return case when found then later
        else ('gone', k.collection, k.key, null, null, null, k.kept_at,
            'its row went before its review')::gc._outcome end;
end;
$$;

comment on function gc._outcome_of(gc.kept_rows, jsonb) is
    'The line of a receipt for a row that a review has kept.';


create function gc._outcomes(cause text, unreadable jsonb)
    returns setof gc._outcome
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    with pending as materialized (
        select p.* from gc._pending(cause) as p
    ),
    gone as materialized (
        select 'gone', l.collection, l.key, l.label, l.url, l.size, l.deleted_at, l.event
        from gc.deletion_log as l
        where l.causes @> array[cause]
    ),
    kept as (
        select distinct on (k.collection, k.key) k from gc.kept_rows as k
        where k.causes @> array[cause]
        order by k.collection, k.key, k.id desc
    )
    select p.* from pending as p
    union all
    select g.* from gone as g
    union all
    select o.* from kept as k
    cross join lateral gc._outcome_of(k.k, unreadable) as o
    where not exists (
            select from pending as p where p.collection = (k.k).collection and p.key = (k.k).key
        )
        and not exists (
            select from gone as g where g.collection = (k.k).collection and g.key = (k.k).key
        )
$$;

comment on function gc._outcomes(text, jsonb) is
    'All that a cause has led to, each in its last state.';


create function gc.receipt(cause text)
    returns table (
        state text, collection text, key text, label text, url text, size bigint, at timestamptz,
        why text, complete boolean
    )
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
    named timestamptz := (select min(c.named_at) from gc.causes as c where c.cause = receipt.cause);
    told gc._outcome[];
begin
    perform gc._limit_lock_waits();
    begin
        told := array(select o from gc._outcomes(receipt.cause, gc._unreadable()) as o);
        -- So that the locks are given back.
        raise 'that is all' using errcode = 'ZG999';
    exception
        when sqlstate 'ZG999' then
            null;
    end;
    return query
        select o.*, bool_and(o.state in ('gone', 'kept')) over ()
        from unnest(told) as o
        order by array_position('{queued,waiting,claimed,kept,gone}', o.state), o.collection, o.at;
    if found then
        return;
    elsif named is null then
        raise 'nobody has named the cause "%"', coalesce(receipt.cause, 'null')
            using errcode = 'undefined_object',
                detail = 'Causes are kept as long as gc.deletion_log: gc.settings.log_retention.',
                hint = 'select distinct cause from gc.causes;';
    end if;
    return query
        select 'named', null::text, null::text, null::text, null::text, null::bigint, named,
            'it has led to nothing that is collected', true;
end;
$$;
revoke all on function gc.receipt(text) from public;

comment on function gc.receipt(text) is
    'What became of all that a cause has led to: queued, waiting, claimed, kept (and by what) or '
    'gone. complete, the same in every line, says that nothing more will happen because of it.';


-- A row that was inserted again keeps its delay: somebody may be about to use it.
create function gc._hurry(causes text[])
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    c gc.collections;
    total integer := 0;
    step integer;
begin
    for c in select o.* from gc.collections as o order by o.name loop
        execute format('update gc.%1$I as q set review_after = now() where q.ctid = any (array('
            'select o.ctid from gc.%1$I as o where o.causes && $1 and o.review_after > now() '
            'and o.event <> $2 for update skip locked))', gc._object_name(c.name, '_review_queue'))
        using causes, gc._event(c.events, c.name || '_insert');
        get diagnostics step = row_count;
        total := total + step;
    end loop;
    update gc.unread_rows as u set due_at = now()
    where u.causes && _hurry.causes and u.due_at > now();
    -- A row does not come back without its object, and nobody is to read it in the trash.
    delete from gc.trash_rows as r
    where r.ctid = any (array(
        select o.ctid from gc.trash_rows as o where o.causes && _hurry.causes
        for update skip locked
    ));
    update gc.tombstones as t
    set due_at = now()
    where t.id = any (array(
        select o.id from gc.tombstones as o
        where o.causes && _hurry.causes and o.worker is null and o.due_at > now()
        for update skip locked
    ));
    get diagnostics step = row_count;
    return total + step;
end;
$$;

comment on function gc._hurry(text[]) is
    'Makes all reviews and tombstones of these causes due now, and drops the rows that they have '
    'brought into the trash; what is locked is being dealt with.';


create function gc._hurry_on(causes text[])
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (
        select from gc.causes as c where c.cause = any (_hurry_on.causes) and c.hurried
    ) then
        perform gc._hurry(causes);
    end if;
end;
$$;

comment on function gc._hurry_on(text[]) is
    'What a review does about causes that somebody has hurried: what it has queued is due now.';


create function gc.hurry(cause text)
    returns integer
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    hurried integer;
begin
    perform gc._require_owner();
    if not exists (select from gc.causes as c where c.cause = hurry.cause) then
        raise 'nobody has named the cause "%"', coalesce(cause, 'null')
            using errcode = 'undefined_object', hint = 'select distinct cause from gc.causes;';
    end if;
    insert into gc.causes (cause, hurried) values (hurry.cause, true);
    hurried := gc._hurry(array[cause]);
    perform pg_notify('blobgc', '');
    return hurried;
end;
$$;
revoke all on function gc.hurry(text) from public;

comment on function gc.hurry(text) is
    'Makes all reviews that a cause has led to due now, and those that they lead to in turn; ends '
    'the undo windows of its rows and objects, so that they cannot be restored any more. Returns '
    'how many did not have to wait any longer.';


create table gc.erasures (
    collection text not null,
    key text not null,
    label text,
    url text,
    causes text[] not null,
    deleted_at timestamptz not null
);

comment on table gc.erasures is
    'What an export of gc.deletion_log says was deleted for a cause: after a restore, copied here.';
comment on column gc.erasures.collection is 'The collection of the row.';
comment on column gc.erasures.key is 'The row''s primary key, as text.';
comment on column gc.erasures.label is 'What a person called the row.';
comment on column gc.erasures.url is 'The object''s address; null: the row had none.';
comment on column gc.erasures.causes is 'What gc.because was told.';
comment on column gc.erasures.deleted_at is 'When it was deleted.';


create function gc._erase_command(name text, key text, cause text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select format('begin; select gc.because(%L); delete from %s where %s; commit;', cause, c.target,
        case
            when cardinality(k.names) = 1
                then format('%I = %L::%s', k.names[1], key, k.types[1])
            else format('(%s) = (%s)', gc._idents(k.names), (
                select string_agg(format('(%L::gc.%I).%I', key, gc._object_name(c.name, '_key'), u),
                    ', ' order by n)
                from unnest(k.names) with ordinality as o(u, n)
            ))
        end)
    from gc.collections as c
    cross join lateral gc._key(c.target) as k
    where c.name = _erase_command.name
$$;

comment on function gc._erase_command(text, text, text) is
    'The statements that delete a row once more, for the same cause; null: it is not tracked.';


create function gc.replay_erasures(since timestamptz default '-infinity')
    returns table (
        collection text, key text, cause text, erased_at timestamptz, alive boolean, command text
    )
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    unreadable jsonb;
begin
    perform gc._require_owner();
    unreadable := gc._unreadable();
    return query
        select e.collection, e.key, e.cause, e.erased_at, e.alive,
            case when e.alive then gc._erase_command(e.collection, e.key, e.cause) end
        from (
            select o.collection, o.key, array_to_string(o.causes, ', '), o.deleted_at,
                case when exists (select from gc.collections as c where c.name = o.collection)
                    then gc._kept_by(o.collection, o.key, unreadable) is not null end
            from (
                select distinct on (d.collection, d.key) d.* from gc.erasures as d
                where d.deleted_at >= since
                order by d.collection, d.key, d.deleted_at desc
            ) as o
        ) as e(collection, key, cause, erased_at, alive)
        order by e.erased_at, e.collection, e.key;
end;
$$;
revoke all on function gc.replay_erasures(timestamptz) from public;

comment on function gc.replay_erasures(timestamptz) is
    'After a restore: of what gc.erasures says was deleted for a cause since then, what is alive '
    'again in this database, and what to type to delete it again.';
