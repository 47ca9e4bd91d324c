"""Models loaded into modules that share memory, are of strange forms, or load themselves."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  (needs torch)

from bf16codecs.torch import load_into, loading, save_file, save_model  # noqa: E402
from torch_modules import (  # noqa: E402
    Tied,
    network,
    note_decoded_beside,
    same_state,
    saved_network,
)


@pytest.fixture
def saved(tmp_path):
    """A network, and the store that has it."""
    return saved_network(tmp_path)


@pytest.fixture
def decoded_beside(monkeypatch):
    """Names of the tensors that were decoded elsewhere and copied."""
    return note_decoded_beside(monkeypatch)


# --- tied tensors, and others that share memory ---------------------------------------------------


@pytest.mark.parametrize("save", [save_file, save_model], ids=["both", "one"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tied_parameters_are_decoded_once(tmp_path, monkeypatch, save, device):
    module = Tied()
    save(module.state_dict() if save is save_file else module, tmp_path / "m.zarr")
    names = []
    read_into = loading.read_into

    def note(tensors, places):
        names.extend(tensor.name for tensor in tensors)
        read_into(tensors, places)

    monkeypatch.setattr(loading, "read_into", note)
    with torch.device(device):
        other = Tied()
    assert load_into(other, tmp_path / "m.zarr") == ([], [])
    assert same_state(module, other)
    assert other.head.weight is other.embed.weight
    assert len(names) == 6, names


def test_the_last_of_what_shares_memory_stays(tmp_path, decoded_beside):
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            flat = torch.zeros(40)
            self.first = nn.Parameter(flat[:10].view(2, 5))
            self.second = nn.Parameter(flat[10:20])
            self.over = nn.Parameter(flat[15:25])
            self.strided = nn.Parameter(flat[21:31:2])
            self.last = nn.Parameter(flat[31:])

    generator = torch.Generator().manual_seed(0)
    state = {n: torch.randn(p.shape, generator=generator) for n, p in Views().named_parameters()}
    save_file(state, tmp_path / "m.zarr")
    module, other = Views(), Views()
    module.load_state_dict(state)
    load_into(other, tmp_path / "m.zarr")
    assert same_state(module, other)
    assert decoded_beside == ["second", "over", "strided"]


# --- what is decoded beside the module ------------------------------------------------------------


class Strange(nn.Module):
    """Has tensors of forms that nothing is decoded straight into."""

    def __init__(self):
        super().__init__()
        self.transposed = nn.Parameter(torch.zeros(4, 6).t())
        conv = nn.Conv2d(3, 4, 2, bias=False)
        self.conv = conv.to(memory_format=torch.channels_last)
        self.register_buffer("conj", torch.zeros(3, dtype=torch.complex64).conj())
        self.register_buffer("neg", torch.zeros(3, dtype=torch.complex64).conj().imag)
        self.plain = nn.Parameter(torch.zeros(3))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_other_orders_in_memory(tmp_path, decoded_beside, device):
    state = {
        name: torch.randn(tensor.shape, dtype=tensor.dtype)
        for name, tensor in Strange().state_dict().items()
    }
    save_file(state, tmp_path / "m.zarr")
    with torch.device(device):
        module = Strange()
    load_into(module, tmp_path / "m.zarr")
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert module.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert module.transposed.stride() == (1, 6)
    assert {"transposed", "conv.weight"} <= set(decoded_beside)
    assert "plain" not in decoded_beside


class Marked(nn.Parameter):
    """A subclass, which might do anything."""


def test_subclasses_are_copied_to(tmp_path, decoded_beside):
    module = nn.Linear(3, 2)
    save_file(module.state_dict(), tmp_path / "m.zarr")
    other = nn.Linear(3, 2)
    other.weight = Marked(torch.zeros(2, 3))
    load_into(other, tmp_path / "m.zarr")
    assert same_state(module, other)
    assert isinstance(other.weight, Marked)
    assert decoded_beside == ["weight"]


class Wrapped(torch.Tensor):
    """A subclass with memory of its own, as those of quantized weights."""

    @staticmethod
    def __new__(cls, inner):
        wrapped = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        wrapped.inner = inner
        return wrapped

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args = [arg.inner if isinstance(arg, cls) else arg for arg in args]
        result = function(*args, **(kwargs or {}))
        return cls(result) if function is torch.ops.aten.detach.default else result


def test_subclasses_with_memory_of_their_own(tmp_path):
    module = nn.Linear(3, 2)
    save_file(module.state_dict(), tmp_path / "m.zarr")
    other = nn.Linear(3, 2)
    other.weight = nn.Parameter(Wrapped(torch.zeros(2, 3)))
    load_into(other, tmp_path / "m.zarr")
    assert torch.equal(other.weight.inner, module.weight)
    assert torch.equal(other.bias, module.bias)


def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def fail(self, device):
        raise RuntimeError("no room")

    monkeypatch.setattr(loading._Stored, "read", fail)
    save_file({"weight": torch.ones(2, 3)}, tmp_path / "m.zarr")
    module = nn.Module()
    module.weight = nn.Parameter(torch.zeros(3, 2).t())
    with pytest.raises(RuntimeError, match="tensor 'weight': no room"):
        load_into(module, tmp_path / "m.zarr")


def test_old_scalars_have_one_item(tmp_path):
    save_file({"scalar": torch.ones(1), "one": torch.ones(1)}, tmp_path / "m.zarr")
    for device in ("cpu", "meta"):
        module = nn.Module()
        module.scalar = nn.Parameter(torch.zeros((), device=device))
        module.one = nn.Parameter(torch.zeros(1, device=device))
        load_into(module, tmp_path / "m.zarr")
        assert (module.scalar.shape, module.scalar.item(), module.one.item()) == ((), 1, 1)


def test_swapped_modules(saved):
    module, path = saved
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        for device in ("cpu", "meta"):
            with torch.device(device):
                other = network()
            load_into(other, path)
            assert same_state(module, other)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


# --- modules that have a say ----------------------------------------------------------------------


class Renaming(nn.Linear):
    """Takes what it had another name for."""

    def _load_from_state_dict(self, state, prefix, *args):
        state[f"{prefix}weight"] = state.pop(f"{prefix}old") * 2
        super()._load_from_state_dict(state, prefix, *args)


class Keeping(nn.Linear):
    """Keeps as an attribute what it is given."""

    def get_extra_state(self):
        return self.kept

    def set_extra_state(self, state):
        self.kept = state


def test_code_of_modules_gets_tensors(tmp_path):
    state = {
        "0.weight": torch.randn(2, 3),
        "1.old": torch.randn(2, 3),
        "2.weight": torch.randn(2, 3),
        "2._extra_state": torch.randn(5),
    }
    save_file(state, tmp_path / "m.zarr")
    module = nn.Sequential(*(kind(3, 2, bias=False) for kind in (nn.Linear, Renaming, Keeping)))
    assert load_into(module, tmp_path / "m.zarr") == ([], [])
    assert torch.equal(module[0].weight, state["0.weight"])
    assert torch.equal(module[1].weight, state["1.old"] * 2)
    assert type(module[2].kept) is torch.Tensor
    assert torch.equal(module[2].kept, state["2._extra_state"])


def test_hooks_see_what_they_would_see(saved):
    module, path = saved
    seen = []
    other = network()
    other[0].register_load_state_dict_post_hook(
        lambda part, keys: seen.append(torch.equal(part.weight, module[0].weight))
    )
    other[2].register_load_state_dict_pre_hook(
        lambda part, state, prefix, *_: seen.append(type(state[f"{prefix}weight"]))
    )
    load_into(other, path)
    assert seen == [True, torch.Tensor]
    assert same_state(module, other)


def test_a_hook_of_the_whole_module_may_rename(saved):
    module, path = saved

    def rename(part, state, prefix, *_):
        for name in sorted(state, reverse=True):
            state[f"{prefix}{int(name[0]) + 1}{name[1:]}"] = state.pop(name)

    inner = network()
    other = nn.Sequential(nn.Identity(), *inner)
    other.register_load_state_dict_pre_hook(rename)
    assert load_into(other, path) == ([], [])
    assert same_state(module, inner)


def test_code_of_modules_on_meta_needs_memory_first(tmp_path):
    save_file({"0.old": torch.ones(2, 3)}, tmp_path / "m.zarr")
    with torch.device("meta"):
        module = nn.Sequential(Renaming(3, 2, bias=False))
    with (
        pytest.warns(UserWarning, match="no-op"),
        pytest.raises(RuntimeError, match=r"'0.weight'.*to_empty"),
    ):
        load_into(module, tmp_path / "m.zarr")
    load_into(module.to_empty(device="cpu"), tmp_path / "m.zarr")
    assert module[0].weight.eq(2).all()
