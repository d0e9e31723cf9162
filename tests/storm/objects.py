"""The folder of objects, as clients see it: an object is there whole, or not at all."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

_numbers = itertools.count(1)


class Objects:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "store"
        self.unfinished = folder / "unfinished"
        self.folder.mkdir()
        self.unfinished.mkdir()
        self.prefix = f"file://{self.folder}/"

    def put(self, url: str, content: bytes) -> None:
        path = self.path(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.unfinished / str(next(_numbers))
        unfinished.write_bytes(content)
        os.replace(unfinished, path)

    def get(self, url: str) -> bytes | None:
        try:
            return self.path(url).read_bytes()
        except FileNotFoundError:
            return None

    def urls(self) -> set[str]:
        """All but the marker, by which the folder knows its database."""
        return {f"file://{path}" for path in self.folder.rglob("*")
                if path.is_file() and not path.name.startswith(".blobgc")}

    def path(self, url: str) -> Path:
        assert url.startswith(self.prefix), url
        return Path(url.removeprefix("file://"))
