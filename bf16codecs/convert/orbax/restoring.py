"""Restore Orbax checkpoints from model stores."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bf16codecs._base.limits import DEFAULT_LIMITS, Limits
from bf16codecs._base.messages import one_line
from bf16codecs._base.paths import given_path
from bf16codecs._base.threads import codec_threads
from bf16codecs.convert.checks import check_restored_size
from bf16codecs.convert.orbax.arrays import ArrayOpener, Scratch, write_database
from bf16codecs.convert.orbax.converting import ADDRESS_ADVICE
from bf16codecs.convert.orbax.layout import KEY, Checkpoint, other_than_checkpoint
from bf16codecs.convert.orbax.source import CheckpointReader, open_checkpoint
from bf16codecs.convert.pieces import all_pieces, file_hash, read_pieces
from bf16codecs.convert.summary import Progress, Summary, summarize
from bf16codecs.convert.target import absolute_target, new_target
from bf16codecs.errors import CorruptDataError, StoreError
from bf16codecs.safetensors import Header, TensorInfo
from bf16codecs.store.bases import local_chain
from bf16codecs.store.kinds import Kind, path_of, restorer_of
from bf16codecs.store.opening import Opening, open_store
from bf16codecs.store.reader import ModelReader, stored_arrays
from bf16codecs.store.zarr.metadata import NoGroupError

__all__ = ["zarr_to_orbax"]

_PART_BYTES = 8 << 20


def zarr_to_orbax(
    store: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    threads: int | None = None,
    overwrite: bool = False,
    base: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    verify: bool = True,
    sync: bool = True,
    progress: Progress | None = None,
) -> Summary:
    """Restore an Orbax checkpoint from a store that `orbax_to_zarr` made.

    Arrays get the same bits, chunks and codecs. All other files are the same, except those of OCDBT
    databases, which are written anew.

    Parameters
    ----------
    store
        A folder, a ZIP file, or an address that zarr opens.
    dst
        The folder to make. It appears only when it is complete.
    threads, base, storage_options, max_bytes, sync
        See `bf16codecs.convert.zarr_to_safetensors`.
    overwrite
        Replace an existing checkpoint.
    verify
        Read the finished checkpoint again and compare it with the digest of the original.
    progress
        Called repeatedly with the phase (``"restore"``, ``"verify"``), the bytes done and the
        total bytes.

    Returns
    -------
    Summary

    Raises
    ------
    StoreError
        If the store was not made from a checkpoint, or is incomplete.
    bf16codecs.errors.CodecError
        If data are damaged. Then the target is not made.
    FileExistsError
        If the target exists and `overwrite` is false, or it is not a checkpoint.
    """
    start = time.perf_counter()
    opening = Opening(storage_options, Limits(max_bytes), base=base)
    with closing(_opened(store, opening)) as reader:
        header, checkpoint = _kept(reader)
        local = [] if "://" in reader.where else [Path(reader.where)]
        target = absolute_target(given_path(dst, "target"), local)
        absolute_target(target, local_chain(reader.base), f"base of {reader.where}")
        check_restored_size(reader, reader.headers)
        with (
            codec_threads(threads),
            new_target(target, overwrite, other_than_checkpoint, sync, as_folder=True) as temporary,
        ):
            _write_documents(temporary, checkpoint)
            _write_arrays(reader, header, checkpoint, temporary, target.parent, progress)
            if verify:
                _verify(reader, header, checkpoint, temporary, target.parent, progress)
        return summarize(reader, [header], start)


def _opened(store: str | os.PathLike[str], opening: Opening) -> ModelReader:
    """Open a store; errors about addresses add that checkpoints are not read from these."""
    try:
        return open_store(store, Kind.FOLDER, Kind.ZIP, opening=opening)
    except (NoGroupError, FileNotFoundError) as e:
        if path_of(os.fspath(store)) is not None:
            raise
        raise type(e)(f"{one_line(e)}; {ADDRESS_ADVICE}") from e


def _kept(reader: ModelReader) -> tuple[Header, Checkpoint]:
    """Return the header of a store's file, and the checkpoint's documents in its metadata."""
    header, *others = reader.headers
    if others or KEY not in header.metadata:
        raise StoreError(
            f"{reader.where}: not made of an Orbax checkpoint: {restorer_of(Kind.FOLDER)} restores"
            " what it was made of"
        )
    try:
        checkpoint = Checkpoint.from_text(header.metadata[KEY])
        names = checkpoint.arrays().keys()
    except StoreError as e:
        raise StoreError(f"{reader.where}: {KEY}: {e}") from e
    other = names ^ {tensor.name for tensor in header.tensors}
    if other:
        raise StoreError(f"{reader.where}: {KEY} has other arrays than the store: {min(other)!r}")
    return header, checkpoint


def _write_documents(root: Path, checkpoint: Checkpoint) -> None:
    root.mkdir()
    for path, content in checkpoint.files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    for folder, metadata in checkpoint.databases.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        write_database(root / folder, metadata)


def _write_arrays(
    reader: ModelReader,
    header: Header,
    checkpoint: Checkpoint,
    root: Path,
    scratch: Path,
    progress: Progress | None,
) -> None:
    opener, locations = ArrayOpener(root, reader.where, reader.limits), checkpoint.arrays()
    total = sum(tensor.nbytes for tensor in header.tensors)
    for tensor in header.tensors:
        array = opener.open(tensor.name, locations[tensor.name])
        if (array.dtype, array.shape) != (tensor.dtype, tensor.shape):
            raise StoreError(
                f"{reader.where}: tensor {tensor.name!r:.300}: {array.dtype} of shape {array.shape}"
                f" in the checkpoint, and {tensor.dtype} of {tensor.shape} in the store"
            )
        with closing(Scratch(scratch, tensor.shape, array.item_size)) as decoded:
            _decode(reader, tensor, decoded)
            array.encode(decoded)
        if progress is not None:
            progress("restore", tensor.stop, total)


def _decode(reader: ModelReader, tensor: TensorInfo, decoded: Scratch) -> None:
    """Decode a tensor into a temporary file."""
    stored = reader.tensor(tensor.name)
    reader.check_header(tensor.name)
    ranges, part = reader.ranges(stored.array), np.empty(_PART_BYTES, np.uint8)
    for start in range(0, tensor.nbytes, _PART_BYTES):
        stop = min(start + _PART_BYTES, tensor.nbytes)
        ranges.read_range(start, stop, part[: stop - start])
        decoded.write(start, part[: stop - start])


def _verify(
    reader: ModelReader,
    header: Header,
    checkpoint: Checkpoint,
    root: Path,
    scratch: Path,
    progress: Progress | None,
) -> None:
    """Read the restored checkpoint, and compare all of it with the original."""
    with closing(open_checkpoint(root, scratch, DEFAULT_LIMITS, header)) as found:
        _compare(reader, header, checkpoint, found, progress)


def _compare(
    reader: ModelReader,
    header: Header,
    checkpoint: Checkpoint,
    found: CheckpointReader,
    progress: Progress | None,
) -> None:
    root = found.root
    if found.checkpoint != checkpoint:
        raise CorruptDataError(f"{root}: its documents are not those of the original")
    expected = reader.info.files[0].restored
    hashes = [file_hash(header, expected.kinds)]
    arrays = stored_arrays(reader, [header])
    report = progress and partial(progress, "verify")
    with closing(read_pieces(found, lambda *_: None, all_pieces(arrays), hashes, report)) as pieces:
        for _ in pieces:
            pass
    other = expected.difference(hashes[0].digests())
    if other is not None:
        raise CorruptDataError(f"{root}: has another {other[0]} than the original")
