"""What an operator types all day: preview, explain, pause, pin and so on, with their exit codes."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest
from conftest import Connection, Database, NewRole, execute, rows, value
from test_cli import app, blobgc_says, conn, says

import blobgc
from blobgc import cli, database, errors

__all__ = ["app", "conn"]

HOSTILE = "a\x1b[2Jb\r\u202e"
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202e]")


@pytest.fixture
def files(app: Database, conn: Connection) -> Connection:
    """Files 1 to 4 are garbage and due, 5 is kept by two posts; 6 is garbage and due tomorrow."""
    execute(conn, """
        select gc.track('file', url => $$'s3://bucket/' || id$$, size => 'bytes',
            label => $$'photo ' || id$$);
        insert into file (id, bytes) select n, n * 1000 from generate_series(1, 5) as n;
        insert into post values (50, 5), (51, 5);
        select gc.set_delay('file_insert', '1 day');
        insert into file values (6)""")
    return conn


def test_preview_says_what_would_go_and_leaves_it(app: Database, files: Connection) -> None:
    lines = says(app, "preview").splitlines()
    assert lines[0].split() == ["collection", "row", "size", "verdict", "why"]
    assert lines[1].split() == ["file", "photo", "1", "1.0", "kB", "deleted", "file_insert"]
    assert re.search(r"photo 5 +5\.0 kB +kept +kept by 2 posts", lines[5])
    assert lines[6] == "of these: 4 deleted (10.0 kB), 1 kept"
    assert value(files, "select count(*) from file") == 6


def test_preview_says_what_goes_with_a_row(app: Database, files: Connection) -> None:
    execute(files, """
        select gc.track('file', url => $$'s3://bucket/' || id$$, owned => '{post}',
            condition => 'id > 4')""")
    lines = says(app, "preview").splitlines()
    assert lines[0].endswith("with it")
    assert re.search(r"^file +5 +deleted +file_insert +2 post *$", lines[1]), lines
    assert lines[-1] == "of these: 1 deleted (0 B), 4 kept"


def test_preview_as_json_has_all_that_the_database_says(app: Database, files: Connection) -> None:
    shown = json.loads(says(app, "preview", "--json", "--all", "--collection", "file"))
    assert len(shown) == 6
    assert shown[0] == {
        "collection": "file", "key": "1", "label": "photo 1", "url": "s3://bucket/1", "size": 1000,
        "event": "file_insert", "verdict": "deleted", "detail": None, "with_it": None}
    assert len(json.loads(says(app, "preview", "--json", "--batch", "2"))) == 2


def test_preview_of_nothing_says_so(app: Database, conn: Connection) -> None:
    assert says(app, "preview") == "nothing is due now; --all looks at what is queued\n"
    assert says(app, "preview", "--all") == "nothing is queued\n"
    assert 'there is no collection "x"' in says(app, "preview", "--collection", "x", code=2)
    assert "--batch" in says(app, "preview", "--batch", "many", code=2)


def test_explain_indents_the_reasons_below_the_verdict(app: Database, files: Connection) -> None:
    assert says(app, "explain", "file", "5").splitlines()[:4] == [
        "file photo 5: kept by 2 posts", "  public.post(file_id): 2 rows", "    post 50",
        "    post 51"]
    assert says(app, "explain", "--url", "s3://bucket/1").count("due now because of file_insert")
    assert "never seen" in says(app, "explain", "file", "77")
    shown = json.loads(says(app, "explain", "file", "5", "--json"))
    assert (shown[0]["verdict"], shown[0]["depth"], shown[1]["depth"]) == ("kept", 0, 1)


@pytest.mark.parametrize("arguments", [[], ["file"], ["file", "1", "--url", "s3://b/1"]])
def test_explain_needs_a_row_or_a_url(app: Database, arguments: list[str]) -> None:
    said = says(app, "explain", *arguments, code=2)
    assert said == "blobgc: explain takes a collection and a key, or --url\n"


def test_frees_and_forecast_count_rows_and_bytes(app: Database, files: Connection) -> None:
    assert [line.split() for line in says(app, "frees", "file", "5").splitlines()] == [
        ["collection", "rows", "bytes", "rows", "that", "it", "owns"],
        ["file", "1", "5.0", "kB", "0"]]
    assert json.loads(says(app, "frees", "file", "5", "--json"))[0]["bytes"] == 5000
    lines = [line.split() for line in says(app, "forecast").splitlines()]
    assert lines[0] == ["day", "collection", "queued", "will", "go", "bytes", "sampled"]
    assert [line[1:] for line in lines[1:]] == [
        ["file", "5", "4", "10.0", "kB", "5"], ["file", "1", "1", "10", "B", "1"]]
    assert len(json.loads(says(app, "forecast", "--json"))) == 7
    execute(files, "delete from gc.file_review_queue")
    assert says(app, "forecast") == "nothing is queued for the next week\n"


def test_a_pause_stops_and_is_told_and_a_resume_ends_it(app: Database, files: Connection) -> None:
    shown = says(app, "pause", "file", "--reason", "an audit", "--what", "reviews")
    assert shown.splitlines()[1].split() == [
        "file", "reviews", "postgres", "further", "notice", "an", "audit"]
    assert rows(files, "select deleted from gc.review()") == [(0,)]
    assert value(files, "select paused from gc.status()") == "reviews"
    shown = says(app, "pause", "--until", "2100-01-01 10:00Z", "--json", PGTZ="UTC")
    assert [(row["collection"], row["what"], row["until"][:4]) for row in json.loads(shown)] == [
        (None, "reviews", "2100"), (None, "deletes", "2100"), ("file", "reviews", "infi")]
    shown = says(app, "resume", PGTZ="UTC")
    assert shown.splitlines()[:2] == ["2 pauses have ended", "still paused:"]
    assert says(app, "resume", "file", "--allow", "3") == "1 pause has ended\n"
    assert rows(files, "select what, allowed from gc.allowances order by 1") == [
        ("deletes", 3), ("reviews", 3)]
    assert json.loads(says(app, "resume", "--json")) == {"ended": 0, "paused": []}
    assert rows(files, "select deleted from gc.review()") == [(4,)]


def test_what_cannot_be_paused_is_said(app: Database) -> None:
    assert 'there is no collection "x"' in says(app, "pause", "x", code=2)
    assert "invalid choice: 'all'" in says(app, "pause", "--what", "all", code=2)
    assert "invalid input syntax" in says(app, "pause", "--until", "soon", code=2)
    assert "an allowance is a number of rows of one collection" in says(
        app, "resume", "--allow", "3", code=2)


def test_pins_keep_rows_until_they_are_unpinned(app: Database, files: Connection) -> None:
    assert says(app, "pin", "file", "1", "2", "--reason", "legal", "--holder", "lawyers") == (
        "1: pinned\n2: pinned\n")
    assert says(app, "pin", "file", "3", "77", code=1) == (
        "3: pinned\n77: not pinned: it is not there\n")
    shown = [line.split() for line in says(app, "pins").splitlines()]
    assert shown[:2] == [["collection", "key", "holder", "reason", "until"],
                         ["file", "1", "lawyers", "legal", "further", "notice"]]
    assert len(shown) == 4
    assert [pin["key"] for pin in json.loads(says(app, "pins", "--holder", "postgres", "--json"))
            ] == ["3"]
    assert rows(files, "select deleted from gc.review()") == [(1,)]
    assert says(app, "unpin", "file", "1", "4", "--holder", "lawyers", code=1) == (
        "1: unpinned\n4: not unpinned: this holder had no pin of it\n")
    assert json.loads(says(app, "unpin", "file", "3", "--json")) == [
        {"key": "3", "unpinned": True}]
    assert [pin["key"] for pin in json.loads(says(app, "pins", "--json"))] == ["2"]
    assert says(app, "pins", "other") == "nothing\n"


def test_what_went_is_listed_and_restored(app: Database, files: Connection) -> None:
    execute(files, """
        create unique index file_bytes_key on file (bytes);
        update gc.settings set undo = '1 day';
        select gc.review();
        delete from post;
        delete from file where id = 5""")
    shown = says(app, "trash", "file", COLUMNS="200")
    assert re.search(r"^file +4 +photo 4 +4\.0 kB +file_insert +20", shown, re.MULTILINE)
    assert re.search(r"^file +5 +photo 5 +5\.0 kB +the application +20", shown, re.MULTILINE)
    assert "there may be more: these are the latest 2" in says(app, "trash", "--limit", "2")
    found = json.loads(says(app, "trash", "--since", "yesterday", "--json"))
    assert sorted(row["key"] for row in found if row["collection"] == "file") == list("12345")
    assert json.loads(says(app, "trash", "--since", "tomorrow", "--json")) == []
    assert says(app, "trash", "other") == "nothing\n"
    # One, several, and all.
    assert says(app, "restore", "file", "1") == "1 row has come back\n"
    assert says(app, "restore", "file", "1", "2") == "1 row has come back\n"
    execute(files, "insert into file (id, bytes) values (40, 4000)")
    said = says(app, "restore", "file", "3", "4", code=1)
    assert said == (
        "blobgc: another row of public.file is in the way: Key (bytes)=(4000) already exists. "
        "(Delete or rename that one, and restore again.)\n")
    assert "is in the way" in says(app, "restore", "--since", "yesterday", code=1)
    assert value(files, "select count(*) from file where id in (3, 4)") == 0
    execute(files, "delete from file where id = 40; delete from gc.trash_rows where key = '40'")
    assert json.loads(says(app, "restore", "--since", "yesterday", "--json"))["restored"] >= 3
    assert value(files, "select count(*) from file") == 6
    assert says(app, "restore", "file", "--since", "yesterday") == "0 rows have come back\n"
    for arguments in ([], ["file"], ["file", "1", "--since", "today"]):
        assert "either keys of a collection, or --since" in says(
            app, "restore", *arguments, code=2)


def test_suspects_come_with_what_to_type(app: Database, conn: Connection) -> None:
    assert says(app, "suspects", "file") == "nothing else looks like a reference\n"
    execute(conn, "create table note (id integer primary key, file_id integer)")
    shown = says(app, "suspects", "file")
    assert re.search(r"note +file_id +strong +name and type", shown)
    commands = shown.partition("strong ones:\n")[2].splitlines()
    assert commands[1] == "select gc.declare_reference('file', 'public.note', 'file_id');"
    for command in commands:
        execute(conn, command)
    assert says(app, "suspects", "file") == "nothing else looks like a reference\n"
    assert json.loads(says(app, "suspects", "file", "--json")) == []


def test_no_command_prints_a_control_character_of_a_key(app: Database, conn: Connection) -> None:
    execute(conn, """
        create table thing (key text primary key, note text);
        select gc.track('thing', condition => 'true', url => $$'s3://b/' || key$$);
        select gc.set_delay('thing_insert', '0')""")
    rows(conn, "insert into thing values (%s) returning 1", HOSTILE)
    for arguments in (["preview"], ["explain", "thing", HOSTILE], ["frees", "thing", HOSTILE],
                      ["explain", "--url", "s3://b/" + HOSTILE],
                      ["pin", "thing", HOSTILE, "--reason", HOSTILE, "--holder", HOSTILE],
                      ["pins"], ["pause", "thing", "--reason", HOSTILE], ["status"], ["resume"],
                      ["unpin", "thing", HOSTILE, "--holder", HOSTILE]):
        for more in ([], ["--json"]):
            shown = "".join(blobgc_says(app, *arguments, *more, COLUMNS="200",
                                        code=1 if arguments[0] == "unpin" and more else 0))
            assert not RAW.search(shown), arguments
    assert "x1b[2J" in says(app, "preview", COLUMNS="200")
    execute(conn, "select gc.track('thing', condition => 'true', url => $$'s3://b/' || key$$, "
                  "undo => '1 day'); delete from thing")
    rows(conn, "insert into thing values (%s) returning 1", HOSTILE)
    for arguments, code in ((["trash"], 0), (["restore", "thing", HOSTILE], 1),
                            (["restore", "thing", HOSTILE + "x"], 1),
                            (["restore", HOSTILE, HOSTILE], 2)):
        for more in ([], ["--json"]):
            shown = "".join(blobgc_says(app, *arguments, *more, COLUMNS="200", code=code))
            assert not RAW.search(shown), arguments
            assert "u202e" in shown or code == 2, shown
    assert "x1b[2J" in says(app, "trash", COLUMNS="200")
    assert not RAW.search(errors.one_line(HOSTILE)), "nor of what a message has of it"


@pytest.mark.parametrize(("command", "hint"), [
    ("preview", "gc.grant_runner"), ("forecast", "gc.grant_runner"),
    ("explain file 1", "gc.grant_viewer"), ("history", "gc.grant_viewer"),
    ("pause", "gc.grant_operator"), ("pin file 1", "gc.grant_operator"),
    ("pins", "gc.grant_operator"), ("frees file 1", "as the owner of blobgc"),
    ("trash", "gc.grant_viewer"), ("restore file 1", "as the owner of blobgc"),
    ("suspects file", "as the owner of blobgc"),
])
def test_a_role_without_the_right_is_told_which(
    app: Database, new_role: NewRole, command: str, hint: str
) -> None:
    role = new_role("stranger")
    with app.connect() as conn:
        execute(conn, f"grant usage on schema gc to {role}")
        said = says(app, *command.split(), code=2, PGUSER=role)
        assert said.startswith("blobgc: permission denied for ")
        assert hint in said and len(said.splitlines()) == 1
        for right in ("runner", "viewer", "operator"):
            execute(conn, f"select gc.grant_{right}('{role}')")
        if "grant" in hint:
            says(app, *command.split(), code=1 if command == "pin file 1" else 0, PGUSER=role)
        execute(conn, f"drop owned by {role}")


# What a connection says about itself


def test_a_connection_says_its_version_host_and_process(
    app: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the host's name is longer than what PostgreSQL keeps."""
    class Uname:
        nodename = "a-very-long-name-" * 5

    monkeypatch.setattr(os, "uname", Uname)
    dsn = f"host={app.host} port={app.port} user={app.user} dbname={app.name}"
    ours = database.Database(dsn)
    ours.call("select from gc.review()")
    ((version, length, host),) = rows(
        conn, "select version, length(application), host from gc.runners")
    assert version == blobgc.__version__ and length == 63
    assert host and Uname.nodename.startswith(host)
    ours.connection.close()


