"""Safetensors files behind addresses: a file, an index and the files beside it, or a folder."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from bf16codecs._arrays.storage import StoredChunk
from bf16codecs._base.limits import Limits, check_metadata
from bf16codecs._base.messages import named_errors
from bf16codecs._base.threads import run_ahead
from bf16codecs._files.digests import Digests
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

__all__ = ["RemoteFolder", "open_remote_safetensors"]

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
    known_size: int | None = None

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
        if self.known_size is not None:
            return self.known_size
        return retried(self.url, lambda: self.store.size(self.key), was_reached=False)

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


def _is_web(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _split_query(url: str) -> tuple[str, str]:
    """Split an address of the web into its path and the rest; others have no query."""
    path = re.split(r"[?#]", url, maxsplit=1)[0] if _is_web(url) else url
    return path, url[len(path) :]


@dataclass(frozen=True)
class RemoteFolder:
    """The folder of a model's files, whose address is `url`.

    Attributes
    ----------
    url
        The address of the folder, without a slash at its end.
    where
        What messages call the model.
    options
        Options of the file system.
    named
        A file that the caller named, and the query of its address.
    sizes
        The sizes of files in it that are known: of all of them, for `open_listed`.
    sha256
        The digests of those that the server knows.
    is_fixed
        Whether nothing at this address ever changes.
    """

    url: str
    where: str
    options: Mapping[str, Any]
    limits: Limits
    named: tuple[str, str] = "", ""
    sizes: Mapping[str, int] | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)
    is_fixed: bool = False

    def open_file(self, name: str) -> FilesReader:
        """Open a safetensors file, or an index."""
        if name.endswith(".json"):
            return self._open_index(name)
        return self._reader(self._open_files([name]))

    def open_listed(self) -> FilesReader:
        """Open the model in a folder whose files are known."""
        assert self.sizes is not None
        names = {name for name in self.sizes if name[:1] != "."}

        def has_files(index: str) -> bool:
            try:
                shards = shard_names(_read_document(self._file(index)), index)
            except SafetensorsError:
                return True  # it is damaged, which must be reported
            return not names.isdisjoint(shards)

        index, shards = choose_files(self.where, sorted(names), has_files)
        if index is None:
            files = self._open_files(shards)
            check_together(self.where, _source_files(files))
            reader = self._reader(files)
        else:
            reader = self._open_index(index)
            check_listed(self.where, index, shards, _source_files(reader.files))
        used = {index, *(file.name for file in reader.files)}
        reader.left_out = tuple(name for name in sorted(names) if name not in used)
        return reader

    def open_usual(self) -> FilesReader:
        """Open the model in a folder that cannot be listed, by the names that models have."""
        refusal = ""
        for name in _USUAL_NAMES:
            file = self._file(name)
            if size := file.size_or_0:
                return replace(self, sizes={name: size}).open_file(name)
            # S3 gives the same answer to a missing file.
            refusal = refusal or file.store.refusal(file.key)
        if refusal:
            raise OSError(f"{self.where}: {refusal}")
        raise SafetensorsError(
            f"{self.where}: none of {', '.join(_USUAL_NAMES)} is there, and its server lists no"
            " folders: name the file, or the index"
        )

    def _file(self, name: str) -> _File:
        query = self.named[1] if name == self.named[0] else ""
        url = f"{self.url}/{quote(name) if _is_web(self.url) else name}{query}"
        store, key = remote_file(url, dict(self.options))
        size = None if self.sizes is None else self.sizes.get(name)
        return _File(url, RemoteStorage(store), key, size)

    def _open_index(self, name: str) -> FilesReader:
        document = self._file(name)
        raw = _read_document(document)
        shards = shard_names(raw, document.url)
        files = self._open_files(sorted(shards))
        check_index(document.url, shards, _source_files(files))
        return self._reader(files, (name, raw))

    def _open_files(self, names: Sequence[str]) -> list[ModelFile]:
        def opened(name: str) -> ModelFile:
            file = self._file(name)
            return ModelFile(name, _read_header(file), file.content, file.url)

        jobs = (partial(opened, name) for name in names)
        with closing(run_ahead(jobs, RemoteStorage.concurrency)) as files:
            return list(files)

    def _reader(
        self, files: Sequence[ModelFile], index: tuple[str, bytes] | None = None
    ) -> FilesReader:
        def state() -> dict[str, str]:
            if self.is_fixed:
                return {}
            return {file.location: self._file(file.name).state() for file in files}

        reader = FilesReader(
            self.where,
            files,
            self.limits,
            index=index,
            concurrency=RemoteStorage.concurrency,
            state=state,
        )
        known = [
            replace(file, digests=Digests(sha256=self.sha256.get(file.name)))
            for file in reader.info.files
        ]
        reader.info = replace(reader.info, files=tuple(known))
        return reader


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
    options = dict(options or {})
    path, query = _split_query(url)
    if kind_of_address(url) is Kind.SAFETENSORS:
        folder, _, name = path.rpartition("/")
        name = unquote(name) if _is_web(url) else name
        place = RemoteFolder(folder, url, options, limits, (name, query))
        reader = place.open_file(name)
    else:
        folder = path.rstrip("/")
        with named_errors(url, OSError):
            sizes = RemoteStorage(remote_store(folder, options)).files()
        place = RemoteFolder(folder, url, options, limits, sizes=sizes)
        reader = place.open_usual() if sizes is None else place.open_listed()
    reader.storage_options = options
    return reader


def _read_document(file: _File) -> bytes:
    size = file.size
    check_metadata(size)
    return file.read(0, size)


def _source_files(files: Iterable[ModelFile]) -> list[SourceFile]:
    return [SourceFile(Path(file.name), file.header) for file in files]


def _read_header(file: _File) -> Header:
    size = file.size
    first = file.read(0, min(size, _FIRST_BYTES))
    length = header_nbytes(first, size, file.url)
    raw = first[8 : 8 + length]
    if len(raw) < length:
        raw += file.read(8 + len(raw), 8 + length)
    return parse_header(raw, size - 8 - length, file.url)
