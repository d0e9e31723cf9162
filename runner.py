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
import math
import os
import re
import signal
import socket
import socketserver
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, NamedTuple

import psycopg

SPEAKS = "0.1"  # The versions of the extension that this file is written for.
POLL = 0.5  # Seconds: how soon a signal is noticed, and how often we ask while something is due.
TOLERANCE, PAUSE = 10, 5.0  # A store that fails so often in a row is left alone, so many seconds.
MANY_REASONS = 10  # Failures of a batch are reported by reason; the rarest beyond these together.
LOOK_ELSEWHERE, REPEAT_WARNING = 5.0, 60.0  # Seconds, until the next look and the same warning.
METRICS_AGE = 5.0  # Seconds for which an answer to /metrics is good.
METRICS_CLIENTS, METRICS_PATIENCE = 16, 5.0  # Who has asked, or not yet; seconds for each step.
STEP_BACK = 2.0  # Seconds: --once looks again when something is due that soon.
DELETED, RELEASED = "deleted", "released"  # The fate of an object; any other is why it failed.
REFUSED = "refused: the address or generation leads elsewhere, or has another spelling"
HINTS = {"3F000": "(create extension blobgc;)", "42883": "(alter extension blobgc update;)",
         "42501": "(select gc.grant_runner('the role');)"}  # What to do, by SQLSTATE.
SUCCESS, FAILED, UNUSABLE, HELD_UP, NOT_OURS = 0, 1, 2, 3, 4  # How the process ends.
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
        self.connection = psycopg.connect(
            self.dsn, autocommit=True, prepare_threshold=None, row_factory=psycopg.rows.dict_row,
            tcp_user_timeout=60_000, client_encoding="utf8", fallback_application_name="blobgc")
        # The defaults of the database may be others. These stand in each BEGIN, because a SET is
        # lost when PgBouncer gives the next transaction to another session.
        self.connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        self.connection.read_only = False
        self.connection.deferrable = False
        # Shown, never reckoned with; and DateStyle or '-infinity' would be too much for Python's.
        for kind in ("timestamptz", "date", "interval"):
            self.connection.adapters.register_loader(kind, psycopg.types.string.TextLoader)
        self.connection.add_notice_handler(lambda notice: log.warning(notice.message_primary))
        self.connection.execute("listen blobgc")

    def call(self, query: str, *arguments: object) -> list[dict[str, Any]]:
        """Tries once."""
        with self.connection.transaction():
            return self.connection.execute(query.encode(), arguments).fetchall()

    def rows(self, query: str, *arguments: object) -> list[dict[str, Any]]:
        """Tries until it works: whatever the runner asks for may be asked for twice."""
        delay = 0.1
        while True:
            try:
                if self.connection.closed:
                    self.connect()
                return self.call(query, *arguments)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                log.warning("no answer from the database, next try in %s s: %s", delay, error)
                if self.stop.wait(delay):
                    raise SystemExit(SUCCESS) from error  # The leases end by themselves.
                delay = min(2 * delay, 10)

    def seconds_until_due(self, prefixes: list[str]) -> float:
        """Until there is something to review, or to delete under these prefixes."""
        (row,) = self.rows(
            "select (extract(epoch from gc.next_due(%s::text[])) "
            "- extract(epoch from now()))::float8 as seconds", prefixes)
        return float(row["seconds"])

    def has_due_elsewhere(self, prefixes: list[str]) -> bool:
        """Whether something is due, and was before all that is under these prefixes."""
        (row,) = self.rows(
            "select gc.next_due() <= now() and gc.next_due() < gc.next_due(%s::text[]) as found",
            prefixes)
        return bool(row["found"])

    def is_notified(self, seconds: float) -> bool:
        """Waits for somebody else to say that there is work."""
        try:
            return any(notify.pid != self.connection.info.backend_pid
                       for notify in self.connection.notifies(timeout=seconds, stop_after=1))
        except psycopg.Error:  # The next call makes the connection again.
            return self.stop.wait(seconds)

    def cancel(self) -> None:
        """Ends what is running in the server, if anything is."""
        with contextlib.suppress(psycopg.Error):
            self.connection.cancel_safe(timeout=2)

    def check(self) -> None:
        """Finds out whether all may be called that the runner calls: a batch of 0 is refused."""
        version = self.call("select gc.version()")[0]["version"]
        if version.split(".")[:2] != SPEAKS.split("."):
            raise Unusable(f"the database has blobgc {version}: take the runner of that version")
        if self.connection.info.parameter_status("server_encoding") == "SQL_ASCII":
            raise Unusable("the encoding of the database is SQL_ASCII: nobody knows what a url is")
        for what in ("review(0)", "claim('probe', 0, '1 minute', '{file:///}')",
                     "confirm('probe', '{}')", "next_due('{file:///}')", "release('probe', '{}')",
                     "fail('probe', '{}', '')", "status() limit 0", "metrics limit 0"):
            with contextlib.suppress(psycopg.errors.InvalidParameterValue):
                self.call("select from gc." + what)


