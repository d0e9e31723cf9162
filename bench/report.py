"""bench/RESULTS.md and its picture, made of what the benchmarks found and of bench/remarks.md."""

import inspect
import os
import platform
import re
from pathlib import Path

from harness import Benchmark, Comparison, Run, connect, show
from picture import picture

HERE = Path(__file__).resolve().parent

Found = dict[str, tuple[Benchmark, Run | None]]

# What no benchmark compares, because one side of it is code that is gone.
BY_HAND = "What safety costs"

# More than what a benchmark itself keeps busy.
BUSY = 4

OPENING = """\
# Results

<!-- Written by "make bench". What is said by a person comes from bench/remarks.md. -->

Every number is a ratio: both sides ran in the same run, on the same data, in rounds that alternate.
It is the median of the rounds; behind it stand the smallest and the largest. "At most" is for what
tracking or collecting costs, "at least" is for how much faster it is than something else. Each
benchmark says when it ran last.

"""


def write_report(found: Found) -> None:
    """The table, the picture, and then each benchmark with what it compared."""
    remarks = read_remarks()
    compared = {name: run.comparisons if run else [] for name, (_, run) in found.items()}
    lines = [OPENING, f"Measured on {machine()}.\n\n"]
    lines += ["![Ten of the answers, as a picture](results.svg)\n\n"]
    lines += ["| what | against | aim | measured | |\n", "|---|---|---|---|---|\n"]
    lines += [table_row(name, c) for name, rows in compared.items() for c in rows]
    for name, (benchmark, run) in found.items():
        lines += [f"\n## {name}\n\n", (inspect.getdoc(benchmark) or "") + "\n\n"]
        lines += [f"- {c.what}, against {c.against}: **{spread(c)}**{figures(c)}\n"
                  for c in compared[name]]
        lines += ["\n", when(run)]
        if name in remarks:
            lines += ["\n", remarks[name]]
    lines += [f"\n## {BY_HAND}\n\n", remarks[BY_HAND]]
    (HERE / "RESULTS.md").write_text("".join(lines))
    (HERE / "results.svg").write_text(picture(compared))


def when(run: Run | None) -> str:
    if run is None:
        return "Not measured yet.\n"
    busy = f", when {run.load:g} processes wanted the two cores" if run.load > BUSY else ""
    return f"Measured on {run.measured}{busy}.\n"


def read_remarks() -> dict[str, str]:
    """What a person has to say about a benchmark, above all where an aim is missed."""
    path = HERE / "remarks.md"
    parts = re.split(r"^## (.+)\n+", path.read_text() if path.exists() else "", flags=re.MULTILINE)
    return {name: text.rstrip() + "\n" for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def machine() -> str:
    with connect() as db:
        row = db.execute("select current_setting('server_version')").fetchone()
    assert row is not None
    return (f"{os.cpu_count()} cores ({platform.machine()}), PostgreSQL {row[0]}, "
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
