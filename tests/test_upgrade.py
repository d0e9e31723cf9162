"""Upgrades: from every released version, in place and in use, to what a new installation is.

Each released version is installed from its own script, as an extension and as a plain script, is
filled, and is upgraded while an application writes. What comes out is compared with a new
installation object by object.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import (
    APP,
    ROOT,
    Connection,
    Database,
    NewDatabase,
    catalog,
    databases,
    execute,
    roles,
    rows,
    value,
    wait_until,
    without_fingerprints,
)
from test_cli import says
from test_registry import PASS_TIME, Registry, digest_of

import blobgc

RELEASED = sorted(path.stem.partition("--")[2] for path in ROOT.glob("sql/released/*.sql"))
SCHEMAS = ("gc", "app", "registry", "registry_partitions")

# Names that need quotes, a partitioned referrer, images that share objects, long keys. What is
# tracked here can be tracked by every version.
TABLES = APP + """
create table app."Big Album" (
    "Tenant" integer, "event" date, shut boolean not null default false,
    primary key ("Tenant", "event")
);
create table app.picture (
    tenant integer, day date, taken date not null,
    foreign key (tenant, day) references app."Big Album"
) partition by range (taken);
create table app.picture_2024 partition of app.picture
    for values from ('2024-01-01') to ('2025-01-01');
create index on app.picture (tenant, day);
create table app.image (id integer primary key, url text);
create index on app.image ((url));
create table app.usage (image_id integer references app.image);
create index on app.usage (image_id);
create domain app.word as text;
create table app.term (id app.word, amount numeric, primary key (id, amount));
"""

TRACK = """
update gc.settings set jitter = '0', max_rows = 321, backoff = '7 minutes';
insert into gc.review_after_defaults
values ('file_insert', '0'), ('post_delete', '0'), ('album_shut', '3 days');
select * from gc.track('app.file', url => $$'file://{store}/' || id$$, size => 'bytes',
    undo => '0');
select * from gc.track('app."Big Album"', label => $$"Tenant" || ' it''s'$$, condition => 'shut',
    events => '{"Big Album_update": "album_shut"}', undo => '0');
