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


# Each of these leads elsewhere, or is a second name of an object, in one store or another.
ATTACKS = [
    "../outside", "a/../../outside", "..", ".", "a/./b", "", "new\nline", "nul\x00l", "\x1b[2J",
    "del\x7f", "..\\outside", "c1\x85", "\uffff", "x" * 5000, "ü" * 3000, "a//b", "/b", "b/", "/",
    "a\\b", "b\\", "b/.", "./b", "\ud800", "b\udfff", "\r",
]


@pytest.mark.parametrize("name", ATTACKS, ids=ascii)
def test_an_address_that_may_lead_elsewhere_is_not_accepted(
    objects: Objects, store: Store, name: str
) -> None:
    assert not store.accepts(objects.prefix + name)


ALIASES = ["images//victim", "/images/victim", "images/./victim", "images/x/../victim",
           "images/victim/", "images\\victim", "images/victim/.", "images/victim\n",
           "images/victim ", "images/victim.", "Images/victim", "images%2Fvictim", "images/victim?",
           "images/victim#1", "images/victim;", "images", "images/victim\u200b",
           "images/vi\u0301ctim",
           "images／victim", "images/victim+", "images/*", "images/victim/x"]


@pytest.mark.parametrize("name", ALIASES, ids=ascii)
def test_no_second_address_deletes_a_live_object(
    objects: Objects, store: Store, name: str
) -> None:
    """What the store takes for the same must be refused; what is accepted must be another."""
    objects.put("images/victim")
    if store.accepts(objects.prefix + name):
        fate(store, objects.prefix + name)
    assert objects.names() == {"images/victim"}


def test_the_inner_names_of_versions_are_no_addresses_of_s3(
    versioned_amazon: AmazonObjects
) -> None:
    """SeaweedFS keeps the versions of x as x.versions/v_…, and deletes one by that name too."""
    store = open_store(versioned_amazon)
    version = versioned_amazon.put("x")
    assert not store.accepts(f"{versioned_amazon.prefix}x.versions/v_{version}", "null")
    assert not store.accepts(f"{versioned_amazon.prefix}.versions/x")
    assert store.accepts(f"{versioned_amazon.prefix}x.versions")


def test_the_inner_names_of_uploads_are_no_addresses_of_s3(amazon: AmazonObjects) -> None:
    with environment_of(amazon):
        store = runner.open_store(f"s3://{amazon.bucket}/", OPTIONS)
    assert not store.accepts(f"s3://{amazon.bucket}/.uploads/x")
    assert store.accepts(f"s3://{amazon.bucket}/images/.uploads")


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


WRONG_GENERATIONS = {
    "google": ["0", "one", "01", "+1", "-1", " 1", "1 ", "1\n", "1_0", "1.0", "1e3", "0x1", "٦",
               "1٦", "１", "²", "9" * 19, "9" * 400],
    "amazon": ["\x01", "a b", " a", "a\n", "../x", "a/../b", "a//b", "./a", "/a", "a/", "٦", "é",
               "a" * 1025, "\ud800", "A6E1C6B6-0B6E-4C5B-9D8E-6F0A3B1C2D3E", "%41",
               "A6E1C6B60B6E4C5B9D8E6F0A3B1C2D3E", "{a6e1c6b6}", "urn:uuid:a6e1"],
    "files": ["1", "٦", "null"],
}
RIGHT_GENERATIONS = {
    "google": [None, "", "1", "1700000000000000", "9223372036854775807"],
    "amazon": [None, "", "null", "3/L4kqtJlcpXroDTDmJ+rmSpXd3dIbrHY+MTRcxv+vjVBH40Nr8X8gdRQBpUMLUo",
               "a6e1c6b6-0b6e-4c5b-9d8e-6f0a3b1c2d3e", "67170a2e8487196d08a7caeb89ff5f68", "Ab_.x"],
    "files": [None, ""],
}