# C0 and C1, DEL, halves of characters, what XML cannot say; and the backslash, which some stores
# take for a slash.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\\\\]")


def is_plain(path: str) -> bool:
    """Whether no store takes it for another path, as SeaweedFS takes a//b for a/b."""
    return not {"", ".", ".."} & set(path.split("/")) and not UNSAFE.search(path)


class Store:
    """A prefix under which objects may be deleted, and how the store is doing."""

    per_request = 1

    def __init__(self, prefix: str, options: argparse.Namespace) -> None:
        self.prefix, self.timeout = prefix, options.timeout
        self.bucket, _, self.folder = prefix.partition("://")[2].partition("/")
        self.failures, self.paused_until = 0, 0.0
        self.lock = threading.Lock()

    def key(self, url: str) -> str:
        """The object's name in its bucket, as it stands there: %2e is three characters."""
        return self.folder + url[len(self.prefix):]

    def accepts(self, url: str, generation: str | None = None) -> bool:
        """Whether it is the address of an object under the prefix, and no second one of another."""
        return (url.startswith(self.prefix) and is_plain(url[len(self.prefix):])
                and len(self.key(url).encode()) <= 1024  # What GCS and S3 allow.
                and (not generation or self.accepts_generation(generation)))

    def accepts_generation(self, generation: str) -> bool:
        """Whether the store tells it from all others, and nobody can spell it in another way."""
        return False

    def no_generation(self) -> str | None:
        """One that is not there, where there are any."""
        return None

    def delete(self, tombstones: list[Tombstone]) -> list[str]:
        """Deletes them by one request and returns the fate of each, or raises: that of all."""
        raise NotImplementedError

    def is_refusal(self, error: Exception) -> bool:
        """Whether a request failed because of something in it, rather than because of the store."""
        return False

    def is_well(self) -> bool:
        """Whether it deletes what surely is not there: if it does, it is the objects that fail."""
        probe = Tombstone(0, f"{self.prefix}.blobgc-{uuid.uuid4().hex}", self.no_generation(), None)
        try:
            return self.delete([probe]) == [DELETED]
        except Exception:
            return False

    def pause_left(self) -> float:
        return max(self.paused_until - time.monotonic(), 0)

    def note(self, fates: list[str], may_ask: bool = True) -> None:
        """A store that does nothing but fail is left alone for a while. Bad objects are not it."""
        with self.lock:
            if DELETED in fates:
                self.failures = 0
                return
            self.failures += len(fates)
            if self.failures < TOLERANCE or self.pause_left():
                return
            if may_ask and self.is_well():
                self.failures = 0
                return
            self.paused_until = time.monotonic() + PAUSE
            log.warning("%s fails, next try in %s s: %s", self.prefix, PAUSE, fates[0])


class FileStore(Store):
    """A folder. It is walked by descriptors, so that no symbolic link leads out of it."""

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

    def lineage(self) -> list[tuple[int, int]]:
        """The folder itself and those that it is in, as the system numbers them."""
        path, found = os.path.realpath(f"/{self.folder}"), []
        with contextlib.suppress(OSError):  # It is not there yet.
            while True:
                status = os.stat(path)
                found.append((status.st_dev, status.st_ino))
                if path == "/":
                    break
                path = os.path.dirname(path)
        return found


