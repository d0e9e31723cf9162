"""The runner as a process: memory, metrics, and what a person sees."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest
from cluster import Cluster
from conftest import (
    ROOT,
    Connection,
    execute,
    rows,
    value,
    wait_until,
)
from prometheus_client.parser import text_string_to_metric_families
from stores import free_port
from test_crash import cluster
from worlds import (
    Process,
    World,
    bury_url,
    collect,
    conn,
    crash_template,
    crash_world,
    file_world,
    new_world,
    start,
    template,
    tombstones,
)

__all__ = ["cluster", "conn", "crash_template", "crash_world", "file_world", "new_world",
           "template"]


def test_memory_stays_flat_however_many_tombstones_there_are(
    file_world: World, conn: Connection
) -> None:
    """BLOBGC_TOMBSTONES=1000000: the full size."""
    total = int(os.environ.get("BLOBGC_TOMBSTONES", "30000"))
    conn.execute("insert into gc.tombstones (collection, key, url, due_at, wait_for) "
                 "select 'file', n::text, %s || n, now(), '0' from generate_series(1, %s) as n",
                 [file_world.objects.prefix, total])
    execute(conn, "analyze gc.tombstones")
    with Process(file_world, "--once") as process:
        said = process.process.stderr
        assert said is not None
        for _ in said:
            pass
        _, status, usage = os.wait4(process.process.pid, 0)
        process.process.returncode = os.waitstatus_to_exitcode(status)
    assert process.process.returncode == 0
    assert usage.ru_maxrss < 150 * 1024, f"{usage.ru_maxrss} kB"
    assert tombstones(conn) == 0
    assert value(conn, "select sum(objects) from gc.totals") == total


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def failing(conn: Connection) -> int:
    return int(value(conn, "select count(*) from gc.tombstones where failures > 0"))


def test_metrics_are_what_prometheus_reads(file_world: World, conn: Connection) -> None:
    port = free_port()
    file_world.bury(conn, range(1, 4))
    bury_url(conn, 9, file_world.objects.prefix + "../x")
    with Process(file_world, "--metrics-port", str(port)) as process:
        # Not in the same moment: its address shows no key, so older transactions hold it up.
        wait_until(lambda: tombstones(conn) == failing(conn) == 1, "all to go but what is refused")
        code, text = get(port, "/metrics")
        assert code == 200
        lines = text.splitlines()
        assert 'blobgc_objects_deleted_total{collection="file"} 3.0' in lines
        assert 'blobgc_tombstones_failing{collection="file",store="file://"} 1.0' in lines
        assert "blobgc_runner_objects_deleted_total 3.0" in lines
        assert "blobgc_runner_bytes_deleted_total 30.0" in lines
        assert any(re.fullmatch(r"blobgc_runner_objects_failed_total [1-9]\d*.0", line)
                   for line in lines)
        for line in lines:
            assert re.fullmatch(r"# (HELP|TYPE) blobgc_\w+ \S.*|"
                                r'blobgc_\w+(\{(\w+="[^"]*",?)+\})? [0-9.e+-]+', line), line
        typed = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        assert len(typed) == len(set(typed)), "each name is explained once"
        served = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
        dashboard = (ROOT / "docker" / "grafana" / "dashboard.json").read_text()
        asked = set(re.findall(r"blobgc_\w+", dashboard))
        assert len(asked) > 10 and asked <= served, "the dashboard asks for what there is"
        assert get(port, "/healthz")[0] == 200
        process.terminate()


def test_a_collection_with_any_name_has_metrics(file_world: World, conn: Connection) -> None:
    name = 'a"b\\c}d,e="f {x} # HELP'
    execute(conn, "create table app.other (id integer primary key)")
    rows(conn, "select gc.track('app.other', name => %s, condition => 'true')", name)
    port = free_port()
    with Process(file_world, "--metrics-port", str(port)) as process:
        wait_until(lambda: is_healthy(port), "the runner to be well")
        families = {family.name: family for family in text_string_to_metric_families(
            get(port, "/metrics")[1])}
        process.terminate()
    samples = families["blobgc_queue_entries"].samples
    assert {sample.labels["collection"] for sample in samples} == {"file", name}


def addresses_of(port: int) -> set[str]:
    """Where something of this machine listens on that port."""
    found = subprocess.run(["ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True,
                           check=True).stdout
    return {line.split()[3].rpartition(":")[0] for line in found.splitlines()}


@pytest.mark.parametrize(("arguments", "address"), [
    ([], "127.0.0.1"), (["--metrics-address", "0.0.0.0"], "0.0.0.0"),
    (["--metrics-address", "::1"], "[::1]"),
])
def test_metrics_are_served_on_loopback_unless_told_otherwise(
    file_world: World, arguments: list[str], address: str
) -> None:
    port = free_port()
    with Process(file_world, "--metrics-port", str(port), *arguments) as process:
        wait_until(lambda: addresses_of(port) == {address}, "the runner to listen there")
        process.terminate()


@pytest.mark.parametrize("arguments", [
    ["--metrics-port", "0"], ["--metrics-port", "99999"],
    ["--metrics-port", "9187", "--metrics-address", "256.0.0.1"],
], ids=" ".join)
def test_a_port_or_address_that_is_none_is_said(file_world: World, arguments: list[str]) -> None:
    code, said = start(file_world, *arguments)
    assert code == 2
    assert said.startswith("blobgc: ") and len(said.splitlines()) == 1


def test_many_requests_for_metrics_are_one_query_by_one_connection(
    file_world: World, conn: Connection
) -> None:
    port = free_port()
    execute(conn, "alter view gc.metrics rename to real_metrics; "
            "create sequence app.asked; "
            "create view gc.metrics as select m.* from gc.real_metrics as m, "
            "(select nextval('app.asked'), pg_sleep(1) offset 0) as slow")
    most = 0
    with Process(file_world, "--metrics-port", str(port)) as process:
        wait_until(lambda: is_healthy(port), "the runner to be well")
        with ThreadPoolExecutor(100) as pool:
            asked = [pool.submit(get_or_nothing, port, "/metrics") for _ in range(100)]
            while not all(one.done() for one in asked):
                most = max(most, value(conn, "select count(*) from pg_stat_activity "
                                       "where datname = current_database()"))
                time.sleep(0.05)
        assert most <= 3 + 1 + 1, "the runner's, one for all of them, and the test's"
        assert value(conn, "select last_value from app.asked") == 1
        answers = [one.result() for one in asked]
        assert sum("blobgc_queue_entries" in answer for answer in answers) >= 16
        assert "blobgc_queue_entries" in get(port, "/metrics")[1]
        process.terminate()


def get_or_nothing(port: int, path: str) -> str:
    try:
        return get(port, path)[1]
    except OSError:  # Who asks together with too many others is not answered.
        return ""


def test_clients_that_say_nothing_keep_nobody_from_the_metrics(
    file_world: World, conn: Connection
) -> None:
    port = free_port()
    arguments = ("--metrics-port", str(port))
    with contextlib.ExitStack() as idle, Process(file_world, *arguments) as process:
        wait_until(lambda: is_healthy(port), "the runner to be well")
        for number in range(500):
            client = idle.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: " if number % 2 else b"")
        begin = time.monotonic()
        assert get(port, "/metrics")[0] == get(port, "/healthz")[0] == 200
        assert time.monotonic() - begin < 3
        folder = Path(f"/proc/{process.process.pid}/fd")
        assert len(list(folder.iterdir())) < 60
        wait_until(lambda: len(list(folder.iterdir())) < 20, "all of them to be closed")
        file_world.bury(conn, range(1, 4))
        wait_until(lambda: tombstones(conn) == 0, "the objects to go")
        process.terminate()


def test_health_is_lost_with_the_database(crash_world: World, cluster: Cluster) -> None:
    port = free_port()
    with Process(crash_world, "--metrics-port", str(port)):
        wait_until(lambda: is_healthy(port), "the runner to be well")
        cluster.stop()
        try:
            wait_until(lambda: get(port, "/healthz")[0] == 503, "the runner to notice")
            assert get(port, "/metrics")[0] == 200
        finally:
            cluster.start()
        wait_until(lambda: is_healthy(port), "the runner to be well again")


def is_healthy(port: int) -> bool:
    try:
        return get(port, "/healthz")[0] == 200
    except OSError:
        return False


def test_logs_are_lines_of_json_where_that_is_wanted(file_world: World, conn: Connection) -> None:
    file_world.write(conn, range(1, 4))
    records = [json.loads(line) for line in collect(file_world, "--log-json").splitlines()]
    assert {"version": "0.2.0", "level": "info"}.items() <= records[0].items()
    assert {"collection": "file", "reviewed": 3, "deleted": 3}.items() <= records[1].items()
    assert {"objects": 3, "fate": "deleted", "store": file_world.objects.prefix}.items() <= (
        records[2].items())
    for record in records:
        assert datetime.fromisoformat(record["time"]).tzinfo, "a time has its zone"


def test_urls_are_logged_where_that_is_wanted(file_world: World, conn: Connection) -> None:
    file_world.bury(conn, range(1, 3))
    bury_url(conn, 9, file_world.objects.prefix + "\x1b[2J")
    execute(conn, "update gc.settings set backoff = '1 hour', backoff_limit = '1 hour'")
    said = collect(file_world, "-v", code=1)
    assert f"DEBUG {file_world.objects.prefix}2: deleted" in said
    assert "\x1b" not in said, "nothing reaches the terminal raw"
    assert f"{file_world.objects.prefix}\\x1b[2J: refused" in said
    file_world.bury(conn, range(3, 5))
    assert f"{file_world.objects.prefix}3" not in collect(file_world)


def test_a_terminal_shows_a_bar_with_rows_objects_and_bytes(
    file_world: World, conn: Connection
) -> None:
    file_world.write(conn, range(1, 31))
    ours, theirs = pty.openpty()
    with Process(file_world, "--once", stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # That is how a terminal ends.
            while part := os.read(ours, 1000):
                shown += part
        process.process.wait(timeout=10)
    os.close(ours)
    assert re.search("━{30}\\S* \\S*30 rows, 30 objects, 0.0 MB", shown.decode()), shown
