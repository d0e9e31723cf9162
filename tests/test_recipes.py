"""The recipes of docs/recipes.md, each as it is typed, on the real shape of the tables.

Each application lives through random histories with every kind of reference. What is collected is
exactly what plain queries say, which know nothing of blobgc. BLOBGC_HISTORIES of each application
(9 unless told otherwise) are run; BLOBGC_SEED chooses others.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import psycopg
import pytest
from conftest import ROOT, Connection, Database, NewDatabase, execute, rows, value
from histories import APPLICATIONS, DISCOURSE, GITEA, UPLOAD_COLUMNS, Application
from psycopg import sql

HISTORIES = int(os.environ.get("BLOBGC_HISTORIES", "9"))
SEED = int(os.environ.get("BLOBGC_SEED", "14"))
ACTS = 24
SHAPES = ROOT / "tests" / "shapes"

# Everything is due at once, and nothing brakes. Not every version has all of these settings.
SETTINGS = {"jitter": "0", "undo": "0", "brake_share": "1"}
# What a recipe may use that an older version of gc.track does not have.
NEEDS_COLLECT = re.compile(r"collect =>|\$\$array\[")


def section(title: str) -> str:
    text = (ROOT / "docs" / "recipes.md").read_text()
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def recipe(title: str) -> list[str]:
    return re.findall(r"^```sql\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def installed(plain_script: str) -> Iterator[str]:
    """A database with blobgc, to be copied."""
    name = f"blobgc_recipes_{os.getpid()}"
    with psycopg.connect(autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        Database(name, os.environ["PGHOST"], os.environ["PGPORT"], os.environ["PGUSER"]).psql(
            plain_script)
        yield name
        conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def supabase_roles() -> Iterator[None]:
    """Gone after the databases that have something of theirs."""
    with psycopg.connect(autocommit=True) as conn:
        execute(conn, "create role supabase_storage_admin")
        yield
        execute(conn, "drop role supabase_storage_admin; drop role if exists blobgc_runner")


@pytest.fixture
def new_application(
    supabase_roles: None, new_database: NewDatabase, installed: str
) -> NewDatabase:
    """An application without any row, and blobgc that nobody has told anything."""

    def make(application: Application) -> Database:
        database = new_database(template=installed)
        with database.connect() as conn:
            # No table is analyzed, so PostgreSQL would compile what takes a moment.
            execute(conn, sql.SQL(
                "alter database {0} set search_path = {1}; alter database {0} set jit = off"
            ).format(sql.Identifier(database.name),
                     sql.Identifier(application.path)).as_string(conn))
        database.psql((SHAPES / f"{application.shape}.sql").read_text())
        return database

    return make


@dataclass
class Life:
    """One application, and what has happened to it."""

    application: Application
    conn: Connection
    reviewer: Connection
    number: random.Random
    compares_objects: bool = True
    objects: set[str] = field(default_factory=set)  # All that ever were.
    deleted: set[str] = field(default_factory=set)
    collected: int = 0
    kept: int = 0

    def keys(self, query: str) -> set[object]:
        return {row[0] for row in rows(self.conn, query)}

    def live(self) -> set[str]:
        if not self.application.objects:
            return set()
        return {str(key) for key in self.keys(self.application.objects)}

    def act(self, statement: str) -> None:
        """One statement; an application that meets its own unique key gives up."""
        with contextlib.suppress(psycopg.errors.UniqueViolation):
            execute(self.conn, statement)
        self.objects |= self.live()

    def begin(self) -> None:
        execute(self.conn, f"select setseed({self.number.random()})")
        for statement in self.application.fill:
            self.act(statement)
        for _ in range(ACTS // 2):
            self.act(self.number.choice(self.application.acts))

    def go_on(self) -> None:
        self.begin()
        self.settle()
        for _ in range(ACTS // 2):
            self.act(self.number.choice(self.application.acts))
        self.settle()

    def settle(self) -> None:
        """Review until nothing is due, and compare."""
        tables = {table: f"select {key} from {table}" for table, key in self.primary_keys()}
        before = {table: self.keys(query) for table, query in tables.items()}
        dead = {table: self.keys(query) for table, query in self.application.dead.items()}
        for _ in range(50):
            done = rows(self.reviewer, "select reviewed, busy, failed from gc.review(1000)")
            assert all(busy == 0 and failed == 0 for _, busy, failed in done), self.problems()
            if sum(row[0] for row in done) == 0:
                break
        for table, query in tables.items():
            assert before[table] - self.keys(query) == dead[table], table
            self.collected += len(dead[table])
            self.kept += len(before[table] - dead[table])
        for query in self.application.left_over:
            assert rows(self.conn, query) == [], query
        if self.compares_objects:
            self.delete_objects()
            assert self.deleted == self.objects - self.live()

    def primary_keys(self) -> list[tuple[str, str]]:
        """Of a key of several columns the last one, which is as unique in these shapes."""
        return [(table, value(self.conn, """
            select (array_agg(a.attname order by a.attnum = any (i.indkey) desc,
                array_position(i.indkey::smallint[], a.attnum) desc))[1]::text
            from pg_index as i join pg_attribute as a on a.attrelid = i.indrelid and a.attnum > 0
            where i.indrelid = %s::regclass and i.indisprimary""", table))
            for table in self.application.dead]

    def delete_objects(self) -> None:
        """What a runner does. A claim may find that others have to end first."""
        for _ in range(3):
            claimed = rows(self.reviewer, "select id, url from gc.claim('w')")
            value(self.reviewer, "select gc.confirm('w', %s)", [row[0] for row in claimed])
            self.deleted |= {row[1] for row in claimed}

    def problems(self) -> list[tuple[object, ...]]:
        return rows(self.conn, "select collection, why, last_error from gc.status()")


def scan(conn: Connection) -> None:
    for (name,) in rows(conn, "select name from gc.collections"):
        for _ in range(50):
            if value(conn, "select gc.scan(%s, 1000)", name) == 0:
                break


def no_delays(conn: Connection) -> None:
    for name, setting in SETTINGS.items():
        if rows(conn, "select from pg_attribute where attrelid = 'gc.settings'::regclass "
                      "and attname = %s", name):
            execute(conn, f"update gc.settings set {name} = '{setting}'")
    execute(conn, "insert into gc.review_after_defaults select distinct event, interval '0' "
                  "from gc._known_events() on conflict do nothing")


def has_collect(conn: Connection) -> bool:
    names = value(conn, "select proargnames from pg_proc where proname = 'track' "
                        "and pronamespace = 'gc'::regnamespace")
    return "collect" in names


@pytest.mark.parametrize("application", APPLICATIONS, ids=lambda a: a.title.split(":")[0])
def test_what_is_collected_is_what_nothing_uses(
    application: Application, new_application: NewDatabase
) -> None:
    database = new_application(application)
    number = random.Random(f"{SEED} {application.title}")
    with database.connect() as conn:
        life = Life(application, conn, conn, number)
        # What was there before blobgc.
        life.begin()
        life.objects = life.live()

        blocks = recipe(application.title)
        if not has_collect(conn):
            life.compares_objects = not application.waits
            blocks = [block for block in blocks if not NEEDS_COLLECT.search(block)]
        if not blocks:
            pytest.skip("this version has no collect => 'deleted'")
        for block in blocks:
            database.psql(block)
        no_delays(conn)
        assert rows(conn, "select collection, why from gc.status() where blocked") == []
        if application.shape == "supabase":
            life.reviewer = psycopg.connect(
                dbname=database.name, user="blobgc_runner", autocommit=True)
        scan(conn)
        life.settle()
        for _ in range(HISTORIES - 1):
            life.go_on()
        life.reviewer.close()
    print(f"{application.title}: {life.collected} collected, {life.kept} kept, "
          f"{len(life.deleted)} objects of {len(life.objects)}")
    if application.dead:
        assert life.collected > HISTORIES and life.kept > HISTORIES


# A naive user, who calls gc.track and then does what it says


def naive_calls(conn: Connection, call: str) -> list[str]:
    """The commands in the hints of the warnings that a call of gc.track raises."""
    hints: list[str] = []
    conn.add_notice_handler(lambda told: hints.append(told.message_hint or ""))
    rows(conn, call)
    return [hint.removeprefix("In psql: ") for hint in hints if re.search("suspects|declare", hint)]


NAIVE = {
    GITEA.title: ("package_blob", "select gc.track('package_blob')", """
        select id from package_blob
        where id not in (select blob_id from package_file)
            and hash_sha256 not in (select value from package_property)"""),
    DISCOURSE.title: ("uploads", "select gc.track('uploads')", f"""
        select id from uploads where id not in ({" union all ".join(
            f"select {column} from {table} where {column} is not null"
            for table, column in [*UPLOAD_COLUMNS, ("optimized_images", "upload_id"),
                                  ("topic_thumbnails", "upload_id"), ("user_uploads", "upload_id")]
        )})"""),
}


@pytest.mark.parametrize("application", [GITEA, DISCOURSE], ids=lambda a: a.shape)
def test_a_naive_user_loses_nothing_and_is_led_to_the_declarations(
    application: Application, new_application: NewDatabase
) -> None:
    table, call, dead = NAIVE[application.title]
    database = new_application(application)
    with database.connect() as conn:
        # Discourse has a row of upload_references for each upload that a setting has.
        acts = [act for act in application.acts if "_settings" not in act]
        life = Life(replace(application, acts=acts, dead={table: dead}, left_over=[], objects=""),
                    conn, conn, random.Random(SEED), compares_objects=False)
        life.begin()
        execute(conn, f"select setseed(0.5); {acts[0]}; {acts[-1]}")

        commands = naive_calls(conn, call)
        assert len(commands) == 1, "one call makes all declarations"
        database.psql(commands[0])
        assert rows(conn, "select why from gc.status() where blocked") == []
        assert rows(conn, "select * from gc.suspects(%s) where strength = 'strong'", table) == []
        assert naive_calls(conn, call) == []

        no_delays(conn)
        scan(conn)
        life.settle()
        life.go_on()
        # Of what the application says is used, nothing has gone.
        assert life.collected > 0 and life.kept > 0


def test_a_naive_user_of_gitea_who_does_nothing_more_loses_nothing(
    new_application: NewDatabase,
) -> None:
    database = new_application(GITEA)
    with database.connect() as conn:
        Life(GITEA, conn, conn, random.Random(SEED)).begin()
        blobs = rows(conn, "select id from package_blob order by id")
        assert naive_calls(conn, "select gc.track('package_blob')")
        no_delays(conn)
        assert value(conn, "select why from gc.status() where blocked")
        execute(conn, "delete from package_file; select gc.review(1000)")
        assert rows(conn, "select id from package_blob order by id") == blobs


def test_every_recipe_of_the_page_is_run() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text()
    with_sql = [title for title in re.findall(r"^## (.*)$", text, re.MULTILINE)
                if recipe(title)]
    assert sorted(with_sql) == sorted(application.title for application in APPLICATIONS)
    listed = re.findall(r"^- \[(.*)\]\(#", text, re.MULTILINE)
    assert listed == re.findall(r"^## (.*)$", text, re.MULTILINE)
