"""How stores name their bases, and which names in an untrusted store are followed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import zarr.storage

from based_models import assert_same_tensors, convert, write_nearby
from bf16codecs import open_model
from bf16codecs.convert import verify_store
from bf16codecs.errors import BF16CodecsError
from bf16codecs.store import StoreError
from bf16codecs.store.attributes import BaseFile, BaseReference
from bf16codecs.store.bases import identity, is_beside, location_of
from edit_store import edit_array, edit_attributes
from lazy_models import in_memory
from looping import noted
from models import write_model
from servers import serving
from store_cases import put_back
from waiting import cpu_limit

FILES = (BaseFile("m.safetensors", 8, "0", "0"),)

#: Address of a store, path of its base, and the base's address.
PLACES = [
    ("https://host/models/fine.zarr", "base.zarr", "https://host/models/base.zarr"),
    ("https://host/models/fine.zarr/", "base.zarr", "https://host/models/base.zarr"),
    ("https://host/models/fine.zarr", "../base.zarr", "https://host/base.zarr"),
    ("https://host/models/fine.zarr", "../../../base.zarr", "https://host/base.zarr"),
    ("https://host/fine.zarr", "base.zarr", "https://host/base.zarr"),
    ("https://host/a/fine.zarr?token=x/y://z", "base.zarr", "https://host/a/base.zarr"),
    ("https://host/a/fine.zarr#part", "../b/base.zarr", "https://host/b/base.zarr"),
    ("s3://bucket/a/fine.zarr", "../../base.zarr", "s3://bucket/base.zarr"),
    ("zip::https://host/a/fine.zip", "base.zip", "zip::https://host/a/base.zip"),
    ("hf://models/o/n@abc/a/fine.zarr", "../base", "hf://models/o/n@abc/base"),
    ("hf://models/o/n@abc/a/fine.zarr", "../../../m@1/base", "hf://models/o/n@abc/m@1/base"),
    ("hf://models/o/n@abc/", "base.zarr", "hf://models/o/n@abc/base.zarr"),
    ("memory://fine.zarr", "base.zarr", "memory://base.zarr"),
    ("memory://a/fine.zarr", "../base.zarr", "memory://base.zarr"),
    ("https://host/a/fine.zarr", "s3://bucket/base.zarr", "s3://bucket/base.zarr"),
    ("/models/fine.zarr", "https://host/base.zarr", "https://host/base.zarr"),
    ("/models/fine.zarr", "../base.zarr", "/base.zarr"),
    ("/models/fine.zarr/", "base.zarr", "/models/base.zarr"),
    ("/models/fine.zarr", "/other/base.zarr", "/other/base.zarr"),
    ("/models/fine.zarr", "file:///other/base.zarr", "/other/base.zarr"),
    ("", "https://host/base.zarr", "https://host/base.zarr"),
]


def test_places() -> None:
    for where, path, expected in PLACES:
        assert location_of(BaseReference(path, None, FILES), where) == expected, (where, path)
        with_step = location_of(BaseReference(path, 600, FILES), where)
        assert with_step == f"{expected}@600", (where, path)


LOCAL = ["/etc/base.zarr", "file:///base.zarr", "FILE:///base", "local://base", "C:\\base", "a\\b"]


def test_addresses_lead_to_no_local_files() -> None:
    for where in ("https://host/fine.zarr", "s3://bucket/fine.zarr", "memory://x"):
        for path in LOCAL:
            with noted(where, path), pytest.raises(StoreError, match="is a local path: name its"):
                location_of(BaseReference(path, None, FILES), where)


def test_addresses_that_no_store_may_name() -> None:
    """Some lead to local files, some hang, and the file systems behind others drop blanks."""
    strange = [
        " file:///etc/passwd",
        "\tfile:///etc/passwd",
        "file ://x",
        "reference://::http://host/list.json",
        "reference://",
        "simplecache::s3://bucket/base",
        "zip::file:///etc/base.zip",
        "zip:: https://host/base.zip",
        "zip::zip::https://host/base.zip",
        "zip://base::file:///x.zip",
        "https://host/a::file:///etc/passwd",
        "s3://bucket/a::local://x",
        "https:///etc/passwd",
        "https://",
        "https:// host/base",
        "https://host/ba se",
        "https://host/base\n",
        "https://host\\base",
        "memory://base",
        "ftp://host/base",
        "sftp://host/base",
        "github://owner:repository@/base",
        "hf://owner/base",
        "data://text/plain,x",
        "dir://x::file:///",
        "tar://x::http://host/x.tar",
        "ABC://x",
        "httpsx://host/base",
    ]
    for where in ("https://host/fine.zarr", "s3://bucket/fine.zarr", "/models/fine.zarr"):
        for path in strange:
            # Quoted: an address may be wrong by a blank alone.
            told = f"its base, {path!r}: a store may name only http, https, s3, gs and az,"
            with noted(where, path), pytest.raises(StoreError, match=re.escape(told)) as refusal:
                location_of(BaseReference(path, None, FILES), where)
            assert "name its base with" in str(refusal.value)


def test_bases_at_addresses_that_no_store_may_name(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    base = write_model(tmp_path / "base.safetensors", [("a", "BF16", (64, 40))])
    files = fsspec.filesystem("memory")
    files.put(str(base), "/far/base.safetensors")
    try:
        with pytest.raises(StoreError, match="cannot name it as their base: its address has"):
            convert("zarr3", base, tmp_path / "fine", base="memory://far/base.safetensors")
    finally:
        files.rm("/far", recursive=True)


def test_stores_without_a_place_have_no_base_beside_them() -> None:
    for path in (*LOCAL, "base.zarr"):
        with noted(path), pytest.raises(StoreError, match="it has no path itself: name its base"):
            location_of(BaseReference(path, None, FILES), "")


def test_hosts() -> None:
    for ours, theirs in (
        ("https://host/a", "https://host/b/c"),
        ("s3://bucket/a", "s3://bucket/b"),
        ("zip::https://host/a", "zip::https://host/b"),
    ):
        assert is_beside(ours, theirs)
    for ours, theirs in (
        ("https://host/a", "http://host/b"),
        ("https://host/a", "https://host.other/b"),
        ("https://host/a", "https://host:8000/b"),
        ("https://host/a", "https://host@other/b"),
        ("s3://bucket/a", "s3://other/a"),
        ("https://host/a", "s3://host/a"),
        ("https://host/a", "/host/a"),
    ):
        assert not is_beside(ours, theirs)


def test_identities(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "base")
    same = [str(tmp_path / "base"), f"{tmp_path}/x/../base/", f"{tmp_path}/link"]
    assert len({identity(place) for place in [*same, (tmp_path / "base").as_uri()]}) == 1
    assert identity("https://host/base/") == identity("https://host/base")


# --- untrusted stores -----------------------------------------------------------------------------


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    tensors = [("a", "BF16", (64, 40)), ("b", "F32", (30, 7))]
    base = write_model(tmp_path / "base.safetensors", tensors, 1)
    fine = write_nearby(base, tmp_path / "fine.safetensors")
    store = convert("zarr3", base, tmp_path / "base")
    found = {"base": base, "fine": fine, "base.zarr": store}
    return found | {"fine.zarr": convert("zarr3", fine, tmp_path / "fine", base=store)}


def test_stores_of_zarrs(models: dict[str, Path]) -> None:
    """Stores on disk know their path; for others, the caller names the base."""
    fine, base = models["fine.zarr"], models["base.zarr"]
    zipped = convert("zip", models["fine"], fine.with_name("zipped"), base=base)
    for store in (
        zarr.storage.LocalStore(fine, read_only=True),
        zarr.storage.ZipStore(zipped, mode="r"),
    ):
        with open_model(store) as model:
            assert_same_tensors(model, models["fine"])
    with pytest.raises(StoreError, match="it has no path itself: name its base"):
        open_model(in_memory(fine))
    for below in (base, in_memory(base), zarr.storage.LocalStore(base)):
        with open_model(in_memory(fine), base=below) as model:
            assert_same_tensors(model, models["fine"])


def test_a_remote_store_leads_to_no_local_base(models: dict[str, Path]) -> None:
    """Not even to one beside this process."""
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    base = models["base.zarr"]
    try:
        for path in (str(base), base.as_uri(), f"../../..{base}", f"simplecache::{base.as_uri()}"):
            edit_attributes(models["fine.zarr"], lambda a, path=path: a["base"].update(path=path))
            files.put(f"{models['fine.zarr']}/", "/far/fine.zarr", recursive=True)
            store = zarr.storage.FsspecStore.from_url("memory://far/fine.zarr", read_only=True)
            for place in ("memory://far/fine.zarr", store):
                with pytest.raises(StoreError, match="name its base"):
                    open_model(place)
            with open_model("memory://far/fine.zarr", base=base) as model:
                assert_same_tensors(model, models["fine"])
    finally:
        files.rm("/far", recursive=True)


@pytest.mark.parametrize("name", ["base.h5", "base.safetensors"])
def test_what_lies_beside_a_store_at_an_address(
    models: dict[str, Path], tmp_path: Path, name: str
) -> None:
    """Safetensors are read there, HDF5 is not."""
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    convert("hdf5", models["base"], tmp_path / "base")
    store = convert("zarr3", models["fine"], tmp_path / "m", base=tmp_path / name)
    try:
        files.put(f"{store}/", "/far/m.zarr", recursive=True)
        files.put(str(tmp_path / name), f"/far/{name}")
        if name == "base.h5":
            with pytest.raises(StoreError, match=f"far/{name}: .* local disks alone.*name its"):
                open_model("memory://far/m.zarr")
        else:
            with open_model("memory://far/m.zarr") as model:
                assert_same_tensors(model, models["fine"])
        with open_model("memory://far/m.zarr", base=tmp_path / name) as model:
            assert_same_tensors(model, models["fine"])
    finally:
        files.rm("/far", recursive=True)


@pytest.mark.filterwarnings("ignore:Unclosed client session")
def test_options_are_for_one_host(models: dict[str, Path], tmp_path: Path) -> None:
    """A base at an address of a stranger's choice gets no credentials."""
    pytest.importorskip("aiohttp")
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    models["base.zarr"].rename(tmp_path / "near" / "base.zarr")
    convert("zarr3", models["base"], tmp_path / "far" / "base")
    store = models["fine.zarr"].rename(tmp_path / "near" / "fine.zarr")
    options = {"headers": {"X-Token": "secret"}}
    with serving(tmp_path / "near") as near, serving(tmp_path / "far") as far:
        seen: dict[str, list[Any]] = {"near": [], "far": []}
        near.note_headers = lambda headers: seen["near"].append(headers.get("X-Token"))
        far.note_headers = lambda headers: seen["far"].append(headers.get("X-Token"))
        address = f"{near.url}/fine.zarr"
        with open_model(address, storage_options=options) as model:
            assert_same_tensors(model, models["fine"])
        assert set(seen["near"]) == {"secret"}
        edit_attributes(store, lambda a: a["base"].update(path=f"{far.url}/base.zarr"))
        with open_model(address, storage_options=options) as model:
            assert_same_tensors(model, models["fine"])
        assert set(seen["far"]) == {None}
        # A caller who names the base means the options for it as well.
        with open_model(address, storage_options=options, base=f"{far.url}/base.zarr") as model:
            assert_same_tensors(model, models["fine"])
        assert set(seen["far"]) == {None, "secret"}
        for base in (tmp_path / "far" / "base.zarr", in_memory(tmp_path / "far" / "base.zarr")):
            with open_model(address, storage_options=options, base=base) as model:
                assert_same_tensors(model, models["fine"])


