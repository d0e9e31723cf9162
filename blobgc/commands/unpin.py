"""End pins; the rows are reviewed again.

The exit code is 1 if one of the rows was not pinned by this holder.
"""

import argparse

from blobgc import show
from blobgc.commands.pin import tell
from blobgc.database import Database

GRANT = "operator"


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("collection")
    parser.add_argument("key", nargs="+", help="a row's primary key, as text")
    parser.add_argument("--holder", help="whose pin it is; without it, the role's")


def run(options: argparse.Namespace) -> int:
    found = Database(options.dsn).call(
        "select * from gc.unpin(%s, %s::text[], coalesce(%s, session_user))",
        options.collection, options.key, options.holder)
    return tell(options, found, "unpinned", "this holder had no pin of it")
