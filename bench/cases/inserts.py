"""Inserting rows whose objects go when the application deletes them: what the promise costs."""

import statistics
import time
from collections.abc import Iterator
from functools import partial

from harness import (
    Comparison,
    Scale,
    alternate,
    connect,
    drop_database,
    execute,
    new_database,
    pgbench,
    ratios,
)

DATABASE = "bench_inserts"
TABLES = UNTRACKED, TRACKED = "plain_file", "file"

SCHEMA = """
create extension blobgc;
create table account (id bigint primary key);
insert into account select generate_series(1, 1000);
"""

FILES = """
create table {table} (
    id bigint generated always as identity primary key,
    account_id bigint not null references account,
    url text not null,
    content_type text not null,
    bytes bigint not null,
    created_at timestamptz not null default now()
);
create index on {table} (account_id);
create unique index on {table} (url);
"""

TRACK = "select gc.track('file', url => 'url', size => 'bytes', collect => 'deleted')"

ONE = """
\\set account random(1, 1000)
\\set name random(1, 9000000000000000000)
insert into {table} (account_id, url, content_type, bytes)
values (:account, 's3://bucket/' || :name, 'image/png', 1000);
"""

MANY = """
insert into {table} (account_id, url, content_type, bytes)
select n % 1000 + 1, 's3://bucket/' || gen_random_uuid(), 'image/png', 1000
from generate_series(1, {rows}) as n
"""

OPEN = "select gc._open_gate(now() + interval '1 hour')"
CLOSE = "select setval('gc.deleting_until', 0, false)"


def inserts(scale: Scale) -> Iterator[Comparison]:
    """A table of files, with a foreign key and three indexes, is inserted into: a row a statement,
    prepared, over a Unix socket, each in its transaction, without fsync; and 10,000 rows a
    statement. blobgc follows it with collect => 'deleted', or nobody does. While nothing is being
    deleted an insert asks for one number; while a worker has something under a lease it looks for
    its object among what is being deleted, which is shown as well. A round is three turns of each,
    of which the fastest counts.
    """
    with connect(new_database(DATABASE)) as db:
        execute(db, SCHEMA + "".join(FILES.format(table=table) for table in TABLES))
        db.execute(TRACK)
    try:
        for said, gate, aim in (("", CLOSE, 1.05), (", while objects are deleted", OPEN, None)):
            with connect(DATABASE) as db:
                execute(db, gate)
            turns = 3 * scale.rounds
            yield compared(f"insert of one row{said}", aim, fastest(alternate(turns, {
                table: partial(insert_singly, table, scale.of(10_000, 3_000))
                for table in TABLES})), 1e6, "µs")
            yield compared(f"insert of 10,000 rows{said}", aim, fastest(alternate(turns, {
                table: partial(insert_many, table, 10_000) for table in TABLES})), 1e3, "ms")
    finally:
        drop_database(DATABASE)


def fastest(took: dict[str, list[float]]) -> dict[str, list[float]]:
    """The fastest of three turns: what a difference of some percent is lost in is noise."""
    return {table: [min(seconds[turn:turn + 3]) for turn in range(0, len(seconds), 3)]
            for table, seconds in took.items()}


def compared(what: str, aim: float | None, took: dict[str, list[float]], factor: float,
             unit: str) -> Comparison:
    tracked, untracked = took[TRACKED], took[UNTRACKED]
    return Comparison(
        what, "no tracking", ratios(tracked, untracked), at_most=aim,
        figures=f"{factor * statistics.median(tracked):.1f} {unit} and "
                f"{factor * statistics.median(untracked):.1f} {unit}")


def insert_singly(table: str, rows: int) -> float:
    """Seconds for each row."""
    empty(table)
    return 1 / pgbench(DATABASE, ONE.format(table=table), transactions=rows)


def insert_many(table: str, rows: int) -> float:
    """Seconds for all rows."""
    empty(table)
    with connect(DATABASE) as db:
        begin = time.perf_counter()
        execute(db, MANY.format(table=table, rows=rows))
        return time.perf_counter() - begin


def empty(table: str) -> None:
    """Begin with an empty table; what that leaves behind is taken away as well."""
    with connect(DATABASE) as db:
        execute(db, f"alter table {table} disable trigger user; truncate {table};"
                    f"alter table {table} enable trigger user")
