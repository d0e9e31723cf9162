"""Standbys: one that lacks the last transactions, and what was deleted because of them; readers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import psycopg
import pytest
from conftest import Connection, Database, execute, rows, value, wait_until
from stores import FileObjects
from test_markers import ALL, Server, assert_refuses, collect, names
from worlds import SETUP, World

from blobgc.errors import HELD_UP, SUCCESS


class Pair:
    """A primary with a standby, which has a slot, and an archive."""

    def __init__(self, stack: ExitStack, files: FileObjects) -> None:
        self.files = files
        self.primary = stack.enter_context(Server())
        self.archive = self.primary.folder / "archive"
        self.archive.mkdir()
        self.primary.own(self.archive)
        self.primary.make("archive_mode = on", f"archive_command = 'cp %p {self.archive}/%f'")
        self.primary.start()
        self.database = self.primary.database
        self.conn = stack.enter_context(self.database.connect())
        execute(self.conn, SETUP)
        World(self.database, files).track()
        self.standby = self.primary.copy("-R", "-C", "-S", "slot_of_standby")
        stack.callback(self.standby.remove)
        self.standby.configure("cluster_name = 'standby_one'")
        self.standby.start()
        wait_until(self.is_followed, "the standby to follow")

    def is_followed(self) -> bool:
        found = rows(self.conn, "select application_name from pg_stat_replication "
                     "where state = 'streaming' and flush_lsn >= pg_current_wal_lsn()")
        return found == [("standby_one",)]

    def fail_over(self) -> Database:
        """The primary is killed, and the standby, which is behind, takes its place."""
        self.primary.stop()
        self.standby.start()
        self.standby.run("pg_ctl", "promote", "-w", "-s")
        return replace(self.database, host=str(self.standby.folder))


@pytest.fixture
def pair(files: FileObjects) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack, files)


def lost(database: Database, files: FileObjects) -> set[str]:
    """Rows that are alive and have no object."""
    with database.connect() as conn:
        alive = {str(row[0]) for row in rows(conn, "select id from app.file")}
    return alive - files.names()


def delete_behind_the_standby(pair: Pair) -> None:
    """Rows that the standby has, and of whose deletion it does not learn."""
    World(pair.database, pair.files).write(pair.conn, ALL)
    execute(pair.conn, "insert into app.post select n, n from generate_series(1, 6) as n")
    wait_until(pair.is_followed, "the rows to reach the standby")
    with replace(pair.database, host=str(pair.standby.folder)).connect() as reader:
        assert value(reader, "select why from gc.status()") is None, "it can be asked there"
    pair.standby.stop()
    execute(pair.conn, "delete from app.post; delete from app.file")


def test_without_durable_on_a_failover_leaves_rows_without_objects(pair: Pair) -> None:
    assert collect(pair.database, pair.files) == SUCCESS
    delete_behind_the_standby(pair)
    assert collect(pair.database, pair.files) == SUCCESS
    assert pair.files.names() == set()
    promoted = pair.fail_over()
    assert lost(promoted, pair.files) == names(ALL), "which is what durable_on is for"


def test_with_durable_on_no_row_that_is_alive_lacks_its_object(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    execute(pair.conn, "update gc.settings set durable_on = '{standby_one, slot_of_standby}'")
    World(pair.database, pair.files).bury(pair.conn, range(101, 104))
    assert collect(pair.database, pair.files, "--wait", "20") == SUCCESS
    assert pair.files.names() == set(), "what has reached the standby is deleted"

    delete_behind_the_standby(pair)
    assert collect(pair.database, pair.files, "--wait", "2") == HELD_UP
    assert pair.files.names() == names(ALL), "what has not is kept"
    assert_says_since_when(pair.conn)

    promoted = pair.fail_over()
    assert lost(promoted, pair.files) == set()
    with promoted.connect() as conn:
        execute(conn, "update gc.settings set durable_on = '{}'; "
                "delete from app.post; delete from app.file")
        assert_refuses(promoted, pair.files, caplog, "the database is not where it was")
        assert "its timeline was 00000001 and is 00000002" in caplog.text
        go_on_after_a_failover(promoted, conn, pair.files)


def assert_says_since_when(conn: Connection) -> None:
    found = value(conn, "select held_up_by from gc.status()")
    assert '"standby_one" (durable_on) is not there, so it has not got what was deleted' in found
    execute(conn, "update gc.durable_points set noted_at = noted_at - interval '1 hour'")
    checked = rows(conn, "select severity, problem from gc.check() where subject = 'durable_on'")
    assert checked == [("warning", value(conn, "select held_up_by from gc.status()"))]


def go_on_after_a_failover(promoted: Database, conn: Connection, files: FileObjects) -> None:
    """By itself, because it is trusted; but first it sees that nobody else moves the marker."""
    execute(conn, "update gc.settings set failover = 'trusted'")
    assert collect(promoted, files) == HELD_UP
    assert "it is watched" in value(conn, "select held_up_by from gc.status()")
    execute(conn, "update gc.markers set watched_since = watched_since - interval '8 minutes'")
    assert collect(promoted, files) == SUCCESS
    assert files.names() == set()
    assert value(conn, "select count(*) from gc.operations where operation = 'take over'") == 1


def test_a_reader_of_a_standby_finds_the_object_while_undo_lasts(pair: Pair) -> None:
    """It sees a row until the deletion is replayed, and with an older snapshot for longer."""
    world = World(pair.database, pair.files)
    standby = replace(pair.database, host=str(pair.standby.folder))
    execute(pair.conn, "update gc.settings set durable_on = '{standby_one}', undo = '1 hour'")
    execute(pair.conn, "select gc.review()")
    world.write(pair.conn, ALL)
    wait_until(pair.is_followed, "the rows to reach the standby")
    with standby.connect() as reader, standby.connect(autocommit=False) as older:
        execute(older, "set transaction isolation level repeatable read; select from app.file")
        execute(reader, "select pg_wal_replay_pause()")
        execute(pair.conn, "delete from app.file")
        assert collect(pair.database, pair.files) == SUCCESS
        assert value(reader, "select count(*) from app.file") == len(ALL)
        assert pair.files.names() == names(ALL), "an hour for both readers"

        execute(pair.conn, "update gc.tombstones set due_at = now()")
        assert collect(pair.database, pair.files, "--wait", "20") == SUCCESS
        assert pair.files.names() == set(), "the deletion is there, though not shown"
        assert value(reader, "select count(*) from app.file") == len(ALL), "rows without objects"
        execute(reader, "select pg_wal_replay_resume()")
        wait_until(lambda: value(reader, "select count(*) from app.file") == 0, "the replay")
        assert value(older, "select count(*) from app.file") == len(ALL), "for as long as he reads"


def test_the_archive_is_waited_for(pair: Pair) -> None:
    execute(pair.conn, "update gc.settings set durable_on = '{archive}'; select pg_switch_wal()")
    World(pair.database, pair.files).bury(pair.conn, ALL)
    assert collect(pair.database, pair.files, "--wait", "2") == HELD_UP
    assert pair.files.names() == names(ALL), "the segment is not archived yet"
    execute(pair.conn, "select pg_switch_wal()")
    wait_until(lambda: not_archived(pair.conn) == 0, "the archive")
    assert collect(pair.database, pair.files, "--wait", "20") == SUCCESS
    assert pair.files.names() == set()

    # Who may not see a standby cannot wait for it.
    execute(pair.conn, "create role plain; alter function gc._change_durable_on() owner to plain; "
            "grant usage on schema gc to plain; "
            "grant execute on all functions in schema gc to plain")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match='of "standby_one" cannot be'):
        execute(pair.conn, "update gc.settings set durable_on = '{standby_one}'")


def not_archived(conn: Connection) -> int:
    return int(value(conn, "select count(*) from pg_ls_archive_statusdir() as f "
                     "where f.name like '%.ready'"))
