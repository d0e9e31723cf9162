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
from conftest import ROOT, NewDatabase, value, wait_until
from stores import GoogleServer

from blobgc import cli
from blobgc.commands import run

DOCKER = ROOT / "docker"


def load(name: str) -> Any:
    return yaml.safe_load((DOCKER / name).read_text())


def accepts(words: list[str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the runner understands this command line."""
    monkeypatch.setattr(run, "run", lambda options: 0 if options.store else 1)
    return cli.main(words) == 0


def test_compose_brings_up_everything() -> None:
    services = load("compose.yaml")["services"]
    assert set(services) == {
        "application", "database", "store", "runner", "prometheus", "grafana", "test"}
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


def test_the_application_of_compose_leaves_something_to_collect(
    new_database: NewDatabase, google_server: GoogleServer
) -> None:
    """And the runner collects it, from a store that knows no batches."""
    services = load("compose.yaml")["services"]
    database = new_database()
    database.psql((DOCKER / "init.sql").read_text())
    environment = database.environment | {
        "STORAGE_EMULATOR_HOST": google_server.url, "KEEP_POSTS": "1 second"}
    words = services["runner"]["command"].split()
    store = words[words.index("--store") + 1]
    application = subprocess.Popen([sys.executable, DOCKER / "application.py"], env=environment)
    runner = None
    try:
        with database.connect() as conn:
            wait_until(lambda: bool(value(conn, "select to_regclass('post') is not null")),
                       "its tables")
            wait_until(lambda: value(conn, "select count(*) from file") > 10, "its files")
            runner = subprocess.Popen(
                [sys.executable, ROOT / "runner.py", "run", "--store", store], env=environment,
                stderr=subprocess.DEVNULL)
            wait_until(lambda: value(conn, "select coalesce(sum(objects), 0) from gc.totals") > 5,
                       "objects to be deleted", 40)
            assert application.poll() is None and runner.poll() is None
    finally:
        for process in (application, runner):
            if process:
                process.kill()
                process.wait()


def test_builds_name_stages_and_files_that_are_there() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\w+)", text, re.M))
    services = load("compose.yaml")["services"]
    assert {service["build"]["target"] for service in services.values() if "build" in service} == (
        stages
    )
    for line in re.findall(r"^COPY (.+)$", text, re.M):
        if line.startswith("--from="):
            assert line.split()[0].removeprefix("--from=") in stages
            continue
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


def test_the_dashboard_counts_once_what_every_runner_reports() -> None:
    """Each serves what the database says. Only its own counters are added up."""
    dashboard = json.loads((DOCKER / "grafana/dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    of_database = [text for text in asked if "blobgc_runner_" not in text]
    assert len(of_database) > 10
    for text in of_database:
        assert re.search(r"max by \([a-z, ]+\) \((rate\()?blobgc_\w+", text), text


def test_the_unit_can_write_files_and_read_credentials_at_home() -> None:
    text = (DOCKER / "blobgc.service").read_text()
    assert re.search("^User=blobgc$", text, re.M) and "DynamicUser" not in text
    assert re.search("^ProtectSystem=full$", text, re.M), "strict: no folder can be written to"
    assert re.search("^ProtectHome=read-only$", text, re.M)


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
