"""What was deleted by mistake comes back as it was, or nothing changes."""

from __future__ import annotations

import contextlib
import os
import random

import psycopg
import pytest
from conftest import Connection, NewDatabase, execute, rows, value
from test_registry import PASS_TIME, Registry, create_registry

# Owned rows in partitions, a cascade, a cascade of a cascade, rows that keep, a row that refers to
# its like, a name that is unique, two collections of which one needs the other, rows that share
# their objects and have several, declared references, and rows that are marked before they go.
SCHEMA = """
create extension blobgc;
create schema app;
create table app.blob (id integer primary key, name text unique, f float8, j jsonb);
create table app.image (
    id integer primary key,
    config integer references app.blob,
    base integer references app.image
);
create index on app.image (config);
create index on app.image (base);
create table app.layer (
    image integer references app.image on delete cascade,
    n integer,
    blob integer not null references app.blob,
    primary key (image, n)
) partition by hash (image);
create table app.layer_0 partition of app.layer for values with (modulus 2, remainder 0);
create table app.layer_1 partition of app.layer for values with (modulus 2, remainder 1);
create index on app.layer (blob);
create table app.tag (
    name text primary key,
    image integer not null references app.image on delete cascade
);
create index on app.tag (image);
create table app.note (id integer generated always as identity primary key,
    tag text references app.tag on delete cascade on update cascade, text text);
create index on app.note (tag);
create table app.scan (id integer primary key, pages text[]);
create index on app.scan using gin (pages);
create table app.mail (id integer primary key, scans integer[], about text);
create index on app.mail using gin (scans);
create index on app.mail (about);
create table app.album (id integer primary key, deleted boolean not null default false);
create table app.picture (
    id integer primary key,
    album integer not null references app.album,
    blob integer references app.blob
);
create index on app.picture (album);
create index on app.picture (blob);
update gc.settings set jitter = '0';
select count(*) from gc.track('app.blob', url => $$'s3://bucket/' || id$$, label => 'name');
select count(*) from gc.track('app.image', owned => '{layer}');
select count(*) from gc.track('app.scan', url => 'pages', condition => 'true');
select count(*) from gc.declare_reference('scan', 'app.mail', 'scans');
select count(*) from gc.declare_reference('blob', 'app.mail', 'about', by => 'name');
select count(*) from gc.track('app.scan', url => 'pages');
select count(*) from gc.track('app.mail', condition => 'false');
select count(*) from gc.track('app.album', condition => 'deleted', owned => '{picture}',
    restored => '{"deleted": false}');
insert into gc.review_after_defaults select e, '0' from unnest(array['blob_insert', 'image_insert',
    'image_delete', 'image_update', 'layer_delete', 'tag_delete', 'tag_update', 'scan_insert',
    'mail_delete', 'album_update', 'picture_delete']) as e;
"""
TABLES = "blob", "image", "layer", "tag", "note", "scan", "mail", "album", "picture"


def tables(conn: Connection) -> dict[str, list[str]]:
    return {
        table: [row[0] for row in rows(conn, f"select t::text from app.{table} as t order by 1")]
        for table in TABLES
    }


def all_state(conn: Connection) -> tuple[dict[str, list[str]], object]:
    """All that a restore which is refused must not change."""
    kept = rows(conn, "select id, relation, key, content::text from gc.trash_rows order by 1")
    tombstones = rows(conn, "select id, url, due_at, worker from gc.tombstones order by 1")
    queued = [value(conn, f"select count(*) from gc.{name}_review_queue")
              for name in ("blob", "image", "scan", "mail", "album")]
    return tables(conn), (kept, tombstones, queued)


def attempt(conn: Connection, statement: str, *parameters: object) -> None:
    """What the application may not do, it does not do."""
    with contextlib.suppress(psycopg.errors.IntegrityError):
        rows(conn, statement, *parameters)


