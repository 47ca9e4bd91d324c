"""Untrusted servers: endless, compressed, slow, redirected and wrong replies.

Many refuse requests for missing files.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore, ObjectStore

import bf16codecs
import tiers
from bf16codecs._arrays import http
from bf16codecs.convert import append_to_run, verify_store
from bf16codecs.errors import ServerError, StoreError
from lazy_models import weights, write_safetensors, write_store
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
    arrays = {"w": ARRAY, "n": np.arange(100)}
    write_store(root / "m.zarr", arrays)
    write_store(root / "m.zarr.zip", arrays)
    write_store(root / "v2.zarr", arrays, zarr_format=2)
    model = write_safetensors(root / "m.safetensors", arrays)
    for zarr_format in (2, 3):
        append_to_run(model, root / f"run{zarr_format}.zarr", step=7, zarr_format=zarr_format)
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
    """Sends zeros as long as the client reads, and counts them."""

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
    # Data in sockets and buffers, beside the few kB that a chunk may have.
    assert endless.sent < 64 << 20


def test_metadata_without_an_end(root, monkeypatch):
    endless = Endless()
    monkeypatch.setattr("bf16codecs.store.remote.storage.MAX_METADATA_BYTES", 1 << 20)
    with answering(root, {"zarr.json": endless}) as url:
        with pytest.raises((ValueError, OSError), match="got more"):
            bf16codecs.open_model(f"{url}/m.zarr")
        assert endless.ended.wait(30)
    assert endless.sent < 32 << 20


@pytest.mark.parametrize("path", ["zarr.json", "w/c.0.0"])
def test_compressed_replies_are_not_inflated(root, path):
    """64 MiB in 64 kB, again and again."""
    endless = Endless(Content_Encoding="gzip")
    with answering(root, {path: endless}) as url:
        with pytest.raises((ValueError, OSError), match="sent compressed"):
            bf16codecs.open_model(f"{url}/m.zarr").load()
        assert endless.ended.wait(30)
    assert endless.sent < 32 << 20


def test_a_safetensors_file_without_an_end(root):
    endless = Endless()
    with answering(root, {"endless.safetensors": endless}) as url:
        with pytest.raises(ServerError, match=r"endless\.safetensors: .* does not report"):
            bf16codecs.open_model(f"{url}/endless.safetensors")
        assert endless.ended.wait(30)
    assert endless.sent < 32 << 20


@pytest.mark.parametrize("offset", [0, 1 << 40])
def test_a_zip_file_whose_directory_has_gigabytes(root, offset):
    """As many as its server says that there are, which it sends as long as anybody reads."""
    nbytes = (1 << 32) - 2
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, nbytes, offset & 0xFFFFFFFE, 0)
    size = offset + nbytes + len(end)
    endless = Endless()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        start, stop = (0, size) if asked is None else (int(asked[1]), int(asked[2]) + 1)
        handler.send_response(200 if asked is None else 206)
        handler.send_header("Content-Length", str(stop - start))
        handler.end_headers()
        if asked is None or stop - start > 1 << 20:
            endless(_Headless(handler))
        else:
            handler.wfile.write(end[start - size + len(end) :][: stop - start])

    refused = pytest.raises(StoreError, match=r"large\.zip: .*to be read at once")
    with answering(root, {"large.zip": answer}) as url, refused:
        bf16codecs.open_model(f"{url}/large.zip")
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


@pytest.mark.parametrize("path", ["m.zarr/zarr.json", "m.zarr.zip", "m.safetensors"])
def test_redirects_in_a_circle(root, path):
    refused = pytest.raises(OSError, match="redirects again and again")
    with answering(root, {path: redirect(f"/{path}")}) as url, refused:
        bf16codecs.open_model(f"{url}/{path.removesuffix('/zarr.json')}")


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


@pytest.fixture
def hurried(aiohttp: Any) -> dict[str, Any]:
    """Return options with a time-out of the caller's; the default is longer."""
    return {"client_kwargs": {"timeout": aiohttp.ClientTimeout(sock_read=0.5)}}


def test_a_server_that_falls_silent_is_given_up(root, hurried):
    released = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"{")
        released.wait(60)

    with answering(root, {"w/c.0.0": answer}) as url:
        model = bf16codecs.open_model(f"{url}/m.zarr", storage_options=hurried)
        with pytest.raises((OSError, TimeoutError), match=r"(?i)timeout"):
            model["w"][3]
        released.set()


