"""Huffman planes that the format allows, or forbids, to both decoders alike."""

from __future__ import annotations

from both_decoders import both_agree, both_decode, changed_bits, evenly, plane_frame, refused
from looping import for_each
from makers.planes import huffman_payload, huffman_table
from reference_planes import HUFFMAN

LENGTHS = {
    "two symbols": {0: 1, 255: 1},
    "the document's example": {0: 1, 5: 2, 7: 2},
    "all symbols": dict.fromkeys(range(256), 8),
    "longest codes": {**{40 + length: length for length in range(1, 12)}, 200: 11},
    "longest codes first": {**{40 - length: length for length in range(1, 12)}, 200: 11},
    "one bit and many": {**dict.fromkeys(range(128), 8), 255: 1},
    "eleven bits for all but one": {9: 1, **dict.fromkeys(range(10, 74), 7)},
}
SMALL = LENGTHS["longest codes"]
PLANE = evenly(700, list(SMALL))


def test_example_of_the_document():
    plane = bytes([0] * 5 + [5] * 3 + [7] * 2)
    payload = bytes.fromhex("1F 03 20 20 40 FD")
    assert both_decode(plane_frame(HUFFMAN, payload, 10)) == plane


@for_each("name", LENGTHS)
def test_any_complete_code(name):
    lengths = LENGTHS[name]
    for n in (1, 2, 7, 700, 4095, 4096, 4103, 9000):
        plane = evenly(n, list(lengths))
        payload = huffman_payload(plane, lengths)
        assert both_decode(plane_frame(HUFFMAN, payload, n)) == plane


def test_sizes_of_streams_take_four_bytes_where_one_may_be_long():
    """The last stream has m symbols, and floor(11 m / 8) = 65535 first at m = 47662."""
    lengths = LENGTHS["two symbols"]
    for n in (8 * 47661, 8 * 47661 + 7, 8 * 47662):
        plane = evenly(n, list(lengths))
        assert both_decode(plane_frame(HUFFMAN, huffman_payload(plane, lengths), n)) == plane


def test_one_symbol_of_a_code_is_enough():
    for n in (1, 100, 5000):
        plane = b"\5" * n
        payload = huffman_payload(plane, {5: 3, 6: 3, 7: 2, 8: 1})
        assert both_decode(plane_frame(HUFFMAN, payload, n)) == plane


def test_runs_of_absent_symbols_may_be_spelled_out():
    plane = evenly(100, [0, 3])
    payload = huffman_payload(plane, {0: 1, 3: 1}, table=bytes.fromhex("10 01"))
    assert both_decode(plane_frame(HUFFMAN, payload, 100)) == plane


@for_each(
    "table",
    [
        "",
        "1",
        "1F",
        "1F0",
        "1 C 1 0",
        "1 D 1 0",
        "1 E 1 0",
        "1 F F F 1 0",
        "F F E 1 1 0",
        "F F F 1 1 0",
        "1 2 1 0",
        "2 2 2 1",
        "1 2 2 1",
        "1 2 2 F",
        "B B 1 1",
        "00" * 128,
        "0000" * 128 + "11",
        "1" + "0" * 255 + "1 0",
        "FFF FFF 11",
        "BB" * 128,
    ],
)
def test_broken_tables_are_refused(table):
    nibbles = table.replace(" ", "")
    whole = bytes.fromhex(nibbles + "0" * (len(nibbles) % 2))
    body = huffman_payload(PLANE, SMALL, table=b"")
    refused(HUFFMAN, whole + body, len(PLANE))
    refused(HUFFMAN, whole, len(PLANE))


def test_tables_may_name_the_last_symbol_but_none_behind_it():
    plane = evenly(100, [254, 255])
    payload = huffman_payload(plane, {254: 1, 255: 1})
    assert both_decode(plane_frame(HUFFMAN, payload, 100)) == plane
    late = huffman_payload(plane, {254: 1, 255: 1}, table=bytes.fromhex("FF E1 10"))
    refused(HUFFMAN, late, 100)


@for_each("n", [700, 5000])
def test_streams_must_end_with_their_first_symbol(n):
    plane = evenly(n, list(SMALL))
    table = huffman_table(SMALL)
    payload = huffman_payload(plane, SMALL)
    for broken in (
        b"",
        table,
        payload[: len(table) + 1],
        payload + b"\0",
        payload + b"\1",
        payload[:-1] + b"\0",
        payload[:-1] + bytes([payload[-1] ^ 0x80]),
        payload + payload[len(table) :],
        huffman_payload(plane + plane[:1], SMALL),
        huffman_payload(plane[:-1], SMALL),
    ):
        refused(HUFFMAN, broken, n)


@for_each("n", [4095, 4096])
def test_the_number_of_streams_follows_from_the_number_of_symbols(n):
    other = 4095 + 4096 - n
    payload = huffman_payload(evenly(other, list(SMALL)), SMALL)
    refused(HUFFMAN, payload, n)


def test_sizes_of_streams_must_lie_in_the_payload():
    n = 5000
    payload = huffman_payload(evenly(n, list(SMALL)), SMALL)
    at = len(huffman_table(SMALL))
    for stream in range(7):
        here = at + 2 * stream
        size = int.from_bytes(payload[here : here + 2], "little")
        for wrong in (0, 1, size - 1, size + 1, len(payload), 65535):
            changed = payload[:here] + wrong.to_bytes(2, "little") + payload[here + 2 :]
            refused(HUFFMAN, changed, n)


@for_each("name", ["longest codes", "one bit and many", "all symbols"])
def test_streams_must_not_take_bits_of_earlier_ones(name):
    """Without its first bytes, a stream's first symbols come from what lies before it."""
    n, lengths = 5000, LENGTHS[name]
    payload = huffman_payload(evenly(n, list(lengths)), lengths)
    table = len(huffman_table(lengths))
    sizes = [int.from_bytes(payload[i : i + 2], "little") for i in range(table, table + 14, 2)]
    begin = table + 14
    for stream, size in enumerate([*sizes, len(payload) - begin - sum(sizes)]):
        for cut in (1, 7, 8, 100, size - 1):
            kept = [s - cut if i == stream else s for i, s in enumerate(sizes)]
            stored = b"".join(s.to_bytes(2, "little") for s in kept)
            rest = payload[table + 14 : begin] + payload[begin + cut :]
            refused(HUFFMAN, payload[:table] + stored + rest, n)
        begin += size


def test_the_decoders_agree_on_changed_bits():
    payload = huffman_payload(PLANE, SMALL)
    for changed in changed_bits(payload):
        both_agree(plane_frame(HUFFMAN, changed, len(PLANE)))
