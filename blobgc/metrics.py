"""/metrics for Prometheus, and /healthz: on loopback unless told otherwise, for a few at a time."""

import contextlib
import http.server
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from blobgc.errors import Unusable, reason
from blobgc.logs import log

if TYPE_CHECKING:
    from blobgc.runner import Runner

AGE = 5.0  # Seconds for which an answer to /metrics is good.
CLIENTS = 16  # Who has asked, or not yet.
PATIENCE = 5.0  # Seconds for each step of a client.


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


class Metrics:
    """The answer to /metrics: made by one connection at a time, and good for a few seconds."""

    def __init__(self, runner: "Runner") -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(Collector(runner))
        self.lock = threading.Lock()
        self.text = b""
        self.good_until = 0.0

    def get(self) -> bytes:
        """Who does not get the lock in time takes what there is."""
        if self.lock.acquire(timeout=PATIENCE):
            try:
                if time.monotonic() >= self.good_until:
                    self.text = generate_latest(self.registry)
                    self.good_until = time.monotonic() + AGE
            finally:
                self.lock.release()
        return self.text


class MetricsServer(http.server.ThreadingHTTPServer):
    """Serves a few connections at a time, none of them for long."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: str, port: int) -> None:
        self.runner: Runner | None = None  # Until it has started.
        self.metrics: Metrics | None = None
        self.clients: dict[socket.socket, float] = {}  # Since when, the longest first.
        self.silent: list[socket.socket] = []  # Those that have not asked yet.
        self.lock = threading.Lock()
        try:
            found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
            self.address_family = found[0][0]
            super().__init__((address, port), MetricsHandler)
        except OSError as error:
            raise Unusable(f"--metrics-address {address} --metrics-port {port}: "
                           f"{reason(error)}") from error

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def show(self, runner: "Runner") -> None:
        self.metrics = Metrics(runner)
        self.runner = runner

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own asks the DNS for a name.
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Who has said nothing for longest makes room; a thread takes a moment to end, though."""
        with self.lock:
            if len(self.clients) >= 2 * CLIENTS:
                return False
            if len(self.silent) >= CLIENTS:
                hang_up(self.silent.pop(0))
            self.silent.append(request)
            self.clients[request] = time.monotonic()
        return True

    def has_asked(self, client: socket.socket) -> None:
        with self.lock:
            if client in self.silent:
                self.silent.remove(client)

    def service_actions(self) -> None:
        """Twice a second."""
        with self.lock:
            for client, since in self.clients.items():
                if time.monotonic() - since > 2 * PATIENCE:
                    hang_up(client)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.has_asked(request)
        with self.lock:
            self.clients.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client of /metrics: %s", sys.exc_info()[1])


def hang_up(client: socket.socket) -> None:
    """Whatever its thread waits for, it does not come. The thread closes it."""
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


class MetricsHandler(http.server.BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = PATIENCE

    def do_GET(self) -> None:
        self.server.has_asked(self.connection)
        runner, metrics = self.server.runner, self.server.metrics
        if self.path == "/metrics":
            self.answer(200, metrics.get() if metrics else b"")
        elif self.path == "/healthz":
            is_well = runner is not None and not runner.database.connection.closed
            self.answer(200 if is_well else 503, f"database: {is_well}\n".encode())
        else:
            self.answer(404, b"there are /metrics and /healthz\n")

    def answer(self, code: int, text: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:
        log.debug(format, *arguments)
