"""The page: what is collected, what waits, what fails and why, for a browser.

It reads and never writes. All that it needs is in this folder: no script, nothing from elsewhere.
"""

import ipaddress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flask import Flask, Response, abort, render_template, request

import blobgc
from blobgc import show
from blobgc.page import charts
from blobgc.page.facts import DAYS, FEW, MANY, Facts, Overview, Part, Row

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

REFRESH = 30  # Seconds, for who wants that.

HEADERS = {
    "Content-Security-Policy":
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
    "Server": "blobgc",
}


def make_page(dsn: str, names: list[str]) -> "WSGIApplication":
    """For who asks by an address, as localhost, or by one of these names."""
    app = Flask(__name__)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters.update(
        plain=show.plain, size=show.size, moment=moment, compact=charts.compact,
        duration=charts.duration)
    app.jinja_env.globals.update(version=blobgc.__version__, days=DAYS, refresh_seconds=REFRESH)
    facts = Facts(dsn)

    @app.before_request
    def check_host() -> None:
        if not is_allowed(request.headers.get("Host", ""), names):
            abort(Response("421 this page is not known by that name: --allow-host NAME\n", 421,
                           content_type="text/plain; charset=utf-8"))

    @app.after_request
    def add_headers(response: Response) -> Response:
        response.headers.update(HEADERS)
        return response

    @app.get("/")
    def overview() -> tuple[str, int]:
        found = facts.overview.get() or Overview(problem="the database takes long to answer")
        return render("overview.html", found, **overview_words(found))

    @app.get("/explain")
    def explain() -> tuple[str, int]:
        key = request.args.get("key", "")[:4000].replace("\0", "").strip()
        collection = request.args.get("collection", "")[:200]
        found = facts.overview.get() or Overview()
        answers = facts.explain(collection, key) if key else []
        return render("explain.html", found, answers=answers, key=key, chosen=collection)

    @app.get("/trash")
    def trash() -> tuple[str, int]:
        found = facts.overview.get() or Overview()
        return render("trash.html", found, trash=facts.trash.get() or Part(), many=MANY)

    return app


def moment(text: str | None) -> str:
    """The page says once that all times are UTC."""
    return show.moment(text).removesuffix("+00")


def is_allowed(host: str, names: list[str]) -> bool:
    """A name of the DNS may lead here from a page of its owner's; an address cannot."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name in [allowed.lower() for allowed in names]:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def render(template: str, found: Overview, **words: Any) -> tuple[str, int]:
    """Where the database does not answer, a page that says so."""
    status = found.parts.get("status", Part())
    text = render_template(
        template, found=found, place=found.place, parts=found.parts,
        collections=[row["collection"] for row in status.rows],
        refresh=request.args.get("refresh") is not None, **words)
    return text, 503 if found.problem else 200


def overview_words(found: Overview) -> dict[str, Any]:
    """What the first page shows beside the answers themselves."""
    parts = found.parts
    status = parts.get("status", Part())
    lives: dict[str, dict[str, Row]] = {}
    for row in parts.get("life", Part()).rows:
        lives.setdefault(row["collection"], {})[row["stage"]] = row
    most = max((row["rows"] or 0 for row in parts.get("life", Part()).rows), default=0)
    streams = {
        name: charts.stream([life[stage]["rows"] or 0 for stage in charts.STAGES], most)
        for name, life in lives.items()
    }
    return {
        "status": status, "lives": lives, "streams": streams, "stages": charts.STAGES,
        "few": FEW, "totals": totals(found), "attention": attention(found),
        "reclaimed": charts.reclaimed(parts.get("reclaimed", Part()).rows),
        "waits": charts.waits(parts.get("waits", Part()).rows),
    }


def totals(found: Overview) -> Row:
    """Of all collections."""
    sums: Row = {"due": 0, "waiting": 0, "bytes_waiting": 0, "failing": 0, "today": 0,
                 "bytes_today": 0, "bytes_reclaimed": 0, "seconds_ago": None}
    for row in found.parts.get("status", Part()).rows:
        sums["due"] += row["due"]
        sums["waiting"] += row["tombstones_waiting"] + row["tombstones_claimed"]
        sums["bytes_waiting"] += row["bytes_waiting"]
        sums["failing"] += row["failing"] + row["tombstones_failing"]
        sums["today"] += row["deleted_today"]
        sums["bytes_today"] += row["bytes_today"]
        ago = row["seconds_ago"]
        if ago is not None and (sums["seconds_ago"] is None or ago < sums["seconds_ago"]):
            sums["seconds_ago"] = ago
    for row in found.parts.get("reclaimed", Part()).rows:
        sums["bytes_reclaimed"] += row["bytes"]
    return sums


def attention(found: Overview) -> list[Row]:
    """What a person should look at, the worst first."""
    remarks = []
    for row in found.parts.get("status", Part()).rows:
        for column, level, what in (
            ("why", "bad", "Nothing of it is reviewed" if row["blocked"] else "In the way"),
            ("last_error", "bad", f"{show.plain(row['failing'])} reviews fail"),
            ("held_up_by", "fair", f"{show.plain(row['tombstones_held_up'])} objects are held up"),
            ("advice", "note", "Advice"),
        ):
            if row[column] and (column != "last_error" or row["failing"]):
                remarks.append({"collection": row["collection"], "level": level, "what": what,
                                "text": row[column]})
    runners = found.parts.get("runners", Part())
    if not runners.rows and not runners.problem and found.parts:
        remarks.append({"collection": "", "level": "fair", "what": "No runner",
                        "text": "none has called within a day: blobgc run --store …"})
    return sorted(remarks, key=lambda remark: ("bad", "fair", "note").index(remark["level"]))
