"""Pulling, looking for and deleting blobs."""

from collections.abc import AsyncIterator, Iterator

from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from distribution.ranges import Part, requested_part
from distribution.services import services
from distribution.stores import store_of


async def pull(request: Request) -> Response:
    """All of it, or the part that was asked for."""
    name, digest = request.path_params["name"], request.path_params["digest"]
    url, size, _ = await services(request).registry.row("get_blob", name, digest)
    part = requested_part(request.headers.get("Range"), size)
    content = await run_in_threadpool(store_of(url).read, url, part or Part(0, size))
    headers = describe(digest, part.length if part else size)
    if part:
        headers["Content-Range"] = part.of(size)
    return StreamingResponse(in_order(content), 206 if part else 200, headers,
                             "application/octet-stream")


async def in_order(content: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Read by a thread, because a store may take its time."""
    async for part in iterate_in_threadpool(content):
        yield part


async def look(request: Request) -> Response:
    """A client that finds a blob does not push it, so has_blob keeps it for the manifest to come.

    If it is not there, get_blob says so; if it goes between the two, a client pushes it.
    """
    name, digest = request.path_params["name"], request.path_params["digest"]
    registry = services(request).registry
    await registry.value("has_blob", name, digest)
    _, size, _ = await registry.row("get_blob", name, digest)
    return Response(None, 200, describe(digest, size), "application/octet-stream")


async def delete(request: Request) -> Response:
    """Takes it from this repository. Others may have it, so the object is the collector's."""
    name, digest = request.path_params["name"], request.path_params["digest"]
    await services(request).registry.value("unlink_blob", name, digest)
    return Response(None, 202)


def describe(digest: str, length: int) -> dict[str, str]:
    return {"Docker-Content-Digest": digest, "Content-Length": str(length),
            "Accept-Ranges": "bytes"}
