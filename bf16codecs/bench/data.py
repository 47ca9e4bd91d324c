"""Data of the benchmark: tensors of a model, or synthetic ones."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._base.dtypes import DTYPE_NAMES
from bf16codecs._base.messages import near_names
from bf16codecs._base.paths import given_path, missing_path
from bf16codecs._base.threads import run_ahead
from bf16codecs.bench.synthetic import RECIPES, as_bfloat16, matrices
from bf16codecs.model import LazyTensor, open_model
from bf16codecs.store.kinds import path_of

__all__ = [
    "GAUSSIAN",
    "Bytes",
    "NothingToMeasureError",
    "Payload",
    "Sample",
    "cut",
    "payload_of",
    "picked",
    "sample_of",
]

Bytes = NDArray[np.uint8]
Source = str | os.PathLike[str]

#: Name of the synthetic source: four matrices of normal numbers, sigma 0.011 to 0.048.
GAUSSIAN = "gaussian"


# Of a model at an address, a sample takes parts of so many tensors at least, of this size at most:
# two sections of a grid in 16 bits, and a few requests.
_LEAST_PARTS, _PART_NBYTES = 16, 1 << 24


class NothingToMeasureError(ValueError):
    """The model has no tensors of the requested data types."""


@dataclass(frozen=True)
class Sample:
    """Tensors of one data type of a model, or a part of them.

    Attributes
    ----------
    dtype : str
        Data type, as codecs name it.
    tensors : list of uint8 ndarray
        Bytes of the tensors.
    count, nbytes : int
        Number and bytes of all tensors of that type in the model.
    left_out : dict
        Numbers of the model's tensors of other data types, by safetensors' names.
    rows : list of int
        Bytes of a row of each of the tensors, 0 of one without rows; empty if none has rows.
    """

    dtype: str
    tensors: list[Bytes]
    count: int
    nbytes: int
    left_out: dict[str, int]
    rows: list[int] = field(default_factory=list)

    @property
    def arrays(self) -> list[Bytes]:
        """The tensors, of shape (rows, bytes of a row) where they are whole rows."""
        rows = self.rows or [0] * len(self.tensors)
        return [
            tensor.reshape(-1, row) if row and tensor.size % row == 0 else tensor
            for tensor, row in zip(self.tensors, rows, strict=True)
        ]

    @property
    def item_size(self) -> int:
        """Bytes of an item."""
        return _core.ITEM_SIZES[self.dtype]


def sample_of(source: Source, nbytes: int) -> Sample:
    """Return the tensors of the floating-point type that has most of a model's bytes.

    One data type alone, so that all rows of a table are comparable.

    Parameters
    ----------
    source : path, address or a name of `RECIPES`
        A source of `bf16codecs.open_model`, or synthetic data.
    nbytes : int
        Size of the sample: of a larger model, tensors are picked at random, with a fixed seed, and
        the last one is cut, behind a row if possible. At an address, no tensor is read whole for
        it: rows of many are.

    Raises
    ------
    NothingToMeasureError
        If the model has no floating-point tensor.
    BF16CodecsError
        If the source is not a model, or damaged.
    """
    with _opened(source) as tensors:
        sizes = Counter[str]()
        for tensor in tensors:
            if DTYPE_NAMES.get(tensor.dtype) in _core.DTYPES:
                sizes[tensor.dtype] += tensor.nbytes
        dtype = max(sizes, key=sizes.__getitem__, default="")
        if not sizes[dtype]:
            dtypes = ", ".join(dict.fromkeys(t.dtype for t in tensors if t.nbytes)) or "no tensors"
            raise NothingToMeasureError(
                f"{source}: no floating-point tensors to measure: it has {dtypes}"
            )
        measured = [tensor for tensor in tensors if tensor.dtype == dtype and tensor.nbytes]
        item_size = _core.ITEM_SIZES[DTYPE_NAMES[dtype]]
        units = [tensor.row_nbytes or item_size for tensor in measured]
        sizes_of_all = [tensor.nbytes for tensor in measured]
        if path_of(given_path(source, "source")) is None:
            parts = _spread(sizes_of_all, nbytes, item_size, units)
        else:
            picks = picked(sizes_of_all, nbytes, item_size, units)
            parts = [_Part(i, 0, size) for i, size in picks]
        contents = _contents(measured, parts)
        rows = [measured[part.tensor].row_nbytes for part in parts]
    others = Counter(tensor.dtype for tensor in tensors if tensor.dtype != dtype)
    return Sample(DTYPE_NAMES[dtype], contents, len(measured), sizes[dtype], dict(others), rows)


def cut(tensor: Bytes, nbytes: int) -> Bytes:
    """Return the first bytes of a tensor: whole rows, if it has some and there is room for one."""
    if tensor.ndim == 1 or nbytes < tensor.shape[1]:
        return tensor.reshape(-1)[:nbytes]
    return tensor[: nbytes // tensor.shape[1]]


def picked(
    sizes: Sequence[int], nbytes: int, item_size: int, units: Sequence[int]
) -> list[tuple[int, int]]:
    """Pick tensors until they take `nbytes`; return the index and size of each.

    The last one is cut to a multiple of its unit, or of items where there is no room for a unit.
    """
    if sum(sizes) <= nbytes:
        return list(enumerate(sizes))
    left, picks = max(item_size, nbytes // item_size * item_size), []
    for i in np.random.default_rng(0).permutation(len(sizes)).tolist():
        size = sizes[i] if sizes[i] <= left else left // units[i] * units[i] or left
        picks.append((i, size))
        left -= size
        if size < sizes[i] or not left:
            break
    return sorted(picks)


class _Part(NamedTuple):
    """Bytes of a tensor, by its index."""

    tensor: int
    start: int
    nbytes: int


def _spread(sizes: Sequence[int], nbytes: int, item_size: int, units: Sequence[int]) -> list[_Part]:
    """Pick rows of many tensors until they take `nbytes`: in each, those from a random one on.

    Large tensors are the likelier ones, so that the parts are like the model.
    """
    total, left = sum(sizes), max(item_size, nbytes // item_size * item_size)
    if total <= left:
        return [_Part(i, 0, size) for i, size in enumerate(sizes)]
    most = max(item_size, min(_PART_NBYTES, left // _LEAST_PARTS))
    while sum(min(size, most) for size in sizes) < left:
        most *= 2
    random, parts = np.random.default_rng(0), []
    chances = np.array(sizes) / total
    for i in random.choice(len(sizes), len(sizes), replace=False, p=chances).tolist():
        size = min(sizes[i], most, left)
        unit = units[i] if units[i] <= size else item_size
        size = size // unit * unit
        start = int(random.integers(0, (sizes[i] - size) // unit, endpoint=True)) * unit
        parts.append(_Part(i, start, size))
        left -= size
        if left < item_size:
            break
    return sorted(parts)


def _contents(tensors: Sequence[_Tensor], parts: Sequence[_Part]) -> list[Bytes]:
    """Read parts of tensors, several at a time where that pays off."""
    jobs = (partial(tensors[i].read, start, nbytes) for i, start, nbytes in parts)
    workers = max((tensors[part.tensor].concurrency for part in parts), default=1)
    with closing(run_ahead(jobs, workers)) as contents:
        return list(contents)


@dataclass(frozen=True)
class Payload:
    """Tensors of one data type as one piece, and those of another checkpoint in the same order.

    `dtype` is a codec's name of the type.
    """

    data: Bytes
    dtype: str
    base: Bytes | None = None

    @property
    def item_size(self) -> int:
        """Bytes of an item."""
        return _core.ITEM_SIZES[self.dtype]


def payload_of(
    source: Source, dtypes: Sequence[str], nbytes: int, base: Source | None = None
) -> Payload:
    """Return a model's tensors of one data type, one after the other.

    Parameters
    ----------
    source : path, address or a name of `RECIPES`
        As in `sample_of`.
    dtypes : sequence of str
        Data types, as safetensors names them; the first one in the model is used.
    nbytes : int
        Largest size; further bytes are left out.
    base : path or address, optional
        A model with the same tensors.

    Raises
    ------
    NothingToMeasureError
        If the model has no such tensors.
    ValueError
        If `base` lacks a tensor, or has it in another type or size.
    BF16CodecsError
        If the source or the base is not a model, or damaged.
    """
    with _opened(source) as tensors:
        available = {tensor.dtype for tensor in tensors if tensor.nbytes}
        dtype = next((dtype for dtype in dtypes if dtype in available), None)
        if dtype is None:
            wanted = " or ".join(dtypes)
            raise NothingToMeasureError(f"{source}: no {wanted} tensors to measure")
        measured = [tensor for tensor in tensors if tensor.dtype == dtype and tensor.nbytes]
        item_size = _core.ITEM_SIZES[DTYPE_NAMES[dtype]]
        left, contents = max(1, nbytes // item_size) * item_size, []
        for tensor in measured:
            contents.append(tensor.read(0, min(tensor.nbytes, left)))
            left -= contents[-1].nbytes
            if not left:
                break
    data = np.concatenate(contents)
    if base is None:
        return Payload(data, DTYPE_NAMES[dtype])
    lengths = [content.nbytes for content in contents]
    counterparts = _counterparts(base, measured[: len(contents)], lengths)
    return Payload(data, DTYPE_NAMES[dtype], counterparts)


def _counterparts(base: Source, tensors: Sequence[_Tensor], lengths: Sequence[int]) -> Bytes:
    """Return the first bytes of another model's tensors of the same names, as one piece."""
    contents = []
    with _opened(base) as others:
        named = {other.name: other for other in others}
        for tensor, length in zip(tensors, lengths, strict=True):
            other = named.get(tensor.name)
            if other is None or (other.dtype, other.nbytes) != (tensor.dtype, tensor.nbytes):
                raise ValueError(
                    f"{base}: no {tensor.dtype} tensor {tensor.name!r:.80} of {tensor.nbytes} bytes"
                )
            contents.append(other.read(0, length))
    return np.concatenate(contents)


