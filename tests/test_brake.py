"""The brake on a registry: a normal day passes, a mistake is stopped, and a person lets it go on.

BLOBGC_IMAGES=100000: the full size.
"""

from __future__ import annotations

import os
import time

from conftest import Connection, NewDatabase, execute, rows, value
from test_registry import PASS_TIME, create_registry

IMAGES = int(os.environ.get("BLOBGC_IMAGES", "5000"))

# Images that are tagged, each with a layer of its own and one that all have. What is queued by the
# inserts is reviewed long before a normal day.
FILL = f"""
set session_replication_role = replica;
insert into registry.blobs (digest, size, media_type)
select '\\x01'::bytea || sha256(n::text::bytea), 10, 'layer'
from generate_series(0, {IMAGES}) as n;
insert into registry.manifests (
    namespace_id, repository_id, digest, media_type, payload, total_size
)
select r.namespace_id, r.id, '\\x01'::bytea || sha256(n::text::bytea), 'manifest', '{{}}', 20
from registry.repositories as r cross join generate_series(1, {IMAGES}) as n;
create temporary table numbered as
select namespace_id as ns, repository_id as repo, id, row_number() over (order by id) as n
from registry.manifests;
insert into registry.layers (
    namespace_id, repository_id, manifest_id, position, digest, size, media_type
)
select m.ns, m.repo, m.id, p, '\\x01'::bytea || sha256((p * m.n)::text::bytea), 10, 'layer'
from numbered as m cross join generate_series(0, 1) as p;
insert into registry.tags (namespace_id, repository_id, name, manifest_id)
select m.ns, m.repo, 'v' || m.n, m.id from numbered as m;
set session_replication_role = origin;
analyze;
"""


def review_all(conn: Connection) -> float:
    """Reviews until nothing is due, however much time passes; returns how long that took."""
    began = time.monotonic()
    for _ in range(10):
        execute(conn, PASS_TIME)
        if value(conn, "select sum(reviewed) from gc.review()") == 0:
            return time.monotonic() - began
        for _ in range(4 * IMAGES // 1000 + 40):
            if value(conn, "select sum(reviewed) from gc.review()") == 0:
                break
    raise AssertionError("reviews do not end")


def counted(conn: Connection) -> tuple[int, int]:
    return (value(conn, "select count(*) from registry.manifests"),
            value(conn, "select count(*) from registry.blobs"))


def paused(conn: Connection) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in rows(
        conn, "select collection, paused from gc.status() where paused is not null order by 1")]


def test_all_tags_of_a_registry_are_deleted_by_a_mistake(new_database: NewDatabase) -> None:
    with new_database().connect() as conn:
        create_registry(conn, 0)
        execute(conn, "update gc.settings set brake_share = 0.1")
        value(conn, "select registry.create_repository('acme/app')")
        execute(conn, FILL)

        # A normal day of 2 % does not trip it.
        day = IMAGES // 50
        execute(conn, f"delete from registry.tags where name in "
                      f"(select 'v' || n from generate_series(1, {day}) as n)")
        review_all(conn)
        assert paused(conn) == []
        assert counted(conn) == (IMAGES - day, IMAGES - day + 1)

        # All tags: no more goes than a tenth, or a thousand.
        most = max(1000, IMAGES // 10)
        execute(conn, "delete from registry.tags")
        took = review_all(conn)
        assert ("manifest", "reviews") in paused(conn)
        stopped = counted(conn)
        # The catalog, or what is counted of a big table, may say a little less.
        assert all(IMAGES - most <= left <= IMAGES - 0.9 * most + 1 for left in stopped), stopped
        why = value(conn, "select paused_why from gc.status() where collection = 'manifest'")
        assert "because of tag_delete" in why
        print(f"\n{IMAGES} images: stopped at {stopped} after {took:.1f} s; {why}")

        # Nothing goes on by itself; then a person lets half of it through, and then the rest.
        review_all(conn)
        assert counted(conn) == stopped
        half = stopped[0] // 2
        rows(conn, "select gc.resume('manifest', allow => %s)", half)
        review_all(conn)
        assert value(conn, "select count(*) from registry.manifests") == stopped[0] - half
        assert value(conn, "select count(*) from registry.blobs") >= IMAGES - most
        assert paused(conn) == [("blob", "reviews"), ("manifest", "reviews")]
        for name in "manifest", "blob":
            rows(conn, "select gc.resume(%s, allow => %s)", name, IMAGES)
        took = review_all(conn)
        print(f"the rest went in {took:.1f} s")
        assert counted(conn) == (0, 0)
        assert paused(conn) == []
