"""Damaged chunks: netCDF-C gives the same verdicts and the same bytes as Python."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

import tiers
from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, hdf5, inspect
from bf16codecs.errors import CodecError
from bf16codecs.hdf5.filters import cd_values
from checkout import ROOT
from contents import weights
from native_core import core
from netcdf_readers import Reader, url
from tiers import by_tier

MAGIC = bytes.fromhex("bf16c0de")
MOST = 1 << 20  # bytes of a chunk here: frames that claim more are refused for their size
CODECS = (BF16Split(), BF16Huffman(), BF16Arithmetic(), BF16Arithmetic(level="best"))


def found_frames() -> Iterator[bytes]:
    """Yield findings of fuzzing, and frames of every kind, whole and cut."""
    for path in sorted((ROOT / "tests/native/fuzz/corpus").glob("*/*")):
        if (data := path.read_bytes()).startswith(MAGIC):
            yield data
    for path in sorted((ROOT / "tests/goldens").glob("*.frame")):
        frame = path.read_bytes()
        yield from (frame, frame[:-1], frame + b"\0", frame[: len(frame) // 2])


def damaged_frames() -> Iterator[bytes]:
    """Yield frames of which a byte was changed, or that have lost their end."""
    for codec in CODECS:
        frame = codec.encode(weights(300))
        yield from (frame[:size] for size in range(1, len(frame), 13))
        # Each byte of the header, and one of three behind it.
        for i in [*range(64), *range(64, len(frame), 3)]:
            change = (0x01, 0x80, 0xFF)[i % 3 if i < 64 else i // 3 % 3]
            yield frame[:i] + bytes([frame[i] ^ change]) + frame[i + 1 :]


def unprotected_frames() -> Iterator[bytes]:
    """Yield frames without checksums, in which some damage cannot be detected."""
    chance = np.random.default_rng(1)
    frames = [
        BF16Huffman(checksum=False).encode(weights(700)),
        BF16Arithmetic(checksum=False).encode(weights(700)),
    ]
    for _ in range(300):
        damaged = bytearray(frames[chance.integers(2)])
        for _ in range(chance.integers(1, 4)):
            damaged[chance.integers(32, len(damaged))] = chance.integers(256)
        yield bytes(damaged)


def other_sizes() -> Iterator[bytes]:
    """Yield sound frames of other sizes than the chunks have: see `chunk_size`."""
    for codec in CODECS:
        yield from (codec.encode(weights(size)) for size in (1, 99, 101, 5000))


def stated_size(frame: bytes) -> int:
    """Return the decoded size that a frame states."""
    return (core.GrowingIndex if core.is_growing(frame) else core.Index)(frame).raw_size


def chunk_size(frame: bytes) -> int:
    """Return the size to declare for a chunk that is stored as this frame."""
    try:
        size = stated_size(frame)
    except CodecError:
        size = 0
    return size if 0 < size <= MOST else 200


CASES = {
    "found": (found_frames, chunk_size),
    "damaged": (damaged_frames, lambda _: 600),
    "unprotected": (unprotected_frames, lambda _: 1400),
    "other sizes": (other_sizes, lambda _: 200),
}


def codec_for(frame: bytes) -> BF16Huffman:
    """Return a codec for the array: of growing frames, one with as many steps as they have."""
    try:
        return BF16Huffman(steps=inspect(frame)["steps"])
    except (CodecError, KeyError):
        return BF16Huffman()


def verdict(frame: bytes, read: Callable[[], np.ndarray]) -> bytes | None:
    """Return what Python reads, or None for an error, and for planes that the plugin cannot do."""
    try:
        raw = read().tobytes()
    except (ValueError, CodecError):
        return None
    blocks = inspect(frame).get("blocks", [])
    modes = {plane["mode"] for block in blocks for plane in block["planes"]}
    return None if "zstd" in modes else raw


def write_array(folder: Path, size: int, frame: bytes) -> None:
    """Write an array of one chunk; zarr would take ten times as long."""
    metadata = {
        "zarr_format": 2,
        "shape": [size],
        "chunks": [size],
        "dtype": "|u1",
        "fill_value": 0,
        "order": "C",
        "filters": None,
        "compressor": codec_for(frame).get_config(),
    }
    folder.mkdir()
    (folder / ".zarray").write_text(json.dumps(metadata))
    (folder / "0").write_bytes(frame)


Verdicts = dict[str, bytes | None]


@pytest.fixture(scope="module", params=CASES)
def frames(request: pytest.FixtureRequest) -> dict[str, tuple[bytes, int]]:
    """Return stored chunks by the names of their arrays, and the sizes that they should have.

    The quick tier takes each seventh, others with another seed.
    """
    make, size_of = CASES[request.param]
    every = by_tier(7, 1)
    sample = itertools.islice(make(), tiers.SEED % every, None, every)
    return {f"v{i}": (frame, size_of(frame)) for i, frame in enumerate(sample)}


@pytest.fixture(scope="module")
def store(frames, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Verdicts]:
    """Return a Zarr store of damaged chunks, and Python's verdict on each."""
    folder = tmp_path_factory.mktemp("damaged") / "x.zarr"
    group = zarr.open_group(folder, mode="w", zarr_format=2)
    frames = {**frames, "empty": (b"", 100)}
    for name, (frame, size) in frames.items():
        write_array(folder / name, size, frame)
    read = {name: lambda name=name: group[name][:] for name in frames}
    return url(folder), {name: verdict(frames[name][0], read[name]) for name in frames}


