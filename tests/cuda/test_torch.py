"""PyTorch's tensors, decoded on the GPU that they are on.

Without one, tensors on the CPU stand for those on a GPU: the driver's stand-in takes their memory
as it takes all of the host's.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bf16codecs.convert import safetensors_to_run, safetensors_to_zarr
from bf16codecs.cuda.device import Device
from bf16codecs.errors import BaseMismatchError, CorruptDataError, LimitError
from bf16codecs.model import gpu as model_gpu
from bf16codecs.model import open_model
from lazy_imports import lazily
from lazy_models import weights, write_safetensors

torch = lazily("torch")
bf16torch = lazily("bf16codecs.torch")
reader = lazily("bf16codecs.torch.checkpoint.reader")
tensors = lazily("bf16codecs._base.torch_tensors")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_torch")]

ARRAYS = {
    "large": weights((700, 512)),
    "small": weights((40, 17), seed=1),
    "scalar": weights((), seed=2),
    "empty": weights((0, 3)),
    "single": weights((300, 30), "float32", 3),
    "byte": weights((30, 30), "float8_e4m3fn", 4),
    "counts": np.arange(50),
}


#: Functions that read into existing tensors.
LOADERS = "torch.loading", "torch.checkpoint.reader"


@pytest.fixture
def device(gpu, monkeypatch) -> Any:
    """Return the GPU's device, or the stand-in's."""
    if gpu is None:
        if not torch.cuda.is_available():
            pytest.skip("needs a PyTorch with CUDA")
        return torch.device("cuda", 0)

    def gpu_of(device: Any) -> Device | None:
        return Device.of(0) if device.type == "cpu" else None

    really = tensors.is_memory_of

    def is_memory(tensor: Any, dtype: Any, kind: str = "cpu") -> bool:
        return kind == "cuda" and really(tensor, dtype)

    for module in ("model.gpu", "model.frameworks", *LOADERS):
        monkeypatch.setattr(f"bf16codecs.{module}.gpu_of", gpu_of)
    monkeypatch.setattr(model_gpu, "_wait_for_torch", lambda device: None)
    monkeypatch.setattr(model_gpu, "_empty_cache", lambda: None)
    for module in (*LOADERS, "_base.torch_tensors"):
        monkeypatch.setattr(f"bf16codecs.{module}.is_memory_of", is_memory)
    monkeypatch.setattr("bf16codecs.model.frameworks._is_host", lambda device: device is None)
    return torch.device("cpu")


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    """Return a list that collects the names of tensors read onto the GPU."""
    names: list[str] = []
    real = model_gpu.read_onto

    def read_onto(gpu: Device, targets: Any, *threads: int) -> None:
        names.extend(target.tensor.name for target in targets)
        real(gpu, targets, *threads)

    monkeypatch.setattr(model_gpu, "read_onto", read_onto)
    return names


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    source = write_safetensors(folder / "m.safetensors", ARRAYS)
    safetensors_to_zarr(source, folder / "m.zarr", chunk_size=1 << 18)
    return folder / "m.zarr"


def assert_same(tensor: Any, array: np.ndarray) -> None:
    expected = tensors.as_tensor(np.array(array))
    assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
    there, here = (t.cpu().contiguous().reshape(-1).view(torch.uint8) for t in (tensor, expected))
    assert torch.equal(there, here)


def test_whole_tensors(device, store: Path, decoded: list[str]) -> None:
    with open_model(store) as model:
        for name, tensor in model.load("torch", device=device).items():
            assert_same(tensor, ARRAYS[name])
        assert_same(model["large"].torch(device), ARRAYS["large"])
    loaded = bf16torch.load_file(store, device=device)
    assert loaded.keys() == ARRAYS.keys()
    assert sorted(decoded) == sorted([*ARRAYS, *ARRAYS, "large"])


@pytest.mark.parametrize(
    "selection",
    [
        np.s_[...],
        np.s_[10:200],
        np.s_[5],
        np.s_[-1, 3],
        np.s_[:, 17:300],
        np.s_[600:, None, 511:],
        np.s_[3:3],
        np.s_[9:10:5, :],
    ],
)
def test_slices(device, store: Path, decoded: list[str], selection: Any) -> None:
    with open_model(store, framework="torch", device=device) as model:
        part = model.get_slice("large")[selection]
    assert_same(part, ARRAYS["large"][selection])
    assert decoded == ["large"]


@pytest.mark.parametrize(
    "selection", [np.s_[::2], np.s_[::-1, :3], np.s_[[3, 1]], ([1, 2], [3, 4])]
)
def test_slices_that_the_host_reads(device, store: Path, decoded: list[str], selection) -> None:
    with open_model(store, framework="torch", device=device) as model:
        part = model.get_slice("large")[selection]
    assert_same(part, ARRAYS["large"][selection])
    assert decoded == []


def test_slices_of_other_tensors(device, store: Path) -> None:
    with open_model(store, framework="torch", device=device) as model:
        assert_same(model.get_slice("scalar")[...], ARRAYS["scalar"])
        assert_same(model.get_slice("empty")[:, 1:2], ARRAYS["empty"][:, 1:2])
        assert_same(model.get_slice("byte")[3:, 4], ARRAYS["byte"][3:, 4])
        for selection in (np.s_[..., ...], np.s_[0], np.s_[..., 0]):
            with pytest.raises(IndexError, match=r"an index can only have|too many indices"):
                model.get_slice("scalar")[selection]
        with pytest.raises(IndexError, match="index 700 is out of bounds for axis 0"):
            model.get_slice("large")[700]
    with (
        open_model(store, framework="torch", device=device, max_bytes=100_000) as model,
        pytest.raises(LimitError, match="large"),
    ):
        model.get_slice("large")[:]


def net(device):
    """Make a module with buffers of all arrays, and a parameter."""

    class Net(torch.nn.Module):
        def __init__(self, device: Any) -> None:
            super().__init__()
            for name, array in ARRAYS.items():
                tensor = torch.zeros_like(tensors.as_tensor(np.array(array)), device=device)
                self.register_buffer(name, tensor)
            self.weight = torch.nn.Parameter(self.small.clone(), requires_grad=False)

    return Net(device)


def test_memory_that_pytorch_keeps_is_given_back(device, stand_in, store: Path, monkeypatch):
    """PyTorch's unused memory is freed before an error, and the package's before that."""
    gc.collect()
    there = stand_in.live("blocks")
    at_retry = []
    monkeypatch.setattr(model_gpu, "_empty_cache", lambda: at_retry.append(stand_in.live("blocks")))
    with open_model(store) as model:
        stand_in.fail("cuMemAlloc", 2)
        assert_same(model["large"].torch(device), ARRAYS["large"])
    assert len(at_retry) == 1
    assert at_retry[0] <= there  # memory that others left may be freed meanwhile


def test_load_into(device, store: Path, decoded: list[str]) -> None:
    module = net(device)
    addresses = {name: tensor.data_ptr() for name, tensor in module.named_buffers()}
    missing, unexpected = bf16torch.load_into(module, store, strict=False)
    assert (missing, unexpected) == (["weight"], [])
    for name, tensor in module.named_buffers():
        assert_same(tensor, ARRAYS[name])
        assert tensor.data_ptr() == addresses[name]
    assert sorted(decoded) == sorted(ARRAYS)


def test_load_into_what_has_another_form(device, store: Path, decoded: list[str]) -> None:
    """Tensors that are not contiguous, overlap, or are converted are decoded elsewhere."""
    module = net(device)
    memory = torch.zeros(40 * 17 + 900, dtype=torch.bfloat16, device=device)
    module.small = memory[: 40 * 17].view(40, 17)
    module.byte = memory[40 * 17 - 1 :][:900].view(30, 30)
    module.large = torch.zeros(512, 700, dtype=torch.bfloat16, device=device).t()
    module.single = torch.zeros(300, 30, dtype=torch.bfloat16, device=device)
    bf16torch.load_into(module, store, strict=False, cast=True)
    assert_same(module.large, ARRAYS["large"])
    assert_same(module.single, ARRAYS["single"].astype("bfloat16"))
    assert set(decoded) == ARRAYS.keys()


@pytest.fixture
def steps(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the tensors of two models, of a run ``run.zarr`` and of stores ``1.zarr, 2.zarr``."""
    chance = np.random.default_rng(5)
    models, files = [dict(ARRAYS)], []
    models.append({name: array.copy() for name, array in ARRAYS.items()})
    for name in ("large", "single", "counts"):
        bits = models[1][name].reshape(-1).view(np.uint8)
        bits[chance.random(bits.size) < 0.01] ^= 1
    for number, arrays in enumerate(models, 1):
        files.append(write_safetensors(tmp_path / f"step-{number}.safetensors", arrays))
    safetensors_to_run(files, tmp_path / "run.zarr", chunk_size=1 << 18)
    safetensors_to_zarr(files[0], tmp_path / "1.zarr")
    safetensors_to_zarr(files[1], tmp_path / "2.zarr", base=tmp_path / "1.zarr", chunk_size=1 << 18)
    return models


