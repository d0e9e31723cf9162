"""What a command prints: the rows of a query, as a table for people or as JSON for programs.

A command that calls one function of the database needs no more than this:

    def arguments(parser):
        show.arguments(parser)
        parser.add_argument("collection")

    def run(options):
        return show.query(options, "select * from gc.preview(%s)", options.collection)
"""

import argparse
import json
import re
import shutil
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from blobgc.database import Database
from blobgc.errors import SUCCESS

if TYPE_CHECKING:
    from rich.console import Console

Row = dict[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of every command that shows something."""
    parser.add_argument("--dsn", default="", help="connection string or URL")
    parser.add_argument("--json", action="store_true", help="print JSON")


def query(options: argparse.Namespace, text: str, *values: object) -> int:
    """Asks the database once, and shows its answer."""
    rows(options, Database(options.dsn).call(text, *values))
    return SUCCESS


def rows(options: argparse.Namespace, found: list[Row]) -> None:
    if options.json:
        print_json(found)
    elif not found:
        print("nothing")
    else:
        table(found)


def print_json(found: object) -> None:
    """Control characters are written as \\u001b and so on, as JSON wants it."""
    print(json.dumps(found, default=as_json, indent=2 if sys.stdout.isatty() else None))


def as_json(value: object) -> object:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def plain(value: object) -> str:
    """A value as text, in which nothing moves the cursor, or hides or turns what is around it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return f"{int(value):,}"
    shown = ""
    for character in str(value):
        shown += character if character.isprintable() else ascii(character)[1:-1]
    return shown


def size(number: int | float | Decimal | None) -> str:
    """Bytes, as people say them."""
    left = float(number or 0)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if left < 1000:
            return f"{left:.0f} {unit}" if unit == "B" else f"{left:.1f} {unit}"
        left /= 1000
    return f"{left:,.1f} PB"


def moment(text: str | None) -> str:
    """A time as the database writes it, to the minute."""
    if text == "infinity":
        return "further notice"
    return re.sub(r"(\d\d:\d\d):\d\d(\.\d+)?", r"\1", text or "")


def console() -> "Console":
    """As wide as the terminal; 80 columns where there is none."""
    from rich.console import Console
    return Console(width=shutil.get_terminal_size((80, 24)).columns, highlight=False, markup=False,
                   emoji=False)


def table(found: list[Row]) -> None:
    """Numbers to the right. What does not fit is broken into lines, never cut."""
    from rich.table import Table
    from rich.text import Text
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in found[0]:
        is_number = False
        for row in found:
            is_number = is_number or is_numeric(row[name])
        side: Literal["left", "right"] = "right" if is_number else "left"
        shown.add_column(Text(plain(name)), justify=side, overflow="fold")
    for row in found:
        shown.add_row(*(Text(plain(value)) for value in row.values()))
    console().print(shown)


def is_numeric(value: object) -> bool:
    return isinstance(value, (int, Decimal)) and not isinstance(value, bool)
