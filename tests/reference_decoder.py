"""A second decoder in plain Python, written from docs/format.md alone.

It is the document as a program: one function a section, in the document's order, nothing made
fast. Every rule that the document says a decoder must hold raises `FormatError` here, so the
tests can compare both what is decoded and what is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numcodecs.zstd
import numpy as np

MAGIC = bytes.fromhex("BF16C0DE")
VERSION = 0
WIDTHS = [2, 2, 4, 8, 1, 1]  # of dtype 0 ... 5
STORED, CONSTANT, HUFFMAN, RANS_PAIRS, RANS_WIDE, ZSTANDARD = range(6)
LOWEST_STATE = 1 << 16


class FormatError(ValueError):
    """The data are no frame of this format."""


class TruncatedFrame(FormatError):
    """The data end before the frame does."""


class UnknownVersion(FormatError):
    """The frame has another format version."""


def must(condition: bool | np.bool_, otherwise: str) -> None:
    if not condition:
        raise FormatError(otherwise)


class Reader:
    """Takes fields from the front of some bytes."""

    def __init__(self, data: bytes, too_short: type[FormatError] = FormatError) -> None:
        self.data = data
        self.at = 0
        self.too_short = too_short

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise self.too_short(f"needs {size} bytes at {self.at} and has {self.left}")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")


# --- Frame ---------------------------------------------------------------------------------------


@dataclass
class Head:
    codec: int
    dtype: int
    by_byte: bool
    block_items: int
    raw_size: int
    sizes: list[int]
    checksums: list[int] | None
    tail: bytes
    size: int  # of header, block table and tail

    @property
    def width(self) -> int:
        return WIDTHS[self.dtype]

    @property
    def n_items(self) -> int:
        return self.raw_size // self.width

    @property
    def offsets(self) -> list[int]:
        return list(accumulate(self.sizes, initial=self.size))


def read_head(data: bytes) -> Head:
    reader = Reader(data, too_short=TruncatedFrame)
    must(MAGIC.startswith(data[:4]), "another magic")
    reader.take(4)
    version = reader.number(1)
    if version != VERSION:
        raise UnknownVersion(f"version {version} is unknown: upgrade")
    codec, layout, blocks, raw_size = (reader.number(w) for w in (1, 1, 1, 8))
    must(reader.number(4) == checksum(data[:16]), "checksum of the header")
    must(1 <= codec <= 4, "unknown codec")
    must(layout & 15 < len(WIDTHS), "unknown dtype")
    must(layout >> 5 == 0, "bits 5-7 of the layout are set")
    must(blocks >> 5 & 3 == 0, "bits 5-6 of byte 7 are set")
    width, k = WIDTHS[layout & 15], blocks & 31
    must(8 <= k and width << k <= 1 << 22, "k is outside its limits")

    n_blocks = -(-(raw_size // width) >> k)
    entry = 8 if blocks >> 7 else 4
    table_checksum = reader.number(4)
    table = reader.take(n_blocks * entry)
    tail = reader.take(raw_size % width)
    must(table_checksum == checksum(table + tail), "checksum of block table and tail")
    fields = np.frombuffer(table, "<u4").reshape(n_blocks, entry // 4)
    must((fields[:, 0] > 0).all(), "a block of size 0")
    return Head(
        codec=codec,
        dtype=layout & 15,
        by_byte=bool(layout >> 4),
        block_items=1 << k,
        raw_size=raw_size,
        sizes=fields[:, 0].tolist(),
        checksums=fields[:, 1].tolist() if entry == 8 else None,
        tail=tail,
        size=reader.at,
    )


def decode(data: bytes) -> bytes:
    """Decode a frame."""
    data = bytes(data)
    head = read_head(data)
    if len(data) < head.offsets[-1]:
        raise TruncatedFrame("ends before its last block does")
    must(len(data) == head.offsets[-1], "is longer than its last block's end")
    return b"".join(decode_block(data, head, b) for b in range(len(head.sizes))) + head.tail


def decode_block(data: bytes, head: Head, index: int) -> bytes:
    """Decode one block of a frame, the tail not included."""
    n = min(head.block_items, head.n_items - index * head.block_items)
    payload = data[head.offsets[index] : head.offsets[index + 1]]
    planes = [DECODERS[mode](coded, n) for mode, coded in split_block(payload, n, head.width)]
    raw = join_planes(planes, head.by_byte)
    if head.checksums is not None:
        must(checksum(raw) == head.checksums[index], "checksum of a block")
    return raw


# --- Element layout ------------------------------------------------------------------------------


def join_planes(planes: list[bytes], by_byte: bool) -> bytes:
    bits = 8 * len(planes)
    items = np.zeros(len(planes[0]), np.uint64)
    for plane in planes:  # the most significant first
        items = items << np.uint64(8) | np.frombuffer(plane, np.uint8)
    if not by_byte:
        items = items >> np.uint64(1) | (items & np.uint64(1)) << np.uint64(bits - 1)
    return items.astype(f"<u{len(planes)}").tobytes()


# --- Block ---------------------------------------------------------------------------------------


def split_block(block: bytes, n: int, width: int) -> list[tuple[int, bytes]]:
    """Return mode and payload of every plane, the most significant first."""
    reader = Reader(block)
    modes = list(reader.take(width))
    must(all(mode in DECODERS for mode in modes), "unknown mode")
    uncoded = {STORED: n, CONSTANT: 1}
    sizes = [uncoded[mode] if mode in uncoded else reader.number(4) for mode in modes]
    payloads = [reader.take(size) for size in reversed(sizes)][::-1]
    must(reader.left == 0, "payloads do not fill the block")
    return list(zip(modes, payloads, strict=True))


def decode_stored(payload: bytes, n: int) -> bytes:
    return payload


def decode_constant(payload: bytes, n: int) -> bytes:
    return payload * n


def decode_zstandard(payload: bytes, n: int) -> bytes:
    size, end = zstandard_extent(Reader(payload))
    must(size == n, "Zstandard content size")
    must(end == len(payload), "more than one Zstandard frame")
    try:
        plane = numcodecs.zstd.decompress(payload)
    except RuntimeError as error:
        raise FormatError(f"Zstandard: {error}") from None
    must(len(plane) == n, "Zstandard content size")
    return bytes(plane)


def zstandard_extent(reader: Reader) -> tuple[int | None, int]:
    """Return content size and end of a Zstandard frame, from its headers (RFC 8878, 3.1.1)."""
    must(reader.take(4) == b"\x28\xb5\x2f\xfd", "no Zstandard frame")
    descriptor = reader.number(1)
    single_segment = descriptor >> 5 & 1
    reader.take(1 - single_segment)  # window size
    reader.take([0, 1, 2, 4][descriptor & 3])  # dictionary
    width = [single_segment, 2, 4, 8][descriptor >> 6]
    size = reader.number(width) + (256 if width == 2 else 0) if width else None
    last = False
    while not last:
        block = reader.number(3)
        last, kind = bool(block & 1), block >> 1 & 3
        reader.take(1 if kind == 1 else block >> 3)
    reader.take(4 if descriptor & 4 else 0)
    return size, reader.at


# --- Interleaved rANS ----------------------------------------------------------------------------


def rans_places(groups: int, symbols: int) -> np.ndarray:
    """Return the place of every lane's (first) symbol among those of a step."""
    lane = np.arange(32)
    place = np.where(lane < 16, 2 * lane, 2 * (lane - 16) + 1)
    return (np.arange(groups)[:, None] * symbols + place).ravel()


