"""Makes payloads of single planes with any tables that a test gives."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np

from reference_planes import (
    LOWEST_STATE,
    huffman_codes,
    huffman_counts,
    huffman_order,
    huffman_size_width,
    rans_places,
)

# --- rANS ----------------------------------------------------------------------------------------


def _rans_body(states: Iterable[int], words: list[int], escapes: bytes, rest: bytes) -> bytes:
    states = list(states)
    return (
        struct.pack("<I", len(words))
        + struct.pack(f"<{len(states)}I", *states)
        + struct.pack(f"<{len(words)}H", *reversed(words))
        + escapes
        + rest
    )


def pairs_table(
    frequencies: Sequence[int],
    symbols: Sequence[int],
    *,
    log2_groups: int = 0,
    escape: bool = False,
) -> bytes:
    head = len(frequencies) - 1 | log2_groups << 4 | escape << 6
    return bytes([head, *frequencies, *symbols])


def pairs_payload(
    plane: bytes,
    frequencies: Sequence[int],
    symbols: Sequence[int],
    *,
    log2_groups: int = 0,
    escape: bool = False,
) -> bytes:
    """Code a plane in the mode "rANS, pairs"; with `escape` the last entry is the escape."""
    f = list(frequencies)
    c = [sum(f[:j]) for j in range(len(f))]
    named = list(symbols[: len(symbols) - escape])
    entry = {symbol: j for j, symbol in enumerate(named)}
    groups = 1 << log2_groups
    size = 64 * groups
    places = rans_places(groups, 64).tolist()
    states, words = [LOWEST_STATE] * (32 * groups), []
    whole = len(plane) - len(plane) % size
    for start in reversed(range(0, whole, size)):
        step = plane[start : start + size]
        for lane in reversed(range(32 * groups)):
            i = entry.get(step[places[lane]], len(f) - 1)
            j = entry.get(step[places[lane] + 32], len(f) - 1)
            x, product = states[lane], f[i] * f[j]
            if x >> 16 >= product:
                words.append(x & 0xFFFF)
                x >>= 16
            q, r = divmod(x, product)
            states[lane] = (q << 16) + (c[j] + r // f[i] << 8) + c[i] + r % f[i]
    escapes = bytes(s for s in plane[:whole] if s not in entry)
    table = pairs_table(frequencies, symbols, log2_groups=log2_groups, escape=escape)
    return table + _rans_body(states, words, escapes, plane[whole:])


def wide_table(frequencies: dict[int, int], *, log2_groups: int = 0) -> bytes:
    bitmap = np.zeros(256, np.uint8)
    bitmap[list(frequencies)] = 1
    table = bytes([log2_groups]) + np.packbits(bitmap, bitorder="little").tobytes()
    for _, f in sorted(frequencies.items()):
        less_1 = f - 1
        table += bytes([less_1] if less_1 < 128 else [128 + less_1 % 128, less_1 // 128])
    return table


def wide_payload(plane: bytes, frequencies: dict[int, int], *, log2_groups: int = 0) -> bytes:
    """Code a plane in the mode "rANS, wide"."""
    ordered = sorted(frequencies)
    c = {s: sum(frequencies[t] for t in ordered if t < s) for s in ordered}
    groups = 1 << log2_groups
    size = 32 * groups
    places = rans_places(groups, 32).tolist()
    states, words = [LOWEST_STATE] * size, []
    whole = len(plane) - len(plane) % size
    for start in reversed(range(0, whole, size)):
        step = plane[start : start + size]
        for lane in reversed(range(size)):
            s = step[places[lane]]
            x, f = states[lane], frequencies[s]
            if x >> 20 >= f:
                words.append(x & 0xFFFF)
                x >>= 16
            states[lane] = (x // f << 12) + c[s] + x % f
    table = wide_table(frequencies, log2_groups=log2_groups)
    return table + _rans_body(states, words, b"", plane[whole:])


# --- Zstandard -----------------------------------------------------------------------------------


def zstandard_runs(content_size: int | None, *runs: tuple[int, int]) -> bytes:
    """Return a Zstandard frame of repeated bytes that claims any content size.

    A run is a byte and a count of at most 2^17, and takes four bytes: such frames are bombs.
    """
    if content_size is None:
        head = b"\x00\x38"  # no content size; a window of 128 KiB
    else:
        head = b"\xc0\x38" + content_size.to_bytes(8, "little")
    blocks = b"".join(
        (count << 3 | 1 << 1 | (index == len(runs) - 1)).to_bytes(3, "little") + bytes([byte])
        for index, (byte, count) in enumerate(runs)
    )
    return b"\x28\xb5\x2f\xfd" + head + blocks


# --- Huffman -------------------------------------------------------------------------------------


def huffman_table(lengths: dict[int, int]) -> bytes:
    """Return the code table; symbols between two codes become a run, however few they are."""
    nibbles, symbol = [], 0
    for s in sorted(lengths):
        if s > symbol:
            nibbles += [15, (s - symbol - 1) >> 4, (s - symbol - 1) & 15]
        nibbles.append(lengths[s])
        symbol = s + 1
    nibbles += [0] * (len(nibbles) % 2)
    return bytes(high << 4 | low for high, low in zip(nibbles[::2], nibbles[1::2], strict=True))


def huffman_stream(symbols: bytes, lengths: dict[int, int]) -> bytes:
    code_of = dict(zip(huffman_order(lengths), huffman_codes(lengths), strict=True))
    bits = "1" + "".join(code_of[s] for s in reversed(symbols))
    return int(bits, 2).to_bytes(-(-len(bits) // 8), "little")


def huffman_payload(plane: bytes, lengths: dict[int, int], table: bytes | None = None) -> bytes:
    """Code a plane in the mode "Huffman"; `table` replaces the table of these lengths."""
    counts = huffman_counts(len(plane))
    starts = [sum(counts[:k]) for k in range(len(counts))]
    streams = [
        huffman_stream(plane[start : start + count], lengths)
        for start, count in zip(starts, counts, strict=True)
    ]
    width = huffman_size_width(counts)
    sizes = b"".join(len(stream).to_bytes(width, "little") for stream in streams[:-1])
    return (huffman_table(lengths) if table is None else table) + sizes + b"".join(streams)
