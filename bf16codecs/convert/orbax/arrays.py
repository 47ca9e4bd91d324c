"""Arrays of Orbax checkpoints, read and written chunk by chunk with tensorstore."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._base.arguments import for_caller
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.dtypes import DTYPE_NAMES
from bf16codecs._base.forks import make_lock
from bf16codecs._base.limits import DEFAULT_LIMITS, Limits, stored_limit
from bf16codecs._base.memory import give_back_freed_memory
from bf16codecs._base.messages import (
    as_memory_error,
    damaged,
    from_extra,
    named_damage,
    named_errors,
    one_line,
)
from bf16codecs._files.reading import read_at, write_all
from bf16codecs.convert.orbax.layout import MAX_DOCUMENT_BYTES, Location, too_many_documents
from bf16codecs.errors import BF16CodecsError, CorruptDataError, StoreError
from bf16codecs.zarr.inflation import chunk_check
from bf16codecs.zarr.shards import ENTRY_BYTES

with from_extra("orbax", for_caller("bf16codecs.convert.orbax", "bf16codecs orbax")):
    import tensorstore

__all__ = ["ArrayOpener", "OrbaxArray", "Scratch", "read_database", "write_database"]

# The most bytes of chunks that are being decoded, or wait to be committed; or one larger chunk.
_IN_FLIGHT_BYTES = 8 << 20
# The memory that a read takes beside its data.
_LEAST_BYTES = 16 << 10
# One thread decodes and one reads, since each retains memory of the size of a chunk. The cache is
# for the indexes of shards; each chunk is read only once.
_RESOURCES = {
    "cache_pool": {"total_bytes_limit": 8 << 20},
    "data_copy_concurrency": {"limit": 1},
    "file_io_concurrency": {"limit": 1},
}
_CODES = {item: dtype for dtype, item in DTYPE_NAMES.items()}
# Data types that Orbax stores as one item per byte, and safetensors in pairs.
_PACKED = {"float4_e2m1fn"}
# Parts of tensorstore's messages: locations in its source, and all metadata of the array.
_INTERNALS = re.compile(r" \[(source locations|tensorstore_spec)=.*", re.DOTALL)
_SYSTEM_ERROR = re.compile(r"os_error_code='(\d+)'")
# Orbax's configuration.
_DATABASE_CONFIG = {"max_inline_value_bytes": 1024, "max_decoded_node_bytes": 100_000_000}
# Orbax cuts arrays at shards: its chunks are never larger than the array.
_SMALL_CHUNK, _MOST_OF_ARRAY = 64 << 20, 2
# Each chunk costs a read, and a file or an entry in an index.
_FEW_CHUNKS, _TINY_CHUNK = 100_000, 1024
# Documents of arrays and groups, which are not chunks.
_DOCUMENTS = (b".zarray", b".zattrs", b"zarr.json")

#: A box as slices along each axis, which index arrays of tensorstore.
Slices = tuple[slice, ...]


class ArrayOpener:
    """Opens the arrays of a checkpoint; messages name it as `where`."""

    def __init__(self, root: Path, where: str, limits: Limits = DEFAULT_LIMITS) -> None:
        self._root, self._where, self._limits = root, where, limits
        self._context = tensorstore.Context(_RESOURCES)

    def open(self, name: str, location: Location) -> OrbaxArray:
        """Open an array, whose metadata exist, for reading and writing.

        Raises StoreError for a data type that safetensors lacks; CorruptDataError if the array
        cannot be opened, or its chunks are not credible.
        """
        label = f"{self._where}: tensor {name!r:.300}"
        path = f"{location.path}/" if location.path else ""
        if location.database is None:
            kvstore = _folder(self._root / location.path)
        else:
            kvstore = _database(self._root / location.database) | {"path": path}
        spec = {
            "driver": location.driver,
            "kvstore": kvstore,
            "fill_missing_data_reads": not location.has_all_chunks,
            "store_data_equal_to_fill_value": True,
        }
        with _damage(label):
            array = tensorstore.open(spec, open=True, context=self._context).result()
        return OrbaxArray(label, array, self._limits)


class OrbaxArray:
    """An array of a checkpoint: a `tensorstore.TensorStore`."""

    def __init__(self, label: str, array: Any, limits: Limits) -> None:
        self.label, self._array, self._limits = label, array, limits
        self._is_checked = False
        self.shape: tuple[int, ...] = array.shape
        item = array.dtype.name
        if item not in _CODES:
            lacks = "has in packed pairs alone" if item in _PACKED else "lacks"
            raise StoreError(
                f"{label}: {item}, a data type that safetensors {lacks}: convert it to one of"
                f" {', '.join(sorted(_CODES))} before saving"
            )
        #: The name of the dtype in safetensors.
        self.dtype = _CODES[item]
        self.item_size: int = array.dtype.numpy_dtype.itemsize
        self._chunk_nbytes = 0
        for unit in ("read_chunk", "write_chunk"):
            chunks = self._chunks(unit)
            _check_chunks(label, self.shape, chunks, self.item_size)
            self._chunk_nbytes = max(self._chunk_nbytes, math.prod(chunks) * self.item_size)

    def read(self, start: int, out: Bytes) -> None:
        """Read a few items from an offset in bytes on, decoding only the chunks that have them."""
        self._check_stored()
        first, items = start // self.item_size, out.view(self._array.dtype.numpy_dtype)
        at = 0
        for box in _boxes_of_range(self.shape, first, first + items.size):
            shape = [extent.stop - extent.start for extent in box]
            part = items[at : at + math.prod(shape)].reshape(shape)
            for chunk in self._boxes("read_chunk", box):  # one by one, to bound the memory
                with _damage(self.label):
                    part[_inside(chunk, box)] = self._array[chunk].read().result()
                _give_back_memory(self._chunk_nbytes)
            at += part.size

    def decode(self, folder: Path) -> Scratch:
        """Decode all chunks into a temporary file in a folder."""
        self._check_stored()
        scratch = Scratch(folder, self.shape, self.item_size)
        try:
            self._decode(scratch)
        except BaseException:
            scratch.close()
            raise
        return scratch

    def _decode(self, scratch: Scratch) -> None:
        reads: deque[tuple[tuple[int, ...], int, Any]] = deque()

        def finish() -> int:
            start, nbytes, future = reads.popleft()
            with _damage(self.label):
                part = future.result()
            scratch.put(start, part)
            del part, future
            _give_back_memory(nbytes)
            return nbytes

        pending = 0
        for box in self._boxes("read_chunk", self._whole):
            nbytes = max(_LEAST_BYTES, _nbytes(box, self.item_size))
            while reads and pending + nbytes > _IN_FLIGHT_BYTES:
                pending -= finish()
            reads.append((tuple(extent.start for extent in box), nbytes, self._array[box].read()))
            pending += nbytes
        while reads:
            finish()

    def encode(self, scratch: Scratch) -> None:
        """Write all chunks, with the layout and codecs in the array's metadata."""
        check_memory(self.label, self._chunk_nbytes)
        with _failures(self.label):
            batch, pending = tensorstore.Transaction(), 0
            for box in self._boxes("write_chunk", self._whole):
                part = scratch.get(box).view(self._array.dtype.numpy_dtype)
                shape = tuple(extent.stop - extent.start for extent in box)
                target = self._array.with_transaction(batch)[box]
                # No copy is needed, since nothing writes to `part` again.
                target.write(
                    part.reshape(shape), can_reference_source_data_indefinitely=True
                ).result()
                pending += part.nbytes
                if pending > _IN_FLIGHT_BYTES:
                    batch.commit_sync()
                    del part, target, batch
                    _give_back_memory(pending)
                    batch, pending = tensorstore.Transaction(), 0
            batch.commit_sync()

    def _check_stored(self) -> None:
        """Refuse chunks that need more memory than is available or than their size justifies."""
        check_memory(self.label, self._chunk_nbytes)
        if self._is_checked:
            return
        inner, outer = (math.prod(self._chunks(unit)) for unit in ("read_chunk", "write_chunk"))
        nbytes, count = inner * self.item_size, outer // inner
        with _damage(self.label):
            _check_stored_chunks(self.label, self._array, nbytes, count, self._limits)
        self._is_checked = True

    def _chunks(self, unit: str) -> tuple[int, ...]:
        return getattr(self._array.chunk_layout, unit).shape or ()  # None without axes

    @property
    def _whole(self) -> Slices:
        return tuple(slice(0, size) for size in self.shape)

    def _boxes(self, unit: str, within: Slices) -> Iterator[Slices]:
        """Yield the intersection of each chunk with a box."""
        axes = [
            [
                slice(max(i, extent.start), min(i + chunk, extent.stop))
                for i in range(extent.start - extent.start % chunk, extent.stop, chunk)
            ]
            for extent, chunk in zip(within, self._chunks(unit), strict=True)
        ]
        return itertools.product(*axes)


