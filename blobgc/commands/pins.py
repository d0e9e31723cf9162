"""Which rows are pinned, by whom, why and until when."""

import argparse

from blobgc import show
from blobgc.database import Database
from blobgc.errors import SUCCESS

GRANT = "operator"

QUERY = """
select p.collection, p.key, p.holder, p.reason, p.until, p.pinned_by, p.since
from gc.pins as p
where p.until > clock_timestamp()
    and (%s::text is null or p.collection = %s) and (%s::text is null or p.holder = %s)
order by p.collection, p.holder, p.since, p.key
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("collection", nargs="?", help="this one only")
    parser.add_argument("--holder", help="those of this one only")


def run(options: argparse.Namespace) -> int:
    found = Database(options.dsn).call(
        QUERY, options.collection, options.collection, options.holder, options.holder)
    if not options.json:
        for row in found:
            row["until"] = show.moment(row["until"])
            del row["pinned_by"], row["since"]
    show.rows(options, found)
    return SUCCESS
