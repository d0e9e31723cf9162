"""Pushing blobs: begun by POST, sent by PATCH and PUT, finished by PUT, given up by DELETE.

What arrives is collected in a session. The preset is told of a blob when all of it is here and its
digest is right: begin_blob_upload, then the object is written, then finish_blob_upload.
"""

from typing import BinaryIO

import psycopg
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from distribution.errors import Refusal
from distribution.ranges import first_byte
from distribution.services import Services, services
from distribution.sessions import ALGORITHMS, Session
from distribution.stores import store_of


async def begin(request: Request) -> Response:
    """A session; or, where the query says enough for that, the blob at once."""
    name, query = request.path_params["name"], request.query_params
    here = services(request)
    await here.registry.ensure_repository(name)
    if "mount" in query and "from" in query and await mount(
            here, name, query["mount"], query["from"]):
        return created(name, query["mount"])
    session = here.sessions.create(name)
    if "digest" not in query:
        return Response(None, 202, session.headers())
    try:
        return await complete(request, session)
    finally:
        session.discard()


async def mount(here: Services, name: str, digest: str, source: str) -> bool:
    """Whether the blob of another repository could be used; if not, it has to be pushed."""
    try:
        await here.registry.value("mount_blob", name, digest, source)
    except psycopg.Error as error:
        if error.sqlstate in ("ZR001", "ZR004", "ZR008", "ZR009"):
            return False
        raise
    return True


async def send(request: Request) -> Response:
    """One chunk, or all of it."""
    session = found(request)
    with session.appending() as file:
        await append(request, session, file)
    return Response(None, 202, session.headers())


async def close(request: Request) -> Response:
    return await complete(request, found(request))


async def status(request: Request) -> Response:
    return Response(None, 204, found(request).headers())


async def cancel(request: Request) -> Response:
    session = found(request)
    with session.appending():
        session.discard()
    return Response(None, 204)


def found(request: Request) -> Session:
    parameters = request.path_params
    return services(request).sessions.find(parameters["name"], parameters["upload"])


async def append(request: Request, session: Session, file: BinaryIO) -> None:
    """Writes the body behind what is there, if it belongs there.

    Written right here: a copy into the page cache takes less time than handing it to a thread. If
    the client goes away, what has arrived stays, and it can go on from there.
    """
    header = request.headers.get("Content-Range")
    if header is not None and first_byte(header) != file.tell():
        raise Refusal("BLOB_UPLOAD_INVALID", 416, "the next chunk begins elsewhere", header,
                      session.headers())
    async for content in request.stream():
        file.write(content)
    file.flush()


async def complete(request: Request, session: Session) -> Response:
    """The last chunk, if it was not sent yet, and then the whole."""
    digest = request.query_params.get("digest", "")
    if digest.partition(":")[0] not in ALGORITHMS:
        raise Refusal("DIGEST_INVALID", 400, "a digest is needed, sha256:… or sha512:…", digest)
    with session.appending() as file:
        before = file.tell()
        await append(request, session, file)
        try:
            return await finish(services(request), session, digest)
        except psycopg.Error:  # It may be one to try again after.
            session.shorten(before)
            raise


async def finish(here: Services, session: Session, digest: str) -> Response:
    """Checks the digest, announces the blob, writes it, records it."""
    algorithm, size = digest.partition(":")[0], session.size()
    if await run_in_threadpool(session.digest, algorithm) != digest:
        session.discard()
        raise Refusal("DIGEST_INVALID", 400, "this is not the digest of what was sent", digest)
    url = await here.registry.value(
        "begin_blob_upload", session.repository, digest, "5 seconds", session.upload)
    await run_in_threadpool(store_of(url).put, url, session.path)
    try:
        await here.registry.value(
            "finish_blob_upload", session.repository, digest, size, None, session.upload)
    except psycopg.Error as error:
        if error.sqlstate == "ZR009":  # The repository was deleted: the object must not be lost.
            await here.registry.value("abandon_blob_upload", digest, size, session.upload)
        raise
    session.discard()
    return created(session.repository, digest)


def created(name: str, digest: str) -> Response:
    return Response(None, 201, {"Location": f"/v2/{name}/blobs/{digest}",
                                "Docker-Content-Digest": digest})
