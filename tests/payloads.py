"""Manifests, right ones and mutations of them, and what three readers find in them.

A document is made of Members, lists, and Raw: text as it stands, so that a name can occur twice and
a value can be what no library writes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

OCI = "application/vnd.oci.image."
DOCKER = "application/vnd.docker."
FOREIGN = f"{OCI}layer.nondistributable.v1.tar+gzip"
IMAGES = (f"{OCI}manifest.v1+json", f"{DOCKER}distribution.manifest.v2+json")
LISTS = (f"{OCI}index.v1+json", f"{DOCKER}distribution.manifest.list.v2+json")

sys.setrecursionlimit(20_000)  # For what is nested, and well-formed.


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


BLOBS = {digest_of(content): len(content) for content in (b"{}", b"base", b"layer", b"")}
STRANGERS = (digest_of(b"nobody has it"), "sha512:" + "0" * 128)


class Raw(str):
    """JSON as it is written."""


@dataclass
class Members:
    pairs: list[tuple[str, Any]] = field(default_factory=list)  # The names in their quotes.


def written(node: Any) -> str:
    if isinstance(node, Raw):
        return node
    if isinstance(node, Members):
        return "{" + ",".join(f"{name}:{written(member)}" for name, member in node.pairs) + "}"
    if isinstance(node, list):
        return "[" + ",".join(map(written, node)) + "]"
    return json.dumps(node)


def members(**given: Any) -> Members:
    return Members([(json.dumps(name), member) for name, member in given.items()
                    if member is not None])


# Right ones


def descriptors(digests: list[str], types: tuple[str, ...]) -> st.SearchStrategy[Members]:
    return st.builds(
        lambda digest, type: members(mediaType=type, digest=digest, size=BLOBS.get(digest, 1)),
        st.sampled_from(digests), st.sampled_from(types))


LAYERS = descriptors(list(BLOBS), (f"{OCI}layer.v1.tar", FOREIGN)) | descriptors(
    list(STRANGERS), (FOREIGN,))
CONFIGS = descriptors(list(BLOBS), (f"{OCI}config.v1+json",))
# Made anew for each document, because what is in it is changed.
ANNOTATIONS = st.none() | st.builds(lambda: members(note="é 😀", other=""))
EXTRA = st.none() | st.builds(lambda: [1, members(a=Raw("null"))])


def images(manifests: list[str]) -> st.SearchStrategy[Members]:
    subjects = st.none() | descriptors([*manifests, STRANGERS[0]], IMAGES)
    return st.builds(
        members, schemaVersion=st.just(2), mediaType=st.none() | st.sampled_from(IMAGES),
        config=CONFIGS, layers=st.lists(LAYERS, max_size=3), subject=subjects,
        annotations=ANNOTATIONS, extra=EXTRA)


def lists(manifests: list[str]) -> st.SearchStrategy[Members]:
    return st.builds(
        members, schemaVersion=st.just(2), mediaType=st.none() | st.sampled_from(LISTS),
        manifests=st.lists(descriptors(manifests, IMAGES), max_size=3), annotations=ANNOTATIONS)


# Mutations

ODD = tuple(map(Raw, (
    "null", "true", "2", "2.0", "2e0", "-0", "01", "1e999999", "-1", "NaN", "Infinity", "9" * 15,
    "9" * 16, "1" * 5000, '""', '"x"', "[]", "{}", "[[]]", '{"digest":null}', '"\\ud800"',
    '"\\u0000"', '"\\ud83d\\ude00"', '"\x01"', '"\\x"', "'x'", "", "1 2", '"sha256:"',
    '"SHA256:' + "0" * 64 + '"', '"sha256:' + "0" * 64 + '\\n"', '"sha256:' + "A" * 64 + '"',
    *(json.dumps(digest) for digest in (*BLOBS, *STRANGERS)),
    *(json.dumps(type) for type in (*IMAGES, *LISTS, FOREIGN)),
)))
RENAMES: tuple[Callable[[str], str], ...] = (
    str.upper, str.title, lambda name: name.replace("s", "\u017f"),
    lambda name: name.replace("k", "\u212a"), lambda name: name.replace("i", "\u0131"),
    lambda name: name.replace("d", "\\u0064", 1), lambda name: name.replace('"', '" ', 1),
    lambda name: name[:-1] + '\\u0000"', lambda name: '""', lambda name: '"__proto__"',
    lambda name: '"urls"', lambda name: '"layers"', lambda name: '"manifests"',
    lambda name: '"subject"', lambda name: '"config"', lambda name: '"blobs"',
)


def places(node: Any) -> list[tuple[Any, int]]:
    """Where something can be changed: in which list of members or elements, and the how manyth."""
    inside = node.pairs if isinstance(node, Members) else node if isinstance(node, list) else []
    found = [(inside, n) for n in range(len(inside))]
    for entry in list(inside):
        found += places(entry[1] if isinstance(node, Members) else entry)
    return found


def mutate(node: Members, thrown: tuple[int, int, int]) -> None:
    where, how, what = thrown
    found = places(node)
    if not found:
        return
    inside, n = found[where % len(found)]
    entry = inside[n]
    is_member = isinstance(entry, tuple)
    name, old = entry if is_member else ("", entry)
    odd = ODD[what % len(ODD)]
    if how == 0:
        inside.pop(n)
    elif how == 1 and is_member:
        inside.append((name, odd))
    elif how == 2 and is_member:
        inside.append((RENAMES[what % len(RENAMES)](name), odd))
    elif how == 3 and is_member:
        inside[n] = (RENAMES[what % len(RENAMES)](name), old)
    elif how == 4:
        deep = (10, 900, 100_000)[what % 3]
        nested = Raw("[" * deep + written(old) + "]" * deep)
        inside[n] = (name, nested) if is_member else nested
    elif how == 5:
        inside += [entry] * (what % 300)
    else:
        inside[n] = (name, odd) if is_member else odd


WRAPS: tuple[Callable[[bytes], bytes], ...] = (
    lambda text: b"\xef\xbb\xbf" + text, lambda text: text + b"\0", lambda text: text + b"{}",
    lambda text: b" \n\t" + text + b" \r\n", lambda text: text[:-1], lambda text: text + b"\xff",
    lambda text: text.decode().encode("utf-16"), lambda text: text.replace(b":", b"\xc2\xa0:", 1),
    lambda text: b"/* */" + text, lambda text: text.replace(b",", b",,", 1),
    lambda text: text.replace(b"sha256:", b"sha256:\xc0\x80", 1), lambda text: b"",
)


@dataclass(frozen=True)
class Payload:
    content: bytes
    is_right: bool


@st.composite
def payloads(draw: st.DrawFn, manifests: list[str]) -> Payload:
    document = draw(images(manifests) | lists(manifests))
    thrown = draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8), st.integers(0, 60)),
                           max_size=3))
    for numbers in thrown:
        mutate(document, numbers)
    content = written(document).encode("utf-8", errors="surrogatepass")
    wraps = draw(st.sampled_from((None, None, None, None, *WRAPS)))
    if wraps:
        content = wraps(content)
    return Payload(content, not thrown and not wraps)


# Readers


class Strange(ValueError):
    """A document that a reader does not understand."""


@dataclass(frozen=True)
class References:
    config: str | None
    layers: tuple[tuple[int, str, int, str], ...]  # Position, digest, size, media type.
    manifests: frozenset[str]
    subject: str | None


def first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


def any_case(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """As programs in Go read it: the last of all that are the same but for their case."""
    return {name.casefold(): member for name, member in pairs}


READERS: tuple[Callable[[list[tuple[str, Any]]], dict[str, Any]], ...] = (
    dict, first_wins, any_case)


def refuse_constant(name: str) -> None:
    raise Strange(name)


def read(payload: bytes, reader: Callable[[list[tuple[str, Any]]], dict[str, Any]]) -> References:
    document = json.loads(payload.decode(), object_pairs_hook=reader,
                          parse_constant=refuse_constant, parse_int=str, parse_float=str)
    folds = str.casefold if reader is any_case else str

    def member(of: dict[str, Any], name: str) -> Any:
        return of.get(folds(name))

    def digest(name: str) -> str | None:
        found = member(document, name)
        return None if found is None else str(member(found, "digest"))

    layers = tuple(
        (n, member(layer, "digest"), int(member(layer, "size")), member(layer, "mediaType"))
        for n, layer in enumerate(member(document, "layers") or (), start=1))
    return References(
        digest("config"), layers,
        frozenset(member(child, "digest") for child in member(document, "manifests") or ()),
        digest("subject"))
