"""What a store does with tombstones: only under its prefix, every answer taken for what it is."""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from proxy import Fault
from stores import AmazonObjects, FileObjects, GoogleObjects, Objects, environment_of

import runner
from runner import DELETED, Store, Tombstone

OPTIONS = argparse.Namespace(timeout=0.5, threads=4)
_ids = itertools.count(1)


def tombstone(url: str, generation: str | None = None) -> Tombstone:
    return Tombstone(next(_ids), url, generation, 1)


@pytest.fixture
def store(objects: Objects) -> Iterator[Store]:
    with environment_of(objects):
        yield runner.open_store(objects.prefix, OPTIONS)


def open_store(objects: Objects, timeout: float = OPTIONS.timeout) -> Store:
    with environment_of(objects):
        return runner.open_store(
            objects.prefix, argparse.Namespace(timeout=timeout, threads=OPTIONS.threads)
        )


def fate(store: Store, url: str, generation: str | None = None) -> str:
    """What becomes of one object, as the runner would see to it."""
    try:
        (found,) = store.delete([tombstone(url, generation)])
    except Exception as error:
        return runner.reason(error)
    return found


NAMES = ["plain", "deep/er/name", "with space", "ünïcode", "question?mark", "hash#", "per%2ecent",
         "plus+&=", "a..b", "…", "quote\"s'", "~tilde"]


@pytest.mark.parametrize("name", NAMES)
def test_exactly_the_named_object_is_deleted(objects: Objects, store: Store, name: str) -> None:
    objects.put(name)
    objects.put(name + "-2")
    assert store.accepts(objects.prefix + name)
    assert fate(store, objects.prefix + name) == DELETED
    assert objects.names() == {name + "-2"}


def test_a_missing_object_is_a_success(objects: Objects, store: Store) -> None:
    objects.put("other")
    assert fate(store, objects.prefix + "missing") == DELETED
    assert fate(store, objects.prefix + "no/such/folder") == DELETED
    assert objects.names() == {"other"}


def test_a_missing_bucket_or_folder_is_a_failure(objects: Objects) -> None:
    elsewhere = objects.prefix.replace("/bucket-", "/no-bucket-").replace("/store/", "/no-store/")
    with environment_of(objects):
        store = runner.open_store(elsewhere, OPTIONS)
    for _ in range(2):
        assert fate(store, elsewhere + "x") in (
            "FileNotFoundError: No such file or directory",
            "NotFound: 404 Not Found",
            "NoSuchBucket: An error occurred (NoSuchBucket) when calling the DeleteObjects "
            "operation (reached max retries: 0): The specified bucket does not exist",
        )


ATTACKS = [
    "../outside", "a/../../outside", "..", ".", "a/./b", "", "new\nline", "nul\x00l", "\x1b[2J",
    "del\x7f", "..\\outside", "c1\x85", "\uffff", "x" * 5000, "ü" * 3000,
]


@pytest.mark.parametrize("name", ATTACKS, ids=repr)
def test_an_address_that_may_lead_elsewhere_is_not_accepted(
    objects: Objects, store: Store, name: str
) -> None:
    assert not store.accepts(objects.prefix + name)


def test_the_address_of_another_bucket_or_folder_is_not_accepted(
    objects: Objects, store: Store
) -> None:
    prefix = objects.prefix
    for url in (
        prefix[:-1], prefix[:-1] + "-2/x", prefix.upper() + "x", "x" + prefix + "x", "x", "",
        " " + prefix + "x", prefix.replace("://", ":/") + "x", "http" + prefix + "x",
        prefix.rstrip("/").rpartition("/")[0] + "/x", "gs://other/things/x",
        "s3://other/things/x", "file:///etc/passwd", prefix.replace("://", "://user@") + "x",
    ):
        assert not store.accepts(url), url
    assert store.accepts(prefix + "x")


def test_a_percent_sign_is_not_decoded(objects: Objects, store: Store) -> None:
    objects.put("outside")
    objects.put("in/%2e%2e/outside")
    assert fate(store, objects.prefix + "in/%2e%2e/outside") == DELETED
    assert fate(store, objects.prefix + "in/%2E%2E%2Foutside") == DELETED
    assert fate(store, objects.prefix + "in%2f..%2foutside") == DELETED
    assert objects.names() == {"outside"}


def test_two_slashes_are_one_address_too_many_for_a_file(files: FileObjects) -> None:
    store = open_store(files)
    assert not store.accepts(files.prefix + "a//b")
    assert not store.accepts(files.prefix + "a/")
    assert not store.accepts(files.prefix + "/b")


