"""Put rows back that were deleted, with what went with them and with what they need.

All of them come back, or none. The exit code is 1 if something is in the way. Only the owner of
blobgc may do that. What can be restored: blobgc trash.
"""

import argparse

import psycopg

from blobgc import show
from blobgc.database import Database
from blobgc.errors import SUCCESS, Unavailable, Unusable

GRANT = ""  # Nobody but the owner may.
REFUSED = "ZG010"

BY_KEY = "select gc.restore(%s, k) as restored from unnest(%s::text[]) as k"
BY_TIME = """
select gc.restore(t.collection, t.key) as restored from gc.trash as t
where t.deleted_at >= %s::timestamptz and (%s::text is null or t.collection = %s)
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("collection", nargs="?", help="or a table that went with one")
    parser.add_argument("key", nargs="*", help="a row's primary key, as text")
    parser.add_argument("--since", metavar="TIME",
                        help="all that went since then, instead of keys")


def run(options: argparse.Namespace) -> int:
    if bool(options.key) == bool(options.since):
        raise Unusable("either keys of a collection, or --since")
    database = Database(options.dsn)
    try:
        if options.key:
            (row,) = database.call(BY_KEY, options.collection, options.key)
        else:
            (row,) = database.call(BY_TIME, options.since, options.collection, options.collection)
    except psycopg.Error as error:
        if error.sqlstate != REFUSED:
            raise
        raise Unavailable(refusal(error)) from error
    restored = row["restored"] or 0
    if options.json:
        show.print_json({"restored": restored})
    else:
        print(f"{restored:,} {'row has' if restored == 1 else 'rows have'} come back")
    return SUCCESS


def refusal(error: psycopg.Error) -> str:
    """What is in the way, and what to do about it: nothing was changed."""
    told = error.diag.message_primary or ""
    if error.diag.message_detail:
        told += f": {error.diag.message_detail}"
    if error.diag.message_hint:
        told += f" ({error.diag.message_hint})"
    return show.plain(told)
