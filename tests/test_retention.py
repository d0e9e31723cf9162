"""Retention of a registry against a simple evaluation in Python, and what clusters run."""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, Connection, NewDatabase, execute, rows, value
from test_cli import says

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)

# Each pattern of ours beside what it means in Python.
REPOSITORIES = {"**": ".*", "acme/*": "acme/[^/]*", "!acme/app": "(?!acme/app$).*",
                "~.*/(app|web)": ".*/(app|web)"}
TAGS = {"**": ".*", "v*": "v.*", "~v[0-9]+": "v[0-9]+", "!v*": "(?!v).*", "{v,x}1*": "[vx]1.*",
        "x?": "x.", "!~[vx][12].*": "(?![vx][12].*$).*"}
PATHS = ["acme/app", "acme/web", "other/app", "acme/team/app"]


@dataclass
class Tag:
    repository: str
    name: str
    pushed: datetime
    pulled: datetime | None
    is_about: bool
    has_subject: bool
    is_pinned: bool


@dataclass
class Rule:
    id: int
    action: str
    repositories: str
    tags: str
    newest: int | None
    within: timedelta | None
    by: str


@pytest.fixture
def registry(new_database: NewDatabase) -> Iterator[Connection]:
    with new_database().connect() as conn:
        execute(conn, "set client_min_messages = warning; create extension if not exists blobgc")
        rows(conn, "select gc.create_registry(store => 's3://bucket/images')")
        yield conn


def counted(rule: Rule, tag: Tag) -> datetime:
    if rule.by == "pushed" or tag.pulled is None or tag.pulled < tag.pushed:
        return tag.pushed
    return tag.pulled


def matches(rule: Rule, tag: Tag) -> bool:
    return bool(re.fullmatch(REPOSITORIES[rule.repositories], tag.repository)
                and re.fullmatch(TAGS[rule.tags], tag.name))


def is_newest(rule: Rule, tag: Tag, tags: list[Tag]) -> bool:
    """Whether fewer than so many of those that count come before it."""
    assert rule.newest is not None
    if tag.is_about:
        return False
    before = 0
    for other in tags:
        if other.repository == tag.repository and not other.is_about and matches(rule, other):
            later = counted(rule, other) - counted(rule, tag)
            if later > timedelta(0) or later == timedelta(0) and other.name < tag.name:
                before += 1
    return before < rule.newest


def verdict(tag: Tag, tags: list[Tag], rules: list[Rule]) -> tuple[bool, int | None]:
    """Whether it stays, and by which rule."""
    if tag.is_pinned or tag.has_subject:
        return True, None
    kept: list[int] = []
    fixed: list[int] = []
    deleted: list[int] = []
    for rule in rules:
        if not matches(rule, tag):
            continue
        is_among = rule.newest is not None and is_newest(rule, tag, tags)
        is_recent = rule.within is not None and counted(rule, tag) > NOW - rule.within
        if rule.action == "immutable":
            fixed.append(rule.id)
        elif rule.action == "delete" and not is_among and not is_recent:
            deleted.append(rule.id)
        elif rule.action == "keep" and (rule.newest is None or is_among) and (
                rule.within is None or is_recent):
            kept.append(rule.id)
    if fixed:
        return True, min(fixed)
    if kept:
        return True, min(kept)
    if deleted:
        return False, min(deleted)
    return True, None


def some_tags(chance: random.Random, number: int, paths: list[str]) -> list[Tag]:
    found = {}
    for _ in range(number):
        # Few different times, so that some are equal.
        pushed = NOW - timedelta(days=chance.randrange(20))
        pulled = NOW - timedelta(days=chance.randrange(20)) if chance.random() < 0.4 else None
        name = chance.choice("vxz") + str(chance.randrange(number))
        tag = Tag(chance.choice(paths), name, pushed, pulled, False, False, chance.random() < 0.05)
        if chance.random() < 0.1:
            tag.is_about = True
            tag.has_subject = chance.random() < 0.5
        found[tag.repository, tag.name] = tag
    return list(found.values())


def some_rules(chance: random.Random, number: int) -> list[Rule]:
    found = []
    for i in range(number):
        action = chance.choice(["keep"] * 3 + ["delete"] * 6 + ["immutable"])
        newest = chance.choice([None, 0, 1, 3, 10])
        within = chance.choice([None, timedelta(days=3), timedelta(days=10)])
        if action == "immutable":
            newest = within = None
        found.append(Rule(
            i + 1, action, chance.choice(list(REPOSITORIES)), chance.choice(list(TAGS)), newest,
            within, chance.choice(["pushed", "pulled"])))
    return found


