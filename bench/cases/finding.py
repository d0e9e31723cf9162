"""Whether finding garbage costs as much as there is of it, or as much as there is of everything."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from harness import (
    PEERS,
    Comparison,
    Connection,
    Scale,
    connect,
    drop_database,
    execute,
    new_database,
)
from registries import fill_registry, review_all

IMAGES = 10
GARBAGE = 10 * IMAGES
T = TypeVar("T")

# Nothing is tracked here. A trial must not fail because of links, but because of their users.
FOR_MARKING = """
select gc.untrack(name) from gc.collections;
alter table registry.repository_blobs drop constraint repository_blobs_digest_fkey;
alter table registry.layers add foreign key (digest) references registry.blobs;
alter table registry.manifests
    add foreign key (configuration_blob_digest) references registry.blobs;
alter table registry.blobs add column unused_since timestamptz;
"""

# What is known to be garbage, as cheaply as PostgreSQL can.
BARE_DELETE = """
with links as (delete from registry.repository_blobs where digest = any (%(garbage)s))
delete from registry.blobs where digest = any (%(garbage)s)
"""

DELETE_IMAGE = """
select registry.delete_manifest(r.path, registry.digest_text(m.digest))
from registry.repositories as r
join registry.manifests as m on m.namespace_id = r.namespace_id and m.repository_id = r.id
where r.id = 1 + %(image)s %% 1000 and m.id = %(image)s
"""


def garbage(scale: Scale) -> Iterator[Comparison]:
    """100 of the 10^6 blobs of a registry become garbage, because 10 images are deleted.

    Ours: gc.review until nothing is due, which finds the 100, deletes their rows and links, and
    writes tombstones. The anti-join (bench/peers/anti_join.sql) is one query in the same database
    just before that, with enough work_mem for its hash tables. Mark-all (bench/peers/mark_all.sql)
    runs in a copy in which nothing is tracked and the same images were deleted. Both only find the
    100, and it is checked that these are the same. Only shown: the reviews against a bare DELETE of
    the 100 in the copy, by their keys, which is the limit; and what tracking costs, which is paid
    when the images are deleted: that in the one database against that in the other.
    """
    blobs = scale.of(1_000_000, 100_000)
    tracked = fill_registry("bench_finding", blobs)
    copied = new_database("bench_finding_copy", tracked)
    with connect(tracked) as ours, connect(copied) as copy:
        execute(copy, FOR_MARKING)
        ours.execute("set work_mem = '256MB'")
        warm_up, *rounds = chosen(blobs // 10, scale.rounds + 1)
        measure(ours, copy, warm_up, mark=False)
        times = [measure(ours, copy, images, mark=True) for images in rounds]
    drop_database(tracked)
    drop_database(copied)
    yield from compare(times, blobs, aim=None if scale.quick else 100)


def chosen(images: int, times: int) -> list[list[int]]:
    """Images to delete each time, evenly spread over the registry."""
    step = images // (IMAGES * times)
    return [[1 + step * (turn + times * n) for n in range(IMAGES)] for turn in range(times)]


def measure(ours: Connection, copy: Connection, images: list[int], mark: bool) -> dict[str, float]:
    """Seconds of each side, for the garbage that these images leave."""
    times = {}
    times["untracked"], _ = timed(lambda: delete_images(copy, images))
    times["tracked"], _ = timed(lambda: delete_images(ours, images))
    times["anti-join"], joined = timed(lambda: ours.execute(peer("anti_join")).fetchall())
    times["reviews"], done = timed(lambda: review_all(ours))
    assert done == (GARBAGE, GARBAGE), done
    garbage = [key for key, in ours.execute("delete from gc.tombstones returning key::bytea")]
    assert {digest for digest, in joined} == set(garbage)
    if mark:
        times["mark-all"], _ = timed(lambda: copy.execute(peer("mark_all")))
        marked = copy.execute("select digest from registry.blobs where unused_since is not null")
        assert {digest for digest, in marked} == set(garbage)
    times["bare"], gone = timed(lambda: copy.execute(BARE_DELETE, {"garbage": garbage}))
    assert gone.rowcount == GARBAGE
    copy.execute("vacuum registry.blobs")
    return times


def peer(name: str) -> bytes:
    """What a peer runs."""
    return (PEERS / f"{name}.sql").read_bytes()


def delete_images(db: Connection, images: list[int]) -> None:
    """As the application does it: one after the other."""
    for image in images:
        assert db.execute(DELETE_IMAGE, {"image": image}).rowcount == 1


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """How many seconds it takes, and what it gives."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def compare(times: list[dict[str, float]], blobs: int, aim: float | None) -> Iterator[Comparison]:
    """All that was measured, as ratios."""

    def line(what: str, against: str, above: str, below: str,
             at_least: float | None = None) -> Comparison:
        seconds = [(t[above], t[below]) for t in times if above in t]
        one, other = (1000 * statistics.median(side) for side in zip(*seconds, strict=True))
        return Comparison(what, against, [a / b for a, b in seconds], at_least=at_least,
                          figures=f"{one:,.1f} and {other:,.1f} ms")

    reviews = f"reviews that delete {GARBAGE} blobs of {blobs:,}"
    yield line("anti-join that only finds them", reviews, "anti-join", "reviews", aim)
    yield line("mark-all that only finds them", reviews, "mark-all", "reviews", aim)
    yield line(reviews, "a bare DELETE of these, by key", "reviews", "bare")
    yield line(f"deletion of the {IMAGES} images that had them, tracked", "untracked",
               "tracked", "untracked")
