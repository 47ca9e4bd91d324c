"""NumPy arrays as PyTorch tensors, and the other way round."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._base.messages import from_extra

with from_extra("torch", "PyTorch's tensors"):
    import torch
    from torch.nn.parameter import is_lazy

__all__ = [
    "as_tensor",
    "checked_device",
    "in_a_row",
    "is_memory_of",
    "memory_of",
    "plain_tensor",
    "torch_dtype",
]

# PyTorch takes ml_dtypes arrays from NumPy only as integers of the same size.
_CARRIERS = {1: np.uint8, 2: np.int16}
# PyTorch's integers, which NumPy takes, by the size of an item.
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
    """Tell whether a tensor's memory has items of a dtype as they are stored.

    `kind` is that of the device that it has to be on: ``"cpu"``, ``"cuda"``.
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

    `dtype` is the array's: the name that NumPy or ml_dtypes has for the tensor's own; ``uint8`` for
    packed types.
    """
    return tensor.detach().view(_INTEGERS[tensor.itemsize]).numpy().view(dtype)


def plain_tensor(tensor: torch.Tensor, name: str = "") -> torch.Tensor:
    """Return the tensor that has the numbers of another one in memory, mostly that one itself.

    A class with operations of its own may wrap such a tensor, which is returned then. Or it
    computes numbers from other data, such as codes and a scale: reading the numbers loses those
    data, and writing to the numbers has no effect. ValueError, with the tensor's name, is raised
    for such a class, and for layouts other than ``torch.strided``.
    """
    label = f"tensor {name!r}" if name else "a tensor"
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.layout != torch.strided and not tensor.is_nested:
            raise ValueError(f"{label}: is in layout {tensor.layout}: use tensor.to_dense()")
    try:
        found = _plain(tensor)
    except Exception:  # a class may raise anything, and functorch's wrappers have no storage
        found = None
    if found is None:
        kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
        raise ValueError(
            f"{label} of class {kind} has no memory with its numbers, which may be computed from"
            " other data: use a plain tensor, such as .dequantize() or .full_tensor() returns, or"
            " the tensors that it is made of"
        )
    return found


def _plain(tensor: torch.Tensor) -> torch.Tensor | None:
    # The storage of a functional tensor, which has no class that would show it, is never written.
    if is_lazy(tensor) or torch._is_functional_tensor(tensor):
        return None
    with torch.no_grad():
        found = _memory(tensor)
        if found is None or not _has_functions(type(tensor)):
            return found
        # An operation that computes its numbers returns them in new memory.
        seen = _memory(tensor[...])
        if seen is None or _identity(seen) != _identity(found):
            return None
        # Nobody else is to call the class's operations.
        with torch._C.DisableTorchFunctionSubclass():
            return found.as_subclass(torch.Tensor)


def _memory(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor whose memory PyTorch's own operations read for one, if there is such."""
    with torch._C.DisableTorchFunctionSubclass():
        if _has_no_operations(tensor):
            return tensor if _has_memory(tensor) else None
        # Numbers that are computed are at another address each time.
        found, again = (tensor.view(_INTEGERS[tensor.itemsize]) for _ in range(2))
        if not _has_no_operations(found) or found.shape != tensor.shape:
            return None
        is_memory = found.data_ptr() == again.data_ptr() and (found.data_ptr() or not found.numel())
        parts = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ()
        return found.view(tensor.dtype) if is_memory and len(parts) < 2 else None


def _has_memory(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's storage has all of its items: it may have been released, or cut."""
    if tensor.is_nested or tensor._is_zerotensor():
        return False
    if not tensor.numel():
        return True
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps)
    return (last + 1) * tensor.itemsize <= tensor.untyped_storage().nbytes()


def _has_functions(kind: type[torch.Tensor]) -> bool:
    """Tell whether a class decides what PyTorch's functions do with its tensors.

    Many do so and leave the numbers alone: they note calls, keep attributes, replace one function.
    """
    function: Any = kind.__torch_function__
    if function is torch._C._disabled_torch_function_impl:
        return False
    return getattr(function, "__func__", function) is not torch.Tensor.__torch_function__.__func__


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for tensors of the same items in the same memory."""
    with torch._C.DisableTorchFunctionSubclass():
        view = tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
        return tensor.device, tensor.data_ptr(), *view


def _has_no_operations(tensor: torch.Tensor) -> bool:
    """Tell whether PyTorch's own operations are those of a tensor's class."""
    return bool(type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__)


def checked_device(device: Any) -> torch.device:
    """Return a device as PyTorch has it; None is the CPU.

    `Tensor.to` would also take a dtype, and values that are neither. TypeError is raised for a type
    that no device has, ValueError for a device that PyTorch does not know, RuntimeError if this
    PyTorch has none of its kind.
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
