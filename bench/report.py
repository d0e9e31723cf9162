"""bench/RESULTS.md and its picture, made of what the benchmarks found and of bench/remarks.md."""

import inspect
import math
import os
import platform
import re
from collections.abc import Callable
from html import escape
from pathlib import Path

from harness import Benchmark, Comparison, connect, show

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
    lines = [OPENING, f"Measured on {machine()}.\n\n", "![The same as a picture](results.svg)\n\n"]
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
    (HERE / "results.svg").write_text(picture([c for _, rows in found.values() for c in rows]))


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


def picture(comparisons: list[Comparison]) -> str:
    """Ratios on a logarithmic axis: the spread as a line, the median as a dot, the aim as a bar."""
    rows = [c for c in comparisons if c.ratios]
    low = math.floor(min((math.log10(min(c.ratios)) for c in rows), default=0))
    high = math.ceil(max((math.log10(max(c.ratios)) for c in rows), default=1))
    left, right, top, step = 560, 1040, 40, 24
    height = top + step * len(rows) + 20

    def x(ratio: float) -> float:
        return left + (right - left) * (math.log10(ratio) - low) / (high - low)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="1120" height="{height}" '
             f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" '
             f'fill="white"/>']
    for power in range(low, high + 1):
        at = x(10.0 ** power)
        parts.append(f'<line x1="{at:.1f}" y1="{top - 10}" x2="{at:.1f}" y2="{height - 15}" '
                     f'stroke="#ddd"/><text x="{at:.1f}" y="{top - 16}" text-anchor="middle">'
                     f'{10.0 ** power:g} ×</text>')
    for number, c in enumerate(rows):
        parts += drawn(c, top + step * number + 8, left, x)
    return "\n".join([*parts, "</svg>\n"])


def drawn(c: Comparison, y: int, left: int, x: Callable[[float], float]) -> list[str]:
    """One row of the picture."""
    colour = "#777" if not c.aim else "#1a7f37" if c.holds else "#cf222e"
    said = escape(f"{c.what}, against {c.against}")
    parts = [f'<text x="{left - 12}" y="{y + 4}" text-anchor="end">{said}</text>']
    for aim, mark in ((c.at_most, "]"), (c.at_least, "[")):
        if aim is not None:
            parts.append(f'<text x="{x(aim):.1f}" y="{y + 5}" font-size="16" fill="#999" '
                         f'text-anchor="middle">{mark}</text>')
    parts.append(f'<line x1="{x(min(c.ratios)):.1f}" y1="{y}" x2="{x(max(c.ratios)):.1f}" '
                 f'y2="{y}" stroke="{colour}" stroke-width="2"/>')
    parts.append(f'<circle cx="{x(c.ratio):.1f}" cy="{y}" r="4" fill="{colour}"/>')
    parts.append(f'<text x="1050" y="{y + 4}" fill="{colour}">{show(c.ratio)}</text>')
    return parts
