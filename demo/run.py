"""A registry that is pushed to while it is collected: what `make demo` shows.

The server of examples/registry stands on a registry that gc.create_registry made; its objects are
files. Clients push images for two architectures, with signatures. Then tags and repositories are
deleted and others are pushed, some of them the same again, while the runner collects, and is killed
now and then. In the end every image that has a tag is pulled and compared, and there is an object
for every row, and a row for every object.
"""

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from clients import ROOT, Client, Image, Refused, Skopeo, free_address

IMAGES = 200
SECONDS = 18
ADDRESS = free_address()
EVENTS = ["blob_upload", "manifest_upload", "manifest_delete", "layer_delete", "tag_delete",
          "tag_switch", "manifest_list_delete", "subject_delete", "repository_insert"]

Database = psycopg.Connection[tuple[object, ...]]


class Demo:
    """The registry as its users and its operator see it."""

    def __init__(self, home: Path) -> None:
        self.home, self.store = home, home / "store"
        self.dsn = f"host={home} user=postgres dbname=demo"
        self.pushed = self.refused = self.deleted = self.killed = 0
        self.lock = threading.Lock()

    @contextmanager
    def connect(self) -> Iterator[Database]:
        with psycopg.connect(self.dsn, autocommit=True) as db:
            yield db

    # What clients do

    def try_to(self, push: Callable[..., object], *arguments: object) -> None:
        """A push may meet a repository that is being deleted: then it is refused, as it should."""
        try:
            push(*arguments)
        except Refused:
            with self.lock:
                self.refused += 1
        else:
            with self.lock:
                self.pushed += 1

    def push(self, client: Client, one: Image) -> None:
        client.push(one.repository, one.bundle(), one.tag)
        client.push(one.repository, one.signature())

    def push_all(self, images: list[Image]) -> None:
        client = Client(ADDRESS)
        for one in images:
            self.push(client, one)

    def push_more(self, until: float) -> None:
        """New images, and old ones again: their layers may be on their way out at this moment."""
        client, chance, fresh = Client(ADDRESS), random.Random(2), IMAGES
        while time.monotonic() < until:
            again = chance.random() < 0.5
            one = Image(chance.randrange(IMAGES) if again else fresh)
            fresh += not again
            self.try_to(self.push, client, one)

    def push_with_skopeo(self, until: float) -> None:
        """Images of its own, but with bases that all share."""
        skopeo, client, number = Skopeo(ADDRESS), Client(ADDRESS), 10 * IMAGES
        while time.monotonic() < until:
            one = Image(number)
            if skopeo.push(one):
                self.try_to(client.push, one.repository, one.signature())
            number += 1

    def delete_some(self, until: float) -> None:
        """Tags one by one, and now and then a whole repository, whose name is free at once."""
        client, chance = Client(ADDRESS), random.Random(1)
        with self.connect() as db:
            for number in chance.sample(range(IMAGES), IMAGES):
                if time.monotonic() > until:
                    break
                one = Image(number)
                if number % 40 == 0:
                    db.execute("select registry.delete_repository(path) from registry.repositories "
                               "where path = %s and state = 'active'", (one.repository,))
                elif number % 2:
                    self.untag(client, one)
                time.sleep(0.05)
                self.deleted += 1

    def untag(self, client: Client, one: Image) -> None:
        try:
            client.delete(one.repository, one.tag)
        except Refused as error:
            if error.status != 404:
                raise

    # What there is

    def count(self) -> dict[str, int]:
        """Rows of the database, files of the store, and their bytes."""
        with self.connect() as db:
            rows = db.execute(
                "select (select count(*) from registry.tags), "
                "(select count(*) from registry.manifests), "
                "(select count(*) from registry.layers), "
                "(select count(*) from registry.blobs)").fetchone()
        assert rows is not None
        files = []
        for path in self.files():
            with suppress(FileNotFoundError):  # The runner has deleted it since.
                files.append(path.stat().st_size)
        return dict(zip(("tags", "manifests", "layers", "blobs"), map(int, map(str, rows)),
                        strict=True)) | {"objects": len(files), "bytes": sum(files)}

    def files(self) -> list[Path]:
        return [path for path in self.store.rglob("data") if path.exists()]

    def is_quiet(self) -> bool:
        with self.connect() as db:
            row = db.execute("select sum(queued + tombstones_waiting + tombstones_claimed) "
                             "from gc.status()").fetchone()
        return row is not None and row[0] == 0

    def tagged(self) -> list[Image]:
        """What the registry says that it has."""
        client = Client(ADDRESS)
        return [Image(int(tag.removeprefix("v"))) for repository in client.repositories()
                for tag in client.tags(repository)]

    # Proof

    def compare_images(self, images: list[Image]) -> int:
        """How many of them are not what was pushed, signature included."""
        client, wrong = Client(ADDRESS), 0
        for one in images:
            expected, signed = one.bundle(), one.signature()
            try:
                is_right = (client.pull(one.repository, one.tag) == expected
                            and client.referrers(one.repository, expected.digest) == [signed.digest]
                            and client.pull(one.repository, signed.digest) == signed)
            except (Refused, ValueError) as error:
                print(f"  {one.repository}:{one.tag}: {error}")
                is_right = False
            wrong += not is_right
        return wrong

    def compare_with_skopeo(self, images: list[Image]) -> int:
        skopeo, wrong = Skopeo(ADDRESS), 0
        for one in images:
            expected = one.bundle()
            wrong += skopeo.pull(one) != expected.manifests | expected.blobs
        return wrong

    def prove_images(self) -> bool:
        """Every image that has a tag is pulled, by two clients at once, and compared."""
        images = self.tagged()
        with ThreadPoolExecutor(4) as pool:
            wrong = sum(pool.map(self.compare_images, [images[part::2] for part in range(2)]))
            said = f"images that are not what was pushed: {wrong} of {len(images):,}"
            if Skopeo.is_installed():
                shares = [images[part::4] for part in range(4)]
                differ = sum(pool.map(self.compare_with_skopeo, shares))
                wrong += differ
                said += f" (as skopeo pulls them: {differ})"
        print(f"\n{said}")
        return not wrong

    def prove_objects(self) -> bool:
        """Compares rows and objects, one by one."""
        with self.connect() as db:
            rows = {str(url): int(str(size)) for url, size in db.execute(
                "select registry.blob_url(digest), size from registry.blobs")}
            unused = db.execute(
                "select count(*) from registry.blobs as b where not exists (select from "
                "registry.layers as l where l.digest = b.digest) and not exists (select from "
                "registry.manifests as m where m.configuration_blob_digest = b.digest)").fetchone()
        files = {f"file://{path}": path.stat().st_size for path in self.files()}
        missing = sum(1 for url, size in rows.items() if files.get(url) != size)
        dead = sum(1 for url in files if url not in rows)
        print(f"live rows without their object: {missing}\n"
              f"objects without a row:          {dead}\n"
              f"rows that nothing uses:         {unused[0] if unused else '?'}")
        return not missing and not dead and unused == (0,)

    def table(self, before: dict[str, int], after: dict[str, int]) -> None:
        with self.connect() as db:
            objects, size = db.execute(
                "select sum(objects), sum(bytes) from gc.daily_totals").fetchone() or (0, 0)
        print(f"\n{'':10}{'before':>14}{'after':>14}")
        for what in before:
            print(f"{what:10}{before[what]:14,}{after[what]:14,}")
        print(f"\n{self.pushed:,} images were pushed meanwhile, {objects:,} objects with {size:,} "
              f"bytes were deleted, and the runner was killed {self.killed} times.")


