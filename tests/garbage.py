"""What is garbage, in a few lines that know nothing of blobgc: what is compared with it.

Rows are what the database has. A row of a collection is garbage if its condition holds and nothing
refers to it, itself excepted. It takes what it owns with it, and so on until nothing is garbage.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass

from kinds import Kind
from schemas import Reference, Schema

# A value as the database prints it, and the group of equal values that it belongs to.
Groups = dict[tuple[str, str], int]
Key = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    table: int
    id: str  # Where the database has it: ctid and partition.
    values: tuple[str | None, ...]  # In the order of the columns.
    elements: tuple[tuple[str | None, ...] | None, ...]  # Of columns that are arrays.
    urls: tuple[str, ...]


class Reading:
    """What rows mean."""

    def __init__(self, schema: Schema, groups: Groups) -> None:
        self.schema = schema
        self.groups = groups
        self.places = [{column.name: n for n, column in enumerate(schema.columns(table))}
                       for table in range(len(schema.tables))]

    def group(self, kind: Kind, value: str | None) -> int | None:
        return None if value is None else self.groups[kind.type, value]

    def value(self, row: Row, name: str) -> str | None:
        return row.values[self.places[row.table][name]]

    def own_key(self, row: Row, to_word: bool) -> Key | None:
        table = self.schema.tables[row.table]
        named = [table.word] if to_word else table.key
        return whole([self.group(each.kind, self.value(row, each.name)) for each in named])

    def referred(self, row: Row, each: Reference) -> set[Key | None]:
        """The keys that a row refers to; None among them counts for nothing."""
        column = each.columns[0]
        mark = self.value(row, self.schema.tables[row.table].mark.name)
        if each.is_conditional and mark != "dead":
            return set()
        if each.how == "array":
            elements = row.elements[self.places[row.table][column.name]] or ()
            return {whole([self.group(column.kind, element)]) for element in elements}
        if each.how == "json":
            said = self.value(row, column.name)
            member = json.loads(said).get("of") if said else None
            return {whole([self.group(column.kind, member)])}
        return {whole([self.group(c.kind, self.value(row, c.name)) for c in each.columns])}

    def is_garbage(self, row: Row, live: set[Row]) -> bool:
        table = self.schema.tables[row.table]
        if not table.collection or not self.condition_holds(row):
            return False
        keeping = [each for each in self.schema.into(row.table) if not each.is_owned]
        if not keeping and not table.collection.condition:
            return False  # Nothing would keep anything: it is blocked.
        return not any(
            self.own_key(row, each.to_word) in self.referred(other, each) - {None}
            for each in keeping for other in live if other.table == each.table and other != row)

    def condition_holds(self, row: Row) -> bool:
        table = self.schema.tables[row.table]
        assert table.collection
        mark = self.value(row, table.mark.name)
        return {"": True, "= 'dead'": mark == "dead", "is null": mark is None,
                "is distinct from 'live'": mark != "live"}[table.collection.condition]

    def belongings(self, row: Row, live: set[Row]) -> set[Row]:
        """A row with all that it owns."""
        found = {row}
        for each in self.schema.into(row.table):
            if each.is_owned:
                key = self.own_key(row, each.to_word)
                for other in live:
                    if other.table == each.table and key in self.referred(other, each) - {None}:
                        found |= self.belongings(other, live)
        return found

    def survivors(self, rows: set[Row]) -> set[Row]:
        live = set(rows)
        while True:
            dead = next((row for row in live if self.is_garbage(row, live)), None)
            if dead is None:
                return live
            live -= self.belongings(dead, live)


def whole(key: list[int | None]) -> Key | None:
    """A key of which a part is null refers to nothing."""
    known = [part for part in key if part is not None]
    return tuple(known) if len(known) == len(key) else None


def urls_of(rows: set[Row]) -> set[str]:
    return set(itertools.chain.from_iterable(row.urls for row in rows))
