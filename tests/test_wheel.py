"""The wheel in an environment that has nothing else: what the README says, and what is in it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, Database, NewDatabase, execute, value
from test_cli import SETUP
from test_docs import follow, fresh

import blobgc

__all__ = ["fresh"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, ROOT],
                   check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of an empty environment."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    return environment / "bin"


def test_the_readme_leads_from_nothing_to_a_collected_bucket(
    wheel: Path, programs: Path, fresh: Database, tmp_path: Path
) -> None:
    """The first screen in a minute. The wheel stands for what a clone would be built into."""
    text = (ROOT / "README.md").read_text()
    assert text.count("$ pip install . ") == 1
    text = text.replace("$ pip install . ", f"$ pip install -q {wheel} ")
    first, others = text.split("\n## The application deletes", 1)
    document = tmp_path / "README.md"
    document.write_text(first)
    begin = time.monotonic()
    assert follow(document, fresh, tmp_path, programs) == 5
    assert time.monotonic() - begin < 60
    left = {path.name for path in (tmp_path / "bucket").iterdir()}
    assert left - {".blobgc", ".blobgc-spare"} == {"1"}
    document.write_text(others)
    follow(document, fresh, tmp_path, programs)


def test_the_wheel_has_all_that_it_needs(
    wheel: Path, programs: Path, new_database: NewDatabase, tmp_path: Path
) -> None:
    """Also where the server has no extension files."""
    store, database = tmp_path / "store", new_database()

    def run(*arguments: str | Path, code: int = 0) -> str:
        found = subprocess.run(
            [programs / arguments[0], *arguments[1:]], env=database.environment,
            cwd=tmp_path, capture_output=True, text=True, check=False)
        assert found.returncode == code, found.stderr
        return found.stdout + found.stderr

    run("pip", "install", "-q", "--disable-pip-version-check", wheel)
    assert run("blobgc", "--version") == f"blobgc {blobgc.__version__}\n"
    assert "installed blobgc" in run("blobgc", "install", "--plain")
    store.mkdir()
    (store / "1").write_text("x")
    with database.connect() as conn:
        execute(conn, SETUP.replace("create extension blobgc;", "").replace(
            "s3://bucket/", f"file://{store}/"))
        execute(conn, "insert into file values (1)")
        assert "1 objects: deleted" in run("blobgc", "run", "--once", "--store", f"file://{store}")
        assert not (store / "1").exists() and value(conn, "select count(*) from file") == 0
    assert "file" in run("blobgc", "status")
    run("python", "-c", "from blobgc import runner; runner.Runner")
    assert "No module named 'runner'" in run("python", "-c", "import runner", code=1)
    assert "pip install 'blobgc[page]'" in run("blobgc", "page", code=2)
    said = run("blobgc", "run", "--store", "s3://bucket/", code=2)
    assert "pip install 'blobgc[s3]'" in said
    run("python", "-c", "from importlib.resources import files; "
        "(files('blobgc') / 'page/templates/overview.html').read_text()")
