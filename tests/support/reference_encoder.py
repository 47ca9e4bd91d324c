"""Builds frames by hand: whatever tables, modes and headers a test asks for, broken ones included.

Like the reference decoder it follows docs/format.md and not the native core. It chooses nothing:
callers give frequencies and modes. All checksums are right unless a test sets them otherwise, so
that what lies behind them is reached.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np

from reference_checksum import checksum
from reference_decoder import MAGIC, VERSION, WIDTHS
from reference_planes import (
    CONSTANT,
    JOINED,
    LOWEST_STATE,
    SAME,
    STORED,
    huffman_codes,
    huffman_counts,
    huffman_order,
    huffman_size_width,
    rans_places,
)

BASE_FIELD = 16  # bytes


def frame(
    raw_size: int,
    blocks: Sequence[bytes],
    *,
    codec: int = 3,
    layout: int = 0,
    k: int = 8,
    sums: Sequence[int] | None = None,
    tail: bytes = b"",
    sizes: Sequence[int] | None = None,
    model: bytes | None = None,
    version: int = VERSION,
    base: bytes | None = None,
    base_sums: Sequence[int] | None = None,
) -> bytes:
    """Put blocks into a frame; `sums` are the checksums of the decoded blocks.

    `base` is the base field, and `base_sums` are the checksums of the base's blocks.
    """
    if sizes is None:
        sizes = [len(block) for block in blocks]
    columns = [column for column in (sizes, sums, base_sums) if column is not None]
    table = b"".join(struct.pack(f"<{len(entry)}I", *entry) for entry in zip(*columns, strict=True))
    head = table + tail
    if sums is not None:
        k |= 128
    if base is not None:
        head = base + head
        k |= 32
    if model is not None:
        size = len(model).to_bytes(4, "little")
        head = size + checksum(size).to_bytes(4, "little") + head + model
        k |= 64
    start = MAGIC + bytes([version, codec, layout, k]) + raw_size.to_bytes(8, "little")
    both = struct.pack("<II", checksum(start), checksum(head))
    return start + both + head + b"".join(blocks)


def one_block(block: bytes, n: int, layout: int = 0, k: int = 8) -> bytes:
    """Return a frame without checksums of one block of `n` items."""
    return frame(n * WIDTHS[layout & 15], [block], layout=layout, k=k)


def block(*planes: tuple[int, bytes]) -> bytes:
    """Put planes, the most significant first, each a mode and a payload, into a block."""
    modes = bytes(mode for mode, _ in planes)
    uncoded = (STORED, CONSTANT, JOINED, SAME)
    coded = [len(payload) for mode, payload in planes if mode not in uncoded]
    sizes = struct.pack(f"<{len(coded)}I", *coded)
    return modes + sizes + b"".join(payload for _, payload in reversed(planes))


def head_sizes(data: bytes) -> tuple[int, int, int, int]:
    """Return where the block table begins, its entries' size and number, and the head's size.

    For frames that may be damaged: no field is checked.
    """
    width = WIDTHS[min(data[6] & 15, len(WIDTHS) - 1)]
    raw_size = int.from_bytes(data[8:16], "little")
    at, model = (32, int.from_bytes(data[24:28], "little")) if data[7] & 64 else (24, 0)
    versions, has_base = 1, bool(data[7] & 32)
    if has_base:
        versions = max(1, int.from_bytes(data[at : at + 2], "little"))
        at += BASE_FIELD
    n_blocks = versions * -(-(raw_size // width // versions) >> (data[7] & 31))
    entry = 4 * (1 + (data[7] >> 7) + (has_base and versions == 1))
    return at, entry, n_blocks, at + n_blocks * entry + raw_size % width + model


def repaired(data: bytes) -> bytes:
    """Return a damaged frame with valid checksums of header and head, if it is long enough."""
    data = bytearray(data)
    if len(data) < 24:
        return bytes(data)
    data[16:20] = checksum(bytes(data[:16])).to_bytes(4, "little")
    if data[7] & 64 and len(data) >= 32:
        data[28:32] = checksum(bytes(data[24:28])).to_bytes(4, "little")
    table, _, _, size = head_sizes(data)
    if data[7] & 32 and len(data) >= table:
        own = bytes(data[table - BASE_FIELD : table - 4])
        data[table - 4 : table] = checksum(own).to_bytes(4, "little")
    if len(data) >= size:
        data[20:24] = checksum(bytes(data[24:size])).to_bytes(4, "little")
    return bytes(data)


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
    """Return a Zstandard frame of runs of one byte, which claims whatever content size is given.

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
