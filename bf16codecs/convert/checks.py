"""Checks of sources and stores, and comparison of all but the tensors' data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bf16codecs._arrays.grid import ArrayPlan, chunk_counts
from bf16codecs._base.arguments import argument
from bf16codecs._base.limits import MANY_FILES
from bf16codecs._base.messages import few
from bf16codecs._files.digests import Digests, kinds_of
from bf16codecs.errors import CorruptDataError, ManyFilesWarning, StoreError
from bf16codecs.safetensors import Header, SafetensorsError, shard_names
from bf16codecs.store.bases import work_with_bases
from bf16codecs.store.choice import DEFAULT_STEP_SIZE, LEAST_CHUNK_SIZE
from bf16codecs.store.plan import INDEX_PATH
from bf16codecs.store.reader import ModelReader

__all__ = [
    "check_chunk_count",
    "check_digests",
    "check_restored_size",
    "check_unchanged",
    "differing_names",
    "digest_kinds",
    "stored_index",
]

# Names of files in a message.
_SHOWN = 3


def check_chunk_count(arrays: Iterable[ArrayPlan], chunk_size: int) -> None:
    """Warn of very many chunks, or raise ValueError if they are below `LEAST_CHUNK_SIZE`."""
    arrays = list(arrays)
    count = sum(math.prod(chunk_counts(array.shape, array.chunks)) for array in arrays)
    # A tensor is one chunk at least, whatever their size; the message advises 4 MiB.
    if count <= MANY_FILES or count < 2 * len(arrays) or chunk_size >= DEFAULT_STEP_SIZE:
        return
    text = f"a chunk size of {chunk_size} bytes cuts the model into {count} chunks"
    if chunk_size < LEAST_CHUNK_SIZE:
        raise ValueError(
            f"{text}: choose at least {LEAST_CHUNK_SIZE}, better 4M ({argument('chunk_size')}),"
            " since readers decode parts of chunks as well"
        )
    text += (
        ": they are slow to write, and in a folder each one is a file to copy and to remove;"
        f" choose a larger size, such as 4M ({argument('chunk_size')}), since readers decode parts"
        " of chunks as well"
    )
    warnings.warn(text, ManyFilesWarning, stacklevel=2)


def check_restored_size(reader: ModelReader, headers: Sequence[Header]) -> None:
    """Refuse a store whose files would be larger than the caller allows, or than is credible.

    Chunks count as a whole: restoring decodes all of them, even if they exceed their arrays by far.
    """
    work = sum(
        work_with_bases(reader, t.name, reader.array(reader.info.paths[t.name]).whole_work)
        for header in headers
        for t in header.tensors
    )
    reader.check_size(sum(header.file_size for header in headers), "the original files", work)


def check_unchanged(source: ModelReader, before: Mapping[str, Any]) -> None:
    """Raise SafetensorsError if a file of the source has changed since its state was `before`."""
    now = source.state()
    if now.keys() - before.keys():
        raise SafetensorsError(f"{source.where}: changed while it was read")
    for path, state in before.items():
        if now.get(path) != state:
            raise SafetensorsError(f"{path}: changed while it was read")


def stored_index(reader: ModelReader) -> bytes:
    """Return the content of the index file, empty if there is none.

    Raises CorruptDataError if its digest is not the original's, it names other files than the
    store, or the store has an index that its attributes do not name.
    """
    index = reader.info.index
    if index is None:
        try:
            reader.plan(INDEX_PATH)
        except (StoreError, OSError):
            return b""  # servers report a missing array in many ways
        raise CorruptDataError(f"{reader.where}: has an index that its attributes do not name")
    raw = reader.text(index.path)
    difference = index.digests.difference(Digests.of(raw, index.digests.kinds))
    if difference is not None:
        raise CorruptDataError(
            f"{reader.where}: {index.name} has another {difference[0]} than the original"
        )
    ours, theirs = {file.name for file in reader.info.files}, set(shard_names(raw, index.name))
    if ours != theirs:
        name = min(ours ^ theirs)
        holder, other = ("the store", index.name) if name in ours else (index.name, "the store")
        raise CorruptDataError(f"{reader.where}: file {name!r:.80} is in {holder}, not in {other}")
    return raw


def digest_kinds(source: ModelReader, sha256: bool) -> Sequence[str]:
    """Return the kinds of digests to compute: with the SHA-256, if a hub states it."""
    return kinds_of(sha256 or any(file.digests.sha256 for file in source.info.files))


def check_digests(source: ModelReader, found: Sequence[Digests]) -> None:
    """Raise CorruptDataError if files have other digests than a hub states."""
    for file, digests in zip(source.info.files, found, strict=True):
        difference = file.digests.difference(digests)
        if difference is not None:
            raise CorruptDataError(
                f"{source.where}: {file.name} has another {difference[0]} than the original"
            )


def differing_names(
    reader: ModelReader, headers: Sequence[Header], index: bytes, source: ModelReader
) -> str | None:
    """Describe how a store differs from its source except in data; None if it does not."""
    ours = [file.name for file in reader.info.files]
    theirs = [file.name for file in source.info.files]
    if (len(ours) > 1 and ours != theirs) or len(ours) != len(theirs):
        return f"has {few(ours, _SHOWN)}, not {few(theirs, _SHOWN)}"
    for number, (header, stored) in enumerate(zip(source.headers, headers, strict=True)):
        if header.raw != stored.raw:
            path = source.file_path(number)
            return f"its header differs from {path}: {_header_difference(stored, header)}"
    other = stored_index(source)
    if index == other:
        return None
    if not other:
        return f"it has an index, and {source.where} has none: name the folder or the index"
    name = "" if source.info.index is None else source.info.index.name
    index_path = source.paths[-1] if source.paths else f"{name} of {source.where}"
    if not index:
        return f"it has no index, and {source.where} has {index_path}: name the file alone"
    return f"its index differs from {index_path}"


def _header_difference(ours: Header, theirs: Header) -> str:
    """Describe the first difference between the headers of a store and of its source."""
    stored = {tensor.name: tensor for tensor in ours.tensors}
    others = {tensor.name: tensor for tensor in theirs.tensors}
    for name in (*stored, *others):
        if name not in others:
            return f"the source has no tensor {name!r:.300}"
        if name not in stored:
            return f"the store has no tensor {name!r:.300}"
        tensor, other = stored[name], others[name]
        if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
            return (
                f"tensor {name!r:.300} is {tensor.dtype} of shape {tensor.shape!r:.80},"
                f" not {other.dtype} of shape {other.shape!r:.80}"
            )
        if tensor.start != other.start:
            return f"tensor {name!r:.300} is at offset {tensor.start}, not {other.start}"
    if (ours.has_metadata, ours.metadata) != (theirs.has_metadata, theirs.metadata):
        return "the metadata differ"
    return "the same entries are written in another way"
