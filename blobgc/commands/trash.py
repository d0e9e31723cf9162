"""What can be restored, and until when: the latest first."""

import argparse

from blobgc import show
from blobgc.database import Database
from blobgc.errors import SUCCESS

GRANT = "viewer"

QUERY = """
select t.collection, t.key, t.label, t.bytes, t.event, t.deleted_at, t.until, t.reviewed
from gc.trash as t
where (%s::text is null or t.collection = %s)
    and (%s::timestamptz is null or t.deleted_at >= %s::timestamptz)
order by t.deleted_at desc, t.collection, t.key
limit %s
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("collection", nargs="?", help="this one, or this table, only")
    parser.add_argument("--since", metavar="TIME",
                        help="what went since then, as PostgreSQL reads times")
    parser.add_argument("--limit", type=int, default=100, help="so many at most; 100")


def run(options: argparse.Namespace) -> int:
    found = Database(options.dsn).call(
        QUERY, options.collection, options.collection, options.since, options.since,
        options.limit)
    if options.json:
        show.print_json(found)
        return SUCCESS
    lines = []
    for row in found:
        lines.append({
            "collection": row["collection"],
            "key": row["key"],
            "label": row["label"],
            "bytes": "" if row["bytes"] is None else show.size(row["bytes"]),
            "why": row["event"] or (f"with a row of {row['reviewed']}" if row["reviewed"]
                                    else "the application"),
            "until": show.moment(row["until"]),
        })
    show.rows(options, lines)
    if len(found) == options.limit:
        print(f"there may be more: these are the latest {options.limit:,}")
    return SUCCESS
