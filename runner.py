"""Delete the objects whose rows blobgc has collected.

This is the loop: ask the database what to delete, delete it, say so, and sleep until there is more.
All policy is in the database. Only where to delete is said here: under the prefixes that are given
with --store, and nowhere else.

What it is made of is beside it, in the package blobgc: stores (a file for each kind), the database,
metrics, and the command line, where commands/run.py starts it.
"""

import argparse
import collections
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import blobgc
from blobgc import markers
from blobgc.database import Database
from blobgc.errors import FAILED, HELD_UP, NOT_OURS, SUCCESS, reason
from blobgc.logs import log
from blobgc.stores import DELETED, RELEASED, SPARED, Care, Store, Tombstone, open_stores
from blobgc.stores.base import PAUSE, TOLERANCE

if TYPE_CHECKING:
    from blobgc.bar import Bar

POLL = 0.5  # Seconds: how soon a signal is noticed, and how often we ask while something is due.
MANY_REASONS = 10  # Failures of a batch are reported by reason; the rarest beyond these together.
LOOK_ELSEWHERE = 5.0  # Seconds until the next look for what is due under no --store,
REPEAT_WARNING = 60.0  # and until the same is said again.
LOOK_AT_STATUS = 60.0  # Seconds: it counts what is queued, which takes a while.
AT_A_LOOK = 25  # Objects of a share, where each is looked at by a request of its own.
NEXT_TURN = 1.0  # Seconds: the longest wait for a question that is under way.
STEP_BACK = 2.0  # Seconds: --once looks again when something is due that soon.
LOOK_ABOVE = 600.0  # Seconds until the next look for markers of others above a prefix.
REFUSED = "refused: the address or generation leads elsewhere, or has another spelling"


class Batch:
    """What was claimed at once for one store. It is settled when its last share is done."""

    def __init__(self, store: Store, tombstones: list[Tombstone], claimed: float) -> None:
        self.store = store
        self.tombstones = tombstones
        self.claimed = claimed
        self.fates: dict[int, str] = {}
        self.shares = 0  # Those that are not done.
        self.store_is_well = False  # As was found out when a request was refused.


