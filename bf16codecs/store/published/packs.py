"""Packs, each with frames of one step of a published run: docs/published_runs.md, "Packs"."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from bf16codecs._arrays.grid import ChunkIndex, chunk_counts
from bf16codecs._arrays.storage import KeyStorage
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.forks import make_lock
from bf16codecs._base.limits import MAX_METADATA_BYTES, check_metadata, check_parsed
from bf16codecs._base.messages import advised, counted, damaged, named_errors, one_line
from bf16codecs.errors import LimitError, ServerError, StoreError
from bf16codecs.store.published.layout import CHANGE, PublishedStep
from bf16codecs.store.remote.retries import retried

__all__ = ["CACHE_BYTES", "Extent", "Frame", "Packs", "PlannedArray", "pack_of"]

#: Packs of differences at servers are read whole, and kept up to this size together: a follower
#: reads nearly all of them, and a request takes as long as a megabyte.
CACHE_BYTES = 1 << 29
_MAGIC = b"BF16PACK"
_HEAD_BYTES = len(_MAGIC) + 4
_IS_MISSING = (
    "it is missing or empty: its step was dropped, or has not arrived yet; read another step, or"
    " restore the file from a copy"
)
T = TypeVar("T")
# Enough for the index of a pack of 10,000 frames, as a rule.
_FIRST_BYTES = 1 << 16


class Frame(NamedTuple):
    """A frame to pack: the numbers of its array and of its chunk, and its bytes."""

    array: int
    chunk: int
    content: bytes


class Extent(NamedTuple):
    """Where a frame is: the key of a pack, its first byte there, and its size."""

    key: str
    offset: int
    size: int


class PlannedArray(NamedTuple):
    """An array's path, and shape and chunks of a step."""

    path: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """How many chunks there are along each axis."""
        return chunk_counts(self.shape, self.chunks)

    def number(self, index: ChunkIndex) -> int:
        """Return the number of a chunk in C order."""
        number = 0
        for at, count in zip(index, self.counts, strict=True):
            number = number * count + at
        return number


#: Frames of a step by the number of the array, and by that of the chunk.
Extents = Mapping[tuple[int, int], Extent]


def pack_of(frames: Sequence[Frame]) -> bytes:
    """Return a pack of frames."""
    entries = [[frame.array, frame.chunk, len(frame.content)] for frame in frames]
    text = json.dumps({"frames": entries}, separators=(",", ":")).encode()
    index = zlib.compress(text, 9)
    head = _MAGIC + len(index).to_bytes(4, "little")
    return b"".join([head, index, *(frame.content for frame in frames)])


