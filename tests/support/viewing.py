"""The viewer's page, served for a test, and a browser that looks at it."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

from bf16codecs.view.checkpoints import Checkpoints
from bf16codecs.view.server import running

__all__ = ["Answer", "Client", "browser_program", "viewing"]

Answer = tuple[int, dict[str, str], bytes]


def browser_program() -> str | None:
    """Return the path of a Chromium, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


class Client:
    """Asks the viewer."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._host = urlsplit(address).netloc

    def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection(self._host, timeout=30)
        try:
            connection.request("GET", path, headers=headers or {})
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, named, answer.read()
        finally:
            connection.close()

    def ask(self, path: str, status: int = 200, **query: Any) -> Any:
        """Return what a question is answered with, as JSON has it."""
        found, _, body = self.get(f"/api/{path}?{urlencode(query)}")
        assert found == status, body
        return json.loads(body)

    def picture(self, **query: Any) -> tuple[dict[str, Any], bytes]:
        """Return the header of a picture, and the bytes behind it."""
        status, _, body = self.get(f"/api/picture?{urlencode(query)}")
        assert status == 200, body
        length = int.from_bytes(body[:4], "little")
        return json.loads(body[4 : 4 + length]), body[4 + length :]


@contextmanager
def viewing(*sources: Any, base: Any = None, **options: Any) -> Iterator[Client]:
    """Serve the page of some models."""
    checkpoints = Checkpoints(sources, base, **options)
    try:
        with running(checkpoints, 0) as (address, _):
            yield Client(address)
    finally:
        checkpoints.close()
