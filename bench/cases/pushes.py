"""Pushing and deleting images: what it costs that somebody follows."""

import statistics
import time
from collections.abc import Iterator
from functools import partial

from harness import Comparison, Scale, alternate, connect, durable, execute, pgbench, ratios
from registries import BLOBGC, NOBODY, PEER, TRACKERS, copy_of, count, registries

# Ten base images of three layers each, which are in the store already.
BASES = """
insert into registry.blobs (digest, size, media_type)
select digest('base' || n), 1000, 'layer' from generate_series(1, 30) as n
"""

CHOOSE = """
\\set repository random(1, 100)
\\set image random(1, 9000000000000000000)
\\set base random(0, 9)
"""

UPLOAD = """
begin;
insert into registry.blobs (digest, size, media_type)
values (digest({blob}), 1000, 'layer') on conflict do nothing;
insert into registry.repository_blobs (namespace_id, repository_id, digest)
values (:repository, :repository, digest({blob})) on conflict do nothing;
commit;
"""

MANIFEST = """
insert into registry.manifests (namespace_id, repository_id, digest, media_type, payload,
    configuration_blob_digest, total_size)
values (:repository, :repository, digest('image' || :image), 'manifest', repeat('x', 1000)::bytea,
    digest({configuration}), 6000)
returning id as manifest \\gset
"""

LAYER = """
insert into registry.layers (namespace_id, repository_id, manifest_id, position, digest, size,
    media_type)
values (:repository, :repository, :manifest, {position}, digest({blob}), 1000, 'layer');
"""

TAG = """
insert into registry.tags (namespace_id, repository_id, name, manifest_id)
values (:repository, :repository, 'v' || :image, :manifest);
"""

PUSH_MANY = [
    """insert into registry.blobs (digest, size, media_type)
    select digest('own' || n || '-' || p), 1000, 'layer'
    from generate_series(1, {images}) as n, generate_series(0, 2) as p""",
    """insert into registry.repository_blobs (namespace_id, repository_id, digest)
    select distinct n % 100 + 1, n % 100 + 1, b.digest
    from generate_series(1, {images}) as n
    cross join lateral (
        select digest('own' || n || '-' || p) from generate_series(0, 2) as p
        union all
        select digest('base' || n % 10 * 3 + p) from generate_series(1, 3) as p
    ) as b(digest)""",
    """insert into registry.manifests (namespace_id, repository_id, id, digest, media_type, payload,
        configuration_blob_digest, total_size)
    overriding system value
    select n % 100 + 1, n % 100 + 1, n, digest('image' || n), 'manifest', repeat('x', 1000)::bytea,
        digest('own' || n || '-0'), 6000
    from generate_series(1, {images}) as n""",
    """insert into registry.layers (namespace_id, repository_id, manifest_id, position, digest,
        size, media_type)
    select n % 100 + 1, n % 100 + 1, n, l.position, digest(l.name), 1000, 'layer'
    from generate_series(1, {images}) as n
    cross join lateral (
        select p, 'base' || n % 10 * 3 + p from generate_series(1, 3) as p
        union all
        select 3 + p, 'own' || n || '-' || p from generate_series(1, 2) as p
    ) as l(position, name)""",
    """insert into registry.tags (namespace_id, repository_id, name, manifest_id)
    select namespace_id, repository_id, 'v' || id, id from registry.manifests""",
]

# What the trackers know afterwards: entries for blobs and manifests, and links.
NOTED = {
    BLOBGC: ["gc.blob_review_queue", "gc.manifest_review_queue"],
    PEER: ["peer.blob_queue", "peer.manifest_queue", "peer.configuration_links",
           "peer.layer_links"],
    NOBODY: [],
}


def one_by_one(scale: Scale) -> Iterator[Comparison]:
    """One client pushes images as a registry does: a row and a round trip for each INSERT. An image
    has a configuration and two layers of its own and three layers of a base image that is in the
    store already. Each upload is a transaction (the blob, if it is new, and its link to the
    repository), and so is the manifest with its five layers and its tag: 33 statements, prepared,
    over a Unix socket. Nobody tracks, blobgc tracks, or the peer does, which has a trigger for each
    row, queues with one row a key (upsert) and tables of links. "Extra" is the time of a push less
    the time of one that nobody tracks. First without fsync, so that no disk hides anything; then
    with it, as it is in production. A round is three turns of 300 pushes, of which the fastest
    counts.
    """
    pushes = scale.of(300, 100)
    with registries(BASES) as made:
        sides = {tracker: partial(push_singly, made[tracker], tracker, pushes)
                 for tracker in TRACKERS}
        took = best_of_three(alternate(3 * scale.rounds, sides))
        yield from compared_pushes(took, "", 1.15, 0.5)
        if not scale.quick:
            with durable():
                took = best_of_three(alternate(3 * scale.rounds, sides))
            yield from compared_pushes(took, ", with fsync", None, None)