class GoogleStore(Store):
    """A bucket of Google Cloud Storage, or of an emulator (STORAGE_EMULATOR_HOST)."""

    def __init__(self, prefix: str, options: argparse.Namespace) -> None:
        super().__init__(prefix, options)
        self.errors = import_module("google.api_core.exceptions")
        self.client = import_module("google.cloud.storage").Client(project=None)
        adapter = import_module("requests.adapters").HTTPAdapter(pool_maxsize=options.threads)
        self.client._http.adapters.update({"https://": adapter, "http://": adapter})
        self.limits, self.is_seen = {"timeout": self.timeout, "retry": None}, False

    def accepts_generation(self, generation: str) -> bool:
        # Not \d: there are more digits than these in Unicode, and int() reads them all.
        return bool(re.fullmatch("[1-9][0-9]{0,18}", generation)) and int(generation) < 2 ** 63

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
        self.errors = import_module("botocore.exceptions")
        self.client = import_module("boto3").client("s3", config=import_module("botocore.config")
            .Config(connect_timeout=self.timeout, read_timeout=self.timeout,
                    max_pool_connections=options.threads, retries={"total_max_attempts": 1}))
        self.has_versions = False  # Once it has, it has them for ever.

    def accepts(self, url: str, generation: str | None = None) -> bool:
        """SeaweedFS keeps versions of x in x.versions/, and uploads in .uploads/ of the bucket."""
        folders = self.key(url).split("/")[:-1]
        return (super().accepts(url, generation) and folders[:1] != [".uploads"]
                and not any(folder.endswith(".versions") for folder in folders))

    def accepts_generation(self, generation: str) -> bool:
        # MinIO reads a UUID in any case.
        is_hex = re.fullmatch("[0-9a-fA-F-]{32,36}", generation)
        return (bool(re.fullmatch("[A-Za-z0-9._~+=/-]{1,1024}", generation))
                and is_plain(generation) and not (is_hex and generation != generation.lower()))

    def no_generation(self) -> str | None:
        return "null" if self.has_versions else None  # Without, it would leave a delete marker.

    def why_no_versions(self) -> str:
        """Why no generation can be deleted here; empty if it can."""
        if not self.has_versions:
            try:
                found = self.client.get_bucket_versioning(Bucket=self.bucket)
            except self.errors.ClientError as error:
                if status_of(error) != 403:
                    raise
                return "refused: may not ask whether the bucket has versions (GetBucketVersioning)"
            self.has_versions = found.get("Status") in ("Enabled", "Suspended")
        return "" if self.has_versions else "refused: a generation, and the bucket has no versions"

    def delete(self, tombstones: list[Tombstone]) -> list[str]:
        problem = self.why_no_versions() if any(t.generation for t in tombstones) else ""
        wanted = [t for t in tombstones if not (problem and t.generation)]
        fates = {t.id: problem for t in tombstones} | {t.id: DELETED for t in wanted}
        if wanted:
            fates |= self.request(wanted)
        return [fates[t.id] for t in tombstones]

    def request(self, tombstones: list[Tombstone]) -> dict[int, str]:
        """Deletes them; returns those that could not be, and why."""
        objects = [{"Key": self.key(t.url)} for t in tombstones]
        for named, tombstone in zip(objects, tombstones, strict=True):
            if tombstone.generation:
                named["VersionId"] = tombstone.generation
        answer = self.client.delete_objects(
            Bucket=self.bucket, Delete={"Quiet": True, "Objects": objects})
        failed: dict[int, str] = {}
        for error in answer.get("Errors", ()):
            if error["Code"] in ("NoSuchKey", "NoSuchVersion"):
                continue  # It is gone.
            meant = [t.id for t in tombstones if self.key(t.url) == error.get("Key")
                     and error.get("VersionId") in (None, "", t.generation)]
            if len(tombstones) > 1 and not meant:
                raise ValueError(f"the store says {error['Code']} of what it was not asked for")
            for number in meant or [tombstones[0].id]:
                failed[number] = f"{error['Code']}: {error.get('Message')}"
        return failed

    def is_refusal(self, error: Exception) -> bool:
        """Not 403 and the like: whose rights, rate or bucket it is, each part has the same."""
        if isinstance(error, (ValueError, TypeError, self.errors.ParamValidationError)):
            return True
        status = status_of(error) if isinstance(error, self.errors.ClientError) else 0
        return 400 <= status < 500 and status not in (401, 403, 404, 405, 407, 408, 429)


