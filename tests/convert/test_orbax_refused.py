"""Folders that are no Orbax checkpoints, damaged checkpoints, and targets in the way."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bf16codecs
from bf16codecs.errors import CorruptDataError, SafetensorsError, StoreError
from invoked import done, refused, run
from orbax_checkpoints import (
    FLOATS,
    FORMATS,
    KEY,
    arrays,
    bfloat16,
    jax,
    needs_orbax,
    ocp,
    orbax,
    restored,
    save,
)

pytestmark = needs_orbax


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(tmp_path / "orbax", {"w": bfloat16(300, 100), "s": 3}, use_ocdbt=False)


def refusal(source: Path, *parts: str) -> None:
    """Check that a conversion raises one line with these parts, and makes nothing."""
    before = sorted(source.parent.iterdir())
    with pytest.raises((StoreError, CorruptDataError, FileNotFoundError)) as caught:
        orbax.orbax_to_zarr(source, source.with_name("m.zarr"))
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000
    for part in parts:
        assert part in text
    assert sorted(source.parent.iterdir()) == before


def test_not_a_checkpoint(source: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    refusal(tmp_path / "folder", "folder: no Orbax checkpoint")
    refusal(source / "_METADATA", "it is no folder")
    with pytest.raises(FileNotFoundError):
        orbax.orbax_to_zarr(tmp_path / "missing", tmp_path / "m.zarr")


def test_unfinished_checkpoints(source: Path, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    shutil.copytree(source, tmp_path / "7" / "default.orbax-checkpoint-tmp")
    refusal(tmp_path / "7", "was not finished")
    source = source.rename(tmp_path / "8.orbax-checkpoint-tmp")
    refusal(source, "was not finished")


def test_a_folder_of_checkpoints(source: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for step in ("9", "10"):
        shutil.copytree(source, tmp_path / "run" / step)
    refusal(tmp_path / "run", "name one of them", str(tmp_path / "run" / "10"))


@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_damaged_data(tmp_path: Path, options: dict[str, bool]) -> None:
    """Damage that zstd or a checksum detects: the first bytes of a frame are its magic number."""
    source = save(tmp_path / "orbax", {"w": bfloat16(300, 100)}, **options)
    chunks = [own for own in source.rglob("*") if own.is_file() and own.stat().st_size > 50_000]
    for path in chunks:
        raw = bytearray(path.read_bytes())
        raw[:64] = bytes(64)
        path.write_bytes(raw)
    refusal(source, "tensor 'w'", "damaged")


@pytest.mark.parametrize("use_zarr3", [False, True])
def test_chunks_and_arrays_that_are_missing(tmp_path: Path, use_zarr3: bool) -> None:
    options = {"use_ocdbt": False, "use_zarr3": use_zarr3}
    source = save(tmp_path / "orbax", {"w": bfloat16(300, 100), "n": FLOATS}, **options)
    (source / "w" / ("c/0/0" if use_zarr3 else "0.0")).unlink()
    refusal(source, "tensor 'w'")
    shutil.rmtree(source / "w")
    refusal(source, "_METADATA lists arrays that are missing: 'w'")


def test_damaged_documents(source: Path) -> None:
    original = (source / "_METADATA").read_bytes()
    for raw in (b"{", b"[]", b'{"tree_metadata": {"w": {"value_metadata": 1}}}'):
        (source / "_METADATA").write_bytes(raw)
        refusal(source, f"{source}: _METADATA: not ")
    for raw in (b"{}", b'{"tree_metadata": {}}', b'{"tree_metadata": null}'):
        (source / "_METADATA").write_bytes(raw)
        refusal(source, f"{source}: _METADATA has no tree_metadata, without which Orbax")
    (source / "_METADATA").write_bytes(original)
    (source / "w" / ".zarray").write_bytes(b"{}")
    refusal(source, "tensor 'w'")


@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_trees_that_are_missing(tmp_path: Path, options: dict[str, bool]) -> None:
    """Orbax does not restore items without `_METADATA` either."""
    source = save(tmp_path / "orbax", {"a": {"w": bfloat16(4)}}, **options)
    (source / "_METADATA").unlink()
    with pytest.raises(FileNotFoundError):
        restored(source)
    refusal(source, f"{source}: _METADATA is missing")
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, args=ocp.args.Composite(params=ocp.args.StandardSave({"w": FLOATS})))
    (tmp_path / "run" / "3" / "params" / "_METADATA").unlink()
    refusal(tmp_path / "run" / "3", "3: params/_METADATA is missing")


def test_links_to_folders(source: Path, tmp_path: Path) -> None:
    (source / "w").rename(tmp_path / "elsewhere")
    (source / "w").symlink_to(tmp_path / "elsewhere")
    refusal(source, f"{source / 'w'}: a symbolic link to a folder, which is not followed")


def test_files_that_are_links(source: Path, tmp_path: Path) -> None:
    """As those of a hub's cache are."""
    (tmp_path / "blobs").mkdir()
    for number, file in enumerate([own for own in source.rglob("*") if own.is_file()]):
        file.rename(tmp_path / "blobs" / str(number))
        file.symlink_to(tmp_path / "blobs" / str(number))
    orbax.orbax_to_zarr(source, tmp_path / "m.zarr")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
