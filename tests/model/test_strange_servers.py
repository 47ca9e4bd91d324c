"""Servers of strangers: what they send without an end, compressed, slowly, or from elsewhere."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bf16codecs
import tiers
from bf16codecs._chunks import http
from bf16codecs.errors import ServerError
from lazy_models import weights, write_store
from looping import noted
from servers import serving
from store_limits import lower_limits

pytestmark = [
    pytest.mark.usefixtures("aiohttp"),
    pytest.mark.filterwarnings("ignore:Unclosed client session"),
]

ARRAY = weights((64, 64))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    write_store(root / "m.zarr", {"w": ARRAY, "n": np.arange(100)})
    return root


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(root: Path, answers: dict[str, Answer]) -> Iterator[str]:
    """Serve a folder, with other answers for paths that end so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            for end, answer in answers.items():
                if self.path.endswith(end):
                    answer(self)
                    return
            path = root / self.path.lstrip("/")
            self.send_response(200 if path.is_file() else 404)
            self.end_headers()
            if path.is_file():
                self.wfile.write(path.read_bytes())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Endless:
    """Sends zeros as long as anybody reads them, and counts."""

    def __init__(self, **headers: str) -> None:
        self.headers, self.sent = headers, 0
        self.ended = threading.Event()

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        for name, value in self.headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        block = bytes(1 << 16)
        if self.headers:
            block = gzip.compress(bytes(1 << 26))
        try:
            while True:
                handler.wfile.write(block)
                self.sent += len(block)
        except OSError:
            self.ended.set()


@pytest.mark.parametrize("name", ["w", "n"])
@pytest.mark.parametrize("selection", [..., 3])
def test_a_chunk_without_an_end(root, name, selection):
    endless = Endless()
    with answering(root, {f"{name}/c.0": endless, f"{name}/c.0.0": endless}) as url:
        tensor = bf16codecs.open_model(f"{url}/m.zarr")[name]
        for read in (lambda: tensor[selection], lambda: tensor.zarr[selection]):
            with pytest.raises((ValueError, OSError), match="got more"):
                read()
            assert endless.ended.wait(30), "the connection is closed"
    # What is under way in sockets and buffers, beside the few kB that a chunk may have.
    assert endless.sent < 64 << 20


def test_metadata_without_an_end(root, monkeypatch):
    endless = Endless()
    monkeypatch.setattr("bf16codecs.store.zarr_source.MAX_METADATA_BYTES", 1 << 20)
    with answering(root, {"zarr.json": endless}) as url:
        with pytest.raises((ValueError, OSError), match="got more"):
            bf16codecs.open_model(f"{url}/m.zarr")
        assert endless.ended.wait(30)
    assert endless.sent < 32 << 20


@pytest.mark.parametrize("path", ["zarr.json", "w/c.0.0"])
def test_what_was_sent_compressed_is_not_inflated(root, path):
    """64 MiB in 64 kB, again and again."""
    endless = Endless(Content_Encoding="gzip")
    with answering(root, {path: endless}) as url:
        with pytest.raises((ValueError, OSError), match="sent compressed"):
            bf16codecs.open_model(f"{url}/m.zarr").load()
        assert endless.ended.wait(30)
    assert endless.sent < 32 << 20


def test_an_error_of_any_length_is_an_error(root):
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(500)
        handler.end_headers()
        Endless.__call__(Endless(), _Headless(handler))

    with answering(root, {"w/c.0.0": answer}) as url, pytest.raises(OSError, match="500"):
        bf16codecs.open_model(f"{url}/m.zarr")["w"][3]


