"""What a store does with tombstones: only under its prefix, every answer taken for what it is."""

from __future__ import annotations

import argparse
import gc
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from proxy import Fault
from stores import (
    AmazonObjects,
    AzureObjects,
    FileObjects,
    GoogleObjects,
    Objects,
    environment_of,
)

import blobgc.stores
from blobgc.errors import Unusable, reason
from blobgc.stores import DELETED, Store, Tombstone
from blobgc.stores.base import PAUSE, TOLERANCE
from blobgc.stores.flow import Flow
from blobgc.stores.s3 import AmazonStore

OPTIONS = argparse.Namespace(timeout=0.5, threads=4)
_ids = itertools.count(1)


def tombstone(url: str, generation: str | None = None) -> Tombstone:
    return Tombstone(next(_ids), url, generation, 1)


@pytest.fixture
def store(objects: Objects) -> Iterator[Store]:
    with environment_of(objects):
        yield blobgc.stores.open_store(objects.prefix, OPTIONS)


def open_store(objects: Objects, timeout: float = OPTIONS.timeout) -> Store:
    with environment_of(objects):
        return blobgc.stores.open_store(
            objects.prefix, argparse.Namespace(timeout=timeout, threads=OPTIONS.threads)
        )


def fate(store: Store, url: str, generation: str | None = None) -> str:
    """What becomes of one object, as the runner would see to it."""
    try:
        (found,) = store.delete([tombstone(url, generation)])
    except Exception as error:
        return reason(error)
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
        store = blobgc.stores.open_store(elsewhere, OPTIONS)
    for _ in range(2):
        assert fate(store, elsewhere + "x") in (
            "FileNotFoundError: No such file or directory",
            "NotFound: 404 Not Found",
            "NoSuchBucket: An error occurred (NoSuchBucket) when calling the DeleteObjects "
            "operation (reached max retries: 0): The specified bucket does not exist",
            "ContainerNotFound: The specified container does not exist.",
        )


# Each of these leads elsewhere, or is a second name of an object, in one store or another.
ATTACKS = [
    "../outside", "a/../../outside", "..", ".", "a/./b", "", "new\nline", "nul\x00l", "\x1b[2J",
    "del\x7f", "..\\outside", "c1\x85", "\uffff", "x" * 5000, "ü" * 3000, "a//b", "/b", "b/", "/",
    "a\\b", "b\\", "b/.", "./b", "\ud800", "b\udfff", "\r",
    # Ours: what is looked at for the last time, what was put aside, the marker of a folder.
    ".blobgc-deleting/a", ".blobgc-quarantine/a", "a/.BLOBGC-x", "a/.blobgc", ".blobgc/a",
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
        store = blobgc.stores.open_store(f"s3://{amazon.bucket}/", OPTIONS)
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
               "A6E1C6B60B6E4C5B9D8E6F0A3B1C2D3E", "{a6e1c6b6}", "urn:uuid:a6e1", '"*"', "*",
               '"67170A2E8487196D08A7CAEB89FF5F68"', 'W/"67170a2e8487196d08a7caeb89ff5f68"',
               '"67170a2e8487196d08a7caeb89ff5f68-0"', '"67170a2e8487196d08a7caeb89ff5f68'],
    "azure": ["0x8D1", '"0x8d1"', '"0X8D1"', '"8D1"', '"0x"', '*', '"*"', "'0x8D1'", '"0x8D1" ',
              '"0x8D1٦"', 'W/"0x8D1"', '"0x' + "1" * 17 + '"'],
    "files": ["1", "٦", "null"],
}
RIGHT_GENERATIONS = {
    "google": [None, "", "1", "1700000000000000", "9223372036854775807"],
    "amazon": [None, "", "null", "3/L4kqtJlcpXroDTDmJ+rmSpXd3dIbrHY+MTRcxv+vjVBH40Nr8X8gdRQBpUMLUo",
               "a6e1c6b6-0b6e-4c5b-9d8e-6f0a3b1c2d3e", "67170a2e8487196d08a7caeb89ff5f68", "Ab_.x",
               '"67170a2e8487196d08a7caeb89ff5f68"', '"67170a2e8487196d08a7caeb89ff5f68-12"'],
    "azure": [None, "", '"0x8DCF2D9A6B0C1E0"', '"0x1"'],
    "files": [None, ""],
}


@pytest.mark.parametrize("kind", ["google", "amazon", "azure", "files"])
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


