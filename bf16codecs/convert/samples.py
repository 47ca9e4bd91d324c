"""Samples of a model, coded alone or as differences to another one, to estimate what that saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs._base.buffers import Bytes
from bf16codecs.codecs import encode_delta
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.plan import plan_arrays
from bf16codecs.store.reader import ModelReader

__all__ = ["Sample", "coded_nbytes", "take_samples"]

# Size and largest number of the parts of a sample: coding 2 MiB takes some milliseconds.
_PART_BYTES = 1 << 16
_PARTS = 32


class Sample(NamedTuple):
    """A part of a tensor: bytes [start, stop) of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    data: Bytes


def take_samples(source: ModelReader) -> list[Sample]:
    """Read at most 2 MiB of a model's tensors, in parts that are spread evenly."""
    _, arrays = plan_arrays(source.headers, _PART_BYTES)
    names = [tensor.name for header in source.headers for tensor in header.tensors]
    return [
        _read(source, name, array, start)
        for name, array, start in _spread(names, arrays)
        if array.nbytes
    ]


def _spread(
    names: Sequence[str], arrays: Sequence[ArrayPlan]
) -> Iterator[tuple[str, ArrayPlan, int]]:
    """Yield offsets in arrays, in bytes, that are spread evenly over all of them."""
    total = sum(array.nbytes for array in arrays)
    stride = max(1, total // _PARTS)
    before, next_at = 0, stride // 2
    for name, array in zip(names, arrays, strict=True):
        while next_at < before + array.nbytes:
            start = min(next_at - before, max(0, array.nbytes - _PART_BYTES))
            yield name, array, start - start % array.item_size
            next_at += max(stride, array.nbytes if array.nbytes <= _PART_BYTES else stride)
        before += array.nbytes


def _read(source: ModelReader, name: str, array: ArrayPlan, start: int) -> Sample:
    data = np.empty(min(_PART_BYTES, array.nbytes - start), np.uint8)
    source.read_range(array.file, array.offset + start, data)
    return Sample(name, array.dtype, array.shape, start, start + data.size, data)


def coded_nbytes(
    samples: Sequence[Sample], choice: CodecChoice, model: ModelReader | None = None
) -> int | None:
    """Return the bytes of samples coded alone, or as differences to the same parts of a model.

    Tensors that `model` lacks are coded alone; the result is None if it has none of them.
    """
    size, common = 0, 0
    for sample in samples:
        codec = choice.for_difference(sample.dtype)
        array = None
        if model is not None and sample.shape:
            array = model.counterpart(sample.name, sample.dtype, sample.shape)
        if array is None:
            size += len(codec.encode(sample.data))
            continue
        base = np.empty_like(sample.data)
        array.read_range(sample.start, sample.stop, base)
        size += len(encode_delta(codec, sample.data, base))
        common += 1
    return size if common or model is None else None
