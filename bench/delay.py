"""A network that is not there: a proxy before the server that holds back what passes through."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def far_away(delay: float) -> Iterator[dict[str, str]]:
    """Where to connect to, so that everything takes this many seconds longer each way.

    Good for questions and answers of one packet; a stream would come in steps of that length.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept_all, args=(listener, delay), daemon=True).start()
        yield {"host": "127.0.0.1", "port": str(listener.getsockname()[1])}
        listener.shutdown(socket.SHUT_RDWR)


def accept_all(listener: socket.socket, delay: float) -> None:
    """Until the listener is shut down."""
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", int(os.environ["PGPORT"])))
            for source, sink in (client, server), (server, client):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=carry, args=(source, sink, delay), daemon=True).start()


def carry(source: socket.socket, sink: socket.socket, delay: float) -> None:
    """One direction of a connection. When either end is gone, so is the other."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            time.sleep(delay)
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
    source.close()
