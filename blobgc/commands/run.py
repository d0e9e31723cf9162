"""Review rows, and delete the objects of those that are gone.

It stays and waits for more, unless it is told --once. The connection comes from libpq's variables
(PGHOST, PGSERVICE, ...) or from --dsn, credentials for a store from where its library looks.
"""

import argparse
import math
import os
import sys
import threading

from blobgc import logs, runner
from blobgc.commands.page import open_page
from blobgc.errors import Unusable


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dsn", default="", help="connection string or URL")
    add("--store", action="append", required=True, metavar="PREFIX", help="delete only under this")
    add("--once", action="store_true", help="end when nothing is due")
    add("--wait", type=float, default=30,
        help="with --once: seconds for what is held up, and for a database that does not answer")
    add("--batch", type=int, default=1000, help="rows or objects at a time")
    add("--lease", type=float, default=300, help="seconds for which objects are claimed")
    add("--timeout", type=float, default=10, help="seconds for a request to a store")
    add("--threads", type=int,
        help="requests at a time, at most; without it 16, and 4 for files")
    add("--rate", type=float, default=float("inf"), help="deletes a second, at most")
    add("--pace", type=float, metavar="SHARE",
        help="of the time that it reviews, and that it claims: up to 1; without it, what "
        "gc.settings says, and 1 with --once")
    add("--worker", default=f"{os.uname().nodename}-{os.getpid()}-{os.urandom(3).hex()}",
        help="a name that no other runner has")
    add("--careful", action="store_true",
        help="look at every object before it is deleted: one that was written since stays")
    add("--metrics-port", type=int, help="serve /metrics and /healthz there")
    add("--metrics-address", default="127.0.0.1", help="listen there, and nowhere else")
    add("--page", action="store_true", help="serve the page there as well: see blobgc page")
    add("--page-dsn", help="the page's connection, of a role that may view; without it, --dsn")
    add("--allow-host", action="append", default=[], metavar="NAME",
        help="a name by which browsers may ask for the page, besides localhost and addresses")
    add("--log-json", action="store_true", help="log lines of JSON")
    add("-v", "--verbose", action="store_true", help="log more, the url of each object too")


def check(options: argparse.Namespace) -> None:
    for number in (options.batch, options.threads, options.rate, options.timeout):
        if number is not None and not number > 0:
            raise Unusable("--batch, --threads, --rate and --timeout must be positive, and --lease "
                           "at least four times --timeout")
    if not 4 * options.timeout <= options.lease < math.inf:
        raise Unusable("--lease must be finite and --lease at least four times --timeout")
    if options.pace is not None and not 0 < options.pace <= 1:
        raise Unusable("--pace is a share of the time: above 0, up to 1")
    if not 0 <= options.wait < math.inf:
        raise Unusable("--wait is a number of seconds")
    if options.metrics_port is not None and not 0 < options.metrics_port < 65536:
        raise Unusable("--metrics-port is between 1 and 65535")
    if options.page and options.metrics_port is None:
        raise Unusable("--page is served on --metrics-port, which is not given")


def run(options: argparse.Namespace) -> int:
    has_bar = options.once and sys.stderr.isatty() and not (options.verbose or options.log_json)
    level = "DEBUG" if options.verbose else "WARNING" if has_bar else "INFO"
    logs.set_up(options.log_json, level)
    check(options)
    stop = runner.stop_on_signals()
    server = page = None
    if options.page:
        page = open_page(options.dsn if options.page_dsn is None else options.page_dsn,
                         options.allow_host)
    if options.metrics_port:
        from blobgc.serving import Server
        server = Server(options.metrics_address, options.metrics_port, "--metrics-port")
        server.start()
    at_work = runner.Runner(options, stop)
    threading.Thread(target=runner.end_in_time, args=[at_work], daemon=True).start()
    if server:
        from blobgc.metrics import Application
        server.application = Application(at_work, page)
    return run_with_bar(at_work) if has_bar else at_work.run()


def run_with_bar(at_work: runner.Runner) -> int:
    from blobgc.bar import Bar
    whole = 0
    for row in at_work.status():
        whole += row["due"] + row["tombstones_waiting"]
    at_work.bar = Bar(whole)
    try:
        return at_work.run()
    finally:
        at_work.bar.end(at_work.counters)
