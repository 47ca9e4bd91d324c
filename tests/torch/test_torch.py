"""Tensors of PyTorch out of model stores, and into them."""

from __future__ import annotations

import numpy as np
import pytest

from bf16codecs import open_model
from bf16codecs.convert import safetensors_to_hdf5, zarr_to_safetensors
from lazy_imports import lazily
from lazy_models import weights, write_store

torch = lazily("torch")
safetensors_torch = lazily("safetensors.torch")
bf16torch = lazily("bf16codecs.torch")
memory = lazily("bf16codecs.torch.tensors")
dtypes = lazily("bf16codecs.torch.tensors")


def random_tensors():
    """Make a tensor of every dtype, of random bits."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for dtype, name in dtypes.DTYPES.items():
        size = torch.empty(0, dtype=dtype).element_size()
        raw = torch.randint(0, 256, (6, 8 * size), generator=generator)
        tensors[name] = (raw % 2).bool() if name == "BOOL" else raw.to(torch.uint8).view(dtype)
    return tensors


def same_bits(a, b):
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
    )


def test_tensors_are_of_their_own_dtype(tmp_path):
    array = weights((30, 20))
    path = write_store(tmp_path / "m.zarr", {"w": array, "n": np.arange(3)})
    with open_model(path) as model:
        for tensor in (
            model["w"].torch(),
            model.get_tensor("w", framework="pt"),
            model.load(framework="torch", device="cpu")["w"],
            model.load("torch", ["w"])["w"],
        ):
            assert tensor.dtype == torch.bfloat16
            assert tensor.shape == (30, 20)
            assert (tensor.view(torch.int16).numpy() == array.view("i2")).all()
        assert model["n"].torch().dtype == torch.int64
        assert isinstance(model.load()["w"], np.ndarray), "the framework is the reader's choice"


def test_other_devices(tmp_path):
    path = write_store(tmp_path / "m.zarr", {"w": weights((30, 20))})
    with open_model(path) as model:
        loaded = model.load("torch", device="meta")
        assert loaded["w"].device.type == "meta"
        assert model["w"].torch(device="meta").dtype == torch.bfloat16


def test_tensors_share_the_arrays_memory():
    for dtype in ("bfloat16", "float32", "float8_e4m3fn", "uint16", "bool", "complex64"):
        array = np.zeros((3, 4), dtype)
        tensor = bf16torch.as_tensor(array)
        assert tensor.data_ptr() == array.ctypes.data
        assert str(tensor.dtype) == f"torch.{dtype}"
    scalar = bf16torch.as_tensor(np.array(1.5).astype("bfloat16"))
    assert (scalar.shape, float(scalar)) == ((), 1.5)
    frozen = np.ones(3, "bfloat16")
    frozen.flags.writeable = False
    assert bf16torch.as_tensor(frozen).data_ptr() != frozen.ctypes.data


@pytest.mark.parametrize("name", ["m.zarr", "m.zarr.zip"])
def test_saves_what_safetensors_would_save(tmp_path, name):
    tensors = random_tensors()
    tensors |= {
        "scalar": torch.tensor(3.5, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 3),
        "also empty": torch.zeros(3, 0),
        "large": torch.randn(700, 300).bfloat16(),
        "näme": torch.zeros(3),
    }
    theirs = tmp_path / "theirs.safetensors"
    safetensors_torch.save_file(tensors, theirs, {"format": "pt"})
    bf16torch.save_file(tensors, tmp_path / name, {"format": "pt"}, chunk_size=100_000)
    zarr_to_safetensors(tmp_path / name, tmp_path / "ours.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == theirs.read_bytes()

    loaded = bf16torch.load_file(tmp_path / name)
    assert loaded.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert same_bits(loaded[key], tensor), key
    assert bf16torch.load_file(theirs).keys() == tensors.keys()
    safetensors_to_hdf5(theirs, tmp_path / "m.h5")
    assert same_bits(bf16torch.load_file(tmp_path / "m.h5")["large"], tensors["large"])


def test_a_module_comes_back(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32)).bfloat16()
    path = tmp_path / "m.zarr"
    bf16torch.save_file(module.state_dict(), path)
    other = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32)).bfloat16()
    assert other.load_state_dict(bf16torch.load_file(path)).missing_keys == []
    x = torch.randn(5, 16).bfloat16()
    assert torch.equal(module(x), other(x))
    bf16torch.save_file({"new": torch.ones(3)}, path)
    assert list(bf16torch.load_file(path)) == ["new"], "an existing store is replaced"


def test_tensors_that_are_not_contiguous_or_share_memory(tmp_path):
    base = torch.randn(40, 30).bfloat16()
    tensors = {"t": base.t(), "step": base[::3, 1::2], "whole": base, "again": base}
    bf16torch.save_file(tensors, tmp_path / "m.zarr", chunk_size=512)
    for name, tensor in bf16torch.load_file(tmp_path / "m.zarr").items():
        assert torch.equal(tensor, tensors[name])


def test_objects_that_cannot_be_saved(tmp_path):
    path = tmp_path / "m.zarr"
    sparse = torch.eye(3).to_sparse()
    for tensors, error in (
        ({"w": np.zeros(3)}, TypeError),
        ({"w": sparse}, ValueError),
        ({"w": torch.zeros(3, dtype=torch.complex128)}, ValueError),
    ):
        with pytest.raises(error, match="tensor 'w'"):
            bf16torch.save_file(tensors, path)
    with pytest.raises(TypeError, match="metadata must be strings"):
        bf16torch.save_file({"w": torch.zeros(3)}, path, {"key": 3})
    assert not list(tmp_path.iterdir())


def test_an_empty_name_is_not_the_current_folder(tmp_path, monkeypatch):
    bf16torch.save_file({"old": torch.zeros(3)}, tmp_path / "m.zarr")
    monkeypatch.chdir(tmp_path / "m.zarr")
    with pytest.raises(ValueError, match="is empty"):
        bf16torch.save_file({"new": torch.ones(3)}, "")
    with pytest.raises(ValueError, match="is empty"):
        bf16torch.load_file("")
    assert list(bf16torch.load_file(".")) == ["old"]


def test_a_tensor_that_changes_while_it_is_saved_is_refused(tmp_path, monkeypatch):
    tensor = torch.zeros(1000)
    read = memory.ReadBytes.read_into

    def read_and_change(self, offset, out):
        count = read(self, offset, out)
        tensor.add_(1)
        return count

    monkeypatch.setattr(memory.ReadBytes, "read_into", read_and_change)
    with pytest.raises(ValueError, match="changed while it was read"):
        bf16torch.save_file({"w": tensor}, tmp_path / "m.zarr")
    assert not list(tmp_path.iterdir())


def test_packed_types(tmp_path):
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this PyTorch has no packed types")
    raw = torch.arange(32, dtype=torch.uint8).reshape(4, 8)
    tensor = raw.view(torch.float4_e2m1fn_x2)
    bf16torch.save_file({"w": tensor}, tmp_path / "m.zarr")
    with open_model(tmp_path / "m.zarr") as model:
        assert model["w"].dtype == np.uint8
        assert same_bits(model["w"].torch(), tensor)
        assert torch.equal(torch.from_numpy(model["w"][:]), raw)