def test_a_server_that_is_down(models: dict[str, Path]) -> None:
    pytest.importorskip("aiohttp")
    address = "http://127.0.0.1:9/base.zarr"
    edit_attributes(models["fine.zarr"], lambda a: a["base"].update(path=address))
    for read in (open_model, verify_store):
        with pytest.raises(
            OSError, match=f"its base cannot be opened: {address}: .*; name its base"
        ):
            read(models["fine.zarr"])
    with open_model(models["fine.zarr"], base=models["base"]) as model:
        assert_same_tensors(model, models["fine"])


NONSENSE: dict[str, Any] = {
    "nothing": lambda a: a.pop("base"),
    "null": lambda a: a.update(base=None),
    "a path": lambda a: a.update(base="base.zarr"),
    "a list": lambda a: a.update(base=[a["base"]]),
    "no path": lambda a: a["base"].pop("path"),
    "empty path": lambda a: a["base"].update(path=""),
    "long path": lambda a: a["base"].update(path="x" * 1_000_000),
    "long address": lambda a: a["base"].update(path="http://127.0.0.1:9/" + "x" * 1_000_000),
    "control characters": lambda a: a["base"].update(path="base.zarr\x1b[31m\n"),
    "null byte": lambda a: a["base"].update(path="base\0.zarr"),
    "surrogate": lambda a: a["base"].update(path="\udc80"),
    "path of another kind": lambda a: a["base"].update(path=["base.zarr"]),
    "no files": lambda a: a["base"].update(files=[]),
    "files of another kind": lambda a: a["base"].update(files="x"),
    "a file of another kind": lambda a: a["base"].update(files=["x"]),
    "no size": lambda a: a["base"]["files"][0].pop("size"),
    "negative size": lambda a: a["base"]["files"][0].update(size=-1),
    "no digest of the header": lambda a: a["base"]["files"][0].pop("header_sha256"),
    "a digest of another kind": lambda a: a["base"]["files"][0].update(blake3=5),
    "negative step": lambda a: a["base"].update(step=-1),
    "a step of another kind": lambda a: a["base"].update(step="1"),
    "true as a step": lambda a: a["base"].update(step=True),
    "layout 1": lambda a: a.update(layout=1),
    "no difference": lambda a: a["tensors"]["a"].pop("difference"),
    "no shape": lambda a: a["tensors"]["a"].pop("shape"),
    "no dtype": lambda a: a["tensors"]["a"].pop("dtype"),
    "unknown dtype": lambda a: a["tensors"]["a"].update(dtype="F7"),
    "a dtype of another kind": lambda a: a["tensors"]["a"].update(dtype=["BF16"]),
    "negative shape": lambda a: a["tensors"]["a"].update(shape=[-1, 3]),
    "fractions": lambda a: a["tensors"]["a"].update(shape=[64.0, 40]),
    "large shape": lambda a: a["tensors"]["a"].update(shape=[1 << 40, 1 << 40]),
    "million axes": lambda a: a["tensors"]["a"].update(shape=[2**60] * 1_000_000),
    "chunks of zero": lambda a: a["tensors"]["a"].update(chunks=[0, 40]),
    "chunks of another kind": lambda a: a["tensors"]["a"].update(chunks=5),
    "one difference for two": lambda a: a["tensors"]["b"].update(difference="a"),
    "copies of another kind": lambda a: a["tensors"]["a"].update(copies="b"),
}


