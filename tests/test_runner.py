"""The runner as a process: it drains, sleeps, wakes, and keeps to its pace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from conftest import (
    ROOT,
    Connection,
    Database,
    NewRole,
    execute,
    rows,
    value,
    wait_until,
)
from stores import FileObjects, GoogleObjects, free_port
from worlds import (
    Process,
    World,
    bury_url,
    collect,
    conn,
    file_world,
    google_world,
    is_asleep,
    logged_once,
    new_world,
    start,
    template,
    tombstones,
    world,
)

from blobgc import database

__all__ = ["conn", "file_world", "google_world", "new_world", "template", "world"]

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


@pytest.mark.parametrize("locked", ["tombstones", "file_review_queue"])
def test_once_ends_if_another_session_does_not_let_go_of_what_is_due(
    file_world: World, conn: Connection, locked: str
) -> None:
    file_world.bury(conn, range(1, 11))
    file_world.write(conn, range(11, 21))
    with file_world.database.connect(autocommit=False) as other:
        rows(other, f"select from gc.{locked} for update")
        said = collect(file_world, "--wait", "1", code=3)
        other.rollback()
    assert "something that is due is left, because another session has it locked" in said
    assert len(file_world.objects.names()) == 10, "what nobody has locked is collected"
    collect(file_world)
    assert file_world.objects.names() == set()


@pytest.fixture
def runners(file_world: World) -> Iterator[database.Database]:
    """A connection as the runner has it."""
    server = file_world.database
    made = database.Database(psycopg.conninfo.make_conninfo(
        host=server.host, port=server.port, user=server.user, dbname=server.name))
    yield made
    made.connection.close()


def test_no_transaction_of_a_runner_waits_for_it(
    runners: database.Database, conn: Connection
) -> None:
    """It may be stopped at any moment, and nobody would get what it has locked."""
    execute(conn, "create function app.tell() returns integer language plpgsql as "
            "$$ begin raise warning 'here'; perform from gc.settings for update; return 7; end $$")
    ended = []

    def look(notice: object) -> None:
        wait_until(lambda: bool(value(
            conn, "select state = 'idle' from pg_stat_activity where pid = %s",
            runners.connection.info.backend_pid)), "the transaction to end without us")
        ended.append(rows(conn, "select from gc.settings for update nowait"))

    runners.connection.add_notice_handler(look)
    assert runners.call("select app.tell() as told") == [{"told": 7}]
    assert ended == [[()]]
    with pytest.raises(psycopg.errors.DivisionByZero):
        runners.call("select 1 / %s", 0)
    assert runners.call("select %s::text as what", "it's \\ all right") == [
        {"what": "it's \\ all right"}]


def test_the_server_ends_a_transaction_of_several_steps_if_the_client_is_stopped(
    runners: database.Database
) -> None:
    timeout = "show idle_in_transaction_session_timeout"
    with runners.transaction() as connection:
        assert connection.execute(timeout).fetchone() == {timeout[5:]: "10s"}
    assert runners.connection.execute(timeout).fetchone() == {timeout[5:]: "0"}, "as it was"


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


REVIEW_WAITS = """
select exists (
    select from pg_stat_activity as a where a.query ~ 'gc[.]review' and a.wait_event_type = 'Lock'
)
"""


def test_a_runner_that_rests_asks_one_thing_at_a_time(
    file_world: World, conn: Connection
) -> None:
    """While a review waits for a lock, for two seconds, nobody claims; but nobody waits for more
    than a second of that."""
    file_world.bury(conn, range(1, 301))
    with file_world.database.connect() as other, Process(
            file_world, "--batch", "1", "--pace", "0.9") as process:
        wait_until(lambda: tombstones(conn) < 298, "the first to go")
        with other.transaction():
            other.execute("lock table app.post")
            wait_until(lambda: value(conn, REVIEW_WAITS), "a review that waits")
            at_first = tombstones(conn)
            time.sleep(0.3)
            assert tombstones(conn) == at_first
            wait_until(lambda: tombstones(conn) < at_first, "claims to go on")
        process.terminate()
    with file_world.database.connect() as other, Process(
            file_world, "--batch", "1", "--pace", "1") as process, other.transaction():
        other.execute("lock table app.post")
        wait_until(lambda: value(conn, REVIEW_WAITS), "a review that waits")
        at_first = tombstones(conn)
        wait_until(lambda: tombstones(conn) < at_first and value(conn, REVIEW_WAITS),
                   "claims while a review waits")
        process.terminate()


@pytest.mark.parametrize("pace", ["0", "1.5", "-1", "nan"])
def test_a_pace_that_is_none_is_said(file_world: World, pace: str) -> None:
    code, said = start(file_world, "--pace", pace)
    assert (code, said) == (2, "blobgc: --pace is a share of the time: above 0, up to 1\n")
