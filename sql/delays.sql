-- Delays: how long after an event a row is reviewed. Each event may have its own; 1 day otherwise.
--
-- What every tracked statement has to know is not read from a table each time: it stands in small
-- functions, which PostgreSQL makes part of its plans. A change of a delay, or of a setting,
-- replaces the function, and with it the plans.

create table gc.review_after_defaults (
    event text not null
        constraint review_after_defaults_pkey primary key,
    value interval not null
        constraint review_after_defaults_value_not_negative check (value >= '0')
        constraint review_after_defaults_value_not_endless check (value <= '10 years')
);

comment on table gc.review_after_defaults is
    'How long after an event a row is reviewed: see gc.set_delay. An event that is not here has a '
    'day.';
comment on column gc.review_after_defaults.event is
    'An event of a collection: <collection>_insert, <table>_delete, or what gc.track named it.';
comment on column gc.review_after_defaults.value is 'The delay; zero means at once.';


create function gc._after_sql(delay interval, jitter interval)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
    set intervalstyle = 'postgres'
as $$
    select case
        when delay = '0' then 'now()'
        when jitter = '0' then format('now() + interval %L', delay)
        else format('now() + (interval %L + random() * interval %L)', delay, jitter)
    end
$$;

comment on function gc._after_sql(interval, interval) is
    'The expression for a time so far away, and at random a little further.';


create function gc._fold_settings()
    returns trigger
    language plpgsql
    volatile
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    jitter interval;
    strict_uploads boolean;
    delays text;
begin
    -- One change after the other; the second sees what the first has written.
    perform gc._require_read_committed(tg_table_name);
    perform gc._lock('settings');
    select s.jitter, s.strict_uploads into jitter, strict_uploads from gc.settings as s;
    select string_agg(
        format(' when event = %L then %s', d.event, gc._after_sql(d.value, jitter)), ''
        order by d.event)
    into delays
    from gc.review_after_defaults as d;
    perform gc._run(format(
        'create or replace function gc.review_after(event text) returns timestamptz '
        'language sql volatile parallel restricted return case%s else %s end',
        coalesce(delays, ' when false then null'), gc._after_sql('1 day', jitter)));
    perform gc._run(format(
        'create or replace function gc._strict_uploads() returns boolean '
        'language sql stable parallel safe return %L::boolean', strict_uploads));
    if strict_uploads then
        perform gc._tend_gate();
    end if;
    return null;
end;
$$;
revoke all on function gc._fold_settings() from public;

comment on function gc._fold_settings() is
    'Writes the functions that stand for settings in plans.';

create trigger after_change
    after insert or update on gc.settings
    for each statement execute function gc._fold_settings();
create trigger after_change
    after insert or update or delete or truncate on gc.review_after_defaults
    for each statement execute function gc._fold_settings();
alter table gc.settings enable always trigger after_change;
alter table gc.review_after_defaults enable always trigger after_change;

insert into gc.settings default values;

comment on function gc.review_after(text) is
    'When a row is to be reviewed for which this event happens now.';
comment on function gc._strict_uploads() is 'The setting strict_uploads.';


-- By the pairs of letters that two words have in common.
create function gc._nearest(word text, words text[])
    returns text
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $$
    select w
    from unnest(words) as w
    cross join lateral (
        select count(*)
        from (
            select substr(word, i, 2) from generate_series(1, length(word) - 1) as i
            intersect
            select substr(w, i, 2) from generate_series(1, length(w) - 1) as i
        ) as pairs
    ) as common(pairs)
    order by 2.0 * common.pairs / greatest(length(w) + length(word), 1) desc, w
    limit 1
$$;

comment on function gc._nearest(text, text[]) is 'The one of several words that is most like one.';


create function gc._queued(name text, event text)
    returns bigint
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    number bigint;
begin
    execute format('select count(*) from gc.%I as q where q.event = $1',
        gc._object_name(name, '_review_queue'))
    into number using event;
    return number;
end;
$$;

comment on function gc._queued(text, text) is 'How many entries of an event a queue has.';


create function gc.set_delay(event text, delay interval)
    returns void
    language plpgsql
    volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    known text[] := array(select distinct k.event from gc._known_events() as k order by 1);
    queued bigint;
begin
    perform gc._require_owner();
    if event is null or event <> all (known) then
        raise 'no collection has an event "%"', coalesce(event, 'null')
            using errcode = 'undefined_object',
                detail = format('Events: %s.',
                    coalesce(nullif(array_to_string(known, ', '), ''), 'none yet')),
                hint = format('select gc.set_delay(%L, %L);', gc._nearest(event, known), delay);
    end if;
    if delay not between '0' and '10 years' then
        raise 'a delay cannot be negative, nor longer than ten years'
            using errcode = 'invalid_parameter_value', detail = format('delay is %s.', delay),
                hint = format('select gc.set_delay(%L, ''1 day'');', event);
    end if;
    delete from gc.review_after_defaults as d where d.event = set_delay.event and delay is null;
    insert into gc.review_after_defaults as d (event, value)
    select set_delay.event, delay where delay is not null
    on conflict on constraint review_after_defaults_pkey do update set value = excluded.value;
    queued := (select sum(gc._queued(k.collection, k.event)) from gc._known_events() as k
        where k.event = set_delay.event);
    if queued > 0 then
        raise notice '% reviews that "%" has queued already keep their time', queued, event;
    end if;
end;
$$;
revoke all on function gc.set_delay(text, interval) from public;

comment on function gc.set_delay(text, interval) is
    'How long after an event a row is reviewed, from now on; null: a day, as without it.';
