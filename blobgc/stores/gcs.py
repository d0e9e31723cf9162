"""Google Cloud Storage, or an emulator (STORAGE_EMULATOR_HOST): gs://bucket/folder/."""

import argparse
import contextlib
import re
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from importlib import import_module
from typing import Any
from urllib.parse import quote

from blobgc.errors import reason
from blobgc.stores.base import (
    DELETED,
    NO_ANSWER,
    OVERLOAD,
    Listed,
    Marker,
    Page,
    Seen,
    Store,
    Tombstone,
    Version,
)


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
        adapter = import_module("requests.adapters").HTTPAdapter(pool_maxsize=self.threads)
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

    # What is there. Resumable uploads that were not finished are not told; Google drops them after
    # a week.

    def url(self, key: str) -> str:
        return f"gs://{self.bucket}/{key}"

    def ask_api(self, path: str, **parameters: str) -> Any:
        """An answer with its headers, which the library does not give away."""
        answer = self.client._http.get(
            self.client._connection.build_api_url(path=path, query_params=parameters),
            timeout=self.timeout)
        if answer.status_code >= 400:
            raise self.errors.from_http_response(answer)
        return answer

    def now(self) -> datetime:
        return time_of(self.ask_api(f"/b/{self.bucket}/o", maxResults="1", prefix=self.folder))

    def folders(self, folder: str) -> list[str] | None:
        found = self.client.list_blobs(
            self.bucket, prefix=self.key(folder), delimiter="/", page_size=1000, **self.limits)
        next(found.pages, None)
        if found.next_page_token:
            return None
        return [self.url(prefix) for prefix in sorted(found.prefixes)]

    def pages(self, folder: str, is_deep: bool, cursor: str | None) -> Iterator[Page]:
        """From one name to the next, so that it can go on at any of them."""
        found = self.client.list_blobs(
            self.bucket, prefix=self.key(folder), delimiter=None if is_deep else "/",
            start_offset=cursor, page_size=1000,
            fields="items(name,size,updated,generation),prefixes,nextPageToken", **self.limits)
        for page in found.pages:
            objects = []
            last = None
            for blob in page:
                last = blob.name
                if blob.name != cursor and not (blob.name.endswith("/") and not blob.size):
                    objects.append(Listed(
                        self.url(blob.name), blob.size, blob.updated, str(blob.generation)))
            yield Page(objects, last if is_deep else None)

    def listed_generation(self, text: str) -> str | None:
        return text if self.accepts_generation(text) else None

    def look(self, url: str) -> Seen | None:
        try:
            answer = self.ask_api(f"/b/{self.bucket}/o/{quote(self.key(url), safe='')}")
        except self.errors.NotFound:
            self.look_for_bucket()
            return None
        found = answer.json()
        written = datetime.fromisoformat(found["updated"].replace("Z", "+00:00"))
        age = (time_of(answer) - written).total_seconds()
        return Seen(int(found["size"]), age, str(found["generation"]))

    def kept_versions(self, url: str) -> list[Version]:
        """Noncurrent ones first: to bring them back is a copy, and nothing can be lost by it."""
        key = self.key(url)
        found = []
        for how, asked in (("noncurrent", {"versions": "true"}),  # As emulators spell it, too.
                           ("soft-deleted", {"soft_deleted": "true"})):
            with contextlib.suppress(self.errors.BadRequest):  # There is no such policy.
                blobs = [blob for blob in self.client.list_blobs(
                    self.bucket, prefix=key, **asked, **self.limits) if blob.name == key]
                blobs.sort(key=lambda blob: blob.generation, reverse=True)
                found += [Version(str(blob.generation), blob.size, how) for blob in blobs]
        return found

    def revive(self, url: str, version: Version) -> None:
        bucket = self.client.bucket(self.bucket)
        key = self.key(url)
        if version.how == "soft-deleted":
            bucket.restore_blob(key, generation=int(version.generation), if_generation_match=0,
                                **self.limits)
        else:
            bucket.copy_blob(bucket.blob(key), bucket, key, if_generation_match=0,
                             source_generation=int(version.generation), **self.limits)

    def move(self, tombstone: Tombstone, target: str) -> None:
        bucket = self.client.bucket(self.bucket)
        generation = int(tombstone.generation) if tombstone.generation else None
        bucket.copy_blob(
            bucket.blob(self.key(tombstone.url)), bucket, self.key(target),
            if_source_generation_match=generation, **self.limits)
        self.ask(tombstone)

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


def time_of(answer: Any) -> datetime:
    """When the store has answered, by its own clock."""
    date = answer.headers.get("date")
    return parsedate_to_datetime(date) if date else datetime.now(timezone.utc)
