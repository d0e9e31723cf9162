"""How long it takes to look for references without a foreign key, however big the tables are."""

import time
from collections.abc import Iterator

from harness import (
    Comparison,
    Connection,
    Scale,
    alternate,
    connect,
    drop_database,
    execute,
    new_database,
    ratios,
)

TABLES = 299
LIMIT = 10.0

SCHEMA = """
create extension blobgc;
create table file (id bigint primary key, digest bytea not null unique);
insert into file select n, sha256(n::text::bytea) from generate_series(1, 10000) as n;
select gc.track('file', condition => 'false');
"""

TABLE = """
create table t{n} (
    id bigint primary key, name text, note text, owner_id bigint, file_id bigint, data jsonb,
    created_at timestamptz, number integer, hash bytea, other_ids bigint[]
);
insert into t{n}
select i, 'name', 'note', i, i, jsonb_build_object('file', i, 'k', 'v'), now(), i,
    sha256(i::text::bytea), array[i]
from generate_series(1, 500) as i;
"""

BIG = """
create table big (id bigint, file_id integer);
insert into big select i, i % 20000 from generate_series(1, {rows}) as i;
"""


def in_a_large_schema(scale: Scale) -> Iterator[Comparison]:
    """gc.suspects in a schema of 300 tables of ten columns, of which three look like references.

    Against ten seconds, which is what a person may have to wait; and, with 10^7 rows in one of the
    tables, against the same with 10^4 there: what is read is bounded, so the size must not matter.
    """
    rows = scale.of(10_000_000, 1_000_000)
    names = {rows: prepare("bench_suspects", rows), 10_000: prepare("bench_suspects_few", 10_000)}
    found = {}
    with connect(names[rows]) as many, connect(names[10_000]) as few:
        found = alternate(scale.of(3, 2), {
            "many": lambda: seconds(many),
            "few": lambda: seconds(few),
        })
    for name in names.values():
        drop_database(name)
    figures = f"{found['many'][-1]:.1f} s"
    yield Comparison(f"suspects in {TABLES + 1} tables, {rows:,} rows in one", "10 s",
                     [s / LIMIT for s in found["many"]], at_most=1, figures=figures)
    yield Comparison(f"suspects, {rows:,} rows in one table", "10,000",
                     ratios(found["many"], found["few"]), at_most=1.2, figures=figures)


def prepare(name: str, rows: int) -> str:
    with connect(new_database(name)) as db:
        execute(db, SCHEMA)
        for n in range(TABLES):
            execute(db, TABLE.format(n=n))
        execute(db, BIG.format(rows=rows))
        db.execute("vacuum analyze")
    return name


def seconds(db: Connection) -> float:
    begin = time.monotonic()
    found = db.execute("select count(*) from gc.suspects('file') where strength = 'strong'")
    # In each table a column, a field of JSON and a digest; and the column of the big one.
    assert found.fetchone() == (3 * TABLES + 1,)
    return time.monotonic() - begin