def test_damaged_attributes(models: dict[str, Path]) -> None:
    store = models["fine.zarr"]
    for name, change in NONSENSE.items():
        with noted(name), put_back(store):
            edit_attributes(store, change)
            for read in (open_model, verify_store):
                message = "damaged store attributes"
                with cpu_limit(60), pytest.raises(StoreError, match=message) as caught:
                    read(store)
                assert "\n" not in str(caught.value)
                assert len(str(caught.value)) < 400
                assert str(caught.value).isprintable()


UNFIT: dict[str, tuple[Any, str]] = {
    "another shape": (lambda d: d.update(shape=[40, 64]), "no such tensor of the same dtype"),
    "another dtype": (lambda d: d.update(dtype="F16"), "no such tensor of the same dtype"),
    "smaller chunks": (lambda d: d.update(chunks=[32, 40]), "a chunk of this array has 2560"),
    "larger chunks": (lambda d: d.update(chunks=[65, 40]), "a chunk of this array has 5200"),
    "chunks of columns": (lambda d: d.update(chunks=[64, 20]), "a chunk of this array has 2560"),
    "vast chunks": (lambda d: d.update(chunks=[1 << 50, 40]), "larger than|once decoded"),
    "chunks of other axes": (lambda d: d.update(chunks=[64]), r"chunks of \(64,\), array of"),
    "a missing chunk": (lambda d: d.update(difference="c"), "c/c.0.0: it is missing"),
    "a path out of the store": (lambda d: d.update(difference="../x/a"), "not a path in the store"),
    "the path of an array": (lambda d: d.update(difference="safetensors/header/0"), "header"),
    "no items": (lambda d: d.update(shape=[0, 40]), "not the shape of chunks"),
    "no axes": (lambda d: d.update(shape=[]), "no such tensor of the same dtype"),
}


