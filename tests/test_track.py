"""What gc.track and gc.untrack say, what they wait for, and what they leave."""

from __future__ import annotations

import threading

import psycopg
import pytest
from conftest import (
    APP,
    NO_DELAY,
    TRACK,
    Connection,
    Database,
    NewDatabase,
    execute,
    rows,
    value,
    wait_until,
)

UNUSED = "select count(*) from pg_trigger where tgfoid in (select gc._unused_functions())"


@pytest.fixture
def app(new_database: NewDatabase) -> Database:
    database = new_database()
    database.psql("create extension blobgc;" + APP + NO_DELAY + TRACK)
    return database


def said(conn: Connection, command: str) -> list[tuple[str, str, str]]:
    """The notices and warnings of a command: severity, message, and hint."""
    heard: list[tuple[str, str, str]] = []

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        heard.append((notice.severity or "", notice.message_primary or "",
                      notice.message_hint or ""))

    conn.add_notice_handler(hear)
    execute(conn, command)
    conn.remove_notice_handler(hear)
    return heard


def test_a_table_to_which_nothing_refers_is_tracked_with_a_warning(app: Database) -> None:
    with app.connect() as conn:
        execute(conn, "create table app.alone (id integer primary key)")
        assert said(conn, "select gc.track('app.alone')") == [(
            "WARNING", 'nothing keeps the rows of "app.alone", so none of them is collected',
            "select * from gc.track('app.alone', condition => 'false');")]
        assert said(conn, "select gc.track('app.alone', condition => 'true')") == []


def test_both_collections_that_lack_a_url_index_are_warned_of(app: Database) -> None:
    with app.connect() as conn:
        execute(conn, "create table app.copy (id integer primary key, url text)")
        command = "select gc.track('app.copy', url => 'url', condition => 'true')"
        assert [(message, hint) for _, message, hint in said(conn, command)] == [
            ('nothing finds the rows of "app.copy" by their url',
             "create index concurrently on app.copy ((url));"),
            ('nothing finds the rows of "app.file" by their url',
             "create index concurrently on app.file (('file:///store/' || id));"),
        ]
        command = command.replace("'url'", "$$'s3://copies/' || id$$")
        assert said(conn, command) == []


def test_set_delay_says_how_many_queued_reviews_keep_their_time(app: Database) -> None:
    with app.connect() as conn:
        assert said(conn, "select gc.set_delay('file_insert', '1 hour')") == []
        execute(conn, "insert into app.file values (1), (2), (3)")
        assert said(conn, "select gc.set_delay('file_insert', '0')") == [
            ("NOTICE", '3 reviews that "file_insert" has queued already keep their time', "")]


def test_untrack_says_how_many_objects_stay_and_counts_what_was_kept_whole(app: Database) -> None:
    with app.connect() as conn:
        execute(conn, """
            insert into app.file values (1), (2), (3);
            delete from app.file where id = 1;
            alter table app.file alter column bytes type integer;
            delete from app.file where id = 2""")
        assert value(conn, "select count(*) from gc.unread_rows") == 1
        assert [message for _, message, _ in said(conn, "select gc.untrack('file')")] == [
            '2 objects of "file" stay in the store']
        assert value(conn, "select count(*) from gc.unread_rows") == 0


def test_neither_owned_nor_untrack_waits_for_who_reads_or_refers(app: Database) -> None:
    with app.connect() as conn, app.connect(autocommit=False) as other:
        execute(conn, "set lock_timeout = '1s'; insert into app.file values (1)")
        execute(other, "select * from app.file; insert into app.post values (1, null)")
        execute(conn, "select gc.track('app.file', owned => '{post}', condition => 'true')")
        execute(other, "delete from app.post")
        execute(conn, "select gc.untrack('file')")
        execute(other, "insert into app.post values (1, null); delete from app.post")
        other.commit()
        execute(other, "insert into app.post values (1, 1); delete from app.post")
        other.commit()
        assert value(conn, "select count(*) from gc.file_review_queue") == 0


def test_untrack_waits_for_who_writes_rows_of_the_collection(app: Database) -> None:
    with app.connect() as conn, app.connect(autocommit=False) as other:
        execute(conn, "set lock_timeout = '1s'")
        execute(other, "insert into app.file values (1)")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            execute(conn, "select gc.untrack('file')")
        other.commit()
        execute(conn, "select gc.untrack('file')")


def test_unused_triggers_are_dropped_table_by_table(app: Database) -> None:
    with app.connect() as conn, app.connect(autocommit=False) as other:
        execute(conn, "select gc.untrack('file'); update gc.settings set lock_timeout = '0.2 s'")
        assert value(conn, UNUSED) > 3
        execute(other, "select * from app.post")
        assert [message for _, message, _ in said(conn, "call gc.drop_unused_triggers()")] == [
            "app.post is locked, and keeps triggers that do nothing"]
        assert rows(conn, "select distinct tgrelid::regclass::text from pg_trigger "
                          "where tgfoid in (select gc._unused_functions())") == [("app.post",)]
        assert value(conn, "select to_regclass('gc.file_review_queue') is not null")
        other.commit()
        assert said(conn, "call gc.drop_unused_triggers()") == []
        assert value(conn, UNUSED) == 0
        assert value(conn, "select to_regclass('gc.file_review_queue') is null")
        assert rows(conn, "select * from gc._unused_functions()") == []
        assert said(conn, "call gc.drop_unused_triggers()") == []


def test_a_table_is_unlocked_before_the_next_is_locked(app: Database) -> None:
    with app.connect() as conn, app.connect(autocommit=False) as other:
        execute(conn, "select gc.untrack('file'); update gc.settings set lock_timeout = '2 s'")
        execute(other, "select * from app.post")
        with app.connect() as third:
            third.execute("set lock_timeout = '0.5s'")
            thread = threading.Thread(target=execute, args=(conn, "call gc.drop_unused_triggers()"))
            thread.start()
            try:
                wait_until(lambda: value(third, UNUSED) < 5, "the first table is done")
                execute(third, "insert into app.file values (7)")
            finally:
                other.rollback()
                thread.join()


def test_what_gc_leaves_is_dumped_and_restored(app: Database, new_database: NewDatabase) -> None:
    with app.connect() as conn:
        execute(conn, "select gc.untrack('file')")
    copy = new_database()
    copy.psql(app.dump())
    with copy.connect() as conn:
        assert value(conn, UNUSED) > 3
        execute(conn, "select gc.track('app.file')")
        execute(conn, "insert into app.file values (1)")
        assert value(conn, "select count(*) from gc.file_review_queue") == 1
        execute(conn, "call gc.drop_unused_triggers()")
        assert value(conn, UNUSED) == 0
        execute(conn, "insert into app.file values (2)")
        assert value(conn, "select count(*) from gc.file_review_queue") == 2


def test_a_dump_that_is_restored_has_lost_no_keeper(
    app: Database, new_database: NewDatabase
) -> None:
    with app.connect() as conn:
        execute(conn, "insert into app.file values (1), (2); insert into app.post values (1, 1)")
    copy = new_database()
    copy.psql(app.dump())
    with copy.connect() as conn:
        assert rows(conn, "select kept, deleted from gc.review()") == [(1, 1)]
        assert rows(conn, "select why from gc.status()") == [(None,)]
        assert rows(conn, "select * from gc.scan_requests") == []
        execute(conn, "alter table app.post drop constraint post_file_id_fkey")
        rows(conn, "select * from gc.review()")
        assert "no longer refers" in value(conn, "select why from gc.status()")
