"""The registry preset over time: a whole life, a big repository that goes, dump and restore."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from conftest import (
    Connection,
    Database,
    NewDatabase,
    NewRole,
    contents,
    execute,
    rows,
    value,
)

STORE = "s3://bucket/images"

# A day has passed for everything that waits.
PASS_TIME = """
update gc.blob_review_queue set review_after = now();
update gc.manifest_review_queue set review_after = now();
update gc.repository_review_queue set review_after = now();
update gc.holds set held_until = now();
"""

both_layouts = pytest.mark.parametrize("partitions", [0, 8])


def create_registry(conn: Connection, partitions: int) -> None:
    execute(conn, "set client_min_messages = warning; create extension if not exists blobgc")
    # First: another undo means that all code is made again, by the next review.
    execute(conn, "update gc.settings set jitter = '0', undo = '0', brake_share = 1")
    rows(conn, "select gc.create_registry(store => %s, partitions => %s)", STORE, partitions)


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def url_of(content: str) -> str:
    hexadecimal = hashlib.sha256(content.encode()).hexdigest()
    return f"{STORE}/docker/registry/v2/blobs/sha256/{hexadecimal[:2]}/{hexadecimal}/data"


def descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {
        "mediaType": f"application/vnd.oci.image.{kind}",
        "digest": digest_of(content),
        "size": len(content),
    }


@dataclass
class Registry:
    """What stands in front of the database: clients that push, a store, and a runner."""

    conn: Connection
    store: dict[str, str] = field(default_factory=dict)
    payloads: dict[str, bytes] = field(default_factory=dict)

    def call(self, function: str, *arguments: object) -> Any:
        places = ", ".join(["%s"] * len(arguments))
        return value(self.conn, f"select registry.{function}({places})", *arguments)

    def upload(self, repository: str, content: str) -> None:
        digest = digest_of(content.encode())
        if self.call("has_blob", repository, digest):
            return
        url = self.call("begin_blob_upload", repository, digest)
        self.store[url] = content
        self.call("finish_blob_upload", repository, digest, len(content))

    def put(self, repository: str, document: dict[str, Any], tag: str | None) -> str:
        payload = json.dumps({"schemaVersion": 2, **document}).encode()
        digest: str = self.call("put_manifest", repository, payload, tag)
        assert digest == digest_of(payload)
        self.payloads[digest] = payload
        return digest

    def push(
        self,
        repository: str,
        config: str,
        layers: list[str],
        tag: str | None = None,
        subject: str | None = None,
    ) -> str:
        for content in [config, *layers]:
            self.upload(repository, content)
        document: dict[str, Any] = {
            "config": descriptor("config.v1+json", config.encode()),
            "layers": [descriptor("layer.v1.tar", layer.encode()) for layer in layers],
        }
        if subject:
            document["subject"] = descriptor("manifest.v1+json", self.payloads[subject])
        return self.put(repository, document, tag)

    def push_list(self, repository: str, children: list[str], tag: str) -> str:
        manifests = [descriptor("manifest.v1+json", self.payloads[child]) for child in children]
        return self.put(repository, {"manifests": manifests}, tag)

    def a_day_passes(self) -> None:
        """Everything is reviewed, and what that makes garbage is reviewed the next day."""
        execute(self.conn, PASS_TIME)
        rows(self.conn, "select * from gc.review()")

    def manifests(self) -> set[tuple[str, str]]:
        found = rows(
            self.conn,
            """
            select r.path, registry.digest_text(m.digest)
            from registry.manifests as m join registry.repositories as r on r.id = m.repository_id
            where r.state = 'active'
            """,
        )
        return {(path, digest) for path, digest in found}

    def blobs(self) -> set[str]:
        """The contents of the blobs that have a row; each must be in the store."""
        found = rows(self.conn, "select registry.blob_url(digest) from registry.blobs")
        return {self.store[url] for (url,) in found}

    def tombstones(self) -> set[str]:
        return {url for (url,) in rows(self.conn, "select url from gc.tombstones")}

    def run(self) -> set[str]:
        """What a runner does: claim, delete, confirm. Returns the urls."""
        claimed = rows(self.conn, "select id, url from gc.claim('runner')")
        for _, url in claimed:
            del self.store[url]
        ids = [identity for identity, _ in claimed]
        assert value(self.conn, "select gc.confirm('runner', %s)", ids) == len(ids)
        return {url for _, url in claimed}


@both_layouts
def test_a_whole_life(new_database: NewDatabase, partitions: int) -> None:
    with new_database().connect() as conn:
        create_registry(conn, partitions)
        r = Registry(conn)
        r.call("create_repository", "acme/app")
        r.call("create_repository", "acme/web")

        # Two images that share a base layer are pushed into two repositories.
        app = r.push("acme/app", "app config", ["base", "app layer"], "v1")
        web = r.push("acme/web", "web config", ["base", "web layer"], "v1")
        assert len(r.store) == 5

        # An image for two architectures, pushed by digest, under one list; and a signature.
        amd64 = r.push("acme/app", "amd64 config", ["base", "amd64 layer"])
        arm64 = r.push("acme/app", "arm64 config", ["base", "arm64 layer"])
        multi = r.push_list("acme/app", [amd64, arm64], "multi")
        signature = r.push("acme/app", "signature config", ["signature"], subject=multi)
        first = {
            ("acme/app", app), ("acme/web", web), ("acme/app", amd64), ("acme/app", arm64),
            ("acme/app", multi), ("acme/app", signature),
        }

        # Days pass. Everything is kept by something, and is pulled as it was pushed.
        for _ in range(3):
            r.a_day_passes()
        assert r.manifests() == first
        assert r.tombstones() == set()
        assert r.blobs() == set(r.store.values())
        for tag, digest in [("v1", app), ("multi", multi)]:
            pulled = rows(conn, "select * from registry.get_manifest('acme/app', %s)", tag)
            assert (pulled[0][0], bytes(pulled[0][2])) == (digest, r.payloads[digest])
        listed = rows(conn, "select digest from registry.list_referrers('acme/app', %s)", multi)
        assert listed == [(signature,)]

        # v1 is built again. The old image loses its tag, and goes; the base layer stays.
        new = r.push("acme/app", "new config", ["base", "new layer"], "v1")
        assert r.manifests() == first | {("acme/app", new)}
        r.a_day_passes()
        assert r.manifests() == (first | {("acme/app", new)}) - {("acme/app", app)}
        assert r.tombstones() == set()
        r.a_day_passes()
        assert r.tombstones() == {url_of("app config"), url_of("app layer")}

        # An untagged push that nobody finishes leaves a blob, which goes as well.
        r.upload("acme/web", "half a push")
        r.a_day_passes()
        r.a_day_passes()
        assert r.run() == {url_of("app config"), url_of("app layer"), url_of("half a push")}
        assert r.tombstones() == set()
        assert r.blobs() == set(r.store.values())

        # The list is untagged. It goes, then its children and its signature, then their blobs.
        r.call("untag", "acme/app", "multi")
        r.a_day_passes()
        assert r.manifests() == {
            ("acme/app", new), ("acme/web", web), ("acme/app", amd64), ("acme/app", arm64),
            ("acme/app", signature),
        }
        r.a_day_passes()
        assert r.manifests() == {("acme/app", new), ("acme/web", web)}
        r.a_day_passes()
        gone = ["amd64 config", "amd64 layer", "arm64 config", "arm64 layer", "signature config",
                "signature"]
        assert r.run() == {url_of(content) for content in gone}

        # A manifest is deleted by hand.
        r.call("delete_manifest", "acme/web", web)
        assert r.manifests() == {("acme/app", new)}
        r.a_day_passes()
        assert r.run() == {url_of("web config"), url_of("web layer")}
        assert set(r.store.values()) == {"base", "new config", "new layer"} == r.blobs()

        # The repository is deleted, and the last of it goes.
        r.call("delete_repository", "acme/app")
        assert rows(conn, "select * from registry.list_repositories()") == [("acme/web",)]
        r.a_day_passes()
        assert value(conn, "select count(*) from registry.manifests") == 0
        r.a_day_passes()
        assert r.run() == {url_of("base"), url_of("new config"), url_of("new layer")}
        assert r.store == {}
        assert rows(conn, "select path from registry.repositories") == [("acme/web",)]
        log = rows(conn, "select label, event from gc.deletion_log where url = %s", url_of("base"))
        assert log == [(digest_of(b"base"), "layer_delete")]
        status = rows(conn, "select queued, tombstones_waiting, blocked, why from gc.status()")
        assert status == [(0, 0, False, None)] * 4


# Manifests of two layers, one of which all of them have; one in fifty is a list of the 49 before
# it; one in five has a tag; one in twenty has a signature.
FILL = """
set session_replication_role = replica;
insert into registry.blobs (digest, size, media_type)
select '\\x01'::bytea || sha256(n::text::bytea), 10, 'layer' from generate_series(0, 999) as n;
insert into registry.repository_blobs (namespace_id, repository_id, digest)
select r.namespace_id, r.id, b.digest
from registry.repositories as r cross join registry.blobs as b;
insert into registry.manifests (
    namespace_id, repository_id, digest, media_type, payload, total_size
)
select r.namespace_id, r.id, '\\x01'::bytea || sha256(n::text::bytea), 'manifest', '{}', 20
from registry.repositories as r cross join generate_series(1, %(manifests)s) as n;
create temporary table numbered as
select namespace_id as ns, repository_id as repo, id, row_number() over (order by id) as n
from registry.manifests;
create unique index on numbered (n);
insert into registry.layers (
    namespace_id, repository_id, manifest_id, position, digest, size, media_type
)
select m.ns, m.repo, m.id, p,
    '\\x01'::bytea || sha256((p * (m.n %% 1000))::text::bytea), 10, 'layer'
