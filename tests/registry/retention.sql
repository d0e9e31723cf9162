-- Retention: which tags go by rules, how reviews apply them, and what a preview says before.
savepoint retention;
update gc.settings set jitter = '0';

-- Patterns.
create function test.letters(n integer) returns text language sql immutable as
$$ select string_agg(chr(c), '') from generate_series(x'100'::integer, x'100'::integer + n - 1) as c $$;
select is_empty($$select p.pattern, p.name from (values
        ('*', 'v1', true), ('v*', 'v1', true), ('v*', 'xv1', false), ('v?', 'v12', false),
        ('*', 'acme/app', false), ('**', 'acme/app', true), ('acme/*', 'acme/a/b', false),
        ('acme/**', 'acme/a/b', true), ('v{1,2}.*', 'v2.0', true), ('v{1,2}.*', 'v3.0', false),
        ('v1.0', 'v1x0', false), ('!v*', 'v1', false), ('!v*', 'x', true),
        ('~v[0-9]+', 'v12', true), ('~v[0-9]+', 'v12b', false), ('!~v[0-9]+', 'v12b', true),
        ('~a|b', 'ab', false), ('~^v1$', 'v1', true), ('~[^a]{2}', 'bc', true),
        (E'~v\\d+(\\.\\d+)+', 'v1.2.3', true), (E'~[[:alpha:]]+[.\\d]', 'a1', true),
        ('~[0-9a-f]{7,40}', '0123456789abcdef', true), ('~(x|(y+z?)*)-.*', 'yyzy-1', true),
        -- That of semver.org, but for groups that are not captured.
        (E'~^(0|[1-9]\\d*)\\.(0|[1-9]\\d*)\\.(0|[1-9]\\d*)'
            '(-((0|[1-9]\\d*|\\d*[a-zA-Z-][0-9a-zA-Z-]*)(\\.(0|[1-9]\\d*|\\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?'
            '(\\+([0-9a-zA-Z-]+(\\.[0-9a-zA-Z-]+)*))?$', '1.20.3-rc.1', true),
        ('~(main|master|develop|release|staging|nightly|weekly|preview|canary)(-[0-9]{8})*', 'weekly-20260131', true)
    ) as p(pattern, name, is_match)
    where (p.name ~ registry._regexp(p.pattern)) <> p.is_match$$, 'patterns stand for whole names');
select is(test.sqlstate_of(format(
    'insert into registry.retention (action, tags) values (''keep'', %L)', p)), '22023',
    p || ' is no pattern')
from unnest(array['', 'a b', '[a]', '{a', 'a,b', '~(', E'~(a)\\1', '~(?=a)', '~(a{9}){9}', '~a)|(b',
    repeat('a', 201), '~' || repeat('.{0,255}', 24), '~' || repeat('(', 13) || 'a' || repeat('+)', 13),
    '~' || repeat('(^|$)*', 8), E'~(\\m|\\Y)*', E'~\\A*', '~[[:<:]]', '~[a]]', E'~\\x41', '~(^)*',
    '~a$|^b', '~***=a', '~a{9', E'~a\\',
    '~(' || repeat(E'\\w{0,130}', 6) || '|' || test.letters(140) || ')*',
    '~(' || repeat(E'\\w?', 50) || ')*' || test.letters(45)]) as p;
select is(test.sqlstate_of('insert into registry.retention (action, repositories) '
    'values (''keep'', ''('')'), '22023', 'nor is that one of repositories');

-- Six images, v1 to v6; v6 is the newest, and each is an hour older than the next.
create function test.age(repository text) returns void language sql as $$
    update registry.tags as t
    set updated_at = clock_timestamp() - interval '1 hour' * (7 - substr(t.name, 2)::integer)
    where t.name ~ '^v[0-9]$'
        and t.repository_id = (registry.find_repository(repository)).id
$$;
create function test.tags(repository text) returns text language sql stable as $$
    select string_agg(t, ' ' order by t) from registry.list_tags(repository) as t
