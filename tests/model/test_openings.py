"""Commands open everything that `open_model` opens, and the other way round."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr.storage

import bf16codecs
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr, verify_store
from bf16codecs.errors import SafetensorsError
from bf16codecs.store import StoreError
from bits import assert_same_bits
from invoked import done, refused, run
from lazy_models import weights, write_safetensors, write_shards
from servers import FileServer, serving

pytestmark = [
    pytest.mark.usefixtures("aiohttp"),
    pytest.mark.filterwarnings(
        "ignore:datetime.datetime.utcnow:DeprecationWarning", "ignore:Unclosed"
    ),
]

# Rows of 4 KiB, which the header's 64 KiB of the first request do not reach far into.
ARRAYS = {"w": weights((500, 2048)), "norm": weights((64,), seed=1), "n": np.arange(100)}
FORMS = ["m.safetensors", "m.zarr", "m.zarr.zip"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    source = write_safetensors(root / "m.safetensors", ARRAYS)
    for name in ("m.zarr", "m.zarr.zip"):
        safetensors_to_zarr(source, root / name)
    safetensors_to_hdf5(source, root / "m.h5")
    write_shards(root / "shards", [{"w": ARRAYS["w"]}, {"n": ARRAYS["n"]}])
    return root


@pytest.fixture
def server(root: Path):
    with serving(root) as server:
        yield server


@pytest.mark.parametrize("name", FORMS)
def test_storage_options_reach_the_server(
    root: Path, server: FileServer, tmp_path: Path, name: str
) -> None:
    """From every command; also through a ZIP file, and those for a scheme."""
    seen: set[Any] = set()
    server.note_headers = lambda headers: seen.add(headers.get("X-Token"))
    url, source = f"{server.url}/{name}", root / "m.safetensors"
    options: dict[str, Any] = {"headers": {"X-Token": "secret"}}
    for number, given in enumerate([options, {"http": options}][: 1 + name.endswith(".zip")]):
        text = ("--storage-options", json.dumps(given))
        with bf16codecs.open_model(url, given) as model:
            assert_same_bits(model["w"][7], ARRAYS["w"][7])
        assert "3 tensors" in done("bf16codecs", "info", url, *text)
        done("bf16codecs", "verify", url, *text)
        if name != "m.safetensors":
            done("zarr2st", url, tmp_path / f"back-{number}", *text)
            assert (tmp_path / f"back-{number}").read_bytes() == source.read_bytes()
        target = tmp_path / f"fine-{number}.zarr"
        done("st2zarr", source, target, "--base", url, *text)
        done("bf16codecs", "verify", target, source, "--base", url, *text)
        done("bf16codecs", "rebase", target, "--base", url, *text)
        assert seen == {"secret"}
        verify_store(target, source)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("given", ["flat", "by scheme"])
def test_storage_options_reach_s3(root: Path, s3, fsspec, name: str, given: str) -> None:
    """Also through a ZIP file: without its endpoint, s3fs goes to Amazon."""
    fsspec.filesystem("s3", **s3).put(
        f"{root / name}/" if (root / name).is_dir() else str(root / name),
        f"bucket/{name}",
        recursive=True,
    )
    is_chained = name.endswith(".zip")
    options = {"s3": s3} if given == "by scheme" and is_chained else s3
    with bf16codecs.open_model(f"s3://bucket/{name}", options) as model:
        assert_same_bits(model["w"][7], ARRAYS["w"][7])
    text = json.dumps(options)
    out = done("bf16codecs", "info", f"s3://bucket/{name}", "--storage-options", text)
    assert "3 tensors" in out
    done("bf16codecs", "verify", f"s3://bucket/{name}", "--storage-options", text)
    if name != "m.safetensors":
        back = root / f"back-{given.replace(' ', '-')}-{name.replace('.', '-')}"
        done("zarr2st", f"s3://bucket/{name}", back, "--storage-options", text)
        assert back.read_bytes() == (root / "m.safetensors").read_bytes()
    target = root / f"fine-{given.replace(' ', '-')}-{name.replace('.', '-')}"
    args = ("--base", f"s3://bucket/{name}", "--storage-options", text)
    done("st2zarr", root / "m.safetensors", target, *args)
    done("bf16codecs", "verify", target, root / "m.safetensors", *args)
    done("bf16codecs", "rebase", target, *args)
    verify_store(target, root / "m.safetensors")


@pytest.mark.parametrize("text", ["{", "[1]", "3", '"x"', "{'a': 1}"])
def test_storage_options_that_are_none(root: Path, text: str) -> None:
    result = run("bf16codecs", "info", "s3://bucket/m.zarr", "--storage-options", text)
    assert result.exit_code == 2
    assert "JSON" in result.stderr


def test_storage_options_of_nothing(root: Path, tmp_path: Path) -> None:
    options = ("--storage-options", '{"anon": true}')
    assert "apply to addresses only" in refused("bf16codecs", "info", root / "m.zarr", *options)
    line = refused("st2zarr", root / "m.safetensors", tmp_path / "x.zarr", *options)
    assert "neither the source nor a base is at one" in line
    base = ("--base", root / "m.zarr")
    for command in ("verify", "rebase"):
        line = refused("bf16codecs", command, root / "m.zarr", *base, *options)
        assert "at an address" in line or "apply to addresses only" in line
    line = refused("zarr2st", root / "m.zarr", tmp_path / "x", *base, *options)
    assert "apply to addresses only" in line
    with pytest.raises(ValueError, match="apply to addresses only"):
        bf16codecs.open_model(root / "m.zarr", {"anon": True}, base=root / "m.zarr")


@pytest.mark.parametrize("name", [*FORMS, "m.h5"])
def test_commands_take_what_open_model_opens(root: Path, tmp_path: Path, name: str) -> None:
    for place in (root / name, f"file://{root / name}"):
        with bf16codecs.open_model(place) as model:
            assert_same_bits(model["w"][3], ARRAYS["w"][3])
        assert "3 tensors" in done("bf16codecs", "info", place)
        out = done("bf16codecs", "verify", place, root / "m.safetensors")
        assert "identical" in out
        assert ("without checksums" in out) == (name == "m.safetensors")


@pytest.mark.parametrize("name", FORMS)
def test_commands_take_addresses(root: Path, server: FileServer, tmp_path: Path, name) -> None:
    url = f"{server.url}/{name}"
    assert "3 tensors" in done("bf16codecs", "info", url)
    assert "identical" in done("bf16codecs", "verify", url, root / "m.safetensors")
    done("st2zarr", root / "m.safetensors", tmp_path / "fine.zarr", "--base", url)
    done("bf16codecs", "verify", tmp_path / "fine.zarr")


@pytest.mark.parametrize("name", FORMS)
def test_kind_and_size_of_stores_at_addresses(root: Path, server: FileServer, name) -> None:
    """They equal those on disk; a ZIP file's size is the server's."""
    here, there = (
        json.loads(done("bf16codecs", "info", place, "--json"))
        for place in (root / name, f"{server.url}/{name}")
    )
    assert here["kind"] == there["kind"]
    if name != "m.zarr":  # whose metadata cannot be listed there
        assert here["stored_nbytes"] == there["stored_nbytes"] == (root / name).stat().st_size


@pytest.mark.parametrize("name", FORMS)
def test_schemes_and_ends_of_names_are_of_either_case(root: Path, server, name: str) -> None:
    if name == "m.zarr.zip":
        name = shutil.copy(root / name, root / "UPPER.ZARR.ZIP").name
    url = f"{server.url}/{name}".replace("http://", "HTTP://")
    with bf16codecs.open_model(url) as model:
        assert_same_bits(model["w"][7], ARRAYS["w"][7])


def test_stores_that_cannot_be_rebased_are_named(root: Path) -> None:
    line = refused("bf16codecs", "rebase", root / "m.safetensors")
    assert "not a model store, but a safetensors model: st2zarr and st2h5 make stores" in line


def test_safetensors_behind_an_address_are_read_in_parts(server: FileServer) -> None:
    with bf16codecs.open_model(f"{server.url}/m.safetensors") as model:
        assert [method for method, _, _ in server.requests] == ["HEAD", "GET"]
        server.clear()
        assert_same_bits(model["w"][400], ARRAYS["w"][400])
        assert len(server.requests) == 1
        assert sum(server.sent) == ARRAYS["w"][400].nbytes
        for name, array in model.load().items():
            assert_same_bits(array, ARRAYS[name])


def test_an_index_behind_an_address(root: Path, server: FileServer) -> None:
    path = root / "shards" / "model.safetensors.index.json"
    for name in (path.name, "model.safetensors.index.fp16.json"):
        path = path.rename(path.with_name(name))
        url = f"{server.url}/shards/{name}"
        with bf16codecs.open_model(url) as model:
            assert sorted(model.keys()) == ["n", "w"]
            assert_same_bits(model["w"][7], ARRAYS["w"][7])
        assert "identical" in done("bf16codecs", "verify", url, root / "shards")


def test_a_long_header_behind_an_address(server: FileServer, root: Path) -> None:
    many = {f"tensor-{i:05}": np.arange(3, dtype="u1") for i in range(1500)}
    write_safetensors(root / "many.safetensors", many)
    with bf16codecs.open_model(f"{server.url}/many.safetensors") as model:
        assert len(model) == 1500
        assert_same_bits(model["tensor-01499"][:], np.arange(3, dtype="u1"))


def test_safetensors_behind_an_address_that_are_damaged(root: Path, server: FileServer) -> None:
    whole = (root / "m.safetensors").read_bytes()
    for name, data, match in (
        ("empty", b"", "Nothing is there, or it is empty"),
        ("short", whole[:5], "5 bytes have no room for a safetensors header"),
        ("cut-header", whole[:50], "truncated: header of"),
        ("cut", whole[:-1], "truncated"),
        ("other", b"\x89HDF\r\n\x1a\n" * 9, "not a safetensors file"),
    ):
        (root / f"{name}.safetensors").write_bytes(data)
        with pytest.raises((SafetensorsError, OSError), match=match):
            bf16codecs.open_model(f"{server.url}/{name}.safetensors")
    with pytest.raises(FileNotFoundError):
        bf16codecs.open_model(f"{server.url}/missing.safetensors")
    server.ignore_ranges = True
    with pytest.raises(StoreError, match="ignores ranges"):
        bf16codecs.open_model(f"{server.url}/m.safetensors")


@pytest.mark.parametrize("name", ["m.safetensors", "m.zarr.zip"])
def test_errors_about_addresses_give_the_reason(server: FileServer, name: str) -> None:
    """fsspec has one error for all of them: not found."""
    with pytest.raises(FileNotFoundError, match="Nothing is there"):
        bf16codecs.open_model(f"{server.url}/no-{name}")
    server.deny = name
    with pytest.raises(OSError, match=r": the server answers 403 \(Forbidden\)$") as refusal:
        bf16codecs.open_model(f"{server.url}/{name}")
    with pytest.raises(OSError, match=r"Cannot connect to host [\d.:]+: Conn") as silence:
        bf16codecs.open_model(f"http://127.0.0.1:1/{name}")
    for error in (refusal.value, silence.value):
        assert not isinstance(error, FileNotFoundError)
    assert "403" in refused("bf16codecs", "info", f"{server.url}/{name}")


def test_the_size_of_a_chunk_that_is_refused(server: FileServer) -> None:
    server.deny = "w/c"
    line = refused("bf16codecs", "info", f"{server.url}/m.zarr", "--sizes")
    assert "tensor 'w', chunk w/c.0.0: the server answers 403" in line


def test_hdf5_at_an_address_is_reported(server: FileServer, tmp_path: Path) -> None:
    url = f"{server.url}/m.h5"
    with pytest.raises(StoreError, match="read from local disks alone: download it"):
        bf16codecs.open_model(url)
    for command in ("zarr2st", "h52st"):
        assert "download it" in refused(command, url, tmp_path / "x")
    assert "zarr2st restores it" in refused("h52st", f"{server.url}/m.zarr", tmp_path / "x")
    assert server.requests == []


def read_in_child(model, tensor, pipe) -> None:
    try:
        rows = [tensor[300], model.load()["w"][300]]
        if not str(model).endswith("safetensors"):
            rows.append(tensor.zarr[300])
        pipe.send(all(row.tobytes() == ARRAYS["w"][300].tobytes() for row in rows))
    except Exception as e:
        pipe.send(str(e))


def told_by_child(model) -> object:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=read_in_child, args=(model, model["w"], theirs))
    child.start()
    answer = ours.recv() if ours.poll(60) else "nothing"
    child.kill()
    child.join()
    return answer


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")
@pytest.mark.parametrize("name", [*FORMS, "m.h5", "http m.zarr", "http m.zarr.zip"])
def test_models_are_read_in_a_forked_process(root: Path, server: FileServer, name: str) -> None:
    """Such as workers of PyTorch's DataLoader, which inherit an open model."""
    scheme, _, rest = name.rpartition(" ")
    with bf16codecs.open_model(f"{server.url}/{rest}" if scheme else root / rest) as model:
        model["w"][0], model.load()
        if rest in FORMS[1:]:
            model["w"].zarr[0]
            assert told_by_child(model) is True
        assert_same_bits(model["w"][3], ARRAYS["w"][3])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")
def test_stores_of_zarr_in_a_forked_process(server: FileServer) -> None:
    store = zarr.storage.FsspecStore.from_url(f"{server.url}/m.zarr")
    with bf16codecs.open_model(store) as model:
        model["w"].zarr[0], model.load()
        assert told_by_child(model) is True
    obstore = pytest.importorskip("obstore.store")
    options = {"client_options": {"allow_http": True}}
    given = obstore.HTTPStore.from_url(f"{server.url}/m.zarr", **options)
    with bf16codecs.open_model(zarr.storage.ObjectStore(given, read_only=True)) as model:
        model.load()
        assert "does not survive" in str(told_by_child(model))
