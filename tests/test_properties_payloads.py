"""Generated manifests: one is stored with the references that every reader finds, or is refused.

Who pulls an image may read its manifest by other rules than the registry: of a name that occurs
twice the first or the last, and names in any case. All of them must find what is kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from conftest import Connection, execute, rows, value
from hypothesis import given
from hypothesis import strategies as st
from payloads import (
    BLOBS,
    IMAGES,
    LISTS,
    READERS,
    Payload,
    References,
    digest_of,
    payloads,
    read,
)
from properties import examples

SETUP = """
create extension blobgc;
select gc.create_registry(store => 's3://images');
select registry.create_repository('acme/app');
"""
# Known before there is a database: Hypothesis makes the strategies when the file is read.
PUSHED = [
    b'{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json",'
    b'"digest":"%s","size":2},"layers":[],"annotations":{"n":"%d"}}'
    % (digest_of(b"{}").encode(), n) for n in range(2)
]
MANIFESTS = [digest_of(payload) for payload in PUSHED]


@pytest.fixture(scope="module")
def conn() -> Iterator[Connection]:
    name = f"blobgc_payloads_{os.getpid()}"
    with psycopg.connect(autocommit=True) as server:
        execute(server, f"create database {name}")
        with psycopg.connect(dbname=name, autocommit=True) as conn:
            execute(conn, SETUP)
            for digest, size in BLOBS.items():
                value(conn, "select registry.begin_blob_upload('acme/app', %s)", digest)
                rows(conn, "select registry.finish_blob_upload('acme/app', %s, %s)", digest, size)
            for payload in PUSHED:
                value(conn, "select registry.put_manifest('acme/app', %s)", payload)
            execute(conn, "set statement_timeout = '10 s'")
            yield conn
        execute(server, f"drop database {name} with (force)")


@dataclass
class Tally:
    stored: int = 0
    refused: int = 0


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    found = Tally()
    yield found
    print(f"{found.stored} manifests stored, {found.refused} refused")


def stored(conn: Connection, digest: str, payload: bytes) -> References:
    """What the registry keeps for it."""
    ((id, config, subject, kept),) = rows(
        conn, "select id, registry.digest_text(configuration_blob_digest), "
        "registry.digest_text(subject_digest), payload from registry.manifests "
        "where digest = registry.digest_bytes(%s)", digest)
    assert kept == payload
    layers = rows(conn, "select position, registry.digest_text(digest), size, media_type "
                  "from registry.layers where manifest_id = %s order by 1", id)
    children = rows(conn, "select registry.digest_text(m.digest) from registry.manifest_references "
                    "as r join registry.manifests as m on m.id = r.child_id "
                    "where r.parent_id = %s", id)
    found: Any = tuple(layers)
    return References(config, found, frozenset(row[0] for row in children), subject)


def that_are_there(found: References) -> References:
    """Layers that are pulled from elsewhere need not be there."""
    return References(
        found.config if found.config in BLOBS else None,
        tuple(layer for layer in found.layers if layer[1] in BLOBS), found.manifests, found.subject)


@examples(120)
@given(payload=payloads(MANIFESTS), media_type=st.sampled_from((None, None, *IMAGES, *LISTS)),
       reference=st.sampled_from((None, "v1", "its digest", "sha256:x", "a b", "", "-x", "é")))
def test_a_manifest_is_stored_as_everybody_reads_it_or_refused(
    payload: Payload, media_type: str | None, reference: str | None, conn: Connection, tally: Tally
) -> None:
    if reference == "its digest":
        reference = digest_of(payload.content)
    with conn.transaction(force_rollback=True):
        try:
            with conn.transaction():
                digest = value(conn, "select registry.put_manifest('acme/app', %s, %s, %s)",
                               payload.content, reference, media_type)
        except psycopg.Error as error:
            assert (error.sqlstate or "").startswith("ZR"), (error.sqlstate, str(error))
            assert error.diag.message_hint
            is_plain = reference in (None, "v1", digest_of(payload.content)) and media_type is None
            assert not (payload.is_right and is_plain), str(error)
            tally.refused += 1
            return
        tally.stored += 1
        kept = stored(conn, digest, payload.content)
        for reader in READERS:
            assert that_are_there(read(payload.content, reader)) == kept, reader


def test_enough_was_stored_and_enough_was_refused(tally: Tally) -> None:
    assert min(tally.stored, tally.refused) > 3
