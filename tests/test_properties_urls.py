"""Generated addresses and generations: what a store accepts names one object, and in one way only.

No server is asked: this is about what a runner would ask for. That servers agree is in
tests/test_stores.py. Files are deleted indeed.
"""

from __future__ import annotations

import argparse
import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from blobgc.errors import Unusable
from blobgc.stores import Store, Tombstone, kinds, open_store

OPTIONS = argparse.Namespace(timeout=0.5, threads=1)
# Enough to open a store. Nobody listens there.
ENVIRONMENT = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
    "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9",
    "AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=http;AccountName=test;"
    "AccountKey=dGVzdA==;BlobEndpoint=http://127.0.0.1:9/test;",
}
PREFIXES = ("s3://bucket/dir/", "s3://bucket/", "gs://bucket/dir/", "az://bucket/dir/",
            "file:///srv/dir/")


@pytest.fixture(scope="module")
def stores() -> Iterator[dict[str, Store]]:
    with pytest.MonkeyPatch.context() as patch:
        for name, setting in ENVIRONMENT.items():
            patch.setenv(name, setting)
        yield {prefix: open_store(prefix, OPTIONS) for prefix in PREFIXES}


# Names of objects, and second names that some store, library or proxy may take for the first

PARTS = st.sampled_from((
    "a", "b", "A", "é", "e\u0301", ".", "..", "", " ", "a.", ".a", "...", "a b", "%2e%2e", "%2F",
    "%00", "\\", "a\\b", "\0", "\n", "\x7f", "\x85", "\ud800", "\uffff", "\u200b", "?", "#", "a?b",
    ".blobgc", ".BLOBGC", ".blobgc-deleting", ".blobgc-quarantine", ".Blobgc-x", ".blobgcx",
    "x.versions", ".versions", ".uploads", "link", "folder", "x" * 300, "~", "*", "a:b", "+",
)) | st.text(max_size=6)
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)

ALIASES = (
    lambda name: name, lambda name: "/" + name, lambda name: name + "/", lambda name: "./" + name,
    lambda name: name.replace("/", "//", 1), lambda name: name.replace("/", "/./", 1),
    lambda name: name.replace("/", "\\"), lambda name: f"a/../{name}", lambda name: name + ".",
    lambda name: name + "\0", lambda name: name + "\n", lambda name: name.replace("a", "a\x01"),
    lambda name: name + "/.", lambda name: name + "\u007f", lambda name: f"../dir/{name}",
)


def plain(store: Store, key: str) -> tuple[str, ...]:
    """What is left of a name when everybody has had a go at it."""
    parts: list[str] = []
    seen = "".join(c for c in key.replace("\\", "/") if unicodedata.category(c) not in ("Cc", "Cs"))
    for part in seen.split("/"):
        if store.scheme == "az":
            part = part.rstrip(".")
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return tuple(parts)


@examples(200)
@given(prefix=st.sampled_from(PREFIXES), name=NAMES, alias=st.sampled_from(ALIASES), other=NAMES)
def test_two_addresses_never_name_one_object(
    prefix: str, name: str, alias: object, other: str, stores: dict[str, Store]
) -> None:
    store = stores[prefix]
    assert callable(alias)
    seen: dict[tuple[str, ...], str] = {}
    for url in (prefix + name, prefix + str(alias(name)), prefix + other):
        if store.accepts(url):
            assert seen.setdefault(plain(store, store.key(url)), url) == url
            # What was read is what is written, and where the prefix says.
            assert f"{prefix}{store.key(url)[len(store.folder):]}" == url
            assert store.key(url).startswith(store.folder)
            assert f"{store.scheme}://{store.bucket}/{store.key(url)}" == url


def may_be_an_object(store: Store, prefix: str, url: str) -> bool:
    """As docs/safety.md says it, and not as the code does."""
    name = url.removeprefix(prefix)
    parts = name.split("/")
    if not url.startswith(prefix) or len((store.folder + name).encode(errors="ignore")) > 1024:
        return False
    if any(part in ("", ".", "..") for part in parts) or "\\" in name:
        return False
    if any(unicodedata.category(c) in ("Cc", "Cs") or c in "\ufffe\uffff" for c in name):
        return False
    # Ours: the marker, what is being deleted, quarantines, probes.
    if any(part.lower() == ".blobgc" or part.lower().startswith(".blobgc-") for part in parts):
        return False
    if store.scheme == "az":
        return not any(part.endswith(".") for part in (store.folder + name).split("/"))
    if store.scheme == "s3":
        folders = (store.folder + name).split("/")[:-1]
        return not (folders[:1] == [".uploads"] or any(f.endswith(".versions") for f in folders))
    return True


@examples(200)
@given(prefix=st.sampled_from(PREFIXES), name=NAMES,
       changed=st.sampled_from(("", "", "", "upper", "other", "inside", "cut")))
