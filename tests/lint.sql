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
