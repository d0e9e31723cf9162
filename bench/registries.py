"""Registries to measure: empty, of any size, or the same one for each way to follow it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from harness import PEERS, Connection, connect, drop_database, execute, new_database

DUE_AT_ONCE = """
update gc.settings set jitter = '0', undo = '0';
insert into gc.review_after_defaults
values ('layer_delete', '0'), ('manifest_delete', '0'), ('manifest_upload', '0'),
    ('blob_upload', '0');
"""


def create_registry(name: str, partitions: int = 0) -> str:
    """A database with an empty registry."""
    with connect(new_database(name)) as db:
        db.execute("create extension blobgc")
        db.execute("update gc.settings set undo = '0', brake_share = 1")
        db.execute("select gc.create_registry(store => 's3://bucket', partitions => %s)",
                   (partitions,))
    return name


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


def review_all(db: Connection) -> tuple[int, int]:
    """Review until nothing is due: how many rows were reviewed, and how many of them deleted."""
    reviewed = deleted = 0
    while row := db.execute("select sum(reviewed)::integer, sum(deleted)::integer "
                            "from gc.review(1000) having sum(reviewed) > 0").fetchone():
        assert isinstance(row[0], int) and isinstance(row[1], int)
        reviewed += row[0]
        deleted += row[1]
    return reviewed, deleted


# A registry of any size, filled in minutes --------------------------------------------------------
#
# Image m has nine layers, the blobs 10 m - 9 to 10 m - 1, and blob 10 m for its configuration. It
# is in repository m mod 1000, which is the only one of its namespace. So every blob is used once,
# unless it was to be unused.

PREPARE = """
create schema bench;
create function bench.digest(number integer)
    returns bytea
    language sql
    immutable
    parallel safe
    return '\\x01'::bytea || sha256(int4send(number));
create table bench.unused (number integer primary key);
insert into bench.unused
select n from generate_series(1, {blobs}) as n order by random() limit {unused};
analyze bench.unused;
insert into registry.namespaces (name) select 'ns' || n from generate_series(0, 999) as n;
insert into registry.repositories (namespace_id, path)
select id, name || '/app' from registry.namespaces order by id;
delete from gc.repository_review_queue;
"""

# An index that is not ready, like one that CREATE INDEX CONCURRENTLY could not finish, is left out
# by INSERT and made whole by REINDEX.
WITHOUT_INDEXES = """
update pg_index as i
set indisready = false, indisvalid = false
from pg_class as c
where c.oid = i.indrelid and c.relkind = 'r'
    and c.oid in (select p from gc._partitions(%s) as p)
"""

FILLING = {
    "registry.blobs": """
        insert into registry.blobs (digest, size, media_type)
        select bench.digest(n), 1000, 'layer' from generate_series(1, {blobs}) as n""",
    "registry.repository_blobs": """
        insert into registry.repository_blobs (namespace_id, repository_id, digest)
        select 1 + (n + 9) / 10 % 1000, 1 + (n + 9) / 10 % 1000, bench.digest(n)
        from generate_series(1, {blobs}) as n""",
    "registry.manifests": """
        insert into registry.manifests (
            namespace_id, repository_id, digest, media_type, payload, configuration_blob_digest,
            total_size
        )
        select 1 + m % 1000, 1 + m % 1000, '\\x01'::bytea || sha256(int8send(m)), 'image', '',
            case when u.number is null then bench.digest(10 * m) end, 10000
        from generate_series(1, {blobs} / 10) as m
        left join bench.unused as u on u.number = 10 * m
        order by m""",
    "registry.layers": """
        insert into registry.layers (
            namespace_id, repository_id, manifest_id, position, digest, size, media_type
        )
        select 1 + (n + 9) / 10 % 1000, 1 + (n + 9) / 10 % 1000, (n + 9) / 10, n % 10,
            bench.digest(n), 1000, 'layer'
        from generate_series(1, {blobs}) as n
        where n % 10 > 0 and not exists (select from bench.unused as u where u.number = n)""",
}


def fill_registry(name: str, blobs: int, partitions: int = 0, unused: int = 0) -> str:
    """A database with a registry of so many blobs, vacuumed; nothing is queued."""
    with connect(create_registry(name, partitions)) as db:
        execute(db, DUE_AT_ONCE)
        execute(db, PREPARE.format(blobs=blobs, unused=unused))
        for table in FILLING:
            db.execute(WITHOUT_INDEXES, (table,))
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda table: fill(name, table, FILLING[table].format(blobs=blobs)),
                          FILLING))
        db.execute("set default_statistics_target = 10")
        db.execute("vacuum analyze")
        assert db.execute("select from pg_index where not indisvalid").fetchone() is None
    return name


def fill(database: str, table: str, statement: str) -> None:
    """One table, without triggers; the checkpoint gives back the room that its WAL takes."""
    with connect(database) as db:
        db.execute("set session_replication_role = replica")
        db.execute("set maintenance_work_mem = '512MB'")
        execute(db, statement)
        execute(db, f"reindex table {table}")
        db.execute("checkpoint")


# One registry three times -------------------------------------------------------------------------
#
# Followed by blobgc, by a peer with upsert queues, and by nobody. All three have the tables of
# gc.create_registry, without partitions, and the same rows. Where nobody follows and where the peer
# does, blobgc is out of the tables again, and so is the one index that only blobgc needs.

BLOBGC, PEER, NOBODY = TRACKERS = "blobgc", "peer", "nobody"

# 1 to 100, in as many namespaces; ids are given, so that a script can name them.
REPOSITORIES = """
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
        with connect(create_registry(base)) as db:
            execute(db, REPOSITORIES)
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
