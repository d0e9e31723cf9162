"""Reviews: how fast it is decided what is garbage, and deleted."""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from delay import far_away
from harness import PEERS, Comparison, Scale, alternate, connect, durable, execute, pgbench, ratios
from psycopg.conninfo import make_conninfo
from registries import BLOBGC, NOBODY, PEER, copy_of, count, registries

REVIEWERS = 1, 2, 4
FAR_REVIEWERS = 1, 4

# Each blob is linked to a repository. Of those with an even number, every five are the
# configuration and the layers of an image; nothing uses the others.
FILL = """
insert into registry.blobs (digest, size, media_type)
select digest('blob' || n), 1000, 'layer' from generate_series(1, {rows}) as n;
insert into registry.repository_blobs (namespace_id, repository_id, digest)
select (n + 9) / 10 % 100 + 1, (n + 9) / 10 % 100 + 1, digest('blob' || n)
from generate_series(1, {rows}) as n;
insert into registry.manifests (namespace_id, repository_id, id, digest, media_type, payload,
    configuration_blob_digest, total_size)
overriding system value
select n % 100 + 1, n % 100 + 1, n, digest('image' || n), 'manifest', repeat('x', 1000)::bytea,
    digest('blob' || n * 10), 5000
from generate_series(1, {rows} / 10) as n;
insert into registry.layers (namespace_id, repository_id, manifest_id, position, digest, size,
    media_type)
select n % 100 + 1, n % 100 + 1, n, p, digest('blob' || n * 10 - 2 * p), 1000, 'layer'
from generate_series(1, {rows} / 10) as n, generate_series(1, 4) as p;
"""

# All of them are due, one after the other, as they were uploaded a day ago.
QUEUE = {
    BLOBGC: """
        insert into gc.blob_review_queue (digest, event, review_after)
        select digest('blob' || n), 'blob_upload', now() - interval '1 day' + n * interval '1 ms'
        from generate_series(1, {rows}) as n
    """,
    PEER: """
        insert into peer.blob_queue (digest, due_at)
        select digest('blob' || n), now() - interval '1 day' + n * interval '1 ms'
        from generate_series(1, {rows}) as n
    """,
}

BARE_DELETE = """
delete from registry.blobs as b
where not exists (select from registry.layers as l where l.digest = b.digest)
    and not exists (
        select from registry.manifests as m where m.configuration_blob_digest = b.digest
    )
"""


Server = dict[str, str]
Sides = dict[tuple[str, int], Callable[[], float]]
Times = dict[tuple[str, int], list[float]]


def on_loopback(scale: Scale) -> Iterator[Comparison]:
    """100,000 blobs are due for review, each with a link to a repository, and every second is
    garbage; the others belong to images. One reviewer, or two or four at once, call
    gc.review(1000) until nothing is left. The peer's loop reviews one blob a transaction: lock an
    entry of the queue, look into the tables of links, delete the blob if it is garbage, delete the
    entry, commit; each is a prepared statement and a round trip over a Unix socket, sent by
    pgbench. It does so for 5,000 of the same 100,000, and time is compared per blob. It is spared
    the call of the object store in the midst of its transaction, while blobgc writes a tombstone
    for each object. The bare DELETE is one statement that deletes the same garbage where nobody
    tracks. Only shown: the same DELETE where blobgc tracks, so that it leaves tombstones as a
    review does. All of it with fsync: a commit has to be on disk, as in production.
    """
    rows = scale.of(100_000, 10_000)
    with queued_registries(rows) as made, durable():
        sides = both_ways(made, rows, scale.of(5_000, 1_000), REVIEWERS, {})
        for tracker in (NOBODY, BLOBGC):
            sides[tracker, 1] = partial(bare_delete, made[tracker], rows)
        took = alternate(scale.rounds, sides)
    yield from against_loop(f"review of {rows:,} blobs", took, REVIEWERS, at_least=20)
    for tracker, what, aim in (NOBODY, "a bare DELETE", 1.5), (BLOBGC, "a tracked DELETE", None):
        bare = took[tracker, 1]
        for reviewers in REVIEWERS:
            review = took["review", reviewers]
            yield Comparison(
                f"review of {rows:,} blobs by {reviewers}", what, ratios(review, bare),
                at_most=aim, figures=f"{rows * statistics.median(review):.2f} s and "
                                     f"{rows * statistics.median(bare):.2f} s")


