"""Makes growing frames with versions in small blocks, by the native core, and damages them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from native_core import core
from versions import ancestors

HEADER, ENTRY, NO_PARENT = 32, 16, 65535


def lowest_bit_parents(count: int) -> list[int | None]:
    """Return the parents that this package's encoder gives versions."""
    return [None, *(v & v - 1 for v in range(1, count))]


def version_frames(
    versions: Sequence[Any],
    parents: Sequence[int | None],
    dtype: str = "float32",
    block: int = 256,
    codec: str = "arithmetic",
    **options: Any,
) -> list[bytes]:
    """Encode each version alone, or against its parent."""
    raw = [np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in versions]
    number, layout = core.CODECS[codec], core.DTYPES[dtype]
    return [
        core.encode(own, number, layout, block=block, base=None if p is None else raw[p], **options)
        for own, p in zip(raw, parents, strict=True)
    ]


def grown(
    frames: Sequence[bytes],
    parents: Sequence[int | None],
    room: int,
    nbytes: int,
    dtype: str = "float32",
    block: int = 256,
) -> bytes:
    """Put frames behind a directory."""
    directory = bytearray(core.growing_directory(core.DTYPES[dtype], block, nbytes, room))
    end = len(directory)
    for version, (frame, parent) in enumerate(zip(frames, parents, strict=True)):
        end += len(frame)
        at = HEADER + ENTRY * version
        directory[at : at + ENTRY] = core.growing_entry(end, parent)
    return bytes(directory) + b"".join(frames)


def grow(
    versions: Any,
    room: int | None = None,
    parents: Sequence[int | None] | None = None,
    dtype: str = "float32",
    block: int = 256,
    **options: Any,
) -> bytes:
    """Encode a growing frame of an array's versions along its first axis."""
    parents = lowest_bit_parents(len(versions)) if parents is None else parents
    frames = version_frames(versions, parents, dtype, block, **options)
    return grown(frames, parents, room or len(versions), versions[0].nbytes, dtype, block)


def ends_of(growing: bytes) -> list[int]:
    return core.GrowingIndex(growing).ends


def frames_of(growing: bytes) -> list[bytes]:
    index = core.GrowingIndex(growing)
    bounds = [index.directory_size, *index.ends]
    return [growing[a:b] for a, b in pairwise(bounds)]


def head_sizes(growing: bytes) -> list[int]:
    return [core.Index(frame).header_size for frame in frames_of(growing)]


def blocks_on_the_way(
    growing: bytes, versions: Sequence[int], blocks: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the extents of blocks of versions, and of their ancestors."""
    wanted = {a for v in versions for a in (v, *ancestors(v))}
    frames, found, begin = frames_of(growing), [], len(growing)
    for version in reversed(range(len(frames))):
        begin -= len(frames[version])
        if version in wanted:
            offsets = core.Index(frames[version]).offsets
            found += [(begin + offsets[b], begin + offsets[b + 1]) for b in blocks]
    return sorted(found)


def with_header(growing: bytes, at: int, form: str, value: int) -> bytes:
    """Change a field of the header, and mend the header's checksum."""
    changed = bytearray(growing)
    struct.pack_into(f"<{form}", changed, at, value)
    struct.pack_into("<I", changed, 28, core.checksum(bytes(changed[:28])))
    return bytes(changed)


def with_entry(growing: bytes, version: int, end: int, parent: int, zero: int = 0) -> bytes:
    """Change an entry of the directory, and mend its checksum."""
    fields = struct.pack("<QHH", end, parent, zero)
    entry = fields + struct.pack("<I", core.checksum(fields))
    at = HEADER + ENTRY * version
    return growing[:at] + entry + growing[at + ENTRY :]
