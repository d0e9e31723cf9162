"""What a declared reference costs, against a foreign key and its index."""

import statistics
import time
from collections.abc import Callable, Iterator

from harness import (
    Comparison,
    Connection,
    Scale,
    alternate,
    connect,
    drop_database,
    durable,
    execute,
    new_database,
    pgbench,
    ratios,
)

DATABASE = "bench_declared"
FILES = 100_000
ELEMENTS = 10

# Both tables refer to the same files; the one by a foreign key, the other by declaration.
SCHEMA = f"""
create extension blobgc;
create schema app;
create table app.file (id bigint primary key, name text);
insert into app.file select n, 'file ' || n from generate_series(1, {FILES}) as n;
"""

ONE_KEY = """
create table app.by_key (id bigint generated always as identity primary key,
    file_id bigint references app.file, note text) with (fillfactor = 50);
create index on app.by_key (file_id);
create table app.declared (id bigint generated always as identity primary key,
    file_id bigint, note text) with (fillfactor = 50);
create index on app.declared (file_id);
"""

# Ten keys a row: as a row each in a table of links, with a foreign key, and as an array.
ARRAYS = """
create table app.by_key (id bigint generated always as identity primary key, note text);
create table app.link (post bigint references app.by_key on delete cascade,
    file_id bigint references app.file, primary key (post, file_id));
create index on app.link (file_id);
create table app.by_one (id bigint generated always as identity primary key,
    file_id bigint references app.file, note text) with (fillfactor = 50);
create index on app.by_one (file_id);
create table app.declared (id bigint generated always as identity primary key,
    file_ids bigint[], note text) with (fillfactor = 50);
create index on app.declared using gin (file_ids);
"""

TRACK = """
select gc.track('app.file');
select gc.declare_reference('file', 'app.declared', '{keys}');
vacuum analyze app.file;
"""


def references(scale: Scale) -> Iterator[Comparison]:
    """Writes to a table that refers to a tracked collection by a declared reference, against the
    same writes to one that refers to it by a foreign key. Both columns have an index, and both
    tables have the triggers of tracking. Statements of 10,000 rows, and transactions of one row by
    pgbench, on a server that waits for the disk: inserts, updates of another column, deletes. Then
    ten keys a row: an array with a GIN index, against a table of links with a foreign key and a row
    for each key; for updates, which do not touch links, against a table with one foreign key. Half
    of each page is left free, so that an update of another column writes no index."""
    yield from compare(scale, "one key", ONE_KEY, "file_id", 1.15, KEY_SIDES)
    yield from compare(scale, "ten keys in an array", ARRAYS, "file_ids", 1.5, ARRAY_SIDES)


# What each side does: the statement for so many rows, from a number on.
Statements = dict[str, dict[str, str]]

KEY_SIDES: Statements = {
    "by_key": {
        "insert": "insert into app.by_key (file_id, note) "
                  "select 1 + (n * 7919) % {files}, 'x' from generate_series(1, {count}) as n",
        "update": "update app.by_key set note = note || 'x'",
        "delete": "delete from app.by_key",
    },
    "declared": {
        "insert": "insert into app.declared (file_id, note) "
                  "select 1 + (n * 7919) % {files}, 'x' from generate_series(1, {count}) as n",
        "update": "update app.declared set note = note || 'x'",
        "delete": "delete from app.declared",
    },
}

ARRAY_SIDES: Statements = {
    "by_key": {
        "insert": "with made as (insert into app.by_key (note) "
                  "select 'x' from generate_series(1, {count}) returning id) "
                  "insert into app.link select m.id, 1 + (m.id * 7919 + k * 104729) % {files} "
                  "from made as m, generate_series(1, 10) as k",
        "update": "update app.by_one set note = note || 'x'",
        "delete": "delete from app.by_key",
    },
    "declared": {
        "insert": "insert into app.declared (file_ids, note) "
                  "select array(select 1 + (n * 7919 + k * 104729) % {files} "
                  "from generate_series(1, 10) as k), 'x' from generate_series(1, {count}) as n",
        "update": "update app.declared set note = note || 'x'",
        "delete": "delete from app.declared",
    },
}