def test_differences_that_do_not_fit(models: dict[str, Path]) -> None:
    store = models["fine.zarr"]
    for name, (change, message) in UNFIT.items():
        with noted(name), put_back(store):
            edit_attributes(store, lambda a, change=change: change(a["tensors"]["a"]))
            with pytest.raises(BF16CodecsError, match=message), open_model(store) as model:
                model["a"][...]
            with pytest.raises(BF16CodecsError):
                verify_store(store)


def test_codec_is_information_only(models: dict[str, Path]) -> None:
    store = models["fine.zarr"]
    for codec in (None, 5, "x", [], {"configuration": 5}, {"name": ["x"]}, {"configuration": []}):
        edit_attributes(store, lambda a, codec=codec: a["base"].update(codec=codec))
        verify_store(store, models["fine"])
        with open_model(store) as model:
            codecs = model.info().table()["codec"]
        assert all(name.startswith("difference+") for name in codecs), codec


def test_shapes_that_arrays_state_are_bounded(models: dict[str, Path]) -> None:
    """The product of a million numbers takes minutes."""
    store = models["base.zarr"]
    shape = [2**60] * 500_000
    edit_array(store, "a", lambda a: a["attributes"]["bf16codecs"].update(shape=shape))
    with (
        cpu_limit(60),
        open_model(store) as model,
        pytest.raises(StoreError, match="larger than any tensor"),
    ):
        _ = model["a"]