select * from gc.track('app.image', url => 'url', undo => '1 hour');
select * from gc.track('app.term', condition => 'amount > 0', undo => '0');
create view app.report as select * from gc.daily_totals;
"""


@dataclass
class World:
    """A database with everything in use, and who uses it."""

    database: Database
    conn: Connection
    store: Path
    runner: str
    viewer: str
    uploader: str
    before: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    deleted: list[int] = field(default_factory=list)  # By the application, acknowledged.
    errors: list[str] = field(default_factory=list)
    said: str = ""

    def set_up(self) -> None:
        """The same in every version: it is what the catalogs are compared after."""
        execute(self.conn, "set client_min_messages = error;" + TABLES)
        execute(self.conn, TRACK.replace("{store}", str(self.store)))
        rows(self.conn, "select gc.create_registry(store => 's3://bucket/images', partitions => 2)")
        rows(self.conn, "select gc.grant_runner(%s), gc.grant_viewer(%s)", self.runner, self.viewer)
        rows(self.conn, "select gc.grant_uploader(%s, '{file}')", self.uploader)
        execute(self.conn, f"grant select on gc.locks to {self.viewer} with grant option;"
                f"grant usage on schema app to {self.uploader};"
                f"grant select, insert, update, delete on app.file, app.post to {self.uploader}")

    def insert_file(self, number: int) -> None:
        (self.store / str(number)).write_text("content")
        execute(self.conn, f"insert into app.file values ({number}, {number})")


def install(database: Database, version: str, kind: str) -> None:
    """A released version, or this one."""
    if kind == "extension":
        database.psql(f"create extension blobgc version '{version}'")
        return
    if version == blobgc.__version__:
        says(database, "install", "--plain")
        return
    script = (ROOT / "sql" / "released" / f"blobgc--{version}.sql").read_text()
    kept = [line for line in script.splitlines()
            if not line.startswith(("\\echo", "select pg_extension_config_dump"))]
    database.psql("\n".join(["begin;", *kept, "commit;"]))


@dataclass
class Maker:
    """Makes worlds that belong to the same roles, so that rights can be compared."""

    new_database: NewDatabase
    owner: str
    runner: str
    viewer: str
    uploader: str
    folder: Path

    def __call__(self, version: str, kind: str) -> World:
        database = self.new_database(self.owner)
        install(database, version, kind)
        world = World(database, database.connect(), self.folder, self.runner, self.viewer,
                      self.uploader)
        world.set_up()
        return world


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Maker]:
    with roles() as new_role, databases() as new_database:
        yield Maker(new_database, new_role("owner"), new_role("runner"), new_role("viewer"),
                    new_role("uploader"), tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def fresh(maker: Maker) -> World:
    """What it has to look like afterwards. Collections keep the undo that they had."""
    world = maker(blobgc.__version__, "extension")
    execute(world.conn, """
        update gc.collections set undo = '0' where name in ('blob', 'manifest', 'repository');
        select gc._generate(c.name) from gc.collections as c;
    """)
    execute(world.conn, "call gc.drop_unused_triggers()")
    return world


def use(world: World) -> None:
    """Everything is in the middle of something."""
    conn = world.conn
    for number in range(1, 10):
        world.insert_file(number)
    execute(conn, "insert into app.post values (8, 8), (9, 9)")
    assert rows(conn, "select kept, deleted from gc.review() where collection = 'file'") == [(2, 7)]

    # Of seven tombstones one is confirmed, one failed, two are leased, one of them no longer.
    ids = [row[0] for row in rows(conn, "select id from gc.claim('one', 4) order by key")]
    (world.store / "1").unlink()
    assert value(conn, "select gc.confirm('one', %s)", ids[:1]) == 1
    assert value(conn, "select gc.fail('one', %s, 'status 503')", ids[1:2]) == 1
    rows(conn, "update gc.tombstones set due_at = now() - interval '1 s' where id = %s returning 1",
         ids[2])

    # Somebody writes an object again whose tombstone waits; somebody uses a file.
    rows(conn, "select gc.begin_upload('file', '5')")
    assert value(conn, "select gc.keep_alive('file', '8')") is True

    # A queue with entries that are due and one that is far off; a scan in its middle; a row that
    # was kept whole; a table that was a collection once.
    for number in (10, 11):
        world.insert_file(number)
    execute(conn, """
        insert into app.post values (10, 10);
        insert into app."Big Album" values (1, '2024-01-01'), (2, '2024-02-02');
        update app."Big Album" set shut = true;
        insert into app.picture values (1, '2024-01-01', '2024-03-03');
        insert into app.image values (1, 's3://b/same'), (2, 's3://b/same');
        delete from app.image where id = 1;
        insert into gc.unread_rows (collection, content, relation, columns, due_at)
        values ('file', '{"id": 99}', 'app.file'::regclass, '{"id": 1}', 'infinity');
        create table app.once (id integer primary key, other integer references app.once);
        create index on app.once (other);
        select * from gc.track('app.once');
        select gc.untrack('once');
    """)
    assert value(conn, "select gc.scan('Big Album', 1)") == 1

    registry = Registry(conn)
    registry.call("create_repository", "acme/app")
    registry.push("acme/app", "config 1", ["base", "layer 1"], "latest")
    registry.push("acme/app", "config 2", ["base", "layer 2"], "latest")
    registry.call("create_repository", "acme/busy")


def table_contents(conn: Connection) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table of ours and of theirs, whatever partition it is in. Which partition
    to ask first is a hint, and no longer needed for blobs."""
    tables = rows(conn, """
        select c.oid::regclass::text from pg_class as c
        where c.relkind in ('r', 'p') and not c.relispartition and c.relpersistence = 'p'
            and c.relnamespace::regnamespace::text = any ('{gc,app,registry}')
            and c.oid::regclass::text not like '%!_links' escape '!'
        order by 1
        """)
    return {name: [row[0] for row in rows(conn, f"select to_jsonb(t) from {name} as t")]
            for (name,) in tables}


