"""The tests can fail: things on which everything depends, each broken on purpose.

Each check is run on the code as it is and on a copy of it with one thing broken. What it sees must
be right on the one and, in exactly the way that is feared, wrong on the other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

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
    is_waiting,
    rows,
    value,
    wait_until,
)

# What a check saw.
Seen = object


@dataclass(frozen=True)
class Mutation:
    """A text of the script that stands there so many times, and what takes its place."""

    what: str
    old: str
    new: str
    times: int
    check: Callable[[Database], Seen]
    right: Seen
    wrong: Seen

    def apply(self, script: str) -> str:
        assert script.count(self.old) == self.times, (
            f"{self.what}: stands {script.count(self.old)} times in the script, "
            f"not {self.times} times; this test has to follow the code:\n{self.old}"
        )
        return script.replace(self.old, self.new)


def alive(conn: Connection) -> tuple[list[int], list[int]]:
    """The files and the posts that there are."""
    return (
        [row[0] for row in rows(conn, "select id from app.file order by id")],
        [row[0] for row in rows(conn, "select id from app.post order by id")],
    )


def stop_after_first_look(conn: Connection) -> None:
    """File 1 is garbage, and a trigger on the queue stops its review until 1 is unlocked.

    The first look is the first statement that deletes from the queue and asks for posts.
    """
    execute(conn, """
        create function app.pause() returns trigger language plpgsql as $$
        declare
            stack text;
        begin
            get diagnostics stack = pg_context;
            if stack like '%select from app.post%' then
                perform pg_advisory_xact_lock_shared(1);
            end if;
            return null;
        end $$;
        create trigger pause after delete on gc.file_review_queue
            for each statement execute function app.pause();
        insert into app.file values (1);
        select pg_advisory_lock(1);
    """)


def a_post_committed_between_the_first_look_and_the_lock(database: Database) -> Seen:
    """The review is stopped after its first look, and a post comes."""
    with database.connect() as reviewer, database.connect() as author:
        stop_after_first_look(author)
        thread = threading.Thread(target=rows, args=(reviewer, "select * from gc.review()"))
        thread.start()
        wait_until(lambda: is_waiting(author, reviewer.info.backend_pid), "the first look")
        execute(author, "insert into app.post values (1, 1)")
        execute(author, "select pg_advisory_unlock(1)")
        thread.join()
        return alive(author)


def a_later_entry_that_is_not_due(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, """
            insert into app.file values (1);
            insert into app.post values (1, 1);
            update gc.review_after_defaults set value = '1 hour' where event = 'post_delete';
            delete from app.post;
        """)
        assert rows(conn, "select event, review_after <= now() from gc.file_review_queue "
                          "order by entry") == [("file_insert", True), ("post_delete", False)]
        rows(conn, "select * from gc.review()")
        return alive(conn)


def a_mention_while_a_review_has_decided(database: Database) -> Seen:
    """The review has deleted the file and not committed: the mention waits, and is refused."""
    with database.connect() as reviewer, database.connect() as author, database.connect() as other:
        execute(other, """
            set client_min_messages = error;
            create table app.note (file_ids integer[]);
            create index on app.note using gin (file_ids);
            select gc.declare_reference('file', 'app.note', 'file_ids');
            insert into app.file values (1);
        """)
        outcome: list[str] = []

        def mention() -> None:
            try:
                execute(author, "insert into app.note values ('{1}')")
                outcome.append("accepted")
            except psycopg.Error as error:
                outcome.append(str(error.sqlstate))

        with reviewer.transaction():
            assert rows(reviewer, "select deleted from gc.review()") == [(1,)]
            thread = threading.Thread(target=mention)
            thread.start()
            wait_until(
                lambda: is_waiting(other, author.info.backend_pid) or not thread.is_alive(),
                "the mention",
            )
        thread.join()
        return outcome[0], rows(other, "select file_ids from app.note")


def a_mention_of_what_is_gone(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, """
            set client_min_messages = error;
            create table app.note (file_ids integer[]);
            create index on app.note using gin (file_ids);
            select gc.declare_reference('file', 'app.note', 'file_ids');
            insert into app.file values (1);
        """)
        assert rows(conn, "select deleted from gc.review()") == [(1,)]
        with contextlib.suppress(psycopg.Error):
            execute(conn, "insert into app.note values ('{1}')")
        return rows(conn, "select file_ids from app.note")


def a_foreign_key_that_is_newer_than_the_code(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, """
            insert into app.file values (1);
            create table app.avatar (file_id integer references app.file on delete cascade);
            create index on app.avatar (file_id);
            insert into app.avatar values (1);
        """)
        rows(conn, "select * from gc.review()")
        return alive(conn)[0], rows(conn, "select file_id from app.avatar")


def claimed_file(conn: Connection, worker: str) -> list[int]:
    """File 1 becomes garbage, and its tombstone is claimed by the worker."""
    execute(conn, "insert into app.file values (1)")
    assert rows(conn, "select deleted from gc.review()") == [(1,)]
    ids = [row[0] for row in rows(conn, "select id from gc.claim(%s)", worker)]
    assert len(ids) == 1
    return ids


def confirmed(conn: Connection, worker: str, ids: list[int]) -> Seen:
    """What the confirm returns, the tombstones that are left, and the log."""
    return (
        value(conn, "select gc.confirm(%s, %s)", worker, ids),
        [row[0] for row in rows(conn, "select worker from gc.tombstones")],
        [row[0] for row in rows(conn, "select worker from gc.deletion_log")],
    )


def a_confirm_after_the_lease(database: Database) -> Seen:
    with database.connect() as conn:
        ids = claimed_file(conn, "stalled")
        execute(conn, "update gc.tombstones set due_at = now()")
        return confirmed(conn, "stalled", ids)


def a_confirm_of_what_another_worker_has(database: Database) -> Seen:
    with database.connect() as stranger, database.connect() as other:
        ids = claimed_file(other, "other")
        return confirmed(stranger, "stranger", ids)


def a_confirm_by_what_was_known_of_an_earlier_lease(database: Database) -> Seen:
    with database.connect() as stalled:
        ids = claimed_file(stalled, "stalled")
        execute(stalled, "update gc.tombstones set due_at = now()")
        assert len(rows(stalled, "select from gc.claim('stalled')")) == 1
        return confirmed(stalled, "stalled", ids)


def inserted(conn: Connection) -> str:
    try:
        execute(conn, "insert into app.file values (1)")
    except psycopg.Error as error:
        return str(error.sqlstate)
    return "accepted"


def an_insert_whose_object_is_leased(database: Database) -> Seen:
    with database.connect() as conn:
        claimed_file(conn, "worker")
        outcome = inserted(conn)
        return outcome, [row[0] for row in rows(conn, "select worker from gc.tombstones")]


def an_insert_that_meets_a_claim_before_its_commit(database: Database) -> Seen:
    """The claim has begun and not committed: the insert waits for it, and is refused then."""
    with database.connect() as worker, database.connect() as author, database.connect() as witness:
        execute(witness, "insert into app.file values (1)")
        assert rows(witness, "select deleted from gc.review()") == [(1,)]
        outcome: list[str] = []
        with worker.transaction():
            assert len(rows(worker, "select id from gc.claim('worker')")) == 1
            thread = threading.Thread(target=lambda: outcome.append(inserted(author)))
            thread.start()
            wait_until(
                lambda: is_waiting(witness, author.info.backend_pid) or not thread.is_alive(),
                "the insert",
            )
        thread.join()
        return outcome[0], alive(witness)[0]


def an_insert_in_a_transaction_that_is_older_than_the_deletion(database: Database) -> Seen:
    with database.connect() as author, database.connect() as worker:
        execute(worker, "insert into app.file values (1)")
        with contextlib.suppress(psycopg.Error), author.transaction():
            assert rows(author, "select id from app.file") == [(1,)]
            assert rows(worker, "select deleted from gc.review()") == [(1,)]
            ids = [row[0] for row in rows(worker, "select id from gc.claim('worker')")]
            assert value(worker, "select gc.confirm('worker', %s)", ids) == 1
            execute(worker, "select gc.review()")  # Which forgets what nobody can know any more.
            outcome = inserted(author)
        return outcome, alive(worker)[0]


def a_claim_during_an_upload_that_has_not_committed(database: Database) -> Seen:
    with database.connect() as author, database.connect() as worker:
        execute(worker, "insert into app.file values (1)")
        assert rows(worker, "select deleted from gc.review()") == [(1,)]
        with author.transaction():
            rows(author, "select gc.begin_upload('file', '1')")
            return rows(worker, "select key from gc.claim('worker')")


def a_tag_of_a_child_after_the_second_look(database: Database) -> Seen:
    """The review is stopped at the end of its second look, by a trigger on the queue."""
    with database.connect() as reviewer, database.connect() as tagger:
        execute(tagger, """
            create table app.content (id integer primary key);
            create table app.manifest (content_id integer primary key references app.content);
            create table app.tag (
                name text primary key,
                manifest_id integer references app.manifest on delete cascade
            );
            create index on app.tag (manifest_id);
            insert into gc.review_after_defaults values ('content_insert', '0');
            select gc.track('app.content', owned => '{manifest}');
            create function app.pause() returns trigger language plpgsql as $$
            declare
                stack text;
            begin
                get diagnostics stack = pg_context;
                if stack like '%with dropped%' then
                    perform pg_advisory_xact_lock_shared(1);
                end if;
                return null;
            end $$;
            create trigger pause after delete on gc.content_review_queue
                for each statement execute function app.pause();
            insert into app.content values (1);
            insert into app.manifest values (1);
            select pg_advisory_lock(1);
        """)
        thread = threading.Thread(target=rows, args=(reviewer, "select * from gc.review()"))
        thread.start()
        wait_until(lambda: is_waiting(tagger, reviewer.info.backend_pid), "the second look")
        try:
            execute(tagger, "set lock_timeout = '500ms'; insert into app.tag values ('x', 1)")
            outcome = "tagged"
        except psycopg.Error as error:
            outcome = str(error.sqlstate)
        execute(tagger, "select pg_advisory_unlock(1)")
        thread.join()
        return outcome, rows(tagger, "select name from app.tag")


def a_suspect_whose_index_has_code_of_a_stranger(database: Database) -> Seen:
    """PostgreSQL computes what stands in the condition of an index when it plans to read."""
    with database.connect() as conn:
        execute(conn, """
            create table app.page (id integer primary key, file_id integer);
            insert into app.page values (1, 1);
            create function app.spy(integer) returns boolean language plpgsql immutable as $$
            begin
                if current_setting('app.armed', true) = 'yes' then
                    raise 'it ran';
                end if;
                return true;
            end $$;
            create index on app.page (id) where app.spy(1);
            set app.armed = 'yes';
        """)
        execute(conn, "do $$ begin create role spy_stranger; "
                      "exception when duplicate_object then null; end $$")
        execute(conn, "alter function app.spy(integer) owner to spy_stranger")
        why = rows(conn, "select why from gc.suspects('file') where keys is null "
                         "and referencing = 'app.page'::regclass")
        execute(conn, "drop owned by spy_stranger cascade; drop role spy_stranger")
        return why


def a_pin_committed_between_the_first_look_and_the_lock(database: Database) -> Seen:
    """The second guard, where rows are deleted, is taken away: it would keep the row as well."""
    with database.connect() as reviewer, database.connect() as author:
        execute(author, "create or replace function gc._require_unpinned("
                        "collection text, keys text[]) returns void language sql as ''")
        stop_after_first_look(author)
        thread = threading.Thread(target=rows, args=(reviewer, "select * from gc.review()"))
        thread.start()
        wait_until(lambda: is_waiting(author, reviewer.info.backend_pid), "the first look")
        assert value(author, "select gc.pin('file', '1')") is True
        execute(author, "select pg_advisory_unlock(1)")
        thread.join()
        return alive(author)[0]


def a_pinned_row_whose_owner_is_garbage(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, """
            create table app.folder (id integer primary key);
            alter table app.file add folder_id integer references app.folder;
            create index on app.file (folder_id);
            insert into gc.review_after_defaults values ('folder_insert', '0');
            select gc.track('app.folder', condition => 'true', owned => '{file}');
            insert into app.folder values (1);
            insert into app.file values (1, 10, 1);
            select gc.pin('file', '1');
        """)
        rows(conn, "select * from gc.review()")
        return alive(conn)[0], [row[0] for row in rows(conn, "select id from app.folder")]


def a_review_of_what_is_paused(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, "insert into app.file values (1); select gc.pause('file')")
        rows(conn, "select * from gc.review()")
        return alive(conn)[0]


def a_claim_of_what_is_paused(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, "insert into app.file values (1); select gc.pause('file', what => 'deletes')")
        assert rows(conn, "select deleted from gc.review()") == [(1,)]
        return rows(conn, "select key from gc.claim('worker')")


def a_claim_of_what_is_pinned(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, "insert into app.file values (1); select gc.pin('file', '1'); "
                      "delete from app.file")
        return rows(conn, "select key from gc.claim('worker')")


def a_review_of_more_than_the_brake_lets_through(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, """
            update gc.settings set brake_share = 0.1, brake_rows = 2;
            insert into app.file select n from generate_series(1, 5) as n;
        """)
        rows(conn, "select * from gc.review()")
        rows(conn, "select * from gc.review()")
        return len(alive(conn)[0])


def a_first_track_of_garbage(database: Database) -> object:
    with database.connect() as conn:
        execute(conn, """
            create table app.doc (id integer primary key);
            create table app.page (doc_id integer references app.doc);
            create index on app.page (doc_id);
            insert into app.doc values (1), (2);
            select gc.track('app.doc')""")
        return value(conn, "select count(*) from gc.doc_review_queue")


def a_preview_of_garbage(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, "insert into app.file values (1)")
        said = rows(conn, "select key, verdict from gc.preview()")
        return said, alive(conn)[0]


# Rows that only the application deletes; the gate is closed.
PHOTO = """
    create table app.photo (id integer primary key);
    select from gc.track('app.photo', url => $$'s3://photos/' || id$$, collect => 'deleted');
    insert into app.photo values (1);
    delete from app.photo;
    select setval('gc.deleting_until', 0, false);
