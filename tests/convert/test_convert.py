"""Conversions there and back: every byte, every codec, and what happens when something breaks."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr, verify_store, zarr_to_safetensors
from bf16codecs.errors import CodecError, CorruptDataError, UnsupportedVersionError
from bf16codecs.safetensors import SafetensorsError
from bf16codecs.store import StoreError
from bf16codecs.store.zarr_writer import ZarrWriter
from models import TRICKY_NAMES, every_dtype, file_bytes, write_model

CODECS = ["arithmetic", "arithmetic best", "huffman", "zstd 9", "zstd", "split", "none"]


def restored(store: Path, **options: Any) -> bytes:
    target = store.with_name("restored")
    zarr_to_safetensors(store, target, **options)
    content = target.read_bytes()
    target.unlink()
    return content


def names_in(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


@pytest.mark.parametrize("target", ["m.zarr", "m.zarr.zip"])
@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize("codec", CODECS)
def test_trained_model(
    demo_model: Path, tmp_path: Path, codec: str, zarr_format: int, target: str
) -> None:
    name, _, level = codec.partition(" ")
    options = {"codec": name, "level": level or None, "zarr_format": zarr_format}
    summary = safetensors_to_zarr(demo_model, tmp_path / target, **options)
    assert names_in(tmp_path) == {target}
    assert restored(tmp_path / target) == demo_model.read_bytes()
    assert summary.nbytes == demo_model.stat().st_size
    if name in ("arithmetic", "huffman", "zstd"):
        assert summary.stored_nbytes < 0.85 * summary.nbytes
    if target == "m.zarr":
        files = [p for p in (tmp_path / target).rglob("*") if p.is_file()]
        assert summary.stored_nbytes == sum(p.stat().st_size for p in files)
    assert verify_store(tmp_path / target, demo_model).tensors == summary.tensors


@pytest.mark.parametrize("chunk_size", [16, 100, 10**9])
@pytest.mark.parametrize("threads", [1, 4])
def test_every_dtype_and_chunk_size(tmp_path: Path, chunk_size: int, threads: int) -> None:
    source = every_dtype(tmp_path / "m.safetensors")
    before = bf16codecs.get_num_threads()
    safetensors_to_zarr(source, tmp_path / "m.zarr", chunk_size=chunk_size, threads=threads)
    assert restored(tmp_path / "m.zarr", threads=threads) == source.read_bytes()
    assert bf16codecs.get_num_threads() == before


def test_tricky_names(tmp_path: Path) -> None:
    tensors = [(name, "BF16", (3, 2)) for name in TRICKY_NAMES]
    source = write_model(tmp_path / "m.safetensors", tensors)
    for target in ("m.zarr", "m.zip"):
        safetensors_to_zarr(source, tmp_path / target)
        assert restored(tmp_path / target) == source.read_bytes()
    assert names_in(tmp_path) == {"m.safetensors", "m.zarr", "m.zip"}


@settings(max_examples=15)
@given(st.sets(st.text(max_size=9) | st.text("aA./\\", max_size=5), max_size=8))
def test_any_names(tmp_path_factory: Any, tensors: set[str]) -> None:
    tmp_path = tmp_path_factory.mktemp("names")
    named = [(name, "F16", (2,)) for name in tensors - {"__metadata__"}]
    source = write_model(tmp_path / "m.safetensors", named)
    safetensors_to_zarr(source, tmp_path / "m.zarr", codec="none")
    assert restored(tmp_path / "m.zarr") == source.read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        file_bytes(b"{}"),
        file_bytes(b' \n{"__metadata__": {"b": "1", "a": "2"}}  \t'),
        file_bytes(b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":[1]}}', b"ab"),
        file_bytes(b'{"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}', b"\0\x02\xff"),
        file_bytes(b'{"a":{"dtype":"F32","shape":[0,%d],"data_offsets":[0,0]}}' % 2**62),
        file_bytes(b'{"a":{"dtype":"F4","shape":%s,"data_offsets":[0,1]}}' % b"[1,2]", b"x"),
        file_bytes(
            b'{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,1]}}' % b",".join([b"1"] * 70),
            b"x",
        ),
    ],
    ids=["empty", "spaces", "extra key", "odd booleans", "vast empty", "packed", "70 dimensions"],
)
@pytest.mark.parametrize("zarr_format", [3, 2])
def test_odd_files(tmp_path: Path, content: bytes, zarr_format: int) -> None:
    source = tmp_path / "m.safetensors"
    source.write_bytes(content)
    safetensors_to_zarr(source, tmp_path / "m.zarr", zarr_format=zarr_format)
    assert restored(tmp_path / "m.zarr") == content


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(folder / "m-1.safetensors", [("a", "BF16", (64, 8)), ("b", "I32", (9,))], 1)
    write_model(folder / "m-2.safetensors", [("c", "BF16", (32, 2))], 2)
    return folder


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("target", ["m.zarr", "m.zip"])
def test_shards(shards: Path, tmp_path: Path, indexed: bool, target: str) -> None:
    if indexed:
        one, two = "m-1.safetensors", "m-2.safetensors"
        text = json.dumps({"metadata": {}, "weight_map": {"c": two, "a": one, "b": one}}, indent=3)
        (shards / "m.safetensors.index.json").write_text(text)
    safetensors_to_zarr(shards, tmp_path / target, chunk_size=64)
    zarr_to_safetensors(tmp_path / target, tmp_path / "back")
    assert names_in(tmp_path / "back") == names_in(shards)
    for name in names_in(shards):
        assert (tmp_path / "back" / name).read_bytes() == (shards / name).read_bytes()
    verify_store(tmp_path / target, shards)
    # A folder of the same files is replaced, one with anything else is not.
    zarr_to_safetensors(tmp_path / target, tmp_path / "back", overwrite=True)
    (tmp_path / "back" / "config.json").write_text("{}")
    with pytest.raises(FileExistsError):
        zarr_to_safetensors(tmp_path / target, tmp_path / "back", overwrite=True)
    assert (tmp_path / "back" / "config.json").exists()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.safetensors", [("a", "BF16", (64, 8)), ("b", "I32", (50,))])


@pytest.fixture
def store(model: Path) -> Path:
    path = model.with_name("m.zarr")
    safetensors_to_zarr(model, path, chunk_size=256)
    return path


@pytest.mark.parametrize("name", ["m.zarr", "m.zip"])
def test_existing_target(model: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    safetensors_to_zarr(model, target, codec="none")
    before = verify_store(target).stored_nbytes
    with pytest.raises(FileExistsError):
        safetensors_to_zarr(model, target)
    assert verify_store(target).stored_nbytes == before
    safetensors_to_zarr(model, target, overwrite=True)
    assert verify_store(target).stored_nbytes != before
    assert names_in(tmp_path) == {"m.safetensors", name}


def test_overwrite_replaces_nothing_else(model: Path, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "file").write_text("x")
    with pytest.raises(FileExistsError):
        safetensors_to_zarr(model, folder, overwrite=True)
    with pytest.raises(FileExistsError):
        zarr_to_safetensors(store, folder, overwrite=True)
    assert (folder / "file").read_text() == "x"


def test_target_is_or_holds_the_source(model: Path, store: Path) -> None:
    for target in (model, model.parent, model.parent / "x" / ".." / model.name):
        with pytest.raises(ValueError, match="would replace the source"):
            safetensors_to_zarr(model, target, overwrite=True)
    for target in (store, store.parent):
        with pytest.raises(ValueError, match="would replace the source"):
            zarr_to_safetensors(store, target, overwrite=True)
    with pytest.raises(ValueError, match="lies in the store"):
        zarr_to_safetensors(store, store / "m.safetensors")
    verify_store(store, model)


def test_failing_overwrite_keeps_the_old(
    model: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ZarrWriter, "write", fail)
    with pytest.raises(OSError, match="No space left"):
        safetensors_to_zarr(model, store, overwrite=True)
    assert names_in(model.parent) == {"m.safetensors", "m.zarr"}
    verify_store(store, model)


@pytest.mark.parametrize("step", [1, 2])
def test_failing_swap_keeps_the_old(
    model: Path, store: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    rename, calls = os.rename, []

    def fail(a: Any, b: Any) -> None:
        calls.append(a)
        if len(calls) == step:
            raise OSError(errno.EIO, "stopped")
        rename(a, b)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="stopped"):
        safetensors_to_zarr(model, store, overwrite=True)
    assert names_in(model.parent) == {"m.safetensors", "m.zarr"}
    verify_store(store, model)


def test_source_that_shrinks(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = ZarrWriter.write

    def shrink(self: ZarrWriter, *args: Any) -> int:
        os.truncate(model, 300)
        return write(self, *args)

    monkeypatch.setattr(ZarrWriter, "write", shrink)
    with pytest.raises(SafetensorsError, match=r"truncated while|changed while"):
        safetensors_to_zarr(model, tmp_path / "x.zarr", chunk_size=64)
    assert names_in(tmp_path) == {"m.safetensors"}


def test_codec_that_lies_is_found(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(self: bf16codecs.BF16Huffman, buf: Any) -> bytes:
        wrong = np.frombuffer(bytearray(buf.tobytes()), np.uint8)
        wrong[3] ^= 1
        return bf16codecs.BF16Split().encode(wrong)

    monkeypatch.setattr(bf16codecs.BF16Huffman, "encode", lie)
    with pytest.raises(CorruptDataError, match="differs from its source"):
        safetensors_to_zarr(model, tmp_path / "x.zarr", codec="huffman")
    assert names_in(tmp_path) == {"m.safetensors"}
    safetensors_to_zarr(model, tmp_path / "x.zarr", codec="huffman", verify=False)
    with pytest.raises(CorruptDataError, match="another SHA-256"):
        verify_store(tmp_path / "x.zarr")
    with pytest.raises(CorruptDataError, match="differs from"):
        verify_store(tmp_path / "x.zarr", model)


def chunk_files(store: Path) -> list[Path]:
    return sorted(
        p for p in store.rglob("*") if p.is_file() and not p.name.startswith((".z", "zarr"))
    )


@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize("codec", ["arithmetic", "zstd", "none"])
def test_damaged_chunks(model: Path, tmp_path: Path, codec: str, zarr_format: int) -> None:
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(model, store, codec=codec, zarr_format=zarr_format, chunk_size=256)
    damages = {
        "flipped": lambda raw: raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 8])
        + raw[len(raw) // 2 + 1 :],
        "cut": lambda raw: raw[:-1],
        "longer": lambda raw: raw + b"x",
        "huge": lambda raw: raw * 100,
        "empty": lambda raw: b"",
        "other": lambda raw: bf16codecs.BF16Zstd().encode(b"x" * 10),
    }  # fmt: skip
    for path in chunk_files(store):
        raw = path.read_bytes()
        for name, damage in damages.items():
            path.write_bytes(damage(raw))
            # Uncompressed arrays have no checksum of their own: a flip shows in the digest.
            with pytest.raises((CodecError, StoreError, SafetensorsError)) as caught:
                zarr_to_safetensors(store, tmp_path / "back")
            assert "\n" not in str(caught.value), name
            path.write_bytes(raw)
        path.unlink()
        with pytest.raises(StoreError, match="is missing"):
            zarr_to_safetensors(store, tmp_path / "back")
        path.write_bytes(raw)
    assert names_in(tmp_path) == {"m.safetensors", "m.zarr"}
    assert restored(store) == model.read_bytes()


def edit_root(store: Path, change: Any) -> None:
    path = store / "zarr.json"
    root = json.loads(path.read_text())
    change(root)
    path.write_text(json.dumps(root))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda r: r["attributes"]["bf16codecs"].update(layout=9), UnsupportedVersionError, "upgr"),
        (lambda r: r.update(attributes={}), StoreError, "not a model store"),
        (lambda r: r.update(node_type="cat"), StoreError, "not a model store"),
        (lambda r: r["attributes"]["bf16codecs"]["tensors"].pop("a"), StoreError, "no array for"),
        (
            lambda r: r["attributes"]["bf16codecs"]["tensors"].update(a="b"),
            StoreError,
            "tensor 'a' is BF16",
        ),
        (
            lambda r: r["attributes"]["bf16codecs"]["tensors"].update(a="safetensors"),
            StoreError,
            "is a group",
        ),
        (
            lambda r: r["attributes"]["bf16codecs"]["tensors"].update(a="../m.zarr/a"),
            StoreError,
            r"\.\./m\.zarr",
        ),
        (
            lambda r: r["attributes"]["bf16codecs"]["files"][0].update(size=10),
            SafetensorsError,
            "m.safetensors",
        ),
        (
            lambda r: r["attributes"]["bf16codecs"]["files"][0].update(sha256="0"),
            CorruptDataError,
            "another SHA-256",
        ),
        (
            lambda r: r["consolidated_metadata"]["metadata"]["a"].update(codecs=[{"name": "x"}]),
            StoreError,
            "tensor 'a': .*x",
        ),
    ],
)
def test_damaged_root(store: Path, change: Any, error: type[Exception], message: str) -> None:
    edit_root(store, change)
    with pytest.raises(error, match=message):
        zarr_to_safetensors(store, store.with_name("back"))
    assert not store.with_name("back").exists()


def test_not_stores(tmp_path: Path, model: Path) -> None:
    (tmp_path / "empty").mkdir()
    zarr.create_array(tmp_path / "array", shape=(3,), dtype="u1")
    zarr.create_group(tmp_path / "group")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("x", "y")
    for name in ("empty", "array", "group", "m.safetensors", "x.zip"):
        with pytest.raises(StoreError):
            verify_store(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        verify_store(tmp_path / "missing")


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # zarr compares NaNs
def test_store_that_somebody_rewrote(store: Path, model: Path, tmp_path: Path) -> None:
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
    assert restored(tmp_path / "copy.zarr") == model.read_bytes()
    assert verify_store(tmp_path / "copy.zarr", model).tensors == 2


def test_zip_is_reproducible(model: Path, tmp_path: Path) -> None:
    for name in ("1.zip", "2.zip"):
        safetensors_to_zarr(model, tmp_path / name, threads=1)
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
