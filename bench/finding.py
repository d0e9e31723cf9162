"""Whether finding garbage costs as much as there is of it, or as much as there is of everything."""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from harness import (
    Comparison,
    Connection,
    Scale,
    connect,
    drop_database,
    execute,
    new_database,
    ratios,
)
from registries import fill_registry, review_all

PEERS = Path(__file__).parent / "peers"
IMAGES = 10
GARBAGE = 10 * IMAGES
T = TypeVar("T")

# Nothing is tracked here, and a trial would take away the links.
FOR_MARKING = """
select gc.untrack(name) from gc.collections;
alter table registry.repository_blobs drop constraint repository_blobs_digest_fkey;
alter table registry.blobs add column unused_since timestamptz;
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
    100, and it is checked that they are the same. What tracking costs is paid when the images are
    deleted: the last line compares that in the one database and in the other.
    """
    blobs = scale.of(1_000_000, 100_000)
    tracked = fill_registry("bench_finding", blobs)
    copied = new_database("bench_finding_copy", tracked)
    with connect(tracked) as ours, connect(copied) as copy:
        execute(copy, FOR_MARKING)
        ours.execute("set work_mem = '256MB'")
        times = [measure(ours, copy, images)
                 for images in chosen(blobs // 10, scale.rounds + 1)]
    drop_database(tracked)
    drop_database(copied)
    yield from compare(times[1:], blobs)


def chosen(images: int, times: int) -> list[list[int]]:
    """Images to delete each time, evenly spread over the registry."""
    step = images // (IMAGES * times)
    return [[1 + step * (turn + times * n) for n in range(IMAGES)] for turn in range(times)]


def measure(ours: Connection, copy: Connection, images: list[int]) -> dict[str, float]:
    """Seconds of each side, for the garbage that these images leave."""
    times = {}
    times["untracked"], _ = timed(lambda: delete_images(copy, images))
    times["tracked"], _ = timed(lambda: delete_images(ours, images))
    times["anti-join"], joined = timed(
        lambda: ours.execute((PEERS / "anti_join.sql").read_bytes()).fetchall())
    times["review"], done = timed(lambda: review_all(ours))
    times["mark-all"], _ = timed(lambda: execute(copy, (PEERS / "mark_all.sql").read_text()))
    deleted = ours.execute("delete from gc.tombstones returning key::bytea").fetchall()
    swept = copy.execute(
        "delete from registry.blobs where unused_since is not null returning digest").fetchall()
    assert done == (GARBAGE, GARBAGE), done
    assert sorted(joined) == sorted(deleted) == sorted(swept) and len(swept) == GARBAGE
    copy.execute("vacuum registry.blobs")
    return times


def delete_images(db: Connection, images: list[int]) -> None:
    """As the application does it: one after the other."""
    for image in images:
        assert db.execute(DELETE_IMAGE, {"image": image}).rowcount == 1


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """How many seconds it takes, and what it gives."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def compare(times: list[dict[str, float]], blobs: int) -> Iterator[Comparison]:
    sides = {side: [t[side] for t in times] for side in times[0]}
    medians = {side: statistics.median(seconds) for side, seconds in sides.items()}
    for peer in ("anti-join", "mark-all"):
        yield Comparison(
            f"{peer} that finds {GARBAGE} garbage blobs among {blobs:,}",
            "reviews that find and delete them", ratios(sides[peer], sides["review"]),
            at_least=100, figures=f"{medians[peer]:.2f} s and {1000 * medians['review']:.1f} ms")
    yield Comparison(
        f"deletion of the {IMAGES} images that used them, tracked", "untracked",
        ratios(sides["tracked"], sides["untracked"]),
        figures=f"{1000 * medians['tracked']:.1f} and {1000 * medians['untracked']:.1f} ms")
