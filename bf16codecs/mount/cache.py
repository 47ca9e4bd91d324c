"""Decoded parts of files: the last ones used are kept, and the next ones are prepared.

A file is cut into units, which are the smallest parts worth decoding: a block of a frame, a chunk
of another codec, or the bytes between tensors. Random reads decode single units. Sequential readers
get readahead, as from a kernel: parts double in size up to a limit, and the first read of a part
lets other threads decode the next ones.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from bf16codecs import _core
from bf16codecs._base.buffers import Bytes, LentMemory
from bf16codecs._base.forks import make_lock

__all__ = ["Cache", "CachedFile"]

# The largest part. With two threads, 1, 2, 4 and 8 MiB gave the same rate, and 512 KiB 0.7 of it.
_MOST_BYTES = 1 << 22
# After this time, a reader that was expected to go on has stopped.
_SECONDS_EXPECTED = 5.0
_NOTHING = np.empty(0, np.uint8)


# Memory for single blocks, which random reads need one of after the other. New pages of 4 KiB would
# take three times as long as decoding; those of a larger array are huge.
_BLOCK_BYTES, _SLAB_BYTES = _core.DEFAULT_BLOCK_BYTES, 1 << 22
_blocks = LentMemory(most=4 * _SLAB_BYTES)


def _memory(nbytes: int) -> Bytes:
    """Return memory of undefined content."""
    if nbytes != _BLOCK_BYTES:
        return np.empty(nbytes, np.uint8)
    if _blocks.is_empty:
        slab = np.empty(_SLAB_BYTES, np.uint8)
        for start in range(0, _SLAB_BYTES, _BLOCK_BYTES):
            _blocks.take_back(slab[start : start + _BLOCK_BYTES])
    return _blocks.array(nbytes)


class _Part:
    """Consecutive units of a file, decoded once, by the first thread that claims them."""

    def __init__(self, file: CachedFile, start: int, stop: int, is_sequential: bool) -> None:
        self.file, self.start, self.stop = file, start, stop
        #: Whether the part before it was read. Its reader will probably go on to the next one.
        self.is_sequential = is_sequential
        #: Whether somebody asked for it, and, before that, until when that is expected.
        self.is_touched, self.expected_until = False, 0.0
        #: Whether somebody wanted its last byte: random readers seldom do.
        self.is_passed = False
        self.is_claimed = self.is_forgotten = False
        self.data: Future[Bytes] = Future()

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.stop - self.start

    def decode(self) -> None:
        """Decode it; those who wait get the result, or the error."""
        try:
            out = _memory(self.nbytes)
            self.file.decode(self.start, out)
        except BaseException as e:
            self.data.set_exception(e)
        else:
            self.data.set_result(out)


class Cache:
    """The parts of all files that are kept; several threads may read.

    Parameters
    ----------
    most_nbytes
        How many bytes to keep, beside parts that are being decoded.
    ahead
        How many parts to decode before a reader asks for them, each by a thread of its own.
    """

    def __init__(self, most_nbytes: int, ahead: int) -> None:
        self.most_nbytes, self.ahead = most_nbytes, ahead
        #: The largest part of several units: those of two readers, and those ahead of them, fit.
        self.part_nbytes = min(_MOST_BYTES, most_nbytes // (2 * (ahead + 2)))
        self.lock = make_lock()
        self._parts: OrderedDict[_Part, None] = OrderedDict()
        self.nbytes = self._expected_nbytes = 0
        self._threads = ThreadPoolExecutor(ahead, "bf16codecs-ahead")

    # The lock is held while these are called.

    def add(self, part: _Part) -> None:
        """Keep a part, and forget those that were not used for longest."""
        self._parts[part] = None
        self.nbytes += part.nbytes
        self._shrink(part)

    def _shrink(self, latest: _Part) -> None:
        excess = self.nbytes - self.most_nbytes
        for part in list(self._parts) if excess > 0 else ():
            # What is expected fits beside the rest.
            if part.data.done() and part.is_touched and part is not latest:
                self.remove(part)
                excess -= part.nbytes
                if excess <= 0:
                    break

    def expect(self, part: _Part) -> None:
        """Note that a part that was added is decoded ahead."""
        part.expected_until = time.monotonic() + _SECONDS_EXPECTED
        self._expected_nbytes += part.nbytes

    def has_room_ahead(self, nbytes: int) -> bool:
        """Tell whether a part may be decoded ahead: half of the cache is for these."""
        most = self.most_nbytes // 2
        if self._expected_nbytes + nbytes > most:
            now = time.monotonic()
            for part in [part for part in self._parts if not part.is_touched]:
                if part.data.done() and part.expected_until < now:
                    self.remove(part)
        return self._expected_nbytes + nbytes <= most

    def touch(self, part: _Part) -> None:
        """Note that a reader asks for a part."""
        self._no_longer_expected(part)
        part.is_touched = True
        with suppress(KeyError):
            self._parts.move_to_end(part)

    def _no_longer_expected(self, part: _Part) -> None:
        if part.expected_until and not part.is_touched:
            self._expected_nbytes -= part.nbytes

    def remove(self, part: _Part) -> None:
        """Forget a part."""
        if part in self._parts:
            del self._parts[part]
            self.nbytes -= part.nbytes
            self._no_longer_expected(part)
            part.is_forgotten = True
            part.file.forget(part)

    # The lock is not held while these are called.

    def claim(self, part: _Part) -> bool:
        """Tell whether the calling thread has to decode a part: the first one that asks."""
        with self.lock:
            is_first, part.is_claimed = not part.is_claimed, True
        return is_first

    def decode(self, part: _Part) -> None:
        """Decode a part that was claimed; forget it if that fails: the next read tries again."""
        part.decode()
        with self.lock:
            if part.data.exception() is not None:
                self.remove(part)
            else:
                self._shrink(part)

    def decode_soon(self, part: _Part) -> None:
        """Let one of the cache's threads decode a part, unless a reader does so before."""
        # Without a thread, the reader does.
        with suppress(RuntimeError):
            self._threads.submit(self._decode_ahead, part)

    def _decode_ahead(self, part: _Part) -> None:
        if not part.is_forgotten and self.claim(part):
            self.decode(part)

    def forget_files(self, files: Collection[CachedFile]) -> None:
        """Forget the parts of files."""
        with self.lock:
            for part in [part for part in self._parts if part.file in files]:
                self.remove(part)

    def close(self) -> None:
        """Wait for the threads, and forget all parts."""
        self._threads.shutdown(cancel_futures=True)
        with self.lock:
            for part in list(self._parts):
                self.remove(part)


