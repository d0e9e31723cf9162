"""Stop reviews and deletes, of one collection or of all, at their next batch.

Tracking goes on, so nothing is missed meanwhile. Pausing again changes reason and end.
"""

import argparse

from blobgc import show
from blobgc.database import Database
from blobgc.errors import SUCCESS

GRANT = "operator"

PAUSED = """
select p.collection, p.what, p.paused_by, p.reason, p.until, p.since
from gc.pauses as p
where p.until > clock_timestamp()
order by p.collection nulls first, p.what desc
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("collection", nargs="?", help="this one only; without it, all")
    parser.add_argument("--reason", help="why, for those who wonder later")
    parser.add_argument("--until", default="infinity", metavar="TIME",
                        help="when it ends by itself, as PostgreSQL reads times")
    parser.add_argument("--what", choices=["reviews", "deletes"], help="one of the two only")


def run(options: argparse.Namespace) -> int:
    database = Database(options.dsn)
    database.call(
        "select gc.pause(%s, %s, %s::timestamptz, %s)", options.collection, options.reason,
        options.until, options.what)
    found = database.call(PAUSED)
    if options.json:
        show.print_json(found)
    else:
        print_paused(found)
    return SUCCESS


def print_paused(found: list[show.Row]) -> None:
    """All that is paused, whoever did it."""
    if not found:
        print("nothing is paused")
        return
    lines = []
    for row in found:
        lines.append({
            "collection": row["collection"] or "(all)",
            "paused": row["what"],
            "by": row["paused_by"],
            "until": show.moment(row["until"]),
            "reason": row["reason"],
        })
    show.table(lines)
