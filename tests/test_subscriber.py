"""Logical replication: a subscriber deletes nothing, whatever is replicated to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import psycopg
import pytest
from cluster import Cluster, cluster_of_its_own
from conftest import Connection, execute, rows, value, wait_until
from stores import FileObjects
from test_markers import collect
from worlds import World, make_template

from blobgc.errors import HELD_UP, SUCCESS


class Replicated:
    """Two databases with the same tables, of which one is to subscribe to the other."""

    def __init__(self, server: Cluster, files: FileObjects, stack: ExitStack) -> None:
        self.files = files
        with server.database.connect() as conn:
            for name in "publisher", "subscriber":
                execute(conn, f"create database {name} template runner_template")
        self.publisher = replace(server.database, name="publisher")
        self.subscriber = replace(server.database, name="subscriber")
        self.world = World(self.publisher, files).track()
        self.here = stack.enter_context(self.publisher.connect())
        self.there = stack.enter_context(self.subscriber.connect())

    def subscribe(self, tables: str) -> None:
        """In one server CREATE SUBSCRIPTION would wait for itself, if it made the slot."""
        execute(self.here, f"create publication app for {tables}")
        execute(self.here, "select pg_create_logical_replication_slot('app', 'pgoutput')")
        self.there.execute(f"create subscription app connection 'host={self.publisher.host} "
                           f"port={self.publisher.port} user=postgres dbname=publisher' "
                           "publication app with (create_slot = false, copy_data = false)".encode())

    def catch_up(self) -> None:
        end = value(self.here, "select pg_current_wal_lsn()")
        wait_until(lambda: bool(value(
            self.here, "select confirmed_flush_lsn >= %s from pg_replication_slots "
            "where slot_name = 'app'", end)), "the subscriber to follow")

    def remove(self) -> None:
        execute(self.there, "drop subscription if exists app")


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with cluster_of_its_own(
            "wal_level = logical", "fsync = off", "autovacuum = off",
            "wal_receiver_status_interval = 1", "wal_retrieve_retry_interval = 100",
            name="logical") as made:
        make_template(made.database)
        yield made


@pytest.fixture
def replicated(server: Cluster, files: FileObjects) -> Iterator[Replicated]:
    with ExitStack() as stack:
        both = Replicated(server, files, stack)
        yield both
        both.remove()
    with server.database.connect() as conn:
        for database in "publisher", "subscriber":
            execute(conn, f"drop database {database} with (force)")


def review_all(conn: Connection) -> int:
    """What a review deletes that looks at every row."""
    execute(conn, "insert into gc.review_after_defaults values ('file_scan', '0') "
            "on conflict do nothing; select gc.scan('file')")
    return int(value(conn, "select sum(deleted) from gc.review()") or 0)


def test_a_subscriber_collects_nothing_until_it_takes_the_publishers_place(
    replicated: Replicated,
) -> None:
    here, there = replicated.here, replicated.there
    World(replicated.subscriber, replicated.files).track()
    replicated.subscribe("table app.file, app.post")
    replicated.world.write(here, range(1, 4))
    execute(here, "insert into app.post values (1, 1)")
    replicated.catch_up()
    assert rows(there, "select id from app.file order by id") == [(1,), (2,), (3,)]
    assert value(there, "select count(*) from gc.file_review_queue") == 0, "no trigger has fired"

    assert review_all(there) == 0
    assert 'is written by the subscription "app"' in value(there, "select why from gc.status()")
    found = rows(there, "select severity, command from gc.check() where subject = 'file'")
    assert ("error", "Collect where the rows are written first; here, when this database takes its "
            "place: drop subscription app;") in found
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="is written by the sub"):
        World(replicated.subscriber, replicated.files).track()

    assert collect(replicated.publisher, replicated.files) == SUCCESS
    assert replicated.files.names() == {"1"}
    replicated.catch_up()
    assert rows(there, "select id from app.file") == [(1,)], "what the publisher collects goes here"
    assert value(there, "select count(*) from gc.tombstones") == 0, "and leaves nothing to do"

    execute(there, "drop subscription app")
    execute(there, "delete from app.post")
    assert review_all(there) == 1, "then it goes on by itself"
    assert collect(replicated.subscriber, replicated.files) == HELD_UP
    assert replicated.files.names() == {"1"}, "but for the bucket, which is the publisher's"


def test_a_subscriber_that_gets_the_tables_of_blobgc_deletes_nothing(
    replicated: Replicated,
) -> None:
    here, there = replicated.here, replicated.there
    assert collect(replicated.publisher, replicated.files) == SUCCESS
    World(replicated.subscriber, replicated.files).track()
    replicated.subscribe("tables in schema gc")
    replicated.world.bury(here, range(1, 4))
    execute(here, "update gc.markers set checked_at = clock_timestamp()")
    replicated.catch_up()
    assert value(there, "select count(*) from gc.tombstones") == 3
    for number in range(1, 4):  # They are alive again, here.
        here.execute("insert into app.file (id) values (%s)", [number])
    execute(here, "insert into app.post select id, id from app.file")

    assert review_all(there) == 0
    assert "gc." in value(there, "select why from gc.status()")
    assert "is written by the subscription" in value(there, "select why from gc.status()")
    assert collect(replicated.subscriber, replicated.files) == HELD_UP
    assert replicated.files.names() == {"1", "2", "3"}


def test_a_subscriber_can_be_waited_for(replicated: Replicated) -> None:
    """Whoever reads there finds the objects of the rows that he sees."""
    here, there = replicated.here, replicated.there
    replicated.subscribe("table app.file, app.post")
    execute(here, "update gc.settings set durable_on = '{app}'")
    replicated.world.write(here, range(1, 4))
    replicated.catch_up()
    execute(there, "alter subscription app disable")
    execute(here, "delete from app.file")
    assert collect(replicated.publisher, replicated.files, "--wait", "2") == HELD_UP
    assert value(there, "select count(*) from app.file") == 3
    assert replicated.files.names() == {"1", "2", "3"}, "the rows are still there"
    execute(there, "alter subscription app enable")
    assert collect(replicated.publisher, replicated.files, "--wait", "20") == SUCCESS
    assert value(there, "select count(*) from app.file") == 0
    assert replicated.files.names() == set()


def test_a_publication_of_all_tables_stops_nothing(replicated: Replicated) -> None:
    """PostgreSQL refuses to change rows that it could not name to a subscriber."""
    here = replicated.here
    execute(here, "set client_min_messages = error; create publication everything for all tables")
    nameless = rows(here, """
        select c.oid::regclass::text from pg_class as c
        join pg_publication_tables as p on p.schemaname = 'gc' and p.tablename = c.relname
        where c.relnamespace = 'gc'::regnamespace and c.relreplident = 'd' and not exists (
            select from pg_index as i where i.indrelid = c.oid and i.indisprimary)""")
    assert nameless == []
    replicated.world.write(here, range(1, 4))
    execute(here, """
        insert into app.post values (1, 1);
        select gc.pause('file'), gc.resume('file');
        select gc.pin('file', '1', 'used'), gc.unpin('file', '1');
        update gc.settings set pace = 1;
    """)
    assert collect(replicated.publisher, replicated.files) == SUCCESS
    assert replicated.files.names() == {"1"}
