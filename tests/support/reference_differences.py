"""Differences to a base of the reference decoder, written from docs/format_differences.md alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from reference_checksum import checksum, digest
from reference_difference_model import (
    ESCAPE,
    FIRST,
    WIDTHS,
    DifferenceSection,
    ItemClass,
    exponent_of,
    item_of,
    read_difference_model,
    slots_of,
)
from reference_model import Section
from reference_planes import LOWEST_STATE, OtherBase, Reader, must, rans_places
from reference_tile_tables import TOTAL
from reference_tiles import LANES, TileSection, read_states, read_tile_model, tile_scales

SPAN = 1 << 19  # of a base, that has a digest of its own
OUTSIDE = -1  # the parent of a version whose base is not in the frame
NO_PARENT = 65535
NO_MODEL, DIFFERENCE_MODEL, TILE_MODEL = range(3)  # kinds

# --- Versions and the base field -----------------------------------------------------------------


@dataclass(frozen=True)
class Version:
    """The models and parent with which a version's blocks are decoded; it has at most one model."""

    parent: int | None = None
    scale: list[Section] | None = None
    tiles: list[TileSection] | None = None
    differences: list[DifferenceSection] | None = None

    @property
    def has_base(self) -> bool:
        return self.parent is not None


@dataclass(frozen=True)
class BaseField:
    versions: int
    digest: int

    @property
    def is_outside(self) -> bool:
        return self.versions == 1


def read_base_field(reader: Reader) -> BaseField:
    begin = reader.at
    versions, zero, expected = (reader.number(width) for width in (2, 2, 8))
    must(reader.number(4) == checksum(reader.data[begin : begin + 12]), "checksum of the base")
    must(1 <= versions < NO_PARENT, "no versions, or too many")
    must(zero == 0, "a part of the base field that is not zero")
    must(versions == 1 or expected == 0, "the digest of a base that is in the frame")
    return BaseField(versions, expected)


def read_versions(versions: int, model: bytes | None, dtype: int, n_items: int) -> list[Version]:
    """Read the models of versions, of `n_items` each."""
    reader = Reader(model or b"")
    if versions == 1:
        if model is None:
            return [Version(OUTSIDE)]
        kind = reader.number(1)
        must(kind != NO_MODEL, "a model of no kind")
        return [read_version(OUTSIDE, kind, reader.take(reader.left), dtype, n_items)]
    must(model is not None, "versions without a model")
    entries = [[reader.number(width) for width in (2, 1, 4)] for _ in range(versions)]
    found = []
    for v, (parent, kind, size) in enumerate(entries):
        must(parent == NO_PARENT or parent < v, "a parent that is no earlier version")
        own = None if parent == NO_PARENT else parent
        found.append(read_version(own, kind, reader.take(size), dtype, n_items))
    must(reader.left == 0, "models do not fill the model")
    return found


def read_version(parent: int | None, kind: int, side: bytes, dtype: int, n_items: int) -> Version:
    must(kind in (NO_MODEL, DIFFERENCE_MODEL, TILE_MODEL), "an unknown kind of model")
    if kind == NO_MODEL:
        must(not side, "a model of no kind")
        return Version(parent)
    if kind == TILE_MODEL:
        return Version(parent, tiles=read_tile_model(side, dtype, n_items))
    must(parent is not None, "a difference model without a base")
    return Version(parent, differences=read_difference_model(side, dtype, n_items))


# --- The base ------------------------------------------------------------------------------------


def blocks_of(base: bytes, block_size: int, width: int) -> list[bytes]:
    """Return the bytes of each block; those after the last whole item are in none."""
    end = len(base) - len(base) % width
    return [base[at : min(at + block_size, end)] for at in range(0, end, block_size)]


def digest_of_base(base: bytes) -> int:
    spans = [base[i : i + SPAN] for i in range(0, len(base), SPAN)]
    return digest(b"".join(digest(span).to_bytes(8, "little") for span in spans))


def check_base(base: bytes | None, raw_size: int, expected: int) -> bytes:
    """Return the base if it is the frame's."""
    if base is None:
        raise OtherBase("a frame of differences without its base")
    if len(base) != raw_size or digest_of_base(base) != expected:
        raise OtherBase("another base")
    return base


