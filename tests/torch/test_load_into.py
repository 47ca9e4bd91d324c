"""Models decoded straight into modules."""

from __future__ import annotations

import sys
import threading

import pytest

from bf16codecs.convert import safetensors_to_run, safetensors_to_zarr
from bf16codecs.errors import BF16CodecsError, LimitError
from lazy_imports import lazily

torch = lazily("torch")
nn = lazily("torch.nn")
safetensors_torch = lazily("safetensors.torch")
bf16torch = lazily("bf16codecs.torch")
modules = lazily("torch_modules")
dtypes = lazily("bf16codecs.torch.tensors")


@pytest.fixture
def saved(tmp_path):
    """A network, and a store of it."""
    return modules.saved_network(tmp_path)


@pytest.fixture
def decoded_beside(monkeypatch):
    """Names of the tensors that were decoded elsewhere and copied."""
    return modules.note_decoded_beside(monkeypatch)


# --- into existing memory -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["m.zarr", "m.zarr.zip", "m.h5", "m.safetensors"])
def test_the_memory_of_the_module_gets_the_bits(tmp_path, kind, decoded_beside):
    module = modules.network()
    raw = module[0].weight.data.view(torch.int16)
    raw[0, :4] = torch.tensor([0x7F81, -0x7F, 0x7FFF, -0x8000])  # payloads of NaNs, -0
    if kind == "m.safetensors":
        safetensors_torch.save_file(module.state_dict(), tmp_path / kind)
    else:
        bf16torch.save_file(module.state_dict(), tmp_path / kind, chunk_size=256)
    other = modules.network()
    pointers = [p.data_ptr() for p in other.parameters()]
    versions = [p._version for p in other.parameters()]
    other[0].weight.requires_grad_(False)
    assert bf16torch.load_into(other, tmp_path / kind) == ([], [])
    assert modules.same_state(module, other)
    assert [p.data_ptr() for p in other.parameters()] == pointers
    assert all(p._version > v for p, v in zip(other.parameters(), versions, strict=True))
    assert [p.requires_grad for p in other.parameters()] == [False] + 5 * [True]
    assert decoded_beside == []


def test_every_dtype_and_shape(tmp_path, decoded_beside):
    generator = torch.Generator().manual_seed(0)

    class Buffers(nn.Module):
        def __init__(self, fill):
            super().__init__()
            for dtype, name in dtypes.DTYPES.items():
                size = torch.empty(0, dtype=dtype).element_size()
                raw = torch.randint(0, 2 if name == "BOOL" else 256, (6, 8 * size), **fill)
                self.register_buffer(name, raw.to(torch.uint8).view(dtype))
            self.register_buffer("scalar", torch.tensor(-0.0))
            self.register_buffer("empty", torch.zeros(0, 3))
            self.register_buffer("also_empty", torch.zeros(3, 0))
            self.weight = nn.Parameter(torch.zeros(3, 1, 5).bfloat16())

    module = Buffers({"generator": generator})
    bf16torch.save_file(module.state_dict(), tmp_path / "m.zarr")
    for device in ("cpu", "meta"):
        with torch.device(device):
            other = Buffers({})
        assert bf16torch.load_into(other, tmp_path / "m.zarr") == ([], [])
        assert modules.same_state(module, other)
    assert decoded_beside == []


def test_autograd_notices(saved):
    module, path = saved
    loss = module(torch.randn(2, 16).bfloat16()).pow(2).sum()
    bf16torch.load_into(module, path)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_without_gradients(saved, mode):
    module, path = saved
    other = modules.network()
    with getattr(torch, mode)():
        bf16torch.load_into(other, path)
    assert modules.same_state(module, other)
    other(torch.randn(2, 16).bfloat16()).sum().backward()
    assert other[0].weight.grad is not None


def test_steps_and_bases(tmp_path):
    networks = [modules.network() for _ in range(2)]
    files = [tmp_path / f"step{i}.safetensors" for i in range(2)]
    for module, file in zip(networks, files, strict=True):
        safetensors_torch.save_file(module.state_dict(), file)
    safetensors_to_run(files, tmp_path / "run.zarr")
    other = modules.network()
    bf16torch.load_into(other, f"{tmp_path / 'run.zarr'}@0")
    assert modules.same_state(other, networks[0])
    safetensors_to_zarr(files[1], tmp_path / "m.zarr", base=files[0])
    files[0].rename(tmp_path / "moved.safetensors")
    bf16torch.load_into(other, tmp_path / "m.zarr", base=tmp_path / "moved.safetensors")
    assert modules.same_state(other, networks[1])


