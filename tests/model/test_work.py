"""The amount of decoded data of a call is bounded, not only its result."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numcodecs
import numpy as np
import pytest
import zarr

import bf16codecs
import tiers
from based_models import convert
from bf16codecs._arrays import formats, library
from bf16codecs.convert import safetensors_to_hdf5, verify_store, zarr_to_safetensors
from bf16codecs.hdf5 import direct, read_tensor
from bf16codecs.store import StoreError
from edit_store import edit_array
from lazy_models import weights, write_safetensors, write_store
from store_limits import lower_limits

CHUNK = tiers.by_tier(1 << 20, 1 << 22)
ROWS = 12
ARRAYS = {"w": np.zeros((ROWS, CHUNK), np.uint8)}
ARRAYS["w"][:, 5] = range(1, ROWS + 1)
OPTIONS: dict[str, Any] = {"codec": "zstd", "chunk_size": CHUNK}


def in_form(path: Path, form: str) -> Path:
    """Write the arrays in chunks that are rows."""
    if form == "hdf5":
        pytest.importorskip("hdf5plugin")
        source = write_safetensors(path / "m.safetensors", ARRAYS)
        safetensors_to_hdf5(source, path / "m.h5", **OPTIONS)
        return path / "m.h5"
    store = write_store(path / "m.zarr", ARRAYS, **OPTIONS)
    if form == "gzip":
        group = zarr.open_group(store)
        zarr.create_array(
            group.store,
            name="w",
            data=ARRAYS["w"],
            chunks=(1, CHUNK),
            compressors=zarr.codecs.GzipCodec(level=9),
            config={"write_empty_chunks": True},
            overwrite=True,
        )
        zarr.consolidate_metadata(group.store)
    return store


@pytest.fixture(scope="module", params=["zstd", "gzip", "hdf5"])
def store(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_form(tmp_path_factory.mktemp("work"), request.param)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    lower_limits(monkeypatch, 2 * CHUNK, ratio=10)


MANY = [
    np.s_[:, 3:7],
    np.s_[::5, 3:7],
    np.s_[[0, 5, 11], 3:7],
    np.s_[:, [3, 9]],
    np.s_[..., 5],
    np.s_[[0, 5, 11], [3, 5, 5]],
]
FEW = [
    np.s_[3:5, 3:7],
    np.s_[::11, 5],
    np.s_[-1],
    np.s_[[0, 0, 1, 0], [3, 5, 5, 1000]],
    np.s_[:0, 5],
    np.s_[[], []],
]


def test_slices_that_need_many_chunks(store: Path, small_limits: None) -> None:
    """48 bytes of 12 chunks of 1 GiB each took 3 GB of memory, and half a minute."""
    with bf16codecs.open_model(store) as model:
        for selection in FEW:
            assert (model["w"][selection] == ARRAYS["w"][selection]).all()
        for selection in MANY:
            with pytest.raises(StoreError, match=r"tensor 'w': \d+ bytes once decoded.*max_bytes"):
                model["w"][selection]
    # The caller's limit is on the memory of a call's result.
    with bf16codecs.open_model(store, max_bytes=CHUNK) as model:
        for selection in (*FEW, *MANY):
            assert (model["w"][selection] == ARRAYS["w"][selection]).all()
        with pytest.raises(StoreError, match=f"more than max_bytes allows \\({CHUNK}\\)"):
            model["w"][3:5]


@pytest.mark.parametrize("codec", ["arithmetic", "none"])
def test_slices_of_blocks(
    tmp_path: Path, small_limits: None, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    """Chunks that are decoded in part count in part."""
    monkeypatch.setattr("bf16codecs._core.MAX_BLOCK_BYTES", 1 << 16)
    arrays = {"w": ARRAYS["w"].view("bfloat16")}
    with bf16codecs.open_model(
        write_store(tmp_path / "m.zarr", arrays, codec=codec, chunk_size=CHUNK)
    ) as model:
        for selection in (*FEW, *MANY):
            expected = arrays["w"][selection]
            assert model["w"][selection].tobytes() == expected.tobytes()
        if codec == "arithmetic":  # the others are there
            with pytest.raises(StoreError, match="max_bytes"):
                model["w"][:, :: CHUNK // 4]


def test_chunks_that_are_far_larger_than_their_arrays(tmp_path: Path, small_limits: None) -> None:
    names = [f"t{i}" for i in range(3)]
    small = {name: np.zeros((1, 4), np.uint8) for name in names}
    store = write_store(tmp_path / "m.zarr", small, codec="zstd")
    for name in names:
        edit_array(
            store,
            name,
            lambda node: node["chunk_grid"]["configuration"].update(chunk_shape=[1, CHUNK]),
        )
        (store / name / "c.0.0").write_bytes(numcodecs.Zstd().encode(bytes(CHUNK)))
    with bf16codecs.open_model(store) as model:
        assert not model["t0"][...].any()
        assert not any(array.any() for array in model.load(names=names[:2]).values())
        with pytest.raises(StoreError, match=f"3 tensors: {3 * CHUNK} bytes once decoded"):
            model.load()
    for read in (verify_store, lambda path: zarr_to_safetensors(path, tmp_path / "back")):
        with pytest.raises(StoreError, match=f"original files: {3 * CHUNK} bytes once decoded"):
            read(store)


def test_bases_count(tmp_path: Path, small_limits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a difference is in all chunks of a base, if these are columns.

    A base of 256 MiB, of 25 kB once stored, took 3.9 s instead of 0.4.
    """
    lower_limits(monkeypatch, 1 << 23, ratio=5)
    monkeypatch.setattr("bf16codecs._core.MAX_BLOCK_BYTES", 1 << 19)
    source = write_safetensors(tmp_path / "m.safetensors", {"w": weights((4096, 1024))})
    base = convert("zarr3", source, tmp_path / "base")
    middle = convert("hdf5", source, tmp_path / "middle", base=base)
    store = convert("zarr3", source, tmp_path / "m", base=middle)
    verify_store(store, source)
    group = zarr.open_group(base)
    rows = group["w"]
    zarr.create_array(
        group.store,
        name="w",
        data=rows[...],
        chunks=(4096, 16),
        serializer=rows.serializer,
        compressors=None,
        fill_value=rows.fill_value,
        attributes=dict(rows.attrs),
        overwrite=True,
    )
    zarr.consolidate_metadata(group.store)
    with bf16codecs.open_model(store) as model, bf16codecs.open_model(source) as original:
        for read in (model.load, lambda: model["w"][...], lambda: verify_store(store)):
            with pytest.raises(StoreError, match=r"chunks of .*\d+ bytes once decoded.*max_bytes"):
                read()
        assert model["w"][7].tobytes() == original["w"][7].tobytes()
        assert model["w"][[5, 9], [3, 700]].tobytes() == original["w"][[5, 9], [3, 700]].tobytes()
    verify_store(store, source, max_bytes=1 << 24)