def status_of(error: Any) -> int:
    """What botocore's ClientError keeps of an answer."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def open_store(prefix: str, options: argparse.Namespace) -> Store:
    """A prefix is a folder: gs://bucket/images does not reach into gs://bucket/images-2."""
    kinds = {"gs": (GoogleStore, "gcs"), "s3": (AmazonStore, "s3"), "file": (FileStore, "")}
    scheme, _, path = prefix.removesuffix("/").partition("://")
    bucket = path.partition("/")[0]
    if scheme == "file":
        is_right = bucket == "" and is_plain(path[1:])
    else:
        is_right = bool(re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]*", bucket)) and is_plain(path)
    if scheme not in kinds or not is_right:
        raise Unusable(f"--store {ascii(prefix)[1:-1]}: it must be like gs://bucket/dir/, "
                       "s3://bucket/dir/ or file:///dir/, without empty parts, '.' or '..'")
    kind, extra = kinds[scheme]
    try:
        return kind(prefix.removesuffix("/") + "/", options)
    except Exception as error:  # Or the library's own: no credentials, no region.
        hint = f": pip install 'blobgc[{extra}]'" if isinstance(error, ImportError) else ""
        raise Unusable(f"--store {prefix}: {reason(error)}{hint}") from error


def open_stores(prefixes: list[str], options: argparse.Namespace) -> list[Store]:
    """All of them; two prefixes must not give one file two addresses, through a link perhaps."""
    stores = list({store.prefix: store for store in (
        open_store(prefix, options) for prefix in prefixes)}.values())
    folders = [(store, store.lineage()) for store in stores if isinstance(store, FileStore)]
    for outer, its in folders:
        for inner, lineage in folders:
            if its and its[0] in lineage and not inner.prefix.startswith(outer.prefix):
                raise Unusable(f"--store {outer.prefix} and {inner.prefix} are one folder, or one "
                               "is inside the other: spell them in the same way")
    return stores


class Batch:
    """What was claimed at once for one store. It is settled when its last share is done."""

    def __init__(self, store: Store, tombstones: list[Tombstone], claimed: float) -> None:
        self.store, self.tombstones, self.claimed = store, tombstones, claimed
        self.fates: dict[int, str] = {}
        self.shares = 0  # Those that are not done.


