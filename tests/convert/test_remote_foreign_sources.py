"""Other sources than safetensors at addresses become the stores that local files become."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bf16codecs import open_model
from bf16codecs.convert import places, safetensors_to_zarr, verify_store, zarr_to_safetensors
from bf16codecs.errors import SafetensorsError, StoreError
from bf16codecs.store.remote import retries
from folders import content_of
from hub_server import Hub
from invoked import done, refused
from servers import FileServer
from torch_files import call, pickled, tensor, write_older, write_zip

GOLDENS = Path(__file__).parent / "goldens"
FILES = sorted(
    path for path in GOLDENS.glob("*/*") if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".gguf")
)
NAMES = [path.name for path in FILES]
INDEX = "pytorch_model.bin.index.json"
SHARDS = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"


def write_shards(folder: Path) -> None:
    """Write the golden files as the shards of one model, with their index."""
    folder.mkdir(exist_ok=True)
    for name, golden in zip(SHARDS, ("state.bin", "older.bin"), strict=True):
        shutil.copy(GOLDENS / "torch_files" / golden, folder / name)
    weight_map = {f"{name}.w": name for name in SHARDS}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text("{}")


@pytest.mark.parametrize("name", NAMES)
def test_files_on_a_web_server(server: FileServer, tmp_path: Path, name: str) -> None:
    source = FILES[NAMES.index(name)]
    shutil.copy(source, server.root / name)
    url, store = f"{server.url}/{name}", tmp_path / "m.zarr"
    done("st2zarr", url, store)
    safetensors_to_zarr(server.root / name, tmp_path / "local.zarr")
    assert content_of(store) == content_of(tmp_path / "local.zarr")
    assert "identical" in done("bf16codecs", "verify", store, url)


def test_the_usual_name_on_a_web_server(server: FileServer, tmp_path: Path) -> None:
    shutil.copy(GOLDENS / "torch_files" / "state.bin", server.root / "pytorch_model.bin")
    done("st2zarr", server.url, tmp_path / "m.zarr")
    done("st2h5", f"{server.url}/pytorch_model.bin?download=true", tmp_path / "m.h5")
    for store in ("m.zarr", "m.h5"):
        verify_store(tmp_path / store, server.root / "pytorch_model.bin")


@pytest.mark.parametrize("address", [INDEX, ""])
def test_shards_on_a_web_server(server: FileServer, tmp_path: Path, address: str) -> None:
    write_shards(server.root)
    summary = safetensors_to_zarr(f"{server.url}/{address}", tmp_path / "m.zarr")
    assert summary.left_out == ()
    zarr_to_safetensors(tmp_path / "m.zarr", tmp_path / "back")
    (server.root / "config.json").unlink()
    assert content_of(tmp_path / "back") == content_of(server.root)
    (server.root / SHARDS[1]).unlink()
    line = refused("st2zarr", f"{server.url}/{address}", tmp_path / "m2.zarr")
    assert f"{server.url}/{SHARDS[1]}: Nothing is there" in line


def test_folders_in_a_bucket(bucket: str, s3: dict[str, str], fsspec: Any, tmp_path: Path) -> None:
    write_shards(tmp_path / "shards")
    shutil.copytree(GOLDENS / "distcp_files", tmp_path / "distcp")
    (tmp_path / "gguf").mkdir()
    shutil.copy(GOLDENS / "gguf_files" / "little.gguf", tmp_path / "gguf")
    (tmp_path / "gguf" / "README.md").write_text("r")
    left_out = {"shards": ("config.json",), "distcp": (), "gguf": ("README.md",)}
    for name, others in left_out.items():
        folder, address = tmp_path / name, f"{bucket}/{name}"
        fsspec.filesystem("s3", **s3).put(f"{folder}/", f"{address}/", recursive=True)
        store, local = tmp_path / f"{name}.zarr", tmp_path / f"{name}-local.zarr"
        assert safetensors_to_zarr(address, store, storage_options=s3).left_out == others
        assert safetensors_to_zarr(folder, local).left_out == others
        assert content_of(store) == content_of(local)
        verify_store(store, f"{address}/", storage_options=s3)


def test_repositories(hub: Hub, tmp_path: Path) -> None:
    root = hub.root / hub.commits["main"]
    write_shards(root)
    shutil.copy(GOLDENS / "gguf_files" / "little.gguf", root / "m-Q8_0.gguf")
    (root / "gguf").mkdir()
    shutil.copy(GOLDENS / "gguf_files" / "big.gguf", root / "gguf" / "big.gguf")
    options: dict[str, Any] = {"storage_options": {"endpoint": hub.url}, "overwrite": True}
    for path, local in {
        f"/{INDEX}": root / INDEX,
        f"/{SHARDS[0]}": root / SHARDS[0],
        "/m-Q8_0.gguf": root / "m-Q8_0.gguf",
        "/gguf": root / "gguf",
    }.items():
        safetensors_to_zarr(f"hf://owner/name{path}", tmp_path / "m.zarr", **options)
        verify_store(tmp_path / "m.zarr", local)


def many_tensors(folder: Path, write: Any) -> Path:
    """Write a file of many small tensors."""
    data = {str(i): np.arange(3000, dtype=np.float32) + i for i in range(64)}
    pairs = {f"w{key}": tensor("Float", key, 3000, 0, (30, 100), (100, 1)) for key in data}
    if write is write_zip:
        return write_zip(
            folder / "many.bin", pickled(pairs), {k: v.tobytes() for k, v in data.items()}
        )
    storages = {k: (v.size, v.tobytes()) for k, v in data.items()}
    return write_older(folder / "many.bin", pickled(pairs), storages)


@pytest.mark.parametrize("write", [write_zip, write_older])
def test_few_requests_for_many_tensors(server: FileServer, tmp_path: Path, write: Any) -> None:
    """One request reads several tensors that are near each other."""
    path = many_tensors(server.root, write)
    server.clear()
    safetensors_to_zarr(f"{server.url}/{path.name}", tmp_path / "m.zarr")
    assert sum(server.sent) < 3 * path.stat().st_size
    assert len(server.requests) < 20
    with open_model(tmp_path / "m.zarr") as model:
        assert model["w9"][0, :3].tolist() == [9, 10, 11]


def test_pickles_at_addresses_do_not_run(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = pickled(call("os", "system", b"X\x0e\0\0\0echo ran > ran"))
    for write in (write_zip, write_older):
        path = write(server.root / "m.bin", run, {})
        safetensors_to_zarr(f"{server.url}/{path.name}", tmp_path / "m.zarr", overwrite=True)
        assert not (tmp_path / "ran").exists()
        zarr_to_safetensors(tmp_path / "m.zarr", tmp_path / "back.bin", overwrite=True)
        assert (tmp_path / "back.bin").read_bytes() == path.read_bytes()


def test_what_is_wrong_is_said(server: FileServer, tmp_path: Path) -> None:
    def said(name: str) -> str:
        return refused("st2zarr", f"{server.url}/{name}", tmp_path / "m.zarr")

    assert "Nothing is there" in said("m.gguf")
    assert "Nothing is there" in said(INDEX)
    (server.root / "m.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "pointer of Git LFS" in said("m.gguf")
    golden = (GOLDENS / "torch_files" / "state.bin").read_bytes()
    (server.root / "m.bin").write_bytes(golden[:-30])
    assert "truncated" in said("m.bin")
    (server.root / "m.bin").write_bytes(golden)
    server.deny = "m.bin"
    assert "403" in said("m.bin")
    assert not (tmp_path / "m.zarr").exists()


def test_a_server_that_fails_in_a_zip_file(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zipfile would say that the file is damaged."""
    monkeypatch.setattr(retries, "_WAITS", (0,))
    path = many_tensors(server.root, write_zip)
    url, requests, allowed = f"{server.url}/{path.name}", [], 0

    def drop_later(headers: Mapping[str, str]) -> None:
        requests.append(headers)
        server.drop = "many" if len(requests) > allowed else None

    server.note_headers = drop_later
    for allowed in range(1, 9):  # noqa: B007
        requests.clear()
        with pytest.raises(OSError, match=url) as raised:
            safetensors_to_zarr(url, tmp_path / "m.zarr")
        assert "damaged" not in str(raised.value)


