"""What the engine costs, as ratios within one run.

deletes  16 sessions delete rows that share 3 targets and keep their transactions open for 2 ms,
         with tracking and with the triggers disabled; rounds alternate.
review   100,000 due rows, half of them garbage, reviewed in batches of 1000 by one reviewer and by
         two at once, against a bare DELETE of the garbage from an equal table that nobody tracks;
         rounds alternate.

Run it with: make install && tests/with_server .venv/bin/python bench/engine.py
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg

SCHEMA = """
drop schema if exists bench cascade;
create schema bench;
create table bench.blob (digest bytea primary key, size bigint not null, media_type text not null);
create table bench.layer (
    manifest bigint not null,
    position integer not null,
    digest bytea not null references bench.blob,
    primary key (manifest, position)
);
create index on bench.layer (digest);
create table bench.manifest (
    id bigint primary key,
    config bytea references bench.blob
);
create index on bench.manifest (config);
create table bench.repository_blob (
    repository bigint not null,
    digest bytea not null references bench.blob on delete cascade,
    primary key (repository, digest)
);
create index on bench.repository_blob (digest);
"""

TRACK = """
select gc.track('bench.blob', url => $$'gs://bucket/' || encode(digest, 'hex')$$, size => 'size',
    owned => '{repository_blob}')
"""

CLIENT = """
select nextval('bench.n' || :client_id) as n \\gset
begin;
delete from bench.layer where manifest = :client_id * 1000000 + :n;
select pg_sleep(0.002);
commit;
"""


def connect() -> psycopg.Connection[tuple[object, ...]]:
    """A connection whose statements are transactions."""
    return psycopg.connect(autocommit=True)


def fill_shared(db: psycopg.Connection[tuple[object, ...]], clients: int, rows: int) -> None:
    """Layers of three shared blobs, each client's in a range of its own."""
    db.execute("truncate bench.layer")
    db.execute("select gc.untrack('blob') from gc.collections where name = 'blob'")
    db.execute("truncate bench.blob cascade")
    db.execute("insert into bench.blob select sha256(i::text::bytea), 1, 'x' "
               "from generate_series(1, 3) as i")
    db.execute("insert into bench.layer select c * 1000000 + m, p, sha256(p::text::bytea) "
               "from generate_series(0, %s - 1) as c, generate_series(1, %s) as m, "
               "generate_series(1, 3) as p", (clients, rows))
    for client in range(clients):
        db.execute(f"drop sequence if exists bench.n{client}")
        db.execute(f"create sequence bench.n{client}")
    db.execute(TRACK)
    db.execute("vacuum analyze bench.layer")


def deletes_per_second(clients: int, seconds: int) -> float:
    """What pgbench reports for the client script."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(CLIENT)
        script.flush()
        out = subprocess.run(
            ["pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j", "2", "-T", str(seconds),
             "-f", script.name], check=True, capture_output=True, text=True).stdout
    return float(next(line.split("=")[1].split()[0] for line in out.splitlines() if "tps" in line))


def bench_deletes(db: psycopg.Connection[tuple[object, ...]], rounds: int, seconds: int) -> None:
    """16 sessions and 3 targets, tracked and not."""
    ratios = []
    for _ in range(rounds):
        tps = {}
        for mode in ("disable", "enable"):
            fill_shared(db, 16, 20000)
            db.execute(f"alter table bench.layer {mode} trigger user")
            tps[mode] = deletes_per_second(16, seconds)
        ratios.append(tps["enable"] / tps["disable"])
        print(f"  untracked {tps['disable']:8.0f}/s   tracked {tps['enable']:8.0f}/s   "
              f"ratio {ratios[-1]:.2f}")
    print(f"deletes that share targets, tracked against untracked: {statistics.median(ratios):.2f} "
          f"({min(ratios):.2f} to {max(ratios):.2f}), aim at least 0.80")


def fill_review(db: psycopg.Connection[tuple[object, ...]], rows: int) -> None:
    """Blobs, each linked to a repository, of which every second is a layer of a manifest."""
    db.execute("insert into bench.blob select sha256(i::text::bytea), i, 'x' "
               "from generate_series(1, %s) as i", (rows,))
    db.execute("insert into bench.layer select i, 1, sha256(i::text::bytea) "
               "from generate_series(2, %s, 2) as i", (rows,))
    db.execute("insert into bench.repository_blob select 1, digest from bench.blob")
    db.execute("vacuum analyze bench.blob, bench.layer, bench.repository_blob")


def bare_delete(db: psycopg.Connection[tuple[object, ...]], rows: int) -> float:
    """Seconds that one DELETE of the garbage takes where nothing is tracked."""
    db.execute("select gc.untrack(name) from gc.collections")
    db.execute(SCHEMA)
    fill_review(db, rows)
    db.execute("checkpoint")
    begin = time.perf_counter()
    db.execute("delete from bench.blob as b where not exists "
               "(select from bench.layer as l where l.digest = b.digest) and not exists "
               "(select from bench.manifest as m where m.config = b.digest)")
    return time.perf_counter() - begin


def review_all() -> int:
    """One reviewer, until nothing is due: how many rows it deleted."""
    deleted = 0
    with connect() as db:
        while row := db.execute("select reviewed, deleted from gc.review(1000) "
                                "where reviewed > 0").fetchone():
            assert isinstance(row[1], int)
            deleted += row[1]
    return deleted


def reviews(db: psycopg.Connection[tuple[object, ...]], rows: int, reviewers: int) -> float:
    """Seconds until everything is reviewed."""
    db.execute("select gc.untrack(name) from gc.collections")
    db.execute(SCHEMA)
    db.execute(TRACK)
    db.execute("delete from gc.tombstones")
    fill_review(db, rows)
    db.execute("vacuum analyze gc.blob_review_queue, gc.tombstones")
    db.execute("checkpoint")
    begin = time.perf_counter()
    with ThreadPoolExecutor(reviewers) as pool:
        deleted = sum(f.result() for f in [pool.submit(review_all) for _ in range(reviewers)])
    seconds = time.perf_counter() - begin
    assert deleted == rows // 2, deleted
    return seconds


def bench_review(db: psycopg.Connection[tuple[object, ...]], rounds: int, rows: int) -> None:
    """Reviews in batches against one bare DELETE."""
    ratios: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        bare = bare_delete(db, rows)
        for reviewers, seen in ratios.items():
            seconds = reviews(db, rows, reviewers)
            seen.append(seconds / bare)
            print(f"  bare DELETE {bare:5.2f} s   reviews by {reviewers} {seconds:5.2f} s   "
                  f"ratio {seen[-1]:.2f}")
    for reviewers, seen in ratios.items():
        print(f"review by {reviewers} against a bare DELETE: {statistics.median(seen):.2f} "
              f"({min(seen):.2f} to {max(seen):.2f}), aim at most 1.50")


def main() -> int:
    """Both measurements in a database that is made for them."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--rows", type=int, default=100_000)
    args = parser.parse_args()
    with connect() as db:
        db.execute("create extension if not exists blobgc")
        db.execute("update gc.settings set jitter = '0'")
        db.execute("insert into gc.review_after_defaults values ('blob_insert', '0') "
                   "on conflict do nothing")
        db.execute(SCHEMA)
        bench_deletes(db, args.rounds, args.seconds)
        bench_review(db, args.rounds, args.rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