class History:
    """Random statements of an application, between reviews."""

    def __init__(self, conn: Connection, seed: int) -> None:
        self.conn = conn
        self.random = random.Random(seed)
        self.next = 1

    def a(self, table: str, column: str = "id") -> object:
        found = rows(self.conn, f"select {column} from app.{table} order by 1")
        return self.random.choice(found)[0] if found else None

    def grow(self) -> None:
        self.next += 1
        n, conn = self.next, self.conn
        attempt(conn, "insert into app.blob values (%s, %s, random(), '{\"a\": null}') "
                      "returning 1", n, f"name {self.random.randrange(12)}")
        attempt(conn, "insert into app.image values (%s, %s, %s) returning 1", n,
                self.a("blob"), self.random.choice([None, self.a("image")]))
        for place in range(self.random.randrange(4)):
            attempt(conn, "insert into app.layer values (%s, %s, %s) returning 1",
                    self.a("image"), place, self.a("blob"))
        attempt(conn, "insert into app.tag values (%s, %s) returning 1",
                f"tag {self.random.randrange(9)}", self.a("image"))
        attempt(conn, "insert into app.note (tag, text) values (%s, 'text') returning 1",
                self.a("tag", "name"))
        attempt(conn, "insert into app.scan values (%s, %s) returning 1", n,
                [f"s3://scans/{self.random.randrange(9)}" for _ in range(3)])
        attempt(conn, "insert into app.mail values (%s, %s, %s) returning 1", n,
                [self.a("scan"), self.a("scan")], self.a("blob", "name"))
        attempt(conn, "insert into app.album values (%s) returning 1", n)
        attempt(conn, "insert into app.picture values (%s, %s, %s) returning 1", n,
                self.a("album"), self.a("blob"))

    def shrink(self) -> None:
        table, column = self.random.choice(
            [("tag", "name"), ("tag", "name"), ("image", "id"), ("blob", "id"), ("layer", "image"),
             ("note", "id"), ("scan", "id"), ("mail", "id"), ("picture", "id")])
        attempt(self.conn, f"delete from app.{table} where {column} = %s returning 1",
                self.a(table, column))

    def mark(self) -> None:
        attempt(self.conn, "update app.album set deleted = true where id = %s returning 1",
                self.a("album"))

    def review(self) -> None:
        rows(self.conn, "select * from gc.review()")


# What went since then, and what is marked.
UNDO = """
select gc.restore(t.collection, t.key)
from (
    select t.collection, t.key from gc.trash as t
    where exists (
        select from gc.trash_rows as r
        where r.key = t.key and r.id > %s and r.deleted_at = t.deleted_at)
    union
    select 'album', id::text from app.album where deleted
) as t
"""


# Mails that came back without what they mention. Foreign keys see to the rest.
DANGLING = """
select m from app.mail as m
where m::text <> all (%s)
    and (m.scans && array(select unnest(m.scans) except select id from app.scan)
        or m.about not in (select name from app.blob))
"""


def make_a_mistake_and_undo_it(conn: Connection, history: History) -> None:
    before = tables(conn)
    latest = value(conn, "select coalesce(max(id), 0) from gc.trash_rows")
    for _ in range(history.random.randrange(1, 4)):
        history.random.choice([history.shrink, history.shrink, history.mark, history.review])()
    rows(conn, UNDO, latest)
    assert tables(conn) == before


def restore_anything(conn: Connection, history: History) -> bool | None:
    """Of long ago perhaps. Whether it came back; None: there was nothing."""
    kept = rows(conn, "select collection, key from gc.trash order by 1, 2")
    if not kept:
        return None
    before = all_state(conn)
    try:
        rows(conn, "select gc.restore(%s, %s)", *history.random.choice(kept))
    except psycopg.errors.DatabaseError as error:
        assert error.sqlstate == "ZG010", error
        assert all_state(conn) == before
        return False
    assert rows(conn, DANGLING, before[0]["mail"]) == []
    return True


def test_a_restore_undoes_deletions_or_changes_nothing(new_database: NewDatabase) -> None:
    template = new_database()
    with template.connect() as conn:
        execute(conn, SCHEMA)
    for seed in range(int(os.environ.get("BLOBGC_HISTORIES", "3"))):
        outcomes = []
        with new_database(template=template.name).connect() as conn:
            history = History(conn, seed)
            for _ in range(15):
                for _ in range(history.random.randrange(6)):
                    history.grow()
                if history.random.random() < 0.3:
                    history.review()
                make_a_mistake_and_undo_it(conn, history)
                history.shrink()
                outcomes.append(restore_anything(conn, history))
        assert outcomes.count(True) > 3, seed
        if seed == 0:
            assert outcomes.count(False) > 0


def fill(registry: Registry, images: int) -> list[str]:
    """Repositories with images that share layers, lists of them, and signatures."""
    repositories = [f"acme/app{n}" for n in range(4)]
    for name in repositories:
        registry.call("create_repository", name)
    for n in range(images):
        name = repositories[n % 4]
        image = registry.push(name, f"config {n}", [f"base {n % 7}", f"layer {n // 2}"], f"v{n}")
        if n % 5 == 0:
            registry.push(name, "{}", [f"signature {n}"], subject=image)
        if n % 10 == 0:
            registry.push_list(name, [image], f"list{n}")
    return repositories


CONTENTS = ("blobs", "repository_blobs", "manifests", "layers", "manifest_references", "referrers",
            "tags", "repositories")


def contents(conn: Connection) -> dict[str, list[str]]:
    return {
        table: [row[0] for row in rows(
            conn, f"select md5(t::text) from registry.{table} as t order by 1")]
        for table in CONTENTS
    }


def collect(conn: Connection) -> None:
    for _ in range(100):
        execute(conn, PASS_TIME)
        if value(conn, "select sum(reviewed) from gc.review(10000)") == 0:
            return
    raise AssertionError("there is no end of reviews")


