"""Inventories: reports of what a store has, read instead of a listing."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import NewDatabase
from stores import AmazonObjects, FileObjects, GoogleObjects
from test_reconcile import World, counts, examples, new_database, prepared

from blobgc.errors import Unusable
from blobgc.inventories import Inventory

__all__ = ["new_database", "prepared"]  # Databases that are ready.

SAID = "2026-01-01T00:00:00.000Z"
DAY = 1_767_225_600_000  # The same, in milliseconds.


def amazon_report(folder: Path, bucket: str, lines: list[str]) -> Path:
    """A manifest of S3 Inventory, as it is copied out of a bucket."""
    data = folder / "data"
    data.mkdir()
    file = data / "3ae7.csv.gz"
    file.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode()))
    manifest = folder / "2026-01-03T00-00Z" / "manifest.json"
    manifest.parent.mkdir()
    manifest.write_text(json.dumps({
        "sourceBucket": bucket, "destinationBucket": "arn:aws:s3:::reports",
        "version": "2016-11-30", "creationTimestamp": str(DAY + 2 * 86_400_000 + 5000),
        "fileFormat": "CSV",
        "fileSchema": "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate",
        "files": [{"key": "reports/data/3ae7.csv.gz", "size": file.stat().st_size,
                   "MD5checksum": hashlib.md5(file.read_bytes()).hexdigest()}]}))
    return manifest


def test_an_inventory_of_s3_is_compared_and_the_store_is_asked_only_for_what_is_missing(
    new_database: NewDatabase, amazon: AmazonObjects, tmp_path: Path
) -> None:
    world = World(new_database(), amazon)
    for name in ("same", "with space+", "since"):
        amazon.put(name)

    def line(name: str, latest: str = "true", gone: str = "false", day: str = SAID) -> str:
        key = (amazon.folder + name).replace("+", "%2B").replace(" ", "+")
        return f'"{amazon.bucket}","{key}","","{latest}","{gone}","{len(name)}","{day}"'

    manifest = amazon_report(tmp_path, amazon.bucket, [
        line("same"), line("with space+"), line("orphan"), line("old", latest="false"),
        line("deleted", gone="true"), line("young", day="2026-01-02T00:00:00.000Z"),
        f'"{amazon.bucket}","elsewhere/x","","true","false","1","{SAID}"',
        f'"another","{amazon.folder}x","","true","false","1","{SAID}"'])
    with world.database.connect() as conn:
        world.insert(conn, "same", "with space+", "since", "missing")
        conn.execute("update gc.settings set orphan_grace = '2 days'")
    report = world.reconcile("--from-file", str(manifest))
    assert report["objects"] == 4
    assert counts(report) == {"orphan": 1, "young": 1, "missing": 1}
    assert examples(report, "orphan", amazon.prefix) == {"orphan"}
    assert examples(report, "missing", amazon.prefix) == {"missing"}

    (tmp_path / "data" / "3ae7.csv.gz").write_bytes(gzip.compress(b""))
    assert "another checksum" in world.tell("--from-file", str(manifest), code=2)[1]
    (tmp_path / "data" / "3ae7.csv.gz").unlink()
    assert "names 3ae7.csv.gz" in world.tell("--from-file", str(manifest), code=2)[1]


def test_a_report_of_google_is_read_whole_or_not_at_all(
    new_database: NewDatabase, google: GoogleObjects, tmp_path: Path
) -> None:
    world = World(new_database(), google)
    google.put("same")
    for number, name in enumerate(("same", "orphan")):
        (tmp_path / f"shard_{number}.csv").write_text(
            "bucket,name,size,timeCreated,updated,generation\n"
            f'{google.bucket},"things/{name}",{len(name)},{SAID},{SAID},17\n')
    manifest = tmp_path / "manifest.json"
    content = {"snapshot_time": "2026-01-10T00:00:00Z", "shard_count": 2, "records_processed": 2,
               "report_shards_file_names": ["shard_0.csv", "shard_1.csv"]}
    manifest.write_text(json.dumps(content))
    with world.database.connect() as conn:
        world.insert(conn, "same")
        report = world.reconcile("--from-file", str(manifest), "--adopt", code=0)
        assert counts(report) == {"orphan": 1} and report["adopted"] == 1
        assert conn.execute("select generation from gc.tombstones").fetchall() == [("17",)]
        manifest.write_text(json.dumps(content | {"records_processed": 3}))
        assert "the manifest says 3" in world.tell("--from-file", str(manifest), code=2)[1]
        assert conn.execute("select completed_at from gc.listings").fetchall() == [(None,)]


def test_parquet_and_csv_say_the_same(tmp_path: Path) -> None:
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    moment = importlib.import_module("datetime").datetime(2026, 1, 1)
    parquet.write_table(arrow.table({
        "bucket": ["b", "b", "c"], "key": ["a b", "é", "x"], "is_latest": [True, True, True],
        "is_delete_marker": [False, True, False], "size": [1, 2, 3],
        "last_modified_date": arrow.array([moment] * 3, arrow.timestamp("ms")),
    }), tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text(
        "Bucket,Key,Is Latest,is_delete_marker,Size,LastModified\n"
        f"b,a b,true,false,1,{SAID}\nb,é,true,true,2,{SAID}\nc,x,true,false,3,{SAID}\n")
    found = []
    for name in ("x.parquet", "x.csv"):
        file = tmp_path / name
        found.append([(key, size, (written or "")[:10])
                      for key, size, written, _ in Inventory(file, "b").records(file)])
    assert found == [[("a b", "1", "2026-01-01")]] * 2


def test_files_that_cannot_be_understood_are_refused(tmp_path: Path) -> None:
    for name, content, why in (
            ("x.csv", "1,2,3\n", "must name the columns"),
            ("y.csv", "key,size\na,1,2\n", "it has 3 fields"),
            ("z.json", "{}", "no manifest"),
            ("empty.csv", "", "must name the columns")):
        file = tmp_path / name
        file.write_text(content)
        with pytest.raises(Unusable, match=why):
            list(Inventory(file, "b").records(file))


def test_any_list_of_urls_will_do(
    new_database: NewDatabase, files: FileObjects, tmp_path: Path
) -> None:
    world = World(new_database(), files)
    for name in ("same", "orphan"):
        files.put(name)
    listed = tmp_path / "list.csv"
    listed.write_text(f'url,size,last_modified\n{files.prefix}same,4,{SAID}\n'
                      f'{files.prefix}orphan,6,{SAID}\n')
    os.utime(listed, (DAY / 1000 + 864_000, DAY / 1000 + 864_000))
    with world.database.connect() as conn:
        world.insert(conn, "same")
    assert counts(world.reconcile("--from-file", str(listed))) == {"orphan": 1}
