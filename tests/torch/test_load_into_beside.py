"""Models loaded into modules that share memory, are of strange forms, or load themselves."""

from __future__ import annotations

import pytest

from lazy_imports import lazily

torch = lazily("torch")
nn = lazily("torch.nn")
future = lazily("torch.__future__")
bf16torch = lazily("bf16codecs.torch")
loading = lazily("bf16codecs.torch.loading")
modules = lazily("torch_modules")


@pytest.fixture
def saved(tmp_path):
    """A network, and a store of it."""
    return modules.saved_network(tmp_path)


@pytest.fixture
def decoded_beside(monkeypatch):
    """Names of the tensors that were decoded elsewhere and copied."""
    return modules.note_decoded_beside(monkeypatch)


# --- tied tensors, and others that share memory ---------------------------------------------------


@pytest.mark.parametrize("save", ["save_file", "save_model"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tied_parameters_are_decoded_once(tmp_path, monkeypatch, save, device):
    module = modules.Tied()
    what = module.state_dict() if save == "save_file" else module
    getattr(bf16torch, save)(what, tmp_path / "m.zarr")
    names = []
    read_into = loading.read_into

    def note(tensors, places):
        names.extend(tensor.name for tensor in tensors)
        read_into(tensors, places)

    monkeypatch.setattr("bf16codecs.torch.loading.read_into", note)
    with torch.device(device):
        other = modules.Tied()
    assert bf16torch.load_into(other, tmp_path / "m.zarr") == ([], [])
    assert modules.same_state(module, other)
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
    bf16torch.save_file(state, tmp_path / "m.zarr")
    module, other = Views(), Views()
    module.load_state_dict(state)
    bf16torch.load_into(other, tmp_path / "m.zarr")
    assert modules.same_state(module, other)
    assert decoded_beside == ["second", "over", "strided"]


# --- tensors that are decoded elsewhere and copied ------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_other_orders_in_memory(tmp_path, decoded_beside, device):
    state = {
        name: torch.randn(tensor.shape, dtype=tensor.dtype)
        for name, tensor in modules.Strange().state_dict().items()
    }
    bf16torch.save_file(state, tmp_path / "m.zarr")
    with torch.device(device):
        module = modules.Strange()
    bf16torch.load_into(module, tmp_path / "m.zarr")
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert module.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert module.transposed.stride() == (1, 6)
    assert {"transposed", "conv.weight"} <= set(decoded_beside)
    assert "plain" not in decoded_beside


def test_subclasses_are_copied_to(tmp_path, decoded_beside):
    module = nn.Linear(3, 2)
    bf16torch.save_file(module.state_dict(), tmp_path / "m.zarr")
    other = nn.Linear(3, 2)
    other.weight = modules.Marked(torch.zeros(2, 3))
    bf16torch.load_into(other, tmp_path / "m.zarr")
    assert modules.same_state(module, other)
    assert isinstance(other.weight, modules.Marked)
    assert decoded_beside == ["weight"]


def test_subclasses_with_memory_of_their_own(tmp_path):
    module = nn.Linear(3, 2)
    bf16torch.save_file(module.state_dict(), tmp_path / "m.zarr")
    other = nn.Linear(3, 2)
    other.weight = nn.Parameter(modules.Wrapped(torch.zeros(2, 3)))
    bf16torch.load_into(other, tmp_path / "m.zarr")
    assert torch.equal(other.weight.inner, module.weight)
    assert torch.equal(other.bias, module.bias)


def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def fail(self, device):
        raise RuntimeError("no room")

    monkeypatch.setattr(loading._Stored, "read", fail)
    bf16torch.save_file({"weight": torch.ones(2, 3)}, tmp_path / "m.zarr")
    module = nn.Module()
    module.weight = nn.Parameter(torch.zeros(3, 2).t())
    with pytest.raises(RuntimeError, match="tensor 'weight': no room"):
        bf16torch.load_into(module, tmp_path / "m.zarr")


def test_old_scalars_have_one_item(tmp_path):
    bf16torch.save_file({"scalar": torch.ones(1), "one": torch.ones(1)}, tmp_path / "m.zarr")
    for device in ("cpu", "meta"):
        module = nn.Module()
        module.scalar = nn.Parameter(torch.zeros((), device=device))
        module.one = nn.Parameter(torch.zeros(1, device=device))
        bf16torch.load_into(module, tmp_path / "m.zarr")
        assert (module.scalar.shape, module.scalar.item(), module.one.item()) == ((), 1, 1)


def test_swapped_modules(saved):
    module, path = saved
    future.set_swap_module_params_on_conversion(True)
    try:
        for device in ("cpu", "meta"):
            with torch.device(device):
                other = modules.network()
            bf16torch.load_into(other, path)
            assert modules.same_state(module, other)
    finally:
        future.set_swap_module_params_on_conversion(False)


# --- modules with their own loading ---------------------------------------------------------------


def test_code_of_modules_gets_tensors(tmp_path):
    state = {
        "0.weight": torch.randn(2, 3),
        "1.old": torch.randn(2, 3),
        "2.weight": torch.randn(2, 3),
        "2._extra_state": torch.randn(5),
    }
    bf16torch.save_file(state, tmp_path / "m.zarr")
    module = nn.Sequential(
        *(kind(3, 2, bias=False) for kind in (nn.Linear, modules.Renaming, modules.Keeping))
    )
    assert bf16torch.load_into(module, tmp_path / "m.zarr") == ([], [])
    assert torch.equal(module[0].weight, state["0.weight"])
    assert torch.equal(module[1].weight, state["1.old"] * 2)
    assert type(module[2].kept) is torch.Tensor
    assert torch.equal(module[2].kept, state["2._extra_state"])


def test_hooks_see_what_they_would_see(saved):
    module, path = saved
    seen = []
    other = modules.network()
    other[0].register_load_state_dict_post_hook(
        lambda part, keys: seen.append(torch.equal(part.weight, module[0].weight))
    )
    other[2].register_load_state_dict_pre_hook(
        lambda part, state, prefix, *_: seen.append(type(state[f"{prefix}weight"]))
    )
    bf16torch.load_into(other, path)
    assert seen == [True, torch.Tensor]
    assert modules.same_state(module, other)


def test_a_hook_of_the_whole_module_may_rename(saved):
    module, path = saved

    def rename(part, state, prefix, *_):
        for name in sorted(state, reverse=True):
            state[f"{prefix}{int(name[0]) + 1}{name[1:]}"] = state.pop(name)

    inner = modules.network()
    other = nn.Sequential(nn.Identity(), *inner)
    other.register_load_state_dict_pre_hook(rename)
    assert bf16torch.load_into(other, path) == ([], [])
    assert modules.same_state(module, inner)


def test_code_of_modules_on_meta_needs_memory_first(tmp_path):
    bf16torch.save_file({"0.old": torch.ones(2, 3)}, tmp_path / "m.zarr")
    with torch.device("meta"):
        module = nn.Sequential(modules.Renaming(3, 2, bias=False))
    with (
        pytest.warns(UserWarning, match="no-op"),
        pytest.raises(RuntimeError, match=r"'0.weight'.*to_empty"),
    ):
        bf16torch.load_into(module, tmp_path / "m.zarr")
    bf16torch.load_into(module.to_empty(device="cpu"), tmp_path / "m.zarr")
    assert module[0].weight.eq(2).all()
