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
    AzureObjects,
    AzureServer,
    FileObjects,
    GoogleObjects,
    GoogleServer,
    Objects,
    environment_of,
)

import blobgc.stores  # noqa: E402
from blobgc import runner  # noqa: E402
from blobgc.cli import make_parser  # noqa: E402
from blobgc.stores.azure import AzureStore  # noqa: E402
from blobgc.stores.base import Store  # noqa: E402
from blobgc.stores.gcs import GoogleStore  # noqa: E402
from blobgc.stores.s3 import AmazonStore  # noqa: E402

DATABASE = "bench_deletes"
THREADS = 16  # What the runner has by default, but for files.

SCHEMA = """
create extension blobgc;
create table file (id integer primary key, bytes bigint not null);
update gc.settings set jitter = '0', undo = '0', brake_share = 1;
"""

# Deletes objects by one request: the store, and the names of the objects in it.
Request = Callable[[Store, list[str]], None]


def deletes(scale: Scale) -> Iterator[Comparison]:
    """Objects deleted a second by the runner, which claims tombstones, deletes their objects and
    confirms that, against a loop that knows the objects and does nothing but delete them. Both use
    the same client library with as many objects a request and 16 threads, in one process, one after
    the other; the runner counts from its first claim to its last confirm. A folder on disk
    (os.unlink), a bucket of SeaweedFS (boto3, delete_objects of 1,000), one of fake-gcs-server
    (google-cloud-storage, batches of 100, through a proxy in this process that splits them) and a
    container of Azurite (azure-storage-blob, batches of 256), all on this machine, beside the
    database and on the same cores. That every object is gone is checked after each side. Then GCS
    over a link on which each request takes 20 ms longer: the runner against requests of one object,
    one after the other, and 16 at a time. What the emulator and the proxy need for an object is the
    same on each side, and most of what the runner's side takes."""
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
            yield compare("GCS", GoogleObjects(google), delete_batch, scale.of(1_500, 300), scale)
            yield from over_a_link(GoogleObjects(google), scale.of(1_000, 300), scale)
        with contextlib.closing(AzureServer()) as azure:
            yield compare("Azure", straight(AzureObjects(azure)), delete_blobs,
                          scale.of(2_000, 500), scale)
    finally:
        drop_database(DATABASE)


def unlink(store: Store, names: list[str]) -> None:
    for name in names:
        os.unlink(f"/{store.folder}{name}")


def delete_objects(store: Store, names: list[str]) -> None:
    assert isinstance(store, AmazonStore)
    wanted = [{"Key": store.folder + name} for name in names]
    store.client.delete_objects(Bucket=store.bucket, Delete={"Quiet": True, "Objects": wanted})


def delete_batch(store: Store, names: list[str]) -> None:
    assert isinstance(store, GoogleStore)
    bucket = store.client.bucket(store.bucket)
    with store.client.batch():
        for name in names:
            bucket.delete_blob(store.folder + name, timeout=store.timeout, retry=None)


def delete_one(store: Store, names: list[str]) -> None:
    assert isinstance(store, GoogleStore)
    store.client.bucket(store.bucket).delete_blob(
        store.folder + names[0], timeout=store.timeout, retry=None)


def delete_blobs(store: Store, names: list[str]) -> None:
    assert isinstance(store, AzureStore)
    list(store.client.delete_blobs(*(store.folder + name for name in names)))


def straight(objects: AmazonObjects | AzureObjects) -> Objects:
    """To the server, not through the proxy that the tests need."""
    objects.close()
    server = f"http://127.0.0.1:{objects.proxy.upstream}"
    objects.environment = {
        name: value.replace(objects.proxy.url, server)
        for name, value in objects.environment.items()
    }
    return objects


def over_a_link(objects: GoogleObjects, count: int, scale: Scale) -> Iterator[Comparison]:
    objects.upload_to = objects.server.url
    objects.proxy.delay = 0.02
    for threads, how, aim in ((1, "one after the other", 5), (THREADS, "16 at a time", None)):
        by_loop, by_runner = [], []
        with environment_of(objects):
            for _ in range(scale.rounds):
                by_loop.append(count / loop_seconds(objects, delete_one, count, 1, threads))
                by_runner.append(count / runner_seconds(objects, count))
        yield Comparison(
            "deletes a second by the runner, GCS over a link of 20 ms",
            f"an object a request, {how}", ratios(by_runner, by_loop), at_least=aim,
            figures=f"{statistics.median(by_runner):,.0f} and {statistics.median(by_loop):,.0f} "
                    f"objects a second, {count:,} objects")


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
    """Those of the runner's command line; none but these differ from what it has by default."""
    return make_parser().parse_args([
        "run", "--dsn", f"dbname={DATABASE}", "--store", prefix, "--once", "--timeout", "60",
        "--worker", "bench"])


def loop_seconds(objects: Objects, request: Request, count: int, per_request: int | None = None,
                 threads: int = THREADS) -> float:
    """With nothing but the client library."""
    names = fill(objects, count)
    store = blobgc.stores.open_store(objects.prefix, options(objects.prefix))
    size = per_request or store.per_request
    parts = [names[i:i + size] for i in range(0, count, size)]
    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: request(store, part), parts))
    seconds = time.perf_counter() - begin
    assert not objects.names()
    return seconds


class Timed(runner.Runner):
    """Notes when it first claimed, and when it last told the database something."""

    begun = ended = 0.0

    def claim(self, store: Store) -> bool:
        self.begun = self.begun or time.perf_counter()
        return super().claim(store)

    def tell(self, call: str, ids: list[int], *arguments: str) -> None:
        super().tell(call, ids, *arguments)
        self.ended = time.perf_counter()


def runner_seconds(objects: Objects, count: int) -> float:
    """The same by tombstones."""
    fill(objects, count)
    bury(objects.prefix, count)
    at_work = Timed(options(objects.prefix), threading.Event())
    at_work.run()
    assert at_work.counters["objects_deleted"] == count and not objects.names()
    return at_work.ended - at_work.begun


def bury(prefix: str, count: int) -> None:
    """Rows that stood for the objects, and are gone."""
    with connect(DATABASE) as db:
        db.execute("select gc.track('file', url => %s, size => 'bytes', condition => 'false')",
                   [f"'{prefix}' || id"])
        db.execute("insert into file select n, 1 from generate_series(0, %s - 1) as n", [count])
        db.execute("delete from file")
        db.execute("vacuum analyze gc.tombstones")
