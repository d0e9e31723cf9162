"""The SQL that the package carries. A clone has it in build/, and makes it when it is asked for."""

import subprocess
from pathlib import Path

import blobgc
from blobgc.errors import Unusable

HERE = Path(__file__).resolve().parent
CLONE = HERE.parent


def folder() -> Path:
    """In a wheel, beside this file; in a clone, where make puts it."""
    carried = HERE / "sql"
    if carried.is_dir():
        return carried
    try:
        subprocess.run(["make", "-s", "all", "plain"], cwd=CLONE, check=True,
                       stdout=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unusable(f"the SQL cannot be made in {CLONE}: {error}") from error
    return CLONE / "build"


def plain() -> str:
    """What installs blobgc where no extension files can be copied to, for one transaction."""
    return bare((folder() / "blobgc-plain.sql").read_text())


def plain_upgrade(version: str) -> str | None:
    """What brings such an installation from that version to this one; None: there is no way."""
    path = folder() / f"blobgc-plain--{version}--{blobgc.__version__}.sql"
    return bare(path.read_text()) if path.exists() else None


def bare(script: str) -> str:
    """Without what is only for psql: its commands, and the transaction around the script."""
    kept = []
    for line in script.splitlines(keepends=True):
        if not line.startswith("\\") and line not in ("begin;\n", "commit;\n"):
            kept.append(line)
    return "".join(kept)
