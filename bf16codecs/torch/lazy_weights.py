"""Tensors of a store as tensors of PyTorch that are decoded when they are copied.

Code that loads weights often cuts out the part that it needs, such as the rows of one of several
ranks. Cutting a lazy weight decodes nothing; copying it decodes the blocks of that part alone, on
the CPU straight into the memory that is copied to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from bf16codecs._base.torch_tensors import is_memory_of, memory_of, torch_dtype
from bf16codecs.model.frameworks import read_torch
from bf16codecs.model.tensor import LazyTensor

__all__ = ["LazyWeight"]

_aten = torch.ops.aten

#: What is taken along an axis of the stored tensor: some indices, or one, without the axis then.
Part = range | int


class LazyWeight(torch.Tensor):
    """A part of a stored tensor. Slicing returns another part; any other use decodes it."""

    _tensor: LazyTensor
    _parts: tuple[Part, ...]

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def of(cls, tensor: LazyTensor) -> LazyWeight:
        """Return all of a tensor."""
        return cls._part_of(tensor, tuple(map(range, tensor.shape)))

    @classmethod
    def _part_of(cls, tensor: LazyTensor, parts: tuple[Part, ...]) -> LazyWeight:
        shape = [len(part) for part in parts if isinstance(part, range)]
        dtype = torch_dtype(tensor.dtype, tensor.get_dtype())
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device="cpu")
        made._tensor, made._parts = tensor, parts
        return made

    def decoded(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Decode it to a new tensor on a device."""
        selection = tuple(
            slice(part.start, part.stop, part.step) if isinstance(part, range) else part
            for part in self._parts
        )
        target = torch.device(device)
        return read_torch(target, self._tensor, selection or ...).reshape(self.shape)

    def _cut(self, axis: int, item: slice | int) -> LazyWeight:
        """Return a part of it, along one of its axes."""
        axes = [i for i, part in enumerate(self._parts) if isinstance(part, range)]
        parts: list[Any] = list(self._parts)
        parts[axes[axis]] = parts[axes[axis]][item]
        return self._part_of(self._tensor, tuple(parts))

    def _copy_to(self, target: torch.Tensor) -> None:
        """Decode it into the memory of a tensor that has its shape."""
        steps = all(part.step == 1 for part in self._parts if isinstance(part, range))
        if steps and target.shape == self.shape and is_memory_of(target, self.dtype):
            dropped = tuple(i for i, part in enumerate(self._parts) if isinstance(part, int))
            out = np.expand_dims(memory_of(target, self._tensor.dtype), dropped)
            box = [p if isinstance(p, range) else range(p, p + 1) for p in self._parts]
            self._tensor.read_box(box, out)
        else:
            target.copy_(self.decoded(target.device))

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs, first = kwargs or {}, args[0] if args else None
        if isinstance(first, cls):
            if function is _aten.slice.Tensor:
                defaults: list[Any] = [0, None, None, 1]
                axis, start, stop, step = [*args[1:], *defaults[len(args) - 1 :]]
                return first._cut(axis, slice(start, stop, step))
            if function is _aten.select.int:
                return first._cut(args[1], args[2])
            if function is _aten.split.Tensor:
                size, axis = args[1], args[2] if len(args) > 2 else 0
                starts = range(0, max(1, first.shape[axis]), size)
                return [first._cut(axis, slice(start, start + size)) for start in starts]
            if function is _aten.unbind.int:
                axis = args[1] if len(args) > 1 else 0
                return [first._cut(axis, index) for index in range(first.shape[axis])]
            if function in (_aten.detach.default, _aten.alias.default):
                return cls._part_of(first._tensor, first._parts)
        elif function is _aten.copy_.default and isinstance(args[1], cls):
            args[1]._copy_to(args[0])
            return args[0]
        args, kwargs = tree_map_only(cls, cls.decoded, (tuple(args), kwargs))
        return function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"LazyWeight({self._tensor.name!r}, shape={tuple(self.shape)}, dtype={self.dtype})"
