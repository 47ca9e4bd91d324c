"""Decoded parts of files, of which the last ones used are kept, and those to come are prepared.

A file is cut into units, which are the smallest parts worth decoding: a block of a frame, a chunk
of another codec, or the bytes between tensors. What is read at random is decoded unit by unit. Who
reads on is served like by the readahead of a kernel: parts double in size up to a limit, and the
first read of a part lets others decode the next one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from bf16codecs._base.buffers import Bytes

__all__ = ["Cache", "CachedFile"]

# The largest part. With two threads, 1, 2, 4 and 8 MiB gave the same rate, and 512 KiB 0.7 of it.
_MOST_BYTES = 1 << 22


class _Part:
    """Consecutive units of a file, decoded once, by whoever takes them."""

    def __init__(self, file: CachedFile, start: int, stop: int, is_sequential: bool) -> None:
        self.file, self.start, self.stop = file, start, stop
        #: Whether the part before it was read: then the next one will be, too.
        self.is_sequential = is_sequential
        self.is_touched = False
        #: Whether somebody wanted its last byte: who reads at random seldom does.
        self.is_passed = False
        self.data: Future[Bytes] = Future()

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.stop - self.start

    def decode(self) -> None:
        """Decode it; those who wait get the result, or the error."""
        try:
            out = np.empty(self.nbytes, np.uint8)
            self.file.decode(self.start, out)
        except BaseException as e:
            self.file.drop(self)
            self.data.set_exception(e)
        else:
            self.data.set_result(out)


class Cache:
    """The parts of all files that are kept, `most_nbytes` in all; several threads may read.

    Parameters
    ----------
    most_nbytes
        How many bytes to keep. A part that is being read is always kept.
    ahead
        How many parts to decode before they are asked for, each by a thread of its own.
    """

    def __init__(self, most_nbytes: int, ahead: int) -> None:
        self.most_nbytes, self.ahead = most_nbytes, ahead
        #: The largest part: those of two readers, and those ahead of them, have to fit.
        self.part_nbytes = min(_MOST_BYTES, most_nbytes // (2 * (ahead + 2)))
        self.lock = threading.Lock()
        self._parts: OrderedDict[_Part, None] = OrderedDict()
        self.nbytes = 0
        self._threads = ThreadPoolExecutor(ahead, "bf16codecs-ahead")

    def add(self, part: _Part) -> None:
        """Keep a part, and forget those that were not used for longest; the lock is held."""
        self._parts[part] = None
        self.nbytes += part.nbytes
        while self.nbytes > self.most_nbytes and len(self._parts) > 1:
            oldest = next(iter(self._parts))
            self.remove(oldest)

    def touch(self, part: _Part) -> None:
        """Note that a part is used; the lock is held."""
        with suppress(KeyError):
            self._parts.move_to_end(part)

    def remove(self, part: _Part) -> None:
        """Forget a part; the lock is held."""
        if part in self._parts:
            del self._parts[part]
            self.nbytes -= part.nbytes
            part.file.forget(part)

    def decode_soon(self, part: _Part) -> None:
        """Let another thread decode a part."""
        with suppress(RuntimeError):  # it is being closed
            self._threads.submit(part.decode)

    def close(self) -> None:
        """Wait for the threads, and forget all parts."""
        self._threads.shutdown(cancel_futures=True)
        with self.lock:
            for part in list(self._parts):
                self.remove(part)


class CachedFile:
    """A file whose parts are kept.

    Parameters
    ----------
    cache
        Where its parts are kept.
    size
        Its size in bytes.
    unit_at
        Returns the ends of the unit that has a byte.
    decode
        Fills memory with the bytes from an offset on, which are whole units.
    """

    def __init__(
        self,
        cache: Cache,
        size: int,
        unit_at: Callable[[int], tuple[int, int]],
        decode: Callable[[int, Bytes], None],
    ) -> None:
        self.size, self.decode = size, decode
        self._cache, self._unit_at = cache, unit_at
        #: Parts by the units that they have, and by where they end.
        self._at: dict[int, _Part] = {}
        self._ends: dict[int, _Part] = {}

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from an offset on, fewer at the end; errors are those of decoding."""
        stop, found = min(start + nbytes, self.size), []
        while start < stop:
            part, data = self._decoded(start, stop)
            end = min(stop, part.stop)
            found.append(data[start - part.start : end - part.start].tobytes())
            start = end
        return found[0] if len(found) == 1 else b"".join(found)

    def _decoded(self, at: int, end: int) -> tuple[_Part, Bytes]:
        """Return the part that has a byte, and its bytes; all up to `end` is wanted."""
        part = self._part_at(at, end)
        try:
            return part, part.data.result()
        except Exception:
            # What is damaged may be another unit of the part.
            if (part.start, part.stop) == self._unit_at(at):
                raise
        part = self._part_at(at, end, is_alone=True)
        return part, part.data.result()

    def _part_at(self, at: int, end: int, is_alone: bool = False) -> _Part:
        """Return the part that has a byte; it is decoded, or another thread is decoding it."""
        start, stop = self._unit_at(at)
        following: list[_Part] = []
        with self._cache.lock:
            part = self._at.get(start)
            is_new = part is None
            if part is None:
                before = None if is_alone else self._ends.get(start)
                passed = before if before is not None and before.is_passed else None
                part = self._add(start, stop, passed)
            self._cache.touch(part)
            part.is_passed = part.is_passed or end >= part.stop
            if part.is_sequential and not part.is_touched:
                following = self._add_following(part)
            part.is_touched = True
        for other in following:
            self._cache.decode_soon(other)
        if is_new:
            part.decode()
        return part

    def _add(self, start: int, stop: int, before: _Part | None) -> _Part:
        """Add a part of at least one unit, twice as large as the one before it was."""
        most = 0 if before is None else min(2 * before.nbytes, self._cache.part_nbytes)
        part = _Part(self, start, stop, before is not None)
        self._at[start] = part
        while part.stop < self.size and part.stop not in self._at:
            first, last = self._unit_at(part.stop)
            if last - start > most:
                break
            self._at[first], part.stop = part, last
        self._ends[part.stop] = part
        self._cache.add(part)
        return part

    def _add_following(self, part: _Part) -> list[_Part]:
        """Add the parts behind one, as many as are decoded ahead."""
        added: list[_Part] = []
        for _ in range(self._cache.ahead):
            if part.stop >= self.size:
                break
            following = self._at.get(part.stop)
            if following is None:
                following = self._add(*self._unit_at(part.stop), part)
                added.append(following)
            part = following
        return added

    def forget(self, part: _Part) -> None:
        """Forget a part; the cache's lock is held."""
        at = part.start
        while at < part.stop:
            if self._at.get(at) is part:
                del self._at[at]
            at = self._unit_at(at)[1]
        if self._ends.get(part.stop) is part:
            del self._ends[part.stop]

    def drop(self, part: _Part) -> None:
        """Forget a part that could not be decoded: the next read tries again."""
        with self._cache.lock:
            self._cache.remove(part)
