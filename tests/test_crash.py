"""A server that crashes at any point: nothing lost, nothing live deleted, everything gone once."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from conftest import (
    APP,
    BIN,
    NO_DELAY,
    TRACK,
    Connection,
    Database,
    execute,
    is_waiting,
    rows,
    value,
    wait_until,
)

GARBAGE = {f"file:///store/{n}" for n in range(1, 7)}
LIVE = {f"file:///store/{n}" for n in range(7, 11)}

# Ten files, of which posts keep four. Deleting file 3 takes as long as somebody holds lock 1.
SETUP = (
    "create extension blobgc;" + APP + NO_DELAY + TRACK + """
    insert into app.file select n, n from generate_series(1, 10) as n;
    insert into app.post select n, n from generate_series(7, 10) as n;
    create function app.pause() returns trigger language plpgsql
        as $$ begin perform pg_advisory_xact_lock_shared(1); return old; end $$;
    create trigger pause before delete on app.file
        for each row when (old.id = 3) execute function app.pause();
    """
)


class Cluster:
    """A server of its own, with fsync on, that may be crashed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = Database("postgres", str(folder), os.environ["PGPORT"], "postgres")

    def run(self, program: str, *arguments: str) -> None:
        user = os.environ["BLOBGC_PGUSER_OS"] if os.getuid() == 0 else None
        with (self.folder / "output").open("a") as output:
            subprocess.run(
                [str(BIN / program), "-D", str(self.folder / "data"), *arguments],
                cwd=self.folder,
                user=user,
                extra_groups=[] if user else None,
                stdout=output,
                stderr=output,
                check=True,
            )

    def start(self) -> None:
        self.run("pg_ctl", "start", "-w", "-s", "-l", str(self.folder / "log"))

    def stop(self) -> None:
        self.run("pg_ctl", "stop", "-m", "immediate", "-s")

    def pull_the_plug(self, pid: int) -> None:
        self.stop()
        self.start()

    def kill_the_backend(self, pid: int) -> None:
        """The postmaster ends all other sessions too, and recovers."""
        with self.database.connect() as witness:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not answers(witness), "the server to notice the crash")
        wait_until(self.accepts, "the server to recover")

    def accepts(self) -> bool:
        try:
            self.database.connect().close()
        except psycopg.OperationalError:
            return False
        return True


def answers(conn: Connection) -> bool:
    try:
        conn.execute("select 1")
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="blobgc_crash."))
    if os.getuid() == 0:
        shutil.chown(folder, os.environ["BLOBGC_PGUSER_OS"])
    private = Cluster(folder)
    try:
        private.run("initdb", "-U", "postgres", "--auth=trust", "--locale=C.UTF-8", "-E", "UTF8")
        with (folder / "data" / "postgresql.conf").open("a") as conf:
            conf.write(f"listen_addresses = ''\nport = {private.database.port}\n")
            conf.write(f"unix_socket_directories = '{folder}'\nfsync = on\n")
        private.start()
        yield private
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            private.stop()
        shutil.rmtree(folder)


@pytest.fixture(params=["pull_the_plug", "kill_the_backend"])
def crash(request: pytest.FixtureRequest, cluster: Cluster) -> Callable[[Connection], None]:
    """Crashes the server while this session is at work in it."""
    way: Callable[[int], None] = getattr(cluster, request.param)

    def do(conn: Connection) -> None:
        way(conn.info.backend_pid)
        assert not answers(conn)

    return do


@pytest.fixture
def database(cluster: Cluster) -> Iterator[Database]:
    with cluster.database.connect() as conn:
        assert value(conn, "show fsync") == "on"
        execute(conn, "create database crash")
    name = Database("crash", cluster.database.host, cluster.database.port, "postgres")
    with name.connect() as conn:
        execute(conn, SETUP)
    yield name
    with cluster.database.connect() as conn:
        execute(conn, "drop database crash with (force)")


@pytest.fixture
def store() -> set[str]:
    return GARBAGE | LIVE


def review(conn: Connection) -> None:
    assert rows(conn, "select kept, deleted from gc.review()") == [(4, 6)]


