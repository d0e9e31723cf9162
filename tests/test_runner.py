"""The runner as a process: it drains, sleeps, is killed, stopped, refused, and loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import psycopg
import pytest
from cluster import Cluster
from conftest import (
    ROOT,
    Connection,
    Database,
    NewDatabase,
    NewRole,
    execute,
    rows,
    value,
    wait_until,
)
from prometheus_client.parser import text_string_to_metric_families
from proxy import Fault
from stores import AmazonObjects, FileObjects, GoogleObjects, Objects, free_port
from test_crash import cluster

from blobgc import runner
from blobgc.stores import Tombstone

__all__ = ["cluster"]  # A server of our own to crash.

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


# Draining and sleeping


def test_once_collects_everything_that_is_due_and_ends(world: World, conn: Connection) -> None:
    world.write(conn, range(1, 31))
    execute(conn, "insert into app.post select n, n from generate_series(21, 30) as n")
    said = collect(world)
    assert world.objects.names() == {str(n) for n in range(21, 31)}
    assert value(conn, "select count(*) from app.file") == 10
    assert tombstones(conn) == 0
    logged_once(conn, range(1, 21))
    assert "file: reviewed 30, deleted 20, kept 10, failed 0" in said


def test_a_runner_goes_on_with_what_comes_later(world: World, conn: Connection) -> None:
    with Process(world) as process:
        world.bury(conn, range(1, 4))
        wait_until(lambda: not world.objects.names(), "the first objects to go")
        world.bury(conn, range(4, 7))
        wait_until(lambda: tombstones(conn) == 0, "the next objects to go")
        process.terminate()
    logged_once(conn, range(1, 7))


def share(world: World, conn: Connection) -> None:
    """Rows whose url is not made from the key alone: a tombstone waits for older transactions."""
    execute(conn, "alter table app.file add name text; create index on app.file (name)")
    rows(conn, "select * from gc.track('app.file', url => %s)", f"'{world.objects.prefix}' || name")


def bury_shared(world: World, conn: Connection, numbers: range) -> None:
    for number in numbers:
        world.objects.put(str(number))
        conn.execute("insert into app.file (id, name) values (%s, %s)", [number, str(number)])
    execute(conn, "delete from app.file")


def test_once_waits_for_what_older_transactions_hold_up(
    file_world: World, conn: Connection
) -> None:
    share(file_world, conn)
    with file_world.database.connect(autocommit=False) as writer:
        rows(writer, "select pg_current_xact_id()")
        bury_shared(file_world, conn, range(1, 11))
        threading.Timer(3, writer.rollback).start()
        said = collect(file_world)
    assert "10 objects are held up, waiting for at most 30 s: " in said
    assert file_world.objects.names() == set()
    assert tombstones(conn) == 0


def test_once_says_what_is_held_up_for_longer_than_it_waits(
    file_world: World, conn: Connection
) -> None:
    share(file_world, conn)
    with file_world.database.connect(autocommit=False) as writer:
        rows(writer, "select pg_current_xact_id()")
        bury_shared(file_world, conn, range(1, 11))
        begin = time.monotonic()
        said = collect(file_world, "--wait", "2", code=3)
        assert 2 < time.monotonic() - begin < 10
        writer.rollback()
    assert "10 objects are left, because they are held up: " in said
    assert tombstones(conn) == 10
    collect(file_world)
    assert tombstones(conn) == 0


def test_once_reviews_what_becomes_due_while_it_deletes(
    google_world: World, google: GoogleObjects, conn: Connection
) -> None:
    """Who reviews does not go home before who deletes."""
    google_world.bury(conn, range(1, 2))
    google_world.write(conn, range(2, 3))
    execute(conn, "update gc.file_review_queue set review_after = now() + interval '3 seconds'")
    google.proxy.before.clear()
    threading.Timer(4, google.proxy.before.set).start()
    with Process(google_world, "--once") as process:
        process.end(seconds=15)
    logged_once(conn, range(1, 3))


def is_asleep(conn: Connection) -> bool:
    """Whether no connection of the runner has asked anything for longer than it polls."""
    return bool(value(conn, "select count(*) = 3 and bool_and(state = 'idle' and "
                      "state_change < clock_timestamp() - interval '0.7 s') from pg_stat_activity "
                      "where datname = current_database() and application_name like 'blobgc %'"))


def test_a_notify_wakes_a_sleeping_runner(file_world: World, conn: Connection) -> None:
    execute(conn, "update gc.settings set max_sleep = '1 hour'")
    with Process(file_world) as process:
        wait_until(lambda: is_asleep(conn), "both loops to sleep")
        file_world.bury(conn, range(1, 2))
        time.sleep(1.5)
        assert tombstones(conn) == 1, "nothing has told it"
        execute(conn, "notify blobgc")
        wait_until(lambda: tombstones(conn) == 0, "the runner to wake up", 5)
        process.terminate()


HOSTILE_DEFAULTS = {
    "default_transaction_isolation": "serializable", "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on", "intervalstyle": "sql_standard",
    "datestyle": "German", "timezone": "Asia/Kathmandu", "client_encoding": "latin1",
    "extra_float_digits": "-15", "bytea_output": "escape", "lc_messages": "C",
}


def set_hostile_defaults(database: Database) -> None:
    with database.connect() as conn:
        for name, setting in HOSTILE_DEFAULTS.items():
            execute(conn, f"alter database {database.name} set {name} = '{setting}'")


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_it_sets_its_own_isolation_level(
    file_world: World, conn: Connection, isolation: str
) -> None:
    execute(conn, f"alter database {file_world.database.name} "
            f"set default_transaction_isolation = '{isolation}'")
    file_world.write(conn, range(1, 21))
    collect(file_world)
    logged_once(conn, range(1, 21))


def test_no_default_of_the_database_stops_it(file_world: World, conn: Connection) -> None:
    set_hostile_defaults(file_world.database)
    file_world.write(conn, range(1, 21))
    bury_url(conn, 30, file_world.objects.prefix + "日本")
    execute(conn, "update gc.tombstones set due_at = '-infinity'")
    with Process(file_world) as process:
        wait_until(lambda: tombstones(conn) == 0 and not file_world.objects.names(), "all to go")
        process.terminate()
    logged_once(conn, {*range(1, 21), 30})
    shown = subprocess.run(
        [sys.executable, ROOT / "runner.py", "status", "--json"],
        env=file_world.database.environment, capture_output=True, text=True, check=True,
    ).stdout
    assert json.loads(shown)["collections"][0]["deleted_total"] == 21


def test_a_database_without_an_encoding_is_refused(files: FileObjects) -> None:
    """What is no text in any encoding would end every claim."""
    name = f"blobgc_ascii_{os.getpid()}"
    server = Database("postgres", *(os.environ[name] for name in ("PGHOST", "PGPORT", "PGUSER")))
    with server.connect() as conn:
        execute(conn, f"create database {name} template template0 encoding 'SQL_ASCII' locale 'C'")
    try:
        database = replace(server, name=name)
        database.run("psql", "-Xqc", "create extension blobgc")
        code, said = start(World(database, files))
        assert code == 2
        assert "SQL_ASCII" in said
    finally:
        with server.connect() as conn:
            execute(conn, f"drop database {name} with (force)")


@pytest.mark.parametrize("defaults", ["usual", "hostile"])
def test_it_works_through_a_pgbouncer_in_transaction_mode(
    file_world: World, conn: Connection, tmp_path: Path, defaults: str
) -> None:
    if defaults == "hostile":
        set_hostile_defaults(file_world.database)
    database, port = file_world.database, free_port()
    (tmp_path / "users").write_text(f'"{database.user}" ""\n')
    (tmp_path / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={database.host} port={database.port}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = trust\nauth_file = {tmp_path}/users\n"
        "pool_mode = transaction\ndefault_pool_size = 1\nserver_check_delay = 0\n"
    )
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    user = os.environ["BLOBGC_PGUSER_OS"] if os.getuid() == 0 else None
    bouncer = subprocess.Popen(["pgbouncer", "-q", tmp_path / "pgbouncer.ini"], user=user)
    through = replace(database, host="127.0.0.1", port=str(port))
    try:
        wait_until(lambda: can_connect(through), "pgbouncer to answer")
        file_world.database = through
        with Process(file_world) as process:
            file_world.write(conn, range(1, 51))
            wait_until(lambda: not file_world.objects.names(), "the objects to go")
            wait_until(lambda: tombstones(conn) == 0, "the tombstones to go")
            assert "error" not in process.terminate().lower()
    finally:
        bouncer.kill()
        bouncer.wait()
    logged_once(conn, range(1, 51))


def can_connect(database: Database) -> bool:
    try:
        database.connect().close()
    except psycopg.OperationalError:
        return False
    return True


# Starting


def start(world: World, *arguments: str) -> tuple[int, str]:
    with Process(world, *arguments) as process:
        _, said = process.process.communicate(timeout=30)
        return process.process.returncode, said


def test_a_role_without_rights_is_said(
    file_world: World, conn: Connection, new_role: NewRole
) -> None:
    role = new_role("runner")
    file_world.database = replace(file_world.database, user=role)
    code, said = start(file_world)
    assert code == 2
    hint = "(select gc.grant_runner('the role');)"
    assert said == f"blobgc: permission denied for schema gc {hint}\n"
    for name in ("review", "claim", "next_due", "confirm", "fail", "release", "rest", "status"):
        execute(conn, f"select gc.grant_runner('{role}')")
        for function in rows(conn, "select oid::regprocedure::text from pg_proc "
                             "where proname = %s and pronamespace = 'gc'::regnamespace", name):
            execute(conn, f"revoke execute on function {function[0]} from {role}")
        code, said = start(file_world, "--once")
        assert code == 2
        assert said == f"blobgc: permission denied for function {name} {hint}\n"
    execute(conn, f"select gc.grant_runner('{role}')")
    file_world.bury(conn, range(1, 4))
    collect(file_world)
    assert tombstones(conn) == 0
    execute(conn, f"drop owned by {role}")


def test_a_version_that_it_does_not_speak_is_said(file_world: World, conn: Connection) -> None:
    execute(conn, "create or replace function gc.version() returns text language sql immutable "
            "set search_path = pg_catalog, pg_temp as $$ select '9.1.0' $$")
    code, said = start(file_world)
    assert code == 2
    assert said == ("blobgc: the database has blobgc 9.1.0, and this is 0.2.0: run blobgc upgrade, "
                    "or take the runner of that version\n")


@pytest.mark.parametrize(
    "arguments", [["--lease", "39"], ["--threads", "0"], ["--batch", "-1"], ["--rate", "0"],
                  ["--timeout", "0"], ["--rate", "nan"], ["--lease", "inf"], ["--timeout", "nan"]],
    ids=" ".join,
)
def test_numbers_that_cannot_be_kept_to_are_said(file_world: World, arguments: list[str]) -> None:
    code, said = start(file_world, *arguments)
    assert code == 2
    assert "--lease at least four times --timeout" in said


# Failing


def bury_url(conn: Connection, number: int, url: str, generation: str | None = None) -> None:
    """As if a row had had this url."""
    conn.execute("insert into gc.tombstones (collection, key, url, generation, due_at) "
                 "values ('file', %s, %s, %s, now())", [str(number), url, generation])


def test_an_address_with_two_spellings_is_refused_reported_and_backed_off(
    world: World, conn: Connection
) -> None:
    world.bury(conn, range(1, 4))
    world.objects.put("precious")
    world.objects.put("images/victim")
    attacks = ["../precious", "new\nline", "images//victim", "/precious", "images/./victim",
               "images/victim/", "images\\victim", ""]
    for number, name in enumerate(attacks):
        bury_url(conn, 100 + number, world.objects.prefix + name)
    bury_url(conn, 200, world.objects.prefix + "precious", "٦")
    execute(conn, "update gc.settings set backoff = '1 hour', backoff_limit = '1 hour'")
    said = collect(world, code=1)
    assert "9 objects could not be deleted so far and are left for later" in said
    assert world.objects.names() == {"precious", "images/victim"}
    logged_once(conn, range(1, 4))
    assert rows(conn, "select distinct failures, last_error, due_at > now() + interval '1 minute' "
                "from gc.tombstones") == [
        (1, "refused: the address or generation leads elsewhere, or has another spelling", True)
    ]
    assert value(conn, "select tombstones_failing from gc.status()") == len(attacks) + 1


def test_what_is_under_no_store_is_left_alone_and_said(world: World, conn: Connection) -> None:
    world.bury(conn, range(1, 4))
    prefix = world.objects.prefix
    elsewhere = ["gs://other-bucket/x", "file:///etc/x", prefix[:-1] + "-2/x", prefix.upper() + "x"]
    for number, url in enumerate(elsewhere):
        bury_url(conn, 100 + number, url)
    said = collect(world, code=4)
    assert f"objects are due that are under none of {prefix}" in said
    logged_once(conn, range(1, 4))
    assert rows(conn, "select distinct worker, failures, due_at <= now() from gc.tombstones") == [
        (None, 0, True)
    ]
    with Process(world) as process:
        wait_until(lambda: is_asleep(conn), "the runner to sleep")
        time.sleep(2)
        assert process.terminate().count("objects are due that are under none of") == 1


def test_runners_with_different_stores_leave_each_other_alone(
    new_world: NewWorld, google: GoogleObjects, tmp_path: Path
) -> None:
    files = FileObjects(tmp_path)
    world = new_world(google)
    with world.database.connect() as conn:
        for number in range(1, 201):
            files.put(str(number))
            bury_url(conn, number, f"{files.prefix}{number}")
        world.bury(conn, range(201, 301))
        other = World(world.database, files)
        with Process(world, "--batch", "10") as first, Process(other, "--batch", "10") as second:
            wait_until(lambda: tombstones(conn) == 0, "both stores to be emptied")
            for process in (first, second):
                assert "refused" not in process.terminate()
        logged_once(conn, range(1, 301))


@pytest.mark.parametrize("kind", ["google", "amazon", "azure"])
def test_faults_are_backed_off_and_visible_and_never_dropped(
    kind: str, request: pytest.FixtureRequest, new_world: NewWorld
) -> None:
    objects = request.getfixturevalue(kind)
    world = new_world(objects)
    with world.database.connect() as conn:
        world.bury(conn, range(1, 9))
        execute(conn, "update gc.settings set backoff = '1 hour', backoff_limit = '1 hour'")
        for fault in (403, "hang"):
            objects.proxy.fault = lambda fault=fault: fault
            execute(conn, "update gc.tombstones set due_at = now()")
            said = collect(world, "--timeout", "0.5", "--lease", "5", code=1)
            assert "8 objects could not be deleted so far and are left for later" in said
        assert tombstones(conn) == 8
        assert len(objects.names()) == 8
        errors = rows(conn, "select distinct failures from gc.tombstones")
        assert errors == [(2,)]
        assert rows(conn, "select tombstones_failing, tombstones_last_error is not null "
                    "from gc.status()") == [(8, True)]
        objects.proxy.fault = lambda: None
        execute(conn, "update gc.tombstones set due_at = now()")
        collect(world)
        logged_once(conn, range(1, 9))


def test_a_batch_of_which_some_fail_confirms_the_rest(
    google_world: World, google: GoogleObjects, conn: Connection
) -> None:
    google_world.bury(conn, range(1, 21))
    execute(conn, "update gc.settings set backoff = '1 hour', backoff_limit = '1 hour'")
    google.proxy.fault_of = lambda url: (
        503 if int(re.findall(rb"%2F(\d+)", url)[0]) % 4 == 0 else None)
    said = collect(google_world, code=1)
    assert re.search(f"5 objects: ServiceUnavailable: 503.*{google.prefix}4, for example", said)
    assert tombstones(conn) == 5
    assert value(conn, "select count(*) from gc.deletion_log") == 15
    assert len(google.names()) == 5


def test_a_store_that_fails_is_slowed_and_the_others_go_on(
    google_world: World, google: GoogleObjects, tmp_path: Path, conn: Connection
) -> None:
    files = FileObjects(tmp_path)
    google_world.bury(conn, range(1, 101))
    for number in range(200, 300):
        files.put(str(number))
        conn.execute("insert into gc.tombstones (collection, key, url, due_at) values "
                     "('file', %s, %s, now())", [str(number), f"{files.prefix}{number}"])
    asked: list[int] = []

    def refuse() -> int:
        asked.append(1)
        return 503

    google.proxy.fault = refuse
    arguments = ["--store", files.prefix, "--batch", "10", "--threads", "4"]
    with Process(google_world, *arguments) as process:
        wait_until(lambda: not files.names(), "the other store to be emptied")
        time.sleep(3)
        assert len(asked) < 40, "the store that fails was asked for a few of them"
        assert tombstones(conn) == 100
        assert value(conn, "select count(*) from gc.tombstones where failures > 0") <= 40
        assert value(conn, "select count(*) from gc.tombstones where failures = 0 and "
                     "due_at <= now()") > 60, "what was not tried is put off by nobody"
        google.proxy.fault = lambda: None
        wait_until(lambda: tombstones(conn) == 0, "the store to be tried again")
        process.terminate()


def test_once_ends_with_an_error_when_every_store_fails(
    google_world: World, google: GoogleObjects, conn: Connection
) -> None:
    google_world.bury(conn, range(1, 31))
    google.proxy.fault = lambda: 503
    code, said = start(google_world, "--once", "--batch", "10")
    assert code == 1
    assert "fails, next try in 5.0 s: ServiceUnavailable: 503" in said
    assert tombstones(conn) == 30


def test_a_store_that_hangs_does_not_hold_up_another(
    google_world: World, google: GoogleObjects, tmp_path: Path, conn: Connection
) -> None:
    files = FileObjects(tmp_path)
    google_world.bury(conn, range(1, 101))
    google.proxy.before.clear()
    with Process(google_world, "--store", files.prefix, "--timeout", "30") as process:
        google.proxy.held.acquire()
        for number in range(200, 1200):
            files.put(str(number))
            bury_url(conn, number, f"{files.prefix}{number}")
        wait_until(lambda: tombstones(conn) == 100, "the other store's tombstones to go", 10)
        google.proxy.before.set()
        wait_until(lambda: tombstones(conn) == 0, "the rest to go")
        process.terminate()


def test_one_object_that_the_store_refuses_fails_alone(
    new_world: NewWorld, amazon: AmazonObjects
) -> None:
    """A request has a thousand keys. It is split until the guilty one is alone."""
    world = new_world(amazon)
    with world.database.connect() as conn:
        execute(conn, "update gc.settings set backoff = '1 hour', backoff_limit = '1 hour'")
        world.bury(conn, range(1, 101))
        amazon.proxy.fault_of = lambda body: 400 if b"/37</Key>" in body else None
        said = collect(world, code=1)
        assert "99 objects: deleted" in said
        assert amazon.names() == {"37"}
        assert rows(conn, "select key, failures from gc.tombstones") == [("37", 1)]
        assert amazon.proxy.requests < 2 * 8 + 2


def test_a_generation_that_cannot_be_sent_fails_alone(
    new_world: NewWorld, versioned_amazon: AmazonObjects
) -> None:
    world = new_world(versioned_amazon)
    with world.database.connect() as conn:
        execute(conn, "update gc.settings set backoff = '1 hour', backoff_limit = '1 hour'")
        world.bury(conn, range(1, 51))
        bury_url(conn, 100, versioned_amazon.prefix + "100", chr(1))
        collect(world, code=1)
        assert rows(conn, "select key, failures from gc.tombstones") == [("100", 1)]
        logged_once(conn, range(1, 51))


@pytest.mark.parametrize("fault", [400, 403, 404, 429, 503, "reset", "hang"])
def test_a_request_that_fails_because_of_the_store_is_not_split(
    new_world: NewWorld, amazon: AmazonObjects, fault: Fault
) -> None:
    """400 is an expired token, for example: a request that must be right fails in the same way."""
    world = new_world(amazon)
    with world.database.connect() as conn:
        world.bury(conn, range(1, 51))
        amazon.proxy.fault = lambda: fault
        collect(world, "--timeout", "1", "--lease", "20", code=1)
        assert len(amazon.names()) == tombstones(conn) == 50
        assert amazon.proxy.requests <= 4


@pytest.mark.parametrize("fault", [503, "hang"])
def test_a_store_that_cannot_take_so_much_is_asked_for_less_at_a_time(
    new_world: NewWorld, amazon: AmazonObjects, fault: Fault
) -> None:
    """It answers requests of up to 100 keys. Nothing fails because of that."""
    world = new_world(amazon)
    amazon.proxy.fault_of = lambda body: fault if body.count(b"<Key>") > 100 else None
    with world.database.connect() as conn:
        for number in range(1, 1001):
            bury_url(conn, number, f"{amazon.prefix}{number}")
        said = collect(world, "--timeout", "0.5", "--lease", "60")
        logged_once(conn, range(1, 1001))
    assert "could not be deleted" not in said
    assert amazon.proxy.requests < 200, "not one by one, and not the same again and again"


def test_objects_that_cannot_be_deleted_do_not_hold_up_their_neighbours(
    file_world: World, conn: Connection
) -> None:
    execute(conn, "update gc.settings set backoff = '1 hour', backoff_limit = '1 hour'")
    for number in range(1, 21):
        bury_url(conn, number, f"{file_world.objects.prefix}{number:0>300}")
    for number in range(100, 300):
        file_world.objects.put(str(number))
        bury_url(conn, number, f"{file_world.objects.prefix}{number}")
    said = collect(file_world, "--threads", "1", "--batch", "50", code=1)
    assert "fails, next try" not in said
    logged_once(conn, range(100, 300))
    assert rows(conn, "select count(*), max(failures) from gc.tombstones") == [(20, 1)]


def test_a_rate_is_kept_to(file_world: World, conn: Connection) -> None:
    file_world.bury(conn, range(1, 41))
    start = time.monotonic()
    collect(file_world, "--rate", "10")
    assert 2.5 < time.monotonic() - start < 8
    assert tombstones(conn) == 0


# Signals


def test_sigterm_ends_within_the_timeout_and_releases_what_was_not_started(
    google_world: World, google: GoogleObjects, conn: Connection
) -> None:
    """A request has 50 objects at first."""
    google_world.bury(conn, range(1, 251))
    google.proxy.before.clear()
    with Process(google_world, "--threads", "2", "--timeout", "2", "--lease", "600") as process:
        google.proxy.held.acquire()
        google.proxy.held.acquire()
        threading.Timer(0.5, google.proxy.before.set).start()
        begun = time.monotonic()
        process.terminate(seconds=10)
        assert time.monotonic() - begun < 3
    assert tombstones(conn) == 150
    logged_once(conn, {int(row[0]) for row in rows(conn, "select key from gc.deletion_log")})
    assert rows(conn, "select distinct worker, failures, due_at <= now() from gc.tombstones") == [
        (None, 0, True)
    ]


def test_sigint_is_as_good_and_a_second_signal_ends_at_once(
    google_world: World, google: GoogleObjects, conn: Connection
) -> None:
    google_world.bury(conn, range(1, 3))
    google.proxy.before.clear()
    with Process(google_world, "--timeout", "60", "--lease", "600") as process:
        google.proxy.held.acquire()
        process.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.process.poll() is None, "it waits for what is under way"
        process.process.send_signal(signal.SIGINT)
        assert process.process.wait(timeout=5) == -signal.SIGINT
    assert value(conn, "select count(*) from gc.tombstones where worker is not null") == 2


@pytest.mark.parametrize("fault", [503, "hang"])
def test_sigterm_ends_within_the_timeout_while_many_deletes_fail(
    google_world: World, google: GoogleObjects, conn: Connection, fault: Fault
) -> None:
    google.proxy.fault, google.proxy.hang_seconds = (lambda: fault), 30
    for number in range(1, 3001):
        bury_url(conn, number, f"{google.prefix}{number}")
    arguments = ("--timeout", "2", "--lease", "60", "--batch", "1000")
    with Process(google_world, *arguments) as process:
        wait_until(lambda: google.proxy.requests >= 4, "requests to be under way")
        begun = time.monotonic()
        process.terminate(seconds=20)
        assert time.monotonic() - begun < 5
    assert tombstones(conn) == 3000
    assert value(conn, "select count(*) from gc.tombstones where worker is not null") == 0


def test_failures_with_many_reasons_are_few_calls() -> None:
    """A store that names the object in each message would make a call for each of them."""
    buried = [Tombstone(number, "url", None, None) for number in range(2002)]
    fates = {f"no rights on {number}": [buried[number]] for number in range(2000)}
    fates["503"] = buried[2000:]
    few = runner.with_few_reasons(fates)
    assert len(few) == runner.MANY_REASONS + 1
    assert few["503"] == buried[2000:]
    assert sorted(sum(few.values(), [])) == buried
    two = {"503": buried[:1], "403": buried[1:2]}
    assert runner.with_few_reasons(two) == two


# What writes to the tombstones waits for whoever holds lock 5: gc.fail takes for ever.
HOLD_FAILURES = """
create function app.wait() returns trigger language plpgsql
    as $$ begin perform pg_advisory_xact_lock_shared(5); return new; end $$;