def test_folders_with_other_files(
    bucket: str, s3: dict[str, str], fsspec: Any, tmp_path: Path
) -> None:
    """An empty file is none of PyTorch's, and what lies beside a store is no model."""
    folder = tmp_path / "m"
    folder.mkdir()
    shutil.copy(GOLDENS / "torch_files" / "state.bin", folder)
    (folder / "empty.pt").touch()
    fsspec.filesystem("s3", **s3).put(f"{folder}/", f"{bucket}/", recursive=True)
    for source, options in ((bucket, s3), (folder, None)):
        store = tmp_path / "m.zarr"
        summary = safetensors_to_zarr(source, store, overwrite=True, storage_options=options)
        assert summary.left_out == ("empty.pt",)
    safetensors_to_zarr(folder, folder / "model.zarr")
    with pytest.raises(SafetensorsError, match=r"no model in this folder"):
        safetensors_to_zarr(folder, tmp_path / "n.zarr")


def test_repositories_with_stores(hub: Hub, tmp_path: Path) -> None:
    root = hub.root / hub.commits["main"]
    shutil.copy(GOLDENS / "torch_files" / "state.bin", root / "training_args.bin")
    (root / "model.zarr").mkdir()
    (root / "model.zarr" / "zarr.json").write_text("{}")
    options = {"storage_options": {"endpoint": hub.url}}
    with pytest.raises(StoreError, match=r"name what is in it, such as 'model\.zarr'"):
        safetensors_to_zarr("hf://owner/name", tmp_path / "m.zarr", **options)
    safetensors_to_zarr("hf://owner/name/training_args.bin", tmp_path / "m.zarr", **options)


def test_blocks() -> None:
    """Of any ranges that are read, each byte comes once."""
    data = bytes(range(256)) * 1200
    asked: list[tuple[int, int]] = []

    def read(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        asked.extend(ranges)
        return [data[start:stop] for start, stop in ranges]

    file = places._RemoteBytes(read, len(data))
    ranges = [(5, 5), (0, 10), (299_999, 400_000), (100_000, 100_001), (100, 5000), (9000, 3)]
    assert file.read(ranges) == [data[start:stop] for start, stop in ranges]
    assert [start >> 12 for start, _ in asked] == [0, 1, 24, 73, 74]
    assert file.part(0, len(data)) == data
    assert sorted(asked) == [(at, min(at + 4096, len(data))) for at in range(0, len(data), 4096)]
