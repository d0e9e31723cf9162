"""Why a row, or an object, is there still, or where it has gone.

The verdict comes first; below it are its reasons, each with its own, up to a root.
"""

import argparse

from blobgc import show
from blobgc.database import Database
from blobgc.errors import SUCCESS, Unusable

GRANT = "viewer"


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("collection", nargs="?")
    parser.add_argument("key", nargs="?", help="the row's primary key, as text")
    parser.add_argument("--url", help="begin with this object instead of a row")


def run(options: argparse.Namespace) -> int:
    if (options.url is None) == (options.key is None) or options.url and options.collection:
        raise Unusable("explain takes a collection and a key, or --url")
    database = Database(options.dsn)
    if options.url is not None:
        found = database.call("select * from gc.explain_url(%s)", options.url)
    else:
        found = database.call(
            "select * from gc.explain(%s, %s)", options.collection, options.key)
    if options.json:
        show.print_json(found)
        return SUCCESS
    for row in found:
        print("  " * row["depth"] + line(row))
    return SUCCESS


def line(row: show.Row) -> str:
    if row["detail"]:
        return show.plain(f"{row['subject']}: {row['detail']}")
    return show.plain(row["subject"])
