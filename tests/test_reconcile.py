"""blobgc reconcile: what a store has and what the rows say, compared both ways."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Connection, Database, NewDatabase, NewRole, databases, rows, value
from stores import AmazonObjects, FileObjects, GoogleObjects, GoogleServer, Objects

from blobgc.cli import main

# Everything is due at once, and an object may be an orphan after a second.
SETUP = """
create extension blobgc;
create schema app;
create table app.file (name text primary key, bytes bigint);
update gc.settings set jitter = '0', undo = '0', brake_share = 1, orphan_grace = '1 second',
    upload_timeout = '1 second';
"""

# Set for the long forms: 20,000 objects in every kind of store.
IS_LONG = bool(os.environ.get("BLOBGC_LONG"))


class World:
    """A database whose files are objects of a store."""

    def __init__(self, database: Database, objects: Objects) -> None:
        self.database, self.objects = database, objects
        with database.connect() as conn:
            rows(conn, "select * from gc.track('app.file', url => %s, size => 'bytes', "
                 "collect => 'deleted')", f"'{objects.prefix}' || name")

    def insert(self, conn: Connection, *names: str) -> None:
        """Rows, with the size that objects have here: they contain their name."""
        conn.execute(
            "insert into app.file select u, octet_length(u) from unnest(%s::text[]) as u",
            [list(names)])

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "blobgc", command, "--store", self.objects.prefix, *arguments],
            env=self.database.environment | self.objects.environment, cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def say(self, command: str, *arguments: str, code: int = 0) -> str:
        process = self.start(command, *arguments)
        said, errors = process.communicate(timeout=300)
        assert process.returncode == code, (process.returncode, said, errors)
        return said

    def tell(self, *arguments: str, code: int = 5) -> tuple[str, str]:
        """blobgc reconcile in this process, which is quicker: what it prints, and its errors."""
        said, errors = io.StringIO(), io.StringIO()
        before = dict(os.environ)
        os.environ.update(self.database.environment | self.objects.environment)
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
                found = main(["reconcile", "--store", self.objects.prefix, *arguments])
        finally:
            os.environ.clear()
            os.environ.update(before)
        assert found == code, (found, said.getvalue(), errors.getvalue())
        return said.getvalue(), errors.getvalue()

    def reconcile(self, *arguments: str, code: int = 5) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.tell("--json", *arguments, code=code)[0])
        return found


def counts(report: dict[str, Any]) -> dict[str, int]:
    return {row["kind"]: row["number"] for row in report["differences"]}


def examples(report: dict[str, Any], kind: str, prefix: str) -> set[str]:
    found: set[str] = set()
    for row in report["differences"]:
        if row["kind"] == kind:
            found |= {url.removeprefix(prefix) for url in row["examples"]}
    return found


@pytest.fixture(scope="module")
def prepared() -> Iterator[str]:
    """A database that is ready but for the store; to copy it is quicker than to make it."""
    with databases() as make:
        made = make()
        made.psql(SETUP)
        yield made.name


@pytest.fixture
def new_database(new_database: NewDatabase, prepared: str) -> NewDatabase:
    return lambda: new_database(template=prepared)


@pytest.fixture
def world(new_database: NewDatabase, objects: Objects) -> World:
    return World(new_database(), objects)


@pytest.fixture
def folder(new_database: NewDatabase, files: FileObjects) -> World:
    return World(new_database(), files)


def test_orphans_and_rows_without_an_object_are_told_and_nothing_is_changed(world: World) -> None:
    names = ["same", "deep/er/same", "with space", "ünïcode", "per%2ecent"]
    lost = ["orphan", "deep/orphan", "orphan\" \u00fc"]
    for name in names + lost:
        world.objects.put(name)
    world.objects.put("longer")
    with world.database.connect() as conn:
        world.insert(conn, *names, "missing", "deep/missing")
        conn.execute("insert into app.file values ('longer', 3)")
        before = world.objects.names()
        time.sleep(2.2)
        report = world.reconcile()
        assert report["objects"] == 9
        assert counts(report) == {"missing": 2, "size": 1, "orphan": 3}
        assert examples(report, "orphan", world.objects.prefix) == set(lost)
        assert examples(report, "missing", world.objects.prefix) == {"missing", "deep/missing"}
        assert world.objects.names() == before
        assert value(conn, "select count(*) from gc.tombstones") == 0

        # Adopted, they go the way of all tombstones.
        assert world.reconcile("--adopt")["adopted"] == 3
        assert world.objects.names() == before
        assert counts(world.reconcile()) == {"missing": 2, "size": 1}, "they are known by now"
        world.say("run", "--once")
        assert world.objects.names() == before - set(lost)
        assert value(conn, "select count(*) from gc.deletion_log where event = 'reconcile'") == 3


def test_an_object_younger_than_the_grace_by_the_stores_clock_is_no_orphan(world: World) -> None:
    world.objects.put("fresh")
    with world.database.connect() as conn:
        conn.execute("update gc.settings set orphan_grace = '1 hour'")
    report = world.reconcile("--adopt", code=0)
    assert counts(report) == {"young": 1} and report["adopted"] == 0
    world.say("run", "--once")
    assert world.objects.names() == {"fresh"}


def test_orphans_are_moved_to_the_quarantine(world: World) -> None:
    for name in ("kept", "orphan", "deep/orphan"):
        world.objects.put(name)
    with world.database.connect() as conn:
        world.insert(conn, "kept")
        time.sleep(2.2)
        report = world.reconcile("--quarantine", code=0)
        assert (report["quarantined"], report["failed"]) == (2, 0)
        moved = {".blobgc-quarantine/orphan", ".blobgc-quarantine/deep/orphan"}
        assert world.objects.names() == {"kept"} | moved
        world.say("run", "--once")
        assert value(conn, "select count(*) from gc.tombstones") == 0
    assert world.objects.names() == {"kept"} | moved, "nothing of a quarantine is an orphan"
    assert counts(world.reconcile("--adopt", code=0)) == {}


def test_nothing_is_moved_in_the_bucket_of_another_database(folder: World) -> None:
    folder.objects.put("orphan")
    folder.objects.put(".blobgc")
    time.sleep(1.1)
    _, errors = folder.tell("--quarantine", code=1)
    assert "nothing is moved here: what stands there is no marker" in errors
    assert folder.objects.names() == {"orphan"}
    with folder.database.connect() as conn:
        assert value(conn, "select count(*) from gc.tombstones") == 0, "nothing is adopted either"
        conn.execute("select gc.adopt(%s)", [folder.objects.prefix])
    assert folder.reconcile("--quarantine", code=0)["quarantined"] == 1


def test_what_is_under_the_marker_of_another_database_is_left_alone(folder: World) -> None:
    for name in ("orphan", "theirs/.blobgc", "theirs/x", "theirs/deep/y"):
        folder.objects.put(name)
    time.sleep(1.1)
    report = folder.reconcile("--adopt", code=0)
    assert counts(report) == {"orphan": 1, "foreign": 2} and report["adopted"] == 1
    folder.say("run", "--once")
    assert folder.objects.names() == {"theirs/x", "theirs/deep/y"}


def test_what_was_adopted_can_be_taken_back(folder: World) -> None:
    folder.objects.put("orphan")
    time.sleep(1.1)
    with folder.database.connect() as conn:
        conn.execute("update gc.settings set undo = '1 hour'")
        assert folder.reconcile("--adopt", code=0)["adopted"] == 1
        folder.say("run", "--once")
        assert folder.objects.names() == {"orphan"}, "the undo window"
        assert folder.reconcile("--undo", code=0)["disowned"] == 1
        assert value(conn, "select count(*) from gc.tombstones") == 0
        assert rows(conn, "select operation from gc.operations order by id") == [
            ("adopt",), ("disown",)]


def test_a_row_that_is_inserted_after_the_adoption_keeps_its_object(folder: World) -> None:
    for name in ("orphan", "found"):
        folder.objects.put(name)
    time.sleep(1.1)
    folder.reconcile("--adopt", code=0)
    with folder.database.connect() as conn:
        folder.insert(conn, "found")
    folder.say("run", "--once")
    assert folder.objects.names() == {"found"}


def test_the_brake_stops_adopted_orphans(folder: World) -> None:
    for number in range(20):
        folder.objects.put(f"orphan-{number}")
    time.sleep(1.1)
    with folder.database.connect() as conn:
        conn.execute("update gc.settings set brake_share = 0.1, brake_rows = 5")
        folder.reconcile("--adopt", code=0)
        folder.say("run", "--once", "--wait", "1")
        assert len(folder.objects.names()) == 15
        assert rows(conn, "select what, paused_by from gc.pauses") == [("deletes", "the brake")]
        conn.execute("select gc.resume('file', allow => 20)")
        folder.say("run", "--once")
        assert folder.objects.names() == set()


# The name of the object, and how the row spells it.
SPELLINGS = [
    ("a/b", "a//b"), ("a/b", "a%2Fb"), ("a/b", "a%252fb"), ("A/B", "a/b"), ("a/b", "a/./b"),
    ("a/b", "a\\b"), ("a/b", "/a/b"), ("a b", "a+b"), ("a b", "a%20b"),
    ("caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9")),
    ("a/b", "a/b/"), ("a", "a."), ("\u212b", "\u00c5"), ("ﬁle", "file"), ("STRASSE", "stra%73se"),
]


def test_a_row_of_another_spelling_makes_its_object_no_orphan(folder: World) -> None:
    folder.objects.put("orphan")
    with folder.database.connect() as conn:
        for number, (name, spelled) in enumerate(SPELLINGS):
            folder.objects.put(f"{number}/{name}")
            folder.insert(conn, f"{number}/{spelled}")
    time.sleep(1.1)
    report = folder.reconcile("--adopt", "--samples", "100")
    assert examples(report, "orphan", folder.objects.prefix) == {"orphan"}
    assert examples(report, "doubtful", folder.objects.prefix) == {
        f"{number}/{name}" for number, (name, _) in enumerate(SPELLINGS)}


def test_a_row_that_spells_the_prefix_differently_makes_its_object_no_orphan(
    folder: World
) -> None:
    folder.objects.put("x")
    time.sleep(1.1)
    with folder.database.connect() as conn:
        rows(conn, "select * from gc.track('app.file', url => 'name', collect => 'deleted')")
        conn.execute("insert into app.file values (%s, 1)",
                     [folder.objects.prefix.replace("/store/", "//Store/") + "x"])
    assert counts(folder.reconcile("--adopt", code=0)) == {"doubtful": 1}


def test_what_no_collection_could_have_is_left_alone(folder: World) -> None:
    folder.objects.put("inside/orphan")
    folder.objects.put("outside/thing")
    folder.objects.put(".blobgc-quarantine/thing")
    time.sleep(1.1)
    with folder.database.connect() as conn:
        rows(conn, "select * from gc.track('app.file', url => %s, collect => 'deleted')",
             f"'{folder.objects.prefix}inside/' || name")
    report = folder.reconcile("--adopt", code=0)
    assert counts(report) == {"orphan": 1, "elsewhere": 1} and report["adopted"] == 1
    folder.say("run", "--once")
    assert folder.objects.names() == {"outside/thing", ".blobgc-quarantine/thing"}


def test_a_symbolic_link_is_no_orphan(folder: World, files: FileObjects, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_text("x")
    (files.folder / "link").symlink_to(tmp_path / "elsewhere")
    (files.folder / "file").symlink_to(tmp_path / "elsewhere" / "x")
    time.sleep(1.1)
    assert counts(folder.reconcile("--adopt", code=0)) == {}


def test_names_that_are_no_text_and_control_characters_are_never_printed_raw(
    folder: World, files: FileObjects
) -> None:
    for name in (b"esc\x1b[2J", b"tab\tnew\nline", b"back\\slash", b"latin\xe9"):
        Path(os.fsdecode(bytes(files.folder) + b"/" + name)).write_text("x")
    time.sleep(1.1)
    said, _ = folder.tell(code=0)
    assert "\x1b" not in said and "\t" not in said
    assert "1 objects whose names are no text" in said
    assert "3 objects that may belong to a row of another spelling" in said


def test_a_listing_that_failed_is_not_compared_and_goes_on(
    new_database: NewDatabase, amazon: AmazonObjects
) -> None:
    world = World(new_database(), amazon)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(amazon.put, [f"{number:04}" for number in range(1050)]))
    time.sleep(2.2)
    with world.database.connect() as conn:
        world.insert(conn, *(f"{number:04}" for number in range(1000)))
        amazon.proxy.fault_of_read = (
            lambda path: 503 if "continuation-token" in path else None)
        assert "could not be listed" in world.tell("--adopt", code=1)[1]
        amazon.proxy.fault_of_read = lambda path: None
        assert rows(conn, "select completed_at from gc.listings") == [(None,)]
        assert value(conn, "select count(*) from gc.tombstones") == 0
        with pytest.raises(Exception, match="not complete"):
            rows(conn, "select gc.compare(id) from gc.listings")
        with pytest.raises(Exception, match="not complete"):
            rows(conn, "select gc.end_listing(id) from gc.listings")
        report = world.reconcile()
        assert report["objects"] == 1050 and counts(report) == {"orphan": 50}
        assert report["listing"] == 1, "it went on"


def test_a_listing_goes_on_after_kill_9(folder: World) -> None:
    for number in range(300):
        folder.objects.put(f"{number % 30}/{number}")
    time.sleep(1.1)
    process = folder.start("reconcile", "--threads", "1")
    with folder.database.connect() as conn:
        while not rows(conn, "select from gc.listing_parts where finished"):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.communicate()
        conn.execute("update gc.listings set completed_at = null, compared_at = null")
        conn.execute("update gc.listing_parts set finished = false where part > 5")
        report = folder.reconcile()
    assert report["objects"] == 300 and counts(report) == {"orphan": 300}


def test_an_empty_folder_tells_of_all_rows_and_a_missing_one_of_none(
    folder: World, files: FileObjects
) -> None:
    with folder.database.connect() as conn:
        folder.insert(conn, "a", "b")
    assert counts(folder.reconcile()) == {"missing": 2}
    files.folder.rmdir()
    assert "No such file or directory" in folder.tell(code=2)[1]


@pytest.mark.parametrize("kind", ["amazon", "google", "azure"])
def test_a_bucket_that_is_not_there_is_one_line(
    new_database: NewDatabase, request: pytest.FixtureRequest, kind: str
) -> None:
    objects: Objects = request.getfixturevalue(kind)
    world = World(new_database(), objects)
    objects.prefix = objects.prefix.replace("/bucket-", "/no-bucket-")
    _, errors = world.tell(code=1)
    assert errors.startswith(f"blobgc: {objects.prefix}: ") and errors.count("\n") == 1


def test_only_a_reconciler_may_adopt(folder: World, new_role: NewRole) -> None:
    folder.objects.put("orphan")
    time.sleep(1.1)
    for grant, code in (("runner", 2), ("operator", 2), ("reconciler", 5)):
        role = new_role(grant)
        with folder.database.connect() as conn:
            conn.execute(f"select gc.grant_{grant}('{role}')".encode())
        process = subprocess.run(
            [sys.executable, "-m", "blobgc", "reconcile", "--store", folder.objects.prefix],
            env=folder.database.environment | {"PGUSER": role}, cwd=ROOT, capture_output=True,
            text=True, check=False)
        assert process.returncode == code, (grant, process.stdout, process.stderr)
        if code == 2:
            assert "gc.grant_reconciler" in process.stderr
        with folder.database.connect() as conn:
            conn.execute(f"drop owned by {role}".encode())


def test_leftovers_of_uploads_in_parts_are_told(
    new_database: NewDatabase, amazon: AmazonObjects
) -> None:
    world = World(new_database(), amazon)
    amazon.client.create_multipart_upload(Bucket=amazon.bucket, Key=amazon.folder + "half")
    report = world.reconcile(code=0)
    assert report["leftovers"]["number"] == 1
    assert report["leftovers"]["examples"] == [amazon.prefix + "half"]
    assert "1 uploads in parts that nobody has finished" in world.tell(code=0)[0]


def push(world: World, stop: threading.Event, offset: int, is_object_first: bool) -> list[str]:
    """Writes objects and rows, in one order or the other, until it is stopped."""
    pushed: list[str] = []
    with world.database.connect() as conn:
        while not stop.is_set():
            name = f"{offset % 7}/pushed-{offset}-{len(pushed)}"
            if is_object_first:
                world.objects.put(name)
            world.insert(conn, name)
            if not is_object_first:
                world.objects.put(name)
            pushed.append(name)
            time.sleep(0.005)
    return pushed


def drain(world: World) -> None:
    """Runs until nothing is left. Azurite refuses some requests if there are many, and those are
    tried again later."""
    errors = ""
    for _ in range(5):
        process = world.start("run", "--once", "--timeout", "70")
        _, errors = process.communicate(timeout=300)
        print(errors)
        if process.returncode == 0:
            return
        with world.database.connect() as conn:
            conn.execute("update gc.tombstones set due_at = now() where worker is null")
    raise AssertionError(errors)


def reconcile_while_pushing(world: World, total: int, write: Callable[[list[str]], None]) -> None:
    """A quarter of the objects has no row, and a fortieth as many rows have no object."""
    lost = {f"{number % 50}/lost-{number}" for number in range(total // 4)}
    kept = {f"{number % 50}/kept-{number}" for number in range(total - total // 4)}
    gone = {f"{number % 50}/gone-{number}" for number in range(total // 40)}
    write(sorted(kept | lost))
    with world.database.connect() as conn:
        world.insert(conn, *kept, *gone)
    time.sleep(2.2)
    stop = threading.Event()
    pushed: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        pushers = [pool.submit(push, world, stop, offset, offset == 0) for offset in range(2)]
        try:
            report = world.reconcile("--adopt", "--samples", str(total))
        finally:
            stop.set()
    for pusher in pushers:
        pushed += pusher.result()
    assert len(pushed) > 5
    found = counts(report)
    assert (found["orphan"], found["missing"]) == (len(lost), len(gone))
    assert set(found) <= {"orphan", "missing", "young"}
    assert examples(report, "orphan", world.objects.prefix) == lost
    assert examples(report, "missing", world.objects.prefix) == gone
    assert report["adopted"] == len(lost)
    drain(world)
    assert world.objects.names() == kept | set(pushed)


def test_files_are_reconciled_while_others_are_pushed(
    folder: World, files: FileObjects
) -> None:
    def write(names: list[str]) -> None:
        for number in range(50):
            (files.folder / str(number)).mkdir()
        for name in names:
            (files.folder / name).write_text(name)

    reconcile_while_pushing(folder, 20_000 if IS_LONG else 4_000, write)


@pytest.mark.parametrize("kind", ["amazon", "google", "azure"])
def test_objects_are_reconciled_while_others_are_pushed(
    new_database: NewDatabase, request: pytest.FixtureRequest, kind: str
) -> None:
    objects: Objects = request.getfixturevalue(kind)
    if isinstance(objects, GoogleObjects):
        objects.upload_to = objects.server.url

    def write(names: list[str]) -> None:
        for name in names:
            objects.put(name)

    reconcile_while_pushing(World(new_database(), objects), 20_000 if IS_LONG else 400, write)


def test_versions_under_a_delete_marker_are_brought_back(
    new_database: NewDatabase, versioned_amazon: AmazonObjects
) -> None:
    world = World(new_database(), versioned_amazon)
    for name in ("deleted", "longer", "kept"):
        versioned_amazon.put(name)
    for name in ("deleted", "longer"):
        versioned_amazon.client.delete_object(
            Bucket=versioned_amazon.bucket, Key=versioned_amazon.folder + name)
    with world.database.connect() as conn:
        world.insert(conn, "deleted", "kept", "never")
        conn.execute("insert into app.file values ('longer', 1)")
    assert counts(world.reconcile()) == {"missing": 3}
    assert json.loads(world.say("revive", "--dry-run", "--json", code=5))["objects"] == {
        "revived": 1, "gone": 1, "other size": 1}
    assert versioned_amazon.names() == {"kept"}
    said = world.say("revive", code=5)
    assert "1 objects were brought back" in said and "1 objects are gone for good" in said
    assert versioned_amazon.names() == {"deleted", "kept"}
    assert counts(world.reconcile()) == {"missing": 2}


def test_noncurrent_versions_of_google_are_brought_back(new_database: NewDatabase) -> None:
    server = GoogleServer(has_versions=True)
    try:
        objects = GoogleObjects(server, has_versions=True)
        world = World(new_database(), objects)
        objects.put("deleted")
        deleted = objects.session.delete(
            f"{server.url}/storage/v1/b/{objects.bucket}/o/things%2Fdeleted")
        deleted.raise_for_status()
        with world.database.connect() as conn:
            world.insert(conn, "deleted", "never")
        assert counts(world.reconcile()) == {"missing": 2}
        report = json.loads(world.say("revive", "--json", code=5))
        assert report["objects"] == {"revived": 1, "gone": 1}
        assert objects.names() == {"deleted"}
    finally:
        server.close()
