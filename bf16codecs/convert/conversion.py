"""Conversion into and out of any kind of store."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bf16codecs._chunks.grid import Piece
from bf16codecs._threads import codec_threads
from bf16codecs.convert.pipeline import LOCAL, Engine, file_prefix, pack, unpack
from bf16codecs.convert.target import absolute_target, new_target
from bf16codecs.errors import CorruptDataError
from bf16codecs.safetensors import Header, Source, open_source
from bf16codecs.store.layout import StoreReader, StoreWriter, read_bytes, read_headers

__all__ = ["Progress", "Summary", "compare_names", "read_index", "restore", "summarize", "to_store"]

#: Called with the phase ("convert", "verify" or "restore"), the bytes done, and all bytes.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Summary:
    """What was converted."""

    files: int
    tensors: int
    #: Size of the original files, and of the store with its metadata.
    nbytes: int
    stored_nbytes: int
    seconds: float


def to_store(
    src: str | os.PathLike[str] | Source,
    store: str | os.PathLike[str],
    *,
    make_writer: Callable[[Path], StoreWriter],
    make_reader: Callable[[Path], StoreReader],
    may_replace: Callable[[Path], bool],
    chunk_size: int,
    threads: int | None,
    verify: bool,
    overwrite: bool,
    progress: Progress | None,
    engine: Engine = LOCAL,
) -> Summary:
    """Convert into any kind of store."""
    start = time.perf_counter()
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be positive, not {chunk_size}")
    source = src if isinstance(src, Source) else open_source(src)
    target = absolute_target(store, source.paths)
    with codec_threads(threads), new_target(target, overwrite, may_replace) as temporary:
        with closing(make_writer(temporary)) as writer:
            report = progress and partial(progress, "convert")
            packed = pack(source, writer, chunk_size, verify, report, engine.encode)
        if verify:
            with closing(make_reader(temporary)) as reader:
                headers = read_headers(reader)
                compare_names(reader, headers, read_index(reader), source)
                engine.verify(reader, headers, packed, progress and partial(progress, "verify"))
    return Summary(
        len(source.files),
        sum(len(file.header.tensors) for file in source.files),
        packed.nbytes,
        packed.stored_nbytes,
        time.perf_counter() - start,
    )


def restore(
    reader: StoreReader,
    dst: str | os.PathLike[str],
    threads: int | None,
    overwrite: bool,
    progress: Progress | None,
) -> Summary:
    """Restore from any kind of store."""
    start = time.perf_counter()
    headers = read_headers(reader)
    index = read_index(reader)
    names = [file.name for file in reader.info.files]
    if reader.info.index is not None:
        names.append(reader.info.index.name)
    as_folder = reader.info.index is not None or len(names) > 1
    local = [] if "://" in reader.where else [Path(reader.where)]
    target = absolute_target(dst, local)
    if local and local[0].resolve() in target.resolve().parents:
        raise ValueError(f"{dst}: lies in the store")
    may_replace = partial(_has_only, names=names) if as_folder else Path.is_file
    with codec_threads(threads), new_target(target, overwrite, may_replace) as temporary:
        if as_folder:
            temporary.mkdir()
        paths = [temporary / name for name in names] if as_folder else [temporary]
        for path, header in zip(paths, headers, strict=False):
            with open(path, "xb") as file:
                file.write(file_prefix(header))
        if reader.info.index is not None:
            paths[-1].write_bytes(index)

        def consume(number: int, piece: Piece, data: NDArray[np.uint8]) -> None:
            with open(paths[number], "r+b", buffering=0) as file:
                file.seek(piece.offset)
                view = data.data
                while view:
                    view = view[file.write(view) :]

        unpack(reader, headers, consume, True, progress and partial(progress, "restore"))
    return summarize(reader, headers, start)


def read_index(reader: StoreReader) -> bytes:
    """Return the content of the index file, checked; empty if there was none."""
    index = reader.info.index
    if index is None:
        return b""
    raw = read_bytes(reader, index.path)
    if hashlib.sha256(raw).hexdigest() != index.sha256:
        raise CorruptDataError(f"{reader.where}: {index.name} has another SHA-256 than it had")
    return raw


def compare_names(
    reader: StoreReader, headers: Sequence[Header], index: bytes, source: Source
) -> None:
    """Compare everything but the tensors' data with the source."""
    ours = [file.name for file in reader.info.files]
    theirs = [file.name for file in source.files]
    if (len(ours) > 1 and ours != theirs) or len(ours) != len(theirs):
        raise CorruptDataError(f"{reader.where}: holds {ours}, not {theirs}")
    for file, header in zip(source.files, headers, strict=True):
        if file.header.raw != header.raw:
            raise CorruptDataError(f"{reader.where}: its header differs from {file.path}")
    if index != source.index_raw:
        raise CorruptDataError(f"{reader.where}: its index differs from {source.index}")


def summarize(reader: StoreReader, headers: Sequence[Header], start: float) -> Summary:
    """Sum up a store whose conversion began at `start`."""
    info = reader.info
    return Summary(
        len(info.files),
        sum(len(header.tensors) for header in headers),
        sum(file.size for file in info.files) + (info.index.size if info.index else 0),
        reader.total_nbytes(),
        time.perf_counter() - start,
    )


def _has_only(path: Path, names: Sequence[str]) -> bool:
    return path.is_dir() and {p.name for p in path.iterdir()} <= set(names)
