"""Serve a page that shows what is collected, what waits, what fails and why.

It only reads, with a viewer's rights: select gc.grant_viewer('role'). There is no password, so it
listens on loopback unless told otherwise.
"""

import argparse
from typing import TYPE_CHECKING

from blobgc import logs, runner
from blobgc.database import Database
from blobgc.errors import SUCCESS, Unusable
from blobgc.logs import log

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

GRANT = "viewer"


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dsn", default="", help="connection string or URL")
    add("--port", type=int, default=8187, help="listen on this port")
    add("--address", default="127.0.0.1", help="listen there, and nowhere else")
    add("--allow-host", action="append", default=[], metavar="NAME",
        help="a name by which browsers may ask, besides localhost and addresses")


def run(options: argparse.Namespace) -> int:
    logs.set_up(as_json=False, level="INFO")
    if not 0 < options.port < 65536:
        raise Unusable("--port is between 1 and 65535")
    stop = runner.stop_on_signals()
    page = open_page(options.dsn, options.allow_host)
    from blobgc.serving import Server
    server = Server(options.address, options.port, "--port")
    database = Database(options.dsn, stop, patience=float("inf"))
    version, place = database.version(), database.describe()
    database.connection.close()
    server.application = page
    server.start()
    host = f"[{options.address}]" if ":" in options.address else options.address
    log.info("the page of database %s (blobgc %s) is at http://%s:%s/", place, version, host,
             options.port)
    stop.wait()
    server.shutdown()
    return SUCCESS


def open_page(dsn: str, names: list[str]) -> "WSGIApplication":
    try:
        from blobgc.page import make_page
    except ImportError as error:
        raise Unusable(f"the page needs {error.name}: pip install 'blobgc[page]'") from error
    return make_page(dsn, names)
