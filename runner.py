"""Delete the objects whose rows blobgc has collected.

It asks the database what to delete, deletes it, says so, and sleeps until there is more. All policy
is in the database; only where to delete is said here: under the prefixes given with --store, and
nowhere else. The connection comes from libpq's variables (PGHOST, PGSERVICE, ...) or from --dsn.
"""

import argparse
import collections
import contextlib
import http.server
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from typing import Any, NamedTuple

import psycopg

SPEAKS = "0.1"  # The versions of the extension that this file is written for.
POLL = 0.5  # Seconds: how soon a signal is noticed, and how often we ask while something is due.
TOLERANCE, PAUSE = 10, 5.0  # A store that fails so often in a row is left alone, so many seconds.
DELETED, RELEASED = "deleted", "released"  # The fate of an object; any other is why it failed.
CALLS = {DELETED: "select gc.confirm(%s, %s)", RELEASED: "select gc.release(%s, %s)"}
GENERATIONS = {"file": "", "gs": r"|[1-9]\d*", "s3": ".*"}  # What a store can tell apart.
HINTS = {"3F000": "(create extension blobgc;)", "42883": "(alter extension blobgc update;)",
         "42501": "(select gc.grant_runner('the role');)"}  # What to do, by SQLSTATE.
log = logging.getLogger("blobgc")


class Unusable(Exception):
    """Why the runner cannot start and what to do about it, in one sentence."""


class Tombstone(NamedTuple):
    id: int
    url: str
    generation: str | None
    size: int | None


def reason(error: BaseException) -> str:
    """The same words for the same cause, because failures are reported together by reason."""
    root = error  # The first of its causes that is Python's own, not a library's.
    while type(root).__module__ != "builtins" and (cause := root.__cause__ or root.__context__):
        root = cause
    text = root.strerror if isinstance(root, OSError) and root.strerror else str(root)
    return re.sub(r"(DELETE|GET) \S+: |[\x00-\x1f]", "", f"{type(error).__name__}: {text}")[:500]


class Database:
    """One connection, made again when it is lost. Every call is a transaction of its own."""

    def __init__(self, dsn: str, stop: threading.Event) -> None:
        self.dsn, self.stop = dsn, stop
        self.connect()

    def connect(self) -> None:
        # PgBouncer in transaction mode knows no prepared statements. LISTEN does nothing there, and
        # no harm: the runner comes back when gc.next_due says.
        self.connection = psycopg.connect(self.dsn, autocommit=True, tcp_user_timeout=60_000,
                                          row_factory=psycopg.rows.dict_row, prepare_threshold=None)
        self.connection.add_notice_handler(lambda notice: log.warning(notice.message_primary))
        self.connection.execute("listen blobgc")

    def rows(self, query: str, *arguments: object) -> list[dict[str, Any]]:
        """Tries until it works: whatever the runner asks for may be asked for twice."""
        delay = 0.1
        while True:
            try:
                if self.connection.closed:
                    self.connect()
                return self.connection.execute(query.encode(), arguments).fetchall()
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                log.warning("no answer from the database, next try in %s s: %s", delay, error)
                if self.stop.wait(delay):
                    raise SystemExit(0) from error  # The leases end by themselves.
                delay = min(2 * delay, 10)

    def is_notified(self, seconds: float) -> bool:
        """Waits for somebody else to say that there is work."""
        try:
            return any(notify.pid != self.connection.info.backend_pid
                       for notify in self.connection.notifies(timeout=seconds, stop_after=1))
        except psycopg.Error:  # The next call makes the connection again.
            return self.stop.wait(seconds)

    def check(self) -> None:
        """Finds out whether all may be called that the runner calls: a batch of 0 is refused."""
        version = self.rows("select gc.version()")[0]["version"]
        if version.split(".")[:2] != SPEAKS.split("."):
            raise Unusable(f"the database has blobgc {version}: take the runner of that version")
        for call in (b"review(0)", b"claim('probe', 0)", b"confirm('probe', '{}')", b"next_due()",
                     b"fail('probe', '{}', '')", b"release('probe', '{}')", b"metrics limit 0"):
            with contextlib.suppress(psycopg.errors.InvalidParameterValue):
                self.connection.execute(b"select from gc." + call)


