-- The application's world: files that share objects, pictures that do not, and every kind of
-- reference to them. {store} is the prefix of the objects.
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
-- Who inserts a row before its object is written keeps it by this meanwhile.
create table app.draft (id integer primary key, file_id integer references app.file);
create index on app.draft (file_id);

-- Without foreign keys. What note says is declared, and taken back, all the time.
create table app.mention (
    id integer primary key, file_id integer, file_ids integer[], digest text
);
create index on app.mention (file_id);
create index on app.mention using gin (file_ids);
create index on app.mention (digest);
create table app.note (id integer primary key, file_id integer);
create index on app.note (file_id);

create table app.picture (id integer primary key) partition by hash (id);
create table app.picture_0 partition of app.picture for values with (modulus 2, remainder 0);
create table app.picture_1 partition of app.picture for values with (modulus 2, remainder 1);
create table app.frame (
    id integer primary key, picture_id integer references app.picture on delete cascade
);
create index on app.frame (picture_id);

select gc.track('app.file', url => $$'{store}files/' || path$$);
select gc.declare_reference('file', 'app.mention', 'file_id');
select gc.declare_reference('file', 'app.mention', 'file_ids');
select gc.declare_reference('file', 'app.mention', 'digest', by => 'digest');
select gc.declare_reference('file', 'app.note', 'file_id');
select gc.track('app.picture', url => $$'{store}pictures/' || id$$, undo => '300 milliseconds');
