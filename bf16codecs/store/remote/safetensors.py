"""Safetensors files behind addresses: a file, or an index and the files beside it."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bf16codecs._base.limits import Limits, check_metadata
from bf16codecs._base.messages import named_errors
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import (
    Header,
    SourceFile,
    check_index,
    header_nbytes,
    parse_header,
    shard_names,
)
from bf16codecs.store.files import FilesReader, ModelFile
from bf16codecs.store.remote.addresses import remote_file
from bf16codecs.store.remote.storage import RemoteStorage

__all__ = ["open_remote_safetensors"]

# The size of the first read: most headers of one file are shorter.
_FIRST_BYTES = 1 << 16


class _File(NamedTuple):
    """A file behind an address."""

    url: str
    store: RemoteStorage
    key: str

    @property
    def size(self) -> int:
        """Its size in bytes."""
        with named_errors(self.url, OSError):
            size = self.store.size(self.key)
        if refusal := self.store.refusal(self.key):
            raise OSError(f"{self.url}: {refusal}")
        if not size:
            raise FileNotFoundError(errno.ENOENT, "Nothing is there, or it is empty", self.url)
        return size

    def read(self, start: int, stop: int) -> bytes:
        """Read a range of it; refuse a shorter reply."""
        with named_errors(self.url, OSError):
            (part,) = self.store.open(self.key).read([(start, stop)])
        if part.size < stop - start:
            raise SafetensorsError(f"{self.url}: truncated while it was read")
        return part.tobytes()


def open_remote_safetensors(
    url: str, options: Mapping[str, Any] | None, limits: Limits
) -> FilesReader:
    """Open a safetensors file, or the index of several, at an address.

    It takes two requests for each file, for its size and for its header; three if the header is
    long. SafetensorsError is raised if a file breaks the format, or files and index contradict each
    other; StoreError if a package is missing that knows such addresses, or the server ignores
    ranges; OSError if there is nothing, or it cannot be read.
    """
    path = re.split(r"[?#]", url, maxsplit=1)[0] if url.startswith("http") else url
    folder, _, file_name = path.rpartition("/")
    index, urls = None, {file_name: url}
    if path.endswith(".json"):
        document = _open(url, options)
        size = document.size
        check_metadata(size)
        index = file_name, document.read(0, size)
        shards = shard_names(index[1], url)
        urls = {name: f"{folder}/{name}" for name in sorted(shards)}
    files = []
    for name, at in urls.items():
        file = _open(at, options)
        files.append(ModelFile(name, _read_header(file), file.store.open(file.key), at))
    if index is not None:
        check_index(url, shards, [SourceFile(Path(file.name), file.header) for file in files])
    return FilesReader(url, files, limits, index=index, concurrency=RemoteStorage.concurrency)


def _open(url: str, options: Mapping[str, Any] | None) -> _File:
    store, key = remote_file(url, dict(options or {}))
    return _File(url, RemoteStorage(store), key)


def _read_header(file: _File) -> Header:
    size = file.size
    first = file.read(0, min(size, _FIRST_BYTES))
    length = header_nbytes(first, size, file.url)
    raw = first[8 : 8 + length]
    if len(raw) < length:
        raw += file.read(8 + len(raw), 8 + length)
    return parse_header(raw, size - 8 - length, file.url)