def on(device: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    made = {name: tensors.as_tensor(np.array(array)) for name, array in arrays.items()}
    return {name: tensor.clone().to(device) for name, tensor in made.items()}


def test_updates(device, steps: list[dict[str, Any]], tmp_path: Path, decoded: list[str]) -> None:
    run, store = f"{tmp_path / 'run.zarr'}@2", tmp_path / "2.zarr"
    for path, have in ((run, 1), (store, tmp_path / "1.zarr"), (run, None), (run, 77), (run, 2)):
        there = on(device, steps[0])
        with open_model(path) as model:
            model.update(there, have)
        for name, tensor in there.items():
            assert_same(tensor, steps[1][name])
        module = net(device)
        module.load_state_dict(on(device, steps[0]), strict=False)
        bf16torch.load_into(module, path, strict=False, have=have)
        for name, tensor in module.named_buffers():
            assert_same(tensor, steps[1][name])
    assert len(decoded) == 10 * len(ARRAYS)
    with torch.inference_mode():
        there = on(device, steps[0])
    with open_model(run) as model:
        model.update(there, 1)
    for name, tensor in there.items():
        assert_same(tensor, steps[1][name])


def test_updates_of_other_values(device, steps: list[dict[str, Any]], tmp_path: Path) -> None:
    run, store = f"{tmp_path / 'run.zarr'}@2", tmp_path / "2.zarr"
    for path, have in ((run, 1), (store, tmp_path / "1.zarr")):
        there = on(device, steps[0])
        there["large"][17, 20] += 1
        before = {name: tensor.cpu().clone() for name, tensor in there.items()}
        with open_model(path) as model, pytest.raises(BaseMismatchError, match="large"):
            model.update(there, have)
        for name, tensor in there.items():
            assert torch.equal(
                tensor.cpu().reshape(-1).view(torch.uint8),
                before[name].reshape(-1).view(torch.uint8),
            )


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoints(device, store: Path, decoded: list[str]) -> None:
    from torch.distributed.checkpoint import load

    state = {
        n: torch.zeros_like(tensors.as_tensor(np.array(a)), device=device)
        for n, a in ARRAYS.items()
    }
    state["small"] = torch.zeros(17, 40, dtype=torch.bfloat16, device=device).t()
    load(state, storage_reader=reader.StoreReader(store))
    for name, tensor in state.items():
        assert_same(tensor, ARRAYS[name])
    assert sorted(decoded) == ["byte", "large", "scalar", "single"]


def test_damage(device, store: Path, tmp_path: Path) -> None:
    source = write_safetensors(tmp_path / "m.safetensors", {"large": ARRAYS["large"]})
    safetensors_to_zarr(source, tmp_path / "m.zarr")
    chunk = max(
        (p for p in (tmp_path / "m.zarr").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size
    )
    content = bytearray(chunk.read_bytes())
    content[-2000] ^= 1
    chunk.write_bytes(content)
    module = torch.nn.Module()
    module.register_buffer("large", torch.zeros(700, 512, dtype=torch.bfloat16, device=device))
    with pytest.raises(CorruptDataError, match="large"):
        bf16torch.load_into(module, tmp_path / "m.zarr")
    with open_model(tmp_path / "m.zarr", framework="torch", device=device) as model:
        with pytest.raises(CorruptDataError, match="large"):
            model.get_slice("large")[600:]
        assert_same(model.get_slice("large")[:4], ARRAYS["large"][:4])
