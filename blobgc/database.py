"""The database: one connection, made again when it is lost."""

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg

import blobgc
from blobgc.errors import SUCCESS, Unavailable, Unusable, one_line
from blobgc.logs import log

SPEAKS = "0.2"  # The versions of the extension that this package is written for.

# What the runner calls. A batch of 0 is refused, but only by a function that may be called.
CALLED = (
    "review(0)",
    "claim('probe', 0, '1 minute', '{file:///}')",
    "compare_marker('', 'file:///')",
    "careful('probe', '{}')",
    "confirm('probe', '{}')",
    "spare('probe', '{}', '{}')",
    "next_due('{file:///}')",
    "release('probe', '{}')",
    "fail('probe', '{}', '')",
    "rest('0')",
    "status() limit 0",
    "metrics limit 0",
)

# The defaults of the database may be others, and a SET outside of a transaction is lost when
# PgBouncer gives the next one to another session. If this process is stopped between two
# statements, or the network goes, the server ends the transaction: others wait for its locks.
BEGIN = (b"begin isolation level read committed, read write, not deferrable; "
         b"set local idle_in_transaction_session_timeout = '10s'")

# A refusal at the door has no SQLSTATE that libpq would tell. In another language it is not
# recognised here, and is waited for like a server that does not answer.
IS_REFUSED = re.compile(
    "password authentication failed|no password supplied|no pg_hba.conf entry|does not exist|"
    "authentication failed for user|is not permitted to log in|permission denied for database|"
    "certificate|invalid (port|connection option|sslmode)")


def application_name() -> str:
    """As gc.runners reads it. PostgreSQL cuts a name after 63 bytes, so the host gives way."""
    begin, end = f"blobgc {blobgc.__version__} ", f"/{os.getpid()}"
    return begin + os.uname().nodename[:63 - len(begin + end)] + end


def leave_times_as_text(connection: psycopg.Connection[Any]) -> None:
    """Shown, never reckoned with; and DateStyle or '-infinity' would be too much for Python's."""
    for kind in ("timestamptz", "date", "interval"):
        connection.adapters.register_loader(kind, psycopg.types.string.TextLoader)


class Database:
    """Every call is a transaction of its own."""

    def __init__(
        self, dsn: str, stop: threading.Event | None = None, patience: float | None = None,
        is_silent: bool = False
    ) -> None:
        """With patience: waits for so many seconds for a server that is not there yet.

        Notices are logged, unless it is silent.
        """
        self.dsn = dsn
        self.is_silent = is_silent
        self.stop = stop or threading.Event()
        self.connection: psycopg.Connection[dict[str, Any]]
        self.connect_patiently(patience)

    def connect(self) -> None:
        # PgBouncer in transaction mode knows no prepared statements. LISTEN does nothing there, and
        # no harm: the runner comes back when gc.next_due says.
        self.connection = psycopg.connect(
            self.dsn, autocommit=True, prepare_threshold=None, row_factory=psycopg.rows.dict_row,
            tcp_user_timeout=60_000, client_encoding="utf8",
            fallback_application_name=application_name())
        leave_times_as_text(self.connection)
        if not self.is_silent:
            self.connection.add_notice_handler(
                lambda notice: log.warning("%s", one_line(notice.message_primary)))
        self.connection.execute("listen blobgc")

    def connect_patiently(self, patience: float | None) -> None:
        """A server may start after us. What it refuses, it will refuse again."""
        until = time.monotonic() + (patience or 0)
        delay = 0.5
        while True:
            try:
                return self.connect()
            except psycopg.OperationalError as error:
                if IS_REFUSED.search(str(error)) or patience is None:
                    raise
                if time.monotonic() + delay > until:
                    raise Unavailable(f"no database: {one_line(error)}") from error
                log.warning("no database yet, next try in %s s: %s", delay, one_line(error))
                if self.stop.wait(delay):
                    raise SystemExit(SUCCESS) from error
                delay = min(2 * delay, 10)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[dict[str, Any]]]:
        self.connection.execute(BEGIN)
        try:
            yield self.connection
        except BaseException:
            self.rollback()
            raise
        self.connection.commit()

    def call(self, query: str, *arguments: object) -> list[dict[str, Any]]:
        """Tries once. The server gets all of it at once: no transaction waits for our next word."""
        try:
            cursor = psycopg.ClientCursor(self.connection)
            cursor.execute(b"; ".join([BEGIN, query.encode(), b"commit"]), arguments)
        except psycopg.Error:
            self.rollback()
            raise
        while cursor.description is None:
            cursor.nextset()
        return cursor.fetchall()

    def rollback(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self.connection.rollback()

    def rows(self, query: str, *arguments: object) -> list[dict[str, Any]]:
        """Tries until it works: whatever the runner asks for may be asked for twice."""
        delay = 0.1
        while True:
            try:
                if self.connection.closed:
                    self.connect()
                return self.call(query, *arguments)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                log.warning("no answer from the database, next try in %s s: %s", delay,
                            one_line(error))
                if self.stop.wait(delay):
                    raise SystemExit(SUCCESS) from error  # The leases end by themselves.
                delay = min(2 * delay, 10)

    def seconds_until_due(self, prefixes: list[str] | None = None) -> float:
        """Until there is something to review, or to delete under these prefixes, or anywhere."""
        (row,) = self.rows(
            "select (extract(epoch from gc.next_due(%s::text[])) "
            "- extract(epoch from now()))::float8 as seconds", prefixes)
        return float(row["seconds"])

    def seconds_to_rest(self, worked: float, pace: float | None) -> float:
        """After calls that took so many seconds."""
        (row,) = self.rows("select extract(epoch from gc.rest(%s::interval, %s::numeric))::float8 "
                           "as seconds", f"{worked:f} seconds", pace)
        return float(row["seconds"])

    def has_due_elsewhere(self, prefixes: list[str]) -> bool:
        """Whether something is due, and was before all that is under these prefixes."""
        (row,) = self.rows(
            "select gc.next_due() <= now() and gc.next_due() < gc.next_due(%s::text[]) as found",
            prefixes)
        return bool(row["found"])

    def is_notified(self, seconds: float) -> bool:
        """Waits for somebody else to say that there is work."""
        try:
            for notify in self.connection.notifies(timeout=seconds, stop_after=1):
                if notify.pid != self.connection.info.backend_pid:
                    return True
            return False
        except psycopg.Error:  # The next call makes the connection again.
            self.stop.wait(seconds)
            return False

    def cancel(self) -> None:
        """Ends what is running in the server, if anything is."""
        with contextlib.suppress(psycopg.Error):
            self.connection.cancel_safe(timeout=2)

    def version(self) -> str:
        """Of blobgc in the database."""
        return str(self.call("select gc.version()")[0]["version"])

    def check(self) -> str:
        """Finds out whether all may be called that the runner calls. Returns blobgc's version."""
        version = self.version()
        if version.split(".")[:2] != SPEAKS.split("."):
            raise Unusable(f"the database has blobgc {one_line(version)}, and this is "
                           f"{blobgc.__version__}: run blobgc upgrade, or take the runner of that "
                           "version")
        if self.connection.info.parameter_status("server_encoding") == "SQL_ASCII":
            raise Unusable("the encoding of the database is SQL_ASCII: nobody knows what a url is")
        for what in CALLED:
            with contextlib.suppress(psycopg.errors.InvalidParameterValue):
                self.call("select from gc." + what)
        return version

    def describe(self) -> str:
        """Which database this is, and as whom."""
        info = self.connection.info
        host = info.host or "localhost"
        return f'"{info.dbname}" at {host}:{info.port} as "{info.user}"'
