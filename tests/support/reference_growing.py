"""Growing frames of the reference decoder, written from docs/format_growing.md alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import reference_decoder as frames
from reference_checksum import checksum
from reference_difference_model import WIDTHS
from reference_planes import Reader, TruncatedFrame, UnknownVersion, must

GROWING = 16  # in place of a codec
HEADER, ENTRY, NO_PARENT = 32, 16, 65535
NOT_THERE = b"\xff"


@dataclass
class Directory:
    dtype: int
    k: int
    version_size: int
    room: int
    ends: list[int] = field(default_factory=list)
    parents: list[int | None] = field(default_factory=list)

    @property
    def size(self) -> int:
        return HEADER + ENTRY * self.room

    @property
    def begins(self) -> list[int]:
        return [self.size, *self.ends[:-1]]


def is_growing(data: bytes) -> bool:
    return data[:4] == frames.MAGIC and data[5:6] == bytes([GROWING])


def read_directory(data: bytes) -> Directory:
    reader = Reader(data, too_short=TruncatedFrame)
    must(frames.MAGIC.startswith(data[:4]), "another magic")
    reader.take(4)
    version = reader.number(1)
    if version > frames.VERSION_OF_TILES:
        raise UnknownVersion(f"version {version} is unknown: upgrade")
    must(version == frames.VERSION_OF_TILES, "version 0 or 1")
    codec, dtype, k, version_size, room, zero = (reader.number(w) for w in (1, 1, 1, 8, 4, 8))
    must(reader.number(4) == checksum(data[: HEADER - 4]), "checksum of the header")
    must(codec == GROWING, "no growing frame")
    must(dtype < len(WIDTHS), "an unknown dtype, or a bit of the layout that is set")
    must(zero == 0, "a field that is not zero")
    must(8 <= k and WIDTHS[dtype] << k <= 1 << 22, "k is outside its limits, or bits 5-7 are set")
    must(version_size > 0, "versions of no bytes")
    must(version_size % WIDTHS[dtype] == 0, "versions of no whole number of items")
    must(1 <= room <= 65534, "room for no version, or too many")
    must(room * version_size < 1 << 63, "more bytes than there can be")
    directory = Directory(dtype, k, version_size, room)
    entries = [reader.take(ENTRY) for _ in range(room)]
    there = [entry != bytes(ENTRY) for entry in entries]
    must(there[0], "version 0 is not there")
    must(sorted(there, reverse=True) == there, "an entry behind one of a version not there")
    for entry in entries[: sum(there)]:
        read_entry(directory, entry)
    return directory


def read_entry(directory: Directory, entry: bytes) -> None:
    reader = Reader(entry)
    end, parent, zero, expected = (reader.number(width) for width in (8, 2, 2, 4))
    must(expected == checksum(entry[:12]), "checksum of an entry")
    must(zero == 0, "a part of an entry that is not zero")
    must(end > (directory.ends or [directory.size])[-1], "a frame that ends before it begins")
    must(parent == NO_PARENT or parent < len(directory.ends), "no earlier version")
    directory.ends.append(end)
    directory.parents.append(None if parent == NO_PARENT else parent)


def decode_versions(data: bytes) -> list[bytes]:
    """Return the complete versions of a growing frame."""
    directory = read_directory(data)
    if len(data) < directory.ends[-1]:
        raise TruncatedFrame("ends before its last frame does")
    decoded: list[bytes] = []
    places = zip(directory.begins, directory.ends, directory.parents, strict=True)
    for begin, end, parent in places:
        frame = data[begin:end]
        check_frame(directory, frame, parent)
        decoded.append(frames.decode(frame, None if parent is None else decoded[parent]))
    return decoded


def check_frame(directory: Directory, frame: bytes, parent: int | None) -> None:
    head = frames.read_head(frame)
    must(head.dtype == directory.dtype, "another dtype")
    must(head.block_items == 1 << directory.k, "another k")
    must(head.raw_size == directory.version_size, "another raw size")
    must(len(head.versions) == 1, "a frame of several versions")
    needs_base = head.base is not None
    must(needs_base == (parent is not None), "a base and no parent, or the other way round")


def decode_whole(data: bytes) -> bytes:
    """Return the decoded versions of a growing frame, joined."""
    directory = read_directory(data)
    there = b"".join(decode_versions(data))
    return there + NOT_THERE * (directory.room * directory.version_size - len(there))


def decode(data: bytes, base: bytes | None = None) -> bytes:
    """Decode a frame, or the complete versions of a growing one."""
    if is_growing(data):
        return b"".join(decode_versions(data))
    return frames.decode(data, base)
