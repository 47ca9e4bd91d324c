"""What need not be stored: tensors that are copies of others, or roundings of FP32 ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from bf16codecs._base.bfloat16 import round_to_bfloat16
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.dtypes import DTYPE_BITS
from bf16codecs._base.limits import is_addressable
from bf16codecs.safetensors import TensorInfo
from bf16codecs.store.reader import ModelReader

__all__ = ["Repeated", "find_repeated"]

# Less than the metadata of an array take.
_LEAST_BYTES = 1024
# Of each tensor, this many items in the middle are compared first.
_SAMPLE_ITEMS = 2048
_PART_ITEMS = 1 << 20


class Repeated(NamedTuple):
    """What need not be stored: names of tensors, each with that of the tensor it follows from."""

    copies: dict[str, str]
    roundings: dict[str, str]


class _Data(NamedTuple):
    """A tensor's bytes, in a file."""

    source: ModelReader
    file: int
    tensor: TensorInfo

    @property
    def item_size(self) -> int:
        return max(1, DTYPE_BITS[self.tensor.dtype] // 8)

    @property
    def items(self) -> int:
        return self.tensor.nbytes // self.item_size

    def read(self, start: int, part: Bytes) -> Bytes:
        """Read items from `start` on, as many as there is room for."""
        offset = self.source.headers[self.file].data_start + self.tensor.start
        self.source.read_range(self.file, offset + start * self.item_size, part)
        return part

    def sample(self) -> Bytes:
        """Read items from the middle."""
        count = min(self.items, _SAMPLE_ITEMS)
        start = (self.items - count) // 2
        return self.read(start, np.empty(count * self.item_size, np.uint8))

    def parts(self) -> Iterator[Bytes]:
        """Read all, part by part, each to where the one before was."""
        memory = np.empty(min(self.items, _PART_ITEMS) * self.item_size, np.uint8)
        for start in range(0, self.items, _PART_ITEMS):
            yield self.read(start, memory[: (self.items - start) * self.item_size])


def find_repeated(source: ModelReader, among: Collection[str] | None = None) -> Repeated:
    """Find tensors that follow from others of the same model.

    Tensors of less than 1024 bytes are left out, and those that have, in the middle, one value
    alone: they take hardly anything, and so are arrays that every reader of the store can see.

    Parameters
    ----------
    source
        The model. A few kilobytes of each tensor are read, and all of those that agree in these.
    among
        The tensors to look at; by default all.

    Returns
    -------
    Repeated
    """
    alike: dict[tuple[str, tuple[int, ...]], list[_Data]] = defaultdict(list)
    for file, header in enumerate(source.headers):
        for tensor in header.tensors:
            is_wanted = among is None or tensor.name in among
            if is_wanted and tensor.nbytes >= _LEAST_BYTES:
                alike[tensor.dtype, tensor.shape].append(_Data(source, file, tensor))
    copies: dict[str, str] = {}
    for tensors in alike.values():
        if len(tensors) > 1:
            copies.update(_find_copies(tensors))
    roundings: dict[str, str] = {}
    for (dtype, shape), tensors in alike.items():
        # Of too many dimensions, they are stored as bytes, which have no rounding.
        if dtype == "BF16" and ("F32", shape) in alike and is_addressable(shape, 32):
            left = [data for data in tensors if data.tensor.name not in copies]
            roundings.update(_find_roundings(left, alike["F32", shape]))
    # The copy of a rounding has no array to share.
    again = {name: roundings[owner] for name, owner in copies.items() if owner in roundings}
    copies = {name: owner for name, owner in copies.items() if name not in again}
    return Repeated(copies, roundings | again)


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
    # Not `items == items[0]`: without memory for broadcasting, NumPy 2.4 crashes.
    return np.array_equal(sample[item_size:], sample[:-item_size])
