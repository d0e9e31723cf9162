"""Pin rows: they are not collected, nor what they own, until they are unpinned.

Each holder has its own pin of a row. The exit code is 1 if one of the rows is not there.
"""

import argparse

from blobgc import show
from blobgc.database import Database
from blobgc.errors import FAILED, SUCCESS

GRANT = "operator"


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("collection")
    parser.add_argument("key", nargs="+", help="a row's primary key, as text")
    parser.add_argument("--reason", help="why, for those who wonder later")
    parser.add_argument("--until", default="infinity", metavar="TIME",
                        help="when it ends by itself, as PostgreSQL reads times")
    parser.add_argument("--holder", help="whose pin it is; without it, the role's")


def run(options: argparse.Namespace) -> int:
    found = Database(options.dsn).call(
        "select * from gc.pin(%s, %s::text[], %s, %s::timestamptz, coalesce(%s, session_user))",
        options.collection, options.key, options.reason, options.until, options.holder)
    return tell(options, found, "pinned", "it is not there")


def tell(options: argparse.Namespace, found: list[show.Row], done: str, otherwise: str) -> int:
    """What was done with each key."""
    code = SUCCESS
    for row in found:
        if not row[done]:
            code = FAILED
    if options.json:
        show.print_json(found)
        return code
    for row in found:
        print(show.plain(f"{row['key']}: {done if row[done] else f'not {done}: {otherwise}'}"))
    return code