@pytest.mark.parametrize("name", ["text", "w/0.0", "w/.zarray", "w/other", "x/y/z"])
def test_pipes(source: Path, name: str) -> None:
    path = source / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)  # or a reader waits for ever
    refusal(source, f"{path}: neither a file nor a folder")
    os.close(writer)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
def test_pipes_in_a_database(tmp_path: Path) -> None:
    source = save(tmp_path / "orbax", {"w": bfloat16(30, 10)})
    paths = [own for own in source.rglob("*") if own.parent.name == "d"]
    for path in (*paths, source / "manifest.ocdbt"):
        before = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        writer = os.open(path, os.O_RDWR)
        refusal(source, f"{path}: neither a file nor a folder")
        os.close(writer)
        path.unlink()
        path.write_bytes(before)


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="Windows has none")
@pytest.mark.parametrize("target", ["/dev/null", "missing", "socket"])
def test_neither_a_file_nor_a_folder(source: Path, tmp_path: Path, target: str) -> None:
    path = source / "w" / "0.0"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as own:
        if target == "socket":
            own.bind(os.path.relpath(path))  # of a socket's path, systems allow 100 bytes
        else:
            path.symlink_to(target)
        where = "leads nowhere" if target == "missing" else f"{path}: neither a file nor a folder"
        refusal(source, where)


def test_links_to_folders_that_they_are_in(source: Path) -> None:
    (source / "w" / "up").symlink_to("..")
    refusal(source, f"{source / 'w' / 'up'}: a symbolic link to a folder, which is not followed")


def test_folders_that_are_nested_too_deep(source: Path) -> None:
    (source / "/".join("d" * 65)).mkdir(parents=True)
    refusal(source, "more than 64 levels of folders")


def test_damaged_database(tmp_path: Path) -> None:
    source = save(tmp_path / "orbax", {"w": bfloat16(30, 10)})
    (source / "manifest.ocdbt").write_bytes(b"?" * 100)
    refusal(source, str(source), "damaged")


def test_dtypes_that_safetensors_lacks(tmp_path: Path) -> None:
    tree = {"w": jax.numpy.arange(3).astype(jax.numpy.int4)}
    refusal(save(tmp_path / "orbax", tree), "tensor 'w': int4, a data type that safetensors lacks")
    tree = {"w": jax.numpy.arange(3).astype(jax.numpy.float4_e2m1fn)}
    source = save(tmp_path / "other", tree, use_ocdbt=False)
    refusal(source, "tensor 'w': float4_e2m1fn, a data type that safetensors has in packed pairs")


@pytest.mark.parametrize("where", ["temporary file", "checkpoint"])
def test_full_disks(source: Path, tmp_path: Path, monkeypatch, where: str) -> None:
    """Wherever space ends, the message names the target, and gives its advice once."""
    orbax.orbax_to_zarr(source, tmp_path / "m.zarr")
    number = errno.ENOSPC

    def fail(*args: Any) -> None:
        raise OSError(number, os.strerror(number))

    def fail_of_tensorstore(*args: Any) -> None:
        raise ValueError(f"RESOURCE_EXHAUSTED: Failed to write [os_error_code='{number}']")

    if where == "temporary file":
        monkeypatch.setattr("bf16codecs.convert.orbax.arrays.write_all", fail)
        lines = [refused("bf16codecs", "orbax", source, tmp_path / "x")]
    else:
        monkeypatch.setattr(arrays.Scratch, "get", fail_of_tensorstore)
        lines = []
    lines.append(refused("bf16codecs", "orbax", tmp_path / "m.zarr", tmp_path / "x"))
    advice = f"{os.strerror(number)}; free some space, or choose another disk"
    assert {line.partition(": ")[2] for line in lines} == {f"{tmp_path / 'x'}: {advice}"}
    assert not (tmp_path / "x").exists()