# One row a transaction; of the array, and of its ten links.
SINGLE: dict[str, dict[str, dict[str, str]]] = {
    "one key": {
        "by_key": {
            "insert": "\\set k random(1, {files})\n"
                      "insert into app.by_key (file_id, note) values (:k, 'x');",
            "update": "\\set i random(1, {rows})\n"
                      "update app.by_key set note = 'y' where id = :i;",
        },
        "declared": {
            "insert": "\\set k random(1, {files})\n"
                      "insert into app.declared (file_id, note) values (:k, 'x');",
            "update": "\\set i random(1, {rows})\n"
                      "update app.declared set note = 'y' where id = :i;",
        },
    },
    "ten keys in an array": {
        "by_key": {
            "insert": "\\set k random(1, {files})\n"
                      "with made as (insert into app.by_key (note) values ('x') returning id) "
                      "insert into app.link select m.id, 1 + (:k + n * 104729) % {files} "
                      "from made as m, generate_series(1, 10) as n;",
            "update": "\\set i random(1, {rows})\n"
                      "update app.by_one set note = 'y' where id = :i;",
        },
        "declared": {
            "insert": "\\set k random(1, {files})\n"
                      "insert into app.declared (file_ids, note) select array("
                      "select 1 + (:k + n * 104729) % {files} "
                      "from generate_series(1, 10) as n), 'x';",
            "update": "\\set i random(1, {rows})\n"
                      "update app.declared set note = 'y' where id = :i;",
        },
    },
}


def compare(scale: Scale, what: str, tables: str, keys: str, at_most: float,
            sides: Statements) -> Iterator[Comparison]:
    """Both sides, an operation after the other, round by round."""
    count = scale.of(10_000, 3_000)
    with connect(new_database(DATABASE)) as db:
        execute(db, "set client_min_messages = error;" + SCHEMA + tables)
        for statement in TRACK.replace("{keys}", keys).strip().split(";\n"):
            execute(db, statement)
    try:
        for operation in ("insert", "update", "delete"):
            yield bulk(scale, what, operation, count, at_most, sides)
        for operation in ("insert", "update"):
            yield single(scale, what, operation, count, at_most, sides)
    finally:
        drop_database(DATABASE)


def bulk(scale: Scale, what: str, operation: str, count: int, at_most: float,
         sides: Statements) -> Comparison:
    with connect(DATABASE) as db:
        found = alternate(scale.rounds, {
            side: timed(db, side, statements, operation, count)
            for side, statements in sides.items()
        })
    return result(f"{operation}s of {count:,} rows in one statement, {what}",
                  found["declared"], found["by_key"], at_most, "ms")


def fill(db: Connection, side: str, statements: dict[str, str], operation: str,
         count: int) -> None:
    """The table that is written, new; with rows, unless they are what is measured."""
    table = statements[operation].split("app.")[1].split()[0] if operation == "update" else side
    execute(db, f"truncate app.{table} restart identity cascade")
    execute(db, "truncate gc.file_review_queue")
    if operation == "insert":
        return
    insert = KEY_SIDES["by_key"]["insert"].replace("app.by_key", "app.by_one") \
        if table == "by_one" else statements["insert"]
    execute(db, insert.format(files=FILES, count=count))
    execute(db, f"vacuum analyze app.{table}")


def timed(db: Connection, side: str, statements: dict[str, str], operation: str,
          count: int) -> Callable[[], float]:
    """Milliseconds of one statement, on tables that were made for it."""

    def measure() -> float:
        fill(db, side, statements, operation, count)
        begin = time.perf_counter()
        execute(db, statements[operation].format(files=FILES, count=count))
        return (time.perf_counter() - begin) * 1000

    return measure


def single(scale: Scale, what: str, operation: str, count: int, at_most: float,
           sides: Statements) -> Comparison:
    """A row a transaction, from one client."""
    with connect(DATABASE) as db:
        for side, statements in sides.items():
            fill(db, side, statements, operation, count)

    def of(side: str) -> Callable[[], float]:
        script = SINGLE[what][side][operation].format(files=FILES, rows=count)
        return lambda: 1000 / pgbench(DATABASE, script, seconds=scale.of(5, 2))

    with durable():
        found = alternate(scale.rounds, {side: of(side) for side in sides})
    return result(f"{operation}s of one row a transaction, {what}", found["declared"],
                  found["by_key"], at_most, "ms")


def result(what: str, declared: list[float], by_key: list[float], at_most: float,
           unit: str) -> Comparison:
    return Comparison(
        f"{what}, declared", "a foreign key", ratios(declared, by_key), at_most=at_most,
        figures=f"{statistics.median(declared):.3g} and {statistics.median(by_key):.3g} {unit}")
