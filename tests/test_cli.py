"""The command line for people: every command, its table, its JSON, and what it never prints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import (
    ROOT,
    Connection,
    Database,
    NewDatabase,
    NewRole,
    catalog,
    execute,
    rows,
    value,
)

import blobgc
from blobgc import cli, show

SETUP = """
create extension blobgc;
create table file (id integer primary key, name text, bytes bigint not null default 10);
create table post (id integer primary key, file_id integer references file);
create index on post (file_id);
update gc.settings set undo = '0', brake_share = 1, jitter = '0';
insert into gc.review_after_defaults values ('file_insert', '0'), ('post_delete', '0');
select gc.track('file', url => $$'s3://bucket/' || id$$, size => 'bytes');
"""


def blobgc_says(
    database: Database, *arguments: str, code: int = 0, **environment: str
) -> tuple[str, str]:
    """What it prints, and what it complains about."""
    found = subprocess.run(
        [sys.executable, ROOT / "runner.py", *arguments], capture_output=True, text=True,
        env=database.environment | environment, check=False, timeout=60)
    assert found.returncode == code, found.stdout + found.stderr
    return found.stdout, found.stderr


def says(database: Database, *arguments: str, code: int = 0, **environment: str) -> str:
    return "".join(blobgc_says(database, *arguments, code=code, **environment))


@pytest.fixture
def app(new_database: NewDatabase) -> Database:
    database = new_database()
    database.psql(SETUP)
    return database


@pytest.fixture
def conn(app: Database) -> Connection:
    return app.connect()


def test_every_version_is_the_same() -> None:
    control = (ROOT / "blobgc.control").read_text()
    assert f"default_version = '{blobgc.__version__}'" in control
    assert json.loads((ROOT / "META.json").read_text())["version"] == blobgc.__version__
    found = subprocess.run([sys.executable, "-m", "blobgc", "--version"], cwd=ROOT, check=True,
                           capture_output=True, text=True)
    assert found.stdout == f"blobgc {blobgc.__version__}\n"


def test_every_command_explains_itself() -> None:
    commands = cli.modules()
    assert {
        "check", "completion", "explain", "forecast", "frees", "history", "install", "pause", "pin",
        "pins", "preview", "resume", "run", "status", "suspects", "unpin", "upgrade",
    } <= set(commands)
    shown = cli.make_parser().format_help()
    for name, module in commands.items():
        assert module.__doc__ and re.search(rf"^ +{name}\s+\w", shown, re.MULTILINE), name


# Status and history


def test_status_fits_eighty_columns_and_says_what_is_in_the_way(
    app: Database, conn: Connection
) -> None:
    execute(conn, """
        update gc.settings set brake_share = 1;
        insert into file select n from generate_series(1, 1234567, 1000) as n;
        select gc.review(100000);
        update gc.tombstones set failures = 1, last_error = 'no such bucket'
        where id = (select min(id) from gc.tombstones);
        drop table post; select gc.review()""")
    rows(conn, "select * from gc.claim('some-runner', 10)")
    shown = says(app, "status", COLUMNS="80")
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80, shown
    assert lines[0].split() == [
        "collection", "queued", "due", "waiting", "failing", "today", "bytes", "total"]
    assert lines[1].split()[:5] == ["file", "0", "0", "1,235", "1"]
    assert "file: in the way: " in shown
    assert "file: a delete failed: no such bucket" in shown
    together = " ".join(shown.split())
    assert re.search(r"runner some-runner: last call \d+ s ago; it has 10 objects, until 20",
                     together)
    assert "nothing has been collected so far" in shown
    assert re.search(r"^next due: in \d+ s$", shown, re.MULTILINE)


def test_status_says_who_is_there_what_is_paused_and_when_something_was_last_collected(
    app: Database, conn: Connection
) -> None:
    execute(conn, """
        insert into file values (1);
        select gc.pause('file', 'an audit', what => 'deletes');
        set application_name = 'blobgc 0.2.0 alpha.example/77';
        select gc.review();
        insert into gc.totals (collection, day, rows, objects, counted_at)
        values ('file', '2026-01-02', 1, 1, '2026-01-02 03:04:05Z')""")
    shown = says(app, "status", COLUMNS="80", PGTZ="UTC")
    assert max(map(len, shown.splitlines())) <= 80, shown
    assert "file: paused: deletes by postgres, until further notice: an audit" in shown
    assert re.search(
        r"^runner \(reviews only\) on alpha.example, version 0.2.0: last call \d+ s ago$", shown,
        re.MULTILINE)
    assert re.search(r"^last collected: 20\d\d-\d\d-\d\d \d\d:\d\d\+00$", shown, re.MULTILINE)
    (runner,) = json.loads(says(app, "status", "--json"))["runners"]
    assert (runner["host"], runner["version"]) == ("alpha.example", "0.2.0")
    execute(conn, "update gc.runner_calls set last_call = now() - interval '2 hours'")
    assert "no runner has called within an hour" in says(app, "status")


def test_status_as_json_has_all_that_the_database_says(app: Database, conn: Connection) -> None:
    execute(conn, "insert into file values (1)")
    shown = json.loads(says(app, "status", "--json"))
    columns = [row[0] for row in rows(conn, """
        select unnest(proargnames) from pg_proc
        where proname = 'status' and pronamespace = 'gc'::regnamespace""")]
    (collection,) = shown["collections"]
    assert list(collection) == columns
    assert collection["queued"] == collection["due"] == 1
    assert shown["runners"] == []
    assert shown["seconds_until_due"] == 0


def test_status_is_shown_again_while_it_is_watched(app: Database) -> None:
    process = subprocess.Popen(
        [sys.executable, ROOT / "runner.py", "status", "--watch", "--interval", "0.2"],
        env=app.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += line.startswith("collection")
        if seen == 3:
            break
    process.terminate()
    process.communicate()
    assert seen == 3


def test_a_viewer_may_ask_for_status_and_history(app: Database, new_role: NewRole) -> None:
    viewer = new_role("viewer")
    with app.connect() as conn:
        execute(conn, f"select gc.grant_viewer('{viewer}')")
    for command in ("status", "history"):
        says(app, command, PGUSER=viewer)
    with app.connect() as conn:
        execute(conn, f"drop owned by {viewer}")


def test_history_adds_up_each_day(app: Database, conn: Connection) -> None:
    execute(conn, "insert into file values (1), (2), (3); select gc.review()")
    ids = [row[0] for row in rows(conn, "select id from gc.claim('worker')")]
    rows(conn, "select gc.confirm('worker', %s)", ids)
    execute(conn, """
        insert into gc.totals (collection, day, rows, objects, bytes)
        values ('other', (now() at time zone 'UTC')::date - 2, 5, 4, 2500000),
            ('other', (now() at time zone 'UTC')::date - 90, 1, 1, 1)""")
    days = [str(day[0]) for day in rows(conn, """
        select ((now() at time zone 'UTC')::date - n)::text from unnest('{2,0}'::int[]) as n""")]
    assert json.loads(says(app, "history", "--json")) == [
        {"day": days[0], "rows": 5, "objects": 4, "bytes": 2500000},
        {"day": days[1], "rows": 3, "objects": 3, "bytes": 30}]
    lines = says(app, "history").splitlines()
    assert [line.split() for line in lines] == [
        ["day", "rows", "objects", "reclaimed"],
        [days[0], "5", "4", "2.5", "MB"], [days[1], "3", "3", "30", "B"]]
    assert json.loads(says(app, "history", "file", "--json")) == [
        {"day": days[1], "rows": 3, "objects": 3, "bytes": 30}]
    assert len(json.loads(says(app, "history", "--days", "100", "--json"))) == 3


# What others build on


def test_no_control_character_of_a_value_is_printed_raw(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "a\x1b[2J\x00\r\n\x9b\u202ereversed\u200b[red]x[/red] :smile:"
    show.table([{"name\x1b": hostile, "number": 1234567, "is": True, "none": None}])
    shown = capsys.readouterr().out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202e]", shown)
    together = re.sub(r"\s", "", shown)
    assert "[red]x[/red]" in together and ":smile:" in together, "nothing is taken for markup"
    assert "\\x1b" in together and "\\u202e" in together and "1,234,567" in together
    show.print_json([{"name": hostile}])
    shown = capsys.readouterr().out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202e]", shown)
    assert json.loads(shown) == [{"name": hostile}]


def test_a_long_value_is_broken_into_lines_and_never_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    show.table([{"key": "k" * 100, "why": "w " * 30}])
    shown = capsys.readouterr().out
    assert shown.count("k") == 101 and shown.count("w") == 31
    assert max(map(len, shown.splitlines())) <= 40


@pytest.mark.parametrize(("number", "shown"), [
    (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (10 ** 18, "1,000.0 PB")])
def test_bytes_are_said_as_people_say_them(number: int, shown: str) -> None:
    assert show.size(number) == shown


def test_an_error_of_the_database_is_one_line_with_what_to_do(new_database: NewDatabase) -> None:
    said = says(new_database(), "status", code=2)
    assert said == 'blobgc: schema "gc" does not exist (blobgc install)\n'


def test_whoever_stops_reading_sees_no_error(app: Database) -> None:
    found = subprocess.run(
        f"'{sys.executable}' runner.py install --print | head -1", shell=True, cwd=ROOT,
        env=app.environment, capture_output=True, text=True, check=True)
    assert found.stderr == ""


def test_a_shell_completes_commands_and_options() -> None:
    script = subprocess.run([sys.executable, "-m", "blobgc", "completion"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout
    for words, expected in (("blobgc sta", "status"), ("blobgc run --sto", "--store")):
        asked = " ".join(f"'{word}'" for word in words.split())
        count = len(words.split()) - 1
        found = subprocess.run(
            ["bash", "-c", f'{script}\nCOMP_WORDS=({asked}); COMP_CWORD={count}; _blobgc; '
             'echo "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True)
        assert found.stdout == f"{expected}\n", found.stderr


# Installing


def test_install_creates_the_extension_and_a_second_time_does_nothing(
    new_database: NewDatabase,
) -> None:
    database = new_database()
    said = says(database, "install", "--dry-run")
    assert said.endswith("as an extension\nnothing was done (--dry-run)\n")
    assert f'installing blobgc 0.2.0 in database "{database.name}"' in said
    with database.connect() as conn:
        assert value(conn, "select to_regnamespace('gc')") is None
        assert says(database, "install").endswith("installed blobgc 0.2.0\n")
        assert rows(conn, "select extversion from pg_extension where extname = 'blobgc'") == [
            (blobgc.__version__,)]
        said = says(database, "install")
        assert said.endswith("as an extension: nothing to do\n")
        assert says(database, "upgrade") == said


def test_install_without_extension_files_runs_the_plain_script(
    new_database: NewDatabase, new_role: NewRole, plain_script: str
) -> None:
    owner = new_role("owner")
    database = new_database(owner)
    assert "by the plain script" in says(database, "install", "--plain")
    with database.connect() as conn:
        assert rows(conn, "select from pg_extension where extname = 'blobgc'") == []
        assert value(conn, "select gc.version()") == blobgc.__version__
        assert value(conn, "select count(*) from gc.status()") == 0
    said = says(database, "install", "--plain")
    assert said.endswith("as a plain script: nothing to do\n")
    assert says(database, "upgrade") == said


def test_install_prints_a_script_for_migration_tools(
    new_database: NewDatabase, plain_script: str
) -> None:
    """They know no commands of psql, and have a transaction of their own."""
    printed, by_make = new_database(), new_database()
    script = says(printed, "install", "--print")
    assert not re.search(r"^(\\|begin;|commit;)", script, re.MULTILINE)
    with printed.connect(autocommit=False) as conn, by_make.connect() as other:
        execute(conn, script)
        conn.commit()
        by_make.psql(plain_script)
        assert catalog(conn) == catalog(other)
    printed.run("psql", "-Xqc", "drop schema gc cascade")
    printed.run("psql", "-X1q", "-v", "ON_ERROR_STOP=1", "-f", "-", stdin=script)
    assert says(printed, "install").endswith("as a plain script: nothing to do\n")


def test_install_leaves_a_schema_alone_that_is_not_ours(new_database: NewDatabase) -> None:
    database = new_database()
    database.psql("create schema gc; create table gc.precious (id int)")
    said = says(database, "install", code=2)
    assert 'has a schema "gc" that is not of blobgc' in said
    with database.connect() as conn:
        assert value(conn, "select count(*) from pg_class where relnamespace = "
                     "'gc'::regnamespace") == 1


def test_install_by_a_role_that_may_not_is_said_and_leaves_nothing(
    new_database: NewDatabase, new_role: NewRole
) -> None:
    database = new_database()
    stranger = new_role("stranger")
    for arguments in ([], ["--plain"]):
        said = says(database, "install", *arguments, code=2, PGUSER=stranger)
        assert "permission denied" in said
        with database.connect() as conn:
            assert value(conn, "select to_regnamespace('gc')") is None


def test_upgrade_says_where_there_is_nothing_to_upgrade_or_no_way(
    new_database: NewDatabase,
) -> None:
    database = new_database()
    assert "is not installed in database" in says(database, "upgrade", code=2)
    for arguments, expected in (([], "the server has no files that bring the extension from 0.0.1"),
                                (["--plain"], "there is no way from blobgc 0.0.1 to 0.2.0")):
        database = new_database()
        says(database, "install", *arguments)
        database.psql("create or replace function gc.version() returns text language sql immutable "
                      "set search_path = pg_catalog, pg_temp as $$ select '0.0.1' $$")
        assert expected in says(database, "upgrade", code=2)
        assert "run blobgc upgrade" in says(database, "install", *arguments, code=2)


def test_upgrade_runs_the_script_that_there_is(
    new_database: NewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """There is none so far, so one is made up."""
    database = new_database()
    says(database, "install", "--plain")
    function = ("create or replace function gc.version() returns text language sql immutable "
                "set search_path = pg_catalog, pg_temp as $$ select '{}' $$;")
    database.psql(function.format("0.0.1"))
    script = f"\\set ON_ERROR_STOP on\nbegin;\n{function.format(blobgc.__version__)}\ncommit;\n"
    (tmp_path / f"blobgc-plain--0.0.1--{blobgc.__version__}.sql").write_text(script)
    monkeypatch.setattr("blobgc.scripts.folder", lambda: tmp_path)
    dsn = f"host={database.host} port={database.port} user={database.user} dbname={database.name}"
    assert cli.main(["upgrade", "--dry-run", "--dsn", dsn]) == 0
    with database.connect() as conn:
        assert value(conn, "select gc.version()") == "0.0.1"
        assert cli.main(["upgrade", "--dsn", dsn]) == 0
        assert value(conn, "select gc.version()") == blobgc.__version__
    assert "upgrading blobgc 0.0.1 to 0.2.0" in capsys.readouterr().out
