"""Sparse planes: both decoders read frames made by hand, and refuse what the format forbids."""

from __future__ import annotations

import struct

import numpy as np

from both_decoders import (
    both_agree,
    both_decode,
    both_decode_to_base,
    both_refuse,
    both_refuse_to_base,
    changed_bits,
    evenly,
)
from contents import lcg_bytes
from difference_frames import base_of, near_to, plain_numbers
from looping import for_each
from makers import frames as build
from makers.differences import code_differences, difference_block, write_difference_model
from makers.frames import frame_to_base
from makers.lanes import pack_payload
from makers.planes import huffman_payload, pairs_payload, wide_payload, zstandard_runs
from makers.scale import Numbers, scale_payload, write_model
from makers.tiles import TileNumbers, tiles_payload, write_tile_model
from reference_decoder import WIDTHS, join_planes
from reference_differences import items_from
from reference_planes import (
    CONSTANT,
    HUFFMAN,
    JOINED,
    RANS_PAIRS,
    RANS_WIDE,
    SAME,
    SCALE,
    SPARSE,
    STORED,
    TILES,
    ZSTANDARD,
)
from tile_frames import evenly_among, middle_of, sizes_up_to, tile_keys

N = 640
Z = 9  # the symbol of zeros in plane 0
FIRST = evenly(N, [Z, Z, 10, 11])
LOW = lcg_bytes(N, 5)


def payload_of(
    first: bytes = FIRST,
    low: bytes = LOW,
    *,
    z: int = Z,
    v: int = 0,
    flags: int = 0,
    exceptions: dict[int, int] | None = None,
    c: int | None = None,
    e: int | None = None,
    signs: bytes | None = None,
    more: bytes = b"",
) -> bytes:
    """Return the payload for the symbols `low` of items that are no zeros."""
    is_zero = np.frombuffer(first, np.uint8) == z
    others = np.frombuffer(low, np.uint8)[~is_zero].tobytes()
    found = exceptions or {}
    if signs is None:
        bits = np.frombuffer(low, np.uint8)[is_zero] & 1
        bits[[i in found for i in np.flatnonzero(is_zero)]] = 0
        signs = np.packbits(bits, bitorder="little").tobytes() if flags & 1 else b""
    c = int(is_zero.sum()) if c is None else c
    e = len(found) if e is None else e
    head = bytes([z, v, flags]) + struct.pack("<II", c, e)
    listed = b"".join(struct.pack("<IB", *entry) for entry in found.items())
    return head + others + signs + listed + more


def plane_of(payload: bytes, first: bytes = FIRST, low: bytes = LOW, z: int = Z) -> bytes:
    """Return the symbols that a payload of payload_of() stands for."""
    is_zero = np.frombuffer(first, np.uint8) == z
    plane = np.frombuffer(low, np.uint8).copy()
    plane[is_zero] = payload[1] + (plane[is_zero] & 1) * payload[2]
    at = len(payload) - 5 * int.from_bytes(payload[7:11], "little")
    for item, symbol in struct.iter_unpack("<IB", payload[at:]):
        plane[item] = symbol
    return plane.tobytes()


def sparse_frame(
    payload: bytes, first: tuple[int, bytes] = (STORED, FIRST), n: int = N, **options
) -> bytes:
    block = build.block(first, (SPARSE, payload))
    return build.frame(2 * n, [block], **{"k": 22 - 1, "version": 2, **options})


ZEROS = [i for i, symbol in enumerate(FIRST) if symbol == Z]
OTHERS = [i for i, symbol in enumerate(FIRST) if symbol != Z]
GOOD = {
    "plain": {},
    "another v": {"v": 131},
    "signs": {"flags": 1},
    "signs of another v": {"flags": 1, "v": 130},
    "exceptions": {"exceptions": {ZEROS[0]: 7, ZEROS[5]: 1, ZEROS[6]: 255, ZEROS[-1]: 2}},
    "exceptions and signs": {"flags": 1, "exceptions": {ZEROS[3]: 7, ZEROS[4]: 255, ZEROS[-1]: 2}},
    "every zero an exception": {"exceptions": dict.fromkeys(ZEROS, 8)},
}


@for_each("name", GOOD)
def test_payloads_of_every_form(name):
    payload = payload_of(**GOOD[name])
    expected = join_planes([FIRST, plane_of(payload)], by_byte=False)
    assert both_decode(sparse_frame(payload)) == expected


@for_each("n", [1, 2, 7, 8, 63, 64, 65, 511, 4095, 4096, 4097, 4224, 9001, 40_000])
@for_each("flags", [0, 1])
def test_sizes_around_vectors_and_strips(n, flags):
    for symbols in ([Z], [Z, Z, 10, 11], [Z, *[10] * 15], [*[Z] * 30, 10]):
        first, low = evenly(n, symbols), lcg_bytes(n, 6)
        if Z not in first:
            continue
        exceptions = {i: 6 for i, s in enumerate(first) if s == Z and i % 97 == 1}
        payload = payload_of(first, low, flags=flags, exceptions=exceptions)
        expected = join_planes([first, plane_of(payload, first, low)], by_byte=False)
        assert both_decode(sparse_frame(payload, (STORED, first), n)) == expected


