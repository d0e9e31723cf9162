"""Databases whose rows have objects in a store, and a runner that works on them as a process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from cluster import Cluster
from conftest import (
    ROOT,
    Connection,
    Database,
    NewDatabase,
    execute,
    rows,
    value,
)
from stores import FileObjects, GoogleObjects, Objects

# Failures are tried again soon, and the runner looks often and never rests.
SETUP = """
create extension blobgc;
create schema app;
create table app.file (id integer primary key, bytes bigint not null default 10, version text);
create table app.post (id integer primary key, file_id integer references app.file);
create index on app.post (file_id);
update gc.settings set jitter = '0', undo = '0', brake_share = 1, backoff = '100 milliseconds',
    backoff_limit = '500 milliseconds', max_sleep = '3 seconds', pace = 1;
insert into gc.review_after_defaults
values ('file_insert', '0'), ('post_delete', '0'), ('post_update', '0');
"""


class World:
    """A database whose files are objects of a store."""

    def __init__(self, database: Database, objects: Objects) -> None:
        self.database, self.objects = database, objects

    def track(self) -> World:
        with self.database.connect() as conn:
            rows(
                conn, "select * from gc.track('app.file', url => %s, size => 'bytes', "
                "generation => 'version')", f"'{self.objects.prefix}' || id"
            )
        return self

    def write(self, conn: Connection, numbers: range) -> None:
        """Objects, and rows that nothing refers to."""
        for number in numbers:
            version = self.objects.put(str(number))
            conn.execute("insert into app.file (id, version) values (%s, %s)", [number, version])

    def bury(self, conn: Connection, numbers: range) -> None:
        """Objects whose rows are gone already."""
        self.write(conn, numbers)
        conn.execute("delete from app.file where id = any (%s)", [list(numbers)])


class Process:
    """A runner that works on a world."""

    def __init__(self, world: World, *arguments: str, stderr: int | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, ROOT / "runner.py", "run", "--store", world.objects.prefix,
             *arguments],
            env=world.database.environment | world.objects.environment,
            stdout=subprocess.PIPE, stderr=stderr or subprocess.PIPE, text=True,
        )

    def end(self, seconds: float = 60, code: int = 0) -> str:
        """Waits until it ends by itself, well or as is said."""
        _, said = self.process.communicate(timeout=seconds)
        assert self.process.returncode == code, said
        return said

    def terminate(self, seconds: float = 60) -> str:
        self.process.terminate()
        return self.end(seconds)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.kill()


def collect(world: World, *arguments: str, code: int = 0) -> str:
    with Process(world, "--once", *arguments) as process:
        return process.end(code=code)


def make_template(database: Database) -> None:
    with database.connect() as conn:
        execute(conn, "create database runner_template")
    with replace(database, name="runner_template").connect() as conn:
        execute(conn, SETUP)


@pytest.fixture(scope="module")
def template() -> Iterator[str]:
    """A database that is ready but for the store; to copy it is quicker than to make it."""
    server = Database("postgres", *(os.environ[name] for name in ("PGHOST", "PGPORT", "PGUSER")))
    make_template(server)
    yield "runner_template"
    with server.connect() as conn:
        execute(conn, "drop database runner_template with (force)")


NewWorld = Callable[[Objects], World]


@pytest.fixture
def new_world(new_database: NewDatabase, template: str) -> NewWorld:
    return lambda objects: World(new_database(template=template), objects).track()


@pytest.fixture
def world(new_world: NewWorld, objects: Objects) -> World:
    return new_world(objects)


@pytest.fixture
def google_world(new_world: NewWorld, google: GoogleObjects) -> World:
    return new_world(google)


@pytest.fixture
def file_world(new_world: NewWorld, files: FileObjects) -> World:
    return new_world(files)


@pytest.fixture
def conn(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A session in the world that the test has."""
    name = next(n for n in request.fixturenames if n.endswith("world"))
    found: World = request.getfixturevalue(name)
    with found.database.connect() as connection:
        yield connection


def tombstones(conn: Connection) -> int:
    return int(value(conn, "select count(*) from gc.tombstones"))


def logged_once(conn: Connection, numbers: range | set[int]) -> None:
    """Each of these was confirmed once, and nothing else was."""
    found = [int(row[0]) for row in rows(conn, "select key from gc.deletion_log order by key::int")]
    assert found == sorted(numbers)


def start(world: World, *arguments: str) -> tuple[int, str]:
    with Process(world, *arguments) as process:
        _, said = process.process.communicate(timeout=30)
        return process.process.returncode, said


def is_asleep(conn: Connection) -> bool:
    """Whether no connection of the runner has asked anything for longer than it polls."""
    return bool(value(conn, "select count(*) = 3 and bool_and(state = 'idle' and "
                      "state_change < clock_timestamp() - interval '0.7 s') from pg_stat_activity "
                      "where datname = current_database() and application_name like 'blobgc %'"))


def bury_url(conn: Connection, number: int, url: str, generation: str | None = None) -> None:
    """As if a row had had this url."""
    conn.execute("insert into gc.tombstones (collection, key, url, generation, due_at) "
                 "values ('file', %s, %s, %s, now())", [str(number), url, generation])


@pytest.fixture(scope="module")
def crash_template(cluster: Cluster) -> Cluster:
    make_template(cluster.database)
    return cluster


@pytest.fixture
def crash_world(crash_template: Cluster, google: GoogleObjects) -> Iterator[World]:
    """In a server that may be crashed, with objects that can be held in the middle of a delete."""
    cluster = crash_template
    with cluster.database.connect() as conn:
        execute(conn, "create database runner_crash template runner_template")
    yield World(replace(cluster.database, name="runner_crash"), google).track()
    with cluster.database.connect() as conn:
        execute(conn, "drop database runner_crash with (force)")
