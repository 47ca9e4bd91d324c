"""Folders of Hugging Face models are packed, and restored byte for byte."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
from io import FileIO
from pathlib import Path

import pytest

import bf16codecs
from bf16codecs.convert import pack_hugging_face, unpack_hugging_face
from bf16codecs.errors import (
    CorruptDataError,
    SafetensorsError,
    StoreError,
)
from invoked import done
from lazy_models import weights, write_safetensors
from model_folders import SHARDS, contents, folder_modes, write_folder, write_sharded

STORES = ("adapter_model.zarr", "model.zarr", "unet/deep/diffusion_pytorch_model.fp16.zarr")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model")


def test_there_and_back(folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    packed, restored = tmp_path / "packed", tmp_path / "restored"
    summary = pack_hugging_face(folder, packed)
    assert summary.stores == STORES
    assert summary.other_weights == ("pytorch_model.bin",)
    assert (summary.tensors, summary.files) == (4, sum(c is not None for c in before.values()))
    there = contents(packed)
    for name in summary.kept:
        assert there[name] == before[name]
    assert not [n for n in there if n.endswith(".safetensors") and n != ".hidden.safetensors"]
    with bf16codecs.open_model(packed / "model.zarr") as model:
        assert list(model) == ["embed.weight", "norm.weight"]
    back = unpack_hugging_face(packed, restored)
    assert contents(restored) == before == contents(folder)
    assert folder_modes(restored) == folder_modes(folder)
    assert (back.nbytes, back.tensors, back.files) == (summary.nbytes, 4, summary.files)
    assert sorted(os.listdir(tmp_path)) == ["model", "packed", "restored"]


def test_the_note_for_readers(folder: Path, tmp_path: Path, monkeypatch) -> None:
    """Its commands restore the files."""
    pack_hugging_face(folder, tmp_path / "PACKED")
    note = (tmp_path / "PACKED" / "BF16CODECS.md").read_text("utf-8")
    assert "- `adapter_model.zarr`: adapter_model.safetensors\n" in note
    assert f"- `model.zarr`: {SHARDS[0]}, {SHARDS[1]}, model.safetensors.index.json\n" in note
    compile(re.search("```python\n(.*?)```", note, re.DOTALL)[1], "note", "exec")
    monkeypatch.chdir(tmp_path)
    for command in re.search("```sh\n(.*?)```", note, re.DOTALL)[1].splitlines():
        done(*shlex.split(command))
    assert contents(tmp_path / "ORIGINAL") == contents(folder)
    name = "adapter_model.safetensors"
    assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    pack_hugging_face(folder, tmp_path / "PACKED", overwrite=True)


@pytest.mark.parametrize("name", ["BF16CODECS.md", "bf16codecs.MD"])
def test_a_note_of_the_original(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).write_text("own")
    pack_hugging_face(folder, tmp_path / "packed")
    assert [n for n in contents(tmp_path / "packed") if n.lower() == name.lower()] == [name]
    unpack_hugging_face(tmp_path / "packed", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folder)
    pack_hugging_face(folder, tmp_path / "packed", overwrite=True)


def test_the_note_names_few_of_many_files(tmp_path: Path) -> None:
    (tmp_path / "m" / "a\n").mkdir(parents=True)
    for i in range(25):
        write_safetensors(tmp_path / "m" / "a\n" / f"{i:02}.safetensors", {"w": weights((4,))})
    pack_hugging_face(tmp_path / "m", tmp_path / "packed")
    note = (tmp_path / "packed" / "BF16CODECS.md").read_text("utf-8")
    assert "- `a\\n/00.zarr`: a\\n/00.safetensors\n" in note
    assert "a\\n/19.zarr`: a\\n/19.safetensors\n- and 5 more\n\n" in note


def test_links_are_packed_as_their_targets(tmp_path: Path) -> None:
    """huggingface_hub's cache holds links to blobs that are named by digests."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    (snapshot / "sub").mkdir(parents=True)
    write_safetensors(blobs / "9f3a", {"w": weights((50, 40))})
    (blobs / "77aa").write_text("{}")
    (snapshot / "model.safetensors").symlink_to("../../blobs/9f3a")
    (snapshot / "sub" / "config.json").symlink_to("../../../blobs/77aa")
    pack_hugging_face(snapshot, tmp_path / "packed")
    unpack_hugging_face(tmp_path / "packed", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(snapshot)
    assert not (tmp_path / "back" / "model.safetensors").is_symlink()


def test_one_file_and_shards_in_one_folder(tmp_path: Path) -> None:
    """The store with the name that libraries look for has the tensors that they would load."""
    folder = tmp_path / "model"
    folder.mkdir()
    write_sharded(folder)
    write_safetensors(folder / "model.safetensors", {"alone": weights((50, 40))})
    (folder / "Model-2.zarr").write_text("a file")
    before = contents(folder)
    assert pack_hugging_face(folder, tmp_path / "packed").stores == ("model-3.zarr", "model.zarr")
    with bf16codecs.open_model(tmp_path / "packed" / "model.zarr") as model:
        assert list(model) == ["alone"]
    unpack_hugging_face(tmp_path / "packed", tmp_path / "back")
    assert contents(tmp_path / "back") == before


def test_indexes_that_share_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_sharded(folder)
    index = folder / "model.safetensors.index.json"
    shutil.copy(index, folder / "other.safetensors.index.json")
    summary = pack_hugging_face(folder, tmp_path / "packed")
    assert (summary.stores, summary.kept) == (("model.zarr",), ("other.safetensors.index.json",))
    unpack_hugging_face(tmp_path / "packed", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folder)


def test_variants(tmp_path: Path) -> None:
    """Libraries look for the variant of an index in another part of the name than of a file."""
    folder = tmp_path / "model"
    folder.mkdir()
    write_sharded(folder)
    write_sharded(folder, ".fp16")
    stores = pack_hugging_face(folder, tmp_path / "packed").stores
    assert stores == ("model.fp16.zarr", "model.zarr")
    unpack_hugging_face(tmp_path / "packed", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folder)


def test_options_are_those_of_conversions(folder: Path, tmp_path: Path) -> None:
    pack_hugging_face(folder, tmp_path / "a", codec="huffman", chunk_size=8192, sha256=True)
    info = bf16codecs.open_model(tmp_path / "a" / "model.zarr").info()
    assert "huffman" in str(info)
    assert "SHA-256" in str(info)
    with pytest.raises(ValueError, match="codec"):
        pack_hugging_face(folder, tmp_path / "b", codec="rar")
    assert sorted(os.listdir(tmp_path)) == ["a", "model"]


def test_progress_is_that_of_all(folder: Path, tmp_path: Path) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}

    def note(phase: str, done: int, total: int) -> None:
        seen.setdefault(phase, []).append((done, total))

    pack_hugging_face(folder, tmp_path / "packed", progress=note)
    assert list(seen) == ["copy", "convert", "verify"]
    unpack_hugging_face(tmp_path / "packed", tmp_path / "back", progress=note)
    assert list(seen) == ["copy", "convert", "verify", "restore"]
    for phase in ("convert", "restore"):
        done = [d for d, _ in seen[phase]]
        (total,) = {total for _, total in seen[phase]}
        assert done == sorted(done)
        assert 0.99 * total < done[-1] <= total  # all but headers


