"""What the page knows: the answers of the database, each to one question.

Every question is a transaction of its own that can only read. What this role may not know, and what
takes too long, costs its own part of the page and no other.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import psycopg

from blobgc.database import application_name, leave_times_as_text
from blobgc.errors import NO_RIGHT, one_line
from blobgc.serving import PATIENCE, Cached

Row = dict[str, Any]

DAYS = 30  # Of the charts.
SOME = 20  # Rows of a list that may be long,
FEW = 8  # and of one that has a page of its own.
MANY = 200  # Of a page that is nothing but that list.
SECONDS = 8.0  # For all the questions of one page, before the client is hung up on.
IMPOSSIBLE = "22"  # The class of what no value of a type can be.
CHANGED = "25006"  # A write was tried: the code of a collection has to be made again.

PLACE = """
select current_database() as database, current_user as role, gc.version() as version,
    to_char(now(), 'YYYY-MM-DD HH24:MI:SS') as at,
    extract(epoch from gc.next_due() - now())::float8 as seconds_until_due
"""

STATUS = """
select s.*, extract(epoch from now() - s.overdue_since)::float8 as overdue_seconds,
    extract(epoch from now() - s.last_deleted_at)::float8 as seconds_ago
from gc.status() as s
"""

RECLAIMED = """
select d.day::date::text as day, t.collection, coalesce(t.rows, 0) as rows,
    coalesce(t.objects, 0) as objects, coalesce(t.bytes, 0)::float8 as bytes
from generate_series(0, %(days)s - 1) as n
cross join lateral (select (now() at time zone 'UTC')::date - n) as d(day)
left join gc.daily_totals as t on t.day = d.day
order by d.day, t.collection
"""

# A few of each hour: there may be millions, and they are read by the index.
WAITS = """
select d.day::date::text as day, count(w.seconds) as sampled,
    percentile_cont(0.5) within group (order by w.seconds)::float8 as median,
    percentile_cont(0.95) within group (order by w.seconds)::float8 as most
from generate_series(0, %(days)s - 1) as n
cross join lateral (select (now() at time zone 'UTC')::date - n) as d(day)
cross join generate_series(0, 23) as hour
left join lateral (
    select extract(epoch from l.deleted_at - l.row_deleted_at) as seconds
    from gc.deletion_log as l
    where l.deleted_at >= (d.day + hour * interval '1 hour') at time zone 'UTC'
        and l.deleted_at < (d.day + (hour + 1) * interval '1 hour') at time zone 'UTC'
        and l.url is not null
    limit 40
) as w on true
group by d.day
order by d.day
"""

FAILURES = """
select t.collection, t.last_error as reason, count(*) as objects, min(t.url) as example,
    max(t.failures) as times, extract(epoch from min(t.due_at) - now())::float8 as seconds_until
