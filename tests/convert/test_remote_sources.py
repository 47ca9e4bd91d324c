"""Sources of conversions at addresses: files, indexes and folders on web servers and in buckets."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bf16codecs.convert import (
    append_to_run,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import SafetensorsError, SourceMismatchError, StoreError
from bf16codecs.store.opening import open_store
from bf16codecs.store.remote import retries
from folders import content_of
from invoked import done, refused
from lazy_models import weights, write_safetensors
from model_folders import SHARDS, write_sharded
from models import every_dtype, write_model
from servers import FileServer

INDEX = "model.safetensors.index.json"


def upload(folder: Path, address: str, s3: dict[str, str], fsspec: Any) -> None:
    fsspec.filesystem("s3", **s3).put(f"{folder}/", f"{address}/", recursive=True)


def restored(store: Path) -> dict[str, bytes]:
    """Return the bytes of the files that a store restores, by name; one file has an empty one."""
    target = store.with_name("restored")
    zarr_to_safetensors(store, target)
    if target.is_file():
        return {"": target.read_bytes()}
    return {path.name: path.read_bytes() for path in target.iterdir()}


def test_a_file_on_a_web_server(server: FileServer, tmp_path: Path) -> None:
    path = every_dtype(server.root / "a model.safetensors")
    url = f"{server.url}/a%20model.safetensors"
    server.clear()
    assert "85 tensors" in done("st2zarr", url, tmp_path / "m.zarr")
    assert restored(tmp_path / "m.zarr") == {"": path.read_bytes()}
    (file,) = open_store(tmp_path / "m.zarr").info.files
    assert file.name == "a model.safetensors"
    # Of the file, nothing was read twice but the end of its header, and samples of tensors.
    assert sum(server.sent) < 2 * path.stat().st_size + (1 << 16)
    done("bf16codecs", "verify", tmp_path / "m.zarr", url)
    safetensors_to_hdf5(url, tmp_path / "m.h5")
    verify_store(tmp_path / "m.h5", url)


def test_the_store_is_that_of_the_local_file(server: FileServer, tmp_path: Path) -> None:
    write_safetensors(
        server.root / "model.safetensors",
        {"w": weights((300, 70)), "again": weights((300, 70)), "f": weights((90, 70), "float32")},
    )
    safetensors_to_zarr(server.root / "model.safetensors", tmp_path / "local.zarr")
    for address in (f"{server.url}/model.safetensors", server.url, f"{server.url}/"):
        safetensors_to_zarr(address, tmp_path / "m.zarr", overwrite=True)
        assert content_of(tmp_path / "m.zarr") == content_of(tmp_path / "local.zarr")
    safetensors_to_zarr(server.root / "model.safetensors", tmp_path / "half.zarr", lossy="float16")
    safetensors_to_zarr(server.url, tmp_path / "half2.zarr", lossy="float16")
    assert content_of(tmp_path / "half2.zarr") == content_of(tmp_path / "half.zarr")


def test_verifying_reads_many_small_tensors_together(server: FileServer, tmp_path: Path) -> None:
    values = {f"t{i}": weights((i + 1, 3)) for i in range(200)}
    path = write_safetensors(server.root / "m.safetensors", values)
    safetensors_to_zarr(path, tmp_path / "m.zarr")
    address = f"{server.url}/m.safetensors"
    verify_store(tmp_path / "m.zarr", address)
    assert len(server.requests) < 20
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(SourceMismatchError, match=f"tensor 't[0-9]+'.* differs from {address}"):
        verify_store(tmp_path / "m.zarr", address)


def test_shards_on_a_web_server(server: FileServer, tmp_path: Path) -> None:
    write_sharded(server.root)
    expected = {path.name: path.read_bytes() for path in server.root.iterdir()}
    for name, address in {"a": server.url, "b": f"{server.url}/{INDEX}"}.items():
        (tmp_path / name).mkdir()
        safetensors_to_zarr(address, tmp_path / name / "m.zarr")
        assert restored(tmp_path / name / "m.zarr") == expected
    index = server.root / INDEX
    index.write_bytes(expected[INDEX] + b" ")
    line = refused("bf16codecs", "verify", tmp_path / "a" / "m.zarr", server.url)
    assert f"its index differs from {INDEX} of {server.url}" in line


@pytest.mark.parametrize("has_index", [True, False])
def test_a_folder_in_a_bucket(
    bucket: str, s3: dict[str, str], fsspec: Any, tmp_path: Path, has_index: bool
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write_sharded(folder)
    expected = {path.name: path.read_bytes() for path in folder.iterdir()}
    if not has_index:
        (folder / INDEX).unlink()
        del expected[INDEX]
    (folder / "config.json").write_text("{}")
    upload(folder, bucket, s3, fsspec)
    summary = safetensors_to_zarr(bucket, tmp_path / "m.zarr", storage_options=s3)
    assert summary.left_out == ("config.json",)
    assert restored(tmp_path / "m.zarr") == expected
    verify_store(tmp_path / "m.zarr", f"{bucket}/", storage_options=s3)


def test_a_folder_in_a_bucket_that_is_no_model(
    bucket: str, s3: dict[str, str], fsspec: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "notes.txt").write_text("none")
    upload(folder, bucket, s3, fsspec)

    def convert() -> None:
        safetensors_to_zarr(bucket, tmp_path / "m.zarr", storage_options=s3)

    with pytest.raises(SafetensorsError, match=r"no model in this folder"):
        convert()
    write_sharded(folder)
    (folder / INDEX).unlink()
    (folder / SHARDS[0]).unlink()
    upload(folder, bucket, s3, fsspec)
    with pytest.raises(SafetensorsError, match=f"{SHARDS[0]} is missing"):
        convert()
    (folder / SHARDS[1]).rename(folder / "a.safetensors")
    fsspec.filesystem("s3", **s3).rm(f"{bucket}/{SHARDS[1]}")
    write_model(folder / "b.safetensors", [("norm.weight", "BF16", (4,))])
    upload(folder, bucket, s3, fsspec)
    with pytest.raises(SafetensorsError, match=r"is in a\.safetensors, and also in b\.safetensors"):
        convert()
    assert not (tmp_path / "m.zarr").exists()


def test_bases_and_options(
    bucket: str, s3: dict[str, str], fsspec: Any, server: FileServer, tmp_path: Path
) -> None:
    base = write_model(server.root / "base.safetensors", [("a", "BF16", (64, 8))], 1)
    fine = write_model(server.root / "fine.safetensors", [("a", "BF16", (64, 8))], 2)
    upload(server.root, bucket, s3, fsspec)
    target, options = tmp_path / "m.zarr", {"storage_options": s3, "overwrite": True}
    url, in_bucket = server.url, f"{bucket}/fine.safetensors"
    for other in (base, f"{url}/base.safetensors", f"{bucket}/base.safetensors"):
        summary = safetensors_to_zarr(in_bucket, target, base=other, **options)
        assert "1 of 1 tensor as differences" in summary.base
        verify_store(target, in_bucket, base=base, storage_options=s3)
    safetensors_to_zarr(fine, target, base=f"{bucket}/base.safetensors", **options)
    with pytest.raises(ValueError, match="neither the source nor a base is at one"):
        safetensors_to_zarr(fine, target, **options)
    with pytest.raises(ValueError, match="its file system takes no 'colour'"):
        safetensors_to_zarr(in_bucket, target, storage_options={**s3, "colour": 1})


def test_runs(server: FileServer, tmp_path: Path) -> None:
    urls = []
    for step in (100, 200, 300):
        name = f"step-{step}.safetensors"
        write_model(server.root / name, [("a", "BF16", (64, 8))], step)
        urls.append(f"{server.url}/{name}")
    safetensors_to_run(urls[:2], tmp_path / "run.zarr")
    assert append_to_run(urls[2], tmp_path / "run.zarr").step == 300
    verify_store(tmp_path / "run.zarr", server.root)


def test_runs_in_a_bucket(bucket: str, s3: dict[str, str], fsspec: Any, tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    for step in (100, 200, 300):
        name = f"step-{step}.safetensors"
        write_model(tmp_path / "steps" / name, [("a", "BF16", (64, 8))], step)
    upload(tmp_path / "steps", bucket, s3, fsspec)
    urls = [f"{bucket}/step-{step}.safetensors" for step in (100, 200, 300)]
    run, options = tmp_path / "run.zarr", ("--storage-options", json.dumps(s3))
    assert "2 checkpoints -> " in done("st2zarr", "--series", *urls[:2], run, *options)
    done("st2zarr", urls[2], run, "--append", *options)
    verify_store(run, tmp_path / "steps")
    done("bf16codecs", "verify", f"{run}@200", urls[1], *options)
    safetensors_to_run(urls[:1], tmp_path / "one.zarr", storage_options=s3)
    verify_store(tmp_path / "one.zarr", urls[0], storage_options=s3)
    local = tmp_path / "steps" / "step-300.safetensors"
    for args in (("--series", local, tmp_path / "r.zarr"), (local, run, "--append")):
        assert "no source is at one" in refused("st2zarr", *args, *options)


def test_what_is_wrong_is_said(server: FileServer, tmp_path: Path) -> None:
    target = tmp_path / "m.zarr"

    def said(address: str) -> str:
        line = refused("st2zarr", address, target)
        assert os.listdir(tmp_path) == ["served"]
        return line

    assert "server lists no folders: name the file" in said(server.url)
    assert "Nothing is there" in said(f"{server.url}/m.safetensors")
    assert "zarr2st restores that" in said(f"{server.url}/m.zarr")
    assert "zarr2st restores that" in said(f"{server.url}/m.zarr.zip/")
    assert "h52st restores that" in said(f"{server.url}/m.h5")
    assert "no installed package opens nope:// addresses" in said("nope://m.safetensors")
    path = write_model(server.root / "model.safetensors", [("a", "BF16", (64, 8))])
    path.write_bytes(path.read_bytes()[:-1])
    assert "truncated" in said(server.url)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    assert "pointer of Git LFS" in said(server.url)
    server.ignore_ranges = True
    write_model(path, [("a", "BF16", (640, 800))])
    assert "ignores ranges" in said(server.url)
    server.deny = "model"
    assert "403" in said(server.url)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_WAITS", (0, 0, 0))


@pytest.mark.usefixtures("impatient")
def test_connections_that_break(server: FileServer, tmp_path: Path) -> None:
    path = write_model(server.root / "model.safetensors", [("a", "BF16", (640, 80))])
    target, url = tmp_path / "m.zarr", f"{server.url}/model.safetensors"
    server.drop = "model"
    with pytest.raises(OSError, match=r"model\.safetensors: "):
        safetensors_to_zarr(url, target)
    assert os.listdir(tmp_path) == ["served"]

    def recover(headers: Mapping[str, str]) -> None:
        if len(server.requests) == 2:
            server.drop = None

    server.clear()
    server.note_headers, server.failures = recover, 1
    safetensors_to_zarr(url, target)
    assert server.drop is None
    assert restored(target) == {"": path.read_bytes()}


@pytest.mark.usefixtures("impatient")
def test_a_busy_server_says_when_to_come_again(server: FileServer, tmp_path: Path) -> None:
    path = write_model(server.root / "model.safetensors", [("a", "BF16", (640, 80))])
    server.retry_after = 1
    started, server.failures = time.monotonic(), 2
    safetensors_to_zarr(server.url, tmp_path / "m.zarr")
    assert time.monotonic() - started >= 1
    assert restored(tmp_path / "m.zarr") == {"": path.read_bytes()}


def test_a_file_that_changes_meanwhile(server: FileServer, tmp_path: Path) -> None:
    path = write_model(server.root / "model.safetensors", [("a", "BF16", (640, 80))])
    server.has_etags = True
    changed = path.read_bytes()[:-1] + b"\x01"

    def replace(phase: str, done: int, total: int) -> None:
        path.write_bytes(changed)

    with pytest.raises(SafetensorsError, match=r"model\.safetensors: changed while it was read"):
        safetensors_to_zarr(server.url, tmp_path / "m.zarr", progress=replace)
    assert os.listdir(tmp_path) == ["served"]


@pytest.mark.parametrize("name", ["model.safetensors", "state.bin"])
def test_a_file_that_changes_while_it_is_opened(
    server: FileServer, tmp_path: Path, name: str
) -> None:
    """After its beginning was read, and before its data are."""
    path = server.root / name
    golden = Path(__file__).parent / "goldens" / "torch_files" / "state.bin"
    if name == golden.name:
        shutil.copy(golden, path)
    else:
        write_model(path, [("a", "BF16", (640, 80))])
    server.has_etags = True
    changed = path.read_bytes()[:-1] + b"\x01"

    def replace(headers: Mapping[str, str]) -> None:
        if any(method == "GET" for method, _, _ in server.requests):
            server.note_headers = lambda headers: None
            path.write_bytes(changed)

    server.note_headers = replace
    with pytest.raises(SafetensorsError, match=f"{name}: changed while it was read"):
        safetensors_to_zarr(f"{server.url}/{name}", tmp_path / "m.zarr")
    assert os.listdir(tmp_path) == ["served"]


def test_names_that_stores_do_not_keep(server: FileServer, tmp_path: Path) -> None:
    write_model(server.root / "a:b.safetensors", [("a", "BF16", (4,))])
    with pytest.raises(SafetensorsError, match="its name has ':'"):
        safetensors_to_zarr(f"{server.url}/a%3Ab.safetensors", tmp_path / "m.zarr")


def test_addresses_without_their_package(tmp_path: Path, fsspec: Any) -> None:
    with pytest.raises(StoreError, match="leads to local files"):
        safetensors_to_zarr(f"simplecache::file://{tmp_path}/m.safetensors", tmp_path / "m.zarr")