def rans_steps(reader: Reader, groups: int, n_steps: int, decode_step) -> None:
    """Run all steps; `decode_step` takes the step's number and the states, and returns new ones."""
    n_words = reader.number(4)
    x = np.frombuffer(reader.take(32 * groups * 4), "<u4").astype(np.int64)
    must((x >= LOWEST_STATE).all(), "a first state is too small")
    words = np.frombuffer(reader.take(2 * n_words), "<u2").astype(np.int64)
    used = 0
    for step in range(n_steps):
        x = decode_step(step, x)
        needy = x < LOWEST_STATE
        fresh = words[used : used + needy.sum()]
        must(len(fresh) == needy.sum(), "the words end before the symbols do")
        x[needy] = (x[needy] << 16) + fresh
        used += len(fresh)
    must(used == n_words, "words are left over")
    must((x == LOWEST_STATE).all(), "a last state is not 2^16")


def owners(frequencies: np.ndarray) -> np.ndarray:
    """Return the entry that owns each slot."""
    return np.repeat(np.arange(len(frequencies)), frequencies)


def decode_rans_pairs(payload: bytes, n: int) -> bytes:
    reader = Reader(payload)
    head = reader.number(1)
    n_entries, groups, has_escape = (head & 15) + 1, 1 << (head >> 4 & 3), bool(head >> 6 & 1)
    must(head >> 7 == 0, "bit 7 of a pairs table is set")
    must(n_entries >= 2, "a pairs table has one entry")
    must(groups <= 4, "log2 G is above 2")
    f = np.frombuffer(reader.take(n_entries), np.uint8).astype(np.int64)
    entries = np.frombuffer(reader.take(n_entries), np.uint8)
    must((f > 0).all() and f.sum() == 256, "pairs frequencies")
    c = np.cumsum(f) - f
    behind_first = c[c % 16 > 0] // 16
    must((np.bincount(behind_first, minlength=16)[:15] <= 1).all(), "two entries begin in a bucket")
    own = entries[: n_entries - has_escape].tolist()
    must(len(set(own)) == len(own), "two entries with the same symbol")
    must(not has_escape or entries[-1] == 0, "the escape's byte is not 0")

    owner = owners(f)
    place = rans_places(groups, 64)
    n_steps = n // (64 * groups)
    found = np.empty((n_steps, 64 * groups), np.intp)  # entries, not yet symbols

    def decode_step(step: int, x: np.ndarray) -> np.ndarray:
        a, b = x % 256, x // 256 % 256
        i, j = owner[a], owner[b]
        found[step, place] = i
        found[step, place + 32] = j
        return f[i] * f[j] * (x >> 16) + f[i] * (b - c[j]) + (a - c[i])

    rans_steps(reader, groups, n_steps, decode_step)
    escaped = (found.ravel() == n_entries - 1) & has_escape
    symbols = entries[found.ravel()]
    remainder = n % (64 * groups)
    escapes = np.frombuffer(reader.take(max(reader.left - remainder, 0)), np.uint8)
    must(len(escapes) == escaped.sum(), "number of escapes")
    symbols[escaped] = escapes
    return symbols.tobytes() + reader.take(remainder)


