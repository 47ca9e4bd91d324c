"""Arrays that are decoded whole as bases: each piece is decoded once."""

from __future__ import annotations

import numpy as np
import pytest
from numcodecs import Zstd

from bf16codecs.errors import CodecError
from noted_chunks import (
    ArrayReader,
    KeptPiece,
    LibraryArray,
    NotedStorage,
    Piece,
    PiecewiseArray,
    ZstdFormat,
    chunked_array,
    read_range,
    rounded_array,
)

SHAPE = (50, 64)


def array_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


def zstd_array(storage: NotedStorage, array: np.ndarray, chunks: tuple[int, ...]) -> ArrayReader:
    def encode(index: tuple[int, ...], chunk: np.ndarray) -> bytes:
        return Zstd(1).encode(chunk)

    return chunked_array(f"{array[0, 0]}", array, chunks, storage, ZstdFormat(), encode)


@pytest.mark.parametrize("rows", [1, 7, 13, 50])
def test_each_piece_is_decoded_once(rows: int) -> None:
    storage, array = NotedStorage(1 << 20), array_of(0)
    reader = PiecewiseArray(zstd_array(storage, array, (rows, 64)), KeptPiece())
    raw, found = array.tobytes(), b""
    for start in range(0, len(raw), 1000):
        found += read_range(reader, start, min(start + 1000, len(raw)))
    assert found == raw
    assert len(storage.ranges) == -(-50 // rows)
    assert read_range(reader, 100, 5000) == raw[100:5000]


def test_whole_pieces_are_read_to_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, array = NotedStorage(1 << 20), array_of(0)
    below, targets = zstd_array(storage, array, (20, 64)), []
    read_piece = below.read_piece

    def noted(piece: Piece, out: np.ndarray) -> None:
        targets.append(out)
        read_piece(piece, out)

    monkeypatch.setattr(below, "read_piece", noted)
    out = np.empty(array.nbytes, np.uint8)
    PiecewiseArray(below, KeptPiece()).read_range(0, array.nbytes, out)
    assert out.tobytes() == array.tobytes()
    # The last one is smaller than its chunk, whose padding has no room there.
    assert [np.shares_memory(target, out) for target in targets] == [True, True, False]


def test_arrays_that_take_turns() -> None:
    storage, kept = NotedStorage(1 << 20), KeptPiece()
    arrays = [array_of(seed) for seed in range(3)]
    readers = [
        PiecewiseArray(zstd_array(storage, a, (10 + i, 64)), kept) for i, a in enumerate(arrays)
    ]
    for start in range(0, 12000, 700):
        for array, reader in zip(arrays, readers, strict=True):
            assert read_range(reader, start, start + 700) == array.tobytes()[start : start + 700]


def test_roundings_and_what_a_library_reads() -> None:
    array = array_of(0)
    wide = zstd_array(NotedStorage(1 << 20), array, (7, 64))
    expected = array.astype("bfloat16").tobytes()
    assert read_range(PiecewiseArray(rounded_array(wide), KeptPiece()), 3, 6000) == expected[3:6000]

    def read(axes: list[range], out: np.ndarray) -> None:
        out[...] = array[np.ix_(*axes)]

    library = LibraryArray("x", SHAPE, array.dtype, (7, 9), read, 0, OSError)
    reader = PiecewiseArray(library, KeptPiece())
    assert reader.concurrency == 0
    assert read_range(reader, 3, 6000) == array.tobytes()[3:6000]


def test_a_piece_that_fails_is_not_kept() -> None:
    storage, array = NotedStorage(1 << 20), array_of(0)
    reader = PiecewiseArray(zstd_array(storage, array, (25, 64)), KeptPiece())
    (key, other) = storage.chunks
    good = storage.chunks[key]
    assert read_range(reader, 0, 10) == array.tobytes()[:10]
    assert read_range(reader, 7000, 7010) == array.tobytes()[7000:7010]
    storage.chunks[key] = storage.chunks[other][:-2]
    for _ in range(2):
        with pytest.raises(CodecError):
            read_range(reader, 0, 10)
    storage.chunks[key] = good
    assert read_range(reader, 0, 10) == array.tobytes()[:10]
