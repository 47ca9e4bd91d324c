"""Lazy weights are cut without decoding, and decoded where they are copied to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bf16codecs
from lazy_models import weights, write_store

torch = pytest.importorskip("torch")
lazy_weights = pytest.importorskip("bf16codecs.torch.lazy_weights")

ARRAYS = {
    "w": weights((300, 200)),
    "deep": weights((3, 40, 5), "float32", 1),
    "scalar": weights((), "float16"),
    "empty": weights((0, 4)),
    "byte": weights((30, 20), "float8_e4m3fn"),
}


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Any]:
    with bf16codecs.open_model(write_store(tmp_path / "m.zarr", ARRAYS)) as model:
        yield model


def pair(model: Any, name: str) -> tuple[Any, Any]:
    """Return a lazy weight, and the tensor that it stands for."""
    return lazy_weights.LazyWeight.of(model[name]), model[name].torch()


def assert_same(one: Any, other: Any) -> None:
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    one, other = (t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    assert torch.equal(one, other)


CUTS: list[tuple[str, Callable[[Any], Any]]] = [
    ("w", lambda t: t),
    ("w", lambda t: t.narrow(0, 100, 50)),
    ("w", lambda t: t.narrow(1, 20, 60)),
    ("w", lambda t: t.narrow(0, 10, 200)[5:, 3:-7]),
    ("w", lambda t: t[::3, 5]),
    ("w", lambda t: t[7]),
    ("w", lambda t: t[-1, -1]),
    ("w", lambda t: t.chunk(4, dim=0)[2]),
    ("w", lambda t: t[3:3]),
    ("deep", lambda t: t[1]),
    ("deep", lambda t: t[:, 3:9, 2]),
    ("deep", lambda t: t.unbind()[2]),
    ("scalar", lambda t: t),
    ("empty", lambda t: t[:, 1:]),
    ("byte", lambda t: t[5:9, ::2]),
]


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_parts(model: Any, name: str, cut: Callable[[Any], Any]) -> None:
    lazy, tensor = pair(model, name)
    part, expected = cut(lazy), cut(tensor)
    assert isinstance(part, lazy_weights.LazyWeight)
    assert (part.shape, part.dtype, part.numel()) == (
        expected.shape,
        expected.dtype,
        expected.numel(),
    )
    for target in (
        torch.empty_like(expected).contiguous(),
        torch.empty((*expected.shape, 2), dtype=expected.dtype)[..., 0],
        torch.nn.Parameter(torch.empty_like(expected).contiguous(), requires_grad=False),
    ):
        target.copy_(part)
        assert_same(target, expected)
    if expected.dtype == torch.bfloat16:
        other = torch.empty(expected.shape, dtype=torch.float32)
        other.copy_(part)
        assert torch.equal(other, expected.float())


def test_only_the_part_is_decoded(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    boxes: list[Any] = []
    read = bf16codecs.LazyTensor.read_box

    def read_box(tensor: Any, box: Any, out: Any) -> None:
        boxes.append([(part.start, part.stop) for part in box])
        read(tensor, box, out)

    monkeypatch.setattr(bf16codecs.LazyTensor, "read_box", read_box)
    monkeypatch.setattr(bf16codecs.LazyTensor, "__getitem__", None)
    lazy, tensor = lazy_weights.LazyWeight.of(model["w"]), weights((300, 200))
    part = lazy.narrow(0, 150, 150).narrow(1, 0, 100).detach()
    assert boxes == []
    target = torch.zeros((150, 200), dtype=torch.bfloat16)
    target[:, 100:].copy_(part)
    assert boxes == [[(150, 300), (0, 100)]]
    expected = torch.from_numpy(tensor[150:, :100].view("int16").copy())
    assert torch.equal(target[:, 100:].view(torch.int16), expected)
    assert not target[:, :100].any()


def test_other_uses_decode(model: Any) -> None:
    lazy, tensor = pair(model, "w")
    assert_same(lazy.t(), tensor.t())
    assert_same(lazy.view(-1), tensor.view(-1))
    assert_same(torch.cat([lazy, lazy[:5]]), torch.cat([tensor, tensor[:5]]))
    assert_same(lazy.float() @ lazy.t().float(), tensor.float() @ tensor.t().float())
    assert "LazyWeight('w', shape=(300, 200), dtype=torch.bfloat16)" in repr(lazy)
    with pytest.raises(IndexError):
        lazy[300]
    with pytest.raises(RuntimeError, match="size"):
        torch.empty(3, 3, dtype=torch.bfloat16).copy_(lazy)