from numbered as m cross join generate_series(0, 1) as p where m.n %% 50 <> 0;
insert into registry.manifest_references (namespace_id, repository_id, parent_id, child_id)
select m.ns, m.repo, m.id, c.id
from numbered as m join numbered as c on c.n between m.n - 49 and m.n - 1 where m.n %% 50 = 0;
insert into registry.referrers (namespace_id, repository_id, subject_id, manifest_id)
select m.ns, m.repo, m.id, s.id from numbered as m join numbered as s on s.n = m.n + 1
where m.n %% 20 = 0;
insert into registry.tags (namespace_id, repository_id, name, manifest_id)
select m.ns, m.repo, 'v' || m.n, m.id from numbered as m where m.n %% 5 = 0;
set session_replication_role = origin;
analyze;
"""

TABLES = ["tags", "manifest_references", "referrers", "layers", "manifests", "repository_blobs"]


def push_until(database: Database, stop: threading.Event, pushed: list[str]) -> None:
    with database.connect() as conn:
        r = Registry(conn)
        while not stop.is_set():
            n = len(pushed)
            pushed.append(
                r.push("acme/app", f"config {n}", ["shared", f"layer {n}"], f"new-{n}"))


def rows_deleted(conn: Connection) -> int:
    """What PostgreSQL itself has counted in this session and not yet reported."""
    counted: int = value(
        conn,
        "select coalesce(sum(n_tup_del), 0)::int from pg_stat_xact_user_tables "
        "where schemaname in ('registry', 'registry_partitions')",
    )
    return counted


@pytest.mark.parametrize(("partitions", "manifests"), [(0, 30_000), (8, 5_000)])
def test_a_big_repository_goes_in_bounded_transactions_while_one_of_its_name_fills(
    new_database: NewDatabase, partitions: int, manifests: int
) -> None:
    database = new_database()
    with database.connect() as conn:
        create_registry(conn, partitions)
        value(conn, "select registry.create_repository('acme/app')")
        execute(conn, FILL % {"manifests": manifests})
        most = 10_000
        execute(conn, f"update gc.settings set max_rows = {most}")
        old = value(conn, "select id from registry.repositories")
        value(conn, "select registry.delete_repository('acme/app')")
        value(conn, "select registry.create_repository('acme/app')")

        stop = threading.Event()
        pushed: list[str] = []
        pusher = threading.Thread(target=push_until, args=(database, stop, pushed))
        pusher.start()
        try:
            deleted: list[int] = []
            while rows(conn, "select from registry.repositories where id = %s", old):
                with conn.transaction():
                    before = rows_deleted(conn)
                    failed = rows(conn, "select * from gc.review() where failed > 0")
                    deleted.append(rows_deleted(conn) - before)
                assert failed == []
                assert deleted[-1] > 0
        finally:
            stop.set()
            pusher.join()

        assert max(deleted) <= most
        assert sum(deleted) > 3 * manifests
        for table in TABLES:
            left = rows(conn, f"select from registry.{table} where repository_id = %s limit 1", old)
            assert left == [], table

    # Nothing of the new one is lost, now or when everything is reviewed.
    assert len(pushed) > 5
    with database.connect() as conn:
        while value(conn, "select gc.scan('blob', 10000)") > 0:
            pass
        for _ in range(3):
            execute(conn, PASS_TIME)
            while value(conn, "select sum(reviewed) from gc.review(10000)") > 0:
                pass
        assert len(rows(conn, "select registry.list_tags('acme/app')")) == len(pushed)
        digests = {row[0] for row in rows(
            conn, "select registry.digest_text(digest) from registry.manifests")}
        assert digests == set(pushed)
        assert value(conn, "select count(*) from registry.blobs") == 2 * len(pushed) + 1


def test_partitions_that_are_added_later_are_followed_too(new_database: NewDatabase) -> None:
    """With twice the modulus, one partition becomes two."""
    with new_database().connect() as conn:
        create_registry(conn, 2)
        r = Registry(conn)
        for n in range(8):
            r.call("create_repository", f"ns{n}/app")
            r.push(f"ns{n}/app", f"config {n}", ["base"], "v1")
        execute(conn, """
            begin;
            create table tags_before as table registry_partitions.tags_0;
            alter table registry.tags detach partition registry_partitions.tags_0;
            drop table registry_partitions.tags_0;
            create table registry_partitions.tags_0 partition of registry.tags
                for values with (modulus 4, remainder 0);
            create table registry_partitions.tags_2 partition of registry.tags
                for values with (modulus 4, remainder 2);
            insert into registry.tags select * from tags_before;
            commit;
        """)
        r.a_day_passes()
        assert len(r.manifests()) == 8
        assert value(conn, "select count(*) from registry_partitions.tags_0") > 0
        execute(conn, """
            delete from registry_partitions.tags_0;
            delete from registry_partitions.tags_1;
            delete from registry_partitions.tags_2;
        """)
        r.a_day_passes()
        assert r.manifests() == set()


@pytest.mark.parametrize("partitions", [0, 4])
def test_a_registry_is_dumped_and_restored_with_what_is_under_way(
    new_database: NewDatabase, partitions: int
) -> None:
    source, target = new_database(), new_database()
    with source.connect() as conn:
        create_registry(conn, partitions)
        r = Registry(conn)
        r.call("create_repository", "acme/app")
        r.push("acme/app", "old config", ["base", "old layer"], "v1")
        kept = r.push("acme/app", "new config", ["base", "new layer"], "v1")
        schemas = ("registry", "registry_partitions", "gc")
        before = contents(conn, *schemas)
    target.psql(source.dump())
    with target.connect() as conn:
        assert contents(conn, *schemas) == before
        r = Registry(conn, r.store, r.payloads)
        for _ in range(3):
            r.a_day_passes()
        assert r.manifests() == {("acme/app", kept)}
        assert r.run() == {url_of("old config"), url_of("old layer")}
        r.push("acme/app", "next config", ["base"], "v2")
        assert value(conn, "select count(*) from registry.manifests") == 2


def test_the_owner_of_a_database_creates_a_registry_from_the_plain_script(
    new_database: NewDatabase, new_role: NewRole, plain_script: str
) -> None:
    owner = new_role("owner")
    database = new_database(owner)
    database.psql(plain_script)
    with database.connect() as conn:
        execute(conn, "update gc.settings set undo = '0'")
        rows(conn, "select gc.create_registry(store => %s, partitions => 2)", STORE)
        r = Registry(conn)
        r.call("create_repository", "acme/app")
        r.push("acme/app", "config", ["base"], "v1")
        r.call("untag", "acme/app", "v1")
        for _ in range(2):
            r.a_day_passes()
        assert r.run() == {url_of("config"), url_of("base")}
        owners = "select distinct relowner::regrole::text from pg_class where relnamespace = %s"
        assert rows(conn, owners + "::regnamespace", "registry") == [(owner,)]


def test_dropping_the_extension_leaves_the_registry_with_its_rows(
    new_database: NewDatabase,
) -> None:
    with new_database().connect() as conn:
        create_registry(conn, 0)
        r = Registry(conn)
        r.call("create_repository", "acme/app")
        r.push("acme/app", "config", ["base"], "v1")
        with pytest.raises(psycopg.errors.DependentObjectsStillExist):
            execute(conn, "drop extension blobgc")
        execute(conn, "drop extension blobgc cascade")
        assert value(conn, "select count(*) from registry.blobs") == 2


# What a session may set, and what changes the work of a function that does not see to it.
HOSTILE = {
    "bytea_output": "escape",
    "standard_conforming_strings": "off",
    "escape_string_warning": "off",
    "backslash_quote": "on",
    "quote_all_identifiers": "on",
    "transform_null_equals": "on",
    "array_nulls": "off",
    "datestyle": "German, DMY",
    "intervalstyle": "sql_standard",
    "timezone": "Asia/Kathmandu",
    "extra_float_digits": "-15",
    "xmloption": "document",
    "lc_numeric": "C",
    "check_function_bodies": "off",
    "default_transaction_deferrable": "on",
    "search_path": "evil, registry",
    "plpgsql.extra_errors": "all",
}


STRINGS = ["standard_conforming_strings", "escape_string_warning", "backslash_quote"]
IDENTIFIERS = ["quote_all_identifiers"]


@pytest.mark.parametrize("names", [
    pytest.param(["bytea_output"], id="bytea"),
    pytest.param(STRINGS, id="strings"),
    pytest.param(IDENTIFIERS, id="identifiers"),
    pytest.param([n for n in HOSTILE if n not in IDENTIFIERS], id="all but identifiers"),
    pytest.param(list(HOSTILE), id="all"),
])
def test_no_setting_of_a_session_changes_what_a_registry_does(
    new_database: NewDatabase, names: list[str]
) -> None:
    """Two sessions, one of them hostile: what the one writes down, the other understands."""
    database = new_database()
    with database.connect() as conn, database.connect() as plain:
        for name in names:
            rows(conn, "select set_config(%s, %s, false)", name, HOSTILE[name])
        execute(plain, "create schema evil; create extension blobgc")
        create_registry(conn, 0)
        left, right = Registry(conn), Registry(plain)
        right.store, right.payloads = left.store, left.payloads
        for r, other in [(left, right), (right, left)]:
            name = f"acme/app{id(r) % 1000}"
            r.call("create_repository", name)
            image = r.push(name, "config", ["base", "layer"], "v1")
            listed = r.push_list(name, [image], "list")
            other.push(name, "signature", ["base"], subject=image)
            assert rows(other.conn, "select registry.list_tags(%s)", name) == [("list",), ("v1",)]
            assert other.call("has_blob", name, digest_of(b"base"))
            pulled = rows(r.conn, "select * from registry.get_manifest(%s, 'v1')", name)
            assert (pulled[0][0], bytes(pulled[0][2])) == (image, r.payloads[image])
            other.call("untag", name, "list")
            r.a_day_passes()
            assert len(r.manifests()) == 2, "the list has gone, and nothing else"
            assert (name, listed) not in r.manifests()
            with pytest.raises(psycopg.DatabaseError) as refused:
                r.call("create_repository", "aXb\\c")
            assert refused.value.sqlstate == "ZR008"
            r.call("untag", name, "v1")
            for _ in range(3):
                other.a_day_passes()
            assert r.manifests() == set()
            assert r.run() == {url_of(c) for c in ["config", "base", "layer", "signature"]}
            assert r.store == {} and r.blobs() == set()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_registry_refuses_transactions_whose_snapshot_is_older_than_its_locks(
    new_database: NewDatabase, level: str
) -> None:
    with new_database().connect() as conn:
        create_registry(conn, 0)
        r = Registry(conn)
        r.call("create_repository", "acme/app")
        image = r.push("acme/app", "config", ["base"], "v1")
        base = digest_of(b"base")
        calls: list[tuple[str, list[object]]] = [
            ("create_repository", ["acme/web"]), ("delete_repository", ["acme/app"]),
            ("has_blob", ["acme/app", base]), ("begin_blob_upload", ["acme/app", base]),
            ("finish_blob_upload", ["acme/app", base, 4]), ("link_blob", ["acme/app", base]),
            ("unlink_blob", ["acme/app", base]), ("untag", ["acme/app", "v1"]),
            ("tag", ["acme/app", "v2", image]), ("delete_manifest", ["acme/app", image]),
            ("put_manifest", ["acme/app", r.payloads[image]]),
        ]
        for function, arguments in calls:
            execute(conn, f"begin isolation level {level}")
            with pytest.raises(psycopg.DatabaseError) as refused:
                r.call(function, *arguments)
            assert refused.value.sqlstate == "ZR013", function
            execute(conn, "rollback")
        execute(conn, f"begin isolation level {level}")
        assert rows(conn, "select registry.list_tags('acme/app')") == [("v1",)], "reading is fine"
        execute(conn, "commit")


def do_anything(r: Registry, chance: random.Random, may_hurry: bool) -> None:
    """One operation on a small repository, good or bad."""
    contents = [f"blob {n}" for n in range(4)]
    layers = chance.sample(contents, 2)
    blob = digest_of(chance.choice(contents).encode())
    found = rows(r.conn, "select registry.digest_text(digest) from registry.manifests")
    manifest = chance.choice(found)[0] if found else digest_of(b"none")
    image = {
        "config": descriptor("config.v1+json", layers[0].encode()),
        "layers": [descriptor("layer.v1.tar", layers[1].encode())],
        "annotations": {"n": str(chance.randrange(3))},
    }
    about = {"mediaType": "x", "digest": manifest, "size": 1}
    some = [{"mediaType": "x", "digest": digest, "size": 1} for (digest,) in found[:2]]
    tag = chance.choice(["a", "b", "c", None])
    steps: list[Callable[[], object]] = [
        lambda: r.upload("acme/app", layers[0]),
        lambda: r.put("acme/app", image, tag),
        lambda: r.put("acme/app", {**image, "subject": about}, tag),
        lambda: r.put("acme/app", {"manifests": some}, tag),
        lambda: r.put("acme/app", {"manifests": some, "subject": about}, None),
        lambda: r.call("unlink_blob", "acme/app", blob),
        lambda: r.call("link_blob", "acme/app", blob),
        lambda: r.call("untag", "acme/app", tag or "a"),
        lambda: r.call("tag", "acme/app", tag or "a", manifest),
        lambda: r.call("delete_manifest", "acme/app", manifest),
        r.a_day_passes if may_hurry else lambda: rows(r.conn, "select * from gc.review()"),
    ]
    chance.choice(steps)()


def storm(
    database: Database, seed: int, until: float, done: list[bool], strange: list[str]
) -> None:
    """A client that does anything; what is no error of the registry is noted."""
    chance = random.Random(seed)
    with database.connect() as conn:
        while time.monotonic() < until:
            try:
                do_anything(Registry(conn), chance, may_hurry=seed == 0)
                done.append(True)
            except psycopg.Error as error:
                if (error.sqlstate or "")[:2] != "ZR" and error.sqlstate != "ZG001":
                    strange.append(f"{error.sqlstate} {error}")


def test_a_storm_of_operations_leaves_nothing_that_cannot_be_pulled(
    new_database: NewDatabase,
) -> None:
    database = new_database()
    done: list[bool] = []
    strange: list[str] = []
    with database.connect() as conn:
        create_registry(conn, 0)
        value(conn, "select registry.create_repository('acme/app')")
        until = time.monotonic() + 8
        clients = [
            threading.Thread(target=storm, args=(database, seed, until, done, strange))
            for seed in range(6)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert strange == []
        assert len(done) > 100
        lacking = rows(conn, """
            select registry.digest_text(m.digest), d
            from registry.manifests as m
            left join registry.layers as l on l.manifest_id = m.id
            cross join unnest(array[m.configuration_blob_digest, l.digest]) as d
            where d is not null and not exists (
                select from registry.repository_blobs as o
                where o.repository_id = m.repository_id and o.digest = d)
        """)
        assert lacking == [], "every part of a manifest is linked"
        unlinked = rows(conn, """
            select s.id, m.id
            from registry.manifests as m
            join registry.manifests as s on s.digest = m.subject_digest
            where not exists (
                select from registry.referrers as r
                where r.subject_id = s.id and r.manifest_id = m.id)
        """)
        assert unlinked == [], "who is about another is known to it"
        assert value(conn, "select count(*) from registry.pushes") == 0
        # Without tags nothing is kept, whatever is about whatever.
        r = Registry(conn)
        execute(conn, "delete from registry.tags")
        while rows(conn, "select from gc.status() where queued > 0"):
            r.a_day_passes()
        assert r.manifests() == set()
        assert value(conn, "select count(*) from registry.blobs") == 0
