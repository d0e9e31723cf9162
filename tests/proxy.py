"""An HTTP proxy in front of an object store: it keeps conditions, and breaks what a test wants.

fake-gcs-server deletes without looking at ifGenerationMatch; here it is looked at, and nothing is
uploaded between the look and the delete.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

# What happens to a request: a status instead of an answer; or, before or after it is passed on, a
# connection that is reset, or no answer for as long as the client waits; or one that never ends.
Fault = int | str
KINDS: tuple[Fault, ...] = (503, 429, "reset", "reset after", "hang", "hang after")


class Proxy:
    """Passes requests on to a server of this machine. Only deletes are broken or held."""

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.fault: Callable[[], Fault | None] = lambda: None
        self.fault_of: Callable[[bytes], Fault | None] = lambda body: None  # By what is asked.
        self.requests = 0  # Deletes that were asked for.
        self.hang_seconds = 1.0
        self.deletes = 0  # Those that the server has carried out, or found nothing to do for.
        self.before, self.after = threading.Event(), threading.Event()  # Cleared: held there.
        self.before.set()
        self.after.set()
        self.held = threading.Semaphore(0)
        self.lock = threading.Lock()
        proxy = self

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # Clients are killed, and connections reset, on purpose.

        class Handler(_Handler):
            owner = proxy

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=[0.02], daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fail_at_random(self, share: float) -> None:
        """Each kind of fault happens to this share of the deletes."""
        chance = random.Random(4)

        def choose() -> Fault | None:
            number = int(chance.random() / share)
            return KINDS[number] if number < len(KINDS) else None

        self.fault = choose

    def close(self) -> None:
        self.before.set()
        self.after.set()
        self.server.shutdown()
        self.server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server_side = http.client.HTTPConnection("127.0.0.1", self.owner.upstream, timeout=30)

    def finish(self) -> None:
        self.server_side.close()
        super().finish()

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_delete = self.command == "DELETE" or self.path.endswith("?delete")
        fault = self.owner.fault() or self.owner.fault_of(body) if is_delete else None
        if is_delete:
            self.owner.requests += 1
            self.wait_at(self.owner.before)
        if isinstance(fault, int):
            return self.answer(fault, [], b"injected")
        if fault == "drip":
            return self.drip()
        if fault in ("reset", "hang"):
            return self.break_off(fault)
        status, headers, content = self.pass_on(body)
        self.owner.deletes += is_delete and status < 500
        if is_delete:
            self.wait_at(self.owner.after)
        if fault in ("reset after", "hang after"):
            return self.break_off(fault)
        self.answer(status, headers, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = handle_any

    def wait_at(self, gate: threading.Event) -> None:
        if not gate.is_set():
            self.owner.held.release()
            gate.wait()

    def pass_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        parts = urlsplit(self.path)
        wanted = parse_qs(parts.query).get("ifGenerationMatch")
        if self.command == "GET":
            return self.ask(self.command, self.path, body)
        with self.owner.lock:
            if self.command == "DELETE" and wanted:
                status, _, content = self.ask("GET", parts.path, b"")
                if status == 200 and json.loads(content)["generation"] != wanted[0]:
                    return 412, [], b"{}"
            return self.ask(self.command, self.path, body)

    def ask(self, method: str, path: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        self.server_side.request(method, path, body, dict(self.headers.items()))
        response = self.server_side.getresponse()
        return response.status, response.getheaders(), response.read()

    def answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def drip(self) -> None:
        """An answer that never ends, and never lets a client wait for long."""
        self.send_response_only(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b" ")
                time.sleep(0.1)

    def break_off(self, how: str) -> None:
        if how.startswith("hang"):
            time.sleep(self.owner.hang_seconds)
        # Nothing lingers: the client sees a reset, not an end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        pass