$$;
create function test.rules(variadic rules text[]) returns void language plpgsql as $$
declare
    r text;
begin
    delete from registry.retention;
    foreach r in array rules loop
        execute 'insert into registry.retention (action, repositories, tags, newest, within, by) '
            'values ' || r;
    end loop;
end;
$$;
-- What would stay.
create function test.stay(repository text) returns text language sql stable as $$
    select string_agg(p.tag, ' ' order by p.tag) from registry.preview_retention(repository) as p
    where p.verdict = 'keep'
$$;
select registry.create_repository('acme/app'), registry.create_repository('acme/other') \g /dev/null
select test.push('acme/app', 'image ' || n, array['base', 'layer ' || n], 'v' || n)
from generate_series(1, 6) as n \g /dev/null
select test.push('acme/other', 'image 1', '{base,layer 1}', 'v1') \g /dev/null
select test.age('acme/app'), test.age('acme/other') \g /dev/null

select is(test.stay('acme/app'), 'v1 v2 v3 v4 v5 v6', 'without a rule, every tag stays');
select test.rules($$('delete', 'acme/a*', '**', 2, null, 'pushed')$$) \g /dev/null
select is(test.stay('acme/app'), 'v5 v6', 'all but the newest go');
select is(test.stay('acme/other'), 'v1', 'in the repositories that match, and in no others');
select test.rules($$('delete', '**', '**', null, '150 minutes', 'pushed')$$) \g /dev/null
select is(test.stay('acme/app'), 'v5 v6', 'all go that were pushed before a time');
select test.rules($$('delete', '**', '**', 4, '150 minutes', 'pushed')$$) \g /dev/null
select is(test.stay('acme/app'), 'v3 v4 v5 v6',
    'those go that are neither among the newest nor recent');
select test.rules($$('delete', '**', '**', null, null, 'pushed')$$,
    $$('keep', '**', '~v[12]', null, null, 'pushed')$$) \g /dev/null
select is(test.stay('acme/app'), 'v1 v2', 'what a pattern keeps is kept');
select test.rules($$('delete', '**', '**', null, null, 'pushed')$$,
    $$('keep', '**', '~v[123]', 1, null, 'pushed')$$,
    $$('keep', '**', '~v[456]', 2, null, 'pushed')$$) \g /dev/null
select is(test.stay('acme/app'), 'v3 v5 v6', 'each rule counts the newest of its own pattern');
select test.rules($$('delete', '**', '**', null, null, 'pushed')$$,
    $$('keep', '**', '**', 3, '150 minutes', 'pushed')$$) \g /dev/null
select is(test.stay('acme/app'), 'v5 v6', 'a rule that keeps wants all that it names');
update registry.retention set enabled = false where action = 'keep';
select is(test.stay('acme/app'), null, 'a rule that is not enabled does nothing');

-- Pulls.
select test.rules($$('delete', '**', '**', 2, null, 'pulled')$$) \g /dev/null
select is(test.stay('acme/app'), 'v5 v6', 'what was never pulled counts from its push');
select is(registry.touch('{acme/app, acme/app, acme/none, acme/app}',
    '{v2, v9, v1, "sha256:0"}'), 1, 'a pull is written; what is not there is left out');
select is(test.stay('acme/app'), 'v2 v6', 'what was pulled later is newer');
select is(registry.touch('{acme/app}', '{v2}'), 0, 'a tag is written once an hour');
select is(registry.touch('{acme/app}', '{v2}', pulled_at => now() + interval '61 minutes'), 1,
    'and again after that');
insert into registry.scanners (client) values ('trivy/**');
select is(registry.touch('{acme/app,acme/app}', '{v3,v4}', '{trivy/1.0, docker/20}'), 1,
    'pulls of scanners do not count');
select is(registry.touch('{acme/app}', array[test.digest_of('image 3')]), 1,
    'a pull by digest counts for its tags');
