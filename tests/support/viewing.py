"""Serves the viewer's page for a test, and opens it in a browser."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from bf16codecs.analysis.checkpoints import Checkpoints
from bf16codecs.view.server import running

__all__ = ["Answer", "Client", "Looking", "browser_program", "viewing"]

Answer = tuple[int, dict[str, str], bytes]


def browser_program() -> str | None:
    """Return the path of a Chromium, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


class Client:
    """A client that sends requests to the viewer."""

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
        """Return the JSON of an answer."""
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


class Looking:
    """A page in a browser."""

    def __init__(self, browser: Any, client: Client, folder: Path) -> None:
        self.client = client
        self._context = browser.new_context(viewport={"width": 1280, "height": 860})
        self.page = self._context.new_page()
        self._folder, self._pictures = folder, 0
        #: Messages of the page to the console, and the addresses that it requested.
        self.complaints: list[str] = []
        self.requests: list[str] = []
        #: Errors that a test expects in the console.
        self.expected: str | None = None
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, query: str = "") -> None:
        self.page.goto(self.client.address + query)
        self.settle()

    def settle(self) -> None:
        """Wait until the page has drawn everything."""
        self.page.wait_for_selector('body[data-waiting="0"] main:not([aria-busy])')

    @property
    def query(self) -> dict[str, str]:
        """The query of the page's address."""
        return dict(parse_qsl(urlsplit(self.page.url).query))

    def text(self, selector: str) -> str:
        found: str = self.page.inner_text(selector)
        return found

    def key(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def click(self, selector: str) -> None:
        self.page.click(selector)
        self.settle()

    def choose(self, selector: str, value: str) -> None:
        self.page.select_option(selector, value)
        self.settle()

    def shown(self) -> str:
        """Return the caption of the picture: its contents, rows and columns."""
        return str(self.page.get_attribute(".heat", "data-shown"))

    def colours(self) -> int:
        """Return how many colours the canvas of cells has."""
        count: int = self.page.eval_on_selector(
            "canvas.cells",
            """canvas => {
              const { width, height } = canvas;
              const data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
              return new Set(new Uint32Array(data.buffer)).size;
            }""",
        )
        return count

    def screenshot(self) -> bytes:
        """Save a screenshot of the page in the test's folder."""
        self._pictures += 1
        data: bytes = self.page.screenshot(path=self._folder / f"page-{self._pictures}.png")
        return data

    def check(self) -> None:
        """Fail if the page logged an error, or requested anything from another host."""
        wrong = [own for own in self.complaints if not self.expected or self.expected not in own]
        assert not wrong
        assert all(url.startswith(self.client.address) for url in self.requests), self.requests

    def close(self) -> None:
        self._context.close()
