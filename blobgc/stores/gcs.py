"""Google Cloud Storage, or an emulator (STORAGE_EMULATOR_HOST): gs://bucket/folder/."""

import argparse
import contextlib
import re
import time
from importlib import import_module
from typing import Any

from blobgc.errors import reason
from blobgc.stores.base import DELETED, NO_ANSWER, OVERLOAD, Marker, Store, Tombstone


class GoogleStore(Store):
    """A generation is a number that no other upload has: a later one survives."""

    scheme = "gs"
    example = "gs://bucket/dir/"
    extra = "gcs"
    per_request = 100  # More is refused.
    no_tag = "1"

    def __init__(self, prefix: str, options: argparse.Namespace) -> None:
        super().__init__(prefix, options)
        self.errors = import_module("google.api_core.exceptions")
        self.requests = import_module("requests.exceptions")
        self.transport_error = import_module("google.auth.exceptions").TransportError
        self.client: Any = import_module("google.cloud.storage").Client(project=None)
        adapter = import_module("requests.adapters").HTTPAdapter(pool_maxsize=options.threads)
        self.client._http.adapters.update({"https://": adapter, "http://": adapter})
        self.limits = {"timeout": self.timeout, "retry": None}
        self.is_seen = False  # The bucket.
        self.has_batches: bool | None = None  # None: nobody knows yet.

    def accepts_generation(self, generation: str) -> bool:
        # Not \d: there are more digits than these in Unicode, and int() reads them all.
        return bool(re.fullmatch("[1-9][0-9]{0,18}", generation)) and int(generation) < 2 ** 63

    def status_of(self, error: Exception) -> int | None:
        if isinstance(error, self.errors.GoogleAPICallError):
            return int(error.code or 0)
        if isinstance(error, (self.requests.ConnectionError, self.requests.Timeout,
                              self.transport_error)):
            return NO_ANSWER
        return None

    def describe(self) -> str:
        return f"{self.prefix} (by generation where a row knows it)"

    def learn(self) -> None:
        """Emulators do not know batches, or answer them in a way of their own."""
        try:
            self.has_batches = self.delete_batch([self.probe(), self.probe()]) == [DELETED] * 2
        except Exception as error:
            if self.is_overload(error):
                raise
            self.has_batches = False
        if not self.has_batches:
            self.flow.take_one_by_one()

    def delete(self, tombstones: list[Tombstone]) -> list[str]:
        if len(tombstones) > 1 and self.has_batches is None:
            self.learn()
        if len(tombstones) > 1 and self.has_batches:
            return self.delete_batch(tombstones)
        return [self.delete_one(tombstone) for tombstone in tombstones]

    def delete_batch(self, tombstones: list[Tombstone]) -> list[str]:
        begun = time.monotonic()
        batch = self.client.batch(raise_exception=False)
        with batch:
            for tombstone in tombstones:
                self.ask(tombstone)
        fates = []
        for answer in batch._responses:
            if answer.ok:
                fates.append(DELETED)
                continue
            if answer.status_code in OVERLOAD:
                self.flow.shrink(begun)
            fates.append(self.fate_of(self.errors.from_http_response(answer)))
        if len(fates) != len(tombstones):
            raise ValueError("the store has not answered for every object")
        return fates

    def read_marker(self, address: str) -> Marker | None:
        blob = self.client.bucket(self.bucket).blob(self.name(address))
        try:
            content = blob.download_as_bytes(**self.limits)
        except self.errors.NotFound:
            self.look_for_bucket()
            return None
        return Marker(content.decode(errors="replace"), str(blob.generation))

    def write_marker(self, address: str, content: str, replaces: str | None) -> str | None:
        blob = self.client.bucket(self.bucket).blob(self.name(address))
        try:
            blob.upload_from_string(content.encode(), if_generation_match=int(replaces or 0),
                                    **self.limits)
        except self.errors.PreconditionFailed:
            return None
        return str(blob.generation)

    def ask(self, tombstone: Tombstone) -> None:
        """At once, or with the others of a batch when that ends."""
        generation = int(tombstone.generation) if tombstone.generation else None
        self.client.bucket(self.bucket).delete_blob(
            self.key(tombstone.url), if_generation_match=generation, **self.limits)

    def delete_one(self, tombstone: Tombstone) -> str:
        try:
            self.ask(tombstone)
        except (self.errors.PreconditionFailed, self.errors.NotFound) as error:
            return self.fate_of(error)
        return DELETED

    def fate_of(self, error: Exception) -> str:
        if isinstance(error, self.errors.PreconditionFailed):
            return DELETED  # What is there was uploaded later: the version that was meant is gone.
        if isinstance(error, self.errors.NotFound):
            self.look_for_bucket()
            return DELETED  # A missing object is a success; a missing bucket is none.
        return reason(error)

    def look_for_bucket(self) -> None:
        """Once. Raises if it is not there."""
        if not self.is_seen:
            with contextlib.suppress(self.errors.Forbidden):  # Not to be listed, but there.
                list(self.client.list_blobs(self.bucket, max_results=1, **self.limits))
        self.is_seen = True
