"""Measure blobgc against what people would use instead, and against the limit.

Runs the named benchmarks, or all of them, on the server that libpq's environment variables name
(make bench starts one of its own), and writes bench/RESULTS.md and bench/results.svg from what
they found. With --quick, smaller data and fewer rounds; nothing but the terminal is written then.
"""

import argparse
import time

from cases import (
    contention,
    declared,
    deletes,
    finding,
    inserts,
    latency,
    memory,
    offline,
    pushes,
    queues,
    reconcile,
    retention,
    reviews,
    scale,
    serving,
    skew,
    suspects,
    undo,
)
from harness import Benchmark, Scale, load, save
from report import write_report

BENCHMARKS: dict[str, Benchmark] = {
    "pushes": pushes.one_by_one,
    "bulk": pushes.in_bulk,
    "inserts": inserts.inserts,
    "contention": contention.deletes,
    "reviews": reviews.on_loopback,
    "network": reviews.over_a_network,
    "scale": scale.growing,
    "partitions": scale.partitioned,
    "skew": skew.shared,
    "finding": finding.garbage,
    "offline": offline.collection,
    "serving": serving.throughput,
    "latency": latency.of_pushes,
    "deletes": deletes.deletes,
    "declared": declared.references,
    "queues": queues.health,
    "memory": memory.of_the_runner,
    "reconcile": reconcile.of_an_inventory,
    "suspects": suspects.in_a_large_schema,
    "retention": retention.of_tags,
    "undo": undo.reviews,
    "restores": undo.restores,
}

# The daily subset does without.
LONG = {"network", "offline", "serving"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="BENCHMARK", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="the daily subset, in five minutes")
    parser.add_argument("--report", action="store_true", help="only write the report again")
    options = parser.parse_args()
    if unknown := set(options.names) - BENCHMARKS.keys():
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    usual = [name for name in BENCHMARKS if not (options.quick and name in LONG)]
    names = [] if options.report else options.names or usual
    for name in names:
        print(f"# {name}", flush=True)
        begin = time.monotonic()
        found = []
        for comparison in BENCHMARKS[name](Scale(options.quick)):
            print(comparison, flush=True)
            found.append(comparison)
        print(f"({time.monotonic() - begin:.0f} s)", flush=True)
        if not options.quick:
            save(name, found)
    if not options.quick:
        write_report({name: (benchmark, load(name)) for name, benchmark in BENCHMARKS.items()})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
