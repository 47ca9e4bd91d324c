"""An S3 server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

#: Credentials of a client that may write.
CREDENTIALS = {"key": "k", "secret": "s"}


@contextmanager
def s3_server() -> Iterator[str]:
    """Yield the address of a server that holds nothing yet."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
