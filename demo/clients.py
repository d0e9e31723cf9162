"""Who pushes and pulls in the demo, and what: images that follow from their numbers."""

import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples/registry"))

from oci_client import Client, Refused  # noqa: E402
from oci_images import Bundle, image, platforms, signature  # noqa: E402

__all__ = ["Client", "Image", "Refused", "Skopeo", "free_address"]

REPOSITORIES = [f"acme/app-{number}" for number in range(20)]


@dataclass(frozen=True)
class Image:
    """For two architectures, and signed. Where it is and what it consists of is its number."""

    number: int

    @property
    def repository(self) -> str:
        return REPOSITORIES[self.number % len(REPOSITORIES)]

    @property
    def tag(self) -> str:
        return f"v{self.number}"

    def bundle(self) -> Bundle:
        """For each architecture a base that many share, and a program that is the image's own."""
        return platforms({architecture: image([
            (f"base {self.number % 7} {architecture}", 60_000),
            (f"program {self.number} {architecture}", 5_000)], architecture)
            for architecture in ("amd64", "arm64")})

    def signature(self) -> Bundle:
        return signature(self.bundle(), "demo")


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Skopeo:
    """Debian's client. It copies from a folder, so an image is written to one first."""

    def __init__(self, address: str) -> None:
        self.address = address

    @staticmethod
    def is_installed() -> bool:
        return shutil.which("skopeo") is not None

    def push(self, one: Image) -> bool:
        """Whether it was accepted."""
        with tempfile.TemporaryDirectory() as folder:
            one.bundle().write_layout(Path(folder))
            return self.copy(f"oci:{folder}", self.name(one), "--dest-tls-verify=false")

    def pull(self, one: Image) -> dict[str, bytes]:
        """What was pulled, by digest; nothing if it could not be."""
        with tempfile.TemporaryDirectory() as folder:
            if not self.copy(self.name(one), f"oci:{folder}/image", "--src-tls-verify=false"):
                return {}
            return {f"sha256:{path.name}": path.read_bytes()
                    for path in Path(folder, "image/blobs/sha256").iterdir()}

    def name(self, one: Image) -> str:
        return f"docker://{self.address}/{one.repository}:{one.tag}"

    def copy(self, source: str, target: str, *options: str) -> bool:
        command = ["skopeo", "copy", "--all", "--preserve-digests", *options, source, target]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
