"""The storm, in short. `make storm` blows for as long as it is told to; see docs/proof.md."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from cluster import Cluster, cluster_of_its_own
from storm.__main__ import WORLDS, blow, line_of
from storm.blow import SETTINGS

# Not in make test yet: a deadlock that is known is sometimes met (docs/proof.md).
pytestmark = pytest.mark.skipif("BLOBGC_STORM" not in os.environ, reason="make storm")

SECONDS = float(os.environ.get("BLOBGC_STORM_SECONDS", "12"))
SEED = int(os.environ.get("BLOBGC_STORM_SEED", "1"))


@pytest.fixture(scope="module")
def cluster(plain_script: str) -> Iterator[Cluster]:
    with cluster_of_its_own(*SETTINGS, name="storm") as private:
        yield private


@pytest.mark.parametrize("world", [*WORLDS])
def test_a_storm_breaks_nothing(cluster: Cluster, world: str) -> None:
    storm = blow(cluster, world, SEED, SECONDS)
    print(line_of(storm))
    assert storm.oracle.violations == []
    # It was one: things were deleted, refused and killed.
    assert storm.watcher.journals.told > 0
    assert storm.oracle.refusals and storm.oracle.kills() > 0
