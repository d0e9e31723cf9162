"""What was deleted on each day: rows, objects and bytes.

Days are days of UTC.
"""

import argparse

from blobgc import show
from blobgc.database import Database
from blobgc.errors import SUCCESS

GRANT = "viewer"

QUERY = """
select t.day, sum(t.rows)::bigint as rows, sum(t.objects)::bigint as objects,
    sum(t.bytes)::bigint as bytes
from gc.daily_totals as t
where t.day > (now() at time zone 'UTC')::date - %s::integer
    and (%s::text is null or t.collection = %s)
group by t.day
order by t.day
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("collection", nargs="?", help="this one only")
    parser.add_argument("--days", type=int, default=30, help="so many, up to today")


def run(options: argparse.Namespace) -> int:
    found = Database(options.dsn).call(
        QUERY, options.days, options.collection, options.collection)
    if not options.json:
        for row in found:
            row["reclaimed"] = show.size(row.pop("bytes"))
    show.rows(options, found)
    return SUCCESS
