"""Checks that an array can be that of a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from bf16codecs._arrays.array import ArrayReader
from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs._arrays.views import widened_array
from bf16codecs._base.dtypes import ARRAY_DTYPES, DTYPE_BITS
from bf16codecs._base.limits import is_addressable
from bf16codecs._base.messages import advised
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.safetensors import TensorInfo
from bf16codecs.store.attributes import stated_shape
from bf16codecs.store.plan import array_form

__all__ = [
    "Fault",
    "Storage",
    "StoredTensor",
    "check_array",
    "check_attributes",
    "check_form",
    "check_owner",
    "faults",
    "restored_array",
]

_ARRAY_DTYPES = {"uint8", *ARRAY_DTYPES.values()}


def faults(names: Iterable[str], check: Callable[[str], object]) -> Iterator[Fault]:
    """Yield the names for which a check fails, and why."""
    for name in names:
        try:
            check(name)
        except BF16CodecsError as e:
            yield name, e


def check_array(array: ArrayReader) -> None:
    """Refuse what no tensor, header or index is stored as."""
    if array.dtype.name not in _ARRAY_DTYPES:
        raise StoreError(f"{array.dtype!r:.80} is not the data type of a tensor")
    if not is_addressable(array.shape, 8 * array.dtype.itemsize):
        raise StoreError(f"shape {array.shape!r:.80} is larger than any array")


def restored_array(array: ArrayReader, attributes: Mapping[str, Any]) -> ArrayReader:
    """Return an array of a lossy store as what its tensor is: float32, if it became float16."""
    if "lossy" not in attributes:
        return array
    if array.dtype != np.float16:
        raise StoreError(f"{array.label}: its attributes say lossy, but it is {array.dtype}")
    return widened_array(array)


def check_owner(name: str, attributes: Mapping[str, Any], is_rounded: bool) -> None:
    """Refuse an array that is, by its own attributes, not that of a tensor.

    Parameters
    ----------
    name
        The tensor.
    attributes
        Of the array.
    is_rounded
        Whether the tensor is its rounding.
    """
    if "tensor" not in attributes:
        return
    others = attributes.get("roundings" if is_rounded else "copies", [])
    is_own = attributes["tensor"] == name and not is_rounded
    if not is_own and not (isinstance(others, list) and name in others):
        raise StoreError(advised(f"the array is that of {attributes['tensor']!r:.80}"))


def check_attributes(
    name: str, array: ArrayReader, attributes: Mapping[str, Any], is_stepped: bool
) -> None:
    """Compare an array with what its own attributes say of its tensor."""
    dtype = attributes.get("dtype")
    if dtype is None:
        return
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise StoreError(advised(f"its attributes have {dtype!r:.80} as dtype"))
    shape = stated_shape(attributes.get("shape", list(array.shape)))
    nbytes = math.prod(shape) * DTYPE_BITS[dtype] // 8
    check_form("the array", array, TensorInfo(name, dtype, shape, 0, nbytes), is_stepped)


def check_form(
    path: str, array: ArrayReader | ArrayPlan, tensor: TensorInfo, is_stepped: bool
) -> None:
    """Refuse an array that is not what a tensor is stored as: in a run, `is_stepped`."""
    dtype = np.dtype(array.dtype).name
    if (dtype, array.shape) != array_form(tensor, is_stepped):
        what = f"tensor {tensor.name!r} is {tensor.dtype} of shape {tensor.shape!r:.80}"
        raise StoreError(advised(f"{path} is {dtype} of shape {array.shape!r:.80}, {what}"))


#: The name of a tensor, or the path of an array or a group, and what is wrong with it.
Fault = tuple[str, BF16CodecsError]


class StoredTensor(NamedTuple):
    """A tensor's array, and the dtype that safetensors knows it by, if the array tells."""

    array: ArrayReader
    dtype: str | None


class Storage(NamedTuple):
    """How a tensor is stored: names of codec and level."""

    codec: str
    level: str
