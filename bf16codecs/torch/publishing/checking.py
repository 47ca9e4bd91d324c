"""Checks of the tensors that a process publishes, and which of them are tied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from bf16codecs.torch.tensors import DTYPES, tied_names

__all__ = ["as_mapping", "check_state", "tied_in"]


def as_mapping(state_dict: Any) -> dict[Any, Any]:
    """Return a state dict as a dictionary; raise TypeError if it is no mapping."""
    if not isinstance(state_dict, Mapping):
        kind = type(state_dict).__name__
        raise TypeError(f"state_dict must be a dict of tensors by name, not {kind}")
    return dict(state_dict)


def check_state(state_dict: Mapping[Any, Any]) -> None:
    """Raise TypeError unless all is tensors by name."""
    for name, tensor in state_dict.items():
        if not isinstance(name, str):
            kind = type(name).__name__
            raise TypeError(f"state_dict has the name {name!r:.80} ({kind}): names are strings")
        if not isinstance(tensor, torch.Tensor):
            kind = type(tensor).__name__
            raise TypeError(
                f"state_dict has {name!r:.80} of type {kind}: only tensors are published"
            )


def tied_in(state_dict: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the names of tensors that are the memory of another one, with the other's name.

    Shards are tied if their tensors have one shape and are sharded alike.
    """
    groups: dict[Any, dict[str, torch.Tensor]] = {}
    for name, tensor in state_dict.items():
        kind: Any = None
        found = tensor
        if isinstance(tensor, DTensor):
            kind = tensor.shape, tensor.device_mesh, tensor.placements
            found = tensor.to_local()
        is_plain = type(found) in (torch.Tensor, torch.nn.Parameter)
        if is_plain and found.layout == torch.strided and found.dtype in DTYPES:
            groups.setdefault(kind, {})[name] = found
    return {name: owner for group in groups.values() for name, owner in tied_names(group).items()}