def prepare(demo: Demo) -> None:
    with demo.connect() as db:
        db.execute("select gc.create_registry(store => %s)", (f"file://{demo.store}",))
        # A day is the usual delay, and a demo has not that long. It deletes more in an hour than
        # the brake would let through.
        db.execute("update gc.settings set jitter = '1 second', busy_delay = '1 second', "
                   "undo = '0', keep_alive = '5 seconds', upload_timeout = '1 minute', "
                   "max_sleep = '1 second', brake_share = 1")
        for event in EVENTS:
            db.execute("insert into gc.review_after_defaults values (%s, '3 seconds') "
                       "on conflict (event) do update set value = excluded.value", (event,))


@contextmanager
def serving(demo: Demo) -> Iterator[None]:
    """The registry's server."""
    with (demo.home / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "distribution", "--dsn", demo.dsn,
             "--uploads", demo.home / "uploads", "--port", ADDRESS.partition(":")[2]],
            cwd=ROOT / "examples/registry", stderr=log)
    try:
        wait_for_server(demo, server)
        yield
    finally:
        server.terminate()
        server.wait()


def wait_for_server(demo: Demo, server: subprocess.Popen[bytes]) -> None:
    while True:
        try:
            Client(ADDRESS).ask("GET", "/v2/")
            return
        except OSError:
            if server.poll() is not None:
                raise SystemExit((demo.home / "server.log").read_text()[-2000:]) from None
            time.sleep(0.1)