def test_large_documents(source: Path) -> None:
    with open(source / "state", "wb") as file:
        file.truncate(40 << 20)
    refusal(source, "more than 32 MiB beside its arrays, with 'state'")


def test_large_documents_beside_a_large_manifest(tmp_path: Path) -> None:
    source = save(tmp_path / "orbax", {"w": bfloat16(30, 10)})
    for name, size in (("manifest.ocdbt", 20), ("state", 20)):
        with open(source / name, "ab") as file:
            file.truncate(size << 20)
    refusal(source, "more than 32 MiB beside its arrays, with 'state'")


def test_targets(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="would lie in the checkpoint"):
        orbax.orbax_to_zarr(source, source / "m.zarr")
    with pytest.raises(ValueError, match="would replace the source"):
        orbax.orbax_to_zarr(source, source)
    store = tmp_path / "m.zarr"
    orbax.orbax_to_zarr(source, store)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        orbax.orbax_to_zarr(source, store)
    with pytest.raises(ValueError, match="would lie in the store"):
        orbax.zarr_to_orbax(store, store / "back")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        orbax.zarr_to_orbax(store, source)
    orbax.zarr_to_orbax(store, source, overwrite=True)
    (tmp_path / "run").mkdir()
    source.rename(tmp_path / "run" / "1")
    with pytest.raises(FileExistsError, match="a folder of Orbax checkpoints"):
        orbax.zarr_to_orbax(store, tmp_path / "run", overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(FileExistsError, match="no Orbax checkpoint"):
        orbax.zarr_to_orbax(store, tmp_path / "other", overwrite=True)


def test_stores_of_something_else(demo_model: Path, tmp_path: Path) -> None:
    done("st2zarr", demo_model, tmp_path / "m.zarr")
    with pytest.raises(StoreError, match="not made of an Orbax checkpoint"):
        orbax.zarr_to_orbax(tmp_path / "m.zarr", tmp_path / "back")
    assert not (tmp_path / "back").exists()


STRANGE_DOCUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"version": 2}, "version 2 is unknown"),
    ({"files": {"../x": ""}}, "leads out of the checkpoint"),
    ({"files": {"/x": ""}}, "leads out of the checkpoint"),
    ({"files": {"x": 1}}, "not the documents"),
    ({"files": {"x": ["?"]}}, "not base64"),
    ({"databases": {"a/../..": {}}}, "leads out of the checkpoint"),
    ({"files": {}}, "has other arrays than the store"),
]


def test_documents_of_strangers(source: Path, tmp_path: Path) -> None:
    safetensors_numpy = pytest.importorskip("safetensors.numpy")
    orbax.orbax_to_zarr(source, tmp_path / "m.zarr")
    with bf16codecs.open_model(tmp_path / "m.zarr") as model:
        document = json.loads(model.metadata()[KEY])
        tensors = {"w": model["w"][...].view(np.uint16)}
    for change, why in STRANGE_DOCUMENTS:
        metadata = {KEY: json.dumps(document | change)}
        safetensors_numpy.save_file(tensors, tmp_path / "x.safetensors", metadata)
        done("st2zarr", tmp_path / "x.safetensors", tmp_path / "x.zarr", "--overwrite")
        with pytest.raises(StoreError, match=why):
            orbax.zarr_to_orbax(tmp_path / "x.zarr", tmp_path / "back")
        assert not (tmp_path / "back").exists(), change


