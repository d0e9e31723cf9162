"""Columns that look like references to a collection and are none, with what to type.

Rows that only such a column refers to would be collected. Names, types and a sample of values are
looked at.
"""

import argparse

from blobgc import show
from blobgc.database import Database
from blobgc.errors import SUCCESS

GRANT = ""  # Nobody but the owner may.


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("collection")
    parser.add_argument("--blocks", type=int, default=32, help="of each table, at most")


def run(options: argparse.Namespace) -> int:
    found = Database(options.dsn).call(
        "select s.*, s.referencing::text as referencing from gc.suspects(%s, %s) as s",
        options.collection, options.blocks)
    if options.json:
        show.print_json(found)
        return SUCCESS
    if not found:
        print("nothing else looks like a reference")
        return SUCCESS
    lines = []
    commands = []
    for row in found:
        lines.append({
            "table": row["referencing"],
            "column": row["keys"],
            "suspicion": row["strength"],
            "why": row["why"],
            "values": row["sampled"],
            "that are keys": row["matching"],
        })
        if row["strength"] == "strong":
            commands += [row["index"], row["command"]]
    show.table(lines)
    print_commands(commands)
    return SUCCESS


def print_commands(commands: list[str | None]) -> None:
    """In lines as they are, so that they can be copied."""
    if commands:
        print("\nTo make references of the strong ones:")
    for command in commands:
        if command:
            print(show.plain(command))