select is(test.stay('acme/app'), 'v2 v3', 'and is newer than pushes');
select test.rules($$('delete', '**', '**', null, '90 minutes', 'pulled')$$) \g /dev/null
update registry.pulls set pulled_at = now() - interval '3 hours' where name = 'v2';
select is(test.stay('acme/app'), 'v3 v4 v6', 'nor does the time, if that is to count');
update registry.pulls set pulled_at = now() - interval '1 year' where name <> 'v2';
select is(test.stay('acme/app'), 'v6', 'a pull before the push does not count');
delete from registry.pulls;

-- What is about another manifest, and what is pinned.
select test.rules($$('delete', '**', '**', 1, null, 'pushed')$$) \g /dev/null
select test.push('acme/app', 'signature', '{}', 'signed', test.digest_of('image 1')),
    test.push('acme/app', 'old style', '{}',
        replace(test.digest_of('image 1'), ':', '-') || '.sig'),
    test.push('acme/app', 'lonely', '{}', 'sha256-' || repeat('0', 64) || '.sig') \g /dev/null
select is((select string_agg(p.reason, ', ' order by p.reason)
        from registry.preview_retention('acme/app') as p where p.tag !~ '^v'),
    'deleted by a rule, its subject is there, its subject is there',
    'signatures stay as long as their subject, and go without it');
select ok(test.stay('acme/app') ~ 'v6$', 'they take no place among the newest');
select registry.untag('acme/app', t) from registry.list_tags('acme/app') as t
where t !~ '^v' \g /dev/null
select set_eq($$select image, is_pinned from registry.report_deployed('prod', array[
        'docker-pullable://r.example.com/acme/app@' || test.digest_of('image 2'),
        'localhost:5000/acme/app:v3', 'acme/app:v4@' || test.digest_of('image 1'), '',
        'acme/none:v1', 'r.example.com/acme/app@sha256:0', 'r.example.com/acme/app'])$$,
    $$values ('docker-pullable://r.example.com/acme/app@' || test.digest_of('image 2'), true),
        ('localhost:5000/acme/app:v3', true), ('acme/app:v4@' || test.digest_of('image 1'), true),
        ('acme/none:v1', false), ('r.example.com/acme/app@sha256:0', false),
        ('r.example.com/acme/app', false)$$, 'what is deployed is pinned, by digest or by tag');
select is(test.stay('acme/app'), 'v1 v2 v3 v6', 'and its tags stay');
select results_eq($$select key ~ ',v3[)]$' from gc.pins where collection = 'tag'$$, array[true],
    'a tag by which an image is named is pinned itself');
select is((select p.reason from registry.preview_retention() as p
    where p.tag = 'v2'), 'pinned by prod', 'because of whom, a preview says');
select is((select count(*) from registry.report_deployed('prod',
        array['acme/app@' || test.digest_of('image 2')]) as d
    cross join lateral (select from gc.operations as o where o.operation = 'pin') as o), 4::bigint,
    'a pin that has much of its time left is not written again');
select ok((select r.is_pinned from registry.report_deployed('edge', '{acme/app:v5}', 'infinity') as r),
    'what is deployed may be pinned without an end')
from generate_series(1, 2);
select is((select max(p.until) from gc.pins as p where p.holder = 'edge'), 'infinity'::timestamptz,
    'and has none then');
delete from gc.pins where holder = 'edge';
select gc.unpin(p.collection, array_agg(p.key), 'prod') from gc.pins as p
group by p.collection \g /dev/null
select test.push('acme/other', 'arm', '{base}') as arm \gset
select test.push_list('acme/other', 'list', array[:'arm'], 'multi') \g /dev/null
select registry.report_deployed('prod', array['acme/other@' || :'arm']) \g /dev/null
select is((select p.reason from registry.preview_retention() as p where p.tag = 'multi'),
    'pinned by prod', 'the lists of an image that is deployed are pinned, too');
