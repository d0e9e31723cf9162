-- Suspects: columns that look like references and are none. A naive user who tracks Gitea's or
-- Discourse's tables is told of every reference that no foreign key tells of.
begin;
select plan(52);
\ir ../shapes/gitea.sql
\ir ../shapes/discourse.sql
set local client_min_messages = error;
create schema app;
create function app.called(regclass) returns text language sql stable
    set quote_all_identifiers = off as 'select $1::text';

select is(gc._tokens(name), words, 'the words of ' || name)
from (values
    ('file_ids', '{file,id}'::text[]), ('fileId', '{file,id}'), ('uploads', '{upload}'),
    ('ActiveStorage::Blob', '{active,storage,blob}'), ('imageURL', '{image,url}'),
    ('categories', '{category}'), ('boxes', '{box}'), ('address', '{address}'),
    ('blob_sha256', '{blob,sha256}')
) as w(name, words);

-- A name is one for the collection if it says what the rows are, and that it is a key.
select is(gc._is_named(gc._tokens(name), '{upload}', '{id}'), expected,
    name || case when expected then ' names an upload' else ' does not' end)
from (values
    ('upload_id', true), ('image_upload_id', true), ('uploaded_avatar_id', true),
    ('upload', true), ('upload_ids', true), ('uploadId', true), ('upload_sha1', true),
    ('upload_name', false), ('user_id', false), ('uploader_id', false), ('uploads_count', false),
    ('id', false)
) as w(name, expected);

-- Gitea: nothing refers to its blobs, so nothing of them is collected; and what is missing is said.
select is((select count(*) from gc.track('gitea.package_blob',
        url => $$'s3://packages/' || hash_sha256$$, size => 'size')), 0::bigint,
    'Gitea''s blobs have no foreign key');
select matches((select problem from gc.collections where name = 'package_blob'),
    'nothing keeps the rows', 'so the collection is blocked');
select results_eq(
    $$select app.called(referencing), keys, why, strength, index, command
    from gc.suspects('package_blob') where strength = 'strong'$$,
    $$values ('gitea.package_file', 'blob_id', 'name and type', 'strong', null,
        'select gc.declare_reference(''package_blob'', ''gitea.package_file'', ''blob_id'');')$$,
    'without a row in any table, names and types tell the reference');
insert into gitea.package_blob
select i, i, md5('a' || i), md5('b' || i), md5('c' || i), md5('d' || i), 0
from generate_series(1, 500) as i;
insert into gitea.package_version (package_id, version, lower_version, created_unix)
select i, '1', '1', 0 from generate_series(1, 100) as i;
insert into gitea.package_file (version_id, blob_id, name, lower_name, created_unix)
select i % 100, i, 'f' || i, 'f' || i, 0 from generate_series(1, 300) as i;
insert into gitea.package_property (ref_type, ref_id, name, value)
select 0, i, 'digest', md5('c' || i) from generate_series(1, 50) as i;
select results_eq(
    $$select app.called(referencing), keys, by, why, sampled, matching from gc.suspects('package_blob')
    where strength = 'strong'$$,
    $$values ('gitea.package_file', 'blob_id', null, 'name and type; values', 100, 100),
        ('gitea.package_property', 'value::bpchar', 'hash_sha256', 'values', 50, 50)$$,
    'with rows, values tell more: a property may mention a digest');
select is((select count(*) from gc.suspects('package_blob')
    where keys = 'version_id' and strength <> 'weak'), 0::bigint,
    'numbers that happen to be keys are no more than a weak suspicion');
do $$
begin
    execute (select replace(index, ' concurrently', '') from gc.suspects('package_blob')
    where keys = 'value::bpchar');
    execute (select command from gc.suspects('package_blob') where keys = 'value::bpchar');
    perform gc.drop_reference('package_blob', 'gitea.package_property', 'value::bpchar');
    execute (select foreign_key from gc.suspects('package_blob') where keys = 'blob_id');
