"""Tensors on a GPU, as sources and targets of all contenders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from bf16codecs._base.buffers import aligned
from bf16codecs.bench.data import Bytes, Sample
from bf16codecs.cuda.device import Device
from bf16codecs.cuda.memory import Memory

__all__ = ["LEAST_SECONDS", "TensorCopy", "Work", "default_nbytes"]

#: Replaces zero seconds, which a coarse clock may give.
LEAST_SECONDS = 1e-9

# Small, since padding is copied with the tensors but not counted.
_ALIGNMENT = 16
# Bytes copied back to the host at a time.
_SLAB_BYTES = 1 << 25
# Copies of small models stop here: more would measure nothing new.
_MOST_COPIES = 100_000
# Fills the target, so that undecoded bytes are noticed.
_SPOILED = 0xA5
# Copies of the data: source, decoded and encoded. They may take this share of free memory.
_COPIES, _SHARE, _MOST_BYTES = 3, 0.6, 1 << 32


def default_nbytes(device: Device) -> int:
    """Return the default of the bytes to decode at a time."""
    return min(_MOST_BYTES, int(_SHARE * device.room.free / _COPIES))


@dataclass(frozen=True)
class TensorCopy:
    """A copy of a tensor: index of the tensor, offset and size in the work's memory."""

    tensor: int
    offset: int
    nbytes: int


class Work(AbstractContextManager["Work"]):
    """Source and target memory on a GPU, for tensors that are copied to fill `nbytes`.

    Parameters
    ----------
    device
        The GPU.
    sample
        The tensors.
    nbytes
        Total size of the copies; each tensor has at least one.
    """

    def __init__(self, device: Device, sample: Sample, nbytes: int) -> None:
        self.device, self.stream = device, device.stream()
        self.tensors, self.dtype = sample.tensors, sample.dtype
        self.item_size = sample.item_size
        self.copies, self._span = _tiled([t.nbytes for t in self.tensors], nbytes)
        self.nbytes = sum(copy.nbytes for copy in self.copies)
        #: The tensors, or their bases.
        self.source: Memory = device.allocate(self._span)
        #: Target of decoding.
        self.out: Memory = device.allocate(self._span)
        largest = max(tensor.nbytes for tensor in self.tensors)
        self._slab = device.pinned(min(_SLAB_BYTES, largest))

    def __exit__(self, *exception: object) -> None:
        self.source.close()
        self.out.close()

    def first(self, nbytes: int) -> list[TensorCopy]:
        """Return the first copies that fit into `nbytes`, at least one."""
        ends = np.cumsum([copy.nbytes for copy in self.copies])
        return self.copies[: max(1, int(np.searchsorted(ends, nbytes, "right")))]

    def set_source(self, contents: Sequence[Bytes]) -> None:
        """Fill the source with the content of each copy's tensor, or of its base."""
        copied: dict[int, int] = {}
        for copy in self.copies:
            address = self.source.address + copy.offset
            content = contents[copy.tensor]
            self.stream.copy(address, copied.get(copy.tensor, content.ctypes.data), copy.nbytes)
            copied.setdefault(copy.tensor, address)
        self.stream.synchronize()

    def spoil(self) -> None:
        """Overwrite the target, so that earlier results cannot pass for new ones."""
        self.stream.fill(self.out.address, _SPOILED, self.out.nbytes)
        self.stream.synchronize()

    def copy(self) -> None:
        """Copy source to target, within the GPU's memory."""
        self.stream.copy(self.out.address, self.source.address, self._span)

    def timed(self, call: Callable[[], None]) -> float:
        """Return the seconds that the stream takes for the work of a call.

        The target is overwritten first. That takes longer than the host takes to submit the work,
        so the GPU does not wait for the host in between.
        """
        self.stream.fill(self.out.address, _SPOILED, self.out.nbytes)
        begin = self.stream.record(timed=True)
        call()
        end = self.stream.record(timed=True)
        end.synchronize()
        return max(LEAST_SECONDS, end.seconds_since(begin))

    def holds(
        self,
        contents: Sequence[Bytes],
        copies: Sequence[TensorCopy] | None = None,
        addresses: Sequence[int] | None = None,
    ) -> bool:
        """Copy the decoded tensors back; return whether all bytes are as expected.

        Parameters
        ----------
        contents
            Expected bytes of each tensor.
        copies
            Pieces to compare; by default all.
        addresses
            Addresses of the copies; by default in `out`.
        """
        is_equal = True
        for i, copy in enumerate(self.copies if copies is None else copies):
            address = self.out.address + copy.offset if addresses is None else addresses[i]
            content = contents[copy.tensor]
            for start in range(0, copy.nbytes, self._slab.nbytes):
                size = min(self._slab.nbytes, copy.nbytes - start)
                self.stream.copy(self._slab.address, address + start, size)
                self.stream.synchronize()
                expected = content[start : start + size]
                is_equal &= np.array_equal(self._slab.array[:size], expected)
        return is_equal


def _tiled(sizes: Sequence[int], nbytes: int) -> tuple[list[TensorCopy], int]:
    """Return copies of tensors that fill `nbytes`, and their size in memory with padding."""
    copies: list[TensorCopy] = []
    end = 0
    for _ in range(max(1, min(nbytes // sum(sizes), _MOST_COPIES // len(sizes)))):
        for tensor, size in enumerate(sizes):
            copies.append(TensorCopy(tensor, end, size))
            end = aligned(end + size, _ALIGNMENT)
    return copies, end
