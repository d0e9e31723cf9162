"""The page: what it shows and to whom, in a real browser; and that whatever a row says is text."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from conftest import ROOT, Connection, Database, execute, rows, value, wait_until
from stores import free_port

from blobgc.page import charts, facts, is_allowed, make_page
from blobgc.serving import Cached

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# As /usr/bin/chromium wants it without a screen, without a network, and as root.
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync"]

# What somebody could write into a key: markup, what turns or hides text, what moves a cursor.
HOSTILE = [
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "txt.\u202egpj.exe\u202c \u2066hidden\u2069",
    "\x1b[2Jbell\x07\ttab\u200b{{ 7 * 7 }}</title>",
]
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]")

HOSTILE_APP = """
create table note (name text primary key, bytes bigint not null default 5);
select gc.track('note', url => $$'s3://notes/' || name$$, size => 'bytes', condition => 'true',
    label => $$'<b>' || name || '</b>'$$, name => '<i>note</i> & co');
"""


def url_of(port: int, path: str = "/", **query: str) -> str:
    words = f"?{urllib.parse.urlencode(query)}" if query else ""
    return f"http://127.0.0.1:{port}{path}{words}"


def get(port: int, path: str = "/", host: str | None = None, method: str = "GET", **query: str
        ) -> tuple[int, str, dict[str, str]]:
    asked = urllib.request.Request(url_of(port, path, **query), method=method)
    if host is not None:
        asked.add_header("Host", host)
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def start_page(database: Database, user: str, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, ROOT / "runner.py", "page", "--port", str(port), *arguments],
        env=database.environment | {"PGUSER": user}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert f"is at http://127.0.0.1:{port}/" in line, line
    return process, port


@pytest.fixture(scope="module")
def registry() -> Iterator[Database]:
    """A busy one, with a table of notes whose keys are hostile; made once."""
    name = f"blobgc_page_{os.getpid()}"
    database = Database(name, os.environ["PGHOST"], os.environ["PGPORT"], os.environ["PGUSER"])
    with psycopg.connect(autocommit=True) as conn:
        execute(conn, f"create database {name}")
        execute(conn, f"create role {name} login; create role {name}_runner login")
    try:
        database.run("psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-v", "store=s3://acme-registry/images",
                     "-f", ROOT / "tests/busy_registry.sql")
        with database.connect() as conn:
            execute(conn, f"select gc.grant_viewer('{name}'), gc.grant_runner('{name}_runner')")
        yield database
    finally:
        with psycopg.connect(autocommit=True) as conn:
            execute(conn, f"drop database {name} with (force)")
            execute(conn, f"drop role {name}; drop role {name}_runner")


@pytest.fixture(scope="module")
def conn(registry: Database) -> Iterator[Connection]:
    with registry.connect() as conn:
        yield conn


@pytest.fixture(scope="module")
def port(registry: Database) -> Iterator[int]:
    """Where a viewer's page is."""
    process, port = start_page(registry, registry.name)
    yield port
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=CHROMIUM)
        yield started
        started.close()


