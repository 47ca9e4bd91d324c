"""Metadata of other programs, written differently or for other arrays, are no damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from based_models import convert
from bf16codecs.convert import verify_store
from bf16codecs.errors import StoreError
from edit_store import edit_json
from lazy_models import weights, write_safetensors

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata")


def made(tmp_path: Path, zarr_format: int) -> Path:
    arrays = {name: weights((16, 8)) for name in ("a.w", "b")}
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    return convert(f"zarr{zarr_format}", source, tmp_path / "m")


def test_optional_metadata(tmp_path: Path) -> None:
    store = made(tmp_path, 3)
    edit_json(store, "b/zarr.json", lambda node: node.pop("storage_transformers"))
    verify_store(store)
    zarr.consolidate_metadata(store, zarr_format=3)
    verify_store(store)


def test_optional_metadata_in_format_2(tmp_path: Path) -> None:
    store = made(tmp_path, 2)

    def shorten(node: dict[str, Any]) -> None:
        del node["dimension_separator"]
        node["filters"] = []

    edit_json(store, "b/.zarray", shorten)
    verify_store(store)
    (store / "a/.zattrs").unlink()
    verify_store(store)
    zarr.consolidate_metadata(store, zarr_format=2)
    verify_store(store)
    (store / "b/.zattrs").unlink()
    with pytest.raises(StoreError, match=r"tensor 'b': damaged: b/\.zattrs is missing"):
        verify_store(store)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_arrays_of_others(zarr_format: int, tmp_path: Path) -> None:
    """Added and consolidated, and then changed, or removed: that is their owner's."""
    store = made(tmp_path, zarr_format)
    group = zarr.open_group(store, mode="r+", use_consolidated=False)
    for name in ("a/mine", "yours"):
        group.create_array(name, data=np.arange(4))
    zarr.consolidate_metadata(store, zarr_format=zarr_format)  # type: ignore[arg-type]
    verify_store(store)
    zarr.open_array(f"{store}/a/mine", mode="r+").resize((9,))
    for path in (store / "yours").glob("*zar*"):
        path.unlink()
    verify_store(store)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_copies_that_differ_are_reported(zarr_format: int, tmp_path: Path) -> None:
    store, key = made(tmp_path, zarr_format), {2: "b/.zarray", 3: "b/zarr.json"}[zarr_format]

    def cut(node: dict[str, Any]) -> None:
        node["shape"] = [8, 8]

    edit_json(store, key, cut)
    root = {2: ".zmetadata", 3: "zarr.json"}[zarr_format]
    why = f"damaged: {key} has another shape than its copy in the root's {root}; restore it"
    with pytest.raises(StoreError, match=why):
        verify_store(store)
