"""Model stores in HDF5: the same guarantees as in Zarr."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import bf16codecs
from bf16codecs import hdf5
from bf16codecs.convert import (
    hdf5_to_safetensors,
    open_store,
    safetensors_to_hdf5,
    safetensors_to_zarr,
    verify_store,
)
from bf16codecs.errors import CodecError, CorruptDataError, UnsupportedVersionError
from bf16codecs.safetensors import read_header
from bf16codecs.store import StoreError
from bf16codecs.store.hdf5_writer import Hdf5Writer
from models import TRICKY_NAMES, every_dtype, file_bytes, write_model

CODECS = ["arithmetic", "arithmetic best", "huffman", "zstd 9", "split", "none"]


def names_in(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def restored(store: Path, **options: Any) -> bytes:
    target = store.with_name("restored")
    hdf5_to_safetensors(store, target, **options)
    content = target.read_bytes()
    target.unlink()
    return content


def need(codec: str) -> None:
    if codec.startswith("zstd"):
        pytest.importorskip("hdf5plugin")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.safetensors", [("a", "BF16", (64, 8)), ("b", "I32", (50,))])


@pytest.fixture
def store(model: Path) -> Path:
    path = model.with_name("m.h5")
    safetensors_to_hdf5(model, path, chunk_size=256)
    return path


@pytest.mark.parametrize("codec", CODECS)
def test_trained_model(demo_model: Path, tmp_path: Path, codec: str) -> None:
    need(codec)
    name, _, level = codec.partition(" ")
    target = tmp_path / "m.h5"
    summary = safetensors_to_hdf5(demo_model, target, codec=name, level=level or None)
    assert names_in(tmp_path) == {"m.h5"}
    assert restored(target) == demo_model.read_bytes()
    assert summary.stored_nbytes == target.stat().st_size
    if name not in ("split", "none"):
        assert summary.stored_nbytes < 0.85 * summary.nbytes
    assert verify_store(target, demo_model).tensors == summary.tensors


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("chunk_size", [16, 100, 10**9])
def test_every_dtype_and_chunk_size(tmp_path: Path, codec: str, chunk_size: int) -> None:
    need(codec)
    source = every_dtype(tmp_path / "m.safetensors")
    name, _, level = codec.partition(" ")
    options = {"codec": name, "level": level or None, "chunk_size": chunk_size}
    safetensors_to_hdf5(source, tmp_path / "m.h5", threads=2, **options)
    assert restored(tmp_path / "m.h5", threads=3) == source.read_bytes()
    verify_store(tmp_path / "m.h5", source)


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


def test_tricky_names(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m", [(name, "BF16", (3, 2)) for name in TRICKY_NAMES])
    safetensors_to_hdf5(source, tmp_path / "m.h5")
    assert restored(tmp_path / "m.h5") == source.read_bytes()


def test_large_attributes(tmp_path: Path) -> None:
    """More than the 64 kB that an attribute of HDF5 holds in itself."""
    source = write_model(tmp_path / "m", [(f"{i:0200}", "U8", (1,)) for i in range(500)])
    safetensors_to_hdf5(source, tmp_path / "m.h5")
    assert restored(tmp_path / "m.h5") == source.read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        file_bytes(b"{}"),
        file_bytes(b' \n{"__metadata__": {"b": "1", "a": "2"}}  \t'),
        file_bytes(b'{"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}', b"\0\x02\xff"),
        file_bytes(b'{"a":{"dtype":"F32","shape":[0,%d],"data_offsets":[0,0]}}' % 2**61),
        file_bytes(b'{"a":{"dtype":"F4","shape":%s,"data_offsets":[0,1]}}' % b"[1,2]", b"x"),
        file_bytes(
            b'{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,1]}}' % b",".join([b"1"] * 70),
            b"x",
        ),
    ],
    ids=["empty", "spaces", "odd booleans", "vast empty", "packed", "70 dimensions"],
)
def test_odd_files(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "m.safetensors"
    source.write_bytes(content)
    safetensors_to_hdf5(source, tmp_path / "m.h5")
    assert restored(tmp_path / "m.h5") == content


@pytest.mark.parametrize("indexed", [True, False])
def test_shards(tmp_path: Path, indexed: bool) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(folder / "m-1.safetensors", [("a", "BF16", (64, 8)), ("b", "I32", (9,))], 1)
    write_model(folder / "m-2.safetensors", [("c", "BF16", (32, 2))], 2)
    if indexed:
        where = {"c": "m-2.safetensors", "a": "m-1.safetensors", "b": "m-1.safetensors"}
        text = json.dumps({"metadata": {}, "weight_map": where}, indent=3)
        (folder / "m.safetensors.index.json").write_text(text)
    safetensors_to_hdf5(folder, tmp_path / "m.h5", chunk_size=64)
    hdf5_to_safetensors(tmp_path / "m.h5", tmp_path / "back")
    assert names_in(tmp_path / "back") == names_in(folder)
    for name in names_in(folder):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()
    verify_store(tmp_path / "m.h5", folder)


def test_existing_target(model: Path, store: Path) -> None:
    before = store.read_bytes()
    with pytest.raises(FileExistsError):
        safetensors_to_hdf5(model, store)
    assert store.read_bytes() == before
    safetensors_to_hdf5(model, store, overwrite=True, codec="none")
    assert store.read_bytes() != before
    other = model.with_name("precious")
    other.write_text("x")
    with pytest.raises(FileExistsError):
        safetensors_to_hdf5(model, other, overwrite=True)
    assert other.read_text() == "x"
    assert names_in(model.parent) == {"m.safetensors", "m.h5", "precious"}


def test_failing_write_keeps_the_old(
    model: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> int:
        raise OSError(errno.EIO, "stopped")

    monkeypatch.setattr(Hdf5Writer, "write", fail)
    with pytest.raises(OSError, match="stopped"):
        safetensors_to_hdf5(model, store, overwrite=True)
    assert names_in(model.parent) == {"m.safetensors", "m.h5"}
    verify_store(store, model)


def test_codec_that_lies_is_found(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(self: bf16codecs.BF16Huffman, buf: Any) -> bytes:
        wrong = bytearray(np.asarray(buf).tobytes())
        wrong[3] ^= 1
        return bf16codecs.BF16Split().encode(wrong)

    monkeypatch.setattr(bf16codecs.BF16Huffman, "encode", lie)
    with pytest.raises(CorruptDataError, match="differs from its source"):
        safetensors_to_hdf5(model, tmp_path / "x.h5", codec="huffman")
    assert names_in(tmp_path) == {"m.safetensors"}


def test_chunks_are_bounded(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="4294967295 bytes at most"):
        safetensors_to_hdf5(model, tmp_path / "x.h5", chunk_size=1 << 32)
    assert names_in(tmp_path) == {"m.safetensors"}


@pytest.mark.parametrize("codec", ["arithmetic", "none"])
def test_damaged_chunks(model: Path, tmp_path: Path, codec: str) -> None:
    safetensors_to_hdf5(model, tmp_path / "m.h5", codec=codec, chunk_size=256)
    damages = {
        "flipped": lambda raw: raw[:-9] + bytes([raw[-9] ^ 8]) + raw[-8:],
        "cut": lambda raw: raw[:-1],
        "longer": lambda raw: raw + b"x",
        "huge": lambda raw: raw * 100,
        "other": lambda raw: bf16codecs.BF16Zstd().encode(b"x" * 10),
    }
    for name in ("a", "b"):
        for kind, damage in damages.items():
            if codec == "none" and kind != "flipped":
                continue  # chunks without a filter have one size for HDF5, whatever is written
            with h5py.File(tmp_path / "m.h5", "r+") as file:
                origin = (0,) * file[name].ndim
                raw = file[name].id.read_direct_chunk(origin)[1]
                file[name].id.write_direct_chunk(origin, damage(raw))
            with pytest.raises((CodecError, StoreError)) as caught:
                hdf5_to_safetensors(tmp_path / "m.h5", tmp_path / "back")
            assert "\n" not in str(caught.value)
            with h5py.File(tmp_path / "m.h5", "r+") as file:
                file[name].id.write_direct_chunk(origin, raw)
    assert names_in(tmp_path) == {"m.safetensors", "m.h5"}
    assert restored(tmp_path / "m.h5") == model.read_bytes()


def edit(store: Path, **changes: Any) -> None:
    with h5py.File(store, "r+") as file:
        file.attrs["bf16codecs"] = json.dumps({**json.loads(file.attrs["bf16codecs"]), **changes})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"layout": 9}, UnsupportedVersionError, "upgrade"),
        ({"layout": None}, StoreError, "not a model store"),
        ({"tensors": {"b": "b"}}, StoreError, "no array for"),
        ({"tensors": {"a": "b", "b": "b"}}, StoreError, "tensor 'a' is BF16"),
        ({"tensors": {"a": "safetensors", "b": "b"}}, StoreError, "is not an array"),
        ({"tensors": {"a": "missing", "b": "b"}}, StoreError, "is missing"),
        ({"tensors": {"a": "outside", "b": "b"}}, StoreError, "in another file"),
    ],
)
def test_damaged_attributes(
    store: Path, model: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    safetensors_to_hdf5(model, store.with_name("other.h5"))
    with h5py.File(store, "r+") as file:
        file["outside"] = h5py.ExternalLink("other.h5", "a")
    edit(store, **change)
    with pytest.raises(error, match=message):
        hdf5_to_safetensors(store, store.with_name("back"))
    assert not store.with_name("back").exists()


def test_datasets_elsewhere_are_refused(store: Path) -> None:
    """A store must not make its reader open other files."""
    with h5py.File(store, "r+") as file:
        del file["b"]
        file.create_dataset("b", (50,), "i4", external=[("m.safetensors", 0, h5py.h5f.UNLIMITED)])
    with pytest.raises(StoreError, match="in another file"):
        hdf5_to_safetensors(store, store.with_name("back"))
    with h5py.File(store, "r+") as file:
        del file["b"]
        layout = h5py.VirtualLayout((50,), "i4")
        layout[:] = h5py.VirtualSource("other.h5", "b", (50,))
        file.create_virtual_dataset("b", layout)
    with pytest.raises(StoreError, match="in another file"):
        hdf5_to_safetensors(store, store.with_name("back"))


def test_not_stores(tmp_path: Path, model: Path) -> None:
    (tmp_path / "text.h5").write_text("no file of HDF5")
    h5py.File(tmp_path / "empty.h5", "w").close()
    cut = tmp_path / "cut.h5"
    safetensors_to_hdf5(model, cut)
    cut.write_bytes(cut.read_bytes()[:500])
    for name in ("text.h5", "empty.h5", "cut.h5", "m.safetensors"):
        with pytest.raises(StoreError) as caught:
            hdf5_to_safetensors(tmp_path / name, tmp_path / "back")
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError):
        hdf5_to_safetensors(tmp_path / "missing", tmp_path / "back")


def test_zarr_and_hdf5_hold_the_same(demo_model: Path, tmp_path: Path) -> None:
    safetensors_to_zarr(demo_model, tmp_path / "m.zarr")
    safetensors_to_hdf5(demo_model, tmp_path / "m.h5")
    ours, theirs = open_store(tmp_path / "m.h5"), open_store(tmp_path / "m.zarr")
    assert ours.info == theirs.info
    for path in ours.info.paths.values():
        assert ours.plan(path) == theirs.plan(path)
        assert ours.codec_name(path) == theirs.codec_name(path)
    ours.close()
    theirs.close()
