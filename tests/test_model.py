"""The models of the protocols, in short. `tests/model/check --long` has more; see docs/proof.md."""

from __future__ import annotations

import subprocess

from conftest import ROOT


def test_the_models_say_what_is_expected_of_every_configuration() -> None:
    done = subprocess.run([ROOT / "tests" / "model" / "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