from gc.tombstones as t
where t.failures > 0
group by 1, 2
order by 3 desc, 1, 2
limit %(some)s
"""

RUNNERS = """
select r.*, extract(epoch from now() - r.last_call)::float8 as seconds_ago
from gc.runners as r
where r.last_call > now() - interval '1 day' or r.holds > 0
order by r.last_call desc, r.worker
limit %(some)s
"""

PAUSES = """
select p.*, p.until = 'infinity' as is_endless
from gc.pauses as p where p.until > now()
order by p.since desc limit %(some)s
"""

OPERATIONS = "select o.* from gc.operations as o order by o.id desc limit %(some)s"

TRASH = """
select t.* from gc.trash as t order by t.deleted_at desc, t.collection, t.key limit %(limit)s
"""


EXPLAIN = "select * from gc.explain(%(name)s, %(key)s)"


@dataclass
class Part:
    """The answer to one question, or why there is none."""

    rows: list[Row] = field(default_factory=list)
    problem: str = ""
    sqlstate: str = ""  # Of the problem.


@dataclass
class Overview:
    """All that the first page shows, asked for at one time."""

    place: Row = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    problem: str = ""


class Facts:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.overview = Cached(self.look)
        self.trash = Cached(lambda: self.ask_alone(TRASH, limit=MANY))
        self.turn = threading.Semaphore(2)  # Of who asks for a row.

    def connect(self) -> psycopg.Connection[Row]:
        connection = psycopg.connect(
            self.dsn, connect_timeout=5, prepare_threshold=None, tcp_user_timeout=60_000,
            row_factory=psycopg.rows.dict_row, client_encoding="utf8",
            fallback_application_name=application_name().replace("blobgc", "blobgc-page", 1)[:63])
        leave_times_as_text(connection)
        connection.autocommit = True
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.read_only = True
        return connection

    def look(self) -> Overview:
        overview = Overview()
        questions = {
            "status": STATUS, "life": "select * from gc.life()", "reclaimed": RECLAIMED,
            "waits": WAITS, "failures": FAILURES, "runners": RUNNERS, "pauses": PAUSES,
            "operations": OPERATIONS, "trash": TRASH}
        end = time.monotonic() + SECONDS
        try:
            with self.connect() as connection:
                overview.place = ask(connection, PLACE, end)[0]
                for name, question in questions.items():
                    overview.parts[name] = part(connection, question, end)
        except psycopg.Error as error:
            overview.problem = explained(error)
        return overview

    def ask_alone(self, question: str, **values: object) -> Part:
        """By a connection of its own."""
        try:
            with self.connect() as connection:
                return part(connection, question, time.monotonic() + SECONDS, **values)
        except psycopg.Error as error:
            return refusal(error)

    def collections(self) -> list[str]:
        overview = self.overview.get()
        if overview is None or "status" not in overview.parts:
            return []
        return [row["collection"] for row in overview.parts["status"].rows]

    def explain(self, collection: str, key: str) -> list[Part]:
        """For each collection that knows the key; for a url, what has it. Few at a time."""
        if not self.turn.acquire(timeout=PATIENCE):
            return [Part(problem="others are asking as well: try again in a moment")]
        try:
            if not collection and "://" in key:
                return [self.ask_alone("select * from gc.explain_url(%(key)s)", key=key)]
            if collection:
                return [self.ask_alone(EXPLAIN, name=collection, key=key)]
            return self.explain_anywhere(key)
        finally:
            self.turn.release()

    def explain_anywhere(self, key: str) -> list[Part]:
        """A key that cannot be one of a collection is none of it."""
        found: list[Part] = []
        end = time.monotonic() + SECONDS
        try:
            with self.connect() as connection:
                for name in self.collections():
                    answer = part(connection, EXPLAIN, end, name=name, key=key)
                    if answer.sqlstate == NO_RIGHT:
                        return [answer]
                    is_known = answer.rows and answer.rows[0]["verdict"] != "never seen"
                    if is_known or (answer.problem and answer.sqlstate[:2] != IMPOSSIBLE):
                        found.append(answer)
        except psycopg.Error as error:
            found.append(refusal(error))
        return found or [Part(problem="no collection has a row with this key, or ever had")]


def ask(connection: psycopg.Connection[Row], question: str, end: float, **values: object
        ) -> list[Row]:
    """Until then at most. The settings end with the transaction: PgBouncer may be in between."""
    left = max(int(1000 * (end - time.monotonic())), 50)
    given = {"days": DAYS, "some": SOME, "limit": FEW, **values}
    with connection.transaction():
        connection.execute("select set_config('statement_timeout', %s, true), "
                           "set_config('timezone', 'UTC', true), "
                           "set_config('datestyle', 'ISO', true)", [f"{left}ms"])
        return connection.execute(question.encode(), given).fetchall()


def part(connection: psycopg.Connection[Row], question: str, end: float, **values: object) -> Part:
    try:
        return Part(ask(connection, question, end, **values))
    except psycopg.Error as error:
        if connection.closed:
            raise
        return refusal(error)


def refusal(error: psycopg.Error) -> Part:
    return Part(problem=explained(error), sqlstate=error.sqlstate or "")


def explained(error: psycopg.Error) -> str:
    if error.sqlstate == NO_RIGHT:
        return f"{one_line(error)}: select gc.grant_viewer('the role');"
    if error.sqlstate == CHANGED:
        return "a table has changed, and the next review takes that into account: ask again then"
    return one_line(error)
