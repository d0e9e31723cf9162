"""The picture of the results: the ten answers that a reader wants, those of README's table.

Everything else that was measured is in the tables of bench/RESULTS.md.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape

from harness import Comparison, show


@dataclass(frozen=True)
class Bar:
    """A comparison of a benchmark, found by its own words; the tag tells two bars apart."""

    benchmark: str
    what: str
    against: str
    tag: str = ""


@dataclass(frozen=True)
class Answer:
    what: str
    against: str
    bars: tuple[Bar, ...]


COSTS = (
    Answer("Pushing one image, a row at a time", "against no tracking",
           (Bar("pushes", "push of one image", "no tracking"),)),
    Answer("Pushing 10,000 images, and deleting them", "against no tracking",
           (Bar("bulk", "push of 10,000 images in bulk, blobgc", "no tracking", "pushing"),
            Bar("bulk", "delete of 10,000 images in bulk, blobgc", "no tracking", "deleting"))),
    Answer("Two reviewers of 100,000 blobs", "against a bare DELETE of the garbage among them",
           (Bar("reviews", "review of 100,000 blobs by 2", "a bare DELETE"),)),
    Answer("A review among 10,000,000 blobs", "against one among 100,000",
           (Bar("scale", "review of a blob among 10,000,000, plain tables", "among 100,000"),)),
    Answer("A review of what 100,000 images share", "against what two images share",
           (Bar("skew", "review of a blob that 100,000 images share, plain tables",
                "one that 2 share"),)),
    Answer("Memory of the runner, for 1,000,000 objects", "against 10,000 objects",
           (Bar("memory", "memory of the runner, 1,000,000 tombstones", "10,000"),)),
)

GAINS = (
    Answer("16 clients deleting layers that are shared", "against upsert queues",
           (Bar("contention", "16 clients deleting layers of manifests that share 3 layers",
                "the peer"),)),
    Answer("Reviewing 100,000 blobs over a network", "against a loop of one row a transaction",
           (Bar("network", "review of 100,000 blobs over a network by 1", "the peer's loop"),)),
    Answer("Finding 100 dead blobs of 1,000,000", "against an anti-join, and against trial deletes",
           (Bar("finding", "anti-join that only finds them",
                "reviews that delete 100 blobs of 1,000,000", "anti-join"),
            Bar("finding", "mark-all that only finds them",
                "reviews that delete 100 blobs of 1,000,000", "trial deletes"))),
    Answer("Collecting a repository of 2,000 images", "against docker-registry",
           (Bar("offline", "collecting 2,000 images, half untagged, in one repository",
                "docker-registry garbage-collect"),)),
)

# Columns: labels, bars, values, tags. A text that does not fit into its column is an error.
MARGIN, LEFT, RIGHT, TAGS, WIDTH = 20, 380, 740, 826, 940
LETTER = 7.2  # A wide one of this font size, on average.
ROW = 46

# The background belongs to the picture, so that it never depends on the page around it.
STYLE = """
svg { font: 13px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif }
.back { fill: #ffffff } .head { font-size: 16px; font-weight: 600 }
text { fill: #1f2328 } .quiet { fill: #59636e } .grid { stroke: #d1d9e0 }
.one { stroke: #59636e; stroke-dasharray: 3 3 } .spread { stroke: #1f2328; stroke-width: 1.5 }
.cost { fill: #d4a72c } .gain { fill: #2da44e } .value { font-weight: 600 }
@media (prefers-color-scheme: dark) {
    .back { fill: #0d1117 } text { fill: #f0f6fc } .quiet { fill: #9198a1 }
    .grid { stroke: #3d444d } .one { stroke: #9198a1 } .spread { stroke: #f0f6fc }
    .cost { fill: #9e6a03 } .gain { fill: #238636 }
}
"""


@dataclass(frozen=True)
class Axis:
    """Where a ratio is drawn, and which ratios are marked."""

    x: Callable[[float], float]
    marks: list[float]


def picture(found: Mapping[str, list[Comparison]]) -> str:
    """What was not measured has no bar yet."""
    gains = [c for answer in GAINS for bar in answer.bars if (c := of(bar, found))]
    costs = [c for answer in COSTS for bar in answer.bars if (c := of(bar, found))]
    parts, y = group("What it costs", "time, or memory, as a multiple of the other side's",
                     "cost", COSTS, linear(most(costs)), found, 0)
    more, height = group("What it gains", "how many times as fast as the other side",
                         "gain", GAINS, logarithmic(most(gains)), found, y)
    height += 28
    said = "A bar is the median of the rounds, a line goes from the smallest to the largest."
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">',
        "<title>What blobgc costs, and what it gains</title>",
        f"<style>{STYLE}</style>", '<rect class="back" width="100%" height="100%"/>',
        *parts, *more, text(MARGIN, height - 18, said, "quiet"), "</svg>\n"])


def of(bar: Bar, found: Mapping[str, list[Comparison]]) -> Comparison | None:
    """What was measured for a bar. A benchmark that has been measured must have it."""
    rows = found.get(bar.benchmark, [])
    named = [c for c in rows if (c.what, c.against) == (bar.what, bar.against)]
    if rows and len(named) != 1:
        raise LookupError(f"{bar.benchmark} has no comparison {bar.what!r} with {bar.against!r}")
    return named[0] if named else None


def most(comparisons: list[Comparison]) -> float:
    return max((max(c.ratios) for c in comparisons), default=1)


def linear(largest: float) -> Axis:
    end = max(2, math.ceil(largest))
    return Axis(lambda ratio: LEFT + (RIGHT - LEFT) * ratio / end,
                [float(n) for n in range(end + 1)])


def logarithmic(largest: float) -> Axis:
    end = max(1, math.ceil(math.log10(largest)))
    return Axis(lambda ratio: LEFT + (RIGHT - LEFT) * max(math.log10(ratio), 0) / end,
                [10.0 ** n for n in range(end + 1)])


def group(head: str, unit: str, kind: str, answers: tuple[Answer, ...], axis: Axis,
          found: Mapping[str, list[Comparison]], top: int) -> tuple[list[str], int]:
    """Answers that have one axis, and where they end."""
    first = top + 76
    last = first + ROW * len(answers)
    parts = [text(MARGIN, top + 34, head, "head"), text(MARGIN, top + 54, unit, "quiet")]
    for mark in axis.marks:
        kind_of_line = "one" if mark == 1 else "grid"
        parts += [line(kind_of_line, axis.x(mark), first - 8, axis.x(mark), last - 8),
                  text(axis.x(mark), first - 14, f"{mark:,.0f} ×", "quiet", "middle")]
    for number, answer in enumerate(answers):
        parts += drawn(answer, kind, axis, found, first + ROW * number)
    return parts, last + 4


def drawn(answer: Answer, kind: str, axis: Axis, found: Mapping[str, list[Comparison]],
          y: int) -> list[str]:
    """One answer: its label in two lines, and its bars."""
    parts = [fitting(MARGIN, LEFT, y + 12, answer.what, ""),
             fitting(MARGIN, LEFT, y + 28, answer.against, "quiet")]
    height = 26 // len(answer.bars) - 2
    for number, bar in enumerate(answer.bars):
        if c := of(bar, found):
            at = y + 4 + (height + 4) * number
            middle = at + height / 2
            low, high = axis.x(min(c.ratios)), axis.x(max(c.ratios))
            parts += [
                f'<rect class="{kind}" x="{LEFT}" y="{at}" '
                f'width="{axis.x(c.ratio) - LEFT:.1f}" height="{height}"/>',
                line("spread", low, middle, high, middle),
                text(RIGHT + 16, middle + 4.5, f"{show(c.ratio)} ×", "value"),
                fitting(TAGS, WIDTH, middle + 4.5, bar.tag, "quiet")]
    return parts


def fitting(left: int, right: int, y: float, said: str, kind: str) -> str:
    """A text in its column."""
    if len(said) * LETTER > right - left:
        raise ValueError(f"this would be cut off: {said!r}")
    return text(left, y, said, kind)


def text(x: float, y: float, said: str, kind: str, anchor: str = "start") -> str:
    return (f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{escape(said)}</text>") if said else ""


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return (f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