create trigger wait before update of failures on gc.tombstones
    for each row when (new.failures > old.failures) execute function app.wait();
select pg_advisory_lock(5);
"""


def test_sigterm_ends_while_the_database_takes_for_ever(
    google_world: World, google: GoogleObjects, conn: Connection
) -> None:
    google_world.bury(conn, range(1, 3))
    execute(conn, HOLD_FAILURES)
    google.proxy.fault = lambda: 503
    with Process(google_world, "--timeout", "1", "--lease", "60") as process:
        wait_until(lambda: bool(value(conn, "select count(*) from pg_stat_activity where "
                                      "wait_event = 'advisory' and query ~ 'gc.fail'")),
                   "gc.fail to wait")
        begun = time.monotonic()
        process.terminate(seconds=20)
        assert time.monotonic() - begun < 6


def test_sigterm_ends_while_an_answer_never_does(
    google_world: World, google: GoogleObjects, conn: Connection
) -> None:
    """Each byte comes in time, so that no timeout of a socket is ever over."""
    google_world.bury(conn, range(1, 3))
    google.proxy.fault = lambda: "drip"
    with Process(google_world, "--timeout", "1", "--lease", "60") as process:
        wait_until(lambda: google.proxy.requests == 1, "the request to be under way")
        process.process.terminate()
        assert "something does not end and is left" in process.end(seconds=20, code=1)
    assert tombstones(conn) == 2


# Crashes


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


LEASE = ("--timeout", "0.5", "--lease", "2")


def kill_runner(process: Process, cluster: Cluster) -> None:
    process.kill()


def kill_server(process: Process, cluster: Cluster) -> None:
    cluster.stop()
    time.sleep(0.5)
    cluster.start()


# The confirm waits for whoever holds lock 4.
HOLD_CONFIRMS = """
create function app.wait() returns trigger language plpgsql
    as $$ begin perform pg_advisory_xact_lock_shared(4); return null; end $$;