select registry.untag('acme/other', 'multi') \g /dev/null
select gc.unpin(p.collection, array_agg(p.key), 'prod') from gc.pins as p
group by p.collection \g /dev/null
select gc.pin('tag', (select format('(%s,%s,v1)', r.namespace_id, r.id)
    from registry.find_repository('acme/app') as r), holder => 'me') \g /dev/null
select is(test.stay('acme/app'), 'v1 v6', 'a tag can be pinned, too');
delete from gc.pins;

-- What is freed.
select results_eq($$select tag, frees from registry.preview_retention('acme/app')
        where verdict = 'delete'$$,
    $$values ('v1', 19::numeric), ('v2', 24), ('v3', 24), ('v4', 24), ('v5', 24)$$,
    'a preview says what each tag frees: a signature, but nothing others use');
select registry.tag('acme/app', 'again', test.digest_of('image 2')) \g /dev/null
update registry.tags set updated_at = now() - interval '1 day' where name = 'again';
select results_eq($$select tag, frees from registry.preview_retention('acme/app')
        where frees > 0$$, $$values ('again', 24::numeric), ('v1', 19), ('v3', 24), ('v4', 24),
        ('v5', 24)$$, 'what two tags free together is counted once');
select results_eq($$select * from registry.frees_tag('acme/app', 'again')$$,
    'values (0::bigint, 0::bigint, 0::numeric)', 'a tag of two frees nothing');
select registry.untag('acme/app', 'again') \g /dev/null
select results_eq($$select * from registry.frees_tag('acme/app', 'v2')$$,
    'values (1::bigint, 2::bigint, 24::numeric)', 'the last tag of a manifest frees its blobs');
select results_eq($$select * from registry.frees_repository('acme/app')$$,
    'values (9::bigint, 13::bigint, 174::numeric)', 'a repository frees what no other uses');
select results_eq($$select * from registry.frees_namespace('acme')$$,
    $$select count(*), (select count(*) from registry.blobs),
        (select sum(size) from registry.blobs) from registry.manifests$$,
    'the only namespace frees everything');

-- Reviews apply it.
select test.empty_queues() \g /dev/null
select results_eq('select reviewed, deleted from gc.review(2) where collection = ''tag''',
    'values (2, 2)', 'a review deletes as many tags as it is given');
select is(test.tags('acme/app'), 'v3 v4 v5 v6', 'the oldest first');
select results_eq('select deleted from gc.review() where collection = ''tag''', 'values (3)',
    'the next goes on');
select is(test.tags('acme/app') || ' ' || test.tags('acme/other'), 'v6 v1', 'until all are gone');
select set_eq('select label, event from gc.deletion_log where collection = ''tag''',
    $$select format('acme/app:v%s (rule %s)', n, r.id), 'tag_expiry'
        from generate_series(1, 5) as n cross join registry.retention as r$$,
    'the log has the tags and the rule');
select is((select count(*) from gc.manifest_review_queue where event = 'tag_delete'), 5::bigint,
    'their manifests are reviewed as after any removal of a tag');
select is((select reviewed from gc.review() where collection = 'tag'), 0,
    'and nothing is left to do');

-- No delay holds for what a review has marked itself: no later one would delete it.
savepoint delayed;
select gc.set_delay('tag_expiry', '1 hour') \g /dev/null
update registry.retention set newest = 0;
select results_eq('select reviewed, deleted from gc.review() where collection = ''tag''',
    'values (2, 2)', 'however long an expired tag is to wait, the review that marks it deletes it');
rollback to delayed;

-- Once an hour, and at once when a rule has changed.
select test.push('acme/app', 'image ' || n, array['base', 'layer ' || n], 'v' || n)
from generate_series(1, 5) as n \g /dev/null
select test.age('acme/app') \g /dev/null
select is((select deleted from gc.review() where collection = 'tag'), 0,
    'a round has an hour until the next');
update registry.retention set newest = 5;
select is((select deleted from gc.review() where collection = 'tag'), 1,
    'a rule that is changed is applied at once');

