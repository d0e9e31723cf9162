"""docs/registry.md does what it says: its SQL is run as it stands there."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT, Connection, NewDatabase, execute, rows, value

DOCUMENT = (ROOT / "docs" / "registry.md").read_text()
USE, ADOPT = DOCUMENT.split("\n## Adopting a registry that exists\n")

# A registry that is not ours: other names, no states, a subject that is a foreign key of its own.
HUB = """
create schema hub;
create table hub.org (id bigint primary key, name text unique);
create table hub.repo (
    org_id bigint references hub.org, id bigint, name text, deleted_at timestamptz,
    primary key (org_id, id)
);
create table hub.object (digest bytea primary key, bytes bigint not null) {by_digest};
create table hub.link (
    org_id bigint, repo_id bigint, digest bytea references hub.object on delete cascade,
    primary key (org_id, repo_id, digest),
    foreign key (org_id, repo_id) references hub.repo on delete cascade
) {by_org};
create table hub.image (
    org_id bigint, repo_id bigint, id bigint, name text,
    config_digest bytea references hub.object, subject_id bigint,
    primary key (org_id, repo_id, id),
    foreign key (org_id, repo_id) references hub.repo on delete cascade,
    foreign key (org_id, repo_id, subject_id) references hub.image on delete cascade
) {by_org};
create table hub.image_layer (
    org_id bigint, repo_id bigint, image_id bigint, n integer,
    digest bytea not null references hub.object,
    primary key (org_id, repo_id, image_id, n),
    foreign key (org_id, repo_id, image_id) references hub.image on delete cascade
) {by_org};
create table hub.list_entry (
    org_id bigint, repo_id bigint, list_id bigint, image_id bigint,
    primary key (org_id, repo_id, list_id, image_id),
    foreign key (org_id, repo_id) references hub.repo on delete cascade,
    foreign key (org_id, repo_id, list_id) references hub.image on delete cascade,
    foreign key (org_id, repo_id, image_id) references hub.image
) {by_org};
create table hub.tag (
    org_id bigint, repo_id bigint, name text, image_id bigint not null,
    primary key (org_id, repo_id, name),
    foreign key (org_id, repo_id) references hub.repo on delete cascade,
    foreign key (org_id, repo_id, image_id) references hub.image on delete cascade
) {by_org};
"""

PARTITIONS = """
do $$
declare
    command text;
begin
    for command in
        select format('create table hub.%I partition of hub.%I for values with (modulus 4, '
            'remainder %s)', relname || n, relname, n)
        from pg_class cross join generate_series(0, 3) as n
        where relnamespace = 'hub'::regnamespace and relkind = 'p'
    loop
        execute command;
    end loop;
