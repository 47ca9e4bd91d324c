"""Model stores in Zarr, as folders of both formats and as ZIP files."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr

from bf16codecs._files import publish as _publish
from bf16codecs.convert import Summary, safetensors_to_zarr, verify_store, zarr_to_safetensors
from bf16codecs.store import StoreError
from bf16codecs.store.zarr.writer import ZarrWriter
from edit_store import write_zip, zip_members
from folders import names_in
from store_contract import StoreContract


class ZarrContract(StoreContract):
    name = "m.zarr"
    writer = ZarrWriter

    def convert(self, source: Path, store: Path, **options: Any) -> Summary:
        return safetensors_to_zarr(source, store, **self.options, **options)

    def restore(self, store: Path, target: Path, **options: Any) -> Summary:
        return zarr_to_safetensors(store, target, **options)

    def keys(self, store: Path) -> list[str]:
        return [p.relative_to(store).as_posix() for p in store.rglob("*") if p.is_file()]

    def size(self, store: Path) -> int:
        return sum(len(self.read_chunk(store, key)) for key in self.keys(store))

    def chunks(self, store: Path) -> list[str]:
        names = {key: key.rpartition("/")[2] for key in self.keys(store)}
        return sorted(k for k, name in names.items() if not name.startswith((".z", "zarr.json")))

    def read_chunk(self, store: Path, chunk: str) -> bytes:
        return (store / chunk).read_bytes()

    def write_chunk(self, store: Path, chunk: str, content: bytes) -> None:
        (store / chunk).write_bytes(content)

    def remove_chunk(self, store: Path, chunk: str) -> None:
        (store / chunk).unlink()

    def edit(self, store: Path, change: Callable[[Any], object]) -> None:
        self.edit_root(store, lambda root: change(root["attributes"]["bf16codecs"]))

    def edit_root(self, store: Path, change: Callable[[Any], object]) -> None:
        """Change the metadata of the group that is the store."""
        root = json.loads(self.read_chunk(store, "zarr.json"))
        change(root)
        self.write_chunk(store, "zarr.json", json.dumps(root).encode())


class FolderContract(ZarrContract):
    @pytest.mark.parametrize("step", [1, 2])
    def test_failing_swap_keeps_the_old(
        self, model: Path, store: Path, monkeypatch: pytest.MonkeyPatch, step: int
    ) -> None:
        """Where names cannot be exchanged, the old folder is moved aside first."""
        monkeypatch.setattr(_publish, "_system_call", lambda: None)
        rename, calls = os.rename, []

        def fail(a: Any, b: Any, **options: Any) -> None:
            calls.append(a)
            if len(calls) == step:
                raise OSError(errno.EIO, "stopped")
            rename(a, b, **options)

        monkeypatch.setattr(os, "rename", fail)
        with pytest.raises(OSError, match="stopped"):
            self.convert(model, store, overwrite=True)
        assert names_in(model.parent) == {"m.safetensors", self.name}
        verify_store(store, model)

    def test_target_in_the_store(self, store: Path) -> None:
        with pytest.raises(ValueError, match="lies in the store"):
            self.restore(store, store / "m.safetensors")


class TestZarr3(FolderContract):
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda r: r.update(attributes={}), "not a model store"),
            (lambda r: r.update(node_type="cat"), "not a model store"),
            (
                lambda r: r["attributes"]["bf16codecs"]["tensors"].update(a="../m.zarr/a"),
                r"\.\./m\.zarr",
            ),
            (
                lambda r: r["consolidated_metadata"]["metadata"]["a"].update(
                    codecs=[{"name": "x"}]
                ),
                "tensor .a.: .*x",
            ),
        ],
        ids=["no attributes", "node type", "path out of the store", "unknown codec"],
    )
    def test_damaged_root(self, store: Path, change: Any, message: str) -> None:
        self.edit_root(store, change)
        with pytest.raises(StoreError, match=message):
            self.restore(store, store.with_name("back"))
        assert not store.with_name("back").exists()

    @pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # zarr compares NaNs
    def test_rewritten_by_zarr(self, store: Path, model: Path, tmp_path: Path) -> None:
        """Rechunked, sharded and recompressed by zarr, a store is still a model store."""
        group = zarr.open_group(store, mode="r")
        copy = zarr.create_group(tmp_path / "copy.zarr", attributes=dict(group.attrs))
        options: dict[str, dict[str, Any]] = {
            "a": {"chunks": (10, 3)},
            "b": {"chunks": (10,), "shards": (20,), "compressors": zarr.codecs.GzipCodec()},
            "safetensors/header/0": {"chunks": (50,)},
        }
        for path, option in options.items():
            old = group[path]
            new = copy.create_array(path, shape=old.shape, dtype=old.dtype, **option)
            new[...] = old[...]
        assert self.restored(tmp_path / "copy.zarr") == model.read_bytes()
        assert verify_store(tmp_path / "copy.zarr", model).tensors == 2


class TestZarr2(FolderContract):
    options = {"zarr_format": 2}

    def edit_root(self, store: Path, change: Callable[[Any], object]) -> None:
        consolidated = json.loads(self.read_chunk(store, ".zmetadata"))
        attributes = consolidated["metadata"][".zattrs"]
        change({"attributes": attributes})
        self.write_chunk(store, ".zattrs", json.dumps(attributes).encode())
        self.write_chunk(store, ".zmetadata", json.dumps(consolidated).encode())


class TestZip(ZarrContract):
    name = "m.zarr.zip"

    def size(self, store: Path) -> int:
        return store.stat().st_size

    def keys(self, store: Path) -> list[str]:
        with zipfile.ZipFile(store) as archive:
            return archive.namelist()

    def read_chunk(self, store: Path, chunk: str) -> bytes:
        with zipfile.ZipFile(store) as archive:
            return archive.read(chunk)

    def write_chunk(self, store: Path, chunk: str, content: bytes) -> None:
        write_zip(store, {**zip_members(store), chunk: content})

    def remove_chunk(self, store: Path, chunk: str) -> None:
        members = zip_members(store)
        del members[chunk]
        write_zip(store, members)

    def test_trained_model_in_format_2(
        self, demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(self, "options", {"zarr_format": 2})
        self.test_trained_model(demo_model, tmp_path)

    def test_files_are_reproducible(self, model: Path, tmp_path: Path) -> None:
        for name in ("1.zip", "2.zip"):
            self.convert(model, tmp_path / name, threads=1)
        assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()


def test_not_stores(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    zarr.create_array(tmp_path / "array", shape=(3,), dtype="u1")
    zarr.create_group(tmp_path / "group")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("x", "y")
    for name in ("empty", "array", "group", "x.zip"):
        with pytest.raises(StoreError):
            verify_store(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        verify_store(tmp_path / "missing")
