"""Models on a hub, read where they are: ranges, commits, tokens, hubs and hosts that fail."""

from __future__ import annotations

import json
import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bf16codecs
from based_models import write_nearby
from bf16codecs import bench
from bf16codecs.analysis.checkpoints import Checkpoints
from bf16codecs.bench import data
from bf16codecs.convert import safetensors_to_run, safetensors_to_zarr, zarr_to_safetensors
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.model.run import open_model_or_run
from bf16codecs.view.details import Details
from bits import assert_same_bits
from hub_server import TOKEN, Hub
from invoked import done, refused
from lazy_models import weights, write_safetensors
from model_folders import write_sharded

pytestmark = pytest.mark.filterwarnings("ignore:Unclosed")

W = weights((300, 512))
STORES = ["model.zarr", "v2.zarr", "model.zarr.zip"]


def commit(hub: Hub, name: str = "main", digit: str = "0") -> Path:
    """Make a commit with a model in files, and in stores of three kinds."""
    hub.commits[name] = digit * 40
    folder = hub.root / hub.commits[name]
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    write_sharded(folder)
    source = write_safetensors(folder / "one.safetensors", {"w": W + int(digit), "n": W[0]})
    for store in STORES:
        options = {"zarr_format": 2} if store == "v2.zarr" else {}
        safetensors_to_zarr(source, folder / store, chunk_size=1 << 16, **options)
    (folder / "files").mkdir()
    source.rename(folder / "files" / "model.safetensors")
    return folder


@pytest.fixture
def folder(hub: Hub) -> Path:
    return commit(hub)


def opened(hub: Hub, address: str, **options: Any) -> bf16codecs.Model:
    return bf16codecs.open_model(address, {"endpoint": hub.url, **options})


def at(hub: Hub) -> list[str]:
    """Return the arguments of commands that name the hub."""
    return ["--storage-options", json.dumps({"endpoint": hub.url})]


PLACES = [*STORES, "files", "files/", "files/model.safetensors"]


@pytest.mark.parametrize("path", PLACES)
def test_rows_are_read_by_ranges(hub: Hub, folder: Path, path: str) -> None:
    address = f"hf://owner/name/{path}"
    with opened(hub, address) as model:
        assert model.where == address
        hub.files.clear()
        assert_same_bits(model["w"][100:102], W[100:102])
        # fsspec reads a ZIP file on ahead, here all of it.
        assert path == "model.zarr.zip" or 0 < sum(hub.files.sent) < W.nbytes // 2
        assert_same_bits(model["n"][:], W[0])
    assert sum(request.startswith("/api") for request in hub.requests) == 1


def test_the_whole_repository(hub: Hub, folder: Path) -> None:
    with opened(hub, "hf://owner/name") as model:
        assert model.keys() == ["embed.weight", "norm.weight"]
        assert_same_bits(model["norm.weight"][:], weights((90, 70), seed=1))
        assert str(model.info()).splitlines()[0].startswith("hf://owner/name: a safetensors model")


@pytest.mark.parametrize("path", ["", *PLACES])
def test_commands(hub: Hub, folder: Path, path: str) -> None:
    address = f"hf://owner/name/{path}"
    about = json.loads(done("bf16codecs", "info", address, "--json", *at(hub)))
    kinds = {"zarr": "folder", "zip": "zip"}
    assert about["kind"] == kinds.get(path.rpartition(".")[2], "safetensors")
    assert about["stored_nbytes"] > 0
    assert ", intact, " in done("bf16codecs", "verify", address, *at(hub))


def test_verify_compares_the_digests_that_the_hub_states(hub: Hub, folder: Path) -> None:
    name = "files/model.safetensors"
    hub.lies = {name: {"lfs": {"sha256": "0" * 64, "size": 9, "pointerSize": 9}}}
    line = refused("bf16codecs", "verify", f"hf://owner/name/{name}", "--quiet", *at(hub))
    assert "model.safetensors has another SHA-256 than the original" in line


def test_a_page_in_the_browser(hub: Hub, folder: Path) -> None:
    addresses = ["hf://owner/name/model.zarr", "hf://owner/name/files"]
    with closing(Checkpoints(addresses, storage_options={"endpoint": hub.url})) as shown:
        assert shown.labels == ["model.zarr", "files"]
        described = Details(shown).contents("files")
    assert [tensor["name"] for tensor in described["tensors"]] == ["w", "n"]


def test_sizes_take_no_request(hub: Hub, folder: Path) -> None:
    """The hub lists them at first."""
    about = json.loads(done("bf16codecs", "info", "hf://owner/name/model.zarr", "--json", *at(hub)))
    files = [path for path in (folder / "model.zarr").rglob("*") if path.is_file()]
    assert about["stored_nbytes"] == sum(path.stat().st_size for path in files)
    assert not any("/w/" in request for request in hub.requests)


