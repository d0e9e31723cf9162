"""Bring blobgc in a database to the version of this program.

An extension is upgraded with the files that the server has, a plain script with the one that this
program carries; the registry of gc.create_registry, if there is one, comes with it. It is one
transaction. Who writes to tracked tables, or asks blobgc something, waits for a few seconds.
"""

import argparse

import blobgc
from blobgc import scripts
from blobgc.errors import SUCCESS, Unusable
from blobgc.installation import Installation


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dsn", default="", help="connection string or URL")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")


def run(options: argparse.Namespace) -> int:
    found = Installation(options.dsn)
    where = found.database.describe()
    if not found.is_ours:
        raise Unusable(f"blobgc is not installed in database {where}: run blobgc install")
    version = found.database.version()
    if version != blobgc.__version__:
        script = way(found, version)
        print(f"upgrading blobgc {version} to {blobgc.__version__} in database {where}, "
              f"{found.kind}", flush=True)
    elif found.has_old_registry():
        script = ""
        print(f"upgrading the registry in database {where} to blobgc {version}", flush=True)
    else:
        print(f"blobgc {version} is installed in database {where} as {found.kind}: nothing to do")
        return SUCCESS
    if options.dry_run:
        print("nothing was done (--dry-run)")
        return SUCCESS
    found.run_as_owner(f"{script};select gc.upgrade_registry()")
    print(f"installed blobgc {found.database.version()}")
    return SUCCESS


def way(found: Installation, version: str) -> str:
    """What to run."""
    if found.is_extension:
        if found.has_way(version):
            return f"alter extension blobgc update to '{blobgc.__version__}'"
        raise Unusable(f"the server has no files that bring the extension from {version} to "
                       f"{blobgc.__version__}: copy them there with make install")
    script = scripts.plain_upgrade(version)
    if script is None:
        raise Unusable(f"there is no way from blobgc {version} to {blobgc.__version__}: take the "
                       "program of the database's version")
    return script
