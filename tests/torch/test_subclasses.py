"""Tensor subclasses: those with their numbers in memory are stored and loaded, no others."""

from __future__ import annotations

import io

import h5py
import pytest

from bf16codecs import BF16Huffman, hdf5
from checkpoint_calls import failure, load, numbers, save
from lazy_imports import lazily

torch = lazily("torch")
nn = lazily("torch.nn")
bf16torch = lazily("bf16codecs.torch")
modules = lazily("torch_modules")

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def holder(tensor):
    module = nn.Module()
    module.w = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor)
    return module


def unreadable():
    """Make tensors whose numbers are not in their memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    released = torch.ones(64)
    released.untyped_storage().resize_(0)  # as FSDP does between layers
    cut = torch.ones(64)
    cut.untyped_storage().resize_(8)
    with FakeTensorMode():
        fake = torch.ones(64)
    return [
        ("Coded", modules.Coded.of(3)),
        ("Halves", modules.Halves(torch.ones(64), torch.ones(64))),
        ("Halved", torch.ones(64).as_subclass(modules.Halved)),
        ("Halved", torch.zeros(64).as_subclass(modules.Halved)),  # half of which is the same
        ("FakeTensor", fake),
        ("Tensor", released),
        ("Tensor", cut),
        ("Tensor", torch._to_functional_tensor(torch.ones(64))),
        ("Tensor", torch._efficientzerotensor(64)),
        ("UninitializedParameter", nn.parameter.UninitializedParameter()),
    ]


# --- saving ---------------------------------------------------------------------------------------


def test_tensors_without_memory_are_not_saved(tmp_path):
    for kind, tensor in unreadable():
        told = rf"tensor 'w' of class \S*{kind} has no memory with its numbers"
        with pytest.raises(ValueError, match=told):
            bf16torch.save_file({"w": tensor}, tmp_path / "m.zarr")
    with pytest.raises(ValueError, match=r"tensor 'w' of class \S*Coded"):
        bf16torch.save_model(holder(modules.Coded.of(3)), tmp_path / "m.zarr")
    assert not list(tmp_path.iterdir())


def test_tensors_of_function_transforms_are_not_saved(tmp_path):
    def function(tensor):
        with pytest.raises(ValueError, match=r"tensor 'w' of class torch\.Tensor has no memory"):
            bf16torch.save_file({"w": tensor}, tmp_path / "m.zarr")
        return tensor.sum()

    torch.vmap(function)(torch.ones(3, 2))
    torch.func.grad(function)(torch.ones(3))
    torch.func.functionalize(function)(torch.ones(3))


@pytest.mark.parametrize("kind", ["Coded", "Halved", "functional", "meta"])
def test_checkpoints_refuse_them(tmp_path, kind):
    tensor, told = {
        "Coded": lambda: (modules.Coded.of(3), "tensor 'w' of class torch_modules.Coded"),
        "Halved": lambda: (
            torch.ones(3).as_subclass(modules.Halved),
            "tensor 'w' of class torch_modules.Halved",
        ),
        "functional": lambda: (
            torch._to_functional_tensor(torch.ones(3)),
            "tensor 'w' of class torch.Tensor",
        ),
        "meta": lambda: (torch.ones(3, device="meta"), "tensor 'w': it is on the device meta"),
    }[kind]()
    error = failure(save, {"w": tensor}, tmp_path / "c.zarr")
    assert isinstance(error, ValueError)
    assert told in str(error)
    assert not list(tmp_path.iterdir())


def test_codecs_and_hdf5_refuse_them():
    with pytest.raises(ValueError, match=r"a tensor of class torch_modules\.Coded"):
        BF16Huffman().encode(modules.Coded.of(3))
    with (
        h5py.File(io.BytesIO(), "w") as file,
        pytest.raises(ValueError, match=r"a tensor of class torch_modules\.Coded"),
    ):
        hdf5.write_tensor(file, "w", modules.Coded.of(3))


# --- loading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["load_into", "load_model"])
def test_nothing_is_loaded_into_what_would_lose_it(tmp_path, call):
    bf16torch.save_file({"w": numbers(), "other": torch.ones(3)}, tmp_path / "m.zarr")
    module = holder(modules.Coded.of(5))
    module.other = nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=r"tensor 'w' of class torch_modules\.Coded"):
        getattr(bf16torch, call)(module, tmp_path / "m.zarr")
    assert module.w.codes.unique().tolist() == [5]
    assert not module.other.any()


def test_checkpoints_are_not_loaded_into_it(tmp_path):
    save({"w": numbers()}, tmp_path / "c.zarr")
    halved = torch.zeros(64, 300).as_subclass(modules.Halved)
    functional = torch._to_functional_tensor(numbers())
    for tensor in (modules.Coded.of(5), modules.Halves(numbers(), numbers()), halved, functional):
        error = failure(load, {"w": tensor}, tmp_path / "c.zarr")
        assert isinstance(error, ValueError)
        kind = type(tensor)
        assert f"tensor 'w' of class {kind.__module__}.{kind.__name__} has no memory" in str(error)
    assert not any(map(any, halved.codes()))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("kind", ["sparse_coo", "sparse_csr", "_mkldnn"])
def test_layouts_that_nothing_is_loaded_into(tmp_path, kind):
    bf16torch.save_file({"w": torch.ones(4, 4)}, tmp_path / "m.zarr")
    convert = {"sparse_coo": "to_sparse", "sparse_csr": "to_sparse_csr", "_mkldnn": "to_mkldnn"}
    tensor = getattr(torch.zeros(4, 4), convert[kind])()
    error = failure(load, {"w": tensor}, tmp_path / "m.zarr")
    assert isinstance(error, ValueError)
    assert str(error) == f"tensor 'w': is in layout torch.{kind}: use tensor.to_dense()"
    module = nn.Module()
    module.register_buffer("w", tensor)
    with pytest.raises(ValueError, match=rf"tensor 'w': is in layout torch\.{kind}"):
        bf16torch.load_into(module, tmp_path / "m.zarr")


def test_tensors_that_the_store_lacks_may_be_of_any_class(tmp_path):
    bf16torch.save_file({"other": torch.ones(3)}, tmp_path / "m.zarr")
    module = holder(modules.Coded.of(5))
    module.other = nn.Parameter(torch.zeros(3))
    assert bf16torch.load_into(module, tmp_path / "m.zarr", strict=False) == (["w"], [])
    assert module.other.all()


# --- classes with memory --------------------------------------------------------------------------


def with_memory(values):
    """Return tensors of several classes that have the values in memory."""
    wide = torch.zeros(values.shape[0], 2 * values.shape[1])
    wide[:, ::2] = values
    return {
        "parameter": nn.Parameter(values.clone()),
        "marked": modules.Marked(values.clone()),
        "noted": values.clone().as_subclass(modules.Noted),
        "boxes": values.clone().as_subclass(modules.Boxes),
        "view of boxes": wide[:, ::2].as_subclass(modules.Boxes),
        "wrapped": modules.Wrapped(values.clone()),
        "wrapped parameter": nn.Parameter(modules.Wrapped(values.clone())),
        "wrapped view": modules.Wrapped(wide[:, ::2]),
    }


def memory_of(tensor):
    return tensor.inner if isinstance(tensor, modules.Wrapped) else tensor


def test_they_are_saved_and_loaded(tmp_path):
    tensors, targets = with_memory(numbers()), with_memory(torch.zeros(64, 300))
    bf16torch.save_file(tensors, tmp_path / "m.zarr")
    save(tensors, tmp_path / "c.zarr")
    loaded = bf16torch.load_file(tmp_path / "m.zarr")
    load(targets, tmp_path / "c.zarr")
    for name, target in targets.items():
        assert torch.equal(loaded[name], numbers()), name
        assert torch.equal(memory_of(target), numbers()), name
        module = holder(with_memory(torch.zeros(64, 300))[name])
        bf16torch.save_file({"w": tensors[name]}, tmp_path / "one.zarr")
        bf16torch.load_into(module, tmp_path / "one.zarr")
        assert torch.equal(memory_of(module.w), numbers()), name


def test_wrapped_integers(tmp_path):
    """Their flattened view is the wrapped tensor itself."""
    bf16torch.save_file({"w": modules.Wrapped(torch.arange(9))}, tmp_path / "m.zarr")
    assert torch.equal(bf16torch.load_file(tmp_path / "m.zarr")["w"], torch.arange(9))
