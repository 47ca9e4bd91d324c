"""Arguments of what loads and saves with PyTorch are checked before anything is done."""

from __future__ import annotations

import pytest

import bf16codecs
from bf16codecs import open_model
from lazy_imports import lazily
from lazy_models import weights, write_store

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


def test_what_is_no_device(store, monkeypatch):
    """Whoever takes a device says so before anything is read, and changes no dtype."""
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