"""


def a_claim_while_the_row_is_inserted_again_and_has_not_committed(database: Database) -> Seen:
    with database.connect() as author, database.connect() as worker:
        execute(worker, PHOTO)
        with author.transaction():
            execute(author, "insert into app.photo values (1)")
            return rows(worker, "select key from gc.claim('worker')")


def an_insert_after_a_claim_that_began_with_the_gate_closed(database: Database) -> Seen:
    with database.connect() as author, database.connect() as worker:
        execute(worker, PHOTO)
        assert rows(worker, "select key from gc.claim('worker')") == [("1",)]
        try:
            execute(author, "insert into app.photo values (1)")
        except psycopg.Error as error:
            return error.sqlstate
        return "accepted"


def a_row_that_time_alone_makes_garbage(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, """
            create table app.draft (id integer primary key, created_at timestamptz);
            select from gc.track('app.draft',
                condition => 'created_at < now() - interval ''7 days''');
            insert into app.draft values (1, now());
            update gc.draft_review_queue set review_after = now();
            select from gc.review();
        """)
        return rows(conn, """
            select round(extract(epoch from review_after - now()) / 86400)
            from gc.draft_review_queue
        """)


def an_object_that_is_in_the_array_of_another_row(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, """
            create table app.picture (id integer primary key, urls text[]);
            create index on app.picture using gin ((urls));
            select from gc.track('app.picture', url => 'urls', collect => 'deleted');
            insert into app.picture values (1, '{s3://p/1,s3://p/2}'), (2, '{s3://p/2}');
            delete from app.picture where id = 1;
        """)
        return rows(conn, "select url from gc.claim('worker') order by url")


def purging(conn: Connection, worker: str) -> list[int]:
    """File 1 is deleted, has a finalizer, and its tombstone is claimed for that."""
    execute(conn, """
        select gc.track('app.file', url => $$'file:///store/' || id$$, finalizers => '{purge}');
        insert into app.file values (1);
        delete from app.file;
    """)
    return [row[0] for row in rows(
        conn, "select id from gc.claim(%s, finalizer => 'purge')", worker)]


def a_confirm_of_a_finalizer(database: Database) -> Seen:
    with database.connect() as conn:
        return confirmed(conn, "purger", purging(conn, "purger"))


def a_confirm_of_a_finalizer_that_was_struck_off(database: Database) -> Seen:
    with database.connect() as conn:
        ids = purging(conn, "purger")
        assert value(conn, "select gc.strike_finalizer('file', 'purge', 'no CDN')") == 1
        return confirmed(conn, "purger", ids)


def a_claim_of_an_object_that_waits_for_a_finalizer_elsewhere(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, """
            create table app.copy (url text primary key);
            select gc.track('app.copy', url => 'url', condition => 'true');
            insert into app.copy values ('file:///store/1');
            delete from app.copy;
            select gc.track('app.file', url => $$'file:///store/' || id$$, finalizers => '{purge}');
            insert into app.file values (1);
            delete from app.file;
        """)
        claimed = rows(conn, "select url from gc.claim('worker', finalizer => 'purge')")
        return claimed, rows(conn, "select url from gc.claim('worker')")


def a_claim_where_the_marker_is_another_database_s(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, "insert into app.file values (1); delete from app.file")
        execute(conn, "select gc.compare_marker('one', 'file:///store/'); "
                "select gc.compare_marker('one', 'file:///store/', 'read', '{\"token\": 1}', 'x')")
        return rows(conn, "select url from gc.claim('one', prefixes => '{file:///store/}')")


def write_marker(conn: Connection) -> None:
    """What a runner does that finds none. An object is due."""
    ask = "select body from gc.compare_marker('one', 'file:///store/', %s, %s, %s)"
    execute(conn, "insert into app.file values (1); delete from app.file")
    rows(conn, ask, None, None, None)
    ((body,),) = rows(conn, ask, "read", None, None)
    rows(conn, ask, "wrote", body, "1")


def a_claim_in_a_copy_of_the_disk(database: Database) -> Seen:
    with database.connect() as conn:
        write_marker(conn)
        execute(conn, "update gc.markers set server_start = '2000-01-01'")
        return rows(conn, "select url from gc.claim('one', prefixes => '{file:///store/}')")


def a_claim_with_a_lease_for_which_no_copy_watches(database: Database) -> Seen:
    with database.connect() as conn:
        write_marker(conn)
        return rows(conn, "select url from gc.claim('one', 1, '1 day', '{file:///store/}')")


def a_quarantine_in_a_bucket_that_was_not_looked_at(database: Database) -> Seen:
    with database.connect() as conn:
        write_marker(conn)
        execute(conn, "update gc.markers set checked_at = '2000-01-01'; "
                "update gc.tombstones set finalizers = '{blobgc.quarantine}'")
        return rows(conn, "select url from gc.claim('one', prefixes => '{file:///store/}', "
                    "finalizer => 'blobgc.quarantine')")


def a_move_of_a_runner_that_was_killed_before_it_said_so(database: Database) -> Seen:
    """Its successor reads what it has written."""
    ask = "select action, body from gc.compare_marker(%s, 's3://b/', %s, %s, %s)"
    with database.connect() as conn:
        rows(conn, ask, "dead", None, None, None)
        ((_, first),) = rows(conn, ask, "dead", "read", None, None)
        rows(conn, ask, "dead", "wrote", first, "1")
        execute(conn, "update gc.markers set moved_at = '2000-01-01', checked_at = '2000-01-01'")
        ((_, second),) = rows(conn, ask, "dead", None, None, None)
        execute(conn, "update gc.markers set next_since = '2000-01-01'")
        rows(conn, ask, "next", None, None, None)
        return rows(conn, ask, "next", "read", second, "2")[0][0]


def a_cause_that_another_transaction_has_named(database: Database) -> Seen:
    with database.connect() as author, database.connect() as forger:
        execute(author, """
            insert into app.file values (1);
            insert into app.post values (1, 1), (2, 1);
            delete from gc.file_review_queue;
        """)
        with author.transaction():
            execute(author, "select gc.because('mine'); delete from app.post where id = 1")
            number = value(author, "select current_setting('blobgc.cause')")
        rows(forger, "select set_config('blobgc.cause', %s, false)", number)
        execute(forger, "delete from app.post where id = 2")
        return [row[0] for row in rows(
            author, "select causes from gc.file_review_queue order by entry")]


def a_row_whose_cause_was_hurried(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, """
            update gc.settings set undo = '1 day';
            select gc.track('app.file', url => $$'file:///store/' || id$$);
            insert into app.file values (1);
        """)
        with conn.transaction():
            execute(conn, "select gc.because('ticket'); delete from app.file")
        execute(conn, "select gc.hurry('ticket')")
        claimed = rows(conn, "select key from gc.claim('worker')")
        return claimed, rows(conn, "select key from gc.trash")


def a_later_event_that_has_no_cause(database: Database) -> Seen:
    with database.connect() as conn:
        execute(conn, "insert into app.file values (1); insert into app.post values (1, 1), (2, 1)")
        with conn.transaction():
            execute(conn, "select gc.because('ticket'); delete from app.post where id = 1")
        execute(conn, "delete from app.post where id = 2")
        rows(conn, "select * from gc.review()")
        return [row[0] for row in rows(conn, "select causes from gc.tombstones")]


MUTATIONS = [
    Mutation(
        "a mention does not lock what it mentions",
        old="select true from {target} as t where {t_is_m} for key share",
        new="select true from {target} as t where {t_is_m}",
        times=1,
        check=a_mention_while_a_review_has_decided,
        right=("ZG005", []),
        wrong=("accepted", [([1],)]),
    ),
    Mutation(
        "a mention does not ask what is gone",
        old="where exists (select from {gone} as g where {g_is_m});",
        new="where false;",
        times=1,
        check=a_mention_of_what_is_gone,
        right=[],
        wrong=[([1],)],
    ),
    Mutation(
        "suspects are looked for wherever anybody's code runs",
        old="    if who is null and not f.all_trusted then",
        new="    if false then",
        times=1,
        check=a_suspect_whose_index_has_code_of_a_stranger,
        right=[("not looked at: reading it runs function app.spy(integer) of spy_stranger, "
                "who is not trusted",)],
        wrong=[("not looked at: it ran",)],
    ),
    Mutation(
        "what refers to a child of a row is not locked out",
        old="            'lock_children', gc._lock_children_sql(c),\n",
        new="            'lock_children', '',\n",
        times=1,
        check=a_tag_of_a_child_after_the_second_look,
        right=("55P03", []),
        # Tagged, and the tag is gone with what it refers to.
        wrong=("tagged", []),
    ),
    Mutation(
        "a claim does not wait for those who have found the gate closed",
        old="    if gc._has_gate() and gc._awaits_gate() then\n        return;",
        new="    if false then\n        return;",
        times=1,
        check=a_claim_while_the_row_is_inserted_again_and_has_not_committed,
        right=[],
        wrong=[("1",)],
    ),
    Mutation(
        "a claim does not open the gate",
        old="    perform gc._open_gate(until);\n",
        new="",
        times=1,
        check=an_insert_after_a_claim_that_began_with_the_gate_closed,
        right="ZG001",
        wrong="accepted",
    ),
    Mutation(
        "what only time keeps leaves the queue",
        old="(w.wakes is null or q.causes is null and exists (",
        new="(true or exists (",
        times=1,
        check=a_row_that_time_alone_makes_garbage,
        right=[(7,)],
        wrong=[],
    ),
    Mutation(
        "nobody looks into arrays of urls",
        old="' @> array[d.url]'",
        new="' @> array[d.url] and false'",
        times=1,
        check=an_object_that_is_in_the_array_of_another_row,
        right=[("s3://p/1",)],
        wrong=[("s3://p/1",), ("s3://p/2",)],
    ),
    Mutation(
        "confirming a step confirms the deletion",
        old="where t.id = any (ids) and t.finalizers is null\n",
        new="where t.id = any (ids)\n",
        times=1,
        check=a_confirm_of_a_finalizer,
        right=(1, [None], []),
        wrong=(1, [], ["purger"]),
    ),
    Mutation(
        "a finalizer is struck off and its worker keeps the lease",
        old="worker = case when n.is_next then null else t.worker end,\n"
            "        due_at = case when n.is_next and t.worker is not null then now() "
            "else t.due_at end,",
        new="worker = t.worker,",
        times=1,
        check=a_confirm_of_a_finalizer_that_was_struck_off,
        right=(0, [None], []),
        wrong=(1, [], ["purger"]),
    ),
    Mutation(
        "a tombstone with a finalizer is dropped for one without",
        old="and o.id <> t.id and gc._says_all(o, t)\n",
        new="and o.id <> t.id\n",
        times=1,
        check=a_claim_of_an_object_that_waits_for_a_finalizer_elsewhere,
        right=([("file:///store/1",)], []),
        wrong=([], [("file:///store/1",)]),
    ),
    Mutation(
        "the cause of another transaction can be had by a setting",
        old="where c.xid = pg_current_xact_id_if_assigned()\n        and c.id::text",
        new="where c.id::text",
        times=1,
        check=a_cause_that_another_transaction_has_named,
        right=[["mine"], None],
        wrong=[["mine"], ["mine"]],
    ),
    Mutation(
        "what is hurried stays in the trash, and its object goes",
        old="select o.ctid from gc.trash_rows as o where o.causes && _hurry.causes",
        new="select o.ctid from gc.trash_rows as o where false",
        times=1,
        check=a_row_whose_cause_was_hurried,
        right=([("1",)], []),
        wrong=([("1",)], [("1",)]),
    ),
    Mutation(
        "a later entry does not take over the causes of an earlier one",
        old="causes = gc._all_causes(q.causes, t.causes)",
        new="causes = q.causes",
        times=1,
        check=a_later_event_that_has_no_cause,
        right=[["ticket"]],
        wrong=[None],
    ),
    Mutation(
        "no second look after the lock",
        old="""    where q.ctid = any (this.locked)
        and (
            {kept}
        )
