"""The watcher: looks, all the while, whether what must hold does."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conftest import Connection, rows

if TYPE_CHECKING:
    from storm.blow import Storm

# As the server's log_line_prefix makes it.
LOGGED = re.compile(r"([0-9A-Z]{5})\|([^|]*)\|([^|]*)\|(ERROR|FATAL|PANIC|DETAIL):  (.*)")
DEADLOCK = "40P01"
# Who reads a table and then writes it has one with an ALTER TABLE that comes between. And whoever
# gives a row another key waits for who deletes the row that has it, and looks at what refers to it.
KNOWN_DEADLOCKS = ("alter table", "update app.file set id = ")
# Two who delete a picture wait for each other's labels, one of them by the check of a foreign key.
OF_PICTURES = ("delete from app.label ", "delete from app.picture ")
# A runner asks, at its start, what it may call; one that is told to end does not wait for an answer
# for long; and who locks a table ends its vacuum.
HARMLESS = ("a batch must have at least one row", "a worker must have a name",
            "canceling statement due to user request", "canceling autovacuum task")
# Seconds: so long no object is without a row and a tombstone; and when runners have less haste, and
# many storms may share the machine.
FORGOTTEN_AFTER, LATER_FORGOTTEN_AFTER = 20.0, 90.0
DEAD_AFTER = 20.0  # Seconds that no row is without a use, after the reviews of that time,
LOOKS = 20  # and if it was looked at so often meanwhile: who is stopped finds all of it old.
OF_RUNNERS = {"40001"}  # What the server may refuse them.
# Sessions that were ended, and a server that crashed.
OF_KILLS = {"57P01", "57P02", "57P03", "08006", "08P01"}


class Journals:
    """What the runners have noted: nothing is confirmed twice, or after its lease."""

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.read_up_to: Counter[Path] = Counter()
        self.claimed: dict[tuple[Path, int], float] = {}
        self.asked: dict[Path, tuple[float, int]] = {}
        self.confirmed: Counter[int] = Counter()  # How often each tombstone.
        self.told = self.unknown = 0  # Confirms that were answered, and that may have happened.

    def read(self) -> None:
        for path in (self.storm.folder / "journal").iterdir():
            with path.open("rb") as file:
                file.seek(self.read_up_to[path])
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self.read_up_to[path] += len(line)
                    self.note(path, json.loads(line))

    def note(self, path: Path, line: dict[str, Any]) -> None:
        at, ids = line["at"], line["ids"]
        if line["what"] == "claimed":
            for one in ids:
                self.claimed[path, one] = at
        elif line["what"] == "confirming":
            self.asked[path] = (at, len(ids))
            self.unknown += len(ids)
        else:
            begun, number = self.asked.pop(path)
            self.unknown -= number
            self.told += line["number"]
            self.judge(path, begun, ids, line["number"])

    def judge(self, path: Path, begun: float, ids: list[int], number: int) -> None:
        """A lease is counted from when the claim was answered: that is later than the database
        does. A tombstone that is leased again has another id."""
        in_time = [one for one in ids if begun < self.claimed[path, one] + self.storm.lease]
        if number > len(in_time):
            self.storm.oracle.violated(
                f"{number} of {len(ids)} deletions were confirmed, and the lease was over for all "
                f"but {len(in_time)}")
        if number == len(ids):
            self.confirmed.update(ids)
            for one in ids:
                if self.confirmed[one] > 1:
                    self.storm.oracle.violated(f"tombstone {one} was confirmed twice")

    def compare(self, conn: Connection) -> None:
        """At the end: the log of deletions has all that were confirmed, and nothing else."""
        self.read()
        ((logged,),) = rows(conn, "select count(*) from gc.deletion_log where worker is not null")
        if not self.told <= logged <= self.told + self.unknown:
            self.storm.oracle.violated(
                f"{logged} deletions are in the log; {self.told} were confirmed, and "
                f"{self.unknown} perhaps")


class Watcher:
    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.oracle = storm.oracle
        self.journals = Journals(storm)
        self.read_up_to: Counter[Path] = Counter()
        self.entries: dict[Path, str] = {}  # Of each log, the last one, so far.
        self.forgotten: dict[str, float] = {}  # Objects that nothing names, and since when.
        # What is dead, since when, and how often it was seen.
        self.dead: dict[tuple[object, ...], tuple[float, int]] = {}

    def look(self, conn: Connection) -> None:
        self.look_for_objects(conn)
        self.look_for_rows(conn)
        for what, query in self.storm.world.never.items():
            for row in rows(conn, query):
                self.oracle.violated(f"{what}: {row}")
        self.look_for_dead_rows(conn)
        self.look_at_failures(conn)
        self.read_logs()
        self.journals.read()

    def look_for_objects(self, conn: Connection) -> None:
        """A row that is there before and after its object was found missing is a row without."""
        before = rows(conn, self.storm.world.live)
        unwritten = self.oracle.unwritten()
        suspicious = []
        for row in before:
            found = self.storm.objects.get(row[1])
            if row[1] not in unwritten and found != self.storm.world.content_of(row[1]):
                suspicious.append((row, "is missing" if found is None else "has other bytes"))
        if suspicious:
            after = rows(conn, self.storm.world.live)
            for row, what in suspicious:
                if row in after:
                    self.oracle.violated(f"row {row[0]} is there, and its object {row[1]} {what}")

    def look_for_rows(self, conn: Connection) -> None:
        """An object has a row, or a tombstone, or somebody is about to give it a row."""
        objects = self.storm.objects.urls()
        named = {url for (url,) in rows(conn, f"""
            select url from ({self.storm.world.live}) as l(name, url)
            union select url from gc.tombstones""")}
        named |= self.oracle.unwritten()
        named.update(*(client.debts for client in self.storm.clients))
        if rows(conn, "select from gc.unread_rows"):
            return  # Rows that a trigger could not work out: the next review does.
        now = time.monotonic()
        self.forgotten = {url: self.forgotten.get(url, now) for url in objects - named}
        for url, since in self.forgotten.items():
            patience = FORGOTTEN_AFTER if now < self.storm.later else LATER_FORGOTTEN_AFTER
            if now > since + patience:
                self.oracle.violated(f"{url} has had neither a row nor a tombstone for a while")

    def look_for_dead_rows(self, conn: Connection) -> None:
        """Whatever is dead goes soon, though it may not be used again before the end."""
        world, now = self.storm.world, time.monotonic()
        found = [(what, *row) for what, query in world.dead.items() if what not in world.patient
                 for row in rows(conn, query)]
        before, self.dead = self.dead, {}
        if not found or self.is_scanning(conn) or rows(conn, world.waiting):
            return
        for one in found:
            since, looks = before.get(one, (now, 0))
            self.dead[one] = since, looks + 1
            if looks > LOOKS and self.reviewed_up_to(conn, now) > since + DEAD_AFTER:
                self.oracle.violated(
                    f"{one} has been dead for a while; queued: {self.queued(conn)}")

    def queued(self, conn: Connection) -> list[tuple[object, ...]]:
        return [row for queue in self.queues(conn) for row in rows(
            conn, f"select '{queue}', event, count(*), min(review_after) - now(), "
                  f"max(review_after) - now(), max(review_count) from {queue} group by event")]

    def reviewed_up_to(self, conn: Connection, now: float) -> float:
        """What was queued before has been looked at, by reviews that have ended: they may be behind
        on a busy machine, and a commit may wait for the standby."""
        overdue = [row[0] for row in rows(
            conn, "select coalesce(extract(epoch from clock_timestamp() - min(xact_start)), 0)"
                  "::float from pg_stat_activity where pid <> pg_backend_pid() "
                  "and datname = current_database() and backend_type = 'client backend'")]
        overdue += [row[0] for queue in self.queues(conn) for row in rows(
            conn, "select coalesce(extract(epoch from now() - min(review_after)), 0)::float "
                  f"from {queue} where review_after < now()")]
        return now - max(overdue, default=0.0)

    def is_scanning(self, conn: Connection) -> bool:
        """What a TRUNCATE has let go is found by a scan, which takes its time."""
        return bool(rows(conn, "select from gc.scan_requests "
                               "union all select from gc.collections where scanning"))

    def look_at_failures(self, conn: Connection) -> None:
        """Reviews that fail are tried again: nobody is told, so somebody has to look."""
        for queue in self.queues(conn):
            for (error,) in rows(conn, f"select distinct last_error from {queue} "
                                       "where last_error is not null"):
                if not any(part in error for part in self.storm.world.expected_failures):
                    self.oracle.violated(f"a review failed: {error}")

    def queues(self, conn: Connection) -> list[str]:
        return [f"gc.{name}_review_queue"
                for (name,) in rows(conn, "select name from gc.collections")]

    def awake(self, conn: Connection) -> list[tuple[object, ...]]:
        """What is queued, and is due or failed: others wait until time makes a condition true."""
        found: list[tuple[object, ...]] = []
        for queue in self.queues(conn):
            found += rows(conn, f"select '{queue}', event, last_error from {queue} "
                                "where review_after < now() + interval '1 second' limit 10")
        return found

    def read_logs(self) -> None:
        """Entry by entry: lines that begin with a tab belong to the one before them."""
        for server in [*self.storm.servers]:
            path = server.folder / "log"
            with path.open("rb") as file:
                file.seek(self.read_up_to[path])
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self.read_up_to[path] += len(line)
                    text = line.decode(errors="replace")
                    if text.startswith("\t"):
                        self.entries[path] += text
                    else:
                        self.judge(self.entries.get(path, ""))
                        self.entries[path] = text

    def judge(self, entry: str) -> None:
        found = LOGGED.match(entry)
        if found is None or found[5] in HARMLESS:
            return
        sqlstate, application, kind, message = found[1], found[3], found[4], found[5]
        if sqlstate == DEADLOCK:
            if kind == "DETAIL" and not self.is_known(entry):
                self.oracle.violated(f"a deadlock: {entry}")
        elif kind in ("ERROR", "FATAL", "PANIC") and sqlstate not in OF_KILLS | (
                OF_RUNNERS if application.startswith("blobgc")
                else self.storm.world.refusals | self.storm.world.logged):
            self.oracle.violated(f"in the server's log: {sqlstate} {kind} {message} "
                                 f"({application})")

    def is_known(self, deadlock: str) -> bool:
        """Whether an application has such a deadlock by itself."""
        statements = re.findall(r"Process \d+: (.*)", deadlock)
        return any(part in deadlock for part in KNOWN_DEADLOCKS) or bool(statements) and all(
            statement.startswith(OF_PICTURES) for statement in statements)

    def settle(self, conn: Connection, seconds: float) -> None:
        """Waits until nothing is queued and nothing to be deleted. That must not take for ever."""
        end = time.monotonic() + seconds
        while True:
            left = [*self.awake(conn), *rows(conn, self.storm.world.waiting), *rows(conn, """
                select collection, 'blocked', why from gc.status() where why is not null
                union all
                select collection, key, concat_ws(', ', worker, due_at - now(), wait_for, held_up,
                    last_error) from gc.tombstones
                union all
                select 'prepared', gid, prepared::text from pg_prepared_xacts""")]
            if not left:
                return
            if time.monotonic() > end:
                self.oracle.violated(f"not settled after {seconds} s: {left[-5:]}")
                return
            time.sleep(0.2)
            self.look(conn)

    def look_at_the_end(self, conn: Connection) -> None:
        """Once all is settled: nothing dead, no object without a row, no row without an object."""
        self.look(conn)
        self.journals.compare(conn)
        for what, query in self.storm.world.dead.items():
            for row in rows(conn, query):
                self.oracle.violated(f"{what}: {row}")
        named = {row[1] for row in rows(conn, self.storm.world.live)}
        for url in self.storm.objects.urls() - named:
            self.oracle.violated(f"{url} is there, and no row has it")
