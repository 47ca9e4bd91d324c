"""An HTTP server for files that notes its requests and can be made to misbehave."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


class _QuietServer(ThreadingHTTPServer):
    """Says nothing of clients that close a connection before a reply ends."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class FileServer:
    """Serves a folder.

    `requests` lists method, path and range of each request, and `sent` the bytes of each reply.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.requests: list[tuple[str, str, str | None]] = []
        self.sent: list[int] = []
        self.ignore_ranges = False
        #: Whether replies have an ETag, as large servers send.
        self.has_etags = False
        #: Replies for paths that contain this end after half of their bytes.
        self.drop: str | None = None
        #: A regular expression: paths in which it is found are forbidden.
        self.deny: str | None = None
        #: The status for missing files.
        self.missing = 404
        #: How many of the next requests are answered with 503, or with 429 if it says for how many
        #: seconds.
        self.failures = 0
        self.retry_after: int | None = None
        #: Called with the headers of each request.
        self.note_headers: Callable[[Mapping[str, str]], object] = lambda headers: None
        self._http = _QuietServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=[0.02], daemon=True)

    def clear(self) -> None:
        self.requests.clear()
        self.sent.clear()

    def path_of(self, path: str) -> Path:
        return self.root / unquote(urlsplit(path).path).lstrip("/")

    def _handler(server) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or each reply, of two writes, takes 40 ms

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                server.note_headers(self.headers)
                server.requests.append((self.command, self.path, asked))
                path = server.path_of(self.path)
                if server.failures:
                    server.failures -= 1
                    if server.retry_after is None:
                        self.reply(503, b"")
                    else:
                        self.reply(429, b"", {"Retry-After": str(server.retry_after)})
                elif server.deny and re.search(server.deny, self.path):
                    self.reply(403, b"")
                elif not path.is_file():
                    self.reply(server.missing, b"")
                else:
                    self.reply_file(path.read_bytes(), asked)

            def reply_file(self, data: bytes, asked: str | None) -> None:
                if server.has_etags and self.headers.get("If-None-Match") == self.etag():
                    self.reply(304, b"")
                    return
                match = re.fullmatch(r"bytes=(\d*)-(\d*)", asked or "")
                if not match or server.ignore_ranges:
                    self.reply(200, data)
                    return
                if match[1]:
                    first, last = int(match[1]), int(match[2] or len(data) - 1)
                else:
                    first, last = max(0, len(data) - int(match[2])), len(data) - 1
                last = min(last, len(data) - 1)
                if first > last:
                    self.reply(416, b"")
                    return
                content = f"bytes {first}-{last}/{len(data)}"
                self.reply(206, data[first : last + 1], {"Content-Range": content})

            def etag(self) -> str:
                return f'"{server.path_of(self.path).stat().st_mtime_ns}"'

            def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if not server.ignore_ranges:
                    self.send_header("Accept-Ranges", "bytes")
                path = server.path_of(self.path)
                if server.has_etags and path.is_file():
                    self.send_header("ETag", self.etag())
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "HEAD":
                    return
                if server.drop and server.drop in self.path:
                    self.wfile.write(body[: len(body) // 2])
                    self.close_connection = True
                    return
                server.sent.append(len(body))
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        return Handler


@contextmanager
def serving(root: Path):
    """Serve a folder for a while."""
    server = FileServer(root)
    server._thread.start()
    try:
        yield server
    finally:
        server._http.shutdown()
        server._http.server_close()
