"""PyTorch modules for tests, which have to check for PyTorch before they import this."""

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
    """A module whose embedding is also its output layer, and a table that is not saved."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("table", torch.arange(3.0), persistent=False)
        self.norm.weight.requires_grad_(False)


class TiedTwice(nn.Module):
    """A module with two pairs of tied parameters, and two that are equal and not tied."""

    def __init__(self, size=32):
        super().__init__()
        self.embed = nn.Embedding(50, size)
        self.norm = nn.LayerNorm(600)
        self.other_norm = nn.LayerNorm(600)
        self.head = nn.Linear(size, 50, bias=False)
        self.head.weight = self.embed.weight
        self.bias = nn.Parameter(torch.zeros(3))
        self.again = self.bias


class Sparse(nn.Module):
    """A module with a tensor that no store takes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.eye(3).to_sparse())


class Extra(nn.Linear):
    """A module whose state is not all tensors."""

    def get_extra_state(self):
        return {"steps": 3}

    def set_extra_state(self, state):
        raise AssertionError("no store has any")


class Strange(nn.Module):
    """A module with tensors that nothing can be decoded into directly."""

    def __init__(self):
        super().__init__()
        self.transposed = nn.Parameter(torch.zeros(4, 6).t())
        conv = nn.Conv2d(3, 4, 2, bias=False)
        self.conv = conv.to(memory_format=torch.channels_last)
        self.register_buffer("conj", torch.zeros(3, dtype=torch.complex64).conj())
        self.register_buffer("neg", torch.zeros(3, dtype=torch.complex64).conj().imag)
        self.plain = nn.Parameter(torch.zeros(3))


class Marked(nn.Parameter):
    """A tensor subclass, whose operations might do anything."""


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


class Noted(torch.Tensor):
    """A tensor subclass that only records which functions are called."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs)
        if isinstance(result, cls):
            result.noted = function
        return result


class Boxes(torch.Tensor):
    """A subclass whose results are plain tensors but for a few, as those of torchvision are."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
            if function is torch.Tensor.requires_grad_ or not isinstance(result, torch.Tensor):
                return result
            return result.as_subclass(cls if function is torch.Tensor.detach else torch.Tensor)


class Halved(torch.Tensor):
    """A subclass whose numbers are half of what its own memory has."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if function is not torch.Tensor.copy_:
                args = [a.as_subclass(torch.Tensor) / 2 if isinstance(a, cls) else a for a in args]
            return function(*args, **(kwargs or {}))

    def codes(self):
        """Return the codes in the tensor's memory."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.tolist()


class Coded(torch.Tensor):
    """A subclass whose numbers are codes times a scale, as those of quantized weights are."""

    @staticmethod
    def __new__(cls, codes, scale):
        coded = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        coded.codes, coded.scale = codes, scale
        return coded

    @classmethod
    def of(cls, code, shape=(64, 300)):
        """Make a tensor of equal codes."""
        return cls(torch.full(shape, code, dtype=torch.int8), torch.tensor(0.5))

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        args = [arg.codes * arg.scale if isinstance(arg, cls) else arg for arg in args]
        return function(*args, **(kwargs or {}))


class Halves(torch.Tensor):
    """A subclass with numbers in memory, and what they lack in other memory."""

    @staticmethod
    def __new__(cls, high, low):
        made = torch.Tensor._make_wrapper_subclass(cls, high.shape, dtype=high.dtype)
        made.high, made.low = high, low
        return made

    def __tensor_flatten__(self):
        return ["high", "low"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args = [arg.high if isinstance(arg, cls) else arg for arg in args]
        return function(*args, **(kwargs or {}))


class Renaming(nn.Linear):
    """A module that loads its tensor under an old name, and doubles it."""

    def _load_from_state_dict(self, state, prefix, *args):
        state[f"{prefix}weight"] = state.pop(f"{prefix}old") * 2
        super()._load_from_state_dict(state, prefix, *args)


class Keeping(nn.Linear):
    """A module that keeps a loaded tensor as an attribute."""

    def get_extra_state(self):
        return self.kept

    def set_extra_state(self, state):
        self.kept = state


def saved_network(folder: Path) -> tuple[nn.Sequential, Path]:
    """Make a network, and a store of its tensors."""
    module = network()
    save_file(module.state_dict(), folder / "m.zarr", chunk_size=256)
    return module, folder / "m.zarr"


def note_decoded_beside(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects names of tensors that `load_into` decodes elsewhere."""
    names = []
    read = loading._Stored.read

    def note(stored: loading._Stored, device: Any = "cpu") -> torch.Tensor:
        names.append(stored.lazy.name)
        return read(stored, device)

    monkeypatch.setattr(loading._Stored, "read", note)
    return names
