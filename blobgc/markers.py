"""The marker, by which a bucket knows its database: what gc.compare_marker says is done here.

The database decides, step by step. Here an object is read or written, and that is told.
"""

import contextlib
import json
import time
from typing import Any

from blobgc.database import Database
from blobgc.errors import Unavailable
from blobgc.stores import Store
from blobgc.stores.base import MARKER

COMPARE = "select * from gc.compare_marker(%s, %s, %s, %s, %s, %s)"

# What was done with a marker, its content and its tag, as gc.compare_marker takes them.
Deed = tuple[str | None, str | None, str | None]
NOTHING: Deed = (None, None, None)


def start(store: Store) -> Deed:
    """Finds out what the store can do, and whether markers stand above its prefix."""
    store.has_conditions()
    found = {}
    scheme, _, path = store.prefix.partition("://")
    folders = path.rstrip("/").split("/")
    for number in range(1, len(folders)):
        address = f"{scheme}://{'/'.join(folders[:number])}/{MARKER}"
        with contextlib.suppress(Exception):  # Who may not read there cannot know.
            marker = store.read_marker(address)
            if marker:
                found[address] = marker.content
    return ("start", json.dumps(found) if found else None, None)


def do(store: Store, answer: dict[str, Any]) -> Deed:
    """Reads or writes, as the database has answered."""
    if answer["action"] == "read":
        found = store.read_marker(answer["address"])
        return ("read", found.content, found.tag) if found else ("read", None, None)
    tag = store.write_marker(answer["address"], answer["body"], answer["replaces"])
    return ("wrote", answer["body"], tag) if tag else ("refused", None, None)


def require(database: Database, worker: str, store: Store, done: Deed) -> None:
    """Goes on until objects may be claimed. Raises if the bucket may be another database's."""
    while True:
        (answer,) = database.call(COMPARE, worker, store.prefix, *done, store.has_conditions())
        if answer["action"] in ("go", "idle"):
            return
        if answer["action"] == "stop":
            raise Unavailable(f"{store.prefix}: nothing is moved here: {answer['reason']}")
        if answer["action"] == "wait":
            time.sleep(answer["seconds"])
            done = NOTHING
        else:
            done = do(store, answer)
