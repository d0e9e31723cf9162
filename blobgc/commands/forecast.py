"""What will probably go on each day of the next week.

It is estimated from a sample of what is queued, by the real review, which is undone.
"""

import argparse

from blobgc import show
from blobgc.database import Database
from blobgc.errors import SUCCESS


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)


def run(options: argparse.Namespace) -> int:
    found = Database(options.dsn).call("select * from gc.forecast()")
    if options.json:
        show.print_json(found)
        return SUCCESS
    lines = []
    for row in found:
        if row["queued"]:
            lines.append({
                "day": row["day"],
                "collection": row["collection"],
                "queued": row["queued"],
                "will go": row["expected_rows"],
                "bytes": show.size(row["expected_bytes"]),
                "sampled": row["sampled"],
            })
    if lines:
        show.table(sorted(lines, key=lambda line: (line["day"], line["collection"])))
    else:
        print("nothing is queued for the next week")
    return SUCCESS