def text_of(html: str) -> str:
    """What is between tags, with single spaces."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


# What it shows


def test_the_page_shows_what_the_database_says(port: int, conn: Connection) -> None:
    status, html, _ = get(port)
    assert status == 200
    shown = text_of(html)
    for name, stages in (("blob", 6), ("manifest", 6), ("repository", 6)):
        life = rows(conn, "select stage, rows from gc.life() where collection = %s", name)
        assert len(life) == stages
        numbers = " ".join(rf"{stage} {charts.compact(number)} \S[^a-z]*[A-Za-z]?\w*"
                           for stage, number in life)
        assert re.search(numbers, shown), (name, shown)
    assert "AccessDenied: explicit deny in a bucket policy" in shown
    assert "ReadTimeoutError: no answer within 10 s" in shown
    assert "gc-1.acme.example" in shown and "gc-2.acme.example" in shown
    assert re.search("repository reviews postgres moving labs/ to another bucket", shown)
    assert re.search("pin .*customer escalation", shown), "who pinned what"
    days = re.findall(r"<title>(\d{4}-\d\d-\d\d), blob: ", html)
    assert len(set(days)) == facts.DAYS
    assert re.search(r"half of the objects within \d+ h, 95 % within \d+ h", html)


def test_live_bytes_are_about_what_they_are(conn: Connection) -> None:
    (live,) = rows(conn, "select rows, bytes from gc.life() where (collection, stage) = "
                   "('blob', 'live')")
    assert live == rows(conn, "select count(*), round(avg(size) * count(*)) from registry.blobs")[0]


@pytest.mark.parametrize("as_url", [False, True])
def test_the_box_explains_a_row_by_its_key_and_by_its_url(
    port: int, conn: Connection, as_url: bool
) -> None:
    key, url, label = rows(conn, """
        select digest::text, registry.blob_url(digest), registry.digest_text(digest)
        from registry.blobs where size > 20000000 order by digest limit 1""")[0]
    shown = text_of(get(port, "/explain", key=url if as_url else key)[1])
    assert label in shown
    assert re.search(r"kept by \d+ layers", shown)


def test_the_box_says_what_no_collection_has_seen(port: int) -> None:
    shown = text_of(get(port, "/explain", key="77")[1])
    assert "no collection has a row with this key, or ever had" in shown
    assert "there is no collection" in text_of(get(port, "/explain", key="7", collection="x")[1])
    assert "Type a row" in text_of(get(port, "/explain")[1])


def test_the_trash_is_shown_to_whom_it_may_be(registry: Database, conn: Connection) -> None:
    page = make_page(f"host={registry.host} port={registry.port} user={registry.user} "
                     f"dbname={registry.name}", []).test_client()  # type: ignore[attr-defined]
    shown = text_of(page.get("/trash").get_data(as_text=True))
    key, label = rows(conn, "select key, label from gc.trash where collection = 'manifest' "
                      "order by deleted_at desc, collection, key limit 1")[0]
    assert f"manifest {key} {label}" in shown


def test_what_a_role_may_not_know_costs_only_its_own_part(registry: Database) -> None:
    """A runner's role has the status, and nothing else that the page asks for."""
    process, port = start_page(registry, f"{registry.name}_runner")
    try:
        status, html, _ = get(port)
        assert "permission denied for function explain" in get(port, "/explain", key="1")[1]
    finally:
        process.kill()
        process.communicate()
    shown = text_of(html)
    assert status == 200 and "registry.blobs" in shown
    assert shown.count("Not shown. permission denied for ") >= 6
    assert "select gc.grant_viewer(&#39;the role&#39;);" in html


def test_without_collections_the_page_says_what_to_do(registry: Database) -> None:
    name = f"{registry.name}_empty"
    with psycopg.connect(autocommit=True) as conn:
        execute(conn, f"create database {name}")
    try:
        dsn = f"host={registry.host} port={registry.port} user={registry.user} dbname={name}"
        with psycopg.connect(dsn) as conn:
            conn.execute("create extension blobgc")
        answer = make_page(dsn, []).test_client().get("/")  # type: ignore[attr-defined]
        shown = text_of(answer.get_data(as_text=True))
        assert answer.status_code == 200
        for words in ("gc.track makes one", "No object fails", "Nothing is paused",
                      "No runner has called", "Nothing can be restored"):
            assert words in shown, words
    finally:
        with psycopg.connect(autocommit=True) as conn:
            execute(conn, f"drop database {name} with (force)")


