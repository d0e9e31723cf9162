-- Deleting: what a review does with garbage, and the review function of a collection as a whole.

-- Rows without an object have nobody to confirm them: the review writes their log. An address that
-- is made of the key is never null.
create function gc._logged_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case when c.url is not null and not c.shared then '' else gc._render($template$
,
logged as (
    insert into gc.deletion_log (collection, key, label, size, event, row_deleted_at, causes)
    select {name}, {key_text}, {label}, {size}, this.event, now(), this.causes
    from gone as {alias}
    where {no_object}
)$template$, c.words) end
$$;

comment on function gc._logged_sql(gc._shape) is
    'The part of a review that writes the log of rows without an object.';


create function gc._delete_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- The row goes first, then its object: a trigger leaves the tombstone, and is told the reason.
this.before := deleted;
for this.event in
    select distinct q.event from {queue} as q where q.ctid = any (this.garbage)
loop
    insert into gc.reviewing values (pg_current_xact_id(), {name}, this.event);
    with gone as (
        delete from {only_target} as t
        using {queue} as q
        where q.ctid = any (this.garbage) and q.event = this.event and {t_is_q}
        returning t.*
    ){logged}
    select count(*), coalesce(sum({size}), 0) into this.step, this.freed from gone as {alias};
    deleted := deleted + this.step;
    bytes := bytes + this.freed;
    delete from gc.reviewing as r where r.xid = pg_current_xact_id();
end loop;
perform set_config('blobgc.reviewing', '', true);
if deleted - this.before < cardinality(this.garbage) then
    raise 'a trigger or a rule on % kept % rows from being deleted',
        {table}, cardinality(this.garbage) - (deleted - this.before);
end if;
touched := touched + deleted - this.before;
delete from {queue} as q where q.ctid = any (this.garbage);$template$,
        c.words || jsonb_build_object(
            'logged', gc._logged_sql(c), 'only_target', gc._only(c.target)))
$$;

comment on function gc._delete_sql(gc._shape) is 'The part of a review that deletes.';


-- Who keeps owned rows for an undo is told as well that a review deletes them.
create function gc._mark_words(c gc._shape)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select case
        when c.undo = '0' or gc._owns_sql(c) is null
            then jsonb_build_object('mark', '', 'unmark', '')
        else jsonb_build_object(
            'mark', gc._render($template$
if cardinality(this.garbage) > 0 then
    insert into gc.reviewing
    select pg_current_xact_id(), {name}, min(q.event) from {queue} as q
    where q.ctid = any (this.garbage);
end if;$template$, c.words),
            'unmark',
            'delete from gc.reviewing as r where r.xid = pg_current_xact_id_if_assigned();')
    end
$$;

comment on function gc._mark_words(gc._shape) is
    'The parts of a review that say, and no longer say, that it deletes owned rows.';


create function gc._delete_all_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- Triggers of the application's own look for names where they would in the application.
perform set_config('search_path', gc._application_path({table}), true);
{each_cause}
perform set_config('search_path', 'pg_catalog, pg_temp', true);$template$,
        c.words || jsonb_build_object('each_cause', gc._each_cause_sql(c, concat_ws(E'\n',
            gc._render('perform set_config(''blobgc.reviewing'', {name}, true);', c.words),
            nullif(m.words ->> 'mark', ''), nullif(gc._owned_sql(c), ''),
            nullif(m.words ->> 'unmark', ''), gc._delete_sql(c)))))
    from (select gc._mark_words(c)) as m(words)
$$;

comment on function gc._delete_all_sql(gc._shape) is
    'The part of a review that deletes, owned rows first.';


create function gc._put_off_sql(c gc._shape)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._render($template$
-- If an entry is left, its row is gone, or somebody has it locked: it is looked at again later.
if deleted < reviewed - kept then
    with dropped as (
        delete from {queue} as q
        where q.ctid = any (this.taken) and not exists (select from {target} as t where {t_is_q})
        returning q.*
    ){noted}
    select count(*) into this.step from dropped;
    select count(*) into busy from {queue} as q where q.ctid = any (this.taken);
    update {queue} as q
    set review_after = now() + (select s.busy_delay from gc.settings as s)
    where q.ctid = any (this.taken){not_waiting};
end if;$template$,
        c.words || jsonb_build_object('noted', gc._noted_sql(c), 'not_waiting', case
            when gc._owns_sql(c) is null then ''
            else ' and q.ctid <> all (coalesce(this.waiting, ''{}''))'
        end))
$$;

comment on function gc._put_off_sql(gc._shape) is
    'The part of a review that puts off what it could not decide.';


create function gc._review_words(c gc._shape)
    returns jsonb
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object(
        'function_name', quote_literal(gc._object_name(c.name, '_review')),
        'decide', gc._decide_sql(c),
        'variables', concat_ws(E'\n', 'held tid[];', 'step integer;', 'event text;',
            'freed bigint;', 'before integer;', gc._cause_variables(c),
            case when gc._is_spread(c) then 'found tid[];' end,
            case when c.turns is not null then E'asleep tid[];\nwakes timestamptz[];' end, case
            when gc._owns_sql(c) is not null
                then E'waiting tid[];\nemptied tid[];\nowned integer;\nfits boolean;'
        end),
        'delete', gc._delete_all_sql(c),
        'put_off', gc._put_off_sql(c),
        'pinned', concat_ws(E'\n', gc._fixed_settings_sql(), gc._zone_settings()))
$$;

comment on function gc._review_words(gc._shape) is
    'What stands for the words in the template of a review.';


create function gc._review_sql(c gc._shape, fingerprint text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $$
    select gc._function_sql(c, '_review', $template$
create or replace function gc.{function}(
    batch integer default 1000, entries tid[] default null, most integer default 10000,
    checked boolean default false, out reviewed integer, out kept integer, out deleted integer,
    out busy integer, out bytes bigint, out touched integer
)
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set plan_cache_mode = force_generic_plan
    {by_index}
    {pinned}
$template$, $template$
#variable_conflict use_column
<<this>>
declare
    fingerprint constant text := {fingerprint};
    wanted integer := batch;
    given tid[] := entries;
    room integer := most;
    taken tid[];
    locked tid[];
    garbage tid[];
    superseded tid[];
    {variables}
begin
    perform gc._require_read_committed({function_name});
    perform gc._require_not_paused({name}) where not checked;
    -- Nobody can add a foreign key from here on, and this code knows all that there are.
    if not checked and not gc._is_current({name}, this.fingerprint) then
        select f.* into reviewed, kept, deleted, busy, bytes, touched
        from gc.{function}(wanted, given, room, true) as f;
        return;
    end if;
    {decide}
    {delete}
    {put_off}
end;$template$,
        gc._review_words(c) || jsonb_build_object('fingerprint', quote_literal(fingerprint)))
$$;

comment on function gc._review_sql(gc._shape, text) is 'The function gc.<name>_review.';