class Runner:
    """Two loops, of which one reviews and one claims; threads that delete; one that confirms.

    Each store has threads and batches of its own, so that one that hangs holds up no other.
    """

    def __init__(self, options: argparse.Namespace, stop: threading.Event) -> None:
        self.options, self.stop = options, stop
        self.database, self.settling, self.reviewing = (
            Database(options.dsn, stop) for _ in range(3))
        self.database.check()
        self.stores = open_stores(options.store, options)
        self.prefixes = [store.prefix for store in self.stores]
        self.pools = {store: ThreadPoolExecutor(options.threads) for store in self.stores}
        self.batches = {store: list[Batch]() for store in self.stores}
        self.settler = ThreadPoolExecutor(1)
        self.lock = threading.Lock()  # Of the batches.
        self.settled = threading.Event()  # A batch was, since this was last cleared.
        self.in_review = threading.Lock()
        self.claim_size, self.next_claim = int(min(options.batch, max(options.rate, 1))), 0.0
        self.patience: float | None = None  # With --once: until when to wait for what is held up.
        self.has_looked_again = False
        self.next_look = 0.0  # For what is due elsewhere.
        self.turn = 0  # Which store is asked for first.
        self.asked_in_vain: dict[Store, float] = {}  # When a claim last gave nothing.
        self.counters = collections.Counter[str]()
        self.crash: BaseException | None = None
        self.whole = sum(row["due"] + row["tombstones_waiting"] for row in self.status())

    def status(self) -> list[dict[str, Any]]:
        return self.database.rows("select * from gc.status()")

    def run(self) -> int:
        """Until a signal comes, or with --once until nothing is due. Returns the exit code."""
        threading.Thread(daemon=True, target=self.guard, args=[self.review_until_stopped]).start()
        self.guard(self.delete_until_done)
        while any(self.batches.values()):
            self.settled.wait(POLL)
            self.settled.clear()
        code = SUCCESS
        if self.options.once and not self.stop.is_set():
            code = self.report()
        self.stop.set()
        # A long review ends in the database, without us.
        self.in_review.acquire(timeout=self.options.timeout)
        if self.crash:
            raise self.crash
        return code

    def guard(self, step: Any, *arguments: object) -> None:
        """In a thread of its own: all loops end when one of them fails."""
        try:
            step(*arguments)
        except Exception as error:
            self.crash = self.crash or error
            self.stop.set()

    # Reviewing

    def review_until_stopped(self) -> None:
        while not self.stop.is_set():
            with self.in_review:
                found_some = not self.stop.is_set() and self.review(self.reviewing)
            if not found_some:
                self.sleep(self.reviewing, self.seconds_until_due(self.reviewing))

    def review(self, database: Database) -> bool:
        """A batch of each collection. Whether anything was due."""
        reviews = database.rows("select * from gc.review(%s)", self.options.batch)
        for row in reviews:
            log.log(logging.INFO if row["reviewed"] else logging.DEBUG, "%(collection)s: reviewed "
                    "%(reviewed)s, deleted %(deleted)s, kept %(kept)s, failed %(failed)s", row)
            self.counters.update({f"rows_{k}": row[k] for k in ("reviewed", "deleted", "failed")})
        if any(row["deleted"] for row in reviews):
            database.rows("select pg_notify('blobgc', '')")  # Whoever deletes need not sleep.
        self.draw()
        return any(row["reviewed"] for row in reviews)

    def seconds_until_due(self, database: Database) -> float:
        """What is under a store that is left alone is not due before that is tried again."""
        pauses = {store.prefix: store.pause_left() for store in self.stores}
        awake = [prefix for prefix, left in pauses.items() if not left]
        due = database.seconds_until_due(awake or self.prefixes)
        return due if awake else max(due, *pauses.values())

    def sleep(self, database: Database, seconds: float) -> None:
        """Until then, or a signal, or a NOTIFY."""
        end = time.monotonic() + max(seconds, POLL)
        while not self.stop.is_set() and (left := end - time.monotonic()) > 0:
            if database.is_notified(min(left, POLL)):
                return

    # Deleting

    def delete_until_done(self) -> None:
        """Drains what is due, then sleeps until there is more."""
        while not self.stop.is_set():
            self.look_elsewhere()
            if self.delete():
                self.draw()
                continue
            due = self.seconds_until_due(self.database)
            if self.options.once and due > 0:
                if not self.waits_for_more(due):
                    return
                due = min(due, STEP_BACK)
            pauses = [left for store in self.stores if (left := store.pause_left())]
            self.sleep(self.database, min([due, *pauses]))

    def delete(self) -> bool:
        """Claims ahead: one batch is claimed while another is deleted and a third confirmed."""
        self.settled.clear()
        has_claimed = False
        self.turn = (self.turn + 1) % len(self.stores)  # Where there is a rate, all get a share.
        for store in self.stores[self.turn:] + self.stores[:self.turn]:
            if self.may_claim(store):
                has_claimed = self.claim(store) or has_claimed
        if has_claimed:
            return True
        if any(self.batches.values()):
            self.settled.wait(POLL)
            return True
        return False

    def may_claim(self, store: Store) -> bool:
        now = time.monotonic()
        if self.stop.is_set() or now < self.next_claim or store.pause_left():
            return False
        # While others are busy, one that had nothing is not asked all the time.
        if any(self.batches.values()) and now < self.asked_in_vain.get(store, 0.0) + POLL:
            return False
        return self.has_room(store)

    def has_room(self, store: Store) -> bool:
        with self.lock:
            batches = self.batches[store]
            return len(batches) < 3 or sum(b.shares for b in batches) < self.options.threads

    def claim(self, store: Store) -> bool:
        """Hands out shares of a batch: a request each, or several, which costs less per object."""
        # One that has failed so far is asked for a few objects: the others stay for other runners.
        size = self.claim_size if store.failures < TOLERANCE else min(self.claim_size, TOLERANCE)
        # The lease is counted from before the question; the database counts it from after.
        now = time.monotonic()
        claimed = [Tombstone(**row) for row in self.database.rows(
            "select id, url, generation, size from gc.claim(%s, %s, %s, %s::text[])",
            self.options.worker, size, f"{self.options.lease} seconds", [store.prefix])]
        if not claimed:
            self.asked_in_vain[store] = now
            return False
        self.next_claim = max(self.next_claim, now - POLL) + len(claimed) / self.options.rate
        batch, good = Batch(store, claimed, now), []
        for tombstone in claimed:
            if store.accepts(tombstone.url, tombstone.generation):
                good.append(tombstone)
            else:
                batch.fates[tombstone.id] = REFUSED
        length = max(store.per_request, len(good) // self.options.threads // 4)
        shares = [good[i:i + length] for i in range(0, len(good), length)]
        batch.shares = len(shares)
        with self.lock:
            self.batches[store].append(batch)
        for share in shares:
            self.pools[store].submit(self.guard, self.work_off, batch, share)
        if not shares:
            self.settler.submit(self.guard, self.settle, batch)
        return True

    def work_off(self, batch: Batch, share: list[Tombstone]) -> None:
        """In a thread of the store's pool."""
        fates: dict[int, str] = {}
        try:
            fates = self.attempt(batch.store, share, batch.claimed)
        finally:
            with self.lock:
                batch.fates |= fates
                batch.shares -= 1
                is_last = batch.shares == 0
            if is_last:
                self.settler.submit(self.guard, self.settle, batch)

    def attempt(self, store: Store, share: list[Tombstone], claimed: float) -> dict[int, str]:
        """Request by request. What is not tried is released, and nobody's fault."""
        fates: dict[int, str] = {}
        size = store.per_request
        requests = collections.deque(share[i:i + size] for i in range(0, len(share), size))
        is_well = False
        while requests:
            some = requests.popleft()
            if not self.may_delete(store, claimed):
                fates.update((tombstone.id, RELEASED) for tombstone in some)
                continue
            try:
                answer = store.delete(some)
            except Exception as error:
                if len(some) > 1 and store.is_refusal(error):
                    is_well = is_well or self.stop.is_set() or store.is_well()
                    if is_well:  # Something in the request is at fault: find it.
                        middle = len(some) // 2
                        requests.extendleft([some[middle:], some[:middle]])
                        continue
                answer = [reason(error)] * len(some)
            store.note(answer, may_ask=not self.stop.is_set())
            fates.update(zip((tombstone.id for tombstone in some), answer, strict=True))
        return fates

    def may_delete(self, store: Store, claimed: float) -> bool:
        """No request in the second half of a lease, after a signal, or to a store that fails."""
        is_late = time.monotonic() >= claimed + self.options.lease / 2
        return not (is_late or self.stop.is_set() or store.pause_left())

    def settle(self, batch: Batch) -> None:
        """Tells the database what came of a batch."""
        try:
            fates = collections.defaultdict[str, list[int]](list)
            for tombstone in batch.tombstones:
                fate = batch.fates.get(tombstone.id, RELEASED)
                fates[fate].append(tombstone.id)
                what = fate if fate in (DELETED, RELEASED) else "failed"
                self.counters.update({f"objects_{what}": 1, f"bytes_{what}": tombstone.size or 0})
            self.tell("select gc.confirm(%s, %s)", DELETED, fates.pop(DELETED, []))
            self.tell("select gc.release(%s, %s)", RELEASED, fates.pop(RELEASED, []))
            for why, ids in with_few_reasons(fates).items():
                self.tell("select gc.fail(%s, %s, %s)", why, ids, why)
        finally:
            with self.lock:
                self.batches[batch.store].remove(batch)
            self.settled.set()

    def tell(self, call: str, fate: str, ids: list[int], *arguments: str) -> None:
        if ids:
            self.settling.rows(call, self.options.worker, ids, *arguments)
            log.log(logging.INFO if fate in (DELETED, RELEASED) else logging.WARNING,
                    "%(objects)s objects: %(fate)s", {"objects": len(ids), "fate": fate})

    # What is left

    def waits_for_more(self, due: float) -> bool:
        """With --once: whether to go on, until what is held up can be deleted, or for too long."""
        if all(store.pause_left() for store in self.stores):
            return False
        held_up, why = self.held_up()
        if not held_up:
            # What could not be handed out when it was asked for may have stepped back for a moment.
            is_soon = due <= STEP_BACK and not self.has_looked_again
            self.has_looked_again = True
            return is_soon
        if self.patience is None:
            self.patience = time.monotonic() + self.options.wait
            log.info("%s objects are held up, waiting for at most %s s: %s", held_up,
                     self.options.wait, why)
        return time.monotonic() < self.patience

    def held_up(self) -> tuple[int, str]:
        """How many objects are due and cannot be handed out, and why."""
        rows = [row for row in self.status() if row.get("tombstones_held_up")]
        reasons = sorted({str(row["held_up_by"]) for row in rows if row.get("held_up_by")})
        return sum(row["tombstones_held_up"] for row in rows), "; ".join(reasons)

    def report(self) -> int:
        """With --once: says what is left, and why. Returns the exit code."""
        codes = []
        failing = sum(row["tombstones_failing"] for row in self.status())
        if any(store.failures >= TOLERANCE for store in self.stores) or (
                failing and self.counters["objects_failed"]):
            codes.append(FAILED)
            log.warning("%s objects could not be deleted so far and are left for later", failing)
        held_up, why = self.held_up()
        if held_up:
            codes.append(HELD_UP)
            log.warning("%s objects are left, because they are held up: %s", held_up, why)
        if self.database.has_due_elsewhere(self.prefixes):
            codes.append(NOT_OURS)
            self.warn_of_elsewhere()
        return codes[0] if codes else SUCCESS

    def look_elsewhere(self) -> None:
        """Now and then: what is due under no --store is for another runner, if there is one."""
        now = time.monotonic()
        if self.options.once or now < self.next_look:
            return
        self.next_look = now + LOOK_ELSEWHERE
        if self.database.has_due_elsewhere(self.prefixes):
            self.next_look = now + REPEAT_WARNING
            self.warn_of_elsewhere()

    def warn_of_elsewhere(self) -> None:
        log.warning("objects are due that are under none of %s: they are left to a runner with "
                    "another --store", " ".join(self.prefixes))

    def draw(self) -> None:
        """A bar on the terminal. What was due at first is the whole; a row becomes an object."""
        if not self.options.bar:
            return
        done = self.counters
        steps = done["rows_reviewed"] + done["objects_deleted"] + done["objects_failed"]
        bar = "#" * min(30 * steps // max(self.whole + done["rows_deleted"], 1), 30)
        print(f"\r[{bar:30}] {done['rows_deleted']:,} rows, {done['objects_deleted']:,} "
              f"objects, {done['bytes_deleted'] / 1e6:,.1f} MB", end="", file=sys.stderr)


def with_few_reasons(fates: dict[str, list[int]]) -> dict[str, list[int]]:
    """A store may name the object in each message: a call for each of them would take too long."""
    by_size = sorted(fates.items(), key=lambda item: -len(item[1]))
    few = dict(by_size[:MANY_REASONS])
    others = [number for _, ids in by_size[MANY_REASONS:] for number in ids]
    if others:
        few[f"several reasons, one of them: {by_size[MANY_REASONS][0]}"[:500]] = others
    return few


class Metrics:
    """The answer to /metrics: made by one connection at a time, and good for a few seconds."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.lock = runner, threading.Lock()
        self.text, self.good_until = "", 0.0

    def get(self) -> str:
        """Who does not get the lock in time takes what there is."""
        if self.lock.acquire(timeout=METRICS_PATIENCE):
            try:
                if time.monotonic() >= self.good_until:
                    self.text = self.make()
                    self.good_until = time.monotonic() + METRICS_AGE
            finally:
                self.lock.release()
        return self.text

    def make(self) -> str:
        """For Prometheus: what this process has done, and what the database says."""
        lines = [f"# TYPE blobgc_runner_{what}_total counter\nblobgc_runner_{what}_total {count}"
                 for what, count in sorted(self.runner.counters.copy().items())]
        try:
            with psycopg.connect(self.runner.options.dsn, connect_timeout=5, autocommit=True,
                                 tcp_user_timeout=60_000, client_encoding="utf8") as connection:
                found = connection.execute("table gc.metrics").fetchall()
        except psycopg.Error as error:
            log.debug("no metrics from the database: %s", error)
            found = []
        last = ""
        for name, kind, text, labels, value in found:
            if name != last:
                lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
                last = name
            lines.append(f"{name}{{{labels}}} {value}")
        return "\n".join(lines) + "\n"


class MetricsServer(http.server.ThreadingHTTPServer):
    """Serves a few connections at a time, none of them for long."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, runner: Runner, address: str, port: int) -> None:
        self.runner, self.metrics = runner, Metrics(runner)
        self.clients: dict[socket.socket, float] = {}  # Since when, the longest first.
        self.silent: list[socket.socket] = []  # Those that have not asked yet.
        self.lock = threading.Lock()
        self.address_family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((address, port), MetricsHandler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own asks the DNS for a name.
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Who has said nothing for longest makes room; a thread takes a moment to end, though."""
        with self.lock:
            if len(self.clients) >= 2 * METRICS_CLIENTS:
                return False
            if len(self.silent) >= METRICS_CLIENTS:
                hang_up(self.silent.pop(0))
            self.silent.append(request)
            self.clients[request] = time.monotonic()
        return True

    def has_asked(self, client: socket.socket) -> None:
        with self.lock:
            if client in self.silent:
                self.silent.remove(client)

    def service_actions(self) -> None:
        """Twice a second."""
        with self.lock:
            for client, since in self.clients.items():
                if time.monotonic() - since > 2 * METRICS_PATIENCE:
                    hang_up(client)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.has_asked(request)
        with self.lock:
            self.clients.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client of /metrics: %s", sys.exc_info()[1])


def hang_up(client: socket.socket) -> None:
    """Whatever its thread waits for, it does not come. The thread closes it."""
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


class MetricsHandler(http.server.BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = METRICS_PATIENCE

    def do_GET(self) -> None:
        self.server.has_asked(self.connection)
        if self.path == "/metrics":
            self.answer(200, self.server.metrics.get())
        elif self.path == "/healthz":
            is_ill = self.server.runner.database.connection.closed
            self.answer(503 if is_ill else 200, f"database: {not is_ill}\n")
        else:
            self.answer(404, "there are /metrics and /healthz\n")

    def answer(self, code: int, text: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        log.debug(format, *arguments)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = record.args if isinstance(record.args, dict) else {}
        return json.dumps({"time": self.formatTime(record), "level": record.levelname.lower(),
                           "message": record.getMessage(), **fields}, default=str)


def check_options(options: argparse.Namespace) -> None:
    numbers = (options.batch, options.threads, options.rate, options.timeout)
    if not all(number > 0 for number in numbers) or not (
            4 * options.timeout <= options.lease < math.inf):
        raise Unusable("numbers must be positive, and --lease at least four times --timeout")
    if not 0 <= options.wait < math.inf:
        raise Unusable("--wait is a number of seconds")
    if options.metrics_port is not None and not 0 < options.metrics_port < 65536:
        raise Unusable("--metrics-port is between 1 and 65535")


def end_in_time(runner: Runner, stop: threading.Event) -> None:
    """After a signal: what takes longer than a request may is cancelled, and in the end left."""
    stop.wait()
    end = time.monotonic() + 2 * runner.options.timeout + 10
    time.sleep(runner.options.timeout + 1)
    while time.monotonic() < end:
        for database in (runner.database, runner.settling, runner.reviewing):
            database.cancel()
        time.sleep(1)
    log.error("something does not end and is left: the leases end by themselves")
    os._exit(FAILED)


def run(options: argparse.Namespace) -> int:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("psycopg").setLevel("ERROR")  # It warns of what is tried again.
    if options.log_json:
        logging.getLogger().handlers[0].setFormatter(JsonFormatter())
    options.bar = options.once and sys.stderr.isatty() and not options.verbose
    log.setLevel("DEBUG" if options.verbose else "WARNING" if options.bar else "INFO")
    check_options(options)
    stop = threading.Event()

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # A second one ends the process at once.
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    runner = Runner(options, stop)
    threading.Thread(target=end_in_time, args=[runner, stop], daemon=True).start()
    if options.metrics_port:
        server = MetricsServer(runner, options.metrics_address, options.metrics_port)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    code = runner.run()
    print(end="\n" if options.bar else "", file=sys.stderr)
    return code


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
    add("--wait", type=float, default=30, help="with --once: seconds for what is held up")
    add("--batch", type=int, default=1000, help="rows or objects at a time")
    add("--lease", type=float, default=300, help="seconds for which objects are claimed")
    add("--timeout", type=float, default=10, help="seconds for a request to a store")
    add("--threads", type=int, default=16, help="requests at a time")
    add("--rate", type=float, default=float("inf"), help="deletes a second, at most")
    add("--worker", default=f"{os.uname().nodename}-{os.getpid()}-{os.urandom(3).hex()}",
        help="a name that no other runner has")
    add("--metrics-port", type=int, help="serve /metrics and /healthz there")
    add("--metrics-address", default="127.0.0.1", help="listen there, and nowhere else")
    add("--log-json", action="store_true", help="log lines of JSON")
    add("-v", "--verbose", action="store_true", help="log more")
    options = parser.parse_args(arguments)
    try:
        return run(options) if options.command == "run" else status(options)
    except (Unusable, OSError, psycopg.Error) as error:
        hint = HINTS.get(getattr(error, "sqlstate", None) or "", "")
        print("blobgc:", str(error).partition("\n")[0], hint, file=sys.stderr)
        return UNUSABLE


if __name__ == "__main__":
    sys.exit(main())
