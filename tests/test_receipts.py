"""One cause, followed through a registry to the last object; and the worker of docs/receipts.md."""

from __future__ import annotations

import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from conftest import APP, NO_DELAY, ROOT, NewDatabase, execute, rows, value, wait_until
from test_registry import Registry, both_layouts, create_registry, url_of

STATES = """
select state, count(*), coalesce(sum(size), 0)::integer, bool_and(complete)
from gc.receipt(%s) group by state order by state
"""


class Remembering(Registry):
    """A registry that knows what was in an object that is gone."""

    @property
    def contents(self) -> dict[str, str]:
        return {url_of(text): text for text in TEXTS}


def content_of(r: Remembering, state: str, cause: str) -> set[str]:
    """The contents of the blobs that a receipt names in this state."""
    urls = rows(r.conn, """
        select registry.blob_url(key::bytea) from gc.receipt(%s)
        where collection = 'blob' and state = %s""", cause, state)
    return {r.contents[url] for (url,) in urls}


TEXTS = [
    "base", "app config", "app layer", "web config", "web layer", "other config", "other layer",
    "amd64 config", "amd64 layer", "signature config", "signature",
]


@both_layouts
def test_a_cause_is_followed_from_a_repository_to_the_last_object(
    new_database: NewDatabase, partitions: int
) -> None:
    with new_database().connect() as conn:
        create_registry(conn, partitions)
        r = Remembering(conn)
        for name in ["acme/app", "acme/web", "else/other"]:
            r.call("create_repository", name)
        r.push("acme/app", "app config", ["base", "app layer"], "v1")
        image = r.push("acme/app", "amd64 config", ["base", "amd64 layer"])
        listed = r.push_list("acme/app", [image], "multi")
        r.push("acme/app", "signature config", ["signature"], subject=listed)
        r.push("acme/web", "web config", ["base", "web layer"], "v1")
        r.push("else/other", "other config", ["base", "other layer"], "v1")
        for _ in range(2):
            r.a_day_passes()

        # A namespace is deleted on demand; at the same time something goes for no cause.
        with conn.transaction():
            execute(conn, "select gc.because('ticket 4711')")
            r.call("delete_repository", "acme/app")
            r.call("delete_repository", "acme/web")
        unrelated = r.push("else/other", "lost config", ["lost layer"])
        assert unrelated
        assert rows(conn, STATES, "ticket 4711") == [("queued", 2, 0, False)]

        # Hurried, it takes no day. What it leads to is due at once, and what it does not is not.
        assert value(conn, "select gc.hurry('ticket 4711')") >= 0
        for _ in range(4):
            rows(conn, "select * from gc.review()")
        gone = set(TEXTS) - {"base", "other config", "other layer"}
        assert content_of(r, "kept", "ticket 4711") == {"base"}
        assert content_of(r, "waiting", "ticket 4711") == gone
        assert r.blobs() == {
            "base", "other config", "other layer", "lost config", "lost layer"}
        why = value(conn, "select why from gc.receipt('ticket 4711') where state = 'kept'")
        assert why == "by registry.layers(namespace_id, repository_id, digest)"
        assert not value(conn, "select bool_or(complete) from gc.receipt('ticket 4711')")

        assert r.run() == {url_of(text) for text in gone}
        # Two repositories, and five manifests that went with them.
        assert rows(conn, STATES, "ticket 4711") == [
            ("gone", 2 + 5 + len(gone), sum(map(len, gone)), True), ("kept", 1, 0, True)]
        assert value(conn, """
            select array_agg(distinct causes) from gc.deletion_log""") == [["ticket 4711"]]

        # The base layer goes later, for no cause, or for another: the receipt says so.
        with conn.transaction():
            execute(conn, "select gc.because('ticket 4712')")
            r.call("delete_repository", "else/other")
        for _ in range(3):
            r.a_day_passes()
        assert url_of("base") in r.run()
        assert r.store == {}
        assert rows(conn, STATES, "ticket 4711") == [
            ("gone", 3 + 5 + len(gone), sum(map(len, gone)) + len("base"), True)]
        assert content_of(r, "gone", "ticket 4712") >= {"base", "other config", "other layer"}
        assert value(conn, "select bool_and(complete) from gc.receipt('ticket 4712')")


