"""The storm, in short. `make storm` blows for as long as it is told to; see docs/proof.md."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from conftest import ROOT
from storm.__main__ import WORLDS, blow, line_of
from storm.blow import Storm
from storm.kills import BIG
from storm.sabotage import SABOTAGES

SECONDS = float(os.environ.get("BLOBGC_STORM_SECONDS", "60"))
SEED = int(os.environ.get("BLOBGC_STORM_SEED", "1"))


@pytest.fixture(scope="module")
def storms(plain_script: str) -> dict[str, Future[Storm]]:
    """Both worlds, side by side, each with a server of its own."""
    with ThreadPoolExecutor() as threads:
        return {world: threads.submit(blow, world, SEED, SECONDS) for world in WORLDS}


@pytest.mark.parametrize("world", [*WORLDS])
def test_a_storm_breaks_nothing(storms: dict[str, Future[Storm]], world: str) -> None:
    storm = storms[world].result()
    print(line_of(storm))
    assert storm.oracle.violations == []
    # It was one: things were deleted, refused and killed.
    assert storm.watcher.journals.told > 0
    assert storm.oracle.refusals
    assert {f"kill: {what}" for what in BIG} <= {*storm.oracle.counts}


def test_what_a_storm_must_find_can_be_taken_out(plain_script: str) -> None:
    runner = (ROOT / "blobgc" / "runner.py").read_text()
    for sabotage in SABOTAGES:
        text = runner if sabotage.of_runner else plain_script
        assert sabotage.apply(text) != text
