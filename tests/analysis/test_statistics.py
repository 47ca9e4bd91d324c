"""Entropies against their definitions, and the figures known of trained weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bf16codecs.analysis import analyze, reasons
from bf16codecs.analysis.counts import Counts
from bf16codecs.analysis.scales import PieceSums, ScaleSums
from lazy_models import weights, write_safetensors
from looping import for_each
from native_core import core

CLOSE = 1e-9


def order_0(symbols: Iterable[Any]) -> float:
    """Return the entropy of symbols by its definition."""
    counts = Counter(symbols)
    total = sum(counts.values())
    return -sum(n / total * math.log2(n / total) for n in counts.values()) if total else 0.0


def given_other(pairs: list[tuple[Any, Any]]) -> float:
    """Return the entropy of the second of each pair where the first is known."""
    groups: dict[Any, list[Any]] = {}
    for known, symbol in pairs:
        groups.setdefault(known, []).append(symbol)
    return sum(len(own) * order_0(own) for own in groups.values()) / max(1, len(pairs))


def found_in(tmp_path, **arrays):
    return analyze(write_safetensors(tmp_path / "m.safetensors", arrays))


def bits_of(array) -> list[int]:
    return array.reshape(-1).view(f"<u{array.itemsize}").tolist()


def close(value: float | None) -> Any:
    return pytest.approx(value, abs=CLOSE)


FIELDS = {
    "bfloat16": (1, 8, 7),
    "float16": (1, 5, 10),
    "float8_e4m3fn": (1, 4, 3),
    "float8_e5m2": (1, 5, 2),
}


@for_each("dtype", FIELDS)
def test_entropies_of_fields(tmp_path, dtype):
    array = weights((37, 53), "float32").astype(dtype)
    own = found_in(tmp_path, w=array).model.statistics
    items, found = bits_of(array), own.entropies
    _, exponent, mantissa = FIELDS[dtype]
    mantissas = [i & ((1 << mantissa) - 1) for i in items]
    exponents = [i >> mantissa & ((1 << exponent) - 1) for i in items]
    signs = [i >> (exponent + mantissa) for i in items]
    assert found.sign == close(order_0(signs))
    assert found.exponent == close(order_0(exponents))
    assert found.mantissa == close(order_0(mantissas))
    assert found.sign_and_mantissa == close(order_0(zip(signs, mantissas, strict=True)))
    both = list(zip(exponents, mantissas, strict=True))
    assert found.mantissa_given_exponent == close(given_other(both))
    assert found.all_bits == close(order_0(items))
    assert own.exponents == tuple(Counter(exponents)[e] for e in range(1 << exponent))
    assert own.values == len(items)


@for_each("dtype", ["bfloat16", "float32", "float64", "float8_e5m2", "int16", "int64"])
def test_bytes_and_bits(tmp_path, dtype):
    array = (weights((29, 31), "float32").astype("float64") * 1e3).astype(dtype)
    own = found_in(tmp_path, w=array).model.statistics
    raw = array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize)
    planes = [raw[:, n].tolist() for n in reversed(range(array.itemsize))]
    assert own.entropies.bytes == close(tuple(map(order_0, planes)))
    assert own.byte_counts == tuple(tuple(Counter(p)[v] for v in range(256)) for p in planes)
    payload = raw.reshape(-1).tolist()
    assert own.entropies.payload == close(order_0(payload))
    pairs = list(pairwise(payload))
    assert own.entropies.payload_given_previous == close(given_other(pairs))
    bits = np.unpackbits(raw[:, ::-1], axis=1)
    assert own.set_bits == close(tuple(bits.mean(0).tolist()))


PLANES: dict[str, Callable[[int], int]] = {
    "high byte": lambda item: item >> 8,
    "exponent byte": lambda item: item >> 7 & 0xFF,
}


@for_each("shape", [(40, 25), (4, 10, 25), (1000,)])
def test_predictions(tmp_path, shape):
    array = weights(shape)
    found = found_in(tmp_path, w=array).model.statistics.predictions
    items, row = bits_of(array), shape[-1]
    beside = {"left": list(pairwise(items))}
    if len(shape) > 1:
        beside["upper"] = list(zip(items, items[row:], strict=False))
    assert [(p.neighbour, p.of) for p in found] == [
        (side, of) for side in beside for of in (*PLANES, "all bits")
    ]
    for p in found:
        take, size = PLANES.get(p.of, int), 16 if p.of == "all bits" else 8
        pairs = [(take(a), take(b)) for a, b in beside[p.neighbour]]
        assert p.delta == close(order_0((b - a) % (1 << size) for a, b in pairs))
        assert p.xor == close(order_0(a ^ b for a, b in pairs))
        if p.of != "all bits":
            assert p.alone == close(order_0(b for _, b in pairs))
            assert p.given == close(given_other(pairs))


def ordered(item: int, bits: int) -> int:
    sign, rest = item >> (bits - 1), item & ((1 << (bits - 1)) - 1)
    return -rest if sign else rest


@for_each("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_changes(tmp_path, dtype):
    array = weights((37, 53), "float32").astype(dtype)
    base = (array.astype("float32") * np.float32(1.01)).astype(dtype)
    base[0] = -base[0]
    (tmp_path / "base").mkdir(exist_ok=True)
    other = write_safetensors(tmp_path / "base" / "m.safetensors", {"w": base})
    model = write_safetensors(tmp_path / "m.safetensors", {"w": array, "new": array[:3]})
    found = analyze(model, other)
    change = found.model.statistics.change
    pairs = list(zip(bits_of(array), bits_of(base), strict=True))
    size = 8 * array.itemsize
    assert change.values == array.size
    assert change.changed == close(sum(a != b for a, b in pairs) / len(pairs))
    assert change.xor == close(order_0(a ^ b for a, b in pairs))
    moved = [(ordered(a, size) - ordered(b, size)) % (1 << size) for a, b in pairs]
    assert change.difference == close(order_0(moved))
    flipped = [sum((a ^ b) >> bit & 1 for a, b in pairs) / len(pairs) for bit in range(size)]
    assert change.flipped == close(tuple(reversed(flipped)))
    new = next(tensor for tensor in found.tensors if tensor.name == "new")
    assert new.statistics.change is None
    assert not any(name.startswith("difference") for name in new.bits)


@for_each("dtype", ["int8", "int16", "int32"])
def test_changes_of_integers(dtype):
    """They have no sign beside a magnitude: 1 and -1 are 2 apart, as -1 and -3 are."""
    new = np.array([1, -1, 100, np.iinfo(dtype).min], dtype)
    old = np.array([-1, -3, 98, np.iinfo(dtype).max - 1], dtype)
    counts = Counts(new.itemsize)
    counts.add_change(new.view(np.uint8), old.view(np.uint8), is_float=False)
    lowest = counts.words(max(0, new.itemsize // 2 - 1), "difference")
    assert np.flatnonzero(lowest).tolist() == [2], "-128 - 126 is 2 modulo 256"


def test_changes_of_integers_are_differences(tmp_path):
    base = np.arange(-50, 50, dtype="int16")
    (tmp_path / "base").mkdir()
    other = write_safetensors(tmp_path / "base" / "m.safetensors", {"w": base})
    model = write_safetensors(tmp_path / "m.safetensors", {"w": base + np.int16(7)})
    change = analyze(model, other).model.statistics.change
    assert (change.changed, change.difference) == (1, 0)


def test_changes_of_wide_values(tmp_path):
    array = weights((64, 64), "float32")
    base = array.copy()
    base.view("u4")[:, 0] ^= 1 << 20
    base.view("u4")[:, 1] ^= 1 << 3
    (tmp_path / "base").mkdir()
    other = write_safetensors(tmp_path / "base" / "m.safetensors", {"w": base})
    change = analyze(write_safetensors(tmp_path / "m.safetensors", {"w": array}), other).model
    flipped = change.statistics.change.flipped
    assert [31 - n for n, part in enumerate(flipped) if part] == [20, 3]
    assert change.statistics.change.changed == close(2 / 64)


def test_scales(tmp_path):
    sigmas = 2.0 ** np.arange(-3, 3)
    rows = np.repeat(sigmas[:, None], 4096, axis=1).astype("float32")
    rows = np.vstack([rows, np.zeros((2, 4096), "float32")])
    rows[0, 0], rows[1, 5] = np.nan, np.inf
    scales = found_in(tmp_path, w=rows.astype("bfloat16")).tensors[0].scales
    assert (scales.zero_rows, scales.zero_columns, scales.not_finite) == (2, 0, 2)
    assert scales.rows.count == 6
    assert scales.rows.quantiles[0] == pytest.approx(-3, abs=1e-3)
    assert scales.rows.quantiles[-1] == pytest.approx(2, abs=1e-3)
    assert scales.columns.count == 4096
    assert scales.columns.deviation < 0.01


@for_each("exponent", [1023, 664, 512, -500, -700, -1000])
@pytest.mark.filterwarnings("error")
def test_scales_of_doubles(tmp_path, exponent):
    """Their squares would overflow or vanish."""
    array = np.full((4, 300), 2.0**exponent)
    array[1] /= 4
    array[2] = 0
    array[3, 7], array[0, 0] = np.inf, np.nan
    scales = found_in(tmp_path, w=array).tensors[0].scales
    assert (scales.not_finite, scales.zero_rows, scales.zero_columns) == (2, 1, 0)
    quantiles = scales.rows.quantiles
    assert (quantiles[0], quantiles[-1]) == pytest.approx((exponent - 2, exponent), abs=0.01)
    assert scales.columns.count == 300


@for_each("is_first", [True, False])
@pytest.mark.filterwarnings("error")
def test_scales_of_pieces_that_differ(is_first):
    rows = np.array([[1e300] * 3, [1.0] * 3])
    sums = ScaleSums(2, 3)
    for at in (0, 1) if is_first else (1, 0):
        sums.add(3 * at, PieceSums.of(rows[at : at + 1]))
    found = sums.scales()
    assert found.zero_rows == found.not_finite == 0
    ends = found.rows.quantiles[0], found.rows.quantiles[-1]
    assert ends == pytest.approx(tuple(np.log2([1.0, 1e300])))


@for_each("dtype", ["bfloat16", "float32"])
def test_scales_of_rows_that_are_larger_than_a_piece(tmp_path, dtype):
    """Pieces of 4 MiB are parts of a row."""
    row = (5 << 20) // np.dtype(dtype).itemsize + 3
    array = np.ones((2, row), dtype)
    array[1] *= 4
    array[:, row // 2 :] *= 2
    tensor = found_in(tmp_path, w=array).tensors[0]
    assert tensor.scales.columns.count == row
    whole = np.log2(np.sqrt((array.astype("float64") ** 2).mean(1)))
    assert tensor.scales.rows.quantiles[0] == pytest.approx(whole.min())
    assert tensor.scales.rows.quantiles[-1] == pytest.approx(whole.max())
    upper = [p for p in tensor.statistics.predictions if p.neighbour == "upper"]
    assert all(p.given == 0 for p in upper if p.given is not None)


def test_blocks(tmp_path):
    """Each block's size and entropy: 64 KiB, of which some are constant."""
    array = weights((8, 32768))
    array[3] = 1
    found = found_in(tmp_path, w=array, small=array[0, :100])
    tensor = next(tensor for tensor in found.tensors if tensor.name == "w")
    for name in ("entropy", "huffman", "arithmetic"):
        assert tensor.blocks[name].count == 8
        assert tensor.blocks[name].quantiles[0] < 0.1
    rotated = [(i << 1 | i >> 15) & 0xFFFF for i in bits_of(array[0])]
    expected = order_0(i >> 8 for i in rotated) + order_0(i & 0xFF for i in rotated)
    assert tensor.blocks["entropy"].quantiles[2] <= expected + 0.05
    assert tensor.blocks["huffman"].quantiles[-1] > tensor.blocks["entropy"].quantiles[-1]
    assert found_in(tmp_path, small=array[0, :100]).model.blocks == {}


