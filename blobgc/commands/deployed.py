"""Pin what a cluster runs: images, one a line or separated by blanks.

For a registry that was made by gc.create_registry. The pins end by themselves, so this is called
again and again, by a CronJob for example. Images that the registry does not have are left out.
"""

import argparse
import sys
from pathlib import Path

from blobgc import show
from blobgc.database import Database
from blobgc.errors import SUCCESS

GRANT = "operator"


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("file", nargs="?", default="-",
                        help="what has the images; without it, the standard input")
    parser.add_argument("--holder", required=True, help="whose pins they are: the cluster's name")
    parser.add_argument("--for", default="1 day", dest="time", metavar="TIME",
                        help="how long, as PostgreSQL reads intervals")
    parser.add_argument("--schema", default="registry", help="the registry's schema")


def run(options: argparse.Namespace) -> int:
    text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text()
    quoted = '"' + options.schema.replace('"', '""') + '"'
    found = Database(options.dsn).call(
        f"select * from {quoted}.report_deployed(%s, %s::text[], now() + %s::interval)",
        options.holder, text.split(), options.time)
    if options.json:
        show.print_json(found)
        return SUCCESS
    pinned = 0
    for row in found:
        pinned += row["is_pinned"]
    print(f"{pinned} of {len(found)} images are pinned for {show.plain(options.holder)}")
    return SUCCESS