def first_planes(n: int) -> dict[int, tuple[bytes, bytes]]:
    """Return the payloads of a plane 0 in every mode, and its symbols."""
    plane = evenly(n, [Z, Z, 10, 11])
    runs = bytes([Z]) * (n // 2) + b"\5" * (n - n // 2)
    return {
        STORED: (plane, plane),
        CONSTANT: (bytes([Z]), bytes([Z]) * n),
        HUFFMAN: (huffman_payload(plane, {Z: 1, 10: 2, 11: 2}), plane),
        RANS_PAIRS: (pairs_payload(plane, [128, 64, 64], [Z, 10, 11]), plane),
        RANS_WIDE: (wide_payload(plane, {Z: 2000, 10: 1000, 11: 1096}), plane),
        ZSTANDARD: (zstandard_runs(n, (Z, n // 2), (5, n - n // 2)), runs),
    }


@for_each("dtype", [0, 1, 2, 3])
def test_every_mode_of_plane_0_and_all_other_planes(dtype):
    width, n = WIDTHS[dtype], 1003
    low = lcg_bytes(n, 3)
    for mode, (coded, first) in first_planes(n).items():
        payloads = [payload_of(first, low, v=p % 2 * 4, flags=p % 2) for p in range(1, width)]
        for is_sparse in (255, 0b10101010, 0b01010100):
            planes, symbols = [(mode, coded)], [first]
            for p, payload in enumerate(payloads, 1):
                if is_sparse >> p & 1:
                    planes.append((SPARSE, payload))
                    symbols.append(plane_of(payload, first, low))
                else:
                    planes.append((STORED, low))
                    symbols.append(low)
            block = build.block(*planes)
            frame = build.frame(width * n, [block], layout=dtype, k=12, version=2)
            assert both_decode(frame) == join_planes(symbols, by_byte=False)


def tiles_frame(modes: tuple[int, int], payload: bytes, n: int) -> bytes:
    sizes = sizes_up_to(3, 128, 240)
    numbers = TileNumbers(
        base=middle_of(2), lo=128, hi=240, escape=50, tables=[evenly_among(sizes, 50)]
    )
    coded = tiles_payload(tile_keys(n, 2), numbers.section(2))
    planes = [(TILES, coded), (JOINED, b"")]
    planes += [(mode, {SPARSE: payload, STORED: bytes(n)}[mode]) for mode in modes]
    model = write_tile_model([numbers])
    return build.frame(4 * n, [build.block(*planes)], layout=2, k=15, model=model, version=2)


def test_planes_over_tiles():
    n, keys = 203, tile_keys(203, 2)
    first, second = bytes(key >> 8 for key in keys), bytes(key & 255 for key in keys)
    z, low = max(first, key=first.count), lcg_bytes(n, 8)
    payload = payload_of(first, low, z=z, flags=1)
    plane = plane_of(payload, first, low, z)
    for modes, planes in (
        ((SPARSE, SPARSE), [plane, plane]),
        ((STORED, SPARSE), [bytes(n), plane]),
        ((SPARSE, STORED), [plane, bytes(n)]),
    ):
        expected = join_planes([first, second, *planes], by_byte=False)
        assert both_decode(tiles_frame(modes, payload, n)) == expected


# --- refused -------------------------------------------------------------------------------------


def refused(payload: bytes) -> None:
    """Check that a payload is refused over a stored and over a coded plane 0."""
    both_refuse(sparse_frame(payload))
    for mode, (coded, _) in first_planes(N).items():
        if mode in (HUFFMAN, RANS_PAIRS):
            both_refuse(sparse_frame(payload, (mode, coded)))


def test_frames_where_no_plane_may_be_sparse():
    payload = payload_of()
    both_decode(sparse_frame(payload))
    both_refuse(sparse_frame(payload, version=1))
    both_refuse(sparse_frame(payload, layout=16))
    for layout in (0, 4):
        block = build.block((SPARSE, payload), (STORED, LOW))
        block = block if layout == 0 else build.block((SPARSE, payload))
        both_refuse(build.frame(N * WIDTHS[layout], [block], layout=layout, k=12, version=2))
    block = build.block((SPARSE, payload), (SPARSE, payload))
    both_refuse(build.frame(2 * N, [block], k=12, version=2))


def test_sparse_planes_over_modes_without_symbols():
    payload = payload_of()
    for first, second in ((SAME, JOINED), (JOINED, JOINED)):
        planes = [(first, b""), (second, b""), (SPARSE, payload), (STORED, LOW)]
        both_refuse(build.frame(4 * N, [build.block(*planes)], layout=2, k=12, version=2))
    both_refuse(sparse_frame(payload, (SAME, b"")))
    numbers, keys = Numbers(), tile_keys(N, 2)
    coded = scale_payload(keys, numbers.section(2), 0, b"\0\0")
    planes = [(SCALE, coded), (JOINED, b""), (SPARSE, payload), (STORED, LOW)]
    for version in (1, 2):
        block, model = build.block(*planes), write_model([numbers])
        frame = build.frame(4 * N, [block], layout=2, k=12, model=model, version=version)
        both_refuse(frame)


@for_each("c", [0, 1, len(ZEROS) - 1, len(ZEROS) + 1, N, N + 1, 1 << 31, (1 << 32) - 1])
def test_another_number_of_zeros(c):
    refused(payload_of(c=c))
    # With as many symbols and sign bits as it states.
    for flags in (0, 1):
        if c <= N:
            body = bytes(N - c) + bytes(-(-c // 8) * flags)
            refused(bytes([Z, 0, flags]) + struct.pack("<II", c, 0) + body)


def test_no_zeros_at_all():
    refused(bytes([200, 0, 0]) + bytes(8) + LOW)
    refused(bytes([200, 0, 0]) + struct.pack("<II", 1, 0) + LOW[1:])


def test_unknown_flags_and_symbols_with_a_sign():
    for flags in range(2, 256):
        both_refuse(sparse_frame(payload_of(flags=flags)))
    for v in range(1, 256, 6):
        refused(payload_of(flags=1, v=v))


def test_payloads_of_another_size():
    for options in GOOD.values():
        payload = payload_of(**options)
        for size in (0, 1, 10, 11, len(payload) // 2, len(payload) - 1):
            refused(payload[:size])
        for more in (b"\0", bytes(4), bytes(5), bytes(64)):
            refused(payload + more)
        for e in (1 << 16, 1 << 31, (1 << 32) - 1, 858_993_460):
            refused(payload[:7] + struct.pack("<I", e) + payload[11:])


def test_bits_after_the_last_sign_bit():
    first = bytes([Z]) * 13 + bytes([10]) * (N - 13)
    for bit in range(13, 16):
        signs = (1 << bit).to_bytes(2, "little")
        frame = sparse_frame(payload_of(first, flags=1, signs=signs), (STORED, first))
        both_refuse(frame)
    for bit in range(13):
        signs = (1 << bit).to_bytes(2, "little")
        both_decode(sparse_frame(payload_of(first, flags=1, signs=signs), (STORED, first)))


def listed(*exceptions: tuple[int, int], flags: int = 0, **options) -> bytes:
    """Return a payload with a list of exceptions that need not be one."""
    more = b"".join(struct.pack("<IB", *entry) for entry in exceptions)
    return payload_of(flags=flags, e=len(exceptions), more=more, **options)


def test_exceptions_that_are_none():
    a, b, last = ZEROS[4], ZEROS[9], ZEROS[-1]
    both_decode(sparse_frame(listed((a, 3), (b, 3), (last, 3))))
    for wrong in (
        [(b, 3), (a, 3)],
        [(a, 3), (a, 3)],
        [(a, 3), (a, 5)],
        [(last, 3), (a, 3)],
        [(OTHERS[0], 3)],
        [(a, 3), (OTHERS[-1], 3)],
        [(a, 0)],
        [(N, 3)],
        [(a, 3), ((1 << 32) - 1, 3)],
    ):
        refused(listed(*wrong))
    signs = bytes(-(-len(ZEROS) // 8))
    both_decode(sparse_frame(listed((a, 3), flags=1, signs=signs)))
    for symbol in (0, 1):
        refused(listed((a, symbol), flags=1, signs=signs))
    refused(listed((ZEROS[0], 3), flags=1, signs=b"\1" + signs[1:]))
    both_decode(sparse_frame(listed((ZEROS[1], 3), flags=1, signs=b"\1" + signs[1:])))


def test_the_decoders_agree_on_changed_bits():
    for name in ("signs", "exceptions and signs"):
        for damaged in changed_bits(payload_of(**GOOD[name])):
            both_agree(sparse_frame(damaged))


def test_low_planes_of_differences_are_not_sparse():
    base, numbers = base_of(N, 2), plain_numbers(0, 2, low=1)
    raw, section = near_to(base, 2), numbers.section(2)
    parts, _ = code_differences(items_from(raw, 4), items_from(base, 4), section, 0)
    model = write_difference_model([numbers])
    for plane in ((STORED, bytes(N)), (SPARSE, payload_of())):
        block = difference_block(pack_payload(parts, 4), [plane], 4)
        frame = frame_to_base(raw, base, [block], 2, k=12, sums=False, model=model)
        if plane[0] == STORED:
            both_decode_to_base(frame, base)
        else:
            both_refuse_to_base(frame, base, "sparse")


def test_sparse_planes_in_blocks_that_have_a_base():
    first, payload = FIRST, payload_of()
    raw = join_planes([first, plane_of(payload)], by_byte=False)
    block = build.block((STORED, first), (SPARSE, payload))
    frame = frame_to_base(raw, bytes(2 * N), [block], 0, k=12)
    assert both_decode_to_base(frame, bytes(2 * N)) == raw
