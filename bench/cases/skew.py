"""Whether a review gets slower with the number of rows that refer to one blob."""

import statistics
import time
from collections.abc import Iterator

from harness import Comparison, Connection, Scale, connect, drop_database, execute
from registries import DUE_AT_ONCE, create_registry

REPEATED = 10

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
union all select n, 4 + f, 'fading' || f
from generate_series(1, {images}) as n, generate_series(0, {fading}) as f;
insert into registry.blobs (digest, size, media_type)
select distinct '\\x01'::bytea || sha256(name::bytea), 1, 'layer' from used;
insert into registry.layers (
    namespace_id, repository_id, manifest_id, position, digest, size, media_type
)
select m.namespace_id, m.repository_id, m.id, u.position,
    '\\x01'::bytea || sha256(u.name::bytea), 1, 'layer'
from used as u
join registry.manifests as m on m.id = u.image;
insert into registry.repository_blobs (namespace_id, repository_id, digest)
select distinct namespace_id, repository_id, digest from registry.layers;
"""

QUEUE = """
insert into gc.blob_review_queue (digest, event, review_after)
select '\\x01'::bytea || sha256(%s), 'layer_delete', now() from generate_series(1, %s)
"""

# The one that is left comes last in the index.
FADE = """
delete from registry.layers
where digest = '\\x01'::bytea || sha256(%s)
    and manifest_id < (select max(id) from registry.manifests)
"""


def shared(scale: Scale) -> Iterator[Comparison]:
    """The review of a blob that 100,000 images share, against that of one that two share.

    Both are kept. 1000 entries of the one and then 1000 of the other are due, as after 1000 images
    that had it were deleted, and a review has nothing else to decide. Once with plain tables, and
    once with 64 partitions. Only shown is a blob that 100,000 images shared until a moment ago and
    one still has: its first review passes by all dead entries of an index, in which the living one
    comes last, and marks them, so that the second does not. There is one entry each time.
    """
    images = scale.of(100_000, 10_000)
    for partitions in (0,) if scale.quick else (0, 64):
        database = create_registry("bench_skew", partitions)
        with connect(database) as db:
            execute(db, DUE_AT_ONCE)
            execute(db, FILL.format(images=images, fading=scale.rounds))
            db.execute("set session_replication_role = origin")
            db.execute("vacuum analyze")
            times = [measure(db, f"fading{turn}", images) for turn in range(scale.rounds + 1)]
        drop_database(database)
        yield from compare(times[1:], images,
                           f"{partitions} partitions" if partitions else "plain tables")


def measure(db: Connection, fading: str, images: int) -> dict[str, float]:
    """Milliseconds of each review, in one round."""
    pairs = [(review(db, "hot", 1000), review(db, "cold", 1000)) for _ in range(REPEATED)]
    hot, cold = (statistics.median(side) for side in zip(*pairs, strict=True))
    single = statistics.median(review(db, "cold") for _ in range(REPEATED))
    fade(db, fading, images)
    return {"hot": hot, "cold": cold, "single": single, "first": review(db, fading),
            "second": review(db, fading)}


def fade(db: Connection, blob: str, images: int) -> None:
    """All images but the last stop using a blob, and nobody takes note of it."""
    with db.transaction():
        db.execute("set local session_replication_role = replica")
        assert db.execute(FADE, (blob.encode(),)).rowcount == images - 1


def review(db: Connection, blob: str, entries: int = 1) -> float:
    """How long a review takes, in milliseconds, that has this blob to decide on."""
    db.execute(QUEUE, (blob.encode(), entries))
    begin = time.perf_counter()
    row = db.execute("select kept from gc.review(1000) where collection = 'blob'").fetchone()
    took = 1000 * (time.perf_counter() - begin)
    assert row == (entries,), row
    return took


def compare(times: list[dict[str, float]], images: int, layout: str) -> Iterator[Comparison]:
    """What many share or shared, against what two share."""

    def line(what: str, side: str, cold: str, at_most: float | None = None) -> Comparison:
        one, other = (statistics.median(t[name] for t in times) for name in (side, cold))
        return Comparison(f"{what}, {layout}", "one that 2 share",
                          [t[side] / t[cold] for t in times], at_most=at_most,
                          figures=f"{one:.1f} and {other:.1f} ms")

    yield line(f"review of a blob that {images:,} images share", "hot", "cold", 1.2)
    yield line(f"first review of one that {images:,} images shared", "first", "single")
    yield line("second review of that", "second", "single")
