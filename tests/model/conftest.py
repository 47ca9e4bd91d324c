"""Fixtures of the tests of models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bf16codecs._arrays import storage
from bf16codecs._arrays.storage import AtMost
from object_store import CREDENTIALS, s3_server


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Note each read of a local file: its key and its ranges, None for all of it."""
    reads: list[tuple[Any, Any]] = []
    original = storage.OpenRange.read

    def read(self: Any, request: Any) -> Any:
        reads.append((self.key, None if isinstance(request, AtMost) else list(request)))
        return original(self, request)

    monkeypatch.setattr(storage.OpenRange, "read", read)
    return reads


@pytest.fixture(scope="session")
def aiohttp() -> Any:
    """Skip what needs it to read from servers."""
    return pytest.importorskip("aiohttp")


@pytest.fixture(scope="session")
def fsspec() -> Any:
    return pytest.importorskip("fsspec")


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    """Return the options for a client of an S3 server that has a bucket; there is one server."""
    pytest.importorskip("s3fs")
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("moto.server")
    with s3_server() as address:
        options = {**CREDENTIALS, "endpoint_url": address}
        fsspec.filesystem("s3", **options).mkdir("bucket")
        yield options
