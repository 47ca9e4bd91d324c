"""What a reader of stores tells of a tensor."""

from __future__ import annotations

from typing import NamedTuple

from bf16codecs._arrays.array import ArrayReader
from bf16codecs.errors import BF16CodecsError

__all__ = ["Fault", "Storage", "StoredTensor"]

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
