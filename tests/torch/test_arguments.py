"""Arguments of loading and saving with PyTorch are checked before anything is done."""

from __future__ import annotations

import json

import pytest
import safetensors

import bf16codecs
from bf16codecs import open_model
from bf16codecs.convert import zarr_to_safetensors
from lazy_imports import lazily
from lazy_models import weights, write_store
from looping import for_each

torch = lazily("torch")
bf16torch = lazily("bf16codecs.torch")


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "m.zarr", {"w": weights((30, 20))})


def test_metadata_that_are_none(tmp_path):
    for metadata in ("x", ["a"], 3):
        for save, what in (
            (bf16torch.save_file, {"w": torch.ones(3)}),
            (bf16torch.save_model, torch.nn.Linear(1, 1)),
        ):
            with pytest.raises(TypeError, match="metadata must be a dict of strings, not "):
                save(what, tmp_path / "m.zarr", metadata)
        with pytest.raises((TypeError, ValueError), match="metadata"):
            bf16torch.save_file({"w": torch.ones(3)}, tmp_path / "m.zarr", {"a": 1})


@for_each("metadata", [{1: "x"}, {None: "x"}, {"k": 1}, {"k": None}, {"k": ["x"]}, {b"k": "x"}])
def test_metadata_of_anything_but_strings(tmp_path, metadata):
    """JSON would make strings of some of them."""
    for save, what in (
        (bf16torch.save_file, {"w": torch.ones(4)}),
        (bf16torch.save_model, torch.nn.Linear(2, 2)),
    ):
        with pytest.raises(TypeError, match="metadata must be strings, not "):
            save(what, tmp_path / "m.zarr", metadata)
    assert not (tmp_path / "m.zarr").exists()


@for_each("metadata", [None, {}, {"a": "b"}, {"": "", "ä": "\n"}])
def test_the_file_is_that_of_safetensors(tmp_path, metadata):
    tensors = {"w": torch.ones(4), "v": torch.zeros(2, 3, dtype=torch.bfloat16)}
    lazily("safetensors.torch").save_file(tensors, tmp_path / "theirs", metadata)
    bf16torch.save_file(tensors, tmp_path / "m.zarr", metadata)
    zarr_to_safetensors(tmp_path / "m.zarr", tmp_path / "ours", overwrite=True)
    own, other = ((tmp_path / name).read_bytes() for name in ("ours", "theirs"))
    header = json.loads(own[8 : 8 + int.from_bytes(own[:8], "little")])
    assert header == json.loads(other[8 : 8 + int.from_bytes(other[:8], "little")])
    if metadata is None or len(metadata) < 2:  # it writes several in any order
        assert own == other
    with safetensors.safe_open(tmp_path / "theirs", "pt") as theirs:
        expected = theirs.metadata()
    for path in (tmp_path / "theirs", tmp_path / "m.zarr"):
        with bf16codecs.safe_open(path, "pt") as opened:
            assert opened.metadata() == expected == metadata


def test_invalid_devices(store, monkeypatch):
    """Functions check a device before anything is read, and change no dtype."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with open_model(store) as model:
        name = next(iter(model))
        for device, error, told in (
            (torch.float16, TypeError, "device must be .* not torch.float16"),
            (1.5, TypeError, "device must be .* not 1.5"),
            (True, TypeError, "device must be .* not True"),
            ("gpu", ValueError, "device 'gpu': "),
            ("cuda", RuntimeError, "device 'cuda': this PyTorch was built without CUDA"),
            ("xpu", RuntimeError, "device 'xpu': this PyTorch has none such: "),
            ("vulkan", RuntimeError, r"device 'vulkan': this PyTorch has none such: .* backend$"),
            (torch.device("cuda:3"), RuntimeError, "built without CUDA"),
        ):
            for call in (
                lambda on: bf16torch.load_file(store, device=on),
                lambda on: bf16torch.load_model(torch.nn.Linear(1, 1), store, device=on),
                lambda on: open_model(store, framework="torch", device=on),
                lambda on: bf16codecs.safe_open(store, "pt", on),
                lambda on: model.load("torch", device=on),
                lambda on: model.get_tensor(name, "torch", on),
                lambda on: model.get_slice(name, "torch", on),
                lambda on: model[name].torch(on),
            ):
                with pytest.raises(error, match=told):
                    call(device)
