"""Inference engines take steps by loading them as they load checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from bf16codecs.errors import BaseMismatchError, StepNotFoundError
from published import bits_of, published, states

torch = pytest.importorskip("torch")
pytest.importorskip("bf16codecs.torch")


class Model:
    """A model of an engine, whose rank has the first rows of each matrix."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.own = {name: torch.zeros_like(part(tensor)) for name, tensor in state.items()}

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        for name, tensor in weights:
            self.own[name].copy_(part(tensor))


def part(tensor: Any) -> Any:
    return tensor[: tensor.shape[0] // 2] if tensor.ndim == 2 else tensor


def parts_of(state: dict[str, Any]) -> dict[str, bytes]:
    return bits_of({name: part(tensor) for name, tensor in state.items()})


@pytest.mark.parametrize("keeps_copy", [True, False])
def test_steps_are_loaded(tmp_path: Path, keeps_copy: bool) -> None:
    from bf16codecs.torch.taking import StepTaker

    path, some = tmp_path / "policy.zarr", states(6)
    steps = published(path, some, keyframe_every=2)
    next(steps)
    taker, model = StepTaker(str(path), keeps_copy=keeps_copy), Model(some[0])
    for number in (0, 1, 2, 4, 5):
        while number and not list(path.glob(f"steps/{10 * number}-*")):
            next(steps)
        model.load_weights(taker.weights(10 * number))
        assert bits_of(model.own) == parts_of(some[number])
    taker.close()


def test_sglang_takes_steps(tmp_path: Path) -> None:
    """With a double of its model: SGLang never ran here."""
    from bf16codecs.torch.sglang import take_step

    path, some = tmp_path / "policy.zarr", states(3)
    list(published(path, some))
    model = Model(some[0])
    for number, state in enumerate(some):
        take_step(model, [(str(path), torch.tensor(10 * number))])
        assert bits_of(model.own) == parts_of(state)
    for given, match in [
        ([], "has 0 pairs: one is needed"),
        (2 * [torch.tensor(1)], "has 2 pairs: one is needed"),
        ([torch.tensor([1, 2])], r"shape \[2\] and dtype int64: one is needed"),
        ([torch.tensor(4.5)], r"shape \[\] and dtype float32: one is needed"),
    ]:
        with pytest.raises(ValueError, match=match):
            take_step(model, [(str(path), number) for number in given])
    with pytest.raises(StepNotFoundError, match="no step 5"):
        take_step(model, [(str(path), torch.tensor(5))])


def test_a_copy_that_was_changed_is_replaced(tmp_path: Path) -> None:
    from bf16codecs.torch.taking import StepTaker

    path, some = tmp_path / "policy.zarr", states(3)
    list(published(path, some))
    taker = StepTaker(str(path))
    copy = dict(taker.weights(0))
    copy["half"] += 1
    with pytest.raises(BaseMismatchError):
        taker.weights(10)
    assert bits_of(dict(taker.weights(20))) == bits_of(some[2])
