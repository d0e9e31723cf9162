"""/metrics for Prometheus, and /healthz."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import psycopg
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from blobgc.logs import log
from blobgc.serving import Cached, plain_answer

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from blobgc.runner import Runner


class Collector:
    """What this process has done, and what the database says."""

    def __init__(self, runner: "Runner") -> None:
        self.runner = runner

    def collect(self) -> Iterator[Metric]:
        for what, count in sorted(self.runner.counters.copy().items()):
            yield CounterMetricFamily(
                f"blobgc_runner_{what}", "What this process has done", value=count)
        yield from text_string_to_metric_families(self.from_database())

    def from_database(self) -> str:
        """By a connection of its own, so that it never waits for what the runner does."""
        lines = []
        last = ""
        for name, kind, text, labels, value in self.rows():
            if name != last:
                lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
                last = name
            lines.append(f"{name}{{{labels}}} {value}")
        return "\n".join(lines) + "\n"

    def rows(self) -> list[tuple[Any, ...]]:
        try:
            with psycopg.connect(self.runner.options.dsn, connect_timeout=5, autocommit=True,
                                 tcp_user_timeout=60_000, client_encoding="utf8") as connection:
                return connection.execute("table gc.metrics").fetchall()
        except psycopg.Error as error:
            log.debug("no metrics from the database: %s", error)
            return []


class Application:
    """Answers /metrics and /healthz; all else is left to the page, if there is one."""

    def __init__(self, runner: "Runner", page: "WSGIApplication | None") -> None:
        self.runner = runner
        self.page = page
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Collector(runner))
        self.metrics = Cached(lambda: generate_latest(registry))

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        is_ours = path in ("/metrics", "/healthz")
        if self.page and not is_ours:
            return self.page(environ, start)
        if environ["REQUEST_METHOD"] != "GET":
            return plain_answer(start, "405 Method Not Allowed", b"only GET\n")
        if path == "/metrics":
            return plain_answer(start, "200 OK", self.metrics.get() or b"")
        if path == "/healthz":
            is_well = not self.runner.database.connection.closed
            status = "200 OK" if is_well else "503 Service Unavailable"
            return plain_answer(start, status, f"database: {is_well}\n".encode())
        return plain_answer(start, "404 Not Found", b"there are /metrics and /healthz\n")
