"""Files of this machine: file:///folder/."""

import contextlib
import errno
import fcntl
import hashlib
import os
import tempfile
import time
import uuid

from blobgc.stores.base import DELETED, Marker, Store, Tombstone, is_plain

LONGEST = 100_000  # Characters: more than any marker has.


class FileStore(Store):
    """A folder. It is walked by descriptors, so that no symbolic link leads out of it."""

    scheme = "file"
    example = "file:///dir/"
    has_locks = True  # Some network file systems have none.

    @classmethod
    def is_place(cls, path: str) -> bool:
        return path.startswith("/") and is_plain(path[1:])

    def prepare(self) -> None:
        """A file that is not there can be deleted where nothing else can be, so rights are asked
        for."""
        folder = f"/{self.folder}"
        os.close(os.open(folder, os.O_DIRECTORY))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(0, "no right to delete files in this folder")

    def delete(self, tombstones: list[Tombstone]) -> list[str]:
        (tombstone,) = tombstones
        *folders, name = tombstone.url[len(self.prefix):].split("/")
        opened = [os.open(f"/{self.folder}", os.O_DIRECTORY)]
        try:
            with contextlib.suppress(FileNotFoundError):  # A missing file is a success.
                for folder in folders:
                    how = os.O_DIRECTORY | os.O_NOFOLLOW
                    opened.append(os.open(folder, how, dir_fd=opened[-1]))
                os.unlink(name, dir_fd=opened[-1])
        finally:
            for descriptor in opened:
                os.close(descriptor)
        return [DELETED]

    def read_marker(self, address: str) -> Marker | None:
        os.close(os.open(f"/{self.folder}", os.O_DIRECTORY))
        try:
            with open(self.path(address), encoding="utf8", errors="replace") as file:
                return self.seen(file.read(LONGEST))
        except FileNotFoundError:
            return None

    def write_marker(self, address: str, content: str, replaces: str | None) -> str | None:
        """By a new file that takes the place of the old one, or is there as a whole."""
        path = self.path(address)
        new = f"{path}-{uuid.uuid4().hex}"
        try:
            # Not for others to read: who can read a file can lock it.
            with open(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o660), "w",
                      encoding="utf8") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if replaces is None:
                os.link(new, path)
            elif not self.replace(path, new, replaces):
                return None
        except FileExistsError:
            return None
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)
        folder = os.open(os.path.dirname(path), os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return self.seen(content).tag

    def replace(self, path: str, new: str, replaces: str) -> bool:
        """While the old one is locked; the system unlocks it for whoever is killed."""
        try:
            with open(path, encoding="utf8", errors="replace") as old:
                self.lock_file(old.fileno())
                is_current = os.path.samestat(os.fstat(old.fileno()), os.stat(path))
                if not is_current or self.seen(old.read(LONGEST)).tag != replaces:
                    return False
                os.rename(new, path)
        except FileNotFoundError:
            return False
        return True

    def lock_file(self, descriptor: int) -> None:
        """Others have it for a few milliseconds, if they are well."""
        end = time.monotonic() + self.timeout
        while self.has_locks:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
                self.has_locks = False  # Two who write at one time may both succeed.

    def has_conditions(self) -> bool:
        """Where a file can be locked. The one that shows it has no name."""
        if self.honours_conditions is None:
            with tempfile.TemporaryFile(dir=f"/{self.folder}") as probe:
                self.lock_file(probe.fileno())
            self.honours_conditions = self.has_locks
        return self.honours_conditions

    def path(self, address: str) -> str:
        return f"/{self.name(address)}"

    def seen(self, content: str) -> Marker:
        return Marker(content, hashlib.sha256(content.encode()).hexdigest())

    def lineage(self) -> list[tuple[int, int]]:
        """The folder itself and those that it is in, as the system numbers them."""
        path = os.path.realpath(f"/{self.folder}")
        found = []
        with contextlib.suppress(OSError):  # It is not there yet.
            while True:
                status = os.stat(path)
                found.append((status.st_dev, status.st_ino))
                if path == "/":
                    break
                path = os.path.dirname(path)
        return found

    def contains(self, other: "FileStore") -> bool:
        """Whether the other folder is this one or inside it, whatever their names are."""
        its = self.lineage()
        return bool(its) and its[0] in other.lineage()
