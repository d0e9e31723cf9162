"""Whether reviews get slower as a registry grows."""

import statistics
import time
from collections.abc import Iterator

from harness import Comparison, Connection, Scale, connect, drop_database, execute, ratios
from registries import fill_registry, review_all

# Some for each time: half of them are garbage.
CHOOSE = """
create table bench.due as
select bench.digest(d.number) as digest,
    row_number() over (partition by d.unused order by random()) % {times} as time
from (
    select number, true from bench.unused
    union all
    (
        select n, false from generate_series(1, {blobs}) as n
        where not exists (select from bench.unused as u where u.number = n)
        order by random()
        limit {kept}
    )
) as d(number, unused);
"""

QUEUE = """
insert into gc.blob_review_queue (digest, event, review_after)
select digest, 'layer_delete', now() from bench.due where time = %s order by random()
"""


def growing(scale: Scale) -> Iterator[Comparison]:
    """What the review of a blob costs in registries of 10^5, 10^6 and 10^7 blobs.

    In each of them the same number of blobs, half of them garbage, is due; they are chosen at
    random over the whole table and reviewed in batches of 1000. Images have ten blobs each, every
    blob is in one image and has one link. Once with plain tables, and once with 64 partitions. The
    registries are there at the same time and take turns, after a warm-up.
    """
    sizes = [10 ** 4, 10 ** 5] if scale.quick else [10 ** 5, 10 ** 6, 10 ** 7]
    for partitions in (0,) if scale.quick else (0, 64):
        due = 4_000 if partitions else scale.of(10_000, 2_000)
        found = measure(sizes, partitions, due, scale.rounds)
        layout = f"{partitions} partitions" if partitions else "plain tables"
        figures = ", ".join(f"{statistics.median(costs):.0f} µs a row at {size:,}"
                            for size, costs in found.items())
        smallest, *_, largest = sizes
        for size in sizes[1:]:
            yield Comparison(
                f"review of a blob among {size:,}, {layout}", f"among {smallest:,}",
                ratios(found[size], found[smallest]), at_most=1.5 if size == largest else None,
                figures=figures)


def measure(sizes: list[int], partitions: int, due: int, rounds: int) -> dict[int, list[float]]:
    """Microseconds a row, for each size round by round."""
    databases = {size: prepare(size, partitions, due, rounds + 1) for size in sizes}
    connections = {size: connect(database) for size, database in databases.items()}
    costs: dict[int, list[float]] = {size: [] for size in sizes}
    for turn in range(rounds + 1):
        for size, db in connections.items():
            costs[size].append(review(db, turn, due))
    for size, database in databases.items():
        connections[size].close()
        drop_database(database)
    return {size: measured[1:] for size, measured in costs.items()}


def prepare(size: int, partitions: int, due: int, times: int) -> str:
    """A registry of that size, and what is to be reviewed in it each time."""
    garbage = due // 2 * times
    database = fill_registry(f"bench_scale_{size}", size, partitions, unused=garbage)
    with connect(database) as db:
        execute(db, CHOOSE.format(times=times, blobs=size, kept=garbage))
    return database


def review(db: Connection, turn: int, due: int) -> float:
    """Microseconds a row, of one time."""
    assert db.execute(QUEUE, (turn,)).rowcount == due
    db.execute("vacuum analyze gc.blob_review_queue, gc.tombstones")
    db.execute("checkpoint")
    begin = time.perf_counter()
    done = review_all(db)
    took = time.perf_counter() - begin
    assert done == (due, due // 2), done
    return 1e6 * took / due
