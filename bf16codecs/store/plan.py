"""Plans of a model's arrays: paths, data types, shapes and chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bf16codecs._arrays.grid import ArrayPlan, chunk_shape
from bf16codecs._base.dtypes import ARRAY_DTYPES, DTYPE_BITS
from bf16codecs._base.limits import is_addressable
from bf16codecs.safetensors import Header, TensorInfo
from bf16codecs.store.attributes import Difference
from bf16codecs.store.layout import ATTRIBUTES_KEY
from bf16codecs.store.paths import RESERVED_ROOT, array_paths

__all__ = [
    "INDEX_PATH",
    "array_spec",
    "difference_spec",
    "header_path",
    "plan_arrays",
    "plan_bytes",
    "tensor_attributes",
    "with_others",
]


def array_spec(tensor: TensorInfo, is_stepped: bool = False) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and shape of a tensor's array, without the axis of steps it may have."""
    dtype, bits, shape = ARRAY_DTYPES.get(tensor.dtype), DTYPE_BITS[tensor.dtype], tensor.shape
    if is_addressable((1, *shape) if is_stepped else shape, bits):
        if dtype is not None:
            return dtype, shape
        if bits == 8:
            return "uint8", shape
        if shape and shape[-1] * bits % 8 == 0:
            return "uint8", (*shape[:-1], shape[-1] * bits // 8)
    return "uint8", (tensor.nbytes,)


def tensor_attributes(tensor: TensorInfo, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the attributes of a tensor's array; its shape is given without an axis of steps."""
    attributes: dict[str, Any] = {"tensor": tensor.name, "dtype": tensor.dtype}
    if shape != tensor.shape:
        attributes["shape"] = list(tensor.shape)
    return {ATTRIBUTES_KEY: attributes}


def with_others(array: ArrayPlan, copies: tuple[str, ...], roundings: tuple[str, ...]) -> ArrayPlan:
    """Return an array that names the other tensors it stands for."""
    others = {"copies": list(copies), "roundings": list(roundings)}
    named = {key: names for key, names in others.items() if names}
    attributes = {**array.attributes[ATTRIBUTES_KEY], **named}
    return replace(array, attributes={ATTRIBUTES_KEY: attributes})


def difference_spec(difference: Difference) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and shape of the array that a difference is decoded to."""
    nbytes = math.prod(difference.shape) * DTYPE_BITS[difference.dtype] // 8
    return array_spec(TensorInfo(difference.tensor, difference.dtype, difference.shape, 0, nbytes))


#: The path of a sharded model's index.
INDEX_PATH = f"{RESERVED_ROOT}/index"


def header_path(number: int) -> str:
    """Return the path of the header of a model's file."""
    return f"{RESERVED_ROOT}/header/{number}"


def plan_bytes(path: str, nbytes: int, chunk_size: int) -> ArrayPlan:
    """Plan an array of bytes: a header, or the index."""
    return ArrayPlan(path, "uint8", (nbytes,), chunk_shape((nbytes,), 1, chunk_size))


def plan_arrays(
    headers: Sequence[Header], chunk_size: int
) -> tuple[dict[str, str], list[ArrayPlan]]:
    """Plan the arrays of a model: the map from tensor names to paths, and the arrays in order."""
    paths = array_paths(name for header in headers for name in header.entries)
    arrays = []
    for number, header in enumerate(headers):
        for tensor in header.tensors:
            dtype, shape = array_spec(tensor)
            arrays.append(
                ArrayPlan(
                    paths[tensor.name],
                    dtype,
                    shape,
                    chunk_shape(shape, np.dtype(dtype).itemsize, chunk_size),
                    tensor_attributes(tensor, shape),
                    number,
                    header.data_start + tensor.start,
                )
            )
    return paths, arrays
