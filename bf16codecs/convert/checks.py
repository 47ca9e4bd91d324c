"""What a store has to have in common with its source, beside the tensors' data."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from bf16codecs.errors import CorruptDataError
from bf16codecs.safetensors import Header, Source
from bf16codecs.store.backend import StoreReader, read_bytes

__all__ = ["compare_names", "read_index"]


def read_index(reader: StoreReader) -> bytes:
    """Return the content of the index file, checked against its SHA-256; empty if there is none."""
    index = reader.info.index
    if index is None:
        return b""
    raw = read_bytes(reader, index.path)
    if hashlib.sha256(raw).hexdigest() != index.sha256:
        raise CorruptDataError(
            f"{reader.where}: {index.name} has another SHA-256 than the original"
        )
    return raw


def compare_names(
    reader: StoreReader, headers: Sequence[Header], index: bytes, source: Source
) -> None:
    """Compare everything but the tensors' data with the source."""
    ours = [file.name for file in reader.info.files]
    theirs = [file.name for file in source.files]
    if (len(ours) > 1 and ours != theirs) or len(ours) != len(theirs):
        raise CorruptDataError(f"{reader.where}: has files {ours}, not {theirs}")
    for file, header in zip(source.files, headers, strict=True):
        if file.header.raw != header.raw:
            raise CorruptDataError(f"{reader.where}: its header differs from {file.path}")
    if index != source.index_raw:
        raise CorruptDataError(f"{reader.where}: its index differs from {source.index}")