@dataclass
class Writer:
    """Does the same again and again in a session of its own, until it is stopped."""

    world: World
    user: str
    step: Callable[[World, Connection, int], None]
    first: int
    done: int = 0

    def start(self) -> Writer:
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def run(self) -> None:
        with self.world.database.connect(self.user) as conn:
            while not self.stop.is_set():
                try:
                    self.step(self.world, conn, self.first + self.done)
                except psycopg.Error as error:
                    self.world.errors.append(f"{self.step.__name__}: {error.sqlstate} {error}")
                self.done += 1

    def await_more(self) -> None:
        done = self.done
        wait_until(lambda: self.done > done + 5, f"{self.step.__name__} goes on", seconds=60)

    def end(self) -> None:
        self.stop.set()
        self.thread.join()


def write_and_delete(world: World, conn: Connection, number: int) -> None:
    """An application that deletes rows itself, and lets others become garbage."""
    with conn.transaction():
        execute(conn, f"insert into app.file values ({number}, 1), (-{number}, 1)")
        execute(conn, f"insert into app.post values ({number}, -{number})")
    with conn.transaction():
        execute(conn, f"delete from app.post where id = {number}")
        execute(conn, f"delete from app.file where id = {number}")
    world.deleted.append(number)


def announce(world: World, conn: Connection, number: int) -> None:
    rows(conn, "select gc.begin_upload('file', %s), gc.keep_alive('file', '9')", str(-number))
    rows(conn, "select gc.end_upload('file', %s)", str(-number))


def push(world: World, conn: Connection, number: int) -> None:
    registry = Registry(conn)
    registry.push("acme/busy", f"config {number}", ["base", f"layer {number}"], "latest")


def upgrade(world: World, kind: str) -> None:
    """As the owner, or as a superuser who becomes the owner."""
    writers = [Writer(world, world.uploader, write_and_delete, 1000).start(),
               Writer(world, world.uploader, announce, 1_000_000).start(),
               Writer(world, world.database.user, push, 1).start()]
    try:
        for writer in writers:
            writer.await_more()
        user = world.database.user if kind == "extension" else "postgres"
        world.said = says(world.database, "upgrade", PGUSER=user)
        for writer in writers:
            writer.await_more()
    finally:
        for writer in writers:
            writer.end()


@pytest.fixture(scope="module", params=[
    (version, kind) for version in RELEASED for kind in ("extension", "plain")
], ids="-".join)
def upgraded(request: pytest.FixtureRequest, maker: Maker) -> World:
    version, kind = request.param
    world = maker(version, kind)
    use(world)
    world.before = table_contents(world.conn)
    upgrade(world, kind)
    # Other connections notice by themselves; this one has functions that it has planned before.
    world.conn.close()
    world.conn = world.database.connect()
    execute(world.conn, "set client_min_messages = error")
    execute(world.conn, "call gc.drop_unused_triggers()")
    return world


# What an extension has beside its objects: which of them are its own, and which pg_dump saves.
EXTENSION = """
select 'member', i.type || ' ' || i.identity, '', ''
from pg_depend as d
cross join lateral pg_identify_object(d.classid, d.objid, d.objsubid) as i
where d.refclassid = 'pg_extension'::regclass and d.deptype = 'e'
    and d.refobjid = (select e.oid from pg_extension as e where e.extname = 'blobgc')
union all
select 'saved by pg_dump', u.relation::regclass::text, u.condition, ''
from pg_extension as e
cross join lateral unnest(e.extconfig, e.extcondition) as u(relation, condition)
where e.extname = 'blobgc'
"""

Objects = dict[str, str]


def described(conn: Connection, query: str | None = None) -> Objects:
    """Each object by its kind and name, without what is another in every database."""
    found = rows(conn, query) if query else without_fingerprints(catalog(conn, *SCHEMAS))
    objects = {}
    for kind, name, *facts in found:
        text = "\n".join(str(fact) for fact in facts if fact)
        for acl in re.findall(r"\{[^{}]*=[^{}]*/[^{}]*\}", text):
            text = text.replace(acl, "{" + ",".join(sorted(acl[1:-1].split(","))) + "}")
        if "app.once" not in name and not name.endswith("app.report"):
            objects[f"{kind} {name}"] = text
    return objects


