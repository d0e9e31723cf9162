"""HTTP on one port: for a few clients at a time, none of them for long.

What is answered is a WSGI application's: that of /metrics, that of the page, or both.
"""

import contextlib
import http.server
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from wsgiref.simple_server import WSGIRequestHandler

from blobgc.errors import Unusable, reason
from blobgc.logs import log

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

AGE = 5.0  # Seconds for which a cached answer is good, at least.
SHARE = 10  # Making an answer takes at most one part in so many of the time.
CLIENTS = 16  # Who has asked, or not yet.
PATIENCE = 5.0  # Seconds for each step of a client.

Answer = TypeVar("Answer")


class Cached(Generic[Answer]):
    """An answer that is made by one thread at a time, and is good for a few seconds."""

    def __init__(self, make: Callable[[], Answer]) -> None:
        self.make = make
        self.lock = threading.Lock()
        self.answer: Answer | None = None
        self.good_until = 0.0

    def get(self) -> Answer | None:
        """Who does not get the lock in time takes what there is; None: nothing so far."""
        if self.lock.acquire(timeout=PATIENCE):
            try:
                begun = time.monotonic()
                if begun >= self.good_until:
                    self.answer = self.make()
                    now = time.monotonic()
                    self.good_until = now + max(AGE, SHARE * (now - begun))
            finally:
                self.lock.release()
        return self.answer


class Server(http.server.ThreadingHTTPServer):
    """Serves a few connections at a time, none of them for long."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: str, port: int, option: str) -> None:
        """The option is what the port was given by: "--port"; that of the address is like it."""
        self.application: WSGIApplication | None = None  # Until there is something to show.
        self.clients: dict[socket.socket, float] = {}  # Since when, the longest first.
        self.silent: list[socket.socket] = []  # Those that have not asked yet.
        self.lock = threading.Lock()
        try:
            found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
            self.address_family = found[0][0]
            super().__init__((address, port), Handler)
        except OSError as error:
            raise Unusable(f"{option.replace('port', 'address')} {address} {option} {port}: "
                           f"{reason(error)}") from error

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own asks the DNS for a name.
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.base_environ = {"SERVER_NAME": self.server_name, "SERVER_PORT": str(self.server_port),
                             "GATEWAY_INTERFACE": "CGI/1.1", "SCRIPT_NAME": ""}

    def get_app(self) -> "WSGIApplication":
        return self.application or not_yet

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
        log.debug("a client: %s", sys.exc_info()[1])


def hang_up(client: socket.socket) -> None:
    """Whatever its thread waits for, it does not come. The thread closes it."""
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


class Handler(WSGIRequestHandler):
    server: Server
    timeout = PATIENCE

    def parse_request(self) -> bool:
        is_whole = super().parse_request()
        if is_whole:
            self.server.has_asked(self.connection)
        return is_whole

    def log_message(self, format: str, *arguments: object) -> None:
        log.debug(format, *arguments)


def plain_answer(start: Any, status: str, text: bytes) -> list[bytes]:
    """For programs, which need no page."""
    start(status, [("Content-Type", "text/plain; version=0.0.4; charset=utf-8"),
                   ("Content-Length", str(len(text))), ("Server", "blobgc")])
    return [text]


def not_yet(environ: Any, start: Any) -> list[bytes]:
    return plain_answer(start, "503 Service Unavailable", b"not yet\n")