end
$$;
select results_eq(
    $$select reference, role from gc.track('gitea.package_blob',
        url => '''s3://packages/'' || hash_sha256', size => 'size')$$,
    $$values ('gitea.package_file(blob_id)', 'keeps')$$,
    'what it says to type makes the reference, in one call');
select is((select problem from gc.collections where name = 'package_blob'), null,
    'and nothing is blocked any more');
select is((select count(*) from gc.suspects('package_blob') where keys = 'blob_id'), 0::bigint,
    'what has a foreign key is no suspect');

-- Discourse: four foreign keys, so it would not be blocked.
insert into discourse.uploads (user_id, original_filename, filesize, url, sha1)
select i, 'f', 1, '/u/' || i, md5('u' || i) from generate_series(1, 300) as i;
insert into discourse.users (username, uploaded_avatar_id)
select 'u' || i, case when i % 2 = 0 then i end from generate_series(1, 100) as i;
insert into discourse.posts (user_id, topic_id, raw, cooked, image_upload_id)
select i, i, 'x', 'x', i from generate_series(1, 100) as i;
insert into discourse.upload_references (upload_id, target_type, target_id)
select i, 'Post', i from generate_series(1, 100) as i;
select is((select count(*) from gc.track('discourse.uploads')), 4::bigint,
    'Discourse''s uploads have four foreign keys');
create temporary table told as select * from gc.suspects('uploads');
select set_eq($$select app.called(referencing) || '.' || keys from told where strength = 'strong'$$, array[
    'discourse.upload_references.upload_id', 'discourse.users.uploaded_avatar_id',
    'discourse.user_avatars.custom_upload_id', 'discourse.user_avatars.gravatar_upload_id',
    'discourse.user_exports.upload_id', 'discourse.user_uploads.upload_id',
    'discourse.topics.image_upload_id', 'discourse.topic_thumbnails.upload_id',
    'discourse.posts.image_upload_id', 'discourse.post_uploads.upload_id',
    'discourse.optimized_images.upload_id', 'discourse.categories.uploaded_logo_id',
    'discourse.categories.uploaded_logo_dark_id', 'discourse.categories.uploaded_background_id',
    'discourse.categories.uploaded_background_dark_id', 'discourse.badges.image_upload_id',
    'discourse.groups.flair_upload_id', 'discourse.custom_emojis.upload_id',
    'discourse.theme_fields.upload_id'
], 'every other reference is told, and nothing else is');
do $$
declare
    t record;
begin
    for t in select * from told where strength = 'strong' loop
        if t.index is not null then
            execute replace(t.index, ' concurrently', '');
        end if;
        execute t.foreign_key;
    end loop;
end
$$;
select is((select count(*) from gc.track('discourse.uploads')), 23::bigint,
    'what it says to type, index and command, makes all of them references');
select is((select count(*) from gc.suspects('uploads') where strength = 'strong'), 0::bigint,
    'and then nothing is suspect any more');
select gc.untrack('uploads') \g /dev/null

-- Every way to refer.
create table app.file (id uuid primary key, digest bytea not null unique, note text);
create table app.post (
    id integer primary key, file_id uuid, cover uuid, body text, hash bytea, data jsonb, raw json,
    file_ids uuid[], owner_type text, owner_id uuid, item_type text, item_id text
);
insert into app.file select md5('f' || i)::uuid, sha256(i::text::bytea), 'n' || i
from generate_series(1, 200) as i;
insert into app.post
select i, md5('f' || i)::uuid, md5('f' || i)::uuid, 'text', sha256(i::text::bytea),
    jsonb_build_object('file', md5('f' || i), 'gallery', jsonb_build_array(md5('f' || i)),
        'title', 'some title ' || i, 'n', i),
    json_build_object('attached', md5('f' || i)), array[md5('f' || i)::uuid],
    case when i % 2 = 0 then 'App::File' else 'User' end, md5('f' || i)::uuid,
    case when i % 2 = 0 then 'Folder' else 'User' end, md5('f' || i)
from generate_series(1, 100) as i;
select is((select count(*) from gc.track('app.file', condition => 'true')), 0::bigint, 'a file');
select results_eq(
    $$select keys, by, condition, why, index, command from gc.suspects('file')
    where strength = 'strong'$$,
    $$values
        ('(data ->> ''file'')::uuid', null, null, 'name and type; values',
            'create index concurrently on app.post (((data ->> ''file'')::uuid));',
            'select gc.declare_reference(''file'', ''app.post'', ''(data ->> ''''file'''')::uuid'');'),
        ('(raw ->> ''attached'')::uuid', null, null, 'values',
            'create index concurrently on app.post (((raw ->> ''attached'')::uuid));',
            'select gc.declare_reference(''file'', ''app.post'', ''(raw ->> ''''attached'''')::uuid'');'),
        ('cover', null, null, 'values', 'create index concurrently on app.post (cover);',
            'select gc.declare_reference(''file'', ''app.post'', ''cover'');'),
        ('file_id', null, null, 'name and type; values',
            'create index concurrently on app.post (file_id);',
            'select gc.declare_reference(''file'', ''app.post'', ''file_id'');'),
        ('file_ids', null, null, 'name and type; values',
            'create index concurrently on app.post using gin (file_ids);',
            'select gc.declare_reference(''file'', ''app.post'', ''file_ids'');'),
        ('hash', 'digest', null, 'values', 'create index concurrently on app.post (hash);',
            'select gc.declare_reference(''file'', ''app.post'', ''hash'', by => ''digest'');'),
        ('owner_id', null, 'owner_type = ''App::File''', 'type and id; values',
            'create index concurrently on app.post (owner_id);',
            'select gc.declare_reference(''file'', ''app.post'', ''owner_id'', '
                'condition => ''owner_type = ''''App::File'''''');'),
        ('string_to_array(translate(data ->> ''gallery'', ''[]" '', ''''), '','')::uuid[]',
            null, null, 'values', 'create index concurrently on app.post using gin '
                '((string_to_array(translate(data ->> ''gallery'', ''[]" '', ''''), '','')::uuid[]));',
            'select gc.declare_reference(''file'', ''app.post'', ''string_to_array(translate('
                'data ->> ''''gallery'''', ''''[]" '''', ''''''''), '''','''')::uuid[]'');')$$,
    'columns, arrays, pairs, JSON and other unique columns are found, with what to type');
select lives_ok(replace(index, ' concurrently', ''), 'the index for ' || keys || ' can be made')
from gc.suspects('file') where strength = 'strong' and keys like '%data%';
select ok((select bool_and(array(select (data ->> 'gallery')::text) is not null
        and string_to_array(translate(data ->> 'gallery', '[]" ', ''), ',')::uuid[]
            = array[(data ->> 'file')::uuid]) from app.post),
    'the expression for an array in JSON gives its elements');
select throws_like($$select gc.ignore_suspect('file', 'app.post', '')$$,
    'a suspect is a table and its keys', 'nothing cannot be ignored');
select throws_like($$select gc.suspects('nothing')$$, 'there is no collection "nothing"',
    'there has to be a collection');
select throws_like($$select gc.suspects('file', 3)$$, 'a sample is of 4 to 100000 blocks%',
    'and a sample');
select gc.ignore_suspect('file', 'app.post', keys) from gc.suspects('file')
where strength = 'strong' and keys <> 'cover' \g /dev/null
select results_eq($$select keys from gc.suspects('file') where strength = 'strong'$$,
    $$values ('cover')$$, 'what was ignored does not come up again');
delete from gc.ignored_suspects;
select gc.ignore_suspect('file', 'app.post', 'data') \g /dev/null
select is((select count(*) from gc.suspects('file') where keys like '%data%'), 0::bigint,
    'a column can be ignored with all that is in it');

-- Django's generic foreign key: a content type, and an object id that may be text.
create table app.django_content_type (
    id integer primary key, app_label varchar(100) not null, model varchar(100) not null
);
create table app.generic (
    id bigint primary key, object_id text, content_type_id integer
        references app.django_content_type
);
create table app.shop_picture (id bigint primary key);
insert into app.django_content_type values (7, 'shop', 'picture'), (8, 'shop', 'order');
insert into app.shop_picture select generate_series(1, 20);
insert into app.generic select i, i, 7 + i % 2 from generate_series(1, 20) as i;
select is((select count(*) from gc.track('app.shop_picture', condition => 'true')), 0::bigint,
    'a table of Django');
select results_eq(
    $$select keys, condition, sampled, matching, strength from gc.suspects('shop_picture')
    where referencing = 'app.generic'::regclass$$,
    $$values ('object_id::bigint', 'content_type_id = ''7''', 10, 10, 'strong')$$,
    'a generic foreign key is found by its content type');

