"""What happens in a generated schema: statements of an application, reviews, claims; and whether
what is left, and what was handed out, is what tests/garbage.py says.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from conftest import Connection, execute, rows, value
from garbage import Groups, Reading, Row, urls_of
from hypothesis import strategies as st
from kinds import KINDS, PLAIN_WORDS, literal, quoted
from schemas import Column, Reference, Schema, declare_sql, schema_sql, track_sql, url_sql

OBJECTS = ("x", "y", "it's", "z/{key}")
MARKS = (None, "dead", "live", "other")

# Everything is due at once, and nothing brakes.
SETTINGS = "update gc.settings set jitter = '0', undo = '0', brake_share = 1"
NO_DELAY = """insert into gc.review_after_defaults
    select distinct event, interval '0' from gc._known_events() on conflict do nothing"""


# Statements


class Dice:
    """Numbers that Hypothesis has thrown."""

    def __init__(self, thrown: bytes) -> None:
        self.thrown = itertools.chain(thrown, itertools.repeat(0))

    def under(self, sides: int) -> int:
        return next(self.thrown) % sides

    def value(self, column: Column) -> str:
        """In a column of another type only what is a value of it as well."""
        kind = column.kind
        is_other = column.type in kind.others
        few = 2 if is_other else 3 if self.under(4) else len(kind.values)
        group = kind.values[self.under(min(few, len(kind.values)))]
        return group[0 if is_other else self.under(len(group))]


def typed(column: Column, text: str | None) -> str:
    return f"{literal(text)}::{column.type}"


def plain_values(schema: Schema, number: int, dice: Dice) -> dict[str, str]:
    table = schema.tables[number]
    prefix = table.collection.prefix if table.collection else "s3://b/"
    objects = [literal(prefix + OBJECTS[dice.under(4)]) for _ in range(dice.under(3))]
    word = dice.value(table.word) if dice.under(3) else None
    named = OBJECTS[dice.under(4)] if dice.under(5) else None
    return {str(table.word): typed(table.word, word),
            str(table.mark): literal(MARKS[dice.under(4)]),
            str(table.object): literal(named),
            str(table.objects): f"array[{', '.join(objects)}]::text[]"}


def key_values(schema: Schema, number: int, dice: Dice) -> dict[str, str]:
    return {str(column): typed(column, dice.value(column)) for column in schema.tables[number].key}


def reference_values(each: Reference, dice: Dice) -> dict[str, str]:
    column = each.columns[0]
    if each.how == "array":
        elements = [literal(dice.value(column) if dice.under(5) else None)
                    for _ in range(dice.under(4))]
        return {str(column): f"array[{', '.join(elements)}]::{column.type}"}
    if each.how == "json":
        member = literal(dice.value(column) if dice.under(5) else None)
        return {str(column): f"jsonb_build_object('of', {member}::text)"}
    return {str(c): typed(c, dice.value(c) if dice.under(3) else None) for c in each.columns}


def insert_sql(schema: Schema, number: int, dice: Dice) -> str:
    given = key_values(schema, number, dice)
    for each in schema.out_of(number):
        given |= reference_values(each, dice)
    given |= plain_values(schema, number, dice)
    return (f"insert into {schema.tables[number]} ({', '.join(given)}) "
            f"values ({', '.join(given.values())}) on conflict do nothing")


def update_sql(schema: Schema, number: int, dice: Dice) -> str:
    found = schema.out_of(number)
    what = dice.under(4)
    if what == 0:
        given = key_values(schema, number, dice)
    elif what == 1 or not found:
        plain = plain_values(schema, number, dice)
        names = sorted(plain)
        given = {name: plain[name] for name in names[dice.under(4):]}
    else:
        given = reference_values(found[dice.under(len(found))], dice)
    return (f"update {schema.tables[number]} set "
            + ", ".join(f"{name} = {new}" for name, new in given.items())
            + where_sql(schema, number, dice))


def delete_sql(schema: Schema, number: int, dice: Dice) -> str:
    return f"delete from {schema.tables[number]}" + where_sql(schema, number, dice)


def truncate_sql(schema: Schema, number: int, dice: Dice) -> str:
    """Seldom: not much is left then."""
    if dice.under(4):
        return update_sql(schema, number, dice)
    return f"truncate {schema.tables[number]}" + (" cascade" if dice.under(2) else "")


def where_sql(schema: Schema, number: int, dice: Dice) -> str:
    """By the whole key, by the first column of it, or all rows."""
    wanted = list(key_values(schema, number, dice).items())[:dice.under(16)]
    return (" where " if wanted else "") + " and ".join(f"{name} = {v}" for name, v in wanted)


WAYS = (insert_sql, insert_sql, insert_sql, update_sql, update_sql, delete_sql, delete_sql,
        truncate_sql)


def statement(schema: Schema, thrown: bytes) -> str:
    dice = Dice(thrown)
    way = WAYS[dice.under(len(WAYS)) if dice.under(4) else 0]
    return way(schema, dice.under(len(schema.tables)), dice)


@dataclass(frozen=True)
class Step:
    """Statements of one transaction, after which there may be reviews."""

    statements: tuple[bytes, ...]
    commits: bool = True
    settles: bool = False


SINGLE = st.builds(Step, st.tuples(st.binary(min_size=4, max_size=24)))
STEPS = SINGLE | st.builds(
    Step, st.lists(st.binary(min_size=4, max_size=24), min_size=1, max_size=4).map(tuple),
    st.sampled_from((True, True, False)), st.sampled_from((False, False, True)))


# Refusals


def is_ours(error: psycopg.Error) -> bool:
    """Raised by blobgc on purpose: with a SQLSTATE that says what it is, and the next action."""
    found = error.diag
    return bool(found.source_function == "exec_stmt_raise" and found.message_hint
                and found.sqlstate not in (None, "P0001", "XX000"))


def is_own(error: psycopg.Error) -> bool:
    """An application meets its own constraints, or a documented refusal of a mention."""
    state = error.sqlstate or ""
    if error.diag.schema_name == "gc":
        return False
    return (state.startswith("23") or state in ("ZG005", "ZG006")
            or state in ("0A000", "55006") and "truncate" in str(error).lower())


FOOTPRINT = """
select (select count(*) from pg_class), (select count(*) from pg_proc),
    (select count(*) from pg_trigger), (select count(*) from pg_type),
    (select count(*) from pg_rewrite), (select count(*) from pg_constraint),
    (select md5(string_agg(c::text, ',' order by c.name)) from gc.collections as c),
    (select md5(string_agg(d::text, ',' order by d::text)) from gc.declared_references as d),
    (select count(*) from gc.scan_requests), (select count(*) from gc.tombstones)
