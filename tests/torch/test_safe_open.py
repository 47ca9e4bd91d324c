"""`safe_open` gives tensors of PyTorch, as `safetensors.safe_open` does."""

from __future__ import annotations

import pytest

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
safetensors = pytest.importorskip("safetensors")


def test_it_gives_the_same(tmp_path):
    state = {
        "w": torch.randn(8, 6).to(torch.bfloat16),
        "a": torch.randn(4).to(torch.float8_e4m3fn),
        "s": torch.tensor(2.5),
    }
    file, store = tmp_path / "m.safetensors", tmp_path / "m.zarr"
    safetensors_torch.save_file(state, file)
    safetensors_to_zarr(file, store)
    with safetensors.safe_open(file, "pt") as theirs, bf16codecs.safe_open(store) as ours:
        assert ours.keys() == theirs.keys() == sorted(state)
        pairs = [(ours.get_tensor(name), theirs.get_tensor(name)) for name in state]
        pairs += [(ours.get_slice("w")[1:3, ::2], theirs.get_slice("w")[1:3, ::2])]
        pairs += [(ours.get_slice(name)[...], theirs.get_slice(name)[...]) for name in state]
        for mine, known in pairs:
            assert (mine.dtype, mine.shape, mine.device) == (known.dtype, known.shape, known.device)
            same = (tensor.reshape(-1).view(torch.uint8) for tensor in (mine, known.contiguous()))
            assert torch.equal(*same)


def test_devices(tmp_path):
    safetensors_torch.save_file({"w": torch.ones(3)}, tmp_path / "m.safetensors")
    with bf16codecs.safe_open(tmp_path / "m.safetensors", "pt", "meta") as f:
        assert f.get_tensor("w").device.type == f.get_slice("w")[:2].device.type == "meta"
