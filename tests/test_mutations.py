"""The tests can fail: five things on which everything depends, each broken on purpose.

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


def a_post_committed_between_the_first_look_and_the_lock(database: Database) -> Seen:
    """The review is stopped after its first look, by a trigger on the queue, and a post comes.

    The first look is the first statement that deletes from the queue and asks for posts.
    """
    with database.connect() as reviewer, database.connect() as author:
        execute(author, """
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


def a_confirm_after_another_worker_took_over(database: Database) -> Seen:
    with database.connect() as stalled, database.connect() as other:
        ids = claimed_file(stalled, "stalled")
        execute(stalled, "update gc.tombstones set due_at = now()")
        assert rows(other, "select id from gc.claim('other')") == [(ids[0],)]
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
            outcome = inserted(author)
        return outcome, alive(worker)[0]


def a_claim_during_an_upload_that_has_not_committed(database: Database) -> Seen:
    with database.connect() as author, database.connect() as worker:
        execute(worker, "insert into app.file values (1)")
        assert rows(worker, "select deleted from gc.review()") == [(1,)]
        with author.transaction():
            rows(author, "select gc.begin_upload('file', '1')")
            return rows(worker, "select key from gc.claim('worker')")


MUTATIONS = [
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
        # At the second look, and where the later one is told.
        old="where {later_is_q} and later.entry > q.entry",
        new="where {later_is_q} and false",
        times=2,
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
        check=a_confirm_after_another_worker_took_over,
        right=(0, ["other"], []),
        wrong=(1, [], ["other"]),
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
