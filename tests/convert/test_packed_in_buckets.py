"""Folders of Hugging Face models are packed into object stores; the manifest makes them one."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bf16codecs import open_model
from bf16codecs.convert import (
    pack_hugging_face,
    safetensors_to_zarr,
    unpack_hugging_face,
    zarr_to_safetensors,
)
from bf16codecs.errors import CorruptDataError
from clusters import downloaded
from invoked import done, refused
from lazy_models import weights, write_safetensors
from model_folders import contents, folder_modes, write_folder
from object_store import Faults, Killed, dying
from tiers import by_tier

lease = pytest.importorskip("bf16codecs.store.remote.lease")
object_folder = pytest.importorskip("bf16codecs.store.remote.object_folder")

pytestmark = [
    pytest.mark.filterwarnings("ignore::bf16codecs.errors.LeftoverWarning"),
    pytest.mark.usefixtures("impatient"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model")


class Packed:
    """A packed folder in a bucket."""

    def __init__(self, address: str, s3: dict[str, str], fs: Any) -> None:
        self.address, self.s3, self.fs = address, s3, fs

    def pack(self, folder: Path, **options: Any) -> Any:
        return pack_hugging_face(folder, self.address, storage_options=self.s3, **options)

    def all_keys(self) -> list[str]:
        self.fs.invalidate_cache()
        found = self.fs.find(self.address) if self.fs.exists(self.address) else []
        start = len(self.address.partition("://")[2]) + 1
        return sorted(path[start:] for path in found)

    def is_complete(self) -> bool:
        path = f"{self.address}/bf16codecs.json"
        return self.fs.exists(path) and b'"layout"' in self.fs.cat_file(path)

    def restored(self, folder: Path) -> Path:
        """Download the folder, and restore it."""
        (folder / "copy").mkdir(parents=True)
        downloaded(self.address, self.s3, folder / "copy")
        unpack_hugging_face(folder / "copy", folder / "restored")
        return folder / "restored"


@pytest.fixture
def packed(bucket: str, s3: dict[str, str], fsspec: Any) -> Packed:
    return Packed(f"{bucket}/packed", s3, fsspec.filesystem("s3", **s3))


def test_there_and_back(folder: Path, packed: Packed, tmp_path: Path) -> None:
    there = packed.pack(folder)
    here = pack_hugging_face(folder, tmp_path / "packed")
    assert packed.all_keys() == sorted(
        n for n, c in contents(tmp_path / "packed").items() if c is not None
    )
    for name in ("tensors", "files", "nbytes", "stores", "kept"):
        assert getattr(there, name) == getattr(here, name)
    sizes = [info["size"] for info in packed.fs.find(packed.address, detail=True).values()]
    assert there.stored_nbytes == sum(sizes)
    restored = packed.restored(tmp_path / "back")
    assert contents(restored) == contents(folder)
    assert folder_modes(restored) == folder_modes(folder)
    store = f"{packed.address}/model.zarr"
    with open_model(store, storage_options=packed.s3) as model:
        assert list(model) == ["embed.weight", "norm.weight"]
    zarr_to_safetensors(store, tmp_path / "one", storage_options=packed.s3)


def test_the_command(folder: Path, packed: Packed) -> None:
    options = "--storage-options", json.dumps(packed.s3)
    result = done("bf16codecs", "pack-hf", folder, packed.address, *options)
    assert "3 stores: adapter_model.zarr, model.zarr," in result
    result = refused("bf16codecs", "pack-hf", folder, packed.address, "--overwrite", *options)
    assert "in object stores, none is replaced: remove it first" in result
    result = refused("bf16codecs", "pack-hf", packed.address, "back", "--restore")
    assert "only local folders are restored: download it first" in result
    result = refused("bf16codecs", "pack-hf", folder, "back", *options)
    assert "--storage-options are for addresses" in result


def test_the_manifest_comes_last(folder: Path, packed: Packed, s3_faults: Faults) -> None:
    packed.pack(folder)
    method, path = s3_faults.requests[-1]
    assert (method, path.rpartition("/")[2]) == ("PUT", "bf16codecs.json")


def test_what_is_there_already(folder: Path, packed: Packed, tmp_path: Path) -> None:
    packed.fs.pipe(f"{packed.address}/notes.txt", b"mine")
    with pytest.raises(FileExistsError, match=r"contains 'notes\.txt': choose another name"):
        packed.pack(folder)
    packed.fs.rm(f"{packed.address}/notes.txt")
    source = write_safetensors(tmp_path / "s.safetensors", {"w": weights((4, 4))})
    safetensors_to_zarr(source, packed.address, storage_options=packed.s3)
    before = packed.all_keys()
    with pytest.raises(FileExistsError, match=r"contains '.*': choose another name"):
        packed.pack(folder, overwrite=True)
    assert packed.all_keys() == before
    with pytest.raises(ValueError, match="the name of a Zarr store, not of a folder"):
        pack_hugging_face(folder, f"{packed.address}/m.zarr", storage_options=packed.s3)


def test_two_at_once(folder: Path, packed: Packed) -> None:
    refusals = []

    def meanwhile(*progress: object) -> None:
        if not refusals:
            refusals.append(1)
            with pytest.raises(BlockingIOError, match="another process is writing it"):
                packed.pack(folder)

    packed.pack(folder, progress=meanwhile)
    assert refusals


# Packing takes some 90 requests.
@pytest.mark.parametrize("last", by_tier([20], range(0, 80, 11)))
def test_servers_that_refuse(folder: Path, packed: Packed, s3_faults: Faults, last: int) -> None:
    s3_faults.fault = lambda number, method, path: (
        "denied" if number > last and method == "PUT" else ""
    )
    with pytest.raises(PermissionError, match="Access Denied"):
        packed.pack(folder)
    s3_faults.clear()
    packed.pack(folder)


@pytest.mark.parametrize("is_sent", [False, True])
def test_killed_at_any_request(
    folder: Path, packed: Packed, tmp_path: Path, is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a packed folder or none; what is left does not hinder the next one."""
    seen = set()
    for number in range(1 + is_sent, 999, by_tier(37, 15)):
        with suppress(Killed), dying(number, is_sent):
            packed.pack(folder)
            seen.add("done")
        there = packed.is_complete()
        seen.add(there)
        if not there:
            packed.pack(folder)
        restored = packed.restored(tmp_path / str(number))
        assert contents(restored) == contents(folder)
        if "done" in seen:
            break
        packed.fs.rm(packed.address, recursive=True)
    assert {"done", True, False} <= seen