create trigger wait before insert on gc.deletion_log
    for each statement execute function app.wait();
select pg_advisory_lock(4);
"""


@pytest.mark.parametrize("kill", [kill_runner, kill_server])
@pytest.mark.parametrize("point", ["before the delete", "after the delete", "in the confirm"])
def test_a_crash_at_any_point_of_a_delete_loses_nothing(
    crash_world: World, cluster: Cluster, google: GoogleObjects, point: str,
    kill: Callable[[Process, Cluster], None],
) -> None:
    holder = crash_world.database.connect()
    crash_world.write(holder, range(1, 21))
    execute(holder, "insert into app.post select n, n from generate_series(11, 20) as n")
    gate = google.proxy.before if point == "before the delete" else google.proxy.after
    if point == "in the confirm":
        execute(holder, HOLD_CONFIRMS)
    else:
        gate.clear()
    with Process(crash_world, "--threads", "4", *LEASE) as process:
        if point == "in the confirm":
            wait_until(lambda: is_blocked(holder), "the confirm to wait")
        else:
            google.proxy.held.acquire()
        kill(process, cluster)
        holder.close()
        gate.set()
        with crash_world.database.connect() as conn, Process(crash_world, *LEASE):
            wait_until(lambda: value(conn, "select count(*) from gc.deletion_log") == 10,
                       "the rest to be collected")
            assert tombstones(conn) == 0
            logged_once(conn, range(1, 11))
            assert google.names() == {str(n) for n in range(11, 21)}


def is_blocked(conn: Connection) -> bool:
    return bool(value(conn, "select count(*) > 0 from pg_stat_activity where wait_event = "
                      "'advisory' and query ~ 'gc.confirm'"))


def test_a_server_that_restarts_is_connected_to_again(
    crash_world: World, cluster: Cluster, google: GoogleObjects
) -> None:
    with Process(crash_world) as process:
        with crash_world.database.connect() as conn:
            crash_world.bury(conn, range(1, 4))
            wait_until(lambda: tombstones(conn) == 0, "the first to go")
        cluster.stop()
        time.sleep(0.3)
        cluster.start()
        with crash_world.database.connect() as conn:
            crash_world.bury(conn, range(4, 7))
            wait_until(lambda: tombstones(conn) == 0, "the next to go")
            logged_once(conn, range(1, 7))
        process.terminate()


def test_a_signal_while_the_database_is_away_ends_the_runner(
    crash_world: World, cluster: Cluster
) -> None:
    with Process(crash_world) as process:
        with crash_world.database.connect() as conn:
            wait_until(lambda: is_asleep(conn), "both loops to sleep")
        cluster.stop()
        try:
            time.sleep(0.5)
            process.terminate(seconds=15)
        finally:
            cluster.start()


# Two runners


def test_a_runner_that_was_stopped_past_its_lease_deletes_nothing_that_was_uploaded_again(
    google_world: World, google: GoogleObjects, conn: Connection
) -> None:
    google_world.bury(conn, range(1, 151))
    google.proxy.before.clear()
    with Process(google_world, "--threads", "2", *LEASE) as stalled:
        google.proxy.held.acquire()
        google.proxy.held.acquire()
        stalled.process.send_signal(signal.SIGSTOP)
        google.proxy.before.set()  # What was under way arrives; the rest has not been started.
        with Process(google_world, "--once", *LEASE) as second:
            wait_until(lambda: tombstones(conn) == 0 or second.process.poll() is not None,
                       "the second runner to take over")
        while tombstones(conn):
            collect(google_world, *LEASE)
        assert google.names() == set()
        google_world.write(conn, range(1, 151))  # All of them are uploaded again, and used.
        execute(conn, "insert into app.post select n, n from generate_series(1, 150) as n")
        deletes = google.proxy.deletes
        stalled.process.send_signal(signal.SIGCONT)
        time.sleep(2)
        said = stalled.terminate()
    assert google.proxy.deletes <= deletes + 2, said
    assert google.names() == {str(n) for n in range(1, 151)}
    assert value(conn, "select count(*) from app.file") == 150
    assert value(conn, "select count(*) from gc.deletion_log") == 150


@pytest.mark.parametrize("point", ["before", "after"])
def test_an_object_that_is_uploaded_again_while_it_is_deleted_survives(
    google_world: World, google: GoogleObjects, conn: Connection, point: str
) -> None:
    """Between claim and delete, and between delete and confirm. The insert is told to retry."""
    google_world.bury(conn, range(1, 2))
    gate = getattr(google.proxy, point)
    gate.clear()
    with Process(google_world, "--lease", "40") as process:
        google.proxy.held.acquire()
        with pytest.raises(psycopg.Error) as refused:
            execute(conn, "insert into app.file (id) values (1)")
        assert refused.value.sqlstate == "ZG001"
        threading.Timer(0.5, gate.set).start()
        rows(conn, "select gc.begin_upload('file', '1')")
        version = google.put("1")
        conn.execute("insert into app.file (id, version) values (1, %s)", [version])
        conn.execute("insert into app.post values (1, 1)")
        time.sleep(1)
        process.terminate()
    assert google.names() == {"1"}
    assert tombstones(conn) == 0


def test_an_object_uploaded_again_before_the_claim_or_after_the_confirm_survives(
    google_world: World, google: GoogleObjects, conn: Connection
) -> None:
    google_world.bury(conn, range(1, 3))
    google_world.write(conn, range(1, 2))
    execute(conn, "insert into app.post values (1, 1)")
    collect(google_world)
    assert google.names() == {"1"}
    google_world.write(conn, range(2, 3))
    execute(conn, "insert into app.post values (2, 2)")
    collect(google_world)
    assert google.names() == {"1", "2"}
    logged_once(conn, range(1, 3))  # Their first versions.


def test_a_confirm_after_the_lease_is_lost_changes_nothing(
    google_world: World, google: GoogleObjects, conn: Connection
) -> None:
    google_world.bury(conn, range(1, 2))
    google.proxy.after.clear()
    with Process(google_world, "--timeout", "0.9", "--lease", "3.6", "--threads", "1") as process:
        google.proxy.held.acquire()
        process.process.send_signal(signal.SIGSTOP)
        execute(conn, "update gc.tombstones set due_at = now()")
        taken = rows(conn, "select id from gc.claim('other')")
        google.proxy.after.set()
        time.sleep(0.2)
        process.process.send_signal(signal.SIGCONT)
        time.sleep(1.5)
        said = process.terminate()
    assert '1 of 1 tombstones are not leased to "' in said
    assert value(conn, "select gc.confirm('other', %s)", [taken[0][0]]) == 1


# All at once


def test_faults_and_crashes_lose_nothing_and_delete_nothing_twice(
    crash_world: World, cluster: Cluster, google: GoogleObjects
) -> None:
    """5 % of each fault, both processes killed ten times. BLOBGC_OBJECTS=20000: the full size."""
    total, kills = int(os.environ.get("BLOBGC_OBJECTS", "1000")), 10
    live = set(range(0, total, 5))
    with crash_world.database.connect() as conn:
        execute(conn, "update gc.settings set backoff_limit = '2 seconds', backoff = '1 second'")
        fill(crash_world, conn, total)
        execute(conn, f"insert into app.post select n, n from generate_series(0, {total - 1}, 5) n")
    google.proxy.fail_at_random(0.05)
    chance = random.Random(4)
    # So slowly that something is left when the last of them is killed.
    arguments = ("--timeout", "0.5", "--lease", "4", "--batch", "20", "--rate", str(total / 25))
    for _ in range(kills):
        with Process(crash_world, *arguments):
            time.sleep(chance.uniform(1, 2))
            cluster.stop()
            if chance.random() < 0.5:  # The runner is killed while the server is away, or after.
                cluster.start()
                time.sleep(chance.uniform(0, 0.5))
        with contextlib.suppress(subprocess.CalledProcessError):  # It runs already.
            cluster.start()
    with Process(crash_world, *arguments) as process, crash_world.database.connect() as conn:
        wait_until(lambda: value(conn, "select count(*) from gc.deletion_log")
                   >= total - len(live), "everything to go", 600)
        process.terminate()
        assert tombstones(conn) == 0
        logged_once(conn, set(range(total)) - live)
        assert {row[0] for row in rows(conn, "select id from app.file")} == live
    assert google.names() == {str(number) for number in live}


def fill(world: World, conn: Connection, total: int) -> None:
    """Objects by several threads at once and without the proxy, rows by COPY."""
    assert isinstance(world.objects, GoogleObjects)
    world.objects.upload_to = world.objects.server.url
    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(world.objects.put, map(str, range(total))))
    with conn.cursor() as cursor, cursor.copy("copy app.file (id, version) from stdin") as copy:
        for number, version in enumerate(versions):
            copy.write_row((number, version))


# Memory, metrics, and what a person sees


def test_memory_stays_flat_however_many_tombstones_there_are(
    file_world: World, conn: Connection
) -> None:
    """BLOBGC_TOMBSTONES=1000000: the full size."""
    total = int(os.environ.get("BLOBGC_TOMBSTONES", "30000"))
    conn.execute("insert into gc.tombstones (collection, key, url, due_at, wait_for) "
                 "select 'file', n::text, %s || n, now(), '0' from generate_series(1, %s) as n",
                 [file_world.objects.prefix, total])
    execute(conn, "analyze gc.tombstones")
    with Process(file_world, "--once") as process:
        said = process.process.stderr
        assert said is not None
        for _ in said:
            pass
        _, status, usage = os.wait4(process.process.pid, 0)
        process.process.returncode = os.waitstatus_to_exitcode(status)
    assert process.process.returncode == 0
    assert usage.ru_maxrss < 150 * 1024, f"{usage.ru_maxrss} kB"
    assert tombstones(conn) == 0
    assert value(conn, "select sum(objects) from gc.totals") == total


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_are_what_prometheus_reads(file_world: World, conn: Connection) -> None:
    port = free_port()
    file_world.bury(conn, range(1, 4))
    bury_url(conn, 9, file_world.objects.prefix + "../x")
    with Process(file_world, "--metrics-port", str(port)) as process:
        wait_until(lambda: tombstones(conn) == 1, "the objects to go")
        time.sleep(0.5)
        code, text = get(port, "/metrics")
        assert code == 200
        lines = text.splitlines()
        assert 'blobgc_objects_deleted_total{collection="file"} 3.0' in lines
        assert 'blobgc_tombstones_failing{collection="file",store="file://"} 1.0' in lines
        assert "blobgc_runner_objects_deleted_total 3.0" in lines
        assert "blobgc_runner_bytes_deleted_total 30.0" in lines
        assert any(re.fullmatch(r"blobgc_runner_objects_failed_total [1-9]\d*.0", line)
                   for line in lines)
        for line in lines:
            assert re.fullmatch(r"# (HELP|TYPE) blobgc_\w+ \S.*|"
                                r'blobgc_\w+(\{(\w+="[^"]*",?)+\})? [0-9.e+-]+', line), line
        typed = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        assert len(typed) == len(set(typed)), "each name is explained once"
        served = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
        dashboard = (ROOT / "docker" / "grafana" / "dashboard.json").read_text()
        asked = set(re.findall(r"blobgc_\w+", dashboard))
        assert len(asked) > 10 and asked <= served, "the dashboard asks for what there is"
        assert get(port, "/healthz")[0] == 200
        process.terminate()


def test_a_collection_with_any_name_has_metrics(file_world: World, conn: Connection) -> None:
    name = 'a"b\\c}d,e="f {x} # HELP'
    execute(conn, "create table app.other (id integer primary key)")
    rows(conn, "select gc.track('app.other', name => %s, condition => 'true')", name)
    port = free_port()
    with Process(file_world, "--metrics-port", str(port)) as process:
        wait_until(lambda: is_healthy(port), "the runner to be well")
        families = {family.name: family for family in text_string_to_metric_families(
            get(port, "/metrics")[1])}
        process.terminate()
    samples = families["blobgc_queue_entries"].samples
    assert {sample.labels["collection"] for sample in samples} == {"file", name}


def addresses_of(port: int) -> set[str]:
    """Where something of this machine listens on that port."""
    found = subprocess.run(["ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True,
                           check=True).stdout
    return {line.split()[3].rpartition(":")[0] for line in found.splitlines()}


@pytest.mark.parametrize(("arguments", "address"), [
    ([], "127.0.0.1"), (["--metrics-address", "0.0.0.0"], "0.0.0.0"),
    (["--metrics-address", "::1"], "[::1]"),
])
def test_metrics_are_served_on_loopback_unless_told_otherwise(
    file_world: World, arguments: list[str], address: str
) -> None:
    port = free_port()
    with Process(file_world, "--metrics-port", str(port), *arguments) as process:
        wait_until(lambda: addresses_of(port) == {address}, "the runner to listen there")
        process.terminate()


@pytest.mark.parametrize("arguments", [
    ["--metrics-port", "0"], ["--metrics-port", "99999"],
    ["--metrics-port", "9187", "--metrics-address", "256.0.0.1"],
], ids=" ".join)
def test_a_port_or_address_that_is_none_is_said(file_world: World, arguments: list[str]) -> None:
    code, said = start(file_world, *arguments)
    assert code == 2
    assert said.startswith("blobgc: ") and len(said.splitlines()) == 1


def test_many_requests_for_metrics_are_one_query_by_one_connection(
    file_world: World, conn: Connection
) -> None:
    port = free_port()
    execute(conn, "alter view gc.metrics rename to real_metrics; "
            "create sequence app.asked; "
            "create view gc.metrics as select m.* from gc.real_metrics as m, "
            "(select nextval('app.asked'), pg_sleep(1) offset 0) as slow")
    most = 0
    with Process(file_world, "--metrics-port", str(port)) as process:
        wait_until(lambda: is_healthy(port), "the runner to be well")
        with ThreadPoolExecutor(100) as pool:
            asked = [pool.submit(get_or_nothing, port, "/metrics") for _ in range(100)]
            while not all(one.done() for one in asked):
                most = max(most, value(conn, "select count(*) from pg_stat_activity "
                                       "where datname = current_database()"))
                time.sleep(0.05)
        assert most <= 3 + 1 + 1, "the runner's, one for all of them, and the test's"
        assert value(conn, "select last_value from app.asked") == 1
        answers = [one.result() for one in asked]
        assert sum("blobgc_queue_entries" in answer for answer in answers) >= 16
        assert "blobgc_queue_entries" in get(port, "/metrics")[1]
        process.terminate()


def get_or_nothing(port: int, path: str) -> str:
    try:
        return get(port, path)[1]
    except OSError:  # Who asks together with too many others is not answered.
        return ""


def test_clients_that_say_nothing_keep_nobody_from_the_metrics(
    file_world: World, conn: Connection
) -> None:
    port = free_port()
    arguments = ("--metrics-port", str(port))
    with contextlib.ExitStack() as idle, Process(file_world, *arguments) as process:
        wait_until(lambda: is_healthy(port), "the runner to be well")
        for number in range(500):
            client = idle.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: " if number % 2 else b"")
        begin = time.monotonic()
        assert get(port, "/metrics")[0] == get(port, "/healthz")[0] == 200
        assert time.monotonic() - begin < 3
        folder = Path(f"/proc/{process.process.pid}/fd")
        assert len(list(folder.iterdir())) < 60
        wait_until(lambda: len(list(folder.iterdir())) < 20, "all of them to be closed")
        file_world.bury(conn, range(1, 4))
        wait_until(lambda: tombstones(conn) == 0, "the objects to go")
        process.terminate()


def test_health_is_lost_with_the_database(crash_world: World, cluster: Cluster) -> None:
    port = free_port()
    with Process(crash_world, "--metrics-port", str(port)):
        wait_until(lambda: is_healthy(port), "the runner to be well")
        cluster.stop()
        try:
            wait_until(lambda: get(port, "/healthz")[0] == 503, "the runner to notice")
            assert get(port, "/metrics")[0] == 200
        finally:
            cluster.start()
        wait_until(lambda: is_healthy(port), "the runner to be well again")


def is_healthy(port: int) -> bool:
    try:
        return get(port, "/healthz")[0] == 200
    except OSError:
        return False


def test_logs_are_lines_of_json_where_that_is_wanted(file_world: World, conn: Connection) -> None:
    file_world.write(conn, range(1, 4))
    records = [json.loads(line) for line in collect(file_world, "--log-json").splitlines()]
    assert {"version": "0.2.0", "level": "info"}.items() <= records[0].items()
    assert {"collection": "file", "reviewed": 3, "deleted": 3}.items() <= records[1].items()
    assert {"objects": 3, "fate": "deleted", "store": file_world.objects.prefix}.items() <= (
        records[2].items())
    for record in records:
        assert datetime.fromisoformat(record["time"]).tzinfo, "a time has its zone"


def test_urls_are_logged_where_that_is_wanted(file_world: World, conn: Connection) -> None:
    file_world.bury(conn, range(1, 3))
    bury_url(conn, 9, file_world.objects.prefix + "\x1b[2J")
    execute(conn, "update gc.settings set backoff = '1 hour', backoff_limit = '1 hour'")
    said = collect(file_world, "-v", code=1)
    assert f"DEBUG {file_world.objects.prefix}2: deleted" in said
    assert "\x1b" not in said, "nothing reaches the terminal raw"
    assert f"{file_world.objects.prefix}\\x1b[2J: refused" in said
    file_world.bury(conn, range(3, 5))
    assert f"{file_world.objects.prefix}3" not in collect(file_world)


def test_a_terminal_shows_a_bar_with_rows_objects_and_bytes(
    file_world: World, conn: Connection
) -> None:
    file_world.write(conn, range(1, 31))
    ours, theirs = pty.openpty()
    with Process(file_world, "--once", stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # That is how a terminal ends.
            while part := os.read(ours, 1000):
                shown += part
        process.process.wait(timeout=10)
    os.close(ours)
    assert re.search("━{30}\\S* \\S*30 rows, 30 objects, 0.0 MB", shown.decode()), shown


# Pace


def reviewed_in(world: World, conn: Connection, seconds: float, *arguments: str) -> int:
    """How many batches of one row it looks at, from its first on."""
    def queued() -> int:
        return int(value(conn, "select count(*) from gc.file_review_queue"))

    at_first = queued()
    with Process(world, "--batch", "1", *arguments) as process:
        wait_until(lambda: queued() < at_first, "the first review", 60)
        begun = queued()
        time.sleep(seconds)
        found = begun - queued()
        process.terminate()
    return found


def test_a_runner_rests_in_between_unless_it_is_told_otherwise(
    file_world: World, conn: Connection
) -> None:
    """As the settings say, or the command line."""
    execute(conn, "insert into app.file select n from generate_series(1, 3000) as n")
    execute(conn, "insert into app.post select n, n from generate_series(1, 3000) as n")
    at_full_speed = reviewed_in(file_world, conn, 2)
    assert at_full_speed > 10
    execute(conn, "update gc.settings set pace = 0.05")
    assert reviewed_in(file_world, conn, 2) < at_full_speed / 3
    assert reviewed_in(file_world, conn, 1, "--pace", "1") > 5
    collect(file_world)
    assert value(conn, "select count(*) from gc.file_review_queue") == 0, "--once does not rest"


def test_a_runner_rests_between_claims(file_world: World, conn: Connection) -> None:
    file_world.bury(conn, range(1, 61))
    with Process(file_world, "--batch", "1", "--pace", "0.05") as process:
        wait_until(lambda: tombstones(conn) < 60, "the first to go")
        time.sleep(1)
        assert tombstones(conn) > 30
        process.terminate()
    with Process(file_world, "--batch", "1", "--pace", "1") as process:
        wait_until(lambda: tombstones(conn) == 0, "all to go")
        process.terminate()


@pytest.mark.parametrize("pace", ["0", "1.5", "-1", "nan"])
def test_a_pace_that_is_none_is_said(file_world: World, pace: str) -> None:
    code, said = start(file_world, "--pace", pace)
    assert (code, said) == (2, "blobgc: --pace is a share of the time: above 0, up to 1\n")