def test_an_etag_of_azure_protects_a_later_upload(azure: AzureObjects) -> None:
    """Even one of the same content."""
    store = open_store(azure)
    first = azure.put("x")
    second = azure.put("x")
    assert first != second
    assert fate(store, azure.prefix + "x", first) == DELETED, "the one that was meant is gone"
    assert azure.names() == {"x"}
    assert fate(store, azure.prefix + "x", second) == DELETED
    assert azure.names() == set()
    assert fate(store, azure.prefix + "x", second) == DELETED


def test_a_blob_that_somebody_has_leased_is_a_failure(azure: AzureObjects) -> None:
    """Azure answers 412, as it does where an ETag is another."""
    store = open_store(azure)
    etag = azure.put("x")
    azure.client.get_blob_client("things/x").acquire_lease()
    assert fate(store, azure.prefix + "x", etag).startswith("LeaseIdMissing: ")
    assert azure.names() == {"x"}


def test_an_etag_of_s3_protects_a_later_upload_of_another_content(amazon: AmazonObjects) -> None:
    store = open_store(amazon)
    first = amazon.put_content("x", b"first")
    second = amazon.put_content("x", b"second")
    assert fate(store, amazon.prefix + "x", first) == DELETED, "the one that was meant is gone"
    assert amazon.names() == {"x"}
    assert fate(store, amazon.prefix + "x", second) == DELETED
    assert amazon.names() == set()
    assert fate(store, amazon.prefix + "x", second) == DELETED


def test_an_etag_in_a_bucket_with_versions_deletes_nothing(versioned_amazon: AmazonObjects) -> None:
    store = open_store(versioned_amazon)
    etag = versioned_amazon.put_content("x", b"x")
    assert "the bucket has versions" in fate(store, versioned_amazon.prefix + "x", etag)
    assert versioned_amazon.names() == {"x"}


