"""Install blobgc in a database, or say that it is there.

It creates the extension where the server has its files, and runs the plain script that it carries
where the server has not, as on managed PostgreSQL. Both make the same objects in the schema "gc".
It needs a role that may create schemas in the database, which should be the role that owns the
application's tables. What is there already is left alone.
"""

import argparse
import sys

import blobgc
from blobgc import scripts
from blobgc.errors import SUCCESS, Unusable
from blobgc.installation import Installation


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dsn", default="", help="connection string or URL")
    parser.add_argument("--plain", action="store_true", help="run the plain script in any case")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.add_argument("--print", action="store_true", dest="prints",
                        help="write the script for a migration tool, or for psql -1")


def run(options: argparse.Namespace) -> int:
    if options.prints:
        print(f"-- blobgc {blobgc.__version__}. Run all of it in one transaction.")
        sys.stdout.write(scripts.plain())
        return SUCCESS
    found = Installation(options.dsn)
    where = found.database.describe()
    if found.is_ours:
        return say_what_is_there(found, where)
    if found.has_schema:
        raise Unusable(f'database {where} has a schema "gc" that is not of blobgc: it must be '
                       "renamed or dropped first")
    as_extension = found.has_files and not options.plain
    how = "as an extension" if as_extension else "by the plain script"
    if not found.has_files:
        how += ", because the server has no extension files of this version"
    print(f"installing blobgc {blobgc.__version__} in database {where}, {how}", flush=True)
    if options.dry_run:
        print("nothing was done (--dry-run)")
        return SUCCESS
    if as_extension:
        found.run(f"create extension blobgc version '{blobgc.__version__}'")
    else:
        found.run(scripts.plain())
    print(f"installed blobgc {found.database.version()}")
    return SUCCESS


def say_what_is_there(found: Installation, where: str) -> int:
    version = found.database.version()
    if version != blobgc.__version__:
        raise Unusable(f"database {where} has blobgc {version}, and this is {blobgc.__version__}: "
                       "run blobgc upgrade")
    print(f"blobgc {version} is installed in database {where} as {found.kind}: nothing to do")
    return SUCCESS
