-- Repositories: initial, active, deleting; names that are free at once.
savepoint lifecycle;

select registry.create_repository('acme/app') as first \gset
select matches(:'first'::text, '^acme/app@[0-9]+$', 'a repository is known by its name and its id');
select is(test.sqlstate_of($$select registry.create_repository('acme/app')$$), 'ZR021',
    'a name that is taken cannot be taken again');
select test.push('acme/app', 'one', '{base}', 'v1') as one \gset
select lives_ok(format('select registry.list_tags(%L)', :'first'), 'name@id finds exactly that one');

-- Delete: the name is free at once.
select registry.delete_repository('acme/app') \g /dev/null
select is(test.sqlstate_of($$select registry.list_tags('acme/app')$$), 'ZR009',
    'a deleted repository is not there');
select is(test.sqlstate_of(format('select registry.list_tags(%L)', :'first')), 'ZR009',
    'not by its id either');
select is_empty('select registry.list_repositories()', 'and is not listed');
select is(test.sqlstate_of($$select registry.delete_repository('acme/app')$$), 'ZR009',
    'it is deleted once');
select registry.create_repository('acme/app') as second \gset
select isnt(:'second'::text, :'first', 'its name is free at once, with another id');
select is_empty($$select registry.list_tags('acme/app')$$, 'and the new one is empty');
select is(test.sqlstate_of(format('select registry.list_tags(%L)', :'first')), 'ZR009',
    'the id tells it from the old one');
select test.push('acme/app', 'two', '{base}', 'v2') \g /dev/null
select is((select deleted from gc.review() where collection = 'repository'), 1,
    'the old one is reviewed at once, and goes');
select test.collect() \g /dev/null
select set_eq('select * from test.manifests()', '{acme/app two}'::text[],
    'with all that was in it; the new one keeps what it has');
select set_eq('select * from test.blobs()', '{base, config of two}'::text[],
    'and what both used is still there');

-- With lists, children, tags and referrers, in bounded steps.
select test.push('acme/app', 'child ' || n, array['l' || n]) as child
from generate_series(1, 10) as n \g /dev/null
select test.push_list('acme/app', 'list', (select array_agg(registry.digest_text(m.digest))
    from registry.manifests as m where test.name_of(m.digest) like 'child%'), 'list') as list \gset
select test.push_list('acme/app', 'outer', array[:'list'], 'outer') \g /dev/null
select test.push('acme/app', 'signature ' || n, '{}', null, :'list')
from generate_series(1, 10) as n \g /dev/null
select registry.delete_repository('acme/app') \g /dev/null
update gc.settings set max_rows = 12;
create function test.everything() returns bigint language sql stable as $$
    select (select count(*) from registry.tags) + (select count(*) from registry.layers)
        + (select count(*) from registry.manifest_references)
        + (select count(*) from registry.referrers) + (select count(*) from registry.manifests)
        + (select count(*) from registry.repository_blobs)
        + (select count(*) from registry.repositories)
$$;
create table test.steps (rows bigint);
do $$
declare
    before bigint;
begin
    delete from gc.manifest_review_queue;
    for i in 1 .. 100 loop
        before := test.everything();
        perform gc.review();
        insert into test.steps values (before - test.everything());
        exit when test.everything() = 0;
    end loop;
end
$$;
select is(test.everything(), 0::bigint,
    'a repository with lists, lists in lists, referrers and tags goes');
select cmp_ok((select max(rows) from test.steps), '<=', 12::bigint,
    'no review deletes more rows than the setting says');
select cmp_ok((select count(*) from test.steps), '>', 5::bigint, 'so it takes several');
update gc.settings set max_rows = 10000;

-- Created with contents: seen by nobody else until it has them all.
select registry.create_repository('acme/full', 'initial') as full \gset
select is(test.sqlstate_of($$select registry.list_tags('acme/full')$$), 'ZR009',
    'a repository that is being filled is not there for others');
select is_empty('select registry.list_repositories()', 'and is not listed');
select is(test.sqlstate_of($$select registry.create_repository('acme/full')$$), 'ZR021',
    'but its name is taken');
select lives_ok(format('select test.push(%L, ''one'', ''{base}'', ''v1'')', :'full'),
    'whoever creates it can fill it');
select registry.activate_repository(:'full'), test.collect() \g /dev/null
select set_eq($$select registry.list_tags('acme/full')$$, '{v1}'::text[],
    'then it is there with its contents, and stays');
select set_eq('select registry.list_repositories()', '{acme/full}'::text[], 'and is listed');
select lives_ok($$select registry.activate_repository('acme/full')$$,
    'activating it again changes nothing');

-- In a transaction that began long ago: the 2 minutes are counted by the clock.
select ok(created_at > now(), 'a repository is as old as the clock says, not as its transaction')
from registry.repositories where path = 'acme/full';

-- Left half created for 2 minutes.
select test.empty_queues() \g /dev/null
select registry.create_repository('acme/half', 'initial') as half \gset
select test.push(:'half', 'half', '{half}', 'v1') \g /dev/null
select ok(review_after between now() + interval '2 minutes' and now() + interval '3 minutes',
    'a repository that is created is reviewed after 2 minutes')
from gc.repository_review_queue;
select test.collect() \g /dev/null
select ok(exists (select from registry.repositories where path = 'acme/half'),
    'before that it is kept');
update registry.repositories set created_at = now() - interval '2 minutes' where path = 'acme/half';
select is(test.sqlstate_of(format('select registry.activate_repository(%L)', :'half')), 'ZR009',
    'left half created for 2 minutes, it cannot be completed any more');
select lives_ok($$select registry.create_repository('acme/half')$$, 'its name is free again');
select test.collect() \g /dev/null
select is((select count(*) from registry.repositories where path = 'acme/half'), 1::bigint,
    'and it is cleaned up');
select set_hasnt('select * from test.blobs()', $$values ('half')$$, 'with what was in it');
select registry.create_repository('acme/left', 'initial') \g /dev/null
update registry.repositories set created_at = now() - interval '3 minutes' where path = 'acme/left';
select test.collect() \g /dev/null
select is_empty($$select from registry.repositories where path = 'acme/left'$$,
    'also if nobody asks for the name');
select throws_ok($$select registry.create_repository('acme/x', 'odd')$$, '23514', null,
    'there are no other states');

rollback to lifecycle;