""",
        new="""    where q.ctid = any (this.locked) and false
""",
        times=1,
        check=a_post_committed_between_the_first_look_and_the_lock,
        right=([1], [1]),
        wrong=([], []),
    ),
    Mutation(
        "an earlier entry counts although there is a later one",
        # At the second look, where the later one is told, and where one is put to sleep.
        old="where {later_is_q} and later.entry > q.entry",
        new="where {later_is_q} and false",
        times=3,
        check=a_later_entry_that_is_not_due,
        right=([1], []),
        wrong=([], []),
    ),
    Mutation(
        "the catalog is not compared with what the code was made from",
        old="if gc._fingerprint(c) = _is_current.fingerprint then",
        new="if true then",
        times=1,
        check=a_foreign_key_that_is_newer_than_the_code,
        right=([1], [(1,)]),
        wrong=([], []),
    ),
    Mutation(
        "confirm does not ask whether the lease is over",
        old="and t.worker = confirm.worker and t.due_at > clock_timestamp()\n        returning",
        new="and t.worker = confirm.worker\n        returning",
        times=1,
        check=a_confirm_after_the_lease,
        right=(0, ["stalled"], []),
        wrong=(1, [], ["stalled"]),
    ),
    Mutation(
        "confirm does not ask whose lease it is",
        old="and t.worker = confirm.worker and t.due_at > clock_timestamp()\n        returning",
        new="and t.due_at > clock_timestamp()\n        returning",
        times=1,
        check=a_confirm_of_what_another_worker_has,
        right=(0, ["other"], []),
        wrong=(1, [], ["other"]),
    ),
    Mutation(
        "a lease that ran out keeps its id",
        old="gc._renumber(gc._take(stores, collections, prefixes, several, moment, batch))",
        new="gc._take(stores, collections, prefixes, several, moment, batch)",
        times=1,
        check=a_confirm_by_what_was_known_of_an_earlier_lease,
        right=(0, ["stalled"], []),
        wrong=(1, [], ["stalled"]),
    ),
    Mutation(
        "an insert under deletion is not refused",
        old="""    if found then
        raise 'the object of this row is being deleted'""",
        new="""    if false then
        raise 'the object of this row is being deleted'""",
        times=1,
        check=an_insert_whose_object_is_leased,
        right=("ZG001", ["worker"]),
        wrong=("accepted", ["worker"]),
    ),
    Mutation(
        "an insert does not ask what was deleted since its transaction began",
        old="    perform gc._require_undeleted(urls, generations);\n",
        new="",
        times=1,
        check=an_insert_in_a_transaction_that_is_older_than_the_deletion,
        right=("40001", []),
        wrong=("accepted", [1]),
    ),
    Mutation(
        "what was deleted is forgotten while somebody is running who may know it",
        old="where first is null or w.deleted_by < first",
        new="where true",
        times=1,
        check=an_insert_in_a_transaction_that_is_older_than_the_deletion,
        right=("40001", []),
        wrong=("accepted", [1]),
    ),
    Mutation(
        "a claim does not look for uploads that have not committed",
        old="and not array[gc._slot(t.collection, t.key), gc._slot('url', t.url)] <@ free;",
        new="and false;",
        times=1,
        check=a_claim_during_an_upload_that_has_not_committed,
        right=[],
        wrong=[("1",)],
    ),
    Mutation(
        "an insert that meets a claim before its commit is not refused",
        old="""    if found then
        raise 'the object of this row is being deleted'""",
        new="""    if false then
        raise 'the object of this row is being deleted'""",
        times=1,
        check=an_insert_that_meets_a_claim_before_its_commit,
        right=("ZG001", []),
        wrong=("accepted", [1]),
    ),
    Mutation(
        "pins are not looked at in the second look",
        old="gc._referred_sql(c), gc._timeless_sql(c), gc._pinned_sql(c))",
        new="gc._referred_sql(c), gc._timeless_sql(c), 'false')",
        times=1,
        check=a_pin_committed_between_the_first_look_and_the_lock,
        right=[1],
        wrong=[],
    ),
    Mutation(
        "a pinned row goes with its owner",
        old="if current_setting('blobgc.reviewing', true) <> '' and gc._has_pins({name}) then",
        new="if false then",
        times=1,
        check=a_pinned_row_whose_owner_is_garbage,
        right=([1], [1]),
        wrong=([], []),
    ),
    Mutation(
        "a review does not ask what is paused",
        # Before the collections are locked, when it is one's turn, between parts, and at the end.
        old="gc._is_paused(name, 'reviews')",
        new="false",
        times=4,
        check=a_review_of_what_is_paused,
        right=[1],
        wrong=[],
    ),
    Mutation(
        "a claim does not ask what is paused",
        old="where not gc._is_paused(p.collection, 'deletes')",
        new="where true",
        times=1,
        check=a_claim_of_what_is_paused,
        right=[],
        wrong=[("1",)],
    ),
    Mutation(
        "a claim does not ask whose bucket it is",
        old="    if not gc._cleared(prefixes, finalizer) then\n",
        new="    if false then\n",
        times=1,
        check=a_claim_where_the_marker_is_another_database_s,
        right=[],
        wrong=[("file:///store/1",)],
    ),
    Mutation(
        "what was compared before the server was started again counts",
        old="coalesce(m.problem is null and gc._is_same_server(m), false)\n",
        new="coalesce(m.problem is null, false)\n",
        times=1,
        check=a_claim_in_a_copy_of_the_disk,
        right=[],
        wrong=[("file:///store/1",)],
    ),
    Mutation(
        "a lease may be longer than a copy watches",
        old="    perform gc._note_lease(lease);\n",
        new="",
        times=1,
        check=a_claim_with_a_lease_for_which_no_copy_watches,
        right=[],
        wrong=[("file:///store/1",)],
    ),
    Mutation(
        "a quarantine does not ask whose bucket it is",
        old="finalizer not in ('storage', 'blobgc.quarantine')",
        new="finalizer <> 'storage'",
        times=1,
        check=a_quarantine_in_a_bucket_that_was_not_looked_at,
        right=[],
        wrong=[("file:///store/1",)],
    ),
    Mutation(
        "a move that was prepared is not known to be ours",
        old="or s.token = m.next_token\n",
        new="\n",
        times=1,
        check=a_move_of_a_runner_that_was_killed_before_it_said_so,
        right="write",
        wrong="stop",
    ),
    Mutation(
        "a claim does not ask what is pinned",
        old="    taken := gc._put_off_pinned(taken);\n",
        new="",
        times=1,
        check=a_claim_of_what_is_pinned,
        right=[],
        wrong=[("1",)],
    ),
    Mutation(
        "the brake is off",
        old="if deleted > 0 and gc._left(name, 'reviews') < 0 then",
        new="if false then",
        times=1,
        check=a_review_of_more_than_the_brake_lets_through,
        right=3,
        wrong=0,
    ),
    Mutation(
        "the look at a table that is tracked first is not undone",
        old="""    raise 'that is all' using errcode = 'ZG999';
