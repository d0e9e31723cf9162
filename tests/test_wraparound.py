"""Transaction ids of 32 bits begin anew after four billion: nothing is decided otherwise there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from cluster import Cluster, cluster_of_its_own
from conftest import ROOT, Connection, execute, rows, value
from stores import FileObjects
from test_reconcile import counts
from worlds import SETUP, World, collect

STEP = 1_500_000_000  # Less than half of all ids: what is older has to be frozen by then.
PER_SEGMENT = 1_048_576  # Transactions in a file of pg_xact.
BOUNDARY = 2**32

# Images that share objects, letters that own pages, and files of which only deleted ones count.
TABLES = """
create table app.image (id integer primary key, url text);
create index on app.image (url);
create table app.letter (id integer primary key);
create table app.page (id integer primary key, letter_id integer references app.letter);
create index on app.page (letter_id);
create table app.scan (id integer primary key, url text);
create index on app.scan (url);
select gc.track('app.image', url => 'url', condition => 'false');
select gc.track('app.letter', owned => '{page}', undo => '1 hour', condition => 'true');
select gc.track('app.scan', url => 'url', collect => 'deleted');
insert into gc.review_after_defaults values ('letter_insert', '0');
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with cluster_of_its_own("fsync = off", "autovacuum = off", name="wraparound") as made:
        with made.database.connect() as conn:
            execute(conn, "update pg_database set datallowconn = true; " + SETUP + TABLES)
        yield made


def next_id(conn: Connection) -> int:
    return int(value(conn, "select pg_current_xact_id()::text::bigint"))


def move_to(server: Cluster, wanted: int) -> None:
    """As if so many transactions had been. What there is, is frozen, as autovacuum would do."""
    while True:
        server.database.run("vacuumdb", "--all", "--freeze", "--quiet")
        with server.database.connect() as conn:
            reached = min(next_id(conn) + STEP, wanted)
        server.run("pg_ctl", "stop", "-m", "fast", "-s")
        server.run("pg_resetwal", "-x", str(reached))
        segment = server.folder / "data" / "pg_xact" / f"{reached // PER_SEGMENT:04X}"
        if not segment.exists():
            segment.write_bytes(bytes(262144))
            adopt(segment)
        server.start()
        if reached == wanted:
            return


def adopt(path: Path) -> None:
    """It is the server's, as its folder is."""
    if os.getuid() == 0:
        shutil.chown(path, path.parent.stat().st_uid, path.parent.stat().st_gid)


def reconcile(world: World) -> dict[str, int]:
    said = subprocess.run(
        [sys.executable, ROOT / "runner.py", "reconcile", "--json", "--store",
         world.objects.prefix],
        env=world.database.environment | world.objects.environment, capture_output=True, text=True,
        check=False).stdout
    return counts(json.loads(said))


def cross(conn: Connection) -> None:
    """Transactions, one after the other, until the boundary lies behind."""
    while next_id(conn) < BOUNDARY + 10:
        pass


def claimed(conn: Connection) -> list[str]:
    return [row[0] for row in rows(conn, "select url from gc.claim('worker') order by url")]


def confirm_all(conn: Connection) -> None:
    execute(conn, "select gc.confirm('worker', array(select id from gc.tombstones "
            "where worker = 'worker'))")


def test_a_row_of_billions_of_transactions_ago_is_not_recent(
    server: Cluster, files: FileObjects
) -> None:
    world = World(server.database, files).track()
    with server.database.connect() as conn:
        execute(conn, "insert into app.file (id) values (1); insert into app.post values (1, 1)")
    move_to(server, 2 * STEP)
    with server.database.connect() as conn:
        execute(conn, "insert into app.file (id) values (2); insert into app.post values (2, 2)")
    assert reconcile(world) == {"missing": 2}


def test_what_waits_for_transactions_waits_across_the_boundary(
    server: Cluster, files: FileObjects
) -> None:
    move_to(server, BOUNDARY - 200)
    world = World(server.database, files).track()
    with server.database.connect() as conn, \
            server.database.connect(autocommit=False) as writer, \
            server.database.connect(autocommit=False) as reader, \
            server.database.connect(autocommit=False) as snapshot:
        execute(conn, """
            insert into app.image values (1, 's3://b/1'), (2, 's3://b/2');
            insert into app.scan values (1, 's3://b/scan');
            insert into app.letter values (1), (2);
            insert into app.page values (1, 1), (2, 2)""")
        assert next_id(conn) < BOUNDARY
        # One has inserted a row with a url that is about to go, others have only read it.
        execute(writer, "insert into app.image values (3, 's3://b/1'); "
                "insert into app.scan values (2, 's3://b/scan')")
        execute(reader, "select url from app.image")
        execute(snapshot, "set transaction isolation level repeatable read; "
                "select url from app.image")
        execute(conn, "delete from app.image; delete from app.scan")
        execute(conn, "select gc.review()")
        assert value(conn, "select count(*) from app.letter") == 0, "they went before the boundary"
        assert claimed(conn) == []
        assert next_id(conn) < BOUNDARY
        cross(conn)
        assert claimed(conn) == [], "the writer has not ended"
        assert "has not ended" in value(
            conn, "select held_up_by from gc.status() where collection = 'image'")
        writer.commit()
        assert claimed(conn) == ["s3://b/2"], "the others have a row"
        confirm_all(conn)
        with pytest.raises(psycopg.errors.SerializationFailure):
            execute(reader, "insert into app.image values (4, 's3://b/2')")
        with pytest.raises(psycopg.errors.SerializationFailure):
            execute(snapshot, "insert into app.image values (5, 's3://b/2')")
        reader.rollback()
        snapshot.rollback()
        execute(reader, "insert into app.image values (4, 's3://b/2')")  # Written again since.
        reader.commit()
        assert value(conn, "select gc.restore('letter', '1')") == 2, "the letter and its page"
        execute(conn, "select gc.review()")
        assert value(conn, "select count(*) from gc.witnesses") == 0, "nobody is left who knows"

        execute(conn, "delete from app.post; delete from app.file; delete from gc.tombstones")
        world.write(conn, range(1, 6))
        execute(conn, "insert into app.post values (1, 1)")
        collect(world)
        assert files.names() == {"1"}, "and a runner goes on"
