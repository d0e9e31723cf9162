"""The runner as a process: stores that fail or hang, and signals."""

from __future__ import annotations

import re
import signal
import threading
import time
from pathlib import Path

import pytest
from conftest import (
    Connection,
    execute,
    rows,
    value,
    wait_until,
)
from proxy import Fault
from stores import AmazonObjects, FileObjects, GoogleObjects
from worlds import (
    NewWorld,
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

from blobgc import runner
from blobgc.stores import Tombstone

__all__ = ["conn", "file_world", "google_world", "new_world", "template", "world"]

# Failing


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
