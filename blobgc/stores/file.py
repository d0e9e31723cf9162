"""Files of this machine: file:///folder/."""

import contextlib
import os

from blobgc.stores.base import DELETED, Store, Tombstone, is_plain


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
