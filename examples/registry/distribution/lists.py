"""Tags, repositories and referrers, in pages: each says in a Link where the next one is."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

import psycopg
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from distribution.errors import Refusal
from distribution.manifests import LARGEST
from distribution.ranges import number
from distribution.services import services

PAGE = 1000  # As many are in a page at most, whatever was asked for.
FEW = 10  # So many referrers are read at a time, at most.
INDEX = "application/vnd.oci.image.index.v1+json"

Item = TypeVar("Item")


async def tags(request: Request) -> Response:
    name, limit = request.path_params["name"], page_size(request)
    found = [row[0] for row in await services(request).registry.rows(
        "list_tags", name, limit + 1, request.query_params.get("last"))]
    page = found[:limit]
    return JSONResponse({"name": name, "tags": page},
                        headers=link(request, limit, page[-1:], len(found) > limit))


async def repositories(request: Request) -> Response:
    limit = page_size(request)
    found = [row[0] for row in await services(request).registry.rows(
        "list_repositories", limit + 1, request.query_params.get("last"))]
    page = found[:limit]
    return JSONResponse({"repositories": page},
                        headers=link(request, limit, page[-1:], len(found) > limit))


async def referrers(request: Request) -> Response:
    """An index of them, made for this answer. Where there is no repository there are none."""
    name, subject = request.path_params["name"], request.path_params["digest"]
    kind, last = (request.query_params.get(key) for key in ("artifactType", "last"))
    limit = page_size(request)
    try:
        page, has_more = await page_of_referrers(request, name, subject, kind, limit, last)
    except psycopg.Error as error:
        if error.sqlstate != "ZR009":
            raise
        page, has_more = [], False
    headers = link(request, limit, [row["digest"] for row in page[-1:]], has_more)
    if kind is not None:
        headers["OCI-Filters-Applied"] = "artifactType"
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": page}
    return JSONResponse(index, headers=headers, media_type=INDEX)


async def page_of_referrers(
        request: Request, name: str, subject: str, kind: str | None, limit: int,
        last: str | None) -> tuple[list[dict[str, Any]], bool]:
    """A page, and whether there are more. Annotations may be as long as a manifest: so it ends
    where it would be longer than that, and a few are read at a time: first one, then more.
    """
    page: list[dict[str, Any]] = []
    size = 0
    while True:
        few = min(limit + 1 - len(page), len(page) + 1, FEW)
        rows = await services(request).registry.rows(
            "list_referrers", name, subject, kind, few, last)
        for described in (descriptor(*row) for row in rows):
            size += len(json.dumps(described))
            if len(page) == limit or page and size > LARGEST:
                return page, True
            page.append(described)
        if len(rows) < few:
            return page, False
        last = page[-1]["digest"]


def descriptor(digest: str, media_type: str, artifact_type: str | None, size: int,
               annotations: Mapping[str, str] | None) -> dict[str, Any]:
    described = {"mediaType": media_type, "digest": digest, "size": size,
                 "artifactType": artifact_type, "annotations": annotations}
    return {key: value for key, value in described.items() if value is not None}


def page_size(request: Request) -> int:
    asked = request.query_params.get("n", str(PAGE))
    if not (asked.isascii() and asked.isdigit()):
        raise Refusal("UNSUPPORTED", 400, "n must be a number", asked[:100])
    return min(number(asked), PAGE)


def link(request: Request, limit: int, last: list[str], has_more: bool) -> dict[str, str]:
    """Where the next page is. A page of none has none after it."""
    if not last or not has_more:
        return {}
    query = dict(request.query_params) | {"n": str(limit), "last": last[0]}
    return {"Link": f'<{request.url.path}?{urlencode(query)}>; rel="next"'}
