"""Readers of models, which have one interface for all kinds, and checks of their arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bf16codecs import _core
from bf16codecs._arrays.array import ArrayReader, ChunkedArray, Job, RangeReader, UnitArray
from bf16codecs._arrays.bases import KeptPiece, PiecewiseArray
from bf16codecs._arrays.grid import ArrayPlan, Piece
from bf16codecs._arrays.views import rounded_array, widened_array
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.cached import cached_property
from bf16codecs._base.dtypes import ARRAY_DTYPES, DTYPE_BITS
from bf16codecs._base.limits import check_metadata, check_parsed, is_addressable
from bf16codecs._base.messages import advised, named_errors
from bf16codecs._files.digests import Digests
from bf16codecs.errors import StoreError
from bf16codecs.safetensors import SAFETENSORS, Header, TensorInfo, parse_header
from bf16codecs.store.arrays import StoredArrays
from bf16codecs.store.attributes import ROUNDED, StoredFile, stated_shape
from bf16codecs.store.kinds import path_of
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.outline import parse_outline
from bf16codecs.store.plan import array_spec, difference_spec

if TYPE_CHECKING:
    import zarr

__all__ = [
    "Against",
    "CodecLabel",
    "ModelReader",
    "StoredTensor",
    "check_attributes",
    "stored_arrays",
]

_ARRAY_DTYPES = {"uint8", *ARRAY_DTYPES.values()}


def _check_array(array: ArrayReader) -> None:
    """Refuse an array of a data type or size that no tensor, header or index can have."""
    if array.dtype.name not in _ARRAY_DTYPES:
        raise StoreError(f"{array.dtype!r:.80} is not the data type of a tensor")
    if not is_addressable(array.shape, 8 * array.dtype.itemsize):
        raise StoreError(f"shape {array.shape!r:.80} is larger than any array")


def _restored_array(array: UnitArray, attributes: Mapping[str, Any]) -> UnitArray:
    """Return an array of a lossy store as its tensor: as float32 if it is lossy."""
    if "lossy" not in attributes:
        return array
    if array.dtype != np.float16:
        raise StoreError(f"{array.label}: its attributes say lossy, but it is {array.dtype}")
    return widened_array(array)


def _check_owner(name: str, attributes: Mapping[str, Any], is_rounded: bool) -> None:
    """Refuse an array whose attributes do not name the tensor: as first, copy or rounding."""
    if "tensor" not in attributes:
        return
    others = attributes.get("roundings" if is_rounded else "copies", [])
    is_first = attributes["tensor"] == name and not is_rounded
    if not is_first and not (isinstance(others, list) and name in others):
        raise StoreError(advised(f"the array is that of {attributes['tensor']!r:.80}"))


def check_attributes(
    name: str, array: ArrayReader, attributes: Mapping[str, Any], is_stepped: bool
) -> None:
    """Compare an array with its tensor's dtype and shape in its own attributes."""
    dtype = attributes.get("dtype")
    if dtype is None:
        return
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise StoreError(advised(f"its attributes have {dtype!r:.80} as dtype"))
    shape = stated_shape(attributes.get("shape", list(array.shape)))
    nbytes = math.prod(shape) * DTYPE_BITS[dtype] // 8
    _check_spec("the array", array, TensorInfo(name, dtype, shape, 0, nbytes), is_stepped)


def _check_spec(
    path: str, array: ArrayReader | ArrayPlan, tensor: TensorInfo, is_stepped: bool
) -> None:
    """Refuse an array without the dtype and shape of a tensor, of all steps if `is_stepped`."""
    dtype = np.dtype(array.dtype).name
    if (dtype, array.shape) != array_spec(tensor, is_stepped):
        what = f"tensor {tensor.name!r} is {tensor.dtype} of shape {tensor.shape!r:.80}"
        raise StoreError(advised(f"{path} is {dtype} of shape {array.shape!r:.80}, {what}"))


class StoredTensor(NamedTuple):
    """A tensor's array, and its dtype in safetensors, if the array has it."""

    array: ArrayReader
    dtype: str | None