-- What is not looked at is said, and nobody else's code runs.
create role stranger;
create table app.theirs (id integer primary key, file_id uuid, cover uuid);
alter table app.theirs owner to stranger;
create table app.secret (id integer primary key, file_id uuid);
alter table app.secret enable row level security, force row level security;
create table app.gone (id integer primary key, cover uuid);
insert into app.gone values (1, md5('f1')::uuid);
select results_eq(
    $$select keys, why, sampled, strength from gc.suspects('file')
    where referencing = 'app.theirs'::regclass$$,
    $$values ('file_id', 'name and type; not looked at: app.theirs belongs to stranger, '
            'who is not trusted', null::integer, 'strong'),
        (null, 'not looked at: app.theirs belongs to stranger, who is not trusted', null,
            'unknown')$$,
    'of a table of a role that is not trusted, only names are told');
create table app.ours (id integer primary key, cover uuid);
create function app.theirs_too(uuid) returns uuid language sql immutable as 'select $1';
create index on app.ours (app.theirs_too(cover));
alter function app.theirs_too(uuid) owner to stranger;
select matches((select why from gc.suspects('file') where referencing = 'app.ours'::regclass),
    'reading it runs function app.theirs_too[(].*[)] of stranger, who is not trusted',
    'a table whose index computes with code of such a role is not read');
