"""How much a store is asked for at a time, so that it can keep up."""

import threading
import time


class Flow:
    """How many requests are under way, and how many objects are in each.

    Both grow while the store keeps up: they double until it first does not, and grow by small steps
    afterwards. Both are halved when it does not, once for all requests that were under way then.
    """

    def __init__(self, largest: int, widest: int) -> None:
        self.largest, self.widest = largest, widest
        # Where a request is one object, there is nothing to be careful about.
        self.size = max(largest // 2, 1)
        self.width = widest if largest == 1 else max(widest // 4, min(widest, 4))
        self.under_way = 0
        self.successes = 0
        self.halved_at = 0.0  # Never, so far.
        self.condition = threading.Condition()

    def take_one_by_one(self) -> None:
        """The store knows no requests of several objects."""
        with self.condition:
            self.largest = self.size = 1
            self.width = self.widest
            self.condition.notify_all()

    def enter(self, seconds: float) -> bool:
        """Waits for a turn, for so long. Who gets one must leave."""
        with self.condition:
            if not self.condition.wait_for(lambda: self.under_way < self.width, seconds):
                return False
            self.under_way += 1
            return True

    def leave(self) -> None:
        with self.condition:
            self.under_way -= 1
            self.condition.notify()

    def grow(self) -> None:
        """A request was answered."""
        with self.condition:
            self.successes += 1
            if self.successes < self.width:
                return
            self.successes = 0
            is_first_time = not self.halved_at
            more_objects = self.size if is_first_time else max(self.largest // 16, 1)
            more_requests = self.width if is_first_time else 1
            self.size = min(self.size + more_objects, self.largest)
            self.width = min(self.width + more_requests, self.widest)
            self.condition.notify_all()

    def shrink(self, begun: float) -> None:
        """A request that was begun then was too much."""
        with self.condition:
            if begun <= self.halved_at:
                return
            self.halved_at = time.monotonic()
            self.successes = 0
            self.size = max(self.size // 2, 1)
            self.width = max(self.width // 2, 1)
