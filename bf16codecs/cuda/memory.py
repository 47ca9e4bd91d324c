"""Memory of GPUs, and page-locked memory of the host for copies from and to GPUs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Memory", "PinnedMemory"]


class Memory:
    """Memory of a GPU, until `close` or deletion; all work on it must be done by then.

    `address` is a multiple of 256, or 0 for no memory; `free` frees the memory at an address.
    """

    def __init__(self, address: int, nbytes: int, free: Callable[[int], None]) -> None:
        self.address = address
        self.nbytes = nbytes
        self._free = weakref.finalize(self, free, address) if address else None

    def close(self) -> None:
        """Free the memory, once."""
        if self._free is not None:
            self._free()
        self.address = self.nbytes = 0


class _Pages:
    """Memory for NumPy arrays, freed with the last of them."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


class PinnedMemory:
    """Page-locked memory of the host, until its last array is deleted.

    Copies are asynchronous: until one is done, do not change its bytes, or read its result.
    `address` is the same on the host and for all GPUs, or 0 for no memory; `free` frees it.
    """

    def __init__(self, address: int, nbytes: int, free: Callable[[int], None]) -> None:
        self.address = address
        self.nbytes = nbytes
        self.array: NDArray[np.uint8] = np.empty(0, np.uint8)
        if address:
            pages = _Pages(address, nbytes)
            weakref.finalize(pages, free, address)
            self.array = np.asarray(pages)
