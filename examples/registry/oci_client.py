"""A small OCI client: what it takes to push, pull, sign, list and delete.

It needs nothing but Python, so it is there where skopeo cannot be installed. It believes nothing:
every byte that is pulled is compared with its digest. A client is for one thread.
"""

import http.client
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from oci_images import INDEX, MANIFEST, Bundle, digest_of

ATTEMPTS = 10  # While the registry says that it has no time now.


class Refused(Exception):
    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body.decode(errors='replace')[:500]}")
        self.status = status


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


class Client:
    def __init__(self, address: str) -> None:
        self.connection = http.client.HTTPConnection(address, timeout=60)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """Sends a request, again where that may help; what is refused raises."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for attempt in range(ATTEMPTS):
            try:
                answer = self.exchange(method, path, body, named)
            except ConnectionError:  # It had been idle for too long.
                self.connection.close()
                answer = self.exchange(method, path, body, named)
            if answer.status not in (429, 503):
                break
            time.sleep(0.1 * (attempt + 1))
        if answer.status >= 400:
            raise Refused(answer.status, answer.body)
        return answer

    def exchange(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        self.connection.request(method, path, body, headers)
        response = self.connection.getresponse()
        return Answer(response.status, response.headers, response.read())

    # Push

    def push(self, repository: str, what: Bundle, tag: str | None = None,
             source: str | None = None) -> None:
        """Blobs, then manifests, children first. What another repository has is asked for there."""
        for digest, content in what.blobs.items():
            self.push_blob(repository, digest, content, source)
        for digest, content in what.manifests.items():
            reference = tag if tag and digest == what.digest else digest
            media_type = json.loads(content)["mediaType"]
            self.ask("PUT", f"/v2/{repository}/manifests/{reference}", content,
                     Content_Type=media_type)

    def push_blob(self, repository: str, digest: str, content: bytes,
                  source: str | None = None) -> None:
        if self.has(f"/v2/{repository}/blobs/{digest}"):
            return
        query = f"?{urlencode({'mount': digest, 'from': source})}" if source else ""
        begun = self.ask("POST", f"/v2/{repository}/blobs/uploads/{query}")
        if begun.status == 202:
            location = re.sub("^https?://[^/]*", "", begun.headers["Location"])
            joint = "&" if "?" in location else "?"
            self.ask("PUT", f"{location}{joint}digest={quote(digest)}", content,
                     Content_Type="application/octet-stream")

    def has(self, path: str) -> bool:
        try:
            self.ask("HEAD", path)
        except Refused as error:
            if error.status != 404:
                raise
            return False
        return True

    # Pull

    def pull(self, repository: str, reference: str) -> Bundle:
        """All of it, each part compared with its digest."""
        answer = self.ask("GET", f"/v2/{repository}/manifests/{reference}",
                          Accept=f"{INDEX}, {MANIFEST}")
        document = answer.document
        pulled = Bundle(answer.body, document["mediaType"])
        if reference.startswith("sha256:"):
            require_digest(answer.body, reference)
        for child in document.get("manifests", []):
            part = self.pull(repository, child["digest"])
            pulled.manifests |= part.manifests
            pulled.blobs |= part.blobs
        for blob in [document.get("config"), *document.get("layers", [])]:
            if blob:
                pulled.blobs[blob["digest"]] = self.pull_blob(repository, blob["digest"])
        pulled.manifests[pulled.digest] = pulled.top
        return pulled

    def pull_blob(self, repository: str, digest: str) -> bytes:
        content = self.ask("GET", f"/v2/{repository}/blobs/{digest}").body
        require_digest(content, digest)
        return content

    # Lists

    def pages(self, path: str) -> Iterator[dict[str, Any]]:
        """This page, and those that its Link leads to."""
        following: str | None = path
        while following:
            answer = self.ask("GET", following)
            yield answer.document
            found = re.match('<([^>]*)>; *rel="next"', answer.headers.get("Link", ""))
            following = found.group(1) if found else None

    def repositories(self) -> list[str]:
        return [name for page in self.pages("/v2/_catalog") for name in page["repositories"]]

    def tags(self, repository: str) -> list[str]:
        return [name for page in self.pages(f"/v2/{repository}/tags/list")
                for name in page["tags"]]

    def referrers(self, repository: str, digest: str) -> list[str]:
        return [each["digest"] for page in self.pages(f"/v2/{repository}/referrers/{digest}")
                for each in page["manifests"]]

    # Delete

    def delete(self, repository: str, reference: str) -> None:
        """A tag, or a manifest by its digest."""
        self.ask("DELETE", f"/v2/{repository}/manifests/{reference}")


def require_digest(content: bytes, digest: str) -> None:
    if digest_of(content) != digest:
        raise ValueError(f"this is {digest_of(content)} and should be {digest}")
