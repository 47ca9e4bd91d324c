"""Decoding whole stores, to find out whether they are intact."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import numpy as np

from bf16codecs._buffers import Bytes
from bf16codecs._chunks.grid import Piece
from bf16codecs._limits import Limits
from bf16codecs._messages import counted
from bf16codecs._threads import codec_threads
from bf16codecs.convert.checks import check_restored_size, compare_names, read_index
from bf16codecs.convert.lossy import half_source
from bf16codecs.convert.pipeline import unpack
from bf16codecs.convert.sources import opened_source
from bf16codecs.convert.summary import Progress, Summary, shifted
from bf16codecs.errors import CorruptDataError, StoreError
from bf16codecs.safetensors import Source
from bf16codecs.store.backend import StoreReader
from bf16codecs.store.opening import Opening, open_either
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.run_layout import listed
from bf16codecs.store.runs import RunReader

__all__ = ["verify_store"]


def verify_store(
    store: str | os.PathLike[str],
    src: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
    base: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Decode a whole store, check every checksum and digest, and compare with `src` if given.

    Parameters
    ----------
    store
        Anything that `bf16codecs.open_model` opens. Safetensors files have no checksums: they are
        read, and compared with `src`. Of a run, all
        steps are verified, or the one that the path names, as in ``run.zarr@600``.
    src
        The safetensors file, folder of shards or index that it has to be a copy of; a lossy store,
        of that in half precision.
    threads, base, storage_options, max_bytes, progress
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
    source = None if src is None else opened_source(src)
    opening = Opening(storage_options, Limits(max_bytes), base=base)
    with codec_threads(threads), closing(open_either(store, opening)) as reader:
        if isinstance(reader, RunReader):
            files, tensors, total = _verify_run(reader, source, progress)
        else:
            files, tensors, total = len(reader.info.files), len(reader.names), _size(reader)
            _verify(reader, source, shifted(progress, "verify", 0, total))
        reader.check_documents()
        stored, loss = reader.total_nbytes(), reader.info.loss
        has_checksums = all(file.restored.kinds for file in reader.info.files)
    seconds = time.perf_counter() - start
    return Summary(files, tensors, total, stored, seconds, loss=loss, has_checksums=has_checksums)


def _verify_run(
    run: RunReader, source: Source | None, progress: Progress | None
) -> tuple[int, int, int]:
    """Verify all steps of a run; return how many files, tensors and bytes they have."""
    steps = run.run.steps
    if source is not None and len(steps) > 1:
        raise StoreError(
            f"{run.where}: a run of {counted(len(steps), 'step')}: name the one that is to be"
            f" compared, as in {run.where}@{steps[-1].number}"
        )
    files, tensors, done, total = 0, 0, 0, sum(step.nbytes for step in steps)
    run.check_size(total, "the original files")
    _check_coordinate(run)
    for step in steps:
        reader = run.step(step.number)
        _verify(reader, source, shifted(progress, "verify", done, total))
        files, tensors = files + len(step.files), tensors + len(reader.names)
        done += step.nbytes
    return files, tensors, total


def _check_coordinate(run: RunReader) -> None:
    """Compare the array of the steps' numbers, which other software goes by, with the attributes.

    It may have one more: an append is under way, or was killed.
    """
    numbers = run.run.numbers
    array = run.array(STEP_PATH)
    if array.dtype != np.int64 or len(array.shape) != 1 or array.shape[0] < len(numbers):
        raise StoreError(
            f"{run.label(STEP_PATH)}: {array.dtype} of shape {array.shape}, not the numbers of"
            f" {counted(len(numbers), 'step')}"
        )
    found = np.empty(len(numbers), np.int64)
    array.read_run(0, found.nbytes, found.view(np.uint8))
    if found.tolist() != numbers:
        raise CorruptDataError(
            f"{run.label(STEP_PATH)}: has the steps {listed(found.tolist())}; the attributes of the"
            f" run have {listed(numbers)}"
        )


def _size(reader: StoreReader) -> int:
    index = reader.info.index
    return sum(file.size for file in reader.info.files) + (0 if index is None else index.size)


def _verify(
    reader: StoreReader, source: Source | None, progress: Callable[[int, int], None] | None
) -> None:
    """Decode all of a model, and compare it with its digests, and with a source if there is one."""
    headers, index = reader.headers, read_index(reader)
    check_restored_size(reader)
    if source is not None:
        compare_names(reader, headers, index, source)
        if reader.info.loss is not None:
            source = half_source(source)

    def consume(file: int, piece: Piece, data: Bytes) -> None:
        if source is None:
            return
        original = np.empty_like(data)
        source.files[file].read_into(piece.offset, original)
        if not np.array_equal(data, original):
            label = reader.label(piece.array.path)
            raise CorruptDataError(f"{label} differs from {source.files[file].path}")

    unpack(reader, headers, consume, [file.restored for file in reader.info.files], progress)
