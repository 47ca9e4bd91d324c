"""Serve the page on this machine, only to browsers on this machine."""

from __future__ import annotations

import errno
import os
import socket
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.arguments import argument
from bf16codecs._base.messages import from_extra
from bf16codecs.analysis.checkpoints import Checkpoints
from bf16codecs.view.asgi import HOSTS, application
from bf16codecs.view.connections import MOST_CONNECTIONS, Connection

with from_extra("view", "bf16codecs.view"):
    import uvicorn

__all__ = ["DEFAULT_PORT", "answering", "running", "serve"]

#: Tried first, so that a copied address works the next time; if it is in use, a free port is used.
DEFAULT_PORT = 8716

_POLL_SECONDS = 0.2
# At the end, a read in progress may take a moment, or, from a server, forever.
_PATIENCE_SECONDS = 3


@contextmanager
def running(checkpoints: Checkpoints, port: int | None = None) -> Iterator[tuple[str, Thread]]:
    """Serve the page of checkpoints inside the context: see `serve`.

    Yields the address of the page and the thread that serves it.
    """
    with answering(application(checkpoints), port) as served:
        yield served


@contextmanager
def answering(app: Any, port: int | None = None) -> Iterator[tuple[str, Thread]]:
    """Serve an ASGI application as `running` does the page."""
    config = uvicorn.Config(
        app,
        http=Connection,
        loop="asyncio",
        # This many are accepted at once, each with an open file, before one makes room for others.
        backlog=MOST_CONNECTIONS,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    listener = _listening(port)  # which the server closes
    address = f"http://{HOSTS[0]}:{listener.getsockname()[1]}/"
    # In a thread, uvicorn installs no signal handlers.
    thread = Thread(target=server.run, args=[[listener]], daemon=True)
    thread.start()
    try:
        yield address, thread
    finally:
        server.should_exit = True
        thread.join(_PATIENCE_SECONDS)


def serve(
    checkpoints: Checkpoints,
    port: int | None = None,
    *,
    opens_browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Show checkpoints in the browser until a signal ends the server.

    It listens only on 127.0.0.1. All users of this machine can open the page.

    Parameters
    ----------
    checkpoints : Checkpoints
        The models to show.
    port : int, optional
        The port; by default `DEFAULT_PORT`, or a free one. 0 is a free one.
    opens_browser : bool
        Whether to open the page, if there is a display.
    say : callable
        Called with a line that has the address of the page.

    Raises
    ------
    OSError
        If the port is in use, or this user may not use it.
    ImportError
        If the extra ``view`` is not installed.
    """
    with running(checkpoints, port) as (address, thread):
        say(f"{address} shows {checkpoints.where} (Ctrl-C ends it)")
        if opens_browser and _has_display():
            webbrowser.open(address)
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            _interrupt.check()
        raise OSError("the server ended by itself")


def _listening(port: int | None) -> socket.socket:
    """Return a socket that listens on this machine."""
    try:
        return _bound(DEFAULT_PORT if port is None else port)
    except OSError as e:
        if port is None and e.errno == errno.EADDRINUSE:
            return _bound(0)
        text = f"port {DEFAULT_PORT if port is None else port}: {os.strerror(e.errno or 0).lower()}"
        raise OSError(f"{text}; name another with {argument('port')}, or none") from e


def _bound(port: int) -> socket.socket:
    listener: Any = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # here the option permits only ports of closed connections
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOSTS[0], port))
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


def _has_display() -> bool:
    """Return whether there is a display: without one, a text browser would take the terminal."""
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
