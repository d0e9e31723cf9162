"""Nobody stops it: a lock, an open transaction or a collision costs what it touches, no more."""

from __future__ import annotations

import time

import psycopg
import pytest
from conftest import Connection, Database, NewDatabase, NewRole, execute, rows, value

# Files whose objects may be shared, boxes that own items, and notes that have no part in it.
SETUP = """
create extension blobgc;
create schema app;
create table app.file (id integer primary key, path text);
create index on app.file (path);
create table app.post (id integer primary key, file_id integer references app.file);
create index on app.post (file_id);
create table app.box (id integer primary key);
create table app.item (id integer primary key, box_id integer references app.box);
create index on app.item (box_id);
create table app.shelf (id integer primary key, box_id integer references app.box);
create index on app.shelf (box_id);
create table app.note (id integer);
update gc.settings set jitter = '0', undo = '0', brake_share = 1, lock_timeout = '100 ms';
insert into gc.review_after_defaults
values ('file_insert', '0'), ('file_scan', '0'), ('box_insert', '0'), ('post_delete', '0');
select * from gc.track('app.file', url => 'path');
select * from gc.track('app.box', owned => array['item']);
"""


@pytest.fixture
def app(new_database: NewDatabase) -> Database:
    database = new_database()
    database.psql(SETUP)
    return database


def patient(database: Database) -> Connection:
    """A session in which a statement that hangs is an error."""
    conn = database.connect()
    execute(conn, "set statement_timeout = '10s'")
    return conn


def claim(conn: Connection, worker: str = "worker", batch: int = 1000) -> list[str]:
    return [row[0] for row in rows(conn, "select url from gc.claim(%s, %s)", worker, batch)]


def review(conn: Connection) -> dict[str, tuple[int, int, int]]:
    """For each collection, how many rows were deleted, busy, failed."""
    found = rows(conn, "select collection, deleted, busy, failed from gc.review()")
    return {row[0]: row[1:] for row in found}


def hurry(conn: Connection) -> None:
    """As if time had passed."""
    execute(conn, """
        update gc.tombstones set due_at = clock_timestamp() where worker is null;
        update gc.file_review_queue set review_after = now();
        update gc.box_review_queue set review_after = now()""")


def test_a_hold_that_is_taken_late_in_a_transaction_lasts_as_long_as_any(app: Database) -> None:
    with patient(app) as conn, app.connect(autocommit=False) as slow:
        execute(conn, """
            update gc.settings set keep_alive = '2 seconds';
            insert into app.file values (1, 's3://bucket/1'), (2, 's3://bucket/2');
            delete from app.file where id = 2""")
        execute(slow, "select now()")
        time.sleep(2.1)
        rows(slow, "select gc.keep_alive('file', '1')")
        rows(slow, "select gc.begin_upload('file', '2', 's3://bucket/2', timeout => '2 seconds')")
        slow.commit()
        assert review(conn)["file"] == (0, 1, 0)
        assert claim(conn) == []


def test_a_long_transaction_that_reviews_and_claims_sees_holds_that_came_later(
    app: Database,
) -> None:
    with app.connect(autocommit=False) as conn, patient(app) as other:
        execute(other, """
            insert into app.file values (1, 's3://bucket/1'), (2, 's3://bucket/2');
            delete from app.file where id = 2""")
        execute(conn, "select now()")
        rows(other, "select gc.keep_alive('file', '1')")
        rows(other, "select gc.begin_upload('file', '2', 's3://bucket/2')")
        assert review(conn)["file"] == (0, 1, 0)
        assert claim(conn) == []


