"""Writes the model store in HDF5."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bf16codecs import _core
from bf16codecs._arrays.grid import ArrayPlan, Piece
from bf16codecs._base.buffers import Bytes, ThreadBuffer, layout_for
from bf16codecs.codecs import FrameCodec
from bf16codecs.hdf5.dataset import Compression, create_dataset, write_region
from bf16codecs.hdf5.direct import DirectWriter
from bf16codecs.hdf5.filters import Zstd
from bf16codecs.store.choice import CodecChoice, encode_difference
from bf16codecs.store.layout import ATTRIBUTES_KEY, StoreInfo
from bf16codecs.store.paths import RESERVED_ROOT

__all__ = ["HDF5_FORMAT", "Hdf5Writer", "hdf5_errors"]

#: The first format in which the index of a single chunk takes no space, and the newest that HDF5
#: 1.10 reads.
HDF5_FORMAT = "v110"


@contextmanager
def hdf5_errors(path: Path) -> Iterator[None]:
    """Turn libhdf5's errors into one-line OSErrors that name the file."""
    try:
        yield
    except (OSError, RuntimeError, KeyError) as e:  # the last, where memory lacks
        number = re.search(r"errno = (\d+)", str(e))
        if number:
            code = int(number[1])
            raise OSError(code, os.strerror(code), str(path)) from e
        if isinstance(e, OSError) and e.filename is not None:
            raise
        text = " ".join(str(e).split())
        raise OSError(errno.EIO, f"HDF5 cannot write: {text}", str(path)) from e


class Hdf5Writer:
    """Writes a model store into a new HDF5 file."""

    concurrency = 1
    difference_folder = ""

    def __init__(self, path: Path, choice: CodecChoice) -> None:
        self._path = path
        self._choice = choice
        self._targets: dict[str, DirectWriter | Any] = {}
        self._written = 0
        self._memory = ThreadBuffer()  # for frames
        with hdf5_errors(self._path):
            # A cache of decoded chunks for each dataset would be of no use.
            self._file = h5py.File(path, "x", libver=(HDF5_FORMAT, HDF5_FORMAT), rdcc_nbytes=0)

    def create(self, array: ArrayPlan) -> None:
        """Prepare an array."""
        dtype = np.dtype(array.dtype)
        chunks = array.chunks if array.shape and 0 not in array.shape else None
        compression = self._compression(array)
        with hdf5_errors(self._path):
            dataset = create_dataset(
                self._file.id, array.path, dtype, array.shape, chunks, compression
            )
            # The root describes a difference completely.
            if ATTRIBUTES_KEY in array.attributes and not array.has_base:
                attributes = json.dumps(array.attributes[ATTRIBUTES_KEY])
                h5py.Dataset(dataset).attrs[ATTRIBUTES_KEY] = attributes
            if chunks is not None and compression != "gzip":
                dataset = DirectWriter(dataset, compression)
        self._targets[array.path] = dataset

    def _compression(self, array: ArrayPlan) -> Compression:
        if array.has_base:
            return self._choice.for_difference(array.dtype)
        if array.path.startswith(f"{RESERVED_ROOT}/"):
            return "gzip"  # text, for readers without the plugin
        if self._choice.name == "none":
            return None
        if self._choice.name == "zstd":
            return Zstd(int(self._choice.level or 3))
        if self._choice.name == "split" and array.dtype not in _core.DTYPES:
            return None
        # Bytes of integers compress well as planes of floats of the same size.
        codec = self._choice.for_dtype(layout_for(np.dtype(array.dtype)))
        assert isinstance(codec, FrameCodec)
        return codec

    def share(self, path: str, owner: str) -> None:
        """Let a path lead to the array at another: a hard link."""
        with hdf5_errors(self._path):
            self._file[path] = self._file[owner]

    def write(self, piece: Piece, chunk: Bytes, base: Bytes | None = None) -> int:
        """Encode and write a whole chunk, or its difference to `base`; return its stored size."""
        target = self._targets[piece.array.path]
        with hdf5_errors(self._path):
            if isinstance(target, DirectWriter):
                if base is None:
                    data = target.encode(chunk, self._memory)
                else:
                    data = encode_difference(self._choice, piece.array, chunk, base, self._memory)
                target.put(piece.index, data)
                size = len(data)
            else:
                region = tuple(slice(axis.start, axis.stop) for axis in piece.region)
                values = chunk[: piece.nbytes].view(piece.array.dtype)
                write_region(target, region, values.reshape([len(axis) for axis in piece.region]))
                size = piece.nbytes
        self._written += size
        return size

    def finish(self, info: StoreInfo) -> int:
        """Write all metadata, close the store, and return the metadata's size."""
        with hdf5_errors(self._path):
            attributes = info.to_attributes()[ATTRIBUTES_KEY]
            self._file.attrs[ATTRIBUTES_KEY] = json.dumps(attributes)
            self.close()
        return os.stat(self._path).st_size - self._written

    def close(self) -> None:
        """Close files and connections."""
        self._targets.clear()
        with hdf5_errors(self._path):
            self._file.close()