class Against(NamedTuple):
    """The array of a tensor, and what compares values at hand with those that it needs.

    `base_jobs` yields jobs that raise BaseMismatchError; it is None where no values are used.
    `logging` returns the array for decoding it to the values themselves: a log has what they were.
    It is None where that is not possible: decoding would need values that are overwritten already.
    """

    array: ArrayReader
    base_jobs: Callable[[], Iterator[Job]] | None = None
    logging: Callable[[_core.UndoLog], ArrayReader] | None = None


class CodecLabel(NamedTuple):
    """Names of the codec and the level of a stored tensor, as `info` lists them."""

    codec: str
    level: str


class ModelReader:
    """An open model of any kind; several threads may read.

    It is read from the arrays of a store. `where`, its path or address, for messages, and `info`,
    its contents, are by default those of the store.
    """

    #: Whether its arrays are steps of arrays with one more axis.
    is_stepped = False
    #: Opens the base that `info` of a reader names.
    open_base: Callable[[ModelReader], ModelReader]
    #: Whether the base is closed with this store.
    closes_base = True
    #: Other contents of the folder that was named: indexes, files, and folders with a slash behind.
    left_out: tuple[str, ...] = ()
    #: Options of the file system of its address, which other processes need to open it.
    storage_options: Mapping[str, Any] | None = None
    #: Whether other processes can open it.
    is_shareable = True
    #: Opens the same in another process, where a path or an address does not.
    reopen: Callable[[], ModelReader] | None = None

    def __init__(
        self, stored: StoredArrays, where: str | None = None, info: StoreInfo | None = None
    ) -> None:
        self.stored, self.limits = stored, stored.limits
        self.where = stored.where if where is None else where
        self.info = stored.info if info is None else info
        #: Path or address, and the number of a step if it is one of a run.
        self.location: tuple[str, int | None] = self.where, None
        self._bases: dict[str, RangeReader] = {}
        self._kept = KeptPiece()
        self._arrays: dict[str, UnitArray] = {}
        self._tensors: dict[str, StoredTensor] = {}
        self._checked: set[str] = set()
        self._largest_allowed = 0

    @property
    def names(self) -> list[str]:
        """The tensors, in the order of their data."""
        return list(self.info.paths)

    def array(self, path: str) -> UnitArray:
        """Return an array of the store, or one that is derived from others.

        Raises StoreError if it is missing, or its metadata are invalid.
        """
        # Without a lock, since opening may wait for a server or for HDF5's lock; opening an array
        # twice does no harm. Keep the dict, since another thread may close the store.
        arrays = self._arrays
        if path not in arrays:
            array = self._open_any(path)
            with named_errors(self.label(path)):
                _check_array(array)
            nbytes = array.decoded_nbytes // array.versions
            self.check_size(nbytes, f"a chunk of {self.info.labels.get(path, path)}")
            arrays.setdefault(path, array)
        return arrays[path]

    def _open_any(self, path: str) -> UnitArray:
        if path.endswith(ROUNDED):
            array = self.array(path.removesuffix(ROUNDED))
            if array.dtype != np.float32:
                label = self.label(path)
                raise StoreError(f"{label}: it is the rounding of {array.dtype}, not of float32")
            return rounded_array(array)
        difference = self.info.differences.get(path)
        if difference is None:
            array = self._open(path)
            if self.info.loss is None:
                return array
            return _restored_array(array, self.stored.attributes(path))
        array = self.stored.open_difference(path, difference, partial(self.base_array, path))
        if self._opened_base is not None:
            array.base_label = self._opened_base.where
            # Some bases are read only by the calling thread, others by several threads.
            below = self.base_array(path).concurrency
            array.concurrency = max(array.concurrency, below) if below else 0
        return array

    @cached_property
    def base(self) -> ModelReader | None:
        """The model that this store has differences to, opened on first use.

        Raises StoreError or OSError if it cannot be opened, BaseMismatchError if it is another
        model.
        """
        return None if self.info.base is None else self.open_base(self)

    @property
    def _opened_base(self) -> ModelReader | None:
        return self.__dict__.get("base")

    def base_array(self, path: str) -> RangeReader:
        """Return the base's tensor that a difference refers to."""
        bases = self._bases
        if path not in bases:
            assert self.base is not None
            difference = self.info.differences[path]
            array = self.base.counterpart(difference.tensor, *difference_spec(difference))
            if array is None:
                raise StoreError(
                    f"{self.label(path)}: its base, {self.base.where}, has no such tensor of the"
                    " same dtype and shape"
                )
            bases[path] = array
        return bases[path]

    def tensor(self, name: str) -> StoredTensor:
        """Return the array of a tensor.

        Raises StoreError if it is missing, or its attributes contradict it.
        """
        tensors = self._tensors
        if name not in tensors:
            path = self.info.paths[name]
            array, attributes = self.array(path), self._attributes_of(path)
            with named_errors(self.label(path)):
                # In a run, an array may belong to different tensors at different steps.
                if self.location[1] is None:
                    _check_owner(name, attributes, path.endswith(ROUNDED))
                check_attributes(name, array, attributes, self.is_stepped)
            dtype = attributes.get("dtype")
            if dtype is None and self.stored.needs_header(path):
                dtype = self._header_tensors[name].dtype
            tensors[name] = StoredTensor(array, dtype)
        if not (self.stored.names_dimensions or self.is_stepped):
            self.check_header(name)
        return tensors[name]

    def first_array(self, name: str) -> UnitArray:
        """Return the array that has a tensor's first values."""
        return self.array(self.info.paths[name])

    def against(self, name: str, have: ModelReader, values: RangeReader) -> Against:
        """Return a tensor's array, decoded against the values that it has in another model.

        They count where `have` is this model's base, or the base of that, and so on. Otherwise the
        array is the tensor's own.
        """
        own, path = self.tensor(name).array, self.info.paths[name]
        difference = self.info.differences.get(path)
        if difference is None or difference.tensor != name or self.base is None:
            return Against(own)
        ranges, base_jobs = values, None
        if self.base is not have:
            below, base_jobs, _ = self.base.against(name, have, values)
            if base_jobs is None:
                return Against(own)
            ranges = self.base.ranges(below)
        if not self.base.has_form(name, *difference_spec(difference)):
            return Against(own)
        array = self.stored.open_difference(path, difference, lambda: ranges)
        if base_jobs is not None or not isinstance(array, ChunkedArray):
            return Against(array, base_jobs)
        return Against(array, array.base_jobs, array.logging if array.can_log else None)

    def has_form(self, name: str, dtype: str, shape: tuple[int, ...]) -> bool:
        """Tell whether this model has a tensor whose array has a data type and a shape."""
        if name not in self.info.paths:
            return False
        array = self.tensor(name).array
        return (array.dtype.name, array.shape) == (dtype, shape)

    def counterpart(self, name: str, dtype: str, shape: tuple[int, ...]) -> RangeReader | None:
        """Return this model's tensor that a difference refers to, converted if needed.

        The name, dtype and shape are those of the tensor that is stored as a difference. FP32 is
        rounded to BF16, and BF16 widened to FP32; otherwise the result is None if the model's
        tensor has another dtype or shape, or does not exist.
        """
        if name not in self.info.paths:
            return None
        array = self.tensor(name).array
        kinds = array.dtype.name, dtype
        if isinstance(array, UnitArray) and kinds == ("float32", "bfloat16"):
            array = rounded_array(array)
        elif isinstance(array, UnitArray) and kinds == ("bfloat16", "float32"):
            array = widened_array(array)
        if (array.dtype.name, array.shape) != (dtype, shape):
            return None
        return self.ranges(array)

    def ranges(self, array: ArrayReader) -> RangeReader:
        """Return a reader of ranges of an array's bytes, which is fastest in order."""
        if isinstance(array, UnitArray) and not array.reads_ranges:
            return PiecewiseArray(array, self._kept)
        return array

    def _attributes_of(self, path: str) -> Mapping[str, Any]:
        """Return the attributes of the tensor at a path, even if it has no array."""
        if path.endswith(ROUNDED):
            return {**self._attributes_of(path.removesuffix(ROUNDED)), "dtype": "BF16"}
        difference = self.info.differences.get(path)
        return self.stored.attributes(path) if difference is None else difference.attributes

    def check_header(self, name: str) -> None:
        """Raise StoreError if a tensor that was opened contradicts the safetensors header."""
        path, stored = self.info.paths[name], self._tensors[name]
        if name in self._checked or not self.stored.needs_header(path):
            return
        tensor = self._header_tensors[name]
        with named_errors(self.label(path)):
            if stored.dtype != tensor.dtype:
                why = f"its attributes say {stored.dtype}, its header {tensor.dtype}"
                raise StoreError(advised(why))
            _check_spec(path, stored.array, tensor, self.is_stepped)
        self._checked.add(name)

    @cached_property
    def headers(self) -> list[Header]:
        """The headers of the store's files, read and checked.

        Raises SafetensorsError if a header breaks the format's rules, or contradicts the size of
        its file; StoreError if one is missing, or has other tensors than the store lists.
        """
        headers = [self._header(file) for file in self.info.files]
        names = {name for header in headers for name in header.entries}
        for name in sorted(names ^ self.info.paths.keys()):
            what = "no array for" if name in names else "no safetensors header has"
            raise StoreError(advised(f"{self.where}: {what} tensor {name!r:.300}"))
        return headers

    def _header(self, file: StoredFile) -> Header:
        raw, where = self.text(file.path), f"{self.where}: {file.name}"
        if file.kind != SAFETENSORS:
            return parse_outline(raw, file.kind, file.size, where)
        return parse_header(raw, file.size - 8 - len(raw), where)

    @cached_property
    def _header_tensors(self) -> dict[str, TensorInfo]:
        return {name: tensor for header in self.headers for name, tensor in header.entries.items()}

    def digests(self, kinds: Sequence[str]) -> list[Digests]:
        """Return the digests of each restored file; files of safetensors compute these kinds."""
        return [file.restored for file in self.info.files]

    def state(self) -> Mapping[str, Any]:
        """Return a token for each file on a disk, by path, which differs after a change.

        Files with digests or checksums need no token, since reading checks them.
        """
        return {}

    def opened_state(self) -> Mapping[str, Any]:
        """Return the state from before anything was read, as far as it was noted."""
        return self.state()

    @property
    def paths(self) -> list[Path]:
        """The model's files, or its store, on a local disk."""
        path = path_of(self.location[0])
        return [Path(path)] if path else []

    def file_path(self, file: int) -> str:
        """Return a description of one of the files, for messages."""
        return f"{self.where}: {self.info.files[file].name}"

    def read_range(self, file: int, offset: int, out: Bytes) -> None:
        """Read bytes of tensors from an offset in one of the model's files on."""
        header = self.headers[file]
        while out.size:
            number, start = header.find(offset)
            tensor = header.tensors[number]
            count = min(out.size, tensor.nbytes - start)
            ranges = self.ranges(self.array(self.info.paths[tensor.name]))
            ranges.read_range(start, start + count, out[:count])
            offset, out = offset + count, out[count:]

    def read_ranges(self, file: int, parts: Sequence[tuple[int, Bytes]]) -> None:
        """Read several parts of a file, each from an offset on, as `read_range` does one."""
        for offset, out in parts:
            self.read_range(file, offset, out)

    def check_size(self, nbytes: int, what: str, work: int = 0) -> None:
        """Refuse data that exceed the caller's limit, or by default a multiple of the store's size.

        `work` is the size of the chunks to decode for the data. The caller's limit does not apply
        to it, since a small column may be in every chunk.
        """
        if self.limits.max_bytes is None and work > nbytes:
            nbytes, what = work, f"the chunks of {what}"
        if nbytes > self._largest_allowed:  # cached, since finding the size may take a request
            self.limits.check(nbytes, self._size_with_base, f"{self.where}: {what}")
            self._largest_allowed = nbytes

    def _size_with_base(self, enough: int) -> int:
        """Return the size of the store and of its open bases.

        Bases count, since unchanged weights take only a 30,000th of their size.
        """
        size = self.stored.size_of_at_least(enough)
        if self._opened_base is not None and size < enough:
            size += self._opened_base._size_with_base(enough - size)
        return size

    def label(self, path: str) -> str:
        """Return a description of an array, with its store, for messages."""
        return f"{self.where}: {self.info.labels.get(path, path[:300])}"

    def plan(self, path: str) -> ArrayPlan:
        """Return the pieces of an array, each a range of its bytes."""
        return self.array(path).plan(path)

    def read(self, piece: Piece, chunk: Bytes) -> None:
        """Read a piece of `plan`; `chunk` has room for a whole chunk with padding."""
        self.array(piece.array.path).read_piece(piece, chunk)

    def _open(self, path: str) -> UnitArray:
        """Open an array that is neither a rounding nor a difference."""
        return self.stored.open(path, self.check_size)

    def zarr_array(self, name: str) -> zarr.Array:
        """Open a tensor's array with zarr; raise ValueError if it has none."""
        path = self.info.paths[name]
        if path.endswith(ROUNDED) or path in self.info.differences:
            what = "rounded from" if path.endswith(ROUNDED) else "stored as a difference to"
            raise ValueError(f"{self.label(path)}: has no Zarr array: it is {what} another tensor")
        return self.stored.open_zarr(path, self.check_size)

    @property
    def knows_sizes(self) -> bool:
        """Whether stored sizes are known without a request to a server for each chunk."""
        return self.stored.knows_sizes

    def stored_nbytes(self, path: str) -> int:
        """Return the bytes that the model takes in an array of the store."""
        return self.stored.stored_nbytes(path)

    def total_nbytes(self) -> int:
        """Return the bytes that the model takes in the store."""
        return self.stored.total_nbytes()

    def codec_label(self, path: str) -> CodecLabel:
        """Return the codec and the level of an array, or how it follows from others."""
        if path.endswith(ROUNDED):
            return CodecLabel("rounded", "")
        if self.info.base is not None and path in self.info.differences:
            name, level = self.info.base.codec_and_level
            return CodecLabel(f"difference+{name}", self.info.differences[path].level or level)
        return CodecLabel(self.stored.codec_name(path), self.stored.codec_level(path))

    def text(self, path: str) -> bytes:
        """Read an array of bytes: a header, or the index.

        Raises StoreError if the array is missing, or does not have bytes.
        """
        plan, label, stored = self.plan(path), self.label(path), partial(self.stored_nbytes, path)
        if plan.dtype != "uint8" or len(plan.shape) != 1:
            raise StoreError(f"{label}: is not an array of bytes")
        with named_errors(label):
            check_metadata(max(plan.nbytes, plan.chunk_nbytes), stored)
        content = bytearray()
        for piece in plan.pieces():
            chunk = np.empty(plan.chunk_nbytes, np.uint8)
            self.read(piece, chunk)
            content += chunk[: piece.nbytes].data
        with named_errors(label):
            check_parsed(content, stored)
        return bytes(content)

    def growing_steps(self, path: str) -> int:
        """Return for how many steps an array has growing frames; 0 if it has others."""
        steps = self.stored.growing_steps(path)
        if steps is not None:
            return steps
        # HDF5 has only the number of steps in a chunk; chunks of runs are growing frames.
        grows = self.stored.codec_name(path) in ("arithmetic", "huffman")
        return self.array(path).versions if grows else 0

    def close(self) -> None:
        """Close files and connections."""
        self._forget()
        self.stored.close()

    def _forget(self) -> None:
        """Drop arrays, which refer to this reader: a cycle would keep memory until a collection."""
        if self._opened_base is not None and self.closes_base:
            self._opened_base.close()
        self._arrays, self._tensors, self._bases = {}, {}, {}


def stored_arrays(reader: ModelReader, headers: Sequence[Header]) -> list[ArrayPlan]:
    """Return the arrays of all tensors, in the order of their bytes in the files.

    Raises StoreError if an array is missing, or has another dtype or shape than its tensor.
    """
    arrays = []
    for number, header in enumerate(headers):
        for tensor in header.tensors:
            path = reader.info.paths.get(tensor.name)
            if path is None:
                raise StoreError(f"{reader.where}: no array for tensor {tensor.name!r}")
            plan = reader.plan(path)
            with named_errors(reader.where):
                _check_spec(path, plan, tensor, reader.is_stepped)
            arrays.append(replace(plan, file=number, offset=header.data_start + tensor.start))
    return arrays
