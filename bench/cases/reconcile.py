"""How fast an inventory is compared with rows, and how much memory that takes."""

import csv
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from harness import (
    ROOT,
    Comparison,
    Scale,
    alternate,
    connect,
    drop_database,
    new_database,
    ratios,
)

from cases.memory import high_water

DATABASE = "bench_reconcile"
PER_SECOND = 200_000  # Objects: the aim.

SCHEMA = """
create extension blobgc;
create table blob (path text primary key, bytes bigint not null);
"""

# What a person would type: the same comparison, and nothing else.
COMPARE = """
import sys, time
from pathlib import Path
from blobgc.inventories import Inventory
from blobgc.listing import Lister
from blobgc.stores import open_store
import argparse
store = open_store(sys.argv[1], argparse.Namespace(timeout=5, threads=1))
lister = Lister(store, "", 1)
begin = time.monotonic()
listing = lister.read(Inventory(Path(sys.argv[2]), store.bucket))
lister.database.call("select gc.end_listing(%s)", listing)
lister.database.call("select gc.compare(%s)", listing)
print(time.monotonic() - begin, flush=True)
sys.stdin.read()
"""


def of_an_inventory(scale: Scale) -> Iterator[Comparison]:
    """10^6 objects of a CSV file and as many rows with urls of their own, of which one in a
    thousand is on one side only: read, copied into the database and compared, in objects a second,
    against the aim of 200,000. And the most memory that the runner had (its peak RSS), against 10^4
    objects.
    """
    few, many = 10_000, scale.of(1_000_000, 100_000)
    with tempfile.TemporaryDirectory(prefix="blobgc_reconcile.") as folder:
        prefix = f"file://{folder}/"
        found = alternate(scale.of(3, 1), {
            number: partial(measure, prefix, folder, number) for number in (many, few)})
        drop_database(DATABASE)
    speeds = [many / seconds for seconds, _ in found[many]]
    yield Comparison(
        f"objects a second, reconciling an inventory of {many:,}", f"{PER_SECOND:,}",
        [speed / PER_SECOND for speed in speeds], at_least=1.0,
        figures=f"{speeds[-1]:,.0f} objects a second")
    above, below = ([float(peak) for _, peak in found[number]] for number in (many, few))
    yield Comparison(
        f"memory of the runner, reconciling {many:,} objects", f"{few:,}", ratios(above, below),
        at_most=1.2, figures=f"{above[-1] / 1024:.1f} MB and {below[-1] / 1024:.1f} MB")


def measure(prefix: str, folder: str, number: int) -> tuple[float, int]:
    """Seconds, and kilobytes."""
    prepare(prefix, number)
    file = Path(folder, f"{number}.csv")
    if not file.exists():
        write(prefix, file, number)
    process = subprocess.Popen(
        [sys.executable, "-c", COMPARE, prefix, str(file)], cwd=ROOT, text=True,
        env=os.environ | {"PGDATABASE": DATABASE}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    seconds = float(process.stdout.readline())
    peak = high_water(process.pid)
    process.communicate("")
    with connect(DATABASE) as db:
        assert db.execute("select kind, count(*) from gc.discrepancies group by 1 order by 1"
                          ).fetchall() == [("missing", number // 1000), ("orphan", number // 1000)]
    return seconds, peak


def prepare(prefix: str, number: int) -> None:
    with connect(new_database(DATABASE)) as db:
        db.execute(SCHEMA.encode())
        db.execute("select gc.track('blob', url => %s, size => 'bytes', collect => 'deleted')",
                   (f"'{prefix}' || path",))
        db.execute("insert into blob select md5(n::text), 7 from generate_series(1, %s) as n "
                   "where n %% 1000 <> 7", (number,))
        db.execute("insert into blob select 'row-' || n, 7 from generate_series(1, %s) as n",
                   (number // 1000,))
        db.execute("vacuum analyze blob")


def write(prefix: str, file: Path, number: int) -> None:
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["url", "size", "last_modified", "etag"])
        for n in range(1, number + 1):
            name = hashlib.md5(str(n).encode()).hexdigest()
            writer.writerow([prefix + name, 7, "2026-01-01T00:00:00.000Z", name])