def claim(conn: Connection, worker: str = "first") -> dict[int, str]:
    return dict(rows(conn, "select id, url from gc.claim(%s)", worker))


def state(conn: Connection) -> dict[str, int]:
    """How far things are, as a session sees it after the crash."""
    found = rows(
        conn,
        """
        select (select count(*) from app.file), (select count(*) from gc.file_review_queue),
            (select count(*) from gc.tombstones where worker is null),
            (select count(*) from gc.tombstones where worker = 'first'),
            (select count(*) from gc.deletion_log)
        """,
    )
    return dict(zip(["files", "queued", "waiting", "leased", "logged"], found[0], strict=True))


def finish(conn: Connection, store: set[str]) -> None:
    """A second worker takes over when the leases are over, and does all that is left."""
    execute(conn, "update gc.tombstones set due_at = now() where worker is not null")
    rows(conn, "select * from gc.review()")
    left = claim(conn, "second")
    for url in left.values():
        store.discard(url)  # A missing object is a success.
    assert value(conn, "select gc.confirm('second', %s)", list(left)) == len(left)


def assert_all_gone_once(conn: Connection, store: set[str], kept: set[str] = LIVE) -> None:
    garbage = (GARBAGE | LIVE) - kept
    assert store == kept
    assert {row[0] for row in rows(conn, "select 'file:///store/' || id from app.file")} == kept
    logged = [row[0] for row in rows(conn, "select url from gc.deletion_log order by url")]
    assert logged == sorted(garbage)
    assert rows(conn, "select rows, objects from gc.daily_totals") == [(len(garbage),) * 2]
    assert value(conn, "select count(*) from gc.tombstones") == 0
    assert value(conn, "select count(*) from gc.file_review_queue") == 0
    assert value(conn, "select count(*) from app.post") == len(kept)


Crash = Callable[[Connection], None]


def test_a_crash_in_the_middle_of_a_review_undoes_all_of_it(
    database: Database, store: set[str], crash: Crash
) -> None:
    reviewer, other = database.connect(), database.connect()
    execute(other, "select pg_advisory_lock(1)")

    def run() -> None:
        with contextlib.suppress(psycopg.OperationalError):
            rows(reviewer, "select * from gc.review()")

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: is_waiting(other, reviewer.info.backend_pid), "the review's delete")
    crash(reviewer)
    thread.join()

    with database.connect() as conn:
        assert state(conn) == {"files": 10, "queued": 10, "waiting": 0, "leased": 0, "logged": 0}
        execute(conn, "insert into app.post values (1, 1)")
        finish(conn, store)
        assert_all_gone_once(conn, store, kept=LIVE | {"file:///store/1"})


def test_a_crash_before_the_commit_of_a_review_undoes_all_of_it(
    database: Database, store: set[str], crash: Crash
) -> None:
    reviewer = database.connect(autocommit=False)
    review(reviewer)
    crash(reviewer)
    with database.connect() as conn:
        assert state(conn) == {"files": 10, "queued": 10, "waiting": 0, "leased": 0, "logged": 0}
        finish(conn, store)
        assert_all_gone_once(conn, store)


def test_a_crash_after_the_commit_of_a_review_keeps_every_tombstone(
    database: Database, store: set[str], crash: Crash
) -> None:
    reviewer = database.connect()
    review(reviewer)
    crash(reviewer)
    with database.connect() as conn:
        assert state(conn) == {"files": 4, "queued": 0, "waiting": 6, "leased": 0, "logged": 0}
        finish(conn, store)
        assert_all_gone_once(conn, store)


def test_a_crash_before_the_commit_of_a_claim_leaves_everything_to_be_claimed(
    database: Database, store: set[str], crash: Crash
) -> None:
    worker = database.connect()
    review(worker)
    worker.autocommit = False
    assert set(claim(worker).values()) == GARBAGE
    crash(worker)
    with database.connect() as conn:
        assert state(conn) == {"files": 4, "queued": 0, "waiting": 6, "leased": 0, "logged": 0}
        finish(conn, store)
        assert_all_gone_once(conn, store)


