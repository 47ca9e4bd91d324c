"""The manifest of a packed folder, and how it is used when the folder is restored."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from pathlib import Path

import blake3
import pytest

from bf16codecs.convert import pack_hugging_face, unpack_hugging_face
from bf16codecs.errors import StoreError, UnsupportedVersionError
from folders import content_of
from lazy_models import weights, write_safetensors
from model_folders import (
    SHARDS,
    contents,
    edit_manifest,
    folder_modes,
    manifest_of,
    write_folder,
)
from snapshots import snapshot_of

NOTED = {"mode": "0644", "size": 5, "blake3": "00" * 32}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model")


NO_STORES: list[object] = [
    None,
    {},
    [],
    {"model.zarr": {}},
    {"model.zarr": []},
    {"model.zarr": {"a.safetensors": 5}},
    {"model.zarr": {"a.safetensors": {**NOTED, "mode": "rw"}}},
    {"model.zarr": {"a.safetensors": {"mode": "0644", "size": 5}}},
    {"model.zarr": {"a.safetensors": {**NOTED, "blake3": 5}}},
    {"model.zarr": {"sub/a.safetensors": NOTED}},
    {"../model.zarr": {"../a.safetensors": NOTED}},
    {"/model.zarr": {"/a.safetensors": NOTED}},
    {"model.zarr": {"..": NOTED}},
]
#: Names that lead out of the folder, or have another form, or that no file system takes.
ODD_NAMES = [
    "../x",
    "/x",
    "",
    "a//b",
    "a/./b",
    "./a",
    "a/",
    "a/../b",
    "a\0b",
    "\ud800",
    "a/" * 64 + "a",
]
NO_FOLDERS: list[object] = [
    {},
    {"unet": "0755"},
    [],
    *({".": "0755", n: "0755"} for n in ODD_NAMES),
]
NO_FILES: list[object] = [[], None, {"a": 5}, *({name: NOTED} for name in ODD_NAMES)]


def test_meaningless_manifests(folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    pack_hugging_face(folder, packed)
    sound = (packed / "bf16codecs.json").read_bytes()
    odd = [{f"{name}/m.zarr": {f"{name}/m.safetensors": NOTED}} for name in ODD_NAMES]
    cases = {"stores": NO_STORES + odd, "folders": NO_FOLDERS, "files": NO_FILES}
    for key, values in cases.items():
        for value in values:
            (packed / "bf16codecs.json").write_bytes(sound)
            edit_manifest(packed, **{key: value})
            with pytest.raises(StoreError, match="does not say which files"):
                unpack_hugging_face(packed, tmp_path / "back")
            assert sorted(os.listdir(tmp_path)) == ["model", "packed"], (key, value)


def test_manifests_that_say_something_else(folder: Path, tmp_path: Path) -> None:
    packed, back = tmp_path / "packed", tmp_path / "back"
    pack_hugging_face(folder, packed)
    manifest = manifest_of(packed)
    stores = manifest["stores"]
    (packed / "bf16codecs.json").write_text("{")
    with pytest.raises(StoreError, match="not JSON"):
        unpack_hugging_face(packed, back)
    (packed / "bf16codecs.json").write_text(json.dumps(manifest))
    edit_manifest(packed, layout=2)
    with pytest.raises(UnsupportedVersionError, match="layout 2"):
        unpack_hugging_face(packed, back)
    edit_manifest(packed, layout=1, stores={**stores, "adapter_model.zarr": {"config.json": NOTED}})
    with pytest.raises(StoreError, match=r"config\.json is there, and a store has it as well"):
        unpack_hugging_face(packed, back)
    edit_manifest(packed, stores={**stores, "other.zarr": stores["model.zarr"]})
    with pytest.raises(StoreError, match=f"says that {SHARDS[0]}.* is in several stores"):
        unpack_hugging_face(packed, back)
    edit_manifest(packed, stores={**stores, "model.zarr": {"one.safetensors": NOTED}})
    with pytest.raises(StoreError, match="has other files than"):
        unpack_hugging_face(packed, back)
    edit_manifest(packed, stores=stores)
    for name in ("config.json", "config.json/in", SHARDS[0]):
        edit_manifest(packed, folders={".": "0755", name: "0755"})
        with pytest.raises(StoreError, match=r"says that .* is a folder, and it is a file"):
            unpack_hugging_face(packed, back)
    edit_manifest(packed, folders={".": "0755"})
    shutil.rmtree(packed / "adapter_model.zarr")
    with pytest.raises(FileNotFoundError, match=r"adapter_model\.zarr"):
        unpack_hugging_face(packed, back)
    assert sorted(os.listdir(tmp_path)) == ["model", "packed"]


def test_the_manifest(folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    pack_hugging_face(folder, packed, sha256=True)
    manifest = manifest_of(packed)
    noted = {**manifest["files"]}
    for files in manifest["stores"].values():
        noted.update(files)
    there = {name: of for name, of in contents(folder).items() if of is not None}
    assert noted.keys() == there.keys()
    for name, (mode, data) in there.items():
        entry = noted[name]
        assert (int(entry["mode"], 8), entry["size"]) == (mode, len(data))
        assert entry["blake3"] == blake3.blake3(data).hexdigest()
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
    assert manifest["folders"]["."] == "0700"


def test_stores_and_files_of_another_model(folder: Path, tmp_path: Path) -> None:
    """Of a store, the names of files are those that were packed, and nothing is damaged."""
    packed, other = tmp_path / "packed", tmp_path / "other"
    pack_hugging_face(folder, packed)
    path = folder / "adapter_model.safetensors"
    write_safetensors(path, {"w": weights((40, 30), "float32", seed=5)})
    pack_hugging_face(folder, other)
    shutil.rmtree(packed / "adapter_model.zarr")
    shutil.copytree(other / "adapter_model.zarr", packed / "adapter_model.zarr")
    (packed / "tokenizer.json").write_text("{}")
    told = (
        r"changed since it was packed: adapter_model\.safetensors \(in .*, tokenizer\.json: verify"
    )
    with pytest.raises(StoreError, match=told):
        unpack_hugging_face(packed, tmp_path / "back")
    assert sorted(os.listdir(tmp_path)) == ["model", "other", "packed"]
    summary = unpack_hugging_face(packed, tmp_path / "back", verify=False)
    assert summary.changed == (
        "adapter_model.safetensors (in adapter_model.zarr)",
        "tokenizer.json",
    )
    (folder / "tokenizer.json").write_text("{}")
    assert contents(tmp_path / "back") == contents(folder)


@pytest.mark.skipif(os.name == "nt", reason="links of POSIX systems")
def test_a_packed_folder_in_the_cache_of_huggingface_hub(folder: Path, tmp_path: Path) -> None:
    pack_hugging_face(folder, tmp_path / "packed")
    cached = snapshot_of(tmp_path / "packed", tmp_path / "cache")
    unpack_hugging_face(cached, tmp_path / "again")
    assert content_of(tmp_path / "again") == content_of(folder)
    link = cached / "config.json"
    (cached.parent / ("1" * 40)).write_bytes(link.read_bytes())
    link.unlink()
    link.symlink_to(f"../{'1' * 40}")
    with pytest.raises(StoreError, match=r"config\.json: a symbolic link"):
        unpack_hugging_face(cached, tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_files_added_to_a_packed_folder_are_restored(folder: Path, tmp_path: Path) -> None:
    """And what a hub loses comes back: empty folders, and modes."""
    packed = tmp_path / "packed"
    pack_hugging_face(folder, packed)
    (packed / "README.md").write_text("new")
    (packed / "empty").rmdir()
    (packed / "unet" / "modeling_own.py").chmod(0o600)
    (packed / "unet").chmod(0o777)
    unpack_hugging_face(packed, tmp_path / "back")
    back = contents(tmp_path / "back")
    assert back.pop("README.md") is not None
    assert back == contents(folder)
    assert folder_modes(tmp_path / "back") == folder_modes(folder)


def test_private_weights_stay_private(folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    (folder / "adapter_model.safetensors").chmod(0o600)
    pack_hugging_face(folder, packed)
    modes = folder_modes(packed)
    assert (modes["."], modes["unet"]) == (0o700, 0o750)
    assert (modes["adapter_model.zarr"], modes["model.zarr"]) == (0o700, 0o750)


def test_modes_are_those_of_files(folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    (folder / "config.json").chmod(0o4755)
    (folder / "unet").chmod(0o2750)
    pack_hugging_face(folder, packed)
    assert stat.S_IMODE((packed / "config.json").stat().st_mode) == 0o755
    noted = manifest_of(packed)
    assert (noted["files"]["config.json"]["mode"], noted["folders"]["unet"]) == ("0755", "0750")


def test_modes_that_give_more_than_rights_are_refused(folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    pack_hugging_face(folder, packed)
    text = (packed / "bf16codecs.json").read_text()
    for mode in (
        "04777",
        "4755",
        "1777",
        "10644",
        "-644",
        "0o644",
        "0_644",
        " 644",
        "\u0666\u0664\u0664",
    ):
        for old in ('"mode": "0640"', '"mode": "0755"', '".": "0700"', '"empty": "0711"'):
            new = f"{old.partition(':')[0]}: {json.dumps(mode)}"
            assert old in text
            (packed / "bf16codecs.json").write_text(text.replace(old, new))
            with pytest.raises(StoreError, match="does not say which files"):
                unpack_hugging_face(packed, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_others_may_write_what_the_umask_lets_them(folder: Path, tmp_path: Path) -> None:
    """Modes in the manifest, and of added files as they were unpacked, are not trusted."""
    packed = tmp_path / "packed"
    pack_hugging_face(folder, packed)
    text = (packed / "bf16codecs.json").read_text()
    (packed / "bf16codecs.json").write_text(re.sub(r'"0[0-7]{3}"', '"0777"', text))
    (packed / "new").mkdir()
    (packed / "new" / "x.py").touch()
    for path in (packed / "new", packed / "new" / "x.py"):
        path.chmod(0o777)
    before = os.umask(0o022)
    try:
        for umask, most in ((0o022, 0o755), (0o002, 0o775), (0o077, 0o755), (0, 0o777)):
            os.umask(umask)
            back = tmp_path / f"{umask:o}"
            unpack_hugging_face(packed, back)
            found = folder_modes(back) | {n: f[0] for n, f in contents(back).items() if f}
            assert found.pop("new") == 0o777 & ~umask
            assert {n for n, mode in found.items() if mode != most} == set()
    finally:
        os.umask(before)
