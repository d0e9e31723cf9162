-- Keys as long as PostgreSQL allows: 2,690 bytes that cannot be compressed fill a page of a btree.
begin;
set local client_min_messages = error;
select plan(30);

create schema app;
update gc.settings set jitter = '0', undo = '0';
create table app.paper (id text primary key);
create table app.quote (id integer primary key, paper_id text references app.paper);
create index on app.quote (paper_id);
create table app.blob (digest bytea primary key, path text);
create table app.layer (
    id integer, part integer, digest bytea references app.blob, primary key (id, part)
) partition by list (part);
create table app.layer_1 partition of app.layer for values in (1);
create table app.layer_2 partition of app.layer for values in (2);
create index on app.layer (digest);
create table app.pair (a text, b integer, primary key (a, b));

create function pg_temp.noise(seed integer, length integer)
    returns text
    language sql
as $$
    select left(string_agg(encode(sha512((seed || ' ' || i)::bytea), 'base64'), ''), length)
    from generate_series(1, 40) as i
$$;
create function pg_temp.bytes(seed integer, length integer)
    returns bytea
    language sql
as $$
    select substr(string_agg(sha512((seed || ' ' || i)::bytea), ''), 1, length)
    from generate_series(1, 60) as i
$$;

select lives_ok($$select gc.track('app.paper', url => '''s3://paper/'' || id', label => 'left(id, 3)')$$,
    'a table with text keys is tracked');
select lives_ok($$select gc.track('app.blob', url => '''s3://blob/'' || encode(digest, ''hex'')')$$,
    'a table with binary keys, to which partitions refer, is tracked');
select lives_ok($$select gc.track('app.pair', condition => 'true', url => '''s3://pair/'' || a || b')$$,
    'a table with a key of two columns is tracked');
select is((select count(*) from pg_class where relname = 'blob_layer_links'), 1::bigint,
    'the second has links');
select gc.set_delay(e, '0') from unnest(array['paper_insert', 'blob_insert', 'pair_insert',
    'quote_delete', 'layer_delete', 'quote_update', 'layer_update']) as e \g /dev/null

select lives_ok($$insert into app.paper select pg_temp.noise(i, 2690) from generate_series(1, 3) as i$$,
    'text keys of 2,690 bytes are inserted');
select lives_ok($$insert into app.blob select pg_temp.bytes(i, 2690) from generate_series(1, 3) as i$$,
    'binary keys of 2,690 bytes are inserted');
select lives_ok($$insert into app.pair values (pg_temp.noise(1, 2680), 1)$$,
    'a long key of two columns is inserted');
select lives_ok($$insert into app.quote select i, pg_temp.noise(i, 2690) from generate_series(1, 2) as i$$,
    'rows refer to text keys');
select lives_ok($$insert into app.layer
    select i, i, pg_temp.bytes(i, 2690) from generate_series(1, 2) as i$$,
    'rows of partitions refer to binary keys');
select is((select count(*) from gc.blob_layer_links), 2::bigint, 'which leaves links');
select results_eq('select collection, kept, deleted, failed from gc.review()',
    $$values ('blob', 2, 1, 0), ('pair', 0, 1, 0), ('paper', 2, 1, 0)$$,
    'a review keeps what is referred to, and deletes the rest');
select lives_ok($$delete from app.quote where id = 1; delete from app.layer where id = 1$$,
    'a reference goes');
select lives_ok($$update app.quote set paper_id = null; update app.layer set digest = null$$,
    'another is changed');
select results_eq('select collection, kept, deleted, failed from gc.review()',
    $$values ('blob', 0, 2, 0), ('pair', 0, 0, 0), ('paper', 0, 2, 0)$$,
    'the next review deletes what they kept');
select is((select count(*) from gc.tombstones where length(key) >= 2680), 7::bigint,
    'every object has a tombstone');
select is((select count(*) from gc.claim('worker')), 7::bigint, 'and is handed out');
select is((select gc.confirm('worker', array_agg(id)) from gc.tombstones), 7, 'and confirmed');
select ok((select gc.begin_upload('paper', pg_temp.noise(1, 2690)) is not null),
    'an upload of such a key is announced');

-- By a long value, rows are distributed: there is no room for it beside the key.
create table app.room (id integer primary key);
create table app.chair (id text, room integer references app.room, primary key (id))
    partition by hash (id);
create table app.chair_0 partition of app.chair for values with (modulus 1, remainder 0);
create index on app.chair (room);
insert into app.room values (1), (2), (3);
insert into app.chair values (pg_temp.noise(1, 2690), 1);
select lives_ok($$select gc.track('app.room')$$, 'rows that are there have long partition keys');
insert into app.chair values ('a chair', 2);
select lives_ok($$insert into app.chair values (pg_temp.noise(2, 2690), 2)$$, 'others come');
select gc.set_delay(e, '0') from unnest(array['room_scan', 'chair_delete']) as e \g /dev/null
insert into app.chair values ('another', 1);
delete from app.chair where id = 'another';
select gc.scan('room', 10) \g /dev/null
select results_eq($$select kept, deleted, failed from gc.review() where collection = 'room'$$,
    $$values (1, 1, 0)$$, 'and keep what they refer to');
select results_eq('select in_id from gc.room_chair_links', array['a chair'], 'if without a link');

-- A domain over text is as long.
create domain app.word as text;
create table app.term (id app.word primary key, name char(2690));
create table app.use (id integer primary key, term_id app.word references app.term);
create index on app.use (term_id);
select from gc.track('app.term') \g /dev/null
select gc.set_delay(e, '0') from unnest(array['term_insert', 'use_delete']) as e \g /dev/null
select lives_ok($$insert into app.term select pg_temp.noise(i, 2690) from generate_series(1, 2) as i$$,
    'keys of a domain over text can be of 2,690 bytes');
select lives_ok($$insert into app.use values (1, pg_temp.noise(1, 2690))$$, 'and are referred to');
select is((select format('%s kept, %s deleted', kept, deleted) from gc.review()
    where collection = 'term'), '1 kept, 1 deleted', 'and reviewed');

-- Nor has any other type that may be long room for more than itself: PostgreSQL's own limit is the
-- only one.
create function pg_temp.digits(length integer) returns text language sql as $$
    select left(string_agg(abs(hashint4(i))::text, ''), length) from generate_series(1, 2000) as i
$$;
create function pg_temp.longest(relation text, key text) returns boolean language plpgsql as $$
declare
    accepted boolean[] := '{}';
begin
    for n in 2640 .. 2710 loop
        begin
            execute format('insert into app.plain_%s select %s', relation, key) using n;
        exception when program_limit_exceeded then
            continue;
        end;
        execute format('insert into app.%s select %s', relation, key) using n;
        accepted := accepted || true;
    end loop;
    return cardinality(accepted) between 10 and 65;
end;
$$;
create function pg_temp.track(relation text, columns text) returns void language plpgsql as $$
begin
    execute format('create table app.%1$s (%2$s); create table app.plain_%1$s (like app.%1$s '
        'including all)', relation, columns);
    perform gc.track(format('app.%s', relation)::regclass, condition => 'true');
end;
$$;
select pg_temp.track('amount', 'id numeric primary key'),
    pg_temp.track('document', 'id jsonb primary key'),
    pg_temp.track('list', 'id bytea[] primary key'),
    pg_temp.track('entry', 'a text, id numeric, primary key (a, id)') \g /dev/null
select ok(pg_temp.longest(relation, key), format('as long as it may be: %s', relation))
from (values
    ('amount', 'pg_temp.digits(2 * $1)::numeric'),
    ('document', 'to_jsonb(pg_temp.noise(1, $1))'), ('list', 'array[pg_temp.bytes(1, $1)]'),
    ('entry', $$'', pg_temp.digits(2 * $1)::numeric$$)
) as v(relation, key);
select is((select count(*) from gc.review()
    where collection in ('amount', 'document', 'list', 'entry') and failed = 0), 4::bigint,
    'and they are reviewed');

select * from finish();
rollback;
