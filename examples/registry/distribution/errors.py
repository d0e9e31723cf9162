"""What a client is told when something is refused, with the codes of the specification."""

import logging
from collections.abc import Mapping

import psycopg
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from distribution.database import Registry

log = logging.getLogger(__name__)

# The SQLSTATEs of the preset, as docs/registry.md lists them. Nobody else raises these.
OF_THE_PRESET = {
    "ZR001": ("BLOB_UNKNOWN", 404),
    "ZR003": ("BLOB_UPLOAD_UNKNOWN", 404),
    "ZR004": ("DIGEST_INVALID", 400),
    "ZR005": ("MANIFEST_BLOB_UNKNOWN", 404),
    "ZR006": ("MANIFEST_INVALID", 400),
    "ZR007": ("MANIFEST_UNKNOWN", 404),
    "ZR008": ("NAME_INVALID", 400),
    "ZR009": ("NAME_UNKNOWN", 404),
    "ZR010": ("SIZE_INVALID", 400),
    "ZR012": ("DENIED", 405),
    "ZR013": ("UNSUPPORTED", 500),
    "ZR020": ("TAG_INVALID", 400),
    "ZR022": ("DENIED", 409),
    "ZG001": ("TOOMANYREQUESTS", 429),
}


class Refusal(Exception):
    """A request that cannot be answered, and why."""

    def __init__(self, code: str, status: int, message: str, detail: str | None = None,
                 headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.status, self.detail = code, status, detail
        self.headers = dict(headers or {})


def answer(code: str, status: int, message: str, detail: str | None = None,
           headers: Mapping[str, str] | None = None) -> Response:
    error = {"code": code, "message": message, "detail": detail}
    return JSONResponse({"errors": [error]}, status, headers)


async def on_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return answer(error.code, error.status, str(error), error.detail, error.headers)


async def on_database_error(request: Request, error: Exception) -> Response:
    """The preset refuses in its own words; whatever else comes from the database is our trouble."""
    assert isinstance(error, psycopg.Error)
    if error.sqlstate in OF_THE_PRESET:
        code, status = OF_THE_PRESET[error.sqlstate]
        headers = {"Retry-After": "2"} if status == 429 else None
        return answer(code, status, error.diag.message_primary or code,
                      error.diag.message_detail, headers)
    if isinstance(error, psycopg.DataError) and error.sqlstate is None:  # It was not even sent.
        return answer("UNSUPPORTED", 400, "a name has a character that no name can have")
    if isinstance(error, psycopg.OperationalError):
        log.warning("the database cannot be reached: %s", error)
        unavailable = answer("UNAVAILABLE", 503, "try again later", headers={"Retry-After": "5"})
        # Its other connections are dead as well, and each would fail another request.
        registry: Registry = request.app.state.services.registry
        unavailable.background = BackgroundTask(registry.pool.check)
        return unavailable
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    return answer("UNKNOWN", 500, "the database refused this")


async def on_no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return answer("UNSUPPORTED", error.status_code, error.detail, headers=error.headers)


HANDLERS = {Refusal: on_refusal, psycopg.Error: on_database_error, HTTPException: on_no_route}
