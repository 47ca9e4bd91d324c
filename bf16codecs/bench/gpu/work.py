"""The tensors on a GPU: where all contenders find them, and where they put them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from bf16codecs.bench.data import Bytes, Sample
from bf16codecs.cuda.device import Device
from bf16codecs.cuda.memory import Memory, aligned

__all__ = ["LEAST_SECONDS", "Piece", "Work", "default_nbytes"]

#: Of clocks that have not moved on.
LEAST_SECONDS = 1e-9

# More would be copied beside the tensors, and not counted.
_ALIGNMENT = 16
# What is copied back at a time.
_SLAB_BYTES = 1 << 25
# Of small models: more copies measure nothing new.
_MOST_PIECES = 100_000
# What nothing decodes to by itself.
_SPOILED = 0xA5
# Decoded, to be copied from, and encoded; and how much of what is free they may take.
_PLACES, _SHARE, _MOST_BYTES = 3, 0.6, 1 << 32


def default_nbytes(device: Device) -> int:
    """Return how much is decoded at a time if nothing else is said."""
    return min(_MOST_BYTES, int(_SHARE * device.room.free / _PLACES))


@dataclass(frozen=True)
class Piece:
    """A copy of a tensor: which one, where it is, and its size."""

    tensor: int
    offset: int
    nbytes: int


class Work(AbstractContextManager["Work"]):
    """Tensors, copied until they take so many bytes, in two places of a GPU's memory.

    Parameters
    ----------
    device
        The GPU.
    sample
        The tensors.
    nbytes
        How much they take together; each is there once at least.
    """

    def __init__(self, device: Device, sample: Sample, nbytes: int) -> None:
        self.device, self.stream = device, device.stream()
        self.tensors, self.dtype = sample.tensors, sample.dtype
        self.item_size = sample.item_size
        self.pieces, self._span = _tiled([t.nbytes for t in self.tensors], nbytes)
        self.nbytes = sum(piece.nbytes for piece in self.pieces)
        #: What is copied from: the tensors, or what they differ from.
        self.source: Memory = device.allocate(self._span)
        #: Where they are decoded to.
        self.out: Memory = device.allocate(self._span)
        largest = max(tensor.nbytes for tensor in self.tensors)
        self._slab = device.pinned(min(_SLAB_BYTES, largest))

    def __exit__(self, *exception: object) -> None:
        self.source.close()
        self.out.close()

    def first(self, nbytes: int) -> list[Piece]:
        """Return the pieces that so many bytes have room for; the first at least."""
        ends = np.cumsum([piece.nbytes for piece in self.pieces])
        return self.pieces[: max(1, int(np.searchsorted(ends, nbytes, "right")))]

    def set_source(self, contents: Sequence[Bytes]) -> None:
        """Put what each tensor has there, or something else of its size, to all of its places."""
        there: dict[int, int] = {}
        for piece in self.pieces:
            address = self.source.address + piece.offset
            content = contents[piece.tensor]
            self.stream.copy(address, there.get(piece.tensor, content.ctypes.data), piece.nbytes)
            there.setdefault(piece.tensor, address)
        self.stream.synchronize()

    def spoil(self) -> None:
        """Let nothing that was decoded before be taken for what comes next."""
        self.stream.fill(self.out.address, _SPOILED, self.out.nbytes)
        self.stream.synchronize()

    def copy(self) -> None:
        """Copy what is decoded otherwise, within the GPU's memory."""
        self.stream.copy(self.out.address, self.source.address, self._span)

    def timed(self, call: Callable[[], None]) -> float:
        """Return the seconds between what a call lets the stream do first and last.

        Before, what was decoded is overwritten, which takes longer than to say what comes next: the
        GPU does not wait for the host in between.
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
        pieces: Sequence[Piece] | None = None,
        addresses: Sequence[int] | None = None,
    ) -> bool:
        """Copy back what was decoded; return whether it is what the tensors should have.

        Parameters
        ----------
        contents
            Of each tensor.
        pieces
            Which are looked at; by default all.
        addresses
            Where they are; by default in `out`.
        """
        found = True
        for i, piece in enumerate(self.pieces if pieces is None else pieces):
            address = self.out.address + piece.offset if addresses is None else addresses[i]
            content = contents[piece.tensor]
            for start in range(0, piece.nbytes, self._slab.nbytes):
                size = min(self._slab.nbytes, piece.nbytes - start)
                self.stream.copy(self._slab.address, address + start, size)
                self.stream.synchronize()
                expected = content[start : start + size]
                found &= np.array_equal(self._slab.array[:size], expected)
        return found


def _tiled(sizes: Sequence[int], nbytes: int) -> tuple[list[Piece], int]:
    """Return where copies of tensors are that take so many bytes, and what they take in memory."""
    copies = max(1, min(nbytes // sum(sizes), _MOST_PIECES // len(sizes)))
    pieces: list[Piece] = []
    end = 0
    for _ in range(copies):
        for tensor, size in enumerate(sizes):
            pieces.append(Piece(tensor, end, size))
            end = aligned(end + size, _ALIGNMENT)
    return pieces, end