def test_files_in_parts(
    folder: Path, packed: Packed, s3_faults: Faults, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Weights in other formats may be large; of an upload that fails, no part is left."""
    boto3 = pytest.importorskip("boto3")
    monkeypatch.setattr(object_folder, "_PART_BYTES", 5 << 20)
    (folder / "pytorch_model.bin").write_bytes(os.urandom((12 << 20) + 5))
    s3_faults.fault = lambda number, method, path: (
        "denied" if method == "PUT" and path.endswith(".bin") else ""
    )
    with pytest.raises(PermissionError):
        packed.pack(folder)
    s3_faults.clear()
    assert packed.all_keys() == []
    client = boto3.client(
        "s3",
        endpoint_url=packed.s3["endpoint_url"],
        aws_access_key_id="k",
        aws_secret_access_key="s",
        region_name="us-east-1",
    )
    assert not client.list_multipart_uploads(Bucket="bucket").get("Uploads")
    packed.pack(folder)
    assert contents(packed.restored(tmp_path / "back")) == contents(folder)


def test_what_is_read_back_differs(
    folder: Path, packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = object_folder.ObjectFolder.read_part

    def changed(self: Any, key: str, start: int, nbytes: int) -> bytes:
        found = read(self, key, start, nbytes)
        return b"x" + found[1:] if key == "config.json" else found

    monkeypatch.setattr(object_folder.ObjectFolder, "read_part", changed)
    with pytest.raises(CorruptDataError, match=r"config\.json: was not read back as written"):
        packed.pack(folder)
    assert packed.all_keys() == []
