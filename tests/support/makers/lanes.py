"""Writes payloads of rANS lanes, which tiles and differences share."""

from __future__ import annotations

from collections.abc import Sequence

from reference_differences import DifferencePayload
from reference_tile_tables import TOTAL
from reference_tiles import TilesPayload


def put(state: int, f: int, n: int, number: int, words: list[int]) -> tuple[int, int]:
    """Put an entry of frequency `f` and its `n` bits into a lane.

    Returns the multiples of all frequencies in the lane's next state, and the rank in the entry's.
    """
    if state >> 20 - n >= f:
        words.append(state % (1 << 16))
        state >>= 16
    quotient, rank = divmod((state << n) + number % (1 << n), f)
    return TOTAL * quotient, rank


def pack_payload(
    parts: TilesPayload | DifferencePayload,
    width: int,
    *,
    row_size: int | None = None,
    head: int | None = None,
    n_escapes: int | None = None,
    unused: int = 0,
    more: bytes = b"",
) -> bytes:
    """Put the fields of a payload together, whose keys or items have `width` bytes.

    The numbers replace what the fields say; `unused` are bits after those of the first states, as
    many as there is room for, and `more` are bytes at the end.
    """
    return b"".join(
        [
            (len(parts.rows) if row_size is None else row_size).to_bytes(2, "little"),
            parts.rows,
            bytes([parts.groups.bit_length() - 1 if head is None else head]),
            (len(parts.escapes) if n_escapes is None else n_escapes).to_bytes(4, "little"),
            pack_states(parts.states, unused),
            parts.records if isinstance(parts, TilesPayload) else b"",
            *((x % (1 << 8 * width)).to_bytes(width, "little") for x in parts.escapes),
            *(x.to_bytes(width, "little") for x in parts.rest),
            *(word.to_bytes(2, "little") for word in parts.words),
            more,
        ]
    )


def n_unused_bits(states: Sequence[int]) -> int:
    return -sum((x >> 16).bit_length() - 1 for x in states) % 8


def pack_states(states: Sequence[int], unused: int = 0) -> bytes:
    lengths = [(x >> 16).bit_length() - 1 for x in states]
    bits, size = 0, 0
    for b, x in zip(lengths, states, strict=True):
        bits |= (x >> 16) % (1 << b) << size
        size += b
    bits |= unused << size
    return b"".join(
        [
            *(bytes([lengths[i] | lengths[i + 1] << 4]) for i in range(0, len(lengths), 2)),
            *((x % (1 << 16)).to_bytes(2, "little") for x in states),
            bits.to_bytes(-(-size // 8), "little"),
        ]
    )
