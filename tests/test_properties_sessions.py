"""The same schema and history under generated settings, and by roles with generated rights, has the
same outcome as under the defaults and by a superuser.

Settings are those of tests/hostile.conf, and some that choose plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from conftest import ROOT, Connection, execute, roles, rows
from hypothesis import given
from hypothesis import strategies as st
from kinds import literal, quoted
from lives import SINGLE, Life, Step
from properties import Scratch, examples, scratch
from schemas import Schema, schemas

__all__ = ["scratch"]  # A fixture.

LINES = (ROOT / "tests" / "hostile.conf").read_text().splitlines()
HOSTILE = {name.strip(): setting.strip() for name, _, setting in
           (line.partition("=") for line in LINES if line and not line.startswith("#"))}
PLANS = {"enable_indexscan": "off", "enable_bitmapscan": "off", "enable_seqscan": "off",
         "enable_nestloop": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
         "jit_above_cost": "0", "default_statistics_target": "1", "work_mem": "64kB",
         "idle_in_transaction_session_timeout": "60s"}
# What an application can have in front of everything else.
TEMPORARY = ("old_rows", "new_rows", "pg_class", "pg_attribute", "collections", "settings", "pins",
             "review_after_defaults", "tombstones", "t", "q")
GRANTS = ("all", "each", "group", "public", "columns")


@dataclass(frozen=True)
class Session:
    """How somebody else lives."""

    settings: frozenset[str]
    temporary: frozenset[str]
    grants: tuple[str, ...]  # For each table.
    has_owner: bool  # Tables belong to a role without any other right.

    def apply(self, conn: Connection) -> None:
        for name in sorted(self.settings):
            setting = literal((HOSTILE | PLANS)[name])
            execute(conn, f"select set_config('{name}', {setting}, false)")


SESSIONS = st.builds(
    Session, st.frozensets(st.sampled_from(sorted(HOSTILE | PLANS)), max_size=24),
    st.frozensets(st.sampled_from(TEMPORARY), max_size=4),
    st.tuples(*[st.sampled_from(GRANTS)] * 4), st.booleans())


@dataclass(frozen=True)
class Roles:
    writer: str
    group: str
    reviewer: str
    owner: str


@pytest.fixture(scope="module")
def people(scratch: Scratch) -> Iterator[Roles]:
    """Gone after the database in which they have rights."""
    with roles() as make:
        found = Roles(make("writer"), make("group"), make("reviewer"), make("owner"))
        with psycopg.connect(autocommit=True) as conn:
            execute(conn, f"grant {found.group} to {found.writer}")
        yield found
        scratch.renew()


def grant(conn: Connection, schema: Schema, session: Session, people: Roles) -> None:
    for name in {table.schema for table in schema.tables} | {"of {types}"}:
        execute(conn, f"grant usage on schema {quoted(name)} to public")
    for number, table in enumerate(schema.tables):
        way = session.grants[number]
        whom = {"group": people.group, "public": "public"}.get(way, people.writer)
        columns = ", ".join(map(str, schema.columns(number)))
        what = "select, insert, update, delete, truncate"
        if way == "all":
            what = "all"
        elif way == "columns":
            what = (f"select ({columns}), insert ({columns}), update ({columns}), delete, "
                    "truncate")
        execute(conn, f"grant {what} on {table} to {whom}")
        # A TRUNCATE that cascades follows foreign keys of partitions, too.
        for (part,) in rows(conn, "select inhrelid::regclass::text from pg_inherits "
                                  f"where inhparent = {literal(str(table))}::regclass"):
            execute(conn, f"grant truncate on {part} to {whom}")
        if session.has_owner:
            execute(conn, f"alter table {table} owner to {people.owner}; "
                          f"update gc.settings set trusted_roles = array['{people.owner}'::name]")
    execute(conn, f"select gc.grant_runner({literal(people.reviewer)})")


def outcome(life: Life, steps: list[Step]) -> tuple[list[object], list[object]]:
    refused = life.track()
    assert not refused, f"{refused} {refused.diag.message_hint}"
    life.scan()
    for step in steps:
        life.live(step)
    life.settle()
    assert rows(life.watcher, "select collection from gc.status() where failing > 0") == []
    life.end()
    return list(life.left), list(life.handed_out)


@examples(4)
@given(schema=schemas(), steps=st.lists(SINGLE, min_size=6, max_size=20), session=SESSIONS)
def test_neither_settings_nor_rights_change_the_outcome(
    schema: Schema, steps: list[Step], session: Session, scratch: Scratch, people: Roles
) -> None:
    with scratch.session() as conn:
        usual = Life(schema, scratch.groups, conn, conn, conn, conn)
        usual.begin()
        expected = outcome(usual, steps)
    with (
        scratch.session() as conn,
        scratch.database.connect(user=people.writer) as writer,
        scratch.database.connect(user=people.reviewer) as reviewer,
        scratch.database.connect() as tracker,
    ):
        other = Life(schema, scratch.groups, conn, writer, reviewer, tracker)
        other.begin()
        grant(conn, schema, session, people)
        execute(tracker, "set client_min_messages = error")
        for each in (writer, reviewer, tracker):
            session.apply(each)
        for name in session.temporary:
            execute(writer, f"create temporary table {name} (id integer)")
            execute(reviewer, f"create temporary table {name} (id integer)")
        assert outcome(other, steps) == expected
