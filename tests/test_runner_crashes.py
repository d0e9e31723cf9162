"""The runner as a process: it is killed, stopped or overtaken at any point, and loses nothing."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from cluster import Cluster
from conftest import (
    Connection,
    execute,
    rows,
    value,
    wait_until,
)
from stores import GoogleObjects
from test_crash import cluster
from worlds import (
    Process,
    World,
    collect,
    conn,
    crash_template,
    crash_world,
    google_world,
    is_asleep,
    logged_once,
    new_world,
    template,
    tombstones,
    world,
)

__all__ = ["cluster", "conn", "crash_template", "crash_world", "google_world", "new_world",
           "template", "world"]

LEASE = ("--timeout", "0.5", "--lease", "2")


def kill_runner(process: Process, cluster: Cluster) -> None:
    process.kill()


def end_watch(conn: Connection) -> None:
    """A server that was started again may be a copy, and would watch the marker for minutes."""
    execute(conn, "update gc.markers set server_start = pg_postmaster_start_time()")


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
        with crash_world.database.connect() as conn:
            end_watch(conn)
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
            end_watch(conn)
            crash_world.bury(conn, range(4, 7))
            wait_until(lambda: tombstones(conn) == 0, "the next to go", 40)
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
                       "the second runner to take over", seconds=60)
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
        with crash_world.database.connect() as conn:
            end_watch(conn)
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
