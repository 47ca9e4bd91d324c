"""Growing frames whose frames lie in the packs of several steps."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from bf16codecs import _core
from bf16codecs._arrays.storage import READ_BYTES, AtMost, Request, StoredChunk
from bf16codecs._base.buffers import Bytes, ThreadBuffer, layout_for
from bf16codecs.errors import StoreError
from bf16codecs.store.published.packs import Extent, Packs
from bf16codecs.store.zarr.metadata import ParsedArray

__all__ = ["ScatteredChunk"]

# In the place of a frame that is not there: a version has at least one byte.
_NO_FRAME = bytes(1)


class ScatteredChunk(StoredChunk):
    """A growing frame whose frames lie in packs, each coded against the one before.

    A frame that is None is not there, and not needed. Reading one that is an error raises it; what
    is read with the directory ends before it, so that steps before can be read.
    """

    is_scattered = True

    def __init__(
        self,
        packs: Packs,
        memory: ThreadBuffer,
        key: Any,
        array: ParsedArray,
        room: int,
        extents: Sequence[Extent | StoreError | None],
    ) -> None:
        self._packs, self._memory, self._extents = packs, memory, extents
        # Where a frame is not there, it may be the next time.
        self.key = None if any(isinstance(each, StoreError) for each in extents) else key
        self.version_names = [
            each.key if isinstance(each, Extent) else f"version {version}"
            for version, each in enumerate(extents)
        ]
        layout = layout_for(array.dtype)
        nbytes = math.prod(array.chunks[1:]) * array.dtype.itemsize
        block = _core.DEFAULT_BLOCK_BYTES // np.dtype(layout).itemsize
        directory = bytearray(_core.growing_directory(_core.DTYPES[layout], block, nbytes, room))
        sizes = [each.size if isinstance(each, Extent) else len(_NO_FRAME) for each in extents]
        self._bounds = list(accumulate(sizes, initial=len(directory)))
        at = len(directory)
        entries = [
            _core.growing_entry(end, version - 1 if version else None)
            for version, end in enumerate(self._bounds[1:])
        ]
        at -= room * len(entries[0])
        directory[at : at + len(entries) * len(entries[0])] = b"".join(entries)
        self._directory = np.frombuffer(directory, np.uint8)
        self.size: int = self._bounds[-1]
        missing = (at for at, each in enumerate(extents) if isinstance(each, StoreError))
        self._readable_end = self._bounds[next(missing, len(extents))]

    @property
    def read_nbytes(self) -> int | None:
        """How much to read at a time."""
        return READ_BYTES if self._packs.is_near else None

    def read(self, request: Request) -> Sequence[Bytes]:
        """Read ranges of it, or all of it; a thread's next read may overwrite the result."""
        given = [(0, self.size)] if isinstance(request, AtMost) else request
        ranges = [self._cut(*each) for each in given]
        memory = self._memory.get(sum(stop - start for start, stop in ranges))
        parts: defaultdict[str, list[tuple[int, Bytes]]] = defaultdict(list)
        found = []
        for start, stop in ranges:
            out, memory = memory[: stop - start], memory[stop - start :]
            for key, at, part in self._parts(start, out):
                parts[key].append((at, part))
            found.append(out)
        for key, of_pack in parts.items():
            self._packs.read_into(key, of_pack)
        return found

    def _cut(self, start: int, stop: int) -> tuple[int, int]:
        end = self._readable_end if start < self._directory.size else self.size
        return min(start, end), min(stop, end)

    def _parts(self, start: int, out: Bytes) -> Iterator[tuple[str, int, Bytes]]:
        """Fill a buffer from the directory, and yield what packs have to fill, and from where."""
        head = self._directory[start : start + out.size]
        out[: head.size] = head
        at, out = start + head.size, out[head.size :]
        version = bisect_right(self._bounds, at) - 1
        while out.size:
            size = min(out.size, self._bounds[version + 1] - at)
            extent = self._extents[version]
            if isinstance(extent, Extent):
                yield extent.key, extent.offset + at - self._bounds[version], out[:size]
            elif extent is None:
                out[:size] = 0
            else:
                raise extent
            at, out, version = at + size, out[size:], version + 1