def test_a_crash_after_a_claim_keeps_the_leases_until_they_are_over(
    database: Database, store: set[str], crash: Crash
) -> None:
    worker = database.connect()
    review(worker)
    assert set(claim(worker).values()) == GARBAGE
    crash(worker)
    with database.connect() as conn:
        assert state(conn) == {"files": 4, "queued": 0, "waiting": 0, "leased": 6, "logged": 0}
        # The first worker may still be deleting: nobody else does, and nobody uploads.
        assert claim(conn, "second") == {}
        with pytest.raises(psycopg.Error) as refused:
            execute(conn, "insert into app.file values (1)")
        assert refused.value.sqlstate == "ZG001"
        finish(conn, store)
        assert_all_gone_once(conn, store)


def test_a_crash_after_objects_are_deleted_and_before_the_confirm_hands_them_out_again(
    database: Database, store: set[str], crash: Crash
) -> None:
    worker = database.connect()
    review(worker)
    first = claim(worker)
    store -= set(list(first.values())[:3])
    crash(worker)
    with database.connect() as conn:
        assert state(conn) == {"files": 4, "queued": 0, "waiting": 0, "leased": 6, "logged": 0}
        finish(conn, store)
        assert_all_gone_once(conn, store)
        # The first worker comes back, too late.
        assert value(conn, "select gc.confirm('first', %s)", list(first)) == 0
        assert_all_gone_once(conn, store)


def test_a_crash_before_the_commit_of_a_confirm_leaves_the_lease_and_it_is_confirmed_again(
    database: Database, store: set[str], crash: Crash
) -> None:
    worker = database.connect()
    review(worker)
    first = claim(worker)
    deleted = list(first)[:3]
    store -= {first[i] for i in deleted}
    worker.autocommit = False
    assert value(worker, "select gc.confirm('first', %s)", deleted) == 3
    crash(worker)
    with database.connect() as conn:
        assert state(conn) == {"files": 4, "queued": 0, "waiting": 0, "leased": 6, "logged": 0}
        assert value(conn, "select gc.confirm('first', %s)", deleted) == 3
        finish(conn, store)
        assert_all_gone_once(conn, store)


def test_a_crash_after_a_confirm_confirms_nothing_twice(
    database: Database, store: set[str], crash: Crash
) -> None:
    worker = database.connect()
    review(worker)
    first = claim(worker)
    deleted = list(first)[:3]
    store -= {first[i] for i in deleted}
    assert value(worker, "select gc.confirm('first', %s)", deleted) == 3
    crash(worker)
    with database.connect() as conn:
        assert state(conn) == {"files": 4, "queued": 0, "waiting": 0, "leased": 3, "logged": 3}
        assert value(conn, "select gc.confirm('first', %s)", deleted) == 0
        finish(conn, store)
        assert_all_gone_once(conn, store)


@pytest.fixture
def lazy(cluster: Cluster, database: Database) -> Iterator[Database]:
    """Commits do not wait for the disk, and nobody writes there for a long time."""
    with database.connect() as conn:
        execute(conn, "alter database crash set synchronous_commit = off")
        execute(conn, "alter system set wal_writer_delay = '10s'")
        execute(conn, "alter system set wal_writer_flush_after = '1GB'")
        rows(conn, "select pg_reload_conf()")
    with database.connect() as conn:
        wait_until(lambda: bool(value(conn, "show wal_writer_delay") == "10s"), "the settings")
        assert value(conn, "show synchronous_commit") == "off"
    yield database
    with cluster.database.connect() as conn:
        execute(conn, "alter system reset all")
        rows(conn, "select pg_reload_conf()")


def test_without_synchronous_commit_a_crash_undoes_what_was_not_handed_out(
    lazy: Database, crash: Crash
) -> None:
    conn = lazy.connect()
    execute(conn, "checkpoint")
    execute(conn, "delete from app.post where id = 7; delete from app.file where id = 7")
    crash(conn)
    with lazy.connect() as conn:  # Else the next test would show nothing.
        assert value(conn, "select count(*) from app.file where id = 7") == 1
        assert value(conn, "select count(*) from gc.tombstones") == 0


