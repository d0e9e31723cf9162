"""A storm over declared references: writers who add and drop mentions, and reviews without a delay.

What must hold at every moment: no mention of nothing. And at the end: nothing dead left. With the
lock taken out of the triggers, that has to be noticed.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import psycopg
from conftest import Connection, Database, NewDatabase, execute, rows, value

SECONDS = float(os.environ.get("BLOBGC_STORM_SECONDS", "15"))
WRITERS = 8
REVIEWERS = 3
FILES = 200

SCHEMA = """
set client_min_messages = error;
create schema app;
create table app.file (id bigint primary key, digest text not null unique);
create table app.post (
    id bigint generated always as identity primary key, kind text not null, file_id bigint,
    file_ids bigint[], digest text, note text
);
create index on app.post (file_id);
create index on app.post using gin (file_ids);
create index on app.post (digest);
update gc.settings
set undo = '0', brake_share = 1, jitter = '0', busy_delay = '1 millisecond',
    lock_timeout = '20 seconds';
insert into gc.review_after_defaults values
    ('file_insert', '0'), ('post_delete', '0'), ('post_update', '0'), ('file_scan', '0');
select gc.track('app.file');
select gc.declare_reference('file', 'app.post', 'file_id', condition => $$kind = 'file'$$);
select gc.declare_reference('file', 'app.post', 'file_ids');
select gc.declare_reference('file', 'app.post', 'digest', by => 'digest');
"""

# By an anti-join that knows nothing of blobgc.
MENTIONED = """
select p.file_id as id from app.post as p where p.kind = 'file' and p.file_id is not null
union all
select u from app.post as p cross join lateral unnest(p.file_ids) as u where u is not null
union all
select coalesce((select f.id from app.file as f where f.digest = p.digest), -1)
from app.post as p where p.digest is not null
"""
OF_NOTHING = f"select count(*) from ({MENTIONED}) as m where m.id not in (select id from app.file)"
DEAD = f"select count(*) from app.file as f where f.id not in ({MENTIONED})"

# Refused by blobgc, by PostgreSQL in a stricter level, or to end a deadlock.
REFUSALS = {"ZG005", "40001", "40P01"}


@dataclass
class Storm:
    """What happens at once, and what was seen."""

    database: Database
    seconds: float
    seen: Counter[str] = field(default_factory=Counter)
    of_nothing: int = 0
    errors: list[Exception] = field(default_factory=list)

    def blow(self) -> None:
        """Until the time is over, a mention of nothing was seen, or an unexpected error."""
        end = time.monotonic() + self.seconds
        stop = threading.Event()
        threads = [threading.Thread(target=self.guarded, args=(self.write, stop, number))
                   for number in range(WRITERS)]
        threads += [threading.Thread(target=self.guarded, args=(self.review, stop, number))
                    for number in range(REVIEWERS)]
        for thread in threads:
            thread.start()
        with self.database.connect() as watcher:
            while time.monotonic() < end and not self.errors and not self.of_nothing:
                self.of_nothing = max(self.of_nothing, value(watcher, OF_NOTHING))
                self.seen["watched"] += 1
                time.sleep(0.05)
        stop.set()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def guarded(self, act: object, stop: threading.Event, number: int) -> None:
        assert callable(act)
        try:
            with self.database.connect() as conn:
                while not stop.is_set():
                    act(conn, number)
        except Exception as error:
            self.errors.append(error)

    def review(self, conn: Connection, number: int) -> None:
        deleted = rows(conn, "select deleted from gc.review(%s)", 10 + 40 * number)
        self.seen["collected"] += sum(row[0] for row in deleted)

    def write(self, conn: Connection, number: int) -> None:
        """One transaction: a file comes, or a mention comes, changes or goes."""
        level = random.choice(["read committed"] * 6 + ["repeatable read", "serializable"])
        what = random.choice(["file", "insert", "insert", "update", "note", "delete", "delete"])
        try:
            with conn.transaction():
                execute(conn, f"set transaction isolation level {level}")
                self.seen[what] += self.act(conn, what)
                # A transaction that has more to do: what it wrote is not seen by others yet.
                time.sleep(random.choice([0, 0, random.random() / 50]))
        except psycopg.Error as error:
            if error.sqlstate not in REFUSALS:
                raise
            self.seen[f"refused with {error.sqlstate}"] += 1

    def act(self, conn: Connection, what: str) -> int:
        if what == "file":
            files = random.sample(range(FILES), 3)
            return conn.execute(
                "insert into app.file select u, 'd' || u from unnest(%s::bigint[]) as u "
                "order by u on conflict do nothing", [files]).rowcount
        if what == "delete":
            return conn.execute(
                "delete from app.post where id in (select id from app.post order by random() "
                "limit 3 for update skip locked)").rowcount
        if what == "note":
            return conn.execute(
                "update app.post set note = 'x' where id = (select id from app.post "
                "order by random() limit 1 for update skip locked)").rowcount
        # Only what is there, as this transaction sees it, is mentioned.
        found = [row[0] for row in rows(
            conn, "select id from app.file order by random() limit %s", random.randint(1, 3))]
        if not found:
            return 0
        kind = random.choice(["file", "other"])
        mention = random.choice([
            (kind, found[0] if kind == "file" else -7, None, None),
            (kind, None, [*found, None], None),
            (kind, None, None, f"d{found[0]}"),
        ])
        if what == "insert":
            return conn.execute(
                "insert into app.post (kind, file_id, file_ids, digest) "
                "values (%s, %s, %s::bigint[], %s)", mention).rowcount
        return conn.execute(
            "update app.post set (kind, file_id, file_ids, digest) = (%s, %s, %s::bigint[], %s) "
            "where id = (select id from app.post order by random() limit 1 "
            "for update skip locked)", mention).rowcount


def settle(conn: Connection) -> None:
    """Review until nothing is queued."""
    end = time.monotonic() + 60 + SECONDS
    while value(conn, "select count(*) from gc.file_review_queue"):
        assert time.monotonic() < end, rows(
            conn, "select last_error, review_count, count(*), min(review_after - now()) "
                  "from gc.file_review_queue group by 1, 2")
        rows(conn, "select * from gc.review()")
        time.sleep(0.002)


def test_no_mention_of_nothing_and_nothing_dead(
    new_database: NewDatabase, plain_script: str
) -> None:
    database = new_database()
    database.psql(plain_script + SCHEMA)
    storm = Storm(database, SECONDS)
    storm.blow()
    with database.connect() as conn:
        settle(conn)
        print(dict(storm.seen))
        assert storm.of_nothing == 0
        assert value(conn, OF_NOTHING) == 0
        assert value(conn, DEAD) == 0
        assert value(conn, "select count(*) from app.post") > 0
        assert rows(conn, "select why from gc.status()") == [(None,)]
    # The storm was one: files were collected while others wrote, and some who wrote lost the race.
    assert storm.seen["collected"] > 10 and storm.seen["refused with ZG005"] > 0


def test_a_missing_lock_is_noticed(new_database: NewDatabase, plain_script: str) -> None:
    lock = "where {t_is_m} for key share"
    assert plain_script.count(lock) == 1
    database = new_database()
    database.psql(plain_script.replace(lock, "where {t_is_m}") + SCHEMA)
    storm = Storm(database, 120)
    storm.blow()
    assert storm.of_nothing > 0, dict(storm.seen)
