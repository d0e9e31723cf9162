"""gc.explain and gc.preview on random registries: what they say is what the next reviews do.

BLOBGC_FULL=1: at the size that we promise, 1,000 rows explained and 10,000 previewed.
"""

from __future__ import annotations

import os
import random

import pytest
from conftest import Connection, NewDatabase, contents, execute, rows, value
from test_registry import create_registry

FULL = os.environ.get("BLOBGC_FULL") == "1"

KEYS = {
    "blob": "select digest::text from registry.blobs",
    "manifest": "select row(namespace_id, repository_id, id)::text from registry.manifests",
    "repository": "select row(namespace_id, id)::text from registry.repositories",
}

# A registry with every kind of reference: tags, lists (also of lists), subjects, layers and
# configurations, in repositories of which some are being deleted. Events are left by what is then
# taken away; some entries are lost, some rows are in use, and some entries are not due yet.
FILL = """
select setseed(%(seed)s);
update gc.settings set max_rows = 1000000, statement_timeout = '1 hour';
select registry.create_repository('acme/app' || n) from generate_series(1, 8) as n;
create temporary table blob as
select n, '\\x01'::bytea || sha256(n::text::bytea) as digest
from generate_series(1, %(blobs)s) as n;
insert into registry.blobs (digest, size, media_type)
select b.digest, 1 + b.n %% 100, 'layer' from blob as b;
insert into registry.repository_blobs (namespace_id, repository_id, digest)
select r.namespace_id, r.id, b.digest
from blob as b cross join registry.repositories as r;
insert into registry.manifests (
    namespace_id, repository_id, digest, media_type, payload, configuration_blob_digest, total_size
)
select r.namespace_id, r.id, '\\x01'::bytea || sha256(('m' || n)::bytea), 'manifest', '{}',
    case when random() < 0.6 then (select digest from blob where n = 1 + m.n %% %(blobs)s) end, 20
from generate_series(1, %(manifests)s) as m(n)
join registry.repositories as r on r.id = 1 + (m.n * 7) %% 8;
create temporary table manifest as
select namespace_id as ns, repository_id as repo, id,
    row_number() over (partition by repository_id order by id) as n
from registry.manifests;
create unique index on manifest (repo, n);
create index on blob (n);
insert into registry.layers (
    namespace_id, repository_id, manifest_id, position, digest, size, media_type
)
select m.ns, m.repo, m.id, p, b.digest, 10, 'layer'
from manifest as m
cross join lateral (
    select p, 1 + floor(random() * %(blobs)s * 0.8)::integer
    from generate_series(1, (m.id %% 4)::integer) as p offset 0
) as u(p, n)
join blob as b on b.n = u.n;
insert into registry.manifest_references (namespace_id, repository_id, parent_id, child_id)
select m.ns, m.repo, m.id, c.id
from manifest as m join manifest as c on c.repo = m.repo and c.n between m.n - 3 and m.n - 1
where m.n %% 5 = 0;
insert into registry.referrers (namespace_id, repository_id, subject_id, manifest_id)
select m.ns, m.repo, m.id, s.id
from manifest as m join manifest as s on s.repo = m.repo and s.n = m.n + 1
where m.n %% 6 = 0;
insert into registry.tags (namespace_id, repository_id, name, manifest_id)
select m.ns, m.repo, 'v' || m.n, m.id from manifest as m where random() < 0.5;
-- Some blobs are not linked where no manifest uses them.
delete from registry.repository_blobs as o
where random() < 0.8 and not exists (
    select from registry.layers as l
    where (l.repository_id, l.digest) = (o.repository_id, o.digest)
) and not exists (
    select from registry.manifests as m
    where (m.repository_id, m.configuration_blob_digest) = (o.repository_id, o.digest)
);
-- What was uploaded long ago has been reviewed.
delete from gc.blob_review_queue where random() < 0.5;
delete from gc.manifest_review_queue where random() < 0.5;
-- Then it is taken away.
delete from registry.tags where random() < 0.4;
update registry.tags as t set manifest_id = m.id
from manifest as m
where m.repo = t.repository_id and m.n = 1 + t.manifest_id %% 20 and random() < 0.2;
delete from registry.layers where random() < 0.2;
delete from registry.manifest_references where random() < 0.2;
delete from registry.referrers where random() < 0.2;
update registry.manifests set configuration_blob_digest = null where random() < 0.2;
update registry.repositories set state = 'deleting' where id in (2, 5);
delete from gc.blob_review_queue where random() < 0.1;
delete from gc.manifest_review_queue where random() < 0.1;
insert into gc.holds (collection, key, reason, held_until)
select 'blob', digest::text, 'upload', now() + '1 hour' from blob where random() < 0.05
union all
select 'manifest', row(ns, repo, id)::text, 'keep_alive', now() + '1 hour'
from manifest where random() < 0.05;
analyze;
"""

ALL_DUE = "".join(
    f"update gc.{name}_review_queue set review_after = now() where review_after > now();\n"
    for name in KEYS
)


def fill(conn: Connection, partitions: int, seed: float, size: int) -> None:
    create_registry(conn, partitions)
    execute(conn, FILL % {"seed": seed, "blobs": size, "manifests": size})


def live(conn: Connection) -> set[tuple[str, str]]:
    """All rows of all collections."""
    return {(name, key) for name in KEYS for (key,) in rows(conn, KEYS[name])}


