-- The application's world: files that share objects, pictures that do not, scans of two objects that
-- only the application deletes, and every kind of reference. {store} is the prefix of the objects.
set client_min_messages = error;
create schema app;

create table app.file (
    id integer primary key,
    kind text not null default 'file',
    digest text not null unique,
    path text not null,
    thumbnail_of integer references app.file,
    unique (id, kind)
);
create index on app.file (('{store}files/' || path));
create index on app.file (thumbnail_of);

create table app.post (
    id integer primary key,
    file_id integer constraint post_file_fkey references app.file on delete cascade
);
create index on app.post (file_id);
create table app.avatar (
    id integer primary key, file_id integer references app.file on delete set null
);
create index on app.avatar (file_id);
create table app.receipt (
    id integer primary key, file_id integer references app.file on delete restrict
);
create index on app.receipt (file_id);
create table app.invoice (
    id integer primary key,
    file_id integer references app.file deferrable initially deferred
);
create index on app.invoice (file_id);
create table app.part (
    id integer primary key, file_id integer, kind text default 'file',
    foreign key (file_id, kind) references app.file (id, kind)
);
create index on app.part (file_id, kind);
create table app.view (
    id integer, file_id integer references app.file, primary key (id)
) partition by hash (id);
create table app.view_0 partition of app.view for values with (modulus 2, remainder 0);
create table app.view_1 partition of app.view for values with (modulus 2, remainder 1);
create index on app.view (file_id);
create table app.cover (
    id integer primary key,
    file_id integer default null references app.file on delete set default
);
create index on app.cover (file_id);
create table app.sheet (
    id integer primary key, file_id integer, kind text default 'file',
    foreign key (file_id, kind) references app.file (id, kind) match full
);
create index on app.sheet (file_id, kind);
create table app.quote (id integer primary key, file_id integer);
alter table app.quote add foreign key (file_id) references app.file not valid;
create index on app.quote (file_id);
create table app.alias (
    id integer primary key, file_id integer references app.file on update cascade
);
create index on app.alias (file_id);
create table app.guess (
    id integer primary key, file_id integer references app.file on update set null
);
create index on app.guess (file_id);
-- It is emptied by TRUNCATE.
create table app.batch (id integer primary key, file_id integer references app.file);
create index on app.batch (file_id);
-- One client's, who takes the foreign key away, and gives it back.
create table app.seal (
    id integer primary key, file_id integer constraint seal_file_fkey references app.file
);
create index on app.seal (file_id);
-- Who inserts a row before its object is written keeps it by this meanwhile.
create table app.draft (id integer primary key, file_id integer references app.file);
create index on app.draft (file_id);

-- Without foreign keys. What note says is declared, and taken back, all the time.
create table app.mention (
    id integer primary key, file_id integer, file_ids integer[], digest text, content jsonb
);
create function app.files_in(content jsonb) returns integer[] language sql immutable
    return case when content ? 'file' then array[(content ->> 'file')::integer] end;
create index on app.mention (file_id);
create index on app.mention using gin (file_ids);
create index on app.mention (digest);
create index on app.mention using gin (app.files_in(content));
create table app.link (id integer primary key, about text default 'file', about_id integer);
create index on app.link (about_id);
create table app.note (id integer primary key, file_id integer);
create index on app.note (file_id);

create table app.picture (id integer primary key) partition by hash (id);
create table app.picture_0 partition of app.picture for values with (modulus 2, remainder 0);
create table app.picture_1 partition of app.picture for values with (modulus 2, remainder 1);
create table app.frame (
    id integer primary key, picture_id integer references app.picture on delete cascade
);
create index on app.frame (picture_id);
create table app.label (
    id bigint generated always as identity primary key,
    picture_id integer not null references app.picture
);
create index on app.label (picture_id);

create table app.scan (id integer primary key, front text not null, back text not null);
create index on app.scan using gin ((array['{store}scans/' || front, '{store}scans/' || back]));

select gc.track('app.file', url => $$'{store}files/' || path$$);
select gc.declare_reference('file', 'app.mention', 'file_id');
select gc.declare_reference('file', 'app.mention', 'file_ids');
select gc.declare_reference('file', 'app.mention', 'digest', by => 'digest');
select gc.declare_reference('file', 'app.mention', 'app.files_in(content)');
select gc.declare_reference('file', 'app.link', 'about_id', condition => $$about = 'file'$$,
    strict => true);
select gc.declare_reference('file', 'app.note', 'file_id');
select gc.track('app.picture', url => $$'{store}pictures/' || id$$, undo => '1 second',
    owned => '{app.label}');
select gc.track('app.scan', url => $$array['{store}scans/' || front, '{store}scans/' || back]$$,
    collect => 'deleted');
