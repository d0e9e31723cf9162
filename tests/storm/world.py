"""What a world must have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conftest import Connection, execute, rows

from storm.client import REFUSALS, Client

if TYPE_CHECKING:
    from storm.blow import Storm

# Delays are near zero, and so are pauses after a failure: whatever can collide does.
SETTINGS = """
set client_min_messages = error;
update gc.settings
set jitter = '0', undo = '0', brake_share = 1, busy_delay = '1 millisecond',
    backoff = '10 milliseconds', backoff_limit = '500 milliseconds', max_sleep = '200 milliseconds',
    keep_alive = '20 milliseconds', upload_timeout = '{upload_timeout} seconds',
    lock_timeout = '30 seconds', failover = 'trusted';
"""
DELAYS = """
insert into gc.review_after_defaults select distinct event, '0'::interval from gc._known_events()
on conflict (event) do update set value = '0';
"""


class World:
    """Tables, clients that use them, and what must hold of them."""

    refusals: set[str] = REFUSALS
    logged: set[str] = set()  # What else the server's log may have of clients.
    live: str  # A query: which rows there are with objects, as text and url.
    # Queries that find nothing, at any moment; and others that find nothing once all is settled.
    never: dict[str, str]
    dead: dict[str, str]
    patient: frozenset[str] = frozenset()  # Those of the latter that may take longer than a storm.
    waiting = "select where false"  # A query: what else has to happen before all is settled.
    expected_failures: tuple[str, ...] = ()  # Parts of errors that reviews may meet.

    def __init__(self, storm: Storm) -> None:
        self.storm = storm

    def set_up(self, conn: Connection) -> None:
        execute(conn, SETTINGS.format(upload_timeout=self.storm.upload_timeout))
        self.create(conn)
        execute(conn, DELAYS)

    def create(self, conn: Connection) -> None:
        raise NotImplementedError

    def client(self, number: int) -> Client:
        raise NotImplementedError

    def content_of(self, url: str) -> bytes:
        """The bytes that the object at this address has, whoever writes it."""
        raise NotImplementedError

    def calm_down(self, conn: Connection) -> None:
        """What holds things up is ended."""
        execute(conn, "select gc.resume(); update gc.settings set undo = '0'")
        for collection, key, holder in rows(conn, "select collection, key, holder from gc.pins"):
            rows(conn, "select gc.unpin(%s, %s::text, %s)", collection, key, holder)

    def abandon(self, conn: Connection) -> None:
        """Everything becomes garbage."""
        raise NotImplementedError

    def abandon_objects(self, conn: Connection) -> None:
        """At least what has an object does, by the first review."""
        self.abandon(conn)