"""


def call(conn: Connection, command: str) -> psycopg.Error | None:
    """A call of blobgc. What it refuses, it refuses by an error of its own, and changes nothing."""
    before = rows(conn, FOOTPRINT)
    try:
        execute(conn, command)
    except psycopg.Error as error:
        assert is_ours(error), (command, error.sqlstate, str(error))
        assert rows(conn, FOOTPRINT) == before, f"it was refused, and has left something: {error}"
        return error
    return None


def call_as_told(conn: Connection, command: str) -> psycopg.Error | None:
    """Where the hint is a command, that is done: indexes that are missing, keys of another type."""
    for _ in range(3):
        refused = call(conn, command)
        hint = (refused.diag.message_hint or "") if refused else ""
        if hint.startswith("create index"):
            for line in hint.removesuffix(";").split(";\n"):
                execute(conn, line)
        elif hint.startswith("select * from gc.declare_reference(") and "…" not in hint:
            command = hint
        else:
            return refused
    return refused


# Lives


def groups_of(conn: Connection) -> Groups:
    """Each value as it was written, and as the database prints it."""
    found: Groups = {}
    for kind in (*KINDS, PLAIN_WORDS):
        for number, group in enumerate(kind.values):
            for text in group:
                others = kind.others if number < 2 and text == group[0] else ()
                for type in (kind.type, *kind.alike, *others):
                    printed = value(conn, f"select ({literal(text)}::{type})::text")
                    for way in (printed, text):
                        assert found.setdefault((kind.type, way), number) == number, (kind, way)
    return found


@dataclass
class Life:
    """A schema with rows, and what has become of them."""

    schema: Schema
    groups: Groups
    watcher: Connection  # Whose settings are the usual ones, and whose rights are all.
    writer: Connection
    reviewer: Connection
    tracker: Connection  # Who calls gc.track.
    ever: set[str] = field(default_factory=set)  # Objects since all was settled.
    collected: int = 0
    kept: int = 0
    handed_out: list[list[str]] = field(default_factory=list)
    left: list[list[tuple[str | None, ...]]] = field(default_factory=list)

    # What is there

    def row_sql(self, number: int) -> str:
        table = self.schema.tables[number]
        columns = self.schema.columns(number)
        printed = ", ".join(f"{column}::text" for column in columns)
        arrays = {c.name for each in self.schema.out_of(number) for c in each.columns
                  if each.how == "array"}
        elements = ", ".join(
            f"array(select s.{column}[u.n]::text from generate_subscripts(s.{column}, 1) as u(n))"
            if column.name in arrays else "null::text[]" for column in columns)
        urls = "null::text[]"
        if table.collection and table.collection.url:
            url = url_sql(table)
            urls = url if table.collection.url == "objects" else f"array[{url}]"
        return (f"select (s.tableoid::bigint, s.ctid)::text, array[{printed}], "
                f"jsonb_build_array({elements}), {urls} from {table} as s")

    def look(self, conn: Connection) -> set[Row]:
        found = set()
        for number in range(len(self.schema.tables)):
            for id, values, elements, urls in rows(conn, self.row_sql(number)):
                found.add(Row(
                    number, id, tuple(values),
                    tuple(None if each is None else tuple(each) for each in elements),
                    tuple(sorted({url for url in urls or () if url is not None}))))
        return found

    # What happens

    def begin(self) -> None:
        """Tables, and a few rows that refer to each other."""
        for command in schema_sql(self.schema):
            execute(self.watcher, command)
        for number, same in itertools.product(range(len(self.schema.tables)), (1, 2, 3)):
            # A key of the group that is meant takes three numbers for each column.
            thrown = bytes([same] * 3 * len(self.schema.tables[number].key))
            thrown += random.Random(f"{number} {same}").randbytes(60)
            self.try_to(self.watcher, insert_sql(self.schema, number, Dice(thrown)))

    def track(self) -> psycopg.Error | None:
        """All of it; the first refusal."""
        self.ever = urls_of(self.look(self.watcher))
        for number in self.schema.collections():
            refused = call_as_told(self.tracker, track_sql(self.schema, number))
            if refused:
                return refused
        return self.declare()

    def declare(self) -> psycopg.Error | None:
        """What cannot be declared keeps nothing."""
        for each in self.schema.references:
            if each.is_declared:
                refused = call_as_told(
                    self.tracker, declare_sql(self.schema, each, self.schema.name(each.target)))
                if refused and each.columns[0].kind.is_declarable:
                    return refused
                if refused:
                    left = tuple(other for other in self.schema.references if other != each)
                    self.schema = replace(self.schema, references=left)
        execute(self.watcher, NO_DELAY)
        return None

    def live(self, step: Step) -> None:
        if len(step.statements) == 1 and step.commits:
            self.try_to(self.writer, statement(self.schema, step.statements[0]))
            self.ever |= urls_of(self.look(self.watcher))
        else:
            self.live_together(step)
        if step.settles:
            self.settle()

    def live_together(self, step: Step) -> None:
        seen: set[str] = set()
        execute(self.writer, "begin")
        for thrown in step.statements:
            execute(self.writer, "savepoint s")
            if not self.try_to(self.writer, statement(self.schema, thrown)):
                execute(self.writer, "rollback to s")
            seen |= urls_of(self.look(self.writer))
        if step.commits and self.try_to(self.writer, "commit"):
            self.ever |= seen
        else:
            execute(self.writer, "rollback")

    def try_to(self, conn: Connection, command: str) -> bool:
        try:
            execute(conn, command)
        except psycopg.Error as error:
            assert is_own(error), (command, error.sqlstate, str(error), error.diag.context)
            return False
        return True

    def settle(self) -> None:
        """Reviews and claims until nothing is due; then the comparison."""
        before = self.look(self.watcher)
        expected = Reading(self.schema, self.groups).survivors(before)
        self.review()
        after = self.look(self.watcher)
        assert after == expected, self.differences(expected, after)
        self.collected += len(before) - len(after)
        self.kept += len(after)
        handed_out = self.delete_objects()
        assert handed_out == self.ever - urls_of(after), (handed_out, self.ever, urls_of(after))
        self.ever = urls_of(after)
        self.handed_out.append(sorted(handed_out))
        self.left.append(sorted((row.values for row in after), key=repr))

    def differences(self, expected: set[Row], after: set[Row]) -> str:
        def shown(found: set[Row]) -> list[tuple[str, tuple[str | None, ...]]]:
            return [(str(self.schema.tables[row.table]), row.values) for row in found]

        why = rows(self.watcher, "select collection, why, last_error from gc.status()")
        return (f"gone and in use: {shown(expected - after)}; "
                f"left over: {shown(after - expected)}; {why}")

    def review(self) -> None:
        """What goes may let others go; and the first review after a change may only make code."""
        quiet = 0
        for _ in range(60):
            done: list[tuple[Any, ...]] = rows(
                self.reviewer, "select reviewed, busy, failed from gc.review(1000)")
            assert not any(busy or failed for _, busy, failed in done), rows(
                self.watcher, "select collection, why, last_error from gc.status()")
            quiet = 0 if any(row[0] for row in done) else quiet + 1
            if quiet == 2:
                return
        raise AssertionError("reviews have no end")

    def delete_objects(self) -> set[str]:
        """What a runner does. A claim may only find that others have to end first."""
        found: set[str] = set()
        for _ in range(4):
            claimed = rows(self.reviewer, "select id, url from gc.claim('w')")
            value(self.reviewer, "select gc.confirm('w', %s)", [row[0] for row in claimed])
            found |= {row[1] for row in claimed}
        return found

    def scan(self) -> None:
        for number in self.schema.collections():
            for _ in range(60):
                if value(self.watcher, "select gc.scan(%s, 1000)", self.schema.name(number)) == 0:
                    break

    def end(self) -> None:
        """Nothing stays in the schema gc, and no trigger on a table."""
        for number in self.schema.collections():
            value(self.watcher, "select gc.untrack(%s)", self.schema.name(number))
        execute(self.watcher, "call gc.drop_unused_triggers()")
        drop_schemas(self.watcher, self.schema)


def drop_schemas(conn: Connection, schema: Schema) -> None:
    for name in sorted({table.schema for table in schema.tables}):
        execute(conn, f"drop schema {quoted(name)} cascade")
