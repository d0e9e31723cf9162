"""What the next review would do, row by row, found out by doing it and undoing it.

Without --all, only what is due now is looked at. Triggers of the application fire and are rolled
back.
"""

import argparse

from blobgc import show
from blobgc.database import Database
from blobgc.errors import SUCCESS

ORDER = ("deleted", "failed", "busy", "put off", "kept")  # What goes comes first.


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("--collection", help="this one only")
    parser.add_argument("--batch", type=int, default=1000, help="so many rows of each, at most")
    parser.add_argument("--all", action="store_true", dest="is_all",
                        help="as if all that is queued were due now")


def run(options: argparse.Namespace) -> int:
    found = Database(options.dsn).call(
        "select * from gc.preview(%s, %s, due => %s)", options.collection, options.batch,
        not options.is_all)
    if options.json:
        show.print_json(found)
        return SUCCESS
    takes_more = any(row["with_it"] for row in found)
    if not found:
        print("nothing is queued" if options.is_all else
              "nothing is due now; --all looks at what is queued")
        return SUCCESS
    found.sort(key=lambda row: ORDER.index(row["verdict"]))  # Stable.
    lines = []
    for row in found:
        line = {
            "collection": row["collection"],
            "row": row["label"] or row["key"],
            "size": "" if row["size"] is None else show.size(row["size"]),
            "verdict": row["verdict"],
            "why": row["detail"] or row["event"],
        }
        if takes_more:
            line["with it"] = with_it(row)
        lines.append(line)
    show.table(lines)
    print(summary(found))
    return SUCCESS


def with_it(row: show.Row) -> str:
    """Rows of other tables that go with this one."""
    parts = []
    for table, number in (row["with_it"] or {}).items():
        parts.append(f"{number:,} {table}")
    return ", ".join(parts)


def summary(found: list[show.Row]) -> str:
    counts: dict[str, int] = {}
    freed = 0
    for row in found:
        counts[row["verdict"]] = counts.get(row["verdict"], 0) + 1
        if row["verdict"] == "deleted":
            freed += row["size"] or 0
    parts = []
    for verdict, number in counts.items():
        more = f" ({show.size(freed)})" if verdict == "deleted" else ""
        parts.append(f"{number:,} {verdict}{more}")
    return "of these: " + ", ".join(parts)
