"""What has arrived of an upload so far: a file, whose name is the upload's.

The file is all that there is of a session, so it survives a restart, and several servers can share
a folder. Nothing is written to the store before its digest is known to be right.
"""

import fcntl
import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from distribution.errors import Refusal

BUFFER = 1024 * 1024
ALGORITHMS = {"sha256": hashlib.sha256, "sha512": hashlib.sha512}


@dataclass(frozen=True)
class Session:
    repository: str
    upload: str  # Its UUID.
    path: Path

    @property
    def location(self) -> str:
        return f"/v2/{self.repository}/blobs/uploads/{self.upload}"

    def headers(self) -> dict[str, str]:
        """How far it is. Nothing and one byte are both told as 0-0, as they always were."""
        last = max(self.size() - 1, 0)
        return {"Location": self.location, "Range": f"0-{last}", "Docker-Upload-UUID": self.upload}

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            raise unknown(self.upload) from None

    @contextmanager
    def appending(self) -> Iterator[BinaryIO]:
        """The file, for one request at a time."""
        try:
            file = self.path.open("r+b")
        except FileNotFoundError:
            raise unknown(self.upload) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refusal("BLOB_UPLOAD_INVALID", 409, "another request sends to this upload",
                              self.upload, {"Retry-After": "1"}) from None
            if not self.is_still(file):
                raise unknown(self.upload)
            file.seek(0, os.SEEK_END)
            yield file

    def is_still(self, file: BinaryIO) -> bool:
        """Not if it was finished before it was locked: then the file is a blob in the store."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(file.fileno()))
        except FileNotFoundError:
            return False

    def digest(self, algorithm: str) -> str:
        """The digest of all that has arrived."""
        hashed = ALGORITHMS[algorithm]()
        with self.path.open("rb") as file:
            while part := file.read(BUFFER):
                hashed.update(part)
        return f"{algorithm}:{hashed.hexdigest()}"

    def shorten(self, size: int) -> None:
        """Forgets what came after, so that a request that failed can be sent again."""
        with suppress(FileNotFoundError):
            os.truncate(self.path, size)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)


class Sessions:
    """A folder of uploads that are under way."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def create(self, repository: str) -> Session:
        session = self.session(repository, str(uuid.uuid4()))
        session.path.touch(exist_ok=False)
        return session

    def find(self, repository: str, upload: str) -> Session:
        """An upload is known in its own repository only."""
        try:
            name = str(uuid.UUID(upload))
        except ValueError:
            raise unknown(upload) from None
        session = self.session(repository, name)
        if not session.path.exists():
            raise unknown(upload)
        return session

    def session(self, repository: str, upload: str) -> Session:
        # Hashed: a repository's name comes from outside, and a path is made of it.
        home = hashlib.sha256(repository.encode()).hexdigest()[:16]
        return Session(repository, upload, self.folder / f"{upload}.{home}")

    def expire(self, seconds: float) -> None:
        """Discards what nobody has sent anything to for so long."""
        for path in self.folder.iterdir():
            try:
                if path.stat().st_mtime < time.time() - seconds:
                    path.unlink()
            except FileNotFoundError:
                continue  # It was finished meanwhile.


def unknown(upload: str) -> Refusal:
    return Refusal("BLOB_UPLOAD_UNKNOWN", 404, "there is no such upload", upload[:100])