exception
    when sqlstate 'ZG999' then
        return (seen, found_ones)::gc._first_look;
""",
        new="""    return (seen, found_ones)::gc._first_look;
exception
""",
        times=1,
        check=a_first_track_of_garbage,
        right=0,
        wrong=2,
    ),
    Mutation(
        "a preview is not undone",
        old="""    raise 'that is all' using errcode = 'ZG999';
exception
    when sqlstate 'ZG999' then
        return found_out;
""",
        new="""    return found_out;
""",
        times=1,
        check=a_preview_of_garbage,
        right=([("1", "deleted")], [1]),
        wrong=([("1", "deleted")], []),
    ),
]


def installed(new_database: NewDatabase, script: str) -> Database:
    database = new_database()
    database.psql(script)
    database.psql(APP + NO_DELAY + TRACK)
    return database


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_what_is_broken_on_purpose_is_noticed(
    mutation: Mutation, new_database: NewDatabase, plain_script: str
) -> None:
    broken = mutation.apply(plain_script)
    assert mutation.check(installed(new_database, plain_script)) == mutation.right
    assert mutation.check(installed(new_database, broken)) == mutation.wrong


def test_a_mutation_that_does_not_fit_the_script_is_an_error() -> None:
    mutation = MUTATIONS[0]
    with pytest.raises(AssertionError, match="stands 0 times"):
        mutation.apply("create schema gc;")
    with pytest.raises(AssertionError, match="stands 2 times"):
        mutation.apply(mutation.old * 2)