def test_the_demo_model(demo_model):
    """A trained model: exponents have 2.6 bits, low bytes none to spare, and predictors lose."""
    found = analyze(demo_model)
    own = found.model.statistics.entropies
    assert own.bytes == (pytest.approx(2.8, abs=0.1), pytest.approx(7.97, abs=0.02))
    assert own.exponent == pytest.approx(2.7, abs=0.1)
    assert found.model.exponent_per_tensor < own.exponent
    assert own.sign_and_mantissa == pytest.approx(7.97, abs=0.02)
    for p in found.model.statistics.predictions:
        assert min(p.delta, p.xor) > p.alone + 0.3
    best, *others = map(found.model.bits.get, ("arithmetic best", "arithmetic", "huffman"))
    assert best < min(others)
    assert max(others) < 10.75


@given(st.binary(max_size=300), st.integers(0, 9), st.integers(1, 8))
def test_counts_of_the_core(data, start, stride):
    words, values = np.zeros(65536, np.uint64), np.zeros(256, np.uint64)
    core.count_words(data, words, start, stride)
    core.count_bytes(data, values, start, stride)
    places = range(start, len(data), stride)
    assert Counter(data[i] for i in places) == {v: n for v, n in enumerate(values) if n}
    expected = Counter(data[i] | data[i + 1] << 8 for i in places if i + 1 < len(data))
    assert expected == {v: n for v, n in enumerate(words) if n}


def test_counts_that_the_core_refuses():
    counts = np.zeros(65536, np.uint64)
    with pytest.raises(ValueError, match="counts must be 65536 uint64"):
        core.count_words(b"abc", counts[1:].copy())
    with pytest.raises(ValueError, match="counts must be 256 uint64"):
        core.count_bytes(b"abc", counts)
    with pytest.raises(ValueError, match="stride must be 1 to 8 bytes, not 0"):
        core.count_words(b"abc", counts, 0, 0)
    with pytest.raises(BufferError):
        core.count_words(b"abc", bytes(counts.nbytes))


def test_words_name_what_is_not_finite(tmp_path):
    values = weights((40, 50))
    values[:10] = np.nan
    values[10, :10] = np.inf
    found = analyze(write_safetensors(tmp_path / "m.safetensors", {"w": values}))
    assert "26 % of the values are infinite or NaN." in list(reasons(found.model))
    sound = analyze(write_safetensors(tmp_path / "n.safetensors", {"w": weights((40, 50))}))
    assert not any("NaN" in own for own in reasons(sound.model))
