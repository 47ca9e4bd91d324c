"""Half precision: every float16, the edges of rounding, and the reported loss."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bf16codecs._base.half import HalfLoss, from_half, to_half
from looping import for_each

EVERY = np.arange(1 << 16, dtype="<u2")
QUIET = 0x0200


def halves_of(bits: list[int]) -> list[int]:
    """Round float32 numbers to float16, from bits to bits."""
    return to_half(np.array(bits, "<u4").view("<f4")).view("<u2").tolist()


def nearest(value: Fraction) -> int:
    """Return the bits of the float16 nearest to a number above 0, even of two, by definition."""
    exponent = -14
    while value >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - 10)
    units = round(value / unit)  # Python rounds halves to even
    # A mantissa that overflows carries into the exponent, and from the largest to infinity.
    return min(units + (exponent + 14 << 10), 0x7C00)


def test_every_float16_comes_back():
    restored = to_half(from_half(EVERY.view("<f2"))).view("<u2")
    is_nan = np.isnan(EVERY.view("<f2"))
    assert (restored[~is_nan] == EVERY[~is_nan]).all()
    assert (restored[is_nan] == EVERY[is_nan] | QUIET).all()


def test_every_float16_and_what_lies_around_the_middle_of_two():
    finite = EVERY[:0x7C00]
    values = from_half(finite.view("<f2")).view("<u4").astype(np.int64)
    after = np.append(values[1:], 0x47800000)  # 65536 is where the next one would be
    exact = [Fraction(float(v)) for v in values.astype("<u4").view("<f4")]
    exact.append(Fraction(65536))
    for sign in (0, 1):
        assert halves_of((values | sign << 31).tolist()) == (finite | sign << 15).tolist()
    # The middle of two is a float32, since these have more bits; above and below it lie others.
    middles = np.array([float((a + b) / 2) for a, b in itertools.pairwise(exact)], "f4")
    bits = middles.view("<u4").astype(np.int64)
    assert (bits > values).all()
    assert (bits < after).all()
    below, above = finite, finite + 1
    assert halves_of((bits - 1).tolist()) == below.tolist()
    assert halves_of((bits + 1).tolist()) == above.tolist()
    assert halves_of(bits.tolist()) == (below + (below & 1)).tolist()


@given(bits=st.integers(1, 0x7F7FFFFF))
def test_any_number_becomes_the_nearest(bits):
    value = Fraction(float(np.array([bits], "<u4").view("<f4")[0]))
    assert halves_of([bits, bits | 1 << 31]) == [nearest(value), nearest(value) | 1 << 15]


@for_each(
    "bits, half",
    [
        (0x00000000, 0x0000),  # zeros keep their signs
        (0x80000000, 0x8000),
        (0x00000001, 0x0000),  # the smallest float32
        (0x33000000, 0x0000),  # 2^-25, the middle of 0 and 2^-24
        (0x33000001, 0x0001),
        (0x38800000, 0x0400),  # 2^-14, the smallest normal
        (0x387FE000, 0x0400),  # the middle below it goes up to the even one
        (0x477FE000, 0x7BFF),  # 65504, the largest
        (0x477FEFFF, 0x7BFF),
        (0x477FF000, 0x7C00),  # 65520, the middle of it and 65536
        (0x7F7FFFFF, 0x7C00),
        (0x7F800000, 0x7C00),
        (0xFF800000, 0xFC00),
    ],
)
def test_edges(bits, half):
    assert halves_of([bits] * 40) == [half] * 40  # in vectors and one by one


def test_nans_stay_nans_and_keep_what_there_is_room_for():
    payloads = [1, 2, 0x1FFF, 0x2000, 0x3FFFFF, 0x155555, 0x400000, 0x400001, 0x7FFFFF]
    for sign in (0, 1):
        bits = [sign << 31 | 0x7F800000 | payload for payload in payloads]
        for payload, half in zip(payloads, halves_of(bits), strict=True):
            assert half == sign << 15 | 0x7C00 | QUIET | payload >> 13
            restored = from_half(np.array(half, "<u2").view("<f2")).view("<u4")
            assert restored == sign << 31 | 0x7FC00000 | payload >> 13 << 13


def test_loss_of_strange_numbers():
    values = np.array([0, -1, 1 + 2.0**-11, 1e-9, np.nan, np.inf, 2.0**-24 * 1.25], "f4")
    loss = HalfLoss.of(values, to_half(values))
    assert loss.absolute == 2.0**-11
    assert loss.relative == 1
    assert loss.relative_of_normal == 2.0**-11 / (1 + 2.0**-11)
    assert (loss.to_zero, loss.to_infinite) == (1, 0)
    too_large = np.array([70000, -1e30, 3], "f4")
    loss = HalfLoss.of(too_large, to_half(too_large))
    assert (loss.absolute, loss.relative, loss.relative_of_normal) == (np.inf, np.inf, 0)
    assert (loss.to_zero, loss.to_infinite) == (0, 2)


def test_exact_numbers_have_no_loss():
    values = from_half(EVERY.view("<f2"))
    assert HalfLoss.of(values, to_half(values)) == HalfLoss()
    assert HalfLoss.of(np.empty(0, "f4"), np.empty(0, "f2")) == HalfLoss()


def test_loss_of_many_is_that_of_their_parts():
    """Parts are compared one after the other; the loss may be in any of them."""
    part = np.random.default_rng(0).normal(0, 0.02, 5000).astype("f4")
    loss = HalfLoss.of(part, to_half(part))
    assert 0 < loss.relative_of_normal <= 2.0**-11
    for at in (0, 300_000, 600_000 - part.size):
        values = np.ones(600_000, "f4")
        values[at : at + part.size] = part
        assert HalfLoss.of(values, to_half(values)) == loss, at
