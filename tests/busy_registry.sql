-- A registry on a busy day, for the page: images come and go, objects wait, some fail, somebody has
-- paused something; and a month of history. psql -v store=… -f tests/busy_registry.sql
create extension blobgc;
select gc.create_registry(store => :'store') \g /dev/null
update gc.settings set jitter = '0', brake_share = 1;

create function pg_temp.digest(what text)
    returns text
    language sql
    return 'sha256:' || encode(sha256(convert_to(what, 'UTF8')), 'hex');

select registry.create_repository(name)
from unnest(array['acme/api', 'acme/web', 'acme/worker', 'labs/models', 'labs/notebook']) as name
\g /dev/null

create function pg_temp.push(repository text, number integer)
    returns void
    language plpgsql
as $$
declare
    parts text[] := array['base ' || number % 4, repository || ' program ' || number,
        repository || ' configuration ' || number];
    sizes bigint[] := array[28000000 + number % 4 * 3100000, 1400000 + number * 7919 % 900000,
        2000 + number % 700];
begin
    for n in 1 .. 3 loop
        perform registry.begin_blob_upload(repository, pg_temp.digest(parts[n]));
        perform registry.finish_blob_upload(repository, pg_temp.digest(parts[n]), sizes[n]);
    end loop;
    perform registry.put_image(repository, pg_temp.digest(parts[3]),
        array[pg_temp.digest(parts[1]), pg_temp.digest(parts[2])], 'v' || number);
end;
$$;
select pg_temp.push(r.path, n)
from (select path, row_number() over (order by path) as place from registry.repositories) as r
cross join lateral generate_series(1, 24 - 2 * r.place::integer) as n
\g /dev/null

-- Old tags go, and what they leave is looked at: some of it now, some of it later.
delete from gc.holds;
delete from gc.manifest_review_queue;
delete from gc.blob_review_queue;
update gc.repository_review_queue set review_after = now() + interval '1 day';
select gc.set_delay('tag_delete', '0'), gc.set_delay('layer_delete', '2 hours'),
    gc.set_delay('manifest_delete', '2 hours') \g /dev/null
delete from registry.tags where substr(name, 2)::integer <= 11;
set application_name = 'blobgc 0.2.0 gc-1.acme.example/4012';
select count(*) from gc.review(48) \g /dev/null
update gc.blob_review_queue set review_after = now() - interval '40 seconds'
where mod(get_byte(digest, 5), 4) > 0;
select count(*) from gc.review(32) \g /dev/null
update gc.tombstones set due_at = now() - interval '3 minutes'
where id in (select id from gc.tombstones order by url limit 20);
select count(*) from gc.claim('gc-1', 9, '5 minutes', array[:'store' || '/']) \g /dev/null
select gc.fail('gc-1', array_agg(id), 'ClientError: AccessDenied: explicit deny in a bucket policy')
from (select id from gc.tombstones where worker = 'gc-1' order by id limit 3) as t \g /dev/null
set application_name = 'blobgc 0.2.0 gc-2.acme.example/977';
select count(*) from gc.claim('gc-2', 5, '5 minutes', array[:'store' || '/']) \g /dev/null
select gc.fail('gc-2', array_agg(id), 'ReadTimeoutError: no answer within 10 s')
from (select id from gc.tombstones where worker = 'gc-2' order by id limit 1) as t \g /dev/null
reset application_name;
select gc.pause('repository', 'moving labs/ to another bucket until Thursday', what => 'reviews')
\g /dev/null
select gc.pin('manifest', format('(%s,%s,%s)', namespace_id, repository_id, id),
    'customer escalation', holder => 'support')
from registry.manifests order by id desc limit 1 \g /dev/null

-- A month before today, more at the ends of weeks.
insert into gc.totals (collection, day, rows, objects, bytes, folded, counted_at)
select c.name, d.day, c.factor * load / 90, c.objects * load / 90, c.bytes * load, true,
    d.day::timestamp at time zone 'UTC'
from generate_series(0, 29) as n
cross join lateral (select (now() at time zone 'UTC')::date - n) as d(day)
cross join lateral (
    select 600 + (n * 7919 + 311) % 1300 + case when (29 - n) % 7 in (4, 5) then 900 else 0 end
) as l(load)
cross join (values ('manifest', 40, 0, 0::bigint), ('blob', 70, 70, 21000000::bigint)) as c(name, factor, objects,
    bytes);
insert into gc.deletion_log (
    collection, key, url, size, event, row_deleted_at, deleted_at, worker
)
select 'blob', format('old %s %s', n, k), :'store' || '/blobs/' || n || '-' || k, 1000,
    'layer_delete', t.at - interval '24 hours' - interval '1 minute' * (5 + (n * 31 + k * k) % 240),
    t.at, 'gc-1'
from generate_series(0, 29) as n
cross join generate_series(0, 23) as k
cross join lateral (
    select now() - n * interval '1 day' - k * interval '50 minutes'
) as t(at);