class Runner:
    """Two loops, of which one reviews and one claims; threads that delete; one that confirms.

    Each store has threads and batches of its own, so that one that hangs holds up no other.
    """

    def __init__(self, options: argparse.Namespace, stop: threading.Event) -> None:
        self.options = options
        self.stop = stop
        patience = options.wait if options.once else float("inf")
        self.database = Database(options.dsn, stop, patience)
        self.settling = Database(options.dsn, stop, patience)
        self.reviewing = Database(options.dsn, stop, patience)
        self.version = self.database.check()
        self.stores = open_stores(options.store, options)
        for store in self.stores:  # Before any row is reviewed.
            store.check()
        self.prefixes = [store.prefix for store in self.stores]
        self.pools = {store: ThreadPoolExecutor(store.threads) for store in self.stores}
        self.settler = ThreadPoolExecutor(1)
        self.at_markers = {store: ThreadPoolExecutor(1) for store in self.stores}
        # What is being done with a marker.
        self.deeds: dict[Store, Future[markers.Deed | None]] = {}
        self.not_before: dict[Store, float] = {}  # When a marker may be asked about again,
        self.ask_again: dict[Store, float] = {}  # and when it is, even if nothing is claimed.
        self.next_start: dict[Store, float] = {}  # When folders above are looked at again.
        self.stopped: dict[Store, tuple[str, float]] = {}  # Why, and when that was said.
        self.batches: dict[Store, list[Batch]] = {store: [] for store in self.stores}
        self.lock = threading.Lock()  # Of the batches.
        self.settled = threading.Event()  # A batch was, since this was last cleared.
        self.in_review = threading.Lock()
        self.has_reviews = True  # Unless the last one found nothing that it could do.
        self.in_turn = threading.Lock()
        self.has_pace = False  # As the last answer was.
        self.claim_size = int(min(options.batch, max(options.rate, 1)))
        self.next_claim = 0.0  # By the rate,
        self.resting_until = 0.0  # and by the pace.
        self.turn = 0  # Which store is asked for first.
        self.asked_in_vain: dict[Store, float] = {}  # When a claim last gave nothing.
        self.patience: float | None = None  # With --once: until when to wait for what is held up.
        self.has_looked_again = False
        # With --once: how much was done when it was last looked at, since when that is so, and
        # whether others have kept us from doing more for too long.
        self.progress, self.progressed_at = -1, 0.0
        self.is_kept_out = False
        self.next_look = 0.0  # For what is due elsewhere.
        self.next_status = 0.0
        self.problems: dict[str, str] = {}  # What was said about collections.
        self.counters = collections.Counter[str]()
        self.crash: BaseException | None = None
        self.bar: Bar | None = None

    def status(self) -> list[dict[str, Any]]:
        return self.database.rows("select * from gc.status()")

    def run(self) -> int:
        """Until a signal comes, or with --once until nothing is due. Returns the exit code."""
        self.say_hello()
        reviews = threading.Thread(
            target=self.guard, args=[self.review_until_stopped], daemon=True)
        reviews.start()
        self.guard(self.delete_until_done)
        while self.has_batches():
            self.settled.wait(POLL)
            self.settled.clear()
        code = SUCCESS
        if self.options.once and not self.stop.is_set():
            code = self.report()
        self.stop.set()
        # A long review ends in the database, without us.
        self.in_review.acquire(timeout=self.options.timeout)
        if self.crash:
            raise self.crash
        return code

    def say_hello(self) -> None:
        log.info(
            "blobgc %(version)s, database %(database)s (blobgc %(extension)s), which may review "
            "and delete; stores: %(stores)s",
            {"version": blobgc.__version__, "database": self.database.describe(),
             "extension": self.version,
             "stores": ", ".join(store.describe() for store in self.stores)})

    def guard(self, step: Callable[..., None], *arguments: object) -> None:
        """In a thread of its own: all loops end when one of them fails."""
        try:
            step(*arguments)
        except Exception as error:
            self.crash = self.crash or error
            self.stop.set()

    # Reviewing

    def review_until_stopped(self) -> None:
        while not self.stop.is_set():
            self.look_at_status()
            found_some = False
            with self.in_review, self.in_its_turn():
                begun = time.monotonic()
                if not self.stop.is_set():
                    found_some = self.review()
                worked = time.monotonic() - begun
            if found_some:
                self.stop.wait(self.seconds_to_rest(self.reviewing, worked))
            else:
                seconds = self.seconds_until_due(self.reviewing)
                self.has_reviews = False
                self.sleep(self.reviewing, seconds)
                self.has_reviews = True

    def review(self) -> bool:
        """A batch of each collection. Whether anything was due."""
        reviewed = deleted = 0
        for row in self.reviewing.rows("select * from gc.review(%s)", self.options.batch):
            reviewed += row["reviewed"]
            deleted += row["deleted"]
            for what in ("reviewed", "deleted", "busy", "failed"):
                self.counters[f"rows_{what}"] += row[what]
            log.log(logging.INFO if row["reviewed"] else logging.DEBUG,
                    "%(collection)s: reviewed %(reviewed)s, deleted %(deleted)s, kept %(kept)s, "
                    "failed %(failed)s, busy %(busy)s", row)
        if deleted:
            self.reviewing.rows("select pg_notify('blobgc', '')")  # Whoever deletes need not sleep.
        self.draw()
        return reviewed > 0

    def look_at_status(self) -> None:
        """Now and then: says what is in the way of a collection, when that changes."""
        now = time.monotonic()
        if now < self.next_status:
            return
        self.next_status = now + LOOK_AT_STATUS
        found = {}
        for row in self.reviewing.rows("select * from gc.status()"):
            if row.get("why"):
                found[row["collection"]] = row["why"]
        for collection, why in found.items():
            if self.problems.get(collection) != why:
                log.warning("%(collection)s: %(why)s", {"collection": collection, "why": why})
        for collection in self.problems:
            if collection not in found:
                log.info("%(collection)s: nothing is in the way any more",
                         {"collection": collection})
        self.problems = found

    # Keeping a pace, so that the application hardly notices

    @contextlib.contextmanager
    def in_its_turn(self) -> Iterator[None]:
        """Where there is a pace, one thing is asked for at a time: two would take two processors. A
        review may take a minute; nobody waits that long for it."""
        is_alone = self.has_pace and self.in_turn.acquire(timeout=NEXT_TURN)
        try:
            yield
        finally:
            if is_alone:
                self.in_turn.release()

    def seconds_to_rest(self, database: Database, worked: float) -> float:
        """Who says --once waits for the end."""
        pace = self.options.pace
        if self.stop.is_set() or pace == 1 or (pace is None and self.options.once):
            return 0
        rest = database.seconds_to_rest(worked, pace)
        self.has_pace = rest > 0
        return rest

    def rest_from_claims(self, database: Database, begun: float) -> None:
        """No further claim until then; what is claimed is deleted meanwhile."""
        now = time.monotonic()
        rest = self.seconds_to_rest(database, now - begun)
        with self.lock:
            self.resting_until = max(self.resting_until, now) + rest

    # Sleeping

    def seconds_until_due(self, database: Database) -> float:
        """What is under a store that is left alone is not due before that is tried again."""
        awake = [store.prefix for store in self.stores if not store.pause_left()]
        if awake:
            return database.seconds_until_due(awake)
        due = database.seconds_until_due(self.prefixes)
        return max(due, *(store.pause_left() for store in self.stores))

    def sleep(self, database: Database, seconds: float) -> None:
        """Until then, or a signal, or a NOTIFY."""
        end = time.monotonic() + max(seconds, POLL)
        while not self.stop.is_set():
            left = end - time.monotonic()
            if left <= 0 or database.is_notified(min(left, POLL)):
                return

    # Deleting

    def delete_until_done(self) -> None:
        """Drains what is due, then sleeps until there is more."""
        while not self.stop.is_set():
            self.look_elsewhere()
            if self.delete():
                self.draw()
                continue
            rest = self.resting_until - time.monotonic()
            if rest > 0:
                self.stop.wait(min(rest, POLL))
                continue
            due = self.seconds_until_due(self.database)
            if self.options.once:
                if not (self.waits_for_more(due) if due > 0 else self.waits_for_others()):
                    return
                due = min(due, STEP_BACK)
            for store in self.stores:
                if store.pause_left():
                    due = min(due, store.pause_left())
            self.sleep(self.database, due)

    def delete(self) -> bool:
        """Claims ahead: one batch is claimed while another is deleted and a third confirmed."""
        self.settled.clear()
        has_claimed = False
        self.turn = (self.turn + 1) % len(self.stores)  # Where there is a rate, all get a share.
        for store in self.stores[self.turn:] + self.stores[:self.turn]:
            if not self.may_ask(store) or not self.is_cleared(store):
                continue
            if self.may_claim(store) and self.claim(store):
                has_claimed = True
        if has_claimed:
            return True
        if self.has_batches() or any(not store.pause_left() for store in self.deeds):
            self.settled.wait(POLL)
            return True
        return False

    def has_batches(self) -> bool:
        return any(self.batches.values())

    def may_ask(self, store: Store) -> bool:
        """About its marker: before each claim; and also while nothing can be claimed."""
        now = time.monotonic()
        if self.stop.is_set() or store.pause_left() or now < self.not_before.get(store, 0.0):
            return False
        is_due = now >= self.ask_again.get(store, 0.0)
        return is_due or store in self.deeds or self.may_claim(store)

    def may_claim(self, store: Store) -> bool:
        now = time.monotonic()
        if now < max(self.next_claim, self.resting_until):
            return False
        # While others are busy, one that had nothing is not asked all the time.
        if self.has_batches() and now < self.asked_in_vain.get(store, 0.0) + POLL:
            return False
        with self.lock:
            batches = self.batches[store]
            return len(batches) < 3 or sum(batch.shares for batch in batches) < store.flow.width

    # The marker: whether the bucket is this database's. The database decides, step by step.

    def is_cleared(self, store: Store) -> bool:
        """Whether a batch may be claimed now; if not, a step towards it is made."""
        deed = self.deeds.get(store)
        if deed and not deed.done():
            return False
        self.deeds.pop(store, None)
        done = deed.result() if deed else markers.NOTHING
        if done is None:
            return False
        now = time.monotonic()
        if not deed and now >= self.next_start.get(store, 0.0):
            self.deeds[store] = self.at_markers[store].submit(self.do, store, None)
            return False
        (answer,) = self.database.rows(
            markers.COMPARE, self.options.worker, store.prefix, *done, store.has_conditions())
        if answer["action"] in ("read", "write"):
            self.deeds[store] = self.at_markers[store].submit(self.do, store, answer)
            return False
        if answer["action"] == "wait":
            self.not_before[store] = now + answer["seconds"]
        if answer["action"] == "stop":
            store.leave_alone(answer["seconds"])
            self.next_start[store] = 0.0
        self.tell_stopped(store, answer["reason"])
        if answer["action"] not in ("go", "idle"):
            return False
        self.ask_again[store] = now + answer["seconds"]
        return True

    def do(self, store: Store, answer: dict[str, Any] | None) -> markers.Deed | None:
        """In a thread of its own; without an answer, what is to be done first. None: the store has
        failed, and is left alone for a while."""
        try:
            if answer:
                return markers.do(store, answer)
            found = markers.start(store)
            self.next_start[store] = time.monotonic() + LOOK_ABOVE
            return found
        except Exception as error:
            store.leave_alone(PAUSE)
            log.warning("%s: the marker %s.blobgc cannot be read or written, next try in %s s: %s",
                        store.prefix, store.prefix, PAUSE, reason(error))
            return None
        finally:
            self.settled.set()

    def tell_stopped(self, store: Store, why: str | None) -> None:
        """When it changes, and now and then again."""
        before, said_at = self.stopped.get(store, (None, 0.0))
        now = time.monotonic()
        if why and (why != before or now > said_at + REPEAT_WARNING):
            log.warning("%(store)s: nothing is deleted here: %(why)s",
                        {"store": store.prefix, "why": why})
            self.stopped[store] = (why, now)
        if not why and before:
            log.info("%(store)s: objects are deleted here again", {"store": store.prefix})
            del self.stopped[store]

    def claim(self, store: Store) -> bool:
        """Claims a batch and hands it out. Whether there was anything."""
        # One that has failed so far is asked for a few objects: the others stay for other runners.
        size = self.claim_size if store.failures < TOLERANCE else min(self.claim_size, TOLERANCE)
        with self.in_its_turn():
            # The lease is counted from before the question; the database counts it from after.
            now = time.monotonic()
            rows = self.database.rows(
                "select id, url, generation, size from gc.claim(%s, %s, %s, %s::text[])",
                self.options.worker, size, f"{self.options.lease} seconds", [store.prefix])
        if not rows:
            self.asked_in_vain[store] = now
            return False
        self.rest_from_claims(self.database, now)
        self.next_claim = max(self.next_claim, now - POLL) + len(rows) / self.options.rate
        batch = Batch(store, self.with_care([Tombstone(**row) for row in rows], now), now)
        self.hand_out(batch)
        return True

    def with_care(self, tombstones: list[Tombstone], claimed: float) -> list[Tombstone]:
        """The same; those that must be looked at before they are deleted say so."""
        asked = time.monotonic()
        until = claimed + self.options.lease / 2
        cares = {}
        for row in self.database.rows(
                "select * from gc.careful(%s, %s, %s)", self.options.worker, ids_of(tombstones),
                self.options.careful):
            cares[row["id"]] = Care(row["untouched_for"], asked, until)
        return [each._replace(care=cares.get(each.id)) for each in tombstones]

    def hand_out(self, batch: Batch) -> None:
        """Shares of a batch: each is a request, or several, which costs less for an object."""
        good = []
        for tombstone in batch.tombstones:
            if batch.store.accepts(tombstone.url, tombstone.generation):
                good.append(tombstone)
            else:
                batch.fates[tombstone.id] = REFUSED
        length = max(batch.store.flow.size, len(good) // batch.store.threads // 4)
        if any(tombstone.care for tombstone in good):
            length = min(length, AT_A_LOOK)
        shares = [good[i:i + length] for i in range(0, len(good), length)]
        batch.shares = len(shares)
        with self.lock:
            self.batches[batch.store].append(batch)
        for share in shares:
            self.pools[batch.store].submit(self.guard, self.work_off, batch, share)
        if not shares:
            self.settler.submit(self.guard, self.settle, batch)

    def work_off(self, batch: Batch, share: list[Tombstone]) -> None:
        """In a thread of the store's pool."""
        fates: dict[int, str] = {}
        try:
            fates = self.attempt(batch, share)
        finally:
            with self.lock:
                batch.fates |= fates
                batch.shares -= 1
                is_last = batch.shares == 0
            if is_last:
                self.settler.submit(self.guard, self.settle, batch)

    def attempt(self, batch: Batch, share: list[Tombstone]) -> dict[int, str]:
        """Request by request. What is not tried is released, and nobody's fault."""
        store = batch.store
        fates: dict[int, str] = {}
        requests = collections.deque([share])
        while requests:
            some = requests.popleft()
            if not self.may_delete(batch):
                for tombstone in some:
                    fates[tombstone.id] = RELEASED
                continue
            if not store.flow.enter(POLL):
                requests.appendleft(some)
                continue
            try:
                if not self.may_delete(batch):  # It may have waited for its turn.
                    requests.appendleft(some)
                    continue
                size = store.flow.size
                if len(some) > size:
                    requests.appendleft(some[size:])
                    some = some[:size]
                answer = self.request(batch, some)
            finally:
                store.flow.leave()
            if answer is None:  # Something in the request is at fault: find it.
                middle = len(some) // 2
                requests.extendleft([some[middle:], some[:middle]])
                continue
            for tombstone, fate in zip(some, answer, strict=True):
                fates[tombstone.id] = fate
        return fates

    def request(self, batch: Batch, some: list[Tombstone]) -> list[str] | None:
        """The fate of each; None: only some of them are at fault, and it is not known which."""
        store = batch.store
        begun = time.monotonic()
        may_ask = not self.stop.is_set()
        try:
            answer = store.delete_carefully(some)
        except Exception as error:
            if len(some) > 1 and store.is_refusal(error):
                if not batch.store_is_well:
                    batch.store_is_well = not may_ask or store.is_well()
                if batch.store_is_well:
                    return None
            answer = [reason(error)] * len(some)
            store.note(answer, may_ask)
            if store.is_overload(error):
                store.flow.shrink(begun)
                if len(some) > store.flow.size:
                    return [RELEASED] * len(some)  # They are claimed again, fewer at a time.
            return answer
        store.note(answer, may_ask)
        store.flow.grow()
        return answer

    def may_delete(self, batch: Batch) -> bool:
        """No request in the second half of a lease, after a signal, or to a store that fails."""
        is_late = time.monotonic() >= batch.claimed + self.options.lease / 2
        return not (is_late or self.stop.is_set() or batch.store.pause_left())

    # Confirming

    def settle(self, batch: Batch) -> None:
        try:
            with self.in_its_turn():
                begun = time.monotonic()
                self.tell_fates(batch)
            self.rest_from_claims(self.settling, begun)
        finally:
            with self.lock:
                self.batches[batch.store].remove(batch)
            self.settled.set()

    def tell_fates(self, batch: Batch) -> None:
        """Tells the database what came of a batch."""
        by_fate: dict[str, list[Tombstone]] = {}
        for tombstone in batch.tombstones:
            fate = batch.fates.get(tombstone.id, RELEASED)
            by_fate.setdefault(fate, []).append(tombstone)
            self.count(tombstone, fate)
            log.debug("%(url)s: %(fate)s", {"url": tombstone.url, "fate": fate})
        deleted = by_fate.pop(DELETED, [])
        if deleted:
            self.tell("select gc.confirm(%s, %s)", ids_of(deleted))
            log.info("%(objects)s objects: deleted from %(store)s", {
                "objects": len(deleted), "fate": DELETED, "store": batch.store.prefix})
        released = by_fate.pop(RELEASED, [])
        if released:
            self.tell("select gc.release(%s, %s)", ids_of(released))
            log.info("%(objects)s objects: released of %(store)s", {
                "objects": len(released), "fate": RELEASED, "store": batch.store.prefix})
        self.spare(by_fate.pop(SPARED, []), batch.store)
        for why, failed in with_few_reasons(by_fate).items():
            self.tell("select gc.fail(%s, %s, %s)", ids_of(failed), why)
            log.warning("%(objects)s objects: %(fate)s (%(url)s, for example)", {
                "objects": len(failed), "fate": why, "store": batch.store.prefix,
                "url": failed[0].url})

    def spare(self, tombstones: list[Tombstone], store: Store) -> None:
        """Tells the database of objects that somebody has written a short time ago."""
        ages = [each.care.age() for each in tombstones if each.care]
        if ages:
            self.settling.rows("select gc.spare(%s, %s, %s)", self.options.worker,
                               ids_of(tombstones), ages)
            log.info("%(objects)s objects: spared in %(store)s, for they were written a short time "
                     "ago (%(url)s, for example)", {
                         "objects": len(ages), "fate": SPARED, "store": store.prefix,
                         "url": tombstones[0].url})

    def count(self, tombstone: Tombstone, fate: str) -> None:
        what = fate if fate in (DELETED, RELEASED, SPARED) else "failed"
        self.counters[f"objects_{what}"] += 1
        self.counters[f"bytes_{what}"] += tombstone.size or 0

    def tell(self, call: str, ids: list[int], *arguments: str) -> None:
        self.settling.rows(call, self.options.worker, ids, *arguments)

    # What is left

    def waits_for_more(self, due: float) -> bool:
        """With --once: whether to go on, until what is held up can be deleted, or for too long."""
        if all(store.pause_left() for store in self.stores):
            return False
        held_up, why = self.held_up()
        if not held_up:
            # What could not be handed out when it was asked for may have stepped back for a moment.
            is_soon = due <= STEP_BACK and not self.has_looked_again
            self.has_looked_again = True
            return is_soon
        if self.patience is None:
            self.patience = time.monotonic() + self.options.wait
            log.info("%s objects are held up, waiting for at most %s s: %s", held_up,
                     self.options.wait, why)
        return time.monotonic() < self.patience

    def waits_for_others(self) -> bool:
        """With --once: something is due, and was not to be had. Whether to go on: it has to be
        reviewed, or a marker is being looked at. Else others have locked it."""
        now = time.monotonic()
        done = self.counters.total()
        if done != self.progress or self.has_reviews:
            self.progress, self.progressed_at = done, now
        in_vain = [self.asked_in_vain.get(store, 0.0) > self.progressed_at
                   for store in self.stores if not store.pause_left()]
        # A claim may also need to be asked twice: see gc._settle, gc._open_gate.
        patience = max(self.options.wait, STEP_BACK)
        self.is_kept_out = all(in_vain) and now > self.progressed_at + patience
        return not self.is_kept_out

    def held_up(self) -> tuple[int, str]:
        """How many objects are due and cannot be handed out, and why."""
        total = 0
        reasons = set()
        for row in self.status():
            total += row["tombstones_held_up"]
            if row["tombstones_held_up"] and row["held_up_by"]:
                reasons.add(row["held_up_by"])
        return total, "; ".join(sorted(reasons))

    def report(self) -> int:
        """With --once: says what is left, and why. Returns the exit code."""
        codes = [self.report_failures(), self.report_held_up(), self.report_elsewhere()]
        for code in codes:
            if code != SUCCESS:
                return code
        return SUCCESS

    def report_failures(self) -> int:
        code = SUCCESS
        if self.counters["rows_failed"]:
            log.warning("%s reviews failed, and are left for later", self.counters["rows_failed"])
            code = FAILED
        failing = sum(row["tombstones_failing"] for row in self.status())
        has_failed = any(store.failures >= TOLERANCE for store in self.stores)
        if has_failed or (failing and self.counters["objects_failed"]):
            log.warning("%s objects could not be deleted so far and are left for later", failing)
            code = FAILED
        return code

    def report_held_up(self) -> int:
        code = SUCCESS
        held_up, why = self.held_up()
        if held_up:
            log.warning("%s objects are left, because they are held up: %s", held_up, why)
            code = HELD_UP
        elif self.is_kept_out:
            log.warning("something that is due is left, because another session has it locked")
            code = HELD_UP
        for row in self.status():
            if row.get("blocked"):
                log.warning("%s is left, because it cannot be reviewed: %s", row["collection"],
                            row["why"])
                code = HELD_UP
        return code

    def report_elsewhere(self) -> int:
        if not self.database.has_due_elsewhere(self.prefixes):
            return SUCCESS
        self.warn_of_elsewhere()
        return NOT_OURS

    def look_elsewhere(self) -> None:
        """Now and then: what is due under no --store is for another runner, if there is one."""
        now = time.monotonic()
        if self.options.once or now < self.next_look:
            return
        self.next_look = now + LOOK_ELSEWHERE
        if self.database.has_due_elsewhere(self.prefixes):
            self.next_look = now + REPEAT_WARNING
            self.warn_of_elsewhere()

    def warn_of_elsewhere(self) -> None:
        log.warning("objects are due that are under none of %s: they are left to a runner with "
                    "another --store", " ".join(self.prefixes))

    def draw(self) -> None:
        if self.bar:
            self.bar.draw(self.counters)


def ids_of(tombstones: list[Tombstone]) -> list[int]:
    return [tombstone.id for tombstone in tombstones]


def with_few_reasons(by_fate: dict[str, list[Tombstone]]) -> dict[str, list[Tombstone]]:
    """A store may name the object in each message: a call for each of them would take too long."""
    by_number = sorted(by_fate.items(), key=lambda item: -len(item[1]))
    few = dict(by_number[:MANY_REASONS])
    others = []
    for _, tombstones in by_number[MANY_REASONS:]:
        others += tombstones
    if others:
        few[f"several reasons, one of them: {by_number[MANY_REASONS][0]}"[:500]] = others
    return few


def end_in_time(runner: Runner) -> None:
    """After a signal: what takes longer than a request may is cancelled, and in the end left."""
    runner.stop.wait()
    end = time.monotonic() + 2 * runner.options.timeout + 10
    time.sleep(runner.options.timeout + 1)
    while time.monotonic() < end:
        for database in (runner.database, runner.settling, runner.reviewing):
            database.cancel()
        time.sleep(1)
    log.error("something does not end and is left: the leases end by themselves")
    os._exit(FAILED)


def stop_on_signals() -> threading.Event:
    stop = threading.Event()

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # A second one ends the process at once.
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return stop


if __name__ == "__main__":
    from blobgc.cli import main

    sys.exit(main())
