"""pg_dump and restore: everything is the same afterwards, and everything goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from conftest import (
    APP,
    NO_DELAY,
    TRACK,
    Connection,
    Database,
    NewDatabase,
    NewRole,
    catalog,
    contents,
    execute,
    rows,
    value,
)

# A key of two columns with names that need quotes; images that share objects; rows without any.
MORE_APP = """
create table app."Big Album" (
    "Tenant" integer, "event" date, shut boolean not null default false,
    primary key ("Tenant", "event")
);
create table app.picture (
    id integer primary key, tenant integer, day date,
    foreign key (tenant, day) references app."Big Album"
);
create index on app.picture (tenant, day);
create table app.image (id integer primary key, url text);
create index on app.image ((url));
create table app.usage (image_id integer references app.image);
create index on app.usage (image_id);
"""

TRACK_MORE = """
select * from gc.track('app."Big Album"', label => $$"Tenant" || ' it''s'$$, condition => 'shut',
    owned => '{picture}', events => '{"Big Album_update": "album_shut"}');
select * from gc.track('app.image', url => 'url', undo => '1 hour');
create table app.mention (images integer[]);
create index on app.mention using gin (images);
insert into app.mention values ('{1000, null}');
select * from gc.declare_reference('image', 'app.mention', 'images');
"""

SETTINGS = """
update gc.settings set max_rows = 321, strict_uploads = false, backoff = '7 minutes';
insert into gc.review_after_defaults values ('album_shut', '3 days'), ('image_insert', '0');
"""


# As if a runner had looked at the marker.
COMPARED = "update gc.markers set checked_at = clock_timestamp()"


def fill(conn: Connection) -> None:
    """Put something into every table that blobgc has."""
    execute(conn, APP + MORE_APP + NO_DELAY + SETTINGS + TRACK + TRACK_MORE)
    execute(conn, "insert into app.file select n, n from generate_series(1, 9) as n")
    execute(conn, "insert into app.post values (8, 8), (9, 9)")
    assert rows(conn, "select kept, deleted from gc.review() where collection = 'file'") == [(2, 7)]

    # Of seven tombstones one is confirmed, one failed, two are leased, one of them no longer.
    ids = [row[0] for row in rows(conn, "select id from gc.claim('one', 4) order by key")]
    assert len(ids) == 4
    assert value(conn, "select gc.confirm('one', %s)", ids[:1]) == 1
    assert value(conn, "select gc.fail('one', %s, 'status 503')", ids[1:2]) == 1
    rows(conn, "update gc.tombstones set due_at = now() - interval '1 s' where id = %s returning 1",
         ids[2])

    # Somebody writes an object again whose tombstone waits; somebody uses a file.
    waiting = rows(conn, "select key from gc.tombstones where worker is null and failures = 0")
    assert len(waiting) == 3
    rows(conn, "select gc.begin_upload('file', %s)", waiting[0][0])
    assert value(conn, "select gc.keep_alive('file', '8')") is True

    # A queue with one entry that fails and one that is far off; a scan in its middle, and one
    # that TRUNCATE has asked for.
    execute(conn, """
        insert into app."Big Album" values (1, '2024-01-01'), (2, '2024-02-02');
        update app."Big Album" set shut = true;
        insert into app.picture values (1, 1, '2024-01-01');
        create function app.refuse() returns trigger language plpgsql
            as $$ begin raise 'not this one'; end $$;
        create trigger refuse before delete on app.file
            for each row when (old.id = 9) execute function app.refuse();
        delete from app.post where id = 9;
    """)
    assert rows(conn, "select failed from gc.review() where collection = 'file'") == [(1,)]
    assert value(conn, "select gc.scan('Big Album', 1)") == 1
    execute(conn, "insert into gc.unused_tables values ('a_queue')")
    execute(conn, "select gc.ignore_suspect('file', 'app.post', 'id')")
    # A row that was kept whole, and is tried again much later.
    execute(conn, """
        insert into gc.unread_rows (collection, content, relation, columns, due_at)
        values ('file', '{"id": 99}', 'app.file'::regclass, '{"id": 1}', 'infinity')
    """)

    # What people have said: a pause, a pin, another brake, and an allowance.
    execute(conn, """
        select gc.pause('Big Album', 'a pause', what => 'deletes');
        select gc.pin('Big Album', '(1,2024-01-01)', 'a pin', holder => 'somebody');
        select gc.set_brake('image', rows => 5000), gc.resume('image', allow => 7);
    """)

    # A cause, what was kept because of it, an export of the log, a finalizer that was struck off.
    execute(conn, """
        insert into gc.causes (cause) values ('ticket 4711');
        insert into gc.kept_rows (collection, key, causes) values ('file', '8', '{ticket 4711}');
        insert into gc.erasures (collection, key, causes, deleted_at)
        values ('file', '1', '{ticket 4711}', now());
        insert into gc.struck_finalizers (collection, key, url, finalizer, reason)
        values ('file', '1', 'file:///store/1', 'audit', 'no auditor');
        insert into gc.markers (prefix, place) values ('s3://b/', '{}');
    """)

    # An object of two images, whose tombstone was seen by a server with many more transactions.
    execute(conn, """
        insert into app.image values (1, 'gs://b/same'), (2, 'gs://b/same'), (3, 'gs://b/three');
        insert into app.usage values (1);
    """)
    assert rows(conn, "select kept, deleted from gc.review() where collection = 'image'") == [
        (1, 2)
    ]
    execute(conn, """
        update gc.tombstones set wait_for = '99999999999', due_at = now()
            where collection = 'image';
        truncate app.usage;
    """)

    # A key that has changed, which no pin has followed so far.
    execute(conn, """
        insert into gc.key_changes (collection, old_keys, new_keys) values ('file', '{98}', '{97}')
    """)


def assert_filled(stored: dict[str, list[str]]) -> None:
    """A table without rows would show nothing about a dump."""
    empty = sorted(name for name, found in stored.items() if not found)
    assert empty == ["app.usage", "gc.durable_points", "gc.image_review_queue"]


def settings_of(conn: Connection) -> list[tuple[object, ...]]:
    return rows(conn, "select max_rows, backoff::text, jitter::text from gc.settings")


Restore = Callable[[Database, Database, Path], None]


def by_psql(source: Database, target: Database, folder: Path) -> None:
    target.psql("begin;\n" + source.run("pg_dump") + "\ncommit;")


def by_inserts(source: Database, target: Database, folder: Path) -> None:
    target.psql(source.run("pg_dump", "--inserts"))


def by_pg_restore(source: Database, target: Database, folder: Path) -> None:
    source.run("pg_dump", "-Fc", "-f", folder / "dump")
    target.run("pg_restore", "--exit-on-error", "-d", target.name, folder / "dump")


def by_parallel_pg_restore(source: Database, target: Database, folder: Path) -> None:
    source.run("pg_dump", "-Fd", "-j", "2", "-f", folder / "dump")
    target.run("pg_restore", "--exit-on-error", "-j", "4", "-d", target.name, folder / "dump")


def in_sections(source: Database, target: Database, folder: Path) -> None:
    """The data into tables that are there already, as --schema-only and --data-only are used."""
    for section in "pre-data", "data", "post-data":
        target.psql(source.run("pg_dump", f"--section={section}"))


ALL = [by_psql, by_inserts, by_pg_restore, by_parallel_pg_restore, in_sections]


def assert_same(source: Connection, target: Connection) -> None:
    assert settings_of(target) == [(321, "00:07:00", "00:00:00")]
    stored = contents(source, "gc", "app")
    assert_filled(stored)
    assert contents(target, "gc", "app") == stored
    assert catalog(target) == catalog(source)


def assert_goes_on(conn: Connection) -> None:
    """The whole life of rows, where the dump cut it."""
    newest = value(conn, "select max(id) from gc.tombstones")
    newest_log = value(conn, "select max(id) from gc.deletion_log")

    # Worker "one" still has its lease; the one that is over and the waiting ones are handed out.
    leased = [row[0] for row in rows(
        conn, "select id from gc.tombstones where worker = 'one' and due_at > now()")]
    assert len(leased) == 1
    assert value(conn, "select gc.confirm('one', %s)", leased) == 1
    assert value(conn, "select min(id) from gc.deletion_log where id > %s", newest_log) > newest_log
    execute(conn, COMPARED)
    claimed = rows(conn, "select id, collection, url from gc.claim('two')")
    # One is being uploaded, one has failed, image 1 is alive: those are not handed out.
    assert sorted(row[1] for row in claimed) == ["file"] * 3 + ["image"]
    assert [row[2] for row in claimed if row[1] == "image"] == ["gs://b/three"]
    assert value(conn, "select gc.confirm('two', %s)", [row[0] for row in claimed]) == 4
    assert rows(conn, "select collection, failures, last_error, event from gc.tombstones "
                      "order by failures") == [
        ("file", 0, None, "file_insert"), ("file", 1, "status 503", "file_insert")
    ]
    uploading = value(conn, "select key from gc.holds where reason = 'upload'")
    assert value(conn, "select key from gc.tombstones where failures = 0") == uploading
    assert value(conn, "select gc.end_upload('file', %s)", uploading) is True

    # Tracking and review: nothing was queued twice, ids go on where they were.
    last_entry = value(conn, "select coalesce(max(entry), 0) from gc.file_review_queue")
    execute(conn, "insert into app.file values (100, 1)")
    entries = rows(conn, "select entry, event from gc.file_review_queue where id = 100")
    assert entries == [(last_entry + 1, "file_insert")]
    assert rows(conn, "select collection, deleted, failed from gc.review()") == [
        ("Big Album", 0, 0), ("file", 1, 0), ("image", 0, 0)
    ]
    # The code knew the tables by their oids, and is made again by the first review.
    assert rows(
        conn, "select name, problem from gc.collections as c "
              "where problem is not null or fingerprint is distinct from gc._fingerprint(c)"
    ) == []
    assert value(conn, "select id from gc.tombstones where key = '100'") > newest
    # The pending delay, the failure, the hold and the scan that TRUNCATE asked for came along.
    assert rows(conn, "select event, review_after > now() + interval '2 days' "
                      'from gc."Big Album_review_queue" order by entry desc limit 1') == [
        ("album_shut", True)
    ]
    assert rows(conn, "select review_count, last_error from gc.file_review_queue "
                      "where id = 9") == [(1, "not this one")]
    execute(conn, "delete from app.post where id = 8")
    assert rows(conn, "select busy, deleted from gc.review() where collection = 'file'") == [(1, 0)]
    assert value(conn, "select count(*) from app.file where id = 8") == 1
    assert rows(conn, "select reason from gc.scan_requests") == []
    assert rows(conn, "select event from gc.image_review_queue") == [("image_scan",)]
    # What was declared is known, and so is what went.
    assert rows(conn, "select collection, referencing::text, keys from gc.declared_references") == [
        ("image", "app.mention", "images")
    ]
    with pytest.raises(psycopg.Error) as refused:
        execute(conn, "insert into app.mention values ('{2}')")
    assert refused.value.sqlstate == "ZG005"

    # And the definition can be changed.
    execute(conn, "select gc.track('app.file', url => $$'file:///elsewhere/' || id$$)")
    execute(conn, "insert into app.file values (101, 1); delete from app.file where id = 101")
    assert value(conn, "select url from gc.tombstones where key = '101'") == "file:///elsewhere/101"


@pytest.mark.parametrize("restore", ALL)
def test_a_dump_restored_into_an_empty_database_is_the_same_and_goes_on(
    restore: Restore, new_database: NewDatabase, tmp_path: Path
) -> None:
    source, target = new_database(), new_database()
    with source.connect() as conn:
        execute(conn, "create extension blobgc")
        fill(conn)
        restore(source, target, tmp_path)
        with target.connect() as restored:
            assert_same(conn, restored)
            assert_goes_on(restored)


@pytest.mark.parametrize("restore", [by_psql, by_pg_restore])
def test_a_dump_made_and_restored_by_an_owner_without_superuser_rights_goes_on(
    restore: Restore, new_database: NewDatabase, new_role: NewRole, tmp_path: Path
) -> None:
    owner = new_role("owner")
    source, target = new_database(owner), new_database(owner)
    with source.connect() as conn:
        execute(conn, "create extension blobgc")
        fill(conn)
        restore(source, target, tmp_path)
        with target.connect() as restored:
            assert not value(restored, "select rolsuper from pg_roles where rolname = current_user")
            assert_same(conn, restored)
            assert_goes_on(restored)


@pytest.mark.parametrize("restore", [by_psql, by_pg_restore])
def test_a_dump_of_the_plain_installation_is_the_same_and_goes_on(
    restore: Restore, new_database: NewDatabase, plain_script: str, tmp_path: Path
) -> None:
    source, target = new_database(), new_database()
    source.psql(plain_script)
    with source.connect() as conn:
        fill(conn)
        restore(source, target, tmp_path)
        with target.connect() as restored:
            assert_same(conn, restored)
            assert_goes_on(restored)


def test_a_dump_restored_under_another_owner_belongs_to_that_owner_and_goes_on(
    new_database: NewDatabase, new_role: NewRole, tmp_path: Path
) -> None:
    source, target = new_database(), new_database(new_role("other"))
    with source.connect() as conn:
        execute(conn, "create extension blobgc")
        fill(conn)
        source.run("pg_dump", "-Fc", "-f", tmp_path / "dump")
        target.run("pg_restore", "--exit-on-error", "--no-owner", "--no-privileges",
                   "-d", target.name, tmp_path / "dump")
        with target.connect() as restored:
            assert contents(restored, "gc", "app") == contents(conn, "gc", "app")
            assert_goes_on(restored)


def test_grants_of_a_runner_come_along_with_a_dump(
    new_database: NewDatabase, new_role: NewRole, tmp_path: Path
) -> None:
    runner, viewer = new_role("runner"), new_role("viewer")
    source, target = new_database(), new_database()
    with source.connect() as conn:
        execute(conn, "create extension blobgc")
        fill(conn)
        execute(conn, f"select gc.grant_runner('{runner}'), gc.grant_viewer('{viewer}')")
        by_pg_restore(source, target, tmp_path)
        with target.connect() as restored:
            assert catalog(restored) == catalog(conn)
            execute(restored, COMPARED)
    with target.connect(user=runner) as conn:
        assert len(rows(conn, "select * from gc.review()")) == 3
        assert len(rows(conn, "select * from gc.claim('runner')")) == 4
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            rows(conn, "select * from gc.settings")
    with target.connect(user=viewer) as conn:
        assert len(settings_of(conn)) == 1
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            rows(conn, "select * from gc.claim('viewer')")