class Store:
    """A prefix under which objects may be deleted, and how the store is doing."""

    per_request = 1
    forbidden = {".", ".."}  # Parts of a key.

    def __init__(self, prefix: str, options: argparse.Namespace) -> None:
        self.prefix, self.timeout = prefix, options.timeout
        self.bucket, _, self.folder = prefix.partition("://")[2].partition("/")
        self.failures, self.paused_until, self.problem = 0, 0.0, ""

    def key(self, url: str) -> str:
        """The object's name in its bucket, as it stands there: %2e is three characters."""
        return self.folder + url[len(self.prefix):]

    def accepts(self, url: str, generation: str | None = None) -> bool:
        """Whether it is the address of an object under the prefix, whoever reads it."""
        parts = re.split(r"[/\\]", url[len(self.prefix):])
        return (url.startswith(self.prefix) and parts != [""] and not self.forbidden & set(parts)
                and re.fullmatch(GENERATIONS[url.partition(":")[0]], generation or "") is not None
                and len(self.key(url).encode()) <= 1024  # What GCS and S3 allow.
                and not re.search(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]", url))

    def delete(self, tombstones: list[Tombstone]) -> list[str]:
        """Deletes them by one request and returns the fate of each, or raises: that of all."""
        return ["refused: not an object that can be under any --store"] * len(tombstones)

    def pause_left(self) -> float:
        return max(self.paused_until - time.monotonic(), 0)

    def note(self, fates: list[str]) -> None:
        """A store that does nothing but fail is left alone for a while."""
        self.failures = 0 if DELETED in fates else self.failures + len(fates)
        if self.failures >= TOLERANCE and not self.pause_left():
            self.paused_until, self.problem = time.monotonic() + PAUSE, fates[0]
            log.warning("%s fails, next try in %s s: %s", self.prefix, PAUSE, self.problem)


class FileStore(Store):
    """A folder. It is walked by descriptors, so that no symbolic link leads out of it."""

    forbidden = {"", ".", ".."}  # Two slashes would give one file two addresses.

    def delete(self, tombstones: list[Tombstone]) -> list[str]:
        *folders, name = tombstones[0].url[len(self.prefix):].split("/")
        opened, how = [os.open(f"/{self.folder}", os.O_DIRECTORY)], os.O_DIRECTORY | os.O_NOFOLLOW
        try:
            with contextlib.suppress(FileNotFoundError):
                for folder in folders:
                    opened.append(os.open(folder, how, dir_fd=opened[-1]))
                os.unlink(name, dir_fd=opened[-1])
        finally:
            for descriptor in opened:
                os.close(descriptor)
        return [DELETED]


class GoogleStore(Store):
    """A bucket of Google Cloud Storage, or of an emulator (STORAGE_EMULATOR_HOST)."""

    def __init__(self, prefix: str, options: argparse.Namespace) -> None:
        super().__init__(prefix, options)
        self.errors = import_module("google.api_core.exceptions")
        self.client = import_module("google.cloud.storage").Client(project=None)
        adapter = import_module("requests.adapters").HTTPAdapter(pool_maxsize=options.threads)
        self.client._http.adapters.update({"https://": adapter, "http://": adapter})
        self.limits, self.is_seen = {"timeout": self.timeout, "retry": None}, False

    def delete(self, tombstones: list[Tombstone]) -> list[str]:
        version = int(tombstones[0].generation or 0) or None
        try:
            self.client.bucket(self.bucket).delete_blob(
                self.key(tombstones[0].url), if_generation_match=version, **self.limits)
        except self.errors.PreconditionFailed:
            pass  # What is there was uploaded later: the version that was meant is gone.
        except self.errors.NotFound:  # A success for an object, but not for the bucket.
            if not self.is_seen:
                with contextlib.suppress(self.errors.Forbidden):  # Not to be listed, but there.
                    list(self.client.list_blobs(self.bucket, max_results=1, **self.limits))
            self.is_seen = True
        return [DELETED]


class AmazonStore(Store):
    """A bucket of S3, or of a store that speaks like it (AWS_ENDPOINT_URL)."""

    per_request = 1000

    def __init__(self, prefix: str, options: argparse.Namespace) -> None:
        super().__init__(prefix, options)
        self.client = import_module("boto3").client("s3", config=import_module("botocore.config")
            .Config(connect_timeout=self.timeout, read_timeout=self.timeout,
                    max_pool_connections=options.threads, retries={"total_max_attempts": 1}))

    def delete(self, tombstones: list[Tombstone]) -> list[str]:
        answer = self.client.delete_objects(Bucket=self.bucket, Delete={"Quiet": True, "Objects": [
            {"Key": self.key(t.url)} | ({"VersionId": t.generation} if t.generation else {})
            for t in tombstones]})
        # A version that is not there is gone, as a key is. Versions of one key fail together.
        failed = {error["Key"]: f"{error['Code']}: {error.get('Message')}"
                  for error in answer.get("Errors", ())
                  if error["Code"] not in ("NoSuchKey", "NoSuchVersion")}
        return [failed.get(self.key(tombstone.url), DELETED) for tombstone in tombstones]


def open_store(prefix: str, options: argparse.Namespace) -> Store:
    """A prefix is a folder: gs://bucket/images does not reach into gs://bucket/images-2."""
    kinds = {"gs": (GoogleStore, "gcs"), "s3": (AmazonStore, "s3"), "file": (FileStore, "")}
    scheme, _, rest = prefix.partition("://")
    if scheme not in kinds or not rest or (scheme == "file") != rest.startswith("/"):
        raise Unusable(f"--store {prefix}: gs://bucket/dir/, s3://bucket/dir/ or file:///dir/")
    kind, extra = kinds[scheme]
    try:
        return kind(prefix.rstrip("/") + "/", options)
    except Exception as error:  # Or the library's own: no credentials, no region.
        hint = f": pip install 'blobgc[{extra}]'" if isinstance(error, ImportError) else ""
        raise Unusable(f"--store {prefix}: {reason(error)}{hint}") from error


class Runner:
    """Two loops, of which one reviews and one claims; threads that delete; one that confirms."""

    def __init__(self, options: argparse.Namespace, stop: threading.Event) -> None:
        self.options, self.stop = options, stop
        self.database, self.settling = (Database(options.dsn, stop) for _ in range(2))
        self.database.check()
        self.stores = [open_store(prefix, options) for prefix in options.store]
        self.pool, self.settler = ThreadPoolExecutor(options.threads), ThreadPoolExecutor(1)
        self.batches = collections.deque[tuple[int, Future[bool]]]()  # How many requests each.
        self.claim_size, self.next_claim = int(min(options.batch, max(options.rate, 1))), 0.0
        self.counters = collections.Counter[str]()
        self.crash: Exception | None = None
        self.whole = sum(row["due"] + row["tombstones_waiting"]
                         for row in self.database.rows("select * from gc.status()"))

    def run(self) -> None:
        """Until a signal comes, or with --once until nothing is due."""
        reviewer = threading.Thread(daemon=True, target=self.repeat, args=[
            self.review, Database(self.options.dsn, self.stop)])
        reviewer.start()
        self.repeat(self.delete, self.database)
        while self.batches:
            self.batches.popleft()[1].result()
        self.stop.set()
        reviewer.join(self.options.timeout)  # A long review ends in the database, without us.
        if self.crash:
            raise self.crash

    def repeat(self, step: Callable[[Database], bool], database: Database) -> None:
        """Drains what is due, then sleeps until there is more."""
        try:
            while not self.stop.is_set():
                if step(database):
                    self.draw()
                    continue
                due = database.rows("select gc.next_due() - now() as t")[0]["t"].total_seconds()
                if self.options.once and (due > 0 or self.all_fail()):
                    return
                any(self.stop.is_set() or database.is_notified(POLL)
                    for _ in range(int(max(due, POLL) / POLL)))
        except Exception as error:  # Both loops end with one.
            self.crash = error
            self.stop.set()

    def review(self, database: Database) -> bool:
        """A batch of each collection. Whether anything was due."""
        reviews = database.rows("select * from gc.review(%s)", self.options.batch)
        for row in reviews:
            log.log(logging.INFO if row["reviewed"] else logging.DEBUG, "%(collection)s: reviewed "
                    "%(reviewed)s, deleted %(deleted)s, kept %(kept)s, failed %(failed)s", row)
            self.counters.update({f"rows_{k}": row[k] for k in ("reviewed", "deleted", "failed")})
        if any(row["deleted"] for row in reviews):
            database.rows("select pg_notify('blobgc', '')")  # Whoever deletes need not sleep.
        return any(row["reviewed"] for row in reviews)

    def delete(self, database: Database) -> bool:
        """Claims ahead: one batch is claimed while another is deleted and a third confirmed."""
        has_room = len(self.batches) < 3 or sum(n for n, _ in self.batches) < self.options.threads
        may_claim = has_room and time.monotonic() >= self.next_claim and not self.all_fail()
        return (may_claim and self.claim(database)) or (
            bool(self.batches) and self.batches.popleft()[1].result())

    def all_fail(self) -> bool:
        return all(store.pause_left() for store in self.stores)

    def claim(self, database: Database) -> bool:
        """Hands out shares of a batch: a request each, or several, which costs less per object."""
        # The lease is counted from before the question; the database counts it from after.
        now, by_store = time.monotonic(), collections.defaultdict(list)
        for row in database.rows(
                "select id, url, generation, size from gc.claim(%s, %s, %s)", self.options.worker,
                self.claim_size, f"{self.options.lease} seconds"):
            takers = [o for o in self.stores if o.accepts(row["url"], row["generation"])]
            by_store[(takers or [Store("", self.options)])[0]].append(Tombstone(**row))
        batch = []
        for store, some in by_store.items():
            self.next_claim = max(self.next_claim, now - POLL) + len(some) / self.options.rate
            size = max(store.per_request, len(some) // self.options.threads // 4)
            for share in (some[i:i + size] for i in range(0, len(some), size)):
                batch.append((share, self.pool.submit(self.attempt, store, share, now)))
        self.batches.extend((len(b), self.settler.submit(self.settle, b)) for b in [batch] if b)
        return bool(batch)

    def attempt(self, store: Store, share: list[Tombstone], claimed: float) -> list[str]:
        """Request by request, in a thread of the pool. None in the second half of a lease."""
        fates: list[str] = []
        while some := share[len(fates):len(fates) + store.per_request]:
            if self.stop.is_set() or time.monotonic() >= claimed + self.options.lease / 2:
                fates += [RELEASED] * len(some)
            elif store.pause_left():
                fates += [f"not tried, because the store fails: {store.problem}"] * len(some)
            else:
                try:
                    answer = store.delete(some)
                except Exception as error:
                    answer = [reason(error)] * len(some)
                store.note(answer)
                fates += answer
        return fates

    def settle(self, batch: list[tuple[list[Tombstone], Future[list[str]]]]) -> bool:
        """Waits for a batch, and tells the database what came of it."""
        fates = collections.defaultdict(list)
        for tombstones, share in batch:
            for tombstone, fate in zip(tombstones, share.result(), strict=True):
                fates[fate].append(tombstone.id)
                what = fate if fate in CALLS else "failed"
                self.counters.update({f"objects_{what}": 1, f"bytes_{what}": tombstone.size or 0})
        for fate, ids in fates.items():
            arguments = [ids] if fate in CALLS else [ids, fate]
            call = CALLS.get(fate, "select gc.fail(%s, %s, %s)")
            self.settling.rows(call, self.options.worker, *arguments)
            log.log(logging.INFO if fate in CALLS else logging.WARNING,
                    "%(objects)s objects: %(fate)s", {"objects": len(ids), "fate": fate})
        return True

    def metrics(self) -> str:
        """For Prometheus: what this process has done, and what the database says."""
        lines = [f"# TYPE blobgc_runner_{what}_total counter\nblobgc_runner_{what}_total {count}"
                 for what, count in sorted(self.counters.copy().items())]
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.options.dsn) as connection:
            for name, kind, text, labels, value in connection.execute("table gc.metrics"):
                if not lines[-1:] or not lines[-1].startswith(f"{name}{{"):
                    lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
                lines.append(f"{name}{{{labels}}} {value}")
        return "\n".join(lines) + "\n"

    def draw(self) -> None:
        """A bar on the terminal. What was due at first is the whole; a row becomes an object."""
        done = self.counters
        steps = done["rows_reviewed"] + done["objects_deleted"] + done["objects_failed"]
        bar = "#" * min(30 * steps // max(self.whole + done["rows_deleted"], 1), 30)
        if self.options.bar:
            print(f"\r[{bar:30}] {done['rows_deleted']:,} rows, {done['objects_deleted']:,} "
                  f"objects, {done['bytes_deleted'] / 1e6:,.1f} MB", end="", file=sys.stderr)


def serve(runner: Runner, port: int) -> None:
    """Serves /metrics and /healthz until the process ends."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_ill = self.path == "/healthz" and runner.database.connection.closed
            text = runner.metrics() if self.path == "/metrics" else f"database: {not is_ill}\n"
            self.send_response(503 if is_ill else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *arguments: object) -> None:
            log.debug(format, *arguments)

    server = http.server.ThreadingHTTPServer(("", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = record.args if isinstance(record.args, dict) else {}
        return json.dumps({"time": self.formatTime(record), "level": record.levelname.lower(),
                           "message": record.getMessage(), **fields}, default=str)


def run(options: argparse.Namespace) -> int:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    if options.log_json:
        logging.getLogger().handlers[0].setFormatter(JsonFormatter())
    options.bar = options.once and sys.stderr.isatty() and not options.verbose
    log.setLevel("DEBUG" if options.verbose else "WARNING" if options.bar else "INFO")
    if min(options.batch, options.threads, options.rate) <= 0 or not (
            0 < 4 * options.timeout <= options.lease):
        raise Unusable("numbers must be positive, and --lease at least four times --timeout")
    stop = threading.Event()

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # A second one ends the process at once.
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    runner = Runner(options, stop)
    if options.metrics_port:
        serve(runner, options.metrics_port)
    runner.run()
    print(end="\n" if options.bar else "", file=sys.stderr)
    return 1 if options.once and runner.all_fail() else 0


def status(options: argparse.Namespace) -> int:
    for row in Database(options.dsn, threading.Event()).rows("select * from gc.status()"):
        print(*(f"{name:22} {row[name]}" for name in row if row[name] is not None), "", sep="\n")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="blobgc", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="review rows and delete objects")
    for command in (running, commands.add_parser("status", help="what gc.status() says")):
        command.add_argument("--dsn", default="", help="connection string or URL")
    add = running.add_argument
    add("--store", action="append", required=True, metavar="PREFIX", help="delete only under this")
    add("--once", action="store_true", help="end when nothing is due")
    add("--batch", type=int, default=1000, help="rows or objects at a time")
    add("--lease", type=float, default=300, help="seconds for which objects are claimed")
    add("--timeout", type=float, default=10, help="seconds for a request to a store")
    add("--threads", type=int, default=16, help="requests at a time")
    add("--rate", type=float, default=float("inf"), help="deletes a second, at most")
    add("--worker", default=f"{os.uname().nodename}-{os.getpid()}-{os.urandom(3).hex()}",
        help="a name that no other runner has")
    add("--metrics-port", type=int, help="serve /metrics and /healthz there")
    add("--log-json", action="store_true", help="log lines of JSON")
    add("-v", "--verbose", action="store_true", help="log more")
    options = parser.parse_args(arguments)
    try:
        return run(options) if options.command == "run" else status(options)
    except (Unusable, OSError, psycopg.Error) as error:
        hint = HINTS.get(getattr(error, "sqlstate", None) or "", "")
        print("blobgc:", str(error).partition("\n")[0], hint, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