-- The brake, and what was marked when it was pulled.
select gc.set_brake('tag', 0.1, 1) \g /dev/null
update registry.retention set newest = 1;
select gc.review() \g /dev/null
select is(test.tags('acme/app'), 'v2 v3 v4 v5 v6', 'too much at once');
select matches((select s.paused_why from gc.status() as s where s.collection = 'tag'), 'one hour',
    'pauses the tags, and nothing else');
select cmp_ok((select count(*) from registry.tags where expired_by is not null), '>', 0::bigint,
    'some were marked');
update registry.retention set newest = 5;
select gc.set_brake('tag', 1) \g /dev/null
select gc.resume('tag') \g /dev/null
select is((select deleted from gc.review() where collection = 'tag'), 0,
    'what rules do not say any more is not done');
select is((select count(*) from registry.tags where expired_by is not null), 0::bigint,
    'the marks are taken back');

-- Undo.
delete from gc.trash_rows;
update registry.retention set newest = 4;
select gc.review() \g /dev/null
select gc.set_delay('tag_delete', '0') \g /dev/null
select test.collect() \g /dev/null
select is(test.tags('acme/app'), 'v3 v4 v5 v6', 'a tag went, and its manifest after it');
select is((select count(*) from registry.manifests as m where test.name_of(m.digest) = 'image 2'),
    0::bigint, 'both are gone');
select gc.restore('tag', (select t.key from gc.trash as t
    where t.collection = 'tag' and t.label ~ ':v2')) \g /dev/null
select is((select count(*) from registry.tags where name = 'v2' and expired_by is null), 1::bigint,
    'a tag that is restored comes back, without a mark');
select lives_ok($$select registry.get_manifest('acme/app', 'v2')$$, 'and with its manifest');

-- A rule, or a repository, about which nothing can be said.
create or replace function registry._subject_of(name text, subject_digest bytea)
    returns bytea language plpgsql immutable as
$$ begin if name = 'v6' then raise 'no'; end if; return null; end $$;
select test.rules($$('delete', '**', '**', 0, null, 'pushed')$$) \g /dev/null
select gc.review() \g /dev/null
select is(test.tags('acme/app') || ' ' || coalesce(test.tags('acme/other'), 'nothing'),
    'v2 v3 v4 v5 v6 nothing', 'costs only itself');
select is((select failed from registry.retention_round), 'acme/app: no', 'and it is noted');
rollback to retention;

-- What a reference of the application's own keeps, a round passes over.
savepoint passing;
update gc.settings set jitter = '0', undo = '0';
select gc.set_brake('tag', 1) \g /dev/null
select registry.create_repository(r) from unnest('{acme/app, acme/other}'::text[]) as r \g /dev/null
select test.push('acme/app', 'one', '{base}') as one \gset
select registry.tag('acme/app', 't' || lpad(n::text, 2, '0'), :'one')
from generate_series(1, 25) as n \g /dev/null
update registry.tags set updated_at = now() - interval '1 day' * (30 - substr(name, 2)::integer);
select test.push('acme/other', 'two', '{base}', 'v1') \g /dev/null
create table test.deployments (
    namespace_id bigint, repository_id bigint, name text collate "C",
    constraint deployments_tag_fkey
        foreign key (namespace_id, repository_id, name) references registry.tags
);
create index on test.deployments (namespace_id, repository_id, name);
insert into test.deployments
select namespace_id, repository_id, name from registry.tags where name between 't01' and 't21';
insert into registry.retention (action, newest) values ('delete', 0);
create function test.tags(repository text) returns text language sql stable as $$
    select string_agg(t, ' ' order by t) from registry.list_tags(repository) as t
$$;
create function test.review_tags(times integer, batch integer) returns bigint language sql as $$
    select sum(r.deleted)
    from generate_series(1, times) as n
    cross join lateral (
        select deleted from gc.review(batch + 0 * n) where collection = 'tag' offset 0
    ) as r
