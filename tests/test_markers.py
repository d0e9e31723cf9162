"""A bucket knows its database: copies delete nothing, and nothing else stops the original."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, Connection, Database, NewDatabase, execute, rows, value, wait_until
from stores import AmazonObjects, FileObjects, GoogleObjects, Objects, environment_of
from test_crash import Cluster
from test_runner import SETUP, Process, World, template

from blobgc import runner
from blobgc.commands import run as run_command
from blobgc.errors import HELD_UP, SUCCESS

__all__ = ["template"]  # A database that is ready to be copied.

# Nothing that was deleted in a copy matters here, so that all of its objects can be tried.
ALL = range(1, 7)


def names(numbers: range) -> set[str]:
    return {str(number) for number in numbers}


def collect(database: Database, objects: Objects, *arguments: str) -> int:
    """A runner in this process, with --once: it starts faster. Returns its exit code."""
    parser = argparse.ArgumentParser()
    run_command.arguments(parser)
    dsn = f"host={database.host} port={database.port} user={database.user} dbname={database.name}"
    options = parser.parse_args(
        ["--store", objects.prefix, "--dsn", dsn, "--once", "--wait", "0", *arguments])
    with environment_of(objects):
        at_work = runner.Runner(options, threading.Event())
        try:
            return at_work.run()
        finally:
            for thread in threading.enumerate():
                if thread.name.endswith("(guard)"):  # Its review has ended, it has perhaps not.
                    thread.join()
            for connected in (at_work.database, at_work.settling, at_work.reviewing):
                connected.connection.close()


def bury(database: Database, objects: Objects) -> None:
    with database.connect() as conn:
        World(database, objects).bury(conn, ALL)


def assert_refuses(
    database: Database, objects: Objects, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """The objects are put there again: they are those of rows that the original has, perhaps."""
    for name in names(ALL):
        objects.put(name)
    caplog.clear()
    assert collect(database, objects) == HELD_UP
    assert objects.names() == names(ALL), "the copy deletes nothing"
    assert f"nothing is deleted here: {why}" in caplog.text
    with database.connect() as conn:
        assert value(conn, "select held_up_by from gc.status()").startswith(objects.prefix)


def assert_goes_on(database: Database, objects: Objects) -> None:
    with database.connect() as conn:
        execute(conn, "update gc.tombstones set generation = null")  # They were put there again.
    assert collect(database, objects) == SUCCESS
    assert objects.names() == set()


@pytest.fixture(params=["files", "amazon", "google"])
def store(request: pytest.FixtureRequest) -> Objects:
    found: Objects = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def original(new_database: NewDatabase, template: str, store: Objects) -> Database:
    """A database whose runner has written the marker."""
    found = World(new_database(template=template), store).track().database
    assert collect(found, store) == SUCCESS
    return found


# Copies


def test_a_copy_by_template_deletes_nothing_whoever_starts_first(
    original: Database, store: Objects, new_database: NewDatabase,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bury(original, store)
    copy = new_database(template=original.name)
    why = "the database is not where it was, so it may be a copy: its database oid was"
    assert_refuses(copy, store, caplog, why)
    assert_goes_on(original, store)
    assert_refuses(copy, store, caplog, why)


def test_a_copy_by_dump_and_restore_deletes_nothing_whoever_starts_first(
    original: Database, store: Objects, new_database: NewDatabase,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bury(original, store)
    copy = new_database()
    copy.psql(original.run("pg_dump"))
    why = "the database is not where it was, so it may be a copy: its database oid was"
    assert_refuses(copy, store, caplog, why)
    assert_goes_on(original, store)
    assert_refuses(copy, store, caplog, why)


@pytest.mark.parametrize("store", ["files"], indirect=True)
def test_a_copy_that_was_adopted_takes_the_bucket_over(
    original: Database, store: Objects, new_database: NewDatabase,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bury(original, store)
    copy = new_database(template=original.name)
    with copy.connect() as conn:
        execute(conn, f"select gc.adopt('{store.prefix}', 'we have moved')")
    assert_goes_on(copy, store)
    assert_refuses(original, store, caplog, "the marker belongs to another database")
    with copy.connect() as conn:
        logged = rows(conn, "select operation, reason from gc.operations order by id")
    assert [operation for operation, _ in logged] == ["adopt", "take over"]
    assert logged[0][1].startswith("we have moved; the database is not where it was")


class Server(Cluster):
    """A server that can be copied."""

    def __init__(self) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="blobgc_marker.")))
        self.own(self.folder)

    def own(self, path: Path) -> None:
        if os.getuid() == 0:
            shutil.chown(path, os.environ["BLOBGC_PGUSER_OS"])

    def make(self, *settings: str) -> Server:
        self.run("initdb", "-U", "postgres", "--auth=trust", "--locale=C.UTF-8", "-E", "UTF8",
                 "--no-sync")
        self.configure(f"port = {self.database.port}", "listen_addresses = ''", "fsync = off",
                       "autovacuum = off", *settings)
        return self

    def configure(self, *settings: str) -> None:
        with (self.folder / "data" / "postgresql.conf").open("a") as conf:
            conf.write("\n".join([f"unix_socket_directories = '{self.folder}'", *settings, ""]))

    def copy(self, *options: str) -> Server:
        """A base backup, ready to be started beside this one."""
        other = Server()
        other.run("pg_basebackup", "-h", str(self.folder), "-p", self.database.port,
                  "-U", "postgres", "-c", "fast", "--no-sync", *options)
        other.configure()
        return other

    def remove(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.stop()
        shutil.rmtree(self.folder)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
        made.make().start()
        yield made


@pytest.fixture
def served(server: Server, store: Objects) -> Database:
    """A database in a server of its own, whose runner has written the marker."""
    name = f"blobgc_{abs(hash(store.prefix))}"
    with server.database.connect() as conn:
        execute(conn, f"create database {name}")
    database = replace(server.database, name=name)
    with database.connect() as conn:
        execute(conn, SETUP)
    World(database, store).track()
    assert collect(database, store) == SUCCESS
    return database


def test_a_base_backup_deletes_nothing_whoever_starts_first(
    server: Server, served: Database, store: Objects, caplog: pytest.LogCaptureFixture,
) -> None:
    bury(served, store)
    with server.copy() as other:
        other.start()
        copy = replace(served, host=str(other.folder))
        why = "the database is not where it was, so it may be a copy: its data directory was"
        assert_refuses(copy, store, caplog, why)
        assert_goes_on(served, store)
        assert_refuses(copy, store, caplog, why)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_copy_that_nothing_tells_from_the_original_falls_behind(
    server: Server, served: Database, store: Objects, caplog: pytest.LogCaptureFixture,
    is_first: bool,
) -> None:
    """The snapshot of a disk, on another machine: it has even the same directory."""
    with served.connect() as conn:
        execute(conn, "update gc.markers set place = place - 'data directory'")
    bury(served, store)
    with server.copy() as other:
        other.start()
        copy = replace(served, host=str(other.folder))
        if is_first:
            assert_refuses(copy, store, caplog, "the server was started again")
        assert_goes_on(served, store)
        assert_refuses(copy, store, caplog, "the marker has epoch")
        assert "this is a copy of the database that moved it" in caplog.text


test_a_copy_that_nothing_tells_from_the_original_falls_behind.pytestmark.append(
    pytest.mark.parametrize("store", ["files"], indirect=True).mark)
