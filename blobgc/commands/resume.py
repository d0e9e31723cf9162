"""End a pause, of one collection or the one of all.

After the brake has stopped a collection, --allow says how many more rows may go within a day.
"""

import argparse

from blobgc import show
from blobgc.commands.pause import PAUSED, print_paused
from blobgc.database import Database
from blobgc.errors import SUCCESS

GRANT = "operator"


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("collection", nargs="?", help="without it, the pause of all of them")
    parser.add_argument("--allow", type=int, metavar="ROWS",
                        help="the brake lets so many through")
    parser.add_argument("--what", choices=["reviews", "deletes"], help="one of the two only")


def run(options: argparse.Namespace) -> int:
    database = Database(options.dsn, is_silent=True)
    (row,) = database.call(
        "select gc.resume(%s, %s, %s) as ended", options.collection, options.what, options.allow)
    found = database.call(PAUSED)
    if options.json:
        show.print_json({"ended": row["ended"], "paused": found})
        return SUCCESS
    print(f"{row['ended']} {'pause has' if row['ended'] == 1 else 'pauses have'} ended")
    if found:
        print("still paused:")
        print_paused(found)
    return SUCCESS
