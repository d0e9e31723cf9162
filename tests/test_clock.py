"""The server's clock is set back and forward by a day: nothing live goes, and what is dead goes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from cluster import Cluster, cluster_of_its_own
from conftest import Connection, execute, rows, value, wait_until
from stores import FileObjects
from worlds import Process, World, collect, make_template, tombstones

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))

DAY = 86400


class Clock:
    """That of a server, which can be set while it runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, seconds: int) -> None:
        """So far ahead of the true time. A file is replaced as a whole: it is read all the time."""
        new = self.path.with_suffix(".new")
        new.write_text(f"{seconds:+d}s\n")
        new.rename(self.path)


@pytest.fixture(scope="module")
def clock() -> Iterator[Clock]:
    """Not in pytest's folder, which each start of pytest closes to others, as the server is."""
    with tempfile.TemporaryDirectory(prefix="blobgc_clock.") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield Clock(folder / "clock")


@pytest.fixture(scope="module")
def server(clock: Clock) -> Iterator[Cluster]:
    with cluster_of_its_own("fsync = off", "autovacuum = off", name="clock", environment={
        "LD_PRELOAD": str(LIBRARY), "FAKETIME_TIMESTAMP_FILE": str(clock.path),
        "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }) as made:
        make_template(made.database)
        yield made


@pytest.fixture
def clock_world(server: Cluster, clock: Clock, files: FileObjects) -> Iterator[World]:
    """An hour passes before anything is reviewed, or an object is deleted."""
    clock.set(0)
    with server.database.connect() as conn:
        execute(conn, "create database clock template runner_template")
    database = replace(server.database, name="clock")
    with database.connect() as conn:
        execute(conn, "update gc.settings set undo = '1 hour'; "
                "update gc.review_after_defaults set value = '1 hour'")
    yield World(database, files).track()
    with server.database.connect() as conn:
        execute(conn, "drop database clock with (force)")


@pytest.fixture
def conn(clock_world: World) -> Iterator[Connection]:
    with clock_world.database.connect() as connection:
        yield connection


def claim(conn: Connection, worker: str) -> list[int]:
    return [row[0] for row in rows(conn, "select id from gc.claim(%s)", worker)]


def test_the_clock_is_that_of_the_server(conn: Connection, clock: Clock) -> None:
    for ahead in (DAY, -DAY, 0):
        clock.set(ahead)
        seen = value(conn, "select extract(epoch from clock_timestamp())::float8")
        assert abs(seen - time.time() - ahead) < 60


def test_delays_end_when_the_clock_has_caught_up(
    clock_world: World, conn: Connection, clock: Clock
) -> None:
    clock_world.write(conn, range(1, 3))
    clock.set(-DAY)
    clock_world.write(conn, range(3, 5))
    assert value(conn, "select deleted from gc.review()") == 0
    clock.set(2 * 3600 - DAY)
    assert value(conn, "select deleted from gc.review()") == 2, "those that were written last"
    clock.set(2 * 3600)
    assert value(conn, "select deleted from gc.review()") == 2, "and those from before"
    clock.set(DAY)
    clock_world.write(conn, range(5, 7))
    clock.set(0)
    collect(clock_world)  # For the objects of 3 and 4 an hour has passed, for those of 1 and 2 not.
    assert clock_world.objects.names() == {"1", "2", "5", "6"}
    clock.set(DAY + 2 * 3600)
    collect(clock_world)  # Their rows go, and the objects of the rows that went before.
    assert clock_world.objects.names() == {"5", "6"}
    clock.set(DAY + 4 * 3600)
    collect(clock_world)
    assert clock_world.objects.names() == set()


def test_a_lease_that_a_jump_has_ended_confirms_nothing(
    clock_world: World, conn: Connection, clock: Clock
) -> None:
    clock_world.bury(conn, range(1, 2))
    clock.set(2 * 3600)
    first = claim(conn, "first")
    assert len(first) == 1
    clock.set(DAY)
    second = claim(conn, "second")
    assert len(second) == 1 and second != first
    with pytest.raises(psycopg.DatabaseError, match="is being deleted"):
        execute(conn, "insert into app.file (id) values (1)")  # As long as the second has it.
    assert value(conn, "select gc.confirm('first', %s)", first) == 0
    assert tombstones(conn) == 1
    assert value(conn, "select gc.confirm('second', %s)", second) == 1

    # Set back, a lease lasts longer, and nobody else has the object meanwhile.
    clock_world.bury(conn, range(2, 3))
    clock.set(DAY + 2 * 3600)
    third = claim(conn, "third")
    clock.set(0)
    assert claim(conn, "fourth") == []
    clock.set(DAY + 2 * 3600 + 400)
    assert len(claim(conn, "fourth")) == 1
    assert value(conn, "select gc.confirm('third', %s)", third) == 0


def test_an_upload_whose_hold_a_jump_has_ended_is_told(
    clock_world: World, conn: Connection, clock: Clock
) -> None:
    clock_world.bury(conn, range(1, 2))
    execute(conn, "select gc.begin_upload('file', '1')")
    clock_world.objects.put("1")
    clock.set(DAY)
    collect(clock_world)
    assert clock_world.objects.names() == set(), "for the upload has taken a day"
    assert value(conn, "select gc.end_upload('file', '1')") is False
    execute(conn, "update gc.settings set strict_uploads = true")
    with pytest.raises(psycopg.DatabaseError, match="was not announced"):
        execute(conn, "insert into app.file (id) values (1)")

    # Set back, it is held for longer.
    execute(conn, "select gc.begin_upload('file', '1')")
    clock_world.objects.put("1")
    clock.set(0)
    execute(conn, "insert into app.file (id) values (1)")
    assert value(conn, "select gc.end_upload('file', '1')") is True
    assert clock_world.objects.names() == {"1"}


def test_who_relied_on_a_row_that_a_jump_has_made_garbage_is_refused(
    clock_world: World, conn: Connection, clock: Clock
) -> None:
    clock_world.write(conn, range(1, 2))
    assert value(conn, "select gc.keep_alive('file', '1')") is True
    clock.set(DAY)
    assert value(conn, "select deleted from gc.review()") == 1
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        execute(conn, "insert into app.post values (1, 1)")
    assert value(conn, "select gc.keep_alive('file', '1')") is False


def test_a_transaction_during_which_the_clock_is_set_back_copies_no_url_of_what_is_gone(
    clock_world: World, conn: Connection, clock: Clock
) -> None:
    clock_world.write(conn, range(1, 2))
    with clock_world.database.connect(autocommit=False) as copier:
        assert value(copier, "select count(*) from app.file where id = 1") == 1
        clock.set(-DAY)
        execute(conn, "delete from app.file")
        clock.set(2 * 3600 - DAY)
        collect(clock_world)
        assert clock_world.objects.names() == set()
        clock.set(0)
        with pytest.raises(psycopg.errors.SerializationFailure):
            execute(copier, "insert into app.file (id) values (1)")


def test_a_pause_and_a_pin_end_by_the_clock(
    clock_world: World, conn: Connection, clock: Clock
) -> None:
    execute(conn, "insert into app.file (id) values (1); "
            "select gc.pause('file', 'a while', until => now() + interval '5 hours'), "
            "gc.pin('file', '1', 'a while', until => now() + interval '30 hours')")
    clock.set(-DAY)
    clock.set(4 * 3600)
    assert value(conn, "select paused from gc.status()") == "reviews, deletes"
    assert value(conn, "select reviewed from gc.review()") == 0
    clock.set(DAY)
    assert value(conn, "select deleted from gc.review()") == 0, "it is pinned"
    clock.set(4 * 3600)
    assert value(conn, "select paused from gc.status()") is None, "what a jump has ended is over"
    clock.set(2 * DAY)
    assert value(conn, "select deleted from gc.review()") == 0, "that the pin ended is an event"
    clock.set(4 * DAY)
    assert value(conn, "select deleted from gc.review()") == 1


def test_a_runner_survives_a_clock_that_jumps(
    clock_world: World, conn: Connection, clock: Clock
) -> None:
    execute(conn, "update gc.settings set undo = '0'; "
            "update gc.review_after_defaults set value = '0'")
    with Process(clock_world) as process:
        for turn, ahead in enumerate([0, DAY, -DAY, DAY, 0, -DAY, 0]):
            clock.set(ahead)
            numbers = range(10 * turn, 10 * turn + 10)
            for number in numbers:
                clock_world.objects.put(str(number))
            execute(conn, f"""
                insert into app.file (id) select generate_series({numbers[0]}, {numbers[-1]});
                insert into app.post select id, id from app.file
                where id between {numbers[0]} and {numbers[4]};
                delete from app.post where id = {numbers[0] - 8}""")
            time.sleep(0.7)
        clock.set(2 * DAY)
        execute(conn, "notify blobgc")
        wait_until(lambda: clock_world.objects.names() == alive(conn), "what is dead to go")
        assert len(alive(conn)) == 7 * 5 - 6
        process.terminate()


def alive(conn: Connection) -> set[str]:
    return {str(row[0]) for row in rows(conn, "select distinct file_id from app.post")}