def tables(conn: Connection) -> dict[str, list[str]]:
    """Every row of every table, without the state of sequences."""
    found = contents(conn, "gc", "registry", "registry_partitions")
    return {name: lines for name, lines in found.items() if not name.endswith("_seq")}


def review_all(conn: Connection) -> None:
    execute(conn, ALL_DUE)
    assert rows(conn, "select * from gc.review(1000000) where failed > 0") == []


@pytest.mark.parametrize(("partitions", "seed"), [(0, 0.1), (4, 0.3)])
def test_the_verdict_of_explain_is_what_the_next_reviews_do(
    new_database: NewDatabase, partitions: int, seed: float
) -> None:
    with new_database().connect() as conn:
        fill(conn, partitions, seed, 1000 if FULL else 120)
        # Repositories are few, and each is another case.
        choice = random.Random(seed)
        of_all = sorted(live(conn))
        before = choice.sample(of_all, 1000 if FULL else 100)
        before += [row for row in of_all if row[0] == "repository"]
        verdicts: dict[tuple[str, str], str] = {}
        for name, key in before:
            first = rows(conn, "select verdict, depth, kind from gc.explain(%s, %s)", name, key)[0]
            assert first[1:] == (0, "verdict")
            verdicts[name, key] = first[0]
        found = {word: list(verdicts.values()).count(word) for word in set(verdicts.values())}
        wanted = {"kept", "due", "garbage", "held", "waiting", "goes"}
        assert wanted == set(found), found

        review_all(conn)
        left = live(conn)
        wrong = {
            row: word for row, word in verdicts.items()
            if (row in left) != (word in {"kept", "garbage", "held", "waiting"})
        }
        assert wrong == {}

        # What was not queued is found by a scan, and goes then.
        for name in KEYS:
            while value(conn, "select gc.scan(%s)", name):
                pass
        review_all(conn)
        left = live(conn)
        garbage = {row for row, word in verdicts.items() if word == "garbage"}
        assert garbage & left == set()


def test_a_row_that_is_gone_is_explained_from_its_tombstone_and_then_from_the_log(
    new_database: NewDatabase,
) -> None:
    with new_database().connect() as conn:
        fill(conn, 0, 0.5, 60)
        before = {key for name, key in live(conn) if name == "blob"}
        review_all(conn)
        gone = sorted(before - {key for name, key in live(conn) if name == "blob"})
        assert gone
        words = {value(conn, "select verdict from gc.explain('blob', %s) limit 1", key)
                 for key in gone}
        assert words == {"deleting"}
        ids = [i for (i,) in rows(conn, "select id from gc.claim('runner')")]
        value(conn, "select gc.confirm('runner', %s)", ids)
        for key in gone:
            word, line = rows(conn, "select verdict, detail from gc.explain('blob', %s)", key)[0]
            assert word == "deleted"
            assert "object confirmed on" in line and line.endswith("by runner")


def decided(conn: Connection) -> dict[tuple[str, str], str]:
    found = rows(conn, "select collection, key, verdict from gc.preview(batch => 1000000)")
    verdicts = {(name, key): verdict for name, key, verdict in found}
    assert len(verdicts) == len(found)
    return verdicts


def queued(conn: Connection, condition: str) -> dict[tuple[str, str], int]:
    """The keys in the queues, each with the last of its entries for which the condition holds."""
    columns = {"blob": "q.digest::text", "manifest": "row(namespace_id, repository_id, id)::text",
               "repository": "row(namespace_id, id)::text"}
    return {
        (name, key): entry
        for name, column in columns.items()
        for key, entry in rows(conn, f"select {column}, max(entry) from gc.{name}_review_queue "
                                     f"as q where {condition} group by 1")
    }


@pytest.mark.parametrize(("partitions", "seed"), [(0, 0.2), (4, 0.9)])
def test_preview_and_the_review_after_it_agree(
    new_database: NewDatabase, partitions: int, seed: float
) -> None:
    size = 9000 if FULL else 400
    with new_database().connect() as conn:
        fill(conn, partitions, seed, size)
        execute(conn, ALL_DUE)
        # Some rows cannot be deleted.
        execute(conn, """
            create function registry.refuse() returns trigger language plpgsql as
                $$begin raise 'not this one'; end$$;
            create trigger refuse before delete on registry.blobs for each row
                when (old.size % 10 = 7) execute function registry.refuse();
        """)
        due = queued(conn, "review_after <= now()")
        there = live(conn)
        before = tables(conn)
        verdicts = decided(conn)
        assert tables(conn) == before
        assert set(verdicts) == set(due) & there
        assert len(verdicts) > (10_000 if FULL else 300)
        assert set(verdicts.values()) == {"deleted", "kept", "busy", "failed"}

        rows(conn, "select * from gc.review(1000000)")
        left = live(conn)
        failed = queued(conn, "review_count > 0")
        # Entries from before the review: it has put them off. Later ones are of its own deletions.
        later = queued(conn, "review_after > now()")
        put_off = {row for row in due if later.get(row, due[row] + 1) <= due[row]}
        actual = {
            row: "deleted" if row not in left else "failed" if row in failed
            else "busy" if row in put_off else "kept"
            for row in verdicts
        }
        wrong = {row: (word, actual[row]) for row, word in verdicts.items() if actual[row] != word}
        assert wrong == {}
