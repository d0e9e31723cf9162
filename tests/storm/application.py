"""The application's world: files that share objects, and every kind of reference to them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from conftest import Connection, execute, rows

from storm.client import CHANGES, PATIENCE, REFUSALS, TRUNCATES, Client, is_lost
from storm.world import World

if TYPE_CHECKING:
    from storm.blow import Storm

FILES = range(1, 17)  # Keys,
PATHS = range(12)  # and objects that rows share.
PICTURES = range(1, 7)
SCANS, PAGES = range(1, 9), range(8)
PAID = 100  # From here on: keys of one client, under which objects get a row that have none;
OWN = 200  # and others of one client;
ONCE = 1_000_000  # and those that are used once.
KEPT_ALIVE = 0.2  # Seconds.
CLAIMED_WITHIN = 3.0  # Seconds: a claim that is under way goes on.
LEVELS = ["read committed"] * 6 + ["repeatable read", "serializable"]


@dataclass(frozen=True)
class Kind:
    """A kind of reference: where one is, in what column, and how it is written."""

    table: str
    column: str = "file_id"
    written: str = "%s"  # As a value of the column.
    read: str = "file_id"
    has_key: bool = True  # PostgreSQL itself refuses to refer to nothing.
    goes: bool = False  # When the application deletes the file, or changes its key.
    parts: tuple[str, ...] = ()  # Partitions, at which statements may be aimed.

    @property
    def put(self) -> str:
        return (f"insert into {self.table} (id, {self.column}) values (%s, {self.written}) "
                f"on conflict (id) do update set {self.column} = excluded.{self.column}")


KINDS = {
    "cascade": Kind("app.post", goes=True),
    "set null": Kind("app.avatar", goes=True),
    "restrict": Kind("app.receipt"),
    "deferred": Kind("app.invoice"),
    "composite": Kind("app.part"),
    "partitioned": Kind("app.view", parts=("app.view_0", "app.view_1")),
    "column": Kind("app.mention", has_key=False),
    "array": Kind("app.mention", "file_ids", "array[%s, null]::integer[]", "file_ids[1]", False),
    "set default": Kind("app.cover", goes=True),
    "match full": Kind("app.sheet"),
    "not valid": Kind("app.quote"),
    "update cascade": Kind("app.alias", goes=True),
    "update set null": Kind("app.guess", goes=True),
    "json": Kind("app.mention", "content", "jsonb_build_object('file', %s::integer)",
                 "(content ->> 'file')::integer", False),
    "conditional": Kind("app.link", "about_id", read="about_id", has_key=False),
    "by digest": Kind("app.mention", "digest", "'d' || %s", "substr(digest, 2)::integer", False),
    "truncated": Kind("app.batch"),
    "note": Kind("app.note", has_key=False),
}

MENTIONED = """
select file_id as id from app.mention where file_id is not null
union all
select u from app.mention cross join unnest(file_ids) as u where u is not null
union all
select substr(digest, 2)::integer from app.mention where digest is not null
union all
select (content ->> 'file')::integer from app.mention where content is not null
union all
select about_id from app.link
"""
UNMENTIONED = (f"id not in ({MENTIONED}) and id not in "
               "(select file_id from app.note where file_id is not null)")


class Application(World):
    refusals = REFUSALS | {"23503", "23001", "ZG006"}  # A RESTRICT is 23001 from 18 on.
    logged = {"55P03"}  # Of ALTER TABLE, which gives up soon.
    never = {
        "a mention of nothing":
            f"select id from ({MENTIONED}) as m where m.id not in (select id from app.file)",
    }
    dead = {
        "a file that nothing uses": f"""
            select f.id, f.path, f.xmin::text from app.file as f
            where f.id not in ({MENTIONED})
                and not exists (select from app.post as r where r.file_id = f.id)
                and not exists (select from app.avatar as r where r.file_id = f.id)
                and not exists (select from app.receipt as r where r.file_id = f.id)
                and not exists (select from app.invoice as r where r.file_id = f.id)
                and not exists (select from app.part as r where r.file_id = f.id)
                and not exists (select from app.view as r where r.file_id = f.id)
                and not exists (select from app.cover as r where r.file_id = f.id)
                and not exists (select from app.sheet as r where r.file_id = f.id)
                and not exists (select from app.quote as r where r.file_id = f.id)
                and not exists (select from app.alias as r where r.file_id = f.id)
                and not exists (select from app.guess as r where r.file_id = f.id)
                and not exists (select from app.note as r where r.file_id = f.id)
                and not exists (select from app.batch as r where r.file_id = f.id)
                and not exists (select from app.seal as r where r.file_id = f.id)
                and not exists (
                    select from app.file as r where r.thumbnail_of = f.id and r.id <> f.id)""",
        "a picture that nothing uses": """
            select id, xmin::text from app.picture where id not in (
                select picture_id from app.frame where picture_id is not null)""",
        "a draft that was left": "select * from app.draft",
    }
    patient = frozenset({"a draft that was left"})

    def __init__(self, storm: Storm) -> None:
        super().__init__(storm)
        self.store = storm.objects.prefix
        self.live = f"""
            select 'file ' || id || ' ' || xmin, '{self.store}files/' || path from app.file
            union all
            select 'picture ' || id || ' ' || xmin, '{self.store}pictures/' || id from app.picture
            union all
            select 'scan ' || id || ' ' || s.xmin, '{self.store}scans/' || page
            from app.scan as s cross join lateral (values (front), (back)) as p(page)
        """
        # Since when notes are declared to refer to files: they may be gone, if not for all of that.
        self.noted_since: float | None = 0.0

    def create(self, conn: Connection) -> None:
        script = (Path(__file__).parent / "application.sql").read_text()
        execute(conn, script.replace("{store}", self.store))
        execute(conn, f"update gc.settings set keep_alive = '{KEPT_ALIVE} seconds'")

    def client(self, number: int) -> Client:
        return User(self.storm, self, number)

    def content_of(self, url: str) -> bytes:
        return url.removeprefix(self.store).encode() * 20

    def abandon(self, conn: Connection) -> None:
        tables = {kind.table for kind in KINDS.values()} | {"app.frame", "app.scan"}
        execute(conn, "".join(f"delete from {table};" for table in sorted(tables)))
        execute(conn, "update app.file set thumbnail_of = null")


class User(Client):
    """A client of the application. Of each kind of reference it has one of its own, which it sets
    to a file, moves, and clears."""

    weights = {
        "upload": 14, "upload_own": 6, "upload_once": 6, "upload_and_merge": 2,
        "insert_first": 10, "copy": 6, "copy_and_delete": 8, "copy_own": 12, "replace": 4,
        "refer": 20, "clear": 24, "move": 24, "refer_in_two_phases": 4, "delete": 8,
        "change_key": 8, "change_own_key": 6, "thumbnail": 2, "check_any": 30,
        "upload_picture": 6, "drop_frame": 6, "delete_picture": 3, "restore_picture": 8,
        "upload_scan": 4, "insert_scan_first": 8, "copy_scan": 4, "delete_scan": 8, "pin": 2,
        "hold_own": 4, "pause": 1, "pause_deletes": 2, "declare": 3, "alter": 0.6,
        "alter_scan": 0.3, "truncate": 2, "lose_keeper": 12, "ask": 0.5, "explain": 2,
    }

    def __init__(self, storm: Storm, world: Application, number: int) -> None:
        super().__init__(storm, number)
        self.world = world
        self.things = self.once = 0

    def number_next(self) -> str:
        self.things += 1
        return f"client {self.number} {self.things}"

    def number_once(self) -> int:
        """A key that is used once."""
        self.once += 1
        return ONCE * (1 + self.number) + self.once

    def set_up_session(self, conn: Connection) -> None:
        """What was prepared survives a crash: somebody must end it."""
        for (name,) in conn.execute("select gid from pg_prepared_xacts "
                                    "where database = current_database()"):
            if name.startswith(f"client {self.number} "):
                how = self.chance.choice(["commit", "rollback"])
                conn.execute(f"{how} prepared '{name}'".encode())
        conn.execute("delete from app.draft where id = any (%s)",
                     [[self.number, OWN + self.number]])
        self.give_key_back(conn)

    def url(self, path: object) -> str:
        return f"{self.world.store}files/{path}"

    def execute(self, query: str, *arguments: object) -> int:
        return self.conn.execute(query.encode(), arguments).rowcount

    def any_level(self) -> str:
        return self.chance.choice(LEVELS)

    # References

    def put_reference(self, name: str, file: int) -> None:
        """In a transaction. Only a file that it sees is mentioned: a convention checks nothing."""
        kind = KINDS[name]
        if not kind.has_key and not self.rows("select from app.file where id = %s", file):
            raise psycopg.errors.ForeignKeyViolation("no such file")
        if self.chance.random() < 0.2:
            self.execute("savepoint s")
            self.execute(kind.put, self.slot(name), self.chance.choice(FILES))
            self.execute("rollback to s")
        self.execute(kind.put, self.slot(name), file)

    def slot(self, name: str) -> int:
        """The three kinds of mentions are columns of one table."""
        return 100 * self.number + [*KINDS].index(name)

    def kind(self) -> str:
        return self.chance.choice([*KINDS])

    def refer(self) -> None:
        name, file = self.kind(), self.chance.choice(FILES)
        with self.telling(name, file), self.transaction(self.any_level()):
            self.put_reference(name, file)
        self.oracle.count(f"refer: {name}")

    def refer_in_two_phases(self) -> None:
        name, file, prepared = self.kind(), self.chance.choice(FILES), self.number_next()
        with self.telling(name, file):
            self.execute("begin")
            try:
                self.put_reference(name, file)
                self.execute(f"prepare transaction '{prepared}'")
            except psycopg.Error as error:
                if not is_lost(error):
                    self.execute("rollback")
                raise
            self.linger()
            self.execute(f"commit prepared '{prepared}'")
        self.oracle.count("refer in two phases")

    def clear(self) -> None:
        mine = [name for name, told in self.told.items()
                if name in KINDS and told.values != {None}]
        if mine:
            name = str(self.chance.choice(mine))
            with self.telling(name, None), self.transaction():
                self.delete_reference(name)
            self.oracle.count("clear")

    def delete_reference(self, name: str) -> None:
        kind = KINDS[name]
        if kind.parts and self.chance.random() < 0.3:
            self.merge_away(kind, self.slot(name))
            return
        tables = kind.parts if self.chance.random() < 0.5 else ()
        for table in tables or (kind.table,):
            self.execute(f"delete from {table} where id = %s", self.slot(name))

    def merge_away(self, kind: Kind, slot: int) -> None:
        """A MERGE that takes the row to another partition, perhaps, where it refers to nothing."""
        new = slot + ONCE * self.chance.randint(1, 9)
        self.execute(
            f"merge into {kind.table} as r using (values (%s::integer)) as s(id) on r.id = s.id "
            f"when matched then update set id = %s, {kind.column} = null", slot, new)
        self.execute(f"delete from {kind.table} where id = %s", new)

    def move(self) -> None:
        """What one of our references refers to gets another one, of another kind, a moment after
        the first has gone: the file is being reviewed by then."""
        mine = [(name, file) for name, told in self.told.items() for file in told.values
                if name in KINDS and len(told.values) == 1 and isinstance(file, int)
                and file not in (PAID + self.number, OWN + self.number)]
        if not mine:
            return
        name, file = self.chance.choice(mine)
        with self.telling(name, None):
            self.delete_reference(str(name))
        if self.chance.random() < 0.5:
            time.sleep(self.chance.uniform(0, 0.04))
        other = self.kind()
        with self.telling(other, file), self.transaction(self.any_level()):
            self.put_reference(other, file)
        self.oracle.count("move")

    def check_any(self) -> None:
        if self.told:
            self.check(self.chance.choice([*self.told]))
            self.oracle.count("check")

    def check(self, what: Hashable) -> None:
        """A reference of ours is there, and what it refers to, with every byte."""
        if what == "frame":
            self.check_frame()
            return
        kind, told = KINDS[str(what)], self.told[what]
        noted_since = self.world.noted_since
        found = self.rows(
            f"select r.file, f.path from (select {kind.read} from {kind.table} where id = %s) "
            "as r(file) left join app.file as f on f.id = r.file", self.slot(str(what)))
        file, path = found[0] if found else (None, None)
        excuses: list[Hashable] = [("file", value) for value in told.values] if kind.goes else []
        if what == "truncated":
            excuses.append("a truncate")
        if not self.check_told(what, file, *excuses):
            return
        if file is None:
            return
        if what == "note" and (self.world.noted_since != noted_since or noted_since is None
                               or told.since <= noted_since):
            return
        if path is None:
            self.oracle.violated(f"{what} of client {self.number} refers to file {file}, which is "
                                 "gone")

    # Files

    def upload(self) -> None:
        """Announced, written, inserted, with a reference."""
        self.upload_path(self.chance.choice(PATHS), self.chance.choice(FILES), self.kind())

    def upload_path(
        self, path: object, file: int, name: str, meanwhile: Callable[[], None] | None = None
    ) -> None:
        upload, url, begun = self.number_next(), self.url(path), time.monotonic()
        with self.transaction():
            self.rows("select gc.begin_upload('file', %s, %s, '1 second', upload => %s)",
                      str(file), url, upload)
        self.linger()
        self.put(url, begun)
        (meanwhile or self.linger_long)()
        with self.telling(name, file), self.transaction():
            self.insert_file(file, path)
            self.put_reference(name, file)
            if not self.value("select gc.end_upload('file', %s, %s)", str(file), upload):
                raise psycopg.errors.SerializationFailure("the upload took too long")
        self.debts = [debt for debt in self.debts if debt != url]
        self.oracle.count("upload")

    def upload_own(self) -> None:
        """An object that is nobody else's is announced and written once more, and then its only row
        goes: it has none until we insert ours."""
        path, mine = f"own-{self.number}", OWN + self.number

        def lose_row() -> None:
            self.drop_own(mine)
            time.sleep(self.chance.uniform(0, 1))

        self.have_own(mine, path)
        self.upload_path(path, mine + 100 * self.chance.randint(1, 3), self.kind(), lose_row)

    def upload_once(self) -> None:
        """An object whose address nobody uses again: what is forgotten of it stays forgotten."""
        file, names = self.number_once(), self.chance.sample([*KINDS], 2)
        self.upload_path(f"once-{file}", file, names[0])
        if self.chance.random() < 0.5:
            return
        with self.telling(names[1], file), self.transaction():
            self.put_reference(names[1], file)
        # One right after the other, so that the file is queued twice.
        for name in names:
            with self.telling(name, None):
                self.delete_reference(name)
        if self.chance.random() < 0.5:
            self.delete_file(self.conn, file)

    def upload_and_merge(self) -> None:
        """The same, and the only row that refers to it is moved away."""
        file = self.number_once()
        self.upload_path(f"once-{file}", file, "partitioned")
        with self.telling("partitioned", None), self.transaction():
            self.merge_away(KINDS["partitioned"], self.slot("partitioned"))

    def insert_file(self, file: int, path: object) -> None:
        self.execute("insert into app.file (id, digest, path) values (%s, 'd' || %s, %s)",
                     file, file, str(path))

    def pay(self, debt: str) -> None:
        """Under a key that no other client has."""
        path = debt.removeprefix(self.world.store)
        if path.startswith("pictures/"):
            self.upload_this_picture(int(path.removeprefix("pictures/")))
            return
        if path.startswith("scans/"):
            page = path.removeprefix("scans/")
            self.upload_this_scan(PAID + self.number, page, page)
            return
        file = PAID + self.number
        if self.rows("select from app.file where id = %s", file):
            self.told.pop("cascade", None)
            with self.oracle.taking(("file", file)), self.transaction():
                self.execute("delete from app.file where id = %s", file)
        self.upload_path(path.removeprefix("files/"), file, "cascade")

    def insert_first(self) -> None:
        """The row, kept by a draft; then the object; then a reference may come."""
        path, file = self.chance.choice(PATHS), self.chance.choice(FILES)
        with self.oracle.writing(self.url(path)):
            try:
                with self.transaction(self.any_level()):
                    self.insert_file(file, path)
                    self.execute("insert into app.draft values (%s, %s)", self.number, file)
            except psycopg.Error as error:
                # Our draft tells, and stays until we drop it.
                if not is_lost(error) or not self.is_there(
                        "select from app.draft where id = %s", self.number):
                    raise
            self.linger()
            self.storm.objects.put(self.url(path), self.world.content_of(self.url(path)))
        self.execute("delete from app.draft where id = %s", self.number)
        self.oracle.count("insert first")

    def is_there(self, query: str, *arguments: object) -> bool:
        """The answer to our commit was lost."""
        self.forget_session()
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                with self.storm.database.connect() as conn:
                    return bool(rows(conn, query, *arguments))
            except psycopg.OperationalError:
                time.sleep(0.05)
        raise TimeoutError("the server does not come back")

    def copy(self) -> None:
        """Another row with the object of one that is there; that one may go meanwhile."""
        original, file = self.chance.sample(FILES, 2)
        name = self.kind()
        with self.telling(name, file), self.transaction(self.any_level()):
            found = self.rows("select path from app.file where id = %s", original)
            if not found:
                raise psycopg.errors.ForeignKeyViolation("nothing to copy")
            self.linger()
            self.insert_file(file, found[0][0])
            self.put_reference(name, file)
        self.oracle.count("copy")

    def copy_and_delete(self) -> None:
        """A row gets the object of another, and another session deletes that one meanwhile. The
        copy is inserted before the delete, or a while after it."""
        alone = self.rows("select min(id), path from app.file group by path "
                          "having count(*) = 1 and min(id) < %s", PAID)
        if not alone:
            return
        original, path = self.chance.choice(alone)
        file, name, is_first = self.chance.choice(FILES), self.kind(), self.chance.random() < 0.5
        with self.telling(name, file), self.transaction():
            if not self.rows("select from app.file where id = %s and path = %s", original, path):
                raise psycopg.errors.ForeignKeyViolation("nothing to copy")
            if is_first:
                self.insert_file(file, path)
            with self.oracle.taking(("file", original)):
                self.delete_file(self.other, original)
            time.sleep(self.chance.uniform(0, 0.6))
            if not is_first:
                self.insert_file(file, path)
            self.put_reference(name, file)
        self.oracle.count("copy and delete")

    def copy_own(self) -> None:
        """The same with rows and an object that are nobody else's, so that the object has no other
        row than these two: the one that goes, kept by a draft until then, and the copy."""
        path, mine = f"own-{self.number}", OWN + self.number
        copy = mine + 100 * self.chance.randint(1, 3)
        name, is_first = self.kind(), self.chance.random() < 0.5
        self.have_own(mine, path)
        with self.telling(name, copy), self.transaction():
            if is_first:
                self.insert_file(copy, path)
            self.drop_own(mine)
            time.sleep(self.chance.uniform(0, 0.4))
            if not is_first:
                self.insert_file(copy, path)
            self.put_reference(name, copy)
        self.oracle.count("copy own")

    def have_own(self, file: int, path: str) -> None:
        if self.rows("select from app.file where id = %s", file):
            return
        url = self.url(path)
        with self.oracle.writing(url), self.transaction():
            self.insert_file(file, path)
            self.execute("insert into app.draft values (%s, %s)", file, file)
            self.debts.append(url)
            self.storm.objects.put(url, self.world.content_of(url))
        self.debts = [debt for debt in self.debts if debt != url]

    def drop_own(self, file: int) -> None:
        execute(self.other, f"delete from app.draft where id = {file}; "
                            f"delete from app.file where id = {file}")

    def replace(self) -> None:
        """A file gets another object."""
        path, file = self.chance.choice(PATHS), self.chance.choice(FILES)
        upload, url, begun = self.number_next(), self.url(path), time.monotonic()
        with self.transaction():
            self.rows("select gc.begin_upload('file', %s, %s, '1 second', upload => %s)",
                      str(file), url, upload)
        self.put(url, begun)
        with self.transaction():
            changed = self.execute("update app.file set path = %s where id = %s", str(path), file)
            if not changed or not self.value(
                    "select gc.end_upload('file', %s, %s)", str(file), upload):
                raise psycopg.errors.SerializationFailure("nothing to replace, or too late")
        self.debts = [debt for debt in self.debts if debt != url]
        self.oracle.count("replace")

    def delete_file(self, conn: Connection, file: int) -> None:
        """As an application should: lock, look for mentions, delete."""
        with conn.transaction():
            rows(conn, "select from app.file where id = %s for update", file)
            conn.execute(
                f"delete from app.file where id = %s and {UNMENTIONED}".encode(), [file])
            self.linger()

    def delete(self) -> None:
        file = self.chance.choice(FILES)
        with self.oracle.taking(("file", file)):
            self.delete_file(self.conn, file)
        self.oracle.count("delete")

    def change_key(self) -> None:
        """References with an ON UPDATE follow or become null; any other refuses it."""
        file, new = self.chance.sample(FILES, 2)
        with self.oracle.taking(("file", file)), self.transaction(self.any_level()):
            self.give_key(file, new)
        self.oracle.count("change key")

    def give_key(self, file: int, new: int) -> bool:
        """As an application should: lock, look for mentions, change."""
        self.rows("select from app.file where id = %s for update", file)
        return self.execute(
            "update app.file set id = %s, digest = 'd' || %s "
            f"where id = %s and {UNMENTIONED}", new, new, file) > 0

    def change_own_key(self) -> None:
        """Of a file that only one reference of ours keeps, which follows it, or lets it go."""
        path, mine = f"own-{self.number}", OWN + self.number
        name, other = self.chance.sample(["update cascade", "update set null"], 2)
        self.have_own(mine, path)
        with self.telling(name, mine), self.telling(other, None), self.transaction():
            self.execute(f"delete from {KINDS[other].table} where id = %s", self.slot(other))
            self.put_reference(name, mine)
        execute(self.other, f"delete from app.draft where id = {mine}")
        self.linger()
        new = mine + 100 * self.chance.randint(1, 3)
        with (self.telling(name, new if name == "update cascade" else None),
              self.transaction(self.any_level())):
            if not self.give_key(mine, new):
                if not self.rows("select from app.file where id = %s", mine):
                    self.oracle.violated(f"file {mine} is gone, and {name} referred to it")
                raise psycopg.errors.ForeignKeyViolation("somebody mentions it")
        self.oracle.count("change own key")

    def truncate(self) -> None:
        """Of a table that refers to files, or of a collection with what it owns."""
        tables = self.chance.choice(["app.batch", "app.frame, app.label, app.picture"])
        if not self.storm.is_before(TRUNCATES):
            return
        if tables == "app.batch":  # There is a file that nothing else keeps.
            file = self.number_once()
            self.upload_path(f"once-{file}", file, "truncated")
        with self.oracle.taking("a truncate"):
            if self.change_tables(f"truncate {tables}"):
                self.oracle.count("truncate")

    def thumbnail(self) -> None:
        file, other = self.chance.sample(FILES, 2)
        value = None if self.chance.random() < 0.7 else other
        with self.transaction(self.any_level()):
            self.execute("update app.file set thumbnail_of = %s where id = %s", value, file)
        self.oracle.count("thumbnail")

    # Pictures

    def upload_picture(self) -> None:
        is_once = self.chance.random() < 0.3
        self.upload_this_picture(
            self.number_once() if is_once else self.chance.choice(PICTURES))

    def upload_this_picture(self, picture: int) -> None:
        upload, begun = self.number_next(), time.monotonic()
        url = f"{self.world.store}pictures/{picture}"
        with self.transaction():
            self.rows("select gc.begin_upload('picture', %s, wait => '1 second', upload => %s)",
                      str(picture), upload)
        self.put(url, begun)
        self.linger_long()
        with self.telling("frame", picture), self.transaction():
            self.execute("insert into app.picture values (%s) on conflict do nothing", picture)
            self.execute("insert into app.label (picture_id) values (%s)", picture)
            self.execute("insert into app.frame values (%s, %s) on conflict (id) do update "
                         "set picture_id = excluded.picture_id", self.number, picture)
            if not self.value("select gc.end_upload('picture', %s, %s)", str(picture), upload):
                raise psycopg.errors.SerializationFailure("the upload took too long")
        self.debts = [debt for debt in self.debts if debt != url]
        self.oracle.count("upload picture")

    def drop_frame(self) -> None:
        with self.telling("frame", None), self.transaction():
            self.execute("delete from app.frame where id = %s", self.number)
        self.oracle.count("drop frame")

    def delete_picture(self) -> None:
        picture = self.chance.choice(PICTURES)
        with self.oracle.taking(("picture", picture)), self.transaction():
            self.execute("delete from app.label where picture_id = %s", picture)
            self.execute("delete from app.picture where id = %s", picture)
        self.oracle.count("delete picture")

    def restore_picture(self) -> None:
        """With its labels. As long as its window lasts, its object is there."""
        found = self.rows("select id, key from gc.trash_rows "
                          "where relation = 'app.picture'::regclass and until > now()")
        if not found:
            return
        place, key = self.chance.choice(found)
        try:
            with self.oracle.taking("a restore"), self.transaction():
                if self.value("select gc.restore('picture', %s)", key) and not self.rows(
                        "select from app.label where picture_id = %s", int(key)):
                    self.oracle.violated(f"picture {key} was restored without its labels")
        except psycopg.Error as error:
            if "the object of row" in str(error) and self.is_restorable(place, key):
                self.oracle.violated(f"picture {key} could not be restored in time: {error}")
            raise
        self.oracle.count("restore")

    def is_restorable(self, place: int, key: str) -> bool:
        """Whether it still could be: it is the last that went under its key."""
        return bool(self.rows(
            "select from gc.trash_rows as r where r.id = %s and r.until > clock_timestamp() "
            "and not exists (select from app.picture as p where p.id = %s) and not exists ("
            "select from gc.trash_rows as o where (o.relation, o.key) = (r.relation, r.key) "
            "and o.id > r.id)", place, int(key)))

    def check_frame(self) -> None:
        told = self.told["frame"]
        found = self.rows("select picture_id from app.frame where id = %s", self.number)
        # A restore may bring a frame of ours back, but takes none away.
        self.check_told("frame", found[0][0] if found else None,
                        *(["a restore"] if found else []), "a truncate",
                        *(("picture", value) for value in told.values))

    # Scans

    def upload_scan(self) -> None:
        front, back = (str(self.chance.choice(PAGES)) for _ in "12")
        if self.chance.random() < 0.3:
            front = f"once-{self.number_once()}"
        self.upload_this_scan(self.chance.choice(SCANS), front, back)

    def upload_this_scan(self, scan: int, front: str, back: str) -> None:
        """Its two objects are announced, written, and get a row, or are those of one now."""
        urls = [f"{self.world.store}scans/{page}" for page in sorted({front, back})]
        uploads, begun = [self.number_next() for _ in urls], time.monotonic()
        for url, upload in zip(urls, uploads, strict=True):
            self.rows("select gc.begin_upload('scan', %s, %s, '1 second', upload => %s)",
                      str(scan), url, upload)
        for url in urls:
            self.put(url, begun)
        self.linger_long()
        with self.transaction():
            self.put_scan(scan, front, back)
            for upload in uploads:
                if not self.value("select gc.end_upload('scan', %s, %s)", str(scan), upload):
                    raise psycopg.errors.SerializationFailure("the upload took too long")
        self.debts = [debt for debt in self.debts if debt not in urls]
        self.oracle.count("upload scan")

    def insert_scan_first(self) -> None:
        """The row, which only we change, and then its objects: perhaps those of a moment ago."""
        front, back = (str(self.chance.choice(PAGES)) for _ in "12")
        scan = OWN + self.number
        urls = [f"{self.world.store}scans/{page}" for page in (front, back)]
        self.execute("delete from app.scan where id = %s", scan)
        time.sleep(self.chance.uniform(0, 0.5))
        with self.oracle.writing(urls[0]), self.oracle.writing(urls[1]):
            try:
                with self.transaction(self.any_level()):
                    self.put_scan(scan, front, back)
            except psycopg.Error as error:
                if not is_lost(error) or not self.is_there(
                        "select from app.scan where (id, front, back) = (%s, %s, %s)",
                        scan, front, back):
                    raise
            self.linger()
            for url in urls:
                self.storm.objects.put(url, self.world.content_of(url))
        self.oracle.count("insert scan first")

    def put_scan(self, scan: int, front: str, back: str) -> None:
        self.execute("insert into app.scan values (%s, %s, %s) on conflict (id) do update "
                     "set front = excluded.front, back = excluded.back", scan, front, back)

    def copy_scan(self) -> None:
        """A page of one and a page of another become a third, and these may go meanwhile."""
        one, two, scan = self.chance.sample(SCANS, 3)
        with self.transaction(self.any_level()):
            found = self.rows("select front from app.scan where id = %s "
                              "union all select back from app.scan where id = %s", one, two)
            if len(found) < 2:
                raise psycopg.errors.ForeignKeyViolation("nothing to copy")
            if self.chance.random() < 0.3:
                self.execute("savepoint s")
                self.put_scan(scan, found[1][0], found[1][0])
                self.execute("rollback to s")
            self.linger_long()
            self.put_scan(scan, found[0][0], found[1][0])
        self.oracle.count("copy scan")

    def delete_scan(self) -> None:
        with self.transaction():
            self.execute("delete from app.scan where id = %s", self.chance.choice(SCANS))
        self.oracle.count("delete scan")

    # Operators

    def pin(self) -> None:
        file, begun, holder = self.chance.choice(FILES), time.monotonic(), self.number_next()
        if self.value("select gc.pin('file', %s::text, 'storm', now() + interval '5 seconds', %s)",
                      str(file), holder):
            time.sleep(self.chance.uniform(0, 0.1))
            is_there = self.rows("select from app.file where id = %s", file)
            if not is_there and time.monotonic() < begun + 4 and not (
                    self.oracle.may_be_gone(begun, [("file", file)])):
                self.oracle.violated(f"file {file} was pinned, and is gone")
        self.rows("select gc.unpin('file', %s::text, %s)", str(file), holder)
        self.oracle.count("pin")

    def hold_own(self) -> None:
        """What only a pin, or gc.keep_alive, keeps: nobody else deletes it. Its key may change, by
        a transaction whose snapshot is older."""
        mine = OWN + self.number
        self.have_own(mine, f"own-{self.number}")
        holder, is_pin = self.number_next(), self.chance.random() < 0.5
        keys = [mine]
        with contextlib.ExitStack() as stack:
            follows = any(mine in told.values for told in self.told.values())
            if self.chance.random() < 0.4 and not follows:
                keys.append(mine + 100 * self.chance.randint(1, 3))
                stack.enter_context(self.other.transaction())
                level = self.chance.choice(LEVELS[-3:])
                execute(self.other, f"set transaction isolation level {level}")
                rows(self.other, "select count(*) from app.file")
            begun = time.monotonic()
            is_held = self.hold(mine, holder if is_pin else None)
            self.execute("delete from app.draft where id = %s", mine)
            if len(keys) > 1:
                execute(self.other, f"update app.file set id = {keys[1]}, digest = 'd{keys[1]}' "
                                    f"where id = {mine} and {UNMENTIONED}")
        time.sleep(self.chance.uniform(0, 1.0 if is_pin else KEPT_ALIVE))
        if is_held and not self.rows("select from app.file where id = any (%s)", keys) and (
                time.monotonic() < begun + (4 if is_pin else KEPT_ALIVE)):
            self.oracle.violated(f"file {mine} was {'pinned' if is_pin else 'kept alive'}, "
                                 f"and is gone ({keys})")
        if is_pin:
            for key in keys:
                self.rows("select gc.unpin('file', %s::text, %s)", str(key), holder)
        self.oracle.count("hold own" if len(keys) == 1 else "hold own under another key")

    def hold(self, file: int, holder: str | None) -> bool:
        """By a pin of that holder, or by gc.keep_alive."""
        if holder is None:
            return bool(self.value("select gc.keep_alive('file', %s)", str(file)))
        return bool(self.value(
            "select gc.pin('file', %s::text, 'storm', now() + interval '5 seconds', %s)",
            str(file), holder))

    def pause(self) -> None:
        self.pause_this("file")

    def pause_deletes(self) -> None:
        """Nothing is claimed of what only one client pauses."""
        if self.number != 0:
            return
        self.rows("select gc.pause('scan', 'storm', now() + interval '15 seconds', 'deletes')")
        since, begun = self.value("select clock_timestamp()"), time.monotonic()
        leased = CLAIMED_WITHIN + self.storm.lease
        time.sleep(leased + CLAIMED_WITHIN)
        claimed = self.rows(
            "select key, worker from gc.tombstones where collection = 'scan' "
            "and worker is not null and due_at > %s + make_interval(secs => %s) "
            "union all select key, worker from gc.deletion_log where collection = 'scan' "
            "and worker is not null and deleted_at > %s + make_interval(secs => %s) limit 3",
            since, leased, since, leased)
        if claimed and time.monotonic() < begun + 14:
            self.oracle.violated(f"scans were paused, and workers claimed {claimed}")
        self.rows("select gc.resume('scan')")
        self.oracle.count("pause deletes")

    def declare(self) -> None:
        """Notes refer to files, and then they do not. One client says so."""
        if self.number != 0 or not self.storm.is_before(CHANGES):
            return
        self.world.noted_since = None
        if self.rows("select from gc.declared_references where referencing = 'app.note'::regclass"):
            with self.transaction():
                self.rows("select gc.drop_reference('file', 'app.note', 'file_id')")
        time.sleep(self.chance.uniform(0, 0.2))
        with self.transaction():
            self.rows("select gc.declare_reference('file', 'app.note', 'file_id')")
        self.world.noted_since = time.monotonic()
        self.oracle.count("declare")

    def alter(self) -> None:
        """A migration that gives up soon, as a careful one does."""
        change = self.chance.choice([
            "alter table app.file add column if not exists extra integer",
            "alter table app.file drop column if exists extra",
            "alter table app.post drop constraint post_file_fkey, add constraint post_file_fkey "
            "foreign key (file_id) references app.file on delete cascade",
            "alter table app.view detach partition app.view_1; alter table app.view attach "
            "partition app.view_1 for values with (modulus 2, remainder 1)",
            "alter table app.avatar alter column file_id set default null",
        ])
        if self.storm.is_before(CHANGES) and self.change_tables(change):
            self.oracle.count("alter")

    def change_tables(self, change: str) -> bool:
        """Whoever needs a table for itself gives up soon."""
        try:
            with self.transaction():
                execute(self.conn, f"set local lock_timeout = '50ms'; {change}")
            return True
        except psycopg.errors.LockNotAvailable:
            self.oracle.refused("55P03")
            return False

    def alter_scan(self) -> None:
        """In one transaction with a delete: its trigger does not fit the table any more."""
        kind = self.chance.choice(["text", "varchar(200)"])
        if self.change_tables(f"alter table app.scan alter column front type {kind}; "
                              f"delete from app.scan where id = {self.chance.choice(SCANS)}"):
            self.oracle.count("alter scan")

    def lose_keeper(self) -> None:
        """A foreign key goes for a while. What only that kept is kept as well meanwhile."""
        if self.number != 0 or not self.storm.is_before(CHANGES):
            return
        mine = OWN + self.number
        self.have_own(mine, f"own-{self.number}")
        self.execute("insert into app.seal values (%s, %s)", self.number, mine)
        if self.change_tables("alter table app.seal drop constraint if exists seal_file_fkey"):
            self.execute("delete from app.draft where id = %s", mine)
            time.sleep(self.chance.uniform(0, 3))  # The code is made again first.
            if not self.rows("select from app.file where id = %s", mine):
                self.oracle.violated(f"file {mine} is gone, and only the key that kept it had")
            self.oracle.count("lose keeper")
        self.forget_session()  # Whoever connects gives the key back.

    def give_key_back(self, conn: Connection) -> None:
        if self.number == 0:
            conn.execute("delete from app.seal")
            if not rows(conn, "select from pg_constraint where conname = 'seal_file_fkey'"):
                execute(conn, "set lock_timeout = '1s'; alter table app.seal add constraint "
                              "seal_file_fkey foreign key (file_id) references app.file; "
                              "reset lock_timeout")

    def ask(self) -> None:
        """An answer that needs new code does not wait for who makes it, or for a migration."""
        try:
            self.rows(self.chance.choice([
                "select from gc.status()", "select from gc.preview()", "select from gc.forecast()",
                "select from gc.explain('file', '3')", "select from gc.check()"]))
            self.oracle.count("ask")
        except psycopg.errors.LockNotAvailable as error:
            self.oracle.refused(str(error.sqlstate))

    def explain(self) -> None:
        """What a reference of ours keeps is kept; while a foreign key is gone, nobody can tell."""
        mine = [(name, file) for name, told in self.told.items() for file in told.values
                if name in KINDS and len(told.values) == 1 and file is not None
                and name not in ("truncated", "note") and not KINDS[str(name)].goes]
        if not mine:
            return
        name, file = self.chance.choice(mine)
        try:
            word, line = self.rows("select verdict, detail from gc.explain('file', %s) "
                                   "where depth = 0", str(file))[0]
            if word not in ("kept", "blocked"):
                self.oracle.violated(f"{name} of client {self.number} keeps file {file}, and it is "
                                     f"said to be {word}: {line}")
            self.oracle.count(f"explain: {word}")
        except psycopg.errors.LockNotAvailable as error:
            self.oracle.refused(str(error.sqlstate))
