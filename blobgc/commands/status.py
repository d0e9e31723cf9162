"""What waits, what fails and why, for each collection.

Columns that matter most come first, so that the table fits a terminal of 80 columns; --json has all
that gc.status() says.
"""

import argparse
import sys
import time
from typing import Any

import psycopg

from blobgc import show
from blobgc.database import Database
from blobgc.errors import SUCCESS

CLEAR = "\x1b[H\x1b[2J"

# What a person should know of a collection beside its numbers, by the column that says so.
REMARKS = {
    "why": "in the way",
    "last_error": "a review failed",
    "tombstones_last_error": "a delete failed",
    "held_up_by": "held up",
    "advice": "advice",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("--watch", action="store_true", help="show it again and again")
    parser.add_argument("--interval", type=float, default=5, help="seconds in between")


def run(options: argparse.Namespace) -> int:
    database = Database(options.dsn)
    while True:
        found = ask(database)
        if options.watch and not options.json and sys.stdout.isatty():
            sys.stdout.write(CLEAR)
        if options.json:
            show.print_json(found)
        else:
            print_status(found)
        if not options.watch:
            return SUCCESS
        sys.stdout.flush()
        time.sleep(max(options.interval, 0.1))


def ask(database: Database) -> dict[str, Any]:
    found = database.rows("select * from gc.status()")
    return {
        "collections": found,
        "next_due": database.rows("select gc.next_due() as at")[0]["at"],
        "seconds_until_due": round(max(database.seconds_until_due(), 0), 1),
        "last_deleted_at": last_deleted(database),
        "runners": runners(database),
    }


def last_deleted(database: Database) -> str | None:
    (row,) = database.rows("select max(s.last_deleted_at) as at from gc.status() as s")
    return row["at"] and str(row["at"])


def runners(database: Database) -> list[show.Row] | None:
    """Those that have called within an hour, or have a lease; None: this role may not know."""
    try:
        return database.call(
            "select r.*, round(extract(epoch from now() - r.last_call)) as seconds_ago "
            "from gc.runners as r "
            "where r.last_call > now() - interval '1 hour' or r.holds > 0 "
            "order by r.worker, r.application")
    except psycopg.errors.InsufficientPrivilege:
        return None


def print_status(found: dict[str, Any]) -> None:
    lines = []
    for row in found["collections"]:
        lines.append({
            "collection": row["collection"],
            "queued": row["queued"],
            "due": row["due"],
            "waiting": row["tombstones_waiting"] + row["tombstones_claimed"],
            "failing": row["failing"] + row["tombstones_failing"],
            "today": row["deleted_today"],
            "bytes": show.size(row["bytes_today"]),
            "total": row["deleted_total"],
        })
    if lines:
        show.table(lines)
    else:
        print("no collections yet: gc.track makes one")
    print_remarks(found)


def print_remarks(found: dict[str, Any]) -> None:
    for row in found["collections"]:
        if row["paused"]:
            say(paused(row))
        for column, remark in REMARKS.items():
            if row.get(column):
                say(f"{row['collection']}: {remark}: {row[column]}")
    for runner in found["runners"] or []:
        say(described(runner))
    if found["runners"] == []:
        print("no runner has called within an hour")
    if found["last_deleted_at"]:
        print(f"last collected: {show.moment(found['last_deleted_at'])}")
    else:
        print("nothing has been collected so far")
    print(f"next due: in {found['seconds_until_due']:,.0f} s")


def say(text: str) -> None:
    """In as many lines as it takes."""
    show.console().print(show.plain(text))


def paused(row: show.Row) -> str:
    why = f": {row['paused_why']}" if row["paused_why"] else ""
    return (f"{row['collection']}: paused: {row['paused']} by {row['paused_by']}, until "
            f"{show.moment(row['paused_until'])}{why}")


def described(runner: show.Row) -> str:
    """Who it is, when it was here, and what it has."""
    name = runner["worker"] or "(reviews only)"
    place = f" on {runner['host']}, version {runner['version']}" if runner["host"] else ""
    holds = ""
    if runner["holds"]:
        holds = f"; it has {runner['holds']:,} objects, until {show.moment(runner['holds_until'])}"
    return f"runner {name}{place}: last call {runner['seconds_ago']:,.0f} s ago{holds}"