drop table app.ours;

-- A role without rights.
create role reader;
grant usage on schema gc, app to reader;
grant execute on all functions in schema gc to reader;
grant select on all tables in schema gc to reader;
grant select on app.file, app.secret to reader;
set local role reader;
select results_eq(
    $$select app.called(referencing), why from gc.suspects('file')
    where app.called(referencing) in ('app.gone', 'app.secret') and keys is null$$,
    $$values ('app.gone', 'not looked at: reader may not read it'),
        ('app.secret', 'not looked at: its row security applies to reader')$$,
    'what the caller cannot read is listed, and not read');
reset role;

-- It reads no more than it says.
create table app.big (id bigint, cover uuid, filler text);
insert into app.big select i, md5('f' || i % 200)::uuid, repeat('x', 500)
from generate_series(1, 20000) as i;
select cmp_ok(pg_relation_size('app.big') / 8192, '>', 1000::bigint, 'a table of many blocks');
create function app.blocks_of(sample integer) returns bigint language plpgsql
    set enable_seqscan = off set enable_tidscan = on as $$
declare
    line text;
    total bigint := 0;
begin
    for line in
        execute 'explain (analyze, buffers, timing off, costs off) ' || gc._sample_sql('app.big',
            array(select p from gc._candidates(gc._sought(gc._collection('file'))) as p
                where p.relation = 'app.big'::regclass), sample)
    loop
        if line ~ '^ *Buffers:' then
            total := greatest(total, (select sum(m[1]::bigint)
                from regexp_matches(line, '(?:hit|read)=([0-9]+)', 'g') as m));
        end if;
    end loop;
    return total;
end;
$$;
select is(app.blocks_of(32), 32::bigint, 'of each table, 32 blocks are read');
select is(app.blocks_of(8), 8::bigint, 'or as many as it is told');
select is((select format('%s of %s', matching, sampled) from gc.suspects('file')
    where referencing = 'app.big'::regclass), '100 of 100', 'that is enough to tell');

select * from finish();
rollback;