class CachedFile:
    """A file, read through a cache of its parts.

    Parameters
    ----------
    cache
        The cache, which other files share.
    size
        Size of the file in bytes.
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
        #: The part that was read last, which is kept.
        self._last: tuple[_Part | None, Bytes] = None, _NOTHING

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from an offset on, fewer at the end; errors are those of decoding."""
        stop, found = min(start + nbytes, self.size), []
        last, data = self._last
        if last is not None and last.start <= start and start < stop < last.stop:
            # Most reads go on in the part of the one before: 20 instead of 55 us.
            return data[start - last.start : stop - last.start].tobytes()
        while start < stop:
            part, data = self._decoded(start, stop)
            end = min(stop, part.stop)
            self._last = part, data
            found.append(data[start - part.start : end - part.start].tobytes())
            start = end
        return found[0] if len(found) == 1 else b"".join(found)

    def _decoded(self, at: int, end: int) -> tuple[_Part, Bytes]:
        """Return the part that has a byte, and its bytes; all up to `end` is wanted."""
        is_alone = False
        while True:
            part = self._part_at(at, end, is_alone)
            if self._cache.claim(part):
                self._cache.decode(part)
            try:
                return part, part.data.result()
            except Exception:
                # What is damaged may be another unit of the part.
                if (part.start, part.stop) == self._unit_at(at):
                    raise
            with self._cache.lock:
                self._cache.remove(part)
            is_alone = True

    def _part_at(self, at: int, end: int, is_alone: bool) -> _Part:
        """Return the part that has a byte, which may not be decoded yet."""
        start, stop = self._unit_at(at)
        following: list[_Part] = []
        with self._cache.lock:
            part = self._at.get(start)
            if part is None:
                before = None if is_alone else self._ends.get(start)
                passed = before if before is not None and before.is_passed else None
                part = self._add(start, stop, passed)
            if part.is_sequential and not part.is_touched:
                following = self._add_following(part)
            part.is_passed = part.is_passed or end >= part.stop
            self._cache.touch(part)
        for other in following:
            self._cache.decode_soon(other)
        return part

    def _add(self, start: int, stop: int, before: _Part | None) -> _Part:
        """Add a part of at least one unit, twice as large as the one before it was."""
        most = 0 if before is None else min(2 * before.nbytes, self._cache.part_nbytes)
        part = _Part(self, start, stop, before is not None)
        self._at[start] = part
        while most and part.stop < self.size and part.stop not in self._at:
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
                start, stop = self._unit_at(part.stop)
                if not self._cache.has_room_ahead(max(stop - start, self._cache.part_nbytes)):
                    break
                following = self._add(start, stop, part)
                self._cache.expect(following)
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
        if self._last[0] is part:
            self._last = None, _NOTHING