def test_what_is_handed_out_is_durable_even_without_synchronous_commit(
    lazy: Database, crash: Crash
) -> None:
    conn, worker = lazy.connect(), lazy.connect()
    execute(conn, "checkpoint")
    execute(conn, "delete from app.post where id = 7; delete from app.file where id = 7")
    assert claim(worker) == {1: "file:///store/7"}
    crash(worker)
    with lazy.connect() as conn:
        assert value(conn, "select count(*) from app.file where id = 7") == 0
        assert rows(conn, "select key, worker from gc.tombstones") == [("7", "first")]


def test_an_upload_that_was_announced_is_so_after_a_crash_even_without_synchronous_commit(
    lazy: Database, crash: Crash
) -> None:
    conn = lazy.connect()
    execute(conn, "delete from app.post where id = 7; delete from app.file where id = 7")
    execute(conn, "checkpoint")
    rows(conn, "select gc.begin_upload('file', '7')")
    crash(conn)  # The object is being written meanwhile.
    with lazy.connect() as conn:
        assert value(conn, "select count(*) from gc.tombstones") == 1
        assert claim(conn) == {}
        execute(conn, "insert into app.file values (7)")


def kept_rows(conn: Connection) -> list[tuple[object, ...]]:
    return rows(conn, "select relation::text, key, content::text from gc.trash_rows order by 1, 2")


def delete_by_mistake(conn: Connection) -> None:
    """All files, with an undo window; restoring file 3 takes as long as lock 1 is held."""
    execute(conn, "update gc.settings set undo = '1 day'; select gc.review(); delete from app.file")
    execute(conn, """
        create trigger pause_insert before insert on app.file
            for each row when (new.id = 3) execute function app.pause()
        """)
    execute(conn, "create or replace function app.pause() returns trigger language plpgsql as "
                  "$$ begin perform pg_advisory_xact_lock_shared(1); return new; end $$")


def test_a_crash_in_the_middle_of_a_restore_undoes_all_of_it(
    database: Database, crash: Crash
) -> None:
    with database.connect() as conn:
        before = rows(conn, "select * from app.file order by id"), rows(conn, "table app.post")
        delete_by_mistake(conn)
        kept, files = kept_rows(conn), value(conn, "select count(*) from app.file")
        assert files == 0 and len(kept) == 14
    restorer, other = database.connect(), database.connect()
    execute(other, "select pg_advisory_lock(1)")

    def run() -> None:
        with contextlib.suppress(psycopg.OperationalError):
            rows(restorer, "select gc.restore(collection, key) from gc.trash")

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: is_waiting(other, restorer.info.backend_pid), "the restore's insert")
    crash(restorer)
    thread.join()

    with database.connect() as conn:
        assert value(conn, "select count(*) from app.file") == 0
        assert kept_rows(conn) == kept
        assert value(conn, "select count(*) from gc.tombstones") == 10
        assert value(conn, "select gc.restore(collection, key) from gc.trash") == 14
        after = rows(conn, "select * from app.file order by id"), rows(conn, "table app.post")
        assert after == before
        assert value(conn, "select count(*) from gc.tombstones") == 0


@pytest.mark.parametrize("other_does", [
    "select * from gc.claim('first')",
    "insert into app.file values (7)",
    "select * from gc.review()",
])
def test_a_crash_while_a_restore_waits_for_others_leaves_it_to_be_done(
    database: Database, cluster: Cluster, other_does: str
) -> None:
    """For a claim of its object, a row of its key, a review of what it needs."""
    restorer, other = database.connect(), database.connect()
    execute(restorer, "update gc.settings set undo = '1 day'; select gc._generate('file');"
                      "delete from app.post where id = 7")
    if "review" not in other_does:
        execute(restorer, "delete from app.file where id = 7;"
                          "update gc.tombstones set due_at = now()")
    other.autocommit = False
    rows(other, other_does + (" returning 1" if "insert" in other_does else ""))

    def run() -> None:
        with contextlib.suppress(psycopg.OperationalError):
            rows(restorer, "select gc.restore('app.post', '7')")

    thread = threading.Thread(target=run)
    thread.start()
    pid = restorer.info.backend_pid
    with database.connect() as conn:
        wait_until(lambda: is_waiting(conn, pid), "the restore")
    cluster.kill_the_backend(pid)
    thread.join()
    with database.connect() as conn:
        assert value(conn, "select count(*) from app.post where id = 7") == 0
        assert value(conn, "select count(*) from gc.tombstones where worker is not null") == 0
        files = value(conn, "select count(*) from app.file where id = 7")
        assert files == (1 if "review" in other_does else 0)
        assert value(conn, "select gc.restore('app.post', '7')") == 2 - files
        assert rows(conn, "select p.id, f.bytes from app.post as p join app.file as f "
                          "on f.id = p.file_id where p.id = 7") == [(7, 7)]
        assert claim(conn, "second") == {}


