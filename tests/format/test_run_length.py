"""Run lengths: both decoders agree on what the document allows, and on what it forbids."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_run_length as reference
from bf16codecs import RunLength, bound
from bf16codecs.errors import CorruptDataError, TruncatedDataError
from checkout import ROOT
from contents import lcg_bytes
from looping import for_each
from native_core import core
from reference_planes import FormatError, TruncatedFrame
from tiers import by_tier

CODEC = RunLength()
byte = st.integers(0, 255)
literals = st.binary(min_size=1, max_size=20).map(lambda b: b.replace(b"\xff", b"\xfe"))
markers = st.integers(0, 3).map(lambda c: bytes([0xFF, c]))
runs = st.tuples(st.integers(5, 255), byte).map(lambda run: bytes([0xFF, *run]))
streams = st.lists(st.one_of(literals, markers, runs), max_size=30).map(b"".join)
# Runs of all lengths that matter, of a marker and of others.
stretches = st.builds(
    lambda value, n: bytes([value]) * n,
    st.sampled_from([0, 0xFE, 0xFF]),
    st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, 254, 255, 256, 257, 258, 259, 260, 261, 515]),
)
contents = st.lists(st.one_of(stretches, st.binary(max_size=20)), max_size=12).map(b"".join)


def both_decode(encoded: bytes) -> bytes:
    raw = reference.decode(encoded)
    assert CODEC.decode(encoded) == raw
    assert core.rle_decoded_size(encoded) == len(raw) <= 85 * len(encoded)
    return raw


def both_agree(encoded: bytes) -> None:
    """Check that both decode to the same bytes, or both refuse, and nothing is written then."""
    try:
        both_decode(encoded)
    except FormatError as refused:
        error = TruncatedDataError if isinstance(refused, TruncatedFrame) else CorruptDataError
        for attempt in (CODEC.decode, core.rle_decoded_size):
            with pytest.raises(error, match=r"^run lengths: "):
                attempt(encoded)
        out = bytearray(b"\xaa" * 1000)
        with pytest.raises(error):
            CODEC.decode(encoded, out=out)
        assert out == b"\xaa" * 1000


def examples() -> list[tuple[bytes, bytes]]:
    text = (ROOT / "docs" / "format_rle.md").read_text("utf-8").partition("## Examples")[2]
    rows = re.findall(r"^\| (?:(\d+) times )?`([0-9A-F ]+)` \| `([0-9A-F ]+)` \|$", text, re.M)
    return [(bytes.fromhex(b) * int(n or 1), bytes.fromhex(e)) for n, b, e in rows]


def test_examples_of_the_document():
    assert len(examples()) == 6
    for raw, encoded in examples():
        assert CODEC.encode(raw) == reference.encode(raw) == encoded
        assert both_decode(encoded) == raw


@given(raw=contents)
def test_encoder_writes_what_the_document_says(raw):
    encoded = CODEC.encode(raw)
    assert encoded == reference.encode(raw)
    assert both_decode(encoded) == raw
    assert len(encoded) <= bound(len(raw), CODEC)


@for_each("value", range(256))
def test_every_byte_in_runs_of_every_length(value):
    for n in range(20):
        for before in range(9):  # at every offset of the bytes that are compared together
            raw = bytes(b"\1\2\3\4\5\6\7\x08\x09"[:before]) + bytes([value]) * n + b"\n\x0b"
            encoded = CODEC.encode(raw)
            assert encoded == reference.encode(raw)
            assert CODEC.decode(encoded) == raw


def test_long_runs():
    for n in range(250, 530):
        for value in (b"\0", b"\xff"):
            assert both_decode(CODEC.encode(value * n)) == value * n


def test_large_data():
    raw = lcg_bytes(300_000)
    sparse = np.frombuffer(raw, np.uint8) & np.frombuffer(lcg_bytes(300_000, 1), np.uint8) & 0x81
    for data in (raw, sparse.tobytes(), bytes(300_000)):
        encoded = CODEC.encode(data)
        assert encoded == reference.encode(data)
        assert CODEC.decode(encoded) == data


def test_most_that_any_bytes_take():
    for n in range(10):
        raw = (b"\xff\0" * 10)[:n]
        assert len(CODEC.encode(raw)) == bound(n, CODEC) == n + (n + 1) // 2


@given(encoded=streams)
def test_any_tokens_decode(encoded):
    both_decode(encoded)


@settings(max_examples=by_tier(100, 300))
@given(
    encoded=st.one_of(
        st.binary(max_size=40),
        st.lists(st.sampled_from([0, 3, 4, 5, 254, 255]), max_size=40).map(bytes),
    )
)
def test_any_bytes_decode_or_are_refused_by_both(encoded):
    both_agree(encoded)


def test_every_count():
    for count in range(256):
        both_agree(bytes([1, 0xFF, count, 7, 2]))


@given(encoded=streams)
def test_every_truncation(encoded):
    for length in range(len(encoded)):
        both_agree(encoded[:length])


def test_errors_say_what_and_where():
    with pytest.raises(CorruptDataError, match=r"^run lengths: a count of 4 at byte 3,"):
        CODEC.decode(b"ab\xff\4c")
    for part in (b"ab\xff", b"a\xff\5"):
        with pytest.raises(TruncatedDataError, match=r"^run lengths: .* run, after 3 bytes$"):
            CODEC.decode(part)