class _Headless:
    """A request whose headers have been sent."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self.wfile = handler.wfile

    def send_response(self, status: int) -> None:
        pass

    def end_headers(self) -> None:
        pass


def redirect(target: str, header: str = "Location") -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header(header, target)
        handler.end_headers()

    return answer


@pytest.mark.parametrize("header", ["Location", "URI"])
@pytest.mark.parametrize("path", ["zarr.json", "w/c.0.0"])
def test_a_redirect_to_another_host_is_refused(root, path, header):
    with serving(root) as inside:
        target = f"{inside.url}/m.zarr/{path}"
        with answering(root, {path: redirect(target, header)}) as url:
            with pytest.raises((ValueError, OSError), match="redirected to another host"):
                bf16codecs.open_model(f"{url}/m.zarr").load()
            assert not inside.requests
            options = {"client_kwargs": {"other_hosts": True}}
            with bf16codecs.open_model(f"{url}/m.zarr", storage_options=options) as model:
                assert model.load()["w"].tobytes() == ARRAY.tobytes()
            assert inside.requests


def test_a_redirect_on_the_same_host_is_followed(root):
    with answering(root, {"old.zarr/zarr.json": redirect("/m.zarr/zarr.json")}) as url:
        model = bf16codecs.open_model(f"{url}/old.zarr")
        assert model["w"].shape == ARRAY.shape


def test_which_redirects_are_followed():
    import yarl

    for here, there, allowed in (
        ("http://a/x", "https://a/x", True),
        ("https://a/x", "http://a/x", False),
        ("https://a/x", "https://a:444/x", False),
        ("https://a/x", "https://b/x", False),
        ("https://a/x", "//b/x", False),
        ("https://a/x", "y", True),
    ):
        response = SimpleNamespace(headers={"Location": there})
        redirected = SimpleNamespace(url=yarl.URL(here), response=response)
        asked = http._refuse_other_host(None, None, redirected)
        with noted(here, there):
            if allowed:
                asyncio.run(asked)
            else:
                with pytest.raises(bf16codecs.store.StoreError, match="another host"):
                    asyncio.run(asked)


@pytest.mark.parametrize("options", [{}, {"client_kwargs": {"other_hosts": True}}])
def test_redirects_of_zip_files(root, options):
    write_store(root / "m.zarr.zip", {"w": ARRAY})
    with serving(root) as inside:
        answers = {"m.zarr.zip": redirect(f"{inside.url}/m.zarr.zip")}
        with answering(root, answers) as url:
            if options:
                model = bf16codecs.open_model(f"{url}/m.zarr.zip", storage_options=options)
                assert model["w"][3].tobytes() == ARRAY[3].tobytes()
            else:
                with pytest.raises((ValueError, OSError)):
                    bf16codecs.open_model(f"{url}/m.zarr.zip")
                assert not inside.requests


def test_a_large_model_asks_for_few_sizes(root, server_of_many, monkeypatch):
    lower_limits(monkeypatch, 10_000)
    with bf16codecs.open_model(f"{server_of_many.url}/many.zarr") as model:
        model.load()
        model.load()
    heads = [path for method, path, _ in server_of_many.requests if method == "HEAD"]
    assert 0 < len(heads) < 10


@pytest.fixture
def server_of_many(root):
    arrays = {f"t{i}": weights((64, 64), seed=i) for i in range(tiers.by_tier(20, 40))}
    write_store(root / "many.zarr", arrays, chunk_size=1024)
    with serving(root) as server:
        yield server


def test_a_server_that_falls_silent_is_given_up(root, aiohttp):
    """With a time-out of the caller's, which reaches the session; the default is longer."""
    released = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"{")
        released.wait(60)

    timeout: Any = aiohttp.ClientTimeout(sock_read=0.2)
    with answering(root, {"w/c.0.0": answer}) as url:
        options = {"client_kwargs": {"timeout": timeout}}
        model = bf16codecs.open_model(f"{url}/m.zarr", storage_options=options)
        with pytest.raises((OSError, TimeoutError), match=r"(?i)timeout"):
            model["w"][3]
        released.set()


def test_sessions_have_time_outs():
    async def timeout() -> Any:
        async with await http.open_session() as session:
            return session.timeout

    found = asyncio.run(timeout())
    assert 0 < found.connect <= 60
    assert 0 < found.sock_read <= 60


def test_a_page_in_the_place_of_a_zip_file(root):
    """fsspec then advises to open it otherwise, which nobody here can."""

    def page(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html")
        handler.end_headers()
        handler.wfile.write(b"<html></html>" * 99)

    said = r"page\.zip: the server ignores ranges, by which"
    with answering(root, {"page.zip": page}) as url, pytest.raises(ServerError, match=said):
        bf16codecs.open_model(f"{url}/page.zip")