def write(conn: Connection, tags: list[Tag], rules: list[Rule]) -> None:
    """As rows, so that they can have the times and the subjects that they have."""
    execute(conn, """create temporary table said (n bigint, path text, name text,
        pushed timestamptz, pulled timestamptz, about bytea, pinned boolean) on commit drop""")
    subject = hashlib.sha256(b"subject").digest()
    with conn.cursor().copy("copy said from stdin") as copy:
        for n, tag in enumerate(tags):
            about = None
            if tag.is_about:
                about = b"\x01" + (subject if tag.has_subject else hashlib.sha256(b"no").digest())
            copy.write_row((n, tag.repository, tag.name, tag.pushed, tag.pulled, about,
                            tag.is_pinned))
    execute(conn, """
        select registry.create_repository(p) from (select distinct path from said) as s(p);
        create temporary table wanted on commit drop as
        select s.*, r.namespace_id, r.id as repository_id from said as s
        join registry.repositories as r on r.path = s.path;
        analyze wanted;
        insert into registry.manifests (namespace_id, repository_id, digest, media_type, payload,
            subject_digest, total_size)
        select w.namespace_id, w.repository_id, '\\x01'::bytea || sha256(w.n::text::bytea), 'x', '',
            w.about, 0
        from wanted as w
        union all
        select distinct w.namespace_id, w.repository_id, '\\x01'::bytea || sha256('subject'), 'x',
            ''::bytea, null::bytea, 0
        from wanted as w;
        insert into registry.tags (namespace_id, repository_id, name, manifest_id, updated_at)
        select w.namespace_id, w.repository_id, w.name, m.id, w.pushed
        from wanted as w join registry.manifests as m on (m.namespace_id, m.repository_id, m.digest)
            = (w.namespace_id, w.repository_id, '\\x01'::bytea || sha256(w.n::text::bytea));
        insert into registry.pulls (namespace_id, repository_id, name, pulled_at)
        select w.namespace_id, w.repository_id, w.name, w.pulled from wanted as w
        where w.pulled is not null;
        select gc.pin('manifest', array(
            select format('(%s,%s,%s)', t.namespace_id, t.repository_id, t.manifest_id)
            from registry.tags as t join wanted as w using (namespace_id, repository_id, name)
            where w.pinned));
        alter table registry.retention alter id restart""")
    for rule in rules:
        rows(conn, """
            insert into registry.retention (action, repositories, tags, newest, within, by)
            values (%s, %s, %s, %s, %s, %s) returning id""", rule.action, rule.repositories,
            rule.tags, rule.newest, rule.within, rule.by)


def judged(conn: Connection) -> dict[tuple[str, str], tuple[bool, int | None]]:
    found = {}
    for path, name, is_kept, rule in rows(
            conn, "select v.path, v.name, v.is_kept, v.rule from registry._judge("
                  "registry._active_repositories('**'), %s) as v", NOW):
        found[path, name] = (is_kept, rule)
    return found


def test_rules_say_what_a_simple_evaluation_says(registry: Connection) -> None:
    seed = int(os.environ.get("BLOBGC_SEED", random.randrange(10**6)))
    kept = deleted = 0
    for world in range(int(os.environ.get("BLOBGC_WORLDS", "12"))):
        chance = random.Random(seed + world)
        tags = some_tags(chance, 60, PATHS)
        rules = some_rules(chance, chance.randrange(1, 7))
        with registry.transaction(force_rollback=True):
            write(registry, tags, rules)
            said = judged(registry)
        for tag in tags:
            wanted = verdict(tag, tags, rules)
            assert said[tag.repository, tag.name] == wanted, (seed + world, tag, rules)
            kept, deleted = kept + wanted[0], deleted + (not wanted[0])
    assert kept > 20 and deleted > 20, "both happen"


def test_reviews_delete_what_a_simple_evaluation_deletes(registry: Connection) -> None:
    """And nothing else. Without times, because reviews go by the clock."""
    seed = int(os.environ.get("BLOBGC_SEED", random.randrange(10**6)))
    chance = random.Random(seed)
    tags = some_tags(chance, 300, PATHS)
    rules = [Rule(1, "delete", "acme/*", "**", 10, None, "pushed"),
             Rule(2, "delete", "**", "!v*", 3, None, "pulled"),
             Rule(3, "keep", "~.*/(app|web)", "~v[0-9]+", 4, None, "pulled"),
             Rule(4, "immutable", "**", "x?", None, None, "pushed")]
    with registry.transaction():
        write(registry, tags, rules)
        execute(registry, "update gc.settings set brake_share = 1, undo = '0'")
    stay = set()
    for tag in tags:
        if verdict(tag, tags, rules)[0]:
            stay.add((tag.repository, tag.name))
    assert 0 < len(stay) < len(tags)
    deleted = value(registry, "select deleted from gc.review() where collection = 'tag'")
    assert deleted == len(tags) - len(stay)
    left = rows(registry, "select r.path, t.name from registry.tags as t "
                          "join registry.repositories as r on r.id = t.repository_id")
    assert set(left) == stay, seed


def test_what_kubernetes_runs_is_pinned(new_database: NewDatabase, tmp_path: Path) -> None:
    database = new_database()
    with database.connect() as conn:
        execute(conn, "set client_min_messages = warning; create extension if not exists blobgc")
        rows(conn, "select gc.create_registry(store => 's3://bucket/images')")
        with conn.transaction():
            write(conn, [Tag("acme/app", "v1", NOW, None, False, False, False),
                         Tag("acme/app", "v2", NOW, None, False, False, False)], [])
        one, two = (row[0] for row in rows(
            conn, "select registry.digest_text(m.digest) from registry.tags as t "
                  "join registry.manifests as m on m.id = t.manifest_id order by t.name"))
        # As "kubectl get pods -o jsonpath" prints it: some pods run the same, or something else.
        printed = (f"registry.example.com/acme/app@{one} docker-pullable://quay.io/other/image@{two}"
                   f"\n  registry.example.com/acme/app@{one} sha256:{'0' * 64} ")
        (tmp_path / "running").write_text(printed)
        said = says(database, "deployed", str(tmp_path / "running"), "--holder", "production")
        assert said.strip() == "1 of 3 images are pinned for production"
        assert rows(conn, "select holder, reason, until > now() + interval '23 hours' "
                          "from gc.pins") == [("production", "deployed", True)]
    job = yaml.safe_load((ROOT / "docker" / "deployed.yaml").read_text())
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][0] == "deployed"
    assert "> " + pod["containers"][0]["args"][1] in pod["initContainers"][0]["args"][0]
