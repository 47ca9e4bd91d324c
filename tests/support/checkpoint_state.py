"""Tensors of many dtypes and shapes, and how the processes of a job have them."""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

#: Shape, dtype, and the sharded axis: None if all processes have all of it. Of two,
#: each is that of an axis of the processes.
SHAPES: dict[str, tuple[tuple[int, ...], torch.dtype, Any]] = {
    "rows.weight": ((64, 256), torch.bfloat16, 0),
    "columns.weight": ((96, 256), torch.bfloat16, 1),
    "uneven.weight": ((137, 90), torch.float32, 0),
    "uneven_columns.weight": ((210, 51), torch.float16, 1),
    "few_rows.weight": ((2, 3000), torch.float32, 0),
    "both.weight": ((60, 264), torch.bfloat16, (0, 1)),
    "hybrid.weight": ((72, 130), torch.bfloat16, (None, 0)),
    "deep.weight": ((6, 8, 200, 3), torch.float32, 1),
    "prime.weight": ((97, 300), torch.float32, 0),
    "norm": ((768,), torch.bfloat16, 0),
    "vector": ((10000,), torch.float32, 0),
    "replicated": ((40, 40), torch.bfloat16, None),
    "embed": ((128, 96), torch.bfloat16, 0),
    "head": ((128, 96), torch.bfloat16, 0),
    "almost": ((128, 96), torch.bfloat16, 0),
    "master": ((128, 96), torch.float32, 0),
    "whole_master": ((128, 96), torch.float32, None),
    "whole_copy": ((128, 96), torch.bfloat16, None),
    "whole_tied": ((128, 96), torch.float32, None),
    "scalar": ((), torch.float32, None),
    "step_a": ((), torch.float32, None),
    "step_b": ((), torch.float32, None),
    "flags": ((100,), torch.bool, None),
    "ids": ((5, 700), torch.int64, 0),
    "empty": ((0, 7), torch.float32, 0),
    "double": ((33, 9), torch.float64, 0),
    "eight": ((64, 40), torch.float8_e4m3fn, 0),
    "complex": ((9, 30), torch.complex64, 0),
}
# Equal ones; "embed" is the rounding of "master", and "almost" is that but for the last item, so
# that processes that have other rows of it do not know.
_SAME = {"head": "embed", "step_b": "step_a", "whole_tied": "whole_master"}


def numbers(name: str, seed: int = 0) -> torch.Tensor:
    """Return a whole tensor, which differs a little from seed to seed."""
    name = _SAME.get(name, name)
    if name in ("embed", "almost"):
        rounded = numbers("master", seed).bfloat16()
        rounded[-1, -1] += name == "almost"
        return rounded
    if name == "whole_copy":
        return numbers("whole_master", seed).bfloat16()
    shape, dtype, _ = SHAPES[name]
    if not shape:
        return torch.tensor(7 + seed, dtype=dtype)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    values = torch.randn(shape, generator=generator, dtype=torch.float64) / 30
    values = values + seed * 1e-4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    if dtype in (torch.bool, torch.int64):
        return (values * 100).to(dtype)
    values = values.to(dtype)
    if dtype == torch.bfloat16 and values.numel() > 100:
        # A NaN with a payload, and a zero with a sign.
        values.view(torch.int16).view(-1)[:2] = torch.tensor([0x7F85, -0x8000], dtype=torch.int16)
    return values


def placed(name: str, seed: int = 0, empty: bool = False) -> Any:
    """Return a tensor as a process of a job has it."""
    whole, axis = numbers(name, seed), SHAPES[name][2]
    if empty:
        whole = torch.zeros_like(whole)
    if axis is None:
        return whole
    size = dist.get_world_size()
    axes = axis if isinstance(axis, tuple) else (axis,)
    columns = size // 2 if size % 2 == 0 else size
    mesh = init_device_mesh("cpu", (size // columns, columns) if len(axes) == 2 else (size,))
    placements = [Replicate() if own is None else Shard(own) for own in axes]
    # Each process has all of it here: gloo sends no numbers of some dtypes.
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)