class Scratch:
    """The items of an array, in C order, in a private file with a count of its users."""

    def __init__(self, folder: Path, shape: tuple[int, ...], item_size: int) -> None:
        self._shape, self._item_size = shape, item_size
        self._file: Any = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115
        self._lock, self._users = make_lock(), 1

    def shared(self) -> Scratch:
        """Add a user, who must call `close` as well."""
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        """Remove a user, and after the last one the file."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._file.close()

    def write(self, offset: int, data: Bytes) -> None:
        """Write bytes from an offset on."""
        with self._lock:
            self._file.seek(offset)
            write_all(self._file, data)

    def read(self, offset: int, out: Bytes) -> None:
        """Read bytes from an offset on."""
        with self._lock:  # on some systems, a read moves the descriptor's position
            read_at(self._file.fileno(), offset, out)

    def put(self, start: Sequence[int], part: NDArray[Any]) -> None:
        """Write a box of items that begins at an index."""
        box = tuple(slice(i, i + n) for i, n in zip(start, part.shape, strict=True))
        offsets, row_nbytes = self._rows(box)
        data = np.ascontiguousarray(part).reshape(-1).view(np.uint8).reshape(-1, row_nbytes)
        for offset, row in zip(offsets, data, strict=True):
            self.write(offset, row)

    def get(self, box: Slices) -> Bytes:
        """Read a box of items, as bytes."""
        offsets, row_nbytes = self._rows(box)
        data = np.empty((len(offsets), row_nbytes), np.uint8)
        for offset, row in zip(offsets, data, strict=True):
            self.read(offset, row)
        return data.reshape(-1)

    def _rows(self, box: Slices) -> tuple[list[int], int]:
        """Return the offsets of a box's contiguous rows in the file, and a row's size in bytes."""
        inner = len(box)  # the box has all of the axes from this one on
        while inner and box[inner - 1] == slice(0, self._shape[inner - 1]):
            inner -= 1
        inner = max(0, inner - 1)
        offsets = np.zeros((), np.int64)
        for axis, extent in enumerate(box):
            indices = np.arange(extent.start, extent.stop if axis < inner else extent.start + 1)
            stride = math.prod(self._shape[axis + 1 :]) * self._item_size
            offsets = np.add.outer(offsets, indices * stride)
        return offsets.ravel().tolist(), _nbytes(box[inner:], self._item_size)


def read_database(folder: Path) -> dict[str, bytes]:
    """Return the metadata of the arrays in an OCDBT database, by key."""
    documents: dict[str, bytes] = {}
    left = MAX_DOCUMENT_BYTES
    with _damage(str(folder)):
        store = tensorstore.KvStore.open(_database(folder)).result()
        for key in store.list().result():
            if not key.endswith(_DOCUMENTS):
                continue
            if _is_longer(store, key, left):
                raise too_many_documents(folder, key.decode())
            documents[key.decode()] = store.read(key).result().value
            left -= len(documents[key.decode()])
    return documents


def write_database(folder: Path, metadata: Mapping[str, bytes]) -> None:
    """Make an OCDBT database with the metadata of arrays, by key."""
    with _failures(str(folder)), tensorstore.Transaction() as batch:
        store = tensorstore.KvStore.open(_database(folder)).result().with_transaction(batch)
        for key, value in metadata.items():
            store.write(key, value).result()


def _folder(folder: Path) -> dict[str, Any]:
    return {"driver": "file", "path": f"{folder.as_posix()}/"}


def _database(folder: Path) -> dict[str, Any]:
    return {"driver": "ocdbt", "base": _folder(folder), "config": _DATABASE_CONFIG}


def _boxes_of_range(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Slices]:
    """Yield boxes that cover a range of items, in order."""
    if not shape:
        yield ()
        return
    row = math.prod(shape[1:])
    while start < stop:
        index, inside = divmod(start, row)
        if inside or stop - start < row:  # a part of a row
            end = min(stop, (index + 1) * row)
            for box in _boxes_of_range(shape[1:], inside, end - index * row):
                yield (slice(index, index + 1), *box)
        else:
            end = stop - stop % row
            yield (slice(index, end // row), *(slice(0, size) for size in shape[1:]))
        start = end


def _inside(box: Slices, outer: Slices) -> Slices:
    """Return a box relative to the start of an outer one."""
    return tuple(
        slice(extent.start - origin.start, extent.stop - origin.start)
        for extent, origin in zip(box, outer, strict=True)
    )


def _nbytes(box: Sequence[slice], item_size: int) -> int:
    return math.prod(extent.stop - extent.start for extent in box) * item_size


def _give_back_memory(nbytes: int) -> None:
    """Return memory to the system after a large chunk, or tensorstore's threads would retain it."""
    if nbytes > _IN_FLIGHT_BYTES:
        give_back_freed_memory()


