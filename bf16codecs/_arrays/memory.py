"""Arrays whose items are in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.array import RangeReader
from bf16codecs._arrays.indexing import Axis, as_index
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.cached import cached_property
from bf16codecs._base.device_memory import DeviceMemory, Memory

__all__ = ["DeviceArray", "MemoryArray"]


class DeviceArray(RangeReader):
    """Reads bytes on a device, which are an array in C order.

    `host` copies the array to the host, where what reads it does not decode on the device.
    """

    concurrency = 1

    def __init__(self, values: DeviceMemory, host: Callable[[], NDArray[Any]]) -> None:
        self._values, self._host = values, host

    @cached_property
    def _on_host(self) -> MemoryArray:
        return MemoryArray(self._host())

    def read_range(self, start: int, stop: int, out: Memory) -> None:
        """Read a range of its bytes."""
        if isinstance(out, DeviceMemory):
            out[:] = self._values[start:stop]
        else:
            self._on_host.read_range(start, stop, out)

    def read_box(self, axes: Sequence[Axis], out: NDArray[Any]) -> None:
        """Read a box of its items on the host."""
        self._on_host.read_box(axes, out)


class MemoryArray(RangeReader):
    """Reads an array of NumPy that is contiguous in C order."""

    concurrency = 1

    def __init__(self, values: NDArray[Any]) -> None:
        self._values, self._bytes = values, values.reshape(-1).view(np.uint8)

    def read_range(self, start: int, stop: int, out: Memory) -> None:
        """Read a range of its bytes, which may be there already."""
        values = self._bytes[start:stop]
        if not isinstance(out, np.ndarray) or out.ctypes.data != values.ctypes.data:
            out[:] = values

    def view_range(self, start: int, stop: int) -> Bytes:
        """Return a range of its bytes."""
        return self._bytes[start:stop]

    def read_box(self, axes: Sequence[Axis], out: NDArray[Any]) -> None:
        """Read a box of its items."""
        if all(isinstance(axis, range) for axis in axes):
            out[...] = self._values[tuple(map(as_index, axes))]
        else:
            out[...] = self._values[np.ix_(*axes)]
