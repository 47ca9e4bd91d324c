"""NumPy arrays as PyTorch tensors, and the other way round."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._messages import from_extra

with from_extra("torch", "PyTorch's tensors"):
    import torch

__all__ = ["as_tensor", "checked_device", "in_a_row", "is_memory_of", "memory_of", "torch_dtype"]

# PyTorch takes ml_dtypes arrays from NumPy only as integers of the same size.
_CARRIERS = {1: np.uint8, 2: np.int16}
# What NumPy takes of PyTorch has these, by the size of an item.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Stored as bytes, with two numbers in each.
_PACKED = {"F4": "float4_e2m1fn_x2"}


def as_tensor(array: NDArray[Any], kind: str | None = None) -> torch.Tensor:
    """Make a tensor that shares the array's memory, bfloat16 and float8 included.

    Parameters
    ----------
    array
        An array; one that is read-only, or has negative strides, is copied.
    kind
        The safetensors dtype; needed for types that NumPy lacks.

    Returns
    -------
    torch.Tensor
    """
    array = np.require(array, requirements=["W"])
    if min(array.strides, default=0) < 0:
        array = array.copy()
    if kind in _PACKED and array.dtype == np.uint8:
        return torch.from_numpy(array).view(getattr(torch, _PACKED[kind]))
    if array.dtype.kind in "biufc" and array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    carrier = _CARRIERS[array.dtype.itemsize]
    return torch.from_numpy(array.view(carrier)).view(getattr(torch, array.dtype.name))


def torch_dtype(dtype: np.dtype[Any], kind: str | None = None) -> torch.dtype:
    """Return the dtype that `as_tensor` gives tensors of arrays with a dtype."""
    return as_tensor(np.empty(0, dtype), kind).dtype


def in_a_row(tensor: torch.Tensor) -> torch.Tensor:
    """Return the items of a contiguous tensor along one axis, whose bytes can be viewed."""
    # A single one is contiguous whatever its stride, but its bytes are viewed only if that is 1.
    return tensor.reshape(()).reshape(1) if tensor.numel() == 1 else tensor.reshape(-1)


def is_memory_of(tensor: torch.Tensor, dtype: torch.dtype, kind: str = "cpu") -> bool:
    """Tell whether a tensor is memory that has items of a dtype as they are stored.

    Parameters
    ----------
    tensor, dtype
        The tensor, and the dtype.
    kind
        Of the device that it is on: ``"cpu"``, ``"cuda"``.
    """
    return (
        tensor.dtype == dtype
        and tensor.device.type == kind
        and tensor.layout == torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def memory_of(tensor: torch.Tensor, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the memory of a tensor on the CPU as an array, with the tensor's shape and strides.

    Parameters
    ----------
    tensor
        The tensor.
    dtype
        Of the array: NumPy's or ml_dtypes' name for the tensor's own; ``uint8`` for packed types.
    """
    return tensor.detach().view(_INTEGERS[tensor.itemsize]).numpy().view(dtype)


def checked_device(device: Any) -> torch.device:
    """Return a device as PyTorch has it; None is the CPU.

    `Tensor.to` would also take a dtype, and values that are neither.

    Raises
    ------
    TypeError
        If it is of a type that no device has.
    ValueError
        If PyTorch knows no such device.
    RuntimeError
        If this PyTorch has none of its kind.
    """
    if device is None:
        return torch.device("cpu")
    if isinstance(device, bool) or not isinstance(device, (str, int, torch.device)):
        kind = type(device).__name__
        text = f"device must be a name, a number or a torch.device, not {device!r:.80} ({kind})"
        raise TypeError(text)
    try:
        checked = torch.device(device)
    except RuntimeError as e:
        raise ValueError(f"device {device!r:.80}: {str(e).splitlines()[0]}") from e
    if checked.type == "cuda" and not torch.backends.cuda.is_built():
        raise RuntimeError(
            f"device {device!r:.80}: this PyTorch was built without CUDA: install one that has it,"
            " or choose device='cpu'"
        )
    if checked.type not in ("cpu", "cuda", "meta"):
        try:
            torch.empty(0, device=checked)
        except (AssertionError, RuntimeError) as e:
            why = str(e).partition(". ")[0]
            raise RuntimeError(f"device {device!r:.80}: this PyTorch has none such: {why}") from e
    return checked
