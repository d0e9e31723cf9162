"""Blow, and say what came of it. PYTHONPATH=tests python -m storm, inside tests/with_server."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from storm.application import Application
from storm.blow import Storm
from storm.registry import Registry
from storm.sabotage import NOTHING, SABOTAGES, Sabotage
from storm.world import World

WORLDS: dict[str, type[World]] = {"registry": Registry, "application": Application}
LONGEST = 120.0  # Seconds in which a sabotage must be noticed.


def blow(world: str, seed: int, seconds: float, sabotage: Sabotage = NOTHING) -> Storm:
    with tempfile.TemporaryDirectory(prefix="storm.") as folder:
        storm = Storm(Path(folder), WORLDS[world], seed, sabotage)
        try:
            storm.run(seconds)
        except SystemExit:
            print(f"ended before its time: {line_of(storm)}", flush=True)
            raise
        finally:
            storm.clear_away()
    return storm


def line_of(storm: Storm) -> str:
    oracle = storm.oracle
    refusals = ", ".join(f"{state} {number}" for state, number in sorted(oracle.refusals.items()))
    kills = ", ".join(f"{what.removeprefix('kill: ')} {number}"
                      for what, number in sorted(oracle.counts.items()) if what.startswith("kill"))
    return (f"{type(storm.world).__name__.lower()}, seed {storm.seed}, {storm.blown:.0f} s: "
            f"{oracle.operations()} operations, {oracle.kills()} kills ({kills}), "
            f"{storm.watcher.journals.told} objects deleted, "
            f"{sum(oracle.refusals.values())} refusals ({refusals}), "
            f"{len(oracle.violations)} violations")


def line_of_operations(storm: Storm) -> str:
    return "    " + ", ".join(f"{what} {number}" for what, number in sorted(
        storm.oracle.counts.items()) if not what.startswith("kill"))


def try_sabotage(sabotage: Sabotage, seed: int) -> bool:
    storm = blow(sabotage.world, seed, LONGEST, sabotage)
    first_at = storm.oracle.first_at
    if first_at is None or first_at > storm.begun + LONGEST:
        print(f"NOT NOTICED: {sabotage.name} ({line_of(storm)})", flush=True)
        return False
    print(f"{sabotage.name}: {first_at - storm.begun:.1f} s, {storm.oracle.violations[0]}",
          flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="storm", description=__doc__)
    parser.add_argument("--world", choices=[*WORLDS], help="both, unless one is named")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sabotage", help="the name of one, or all: it must be noticed")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # Servers are cleared away.
    worlds = [options.world] if options.world else [*WORLDS]
    is_good = True
    if options.sabotage:
        for sabotage in SABOTAGES:
            if options.sabotage in ("all", sabotage.name) and sabotage.world in worlds:
                is_good &= try_sabotage(sabotage, options.seed)
        return not is_good
    for world in worlds:
        storm = blow(world, options.seed, options.seconds)
        print(line_of(storm), line_of_operations(storm), sep="\n", flush=True)
        for violation in storm.oracle.violations:
            print(f"    {violation}", flush=True)
            is_good = False
    return not is_good


if __name__ == "__main__":
    sys.exit(main())