def test_advisory_locks_of_any_role_stop_nothing(app: Database, new_role: NewRole) -> None:
    nobody = new_role()
    with patient(app) as conn, app.connect(nobody) as other:
        execute(conn, """
            insert into app.file values (1, 's3://bucket/1'), (2, 's3://bucket/2');
            delete from app.file where id = 1""")
        # All that the code before has ever asked for, and some more.
        rows(other, """
            select pg_advisory_lock(hashtext('blobgc'), k)
            from unnest(array[hashtext('gc.claim'), hashtext('gc.settings'), hashtext('gc.track'),
                hashtext('file'), hashtext('box'), hashtext('url '),
                hashtext('url s3://bucket/1'), hashtext('url s3://bucket/2'), hashtext('file 1'),
                hashtext('file 2')] || array(select generate_series(0, 4095))) as k""")
        rows(other, "select pg_advisory_lock(hashtextextended('blobgc', 0)), pg_advisory_lock(1)")
        execute(conn, "update gc.settings set max_sleep = '2 minutes'")
        rows(conn, "select gc.set_delay('box_insert', '1 minute')")
        rows(conn, "select * from gc.track('app.file', url => 'path', label => 'path')")
        assert review(conn)["file"] == (1, 0, 0)
        assert rows(conn, "select why from gc.status() where why is not null") == []
        assert claim(conn) == ["s3://bucket/1", "s3://bucket/2"]
        began = time.monotonic()
        rows(conn, "select gc.begin_upload('file', '3', 's3://bucket/3', wait => '1 second')")
        assert time.monotonic() - began < 1
    with app.connect() as conn:
        assert value(conn, r"""
            select count(*) from pg_proc
            where pronamespace = 'gc'::regnamespace and prosrc ~ '\mpg_(try_)?advisory'""") == 0


# Equal in hashtextextended; in the 32 bits of a hash index; in the slots of uploads.
COLLISIONS = {
    "64 bits": """
        select 's3://bucket/abcdefghijkl', 's3://bucket/o)LK*XB==CM&'
        where hashtextextended('s3://bucket/abcdefghijkl', 0)
            = hashtextextended('s3://bucket/o)LK*XB==CM&', 0)""",
    "32 bits": """
        with u as materialized (
            select 's3://bucket/' || i as url, hashtext('s3://bucket/' || i || chr(10)) as hash
            from generate_series(1, 400000) as i
        )
        select min(url), max(url) from u group by hash having count(*) > 1 limit 1""",
    "slots": """
        select min(url), max(url) from (
            select 's3://bucket/' || i as url from generate_series(1, 5000) as i
        ) as u group by hashtext('url ' || url) & 4095 having count(*) > 1 limit 1""",
}


@pytest.mark.parametrize("kind", COLLISIONS)
def test_two_addresses_with_one_hash_are_two_objects(app: Database, kind: str) -> None:
    with patient(app) as conn, patient(app) as other:
        first, second = rows(conn, COLLISIONS[kind])[0]
        assert first != second
        conn.execute("insert into app.file values (1, %s), (2, %s)", (first, second))
        execute(conn, "delete from app.file")
        assert {*claim(conn, "w1", 1), *claim(other, "w2", 1)} == {first, second}
        with pytest.raises(psycopg.Error, match="is being deleted"):
            conn.execute("insert into app.file values (1, %s)", (first,))
        execute(conn, "update gc.tombstones set due_at = clock_timestamp()")
        assert set(claim(conn)) == {first, second}
        ids = [row[0] for row in rows(conn, "select id from gc.tombstones")]
        assert value(conn, "select gc.confirm('worker', %s)", ids) == 2
        # Deleted a moment ago, and in an older transaction: only the one that was.
        with app.connect(autocommit=False) as older:
            execute(older, "select now()")
            conn.execute("insert into app.file values (1, %s)", (first,))
            execute(conn, "delete from app.file")
            older.execute("insert into app.file values (2, %s)", (second,))
            older.commit()
            hurry(conn)
            assert claim(conn) == [first]


def test_an_open_transaction_delays_shared_objects_and_costs_one_update_each(
    app: Database,
) -> None:
    def updated() -> int:
        execute(conn, "select pg_stat_force_next_flush()")
        return int(value(conn, """
            select n_tup_upd from pg_stat_user_tables
            where relid = 'gc.tombstones'::regclass"""))

    with patient(app) as conn, app.connect(autocommit=False) as idle:
        execute(conn, """
            insert into app.file
            select i, 's3://bucket/' || i from generate_series(1, 2000) as i""")
        execute(idle, "insert into app.note values (1)")
        execute(conn, "delete from app.file")
        before = updated()
        began = time.monotonic()
        for _ in range(20):
            assert claim(conn) == []
        assert time.monotonic() - began < 5
        assert 0 < updated() - before <= 2000
        assert value(conn, "select held_up_by from gc.status() where collection = 'file'").endswith(
            f"has not ended, perhaps that of session {idle.info.backend_pid} of {app.user} in "
            f"{app.name}")
        # Meanwhile everybody else goes on.
        execute(conn, "insert into app.file values (1, 's3://bucket/1')")
        idle.rollback()
        found = set()
        for _ in range(4):
            found.update(claim(conn))
        assert found == {f"s3://bucket/{i}" for i in range(2, 2001)}