def test_a_runner_is_seen_with_its_host_version_and_prefixes(
    app: Database, conn: Connection, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    execute(conn, f"select gc.track('file', url => $$'file://{store}/' || id$$);"
                  "insert into file values (1)")
    says(app, "run", "--once", "--store", f"file://{store}/", "--worker", "alpha")
    assert rows(conn, "select worker, host, version, prefixes, role, holds from gc.runners") == [
        ("alpha", os.uname().nodename[:40], blobgc.__version__, [f"file://{store}/"], app.user, 0)]
    shown = " ".join(says(app, "status").split())
    assert f"runner alpha on {os.uname().nodename[:40]}, version {blobgc.__version__}: " in shown
    assert "last collected: 20" in shown


# Check


def test_check_says_that_nothing_is_wrong(app: Database, files: Connection) -> None:
    assert says(app, "check") == "nothing is wrong\n"
    assert json.loads(says(app, "check", "--json")) == []


def test_check_says_what_is_wrong_in_order_with_what_mends_it(
    app: Database, conn: Connection
) -> None:
    execute(conn, """
        select gc.pause(reason => 'an audit', what => 'deletes');
        create table note (id integer primary key, file_id integer)""")
    shown = says(app, "check", COLUMNS="120", code=1).splitlines()
    assert shown[0].startswith("error: file: ") and "note(file_id)" in shown[0]
    assert "    select gc.declare_reference('file', 'public.note', 'file_id');" in shown
    assert shown[-3].startswith("remark: all collections: deletes are paused by postgres until")
    assert shown[-2:] == ["    select gc.resume();", "1 error, 1 remark"]
    found = json.loads(says(app, "check", "--json", code=1))
    assert [row["severity"] for row in found] == ["error", "remark"]
    for line in found[0]["command"].splitlines():
        execute(conn, line)
    assert says(app, "check").splitlines()[-1] == "1 remark", "a remark is no failure"


def test_check_probes_stores_and_compares_prefixes(
    app: Database, conn: Connection, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    execute(conn, f"select gc.track('file', url => $$'file://{store}/' || id$$)")
    assert says(app, "check", "--store", f"file://{store}") == "nothing is wrong\n"
    assert list(store.iterdir()) == []
    (found,) = json.loads(says(app, "check", "--json", "--store", f"file://{store}",
                               "--store", "file:///nowhere/at/all", code=1))
    assert found["severity"] == "error" and found["subject"] == "file:///nowhere/at/all"
    assert found["problem"] == "FileNotFoundError: No such file or directory"
    (found,) = json.loads(says(app, "check", "--json", "--store", "ftp://x", code=1))[:1]
    assert found["problem"].startswith("it must be like one of az://container/dir/")
    other = tmp_path / "other"
    other.mkdir()
    (found,) = json.loads(says(app, "check", "--json", "--store", f"file://{other}/", code=1))
    assert found["severity"] == "warning" and found["subject"] == "file"
    assert found["problem"] == f"its objects are under file://{store}/, which is under no --store"


def test_check_by_a_role_without_rights_says_which_are_missing(
    app: Database, conn: Connection, new_role: NewRole
) -> None:
    role = new_role("runner")
    execute(conn, f"grant usage on schema gc to {role};"
                  f"grant execute on function gc.version() to {role}")
    found = json.loads(says(app, "check", "--json", code=1, PGUSER=role))
    assert [row["severity"] for row in found] == ["error", "warning"]
    assert found[0]["command"] == f"select gc.grant_runner('{role}');"
    execute(conn, found[0]["command"])
    (found,) = json.loads(says(app, "check", "--json", code=1, PGUSER=role))
    assert found["problem"] == ("it may not look into the database: only the owner of blobgc may")
    execute(conn, f"drop owned by {role}")


def test_check_notices_another_version_and_another_time(
    app: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dsn = f"host={app.host} port={app.port} user={app.user} dbname={app.name}"
    assert cli.main(["check", "--dsn", dsn]) == 0
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 100)
    monkeypatch.setattr(blobgc, "__version__", "0.1.9")
    capsys.readouterr()
    assert cli.main(["check", "--dsn", dsn, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(row["subject"], row["command"]) for row in found] == [
        ("blobgc", "blobgc upgrade"), ("clocks", "timedatectl set-ntp true")]
    assert re.search("differ by (99|100) s", found[1]["problem"])


def test_check_tells_of_a_transaction_that_is_open_for_long(
    app: Database, conn: Connection
) -> None:
    """The clock cannot be turned, so what is long is made short, in a copy of the function."""
    source = value(conn, "select pg_get_functiondef('gc._check_sessions()'::regprocedure)")
    execute(conn, source.replace("'1 hour'", "'0 seconds'"))
    with app.connect(autocommit=False) as other:
        execute(other, "select 1")
        found = json.loads(says(app, "check", "--json", code=1))
        pid = other.info.backend_pid
        assert f"select pg_terminate_backend({pid});" in [row["command"] for row in found]
        other.rollback()
    execute(conn, source)
    assert says(app, "check") == "nothing is wrong\n"
