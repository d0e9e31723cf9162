"""Undo: what it costs to keep deleted rows, and how fast they come back."""

import time
from collections.abc import Iterator
from functools import partial

from harness import (
    Comparison,
    Scale,
    alternate,
    connect,
    drop_database,
    durable,
    execute,
    new_database,
    ratios,
)
from registries import BLOBGC, copy_of, count, create_registry

from cases.reviews import queued_registries, review_all, review_until_done

WITHOUT, WITH = "without undo", "with undo"

# Files with an object each, all of them deleted by mistake, and a copy to insert them from.
FILES = """
create schema app;
create table app.file (
    id bigint primary key, bytes bigint not null, name text not null,
    created_at timestamptz not null default now()
);
create table app.post (id bigint primary key, file_id bigint references app.file);
create index on app.post (file_id);
update gc.settings set undo = '1 day';
select count(*) from gc.track('app.file', url => $$'s3://bucket/' || id$$, size => 'bytes');
insert into app.file select n, 1000, 'file ' || n from generate_series(1, {rows}) as n;
create table app.copy as table app.file;
delete from app.file;
"""


def reviews(scale: Scale) -> Iterator[Comparison]:
    """The 100,000 blobs of the benchmark of reviews, each with a link, every second one garbage,
    are reviewed by one session: with an undo window of a day, so that each row that goes is kept,
    and without one.
    """
    rows = scale.of(100_000, 10_000)
    with queued_registries(rows) as made, durable():
        kept = new_database("bench_kept", made[BLOBGC])
        with connect(kept) as db:
            execute(db, "update gc.settings set undo = '1 day'")
            execute(db, "select gc._generate(name) from gc.collections")
            execute(db, "vacuum analyze")
        took = alternate(scale.rounds, {
            WITHOUT: partial(review_all, made[BLOBGC], rows, 1, {}),
            WITH: partial(review_kept, kept, rows)})
        drop_database(kept)
    yield Comparison(f"review of {rows:,} blobs with undo", WITHOUT,
                     ratios(took[WITH], took[WITHOUT]), at_most=1.25)


def review_kept(template: str, rows: int) -> float:
    """Seconds a blob, as in the other reviews; every row that went is kept."""
    with copy_of(template) as database:
        begin = time.perf_counter()
        review_until_done(database, {})
        seconds = time.perf_counter() - begin
        assert count(database, "gc.tombstones") == rows // 2
        assert count(database, "gc.trash_rows") == rows
    return seconds / rows


def restores(scale: Scale) -> Iterator[Comparison]:
    """10,000 files that were deleted by mistake come back: by gc.restore over gc.trash, one
    statement; against inserting the same rows three times from a copy, which has to take back their
    tombstones as well.
    """
    rows = scale.of(10_000, 2_000)
    template = create_registry("bench_undo")
    try:
        with connect(template) as db:
            execute(db, FILES.format(rows=rows))
            execute(db, "vacuum analyze")
        took = alternate(scale.rounds, {
            "restore": partial(put_back, template, rows,
                               "select gc.restore(collection, key) from gc.trash"),
            "insert": partial(put_back, template, rows,
                              "insert into app.file select * from app.copy")})
    finally:
        drop_database(template)
    yield Comparison(f"restoring {rows:,} rows", "inserting them",
                     ratios(took["restore"], took["insert"]), at_most=3)


def put_back(template: str, rows: int, statement: str) -> float:
    """Seconds."""
    with copy_of(template) as database:
        begin = time.perf_counter()
        with connect(database) as db:
            execute(db, statement)
        seconds = time.perf_counter() - begin
        assert count(database, "app.file") == rows
    return seconds
