"""Stores in Azure Blob Storage, or rather in Azurite, whose conditions are those of Azure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from azurite import azurite, command
from bf16codecs import open_model
from bf16codecs.convert import safetensors_to_zarr, verify_store, zarr_to_safetensors
from lazy_models import weights, write_safetensors

pytest.importorskip("obstore")
pytestmark = [
    pytest.mark.skipif(command() is None, reason="Azurite is not installed: npm has it"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def azure() -> Iterator[dict[str, Any]]:
    with azurite("models") as options:
        yield options


def test_stores(azure: dict[str, Any], tmp_path: Path) -> None:
    store = "az://models/folder/m.zarr"
    old = write_safetensors(tmp_path / "old", {"a.w": weights((90, 40)), "b": weights((), seed=2)})
    new = write_safetensors(tmp_path / "new", {"a.w": weights((90, 40), seed=3)})
    safetensors_to_zarr(old, store, storage_options=azure)
    verify_store(store, old, storage_options=azure)
    with pytest.raises(FileExistsError, match="overwrite=True replaces it"):
        safetensors_to_zarr(new, store, storage_options=azure)
    refusals = []

    def meanwhile(*progress: object) -> None:
        if not refusals:
            with pytest.raises(BlockingIOError, match="another process is writing it"):
                safetensors_to_zarr(old, store, storage_options=azure, overwrite=True)
            refusals.append(1)
            with open_model(store, storage_options=azure) as model:
                assert set(model) == {"a.w", "b"}

    safetensors_to_zarr(
        new, store, storage_options=azure, overwrite=True, progress=meanwhile, sha256=True
    )
    assert refusals
    zarr_to_safetensors(store, tmp_path / "back", storage_options=azure)
    assert (tmp_path / "back").read_bytes() == new.read_bytes()
    with pytest.raises(FileNotFoundError, match="there is no such bucket, or container"):
        safetensors_to_zarr(old, "az://nothing/m.zarr", storage_options=azure)
