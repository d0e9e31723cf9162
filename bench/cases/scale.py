"""Whether reviews get slower as a registry grows."""

import statistics
import time
from collections.abc import Iterator

from harness import Comparison, Connection, Scale, connect, drop_database, execute, ratios
from registries import fill_registry, review_all

# Microseconds a row, for each size turn by turn.
Costs = dict[int, list[float]]

# Each turn has as many used blobs as garbage, and as many again for the bare DELETE.
CHOOSE = """
create table bench.chosen as
select bench.digest(c.number) as digest, c.fate,
    row_number() over (partition by c.fate order by random()) % {turns} as turn
from (
    select number, case when row_number() over () % 2 = 0 then 'garbage' else 'bare' end
    from bench.unused
    union all
    (
        select n, 'used' from generate_series(1, {blobs}) as n
        where not exists (select from bench.unused as u where u.number = n)
        order by random()
        limit {used}
    )
) as c(number, fate)
"""

QUEUE = """
insert into gc.blob_review_queue (digest, event, review_after)
select digest, 'layer_delete', now() from bench.chosen where turn = %s and fate <> 'bare'
order by random()
"""

WARM = """
create extension pg_prewarm;
select pg_prewarm(c.oid) from pg_class as c
where c.relkind in ('r', 'i')
    and c.relnamespace::regnamespace::text in ('gc', 'registry', 'registry_partitions');
"""

BARE_DELETE = """
delete from registry.blobs
where digest = any (array(select digest from bench.chosen where turn = %s and fate = 'bare'))
"""


def growing(scale: Scale) -> Iterator[Comparison]:
    """What the review of a blob costs in registries of 10^5, 10^6 and 10^7 blobs.

    In each of them the same number of blobs, half of them garbage, is due; they are chosen at
    random over the whole table and reviewed in batches of 1000. Images have ten blobs each, every
    blob is in one image and has one link. Once with plain tables, and once with 64 partitions. The
    registries are there at the same time, all of them in PostgreSQL's buffers. They take turns,
    after a warm-up and each time after a checkpoint. Only shown: how a bare DELETE of as much
    garbage grows, with tracking switched off; that is the limit.
    """
    sizes = [10 ** 4, 10 ** 5] if scale.quick else [10 ** 5, 10 ** 6, 10 ** 7]
    for partitions in (0,) if scale.quick else (0, 64):
        garbage = scale.of(1_000 if partitions else 5_000, 500)
        reviews, deletes = measure(sizes, partitions, garbage, scale.rounds)
        layout = f"{partitions} partitions" if partitions else "plain tables"
        for size in sizes[1:]:
            yield compare(f"review of a blob among {size:,}, {layout}", reviews, size,
                          at_most=1.5 if size == sizes[-1] else None)
        yield compare(f"bare DELETE of a blob among {sizes[-1]:,}, {layout}", deletes, sizes[-1])


def partitioned(scale: Scale) -> Iterator[Comparison]:
    """What 64 partitions cost a review, half of whose blobs are garbage.

    As above, among 10^5 blobs, with both registries at the same time, in turns, after a warm-up.
    """
    size, garbage = scale.of(10 ** 5, 10 ** 4), scale.of(2_000, 500)
    databases = {parts: prepare(size, parts, garbage, scale.rounds + 1, f"bench_{parts}_partitions")
                 for parts in (0, 64)}
    connections = {parts: connect(database) for parts, database in databases.items()}
    for db in connections.values():
        execute(db, WARM)
    took: Costs = {parts: [] for parts in databases}
    for turn in range(scale.rounds + 1):
        for parts, db in connections.items():
            took[parts].append(review(db, turn, garbage))
    for parts, database in databases.items():
        connections[parts].close()
        drop_database(database)
    plain, parted = took[0][1:], took[64][1:]
    yield Comparison(
        "review of a blob, 64 partitions", "plain tables", ratios(parted, plain), at_most=3,
        figures=f"{statistics.median(parted):.0f} and {statistics.median(plain):.0f} µs")


def measure(sizes: list[int], partitions: int, garbage: int, rounds: int) -> tuple[Costs, Costs]:
    """The costs of reviews and of bare deletes."""
    databases = {size: prepare(size, partitions, garbage, rounds + 1) for size in sizes}
    connections = {size: connect(database) for size, database in databases.items()}
    for db in connections.values():
        execute(db, WARM)
    reviews: Costs = {size: [] for size in sizes}
    deletes: Costs = {size: [] for size in sizes}
    for turn in range(rounds + 1):
        for size, db in connections.items():
            reviews[size].append(review(db, turn, garbage))
            deletes[size].append(delete_barely(db, turn, garbage))
    for size, database in databases.items():
        connections[size].close()
        drop_database(database)
    return reviews, deletes


def prepare(size: int, partitions: int, garbage: int, turns: int, name: str = "") -> str:
    """A registry of that size, and what happens to which of its blobs in which turn."""
    database = fill_registry(name or f"bench_scale_{size}", size, partitions,
                             unused=2 * garbage * turns)
    with connect(database) as db:
        execute(db, CHOOSE.format(blobs=size, used=garbage * turns, turns=turns))
        db.execute("vacuum analyze bench.chosen")
    return database


def review(db: Connection, turn: int, garbage: int) -> float:
    """Microseconds a row, of which half are garbage."""
    due = db.execute(QUEUE, (turn,)).rowcount
    db.execute("vacuum analyze gc.blob_review_queue, gc.tombstones")
    db.execute("checkpoint")
    begin = time.perf_counter()
    done = review_all(db)
    took = time.perf_counter() - begin
    assert done == (due, garbage) == (2 * garbage, garbage), done
    return 1e6 * took / due


def delete_barely(db: Connection, turn: int, garbage: int) -> float:
    """Microseconds a row, found by its key; foreign keys are checked and cascade."""
    db.execute("checkpoint")
    with db.transaction():
        db.execute("set local enable_seqscan = off")
        db.execute("alter table registry.blobs disable trigger user")
        begin = time.perf_counter()
        gone = db.execute(BARE_DELETE, (turn,)).rowcount
        took = time.perf_counter() - begin
        db.execute("alter table registry.blobs enable trigger user")
    assert gone == garbage, gone
    return 1e6 * took / garbage


def compare(what: str, costs: Costs, size: int, at_most: float | None = None) -> Comparison:
    """A registry of this size against the smallest, without the warm-up."""
    smallest = min(costs)
    large, small = costs[size][1:], costs[smallest][1:]
    return Comparison(
        what, f"among {smallest:,}", ratios(large, small), at_most=at_most,
        figures=f"{statistics.median(large):.0f} and {statistics.median(small):.0f} µs a row")
