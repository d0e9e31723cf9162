"""What all stores have in common, and what each kind must say."""

import argparse
import contextlib
import re
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import ClassVar, NamedTuple

from blobgc.errors import Unusable, reason
from blobgc.logs import log
from blobgc.stores.flow import Flow

TOLERANCE = 10  # A store that fails so often in a row is left alone,
PAUSE = 5.0  # for so many seconds.

# The fate of an object; any other is why it failed.
DELETED, RELEASED, SPARED = "deleted", "released", "spared"

MARKER = ".blobgc"  # The object by which a bucket knows its database. It is never deleted.
OURS = ".blobgc-"  # What is looked at for the last time, quarantines, probes: nobody else's.

# C0 and C1, DEL, halves of characters, what XML cannot say; and the backslash, which some stores
# take for a slash.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\\\\]")

NO_ANSWER = 0  # Instead of an HTTP status.
OVERLOAD = (NO_ANSWER, 408, 429, 500, 502, 503, 504)
# Whose rights, rate or bucket it is, each part of a request has the same.
OF_THE_STORE = (401, 403, 404, 405, 407, 408, 429)


class Seen(NamedTuple):
    """An object, as it was when it was looked at."""

    size: int
    age: float  # Seconds since it was last written, by the store's own clock; rather too few.
    generation: str | None  # On which a delete can be made to depend.


class Care:
    """How long an object must have been untouched when that was asked; when it was written."""

    def __init__(self, untouched_for: float, asked: float, until: float) -> None:
        self.untouched_for = untouched_for
        self.asked = asked  # By the clock of time.monotonic, as all here.
        self.until = until  # After this, nothing is deleted any more.
        self.written = 0.0

    def allows(self, seen: Seen) -> bool:
        self.written = time.monotonic() - seen.age
        return self.asked - self.written >= self.untouched_for

    def is_late(self) -> bool:
        return time.monotonic() >= self.until

    def age(self) -> float:
        """For how long nobody has written it, as far as is known."""
        return time.monotonic() - self.written


class Tombstone(NamedTuple):
    id: int
    url: str
    generation: str | None
    size: int | None
    care: Care | None = None  # Look before it is deleted.


class Listed(NamedTuple):
    """An object, as a listing has it."""

    url: str
    size: int
    written: datetime  # By the store's own clock.
    generation: str | None  # Where a delete can be made to depend on it.


class Page(NamedTuple):
    """What is listed at a time, and where to go on; None: the store cannot go on elsewhere."""

    objects: list[Listed]
    cursor: str | None


class Version(NamedTuple):
    """What the store has kept of an object that is gone."""

    generation: str
    size: int
    how: str  # As the kind of store calls it.


class Leftover(NamedTuple):
    """An upload in parts that was begun and neither finished nor given up."""

    url: str
    begun: datetime


class Marker(NamedTuple):
    """What stands in an object, and what the store calls this version of it."""

    content: str
    tag: str


def is_plain(path: str) -> bool:
    """Whether no store takes it for another path, as SeaweedFS takes a//b for a/b."""
    return not {"", ".", ".."} & set(path.split("/")) and not UNSAFE.search(path)