def test_a_database_that_is_gone_is_said_and_comes_back(
    registry: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blobgc.serving.AGE", 0)
    monkeypatch.setattr("blobgc.serving.SHARE", 0)
    page = make_page("", []).test_client()  # type: ignore[attr-defined]
    monkeypatch.setenv("PGDATABASE", registry.name)
    monkeypatch.setenv("PGPORT", "1")
    for path in ("/", "/explain?key=1", "/trash"):
        answer = page.get(path)
        shown = answer.get_data(as_text=True)
        assert answer.status_code == 503, path
        assert "The database does not answer." in shown and "connection" in shown
    monkeypatch.setenv("PGPORT", registry.port)
    assert page.get("/").status_code == 200


# What it never does


def test_every_answer_has_strict_headers_and_nothing_from_elsewhere(port: int) -> None:
    for path in ("/", "/explain?key=1", "/trash", "/static/style.css", "/nowhere"):
        status, text, headers = get(port, path)
        assert status == (404 if path == "/nowhere" else 200)
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert "Python" not in headers["Server"] and "Set-Cookie" not in headers
        assert not re.search(r"<script|<iframe| on\w+=| style=|@import|url\(http", text)
        for found in re.findall(r'(?:href|src|action)="([^"]*)"', text):
            assert re.match("/(?!/)", found), found


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_but_reading_is_understood(port: int, method: str) -> None:
    assert get(port, method=method)[0] == 405


@pytest.mark.parametrize(("host", "is_ours"), [
    ("localhost", True), ("127.0.0.1:8187", True), ("[::1]:8187", True), ("10.1.2.3", True),
    ("gc.acme.example", True), ("GC.acme.example:443", True), ("", False),
    ("evil.example", False), ("localhost.evil.example", False), ("127.0.0.1.evil.example", False),
    ("gc.acme.example.evil.example", False), ("[::1", False), ("evil.example@127.0.0.1", True)])
def test_only_names_that_are_allowed_lead_to_the_page(host: str, is_ours: bool) -> None:
    """A browser never sends what is before an @."""
    assert is_allowed(host, ["gc.acme.example"]) == is_ours


def test_a_name_of_somebody_elses_is_refused(port: int) -> None:
    status, text, headers = get(port, host="evil.example")
    assert status == 421 and "--allow-host" in text and "registry" not in text
    assert "Content-Security-Policy" in headers
    assert get(port, "/static/style.css", host="evil.example")[0] == 421


def test_its_transactions_cannot_write(registry: Database, conn: Connection) -> None:
    """Whoever it logs in as."""
    asked = facts.Facts(f"host={registry.host} port={registry.port} user={registry.user} "
                        f"dbname={registry.name}")
    before = value(conn, "select count(*) from gc.tombstones")
    for write in ("delete from gc.tombstones returning 1", "select gc.pause()"):
        assert "read-only transaction" in asked.ask_alone(write).problem or (
            asked.ask_alone(write).problem.startswith("a table has changed"))
    assert value(conn, "select count(*) from gc.tombstones") == before > 0


def test_what_takes_too_long_costs_only_its_own_part(
    registry: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "SECONDS", 3.0)
    monkeypatch.setattr(facts, "OPERATIONS", "select pg_sleep(60)")
    asked = facts.Facts(f"host={registry.host} port={registry.port} user={registry.user} "
                        f"dbname={registry.name}")
    begin = time.monotonic()
    found = asked.look()
    assert time.monotonic() - begin < 10
    assert "statement timeout" in found.parts["operations"].problem
    assert found.parts["status"].rows and found.parts["pauses"].rows


def test_many_who_ask_at_one_time_get_one_answer() -> None:
    made = []

    def make() -> int:
        time.sleep(0.2)
        made.append(1)
        return len(made)

    cached = Cached(make)
    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(lambda _: cached.get(), range(40))) == {1}
    assert made == [1]


# How it is started and ended


def says(database: Database, *arguments: str, **environment: str) -> tuple[int, str]:
    found = subprocess.run(
        [sys.executable, ROOT / "runner.py", "page", *arguments], capture_output=True, text=True,
        env=database.environment | environment, check=False, timeout=60)
    return found.returncode, found.stderr


