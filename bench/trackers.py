"""One registry three times: followed by blobgc, by a peer with upsert queues, and by nobody.

All three have the tables of gc.create_registry, without partitions, and the same rows. Where nobody
follows and where the peer does, blobgc is out of the tables again, and so is the one index that
only blobgc needs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import Connection, connect, drop_database, execute, new_database

PEERS = Path(__file__).resolve().parent / "peers"

BLOBGC, PEER, NOBODY = TRACKERS = "blobgc", "peer", "nobody"

# Repositories 1 to 100 in as many namespaces; ids are given, so that a script can name them.
CREATE = """
create extension blobgc;
select gc.create_registry(store => 's3://bucket');
insert into registry.namespaces (id, name) overriding system value
select n, 'ns' || n from generate_series(1, 100) as n;
insert into registry.repositories (namespace_id, id, path) overriding system value
select n, n, 'ns' || n || '/app' from generate_series(1, 100) as n;
create function digest(name text) returns bytea immutable
    return '\\x01'::bytea || sha256(name::bytea);
"""

UNTRACK = """
select gc.untrack(name) from gc.collections;
alter table registry.blobs drop constraint blobs_url_own;
"""

LINK = """
insert into peer.configuration_links (digest, namespace_id, repository_id, manifest_id)
select configuration_blob_digest, namespace_id, repository_id, id from registry.manifests
where configuration_blob_digest is not null;
insert into peer.layer_links (digest, namespace_id, repository_id, manifest_id, position)
select digest, namespace_id, repository_id, manifest_id, position from registry.layers;
"""


@contextmanager
def registries(fill: str) -> Iterator[dict[str, str]]:
    """A database for each tracker, to be copied; what fill inserts, nobody was told of."""
    base, names = "bench_registry", {tracker: f"bench_{tracker}" for tracker in TRACKERS}
    try:
        with connect(new_database(base)) as db:
            execute(db, CREATE)
            execute(db, f"set session_replication_role = replica; {fill}")
        for tracker, name in names.items():
            with connect(new_database(name, base)) as db:
                hand_over(db, tracker)
        yield names
    finally:
        for name in (base, *names.values()):
            drop_database(name)


def hand_over(db: Connection, tracker: str) -> None:
    """Who follows from now on. The peer's links are there as if it always had."""
    if tracker != BLOBGC:
        execute(db, UNTRACK)
    if tracker == PEER:
        execute(db, (PEERS / "upsert_queues.sql").read_text())
        execute(db, LINK)
    execute(db, "vacuum analyze")


@contextmanager
def copy_of(template: str) -> Iterator[str]:
    """A database that is as the template was, for one measurement."""
    name = new_database("bench_copy", template)
    try:
        yield name
    finally:
        drop_database(name)


def count(database: str, query: str) -> int:
    """How many rows a query finds."""
    with connect(database) as db:
        row = db.execute(f"select count(*) from {query}".encode()).fetchone()
    assert row is not None and isinstance(row[0], int)
    return row[0]
