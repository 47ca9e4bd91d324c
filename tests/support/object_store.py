"""An S3 server on this machine, moto's, which can be made to misbehave."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

#: Credentials of a client that may write.
CREDENTIALS = {"key": "k", "secret": "s"}

Start = Callable[..., Any]
App = Callable[[dict[str, Any], Start], Iterable[bytes]]

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>"
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class Faults:
    """Lets some requests to a server fail, and notes all.

    Attributes
    ----------
    requests
        The methods and paths of all requests.
    fault
        Returns what is to happen to a request, given its number, method and path: ``"busy"`` or
        ``"denied"``, an answer without doing it; ``"cut"``, no answer and nothing done; ``"lost"``,
        no answer, although it is done; ``""``, nothing.
    ignores
        Headers of requests that are dropped.
    """

    def __init__(self, app: App) -> None:
        self._app, self._lock = app, threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget the requests, and let none fail."""
        self.requests: list[tuple[str, str]] = []
        self.fault: Callable[[int, str, str], str] = lambda number, method, path: ""
        self.ignores: set[str] = set()

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        with self._lock:
            number = len(self.requests)
            method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
            self.requests.append((method, path))
        for header in self.ignores:
            environ.pop(f"HTTP_{header.upper().replace('-', '_')}", None)
        fault = self.fault(number, method, path)
        if fault in ("busy", "denied"):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            status, body = ("503 Slow Down", _SLOW_DOWN) if fault == "busy" else ("403 No", _DENIED)
            start(status, [("Content-Length", str(len(body)))])
            return [body]
        if fault == "lost":
            list(self._app(environ, lambda *args: None))
        if fault:
            # Nothing is sent: the client sees the connection end.
            environ["werkzeug.socket"].shutdown(2)
            return []
        return self._app(environ, start)


@contextmanager
def s3_server() -> Iterator[tuple[str, Faults]]:
    """Yield the address of a server that holds nothing yet, and what goes wrong with it."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    class Quiet(MotoRequestHandler):
        def log(self, *args: object) -> None:
            pass

    faults = Faults(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, faults, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", faults
    finally:
        server.shutdown()
        thread.join()


class Killed(BaseException):
    """This process is gone."""


@contextmanager
def dying(at: int, is_sent: bool) -> Iterator[None]:
    """Let this process die at a request, before or after it is sent: it sends no others."""
    from bf16codecs.store.remote import lease, object_folder

    original, lock, numbers = object_folder.ask, threading.Lock(), itertools.count(1)

    def ask(*args: Any) -> Any:
        with lock:
            number = next(numbers)
        if number > at or (number == at and not is_sent):
            raise Killed
        result = original(*args)
        if number == at:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_folder, "ask", ask)
        # Threads end with the process.
        patch.setattr(lease.Lease, "_keep", lambda self: None)
        yield


def keys_in(memory: Any) -> list[str]:
    """Return the keys of an object store."""
    return [meta["path"] for batch in memory.list() for meta in batch]
