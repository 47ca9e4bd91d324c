"""Differences to a base: any items are restored, and frames stay within their bound."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import bf16codecs
from difference_pairs import (
    BELOW_EXPONENT,
    CODECS,
    PAIRS,
    WIDTHS,
    moved,
    numbers,
    special,
    unsigned,
)
from looping import for_each
from native_core import core
from tiers import by_tier

NAMES = ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
BASE_FIELD, BASE_SUM = 16, 4  # bytes

# Around whole steps of 1, 2 and 4 groups of lanes, around strips, and where groups are added.
ITEMS = st.one_of(
    st.integers(0, 300),
    st.integers(0, 9000),
    st.sampled_from([4095, 4096, 4097, 8191, 8192, 32767, 32768, 32769, 32895, 65537]),
)


@st.composite
def pairs(draw) -> tuple[int, bytes, bytes]:
    """Draw a data type, a base and items; seldom with bytes after the last whole item."""
    dtype = draw(st.integers(0, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    base, raw = draw(st.sampled_from(PAIRS))(rng, draw(ITEMS), dtype)
    odd = draw(st.sampled_from([0, 0, 1, WIDTHS[dtype] - 1])) % WIDTHS[dtype]
    return dtype, base + rng.bytes(odd), raw + rng.bytes(odd)


@st.composite
def parameters(draw) -> tuple[int, dict]:
    number, level = CODECS[draw(st.sampled_from(list(CODECS)))]
    options = {
        "level": level,
        "checksum": draw(st.booleans()),
        "block": draw(st.sampled_from([0, 0, 256, 1024, 4096, 1 << 15])),
        "row": draw(st.sampled_from([0, 0, 1, 16, 100, 4096, 1 << 40])),
    }
    return number, options


def bound_of(n_bytes: int, number: int, dtype: int, block: int = 0) -> int:
    """Return the bound of a frame of differences: the base's own fields are added."""
    blocks = -(-(n_bytes // WIDTHS[dtype]) // (block or (1 << 19) // WIDTHS[dtype]))
    return core.bound(n_bytes, number, dtype, block) + BASE_FIELD + BASE_SUM * blocks


@settings(max_examples=by_tier(75, 300))
@given(pair=pairs(), how=parameters())
def test_what_is_encoded_comes_back_within_the_bound(pair, how):
    (dtype, base, raw), (number, options) = pair, how
    frame = core.encode(raw, number, dtype, base=base, **options)
    assert core.decode(frame, base) == raw
    assert len(frame) <= bound_of(len(raw), number, dtype, options["block"])
    memory = bytearray(base)
    core.decode_into(frame, memory, memory)
    assert memory == raw
    facts = core.inspect(frame)
    assert (facts["version"], facts["steps"], facts["parents"]) == (2, 1, [])
    assert facts["raw_size"] == len(raw)
    assert facts["encoded_size"] == len(frame)
    assert sum(block["items"] for block in facts["blocks"]) == len(raw) // WIDTHS[dtype]


@given(pair=pairs(), how=parameters(), threads=st.integers(2, 5))
def test_frames_depend_on_nothing_else(pair, how, threads):
    (dtype, base, raw), (number, options) = pair, how
    before = bf16codecs.get_num_threads()
    try:
        bf16codecs.set_num_threads(1)
        frame = core.encode(raw, number, dtype, base=base, **options)
        bf16codecs.set_num_threads(threads)
        copies = [np.frombuffer(data, np.uint8).copy() for data in (raw, base)]
        assert core.encode(copies[0], number, dtype, base=copies[1], **options) == frame
        assert core.decode(frame, base) == raw
    finally:
        bf16codecs.set_num_threads(before)


@given(pair=pairs(), how=parameters(), where=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_every_run_of_blocks_is_the_slice(pair, how, where):
    (dtype, base, raw), (number, options) = pair, how
    frame = core.encode(raw, number, dtype, base=base, **options)
    index = core.Index(frame)
    first, last = sorted(round(part * index.n_blocks) for part in where)
    if first == last:
        return
    size, items = index.block_items * index.item_size, len(raw) - len(raw) % index.item_size
    begin, end = first * size, min(last * size, items)
    out = bytearray(len(raw) - begin if last == index.n_blocks else end - begin)
    payload = frame[index.offsets[first] : index.offsets[last]]
    index.decode_block_range(payload, first, last, out, base[begin:end])
    assert out == raw[begin : begin + len(out)]


# --- certain contents -----------------------------------------------------------------------------


@for_each("base_order", ["same", "reversed", "shuffled", "sorted"])
@for_each("codec", CODECS)
@for_each("dtype", [0, 1])
def test_all_values_of_16_bits(dtype, codec, base_order):
    rng = np.random.default_rng(1)
    values = rng.permutation(65536).astype("<u2")
    base = {
        "same": values,
        "reversed": values[::-1].copy(),
        "shuffled": rng.permutation(values),
        "sorted": np.sort(values),
    }[base_order]
    number, level = CODECS[codec]
    for block in (0, 4096):
        frame = core.encode(values, number, dtype, level=level, base=base, block=block)
        assert np.array_equal(np.frombuffer(core.decode(frame, base), "<u2"), values)


@for_each("dtype", range(6))
def test_special_numbers_against_each_other(dtype):
    """Every one against every other, among numbers that are near their base."""
    found = special(dtype)
    base, raw = (np.repeat(found, found.size), np.tile(found, found.size))
    rng = np.random.default_rng(2)
    usual = numbers(rng, 3000, dtype)
    base = np.concatenate([base, usual])
    raw = np.concatenate([raw, usual + rng.integers(0, 3, 3000).astype(usual.dtype)])
    order = rng.permutation(base.size)
    for number, level in CODECS.values():
        for some in (slice(None), order):
            pair = base[some], raw[some]
            frame = core.encode(pair[1], number, dtype, level=level, base=pair[0], block=256)
            assert core.decode(frame, pair[0]) == pair[1].tobytes()


@for_each("n", [(1 << 18) - 1, 1 << 18, (1 << 18) + 127, (1 << 18) + 128, 300_001])
def test_blocks_of_four_groups_of_lanes(n):
    base, raw = moved(n, 4)
    frame = core.encode(raw, 3, 4, base=base, block=1 << 22)
    assert core.decode(frame, base) == raw
    memory = bytearray(base)
    core.decode_into(frame, memory, memory)
    assert memory == raw


def test_sections():
    """A model describes sections of 2^22 items, each by itself."""
    base, raw = moved(1 << 16, 4)
    base, raw = base * 140, (raw * 70 + base * 50 + bytes(len(base)) * 20)
    for level in (0, 1):
        frame = core.encode(raw, 3, 4, level=level, base=base)
        assert core.decode(frame, base) == raw
        index = core.Index(frame)
        size = index.block_items
        for b in (7, 8, 9, 15, 16, index.n_blocks - 1):
            part = slice(b * size, min((b + 1) * size, len(raw)))
            out = bytearray(part.stop - part.start)
            payload = frame[index.offsets[b] : index.offsets[b + 1]]
            index.decode_block_range(payload, b, b + 1, out, base[part])
            assert out == raw[part]


def modes_of(frame: bytes) -> list[str]:
    """Return the mode of the first plane of each block."""
    return [block["planes"][0]["mode"] for block in core.inspect(frame)["blocks"]]


@for_each("dtype", range(6))
@for_each("codec", CODECS)
def test_identical_bytes_take_no_more_than_their_modes(codec, dtype):
    base = moved(3000, dtype)[0] + b"x" * (WIDTHS[dtype] - 1)
    number, level = CODECS[codec]
    frame = core.encode(base, number, dtype, level=level, base=base, block=1024)
    assert modes_of(frame) == ["same"] * 3
    assert frame[7] & 64 == 0
    assert len(frame) == core.Index(frame).header_size + 3 * WIDTHS[dtype]


def test_each_block_has_the_mode_that_suits_it():
    """Blocks near the base, equal to it, zero, and unlike it, side by side."""
    rng = np.random.default_rng(8)
    base = numbers(rng, 6 * 4096, 0)
    raw = base + rng.integers(0, 5, base.size).astype("<u2")
    blocks = raw.reshape(6, 4096)
    blocks[1] = base.reshape(6, 4096)[1]
    blocks[2] = 0
    blocks[3] = rng.integers(0, 65536, 4096)
    blocks[4] = 0x3F80
    frame = core.encode(raw, 3, 0, base=base, block=4096)
    modes = modes_of(frame)
    assert modes[:3] == ["difference", "same", "constant"]
    assert modes[3] in ("stored", "huffman", "rans_pairs", "rans_wide")
    assert modes[4:] == ["constant", "difference"]
    assert core.decode(frame, base) == raw.tobytes()


def test_fewer_items_than_pay_are_coded_whole():
    for n in (1, 31, 32, 63):
        base, raw = moved(n)
        frame = core.encode(raw, 3, 0, base=base)
        assert modes_of(frame)[0] in ("stored", "constant", "same")
        assert frame[7] & 64 == 0  # no model


# --- sizes ----------------------------------------------------------------------------------------


@for_each("dtype", range(6))
@for_each("codec", CODECS)
def test_noise_stays_within_the_bound(codec, dtype):
    """From what gains by its base to what does not, one bit more each time."""
    rng = np.random.default_rng(5)
    width, (number, level) = WIDTHS[dtype], CODECS[codec]
    base = rng.integers(0, 256, 700 * width, np.uint8)
    for bits in range(8 * width + 1):
        change = rng.integers(0, 256, base.size, np.uint8).view(f"<u{width}")
        change >>= np.array(8 * width - bits, change.dtype) if bits else change
        change *= np.array(bits > 0, change.dtype)
        raw = (base.view(f"<u{width}") + change).tobytes()
        for block in (0, 256):
            frame = core.encode(raw, number, dtype, level=level, base=base, block=block)
            assert len(frame) <= bound_of(len(raw), number, dtype, block)
            assert core.decode(frame, base) == raw


@for_each("dtype", range(6))
def test_small_changes_take_little_space(dtype):
    """Each item changes by two bits, or one item in a hundred changes."""
    rng = np.random.default_rng(4)
    n, width = 60_000, WIDTHS[dtype]
    base = numbers(rng, n, dtype)
    raw = base + rng.integers(0, 4, n).astype(base.dtype)
    frame = core.encode(raw, 3, dtype, base=base)
    assert len(frame) < 2.4 * n / 8 + 500
    raw = base.copy()
    raw[rng.integers(0, n, n // 100)] ^= np.array(1, base.dtype)
    frame = core.encode(raw, 3, dtype, base=base)
    assert len(frame) < 0.13 * n / 8 + 500 + 0.02 * n * width


@for_each("dtype", [2, 3])
def test_integers_around_zero_take_little(dtype):
    """As floating-point numbers, -1 and 1 differ in all bits."""
    rng = np.random.default_rng(4)
    n, width = 60_000, WIDTHS[dtype]
    base = rng.integers(-30, 30, n).astype(f"<i{width}")
    raw = base + rng.integers(-3, 4, n).astype(f"<i{width}")
    frame = core.encode(raw, 3, dtype, base=base)
    assert len(frame) < 3.4 * n / 8 + 500
    assert core.decode(frame, base) == raw.tobytes()


@for_each("codec", ["huffman", "arithmetic", "best"])
def test_unrelated_bytes_take_no_more_than_without_a_base(codec):
    rng = np.random.default_rng(6)
    for dtype in range(6):
        base, raw = (numbers(rng, 50_000, dtype) for _ in range(2))
        number, level = CODECS[codec]
        alone = core.encode(raw, number, dtype, level=level)
        frame = core.encode(raw, number, dtype, level=level, base=base)
        assert len(frame) < 1.02 * len(alone) + 100


def test_a_step_of_training_as_numpy_makes_it():
    """Where one weight in twenty changes, a fourth of the size of weights alone."""
    rng = np.random.default_rng(9)
    weights = rng.normal(0, 0.02, 50_000).astype("f4")
    after = weights + np.where(rng.random(50_000) < 0.05, 1e-4, 0).astype("f4")
    codec = bf16codecs.BF16Arithmetic("float32")
    alone, frame = codec.encode(after), bf16codecs.encode_delta(codec, after, weights)
    assert len(frame) < 0.25 * len(alone)
    restored = np.frombuffer(bf16codecs.decode(frame, base=weights), "f4")
    assert np.array_equal(restored.view("u4"), after.view("u4"))


def test_fractions_that_the_pairs_here_assume():
    for name, width, fraction in zip(NAMES, WIDTHS, BELOW_EXPONENT, strict=True):
        assert np.dtype(name).itemsize == width
        one = np.ones(1, name).view(f"<u{width}")
        bias = (1 << 8 * width - 2 - fraction) - 1
        assert one[0] == bias << fraction
    assert unsigned(b"\1\0", 0)[0] == 1
