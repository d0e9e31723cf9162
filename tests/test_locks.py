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
select gc.track('app.file', url => $$'s3://bucket/' || id$$, owned => '{app.preview}');
select gc.set_delay('file_insert', '0');
update gc.settings set jitter = '0';
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


def locks(conn: Connection) -> int:
    """On tables and indexes of the application: these grow with the partitions."""
    count = value(conn, """
        select count(*) from pg_locks as l join pg_class as c on c.oid = l.relation
        where l.pid = pg_backend_pid() and c.relnamespace = 'app'::regnamespace
    """)
    assert isinstance(count, int)
    return count


def test_a_review_holds_no_more_locks_than_a_bare_delete_of_the_same_rows(app: Database) -> None:
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
    assert held <= bare, f"{held} locks, and a bare DELETE holds {bare}"


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
