"""A registry that is pushed to while it is collected: what `make demo` shows.

A few thousand images that share layers are pushed into a registry; its objects are files. Then tags
and repositories are deleted and others are pushed, some of them the same again, while the runner
collects. In the end there is an object for every row, and a row for every object.
"""

import hashlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

ROOT = Path(__file__).resolve().parent.parent
REPOSITORIES = [f"acme/app-{number}" for number in range(20)]
IMAGES = 2000
SECONDS = 15
EVENTS = ["blob_upload", "manifest_upload", "manifest_delete", "layer_delete", "tag_delete",
          "tag_switch", "manifest_list_delete", "repository_insert"]


@dataclass(frozen=True)
class Image:
    """An image is its number: what it consists of follows from that."""

    number: int

    @property
    def repository(self) -> str:
        return REPOSITORIES[self.number % len(REPOSITORIES)]

    @property
    def tag(self) -> str:
        return f"v{self.number}"

    def layers(self) -> list[bytes]:
        """A base that many share, one that ten share, and one of its own."""
        return [self.content("base", self.number % 7, 60_000),
                self.content("runtime", self.number // 10, 20_000),
                self.content("program", self.number, 5_000)]

    def configuration(self) -> bytes:
        return self.content("configuration", self.number, 500)

    def content(self, what: str, number: int, size: int) -> bytes:
        return random.Random(f"{what} {number}").randbytes(size)


@dataclass
class Registry:
    """What a registry does with its database and its store."""

    home: Path
    pushed: int = 0
    deleted: int = 0
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
        with psycopg.connect(host=str(self.home), user="postgres", dbname="demo",
                             autocommit=True) as db:
            yield db

    def upload(self, db: psycopg.Connection[tuple[object, ...]], repository: str,
               content: bytes) -> str:
        """As a client does: ask whether it is there, and if not, announce, write and finish."""
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        (there,) = db.execute("select registry.has_blob(%s, %s)", (repository, digest)).fetchone() \
            or (False,)
        if not there:
            (url,) = db.execute("select registry.begin_blob_upload(%s, %s)",
                                (repository, digest)).fetchone() or ("",)
            path = Path(str(url).removeprefix("file://"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            db.execute("select registry.finish_blob_upload(%s, %s, %s)",
                       (repository, digest, len(content)))
        return digest

    def push(self, db: psycopg.Connection[tuple[object, ...]], image: Image) -> None:
        """A push may meet a repository that is being deleted: then it is refused, as it should."""
        try:
            digests = [self.upload(db, image.repository, content)
                       for content in [image.configuration(), *image.layers()]]
            db.execute("select registry.put_image(%s, %s, %s, %s)",
                       (image.repository, digests[0], digests[1:], image.tag))
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith("Z"):
                raise
            with self.lock:
                self.refused += 1
            return
        with self.lock:
            self.pushed += 1

    def push_all(self, images: list[Image]) -> None:
        with self.connect() as db:
            for image in images:
                self.push(db, image)

    def delete_some(self, until: float) -> None:
        """Tags one by one, and now and then a whole repository, whose name is free at once."""
        chance = random.Random(1)
        with self.connect() as db:
            for number in chance.sample(range(IMAGES), IMAGES):
                if time.monotonic() > until:
                    break
                image = Image(number)
                if number % 400 == 0:
                    db.execute("select registry.delete_repository(%s)", (image.repository,))
                    db.execute("select registry.create_repository(%s)", (image.repository,))
                elif number % 2 == 0:
                    try:
                        db.execute("select registry.untag(%s, %s)", (image.repository, image.tag))
                    except psycopg.Error as error:
                        if error.sqlstate != "ZR007":
                            raise
                time.sleep(0.002)
                self.deleted += 1

    def push_more(self, until: float) -> None:
        """New images, and old ones again: their layers may be on their way out at this moment."""
        chance = random.Random(2)
        with self.connect() as db:
            fresh = IMAGES
            while time.monotonic() < until:
                again = chance.random() < 0.5
                self.push(db, Image(chance.randrange(IMAGES) if again else fresh))
                fresh += not again

    def count(self) -> dict[str, int]:
        """What there is: rows of the database, files of the store, and their bytes."""
        with self.connect() as db:
            rows = db.execute(
                "select (select count(*) from registry.tags), "
                "(select count(*) from registry.manifests), "
                "(select count(*) from registry.layers), "
                "(select count(*) from registry.blobs)").fetchone()
        assert rows is not None
        files = [path.stat().st_size for path in (self.home / "store").rglob("data")]
        return dict(zip(("tags", "manifests", "layers", "blobs"), map(int, map(str, rows)),
                        strict=True)) | {"objects": len(files), "bytes": sum(files)}

    def is_quiet(self) -> bool:
        with self.connect() as db:
            row = db.execute("select sum(queued + tombstones_waiting + tombstones_claimed) "
                             "from gc.status()").fetchone()
        return row is not None and row[0] == 0

    def prove(self) -> bool:
        """Compares rows and objects, one by one."""
        with self.connect() as db:
            rows = {str(url): int(str(size)) for url, size in db.execute(
                "select registry.blob_url(digest), size from registry.blobs")}
            unused = db.execute(
                "select count(*) from registry.blobs as b where not exists (select from "
                "registry.layers as l where l.digest = b.digest) and not exists (select from "
                "registry.manifests as m where m.configuration_blob_digest = b.digest)").fetchone()
        files = {f"file://{path}": path.stat().st_size
                 for path in (self.home / "store").rglob("data")}
        missing = sum(1 for url, size in rows.items() if files.get(url) != size)
        dead = sum(1 for url in files if url not in rows)
        print(f"\nlive rows without their object: {missing}\n"
              f"objects without a row:          {dead}\n"
              f"rows that nothing uses:         {unused[0] if unused else '?'}")
        return not missing and not dead and unused == (0,)


def table(registry: Registry, before: dict[str, int], after: dict[str, int]) -> None:
    with registry.connect() as db:
        objects, size = db.execute(
            "select sum(objects), sum(bytes) from gc.daily_totals").fetchone() or (0, 0)
    print(f"\n{'':10}{'before':>14}{'after':>14}")
    for what in before:
        print(f"{what:10}{before[what]:14,}{after[what]:14,}")
    print(f"\n{registry.pushed - IMAGES:,} images were pushed meanwhile, {objects:,} objects with "
          f"{size:,} bytes were deleted.")


def prepare(registry: Registry) -> None:
    with registry.connect() as db:
        db.execute("select gc.create_registry(store => %s)", (f"file://{registry.home}/store",))
        # A day is the usual delay, and a demo has not that long. It deletes more in an hour than
        # the brake would let through.
        db.execute("update gc.settings set jitter = '1 second', busy_delay = '1 second', "
                   "undo = '0', keep_alive = '5 seconds', upload_timeout = '10 seconds', "
                   "max_sleep = '1 second', brake_share = 1")
        for event in EVENTS:
            db.execute("insert into gc.review_after_defaults values (%s, '3 seconds') "
                       "on conflict (event) do update set value = excluded.value", (event,))
        for repository in REPOSITORIES:
            db.execute("select registry.create_repository(%s)", (repository,))


def act(registry: Registry) -> None:
    """Deletes, pushes and collects, all at once, and then collects until nothing is left."""
    until = time.monotonic() + SECONDS
    runner = subprocess.Popen(
        [sys.executable, ROOT / "runner.py", "run", "--store", f"file://{registry.home}/store/",
         "--dsn", f"host={registry.home} user=postgres dbname=demo"],
        stderr=(registry.home / "runner.log").open("w"))
    try:
        with ThreadPoolExecutor(3) as pool:
            work = [pool.submit(registry.delete_some, until)]
            work += [pool.submit(registry.push_more, until)]
            pushed = registry.pushed
            while not all(part.done() for part in work):
                time.sleep(3)
                now = registry.count()
                print(f"  {registry.pushed - pushed:6,} pushed  {registry.deleted:6,} deleted  "
                      f"{now['manifests']:6,} manifests  {now['objects']:6,} objects  "
                      f"{now['bytes'] / 1e6:6.1f} MB", flush=True)
            for part in work:
                part.result()
        patience = time.monotonic() + 60
        while not registry.is_quiet() and time.monotonic() < patience:
            time.sleep(0.5)
    finally:
        runner.terminate()
        if runner.wait() != 0:
            print((registry.home / "runner.log").read_text()[-2000:], file=sys.stderr)
            raise SystemExit("the runner failed")


def main() -> int:
    home = Path(sys.argv[1])
    registry = Registry(home)
    print(f"pushing {IMAGES:,} images that share layers into {len(REPOSITORIES)} repositories",
          flush=True)
    prepare(registry)
    images = [Image(number) for number in range(IMAGES)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(registry.push_all, [images[part::4] for part in range(4)]))
    before = registry.count()
    print("deleting tags and repositories, pushing others, and collecting, all at once", flush=True)
    act(registry)
    table(registry, before, registry.count())
    proven = registry.prove()
    psql = Path((home / "bin").read_text().strip()) / "psql"
    reach = f"{psql} -h {home} -U postgres demo"
    print(f"\n{'It holds.' if proven else 'It does NOT hold.'} What to type next:\n"
          f"  {reach} -xc 'select * from gc.status()'\n"
          f"  {reach} -c '\\sf gc.blob_review'\n"
          f"  make demo-stop")
    return 0 if proven else 1


if __name__ == "__main__":
    raise SystemExit(main())
