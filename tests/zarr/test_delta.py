"""The codec of differences, alone and before one that compresses."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec, GzipCodec

from bf16codecs import RunLength
from bf16codecs.errors import CorruptDataError
from bf16codecs.zarr import DeltaCodec
from looping import for_each

HALVES = np.arange(65536, dtype="<u2").view("<f2")  # all of them: NaNs of every payload, both zeros
AFTER: list[list[Any]] = [[], [RunLength(), Crc32cCodec()], [GzipCodec(level=9)]]


def summed(encoded: bytes, size: int) -> bytes:
    """Decode as the codec's page says, integer by integer."""
    total, out = 0, b""
    for at in range(0, len(encoded), size):
        total = (total + int.from_bytes(encoded[at : at + size], "little")) % (1 << 8 * size)
        out += total.to_bytes(size, "little")
    return out


@for_each("after", AFTER, ids=["alone", "run lengths", "gzip"])
@for_each("dtype", ["|u1", "<u2", "<u4", "<u8"])
@pytest.mark.usefixtures("pipeline")
def test_every_half_comes_back(new_folder, after, dtype):
    folder = new_folder()
    options = {
        "compressors": [DeltaCodec(dtype), *after],
        "config": {"write_empty_chunks": True},
    }
    array = zarr.create_array(
        folder, shape=HALVES.shape, chunks=(5000,), dtype="float16", **options
    )
    array[:] = HALVES
    for a in (array, zarr.open_array(folder, mode="r")):
        assert a[:].tobytes() == HALVES.tobytes()
        assert a[4000:6001:7].tobytes() == HALVES[4000:6001:7].tobytes()


@pytest.mark.usefixtures("pipeline")
def test_shards(tmp_path):
    array = zarr.create_array(
        tmp_path,
        data=HALVES.reshape(64, -1),
        chunks=(8, 256),
        shards=(32, 512),
        compressors=[DeltaCodec("<u2"), RunLength(), Crc32cCodec()],
    )
    assert array[:].tobytes() == HALVES.tobytes()
    assert array[3, 70:80].tobytes() == HALVES.reshape(64, -1)[3, 70:80].tobytes()


@given(st.lists(st.integers(0, 65535), min_size=1, max_size=40))
def test_chunks_are_what_the_page_says(items):
    data = np.array(items, "<u2").view("<f2")
    store: dict[str, Any] = {}
    options = {"compressors": DeltaCodec("<u2"), "config": {"write_empty_chunks": True}}
    zarr.create_array(store, data=data, **options)
    assert summed(store["c/0"].to_bytes(), 2) == data.tobytes()


def test_other_configurations_are_refused():
    codec = DeltaCodec("<u2")
    assert codec.to_dict() == {"name": "bf16codecs.delta", "configuration": {"dtype": "<u2"}}
    for twin in (DeltaCodec.from_dict(codec.to_dict()), pickle.loads(pickle.dumps(codec))):
        assert twin == codec
    assert codec.compute_encoded_size(10, None) == 10
    for dtype in ("<f2", "<i2", ">u2", "u2", "<u3", "O", 2, None):
        with pytest.raises(ValueError, match="dtype must be"):
            DeltaCodec(dtype)
    for configuration in ({}, {"dtype": "<u2", "astype": "<u1"}):
        with pytest.raises((TypeError, ValueError)):
            DeltaCodec.from_dict({"name": codec.codec_id, "configuration": configuration})


@pytest.mark.parametrize("stored", [b"", bytes(9)])
def test_bytes_that_are_no_whole_integers_are_refused(tmp_path, stored):
    array = zarr.create_array(tmp_path, data=HALVES[:5], compressors=DeltaCodec("<u2"))
    (tmp_path / "c/0").write_bytes(stored)
    with pytest.raises(CorruptDataError, match=f"^a chunk of {len(stored)} bytes does not"):
        array[:]
