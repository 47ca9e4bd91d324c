"""Files of models behind addresses: a file, an index and the files beside it, or a folder."""

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

from bf16codecs._arrays.storage import Range, StoredChunk
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
from bf16codecs.store.kinds import is_file_address
from bf16codecs.store.remote.addresses import remote_file, remote_store
from bf16codecs.store.remote.retries import RetriedChunk, retried
from bf16codecs.store.remote.storage import RemoteStorage

__all__ = ["RemoteFile", "RemoteFolder", "open_remote_safetensors", "remote_folder"]

# The size of the first read: most headers of one file are shorter.
_FIRST_BYTES = 1 << 16
# Names in a folder whose server does not list it, in the order in which they are looked for: those
# of transformers, diffusers and PEFT.
_STEMS = "model", "diffusion_pytorch_model", "adapter_model"
_USUAL_NAMES = [f"{stem}.safetensors{end}" for stem in _STEMS for end in (".index.json", "")]
_OTHER_NAMES = "pytorch_model.bin.index.json", "pytorch_model.bin"


class RemoteFile(NamedTuple):
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

    def read(self, ranges: Sequence[Range]) -> list[bytes]:
        """Read ranges of it; refuse a shorter reply."""
        parts = self.content.read(ranges)
        for part, (start, stop) in zip(parts, ranges, strict=True):
            if part.size < stop - start:
                raise SafetensorsError(f"{self.url}: truncated while it was read")
        return [part.tobytes() for part in parts]

    def part(self, start: int, stop: int) -> bytes:
        """Read one range of it."""
        (part,) = self.read([(start, stop)])
        return part

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
        The sizes of the files in it, or of those that are known; None if its server does not list
        them.
    folders
        The names of folders in it, as far as they are known, with a slash at their ends.
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
    folders: tuple[str, ...] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)
    is_fixed: bool = False

    #: How many requests at a time pay off.
    concurrency = RemoteStorage.concurrency

    def open(self, notes_state: bool = False) -> FilesReader:
        """Open the safetensors file or index that was named, or the model in the folder.

        Its state is noted before the headers are read, with a request for each file, if
        `notes_state`.
        """
        name, opening = self.named[0], _Opening(self, {} if notes_state else None)
        if name.endswith(".json"):
            return opening.index(name)
        return opening.files([name]) if name else opening.listed()

    def usual(self) -> RemoteFolder:
        """Return the place of a model: this, unless the folder has to be searched for usual names.

        Raises SafetensorsError if there is none, and OSError if the server refuses.
        """
        if self.named[0] or self.sizes is not None:
            return self
        refusal = ""
        for name in (*_USUAL_NAMES, *_OTHER_NAMES):
            file = self.file(name)
            if size := file.size_or_0:
                return replace(self, named=(name, ""), sizes={name: size})
            # S3 gives the same answer to a missing file.
            refusal = refusal or file.store.refusal(file.key)
        if refusal:
            raise OSError(f"{self.where}: {refusal}")
        raise SafetensorsError(
            f"{self.where}: none of {', '.join((*_USUAL_NAMES, *_OTHER_NAMES))} is there, and its"
            " server lists no folders: name the file, or the index"
        )

    def url_of(self, name: str) -> str:
        """Return the address of a file in the folder."""
        query = self.named[1] if name == self.named[0] else ""
        return f"{self.url}/{quote(name) if _is_web(self.url) else name}{query}"

    def file(self, name: str) -> RemoteFile:
        """Return a file in the folder, which may not exist."""
        url = self.url_of(name)
        store, key = remote_file(url, dict(self.options))
        size = None if self.sizes is None else self.sizes.get(name)
        return RemoteFile(url, RemoteStorage(store), key, size)

    def state(self, files: Iterable[RemoteFile]) -> dict[str, str]:
        """Return what the server says of files, by address, which differs after a change."""
        return {} if self.is_fixed else {file.url: file.state() for file in files}

    def reader(
        self,
        headers: Sequence[tuple[str, Header]],
        index: tuple[str, bytes] | None = None,
        opened: Mapping[str, str] | None = None,
    ) -> FilesReader:
        """Return a reader of files in the folder, given by names and headers.

        `opened` is their state from before the headers were read.
        """
        files = [
            ModelFile(name, header, file.content, file.url)
            for name, header in headers
            for file in [self.file(name)]
        ]
        reader = FilesReader(
            self.where,
            files,
            self.limits,
            index=index,
            concurrency=self.concurrency,
            state=lambda: self.state(self.file(file.name) for file in files),
            opened=opened,
        )
        known = [
            replace(file, digests=Digests(sha256=self.sha256.get(file.name)))
            for file in reader.info.files
        ]
        reader.info = replace(reader.info, files=tuple(known))
        return reader