def test_what_may_be_an_object_is_accepted_and_nothing_else(
    prefix: str, name: str, changed: str, stores: dict[str, Store]
) -> None:
    store = stores[prefix]
    url = {"": prefix + name, "upper": prefix.upper() + name, "other": "s3://other/" + name,
           "inside": " " + prefix + name, "cut": prefix[:-1] + name}[changed]
    assert store.accepts(url) == may_be_an_object(store, prefix, url)


# Generations

GENERATIONS = st.sampled_from((
    "1", "01", "+1", "1 ", " 1", "1_0", "0", "-1", "1.0", "1e3", "١", "９", "9" * 18, "9" * 19,
    str(2 ** 63), str(2 ** 63 - 1), "null", "NULL", "", "a/b", "a/../b", "..", "/", "x" * 1025,
    '"' + "0" * 32 + '"', "0" * 32, "A" * 32, '"' + "0" * 32 + '-1"', '"' + "0" * 32 + '-01"',
    '"0x8D"', '"0x8d"', '0x8D', 'W/"0x8D"', '"0X8D"', '*', '"', "a\n", "\0", "é",
    "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
)) | st.text(max_size=8) | st.from_regex("[0-9a-fA-F\"x-]{1,40}", fullmatch=True)


def said(store: Store, generation: str) -> object:
    """What a store understands."""
    if store.scheme == "gs":
        return int(generation)
    return generation.strip('"').lower() if re.fullmatch("[0-9a-fA-F\"x-]+", generation) \
        else generation


@examples(200)
@given(prefix=st.sampled_from(PREFIXES), one=GENERATIONS, other=GENERATIONS,
       ways=st.sampled_from((str.upper, str.lower, str.strip, lambda text: f'"{text}"',
                             lambda text: "0" + text, lambda text: text + "\n")))
def test_a_generation_is_written_in_one_way_only(
    prefix: str, one: str, other: str, ways: object, stores: dict[str, Store]
) -> None:
    store = stores[prefix]
    assert callable(ways)
    seen: dict[object, str] = {}
    for generation in (one, str(ways(one)), other):
        if generation and store.accepts(prefix + "x", generation):
            assert generation.isascii() and generation.isprintable() and " " not in generation
            if store.scheme == "gs":
                assert str(int(generation)) == generation
            if not (store.scheme == "s3" and '"' not in generation):  # Version ids have a case.
                assert seen.setdefault(said(store, generation), generation) == generation
    if store.scheme == "file":
        assert not one or not store.accepts(prefix + "x", one)


# Prefixes


@examples(100)
@given(scheme=st.sampled_from((*kinds(), "S3", "http", "", "file+x")),
       place=st.lists(PARTS, min_size=1, max_size=3).map("/".join),
       end=st.sampled_from(("", "/", "//")),
       separator=st.sampled_from(("://", "://", ":///", ":/")))
def test_a_prefix_is_a_folder_that_is_written_in_one_way_or_refused(
    scheme: str, place: str, end: str, separator: str, stores: dict[str, Store]
) -> None:
    prefix = f"{scheme}{separator}{place}{end}"
    try:
        store = open_store(prefix, OPTIONS)
    except Unusable as error:
        assert str(error).isprintable()
        return
    assert store.prefix == prefix.removesuffix("/") + "/"
    assert store.prefix == f"{store.scheme}://{store.bucket}/{store.folder}"
    assert plain(store, store.folder) == tuple(store.folder.split("/")[:-1])
    assert scheme in kinds() and ".." not in place.split("/")


# Files


def make_tree(root: Path) -> None:
    for name in ("outside/a", "outside/b", "store/a", "store/A", "store/folder/a",
                 "store/folder/b", "store/.blobgc", "store/.blobgc-deleting/a", "store/é"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    for name, target in (("store/link", "../outside"), ("store/folder/link", "../../outside/a")):
        if not (root / name).is_symlink():
            (root / name).symlink_to(target)


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")
            if path.is_symlink() or path.is_file()}


@examples(100)
@given(name=NAMES | st.lists(st.sampled_from((
    "a", "A", "folder", "link", "b", "..", ".", "", "é", ".blobgc", ".blobgc-deleting")),
    min_size=1, max_size=4).map("/".join))
def test_only_the_file_that_is_named_is_deleted(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp() / "tree"
    make_tree(root)
    before = tree(root)
    store = open_store(f"file://{root}/store/", OPTIONS)
    url = store.prefix + name
    if store.accepts(url):
        try:
            store.delete([Tombstone(1, url, None, None)])
        except (OSError, UnicodeEncodeError):
            assert tree(root) == before
            return
    gone = before - tree(root)
    assert gone == ({os.path.join("store", name)} & before if store.accepts(url) else set())
    assert not gone & {"store/.blobgc", "store/.blobgc-deleting/a"}