$$;
select is(test.review_tags(1, 10), 0::bigint, 'what the application refers to is kept');
select is(test.review_tags(2, 10), 5::bigint,
    'more of that than a batch does not keep a round from the rest');
select is(test.tags('acme/app') ~ 't22' or test.tags('acme/other') is not null, false,
    'nor from other repositories');
select is(registry._expire_tags(0, 'infinity'), true, 'the last marks are to be taken back');
select gc.review(10) \g /dev/null
select is(registry._expire_tags(0, 'infinity'), false, 'then the round is over');
select is_empty('select from registry.tags where expired_by is not null', 'without a mark left');
select is_empty('select from gc.tag_review_queue', 'nor a review of what lost its mark');
delete from test.deployments;
update registry.retention_round set due_at = '-infinity';
select is(test.review_tags(3, 10), 21::bigint, 'the next round asks again');

-- One of a batch.
select registry.tag('acme/app', 't' || n, :'one') from generate_series(10, 14) as n \g /dev/null
update registry.tags set updated_at = now() - interval '1 day' * (30 - substr(name, 2)::integer);
insert into test.deployments
select namespace_id, repository_id, name from registry.tags where name in ('t10', 't13');
update registry.retention_round set due_at = '-infinity';
select is(test.review_tags(1, 2), 1::bigint, 'one that stays costs only itself');
select is(test.review_tags(2, 2), 2::bigint, 'and the others go');

-- One that fails is passed over, too, and one that is held.
delete from test.deployments;
select registry.tag('acme/app', 't' || n, :'one') from generate_series(10, 14) as n \g /dev/null
update registry.tags set updated_at = now() - interval '1 day' * (30 - substr(name, 2)::integer);
create function test.refuse() returns trigger language plpgsql as $$
begin
    if old.name in ('t10', 't11') then raise 'no'; end if;
    return old;
end;
$$;
create trigger refuse before delete on registry.tags for each row execute function test.refuse();
select gc.keep_alive('tag', (select format('(%s,%s,t12)', r.namespace_id, r.id)
    from registry.find_repository('acme/app') as r)) \g /dev/null
update registry.retention_round set due_at = '-infinity';
select test.review_tags(5, 2) \g /dev/null
select is(test.tags('acme/app'), 't10 t11 t12', 'what fails or is held does not stop a round');
select is((select count(*) from gc.tag_review_queue where review_count > 0), 2::bigint,
    'failures are still known');
drop trigger refuse on registry.tags;
delete from gc.holds;
delete from gc.tag_review_queue;

-- What a review had no room for is not passed over.
select registry.tag('acme/app', 't' || n, :'one') from generate_series(10, 29) as n \g /dev/null
select registry.touch(array_fill('acme/app'::text, '{20}'),
    array(select 't' || n from generate_series(10, 29) as n)) \g /dev/null
update gc.settings set max_rows = 12;
update registry.retention_round set due_at = '-infinity';
select cmp_ok(test.review_tags(1, 10), '<', 10::bigint, 'a review has no room for its batch');
select test.review_tags(12, 10) \g /dev/null
select is(test.tags('acme/app'), null, 'the next ones go on with the rest');
rollback to passing;

-- Immutable tags.
savepoint immutable;
select registry.create_repository('acme/app') \g /dev/null
select test.push('acme/app', 'one', '{base}', 'v1') as one \gset
select test.push('acme/app', 'two', '{base}', 'edge') as two \gset
insert into registry.retention (action, tags, newest)
values ('immutable', 'v*', null), ('delete', '**', 0);
select is(test.sqlstate_of(format('select registry.tag(''acme/app'', ''v1'', %L)', :'two')),
    'ZR022', 'an immutable tag is not switched');
select is(test.sqlstate_of($$select test.put('acme/app', 'two', '{base}', 'v1')$$), 'ZR022',
    'nor by a push');