def test_many_causes_in_one_review_each_keep_to_their_own(new_database: NewDatabase) -> None:
    """Owners of many rows, more than fit into one transaction, and a cause for each."""
    with new_database().connect() as conn:
        execute(conn, "create extension blobgc; create schema app;"
            "create table app.file (id integer primary key);"
            "create table app.album (id integer primary key);"
            "create table app.picture (album integer references app.album,"
            "   file integer references app.file);"
            "create table app.post (album integer references app.album);"
            "create index on app.picture (album); create index on app.picture (file);"
            "create index on app.post (album);"
            "update gc.settings set jitter = '0', max_rows = 50;"
            "select gc.track('app.file', url => $$'s3://bucket/' || id$$);"
            "select gc.track('app.album', owned => '{picture}');"
            "insert into app.album select generate_series(1, 20);"
            "insert into app.file select generate_series(1, 200);"
            "insert into app.picture select (n + 9) / 10, n from generate_series(1, 200) as n;"
            "insert into app.post select generate_series(1, 20);"
            "delete from gc.file_review_queue; delete from gc.album_review_queue")
        for n in range(1, 21):
            with conn.transaction():
                if n % 2:
                    execute(conn, f"select gc.because('ticket {n}')")
                execute(conn, f"delete from app.post where album = {n}")
        for _ in range(40):
            execute(conn, "update gc.file_review_queue set review_after = now();"
                          "update gc.album_review_queue set review_after = now()")
            rows(conn, "select * from gc.review()")
        assert value(conn, "select count(*) from app.file") == 0
        assert rows(conn, """
            select causes, count(*), min((key::integer + 9) / 10), max((key::integer + 9) / 10)
            from gc.tombstones group by causes, (key::integer + 9) / 10
            order by (key::integer + 9) / 10
        """) == [([f"ticket {n}"] if n % 2 else None, 10, n, n) for n in range(1, 21)]


# A worker


class Cdn(http.server.BaseHTTPRequestHandler):
    """Understands PURGE, and fails the first time for what is called so."""

    purged: list[str] = []
    fails = 1

    def do_PURGE(self) -> None:
        if self.path == "/bad" and Cdn.fails:
            Cdn.fails -= 1
            self.send_error(503)
            return
        Cdn.purged.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def cdn() -> Iterator[str]:
    Cdn.purged, Cdn.fails = [], 1
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cdn) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_worker_of_the_documents_finishes_its_step(
    new_database: NewDatabase, cdn: str
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "receipts.md").read_text(),
                         re.MULTILINE | re.DOTALL)
    database = new_database()
    with database.connect() as conn:
        execute(conn, "create extension blobgc;" + APP + NO_DELAY + """
            select gc.track('app.file', finalizers => '{cdn-purge}', condition => 'true',
                url => $$'s3://bucket/' || case id when 2 then 'bad' else id::text end$$);
            create index on app.file (
                ('s3://bucket/' || case id when 2 then 'bad' else id::text end));
            update gc.settings set backoff = '1 second';
            insert into app.file values (1), (2), (3);
            delete from app.file;
        """)
        worker = subprocess.Popen([sys.executable, "-c", code],
                                  env={**os.environ, **database.environment, "CDN": cdn})
        try:
            wait_until(lambda: value(conn, """
                select count(*) = 3 from gc.tombstones where finalizers is null"""), "the worker")
        finally:
            worker.kill()
            worker.wait()
        assert sorted(Cdn.purged) == ["/1", "/3", "/bad"]
        assert rows(conn, "select key from gc.claim('runner') order by key") == [
            ("1",), ("2",), ("3",)]
