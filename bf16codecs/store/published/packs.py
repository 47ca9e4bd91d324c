"""Packs, each with frames of one step of a published run: docs/published_runs.md, "Packs"."""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from bf16codecs._arrays.storage import KeyStorage
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.forks import make_lock
from bf16codecs._base.limits import MAX_METADATA_BYTES
from bf16codecs._base.messages import advised, counted, damaged, named_errors, one_line
from bf16codecs.errors import StoreError
from bf16codecs.store.published.layout import CHANGE, PublishedStep

__all__ = ["CACHE_BYTES", "Extent", "Frame", "Packs", "PlannedArray", "pack_of"]

#: Packs of differences at servers are read whole, and kept up to this size together: a follower
#: reads nearly all of them, and a request takes as long as a megabyte.
CACHE_BYTES = 1 << 29
_MAGIC = b"BF16PACK"
_HEAD_BYTES = len(_MAGIC) + 4
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
    """An array's path, and how many chunks a step has in it."""

    path: str
    chunks: int


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

    Of those with differences, a server is asked for all at once, and they are kept, up to
    `CACHE_BYTES`.
    """

    def __init__(self, where: str, storage: KeyStorage, arrays: Sequence[PlannedArray]) -> None:
        self._where, self._storage, self._arrays = where, storage, arrays
        self._extents: dict[tuple[str, str], Extents] = {}
        #: Sizes of packs that may be kept, and these packs.
        self._sizes: dict[str, int] = {}
        self._kept: OrderedDict[str, Bytes] = OrderedDict()
        self._lock = make_lock()
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
                if kind == CHANGE and not self.is_near:
                    self._sizes[key] = size
                with self._named(key):
                    of_pack = dict(self._read_index(key, size))
                    if joined.keys() & of_pack.keys():
                        raise StoreError(damaged("it has a frame that another pack has"))
                joined |= of_pack
            found = self._extents.setdefault((step.key, kind), joined)
        return found

    def fetch(self, step: PublishedStep) -> None:
        """Read the differences of a step from a server, as far as they are kept."""
        for key, size in () if self.is_near else step.keys(CHANGE).items():
            self._sizes[key] = size
            with self._named(key):
                self._whole(key)

    def read_into(self, key: str, parts: Sequence[tuple[int, Bytes]]) -> None:
        """Fill buffers from a pack, each from a byte on."""
        with self._named(key):
            kept = self._whole(key)
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

    def _named(self, key: str) -> AbstractContextManager[None]:
        return named_errors(f"{self._where}: {key}", OSError)

    def _whole(self, key: str) -> Bytes | None:
        """Return a pack if it may be kept, and read it unless it is."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        size = self._sizes.get(key, CACHE_BYTES)
        if size >= CACHE_BYTES:
            return None
        content = self._read_some(key, size)
        with self._lock:
            self._kept[key] = content
            while sum(each.size for each in self._kept.values()) > CACHE_BYTES:
                self._kept.popitem(last=False)
        return content

    def _read_some(self, key: str, size: int) -> Bytes:
        """Read the first bytes of a pack."""
        with self._storage.open(key) as stored:
            (content,) = stored.read([(0, size)])
        if content.size != size:
            raise StoreError(damaged(f"it ends after {counted(content.size, 'byte')}"))
        return content.copy()  # its memory may be that of this thread's next read

    def _read_index(self, key: str, size: int) -> Iterator[tuple[tuple[int, int], Extent]]:
        content = self._kept.get(key)
        if content is None:
            content = self._read_some(key, min(size, _FIRST_BYTES))
        start = _index_end(content)
        if start > size:
            raise StoreError(damaged("its index does not end in it"))
        if start > content.size:
            content = self._read_some(key, start)
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
            if array >= len(self._arrays) or chunk >= self._arrays[array].chunks:
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
        found = json.loads(text)
        entries = found["frames"]
        if not isinstance(entries, list) or not all(
            isinstance(entry, list) and len(entry) == 3 for entry in entries
        ):
            raise TypeError("frames are not a list of triples")
    except (zlib.error, ValueError, KeyError, TypeError, RecursionError) as e:
        raise StoreError(damaged(one_line(e), "damaged index")) from e
    return entries
