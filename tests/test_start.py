"""What keeps the runner from starting is said in one line, with the store's name, before any row is
reviewed; what may heal is waited for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import Cluster
from conftest import ROOT, Connection, NewDatabase, execute, rows, value, wait_until
from stores import AmazonObjects, AzureObjects, FileObjects, GoogleObjects, Objects, free_port
from test_crash import cluster
from worlds import (
    NewWorld,
    Process,
    World,
    collect,
    conn,
    crash_template,
    crash_world,
    file_world,
    new_world,
    start,
    template,
    tombstones,
    world,
)

__all__ = ["cluster", "conn", "crash_template", "crash_world", "file_world", "new_world",
           "template", "world"]


def said_by(world: World, *arguments: str, code: int = 2) -> str:
    """The one line that it says before it ends."""
    found, said = start(world, *arguments)
    assert found == code, said
    assert said.startswith("blobgc: ") and len(said.splitlines()) == 1, said
    return said


def nothing_was_reviewed(world: World) -> bool:
    with world.database.connect() as conn:
        return bool(value(conn, "select count(*) from app.file") == 1)


@pytest.fixture
def waiting_world(world: World) -> World:
    """A row is due, which must not be reviewed."""
    with world.database.connect() as conn:
        world.write(conn, range(1, 2))
    return world


# Stores


@pytest.mark.parametrize("prefix", ["s3:/bucket/x", "ftp://host/x", "/srv/files", "s3://b/../x"])
def test_a_wrong_prefix_is_said(file_world: World, prefix: str) -> None:
    said = said_by(file_world, "--store", prefix)
    assert f"--store {prefix}: it must be like one of az://container/dir/, file:///dir/" in said


def test_a_missing_bucket_is_said(waiting_world: World) -> None:
    objects = waiting_world.objects
    missing = objects.prefix.replace("/bucket-", "/no-bucket-").replace("/store/", "/no-store/")
    said = said_by(waiting_world, "--store", missing)
    assert f"--store {missing}: " in said
    for words in ("No such file or directory", "404 Not Found", "NoSuchBucket",
                  "container does not exist"):
        if words in said:
            break
    else:
        raise AssertionError(said)
    assert nothing_was_reviewed(waiting_world)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("kind", ["google", "amazon", "azure"])
def test_a_missing_right_to_delete_is_said(
    kind: str, status: int, request: pytest.FixtureRequest, new_world: NewWorld
) -> None:
    objects = request.getfixturevalue(kind)
    world = new_world(objects)
    with world.database.connect() as conn:
        world.write(conn, range(1, 2))
    objects.proxy.spares_probes, objects.proxy.fault = False, lambda: status
    assert f"--store {objects.prefix}: " in said_by(world, "--once")
    assert nothing_was_reviewed(world)


def test_a_wrong_key_is_said(new_world: NewWorld, azure: AzureObjects) -> None:
    world = new_world(azure)
    name, given = next(iter(azure.environment.items()))
    azure.environment = {name: given.replace("AccountKey=Eby8", "AccountKey=AAAA")}
    said = said_by(world)
    assert f"--store {azure.prefix}: " in said
    assert "403" in said


NO_CREDENTIALS = {
    "google": ["STORAGE_EMULATOR_HOST"], "amazon": ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
    "azure": ["AZURE_STORAGE_CONNECTION_STRING"],
}
WITHOUT = {
    "google": "default credentials were not found",
    "amazon": "Unable to locate credentials",
    "azure": "neither AZURE_STORAGE_CONNECTION_STRING nor AZURE_STORAGE_ACCOUNT is set",
}


@pytest.mark.parametrize("kind", NO_CREDENTIALS)
def test_missing_credentials_are_said(
    kind: str, request: pytest.FixtureRequest, new_world: NewWorld, tmp_path: Path
) -> None:
    objects = request.getfixturevalue(kind)
    world = new_world(objects)
    for name in NO_CREDENTIALS[kind]:
        del objects.environment[name]
    # Nor are there any at home, or where a virtual machine has them.
    objects.environment |= {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true",
                            "NO_GCE_CHECK": "true"}
    said = said_by(world)
    assert f"--store {objects.prefix}: " in said
    assert WITHOUT[kind] in said


@pytest.mark.skipif(os.getuid() == 0, reason="root may delete everywhere")
def test_a_folder_that_may_not_be_written_to_is_said(file_world: World, files: FileObjects) -> None:
    files.folder.chmod(0o500)
    assert "no right to delete files in this folder" in said_by(file_world)


@pytest.mark.parametrize("fault", [503, 429, "reset", "hang"])
def test_a_store_that_does_not_work_yet_is_waited_for(
    new_world: NewWorld, google: GoogleObjects, fault: int | str
) -> None:
    world = new_world(google)
    with world.database.connect() as conn:
        world.bury(conn, range(1, 4))
        google.proxy.spares_probes, google.proxy.fault = False, lambda: fault
        with Process(world, "--timeout", "0.5", "--lease", "5") as process:
            wait_until(lambda: google.proxy.requests > 1, "the store to be asked")
            google.proxy.fault = lambda: None
            wait_until(lambda: tombstones(conn) == 0, "the objects to go")
            said = process.terminate()
        assert f"{google.prefix} does not work yet: " in said


def test_the_probe_leaves_nothing_behind(world: World) -> None:
    collect(world)
    assert world.objects.names() == set()


def test_the_probe_leaves_no_version_and_no_marker(
    new_world: NewWorld, versioned_amazon: AmazonObjects
) -> None:
    collect(new_world(versioned_amazon))
    found = versioned_amazon.client.list_object_versions(
        Bucket=versioned_amazon.bucket, Prefix=versioned_amazon.folder)
    assert not found.get("DeleteMarkers")
    marker = f"{versioned_amazon.folder}.blobgc"
    assert {version["Key"] for version in found["Versions"]} == {marker}


# The database


def first_line(process: Process) -> str:
    """Waits for it."""
    assert process.process.stderr is not None
    return process.process.stderr.readline()


def test_a_database_that_is_not_there_yet_is_waited_for(
    crash_world: World, cluster: Cluster
) -> None:
    with crash_world.database.connect() as conn:
        crash_world.bury(conn, range(1, 4))
    cluster.stop()
    try:
        with Process(crash_world) as process:
            assert "no database yet, next try in 0.5 s: " in first_line(process)
            cluster.start()
            with crash_world.database.connect() as conn:
                wait_until(lambda: tombstones(conn) == 0, "the objects to go")
            process.terminate()
    finally:
        if not cluster.accepts():
            cluster.start()


def test_a_signal_ends_the_wait_for_a_database(file_world: World) -> None:
    with Process(file_world, "--dsn", "host=127.0.0.1 port=1") as process:
        assert "no database yet" in first_line(process)
        process.terminate(seconds=10)


@pytest.mark.parametrize("seconds", ["0", "2"])
def test_once_waits_for_a_database_as_long_as_it_is_told(file_world: World, seconds: str) -> None:
    begin = time.monotonic()
    code, said = start(file_world, "--once", "--wait", seconds, "--dsn", "host=127.0.0.1 port=1")
    assert code == 1, "it may work later"
    assert time.monotonic() - begin < 10
    assert said.splitlines()[-1].startswith("blobgc: no database: connection failed")


def test_a_database_or_role_that_does_not_exist_is_said_at_once(file_world: World) -> None:
    for dsn in ("dbname=nowhere_at_all", "user=nobody_at_all"):
        assert "nobody_at_all" in said_by(file_world, "--dsn", dsn) or dsn[:6] == "dbname"
        assert "does not exist" in said_by(file_world, "--dsn", dsn)


def test_a_database_without_blobgc_is_said(new_database: NewDatabase, files: FileObjects) -> None:
    said = said_by(World(new_database(), files))
    assert said == 'blobgc: schema "gc" does not exist (blobgc install)\n'


def test_a_python_without_libpq_is_said(file_world: World) -> None:
    """This implementation of psycopg is not installed, as libpq may not be."""
    environment = file_world.database.environment | {"PSYCOPG_IMPL": "c"}
    found = subprocess.run(
        [sys.executable, "-m", "blobgc", "run", "--store", file_world.objects.prefix], cwd=ROOT,
        env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert len(found.stderr.splitlines()) == 1
    assert "pip install 'psycopg[binary]', or install libpq" in found.stderr


# The rest


def test_a_port_that_is_taken_is_said_before_anything_is_done(waiting_world: World) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        said = said_by(waiting_world, "--metrics-port", str(port))
    assert f"--metrics-port {port}: OSError: Address already in use" in said
    assert nothing_was_reviewed(waiting_world)


def test_the_first_line_says_who_is_at_work_on_what(world: World, objects: Objects) -> None:
    first = collect(world).splitlines()[0]
    database = world.database
    assert "INFO blobgc 0.2.0, database " in first
    assert f'"{database.name}" at {database.host}:{database.port} as "{database.user}"' in first
    assert f"stores: {objects.prefix}" in first


def test_a_collection_that_is_blocked_is_said_and_is_no_success(
    file_world: World, conn: Connection
) -> None:
    file_world.write(conn, range(1, 2))
    execute(conn, "drop table app.post")
    rows(conn, "select gc.review()")
    said = collect(file_world, code=3)
    assert "file is left, because it cannot be reviewed: " in said
    assert value(conn, "select count(*) from app.file") == 1


def test_a_review_that_fails_is_no_success(file_world: World, conn: Connection) -> None:
    file_world.write(conn, range(1, 3))
    execute(conn, """
        create function app.refuse() returns trigger language plpgsql
            as $$ begin raise 'not this one'; end $$;
        create trigger refuse before delete on app.file
            for each row when (old.id = 1) execute function app.refuse();
        update gc.settings set backoff = '1 hour', backoff_limit = '1 hour'""")
    said = collect(file_world, code=1)
    assert "1 reviews failed, and are left for later" in said
    assert [row[0] for row in rows(conn, "select id from app.file")] == [1]
