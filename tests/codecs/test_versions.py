"""Several versions in one frame, each coded against an earlier one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bf16codecs import BF16Huffman
from bf16codecs.errors import BaseMismatchError, CodecError, CorruptDataError
from difference_pairs import CODECS, PAIRS, WIDTHS, moved, numbers
from looping import for_each
from makers.frames import Parts
from native_core import core
from tiers import by_tier

VERSION_FIELD = 7  # bytes of a version in its table


def walk(n: int, steps: int, dtype: int = 0) -> bytes:
    """Return versions of `n` items, each a little away from the one before."""
    rng = np.random.default_rng(0)
    items = numbers(rng, n, dtype)
    found = [items.tobytes()]
    for _ in range(steps - 1):
        items = items + rng.integers(0, 3, n).astype(items.dtype)
        found.append(items.tobytes())
    return b"".join(found)


def encode(raw: bytes, steps: int, codec: str = "arithmetic", dtype: int = 0, **options) -> bytes:
    number, level = CODECS[codec]
    return core.encode(raw, number, dtype, level=level, steps=steps, **options)


def read_version(frame: bytes, version: int, known: dict[int, bytes] | None = None) -> bytes:
    """Decode one version and its ancestors, by its blocks alone."""
    known = {} if known is None else known
    if version in known:
        return known[version]
    index = core.Index(frame)
    steps = len(index.parents)
    parent, places = index.parents[version], index.n_blocks // steps
    base = None if parent is None else read_version(frame, parent, known)
    first, last = version * places, (version + 1) * places
    out = bytearray(index.raw_size // steps)
    payload = frame[index.offsets[first] : index.offsets[last]]
    index.decode_block_range(payload, first, last, out, base)
    known[version] = bytes(out)
    return known[version]


@st.composite
def versions(draw) -> tuple[int, int, bytes]:
    """Draw a data type, a number of versions and these."""
    dtype, steps = draw(st.integers(0, 5)), draw(st.integers(1, 20))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.one_of(st.integers(0, 200), st.sampled_from([256, 257, 1000, 1024, 4097])))
    found = []
    while len(found) < steps:
        found += draw(st.sampled_from(PAIRS))(rng, n, dtype)
    return dtype, steps, b"".join(found[:steps])


@settings(max_examples=by_tier(50, 200))
@given(
    how=versions(),
    codec=st.sampled_from(list(CODECS)),
    checksum=st.booleans(),
    block=st.sampled_from([0, 256, 1024]),
    row=st.sampled_from([0, 16, 100]),
)
def test_versions_come_back_within_the_bound(how, codec, checksum, block, row):
    dtype, steps, raw = how
    frame = encode(raw, steps, codec, dtype, checksum=checksum, block=block, row=row)
    assert core.decode(frame) == raw
    facts = core.inspect(frame)
    assert sum(block["items"] for block in facts["blocks"]) == len(raw) // WIDTHS[dtype]
    size = len(raw) // steps
    number = CODECS[codec][0]
    bound = steps * core.bound(size, number, dtype, block)
    assert len(frame) <= bound + 24 + VERSION_FIELD * steps
    if steps == 1:
        assert "steps" not in facts
        return
    assert facts["steps"] == steps
    assert facts["parents"] == [None, *(v & v - 1 for v in range(1, steps))]
    assert facts["base"] is None
    if size:
        known: dict[int, bytes] = {}
        for v in range(steps):
            assert read_version(frame, v, known) == raw[v * size : (v + 1) * size]


@given(how=versions(), codec=st.sampled_from(list(CODECS)))
def test_one_version_is_a_frame_as_always(how, codec):
    dtype, _, raw = how
    assert encode(raw, 1, codec, dtype) == core.encode(
        raw, CODECS[codec][0], dtype, level=CODECS[codec][1]
    )


def test_no_version_is_far_away():
    frame = encode(walk(100, 300), 300, block=256)
    parents = core.Index(frame).parents
    for v in range(300):
        steps, at = 0, v
        while at is not None:
            at, steps = parents[at], steps + 1
        assert steps <= 9 + 1


@for_each("steps", [0, 65535, 65536, 1 << 31])
def test_numbers_of_versions_that_are_refused(steps):
    with pytest.raises(ValueError, match="steps must be 1 to 65534"):
        encode(bytes(1 << 18), steps)


def test_versions_of_whole_items():
    for dtype, width in enumerate(WIDTHS):
        for steps in (2, 3, 7):
            assert core.decode(encode(bytes(steps * width), steps, dtype=dtype))
            for size in (1, steps * width + 1, steps * width + steps, (steps - 1) * width):
                if size % (steps * width) == 0:
                    continue
                with pytest.raises(ValueError, match="whole items"):
                    encode(bytes(size), steps, dtype=dtype)
    with pytest.raises(ValueError, match="base"):
        encode(bytes(8), 2, base=bytes(7))


def test_the_most_versions():
    raw = np.arange(65534, dtype="<u2").tobytes()
    frame = encode(raw, 65534)
    assert core.decode(frame) == raw
    assert read_version(frame, 65533) == raw[-2:]


def test_small_versions_take_no_more_than_without():
    rng = np.random.default_rng(0)
    for size in (2, 256, 512, 1024, 2048):
        raw = rng.bytes(size * 16)
        assert len(BF16Huffman(steps=16).encode(raw)) <= len(BF16Huffman().encode(raw))


@for_each("codec", ["arithmetic", "best", "huffman"])
def test_versions_that_are_near_take_little(codec):
    steps, n = 8, 20_000
    raw = walk(n, steps)
    frame, size = encode(raw, steps, codec), 2 * n
    one = core.encode(raw[:size], CODECS[codec][0], 0, level=CODECS[codec][1])
    # A change of the lowest two bits each, against a parent up to 7 versions before.
    assert len(frame) < len(one) + (steps - 1) * 3.5 * n / 8 + 500
    same = raw[:size] * steps
    assert len(encode(same, steps, codec)) < len(one) + 100 * steps


# --- damage ---------------------------------------------------------------------------------------


@for_each("level", [0, 1])
@for_each("damaged", range(8))
def test_damage_leaves_versions_that_do_not_need_it(damaged, level):
    steps, n = 8, 1000
    raw = walk(n, steps)
    frame = bytearray(core.encode(raw, 3, 0, level=level, steps=steps, block=256))
    index = core.Index(frame)
    places = index.n_blocks // steps
    frame[index.offsets[damaged * places + 2] - 1] ^= 1  # the last byte of its second block
    frame = bytes(frame)
    with pytest.raises(CorruptDataError, match=f"block {damaged * places + 1} of"):
        core.decode(frame)
    for v in range(steps):
        chain = [v]
        while index.parents[chain[-1]] is not None:
            chain.append(index.parents[chain[-1]])
        if damaged in chain:
            with pytest.raises(CorruptDataError):
                read_version(frame, v)
        else:
            assert read_version(frame, v) == raw[2 * n * v : 2 * n * (v + 1)]


def test_a_model_that_is_damaged_hurts_the_versions_that_need_it():
    steps, n = 4, 1000
    raw = walk(n, steps)
    parts = Parts.of(core.encode(raw, 3, 0, steps=steps, block=256))
    table = parts.table()
    table[2] = (*table[2][:2], b"\xff" * 40)
    parts.set_table(table)
    frame = parts.joined()
    with pytest.raises(CodecError):
        core.decode(frame)
    for v in (0, 1):
        assert read_version(frame, v) == raw[2 * n * v : 2 * n * (v + 1)]
    for v in (2, 3):
        with pytest.raises(CorruptDataError):
            read_version(frame, v)


def test_one_place_of_a_version_needs_that_place_alone():
    steps, n, size = 6, 1000, 512
    raw = walk(n, steps)
    frame = encode(raw, steps, block=256)
    index = core.Index(frame)
    places = index.n_blocks // steps
    for v in range(steps):
        for place in range(places):
            found = None
            chain = [v]
            while index.parents[chain[-1]] is not None:
                chain.append(index.parents[chain[-1]])
            for at in reversed(chain):
                b = at * places + place
                whole = raw[2 * n * at : 2 * n * (at + 1)]
                out = bytearray(len(whole[place * size : (place + 1) * size]))
                payload = frame[index.offsets[b] : index.offsets[b + 1]]
                index.decode_block_range(payload, b, b + 1, out, found)
                assert out == whole[place * size : (place + 1) * size]
                found = bytes(out)


def test_blocks_of_two_versions_are_not_decoded_at_once():
    frame = encode(walk(1000, 3), 3, block=256)
    index = core.Index(frame)
    out = bytearray(2 * (1000 - 768) + 512)
    payload = frame[index.offsets[3] : index.offsets[5]]
    with pytest.raises(IndexError, match="several versions"):
        index.decode_block_range(payload, 3, 5, out, bytes(len(out)))
    with pytest.raises(IndexError, match="several versions"):
        core.decode_blocks(frame, 3, 5, out)


def test_versions_without_their_parent():
    frame = encode(walk(1000, 3), 3, block=256)
    out = bytearray(512)
    for wrong in (None, b"", bytes(511), bytes(513)):
        with pytest.raises(BaseMismatchError):
            core.decode_blocks(frame, 4, 5, out, wrong)
    assert out == bytes(512)
    with pytest.raises(CorruptDataError, match="block 4 of 12"):
        core.decode_blocks(frame, 4, 5, out, bytes(512))
    assert core.decode_blocks(frame, 0, 1, out, b"not used") == 512


def test_a_base_is_not_needed():
    raw = b"".join(moved(500))
    frame = encode(raw, 2)
    assert not core.Index(frame).needs_base
    assert core.decode(frame, b"anything") == raw
