"""Model stores in HDF5."""

from __future__ import annotations

import ast
import importlib.util
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import tiers
from bf16codecs import hdf5, open_model
from bf16codecs.convert import (
    Summary,
    hdf5_to_safetensors,
    safetensors_to_hdf5,
    verify_store,
)
from bf16codecs.safetensors import read_header
from bf16codecs.store import StoreError
from bf16codecs.store.hdf5.writer import Hdf5Writer
from edit_store import edit_attributes
from folders import names_in
from lazy_models import write_safetensors
from looping import noted
from models import every_dtype
from store_contract import CODECS, QUICK_CODECS, StoreContract, codec_options


class TestHDF5(StoreContract):
    name = "m.h5"
    writer = Hdf5Writer
    most_elements = 2**61

    def convert(self, source: Path, store: Path, **options: Any) -> Summary:
        return safetensors_to_hdf5(source, store, **options)

    def restore(self, store: Path, target: Path, **options: Any) -> Summary:
        return hdf5_to_safetensors(store, target, **options)

    def codecs(self) -> list[str]:
        has_zstd = importlib.util.find_spec("hdf5plugin") is not None
        return [codec for codec in CODECS if has_zstd or not codec.startswith("zstd")]

    def can_become(self, raw: bytes, content: bytes, codec: str) -> bool:
        # Chunks without a filter have one size for HDF5, and no chunk is empty.
        return len(content) == len(raw) if codec == "none" else len(content) > 0

    def size(self, store: Path) -> int:
        return store.stat().st_size

    def chunks(self, store: Path) -> list[str]:
        with h5py.File(store) as file:
            return [
                f"{name} {tuple(np.floor_divide(info.chunk_offset, file[name].chunks).tolist())}"
                for name in ("a", "b")
                for info in map(file[name].id.get_chunk_info, range(file[name].id.get_num_chunks()))
            ]

    def chunk(self, file: h5py.File, chunk: str) -> tuple[h5py.Dataset, tuple[int, ...]]:
        """Return the array that has a chunk, and the chunk's origin in it."""
        name, _, index = chunk.partition(" ")
        return file[name], tuple(np.multiply(ast.literal_eval(index), file[name].chunks).tolist())

    def read_chunk(self, store: Path, chunk: str) -> bytes:
        with h5py.File(store) as file:
            dataset, origin = self.chunk(file, chunk)
            return dataset.id.read_direct_chunk(origin)[1]

    def write_chunk(self, store: Path, chunk: str, content: bytes) -> None:
        with h5py.File(store, "r+") as file:
            dataset, origin = self.chunk(file, chunk)
            dataset.id.write_direct_chunk(origin, content)

    def remove_chunk(self, store: Path, chunk: str) -> None:
        """Replace the array by one without this chunk: HDF5 cannot remove chunks."""
        with h5py.File(store, "r+") as file:
            old, origin = self.chunk(file, chunk)
            name, old_id = old.name.encode(), old.id
            infos = map(old_id.get_chunk_info, range(old_id.get_num_chunks()))
            kept = [i.chunk_offset for i in infos if i.chunk_offset != origin]
            attributes = dict(old.attrs)
            file.move(old.name, "old")
            new_id = h5py.h5d.create(
                file.id, name, old_id.get_type(), old_id.get_space(), old_id.get_create_plist()
            )
            for offset in kept:
                new_id.write_direct_chunk(offset, old_id.read_direct_chunk(offset)[1])
            h5py.Dataset(new_id).attrs.update(attributes)
            del file["old"]

    def edit(self, store: Path, change: Callable[[Any], object]) -> None:
        edit_attributes(store, change)

    def test_every_codec_and_chunk_size(self, tmp_path: Path) -> None:
        source, store = every_dtype(tmp_path / "m.safetensors"), tmp_path / "m.h5"
        tried = [codec for codec in self.codecs() if codec in tiers.by_tier(QUICK_CODECS, CODECS)]
        for i, codec in enumerate(tried):
            for chunk_size in tiers.by_tier([(100, 10**9)[i % 2]], [16, 100, 10**9]):
                with noted(codec, chunk_size):
                    options = {"threads": 2, "chunk_size": chunk_size, **codec_options(codec)}
                    self.convert(source, store, overwrite=True, **options)
                    assert self.restored(store, threads=3) == source.read_bytes()
                    verify_store(store, source)

    def test_arrays_are_not_zarrs(self, store: Path) -> None:
        with open_model(store) as model, pytest.raises(ValueError, match="no Zarr arrays"):
            _ = model["a"].zarr

    def test_chunks_are_bounded(self, model: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="4294967295 bytes at most"):
            self.convert(model, tmp_path / "x.h5", chunk_size=1 << 32)
        assert names_in(tmp_path) == {"m.safetensors"}

    def test_links_to_other_files_are_refused(self, store: Path, model: Path) -> None:
        self.convert(model, store.with_name("other.h5"))
        with h5py.File(store, "r+") as file:
            file["outside"] = h5py.ExternalLink("other.h5", "a")
        self.edit(store, lambda attributes: attributes["tensors"].update(a="outside"))
        with pytest.raises(StoreError, match="external link"):
            self.restore(store, store.with_name("back"))
        assert not store.with_name("back").exists()

    def test_datasets_elsewhere_are_refused(self, store: Path) -> None:
        """A store must not make its reader open other files."""
        with h5py.File(store, "r+") as file:
            del file["b"]
            elsewhere = [("m.safetensors", 0, h5py.h5f.UNLIMITED)]
            file.create_dataset("b", (50,), "i4", external=elsewhere)
        with pytest.raises(StoreError, match="in another file"):
            self.restore(store, store.with_name("back"))
        with h5py.File(store, "r+") as file:
            del file["b"]
            layout = h5py.VirtualLayout((50,), "i4")
            layout[:] = h5py.VirtualSource("other.h5", "b", (50,))
            file.create_virtual_dataset("b", layout)
        with pytest.raises(StoreError, match="in another file"):
            self.restore(store, store.with_name("back"))

    def test_not_stores(self, tmp_path: Path, model: Path) -> None:
        (tmp_path / "text.h5").write_text("no file of HDF5")
        h5py.File(tmp_path / "empty.h5", "w").close()
        cut = tmp_path / "cut.h5"
        self.convert(model, cut)
        cut.write_bytes(cut.read_bytes()[:500])
        for name in ("text.h5", "empty.h5", "cut.h5", "m.safetensors"):
            with pytest.raises(StoreError) as caught:
                self.restore(tmp_path / name, tmp_path / "back")
            assert name in str(caught.value)
            assert "\n" not in str(caught.value)
        with pytest.raises(FileNotFoundError):
            self.restore(tmp_path / "missing", tmp_path / "back")


