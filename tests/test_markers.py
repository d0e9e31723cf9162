"""A bucket knows its database: copies delete nothing, and nothing else stops the original."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
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
from typing import Any

import pytest
from cluster import Cluster
from conftest import ROOT, Connection, Database, NewDatabase, execute, rows, value, wait_until
from stores import AmazonObjects, FileObjects, GoogleObjects, Objects, environment_of
from worlds import NewWorld, Process, World, make_template, new_world, template

import blobgc.database
from blobgc import runner
from blobgc.commands import run as run_command
from blobgc.errors import HELD_UP, SUCCESS
from blobgc.stores import Store, Tombstone, open_store

__all__ = ["new_world", "template"]  # Databases that are ready.

# Nothing that was deleted in a copy matters here, so that all of its objects can be tried.
ALL = range(1, 7)

STORES = ["files", "amazon", "google"]

# Every way of copying, with every store, in both orders; and every kill in every kind of store.
IS_LONG = bool(os.environ.get("BLOBGC_LONG"))

# A runner in this process is not sent signals, for which it would look, and its end is waited for.
runner.POLL = 0.05


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
            # A process would end now. Its reviews wait at this lock, or have ended.
            at_work.in_review.release()
            for thread in threading.enumerate():
                if thread.name.endswith("(guard)"):
                    thread.join(20)
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


@pytest.fixture(params=STORES)
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


Way = tuple[
    Callable[["Server", Database], contextlib.AbstractContextManager[Database]], str, str]


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
        make_template(made.database)
        yield made


@pytest.fixture
def served(server: Server, store: Objects) -> Iterator[Database]:
    """A database in a server that can be copied, whose runner has written the marker."""
    name = f"blobgc_{abs(hash(store.prefix))}"
    with server.database.connect() as conn:
        execute(conn, f"create database {name} template runner_template")
        database = replace(server.database, name=name)
        World(database, store).track()
        assert collect(database, store) == SUCCESS
        yield database
        execute(conn, f"drop database {name} with (force)")


@contextlib.contextmanager
def template_of(
    server: Server, database: Database, template: str | None = None
) -> Iterator[Database]:
    copy = replace(database, name=f"{database.name}_copy")
    with server.database.connect() as conn:
        execute(conn, f"create database {copy.name} template {template or database.name}")
        yield copy
        execute(conn, f"drop database {copy.name} with (force)")


@contextlib.contextmanager
def dump_of(server: Server, database: Database) -> Iterator[Database]:
    with template_of(server, database, "template0") as copy:
        copy.psql(database.run("pg_dump"))
        yield copy


@contextlib.contextmanager
def backup_of(server: Server, database: Database) -> Iterator[Database]:
    with server.copy() as other:
        other.start()
        yield replace(database, host=str(other.folder))


@contextlib.contextmanager
def disk_of(server: Server, database: Database) -> Iterator[Database]:
    """A snapshot, on another machine: it has even the same directory."""
    with database.connect() as conn:
        execute(conn, "update gc.markers set place = place - 'data directory'")
    with backup_of(server, database) as copy:
        yield copy


ELSEWHERE = "the database is not where it was, so it may be a copy: its"
BEHIND = "the marker has epoch"

# How it is copied; what the copy says if it starts first, and after the original.
WAYS = [
    (template_of, f"{ELSEWHERE} database oid was", f"{ELSEWHERE} database oid was"),
    (dump_of, f"{ELSEWHERE} database oid was", f"{ELSEWHERE} database oid was"),
    (backup_of, f"{ELSEWHERE} data directory was", f"{ELSEWHERE} data directory was"),
    (disk_of, "the server was started again", BEHIND),
]


def matrix() -> Iterator[Any]:
    """Each way with each store and in each order, and each store in each order; or all of it."""
    for number, way in enumerate(WAYS):
        for name in STORES:
            for is_copy_first in (True, False):
                if IS_LONG or (number + STORES.index(name) + is_copy_first) % 2:
                    order = "the copy first" if is_copy_first else "the original first"
                    yield pytest.param(
                        way, name, is_copy_first, id=f"{way[0].__name__}-{name}-{order}")


@pytest.mark.parametrize(("way", "store", "is_copy_first"), list(matrix()), indirect=["store"])
def test_a_copy_deletes_nothing_and_says_why_and_the_original_goes_on(
    server: Server, served: Database, store: Objects, caplog: pytest.LogCaptureFixture,
    way: Way, is_copy_first: bool,
) -> None:
    make_copy, why_first, why_then = way
    bury(served, store)
    with make_copy(server, served) as copied:
        if is_copy_first:
            assert_refuses(copied, store, caplog, why_first)
        assert_goes_on(served, store)
        assert_refuses(copied, store, caplog, why_then)
        bury(served, store)
        assert_goes_on(served, store)


# The protocol


def run_until_killed(steps: int, database: Database, objects: Objects) -> None:
    """A runner that is killed after so many steps: a call of the database, or something with the
    marker. It works in a process that is for it alone."""
    left = steps

    def counted(call: Callable[..., Any], counts: Callable[..., bool]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            nonlocal left
            result = call(*arguments)
            left -= counts(*arguments[1:])
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return step

    connected = blobgc.database.Database
    connected.rows = counted(  # type: ignore[method-assign]
        connected.rows, lambda query, *_: "compare_marker" in query or "gc.claim" in query)
    runner.Runner.do = counted(  # type: ignore[method-assign]
        runner.Runner.do, lambda store, answer: answer is not None)
    os._exit(collect(database, objects))


def kill_after(steps: int, database: Database, objects: Objects) -> bool:
    """Whether it was killed; if not, it ended before."""
    # Made by a fork: all that it needs is loaded by now.
    process = multiprocessing.get_context("fork").Process(
        target=run_until_killed, args=(steps, database, objects))
    process.start()
    process.join(60)
    assert process.exitcode in (SUCCESS, -signal.SIGKILL)
    return process.exitcode != SUCCESS


def let_time_pass(conn: Connection) -> None:
    """What is under way is given up by others, and what is leased is free again."""
    execute(conn, """
        update gc.markers set next_since = next_since - interval '1 minute',
            moved_at = moved_at - interval '1 minute',
            checked_at = checked_at - interval '1 minute';
        update gc.tombstones set worker = null, due_at = now();
    """)


def kill_between_all_steps(
    database: Database, objects: Objects, reset: Callable[[], None], most: int = 10
) -> int:
    steps = 0
    was_killed = True
    while was_killed and steps < most:
        steps += 1
        reset()
        bury(database, objects)
        was_killed = kill_after(steps, database, objects)
        with database.connect() as conn:
            let_time_pass(conn)
            assert collect(database, objects) == SUCCESS
            assert rows(conn, "select problem from gc.markers") == [(None,)]
            let_time_pass(conn)
        assert objects.names() == set()
    return steps if was_killed else steps - 1


def test_a_runner_that_is_killed_between_any_two_steps_stops_nobody(
    original: Database, store: Objects
) -> None:
    """The move: prepared, written, noted; the claim."""
    assert kill_between_all_steps(original, store, lambda: None) >= 4


@pytest.mark.parametrize("store", STORES if IS_LONG else ["files"], indirect=True)
def test_a_first_runner_that_is_killed_between_any_two_steps_stops_nobody(
    new_world: NewWorld, store: Objects
) -> None:
    database = new_world(store).database

    def reset() -> None:
        with database.connect() as conn:
            execute(conn, "delete from gc.markers")
        with environment_of(store):
            opened(store).delete([Tombstone(1, store.prefix + ".blobgc", None, None)])

    assert kill_between_all_steps(database, store, reset) >= 6, "that it is missing is found first"


def test_two_runners_of_one_database_do_not_stop_each_other(
    original: Database, store: Objects
) -> None:
    world = World(original, store)
    with original.connect() as conn:
        world.bury(conn, range(1, 121))
        slowly = ("--once", "--batch", "5", "--rate", "40")
        with Process(world, *slowly) as one, Process(world, *slowly) as other:
            said = one.end() + other.end()
        assert store.names() == set()
        assert "nothing is deleted here" not in said
        assert value(conn, "select count(distinct worker) from gc.deletion_log") == 2
        moved = json.loads(read_marker(store))
        # Moves follow each other after two seconds at the earliest.
        assert value(conn, "select epoch from gc.markers") == moved["epoch"] >= 1


def opened(objects: Objects) -> Store:
    return open_store(objects.prefix, argparse.Namespace(timeout=10, threads=1))


def read_marker(objects: Objects) -> str:
    with environment_of(objects):
        found = opened(objects).read_marker(objects.prefix + ".blobgc")
    assert found
    return found.content


def test_a_store_without_conditional_writes_is_found_out_and_works(
    amazon: AmazonObjects, new_world: NewWorld, caplog: pytest.LogCaptureFixture
) -> None:
    amazon.proxy.drops_conditions = True
    with environment_of(amazon):
        assert not opened(amazon).has_conditions()
    original, copy = (new_world(amazon).database for _ in range(2))
    for database in (original, copy):  # Which of them began is all that they differ in.
        bury(database, amazon)
    assert collect(original, amazon) == SUCCESS
    assert amazon.names() == set()
    assert_refuses(copy, amazon, caplog, "the marker belongs to another database")
    bury(original, amazon)
    assert_goes_on(original, amazon)


def test_a_runner_moves_the_marker_also_while_it_can_claim_nothing(
    new_world: NewWorld, google: GoogleObjects
) -> None:
    """Or a copy of the disk, which watches, would take the bucket over."""
    world = new_world(google)
    with world.database.connect() as conn:
        execute(conn, "update gc.settings set max_sleep = '1 second'")
        world.bury(conn, ALL)
        google.proxy.before.clear()
        slowly = ("--batch", "1", "--threads", "1", "--lease", "1000", "--timeout", "200")
        with Process(world, *slowly) as process:
            leased = "select count(*) = 3 from gc.tombstones where worker is not null"
            wait_until(lambda: value(conn, leased), "as much to be claimed as it can")
            epoch = value(conn, "select epoch from gc.markers")
            wait_until(lambda: value(conn, "select epoch from gc.markers") > epoch,
                       "the marker to be moved")
            assert google.names() == names(ALL)
            google.proxy.before.set()
            wait_until(lambda: not google.names(), "all to go")
            process.terminate()


@pytest.mark.parametrize("is_wider_first", [True, False])
def test_of_two_databases_the_one_with_the_narrower_prefix_stops(
    new_world: NewWorld, files: FileObjects, caplog: pytest.LogCaptureFixture,
    is_wider_first: bool,
) -> None:
    (files.folder / "part").mkdir()
    part = FileObjects(files.folder / "part")
    wider, narrower = new_world(files).database, new_world(part).database
    if not is_wider_first:
        assert collect(narrower, part) == SUCCESS
    assert collect(wider, files) == SUCCESS
    bury(narrower, part)
    assert_refuses(narrower, part, caplog, "a wider prefix has the marker of another database: "
                   f"{files.prefix}.blobgc of")
    with narrower.connect() as conn:
        execute(conn, f"select gc.adopt('{part.prefix}', 'they leave it alone')")
    assert_goes_on(narrower, part)
    bury(narrower, part)
    assert_goes_on(narrower, part)


def test_what_a_folder_was_mounted_over_is_not_taken_for_it(
    new_world: NewWorld, files: FileObjects, caplog: pytest.LogCaptureFixture
) -> None:
    database = new_world(files).database
    assert collect(database, files) == SUCCESS
    bury(database, files)
    mounted = files.folder.rename(files.folder.with_name("mounted"))
    files.folder.mkdir()
    assert collect(database, files) == HELD_UP
    assert "the marker is missing" in caplog.text
    with database.connect() as conn:
        assert value(conn, "select count(*) from gc.tombstones") == len(ALL), "none was confirmed"
    files.folder.rmdir()
    mounted.rename(files.folder)
    assert collect(database, files) == SUCCESS
    assert files.names() == set()


def test_blobgc_adopt_says_what_there_is_and_adopts(
    new_world: NewWorld, files: FileObjects, caplog: pytest.LogCaptureFixture
) -> None:
    database = new_world(files).database
    bury(database, files)
    (files.folder / ".blobgc").write_text("mine")
    assert collect(database, files) == HELD_UP

    def adopt(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, ROOT / "runner.py", "adopt", "--json", *arguments],
            env=database.environment, capture_output=True, text=True, check=True).stdout

    assert "what stands there is no marker" in adopt()
    assert "the next runner adopts it" in adopt(files.prefix, "--reason", "it was a mistake")
    assert_goes_on(database, files)
