"""Files of this machine: file:///folder/."""

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from datetime import datetime, timezone

from blobgc.stores.base import DELETED, Listed, Page, Seen, Store, Tombstone, is_plain

PAGE = 1000  # Files.


class FileStore(Store):
    """A folder. It is walked by descriptors, so that no symbolic link leads out of it."""

    scheme = "file"
    example = "file:///dir/"

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
        with contextlib.suppress(FileNotFoundError):  # A missing file is a success.
            with self.opened(tombstone.url) as (folder, name):
                os.unlink(name, dir_fd=folder)
        return [DELETED]

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


def last_change(found: os.stat_result) -> datetime:
    """Not when it was written: a copy may say that of the original. A rename changes this too."""
    return datetime.fromtimestamp(found.st_ctime, timezone.utc)
