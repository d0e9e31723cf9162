"""Clients that delete at the same time what shares layers."""

import statistics
from collections.abc import Iterator
from functools import partial

from harness import Comparison, Scale, alternate, pgbench, ratios
from registries import BLOBGC, NOBODY, PEER, TRACKERS, copy_of, count, registries

CLIENTS = 16

# All images have the three layers of one base image, and a configuration of their own.
FILL = """
insert into registry.blobs (digest, size, media_type)
select digest(name), 1000, 'layer'
from (
    select 'base' || n from generate_series(1, 3) as n
    union all
    select 'own' || n from generate_series(1, {images}) as n
) as b(name);
insert into registry.manifests (namespace_id, repository_id, id, digest, media_type, payload,
    configuration_blob_digest, total_size)
overriding system value
select n % 100 + 1, n % 100 + 1, n, digest('image' || n), 'manifest', repeat('x', 1000)::bytea,
    digest('own' || n), 4000
from generate_series(1, {images}) as n;
insert into registry.layers (namespace_id, repository_id, manifest_id, position, digest, size,
    media_type)
select n % 100 + 1, n % 100 + 1, n, p, digest('base' || p), 1000, 'layer'
from generate_series(1, {images}) as n, generate_series(1, 3) as p;
create sequence next_image;
"""

# What is deleted, how many layers a transaction deletes with that, and which rows it names.
WHAT = [
    ("manifests that share 3 layers", 3, "manifests", "id = :image"),
    ("layers of manifests that share 3 layers", 3, "layers", "manifest_id = :image"),
    ("single layers of 3 blobs", 1, "layers", "manifest_id = :image and position = :position"),
]

# Whoever comes next takes what comes next.
DELETE = """
select nextval('next_image') as n \\gset
\\set image 1 + :n * {layers} / 3
\\set position 1 + :n % 3
begin;
delete from registry.{table}
where namespace_id = :image % 100 + 1 and repository_id = :image % 100 + 1 and {rows};
select pg_sleep(0.002);
commit;
"""


def deletes(scale: Scale) -> Iterator[Comparison]:
    """16 clients delete images, each others than the rest, that have the three layers of one base
    image in common. A transaction stays open for 2 ms after its DELETE, as one does that has more
    to do. Nobody tracks, blobgc does, or the peer, whose queues have one row a blob: whoever
    deletes waits there for whoever deleted before. Once the manifest is deleted, and its layers go
    with it (ON DELETE CASCADE); once only the three layers are; and once a single layer.
    """
    with registries(FILL.format(images=scale.of(60_000, 10_000))) as made:
        for what, layers, table, rows in WHAT[:scale.of(3, 1)]:
            script = DELETE.format(layers=layers, table=table, rows=rows)
            rates = alternate(scale.rounds, {
                tracker: partial(deletes_per_second, made[tracker], script, layers, scale.of(8, 1))
                for tracker in TRACKERS})
            yield from compared(f"16 clients deleting {what}", rates, 10 if layers == 3 else None)


def deletes_per_second(template: str, script: str, layers: int, seconds: int) -> float:
    """What pgbench counts; a transaction that ended in a deadlock does not. Images must not end."""
    with copy_of(template) as database:
        before = count(database, "registry.layers")
        rate = pgbench(database, script, clients=CLIENTS, seconds=seconds)
        left = count(database, "registry.layers")
        taken = count(database, "generate_series(1, (select last_value from next_image))")
        assert left > 0 and before - left >= 0.9 * layers * taken, (before, left, taken)
    return rate


def compared(
    what: str, rates: dict[str, list[float]], at_least: float | None
) -> Iterator[Comparison]:
    figures = ", ".join(f"{tracker} {statistics.median(rate):,.0f} a second"
                        for tracker, rate in rates.items())
    yield Comparison(what, "the peer", ratios(rates[BLOBGC], rates[PEER]), at_least=at_least,
                     figures=figures)
    yield Comparison(what, "no tracking", ratios(rates[BLOBGC], rates[NOBODY]), at_least=0.8,
                     figures=figures)