def test_models_are_restored(hub: Hub, folder: Path, tmp_path: Path) -> None:
    endpoint = {"endpoint": hub.url}
    again = tmp_path / "again.safetensors"
    zarr_to_safetensors("hf://owner/name/model.zarr", again, storage_options=endpoint)
    assert again.read_bytes() == (folder / "files" / "model.safetensors").read_bytes()
    for address in ("hf://owner/name/files", "hf://owner/name/files/model.safetensors"):
        with pytest.raises(StoreError, match="a safetensors model: it needs no restoring"):
            zarr_to_safetensors(address, tmp_path / "x.safetensors", storage_options=endpoint)


@pytest.mark.parametrize("path", PLACES)
def test_a_revision_that_moves_meanwhile(hub: Hub, folder: Path, path: str) -> None:
    """An open model, and a copy of it in another process, stay at the commit."""
    with opened(hub, f"hf://owner/name/{path}") as model:
        commit(hub, "main", "1")
        assert_same_bits(model["w"][7], W[7])
        with pickle.loads(pickle.dumps(model)) as copy:
            assert_same_bits(copy["w"][9], W[9])
    with opened(hub, f"hf://owner/name@main/{path}") as model:
        assert_same_bits(model["w"][7], (W + 1)[7])


def test_revisions_and_steps_that_are_numbers(hub: Hub, folder: Path) -> None:
    later = commit(hub, "600", "1")
    first = later / "files" / "model.safetensors"
    source = first.rename(later / "step-5.safetensors")
    safetensors_to_run([source], later / "run.zarr")
    for path in later.glob("*.safetensors*"):
        path.unlink()
    with opened(hub, "hf://owner/name@600/run.zarr@5") as model:
        assert_same_bits(model["w"][3], (W + 1)[3])
        assert model.where == "hf://owner/name@600/run.zarr@5"
        commit(hub, "600", "2")
        with pickle.loads(pickle.dumps(model)) as copy:
            assert_same_bits(copy["w"][3], (W + 1)[3])
    with opened(hub, "hf://owner/name@600") as model:
        assert "embed.weight" in model
    options = {"endpoint": hub.url}
    with open_model_or_run(f"hf://owner/name@{'1' * 40}/run.zarr", options) as run:
        assert run.steps == [5]
        with pickle.loads(pickle.dumps(run)) as copy:
            assert_same_bits(copy[5]["w"][3], (W + 1)[3])


def test_a_base_is_read_from_the_same_commit(hub: Hub, folder: Path) -> None:
    (folder / "based").mkdir()
    base = folder / "files" / "model.safetensors"
    near = write_nearby(base, folder / "based" / "near.safetensors", seed=1)
    safetensors_to_zarr(near, folder / "based" / "fine.zarr", base=base)
    with opened(hub, "hf://owner/name/based/fine.zarr") as model, bf16codecs.open_model(near) as n:
        commit(hub, "main", "1")
        assert_same_bits(model["w"][:], n["w"][:])
    given = "hf://owner/name/model.zarr"
    hub.commits["main"] = "0" * 40
    address, options = "hf://owner/name/based/fine.zarr", {"endpoint": hub.url}
    with bf16codecs.open_model(address, options, base=given) as model:
        assert model["w"].shape == W.shape


