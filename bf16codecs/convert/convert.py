"""Conversion between safetensors files and model stores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from bf16codecs._buffers import Bytes
from bf16codecs._chunks.grid import Piece
from bf16codecs._files import write_all
from bf16codecs._limits import Limits
from bf16codecs._paths import given_path
from bf16codecs._threads import codec_threads
from bf16codecs.convert.checks import check_restored_size, compare_names, read_index
from bf16codecs.convert.pipeline import LOCAL, Engine, file_prefix, pack, unpack
from bf16codecs.convert.summary import Progress, Summary, summarize
from bf16codecs.convert.target import absolute_target, has_only, is_kind, new_target
from bf16codecs.errors import CorruptDataError
from bf16codecs.safetensors import Source, open_source
from bf16codecs.store.backend import StoreReader, StoreWriter
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.opening import Kind, open_store
from bf16codecs.store.zarr_writer import ZarrWriter

__all__ = [
    "DEFAULT_CHUNK_SIZE",
    "DEFAULT_CODEC",
    "hdf5_to_safetensors",
    "open_store",
    "safetensors_to_hdf5",
    "safetensors_to_zarr",
    "verify_store",
    "zarr_to_safetensors",
]

# 8 to 64 MiB convert equally fast; smaller ones take less memory, and a slice where a reader
# decodes whole chunks (format 2) less time.
DEFAULT_CHUNK_SIZE = 16 << 20
DEFAULT_CODEC = "arithmetic"


def safetensors_to_zarr(
    src: str | os.PathLike[str] | Source,
    store: str | os.PathLike[str],
    *,
    codec: str = DEFAULT_CODEC,
    level: str | int | None = None,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    threads: int | None = None,
    zarr_format: int = 3,
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
        ``"huffman"``, ``"arithmetic"``, ``"zstd"``, ``"split"`` or ``"none"``, for floats.
    level
        Of ``"zstd"`` 1 to 22, of ``"arithmetic"`` ``"fast"`` or ``"best"``.
    chunk_size
        Largest size of a chunk, in bytes.
    threads
        Number of threads; by default `bf16codecs.get_num_threads()`.
    zarr_format
        3 or 2.
    verify
        Read the finished store again and compare it with the source.
    overwrite
        Replace an existing store.
    sync
        Flush the store to the disk before it gets its name, so that it survives a loss of power.
    progress
        Called now and then with the phase (``"convert"``, ``"verify"``), the bytes done and the
        total bytes.
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
    ValueError
        If an option makes no sense, or the target is or contains the source.
    OSError
        If a file cannot be read or written.
    """
    if zarr_format not in (2, 3):
        raise ValueError(f"zarr_format must be 2 or 3, not {zarr_format!r}")
    as_zip = os.fspath(store).lower().endswith(".zip")
    return _to_store(
        src,
        store,
        make_writer=partial(
            ZarrWriter,
            choice=CodecChoice(codec, level),
            zarr_format=zarr_format,
            as_zip=as_zip,
            sync_shared=sync,
        ),
        kind=Kind.ZIP if as_zip else Kind.FOLDER,
        chunk_size=chunk_size,
        threads=threads,
        verify=verify,
        overwrite=overwrite,
        sync=sync,
        progress=progress,
        engine=engine,
    )


def zarr_to_safetensors(
    store: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    threads: int | None = None,
    overwrite: bool = False,
    max_bytes: int | None = None,
    sync: bool = True,
    progress: Progress | None = None,
) -> Summary:
    """Restore the original file, or the folder of shards with its index, from a model store.

    Parameters
    ----------
    store
        A folder, a ZIP file, or an address that zarr opens.
    dst
        The file to make, or the folder if the store has several files or an index. It appears
        only when it is complete and has the original's SHA-256.
    threads
        How many threads may work.
    overwrite
        Replace an existing file, or a folder that has files of the same names only.
    max_bytes
        The most bytes that the restored files may have. By default 1 GiB, or 256 times the store's
        size if that is more, which no real model meets.
    sync
        Flush the files to the disk before they get their names.
    progress
        Called now and then with the phase, the bytes done and all bytes.

    Returns
    -------
    Summary

    Raises
    ------
    StoreError
        If the store is incomplete.
    bf16codecs.errors.CodecError
        If data are damaged. The target is not made then.
    FileExistsError
        If the target exists and `overwrite` is false, or it has other files.
    ValueError
        If an option makes no sense, or the target is in the store or contains it.
    """
    limits = Limits(max_bytes)
    with closing(open_store(store, Kind.FOLDER, Kind.ZIP, limits=limits)) as reader:
        return _restore(reader, dst, threads, overwrite, sync, progress)


