"""What the property-based tests share: how many examples there are, and databases for them.

In `make test` the examples are few and always the same. `make properties` tries BLOBGC_EXAMPLES of
each test; pytest's --hypothesis-seed chooses them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import psycopg
import pytest
from conftest import Connection, Database, execute, rows
from garbage import Groups
from hypothesis import HealthCheck, Phase, settings
from kinds import SETUP
from lives import SETTINGS, groups_of
from psycopg import sql

EXAMPLES = int(os.environ.get("BLOBGC_EXAMPLES", "0"))


def examples(few: int) -> settings:
    """A test of these few, or of as many as were asked for. Without explanations: they are slow."""
    return settings(
        max_examples=EXAMPLES or few, derandomize=not EXAMPLES, database=None, deadline=None,
        print_blob=True, phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck))


# Of whatever stays in the schema gc, and of triggers. Logs and totals are meant to stay.
LEFT = """
select c.relname::text from pg_class as c where c.relnamespace = 'gc'::regnamespace
union all
select p.oid::regprocedure::text from pg_proc as p where p.pronamespace = 'gc'::regnamespace
union all
select 'trigger ' || t.tgname from pg_trigger as t where not t.tgisinternal
    and t.tgrelid not in (select c.oid from pg_class as c
        where c.relnamespace = 'gc'::regnamespace)
union all
select format('%s of %s', d.keys, d.collection) from gc.declared_references as d
union all
select 'collection ' || c.name from gc.collections as c
"""


class Scratch:
    """A database with blobgc. It is used again as long as nothing goes wrong in it."""

    def __init__(self, template: str) -> None:
        self.template = template
        self.server = psycopg.connect(autocommit=True)
        self.database = self.renew()
        self.groups: Groups = {}
        self.clean: list[str] = []

    def renew(self) -> Database:
        name = f"{self.template}_scratch"
        execute(self.server, f"drop database if exists {name} with (force)")
        execute(self.server, f"create database {name} template {self.template}")
        return Database(name, os.environ["PGHOST"], os.environ["PGPORT"], os.environ["PGUSER"])

    @contextlib.contextmanager
    def session(self) -> Iterator[Connection]:
        """For one example, at whose end everything must be as it was at its beginning."""
        try:
            with self.database.connect() as conn:
                execute(conn, "set timezone = 'UTC'; set client_min_messages = error; "
                              "set plan_cache_mode = auto; set jit = off")
                self.groups = self.groups or groups_of(conn)
                self.clean = self.clean or self.left(conn)
                yield conn
                assert self.left(conn) == self.clean
        except BaseException:
            self.database = self.renew()
            raise

    def left(self, conn: Connection) -> list[str]:
        return sorted(row[0] for row in rows(conn, LEFT))

    def close(self) -> None:
        for name in (self.database.name, self.template):
            execute(self.server, f"drop database {name} with (force)")
        self.server.close()


@pytest.fixture(scope="module")
def scratch() -> Iterator[Scratch]:
    template = f"blobgc_properties_{os.getpid()}"
    with psycopg.connect(autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(template)))
    with psycopg.connect(dbname=template, autocommit=True) as conn:
        try:
            execute(conn, SETUP)
        except psycopg.errors.FeatureNotSupported as error:
            pytest.skip(str(error))  # Servers from PyPI have no ICU.
        execute(conn, f"create extension blobgc; {SETTINGS}")
    made = Scratch(template)
    yield made
    made.close()
