"""Tests that every kind of model store has to pass. A kind is a subclass, in tests/store.

A kind defines how a store is written and restored, and how to get at its chunks and attributes to
damage them.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bf16codecs
import tiers
from bf16codecs import open_model
from bf16codecs.convert import Summary, verify_store
from bf16codecs.errors import CodecError, CorruptDataError, UnsupportedVersionError
from bf16codecs.safetensors import SafetensorsError
from bf16codecs.store import StoreError
from bits import assert_same_bits
from folders import names_in
from looping import noted
from models import TRICKY_NAMES, every_dtype, file_bytes, write_model
from store_cases import put_back

CODECS = ["arithmetic", "arithmetic best", "huffman", "zstd 9", "zstd", "split", "none"]
QUICK_CODECS = ["arithmetic", "huffman", "zstd 9", "split"]

ODD_FILES = {
    "empty": file_bytes(b"{}"),
    "spaces": file_bytes(b' \n{"__metadata__": {"b": "1", "a": "2"}}  \t'),
    "extra key": file_bytes(
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":[1]}}', b"ab"
    ),
    "odd booleans": file_bytes(
        b'{"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}', b"\0\x02\xff"
    ),
    "packed": file_bytes(b'{"a":{"dtype":"F4","shape":[1,2],"data_offsets":[0,1]}}', b"x"),
    "70 dimensions": file_bytes(
        b'{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,1]}}' % b",".join([b"1"] * 70), b"x"
    ),
}

#: Changes to the attributes of a store of "a" and "b", and the errors of reading it then.
DAMAGED_ATTRIBUTES: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "newer layout": (lambda a: a.update(layout=9), UnsupportedVersionError, "upgrade"),
    "no layout": (lambda a: a.update(layout=None), StoreError, "not a model store"),
    "nothing": (lambda a: a.clear(), StoreError, "not a model store"),
    "no array": (lambda a: a["tensors"].pop("a"), StoreError, "no array for"),
    "missing array": (lambda a: a["tensors"].update(a="missing"), StoreError, "missing"),
    "other array": (lambda a: a["tensors"].update(a="b"), StoreError, "tensor 'a' is BF16"),
    "group": (
        lambda a: a["tensors"].update(a="safetensors"),
        StoreError,
        "is a group|is not an array",
    ),
    "size": (lambda a: a["files"][0].update(size=10), SafetensorsError, "m.safetensors"),
    "no list": (lambda a: a.update(files={}), StoreError, "damaged store attributes"),
    "no object": (lambda a: a.update(tensors=[]), StoreError, "damaged store attributes"),
    "digest": (lambda a: a["files"][0].update(blake3="0"), CorruptDataError, "another BLAKE3"),
}


def codec_options(codec: str) -> dict[str, Any]:
    name, _, level = codec.partition(" ")
    return {"codec": name, "level": level or None}


class StoreContract:
    #: Name of the file or folder, and the options of all conversions to this kind.
    name = ""
    options: dict[str, Any] = {}
    #: The class whose `write` puts a chunk into a store.
    writer: type
    #: Elements of an empty tensor's other dimension.
    most_elements = 2**62

    def convert(self, source: Path, store: Path, **options: Any) -> Summary:
        raise NotImplementedError

    def restore(self, store: Path, target: Path, **options: Any) -> Summary:
        raise NotImplementedError

    def size(self, store: Path) -> int:
        """Return the size that a summary gives."""
        raise NotImplementedError

    def chunks(self, store: Path) -> list[str]:
        """Return the names, as in errors, of all chunks whose damage is detected."""
        raise NotImplementedError

    def read_chunk(self, store: Path, chunk: str) -> bytes:
        raise NotImplementedError

    def write_chunk(self, store: Path, chunk: str, content: bytes) -> None:
        raise NotImplementedError

    def remove_chunk(self, store: Path, chunk: str) -> None:
        raise NotImplementedError

    def edit(self, store: Path, change: Callable[[Any], object]) -> None:
        """Change the attributes that this package gives a store."""
        raise NotImplementedError

    def codecs(self) -> list[str]:
        """Return the codecs that the installed packages can encode and decode for this kind."""
        return CODECS

    def can_become(self, raw: bytes, content: bytes, codec: str) -> bool:
        """Tell whether a chunk can be overwritten with that content."""
        return True

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        tensors = [("a", "BF16", (64, 8)), ("b", "I32", (50,))]
        return write_model(tmp_path / "m.safetensors", tensors)

    @pytest.fixture
    def store(self, model: Path) -> Path:
        path = model.with_name(self.name)
        self.convert(model, path, chunk_size=256)
        return path

    def restored(self, store: Path, **options: Any) -> bytes:
        target = store.with_name("restored")
        self.restore(store, target, **options)
        content = target.read_bytes()
        target.unlink()
        return content

    # --- there and back ---------------------------------------------------------------------------

    def test_trained_model(self, demo_model: Path, tmp_path: Path) -> None:
        for codec in self.codecs():
            if codec in tiers.by_tier(QUICK_CODECS, CODECS):
                self.check_trained_model(demo_model, tmp_path / codec, codec)

    def check_trained_model(self, demo_model: Path, folder: Path, codec: str) -> None:
        folder.mkdir()
        store = folder / self.name
        with noted(codec):
            summary = self.convert(demo_model, store, **codec_options(codec))
            assert names_in(folder) == {self.name}
            assert self.restored(store) == demo_model.read_bytes()
            assert summary.nbytes == demo_model.stat().st_size
            assert summary.stored_nbytes == self.size(store)
            if codec not in ("split", "none"):
                assert summary.stored_nbytes < 0.85 * summary.nbytes
            assert verify_store(store, demo_model).tensors == summary.tensors

    def test_open_model(self, demo_model: Path, tmp_path: Path) -> None:
        store = tmp_path / self.name
        options = {"chunk_size": 1 << 14, "verify": False, "overwrite": True}
        for codec in tiers.by_tier(["arithmetic", "none"], self.codecs()):
            self.convert(demo_model, store, **options, **codec_options(codec))
            with noted(codec), open_model(store) as model, open_model(demo_model) as source:
                assert model.keys() == source.keys()
                assert model.metadata() == source.metadata()
                for key in model:
                    tensor, expected = model[key], source[key]
                    assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype)
                    assert_same_bits(tensor[...], expected[...])
                    assert_same_bits(tensor[::-3], expected[::-3])
                    if tensor.ndim == 2:
                        points = [5, 0, 7], [1, 2, 3]
                        assert_same_bits(tensor[points], expected[points])
                for key, array in model.load().items():
                    assert_same_bits(array, source[key][...])

    def test_every_dtype_and_chunk_size(self, tmp_path: Path) -> None:
        source, store = every_dtype(tmp_path / "m.safetensors"), tmp_path / self.name
        before = bf16codecs.get_num_threads()
        every = [(chunk_size, threads) for chunk_size in (16, 100, 10**9) for threads in (1, 4)]
        for chunk_size, threads in tiers.by_tier([(100, 4), (10**9, 1)], every):
            with noted(chunk_size, threads):
                options = {"chunk_size": chunk_size, "threads": threads}
                self.convert(source, store, overwrite=True, **options)
                assert self.restored(store, threads=threads) == source.read_bytes()
                assert bf16codecs.get_num_threads() == before

    def test_open_model_of_every_dtype(self, tmp_path: Path) -> None:
        source = every_dtype(tmp_path / "m.safetensors")
        self.convert(source, tmp_path / self.name, chunk_size=100)
        numbers = {"F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz"}
        raw = source.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:start])
        with open_model(tmp_path / self.name) as model, open_model(source) as original:
            for name, tensor in model.items():
                first, stop = header[name]["data_offsets"]
                assert np.asarray(tensor).tobytes() == raw[start + first : start + stop]
                assert_same_bits(np.asarray(original[name]), np.asarray(tensor))
                dtype = header[name]["dtype"]
                assert tensor.get_dtype() == dtype
                assert tensor.dtype.name == numbers.get(dtype, tensor.dtype.name)
                if not dtype.startswith(("F4", "F6")):
                    assert tensor.get_shape() == header[name]["shape"]

    def test_tricky_names(self, tmp_path: Path) -> None:
        tensors = [(name, "BF16", (3, 2)) for name in TRICKY_NAMES]
        source = write_model(tmp_path / "m.safetensors", tensors)
        self.convert(source, tmp_path / self.name)
        assert self.restored(tmp_path / self.name) == source.read_bytes()
        assert names_in(tmp_path) == {"m.safetensors", self.name}
        with open_model(tmp_path / self.name) as model, open_model(source) as original:
            assert sorted(model) == sorted(TRICKY_NAMES)
            for name, tensor in model.items():
                assert_same_bits(tensor[...], original[name][...])

    def test_large_attributes(self, tmp_path: Path) -> None:
        """More than the 64 kB that an attribute of HDF5 holds in itself."""
        count, length = tiers.by_tier((40, 2000), (500, 200))
        tensors = [(f"{i:0{length}}", "U8", (1,)) for i in range(count)]
        source = write_model(tmp_path / "m", tensors)
        self.convert(source, tmp_path / self.name)
        assert self.restored(tmp_path / self.name) == source.read_bytes()

    def test_odd_files(self, tmp_path: Path) -> None:
        header = b'{"a":{"dtype":"F32","shape":[0,%d],"data_offsets":[0,0]}}' % self.most_elements
        source = tmp_path / "m.safetensors"
        for name, content in {**ODD_FILES, "vast empty tensor": file_bytes(header)}.items():
            with noted(name):
                source.write_bytes(content)
                self.convert(source, tmp_path / self.name, overwrite=True)
                assert self.restored(tmp_path / self.name) == content

    @pytest.mark.parametrize("indexed", [True, False])
    def test_shards(self, tmp_path: Path, indexed: bool) -> None:
        shards, store, back = tmp_path / "model", tmp_path / self.name, tmp_path / "back"
        shards.mkdir()
        one, two = "m-1.safetensors", "m-2.safetensors"
        write_model(shards / one, [("a", "BF16", (64, 8)), ("b", "I32", (9,))], 1)
        write_model(shards / two, [("c", "BF16", (32, 2))], 2)
        if indexed:
            index = {"metadata": {}, "weight_map": {"c": two, "a": one, "b": one}}
            (shards / "m.safetensors.index.json").write_text(json.dumps(index, indent=3))
        self.convert(shards, store, chunk_size=64)
        self.restore(store, back)
        assert names_in(back) == names_in(shards)
        for name in names_in(shards):
            assert (back / name).read_bytes() == (shards / name).read_bytes()
        verify_store(store, shards)
        # A folder of the same files is replaced, one with anything else is not.
        self.restore(store, back, overwrite=True)
        (back / "config.json").write_text("{}")
        with pytest.raises(FileExistsError):
            self.restore(store, back, overwrite=True)
        assert (back / "config.json").exists()

    # --- targets ----------------------------------------------------------------------------------

    def test_existing_target(self, model: Path, store: Path) -> None:
        def content() -> list[bytes]:
            return [self.read_chunk(store, chunk) for chunk in self.chunks(store)]

        before = content()
        with pytest.raises(FileExistsError):
            self.convert(model, store, codec="none")
        assert content() == before
        self.convert(model, store, codec="none", overwrite=True)
        assert content() != before
        assert names_in(model.parent) == {"m.safetensors", self.name}

    def test_overwrite_replaces_nothing_else(self, model: Path, store: Path) -> None:
        folder, file = model.with_name("folder"), model.with_name("file")
        folder.mkdir()
        for precious in (folder / "file", file):
            precious.write_text("x")
        for convert, source in ((self.convert, model), (self.restore, store)):
            with pytest.raises(FileExistsError):
                convert(source, folder, overwrite=True)
        with pytest.raises(FileExistsError):
            self.convert(model, file, overwrite=True)
        assert (folder / "file").read_text() == file.read_text() == "x"
        assert names_in(model.parent) == {"m.safetensors", self.name, "file", "folder"}

    def test_target_is_or_holds_the_source(self, model: Path, store: Path) -> None:
        for target in (model, model.parent, model.parent / "x" / ".." / model.name):
            with pytest.raises(ValueError, match="would replace the source"):
                self.convert(model, target, overwrite=True)
        for target in (store, store.parent):
            with pytest.raises(ValueError, match="would replace the source"):
                self.restore(store, target, overwrite=True)
        verify_store(store, model)

    def fail_writing(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        def fail(*args: Any) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(self.writer, "write", fail)

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
    def test_failing_overwrite_keeps_the_old(
        self, model: Path, store: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        self.fail_writing(monkeypatch, number)
        with pytest.raises(OSError, match=os.strerror(number)):
            self.convert(model, store, overwrite=True)
        assert names_in(model.parent) == {"m.safetensors", self.name}
        verify_store(store, model)

    def test_source_that_shrinks(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = self.writer.write

        def shrink(writer: Any, *args: Any) -> int:
            os.truncate(model, 300)
            return write(writer, *args)

        monkeypatch.setattr(self.writer, "write", shrink)
        with pytest.raises(SafetensorsError, match=r"truncated while|changed while"):
            self.convert(model, tmp_path / self.name, chunk_size=64)
        assert names_in(tmp_path) == {"m.safetensors"}

    # --- damage -----------------------------------------------------------------------------------

    def test_codec_that_lies_is_found(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lie(codec: bf16codecs.BF16Huffman, memory: Any, buf: Any, base: Any = None) -> Any:
            wrong = np.frombuffer(bytearray(np.asarray(buf).tobytes()), np.uint8)
            wrong[3] ^= 1
            return np.frombuffer(bf16codecs.BF16Split().encode(wrong), np.uint8)

        monkeypatch.setattr(bf16codecs.BF16Huffman, "encode_to", lie)
        store = tmp_path / self.name
        with pytest.raises(CorruptDataError, match="differs from its source"):
            self.convert(model, store, codec="huffman")
        assert names_in(tmp_path) == {"m.safetensors"}
        self.convert(model, store, codec="huffman", verify=False)
        with pytest.raises(CorruptDataError, match="another BLAKE3"):
            verify_store(store)
        with pytest.raises(CorruptDataError, match="another BLAKE3") as caught:
            verify_store(store, model)
        assert caught.value.differences

    @pytest.mark.parametrize("codec", ["arithmetic", "zstd", "none"])
    def test_damaged_chunks(self, model: Path, tmp_path: Path, codec: str) -> None:
        if codec not in self.codecs():
            pytest.skip(f"{codec} in this kind of store needs a package that is not installed")
        store = tmp_path / self.name
        self.convert(model, store, codec=codec, chunk_size=256)
        damages: dict[str, Callable[[bytes], bytes]] = {
            "flipped": lambda raw: flipped(raw, len(raw) // 2),
            "flipped near the end": lambda raw: flipped(raw, len(raw) - 9),
            "cut": lambda raw: raw[:-1],
            "longer": lambda raw: raw + b"x",
            "huge": lambda raw: raw * 100,
            "empty": lambda raw: b"",
            "other": lambda raw: bf16codecs.BF16Zstd().encode(b"x" * 10),
        }
        assert len(self.chunks(store)) >= 5
        for i, chunk in enumerate(self.chunks(store)):
            raw = self.read_chunk(store, chunk)
            for name, damage in tiers.by_tier(list(damages.items())[i % 3 :: 3], damages.items()):
                if not self.can_become(raw, damage(raw), codec):
                    continue
                self.write_chunk(store, chunk, damage(raw))
                # Uncompressed arrays have no checksum of their own: a flip shows in the digest.
                with pytest.raises((CodecError, StoreError, SafetensorsError)) as caught:
                    self.restore(store, tmp_path / "back")
                assert "\n" not in str(caught.value), name
            self.remove_chunk(store, chunk)
            with pytest.raises(StoreError, match="is missing"):
                self.restore(store, tmp_path / "back")
            self.write_chunk(store, chunk, raw)
        assert names_in(tmp_path) == {"m.safetensors", self.name}
        assert self.restored(store) == model.read_bytes()

    def test_open_model_names_the_damaged_chunk(self, store: Path) -> None:
        bad = [c for c in self.chunks(store) if c.startswith("a")][1]
        raw = self.read_chunk(store, bad)
        self.write_chunk(store, bad, flipped(raw, len(raw) - 5))
        with open_model(store) as model:
            assert model["a"][:16].shape == (16, 8)
            chunk = bad.removeprefix("a ")  # of HDF5: its index
            with pytest.raises(
                CodecError, match=re.escape(f"{self.name}: tensor 'a', chunk {chunk}")
            ):
                model["a"][16]

    def test_damaged_attributes(self, store: Path) -> None:
        for name, (change, error, message) in DAMAGED_ATTRIBUTES.items():
            with noted(name), put_back(store):
                self.edit(store, change)
                with pytest.raises(error, match=message):
                    self.restore(store, store.with_name("back"))
                assert not store.with_name("back").exists()


def flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 8]) + raw[at + 1 :]
