"""What all clients of a storm share: a session that may die, decisions, and what it was told."""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from conftest import Connection, rows

if TYPE_CHECKING:
    from storm.blow import Storm

# The session, or the whole server, has been killed.
LOST = {None, "57P01", "57P02", "57P03"}
PATIENCE = 60.0  # Seconds: a server that crashes is back by then.
STUCK = 180.0  # Seconds that no operation takes, with all that crashes meanwhile.

# Of each minute, the seconds in which tables change. What makes code again, or truncates, has the
# engine scan all rows, which mends whatever was forgotten: so then comes a time without.
MINUTE, CHANGES, TRUNCATES = 60.0, 20.0, 25.0

# 23505: two of our own, or a row that came back, had one key. 40P01: the watcher finds out from the
# server's log whether that was a deadlock of ours.
REFUSALS = {"ZG001", "ZG005", "ZG010", "40001", "23505", "40P01"}

# What went by reviews that began after a moment.
REVIEWED_SINCE = """
select d.collection, d.key from (
    select collection, key, event, created_at from gc.tombstones
    union all
    select collection, key, event, row_deleted_at from gc.deletion_log
) as d(collection, key, event, gone_at)
where d.collection = %s and d.event is not null and d.gone_at > %s
limit 3
"""


def is_lost(error: psycopg.Error) -> bool:
    if isinstance(error, psycopg.InterfaceError):
        return True
    is_of_the_session = isinstance(error, psycopg.OperationalError)
    return is_of_the_session and (error.sqlstate in LOST or str(error.sqlstate).startswith("08"))


class TooLate(Exception):
    """So much time has passed since the hold was taken that the object must not be written."""


@dataclass(frozen=True)
class Told:
    """What one of our own references may be; more than one: the answer was lost."""

    since: float
    values: frozenset[Hashable]


NEVER = Told(0.0, frozenset([None]))


