"""How a function of the preset is called. Each call is one statement, and one transaction."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql
from psycopg_pool import AsyncConnectionPool

Row = tuple[Any, ...]


class Calls:
    """A connection, and the functions of the registry's schema by their names."""

    def __init__(self, connection: AsyncConnection[Row]) -> None:
        self.connection = connection

    async def rows(self, function: str, *arguments: object) -> list[Row]:
        places = sql.SQL(", ").join([sql.Placeholder()] * len(arguments))
        statement = sql.SQL("select * from registry.{}({})").format(
            sql.Identifier(function), places)
        cursor = await self.connection.execute(statement, arguments)
        return await cursor.fetchall()

    async def row(self, function: str, *arguments: object) -> Row:
        (row,) = await self.rows(function, *arguments)
        return row

    async def value(self, function: str, *arguments: object) -> Any:
        (value,) = await self.row(function, *arguments)
        return value


class Registry:
    """The database of a registry, over a few connections that all requests share."""

    def __init__(self, dsn: str, connections: int) -> None:
        self.pool: AsyncConnectionPool[AsyncConnection[Row]] = AsyncConnectionPool(
            dsn, min_size=1, max_size=connections, open=False, kwargs={"autocommit": True})

    async def rows(self, function: str, *arguments: object) -> list[Row]:
        async with self.pool.connection() as connection:
            return await Calls(connection).rows(function, *arguments)

    async def row(self, function: str, *arguments: object) -> Row:
        async with self.pool.connection() as connection:
            return await Calls(connection).row(function, *arguments)

    async def value(self, function: str, *arguments: object) -> Any:
        async with self.pool.connection() as connection:
            return await Calls(connection).value(function, *arguments)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Calls]:
        """Several calls, all or none of them."""
        async with self.pool.connection() as connection, connection.transaction():
            yield Calls(connection)

    async def ensure_repository(self, name: str) -> None:
        """Who pushes to a repository that is not there creates it."""
        try:
            await self.rows("find_repository", name)
        except psycopg.Error as unknown:
            if unknown.sqlstate != "ZR009":
                raise
            try:
                await self.rows("create_repository", name)
            except psycopg.Error as taken:
                if taken.sqlstate != "ZR021":  # Somebody else was faster.
                    raise