def test_verification_notices(source: Path, tmp_path: Path, monkeypatch) -> None:
    """A checkpoint that was not written as it was read does not get its name."""
    get = arrays.Scratch.get

    def other(*args: Any) -> Any:
        data = get(*args)
        data[0] ^= 1
        return data

    orbax.orbax_to_zarr(source, tmp_path / "m.zarr")
    monkeypatch.setattr(arrays.Scratch, "get", other)
    with pytest.raises(CorruptDataError, match="back: has another BLAKE3 than the original"):
        orbax.zarr_to_orbax(tmp_path / "m.zarr", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    orbax.zarr_to_orbax(tmp_path / "m.zarr", tmp_path / "back", verify=False)


def test_other_kinds_of_folders(demo_model: Path, tmp_path: Path) -> None:
    """Of commands, whose source may be a store as well, and in Python."""
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        items = {"state": ocp.args.StandardSave({"w": FLOATS}), "data": ocp.args.JsonSave({"a": 1})}
        manager.save(7, args=ocp.args.Composite(**items))
    done("st2h5", demo_model, tmp_path / "m.h5")
    for name in ("model", "empty", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "file").touch()
    shutil.copy(demo_model, tmp_path / "model" / "m.safetensors")
    for name, what in {
        "model": "but a safetensors model: st2zarr makes stores of it",
        "empty": "and no Zarr store of one: it is empty",
        "other": "and no Zarr store of one: it has no _METADATA or manifest.ocdbt or",
        "run/7/data": f"but a part of one, without a tree: name {tmp_path / 'run' / '7'}",
    }.items():
        line = refused("bf16codecs", "orbax", tmp_path / name, tmp_path / "x.zarr")
        assert f"{tmp_path / name}: no Orbax checkpoint, {what}" in line
        what = what.replace("st2zarr", "safetensors_to_zarr")
        with pytest.raises(StoreError, match=f"{name}: no Orbax checkpoint, {what}"):
            orbax.orbax_to_zarr(tmp_path / name, tmp_path / "x.zarr")
    line = refused("bf16codecs", "orbax", tmp_path / "m.h5", tmp_path / "x.zarr")
    assert "m.h5: no Orbax checkpoint, but an HDF5 file: h52st restores it" in line
    line = refused("bf16codecs", "orbax", tmp_path / "other" / "file", tmp_path / "x.zarr")
    assert "neither an Orbax checkpoint, which would be a folder, nor a Zarr store of one" in line


def test_addresses(source: Path, tmp_path: Path) -> None:
    advice = "Orbax checkpoints are not read from addresses: copy the checkpoint first"
    for scheme in ("gs", "s3", "http", "memory"):
        with pytest.raises(StoreError, match=f"^{scheme}://b/c: {advice}$"):
            orbax.orbax_to_zarr(f"{scheme}://b/c", tmp_path / "x.zarr")
        line = refused("bf16codecs", "orbax", f"{scheme}://b/c", tmp_path / "x.zarr")
        assert line.endswith(f": {scheme}://b/c: {advice}")
        line = refused("bf16codecs", "orbax", source, f"{scheme}://b/x.zarr")
        assert "targets must be local" in line, scheme


def test_an_address_without_a_store(tmp_path: Path) -> None:
    """A store may be at an address; the message explains that a checkpoint may not."""
    pytest.importorskip("fsspec")
    advice = "; Orbax checkpoints are not read from addresses: copy the checkpoint first"
    assert refused("bf16codecs", "orbax", "memory://c", tmp_path / "x").endswith(advice)
    with pytest.raises(StoreError, match=f"memory://c: not a model store.*{advice}"):
        orbax.zarr_to_orbax("memory://c", tmp_path / "x")


def test_a_path_with_a_scheme(source: Path, tmp_path: Path) -> None:
    done("bf16codecs", "orbax", f"file://{source}", tmp_path / "x.zarr")


def test_refusals_of_commands(source: Path, tmp_path: Path) -> None:
    store = tmp_path / "m.zarr"
    line = refused("bf16codecs", "orbax", source / "w", tmp_path / "x")
    assert f"w: no Orbax checkpoint, but a part of one, without a tree: name {source}" in line
    line = refused("bf16codecs", "orbax", tmp_path, tmp_path / "x")
    assert f"a folder of Orbax checkpoints: name one of them, such as {source}" in line
    source.rename(tmp_path / "x.orbax-checkpoint-tmp")
    line = refused("bf16codecs", "orbax", tmp_path / "x.orbax-checkpoint-tmp", store)
    assert "was not finished" in line
    (tmp_path / "x.orbax-checkpoint-tmp").rename(source)
    line = refused("bf16codecs", "orbax", source, store, "--max-bytes", "1K")
    assert "its arrays: 60008 bytes once decoded, more than --max-bytes allows" in line
    done("bf16codecs", "orbax", source, store)
    result = run("bf16codecs", "orbax", store, tmp_path / "back", "--codec", "zstd")
    assert result.exit_code == 2
    assert "--codec has no effect when a checkpoint is restored" in result.stderr
    line = refused("bf16codecs", "orbax", store, tmp_path / "back", "--max-bytes", "1K")
    assert "--max-bytes" in line


def test_a_file_that_is_added_meanwhile(source: Path, tmp_path: Path) -> None:
    def add(*_: Any) -> None:
        (source / "added").touch()

    with pytest.raises(SafetensorsError, match="changed while it was read"):
        orbax.orbax_to_zarr(source, tmp_path / "m.zarr", progress=add)
    assert not (tmp_path / "m.zarr").exists()
