"""What every benchmark here is made of: rounds that alternate, and ratios with their spread.

A benchmark is a function that yields comparisons. Nothing is a time by itself: both sides of a
comparison run in one round, on the same data, one after the other, and each round gives one ratio.
"""

import json
import os
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import TypeVar

import psycopg

ROOT = Path(__file__).resolve().parent.parent
FOUND = ROOT / "bench" / "found"
PEERS = ROOT / "bench" / "peers"

Connection = psycopg.Connection[tuple[object, ...]]
Benchmark = Callable[["Scale"], Iterator["Comparison"]]
Side = TypeVar("Side")
Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Scale:
    """How much is measured: all of it, or the daily subset."""

    quick: bool = False

    def of(self, full: int, quick: int) -> int:
        """The one number or the other."""
        return quick if self.quick else full

    @property
    def rounds(self) -> int:
        return self.of(5, 3)


@dataclass
class Comparison:
    """One line of the table: what, against what, what we want of it, and what came out.

    ratios has one number a round. aim is at least or at most this; None: only shown.
    figures says what was measured on both sides, for a reader who wants more than a ratio.
    """

    what: str
    against: str
    ratios: list[float]
    at_most: float | None = None
    at_least: float | None = None
    figures: str = ""

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def aim(self) -> str:
        bounds = [f"at most {self.at_most:g}" if self.at_most is not None else "",
                  f"at least {self.at_least:g}" if self.at_least is not None else ""]
        return " and ".join(bound for bound in bounds if bound)

    @property
    def holds(self) -> bool:
        return ((self.at_most is None or self.ratio <= self.at_most)
                and (self.at_least is None or self.ratio >= self.at_least))

    def __str__(self) -> str:
        return (f"{self.what}, against {self.against}: {show(self.ratio)} "
                f"({show(min(self.ratios))} to {show(max(self.ratios))})"
                + (f", aim {self.aim}" + ("" if self.holds else ": MISSED") if self.aim else ""))


def show(ratio: float) -> str:
    """A ratio with as many digits as mean anything."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def alternate(rounds: int,
              sides: Mapping[Side, Callable[[], Measured]]) -> dict[Side, list[Measured]]:
    """What was measured for each side, round by round: in each round all of them, in turn."""
    found: dict[Side, list[Measured]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, measure in sides.items():
            found[side].append(measure())
    return found


def ratios(above: list[float], below: list[float]) -> list[float]:
    """Round by round, the one divided by the other."""
    return [a / b for a, b in zip(above, below, strict=True)]


def connect(database: str = "", **options: object) -> Connection:
    """A connection whose statements are transactions."""
    return psycopg.connect(dbname=database, autocommit=True, **options)  # type: ignore[arg-type]


def execute(db: Connection, statements: str) -> None:
    """Run SQL that is not a constant of the program's text."""
    db.execute(statements.encode())


def new_database(name: str, template: str = "template1") -> str:
    """A fresh database, or a copy of one that nobody is connected to."""
    with connect() as db:
        execute(db, f"drop database if exists {name} with (force)")
        execute(db, f"create database {name} template {template}")
    return name


def drop_database(name: str) -> None:
    """Room for the next one."""
    with connect() as db:
        execute(db, f"drop database if exists {name} with (force)")


@contextmanager
def durable() -> Iterator[None]:
    """A server that waits for the disk."""
    with connect() as db:
        db.execute("alter system set fsync = on")
        db.execute("select pg_reload_conf()")
        db.execute("checkpoint")
        try:
            yield
        finally:
            db.execute("alter system reset fsync")
            db.execute("select pg_reload_conf()")


def pgbench(database: str, script: str, *, clients: int = 1, seconds: int = 0,
            transactions: int = 0, rate: float = 0, log_prefix: str = "") -> float:
    """Transactions a second of a script, with prepared statements and two threads at most.

    With a rate, so many a second begin, and what is logged is the time since each should have.
    """
    amount = ["-t", str(transactions)] if transactions else ["-T", str(seconds)]
    log = ["-l", f"--log-prefix={log_prefix}"] if log_prefix else []
    steady = ["--rate", str(rate)] if rate else []
    done = subprocess.run(
        ["pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(clients, 2)),
         *amount, *steady, *log, "-f", "-", database],
        check=True, stdout=subprocess.PIPE, text=True, input=script, env=os.environ)
    return float(next(line.split("=")[1].split()[0]
                      for line in done.stdout.splitlines() if line.startswith("tps")))


@dataclass
class Run:
    """What a benchmark found, when, and how many processes wanted the machine's cores."""

    measured: str
    load: float
    comparisons: list[Comparison]


def save(name: str, comparisons: list[Comparison]) -> None:
    """Keep what a benchmark found: a report is made of the latest run of each."""
    FOUND.mkdir(exist_ok=True)
    run = Run(str(date.today()), round(os.getloadavg()[1], 1), comparisons)
    (FOUND / f"{name}.json").write_text(json.dumps(asdict(run), indent=1) + "\n")


def load(name: str) -> Run | None:
    """The latest run of a benchmark; None if it never ran."""
    path = FOUND / f"{name}.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    found["comparisons"] = [Comparison(**c) for c in found["comparisons"]]
    return Run(**found)