@pytest.mark.parametrize("kind", ["google", "amazon", "files"])
def test_a_generation_that_the_store_does_not_know_is_refused(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """The database believes that another spelling is another object: it is not deleted."""
    objects = request.getfixturevalue(kind)
    store = open_store(objects)
    for generation in WRONG_GENERATIONS[kind]:
        assert not store.accepts(objects.prefix + "x", generation), ascii(generation)
    for right in RIGHT_GENERATIONS[kind]:
        assert store.accepts(objects.prefix + "x", right), right


def test_a_generation_in_digits_of_another_script_deletes_nothing(google: GoogleObjects) -> None:
    store = open_store(google)
    generation = google.put("x")
    arabic = generation.translate({ord(str(n)): chr(0x660 + n) for n in range(10)})
    for spelling in (arabic, generation[:-1] + arabic[-1]):
        if store.accepts(google.prefix + "x", spelling):
            fate(store, google.prefix + "x", spelling)
    assert google.names() == {"x"}


def test_a_generation_in_a_bucket_without_versions_deletes_nothing(amazon: AmazonObjects) -> None:
    """SeaweedFS does not look at it: every generation would name the one object that is there."""
    store = open_store(amazon)
    amazon.put("x")
    for generation in ("null", "1", "67170a2e8487196d08a7caeb89ff5f68"):
        assert re.match("refused: .* no versions", fate(store, amazon.prefix + "x", generation))
    assert amazon.names() == {"x"}
    assert fate(store, amazon.prefix + "x") == DELETED


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


def test_a_store_that_only_fails_is_left_alone_for_a_while(google: GoogleObjects) -> None:
    store = open_store(google)
    google.proxy.fault = lambda: 503
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


def test_a_store_is_not_to_blame_for_objects_that_cannot_be_deleted(
    objects: Objects, store: Store
) -> None:
    """It is asked for something that cannot be there, and leaves no trace of that."""
    objects.put("x")
    store.note(["objects that are locked, for example"] * 1000)
    assert store.pause_left() == 0
    assert objects.names() == {"x"}


def test_the_question_whether_a_store_is_well_leaves_no_delete_marker(
    versioned_amazon: AmazonObjects
) -> None:
    store = open_store(versioned_amazon)
    assert fate(store, versioned_amazon.prefix + "x", versioned_amazon.put("x")) == DELETED
    assert store.is_well()
    found = versioned_amazon.client.list_object_versions(
        Bucket=versioned_amazon.bucket, Prefix=versioned_amazon.folder)
    assert not found.get("DeleteMarkers") and not found.get("Versions")


@pytest.mark.parametrize(
    "prefix", ["gs://", "bucket/x", "http://x/", "file://x/", "s3:///x", "", "s3://b//", "s3://b//x",
               "s3://b/../x", "gs://b/./", "gs://../x", "gs://./", "file:///", "file:////tmp",
               "file:///tmp/../etc", "file:///tmp//x", "s3://b/x\\y", "s3://b\n/", "gs://b/\ud800",
               "gs://bü/", "s3://user@b/", "s3://b?x/", "GS://b/"], ids=ascii)
def test_a_prefix_that_is_none_is_said(prefix: str) -> None:
    with pytest.raises(runner.Unusable, match="gs://bucket/dir/, s3://bucket/dir/ or file:///dir/"):
        runner.open_store(prefix, OPTIONS)


def test_a_prefix_may_end_in_a_slash_or_not(files: FileObjects) -> None:
    with_slash, without = (runner.open_store(p, OPTIONS).prefix
                           for p in (files.prefix, files.prefix.rstrip("/")))
    assert with_slash == without == files.prefix


def test_two_prefixes_never_name_one_folder(files: FileObjects, tmp_path: Path) -> None:
    """Through a symbolic link, each file would have two addresses."""
    (files.folder / "inner").mkdir()
    (tmp_path / "link").symlink_to(files.folder)
    (tmp_path / "inner").symlink_to(files.folder / "inner")
    folder = f"file://{tmp_path}"
    for pair in (["store", "link"], ["store", "inner"], ["inner", "store"]):
        with pytest.raises(runner.Unusable, match="one folder"):
            runner.open_stores([f"{folder}/{name}/" for name in pair], OPTIONS)
    for pair in (["store", "store/inner"], ["store"], ["link"], ["store", "missing"]):
        assert runner.open_stores([f"{folder}/{name}/" for name in pair], OPTIONS)


@pytest.mark.parametrize(("prefix", "extra"), [("gs://b/", "gcs"), ("s3://b/", "s3")])
def test_a_missing_package_is_said_with_the_extra_that_brings_it(prefix: str, extra: str) -> None:
    hidden = "import sys; sys.modules.update({'google.api_core': None, 'boto3': None}); "
    code = f"import runner, argparse; runner.open_store({prefix!r}, argparse.Namespace(timeout=1))"
    found = subprocess.run(
        [sys.executable, "-c", hidden + code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert f"pip install 'blobgc[{extra}]'" in found.stderr
