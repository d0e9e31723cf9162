"""Installing and removing blobgc: as a database owner, as an extension, as a plain script."""

from __future__ import annotations

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
    without_fingerprints,
)

# Names that need quotes, a partitioned referrer, an owner's trigger, a foreign key NOT VALID.
MORE_APP = """
create table app."Big Album" (
    "Tenant" integer, id integer, cover integer, primary key ("Tenant", id)
);
create table app.picture (
    tenant integer, album integer, day date not null,
    constraint picture_album_fkey foreign key (tenant, album) references app."Big Album"
        on delete restrict deferrable
) partition by range (day);
create table app.picture_2024 partition of app.picture
    for values from ('2024-01-01') to ('2025-01-01');
create index on app.picture (tenant, album);
alter table app."Big Album"
    add constraint "Cover" foreign key (cover) references app.file not valid;
create index on app."Big Album" (cover) where cover is not null;
create function app.touch() returns trigger language plpgsql as $$ begin return null; end $$;
create trigger touch after insert or delete on app.file
    for each statement execute function app.touch();
insert into app.file values (1, 10), (2, 20), (3, 30);
insert into app.post values (1, 1), (2, null);
insert into app."Big Album" values (7, 1, 2), (7, 2, null);
insert into app.picture values (7, 1, '2024-05-05');
comment on table app.file is 'files';
"""

TRACK_MORE = TRACK + """
select * from gc.track('app."Big Album"', label => '"Tenant"::text', condition => 'id > 0',
    owned => '{picture}');
"""


def collect(conn: Connection) -> None:
    """One file that nothing keeps goes all the way from its row to the log; a kept one stays."""
    execute(conn, APP + NO_DELAY + TRACK)
    execute(conn, "insert into app.file values (1, 10), (2, 20)")
    execute(conn, "insert into app.post values (1, 2)")
    assert rows(conn, "select * from gc.review()") == [("file", 2, 1, 1, 0, 0, 10)]
    assert rows(conn, "select id from app.file") == [(2,)]
    claimed = rows(conn, "select id, collection, key, url, size from gc.claim('worker')")
    assert [row[1:] for row in claimed] == [("file", "1", "file:///store/1", 10)]
    assert value(conn, "select gc.confirm('worker', %s)", [claimed[0][0]]) == 1
    assert rows(conn, "select key, url, event, worker from gc.deletion_log") == [
        ("1", "file:///store/1", "file_insert", "worker")
    ]
    execute(conn, "delete from app.post")
    assert rows(conn, "select deleted from gc.review()") == [(1,)]
    assert value(conn, "select count(*) from app.file") == 0


def test_a_database_owner_without_superuser_rights_installs_tracks_reviews_and_claims(
    new_database: NewDatabase, new_role: NewRole
) -> None:
    owner = new_role("owner")
    with new_database(owner).connect() as conn:
        assert not value(conn, "select rolsuper from pg_roles where rolname = current_user")
        execute(conn, "create extension blobgc")
        collect(conn)
        owners = rows(
            conn,
            "select distinct relowner::regrole::text from pg_class "
            "where relnamespace = 'gc'::regnamespace "
            "union select proowner::regrole::text from pg_proc "
            "where pronamespace = 'gc'::regnamespace "
            "union select extowner::regrole::text from pg_extension where extname = 'blobgc'",
        )
        assert owners == [(owner,)]


def test_a_role_that_may_not_create_in_the_database_cannot_install(
    new_database: NewDatabase, new_role: NewRole
) -> None:
    with new_database().connect(user=new_role("stranger")) as conn:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            execute(conn, "create extension blobgc")
        assert value(conn, "select to_regnamespace('gc')") is None


def test_a_database_owner_without_superuser_rights_runs_the_plain_script(
    new_database: NewDatabase, new_role: NewRole, plain_script: str
) -> None:
    owner = new_role("owner")
    database = new_database(owner)
    database.psql(plain_script)
    with database.connect() as conn:
        assert rows(conn, "select extname from pg_extension where extname = 'blobgc'") == []
        collect(conn)


def test_the_plain_script_makes_the_same_objects_as_the_extension(
    new_database: NewDatabase, plain_script: str
) -> None:
    extension, plain = new_database(), new_database()
    plain.psql(plain_script)
    with extension.connect() as one, plain.connect() as other:
        execute(one, "create extension blobgc")
        made = catalog(one)
        kinds = {row[0] for row in made}
        assert kinds >= {"function", "relation", "column", "constraint", "comment", "trigger"}
        assert "gc.claim(text,integer,interval,text[],text)" in {row[1] for row in made}
        assert catalog(other) == made
        assert contents(other, "gc") == contents(one, "gc")

        for conn in one, other:
            execute(conn, APP + MORE_APP + TRACK_MORE)
        assert len(catalog(one)) > len(made)
        assert without_fingerprints(catalog(other)) == without_fingerprints(catalog(one))


