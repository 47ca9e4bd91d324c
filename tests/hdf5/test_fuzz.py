"""The HDF5 plugin's filter function, called as libhdf5 calls it, with bad input."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import plugin
import tiers
from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd, decode, inspect
from contents import lcg_bytes, weights
from looping import for_each

# codec, layout, flags, level
SETTINGS = {
    (): BF16Huffman(),
    (0, 0): BF16Huffman(),
    (1,): BF16Split(),
    (1, 0, 1): BF16Split(by="byte"),
    (1, 4): BF16Split("float8_e4m3fn"),
    (2, 2): BF16Huffman("float32"),
    (2, 0, 2): BF16Huffman(checksum=False),
    (3, 0): BF16Arithmetic(),
    (3, 1, 2, 0): BF16Arithmetic("float16", checksum=False),
    (3, 0, 0, 1): BF16Arithmetic(level="best"),
    (3, 0, 0, 0, 0, 0): BF16Arithmetic(),
    (3, 0, 0, 0, 0, 0, 1): BF16Arithmetic(),
}


def test_class_is_that_of_a_plugin() -> None:
    assert plugin.library.H5PLget_plugin_type() == 0
    cls = plugin.filter_class
    assert (cls.version, cls.has_encoder, cls.has_decoder) == (1, 1, 1)
    assert 32768 <= cls.id <= 65535  # the private range
    assert cls.can_apply is None
    assert cls.set_local is not None


@for_each("values", SETTINGS)
def test_frames_are_those_of_the_codecs(values: tuple[int, ...]) -> None:
    for raw in (weights(70_000), weights(3000) + b"x", bytes(9000), b"ab", b"a"):
        frame = plugin.encode(raw, values)
        assert frame == SETTINGS[values].encode(raw)
        assert plugin.decode(frame) == raw


def test_rows_are_stated_for_level_best() -> None:
    raw = weights(1 << 16)
    assert plugin.decode(plugin.encode(raw, (3, 0, 0, 1, 0, 256))) == raw


@for_each(
    "values",
    [
        (4,),  # Zstandard
        (5,),
        (0xFFFFFFFF,),
        (2, 6),
        (2, 0, 8),
        (1, 0, 4),
        (2, 0, 1),  # by bytes
        (2, 0, 0, 1),  # a level
        (3, 0, 0, 2),
        (1, 0, 0, 0, 0, 0, 2),  # steps
        (2, 0, 0, 0, 0, 0, 65535),
        (2, 0, 0, 0, 0, 0, 0, 1),  # of a later release
    ],
)
@for_each("flags", [0, plugin.OPTIONAL])
def test_wrong_values_are_refused(values: tuple[int, ...], flags: int) -> None:
    assert plugin.encode(weights(1000), values, flags) is None


def test_what_does_not_shrink_is_left_to_libhdf5_where_it_may_be() -> None:
    noise = lcg_bytes(100_000)
    assert plugin.encode(noise, (), plugin.OPTIONAL) is None
    frame = plugin.encode(noise)
    assert len(frame) > len(noise)
    assert plugin.decode(frame) == noise
    # Split planes never shrink, and are meant for a filter after this one.
    assert plugin.encode(noise, (1,), plugin.OPTIONAL) is not None


def test_chunk_size_is_checked_if_it_is_known() -> None:
    raw = weights(1000)
    frame = plugin.encode(raw, (2, 0, 0, 0, len(raw)))
    assert plugin.decode(frame, (2, 0, 0, 0, len(raw))) == raw
    for size in (len(raw) - 1, len(raw) + 1, 1, 0xFFFFFFFF):
        assert plugin.decode(frame, (2, 0, 0, 0, size)) is None
        assert plugin.encode(raw, (2, 0, 0, 0, size), plugin.OPTIONAL) is None


def test_zstandard_planes_are_refused() -> None:
    frame = BF16Zstd().encode(weights(20_000))
    assert inspect(frame)["blocks"][0]["planes"][0]["mode"] == "zstd"
    assert plugin.decode(frame) is None


def test_empty_chunks_are_refused() -> None:
    assert plugin.decode(BF16Huffman().encode(b"")) is None


def test_truncated_and_extended() -> None:
    for codec in (BF16Split(), BF16Huffman(), BF16Arithmetic()):
        frame = codec.encode(weights(300))
        for size in range(len(frame)):
            assert plugin.decode(frame[:size]) is None
        assert plugin.decode(frame + b"\0") is None


def test_any_byte_changed() -> None:
    for codec in (BF16Split(), BF16Huffman(), BF16Arithmetic()):
        raw = weights(300)
        frame = codec.encode(raw)
        for i in range(len(frame)):
            for change in (0x01, 0x80, 0xFF):
                damaged = bytearray(frame)
                damaged[i] ^= change
                # The last bits of a bit stream may be padding.
                assert plugin.decode(bytes(damaged)) in (None, raw), i


def test_without_checksums_as_the_codecs_do() -> None:
    """For frames without checksums, the plugin returns the same as `decode`."""
    chance = tiers.rng("test_without_checksums_as_the_codecs_do")
    frames = [BF16Huffman(checksum=False), BF16Arithmetic(checksum=False)]
    frames = [codec.encode(weights(700)) for codec in frames]
    for _ in range(tiers.by_tier(1000, 4000)):
        damaged = bytearray(chance.choice(frames))
        for _ in range(chance.choice([1, 1, 2, 9])):
            damaged[chance.randrange(32, len(damaged))] = chance.randrange(256)
        try:
            expected = decode(bytes(damaged))
        except ValueError:
            expected = None
        assert plugin.decode(bytes(damaged)) == expected


def test_many_threads() -> None:
    chunks = [weights(60_000 + i, seed=i) for i in range(16)]

    def round_trip(raw: bytes) -> bool:
        frame = plugin.encode(raw, (3,))
        return plugin.decode(frame) == raw

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(round_trip, chunks * 4))
