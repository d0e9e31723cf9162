"""Inventories: what a store has, as it has written it into files.

S3 Inventory and S3 Metadata, Storage Insights of Google Cloud, Blob inventory of Azure, or whatever
else has a line for each object and names its columns: CSV, also compressed, or Parquet. Where there
is a manifest, it is given, and tells which files there are: without all of them nothing is read.
"""

import csv
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import unquote_plus

from blobgc.errors import Unusable

AT_ONCE = 65_536  # Rows of a Parquet file.

# What the columns are called, in small letters, by those who write inventories; the best first.
KEY = ("url", "key", "name", "objectname")
SIZE = ("size", "contentlength")
WRITTEN = ("lastmodifieddate", "lastmodified", "updated", "timecreated")
GENERATION = ("generation", "etag")
BUCKET = ("bucket",)
IS_LATEST = ("islatest", "iscurrentversion")
IS_GONE = ("isdeletemarker", "deleted", "timedeleted")
NO = ("", "false", None)


class Columns(NamedTuple):
    """Where in a line what stands; None: nowhere."""

    key: int
    size: int | None
    written: int | None
    generation: int | None
    bucket: int | None
    is_latest: int | None
    is_gone: int | None


# What an inventory says of an object, as text, as it stands there: its key, its size, when it was
# last written, and its generation or ETag. A plain tuple: there are millions of them.
Record = tuple[str, str | None, str | None, str | None]


class Inventory:
    """The files of a report, checked for being all there."""

    def __init__(self, path: Path, bucket: str) -> None:
        self.bucket = bucket
        self.files = [path]
        self.header: list[str] | None = None  # Of CSV that has none.
        self.is_quoted = False  # Keys are written with %20.
        self.expected: int | None = None  # Lines of all files.
        self.lines = 0
        self.taken_at = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
        if path.suffix == ".json":
            self.read_manifest(path, json.loads(path.read_text()))

    def read_manifest(self, path: Path, manifest: dict[str, Any]) -> None:
        if "report_shards_file_names" in manifest:
            self.read_google(path, manifest)
        elif "files" in manifest and "fileFormat" in manifest:
            self.read_amazon(path, manifest)
        else:
            raise Unusable(f"{path} is no manifest of an inventory that is known here")

    def read_amazon(self, path: Path, manifest: dict[str, Any]) -> None:
        """Sizes and checksums are in the manifest, which is written last."""
        if manifest.get("sourceBucket") != self.bucket:
            raise Unusable(f"{path} is about the bucket {manifest.get('sourceBucket')}")
        self.taken_at = datetime.fromtimestamp(
            int(manifest["creationTimestamp"]) / 1000, timezone.utc)
        self.files = []
        for entry in manifest["files"]:
            file = find_near(path, entry["key"])
            if digest(file) != entry["MD5checksum"]:
                raise Unusable(f"{file} is not what the manifest says: it has another checksum")
            self.files.append(file)
        if manifest["fileFormat"] == "CSV":
            self.header = [name.strip() for name in manifest["fileSchema"].split(",")]
            self.is_quoted = True

    def read_google(self, path: Path, manifest: dict[str, Any]) -> None:
        self.taken_at = datetime.fromisoformat(manifest["snapshot_time"].replace("Z", "+00:00"))
        self.files = [find_near(path, name) for name in manifest["report_shards_file_names"]]
        if len(self.files) != int(manifest.get("shard_count", len(self.files))):
            raise Unusable(f"{path} names {len(self.files)} files of {manifest['shard_count']}")
        if "records_processed" in manifest:
            self.expected = int(manifest["records_processed"])

    def records(self, file: Path) -> Iterator[Record]:
        """Of one file: the objects that there are, in this bucket."""
        rows = self.parquet_rows(file) if file.suffix == ".parquet" else self.csv_rows(file)
        columns = next(rows)
        key, size, written, generation, bucket, is_latest, is_gone = columns
        for row in rows:
            self.lines += 1
            if bucket is not None and row[bucket] != self.bucket:
                continue
            if is_latest is not None and row[is_latest] in NO:
                continue
            if is_gone is not None and row[is_gone] not in NO:
                continue
            name = row[key]
            if self.is_quoted and ("%" in name or "+" in name):
                name = unquote_plus(name)
            yield (name,
                   None if size is None else row[size],
                   None if written is None else row[written],
                   None if generation is None else row[generation])

    def check_count(self) -> None:
        """After all files were read."""
        if self.expected is not None and self.lines != self.expected:
            raise Unusable(f"the files have {self.lines:,} lines, and the manifest says "
                           f"{self.expected:,}")

    # Rows of a file, after where what stands in them

    def csv_rows(self, file: Path) -> Iterator[Any]:
        with open_text(file) as text:
            reader = csv.reader(text)
            header = self.header or next(reader, [])
            yield columns_of(header, file)
            for row in reader:
                if len(row) != len(header):
                    raise Unusable(f"{file}, line {reader.line_num}: it has {len(row)} fields, and "
                                   f"the header {len(header)}")
                yield row

    def parquet_rows(self, file: Path) -> Iterator[Any]:
        try:
            arrow = import_module("pyarrow")
            parquet = import_module("pyarrow.parquet")
        except ImportError as error:
            raise Unusable(f"{file}: {error}: pip install 'blobgc[parquet]'") from error
        with parquet.ParquetFile(file) as opened:
            names = list(opened.schema_arrow.names)
            columns = columns_of(names, file)
            wanted = sorted({number for number in columns if number is not None})
            places: dict[int | None, int] = {old: new for new, old in enumerate(wanted)}
            yield Columns(places[columns.key], *(places.get(old) for old in columns[1:]))
            for batch in opened.iter_batches(AT_ONCE, columns=[names[each] for each in wanted]):
                texts = []
                for column in batch.columns:
                    if arrow.types.is_timestamp(column.type):
                        column = column.cast(arrow.timestamp("us", "UTC"))
                    texts.append(column.cast(arrow.string()).to_pylist())
                yield from zip(*texts, strict=True)


def columns_of(header: list[str], file: Path) -> Columns:
    names = [re.sub("[^a-z]", "", name.lower()) for name in header]

    def place(known: tuple[str, ...]) -> int | None:
        for name in known:
            if name in names:
                return names.index(name)
        return None

    key = place(KEY)
    if key is None:
        raise Unusable(f"{file}: the first line must name the columns, and one of them must be "
                       "key, name or url")
    return Columns(key, place(SIZE), place(WRITTEN), place(GENERATION), place(BUCKET),
                   place(IS_LATEST), place(IS_GONE))


def open_text(file: Path) -> IO[str]:
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf8", newline="")
    return file.open(encoding="utf8", newline="")


def find_near(manifest: Path, key: str) -> Path:
    """A file that the manifest names by its place in a bucket, where a copy of that has it."""
    name = key.rpartition("/")[2]
    for folder in (manifest.parent, manifest.parent / "data", manifest.parent.parent / "data"):
        if (folder / name).is_file():
            return folder / name
    raise Unusable(f"{manifest} names {name}, and that is neither beside it nor in data/")


def digest(file: Path) -> str:
    found = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            found.update(block)
    return found.hexdigest()