class Runner:
    """The collector. What it had claimed when it was killed, the next one does after the lease."""

    def __init__(self, demo: Demo) -> None:
        self.demo = demo
        self.log = (demo.home / "runner.log").open("w")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, ROOT / "runner.py", "run", "--store", f"file://{self.demo.store}/",
             "--dsn", self.demo.dsn, "--lease", "4", "--timeout", "1"], stderr=self.log)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.demo.killed += 1
        self.start()

    def stop(self) -> None:
        self.process.terminate()
        if self.process.wait() != 0:
            print((self.demo.home / "runner.log").read_text()[-2000:], file=sys.stderr)
            raise SystemExit("the runner failed")


def act(demo: Demo) -> None:
    """Deletes, pushes and collects, all at once, and then collects until nothing is left."""
    until = time.monotonic() + SECONDS
    runner = Runner(demo)
    try:
        with ThreadPoolExecutor(3) as pool:
            work = [pool.submit(demo.delete_some, until), pool.submit(demo.push_more, until)]
            if Skopeo.is_installed():
                work.append(pool.submit(demo.push_with_skopeo, until))
            while not all(part.done() for part in work):
                for _ in range(2):
                    time.sleep(3)
                    show(demo)
                runner.kill()
            for part in work:
                part.result()
        patience = time.monotonic() + 60
        while not demo.is_quiet() and time.monotonic() < patience:
            time.sleep(0.5)
    finally:
        runner.stop()


def show(demo: Demo) -> None:
    now = demo.count()
    print(f"  {demo.pushed:6,} pushed  {demo.deleted:6,} deleted  {now['manifests']:6,} manifests  "
          f"{now['objects']:6,} objects  {now['bytes'] / 1e6:6.1f} MB", flush=True)


def main() -> int:
    demo = Demo(Path(sys.argv[1]))
    print(f"pushing {IMAGES:,} images for two architectures, with signatures, to the registry at "
          f"{ADDRESS}", flush=True)
    if not Skopeo.is_installed():
        print("(skopeo is not installed, so only the client of examples/registry is used)")
    prepare(demo)
    with serving(demo):
        images = [Image(number) for number in range(IMAGES)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(demo.push_all, [images[part::4] for part in range(4)]))
        before = demo.count()
        print("deleting tags and repositories, pushing others, collecting, and killing the runner, "
              "all at once", flush=True)
        act(demo)
        demo.table(before, demo.count())
        proven = demo.prove_images() & demo.prove_objects()
    psql = Path((demo.home / "bin").read_text().strip()) / "psql"
    reach = f"{psql} -h {demo.home} -U postgres demo"
    print(f"\n{'It holds.' if proven else 'It does NOT hold.'} What to type next:\n"
          f"  {reach} -xc 'select * from gc.status()'\n"
          f"  {reach} -c '\\sf gc.blob_review'\n"
          f"  make demo-stop")
    return 0 if proven else 1


if __name__ == "__main__":
    raise SystemExit(main())
