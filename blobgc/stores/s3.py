"""Amazon S3, or a store that speaks like it (AWS_ENDPOINT_URL): s3://bucket/folder/."""

import argparse
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
    Leftover,
    Listed,
    Marker,
    Page,
    Seen,
    Store,
    Tombstone,
    Version,
    is_plain,
)

# What a store says of a key that it had no time for.
OVERLOAD = ("SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "OperationAborted")
# The object, or the version of it that was meant, is gone.
GONE = ("NoSuchKey", "NoSuchVersion")
NO_ETAG = '"00000000000000000000000000000000"'


class AmazonStore(Store):
    """A generation is a version id; or, in a bucket without versions, an ETag in its quotes.

    An ETag can be a hash of what is in the object, so it tells apart only uploads that differ.
    """

    scheme = "s3"
    example = "s3://bucket/dir/"
    extra = "s3"
    per_request = 1000
    no_tag = NO_ETAG

    def __init__(self, prefix: str, options: argparse.Namespace) -> None:
        super().__init__(prefix, options)
        self.errors = import_module("botocore.exceptions")
        config = import_module("botocore.config").Config(
            connect_timeout=self.timeout, read_timeout=self.timeout,
            max_pool_connections=self.threads, retries={"total_max_attempts": 1})
        self.client: Any = import_module("boto3").client("s3", config=config)
        self.has_versions = False  # Once it has, it has them for ever.
        self.honours_etags: bool | None = None  # None: nobody knows yet.

    def accepts(self, url: str, generation: str | None = None) -> bool:
        """SeaweedFS keeps versions of x in x.versions/, and uploads in .uploads/ of the bucket."""
        folders = self.key(url).split("/")[:-1]
        if folders[:1] == [".uploads"]:
            return False
        for folder in folders:
            if folder.endswith(".versions"):
                return False
        return super().accepts(url, generation)

    def accepts_generation(self, generation: str) -> bool:
        if is_etag(generation):
            return True
        # MinIO reads a UUID in any case.
        is_hex = re.fullmatch("[0-9a-fA-F-]{32,36}", generation)
        if is_hex and generation != generation.lower():
            return False
        return (bool(re.fullmatch("[A-Za-z0-9._~+=/-]{1,1024}", generation))
                and is_plain(generation))

    def status_of(self, error: Exception) -> int | None:
        if isinstance(error, (ValueError, TypeError, self.errors.ParamValidationError)):
            return 400
        if isinstance(error, (self.errors.HTTPClientError, self.errors.ConnectionError)):
            return NO_ANSWER
        if isinstance(error, self.errors.ClientError):
            answer: Any = error
            return int(answer.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return None

    def no_generation(self) -> str | None:
        return "null" if self.has_versions else None  # Without, it would leave a delete marker.

    def describe(self) -> str:
        if self.has_versions:
            return f"{self.prefix} (by version where a row knows it)"
        if self.honours_etags:
            return f"{self.prefix} (by ETag where a row knows it)"
        return self.prefix

    def prepare(self) -> None:
        self.why_no_versions()

    def learn(self) -> None:
        if not self.has_versions:
            self.try_etags()

    def why_no_versions(self) -> str:
        """Why no version can be deleted here; empty if it can."""
        if not self.has_versions:
            try:
                found = self.client.get_bucket_versioning(Bucket=self.bucket)
            except self.errors.ClientError as error:
                if self.status_of(error) != 403:
                    raise
                return "refused: may not ask whether the bucket has versions (GetBucketVersioning)"
            self.has_versions = found.get("Status") in ("Enabled", "Suspended")
        return "" if self.has_versions else "refused: a generation, and the bucket has no versions"

    def try_etags(self) -> None:
        """Writes an object of its own, and deletes it by an ETag that it has not."""
        key = self.key(self.probe().url)
        try:
            self.client.put_object(Bucket=self.bucket, Key=key, Body=b"blobgc")
        except self.errors.ClientError as error:
            if self.is_overload(error):
                raise
            self.honours_etags = False  # Who may not write cannot find out.
            return
        try:
            answer = self.client.delete_objects(
                Bucket=self.bucket, Delete={"Objects": [{"Key": key, "ETag": NO_ETAG}]})
            codes = [error.get("Code") for error in answer.get("Errors", ())]
            self.honours_etags = codes == ["PreconditionFailed"]
        except self.errors.ClientError as error:
            if self.is_overload(error):
                raise
            self.honours_etags = False  # It does not even understand.
        finally:
            self.client.delete_objects(
                Bucket=self.bucket, Delete={"Quiet": True, "Objects": [{"Key": key}]})

    def why_no_etags(self) -> str:
        if not self.why_no_versions():
            return "refused: an ETag, and the bucket has versions"
        if self.honours_etags is None:
            self.try_etags()
        if not self.honours_etags:
            return "refused: an ETag, and the store does not look at it (or may not be written to)"
        return ""

    # What is there

    def url(self, key: str) -> str:
        return f"s3://{self.bucket}/{key}"

    def now(self) -> datetime:
        answer = self.client.list_objects_v2(Bucket=self.bucket, Prefix=self.folder, MaxKeys=1)
        return time_of(answer)

    def folders(self, folder: str) -> list[str] | None:
        answer = self.client.list_objects_v2(
            Bucket=self.bucket, Prefix=self.key(folder), Delimiter="/")
        if answer.get("IsTruncated"):
            return None
        return [self.url(found["Prefix"]) for found in answer.get("CommonPrefixes", ())]

    def pages(self, folder: str, is_deep: bool, cursor: str | None) -> Iterator[Page]:
        """From one key to the next, so that it can go on at any of them."""
        where = {"Bucket": self.bucket, "Prefix": self.key(folder)}
        if not is_deep:
            where["Delimiter"] = "/"
        start = {"StartAfter": cursor} if cursor else {}
        while True:
            answer = self.client.list_objects_v2(**where, **start)
            objects = []
            for found in answer.get("Contents", ()):
                if found["Key"].endswith("/") and not found["Size"]:
                    continue  # A folder that somebody has made.
                objects.append(Listed(
                    self.url(found["Key"]), found["Size"], found["LastModified"],
                    self.listed_generation(found.get("ETag", ""))))
            if answer.get("Contents"):
                cursor = answer["Contents"][-1]["Key"]
            yield Page(objects, cursor if is_deep else None)
            if not answer.get("IsTruncated"):
                return
            start = {"ContinuationToken": answer["NextContinuationToken"]}

    def listed_generation(self, text: str) -> str | None:
        etag = '"' + text.strip('"') + '"'
        return etag if self.honours_etags and is_etag(etag) else None

    def leftovers(self) -> Iterator[Leftover]:
        pages = self.client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self.bucket, Prefix=self.folder)
        for page in pages:
            for found in page.get("Uploads", ()):
                yield Leftover(self.url(found["Key"]), found["Initiated"])

    def look(self, url: str) -> Seen | None:
        """Both times are rounded to a second."""
        try:
            answer = self.client.head_object(Bucket=self.bucket, Key=self.key(url))
        except self.errors.ClientError as error:
            if self.status_of(error) != 404:
                raise
            self.client.head_bucket(Bucket=self.bucket)  # A missing bucket is an error.
            return None
        age = (time_of(answer) - answer["LastModified"]).total_seconds() - 1
        version = answer.get("VersionId") if self.has_versions else None
        etag = answer.get("ETag") if self.honours_etags else None
        return Seen(answer["ContentLength"], age, version or (etag if is_etag(etag) else None))

    def kept_versions(self, url: str) -> list[Version]:
        """Those under a delete marker."""
        key = self.key(url)
        answer = self.client.list_object_versions(Bucket=self.bucket, Prefix=key)
        found = [each for each in answer.get("Versions", ()) if each["Key"] == key]
        found.sort(key=lambda each: each["LastModified"], reverse=True)
        return [Version(each["VersionId"], each["Size"], "version") for each in found]

    def revive(self, url: str, version: Version) -> None:
        """The newest by taking the marker away, another by a copy."""
        key = self.key(url)
        if version != self.kept_versions(url)[0]:
            self.client.copy(
                {"Bucket": self.bucket, "Key": key, "VersionId": version.generation},
                self.bucket, key)
            return
        answer = self.client.list_object_versions(Bucket=self.bucket, Prefix=key)
        for marker in answer.get("DeleteMarkers", ()):
            if marker["Key"] == key:
                self.client.delete_object(
                    Bucket=self.bucket, Key=key, VersionId=marker["VersionId"])

    def tells_apart(self, generation: str) -> bool:
        return not is_etag(generation)

    def move(self, tombstone: Tombstone, target: str) -> None:
        source = {"Bucket": self.bucket, "Key": self.key(tombstone.url)}
        more = {"CopySourceIfMatch": tombstone.generation} if tombstone.generation else {}
        self.client.copy(source, self.bucket, self.key(target), ExtraArgs=more)
        (fate,) = self.delete([tombstone])
        if fate != DELETED:
            raise ValueError(fate)

    def delete(self, tombstones: list[Tombstone]) -> list[str]:
        fates = {}
        wanted = []
        problems: dict[bool, str] = {}  # Asked for once: by ETag, by version.
        for tombstone in tombstones:
            problem = ""
            if tombstone.generation:
                by_etag = is_etag(tombstone.generation)
                if by_etag not in problems:
                    problems[by_etag] = self.why_no_etags() if by_etag else self.why_no_versions()
                problem = problems[by_etag]
            fates[tombstone.id] = problem or DELETED
            if not problem:
                wanted.append(tombstone)
        if wanted:
            fates |= self.request(wanted)
        return [fates[tombstone.id] for tombstone in tombstones]

    def read_marker(self, address: str) -> Marker | None:
        try:
            found = self.client.get_object(Bucket=self.bucket, Key=self.name(address))
        except self.errors.ClientError as error:
            if error.response.get("Error", {}).get("Code") == "NoSuchKey":
                return None
            raise
        return Marker(found["Body"].read().decode(errors="replace"), found["ETag"])

    def write_marker(self, address: str, content: str, replaces: str | None) -> str | None:
        condition = {"IfMatch": replaces} if replaces else {"IfNoneMatch": "*"}
        if self.honours_conditions is False:
            condition = {}
        try:
            written = self.client.put_object(Bucket=self.bucket, Key=self.name(address),
                                             Body=content.encode(), **condition)
        except self.errors.ClientError as error:
            # Two that are written at one time: 409. What is not there cannot be replaced: 404.
            if self.status_of(error) in (404, 409, 412) and not self.is_bucket_missing(error):
                return None
            if self.status_of(error) not in (400, 501) or not condition:
                raise
            self.honours_conditions = False  # It does not know the header.
            return self.write_marker(address, content, replaces)
        return str(written["ETag"])

    def is_bucket_missing(self, error: Any) -> bool:
        return bool(error.response.get("Error", {}).get("Code") == "NoSuchBucket")

    def request(self, tombstones: list[Tombstone]) -> dict[int, str]:
        """Deletes them; returns those that could not be, and why."""
        begun = time.monotonic()
        objects = []
        for tombstone in tombstones:
            named = {"Key": self.key(tombstone.url)}
            if tombstone.generation:
                kind = "ETag" if is_etag(tombstone.generation) else "VersionId"
                named[kind] = tombstone.generation
            objects.append(named)
        answer = self.client.delete_objects(
            Bucket=self.bucket, Delete={"Quiet": True, "Objects": objects})
        failed: dict[int, str] = {}
        for error in answer.get("Errors", ()):
            meant = self.meant(tombstones, error)
            for tombstone in meant:
                is_newer = error["Code"] == "PreconditionFailed" and is_etag(tombstone.generation)
                if error["Code"] in GONE or is_newer:
                    continue
                failed[tombstone.id] = f"{error['Code']}: {error.get('Message')}"
            if error["Code"] in OVERLOAD:
                self.flow.shrink(begun)
        return failed

    def meant(self, tombstones: list[Tombstone], error: dict[str, Any]) -> list[Tombstone]:
        """Those that an error is about."""
        if len(tombstones) == 1:
            return tombstones
        found = []
        for tombstone in tombstones:
            if self.key(tombstone.url) != error.get("Key"):
                continue
            if is_etag(tombstone.generation) or error.get("VersionId") in (
                    None, "", tombstone.generation):
                found.append(tombstone)
        if not found:
            raise ValueError(f"the store says {error['Code']} of what it was not asked for")
        return found


def is_etag(generation: str | None) -> bool:
    """As the store prints it: a hash, and the number of parts where there were several."""
    return bool(re.fullmatch('"[0-9a-f]{32}(-[1-9][0-9]{0,4})?"', generation or ""))


def time_of(answer: dict[str, Any]) -> datetime:
    """When the store has answered, by its own clock."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return parsedate_to_datetime(date) if date else datetime.now(timezone.utc)
