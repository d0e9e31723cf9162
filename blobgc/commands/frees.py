"""What would go, in rows and bytes, if this row went.

What it shares with others is not counted. Only the owner of blobgc may ask.
"""

import argparse

from blobgc import show
from blobgc.database import Database
from blobgc.errors import SUCCESS

GRANT = ""  # Nobody but the owner may.


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("collection")
    parser.add_argument("key", help="the row's primary key, as text")


def run(options: argparse.Namespace) -> int:
    found = Database(options.dsn).call(
        "select * from gc.frees(%s, %s)", options.collection, options.key)
    if options.json:
        show.print_json(found)
        return SUCCESS
    lines = []
    is_complete = True
    for row in found:
        is_complete = is_complete and row["is_complete"]
        lines.append({
            "collection": row["collection"],
            "rows": row["rows"],
            "bytes": show.size(row["bytes"]),
            "rows that it owns": row["owned_rows"],
        })
    show.rows(options, lines)
    if not is_complete:
        print("there is more: it was not followed to its end")
    return SUCCESS
