"""The planes of the reference decoder: one function for every mode of docs/format.md."""

from __future__ import annotations

import numcodecs.zstd
import numpy as np

STORED, CONSTANT, HUFFMAN, RANS_PAIRS, RANS_WIDE, ZSTANDARD, SCALE, JOINED, TILES = range(9)
SAME, DIFFERENCE, SPARSE, GRID = 9, 10, 11, 12
LOWEST_STATE = 1 << 16


class FormatError(ValueError):
    """The data are not a frame of this format."""


class TruncatedFrame(FormatError):
    """The data end before the frame does."""


class UnknownVersion(FormatError):
    """The frame has another format version."""


class OtherBase(FormatError):
    """The base is not this frame's, or there is none."""


def must(condition: bool | np.bool_, otherwise: str) -> None:
    if not condition:
        raise FormatError(otherwise)


class Reader:
    """Reads fields from the front of some bytes."""

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


# --- Element layout ------------------------------------------------------------------------------


def join_planes(planes: list[bytes], by_byte: bool) -> bytes:
    bits = 8 * len(planes)
    items = np.zeros(len(planes[0]), np.uint64)
    for plane in planes:  # the most significant first
        items = items << np.uint64(8) | np.frombuffer(plane, np.uint8)
    if not by_byte:
        items = items >> np.uint64(1) | (items & np.uint64(1)) << np.uint64(bits - 1)
    return items.astype(f"<u{len(planes)}").tobytes()


# --- Modes without tables ------------------------------------------------------------------------


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


# --- Huffman plane -------------------------------------------------------------------------------


def decode_huffman(payload: bytes, n: int) -> bytes:
    reader = Reader(payload)
    lengths = huffman_lengths(reader)
    counts = huffman_counts(n)
    sizes = [reader.number(huffman_size_width(counts)) for _ in counts[:-1]]
    streams = [reader.take(size) for size in sizes] + [reader.take(reader.left)]
    symbol_of = dict(zip(huffman_codes(lengths), huffman_order(lengths), strict=True))
    return b"".join(
        huffman_stream(stream, count, symbol_of)
        for stream, count in zip(streams, counts, strict=True)
    )


def huffman_counts(n: int) -> list[int]:
    """Return how many symbols each stream codes."""
    streams = 1 if n < 4096 else 8
    return [n // streams] * (streams - 1) + [n - n // streams * (streams - 1)]


def huffman_size_width(counts: list[int]) -> int:
    return 2 if 11 * counts[-1] // 8 < 65535 else 4


def huffman_lengths(reader: Reader) -> dict[int, int]:
    """Read code lengths until the code is complete."""
    nibbles: list[int] = []  # of the last byte, those not used yet

    def nibble() -> int:
        if not nibbles:
            byte = reader.number(1)
            nibbles.extend([byte & 15, byte >> 4])
        return nibbles.pop()

    lengths: dict[int, int] = {}
    symbol, space = 0, 0  # space in units of 2^-11
    while space < 2048:
        length = nibble()
        must(length <= 11 or length == 15, "a reserved nibble")
        if 1 <= length <= 11:
            lengths[symbol] = length
            space += 2048 >> length
        symbol += 1 if length < 15 else 16 * nibble() + nibble() + 1
        must(symbol <= 256, "more than 256 symbols")
    must(space == 2048, "lengths exceed the code space")
    must(nibbles in ([], [0]), "the nibble that is left is not 0")
    return lengths


def huffman_order(lengths: dict[int, int]) -> list[int]:
    return sorted(lengths, key=lambda symbol: (lengths[symbol], symbol))


def huffman_codes(lengths: dict[int, int]) -> list[str]:
    """Return the codes, as text of zeros and ones, in their order."""
    codes: list[str] = []
    for symbol in huffman_order(lengths):
        code = int(codes[-1], 2) + 1 if codes else 0
        width = len(codes[-1]) if codes else lengths[symbol]
        codes.append(f"{code << lengths[symbol] - width:0{lengths[symbol]}b}")
    return codes


def huffman_stream(data: bytes, count: int, symbol_of: dict[str, int]) -> bytes:
    must(data[-1:] not in (b"", b"\0"), "a stream without its mark")
    bits = f"{int.from_bytes(data, 'little'):b}"[1:]
    symbols, at = bytearray(), 0
    for _ in range(count):
        end = at + 1
        while bits[at:end] not in symbol_of:
            must(end < len(bits), "a stream ends before its first symbol")
            end += 1
        symbols.append(symbol_of[bits[at:end]])
        at = end
    must(at == len(bits), "a stream has bits before its first symbol")
    return bytes(symbols[::-1])


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


# --- Sparse plane --------------------------------------------------------------------------------


def decode_sparse(payload: bytes, first: bytes) -> bytes:
    """Decode a plane whose items have the symbols `first` in plane 0."""
    reader, n = Reader(payload), len(first)
    z, v, flags, c, e = (reader.number(width) for width in (1, 1, 1, 4, 4))
    must(flags <= 1, "an unknown flag of a sparse plane")
    must(not (flags and v & 1), "bit 0 of v is set, and zeros have sign bits")
    is_zero = np.frombuffer(first, np.uint8) == z
    must(1 <= c <= n, "the number of zeros is out of range")
    symbols = reader.take(n - c)
    packed = np.frombuffer(reader.take(-(-c // 8) if flags else 0), np.uint8)
    signs = np.unpackbits(packed, bitorder="little")
    must(not signs[c:].any(), "bits after the last sign bit")
    must(reader.left == 5 * e, "number of exceptions")
    must(is_zero.sum() == c, "number of zeros")
    plane = np.full(n, v, np.uint8)
    plane[~is_zero] = np.frombuffer(symbols, np.uint8)
    if flags:
        plane[is_zero] += signs[:c]
    least = 0
    for _ in range(e):
        item, symbol = reader.number(4), reader.number(1)
        must(least <= item < n, "exceptions that do not ascend")
        must(is_zero[item] and plane[item] == v, "an exception that is no zero without a sign")
        must(symbol not in (v, v + flags), "an exception that is none")
        plane[item] = symbol
        least = item + 1
    return plane.tobytes()


DECODERS = {
    STORED: decode_stored,
    CONSTANT: decode_constant,
    HUFFMAN: decode_huffman,
    RANS_PAIRS: decode_rans_pairs,
    RANS_WIDE: decode_rans_wide,
    ZSTANDARD: decode_zstandard,
}
