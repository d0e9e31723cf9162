"""Where blobs are written to and read from. The preset tells the url of each.

A store writes a whole file or nothing: an object is never seen half written. And it has written it
when it says so: a row that is committed must find its object after a power cut.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

from distribution.errors import Refusal
from distribution.ranges import Part

BUFFER = 256 * 1024


class Store(Protocol):
    def put(self, url: str, source: Path) -> None:
        """Writes the object. The source may be gone afterwards."""

    def read(self, url: str, part: Part) -> Iterator[bytes]:
        """A part of the object. Raises before the first byte if the object is not there."""


class Files:
    """file:///folder/…"""

    def put(self, url: str, source: Path) -> None:
        target = Path(urlsplit(url).path)
        target.parent.mkdir(parents=True, exist_ok=True)
        sync(source)
        try:
            os.replace(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:  # It is on another file system.
                raise
            self.copy(source, target)
        sync(target.parent)

    def copy(self, source: Path, target: Path) -> None:
        written = target.with_name(source.name)
        try:
            shutil.copyfile(source, written)
            sync(written)
            os.replace(written, target)
        finally:
            written.unlink(missing_ok=True)

    def read(self, url: str, part: Part) -> Iterator[bytes]:
        try:
            return self.parts(Path(urlsplit(url).path).open("rb"), part)
        except FileNotFoundError:
            raise missing(url) from None

    def parts(self, file: BinaryIO, part: Part) -> Iterator[bytes]:
        with file:
            file.seek(part.start)
            left = part.length
            while left and (content := file.read(min(BUFFER, left))):
                left -= len(content)
                yield content


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Amazon:
    """s3://bucket/…, with the settings and credentials that boto3 finds."""

    def __init__(self) -> None:
        self.client: Any = import_module("boto3").client("s3")
        self.error: Any = import_module("botocore.exceptions").ClientError

    def put(self, url: str, source: Path) -> None:
        """In parts, where it is big."""
        self.client.upload_file(str(source), *bucket_and_key(url))

    def read(self, url: str, part: Part) -> Iterator[bytes]:
        bucket, key = bucket_and_key(url)
        if not part.length:
            return iter(())
        wanted = f"bytes={part.start}-{part.start + part.length - 1}"
        try:
            answer = self.client.get_object(Bucket=bucket, Key=key, Range=wanted)
        except self.error as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                raise missing(url) from None
            raise
        parts: Iterator[bytes] = answer["Body"].iter_chunks(BUFFER)
        return parts


class Google:
    """gs://bucket/…, with the settings and credentials that Google's library finds."""

    def __init__(self) -> None:
        self.client: Any = import_module("google.cloud.storage").Client(project=None)

    def put(self, url: str, source: Path) -> None:
        bucket, key = bucket_and_key(url)
        self.client.bucket(bucket).blob(key).upload_from_filename(str(source))

    def read(self, url: str, part: Part) -> Iterator[bytes]:
        bucket, key = bucket_and_key(url)
        blob = self.client.bucket(bucket).get_blob(key)
        if blob is None:
            raise missing(url)
        return Files().parts(blob.open("rb", chunk_size=BUFFER), part)


def bucket_and_key(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.netloc, parts.path.removeprefix("/")


def missing(url: str) -> Refusal:
    """It was collected a moment ago, or somebody else has deleted it."""
    return Refusal("BLOB_UNKNOWN", 404, "the blob is not in the store", url)


KINDS: dict[str, Callable[[], Store]] = {"file": Files, "s3": Amazon, "gs": Google}


@cache
def store_of_kind(scheme: str) -> Store:
    return KINDS[scheme]()


def store_of(url: str) -> Store:
    return store_of_kind(urlsplit(url).scheme)
