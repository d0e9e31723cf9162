"""Generated schemas and histories: what is collected is what a few lines of Python call garbage.

A schema has two to four tables, with keys of any type and names of any kind, and every way to refer
to a row. What cannot be tracked or declared is refused by an error of blobgc's own, and leaves
nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import Connection, execute, value
from hypothesis import given
from hypothesis import strategies as st
from kinds import literal, quoted
from lives import STEPS, Life, Step, call, drop_schemas
from properties import Scratch, examples, scratch
from schemas import Schema, schemas

__all__ = ["scratch"]  # A fixture.


class Tally:
    """Examples in which nothing can go, or nothing stays, would prove nothing."""

    collected = kept = handed_out = refused = 0

    def add(self, life: Life) -> None:
        self.collected += life.collected
        self.kept += life.kept
        self.handed_out += sum(map(len, life.handed_out))


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    found = Tally()
    yield found
    print(f"{found.collected} rows collected, {found.kept} kept, {found.handed_out} objects "
          f"handed out, {found.refused} schemas refused")


@examples(16)
@given(schema=schemas(), before=st.lists(STEPS, max_size=6),
       steps=st.lists(STEPS, min_size=4, max_size=16))
def test_what_is_collected_is_what_nothing_uses(
    schema: Schema, before: list[Step], steps: list[Step], scratch: Scratch, tally: Tally
) -> None:
    with scratch.session() as conn, scratch.database.connect() as writer:
        life = Life(schema, scratch.groups, conn, writer, conn, conn)
        life.begin()
        for step in before:
            life.live(Step(step.statements, step.commits))
        refused = life.track()
        assert not refused, f"{refused} {refused.diag.message_hint}"
        life.scan()
        life.settle()
        for step in steps:
            life.live(step)
        life.settle()
        life.scan()
        life.settle()
        life.end()
        tally.add(life)


def test_enough_was_collected_and_enough_was_kept(tally: Tally, scratch: Scratch) -> None:
    assert min(tally.collected, tally.kept, tally.handed_out) > 5


@examples(5)
@given(schema=schemas(controls=True))
def test_a_name_with_a_control_character_is_refused_and_leaves_nothing_behind(
    schema: Schema, scratch: Scratch, tally: Tally
) -> None:
    with scratch.session() as conn:
        life = Life(schema, scratch.groups, conn, conn, conn, conn)
        life.begin()
        refused = life.track()
        tally.refused += refused is not None
        untrack_all(conn)
        drop_schemas(conn, schema)


def untrack_all(conn: Connection) -> None:
    execute(conn, "select gc.untrack(c.name) from gc.collections as c; ")
    execute(conn, "call gc.drop_unused_triggers()")


# Expressions

TOKENS = (
    "id", "path", "doc", "list", "at", "file", "file.id", "app.file", "*", "file.*", "(", ")", "((",
    "))", ",", ";", "'x'", "'", "\"", "$$", "$a$", "E'\\\\'", "||", "::text", "::int", "::bytea",
    "::regclass", "::app.checked", "is null", "=", "<", "and", "or", "not", "case when", "then",
    "else", "end", "array[", "]", "{", "}", "{url}", "%s", "%I", "--", "/*", "*/", "\n", "now()",
    "random()", "clock_timestamp()", "current_user", "current_setting('a.b')", "pg_sleep(9)",
    "(select 1)", "exists (select)", "count(*)", "row_number() over ()", "generate_series(1, 2)",
    "1/0", "1e999", "null", "true", "default", "$1", ":x", "?", "->> 'a'", "-> 0", "lower(path)",
    "app.own(path)", "collate \"C\"", "as value", "from app.file", "where true", "limit 1",
    "\\", "🙂", "\x01", "\x7f", "\u2028", "U&'\\0061'", "interval '1 day'", "at time zone 'EST'",
    "row(id, path)", "file::text", "(file).path", "ctid", "xmin", "tableoid::regclass::text",
)
EXPRESSIONS = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=5).map(" ".join) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)

FILES = """
create schema app;
create domain app.checked as text check (value <> '');
create function app.own(text) returns text immutable return upper($1);
create table app.file (id integer primary key, path text, at timestamptz, doc jsonb, list text[]);
create table app.post (id integer primary key, file_id integer references app.file,
    file text, doc jsonb, list integer[]);
create index on app.post (file_id);
"""


@examples(16)
@given(what=st.sampled_from(("url", "size", "label", "generation", "condition", "owned", "events",
                             "restored", "name", "keys", "by", "mentioned if")),
       expression=EXPRESSIONS)
def test_an_expression_is_taken_or_refused_and_never_breaks_anything(
    what: str, expression: str, scratch: Scratch
) -> None:
    with scratch.session() as conn:
        execute(conn, FILES)
        if what in ("keys", "by", "mentioned if"):
            execute(conn, "select from gc.track('app.file', url => $$'s3://b/' || id$$)")
        refused = call(conn, telling(what, expression))
        if not refused:
            # What was taken works, or at least harms nobody but the row that it cannot read.
            execute(conn, "insert into app.file values (1, 'a', now(), '{}', '{}'); "
                          "insert into app.post values (1, 1, 'a', '{}', '{1}'); "
                          "delete from app.post; delete from app.file")
            assert value(conn, "select count(*) from gc.review()") >= 0
        untrack_all(conn)
        execute(conn, f"drop schema {quoted('app')} cascade")


def telling(what: str, expression: str) -> str:
    said = literal(expression)
    given = {
        "owned": f"owned => array[{said}]",
        "events": f"events => jsonb_build_object('file_insert', {said})",
        "restored": f"condition => 'path is null', restored => jsonb_build_object('path', {said})",
    }.get(what, f"{what} => {said}")
    mention = {
        "keys": said,
        "by": f"'file', by => {said}",
        "mentioned if": f"'file_id', condition => {said}",
    }.get(what)
    if mention:
        return f"select from gc.declare_reference('file', 'app.post', {mention})"
    return f"select from gc.track('app.file', {given})"
