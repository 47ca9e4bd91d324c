"""Plain Zstandard chunks: those of other writers are read, and no claimed size is trusted."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import zstandard

import tiers
from bf16codecs.convert import (
    hdf5_to_safetensors,
    safetensors_to_hdf5,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import CorruptDataError, StoreError
from bf16codecs.model import open_model
from edit_store import edit_array, write_zip, zip_members
from looping import noted
from models import write_model

SIZE = 3000
BLOCK = 1 << 17  # bytes that a block of a frame can hold


def compressed(content: bytes, states_size: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=states_size).compress(content)


def run_length_blocks(count: int) -> bytes:
    """Return a frame of so many blocks of zeros, 4 bytes each, that does not state its size."""
    block = BLOCK << 3 | 1 << 1
    blocks = [(block | (i == count - 1)).to_bytes(3, "little") + b"\0" for i in range(count)]
    return b"\x28\xb5\x2f\xfd\x00\x70" + b"".join(blocks)


def claims(size: int) -> bytes:
    """Return an empty frame that states this size."""
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\0\0"


SKIPPABLE = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"

HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "claims a terabyte": lambda raw: claims(1 << 40),
    "claims everything": lambda raw: claims((1 << 64) - 1),
    "claims the chunk's size": lambda raw: claims(SIZE),
    "half a gigabyte, unstated": lambda raw: run_length_blocks(4096),
    "half a gigabyte behind the chunk": lambda raw: compressed(raw) + run_length_blocks(4096),
    "shorter": lambda raw: compressed(raw[:-1]),
    "shorter, unstated": lambda raw: compressed(raw[:-1], False),
    "longer": lambda raw: compressed(raw + b"x"),
    "longer, unstated": lambda raw: compressed(raw + b"x", False),
    "two frames, shorter": lambda raw: compressed(raw[:9]) + compressed(raw[9:-1]),
    "bytes behind it": lambda raw: compressed(raw) + b"junk",
    "no frame": lambda raw: b"no frame at all",
    "one byte": lambda raw: b"\x28",
    "skippable alone": lambda raw: SKIPPABLE,
}

#: Rarer forms that other writers use.
VALID: dict[str, Callable[[bytes], bytes]] = {
    "size unstated": lambda raw: compressed(raw, False),
    "two frames": lambda raw: compressed(raw[:1000]) + compressed(raw[1000:]),
    "two frames, one unstated": lambda raw: compressed(raw[:1000]) + compressed(raw[1000:], False),
    "skippable frames": lambda raw: SKIPPABLE + compressed(raw) + SKIPPABLE,
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.safetensors", [("n", "U8", (SIZE,)), ("x", "BF16", (7, 9))])


def raw_of(source: Path) -> bytes:
    with open_model(source) as model:
        return model["n"][...].tobytes()


def with_chunk(source: Path, name: str, chunk: bytes) -> Path:
    """Make a store whose first tensor is stored as `chunk`."""
    store = source.with_name(name)
    if name.endswith(".h5"):
        safetensors_to_hdf5(source, store, codec="zstd", overwrite=True)
        with h5py.File(store, "r+") as file:
            file["n"].id.write_direct_chunk((0,), chunk)
        return store
    zarr_format = 2 if name == "m2.zarr" else 3
    safetensors_to_zarr(source, store, codec="zstd", zarr_format=zarr_format, overwrite=True)
    if store.is_dir():
        (store / "n" / ("0" if zarr_format == 2 else "c.0")).write_bytes(chunk)
        return store
    write_zip(store, {**zip_members(store), "n/c.0": chunk})
    return store


stores = pytest.mark.parametrize("name", ["m.zarr", "m2.zarr", "m.zarr.zip", "m.h5"])


@stores
def test_hostile_chunks_are_refused_in_little_memory(source, name, tmp_path):
    restore = hdf5_to_safetensors if name.endswith(".h5") else zarr_to_safetensors
    step = 1 if name == "m.zarr" else tiers.by_tier(3, 1)
    for kind, make in list(HOSTILE.items())[::step]:
        store = with_chunk(source, name, make(raw_of(source)))
        with noted(kind):
            for read in (
                lambda store: restore(store, tmp_path / "back"),
                verify_store,
                lambda store: open_model(store)["n"][5:9],
                lambda store: open_model(store).load(),
            ):
                tracemalloc.start()
                try:
                    with pytest.raises(CorruptDataError, match="'n', chunk"):
                        read(store)
                    assert tracemalloc.get_traced_memory()[1] < 16 << 20
                finally:
                    tracemalloc.stop()
            assert not (tmp_path / "back").exists()


@stores
def test_frames_of_other_writers_are_read(source, name, tmp_path):
    restore = hdf5_to_safetensors if name.endswith(".h5") else zarr_to_safetensors
    for kind, make in VALID.items():
        store = with_chunk(source, name, make(raw_of(source)))
        with noted(kind):
            restore(store, tmp_path / "back", overwrite=True)
            assert (tmp_path / "back").read_bytes() == source.read_bytes()
            with open_model(store) as model:
                assert model["n"][5:9].tobytes() == raw_of(source)[5:9]
                assert np.array_equal(model.load()["n"], np.frombuffer(raw_of(source), np.uint8))


def test_a_chunk_that_no_frame_of_its_size_could_hold_is_refused_before_memory_is_taken(source):
    """The array's metadata claim a chunk of 2^40 bytes, and the frame and the caller agree."""
    store = with_chunk(source, "m.zarr", claims(1 << 40))
    edit_array(store, "n", lambda a: a["chunk_grid"]["configuration"].update(chunk_shape=[1 << 40]))
    trusting = open_model(store, max_bytes=1 << 40)
    with trusting as model, pytest.raises(CorruptDataError, match="cannot hold"):
        model["n"][5]
    with open_model(store) as model, pytest.raises(StoreError, match="max_bytes"):
        model["n"]
