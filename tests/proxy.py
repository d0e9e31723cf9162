"""An HTTP proxy in front of an object store: it keeps conditions, and breaks what a test wants.

fake-gcs-server deletes without looking at ifGenerationMatch; here it is looked at, and nothing is
uploaded between the look and the delete. A batch of deletes is split for the same reason.
"""

from __future__ import annotations

import contextlib
import email
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
BATCH = "/batch/storage/v1"
Answer = tuple[int, list[tuple[str, str]], bytes]
KINDS: tuple[Fault, ...] = (503, 429, "reset", "reset after", "hang", "hang after")


class Proxy:
    """Passes requests on to a server of this machine. Only deletes are held; reads can break."""

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.fault: Callable[[], Fault | None] = lambda: None
        # By what is asked: the body, or each part of a batch for GCS.
        self.fault_of: Callable[[bytes], Fault | None] = lambda body: None
        self.fault_of_read: Callable[[str], Fault | None] = lambda path: None
        self.requests = 0  # Deletes that were asked for.
        self.delay = 0.0  # Seconds that each request takes longer.
        # What a runner asks at its start, before it deletes anything, is passed on and not counted.
        self.spares_probes = True
        self.hang_seconds = 1.0
        self.drops_conditions = False  # As a store that does not know them.
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
        time.sleep(self.owner.delay)
        is_delete = self.is_delete(body)
        fault = self.owner.fault_of_read(self.path) if self.command == "GET" else None
        if is_delete:
            fault = self.owner.fault()
            if not fault and self.path != BATCH:
                fault = self.owner.fault_of(body)
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

    def is_delete(self, body: bytes) -> bool:
        """Whether it is to be counted and perhaps broken."""
        if not (self.command == "DELETE" or self.path == BATCH or self.path.endswith("?delete")
                or self.path.endswith("comp=batch")):
            return False
        if b".blobgc-" in self.path.encode() + body and self.owner.spares_probes:
            return False
        self.owner.spares_probes = False
        return True

    def wait_at(self, gate: threading.Event) -> None:
        if not gate.is_set():
            self.owner.held.release()
            gate.wait()

    def pass_on(self, body: bytes) -> Answer:
        if self.path == BATCH:
            return self.split(body)
        if self.command == "GET":
            return self.ask(self.command, self.path, body)
        with self.owner.lock:
            return self.ask_on_condition(self.command, self.path, body)

    def ask_on_condition(self, method: str, path: str, body: bytes) -> Answer:
        parts = urlsplit(path)
        wanted = parse_qs(parts.query).get("ifGenerationMatch")
        if method == "DELETE" and wanted:
            status, _, content = self.ask("GET", parts.path, b"")
            if status == 200 and json.loads(content)["generation"] != wanted[0]:
                return 412, [], b"{}"
        return self.ask(method, path, body)

    def split(self, body: bytes) -> Answer:
        """Answers a batch of deletes part by part."""
        head = f"Content-Type: {self.headers['Content-Type']}\n\n".encode()
        answer = b""
        parts = list(email.message_from_bytes(head + body).walk())[1:]
        if len(parts) > 100:
            return 400, [], b"a batch has at most 100 parts"
        for part in parts:
            method, url, _ = str(part.get_payload()).splitlines()[0].split(" ")
            assert method == "DELETE", method
            address = urlsplit(url)
            is_probe = ".blobgc-" in url
            fault = None if is_probe else self.owner.fault_of(url.encode())
            if fault:
                assert isinstance(fault, int)
                status, content = fault, b"injected"
            else:
                with self.owner.lock:
                    path = f"{address.path}?{address.query}"
                    status, _, content = self.ask_on_condition(method, path, b"")
            answer += (f"--part\r\nContent-Type: application/http\r\n\r\nHTTP/1.1 {status} "
                       f"{http.client.responses[status]}\r\nContent-Type: application/json\r\n"
                       f"\r\n").encode() + content + b"\r\n"
        kind = ("Content-Type", "multipart/mixed; boundary=part")
        return 200, [kind], answer + b"--part--"

    def ask(self, method: str, path: str, body: bytes) -> Answer:
        headers = dict(self.headers.items())
        if self.owner.drops_conditions:
            headers = {n: headers[n] for n in headers if not n.lower().startswith("if-")}
        if self.path == BATCH:
            headers = {"Host": self.headers["Host"]}  # The others are of the whole batch.
        self.server_side.request(method, path, body, headers)
        response = self.server_side.getresponse()
        return response.status, response.getheaders(), response.read()

    def answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        length = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
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