class Client:
    """One operation after the other. Which, and on what, its own random numbers decide."""

    weights: dict[str, float]

    def __init__(self, storm: Storm, number: int) -> None:
        self.storm = storm
        self.oracle = storm.oracle
        self.number = number
        self.chance = random.Random(f"{storm.seed} {number}")
        self.told: dict[Hashable, Told] = {}
        self.debts: list[str] = []  # Objects that we have written, and that have no row by us.
        self.operations = 0
        self._conn: Connection | None = None
        self._other: Connection | None = None

    # The session

    @property
    def conn(self) -> Connection:
        end = time.monotonic() + PATIENCE
        while self._conn is None or self._conn.closed:
            try:
                self._conn = self.storm.database.connect()
                self.set_up_session(self._conn)
            except psycopg.OperationalError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        return self._conn

    @property
    def other(self) -> Connection:
        """A second session, for what happens while the first one is in a transaction."""
        if self._other is None or self._other.closed:
            self._other = self.storm.database.connect()
        return self._other

    def set_up_session(self, conn: Connection) -> None:
        """What a session needs, and may find there after a crash."""

    def rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        return rows(self.conn, query, *arguments)

    def value(self, query: str, *arguments: object) -> Any:
        ((found,),) = self.rows(query, *arguments)
        return found

    @contextlib.contextmanager
    def transaction(self, level: str = "read committed") -> Iterator[None]:
        """It lingers before its commit, so that others meet what it has locked."""
        with self.conn.transaction():
            if level != "read committed":
                self.conn.execute(f"set transaction isolation level {level}".encode())
            yield
            self.linger()

    def value_at_once(self, query: str, *arguments: object) -> Any:
        """A transaction of one statement. Where it need not linger, it commits by itself."""
        if not self.lingers():
            return self.value(query, *arguments)
        with self.conn.transaction():
            found = self.value(query, *arguments)
            time.sleep(self.chance.uniform(0, 0.02))
        return found

    def lingers(self) -> bool:
        return self.chance.random() < 0.6

    def linger(self) -> None:
        if self.lingers():
            time.sleep(self.chance.uniform(0, 0.02))

    def linger_long(self) -> None:
        """As long as it may take to write an object."""
        if self.chance.random() < 0.5:
            time.sleep(self.chance.uniform(0, 0.3))

    # The loop

    def live(self, stop: threading.Event) -> None:
        names, weights = list(self.weights), list(self.weights.values())
        while not stop.is_set():
            # What one finds out does not change what the next one decides.
            self.operations += 1
            self.chance = random.Random(f"{self.storm.seed} {self.number} {self.operations}")
            for debt in self.debts[:1]:
                self.attempt("pay", functools.partial(self.pay, debt))
            (name,) = self.chance.choices(names, weights)
            self.attempt(name, getattr(self, name))
        self.forget_session()

    def attempt(self, name: str, operation: Callable[[], object]) -> None:
        """Refusals are counted. What is no refusal, and no loss of the session, is a violation."""
        begun = time.monotonic()
        try:
            operation()
        except TooLate:
            self.oracle.refused("late")
        except psycopg.Error as error:
            if is_lost(error):
                self.oracle.refused("lost")
                self.forget_session()
            elif error.sqlstate in self.storm.world.refusals and error.diag.schema_name != "gc":
                self.oracle.refused(str(error.sqlstate))
            else:
                self.oracle.violated(f"{name}: {error.sqlstate} {error}")
        except Exception as error:
            self.oracle.violated(f"{name}: {type(error).__name__} {error}")
        if time.monotonic() > begun + STUCK:
            self.oracle.violated(f"{name} took {time.monotonic() - begun:.0f} s")

    def forget_session(self) -> None:
        """Both of them: it is not known which one was lost."""
        for conn in (self._conn, self._other):
            if conn is not None:
                conn.close()
        self._conn = self._other = None

    def finish(self) -> None:
        """At the end, when nothing is killed any more: all objects get a row."""
        self.forget_session()
        self.set_up_session(self.conn)
        for debt in [*self.debts]:
            for _ in range(100):
                if debt not in self.debts:
                    break
                self.attempt("pay", functools.partial(self.pay, debt))

    def check_all(self) -> None:
        """At the end: all that we were told, and nobody has taken away, is there."""
        for what in [*self.told]:
            self.check(what)

    def check(self, what: Hashable) -> None:
        raise NotImplementedError

    def pay(self, debt: str) -> None:
        """Gives an object a row that was written, but whose row failed: or nobody knows of it."""
        raise NotImplementedError

    # What we were told

    @contextlib.contextmanager
    def telling(self, what: Hashable, new: Hashable) -> Iterator[None]:
        """Our own reference becomes another one; if the session is lost meanwhile, perhaps."""
        before = self.told.get(what, NEVER)
        begun = time.monotonic()
        self.told[what] = Told(before.since, before.values | {new})
        try:
            yield
        except psycopg.Error as error:
            if not is_lost(error):
                self.told[what] = before
            raise
        self.told[what] = Told(begun, frozenset([new]))

    def check_told(self, what: Hashable, found: Hashable, *excuses: Hashable) -> bool:
        """Whether what was found is what we were told; if so, that is known from now on."""
        told = self.told.get(what, NEVER)
        if found not in told.values:
            if not self.oracle.may_be_gone(told.since, excuses):
                expected = " or ".join(str(value) for value in told.values)
                self.oracle.violated(f"{what} is {found}, and client {self.number} was told "
                                     f"{expected}")
            del self.told[what]
            return False
        self.told[what] = Told(told.since, frozenset([found]))
        return True

    # Operators

    def pause_this(self, collection: str) -> None:
        """What is paused is not reviewed, unless another client resumes it."""
        what, begun = self.chance.choice(["reviews", "deletes", None]), time.monotonic()
        self.rows("select gc.pause(%s, 'storm', now() + interval '1 second', %s)", collection, what)
        since = self.value("select clock_timestamp()")
        time.sleep(self.chance.uniform(0, 0.5))
        if what != "deletes":
            went = self.rows(REVIEWED_SINCE, collection, since)
            if went and time.monotonic() < begun + 0.9 and not self.oracle.may_be_gone(
                    begun, [("resume", collection)]):
                self.oracle.violated(f"{collection} was paused, and a review deleted {went}")
        with self.oracle.taking(("resume", collection)):
            self.rows("select gc.resume(%s)", collection)
        self.oracle.count("pause")

    # Objects

    def put(self, url: str, begun: float) -> None:
        """Written while the hold lasts, which was asked for at that time."""
        if time.monotonic() > begun + self.storm.upload_timeout / 2:
            raise TooLate
        self.debts.append(url)
        self.storm.objects.put(url, self.storm.world.content_of(url))
