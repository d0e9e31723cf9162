"""The pictures of the page, as numbers: the templates write them as SVG.

A chart is stretched to the width that there is, so nothing in it is text, round or slanted; labels
are HTML around it.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from blobgc import show

Row = dict[str, Any]

HEIGHT = 100
STEP = 10  # The width of a day.
GAP = 2
COLOURS = 5  # Collections with a colour of their own; the others share the last.
STAGES = ("live", "queued", "due", "deleted", "waiting", "gone")
STAGE_WIDTH, CURVE, HALF = 100, 18, 30

# To which a scale of durations goes, in seconds.
DURATIONS = (10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 36 * 3600,
             2 * 86400, 4 * 86400, 7 * 86400, 14 * 86400, 30 * 86400, 60 * 86400, 120 * 86400,
             365 * 86400)


@dataclass
class Bar:
    x: float
    y: float
    height: float
    kind: str
    title: str
    width: float = STEP - GAP


@dataclass
class Chart:
    bars: list[Bar] = field(default_factory=list)
    width: int = 0
    ticks: list[str] = field(default_factory=list)  # From the top to the bottom.
    days: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # In the order of their colours.


def duration(seconds: float | None) -> str:
    """As people say it."""
    if seconds is None:
        return ""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or seconds == length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def compact(number: float | None) -> str:
    """A count that fits a narrow column."""
    left = float(number or 0)
    if left < 10_000:
        return f"{left:,.0f}"
    for unit in ("k", "M", "G"):
        left /= 1000
        if left < 999.5:
            return f"{left:.3g} {unit}"
    return f"{left / 1000:,.3g} T"


def ceiling(value: float) -> float:
    """A digit and zeros: the end of a scale."""
    if value <= 0:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    for step in (1, 2, 3, 4, 6, 8, 10):
        if value <= step * power:
            return step * power
    return 10 * power


def some_days(days: list[str]) -> list[str]:
    """The first, the middle and the last."""
    return [days[0], days[len(days) // 2], days[-1]] if days else []


def reclaimed(rows: list[Row]) -> Chart:
    """What went on each day, by collection: bytes, or rows where nobody said how big they are."""
    unit = "bytes" if any(row["bytes"] for row in rows) else "rows"
    say = show.size if unit == "bytes" else compact
    days = sorted({row["day"] for row in rows})
    sums: dict[str, float] = {}
    by_day: dict[str, float] = dict.fromkeys(days, 0.0)
    for row in rows:
        if row["collection"]:
            sums[row["collection"]] = sums.get(row["collection"], 0) + row[unit]
            by_day[row["day"]] += row[unit]
    names = sorted((name for name in sums if sums[name]), key=lambda name: (-sums[name], name))
    end = ceiling(max(by_day.values(), default=0))
    chart = Chart(width=STEP * len(days), ticks=[say(end), say(end / 2), "0"],
                  days=some_days(days), names=names[:COLOURS])
    if len(names) > COLOURS:
        chart.names[-1] = "others"
    for number, day in enumerate(days):
        top = float(HEIGHT)
        for row in sorted((row for row in rows if row["day"] == day and row[unit]),
                          key=lambda row: names.index(row["collection"])):
            height = HEIGHT * row[unit] / end
            top -= height
            colour = min(names.index(row["collection"]), COLOURS - 1)
            title = (f"{day}, {row['collection']}: {show.size(row['bytes'])}, "
                     f"{row['objects']:,} objects, {row['rows']:,} rows")
            chart.bars.append(Bar(STEP * number + GAP / 2, top, height, f"c{colour}", title))
    return chart


def waits(rows: list[Row]) -> Chart:
    """How long objects were there after their rows: half of them less, and nearly all less."""
    longest = max((row["most"] or 0 for row in rows), default=0)
    end = next((length for length in DURATIONS if length >= longest), ceiling(longest))
    chart = Chart(width=STEP * len(rows), days=some_days([row["day"] for row in rows]),
                  ticks=[duration(end), duration(end / 2), "0"])
    for number, row in enumerate(rows):
        if not row["sampled"]:
            continue
        title = (f"{row['day']}: half of the objects within {duration(row['median'])}, 95 % within "
                 f"{duration(row['most'])}")
        for kind, seconds in (("most", row["most"]), ("median", row["median"])):
            height = max(HEIGHT * seconds / end, 1)
            chart.bars.append(Bar(STEP * number + GAP / 2, HEIGHT - height, height, kind, title))
    return chart


def stream(counts: list[int], most: int) -> str:
    """The outline of a stream that is as wide, at each stage, as the logarithm of what is there."""
    halves = [1 + (HALF - 3) * math.log1p(count) / math.log1p(max(most, 1)) for count in counts]
    upper = f"M0,{HALF - halves[0]:.1f}"
    lower = ""
    for number, half in enumerate(halves):
        end = STAGE_WIDTH * (number + 1)
        if number + 1 == len(halves):
            upper += f" H{end} V{HALF + half:.1f}"
            break
        following = halves[number + 1]
        upper += (f" H{end - CURVE} C{end},{HALF - half:.1f} {end},{HALF - following:.1f} "
                  f"{end + CURVE},{HALF - following:.1f}")
        lower = (f" H{end + CURVE} C{end},{HALF + following:.1f} {end},{HALF + half:.1f} "
                 f"{end - CURVE},{HALF + half:.1f}") + lower
    return f"{upper}{lower} H0 Z"