def test_a_table_that_somebody_has_locked_does_not_stop_a_claim(app: Database) -> None:
    with patient(app) as conn, app.connect(autocommit=False) as other:
        execute(conn, """
            insert into app.file values (1, 's3://bucket/1'), (2, 's3://bucket/2');
            delete from app.file;
            update gc.tombstones set wait_for = '1';
            insert into app.box values (1)""")
        execute(other, "lock table app.file in access exclusive mode")
        began = time.monotonic()
        for _ in range(3):
            assert claim(conn) == []
            hurry(conn)
        assert time.monotonic() - began < 2
        assert review(conn)["box"] == (1, 0, 0)
        assert value(conn, "select count(*) from gc.tombstones where worker is null") == 2
        # The operator can ask why, and so can Prometheus.
        assert value(conn, "select why from gc.status() where collection = 'file'") is not None
        assert value(conn, "select count(*) from gc.metrics") > 0
        other.rollback()
        hurry(conn)
        assert claim(conn) == ["s3://bucket/1", "s3://bucket/2"]
        review(conn)
        assert rows(conn, "select why from gc.status() where why is not null") == []


@pytest.mark.parametrize("table", ["app.item", "app.shelf", "app.box"])
def test_a_scan_that_meets_a_locked_table_costs_the_other_collections_nothing(
    app: Database, table: str
) -> None:
    with patient(app) as conn, app.connect(autocommit=False) as other:
        # "box" comes before "file": its scan is asked for, and what it reads is locked.
        execute(conn, """
            insert into app.box values (1);
            insert into app.shelf values (1, 1);
            select gc.review();
            truncate app.shelf;
            insert into app.file values (1, 's3://bucket/1')""")
        execute(other, f"lock table {table} in access exclusive mode")
        assert review(conn)["file"] == (1, 0, 0)
        other.rollback()
        review(conn)
        hurry(conn)
        assert review(conn)["box"] == (1, 0, 0)
        assert rows(conn, "select why from gc.status() where why is not null") == []


def test_a_scan_that_raises_costs_the_other_collections_nothing(app: Database) -> None:
    with patient(app) as conn:
        rows(conn, "select * from gc.track('app.box', condition => '1 / (id - 7) = 0')")
        execute(conn, """
            insert into app.box values (7), (8);
            insert into app.shelf values (1, 7);
            select gc.review();
            truncate app.shelf;
            insert into app.file values (1, 's3://bucket/1')""")
        assert review(conn)["file"] == (1, 0, 0)
        assert value(conn, "select why from gc.status() where collection = 'box'") == (
            "a scan failed: division by zero")


@pytest.mark.parametrize("table", ["app.item", "app.shelf", "app.box"])
def test_a_locked_table_keeps_no_other_collection_from_being_reviewed(
    app: Database, table: str
) -> None:
    with patient(app) as conn, app.connect(autocommit=False) as other:
        execute(conn, """
            insert into app.box select generate_series(1, 100);
            insert into app.item select i, i from generate_series(1, 100) as i;
            insert into app.file select i, 's3://bucket/' || i from generate_series(1, 100) as i""")
        execute(other, f"lock table {table} in access exclusive mode")
        began = time.monotonic()
        assert review(conn)["file"] == (100, 0, 0)
        assert time.monotonic() - began < 3
        assert value(conn, "select why from gc.status() where collection = 'box'") is not None
        other.rollback()
        hurry(conn)
        assert review(conn)["box"] == (100, 0, 0)
        assert value(conn, "select count(*) from app.item") == 0
