"""Conversion between safetensors files and model stores."""

from __future__ import annotations

import os
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bf16codecs._chunks.grid import Piece
from bf16codecs._threads import codec_threads
from bf16codecs.convert.conversion import (
    Progress,
    Summary,
    compare_names,
    read_index,
    restore,
    summarize,
    to_store,
)
from bf16codecs.convert.pipeline import LOCAL, Engine, unpack
from bf16codecs.errors import CorruptDataError
from bf16codecs.safetensors import Source, open_source
from bf16codecs.store.layout import CodecChoice, StoreReader, read_headers
from bf16codecs.store.zarr_reader import ZarrReader
from bf16codecs.store.zarr_writer import ZarrWriter

__all__ = [
    "DEFAULT_CHUNK_SIZE",
    "DEFAULT_CODEC",
    "Summary",
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
    progress: Progress | None = None,
    engine: Engine = LOCAL,
) -> Summary:
    """Convert safetensors files to a model store in Zarr.

    Parameters
    ----------
    src
        A safetensors file, a folder of shards, or a `*.safetensors.index.json`.
    store
        The store to be made: a folder, or a ZIP file if the name ends in ``.zip``. It appears
        when it is complete, and not at all after an error.
    codec
        ``"huffman"``, ``"arithmetic"``, ``"zstd"``, ``"split"`` or ``"none"``, for floats.
    level
        Of ``"zstd"`` 1 to 22, of ``"arithmetic"`` ``"fast"`` or ``"best"``.
    chunk_size
        Size of the largest chunks in bytes.
    threads
        How many threads may work; by default as many as `bf16codecs.get_num_threads` tells.
    zarr_format
        3 or 2.
    verify
        Read the finished store again and compare it with the source.
    overwrite
        Replace an existing store.
    progress
        Called now and then with the phase, the bytes done and all bytes.
    engine
        What does the work; `bf16codecs.dask.cluster` gives another one than this process.

    Raises
    ------
    SafetensorsError
        If the source is damaged.
    FileExistsError
        If `store` exists and is not to be overwritten, or is something else than a store.
    """
    if zarr_format not in (2, 3):
        raise ValueError(f"zarr_format must be 2 or 3, not {zarr_format!r}")
    as_zip = os.fspath(store).lower().endswith(".zip")
    return to_store(
        src,
        store,
        make_writer=partial(
            ZarrWriter, choice=CodecChoice(codec, level), zarr_format=zarr_format, as_zip=as_zip
        ),
        make_reader=ZarrReader,
        may_replace=Path.is_file if as_zip else _is_zarr_folder,
        chunk_size=chunk_size,
        threads=threads,
        verify=verify,
        overwrite=overwrite,
        progress=progress,
        engine=engine,
    )


def zarr_to_safetensors(
    store: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Restore the original file, or the folder of shards with its index, from a model store.

    Parameters
    ----------
    store
        A folder, a ZIP file, or an address that zarr understands.
    dst
        The file to be made, or the folder where the store has several files or an index. It
        appears when it is complete and has its original's SHA-256.
    threads
        How many threads may work.
    overwrite
        Replace an existing file, or a folder that has files of the same names only.
    progress
        Called now and then with the phase, the bytes done and all bytes.

    Raises
    ------
    StoreError
        If the store lacks something.
    bf16codecs.errors.CodecError
        If data are damaged; the target is not made then.
    """
    with closing(ZarrReader(store)) as reader:
        return restore(reader, dst, threads, overwrite, progress)


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
    progress: Progress | None = None,
) -> Summary:
    """Convert safetensors files to a model store in HDF5.

    The parameters are those of `safetensors_to_zarr`; `file` is the HDF5 file to be made. The
    codec ``"zstd"`` takes HDF5's own filters, and so hdf5plugin.

    Raises
    ------
    SafetensorsError
        If the source is damaged.
    FileExistsError
        If `file` exists and is not to be overwritten, or is something else than an HDF5 file.
    """
    from bf16codecs.store.hdf5_reader import H5Reader
    from bf16codecs.store.hdf5_writer import MAX_CHUNK_SIZE, H5Writer

    if chunk_size > MAX_CHUNK_SIZE:
        raise ValueError(f"chunks of HDF5 have {MAX_CHUNK_SIZE} bytes at most, not {chunk_size}")
    return to_store(
        src,
        file,
        make_writer=partial(H5Writer, choice=CodecChoice(codec, level)),
        make_reader=H5Reader,
        may_replace=_is_hdf5_file,
        chunk_size=chunk_size,
        threads=threads,
        verify=verify,
        overwrite=overwrite,
        progress=progress,
    )


def hdf5_to_safetensors(
    file: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Restore the original file, or the folder of shards with its index, from an HDF5 file.

    Parameters and errors are those of `zarr_to_safetensors`.
    """
    from bf16codecs.store.hdf5_reader import H5Reader

    with closing(H5Reader(file)) as reader:
        return restore(reader, dst, threads, overwrite, progress)


def open_store(store: str | os.PathLike[str]) -> StoreReader:
    """Open a model store of either kind for those who read it chunk by chunk."""
    if not _is_hdf5_file(Path(store)):
        return ZarrReader(store)
    # h5py is imported by those who have HDF5 files.
    from bf16codecs.store.hdf5_reader import H5Reader

    return H5Reader(store)


def verify_store(
    store: str | os.PathLike[str],
    src: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Decode a whole store, check every checksum and digest, and compare with `src` if given.

    Raises
    ------
    StoreError, bf16codecs.errors.CodecError
        If the store is damaged, or is not a copy of `src`.
    """
    start = time.perf_counter()
    source = None if src is None else open_source(src)
    with closing(open_store(store)) as reader, codec_threads(threads):
        headers = read_headers(reader)
        index = read_index(reader)
        if source is not None:
            compare_names(reader, headers, index, source)

        def consume(file: int, piece: Piece, data: NDArray[np.uint8]) -> None:
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


def _is_zarr_folder(path: Path) -> bool:
    markers = ("zarr.json", ".zgroup", ".zarray")
    return path.is_dir() and any((path / name).is_file() for name in markers)


def _is_hdf5_file(path: Path) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"
