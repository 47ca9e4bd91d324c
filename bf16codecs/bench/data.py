"""Data to measure: tensors of a model, or synthetic ones."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._base.dtypes import DTYPE_NAMES
from bf16codecs._base.paths import given_path
from bf16codecs.model import LazyTensor, open_model

__all__ = [
    "GAUSSIAN",
    "Bytes",
    "NothingToMeasureError",
    "Payload",
    "Sample",
    "payload_of",
    "picked",
    "sample_of",
]

Bytes = NDArray[np.uint8]
Source = str | os.PathLike[str]

#: Source name for synthetic data: four matrices of normal numbers, sigma 0.011 to 0.048.
GAUSSIAN = "gaussian"


class NothingToMeasureError(ValueError):
    """The model has no tensors of the data types that are asked for."""


@dataclass(frozen=True)
class Sample:
    """Tensors of one dtype of a model, or a part of them.

    Attributes
    ----------
    dtype : str
        A codec's name of it.
    tensors : list of uint8 ndarray
        Their bytes.
    count, nbytes : int
        How many the model has of that dtype, and their bytes.
    left_out : dict
        How many tensors the model has of other dtypes, by safetensors' names.
    """

    dtype: str
    tensors: list[Bytes]
    count: int
    nbytes: int
    left_out: dict[str, int]

    @property
    def item_size(self) -> int:
        """Bytes of a number."""
        return _core.ITEM_SIZES[self.dtype]


def sample_of(source: Source, nbytes: int) -> Sample:
    """Return the tensors of the floating-point dtype that has most of a model's bytes.

    One dtype alone, so that all rows of a table are comparable.

    Parameters
    ----------
    source : path, address or ``"gaussian"``
        What `bf16codecs.open_model` opens, or synthetic data.
    nbytes : int
        Of a larger model, tensors picked at random, though always the same, until they take this
        much; the last one is cut.

    Raises
    ------
    NothingToMeasureError
        If the model has no such tensor.
    BF16CodecsError
        If it is no model, or damaged.
    """
    with _opened(source) as tensors:
        sizes = Counter[str]()
        for tensor in tensors:
            if DTYPE_NAMES.get(tensor.dtype) in _core.DTYPES:
                sizes[tensor.dtype] += tensor.nbytes
        dtype = max(sizes, key=sizes.__getitem__, default="")
        if not sizes[dtype]:
            there = ", ".join(dict.fromkeys(t.dtype for t in tensors if t.nbytes)) or "no tensors"
            raise NothingToMeasureError(
                f"{source}: no floating-point tensors to measure: it has {there}"
            )
        own = [tensor for tensor in tensors if tensor.dtype == dtype and tensor.nbytes]
        taken = picked([t.nbytes for t in own], nbytes, _core.ITEM_SIZES[DTYPE_NAMES[dtype]])
        contents = [own[i].read(size) for i, size in taken]
    others = Counter(tensor.dtype for tensor in tensors if tensor.dtype != dtype)
    return Sample(DTYPE_NAMES[dtype], contents, len(own), sizes[dtype], dict(others))


def picked(sizes: Sequence[int], nbytes: int, item_size: int) -> list[tuple[int, int]]:
    """Pick tensors of these sizes until they take some bytes; return which, and bytes of each."""
    if sum(sizes) <= nbytes:
        return list(enumerate(sizes))
    left, found = max(item_size, nbytes // item_size * item_size), []
    for i in np.random.default_rng(0).permutation(len(sizes)).tolist():
        found.append((i, min(sizes[i], left)))
        left -= found[-1][1]
        if not left:
            break
    return sorted(found)


@dataclass(frozen=True)
class Payload:
    """The tensors of one dtype as one piece, and those of another checkpoint in their places.

    `dtype` is a codec's name of it.
    """

    data: Bytes
    dtype: str
    base: Bytes | None = None

    @property
    def item_size(self) -> int:
        """Bytes of a number."""
        return _core.ITEM_SIZES[self.dtype]


def payload_of(
    source: Source, dtypes: Sequence[str], nbytes: int, base: Source | None = None
) -> Payload:
    """Return a model's tensors of one dtype, one after the other.

    Parameters
    ----------
    source : path, address or ``"gaussian"``
        As `sample_of` takes it.
    dtypes : sequence of str
        As safetensors names them: the first that the model has is taken.
    nbytes : int
        What goes beyond these bytes is left out.
    base : path or address, optional
        A model that has the same tensors.

    Raises
    ------
    NothingToMeasureError
        If the model has no such tensors.
    ValueError
        If `base` lacks one, or has it in another size.
    BF16CodecsError
        If one is no model, or damaged.
    """
    with _opened(source) as tensors:
        there = {tensor.dtype for tensor in tensors if tensor.nbytes}
        dtype = next((dtype for dtype in dtypes if dtype in there), None)
        if dtype is None:
            wanted = " or ".join(dtypes)
            raise NothingToMeasureError(f"{source}: no {wanted} tensors to measure")
        own = [tensor for tensor in tensors if tensor.dtype == dtype and tensor.nbytes]
        item_size = _core.ITEM_SIZES[DTYPE_NAMES[dtype]]
        left, contents = max(1, nbytes // item_size) * item_size, []
        for tensor in own:
            contents.append(tensor.read(min(tensor.nbytes, left)))
            left -= contents[-1].nbytes
            if not left:
                break
    data = np.concatenate(contents)
    if base is None:
        return Payload(data, DTYPE_NAMES[dtype])
    return Payload(data, DTYPE_NAMES[dtype], _counterparts(base, own[: len(contents)])[: data.size])


def _counterparts(base: Source, tensors: Sequence[_Tensor]) -> Bytes:
    """Return the tensors of these names and sizes that another model has, as one piece."""
    contents = []
    with _opened(base) as others:
        named = {other.name: other for other in others}
        for tensor in tensors:
            other = named.get(tensor.name)
            if other is None or (other.dtype, other.nbytes) != (tensor.dtype, tensor.nbytes):
                raise ValueError(
                    f"{base}: no {tensor.dtype} tensor {tensor.name!r:.80} of {tensor.nbytes} bytes"
                )
            contents.append(other.read(other.nbytes))
    return np.concatenate(contents)


@dataclass(frozen=True)
class _Tensor:
    """A tensor of a model; `dtype` as safetensors names it, `read` returns its first bytes."""

    name: str
    dtype: str
    nbytes: int
    read: Callable[[int], Bytes]


@contextmanager
def _opened(source: Source) -> Iterator[list[_Tensor]]:
    """Yield the tensors of a model."""
    if source == GAUSSIAN:
        yield [
            _Tensor(name, "BF16", data.nbytes, partial(_first, data)) for name, data in _gaussian()
        ]
        return
    with open_model(given_path(source, "source")) as model:
        yield [
            _Tensor(name, tensor.get_dtype(), tensor.nbytes, partial(_read, tensor))
            for name, tensor in model.items()
        ]


def _first(data: Bytes, nbytes: int) -> Bytes:
    return data[:nbytes]


def _read(tensor: LazyTensor, nbytes: int) -> Bytes:
    content = np.empty(nbytes, np.uint8)
    tensor.ranges().read_range(0, nbytes, content)
    return content


def _gaussian() -> list[tuple[str, Bytes]]:
    rng = np.random.default_rng(0)
    matrices = []
    for sigma in (0.011, 0.02, 0.033, 0.048):
        values = rng.standard_normal(1 << 24, np.float32) * np.float32(sigma)
        bits = values.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        matrices.append((f"sigma {sigma}", rounded.astype("<u2").view(np.uint8)))
    return matrices
