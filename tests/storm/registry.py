"""The registry's world: clients push, mount, retag, untag and delete the same few blobs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

import psycopg
from conftest import Connection, execute, rows

from storm.client import REFUSALS, Client, is_lost
from storm.world import World

if TYPE_CHECKING:
    from storm.blow import Storm

REPOSITORIES = ["acme/app", "acme/web", "other/app"]
CONTENTS = [f"blob {number} ".encode() * 40 for number in range(16)]


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


DIGESTS = {digest_of(content): content for content in CONTENTS}

# Of the tags e…, retention leaves the newest. They are in one repository, and each has one blob:
# what stays keeps few blobs from becoming garbage.
EXPIRES_IN = "acme/web"
NEWEST = 1
RULES = f"""
insert into registry.retention (action, tags, newest, within, note) values
    ('keep', 'e*', {NEWEST}, null, null),
    ('delete', 'e*', null, null, null),
    ('untagged', '**', null, '100 milliseconds', 'comes and goes');
"""


class Registry(World):
    refusals = REFUSALS | {
        "ZR001", "ZR003", "ZR005", "ZR006", "ZR007", "ZR009", "ZR012", "ZR021"}
    live = ("select registry.digest_text(digest) || ' ' || xmin, registry.blob_url(digest) "
            "from registry.blobs")
    expected_failures = ("pinned",)
    never = {
        "part of a manifest, and not linked": """
            select registry.digest_text(m.digest), registry.digest_text(d)
            from registry.manifests as m
            left join registry.layers as l using (namespace_id, repository_id)
            cross join unnest(array[
                m.configuration_blob_digest, case when l.manifest_id = m.id then l.digest end]) as d
            where d is not null and not exists (
                select from registry.repository_blobs as o
                where (o.repository_id, o.digest) = (m.repository_id, d))""",
        "about another, and not known to it": """
            select s.id, m.id
            from registry.manifests as m
            join registry.manifests as s
                on (s.repository_id, s.digest) = (m.repository_id, m.subject_digest)
            where not exists (
                select from registry.referrers as r
                where r.subject_id = s.id and r.manifest_id = m.id)""",
    }
    dead = {
        "a blob that nothing uses": """
            select registry.digest_text(b.digest) from registry.blobs as b
            where not exists (select from registry.layers as l where l.digest = b.digest)
                and not exists (
                    select from registry.manifests as m
                    where m.configuration_blob_digest = b.digest)""",
        "a manifest that nothing uses": """
            select registry.digest_text(m.digest) from registry.manifests as m
            where not exists (select from registry.tags as t where t.manifest_id = m.id)
                and not exists (
                    select from registry.manifest_references as l where l.child_id = m.id)
                and not exists (
                    select from registry.referrers as r where r.manifest_id = m.id)""",
        "a repository that was deleted":
            "select path, state from registry.repositories where state <> 'active'",
        "tags that retention should have deleted": f"""
            select r.path, array_agg(t.name)
            from registry.tags as t join registry.repositories as r on r.id = t.repository_id
            where t.name like 'e%' group by r.path having count(*) > {NEWEST}""",
    }
    patient = frozenset({
        "a repository that was deleted", "tags that retention should have deleted"})
    waiting = """
        select 'retention', due_at::text, marked_repositories from registry.retention_round
        where due_at <= now() or marked_repositories <> '{}'"""

    def __init__(self, storm: Storm) -> None:
        super().__init__(storm)
        self.payloads: dict[str, bytes] = {}
        self.once: dict[str, bytes] = {}  # Contents that nobody uploads again.
        self.lock = threading.Lock()
        self.pushed: dict[str, list[str]] = {repository: [] for repository in REPOSITORIES}
        # When a client last pushed this tag e…; infinity: it does so now.
        self.tagged_at: dict[str, float] = {}

    def create(self, conn: Connection) -> None:
        store = self.storm.objects.prefix.removesuffix("/")
        rows(conn, "select gc.create_registry(store => %s)", store)
        # What has no object of its own can be restored at any time; blobs, see change_undo.
        execute(conn, "update gc.collections set undo = '1 second' where name in "
                      "('manifest', 'tag')")
        execute(conn, RULES)
        for repository in REPOSITORIES:
            rows(conn, "select registry.create_repository(%s)", repository)

    def client(self, number: int) -> Client:
        return Pusher(self.storm, self, number)

    def content_of(self, url: str) -> bytes:
        return self.content("sha256:" + url.split("/")[-2])

    def content(self, digest: str) -> bytes:
        return DIGESTS.get(digest) or self.once[digest]

    def note_push(self, repository: str, digest: str, payload: bytes) -> None:
        with self.lock:
            self.payloads[digest] = payload
            pushed = self.pushed[repository]
            if digest not in pushed:
                pushed.append(digest)
                del pushed[:-10]

    @contextlib.contextmanager
    def tagging(self, tag: str) -> Iterator[None]:
        """Whatever the outcome: the tag may be a newer one from now on."""
        self.tagged_at[tag] = math.inf
        try:
            yield
        finally:
            self.tagged_at[tag] = time.monotonic()

    def may_have_expired(self, tag: str, since: float) -> bool:
        """Whether so many others may be newer that retention deletes this one."""
        newer = [other for other, at in [*self.tagged_at.items()] if at >= since and other != tag]
        return tag.startswith("e") and len(newer) >= NEWEST

    def calm_down(self, conn: Connection) -> None:
        super().calm_down(conn)
        # Whose creator never learned its name: it would be deleted after two minutes.
        execute(conn, "update registry.repositories set state = 'deleting' where state = 'initial'")
        execute(conn, "update registry.retention set enabled = true")

    def abandon(self, conn: Connection) -> None:
        execute(conn, "delete from registry.tags")

    def abandon_objects(self, conn: Connection) -> None:
        execute(conn, "delete from registry.manifest_references; delete from registry.manifests")


class Pusher(Client):
    """A client of the registry. Tags with its number are its own."""

    weights = {
        "push": 14, "push_half": 20, "push_once": 6, "push_shared": 2, "push_list": 2,
        "push_referrer": 2, "retag": 8, "untag": 40, "untag_shared": 6, "delete_manifest": 4,
        "mount": 4, "unlink": 2, "pull": 30, "create_repository": 3, "delete_repository": 1,
        "fill_repository": 1, "pin": 3, "push_expiring": 8, "deploy": 5, "change_rules": 4,
        "restore_blob": 2, "restore_manifest": 4, "restore_tag": 4, "pause": 1, "change_undo": 0.1,
        "ask": 0.5,
    }

    def __init__(self, storm: Storm, world: Registry, number: int) -> None:
        super().__init__(storm, number)
        self.world = world
        self.uploads = 0

    def call(self, function: str, *arguments: object) -> Any:
        """Each operation is a transaction, which may linger."""
        places = ", ".join(["%s"] * len(arguments))
        found = self.value_at_once(f"select registry.{function}({places})", *arguments)
        self.oracle.count(function)
        return found

    # What is chosen

    def repository(self) -> str:
        return self.chance.choice(REPOSITORIES)

    def tag(self) -> str:
        return f"c{self.number}"

    def expiring_tag(self) -> str:
        return f"e{self.number}"

    def manifest(self, repository: str) -> str:
        """One that somebody has pushed there, and that may have gone."""
        with self.world.lock:
            pushed = [*self.world.pushed[repository]]
        return self.chance.choice(pushed) if pushed else digest_of(b"none")

    # Pushing

    def upload(self, repository: str, digest: str) -> None:
        if self.call("has_blob", repository, digest):
            return
        self.upload_anew(repository, digest)

    def upload_anew(self, repository: str, digest: str) -> None:
        self.uploads += 1
        upload = f"{self.number} {self.uploads}"
        begun = time.monotonic()
        url = self.call("begin_blob_upload", repository, digest, "1 second", upload)
        self.linger()
        self.put(url, begun)
        self.linger_long()
        size = len(self.world.content(digest))
        self.call("finish_blob_upload", repository, digest, size, "x/y", upload)
        self.debts = [debt for debt in self.debts if debt != url]

    def pay(self, debt: str) -> None:
        repository = self.repository()
        try:
            self.upload_anew(repository, "sha256:" + debt.split("/")[-2])
        except psycopg.Error as error:
            if error.sqlstate == "ZR009":
                self.call("create_repository", repository)
            raise

    def document(self) -> dict[str, Any]:
        def described(digest: str) -> dict[str, Any]:
            return {"mediaType": "x/y", "digest": digest, "size": len(DIGESTS[digest])}

        config, *layers = self.chance.sample([*DIGESTS], self.chance.randint(1, 2))
        return {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": described(config),
            "layers": [described(layer) for layer in layers],
            "annotations": {"n": str(self.chance.randrange(2))},
        }

    def put_manifest(self, repository: str, document: dict[str, Any], tag: str | None) -> None:
        payload = json.dumps(document).encode()
        digest = digest_of(payload)
        self.world.note_push(repository, digest, payload)
        with contextlib.ExitStack() as stack:
            if tag in (self.tag(), self.expiring_tag()):
                stack.enter_context(self.telling((repository, tag), digest))
            if tag == self.expiring_tag():
                stack.enter_context(self.world.tagging(tag))
            self.call("put_manifest", repository, payload, tag)

    def push_image(self, tag: str | None, **more: object) -> None:
        self.push_image_to(self.repository(), self.document() | more, tag)

    def push_image_to(
        self, repository: str, document: dict[str, Any], tag: str | None
    ) -> None:
        for part in [document["config"], *document["layers"]]:
            self.upload(repository, part["digest"])
        self.put_manifest(repository, document, tag)

    def push(self) -> None:
        self.push_image(self.tag() if self.chance.random() < 0.8 else None)

    def push_half(self) -> None:
        """A blob that no manifest will use."""
        self.upload_anew(self.repository(), self.chance.choice([*DIGESTS]))

    def push_once(self) -> None:
        """An object that nobody uploads again: what is forgotten of it stays forgotten."""
        content = f"once {self.number} {self.operations}".encode()
        self.world.once[digest_of(content)] = content
        self.upload_anew(self.repository(), digest_of(content))

    def push_shared(self) -> None:
        self.push_image("latest")

    def push_expiring(self) -> None:
        self.push_image_to(EXPIRES_IN, self.document() | {"layers": []}, self.expiring_tag())

    def push_referrer(self) -> None:
        about = {"mediaType": "x/y", "digest": self.manifest(self.repository()), "size": 1}
        self.push_image(None, subject=about)

    def push_list(self) -> None:
        repository = self.repository()
        children = {self.manifest(repository), self.manifest(repository)}
        self.put_manifest(repository, {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{"mediaType": "x/y", "digest": child, "size": 1}
                          for child in sorted(children)],
        }, self.tag())

    # Tags, links and repositories

    def retag(self) -> None:
        repository, tag = self.repository(), self.tag()
        digest = self.manifest(repository)
        with self.telling((repository, tag), digest):
            self.call("tag", repository, tag, digest)

    def untag(self) -> None:
        mine = [what for what, told in self.told.items() if told.values != {None}]
        if mine:
            what = self.chance.choice(mine)
            assert isinstance(what, tuple)
            with self.telling(what, None):
                self.call("untag", *what)

    def untag_shared(self) -> None:
        self.call("untag", self.repository(), "latest")

    def delete_manifest(self) -> None:
        repository = self.repository()
        digest = self.manifest(repository)
        with self.oracle.taking((repository, digest)):
            self.call("delete_manifest", repository, digest)

    def mount(self) -> None:
        source, repository = self.chance.sample(REPOSITORIES, 2)
        self.call("mount_blob", repository, self.chance.choice([*DIGESTS]), source)

    def unlink(self) -> None:
        self.call("unlink_blob", self.repository(), self.chance.choice([*DIGESTS]))

    def create_repository(self) -> None:
        self.call("create_repository", self.repository())

    def delete_repository(self) -> None:
        repository = self.repository()
        with self.oracle.taking(repository):
            self.call("delete_repository", repository)
        self.call("create_repository", repository)

    def fill_repository(self) -> None:
        """A repository that is seen when it is filled."""
        handle = self.call("create_repository", self.repository(), "initial")
        try:
            self.upload_anew(handle, self.chance.choice([*DIGESTS]))
            self.call("activate_repository", handle)
        except psycopg.Error as error:
            if not is_lost(error):
                self.call("delete_repository", handle)
            raise

    # Looking

    def pull(self) -> None:
        if self.told:
            self.check(self.chance.choice([*self.told]))
            self.oracle.count("pull")

    def check(self, what: Hashable) -> None:
        """A tag of ours is there, and with it every byte."""
        assert isinstance(what, tuple)
        repository, tag = what
        found = self.look_up("get_manifest", repository, tag)
        excuses = [repository, *((repository, value) for value in self.told[what].values)]
        since = self.told[what].since
        # A restore may bring a tag of ours back, but takes none away.
        came_back = ["a restore"] if found else []
        if not found and self.world.may_have_expired(tag, since):
            del self.told[what]
        elif self.check_told(what, found[0] if found else None, *excuses, *came_back) and found:
            self.check_image(repository, found, since, excuses,
                             lambda: self.world.may_have_expired(tag, since))

    def check_image(
        self, repository: str, found: tuple[Any, ...], since: float, excuses: list[Hashable],
        may_go: Callable[[], bool],
    ) -> None:
        """What was found can be pulled, with every byte, unless it may have gone since."""
        digest, _, payload = found
        if bytes(payload) != self.world.payloads[digest]:
            self.oracle.violated(f"{digest} has another payload")
        document = json.loads(payload)
        for part in [*([document["config"]] if "config" in document else []),
                     *document.get("layers", [])]:
            blob = self.look_up("get_blob", repository, part["digest"])
            content = self.storm.objects.get(blob[0]) if blob else None
            if content != DIGESTS[part["digest"]] and not (
                    self.oracle.may_be_gone(since, excuses) or may_go()):
                self.oracle.violated(
                    f"{part['digest']} of {repository}@{digest} cannot be pulled")

    def look_up(self, function: str, *arguments: object) -> tuple[Any, ...] | None:
        try:
            return self.rows(f"select * from registry.{function}(%s, %s)", *arguments)[0]
        except psycopg.Error as error:
            if error.sqlstate not in ("ZR001", "ZR007", "ZR009"):
                raise
            return None

    # Operators

    def pin(self) -> None:
        """Any row of any collection; while we hold it, it stays."""
        found = self.rows(
            "select 'manifest', row(namespace_id, repository_id, id)::text, "
            "registry.digest_text(digest) from registry.manifests union all "
            "select 'blob', registry._blob_key(digest), null from registry.blobs")
        if not found:
            return
        collection, key, digest = self.chance.choice(found)
        holder, begun = f"client {self.number}", time.monotonic()
        if self.value("select gc.pin(%s, %s::text, 'storm', now() + interval '5 seconds', %s)",
                      collection, key, holder):
            time.sleep(self.chance.uniform(0, 0.1))
            is_there = self.value("select gc.keep_alive(%s, %s)", collection, key)
            excuses = [*REPOSITORIES, *((name, digest) for name in REPOSITORIES)]
            if not is_there and time.monotonic() < begun + 4 and not (
                    self.oracle.may_be_gone(begun, excuses)):
                self.oracle.violated(f"{collection} {key} was pinned, and is gone")
        self.value("select gc.unpin(%s, %s::text, %s)", collection, key, holder)
        self.oracle.count("pin")

    def deploy(self) -> None:
        """A cluster runs what has a tag of ours; while it says so, it can pull that."""
        mine = [what for what, told in self.told.items()
                if isinstance(what, tuple) and told.values != {None}]
        may_expire = [what for what in mine if what[1] == self.expiring_tag()]
        if not mine:
            return
        repository, tag = self.chance.choice(may_expire or mine)
        begun = time.monotonic()
        ((_, is_pinned),) = self.rows(
            "select * from registry.report_deployed(%s, %s, now() + interval '2 seconds')",
            f"cluster {self.number}", [f"registry.example/{repository}:{tag}"])
        if is_pinned:
            time.sleep(self.chance.uniform(0, 0.5))
            self.check_deployed(repository, tag, begun)
        self.oracle.count("deploy")

    def check_deployed(self, repository: str, tag: str, since: float) -> None:
        found = self.look_up("get_manifest", repository, tag)
        if self.may_be_over(since):
            return
        told = self.told[repository, tag].values
        excuses: list[Hashable] = [repository, *((repository, value) for value in told)]
        if found:
            self.check_image(
                repository, found, since, excuses, lambda: self.may_be_over(since))
        elif not self.oracle.may_be_gone(since, excuses):
            self.oracle.violated(f"{repository}:{tag} was deployed, and is gone")

    def may_be_over(self, since: float) -> bool:
        """A pin that has half of its time left is not renewed."""
        return time.monotonic() > since + 0.9

    def change_rules(self) -> None:
        """Whatever changes, a round of retention begins."""
        self.rows("update registry.retention set enabled = %s where note = 'comes and goes' "
                  "returning 1", self.chance.random() < 0.5)
        self.oracle.count("change rules")

    def restore_blob(self) -> None:
        """With its links, and a repository that went."""
        found = self.rows("select key from gc.trash_rows "
                          "where relation = 'registry.blobs'::regclass and until > now()")
        if found:
            with self.oracle.taking("a restore"):
                self.rows("select gc.restore('blob', %s)", *self.chance.choice(found))
            self.oracle.count("restore: blob")

    def restore_manifest(self) -> None:
        """And give it our tag at once. Then it can be pulled, with all its blobs."""
        found = self.rows(
            "select k.key, r.path, registry.digest_text((k.content ->> 'digest')::bytea) "
            "from gc.trash_rows as k join registry.repositories as r "
            "on r.id = (k.content ->> 'repository_id')::bigint "
            "where k.relation = 'registry.manifests'::regclass and k.until > now() "
            "and r.path = any (%s) and r.state = 'active'", REPOSITORIES)
        if found:
            key, repository, digest = self.chance.choice(found)
            with self.restoring("manifest", key, repository, digest):
                self.value("select registry.tag(%s, %s, %s)", repository, self.tag(), digest)

    def restore_tag(self) -> None:
        """One of ours, with its manifest, if that has gone."""
        found = self.rows(
            "select t.key, r.path, registry.digest_text(m.digest) "
            "from gc.trash_rows as t join registry.repositories as r "
            "on r.id = (t.content ->> 'repository_id')::bigint join ("
            "select id, digest from registry.manifests union select (content ->> 'id')::bigint, "
            "(content ->> 'digest')::bytea from gc.trash_rows "
            "where relation = 'registry.manifests'::regclass"
            ") as m on m.id = (t.content ->> 'manifest_id')::bigint "
            "where t.relation = 'registry.tags'::regclass and t.until > now() "
            "and t.content ->> 'name' = %s and r.path = any (%s) and r.state = 'active'",
            self.tag(), REPOSITORIES)
        if found:
            with self.restoring("tag", *self.chance.choice(found)):
                pass

    @contextlib.contextmanager
    def restoring(self, collection: str, key: str, repository: str, digest: str) -> Iterator[None]:
        """Our tag is that manifest then; another may have gone under its key since."""
        with (self.oracle.taking("a restore"), self.telling((repository, self.tag()), digest),
              self.transaction()):
            self.rows("select gc.restore(%s, %s)", collection, key)
            yield
            found = self.look_up("get_manifest", repository, self.tag())
            if not found or found[0] != digest:
                raise psycopg.errors.SerializationFailure("another one came back")
        self.oracle.count(f"restore: {collection}")

    def pause(self) -> None:
        collection = self.chance.choice(["blob", "manifest", "repository"])
        self.pause_this(collection)

    def change_undo(self) -> None:
        """Now and then: the code of all collections is made again, which takes a second."""
        undo = self.chance.choice(["0", "0", "100 milliseconds", "1 second"])
        self.rows("update gc.settings set undo = %s returning 1", undo)
        self.oracle.count("change undo")

    def ask(self) -> None:
        question = self.chance.choice([
            "select from gc.status()", "select from gc.preview()", "select from gc.forecast()",
            "select from gc.metrics"])
        self.rows(question)
        self.oracle.count("ask")
