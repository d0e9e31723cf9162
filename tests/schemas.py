"""Generated schemas: tables with keys of every type, and every way to refer to their rows.

A schema is only described here, and how it is created; tests/garbage.py says what is garbage in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from kinds import KINDS, PLAIN_WORDS, Kind, literal, names, quoted

CONTROL = "\t\n\r\x01\x1f\x7f"


@dataclass(frozen=True)
class Column:
    name: str
    kind: Kind
    type: str

    def __str__(self) -> str:
        return quoted(self.name)


@dataclass(frozen=True)
class Reference:
    """A foreign key, or one that is declared: by a column, an array, a member of JSON."""

    table: int
    target: int
    columns: tuple[Column, ...]
    how: str = "foreign key"
    clauses: str = ""
    to_word: bool = False  # To another unique column than the key.
    is_owned: bool = False
    is_indexed: bool = True
    is_conditional: bool = False  # Only rows that are marked refer to anything.
    is_strict: bool = False
    is_not_valid: bool = False

    @property
    def is_declared(self) -> bool:
        return self.how != "foreign key"

    def expression(self) -> str:
        (column,) = self.columns
        if self.how == "json":
            return f"({column} ->> 'of'){column.kind.json}"
        return str(column)


@dataclass(frozen=True)
class Collection:
    """What gc.track is told."""

    url: str = ""  # Made of the key, of one object, of several; or nothing.
    prefix: str = "s3://b/"
    condition: str = ""
    name: str | None = None


@dataclass(frozen=True)
class Table:
    schema: str
    name: str
    key: tuple[Column, ...]
    word: Column  # Unique, and may be null.
    mark: Column
    object: Column
    objects: Column
    parts: str = ""  # Partitioned by the key, or by what it refers to.
    collection: Collection | None = None

    def __str__(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    def columns(self) -> tuple[Column, ...]:
        return (*self.key, self.word, self.mark, self.object, self.objects)


@dataclass(frozen=True, repr=False)
class Schema:
    tables: tuple[Table, ...]
    references: tuple[Reference, ...]

    def __repr__(self) -> str:
        """What somebody can type who wants to see it again."""
        made = [*schema_sql(self), *(track_sql(self, n) for n in self.collections())]
        made += [declare_sql(self, each, self.name(each.target)) for each in self.references
                 if each.is_declared]
        return ";\n".join(["", *made, ""])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Hypothesis would print every field of everything."""
        printer.text(repr(self))

    def name(self, table: int) -> str:
        """Of a collection."""
        found = self.tables[table]
        assert found.collection
        return found.collection.name or found.name

    def out_of(self, table: int) -> list[Reference]:
        return [each for each in self.references if each.table == table]

    def into(self, table: int) -> list[Reference]:
        return [each for each in self.references if each.target == table]

    def collections(self) -> list[int]:
        return [n for n, table in enumerate(self.tables) if table.collection]

    def columns(self, table: int) -> list[Column]:
        more = [column for each in self.out_of(table) for column in each.columns]
        return [*self.tables[table].columns(), *more]


# How it is created


def table_sql(schema: Schema, number: int) -> list[str]:
    table = schema.tables[number]
    foreign = [each for each in schema.out_of(number) if not each.is_declared]
    parted_by = (foreign[0].columns if table.parts == "reference" else table.key)[0]
    defined = [f"{column} {column.type}" for column in schema.columns(number)]
    key = ", ".join(map(str, table.key))
    # A primary key of a partitioned table has all that it is partitioned by.
    if table.parts != "reference":
        defined.append(f"primary key ({key})")
    if not table.parts:
        defined.append(f"unique ({table.word})")
    made = [f"create table {table} ({', '.join(defined)})"
            + (f" partition by hash ({parted_by})" if table.parts else "")]
    for part in range(2 if table.parts else 0):
        name = f"{quoted(table.schema)}.{quoted(f'part {part} of {number}')}"
        made.append(f"create table {name} partition of {table} "
                    f"for values with (modulus 2, remainder {part})")
    return made


def foreign_key_sql(schema: Schema, each: Reference) -> str:
    target = schema.tables[each.target]
    named = [target.word] if each.to_word else target.key
    return (f"alter table {schema.tables[each.table]} "
            f"add foreign key ({', '.join(map(str, each.columns))}) "
            f"references {target} ({', '.join(map(str, named))}) {each.clauses}"
            + (" not valid" if each.is_not_valid else ""))


def index_sql(schema: Schema, each: Reference) -> str:
    table = schema.tables[each.table]
    if each.how == "array":
        return f"create index on {table} using gin ({each.columns[0]})"
    if each.how == "json":
        return f"create index on {table} (({each.expression()}))"
    return f"create index on {table} ({', '.join(map(str, each.columns))})"


