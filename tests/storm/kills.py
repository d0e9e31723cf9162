"""What dies, or stands still, in a storm: runners, sessions, the server."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from conftest import ROOT, Database, execute, rows, value, wait_until

if TYPE_CHECKING:
    from storm.blow import Storm


# A process that has imported all that a runner needs: starting Python takes a second or more.
forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(["storm.worker"])


def run(package: Path, *arguments: Any) -> None:
    """In the new process. A package that was tampered with is imported in place of ours."""
    if package != ROOT:
        sys.path.insert(0, str(package))
        for name in [*sys.modules]:
            if name.partition(".")[0] == "blobgc" or name == "storm.worker":
                del sys.modules[name]
    importlib.import_module("storm.worker").run(*arguments)


class Runners:
    """Processes that are started again when they have died."""

    def __init__(self, storm: Storm, number: int) -> None:
        self.storm = storm
        self.started = 0
        self.processes = [self.start() for _ in range(number)]

    def start(self) -> ForkServerProcess:
        return self.start_for(self.storm.database, self.storm.folder, self.storm.later)

    def start_for(self, database: Database, folder: Path, later: float) -> ForkServerProcess:
        """In the folder are its log and its journal. It has haste until that time."""
        self.started += 1
        storm = self.storm
        process = forks.Process(target=run, args=[
            storm.package, folder, later, f"{storm.seed} {self.started}",
            database.environment,
            ["--store", storm.objects.prefix, "--batch", "200", "--lease", str(storm.lease),
             "--timeout", str(storm.lease / 4), "--threads", "3",
             "--worker", f"runner {self.started}"]])
        process.start()
        return process

    def kill(self, index: int) -> None:
        self.processes[index].kill()
        self.processes[index].join()
        self.processes[index] = self.start()

    def end_one(self, index: int) -> None:
        """As a deployment does: it ends its batch, and gives back what it has not begun."""
        process = self.processes[index]
        process.terminate()
        process.join(ENDS_WITHIN)
        log = self.storm.folder / "logs" / str(process.pid)
        has_failed = log.exists() and "Traceback" in log.read_text()
        if process.exitcode is None or has_failed:
            self.storm.oracle.violated(f"a runner that was told to end has not ended well ({log})")
        self.kill(index)

    def stop_for(self, index: int, seconds: float) -> None:
        """Never from the look at the clock to the delete: see worker.py."""
        pid = self.processes[index].pid
        assert pid is not None
        gate = os.open(self.storm.folder / "gate", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: state_of(pid) in "TZ", "the runner to stop")
        finally:
            os.close(gate)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    def check(self) -> None:
        """One that ended by itself should not have; but at its start it asks for a connection once,
        and ends if that is killed."""
        for index, process in enumerate(self.processes):
            if process.exitcode is not None:
                log = (self.storm.folder / "logs" / str(process.pid)).read_text()
                last = log.rstrip().rpartition("\n")[2]
                if not (last.startswith("blobgc: ") and "connection" in last):
                    self.storm.oracle.violated(
                        f"a runner ended by itself ({process.exitcode}): {last}")
                self.processes[index] = self.start()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def has_tried(log: Path) -> bool:
    """Whether the runner that writes this was told not to delete, or has deleted something."""
    text = log.read_text() if log.exists() else ""
    return "nothing is deleted here" in text or "deleted from" in text


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# Of so many, in an order that is new each time.
ROUND = ["a session"] * 12 + ["a runner"] * 3 + ["a runner stopped"] * 4 + [
    "a runner ended", "a runner ended", "the server", "a failover", "a copy"]
# Seconds between two of them; and when sessions may live longer, so that their plans grow old.
PAUSE, LATER_PAUSE = (0.1, 1.0), (1.0, 8.0)
BIG = ["the server", "a failover", "a copy"]  # They come first in the first round.
ENDS_WITHIN = 60.0  # Seconds: a runner ends in a few, or leaves what does not end.
COPY_LIVES = 90.0  # Seconds, at most: less than it would have to watch the marker.


class Kills:
    """One after the other, in an order that random numbers of its own decide."""

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.chance = random.Random(f"{storm.seed} kills")

    def go_on(self, stop: threading.Event) -> None:
        order = self.chance.sample(BIG, len(BIG))
        while True:
            for what in order:
                if stop.wait(self.chance.uniform(*self.pause())):
                    return
                try:
                    self.storm.runners.check()
                    if self.happen(what):
                        self.storm.oracle.count(f"kill: {what}")
                except Exception as error:
                    self.storm.oracle.violated(f"{what}: {type(error).__name__} {error}")
                    return
            order = self.chance.sample(ROUND, len(ROUND))

    def pause(self) -> tuple[float, float]:
        return PAUSE if time.monotonic() < self.storm.later else LATER_PAUSE

    def happen(self, what: str) -> bool:
        """False: it came to nothing."""
        if what == "a session":
            self.end_a_session()
        elif what == "a runner":
            self.storm.runners.kill(self.any_runner())
        elif what == "a runner ended":
            self.storm.runners.end_one(self.any_runner())
        elif what == "a runner stopped":
            seconds = self.chance.choice([0.3, 1.0, 1.3]) * self.storm.lease
            self.storm.runners.stop_for(self.any_runner(), seconds)
        elif what == "the server":
            self.crash()
            self.end_watch()
        elif what == "a failover":
            self.fail_over()
            self.end_watch()
        else:
            return self.copy()
        return True

    def end_watch(self) -> None:
        """As if it were a copy of the disk, it would watch for longer than a storm lasts."""
        with self.storm.database.connect() as conn:
            execute(conn, "update gc.markers set place = gc._place(), "
                          "server_start = pg_postmaster_start_time()")

    def any_runner(self) -> int:
        return self.chance.randrange(len(self.storm.runners.processes))

    def pids(self) -> list[int]:
        with self.storm.database.connect() as conn:
            return [pid for (pid,) in rows(
                conn, "select pid from pg_stat_activity where datname = current_database() "
                      "and pid <> pg_backend_pid() order by backend_start")]

    def end_a_session(self) -> None:
        try:
            pids = self.pids()
            with self.storm.database.connect() as conn:
                rows(conn, "select pg_terminate_backend(%s)", self.chance.choice(pids))
        except psycopg.OperationalError:
            pass  # It recovers, or was itself the one.

    def crash(self) -> None:
        if self.chance.random() < 0.5:
            self.storm.server.pull_the_plug(0)
        else:
            with contextlib.suppress(ProcessLookupError, psycopg.OperationalError):
                self.storm.server.kill_the_backend(self.chance.choice(self.pids()))

    def fail_over(self) -> None:
        """The server dies, and a standby takes its place, which lacks nothing that was told to
        anybody: from some moment on, who commits waits for it."""
        primary = self.storm.server
        standby = primary.copy("-R")
        standby.start()
        with primary.database.connect() as conn:
            execute(conn, "alter system set synchronous_standby_names = '*'")
            rows(conn, "select pg_reload_conf()")
            time.sleep(0.2)
            here = value(conn, "select pg_current_wal_lsn()")
            wait_until(lambda: bool(value(
                conn, "select count(*) from pg_stat_replication "
                      "where sync_state = 'sync' and flush_lsn >= %s::pg_lsn", here)),
                "the standby to have everything")
        primary.stop()
        standby.run("pg_ctl", "promote", "-w", "-s")
        self.storm.use(standby)
        shutil.rmtree(primary.folder / "data")

    def copy(self) -> bool:
        """A copy of the disk that nothing tells from the original, and a runner for it. In the copy
        everything is garbage; but nothing must be deleted, because the original is alive. False:
        the machine is so busy that the runner has not come to try."""
        folder = self.storm.folder / f"copy {time.monotonic()}"
        for name in ("journal", "logs"):
            (folder / name).mkdir(parents=True)
        with self.storm.server.copy() as server:
            server.start()
            database = replace(self.storm.database, host=str(server.folder))
            with database.connect() as conn:
                for (name,) in rows(conn, "select gid from pg_prepared_xacts"):
                    execute(conn, f"rollback prepared '{name}'")
                execute(conn, "update gc.settings set max_sleep = '2 seconds'; "
                              "update gc.markers set place = gc._place()")
                self.storm.world.abandon_objects(conn)
            process = self.storm.runners.start_for(database, folder, later=math.inf)
            end = time.monotonic() + COPY_LIVES
            while time.monotonic() < end and not has_tried(folder / "logs" / str(process.pid)):
                time.sleep(0.2)
            tried = has_tried(folder / "logs" / str(process.pid))
            time.sleep(1)
            process.kill()
            process.join()
        return tried