end
$$;
"""

# Two organizations with the same images. Some are garbage of old: nobody followed their deletion.
ROWS = """
insert into hub.org values (1, 'acme'), (2, 'umbrella');
insert into hub.repo select id, 1, 'app', null from hub.org;
insert into hub.repo select id, 2, 'old', now() from hub.org;
insert into hub.object
select '\\x01'::bytea || sha256(o::bytea), length(o)
from unnest('{base, live, signature, amd64, arm64, untagged, left over, deleted}'::text[]) as o;
insert into hub.image
select o.id, i.repo, i.id, i.name, '\\x01'::bytea || sha256(i.config::bytea), i.subject
from hub.org as o
cross join (values
    (1, 1, 'tagged', 'live', null), (1, 2, 'signature', 'signature', 1),
    (1, 3, 'list', null, null), (1, 4, 'in a list', 'amd64', null),
    (1, 5, 'untagged', 'untagged', null), (1, 6, 'signature of untagged', null, 5),
    (1, 7, 'untagged list', null, null), (1, 8, 'in an untagged list', 'arm64', null),
    (2, 9, 'deleted', 'deleted', null)
) as i(repo, id, name, config, subject);
insert into hub.image_layer
select org_id, repo_id, id, 1, '\\x01'::bytea || sha256('base') from hub.image
where config_digest is not null;
insert into hub.list_entry
select id, 1, list, list + 1 from hub.org cross join (values (3), (7)) as l(list);
insert into hub.tag
select id, 1, 'v1', 1 from hub.org union all select id, 1, 'multi', 3 from hub.org
union all select id, 2, 'v1', 9 from hub.org;
insert into hub.link select r.org_id, r.id, digest from hub.repo as r cross join hub.object;
"""


def blocks(part: str) -> list[str]:
    """The SQL of a part of the document."""
    return re.findall(r"^```sql\n(.*?)^```", part, re.MULTILINE | re.DOTALL)


def images(conn: Connection) -> set[str]:
    return {row[0] for row in rows(conn, "select distinct name from hub.image")}


def test_the_document_shows_how_a_registry_is_used(new_database: NewDatabase) -> None:
    database = new_database()
    shown = blocks(USE)
    assert len(shown) == 11
    try:
        database.psql("\n".join(shown))
        with database.connect() as conn:
            assert rows(conn, "select registry.list_repositories()") == [
                ("acme/app",), ("acme/import",)
            ]
            assert rows(conn, "select repository, manifests, deduplicated_bytes "
                              "from registry.repository_usage order by 1") == [
                ("acme/app", 1, 2), ("acme/import", 0, 0)
            ]
            execute(conn, "set role app")
            assert value(conn, "select registry.has_blob('acme/app', 'sha256:44136fa355b3678a"
                               "1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a')")
    finally:
        with database.connect() as conn:
            execute(conn, "drop owned by app; drop role app")


def test_the_document_names_every_operation_and_every_error(new_database: NewDatabase) -> None:
    with new_database().connect() as conn:
        execute(conn, "create extension blobgc")
        value(conn, "select gc.create_registry(store => 's3://bucket')")
        operations = rows(conn, """
            select proname || '(' || array_to_string(proargnames[:pronargs], ', ') || ')'
            from pg_proc
            where pronamespace = 'registry'::regnamespace and proname ~ '^[a-z]+'
                and proname !~ '^(is_|digest_|blob_url|blob_at|find_|activate_)'
        """)
        missing = [name for (name,) in operations if f"`{name}`" not in USE]
        assert missing == []
        source = value(conn, "select gc._registry_preset()")
    raised = set(re.findall(r"'(ZR\d+)'", source))
    listed = set(re.findall(r"ZR\d+", source.split("\n\n")[0]))
    documented = set(re.findall(r"^\| `(ZR\d+)` ", USE, re.MULTILINE))
    assert raised == listed == documented


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_registry_that_exists_is_adopted_by_the_sql_of_the_document(
    new_database: NewDatabase, partitioned: bool
) -> None:
    database = new_database()
    with database.connect() as conn:
        execute(conn, "create extension blobgc; update gc.settings set jitter = '0', undo = '0'")
        execute(conn, HUB.format(
            by_digest="partition by hash (digest)" if partitioned else "",
            by_org="partition by hash (org_id)" if partitioned else ""))
        if partitioned:
            execute(conn, PARTITIONS)
        execute(conn, ROWS)
        before = images(conn)
        assert len(before) == 9

        indexes, track, delays, scan, usual, first_run = blocks(ADOPT)
        database.psql(indexes + track + delays)
        assert rows(conn, "select * from gc.review() where reviewed > 0") == []
        assert images(conn) == before

        database.psql(scan)
        queued = rows(conn, "select collection, queued from gc.status() order by 1")
        assert queued == [("blob", 1), ("manifest", 4), ("repository", 2)]
        database.psql(usual)
        assert rows(conn, "select event from gc.review_after_defaults "
                          "where event like '%%_scan' and %s", True) == []

        # A little of it, and then all that follows from it, day after day.
        database.psql(first_run)
        assert images(conn) < before
        for _ in range(5):
            execute(conn, """
                update gc.blob_review_queue set review_after = now();
                update gc.manifest_review_queue set review_after = now();
                update gc.repository_review_queue set review_after = now();
            """)
            assert rows(conn, "select * from gc.review() where failed > 0") == []
        assert images(conn) == {"tagged", "signature", "list", "in a list"}
        assert value(conn, "select count(*) from hub.image") == 8
        assert rows(conn, "select distinct name from hub.repo") == [("app",)]
        kept = ["base", "live", "signature", "amd64"]
        assert value(conn, "select array_agg(digest order by digest) = array(select "
                           "'\\x01'::bytea || sha256(o::bytea) from unnest(%s::text[]) as o "
                           "order by 1) from hub.object", kept)

        # Their objects are held back for the time of undo, and then handed out.
        assert rows(conn, "select * from gc.claim('runner')") == []
        execute(conn, "update gc.tombstones set due_at = now()")
        claimed = rows(conn, "select url, size from gc.claim('runner') order by size")
        assert [size for _, size in claimed] == [5, 7, 8, 9]
        assert claimed[0][0] == value(
            conn, "select format('s3://hub/docker/registry/v2/blobs/sha256/%%s/%%s/data', "
                  "left(h, 2), h) from encode(sha256('arm64'), 'hex') as h where %s", True)
