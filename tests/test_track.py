"""What gc.track and gc.untrack say, what they wait for, and what they leave."""

from __future__ import annotations

import re
import threading

import psycopg
import pytest
from conftest import (
    APP,
    NO_DELAY,
    ROOT,
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
            "select * from gc.track('app.alone', collect => 'deleted');")]
        assert said(conn, "select gc.track('app.alone', condition => 'true')") == []


def test_columns_that_look_like_references_are_warned_of(app: Database) -> None:
    with app.connect() as conn:
        execute(conn, """
            create table app.alone (id integer primary key);
            create table app.page (id integer primary key, alone_id integer, cover_id integer);
        """)
        track = "select gc.track('app.alone', condition => 'true')"
        assert said(conn, track) == [(
            "WARNING",
            '1 column looks like a reference to "app.alone" and keeps nothing',
            "create index concurrently on app.page (alone_id);\n"
            "select gc.declare_reference('alone', 'app.page', 'alone_id');")]
        # Nothing of it is ever garbage.
        assert said(conn, track.replace("true", "false")) == []
        execute(conn, "select gc.ignore_suspect('alone', 'app.page', 'alone_id')")
        assert said(conn, track) == []


@pytest.mark.parametrize(
    ("shape", "table", "references"), [("gitea", "package_blob", 1), ("discourse", "uploads", 23)])
def test_who_tracks_tables_without_foreign_keys_is_led_to_all_references(
    shape: str, table: str, references: int, app: Database
) -> None:
    """What the warning says to type, and gc.track once more: nothing that is referred to goes."""
    app.psql((ROOT / "tests" / "shapes" / f"{shape}.sql").read_text())
    with app.connect() as conn:
        warnings = said(conn, f"select gc.track('{shape}.{table}')")
        assert re.match("\\d+ columns? looks? like .* nothing", warnings[-1][1])
        for index, foreign_key in rows(
            conn, "select index, foreign_key from gc.suspects(%s) where strength = 'strong'", table
        ):
            for command in filter(None, [index, foreign_key]):
                execute(conn, command)
        assert said(conn, f"select gc.track('{shape}.{table}')") == []
        assert len(rows(conn, f"select * from gc.track('{shape}.{table}')")) == references


def test_suspects_honour_the_statement_timeout_and_wait_for_no_lock(app: Database) -> None:
    with app.connect() as conn, app.connect() as other:
        execute(conn, "create table app.page (id integer primary key, file_id integer)")
        with other.transaction():
            execute(other, "lock table app.page")
            assert rows(conn, "select keys, why from gc.suspects('file') "
                              "where referencing = 'app.page'::regclass order by keys") == [
                ("file_id", "name and type; not looked at: canceling statement due to lock "
                            "timeout"),
                (None, "not looked at: canceling statement due to lock timeout"),
            ]
        execute(conn, "set statement_timeout = '1ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            rows(conn, "select * from gc.suspects('file')")


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


# The first run


def first_words(conn: Connection, script: str) -> tuple[str, str, str]:
    """The one notice of a command: its message, detail and hint."""
    heard: list[tuple[str, str, str]] = []

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity == "NOTICE":
            heard.append((notice.message_primary or "", notice.message_detail or "",
                          notice.message_hint or ""))

    conn.add_notice_handler(hear)
    execute(conn, script)
    conn.remove_notice_handler(hear)
    (words,) = heard
    return words


SOME = """
    create table app.doc (id integer primary key);
    create table app.page (id integer primary key, doc_id integer references app.doc);
    create index on app.page (doc_id);
    insert into app.doc select n from generate_series(1, {0}) as n;
    insert into app.page select n, n from generate_series(1, {0}) as n where n % 4 <> 0;
"""


def test_the_first_track_of_a_table_with_rows_says_what_comes_next(app: Database) -> None:
    with app.connect() as conn:
        execute(conn, SOME.format(200) + "create table app.memo (doc_id integer)")
        message, detail, hint = first_words(conn, "select gc.track('app.doc')")
        assert message == ('"doc" has about 200 rows; a scan would find about 50 that nothing '
                           "keeps (50 of 200 rows); suspects: 1")
        assert detail == ("Nothing is deleted before a review, which comes 24 h after a scan has "
                          "found a row.")
        assert hint == ("select gc.scan('doc', 1000); again and again until it is 0, and then: "
                        "blobgc preview --all")
        assert value(conn, "select count(*) from gc.doc_review_queue") == 0
        assert [s for s in said(conn, "select gc.track('app.doc')") if s[0] == "NOTICE"] == []


def test_the_first_words_tell_the_delay_and_undo_in_force(app: Database) -> None:
    with app.connect() as conn:
        execute(conn, SOME.format(3))
        message, detail, _ = first_words(conn, """
            insert into gc.review_after_defaults values ('doc_scan', '2 hours');
            select gc.track('app.doc', url => $$'s3://b/' || id$$, undo => '3 days')""")
        assert "a scan would hardly find garbage (0 of 3 rows); suspects: 0" in message
        assert "which comes 2 h after" in detail and "its object goes 3 d after its row." in detail


@pytest.mark.parametrize("partitions", ["", " partition by hash (id)"])
def test_a_large_table_is_sampled(app: Database, partitions: str) -> None:
    parts = "".join(
        f"create table app.doc_{n} partition of app.doc for values with (modulus 3, remainder {n});"
        for n in range(3))
    script = SOME.format(20000).replace("primary key);", f"primary key){partitions};", 1)
    script = script.replace(";", ";" + (parts if partitions else ""), 1)
    with app.connect() as conn:
        execute(conn, script)
        message, _, _ = first_words(conn, "select gc.track('app.doc')")
        found = re.search(r"20,000 rows; a scan would find about ([\d,]+) that nothing keeps "
                          r"\((\d+) of (\d+) rows\)", message)
        assert found is not None, message
        assert 2000 <= int(found[1].replace(",", "")) <= 8000 and int(found[3]) <= 300
        assert value(conn, "select count(*) from gc.doc_review_queue") == 0


def test_an_empty_table_and_one_without_garbage_have_no_first_words(app: Database) -> None:
    with app.connect() as conn:
        execute(conn, SOME.format(0))
        assert said(conn, "select gc.track('app.doc')") == []
        execute(conn, "create table app.kept (id integer primary key);"
                      "insert into app.kept values (1)")
        assert said(conn, "select gc.track('app.kept', condition => 'false')") == []


def test_what_cannot_be_estimated_is_left_out_and_fails_nothing(app: Database) -> None:
    with app.connect() as conn:
        execute(conn, SOME.format(30))
        message, _, _ = first_words(conn, """
            select gc.track('app.doc', condition => '1 / (id - 7) > 0')""")
        assert message == '"doc" has about 30 rows; suspects: 0'