def test_several_threads(saved):
    module, path = saved
    others = [modules.network() for _ in range(4)]
    threads = [threading.Thread(target=bf16torch.load_into, args=(other, path)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(modules.same_state(module, other) for other in others)


def test_expanded_tensors_are_refused_before_others_are_changed(tmp_path):
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    bf16torch.save_file(module.state_dict(), tmp_path / "m.zarr")
    other = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    other[1].weight = nn.Parameter(torch.zeros(1, 4).expand(4, 4))
    before = modules.bits(other[0].weight)
    with pytest.raises(RuntimeError, match=r"m\.zarr: tensor '1\.weight': .* is expanded.*con"):
        bf16torch.load_into(other, tmp_path / "m.zarr")
    assert modules.bits(other[0].weight) == before


def test_expanded_tensors_on_meta_get_memory_for_each_item(tmp_path):
    module = nn.Module()
    module.register_buffer("w", torch.arange(12.0).reshape(3, 4))
    bf16torch.save_file(module.state_dict(), tmp_path / "m.zarr")
    other = nn.Module()
    other.register_buffer("w", torch.zeros(1, 4, device="meta").expand(3, 4))
    assert bf16torch.load_into(other, tmp_path / "m.zarr") == ([], [])
    assert modules.same_state(module, other)


def test_tensors_without_a_shape_are_refused(tmp_path):
    bf16torch.save_file({"w": torch.ones(3)}, tmp_path / "m.zarr")
    module = nn.Module()
    module.register_buffer("w", nn.parameter.UninitializedBuffer())
    with pytest.raises(RuntimeError, match=r"m\.zarr: tensor 'w': that of the module has no shape"):
        bf16torch.load_into(module, tmp_path / "m.zarr")


def test_expanded_tensors_without_items_are_loaded(tmp_path):
    module = nn.Module()
    module.register_buffer("empty", torch.zeros(0, 4))
    bf16torch.save_file(module.state_dict(), tmp_path / "m.zarr")
    module.empty = torch.zeros(0, 1).expand(0, 4)
    assert bf16torch.load_into(module, tmp_path / "m.zarr") == ([], [])


def test_what_gets_memory_in_inference_mode_can_be_trained(saved):
    module, path = saved
    with torch.device("meta"):
        other = modules.network()
    with torch.inference_mode():
        bf16torch.load_into(other, path)
    assert modules.same_state(module, other)
    other(torch.randn(2, 16).bfloat16()).sum().backward()
    assert other[0].weight.grad is not None


# --- on the device meta ---------------------------------------------------------------------------


def test_a_module_on_meta_gets_memory(tmp_path, recwarn):
    module = modules.Tied()
    bf16torch.save_file(module.state_dict(), tmp_path / "m.zarr")
    with torch.device("meta"):
        other = modules.Tied()
    bf16torch.load_into(other, tmp_path / "m.zarr")
    assert modules.same_state(module, other)
    assert other.head.weight is other.embed.weight
    assert isinstance(other.embed.weight, nn.Parameter)
    assert (other.embed.weight.requires_grad, other.norm.weight.requires_grad) == (True, False)
    assert other.table.is_meta, "as load_state_dict(assign=True) leaves it"
    assert not recwarn.list


def test_recurrent_layers_on_meta_use_their_new_memory(tmp_path):
    module = nn.LSTM(4, 5)
    bf16torch.save_file(module.state_dict(), tmp_path / "m.zarr")
    with torch.device("meta"):
        other = nn.LSTM(4, 5)
    bf16torch.load_into(other, tmp_path / "m.zarr")
    x = torch.randn(3, 2, 4)
    assert torch.equal(module(x)[0], other(x)[0])


def test_mismatches_leave_meta(saved):
    _, path = saved
    with torch.device("meta"):
        other = nn.Sequential(nn.Linear(16, 32, dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match="unexpected"):
        bf16torch.load_into(other, path)
    assert all(p.is_meta for p in other.parameters())
    assert bf16torch.load_into(other, path, strict=False)[0] == []
    assert not any(p.is_meta for p in other.parameters())


def test_batch_norm_without_its_count_is_not_left_on_meta(tmp_path):
    state = {n: t for n, t in nn.BatchNorm1d(4).state_dict().items() if "num_batches" not in n}
    bf16torch.save_file(state, tmp_path / "m.zarr")
    assert bf16torch.load_into(nn.BatchNorm1d(4), tmp_path / "m.zarr") == ([], [])
    with torch.device("meta"):
        other = nn.BatchNorm1d(4)
    with (
        pytest.warns(UserWarning, match="no-op"),
        pytest.raises(RuntimeError, match=r"'num_batches_tracked': it is .* meta.*to_empty"),
    ):
        bf16torch.load_into(other, tmp_path / "m.zarr")
    assert other.weight.is_meta


# --- mismatches -----------------------------------------------------------------------------------


def untouched(module, *arguments, **options):
    """Return the error of loading, and check that it left the module unchanged."""
    before = {name: modules.bits(tensor) for name, tensor in module.state_dict().items()}
    with pytest.raises((RuntimeError, BF16CodecsError)) as caught:
        bf16torch.load_into(module, *arguments, **options)
    assert {name: modules.bits(tensor) for name, tensor in module.state_dict().items()} == before
    return caught.value


def test_missing_and_unexpected_names(tmp_path):
    bf16torch.save_file({"weight": torch.ones(3, 2), "more": torch.zeros(1)}, tmp_path / "m.zarr")
    module = nn.Linear(2, 3)
    error = untouched(module, tmp_path / "m.zarr")
    assert f"{tmp_path / 'm.zarr'}: not the tensors of a Linear: missing bias" in str(error)
    assert "unexpected more" in str(error)
    assert bf16torch.load_into(module, tmp_path / "m.zarr", strict=False) == (["bias"], ["more"])
    assert module.weight.eq(1).all()


@pytest.mark.parametrize("strict", [True, False])
def test_other_shapes(saved, strict):
    _, path = saved
    module = modules.network()
    module[2] = nn.Linear(32, 9, bias=False).bfloat16()
    error = untouched(module, path, strict=strict)
    assert "2.weight" in str(error)
    assert "[8, 32]" in str(error)
    assert "[9, 32]" in str(error)


def test_other_dtypes(saved, decoded_beside):
    module, path = saved
    for device in ("cpu", "meta"):
        with torch.device(device):
            other = modules.network()
            other[2] = nn.Linear(32, 8)
        if device == "cpu":
            text = str(untouched(other, path))
            assert "tensor '2.weight' is torch.bfloat16" in text
            assert "torch.float32: cast=True converts" in text
        assert bf16torch.load_into(other, path, cast=True) == ([], [])
        assert other[2].weight.dtype == torch.float32
        assert torch.equal(other[2].weight, module[2].weight.float())
        assert torch.equal(other[0].weight, module[0].weight)
    assert decoded_beside == ["2.weight", "2.bias"] * 2


def test_no_more_than_is_allowed(saved):
    _, path = saved
    assert isinstance(untouched(modules.network(), path, max_bytes=100), LimitError)


def test_a_damaged_store(saved):
    _, path = saved
    chunk = path / "2" / "weight" / "c.1.0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    for device in ("cpu", "meta"):
        with torch.device(device):
            module = modules.network()
        with pytest.raises(BF16CodecsError, match="weight"):
            bf16torch.load_into(module, path)
    assert all(p.is_meta for p in module.parameters())


def test_arguments_that_are_no_modules(saved):
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Module, not OrderedDict"):
        bf16torch.load_into(saved[0].state_dict(), saved[1])
    with pytest.raises(FileNotFoundError):
        bf16torch.load_into(saved[0], saved[1].with_name("missing.zarr"))


# --- memory ---------------------------------------------------------------------------------------

PEAK = """
import resource, sys
import torch
from bf16codecs.torch import load_file, load_into

with torch.device(sys.argv[2]):
    module = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(6)))
    module = module.bfloat16()
if sys.argv[2] == "cpu":
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
load_into(torch.nn.Linear(8, 8), sys.argv[3])  # what is imported for it
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak is from now on
read = lambda: int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
before = read()
load_into(module, sys.argv[1])
print(read() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone sets the peak back")
@pytest.mark.parametrize(("device", "copies"), [("cpu", 0), ("meta", 1)])
def test_there_is_no_second_copy(tmp_path, run_python, device, copies):
    generator = torch.Generator().manual_seed(0)
    weights = {f"{i}.weight": torch.randn(4096, 4096, generator=generator) for i in range(6)}
    bf16torch.save_file(
        {n: t.bfloat16() for n, t in weights.items()}, tmp_path / "m.zarr", verify=False
    )
    bf16torch.save_file(nn.Linear(8, 8).state_dict(), tmp_path / "small.zarr")
    places = str(tmp_path / "m.zarr"), device, str(tmp_path / "small.zarr")
    grown = int(run_python(PEAK, *places).stdout) * 1024
    nbytes = 6 * 4096 * 4096 * 2
    assert (copies - 0.5) * nbytes < grown < (copies + 0.5) * nbytes


def test_tensors_made_in_inference_mode(tmp_path):
    with torch.inference_mode():
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    bf16torch.save_file(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).state_dict(), tmp_path / "m.zarr"
    )
    before = module[0].weight.clone()
    with pytest.raises(RuntimeError, match="inference tensor"):
        bf16torch.load_into(module, tmp_path / "m.zarr")
    assert module[0].weight.equal(before)
    with torch.inference_mode():
        bf16torch.load_into(module, tmp_path / "m.zarr")
    assert not module[0].weight.equal(before)
