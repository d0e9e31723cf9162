"""What the OCI distribution specification (1.1) requires of a registry, one test for each, by HTTP.

Its text stays where it is; end-1 to end-13 are its endpoints, and the order is that of its
sections: pull, push, discovery, management, errors. In brackets: what it only recommends. What its
conformance suite tries beyond that (another algorithm, sparse lists, chunks out of order) is here
too. The server is that of examples/registry.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import itertools
import json
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from conftest import execute, rows, value
from distribution.database import Registry
from distribution.errors import OF_THE_PRESET, Refusal
from distribution.pulls import Pulls
from distribution.sessions import Sessions
from oci_images import (
    CONFIG,
    EMPTY,
    INDEX,
    LAYER,
    MANIFEST,
    Bundle,
    descriptor,
    digest_of,
    image,
    platforms,
    serialize,
    signature,
)
from serving import Served, serve

ROOT = Path(__file__).resolve().parent.parent
NOWHERE = "sha256:" + "0" * 64
MANY_DIGITS = "9" * 5000  # More than Python makes a number of.
CODES = {"BLOB_UNKNOWN", "BLOB_UPLOAD_INVALID", "BLOB_UPLOAD_UNKNOWN", "DIGEST_INVALID",
         "MANIFEST_BLOB_UNKNOWN", "MANIFEST_INVALID", "MANIFEST_UNKNOWN", "NAME_INVALID",
         "NAME_UNKNOWN", "SIZE_INVALID", "UNAUTHORIZED", "DENIED", "UNSUPPORTED",
         "TOOMANYREQUESTS"}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(f"file://{tmp_path_factory.mktemp('registry')}/store") as served:
        yield served


class Repository:
    """A repository of its own for each test, and requests to it."""

    def __init__(self, server: Served) -> None:
        self.server, self.name = server, f"test/repository-{next(_numbers)}"
        self.client = server.client()

    def ask(self, method: str, path: str, status: int, body: Any = None,
            **headers: str) -> requests.Response:
        """The answer, which must have that status, and errors as they have to be."""
        url = path if path.startswith("/") else f"/v2/{self.name}/{path}"
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        answer = requests.request(method, self.server.url + url, data=body, headers=named,
                                  timeout=60, allow_redirects=False)
        assert answer.status_code == status, (answer.status_code, answer.text)
        if status >= 400 and method != "HEAD":
            for error in answer.json()["errors"]:
                assert error["code"] in CODES | {"TAG_INVALID"}
        return answer

    def refused(self, method: str, path: str, status: int, code: str, body: Any = None,
                **headers: str) -> requests.Response:
        answer = self.ask(method, path, status, body, **headers)
        assert [error["code"] for error in answer.json()["errors"]] == [code]
        return answer

    def blob(self, content: bytes) -> str:
        self.client.push_blob(self.name, digest_of(content), content)
        return digest_of(content)

    def begin(self) -> str:
        """The location of a new upload."""
        return self.ask("POST", "blobs/uploads/", 202).headers["Location"]

    def push(self, what: Bundle, tag: str | None = None) -> Bundle:
        self.client.push(self.name, what, tag)
        return what

    def put(self, document: dict[str, Any], reference: str, status: int = 201) -> requests.Response:
        kind = document.get("mediaType", MANIFEST)
        return self.ask("PUT", f"manifests/{reference}", status, serialize(document),
                        Content_Type=kind)


@pytest.fixture
def repository(server: Served) -> Repository:
    made = Repository(server)
    made.blob(b"{}")  # So it exists.
    return made


def some_image(name: str = "program") -> Bundle:
    return image([("base", 3000), (name, 2000)])


def sha512_of(content: bytes) -> str:
    return "sha512:" + hashlib.sha512(content).hexdigest()


# Determining support


def test_the_base_says_that_this_is_a_registry_end_1(repository: Repository) -> None:
    answer = repository.ask("GET", "/v2/", 200)
    assert answer.headers["Docker-Distribution-API-Version"] == "registry/2.0"


# Pull: manifests, end-3


def test_a_manifest_is_pulled_by_tag_and_by_digest_as_it_was_pushed(repository: Repository) -> None:
    pushed = repository.push(some_image(), "v1")
    for reference in ("v1", pushed.digest):
        answer = repository.ask("GET", f"manifests/{reference}", 200, Accept=MANIFEST)
        assert answer.content == pushed.top
        assert answer.headers["Docker-Content-Digest"] == pushed.digest  # [recommended]


def test_its_content_type_is_what_was_pushed_without_parameters(repository: Repository) -> None:
    one = repository.push(some_image(), "v1")
    repository.push(platforms({"amd64": one}), "list")
    for reference, media_type in (("v1", MANIFEST), ("list", INDEX)):
        for method in ("GET", "HEAD"):
            answer = repository.ask(method, f"manifests/{reference}", 200)
            assert answer.headers["Content-Type"] == media_type


def test_parameters_of_the_content_type_that_is_pushed_are_ignored(repository: Repository) -> None:
    config = repository.blob(b"{}")
    document = {"schemaVersion": 2, "layers": [],
                "config": {"mediaType": EMPTY, "digest": config, "size": 2}}
    repository.ask("PUT", "manifests/v1", 201, serialize(document),
                   Content_Type=f"{MANIFEST}; charset=utf-8")
    assert repository.ask("GET", "manifests/v1", 200).headers["Content-Type"] == MANIFEST


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("reference", ["missing", NOWHERE])
def test_a_manifest_that_is_not_there_is_not_found(
    repository: Repository, method: str, reference: str
) -> None:
    answer = repository.ask(method, f"manifests/{reference}", 404)
    assert method == "HEAD" or answer.json()["errors"][0]["code"] == "MANIFEST_UNKNOWN"


def test_a_manifest_of_another_repository_is_not_found(
    repository: Repository, server: Served
) -> None:
    pushed = repository.push(some_image(), "v1")
    other = Repository(server)
    other.blob(b"x")
    other.refused("GET", f"manifests/{pushed.digest}", 404, "MANIFEST_UNKNOWN")


@pytest.mark.parametrize("path", ["manifests/v1", f"manifests/{NOWHERE}", f"blobs/{NOWHERE}",
                                  "tags/list"])
def test_a_repository_that_is_not_there_is_not_found(server: Served, path: str) -> None:
    Repository(server).refused("GET", path, 404, "NAME_UNKNOWN")


def test_head_tells_digest_and_length_of_a_manifest_end_3(repository: Repository) -> None:
    pushed = repository.push(some_image(), "v1")
    for reference in ("v1", pushed.digest):
        answer = repository.ask("HEAD", f"manifests/{reference}", 200)
        assert answer.content == b""
        assert answer.headers["Docker-Content-Digest"] == pushed.digest  # [recommended]
        assert answer.headers["Content-Length"] == str(len(pushed.top))  # [recommended]


# Pull: blobs, end-2


@pytest.mark.parametrize("content", [b"", b"{}", b"x" * 3_000_000], ids=["empty", "json", "big"])
def test_a_blob_is_pulled_as_it_was_pushed_end_2(repository: Repository, content: bytes) -> None:
    digest = repository.blob(content)
    answer = repository.ask("GET", f"blobs/{digest}", 200)
    assert answer.content == content
    assert answer.headers["Docker-Content-Digest"] == digest
    assert answer.headers["Content-Length"] == str(len(content))
    head = repository.ask("HEAD", f"blobs/{digest}", 200)
    assert (head.content, head.headers["Content-Length"]) == (b"", str(len(content)))
    assert head.headers["Docker-Content-Digest"] == digest


def test_a_blob_that_is_not_there_is_not_found(repository: Repository) -> None:
    repository.refused("GET", f"blobs/{NOWHERE}", 404, "BLOB_UNKNOWN")
    repository.ask("HEAD", f"blobs/{NOWHERE}", 404)


def test_a_blob_of_another_repository_is_not_found(repository: Repository, server: Served) -> None:
    digest = repository.blob(b"only there")
    other = Repository(server)
    other.blob(b"x")
    other.refused("GET", f"blobs/{digest}", 404, "BLOB_UNKNOWN")


@pytest.mark.parametrize(("asked", "start", "end"), [
    ("500-1499", 500, 1500), ("500-", 500, 2048), ("-500", 1548, 2048), ("2000-5000", 2000, 2048),
    ("0-0", 0, 1), ("-5000", 0, 2048), (f"500-{MANY_DIGITS}", 500, 2048),
    (f"-{MANY_DIGITS}", 0, 2048)])
def test_a_part_of_a_blob_is_pulled(
    repository: Repository, asked: str, start: int, end: int
) -> None:
    """[recommended]"""
    content = bytes(number % 251 for number in range(2048))
    digest = repository.blob(content)
    answer = repository.ask("GET", f"blobs/{digest}", 206, Range=f"bytes={asked}")
    assert answer.content == content[start:end]
    assert answer.headers["Content-Range"] == f"bytes {start}-{end - 1}/2048"
    assert answer.headers["Content-Length"] == str(end - start)


@pytest.mark.parametrize("asked", ["500-0", "5000-10000", "2048-", "-0",
                                   f"{MANY_DIGITS}-"])
def test_a_part_that_a_blob_has_not_cannot_be_pulled(repository: Repository, asked: str) -> None:
    digest = repository.blob(b"x" * 2048)
    answer = repository.ask("GET", f"blobs/{digest}", 416, Range=f"bytes={asked}")
    assert answer.headers["Content-Range"] == "bytes */2048"


@pytest.mark.parametrize("asked", ["bytes=0-1,4-5", "lines=0-1", "bytes=-", "bytes=x-y"])
def test_a_range_that_is_not_understood_is_ignored(repository: Repository, asked: str) -> None:
    digest = repository.blob(b"hello")
    assert repository.ask("GET", f"blobs/{digest}", 200, Range=asked).content == b"hello"


# Push: blobs at once, end-4b and end-6


def test_a_blob_is_pushed_by_post_and_put_end_4a_end_6(repository: Repository) -> None:
    begun = repository.ask("POST", "blobs/uploads/", 202)
    location = begun.headers["Location"]
    assert re.search("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-", location)
    digest = digest_of(b"post and put")
    done = repository.ask("PUT", f"{location}?digest={digest}", 201, b"post and put",
                          Content_Type="application/octet-stream")
    assert done.headers["Docker-Content-Digest"] == digest
    assert repository.ask("GET", done.headers["Location"], 200).content == b"post and put"


def test_two_uploads_have_two_locations(repository: Repository) -> None:
    assert repository.begin() != repository.begin()


def test_a_blob_is_pushed_by_one_post_end_4b(repository: Repository) -> None:
    digest = digest_of(b"one post")
    done = repository.ask("POST", f"blobs/uploads/?digest={digest}", 201, b"one post",
                          Content_Type="application/octet-stream")
    assert repository.ask("GET", done.headers["Location"], 200).content == b"one post"


def test_who_pushes_to_a_new_repository_creates_it(server: Served) -> None:
    fresh = Repository(server)
    fresh.ask("POST", "blobs/uploads/", 202)
    assert fresh.ask("GET", "tags/list", 200).json() == {"name": fresh.name, "tags": []}


def test_a_blob_may_have_a_sha512(repository: Repository) -> None:
    digest = sha512_of(b"longer")
    location = repository.begin()
    repository.ask("PUT", f"{location}?digest={digest}", 201, b"longer")
    assert repository.ask("GET", f"blobs/{digest}", 200).content == b"longer"
    repository.refused("GET", f"blobs/{digest_of(b'longer')}", 404, "BLOB_UNKNOWN")


def test_a_blob_that_is_there_can_be_pushed_again(repository: Repository) -> None:
    digest = repository.blob(b"twice")
    repository.ask("PUT", f"{repository.begin()}?digest={digest}", 201, b"twice")
    assert repository.ask("GET", f"blobs/{digest}", 200).content == b"twice"


@pytest.mark.parametrize("how", ["post", "put", "chunked"])
def test_a_blob_with_another_digest_is_refused(repository: Repository, how: str) -> None:
    digest = digest_of(b"what was meant")
    if how == "post":
        repository.refused("POST", f"blobs/uploads/?digest={digest}", 400, "DIGEST_INVALID", b"?")
    else:
        location = repository.begin()
        if how == "chunked":
            repository.ask("PATCH", location, 202, b"what")
        repository.refused("PUT", f"{location}?digest={digest}", 400, "DIGEST_INVALID", b"?")
        repository.refused("GET", location, 404, "BLOB_UPLOAD_UNKNOWN")
    repository.refused("GET", f"blobs/{digest}", 404, "BLOB_UNKNOWN")


@pytest.mark.parametrize("digest", ["", "sha256:abc", "md5:" + "0" * 32, "sha256:" + "A" * 64])
def test_what_is_not_a_digest_is_refused(repository: Repository, digest: str) -> None:
    repository.refused("PUT", f"{repository.begin()}?digest={digest}", 400, "DIGEST_INVALID", b"x")
    if digest:
        repository.refused("GET", f"blobs/{digest}", 400, "DIGEST_INVALID")


# Push: blobs in chunks, end-5, end-6, end-13


def test_a_blob_is_pushed_in_chunks_end_5(repository: Repository) -> None:
    content, location, end = b"0123456789" * 1000, repository.begin(), 0
    for start, end in ((0, 4000), (4000, 9000), (9000, 10000)):
        answer = repository.ask("PATCH", location, 202, content[start:end],
                                Content_Range=f"{start}-{end - 1}")
        assert answer.headers["Range"] == f"0-{end - 1}"
        location = answer.headers["Location"]
    done = repository.ask("PUT", f"{location}?digest={digest_of(content)}", 201)
    assert repository.ask("GET", done.headers["Location"], 200).content == content


def test_the_last_chunk_may_come_with_the_put(repository: Repository) -> None:
    location = repository.begin()
    repository.ask("PATCH", location, 202, b"first ", Content_Range="0-5")
    done = repository.ask("PUT", f"{location}?digest={digest_of(b'first last')}", 201, b"last",
                          Content_Range="6-9")
    assert repository.ask("GET", done.headers["Location"], 200).content == b"first last"


def test_a_blob_is_streamed_without_a_length(repository: Repository) -> None:
    location, content = repository.begin(), b"x" * 100_000
    repository.ask("PATCH", location, 202, iter([content[:60_000], content[60_000:]]))
    repository.ask("PUT", f"{location}?digest={digest_of(content)}", 201)
    assert repository.ask("GET", f"blobs/{digest_of(content)}", 200).content == content


@pytest.mark.parametrize("claimed", ["5-9", "0-3", "11-13", "bytes=3-5", "x", "5-3",
                                     f"{MANY_DIGITS}-{MANY_DIGITS}"])
@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_a_chunk_out_of_order_is_refused_and_one_can_go_on(
    repository: Repository, method: str, claimed: str
) -> None:
    location = repository.begin()
    repository.ask("PATCH", location, 202, b"abc", Content_Range="0-2")
    target = f"{location}?digest={digest_of(b'abcdef')}" if method == "PUT" else location
    refused = repository.refused(method, target, 416, "BLOB_UPLOAD_INVALID", b"def",
                                 Content_Range=claimed)
    assert refused.headers["Range"] == "0-2"
    answer = repository.ask("GET", refused.headers["Location"], 204)
    assert answer.headers["Range"] == "0-2"
    repository.ask("PUT", f"{answer.headers['Location']}?digest={digest_of(b'abcdef')}", 201,
                   b"def", Content_Range="3-5")


def test_the_state_of_an_upload_can_be_asked_for_end_13(repository: Repository) -> None:
    location = repository.begin()
    assert repository.ask("GET", location, 204).headers["Range"] == "0-0"
    repository.ask("PATCH", location, 202, b"12345678")
    answer = repository.ask("GET", location, 204)
    assert (answer.headers["Range"], answer.headers["Location"]) == ("0-7", location)


def test_an_upload_can_be_given_up(repository: Repository) -> None:
    location = repository.begin()
    repository.ask("DELETE", location, 204)
    for method in ("GET", "PATCH", "DELETE"):
        repository.refused(method, location, 404, "BLOB_UPLOAD_UNKNOWN")
    repository.refused("PUT", f"{location}?digest={digest_of(b'')}", 404, "BLOB_UPLOAD_UNKNOWN")


@pytest.mark.parametrize("upload", ["no-uuid", "..", "%2e%2e%2fx",
                                    "00000000-0000-4000-8000-000000000000"])
def test_an_upload_that_was_never_begun_is_unknown(repository: Repository, upload: str) -> None:
    answer = repository.ask("PATCH", f"blobs/uploads/{upload}", 404, b"x")
    assert answer.json()["errors"][0]["code"] in ("BLOB_UPLOAD_UNKNOWN", "UNSUPPORTED")


def test_an_upload_is_known_in_its_own_repository_only(
    repository: Repository, server: Served
) -> None:
    other = Repository(server)
    other.blob(b"x")
    location = repository.begin().replace(repository.name, other.name)
    other.refused("PATCH", location, 404, "BLOB_UPLOAD_UNKNOWN", b"x")


def test_an_upload_survives_a_restart_of_the_server(
    repository: Repository, server: Served
) -> None:
    location = repository.begin()
    repository.ask("PATCH", location, 202, b"before ")
    server.stop()
    server.start()
    assert repository.ask("GET", location, 204).headers["Range"] == "0-6"
    repository.ask("PUT", f"{location}?digest={digest_of(b'before and after')}", 201, b"and after")


def test_two_requests_cannot_send_to_one_upload_at_a_time(repository: Repository) -> None:
    location, may_end, has_begun = repository.begin(), threading.Event(), threading.Event()

    def slowly() -> Iterator[bytes]:
        yield b"x" * 100
        has_begun.set()
        may_end.wait(20)
        yield b"y" * 100

    sending = threading.Thread(target=lambda: repository.ask("PATCH", location, 202, slowly()))
    sending.start()
    has_begun.wait(20)
    while repository.ask("GET", location, 204).headers["Range"] == "0-0":
        if not sending.is_alive():
            break
        answer = requests.patch(repository.server.url + location, data=b"", timeout=20)
        if answer.status_code == 409:
            break
    repository.refused("PATCH", location, 409, "BLOB_UPLOAD_INVALID", b"z")
    may_end.set()
    sending.join()
    assert repository.ask("GET", location, 204).headers["Range"] == "0-199"


# Push: mounting, end-11


def test_a_blob_is_mounted_from_another_repository_end_11(
    repository: Repository, server: Served
) -> None:
    digest, other = repository.blob(b"shared"), Repository(server)
    done = other.ask("POST", f"blobs/uploads/?mount={digest}&from={repository.name}", 201)
    assert done.headers["Docker-Content-Digest"] == digest
    assert other.ask("GET", done.headers["Location"], 200).content == b"shared"


@pytest.mark.parametrize("source", ["&from=no/where", "&from=Not%20A%20Name", ""])
def test_what_cannot_be_mounted_is_uploaded(repository: Repository, source: str) -> None:
    digest = digest_of(b"not mounted")
    begun = repository.ask("POST", f"blobs/uploads/?mount={digest}{source}", 202)
    repository.ask("PUT", f"{begun.headers['Location']}?digest={digest}", 201, b"not mounted")


def test_a_blob_that_the_source_has_not_is_not_mounted(
    repository: Repository, server: Served
) -> None:
    """It may be in the store: who cannot say where has no right to it."""
    digest, other, third = repository.blob(b"secret"), Repository(server), Repository(server)
    other.blob(b"x")
    third.ask("POST", f"blobs/uploads/?mount={digest}&from={other.name}", 202)
    third.refused("GET", f"blobs/{digest}", 404, "BLOB_UNKNOWN")


# Push: manifests, end-7


def test_a_manifest_is_pushed_by_tag_and_by_digest_end_7(repository: Repository) -> None:
    pushed = repository.push(some_image())
    for reference in ("v1", pushed.digest):
        done = repository.ask("PUT", f"manifests/{reference}", 201, pushed.top,
                              Content_Type=MANIFEST)
        assert done.headers["Docker-Content-Digest"] == pushed.digest
        assert repository.ask("GET", done.headers["Location"], 200).content == pushed.top


def test_a_manifest_may_have_a_sha512_and_tags_with_it(repository: Repository) -> None:
    top = some_image("longer").top
    repository.push(some_image("longer"))
    done = repository.ask("PUT", f"manifests/{sha512_of(top)}?tag=b&tag=a", 201, top,
                          Content_Type=MANIFEST)
    assert done.headers["Docker-Content-Digest"] == sha512_of(top)
    assert done.headers["OCI-Tag"] == "a, b"
    for tag in ("a", "b"):
        answer = repository.ask("GET", f"manifests/{tag}", 200)
        assert answer.headers["Docker-Content-Digest"] == sha512_of(top)


def test_a_manifest_with_a_tag_that_cannot_be_is_not_pushed_at_all(repository: Repository) -> None:
    document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": []}
    digest = digest_of(serialize(document))
    repository.put(document, f"{digest}?tag=good&tag=b%20d", 400)
    repository.refused("GET", f"manifests/{digest}", 404, "MANIFEST_UNKNOWN")


def test_a_tag_can_be_moved(repository: Repository) -> None:
    repository.push(some_image("old"), "v1")
    new = repository.push(some_image("new"), "v1")
    assert repository.ask("GET", "manifests/v1", 200).content == new.top


def test_a_manifest_may_have_no_layers(repository: Repository) -> None:
    repository.push(image([]), "v1")
    assert repository.client.pull(repository.name, "v1").digest == image([]).digest


def test_bytes_that_mean_nothing_are_kept(repository: Repository) -> None:
    document = {"schemaVersion": 2, "mediaType": MANIFEST, "unknown": {"a": 1}, "layers": [],
                "config": descriptor(EMPTY, b"{}")}
    content = json.dumps(document, indent=7).encode() + b" \n"
    repository.ask("PUT", "manifests/v1", 201, content, Content_Type=MANIFEST)
    assert repository.ask("GET", "manifests/v1", 200).content == content


def test_a_manifest_may_have_a_number_of_very_many_digits(repository: Repository) -> None:
    """Push is answered as it came out: the manifest is there, and the client is told so."""
    content = serialize({"schemaVersion": 2, "mediaType": MANIFEST, "layers": [], "unknown": 1,
                         "config": descriptor(EMPTY, b"{}")})
    content = re.sub(rb'("unknown": ?)1', rb"\g<1>" + MANY_DIGITS.encode(), content)
    repository.ask("PUT", "manifests/v1", 201, content, Content_Type=MANIFEST)
    assert repository.ask("GET", "manifests/v1", 200).content == content


def test_a_manifest_that_is_nested_too_deeply_is_refused(repository: Repository) -> None:
    """PostgreSQL reads more levels than Python, so it is not stored either."""
    nested = b'{"schemaVersion": 2, "layers": [], "config": %s, "more": %s}' % (
        serialize(descriptor(EMPTY, b"{}")), b"[" * 3000 + b"]" * 3000)
    repository.refused("PUT", "manifests/v1", 400, "MANIFEST_INVALID", nested,
                       Content_Type=MANIFEST)
    repository.ask("GET", "manifests/v1", 404)


def test_a_manifest_of_nearly_4_mebibytes_is_accepted(repository: Repository) -> None:
    """[recommended]"""
    document = {"schemaVersion": 2, "mediaType": MANIFEST, "layers": [],
                "config": descriptor(EMPTY, b"{}"),
                "annotations": {f"note-{number}": "A" * 10_000 for number in range(390)}}
    repository.put(document, "large")
    assert repository.ask("GET", "manifests/large", 200).content == serialize(document)


def test_a_manifest_of_more_is_too_large(repository: Repository) -> None:
    """[recommended]"""
    content = io.BytesIO(b" " * (4 * 1024 * 1024 + 1))
    repository.refused("PUT", "manifests/larger", 413, "MANIFEST_INVALID", content)


@pytest.mark.parametrize("member", ["config", "layers"])
def test_a_manifest_whose_blobs_are_not_there_is_refused(
    repository: Repository, member: str
) -> None:
    missing = descriptor(LAYER, b"nobody has pushed this")
    document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor(EMPTY, b"{}"),
                "layers": []} | {member: missing if member == "config" else [missing]}
    answer = repository.put(document, "sparse", 404)
    assert answer.json()["errors"][0]["code"] == "MANIFEST_BLOB_UNKNOWN"


def test_a_list_whose_manifests_are_not_there_is_refused(repository: Repository) -> None:
    document = {"schemaVersion": 2, "mediaType": INDEX,
                "manifests": [descriptor(MANIFEST, b"nowhere")]}
    answer = repository.put(document, "sparse", 404)
    assert answer.json()["errors"][0]["code"] == "MANIFEST_BLOB_UNKNOWN"


def test_layers_that_are_not_distributed_need_not_be_there(repository: Repository) -> None:
    foreign = descriptor("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", b"far",
                         urls=["https://store.example.com/far"])
    repository.put({"schemaVersion": 2, "mediaType": MANIFEST,
                    "config": descriptor(EMPTY, b"{}"), "layers": [foreign]}, "v1")


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b'{"schemaVersion": 1}'])
def test_what_is_not_a_manifest_is_refused(repository: Repository, content: bytes) -> None:
    repository.refused("PUT", "manifests/v1", 400, "MANIFEST_INVALID", content)


def test_a_manifest_is_not_pushed_under_another_digest(repository: Repository) -> None:
    pushed = repository.push(some_image())
    repository.refused("PUT", f"manifests/{pushed.digest}", 400, "DIGEST_INVALID",
                       pushed.top + b"  ", Content_Type=MANIFEST)
    repository.refused("PUT", "manifests/sha256:baddigeststring", 400, "DIGEST_INVALID",
                       pushed.top, Content_Type=MANIFEST)
    repository.refused("GET", "manifests/sha256:baddigeststring", 400, "DIGEST_INVALID")


@pytest.mark.parametrize("tag", ["-a", ".a", "a" * 129, "%C3%A4", "a%20b"])
def test_what_is_not_a_tag_is_refused(repository: Repository, tag: str) -> None:
    repository.refused("PUT", f"manifests/{tag}", 400, "TAG_INVALID", some_image().top)


@pytest.mark.parametrize("tag", ["a", "_", "A.b-c_9", "a" * 128])
def test_what_is_a_tag_is_accepted(repository: Repository, tag: str) -> None:
    repository.push(some_image(), tag)
    assert repository.ask("GET", "tags/list", 200).json()["tags"] == [tag]


def test_lists_may_be_nested_or_empty(repository: Repository) -> None:
    both = platforms({"amd64": image([("a", 10)]), "arm64": image([("b", 10)], "arm64")})
    outer = platforms({"amd64": both, "arm64": platforms({})})
    repository.push(outer, "nested")
    assert repository.client.pull(repository.name, "nested") == outer


def test_descriptors_may_carry_their_data(repository: Repository) -> None:
    document = {"schemaVersion": 2, "mediaType": MANIFEST, "layers": [],
                "config": descriptor(EMPTY, b"{}", data="e30=")}
    repository.put(document, "v1")
    assert repository.ask("GET", "manifests/v1", 200).content == serialize(document)


# Push: manifests with a subject


def test_a_manifest_with_a_subject_is_answered_with_it(repository: Repository) -> None:
    subject = repository.push(some_image(), "v1")
    signed = signature(subject, "me")
    for digest, content in signed.blobs.items():
        repository.client.push_blob(repository.name, digest, content)
    done = repository.ask("PUT", f"manifests/{signed.digest}", 201, signed.top,
                          Content_Type=MANIFEST)
    assert done.headers["OCI-Subject"] == subject.digest


def test_a_manifest_without_a_subject_is_answered_without(repository: Repository) -> None:
    pushed = repository.push(some_image())
    done = repository.ask("PUT", "manifests/v1", 201, pushed.top, Content_Type=MANIFEST)
    assert "OCI-Subject" not in done.headers


def test_a_manifest_may_come_before_its_subject(repository: Repository) -> None:
    subject = some_image()
    signed = repository.push(signature(subject, "me"))
    assert repository.client.referrers(repository.name, subject.digest) == [signed.digest]
    repository.push(subject, "v1")
    assert repository.client.referrers(repository.name, subject.digest) == [signed.digest]


# Content discovery: tags, end-8


def test_tags_are_listed_in_order_end_8a(repository: Repository) -> None:
    """As ASCII orders them, which is what the conformance suite expects of `last`."""
    assert repository.ask("GET", "tags/list", 200).json()["tags"] == []
    names = ["v2", "v10", "B", "a", "_"]
    for name in names:
        repository.push(image([]), name)
    answer = repository.ask("GET", "tags/list", 200)
    assert answer.json() == {"name": repository.name, "tags": sorted(names)}
    assert answer.headers["Content-Type"] == "application/json"


def test_tags_are_listed_in_pages_end_8b(repository: Repository) -> None:
    names = [f"v{number}" for number in range(5)]
    for name in names:
        repository.push(image([]), name)
    first = repository.ask("GET", "tags/list?n=2", 200)
    assert first.json()["tags"] == names[:2]
    assert first.links["next"]["url"] == f"/v2/{repository.name}/tags/list?n=2&last=v1"
    last = repository.ask("GET", "tags/list?n=3&last=v1", 200)
    assert (last.json()["tags"], last.links) == (names[2:], {})
    assert repository.ask("GET", "tags/list?last=v3", 200).json()["tags"] == ["v4"]
    assert repository.ask("GET", "tags/list?last=v4", 200).json()["tags"] == []
    assert repository.client.tags(repository.name) == names


def test_a_page_of_no_tags_is_empty_and_has_no_link(repository: Repository) -> None:
    repository.push(image([]), "v1")
    answer = repository.ask("GET", "tags/list?n=0", 200)
    assert (answer.json()["tags"], answer.links) == ([], {})


@pytest.mark.parametrize("n", ["-1", "x", "", "1.5", "%D9%A1"])
def test_a_page_has_a_number_of_tags(repository: Repository, n: str) -> None:
    repository.refused("GET", f"tags/list?n={n}", 400, "UNSUPPORTED")


@pytest.mark.parametrize("n", [MANY_DIGITS, "0" * 5000 + "1"])
def test_a_page_may_be_asked_for_with_very_many_digits(repository: Repository, n: str) -> None:
    repository.push(image([]), "v1")
    assert repository.ask("GET", f"tags/list?n={n}", 200).json()["tags"] == ["v1"]


def test_repositories_are_listed_in_pages(repository: Repository, server: Served) -> None:
    """Not of the specification, and every client knows it."""
    names = repository.client.repositories()
    assert repository.name in names and names == sorted(names)
    before = names[names.index(repository.name) - 1]
    answer = repository.ask("GET", f"/v2/_catalog?n=1&last={before}", 200)
    assert answer.json()["repositories"] == [repository.name]


# Content discovery: referrers, end-12


def test_referrers_are_listed_with_type_and_annotations_end_12a(repository: Repository) -> None:
    subject = repository.push(some_image(), "v1")
    signed = repository.push(signature(subject, "me"))
    answer = repository.ask("GET", f"referrers/{subject.digest}", 200)
    assert answer.headers["Content-Type"] == INDEX
    assert "OCI-Filters-Applied" not in answer.headers
    assert answer.json() == {
        "schemaVersion": 2, "mediaType": INDEX,
        "manifests": [signed.describe(artifactType="application/vnd.example.signature",
                                      annotations={"org.example.signer": "me"})]}


def test_the_type_of_a_referrer_is_that_of_its_configuration_if_it_has_none(
    repository: Repository
) -> None:
    subject = repository.push(some_image())
    repository.blob(b"config")
    repository.put({"schemaVersion": 2, "mediaType": MANIFEST, "layers": [],
                    "config": descriptor(CONFIG, b"config"), "subject": subject.describe()}, "sbom")
    (found,) = repository.ask("GET", f"referrers/{subject.digest}", 200).json()["manifests"]
    assert found["artifactType"] == CONFIG


def test_a_list_may_be_a_referrer_and_has_no_type_of_its_own(repository: Repository) -> None:
    subject = repository.push(some_image())
    repository.put({"schemaVersion": 2, "mediaType": INDEX, "manifests": [],
                    "subject": subject.describe()}, "list")
    (found,) = repository.ask("GET", f"referrers/{subject.digest}", 200).json()["manifests"]
    assert found["mediaType"] == INDEX and "artifactType" not in found


def test_referrers_are_filtered_by_type_end_12b(repository: Repository) -> None:
    subject = repository.push(some_image())
    signed = repository.push(signature(subject, "me"))
    for kind, expected in (("application/vnd.example.signature", [signed.digest]), ("other", [])):
        answer = repository.ask("GET", f"referrers/{subject.digest}?artifactType={kind}", 200)
        assert [each["digest"] for each in answer.json()["manifests"]] == expected
        assert answer.headers["OCI-Filters-Applied"] == "artifactType"


def test_referrers_are_listed_in_pages(repository: Repository) -> None:
    subject = repository.push(some_image())
    signed = {repository.push(signature(subject, f"signer {number}")).digest for number in range(5)}
    kind = "artifactType=application/vnd.example.signature"
    paths = repository.client.pages(f"/v2/{repository.name}/referrers/{subject.digest}?n=2&{kind}")
    pages = [[each["digest"] for each in page["manifests"]] for page in paths]
    assert [len(page) for page in pages] == [2, 2, 1]
    assert {digest for page in pages for digest in page} == signed


def test_a_page_of_referrers_is_no_longer_than_a_manifest(repository: Repository) -> None:
    """Each may have annotations of 4 MiB, and a page may have 1,000 of them."""
    repository.blob(b"{}")
    digests = set()
    for note in "abc":
        document = {"schemaVersion": 2, "mediaType": MANIFEST, "layers": [],
                    "config": descriptor(EMPTY, b"{}"), "annotations": {"note": note * 2_500_000},
                    "subject": {"mediaType": MANIFEST, "digest": NOWHERE, "size": 1}}
        digests.add(digest_of(serialize(document)))
        repository.put(document, f"about-{note}")
    found, path = [], f"referrers/{NOWHERE}"
    for _ in digests:
        answer = repository.ask("GET", path, 200)
        assert len(answer.content) < 4 * 1024 * 1024
        found += [one["digest"] for one in answer.json()["manifests"]]
        path = answer.links["next"]["url"] if "next" in answer.links else ""
    assert len(found) == 3 and set(found) == digests and path == ""


def test_of_what_is_not_there_an_empty_list_is_returned(
    repository: Repository, server: Served
) -> None:
    for where in (repository, Repository(server)):
        answer = where.ask("GET", f"referrers/{NOWHERE}", 200)
        assert answer.json()["manifests"] == []


def test_what_is_not_a_digest_has_no_referrers(repository: Repository) -> None:
    repository.refused("GET", "referrers/sha256:abc", 400, "DIGEST_INVALID")


# Content management, end-9 and end-10


def test_a_tag_is_deleted_and_its_manifest_stays_end_9(repository: Repository) -> None:
    pushed = repository.push(some_image(), "v1")
    repository.ask("DELETE", "manifests/v1", 202)
    repository.refused("GET", "manifests/v1", 404, "MANIFEST_UNKNOWN")
    repository.refused("DELETE", "manifests/v1", 404, "MANIFEST_UNKNOWN")
    repository.ask("GET", f"manifests/{pushed.digest}", 200)


def test_a_manifest_is_deleted_with_its_tags_end_9(repository: Repository) -> None:
    pushed = repository.push(some_image(), "v1")
    repository.ask("DELETE", f"manifests/{pushed.digest}", 202)
    for reference in ("v1", pushed.digest):
        repository.refused("GET", f"manifests/{reference}", 404, "MANIFEST_UNKNOWN")
    repository.refused("DELETE", f"manifests/{pushed.digest}", 404, "MANIFEST_UNKNOWN")
    assert repository.client.tags(repository.name) == []


def test_a_manifest_that_a_list_has_is_not_deleted(repository: Repository) -> None:
    child = some_image()
    both = repository.push(platforms({"amd64": child}), "v1")
    repository.refused("DELETE", f"manifests/{child.digest}", 405, "DENIED")
    repository.ask("DELETE", f"manifests/{both.digest}", 202)
    repository.ask("DELETE", f"manifests/{child.digest}", 202)


def test_a_deleted_referrer_is_not_listed_any_more(repository: Repository) -> None:
    subject = repository.push(some_image())
    signed = repository.push(signature(subject, "me"))
    repository.ask("DELETE", f"manifests/{signed.digest}", 202)
    assert repository.client.referrers(repository.name, subject.digest) == []


def test_a_blob_is_deleted_from_its_repository_end_10(
    repository: Repository, server: Served
) -> None:
    digest, other = repository.blob(b"to be deleted"), Repository(server)
    other.blob(b"to be deleted")
    repository.ask("DELETE", f"blobs/{digest}", 202)
    repository.refused("GET", f"blobs/{digest}", 404, "BLOB_UNKNOWN")
    repository.refused("DELETE", f"blobs/{digest}", 404, "BLOB_UNKNOWN")
    other.ask("GET", f"blobs/{digest}", 200)


def test_a_blob_that_a_manifest_uses_is_not_deleted(repository: Repository) -> None:
    pushed = repository.push(some_image(), "v1")
    for digest in pushed.blobs:
        repository.refused("DELETE", f"blobs/{digest}", 405, "DENIED")
    assert repository.client.pull(repository.name, "v1") == pushed


def test_what_is_in_a_repository_that_is_not_there_cannot_be_deleted(server: Served) -> None:
    for path in (f"manifests/{NOWHERE}", "manifests/v1", f"blobs/{NOWHERE}"):
        Repository(server).refused("DELETE", path, 404, "NAME_UNKNOWN")


# Errors, names


@pytest.mark.parametrize("name", ["Upper", "a//b", "-a", "a_-b", "a" * 256, "%2e%2e"])
def test_what_is_not_a_name_is_refused(repository: Repository, name: str) -> None:
    repository.refused("POST", f"/v2/{name}/blobs/uploads/", 400, "NAME_INVALID")


@pytest.mark.parametrize("name", ["a", "a/b/c/d/e", "a.b", "a__b", "a---b", "blobs/uploads/x",
                                  "a/manifests/b", "tags/list"])
def test_what_is_a_name_is_accepted(repository: Repository, name: str) -> None:
    repository.client.push(name, some_image(), "v1")
    assert repository.client.pull(name, "v1") == some_image()
    assert repository.client.tags(name) == ["v1"]


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "manifests/a%00b"), ("DELETE", "manifests/%00"), ("GET", "blobs/sha256:%00"),
    ("GET", "referrers/%00"), ("GET", f"referrers/{NOWHERE}?artifactType=%00"),
    ("GET", "tags/list?last=%00"), ("GET", "/v2/_catalog?last=%00"), ("GET", "/v2/%00/tags/list"),
    ("POST", "/v2/%00/blobs/uploads/"), ("POST", f"blobs/uploads/?mount={NOWHERE}&from=%00")])
def test_a_character_that_no_name_can_have_is_refused(
    repository: Repository, method: str, path: str
) -> None:
    repository.refused(method, path, 400, "UNSUPPORTED")


@pytest.mark.parametrize(("method", "path"), [("GET", "/v3/"), ("GET", "/v2/x/nothing"),
                                              ("POST", "manifests/v1"), ("PATCH", "tags/list")])
def test_what_is_not_known_is_answered_in_json(
    repository: Repository, method: str, path: str
) -> None:
    repository.refused(method, path, 405 if method != "GET" else 404, "UNSUPPORTED")


def test_every_error_of_the_preset_has_the_code_that_the_documents_say() -> None:
    table = re.findall(r"^\| `(Z[RG]\d+)` \| `(\w+)` \| (\d+) \|",
                       (ROOT / "docs/registry.md").read_text(), re.MULTILINE)
    assert {state: (code, int(status)) for state, code, status in table} == OF_THE_PRESET


def test_an_object_that_is_being_deleted_is_asked_for_again(
    repository: Repository, server: Served
) -> None:
    """429, and the same request succeeds once the object is gone: also one that has a body."""
    content = b"deleted at this moment"
    digest = repository.blob(content)
    repository.ask("DELETE", f"blobs/{digest}", 202)
    with server.connect() as conn:
        execute(conn, "delete from gc.holds")
        rows(conn, "delete from registry.blobs where digest = registry.digest_bytes(%s) "
                   "returning 1", digest)
        execute(conn, "update gc.tombstones set due_at = now()")
        ((tombstone,),) = rows(conn, "select id from gc.claim('worker') where label = %s", digest)
        location = repository.begin()
        refused = repository.refused("PUT", f"{location}?digest={digest}", 429, "TOOMANYREQUESTS",
                                     content)
        assert int(refused.headers["Retry-After"]) > 0
        assert value(conn, "select gc.confirm('worker', array[%s]::bigint[])", tombstone) == 1
    repository.ask("PUT", f"{location}?digest={digest}", 201, content)
    assert repository.ask("GET", f"blobs/{digest}", 200).content == content


def test_a_big_blob_passes_through_in_little_memory(
    repository: Repository, server: Served
) -> None:
    part, parts = bytes(1_000_000), 150
    digest = "sha256:" + hashlib.sha256(part * parts).hexdigest()
    before = peak_memory(server)
    location = repository.begin()
    repository.ask("PATCH", location, 202, itertools.repeat(part, parts))
    repository.ask("PUT", f"{location}?digest={digest}", 201)
    with requests.get(f"{server.url}/v2/{repository.name}/blobs/{digest}", timeout=60,
                      stream=True) as answer:
        assert sum(map(len, answer.iter_content(1_000_000))) == len(part) * parts
    assert peak_memory(server) - before < 30_000


def peak_memory(server: Served) -> int:
    """The most that the server ever had, in kilobytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+)", status)
    assert found
    return int(found.group(1))


