"""Safetensors files behind addresses: a file, an index and the files beside it, or a folder."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from bf16codecs._arrays.storage import StoredChunk
from bf16codecs._base.limits import Limits, check_metadata
from bf16codecs._base.messages import named_errors
from bf16codecs._base.threads import run_ahead
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import (
    Header,
    SourceFile,
    check_index,
    check_listed,
    check_together,
    choose_files,
    header_nbytes,
    parse_header,
    shard_names,
)
from bf16codecs.store.files import FilesReader, ModelFile
from bf16codecs.store.kinds import Kind, kind_of_address
from bf16codecs.store.remote.addresses import remote_file, remote_store
from bf16codecs.store.remote.retries import RetriedChunk, retried
from bf16codecs.store.remote.storage import RemoteStorage

__all__ = ["open_remote_safetensors"]

# The size of the first read: most headers of one file are shorter.
_FIRST_BYTES = 1 << 16
# Names in a folder whose server does not list it, in the order in which they are looked for: those
# of transformers, diffusers and PEFT.
_STEMS = "model", "diffusion_pytorch_model", "adapter_model"
_USUAL_NAMES = [f"{stem}.safetensors{end}" for stem in _STEMS for end in (".index.json", "")]


class _File(NamedTuple):
    """A file behind an address."""

    url: str
    store: RemoteStorage
    key: str

    @property
    def size(self) -> int:
        """Its size in bytes."""
        size = self.size_or_0
        if refusal := self.store.refusal(self.key):
            raise OSError(f"{self.url}: {refusal}")
        if not size:
            raise FileNotFoundError(errno.ENOENT, "Nothing is there, or it is empty", self.url)
        return size

    @property
    def size_or_0(self) -> int:
        """Its size in bytes, 0 if it does not exist, or is refused."""
        return retried(self.url, lambda: self.store.size(self.key))

    @property
    def content(self) -> StoredChunk:
        """Its bytes."""
        return RetriedChunk(self.url, self.store.open(self.key))

    def read(self, start: int, stop: int) -> bytes:
        """Read a range of it; refuse a shorter reply."""
        (part,) = self.content.read([(start, stop)])
        if part.size < stop - start:
            raise SafetensorsError(f"{self.url}: truncated while it was read")
        return part.tobytes()

    def state(self) -> str:
        """Return what the server says of it, such as its ETag, which differs after a change."""
        return retried(self.url, lambda: self.store.state(self.key))


class _Place(NamedTuple):
    """An address, split into the one of a folder and the name of a file in it."""

    folder: str
    name: str
    query: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, url: str, options: Mapping[str, Any] | None) -> _Place:
        path, query = _split_query(url)
        folder, _, name = path.rpartition("/")
        name = unquote(name) if _is_web(url) else name
        return cls(folder, name, query, dict(options or {}))

    def file(self, name: str) -> _File:
        """Open a file in the folder; the query is that of the file that was named."""
        query = self.query if name == self.name else ""
        url = f"{self.folder}/{quote(name) if _is_web(self.folder) else name}{query}"
        store, key = remote_file(url, dict(self.options))
        return _File(url, RemoteStorage(store), key)


def _is_web(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _split_query(url: str) -> tuple[str, str]:
    """Split an address of the web into its path and the rest; others have no query."""
    path = re.split(r"[?#]", url, maxsplit=1)[0] if _is_web(url) else url
    return path, url[len(path) :]


def open_remote_safetensors(
    url: str, options: Mapping[str, Any] | None, limits: Limits
) -> FilesReader:
    """Open a model at an address: a safetensors file, the index of several, or a folder of them.

    It takes two requests for each file, for its size and for its header, of several files at a
    time; three if the header is long. Web servers do not list a folder: it has the usual names.

    SafetensorsError is raised if a file breaks the format, or files and index contradict each
    other; StoreError if a package is missing that knows such addresses, or the server ignores
    ranges; OSError if there is nothing, or it cannot be read.
    """
    if kind_of_address(url) is not Kind.SAFETENSORS:
        return _open_folder(url, options, limits)
    place = _Place.of(url, options)
    if place.name.endswith(".json"):
        return _open_index(url, place, limits)
    return _reader(url, place, _open_files(place, [place.name]), limits)


def _open_folder(url: str, options: Mapping[str, Any] | None, limits: Limits) -> FilesReader:
    path, query = _split_query(url)
    place = _Place.of(f"{path.rstrip('/')}/{query}", options)
    with named_errors(url, OSError):
        listed = RemoteStorage(remote_store(place.folder, dict(place.options))).names()
    if listed is None:
        return _open_usual(url, place, limits)
    names = {name for name in listed if name[:1] != "."}

    def has_files(index: str) -> bool:
        try:
            shards = shard_names(_read_document(place.file(index)), index)
        except SafetensorsError:
            return True  # it is damaged, which must be reported
        return not names.isdisjoint(shards)

    index, shards = choose_files(url, sorted(names), has_files)
    if index is None:
        files = _open_files(place, shards)
        check_together(url, _source_files(files))
        reader = _reader(url, place, files, limits)
    else:
        reader = _open_index(url, place._replace(name=index), limits)
        check_listed(url, index, shards, _source_files(reader.files))
    used = {index, *(file.name for file in reader.files)}
    reader.left_out = tuple(name for name in sorted(names) if name not in used)
    return reader


def _open_usual(url: str, place: _Place, limits: Limits) -> FilesReader:
    """Open the model in a folder that cannot be listed, by the names that models usually have."""
    refusal = ""
    for name in _USUAL_NAMES:
        file = place.file(name)
        if not file.size_or_0:
            # S3 gives the same answer to a missing file.
            refusal = refusal or file.store.refusal(file.key)
            continue
        found = place._replace(name=name)
        if name.endswith(".json"):
            return _open_index(url, found, limits)
        return _reader(url, found, _open_files(found, [name]), limits)
    if refusal:
        raise OSError(f"{url}: {refusal}")
    raise SafetensorsError(
        f"{url}: none of {', '.join(_USUAL_NAMES)} is there, and its server lists no folders: name"
        " the file, or the index"
    )


def _open_index(where: str, place: _Place, limits: Limits) -> FilesReader:
    document = place.file(place.name)
    raw = _read_document(document)
    shards = shard_names(raw, document.url)
    files = _open_files(place, sorted(shards))
    check_index(document.url, shards, _source_files(files))
    return _reader(where, place, files, limits, (place.name, raw))


def _read_document(file: _File) -> bytes:
    size = file.size
    check_metadata(size)
    return file.read(0, size)


def _source_files(files: Iterable[ModelFile]) -> list[SourceFile]:
    return [SourceFile(Path(file.name), file.header) for file in files]


def _open_files(place: _Place, names: Sequence[str]) -> list[ModelFile]:
    def opened(name: str) -> ModelFile:
        file = place.file(name)
        return ModelFile(name, _read_header(file), file.content, file.url)

    with closing(run_ahead((partial(opened, n) for n in names), RemoteStorage.concurrency)) as all:
        return list(all)


def _reader(
    where: str,
    place: _Place,
    files: Sequence[ModelFile],
    limits: Limits,
    index: tuple[str, bytes] | None = None,
) -> FilesReader:
    def state() -> dict[str, str]:
        return {file.location: place.file(file.name).state() for file in files}

    at_once = RemoteStorage.concurrency
    reader = FilesReader(where, files, limits, index=index, concurrency=at_once, state=state)
    reader.storage_options = place.options
    return reader


def _read_header(file: _File) -> Header:
    size = file.size
    first = file.read(0, min(size, _FIRST_BYTES))
    length = header_nbytes(first, size, file.url)
    raw = first[8 : 8 + length]
    if len(raw) < length:
        raw += file.read(8 + len(raw), 8 + length)
    return parse_header(raw, size - 8 - length, file.url)
