"""Decoding whole stores, to find out whether they are intact."""

from __future__ import annotations

import os
import time
from contextlib import closing
from functools import partial

import numpy as np

from bf16codecs._buffers import Bytes
from bf16codecs._chunks.grid import Piece
from bf16codecs._limits import Limits
from bf16codecs._threads import codec_threads
from bf16codecs.convert.checks import check_restored_size, compare_names, read_index
from bf16codecs.convert.pipeline import unpack
from bf16codecs.convert.summary import Progress, Summary, summarize
from bf16codecs.errors import CorruptDataError
from bf16codecs.safetensors import open_source
from bf16codecs.store.opening import Opening, open_store

__all__ = ["verify_store"]


def verify_store(
    store: str | os.PathLike[str],
    src: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
    base: str | os.PathLike[str] | None = None,
    max_bytes: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Decode a whole store, check every checksum and SHA-256, and compare with `src` if given.

    Parameters
    ----------
    store
        A folder, a ZIP file, an HDF5 file, or an address that zarr understands.
    src
        The safetensors file, folder of shards or index that it has to be a copy of.
    threads, base, max_bytes, progress
        As for `zarr_to_safetensors`.

    Returns
    -------
    Summary

    Raises
    ------
    StoreError, bf16codecs.errors.CodecError
        If the store is damaged, or is not a copy of `src`.
    """
    start = time.perf_counter()
    source = None if src is None else open_source(src)
    opening = Opening(limits=Limits(max_bytes), base=base)
    with (
        closing(open_store(store, opening=opening)) as reader,
        codec_threads(threads),
    ):
        headers = reader.headers
        index = read_index(reader)
        check_restored_size(reader)
        if source is not None:
            compare_names(reader, headers, index, source)

        def consume(file: int, piece: Piece, data: Bytes) -> None:
            if source is None:
                return
            original = np.empty_like(data)
            source.files[file].read_into(piece.offset, original)
            if not np.array_equal(data, original):
                raise CorruptDataError(
                    f"{reader.where}: {piece.array.path} differs from {source.files[file].path}"
                )

        unpack(reader, headers, consume, True, progress and partial(progress, "verify"))
        return summarize(reader, headers, start)
