"""Bring back objects that rows have and the store does not, where it has kept them.

They are those that the last blobgc reconcile of the same --store has found missing. An S3 bucket
with versions may have one under a delete marker; Google Cloud Storage may have a noncurrent or a
soft-deleted one. Of several that have the size that the row says, the newest is taken. What cannot
be brought back is told, and then the exit code is 5.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from blobgc import show
from blobgc.database import Database
from blobgc.errors import DIFFERS, FAILED, SUCCESS, Unusable, reason
from blobgc.stores import Store, open_store, with_one_line

GRANT = "reconciler"
AT_ONCE = 1000
REVIVED, THERE, GONE, CHANGED, FAILING = "revived", "there", "gone", "other size", "failed"

WORDS = {
    REVIVED: "objects were brought back",
    THERE: "objects are there by now",
    GONE: "objects are gone for good: the store has kept nothing of them",
    CHANGED: "objects are left alone: the store has kept only versions of another size",
    FAILING: "objects could not be brought back at this moment",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    add = parser.add_argument
    add("--store", required=True, metavar="PREFIX", help="where blobgc reconcile was used")
    add("--dry-run", action="store_true", help="say what could be brought back, and leave it")
    add("--samples", type=int, default=5, help="so many urls of each kind")
    add("--threads", type=int, default=8, help="requests at a time")
    add("--timeout", type=float, default=30, help="seconds for a request")


def run(options: argparse.Namespace) -> int:
    store = open_store(options.store, options)
    with with_one_line(store):
        return revive_all(options, store)


def revive_all(options: argparse.Namespace, store: Store) -> int:
    store.prepare()
    database = Database(options.dsn)
    listing = last_listing(database, store.prefix)
    counts: dict[str, int] = {}
    examples: dict[str, list[str]] = {}
    last = ""
    with ThreadPoolExecutor(options.threads) as pool:
        while rows := missing_after(database, listing, last):
            last = rows[-1]["url"]
            there: list[show.Row] = []
            fates = pool.map(lambda row: revive(store, row, options.dry_run), rows)
            for row, fate in zip(rows, fates, strict=True):
                kind = fate.partition(":")[0]
                counts[kind] = counts.get(kind, 0) + 1
                if counts[kind] <= options.samples:
                    shown = row["url"] + fate[len(kind):]
                    examples.setdefault(kind, []).append(shown)
                if kind in (REVIVED, THERE) and not options.dry_run:
                    there.append(row)
            tell(database, store, listing, there)
    report = {"store": store.prefix, "listing": listing, "dry_run": options.dry_run,
              "objects": counts, "examples": examples}
    if options.json:
        show.print_json(report)
    else:
        print_report(report)
    if counts.get(FAILING):
        return FAILED
    return DIFFERS if counts.get(GONE) or counts.get(CHANGED) else SUCCESS


def last_listing(database: Database, prefix: str) -> int:
    rows = database.call(
        "select id from gc.listings where prefix = %s and compared_at is not null", prefix)
    if not rows:
        raise Unusable(f"nobody has compared {prefix} with rows: blobgc reconcile --store {prefix}")
    return int(rows[0]["id"])


def missing_after(database: Database, listing: int, last: str) -> list[show.Row]:
    return database.call(
        "select url collate \"C\" as url, max(size) as size from gc.discrepancies "
        "where listing = %s and kind = 'missing' and url collate \"C\" > %s "
        "group by 1 order by 1 limit %s", listing, last, AT_ONCE)


def revive(store: Store, row: show.Row, is_trial: bool) -> str:
    """What became of one; after a colon, why."""
    url, size = row["url"], row["size"]
    if not store.accepts(url):
        return f"{FAILING}: refused: the address has another spelling"
    try:
        if store.look(url) is not None:
            return THERE
        kept = store.kept_versions(url)
        if not kept:
            return GONE
        fitting = [version for version in kept if size is None or version.size == size]
        if not fitting:
            return CHANGED
        if not is_trial:
            store.revive(url, fitting[0])
        return REVIVED
    except Exception as error:
        return f"{FAILING}: {reason(error)}"


def tell(database: Database, store: Store, listing: int, there: list[show.Row]) -> None:
    """Rows whose objects are there again are not without an object any more."""
    if there:
        urls = [row["url"] for row in there]
        seen = [store.look(url) for url in urls]
        sizes = [found.size if found else None for found in seen]
        database.call("select gc.absolve(%s, %s, %s)", listing, urls, sizes)


def print_report(report: dict[str, Any]) -> None:
    for kind, words in WORDS.items():
        if report["objects"].get(kind):
            could = " (if this were no dry run)" if kind == REVIVED and report["dry_run"] else ""
            print(f"{report['objects'][kind]:,} {words}{could}")
            for url in report["examples"][kind]:
                print(f"    {show.plain(url)}")
    if not report["objects"]:
        print("no row is without its object")