def _failure(label: str, text: str) -> OSError:
    """Return the system's error behind one of tensorstore, or one with its text."""
    number = _SYSTEM_ERROR.search(text)
    if number is None:
        return OSError(f"{label}: {text}")
    return OSError(int(number[1]), os.strerror(int(number[1])))


@contextmanager
def _translated_errors(error: Callable[[str], Exception]) -> Iterator[None]:
    """Raise `error` with a short text instead of tensorstore's errors, which fill pages."""
    try:
        yield
    except BF16CodecsError:
        raise
    except (ValueError, KeyError, NotImplementedError, RuntimeError, OSError) as e:
        if shortage := as_memory_error(e):
            raise shortage from e
        raise error(_INTERNALS.sub("", one_line(e))) from e


def _damage(label: str) -> AbstractContextManager[None]:
    """Raise CorruptDataError for tensorstore's errors on reading."""
    return _translated_errors(lambda text: CorruptDataError(f"{label}: {damaged(text)}"))


def _failures(label: str) -> AbstractContextManager[None]:
    """Raise OSError for tensorstore's errors on writing."""
    return _translated_errors(partial(_failure, label))


def _check_chunks(label: str, shape: Sequence[int], chunks: Sequence[int], item_size: int) -> None:
    """Raise CorruptDataError for chunks far larger than their array, or too many and tiny."""
    # No chunk of an empty array is read.
    nbytes = math.prod(max(1, size) for size in shape) * item_size
    if math.prod(chunks) * item_size > max(_SMALL_CHUNK, _MOST_OF_ARRAY * nbytes):
        text = f"chunks of {_shown(chunks)} items, in an array of {_shown(shape)}: not credible"
        raise CorruptDataError(f"{label}: {damaged(text)}")
    count = math.prod(-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True))
    if count > max(_FEW_CHUNKS, nbytes // _TINY_CHUNK):
        text = f"cut into {count} chunks of {math.prod(chunks) * item_size} bytes: not credible"
        raise CorruptDataError(f"{label}: {damaged(text)}")


def check_memory(label: str, chunk_nbytes: int) -> None:
    """Raise MemoryError if there is no memory for a chunk."""
    try:
        # Room for the chunk, and for the data read from it or written to it. No page is touched,
        # so this takes no time.
        np.empty(2 * chunk_nbytes, np.uint8)
    except (MemoryError, ValueError) as e:
        raise MemoryError(f"{label}: no memory for a chunk of {chunk_nbytes} bytes") from e


def _check_stored_chunks(
    label: str, array: Any, nbytes: int, shard_chunks: int, limits: Limits
) -> None:
    """Raise CorruptDataError for stored chunks that are too large, or expand too far by Blosc.

    `nbytes` is a chunk's decoded size, `shard_chunks` the chunks in a shard (1 without shards).
    Raises LimitError if Blosc's expansion cannot be known.
    """
    document = array.codec.to_json()
    document["zarr_format"] = 2 if document["driver"] == "zarr" else 3
    check = None
    if '"blosc"' in json.dumps(document):
        with named_errors(label):
            check = chunk_check(document, nbytes, shard_chunks, limits)
    most = stored_limit(nbytes * shard_chunks) + ENTRY_BYTES * shard_chunks
    for key in array.kvstore.list().result():
        if key.endswith(_DOCUMENTS):
            continue
        name = f"{label}, chunk {key.decode(errors='replace')!r:.80}"
        if _is_longer(array.kvstore, key, most):
            text = f"it takes more than {most} stored bytes: not credible"
            raise CorruptDataError(f"{name}: {damaged(text)}")
        if check is not None:
            data = np.frombuffer(array.kvstore.read(key).result().value, np.uint8)
            with named_damage(name):
                check(data, None)


def _is_longer(store: Any, key: bytes, nbytes: int) -> bool:
    """Return whether a value of a `tensorstore.KvStore` has more bytes, without reading it."""
    try:
        store.read(key, byte_range=slice(nbytes, nbytes + 1)).result()
    except ValueError as e:
        if "OUT_OF_RANGE" not in str(e):
            raise
        return False
    return True


def _shown(shape: Sequence[int]) -> str:
    return f"{' x '.join(map(str, shape)):.80}"