def test_shards_that_are_credible_beside_a_base(
    tmp_path: Path, small_limits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that zarr reads may be large for its store, if it is not for store and base."""
    lower_limits(monkeypatch, 1 << 16, ratio=4)
    shared, added = weights((512, 1024)), np.ones((512, 512), np.float32)
    source = write_safetensors(tmp_path / "base.safetensors", {"w": shared})
    base = convert("zarr3", source, tmp_path / "base")
    fine = write_safetensors(tmp_path / "m.safetensors", {"w": shared, "added": added})
    store = convert("zarr3", fine, tmp_path / "m", base=base)
    group = zarr.open_group(store)
    zarr.create_array(
        group.store,
        name="added",
        data=added,
        chunks=(64, 64),
        shards=(512, 512),
        attributes=dict(group["added"].attrs),
        overwrite=True,
    )
    zarr.consolidate_metadata(group.store)
    assert added.nbytes > 4 * sum(p.stat().st_size for p in store.rglob("*") if p.is_file())
    with bf16codecs.open_model(store) as model:
        assert model["added"][7].tobytes() == added[7].tobytes()
        assert model["added"].zarr.shape == added.shape
    lower_limits(monkeypatch, 1 << 16, ratio=1)
    refusal = r"m.zarr: a chunk of added: 1048576 bytes once decoded.*max_bytes"
    with bf16codecs.open_model(store) as model, pytest.raises(StoreError, match=refusal):
        model["added"][7]


def test_blocks_of_any_size_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame's blocks may have 4 MiB, more than this package writes."""
    lower_limits(monkeypatch, 1 << 23, ratio=10)
    arrays = {"w": np.zeros((64, 1 << 21), "bfloat16")}
    store = write_store(tmp_path / "m.zarr", arrays, chunk_size=1 << 22)
    with (
        bf16codecs.open_model(store) as model,
        pytest.raises(StoreError, match="chunks of tensor 'w': 268435456 bytes once decoded"),
    ):
        model["w"][:, 5]


def test_steps_through_a_dataset_without_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 reads the whole box around the steps."""
    monkeypatch.setattr("bf16codecs._arrays.library.SLAB_BYTES", 1000)
    values = np.arange(60 * 50, dtype="i4").reshape(60, 50)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = values
        regions: list[int] = []
        read = direct.read_region

        def recorded(dataset: Any, region: Any, out: Any, item_type: Any) -> None:
            regions.append(out.size)
            read(dataset, region, out, item_type)

        monkeypatch.setattr(direct, "read_region", recorded)
        for selection in (np.s_[::59, ::49], np.s_[[0, 30], 1:3], np.s_[3:5, 7:9]):
            found = read_tensor(file["x"], selection)
            assert (found == values[selection]).all()
    assert max(regions) <= 250


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Return the threads that decode chunks, of four."""
    threads: set[int] = set()
    for owner, name in ((formats.ZstdFormat, "_decode"), (library.LibraryArray, "_read_named")):
        method = getattr(owner, name)

        def recorded(*args: Any, method: Any = method) -> Any:
            threads.add(threading.get_ident())
            return method(*args)

        wrapped = staticmethod(recorded) if owner is formats.ZstdFormat else recorded
        monkeypatch.setattr(owner, name, wrapped)
    before = bf16codecs.get_num_threads()
    bf16codecs.set_num_threads(4)
    yield threads
    bf16codecs.set_num_threads(before)


def test_as_many_chunks_at_a_time_as_memory_allows(
    store: Path, decoders: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bf16codecs._arrays.library.SLAB_BYTES", CHUNK // 2)
    reads = (lambda w: w[:, 3:7], lambda w: w[list(range(ROWS)), [5] * ROWS], lambda w: w[...])
    here = {threading.get_ident()}
    with bf16codecs.open_model(store) as model:
        for read in (*reads, lambda w: model.load()["w"]):
            monkeypatch.setattr("bf16codecs._base.threads.IN_FLIGHT_BYTES", 8 * CHUNK)
            decoders.clear()
            expected = read(model["w"])
            assert decoders - here, "nothing was decoded in parallel"
            monkeypatch.setattr("bf16codecs._base.threads.IN_FLIGHT_BYTES", 2 * CHUNK - 1)
            decoders.clear()
            assert (read(model["w"]) == expected).all()
            assert decoders == here
    if store.suffix == ".h5":
        with h5py.File(store) as file:
            decoders.clear()
            read_tensor(file["w"], np.s_[:, 3:7])
            assert decoders == here
