"""Compare what a store has with what the rows say, both ways.

It lists everything under --store, and tells of objects that no row has (orphans), of rows whose
object is not there or has another size, and of uploads in parts that nobody has finished. It
changes nothing, unless it is told to --adopt or --quarantine the orphans. A listing that was
interrupted goes on when the same is said again. The exit code is 5 if there are orphans or rows
without their object.
"""

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from blobgc import logs, markers, show
from blobgc.database import Database
from blobgc.errors import DIFFERS, FAILED, SUCCESS, Unusable, reason
from blobgc.inventories import Inventory
from blobgc.listing import Lister
from blobgc.logs import log
from blobgc.stores import Store, Tombstone, open_store, with_one_line

GRANT = "reconciler"
QUARANTINE = ".blobgc-quarantine/"
FINALIZER = "blobgc.quarantine"
LOOKS = 1000  # Objects that are looked at before the database is told.
LEASE = 300  # Seconds.

# How each kind of difference is called.
WORDS = {
    "missing": "rows without their object",
    "size": "rows whose object has another size",
    "orphan": "objects without a row (orphans)",
    "doubtful": "objects that may belong to a row of another spelling, and are left alone",
    "foreign": "objects that are under the marker of another database, and are left alone",
    "elsewhere": "objects that no collection could have, and are left alone",
    "young": "objects without a row that are too young to tell",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    add = parser.add_argument
    add("--store", required=True, metavar="PREFIX", help="list what is under this")
    add("--from-file", metavar="FILE", type=Path,
        help="read an inventory instead: its manifest.json, or a CSV or Parquet file")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--adopt", action="store_true",
                      help="make tombstones of orphans: a runner deletes them, after undo")
    what.add_argument("--quarantine", action="store_true",
                      help=f"move orphans to {QUARANTINE} under the prefix, now")
    what.add_argument("--undo", action="store_true",
                      help="take back what was adopted under the prefix and is not yet deleted")
    add("--anew", action="store_true", help="do not go on with a listing that was interrupted")
    add("--samples", type=int, default=5, help="so many urls of each kind")
    add("--threads", type=int, default=8, help="requests at a time")
    add("--timeout", type=float, default=30, help="seconds for a request")


def run(options: argparse.Namespace) -> int:
    logs.set_up(False, "INFO")
    if options.threads < 1 or options.samples < 0 or not options.timeout > 0:
        raise Unusable("--threads and --timeout must be positive")
    store = open_store(options.store, options)
    if options.undo:
        return undo(options, store)
    with with_one_line(store):
        return reconcile(options, store)


def reconcile(options: argparse.Namespace, store: Store) -> int:
    if options.adopt or options.quarantine:
        store.check()
    lister = Lister(store, options.dsn, options.threads)
    database = lister.database
    if options.from_file:
        listing = lister.read(Inventory(options.from_file, store.bucket))
    else:
        listing = lister.run(options.anew)
    (row,) = database.call("select gc.end_listing(%s) as objects", listing)
    database.call("select gc.compare(%s)", listing)
    look_for_missing(database, store, listing, options.threads)
    found = database.call("select * from gc.differences(%s, %s)", listing, options.samples)
    report = {"store": store.prefix, "listing": listing, "objects": row["objects"],
              "unnamed": lister.unnamed, "differences": found,
              "leftovers": leftovers(store, options.samples)}
    worker = f"reconcile-{os.uname().nodename}-{os.getpid()}"
    if options.quarantine:  # A runner asks before it deletes; here nobody else does.
        markers.require(database, worker, store, markers.start(store))
    if options.adopt or options.quarantine:
        report["adopted"] = adopt(database, listing, options.quarantine)
    if options.quarantine:
        report["quarantined"], report["failed"] = quarantine(
            database, store, worker, options.threads)
    if options.json:
        show.print_json(report)
    else:
        print_report(report)
    return code_of(report)


def code_of(report: dict[str, Any]) -> int:
    if report.get("failed"):
        return FAILED
    wrong = {"missing", "size"} if "adopted" in report else {"missing", "size", "orphan"}
    return DIFFERS if wrong & {row["kind"] for row in report["differences"]} else SUCCESS


def undo(options: argparse.Namespace, store: Store) -> int:
    (row,) = Database(options.dsn).call("select gc.disown(%s) as objects", store.prefix)
    if options.json:
        show.print_json({"store": store.prefix, "disowned": row["objects"]})
    else:
        print(f"{row['objects']:,} objects under {store.prefix} stay: they are no longer adopted")
    return SUCCESS


