"""Types of keys, with values of which some are written in several ways, and hostile names."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass

from hypothesis import strategies as st

# Nothing in it can be compressed: as long as a key can be, so that an index has room for no more.
LONG = "".join(random.Random(1).choices(string.ascii_letters + string.digits, k=2690))


@dataclass(frozen=True)
class Kind:
    """A type: some of its values, in groups of those that it takes for equal."""

    type: str
    values: tuple[tuple[str, ...], ...]
    # Types of columns that may refer to it. Of the first two groups, the first are values of them.
    others: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()  # As others, and all values are values of them.
    has_hash: bool = True  # A table can be partitioned by it.
    json: str = ""  # The cast for a value that stands in JSON, if there can be one in an index.
    has_arrays: bool = True  # Arrays of it are not of the same type.
    is_declarable: bool = True


def each(*values: str) -> tuple[tuple[str, ...], ...]:
    return tuple((value,) for value in values)


WORDS = each("a", "it's", "", "A", "back\\slash", "{key} %I $1", "(1,2)", "é", "e\u0301", "x\ny",
             "null", "😀", LONG)
INTEGERS = each("1", "0", "-1", "32767")

# What the types are made of; in the template of all databases.
SETUP = """
create schema "of {types}";
create domain "of {types}".whole as integer;
create domain "of {types}"."Word" as text check (value is null or length(value) >= 0);
create domain "of {types}".wider as "of {types}".whole;
create domain "of {types}".digest as bytea;
create domain "of {types}".code as char(4);
create domain "of {types}".named as uuid not null;
create type "of {types}"."a mood" as enum ('sad', 'it''s', 'a,b', '');
create type "of {types}".pair as (a integer, "b c" text);
create collation "of {types}"."No Case" (
    provider = icu, locale = 'und-u-ks-level2', deterministic = false);
create extension citext;
"""

KINDS = (
    Kind("integer", INTEGERS, ("bigint", "smallint"), json="::integer"),
    Kind("bigint", (*INTEGERS, ("9223372036854775807",)), ("integer",), json="::bigint"),
    Kind("smallint", INTEGERS, ("bigint",), json="::smallint"),
    Kind("text", WORDS, ("varchar(9)",), ("varchar", 'text collate "C"'), json="::text"),
    Kind('text collate "C"', WORDS, alike=("text",), json="::text"),
    Kind("varchar(3000)", WORDS, alike=("text", 'varchar collate "C"')),
    Kind('text collate "of {types}"."No Case"', (("a", "A"), ("b", "B"), ("é", "É"), ("c",)),
         alike=("text", 'varchar collate "C"')),
    Kind("uuid", (("00000000-0000-0000-0000-000000000001",),
                  ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC999C0B4EF8BB6D6BB9BD380A11")),
         json="::uuid"),
    Kind("bytea", each("\\x", "\\x00", "\\x5c27", "\\xff", "\\x" + LONG.encode().hex())),
    Kind("numeric", (("1", "1.0", "1.00"), ("0", "-0.0", "0.000"), ("NaN",), ("1e30",)),
         ("integer", "bigint"), json="::numeric"),
    Kind("numeric(8, 2)", (("1", "1.00"), ("-0.5",), ("0",))),
    Kind("date", each("2020-02-29", "infinity", "0044-03-15 BC")),
    Kind("timestamptz", (("2020-01-01 00:00+00", "2020-01-01 05:45+05:45"), ("-infinity",))),
    Kind("timestamp", each("2020-01-01", "2020-01-01 00:00:00.000001")),
    Kind("time", each("00:00", "24:00")),
    Kind("interval", (("1 day", "24 hours"), ("1 month", "30 days"), ("0",))),
    Kind("double precision", (("0", "-0"), ("NaN",), ("0.1",), ("1e-300",))),
    Kind("boolean", (("t", "true"), ("f", "no"))),
    Kind("char(4)", (("ab", "ab  "), ("ac",), ("a",), ("",)), alike=("char(5)", "bpchar", "text")),
    Kind('"of {types}".code', (("ab", "ab  "), ("ac",), ("a",))),
    Kind("bit(3)", each("101", "100", "000"), has_hash=False),
    Kind('"char"', each("a", "b", "\\")),
    Kind("name", each("a", "b c")),
    Kind("inet", (("10.0.0.1", "10.0.0.1/32"), ("::1",))),
    Kind("oid", each("1", "4294967295")),
    Kind("money", each("1", "-2"), has_hash=False),
    Kind("bit varying", each("1", "01", ""), has_hash=False),
    Kind("citext", (("a", "A"), ("b",), ("É", "é"))),
    Kind("jsonb", (("1", "1.0"), ('"a"',), ("{}",), ('{"a": [null]}',))),
    Kind("integer[]", each("{1,2}", "{}", "{3}", "{{1},{2}}"), has_arrays=False,
         is_declarable=False),
    Kind("int4range", (("[1,2]", "[1,3)"), ("empty", "(1,1)"))),
    Kind('"of {types}"."a mood"', each("sad", "it's", "a,b", "")),
    Kind('"of {types}".pair', each('(1,"a b")', "(,)", '(2,"")'), is_declarable=False),
    Kind('"of {types}".whole', INTEGERS, ("integer", "bigint")),
    Kind('"of {types}".wider', INTEGERS, ("integer",)),
    Kind('"of {types}"."Word"', WORDS, alike=("text",)),
    Kind('"of {types}".digest', each("\\x", "\\x01", "\\x" + LONG.encode().hex()),
         alike=("bytea",)),
    Kind('"of {types}".named', each("00000000-0000-0000-0000-000000000001",
                                    "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"), alike=("uuid",)),
)
PLAIN_WORDS = Kind("pg_catalog.text", each("x", "y", "it's", "é", "z"))

# What templates, PL/pgSQL, a view or an argument of ours could take for something else.
NAMES = (
    "a", "A", "b", "file", "two words", 'quo"te', "it's", "back\\slash", "{key}", "{", "}}", "{t}",
    "%I", "%1$s", "$1", "$$", "$body$", "dot.dot", "select", "user", "é", "ÉCOLE", "日本語", "😀",
    "x" * 63, "é" * 31, "x" * 62 + "y", "q", "t", "r", "d", "o", "m", "g", "k", "u", "c", "this",
    "object", "old_rows", "new_rows", "key", "keys", "entry", "event", "review_after",
    "review_count", "last_error", "key_event", "key_key_event", "value", "gc_other", "causes",
    "url", "name", "id", "--", "/*", ";", "a,b", "a, b", "(a)", "a(b)", ",", " ", "\u00a0",
    "\u200b", "null", "all", "pg_catalog", "new", "old", "found", "tg_op", "missing", "gone",
    "lost", "gained", "gone_at", "of_id", "in_id", "is_current", "function", "t_row", "true",
    "collection", "_under", "a_b", "b_c", "A\u0301", "row", "array", "AS value", " FROM x,",
)


@st.composite
def names(draw: st.DrawFn) -> str:
    """As PostgreSQL takes them: 1 to 63 bytes."""
    if draw(st.integers(0, 5)):
        return draw(st.sampled_from(NAMES))
    text = draw(st.text(
        st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\"'\\{}%$.;,()"),
        min_size=1, max_size=20))
    return text.encode()[:63].decode(errors="ignore")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | None) -> str:
    """Under every setting of a session."""
    if value is None:
        return "null"
    return "E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
