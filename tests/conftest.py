"""What the Python tests share: databases of their own, and a server of their own to crash.

They run inside tests/with_server, which sets PG* and BLOBGC_*.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from stores import (
    AmazonObjects,
    AmazonServer,
    AzureObjects,
    AzureServer,
    FileObjects,
    GoogleObjects,
    GoogleServer,
    Objects,
)

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("BLOBGC_PGBIN", "/nonexistent"))

Connection = psycopg.Connection[tuple[Any, ...]]

# Files, and posts that keep them. The url is built from the whole key: no two rows share an object.
APP = """
create schema app;
create table app.file (id integer primary key, bytes bigint not null default 10);
create table app.post (
    id integer primary key,
    file_id integer references app.file on delete cascade
);
create index post_file_id_idx on app.post (file_id);
"""

# Everything is due at once.
NO_DELAY = """
update gc.settings set jitter = '0', undo = '0', lock_timeout = '20 seconds', brake_share = 1;
insert into gc.review_after_defaults
values ('file_insert', '0'), ('post_delete', '0'), ('post_update', '0');
"""

TRACK = """
select * from gc.track('app.file', url => $$'file:///store/' || id$$, size => 'bytes');
"""


@dataclass(frozen=True)
class Database:
    """A database, and how to reach it."""

    name: str
    host: str
    port: str
    user: str

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "PGHOST": self.host,
            "PGPORT": self.port,
            "PGUSER": self.user,
            "PGDATABASE": self.name,
        }

    def connect(self, user: str | None = None, autocommit: bool = True) -> Connection:
        return psycopg.connect(
            host=self.host,
            port=self.port,
            user=user or self.user,
            dbname=self.name,
            autocommit=autocommit,
        )

    def run(self, *command: str | Path, stdin: str | None = None, check: bool = True) -> str:
        """Run one of PostgreSQL's programs on this database; return what it prints."""
        program, *rest = command
        result = subprocess.run(
            [str(BIN / program), *map(str, rest)],
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and result.returncode != 0:
            raise AssertionError(f"{program} failed: {result.stderr}")
        return result.stdout if check else result.stdout + result.stderr

    def psql(self, script: str) -> None:
        """Run a script as psql would from a file: all of it, or an error."""
        self.run("psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-f", "-", stdin=script)

    def dump(self, *options: str) -> str:
        text = self.run("pg_dump", *options)
        # Newer versions of pg_dump write a key that is another one in every dump.
        lines = [line for line in text.splitlines() if "restrict " not in line]
        return "\n".join(lines)


def execute(conn: Connection, script: str) -> None:
    """Run several statements: the simple protocol takes them all at once."""
    conn.execute(script.encode())


def rows(conn: Connection, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    return conn.execute(query.encode(), parameters or None).fetchall()


def value(conn: Connection, query: str, *parameters: object) -> Any:
    """The one value that a query returns."""
    found = rows(conn, query, *parameters)
    assert len(found) == 1 and len(found[0]) == 1, found
    return found[0][0]


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for: {what}"
        time.sleep(0.01)


def is_waiting(conn: Connection, pid: int) -> bool:
    """Whether that session waits for a lock."""
    found = rows(conn, "select wait_event_type from pg_stat_activity where pid = %s", pid)
    return found == [("Lock",)]


_numbers = itertools.count(1)

NewDatabase = Callable[..., Database]
NewRole = Callable[..., str]


@contextmanager
def roles() -> Iterator[NewRole]:
    """Makes roles without any right, gone at the end."""
    made: list[str] = []

    def make(prefix: str = "role") -> str:
        name = f"blobgc_{prefix}_{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(autocommit=True) as conn:
            conn.execute(sql.SQL("create role {} login").format(sql.Identifier(name)))
        made.append(name)
        return name

    yield make
    with psycopg.connect(autocommit=True) as conn:
        for name in made:
            conn.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@contextmanager
def databases() -> Iterator[NewDatabase]:
    """Makes empty databases of the shared server, gone at the end."""
    made: list[str] = []

    def make(owner: str | None = None, template: str = "template0") -> Database:
        name = f"blobgc_{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(autocommit=True) as conn:
            conn.execute(
                sql.SQL("create database {} owner {} template {}").format(
                    sql.Identifier(name), sql.Identifier(owner or os.environ["PGUSER"]),
                    sql.Identifier(template),
                )
            )
        made.append(name)
        return Database(
            name, os.environ["PGHOST"], os.environ["PGPORT"], owner or os.environ["PGUSER"]
        )

    yield make
    with psycopg.connect(autocommit=True) as conn:
        for name in made:
            conn.execute(
                sql.SQL("drop database {} with (force)").format(sql.Identifier(name))
            )


@pytest.fixture
def new_role() -> Iterator[NewRole]:
    with roles() as make:
        yield make


@pytest.fixture
def new_database(new_role: NewRole) -> Iterator[NewDatabase]:
    with databases() as make:
        yield make


@pytest.fixture(scope="session")
def plain_script() -> str:
    """What `make plain` builds."""
    subprocess.run(["make", "-s", "plain"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return (ROOT / "build" / "blobgc-plain.sql").read_text()


# Every object in some schemas, as PostgreSQL describes it, without oids.
CATALOG = """
with spaces as (
    select n.oid, n.nspname from pg_namespace as n where n.nspname = any ('{SCHEMAS}')
),
relations as (
    select c.*, format('%I.%I', n.nspname, c.relname) as name
    from pg_class as c join spaces as n on n.oid = c.relnamespace
)
select 'schema', n.nspname, s.nspowner::regrole::text, s.nspacl::text
from spaces as n join pg_namespace as s on s.oid = n.oid
union all
select 'function', p.oid::regprocedure::text,
    case when p.prokind <> 'a' then pg_get_functiondef(p.oid) end,
    format('%s %s %s', p.proowner::regrole, p.proacl, p.prokind)
from pg_proc as p join spaces as n on n.oid = p.pronamespace
union all
select 'relation', name, format('%s %s', relkind, relowner::regrole),
    format('%s %s %s %s', relacl, reloptions, relpersistence, relreplident)
from relations
union all
select 'view', name, pg_get_viewdef(oid), null
from relations where relkind = 'v'
union all
select 'column', r.name || '.' || a.attname,
    format('%s %s %s', format_type(a.atttypid, a.atttypmod), a.attnotnull,
        a.attcollation::regcollation),
    format('%s %s %s', pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attacl)
from relations as r
join pg_attribute as a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef as d on d.adrelid = r.oid and d.adnum = a.attnum
union all
-- PostgreSQL numbers the copies of a foreign key as it comes to the partitions, and calls what is
-- not null in a table that is like another as in that one.
select 'constraint', r.name || '.' || case
        when c.contype = 'n' or c.contype = 'f' and c.conparentid <> 0
            then pg_get_constraintdef(c.oid)
        else c.conname end,
    pg_get_constraintdef(c.oid), c.convalidated::text
from relations as r join pg_constraint as c on c.conrelid = r.oid
union all
select 'index', r.name, pg_get_indexdef(r.oid), i.indisvalid::text
from relations as r join pg_index as i on i.indexrelid = r.oid
union all
select 'trigger', r.name || '.' || t.tgname, pg_get_triggerdef(t.oid), t.tgenabled::text
from relations as r join pg_trigger as t on t.tgrelid = r.oid where not t.tgisinternal
union all
select 'comment', i.type || ' ' || i.identity, d.description, null
from pg_description as d
cross join lateral pg_identify_object(d.classoid, d.objoid, d.objsubid) as i
where i.identity ~ (select '^"?(' || array_to_string('{SCHEMAS}'::text[], '|') || ')')
    and i.type <> 'extension'
order by 1, 2, 3
"""


def catalog(conn: Connection, *schemas: str) -> list[tuple[Any, ...]]:
    """Of these schemas; without any, of those of blobgc and of the application."""
    return rows(conn, CATALOG.replace("SCHEMAS", ",".join(schemas or ("gc", "app"))))


def without_fingerprints(described: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """For another database: fingerprints and proofs have oids, and each database has its own."""
    return [
        tuple(re.sub(r"'[0-9a-f]{32}'|_has_check\(\d+\)", "'…'", text) if text else text
              for text in row)
        for row in described
    ]


def contents(conn: Connection, *schemas: str) -> dict[str, list[str]]:
    """Every row of every logged table of the schemas, and the state of every sequence."""
    tables = rows(
        conn,
        """
        select format('%%I.%%I', n.nspname, c.relname), c.relkind
        from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
        where n.nspname = any (%s) and c.relkind in ('r', 'S') and c.relpersistence = 'p'
        """,
        list(schemas),
    )
    shown = {"r": "t::text", "S": "row(t.last_value, t.is_called)::text"}
    return {
        name: [row[0] for row in rows(conn, f"select {shown[kind]} from {name} as t order by 1")]
        for name, kind in tables
    }


@pytest.fixture(scope="session")
def google_server() -> Iterator[GoogleServer]:
    server = GoogleServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def amazon_server() -> Iterator[AmazonServer]:
    server = AmazonServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    server = AzureServer()
    yield server
    server.close()


@pytest.fixture
def azure(azure_server: AzureServer) -> Iterator[AzureObjects]:
    objects = AzureObjects(azure_server)
    yield objects
    objects.close()


@pytest.fixture
def google(google_server: GoogleServer) -> Iterator[GoogleObjects]:
    objects = GoogleObjects(google_server)
    yield objects
    objects.close()


@pytest.fixture
def amazon(amazon_server: AmazonServer) -> Iterator[AmazonObjects]:
    objects = AmazonObjects(amazon_server)
    yield objects
    objects.close()


@pytest.fixture
def versioned_amazon(amazon_server: AmazonServer) -> Iterator[AmazonObjects]:
    objects = AmazonObjects(amazon_server, has_versions=True)
    yield objects
    objects.close()


@pytest.fixture
def files(tmp_path: Path) -> FileObjects:
    return FileObjects(tmp_path)


@pytest.fixture(params=["files", "google", "amazon", "azure"])
def objects(request: pytest.FixtureRequest) -> Objects:
    """Each kind of store in turn."""
    found: Objects = request.getfixturevalue(request.param)
    return found
