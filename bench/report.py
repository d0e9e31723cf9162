"""bench/RESULTS.md and its picture, made of what the benchmarks found and of bench/remarks.md."""

import inspect
import os
import platform
import re
from pathlib import Path

from harness import Benchmark, Comparison, connect, show
from picture import picture

HERE = Path(__file__).resolve().parent

Found = dict[str, tuple[Benchmark, list[Comparison]]]

OPENING = """\
# Results

<!-- Written by "make bench". What is said by a person comes from bench/remarks.md. -->

Every number is a ratio: both sides ran in the same run, on the same data, in rounds that alternate.
It is the median of the rounds; behind it stand the smallest and the largest. "At most" is for what
tracking or collecting costs, "at least" is for how much faster it is than something else.

"""


def write_report(found: Found) -> None:
    """The table, the picture, and then each benchmark with what it compared."""
    remarks = read_remarks()
    lines = [OPENING, f"Measured on {machine()}.\n\n"]
    lines += ["![Ten of the answers, as a picture](results.svg)\n\n"]
    lines += ["| what | against | aim | measured | |\n", "|---|---|---|---|---|\n"]
    lines += [table_row(name, c) for name, (_, rows) in found.items() for c in rows]
    for name, (benchmark, rows) in found.items():
        lines += [f"\n## {name}\n\n", (inspect.getdoc(benchmark) or "") + "\n\n"]
        lines += [f"- {c.what}, against {c.against}: **{spread(c)}**{figures(c)}\n" for c in rows]
        if not rows:
            lines += ["Not measured yet.\n"]
        if name in remarks:
            lines += ["\n", remarks[name]]
    (HERE / "RESULTS.md").write_text("".join(lines))
    (HERE / "results.svg").write_text(picture({name: rows for name, (_, rows) in found.items()}))


def read_remarks() -> dict[str, str]:
    """What a person has to say about a benchmark, above all where an aim is missed."""
    path = HERE / "remarks.md"
    parts = re.split(r"^## (.+)\n+", path.read_text() if path.exists() else "", flags=re.MULTILINE)
    return {name: text.rstrip() + "\n" for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def machine() -> str:
    with connect() as db:
        row = db.execute("select current_setting('server_version'), now()::date").fetchone()
    assert row is not None
    return (f"{row[1]}, {os.cpu_count()} cores ({platform.machine()}), PostgreSQL {row[0]}, "
            f"Python {platform.python_version()}")


def spread(c: Comparison) -> str:
    return f"{show(c.ratio)} ({show(min(c.ratios))} to {show(max(c.ratios))})"


def verdict(c: Comparison) -> str:
    return "" if not c.aim else "held" if c.holds else "**missed**"


def figures(c: Comparison) -> str:
    said = [c.figures, f"aim {c.aim}: {verdict(c)}" if c.aim else ""]
    return "".join(f"; {part}" for part in said if part)


def table_row(name: str, c: Comparison) -> str:
    cells = f"[{c.what}](#{name})", c.against, c.aim or "–", spread(c), verdict(c)
    return f"| {' | '.join(cells)} |\n"
