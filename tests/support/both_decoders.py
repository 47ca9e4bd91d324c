"""Checks that the native core and the reference decoder give the same answer."""

from __future__ import annotations

import numpy as np
import pytest

import bf16codecs
import reference_decoder as reference
from bf16codecs import errors
from bf16codecs.errors import CorruptDataError
from contents import choose
from makers import frames as build
from native_core import core
from reference_planes import STORED, FormatError, OtherBase
from tiers import by_tier

FLOAT8 = 4  # a layout of one plane


def both_decode(frame: bytes) -> bytes:
    raw = reference.decode(frame)
    assert core.decode(frame) == raw
    return raw


def both_agree(frame: bytes) -> None:
    """Check that both decode a frame to the same bytes, or both refuse it."""
    try:
        raw = reference.decode(frame)
    except FormatError:
        with pytest.raises(CorruptDataError):
            core.decode(frame)
    else:
        assert core.decode(frame) == raw


def both_refuse(frame: bytes) -> None:
    with pytest.raises(FormatError):
        reference.decode(frame)
    with pytest.raises(CorruptDataError):
        core.decode(frame)


# --- Differences ---------------------------------------------------------------------------------


def both_decode_to_base(frame: bytes, base: bytes | None = None) -> bytes:
    """Decode a frame with both decoders, compare the results, and return the bytes."""
    raw = reference.decode(frame, base)
    assert bf16codecs.decode(frame, base=base) == raw
    return raw


def both_agree_to_base(frame: bytes, base: bytes | None = None) -> None:
    """Check that both decode a frame to the same bytes, or both refuse it."""
    try:
        both_decode_to_base(frame, base)
    except FormatError:
        native_refuses(frame, base, errors.CodecError)


def both_refuse_to_base(frame: bytes, base: bytes | None = None, match: str | None = None) -> None:
    """Check that both refuse a frame as damaged, and the reference decoder's reason."""
    with pytest.raises(FormatError, match=match) as caught:
        reference.decode(frame, base)
    assert not isinstance(caught.value, OtherBase)
    native_refuses(frame, base, CorruptDataError)


def both_refuse_base(frame: bytes, base: bytes | None = None) -> None:
    """Check that both refuse a base that the frame was not encoded against."""
    with pytest.raises(OtherBase):
        reference.decode(frame, base)
    native_refuses(frame, base, errors.BaseMismatchError)


def native_refuses(frame: bytes, base: bytes | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        bf16codecs.decode(frame, base=base)


# --- Planes --------------------------------------------------------------------------------------


def plane_frame(mode: int, payload: bytes, n: int) -> bytes:
    return build.one_block(build.block((mode, payload)), n, layout=FLOAT8 | 16, k=22)


def evenly(n: int, symbols: list[int]) -> bytes:
    return choose(n, symbols, [1] * len(symbols), seed=1).astype(np.uint8).tobytes()


N = 640
PLANE = evenly(N, [1, 2, 3])


def refused(mode: int, payload: bytes, n: int = N) -> None:
    """Check that a plane is refused, alone and as the high plane over a stored one."""
    both_refuse(plane_frame(mode, payload, n))
    for by_byte in (0, 16):
        block = build.block((mode, payload), (STORED, bytes(n)))
        both_refuse(build.one_block(block, n, layout=by_byte, k=10))


def changed_bits(payload: bytes):
    """Yield the payload with one bit changed at a time: every third, or fewer."""
    for bit in range(0, 8 * len(payload), by_tier(19, 3)):
        changed = bytearray(payload)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)
