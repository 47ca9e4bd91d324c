"""The C library gives the bytes and verdicts of the Python package."""

from __future__ import annotations

import ctypes
import re
import subprocess
from ctypes import byref, c_size_t, c_uint64

import numcodecs.zstd
import numpy as np
import pytest

import bf16codecs
from c_library import (
    COMPRESS,
    DECOMPRESS,
    INVALID_ARGUMENT,
    NO_PARENT,
    NO_ROOM,
    OK,
    OUTSIDE,
    STATUS_OF,
    UNSUPPORTED,
    CError,
    DecodeOptions,
    EncodeOptions,
    Info,
    Library,
    Zstd,
)  # fmt: skip
from looping import for_each
from make_goldens import GOLDENS, path_of
from native_core import core
from strange_frames import MOST_DECODED, Strange, strange_frames, verdict

CODECS = {
    "split": {"codec": 1},
    "huffman": {"codec": 2},
    "fast": {"codec": 3},
    "best": {"codec": 3, "level": 1, "row": 96},
}


def weights(n: int, seed: int = 0, dtype: str = "bfloat16") -> bytes:
    rng = np.random.default_rng(seed)
    return rng.normal(0, 0.02, n).astype(dtype).tobytes()


def read(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


@COMPRESS
def compress(user, plane, n, level, out, capacity):
    """Compress as Python's codec does."""
    encoded = numcodecs.zstd.compress(read(plane, n), level)
    if len(encoded) > capacity:
        return 0
    ctypes.memmove(out, encoded, len(encoded))
    return len(encoded)


@DECOMPRESS
def decompress(user, payload, size, plane, n):
    try:
        raw = numcodecs.zstd.decompress(read(payload, size))
    except RuntimeError:
        return 1
    ctypes.memmove(plane, raw, n)
    return 0


ZSTD = ctypes.pointer(Zstd(compress=compress, decompress=decompress))


def test_names_are_those_of_python(library: Library) -> None:
    assert library.raw.bf16codecs_version().decode() == bf16codecs.__version__
    assert library.raw.bf16codecs_active_isa().decode() == bf16codecs.active_isa()
    names = {kind: [] for kind in ("codec", "dtype", "mode", "status")}
    for kind, found in names.items():
        found.extend(filter(None, (library.name(kind, number) for number in range(-1, 100))))
    assert names["codec"] == ["split", "huffman", "arithmetic", "zstd", "growing"]
    assert names["dtype"] == [
        "bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2",
    ]  # fmt: skip
    assert names["mode"][:4] == ["stored", "constant", "huffman", "rans_pairs"]
    assert len(names["mode"]) == 13
    assert names["status"][:2] == ["ok", "corrupt"]
    assert len(names["status"]) == 9


@for_each("how", CODECS)
@for_each("n", [0, 1, 100, 70_000])
def test_frames_are_those_of_python(library: Library, how: str, n: int) -> None:
    options = {"codec": 2} | CODECS[how]
    for dtype, name in enumerate(("bfloat16", "float16", "float32", "float64")):
        raw = weights(n, dtype=name) + b"tail"[: n % 3]
        frame = library.encode(raw, dtype=dtype, block_items=16384, **options)
        python = core.encode(raw, dtype=dtype, block=16384, **options)
        assert frame == python
        assert library.decode(frame, len(raw)) == raw


def test_options_of_the_encoder(library: Library) -> None:
    raw = weights(6000)
    assert library.encode(raw, no_checksums=1) == core.encode(raw, 2, 0, checksum=False)
    assert library.encode(raw, codec=1, by_byte=1) == core.encode(raw, 1, 0, by_byte=True)
    assert library.encode(raw, steps=3) == core.encode(raw, 2, 0, steps=3)
    few = weights(30)
    dropped = library.encode(few, steps=3, may_drop_steps=1)
    assert dropped == core.encode(few, 2, 0, steps=3, may_drop_steps=True)
    assert library.inspect(dropped).steps == 1


def test_zstandard_is_the_callers(library: Library) -> None:
    raw = weights(50_000)
    frame = library.encode(raw, codec=4, level=3, zstd=ZSTD)
    assert frame == core.encode(raw, 4, 0, level=3)
    assert library.decode(frame, len(raw), zstd=ZSTD) == raw
    with pytest.raises(CError, match="no decompressor") as caught:
        library.decode(frame, len(raw))
    assert caught.value.status == UNSUPPORTED
    with pytest.raises(CError, match=r"codec 4 \(zstd\) needs a compressor") as caught:
        library.encode(raw, codec=4, level=3)
    assert caught.value.status == INVALID_ARGUMENT


def verdict_of(library: Library, strange: Strange, size: int) -> bytes | CError:
    try:
        return library.decode(strange.frame, size, strange.base, zstd=ZSTD)
    except CError as error:
        return error


def test_strange_frames_get_the_verdicts_of_python(library: Library) -> None:
    """The corpus: goldens, damaged frames, and findings of fuzzing."""
    seen = set()
    for strange in strange_frames():
        expected = verdict(strange)
        size = len(expected) if isinstance(expected, bytes) else MOST_DECODED
        found = verdict_of(library, strange, size)
        if isinstance(expected, bytes):
            assert found == expected, strange.name
            seen.add(OK)
            continue
        name, message = expected
        assert isinstance(found, CError), strange.name
        if found.status == NO_ROOM:  # Python had memory for it, and then found it damaged
            continue
        assert found.status == STATUS_OF[name], strange.name
        seen.add(found.status)
        # Python's message also explains how to give a base, and quotes numcodecs.
        if "give it as" not in message and "Zstandard" not in message:
            assert str(found) == message, strange.name
    assert seen == {OK, *STATUS_OF.values()}


@for_each("name", [n for n in GOLDENS if "growing" not in n])
def test_parts_of_goldens(library: Library, name: str) -> None:
    """A reader of ranges: the prefix, the head, each block with its parent's items."""
    frame, golden = path_of(name).read_bytes(), GOLDENS[name]
    raw, base = golden.raw(), golden.base_bytes()
    facts = bf16codecs.inspect(frame)
    head_size = library.head_size(frame[:48])
    with library.open(frame[:head_size]) as opened:
        info = opened.info()
        assert info.head_size == head_size
        assert (info.raw_size, info.frame_size) == (len(raw), len(frame))
        assert info.blocks == len(facts["blocks"])
        assert library.name("codec", info.codec) == facts["codec"]
        assert info.needs_base == (base is not None)
        assert info.steps == facts.get("steps", 1)
        parts = []
        for number, told in enumerate(facts["blocks"]):
            block = opened.block(number)
            end = block.offset + block.size
            assert (block.items, block.offset, block.size) == (
                told["items"], told["offset"], told["size"],
            )  # fmt: skip
            assert (block.checksum if block.has_checksum else None) == told["checksum"]
            payload = frame[block.offset : end]
            planes = opened.planes(number, payload)
            assert planes == [(plane["mode"], plane["size"]) for plane in told["planes"]]
            items = slice(block.raw_offset, block.raw_offset + block.items * info.item_size)
            options = {"zstd": ZSTD}
            if block.parent == OUTSIDE:
                options["base"] = base[items]
            elif block.parent != NO_PARENT:
                options["base"] = parts[block.parent]
            parts.append(opened.decode(payload, number, number + 1, block.raw_size, **options))
        # Odd bytes at the end, without a block, are in the head.
        assert b"".join(parts) == (raw if facts["blocks"] else b"")


@for_each("name", [n for n in GOLDENS if "growing" in n])
def test_versions_of_growing_goldens(library: Library, name: str) -> None:
    frame, raw = path_of(name).read_bytes(), GOLDENS[name].raw()
    facts = bf16codecs.inspect(frame)
    assert library.raw.bf16codecs_is_growing(frame, c_size_t(len(frame))) == 1
    size = library.head_size(frame[:48])
    assert library.decode(frame, len(raw)) == raw
    with library.open_growing(frame[:size]) as growing:
        info = growing.info()
        assert (info.head_size, info.room, info.raw_size) == (size, facts["steps"], len(raw))
        padded = library.decode(frame, info.padded_size, padded=1)
        assert padded == raw + b"\xff" * (info.padded_size - len(raw))
        versions = []
        for number in range(info.steps):
            version = growing.version(number)
            own = frame[version.offset : version.offset + version.size]
            base = None if version.parent == NO_PARENT else versions[version.parent]
            with growing.open(number, own[: library.head_size(own[:48])]) as opened:
                told = opened.info()
                payload = own[opened.block(0).offset :]
                versions.append(
                    opened.decode(payload, 0, told.blocks, told.raw_size, base=base, zstd=ZSTD)
                )
        assert b"".join(versions) == raw
        for call in (growing.version, lambda number: growing.open(number, frame)):
            with pytest.raises(CError, match=f"no version {info.steps}: there are {info.steps}"):
                call(info.steps)
    with pytest.raises(CError, match="it is no growing frame"):
        library.open_growing(library.encode(raw))
    with pytest.raises(CError, match="nothing is open"):
        library.call("frame_info", None, byref(Info()))
    with pytest.raises(CError, match="open it by bf16codecs_growing_open") as caught:
        library.open(frame)
    assert caught.value.status == INVALID_ARGUMENT


def test_run_lengths_are_those_of_python(library: Library) -> None:
    for raw in (b"", b"a", b"aaab" * 100, bytes(1000), np.random.default_rng(0).bytes(999)):
        bound = library.raw.bf16codecs_rle_bound(len(raw))
        out, size = ctypes.create_string_buffer(max(bound, 1)), c_size_t()
        n = c_size_t(len(raw))
        library.call("rle_encode", raw, n, out, c_size_t(bound), byref(size))
        encoded = out.raw[: size.value]
        assert encoded == core.rle_encode(raw)
        told, back = c_uint64(), ctypes.create_string_buffer(len(raw) + 1)
        library.call("rle_decoded_size", encoded, size, byref(told))
        assert told.value == len(raw)
        library.call("rle_decode", encoded, size, back, n, byref(size))
        assert back.raw[: len(raw)] == raw
    with pytest.raises(CError) as caught:
        library.call("rle_decoded_size", b"ab\xff\x04c", c_size_t(5), byref(told))
    with pytest.raises(bf16codecs.errors.CodecError) as python:
        core.rle_decoded_size(b"ab\xff\x04c")
    assert str(caught.value) == str(python.value)


def refused(library: Library, match: str, name: str, *arguments) -> int:
    with pytest.raises(CError, match=match) as caught:
        library.call(name, *arguments)
    return caught.value.status


def test_arguments_are_checked(library: Library) -> None:
    raw, n, size = weights(100), c_size_t(200), c_size_t()
    frame = library.encode(raw)
    out, length = ctypes.create_string_buffer(200), c_size_t(len(frame))
    for match, options in [
        (r"the codec is 1 \(split\), .*, not 9", {"codec": 9}),
        ("the dtype is .*, not -1", {"dtype": -1}),
        (r"the level is 0 \(fast\) or 1 \(best\), not 2", {"codec": 3, "level": 2}),
        (r"codec 2 \(huffman\) has no levels", {"level": 1}),
        (r"only codec 1 \(split\) splits by byte", {"by_byte": 1}),
        ("block must be a power of two", {"block_items": 1000}),
        ("steps must be 1 to 65534", {"steps": 0}),
        ("200 bytes are not 3 steps of whole items", {"steps": 3}),
        ("steps have their bases in the frame", {"steps": 2, "base": raw}),
    ]:
        with pytest.raises(CError, match=match) as caught:
            library.encode(raw, **options)
        assert caught.value.status == INVALID_ARGUMENT
    decode = "decode", frame, length, None
    assert refused(library, "room for 199 bytes, and 200", *decode, out, c_size_t(199),
                   byref(size)) == NO_ROOM  # fmt: skip
    assert refused(library, "the memory is null", *decode, None, n, byref(size)) == INVALID_ARGUMENT
    assert refused(library, "result is null", *decode, out, n, None) == INVALID_ARGUMENT
    nothing = "decode", None, length, None, out, n, byref(size)
    assert refused(library, "the bytes are null", *nothing) == INVALID_ARGUMENT
    assert library.raw.bf16codecs_decode(frame, length, None, None, n, byref(size), None) != 0
    library.raw.bf16codecs_close(None)


def test_ranges_are_checked(library: Library) -> None:
    raw = weights(2000)
    frame = library.encode(raw, block_items=256)
    with library.open(frame) as opened:
        block = opened.block(7)
        payload = frame[block.offset :]
        assert opened.decode(payload, 7, 8, block.raw_size) == raw[3584:]
        for match, arguments in [
            ("no blocks 8 to 9: the frame has 8", (payload, 8, 9, 0)),
            ("no blocks 3 to 3", (payload, 3, 3, 0)),
            (f"no blocks 0 to {2**64 - 1}", (payload, 0, 2**64 - 1, 0)),
            ("room for 7 bytes", (payload, 7, 8, 7)),
            ("blocks 7 to 8 have 3 bytes of", (payload[:3], 7, 8, 1000)),
            ("payload is longer", (payload + b"x", 7, 8, 1000)),
        ]:
            with pytest.raises(CError, match=match):
                opened.decode(*arguments)
        for number in (8, 2**64 - 1):
            with pytest.raises(CError, match=f"no block {number}: the frame has 8"):
                opened.block(number)
        with pytest.raises(CError, match="block 0 has"):
            opened.planes(0, b"x")


def test_structures_of_other_releases(library: Library) -> None:
    """Callers may know fewer fields, or more if they do not use them."""
    raw, frame = weights(100), library.encode(weights(100))
    out, size = ctypes.create_string_buffer(400), c_size_t()

    class Later(DecodeOptions):
        _fields_ = [("unknown", c_uint64)]

    def decode(options) -> None:
        library.call("decode", frame, c_size_t(len(frame)), byref(options), out, c_size_t(400),
                     byref(size))  # fmt: skip

    decode(Later())
    assert out.raw[: size.value] == raw
    with pytest.raises(CError, match=f"more than this release knows: {bf16codecs.__version__}"):
        decode(Later(unknown=1))
    with pytest.raises(CError, match="initialize it with its macro"):
        decode(DecodeOptions.from_buffer_copy(bytes(ctypes.sizeof(DecodeOptions))))
    early = EncodeOptions(codec=3, steps=7)
    early.struct_size = EncodeOptions.steps.offset  # later fields have their defaults
    library.call("encode_room", c_uint64(200), byref(early), byref(c_uint64()))
    short = Info()
    short.struct_size = Info.item_size.offset
    library.call("inspect", frame, c_size_t(len(frame)), byref(short))
    assert (short.codec, short.raw_size, short.struct_size) == (2, 0, Info.item_size.offset)


def test_symbols_are_versioned_and_no_others(library: Library) -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library.path], capture_output=True, text=True, check=True
    ).stdout
    symbols = {line.split()[-1] for line in listed.splitlines()}
    symbols.remove("BF16CODECS_1")
    assert all(symbol.endswith("@@BF16CODECS_1") for symbol in symbols), symbols
    header = library.path.parents[1] / "include" / "bf16codecs.h"
    declared = set(re.findall(r"\b(bf16codecs_\w+)\(", header.read_text("utf-8")))
    assert {symbol.partition("@")[0] for symbol in symbols} == declared
