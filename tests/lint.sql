-- What tests/lint looks at: collections of every shape, so that every template has made something.
set client_min_messages = error;
create schema lint;
create table lint.blob (
    digest bytea primary key, size bigint, generation bigint, state text, at timestamptz, v float8
);
create table lint.manifest (
    ns bigint, id bigint, config bytea references lint.blob, subject bigint,
    primary key (ns, id),
    foreign key (ns, subject) references lint.manifest on delete set null
) partition by hash (ns);
create table lint.manifest_0 partition of lint.manifest for values with (modulus 2, remainder 0);
create table lint.manifest_1 partition of lint.manifest for values with (modulus 2, remainder 1);
create table lint.layer (
    ns bigint, manifest bigint, digest bytea references lint.blob,
    foreign key (ns, manifest) references lint.manifest on delete cascade
);
create table lint.link (digest bytea references lint.blob);
create table lint.file (id uuid primary key, path text unique, note json);
create table lint.attachment (path text references lint.file (path) on update cascade);
create index on lint.manifest (config);
create index on lint.manifest (ns, subject);
create index on lint.layer (digest);
create index on lint.layer (ns, manifest);
create index on lint.link (digest);
create index on lint.attachment (path);

select gc.track('lint.blob',
    url => $$'gs://bucket/' || encode(digest, 'hex') || to_char(at, 'YYYY')$$, size => 'size',
    generation => 'generation', label => $$left(encode(digest, 'hex'), 12) || v$$,
    condition => $$state = 'old' and at < now()$$, owned => '{link}', undo => '1 hour');
select gc.track('lint.manifest', owned => '{layer}');
select gc.track('lint.file', url => 'path', condition => $$note ->> 'x' is null$$);
create function lint.digests(body jsonb) returns bytea[] language sql immutable
    return array[decode(body ->> 'digest', 'hex')];
create table lint.mention (digest bytea, kind text, body jsonb, path varchar, paths text[]);
create index on lint.mention (digest);
create index on lint.mention (path);
create index on lint.mention using gin (lint.digests(body));
create index on lint.mention using gin (paths);
select gc.declare_reference('blob', 'lint.mention', 'digest', condition => $$kind = 'blob'$$);
select gc.declare_reference('blob', 'lint.mention', 'lint.digests(body)', strict => true);
select gc.declare_reference('file', 'lint.mention', 'path', by => 'path');
select gc.declare_reference('file', 'lint.mention', 'paths', by => 'path');
select gc.track('lint.blob', owned => '{link, mention(digest)}', condition => 'true');

create table lint.picture (id integer primary key, urls text[]);
select gc.track('lint.picture', url => 'urls', collect => 'deleted');
create table lint.night (id integer primary key, part integer references lint.picture);
create table lint.night_part (id integer references lint.night, at timestamptz) partition by list (at);
create index on lint.night_part (id);
select gc.track('lint.night', condition => 'extract(hour from now()) < 3');
