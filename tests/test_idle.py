"""A transaction that stays open: what piles up behind it, what slows down, and how it is after.

The long form, with BLOBGC_LONG=1, has 10^7 entries and 10^6 tombstones, and prints its figures.
"""

from __future__ import annotations

import os
import time

import psycopg
import pytest
from conftest import Connection, NewDatabase, execute, rows, value

IS_LONG = bool(os.environ.get("BLOBGC_LONG"))
ENTRIES = 10_000_000 if IS_LONG else 20_000
TOMBSTONES = 1_000_000 if IS_LONG else 5_000
BATCH = 1000

# Things are kept by their condition, so that it is the queue that is measured.
SETUP = """
create extension blobgc;
create schema app;
create table app.thing (id bigint primary key, is_over boolean not null default false);
create table app.image (id bigint primary key, url text);
create index on app.image (url);
create table app.file (id bigint primary key);
create table app.note (id bigint);
update gc.settings set jitter = '0', undo = '0', brake_share = 1;
insert into gc.review_after_defaults values ('thing_insert', '0');
select gc.track('app.thing', condition => 'is_over');
select gc.track('app.file', url => $$'s3://files/' || id$$, condition => 'false');
"""


def tell(what: str, figure: str) -> None:
    if IS_LONG:
        print(f"  {what}: {figure}", flush=True)


def timed(conn: Connection, query: str) -> float:
    begin = time.monotonic()
    conn.execute(query.encode()).fetchall()
    return time.monotonic() - begin


def review(conn: Connection, what: str) -> None:
    """Five batches, each of which gets through."""
    seconds = []
    for _ in range(5):
        begin = time.monotonic()
        found = rows(conn, f"select kept from gc.review({BATCH}) where collection = 'thing'")
        assert found == [(BATCH,)]
        seconds.append(time.monotonic() - begin)
    tell(f"a review of {BATCH:,} {what}", f"{1000 * sorted(seconds)[2]:.0f} ms")


def claim(conn: Connection, prefix: str, what: str) -> int:
    """Three batches. The first claim of objects that may be shared only notes whom to wait for."""
    found = []
    ask = "select id from gc.claim('worker', %s, prefixes => %s)"
    begin = time.monotonic()
    for _ in range(3):
        found += rows(conn, ask, BATCH, [prefix])
    tell(f"a claim of {BATCH:,} {what}", f"{1000 * (time.monotonic() - begin) / 3:.0f} ms")
    conn.execute("select gc.confirm('worker', %s)", [[row[0] for row in found]])
    return len(found)


def size(conn: Connection, table: str) -> str:
    return str(value(conn, f"select pg_size_pretty(pg_total_relation_size('{table}'))"))


def fill(conn: Connection) -> None:
    begin = time.monotonic()
    step = ENTRIES // 10
    for first in range(1, ENTRIES, step):
        execute(conn, f"insert into app.thing select generate_series({first}, {first + step - 1})")
    tell(f"inserting {ENTRIES:,} rows", f"{time.monotonic() - begin:.0f} s")


def bury(conn: Connection, table: str, columns: str) -> None:
    begin = time.monotonic()
    execute(conn, f"insert into {table} "
            f"select {columns} from generate_series(1, {TOMBSTONES}) as n")
    execute(conn, f"delete from {table}")
    tell(f"inserting and deleting {TOMBSTONES:,} rows", f"{time.monotonic() - begin:.0f} s")


def test_behind_an_open_transaction_all_goes_on_but_shared_objects(
    new_database: NewDatabase,
) -> None:
    database = new_database()
    database.psql(SETUP)
    with database.connect() as conn, database.connect(autocommit=False) as idle:
        execute(conn, "set jit = off; insert into app.thing select -generate_series(1, 5000)")
        review(conn, "before")
        execute(idle, "set transaction isolation level repeatable read; "
                "insert into app.note values (1)")
        fill(conn)
        review(conn, f"behind it, of {ENTRIES:,} entries")
        # As many as were reviewed since it began: nothing can be vacuumed away.
        execute(conn, f"delete from gc.thing_review_queue where id <= {ENTRIES} - 10000")
        execute(conn, "vacuum gc.thing_review_queue")
        review(conn, f"behind {ENTRIES:,} entries that are gone and cannot be vacuumed away")
        tell("the queue", size(conn, "gc.thing_review_queue"))
        bury(conn, "app.file", "n")
        assert claim(conn, "s3://files/", "of which none is shared, behind it") == 3 * BATCH
        execute(conn, "select gc.track('app.image', url => 'url', condition => 'false')")
        bury(conn, "app.image", "n, 's3://images/' || n")
        assert claim(conn, "s3://images/", "that may be shared, behind it") == 0
        why = value(conn, "select held_up_by from gc.status() where collection = 'image'")
        assert f"perhaps that of session {idle.info.backend_pid} of " in why
        tell("the tombstones", size(conn, "gc.tombstones"))
        tell("gc.status()", f"{timed(conn, 'select * from gc.status()'):.1f} s")
        with pytest.raises(psycopg.errors.SerializationFailure):
            execute(idle, "insert into app.file values (1)")  # Whose object is gone.
        idle.rollback()

        assert claim(conn, "s3://images/", "that may be shared, after it") == 3 * BATCH
        begin = time.monotonic()
        execute(conn, "vacuum gc.thing_review_queue")
        tell("a vacuum of the queue after it", f"{time.monotonic() - begin:.1f} s")
        review(conn, "after it")
        execute(conn, "select gc.review()")
        assert value(conn, "select count(*) from gc.witnesses") == 0