def test_a_crash_after_the_commit_of_a_restore_keeps_every_row(
    database: Database, crash: Crash
) -> None:
    restorer = database.connect()
    before = rows(restorer, "select * from app.file order by id")
    delete_by_mistake(restorer)
    assert value(restorer, "select gc.restore(collection, key) from gc.trash") == 14
    crash(restorer)
    with database.connect() as conn:
        assert rows(conn, "select * from app.file order by id") == before
        assert kept_rows(conn) == []
        assert value(conn, "select count(*) from gc.tombstones") == 0


FINALIZERS = """
select gc.track('app.file', url => $$'file:///store/' || id$$, size => 'bytes',
    finalizers => '{cdn-purge}');
"""


def purge(conn: Connection, worker: str) -> int:
    """A worker of the finalizer claims everything, and confirms."""
    ids = [row[0] for row in rows(
        conn, "select id from gc.claim(%s, finalizer => 'cdn-purge')", worker)]
    confirmed: int = value(conn, "select gc.confirm(%s, %s)", worker, ids)
    assert confirmed == len(ids)
    return confirmed


def test_a_crash_before_the_commit_of_a_finalizer_leaves_its_step_to_be_done(
    database: Database, store: set[str], crash: Crash
) -> None:
    worker = database.connect()
    execute(worker, FINALIZERS)
    review(worker)
    worker.autocommit = False
    assert purge(worker, "first") == len(GARBAGE)
    crash(worker)
    with database.connect() as conn:
        assert claim(conn, "second") == {}, "storage gets nothing before the step is finished"
        assert purge(conn, "second") == len(GARBAGE)
        finish(conn, store)
        assert_all_gone_once(conn, store)


def test_a_crash_after_the_commit_of_a_finalizer_keeps_its_step_finished(
    database: Database, store: set[str], crash: Crash
) -> None:
    worker = database.connect()
    execute(worker, FINALIZERS)
    review(worker)
    assert purge(worker, "first") == len(GARBAGE)
    crash(worker)
    with database.connect() as conn:
        assert purge(conn, "second") == 0
        finish(conn, store)
        assert_all_gone_once(conn, store)


def test_a_crash_before_the_commit_of_striking_off_strikes_nothing_off(
    database: Database, store: set[str], crash: Crash
) -> None:
    operator = database.connect()
    execute(operator, FINALIZERS)
    review(operator)
    operator.autocommit = False
    struck = value(operator, "select gc.strike_finalizer('file', 'cdn-purge', 'no CDN')")
    assert struck == len(GARBAGE)
    crash(operator)
    with database.connect() as conn:
        assert value(conn, "select count(*) from gc.struck_finalizers") == 0
        assert claim(conn, "second") == {}
        assert purge(conn, "second") == len(GARBAGE)
        finish(conn, store)
        assert_all_gone_once(conn, store)


def test_a_cause_that_was_committed_survives_a_crash(
    database: Database, store: set[str], crash: Crash
) -> None:
    author = database.connect()
    with author.transaction():
        execute(author, "select gc.because('ticket 4711'); delete from app.post where id = 7")
    crash(author)
    with database.connect() as conn:
        assert rows(conn, "select state, key from gc.receipt('ticket 4711')") == [("queued", "7")]
        rows(conn, "select * from gc.review()")
        assert rows(conn, "select state, key from gc.receipt('ticket 4711')") == [("waiting", "7")]
        assert value(conn, "select count(*) from gc.tombstones where causes is null") == 6
