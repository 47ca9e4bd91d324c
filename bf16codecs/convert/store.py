"""Converting safetensors files to model stores."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bf16codecs._base.cluster import current_cluster, on_cluster
from bf16codecs._base.messages import counted
from bf16codecs._base.threads import codec_threads
from bf16codecs.convert.bases import (
    Base,
    check_not_base,
    opened_base,
)
from bf16codecs.convert.checks import differing_names, digest_kinds, stored_index
from bf16codecs.convert.decoding import verify_packed
from bf16codecs.convert.lossy import half_source, measure_loss
from bf16codecs.convert.new_store import (
    NewStore,
    check_same_server,
    new_store,
    options_of_base,
    options_of_target,
    target_of,
)
from bf16codecs.convert.options import Options, zarr_kind
from bf16codecs.convert.packing import Measure, Packed, pack
from bf16codecs.convert.sources import left_out, opened_source
from bf16codecs.convert.summary import Progress, Summary
from bf16codecs.convert.target import check_store_name
from bf16codecs.errors import CorruptDataError
from bf16codecs.store.choice import DEFAULT_CHUNK_SIZE, DEFAULT_CODEC
from bf16codecs.store.kinds import Kind
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.objects import read_parts
from bf16codecs.store.reader import ModelReader

__all__ = [
    "convert_model",
    "safetensors_to_hdf5",
    "safetensors_to_zarr",
]


def safetensors_to_zarr(
    src: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    codec: str = DEFAULT_CODEC,
    level: str | int | None = None,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    threads: int | None = None,
    base: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    lossy: str | None = None,
    zarr_format: int = 3,
    sha256: bool = False,
    verify: bool = True,
    overwrite: bool = False,
    sync: bool = True,
    progress: Progress | None = None,
) -> Summary:
    """Convert safetensors files to a model store in Zarr.

    Parameters
    ----------
    src
        A safetensors file, a folder of shards, or a `*.safetensors.index.json`; the address of one,
        which is read without a copy on the disk; or a file of PyTorch or GGUF.
    store
        The store to make: a folder, or a ZIP file if the name ends in ``.zip``; or the address of a
        folder in an object store, ``s3://``, ``gs://`` or ``az://``. It appears only when it is
        complete; after an error, nothing is there.
    codec
        Codec of floating-point tensors: ``"huffman"``, ``"arithmetic"``, ``"zstd"``, ``"split"``
        or ``"none"``. ``"plain-zstd"`` encodes all tensors with the Zstandard codec that every
        Zarr library has. With `lossy`: ``"huffman"``, ``"arithmetic"``, ``"zstd"``,
        ``"delta-rle"`` or ``"delta-deflate"``.
    level
        1 to 22 for ``"zstd"`` and ``"plain-zstd"``, 1 to 9 for ``"delta-deflate"``, ``"fast"`` or
        ``"best"`` for ``"arithmetic"``.
    chunk_size
        Largest size of a chunk, in bytes. A model that is cut into more than 10,000 small chunks
        causes a `ManyFilesWarning`, or a `ValueError` if the size is below 4096.
    threads
        Number of threads; by default `bf16codecs.get_num_threads()`.
    base
        Path or address of a model of any kind. Tensors that both models have are stored as
        differences to it, and reading the store requires it. By default there is none.
    storage_options
        Options of the file system of a source, or a base, at an address: credentials, endpoints,
        time-outs. If both are at addresses, they are for the source, and for a base of the same
        scheme.
    target_options
        Options of the object store that `store` is in, as obstore or fsspec calls them. By default,
        `storage_options` are for it as well, unless they are for addresses with another scheme.
    lossy
        ``"float16"`` stores FP32 tensors in half precision. The source is read once more, first,
        to measure the loss. The store records that it is lossy, and does not restore the original
        FP32 numbers. By default, nothing is lost.
    zarr_format
        3 or 2.
    sha256
        Store the SHA-256 of the files, which hubs list, in addition to their BLAKE3.
    verify
        Read the finished store again and compare it with the source.
    overwrite
        Replace an existing store.
    sync
        Flush the store to the disk before it gets its name, so that it survives a power failure.
    progress
        Called now and then with the phase (``"measure"`` if `lossy`, ``"convert"``, ``"verify"``),
        the bytes done and the total bytes.

    Returns
    -------
    Summary

    Raises
    ------
    SafetensorsError
        If the source is damaged.
    FileExistsError
        If `store` exists and `overwrite` is false, or it is not a store.
    BlockingIOError
        If another process is writing the same store in an object store.
    StoreError
        If the base is not a model, or has no tensor in common with the source; if the object store
        has no conditional requests.
    TypeError
        If `chunk_size` or `threads` is not an integer.
    ValueError
        If an option is invalid, if the target is or contains the source or the base, or if `lossy`
        is given for a model without FP32 tensors.
    OSError
        If a file cannot be read or written, or a server fails.
    """
    options = Options(
        codec=codec,
        level=level,
        chunk_size=chunk_size,
        threads=threads,
        base=base,
        storage_options=storage_options,
        target_options=target_options,
        lossy=lossy,
        zarr_format=zarr_format,
        sha256=sha256,
        verify=verify,
        overwrite=overwrite,
        sync=sync,
        progress=progress,
    )
    with closing(opened_source(src, to_store=True, options=storage_options)) as source:
        return convert_model(source, store, zarr_kind(store), options)


def safetensors_to_hdf5(
    src: str | os.PathLike[str],
    file: str | os.PathLike[str],
    *,
    codec: str = DEFAULT_CODEC,
    level: str | int | None = None,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    threads: int | None = None,
    base: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    sha256: bool = False,
    verify: bool = True,
    overwrite: bool = False,
    sync: bool = True,
    progress: Progress | None = None,
) -> Summary:
    """Convert safetensors files to a model store in HDF5.

    The parameters are those of `safetensors_to_zarr`; `file` is the HDF5 file to make. The codec
    ``"zstd"`` uses HDF5's own filters, and requires hdf5plugin.

    Returns
    -------
    Summary

    Raises
    ------
    SafetensorsError
        If the source is damaged.
    FileExistsError
        If `file` exists and `overwrite` is false, or it is not an HDF5 file.
    """
    options = Options(
        codec=codec,
        level=level,
        chunk_size=chunk_size,
        threads=threads,
        base=base,
        storage_options=storage_options,
        sha256=sha256,
        verify=verify,
        overwrite=overwrite,
        sync=sync,
        progress=progress,
    )
    with closing(opened_source(src, to_store=True, options=storage_options)) as source:
        return convert_model(source, file, Kind.HDF5, options)


def convert_model(
    source: ModelReader,
    store: str | os.PathLike[str],
    kind: Kind,
    options: Options,
    levels: Mapping[str, str] = MappingProxyType({}),
    in_place: bool = False,
) -> Summary:
    """Convert a model, which the caller closes, to a store of any kind.

    `levels` override that of `options`, by tensor. With `in_place`, the store may replace the
    source.
    """
    is_alone = kind is not Kind.FOLDER or options.lossy is not None or not source.is_shareable
    if is_alone and current_cluster() is not None:
        with on_cluster(None):  # several processes cannot read or write these
            return convert_model(source, store, kind, options, levels, in_place)
    start = time.perf_counter()
    options.check_kind(kind)
    kinds = digest_kinds(source, options.sha256)
    progress, choice = options.progress, options.choice
    measure: Measure | None = None
    if options.lossy is not None:
        measure = partial(measure_loss, source, kinds, progress and partial(progress, "measure"))
        source = half_source(source)
    target = target_of(store, kind, source, options, in_place)
    base_options = options_of_base(source, target, options)
    places = source.where, options.base_place
    of_target = options_of_target(target, options.target_options, options.storage_options, places)
    check_same_server(target, options.base_place, base_options, of_target)
    options = replace(options, target_options=of_target)
    check_not_base(options.base, target, base_options)
    if isinstance(target, Path):
        check_store_name(store, target, kind)
    with (
        codec_threads(options.threads),
        new_store(target, kind, options) as new,
        opened_base(options.base, source, target, choice, kinds, base_options) as found,
    ):
        base = found if isinstance(found, Base) else None
        with closing(new.writer(options)) as writer:
            packed = pack(
                source,
                writer,
                kinds,
                chunk_size=options.chunk_size,
                keep_checksums=options.verify,
                progress=progress and partial(progress, "convert"),
                base=base,
                measure=measure,
                levels=levels,
            )
        if options.verify:
            _verify(new, source, packed, base, options)
        if base is not None:
            base.check_unchanged()
        stored_nbytes = new.stored_nbytes(packed.stored_nbytes)
    return Summary(
        len(source.headers),
        sum(len(header.entries) for header in source.headers),
        packed.nbytes,
        stored_nbytes,
        time.perf_counter() - start,
        _base_note(packed.info, found),
        packed.info.loss,
        left_out=left_out([source], target),
        hidden=tuple(name for header in source.headers for name in header.hidden),
    )


def _verify(
    store: NewStore,
    source: ModelReader,
    packed: Packed,
    base: Base | None,
    options: Options,
) -> None:
    """Read a new store, and compare it with its source."""
    progress = options.progress
    with closing(store.open(None if base is None else base.model)) as reader:
        headers = reader.headers
        difference = differing_names(reader, headers, stored_index(reader), source)
        if difference is not None:
            raise CorruptDataError(f"{reader.where}: {difference}")
        if read_parts(reader) != read_parts(source):
            raise CorruptDataError(f"{reader.where}: has other objects than its source")
        report = progress and partial(progress, "verify")
        verify_packed(reader, headers, packed, report)


def _base_note(info: StoreInfo, found: Base | str) -> str:
    """Name the base and why it was chosen, or say why there is none."""
    if isinstance(found, str):
        return found
    path, differences, tensors = found.reference.location, len(info.differences), len(info.paths)
    note = f"base {path}: {differences} of {counted(tensors, 'tensor')} as differences"
    return f"{note}; {found.reason}" if found.reason else note
