"""Clients of the viewer that do not read answers, or do not finish requests.

    python viewer_clients.py

measures the memory that a server takes for many of them: it prints by how many kB it has grown.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bf16codecs.view.server import answering
from viewing import Client

__all__ = ["LARGE", "Application", "Clients", "asked", "served"]

#: The size of a large answer.
LARGE = 8 << 20


class Application:
    """An application that gives a large answer or a word, and counts requests."""

    def __init__(self) -> None:
        self.answers = 0
        self.given_up = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.answers += 1
        is_large = scope["path"] == "/large"
        body = b"x" * LARGE if is_large else b"word"
        length = str(len(body)).encode()
        headers = [(b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        if is_large:
            self.given_up.set()  # or the client has read it


class Clients:
    """Sockets of clients, from which a test may read."""

    def __init__(self, address: str) -> None:
        self.port = int(address.rstrip("/").rpartition(":")[2])
        self.opened: list[socket.socket] = []

    def open(self, data: bytes = b"") -> socket.socket:
        own = socket.socket()
        own.settimeout(30)
        # Before it connects: what the system keeps for it, on its side.
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        own.connect(("127.0.0.1", self.port))
        own.sendall(data)
        self.opened.append(own)
        return own


@contextmanager
def served(app: Application) -> Iterator[tuple[Client, Clients]]:
    with answering(app, 0) as (address, _):
        clients = Clients(address)
        try:
            yield Client(address), clients
        finally:
            for own in clients.opened:
                own.close()


def asked(path: str, count: int = 1) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * count


def _grown() -> int:
    """Let 99 clients read a byte of an answer; return by how many kB that made the process grow."""
    import resource  # which Windows lacks

    with served(Application()) as (client, clients):
        client.get("/large")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(99):
            clients.open(asked("/large")).recv(1)
        assert client.get("/")[2] == b"word"
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


if __name__ == "__main__":
    print(_grown())
