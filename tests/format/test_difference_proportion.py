"""The cost of reading frames with differences is in proportion to their sizes."""

from __future__ import annotations

import sys

import pytest

from bf16codecs.errors import BaseMismatchError, CodecError, CorruptDataError, TruncatedDataError
from makers.frames import MODEL, Parts, same_block, stored_block
from makers.grids import GridNumbers, GridWriter, RangeEncoder, Writer
from native_core import core
from reference_differences import DIFFERENCE_MODEL, NO_MODEL, NO_PARENT, TILE_MODEL
from reference_grid import Bit
from tiers import by_tier

FLOAT8 = 4
MOST = 65534  # versions

LIMITED = """
import resource, sys
from bf16codecs import _core
from bf16codecs.errors import CodecError
_core.set_num_threads(1)
frame = open(sys.argv[1], "rb").read()
_core.decode(_core.encode(bytes(100_000), 3, 0, steps=5))
with open("/proc/self/statm") as statm:
    now = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (int(sys.argv[2]) << 20), resource.RLIM_INFINITY))
seconds = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
for call in (_core.decode, _core.inspect, _core.Index):
    try:
        result = call(frame)
        print(len(result) if isinstance(result, bytes) else "read")
    except (CodecError, MemoryError) as e:
        print(type(e).__name__)
"""

limited = pytest.mark.skipif(sys.platform != "linux", reason="limits memory and time")


@pytest.fixture
def read_limited(run_python, tmp_path):
    """Return a function that reads a frame in a child with little memory and time."""

    def read(frame: bytes, mebibytes: int, seconds: int) -> list[str]:
        (tmp_path / "frame").write_bytes(frame)
        numbers = str(mebibytes), str(seconds)
        # The portable kernels have the largest tables.
        done = run_python(LIMITED, "frame", *numbers, BF16CODECS_ISA="scalar")
        return done.stdout.split()

    return read


def least_model() -> bytes:
    """Return a difference model of one section with 16 classes, in as few bytes as possible."""
    classes, encoder = 16, RangeEncoder()
    grid, numbers = GridWriter(encoder), GridNumbers(base=0)
    grid.write_numbers(numbers)
    ranges, place, raw, frequency = (Writer(encoder) for _ in range(4))
    begins = Bit()
    for number in (0, 0, 0):  # relation, low, step
        ranges.write(number)
    place.write(0)
    ranges.write(classes - 1)
    for _ in range(classes - 1):
        encoder.bit(begins, 1)
    ranges.write(classes)
    for c in range(classes):
        raw.write(0)
        for j in range(16):
            frequency.write(int(c == j == 0))
    return bytes(encoder.data) + bytes([(encoder.low >> 24) + 1])


def versions(kind: int, model: bytes, n: int = MOST) -> bytes:
    """Return a frame of versions of one item each, which all have this model."""
    parts = Parts(layout=FLOAT8, raw_size=n, n_versions=n)
    parts.set_table([(NO_PARENT, NO_MODEL, b"")] + [(0, kind, model)] * (n - 1))
    parts.blocks = [stored_block(b"\7", 1)] + [same_block(1)] * (n - 1)
    return parts.joined()


@limited
@pytest.mark.parametrize("name", ["differences", "tiles"])
def test_tables_of_many_versions(read_limited, name):
    """Those of all versions at once took 250 kB each. Sanitizers keep 256 MiB that is free."""
    n = by_tier(4_000, 20_000)
    kinds = {"differences": DIFFERENCE_MODEL, "tiles": TILE_MODEL}
    model = least_model() if name == "differences" else bytes(4)
    frame = versions(kinds[name], model, n)
    assert len(frame) < 21 * n
    assert read_limited(frame, 640, seconds=30) == [str(n), "read", "read"]


def test_many_versions_without_items():
    parts = Parts(layout=FLOAT8, n_versions=MOST)
    parts.set_table([(NO_PARENT, NO_MODEL, b"")] * MOST)
    frame = parts.joined()
    assert core.decode(frame) == b""
    assert core.Index(frame).n_blocks == 0
    assert core.Index(frame).parents == [None] * MOST


@limited
def test_versions_that_are_not_there(read_limited):
    """A count of versions, or of their blocks, allocates nothing."""
    parts = Parts(layout=FLOAT8, raw_size=MOST, n_versions=MOST)
    parts.set_table([(NO_PARENT, NO_MODEL, b"")])
    frames = [parts.joined()]
    parts.raw_size = MOST * 2**47  # 2^39 blocks each
    frames.append(parts.joined())
    parts.raw_size = 0
    frames.append(parts.joined())
    for frame, name in zip(frames, ("Truncated", "Truncated", "Corrupt"), strict=True):
        assert read_limited(frame, 16, 5) == [f"{name}DataError"] * 3


def test_sizes_near_the_largest():
    """Their arithmetic does not overflow."""
    for n in (2, 3, 255, MOST):
        for raw_size in (2**64 - 1, 2**64 - 2, 2**63, (2**64 - 1) // n * n):
            parts = Parts(layout=FLOAT8, raw_size=raw_size, n_versions=n, flags=32 | MODEL | 22)
            for call in (core.decode, core.Index, core.inspect):
                with pytest.raises((TruncatedDataError, CorruptDataError)):
                    call(parts.joined())
            frame = parts.joined()
            try:
                assert core.header_size(frame) > len(frame)
            except CorruptDataError as e:
                assert "versions of whole items" in str(e)  # noqa: PT017


def test_blocks_that_are_the_same_claim_what_the_base_has():
    """A block of 4 MiB takes one byte, and its base's memory is there before it is allocated."""
    n, size = 1 << 12, 1 << 22
    parts = Parts(layout=FLOAT8, raw_size=n * size, flags=32 | 22, base_sums=[0] * n)
    parts.blocks = [same_block(1)] * n
    frame = parts.joined()
    assert len(frame) < 10 * n
    with pytest.raises(BaseMismatchError):
        core.decode(frame, bytes(size))


@limited
def test_versions_that_are_the_same_are_no_larger_than_constants(read_limited):
    """Both claim 4 MiB in few bytes, which a reader may refuse by the raw size."""
    size, n = 1 << 22, 256
    parts = Parts(layout=FLOAT8, raw_size=n * size, n_versions=n, flags=32 | 22)
    parts.set_table([(NO_PARENT, NO_MODEL, b"")] + [(0, NO_MODEL, b"")] * (n - 1))
    parts.blocks = [b"\1\7"] + [same_block(1)] * (n - 1)
    frame = parts.joined()
    assert len(frame) < 13 * n
    assert core.Index(frame).raw_size == n * size
    assert read_limited(frame, mebibytes=256, seconds=10) == ["MemoryError", "read", "read"]


def test_the_base_is_compared_before_any_model_is_read():
    parts = Parts.of(core.encode(bytes(range(256)) * 8, 3, 0, base=bytes(2048)))
    parts.model, parts.flags = b"\1" + b"\xff" * 50, parts.flags | MODEL
    with pytest.raises(BaseMismatchError):
        core.decode(parts.joined(), bytes(2047) + b"x")
    with pytest.raises(CodecError):
        core.decode(parts.joined(), bytes(2048))
