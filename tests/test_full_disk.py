"""A disk is full, or cannot be written: that of the database, and that of the objects."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from cluster import Cluster, cluster_of_its_own
from conftest import Connection, Database, execute, rows, value, wait_until
from stores import FileObjects
from worlds import SETUP, NewWorld, Process, World, new_world, template

__all__ = ["new_world", "template"]  # Databases that are ready.


class Disk:
    """A file system of its own, in memory, which can be filled."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        folder.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", folder],
                          capture_output=True, check=False).returncode:
            pytest.skip("file systems cannot be mounted here")

    def fill(self) -> None:
        with contextlib.suppress(OSError), (self.folder / "filler").open("wb", 0) as file:
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        (self.folder / "filler").unlink()

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", self.folder], check=True)

    def remove(self) -> None:
        """By force: a server that cannot write may take a while to end."""
        subprocess.run(["umount", "--lazy", self.folder], check=True)


@contextlib.contextmanager
def disk_of(folder: Path, size: str) -> Iterator[Disk]:
    made = Disk(folder, size)
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Disk, Cluster]]:
    """A server on a small disk, with a database that is ready."""
    folder = Path(tempfile.mkdtemp(prefix="blobgc_disk.")) / "disk"
    with disk_of(folder, "160m") as disk, contextlib.ExitStack() as running:
        disk.folder.parent.chmod(0o755)
        with monkeypatch.context() as patched:
            patched.setattr(tempfile, "tempdir", str(disk.folder))
            server = running.enter_context(cluster_of_its_own(
                "fsync = off", "min_wal_size = 32MB", "max_wal_size = 32MB", name="full"))
        with server.database.connect() as conn:
            execute(conn, SETUP)
        yield disk, server
    shutil.rmtree(disk.folder.parent)


def alive(conn: Connection) -> set[str]:
    return {str(row[0]) for row in rows(conn, "select file_id from app.post")}


def has_runner(conn: Connection) -> bool:
    """Whether one has looked at the marker."""
    return bool(value(conn, "select count(*) from gc.markers where checked_at is not null"))


def push(conn: Connection, files: FileObjects, number: int) -> str | None:
    """A file that is used, row first. Returns the error if it could not be pushed."""
    try:
        with conn.transaction():
            conn.execute("insert into app.file (id) values (%s)", [number])
            conn.execute("insert into app.post values (%s, %s)", [number, number])
    except psycopg.OperationalError as error:
        return error.sqlstate or "the connection is lost"
    files.put(str(number))
    return None


def release(conn: Connection, number: int) -> str | None:
    try:
        conn.execute("delete from app.post where id = %s", [number])
    except psycopg.OperationalError as error:
        return error.sqlstate or "the connection is lost"
    return None


def work_on_a_full_disk(conn: Connection, files: FileObjects, told: set[str]) -> set[str | None]:
    """Until pushes fail. Told: what the client knows to be there. Returns the errors."""
    errors: set[str | None] = set()
    for number in range(1000, 9000):
        error = push(conn, files, number)
        errors.add(error)
        if not error:
            told.add(str(number))
        if number % 3 == 0 and not release(conn, number - 300):
            told.discard(str(number - 300))
        if error and number % 50 == 0:
            break
    return errors


def break_down(database: Database) -> None:
    """The log needs another file, and gets none: PostgreSQL ends at once."""
    with contextlib.suppress(psycopg.OperationalError), database.connect() as conn:
        for _ in range(30):
            execute(conn, "select pg_switch_wal()")
            execute(conn, "update app.file set bytes = 11 where id = 1")
        raise AssertionError("there is room")


def is_watched(conn: Connection) -> bool:
    """After another start of the server; if so, that takes no longer."""
    return bool(rows(conn, "update gc.markers set watched_since = watched_since - '1 h'::interval "
                     "where watched_since is not null returning 1"))


def test_on_a_full_disk_nothing_is_lost_and_all_goes_on_when_there_is_room(
    small: tuple[Disk, Cluster], files: FileObjects
) -> None:
    disk, server = small
    world = World(server.database, files).track()
    with server.database.connect() as conn:
        for number in range(1, 300):
            assert push(conn, files, number) is None
        told = alive(conn)
        with Process(world) as process:
            wait_until(lambda: has_runner(conn), "the runner to start")
            disk.fill()
            errors = work_on_a_full_disk(conn, files, told)
            assert errors - {None} == {"53100"}, "PostgreSQL says that the disk is full"
            assert alive(conn) == told <= files.names()
            break_down(server.database)
            time.sleep(1)
            disk.free()
            if not server.accepts():
                with contextlib.suppress(subprocess.CalledProcessError):
                    server.stop()
                server.start()
            with server.database.connect() as other:
                assert alive(other) == told <= files.names()
                execute(other, "delete from app.post where id % 2 = 0; notify blobgc")
                wait_until(lambda: is_watched(other), "the marker to be watched")
                wait_until(lambda: files.names() == alive(other), "what is dead to go", 60)
                assert alive(other) == {number for number in told if int(number) % 2}
                assert push(other, files, 9999) is None
            said = process.terminate()
    assert "no answer from the database, next try" in said


def test_a_full_store_is_emptied(new_world: NewWorld, tmp_path: Path) -> None:
    """The marker has to be moved before anything is deleted, and there is no room for another."""
    with disk_of(tmp_path / "disk", "1m") as disk:
        world = new_world(FileObjects(disk.folder))
        with world.database.connect() as conn, Process(world) as process:
            wait_until(lambda: has_runner(conn), "the runner to start")
            world.bury(conn, range(1, 20))
            wait_until(lambda: world.objects.names() == set(), "what is dead to go")
            world.write(conn, range(20, 40))
            execute(conn, "insert into app.post select id, id from app.file where id < 30")
            disk.fill()
            execute(conn, "update gc.markers set moved_at = moved_at - interval '1 hour'; "
                    "delete from app.file where id >= 30; notify blobgc")
            live = {str(number) for number in range(20, 30)} | {"filler"}
            wait_until(lambda: {path.name for path in disk.folder.rglob("*") if path.is_file()
                                and not path.name.startswith(".blobgc")} == live,
                       "what is dead to go")
            disk.free()
            execute(conn, "delete from app.post; notify blobgc")
            wait_until(lambda: world.objects.names() == set(), "the rest to go")
            process.terminate()


def test_a_store_that_cannot_be_written_is_left_alone_until_it_can(
    new_world: NewWorld, tmp_path: Path
) -> None:
    with disk_of(tmp_path / "disk", "1m") as disk:
        world = new_world(FileObjects(disk.folder))
        with world.database.connect() as conn, Process(world) as process:
            wait_until(lambda: has_runner(conn), "the runner to start")
            world.write(conn, range(1, 6))
            disk.remount("ro")
            execute(conn, "notify blobgc")
            wait_until(lambda: value(conn, "select count(*) from app.file") == 0, "the rows to go")
            time.sleep(2)
            assert len(world.objects.names()) == 5
            assert value(conn, "select count(*) from gc.tombstones") == 5
            disk.remount("rw")
            execute(conn, "notify blobgc")
            wait_until(lambda: world.objects.names() == set(), "the objects to go", 30)
            said = process.terminate()
        assert "Read-only file system" in said
