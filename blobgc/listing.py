"""What a store has, copied into the database: from the store itself, or from an inventory."""

import re
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from blobgc.database import Database
from blobgc.errors import Unavailable, reason
from blobgc.inventories import Inventory
from blobgc.logs import log
from blobgc.stores import Store
from blobgc.stores.base import Listed, Page

COPY = "copy gc.listed_objects (listing, part, url, size, written_at, generation) from stdin"
AT_ONCE = 10_000  # Objects that are copied in one transaction,
CHUNK = 2_000  # or lines that are sent at a time.
NULL = "\\N"
LEVELS = 3  # Of folders, at most, to find parts that can be listed side by side.
# What COPY would take for something else.
SPECIAL = re.compile("[\\\\\t\n\r]")
ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


class Lister:
    """Lists a store, by several threads. Each has a connection of its own."""

    def __init__(self, store: Store, dsn: str, threads: int) -> None:
        self.store = store
        self.dsn = dsn
        self.threads = threads
        self.database = Database(dsn)
        self.failed = threading.Event()
        self.unnamed = 0  # Objects whose names are no text.

    def run(self, is_anew: bool) -> int:
        """Returns the number of a listing that is complete."""
        listing = None
        if not is_anew:
            (row,) = self.database.call(
                "select gc.unfinished_listing(%s) as id", self.store.prefix)
            listing = row["id"]
        if listing is None:
            listing = self.begin()
        else:
            log.info("goes on with listing %s of %s", listing, self.store.prefix)
        parts: SimpleQueue[dict[str, Any]] = SimpleQueue()
        for part in self.database.call("select * from gc.open_parts(%s)", listing):
            parts.put(part)
        with ThreadPoolExecutor(self.threads) as pool:
            at_work = []
            for _ in range(min(self.threads, parts.qsize())):
                at_work.append(pool.submit(self.list_parts, listing, parts))
        for thread in at_work:
            thread.result()
        return int(listing)

    def read(self, inventory: Inventory) -> int:
        """The same, from the files of an inventory. What is elsewhere is left out."""
        places = [str(file) for file in inventory.files]
        (row,) = self.database.call(
            "select gc.begin_listing(%s, %s, 'inventory') as id", self.store.prefix,
            inventory.taken_at)
        self.database.call("select gc.add_parts(%s, %s, %s)", row["id"], places,
                           [True] * len(places))
        with self.database.transaction() as connection, connection.cursor() as cursor:
            for part, file in enumerate(inventory.files, 1):
                lines = self.lines_in(inventory, file, f"{row['id']}\t{part}\t")
                with cursor.copy(COPY) as copy:
                    for chunk in in_chunks(lines):
                        copy.write(chunk)
                cursor.execute("select gc.note_part(%s, %s, null, true)", (row["id"], part))
            inventory.check_count()
        return int(row["id"])

    def lines_in(self, inventory: Inventory, file: Path, head: str) -> Iterator[str]:
        prefix = self.store.prefix
        scheme = f"{self.store.scheme}://{self.store.bucket}/"
        for key, size, written, generation in inventory.records(file):
            url = key if key.startswith(prefix) else scheme + key
            if not url.startswith(prefix) or url.endswith("/") and size == "0":
                continue
            if not url.isprintable() or "\\" in url:
                text = as_text(url)
                if text is None:
                    self.unnamed += 1
                    continue
                url = text
            if generation:
                generation = self.store.listed_generation(generation)
            yield (f"{head}{url}\t{size or NULL}\t{written or NULL}\t{generation or NULL}\n")

    def begin(self) -> int:
        (row,) = self.database.call(
            "select gc.begin_listing(%s, %s) as id", self.store.prefix, self.store.now())
        places, are_deep = self.find_parts()
        self.database.call("select gc.add_parts(%s, %s, %s)", row["id"], places, are_deep)
        return int(row["id"])

    def find_parts(self) -> tuple[list[str], list[bool]]:
        """Folders that can be listed side by side, and what is beside them."""
        shallow: list[str] = []
        deep = [self.store.prefix]
        for _ in range(LEVELS):
            if len(deep) >= 4 * self.threads:
                break
            below: list[str] = []
            for folder in deep:
                inside = self.store.folders(folder)
                if inside is None:
                    below.append(folder)
                else:
                    shallow.append(folder)
                    below += inside
            deep = below
        return deep + shallow, [True] * len(deep) + [False] * len(shallow)

    def list_parts(self, listing: int, parts: "SimpleQueue[dict[str, Any]]") -> None:
        """In a thread: one part after the other, until there are no more or one has failed."""
        database = Database(self.dsn)
        try:
            while not self.failed.is_set():
                part = parts.get_nowait()
                self.list_part(database, listing, part)
        except Empty:
            return
        except Exception as error:
            self.failed.set()
            if self.store.status_of(error) is None and not isinstance(error, OSError):
                raise
            raise Unavailable(f"{self.store.prefix} could not be listed: {reason(error)}; what "
                              "is there of the listing is kept: say the same again") from error
        finally:
            database.connection.close()

    def list_part(self, database: Database, listing: int, part: dict[str, Any]) -> None:
        pages = self.store.pages(part["place"], part["deep"], part["cursor"])
        for objects, cursor, is_last in in_larger_steps(pages):
            if self.failed.is_set():
                return
            lines = self.lines_of(objects, f"{listing}\t{part['part']}\t")
            with database.transaction() as connection, connection.cursor() as cursor_of:
                with cursor_of.copy(COPY) as copy:
                    copy.write("".join(lines))
                cursor_of.execute(
                    "select gc.note_part(%s, %s, %s, %s)",
                    (listing, part["part"], cursor, is_last))

    def lines_of(self, objects: list[Listed], head: str) -> Iterator[str]:
        for found in objects:
            url = as_text(found.url)
            if url is None:
                self.unnamed += 1
                continue
            yield (f"{head}{url}\t{found.size}\t{found.written.isoformat()}\t"
                   f"{found.generation or NULL}\n")


def in_larger_steps(pages: Iterable[Page]) -> Iterator[tuple[list[Listed], str | None, bool]]:
    """Objects, where to go on after them, and whether they are the last."""
    objects: list[Listed] = []
    cursor = None
    for page in pages:
        if len(objects) >= AT_ONCE:
            yield objects, cursor, False
            objects = []
        objects += page.objects
        cursor = page.cursor
    yield objects, cursor, True


def in_chunks(lines: Iterator[str]) -> Iterator[str]:
    while chunk := "".join(islice(lines, CHUNK)):
        yield chunk


def as_text(url: str) -> str | None:
    """As COPY wants it; None: it is no text of PostgreSQL's."""
    if not url.isprintable():
        if "\0" in url:
            return None
        try:
            url.encode()
        except UnicodeEncodeError:
            return None
    if SPECIAL.search(url):
        return SPECIAL.sub(lambda found: ESCAPES[found[0]], url)
    return url