@dataclass(frozen=True)
class _Opening:
    """Opens the safetensors files in a folder, and notes their state before, unless it is None."""

    folder: RemoteFolder
    states: dict[str, str] | None

    def files(self, names: Sequence[str], index: tuple[str, bytes] | None = None) -> FilesReader:
        """Open files."""
        return self.folder.reader(self.headers(names), index, self.states)

    def headers(self, names: Sequence[str]) -> list[tuple[str, Header]]:
        """Read the headers of files, several at a time."""
        jobs = (partial(self._header, self.folder.file(name)) for name in names)
        with closing(run_ahead(jobs, self.folder.concurrency)) as headers:
            return list(zip(names, headers, strict=True))

    def _header(self, file: RemoteFile) -> Header:
        file = file._replace(known_size=file.size)
        if self.states is not None:
            self.states.update(self.folder.state([file]))
        return _read_header(file)

    def index(self, name: str) -> FilesReader:
        """Open the files of an index."""
        document = self.folder.file(name)
        raw = _read_document(document)
        shards = shard_names(raw, document.url)
        headers = self.headers(sorted(shards))
        check_index(document.url, shards, _source_files(headers))
        return self.folder.reader(headers, (name, raw), self.states)

    def listed(self) -> FilesReader:
        """Open the model in a folder that is listed."""
        where, sizes = self.folder.where, self.folder.sizes or {}
        names = {name for name in sizes if name[:1] != "."}

        def has_files(index: str) -> bool:
            try:
                shards = shard_names(_read_document(self.folder.file(index)), index)
            except SafetensorsError:
                return True  # it is damaged, which must be reported
            return not names.isdisjoint(shards)

        index, shards = choose_files(where, sorted(names), has_files)
        if index is None:
            headers = self.headers(shards)
            check_together(where, _source_files(headers))
            reader = self.folder.reader(headers, None, self.states)
        else:
            reader = self.index(index)
            found = [(file.name, file.header) for file in reader.files]
            check_listed(where, index, shards, _source_files(found))
        used = {index, *(file.name for file in reader.files)}
        others = [name for name in sorted(names) if name not in used]
        reader.left_out = (*others, *self.folder.folders)
        return reader


def remote_folder(url: str, options: Mapping[str, Any] | None, limits: Limits) -> RemoteFolder:
    """Return the folder at an address, or that of the file there; object stores are listed.

    Addresses of files are those that end as files of models do. Raises StoreError if a package is
    missing that knows such addresses, OSError if the server fails.
    """
    options = dict(options or {})
    path, query = _split_query(url)
    if is_file_address(path):
        folder, _, name = path.rpartition("/")
        name = unquote(name) if _is_web(url) else name
        return RemoteFolder(folder, url, options, limits, (name, query))
    folder = path.rstrip("/")
    with named_errors(url, OSError):
        sizes = RemoteStorage(remote_store(folder, options)).files()
    return RemoteFolder(folder, url, options, limits, sizes=sizes)


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
    reader = remote_folder(url, options, limits).usual().open()
    reader.storage_options = dict(options or {})
    return reader


def _read_document(file: RemoteFile) -> bytes:
    size = file.size
    check_metadata(size)
    return file.part(0, size)


def _source_files(headers: Iterable[tuple[str, Header]]) -> list[SourceFile]:
    return [SourceFile(Path(name), header) for name, header in headers]


def _read_header(file: RemoteFile) -> Header:
    size = file.size
    first = file.part(0, min(size, _FIRST_BYTES))
    length = header_nbytes(first, size, file.url)
    raw = first[8 : 8 + length]
    if len(raw) < length:
        raw += file.part(8 + len(raw), 8 + length)
    return parse_header(raw, size - 8 - length, file.url)