def test_of_a_client_that_pulls_only_the_beginning_of_its_name_is_kept() -> None:
    """As much as rules for scanners look at. A header may be as long as a client likes."""
    pulls = Pulls(Registry("", 1))
    for n in range(3):
        pulls.note("acme/app", "v1", "curl" + "x" * 10**6 + str(n))
    assert pulls.waiting == {("acme/app", "v1", "curl" + "x" * 296)}


def test_an_upload_that_was_finished_before_it_was_locked_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is a blob by then."""
    session = Sessions(tmp_path / "uploads").create("test/app")
    lock = fcntl.flock

    def finish_and_lock(file: Any, how: int) -> None:
        session.path.rename(tmp_path / "blob")
        lock(file, how)

    monkeypatch.setattr("distribution.sessions.fcntl.flock", finish_and_lock)
    with pytest.raises(Refusal, match="no such upload"), session.appending() as file:
        file.write(b"this would destroy it")
    assert (tmp_path / "blob").read_bytes() == b""


def test_an_upload_that_nobody_goes_on_with_is_given_up(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path)
    old, new = sessions.create("test/app"), sessions.create("test/app")
    os.utime(old.path, (0, 0))
    sessions.expire(3600)
    assert (old.path.exists(), new.path.exists()) == (False, True)


def test_a_database_that_is_away_is_said_to_be(
    repository: Repository, server: Served
) -> None:
    """All connections of the server die, but only one request is told so."""
    ask = f"{server.url}/v2/{repository.name}/tags/list"
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda _: requests.get(ask, timeout=60), range(200)))
    with server.connect() as conn:
        execute(conn, f'alter role "{server.role}" nologin')
        rows(conn, "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s",
             server.role)
        try:
            answer = requests.get(ask, timeout=60)
            assert answer.status_code == 503 and "Retry-After" in answer.headers
        finally:
            execute(conn, f'alter role "{server.role}" login')
    repository.ask("GET", "tags/list", 200)