# --- refused --------------------------------------------------------------------------------------


def test_places(folder: Path, tmp_path: Path) -> None:
    for target in (folder, folder / "in", tmp_path):
        with pytest.raises(ValueError, match=r"lies in the folder.*: choose|would replace the"):
            pack_hugging_face(folder, target, overwrite=True)
    with pytest.raises(ValueError, match="the name of a Zarr store, not of a folder"):
        pack_hugging_face(folder, tmp_path / "packed.zarr")
    with pytest.raises(FileNotFoundError, match="typo"):
        pack_hugging_face(tmp_path / "typo", tmp_path / "packed")
    with pytest.raises(NotADirectoryError, match=r"config\.json"):
        pack_hugging_face(folder / "config.json", tmp_path / "packed")
    assert os.listdir(tmp_path) == ["model"]


def test_existing_targets(folder: Path, tmp_path: Path) -> None:
    packed, other = tmp_path / "packed", tmp_path / "other"
    pack_hugging_face(folder, packed)
    with pytest.raises(FileExistsError, match="overwrite=True replaces it"):
        pack_hugging_face(folder, packed)
    (folder / "new.txt").write_text("new")
    pack_hugging_face(folder, packed, overwrite=True)
    assert (packed / "new.txt").exists()
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not a packed folder"):
        pack_hugging_face(folder, other, overwrite=True)
    (packed / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"contains 'mine\.txt', which was not packed"):
        pack_hugging_face(folder, packed, overwrite=True)
    (packed / "mine.txt").unlink()
    (other / "bf16codecs.json").write_text("{}")
    with pytest.raises(FileExistsError, match="cannot be read as a packed folder"):
        pack_hugging_face(folder, other, overwrite=True)
    (other / "bf16codecs.json").unlink()
    with pytest.raises(FileExistsError, match=r"contains 'mine\.txt', which is not restored"):
        unpack_hugging_face(packed, other, overwrite=True)
    assert (other / "mine.txt").read_text() == "mine"
    unpack_hugging_face(packed, folder, overwrite=True)
    assert contents(folder)["new.txt"] is not None