def check_base_block(block: bytes, expected: int) -> None:
    if checksum(block) != expected:
        raise OtherBase("another block of the base")


# --- Payload of a block --------------------------------------------------------------------------


@dataclass
class DifferencePayload:
    rows: bytes
    groups: int
    states: list[int]
    escapes: list[int]
    rest: list[int]
    words: list[int] = field(repr=False)


def coded_items(n: int, groups: int) -> int:
    """Return the number m of the items of a block that lanes code."""
    return n - n % (LANES * groups)


def read_payload(payload: bytes, width: int, n: int) -> DifferencePayload:
    reader = Reader(payload)
    rows = reader.take(reader.number(2))
    head = reader.number(1)
    must(head < 3, "log2 G is above 2, or one of bits 2-7 is set")
    groups = 1 << head
    m = coded_items(n, groups)
    must(m > 0, "a block too short for its lanes")
    n_escapes = reader.number(4)
    states = read_states(reader, groups)
    must(n_escapes * width <= reader.left, "more escapes than bytes")
    escapes = [reader.number(width) for _ in range(n_escapes)]
    rest = [reader.number(width) for _ in range(n - m)]
    must(reader.left % 2 == 0, "words of an odd number of bytes")
    words = [reader.number(2) for _ in range(reader.left // 2)]
    return DifferencePayload(rows, groups, states, escapes, rest, words)


# --- Blocks --------------------------------------------------------------------------------------


def items_from(raw: bytes, width: int) -> list[int]:
    return np.frombuffer(raw, f"<u{width}").tolist()


def bytes_from(items: list[int], width: int) -> bytes:
    return np.array(items, f"<u{width}").tobytes()


def low_numbers(planes: list[bytes], n: int) -> list[int]:
    """Return the numbers whose bytes are in the planes, the most significant first."""
    lows = [0] * n
    for plane in planes:
        lows = [low << 8 | byte for low, byte in zip(lows, plane, strict=True)]
    return lows


def decode_difference(
    payload: bytes, planes: list[bytes], section: DifferenceSection, first: int, base: bytes
) -> bytes:
    """Return the bytes of a block, given its low planes and its base's bytes.

    `first` is the number of its first item in its version.
    """
    width = WIDTHS[section.dtype]
    below = items_from(base, width)
    parts = read_payload(payload, width, len(below))
    m = coded_items(len(below), parts.groups)
    scales = tile_scales(parts.rows, section, first, len(below))[:m]
    classes = [
        section.class_of(scale, exponent_of(b, section.dtype))
        for scale, b in zip(scales, below, strict=False)
    ]
    coded = run_lanes(parts, classes)
    must(coded.count(None) == len(parts.escapes), "the number of escapes")
    escapes, lows = iter(parts.escapes), low_numbers(planes, len(below))
    items = [
        next(escapes)
        if number is None
        else item_of(number, lows[i], below[i], scales[i], classes[i], section)
        for i, number in enumerate(coded)
    ]
    return bytes_from(items + parts.rest, width)


def run_lanes(parts: DifferencePayload, classes: list[ItemClass]) -> list[int | None]:
    """Return the coded number of each item, None for escapes."""
    coded: list[int | None] = [None] * len(classes)
    x, words = list(parts.states), iter(parts.words)
    places = rans_places(1, LANES).tolist()
    for t in range(len(classes) // LANES):
        for lane, place in enumerate(places, start=t % parts.groups * LANES):
            item = t * LANES + place
            own = classes[item]
            j, rank = slots_of(own.f)[x[lane] % TOTAL]
            state = own.f[j] * (x[lane] // TOTAL) + rank
            q = own.q[j]
            if j != ESCAPE:
                coded[item] = (FIRST[j] << own.raw) + state % (1 << q)
            state >>= q
            if state < LOWEST_STATE:
                word = next(words, None)
                must(word is not None, "the words end before the items do")
                state = (state << 16) + word
            x[lane] = state
    must(next(words, None) is None, "words are left over")
    must(all(state == LOWEST_STATE for state in x), "a last state")
    return coded
