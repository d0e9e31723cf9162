"""How much memory the runner takes, however much there is to delete."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from harness import ROOT, Comparison, Scale, connect, drop_database, new_database, ratios

DATABASE = "bench_memory"

SCHEMA = """
create extension blobgc;
update gc.settings set jitter = '0', undo = '0', brake_share = 1;
create table file (id integer primary key, bytes bigint not null);
"""


def of_the_runner(scale: Scale) -> Iterator[Comparison]:
    """The most memory that runner.py ever had (its peak RSS, as the kernel counts it) when it had
    10^6 tombstones to work off, against 10^4. The store is a folder in which the objects are gone
    already, which the runner counts as deleted. Two rounds only: memory is not noisy.
    """
    few, many = 10_000, scale.of(1_000_000, 50_000)
    with tempfile.TemporaryDirectory(prefix="blobgc_memory.") as folder:
        prefix = f"file://{folder}/"
        prepare(prefix)
        try:
            pairs = [(peak(prefix, many), peak(prefix, few)) for _ in range(scale.of(2, 1))]
        finally:
            drop_database(DATABASE)
    above, below = ([float(pair[n]) for pair in pairs] for n in (0, 1))
    yield Comparison(
        f"memory of the runner, {many:,} tombstones", f"{few:,}", ratios(above, below),
        at_most=1.2, figures=f"{above[-1] / 1024:.1f} MB and {below[-1] / 1024:.1f} MB")


def prepare(prefix: str) -> None:
    with connect(new_database(DATABASE)) as db:
        db.execute(SCHEMA.encode())
        db.execute("select gc.track('file', url => %s, size => 'bytes', condition => 'false')",
                   (f"'{prefix}' || id",))


def peak(prefix: str, tombstones: int) -> int:
    """Kilobytes that the runner had at most."""
    with connect(DATABASE) as db:
        db.execute("insert into file select n, 1 from generate_series(1, %s) as n", (tombstones,))
        db.execute("delete from file")
        db.execute("vacuum analyze gc.tombstones")
        process = subprocess.Popen(
            [sys.executable, ROOT / "runner.py", "run", "--once", "--store", prefix],
            env=os.environ | {"PGDATABASE": DATABASE}, stderr=subprocess.DEVNULL)
        most = 0
        while process.poll() is None:
            most = max(most, high_water(process.pid))
            time.sleep(0.02)
        assert process.returncode == 0, process.returncode
        assert db.execute("select count(*) from gc.tombstones").fetchone() == (0,)
    return most


def high_water(pid: int) -> int:
    """The kernel's own mark; none once the process has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