MISTAKES = {
    "all tags": "delete from registry.tags",
    "the manifests": "delete from registry.manifest_references; delete from registry.manifests",
    "two repositories": "update registry.repositories set state = 'deleting' "
                        "where path in ('acme/app1', 'acme/app2')",
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("partitions", [0])
def test_a_registry_comes_back_by_one_statement(
    new_database: NewDatabase, mistake: str, partitions: int
) -> None:
    with new_database().connect() as conn:
        create_registry(conn, partitions)
        execute(conn, "update gc.settings set undo = '1 day'")
        registry = Registry(conn)
        fill(registry, int(os.environ.get("BLOBGC_IMAGES", "40")))
        collect(conn)
        before = contents(conn)
        for _ in range(2):
            moment = value(conn, "select clock_timestamp()")
            execute(conn, MISTAKES[mistake])
            collect(conn)
            after = contents(conn)
            assert len(after["blobs"]) < len(before["blobs"])
            assert len(after["manifests"]) < len(before["manifests"])
            assert rows(conn, "select * from gc.claim('worker')") == []
            came_back = value(conn, "select gc.restore(collection, key) from gc.trash "
                                    "where deleted_at >= %s", moment)
            assert came_back >= sum(map(len, before.values())) - sum(map(len, after.values()))
            assert contents(conn) == before
            assert value(conn, "select count(*) from gc.tombstones where worker is null "
                               "and wait_for = '0'") == 0
            pull(registry)
            collect(conn)
            assert contents(conn) == before


def pull(registry: Registry) -> None:
    """Every image that is tagged, with all that belongs to it; nothing of it was deleted."""
    found = rows(registry.conn, """
        select r.path, m.payload, array(
            select registry.blob_url(l.digest) from registry.layers as l
            where l.manifest_id = m.id and l.repository_id = m.repository_id)
        from registry.tags as t
        join registry.repositories as r on r.id = t.repository_id
        join registry.manifests as m on m.id = t.manifest_id and m.repository_id = r.id
        """)
    assert found
    for _, payload, urls in found:
        assert bytes(payload) in registry.payloads.values()
        for url in urls:
            assert url in registry.store


def empty(conn: Connection, until: str) -> None:
    """Reviews in small steps until this is true."""
    execute(conn, "update gc.settings set max_rows = 4")
    for _ in range(100):
        if value(conn, f"select {until}"):
            execute(conn, "update gc.settings set max_rows = 10000")
            return
        execute(conn, PASS_TIME)
        rows(conn, "select * from gc.review()")
    raise AssertionError("the repository does not become empty")


# How far a repository is gone that somebody misses, and what brings it back.
A_MANIFEST_WENT = ("exists (select from gc.trash where collection = 'manifest') "
                   "and exists (select from registry.repositories where path = 'acme/app1')")
IT_WENT = "not exists (select from registry.repositories where path = 'acme/app1')"
BY_NAME = "select registry.restore_repository('acme/app1')"
BY_TRASH = "select gc.restore(collection, key) from gc.trash"
STAGES = [("true", BY_NAME), (A_MANIFEST_WENT, BY_NAME), (A_MANIFEST_WENT, BY_TRASH),
          (IT_WENT, BY_NAME), (IT_WENT, BY_TRASH)]


def test_a_deleted_repository_comes_back_at_every_stage(new_database: NewDatabase) -> None:
    with new_database().connect() as conn:
        create_registry(conn, 0)
        execute(conn, "update gc.settings set undo = '1 day'")
        registry = Registry(conn)
        fill(registry, 8)
        collect(conn)
        before = contents(conn)
        for stage, restore in STAGES:
            registry.call("delete_repository", "acme/app1")
            empty(conn, stage)
            # The name is taken meanwhile: nothing changes, until it is free again.
            taken = registry.call("create_repository", "acme/app1").split("@")[1]
            deleted = contents(conn)
            for statement, code in ((BY_NAME, "ZR021"), (BY_TRASH, "ZG010")):
                if statement == BY_NAME or stage != "true":
                    with pytest.raises(psycopg.DatabaseError) as info:
                        rows(conn, statement)
                    assert info.value.sqlstate == code
                    assert "acme/app1" in f"{info.value} {info.value.diag.message_detail}"
            assert contents(conn) == deleted
            execute(conn, f"delete from registry.repositories where id = {taken}")
            execute(conn, f"delete from gc.trash_rows where content ->> 'id' = '{taken}' "
                          "and relation = 'registry.repositories'::regclass")
            assert value(conn, restore) >= 1
            assert contents(conn) == before
        collect(conn)
        assert contents(conn) == before
        with pytest.raises(psycopg.DatabaseError, match="there is no repository"):
            registry.call("restore_repository", "acme/other")
