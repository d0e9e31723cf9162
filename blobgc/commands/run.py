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
    add("--threads", type=int, default=16, help="requests at a time, at most")
    add("--rate", type=float, default=float("inf"), help="deletes a second, at most")
    add("--worker", default=f"{os.uname().nodename}-{os.getpid()}-{os.urandom(3).hex()}",
        help="a name that no other runner has")
    add("--careful", action="store_true",
        help="look at every object before it is deleted: one that was written since stays")
    add("--metrics-port", type=int, help="serve /metrics and /healthz there")
    add("--metrics-address", default="127.0.0.1", help="listen there, and nowhere else")
    add("--log-json", action="store_true", help="log lines of JSON")
    add("-v", "--verbose", action="store_true", help="log more, the url of each object too")


def check(options: argparse.Namespace) -> None:
    for number in (options.batch, options.threads, options.rate, options.timeout):
        if not number > 0:
            raise Unusable("--batch, --threads, --rate and --timeout must be positive, and --lease "
                           "at least four times --timeout")
    if not 4 * options.timeout <= options.lease < math.inf:
        raise Unusable("--lease must be finite and --lease at least four times --timeout")
    if not 0 <= options.wait < math.inf:
        raise Unusable("--wait is a number of seconds")
    if options.metrics_port is not None and not 0 < options.metrics_port < 65536:
        raise Unusable("--metrics-port is between 1 and 65535")


def run(options: argparse.Namespace) -> int:
    has_bar = options.once and sys.stderr.isatty() and not (options.verbose or options.log_json)
    level = "DEBUG" if options.verbose else "WARNING" if has_bar else "INFO"
    logs.set_up(options.log_json, level)
    check(options)
    stop = runner.stop_on_signals()
    server = None
    if options.metrics_port:
        from blobgc.metrics import MetricsServer
        server = MetricsServer(options.metrics_address, options.metrics_port)
        server.start()
    at_work = runner.Runner(options, stop)
    threading.Thread(target=runner.end_in_time, args=[at_work], daemon=True).start()
    if server:
        server.show(at_work)
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
