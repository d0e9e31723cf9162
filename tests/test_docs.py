"""The documents are true: what they show is run, and where they point is something.

A block that begins with ```sql run is run by psql, all of a document's in one new database and in
their order. If a ```text block follows at once, psql prints that, but for spaces at the ends of
lines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, Connection, Database, NewDatabase, execute, rows
from psycopg import sql

DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
RUNNABLE = ["concepts.md", "production.md", "receipts.md"]

BLOCK = re.compile(r"^```sql run\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def name(document: Path) -> str:
    return document.name


@pytest.fixture
def fresh(new_database: NewDatabase) -> Iterator[Database]:
    """A database of its own; roles that a document makes go with it."""
    database = new_database()
    with database.connect() as conn:
        before = roles(conn)
    yield database
    with database.connect() as conn:
        for role in roles(conn) - before:
            execute(conn, sql.SQL("drop owned by {0} cascade; drop role {0}").format(
                sql.Identifier(role)).as_string(conn))


def roles(conn: Connection) -> set[str]:
    return {row[0] for row in rows(conn, "select rolname from pg_roles")}


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


# What is shown


@pytest.mark.parametrize("document", RUNNABLE)
def test_the_sql_of_a_document_runs_and_prints_what_it_says(
    document: str, fresh: Database
) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / document).read_text())
    assert len(blocks) >= 2
    for block, expected in blocks:
        printed = fresh.run("psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-f", "-", stdin=block)
        if expected:
            assert trimmed(printed) == trimmed(expected), block


# A block of ```console: after a $ is what is typed, and below it what is printed, in which … stands
# for anything.
STEP = re.compile(
    r"^```(sql run|console)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def typed(block: str) -> list[tuple[str, str]]:
    """The commands of a block, each with what it prints."""
    found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    assert sum(1 for line in block.splitlines() if line.startswith("$ ")) == len(found) > 0
    return found


def is_printed(expected: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in "\n".join(trimmed(expected)).split("…"))
    return re.fullmatch(pattern, "\n".join(trimmed(printed)), re.DOTALL) is not None


def follow(document: Path, database: Database, folder: Path, programs: Path) -> int:
    """Each command of a document, in its order, with the bucket in another folder."""
    environment = database.environment | {
        "PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "120", "PGTZ": "UTC"}
    text = document.read_text()
    blocks = STEP.findall(text.replace("/tmp/bucket", f"{folder}/bucket"))
    assert len(blocks) == text.count("```sql run\n") + text.count("```console\n")
    commands = 0
    for kind, block, expected in blocks:
        if kind == "sql run":
            printed = database.run("psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-f", "-", stdin=block)
            assert not expected or trimmed(printed) == trimmed(expected), block
            continue
        for line, output in typed(block):
            commands += 1
            found = subprocess.run(
                ["bash", "-c", f"({line}\n) 2>&1"], env=environment, cwd=folder, check=False,
                capture_output=True, text=True, timeout=60)
            assert found.returncode == 0 and is_printed(output, found.stdout), (
                f"{line}\n{found.stdout}")
    return commands


def test_a_careful_operator_can_follow_the_first_steps(fresh: Database, tmp_path: Path) -> None:
    command = tmp_path / "blobgc"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/runner.py "$@"\n')
    command.chmod(0o755)
    assert follow(ROOT / "docs" / "before-you-start.md", fresh, tmp_path, tmp_path) > 10
    with fresh.connect() as conn:
        assert rows(conn, "select count(*), min(id) from gc.deletion_log") == [(1, 1)]
    assert not (tmp_path / "bucket" / "10").exists()
    assert (tmp_path / "bucket" / "9").exists()


# Where it points


def anchors(document: Path) -> set[str]:
    """The headings as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(document: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", FENCED.sub("", document.read_text()))
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        is_there = target.exists() and (not anchor or anchor in anchors(target))
        if not re.match(r"[a-z]+:", link) and not is_there:
            dead.append(link)
    return dead


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_link_leads_somewhere(document: Path) -> None:
    assert dead_links(document) == []


def test_a_link_that_leads_nowhere_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, `quoted`\n```\n# no heading\n```\n")
    here = tmp_path / "here.md"
    here.write_text(
        "[a](there.md) [b](there.md#a-heading-quoted) [c](https://example.org/x) `[d](code)`\n"
        "[e](nowhere.md) [f](there.md#no-heading) [g](#nothing)\n"
    )
    assert dead_links(here) == ["nowhere.md", "there.md#no-heading", "#nothing"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_file_and_every_test_that_is_named_is_there(document: Path) -> None:
    text = document.read_text()
    paths = re.findall(r"`((?:bench|docker|docs|presets|sql|tests)/[\w./-]+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []

    tests = "\n".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", text)
    assert [test for test in named if f"def {test}(" not in tests] == []

    specs = re.findall(r"`([\w-]+)\.spec`", text)
    assert [s for s in specs if not list((ROOT / "tests/specs").rglob(f"{s}.spec"))] == []


def test_every_metric_that_is_named_is_there(fresh: Database) -> None:
    text = (ROOT / "docs" / "production.md").read_text()
    named = set(re.findall(r"\bblobgc_[a-z_]+", text))
    assert len(named) > 5
    fresh.psql("create extension blobgc; create table file (id int primary key);")
    with fresh.connect() as conn:
        execute(conn, "select gc.track('file', url => $$'s3://b/' || id$$, condition => 'true');"
                      "insert into file values (1); delete from file")
        assert named <= {row[0] for row in rows(conn, "select name from gc.metrics")}


def test_the_files_of_the_extension_are_listed_in_their_order() -> None:
    makefile = (ROOT / "Makefile").read_text()
    listed = re.findall(r"^\| `(sql/\w+\.sql)` \|", (ROOT / "docs" / "contributing.md").read_text(),
                        re.MULTILINE)
    assert listed == [*re.findall(r"^\t(sql/\w+\.sql)", makefile, re.MULTILINE), "sql/dump.sql"]


def test_the_files_of_the_registry_are_listed_in_their_order() -> None:
    file = r"(presets/registry/\w+\.sql)"
    run = re.findall(rf"^\t{file}", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(run) == sorted(f"presets/registry/{path.name}"
                                 for path in (ROOT / "presets" / "registry").glob("*.sql"))
    contributing = (ROOT / "docs" / "contributing.md").read_text()
    assert re.findall(rf"^\| `{file}` \|", contributing, re.MULTILINE) == run


# The reference


def test_the_reference_is_what_the_database_says(fresh: Database) -> None:
    fresh.psql("create extension blobgc")
    result = subprocess.run([ROOT / "docs" / "generate"], env=fresh.environment, check=True,
                            capture_output=True, text=True)
    assert result.stdout == (ROOT / "docs" / "reference.md").read_text(), (
        "docs/reference.md is not what docs/generate prints: make reference")


UNCOMMENTED = """
select format('function %s', p.oid::regprocedure)
from pg_proc as p
where p.pronamespace = 'gc'::regnamespace and p.proname not like '\\_%'
    and obj_description(p.oid, 'pg_proc') is null
union all
select format('%s %s', case when a.attnum is null then 'relation' else 'column' end,
    concat_ws('.', c.oid::regclass, a.attname))
from pg_class as c
left join lateral (
    select null, null where obj_description(c.oid, 'pg_class') is null
    union all
    select a.attname, a.attnum from pg_attribute as a
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        and col_description(c.oid, a.attnum) is null
) as a(attname, attnum) on true
where c.relnamespace = 'gc'::regnamespace and c.relname not like '\\_%'
    and c.relkind in ('r', 'p', 'v', 'm') and a is distinct from null
"""


def uncommented(database: Database) -> str:
    return database.run("psql", "-XAtq", "-f", "-", stdin=UNCOMMENTED)


def test_every_public_object_has_a_comment(fresh: Database) -> None:
    fresh.psql("create extension blobgc")
    assert uncommented(fresh) == ""
    fresh.psql("comment on function gc.review(integer) is null; comment on table gc.holds is null;"
               "comment on column gc.settings.jitter is null")
    assert set(uncommented(fresh).splitlines()) == {
        "function gc.review(integer)", "relation gc.holds", "column gc.settings.jitter"}


def test_numbers_in_the_readme_come_from_the_results() -> None:
    speed = re.search(r"^## Speed\n(.*?)^## ", (ROOT / "README.md").read_text(),
                      re.MULTILINE | re.DOTALL)
    assert speed is not None
    table = re.findall(r"^\| (?!what)[^-].*$", speed[1], re.MULTILINE)
    quoted = [re.findall(r"\*\*([\d.,]+) ×\*\*", row) for row in table]
    measured = re.findall(r"\| ([\d.,]+) \(", (ROOT / "bench/RESULTS.md").read_text())
    assert len(quoted) >= 5 and all(quoted)
    assert {number for row in quoted for number in row} <= set(measured)


def test_the_picture_shows_the_numbers_of_the_readme() -> None:
    speed = re.search(r"^## Speed\n(.*?)^## ", (ROOT / "README.md").read_text(),
                      re.MULTILINE | re.DOTALL)
    assert speed is not None
    drawn = re.findall(r'class="value"[^>]*>([\d.,]+) ×<', (ROOT / "bench/results.svg").read_text())
    assert sorted(drawn) == sorted(re.findall(r"\*\*(\d[\d.,]*)", speed[1]))
