"""Whether a review gets slower with the number of rows that refer to one blob."""

import statistics
import time
from collections.abc import Iterator

from harness import Comparison, Connection, Scale, connect, drop_database, execute
from registries import create_registry

REVIEWS = 100

# Every image has a blob of its own, the hot one, and all that are fading; two have the cold one.
FILL = """
set session_replication_role = replica;
insert into registry.namespaces (name) select 'ns' || n from generate_series(1, 100) as n;
insert into registry.repositories (namespace_id, path)
select id, name || '/app' from registry.namespaces order by id;
insert into registry.manifests (
    namespace_id, repository_id, digest, media_type, payload, total_size
)
select r.namespace_id, r.id, '\\x01'::bytea || sha256(n::text::bytea), 'image', '', 1
from registry.repositories as r
cross join generate_series(1, {images} / 100) as n
order by r.id, n;
create temporary table used (image bigint, position integer, name text);
insert into used
select n, 1, 'own' || n from generate_series(1, {images}) as n
union all select n, 2, 'hot' from generate_series(1, {images}) as n
union all values (1, 3, 'cold'), ({images}, 3, 'cold')
union all select n, 3 + f, 'fading' || f
from generate_series(1, {images}) as n, generate_series(1, {fading}) as f;
insert into registry.blobs (digest, size, media_type)
select distinct '\\x01'::bytea || sha256(name::bytea), 1, 'layer' from used;
insert into registry.layers (
    namespace_id, repository_id, manifest_id, position, digest, size, media_type
)
select m.namespace_id, m.repository_id, m.id, u.position,
    '\\x01'::bytea || sha256(u.name::bytea), 1, 'layer'
from used as u
join registry.manifests as m on m.id = u.image;
"""

QUEUE = """
insert into gc.blob_review_queue (digest, event, review_after)
values ('\\x01'::bytea || sha256(%s), 'layer_delete', now())
"""

# The one that is left comes last in the index.
FADE = """
delete from registry.layers
where digest = '\\x01'::bytea || sha256(%s)
    and manifest_id < (select max(id) from registry.manifests)
"""


def shared(scale: Scale) -> Iterator[Comparison]:
    """The review of a blob that 100,000 images share, against that of one that two share.

    Both are kept. A review has only that one blob to decide on, 100 times each in turn; a round's
    ratio is that of the two medians. Once with plain tables, and once with 64 partitions. What is
    only shown is a blob that 100,000 images shared until a moment ago and one still has: its first
    review passes by all the dead entries of the index, in which the living one comes last, and
    marks them, so that the second does not.
    """
    images = scale.of(100_000, 10_000)
    for partitions in (0,) if scale.quick else (0, 64):
        database = create_registry("bench_skew", partitions)
        with connect(database) as db:
            execute(db, FILL.format(images=images, fading=scale.rounds))
            db.execute("set session_replication_role = origin")
            db.execute("vacuum analyze")
            yield from compare(db, images, scale.rounds,
                               f"{partitions} partitions" if partitions else "plain tables")
        drop_database(database)


def compare(db: Connection, images: int, rounds: int, layout: str) -> Iterator[Comparison]:
    """Hot, and what was hot, against cold."""
    for blob in ("hot", "cold"):
        review(db, blob)
    times: dict[str, list[float]] = {"hot": [], "cold": [], "first": [], "second": []}
    for turn in range(rounds):
        hot, cold = zip(*((review(db, "hot"), review(db, "cold")) for _ in range(REVIEWS)),
                        strict=True)
        times["hot"].append(statistics.median(hot))
        times["cold"].append(statistics.median(cold))
        fade(db, f"fading{turn + 1}", images)
        times["first"].append(review(db, f"fading{turn + 1}"))
        times["second"].append(review(db, f"fading{turn + 1}"))

    def against_cold(what: str, side: str, at_most: float | None = None) -> Comparison:
        figures = (f"{statistics.median(times[side]):.2f} and "
                   f"{statistics.median(times['cold']):.2f} ms")
        return Comparison(f"{what}, {layout}", "one that 2 share",
                          [a / b for a, b in zip(times[side], times["cold"], strict=True)],
                          at_most=at_most, figures=figures)

    yield against_cold(f"review of a blob that {images:,} images share", "hot", 1.2)
    yield against_cold(f"first review of a blob that {images:,} images shared", "first")
    yield against_cold("second review of it", "second")


def fade(db: Connection, blob: str, images: int) -> None:
    """All images but the last stop using a blob, and nobody takes note of it."""
    with db.transaction():
        db.execute("set local session_replication_role = replica")
        assert db.execute(FADE, (blob.encode(),)).rowcount == images - 1


def review(db: Connection, blob: str) -> float:
    """How long a review takes, in milliseconds, that has this blob to decide on."""
    db.execute(QUEUE, (blob.encode(),))
    begin = time.perf_counter()
    row = db.execute("select kept from gc.review() where collection = 'blob'").fetchone()
    took = 1000 * (time.perf_counter() - begin)
    assert row == (1,), row
    return took