def test_what_keeps_the_page_from_starting_is_said(registry: Database) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        code, said = says(registry, "--port", str(port))
    assert code == 2 and f"--address 127.0.0.1 --port {port}: OSError: Address already" in said
    assert says(registry, "--port", "0") == (2, "blobgc: --port is between 1 and 65535\n")
    code, said = says(registry, "--port", str(port), PGDATABASE="postgres")
    assert code == 2 and 'schema "gc" does not exist (blobgc install)' in said


def test_a_role_without_rights_and_a_missing_library_are_said(registry: Database) -> None:
    role = f"{registry.name}_stranger"
    with psycopg.connect(autocommit=True) as conn:
        execute(conn, f"create role {role} login")
        try:
            code, said = says(registry, "--port", str(free_port()), PGUSER=role)
        finally:
            execute(conn, f"drop role {role}")
    assert code == 2 and "(select gc.grant_viewer('the role');)" in said
    without = ("import sys; sys.modules['flask'] = None; from blobgc.cli import main; "
               "sys.exit(main(['page']))")
    found = subprocess.run([sys.executable, "-c", without], cwd=ROOT, env=registry.environment,
                           capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr == "blobgc: the page needs flask: pip install 'blobgc[page]'\n"


def test_a_database_that_is_not_there_yet_is_waited_for(registry: Database) -> None:
    process = subprocess.Popen(
        [sys.executable, ROOT / "runner.py", "page", "--port", str(free_port())],
        env=registry.environment | {"PGPORT": "1"}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "no database yet, next try in 0.5 s" in process.stderr.readline()
    process.terminate()
    assert process.wait(timeout=20) == 0


def test_a_signal_ends_it(registry: Database) -> None:
    process, port = start_page(registry, registry.name, "--allow-host", "gc.acme.example")
    assert get(port, host="gc.acme.example")[0] == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0


# In a browser


def looked_at(browser: Browser, url: str, width: int, scheme: str) -> tuple[Page, list[str]]:
    """A page of that width, and what the browser complains about."""
    context = browser.new_context(viewport={"width": width, "height": 800},
                                  color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append("a dialog"))
    page.goto(url)
    return page, complaints


def screenshots() -> Path:
    """docs, if that is asked for by "make screenshot"."""
    folder = Path(os.environ.get("BLOBGC_SCREENSHOTS", ROOT / "build" / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("width", [360, 768, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_a_desk_by_day_and_by_night(
    port: int, browser: Browser, width: int, scheme: str
) -> None:
    page, complaints = looked_at(browser, url_of(port), width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width, "nothing sticks out"
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", light)[:3])) / 3
    assert (brightness > 128) == (scheme == "light")
    assert page.locator(".life li").count() >= 18
    assert page.locator("figure.chart svg").count() == 2
    for number in range(2):
        box = page.locator("figure.chart svg").nth(number).bounding_box()
        assert box and box["height"] > 100 and box["width"] > width / 3 - 100
    assert complaints == []
    page.screenshot(path=screenshots() / f"page-{width}-{scheme}.png", full_page=True)
    page.context.close()


def test_the_page_reads_without_scripts(port: int, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(url_of(port))
    page.get_by_placeholder("key or url").fill("77")
    page.get_by_role("button", name="Explain").click()
    assert "no collection has a row with this key" in page.content()
    page.get_by_role("link", name="Overview").click()
    page.get_by_text("As a table").first.click()
    assert page.locator("details[open] table").count() == 1
    context.close()


def test_a_busy_registry_is_drawn_for_the_documents(
    registry: Database, browser: Browser
) -> None:
    """As its owner sees it, which is all of it."""
    process, port = start_page(registry, registry.user)
    try:
        page, _ = looked_at(browser, url_of(port), 1120, "light")
        path = screenshots() / "page.png"
        trash = page.get_by_role("heading", name="Trash").bounding_box()
        assert trash
        page.screenshot(path=path, full_page=True, clip={
            "x": 0, "y": 0, "width": 1120, "height": trash["y"] - 20})
        page.context.close()
    finally:
        process.kill()
        process.communicate()
    for picture in (path, ROOT / "docs" / "page.png"):
        content = picture.read_bytes()
        assert content.startswith(b"\x89PNG") and 20_000 < len(content) < 300_000


def test_whatever_a_key_says_is_text(
    registry: Database, browser: Browser, conn: Connection
) -> None:
    """In the trash, among failures, in what is explained, in a box, in a title."""
    execute(conn, HOSTILE_APP)
    for name in HOSTILE:
        rows(conn, "insert into note values (%s) returning 1", name)
    execute(conn, """
        select gc.set_delay('<i>note</i> & co_insert', '0');
        update gc."<i>note</i> & co_review_queue" set review_after = now();
        select gc.review();
        update gc.tombstones set failures = 1, last_error = 'refused: ' || url
        where collection ~ 'note'""")
    assert value(conn, "select count(*) from gc.tombstones where failures = 1 and "
                 "collection ~ 'note'") == len(HOSTILE)
    process, port = start_page(registry, registry.user)
    try:
        page, complaints = looked_at(browser, url_of(port), 360, "dark")
        paths = [url_of(port, "/explain", collection="<i>note</i> & co", key=key)
                 for key in HOSTILE]
        for path in [*paths, url_of(port, "/trash"), url_of(port)]:
            page.goto(path)
            assert complaints == [] and "owned" not in page.title()
            assert page.locator("script, main img, iframe, i").count() == 0
            text = page.locator("main").inner_text()
            assert not RAW.search(text.replace("\t", "")), path
            assert "<b>" in text
        assert HOSTILE[0] in text and HOSTILE[1] in text
        assert "\\u202egpj.exe\\u202c" in text and "\\x1b[2Jbell" in text
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        page.screenshot(path=screenshots() / "page-hostile.png", full_page=True)
        page.context.close()
    finally:
        process.kill()
        process.communicate()
        execute(conn, "select gc.untrack('<i>note</i> & co'); drop table note")


def test_two_may_ask_for_a_row_at_one_time_and_a_third_waits(registry: Database) -> None:
    asked = facts.Facts(f"host={registry.host} port={registry.port} user={registry.user} "
                        f"dbname={registry.name}")
    asked.turn.acquire()
    asked.turn.acquire()
    threading.Timer(0.5, asked.turn.release).start()
    begin = time.monotonic()
    assert "never seen" in str(asked.explain("repository", "(1,99)"))
    assert time.monotonic() - begin > 0.4


# On the runner's port: it collects what the tests above have looked at.


def test_the_page_is_on_the_runners_port_if_that_is_asked_for(
    registry: Database, tmp_path: Path
) -> None:
    port = free_port()
    viewer = (f"host={registry.host} port={registry.port} user={registry.name} "
              f"dbname={registry.name}")
    command = [sys.executable, str(ROOT / "runner.py"), "run", "--store", f"file://{tmp_path}/"]
    for more, status in ([], 404), (["--page", "--page-dsn", viewer], 200):
        process = subprocess.Popen([*command, "--metrics-port", str(port), *more],
                                   env=registry.environment, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: is_healthy(port), "the runner to be well")
            found, html, headers = get(port)
            assert found == status
            assert ("as <bdi>" + registry.name in html) == (status == 200)
            assert get(port, "/metrics")[1].count("blobgc_queue_entries{") >= 3
            assert get(port, "/metrics", host="runner:9187")[0] == 200, "as Prometheus asks"
            assert get(port, host="evil.example")[0] == (421 if status == 200 else 404)
        finally:
            process.kill()
            process.wait()
    alone = subprocess.run([*command, "--page"], env=registry.environment, capture_output=True,
                           text=True, check=False)
    assert alone.returncode == 2
    assert alone.stderr == "blobgc: --page is served on --metrics-port, which is not given\n"


def is_healthy(port: int) -> bool:
    try:
        return get(port, "/healthz")[0] == 200
    except OSError:
        return False
