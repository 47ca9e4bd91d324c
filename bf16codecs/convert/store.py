"""Converting safetensors files to model stores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from bf16codecs._base.arguments import as_integer
from bf16codecs._base.messages import counted
from bf16codecs._base.paths import given_path
from bf16codecs._base.threads import codec_threads
from bf16codecs._files.digests import kinds_of
from bf16codecs.convert.bases import Base, check_not_base, opened_base
from bf16codecs.convert.checks import differing_names, stored_index
from bf16codecs.convert.defaults import DEFAULT_CHUNK_SIZE
from bf16codecs.convert.lossy import half_source, measure_loss
from bf16codecs.convert.pipeline import LOCAL, Engine, Measure, pack
from bf16codecs.convert.sources import left_out, opened_source
from bf16codecs.convert.summary import Progress, Summary
from bf16codecs.convert.target import (
    absolute_target,
    check_store_name,
    new_target,
    other_than_model,
)
from bf16codecs.errors import CorruptDataError
from bf16codecs.safetensors import Source, open_to_store
from bf16codecs.store.choice import DEFAULT_CODEC, CodecChoice
from bf16codecs.store.kinds import Kind, suffix_of
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.objects import read_parts
from bf16codecs.store.opening import Opening, open_store
from bf16codecs.store.writer import StoreWriter
from bf16codecs.store.zarr.writer import ZarrWriter

__all__ = [
    "safetensors_to_hdf5",
    "safetensors_to_zarr",
]


def safetensors_to_zarr(
    src: str | os.PathLike[str] | Source,
    store: str | os.PathLike[str],
    *,
    codec: str = DEFAULT_CODEC,
    level: str | int | None = None,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    threads: int | None = None,
    base: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    lossy: str | None = None,
    zarr_format: int = 3,
    sha256: bool = False,
    verify: bool = True,
    overwrite: bool = False,
    sync: bool = True,
    progress: Progress | None = None,
    engine: Engine = LOCAL,
) -> Summary:
    """Convert safetensors files to a model store in Zarr.

    Parameters
    ----------
    src
        A safetensors file, a folder of shards, or a `*.safetensors.index.json`.
    store
        The store to make: a folder, or a ZIP file if the name ends in ``.zip``. It appears only
        when it is complete, and not at all after an error.
    codec
        ``"huffman"``, ``"arithmetic"``, ``"zstd"``, ``"split"`` or ``"none"``, for floats; or
        ``"plain-zstd"``, for all tensors: Zstandard as every Zarr library has it. With `lossy`,
        ``"delta-rle"`` or ``"delta-deflate"`` too, and not the last three.
    level
        Of ``"zstd"`` and ``"plain-zstd"`` 1 to 22, of ``"delta-deflate"`` 1 to 9, of
        ``"arithmetic"`` ``"fast"`` or ``"best"``.
    chunk_size
        Largest size of a chunk, in bytes. Where a model is cut into more than 10,000 small ones, a
        `ManyFilesWarning` tells so; below 4096 bytes, these are a `ValueError`.
    threads
        Number of threads; by default `bf16codecs.get_num_threads()`.
    base
        A model, whatever holds it: its path or address. Tensors that it has too are stored as what
        differs, and reading the store needs it. By default there is none.
    storage_options
        Of the file system that a base at an address is in: credentials, endpoints, time-outs.
    lossy
        ``"float16"`` stores FP32 tensors in half precision; what this loses is measured first, for
        which the source is read once more. The store says that it is lossy, and restores FP32
        tensors with other numbers. By default, nothing is lost.
    zarr_format
        3 or 2.
    sha256
        Store the SHA-256 of the files, which hubs list, beside their BLAKE3.
    verify
        Read the finished store again and compare it with the source.
    overwrite
        Replace an existing store.
    sync
        Flush the store to the disk before it gets its name, so that it survives a loss of power.
    progress
        Called now and then with the phase (``"measure"`` if `lossy`, ``"convert"``, ``"verify"``),
        the bytes done and the total bytes.
    engine
        Who does the work: by default this process; `bf16codecs.dask.cluster` gives another.

    Returns
    -------
    Summary

    Raises
    ------
    SafetensorsError
        If the source is damaged.
    FileExistsError
        If `store` exists and `overwrite` is false, or it is not a store.
    StoreError
        If the base is not a model, or has no tensor in common with the source.
    TypeError
        If `chunk_size` or `threads` is no integer.
    ValueError
        If an option makes no sense, or the target is or contains the source or the base, or a
        model without FP32 tensors would be stored lossy.
    OSError
        If a file cannot be read or written.
    """
    if zarr_format not in (2, 3):
        raise ValueError(f"zarr_format must be 2 or 3, not {zarr_format!r}")
    if lossy is not None and (base is not None or engine is not LOCAL):
        raise ValueError("a lossy store has no base, and is made by one process")
    as_zip = suffix_of(Path(store).name)[1] is Kind.ZIP
    choice = CodecChoice(codec, level, lossy)
    return _to_store(
        src,
        store,
        make_writer=partial(
            ZarrWriter,
            choice=choice,
            zarr_format=zarr_format,
            as_zip=as_zip,
            sync_shared=sync,
        ),
        kind=Kind.ZIP if as_zip else Kind.FOLDER,
        choice=choice,
        base=base,
        storage_options=storage_options,
        chunk_size=chunk_size,
        threads=threads,
        sha256=sha256,
        verify=verify,
        overwrite=overwrite,
        sync=sync,
        progress=progress,
        engine=engine,
    )


def safetensors_to_hdf5(
    src: str | os.PathLike[str] | Source,
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

    Parameters are those of `safetensors_to_zarr`; `file` is the HDF5 file to make. The codec
    ``"zstd"`` uses HDF5's own filters, and needs hdf5plugin.

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
    # h5py is imported by those who have HDF5 files.
    from bf16codecs.store.hdf5.writer import MAX_CHUNK_SIZE, Hdf5Writer

    if as_integer("chunk_size", chunk_size) > MAX_CHUNK_SIZE:
        raise ValueError(f"HDF5 chunks have {MAX_CHUNK_SIZE} bytes at most, not {chunk_size}")
    choice = CodecChoice(codec, level)
    choice.check_hdf5()
    return _to_store(
        src,
        file,
        make_writer=partial(Hdf5Writer, choice=choice),
        kind=Kind.HDF5,
        choice=choice,
        base=base,
        storage_options=storage_options,
        chunk_size=chunk_size,
        threads=threads,
        sha256=sha256,
        verify=verify,
        overwrite=overwrite,
        sync=sync,
        progress=progress,
    )


def _to_store(
    src: str | os.PathLike[str] | Source,
    store: str | os.PathLike[str],
    *,
    make_writer: Callable[[Path], StoreWriter],
    kind: Kind,
    choice: CodecChoice,
    base: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
    chunk_size: int,
    threads: int | None,
    sha256: bool,
    verify: bool,
    overwrite: bool,
    sync: bool,
    progress: Progress | None,
    engine: Engine = LOCAL,
) -> Summary:
    """Convert into any kind of store."""
    start = time.perf_counter()
    chunk_size = as_integer("chunk_size", chunk_size)
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be positive, not {chunk_size}")
    source = src if isinstance(src, Source) else opened_source(src, open_to_store)
    kinds = kinds_of(sha256)
    measure: Measure | None = None
    if choice.lossy is not None:
        measure = partial(measure_loss, source, kinds, progress and partial(progress, "measure"))
        source = half_source(source)
    target = absolute_target(given_path(store, "target"), source.paths)
    check_not_base(base, target, storage_options)
    check_store_name(store, target, kind)
    obstacle = partial(other_than_model, kind=kind)
    with (
        codec_threads(threads),
        new_target(target, overwrite, obstacle, sync, as_folder=kind is Kind.FOLDER) as temporary,
        opened_base(base, source, target, choice, kinds, storage_options) as found,
    ):
        with closing(make_writer(temporary)) as writer:
            report = progress and partial(progress, "convert")
            on = found if isinstance(found, Base) else None
            packed = pack(
                source, writer, chunk_size, kinds, verify, report, engine.encode, on, measure
            )
        if verify:
            opening = Opening(base=None if on is None else on.model)
            with closing(open_store(temporary, kind, opening=opening)) as reader:
                headers = reader.headers
                other = differing_names(reader, headers, stored_index(reader), source)
                if other is not None:
                    raise CorruptDataError(f"{reader.where}: {other}")
                if read_parts(reader) != source.checkpoint:
                    raise CorruptDataError(f"{reader.where}: has other objects than its source")
                engine.verify(reader, headers, packed, progress and partial(progress, "verify"))
        if on is not None:
            on.check_unchanged()
        # A ZIP file has headers and a directory beside what the writer counts.
        is_file = temporary.is_file()
        stored_nbytes = temporary.stat().st_size if is_file else packed.stored_nbytes
    return Summary(
        len(source.files),
        sum(len(file.header.tensors) for file in source.files),
        packed.nbytes,
        stored_nbytes,
        time.perf_counter() - start,
        _base_note(packed.info, found),
        packed.info.loss,
        left_out=left_out([source], target),
    )


def _base_note(info: StoreInfo, found: Base | str) -> str:
    """Say what the base is, and why, or why there is none."""
    if isinstance(found, str):
        return found
    place, differences, tensors = found.reference.place, len(info.differences), len(info.paths)
    note = f"base {place}: {differences} of {counted(tensors, 'tensor')} as differences"
    return f"{note}; {found.reason}" if found.reason else note
