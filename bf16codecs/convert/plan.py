"""Plan a store: which tensors become arrays or differences, and which follow from others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from bf16codecs._arrays.array import RangeReader
from bf16codecs._arrays.grid import ArrayPlan, Piece
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.dtypes import DTYPE_BITS
from bf16codecs._base.half import round_to_bfloat16
from bf16codecs._base.limits import is_addressable
from bf16codecs._base.threads import run_ahead
from bf16codecs.errors import StoreError
from bf16codecs.safetensors import TensorInfo
from bf16codecs.store.attributes import ROUNDED, Difference
from bf16codecs.store.plan import array_spec, plan_arrays, with_others
from bf16codecs.store.reader import ModelReader

__all__ = [
    "ModelPlan",
    "NoCommonTensorError",
    "Repeated",
    "find_repeated",
    "is_convertible",
    "plan_model",
]


class NoCommonTensorError(StoreError):
    """A model and its base have no tensor of the same name, dtype and shape."""


@dataclass(frozen=True)
class ModelPlan:
    """The arrays of a new store, and the differences among them.

    `paths` has the path of each tensor's array, as in `StoreInfo`, and `arrays` one for each tensor
    in the order of the data; not all are written. `differences` are by path, and so are `bases`,
    the base's arrays.
    """

    paths: Mapping[str, str]
    arrays: list[ArrayPlan]
    differences: Mapping[str, Difference]
    bases: Mapping[str, RangeReader]

    def with_differences_below(self, folder: str) -> ModelPlan:
        """Return the plan with the paths of differences led into a folder of each; "" for none."""
        if not folder or not self.differences:
            return self
        moved = {path: f"{path}/{folder}" for path in self.differences}

        def path_of(path: str) -> str:
            array = path.removesuffix(ROUNDED)
            return moved.get(array, array) + path[len(array) :]

        return ModelPlan(
            {name: path_of(path) for name, path in self.paths.items()},
            [replace(array, path=path_of(array.path)) for array in self.arrays],
            {moved[path]: difference for path, difference in self.differences.items()},
            {moved[path]: base for path, base in self.bases.items()},
        )


def read_base(base: RangeReader, piece: Piece, out: Bytes) -> Bytes:
    """Read what a chunk is coded against, pad it like the chunk, and return it."""
    start = piece.offset - piece.array.offset
    base.read_range(start, start + piece.nbytes, out[: piece.nbytes])
    pad(piece, out)
    return out


def pad(piece: Piece, chunk: Bytes) -> None:
    """Fill the end of a chunk, behind the array's items."""
    chunk[piece.nbytes :].view(piece.array.dtype)[:] = piece.array.fill_value


def is_convertible(tensor: TensorInfo) -> bool:
    """Return whether a lossy store holds a tensor in half precision."""
    return tensor.dtype == "F32" and array_spec(tensor)[0] == "float32"


def plan_model(
    source: ModelReader,
    chunk_size: int,
    base: ModelReader | None,
    is_lossy: bool = False,
    levels: Mapping[str, str] = MappingProxyType({}),
) -> ModelPlan:
    """Plan a store, with tensors as differences to those of `base` that are alike.

    `chunk_size` is the largest size of a chunk, in bytes. With `is_lossy`, FP32 tensors are stored
    in half precision, to which `source` has rounded them. `levels` override the store's, by tensor.
    Raises NoCommonTensorError if the base has none of the tensors.
    """
    paths, arrays = plan_arrays(source.headers, chunk_size)
    tensors = [tensor for header in source.headers for tensor in header.tensors]
    repeated = find_repeated(source)
    by_name = {tensor.name: array for tensor, array in zip(tensors, arrays, strict=True)}
    copies, roundings = _by_owner(repeated.copies), _by_owner(repeated.roundings)
    differences: dict[str, Difference] = {}
    bases: dict[str, RangeReader] = {}
    planned = []
    for tensor, array in zip(tensors, arrays, strict=True):
        name = tensor.name
        others = copies[name], roundings[name]
        is_half = is_lossy and is_convertible(tensor)
        array = replace(array, is_lossy=is_half, level=levels.get(name))
        if name in repeated.copies:
            paths[name] = by_name[repeated.copies[name]].path
            array = replace(array, path=paths[name], is_written=False)
        elif name in repeated.roundings:
            wide = by_name[repeated.roundings[name]]
            paths[name] = wide.path + ROUNDED
            # Readers will read it in the chunks of the FP32 tensor.
            array = replace(array, path=paths[name], chunks=wide.chunks, is_written=False)
        elif base is not None and (found := _counterpart(base, tensor, array)) is not None:
            bases[array.path] = found
            layout = tensor.dtype, tensor.shape, array.chunks
            differences[array.path] = Difference(name, *layout, *others, array.level)
            array = replace(array, has_base=True)
        else:
            array = with_others(array, *others)
        planned.append(array)
    for header in source.headers:
        paths |= {alias: paths[name] for alias, name in header.aliases.items()}
    if base is not None and not differences:
        raise NoCommonTensorError(
            f"{source.file_path(0)}: has no tensor in common with its base, {base.where}:"
            " none of the same name, dtype and shape"
        )
    return ModelPlan(paths, planned, differences, bases)


