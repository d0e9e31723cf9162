"""Azure Blob Storage: az://container/folder/.

The account comes from AZURE_STORAGE_CONNECTION_STRING; or from AZURE_STORAGE_ACCOUNT with
AZURE_STORAGE_KEY, with AZURE_STORAGE_SAS_TOKEN, or with whatever azure-identity finds.
"""

import argparse
import os
import re
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from importlib import import_module
from typing import Any

from blobgc.stores.base import (
    DELETED,
    NO_ANSWER,
    OVERLOAD,
    Leftover,
    Listed,
    Marker,
    Page,
    Seen,
    Store,
    Tombstone,
)


class AzureStore(Store):
    """A generation is an ETag, which no other upload has: a later one survives."""

    scheme = "az"
    example = "az://container/dir/"
    extra = "azure"
    per_request = 256
    no_tag = '"0x1"'

    def __init__(self, prefix: str, options: argparse.Namespace) -> None:
        super().__init__(prefix, options)
        self.errors = import_module("azure.core.exceptions")
        self.unchanged = import_module("azure.core").MatchConditions.IfNotModified
        self.account = self.open_account()
        self.client: Any = self.account.get_container_client(self.bucket)

    def open_account(self) -> Any:
        service = import_module("azure.storage.blob").BlobServiceClient
        session = import_module("requests").Session()
        adapter = import_module("requests.adapters").HTTPAdapter(pool_maxsize=self.threads)
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        transport = import_module("azure.core.pipeline.transport").RequestsTransport(
            session=session, session_owner=False, connection_timeout=self.timeout,
            read_timeout=self.timeout)
        limits = {"retry_total": 0, "transport": transport}
        given = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
        if given:
            return service.from_connection_string(given, **limits)
        name = os.environ.get("AZURE_STORAGE_ACCOUNT")
        if not name:
            raise ValueError("neither AZURE_STORAGE_CONNECTION_STRING nor AZURE_STORAGE_ACCOUNT "
                             "is set")
        credential: Any = os.environ.get("AZURE_STORAGE_KEY") or os.environ.get(
            "AZURE_STORAGE_SAS_TOKEN")
        if not credential:
            credential = import_module("azure.identity").DefaultAzureCredential()
        return service(f"https://{name}.blob.core.windows.net", credential=credential, **limits)

    def accepts(self, url: str, generation: str | None = None) -> bool:
        """Some clients of Azure drop dots at the end of a part: x. and x would be one object."""
        for part in self.key(url).split("/"):
            if part.endswith("."):
                return False
        return super().accepts(url, generation)

    def accepts_generation(self, generation: str) -> bool:
        return bool(re.fullmatch('"0x[0-9A-F]{1,16}"', generation))

    def status_of(self, error: Exception) -> int | None:
        if isinstance(error, self.errors.HttpResponseError):
            found: Any = error
            return int(found.status_code or 0)
        if isinstance(error, (self.errors.ServiceRequestError, self.errors.ServiceResponseError)):
            return NO_ANSWER
        if isinstance(error, (ValueError, TypeError)):
            return 400
        return None

    def describe(self) -> str:
        return f"{self.prefix} (by ETag where a row knows it)"

    # What is there

    def url(self, key: str) -> str:
        return f"az://{self.bucket}/{key}"

    def now(self) -> datetime:
        clock = Clock()
        self.client.get_container_properties(raw_response_hook=clock.read)
        return clock.time

    def folders(self, folder: str) -> list[str] | None:
        found = self.client.walk_blobs(self.key(folder), delimiter="/", results_per_page=1000)
        pages = found.by_page()
        first = list(next(pages, ()))
        if pages.continuation_token:
            return None
        return [self.url(entry.name) for entry in first if entry.name.endswith("/")]

    def pages(self, folder: str, is_deep: bool, cursor: str | None) -> Iterator[Page]:
        key = self.key(folder)
        found = self.client.list_blobs(name_starts_with=key, results_per_page=1000)
        if not is_deep:
            found = self.client.walk_blobs(key, delimiter="/", results_per_page=1000)
        pages = found.by_page(continuation_token=cursor)
        for page in pages:
            objects = []
            for blob in page:
                if not blob.name.endswith("/"):
                    objects.append(Listed(
                        self.url(blob.name), blob.size, blob.last_modified,
                        self.listed_generation(blob.etag)))
            yield Page(objects, pages.continuation_token if is_deep else None)

    def listed_generation(self, text: str) -> str | None:
        etag = '"' + text.strip('"') + '"'
        return etag if self.accepts_generation(etag) else None

    def leftovers(self) -> Iterator[Leftover]:
        """Blobs of which there are blocks only."""
        found = self.client.list_blobs(
            name_starts_with=self.folder, include=["uncommittedblobs"])
        for blob in found:
            if blob.size == 0 and not blob.etag:
                yield Leftover(self.url(blob.name), blob.last_modified)

    def look(self, url: str) -> Seen | None:
        """Both times are rounded to a second."""
        clock = Clock()
        try:
            found = self.client.get_blob_client(self.key(url)).get_blob_properties(
                raw_response_hook=clock.read)
        except self.errors.ResourceNotFoundError:
            self.client.get_container_properties()  # A missing container is an error.
            return None
        age = (clock.time - found.last_modified).total_seconds() - 1
        return Seen(found.size, age, self.listed_generation(found.etag))

    def move(self, tombstone: Tombstone, target: str) -> None:
        source = self.client.get_blob_client(self.key(tombstone.url))
        copy = self.client.get_blob_client(self.key(target))
        named: dict[str, Any] = {}
        if tombstone.generation:
            named = {"source_etag": tombstone.generation,
                     "source_match_condition": self.unchanged}
        begun = copy.start_copy_from_url(source.url, **named)
        status = begun["copy_status"]
        while status == "pending":
            time.sleep(0.2)
            status = copy.get_blob_properties().copy.status
        if status != "success":
            raise ValueError(f"the copy has ended as {status}")
        (fate,) = self.delete([tombstone])
        if fate != DELETED:
            raise ValueError(fate)

    def delete(self, tombstones: list[Tombstone]) -> list[str]:
        wanted: list[Any] = []
        for tombstone in tombstones:
            named: dict[str, Any] = {"name": self.key(tombstone.url)}
            if tombstone.generation:
                named |= {"etag": tombstone.generation, "match_condition": self.unchanged}
            wanted.append(named)
        begun = time.monotonic()
        answers = list(self.client.delete_blobs(*wanted, raise_on_any_failure=False))
        if len(answers) != len(tombstones):
            raise ValueError("the store has not answered for every object")
        for answer in answers:
            if answer.status_code in OVERLOAD:
                self.flow.shrink(begun)
        return [self.fate_of(answer) for answer in answers]

    def read_marker(self, address: str) -> Marker | None:
        try:
            found = self.client.download_blob(self.name(address))
        except self.errors.ResourceNotFoundError as error:
            if error.error_code == "BlobNotFound":
                return None
            raise
        return Marker(found.readall().decode(errors="replace"), found.properties.etag)

    def write_marker(self, address: str, content: str, replaces: str | None) -> str | None:
        blob = self.client.get_blob_client(self.name(address))
        condition: dict[str, Any] = {}
        if replaces:
            condition = {"overwrite": True, "etag": replaces, "match_condition": self.unchanged}
        try:
            return str(blob.upload_blob(content.encode(), **condition)["etag"])
        except (self.errors.ResourceExistsError, self.errors.ResourceModifiedError):
            return None
        except self.errors.ResourceNotFoundError as error:
            if error.error_code == "BlobNotFound":
                return None
            raise

    def fate_of(self, answer: Any) -> str:
        """Of one object, by the part of the answer that is about it."""
        code = answer.headers.get("x-ms-error-code")
        is_gone = answer.status_code == 404 and code == "BlobNotFound"
        # What is there was uploaded later. A blob that somebody has leased is 412 as well.
        is_newer = answer.status_code == 412 and code == "ConditionNotMet"
        if answer.status_code < 300 or is_gone or is_newer:
            return DELETED
        return f"{code or answer.status_code}: {answer.reason}"


class Clock:
    """When the store has answered, by its own clock."""

    def __init__(self) -> None:
        self.time = datetime.now(timezone.utc)

    def read(self, response: Any) -> None:
        date = response.http_response.headers.get("Date")
        if date:
            self.time = parsedate_to_datetime(date)
