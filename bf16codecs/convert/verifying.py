"""Decoding whole stores, to find out whether they are intact."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from bf16codecs._buffers import Bytes
from bf16codecs._chunks.grid import Piece
from bf16codecs._limits import Limits
from bf16codecs._messages import counted, one_line
from bf16codecs._threads import codec_threads
from bf16codecs.convert.checks import check_restored_size, compare_names, read_index
from bf16codecs.convert.damages import Damages
from bf16codecs.convert.lossy import half_source
from bf16codecs.convert.pipeline import unpack
from bf16codecs.convert.sources import opened_source
from bf16codecs.convert.summary import Progress, Summary, shifted
from bf16codecs.errors import BF16CodecsError, CorruptDataError, LimitError, ServerError, StoreError
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

    Damage does not keep the rest from being read: the error, at the end, tells of all of it.

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
        If the store is damaged, or is not a copy of `src`. The error is that of the first damage;
        its `damage` lists all, as `bf16codecs.errors.Damage`. After 10,000, the rest is not read.
        It has none where the error tells of no damage: `LimitError`, `ServerError`.
    OSError
        If a server fails, or `src` cannot be read.
    """
    start = time.perf_counter()
    source = None if src is None else opened_source(src)
    opening = Opening(storage_options, Limits(max_bytes), base=base)
    with codec_threads(threads), closing(open_either(store, opening)) as reader:
        damages = Damages(reader.where)
        if isinstance(reader, RunReader):
            files, tensors, total = _verify_run(reader, source, damages, progress)
        else:
            files, tensors, total = len(reader.info.files), len(reader.names), _size(reader)
            _verify(reader, source, damages, shifted(progress, "verify", 0, total))
        damages.check()
        reader.check_documents()
        stored, loss = reader.total_nbytes(), reader.info.loss
        has_checksums = all(file.restored.kinds for file in reader.info.files)
    seconds = time.perf_counter() - start
    return Summary(files, tensors, total, stored, seconds, loss=loss, has_checksums=has_checksums)


def _verify_run(
    run: RunReader, source: Source | None, damages: Damages, progress: Progress | None
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
        _verify(reader, source, damages, shifted(progress, "verify", done, total))
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
    reader: StoreReader,
    source: Source | None,
    damages: Damages,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Decode all of a model, and compare it with its digests, and with a source if there is one."""
    found = partial(damages.add, step=reader.location[1])
    try:
        if not _has_bad_arrays(reader, found):
            _verify_data(reader, source, found, progress)
    except (OSError, ServerError) as e:
        if damages:
            found(StoreError(f"{one_line(e)}: the rest was not read"))
            damages.check()
        raise
    except BF16CodecsError as e:
        # The first tells all, because there is too much; the second says nothing of the store.
        if e.damage or isinstance(e, LimitError):
            raise
        found(e)


def _has_bad_arrays(reader: StoreReader, found: Callable[..., None]) -> bool:
    """Tell of the tensors whose arrays cannot be opened: whether there are any."""
    is_bad = False
    for name, path in reader.info.paths.items():
        try:
            reader.array(path)
        except (LimitError, ServerError):
            raise
        except BF16CodecsError as e:
            is_bad = True
            found(e, tensor=name)
    return is_bad


def _verify_data(
    reader: StoreReader,
    source: Source | None,
    found: Callable[..., None],
    progress: Callable[[int, int], None] | None,
) -> None:
    headers, index = reader.headers, read_index(reader)
    check_restored_size(reader)
    if source is not None:
        compare_names(reader, headers, index, source)
        if reader.info.loss is not None:
            source = half_source(source)
    # Arrays may be those of several tensors, but not places in the files.
    names = {
        (file, header.data_start + tensor.start): tensor.name
        for file, header in enumerate(headers)
        for tensor in header.tensors
        if tensor.nbytes
    }

    def consume(file: int, piece: Piece, data: Bytes) -> None:
        if source is None:
            return
        original = np.empty_like(data)
        source.files[file].read_into(piece.offset, original)
        if not np.array_equal(data, original):
            chunk = f"{reader.label(piece.array.path)}, chunk {piece.index}"
            raise CorruptDataError(f"{chunk} differs from {source.files[file].path}")

    def failed(error: BF16CodecsError, piece: Piece | None) -> None:
        if piece is None:
            found(error)
        else:
            name = names[piece.array.file, piece.array.offset]
            found(error, tensor=name, chunk=piece.index)

    expected = [file.restored for file in reader.info.files]
    unpack(reader, headers, consume, expected, progress, failed)