def decode_rans_wide(payload: bytes, n: int) -> bytes:
    reader = Reader(payload)
    head = reader.number(1)
    must(head >> 2 == 0, "bits 2-7 of a wide table are set")
    must(head < 3, "log2 G is above 2")
    groups = 1 << head
    occurs = np.unpackbits(np.frombuffer(reader.take(32), np.uint8), bitorder="little")
    alphabet = np.flatnonzero(occurs).astype(np.uint8)
    f = np.array([wide_frequency(reader) for _ in alphabet], np.int64)
    must(len(alphabet) >= 2, "fewer than two symbols occur")
    must(f.sum() == 4096, "wide frequencies")
    c = np.cumsum(f) - f

    owner = owners(f)
    place = rans_places(groups, 32)
    n_steps = n // (32 * groups)
    symbols = np.empty((n_steps, 32 * groups), np.uint8)

    def decode_step(step: int, x: np.ndarray) -> np.ndarray:
        a = x % 4096
        s = owner[a]
        symbols[step, place] = alphabet[s]
        return f[s] * (x >> 12) + (a - c[s])

    rans_steps(reader, groups, n_steps, decode_step)
    must(reader.left == n % (32 * groups), "size of the remainder")
    return symbols.tobytes() + reader.take(reader.left)


def wide_frequency(reader: Reader) -> int:
    less_1 = reader.number(1)
    if less_1 >= 128:
        less_1 += 128 * (reader.number(1) - 1)
        must(less_1 >= 128, "a frequency in two bytes that fits in one")
    return less_1 + 1


# --- Checksum ------------------------------------------------------------------------------------

M64 = (1 << 64) - 1


def rotate_left(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & M64


def checksum(data: bytes) -> int:
    padded = data + bytes(-len(data) % 128)
    a, c = np.zeros((2, 16), np.uint64)
    for v in np.frombuffer(padded, "<u8").reshape(-1, 16):
        a = a + v
        c = (c << np.uint64(23) | c >> np.uint64(41)) + a
    h = len(data)
    for z in np.stack([a, c], axis=1).ravel().tolist():
        h = rotate_left(h ^ z, 29) * 0x9E3779B97F4A7C15 & M64
    return (h ^ h >> 32) & 0xFFFFFFFF


DECODERS = {
    STORED: decode_stored,
    CONSTANT: decode_constant,
    RANS_PAIRS: decode_rans_pairs,
    RANS_WIDE: decode_rans_wide,
    ZSTANDARD: decode_zstandard,
}