def test_a_symbolic_link_does_not_lead_out_of_the_folder(
    files: FileObjects, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (files.folder / "folder").symlink_to(outside)
    (files.folder / "up").symlink_to("..")
    (files.folder / "link").symlink_to(outside / "precious")
    store = open_store(files)
    for name in ("folder/precious", "up/outside/precious"):
        assert fate(store, files.prefix + name) == "NotADirectoryError: Not a directory"
    assert fate(store, files.prefix + "link") == DELETED, "a link itself is a file of the store"
    assert (outside / "precious").exists()


def test_a_folder_or_a_file_that_may_not_be_deleted_is_a_failure(files: FileObjects) -> None:
    store = open_store(files)
    files.put("folder/x")
    assert fate(store, files.prefix + "folder") == "IsADirectoryError: Is a directory"
    assert fate(store, files.prefix + "folder/" + "x" * 300) == "OSError: File name too long"
    assert files.names() == {"folder/x"}


def test_a_generation_of_gcs_protects_a_later_upload(google: GoogleObjects) -> None:
    store = open_store(google)
    first = google.put("x")
    second = google.put("x")
    assert fate(store, google.prefix + "x", first) == DELETED, "the one that was meant is gone"
    assert google.names() == {"x"}
    assert fate(store, google.prefix + "x", second) == DELETED
    assert google.names() == set()
    assert fate(store, google.prefix + "x", second) == DELETED


def test_a_generation_that_the_store_does_not_know_is_refused(
    google: GoogleObjects, files: FileObjects
) -> None:
    """The database believes that another generation is another object: it is not deleted."""
    assert open_store(google).accepts(google.prefix + "x", "1700000000000000")
    assert not open_store(google).accepts(google.prefix + "x", "0")
    assert not open_store(google).accepts(google.prefix + "x", "one")
    assert open_store(files).accepts(files.prefix + "x", None)
    assert not open_store(files).accepts(files.prefix + "x", "1")


def test_a_version_of_s3_protects_a_later_upload(versioned_amazon: AmazonObjects) -> None:
    store = open_store(versioned_amazon)
    first = versioned_amazon.put("x")
    second = versioned_amazon.put("x")
    assert fate(store, versioned_amazon.prefix + "x", first) == DELETED
    assert versioned_amazon.names() == {"x"}
    assert fate(store, versioned_amazon.prefix + "x", first) == DELETED, "it was gone already"
    assert versioned_amazon.names() == {"x"}
    assert fate(store, versioned_amazon.prefix + "x", second) == DELETED
    assert versioned_amazon.names() == set()


def test_a_thousand_objects_are_one_request_to_s3(amazon: AmazonObjects) -> None:
    store = open_store(amazon, timeout=10)
    for number in range(20):
        amazon.put(str(number))
    wanted = [tombstone(f"{amazon.prefix}{number}") for number in range(10, 1010)]
    assert store.delete(wanted) == [DELETED] * 1000
    assert amazon.names() == {str(number) for number in range(10)}
    assert amazon.proxy.deletes == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (401, "401|cannot be refreshed"), (403, "403"), (429, "429"), (500, "500"), (503, "503"),
        ("reset", "reset|closed"), ("hang", "timed out|timeout"),
        ("reset after", "reset|closed"), ("hang after", "timed out|timeout"),
    ],
)
@pytest.mark.parametrize("kind", ["google", "amazon"])
def test_a_fault_is_a_failure_with_its_reason_and_the_next_try_works(
    kind: str, fault: Fault, reason: str, request: pytest.FixtureRequest
) -> None:
    objects = request.getfixturevalue(kind)
    store = open_store(objects)
    objects.put("x")
    objects.proxy.fault = lambda: fault
    start = time.monotonic()
    found = fate(store, objects.prefix + "x")
    assert time.monotonic() - start < 2 * OPTIONS.timeout + 0.5
    assert re.search(reason, found), found
    assert "x" in objects.names() or str(fault).endswith("after")
    objects.proxy.fault = lambda: None
    assert fate(store, objects.prefix + "x") == DELETED
    assert objects.names() == set()


def test_the_same_fault_has_the_same_reason(google: GoogleObjects) -> None:
    store = open_store(google)
    faults: tuple[Fault, ...] = (503, "reset", "hang")
    for fault in faults:
        google.proxy.fault = itertools.repeat(fault).__next__
        assert fate(store, google.prefix + "x") == fate(store, google.prefix + "y")


def test_a_server_that_is_not_there_is_a_failure(google: GoogleObjects) -> None:
    store = open_store(google)
    google.close()
    assert fate(store, google.prefix + "x") == "ConnectionError: Connection refused"


def test_a_store_that_only_fails_is_left_alone_for_a_while(files: FileObjects) -> None:
    store = open_store(files)
    store.note(["503"] * (runner.TOLERANCE - 1))
    assert store.pause_left() == 0
    store.note([DELETED])
    store.note(["503"] * (runner.TOLERANCE - 1))
    assert store.pause_left() == 0, "a success in between starts the count again"
    store.note(["503"])
    assert 0 < store.pause_left() <= runner.PAUSE
    until = store.paused_until
    store.note(["503"] * 100)
    assert store.paused_until == until, "what was under way already does not make it longer"
    store.paused_until = 0
    store.note(["503"])
    assert store.pause_left() > 0, "one more failure is enough after that"


@pytest.mark.parametrize("prefix", ["gs://", "bucket/x", "http://x/", "file://x/", "s3:///x", ""])
def test_a_prefix_that_is_none_is_said(prefix: str) -> None:
    with pytest.raises(runner.Unusable, match="gs://bucket/dir/, s3://bucket/dir/ or file:///dir/"):
        runner.open_store(prefix, OPTIONS)


@pytest.mark.parametrize(("prefix", "extra"), [("gs://b/", "gcs"), ("s3://b/", "s3")])
def test_a_missing_package_is_said_with_the_extra_that_brings_it(prefix: str, extra: str) -> None:
    hidden = "import sys; sys.modules.update({'google.api_core': None, 'boto3': None}); "
    code = f"import runner, argparse; runner.open_store({prefix!r}, argparse.Namespace(timeout=1))"
    found = subprocess.run(
        [sys.executable, "-c", hidden + code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert f"pip install 'blobgc[{extra}]'" in found.stderr
