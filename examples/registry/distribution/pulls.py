"""What was pulled, told to the database many at once: retention may go by it.

A pull never waits for that, and never fails by it. What is told every few seconds, registry.touch
writes at most once an hour for a tag; which clients do not count, registry.scanners says.
"""

import asyncio
import logging

import psycopg
import psycopg_pool

from distribution.database import Registry

EVERY = 5.0  # Seconds.
AT_MOST = 10_000  # Different pulls in that time; what comes then is not told.
NAME = 300  # So much of a client's name is compared with registry.scanners.

log = logging.getLogger(__name__)


class Pulls:
    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.waiting: set[tuple[str, str, str]] = set()

    def note(self, repository: str, reference: str, client: str) -> None:
        if len(self.waiting) < AT_MOST:
            self.waiting.add((repository, reference, client[:NAME]))

    async def tell(self) -> None:
        told, self.waiting = self.waiting, set()
        if not told:
            return
        repositories, references, clients = map(list, zip(*sorted(told), strict=True))
        try:
            await self.registry.value("touch", repositories, references, clients)
        except (psycopg.Error, psycopg_pool.PoolTimeout) as error:
            log.warning("%s pulls were not told: %s", len(told), error)

    async def tell_for_ever(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            await self.tell()
