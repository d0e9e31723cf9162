"""Pulling, pushing and deleting manifests. The preset reads and checks them."""

import json

from starlette.requests import Request
from starlette.responses import Response

from distribution.errors import Refusal
from distribution.services import services

LARGEST = 4 * 1024 * 1024


async def pull(request: Request) -> Response:
    """Byte for byte what was pushed, and under its own media type, whatever a client accepts."""
    name, reference = request.path_params["name"], request.path_params["reference"]
    here = services(request)
    digest, media_type, payload = await here.registry.row("get_manifest", name, reference)
    if request.method == "GET":
        here.pulls.note(name, reference, request.headers.get("User-Agent", ""))
    return Response(payload, 200, {"Docker-Content-Digest": digest, "Content-Type": media_type})


async def push(request: Request) -> Response:
    """By tag or by digest; by digest, with any number of tags in the query (?tag=a&tag=b)."""
    name, reference = request.path_params["name"], request.path_params["reference"]
    payload = await body_of(request)
    media_type = request.headers.get("Content-Type", "").partition(";")[0].strip() or None
    tags = sorted(set(request.query_params.getlist("tag")))
    subject = subject_of(payload)
    here = services(request)
    await here.registry.ensure_repository(name)
    async with here.registry.transaction() as calls:
        digest = await calls.value("put_manifest", name, payload, reference, media_type)
        for tag in tags:
            await calls.value("tag", name, tag, digest)
    answer = Response(None, 201, {"Location": f"/v2/{name}/manifests/{digest}",
                                  "Docker-Content-Digest": digest})
    for tag in tags:
        answer.headers.append("OCI-Tag", tag)
    if subject is not None:
        answer.headers["OCI-Subject"] = subject
    return answer


def subject_of(payload: bytes) -> str | None:
    """The digest of what a manifest is about. Numbers stay text: Python refuses very long ones.

    What is no manifest, the preset refuses; but it reads deeper nesting than Python can.
    """
    try:
        digest: str = json.loads(payload, parse_int=str)["subject"]["digest"]
        return digest
    except RecursionError:
        raise Refusal("MANIFEST_INVALID", 400, "this manifest is nested too deeply") from None
    except (ValueError, LookupError, TypeError):
        return None


async def body_of(request: Request) -> bytes:
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > LARGEST:
            raise Refusal("MANIFEST_INVALID", 413, f"a manifest has at most {LARGEST} bytes")
    return bytes(content)


async def delete(request: Request) -> Response:
    """A tag, or a manifest with its tags."""
    name, reference = request.path_params["name"], request.path_params["reference"]
    registry = services(request).registry
    if ":" in reference:
        await registry.value("delete_manifest", name, reference)
    else:
        await registry.value("untag", name, reference)
    return Response(None, 202)