def schema_sql(schema: Schema) -> list[str]:
    made = [f"create schema {quoted(name)}" for name in sorted({t.schema for t in schema.tables})]
    for number in range(len(schema.tables)):
        made += table_sql(schema, number)
    for each in schema.references:
        if each.is_indexed:
            made.append(index_sql(schema, each))
        if not each.is_declared:
            made.append(foreign_key_sql(schema, each))
    return made


def url_sql(table: Table) -> str:
    """The expression for gc.track; also for whoever wants to know the objects of a row."""
    assert table.collection
    prefix = literal(table.collection.prefix)
    if table.collection.url == "key":
        return f"{prefix} || " + " || '/' || ".join(f"{column}::text" for column in table.key)
    if table.collection.url == "object":
        return f"{prefix} || {table.object}"
    return str(table.objects)


def track_sql(schema: Schema, number: int) -> str:
    table = schema.tables[number]
    assert table.collection
    told = [literal(str(table))]
    if table.collection.name is not None:
        told.append(f"name => {literal(table.collection.name)}")
    if table.collection.url:
        told.append(f"url => {literal(url_sql(table))}")
    if table.collection.condition:
        told.append(f"condition => {literal(condition_sql(table))}")
    owned = ", ".join(literal(owned_name(schema, each))
                      for each in owned_by(schema, number))
    if owned:
        told.append(f"owned => array[{owned}]")
    return f"select * from gc.track({', '.join(told)})"


def owned_by(schema: Schema, number: int) -> list[Reference]:
    """Also through what is owned."""
    found = [each for each in schema.into(number) if each.is_owned and not each.is_declared]
    for each in found:
        found += [below for below in owned_by(schema, each.table) if below not in found]
    return found


def owned_name(schema: Schema, each: Reference) -> str:
    table = schema.tables[each.table]
    return f"{table.schema}.{table.name}({', '.join(column.name for column in each.columns)})"


def condition_sql(table: Table) -> str:
    assert table.collection
    return f"{table.mark} {table.collection.condition}"


def declare_sql(schema: Schema, each: Reference, name: str) -> str:
    told = [literal(name), literal(str(schema.tables[each.table])), literal(each.expression())]
    if each.to_word:
        told.append(f"by => {literal(schema.tables[each.target].word.name)}")
    if each.is_conditional:
        marked = f"{schema.tables[each.table].mark} = 'dead'"
        told.append(f"condition => {literal(marked)}")
    if each.is_strict:
        told.append("strict => true")
    return f"select * from gc.declare_reference({', '.join(told)})"


# How it is generated

ACTIONS = ("", "on delete cascade", "on delete set null", "on delete restrict",
           "on delete set default", "on update cascade", "on delete cascade on update cascade",
           "on update set null")
TIMES = ("", "deferrable", "deferrable initially deferred")
CONDITIONS = ("= 'dead'", "is distinct from 'live'", "is null")


class Naming:
    """Names that differ within one schema or table. No expression can have a semicolon."""

    def __init__(self, draw: st.DrawFn, controls: bool, without: str = "") -> None:
        self.draw = draw
        self.controls = controls
        self.without = without
        self.taken: set[str] = set()

    def new(self) -> str:
        name = self.draw(names())
        if self.without:
            name = name.replace(self.without, "-")
        if self.controls and self.draw(st.integers(0, 9)) == 0:
            name = name[:20] + self.draw(st.sampled_from(CONTROL))
        while name in self.taken:
            name = name[:20] + "+"
        self.taken.add(name)
        return name


def column(draw: st.DrawFn, naming: Naming, kind: Kind, is_reference: bool = False) -> Column:
    types = (kind.type, kind.type, *kind.others, *kind.alike) if is_reference else (kind.type,)
    return Column(naming.new(), kind, draw(st.sampled_from(types)))


def new_table(draw: st.DrawFn, naming: Naming, space: str) -> Table:
    in_table = Naming(draw, naming.controls, ";")
    several = draw(st.integers(0, 3)) == 0
    kinds = [draw(st.sampled_from(KINDS)) for _ in range(2 if several else 1)]
    # No index has room for two of the longest values.
    if several:
        kinds = [replace(kind, values=tuple(each for each in kind.values if len(each[0]) < 99))
                 for kind in kinds]
    return Table(
        space, naming.new(), tuple(column(draw, in_table, kind) for kind in kinds),
        word=column(draw, in_table, PLAIN_WORDS), mark=column(draw, in_table, PLAIN_WORDS),
        object=column(draw, in_table, PLAIN_WORDS),
        objects=Column(in_table.new(), PLAIN_WORDS, "text[]"),
        parts="key" if kinds[0].has_hash and draw(st.integers(0, 4)) == 0 else "")


def new_foreign_key(
    draw: st.DrawFn, schema: Schema, table: int, target: int, naming: Naming
) -> Reference:
    to_word = not schema.tables[target].parts and draw(st.integers(0, 5)) == 0
    named = [schema.tables[target].word] if to_word else schema.tables[target].key
    match = draw(st.sampled_from(("", "", "match full")))
    parted = bool(schema.tables[table].parts)
    return Reference(
        table, target, tuple(column(draw, naming, each.kind, True) for each in named),
        clauses=" ".join((match, draw(st.sampled_from(ACTIONS)), draw(st.sampled_from(TIMES)))),
        to_word=to_word, is_indexed=draw(st.integers(0, 9)) > 0,
        is_not_valid=not parted and draw(st.integers(0, 9)) == 0)


