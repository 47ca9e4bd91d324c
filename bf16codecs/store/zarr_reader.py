"""Reads the model store from Zarr: a folder, a ZIP file, or anything zarr opens by its address.

Chunks as this package writes them are read and decoded straight into the caller's buffer. An
array in any other form (rechunked, sharded, recompressed by somebody) is read through zarr.
"""

from __future__ import annotations

import itertools
import os
import threading
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
from numcodecs import Zstd
from numcodecs.abc import Codec
from numpy.typing import NDArray
from zarr.core.buffer import default_buffer_prototype
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata
from zarr.core.sync import sync
from zarr.storage import LocalStore, ZipStore

from bf16codecs._chunks.grid import ArrayPlan, Piece, chunk_shape
from bf16codecs._chunks.zstd import decode_zstd
from bf16codecs.codecs import BF16Split, FrameCodec
from bf16codecs.errors import CodecError, CorruptDataError, StoreError
from bf16codecs.store.layout import StoreInfo
from bf16codecs.zarr.codecs import BF16BlocksCodec

__all__ = ["ZarrReader"]

# A slab that is read through zarr has at most this many bytes, or one row.
_SLAB_BYTES = 1 << 24
# Any frame decodes any frame: which codec wrote it does not matter.
_FRAME = BF16Split()


class _Chunks(NamedTuple):
    """How to read an array's chunks: with a codec, as they are, or (`direct` false) by zarr."""

    array: zarr.Array
    direct: bool
    codec: Codec | None


