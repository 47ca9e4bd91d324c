"""The planes of the reference decoder: one function for every mode of docs/format.md."""

from __future__ import annotations

import numcodecs.zstd
import numpy as np

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
    streams = reader.number(1)
    must(streams == (1 if n < 4096 else 8), "number of streams")
    lengths = huffman_lengths(reader)
    counts = [n // streams] * (streams - 1)
    counts.append(n - sum(counts))
    size_width = 2 if -(-counts[-1] * 12 // 8) < 1 << 16 else 4
    sizes = [reader.number(size_width) for _ in counts[:-1]]
    parts = [reader.take(size) for size in sizes] + [reader.take(reader.left)]
    window = huffman_window(lengths)
    return b"".join(
        huffman_stream(p, count, window) for p, count in zip(parts, counts, strict=True)
    )


def huffman_lengths(reader: Reader) -> dict[int, int]:
    """Read code lengths, as nibbles, until they fill the code space."""
    nibbles: list[int] = []  # of the last byte, those that were not used yet

    def nibble() -> int:
        if not nibbles:
            byte = reader.number(1)
            nibbles.extend([byte & 15, byte >> 4])
        return nibbles.pop()

    lengths: dict[int, int] = {}
    symbol, space = 0, 0
    while space < 4096:
        length = nibble()
        must(length <= 12 or length == 15, "no such code length")
        if 1 <= length <= 12:
            lengths[symbol] = length
            space += 4096 >> length
        symbol += 1 if length < 15 else 16 * nibble() + nibble() + 1
        must(symbol <= 256, "more than 256 symbols")
    must(space == 4096, "lengths exceed the code space")
    must(nibbles in ([], [0]), "the nibble that is left is not 0")
    return lengths


def huffman_window(lengths: dict[int, int]) -> list[tuple[int, int]]:
    """Return symbol and code length by the next 12 bits."""
    order = sorted(lengths, key=lambda symbol: (lengths[symbol], symbol))
    return [entry for s in order for entry in [(s, lengths[s])] * (4096 >> lengths[s])]


def huffman_stream(data: bytes, count: int, window: list[tuple[int, int]]) -> bytes:
    padded = data + bytes(3)
    symbols, bit = bytearray(), 0
    for _ in range(count):
        three = int.from_bytes(padded[bit >> 3 : (bit >> 3) + 3], "big")
        symbol, length = window[three >> (12 - (bit & 7)) & 4095]
        symbols.append(symbol)
        bit += length
        must(bit <= 8 * len(data), "a stream ends before its last symbol")
    rest = int.from_bytes(data[bit >> 3 :], "big")
    must(-(-bit // 8) == len(data), "a stream goes on behind its last symbol")
    must(bit % 8 == 0 or rest & (1 << (8 - bit % 8)) - 1 == 0, "padding of a stream is not 0")
    return bytes(symbols)


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


DECODERS = {
    STORED: decode_stored,
    CONSTANT: decode_constant,
    HUFFMAN: decode_huffman,
    RANS_PAIRS: decode_rans_pairs,
    RANS_WIDE: decode_rans_wide,
    ZSTANDARD: decode_zstandard,
}