def test_h5py_reads_every_dtype(tmp_path: Path) -> None:
    source = every_dtype(tmp_path / "m.safetensors")
    safetensors_to_hdf5(source, tmp_path / "m.h5", chunk_size=100)
    header, content = read_header(source), source.read_bytes()
    with h5py.File(tmp_path / "m.h5") as file:
        paths = json.loads(file.attrs["bf16codecs"])["tensors"]
        for tensor in header.tensors:
            dataset = file[paths[tensor.name]]
            own = json.loads(dataset.attrs["bf16codecs"])
            assert (own["tensor"], own["dtype"]) == (tensor.name, tensor.dtype)
            assert tuple(own.get("shape", dataset.shape)) == tensor.shape
            start = header.data_start + tensor.start
            assert hdf5.read_tensor(dataset).tobytes() == content[start : start + tensor.nbytes]
        raw = file["safetensors/header/0"]
        assert raw[:].tobytes() == header.raw
        assert raw.compression == "gzip"  # readable without the plugin


def test_a_file_that_the_garbage_collector_closes_meanwhile(tmp_path, monkeypatch, arrays) -> None:
    """h5py then raises an error about a file that HDF5 has just listed."""
    path = tmp_path / "m.h5"
    safetensors_to_hdf5(write_safetensors(tmp_path / "m.safetensors", arrays), path)
    garbage = [h5py.File(path)]
    garbage.append(garbage)
    collected = weakref.ref(garbage[0].id)
    del garbage
    real = h5py.h5f.get_obj_ids

    def get_obj_ids(*args: Any) -> Any:
        if collected() is not None:
            raise RuntimeError("Can't increment id ref count (can't locate ID)")
        return real(*args)

    monkeypatch.setattr(h5py.h5f, "get_obj_ids", get_obj_ids)
    with open_model(path) as model:
        assert set(model) == set(arrays)
