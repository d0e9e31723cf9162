"""Files of this machine: file:///folder/."""

import argparse
import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import BinaryIO

from blobgc.stores.base import (
    DELETED,
    RELEASED,
    SPARED,
    Listed,
    Marker,
    Page,
    Seen,
    Store,
    Tombstone,
    is_plain,
)

LONGEST = 100_000  # Characters: more than any marker has.
FULL = (errno.ENOSPC, errno.EDQUOT)  # No room.
SPARE = "-spare"  # Of a marker: a file with room for the next one.
PAGE = 1000  # Files.
DELETING = ".blobgc-deleting/"  # Files that are looked at for the last time.
CRASHED = 60.0  # Seconds: what is there for so long was left by a runner that is gone.
CLOCK_HOLDS = 60.0  # Seconds until the clock of the file system is looked at again.


class FileStore(Store):
    """A folder. It is walked by descriptors, so that no symbolic link leads out of it."""

    scheme = "file"
    example = "file:///dir/"
    at_a_time = 4  # A disk is no faster with more, and threads of Python wait for each other.
    has_locks = True  # Some network file systems have none.

    def __init__(self, prefix: str, options: argparse.Namespace) -> None:
        super().__init__(prefix, options)
        self.ahead = 0.0  # Seconds by which the file system's clock is ahead of time.monotonic().
        self.clock_holds_until = 0.0

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
        with contextlib.suppress(FileNotFoundError):
            for left in self.walk(self.prefix + DELETING, True):
                if self.clock() - left.written.timestamp() > CRASHED:
                    self.put_back(self.prefix + left.url[len(self.prefix + DELETING):])

    @contextlib.contextmanager
    def opened(self, url: str, makes_folders: bool = False) -> Iterator[tuple[int, str]]:
        """A descriptor of the folder that a file is in, and the file's name there."""
        *folders, name = url[len(self.prefix):].split("/")
        opened = [os.open(f"/{self.folder}", os.O_DIRECTORY)]
        try:
            for folder in folders:
                if makes_folders:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=opened[-1])
                how = os.O_DIRECTORY | os.O_NOFOLLOW
                opened.append(os.open(folder, how, dir_fd=opened[-1]))
            yield opened[-1], name
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def delete(self, tombstones: list[Tombstone]) -> list[str]:
        (tombstone,) = tombstones
        os.close(os.open(f"/{self.folder}", os.O_DIRECTORY))  # That must be there.
        try:
            with self.opened(tombstone.url) as (folder, name):
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass  # A missing file is a success.
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
            self.write(path, new, content)
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
        self.leave_spare(path)
        return self.seen(content).tag

    def write(self, path: str, new: str, content: str) -> None:
        """On a full disk into the spare file, which has room already: deletes have to go on."""
        try:
            # Not for others to read: who can read a file can lock it.
            with open(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o660), "wb") as file:
                fill(file, content.encode())
        except OSError as error:
            if error.errno not in FULL:
                raise
            try:
                os.rename(path + SPARE, new)  # Of several runners, one has it now.
            except FileNotFoundError:
                raise error from None
            with open(new, "r+b") as file:
                fill(file, content.encode())

    def leave_spare(self, path: str) -> None:
        """Where there is none. One that has no room is of no use."""
        spare = path + SPARE
        if os.path.exists(spare):
            return
        with contextlib.suppress(FileExistsError):  # Another runner has left one.
            descriptor = os.open(spare, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o660)
            try:
                with open(descriptor, "wb") as file:
                    fill(file, bytes(4096))
            except OSError:
                os.unlink(spare)

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

    # Deleting with care. No system deletes a file only if it still is what was seen: so it is moved
    # out of the way, where nobody writes it by its name, and looked at again.

    def clock(self) -> float:
        """By the file system, which may be that of a server. It is asked by a file of our own."""
        if time.monotonic() > self.clock_holds_until:
            path = f"/{self.folder}.blobgc-{uuid.uuid4().hex}"
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            try:
                self.ahead = os.fstat(descriptor).st_ctime - time.monotonic()
            finally:
                os.close(descriptor)
                os.unlink(path)
            self.clock_holds_until = time.monotonic() + CLOCK_HOLDS
        return time.monotonic() + self.ahead

    def delete_carefully(self, tombstones: list[Tombstone]) -> list[str]:
        (tombstone,) = tombstones
        care = tombstone.care
        if not care:
            return self.delete(tombstones)
        now = self.clock()  # Raises if there is no such folder.
        try:
            with self.opened(tombstone.url) as (folder, name):
                seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not care.allows(Seen(seen.st_size, now - seen.st_ctime, None)):
                    return [SPARED]
                if care.is_late():
                    return [RELEASED]
                if self.take_away(tombstone.url, folder, name, seen):
                    return [DELETED]
        except FileNotFoundError:
            return [RELEASED if self.put_back(tombstone.url) else DELETED]
        care.written = time.monotonic()
        return [SPARED]

    def take_away(self, url: str, folder: int, name: str, seen: os.stat_result) -> bool:
        """Whether it was what was seen, and is deleted; else it is put back."""
        aside = self.prefix + DELETING + url[len(self.prefix):]
        with self.opened(aside, makes_folders=True) as (new_folder, new_name):
            os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)
            found = os.stat(new_name, dir_fd=new_folder, follow_symlinks=False)
            if identity(found) == identity(seen):
                os.unlink(new_name, dir_fd=new_folder)
                return True
        self.put_back(url)
        return False

    def put_back(self, url: str) -> bool:
        """Whether there was anything. If there is a new file of that name, the old one goes."""
        aside = self.prefix + DELETING + url[len(self.prefix):]
        try:
            with (
                self.opened(aside) as (folder, name),
                self.opened(url) as (old_folder, old_name),
            ):
                with contextlib.suppress(FileExistsError):
                    os.link(name, old_name, src_dir_fd=folder, dst_dir_fd=old_folder,
                            follow_symlinks=False)
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return False
        return True

    # What is there

    def folders(self, folder: str) -> list[str] | None:
        found = []
        with os.scandir(folder.removeprefix("file://")) as entries:
            for number, entry in enumerate(entries):
                if number == PAGE:
                    return None
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".blobgc"):
                    found.append(f"{folder}{entry.name}/")
        return sorted(found)

    def pages(self, folder: str, is_deep: bool, cursor: str | None) -> Iterator[Page]:
        """In the order of the folders themselves, in which nobody can go on."""
        objects: list[Listed] = []
        for found in self.walk(folder, is_deep):
            objects.append(found)
            if len(objects) == PAGE:
                yield Page(objects, None)
                objects = []
        yield Page(objects, None)

    def walk(self, folder: str, is_deep: bool) -> Iterator[Listed]:
        """Links are left out: what is behind one may be in use under its name."""
        with os.scandir(folder.removeprefix("file://")) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if is_deep and not entry.name.startswith(".blobgc"):
                        yield from self.walk(f"{folder}{entry.name}/", True)
                    continue
                with contextlib.suppress(FileNotFoundError):  # It has gone meanwhile.
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        yield Listed(folder + entry.name, found.st_size, last_change(found), None)

    def look(self, url: str) -> Seen | None:
        try:
            with self.opened(url) as (folder, name):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return Seen(found.st_size, time.time() - last_change(found).timestamp(), None)

    def move(self, tombstone: Tombstone, target: str) -> None:
        with (
            self.opened(tombstone.url) as (folder, name),
            self.opened(target, makes_folders=True) as (new_folder, new_name),
        ):
            os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)

    # Whether two prefixes are one folder

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


def fill(file: BinaryIO, content: bytes) -> None:
    """With this and nothing else, for good."""
    file.write(content)
    file.truncate()
    file.flush()
    os.fsync(file.fileno())


def last_change(found: os.stat_result) -> datetime:
    """Not when it was written: a copy may say that of the original. A rename changes this too."""
    return datetime.fromtimestamp(found.st_ctime, timezone.utc)


def identity(found: os.stat_result) -> tuple[int, ...]:
    """What changes with a file's content, or when another takes its place; not with a move."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