def differences(expected: Objects, found: Objects) -> str:
    """What has to be done about it stands in docs/contributing.md, under Releases."""
    lines = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            lines.append(f"MISSING after the upgrade: {name}\n{expected[name]}{remedy(name)}")
        elif name not in expected:
            lines.append(f"LEFT OVER after the upgrade: {name}\n{found[name]}")
        elif found[name] != expected[name]:
            lines.append(f"DIFFERENT: {name}\n-- in a new installation:\n{expected[name]}\n"
                         f"-- after the upgrade:\n{found[name]}")
    return "\n".join(lines)


def remedy(name: str) -> str:
    """Where the definition of a column stands that was forgotten."""
    kind, _, rest = name.partition(" ")
    schema, _, column = rest.partition(".")
    if kind != "column":
        return ""
    table, _, column = column.rpartition(".")
    folder = "sql/upgrade" if schema == "gc" else "presets/registry/upgrade"
    return f"\n-- in {folder}/: alter table {schema}.{table} add column {column} …, as in its file"


def test_an_upgrade_gives_what_a_new_installation_gives(fresh: World, upgraded: World) -> None:
    difference = differences(described(fresh.conn), described(upgraded.conn))
    assert not difference, (
        "sql/upgrade/ (or presets/registry/upgrade/) does not make what sql/ makes; see Upgrades "
        f"in docs/contributing.md\n{difference}")


def test_the_extension_has_the_same_members_and_pg_dump_saves_the_same(
    fresh: World, upgraded: World
) -> None:
    found = described(upgraded.conn, EXTENSION)
    if found:  # A plain script has no members.
        assert not differences(described(fresh.conn, EXTENSION), found)
    assert bool(found) == ("an extension" in upgraded.said)


# What is worked out from the definition, and the definition that the registry has changed.
WORKED_OUT = {"functions", "fingerprint", "keeping", "columns", "links", "proof", "url_prefix",
              "url_printed", "url_flaw", "shared"}


def test_every_row_is_still_there(upgraded: World) -> None:
    after = table_contents(upgraded.conn)
    for table, lines in upgraded.before.items():
        if table == "app.once" or not lines:
            continue
        ignored = WORKED_OUT if table == "gc.collections" else set()
        names = lines[0].keys() - ignored
        left = [{name: line[name] for name in names} for line in after[table]]
        for line in lines:
            expected = {name: line[name] for name in names}
            if table == "gc.collections" and line["name"] == "repository":
                expected["condition"] = next(
                    row["condition"] for row in left if row["name"] == "repository")
            if table in ("gc.turns", "gc.unused_tables", "gc.totals"):
                continue
            assert expected in left, table
    assert value(upgraded.conn, "select sum(rows) from gc.daily_totals") == 7


def test_an_application_that_writes_meanwhile_loses_no_tombstone_and_meets_no_other_error(
    upgraded: World,
) -> None:
    # Who is in the midst of a function of blobgc or of the registry goes on in its old text: once.
    passing = re.compile("(announce|push): (42883|42703) ")
    assert [error for error in upgraded.errors if not passing.match(error)] == []
    assert len(upgraded.errors) <= 2
    urls = {url for (url,) in rows(upgraded.conn, "select url from gc.tombstones")}
    lost = [number for number in upgraded.deleted
            if f"file://{upgraded.store}/{number}" not in urls]
    assert len(upgraded.deleted) > 10 and lost == []


def test_a_runner_goes_on_where_the_old_one_stopped(upgraded: World) -> None:
    """By the right that the old version gave."""
    (upgraded.store / ".blobgc").unlink(missing_ok=True)  # Of another world in the same folder.
    said = says(upgraded.database, "run", "--once", "--wait", "0", "--store",
                f"file://{upgraded.store}/", code=3, PGUSER=upgraded.runner)
    assert "objects are left, because they are held up" in said
    kept = {path.name for path in upgraded.store.iterdir()}
    # Live: 8 is in use, 9 and 10 have posts. 2 has failed, 4 is leased, 5 is being written again.
    assert {"2", "4", "5", "8", "9", "10"} == kept & {str(n) for n in range(1, 12)}
    left = rows(upgraded.conn, "select key::integer from gc.tombstones where collection = 'file' "
                "and key::integer between 1 and 99 order by 1")
    assert left == [(2,), (4,), (5,)]
    assert rows(upgraded.conn, "select id from app.file where id between 1 and 99 order by 1") == [
        (8,), (9,), (10,)]
    assert rows(upgraded.conn, "select collection, why from gc.status() where blocked") == []


