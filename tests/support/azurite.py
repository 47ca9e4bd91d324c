"""An Azure Blob Storage server on this machine: Azurite, of npm."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from waiting import wait_until

_ACCOUNT = "devstoreaccount1"
# Of every Azurite.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def command() -> str | None:
    """Return the program; None if it is neither beside Python nor in the path."""
    folders = [os.path.dirname(sys.executable), *os.get_exec_path()]
    return shutil.which("azurite-blob", path=os.pathsep.join(folders))


@contextmanager
def azurite(container: str) -> Iterator[dict[str, Any]]:
    """Yield the options for a client of a server that has a container."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    server = subprocess.Popen(
        [str(command()), "--blobHost", "127.0.0.1", "--blobPort", str(port), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_until(lambda: _answers(port))
        _make_container(f"http://127.0.0.1:{port}/{_ACCOUNT}", container)
        yield {
            "account_name": _ACCOUNT,
            "account_key": _KEY,
            "endpoint": f"http://127.0.0.1:{port}/{_ACCOUNT}",
        }
    finally:
        server.terminate()
        server.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _make_container(server: str, name: str) -> None:
    now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    text = "PUT" + "\n" * 12 + f"x-ms-date:{now}\nx-ms-version:2021-12-02\n"
    text += f"/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
    mac = hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": now,
        "x-ms-version": "2021-12-02",
        "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(mac).decode()}",
        "Content-Length": "0",
    }
    request = urllib.request.Request(
        f"{server}/{name}?restype=container", method="PUT", headers=headers
    )
    urllib.request.urlopen(request).close()
