"""The oracle: what clients were told, outside of the database, and what was seen to be wrong.

Clients share what they refer to, but each has references of its own, which no other changes: what
it was told of them must hold. Some operations take away what is another's, as deleting a repository
does. They are noted with their time, and excuse what has gone since; nothing else does.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator

MANY = 20  # Violations: after so many there is no point in going on.


class Oracle:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.violations: list[str] = []
        self.first_at: float | None = None  # When the first violation was seen.
        self.counts: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.being_taken: Counter[Hashable] = Counter()
        self.taken_at: dict[Hashable, float] = {}
        self.being_written: Counter[str] = Counter()

    # Counting

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def refused(self, sqlstate: str) -> None:
        with self.lock:
            self.refusals[sqlstate] += 1

    def operations(self) -> int:
        """Those that were answered, and those that were refused."""
        answered = sum(self.counts.values()) - self.kills()
        return answered + sum(self.refusals.values())

    def kills(self) -> int:
        return sum(number for what, number in self.counts.items() if what.startswith("kill"))

    # What is wrong

    def violated(self, what: str) -> None:
        with self.lock:
            if self.first_at is None:
                self.first_at = time.monotonic()
            if len(self.violations) < MANY and what not in self.violations:
                self.violations.append(what)

    # What may have been taken away

    @contextlib.contextmanager
    def taking(self, *things: Hashable) -> Iterator[None]:
        """Whatever the outcome: it may have happened at any moment of this."""
        with self.lock:
            self.being_taken.update(things)
        try:
            yield
        finally:
            with self.lock:
                self.being_taken.subtract(things)
                self.taken_at.update(dict.fromkeys(things, time.monotonic()))

    def may_be_gone(self, since: float, things: Iterable[Hashable]) -> bool:
        """Whether somebody may have taken away one of these after that time."""
        with self.lock:
            return any(self.being_taken[thing] > 0 or self.taken_at.get(thing, 0.0) >= since
                       for thing in things)

    # Objects whose rows come first

    @contextlib.contextmanager
    def writing(self, url: str) -> Iterator[None]:
        """From before the row is inserted until its object is there."""
        with self.lock:
            self.being_written[url] += 1
        try:
            yield
        finally:
            with self.lock:
                self.being_written[url] -= 1

    def unwritten(self) -> set[str]:
        """Objects that need not be there yet, though they have rows."""
        with self.lock:
            return {url for url, number in self.being_written.items() if number > 0}
