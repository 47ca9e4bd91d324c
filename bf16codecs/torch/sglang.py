"""A loader for SGLang: its ranks take steps that a training job publishes.

Start the server with ``--custom-weight-loader bf16codecs.torch.sglang.take_step``. Then, for each
step::

    engine.update_weights_from_tensor(
        [("s3://models/policy.zarr", torch.tensor(601))],
        load_format="bf16codecs.torch.sglang.take_step",
    )
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bf16codecs._base.messages import counted
from bf16codecs.torch.taking import StepTaker

__all__ = ["take_step"]

_NEEDED = "one is needed, the path of a published run with one integer, the number of a step"
# What this process follows, by path: SGLang calls a function, and keeps nothing for it.
_followed: dict[str, StepTaker] = {}


def take_step(model: Any, named_tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Load a step of a published run into a model of SGLang, once it is there.

    Each rank keeps a copy of all weights on the host, and only reads what has changed.

    Parameters
    ----------
    model
        The rank's model, by whose `load_weights` the step is loaded.
    named_tensors
        One pair: the path or address of the run, and the number of the step in a tensor.

    Raises
    ------
    ValueError
        If there is another number of pairs, or a tensor that is not one integer.
    TimeoutError, bf16codecs.errors.StepNotFoundError
        If the step does not appear within a minute; if it was dropped.
    """
    if len(named_tensors) != 1:
        raise ValueError(f"named_tensors has {counted(len(named_tensors), 'pair')}: {_NEEDED}")
    ((path, number),) = named_tensors
    if number.numel() != 1 or number.is_floating_point() or number.is_complex():
        shape, dtype = list(number.shape), str(number.dtype).removeprefix("torch.")
        raise ValueError(f"{path}: the tensor has shape {shape} and dtype {dtype}: {_NEEDED}")
    if path not in _followed:
        _followed[path] = StepTaker(path)
    model.load_weights(_followed[path].weights(int(number)))
