"""Messages about damaged metadata: the damage, in the package's own words, and the next step."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

import bf16codecs
from based_models import convert
from bf16codecs.convert import safetensors_to_zarr, verify_store
from bf16codecs.errors import StoreError
from edit_store import edit_array, edit_json
from lazy_models import weights, write_safetensors

ADVICE = "; restore it from its source or a copy"
WITH_HINT = f"{ADVICE} (bf16codecs verify checks all of a store)"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    arrays = {name: weights((16, 8)) for name in "ab"}
    return write_safetensors(tmp_path / "m.safetensors", arrays)


def message(call: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(StoreError) as caught:
        call(*args)
    return str(caught.value)


def read(store: Path) -> None:
    with bf16codecs.open_model(store) as model:
        model.load()


def rename(document: dict[str, Any], key: str) -> None:
    document[f"{key}x"] = document.pop(key)


def test_zarr_json_is_cut_off(source: Path, tmp_path: Path) -> None:
    store = convert("zarr3", source, tmp_path / "m")
    content = (store / "zarr.json").read_bytes()
    (store / "zarr.json").write_bytes(content[:500])
    text = message(read, store)
    assert text.startswith(f"{store}: damaged: zarr.json is not JSON: ")
    assert text.endswith(WITH_HINT)
    (store / "zarr.json").write_bytes(b"[]")
    expected = f"{store}: damaged: zarr.json is not a JSON object"
    assert message(read, store) == f"{expected}{WITH_HINT}"
    # The command that verifies does not advise to verify.
    assert message(verify_store, store) == f"{expected}{ADVICE}"


def test_keys_of_an_array(source: Path, tmp_path: Path) -> None:
    store = convert("zarr3", source, tmp_path / "m")
    edit_array(store, "b", lambda node: rename(node, "storage_transformers"))
    (store / "b/zarr.json").write_text(
        json.dumps(
            json.loads((store / "zarr.json").read_text())["consolidated_metadata"]["metadata"]["b"]
        )
    )
    what = f"{store}: tensor 'b': damaged array metadata: "
    assert message(verify_store, store) == (
        f"{what}key 'storage_transformersx' is not one of Zarr's{ADVICE}"
    )
    edit_array(store, "b", lambda node: rename(node, "shape"))
    assert message(read, store) == f"{what}without 'shape'{WITH_HINT}"
    edit_json(store, "zarr.json", lambda root: rename(root["attributes"]["bf16codecs"], "files"))
    assert message(read, store) == f"{store}: damaged store attributes: without 'files'{WITH_HINT}"


def test_extensions_that_need_not_be_understood(source: Path, tmp_path: Path) -> None:
    store = convert("zarr3", source, tmp_path / "m")
    extension = {"ours": {"must_understand": False, "name": "ours"}}
    edit_array(store, "b", lambda node: node.update(extension))
    edit_json(store, "b/zarr.json", lambda node: node.update(extension))
    verify_store(store)


@pytest.mark.parametrize("kind", ["zarr3", "hdf5"])
def test_what_is_missing(kind: str, source: Path, tmp_path: Path) -> None:
    store = convert(kind, source, tmp_path / "m")
    if kind == "zarr3":
        (store / "b/c.0.0").unlink()
        expected = f"{store}: tensor 'b', chunk b/c.0.0: it is missing"
    else:
        with h5py.File(store, "r+") as file:
            del file["b"]
        expected = f"{store}: array 'b': is missing"
    assert message(read, store) == f"{expected}{WITH_HINT}"
    assert message(verify_store, store) == f"{expected}{ADVICE}"


def test_hdf5_objects(source: Path, tmp_path: Path) -> None:
    """Messages quote the text of h5py's errors, not their types."""
    store = convert("hdf5", source, tmp_path / "m")
    content = bytearray(store.read_bytes())
    with h5py.File(store) as file:
        at = h5py.h5o.get_info(file["b"].id).addr
    content[at + 40] ^= 1
    store.write_bytes(content)
    text = message(read, store)
    assert re.match(r".*: array 'b': damaged: Unable .*checksum.*\)", text)
    assert text.startswith(str(store))
    assert text.endswith(WITH_HINT)
    assert "Error" not in text


def test_hdf5_attributes(source: Path, tmp_path: Path) -> None:
    store = convert("hdf5", source, tmp_path / "m")
    with h5py.File(store, "r+") as file:
        file["b"].attrs["bf16codecs"] = "{"
    text = message(read, store)
    assert text.startswith(f"{store}: tensor 'b': damaged: attribute 'bf16codecs' is not JSON: ")
    assert text.endswith(WITH_HINT)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("as_zip", [False, True])
def test_no_metadata_of_the_root(
    source: Path, tmp_path: Path, zarr_format: int, as_zip: bool
) -> None:
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(source, store, zarr_format=zarr_format)
    for name in ("zarr.json", ".zgroup", ".zattrs", ".zmetadata"):
        (store / name).unlink(missing_ok=True)
    if as_zip:
        shutil.make_archive(str(store), "zip", store)
        store = tmp_path / "m.zarr.zip"
    what = "zarr.json" if zarr_format == 3 else ".zgroup and .zattrs"
    expected = f"{store}: damaged: the metadata of the whole store, {what}, are missing{WITH_HINT}"
    assert message(read, store) == expected


@pytest.mark.parametrize("name", ["m.zarr.zip", "m.h5", "m.bin"])
def test_empty_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    what = "not a model store: it is empty"
    expected = what if name == "m.bin" else f"damaged: it is empty{WITH_HINT}"
    assert message(read, path) == f"{path}: {expected}"
    assert message(verify_store, path) == f"{path}: {expected.replace(WITH_HINT, ADVICE)}"
    path.write_bytes(bytes(100))
    what = "neither a folder, nor a ZIP, HDF5 or safetensors file"
    expected = f"not a model store: {what}" if name == "m.bin" else f"damaged: {what}{WITH_HINT}"
    assert message(read, path) == f"{path}: {expected}"