select lives_ok($$select test.put('acme/app', 'one', '{base}', 'v1')$$,
    'pushing the same again is no change');
select is(test.sqlstate_of($$select registry.untag('acme/app', 'v1')$$), 'ZR022', 'nor removed');
select is(test.sqlstate_of(format('select registry.delete_manifest(''acme/app'', %L)', :'one')),
    'ZR022', 'nor with its manifest');
select lives_ok($$select test.put('acme/app', 'two', '{base}', 'v2')$$, 'a new one can be set');
select lives_ok(format('select registry.tag(''acme/app'', ''edge'', %L)', :'one'),
    'and another one switched');
select gc.review() \g /dev/null
select set_eq($$select registry.list_tags('acme/app')$$, '{v1, v2}'::text[],
    'no rule deletes what is immutable');
select lives_ok($$select registry.delete_repository('acme/app')$$,
    'a whole repository can be deleted nevertheless');
rollback to immutable;

-- Untagged manifests.
savepoint untagged;
update gc.settings set jitter = '0';
select registry.create_repository('acme/app'), registry.create_repository('acme/other') \g /dev/null
insert into registry.retention (action, repositories, within)
values ('untagged', 'acme/app', '30 days'), ('untagged', 'acme/*', '10 days'),
    ('untagged', '**', '1 hour');
select test.push('acme/app', 'one', '{base}'), test.push('acme/other', 'two', '{base}') \g /dev/null
update gc.manifest_review_queue set review_after = now();
select is((select reviewed from gc.review() where collection = 'manifest'), 0,
    'a rule puts reviews of untagged manifests off');
select results_eq('select r.path, q.event, q.review_after - now() '
    'from gc.manifest_review_queue as q '
    'join registry.repositories as r on r.id = q.repository_id order by r.path',
    $$values ('acme/app'::text collate "C", 'manifest_untagged', interval '29 days'),
        ('acme/other', 'manifest_untagged', interval '9 days')$$,
    'to the time that is the longest, counted from the event');
delete from gc.holds;
-- So long ago was the event, and the review that was put off is due.
create function test.went_by(elapsed interval) returns void language sql as $$
    update gc.manifest_review_queue
    set review_after = now(), asleep_since = now() - elapsed
    where event = 'manifest_untagged'
$$;
select test.went_by('12 days') \g /dev/null
select is((select deleted from gc.review() where collection = 'manifest'), 1,
    'and one goes when that is over');
update registry.retention set within = '60 days' where within = '30 days';
select test.went_by('31 days') \g /dev/null
select is((select reviewed from gc.review() where collection = 'manifest'), 0,
    'a rule that is made longer counts for what was put off before');
select results_eq('select event, review_after - now() from gc.manifest_review_queue',
    $$values ('manifest_untagged', interval '29 days')$$, 'from the event, too');
update registry.retention set within = '90 days' where within = '60 days';
select test.went_by('61 days') \g /dev/null
select is((select reviewed from gc.review() where collection = 'manifest'), 0,
    'and as often as it is made longer');
update registry.retention set within = '62 days' where within = '90 days';
select gc.review() \g /dev/null
select results_eq('select event, review_after - now() from gc.manifest_review_queue',
    $$values ('manifest_untagged', interval '1 day')$$, 'one that is made shorter counts, too');
savepoint failed;
update gc.manifest_review_queue set review_count = 1, review_after = now() + interval '20 hours';
update registry.retention set enabled = false;
select gc.review() \g /dev/null
select is((select review_after - now() from gc.manifest_review_queue), interval '20 hours',
    'what has failed is left to its backoff');
update gc.manifest_review_queue set review_after = now() + interval '1 year';
update registry.retention set enabled = false;
select is((select deleted from gc.review() where collection = 'manifest'), 1,
    'unless a rule has put it off');
rollback to failed;
update registry.retention set enabled = false;
select is((select deleted from gc.review() where collection = 'manifest'), 1,
    'and without a rule, what waited longer than for the event goes');
rollback to untagged;
