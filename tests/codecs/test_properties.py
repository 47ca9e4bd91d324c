"""Any bytes are restored with any parameters; frames are deterministic and within the bound."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bf16codecs
import reference_decoder
from looping import for_each
from native_core import core
from tiers import by_tier

CODECS = {"split": 1, "huffman": 2, "arithmetic": 3, "zstd": 4}
LEVELS = {**{name: (number, 0) for name, number in CODECS.items()}, "best": (3, 1)}
DTYPES = ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
WIDTHS = [2, 2, 4, 8, 1, 1]


def _random(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(0, 256, n, np.uint8)


def _few_symbols(rng: np.random.Generator, n: int) -> np.ndarray:
    odds = rng.dirichlet(np.full(rng.integers(2, 25), 0.5))
    return rng.choice(rng.permutation(256)[: len(odds)], n, p=odds).astype(np.uint8)


def _constant(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.full(n, rng.integers(256), np.uint8)


def _gaussians(rng: np.random.Generator, n: int) -> np.ndarray:
    scale = 10.0 ** rng.integers(-6, 3)
    return rng.normal(0, scale, n // 2 + 1).astype(ml_dtypes.bfloat16).view(np.uint8)[:n]


def _zero_heavy(rng: np.random.Generator, n: int) -> np.ndarray:
    return _gaussians(rng, n) * np.repeat(rng.random(n // 2 + 1) < 0.03, 2)[:n]


def _runs(rng: np.random.Generator, n: int) -> np.ndarray:
    lengths = rng.geometric(0.01, n // 10 + 1)
    found = np.repeat(rng.integers(0, 256, len(lengths), np.uint8), lengths)
    return np.resize(found, n)


def _rare_symbols(rng: np.random.Generator, n: int) -> np.ndarray:
    """One symbol nearly everywhere, all others far apart: a sample misses most of them."""
    found = np.full(n, 120, np.uint8)
    where = rng.integers(0, max(n, 1), n // 100)
    found[where] = rng.integers(0, 256, len(where), np.uint8)
    return found


STRANGE = np.array([0, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 1, 0x3F80], np.uint16)


def _strange_matrix(rng: np.random.Generator, n: int) -> np.ndarray:
    """Rows and columns that are all equal, zero, -0, infinite or NaN, in a matrix of bfloat16."""
    columns = int(rng.choice([16, 33, 100, 256]))
    items = rng.normal(0, 0.02, (n // 2 // columns + 1, columns)).astype(ml_dtypes.bfloat16)
    bits = items.view(np.uint16)
    for axis in (0, 1):
        lines = rng.integers(0, bits.shape[axis], rng.integers(0, 9))
        for line in lines:
            (bits if axis == 0 else bits.T)[line] = rng.choice(STRANGE)
    if rng.random() < 0.2:
        bits[...] = bits[:1]
    return np.resize(bits.ravel().view(np.uint8), n)


def _two_halves(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.concatenate([_few_symbols(rng, n // 2), _random(rng, n - n // 2)])


CONTENTS = [
    _random,
    _few_symbols,
    _constant,
    _gaussians,
    _zero_heavy,
    _runs,
    _rare_symbols,
    _strange_matrix,
    _two_halves,
]
SIZES = st.one_of(
    st.integers(0, 300),
    st.integers(0, 9000),
    st.sampled_from([16383, 16384, 16385, 32767, 32768, 65536, 65537, 131072, 140_001]),
)


@st.composite
def contents(draw) -> bytes:
    make = draw(st.sampled_from(CONTENTS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return make(rng, draw(SIZES)).tobytes()


@st.composite
def parameters(draw) -> tuple[int, int, dict]:
    codec = draw(st.sampled_from(list(CODECS.values())))
    options = {
        "by_byte": draw(st.booleans()),
        "checksum": draw(st.booleans()),
        "block": draw(st.sampled_from([0, 256, 1024, 4096, 1 << 16])),
    }
    if codec == CODECS["zstd"]:
        options["level"] = draw(st.sampled_from([1, 3, 9]))
    if codec == CODECS["arithmetic"] and draw(st.booleans()):
        options["level"] = 1
        options["row"] = draw(st.sampled_from([0, 1, 16, 100, 4096, 1 << 40]))
    return codec, draw(st.integers(0, len(DTYPES) - 1)), options


@settings(max_examples=by_tier(100, 400))
@given(raw=contents(), how=parameters())
def test_what_is_encoded_comes_back_within_the_bound(raw, how):
    codec, dtype, options = how
    frame = core.encode(raw, codec, dtype, **options)
    assert core.decode(frame) == raw
    assert len(frame) <= core.bound(len(raw), codec, dtype, options["block"])
    facts = core.inspect(frame)
    assert facts["raw_size"] == len(raw)
    assert facts["encoded_size"] == len(frame)
    assert sum(block["items"] for block in facts["blocks"]) == len(raw) // WIDTHS[dtype]


@given(raw=contents(), how=parameters())
def test_both_decoders_agree(raw, how):
    codec, dtype, options = how
    assert reference_decoder.decode(core.encode(raw, codec, dtype, **options)) == raw


@given(raw=contents(), how=parameters(), threads=st.integers(1, 5))
def test_frames_depend_on_nothing_else(raw, how, threads):
    codec, dtype, options = how
    before = bf16codecs.get_num_threads()
    try:
        bf16codecs.set_num_threads(1)
        frame = core.encode(raw, codec, dtype, **options)
        bf16codecs.set_num_threads(threads)
        assert core.encode(raw, codec, dtype, **options) == frame
        assert core.encode(np.frombuffer(raw, np.uint8).copy(), codec, dtype, **options) == frame
        assert core.decode(frame) == raw
    finally:
        bf16codecs.set_num_threads(before)


@given(raw=contents(), how=parameters(), where=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_every_run_of_blocks_is_the_slice(raw, how, where):
    codec, dtype, options = how
    frame = core.encode(raw, codec, dtype, **options)
    index = core.Index(frame)
    first, last = sorted(round(part * index.n_blocks) for part in where)
    if first == last:
        return
    size = index.block_items * index.item_size
    part = raw[first * size : None if last == index.n_blocks else last * size]
    out = bytearray(len(part))
    core.decode_blocks(frame, first, last, out)
    assert out == part


@settings(max_examples=by_tier(100, 300))
@given(nbytes=st.integers(0, 2**62), how=parameters())
def test_bound_is_close_and_grows(nbytes, how):
    codec, dtype, options = how
    block = options["block"]
    bound = core.bound(nbytes, codec, dtype, block)
    assert bound >= nbytes + 24
    assert bound <= core.bound(nbytes + 1, codec, dtype, block)
    items = block or (1 << 19) // WIDTHS[dtype]
    blocks = nbytes // WIDTHS[dtype] // items + 1
    assert bound <= nbytes + 24 + (8 + WIDTHS[dtype]) * blocks


def test_no_bound_of_sizes_that_no_buffer_can_hold():
    for nbytes in (2**63, 2**64 - 1):
        with pytest.raises(ValueError, match="no buffer"):
            core.bound(nbytes, CODECS["split"], 0)


@for_each("dtype", DTYPES)
@for_each("codec", LEVELS)
def test_incompressible_bytes_stay_within_the_bound(codec, dtype):
    raw = np.random.default_rng(5).bytes(by_tier(70_001, 300_001))
    for checksum in (True, False):
        for block in (0, 256):
            (number, level), layout = LEVELS[codec], DTYPES.index(dtype)
            frame = core.encode(raw, number, layout, level=level, checksum=checksum, block=block)
            assert len(frame) <= core.bound(len(raw), number, layout, block)
            assert core.decode(frame) == raw


@for_each("order", ["ascending", "descending", "shuffled", "by low byte"])
@for_each("block", [0, 256])
@for_each("codec", LEVELS)
def test_all_values_of_16_bits(codec, block, order):
    values = np.arange(65536, dtype="<u2")
    if order == "descending":
        values = values[::-1].copy()
    if order == "shuffled":
        values = np.random.default_rng(1).permutation(values)
    if order == "by low byte":
        values = values.byteswap()
    number, level = LEVELS[codec]
    for dtype in (0, 1):
        for by_byte in (False, True):
            frame = core.encode(
                values, number, dtype, level=level, by_byte=by_byte, block=block, row=256
            )
            assert np.array_equal(np.frombuffer(core.decode(frame), "<u2"), values)


@for_each("codec", LEVELS)
@for_each("dtype, unsigned", [("float32", "<u4"), ("float64", "<u8")])
def test_special_values_keep_their_bits(codec, dtype, unsigned):
    info = np.finfo(dtype)
    numbers = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, info.smallest_subnormal, info.max]
    special = np.array(numbers, dtype).view(unsigned)
    quiet = special[4]
    payloads = quiet ^ np.arange(1, 2000, dtype=unsigned)
    bits = np.concatenate([special, payloads, -payloads])
    number, level = LEVELS[codec]
    frame = core.encode(bits, number, DTYPES.index(dtype), level=level, block=256)
    assert np.array_equal(np.frombuffer(core.decode(frame), unsigned), bits)
