"""Images to try a registry with, made from numbers: any client can push, pull and run off them.

Their layers are real archives, some of which many images share. The same numbers make the same
bytes, so whoever has pulled an image can tell whether it is what was pushed.
"""

import gzip
import hashlib
import io
import json
import random
import tarfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
EMPTY = "application/vnd.oci.empty.v1+json"
SIGNATURE = "application/vnd.example.signature"

Descriptor = dict[str, Any]


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def descriptor(media_type: str, content: bytes, **more: Any) -> Descriptor:
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content), **more}


def serialize(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


@lru_cache(maxsize=256)
def archive(name: str, size: int) -> bytes:
    """A tar of one file, which is made from its name, and cannot be compressed."""
    content = random.Random(name).randbytes(size)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as writer:
        entry = tarfile.TarInfo(name.replace(" ", "-"))
        entry.size = size
        writer.addfile(entry, io.BytesIO(content))
    return tar.getvalue()


@lru_cache(maxsize=256)
def layer(name: str, size: int) -> bytes:
    return gzip.compress(archive(name, size), compresslevel=1, mtime=0)


@dataclass
class Bundle:
    """A manifest with all that it needs, by digest: what is pushed, and what a pull must give."""

    top: bytes
    media_type: str
    manifests: dict[str, bytes] = field(default_factory=dict)  # Children first.
    blobs: dict[str, bytes] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return digest_of(self.top)

    def describe(self, **more: Any) -> Descriptor:
        return descriptor(self.media_type, self.top, **more)

    def write_layout(self, folder: Path) -> None:
        """As an OCI layout, which skopeo and others copy from."""
        home = folder / "blobs" / "sha256"
        home.mkdir(parents=True, exist_ok=True)
        for digest, content in (self.manifests | self.blobs).items():
            (home / digest.removeprefix("sha256:")).write_bytes(content)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        index = {"schemaVersion": 2, "manifests": [self.describe()]}
        (folder / "index.json").write_bytes(serialize(index))


def bundle(document: dict[str, Any], blobs: list[bytes], children: list[Bundle]) -> Bundle:
    top = serialize(document)
    made = Bundle(top, document["mediaType"])
    for child in children:
        made.manifests |= child.manifests
        made.blobs |= child.blobs
    made.manifests[digest_of(top)] = top
    made.blobs |= {digest_of(content): content for content in blobs}
    return made


def image(layers: list[tuple[str, int]], architecture: str = "amd64") -> Bundle:
    """An image of layers, each a name and a size: a name is always the same layer."""
    contents = [layer(*each) for each in layers]
    configuration = serialize({
        "architecture": architecture, "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(archive(*each)) for each in layers]},
        "history": [{"created_by": name} for name, _ in layers],
    })
    return bundle({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": descriptor(CONFIG, configuration),
        "layers": [descriptor(LAYER, content) for content in contents],
    }, [configuration, *contents], [])


def platforms(images: dict[str, Bundle]) -> Bundle:
    """One image for several architectures."""
    return bundle({
        "schemaVersion": 2, "mediaType": INDEX,
        "manifests": [child.describe(platform={"architecture": architecture, "os": "linux"})
                      for architecture, child in images.items()],
    }, [], list(images.values()))


def signature(subject: Bundle, signed_by: str) -> Bundle:
    """An artifact that is about another manifest. What it says is not the point here."""
    content = f"{signed_by} has signed {subject.digest}".encode()
    return bundle({
        "schemaVersion": 2, "mediaType": MANIFEST, "artifactType": SIGNATURE,
        "config": descriptor(EMPTY, b"{}"),
        "layers": [descriptor(SIGNATURE, content)],
        "subject": subject.describe(),
        "annotations": {"org.example.signer": signed_by},
    }, [b"{}", content], [])