def test_an_etag_that_the_store_does_not_look_at_deletes_nothing(
    amazon: AmazonObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a store deletes whatever is there. That is found out with an object of our own."""
    store = open_store(amazon)
    assert isinstance(store, AmazonStore)
    delete_objects = store.client.delete_objects

    def ignore_etags(Bucket: str, Delete: dict[str, Any]) -> Any:
        for named in Delete["Objects"]:
            named.pop("ETag", None)
        return delete_objects(Bucket=Bucket, Delete=Delete)

    monkeypatch.setattr(store.client, "delete_objects", ignore_etags)
    etag = amazon.put_content("x", b"x")
    store.check()
    assert store.honours_etags is False
    assert "does not look at it" in fate(store, amazon.prefix + "x", etag)
    assert amazon.names() == {"x"}


@pytest.mark.parametrize("kind", ["google", "azure", "amazon", "versioned_amazon"])
def test_a_batch_deletes_what_it_names_by_its_generation(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """The second upload of even names survives; of some names nothing is there."""
    objects = request.getfixturevalue(kind)
    store = open_store(objects, timeout=10)
    wanted = []
    for number in range(20):
        generation = objects.put(str(number))
        if kind == "amazon":
            generation = objects.put_content(str(number), b"first")
        if number % 2 == 0:
            objects.put(str(number))
        wanted.append(tombstone(f"{objects.prefix}{number}", generation))
        wanted.append(tombstone(f"{objects.prefix}missing-{number}"))
    before = objects.proxy.requests
    assert store.delete(wanted) == [DELETED] * 40
    assert objects.names() == {str(number) for number in range(0, 20, 2)}
    assert objects.proxy.requests == before + 1


@pytest.mark.parametrize("kind", ["google", "azure", "amazon"])
def test_a_batch_is_as_big_as_the_store_allows(kind: str, request: pytest.FixtureRequest) -> None:
    objects = request.getfixturevalue(kind)
    store = open_store(objects, timeout=30)
    wanted = [tombstone(f"{objects.prefix}{number}") for number in range(store.per_request)]
    assert store.delete(wanted) == [DELETED] * store.per_request
    assert objects.proxy.requests == 1


def test_a_part_of_a_batch_that_fails_is_no_failure_of_the_others(google: GoogleObjects) -> None:
    store = open_store(google)
    google.put("1")
    google.put("2")
    google.proxy.fault_of = lambda url: 403 if url.endswith(b"%2F1?prettyPrint=false") else None
    fates = store.delete([tombstone(google.prefix + "1"), tombstone(google.prefix + "2")])
    assert fates[0].startswith("Forbidden: 403") and fates[1] == DELETED
    assert google.names() == {"1"}


# How much a store is asked for


def test_a_store_that_keeps_up_is_asked_for_more() -> None:
    flow = Flow(1000, 16)
    assert (flow.size, flow.width) == (500, 4)
    for _ in range(4 + 8):
        flow.grow()
    assert (flow.size, flow.width) == (1000, 16)
    for _ in range(1000):
        flow.grow()
    assert (flow.size, flow.width) == (1000, 16), "there is a limit"


def test_a_store_that_does_not_keep_up_is_asked_for_half_once_for_all_that_was_under_way() -> None:
    flow = Flow(1000, 16)
    begun = time.monotonic()
    for _ in range(4):
        flow.shrink(begun)
    assert (flow.size, flow.width) == (250, 2)
    flow.shrink(time.monotonic())
    assert (flow.size, flow.width) == (125, 1)
    for _ in range(10):
        flow.shrink(time.monotonic())
    assert (flow.size, flow.width) == (1, 1)
    flow.grow()
    assert (flow.size, flow.width) == (63, 2), "it grows slowly afterwards"


def test_no_more_requests_are_under_way_than_the_store_takes() -> None:
    flow = Flow(1000, 2)
    assert flow.enter(0) and flow.enter(0)
    assert not flow.enter(0.01)
    flow.leave()
    assert flow.enter(0)


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
@pytest.mark.parametrize("kind", ["google", "amazon", "azure"])
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
    google.proxy.spares_probes, google.proxy.fault = False, lambda: 503
    store.note(["503"] * (TOLERANCE - 1))
    assert store.pause_left() == 0
    store.note([DELETED])
    store.note(["503"] * (TOLERANCE - 1))
    assert store.pause_left() == 0, "a success in between starts the count again"
    store.note(["503"])
    assert 0 < store.pause_left() <= PAUSE
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
    with pytest.raises(Unusable, match="az://container/dir/, file:///dir/, gs://"):
        blobgc.stores.open_store(prefix, OPTIONS)


def test_a_kind_of_store_is_found_by_its_scheme() -> None:
    """A file in blobgc/stores/ with such a class is all that a new one takes."""

    class Memory(Store):
        scheme = "memory"
        example = "memory://name/"

    store = blobgc.stores.open_store("memory://name/x", OPTIONS)
    assert isinstance(store, Memory) and store.accepts("memory://name/x/y")
    with pytest.raises(Unusable, match="memory://name/"):
        blobgc.stores.open_store("nothing://x", OPTIONS)
    del store, Memory
    gc.collect()  # Classes are in circles.
    assert "memory" not in blobgc.stores.kinds()


def test_a_prefix_may_end_in_a_slash_or_not(files: FileObjects) -> None:
    with_slash, without = (blobgc.stores.open_store(p, OPTIONS).prefix
                           for p in (files.prefix, files.prefix.rstrip("/")))
    assert with_slash == without == files.prefix


def test_two_prefixes_never_name_one_folder(files: FileObjects, tmp_path: Path) -> None:
    """Through a symbolic link, each file would have two addresses."""
    (files.folder / "inner").mkdir()
    (tmp_path / "link").symlink_to(files.folder)
    (tmp_path / "inner").symlink_to(files.folder / "inner")
    folder = f"file://{tmp_path}"
    for pair in (["store", "link"], ["store", "inner"], ["inner", "store"]):
        with pytest.raises(Unusable, match="one folder"):
            blobgc.stores.open_stores([f"{folder}/{name}/" for name in pair], OPTIONS)
    for pair in (["store", "store/inner"], ["store"], ["link"], ["store", "missing"]):
        assert blobgc.stores.open_stores([f"{folder}/{name}/" for name in pair], OPTIONS)


@pytest.mark.parametrize(("prefix", "extra"), [
    ("gs://b/", "gcs"), ("s3://b/", "s3"), ("az://b/", "azure")])
def test_a_missing_package_is_said_with_the_extra_that_brings_it(prefix: str, extra: str) -> None:
    hidden = ("import sys; "
              "sys.modules.update({'google.api_core': None, 'boto3': None, 'azure.core': None}); ")
    code = ("import blobgc.stores, argparse; "
            f"blobgc.stores.open_store({prefix!r}, argparse.Namespace(timeout=1, threads=1))")
    found = subprocess.run(
        [sys.executable, "-c", hidden + code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert f"pip install 'blobgc[{extra}]'" in found.stderr
