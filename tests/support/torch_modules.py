"""Modules of PyTorch for tests, which have to look for PyTorch before they import this."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bf16codecs.torch import loading, save_file


def bits(tensor: torch.Tensor) -> list[int]:
    """Return a tensor's bytes."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def same_state(module: nn.Module, other: nn.Module) -> bool:
    """Tell whether modules have the same tensors, bit by bit."""
    mine, others = module.state_dict(), other.state_dict()
    return mine.keys() == others.keys() and all(
        (tensor.dtype, tensor.shape, bits(tensor))
        == (others[name].dtype, others[name].shape, bits(others[name]))
        for name, tensor in mine.items()
    )


def network() -> nn.Sequential:
    """Make a module with random weights."""
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 8)).bfloat16()


class Tied(nn.Module):
    """A module with an embedding that is the output layer, too, and a table that is not saved."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("table", torch.arange(3.0), persistent=False)
        self.norm.weight.requires_grad_(False)


def saved_network(folder: Path) -> tuple[nn.Sequential, Path]:
    """Make a network, and a store that has it."""
    module = network()
    save_file(module.state_dict(), folder / "m.zarr", chunk_size=256)
    return module, folder / "m.zarr"


def note_decoded_beside(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return names of tensors that `load_into` decodes elsewhere and copies, from now on."""
    names = []
    read = loading._Stored.read

    def note(stored: loading._Stored, device: Any = "cpu") -> torch.Tensor:
        names.append(stored.lazy.name)
        return read(stored, device)

    monkeypatch.setattr(loading._Stored, "read", note)
    return names
