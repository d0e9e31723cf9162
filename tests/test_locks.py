"""How many locks a review holds at its end, counted."""

from __future__ import annotations

import pytest
from conftest import Connection, Database, NewDatabase, execute, rows, value

# A file is in a partition by its key, a post and a draft by their author: the posts of a file may
# be in any partition.
SCHEMA = """
create extension blobgc;
create schema app;
create table app.file (id integer primary key, path text) partition by hash (id);
create table app.post (
    author integer, id integer, file_id integer references app.file, written_at timestamptz,
    primary key (author, id)
) partition by hash (author);
create index on app.post (file_id);
create index on app.post (written_at);
create table app.draft (
    author integer, id integer, file_id integer references app.file, primary key (author, id)
) partition by hash (author);
create index on app.draft (file_id);
create table app.preview (
    file_id integer references app.file on delete cascade, n integer, primary key (file_id, n)
) partition by hash (file_id);
do $$
declare
    command text;
begin
    for command in
        select format('create table app.%s_%s partition of app.%1$s '
            'for values with (modulus 16, remainder %2$s)', name, n)
        from unnest(array['file', 'post', 'draft', 'preview']) as name, generate_series(0, 15) as n
    loop
        execute command;
    end loop;
end $$;
update gc.settings set jitter = '0', undo = '0', brake_share = 1;
select gc.track('app.file', url => $$'s3://bucket/' || id$$, owned => '{app.preview}');
select gc.set_delay('file_insert', '0');
"""

FILL = """
insert into app.file select n, 'file ' || n from generate_series(1, 2000) as n;
insert into app.preview select n, 1 from generate_series(1, 2000) as n;
insert into app.post select n % 100, n, n from generate_series(1, 2000, 4) as n;
insert into app.draft select n % 100, n, n from generate_series(2, 2000, 4) as n;
"""

# What a review of 1,000 files deletes, by somebody who knows the tables.
BARE_DELETE = """
delete from app.file as f
where f.id <= 1000
    and not exists (select from app.post as p where p.file_id = f.id)
    and not exists (select from app.draft as d where d.file_id = f.id)
"""


@pytest.fixture
def app(new_database: NewDatabase) -> Database:
    database = new_database()
    database.psql(SCHEMA)
    return database


# Of 1,000 manifests half have no tag, of 1,100 blobs 100 are unused, and 20 repositories are to go.
REGISTRY = """
create extension blobgc;
update gc.settings set jitter = '0', undo = '0', max_rows = 100000;
select gc.create_registry(store => 's3://bucket', partitions => 16);
select gc.set_delay(event, '0') from gc._known_events();
create function digest(n integer) returns bytea immutable
    return '\\x01'::bytea || sha256(int4send(n));
insert into registry.namespaces (name) select 'ns' || n from generate_series(1, 100) as n;
insert into registry.repositories (namespace_id, path)
select id, name || '/app' from registry.namespaces order by id;
insert into registry.blobs (digest, size, media_type)
select digest(n), 1000, 'layer' from generate_series(1, 1100) as n;
insert into registry.repository_blobs (namespace_id, repository_id, digest)
select 1 + n % 100, 1 + n % 100, digest(n) from generate_series(1, 1100) as n;
insert into registry.manifests (
    namespace_id, repository_id, digest, media_type, payload, total_size
)
select 1 + n % 100, 1 + n % 100, digest(-n), 'image', '', 1 from generate_series(1, 1000) as n;
insert into registry.layers (
    namespace_id, repository_id, manifest_id, position, digest, size, media_type
)
select namespace_id, repository_id, id, 1, digest(id::integer), 1000, 'layer'
from registry.manifests;
insert into registry.tags (namespace_id, repository_id, name, manifest_id)
select namespace_id, repository_id, 'v' || id, id from registry.manifests where id % 2 = 0;
update registry.repositories set state = 'deleting' where id > 80;
"""

