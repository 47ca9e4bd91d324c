"""Frames that are truncated or damaged: always an error, and always the right one."""

from __future__ import annotations

import contextlib
import gzip

import numcodecs
import pytest

import bf16codecs
from bf16codecs.errors import (
    CorruptDataError,
    TruncatedDataError,
    UnsupportedVersionError,
)
from contents import weights
from frames import (
    BFLOAT16,
    FRAMES,
    HEADER,
    SPLIT,
    flips,
    has_model,
    make,
    refuse,
    refuse_head,
    version_of,
)
from looping import for_each, noted
from makers import frames as build
from native_core import core
from tiers import by_tier


def blocks_flipped(frame: bytes):
    """Yield a frame with bits of its blocks flipped; fewer with a model, which is slow."""
    step = by_tier(13, 5 if has_model(frame) else 1)
    return flips(frame, core.Index(frame).header_size, len(frame), step)


def test_frames_have_the_models_of_their_names():
    models = {
        "scale model": (1, True),
        "tiles": (2, True),
        "tiles, joined": (2, True),
        "sparse": (2, False),
    }
    for name in FRAMES:
        frame, _ = make(name)
        assert (version_of(frame), has_model(frame)) == models.get(name, (1, False))


# --- truncation ----------------------------------------------------------------------------------


@for_each("checksum", [True, False])
@for_each("name", FRAMES)
def test_every_truncation_is_reported_as_one(name, checksum):
    frame, raw = make(name, checksum=checksum)
    assert bf16codecs.decode(frame) == raw
    head = core.Index(frame).header_size
    sizes = {*range(head), *range(head, len(frame), by_tier(7, 1)), len(frame) - 1}
    for length in sizes:
        refuse(frame[:length], TruncatedDataError)


@for_each("name", FRAMES)
def test_truncated_heads(name):
    frame, _ = make(name)
    head = core.Index(frame).header_size
    for length in range(head):
        with pytest.raises(TruncatedDataError):
            core.Index(frame[:length])
    header = HEADER + 8 * has_model(frame)
    for length in range(header):
        with pytest.raises(TruncatedDataError):
            core.header_size(frame[:length])
    assert core.header_size(frame[:header]) == head
    index = core.Index(frame[:head])
    assert index.frame_size == len(frame)
    assert index.header_size == head


@for_each("name", FRAMES)
def test_longer_frames_are_corrupt(name):
    frame, _ = make(name)
    for more in (b"\0", b"\xff" * 100, frame):
        refuse(frame + more, CorruptDataError)


def test_errors_count_one_byte_and_two_bytes():
    frame, raw = make("arithmetic")
    with pytest.raises(CorruptDataError, match=r"^1 byte after the frame's end$"):
        bf16codecs.decode(frame + b"\0")
    with pytest.raises(CorruptDataError, match=r"^2 bytes after the frame's end$"):
        bf16codecs.decode(frame + b"\0\0")
    with pytest.raises(TruncatedDataError, match=r"^the frame has 1 byte of at least 24$"):
        bf16codecs.decode(frame[:1])
    with pytest.raises(ValueError, match=rf"^out has 1 byte, the data have {len(raw)}$"):
        bf16codecs.decode(frame, out=bytearray(1))


# --- damage --------------------------------------------------------------------------------------


@for_each("checksum", [True, False])
@for_each("name", FRAMES)
def test_every_bit_of_the_head_is_guarded(name, checksum):
    frame, _ = make(name, checksum=checksum)
    for flipped in flips(frame, 0, 4):
        refuse_head(flipped, CorruptDataError)
    for flipped in flips(frame, 4, 5):
        refuse_head(flipped, UnsupportedVersionError if flipped[4] else CorruptDataError)
    for flipped in flips(frame, 5, core.Index(frame).header_size, by_tier(3, 1)):
        refuse_head(flipped, CorruptDataError)


@for_each("name", FRAMES)
def test_every_bit_of_blocks_with_checksums_is_guarded(name):
    frame, raw = make(name)
    out = bytearray(len(raw))
    for flipped in blocks_flipped(frame):
        try:
            core.decode_into(flipped, out)
        except CorruptDataError:
            continue
        # Bits without meaning: in a Zstandard frame's window size, and in the last byte of rows.
        assert name in ("zstd", "scale model", "tiles", "tiles, joined")
        assert out == raw


@for_each("name", FRAMES)
def test_blocks_without_checksums_never_decode_to_another_length(name):
    frame, raw = make(name, checksum=False)
    for flipped in blocks_flipped(frame):
        with contextlib.suppress(CorruptDataError):
            assert len(core.decode(flipped)) == len(raw)


def test_two_blocks_exchanged_are_found():
    frame = core.encode(weights(512), SPLIT, BFLOAT16, block=256)
    a, b, end = core.Index(frame).offsets
    with pytest.raises(CorruptDataError, match="block 0 of 2"):
        core.decode(frame[:a] + frame[b:end] + frame[a:b])


def test_errors_tell_what_and_where():
    frame, _ = make("arithmetic, blocks")
    offsets = core.Index(frame).offsets
    damaged = bytearray(frame)
    damaged[offsets[2] + 20] ^= 1
    with pytest.raises(CorruptDataError, match=f"block 2 of 4, at byte {offsets[2]}: "):
        core.decode(damaged)
    with pytest.raises(UnsupportedVersionError, match=r"version 9.*upgrade .*, or, .* damaged"):
        core.decode(frame[:4] + b"\x09" + frame[5:])
    with pytest.raises(TruncatedDataError, match=f"{len(frame) - 1} bytes of {len(frame)}"):
        core.decode(frame[:-1])


def test_a_newer_version_is_reported_before_anything_else_is_checked():
    for version in range(core.FORMAT_VERSION + 1, 256):
        refuse_head(build.MAGIC + bytes([version]), UnsupportedVersionError)
        refuse_head(build.MAGIC + bytes([version]) + bytes(100), UnsupportedVersionError)


def test_version_0_is_damage_and_no_reason_to_upgrade():
    frame, _ = make("arithmetic")
    for damaged in (build.MAGIC + b"\0", build.MAGIC + bytes(100), frame[:4] + b"\0" + frame[5:]):
        refuse_head(damaged, CorruptDataError)
        with pytest.raises(CorruptDataError, match=r"no format version 0$"):
            core.decode(damaged)


def test_other_data_are_no_frame():
    others = {
        "zstd": numcodecs.Zstd().encode(weights(1000)),
        "blosc": numcodecs.Blosc().encode(weights(1000)),
        "lz4": numcodecs.LZ4().encode(weights(1000)),
        "gzip": gzip.compress(weights(1000)),
        "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(1000),
        "zip": b"PK\x03\x04" + bytes(1000),
        "text": b"certainly no frame of this package, but a line of text\n" * 5,
        "zeros": bytes(1000),
        "ones": b"\xff" * 1000,
        "weights": weights(1000),
    }
    for name, data in others.items():
        for length in (1, 2, 3, 4, 5, 24, 100, len(data)):
            with noted(name, length):
                refuse_head(data[:length], CorruptDataError)
