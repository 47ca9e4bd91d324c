"""With `patch_safetensors`, `safetensors.torch` loads stores that lie where its files were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr

torch = pytest.importorskip("torch")
pytest.importorskip("bf16codecs.torch")
files = pytest.importorskip("safetensors.torch")


@pytest.fixture
def patched() -> Iterator[None]:
    bf16codecs.torch.patch_safetensors()
    yield
    bf16codecs.torch.unpatch_safetensors()


def test_files_and_modules(patched: None, tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.LayerNorm(20)).bfloat16()
    path = tmp_path / "model.safetensors"
    files.save_model(module, path)
    expected = files.load_file(path)
    safetensors_to_zarr(path, tmp_path / "model.zarr")
    path.unlink()
    found = files.load_file(path)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor.view(torch.int16), found[name].view(torch.int16))
    other = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.LayerNorm(20)).bfloat16()
    assert files.load_model(other, path) == (set(), [])
    assert all(
        torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True)
    )
    with files.safe_open(path, "pt", device="cpu") as f:
        assert torch.equal(f.get_slice("0.weight")[:, 3:5], module[0].weight[:, 3:5])


def test_a_path_that_has_neither(patched: None, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.load_file(tmp_path / "model.safetensors")
