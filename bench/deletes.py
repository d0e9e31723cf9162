"""What the runner costs: its deletes a second against those of a bare loop, as ratios.

Both use the same client library, batch and threads against the same server, one after the other;
rounds alternate. The runner claims and confirms all the while, the bare loop knows its objects.

Run it with: make install && tests/with_server .venv/bin/python bench/deletes.py
"""

import argparse
import concurrent.futures
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from stores import (  # noqa: E402
    AmazonObjects,
    AmazonServer,
    GoogleObjects,
    GoogleServer,
    Objects,
    environment_of,
)

import runner  # noqa: E402

SCHEMA = """
create extension if not exists blobgc;
create table if not exists file (id integer primary key, bytes bigint);
update gc.settings set jitter = '0';
"""


def fill(objects: Objects, count: int) -> list[str]:
    names = [str(number) for number in range(count)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(objects.put, names))
    return names


def delete_barely(store: runner.Store, names: list[str], threads: int) -> float:
    """Deletes a second, with nothing but the client library."""
    client: Any = getattr(store, "client")  # noqa: B009
    keys = [store.folder + name for name in names]
    if isinstance(store, runner.GoogleStore):
        bucket = client.bucket(store.bucket)
        work: list[Any] = keys

        def delete(key: Any) -> None:
            bucket.delete_blob(key, timeout=10, retry=None)
    else:
        work = [keys[i:i + 1000] for i in range(0, len(keys), 1000)]

        def delete(key: Any) -> None:
            wanted = [{"Key": one} for one in key]
            client.delete_objects(Bucket=store.bucket, Delete={"Quiet": True, "Objects": wanted})

    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(delete, work))
    return len(names) / (time.monotonic() - start)


def delete_by_runner(prefix: str, names: list[str], threads: int) -> float:
    """Deletes a second, from the first claim to the last confirm."""
    with psycopg.connect(autocommit=True) as conn:
        conn.execute("select gc.untrack('file') from gc.collections where name = 'file'")
        conn.execute("select gc.track('file', url => %s, size => 'bytes')", [f"'{prefix}' || id"])
        conn.execute("insert into file select n, 1 from generate_series(0, %s) as n",
                     [len(names) - 1])
        conn.execute("delete from file")
        conn.execute("analyze gc.tombstones")
    options = argparse.Namespace(
        command="run", dsn="", store=[prefix], once=True, batch=1000, lease=300, timeout=10,
        threads=threads, rate=float("inf"), worker="bench", bar=False)
    at_work = runner.Runner(options, threading.Event())
    start = time.monotonic()
    at_work.run()
    took = time.monotonic() - start
    assert at_work.counters["objects_deleted"] == len(names)
    return len(names) / took


def go_straight(objects: GoogleObjects | AmazonObjects) -> None:
    """To the server, not through the proxy that the tests need."""
    server = f"http://127.0.0.1:{objects.proxy.upstream}"
    objects.environment = {
        name: server if value == objects.proxy.url else value
        for name, value in objects.environment.items()
    }
    if isinstance(objects, GoogleObjects):
        objects.upload_to = server


def measure(name: str, new: Callable[[], GoogleObjects | AmazonObjects], count: int, rounds: int,
            threads: int) -> None:
    ratios = []
    for _ in range(rounds):
        objects = new()
        go_straight(objects)
        with environment_of(objects):
            options = argparse.Namespace(timeout=10, threads=threads)
            store = runner.open_store(objects.prefix, options)
            barely = delete_barely(store, fill(objects, count), threads)
            by_runner = delete_by_runner(objects.prefix, fill(objects, count), threads)
        ratios.append(by_runner / barely)
        print(f"{name}: bare loop {barely:,.0f}/s, runner {by_runner:,.0f}/s", flush=True)
    print(f"{name}: ratio {statistics.median(ratios):.2f} (median of {rounds} rounds)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args()
    with psycopg.connect(autocommit=True) as conn:
        conn.execute(SCHEMA.encode())
    sizes = options.objects, options.rounds, options.threads
    google = GoogleServer()
    try:
        measure("gs", lambda: GoogleObjects(google), *sizes)
    finally:
        google.close()
    amazon = AmazonServer()
    try:
        measure("s3", lambda: AmazonObjects(amazon), *sizes)
    finally:
        amazon.close()


if __name__ == "__main__":
    main()