class Packs:
    """The packs of a published run, which never change, and their indexes.

    Those that are fetched from a server are kept; parts of others are read when they are needed.
    """

    def __init__(self, where: str, storage: KeyStorage, arrays: Sequence[PlannedArray]) -> None:
        self._where, self._storage = where, storage
        self._counts = [math.prod(array.counts) for array in arrays]
        self._extents: dict[tuple[str, str], Extents] = {}
        self._kept: dict[str, Bytes] = {}
        self._fetching = make_lock()
        #: Whether reading a small part costs no request to a server.
        self.is_near = storage.concurrency == 1

    def extents(self, step: PublishedStep, kind: str) -> Extents:
        """Return where the frames of a step are, by the numbers of their arrays and chunks.

        Raises StoreError if a pack is missing or damaged, or two have the same frame.
        """
        found = self._extents.get((step.key, kind))
        if found is None:
            joined: dict[tuple[int, int], Extent] = {}
            for key, size in step.keys(kind).items():
                with self._named(key):
                    of_pack = dict(self._read_index(key, size))
                    if joined.keys() & of_pack.keys():
                        raise StoreError(damaged("it has a frame that another pack has"))
                joined |= of_pack
            found = self._extents.setdefault((step.key, kind), joined)
        return found

    def fetch(self, steps: Sequence[PublishedStep]) -> None:
        """Read the differences of steps from a server, unless that takes too much memory.

        Those of other steps are no longer kept.
        """
        sizes = {key: size for step in steps for key, size in step.keys(CHANGE).items()}
        if self.is_near or sum(sizes.values()) > CACHE_BYTES:
            return
        with self._fetching:
            self._kept = {key: pack for key, pack in self._kept.items() if key in sizes}
            for key, size in sizes.items():
                if key not in self._kept:
                    with self._named(key):
                        self._kept[key] = self._read_some(key, size, size)

    def forget_others(self, steps: Iterable[PublishedStep]) -> None:
        """Forget the indexes of all but some steps."""
        keys = {step.key for step in steps}
        # Other threads may read an earlier step, and add indexes.
        known = self._extents.copy()
        self._extents = {key: found for key, found in known.items() if key[0] in keys}

    def read_into(self, key: str, parts: Sequence[tuple[int, Bytes]]) -> None:
        """Fill buffers from a pack, each from a byte on; ask again where a server fails."""
        self.again(lambda: self._read_into(key, parts))

    def again(self, request: Callable[[], T]) -> T:
        """Make requests, and repeat them after a while where a server fails."""
        return request() if self.is_near else retried(self._where, request)

    def _read_into(self, key: str, parts: Sequence[tuple[int, Bytes]]) -> None:
        with self._named(key):
            kept = self._kept.get(key)
            if kept is not None:
                for start, out in parts:
                    out[:] = kept[start : start + out.size]
                return
            with self._storage.open(key) as stored:
                if self.is_near:
                    sizes = [stored.read_into(start, out) for start, out in parts]
                else:
                    found = stored.read([(start, start + out.size) for start, out in parts])
                    sizes = [part.size for part in found]
                    for part, (_, out) in zip(found, parts, strict=True):
                        out[: part.size] = part
            if sizes != [out.size for _, out in parts]:
                raise StoreError(damaged("it ends too early"))

    @contextmanager
    def _named(self, key: str) -> Iterator[None]:
        with named_errors(f"{self._where}: {key}", OSError):
            try:
                yield
            except (ServerError, LimitError):
                raise
            except StoreError as e:
                if self._may_exist(key):
                    raise
                raise StoreError(_IS_MISSING) from e

    def _may_exist(self, key: str) -> bool:
        try:
            return self._storage.size(key) > 0
        except OSError:
            return True

    def _read_some(self, key: str, nbytes: int, size: int) -> Bytes:
        """Read the first bytes of a pack, which has a size."""
        with self._storage.open(key) as stored:
            if stored.size not in (None, size):
                raise StoreError(damaged(f"it has {counted(stored.size, 'byte')}, not {size}"))
            # Its last byte as well, since servers do not say at once that it is not all there.
            last = [] if stored.size is not None or nbytes == size else [(size - 1, size)]
            try:
                content, *end = stored.read([(0, nbytes), *last])
            except Exception as e:
                # Imported only for servers: asyncio.
                from bf16codecs._arrays.http import is_past_end

                if is_past_end(e):
                    raise StoreError(damaged("it ends too early")) from e
                raise
        if content.size != nbytes or any(part.size != 1 for part in end):
            raise StoreError(damaged("it ends too early"))
        return content.copy()  # its memory may be that of this thread's next read

    def _read_index(self, key: str, size: int) -> Iterator[tuple[tuple[int, int], Extent]]:
        content = self._kept.get(key)
        if content is None:
            content = self._read_some(key, min(size, _FIRST_BYTES), size)
        start = _index_end(content)
        if start > size:
            raise StoreError(damaged("its index does not end in it"))
        check_metadata(start)
        if start > content.size:
            content = self._read_some(key, start, size)
        return self._placed(key, _entries(bytes(content[_HEAD_BYTES:start])), start, size)

    def _placed(
        self, key: str, entries: Iterable[Any], at: int, end: int
    ) -> Iterator[tuple[tuple[int, int], Extent]]:
        """Yield where each frame is, and check that all of them fill the pack."""
        seen = set()
        for entry in entries:
            array, chunk, size = entry
            if not all(type(number) is int and number >= 0 for number in entry) or not size:
                raise StoreError(damaged(f"{entry!r:.80} is not the entry of a frame"))
            if array >= len(self._counts) or chunk >= self._counts[array]:
                raise StoreError(damaged(f"it has chunk {chunk} of array {array}: there is none"))
            if (array, chunk) in seen:
                raise StoreError(damaged(f"it has chunk {chunk} of array {array} twice"))
            seen.add((array, chunk))
            yield (array, chunk), Extent(key, at, size)
            at += size
        if at != end:
            raise StoreError(damaged(f"its frames end at byte {at}, and it at {end}"))


def _index_end(head: Bytes) -> int:
    """Return where the index of a pack ends."""
    if bytes(head[: len(_MAGIC)]) != _MAGIC:
        raise StoreError(advised("it is not a pack of frames"))
    return _HEAD_BYTES + int.from_bytes(bytes(head[len(_MAGIC) : _HEAD_BYTES]), "little")


def _entries(index: bytes) -> list[Any]:
    """Return the entries of an index; raise StoreError if it is damaged, or too large."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(index, MAX_METADATA_BYTES)
        if not inflater.eof or inflater.unused_data:
            raise ValueError("its index is no whole zlib stream, or too large")
        check_metadata(len(text), lambda: len(index))
        check_parsed(text, lambda: len(index))
        found = json.loads(text)
        entries = found["frames"]
        if not isinstance(entries, list) or not all(
            isinstance(entry, list) and len(entry) == 3 for entry in entries
        ):
            raise TypeError("frames are not a list of triples")
    except (zlib.error, ValueError, KeyError, TypeError, RecursionError) as e:
        raise StoreError(damaged(one_line(e), "damaged index")) from e
    return entries
