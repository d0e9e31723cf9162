"""What claiming and confirming cost: the runner against a bare loop over the same client."""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import ROOT, Comparison, Scale, connect, drop_database, new_database, ratios

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from stores import (  # noqa: E402
    AmazonObjects,
    AmazonServer,
    FileObjects,
    GoogleObjects,
    GoogleServer,
    Objects,
    environment_of,
)

import runner  # noqa: E402

DATABASE = "bench_deletes"
BATCH, THREADS = 1000, 16  # What the runner has by default.

SCHEMA = """
create extension blobgc;
create table file (id integer primary key, bytes bigint not null);
update gc.settings set jitter = '0';
"""

# Deletes objects by one request: the store, and the names of the objects in it.
Request = Callable[[runner.Store, list[str]], None]


def deletes(scale: Scale) -> Iterator[Comparison]:
    """Objects deleted a second by the runner, which claims tombstones, deletes their objects and
    confirms that, against a loop that knows the objects and does nothing but delete them. Both use
    the same client library with as many objects a request and 16 threads, in one process, one after
    the other; the runner counts from its first claim to its last confirm. A folder on disk
    (os.unlink), a bucket of SeaweedFS (boto3, delete_objects of 1,000) and a bucket of
    fake-gcs-server (google-cloud-storage, an object a request), all on this machine, beside the
    database and on the same cores. That every object is gone is checked after each side."""
    with connect(new_database(DATABASE)) as db:
        db.execute(SCHEMA.encode())
    try:
        with tempfile.TemporaryDirectory(prefix="blobgc_files.") as folder:
            yield compare("files", FileObjects(Path(folder)), unlink, scale.of(10_000, 3_000),
                          scale)
        with contextlib.closing(AmazonServer()) as amazon:
            yield compare("S3", straight(AmazonObjects(amazon)), delete_objects,
                          scale.of(5_000, 1_000), scale)
        with contextlib.closing(GoogleServer()) as google:
            yield compare("GCS", straight(GoogleObjects(google)), delete_blob,
                          scale.of(1_500, 300), scale)
    finally:
        drop_database(DATABASE)


def unlink(store: runner.Store, names: list[str]) -> None:
    for name in names:
        os.unlink(f"/{store.folder}{name}")


def delete_objects(store: runner.Store, names: list[str]) -> None:
    assert isinstance(store, runner.AmazonStore)
    wanted = [{"Key": store.folder + name} for name in names]
    store.client.delete_objects(Bucket=store.bucket, Delete={"Quiet": True, "Objects": wanted})


def delete_blob(store: runner.Store, names: list[str]) -> None:
    assert isinstance(store, runner.GoogleStore)
    bucket = store.client.bucket(store.bucket)
    for name in names:
        bucket.delete_blob(store.folder + name, timeout=store.timeout, retry=None)


def straight(objects: AmazonObjects | GoogleObjects) -> Objects:
    """To the server, not through the proxy that the tests need."""
    objects.close()
    server = f"http://127.0.0.1:{objects.proxy.upstream}"
    objects.environment = {
        name: server if value == objects.proxy.url else value
        for name, value in objects.environment.items()
    }
    if isinstance(objects, GoogleObjects):
        objects.upload_to = server
    return objects


def compare(what: str, objects: Objects, request: Request, count: int,
            scale: Scale) -> Comparison:
    """Rounds in which both sides delete as many objects of the same names."""
    by_loop, by_runner = [], []
    with environment_of(objects):
        for _ in range(scale.rounds):
            by_loop.append(count / loop_seconds(objects, request, count))
            by_runner.append(count / runner_seconds(objects, count))
    return Comparison(
        f"deletes a second by the runner, {what}", "a bare loop over the same client",
        ratios(by_runner, by_loop), at_least=0.8,
        figures=f"{statistics.median(by_runner):,.0f} and {statistics.median(by_loop):,.0f} "
                f"objects a second, {count:,} objects")


def fill(objects: Objects, count: int) -> list[str]:
    names = [str(number) for number in range(count)]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(objects.put, names))
    return names


def options(prefix: str) -> argparse.Namespace:
    """Those of the runner's command line."""
    return argparse.Namespace(
        command="run", dsn=f"dbname={DATABASE}", store=[prefix], once=True, batch=BATCH, lease=300,
        timeout=60, threads=THREADS, rate=float("inf"), worker="bench", bar=False, wait=30)


def loop_seconds(objects: Objects, request: Request, count: int) -> float:
    """With nothing but the client library."""
    names = fill(objects, count)
    store = runner.open_store(objects.prefix, options(objects.prefix))
    parts = [names[i:i + store.per_request] for i in range(0, count, store.per_request)]
    begin = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda part: request(store, part), parts))
    seconds = time.perf_counter() - begin
    assert not objects.names()
    return seconds


def runner_seconds(objects: Objects, count: int) -> float:
    """The same by tombstones."""
    fill(objects, count)
    bury(objects.prefix, count)
    at_work = runner.Runner(options(objects.prefix), threading.Event())
    begin = time.perf_counter()
    at_work.run()
    seconds = time.perf_counter() - begin
    assert at_work.counters["objects_deleted"] == count and not objects.names()
    return seconds


def bury(prefix: str, count: int) -> None:
    """Rows that stood for the objects, and are gone."""
    with connect(DATABASE) as db:
        db.execute("select gc.track('file', url => %s, size => 'bytes', condition => 'false')",
                   [f"'{prefix}' || id"])
        db.execute("insert into file select n, 1 from generate_series(0, %s - 1) as n", [count])
        db.execute("delete from file")
        db.execute("vacuum analyze gc.tombstones")
