"""Memory of GPUs, and of the host where GPUs can copy from and to without the processor."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Memory", "PinnedMemory", "aligned"]


def aligned(n: int, alignment: int) -> int:
    """Return the next multiple."""
    return -(-n // alignment) * alignment


class Memory:
    """Memory of a GPU, until `close`, or until nobody has this object any more.

    What uses it has to be done by then: that the driver waits is not promised.

    Parameters
    ----------
    address
        On the GPU; a multiple of 256. 0 if there is none.
    nbytes
        How much.
    free
        Gives an address back.
    """

    def __init__(self, address: int, nbytes: int, free: Callable[[int], None]) -> None:
        self.address = address
        self.nbytes = nbytes
        self._free = weakref.finalize(self, free, address) if address else None

    def close(self) -> None:
        """Give the memory back, if that has not been done."""
        if self._free is not None:
            self._free()
        self.address = self.nbytes = 0


class _Pages:
    """Memory as NumPy takes it, given back with the last array on it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


class PinnedMemory:
    """Memory of the host that stays where it is, until no array shows it any more.

    Copies from and to it go on beside the processor: before they are done, what it holds is not to
    be changed, nor taken for what was copied there.

    Parameters
    ----------
    address
        On the host, and for all GPUs. 0 if there is none.
    nbytes
        How much.
    free
        Gives an address back.
    """

    def __init__(self, address: int, nbytes: int, free: Callable[[int], None]) -> None:
        self.address = address
        self.nbytes = nbytes
        self.array: NDArray[np.uint8] = np.empty(0, np.uint8)
        if address:
            pages = _Pages(address, nbytes)
            weakref.finalize(pages, free, address)
            self.array = np.asarray(pages)
