"""Whether a queue through which very much has gone is still as quick and as small as a new one."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from harness import Comparison, Connection, Scale, connect, drop_database, execute, new_database

DATABASE = "bench_queues"
BATCH, COMPARED = 1000, 5

# Rows of "thing" are kept by their condition, those of "file" have objects.
SCHEMA = """
create extension blobgc;
update gc.settings set jitter = '0', undo = '0', brake_share = 1;
insert into gc.review_after_defaults values ('thing_insert', '0');
create table thing (id bigint primary key, is_over boolean not null default false);
create table file (id bigint primary key, bytes bigint not null default 1);
select gc.track('thing', condition => 'is_over');
select gc.track('file', url => $$'s3://bucket/' || id$$, size => 'bytes', condition => 'false');
"""


def health(scale: Scale) -> Iterator[Comparison]:
    """10^7 entries go through a review queue and 2 * 10^6 through the tombstones, 10^5 at a time:
    an application's INSERT (or INSERT and DELETE) puts them there, and then gc.review(1000), or
    gc.claim and gc.confirm of 1000, take them off until nothing is left. Reviewed rows are kept, so
    that it is the queue that is measured. The first five times against the last five, after one
    that does not count; and the largest size of the queue with its indexes in the second half of
    the run against that in the first half. Autovacuum runs as the queues ask for, every 10 seconds
    at most. Only shown: reviews while a transaction is open that is older than 10^6 entries, which
    nothing can be vacuumed away behind, and after it has ended, against the last ones before.
    """
    size = scale.of(100_000, 20_000)
    with prepared() as db:
        reviewed = [step(db, "thing", size) for _ in range(scale.of(101, 11))]
        yield from compare("review queue", "reviews", size, reviewed)
        yield from hold_back(db, size, reviewed[-COMPARED:], scale.of(10, 2))
        claimed = [step(db, "file", size) for _ in range(scale.of(21, 11))]
        yield from compare("tombstones", "claims", size, claimed)


@contextmanager
def prepared() -> Iterator[Connection]:
    """A database, and a server whose autovacuum comes as often as a busy one's does."""
    with connect() as server:
        server.execute("alter system set autovacuum_naptime = '10s'")
        server.execute("select pg_reload_conf()")
        try:
            with connect(new_database(DATABASE)) as db:
                execute(db, SCHEMA)
                yield db
        finally:
            drop_database(DATABASE)
            server.execute("alter system reset autovacuum_naptime")
            server.execute("select pg_reload_conf()")


def step(db: Connection, table: str, size: int) -> tuple[float, int]:
    """Seconds that it takes to get rid of so many entries, and how big the queue was at most."""
    db.execute(f"insert into {table} (id) select n from generate_series(1, {size}) as n".encode())
    if table == "file":
        db.execute("delete from file")
    queue = "gc.thing_review_queue" if table == "thing" else "gc.tombstones"
    bytes_used = one(db, f"select pg_total_relation_size('{queue}')")
    begin = time.perf_counter()
    if table == "thing":
        while one(db, f"select kept from gc.review({BATCH}) where collection = 'thing'"):
            pass
    else:
        while claimed := db.execute(f"select id from gc.claim('bench', {BATCH})").fetchall():
            db.execute("select gc.confirm('bench', %s)", ([row[0] for row in claimed],))
    seconds = time.perf_counter() - begin
    assert one(db, f"select count(*) from {queue}") == 0
    db.execute("truncate thing, gc.file_review_queue")
    return seconds, bytes_used


def one(db: Connection, query: str) -> int:
    row = db.execute(query.encode()).fetchone()
    assert row is not None and isinstance(row[0], int)
    return row[0]


def compare(queue: str, what: str, size: int,
            steps: list[tuple[float, int]]) -> Iterator[Comparison]:
    """Time and size, early and late."""
    seconds, sizes = ([pair[n] for pair in steps[1:]] for n in (0, 1))
    first, last = seconds[:COMPARED], seconds[-COMPARED:]
    yield Comparison(
        f"{what} of {size:,} after {len(seconds) * size:,}", "the first ones",
        [a / b for a, b in zip(last, first, strict=True)], at_most=1.3,
        figures=f"{statistics.median(last):.2f} s and {statistics.median(first):.2f} s")
    half = len(sizes) // 2
    yield Comparison(
        f"size of the {queue}, second half of the run", "first half",
        [max(sizes[half:]) / max(sizes[:half])], at_most=1.3,
        figures=f"{max(sizes[half:]) / 2**20:.0f} MB and {max(sizes[:half]) / 2**20:.0f} MB")


def hold_back(db: Connection, size: int, before: list[tuple[float, int]],
              times: int) -> Iterator[Comparison]:
    """Reviews behind a transaction that does not end, and after it has."""
    usual = statistics.median(seconds for seconds, _ in before)
    with connect(DATABASE) as other, other.transaction():
        other.execute("set transaction isolation level repeatable read")
        other.execute("select 1")
        held = [step(db, "thing", size)[0] for _ in range(times)]
    # Until autovacuum has been there.
    time.sleep(20)
    freed = [step(db, "thing", size)[0] for _ in range(COMPARED)]
    for said, some in (("behind an open transaction", held[-3:]), ("after it has ended", freed)):
        yield Comparison(f"reviews of {size:,} {said}", "those before it",
                         [seconds / usual for seconds in some],
                         figures=f"{statistics.median(some):.2f} s and {usual:.2f} s")