class ZarrReader:
    """Reads a model store.

    Parameters
    ----------
    store
        A folder, a ZIP file, or an address that zarr understands.
    """

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self.where = os.fspath(store)
        # One per thread: stored chunks are read into it.
        self._local = threading.local()
        self._arrays: dict[str, _Chunks] = {}
        self._group = _open_group(self.where)
        try:
            self.info = StoreInfo.from_attributes(self._group.attrs.asdict(), self.where)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release what is open."""
        self._group.store.close()

    def plan(self, path: str) -> ArrayPlan:
        """Describe an array, in contiguous chunks."""
        array = self._open(path).array
        dtype = array.dtype.name
        shape, chunks = tuple(array.shape), tuple(array.chunks)
        plan = ArrayPlan(path, dtype, shape, chunks)
        if plan.is_contiguous and self._arrays[path].direct:
            return plan
        self._arrays[path] = self._arrays[path]._replace(direct=False)
        slab = chunk_shape(shape, array.dtype.itemsize, _SLAB_BYTES)
        return ArrayPlan(path, dtype, shape, slab)

    def _open(self, path: str) -> _Chunks:
        if path not in self._arrays:
            try:
                array = self._group[path]
            except KeyError:
                raise StoreError(f"{self.where}: array {path!r} is missing") from None
            except Exception as e:
                raise StoreError(f"{self.where}: array {path!r}: {_one_line(e)}") from e
            if not isinstance(array, zarr.Array):
                raise StoreError(f"{self.where}: {path!r} is a group, not an array")
            self._arrays[path] = _Chunks(array, *_direct_codec(array.metadata))
        return self._arrays[path]

    def stored_nbytes(self, path: str) -> int:
        """Return the size that an array takes in the store, metadata included."""
        array = self._open(path).array
        if isinstance(self._group.store, LocalStore):
            return _folder_nbytes(self._group.store.root / array.path)
        # By key, not by prefix: not every store can list its keys, and "a/1" begins "a/10".
        cut = array.shards or array.chunks
        counts = (-(-size // length) for size, length in zip(array.shape, cut, strict=True))
        keys = [array.metadata.encode_chunk_key(i) for i in itertools.product(*map(range, counts))]
        keys += ["zarr.json", ".zarray", ".zattrs"]
        return sum(self._key_nbytes(f"{array.path}/{key}") for key in keys)

    def total_nbytes(self) -> int:
        """Return the size of the whole store."""
        path = Path(self.where)
        if path.is_file():
            return path.stat().st_size
        if path.is_dir():
            return _folder_nbytes(path)
        paths = [*self.info.paths.values(), *(file.path for file in self.info.files)]
        return sum(map(self.stored_nbytes, paths))

    def _key_nbytes(self, key: str) -> int:
        try:
            return sync(self._group.store.getsize(key))
        except FileNotFoundError:
            return 0

    def codec_name(self, path: str) -> str:
        """Name the codec of an array, for people."""
        metadata = self._open(path).array.metadata
        if isinstance(metadata, ArrayV2Metadata):
            name = metadata.compressor.codec_id if metadata.compressor else "none"
            return name.removeprefix("bf16codecs.")
        codecs: list[dict[str, Any]] = [dict(c.to_dict()) for c in metadata.codecs]
        if codecs[0]["name"] == BF16BlocksCodec.codec_id:
            codecs[0] = codecs[0]["configuration"]["codec"]
        names = [c["name"].removeprefix("bf16codecs.") for c in codecs if c["name"] != "bytes"]
        return "+".join(names) or "none"

    def read(self, piece: Piece, chunk: NDArray[np.uint8]) -> None:
        """Decode a whole chunk of a plan that `plan` returned."""
        chunks = self._arrays[piece.array.path]
        if not chunks.direct:
            self._read_by_zarr(chunks.array, piece, chunk)
            return
        # The array's own path: unlike the one in the attributes it cannot lead out of the store.
        key = f"{chunks.array.path}/{chunks.array.metadata.encode_chunk_key(piece.index)}"
        where = f"{self.where}: {key}"
        stored = self._stored(key, chunk.size)
        if chunks.codec is None:
            if stored.size != chunk.size:
                raise CorruptDataError(f"{where}: {stored.size} bytes, not {chunk.size}")
            chunk[:] = stored
            return
        try:
            if isinstance(chunks.codec, FrameCodec):
                chunks.codec.decode(stored, out=chunk)
            else:
                decode_zstd(stored, chunk)
        except CodecError as e:
            raise type(e)(f"{where}: {e}") from e
        except (ValueError, RuntimeError) as e:
            # A frame of another size than the chunk; whatever numcodecs raises.
            raise CorruptDataError(f"{where}: {_one_line(e)}") from e

    def _stored(self, key: str, limit: int) -> NDArray[np.uint8]:
        """Return a stored chunk; valid until this thread reads the next one."""
        store = self._group.store
        if not isinstance(store, LocalStore):
            data = sync(store.get(key, default_buffer_prototype()))
            if data is None:
                raise StoreError(f"{self.where}: chunk {key} is missing")
            return np.asarray(data.as_numpy_array()).view(np.uint8)
        with self._open_chunk(store.root / key, key) as file:
            size = os.fstat(file.fileno()).st_size
            # No codec grows a chunk by more than some bytes in a thousand.
            if size > 2 * limit + 4096:
                raise CorruptDataError(f"{self.where}: {key}: {size} bytes for a chunk of {limit}")
            buffer = getattr(self._local, "buffer", None)
            if buffer is None or buffer.size < size:
                buffer = self._local.buffer = np.empty(max(size, limit), np.uint8)
            return buffer[: _read_fully(file, buffer[:size])]

    def _open_chunk(self, path: Path, key: str) -> FileIO:
        try:
            return open(path, "rb", buffering=0)
        except FileNotFoundError:
            raise StoreError(f"{self.where}: chunk {key} is missing") from None

    def _read_by_zarr(self, array: zarr.Array, piece: Piece, chunk: NDArray[np.uint8]) -> None:
        selection = tuple(
            slice(i * n, min((i + 1) * n, size))
            for i, n, size in zip(piece.index, piece.array.chunks, array.shape, strict=True)
        )
        try:
            values = np.asarray(array[selection])
        except Exception as e:
            raise StoreError(f"{self.where}: {piece.array.path}: {_one_line(e)}") from e
        little = values.dtype.newbyteorder("<") if values.dtype.itemsize > 1 else values.dtype
        content = np.ascontiguousarray(values.astype(little, copy=False)).reshape(-1)
        chunk[: piece.nbytes] = content.view(np.uint8)


def _open_group(where: str) -> zarr.Group:
    """Open a group for reading, with one-line errors."""
    path = Path(where)
    if "://" not in where:
        if not path.exists():
            raise FileNotFoundError(2, "No such file or directory", where)
        if path.is_file() and not _is_zip(path):
            raise StoreError(f"{where}: not a Zarr store: neither a folder nor a ZIP file")
    store = ZipStore(path, mode="r") if path.is_file() else where
    try:
        return zarr.open_group(store, mode="r")
    except Exception as e:
        if isinstance(store, ZipStore):
            store.close()
        raise StoreError(f"{where}: not a readable Zarr group: {_one_line(e)}") from e


def _is_zip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"PK"


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _folder_nbytes(path: Path) -> int:
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def _read_fully(file: Any, out: NDArray[np.uint8]) -> int:
    done = 0
    while done < out.size:
        count = file.readinto(out[done:])
        if not count:
            break
        done += count
    return done


def _direct_codec(metadata: ArrayV2Metadata | ArrayV3Metadata) -> tuple[bool, Codec | None]:
    """Tell whether chunks are one coded run of little-endian bytes in C order, and the codec."""
    if isinstance(metadata, ArrayV2Metadata):
        codec = metadata.compressor
        known = codec is None or isinstance(codec, (FrameCodec, Zstd))
        little = metadata.dtype.to_native_dtype().byteorder != ">"
        return known and little and metadata.order == "C" and not metadata.filters, codec
    codecs: list[dict[str, Any]] = [dict(c.to_dict()) for c in metadata.codecs]
    names = [c["name"] for c in codecs]
    if names == [BF16BlocksCodec.codec_id]:
        return True, _FRAME
    if names[0] != "bytes" or codecs[0].get("configuration", {}).get("endian") == "big":
        return False, None
    if len(names) == 2 and names[1].startswith("bf16codecs."):
        return True, _FRAME
    return names in (["bytes"], ["bytes", "zstd"]), Zstd() if len(names) > 1 else None