@pytest.mark.parametrize("path", PLACES)
def test_tokens_go_to_the_hub_alone(
    hub: Hub, folder: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.is_private = True
    with pytest.raises(StoreError, match=r"or it is private: .*hf auth login"):
        opened(hub, f"hf://owner/name/{path}")
    elsewhere: list[str | None] = []
    hub.files.note_headers = lambda headers: elsewhere.append(headers.get("Authorization"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with opened(hub, f"hf://owner/name/{path}") as model:
        assert_same_bits(model["w"][5], W[5])
        for shown in (repr(model), str(model.info()), model._repr_html_()):
            assert TOKEN not in shown
        assert TOKEN.encode() not in pickle.dumps(model)
        if path == "model.zarr":
            pickled = pickle.dumps(model["w"].zarr)
            assert TOKEN.encode() not in pickled
            assert_same_bits(pickle.loads(pickled)[5], W[5])
    assert hub.tokens[-1] == f"Bearer {TOKEN}"
    assert elsewhere
    assert set(elsewhere) == {None}


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://", "an address of nothing"),
        ("hf://owner", r"an address on a hub is hf://owner/name\[@revision\]"),
        ("hf://owner/none", "the hub has no repository owner/none, or it is private: .* log in"),
        ("hf://owner/name@v9/model.zarr", "owner/name has no revision v9"),
        ("hf://owner/name/modle.zarr", "has no such folder; did you mean 'model.zarr'"),
        ("hf://owner/name/files/m.safetensors", "has no such file; did you mean 'model.safet"),
        ("hf://owner/name/m.h5", "HDF5 files are read from local disks alone: download it"),
        ("hf://owner/name/config.json", "not a model store: neither a folder, nor a ZIP or safe"),
        ("hf://owner/name/stores", "no safetensors; name what is in it, such as 'a.zarr'"),
    ],
)
def test_wrong_addresses(hub: Hub, folder: Path, address: str, message: str) -> None:
    (folder / "m.h5").touch()
    (folder / "model.zarr").rename(folder / "stores.zarr")
    (folder / "stores").mkdir()
    (folder / "stores.zarr").rename(folder / "stores" / "a.zarr")
    (folder / "v2.zarr").rename(folder / "model.zarr")
    with pytest.raises(StoreError, match=message) as caught:
        opened(hub, address)
    assert str(caught.value).startswith(f"{address}: ")
    assert len(str(caught.value).splitlines()) == 1
    assert address in refused("bf16codecs", "info", address, *at(hub))


def test_an_empty_repository(hub: Hub) -> None:
    with pytest.raises(StoreError, match="hf://owner/name: owner/name is empty"):
        opened(hub, "hf://owner/name")


def test_wrong_options(hub: Hub, folder: Path) -> None:
    with pytest.raises(ValueError, match="hf://owner/name: a hub takes no option 'anon'"):
        opened(hub, "hf://owner/name", anon=True)


def test_what_an_upload_left_out(hub: Hub, folder: Path) -> None:
    for chunk in (folder / "model.zarr" / "w").glob("c.*"):
        chunk.unlink()
    with opened(hub, "hf://owner/name/model.zarr") as model:
        assert_same_bits(model["n"][:], W[0])
        with pytest.raises(
            StoreError, match=r"hf://owner/name/model\.zarr: tensor 'w'.*is missing"
        ):
            model["w"][0]
    (folder / "model.zarr" / "zarr.json").unlink()
    with pytest.raises(BF16CodecsError, match=r"hf://owner/name/model\.zarr: "):
        opened(hub, "hf://owner/name/model.zarr")
    next(folder.glob("model-00001*")).unlink()
    with pytest.raises((BF16CodecsError, OSError), match="model-00001"):
        opened(hub, "hf://owner/name")


@pytest.mark.parametrize("path", PLACES)
def test_hosts_that_fail_midway(hub: Hub, folder: Path, path: str) -> None:
    with opened(hub, f"hf://owner/name/{path}") as model:
        hub.files.deny = "."
        with pytest.raises((BF16CodecsError, OSError), match="403") as caught:
            model["w"][0]
        hub.files.deny = None
        assert "files" in path or str(caught.value).startswith(f"hf://owner/name/{path}: ")
        assert TOKEN not in str(caught.value)
        assert_same_bits(np.asarray(model["w"][0]), W[0])


def test_bench_reads_rows_of_many_tensors(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither shards nor tensors are read whole; the sample is the same each time."""
    arrays = {f"w{i}": weights((400, 128), seed=i) for i in range(40)}
    arrays |= {f"n{i}": weights((128,), seed=i) for i in range(40)}
    (folder / "large").mkdir()
    source = write_safetensors(folder / "large" / "model.safetensors", arrays)
    safetensors_to_zarr(source, folder / "large.zarr")
    monkeypatch.setattr(
        data, "open_model", lambda path: bf16codecs.open_model(path, {"endpoint": hub.url})
    )
    for size in (1, 1000, 70_001, 200_000, 2_000_000, 1 << 30):
        hub.files.clear()
        sample = bench.sample_of("hf://owner/name/large", size)
        taken = sum(tensor.nbytes for tensor in sample.tensors)
        asked = sample.nbytes if size > sample.nbytes else max(2, size // 2 * 2)
        assert 0.9 * asked <= taken <= asked, size
        # The first read of a file asks for 64 KiB, where most headers end.
        assert sum(hub.files.sent) <= taken + (1 << 16)
        assert (sample.count, sample.nbytes) == (80, sum(a.nbytes for a in arrays.values()))
        assert len(sample.tensors) >= min(16, asked // 256), size
        rows = [array for array in sample.arrays if array.ndim == 2]
        known = {row.tobytes() for array in arrays.values() for row in np.atleast_2d(array)}
        assert all(row.tobytes() in known for array in rows for row in array), size
        again = bench.sample_of("hf://owner/name/large.zarr", size)
        pairs = zip(sample.tensors, again.tensors, strict=True)
        assert all((a == b).all() for a, b in pairs), size
