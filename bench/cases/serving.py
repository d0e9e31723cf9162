"""Pushes and pulls over HTTP: the server of examples/registry, and docker-registry."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness import ROOT, Comparison, Scale, alternate, connect, drop_database, new_database, ratios

from cases.offline import docker_registry

sys.path.insert(0, str(ROOT / "examples/registry"))

from oci_client import Client  # noqa: E402
from oci_images import Bundle, image  # noqa: E402

DATABASE, CLIENTS = "bench_serving", 4

CONFIG = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
http: {{addr: "{address}"}}
storage: {{filesystem: {{rootdirectory: {root}}}, delete: {{enabled: true}}}}
"""


@dataclass
class Rates:
    """Images a second."""

    pushed: float
    pulled: float


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@contextmanager
def listening(command: list[str | Path], address: str, where: Path) -> Iterator[None]:
    """A server, once it answers."""
    environment = os.environ | {"PGDATABASE": DATABASE}
    server = subprocess.Popen(command, cwd=where, env=environment, stderr=subprocess.DEVNULL)
    try:
        while True:
            assert server.poll() is None, f"{command} ended"
            try:
                Client(address).ask("GET", "/v2/")
                break
            except OSError:
                time.sleep(0.05)
        yield
    finally:
        server.terminate()
        server.wait()


def measure(address: str, images: list[Bundle]) -> Rates:
    """Each image to a repository of four, and back. What comes back is compared."""
    def push(part: int) -> None:
        client = Client(address)
        for number in range(part, len(images), CLIENTS):
            client.push(f"bench/app-{number % 4}", images[number], f"v{number}")

    def pull(part: int) -> None:
        client = Client(address)
        for number in range(part, len(images), CLIENTS):
            assert client.pull(f"bench/app-{number % 4}", f"v{number}") == images[number]

    with ThreadPoolExecutor(CLIENTS) as pool:
        begin = time.perf_counter()
        list(pool.map(push, range(CLIENTS)))
        middle = time.perf_counter()
        list(pool.map(pull, range(CLIENTS)))
        end = time.perf_counter()
    return Rates(len(images) / (middle - begin), len(images) / (end - middle))


def by_docker(folder: Path, images: list[Bundle]) -> Rates:
    root, address = folder / "docker", free_address()
    shutil.rmtree(root, ignore_errors=True)
    config = folder / "config.yml"
    config.write_text(CONFIG.format(root=root, address=address))
    with listening([docker_registry(), "serve", config], address, folder):
        return measure(address, images)


def by_blobgc(folder: Path, images: list[Bundle]) -> Rates:
    store, address = folder / "store", free_address()
    shutil.rmtree(store, ignore_errors=True)
    with connect(new_database(DATABASE)) as db:
        db.execute("create extension blobgc")
        db.execute("select gc.create_registry(store => %s)", (f"file://{store}",))
    command: list[str | Path] = [
        sys.executable, "-m", "distribution", "--uploads", folder / "uploads",
        "--port", address.partition(":")[2]]
    with listening(command, address, ROOT / "examples/registry"):
        return measure(address, images)


def compare(what: str, megabytes: float, docker: list[Rates],
            blobgc: list[Rates]) -> Iterator[Comparison]:
    for verb, ours, theirs in (
            ("pushed", [r.pushed for r in blobgc], [r.pushed for r in docker]),
            ("pulled", [r.pulled for r in blobgc], [r.pulled for r in docker])):
        yield Comparison(
            f"{what} {verb} a second", "docker-registry", ratios(ours, theirs),
            figures=f"{median(ours):.1f}/s and {median(theirs):.1f}/s, which is "
                    f"{median(ours) * megabytes:.1f} and {median(theirs) * megabytes:.1f} MB/s")


def throughput(scale: Scale) -> Iterator[Comparison]:
    """Pushes and pulls a second of a registry on blobgc, against docker-registry.

    The servers are that of examples/registry, which is Python, with a registry that
    gc.create_registry made, and Debian's docker-registry, which is Go. The client is the same: the
    small one of examples/registry, four at a time, each with a connection of its own. So is the
    store: a folder. Small images have a configuration and three layers of 5 kB, of which one is
    shared; big ones a layer of 32 MB. Every push begins with the question whether a blob is there.
    What is pulled is compared with what was pushed. Client, server and database share the machine.
    """
    small = [image([("base", 5_000), (f"runtime {n % 10}", 5_000), (f"program {n}", 5_000)])
             for n in range(scale.of(60, 20))]
    big = [image([(f"big {n}", 32_000_000)]) for n in range(scale.of(6, 4))]
    try:
        for what, images, megabytes in (
                ("small images", small, 0.015), ("images of 32 MB", big, 32)):
            with tempfile.TemporaryDirectory() as folder:
                here = Path(folder)
                found = alternate(3, {
                    "docker": lambda: by_docker(here, images),  # noqa: B023
                    "blobgc": lambda: by_blobgc(here, images)})  # noqa: B023
            yield from compare(what, megabytes, **found)
    finally:
        drop_database(DATABASE)
