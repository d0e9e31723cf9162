"""The storm, in short. `make storm` blows for as long as it is told to; see docs/proof.md."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from storm.__main__ import WORLDS, blow, line_of
from storm.blow import Storm

SECONDS = float(os.environ.get("BLOBGC_STORM_SECONDS", "30"))
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
    assert storm.oracle.refusals and storm.oracle.kills() > 0
