"""A storm as a whole: it is set up, blows for a time, calms down, and is looked at."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import psycopg
from conftest import ROOT, Database
from test_markers import Server

from storm.client import MINUTE
from storm.kills import Kills, Runners
from storm.objects import Objects
from storm.oracle import Oracle
from storm.sabotage import NOTHING, Sabotage
from storm.watcher import Watcher
from storm.world import World

# Of the server: it crashes, but the machine does not. %e: refusals are told from errors by it.
SETTINGS = (
    "fsync = off", "log_line_prefix = '%e|%p|%a|'", "max_prepared_transactions = 50",
    "autovacuum = on", "autovacuum_naptime = 20", "max_connections = 80", "log_checkpoints = off",
    "deadlock_timeout = '2s'", "log_lock_waits = on", "min_wal_size = '32MB'",
    "full_page_writes = off",
)
HASTE = 120.0  # Seconds: then runners and kills take more time, which a long storm has.
LOOKS_AFTER = 0.25
SETTLES_WITHIN = 120.0  # Seconds, on a machine that others use as well.

logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # Sessions are lost on purpose.


class Storm:
    lease = 2.0
    upload_timeout = 3.0

    def __init__(
        self, folder: Path, world: type[World], seed: int,
        sabotage: Sabotage = NOTHING, clients: int = 12, runners: int = 3,
    ) -> None:
        self.folder = folder
        self.seed = seed
        self.number_of_runners = runners
        self.oracle = Oracle()
        for name in ("journal", "logs"):
            (folder / name).mkdir()
        self.objects = Objects(folder)
        self.world = world(self)
        self.package = self.copy_of_package(sabotage)
        self.servers: list[Server] = []
        self.use(Server().make(*SETTINGS))
        self.server.start()
        self.database = self.create_database(sabotage)
        self.watcher = Watcher(self)
        self.clients = [self.world.client(number) for number in range(clients)]
        self.runners: Runners

    # Servers

    @property
    def server(self) -> Server:
        """The one that is used. Others were before it, and have left their logs."""
        return self.servers[-1]

    def use(self, server: Server) -> None:
        """Whoever connects from now on gets to this one: by a link, as if by a name."""
        self.servers.append(server)
        link = self.folder / "next server"
        link.symlink_to(server.folder)
        link.rename(self.folder / "server")

    # Setting up

    def copy_of_package(self, sabotage: Sabotage) -> Path:
        """What the runners import."""
        if not sabotage.of_runner:
            return ROOT
        shutil.copytree(ROOT / "blobgc", self.folder / "package" / "blobgc")
        path = self.folder / "package" / "blobgc" / "runner.py"
        path.write_text(sabotage.apply(path.read_text()))
        return path.parent.parent

    def create_database(self, sabotage: Sabotage) -> Database:
        with self.server.database.connect() as conn:
            conn.execute("create database storm")
        database = replace(
            self.server.database, name="storm", host=str(self.folder / "server"))
        script = (ROOT / "build" / "blobgc-plain.sql").read_text()
        database.psql(script if sabotage.of_runner else sabotage.apply(script))
        with database.connect() as conn:
            self.world.set_up(conn)
        return database

    # Blowing

    def blow(self, seconds: float) -> None:
        """Until the time is over, or something was seen to be wrong."""
        stop = threading.Event()
        self.begun = time.monotonic()
        self.later = self.begun + HASTE
        self.runners = Runners(self, self.number_of_runners)
        threads = [threading.Thread(target=client.live, args=[stop]) for client in self.clients]
        threads.append(threading.Thread(target=Kills(self).go_on, args=[stop]))
        for thread in threads:
            thread.start()
        try:
            while time.monotonic() < self.begun + seconds and not self.oracle.violations:
                self.look(self.begun + seconds)
        finally:
            self.blown = time.monotonic() - self.begun
            stop.set()
            for thread in threads:
                thread.join()

    def is_before(self, second: float) -> bool:
        """Of the minute."""
        return (time.monotonic() - self.begun) % MINUTE < second

    def look(self, until: float) -> None:
        """As long as the session lasts: it is killed like any other."""
        try:
            with self.database.connect() as conn:
                while time.monotonic() < until and not self.oracle.violations:
                    self.watcher.look(conn)
                    time.sleep(LOOKS_AFTER)
        except psycopg.OperationalError:
            time.sleep(0.05)

    # Calming down

    def calm_down(self) -> None:
        """Nothing fails, or is killed, any more. What is left must become right by itself."""
        (self.folder / "calm").touch()
        for client in self.clients:
            client.finish()
        with self.database.connect() as conn:
            self.world.calm_down(conn)
            self.watcher.settle(conn, SETTLES_WITHIN)
            self.watcher.look_at_the_end(conn)
            for client in self.clients:
                client.check_all()
            self.world.abandon(conn)
            self.watcher.settle(conn, SETTLES_WITHIN)
            self.watcher.look_at_the_end(conn)
            for url in self.objects.urls():
                self.oracle.violated(f"{url} is still there, and everything else is gone")
        self.runners.check()

    def run(self, seconds: float) -> None:
        try:
            self.blow(seconds)
            if not self.oracle.violations:
                self.calm_down()
        finally:
            self.runners.end()
            if self.oracle.violations:
                self.keep_logs()

    def keep_logs(self) -> None:
        name = f"storm-{type(self.world).__name__.lower()}-{self.seed}.log"
        (ROOT / "build" / name).write_bytes(b"".join(
            (server.folder / "log").read_bytes() for server in self.servers))

    def clear_away(self) -> None:
        for server in self.servers:
            server.remove()
