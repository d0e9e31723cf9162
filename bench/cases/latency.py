"""How long pushes take while a registry is collected: at full speed, and at the default pace."""

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from harness import (
    ROOT,
    Comparison,
    Scale,
    alternate,
    connect,
    drop_database,
    execute,
    new_database,
    pgbench,
    ratios,
)
from images import IS_ANYTHING_LEFT, Image, create_filled_registry, untag
from psycopg.conninfo import make_conninfo

FILLED, AT_WORK = "bench_latency_filled", "bench_latency"
REPOSITORIES, CLIENTS, RATE, WARM_UP = 100, 4, 25, 10
HOUR, BACKLOG = 3600, 1_000_000

# Digests as images.py has them, so that the base layer is one that is there.
DIGEST = """
create function digest(what text, number bigint)
    returns text
    language sql
    immutable
    return 'sha256:' || encode(sha256(convert_to(what || ' ' || number, 'UTF8')), 'hex');
"""

PUSH = f"""
\\set number random(1000000000, 1000000000000)
\\set base :number % 7
\\set repository random(0, {REPOSITORIES - 1})
select registry.has_blob('acme/app-' || :repository, digest('base', :base));
select registry.begin_blob_upload('acme/app-' || :repository, digest('program', :number));
select registry.finish_blob_upload('acme/app-' || :repository, digest('program', :number), 1);
select registry.begin_blob_upload('acme/app-' || :repository, digest('configuration', :number));
select registry.finish_blob_upload('acme/app-' || :repository, digest('configuration', :number), 1);
select registry.put_image('acme/app-' || :repository, digest('configuration', :number),
    array[digest('base', :base), digest('program', :number)], 'v' || :number);
"""


def fill(count: int, folder: Path) -> None:
    """A registry with so many images, of which half have just lost their tags."""
    images = [Image(number, REPOSITORIES) for number in range(count)]
    new_database(FILLED)
    with connect(FILLED) as db:
        create_filled_registry(db, f"file://{folder}", images)
        untag(db, [image for image in images if not image.is_kept])
        execute(db, DIGEST)
        db.execute("vacuum analyze")


def push_steadily(seconds: int) -> list[float]:
    """Milliseconds that each push took, in order of size."""
    with tempfile.TemporaryDirectory() as folder:
        pgbench(AT_WORK, PUSH, clients=CLIENTS, seconds=seconds, rate=RATE,
                log_prefix=f"{folder}/log")
        log = [line.split() for part in Path(folder).iterdir()
               for line in part.read_text().splitlines()]
    with connect(AT_WORK) as db:
        assert db.execute("select count(*) from registry.tags where length(name) > 9").fetchone() \
            == (len(log),)
    return sorted(int(took) / 1000 for _, nth, took, *_ in log if int(nth) > WARM_UP)


@contextmanager
def runner(folder: Path, pace: float | None) -> Iterator[Counter[str]]:
    """Collects in the meantime; how much that was is known when it has ended."""
    found = Counter[str]()
    options = [] if pace is None else ["--pace", str(pace)]
    with subprocess.Popen(
            [sys.executable, ROOT / "runner.py", "run", "--dsn", make_conninfo(dbname=AT_WORK),
             "--store", f"file://{folder}/", *options],
            stderr=subprocess.PIPE, text=True) as process:
        try:
            yield found
        finally:
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate()
    assert process.returncode == 0, log
    found["reviewed"] = sum(int(rows) for rows in re.findall(r": reviewed (\d+)", log))
    found["deleted"] = sum(int(objects) for objects in re.findall(r"(\d+) objects: deleted", log))


@dataclass
class Window:
    """What happened in one window: pushes in milliseconds, and how much was collected a second."""

    pushes: list[float]
    reviewed: float = 0
    deleted: float = 0

    def percentile(self, share: float) -> float:
        return self.pushes[int(share * len(self.pushes))]


def push_alone(seconds: int) -> Window:
    new_database(AT_WORK, FILLED)
    return Window(push_steadily(seconds))


def push_and_collect(seconds: int, folder: Path, pace: float | None) -> Window:
    new_database(AT_WORK, FILLED)
    with connect(AT_WORK) as db:
        db.execute("select gc.review()")  # The first in a copy makes its code anew.
    begin = time.perf_counter()
    with runner(folder, pace) as found:
        pushes = push_steadily(seconds)
    took = time.perf_counter() - begin
    (folder / ".blobgc").unlink()  # The next copy is another database.
    with connect(AT_WORK) as db:
        assert db.execute(IS_ANYTHING_LEFT).fetchone() == (True,), "the backlog did not last"
    return Window(pushes, found["reviewed"] / took, found["deleted"] / took)


def compare(how: str, quiet: list[Window], busy: list[Window], aim: float | None
            ) -> Iterator[Comparison]:
    reviewed = median(window.reviewed for window in busy)
    deleted = median(window.deleted for window in busy)
    for share, at_most in ((0.5, None), (0.99, aim)):
        above, below = ([window.percentile(share) for window in side] for side in (busy, quiet))
        yield Comparison(
            f"p{100 * share:.0f} of pushes while collecting {how}", "without collecting",
            ratios(above, below), at_most=at_most,
            figures=f"{median(above):.1f} ms and {median(below):.1f} ms; a "
                    f"second, {reviewed:,.0f} rows reviewed, {deleted:,.0f} objects deleted")


def of_pushes(scale: Scale) -> Iterator[Comparison]:
    """Pushes while collecting at full speed, and at the default pace, against pushes without.

    A registry of 80,000 images in 100 repositories, half of them without a tag: more than can be
    collected in one window. In each window of 12 seconds or more, 25 images a second are pushed
    over 4 connections, at random times. What counts is the time from when a push should have begun
    to the end of its last statement; it checks for a base layer, announces and ends two uploads,
    and puts the manifest. Nothing is written to a store. The first ten of each connection do not
    count, because they plan their statements.

    In the windows in which it is collected, a runner is started with nothing but its store (and
    --pace 1 for full speed): a folder in which there are no such files, so that a delete takes next
    to no time. Each window has a fresh copy of the database, in which one batch went before. The
    windows at the default pace, and those without collecting, are twice as long. The pushes and the
    collector share the machine's cores. Last, the time for a million rows at the default pace, as
    it reviewed in these windows.
    """
    seconds = scale.of(12, 4)
    with tempfile.TemporaryDirectory(prefix="blobgc_images.") as name:
        folder = Path(name)
        sides = {"quiet": partial(push_alone, 2 * seconds),
                 "at full speed": partial(push_and_collect, seconds, folder, 1.0),
                 "at the default pace": partial(push_and_collect, 2 * seconds, folder, None)}
        try:
            fill(scale.of(80_000, 25_000), folder)
            found = alternate(scale.rounds, sides)
        finally:
            drop_database(AT_WORK)
            drop_database(FILLED)
    quiet, paced = found["quiet"], found["at the default pace"]
    yield from compare("at full speed", quiet, found["at full speed"], None)
    yield from compare("at the default pace", quiet, paced, 1.3)
    hours = [BACKLOG / window.reviewed / HOUR for window in paced]
    yield Comparison(
        "a backlog of a million rows at the default pace", "an hour", hours, at_most=1,
        figures=f"{60 * median(hours):.0f} minutes")
