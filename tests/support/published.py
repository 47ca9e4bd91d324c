"""Steps to publish: weights of which one of a hundred values differs from the step before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lazy_imports import lazily

torch = lazily("torch")

State = dict[str, Any]


def first_state(seed: int = 0) -> State:
    """Return tensors of many dtypes and shapes."""
    random = torch.Generator().manual_seed(seed)
    state = {
        "embed.weight": torch.randn(300, 64, generator=random).bfloat16(),
        "layers.0.weight": torch.randn(64, 65, generator=random).bfloat16(),
        "layers.0.scale": torch.randn(64, generator=random),
        "half": torch.randn(3, 5, 7, generator=random).half(),
        "scalar": torch.tensor(2.5),
        "count": torch.tensor(3),
        "none": torch.zeros(0, 4),
        "mask": torch.rand(50, generator=random) < 0.5,
        "step": torch.arange(10),
    }
    state["head.weight"] = state["embed.weight"]
    return state


def changed(state: State, seed: int) -> State:
    """Return a state of which one of a hundred values differs, tied as the other."""
    random = torch.Generator().manual_seed(seed)
    new: dict[int, Any] = {}
    for tensor in state.values():
        if id(tensor) not in new:
            copy = tensor.clone()
            if tensor.dtype == torch.bfloat16:
                where = torch.rand(tensor.shape, generator=random) < 0.01
                copy.view(torch.int16)[where] += 1
            elif tensor.numel():
                copy = copy.roll(seed) if copy.ndim else copy
            new[id(tensor)] = copy
    return {name: new[id(tensor)] for name, tensor in state.items()}


def states(count: int, seed: int = 0) -> list[State]:
    """Return the states of some steps."""
    found = [first_state(seed)]
    while len(found) < count:
        found.append(changed(found[-1], seed + len(found)))
    return found


def bits(tensor: Any) -> bytes:
    """Return the bytes of a tensor or an array."""
    if isinstance(tensor, np.ndarray):
        return tensor.tobytes()
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def bits_of(state: State) -> dict[str, bytes]:
    """Return the bytes of all tensors."""
    return {name: bits(tensor) for name, tensor in state.items()}


def bits_in(model: Any) -> dict[str, bytes]:
    """Return the bytes of all tensors of a model."""
    return {name: bits(tensor[...]) for name, tensor in model.items()}


def copies(state: State) -> State:
    """Return a state in other memory, without the names of tied tensors."""
    seen: set[int] = set()
    found = {}
    for name, tensor in state.items():
        if id(tensor) not in seen:
            found[name] = tensor.clone()
        seen.add(id(tensor))
    return found


def published(path: Any, some: list[State], **options: Any) -> Iterator[Any]:
    """Publish states as steps 0, 10, 20 and so on; yield what `publish` returns."""
    from bf16codecs.torch import publish

    for number, state in enumerate(some):
        yield publish(path, state, 10 * number, **options)