class Store:
    """A prefix under which objects may be deleted, and how the store is doing."""

    scheme: ClassVar[str]
    example: ClassVar[str]  # Of a prefix.
    extra: ClassVar[str] = ""  # What pip calls the library that it needs.
    per_request: ClassVar[int] = 1  # Objects, at most.
    at_a_time: ClassVar[int] = 16  # Requests, unless somebody says otherwise.
    no_tag: ClassVar[str] = "0"  # One that no version of an object has.

    def __init__(self, prefix: str, options: argparse.Namespace) -> None:
        self.prefix = prefix
        self.timeout: float = options.timeout
        self.bucket, _, self.folder = prefix.partition("://")[2].partition("/")
        self.threads: int = options.threads or self.at_a_time
        self.flow = Flow(self.per_request, self.threads)
        self.failures = 0  # In a row.
        self.paused_until = 0.0
        self.honours_conditions: bool | None = None  # None: nobody knows yet.
        self.lock = threading.Lock()

    # What a kind says about itself

    @classmethod
    def is_place(cls, path: str) -> bool:
        """Whether a prefix can look like this, after scheme:// and without a slash at its end."""
        bucket = path.partition("/")[0]
        return bool(re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]*", bucket)) and is_plain(path)

    def accepts_generation(self, generation: str) -> bool:
        """Whether the store tells it from all others, and nobody can spell it in another way."""
        return False

    def delete(self, tombstones: list[Tombstone]) -> list[str]:
        """Deletes them by one request and returns the fate of each, or raises: that of all."""
        raise NotImplementedError

    def status_of(self, error: Exception) -> int | None:
        """The HTTP status; 400 where the request was not even sent; None where it is neither."""
        return None

    def prepare(self) -> None:
        """Before the first delete. Raises if the store cannot be used."""

    def learn(self) -> None:
        """After the first delete: finds out what else the store can do."""

    def no_generation(self) -> str | None:
        """One that is not there, where that is better than none."""
        return None

    def describe(self) -> str:
        """For the log: what will be deleted here, and how."""
        return self.prefix

    # What is there, by the store's own account

    def now(self) -> datetime:
        """By the store's own clock."""
        return datetime.now(timezone.utc)

    def folders(self, folder: str) -> list[str] | None:
        """The folders in a folder, as urls; None: there is too much in it to look for them."""
        raise NotImplementedError

    def pages(self, folder: str, is_deep: bool, cursor: str | None) -> Iterator[Page]:
        """The objects in a folder, with those of all folders below it if that is deep."""
        raise NotImplementedError

    def listed_generation(self, text: str) -> str | None:
        """What an inventory calls a generation or ETag, as a delete can be made to depend on it."""
        return None

    def leftovers(self) -> Iterator[Leftover] | None:
        """Uploads in parts that nobody has finished; None: the store does not tell."""
        return None

    def look(self, url: str) -> Seen | None:
        """At one object; None: it is not there."""
        raise NotImplementedError

    def kept_versions(self, url: str) -> list[Version]:
        """Of an object that is gone, the newest first."""
        return []

    def revive(self, url: str, version: Version) -> None:
        """Brings it back, unless another has taken its place."""
        raise NotImplementedError

    def move(self, tombstone: Tombstone, target: str) -> None:
        """To another address under the prefix, if it still has its generation."""
        raise NotImplementedError

    # Deleting with care

    def tells_apart(self, generation: str) -> bool:
        """Whether no two uploads can have it."""
        return True

    def delete_carefully(self, tombstones: list[Tombstone]) -> list[str]:
        """Looks at objects where that is asked for, and deletes what it has seen."""
        fates = {}
        wanted = []
        for tombstone in tombstones:
            has_own = tombstone.generation and self.tells_apart(tombstone.generation)
            if not tombstone.care or has_own:
                wanted.append(tombstone)
                continue
            seen = None if tombstone.care.is_late() else self.look(tombstone.url)
            if tombstone.care.is_late():  # Looking has taken too long.
                fates[tombstone.id] = RELEASED
            elif seen is None:
                fates[tombstone.id] = DELETED
            elif tombstone.care.allows(seen):
                wanted.append(tombstone._replace(
                    generation=tombstone.generation or seen.generation))
            else:
                fates[tombstone.id] = SPARED
        if any(each.care and each.care.is_late() for each in wanted):
            fates |= {each.id: RELEASED for each in wanted}
        elif wanted:
            for tombstone, fate in zip(wanted, self.delete(wanted), strict=True):
                fates[tombstone.id] = fate
        return [fates[tombstone.id] for tombstone in tombstones]

    # Addresses

    def name(self, address: str) -> str:
        """In its bucket, of an object that may be above the prefix."""
        return address.partition("://")[2].partition("/")[2]

    def key(self, url: str) -> str:
        """The object's name in its bucket, as it stands there: %2e is three characters."""
        return self.folder + url[len(self.prefix):]

    def accepts(self, url: str, generation: str | None = None) -> bool:
        """Whether it is the address of an object under the prefix, and no second one of another."""
        if not url.startswith(self.prefix) or not is_plain(url[len(self.prefix):]):
            return False
        if len(self.key(url).encode()) > 1024:  # More than a store allows.
            return False
        for part in url[len(self.prefix):].lower().split("/"):
            if part == MARKER or part.startswith(OURS):
                return False
        return not generation or self.accepts_generation(generation)

    # Errors

    def is_refusal(self, error: Exception) -> bool:
        """Whether a request failed because of something in it, rather than because of the store."""
        status = self.status_of(error)
        return status is not None and 400 <= status < 500 and status not in OF_THE_STORE

    def is_overload(self, error: Exception) -> bool:
        """Whether a smaller request, or a later one, may go better."""
        return self.status_of(error) in OVERLOAD

    # The marker, which may stand in a folder above the prefix

    def read_marker(self, address: str) -> Marker | None:
        """None: there is none, and the bucket is there."""
        raise NotImplementedError

    def write_marker(self, address: str, content: str, replaces: str | None) -> str | None:
        """Only over this version of it; None: only if there is none. Returns the tag that it has
        then, or None if the store has refused it. A store that knows no conditions just writes."""
        raise NotImplementedError

    def has_conditions(self) -> bool:
        """Found out once: a write over a version that is not there must be refused."""
        if self.honours_conditions is None:
            probe = self.probe().url
            self.honours_conditions = self.write_marker(probe, "a probe", self.no_tag) is None
            if not self.honours_conditions:
                with contextlib.suppress(Exception):  # It is said when objects cannot be deleted.
                    self.delete([Tombstone(0, probe, None, None)])
        return self.honours_conditions

    # How it is doing

    def probe(self) -> Tombstone:
        """An object that surely is not there."""
        return Tombstone(0, f"{self.prefix}.blobgc-{uuid.uuid4().hex}", self.no_generation(), None)

    def check(self) -> None:
        """At the start: are there credentials, a bucket, and the right to delete?"""
        try:
            self.prepare()
            (fate,) = self.delete([self.probe()])
            if fate == DELETED:
                self.learn()
        except Exception as error:
            if not self.is_overload(error):
                raise Unusable(f"--store {self.prefix}: {reason(error)}") from error
            log.warning("%s does not work yet: %s", self.prefix, reason(error))
        else:
            if fate != DELETED:
                raise Unusable(f"--store {self.prefix}: nothing can be deleted there: {fate}")

    def is_well(self) -> bool:
        """Whether it deletes what surely is not there: if it does, it is the objects that fail."""
        try:
            return self.delete([self.probe()]) == [DELETED]
        except Exception:
            return False

    def pause_left(self) -> float:
        return max(self.paused_until - time.monotonic(), 0)

    def leave_alone(self, seconds: float) -> None:
        self.paused_until = time.monotonic() + seconds

    def note(self, fates: list[str], may_ask: bool = True) -> None:
        """A store that does nothing but fail is left alone for a while. Bad objects are not it."""
        with self.lock:
            if DELETED in fates or SPARED in fates:
                self.failures = 0
                return
            self.failures += len(fates)
            if self.failures < TOLERANCE or self.pause_left():
                return
            if may_ask and self.is_well():
                self.failures = 0
                return
            self.leave_alone(PAUSE)
            log.warning("%s fails, next try in %s s: %s", self.prefix, PAUSE, fates[0])
