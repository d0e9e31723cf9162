"""What a review of a shared blob costs in a registry, as ratios within one run.

skew  one blob that 100,000 manifests share, reviewed, against one that two share; rounds alternate.
      Once with plain tables and once with 64 partitions, each in a database of its own. The blob
      of two is also set against one that nobody has, which a review has to delete.

Run it with: make install && tests/with_server .venv/bin/python bench/registry.py
"""

import argparse
import statistics
import time

import psycopg

Connection = psycopg.Connection[tuple[object, ...]]

# Every manifest has the hot blob and one of its own; two have the cold blob. 100 namespaces.
FILL = """
set session_replication_role = replica;
insert into registry.namespaces (name) select 'ns' || n from generate_series(1, 100) as n;
insert into registry.repositories (namespace_id, path)
select id, name || '/app' from registry.namespaces;
insert into registry.blobs (digest, size, media_type)
select '\\x01'::bytea || sha256(n::bytea), 1, 'layer'
from (
    select 'own' || n from generate_series(1, {manifests}) as n
    union all values ('hot'), ('cold'), ('unused')
) as b(n);
insert into registry.manifests (
    namespace_id, repository_id, digest, media_type, payload, total_size
)
select r.namespace_id, r.id, '\\x01'::bytea || sha256(n::text::bytea), 'manifest', '', 2
from registry.repositories as r
cross join generate_series(1, {manifests} / 100) as n;
insert into registry.layers (
    namespace_id, repository_id, manifest_id, position, digest, size, media_type
)
select m.namespace_id, m.repository_id, m.id, l.position, '\\x01'::bytea || sha256(l.name::bytea),
    1, 'layer'
from (select *, row_number() over (order by id) as n from registry.manifests) as m
cross join lateral (
    values (1, 'hot'), (2, 'own' || m.n), (3, case when m.n in (1, {manifests}) then 'cold' end)
) as l(position, name)
where l.name is not null;
set session_replication_role = origin;
"""

QUEUE = """
insert into gc.blob_review_queue (digest, event, review_after)
values ('\\x01'::bytea || sha256(%s), 'bench', now())
"""


def connect(database: str) -> Connection:
    """A connection whose statements are transactions."""
    return psycopg.connect(dbname=database, autocommit=True)


def fill(partitions: int, manifests: int) -> str:
    """A database with a registry in it."""
    database = f"bench_registry_{partitions}"
    with connect("postgres") as db:
        db.execute(f"drop database if exists {database}".encode())
        db.execute(f"create database {database}".encode())
    with connect(database) as db:
        db.execute("create extension blobgc")
        db.execute("select gc.create_registry(store => 's3://bucket', partitions => %s)",
                   (partitions,))
        db.execute(FILL.format(manifests=manifests).encode())
        db.execute("vacuum analyze")
    return database


def review(db: Connection, blob: str) -> float:
    """How long one review takes, in milliseconds, that has this blob to decide on."""
    db.execute(QUEUE, (blob.encode(),))
    begin = time.perf_counter()
    row = db.execute("select kept from gc.review() where collection = 'blob'").fetchone()
    took = 1000 * (time.perf_counter() - begin)
    assert row == (1,), row
    return took


def delete(db: Connection) -> float:
    """How long one review takes that deletes a blob, which is put back afterwards."""
    db.execute(QUEUE, (b"unused",))
    with db.transaction(force_rollback=True):
        begin = time.perf_counter()
        row = db.execute("select deleted from gc.review() where collection = 'blob'").fetchone()
        took = 1000 * (time.perf_counter() - begin)
        assert row == (1,), row
    db.execute("delete from gc.blob_review_queue")
    return took


def bench_skew(partitions: int, manifests: int, rounds: int) -> None:
    """Hot against cold, in turn."""
    with connect(fill(partitions, manifests)) as db:
        times: dict[str, list[float]] = {"hot": [], "cold": [], "unused": []}
        for _ in range(rounds):
            for blob in ("hot", "cold"):
                times[blob].append(review(db, blob))
            times["unused"].append(delete(db))
        hot, cold, unused = (statistics.median(times[blob]) for blob in ("hot", "cold", "unused"))
    print(f"{partitions} partitions: shared by {manifests} {hot:.2f} ms, by two {cold:.2f} ms, "
          f"by none {unused:.2f} ms")
    print(f"a review of the one against that of the other: {hot / cold:.2f}, aim at most 1.20")


def main() -> int:
    """Both layouts."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--manifests", type=int, default=100_000)
    args = parser.parse_args()
    for partitions in (0, 64):
        bench_skew(partitions, args.manifests, args.rounds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
