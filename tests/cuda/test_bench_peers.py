"""Other decoders in the bench on a GPU: the calls to them, and their results."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bf16codecs.bench.gpu.peers import gpu_peers
from bf16codecs.cuda.device import Device
from bf16codecs.model import open_model
from bf16codecs.model.gpu import Target, read_onto
from fake_gpu_peers import nvcomp, torch_with_dietgpu
from invoked import done, run
from lazy_models import weights, write_safetensors

pytestmark = pytest.mark.slow

SIZES = 2 * 10_000, 2 * 33
COPIES = 3
OPTIONS = ("--device", "cuda", "--repeats", 2, "--size", COPIES * sum(SIZES))
NVCOMP = ["nvCOMP ANS u1", "nvCOMP ANS f2", "nvCOMP Bitcomp u2"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    arrays = {"a": weights((100, 100)), "b": weights((33,), seed=1)}
    return write_safetensors(tmp_path / "m.safetensors", arrays)


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all other decoders than the test's."""
    for name in ("nvidia.nvcomp", "dietgpu"):
        monkeypatch.setitem(sys.modules, name, None)


def rows(model: Path, only: str) -> dict[str, Any]:
    file = model.with_name("t.json")
    done("bf16codecs", "bench", model, *OPTIONS, "--only", only, "--json", file)
    results = json.loads(file.read_text())["results"]
    return {row["name"]: row for row in results if row["name"] != "memcpy"}


@pytest.mark.parametrize("has_configs", [False, True])
def test_nvcomp(stand_in, model: Path, monkeypatch, has_configs: bool) -> None:
    module = nvcomp(has_configs)
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", module)
    found = rows(model, "nvcomp")
    assert list(found) == NVCOMP
    for row in found.values():
        assert row["exact"]
        assert row["nbytes"] == COPIES * sum(SIZES)
        assert row["encoded_nbytes"] == COPIES * (sum(SIZES) + 2)
    asked = [(o["algorithm"], o["data_type"], o["device_id"]) for o in module.made]
    assert asked == [("ANS", "|u1", 0), ("ANS", "<f2", 0), ("Bitcomp", "<u2", 0)]
    assert all(options["cuda_stream"] for options in module.made)


@pytest.mark.parametrize("has_configs", [False, True])
def test_nvcomp_that_gives_other_data(stand_in, model: Path, monkeypatch, has_configs) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", nvcomp(has_configs, damages=True))
    result = run("bf16codecs", "bench", model, *OPTIONS, "--only", "nvcomp")
    assert result.exit_code == 1
    assert result.stdout.count("DIFFERS") == len(NVCOMP)
    assert result.stderr == "bf16codecs bench: the GPU returned wrong data\n"


def test_nvcomp_that_fails(stand_in, model: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", ModuleType("nvidia.nvcomp"))
    result = run("bf16codecs", "bench", model, *OPTIONS, "--only", "ans", "--only", "bf16split")
    assert result.exit_code == 1
    assert "\nnvCOMP ANS u1 failed: AttributeError: module 'nvidia.nvcomp' has no" in result.stdout
    assert "\nHost to device" in result.stdout
    named = ", ".join(NVCOMP[:2])
    assert result.stderr == f"bf16codecs bench: not measured because they failed: {named}\n"


def test_dietgpu(stand_in, model: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "dietgpu", ModuleType("dietgpu"))
    monkeypatch.setitem(sys.modules, "torch", torch_with_dietgpu())
    found = rows(model, "dietgpu")
    assert list(found) == ["DietGPU float"]
    (row,) = found.values()
    assert row["exact"]
    assert row["encoded_nbytes"] == COPIES * (sum(SIZES) + 4)


def test_missing_peers_are_reported(gpu, model: Path) -> None:
    text = done("bf16codecs", "bench", model, *OPTIONS, "--only", "memcpy", "--only", "nvcomp")
    assert "\nNot measured: nvCOMP; not installed: pip install nvidia-nvcomp-cu13" in text
    assert "DietGPU" not in text


def test_numbers_that_they_do_not_know(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", nvcomp(True))
    peers, absent = gpu_peers("float64", 8)
    assert [peer.name for peer in peers] == ["nvCOMP ANS u1", "nvCOMP Bitcomp u8"]
    assert [peer.name for peer in absent] == ["DietGPU"]


def test_one_that_cannot_be_imported(monkeypatch) -> None:
    def broken(name: str) -> None:
        raise ImportError(f"{name}: libnvcomp.so.5: no such file")

    monkeypatch.setattr("bf16codecs.bench.gpu.peers.importlib.import_module", broken)
    peers, absent = gpu_peers("bfloat16", 2)
    assert peers == []
    assert absent[0].why.startswith("cannot be used: ImportError: nvidia.nvcomp: libnvcomp.so.5")


class InTorch:
    """A model as PyTorch tensors on the GPU, with `data_ptr` alone."""

    def __init__(self, path: Any) -> None:
        self._path = path

    def __enter__(self) -> InTorch:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def load(self) -> dict[str, Any]:
        device = Device.of(0)
        with open_model(self._path) as model:
            memory = {name: device.allocate(tensor.nbytes) for name, tensor in model.items()}
            read_onto(device, [Target(model[n], m.address) for n, m in memory.items()])
        return {n: SimpleNamespace(data_ptr=lambda m=m: m.address) for n, m in memory.items()}


def test_loading_with_pytorch(stand_in, model: Path, monkeypatch) -> None:
    torch, asked = torch_with_dietgpu(), []
    torch.cuda.is_available = lambda: True

    def opened(*arguments: Any, **options: Any) -> Any:
        bound = inspect.signature(open_model).bind(*arguments, **options).arguments
        if "framework" not in bound:
            return open_model(*arguments, **options)
        asked.append((bound["framework"], bound["device"]))
        return InTorch(bound["path"])

    def load_file(path: Path, device: str) -> dict[str, Any]:
        assert device == "cuda:0"
        return InTorch(path).load()

    monkeypatch.setattr("bf16codecs.bench.gpu.loading.open_model", opened)
    monkeypatch.setitem(sys.modules, "torch", torch)
    safetensors = SimpleNamespace(torch=SimpleNamespace(load_file=load_file))
    monkeypatch.setitem(sys.modules, "safetensors", safetensors)
    monkeypatch.setitem(sys.modules, "safetensors.torch", safetensors.torch)
    found = rows(model, "torch")
    assert list(found) == ["safetensors.torch", "bf16codecs.torch"]
    assert all(row["exact"] for row in found.values())
    assert found["safetensors.torch"]["to_reference"] == 1
    assert asked == [("torch", "cuda:0")] * 3