def test_stores_that_would_be_loaded_instead(folder: Path, tmp_path: Path) -> None:
    """Libraries would load them from the packed folder, with any content, as its weights."""
    deep = "unet/deep/diffusion_pytorch_model.fp16.zarr"
    for name in ("model.zarr", "Model.ZARR.zip", "model.h5", deep):
        (folder / name).mkdir()
        (folder / name / "junk").touch()
        with pytest.raises(ValueError, match=f"{name}: is in the folder already.*: move it"):
            pack_hugging_face(folder, tmp_path / "packed")
        assert os.listdir(tmp_path) == ["model"]
        shutil.rmtree(folder / name)


def test_no_weights(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "pytorch_model.bin").touch()
    with pytest.raises(SafetensorsError, match=r"no weights to pack: neither \*\.safetensors"):
        pack_hugging_face(tmp_path / "model", tmp_path / "packed")


def test_weights_that_are_damaged_or_not_there(folder: Path, tmp_path: Path) -> None:
    whole = (folder / SHARDS[0]).read_bytes()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
    for damaged, told in ((whole[:-1], "shard|size|bytes"), (pointer, "a pointer of Git LFS")):
        shutil.copy(folder / SHARDS[0], folder / "alone.safetensors")
        (folder / "alone.safetensors").write_bytes(damaged)
        with pytest.raises(SafetensorsError, match=told):
            pack_hugging_face(folder, tmp_path / "packed")
    (folder / "alone.safetensors").unlink()
    (folder / SHARDS[0]).unlink()
    with pytest.raises(FileNotFoundError, match=SHARDS[0]):
        pack_hugging_face(folder, tmp_path / "packed")
    assert os.listdir(tmp_path) == ["model"]


def test_copies_are_compared(folder: Path, tmp_path: Path, monkeypatch) -> None:
    class Fickle(FileIO):
        times = 0

        def read(self, size: int = -1) -> bytes:
            self.times += 1
            return super().read(size) if self.times > 1 else b"no"

    monkeypatch.setattr("bf16codecs.convert.hugging_face.folders.FileIO", Fickle)
    with pytest.raises(CorruptDataError, match="was not read back as"):
        pack_hugging_face(folder, tmp_path / "packed")
    assert os.listdir(tmp_path) == ["model"]


def test_refused_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"not a packed folder: no bf16codecs\.json in it"):
        unpack_hugging_face(folder, tmp_path / "back")
    with pytest.raises(FileNotFoundError, match="typo"):
        unpack_hugging_face(tmp_path / "typo", tmp_path / "back")
    pack_hugging_face(folder, tmp_path / "packed")
    with pytest.raises(ValueError, match="is packed already"):
        pack_hugging_face(tmp_path / "packed", tmp_path / "twice")
    (folder / "bf16codecs.json").write_text("junk")
    with pytest.raises(ValueError, match=r"something else of the name bf16codecs\.json.*: move it"):
        pack_hugging_face(folder, tmp_path / "other")
    with pytest.raises(ValueError, match="memory://x: an address, and only local folders"):
        pack_hugging_face("memory://x", tmp_path / "other")


def test_advice_is_given_once(folder: Path, tmp_path: Path, monkeypatch) -> None:
    """Although each store in the folder is a target of its own."""

    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="free some space") as caught:
        pack_hugging_face(folder, tmp_path / "packed")
    assert str(caught.value).count("free some space") == 1


def test_files_that_got_lost(folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    pack_hugging_face(folder, packed)
    (packed / "config.json").unlink()
    with pytest.raises(StoreError, match=r"config\.json is not there, and was when it was packed"):
        unpack_hugging_face(packed, tmp_path / "back")
    assert sorted(os.listdir(tmp_path)) == ["model", "packed"]


def test_damaged_stores_are_not_restored(folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    pack_hugging_face(folder, packed)
    chunk = max((packed / "model.zarr").rglob("*"), key=lambda path: path.stat().st_size)
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(bf16codecs.errors.BF16CodecsError, match=r"packed.model\.zarr"):
        unpack_hugging_face(packed, tmp_path / "back")
    assert sorted(os.listdir(tmp_path)) == ["model", "packed"]
