"""Growing frames: both decoders agree on their content, and on refusing others."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bf16codecs
import reference_growing as reference
from bf16codecs import BF16Arithmetic, BF16Huffman
from bf16codecs.errors import (
    CodecError,
    CorruptDataError,
    TruncatedDataError,
    UnsupportedVersionError,
)
from difference_pairs import PAIRS, WIDTHS, moved
from frames import flips
from looping import for_each
from makers.growing import (
    ENTRY,
    HEADER,
    NO_PARENT,
    frames_of,
    grow,
    grown,
    version_frames,
    with_entry,
    with_header,
)
from native_core import core
from reference_planes import FormatError, TruncatedFrame, UnknownVersion
from tiers import by_tier

DTYPES = list(core.DTYPES)
ERRORS = {TruncatedFrame: TruncatedDataError, UnknownVersion: UnsupportedVersionError}


def contents(count: int, n: int, dtype: int = 0) -> list[np.ndarray]:
    """Return versions of `n` items, each a little away from the one before."""
    found = [moved(n, dtype)[0]]
    for seed in range(1, count):
        found.append(moved(n, dtype, seed=seed)[1])
    return [np.frombuffer(raw, np.uint8) for raw in found]


def refuse(growing: bytes, error: type[CodecError] | None = None, shows: bool = True) -> None:
    """Check that both decoders refuse a frame; with `shows`, that functions on heads do as well."""
    with pytest.raises(FormatError) as caught:
        reference.decode_versions(growing)
    expected = error or ERRORS.get(caught.type, CorruptDataError)
    out = np.full(64, 0x55, np.uint8)
    calls = [
        lambda: bf16codecs.decode(growing),
        lambda: core.decode(growing, padded=True),
        lambda: BF16Huffman(steps=4).decode(growing),
    ]
    if shows:
        calls += [lambda: bf16codecs.inspect(growing), lambda: core.decode_into(growing, out)]
    for call in calls:
        with pytest.raises(CodecError) as native:
            call()
        assert native.type is expected, str(native.value)
        assert "\n" not in str(native.value)
    assert (out == 0x55).all()


CODECS = st.sampled_from([("huffman", 0), ("arithmetic", 0), ("arithmetic", 1), ("split", 0)])


@st.composite
def growing_frames(draw):
    """Draw versions of any kind with any parents, each by a codec of its own."""
    dtype, count = draw(st.integers(0, 5)), draw(st.integers(1, 6))
    n = draw(st.one_of(st.integers(1, 70), st.sampled_from([256, 257, 1000, 1024])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    versions = []
    while len(versions) < count:
        versions += draw(st.sampled_from(PAIRS))(rng, n, dtype)
    versions = versions[:count]
    parents, frames = [], []
    for number, version in enumerate(versions):
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        codec, level = draw(CODECS)
        options = {"level": level, "checksum": draw(st.booleans()), "block": 256}
        if parent is None and draw(st.booleans()):
            options["by_byte"] = True
        base = None if parent is None else versions[parent]
        layout = {"codec": core.CODECS[codec], "dtype": dtype}
        frames.append(core.encode(version, base=base, **layout, **options))
        parents.append(parent)
    room = count + draw(st.integers(0, 3))
    nbytes = n * WIDTHS[dtype]
    return grown(frames, parents, room, nbytes, DTYPES[dtype]), versions, room


@settings(max_examples=by_tier(40, 200))
@given(growing_frames(), st.binary(max_size=50))
def test_both_decode_the_same(case, rest):
    growing, versions, room = case
    raw = b"".join(versions)
    whole = raw.ljust(room * len(versions[0]), b"\xff")
    for content in (growing, growing + rest):
        assert reference.decode_versions(content) == versions
        assert reference.decode_whole(content) == whole
        assert bf16codecs.decode(content) == raw
        assert core.decode(content, padded=True) == whole
        out = np.empty(len(raw), np.uint8)
        assert bf16codecs.decode(content, out=out, base=b"of no use") is out
        assert out.tobytes() == raw
        out = np.empty(len(whole), np.uint8)
        core.decode_into(content, out, padded=True)
        assert out.tobytes() == whole


@pytest.fixture(scope="module")
def growing() -> bytes:
    """Three of four versions of three blocks, each coded against the one before."""
    return grow(contents(3, 600), 4, [None, 0, 1], "bfloat16")


def test_the_fields(growing):
    assert growing[:8] == bytes.fromhex("BF16C0DE 02 10 00 08")
    version_size, room, zero, checksum = struct.unpack_from("<QIQI", growing, 8)
    assert (version_size, room, zero) == (1200, 4, 0)
    assert checksum == core.checksum(growing[:28])
    end, parent, zero, checksum = struct.unpack_from("<QHHI", growing, HEADER + ENTRY)
    assert (parent, zero, checksum) == (0, 0, core.checksum(growing[48:60]))
    assert growing[end : end + 4] == growing[:4]
    assert growing[HEADER + 3 * ENTRY : HEADER + 4 * ENTRY] == bytes(ENTRY)
    index = core.GrowingIndex(growing[: HEADER + 4 * ENTRY])
    assert (index.version_size, index.room, index.dtype) == (1200, 4, "bfloat16")
    assert (index.raw_size, index.directory_size) == (4800, HEADER + 4 * ENTRY)
    assert (index.block_items, index.item_size) == (256, 2)
    assert index.parents == [None, 0, 1]
    assert index.ends[-1] == len(growing)
    assert core.header_size(growing[:HEADER]) == index.directory_size
    with pytest.raises(IndexError, match="no version 3: there are 3"):
        index.frame(3, growing)


def test_inspection(growing):
    facts = bf16codecs.inspect(growing + b"more")
    frames = facts.pop("frames")
    assert facts == {
        "version": 2,
        "codec": "growing",
        "dtype": "bfloat16",
        "raw_size": 4800,
        "encoded_size": len(growing),
        "block_items": 256,
        "steps": 4,
        "parents": [None, 0, 1],
    }
    begin = HEADER + 4 * ENTRY
    for own, frame in zip(frames, frames_of(growing), strict=True):
        assert own.pop("offset") == begin
        assert own == bf16codecs.inspect(frame)
        begin += len(frame)


def test_a_codec_with_steps_gives_the_whole(growing):
    raw = b"".join(v.tobytes() for v in contents(3, 600))
    whole = raw.ljust(4800, b"\xff")
    for codec in (BF16Huffman(steps=4), BF16Arithmetic("float32", steps=4)):
        assert codec.decode(growing) == whole
        out = np.empty(4800, np.uint8)
        assert codec.decode(growing, out) is out
        assert out.tobytes() == whole
        with pytest.raises(ValueError, match="the data have 4800"):
            codec.decode(growing, np.empty(3600, np.uint8))
    assert BF16Huffman().decode(growing) == raw
    with pytest.raises(CorruptDataError, match="room for 4 versions, and the codec has steps=5"):
        BF16Huffman(steps=5).decode(growing)
    with pytest.raises(ValueError, match="the data have 3600"):
        bf16codecs.decode(growing, np.empty(4800, np.uint8))


@for_each("dtype", DTYPES)
def test_missing_versions_are_nan_in_every_dtype(dtype):
    number = DTYPES.index(dtype)
    growing = grow(contents(1, 5, number), 2, dtype=dtype, parents=[None])
    whole = np.frombuffer(BF16Huffman(steps=2).decode(growing), dtype)
    assert np.isnan(whole[5:].astype("f8")).all()


@for_each("size", range(HEADER + 4 * ENTRY + 200))
def test_cut_off_in_the_directory_and_the_first_frame(growing, size):
    refuse(growing[:size], TruncatedDataError)


def test_cut_off_anywhere(growing):
    for size in range(HEADER + 4 * ENTRY, len(growing), by_tier(7, 1)):
        with pytest.raises(TruncatedDataError):
            core.decode(growing[:size])
        with pytest.raises(TruncatedFrame):
            reference.decode_versions(growing[:size])


def test_flipped_bits_of_the_directory(growing):
    for flipped in flips(growing, 0, HEADER + 4 * ENTRY):
        with pytest.raises(FormatError):
            reference.decode(flipped)
        with pytest.raises(CodecError):
            core.decode(flipped)
        with pytest.raises(CodecError):
            bf16codecs.inspect(flipped)


def test_flipped_bits_of_the_frames(growing):
    for flipped in flips(growing, HEADER + 4 * ENTRY, len(growing), by_tier(11, 3)):
        with pytest.raises(CodecError, match=r"version [012]: "):
            core.decode(flipped)


WRONG_HEADERS = {
    "version 0": (4, "B", 0),
    "version 1": (4, "B", 1),
    "dtype 6": (6, "B", 6),
    "by byte": (6, "B", 16),
    "bit 7 of the layout": (6, "B", 128),
    "k of 7": (7, "B", 7),
    "k of 22": (7, "B", 22),
    "k of 63": (7, "B", 63),
    "bit 5 of byte 7": (7, "B", 8 | 32),
    "bit 6 of byte 7": (7, "B", 8 | 64),
    "bit 7 of byte 7": (7, "B", 8 | 128),
    "no raw size": (8, "Q", 0),
    "half an item": (8, "Q", 1201),
    "another raw size": (8, "Q", 1202),
    "a raw size of 2^61": (8, "Q", 1 << 61),
    "the largest raw size": (8, "Q", (1 << 64) - 2),
    "no room": (16, "I", 0),
    "the first field of zeros": (20, "I", 1),
    "the last field of zeros": (24, "I", 1 << 31),
    "another k": (7, "B", 9),
    "another dtype": (6, "B", 1),
    "a wider dtype": (6, "B", 2),
}


@for_each("name", WRONG_HEADERS)
def test_headers_that_lie(growing, name):
    refuse(with_header(growing, *WRONG_HEADERS[name]), CorruptDataError)


def test_newer_versions(growing):
    for version in (3, 255):
        refuse(growing[:4] + bytes([version]) + growing[5:], UnsupportedVersionError)


def test_room_that_is_not_there(growing):
    refuse(with_header(growing, 16, "I", 65534), TruncatedDataError)
    for room in (65535, 65536, (1 << 32) - 1):
        refuse(with_header(growing, 16, "I", room), CorruptDataError)


def test_entries_that_lie(growing):
    index = core.GrowingIndex(growing)
    ends, begin = index.ends, index.directory_size
    wrong = {
        "the end of the directory": (0, begin, NO_PARENT),
        "within the directory": (0, begin - 1, NO_PARENT),
        "at the beginning": (0, 0, NO_PARENT),
        "no bytes": (1, ends[0], 0),
        "before the one before": (1, ends[0] - 1, 0),
        "a byte less": (1, ends[1] - 1, 0),
        "a byte more": (1, ends[1] + 1, 0),
        "the parent itself": (1, ends[1], 1),
        "a later parent": (1, ends[1], 2),
        "a first version with a parent": (0, ends[0], 0),
        "no parent": (1, ends[1], NO_PARENT),
        "something in the zeros": (1, ends[1], 0, 1),
        "two frames in one": (1, ends[2], 0),
    }
    for case in wrong.values():
        refuse(with_entry(growing, *case), CorruptDataError)
    refuse(with_entry(growing, 2, ends[2], 0), CorruptDataError, shows=False)
    for end in (len(growing) + 1, 1 << 63, (1 << 64) - 1):
        refuse(with_entry(growing, 2, end, 1), TruncatedDataError)


def test_versions_that_are_not_there(growing):
    empty = bytes(ENTRY)
    at = [HEADER + ENTRY * version for version in range(5)]
    refuse(growing[: at[0]] + empty * 4 + growing[at[4] :], CorruptDataError)
    refuse(growing[: at[0]] + empty + growing[at[1] :], CorruptDataError)
    refuse(growing[: at[1]] + empty + growing[at[2] :], CorruptDataError)
    without_last = growing[: at[2]] + empty + growing[at[3] :]
    assert core.decode(without_last) == core.decode(growing)[:2400]
    assert reference.decode(without_last) == core.decode(growing)[:2400]
    behind = with_entry(without_last, 3, len(growing), 1)
    refuse(behind, CorruptDataError)


def test_entries_without_the_checksum(growing):
    for version in range(4):
        at = HEADER + ENTRY * version
        entry = bytearray(growing[at : at + ENTRY])
        entry[12:] = bytes(4)
        refuse(growing[:at] + (bytes(entry) if any(entry) else b"\1" * 16) + growing[at + 16 :])


def test_frames_that_do_not_belong(growing):
    first, second, third = contents(3, 600)
    frames = frames_of(growing)
    others = {
        "another size": version_frames([first[:-2]], [None], "bfloat16")[0],
        "another dtype": version_frames([first], [None], "float16")[0],
        "another k": version_frames([first], [None], "bfloat16", 512)[0],
        "several versions": core.encode(first, 3, 0, block=256, steps=2),
        "growing": grow([first], 1, dtype="bfloat16"),
        "a base": frames[1],
        "a tail": core.encode(first.tobytes() + b"t", 3, 0, block=256),
        "nothing": b"\0",
        "a byte behind": frames[0] + b"\0",
        "a newer version": frames[0][:4] + b"\3" + frames[0][5:],
    }
    for name, frame in others.items():
        error = UnsupportedVersionError if name == "a newer version" else CorruptDataError
        refuse(grown([frame], [None], 4, 1200, "bfloat16"), error)
    # In the place of the second: without differences, or to another base.
    to_another = version_frames([first, third, second], [None, 0, 1], "bfloat16")[2]
    for frame in (frames[0], to_another):
        shows = frame is not to_another
        refuse(grown([frames[0], frame], [None, 0], 4, 1200, "bfloat16"), CorruptDataError, shows)
    cut = frames[0][:-1]
    with pytest.raises(CodecError, match="version 0: "):
        core.decode(grown([cut], [None], 4, 1200, "bfloat16"))


def test_other_functions_refuse_growing_frames(growing):
    out = np.empty(4800, np.uint8)
    for call in (
        lambda: core.Index(growing),
        lambda: core.decode_blocks(growing, 0, 1, out),
    ):
        with pytest.raises(CorruptDataError, match="a growing frame, where one of its versions"):
            call()


def test_directories_that_the_format_does_not_have():
    for size, room, message in (
        (0, 1, "no whole items"),
        (1201, 1, "no whole items"),
        (1200, 0, "room for 0 versions"),
        (1200, 65535, "room for 65535 versions"),
        (1 << 60, 9, "larger than any memory"),
    ):
        with pytest.raises(ValueError, match=message):
            core.growing_directory(0, 256, size, room)
    with pytest.raises(ValueError, match="block must be"):
        core.growing_directory(0, 100, 1200, 1)
    assert len(core.growing_directory(0, 256, 2, 65534)) == HEADER + ENTRY * 65534
