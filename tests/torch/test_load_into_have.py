"""`load_into` updates a module whose values it is told, and reads only what changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bf16codecs
from bf16codecs.convert import safetensors_to_run, safetensors_to_zarr
from bf16codecs.errors import BaseMismatchError, UpdateError

torch = pytest.importorskip("torch")
pytest.importorskip("bf16codecs.torch")
files = pytest.importorskip("safetensors.torch")


def module(seed: int) -> Any:
    torch.manual_seed(seed)
    layers = torch.nn.Sequential(
        torch.nn.Embedding(500, 64), torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)
    )
    return layers.bfloat16()


def stepped(old: Any, seed: int) -> Any:
    """Return a module of which one of a hundred values differs."""
    new = module(seed)
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for a, b in zip(new.parameters(), old.parameters(), strict=True):
            changes = torch.rand(b.shape, generator=chance) < 0.01
            a.copy_(torch.where(changes, a, b))
    return new


def bits(some: Any) -> list[Any]:
    return [tensor.detach().clone().view(torch.int16) for tensor in some.state_dict().values()]


def are_equal(one: list[Any], other: list[Any]) -> bool:
    return all(map(torch.equal, one, other))


@pytest.fixture
def modules(tmp_path: Path) -> list[Any]:
    """Return three modules, which are steps 1 to 3 of a run, and a chain of stores."""
    made = [module(1)]
    made += [stepped(made[0], 2)]
    made += [stepped(made[1], 3)]
    paths = [tmp_path / f"step-{n}.safetensors" for n in (1, 2, 3)]
    for path, some in zip(paths, made, strict=True):
        files.save_file(some.state_dict(), path)
    safetensors_to_run(paths, tmp_path / "run.zarr")
    safetensors_to_zarr(paths[0], tmp_path / "1.zarr")
    safetensors_to_zarr(paths[1], tmp_path / "2.zarr", base=tmp_path / "1.zarr")
    safetensors_to_zarr(paths[2], tmp_path / "3.zarr", base=tmp_path / "2.zarr")
    return made


@pytest.mark.parametrize("trust_base", [False, True])
def test_modules_follow(modules: list[Any], tmp_path: Path, trust_base: bool) -> None:
    for step in (2, 3):
        for have in range(1, step):
            for path, known in (
                (f"{tmp_path / 'run.zarr'}@{step}", have),
                (tmp_path / f"{step}.zarr", tmp_path / f"{have}.zarr"),
            ):
                some = module(9)
                some.load_state_dict(modules[have - 1].state_dict())
                addresses = [p.data_ptr() for p in some.parameters()]
                result = bf16codecs.torch.load_into(some, path, have=known, trust_base=trust_base)
                assert result == ([], [])
                assert are_equal(bits(some), bits(modules[step - 1]))
                assert addresses == [p.data_ptr() for p in some.parameters()]


def test_other_values_are_refused(modules: list[Any], tmp_path: Path) -> None:
    some = module(9)
    before = bits(some)
    with pytest.raises(BaseMismatchError, match="do not have the values of `have`"):
        bf16codecs.torch.load_into(some, f"{tmp_path / 'run.zarr'}@3", have=2)
    assert are_equal(bits(some), before)


def test_what_is_not_plain_memory_is_loaded_whole(modules: list[Any], tmp_path: Path) -> None:
    """Tensors of other dtypes and strides, on "meta", and tied ones."""
    path = f"{tmp_path / 'run.zarr'}@3"
    some = module(9)
    some.load_state_dict(modules[1].state_dict())
    some[1].weight = torch.nn.Parameter(some[1].weight.detach().t().contiguous().t())
    some[2] = torch.nn.LayerNorm(64)
    bf16codecs.torch.load_into(some, path, cast=True, have=2)
    assert are_equal(bits(some.bfloat16()), bits(modules[2]))
    with torch.device("meta"):
        empty = module(9)
    bf16codecs.torch.load_into(empty, path, have=2)
    assert are_equal(bits(empty), bits(modules[2]))


def test_tensors_of_pytorch_in_a_model(modules: list[Any], tmp_path: Path) -> None:
    tensors = {name: tensor.clone() for name, tensor in modules[0].state_dict().items()}
    with bf16codecs.open_model(f"{tmp_path / 'run.zarr'}@3") as model:
        model.update(tensors, have=1)
        assert are_equal([t.view(torch.int16) for t in tensors.values()], bits(modules[2]))
        with pytest.raises(ValueError, match=r"needed, not torch\.float32 on cpu"):
            model.update({"1.weight": tensors["1.weight"].float()}, have=1)
        with pytest.raises(ValueError, match="not contiguous"):
            model.update({"1.weight": tensors["1.weight"].t()}, have=1)


def test_damage_in_what_is_decoded_beside_the_module(modules: list[Any], tmp_path: Path) -> None:
    """The error has the names of tensors that are new, whichever way they are loaded."""
    some = module(9)
    some.load_state_dict(modules[1].state_dict())
    some[1].weight = torch.nn.Parameter(some[1].weight.detach().t().contiguous().t())
    chunks = [p for p in (tmp_path / "3.zarr").rglob("*") if p.is_file() and "1/weight" in str(p)]
    chunk = max(chunks, key=lambda path: path.stat().st_size)
    chunk.write_bytes(chunk.read_bytes()[:-5])
    with pytest.raises(UpdateError, match=r"'1\.weight'.*; new by now: ") as e:
        bf16codecs.torch.load_into(some, tmp_path / "3.zarr", have=tmp_path / "2.zarr")
    for name, tensor in some.state_dict().items():
        expected = modules[2 if name in e.value.updated else 1].state_dict()[name]
        assert torch.equal(tensor.view(torch.int16), expected.view(torch.int16)), name
    assert "1.weight" not in e.value.updated


def test_autograd_notices(modules: list[Any], tmp_path: Path) -> None:
    some = module(9)
    some.load_state_dict(modules[1].state_dict())
    before = [parameter._version for parameter in some.parameters()]
    bf16codecs.torch.load_into(some, f"{tmp_path / 'run.zarr'}@3", have=2)
    assert all(p._version > old for p, old in zip(some.parameters(), before, strict=True))


def test_subclasses_of_parameters(modules: list[Any], tmp_path: Path) -> None:
    class Own(torch.nn.Parameter):
        pass

    tensors = {n: Own(t.clone(), requires_grad=False) for n, t in modules[1].state_dict().items()}
    with bf16codecs.open_model(f"{tmp_path / 'run.zarr'}@3") as model:
        model.update(tensors, have=2)
    assert are_equal([t.detach().view(torch.int16) for t in tensors.values()], bits(modules[2]))