def safetensors_to_hdf5(
    src: str | os.PathLike[str] | Source,
    file: str | os.PathLike[str],
    *,
    codec: str = DEFAULT_CODEC,
    level: str | int | None = None,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    threads: int | None = None,
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
    from bf16codecs.store.hdf5_writer import MAX_CHUNK_SIZE, Hdf5Writer

    if chunk_size > MAX_CHUNK_SIZE:
        raise ValueError(f"HDF5 chunks have {MAX_CHUNK_SIZE} bytes at most, not {chunk_size}")
    return _to_store(
        src,
        file,
        make_writer=partial(Hdf5Writer, choice=CodecChoice(codec, level)),
        kind=Kind.HDF5,
        chunk_size=chunk_size,
        threads=threads,
        verify=verify,
        overwrite=overwrite,
        sync=sync,
        progress=progress,
    )


def hdf5_to_safetensors(
    file: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    threads: int | None = None,
    overwrite: bool = False,
    max_bytes: int | None = None,
    sync: bool = True,
    progress: Progress | None = None,
) -> Summary:
    """Restore the original file, or the folder of shards with its index, from an HDF5 file.

    Parameters and errors are those of `zarr_to_safetensors`.
    """
    with closing(open_store(file, Kind.HDF5, limits=Limits(max_bytes))) as reader:
        return _restore(reader, dst, threads, overwrite, sync, progress)


def verify_store(
    store: str | os.PathLike[str],
    src: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
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
    threads, max_bytes, progress
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
    with (
        closing(open_store(store, limits=Limits(max_bytes))) as reader,
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


def _to_store(
    src: str | os.PathLike[str] | Source,
    store: str | os.PathLike[str],
    *,
    make_writer: Callable[[Path], StoreWriter],
    kind: Kind,
    chunk_size: int,
    threads: int | None,
    verify: bool,
    overwrite: bool,
    sync: bool,
    progress: Progress | None,
    engine: Engine = LOCAL,
) -> Summary:
    """Convert into any kind of store."""
    start = time.perf_counter()
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be positive, not {chunk_size}")
    source = src if isinstance(src, Source) else open_source(src)
    target = absolute_target(given_path(store, "target"), source.paths)
    may_replace = partial(is_kind, kind=kind)
    with codec_threads(threads), new_target(target, overwrite, may_replace, sync) as temporary:
        with closing(make_writer(temporary)) as writer:
            report = progress and partial(progress, "convert")
            packed = pack(source, writer, chunk_size, verify, report, engine.encode)
        if verify:
            with closing(open_store(temporary, kind)) as reader:
                headers = reader.headers
                compare_names(reader, headers, read_index(reader), source)
                engine.verify(reader, headers, packed, progress and partial(progress, "verify"))
    return Summary(
        len(source.files),
        sum(len(file.header.tensors) for file in source.files),
        packed.nbytes,
        packed.stored_nbytes,
        time.perf_counter() - start,
    )


def _restore(
    reader: StoreReader,
    dst: str | os.PathLike[str],
    threads: int | None,
    overwrite: bool,
    sync: bool,
    progress: Progress | None,
) -> Summary:
    """Restore from any kind of store."""
    start = time.perf_counter()
    headers = reader.headers
    index = read_index(reader)
    check_restored_size(reader)
    names = [file.name for file in reader.info.files]
    if reader.info.index is not None:
        names.append(reader.info.index.name)
    as_folder = reader.info.index is not None or len(names) > 1
    local = [] if "://" in reader.where else [Path(reader.where)]
    target = absolute_target(given_path(dst, "target"), local)
    if local and local[0].resolve() in target.resolve().parents:
        raise ValueError(f"{dst}: lies in the store")
    may_replace = partial(has_only, names=names) if as_folder else Path.is_file
    with codec_threads(threads), new_target(target, overwrite, may_replace, sync) as temporary:
        if as_folder:
            temporary.mkdir()
        paths = [temporary / name for name in names] if as_folder else [temporary]
        for path, header in zip(paths, headers, strict=False):
            with open(path, "xb") as file:
                file.write(file_prefix(header))
        if reader.info.index is not None:
            paths[-1].write_bytes(index)

        def consume(number: int, piece: Piece, data: Bytes) -> None:
            with open(paths[number], "r+b", buffering=0) as file:
                file.seek(piece.offset)
                write_all(file, data)

        unpack(reader, headers, consume, True, progress and partial(progress, "restore"))
    return summarize(reader, headers, start)