@dataclass(frozen=True)
class _Tensor:
    """A tensor of a model: `dtype` is safetensors' name, `read` returns bytes from one on.

    `row_nbytes` is the size of a row, 0 without rows, and `concurrency` how many reads at a time
    pay off.
    """

    name: str
    dtype: str
    nbytes: int
    row_nbytes: int
    read: Callable[[int, int], Bytes]
    concurrency: int = 1


@contextmanager
def _opened(source: Source) -> Iterator[list[_Tensor]]:
    """Yield the tensors of a model."""
    path = given_path(source, "source")
    recipe = _recipe_of(path)
    if recipe is not None:
        yield [
            _Tensor(name, "BF16", data.nbytes, data.shape[1], partial(_cut_out, data.reshape(-1)))
            for name, data in _synthetic(recipe)
        ]
        return
    with open_model(path) as model:
        yield [
            _Tensor(
                name,
                tensor.get_dtype(),
                tensor.nbytes,
                _row(tensor),
                partial(_read, tensor),
                tensor.ranges().concurrency,
            )
            for name, tensor in model.items()
        ]


def _recipe_of(source: str) -> str | None:
    """Return the name of synthetic data in any case; None for paths and addresses.

    Raises FileNotFoundError for a bare name of neither a file nor data.
    """
    name = source.lower()
    if source in RECIPES or (name in RECIPES and not os.path.lexists(source)):
        return name
    is_bare = os.path.basename(source) == source and not os.path.splitext(source)[1]
    if is_bare and not os.path.lexists(source):
        near = near_names(name, RECIPES, alike=0.7)
        text = "No such file, and no such synthetic data, which bf16codecs bench --help lists"
        raise missing_path(source, f"{text}; {near}" if near else text, suggests=not near)
    return None


def _cut_out(data: Bytes, start: int, nbytes: int) -> Bytes:
    return data[start : start + nbytes]


def _row(tensor: LazyTensor) -> int:
    is_matrix = len(tensor.shape) > 1 and 0 not in tensor.shape
    return tensor.shape[-1] * tensor.dtype.itemsize if is_matrix else 0


def _read(tensor: LazyTensor, start: int, nbytes: int) -> Bytes:
    content = np.empty(nbytes, np.uint8)
    tensor.ranges().read_range(start, start + nbytes, content)
    return content


def _synthetic(recipe: str) -> list[tuple[str, Bytes]]:
    return [(name, as_bfloat16(values)) for name, values in matrices(recipe)]