def _by_owner(followers: Mapping[str, str]) -> defaultdict[str, tuple[str, ...]]:
    """Return the tensors that follow from each tensor."""
    found: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for name, owner in followers.items():
        found[owner] += (name,)
    return found


def _counterpart(base: ModelReader, tensor: TensorInfo, array: ArrayPlan) -> RangeReader | None:
    # HDF5 stores scalars without chunks; empty arrays have nothing to differ in.
    if not array.shape or not array.nbytes:
        return None
    return base.counterpart(tensor.name, np.dtype(array.dtype).name, array.shape)


# The metadata of an array take more than that.
_LEAST_BYTES = 1024
# This many items in the middle of each tensor are compared first.
_SAMPLE_ITEMS = 2048
_PART_ITEMS = 1 << 20
# BF16 may be rounded FP32.
_OTHER_WIDTH = {"BF16": "F32", "F32": "BF16"}


class Repeated(NamedTuple):
    """Tensors that need not be stored, each with the tensor that it follows from."""

    copies: dict[str, str]
    roundings: dict[str, str]


@dataclass
class _Data:
    """A tensor's bytes in a file."""

    source: ModelReader
    file: int
    tensor: TensorInfo
    known_sample: Bytes | None = None

    @property
    def item_size(self) -> int:
        return max(1, DTYPE_BITS[self.tensor.dtype] // 8)

    @property
    def items(self) -> int:
        return self.tensor.nbytes // self.item_size

    def read(self, start: int, part: Bytes) -> Bytes:
        """Fill `part` with the items from `start` on."""
        self.source.read_range(self.file, self.offset(start), part)
        return part

    def sample(self) -> Bytes:
        """Read items from the middle, once."""
        if self.known_sample is None:
            _read_samples_of(self.source, self.file, [self])
        assert self.known_sample is not None
        return self.known_sample

    def offset(self, item: int) -> int:
        """Return the offset of an item in the file."""
        start = self.source.headers[self.file].data_start + self.tensor.start
        return start + item * self.item_size

    def parts(self) -> Iterator[Bytes]:
        """Yield all items part by part; each overwrites the one before."""
        memory = np.empty(min(self.items, _PART_ITEMS) * self.item_size, np.uint8)
        for start in range(0, self.items, _PART_ITEMS):
            yield self.read(start, memory[: (self.items - start) * self.item_size])


def find_repeated(source: ModelReader, among: Collection[str] | None = None) -> Repeated:
    """Find the tensors of a model that are copies or roundings of others.

    Compares the tensors in `among`, or all, but for those below 1024 bytes, and those with a single
    value in their middle: they take little space, and arrays of their own show them to every
    reader. Reads a few kilobytes of each, and all of those that agree there.
    """
    alike: dict[tuple[str, tuple[int, ...]], list[_Data]] = defaultdict(list)
    for file, header in enumerate(source.headers):
        for tensor in header.tensors:
            is_wanted = among is None or tensor.name in among
            if is_wanted and tensor.nbytes >= _LEAST_BYTES:
                alike[tensor.dtype, tensor.shape].append(_Data(source, file, tensor))
    _read_samples(source, alike)
    copies: dict[str, str] = {}
    for tensors in alike.values():
        if len(tensors) > 1:
            copies.update(_find_copies(tensors))
    roundings: dict[str, str] = {}
    for (dtype, shape), tensors in alike.items():
        # Tensors with too many dimensions are stored as bytes, which cannot be rounded.
        if dtype == "BF16" and ("F32", shape) in alike and is_addressable(shape, 32):
            left = [data for data in tensors if data.tensor.name not in copies]
            roundings.update(_find_roundings(left, alike["F32", shape]))
    # The copy of a rounding has no array to share.
    again = {name: roundings[owner] for name, owner in copies.items() if owner in roundings}
    copies = {name: owner for name, owner in copies.items() if name not in again}
    return _with_aliases(Repeated(copies, roundings | again), source, among)


def _with_aliases(
    repeated: Repeated, source: ModelReader, among: Collection[str] | None
) -> Repeated:
    """Add the further names of tensors, which follow from what those tensors follow from."""
    copies, roundings = repeated
    for header in source.headers:
        for alias, name in header.aliases.items():
            if among is not None and alias not in among:
                continue
            if name in roundings:
                roundings[alias] = roundings[name]
            else:
                copies[alias] = copies.get(name, name)
    return Repeated(copies, roundings)


def _read_samples(
    source: ModelReader, alike: Mapping[tuple[str, tuple[int, ...]], list[_Data]]
) -> None:
    """Read the samples that are compared, those of a file together."""
    wanted: dict[int, list[_Data]] = defaultdict(list)
    for (dtype, shape), tensors in alike.items():
        if len(tensors) > 1 or (_OTHER_WIDTH.get(dtype), shape) in alike:
            for data in tensors:
                wanted[data.file].append(data)
    jobs = (partial(_read_samples_of, source, file, found) for file, found in wanted.items())
    with closing(run_ahead(jobs, source.stored.concurrency)) as files:
        for _ in files:
            pass


def _read_samples_of(source: ModelReader, file: int, tensors: Sequence[_Data]) -> None:
    parts = []
    for data in tensors:
        count = min(data.items, _SAMPLE_ITEMS)
        memory = np.empty(count * data.item_size, np.uint8)
        parts.append((data.offset((data.items - count) // 2), memory))
    source.read_ranges(file, parts)
    for data, (_, memory) in zip(tensors, parts, strict=True):
        data.known_sample = memory


def _find_copies(tensors: list[_Data]) -> Iterator[tuple[str, str]]:
    first: dict[bytes, list[_Data]] = defaultdict(list)
    for data in tensors:
        sample = data.sample()
        if _is_constant(sample, data.item_size):
            continue
        candidates = first[sample.tobytes()]
        for other in candidates:
            if all(map(np.array_equal, data.parts(), other.parts())):
                yield data.tensor.name, other.tensor.name
                break
        else:
            candidates.append(data)


def _find_roundings(tensors: list[_Data], wide: list[_Data]) -> Iterator[tuple[str, str]]:
    masters: dict[bytes, list[_Data]] = defaultdict(list)
    for data in wide:
        masters[_rounded(data.sample()).tobytes()].append(data)
    for data in tensors:
        sample = data.sample()
        if _is_constant(sample, data.item_size):
            continue
        for other in masters[sample.tobytes()]:
            if all(map(np.array_equal, data.parts(), map(_rounded, other.parts()))):
                yield data.tensor.name, other.tensor.name
                break


def _rounded(part: Bytes) -> Bytes:
    return round_to_bfloat16(part.view(np.float32)).view(np.uint8)


def _is_constant(sample: Bytes, item_size: int) -> bool:
    # Not `items == items[0]`: NumPy 2.4 crashes if it has no memory left for broadcasting.
    return np.array_equal(sample[item_size:], sample[:-item_size])
