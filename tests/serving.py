"""The server of examples/registry as tests use it, as a process, with a database of its own."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from conftest import ROOT, Connection, Database, execute, rows
from oci_client import Client
from stores import free_port, wait_for_port

EVENTS = ["blob_upload", "manifest_upload", "manifest_delete", "layer_delete", "tag_delete",
          "tag_switch", "manifest_list_delete", "subject_delete", "repository_insert"]

# What docs/registry.md gives to an application, and nothing more.
RIGHTS = """
grant usage on schema registry to {role};
grant select, insert, update, delete on all tables in schema registry to {role};
select gc.grant_uploader('{role}');
"""

_numbers = itertools.count(1)


class Served:
    """A registry that can be reached over HTTP."""

    def __init__(self, database: Database, role: str, environment: dict[str, str]) -> None:
        self.database, self.role = database, role
        self.environment = database.environment | environment | {"PGUSER": role}
        self.folder = Path(tempfile.mkdtemp(prefix="blobgc_registry."))
        self.address = f"127.0.0.1:{free_port()}"
        self.start()

    def start(self) -> None:
        port = self.address.partition(":")[2]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "distribution", "--uploads", self.folder / "uploads",
             "--port", port], cwd=ROOT / "examples/registry", env=self.environment)
        wait_for_port(int(port), self.process)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def client(self) -> Client:
        return Client(self.address)

    def connect(self) -> Connection:
        return self.database.connect()


@contextmanager
def serve(store: str, environment: dict[str, str] | None = None) -> Iterator[Served]:
    """A new registry with that store, until the end."""
    name = f"blobgc_served_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(autocommit=True) as conn:
        execute(conn, f"create database {name}; ")
        execute(conn, f"create role {name} login")
    database = Database(name, os.environ["PGHOST"], os.environ["PGPORT"], os.environ["PGUSER"])
    try:
        with database.connect() as conn:
            execute(conn, "create extension blobgc")
            rows(conn, "select gc.create_registry(store => %s)", store)
            execute(conn, RIGHTS.format(role=name))
        served = Served(database, name, environment or {})
        try:
            yield served
        finally:
            served.close()
    finally:
        with psycopg.connect(autocommit=True) as conn:
            execute(conn, f"drop database {name} with (force)")
            execute(conn, f"drop role {name}")


def collect_at_once(conn: Connection) -> None:
    """Nothing waits a day, and nobody is spared: what is garbage goes now."""
    execute(conn, "update gc.settings set jitter = '0', undo = '0', brake_share = 1, "
                  "busy_delay = '1 millisecond', max_sleep = '100 milliseconds'")
    for event in EVENTS:
        rows(conn, "select gc.set_delay(%s, '0')", event)


def pass_time(conn: Connection) -> None:
    """Whatever was held or put off is so no longer."""
    execute(conn, "delete from gc.holds")
    for collection in ("manifest", "blob"):
        execute(conn, f"update gc.{collection}_review_queue set review_after = now()")


@contextmanager
def runner(environment: dict[str, str], store: str) -> Iterator[subprocess.Popen[str]]:
    """The collector, with leases that are short enough for a test to see their end."""
    process = subprocess.Popen(
        [sys.executable, ROOT / "runner.py", "run", "--store", f"{store}/", "--lease", "8",
         "--timeout", "2"],
        env=environment, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def wait_until_collected(conn: Connection, seconds: float = 60) -> None:
    """Until nothing is left to do, but for new repositories, which are looked at minutes later."""
    end = time.monotonic() + seconds
    left = ("select sum(queued + tombstones_waiting + tombstones_claimed)::bigint "
            "from gc.status() where collection <> 'repository'")
    while rows(conn, left) != [(0,)]:
        assert time.monotonic() < end, rows(conn, "select * from gc.status()")
        time.sleep(0.1)
