"""What docker/ holds, as far as it can be checked without an engine."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

import runner

DOCKER = ROOT / "docker"


def load(name: str) -> Any:
    return yaml.safe_load((DOCKER / name).read_text())


def accepts(words: list[str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the runner understands this command line."""
    monkeypatch.setattr(runner, "run", lambda options: 0 if options.store else 1)
    return runner.main(words) == 0


def test_compose_brings_up_everything() -> None:
    services = load("compose.yaml")["services"]
    assert set(services) == {"database", "store", "runner", "prometheus", "grafana", "test"}
    for service in services.values():
        assert ("image" in service) != ("build" in service)
        assert set(service.get("depends_on", {})) <= set(services)
        if "image" in service:
            assert re.search(r":v?\d", service["image"]), "an image has a version"
        for volume in service.get("volumes", []):
            source, target, mode = volume.split(":")
            assert (DOCKER / source).exists(), volume
            assert target.startswith("/") and mode == "ro"
    assert "pg_prove" in services["test"]["command"]
    assert services["test"]["profiles"] == ["test"], "it does not start with the others"


def test_builds_name_stages_and_files_that_are_there() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\w+)", text, re.M))
    services = load("compose.yaml")["services"]
    assert {service["build"]["target"] for service in services.values() if "build" in service} == (
        stages
    )
    for line in re.findall(r"^COPY (.+)$", text, re.M):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source


def test_the_dockerfile_is_clean() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    found = subprocess.run(
        [hadolint, DOCKER / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert found.stdout + found.stderr == ""


def test_prometheus_asks_the_runner_where_it_listens() -> None:
    command = load("compose.yaml")["services"]["runner"]["command"].split()
    port = command[command.index("--metrics-port") + 1]
    (job,) = load("prometheus.yaml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"runner:{port}"]}]
    address = command[command.index("--metrics-address") + 1]
    assert address == "0.0.0.0", "Prometheus comes from another container"


def test_grafana_finds_the_dashboard_and_its_source() -> None:
    (source,) = load("grafana/datasources.yaml")["datasources"]
    dashboard = json.loads((DOCKER / "grafana/dashboard.json").read_text())
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
    (provider,) = load("grafana/dashboards.yaml")["providers"]
    mounted = [
        volume.split(":")[1] for volume in load("compose.yaml")["services"]["grafana"]["volumes"]
    ]
    assert f"{provider['options']['path']}/blobgc.json" in mounted
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_the_runner_understands_how_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    compose = load("compose.yaml")["services"]["runner"]["command"].split()
    job = load("cronjob.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    text = (DOCKER / "blobgc.service").read_text()
    unit.read_string(text)
    options = re.findall(r'BLOBGC_OPTIONS="(.+?)"', text)[0]
    program, *words = shlex.split(unit["Service"]["ExecStart"].replace("$BLOBGC_OPTIONS", options))
    assert program.endswith("/blobgc")
    for line in (compose, job["args"], words):
        assert accepts(line, monkeypatch), line
    assert unit["Service"]["RestartPreventExitStatus"] == "2"