def push_singly(database: str, tracker: str, pushes: int) -> float:
    """Seconds that one push takes."""
    before = counts(database, tracker)
    seconds = 1 / pgbench(database, push_script(), transactions=pushes)
    grown = [a - b for a, b in zip(counts(database, tracker), before, strict=True)]
    assert grown == [pushes, 3 * pushes, pushes, pushes, 5 * pushes][:len(grown)], grown
    return seconds


def best_of_three(took: dict[str, list[float]]) -> dict[str, list[float]]:
    """A difference of two times is lost in noise unless the noise is taken away first."""
    return {tracker: [min(seconds[turn:turn + 3]) for turn in range(0, len(seconds), 3)]
            for tracker, seconds in took.items()}


def counts(database: str, tracker: str) -> list[int]:
    """How many rows there are of what was pushed, and of what the tracker knows of it."""
    return [count(database, table) for table in ["registry.tags", *NOTED[tracker]]]


def compared_pushes(took: dict[str, list[float]], said: str, at_most: float | None,
                    extra_at_most: float | None) -> Iterator[Comparison]:
    figures = ", ".join(f"{tracker} {1000 * statistics.median(seconds):.2f} ms"
                        for tracker, seconds in took.items())
    extra = {tracker: [max(a - b, 1e-6) for a, b in zip(took[tracker], took[NOBODY], strict=True)]
             for tracker in (BLOBGC, PEER)}
    yield Comparison(f"push of one image{said}", "no tracking", ratios(took[BLOBGC], took[NOBODY]),
                     at_most=at_most, figures=figures)
    yield Comparison(f"extra time of a push{said}", "the peer's extra",
                     ratios(extra[BLOBGC], extra[PEER]), at_most=extra_at_most, figures=figures)


def push_script() -> str:
    own = [f"'own' || :image || '-{number}'" for number in range(3)]
    layers = [f"'base' || :base * 3 + {number}" for number in (1, 2, 3)] + own[1:]
    return "".join([
        CHOOSE,
        *(UPLOAD.format(blob=blob) for blob in [own[0], *layers]),
        "begin;", MANIFEST.format(configuration=own[0]),
        *(LAYER.format(position=n, blob=blob) for n, blob in enumerate(layers, start=1)),
        TAG, "commit;\n"])


def in_bulk(scale: Scale) -> Iterator[Comparison]:
    """10,000 images like those above are inserted with one INSERT for each table, and then deleted
    with one DELETE of all manifests, which takes layers and tags along (ON DELETE CASCADE). Nobody
    tracks, blobgc does, or the peer.
    """
    images = scale.of(10_000, 1_000)
    with registries(BASES) as made:
        found = alternate(scale.rounds, {
            tracker: partial(push_and_delete, made[tracker], tracker, images)
            for tracker in TRACKERS})
    for number, (what, aim) in enumerate([("push", 1.2), ("delete", 1.5)]):
        took = {tracker: [pair[number] for pair in pairs] for tracker, pairs in found.items()}
        for tracker, at_most in (BLOBGC, aim), (PEER, None):
            yield Comparison(
                f"{what} of {images:,} images in bulk, {tracker}", "no tracking",
                ratios(took[tracker], took[NOBODY]), at_most=at_most,
                figures=f"{statistics.median(took[tracker]):.2f} s and "
                        f"{statistics.median(took[NOBODY]):.2f} s")


def push_and_delete(template: str, tracker: str, images: int) -> tuple[float, float]:
    """Seconds for the one and for the other."""
    with copy_of(template) as database, connect(database) as db:
        begin = time.perf_counter()
        for statement in PUSH_MANY:
            execute(db, statement.format(images=images))
        push = time.perf_counter() - begin
        grown = counts(database, tracker)
        assert grown == [images, 3 * images, images, images, 5 * images][:len(grown)], grown
        execute(db, "vacuum analyze")
        begin = time.perf_counter()
        execute(db, "delete from registry.manifests")
        delete = time.perf_counter() - begin
        assert count(database, "registry.layers") == 0
        assert tracker == NOBODY or queued_bases(database, tracker) == 30
    return push, delete


def queued_bases(database: str, tracker: str) -> int:
    """How many of the layers of base images are in the queue: deletes put them there."""
    return count(database, f"""(
        select distinct q.digest from {NOTED[tracker][0]} as q
        join generate_series(1, 30) as n on q.digest = digest('base' || n)
    ) as b""")