def over_a_network(scale: Scale) -> Iterator[Comparison]:
    """The same reviews, and the same loop over 500 blobs, both through a proxy that holds each
    packet back for half a millisecond on its way there and on its way back.
    """
    rows = scale.of(100_000, 10_000)
    with queued_registries(rows) as made, durable(), far_away(0.0005) as server:
        took = alternate(scale.rounds, both_ways(
            made, rows, scale.of(500, 100), FAR_REVIEWERS, server))
        said = f", a round trip {1000 * round_trip(server):.2f} ms"
    yield from against_loop(
        f"review of {rows:,} blobs over a network", took, FAR_REVIEWERS, 100, said)


def against_loop(
    what: str, took: Times, numbers: Iterable[int], at_least: float, said: str = ""
) -> Iterator[Comparison]:
    for reviewers in numbers:
        review, loop = took["review", reviewers], took["loop", reviewers]
        yield Comparison(
            f"{what} by {reviewers}", "the peer's loop", ratios(loop, review), at_least=at_least,
            figures=f"{1e6 * statistics.median(review):.1f} µs and "
                    f"{1e6 * statistics.median(loop):.0f} µs a blob{said}")


@contextmanager
def queued_registries(rows: int) -> Iterator[dict[str, str]]:
    """All blobs are due."""
    with registries(FILL.format(rows=rows)) as made:
        for tracker, queue in QUEUE.items():
            with connect(made[tracker]) as db:
                execute(db, queue.format(rows=rows))
                execute(db, "vacuum analyze")
        yield made


def both_ways(
    made: dict[str, str], rows: int, sample: int, numbers: Iterable[int], server: Server
) -> Sides:
    """Reviews and the loop, by one and by several."""
    sides: Sides = {}
    for number in numbers:
        sides["review", number] = partial(review_all, made[BLOBGC], rows, number, server)
        sides["loop", number] = partial(run_loop, made[PEER], sample, number, server)
    return sides


def review_all(template: str, rows: int, reviewers: int, server: Server) -> float:
    """Seconds a blob, until everything is reviewed."""
    with copy_of(template) as database:
        begin = time.perf_counter()
        with ThreadPoolExecutor(reviewers) as pool:
            list(pool.map(partial(review_until_done, database), reviewers * [server]))
        seconds = time.perf_counter() - begin
        assert count(database, "gc.blob_review_queue") == 0
        assert count(database, "gc.tombstones") == rows // 2
        assert count(database, "registry.blobs") == rows // 2
    return seconds / rows


def review_until_done(database: str, server: Server) -> None:
    """One reviewer."""
    with connect(database, **server) as db:
        while db.execute("select collection from gc.review(1000) where reviewed > 0").fetchone():
            pass


def run_loop(template: str, sample: int, clients: int, server: Server) -> float:
    """Seconds a blob, for the first blobs of the queue."""
    with copy_of(template) as database:
        blobs, queued = count(database, "registry.blobs"), count(database, "peer.blob_queue")
        rate = pgbench(make_conninfo(dbname=database, **server),
                       (PEERS / "upsert_loop.sql").read_text(),
                       clients=clients, transactions=sample // clients)
        assert queued - count(database, "peer.blob_queue") == sample
        assert abs(blobs - count(database, "registry.blobs") - sample // 2) <= clients
    return 1 / rate


def bare_delete(template: str, rows: int) -> float:
    """Seconds a blob; those that stay are counted too, as in a review."""
    with copy_of(template) as database, connect(database) as db:
        begin = time.perf_counter()
        deleted = db.execute(BARE_DELETE).rowcount
        seconds = time.perf_counter() - begin
        assert deleted == rows // 2
    return seconds / rows


def round_trip(server: Server) -> float:
    """Seconds that the smallest question takes, there and back."""
    with connect(**server) as db:
        begin = time.perf_counter()
        for _ in range(200):
            db.execute("select 1")
        return (time.perf_counter() - begin) / 200
