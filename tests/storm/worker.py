"""A runner of the storm: `blobgc run` with a store that fails and delays, and a journal.

It is the runner as it is, with three things around it.

- The store: a delete takes its time, and fails before or after it has happened, at random, until
  there is a file `calm` in the storm's folder.
- The journal, a file of the process in the folder `journal`: what was claimed and confirmed, when.
- Haste: it asks again at once, or a moment later, and sometimes confirms when its lease is over.

The file `gate` is locked while a delete is under way, from the look at the clock on: a runner that
is stopped just there deletes late, which nothing can prevent in a store without generations (see
"A delete arrives late" in docs/safety.md). So the storm stops nobody who has the lock.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from blobgc import runner
from blobgc.cli import main
from blobgc.database import Database
from blobgc.stores import Store, Tombstone
from blobgc.stores.file import FileStore
from blobgc.stores.flow import Flow

FAILS, LOSES_ANSWER = 0.04, 0.04  # Of the deletes.
DELAY = 0.06  # Seconds, at most.
IS_LATE = 0.15  # Of the batches: their confirm comes when the lease is over.
POLL = 0.1  # Seconds,
PAUSES, LATER_PAUSES = [0.0, 0.1], [0.0, 0.2, 0.6]  # what a sleep takes at least,
RESTS, LATER_RESTS = [0.0, 0.2], [0.0, 0.5, 1.5]  # and what comes after a review.

chance = random.Random()
folder = Path()
later = 0.0  # From then on it has less haste: to find little costs as much as to find much.


def is_calm() -> bool:
    return (folder / "calm").exists()


class GatedFlow(Flow):
    """Who has a turn has the gate."""

    def __init__(self, largest: int, widest: int) -> None:
        super().__init__(largest, widest)
        self.local = threading.local()

    def enter(self, seconds: float) -> bool:
        if not super().enter(seconds):
            return False
        self.local.gate = os.open(folder / "gate", os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.local.gate, fcntl.LOCK_SH)
        return True

    def leave(self) -> None:
        os.close(self.local.gate)
        super().leave()


class ShakyFiles(FileStore):
    """A folder as slow and as unreliable as a store behind a network."""

    def __init__(self, prefix: str, options: argparse.Namespace) -> None:
        super().__init__(prefix, options)
        self.flow: Flow = GatedFlow(self.per_request, options.threads)

    def delete(self, tombstones: list[Tombstone]) -> list[str]:
        if is_calm() or ".blobgc-" in tombstones[0].url:
            return super().delete(tombstones)
        begun = time.monotonic()
        time.sleep(chance.choice([0, 0, chance.uniform(0, DELAY)]))
        fault = chance.random()
        if fault < FAILS:
            raise OSError(errno.EIO, "injected")
        if time.monotonic() > begun + self.timeout:
            raise TimeoutError("the machine is busy")
        answer = super().delete(tombstones)
        if fault < FAILS + LOSES_ANSWER:
            raise OSError(errno.ECONNRESET, "injected after the delete")
        return answer


def open_shaky(prefixes: list[str], options: argparse.Namespace) -> list[Store]:
    return [ShakyFiles(prefix, options) for prefix in prefixes]


class Journal:
    """Lines of JSON. What has been written survives the process."""

    def __init__(self) -> None:
        path = folder / "journal" / str(os.getpid())
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what: str, ids: list[int], **more: object) -> None:
        line = {"at": time.time(), "what": what, "ids": ids, **more}
        os.write(self.file, json.dumps(line).encode() + b"\n")


class JournaledDatabase(Database):
    """Every try is noted, before and after."""

    journal: Journal

    def call(self, query: str, *arguments: object) -> list[dict[str, Any]]:
        if "gc.confirm(%s" not in query:
            found = super().call(query, *arguments)
            if "gc.claim(%s" in query:
                self.journal.note("claimed", [row["id"] for row in found])
            return found
        ids = arguments[1]
        assert isinstance(ids, list)
        self.journal.note("confirming", ids)
        found = super().call(query, *arguments)
        self.journal.note("confirmed", ids, number=found[0]["confirm"])
        return found


class HastyRunner(runner.Runner):
    def sleep(self, database: Database, seconds: float) -> None:
        pauses = PAUSES if time.monotonic() < later else LATER_PAUSES
        super().sleep(database, seconds if is_calm() else max(seconds, chance.choice(pauses)))

    def seconds_to_rest(self, database: Database, worked: float) -> float:
        if is_calm() or database is not self.reviewing:
            return super().seconds_to_rest(database, worked)
        return chance.choice(RESTS if time.monotonic() < later else LATER_RESTS)

    def settle(self, batch: runner.Batch) -> None:
        if chance.random() < IS_LATE and not is_calm():
            over = batch.claimed + self.options.lease + chance.uniform(0, 0.15)
            time.sleep(max(over - time.monotonic(), 0))
        super().settle(batch)


def run(
    storm: Path, no_haste_from: float, seed: str, environment: dict[str, str], arguments: list[str]
) -> None:
    """In a process of its own, forked from one that has imported everything."""
    global folder, later
    folder = storm
    later = no_haste_from
    chance.seed(seed)
    os.environ.update(environment)
    with (folder / "logs" / str(os.getpid())).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    JournaledDatabase.journal = Journal()
    runner.POLL = POLL
    runner.__dict__.update(
        open_stores=open_shaky, Database=JournaledDatabase, Runner=HastyRunner)
    sys.exit(main(["run", *arguments]))
