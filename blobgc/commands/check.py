"""Find all that is wrong, in the database, the stores and between them, and say how to mend it.

The most important comes first. The exit code is 1 if there is an error or a warning, so that it can
stand in a pipeline. What is in the database, gc.check() finds, for which one must be the owner of
blobgc. Each --store is asked to delete an object that is not there, as a runner does at its start.
"""

import argparse
import time

import psycopg

import blobgc
from blobgc import show
from blobgc.database import Database
from blobgc.errors import FAILED, SUCCESS, Unusable, one_line, reason
from blobgc.stores import Store, open_store
from blobgc.stores.base import MARKER

SEVERITIES = ("error", "warning", "remark")
CLOCKS_MAY_DIFFER = 30.0  # Seconds.


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("--store", action="append", default=[], metavar="PREFIX",
                        help="one that a runner is given")
    parser.add_argument("--timeout", type=float, default=10, help="seconds for a request to it")
    parser.set_defaults(threads=1)


def run(options: argparse.Namespace) -> int:
    database = Database(options.dsn, is_silent=True)
    found = of_versions(database)
    found += of_rights(database)
    found += of_database(database)
    found += of_stores(options)
    found += of_prefixes(database, options.store)
    found += of_clocks(database)
    found.sort(key=lambda finding: SEVERITIES.index(finding["severity"]))  # Stable.
    code = SUCCESS
    for row in found:
        if row["severity"] != "remark":
            code = FAILED
    if options.json:
        show.print_json(found)
    else:
        print_findings(found)
    return code


def finding(severity: str, subject: str, problem: str, command: str) -> show.Row:
    return {"severity": severity, "subject": subject, "problem": problem, "command": command}


def of_versions(database: Database) -> list[show.Row]:
    version = database.version()
    if version == blobgc.__version__:
        return []
    return [finding("warning", "blobgc", f"the database has version {version}, and this is "
                    f"{blobgc.__version__}", "blobgc upgrade")]


def of_rights(database: Database) -> list[show.Row]:
    """Whether this role may do what a runner does."""
    try:
        database.check()
    except psycopg.errors.InsufficientPrivilege as error:
        user = database.connection.info.user
        return [finding("error", f"role {user}", f"it cannot be a runner: {one_line(error)}",
                        f"select gc.grant_runner('{user}');")]
    except Unusable as error:
        return [finding("error", "blobgc", str(error), "blobgc upgrade")]
    return []


def of_database(database: Database) -> list[show.Row]:
    try:
        return database.call("select * from gc.check()")
    except psycopg.errors.InsufficientPrivilege:
        user = database.connection.info.user
        return [finding("warning", f"role {user}", "it may not look into the database: only the "
                        "owner of blobgc may", "blobgc check --dsn 'user=…'")]


def of_stores(options: argparse.Namespace) -> list[show.Row]:
    found = []
    for prefix in options.store:
        try:
            store = open_store(prefix, options)
            store.check()
            if not store.is_well():
                raise Unusable("it does not answer, or fails, at this moment")
            look_at_marker(store)
        except Unusable as error:
            problem = str(error).removeprefix(f"--store {prefix}").lstrip("/").removeprefix(": ")
            found.append(finding(
                "error", prefix, problem,
                "mend the prefix, the credentials or the right to delete there, and check again"))
    return found


def look_at_marker(store: Store) -> None:
    """Whether a runner may read it. What stands there, the database compares."""
    try:
        store.read_marker(store.prefix + MARKER)
    except Exception as error:
        raise Unusable(f"its marker {MARKER} cannot be read: {reason(error)}") from error


def of_prefixes(database: Database, prefixes: list[str]) -> list[show.Row]:
    """Collections whose objects are under none of the prefixes, as far as one can tell."""
    found: list[show.Row] = []
    if not prefixes:
        return found
    try:
        collections = database.call(
            "select c.name, c.url_prefix from gc.collections as c where c.url_prefix is not null "
            "order by c.name")
    except psycopg.errors.InsufficientPrivilege:
        return found
    for row in collections:
        for prefix in prefixes:
            folder = prefix.removesuffix("/") + "/"
            if row["url_prefix"].startswith(folder) or folder.startswith(row["url_prefix"]):
                break
        else:
            found.append(finding(
                "warning", row["name"], f"its objects are under {row['url_prefix']}, which is "
                "under no --store", f"blobgc run --store {row['url_prefix']}"))
    return found


def of_clocks(database: Database) -> list[show.Row]:
    """Nothing is decided by the clock here; but people compare the times of logs."""
    before = time.time()
    (row,) = database.call("select extract(epoch from clock_timestamp())::float8 as now")
    after = time.time()
    off = max(before - row["now"], row["now"] - after, 0)
    if off <= CLOCKS_MAY_DIFFER:
        return []
    return [finding("warning", "clocks", f"the clock here and that of the database differ by "
                    f"{off:,.0f} s", "timedatectl set-ntp true")]


def print_findings(found: list[show.Row]) -> None:
    counts = dict.fromkeys(SEVERITIES, 0)
    for row in found:
        counts[row["severity"]] += 1
        show.console().print(show.plain(f"{row['severity']}: {row['subject']}: {row['problem']}"))
        for line in (row["command"] or "").splitlines():
            print("    " + show.plain(line))
    parts = []
    for severity, number in counts.items():
        if number:
            parts.append(f"{number} {severity}{'' if number == 1 else 's'}")
    print(", ".join(parts) or "nothing is wrong")