# The same rows that one review of the registry deletes.
BARE_DELETES = [
    """delete from registry.repository_blobs as r where not exists (
        select from registry.layers as l where l.digest = r.digest)""",
    """delete from registry.blobs as b
    where not exists (select from registry.layers as l where l.digest = b.digest)
        and not exists (
            select from registry.manifests as m where m.configuration_blob_digest = b.digest)""",
    """delete from registry.manifests as m where not exists (
        select from registry.tags as t
        where (t.namespace_id, t.repository_id, t.manifest_id)
            = (m.namespace_id, m.repository_id, m.id))""",
    *(f"delete from registry.{table} where repository_id > 80" for table in (
        "tags", "manifest_references", "referrers", "layers", "manifests", "repository_blobs")),
    "delete from registry.repositories where id > 80",
]


def locks(conn: Connection) -> int:
    """On tables and indexes of the application: these grow with the partitions."""
    count = value(conn, """
        select count(*) from pg_locks as l join pg_class as c on c.oid = l.relation
        where l.pid = pg_backend_pid()
            and c.relnamespace::regnamespace::text in ('app', 'registry', 'registry_partitions')
    """)
    assert isinstance(count, int)
    return count


def test_a_review_holds_fewer_locks_than_a_bare_delete_of_the_same_rows(app: Database) -> None:
    with app.connect() as conn:
        execute(conn, FILL)
        execute(conn, "begin")
        execute(conn, BARE_DELETE)
        bare = locks(conn)
        execute(conn, "rollback")
    # A connection of its own: planning locks, too.
    with app.connect() as conn:
        execute(conn, "begin")
        assert rows(conn, "select reviewed, kept, deleted from gc.review(1000)") == [
            (1000, 500, 500)]
        held = locks(conn)
        execute(conn, "rollback")
    assert held <= 0.8 * bare, f"{held} locks, and a bare DELETE holds {bare}"


def test_a_review_of_a_registry_holds_fewer_locks_than_bare_deletes_of_the_same_rows(
    new_database: NewDatabase,
) -> None:
    """Blobs, manifests and repositories in one transaction."""
    database = new_database()
    database.psql(REGISTRY)
    with database.connect() as conn:
        execute(conn, "begin")
        for statement in BARE_DELETES:
            execute(conn, statement)
        bare = locks(conn)
        execute(conn, "rollback")
    with database.connect() as conn:
        execute(conn, "begin")
        assert rows(conn, "select collection, deleted from gc.review(2000)") == [
            ("blob", 100), ("manifest", 500), ("repository", 20), ("tag", 0)]
        held = locks(conn)
        execute(conn, "rollback")
    assert held <= 0.95 * bare, f"{held} locks, and bare DELETEs hold {bare}"


def test_a_review_that_finds_nothing_to_do_locks_no_table_of_the_application(
    app: Database,
) -> None:
    with app.connect() as conn:
        execute(conn, "begin")
        rows(conn, "select * from gc.review()")
        assert rows(conn, """
            select distinct l.relation::regclass::text, l.mode
            from pg_locks as l join pg_class as c on c.oid = l.relation
            where l.pid = pg_backend_pid() and c.relnamespace = 'app'::regnamespace
        """) == []
        execute(conn, "rollback")


def test_what_keeps_a_file_stays_locked_against_changes_to_the_end_of_a_review(
    app: Database,
) -> None:
    """Its partitions are given back, but nobody can take them away."""
    with app.connect() as conn:
        execute(conn, FILL)
        execute(conn, "begin")
        rows(conn, "select * from gc.review(1000)")
        assert rows(conn, """
            select distinct c.relname::text
            from pg_locks as l join pg_class as c on c.oid = l.relation
            where l.pid = pg_backend_pid() and c.relnamespace = 'app'::regnamespace
                and c.relkind = 'p'
            order by 1
        """) == [("draft",), ("file",), ("post",), ("preview",)]
        execute(conn, "rollback")