@pytest.fixture(scope="module")
def file(frames, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Verdicts]:
    """Return an HDF5 file of damaged chunks, and Python's verdict on each."""
    path = tmp_path_factory.mktemp("damaged") / "x.h5"
    with h5py.File(path, "w") as file:
        for name, (frame, size) in frames.items():
            options = {
                "compression": hdf5.FILTER_ID,
                "compression_opts": cd_values(codec_for(frame)),
            }
            dataset = file.create_dataset(name, (size,), "u1", chunks=(size,), **options)
            dataset.id.write_direct_chunk((0,), frame)
    with h5py.File(path) as file:
        read = {
            name: lambda name=name, frame=frame: read_chunk(file[name], frame)
            for name, (frame, _) in frames.items()
        }
        return path, {name: verdict(frames[name][0], read[name]) for name in frames}


def read_chunk(dataset: h5py.Dataset, frame: bytes) -> np.ndarray:
    """Read a chunk with Python; for growing frames, return what the codec gives for all of it.

    `read_tensor` refuses steps that are not there.
    """
    codec = codec_for(frame)
    if codec.steps > 1 and dataset.nbytes == stated_size(frame):
        return np.frombuffer(codec.decode(frame), np.uint8)
    return hdf5.read_tensor(dataset)


def compare(found: dict[str, bytes | str], expected: Verdicts) -> None:
    assert found.keys() == expected.keys()
    verdicts = {name: None if isinstance(v, str) else v for name, v in found.items()}
    assert [name for name in expected if verdicts[name] != expected[name]] == []
    assert None in expected.values()


def test_stores(store: tuple[str, Verdicts], reader: Reader, tmp_path: Path) -> None:
    path, expected = store
    compare(reader.read(path, tmp_path / "found")[0], expected)


@pytest.mark.slow
def test_files(file: tuple[Path, Verdicts], reader: Reader, tmp_path: Path) -> None:
    path, expected = file
    compare(reader.read(path, tmp_path / "found")[0], expected)


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
@pytest.mark.usefixtures("programs")
def test_nothing_is_read_past_a_chunk(tmp_path: Path) -> None:
    """netCDF compares no sizes: it would read a whole chunk from a shorter buffer."""
    zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=2)
    for i, frame in enumerate(other_sizes()):
        write_array(tmp_path / "x.zarr" / f"v{i}", 200, frame)
    reader = Reader("c", tmp_path)
    reader.command = ["valgrind", "-q", "--error-exitcode=99", *reader.command]
    found, _ = reader.read(url(tmp_path / "x.zarr"), tmp_path / "found")
    assert len(found) == len(list(other_sizes()))
    assert all("Filter error" in reason for reason in found.values())