def test_the_plain_script_run_a_second_time_is_refused_and_changes_nothing(
    new_database: NewDatabase, plain_script: str
) -> None:
    database = new_database()
    database.psql(plain_script)
    with database.connect() as conn:
        execute(conn, APP + "update gc.settings set max_rows = 77;" + TRACK)
        before = catalog(conn), contents(conn, "gc")
        with pytest.raises(AssertionError, match='schema "gc" already exists'):
            database.psql(plain_script)
        assert (catalog(conn), contents(conn, "gc")) == before


def our_traces(conn: Connection) -> list[tuple[str, str]]:
    """What is left of blobgc anywhere in the database."""
    return [
        (str(kind), str(name))
        for kind, name in rows(
            conn,
            """
            select 'schema', nspname from pg_namespace where nspname = 'gc'
            union all
            select 'trigger', tgname from pg_trigger where tgname like 'gc\\_%'
            union all
            select 'function', proname from pg_proc where prosrc like '%gc.tombstones%'
            union all
            select 'extension', extname from pg_extension where extname = 'blobgc'
            """,
        )
    ]


def install_and_use(conn: Connection) -> None:
    """Track the tables of MORE_APP, and leave their rows as they were found."""
    execute(conn, "create extension blobgc;" + NO_DELAY + TRACK_MORE)
    execute(conn, "insert into app.file values (9, 90); insert into app.post values (9, 9)")
    execute(conn, "delete from app.post where id = 9")
    assert rows(conn, "select collection, deleted from gc.review()") == [
        ("Big Album", 0), ("file", 1)
    ]
    assert value(conn, "select count(*) from gc.tombstones") == 1
    watched = rows(
        conn,
        "select distinct tgrelid::regclass::text from pg_trigger where tgname like 'gc\\_%' "
        "order by 1",
    )
    assert watched == [('app."Big Album"',), ("app.file",), ("app.post",)]


def app_with_rows(new_database: NewDatabase) -> tuple[Database, str]:
    """A database that has never seen blobgc, and its dump."""
    database = new_database()
    database.psql(APP + MORE_APP)
    dump = database.dump()
    assert "touch" in dump and "NOT VALID" in dump and "2024-05-05" in dump
    return database, dump


def test_drop_extension_without_cascade_is_refused_while_there_are_collections(
    new_database: NewDatabase,
) -> None:
    database, _ = app_with_rows(new_database)
    with database.connect() as conn:
        install_and_use(conn)
        before = catalog(conn), contents(conn, "gc", "app")
        with pytest.raises(psycopg.errors.DependentObjectsStillExist):
            execute(conn, "drop extension blobgc")
        assert (catalog(conn), contents(conn, "gc", "app")) == before
        execute(conn, "delete from app.post where id = 1")
        assert rows(conn, "select deleted from gc.review() where collection = 'file'") == [(1,)]


def test_drop_extension_cascade_leaves_the_application_exactly_as_it_was(
    new_database: NewDatabase,
) -> None:
    database, before = app_with_rows(new_database)
    with database.connect() as conn:
        install_and_use(conn)
        assert database.dump() != before
        execute(conn, "drop extension blobgc cascade")
        assert our_traces(conn) == []
        assert database.dump() == before

        # And the tables work: no trigger looks for what is gone.
        execute(
            conn,
            "insert into app.file values (10); insert into app.post values (10, 10);"
            "update app.post set file_id = 3 where id = 10; truncate app.post;"
            "delete from app.file where id = 10",
        )
        assert rows(conn, "select id from app.file order by id") == [(1,), (2,), (3,)]


def test_blobgc_can_be_installed_again_after_drop_extension_cascade(
    new_database: NewDatabase,
) -> None:
    database, before = app_with_rows(new_database)
    with database.connect() as conn:
        for _ in range(2):
            install_and_use(conn)
            execute(conn, "drop extension blobgc cascade")
        assert our_traces(conn) == []
    assert database.dump() == before


def test_after_untrack_of_everything_drop_extension_needs_no_cascade(
    new_database: NewDatabase,
) -> None:
    database, before = app_with_rows(new_database)
    app_before = database.dump("--schema=app")
    with database.connect() as conn:
        install_and_use(conn)
        assert database.dump("--schema=app") != app_before
        execute(conn, "select gc.untrack(name) from gc.collections")
        execute(conn, "call gc.drop_unused_triggers()")
        assert database.dump("--schema=app") == app_before
        execute(conn, "drop extension blobgc")
        assert our_traces(conn) == []
    assert database.dump() == before


def test_the_plain_script_is_removed_with_its_schema(
    new_database: NewDatabase, plain_script: str
) -> None:
    database, before = app_with_rows(new_database)
    database.psql(plain_script)
    with database.connect() as conn:
        execute(conn, TRACK_MORE)
        with pytest.raises(psycopg.errors.DependentObjectsStillExist):
            execute(conn, "drop schema gc")
        execute(conn, "drop schema gc cascade")
        assert our_traces(conn) == []
    assert database.dump() == before