def new_mention(
    draw: st.DrawFn, schema: Schema, table: int, target: int, naming: Naming
) -> Reference:
    goal = schema.tables[target]
    to_word = len(goal.key) > 1 or (not goal.parts and draw(st.integers(0, 5)) == 0)
    kind = goal.word.kind if to_word else goal.key[0].kind
    ways = ["column", *(["array"] * kind.has_arrays), *(["json"] if kind.json else [])]
    how = draw(st.sampled_from(ways))
    type = draw(st.sampled_from((kind.type, kind.type, *kind.alike)))
    types = {"column": type, "array": array_of(type), "json": "jsonb"}
    return Reference(
        table, target, (Column(naming.new(), kind, types[how]),), how, to_word=to_word,
        is_indexed=draw(st.integers(0, 9)) > 0, is_conditional=draw(st.integers(0, 3)) == 0,
        is_strict=draw(st.integers(0, 4)) == 0)


def array_of(type: str) -> str:
    plain, collates, collation = type.partition(" collate ")
    return f"{plain}[]{collates}{collation}"


def new_reference(draw: st.DrawFn, schema: Schema, table: int, naming: Naming) -> Reference:
    """What is owned is referred to by what it owns, and by nothing else."""
    owned = {each.table for each in schema.references if each.is_owned}
    may_own = (table not in owned and not schema.tables[table].collection
               and not schema.into(table))
    free = [n for n in range(table + 1) if n not in owned and not (n == table and table in owned)]
    target = draw(st.sampled_from([0, 0, 0, *(range(table + 1) if may_own else free)]))
    goal = schema.tables[target]
    if target in owned:
        return replace(new_foreign_key(draw, schema, table, target, naming), is_owned=True)
    if goal.collection and draw(st.integers(0, 3)) == 0:
        return new_mention(draw, schema, table, target, naming)
    made = new_foreign_key(draw, schema, table, target, naming)
    if goal.collection and may_own and target != table and draw(st.integers(0, 2)) == 0:
        return replace(made, is_owned=True)
    return made


@st.composite
def schemas(draw: st.DrawFn, controls: bool = False) -> Schema:
    spaces = [f"s{name}"[:20] for name in (draw(names()), draw(names()))]
    naming = {name: Naming(draw, controls) for name in spaces}
    schema = Schema((), ())
    for number in range(draw(st.integers(2, 4))):
        within = draw(st.sampled_from(spaces))
        table = new_table(draw, naming[within], within)
        if number == 0 or draw(st.integers(0, 3)) == 0:
            table = replace(table, collection=draw(collections()))
        schema = replace(schema, tables=(*schema.tables, table))
        in_table = Naming(draw, controls, ";")
        in_table.taken = {each.name for each in table.columns()}
        for _ in range(draw(st.sampled_from((0, 0, 0, 1) if number == 0 else (1, 2)))):
            made = new_reference(draw, schema, number, in_table)
            schema = replace(schema, references=(*schema.references, made))
    return with_parts(draw, with_names(schema))


def collections() -> st.SearchStrategy[Collection]:
    return st.builds(
        Collection, url=st.sampled_from(("", "key", "object", "objects")),
        prefix=st.sampled_from(("s3://b/", "s3://b/", "gs://c/it's {key}/")),
        condition=st.sampled_from(("", "", "", "", *CONDITIONS)),
        name=st.none() | st.sampled_from(("one", "One {name}", "it's")))


def with_names(schema: Schema) -> Schema:
    """Two collections have two names, which do not begin with an underscore."""
    taken: set[str] = set()
    tables = []
    for number, table in enumerate(schema.tables):
        if table.collection:
            name = table.collection.name or table.name
            if name in taken or name.startswith("_"):
                name = f"number {number}"
            taken.add(name)
            chosen = None if name == table.name else name
            table = replace(table, collection=replace(table.collection, name=chosen))
        tables.append(table)
    return replace(schema, tables=tuple(tables))


def with_parts(draw: st.DrawFn, schema: Schema) -> Schema:
    """What nothing refers to may be partitioned by what it refers to; it has no key then."""
    tables = list(schema.tables)
    for number, table in enumerate(tables):
        foreign = [each for each in schema.out_of(number) if not each.is_declared]
        if (foreign and not table.collection and not schema.into(number)
                and foreign[0].columns[0].kind.has_hash and draw(st.integers(0, 4)) == 0):
            tables[number] = replace(table, parts="reference")
    references = tuple(
        replace(each, is_not_valid=each.is_not_valid and not tables[each.table].parts)
        for each in schema.references)
    return Schema(tuple(tables), references)