def look_for_missing(database: Database, store: Store, listing: int, threads: int) -> None:
    """What was written while the store was listed, or since an inventory, is there by now."""
    last = ""
    with ThreadPoolExecutor(threads) as pool:
        while True:
            rows = database.call(
                "select url collate \"C\" as url from gc.discrepancies where listing = %s "
                "and kind in ('missing', 'size') and url collate \"C\" > %s "
                "group by 1 order by 1 limit %s",
                listing, last, LOOKS)
            if not rows:
                return
            last = rows[-1]["url"]
            urls = [row["url"] for row in rows if store.accepts(row["url"])]
            there = []
            sizes = []
            for url, seen in zip(urls, pool.map(store.look, urls), strict=True):
                if seen is not None:
                    there.append(url)
                    sizes.append(seen.size)
            if there:
                database.call("select gc.absolve(%s, %s, %s)", listing, there, sizes)


def leftovers(store: Store, samples: int) -> dict[str, Any] | None:
    """Uploads in parts that nobody has finished; None: the store does not tell, or not us."""
    number = 0
    oldest = datetime.now(timezone.utc)
    urls = []
    found = store.leftovers()
    if found is None:
        return None
    try:
        for leftover in found:
            number += 1
            oldest = min(oldest, leftover.begun)
            if number <= samples:
                urls.append(leftover.url)
    except Exception as error:
        if store.status_of(error) is None:
            raise
        log.warning("uploads that nobody has finished could not be listed: %s", reason(error))
        return None
    return {"number": number, "oldest": oldest if number else None, "examples": urls}


def adopt(database: Database, listing: int, is_quarantine: bool) -> int:
    total = 0
    while True:
        (row,) = database.call(
            "select gc.adopt_orphans(%s, quarantine => %s) as objects", listing, is_quarantine)
        if not row["objects"]:
            return total
        total += row["objects"]


def quarantine(
    database: Database, store: Store, worker: str, threads: int
) -> tuple[int, int]:
    """Moves what was adopted for that. How many were moved, and how many could not be."""
    moved = failed = 0
    with ThreadPoolExecutor(threads) as pool:
        while True:
            markers.require(database, worker, store, markers.NOTHING)
            rows = database.call(
                "select id, url, generation, size from gc.claim(%s, 1000, %s, %s, %s)",
                worker, f"{LEASE} seconds", [store.prefix], FINALIZER)
            if not rows:
                return moved, failed
            tombstones = [Tombstone(**row) for row in rows]
            done = []
            fates = pool.map(lambda tombstone: move(store, tombstone), tombstones)
            for tombstone, fate in zip(tombstones, fates, strict=True):
                if fate:
                    failed += 1
                    log.warning("%(url)s: %(fate)s", {"url": tombstone.url, "fate": fate})
                    database.call("select gc.fail(%s, %s, %s)", worker, [tombstone.id], fate)
                else:
                    done.append(tombstone.id)
            if done:
                database.call("select gc.confirm(%s, %s)", worker, done)
            moved += len(done)


def move(store: Store, tombstone: Tombstone) -> str:
    """Why it could not be moved; empty: it was."""
    if not store.accepts(tombstone.url, tombstone.generation):
        return "refused: the address or generation leads elsewhere, or has another spelling"
    try:
        store.move(tombstone, store.prefix + QUARANTINE + tombstone.url[len(store.prefix):])
    except FileNotFoundError:
        return ""
    except Exception as error:
        return reason(error)
    return ""


def print_report(report: dict[str, Any]) -> None:
    print(f"{report['objects']:,} objects under {show.plain(report['store'])}")
    for row in report["differences"]:
        whose = f"{show.plain(row['collection'])}: " if row["collection"] else ""
        print(f"{whose}{row['number']:,} {WORDS[row['kind']]} ({show.size(row['bytes'])})")
        for url in row["examples"] or ():
            print(f"    {show.plain(url)}")
    if not report["differences"]:
        print("the rows and the store agree")
    if report["unnamed"]:
        print(f"{report['unnamed']:,} objects whose names are no text: they are left alone")
    print_leftovers(report["leftovers"])
    if "quarantined" in report:
        print(f"{report['quarantined']:,} orphans moved to "
              f"{show.plain(report['store'])}{QUARANTINE}")
    elif "adopted" in report:
        print(f"{report['adopted']:,} orphans adopted: a runner deletes them when their undo "
              "window is over; --undo takes that back")


def print_leftovers(found: dict[str, Any] | None) -> None:
    if found is None:
        print("uploads that nobody has finished: this store does not tell of them")
    elif found["number"]:
        print(f"{found['number']:,} uploads in parts that nobody has finished, the oldest of "
              f"{found['oldest']:%Y-%m-%d}: a lifecycle rule of the bucket can end them")
        for url in found["examples"]:
            print(f"    {show.plain(url)}")
