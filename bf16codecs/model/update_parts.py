"""The parts of an update, by where its arrays and tensors are."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs.model.gpu import gpu_of
from bf16codecs.model.tensor import LazyTensor
from bf16codecs.model.updating import Part, Update
from bf16codecs.store.reader import ModelReader

__all__ = ["note_changes", "parts_for"]


def parts_for(pairs: Sequence[tuple[LazyTensor, Any]], have: ModelReader | None) -> list[Part]:
    """Return the parts of an update of arrays of NumPy and tensors of PyTorch.

    Raises TypeError or ValueError unless they have the dtypes and shapes of the model's tensors,
    are contiguous in C order, may be written, and do not overlap. The same memory may be given for
    several tensors that are stored once.
    """
    on_host: list[tuple[LazyTensor, NDArray[Any]]] = []
    on_gpus: defaultdict[Any, list[tuple[LazyTensor, Any]]] = defaultdict(list)
    spans: dict[tuple[str, int, int], LazyTensor] = {}
    for tensor, value in pairs:
        is_array = isinstance(value, np.ndarray)
        array, device = (_checked_array if is_array else _checked_tensor)(tensor, value)
        address = value.data_ptr() if array is None else array.ctypes.data
        first = spans.setdefault((str(device), address, address + tensor.nbytes), tensor)
        if tensor.nbytes and first is not tensor:
            if not first.is_copy_of(tensor):
                raise _sharing(first, tensor)
            continue
        if array is None:
            on_gpus[device].append((tensor, value))
        else:
            on_host.append((tensor, array))
    _refuse_overlaps(spans)
    parts: list[Part] = [Update(on_host, have)] if on_host else []
    for device, found in on_gpus.items():
        from bf16codecs.model.gpu_updating import GpuUpdate

        gpu = gpu_of(device)
        assert gpu is not None
        parts.append(GpuUpdate(device, gpu, found, have))
    return parts


def _checked_array(tensor: LazyTensor, value: Any) -> tuple[NDArray[Any] | None, Any]:
    """Return an array, and no device."""
    if value.dtype != tensor.dtype:
        raise ValueError(
            f"tensor {tensor.name!r:.80}: is {tensor.dtype}, and the array {value.dtype}"
        )
    _check_shape(tensor, value)
    if not value.flags.c_contiguous:
        raise ValueError(f"tensor {tensor.name!r:.80}: the array is not contiguous in C order")
    if not value.flags.writeable:
        raise ValueError(f"tensor {tensor.name!r:.80}: the array is read-only")
    return value, None


def _checked_tensor(tensor: LazyTensor, value: Any) -> tuple[NDArray[Any] | None, Any]:
    """Return the memory of a tensor on the CPU, or None, and the device of one on a GPU."""
    what, torch = f"tensor {tensor.name!r:.80}", sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        kind = type(value).__name__
        raise TypeError(f"{what}: an array of NumPy or a tensor of PyTorch is needed, not {kind}")
    from bf16codecs._base.torch_tensors import is_memory_of, memory_of, plain_tensor, torch_dtype

    _check_shape(tensor, value)
    plain_tensor(value, tensor.name)  # raises for classes that compute their numbers
    dtype = torch_dtype(tensor.dtype, tensor.get_dtype())
    if not value.is_contiguous():
        raise ValueError(f"{what}: the tensor is not contiguous in C order")
    if gpu_of(value.device) is not None and is_memory_of(value, dtype, "cuda"):
        return None, value.device
    if is_memory_of(value, dtype):
        return memory_of(value, tensor.dtype), None
    raise ValueError(
        f"{what}: {dtype} on the CPU, or on a GPU that decodes it, is needed, not {value.dtype} on"
        f" {value.device}"
    )


def _check_shape(tensor: LazyTensor, value: Any) -> None:
    if tuple(value.shape) != tensor.shape:
        raise ValueError(
            f"tensor {tensor.name!r:.80}: has shape {tensor.shape}, and the array"
            f" {tuple(value.shape)}"
        )


def _refuse_overlaps(spans: Mapping[tuple[str, int, int], LazyTensor]) -> None:
    """Refuse tensors that share memory, given by device, first byte and the one after the last."""
    filled = (span for span in spans if span[2] > span[1])
    for one, other in pairwise(sorted(filled)):
        if one[0] == other[0] and other[1] < one[2]:
            raise _sharing(spans[one], spans[other])


def _sharing(one: LazyTensor, other: LazyTensor) -> ValueError:
    return ValueError(
        f"tensors {one.name!r:.80} and {other.name!r:.80} share memory: give each its own"
    )


def note_changes(values: Sequence[Any]) -> None:
    """Let autograd notice that tensors of PyTorch have changed."""
    torch = sys.modules.get("torch")
    for value in values:
        if torch is not None and isinstance(value, torch.Tensor) and not value.is_inference():
            torch.autograd.graph.increment_version(value)