PLACES = ["m.zarr", "m.zarr.zip", "m.safetensors"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("status", [100, 103])
def test_interim_replies_without_an_end(root, hurried, place, status):
    """Two million: a test that fails does not hang."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        reply = f"HTTP/1.1 {status} Wait\r\nLink: </x>\r\n\r\n".encode()
        try:
            for _ in range(20_000):
                handler.wfile.write(reply * 100)
        except OSError:
            pass

    given_up = pytest.raises(OSError, match="no reply has begun")
    with answering(root, {"": answer}) as url, given_up:
        bf16codecs.open_model(f"{url}/{place}", storage_options=hurried)


def test_an_interim_reply_is_skipped(root):
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 3)
        document = (root / "m.zarr/zarr.json").read_bytes()
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(document))
        handler.wfile.write(document)

    with answering(root, {"zarr.json": answer}) as url:
        assert bf16codecs.open_model(f"{url}/m.zarr")["w"].shape == ARRAY.shape


class Trickle:
    """Sends single bytes, for at most half a minute, so that a failing test does not hang."""

    def __init__(self, head: bytes, endless: bytes) -> None:
        self.head, self.endless = head, endless
        self.released = threading.Event()

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        try:
            handler.wfile.write(self.head)
            for _ in range(600):
                handler.wfile.write(self.endless)
                if self.released.wait(0.05):
                    return
        except OSError:
            pass


@pytest.mark.parametrize("place", PLACES)
def test_headers_that_trickle(root, hurried, place):
    trickle = Trickle(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x")
    with answering(root, {"": trickle}) as url:
        with pytest.raises(OSError, match="no reply has begun"):
            bf16codecs.open_model(f"{url}/{place}", storage_options=hurried)
        trickle.released.set()


@pytest.mark.parametrize("path", ["m.zarr/zarr.json", "m.zarr/w/c.0.0", "m.zarr.zip"])
def test_bodies_that_trickle(root, hurried, path):
    """A ZIP file in one piece, which fsspec reads by itself."""
    trickle = Trickle(b"HTTP/1.1 200 OK\r\n\r\n", b"P")
    if path.endswith(".zip"):
        trickle.head = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 9999\r\n\r\n"
    with answering(root, {path: trickle}) as url:
        place = f"{url}/{'/'.join(path.split('/')[:1])}"
        with pytest.raises(OSError, match="fewer than 100 bytes a second"):
            bf16codecs.open_model(place, storage_options=hurried).load()
        trickle.released.set()


def other_bytes(root: Path, header: str) -> Answer:
    """Answer a range with as many bytes from the start of the file."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        data = (root / handler.path.lstrip("/")).read_bytes()
        handler.send_response(206 if header else 200)
        if header:
            handler.send_header("Content-Range", f"{header}/{len(data)}")
        part = data if asked is None else data[: int(asked[2]) - int(asked[1]) + 1]
        handler.send_header("Content-Length", str(len(part)))
        handler.end_headers()
        handler.wfile.write(part)

    return answer


@pytest.mark.parametrize("header", ["", "bytes 0-7"])
def test_other_bytes_than_those_asked_for(root, header):
    """For plain arrays, which have no checksum."""
    refused = pytest.raises(ServerError, match=r"tensor 'n'.*asked for bytes from \d+ on, got")
    with answering(root, {"m.safetensors": other_bytes(root, header)}) as url:
        model = bf16codecs.open_model(f"{url}/m.safetensors")
        with refused:
            model["n"][5:7]


@pytest.mark.parametrize("status", [401, 403, 404, 410])
@pytest.mark.parametrize("name", ["m.zarr", "v2.zarr", "run2.zarr@7", "run3.zarr@7"])
def test_missing_keys_may_be_refused(root, status, name):
    """S3 answers 403 to those who may not list keys."""
    with serving(root) as server:
        server.missing = status
        with bf16codecs.open_model(f"{server.url}/{name}") as model:
            assert model["w"][3].tobytes() == ARRAY[3].tobytes()
            assert model["w"].zarr[..., 3, :].tobytes() == ARRAY[3].tobytes()
            assert model.load()["w"].tobytes() == ARRAY.tobytes()


def test_documents_that_a_store_may_lack(root):
    """Without consolidated metadata, and attributes of arrays."""
    with serving(root) as server:
        server.missing, server.deny = 403, r"\.zmetadata|w/\.zattrs|n/\.zattrs"
        with bf16codecs.open_model(f"{server.url}/v2.zarr") as model:
            assert model["w"][3].tobytes() == ARRAY[3].tobytes()
            assert model["w"].zarr[3].tobytes() == ARRAY[3].tobytes()
            assert None not in model.info(sizes=True).table()["stored_nbytes"]
        verify_store(f"{server.url}/v2.zarr")


@pytest.mark.parametrize(
    ("name", "deny", "told"),
    [
        ("m.zarr", "zarr.json", "zarr.json"),
        ("v2.zarr", r"\.zmetadata|zarr/\.zattrs", ".zattrs"),
        ("v2.zarr", r"\.zmetadata|w/\.zarray", "w/.zarray"),
        ("v2.zarr", r"w/0\.0", "w/0.0"),
        ("run2.zarr@7", r"run2.zarr/\.z", "zarr.json"),
        ("nothing.zarr", None, "zarr.json"),
        ("nothing.zarr.zip", None, "nothing.zarr.zip"),
        ("nothing.safetensors", None, "nothing.safetensors"),
    ],
)
def test_refused_documents_are_named(root, name, deny, told):
    with serving(root) as server:
        server.missing, server.deny = 403, deny
        with pytest.raises(OSError, match=rf"{re.escape(told)}: the server answers 403"):
            bf16codecs.open_model(f"{server.url}/{name}").load()


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (b"HTTP/1.1 20x OK\r\n\r\n", "the reply is not valid HTTP: Bad status line"),
        (b"\x00\x01\r\n" * 3000, "the reply is not valid HTTP: "),
        (b"HTTP/1.1 200 OK\r\nX: %b\r\n\r\n" % (b"x" * 20000), "the reply is not valid HTTP: "),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nabc",
            r"the reply is cut off: Not enough data .*30 bytes",
        ),
        (
            b"HTTP/1.1 400 %b\r\nContent-Length: 0\r\n\r\n" % (b"No " * 300),
            r"the server answers 400 \((No ){20,70}\.\.\.\)$",
        ),
        (b"HTTP/1.1 400\r\nContent-Length: 0\r\n\r\n", r"the server answers 400$"),
    ],
    ids=["status", "no status", "long header", "cut off", "long reason", "no reason"],
)
def test_replies_that_are_no_http(root, reply, told):
    """For the first four, aiohttp has a status of its own: 400."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(reply)

    with answering(root, {"zarr.json": answer}) as url:
        with pytest.raises(OSError, match=rf"m\.zarr: zarr\.json: {told}") as failure:
            bf16codecs.open_model(f"{url}/m.zarr")
        assert len(str(failure.value)) < 350


def test_a_refusal_holds_until_the_server_gives_the_key(root):
    with serving(root) as server, bf16codecs.open_model(f"{server.url}/m.zarr") as model:
        server.deny = r"w/c"
        with pytest.raises(OSError, match=r"w/c\.0\.0: the server answers 403"):
            model.info(sizes=True)
        server.deny = None
        assert None not in model.info(sizes=True).table()["stored_nbytes"]


def test_a_server_that_does_not_report_sizes(root):
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()

    with answering(root, {"w/c.0.0": answer}) as url:
        model = bf16codecs.open_model(f"{url}/m.zarr")
        with pytest.raises(ServerError, match=r"m\.zarr: .*: the server does not report its size"):
            model.info(sizes=True)


class RefusingStore(MemoryStore):
    """A bucket whose keys may not be listed, as s3fs reports it."""

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        found = await super().get(key, *args, **kwargs)
        if found is None:
            raise PermissionError("Forbidden")
        return found


def in_a_store(root: Path) -> Store:
    async def fill() -> Store:
        store, prototype = RefusingStore(), default_buffer_prototype()
        for path in (root / "v2.zarr").rglob("*"):
            if path.is_file():
                key = path.relative_to(root / "v2.zarr").as_posix()
                await store.set(key, prototype.buffer.from_bytes(path.read_bytes()))
        return store

    return asyncio.run(fill())


def test_buckets_that_refuse_missing_keys(root):
    with bf16codecs.open_model(in_a_store(root)) as model:
        assert model["w"][3].tobytes() == ARRAY[3].tobytes()
    with pytest.raises(OSError, match=r"zarr\.json: Forbidden"):
        bf16codecs.open_model(RefusingStore())


@pytest.mark.parametrize("status", [401, 403])
def test_refusals_as_obstore_reports_them(root, status):
    obstore = pytest.importorskip("obstore.store")
    options = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
    with serving(root) as server:
        server.missing = status
        store = obstore.HTTPStore.from_url(f"{server.url}/v2.zarr", **options)
        with bf16codecs.open_model(ObjectStore(store)) as model:
            assert model["w"][3].tobytes() == ARRAY[3].tobytes()
        store = obstore.HTTPStore.from_url(f"{server.url}/nothing.zarr", **options)
        with pytest.raises(OSError, match=rf"zarr\.json: .*{status}"):
            bf16codecs.open_model(ObjectStore(store))


def test_sessions_have_time_outs():
    async def timeout() -> Any:
        async with await http.open_session() as session:
            return session.timeout

    found = asyncio.run(timeout())
    assert 0 < found.connect <= 60
    assert 0 < found.sock_read <= 60


def test_a_page_in_the_place_of_a_zip_file(root):
    """fsspec's advice then concerns its own API, not this package's."""

    def page(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html")
        handler.end_headers()
        handler.wfile.write(b"<html></html>" * 99)

    said = r"page\.zip: the server ignores ranges, by which"
    with answering(root, {"page.zip": page}) as url, pytest.raises(ServerError, match=said):
        bf16codecs.open_model(f"{url}/page.zip")