@pytest.mark.parametrize("partitions", [0, 4])
def test_layers_refer_to_links_after_the_upgrade_of_a_registry(
    new_database: NewDatabase, partitions: int
) -> None:
    """Links that are missing come, rights stay, and what nothing uses is collected."""
    old, new = new_database(), new_database()
    for database, version in (old, "0.1.0"), (new, blobgc.__version__):
        database.psql(f"create extension blobgc version '{version}'")
        with database.connect() as conn:
            rows(conn, "select gc.create_registry(store => 's3://bucket', partitions => %s)",
                 partitions)
            execute(conn, "grant select on registry.repository_blobs to public")
    with old.connect() as conn:
        registry = Registry(conn)
        registry.call("create_repository", "acme/app")
        registry.push("acme/app", "config", ["base", "layer"], "latest")
        registry.upload("acme/app", "unused")
        execute(conn, "delete from registry.repository_blobs "
                      f"where digest = registry.digest_bytes('{digest_of(b'layer')}')")
    said = says(old, "upgrade")
    assert "installed blobgc" in said and says(old, "upgrade").endswith("nothing to do\n")
    with old.connect() as conn, new.connect() as other:
        execute(other, """
            update gc.collections set undo = '0' where name in ('blob', 'manifest', 'repository');
            select gc._generate(c.name) from gc.collections as c;
        """)
        for each in conn, other:
            execute(each, "call gc.drop_unused_triggers()")
        assert not differences(described(other), described(conn))
        contents = {"config", "base", "layer", "unused"}
        linked = {digest for (digest,) in rows(
            conn, "select registry.digest_text(digest) from registry.repository_blobs")}
        assert linked == {digest_of(content.encode()) for content in contents}
        execute(conn, "update gc.settings set brake_share = 1")
        execute(conn, PASS_TIME)
        rows(conn, "select * from gc.review()")
        assert rows(conn, "select url from gc.tombstones") == [
            (value(conn, "select registry.blob_url(registry.digest_bytes(%s))",
                   digest_of(b"unused")),)]


# The commits from which they were made: runners are not kept.
COMMITS = {"0.1.0": "09828be"}


@pytest.mark.parametrize("version", RELEASED)
def test_a_runner_of_the_old_version_stops_and_says_why(
    version: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    found = subprocess.run(["git", "show", f"{COMMITS[version]}:runner.py"], cwd=ROOT, check=False,
                           capture_output=True, text=True)
    if found.returncode:
        pytest.skip("this is no clone with its history")
    (tmp_path / "runner.py").write_text(found.stdout)
    (tmp_path / "store").mkdir()
    database = new_database()
    database.psql(f"create extension blobgc version '{version}';" + APP + """
        insert into gc.review_after_defaults values ('file_insert', '0');
        select * from gc.track('app.file', url => $$'file:///store/' || id$$);
        insert into app.file values (1);
        """)
    command = [sys.executable, str(tmp_path / "runner.py"), "run", "--store",
               f"file://{tmp_path}/store/"]
    with database.connect() as conn, subprocess.Popen(
            command, env=database.environment, stderr=subprocess.PIPE, text=True) as runner:
        try:
            wait_until(lambda: value(conn, "select count(*) from gc.tombstones") == 1, "a review")
            execute(conn, "alter extension blobgc update; notify blobgc")
            _, said = runner.communicate(timeout=60)
        finally:
            runner.kill()
    minor = version.rpartition(".")[0]
    assert (f"blobgc: this database has blobgc {blobgc.__version__} now, and this runner is of "
            f"version {minor}") in said
    assert runner.returncode == 2
    again = subprocess.run(command, env=database.environment, capture_output=True, text=True,
                           check=False, timeout=60)
    assert f"the database has blobgc {blobgc.__version__}" in again.stderr
    assert again.returncode == 2
