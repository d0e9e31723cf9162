"""Careful deletes: an object that was written since its row went is not deleted."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import ROOT, Database, NewDatabase, databases, rows, value
from stores import AmazonObjects, FileObjects, Objects, environment_of
from test_markers import collect

from blobgc.errors import SUCCESS
from blobgc.stores import DELETED, RELEASED, SPARED, Care, Tombstone, open_store
from blobgc.stores.file import DELETING

SETUP = """
create extension blobgc;
create schema app;
create table app.file (name text primary key);
update gc.settings set jitter = '0', undo = '0', brake_share = 1, upload_timeout = '1 second',
    backoff = '100 milliseconds', max_sleep = '1 second';
"""

# 10 minutes for each kind of store; else a few seconds.
SECONDS = 600.0 if os.environ.get("BLOBGC_LONG") else 6.0


@pytest.fixture(scope="module")
def prepared() -> Iterator[str]:
    """A database that is ready but for the store; to copy it is quicker than to make it."""
    with databases() as make:
        made = make()
        made.psql(SETUP)
        yield made.name


@pytest.fixture
def database(new_database: NewDatabase, prepared: str) -> Database:
    return new_database(template=prepared)


def prepare(database: Database, objects: Objects, is_careful: bool) -> None:
    with database.connect() as conn:
        rows(conn, "select * from gc.track('app.file', url => %s, collect => 'deleted')",
             f"'{objects.prefix}' || name")
        rows(conn, "select gc.set_careful('file', %s)", is_careful)


def start_runner(database: Database, objects: Objects) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, ROOT / "runner.py", "run", "--store", objects.prefix],
        env=database.environment | objects.environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("kind", ["files", "google"])
def test_what_was_written_after_its_row_went_stays_and_is_reported(
    database: Database, request: pytest.FixtureRequest, kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    objects: Objects = request.getfixturevalue(kind)
    prepare(database, objects, is_careful=True)
    caplog.set_level("INFO", "blobgc")
    for name in ("old", "again", "kept"):
        objects.put(name)
    with database.connect() as conn:
        conn.execute("insert into app.file values ('old'), ('again')")
        conn.execute("delete from app.file")
        time.sleep(3.2)
        objects.put("again")
        conn.execute("update gc.settings set upload_timeout = '1 hour'")
        assert collect(database, objects, "--wait", "20") == SUCCESS
        assert "objects: spared" in caplog.text
        assert objects.names() == {"old", "again", "kept"}, "an upload may take an hour"
        assert rows(conn, "select key, due_at > now() + interval '59 minutes' "
                    "from gc.tombstones") == [("old", True)]
        assert rows(conn, "select operation, collection, reason from gc.operations") == [
            ("spare", "file", "1 objects were written after their rows went, such as "
             f"{objects.prefix}again")]
        conn.execute("update gc.settings set upload_timeout = '1 second'")
        conn.execute("update gc.tombstones set due_at = now()")
        assert collect(database, objects, "--wait", "20") == SUCCESS
        assert objects.names() == {"again", "kept"}
        assert value(conn, "select count(*) from gc.tombstones") == 0


def test_a_look_tells_how_old_an_object_is_by_the_stores_clock(objects: Objects) -> None:
    objects.put("x")
    with environment_of(objects):
        store = open_store(objects.prefix, argparse.Namespace(timeout=5, threads=1))
        seen = store.look(objects.prefix + "x")
        assert seen is not None and seen.size == 1 and -2.5 < seen.age < 1
        assert store.look(objects.prefix + "missing") is None
        # Old enough; and too young for its row, which went a minute ago.
        tombstone = Tombstone(1, objects.prefix + "x", None, 1)
        assert store.delete_carefully([tombstone._replace(care=care(60))]) == [SPARED]
        assert objects.names() == {"x"}
        assert store.delete_carefully([tombstone._replace(care=care(-10))]) == [DELETED]
        assert objects.names() == set()


def test_a_runner_can_be_careful_with_everything(database: Database, files: FileObjects) -> None:
    prepare(database, files, is_careful=False)
    with database.connect() as conn:
        conn.execute("insert into app.file values ('x')")
        conn.execute("delete from app.file")
        time.sleep(2.2)
        files.put("x")
        assert collect(database, files, "--careful", "--wait", "5") == SUCCESS
        assert files.names() == {"x"}


def test_a_version_that_was_seen_is_the_one_that_is_deleted(
    versioned_amazon: AmazonObjects
) -> None:
    first = versioned_amazon.put("x")
    with environment_of(versioned_amazon):
        store = open_store(versioned_amazon.prefix, argparse.Namespace(timeout=5, threads=1))
        store.check()
        seen = store.look(versioned_amazon.prefix + "x")
    assert seen is not None and seen.generation == first
    versioned_amazon.put("x")
    assert store.delete([Tombstone(1, versioned_amazon.prefix + "x", seen.generation, 1)]) == [
        DELETED]
    assert versioned_amazon.names() == {"x"}


def care(untouched_for: float, until: float = 60) -> Care:
    return Care(untouched_for, time.monotonic(), time.monotonic() + until)


def test_nothing_is_deleted_after_half_of_the_lease(objects: Objects) -> None:
    objects.put("x")
    with environment_of(objects):
        store = open_store(objects.prefix, argparse.Namespace(timeout=5, threads=1))
        late = Tombstone(1, objects.prefix + "x", None, 1, care(-10, until=-1))
        assert store.delete_carefully([late]) == [RELEASED]
    assert objects.names() == {"x"}


UNTOUCHED = 0.12  # Seconds.


def write_and_look(path: Path, number: int) -> bool:
    """Whether a file is there for as long as it cannot be deleted. It may be away for a moment,
    while it is looked at for the last time."""
    begun = time.monotonic()
    if number % 2:
        path.write_text(str(number))
    else:
        temporary = path.with_suffix(f".{number}")
        temporary.write_text(str(number))
        temporary.rename(path)
    time.sleep(0.02)
    while True:
        late = time.monotonic() >= begun + UNTOUCHED - 0.01
        if late or path.exists():
            break
    try:
        return path.read_text() == str(number)
    except FileNotFoundError:
        return time.monotonic() > begun + UNTOUCHED - 0.01


def test_a_file_that_is_written_between_the_look_and_the_delete_stays(files: FileObjects) -> None:
    store = open_store(files.prefix, argparse.Namespace(timeout=5, threads=1))
    (files.folder / "deep").mkdir()
    stop = threading.Event()
    fates: list[str] = []

    def delete(name: str) -> None:
        while not stop.is_set():
            fates.extend(store.delete_carefully(
                [Tombstone(1, files.prefix + name, None, 1, care(UNTOUCHED))]))

    def write(name: str) -> bool:
        is_well = True
        for number in range(12):
            is_well = write_and_look(files.folder / name, number) and is_well
            time.sleep(UNTOUCHED * (0.8 + 0.4 * random.random()))
        return is_well

    names = [f"deep/{number}" for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        for name in names:
            pool.submit(delete, name)
        try:
            assert list(pool.map(write, names)) == [True] * 4
        finally:
            stop.set()
    assert fates.count(DELETED) > 10 and fates.count(SPARED) > 10
    assert not [found for found in (files.folder / DELETING).rglob("*") if found.is_file()]


def test_a_file_that_a_killed_runner_has_put_aside_comes_back(files: FileObjects) -> None:
    aside = files.folder / DELETING / "deep" / "x"
    aside.parent.mkdir(parents=True)
    (files.folder / "deep").mkdir()
    aside.write_text("x")
    store = open_store(files.prefix, argparse.Namespace(timeout=5, threads=1))
    store.check()
    assert not (files.folder / "deep" / "x").exists(), "another runner may be at it"
    tombstone = Tombstone(1, files.prefix + "deep/x", None, 1, care(0))
    assert store.delete_carefully([tombstone]) == [RELEASED]
    assert (files.folder / "deep" / "x").read_text() == "x" and not aside.exists()


class Application:
    """Writes an object, then its row; deletes the row; and so on. It knows nothing of blobgc."""

    def __init__(self, database: Database, objects: Objects) -> None:
        self.database, self.objects = database, objects
        self.stop = threading.Event()
        self.lost: set[str] = set()
        self.uploads = 0
        self.refused = 0

    def put(self, name: str) -> None:
        if isinstance(self.objects, FileObjects) and random.random() < 0.5:
            path = self.objects.folder / f"{name}.{threading.get_ident()}"
            path.write_text(name)
            path.rename(self.objects.folder / name)
        else:
            self.objects.put(name)

    def has(self, name: str) -> bool:
        if isinstance(self.objects, FileObjects):
            return (self.objects.folder / name).exists()
        return name in self.objects.names()

    def work(self) -> None:
        with self.database.connect() as conn:
            while not self.stop.is_set():
                name = f"thing-{random.randrange(12)}"
                self.put(name)
                time.sleep(random.random() * 0.06)
                if not self.insert(conn, name):
                    continue
                self.uploads += 1
                if not self.has(name) and rows(
                        conn, "select from app.file where name = %s", name):
                    self.lost.add(name)
                time.sleep(random.random() * 0.1)
                conn.execute("delete from app.file where name = %s", [name])
                time.sleep(random.random())

    def insert(self, conn: Any, name: str) -> bool:
        """What fails is tried again, but the object is not written again."""
        for _ in range(20):
            try:
                conn.execute("insert into app.file values (%s) on conflict do nothing", [name])
                return True
            except psycopg.Error:
                self.refused += 1
                time.sleep(0.1)
        return False

    def run(self, seconds: float, until_lost: bool) -> None:
        threads = [threading.Thread(target=self.work) for _ in range(6)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not (until_lost and self.lost):
            time.sleep(0.1)
        self.stop.set()
        for thread in threads:
            thread.join()
        with self.database.connect() as conn:
            there = self.objects.names()
            for (name,) in rows(conn, "select name from app.file"):
                if name not in there:
                    self.lost.add(name)


def is_lossy(database: Database, objects: Objects, is_careful: bool) -> bool:
    """Whether an application that writes objects first loses any."""
    prepare(database, objects, is_careful)
    runner = start_runner(database, objects)
    assert runner.stdout is not None
    # What nobody reads would fill the pipe, and stop the runner with its leases.
    said: list[str] = []
    reader = threading.Thread(target=lambda lines: said.extend(lines), args=[runner.stdout])
    reader.start()
    application = Application(database, objects)
    application.run(SECONDS if is_careful else 60, until_lost=not is_careful)
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(timeout=60) == 0, said[-20:]
    reader.join()
    assert application.uploads > 5
    with database.connect() as conn:
        deleted = value(conn, "select count(*) from gc.deletion_log")
    print(json.dumps({"uploads": application.uploads, "refused": application.refused,
                      "deleted": deleted, "lost": sorted(application.lost)}))
    assert deleted > (SECONDS / 10 if is_careful else 0), said[-20:]
    return bool(application.lost)


@pytest.mark.parametrize("kind", ["files", "google"])
def test_an_application_that_writes_objects_first_loses_none_to_a_careful_runner(
    database: Database, request: pytest.FixtureRequest, kind: str
) -> None:
    objects: Objects = request.getfixturevalue(kind)
    assert not is_lossy(database, objects, True)


def test_without_care_it_loses_some(database: Database, files: FileObjects) -> None:
    assert is_lossy(database, files, False)
