"""What a reader of stores tells of a tensor."""

from __future__ import annotations

from typing import NamedTuple

from bf16codecs._chunks.array import ArrayReader

__all__ = ["Storage", "StoredTensor"]


class StoredTensor(NamedTuple):
    """A tensor's array, and the dtype that safetensors knows it by, if the array tells."""

    array: ArrayReader
    dtype: str | None


class Storage(NamedTuple):
    """How a tensor is stored: names of codec and level."""

    codec: str
    level: str
