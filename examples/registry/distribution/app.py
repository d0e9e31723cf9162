"""Which function answers which request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from distribution import blobs, lists, manifests, uploads
from distribution.database import Registry
from distribution.errors import HANDLERS
from distribution.pulls import Pulls
from distribution.services import Services
from distribution.sessions import Sessions

IDLE = 24 * 3600.0  # Seconds after which an upload that nobody goes on with is given up.


async def version(request: Request) -> Response:
    return JSONResponse({}, headers={"Docker-Distribution-API-Version": "registry/2.0"})


# A name may have slashes, so what comes after it is matched from the end.
BLOB = "/v2/{name:path}/blobs/{digest}"
UPLOADS = "/v2/{name:path}/blobs/uploads/"
UPLOAD = "/v2/{name:path}/blobs/uploads/{upload}"
MANIFEST = "/v2/{name:path}/manifests/{reference}"

ROUTES = [
    Route("/v2/", version),
    Route("/v2/_catalog", lists.repositories),
    Route("/v2/{name:path}/tags/list", lists.tags),
    Route("/v2/{name:path}/referrers/{digest}", lists.referrers),
    Route(UPLOADS, uploads.begin, methods=["POST"]),
    Route(UPLOADS.removesuffix("/"), uploads.begin, methods=["POST"]),
    Route(UPLOAD, uploads.status, methods=["GET"]),
    Route(UPLOAD, uploads.send, methods=["PATCH"]),
    Route(UPLOAD, uploads.close, methods=["PUT"]),
    Route(UPLOAD, uploads.cancel, methods=["DELETE"]),
    Route(BLOB, blobs.look, methods=["HEAD"]),
    Route(BLOB, blobs.pull, methods=["GET"]),
    Route(BLOB, blobs.delete, methods=["DELETE"]),
    Route(MANIFEST, manifests.pull, methods=["GET"]),
    Route(MANIFEST, manifests.push, methods=["PUT"]),
    Route(MANIFEST, manifests.delete, methods=["DELETE"]),
]


async def expire_uploads(sessions: Sessions) -> None:
    while True:
        await run_in_threadpool(sessions.expire, IDLE)
        await asyncio.sleep(3600)


def create_app(dsn: str, folder: Path, connections: int) -> Starlette:
    """The server: its database, and the folder of uploads that are under way."""
    registry, sessions = Registry(dsn, connections), Sessions(folder)
    pulls = Pulls(registry)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with registry.pool:
            tasks = [asyncio.create_task(expire_uploads(sessions)),
                     asyncio.create_task(pulls.tell_for_ever())]
            yield
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await pulls.tell()

    app = Starlette(routes=ROUTES, exception_handlers=HANDLERS, lifespan=lifespan)
    app.state.services = Services(registry, sessions, pulls)
    return app
